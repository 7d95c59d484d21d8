//! Copies a tree, shows how far it is, and gives up after some seconds if it is told to:
//! `copy FROM TO [SECONDS]`.
//!
//! What was copied by then stays; the same call again goes on from there.

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use haul::api::{Copy, Event, Handle, Observer, Status};

/// Prints one line for each thing that happened.
struct Lines;

impl Observer for Lines {
    // Called from haul's own threads: it must not block for long.
    fn event(&self, event: Event) {
        match event {
            Event::Progress(progress) => {
                let of = if progress.counting { "at least " } else { "" };
                println!("{} of {of}{} bytes", progress.bytes_done, progress.bytes_total);
            }
            Event::Failed { path, text, .. } => println!("{}: {text}", String::from_utf8_lossy(&path)),
            // There will be more kinds of events.
            _ => {}
        }
    }
}

fn main() -> ExitCode {
    let words: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let (from, to, seconds) = match &words[..] {
        [from, to] => (from, to, None),
        [from, to, seconds] => (from, to, seconds.to_str().and_then(|text| text.parse().ok())),
        _ => {
            eprintln!("copy FROM TO [SECONDS]");
            return ExitCode::from(2);
        }
    };
    let handle = Handle::new();
    if let Some(seconds) = seconds {
        let handle = handle.clone();
        thread::spawn(move || {
            thread::sleep(Duration::from_secs_f64(seconds));
            handle.stop();
        });
    }
    let summary = Copy::from([from]).to(to).recursive().observer(Lines).handle(&handle).run();
    println!("{:?}: {} files, {} bytes, {} s", summary.status, summary.files, summary.bytes, summary.seconds);
    if let Some(error) = &summary.error {
        println!("{:?}: {error}", error.kind);
    }
    match summary.status {
        Status::Complete => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
