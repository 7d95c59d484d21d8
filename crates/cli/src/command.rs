//! The subcommands: a list of them, each in its file with what it does, [`Run`].

use std::io::Write;

use clap::{CommandFactory, Parser, Subcommand};

use crate::args::probe::Probe;
use crate::args::{Clean, Cp, LayoutArgs, ctl::Ctl, top::Top, volume::Volume};
use crate::escape;
use crate::typed::typed;

mod agent;
mod clean;
mod completions;
mod copy;
mod ctl;
mod failed;
mod layout;
mod man;
mod netrc;
mod probe;
mod serve;
mod surroundings;
mod top;
mod volume;

/// A run that failed.
pub const FAILED: i32 = 1;
/// Arguments that make no sense.
pub const USAGE: i32 = 2;

/// Moves data between storage systems, fast, durably and resumably
#[derive(Parser, Debug)]
#[command(name = "haul", version, subcommand_required = true, arg_required_else_help = true)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

/// What a subcommand does with what it was told.
pub trait Run {
    /// Returns an exit code.
    fn run(&self) -> i32;
    /// It moves data, or measures how: whatever else happened on a kernel that is too old would be told as
    /// something that it is not.
    fn works(&self) -> bool {
        false
    }
}

impl<T: Run + ?Sized> Run for Box<T> {
    fn run(&self) -> i32 {
        (**self).run()
    }
    fn works(&self) -> bool {
        (**self).works()
    }
}

/// Makes [`Command`] of the list below.
macro_rules! commands {
    ($($(#[$said:meta])* $name:ident($told:ty),)*) => {
        #[derive(Subcommand, Debug)]
        pub enum Command {
            $($(#[$said])* $name($told),)*
        }

        impl Command {
            fn as_run(&self) -> &dyn Run {
                match self {
                    $(Command::$name(told) => told,)*
                }
            }
        }
    };
}

// Every subcommand, as the help lists them: a new one is a file and a line here. What stands above one is its
// help; without, it is what stands above the type.
commands! {
    /// Copy files and directory trees, here or to or from another host
    Cp(Box<Cp>),
    /// The far end of a copy; started by haul itself over ssh
    #[command(hide = true)]
    Agent(agent::Agent),
    /// Look at copies that run on this host, pause them, change their live settings
    Ctl(Ctl),
    /// Watch the storage targets of a copy that runs on this host
    Top(Top),
    /// List and delete what dead jobs left below a destination
    Clean(Clean),
    /// Show on which storage targets files lie
    Layout(LayoutArgs),
    /// Measure storage and networks, once, so that copies start with the best settings
    #[command(subcommand)]
    Probe(Probe),
    /// Serve a directory to clients of other protocols
    #[command(subcommand)]
    Serve(serve::Serve),
    /// Make, look after and end striped volumes: the flash of several hosts as one
    #[command(subcommand)]
    Volume(Volume),
    /// Print the manual page, or write all pages into a directory
    Man(man::Pages),
    /// Print a completion script for a shell
    Completions(completions::Script),
}

/// Runs a command.
pub fn run(command: &Command) -> i32 {
    let command = command.as_run();
    if command.works()
        && let Err(why) = haul::kernel::fits_here()
    {
        return complain(&why, FAILED);
    }
    command.run()
}

/// Whether a command is only for haul itself.
pub fn is_hidden(name: &str) -> bool {
    Args::command().find_subcommand(name).is_some_and(clap::Command::is_hide_set)
}

/// Says on stderr, on one line, with options as they are typed and without what a terminal would obey, why a
/// command ends, and returns `code`. A closed stderr is no reason to panic.
fn complain(text: &str, code: i32) -> i32 {
    let _ = writeln!(std::io::stderr(), "haul: {}", on_one_line(text));
    code
}

/// A line end in it is that of a name, which would make a line of its own of what it likes.
fn on_one_line(text: &str) -> String {
    escape::text(&typed(text)).trim_end().replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no name makes a line of its own.
    #[test]
    fn complaints_are_one_line() {
        assert_eq!(
            on_one_line("open a\nhaul: all is well\x1b: `no_push`\n"),
            "open a\\nhaul: all is well\\x1b: --no-push"
        );
    }
}
