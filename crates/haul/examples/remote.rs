//! Copies a tree between this host and another: `remote FROM TO HAUL [SSH...]`. FROM or TO is
//! `[USER@]HOST:PATH`; HAUL is a program `haul`, which is brought to the other host where there is none that
//! fits; SSH is what is run in place of `ssh`, with its arguments.
//!
//! As `copy`, the same call again goes on from what an earlier one left.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use haul::api::{Copy, ErrorKind, Event, RemoteOptions, Status};

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let [from, to, binary, ssh @ ..] = &words[..] else {
        eprintln!("remote FROM TO HAUL [SSH...]");
        return ExitCode::from(2);
    };
    // Before there are keys.
    haul::process::keep_secrets();
    haul::process::raise_limits();
    let (sources, destination) = match haul::endpoint::resolve(&[from.clone(), to.clone()]) {
        Ok(ends) => ends,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let mut remote = RemoteOptions { binary: Some(PathBuf::from(binary)), ..RemoteOptions::default() };
    if !ssh.is_empty() {
        remote.ssh = ssh.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    }
    let tell = |event| match event {
        Event::Failed { path, text, .. } => eprintln!("{}: {text}", String::from_utf8_lossy(&path)),
        Event::Note(text) => eprintln!("{text}"),
        _ => {}
    };
    let summary = Copy::from(sources).to(destination).recursive().remote(remote).on_event(tell).run();
    println!(
        "{:?}: {} files, {} bytes, {} unchanged",
        summary.status, summary.files, summary.bytes, summary.unchanged
    );
    let Some(error) = summary.error else {
        return if summary.status == Status::Complete { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    };
    eprintln!("{error}");
    match error.kind {
        ErrorKind::Launch => eprintln!("install haul there, or allow that it is brought"),
        ErrorKind::Network => eprintln!("try again later: what was copied by then stays"),
        _ => {}
    }
    ExitCode::FAILURE
}
