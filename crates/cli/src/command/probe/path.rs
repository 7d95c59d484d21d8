//! `haul probe path SRC DST`: says what it will cost, measures the five parts, reports, and keeps what was
//! found.

use std::sync::{Arc, Mutex};

use haul::api::Dialler;
use haul::endpoint;
use haul_probe::path::{
    self, BYTES_LIMIT_DEFAULT, BYTES_LIMIT_QUICK, Event, PathError, PathProbe, Request, TIME_LIMIT_DEFAULT,
    TIME_LIMIT_QUICK,
};
use haul_probe::{network, passport};

use super::super::surroundings::{Surroundings, state_dir};
use super::super::{FAILED, USAGE, complain};
use super::screen::{self, Reports, Screen, lock, say};
use crate::args::path::Path as Args;
use crate::escape;
use crate::progress::{bytes, time};
use crate::report::path::json::{self, Ending};
use crate::report::{now, path as report};
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
    if [&request.source, &request.destination].iter().any(|end| end.host().is_some()) {
        haul::process::keep_secrets();
    }
    let mut screen = Screen::new(args.forms.json, &surroundings);
    let planned = match path::plan(&request) {
        Ok(planned) => planned,
        Err(error) => return failed(&mut screen, &error, FAILED),
    };
    say(&format!(
        "probing the path: at most {} once the two ends are joined, at most {} read and written at each storage{}",
        time(planned.time().as_secs_f64()),
        bytes(planned.bytes()),
        if is_remote(&request) { "; fills the network meanwhile" } else { "" }
    ));
    for warning in &planned.warnings {
        say(&escape::text(warning));
    }
    let (handle, asked) =
        match screen::watched("stopping: scratch files are being removed (again to stop at once)") {
            Ok(watched) => watched,
            Err(code) => return code,
        };
    let costs = (planned.time().as_secs_f64(), planned.bytes());
    screen.write(|out| json::started(out, costs, &planned.warnings, now()));
    let screen = Arc::new(Mutex::new(screen));
    let ended = {
        let screen = screen.clone();
        path::run(&planned, Arc::new(move |event| tell(&mut lock(&screen), &event)), &handle)
    };
    let mut screen = lock(&screen);
    screen.erase();
    match ended {
        Ok(probe) => finish(&mut screen, args, &probe),
        Err(error) => failed(&mut screen, &error, asked.exit_code()),
    }
}

/// Says why there is no probe; the exit code. `interrupted`: that of one that was stopped.
fn failed(screen: &mut Screen, error: &PathError, interrupted: i32) -> i32 {
    let (status, code) = match error {
        PathError::Stopped => ("interrupted", interrupted),
        PathError::BadRequest(_) => ("failed", USAGE),
        PathError::Failed(_) => ("failed", FAILED),
    };
    let text = typed(&error.to_string());
    let ending = Ending { status, exit_code: code, error: Some(&text), probe: None };
    screen.write(|out| json::summary(out, &ending));
    complain(&text, code)
}

/// The request that the arguments mean.
///
/// # Errors
/// A sentence for people about wrong usage.
fn request(args: &Args, surroundings: &Surroundings) -> Result<Request, String> {
    let words = [args.source.clone(), args.destination.clone()];
    let (mut sources, destination) = endpoint::resolve(&words).map_err(|e| e.to_string())?;
    let source = sources.pop().ok_or("a source is needed")?;
    let (time_limit, bytes_limit) = match args.quick {
        true => (TIME_LIMIT_QUICK, BYTES_LIMIT_QUICK),
        false => (TIME_LIMIT_DEFAULT, BYTES_LIMIT_DEFAULT),
    };
    Ok(Request {
        time_limit: args.time.unwrap_or(time_limit),
        bytes_limit: args.max_bytes.unwrap_or(bytes_limit),
        network_ok: args.yes,
        keep: !args.no_save,
        ..Request::new(source, destination, surroundings.remote(&args.far, Dialler::Auto))
    })
}

fn is_remote(request: &Request) -> bool {
    [&request.source, &request.destination].iter().any(|end| end.host().is_some())
}

fn tell(screen: &mut Screen, event: &Event) {
    match event {
        Event::Note(text) => screen.say(text),
        Event::Point(point) => screen.write(|out| json::point(out, point)),
        Event::Progress(p) => screen.progress(p.seconds, |columns| {
            let line = format!(
                "{}: {} left of it at most, {} moved",
                p.phase.name(),
                time(p.seconds_left),
                bytes(p.bytes)
            );
            line.chars().take(columns).collect()
        }),
    }
}

/// Keeps and reports a probe; the exit code.
fn finish(screen: &mut Screen, args: &Args, probe: &PathProbe) -> i32 {
    let mut errors = Vec::new();
    if !args.no_save {
        keep(probe, &mut errors);
    }
    let reports = Reports {
        csv: &|| report::csv(probe),
        page: &|| report::page::probe(probe),
        text: &|| report::text(probe),
        summary: &|out, status, exit_code, error| {
            json::summary(out, &Ending { status, exit_code, error, probe: Some(probe) })
        },
    };
    screen.finish(&args.forms, &reports, errors)
}

/// Keeps what was found on this host: its storage's passport, and the network's. The far end has kept its
/// own.
fn keep(probe: &PathProbe, errors: &mut Vec<String>) {
    let Some(state) = state_dir() else {
        errors.push("no passport is kept: neither XDG_STATE_HOME nor HOME is set (--no-save)".into());
        return;
    };
    let way = probe.network.as_ref().map(|network| network.way);
    let source = probe.source_storage.as_ref().filter(|_| way != Some(network::Way::From));
    let sink = probe.sink_storage.as_ref().filter(|_| way != Some(network::Way::To));
    for storage in [source, sink].into_iter().flatten() {
        errors.extend(passport::add(&state, storage).err().map(|error| error.to_string()));
    }
    if let Some(network) = &probe.network {
        errors.extend(network::passport::save(&state, network).err().map(|error| error.to_string()));
    }
}
