//! Tests: stores in memory. An ordinary one, and one like an FTP server: bytes in ascending order, nothing to
//! sync, no rename, no links, no journal, and a network between it and us.
//!
//! In: numbers of shelves, as places of two schemes that nobody can type. Out: sources and sinks over what
//! lies on them, whose operations are answered before `submit` returns. A shelf lives as long as the process,
//! so that a later run finds what an earlier one left.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use haul_core::change::{Change, Stood};
use haul_core::digest::{DigestKind, Root};
use haul_core::entry::{Meta, Name, Timestamp};
use haul_core::ids::{DirId, FileId};
use haul_core::journal::{Replay, Replayed, RootId};
use haul_core::transfer::op::{
    CommitItem, Existing, Found, Inode, LinkItem, LookupItem, Publish, Rights, Seen, SinkDone, SinkFile,
    SinkOp, Took,
};
use haul_core::wire::{Failure, FailureKind};

use super::place::{Destination, Form, Place, Scheme, Sources, read_path};
use super::store::delegated::{DelegatedEnd, DelegatedMove, Standing};
use super::store::job::{begin_journal, fresh_tag, job_of, names_of};
use super::store::{
    Capabilities, Claimed, Coming, DelegatedEntry, DelegatedPair, Directories, Durable, HeldJob, Looks,
    Marker, NetworkFacet, Publishing, SinkStore, StoreNetwork, Waiting, WriteOrder, Writing, dir_stands,
};
use super::{Payload, Post, SinkCompletion, SinkEngine, SinkJob, Stuck};
use haul_base::digest;
use haul_base::kernel::boot_id;

mod source;

/// Of what is not told a time of its own.
const META: Meta = Meta { mode: 0o755, uid: 0, gid: 0, mtime: Timestamp { secs: 1_000_000_000, nanos: 0 } };

/// What lies at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lying {
    Dir(Meta),
    File(Vec<u8>, Meta),
    Link(Vec<u8>, Meta),
}

#[derive(Default)]
struct ShelfState {
    /// By path, without a slash before it.
    lying: BTreeMap<Vec<u8>, (Lying, u64)>,
    /// By tag and number.
    temps: HashMap<(u32, u64), Vec<u8>>,
    journal: Option<Vec<u8>>,
    inodes: u64,
}

/// A store.
pub struct Shelf {
    /// Which one it is: no two have the same number.
    number: u64,
    like_ftp: bool,
    state: Mutex<ShelfState>,
    /// A run has its job.
    held: AtomicBool,
    connections: AtomicU16,
    bytes: AtomicU64,
}

static SHELVES: Mutex<BTreeMap<Vec<u8>, Arc<Shelf>>> = Mutex::new(BTreeMap::new());

impl Shelf {
    /// The shelf that a place is.
    pub fn at(place: &Place) -> Arc<Shelf> {
        let like_ftp = *place.scheme() == FTP_LIKE;
        let mut shelves = SHELVES.lock().unwrap_or_else(PoisonError::into_inner);
        let number = shelves.len() as u64 + 1;
        let make = || Shelf {
            number,
            like_ftp,
            state: Mutex::default(),
            held: AtomicBool::new(false),
            connections: AtomicU16::new(2),
            bytes: AtomicU64::new(0),
        };
        shelves.entry(place.shown()).or_insert_with(|| Arc::new(make())).clone()
    }

    fn lock(&self) -> MutexGuard<'_, ShelfState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts something there.
    pub fn put(&self, path: &[u8], what: Lying) {
        self.lock().put(path.to_vec(), what);
    }

    pub fn file(&self, path: &[u8]) -> Option<Vec<u8>> {
        match self.lock().lying.get(path) {
            Some((Lying::File(data, _), _)) => Some(data.clone()),
            _ => None,
        }
    }

    /// Everything on it.
    pub fn all(&self) -> BTreeMap<Vec<u8>, Lying> {
        self.lock().lying.iter().map(|(path, (what, _))| (path.clone(), what.clone())).collect()
    }

    /// Temporaries and a journal.
    pub fn debris(&self) -> (usize, bool) {
        let state = self.lock();
        (state.temps.len(), state.journal.is_some())
    }

    fn capabilities(&self) -> Capabilities {
        match self.like_ftp {
            false => Capabilities { in_place: false, ..Capabilities::POSIX },
            true => Capabilities {
                links: false,
                write_order: WriteOrder::Ascending,
                durable: Durable::Nothing,
                publishing: Publishing::OnClose,
                append: true,
                many_open: false,
                in_place: false,
                ranges: false,
                journal: false,
                directories: Directories::Kept,
                ..Capabilities::POSIX
            },
        }
    }

    fn network(&self) -> Option<&dyn NetworkFacet> {
        self.like_ftp.then_some(self)
    }

    fn existing(&self, path: &[u8]) -> (Existing, Option<Seen>) {
        let state = self.lock();
        let Some((what, ino)) = state.lying.get(path) else { return (Existing::Nothing, None) };
        let existing = match what {
            Lying::Dir(_) => Existing::Dir,
            Lying::Link(..) => Existing::Link,
            Lying::File(data, meta) => Existing::File {
                size: data.len() as u64,
                mtime: meta.mtime,
                grain: 1,
                rights: Rights { mode: meta.mode, uid: meta.uid, gid: meta.gid, ..Rights::default() },
            },
        };
        let (size, mtime) = match what {
            Lying::File(data, meta) => (data.len() as u64, meta.mtime),
            Lying::Dir(meta) | Lying::Link(_, meta) => (0, meta.mtime),
        };
        let inode = Inode { dev: self.number, ino: *ino };
        (existing, Some(Seen { inode, size, mtime, ctime: mtime, links: 1 }))
    }
}

impl ShelfState {
    fn put(&mut self, path: Vec<u8>, what: Lying) {
        self.inodes += 1;
        let ino = self.inodes;
        self.lying.insert(path, (what, ino));
    }
}

impl NetworkFacet for Shelf {
    fn look(&self) -> StoreNetwork {
        StoreNetwork {
            connections: self.connections.load(Ordering::Relaxed),
            round_trip: Some(Duration::from_millis(20)),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
    fn set_connections(&self, connections: u16) -> u16 {
        let connections = connections.clamp(1, 4);
        self.connections.store(connections, Ordering::Relaxed);
        connections
    }
}

fn failure(kind: FailureKind, errno: i32, path: &[u8], what: &str) -> Failure {
    Failure { kind, errno, text: format!("{}: {what}", String::from_utf8_lossy(path)).into() }
}

const EEXIST: i32 = 17;
const ENOENT: i32 = 2;

/// Names of directories by their ids, as they are announced.
#[derive(Default)]
struct Dirs(Mutex<HashMap<DirId, (DirId, Name)>>);

impl Dirs {
    fn path(&self, parent: DirId, name: Option<&Name>) -> Vec<u8> {
        let dirs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut names: Vec<&[u8]> = name.map(Name::as_bytes).into_iter().collect();
        let mut at = parent;
        while let Some((parent, name)) = dirs.get(&at) {
            names.push(name.as_bytes());
            at = *parent;
        }
        names.reverse();
        names.join(&b'/')
    }
    fn of(&self, file: &SinkFile) -> Vec<u8> {
        self.path(file.parent, Some(&file.name))
    }
    fn register(&self, id: DirId, parent: DirId, name: Name) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(id, (parent, name));
    }
    fn forget(&self, id: DirId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }
}

/// An ordinary store.
pub static MEMORY: Scheme = Scheme { name: "mem", ..SHELF };
/// One like an FTP server.
pub static FTP_LIKE: Scheme = SHELF;

const SHELF: Scheme = Scheme {
    name: "ftp-like",
    source: Some(Form { written: "ftp-like://N", example: "ftp-like://1", sized: false }),
    sink: Some(Form { written: "ftp-like://N", example: "ftp-like://1", sized: false }),
    server: false,
    foreign: false,
    alone: true,
    keeps: true,
    resumes: true,
    read: read_path,
    open_source: Some(|sources: &Sources<'_>| Ok(Box::new(OnShelf(Shelf::at(&sources.places[0]))))),
    open_sink: Some(|destination: &Destination<'_>| Ok(Box::new(OnShelf(Shelf::at(destination.place))))),
};

struct OnShelf(Arc<Shelf>);

impl SinkStore for OnShelf {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn claim(self: Box<Self>, coming: &Coming<'_>, _: &dyn Waiting) -> Result<Claimed, Failure> {
        let shelf = self.0;
        if shelf.held.swap(true, Ordering::SeqCst) {
            return Err(failure(FailureKind::Create, 0, b"this job", "is held by another run"));
        }
        let held = HeldShelf { shelf: shelf.clone(), tag: fresh_tag(), released: AtomicBool::new(false) };
        let durable = coming.policy.durable;
        let (mut replayed, mut resumed) = (Replayed::default(), false);
        if let Some(bytes) = &shelf.lock().journal {
            let mut replay = Replay::new();
            let fed = replay.feed(bytes).and_then(|()| replay.finish(boot_id(), durable));
            replayed = fed.map_err(|e| failure(FailureKind::Create, 0, b"the journal", &e.to_string()))?;
            resumed = true;
        }
        let root = [b"shelf".as_slice(), &shelf.number.to_le_bytes()].concat();
        let root = RootId::new(&root).expect("short");
        let key = job_of(&root, coming.roots, None, coming.part.as_ref());
        let (epoch, tag) = (replayed.epoch_max + 1, held.tag);
        let (bytes, resume) = begin_journal(replayed, (key, root), (epoch, tag), coming);
        if shelf.capabilities().journal {
            shelf.lock().journal = Some(bytes);
        }
        let wait = resumed || !shelf.lock().lying.is_empty();
        let (names, found) = (names_of(coming.roots, None), Vec::new());
        Ok(Claimed {
            job: Box::new(held),
            resume,
            epoch,
            tag,
            wait,
            rename: None,
            resumed,
            names,
            root: None,
            found,
        })
    }

    fn look(self: Box<Self>, _: &Coming<'_>) -> Result<(Box<dyn Looks>, Option<Name>), Failure> {
        Ok((Box::new(ShelfLook { shelf: self.0, dirs: Dirs::default() }), None))
    }
}

struct HeldShelf {
    shelf: Arc<Shelf>,
    tag: u32,
    released: AtomicBool,
}

impl HeldJob for HeldShelf {
    fn start(&mut self, writing: Writing) -> Result<Box<dyn SinkEngine>, Failure> {
        let (shelf, tag, post) = (self.shelf.clone(), self.tag, writing.post);
        Ok(Box::new(ShelfWriter { shelf, tag, post, dirs: Dirs::default(), files: HashMap::new() }))
    }
    fn set_ends(&self, _: bool) {}
    fn set_yields(&self, _: bool) {}
    fn finish(&self) {
        self.leave();
    }
    fn leave(&self) {
        if !self.released.swap(true, Ordering::SeqCst) {
            self.shelf.held.store(false, Ordering::SeqCst);
        }
    }
}

impl Drop for HeldShelf {
    fn drop(&mut self) {
        self.leave();
    }
}

struct ShelfLook {
    shelf: Arc<Shelf>,
    dirs: Dirs,
}

impl Looks for ShelfLook {
    fn register(&self, id: DirId, parent: DirId, name: Name) {
        self.dirs.register(id, parent, name);
    }
    fn forget(&self, id: DirId) {
        self.dirs.forget(id);
    }
    fn dir(&self, id: DirId) -> Result<Option<Stood>, Failure> {
        match self.shelf.lock().lying.get(&self.dirs.path(id, None)) {
            None => Ok(None),
            Some((Lying::Dir(meta), _)) => Ok(Some(stood(meta))),
            Some(_) => Err(dir_stands()),
        }
    }
    fn is_closed(&self, _: DirId) -> bool {
        false
    }
    fn file(&self, parent: DirId, name: &Name) -> Result<Existing, Failure> {
        Ok(self.shelf.existing(&self.dirs.path(parent, Some(name))).0)
    }
    fn link(
        &self,
        parent: DirId,
        name: &Name,
        _: &[u8],
        _: (&Meta, bool),
    ) -> Result<(Change, Existing), Failure> {
        Ok((Change::NEW, self.file(parent, name)?))
    }
}

fn stood(meta: &Meta) -> Stood {
    let rights = Rights { mode: meta.mode, uid: meta.uid, gid: meta.gid, ..Rights::default() };
    Stood { rights, mtime: meta.mtime, grain: 1, untold: false }
}

struct ShelfWriter {
    shelf: Arc<Shelf>,
    tag: u32,
    post: Post<SinkCompletion>,
    dirs: Dirs,
    /// Numbers of temporaries, and where they go.
    files: HashMap<FileId, (u64, Vec<u8>)>,
}

impl ShelfWriter {
    fn make_dir(&self, id: DirId) -> Result<(), Failure> {
        let path = self.dirs.path(id, None);
        let mut state = self.shelf.lock();
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        let ends: Vec<usize> = ends.chain([path.len()]).filter(|end| *end > 0).collect();
        for end in ends {
            match state.lying.get(&path[..end]) {
                Some((Lying::Dir(_), _)) => {}
                Some(_) => return Err(failure(FailureKind::Create, EEXIST, &path[..end], "is no directory")),
                None => state.put(path[..end].to_vec(), Lying::Dir(META)),
            }
        }
        Ok(())
    }

    fn write(&mut self, file: &SinkFile, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        let path = self.dirs.of(file);
        if file.parent != DirId::ROOT {
            self.make_dir(file.parent)?;
        }
        self.files.insert(file.id, (file.number, path.clone()));
        self.shelf.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let order = self.shelf.capabilities().write_order;
        let mut state = self.shelf.lock();
        let temp = state.temps.entry((self.tag, file.number)).or_default();
        if order == WriteOrder::Ascending && offset != temp.len() as u64 {
            let text = format!("byte {} comes next, and not byte {offset}", temp.len());
            return Err(failure(FailureKind::Write, 0, &path, &text));
        }
        let (at, end) = (offset as usize, offset as usize + bytes.len());
        temp.resize(temp.len().max(end), 0);
        temp[at..end].copy_from_slice(bytes);
        if self.shelf.like_ftp {
            let seen = Lying::File(temp.clone(), META);
            state.put(path, seen);
        }
        Ok(())
    }

    fn commit(&mut self, item: CommitItem) -> Result<(), Failure> {
        let Some(Publish { file, meta, found, no_replace, verify, .. }) = item.publish else { return Ok(()) };
        let path = self.dirs.of(&file);
        let (stands, seen) = self.shelf.existing(&path);
        if !self.shelf.like_ftp
            && (stands == Existing::Dir || (no_replace && seen.is_some()) || seen != found)
        {
            return Err(failure(FailureKind::Publish, EEXIST, &path, "something else stands there"));
        }
        let mut state = self.shelf.lock();
        let data = state.temps.remove(&(self.tag, file.number)).unwrap_or_default();
        let whole = data.len() as u64 == file.size;
        if !whole || verify.is_some_and(|(kind, root)| digest::root(kind, &data) != root) {
            return Err(failure(FailureKind::Digest, 0, &path, "is not what was written"));
        }
        state.put(path, Lying::File(data, meta));
        Ok(())
    }

    fn discard(&mut self, id: FileId) {
        let Some((number, path)) = self.files.remove(&id) else { return };
        let mut state = self.shelf.lock();
        if state.temps.remove(&(self.tag, number)).is_some() && self.shelf.like_ftp {
            state.lying.remove(&path);
        }
    }

    fn find(&mut self, file: &SinkFile, adopt: Option<u32>) -> Found {
        let path = self.dirs.of(file);
        let (existing, seen) = self.shelf.existing(&path);
        self.files.insert(file.id, (file.number, path));
        let mut state = self.shelf.lock();
        let left = adopt.and_then(|tag| state.temps.remove(&(tag, file.number)));
        let (adopted, len) = (left.is_some(), left.as_ref().map_or(0, |left| left.len() as u64));
        if let Some(left) = left {
            state.temps.insert((self.tag, file.number), left);
        }
        Found { existing, seen, adopted, len, begun: false }
    }

    fn check(&self, file: &SinkFile, kind: DigestKind, (offset, len): (u64, u64)) -> Option<Root> {
        let state = self.shelf.lock();
        let temp = state.temps.get(&(self.tag, file.number))?;
        let part = temp.get(offset as usize..(offset + len) as usize)?;
        let mut hasher = digest::Hasher::new(kind, offset);
        hasher.update(part);
        Some(if (offset, len) == (0, file.size) { hasher.root() } else { hasher.value() })
    }
}

impl SinkEngine for ShelfWriter {
    fn submit(&mut self, SinkJob { op, buffer }: SinkJob) {
        let payload = buffer.map(Payload::shared);
        let bytes = |start: u32, len: u64| {
            // Empty files come without any.
            let all = payload.as_ref().map_or(&[][..], |payload| payload.as_slice());
            &all[start as usize..start as usize + len as usize]
        };
        let done = match op {
            SinkOp::MakeDirs { dirs } => {
                let results = dirs.into_iter().map(|dir| (dir, self.make_dir(dir))).collect();
                SinkDone::MakeDirs { results }
            }
            SinkOp::Lookup { items } => {
                let find = |item: LookupItem| (item.file.id, Ok(self.find(&item.file, item.adopt)));
                SinkDone::Lookup { results: items.into_iter().map(find).collect() }
            }
            SinkOp::Create { file, .. } => SinkDone::Create { id: file.id, result: Ok(None) },
            SinkOp::Write { file, offset, len, buffer, start } => {
                let result = self.write(&file, offset, bytes(start, len.into()));
                let took = result.is_ok().then_some(Took { time: Duration::ZERO, cached: true });
                SinkDone::Write { id: file.id, offset, len, buffer, took, result, again: false }
            }
            SinkOp::WriteBundle { buffer, items, more } => {
                let results = items
                    .iter()
                    .map(|item| (item.file.id, self.write(&item.file, 0, bytes(item.start, item.file.size))));
                SinkDone::WriteBundle { buffer, results: results.collect(), more }
            }
            SinkOp::Check { file, kind, ranges } => {
                let values = ranges.iter().map(|range| self.check(&file, kind, *range)).collect();
                SinkDone::Check { id: file.id, ranges, result: Ok(values) }
            }
            SinkOp::Commit { items, .. } => {
                let results = items.into_iter().map(|item| (item.id, self.commit(item))).collect();
                SinkDone::Commit { results, lost: Vec::new() }
            }
            SinkOp::Clone { .. } => unreachable!("nobody is asked to clone who does not say that he does"),
            SinkOp::Amend { items, .. } => {
                let results = items.into_iter().map(|item| (item.file.id, Ok(Change::NONE))).collect();
                SinkDone::Amend { results }
            }
            SinkOp::MakeLinks { items } => {
                let make = |item: LinkItem| {
                    let path = self.dirs.of(&item.file);
                    let result = match self.shelf.capabilities().links {
                        false => Err(failure(FailureKind::Create, 95, &path, "there are no links here")),
                        true => {
                            self.shelf.put(&path, Lying::Link(item.target.to_vec(), item.meta));
                            Ok(Change::NEW)
                        }
                    };
                    (item.file.id, result)
                };
                SinkDone::MakeLinks { results: items.into_iter().map(make).collect() }
            }
            SinkOp::Join { items } => SinkDone::Join {
                results: items
                    .into_iter()
                    .map(|item| (item.file.id, Ok(crate::store::no_hard_links())))
                    .collect(),
            },
            SinkOp::SyncDirs { dirs } => {
                SinkDone::SyncDirs { results: dirs.into_iter().map(|dir| (dir, Ok(()))).collect() }
            }
            SinkOp::FinishDirs { dirs, .. } => {
                let finish = |(id, meta): (DirId, Meta)| {
                    let made = self.make_dir(id);
                    let path = self.dirs.path(id, None);
                    if let Some((lying, _)) = self.shelf.lock().lying.get_mut(&path) {
                        *lying = Lying::Dir(meta);
                    }
                    (id, made.map(|()| Change::NEW))
                };
                SinkDone::FinishDirs { results: dirs.into_iter().map(finish).collect() }
            }
            SinkOp::Discard { id } => {
                self.discard(id);
                SinkDone::Discard { id }
            }
            SinkOp::Journal { bytes, .. } => {
                if let Some(journal) = &mut self.shelf.lock().journal {
                    journal.extend(bytes);
                }
                SinkDone::Journal { result: Ok(()) }
            }
            SinkOp::Note { .. } => SinkDone::Note { result: Ok(()) },
            SinkOp::RefuseNote { .. } => return,
            SinkOp::RemoveJournal => {
                self.shelf.lock().journal = None;
                SinkDone::RemoveJournal { result: Ok(()) }
            }
        };
        drop(payload);
        (self.post)(SinkCompletion { done });
    }

    fn register(&self, id: DirId, parent: DirId, name: Name) {
        self.dirs.register(id, parent, name);
    }
    fn forget(&self, id: DirId) {
        self.dirs.forget(id);
    }
    fn set_width(&mut self, _: Option<u16>) -> Option<u16> {
        None
    }
    fn stuck(&self) -> Vec<Stuck> {
        Vec::new()
    }
    fn report(&self) -> Vec<(String, String)> {
        vec![("sink storage".into(), "a shelf in memory".into())]
    }
    fn network(&self) -> Option<&dyn NetworkFacet> {
        self.shelf.network()
    }
    fn places(&self) -> Option<u32> {
        self.shelf.like_ftp.then_some(1)
    }
}

/// Two shelves that move data by themselves.
pub struct ShelfPair {
    pub from: Arc<Shelf>,
    pub to: Arc<Shelf>,
    pub post: Post<Marker>,
}

impl DelegatedPair for ShelfPair {
    fn submit(&mut self, entry: DelegatedEntry) {
        let DelegatedEntry { id, from, to, size, meta, .. } = entry;
        let result = match self.from.file(&from) {
            Some(data) if data.len() as u64 == size => {
                self.to.put(&to, Lying::File(data, meta));
                (self.post)(Marker::Moved { id, len: size, held: 0 });
                Ok(DelegatedEnd::Moved(DelegatedMove { size, moved: size, ..DelegatedMove::default() }))
            }
            Some(_) => Err(failure(FailureKind::Changed, 0, &from, "has another size")),
            None => Err(failure(FailureKind::Vanished, ENOENT, &from, "is gone")),
        };
        (self.post)(Marker::Ended { id, result });
    }
    fn origin(&self, _: FileId) -> Vec<u8> {
        Vec::new()
    }
    fn make_dir(&mut self, to: &[u8]) -> Result<bool, Failure> {
        Err(failure(FailureKind::Create, 0, to, "a shelf has no directories"))
    }
    fn finish_dirs(&mut self, _: &[(Vec<u8>, Meta)]) -> (u64, u64) {
        (0, 0)
    }
    fn look(&mut self, all: &[DelegatedEntry]) -> Vec<Result<Standing, Failure>> {
        all.iter().map(|_| Ok(Standing::New)).collect()
    }
    fn forget(&mut self, _: FileId) {}
    fn cancel(&mut self) {}
    fn resumes(&self) -> bool {
        false
    }
    fn report(&self) -> Vec<(String, String)> {
        Vec::new()
    }
}
