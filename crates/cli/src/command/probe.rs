//! `haul probe`: measuring storage and networks, matching two storages, and what earlier probes found.

use std::io::Write;

use super::{FAILED, complain};
use crate::args::probe::Probe;
use haul::errno;

mod network;
mod pair;
mod path;
mod screen;
mod show;
mod storage;

impl super::Run for Probe {
    fn run(&self) -> i32 {
        run(self)
    }

    fn works(&self) -> bool {
        true
    }
}

fn run(command: &Probe) -> i32 {
    match command {
        Probe::Storage(args) => storage::run(args),
        Probe::Network(args) => network::run(args),
        Probe::Path(args) => path::run(args),
        Probe::Pair(args) => pair::run(args),
        Probe::Show(args) => show::run(args),
    }
}

/// Writes a whole report to stdout; the exit code.
fn print(text: &[u8]) -> i32 {
    let mut out = std::io::stdout();
    match out.write_all(text).and_then(|()| out.flush()) {
        Ok(()) => 0,
        Err(error) => complain(&format!("cannot write to stdout: {}", errno::text(error)), FAILED),
    }
}
