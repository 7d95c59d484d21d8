//! `haul probe network HOST`: measures the network to a host, reports, and keeps what was found.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use haul::api::{Control, Dialler, RemoteOptions};
use haul::probe::network::{self, Event, Network, NetworkError, Only, Request, TIME_LIMIT_DEFAULT, passport};

use super::super::surroundings::{Surroundings, state_dir};
use super::super::{FAILED, USAGE, complain};
use crate::args::Ports;
use crate::args::network::Network as Args;
use crate::progress::{bytes, time};
use crate::report::network::json::{self, Ending, Start};
use crate::report::network::{csv, page, setting, table};
use crate::report::probe::rate;
use crate::report::{LOG_EVERY, REDRAW, now, width};
use crate::{endpoint, escape, output, signals};

/// How the CSV's path names stdout.
const STDOUT: &str = "-";

pub fn run(args: &Args) -> i32 {
    if args.json && args.csv.as_ref().is_some_and(|path| is_stdout(path)) {
        return complain("--json and --csv - both want stdout: give one of them a file", USAGE);
    }
    for path in [&args.csv, &args.html].into_iter().flatten().filter(|path| !is_stdout(path)) {
        if let Err(error) = output::check(path) {
            return complain(&escape::text(&error), FAILED);
        }
    }
    let surroundings = Surroundings::look();
    let request = match request(args, &surroundings) {
        Ok(request) => request,
        Err(error) => return complain(&escape::text(&error), USAGE),
    };
    let most = request.bytes_limit.map_or(String::new(), |most| format!(", at most {}", bytes(most)));
    let limit = time(request.time_limit.as_secs_f64());
    say(&format!(
        "probing the network to {}: fills it for at most {limit}{most}",
        escape::text(&request.host)
    ));
    let control = Control::new();
    let stopper = control.clone();
    let watched = signals::watch(None, move |_| {
        stopper.stop();
        say("stopping (again to stop at once)");
    });
    let asked = match watched {
        Ok(asked) => asked,
        Err(error) => return complain(&format!("cannot watch for signals: {error}"), FAILED),
    };
    let terminal = surroundings.stderr_terminal && surroundings.capable;
    // A line that redraws itself between events on the same terminal would spoil both.
    let live = terminal && !(args.json && surroundings.stdout_terminal);
    let screen = Arc::new(Mutex::new(Screen { json: args.json, live, ..Screen::default() }));
    let ended = {
        let (screen, host) = (screen.clone(), request.host.clone());
        let seconds_max = request.time_limit.as_secs_f64();
        let tell = move |event| lock(&screen).event(&event, &host, seconds_max);
        network::run(&request, Arc::new(tell), &control)
    };
    let mut screen = lock(&screen);
    screen.erase();
    match ended {
        Ok(probe) => screen.finish(args, &probe),
        Err(error) => {
            let (status, code) = match error {
                NetworkError::Stopped => ("interrupted", asked.exit_code()),
                NetworkError::BadRequest(_) => ("failed", USAGE),
                NetworkError::Session(_) => ("failed", FAILED),
            };
            let text = error.to_string();
            screen.summary(&Ending { status, exit_code: code, error: Some(&text), probe: None });
            complain(&escape::text(&text), code)
        }
    }
}

/// The request that the arguments mean.
///
/// # Errors
/// A sentence for people about wrong usage.
fn request(args: &Args, surroundings: &Surroundings) -> Result<Request, String> {
    let remote = RemoteOptions {
        ssh: args.ssh.0.clone(),
        remote_haul: args.remote_haul.clone(),
        no_push: args.no_push,
        dial: Dialler::Auto,
        via: args.via.clone(),
        ports: args.port.map(|Ports(first, last)| (first, last)),
        interactive: surroundings.stdin_terminal,
        ssh_channels: Some(1),
        sockets: Vec::new(),
        binary: surroundings.binary.clone(),
    };
    Ok(Request {
        time_limit: args.time.unwrap_or(TIME_LIMIT_DEFAULT),
        bytes_limit: args.max_bytes,
        full: args.full,
        only: Only {
            streams: args.streams.clone(),
            windows: args.window.clone(),
            controls: args.congestion.clone(),
        },
        ..Request::new(endpoint::host_alone(&args.host)?, remote)
    })
}

fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == STDOUT
}

fn lock(screen: &Mutex<Screen>) -> std::sync::MutexGuard<'_, Screen> {
    // Plain fields, whole at every panic that could happen under the lock.
    screen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A line for people. A closed stderr is no reason to end.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "haul: {text}");
}

/// Events on stdout, a live line or now and then a plain one on stderr.
#[derive(Default)]
struct Screen {
    json: bool,
    live: bool,
    best: f64,
    /// The slot of [`REDRAW`] or [`LOG_EVERY`] in which the last line was written.
    slot: u64,
    drawn: bool,
    /// The first error of stdout; nothing is written there after it.
    broken: Option<io::Error>,
}

impl Screen {
    fn event(&mut self, event: &Event, to: &str, seconds_max: f64) {
        match event {
            Event::Note(text) => {
                self.erase();
                say(&escape::text(text));
            }
            Event::Started { address, path, rtt, settings } => {
                let (address, rtt, settings) = (*address, *rtt, *settings);
                let start = Start { to, address, path, rtt, settings, seconds_max };
                self.write(|out| json::started(out, &start, now()));
            }
            Event::Point(point) => {
                self.best = self.best.max(point.rate);
                self.write(|out| json::point(out, point));
            }
            Event::Progress(p) => {
                let every = if self.live { REDRAW } else { LOG_EVERY };
                // Saturates.
                let slot = (p.seconds / every.as_secs_f64()) as u64;
                if slot == self.slot {
                    return;
                }
                self.slot = slot;
                let mut line = format!(
                    "{}: {} measured, {} left at most, {} moved",
                    setting(&p.setting),
                    p.done,
                    time(p.seconds_left),
                    bytes(p.bytes)
                );
                if self.best > 0.0 {
                    line += &format!(", best {}", rate(self.best));
                }
                let mut err = io::stderr();
                if self.live {
                    // One column stays free: a full line would wrap on some terminals.
                    let line: String = line.chars().take(width().saturating_sub(1)).collect();
                    let _ = write!(err, "\r{line}\x1b[K").and_then(|()| err.flush());
                    self.drawn = true;
                } else {
                    let _ = writeln!(err, "{} {line}", now());
                }
            }
        }
    }

    fn erase(&mut self) {
        if std::mem::take(&mut self.drawn) {
            let mut err = io::stderr();
            let _ = err.write_all(b"\r\x1b[K").and_then(|()| err.flush());
        }
    }

    fn summary(&mut self, ending: &Ending) {
        self.write(|out| json::summary(out, ending));
    }

    fn write(&mut self, line: impl FnOnce(&mut io::Stdout) -> io::Result<()>) {
        if self.json && self.broken.is_none() {
            self.broken = line(&mut io::stdout()).err();
        }
    }

    /// Keeps and reports a probe. What cannot be written is said, and the rest is written all the same.
    fn finish(&mut self, args: &Args, probe: &Network) -> i32 {
        let mut errors = Vec::new();
        let kept = if args.no_save { None } else { keep(probe, &mut errors) };
        let csv = args.csv.as_ref().map(|path| (path, csv::points(probe)));
        if let Some((path, text)) = csv.as_ref().filter(|(path, _)| !is_stdout(path)) {
            errors.extend(output::write(path, text.as_bytes()).err());
        }
        if let Some(path) = &args.html {
            errors.extend(output::write(path, page::probe(probe).as_bytes()).err());
        }
        let mut code = i32::from(!errors.is_empty());
        if self.json {
            let error = errors.join("; ");
            let error = Some(error.as_str()).filter(|error| !error.is_empty());
            let status = if code == 0 { "complete" } else { "failed" };
            self.summary(&Ending { status, exit_code: code, error, probe: Some(probe) });
            if let Some(error) = self.broken.take() {
                code = FAILED;
                // A reader that went away knows it.
                if error.kind() != io::ErrorKind::BrokenPipe {
                    complain(&format!("events cannot be written to stdout any more: {error}"), FAILED);
                }
            }
        } else if let Some((_, text)) = csv.filter(|(path, _)| is_stdout(path)) {
            code = code.max(super::print(text.as_bytes()));
        } else {
            let mut text = table::probe(probe);
            if let Some(path) = kept {
                let path = escape::text(&path.display().to_string());
                text += &format!("kept as the network's passport, with which copies to it start: {path}\n");
            }
            code = code.max(super::print(text.as_bytes()));
        }
        for error in errors {
            complain(&escape::text(&error), FAILED);
        }
        code
    }
}

/// Keeps the probe as the network's passport, after it was compared with the one that is there. Where it lies.
fn keep(probe: &Network, errors: &mut Vec<String>) -> Option<PathBuf> {
    let Some(state) = state_dir() else {
        errors.push("no network passport is kept: neither XDG_STATE_HOME nor HOME is set (--no-save)".into());
        return None;
    };
    match passport::load(&state, &probe.to) {
        Ok(old) => {
            if let Some(text) = old.and_then(|old| passport::drift(&old.probe, probe)) {
                say(&escape::text(&text));
            }
        }
        // It is replaced now.
        Err(error) => say(&escape::text(&error.to_string())),
    }
    passport::save(&state, probe).map_err(|error| errors.push(error.to_string())).ok()
}
