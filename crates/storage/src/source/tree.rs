//! What the walk found and the session still needs: names, fingerprints and descriptors of source entries.
//!
//! In: directories, files and symlinks from the walk; new fingerprints from refreshes. Out: a descriptor of
//! any directory or file by its id, and its path for people.
//! Invariants: an entry is reached by directory descriptors and one component at a time, never through a
//! symlink below a source root but one that the walk was told to follow. Memory holds what was announced and
//! not yet forgotten, and the directories above it. No more is kept open than the two limits (a file has up
//! to two descriptors) and one per base directory; what was closed is opened again when needed, and the
//! caller checks that it is still the same file.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use haul_core::entry::{FileRange, Fingerprint, KeptNodes, Name, Timestamp};
use haul_core::id_map::IdMap;
use haul_core::ids::{DirId, FileId, Generation, TargetId};
use haul_core::metadata::Values;
use haul_core::schedule::TARGETS_MAX;
use haul_core::transfer::source::{Lies, OnChange};
use haul_core::wire::{Failure, FailureKind};
use rustix::fs::{Mode, OFlags, fstatfs, openat};
use rustix::io::Errno;

use super::age::{self, Clocked};
use super::failure::{of_source, os_failure};
use super::fds::FdCache;
use super::open::OpenFile;
use super::stat::{Seen, Stamp};
use super::view::{FileView, Place};
use super::{WallClock, version, wall_clock};
use crate::attributes::{self, Keeps};
use crate::descriptors::{Budget, budget};
use crate::io::IoTarget;
use crate::layout::{Provider, device_of, provider_at};
use crate::manners::{ByName, Manners};
use crate::meta_rate::MetaRate;
use crate::targets::Targets;
use crate::volume;

/// The table of source entries, shared by the walk and the engine's threads.
pub struct SourceTree {
    inner: Mutex<Inner>,
    targets: Targets,
    /// Tells how old a ctime is.
    clock: WallClock,
    /// See [`version::salt`].
    salt: u64,
    /// What becomes of files that change.
    changed: OnChange,
    leaves_links: bool,
    /// What else the user says of how it is walked.
    manners: Manners,
    nodes: KeptNodes,
    /// Whether owners are told by name, too.
    by_name: ByName,
    /// What of extended attributes and lists is announced.
    keeps: Keeps,
    keeps_hard_links: bool,
    /// The only file shows this of itself, and no more.
    part: Option<FileRange>,
    /// The destination keeps mtimes in such steps; zero: as finely as they are.
    kept: Duration,
    /// Operations that this end makes in a second.
    rate: Arc<MetaRate>,
    /// There was an entry of which not every read counts.
    any_young: AtomicBool,
}

struct Inner {
    bases: Vec<Base>,
    dirs: IdMap<DirId, DirNode>,
    entries: IdMap<FileId, EntryNode>,
    dir_fds: FdCache<DirId, OwnedFd>,
    files_open: FdCache<FileId, OpenFile>,
    /// What is known of file systems, by what `stat` calls their device.
    systems: HashMap<u64, System>,
}

struct Base {
    fd: Arc<OwnedFd>,
    target: IoTarget,
    /// As it was opened.
    path: Box<[u8]>,
}

struct System {
    /// Who says where files lie.
    provider: Provider,
    device: u64,
    clocked: Clocked,
    /// See [`version::mark`].
    mark: Option<u64>,
}

struct DirNode {
    place: Place,
    name: Name,
    /// The name is a link, and the directory is what it leads to.
    followed: bool,
    /// Known when it was opened; before, it is that of the directory above.
    target: Option<IoTarget>,
    /// Entries and directories in it that are not forgotten.
    children: u64,
    forgotten: bool,
}

struct EntryNode {
    place: Place,
    name: Name,
    /// The name is a link, and the file is what it leads to.
    followed: bool,
    generation: Generation,
    /// `None`: a symlink.
    stamp: Option<Stamp>,
    /// What is read before proves nothing; `None`: whatever is read counts.
    not_before: Option<Instant>,
    /// It gave bytes beyond its size.
    longer: bool,
    measured: Option<u64>,
    /// Tells the attributes that were announced from others.
    attributes: u64,
}

impl SourceTree {
    pub fn new() -> SourceTree {
        SourceTree::with_limits(0, 0).within(&budget())
    }

    /// The same, that keeps no more open than this.
    pub fn within(mut self, budget: &Budget) -> SourceTree {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        inner.dir_fds = FdCache::new(budget.source_dirs);
        // A file can have two descriptors: one of them for direct reads.
        inner.files_open = FdCache::new(budget.source_files / 2);
        self
    }

    /// The same, with a clock from the caller.
    pub fn with_clock(clock: WallClock) -> SourceTree {
        SourceTree { clock, ..SourceTree::new() }
    }

    /// The same, of files of which this becomes when they change.
    pub fn on_change(self, changed: OnChange) -> SourceTree {
        SourceTree { changed, ..self }
    }

    /// The same, of a source whose symbolic links are left out, where that is wanted.
    pub(crate) fn without_links(self, leaves_links: bool) -> SourceTree {
        SourceTree { leaves_links, ..self }
    }

    /// The same, of a source that is walked so.
    pub(crate) fn with_manners(self, manners: Manners) -> SourceTree {
        SourceTree { manners, ..self }
    }

    pub(crate) fn manners(&self) -> &Manners {
        &self.manners
    }

    /// The same, of which these FIFOs, sockets and devices are kept.
    pub(crate) fn with_nodes(self, nodes: KeptNodes) -> SourceTree {
        SourceTree { nodes, ..self }
    }

    /// The same, whose owners are told by name so.
    pub(crate) fn with_names(self, by_name: ByName) -> SourceTree {
        SourceTree { by_name, ..self }
    }

    pub(crate) fn by_name(&self) -> ByName {
        self.by_name
    }

    pub(crate) fn nodes(&self) -> KeptNodes {
        self.nodes
    }

    /// The same, of a source of which extended attributes or lists are kept.
    pub(crate) fn keeping(self, keeps: Keeps) -> SourceTree {
        SourceTree { keeps, ..self }
    }

    /// The same, of a source of which hard links are kept.
    pub(crate) fn keeping_hard_links(self, keeps_hard_links: bool) -> SourceTree {
        SourceTree { keeps_hard_links, ..self }
    }

    pub(crate) fn keeps_hard_links(&self) -> bool {
        self.keeps_hard_links
    }

    pub(crate) fn keeps(&self) -> Keeps {
        self.keeps
    }

    pub(crate) fn leaves_links(&self) -> bool {
        self.leaves_links
    }

    /// The same, of one file that shows a part of itself.
    pub(crate) fn of_part(self, part: Option<FileRange>) -> SourceTree {
        SourceTree { part, ..self }
    }

    /// The same, of files whose mtimes go to where they are kept in such steps.
    pub fn kept_in(self, kept: Duration) -> SourceTree {
        SourceTree { kept, ..self }
    }

    /// The same, of a source that is asked no faster than this.
    pub(crate) fn with_rate(self, rate: MetaRate) -> SourceTree {
        SourceTree { rate: Arc::new(rate), ..self }
    }

    pub(crate) fn rate(&self) -> &Arc<MetaRate> {
        &self.rate
    }

    /// Where the only file's part begins in it; 0 without.
    pub(crate) fn base(&self) -> u64 {
        self.part.map_or(0, |part| part.source)
    }

    /// The part that the only file shows of itself.
    pub(crate) fn part(&self) -> Option<FileRange> {
        self.part
    }

    /// A tree that keeps at most this many directories and files open.
    pub fn with_limits(dirs_open_max: usize, files_open_max: usize) -> SourceTree {
        SourceTree {
            inner: Mutex::new(Inner {
                bases: Vec::new(),
                dirs: IdMap::default(),
                entries: IdMap::default(),
                dir_fds: FdCache::new(dirs_open_max),
                files_open: FdCache::new(files_open_max),
                systems: HashMap::new(),
            }),
            targets: Targets::new(),
            clock: wall_clock(),
            salt: version::salt(),
            changed: OnChange::default(),
            leaves_links: false,
            manners: Manners::default(),
            nodes: KeptNodes::default(),
            by_name: ByName::No,
            keeps: Keeps::default(),
            keeps_hard_links: false,
            part: None,
            kept: Duration::ZERO,
            rate: Arc::default(),
            any_young: AtomicBool::new(false),
        }
    }

    /// The path of an entry relative to the destination; of one that is forgotten, nothing.
    pub fn path_of(&self, id: FileId) -> Vec<u8> {
        let inner = self.lock();
        if let Some(entry) = inner.entries.get(&id) {
            inner.path(entry.place, &entry.name)
        } else if let Some(dir) = inner.dirs.get(&id.as_dir()) {
            inner.path(dir.place, &dir.name)
        } else {
            Vec::new()
        }
    }

    /// The path of an entry at this end, as the sources were named, and the version of it that the session
    /// knows; `None`: it is forgotten, or no file.
    pub(crate) fn origin_of(&self, id: FileId) -> Option<(Vec<u8>, Stamp)> {
        let inner = self.lock();
        let entry = inner.entries.get(&id)?;
        let mut place = entry.place;
        while let Place::Dir(dir) = place {
            place = inner.dirs.get(&dir)?.place;
        }
        let Place::Base(base) = place else { return None };
        let path = [&inner.bases[base].path, &b"/"[..], &inner.path(entry.place, &entry.name)].concat();
        Some((path, entry.stamp?))
    }

    /// The system refused `op` on an entry: in the words of the command, if it names the entry.
    pub(crate) fn failed(&self, kind: FailureKind, op: &str, id: FileId, errno: Errno) -> Failure {
        match self.named(id) {
            Some(path) => of_source(os_failure(kind, op, &path, errno), op, &path),
            None => os_failure(kind, op, &self.path_of(id), errno),
        }
    }

    /// How the command names an entry, or what lies directly in what it names.
    fn named(&self, id: FileId) -> Option<Vec<u8>> {
        let inner = self.lock();
        let entry = inner.entries.get(&id)?;
        let Place::Base(base) = entry.place else { return None };
        let base = &inner.bases.get(base)?.path;
        let slash: &[u8] = if base.ends_with(b"/") { b"" } else { b"/" };
        match &base[..] {
            b"" => None,
            // What has no slash was typed without one.
            b"./" => Some(entry.name.as_bytes().to_vec()),
            base => Some([base, slash, entry.name.as_bytes()].concat()),
        }
    }

    /// The entry is over: its descriptor is closed and its id means nothing any more.
    pub fn forget(&self, id: FileId) {
        let mut inner = self.lock();
        let fd = inner.files_open.remove(&id);
        match inner.entries.remove(&id) {
            Some(entry) => inner.release(entry.place),
            // A directory shares the number of its entry.
            None => inner.forget_dir(id.as_dir()),
        }
        // Closing may wait for a server: not under the lock.
        drop(inner);
        drop(fd);
    }

    /// As [`SourceTree::forget`], where nothing is to be closed for that; never waits for storage. False: it
    /// is not done.
    pub(crate) fn forget_at_once(&self, id: FileId) -> bool {
        let mut inner = self.lock();
        let Some(entry) = inner.entries.get(&id) else { return false };
        let place = entry.place;
        // With the last entry of a directory that is over its descriptor goes, too.
        let is_last = |dir: DirId| inner.dirs.get(&dir).is_some_and(|dir| dir.forgotten && dir.children <= 1);
        if inner.files_open.has(&id) || matches!(place, Place::Dir(dir) if is_last(dir)) {
            return false;
        }
        inner.entries.remove(&id);
        inner.release(place);
        true
    }

    /// The directory goes when nothing in it is left either. Only after its last entry was walked.
    pub fn forget_dir(&self, id: DirId) {
        self.lock().forget_dir(id);
    }

    /// Entries (files and symlinks) and directories that are not forgotten.
    pub fn len(&self) -> (usize, usize) {
        let inner = self.lock();
        (inner.entries.len(), inner.dirs.len())
    }

    /// Nothing is registered.
    pub fn is_empty(&self) -> bool {
        self.len() == (0, 0)
    }

    /// A directory outside of the job. `path`: how it was opened.
    pub(crate) fn add_base(&self, fd: Arc<OwnedFd>, path: &[u8]) -> Place {
        let target = IoTarget::of(&*fd);
        self.know(target, &fd);
        let mut inner = self.lock();
        inner.bases.push(Base { fd, target, path: path.into() });
        Place::Base(inner.bases.len() - 1)
    }

    pub(crate) fn add_dir(&self, id: DirId, place: Place, name: Name) {
        let mut inner = self.lock();
        inner.hold(place);
        let (followed, forgotten) = (false, false);
        inner.dirs.insert(id, DirNode { place, name, followed, target: None, children: 0, forgotten });
    }

    /// The name of an entry that was just registered is a link that is followed. Before anybody else knows of
    /// the entry.
    pub(crate) fn follow(&self, id: FileId) {
        let mut inner = self.lock();
        if let Some(entry) = inner.entries.get_mut(&id) {
            entry.followed = true;
        } else if let Some(dir) = inner.dirs.get_mut(&id.as_dir()) {
            dir.followed = true;
        }
    }

    /// Keeps an open directory for reuse, as long as the limit allows.
    pub(crate) fn keep_dir(&self, id: DirId, fd: Arc<OwnedFd>) {
        let target = IoTarget::of(&*fd);
        self.know(target, &fd);
        let evicted = {
            let mut inner = self.lock();
            let Some(dir) = inner.dirs.get_mut(&id) else { return };
            dir.target = Some(target);
            inner.dir_fds.insert(id, fd)
        };
        drop(evicted);
    }

    /// Registers what a look just showed: a file (its stamp is that of generation 0), or a symlink (`None`);
    /// with its attributes.
    pub(crate) fn add_entry(
        &self,
        id: FileId,
        place: Place,
        name: Name,
        seen: Option<&Seen>,
        values: &Values,
    ) {
        let now = (self.clock)();
        let stamp = seen.map(|seen| seen.stamp);
        let generation = Generation(0);
        let attributes = attributes::print(values);
        let (followed, longer, measured) = (false, false, None);
        let mut inner = self.lock();
        let settle = seen.map_or(Duration::ZERO, |seen| self.settle_at(&inner, place, seen, now));
        let not_before = (!settle.is_zero()).then(|| Instant::now() + settle);
        if not_before.is_some() {
            // Ahead of the entry, which is told behind.
            self.any_young.store(true, Ordering::Release);
        }
        let entry =
            EntryNode { place, name, followed, generation, stamp, not_before, longer, measured, attributes };
        inner.hold(place);
        inner.entries.insert(id, entry);
    }

    /// For how long from now on a read of a file that was just seen does not count, for a change could leave
    /// what was seen as it is.
    pub(crate) fn settle(&self, place: Place, seen: &Seen) -> Duration {
        let now = (self.clock)();
        self.settle_at(&self.lock(), place, seen, now)
    }

    fn settle_at(&self, inner: &Inner, place: Place, seen: &Seen, now: Timestamp) -> Duration {
        let clocked = inner.clocked(place, seen.dev);
        let kept = age::settle_kept(seen.stamp.mtime, now, clocked, self.kept);
        age::settle(seen.stamp.ctime, now, clocked).max(kept)
    }

    /// The fingerprint of a file that was just seen, as the far end is told it: with it a later run knows
    /// this version again.
    pub(crate) fn announced(&self, seen: &Seen) -> Fingerprint {
        let inner = self.lock();
        // Its own, for something else may be mounted on the file itself.
        let mark = inner.systems.get(&seen.dev).and_then(|system| system.mark).unwrap_or(self.salt);
        version::fingerprint(&seen.stamp, mark, self.part.as_ref().filter(|_| seen.is_file()))
    }

    /// From when on a read of a walked file counts; `None`: whatever is read does.
    pub fn not_before(&self, id: FileId) -> Option<Instant> {
        // Most trees have none, and each entry is asked for.
        if !self.any_young.load(Ordering::Acquire) {
            return None;
        }
        self.lock().entries.get(&id)?.not_before
    }

    /// A registered file; `None` if it is forgotten or was never a file.
    pub(crate) fn file(&self, id: FileId) -> Option<FileView> {
        let inner = self.lock();
        let entry = inner.entries.get(&id)?;
        Some(FileView {
            place: entry.place,
            name: entry.name.clone(),
            followed: entry.followed,
            generation: entry.generation,
            stamp: entry.stamp?,
            dev: inner.target_at(entry.place).device(),
            measured: entry.measured,
            changed: self.changed,
            part: self.part,
            keeps: self.keeps,
            attributes: entry.attributes,
        })
    }

    /// The file gave bytes beyond its size: when it is looked at anew, it is to be measured.
    pub(crate) fn is_longer(&self, id: FileId) {
        if let Some(entry) = self.lock().entries.get_mut(&id) {
            entry.longer = true;
        }
    }

    /// Whether a file gave bytes beyond its size.
    pub(crate) fn was_longer(&self, id: FileId) -> bool {
        self.lock().entries.get(&id).is_some_and(|entry| entry.longer)
    }

    /// The file's content is of this generation from now on; a descriptor of an older one is closed.
    /// `measured`: what it gives, where that is more than its size; `attributes`: what tells those that it
    /// has.
    pub(crate) fn refresh(
        &self,
        id: FileId,
        generation: Generation,
        stamp: Stamp,
        (measured, attributes): (Option<u64>, u64),
    ) {
        let mut inner = self.lock();
        let fd = inner.files_open.remove(&id);
        if let Some(entry) = inner.entries.get_mut(&id) {
            entry.generation = generation;
            entry.stamp = Some(stamp);
            entry.measured = measured;
            entry.attributes = attributes;
        }
        drop(inner);
        drop(fd);
    }

    /// The storage target of an entry: the file system of its directory, as far as that was opened.
    pub(crate) fn target_of(&self, id: FileId) -> IoTarget {
        let inner = self.lock();
        let dir = || inner.dirs.get(&id.as_dir()).map(|dir| dir.place);
        let place = inner.entries.get(&id).map(|entry| entry.place).or_else(dir);
        place.map_or(IoTarget::default(), |place| inner.target_at(place))
    }

    /// The storage targets of this end.
    pub fn targets(&self) -> &Targets {
        &self.targets
    }

    /// Where a file lies, as far as that is known without a question.
    pub fn lies(&self, id: FileId) -> Lies {
        let device = self.target_of(id).device();
        match self.provider(device) {
            // A part is not cut as its file is.
            _ if self.part.is_some() => Lies::At(self.device_target(device)),
            Provider::Flat => Lies::At(self.device_target(device)),
            _ => Lies::Ask,
        }
    }

    /// The target of what lies on this device as a whole.
    pub(crate) fn device_target(&self, device: u64) -> TargetId {
        let known = self.lock().systems.get(&device).map(|system| system.device);
        self.targets.device(known.unwrap_or(device))
    }

    /// Who says where files of this device lie.
    pub(crate) fn provider(&self, device: u64) -> Provider {
        self.lock().systems.get(&device).map_or(Provider::Flat, |system| system.provider.clone())
    }

    /// Finds out who says where files of a file system lie, and whose clock gives their times, once.
    fn know(&self, target: IoTarget, dir: &OwnedFd) {
        let inner = self.lock();
        if inner.systems.contains_key(&target.device()) || inner.systems.len() >= TARGETS_MAX {
            return;
        }
        // It may ask a server: not under the lock.
        drop(inner);
        let provider = provider_at(dir.as_fd());
        let device = device_of(dir.as_fd());
        let kind = fstatfs(dir).map_or(0, |stat| stat.f_type as u64);
        let (clocked, mark) = (Clocked::of(kind), version::mark(kind, volume::unique(dir).as_deref()));
        self.lock().systems.insert(target.device(), System { provider, device, clocked, mark });
    }

    /// A file that an earlier read left open.
    pub(crate) fn open_file(&self, id: FileId) -> Option<Arc<OpenFile>> {
        self.lock().files_open.get(&id)
    }

    /// Keeps a file open for its later reads, unless it was forgotten or refreshed meanwhile.
    pub(crate) fn keep_file(&self, id: FileId, generation: Generation, file: Arc<OpenFile>) {
        let evicted = {
            let mut inner = self.lock();
            if inner.entries.get(&id).is_none_or(|entry| entry.generation != generation) {
                return;
            }
            inner.files_open.insert(id, file)
        };
        drop(evicted);
    }

    /// The directory at `place`, opened again if its descriptor was given up.
    ///
    /// Errors: of `openat`; ENOTDIR or ELOOP when a directory on the way became something else.
    pub(crate) fn dir_fd(&self, place: Place) -> Result<Arc<OwnedFd>, Errno> {
        let mut missing = Vec::new();
        let mut fd = {
            let mut inner = self.lock();
            let mut place = place;
            loop {
                match place {
                    Place::Base(base) => break inner.bases[base].fd.clone(),
                    Place::Dir(id) => {
                        if let Some(fd) = inner.dir_fds.get(&id) {
                            break fd;
                        }
                        let dir = inner.dirs.get(&id).ok_or(Errno::STALE)?;
                        missing.push((id, dir.name.clone(), dir.followed));
                        place = dir.place;
                    }
                }
            }
        };
        // O_PATH: a directory may be passed through that may not be read.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        while let Some((id, name, followed)) = missing.pop() {
            let flags = if followed { flags } else { flags | OFlags::NOFOLLOW };
            fd = Arc::new(openat(&fd, name.as_bytes(), flags, Mode::empty())?);
            self.keep_dir(id, fd.clone());
        }
        Ok(fd)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No invariant is broken half-way by a panic in here: every change is one insert or remove.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// The storage target of what lies at `place`, as far as its directory was opened.
    fn target_at(&self, place: Place) -> IoTarget {
        let mut place = Some(place);
        while let Some(at) = place {
            match at {
                Place::Base(base) => return self.bases[base].target,
                Place::Dir(id) => match self.dirs.get(&id) {
                    Some(DirNode { target: Some(target), .. }) => return *target,
                    above => place = above.map(|dir| dir.place),
                },
            }
        }
        IoTarget::default()
    }

    /// Whose clock gives the times of a file at `place` that `stat` says to be of `dev`.
    fn clocked(&self, place: Place, dev: u64) -> Clocked {
        let of = |dev: u64| self.systems.get(&dev).map(|system| system.clocked);
        let above = self.target_at(place).device();
        match of(above).unwrap_or(Clocked::Elsewhere) {
            // Something else is mounted on the file itself.
            Clocked::Here if dev != above => of(dev).unwrap_or(Clocked::Elsewhere),
            clocked => clocked,
        }
    }

    fn path(&self, place: Place, name: &Name) -> Vec<u8> {
        let mut names = vec![name.as_bytes()];
        let mut place = place;
        while let Place::Dir(id) = place {
            let Some(dir) = self.dirs.get(&id) else { break };
            names.push(dir.name.as_bytes());
            place = dir.place;
        }
        names.reverse();
        names.join(&b'/')
    }

    fn hold(&mut self, place: Place) {
        if let Place::Dir(id) = place
            && let Some(dir) = self.dirs.get_mut(&id)
        {
            dir.children += 1;
        }
    }

    /// One entry less at `place`; forgotten directories that are empty now go, and so on upwards.
    fn release(&mut self, mut place: Place) {
        while let Place::Dir(id) = place {
            let Some(dir) = self.dirs.get_mut(&id) else { return };
            dir.children = dir.children.saturating_sub(1);
            if dir.children > 0 || !dir.forgotten {
                return;
            }
            place = dir.place;
            self.remove_dir(id);
        }
    }

    fn forget_dir(&mut self, id: DirId) {
        let Some(dir) = self.dirs.get_mut(&id) else { return };
        dir.forgotten = true;
        if dir.children == 0 {
            let place = dir.place;
            self.remove_dir(id);
            self.release(place);
        }
    }

    fn remove_dir(&mut self, id: DirId) {
        self.dirs.remove(&id);
        self.dir_fds.remove(&id);
    }
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
