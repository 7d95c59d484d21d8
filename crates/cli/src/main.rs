//! The `haul` program: reads the command line, runs one command, exits with its code.
//!
//! Only this crate prints, exits, reads the environment or handles signals.
#![deny(unsafe_code)]

mod args;
mod command;
mod live;
mod manifest;
mod output;
mod progress;
mod report;
mod signals;
mod table;
mod typed;

use std::io::Write;

use clap::Parser;
use haul::escape;

/// glibc trims its heap between large allocations, which costs the TLS path most of its rate. No huge pages
/// of the heap's own: every thread would clear and keep some for its few KiB. Large buffers ask for theirs.
#[global_allocator]
static GLOBAL: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let argv = args::rsync::without_human(std::env::args_os());
    // Some of these words mean something else by the rules of bundles, and would be taken.
    let told = args::globus::login(&argv).or_else(|| args::globus::words(&argv));
    if let Some(told) = told.or_else(|| args::rsync::value_named(&argv)) {
        let _ = writeln!(std::io::stderr(), "haul: {told}");
        std::process::exit(2);
    }
    let args = command::Args::try_parse_from(&argv).unwrap_or_else(|error| {
        if let Some(hint) = args::rsync::hint(&error, &argv) {
            let hint = args::hidden::without_passwords(&hint, &argv).unwrap_or(hint);
            let _ = writeln!(std::io::stderr(), "haul: {hint}");
            std::process::exit(error.exit_code());
        }
        let exists = |word: &str| std::path::Path::new(word).symlink_metadata().is_ok();
        let error = args::rsync::without_noise(error, command::is_hidden, exists);
        match args::hidden::without_passwords(&error.render().to_string(), &argv) {
            None => error.exit(),
            Some(text) => {
                let _ = write!(std::io::stderr(), "{text}");
                std::process::exit(error.exit_code());
            }
        }
    });
    let is_there = |word: &std::ffi::OsStr| std::path::Path::new(word).symlink_metadata().is_ok();
    if let Some(told) = args::rsync::key_named(&argv).or_else(|| args::dd::words(&argv, is_there)) {
        let _ = writeln!(std::io::stderr(), "haul: {told}");
        std::process::exit(2);
    }
    haul::process::raise_limits();
    haul::process::one_copy_at_a_time();
    // Without the handler such a file still ends the run; it does so by the signal.
    let _ = signals::outlive_size_limits();
    haul::process::exit(command::run(&args.command));
}
