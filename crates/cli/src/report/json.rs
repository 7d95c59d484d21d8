//! Events for programs: one JSON object a line, as docs/events.schema.json says.
//!
//! In: the events and the summary of a run. Out: lines on stdout. Invariant: `start` comes first, `summary`
//! last. A path is `path`; when it is not UTF-8, `path` has U+FFFD in it and `path_b64` the exact bytes.
//! Left out: what is for people only. A new field is no new version of the schema; a changed one is.

use std::borrow::Cow;
use std::io::{self, Write};

use haul::api::{CopyRequest, Endpoint, EntryEnd, Event, Processors, Stage, Summary, TargetTable};
use haul::options::{Changed, Durability, Resume, Verify};
use serde::Serialize;

use super::Ending;
use super::labels::status;
use crate::progress::Tracker;

/// Version of the schema.
const SCHEMA: u32 = 1;

/// A path in a JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct PathFields {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_b64: Option<String>,
}

impl PathFields {
    pub fn new(bytes: &[u8]) -> PathFields {
        match String::from_utf8_lossy(bytes) {
            Cow::Borrowed(path) => PathFields { path: path.into(), path_b64: None },
            Cow::Owned(path) => PathFields { path, path_b64: Some(data_encoding::BASE64.encode(bytes)) },
        }
    }
}

#[derive(Serialize)]
struct Place {
    host: Option<String>,
    #[serde(flatten)]
    path: PathFields,
}

impl Place {
    fn new(endpoint: &Endpoint) -> Place {
        let host = endpoint.host().map(str::to_owned);
        Place { host, path: PathFields::new(&endpoint.place().shown()) }
    }
}

/// A line of `--failures FILE`, and the body of a `failed` event.
#[derive(Serialize)]
pub struct Failure<'a> {
    #[serde(flatten)]
    path: PathFields,
    stage: &'a str,
    errno: i32,
    text: &'a str,
}

impl<'a> Failure<'a> {
    pub fn new(path: &[u8], stage: &'a str, errno: i32, text: &'a str) -> Failure<'a> {
        Failure { path: PathFields::new(path), stage, errno, text }
    }
}

/// The last line of `--failures FILE`: of a run that tried all there is, and named each that failed; or of
/// one that ended as a whole and whose cause is in no line before: not all that was not copied has one then.
#[derive(Serialize)]
pub struct Ended<'a> {
    stage: &'static str,
    errno: i32,
    text: &'a str,
    whole: bool,
}

impl<'a> Ended<'a> {
    pub fn whole() -> Ended<'static> {
        Ended { stage: "run", errno: 0, text: "all was tried", whole: true }
    }

    pub fn is_whole(&self) -> bool {
        self.whole
    }

    pub fn short(errno: i32, text: &'a str) -> Ended<'a> {
        Ended { stage: "run", errno, text, whole: false }
    }
}

#[derive(Serialize)]
struct NearFar<T> {
    near: T,
    far: Option<T>,
}

#[derive(Serialize)]
struct ProcessorShare {
    count: u16,
    busy: f64,
    own: Option<f64>,
}

#[derive(Serialize)]
struct SourceSink<T> {
    source: T,
    sink: T,
}

#[derive(Serialize)]
struct StageShares {
    name: &'static str,
    busy: f64,
    starved: f64,
    blocked: f64,
}

#[derive(Serialize)]
struct NotKept<'a> {
    what: &'a str,
    count: u64,
}

#[derive(Serialize)]
struct Chosen<'a> {
    name: &'a str,
    value: &'a str,
}

#[derive(Serialize)]
struct SlowTarget<'a> {
    end: &'static str,
    name: &'a str,
    congested_seconds: f64,
    hung_seconds: f64,
}

#[derive(Serialize)]
struct ManifestCounts {
    plain: u64,
    json: u64,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line<'a> {
    Start {
        schema: u32,
        haul: &'static str,
        time: String,
        sources: Vec<Place>,
        destination: Place,
        dry_run: bool,
    },
    Note {
        text: &'a str,
    },
    Plan {
        source: PathFields,
        destination: PathFields,
        bytes: Option<u64>,
        metadata_only: bool,
    },
    Progress {
        seconds: f64,
        counting: bool,
        bytes_done: u64,
        bytes_total: u64,
        bytes_sent: u64,
        files_done: u64,
        files_total: u64,
        unchanged: u64,
        failed: u64,
        bytes_per_second: f64,
        eta_seconds: Option<f64>,
        waiting: Option<&'a str>,
        checking: Option<CheckingBytes>,
        unencrypted: bool,
        paused: bool,
    },
    Targets {
        seconds: f64,
        #[serde(flatten)]
        table: &'a TargetTable,
    },
    Entry {
        #[serde(flatten)]
        path: PathFields,
        kind: &'static str,
        change: String,
        bytes: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        link_of: Option<PathFields>,
    },
    Failed(Failure<'a>),
    Summary(Box<SummaryLine<'a>>),
}

#[derive(Serialize)]
struct Part {
    offset: u64,
    length: Option<u64>,
    to: Option<u64>,
}

#[derive(Serialize)]
struct ThirdPartyFiles<'a> {
    compared: u64,
    sum: Option<&'a str>,
    not_compared: u64,
    held: u64,
}

#[derive(Serialize)]
struct HeldBytes {
    checked: u64,
    wrong: u64,
    trusted: u64,
    seconds: f64,
}

#[derive(Serialize)]
struct CheckingBytes {
    left: u64,
    seconds_left: Option<f64>,
}

#[derive(Serialize)]
struct SummaryLine<'a> {
    status: &'static str,
    exit_code: i32,
    error: Option<&'a str>,
    error_kind: Option<&'static str>,
    resumes: bool,
    resumed: bool,
    kept: u64,
    dry_run: bool,
    files: u64,
    dirs: u64,
    symlinks: u64,
    hard_links: u64,
    specials: u64,
    unchanged: u64,
    metadata_only: u64,
    skipped: u64,
    failed: u64,
    vanished: u64,
    lasting: u64,
    bytes: u64,
    bytes_sent: u64,
    objects_resent: u64,
    seconds: f64,
    cpu_seconds: NearFar<f64>,
    rss: NearFar<u64>,
    streams: u16,
    protect: &'a str,
    digest: &'static str,
    verify: &'static str,
    came_back: u64,
    resume: &'static str,
    changed: &'static str,
    prefixes: u64,
    prefix_bytes: u64,
    cloned: u64,
    cloned_bytes: u64,
    held: HeldBytes,
    path: &'a str,
    strays: u64,
    durability: &'static str,
    in_memory: Option<&'a str>,
    third_party: Option<ThirdPartyFiles<'a>>,
    in_place: bool,
    part: Option<Part>,
    stages: Vec<StageShares>,
    processors: SourceSink<Option<ProcessorShare>>,
    limited_by: Option<&'static str>,
    memory_limited: bool,
    not_kept: Vec<NotKept<'a>>,
    chosen: Vec<Chosen<'a>>,
    slow_targets: Vec<SlowTarget<'a>>,
    slow_targets_more: u64,
    manifest: Option<ManifestCounts>,
    events_dropped: u64,
}

/// Writes events. After the first error (a reader that went away, a full disk) it is silent: the copy is
/// worth more than its report.
pub struct Events<W: Write> {
    out: Option<W>,
    /// The destination is at another host.
    sends: bool,
}

impl<W: Write> Events<W> {
    /// `None`: no events are asked for.
    pub fn new(out: Option<W>) -> Events<W> {
        Events { out, sends: false }
    }

    pub fn start(&mut self, request: &CopyRequest, time: String) -> io::Result<()> {
        self.sends = request.destination.host().is_some();
        self.write(&Line::Start {
            schema: SCHEMA,
            haul: env!("CARGO_PKG_VERSION"),
            time,
            sources: request.sources.iter().map(Place::new).collect(),
            destination: Place::new(&request.destination),
            dry_run: request.dry_run,
        })
    }

    /// One event. `tracker` has taken it already, if it is a progress.
    pub fn event(&mut self, event: &Event, tracker: &Tracker) -> io::Result<()> {
        let line = match event {
            Event::Note(text) => Line::Note { text },
            Event::Plan { source, destination, bytes, metadata_only } => Line::Plan {
                source: PathFields::new(source),
                destination: PathFields::new(destination),
                bytes: *bytes,
                metadata_only: *metadata_only,
            },
            Event::Progress(_) | Event::Waiting(_) => progress(tracker),
            // A lone target is no choice, and none is less.
            Event::Targets(table) if table.targets < 2 => return Ok(()),
            Event::Targets(table) => Line::Targets { seconds: tracker.shown().elapsed.as_secs_f64(), table },
            Event::Entry { path, kind, end, change, bytes, link_of } => {
                let change = super::list::itemized(*kind, (*end, link_of.is_some()), *change, self.sends);
                let kind = match end {
                    EntryEnd::Copied => "copied",
                    EntryEnd::Unchanged => "unchanged",
                    EntryEnd::Skipped => "skipped",
                };
                let link_of = link_of.as_deref().map(PathFields::new);
                Line::Entry { path: PathFields::new(path), kind, change, bytes: *bytes, link_of }
            }
            Event::Failed { path, operation, errno, text, .. } => {
                Line::Failed(Failure::new(path, operation.name(), *errno, text))
            }
            // Digests and the word that there are no targets are for the manifest and the screen.
            _ => return Ok(()),
        };
        self.write(&line)
    }

    pub fn note(&mut self, text: &str) -> io::Result<()> {
        self.write(&Line::Note { text })
    }

    pub fn summary(&mut self, ending: &Ending, dry_run: bool) -> io::Result<()> {
        self.write(&Line::Summary(Box::new(summary_line(ending, dry_run))))?;
        self.flush()
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.attempt(|out| out.flush())
    }

    fn write(&mut self, line: &Line) -> io::Result<()> {
        self.attempt(|out| {
            serde_json::to_writer(&mut *out, line)?;
            out.write_all(b"\n")
        })
    }

    fn attempt(&mut self, act: impl FnOnce(&mut W) -> io::Result<()>) -> io::Result<()> {
        let Some(out) = &mut self.out else { return Ok(()) };
        let result = act(out);
        if result.is_err() {
            // Dropping it could write once more what a buffer holds, and fail once more, unheard.
            self.out = None;
        }
        result
    }
}

fn progress(tracker: &Tracker) -> Line<'_> {
    let p = tracker.shown();
    Line::Progress {
        seconds: p.elapsed.as_secs_f64(),
        counting: p.counting,
        bytes_done: p.bytes_done,
        bytes_total: p.bytes_total,
        bytes_sent: p.bytes_sent,
        files_done: p.files_done,
        files_total: p.files_total,
        unchanged: p.unchanged,
        failed: p.failed,
        bytes_per_second: tracker.bytes_per_second(),
        eta_seconds: tracker.eta(),
        waiting: p.waiting.as_deref(),
        checking: p.checking.map(|c| CheckingBytes { left: c.left, seconds_left: c.seconds_left }),
        unencrypted: p.unencrypted,
        paused: p.paused,
    }
}

fn slow_target(target: &haul::api::SlowTarget) -> SlowTarget<'_> {
    SlowTarget {
        end: target.end.name(),
        name: &target.name,
        congested_seconds: target.congested.as_secs_f64(),
        hung_seconds: target.hung.as_secs_f64(),
    }
}

fn processors(of: Option<Processors>, own: Option<f64>) -> Option<ProcessorShare> {
    of.map(|of| ProcessorShare { count: of.count, busy: of.share(), own })
}

/// What limited the rate, in one word.
fn limited_by(s: &Summary) -> Option<&'static str> {
    if s.rate_limited {
        return Some("rate_limit");
    }
    if s.others_busy().is_some() {
        return Some("other_programs");
    }
    s.limited_by.map(Stage::name)
}

fn summary_line(ending: &Ending, dry_run: bool) -> SummaryLine<'_> {
    let s = &ending.summary;
    SummaryLine {
        status: status(s.status),
        exit_code: ending.exit_code,
        error: s.error.as_ref().map(|error| error.text.as_str()),
        error_kind: s.error.as_ref().map(|error| error.kind.name()),
        resumes: s.resumes,
        resumed: s.resumed,
        kept: s.kept,
        dry_run,
        files: s.files,
        dirs: s.dirs,
        symlinks: s.symlinks,
        hard_links: s.hard_links,
        specials: s.specials,
        unchanged: s.unchanged,
        metadata_only: s.amended,
        skipped: s.skipped,
        failed: s.failed,
        vanished: s.vanished,
        lasting: s.lasting,
        bytes: s.bytes,
        bytes_sent: s.bytes_sent,
        objects_resent: s.objects_resent,
        seconds: s.seconds,
        cpu_seconds: NearFar { near: s.cpu_seconds_near, far: s.cpu_seconds_far },
        rss: NearFar { near: s.rss_near, far: s.rss_far },
        streams: s.streams,
        protect: &s.protect,
        digest: s.digest.kind().name(),
        verify: match s.verify {
            Verify::Transfer => "transfer",
            Verify::Disk => "disk",
        },
        came_back: s.came_back,
        resume: match s.resume {
            Resume::Check => "check",
            Resume::Trust => "trust",
        },
        changed: match s.changed {
            Changed::Fail => "fail",
            Changed::Retry => "retry",
            Changed::Prefix => "prefix",
        },
        prefixes: s.prefixes,
        prefix_bytes: s.prefix_bytes,
        cloned: s.cloned,
        cloned_bytes: s.cloned_bytes,
        held: HeldBytes {
            checked: s.held.checked,
            wrong: s.held.wrong,
            trusted: s.held.trusted,
            seconds: s.held.seconds,
        },
        path: &s.path,
        strays: s.strays,
        durability: match s.durability {
            Some(_) if s.servers_word || s.third_party.is_some() => "server",
            Some(Durability::Disk) => "disk",
            Some(Durability::None) => "none",
            None => "discarded",
        },
        in_memory: s.in_memory(),
        third_party: s.third_party.as_ref().map(|third| ThirdPartyFiles {
            compared: third.compared,
            sum: third.sum.as_deref(),
            not_compared: third.not_compared,
            held: third.held,
        }),
        in_place: s.in_place,
        part: s.part.map(|part| Part { offset: part.source, length: part.len, to: part.sink }),
        stages: Stage::ALL
            .iter()
            .zip(&s.stages)
            .map(|(stage, time)| {
                let (busy, starved, blocked) = time.shares();
                StageShares { name: stage.name(), busy, starved, blocked }
            })
            .collect(),
        processors: SourceSink {
            source: processors(s.processors[0], s.own_shares[0]),
            sink: processors(s.processors[1], s.own_shares[1]),
        },
        limited_by: limited_by(s),
        memory_limited: s.memory_limited,
        not_kept: s.not_kept.iter().map(|(what, count)| NotKept { what, count: *count }).collect(),
        chosen: s.chosen.iter().map(|line| Chosen { name: &line.name, value: &line.value }).collect(),
        slow_targets: s.slow_targets.iter().map(slow_target).collect(),
        slow_targets_more: s.slow_others,
        manifest: ending
            .lists
            .manifest
            .as_ref()
            .map(|counts| ManifestCounts { plain: counts.plain, json: counts.json }),
        events_dropped: ending.dropped,
    }
}
