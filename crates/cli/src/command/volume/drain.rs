//! `haul volume drain`: brings what has no home outside of a volume to a file system.
//!
//! In: the access to a volume, where to. Out: a copy of what has no home, as `haul cp` makes it, and homes
//! for what of it is durable. Left out: what `haul cp` decides; when a home counts (`haul_volume::drain`).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args as _, FromArgMatches as _};
use haul::api::{Endpoint, EntryEnd, EntryKind, Event, Picks};
use haul_core::volume::catalog::{Failure, Request};
use haul_core::volume::{Candidate, Wanted};
use haul_volume::client::{Client, Config};
use haul_volume::drain::{Asked, Drain, Sum};

use super::{FAILED, Trouble, USAGE, access_to_change, catalog, keys, note, show, talk};
use crate::args::Cp;
use crate::args::volume::Drain as Args;
use crate::command::copy::{self, Part};
use crate::escape;
use crate::progress::plural;

/// The catalog and servers answer within this, if nobody says.
const PATIENCE: Duration = Duration::from_secs(60);

/// A drain as the copy asks it.
#[derive(Debug)]
struct Of(Drain);

impl Picks for Of {
    fn pick(&self, entries: &[Candidate]) -> Result<Vec<Wanted>, Failure> {
        self.0.pick(entries)
    }

    fn is_another(&self, entry: &Candidate) {
        self.0.is_another(entry);
    }
}

pub(super) fn run(args: &Args) -> Result<i32, Trouble> {
    let (_, access) = access_to_change(&args.name)?;
    let source = format!("vol://{}/", args.name);
    let (place, here, is_sure) = place(args, &source)?;
    let may_last = is_sure || here.is_none();
    let (keys, servers) = (keys(&access)?, access.addresses()?);
    let patience = args.patience.map_or(PATIENCE, |seconds| Duration::from_secs(seconds.max(1).into()));
    let catalog = catalog(&access, patience)?;
    // What a catalog says that was brought back from before is of then, homes as well.
    if let (false, Ok(Some(words))) = (args.force, show::unknown(&access, &keys))
        && !haul_mutant::removed("drains-ask-for-unknown-files")
    {
        let why = format!(
            "volume {0}: {words}; nothing was brought: what is there may be older than what stands at its home \
             (`haul volume health {0}` says more); --force brings what the catalog knows all the same",
            args.name
        );
        return Err(Trouble(why, FAILED));
    }
    let config = Config {
        keys,
        number: catalog.number(),
        servers,
        stripe_size: access.stripe.into(),
        write_threshold: None,
        patience,
    };
    let failed = |error: std::io::Error| Trouble(haul::errno::text(error), FAILED);
    let client = Client::start_for(config, &catalog).map_err(failed)?;
    let catalog = Arc::new(catalog);
    let asked = Asked { place: place.clone(), here, all: args.all, force: args.force };
    let drain = Drain::new(catalog.clone(), client, asked).map_err(failed)?;
    if !is_sure && !haul_mutant::removed("drains-to-memory-are-no-homes") {
        drain.hold();
    }
    let drain = Arc::new(Of(drain));
    let (hears, ends, dry_run) = (drain.clone(), drain.clone(), args.dry_run);
    let part = Part {
        picks: drain.clone(),
        hears: Arc::new(move |event| match event {
            Event::Entry { path, end: EntryEnd::Skipped, .. } => hears.0.is_not_brought(path),
            // Of a link its text was compared; of a file nothing that would do.
            Event::Entry { path, kind: EntryKind::File, end: EntryEnd::Unchanged, .. }
                if !haul_mutant::removed("drains-believe-no-times") =>
            {
                hears.0.is_not_brought(path);
            }
            Event::Entry { path, .. } if !dry_run => hears.0.is_brought(path),
            Event::Failed { path, .. } => hears.0.is_not_brought(path),
            _ => {}
        }),
        ends: Arc::new(move |summary| {
            if may_last && summary.in_memory().is_none() {
                ends.0.lasts();
            }
        }),
    };
    let code = copy::run(&cp(args, &source)?, Some(part));
    let done = drain.0.finish();
    // The catalog need not remember who drained.
    let _ = catalog.call(Request::Leave);
    let done = done.map_err(|why| {
        let why = escape::text(&why);
        Trouble(
            format!("what was brought to {place} has no home there yet, the same command finds it: {why}"),
            FAILED,
        )
    })?;
    if !args.quiet {
        for lost in &done.some_lost {
            note(&format!("volume {}: {lost}", args.name));
        }
        if done.lost > done.some_lost.len() as u64 {
            let more = plural(done.lost - done.some_lost.len() as u64, "more file has", "more files have");
            note(&format!("volume {}: {more} no home any more, for the same reasons", args.name));
        }
    }
    if !args.quiet && !dry_run && (code == 0 || done.noted + done.changed + done.not_kept > 0) {
        note(&in_words(&args.name, &place, &done));
    }
    Ok(code)
}

fn in_words(name: &str, place: &str, sum: &Sum) -> String {
    let Sum { noted, changed, at_home, not_kept, elsewhere, .. } = *sum;
    if not_kept > 0 {
        let (has, it) = if not_kept == 1 { ("has", "it") } else { ("have", "they") };
        let files = plural(not_kept, "file", "files");
        return format!(
            "volume {name}: {files} {has} no home in {place}, for {it} will be gone there with the next boot"
        );
    }
    if noted == 0 && changed == 0 {
        let nothing = format!("volume {name}: nothing had to be brought to {place}");
        if at_home == 0 {
            return nothing;
        }
        let (has, them) = if at_home == 1 { ("has a home", "it") } else { ("have a home", "them") };
        let files = plural(at_home, "file", "files");
        let elsewhere = elsewhere_in_words(sum).map_or_else(String::new, |words| format!(", {words}"));
        return format!("{nothing}: {files} {has} already{elsewhere}; `--all` brings {them} all the same");
    }
    let has = if noted == 1 { "has its home" } else { "have their home" };
    let mut text = format!("volume {name}: {} {has} in {place} now", plural(noted, "file", "files"));
    if changed > 0 {
        let was = if changed == 1 { "was another" } else { "were others" };
        text += &format!(
            "; {} {was} by then, and the same command brings them once more",
            plural(changed, "one", "more")
        );
    }
    if let Some(words) = elsewhere_in_words(sum).filter(|_| elsewhere > 0) {
        let has = if elsewhere == 1 { "has its home" } else { "have their home" };
        text += &format!(
            "; {} more {has} elsewhere and did not come: {words}",
            plural(elsewhere, "file", "files")
        );
    }
    text
}

/// How many files that did not come are at home in other places, and where.
fn elsewhere_in_words(Sum { elsewhere, places, at_home, .. }: &Sum) -> Option<String> {
    let places: Vec<String> = places.iter().map(|place| escape::text(place)).collect();
    let count = match elsewhere {
        0 => return None,
        all if all == at_home => String::new(),
        some => format!("{some} of them "),
    };
    Some(format!("{count}in {}", places.join(", ")))
}

/// Where to, for people; its path, if it is on this host; and whether what comes there is sure to last: of
/// another host that is known at the end. What is no place that lasts is refused.
fn place(args: &Args, source: &str) -> Result<(String, Option<PathBuf>, bool), Trouble> {
    let usage = |why: String| Trouble(format!("--to: {why}"), USAGE);
    let words = [OsString::from(source), args.to.clone()];
    let (_, destination) = haul::endpoint::resolve(&words).map_err(|error| usage(error.to_string()))?;
    let scheme = destination.place().scheme();
    if scheme.name == "vol" || !scheme.keeps {
        let shown = escape::name(args.to.as_bytes());
        return Err(usage(format!("{shown} is no file system: what is brought there is not at home")));
    }
    let (here, is_sure) = match (destination.host(), destination.place().as_file()) {
        (Some(_), _) => (None, false),
        (None, Ok(path)) => {
            let path = PathBuf::from(OsStr::from_bytes(path));
            let lasts = haul::volume::lasts(&path);
            (Some(path), lasts)
        }
        (None, Err(_)) => (None, true),
    };
    Ok((shown(&destination), here, is_sure))
}

fn shown(destination: &Endpoint) -> String {
    match (destination.host(), destination.place().as_file()) {
        (None, Ok(path)) => {
            let path = std::path::absolute(Path::new(OsStr::from_bytes(path)));
            let path = path.unwrap_or_else(|_| Path::new(".").into());
            format!("{}:{}", talk::this_host(), escape::name(path.as_os_str().as_bytes()))
        }
        _ => escape::name(&destination.shown()),
    }
}

/// The copy that it is.
fn cp(args: &Args, source: &str) -> Result<Cp, Trouble> {
    let command = Cp::augment_args(clap::Command::new("cp").no_binary_name(true));
    let words = [OsStr::new("-r"), OsStr::new("--"), OsStr::new(source), &args.to];
    let matches = command.try_get_matches_from(words);
    let cp = matches.and_then(|matches| Cp::from_arg_matches(&matches));
    let cp = cp.map_err(|error| Trouble(error.to_string(), USAGE))?;
    Ok(Cp {
        archive: args.archive,
        dry_run: args.dry_run,
        // Equal length and time prove nothing of a file that was written since, nor that it lasts.
        force: !haul_mutant::removed("drains-believe-no-times"),
        itemize_changes: args.itemize_changes,
        verbose: args.verbose,
        quiet: args.quiet,
        json: args.json,
        failures: args.failures.clone(),
        rate: args.rate,
        streams: args.streams,
        memory: args.memory,
        patience: args.patience,
        stop_after: args.stop_after,
        far: args.far.clone(),
        protection: args.protection,
        ..cp
    })
}
