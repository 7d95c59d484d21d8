//! The driver: small and dumb. It carries events to a session machine and its actions to storage and network.
//!
//! In: links that are up, what the user asked for. Out: a [`Report`] of one end.
//! Each session has one mailbox. Engines and streams post completions into it from their own threads; a post
//! never blocks, for what can be outstanding is bounded by the machine (reads, writes, frames, grants).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use haul_core::digest::DigestKind;
use haul_core::entry::{DEPTH_MAX, Name};
use haul_core::ids::{SessionEpoch, StreamId, Time};
use haul_core::schedule::table::UnwellTargets;
use haul_core::stage::{Processors, StageTime};
use haul_core::transfer::{ENTRIES_MAX, Ended, SessionEnd};
use haul_core::wire::{
    Agreed, Capability, EndReport, Failure, Hello, Limits, Message, NotKept, Placed, Policy, STREAMS_MAX,
    Stage, VERSION, VERSION_MIN, capability, negotiate,
};

pub(crate) use crate::api::EntryKind as Kind;
use crate::api::{Change, Control, EntryEnd, Event, Observer, Progress};
use crate::job::{Durability, LayoutChoice, Options, Resume, Role, Verify};
use crate::meter::Meter;
use crate::storage::Stuck;
use crate::storage::sink::stripes::in_words;
use crate::storage::source::Stamp;
use crate::transport::Link;
use crate::transport::rejoin::{JoinEvent, Joins};
use crate::transport::stream::{ControlEvent, ControlHandle};
use pulse::Pulse;
pub(crate) use streams::PATIENCE;
use streams::{Lines, Lost};

pub(crate) mod choices;
pub(crate) mod dry;
mod held;
pub(crate) mod net;
mod processors;
pub(crate) mod pulse;
pub(crate) mod sink;
pub(crate) mod source;
mod spill;
mod steer;
mod streams;
#[cfg(test)]
mod tests;
pub(crate) mod trial;
mod view;

/// The fencing epoch of a session's start; each time that control joins again it is higher.
pub(crate) const EPOCH: SessionEpoch = SessionEpoch(1);
/// The other end has this long for each step of the set-up; taking over a dead owner's job takes up to 30 s.
const SETUP_MAX: Duration = Duration::from_secs(90);
/// Lines that the other end may have shown to the user meanwhile.
const SETUP_NOTES_MAX: u32 = 16;
/// A graceful stop is given up after this long; that of a sink after as long without a step, or where storage hangs, and
/// at the latest after [`STOP_LONGEST`]: what was written is made durable first.
const STOP_MAX: Duration = Duration::from_secs(5);
const STOP_LONGEST: Duration = Duration::from_secs(60);
/// A deep tree has this many directories open at once, and there must be room for what lies in them.
const ENTRIES_MIN: u32 = 2 * DEPTH_MAX as u32;
/// Progress is told this often, and a stop is noticed.
const TICK: Duration = Duration::from_millis(200);
/// A notice says what stands for three of these.
const NOTICE_HOLDS: Duration = Duration::from_secs(3);
/// The other end is told of what hangs at most this often.
const NOTICE_EVERY: Duration = Duration::from_secs(1);
/// Events that a turn of the loop takes up before the machine is asked again, at most: a peer that says more than is handled
/// must not keep it from its deadlines.
const TURN_MAX: usize = 1024;
/// The other end's report is waited for this long.
const REPORT_MAX: Duration = Duration::from_secs(5);

/// Connections of a session, all authenticated.
pub(crate) struct Links {
    pub(crate) session: [u8; 16],
    pub(crate) control: Link,
    /// Those of the start that are up.
    pub(crate) data: Vec<(StreamId, Link)>,
    /// Data streams of the start, which have the ids 1 to `streams`; the rest of them joins later.
    pub(crate) streams: u16,
    /// How others come up later, and how long a lost control is waited for.
    pub(crate) joins: Joins,
    pub(crate) patience: Duration,
    /// Connections that were not ours.
    pub(crate) strays: Arc<AtomicU64>,
    pub(crate) protection: Protection,
}

/// What both ends must want alike; each says it in its hello.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Protection {
    pub(crate) digest: DigestKind,
    /// Data frames are authenticated and not encrypted.
    pub(crate) auth_only: bool,
}

/// Who watches this end: the near end has an observer, an agent has none.
#[derive(Clone)]
pub(crate) struct Watch {
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) control: Control,
    pub(crate) verbose: bool,
    /// Takes the paths of unchanged and of sparse files, whose digest a manifest needs; `None`: no manifest is asked for.
    pub(crate) manifest: Option<Sender<Unmoved>>,
    /// The observer wants to hear of the storage targets.
    pub(crate) targets: bool,
    /// In a dry run: what its mappings are shown as.
    pub(crate) plan: Option<Arc<Mapping>>,
    /// As typed, if the sources are at another host.
    pub(crate) source_host: Option<String>,
}

/// How the mappings of a dry run are shown.
pub(crate) struct Mapping {
    /// As typed: the first source, and the destination.
    pub(crate) source: Vec<u8>,
    pub(crate) destination: Vec<u8>,
}

/// Mappings that a dry run shows.
const MAPPINGS_MAX: u64 = 10;

impl Watch {
    pub(crate) fn silent() -> Watch {
        Watch {
            observer: None,
            control: Control::new(),
            verbose: false,
            manifest: None,
            targets: false,
            plan: None,
            source_host: None,
        }
    }

    /// This end is where the user sits, who waits for its end.
    pub(crate) fn is_near(&self) -> bool {
        self.observer.is_some()
    }

    pub(crate) fn tell(&self, event: Event) {
        if let Some(observer) = &self.observer {
            observer.event(event);
        }
    }
}

/// What one end did.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) end: SessionEnd,
    pub(crate) tally: Tally,
    pub(crate) own: EndReport,
    pub(crate) far: Option<EndReport>,
    /// Of this end and of the other, as far as they are known.
    pub(crate) processors: [Option<Processors>; 2],
    pub(crate) resumed: bool,
    /// Bytes of unfinished files that a resume finds, as this end knows.
    pub(crate) kept: u64,
    pub(crate) chosen: Vec<(String, String)>,
    /// Storage targets that were unwell, of this end and of the other.
    pub(crate) unwell: [(Role, UnwellTargets); 2],
}

impl Report {
    /// An end that failed before it began.
    pub(crate) fn failed(failure: Failure, watch: &Watch) -> Report {
        // Whoever wanted it to stop got that.
        let end = if watch.control.stopped() { SessionEnd::Stopped } else { SessionEnd::Failed(failure) };
        Report {
            end,
            tally: Tally::default(),
            own: EndReport::default(),
            far: None,
            processors: [None; 2],
            resumed: false,
            kept: 0,
            chosen: Vec::new(),
            unwell: nobody_unwell(),
        }
    }
}

/// A choice of this name says that the sink's memory, and not the path, held the source most of the time.
pub(crate) const MEMORY_HELD: &str = "memory";

/// No end told of targets that were unwell.
pub(crate) fn nobody_unwell() -> [(Role, UnwellTargets); 2] {
    [Role::Source, Role::Sink].map(|end| (end, UnwellTargets::default()))
}

/// Entries by how they ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) files: u64,
    pub(crate) dirs: u64,
    pub(crate) symlinks: u64,
    pub(crate) unchanged: u64,
    pub(crate) skipped: u64,
    pub(crate) failed: u64,
    /// Of these, what was gone from the source when it was to be read.
    pub(crate) vanished: u64,
    /// Of these, what fails again until somebody renames or moves something.
    pub(crate) lasting: u64,
    /// Content of the files that were copied.
    pub(crate) bytes: u64,
    /// How often a file came back wrong from the sink's storage.
    pub(crate) came_back: u64,
    /// The single file takes the name that the destination ends in.
    pub(crate) renamed: bool,
    /// Mappings that were shown.
    mapped: u64,
}

impl Mapping {
    fn show(&self, path: &[u8], renamed: bool, (bytes, metadata_only): (Option<u64>, bool)) -> Event {
        if renamed {
            let (source, destination) = (self.source.clone(), self.destination.clone());
            return Event::Plan { source, destination, bytes, metadata_only };
        }
        let slash: &[u8] = if self.destination.ends_with(b"/") { b"" } else { b"/" };
        let destination = [&self.destination[..], slash, path].concat();
        Event::Plan { source: path.to_vec(), destination, bytes, metadata_only }
    }
}

impl Tally {
    /// Counts an entry that ended, and tells the observer.
    pub(crate) fn count(
        &mut self,
        watch: &Watch,
        kind: Kind,
        end: &Ended,
        (root, change): (Option<[u8; 32]>, Change),
        bytes: u64,
        path: impl FnOnce() -> Vec<u8>,
        source: impl FnOnce() -> Option<(Vec<u8>, Stamp)>,
    ) {
        let entry_end = match end {
            Ended::Copied => {
                match kind {
                    Kind::File => {
                        self.files += 1;
                        // In a dry run these are a peer's numbers.
                        self.bytes = self.bytes.saturating_add(bytes);
                    }
                    Kind::Dir => self.dirs += 1,
                    Kind::Symlink => self.symlinks += 1,
                }
                EntryEnd::Copied
            }
            Ended::Unchanged => {
                // Directories and links that were right are nothing that a run did or left out.
                self.unchanged += u64::from(kind == Kind::File || !change.is_none());
                EntryEnd::Unchanged
            }
            Ended::Skipped => {
                self.skipped += 1;
                EntryEnd::Skipped
            }
            Ended::Failed(failure) => {
                self.fail(watch, path(), failure);
                return;
            }
        };
        // Of a directory that stood there nothing else can change.
        let amended = match kind {
            Kind::Dir => *end == Ended::Copied && !change.has(Change::NEW),
            Kind::File | Kind::Symlink => *end == Ended::Unchanged && !change.is_none(),
        };
        let shows = *end == Ended::Copied || amended;
        let maps = watch.plan.as_ref().filter(|_| shows && self.mapped < MAPPINGS_MAX);
        if watch.observer.is_none() || !(watch.verbose || watch.manifest.is_some() || maps.is_some()) {
            return;
        }
        let path = path();
        if let Some(mapping) = maps {
            self.mapped += 1;
            let size = (kind == Kind::File && !amended).then_some(bytes);
            watch.tell(mapping.show(&path, self.renamed, (size, amended)));
        }
        if watch.verbose {
            watch.tell(Event::Entry { path: path.clone(), kind, end: entry_end, change, bytes });
        }
        match (&watch.manifest, root) {
            (Some(_), Some(root)) => watch.tell(Event::Digest { path, root }),
            // The hashing thread may be gone only when the run is over.
            // A sparse file's own digest is none of its content.
            (Some(hasher), None) if kind == Kind::File && *end != Ended::Skipped => {
                let len = (*end == Ended::Copied).then_some(bytes);
                drop(hasher.send(Unmoved { path, source: source(), len }));
            }
            _ => {}
        }
    }

    /// Counts a failure, and tells the observer.
    pub(crate) fn fail(&mut self, watch: &Watch, path: Vec<u8>, failure: &Failure) {
        self.failed += 1;
        self.vanished += u64::from(failure.stage == Stage::Vanished);
        self.lasting += u64::from(lasts(failure));
        let stage = failure.stage.name().to_owned();
        let text = match (&watch.source_host, failure.text.strip_prefix("source ")) {
            (Some(host), Some(path)) => format!("source {host}:{path}"),
            _ => failure.text.to_string(),
        };
        watch.tell(Event::Failed { path, stage, errno: failure.errno, text });
    }
}

/// A name that is taken by what does not give way, or that the destination cannot have, what may not be read or written, or is no
/// file: the same run would end the same.
fn lasts(failure: &Failure) -> bool {
    const EPERM: i32 = 1;
    const EACCES: i32 = 13;
    if matches!(failure.errno, EPERM | EACCES) || (failure.stage == Stage::Walk && failure.errno == 0) {
        return true;
    }
    const EEXIST: i32 = 17;
    const ENOTDIR: i32 = 20;
    const EISDIR: i32 = 21;
    const EINVAL: i32 = 22;
    const ENAMETOOLONG: i32 = 36;
    const EILSEQ: i32 = 84;
    matches!(failure.stage, Stage::Create | Stage::Publish)
        && matches!(failure.errno, EEXIST | ENOTDIR | EISDIR | EINVAL | ENAMETOOLONG | EILSEQ)
}

/// A file that was not moved, of which the manifest wants the digest.
pub(crate) struct Unmoved {
    /// At the destination, as the manifest names it.
    pub(crate) path: Vec<u8>,
    /// At the source, if that is this end, and which version of it the session knows.
    pub(crate) source: Option<(Vec<u8>, Stamp)>,
    /// How much of it was copied, if it was: at the source it can have grown since.
    pub(crate) len: Option<u64>,
}

/// The session's clock: core is given times since this moment.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock { start: Instant::now() }
    }
    pub(crate) fn now(&self) -> Time {
        Time(self.start.elapsed().as_nanos() as u64)
    }
    /// A moment of this host's monotonic clock; of one before the session, its begin.
    pub(crate) fn at(&self, moment: Instant) -> Time {
        Time(moment.saturating_duration_since(self.start).as_nanos() as u64)
    }
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
    /// How long until `time`, at most `max`.
    pub(crate) fn until(&self, time: Option<Time>, max: Duration) -> Duration {
        time.map_or(max, |time| time.since(self.now()).min(max))
    }
}

/// A stop that was asked for: graceful first, then by the clock.
#[derive(Default)]
pub(crate) struct Stopping {
    since: Option<Instant>,
    /// Steps that were made, and when the last was seen.
    steps: Option<(u64, Instant)>,
}

impl Stopping {
    /// True once, when the user asked for a stop.
    pub(crate) fn begins(&mut self, watch: &Watch) -> bool {
        if self.since.is_none() && watch.control.stopped() {
            self.since = Some(Instant::now());
            return true;
        }
        false
    }
    /// The graceful stop took too long.
    pub(crate) fn is_overdue(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= STOP_MAX)
    }
    /// The same of a sink, which is given time while it makes steps (`steps` grows) or its storage does not hang.
    pub(crate) fn is_overdue_at(&mut self, steps: u64, hangs: impl FnOnce() -> bool) -> bool {
        let Some(since) = self.since else { return false };
        let last = match self.steps {
            Some((seen, at)) if seen == steps => at,
            _ => self.steps.insert((steps, Instant::now())).1,
        };
        let patient = last.elapsed() < STOP_MAX || !hangs();
        since.elapsed() >= if patient { STOP_LONGEST } else { STOP_MAX }
    }
}

pub(crate) fn protocol(text: impl Into<String>) -> Failure {
    Failure { stage: Stage::Protocol, errno: 0, text: text.into().into() }
}

/// What one end hears of the other.
pub(crate) enum Heard {
    Control(ControlEvent),
    Join(JoinEvent),
}

/// Waits for control messages during the set-up, which does not survive the loss of control. `pick` takes an event of the
/// mailbox as one of the lines.
pub(crate) fn expect<E, T>(
    mailbox: &Receiver<E>,
    (control, watch): (&ControlHandle, &Watch),
    pick: impl Fn(E) -> Option<Heard>,
    mut want: impl FnMut(Message) -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    let deadline = Instant::now() + SETUP_MAX;
    let mut notes = 0;
    loop {
        if watch.control.stopped() {
            return Err(protocol("stopped during the set-up"));
        }
        let event = match mailbox.recv_timeout(TICK) {
            // Chatter must not hold off the deadline.
            Ok(event) if Instant::now() < deadline => event,
            Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => continue,
            Ok(_) | Err(RecvTimeoutError::Timeout) => {
                return Err(protocol("the other end did not answer in time during the set-up"));
            }
            Err(RecvTimeoutError::Disconnected) => return Err(protocol("the control stream is gone")),
        };
        let Some(Heard::Control(event)) = pick(event) else { continue };
        event.taken(control);
        match event {
            ControlEvent::Message(Message::Ping(n)) => control.send(Message::Pong(n)),
            ControlEvent::Message(Message::Pong(_)) => {}
            ControlEvent::Message(Message::Notice { text }) => {
                notes += 1;
                if notes <= SETUP_NOTES_MAX {
                    watch.tell(Event::Note(text.into()));
                }
            }
            ControlEvent::Message(Message::Abort(failure)) => return Err(failure),
            ControlEvent::Message(message) => {
                let name = message.name();
                match want(message)? {
                    Some(value) => return Ok(value),
                    None => return Err(protocol(format!("{name} came where it makes no sense"))),
                }
            }
            ControlEvent::Lost { why, .. } => return Err(protocol(why)),
        }
    }
}

/// The user's choices that the sink must know.
pub(crate) fn policy(options: &Options) -> Policy {
    Policy {
        durable: options.durability == Durability::Disk,
        force: options.force,
        no_clobber: options.no_clobber,
        update: options.update,
        owner: options.archive,
        times: true,
        verify: options.verify == Verify::Disk,
        trust: options.resume == Resume::Trust,
    }
}

/// The hello of this end.
pub(crate) fn hello(session: [u8; 16], protection: Protection, memory: u64, streams: u16) -> Hello {
    // An object must fit into a fraction of the buffers, or reading and writing could not overlap.
    let object_len = (memory / 4).clamp(64 * 1024, 64 * 1024 * 1024);
    let object_len = 1u32 << object_len.ilog2();
    let limits = Limits { object_len, entries: ENTRIES_MAX, streams: streams.clamp(1, STREAMS_MAX) };
    let optional = |kind| Capability { kind, required: false, value: Box::default() };
    let required = |kind| Capability { required: true, ..optional(kind) };
    let mut capabilities: Vec<Capability> = capability::OFFERED.map(optional).into();
    if protection.digest == DigestKind::Xxh3 {
        capabilities.push(required(capability::XXH3));
    }
    if protection.auth_only {
        capabilities.push(required(capability::AUTH_ONLY));
    }
    let (version_min, version_max) = (VERSION_MIN, VERSION);
    Hello { version_min, version_max, session, capabilities, limits }
}

/// Holds the other end's hello against ours.
pub(crate) fn agree(ours: &Hello, theirs: &Hello) -> Result<Agreed, Failure> {
    if ours.session != theirs.session {
        return Err(protocol("the other end speaks of another session"));
    }
    let agreed = negotiate(ours, theirs).map_err(|e| protocol(e.to_string()))?;
    if agreed.limits.entries < ENTRIES_MIN {
        let entries = agreed.limits.entries;
        return Err(protocol(format!(
            "a limit of {entries} entries; fewer than {ENTRIES_MIN} may not do for a tree"
        )));
    }
    Ok(agreed)
}

/// What this process used, for the report.
pub(crate) fn end_report(meter: &Meter, strays: &AtomicU64, payload: u64, objects_resent: u64) -> EndReport {
    EndReport {
        cpu: cpu_time().as_nanos() as u64,
        rss_max: rss_max(),
        stages: meter.read(),
        strays: strays.load(Ordering::Relaxed),
        payload,
        objects_resent,
        amended: 0,
        prefixes: 0,
        prefix_bytes: 0,
        not_kept: [0; NotKept::COUNT],
        held: Default::default(),
    }
}

/// User and system time of this process.
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Most resident memory of this process, bytes; 0 where the kernel does not say.
pub(crate) fn rss_max() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|rest| rest.trim().split(' ').next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Both ends' stages together: each end counts only its own.
pub(crate) fn merge_stages(a: &[StageTime; 5], b: &[StageTime; 5]) -> [StageTime; 5] {
    std::array::from_fn(|i| StageTime {
        busy: a[i].busy + b[i].busy,
        starved: a[i].starved + b[i].starved,
        blocked: a[i].blocked + b[i].blocked,
    })
}

/// Sends the report of this end, waits for the other end's unless it came already, and closes control; `at_once`: without
/// waiting for the other end to close it too, whose report was its last word. `lines`: `None` if control is gone for good. While they are dark after an end that the other must hear of (`waits`), they are waited
/// for as before.
pub(crate) fn exchange_reports<E>(
    mailbox: &Receiver<E>,
    control: &mut ControlHandle,
    lines: Option<(&mut Lines, Clock)>,
    waits: impl Fn() -> bool,
    own: EndReport,
    (mut far, at_once): (Option<EndReport>, bool),
    pick: impl Fn(E) -> Option<Heard>,
) -> Option<EndReport> {
    let Some((lines, clock)) = lines else {
        control.close();
        return None;
    };
    control.send(Message::Report(Box::new(own)));
    let mut deadline = Instant::now() + REPORT_MAX;
    while far.is_none() && (!lines.is_dark() || waits()) {
        let heard = mailbox.recv_timeout(TICK).map(&pick);
        if let Ok(Some(Heard::Control(event))) = &heard {
            event.taken(control);
        }
        match heard {
            Ok(Some(Heard::Control(ControlEvent::Message(Message::Report(report))))) => far = Some(*report),
            Ok(Some(Heard::Control(ControlEvent::Lost { epoch, why, how }))) => {
                if let Lost::Over(_) = lines.control_lost((epoch, why, how), control, clock.now()) {
                    break;
                }
            }
            Ok(Some(Heard::Join(event))) => {
                // A stream is of no use any more.
                drop(lines.handle(event, control, clock.now()));
            }
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if lines.beat(clock.now()).is_err() {
            break;
        }
        match lines.is_dark() {
            true => deadline = Instant::now() + REPORT_MAX,
            false if Instant::now() >= deadline => break,
            false => {}
        }
    }
    match at_once && far.is_some() && !lines.is_dark() {
        true => control.close_at_once(),
        false => control.close(),
    }
    far
}

/// What a report says of where a sink's files came to lie.
pub(crate) fn places_in_words(choice: LayoutChoice, placed: &Placed) -> Vec<(String, String)> {
    let several = placed.targets > 1;
    let targets = several.then(|| ("sink targets".to_owned(), format!("{} targets", placed.targets)));
    let layout = in_words(choice, placed).map(|text| ("sink layout".to_owned(), text));
    targets.into_iter().chain(layout).collect()
}

/// The path of an entry below the destination root.
pub(crate) fn join(dir: &[u8], name: &Name) -> Vec<u8> {
    let mut path = dir.to_vec();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name.as_bytes());
    path
}

/// What hangs at either end: this end's operations are told to the other, the other's are kept for the status line.
pub(crate) struct Notices {
    /// `source` or `sink`: this end.
    end: &'static str,
    sent: Option<Instant>,
    heard: Option<(Instant, Box<str>)>,
}

impl Notices {
    pub(crate) fn new(end: &'static str) -> Notices {
        Notices { end, sent: None, heard: None }
    }

    /// The other end says something.
    pub(crate) fn hear(&mut self, text: Box<str>) {
        self.heard = Some((Instant::now(), text));
    }

    /// Tells the other end what hangs here, at most every [`NOTICE_EVERY`], unless this is the end that people watch.
    pub(crate) fn tell(
        &mut self,
        watch: &Watch,
        control: &ControlHandle,
        dark: bool,
        stuck: impl FnOnce() -> Vec<Stuck>,
    ) {
        // What waits in the dark would be no news any more.
        if dark || watch.observer.is_some() || self.sent.is_some_and(|sent| sent.elapsed() < NOTICE_EVERY) {
            return;
        }
        self.sent = Some(Instant::now());
        if let Some(text) = self.own(&stuck()) {
            control.send(Message::Notice { text: text.into() });
        }
    }

    /// What to show: this end's trouble, else the other's if it was heard of lately.
    pub(crate) fn waiting(&self, stuck: &[Stuck]) -> Option<String> {
        let lately = self.heard.as_ref().filter(|(when, _)| when.elapsed() < NOTICE_HOLDS);
        self.own(stuck).or_else(|| lately.map(|(_, text)| text.to_string()))
    }

    fn own(&self, stuck: &[Stuck]) -> Option<String> {
        let first = stuck.first()?;
        let others = match stuck.len() {
            1 => String::new(),
            n => format!(" and {} more", n - 1),
        };
        let (seconds, what, name, end) = (first.since.as_secs(), first.what, &first.name, self.end);
        Some(format!("waiting {seconds} s for the {end}'s {what} of {name}{others}"))
    }
}

/// Tells the observer how far it is, at most every [`TICK`].
pub(crate) struct Teller {
    last: Option<Instant>,
}

impl Teller {
    pub(crate) fn new() -> Teller {
        Teller { last: None }
    }
    pub(crate) fn tell(&mut self, watch: &Watch, progress: impl FnOnce() -> Progress) {
        if watch.observer.is_some() && self.last.is_none_or(|last| last.elapsed() >= TICK) {
            self.last = Some(Instant::now());
            let progress = Progress { paused: watch.control.paused(), ..progress() };
            watch.control.note_progress(&progress);
            watch.tell(Event::Progress(progress));
        }
    }
}
