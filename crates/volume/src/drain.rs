//! What of a volume has no home outside of it: which files a drain brings out, and what becomes known of
//! those that it brought.
//!
//! In: files as a copy out of the volume looked at them, word of those whose copy is durable. Out: which of
//! them are wanted; homes, noted in the catalog.
//! Invariants: a file has a home only if what the copy read is what the file has still: of the version of its
//! bytes that was looked at before the first byte, told by its gatherer anew when the copy is durable, and in
//! the state that the catalog had then, which is compared once more when the home is noted. So of what was
//! written, cut, renamed or replaced meanwhile nothing is noted, and a drain that dies has noted nothing that
//! was not durable. Whether a file has a home is asked of the catalog after the look at it.
//! A home on this host is looked at before anybody says that a file has it: what was removed there, or is
//! another by its length or its time, is none. What is another there, while the file is what it was, is
//! newer: a drain leaves it, unless it is told otherwise, or brings the file elsewhere. Left out: what
//! becomes of homes on other hosts.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, unbounded};
use haul_core::entry::{DEPTH_MAX, Name, Timestamp};
use haul_core::volume::catalog::{Brought, Entry, EntryNo, Failure, Kind, Known, Noting, PAGE_MAX, ROOT};
use haul_core::volume::{Candidate, ContentVersion, FileNo, Wanted};
use rustix::io::Errno;

use crate::catalog::client::Client as Catalog;
use crate::client::{Client, Look, VolumeError, Waiting};
use crate::disk::lock;
use crate::place::{self, Stands, What};

/// So many that were brought are noted at a time.
const NOTED_AT: usize = 256;
/// Homes that are lost, and places of homes, are named, so many of them.
const NAMED_MAX: usize = 10;
const _: () = assert!(NOTED_AT <= PAGE_MAX);

/// Whether what a look showed of a file has a home, by what the catalog said after it.
pub fn has_home(look: &Look, known: &Known) -> bool {
    known.home.as_ref().is_some_and(|home| {
        !look.untold
            // Within one life of its gatherer the version tells; a server that was brought back from an older
            // copy of it is in an older one.
            && (home.version == look.version || home.version.gatherer < look.version.gatherer)
    })
}

/// A file that comes.
#[derive(Clone, Debug)]
struct Coming {
    entry: EntryNo,
    state: u64,
    /// `None`: nobody knew it.
    version: Option<ContentVersion>,
    is_link: bool,
}

/// What a drain brings, and where to.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// For people.
    pub place: String,
    /// The directory, if it is on this host.
    pub here: Option<PathBuf>,
    /// Also what has a home.
    pub all: bool,
    /// Also where something else stands at its home by now.
    pub force: bool,
}

/// What a drain came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Files and links that have a home by this drain.
    pub noted: u64,
    /// Those that were brought and are another by now.
    pub changed: u64,
    /// Those that had a home, and were not brought for that; how many of them in another place, and some of
    /// those places.
    pub at_home: u64,
    pub elsewhere: u64,
    pub places: Vec<String>,
    /// Those whose home was not there any more, or another by then; and some of them, in words.
    pub lost: u64,
    pub some_lost: Vec<String>,
    /// Those that were brought to where they do not last: they have no home there.
    pub not_kept: u64,
}

struct Shared {
    catalog: Arc<Catalog>,
    client: Client,
    /// As it is noted.
    place: String,
    asked: Asked,
    coming: Mutex<HashMap<Vec<u8>, Coming>>,
    noted: AtomicU64,
    changed: AtomicU64,
    at_home: AtomicU64,
    elsewhere: Mutex<(u64, Vec<String>)>,
    lost: Mutex<(u64, Vec<String>)>,
    /// What was brought to where nobody knows yet whether it lasts; `None`: it does.
    held: Mutex<Option<Vec<(Vec<u8>, Coming)>>>,
    /// The first thing that went wrong.
    failed: Mutex<Option<String>>,
}

/// A drain under way.
pub struct Drain {
    shared: Arc<Shared>,
    done: Mutex<Option<Sender<(Vec<u8>, Coming)>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Drain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Drain").field("place", &self.shared.place).finish_non_exhaustive()
    }
}

impl Drain {
    /// # Errors
    /// The system gives no thread.
    pub fn new(catalog: Arc<Catalog>, client: Client, asked: Asked) -> io::Result<Drain> {
        let place = place::noted(asked.place.clone(), Some(0));
        let shared = Arc::new(Shared {
            catalog,
            client,
            place,
            asked,
            coming: Mutex::default(),
            noted: AtomicU64::new(0),
            changed: AtomicU64::new(0),
            at_home: AtomicU64::new(0),
            elsewhere: Mutex::default(),
            lost: Mutex::default(),
            held: Mutex::new(None),
            failed: Mutex::default(),
        });
        let (done, brought) = unbounded();
        let of = shared.clone();
        let thread = thread::Builder::new().name("haul-vol-drain".into());
        let thread = thread.spawn(move || of.note_all(&brought))?;
        Ok(Drain { shared, done: Mutex::new(Some(done)), thread: Mutex::new(Some(thread)) })
    }

    /// Nothing is noted of what is brought before it is [known to last](Drain::lasts).
    pub fn hold(&self) {
        *lock(&self.shared.held) = Some(Vec::new());
    }

    /// What was brought lasts, and what will be does.
    pub fn lasts(&self) {
        let held = lock(&self.shared.held).take();
        if let Some(done) = &*lock(&self.done) {
            held.into_iter().flatten().for_each(|one| _ = done.send(one));
        }
    }

    /// Which of these come, in their order: those that have no home. They were looked at before. Those whose
    /// home would be replaced, and is another by now, are refused.
    ///
    /// # Errors
    /// The catalog's.
    pub fn pick(&self, entries: &[Candidate]) -> Result<Vec<Wanted>, Failure> {
        let mut wanted = Vec::with_capacity(entries.len());
        for page in entries.chunks(PAGE_MAX) {
            let known = self.shared.catalog.known(page.iter().map(|one| one.entry).collect())?;
            let mut coming = lock(&self.shared.coming);
            for (one, known) in page.iter().zip(known) {
                // What is gone by now the copy finds so.
                let known = known.unwrap_or_default();
                // What was looked at was told.
                let look = one.version.map(|version| Look { version, end: 0, untold: false });
                let is_link = one.target.is_some();
                let has = match is_link {
                    true => known.home.is_some(),
                    false => look.is_some_and(|look| has_home(&look, &known)),
                };
                let home = known.home.as_ref().filter(|_| has);
                let has = match home.map(|home| self.shared.is_at(&home.place, one)) {
                    Some(Ok(has)) => has,
                    None => false,
                    Some(Err(why)) => {
                        wanted.push(Wanted::Refused(why));
                        continue;
                    }
                };
                if self.shared.asked.all || !has {
                    wanted.push(Wanted::Yes);
                    let (entry, state, version) = (one.entry, known.state, one.version);
                    coming.insert(one.path.clone(), Coming { entry, state, version, is_link });
                } else {
                    wanted.push(Wanted::No);
                    self.shared.at_home.fetch_add(1, Ordering::AcqRel);
                    let place = home.map_or("", |home| place::shown(&home.place));
                    if place != place::shown(&self.shared.place) {
                        let (count, places) = &mut *lock(&self.shared.elsewhere);
                        *count += 1;
                        if places.len() < NAMED_MAX && !places.iter().any(|known| known == place) {
                            places.push(place.to_owned());
                        }
                    }
                }
            }
        }
        Ok(wanted)
    }

    /// What comes by this path is another, and read anew. It was looked at before.
    pub fn is_another(&self, one: &Candidate) {
        // Where nobody says in which state it is nothing is noted of it.
        let known =
            self.shared.catalog.known(vec![one.entry]).ok().and_then(|mut known| known.pop().flatten());
        let mut coming = lock(&self.shared.coming);
        match known {
            Some(known) => {
                let Candidate { path, entry, version, target, .. } = one.clone();
                let is_link = target.is_some();
                coming.insert(path, Coming { entry, state: known.state, version, is_link });
            }
            None => drop(coming.remove(&one.path)),
        }
    }

    /// What came by this path is durable outside, or was found there as it is.
    pub fn is_brought(&self, path: &[u8]) {
        let Some(one) = lock(&self.shared.coming).remove(path) else { return };
        let one = (path.to_vec(), one);
        if let Some(held) = &mut *lock(&self.shared.held) {
            return held.push(one);
        }
        if let Some(done) = &*lock(&self.done) {
            let _ = done.send(one);
        }
    }

    /// What should have come by this path did not.
    pub fn is_not_brought(&self, path: &[u8]) {
        lock(&self.shared.coming).remove(path);
    }

    /// Waits until all that was brought is noted. What is told to have been brought later is not, nor what is
    /// held.
    ///
    /// # Errors
    /// Why some of it could not be: in words. It is brought by the next drain, which finds it outside.
    pub fn finish(&self) -> Result<Sum, String> {
        drop(lock(&self.done).take());
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            thread.join().map_err(|_| "a thread panicked")?;
        }
        if let Some(why) = lock(&self.shared.failed).take() {
            return Err(why);
        }
        let count = |of: &AtomicU64| of.load(Ordering::Acquire);
        let not_kept = lock(&self.shared.held).take().map_or(0, |held| held.len() as u64);
        let (elsewhere, places) = std::mem::take(&mut *lock(&self.shared.elsewhere));
        let (lost, some_lost) = std::mem::take(&mut *lock(&self.shared.lost));
        Ok(Sum {
            elsewhere,
            places,
            lost,
            some_lost,
            not_kept,
            noted: count(&self.shared.noted),
            changed: count(&self.shared.changed),
            at_home: count(&self.shared.at_home),
        })
    }
}

impl Shared {
    /// Whether what stands at its home is what it is; what is not is remembered. Words where bringing it
    /// would replace something else there.
    fn is_at(&self, noted: &str, one: &Candidate) -> Result<bool, String> {
        let what = match &one.target {
            Some(target) => What::Link(target.clone()),
            None => What::File { len: one.len, mtime: one.mtime },
        };
        let why = match place::look(noted, &one.path, &what) {
            Stands::It | Stands::Elsewhere => return Ok(true),
            Stands::Gone(why) => why,
            Stands::Another(why) => {
                // Of another host nobody knows whether it has the same files.
                let to = self.asked.here.as_ref().map(|dir| dir.join(OsStr::from_bytes(&one.path)));
                let replaces = to.is_none_or(|to| place::may_be(noted, &one.path, &to));
                if replaces && !self.asked.force && !haul_mutant::removed("newer-homes-are-left") {
                    let home = place::own(noted, &one.path);
                    return Err(format!(
                        "its home, {home}, {why}, and was left; --force brings the volume's"
                    ));
                }
                why
            }
        };
        let (count, some) = &mut *lock(&self.lost);
        *count += 1;
        if some.len() < NAMED_MAX {
            some.push(in_words(&one.path, noted, &why));
        }
        Ok(false)
    }

    fn note_all(&self, brought: &Receiver<(Vec<u8>, Coming)>) {
        while let Ok(first) = brought.recv() {
            let more = brought.try_iter().take(NOTED_AT - 1);
            let all: Vec<_> = std::iter::once(first).chain(more).collect();
            let failed = self.note(&all).err();
            if let Some(why) = failed {
                lock(&self.failed).get_or_insert(why.words.into());
            }
        }
    }

    /// Notes homes of what is still what was brought.
    fn note(&self, all: &[(Vec<u8>, Coming)]) -> Result<(), Failure> {
        let looks: Vec<_> = all
            .iter()
            .map(|(_, one)| (!one.is_link).then(|| self.client.look(FileNo(one.entry.0))))
            .collect();
        let mut files = Vec::new();
        for ((path, one), look) in all.iter().zip(looks) {
            let version = match look.map(|look| look.wait()) {
                None => ContentVersion::default(),
                Some(Ok(look))
                    if (!look.untold && one.version == Some(look.version))
                        || haul_mutant::removed("drain-notes-what-was-read") =>
                {
                    look.version
                }
                // It was written, or nobody says that it was not.
                Some(_) => continue,
            };
            let home = Some(Brought::Out(*blake3::hash(path).as_bytes()));
            files.push(Noting { id: one.entry, state: one.state, version, whole: None, home });
        }
        let noted = if files.is_empty() { 0 } else { self.catalog.note(&self.place, files)?.len() as u64 };
        self.noted.fetch_add(noted, Ordering::AcqRel);
        self.changed.fetch_add(all.len() as u64 - noted, Ordering::AcqRel);
        Ok(())
    }
}

/// That an entry has no home any more, in words: why, and where that was.
fn in_words(path: &[u8], noted: &str, why: &str) -> String {
    format!("{}: its home, {}, {why}", haul_base::escape::name(path), place::own(noted, path))
}

/// What has no home in a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Homeless {
    /// The first few, by their paths.
    pub some: Vec<Vec<u8>>,
    pub count: u64,
    /// Those of them that had one, which is not there any more or another by now; and some of them, in words.
    pub lost: u64,
    pub some_lost: Vec<String>,
    /// Files and links that have one, and some of the places.
    pub at_home: u64,
    pub places: Vec<Box<str>>,
    /// Files of which that is not known, the first few of them, and why it is not.
    pub unknown: u64,
    pub some_unknown: Vec<Vec<u8>>,
    pub why: Option<String>,
    /// Entries that were looked at, and whether those are all.
    pub looked: u64,
    pub is_all: bool,
}

/// Which of the entries of a page of a directory are a run's of haul that is not done, or died, in their
/// order: nobody's files, which no drain brings.
pub type Ours<'a> = dyn Fn(&Catalog, EntryNo, &[(Name, Entry)]) -> Result<Vec<bool>, Failure> + 'a;

/// Where a file or a link has its home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HomeOf {
    /// In this place, and its own one in it.
    At { place: Box<str>, own: String },
    /// It had one, which is not there any more or another by now: in words.
    Lost(String),
    /// It has none.
    Nowhere,
    /// It had one when its gatherer was heard of it last, which does not say what became of it: why.
    Unknown(String),
}

/// Looks for files and links without a home, but for what runs of haul have there: for all of them, or until
/// there is one and so many entries were looked at. Who may write one gives that up for the look. Of a file
/// that had a home and whose gatherer does not say what became of it nobody knows; where a server is away
/// nobody waits for it more than once.
///
/// # Errors
/// The catalog's.
pub fn homeless(
    catalog: &Catalog,
    client: &Client,
    ours: &Ours<'_>,
    (some_max, looked_max): (usize, u64),
) -> Result<Homeless, Failure> {
    let mut found = Homeless { is_all: true, ..Homeless::default() };
    let mut silent = None;
    let mut open = vec![(ROOT, Vec::new(), 0)];
    while let Some((dir, path, depth)) = open.pop() {
        let mut after = None;
        loop {
            if found.count + found.unknown > 0 && found.looked >= looked_max {
                found.is_all = false;
                return Ok(found);
            }
            let read = catalog.read_dir(dir, after);
            let read = read.and_then(|(page, more)| Ok((ours(catalog, dir, &page)?, page, more)));
            let (ours, page, more) = match read {
                // It was removed.
                Err(failure) if failure.errno == Errno::NOENT.raw_os_error() => break,
                other => other?,
            };
            after = page.last().map(|(name, _)| name.clone());
            found.looked += page.len() as u64;
            let mut files: Vec<OfHome> = Vec::new();
            for ((name, entry), is_ours) in page.into_iter().zip(ours) {
                let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
                let below = [&path[..], slash, name.as_bytes()].concat();
                match entry.kind {
                    Kind::Directory if depth < DEPTH_MAX => open.push((entry.id, below, depth + 1)),
                    Kind::Directory => {}
                    _ if is_ours && !haul_mutant::removed("what-runs-have-needs-no-home") => {}
                    Kind::File => files.push((entry.id, below, (entry.meta.mtime, None))),
                    Kind::Link(target) => files.push((entry.id, below, (entry.meta.mtime, Some(target)))),
                }
            }
            for ((_, path, _), home) in files.iter().zip(homes(catalog, client, &files, &mut silent)?) {
                match home {
                    HomeOf::At { place, .. } => {
                        found.at_home += 1;
                        if found.places.len() < some_max && !found.places.contains(&place) {
                            found.places.push(place);
                        }
                    }
                    HomeOf::Unknown(why) => {
                        found.unknown += 1;
                        found.why.get_or_insert(why);
                        if found.some_unknown.len() < some_max {
                            found.some_unknown.push(path.clone());
                        }
                    }
                    home @ (HomeOf::Nowhere | HomeOf::Lost(_)) => {
                        if let HomeOf::Lost(why) = home {
                            found.lost += 1;
                            if found.some_lost.len() < some_max {
                                found.some_lost.push(why);
                            }
                        }
                        found.count += 1;
                        if found.some.len() < some_max {
                            found.some.push(path.clone());
                        }
                    }
                }
            }
            if !more || after.is_none() {
                break;
            }
        }
    }
    Ok(found)
}

/// A file or a link, its path in the volume, its time, and where a link leads.
type OfHome = (EntryNo, Vec<u8>, (Timestamp, Option<Box<[u8]>>));

/// Where each of these entries of one page has its home. `silent`: why one was not heard, which nobody asks
/// once more.
fn homes(
    catalog: &Catalog,
    client: &Client,
    files: &[OfHome],
    silent: &mut Option<String>,
) -> Result<Vec<HomeOf>, Failure> {
    let ids = || files.iter().map(|(id, ..)| *id).collect();
    // Those of which the catalog knows no home have none, whatever a look would show.
    let before = catalog.known(ids())?;
    let looks: Vec<_> = files
        .iter()
        .zip(&before)
        .map(|((id, _, (_, target)), known)| {
            let may = known.as_ref().is_some_and(|known| known.home.is_some());
            (may && target.is_none()).then(|| silent.is_none().then(|| client.look(FileNo(id.0))))
        })
        .collect();
    let mut looked = |look: Option<_>| {
        let look: Waiting<Look> = look.ok_or_else(|| silent.clone().unwrap_or_default())?;
        match look.wait() {
            Ok(look) => Ok(Some(look)),
            Err(VolumeError::Gone) => Ok(None),
            Err(why) => {
                let words = why.to_string();
                if let VolumeError::Late(..) = why {
                    silent.get_or_insert_with(|| words.clone());
                }
                Err(words)
            }
        }
    };
    let looks: Vec<Option<Result<Option<Look>, String>>> =
        looks.into_iter().map(|look| look.map(&mut looked)).collect();
    let after = catalog.known(ids())?;
    let each = files.iter().zip(before.iter().zip(&after)).zip(looks);
    Ok(each.map(|((one, known), look)| home_of(one, known, look)).collect())
}

/// The same of one, by what the catalog knew before and behind a look at it, if there was one.
fn home_of(
    (_, path, (mtime, target)): &OfHome,
    (before, after): (&Option<Known>, &Option<Known>),
    look: Option<Result<Option<Look>, String>>,
) -> HomeOf {
    let (Some(before), Some(known)) = (before, after) else { return HomeOf::Nowhere };
    let Some(home) = &known.home else { return HomeOf::Nowhere };
    let what = match (look, target) {
        (Some(Err(why)), _) if !haul_mutant::removed("homes-may-be-unknown") => return HomeOf::Unknown(why),
        (Some(look), _) => match look.ok().flatten() {
            Some(look) if has_home(&look, known) => What::File { len: look.end, mtime: *mtime },
            _ => return HomeOf::Nowhere,
        },
        (None, Some(target)) if before.home.is_some() => What::Link(target.clone()),
        (None, _) => return HomeOf::Nowhere,
    };
    match place::look(&home.place, path, &what) {
        Stands::Gone(why) | Stands::Another(why) => HomeOf::Lost(in_words(path, &home.place, &why)),
        Stands::It | Stands::Elsewhere => {
            HomeOf::At { place: place::shown(&home.place).into(), own: place::own(&home.place, path) }
        }
    }
}

/// Where one file or link has its home; `path`: its own in the volume.
///
/// # Errors
/// The catalog's.
pub fn home(catalog: &Catalog, client: &Client, entry: &Entry, path: Vec<u8>) -> Result<HomeOf, Failure> {
    let target = match &entry.kind {
        Kind::Link(target) => Some(target.clone()),
        Kind::File | Kind::Directory => None,
    };
    let mut found = homes(catalog, client, &[(entry.id, path, (entry.meta.mtime, target))], &mut None)?;
    Ok(found.pop().unwrap_or(HomeOf::Nowhere))
}
