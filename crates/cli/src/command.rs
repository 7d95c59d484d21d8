//! The subcommands. Each takes its arguments and returns an exit code.

use std::io::Write;

use crate::args::Command;

mod agent;
mod clean;
mod completions;
mod copy;
mod ctl;
mod layout;
mod man;
mod probe;
mod surroundings;
mod top;

/// A run that failed.
pub const FAILED: i32 = 1;
/// Arguments that make no sense.
pub const USAGE: i32 = 2;

/// Runs a command.
pub fn run(command: Command) -> i32 {
    // Whatever else happened there would be told as something that it is not.
    let works =
        matches!(command, Command::Cp(_) | Command::Agent { protocol: false, .. } | Command::Probe(_));
    if works && let Err(why) = haul::kernel::fits_here() {
        return complain(&why, FAILED);
    }
    match command {
        Command::Cp(args) => copy::run(&args),
        Command::Agent { protocol, channel } => agent::run(protocol, channel),
        Command::Ctl(args) => ctl::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Clean(args) => clean::run(&args),
        Command::Layout(args) => layout::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Man { dir } => man::run(dir.as_deref()),
        Command::Completions { shell } => completions::run(shell),
    }
}

/// Says on stderr why a command ends, and returns `code`. A closed stderr is no reason to panic.
fn complain(text: &str, code: i32) -> i32 {
    let _ = writeln!(std::io::stderr(), "haul: {text}");
    code
}
