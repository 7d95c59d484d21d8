//! `haul probe storage PATH`: says what it will cost, asks where others share the storage, measures, reports.

use std::cell::RefCell;
use std::io::{self, BufRead, Write};
use std::path::PathBuf;

use haul::options;
use haul_probe::{BYTES_LIMIT_DEFAULT, TIME_LIMIT_DEFAULT, passport};
use haul_probe::{Direction, Io, Only, Pattern, Plan, Probe, ProbeError, ProbeEvent, Request};

use super::super::surroundings::{Surroundings, state_dir};
use super::super::{FAILED, USAGE, complain};
use super::screen::{self, Reports, Screen, say};
use crate::args::probe::{self as args, Storage};
use crate::progress::{bytes, time};
use crate::report::now;
use crate::report::probe::json::{self, Ending};
use crate::report::probe::live::Live;
use crate::report::probe::{csv, page, size, table};
use crate::{escape, output};

pub fn run(args: &Storage) -> i32 {
    let others: Vec<_> = args.save_as.iter().map(AsRef::as_ref).collect();
    if let Err((error, code)) = screen::check(&args.forms, &others) {
        return complain(&error, code);
    }
    let surroundings = Surroundings::look();
    let plan = match haul_probe::plan(&request(args)) {
        Ok(plan) => plan,
        Err(error) => return complain(&error.to_string(), code_of(&error)),
    };
    say(&announcement(&plan));
    for warning in &plan.warnings {
        say(&escape::text(warning));
    }
    let terminal = surroundings.stdin_terminal && surroundings.stderr_terminal;
    if let Err((text, code)) = permitted(plan.identity.network, args.yes, terminal, agreed) {
        return complain(text, code);
    }
    measure(args, &plan, &surroundings)
}

/// The request that the arguments mean. Whether a network file system may be loaded is asked here, after what
/// it costs is known.
fn request(args: &Storage) -> Request {
    let mut request = Request::new(&args.path);
    request.size = args.size;
    request.time_limit = args.time.unwrap_or(TIME_LIMIT_DEFAULT);
    request.bytes_limit = args.max_bytes.unwrap_or(BYTES_LIMIT_DEFAULT);
    request.full = args.full;
    request.engine = match args.engine {
        args::Engine::Auto => options::EngineName::Auto,
        args::Engine::Uring => options::EngineName::Uring,
        args::Engine::Pread => options::EngineName::Pread,
    };
    if !args.direction.is_empty() {
        let direction = |way: &args::Direction| match way {
            args::Direction::Read => Direction::Read,
            args::Direction::Write => Direction::Write,
        };
        request.directions = args.direction.iter().map(direction).collect();
    }
    let order = |order: &args::Order| match order {
        args::Order::Strict => options::Order::Strict,
        args::Order::Serial => options::Order::Serial,
        args::Order::Loose => options::Order::Loose,
        args::Order::None => options::Order::None,
    };
    let io = |io: &args::Io| match io {
        args::Io::Direct => Io::Direct,
        args::Io::Buffered => Io::Buffered,
    };
    let pattern = |pattern: &args::Pattern| match pattern {
        args::Pattern::Sequential => Pattern::Sequential,
        args::Pattern::Random => Pattern::Random,
    };
    request.only = Only {
        request_sizes: args.request_size.clone(),
        depths: args.depth.clone(),
        orders: args.order.iter().map(order).collect(),
        io: args.io.iter().map(io).collect(),
        patterns: args.pattern.iter().map(pattern).collect(),
    };
    request.network_ok = true;
    request
}

fn code_of(error: &ProbeError) -> i32 {
    match error {
        ProbeError::BadRequest(_) | ProbeError::AskFirst(_) => USAGE,
        _ => FAILED,
    }
}

/// What will be written where, and the most that it will cost.
fn announcement(plan: &Plan) -> String {
    let (path, s) = (escape::name(path_bytes(plan)), &plan.identity);
    format!(
        "probing {path} ({} {}): a scratch file of {} there, at most {} read and written, at most {}",
        escape::text(&s.kind),
        escape::text(&s.source),
        size(plan.size),
        bytes(plan.bytes_max),
        time(plan.seconds_max)
    )
}

fn path_bytes(plan: &Plan) -> &[u8] {
    use std::os::unix::ffi::OsStrExt;
    plan.request.path.as_os_str().as_bytes()
}

/// Whether the probe may begin; if not, a sentence and an exit code. Where nobody can be asked the answer is
/// no.
fn permitted(
    network: bool,
    yes: bool,
    terminal: bool,
    ask: impl FnOnce() -> bool,
) -> Result<(), (&'static str, i32)> {
    match network && !yes {
        false => Ok(()),
        true if !terminal => {
            Err(("a network file system, which others share, is not loaded without --yes", USAGE))
        }
        true if ask() => Ok(()),
        true => Err(("nothing was probed", FAILED)),
    }
}

/// Asks on the terminal; anything but yes is no.
fn agreed() -> bool {
    let mut err = io::stderr();
    let asked = err.write_all(b"haul: this is a network file system, which others share. Load it? [y/N] ");
    if asked.and_then(|()| err.flush()).is_err() {
        return false;
    }
    let mut answer = String::new();
    // A person's line; more than this is none.
    let read = io::Read::take(io::stdin().lock(), 64).read_line(&mut answer);
    read.is_ok() && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

/// Runs the probe and reports it; the exit code.
fn measure(args: &Storage, plan: &Plan, surroundings: &Surroundings) -> i32 {
    let (handle, asked) =
        match screen::watched("stopping: the scratch file is being removed (again to stop at once)") {
            Ok(watched) => watched,
            Err(code) => return code,
        };
    let screen = RefCell::new(Screen::new(args.forms.json, surroundings));
    screen.borrow_mut().write(|out| json::started(out, plan, now()));
    let live = RefCell::new(Live::default());
    let tell = |event| tell(&mut screen.borrow_mut(), &mut live.borrow_mut(), &event);
    let ended = haul_probe::run(plan, &tell, &handle);
    let mut screen = screen.into_inner();
    screen.erase();
    match ended {
        Ok(probe) => finish(&mut screen, args, &probe),
        Err(error) => {
            let (status, code) = match error {
                ProbeError::Stopped => ("interrupted", asked.exit_code()),
                _ => ("failed", code_of(&error)),
            };
            let text = error.to_string();
            let ending = Ending { status, exit_code: code, error: Some(&text), probe: None };
            screen.write(|out| json::summary(out, &ending));
            complain(&text, code)
        }
    }
}

/// An event: on stdout, and in the line that says how far the probe is.
fn tell(screen: &mut Screen, live: &mut Live, event: &ProbeEvent) {
    live.update(event);
    match event {
        ProbeEvent::Point(point) => screen.write(|out| json::point(out, point)),
        ProbeEvent::Progress(_) => screen.progress(live.seconds(), |columns| live.line(columns)),
        // What it remarks is in the result, too.
        ProbeEvent::Started { .. } => {}
    }
}

/// Keeps and reports a probe; the exit code.
fn finish(screen: &mut Screen, args: &Storage, probe: &Probe) -> i32 {
    let mut errors = Vec::new();
    let kept = if args.no_save { None } else { keep(probe, &mut errors) };
    if let Some(path) = &args.save_as {
        let mut text = serde_json::to_vec_pretty(probe).expect("plain fields serialise");
        text.push(b'\n');
        errors.extend(output::write(path, &text).err());
    }
    let text = || {
        let mut text = table::probe(probe);
        if let Some(path) = &kept {
            text += &format!("kept as its storage passport: {}\n", escape::text(&path.display().to_string()));
        }
        text + "to match it with another storage: haul probe pair SOURCE.json SINK.json (files of --save-as)\n"
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

/// Keeps the probe as its storage's passport, after it was compared with the one that is there. Where it
/// lies.
fn keep(probe: &Probe, errors: &mut Vec<String>) -> Option<PathBuf> {
    let Some(state) = state_dir() else {
        errors.push("no storage passport is kept: neither XDG_STATE_HOME nor HOME is set (--no-save)".into());
        return None;
    };
    match passport::load(&state, &probe.storage) {
        Ok(Some(old)) => {
            let bests = [(Direction::Read, &probe.read_best), (Direction::Write, &probe.write_best)];
            for (direction, best) in bests {
                let drift = best.as_ref().and_then(|best| passport::drift(&old.probe, direction, best.rate));
                if let Some(drift) = drift {
                    say(&escape::text(&drift.text()));
                }
            }
        }
        Ok(None) => {}
        // It is replaced now.
        Err(error) => say(&escape::text(&error.to_string())),
    }
    match passport::save(&state, probe) {
        Ok(path) => Some(path),
        Err(error) => {
            errors.push(error.to_string());
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::probe::Probe as Subcommand;
    use crate::command::{Args, Command};
    use clap::Parser;

    fn storage(line: &str) -> Storage {
        let line = ["haul", "probe", "storage"].into_iter().chain(line.split_whitespace());
        match Args::parse_from(line).command {
            Command::Probe(Subcommand::Storage(storage)) => *storage,
            other => panic!("{other:?}"),
        }
    }

    /// Goal: a network file system is loaded only after a yes, given or asked for; others without a question.
    /// Method: all cases.
    #[test]
    fn network_file_systems_are_asked_about() {
        let never = || panic!("nobody is to be asked");
        for (yes, terminal) in [(false, false), (false, true), (true, false), (true, true)] {
            assert!(permitted(false, yes, terminal, never).is_ok());
            assert!(!yes || permitted(true, yes, terminal, never).is_ok());
        }
        assert_eq!(permitted(true, false, false, never).unwrap_err().1, USAGE);
        assert_eq!(permitted(true, false, true, || false).unwrap_err().1, FAILED);
        assert!(permitted(true, false, true, || true).is_ok());
    }

    /// Goal: every option reaches the request, and without any the library's own limits hold.
    #[test]
    fn options_reach_the_request() {
        let got = request(&storage(
            "/x --size 2GiB --time 2m --max-bytes 9GiB --full --engine pread --direction write --request-size 1M \
             --depth 8 --order loose --io buffered --pattern random",
        ));
        assert_eq!((got.size, got.bytes_limit), (Some(2 << 30), 9 << 30));
        assert_eq!(got.time_limit.as_secs(), 120);
        assert!(got.full && got.engine == options::EngineName::Pread);
        assert_eq!(got.directions, [Direction::Write]);
        let only = Only {
            request_sizes: vec![1 << 20],
            depths: vec![8],
            orders: vec![options::Order::Loose],
            io: vec![Io::Buffered],
            patterns: vec![Pattern::Random],
        };
        assert_eq!(got.only, only);
        let plain = request(&storage("/x"));
        assert_eq!((plain.time_limit, plain.bytes_limit), (TIME_LIMIT_DEFAULT, BYTES_LIMIT_DEFAULT));
        assert_eq!((plain.only, plain.directions.len()), (Only::default(), 2));
    }
}
