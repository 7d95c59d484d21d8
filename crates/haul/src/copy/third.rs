//! A copy between two servers that move the data themselves: this host steers, hears what they say, and
//! counts.
//!
//! In: a `CopyRequest` whose two ends are stores that can do it. Out: its summary, or that somebody else has
//! to carry the data.
//! Invariants: nothing is told of a file that its pair did not say; what no sum compared is not called
//! compared, and what only a server calls stored is not called durable; a stop ends what is under way at both
//! servers, and each entry that was begun is heard of before the end; a walk that did not come to its end, or
//! an entry that did not, is never a complete copy.
//! Left out: how two stores do it, see `haul_storage::store::delegated`; symbolic links, which servers have
//! no way to make.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, never, select, unbounded};
use haul_core::change::Change;
use haul_core::entry::{EntryKind, Meta};
use haul_core::ids::{DirId, FileId};
use haul_core::reliability::Reliability;
use haul_core::transfer::Ended;
use haul_core::wire::{Announced, Failure, FailureKind, Totals};
use haul_storage::options::DataChannel;
use haul_storage::place::Sources;
use haul_storage::store::UNSEEN_AT_SERVERS;
use haul_storage::store::delegated::{
    Delegated, DelegatedEnd, DelegatedEntry, DelegatedJob, DelegatedPair, DelegatedSettings, Marker, Standing,
};
use haul_storage::stores;
use haul_storage::walk::{CountsAs, NotKept, NotKeptWhat, Walk, WalkItem};

use super::summary::LINKS_LEFT_OUT;
use crate::driver::{Kind, Mapping, Tally, Watch, cpu_time, rss_max};
use crate::endpoint::{Endpoint, Place};
use crate::error::{Error, ErrorKind};
use crate::events::{Event, Observer, Progress};
use crate::handle::{Handle, LiveSetting};
use crate::options::{Changed, Resume, Verify};
use crate::request::CopyRequest;
use crate::summary::{Chosen, Status, Summary, ThirdParty, UNSEEN};

/// Entries that were submitted and did not end, at most.
const OPEN_MAX: usize = 2048;
/// What a dry run looks at together.
const LOOK_MAX: usize = 256;
/// Progress is told this often, and a stop is noticed.
const TICK: Duration = Duration::from_millis(200);
/// What is under way at a stop may take so long to end.
const STOPPING: Duration = Duration::from_secs(20);
/// Why a rate cannot be held.
const NO_RATE: &str = "the data goes from one server to the other, and not by here";

/// How it went.
pub(super) enum Third {
    Over(Box<Summary>),
    /// The two cannot do it, nothing was moved, and why.
    Relay(String),
}

/// What was asked for and cannot be had where no data comes by.
fn refused(request: &CopyRequest) -> Option<String> {
    let options = &request.options;
    let lacks = [
        (options.rate.is_some(), "a rate cannot be held", NO_RATE),
        (
            options.range.is_some() || options.to.is_some(),
            "a part of a file cannot be copied",
            "files go as a whole",
        ),
        (options.in_place, "nothing is written in place", "files are stored under a name of their own first"),
        (options.manifest, "there can be no manifest", "nothing is hashed here"),
        (
            options.changed == Changed::Prefix,
            "`changed=prefix` is not possible",
            "the servers send files as a whole",
        ),
        (options.spill_dir.is_some(), "there is nothing to spill", NO_RATE),
    ];
    let (_, what, why) = lacks.into_iter().find(|(asked, ..)| *asked)?;
    Some(format!("between two servers {what}: {why}; leave that out"))
}

/// One of the two shows whose its data connections are, which the other cannot.
fn is_uneven(request: &CopyRequest) -> Option<String> {
    let of_grid = |end: &&Endpoint| end.place().scheme().name == "gsiftp";
    let ends: Vec<&Endpoint> = request.sources.iter().chain([&request.destination]).collect();
    let (grid, plain): (Vec<&Endpoint>, Vec<&Endpoint>) = ends.into_iter().partition(of_grid);
    let (grid, plain) = (grid.first()?, plain.first()?);
    (request.options.data_channel != DataChannel::Plain).then(|| {
        let shown = |end: &Endpoint| String::from_utf8_lossy(&end.shown()).into_owned();
        format!(
            "{} shows whose its data connections are, which {} cannot (with `data_channel=plain` the two move the data)",
            shown(grid),
            shown(plain)
        )
    })
}

/// Runs it.
pub(super) fn run(
    request: &CopyRequest,
    observer: &Arc<dyn Observer>,
    handle: &Handle,
    (start, retry): (Instant, &Arc<dyn Reliability>),
) -> Third {
    let over = |summary: Summary| {
        let seconds = start.elapsed().as_secs_f64();
        Third::Over(Box::new(Summary { seconds, ..summary }))
    };
    if let Some(why) = refused(request) {
        return over(Summary { error: Some(Error::usage(why)), usage: true, ..Summary::default() });
    }
    if let Some(why) = is_uneven(request) {
        return Third::Relay(why);
    }
    let (post, markers) = unbounded();
    let post: haul_storage::Post<Marker> = Arc::new(move |marker| drop(post.send(marker)));
    let places: Vec<Place> = request.sources.iter().map(|source| source.place().clone()).collect();
    let options = &request.options;
    let sources = Sources {
        places: &places,
        recursive: options.recursive || options.archive,
        part: None,
        home: None,
        replicas: &[],
        retry: retry.clone(),
        ssh: (&request.remote.ssh, request.remote.interactive),
        data_channel: options.data_channel,
        volumes: None,
        trust: options.resume == Resume::Trust,
        patience: options.patience.map(|seconds| Duration::from_secs(seconds.into())),
        links: Default::default(),
        stop: handle.as_stop(),
    };
    let settings = DelegatedSettings {
        force: options.force,
        no_clobber: options.no_clobber,
        update: options.update,
        no_links: options.no_links,
        trust: options.resume == Resume::Trust,
        must_compare: options.verify == Verify::Disk,
        connections: options.streams.map(u32::from),
        stripes: options.stripes,
        state: state_of(request),
        // Whose other runs live is looked into by those that write.
        begun: request.state_home.as_ref().filter(|_| !request.dry_run).map(|dir| dir.join("uploads")),
        look: request.dry_run,
    };
    let job = DelegatedJob { sources, destination: request.destination.place(), settings, post };
    let begun = match stores::pair(job) {
        Ok(begun) => begun,
        Err(_) if handle.stopped() => {
            return over(Summary { status: Status::Interrupted, ..Summary::default() });
        }
        Err(failure) => {
            let usage = failure.kind == FailureKind::Usage;
            let error = super::summary::named(Error::failed(&failure), request);
            return over(Summary { error: Some(error), usage, ..Summary::default() });
        }
    };
    let mut fixed = [Some("this copy has none of its own: two servers move the data"); 4];
    fixed[LiveSetting::Rate as usize] = Some(NO_RATE);
    for name in handle.join(1, fixed, None) {
        observer.event(Event::Note(format!("{name} stays as it is: two servers move the data")));
    }
    let watch = Watch {
        observer: Some(observer.clone()),
        handle: handle.clone(),
        verbose: request.verbose,
        manifest: None,
        targets: false,
        plan: request.dry_run.then(|| {
            let source = request.sources.first().map(Endpoint::shown).unwrap_or_default();
            Arc::new(Mapping { source, destination: request.destination.shown() })
        }),
        source_host: None,
        leaves_links: super::leaves_links(request),
        asked_nodes: Default::default(),
    };
    let mut run = Run::new(begun, request, &watch, start);
    run.all(&markers);
    match run.relay() {
        Some(why) => Third::Relay(why),
        None => over(run.summary(request)),
    }
}

/// Where it is kept what destinations have of unfinished files.
fn state_of(request: &CopyRequest) -> Option<PathBuf> {
    let dir = request.options.state_dir.clone().or_else(|| request.state_home.clone());
    dir.map(|dir| dir.join("pairs"))
}

fn not_made(why: &str) -> Failure {
    // EOPNOTSUPP.
    Failure { kind: FailureKind::Create, errno: 95, text: why.into() }
}

/// There was no room, or one of the two is gone, and nothing more was tried.
fn not_moved(fatal: &Failure) -> Failure {
    let why = if is_full(fatal) { "there was no room" } else { "a server is gone" };
    Failure { text: format!("it was not moved, for {why}: {}", fatal.text).into(), ..fatal.clone() }
}

fn is_full(failure: &Failure) -> bool {
    const ENOSPC: i32 = 28;
    const EDQUOT: i32 = 122;
    matches!(failure.errno, ENOSPC | EDQUOT)
}

/// An entry that did not end.
struct Open {
    path: Vec<u8>,
    size: u64,
    /// What of it is there, and what of that this attempt moved.
    there: u64,
    moved: u64,
    /// What all attempts moved, as far as anybody heard.
    sent: u64,
}

struct Run<'a> {
    watch: &'a Watch,
    walk: Walk,
    pair: Box<dyn DelegatedPair>,
    start: Instant,
    dry_run: bool,
    rename: Option<Vec<u8>>,
    /// Where each directory that is walked lies at the destination (`None`: it was not made), and below it.
    dirs: HashMap<DirId, (Option<Vec<u8>>, Vec<u8>)>,
    open: HashMap<FileId, Open>,
    looks: Vec<(DelegatedEntry, Vec<u8>)>,
    /// Directories that are there, each behind the one that it is in.
    made: Vec<(Vec<u8>, Meta)>,
    tally: Tally,
    third: ThirdParty,
    totals: Totals,
    /// Found so far, while the walk runs.
    found: (u64, u64),
    walked: bool,
    /// The walk told its end.
    whole: bool,
    broke: bool,
    /// Nothing more is taken or begun: somebody wants an end, there is no way between the two, or what
    /// `fatal` says.
    stopped: bool,
    /// The destination has no room, or one of the two is gone: nothing more can be moved.
    fatal: Option<Failure>,
    /// The two cannot move data between them. It is decided once: what has its name keeps it, and the copy
    /// that goes by this host finds it unchanged.
    no_way: Option<String>,
    bytes_done: u64,
    bytes_sent: u64,
    files_done: u64,
    not_kept: HashMap<&'static str, u64>,
    grew: Instant,
}

impl<'a> Run<'a> {
    fn new(begun: Delegated, request: &CopyRequest, watch: &'a Watch, start: Instant) -> Run<'a> {
        let Delegated { walk, to, rename, pair, .. } = begun;
        let mut tally = Tally::default();
        tally.renamed = rename.is_some();
        Run {
            watch,
            walk,
            pair,
            start,
            dry_run: request.dry_run,
            rename: rename.map(|name| name.as_bytes().to_vec()),
            dirs: HashMap::from([(DirId::ROOT, (Some(to), Vec::new()))]),
            open: HashMap::new(),
            looks: Vec::new(),
            made: Vec::new(),
            tally,
            third: ThirdParty::default(),
            totals: Totals::default(),
            found: (0, 0),
            walked: false,
            whole: false,
            broke: false,
            stopped: false,
            fatal: None,
            no_way: None,
            bytes_done: 0,
            bytes_sent: 0,
            files_done: 0,
            not_kept: HashMap::new(),
            grew: start,
        }
    }

    /// Until all entries ended.
    fn all(&mut self, markers: &Receiver<Marker>) {
        let (items, none) = (self.walk.items().clone(), never());
        let (mut told, mut stopping) = (Instant::now(), None);
        while !(self.walked && self.open.is_empty()) {
            let takes = !self.walked && self.open.len() < OPEN_MAX && !self.watch.handle.paused();
            // A directory among them is made before anything else is heard.
            let takes = takes && self.pair.is_ready();
            let from = if takes { &items } else { &none };
            select! {
                recv(markers) -> marker => if let Ok(marker) = marker { self.heard(marker) },
                recv(from) -> batch => match batch {
                    Ok(batch) => batch.into_iter().for_each(|item| self.take(item)),
                    Err(_) => {
                        self.broke = !self.walk.is_cancelled();
                        self.walked = true;
                    }
                },
                default(TICK) => {}
            }
            if self.walked || self.looks.len() >= LOOK_MAX {
                self.look();
            }
            let ends = self.watch.handle.stopped() || self.no_way.is_some() || self.fatal.is_some();
            if ends && stopping.is_none() {
                self.stopped = true;
                stopping = Some(Instant::now());
                self.walk.cancel();
                self.walked = true;
                self.pair.cancel();
            }
            if stopping.is_some_and(|since: Instant| since.elapsed() > STOPPING) {
                break;
            }
            if told.elapsed() >= TICK {
                told = Instant::now();
                self.tell();
            }
        }
        self.look();
        if let Some(fatal) = self.fatal.clone() {
            for (_, Open { path, size, .. }) in std::mem::take(&mut self.open) {
                self.count(Kind::File, &Ended::Failed(not_moved(&fatal)), Change::NONE, size, &path);
            }
        }
        if !self.dry_run && !self.stopped {
            self.finish_dirs();
        }
        self.tell();
    }

    /// Why somebody else has to carry the data. Nothing of it is under way any more then.
    fn relay(&self) -> Option<String> {
        let goes = !self.watch.handle.stopped() && self.open.is_empty() && self.fatal.is_none();
        self.no_way.clone().filter(|_| goes)
    }

    /// Directories get their times when nothing more is made in them: the innermost first.
    fn finish_dirs(&mut self) {
        self.made.reverse();
        for some in std::mem::take(&mut self.made).chunks(LOOK_MAX) {
            let (times, modes) = self.pair.finish_dirs(some);
            for (lost, what) in [(times, "mtime"), (modes, "mode")] {
                if lost > 0 {
                    *self.not_kept.entry(what).or_default() += lost;
                }
            }
        }
    }

    fn take(&mut self, item: WalkItem) {
        if self.stopped {
            return;
        }
        match item {
            WalkItem::Entry(announced) => self.entry(announced),
            // Servers have none.
            WalkItem::Metadata(_) | WalkItem::NameOf { .. } | WalkItem::Root(_) | WalkItem::Owners(_) => {}
            WalkItem::DirEnd(id) => {
                self.dirs.remove(&id);
                self.pair.forget(id.as_file());
            }
            WalkItem::Failed { path, failure, counts_as } => {
                let failure = match counts_as {
                    CountsAs::Vanished => Failure { kind: FailureKind::Vanished, ..failure },
                    CountsAs::Entry | CountsAs::Subtree => failure,
                };
                self.tally.fail(self.watch, path, &failure);
            }
            // What it means for each entry is told of that entry.
            WalkItem::Gone(_) => {}
            WalkItem::NotKept(NotKept { what: NotKeptWhat::Link, .. }) => {
                *self.not_kept.entry(LINKS_LEFT_OUT).or_default() += 1;
            }
            WalkItem::NotKept(_) => *self.not_kept.entry("special files").or_default() += 1,
            WalkItem::Note(text) => self.watch.tell(Event::Note(text.into())),
            WalkItem::End(totals) => {
                (self.totals, self.walked, self.whole) = (totals, true, true);
                self.found = (totals.files, totals.bytes);
            }
        }
    }

    fn entry(&mut self, announced: Announced) {
        let Announced { id, parent, name, meta, kind, .. } = announced;
        let name = match &self.rename {
            Some(rename) if parent == DirId::ROOT => rename.clone(),
            _ => name.as_bytes().to_vec(),
        };
        let (dir, below) = match self.dirs.get(&parent) {
            Some((dir, below)) => (dir.as_ref(), &below[..]),
            None => (None, &b""[..]),
        };
        let path = if below.is_empty() { name.clone() } else { [below, b"/", &name].concat() };
        let Some(dir) = dir else {
            // That of the directory was told.
            self.pair.forget(id);
            if let EntryKind::Dir { .. } = kind {
                self.dirs.insert(id.as_dir(), (None, path.clone()));
            }
            let failure = not_made("its directory was not made");
            return self.tally.fail(self.watch, path, &failure);
        };
        let to = [dir.strip_suffix(b"/").unwrap_or(dir), b"/", &name].concat();
        match kind {
            EntryKind::Dir { .. } => {
                let made = match self.dry_run {
                    false => self.pair.make_dir(&to),
                    true => {
                        let entry = DelegatedEntry { id, from: Vec::new(), to: to.clone(), size: 0, meta };
                        // A directory that stands there is what is wanted.
                        Ok(matches!(self.pair.look(&[entry]).pop(), Some(Ok(Standing::New))))
                    }
                };
                match made {
                    Ok(new) => {
                        let (end, change) =
                            if new { (Ended::Copied, Change::NEW) } else { (Ended::Unchanged, Change::NONE) };
                        self.count(Kind::Dir, &end, change, 0, &path);
                        self.made.push((to.clone(), meta));
                        self.dirs.insert(id.as_dir(), (Some(to), path));
                    }
                    Err(failure) => {
                        self.dirs.insert(id.as_dir(), (None, path.clone()));
                        self.note_full(&failure);
                        self.tally.fail(self.watch, path, &failure);
                    }
                }
            }
            EntryKind::Fifo | EntryKind::Socket | EntryKind::Device { .. } | EntryKind::HardLink { .. } => {
                self.pair.forget(id);
                *self.not_kept.entry("special files").or_default() += 1;
            }
            EntryKind::Symlink { .. } => {
                self.pair.forget(id);
                let why = "a symbolic link, of which haul makes none at servers";
                let end = Ended::Failed(not_made(why));
                self.count(Kind::Symlink, &end, Change::NONE, 0, &path);
            }
            EntryKind::File { fingerprint, .. } => {
                let size = fingerprint.size;
                self.found = (self.found.0 + 1, self.found.1.saturating_add(size));
                let entry = DelegatedEntry { id, from: self.pair.origin(id), to, size, meta };
                if self.dry_run {
                    self.looks.push((entry, path));
                    return;
                }
                self.open.insert(id, Open { path, size, there: 0, moved: 0, sent: 0 });
                self.pair.submit(entry);
            }
        }
    }

    /// A dry run's files.
    fn look(&mut self) {
        let looks = std::mem::take(&mut self.looks);
        let entries: Vec<DelegatedEntry> = looks.iter().map(|(entry, _)| entry.clone()).collect();
        if entries.is_empty() {
            return;
        }
        let standings = self.pair.look(&entries);
        for ((entry, path), standing) in looks.into_iter().zip(standings) {
            self.pair.forget(entry.id);
            let (end, change) = match standing {
                Ok(Standing::New) => (Ended::Copied, Change::NEW),
                Ok(Standing::Differs(change)) => (Ended::Copied, change),
                Ok(Standing::Unchanged) => (Ended::Unchanged, Change::NONE),
                Ok(Standing::Skipped) => (Ended::Skipped, Change::NONE),
                Err(failure) => (Ended::Failed(failure), Change::NONE),
            };
            self.files_done += 1;
            self.bytes_done += entry.size;
            self.count(Kind::File, &end, change, entry.size, &path);
        }
    }

    fn count(&mut self, kind: Kind, end: &Ended, change: Change, size: u64, path: &[u8]) {
        self.tally.count(self.watch, kind, end, (None, change), size, || path.to_vec(), || None);
    }

    /// Where the destination has no room for one, it has none for all.
    fn note_full(&mut self, failure: &Failure) {
        if is_full(failure) {
            self.fatal.get_or_insert_with(|| failure.clone());
        }
    }

    fn heard(&mut self, marker: Marker) {
        match marker {
            Marker::Moved { id, len, held } => {
                if let Some(open) = self.open.get_mut(&id) {
                    let moved = len.saturating_sub(held);
                    let more = moved.saturating_sub(open.moved);
                    (open.there, open.moved, open.sent) = (len, moved, open.sent + more);
                    self.bytes_sent += more;
                    if more > 0 {
                        self.grew = Instant::now();
                    }
                }
            }
            Marker::Note(text) => self.watch.tell(Event::Note(text)),
            Marker::NoWay(why) => {
                self.no_way.get_or_insert(why);
            }
            Marker::Gone(failure) => {
                self.fatal.get_or_insert(failure);
            }
            Marker::Ended { id, result } => {
                let Some(Open { path, size, sent, .. }) = self.open.remove(&id) else { return };
                self.grew = Instant::now();
                match result {
                    Err(_) if let Some(fatal) = &self.fatal => {
                        let failure = not_moved(fatal);
                        self.count(Kind::File, &Ended::Failed(failure), Change::NONE, size, &path)
                    }
                    // Nobody wants to hear of each file that a stop ended.
                    Err(_) if self.stopped || self.no_way.is_some() => return,
                    Err(failure) => {
                        self.note_full(&failure);
                        self.count(Kind::File, &Ended::Failed(failure), Change::NONE, size, &path)
                    }
                    Ok(DelegatedEnd::Unchanged) => {
                        self.count(Kind::File, &Ended::Unchanged, Change::NONE, size, &path)
                    }
                    Ok(DelegatedEnd::Skipped) => {
                        self.count(Kind::File, &Ended::Skipped, Change::NONE, size, &path)
                    }
                    Ok(DelegatedEnd::Moved(all)) => {
                        // What was heard of it under way is a part of it.
                        self.bytes_sent += all.moved.saturating_sub(sent);
                        self.third.held += all.held;
                        match all.compared {
                            Some(sum) => {
                                self.third.compared += 1;
                                self.third.sum = Some(sum.to_owned());
                            }
                            None => self.third.not_compared += 1,
                        }
                        let lost = [(all.mtime_lost, "mtime"), (all.mode_lost, "mode")];
                        for (_, what) in lost.into_iter().filter(|(lost, _)| *lost) {
                            *self.not_kept.entry(what).or_default() += 1;
                        }
                        self.count(Kind::File, &Ended::Copied, all.change, all.size, &path);
                    }
                }
                self.files_done += 1;
                self.bytes_done += size;
            }
        }
    }

    /// How far it is.
    fn tell(&self) {
        let under_way: u64 = self.open.values().map(|open| open.there.min(open.size)).sum();
        let quiet = self.grew.elapsed();
        let waits = quiet > Duration::from_secs(5) && !self.open.is_empty();
        let progress = Progress {
            bytes_done: self.bytes_done + under_way,
            bytes_total: self.found.1,
            files_done: self.files_done,
            files_total: self.found.0,
            unchanged: self.tally.unchanged,
            failed: self.tally.failed,
            counting: !self.walked,
            elapsed: self.start.elapsed(),
            bytes_sent: self.bytes_sent,
            holes: 0,
            waiting: waits.then(|| format!("waiting {} s for the two servers", quiet.as_secs())),
            checking: None,
            paused: self.watch.handle.paused(),
            unencrypted: false,
        };
        self.watch.handle.note_progress(&progress);
        self.watch.tell(Event::Progress(progress));
    }

    fn summary(&self, request: &CopyRequest) -> Summary {
        let stopped = self.watch.handle.stopped();
        let broken = match (&self.no_way, self.broke || !self.whole) {
            _ if let Some(fatal) = &self.fatal => Some(Error::failed(fatal)),
            (Some(why), _) => Some(Error::new(ErrorKind::Network, why.clone())),
            (None, true) => Some(Error::local("internal error: the walk ended without its end")),
            (None, false) if self.stopped || !self.open.is_empty() => {
                Some(Error::local("internal error: not every file came to its end"))
            }
            (None, false) => None,
        };
        let error = broken.filter(|_| !stopped);
        let status = match () {
            () if stopped => Status::Interrupted,
            () if error.is_some() => Status::Failed,
            () if self.tally.failed > 0 => Status::Partial,
            () => Status::Complete,
        };
        let shown = |end: &Endpoint| String::from_utf8_lossy(&end.shown()).into_owned();
        let from = request.sources.first().map(shown).unwrap_or_default();
        let mut not_kept: Vec<(String, u64)> =
            self.not_kept.iter().map(|(what, count)| ((*what).to_owned(), *count)).collect();
        let links = self.tally.links_left().map(|(links, names)| {
            not_kept.push(links);
            names
        });
        not_kept.sort();
        let report = self.pair.report().into_iter().chain(links);
        let unseen = self.dry_run.then(|| (UNSEEN.to_owned(), UNSEEN_AT_SERVERS.to_owned()));
        Summary {
            status,
            files: self.tally.files,
            dirs: self.tally.dirs,
            unchanged: self.tally.unchanged,
            skipped: self.tally.skipped,
            failed: self.tally.failed,
            vanished: self.tally.vanished,
            lasting: self.tally.lasting,
            changed: request.options.changed,
            bytes: self.tally.bytes,
            bytes_sent: self.bytes_sent,
            cpu_seconds_near: cpu_time().as_secs_f64(),
            rss_near: rss_max(),
            streams: 0,
            protect: "servers".into(),
            path: format!("from {from} to {}", shown(&request.destination)),
            digest: request.options.digest,
            verify: request.options.verify,
            resume: request.options.resume,
            durability: Some(request.options.durability),
            resumes: self.pair.resumes(),
            resumed: self.third.held > 0,
            third_party: Some(self.third.clone()),
            not_kept,
            error,
            chosen: report.chain(unseen).map(|(name, value)| Chosen::new(name, value)).collect(),
            ..Summary::default()
        }
    }
}
