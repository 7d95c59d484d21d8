//! Walks the sources at a server: each directory is listed once, what is in it is announced, then the
//! directories in it are walked.
//!
//! In: the sources as they were found. Out: [`WalkItem`]s, as of the walk of a file system.
//! Invariants: a listing that did not come whole fails its directory; a name that is none here, or that a
//! terminal would obey, fails alone and is named; a directory that is one of those above it is not entered.

use std::cell::Cell;
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use haul_core::entry::{DEPTH_MAX, EntryKind, Extras, LINK_LEN_MAX, Name, Version};
use haul_core::ids::{DirId, FileId, Generation};
use haul_core::reliability::Step;
use haul_core::wire::{Announced, Failure, FailureKind, Totals};
use haul_ftp::{Asked, Error, Facts, Kind, Listed, Session};

use super::line::Each;
use super::lines::{Again, Lines};
use super::names::{Above, Base, Entry, Shared, is_part, is_young};
use super::seats::Side;
use super::session::{Sites, Tries};
use super::{DROPS, Found, failed, is_dir, meta_of, says_gone, time_of};
use crate::source::WallClock;
use crate::source::failure::own_failure;
use crate::walk::out::Out;
use crate::walk::{BATCHES_MAX, CountsAs, NotKept, NotKeptWhat, Walk, WalkItem};
use haul_base::stop::LOOK;

const LISTS_AND_SAYS: &str = "the server lists it, and says of it:";
const LINKS_UNLISTED: &str = "the server counts more names in some directories than it lists, as Globus does where symbolic links lead \
                              nowhere: what it does not list is left out with the links";
const LINKS_UNTOLD: &str = "the server knows no LIST: symbolic links could not be told apart from files and \
                            directories, or are left out by it";

mod ends;

/// What a walk needs.
pub(super) struct Job {
    pub(super) sites: Arc<Sites>,
    /// The server that the sources were found at, and the session with it.
    pub(super) site: usize,
    pub(super) session: Session,
    pub(super) found: Vec<Found>,
    pub(super) names: Shared,
    pub(super) object_size: u32,
    pub(super) clock: WallClock,
    /// Symbolic links are left out.
    pub(super) no_links: bool,
}

/// What a server calls an entry, if it tells, and which server that is.
type Unique = Option<(usize, Box<[u8]>)>;

/// A directory whose entries were announced.
struct Level {
    id: DirId,
    above: Above,
    unique: Unique,
    dirs: std::vec::IntoIter<Seen>,
}

/// An entry as a server tells of it.
struct Seen {
    name: Name,
    facts: Facts,
    site: usize,
}

struct Walker {
    lines: Lines,
    /// The server that is asked: another one only where that was left.
    site: usize,
    names: Shared,
    object_size: u32,
    clock: WallClock,
    next_id: u64,
    totals: Totals,
    out: Out,
    /// Symbolic links are left out.
    no_links: bool,
    /// It was said that nothing tells of symbolic links, and that some are not listed.
    told_of_links: bool,
    told_of_unlisted: bool,
    /// The server is gone, which was not told yet.
    gone: Option<Failure>,
    /// The server drops bytes of names, so that some of what it lists cannot be asked for.
    drops: bool,
}

/// Starts to walk.
///
/// # Errors
/// The system gives no thread.
pub(super) fn start(job: Job) -> io::Result<Walk> {
    let (sender, items) = bounded(BATCHES_MAX);
    let cancelled = Arc::new(AtomicBool::new(false));
    let out = Out { sender, batch: Vec::new(), bytes: 0, cancelled: cancelled.clone() };
    let Job { sites, site, session, found, names, object_size, clock, no_links } = job;
    let ends = cancelled.clone();
    let lines = Lines::new(&sites, Side::Walk, move || !ends.load(Ordering::Relaxed));
    let lines = lines.with(site, session);
    let drops = lines.drops_bytes(site) && !lines.sites.has_replicas();
    let mut walker = Walker {
        drops,
        lines,
        site,
        names,
        object_size,
        clock,
        no_links,
        told_of_unlisted: false,
        next_id: 1,
        totals: Totals::default(),
        out,
        told_of_links: false,
        gone: None,
    };
    // A panic closes the channel without an end, which is told as a walk that broke.
    thread::Builder::new().name("haul-walk".into()).spawn(move || {
        for found in found {
            walker.root(found);
        }
        if !walker.out.cancelled() {
            walker.push(WalkItem::End(walker.totals));
        }
        walker.lines.leave(walker.site);
        walker.flush();
    })?;
    Ok(Walk::over(items, cancelled))
}

/// What a line of a listing may be that has no form: a server that says names as they are says one that holds
/// a line's end in several lines, of which the first may look like another name.
fn in_pieces(why: &str) -> &'static str {
    match why.contains("form that is not understood") {
        true => {
            "; it may be a piece of a name that holds a line's end, of which another piece may be listed as a name that is not \
             there: rename that at the server"
        }
        false => "",
    }
}

impl Walker {
    fn push(&mut self, item: WalkItem) {
        if !self.out.add(item) {
            self.flush();
        }
    }

    /// Sends what there is. As long as there is no room for it the walk needs no session: those that read
    /// may, and make room.
    fn flush(&mut self) {
        while !self.out.send() {
            if !haul_mutant::removed("ftp-full-walks-leave-their-session") {
                self.lines.hand_over();
            }
        }
    }

    fn root(&mut self, found: Found) {
        let Found { path, replicas, name, facts, site } = found;
        let unique = facts.unique.clone().map(|unique| (site, unique));
        let mut whole = vec![Vec::new()];
        whole.extend(replicas);
        let Some(name) = name else {
            let base = self.names.add_base(Base { above: path, whole, is_named: false });
            return self.descend(DirId::ROOT, Above::Base(base), unique);
        };
        let end = path.len() - name.as_bytes().len();
        let above = match &path[..end] {
            b"" => b".".to_vec(),
            above => above.to_vec(),
        };
        let base = self.names.add_base(Base { above, whole, is_named: true });
        if let Some(id) = self.announce(DirId::ROOT, Above::Base(base), Seen { name, facts, site }) {
            self.descend(id, Above::Dir(id), unique);
        }
    }

    /// Walks a directory and everything below it.
    fn descend(&mut self, id: DirId, above: Above, unique: Unique) {
        let mut way: Vec<Level> = Vec::new();
        let dirs = self.list(id, above, &unique);
        way.push(Level { id, above, unique, dirs: dirs.into_iter() });
        while let Some(level) = way.last_mut() {
            if self.out.cancelled() {
                return;
            }
            // Behind what failed by that.
            if let Some(failure) = self.gone.take() {
                self.push(WalkItem::Gone(failure));
                self.flush();
            }
            let Some(seen) = level.dirs.next() else {
                let left = way.pop().map(|level| level.id).filter(|id| *id != DirId::ROOT);
                if let Some(id) = left {
                    self.push(WalkItem::DirEnd(id));
                }
                continue;
            };
            let (parent, above) = (level.id, level.above);
            let unique = seen.facts.unique.clone().map(|unique| (seen.site, unique));
            let loops = |level: &Level| unique.is_some() && level.unique == unique;
            let why = match () {
                () if way.iter().any(loops) => Some("it is one of the directories above it".to_owned()),
                () if way.len() >= DEPTH_MAX => {
                    Some(format!("deeper than {DEPTH_MAX} directories: copy it as a source of its own"))
                }
                () => None,
            };
            if let Some(why) = why {
                let path = self.names.path(above, Some(&seen.name));
                self.fail(path, FailureKind::Walk, &why, CountsAs::Subtree);
                continue;
            }
            if let Some(id) = self.announce(parent, above, seen) {
                let dirs = self.list(id, Above::Dir(id), &unique);
                way.push(Level { id, above: Above::Dir(id), unique, dirs: dirs.into_iter() });
            }
            if self.out.sender.is_empty() {
                self.flush();
            }
        }
    }

    /// Announces what is in a directory but for the directories in it, which are returned. `unique`: what the
    /// server calls it, if it tells.
    fn list(&mut self, id: DirId, above: Above, unique: &Unique) -> Vec<Seen> {
        let names = self.names.clone();
        let path_at = |site| names.server_path(site, above, None);
        let listed = self.again(path_at, |session, path| Ok((session.list(path)?, session.misses_links())));
        let site = self.site;
        let path = path_at(site);
        let listed = match listed {
            Ok((listed, misses_links)) => {
                if misses_links && !self.told_of_links {
                    self.told_of_links = true;
                    self.push(WalkItem::Note(LINKS_UNTOLD));
                }
                listed
            }
            Err(error) => {
                let failure = self.failure(&path, &error);
                let path = self.shown(above);
                self.push(WalkItem::Failed { path, failure, counts_as: CountsAs::Subtree });
                return Vec::new();
            }
        };
        let listed = self.without_lost_ends(above, listed);
        let (mut dirs, mut inexact) = (Vec::new(), Vec::new());
        for line in listed {
            let (name, facts, exact) = match line {
                Listed::Entry { name, facts, exact } => (name, facts, exact),
                // Some servers leave out of a path what they cannot read, and show what lies above.
                Listed::Itself(facts) => match (facts.unique, unique) {
                    (Some(shows), Some((of, asked))) if *of == site && shows != *asked => {
                        let why = "the server shows another directory under that name";
                        self.fail(self.shown(above), FailureKind::Walk, why, CountsAs::Subtree);
                        return Vec::new();
                    }
                    _ => continue,
                },
                // It passes, as any connection that is lost: another run may hear it to its end.
                Listed::Cut(_) => {
                    let error = Error::Lost {
                        doing: "reading a directory",
                        cause: io::ErrorKind::UnexpectedEof.into(),
                    };
                    let (path, failure) = (self.shown(above), self.failure(&path, &error));
                    self.push(WalkItem::Failed { path, failure, counts_as: CountsAs::Subtree });
                    continue;
                }
                Listed::Short(why) if self.no_links && haul_ftp::may_lack_links(&why) => {
                    let path = self.shown(above);
                    self.push(WalkItem::NotKept(NotKept { path, what: NotKeptWhat::Link }));
                    if !std::mem::replace(&mut self.told_of_unlisted, true) {
                        self.push(WalkItem::Note(LINKS_UNLISTED));
                    }
                    continue;
                }
                Listed::Short(why) => {
                    self.fail(self.shown(above), FailureKind::Walk, &why, CountsAs::Subtree);
                    continue;
                }
                Listed::Bad { name, why, .. } => {
                    let path = self.below(above, &name);
                    self.fail(
                        path,
                        FailureKind::Walk,
                        &format!("in the server's listing: {why}{}", in_pieces(&why)),
                        CountsAs::Entry,
                    );
                    continue;
                }
            };
            let name = match Name::new(&name) {
                Ok(name) => name,
                Err(why) => {
                    let path = self.below(above, &name);
                    self.fail(path, FailureKind::Walk, &why.to_string(), CountsAs::Entry);
                    continue;
                }
            };
            match facts.kind {
                _ if is_dir(&facts) => dirs.push(Seen { name, facts, site }),
                Some(Kind::File)
                    if !facts.is_symlink() && (!exact || facts.size.is_none() || facts.modify.is_none()) =>
                {
                    inexact.push((name, facts));
                }
                _ => {
                    let _ = self.announce(id, above, Seen { name, facts, site });
                }
            }
        }
        // What is told to be a directory is one, whatever it was listed as.
        dirs.extend(self.ask(id, above, inexact));
        dirs
    }

    /// Asks a server about what it has under the path that `path_at` says, as long as the policy says so, and
    /// another replica where it says that: then that one is asked from then on.
    fn again<T>(
        &mut self,
        path_at: impl Fn(usize) -> Vec<u8>,
        mut work: impl FnMut(&mut Session, &[u8]) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut tries = Tries::new(Step::List, &self.lines.sites, self.site);
        loop {
            let path = path_at(tries.site);
            let cancelled = || self.out.cancelled();
            let wait = |pause: Duration| {
                let until = Instant::now() + pause;
                while !cancelled() && Instant::now() < until {
                    thread::sleep(until.saturating_duration_since(Instant::now()).min(LOOK));
                }
                !cancelled()
            };
            let work = |session: &mut Session| work(session, &path);
            match self.lines.again(&mut tries, &path, (&|_, _| false, &wait), work) {
                Again::Done(done) => {
                    self.site = tries.site;
                    return Ok(done);
                }
                Again::Moves(..) => {}
                Again::Failed(error) => {
                    self.gone = tries.gone(&self.lines.sites, error.errno());
                    return Err(error);
                }
            }
        }
    }

    /// Asks for size and time of files of which the listing did not tell both exactly. Those that are
    /// directories come back.
    fn ask(&mut self, id: DirId, above: Above, files: Vec<(Name, Facts)>) -> Vec<Seen> {
        let (mut dirs, mut fresh, listed_at) = (Vec::new(), None, self.site);
        let names = self.names.clone();
        for some in files.chunks(256) {
            if self.out.cancelled() {
                break;
            }
            let paths_at = |site| -> Vec<Vec<u8>> {
                some.iter().map(|(name, _)| names.server_path(site, above, Some(name))).collect()
            };
            let site = Cell::new(self.site);
            let dir_at = |at| {
                site.set(at);
                names.server_path(at, above, None)
            };
            // What is answered for one is not asked again because of another.
            let mut answers = Each::new(some.len());
            let ended = self.again(dir_at, |session, _| {
                let (paths, site) = (paths_at(site.get()), site.get());
                answers.ask(|open| {
                    let asked: Vec<&[u8]> = open.iter().map(|at| paths[*at].as_slice()).collect();
                    let told = session.facts_of_each(&asked)?.into_iter();
                    Ok(told.map(|told| told.map(|asked| (asked, site))).collect())
                })
            });
            let paths = paths_at(self.site);
            for (((name, listed), path), answer) in some.iter().zip(paths).zip(answers.each()) {
                let (asked, site) = match (&answer, &ended) {
                    (Some(Ok((asked, site))), _) => (asked.clone(), *site),
                    (Some(Err(error)), _) | (None, Err(error)) => {
                        let failure = self.failure(&path, error);
                        let path = self.names.path(above, Some(name));
                        self.push(WalkItem::Failed { path, failure, counts_as: CountsAs::Entry });
                        continue;
                    }
                    (None, Ok(())) => unreachable!("all are answered"),
                };
                match asked {
                    Asked::Is(facts) if is_dir(&facts) => {
                        dirs.push(Seen { name: name.clone(), facts, site });
                    }
                    Asked::Is(told) => {
                        let unix_mode = told.unix_mode.or(listed.unix_mode);
                        let facts = Facts { unix_mode, ..told };
                        let seen = Seen { name: name.clone(), facts, site };
                        let _ = self.announce(id, above, seen);
                    }
                    // Another replica listed it.
                    Asked::Not(text) if site != listed_at => {
                        let path = self.names.path(above, Some(name));
                        let why = format!("another replica lists it, and this one says of it: {text}");
                        self.fail(path, FailureKind::Walk, &why, CountsAs::Entry);
                    }
                    Asked::Not(text) => {
                        // It is not there, or nobody may see what it is: the directory itself knows.
                        let still_there = fresh.get_or_insert_with(|| self.names_in(above));
                        let is_gone = match still_there {
                            Some(names) => !names.contains(name.as_bytes()),
                            None => says_gone(&text),
                        };
                        let (kind, counts_as) = match is_gone {
                            true => (FailureKind::Vanished, CountsAs::Vanished),
                            false => (FailureKind::Walk, CountsAs::Entry),
                        };
                        let path = self.names.path(above, Some(name));
                        self.fail(path, kind, &format!("{LISTS_AND_SAYS} {text}"), counts_as);
                    }
                    Asked::Untold(text) => {
                        let path = self.names.path(above, Some(name));
                        let why = format!("{LISTS_AND_SAYS} {text}");
                        self.fail(path, FailureKind::Walk, &why, CountsAs::Entry);
                    }
                }
            }
        }
        dirs
    }

    /// Announces an entry; of a directory its number comes back.
    fn announce(&mut self, parent: DirId, above: Above, seen: Seen) -> Option<DirId> {
        let Seen { name, facts, site } = seen;
        let path = || self.names.path(above, Some(&name));
        let is_dir = is_dir(&facts);
        let is_spoiled = self.drops && !self.names.server_path(site, above, Some(&name)).is_ascii();
        let kind = match facts.kind {
            _ if self.no_links && facts.is_symlink() => {
                self.push(WalkItem::NotKept(NotKept { path: path(), what: NotKeptWhat::Link }));
                return None;
            }
            _ if is_spoiled && !facts.is_symlink() => {
                let counts_as = if is_dir { CountsAs::Subtree } else { CountsAs::Entry };
                self.fail(path(), FailureKind::Walk, DROPS, counts_as);
                return None;
            }
            _ if facts.is_resolved_link() && !haul_mutant::removed("ftp-followed-links-fail") => {
                let target = facts.unix_slink.as_deref().unwrap_or_default();
                let why = format!(
                    "a symbolic link, and the server tells only what it leads to in the end ({}), not what is written \
                     in it: copy that by its own path; `no_links` leaves links out",
                    haul_base::escape::name(target)
                );
                self.fail(path(), FailureKind::Walk, &why, CountsAs::Entry);
                return None;
            }
            _ if facts.is_symlink() => match facts.unix_slink.as_deref() {
                Some(target) if is_target(target) => {
                    self.totals.symlinks += 1;
                    EntryKind::Symlink { target: target.into() }
                }
                _ => {
                    let (path, why) = (
                        path(),
                        "a symbolic link, and the server does not tell where it leads; `no_links` leaves links out",
                    );
                    self.fail(path, FailureKind::Walk, why, CountsAs::Entry);
                    return None;
                }
            },
            _ if is_dir => {
                self.totals.dirs += 1;
                EntryKind::Dir { version: Version::NONE }
            }
            Some(Kind::File) if facts.modify.is_none() => {
                let path = path();
                let why = "the server does not tell when it was changed, so that nobody would see whether it is changed while it is read";
                self.fail(path, FailureKind::Walk, why, CountsAs::Entry);
                return None;
            }
            Some(Kind::File) if facts.size.is_some() => {
                self.totals.files += 1;
                let (fingerprint, object_size) = (self.names.fingerprint(&facts), self.object_size);
                self.totals.bytes = self.totals.bytes.saturating_add(fingerprint.size);
                EntryKind::File { fingerprint, object_size, sparse: false, striped: false }
            }
            Some(Kind::Other) => {
                let path = path();
                self.push(WalkItem::NotKept(NotKept { path, what: NotKeptWhat::Device }));
                return None;
            }
            _ => {
                let path = path();
                self.fail(
                    path,
                    FailureKind::Walk,
                    "the server does not tell what it is, or how long",
                    CountsAs::Entry,
                );
                return None;
            }
        };
        let is_file = matches!(kind, EntryKind::File { .. });
        let id = FileId(self.next_id);
        self.next_id += 1;
        let is_young = is_young((self.clock)().secs, time_of(&facts).secs);
        let not_before = is_young.then(|| Instant::now() + self.names.settles());
        let seen = self.names.seen();
        let is_part = is_file && is_part(name.as_bytes());
        for (number, counts) in [
            (&seen.young, is_young && is_file),
            (&seen.untimed, is_dir && facts.modify.is_none()),
            (&seen.parts, is_part),
        ] {
            number.fetch_add(u64::from(counts), Ordering::Relaxed);
        }
        let mut meta = meta_of(&facts, is_dir);
        if facts.modify.is_none() {
            // Of a directory or a link; what has no time gets that of the copy.
            meta.mtime = (self.clock)();
        }
        self.names.add(id, Entry { above, name: name.clone(), facts, site, not_before });
        self.push(WalkItem::Entry(Announced {
            id,
            generation: Generation(0),
            parent,
            name,
            meta,
            kind,
            extras: Extras { range: self.names.part().filter(|_| is_file), ..Extras::default() },
        }));
        is_dir.then(|| id.as_dir())
    }

    /// The names that a directory has now; `None`: it cannot be listed.
    fn names_in(&mut self, above: Above) -> Option<HashSet<Vec<u8>>> {
        let (names, at) = (self.names.clone(), self.site);
        let listed =
            self.again(|site| names.server_path(site, above, None), |session, path| session.list(path));
        // What another replica has says nothing of this one.
        let listed = listed.ok().filter(|_| self.site == at)?;
        let name = |line| match line {
            Listed::Entry { name, .. } | Listed::Bad { name, .. } => Some(Some(name)),
            Listed::Itself(_) => None,
            Listed::Cut(_) | Listed::Short(_) => Some(None),
        };
        listed.into_iter().filter_map(name).collect()
    }

    /// What failed may go well in another run, where it may go well at all.
    fn failure(&self, path: &[u8], error: &Error) -> Failure {
        let kind = match () {
            () if error.is_network() => FailureKind::Network,
            () if error.is_passing() => FailureKind::Read,
            () => FailureKind::Walk,
        };
        failed(self.lines.sites.server(self.site), kind, path, error)
    }

    /// A directory, for people: that which the command names has no path at the destination.
    fn shown(&self, above: Above) -> Vec<u8> {
        match self.names.path(above, None) {
            path if path.is_empty() => self.names.server_path(self.site, above, None),
            path => path,
        }
    }

    /// The path of what has no legal name.
    fn below(&self, above: Above, name: &[u8]) -> Vec<u8> {
        let mut path = self.names.path(above, None);
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&name[..name.len().min(255)]);
        path
    }

    fn fail(&mut self, path: Vec<u8>, kind: FailureKind, why: &str, counts_as: CountsAs) {
        let failure = own_failure(kind, "copy", &path, why);
        self.push(WalkItem::Failed { path, failure, counts_as });
    }
}

/// Some servers write where a link leads as URLs do, others as it is: with a `%` nobody can tell which one.
fn is_target(target: &[u8]) -> bool {
    !target.is_empty() && target.len() <= LINK_LEN_MAX && !target.contains(&b'%')
}
