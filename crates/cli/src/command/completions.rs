//! `haul completions SHELL`: a completion script on stdout.

use std::io::Write;

use clap::CommandFactory;
use clap_complete::Shell;

use super::{FAILED, complain};

pub fn run(shell: Shell) -> i32 {
    // Into memory first: the generator panics when its writer fails.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut crate::args::Args::command(), "haul", &mut script);
    match std::io::stdout().write_all(&script) {
        Ok(()) => 0,
        Err(error) => complain(&format!("cannot write to stdout: {error}"), FAILED),
    }
}
