//! `haul probe network HOST`: measures the network to a host, reports, and keeps what was found.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use haul::api::Dialler;
use haul::endpoint;
use haul_probe::Ask;
use haul_probe::network::{Event, Network, NetworkError, Only, Request, TIME_LIMIT_DEFAULT, Way, passport};

use super::super::surroundings::{Surroundings, state_dir};
use super::super::{FAILED, USAGE, complain};
use super::screen::{self, Reports, Screen, lock, say};
use crate::args::network::Network as Args;
use crate::escape;
use crate::progress::{bytes, time};
use crate::report::network::json::{self, Ending, Start};
use crate::report::network::{csv, page, setting, table};
use crate::report::now;
use crate::report::probe::rate;
use crate::typed::typed;

pub fn run(args: &Args) -> i32 {
    if let Err((error, code)) = screen::check(&args.forms, &[]) {
        return complain(&error, code);
    }
    let surroundings = Surroundings::look();
    let request = match request(args, &surroundings) {
        Ok(request) => request,
        Err(error) => return complain(&error, USAGE),
    };
    haul::process::keep_secrets();
    let most = request.bytes_limit.map_or(String::new(), |most| format!(", at most {}", bytes(most)));
    let limit = time(request.time_limit.as_secs_f64());
    say(&format!(
        "probing the network {} {}: fills it for at most {limit}{most}",
        if args.reverse { "from" } else { "to" },
        escape::text(&request.host)
    ));
    let (handle, asked) = match screen::watched("stopping (again to stop at once)") {
        Ok(watched) => watched,
        Err(code) => return code,
    };
    let screen =
        Arc::new(Mutex::new(Telling { screen: Screen::new(args.forms.json, &surroundings), best: 0.0 }));
    let ended = {
        let (screen, host) = (screen.clone(), request.host.clone());
        let seconds_max = request.time_limit.as_secs_f64();
        let tell = move |event| lock(&screen).event(&event, &host, seconds_max);
        Ask::new(request).handle(&handle).run(tell)
    };
    let screen = &mut lock(&screen).screen;
    screen.erase();
    match ended {
        Ok(probe) => finish(screen, args, &probe),
        Err(error) => {
            let (status, code) = match error {
                NetworkError::Stopped => ("interrupted", asked.exit_code()),
                NetworkError::BadRequest(_) => ("failed", USAGE),
                NetworkError::Session(_) => ("failed", FAILED),
            };
            let text = typed(&error.to_string());
            let ending = Ending { status, exit_code: code, error: Some(&text), probe: None };
            screen.write(|out| json::summary(out, &ending));
            complain(&text, code)
        }
    }
}

/// The request that the arguments mean.
///
/// # Errors
/// A sentence for people about wrong usage.
fn request(args: &Args, surroundings: &Surroundings) -> Result<Request, String> {
    let remote = surroundings.remote(&args.far, Dialler::Auto);
    Ok(Request {
        way: if args.reverse { Way::From } else { Way::To },
        time_limit: args.time.unwrap_or(TIME_LIMIT_DEFAULT),
        bytes_limit: args.max_bytes,
        full: args.full,
        only: Only {
            streams: args.streams.clone(),
            windows: args.window.clone(),
            controls: args.congestion.clone(),
        },
        ..Request::new(endpoint::host_alone(&args.host).map_err(|e| e.to_string())?, remote)
    })
}

/// A probe that runs, as it is told.
struct Telling {
    screen: Screen,
    best: f64,
}

impl Telling {
    fn event(&mut self, event: &Event, to: &str, seconds_max: f64) {
        match event {
            Event::Note(text) => self.screen.say(text),
            Event::Started { address, path, rtt, settings } => {
                let (address, rtt, settings) = (*address, *rtt, *settings);
                let start = Start { to, address, path, rtt, settings, seconds_max };
                self.screen.write(|out| json::started(out, &start, now()));
            }
            Event::Point(point) => {
                self.best = self.best.max(point.rate);
                self.screen.write(|out| json::point(out, point));
            }
            Event::Progress(p) => {
                let best = self.best;
                self.screen.progress(p.seconds, |columns| {
                    let mut line = format!(
                        "{}: {} measured, {} left at most, {} moved",
                        setting(&p.setting),
                        p.done,
                        time(p.seconds_left),
                        bytes(p.bytes)
                    );
                    if best > 0.0 {
                        line += &format!(", best {}", rate(best));
                    }
                    line.chars().take(columns).collect()
                });
            }
        }
    }
}

/// Keeps and reports a probe; the exit code.
fn finish(screen: &mut Screen, args: &Args, probe: &Network) -> i32 {
    let mut errors = Vec::new();
    let kept = if args.no_save { None } else { keep(probe, &mut errors) };
    let text = || {
        let mut text = table::probe(probe);
        if let Some(path) = &kept {
            let path = escape::text(&path.display().to_string());
            text += &format!(
                "kept as the network's passport, with which copies {} it start: {path}\n",
                if args.reverse { "from" } else { "to" }
            );
        }
        text
    };
    let reports = Reports {
        csv: &|| csv::points(probe),
        page: &|| page::probe(probe),
        text: &text,
        summary: &|out, status, exit_code, error| {
            json::summary(out, &Ending { status, exit_code, error, probe: Some(probe) })
        },
    };
    screen.finish(&args.forms, &reports, errors)
}

/// Keeps the probe as the network's passport, after it was compared with the one that is there. Where it
/// lies.
fn keep(probe: &Network, errors: &mut Vec<String>) -> Option<PathBuf> {
    let Some(state) = state_dir() else {
        errors.push("no network passport is kept: neither XDG_STATE_HOME nor HOME is set (--no-save)".into());
        return None;
    };
    match passport::load(&state, &probe.to, probe.way) {
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
