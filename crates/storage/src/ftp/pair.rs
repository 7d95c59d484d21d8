//! Two FTP servers that move files between them, or one server with itself: data goes from the one to the
//! other, and this host steers both and hears what they say.
//!
//! In: places of both, entries of the walk. Out: a walk, and a [`DelegatedPair`] that works over a few pairs
//! of sessions.
//! Invariants: a file is stored under a name of its own and gets its name when all that can be compared was;
//! so what is copied onto itself is never cut off, under however many names of hosts it is reached. Of a
//! destination that is the source, or lies in it, nothing is made where that can be seen.
//! Left out: who drives it; TLS, under which two servers would need a key of each other's.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use haul_core::change::Change;
use haul_core::entry::{Meta, Name};
use haul_core::ids::FileId;
use haul_core::reliability::Step;
use haul_core::wire::{Failure, FailureKind};
use haul_ftp::pair::End;
use haul_ftp::steer::{self, Made};
use haul_ftp::{Asked, Error, Kind, Moment, Server, Session, Settings, server};

use super::begun::Begun;
use super::line::{Attempts, Line, Retry, reach};
use super::names::{Names, Shared as SharedNames};
use super::session::{Next, Sites, Tries};
use super::times::SetsTimes;
use super::{
    DROPS, NO_ROOM, Unfound, drops_bytes, find, is_dir, path_at, protocol_of, server_of, shown, site_of,
    time_of, unless, unreached, walk,
};
use crate::Post;
use crate::place::Place;
use crate::source::failure::own_failure;
use crate::source::{WallClock, wall_clock};
use crate::store::delegated::{
    Delegated, DelegatedEntry, DelegatedJob, DelegatedPair, DelegatedSettings, Marker, Standing,
};
use crate::store::dir_stands;
use fold::Claims;
use haul_base::stop::{LOOK, Stop};
use haul_ftp::Protocol;
use records::Records;
use rustix::io::Errno;
use scout::Scout;
use worker::Worker;

pub(in crate::ftp) mod fold;
pub(super) mod records;
mod scout;
mod worker;

/// Pairs of sessions at a time.
const PAIRS_MAX: usize = 4;
/// Files that one of them takes together, and how long each of these may be.
const BATCH_MAX: usize = 32;
const SMALL_LEN: u64 = 1 << 20;
/// How long the end of sessions is waited for that have nothing to do any more.
const ENDS_WITHIN: Duration = Duration::from_secs(1);
/// What is kept of a mode: nobody gets the rights of whoever owns the copy.
const MODE_MASK: u32 = 0o1777;
/// Data connections of one file, unless somebody says how many.
const CONNECTIONS: u32 = 4;

/// Whether these servers can be asked to move data between them.
pub(crate) fn is_pair(sources: &[Place], destination: &Place) -> bool {
    let plain = |place: &Place| matches!(protocol_of(place), Some(Protocol::Ftp | Protocol::Gsiftp));
    !sources.is_empty() && sources.iter().all(plain) && plain(destination)
}

/// Such a name fails, in each run.
fn dropped(server: &Server, kind: FailureKind, path: &[u8]) -> Failure {
    // EILSEQ.
    let errno = if kind == FailureKind::Create { 84 } else { 95 };
    Failure { errno, ..super::said(server, kind, path, DROPS) }
}

/// What all pairs of sessions share.
struct Shared {
    ends: [(Server, Settings); 2],
    /// What becomes of what fails at each.
    retries: [Arc<Retry>; 2],
    settings: DelegatedSettings,
    names: SharedNames,
    /// Who has a session with the source.
    sites: Arc<Sites>,
    post: Post<Marker>,
    clock: WallClock,
    /// The same server at both ends, as far as its address tells.
    same_server: bool,
    /// Which of the two drops bytes of names that are not ASCII.
    drops: [bool; 2],
    records: Option<Records>,
    /// Files that were begun in place, and are not proved.
    begun: Begun,
    /// In the names of what is not finished.
    tag: u32,
    cancelled: Arc<AtomicBool>,
    /// Whoever wants an end of all, and not of the pair alone.
    outer: Stop,
    scout: Scout,
    queue: Mutex<Queue>,
    ready: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<DelegatedEntry>,
    ends: bool,
    /// Workers that have sessions, or may get them.
    alive: usize,
    /// Workers that did not end.
    running: usize,
    known: Known,
}

/// What was learnt of the two.
#[derive(Default)]
struct Known {
    /// Which of them listens, as it was done.
    way: Option<End>,
    /// Why it cannot be the sender, or the receiver.
    refused: [Option<String>; 2],
    no_way: Option<String>,
    /// MODE E was given up.
    stream: bool,
    /// As it was done: MODE E, nodes, the sum.
    extended: Option<bool>,
    stripes: usize,
    sum: Option<Option<&'static str>>,
    pairs: u16,
    /// The destination sets times, so that they prove something.
    times: SetsTimes,
    /// Modes were refused; nobody asks again.
    no_modes: bool,
    /// Said once.
    told_address: bool,
    temps: u64,
    claims: Claims,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, end: End) -> &(Server, Settings) {
        &self.ends[end as usize]
    }

    fn is_cancelled(&self) -> bool {
        self.end(End::To).1.stop.is_asked()
    }

    /// What went wrong at one of the two, with a file.
    fn failure(&self, end: End, kind: FailureKind, path: &[u8], error: &Error) -> Failure {
        let kind = if error.is_network() { FailureKind::Network } else { kind };
        if end == End::To && error.is_no_room() {
            let said = self.say(end, FailureKind::Write, path, &format!("{error}{NO_ROOM}"));
            return Failure { errno: Errno::NOSPC.raw_os_error(), ..said };
        }
        Failure { errno: error.errno(), ..self.say(end, kind, path, &error.to_string()) }
    }

    /// The same in our words.
    fn say(&self, end: End, kind: FailureKind, path: &[u8], why: &str) -> Failure {
        super::said(&self.end(end).0, kind, path, why)
    }

    /// The next files for one of the pairs: one, or several small ones; none, if `leaves`, which is asked
    /// while nothing waits, says so. `None`: no more will come.
    fn next(&self, mut leaves: impl FnMut() -> bool) -> Option<Vec<DelegatedEntry>> {
        let mut queue = self.lock();
        loop {
            if queue.ends {
                return None;
            }
            let share = queue.waiting.len().div_ceil(queue.alive.max(1)).clamp(1, BATCH_MAX);
            let small = queue.waiting.iter().take(share).take_while(|entry| entry.size <= SMALL_LEN).count();
            if !queue.waiting.is_empty() {
                return Some(queue.waiting.drain(..small.max(1)).collect());
            }
            if leaves() {
                return Some(Vec::new());
            }
            queue = self.ready.wait_timeout(queue, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

const BEGUN: &str = "an interrupted run began to write it in place, and it is half new: the same command without `no_clobber` \
                     completes it";

/// What stands at a file's name, and what the options say of that.
fn standing(shared: &Shared, there: &Asked, entry: &DelegatedEntry) -> Result<Standing, Failure> {
    let (settings, size, meta) = (&shared.settings, entry.size, &entry.meta);
    let facts = match there {
        Asked::Is(facts) => facts,
        Asked::Not(_) => return Ok(Standing::New),
        Asked::Untold(text) => {
            let text = format!("what stands at its name is not known: the server says {text}");
            return Err(Failure { kind: FailureKind::Create, errno: 0, text: text.into() });
        }
    };
    if is_dir(facts) {
        return Err(dir_stands());
    }
    let same = |ours: u64, theirs: Option<u64>| theirs == Some(ours);
    let is_file = facts.kind == Some(Kind::File) && !facts.is_symlink();
    let (same_size, time) = (same(size, facts.size), facts.modify.map(|at| at.secs));
    let same_time = time == Some(meta.mtime.secs);
    let differs = || {
        let change = match is_file {
            true => Change::NONE.with(Change::SIZE, !same_size).with(Change::TIME, !same_time),
            false => Change::NEW,
        };
        Ok(Standing::Differs(change))
    };
    let is_begun = is_file && shared.begun.is_unproved(&shown(&shared.end(End::To).0, &entry.to));
    if is_begun && !haul_mutant::removed("ftp-pairs-heed-what-was-begun-in-place") {
        // Half of it is ours, whatever its size and its time: that is nothing to leave alone.
        return match settings.no_clobber {
            true => Err(Failure { kind: FailureKind::Create, errno: 17, text: BEGUN.into() }),
            false => differs(),
        };
    }
    if is_file && same_size && same_time && !settings.force {
        return Ok(Standing::Unchanged);
    }
    // As everywhere: what has the same age is not newer.
    let is_newer = match haul_mutant::removed("ftp-pairs-update-what-is-no-newer") {
        true => time.is_some_and(|time| time >= meta.mtime.secs),
        false => time.is_some() && time_of(facts) > meta.mtime,
    };
    if settings.no_clobber || settings.update && is_newer {
        return Ok(Standing::Skipped);
    }
    differs()
}

/// Finds the sources, looks at the destination and makes it, and begins to walk.
///
/// # Errors
/// One of the two cannot be used, or they are one.
pub(crate) fn open(job: DelegatedJob<'_>) -> Result<Delegated, Failure> {
    let DelegatedJob { sources, destination, settings, post } = job;
    let Some(first) = sources.places.first() else {
        return Err(super::usage("no source given".into()));
    };
    let (from, at_from) = site_of(first, &sources)?;
    let sites = Arc::new(Sites::new([(from.clone(), at_from.clone())], sources.retry.clone()));
    let retry = |at: (&Server, FailureKind), stop: &Stop| Retry::new(at, sources.retry.clone(), stop.clone());
    // Who is not found at the source needs no destination, however long that is waited for.
    let (unfound, outer) = (Arc::new(AtomicBool::new(false)), sources.stop.clone());
    let flag = unfound.clone();
    let stop = Stop::when(move || flag.load(Ordering::Relaxed) || outer.is_asked());
    let target = server_of(destination, (sources.patience, sources.data_channel), (sources.ssh, &stop));
    let target = target.map(|(to, at_to)| (retry((&to, FailureKind::Write), &stop), to, at_to));
    // Both are reached at the same time: each login takes several round trips.
    let (located, reached) = thread::scope(|both| {
        let path = destination.path();
        let scout = target.as_ref().ok();
        let scout = scout.map(|(first, to, at_to)| both.spawn(move || reach(to, at_to, (first, path))));
        let located = locate(&sites, &sources);
        unfound.store(located.is_err(), Ordering::Relaxed);
        (located, scout.map(|scout| scout.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))))
    });
    let (session, found) = located?;
    let at_from = Settings { at: session.address(), ..at_from };
    let (first, to, at_to) = target?;
    let mut scout = match reached {
        Some(reached) => reached.map_err(|error| unreached(&to, &error))?,
        None => return Err(super::usage("no destination given".into())),
    };
    let at_to = Settings { at: scout.address(), ..at_to };
    let same_server = at_to.at.is_some() && at_to.at == at_from.at;
    let typed = server::path_of(destination.path()).unwrap_or_default();
    let path = path_at(&mut scout, &to, destination, &mut None)?;
    let failed = |path: &[u8], error: &Error| super::failed(&to, FailureKind::Create, path, error);
    let stands = asked(&first, &path, || scout.facts(&path)).map_err(|error| failed(&path, &error))?;
    // As in a file system: one file, and a destination that is no directory and does not end as one does.
    let last = typed.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let is_there = matches!(&stands, Asked::Is(facts) if is_dir(facts) || facts.is_symlink() && facts.kind != Some(Kind::File));
    let single = match &found[..] {
        [one] if one.name.is_some() => !is_dir(&one.facts),
        _ => false,
    };
    let (root, rename) = match single && !is_there && !matches!(last, b"" | b"." | b"..") {
        true => {
            let name = Name::new(last).map_err(|why| {
                let text = format!("destination {}: {why}", shown(&to, &path));
                Failure { kind: FailureKind::Create, errno: 0, text: text.into() }
            })?;
            (path[..path.len() - last.len()].to_vec(), Some(name))
        }
        false => (path, None),
    };
    let root = tidy(&root);
    if let (Asked::Is(_), false, None) = (&stands, is_there, &rename) {
        let text = format!("destination {}: something else than a directory stands there", shown(&to, &root));
        return Err(Failure { kind: FailureKind::Create, errno: 20, text: text.into() });
    }
    let cancelled = Arc::new(AtomicBool::new(false));
    let flag = cancelled.clone();
    let (outer, own) = (sources.stop.clone(), sources.stop.clone());
    let stop = Stop::when(move || flag.load(Ordering::Relaxed) || own.is_asked());
    let retries = [retry((&from, FailureKind::Read), &stop), retry((&to, FailureKind::Write), &stop)];
    let at_from = Settings { stop: stop.clone(), ..at_from };
    let at_to = Settings { stop, ..at_to };
    // What is there of the way to it, and what is not.
    let (mut missing, mut above) = (Vec::new(), root.clone());
    while above.len() > 1 {
        match asked(&first, &above, || scout.facts(&above)).map_err(|error| failed(&above, &error))? {
            Asked::Is(_) => break,
            _ => missing.push(above.clone()),
        }
        let end = above.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        above.truncate(end.max(1));
    }
    let mut session = session;
    let drops = [drops_bytes(&from, &session), drops_bytes(&to, &scout)];
    if let Some(found) = found.iter().find(|found| drops[0] && !found.path.is_ascii()) {
        return Err(super::said(&from, FailureKind::Walk, &found.path, DROPS));
    }
    let typed = [&root[..], rename.as_ref().map_or(&b""[..], Name::as_bytes)].concat();
    if drops[1] && !typed.is_ascii() {
        return Err(super::said(&to, FailureKind::Create, &typed, DROPS));
    }
    if same_server
        || looks_alike((&mut session, &mut scout), &above)?
            && shares(&mut session, &mut scout, &above, settings.look)?
    {
        refuse_itself(&found, &root, rename.as_ref(), &from)?;
    }
    if !settings.look {
        for dir in missing.iter().rev() {
            asked(&first, dir, || steer::make_dir(&mut scout, dir)).map_err(|error| failed(dir, &error))?;
        }
    }
    let mut nonce = [0; 16];
    let _ = rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty());
    let names = Arc::new(Names::new(1, nonce, (None, Duration::ZERO)));
    let walk = walk::start(walk::Job {
        sites: sites.clone(),
        session,
        site: 0,
        found,
        names: names.clone(),
        object_size: 4 << 20,
        clock: wall_clock(),
        no_links: settings.no_links,
    });
    let unable = |what: &str, error: std::io::Error| {
        let text = format!("starting {what}: {}", haul_base::errno::text(error));
        Failure { kind: FailureKind::Local, errno: 0, text: text.into() }
    };
    let walk = walk.map_err(|error| unable("the walk", error))?;
    let records = settings.state.clone().map(Records);
    let tag = u32::from_le_bytes([nonce[0], nonce[1], nonce[2], nonce[3]]);
    let begun = Begun::open(settings.begun.as_deref(), &to.url(), tag);
    // It is to end well whoever ends the pair.
    scout.heed(&outer);
    let scout = Scout::new(Line::with(to.clone(), at_to.clone(), &retries[1], scout));
    let shared = Arc::new(Shared {
        ends: [(from, at_from), (to.clone(), at_to.clone())],
        retries,
        settings,
        names,
        sites,
        post,
        clock: wall_clock(),
        same_server,
        drops,
        records,
        begun,
        tag,
        cancelled,
        outer,
        scout,
        queue: Mutex::new(Queue { alive: PAIRS_MAX, running: PAIRS_MAX, ..Queue::default() }),
        ready: Condvar::new(),
    });
    for retry in &shared.retries {
        let post = shared.post.clone();
        retry.tell_when_gone(move |failure| post(Marker::Gone(failure)));
    }
    for _ in 0..PAIRS_MAX {
        let shared = shared.clone();
        let spawned =
            thread::Builder::new().name("haul-pair".into()).spawn(move || Worker::new(shared).run());
        spawned.map_err(|error| unable("a pair", error))?;
    }
    let pair = Box::new(FtpPair { shared });
    Ok(Delegated { walk, to: root, rename, pair })
}

/// Finds the sources, as long as the policy says so.
fn locate(
    sites: &Sites,
    sources: &crate::place::Sources<'_>,
) -> Result<(Session, Vec<super::Found>), Failure> {
    let mut tries = Tries::new(Step::Start, sites, 0);
    loop {
        let (failure, why, path) = match find(sites, 0, sources, &[]) {
            Ok(found) => return Ok(found),
            Err(Unfound::Misused(failure)) => return Err(failure),
            Err(Unfound::Failed(failure, why, path)) => (failure, why, path),
        };
        match tries.failed(sites, why, &path, 0) {
            Next::After(pause) if unless(&sources.stop, pause) => {}
            _ => return Err(failure),
        }
    }
}

/// A path without doubled slashes, dots, and a slash at its end.
fn tidy(path: &[u8]) -> Vec<u8> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    let tidy: Vec<u8> = parts.flat_map(|part| [b"/", part].concat()).collect();
    if tidy.is_empty() { b"/".to_vec() } else { tidy }
}

/// Asks again where the server says "later" of this one thing, as long as the policy says so.
fn asked<T>(retry: &Retry, path: &[u8], mut ask: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    let mut tries = Attempts::new(Step::List);
    loop {
        let error = match ask() {
            Err(error) if error.is_for_later() => error,
            told => return told,
        };
        let pause = retry.failed(&mut tries, &error, path, 0);
        if !pause.is_some_and(|pause| retry.wait(pause)) {
            return Err(error);
        }
    }
}

/// Both tell the same of a directory: it may be one, and the two servers see one file system.
fn looks_alike((from, to): (&mut Session, &mut Session), dir: &[u8]) -> Result<bool, Failure> {
    let of = |session: &mut Session| match session.facts(dir) {
        Ok(Asked::Is(facts)) => facts.unique.map(|unique| (unique, facts.modify)),
        _ => None,
    };
    let (one, other) = (of(from), of(to));
    Ok(one.is_some() && one == other)
}

/// What is made in a directory by the one is seen by the other.
fn shares(from: &mut Session, to: &mut Session, dir: &[u8], look: bool) -> Result<bool, Failure> {
    if look {
        return Ok(true);
    }
    let mut tag = [0; 8];
    let _ = rustix::rand::getrandom(&mut tag, rustix::rand::GetRandomFlags::empty());
    let name = format!("/.haul~{:016x}", u64::from_le_bytes(tag));
    let probe = [dir.strip_suffix(b"/").unwrap_or(dir), name.as_bytes()].concat();
    if steer::make_dir(to, &probe).is_err() {
        // Nothing is made there, so that nothing is changed either.
        return Ok(false);
    }
    let seen = matches!(from.facts(&probe), Ok(Asked::Is(_)));
    let _ = steer::remove_dir(to, &probe);
    Ok(seen)
}

/// A destination that is a source, or lies in one, where both are of one file system under the same paths.
fn refuse_itself(
    found: &[super::Found],
    root: &[u8],
    rename: Option<&Name>,
    server: &Server,
) -> Result<(), Failure> {
    let refused = |text: String| Err(Failure { kind: FailureKind::Usage, errno: 0, text: text.into() });
    for one in found {
        let source = tidy(&one.path);
        let name = rename.or(one.name.as_ref());
        let target = match name {
            Some(name) => tidy(&[root, b"/", name.as_bytes()].concat()),
            None => root.to_vec(),
        };
        let shown = shown(server, &source);
        if target == source {
            return refused(format!(
                "source {shown} is what it would be copied to: it is one file, or one directory, of one server"
            ));
        }
        let inside =
            |path: &[u8]| path == source || path.starts_with(&[&source[..], b"/"].concat()) || source == b"/";
        if is_dir(&one.facts) && inside(&target) {
            return refused(format!(
                "the destination lies inside the source {shown}: the copy would copy itself"
            ));
        }
    }
    Ok(())
}

struct FtpPair {
    shared: Arc<Shared>,
}

impl DelegatedPair for FtpPair {
    fn origin(&self, id: FileId) -> Vec<u8> {
        self.shared.names.look(id).map(|told| told.path).unwrap_or_default()
    }

    fn make_dir(&mut self, to: &[u8]) -> Result<bool, Failure> {
        if self.shared.drops[1] && !to.is_ascii() {
            return Err(dropped(&self.shared.ends[1].0, FailureKind::Create, to));
        }
        let made = self.shared.scout.with(|scout| {
            scout.set_about(to);
            scout.again(|session| steer::make_dir(session, to))
        });
        let made = made.map_err(|error| self.shared.failure(End::To, FailureKind::Create, to, &error))?;
        Ok(made == Made::New)
    }

    fn finish_dirs(&mut self, all: &[(Vec<u8>, Meta)]) -> (u64, u64) {
        let moment = |meta: &Meta| Moment { secs: meta.mtime.secs, nanos: 0 };
        let times: Vec<(&[u8], Moment)> = all.iter().map(|(path, meta)| (&path[..], moment(meta))).collect();
        let modes: Vec<(&[u8], u32)> =
            all.iter().map(|(path, meta)| (&path[..], meta.mode & MODE_MASK)).collect();
        let (times, modes) = self.shared.scout.with(|scout| {
            let times = scout.again(|session| steer::set_times(session, &times));
            (times, scout.again(|session| steer::set_modes(session, &modes)))
        });
        let lost = |set: Result<Vec<bool>, Error>| match set {
            Ok(set) => set.iter().filter(|set| !**set).count() as u64,
            Err(_) => all.len() as u64,
        };
        (lost(times), lost(modes))
    }

    fn look(&mut self, all: &[DelegatedEntry]) -> Vec<Result<Standing, Failure>> {
        let paths: Vec<&[u8]> = all.iter().map(|entry| &entry.to[..]).collect();
        match self.shared.scout.with(|scout| scout.facts_of(&paths)) {
            Ok(told) => {
                let of = |(entry, asked): (&DelegatedEntry, Asked)| standing(&self.shared, &asked, entry);
                all.iter().zip(told).map(of).collect()
            }
            Err(error) => {
                let failure = |entry: &DelegatedEntry| {
                    Err(self.shared.failure(End::To, FailureKind::Create, &entry.to, &error))
                };
                all.iter().map(failure).collect()
            }
        }
    }

    fn is_ready(&mut self) -> bool {
        self.shared.scout.is_here()
    }

    fn submit(&mut self, entry: DelegatedEntry) {
        let ends = [(&entry.from, FailureKind::Read), (&entry.to, FailureKind::Create)];
        for ((path, kind), (server, drops)) in
            ends.into_iter().zip(self.shared.ends.iter().map(|(server, _)| server).zip(self.shared.drops))
        {
            if drops && !path.is_ascii() {
                let result = Err(dropped(server, kind, path));
                return (self.shared.post)(Marker::Ended { id: entry.id, result });
            }
        }
        self.shared.lock().waiting.push_back(entry);
        self.shared.ready.notify_one();
    }

    fn forget(&mut self, id: FileId) {
        self.shared.names.forget(id);
    }

    fn cancel(&mut self) {
        self.shared.cancelled.store(true, Ordering::Relaxed);
        let waiting = {
            let mut queue = self.shared.lock();
            queue.ends = true;
            std::mem::take(&mut queue.waiting)
        };
        self.shared.ready.notify_all();
        for entry in waiting {
            let failure = own_failure(FailureKind::Local, "copy", &entry.to, "it was not begun");
            (self.shared.post)(Marker::Ended { id: entry.id, result: Err(failure) });
        }
    }

    fn resumes(&self) -> bool {
        let is_extended = self.shared.lock().known.extended == Some(true);
        // Without a sum nothing shows that what an earlier run moved is right.
        let counts = self.shared.settings.trust || self.shared.lock().known.sum.flatten().is_some();
        is_extended && counts && self.shared.records.is_some()
    }

    fn report(&self) -> Vec<(String, String)> {
        let queue = self.shared.lock();
        let known = &queue.known;
        let mode = match (known.extended, known.way) {
            (Some(true), _) if known.stripes > 1 => {
                format!("MODE E, {} nodes of the destination", known.stripes)
            }
            (Some(true), _) => "MODE E".to_owned(),
            (Some(false), Some(End::From)) => "stream mode, the source listens".into(),
            (Some(false), _) => "stream mode, the destination listens".into(),
            (None, _) => return Vec::new(),
        };
        let sum = match known.sum.flatten() {
            Some(sum) => format!("{sum} (both servers know it)"),
            None => "none (none is told by both)".into(),
        };
        let protection = |end: End| {
            let (server, settings) = self.shared.end(end);
            super::protection_of(server, settings).to_owned()
        };
        let ends = [End::From, End::To].map(|end| self.shared.end(end));
        let mut open: Vec<String> =
            ends.iter().filter_map(|(server, settings)| super::unprotected(server, settings)).collect();
        // It may be one server at both ends.
        open.dedup();
        let open = open.into_iter().map(|words| ("NOT protected".into(), words));
        let rows = vec![
            ("protection of the source".into(), protection(End::From)),
            ("protection of the destination".into(), protection(End::To)),
            ("third party".into(), mode),
            ("sum of both servers".into(), sum),
            ("pairs of sessions".into(), known.pairs.to_string()),
        ];
        rows.into_iter().chain(self.shared.names.rows()).chain(open).collect()
    }
}

impl Drop for FtpPair {
    /// Sessions are ended, as far as that is over soon: who has nothing to move any more ends at once.
    fn drop(&mut self) {
        self.cancel();
        let until = Instant::now() + ENDS_WITHIN;
        let mut queue = self.shared.lock();
        while queue.running > 0 && Instant::now() < until && !self.shared.outer.is_asked() {
            let woken = self.shared.ready.wait_timeout(queue, LOOK);
            queue = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(queue);
        self.shared.scout.end(&self.shared.outer);
    }
}
