//! Files being written: one temporary and one descriptor each, from the first write to the commit.
//!
//! What must hold: a file has one temporary, also when its first writes come at once; the descriptor that it
//! began with stays open until the file is committed or discarded, for through it failed write-backs are seen
//! (also those of a second descriptor for direct I/O, which may come and go: errors belong to the inode, and
//! every descriptor that was open hears of them). A file that failed stays failed until it is discarded.
//! The session bounds how many are open (`descriptors::budget`).

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use haul_core::entry::{Name, Timestamp};
use haul_core::extents::ExtentMap;
use haul_core::ids::{DirId, FileId, TargetId};
use haul_core::io::IoMode;
use haul_core::layout::{Layout, Striping};
use haul_core::transfer::SMALL_LEN_MAX;
use haul_core::transfer::op::{Existing, Found, LookupItem, SinkFile};
use haul_core::wire::{Failure, Stage};
use rustix::fs::{FileType, FsWord, Stat, Timespec, Timestamps};
use rustix::io::{Errno, retry_on_intr};

use super::data::Path;
use super::look::existing_of;
use super::names::temp_name;
use super::places::{Places, key_of, key_of_one};
use super::space::Spaces;
use super::stripes::Stripes;
use super::tree::SinkTree;
use super::{fault, lock};
use crate::storage::io::{IoFile, Target};
use crate::storage::layout::layout_of;

/// Magic numbers of file systems that take the inode's lock for a buffered write: ext2 to ext4, XFS, btrfs, f2fs,
/// tmpfs.
const LOCAL: [FsWord; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];

/// The open files of a session.
pub(super) struct Files {
    pub(super) tree: Arc<SinkTree>,
    /// Stands in the names of this session's temporaries.
    tag: u32,
    open: Mutex<HashMap<FileId, Arc<OpenFile>>>,
    grain: OnceLock<u32>,
    /// The file system is of [`LOCAL`]. The destination is one file system, but for what is mounted below it; where this is wrong
    /// it costs time only.
    local: bool,
    pub(super) spaces: Spaces,
    /// `None`: the destination has one storage target.
    places: Option<Places>,
    pub(super) stripes: Stripes,
    /// A temporary of this session could not be removed.
    left: AtomicBool,
}

/// A file being written.
pub(super) struct OpenFile {
    pub(super) parent: DirId,
    pub(super) name: Name,
    pub(super) temp: Name,
    pub(super) size: u64,
    /// Bytes that have to be written: all but holes.
    pub(super) data_len: u64,
    /// `None`: it has data everywhere.
    map: Option<ExtentMap>,
    state: Mutex<State>,
    /// How it is cut at the source, if that was told.
    source: OnceLock<Striping>,
    /// The stripes that it was made with, if it was made so.
    striped: OnceLock<Striping>,
    /// Where it lies, if that was asked and told.
    layout: OnceLock<Layout<TargetId>>,
    /// How its objects reach storage; bundled files have no need of it.
    pub(super) path: Mutex<Path>,
}

enum State {
    New,
    Open(Opened),
    Failed {
        failure: Failure,
        /// Its temporary is there and ours to remove.
        temp: bool,
    },
    Closed,
}

#[derive(Clone)]
struct Opened {
    file: Arc<IoFile>,
    /// An earlier run wrote a part of it.
    adopted: bool,
    /// It has its space, and its objects know their way.
    ready: bool,
}

impl OpenFile {
    /// What a request at this offset is told apart by, if the file's layout is known.
    pub(super) fn target_at(&self, offset: u64) -> Option<Target> {
        self.layout.get().map(|layout| key_of_one(*layout.at(offset).target))
    }

    /// Where it lies, if that was asked and told.
    pub(super) fn layout(&self) -> Option<Layout<TargetId>> {
        self.layout.get().cloned()
    }
}

/// Bytes of a file that have to be written: all but holes.
pub(super) fn data_len(file: &SinkFile) -> u64 {
    file.map.as_ref().map_or(file.size, ExtentMap::data_len)
}

/// The descriptor of a sink's file.
pub(super) fn descriptor(file: &IoFile) -> BorrowedFd<'_> {
    file.fd.as_ref().expect("a sink's file has a descriptor").as_fd()
}

impl Files {
    pub(super) fn new(
        tree: Arc<SinkTree>,
        tag: u32,
        spaces: Spaces,
        places: Option<Places>,
        stripes: Stripes,
    ) -> Files {
        let root = tree.dirfd(DirId::ROOT).ok().and_then(|root| rustix::fs::fstatfs(root).ok());
        let local = root.is_some_and(|stat| LOCAL.contains(&stat.f_type));
        Files {
            tree,
            tag,
            open: Mutex::default(),
            grain: OnceLock::new(),
            local,
            spaces,
            places,
            stripes,
            left: AtomicBool::new(false),
        }
    }

    /// The temporary's name for `name` in this session.
    pub(super) fn temp_name(&self, name: &Name) -> Name {
        temp_name(name, self.tag)
    }

    /// The file's temporary, made at the first call.
    pub(super) fn fd(&self, file: &SinkFile) -> Result<Arc<IoFile>, Failure> {
        let open = self.entry_of(file);
        let mut state = lock(&open.state);
        self.opened(&open, &mut state).map(|opened| opened.file)
    }

    /// The file with its temporary and space for its data, ready for objects. `begin` is called once, before
    /// the first of them.
    pub(super) fn ready(
        &self,
        file: &SinkFile,
        begin: impl FnOnce(&OpenFile, &Arc<IoFile>),
    ) -> Result<Arc<OpenFile>, Failure> {
        let open = self.entry_of(file);
        let mut state = lock(&open.state);
        let mut opened = self.opened(&open, &mut state)?;
        if !opened.ready {
            let path = || self.tree.path_of(open.parent, &open.name);
            let fd = descriptor(&opened.file);
            let extents: Option<Vec<(u64, u64)>> = open
                .map
                .as_ref()
                .map(|map| map.extents().iter().map(|extent| (extent.offset, extent.len)).collect());
            let device = rustix::fs::fstat(fd).map_or(0, |stat| stat.st_dev);
            let reserved = self.spaces.reserve(fd, device, open.size, extents.as_deref(), path);
            if let Err(failure) = reserved {
                // What an earlier run brought here stays for the next one; nothing is in a new one.
                let temp = opened.adopted || !self.remove(&open);
                *state = State::Failed { failure: failure.clone(), temp };
                return Err(failure);
            }
            begin(&open, &opened.file);
            opened.ready = true;
            *state = State::Open(opened.clone());
        }
        drop(state);
        Ok(open)
    }

    /// The file, if it is ready for objects; never waits for storage.
    pub(super) fn if_ready(&self, file: &SinkFile) -> Option<Arc<OpenFile>> {
        let open = lock(&self.open).get(&file.id).cloned()?;
        let ready = matches!(&*open.state.try_lock().ok()?, State::Open(opened) if opened.ready);
        ready.then_some(open)
    }

    /// The temporary, made if the file has none yet.
    fn opened(&self, open: &OpenFile, state: &mut State) -> Result<Opened, Failure> {
        match state {
            State::Open(opened) => return Ok(opened.clone()),
            State::Failed { failure, .. } => return Err(failure.clone()),
            State::Closed => return Err(self.closed(open)),
            State::New => {}
        }
        match self.create(open) {
            Ok(fd) => {
                let opened = Opened { file: self.io_file(open, fd), adopted: false, ready: false };
                *state = State::Open(opened.clone());
                Ok(opened)
            }
            Err(failure) => {
                *state = State::Failed { failure: failure.clone(), temp: false };
                Err(failure)
            }
        }
    }

    /// The temporary of a file that was written before, and whether all of its bytes went through its path in this
    /// session (neither from a bundle nor in part by an earlier run).
    pub(super) fn fd_of(&self, id: FileId) -> Result<(Arc<OpenFile>, Arc<IoFile>, bool), Failure> {
        let open = lock(&self.open).get(&id).cloned();
        let Some(open) = open else {
            return Err(fault::failure(
                Stage::Publish,
                0,
                format!("file {id} has no temporary in this session"),
            ));
        };
        let opened = match &*lock(&open.state) {
            State::Open(opened) => opened.clone(),
            State::Failed { failure, .. } => return Err(failure.clone()),
            State::New | State::Closed => return Err(self.closed(&open)),
        };
        Ok((open, opened.file, opened.ready && !opened.adopted))
    }

    /// What the requests of an open file are told apart by, if that is more than its device.
    pub(super) fn target_of(&self, id: FileId) -> Option<Target> {
        let open = lock(&self.open).get(&id).cloned()?;
        open.layout.get().map(key_of)
    }

    /// Files may lie on several storage targets.
    pub(super) fn has_places(&self) -> bool {
        self.places.is_some()
    }

    /// Where a file lies of which something was written.
    pub(super) fn place_of(&self, id: FileId) -> Option<(DirId, Name)> {
        lock(&self.open).get(&id).map(|open| (open.parent, open.name.clone()))
    }

    /// Closes the file; its temporary, if it has one that is ours and `remove`, loses its name.
    pub(super) fn close(&self, id: FileId, remove: bool) {
        let Some(open) = lock(&self.open).remove(&id) else { return };
        let was = std::mem::replace(&mut *lock(&open.state), State::Closed);
        let temp = matches!(was, State::Open(_) | State::Failed { temp: true, .. });
        if temp && remove {
            self.remove(&open);
        }
    }

    /// The file failed: writes of it fail with this until it is closed. Its temporary goes at once if `remove`,
    /// else never. Nothing happens to a file that failed before.
    pub(super) fn fail(&self, id: FileId, failure: &Failure, remove: bool) {
        let open = lock(&self.open).get(&id).cloned();
        if let Some(open) = open {
            self.fail_open(&open, failure, remove);
        }
    }

    pub(super) fn fail_open(&self, open: &OpenFile, failure: &Failure, remove: bool) {
        let mut state = lock(&open.state);
        let temp = match &*state {
            State::Open(_) => remove && !self.remove(open),
            State::New => false,
            State::Failed { .. } | State::Closed => return,
        };
        *state = State::Failed { failure: failure.clone(), temp };
    }

    /// Removes the temporary's name. False if it is still there.
    fn remove(&self, open: &OpenFile) -> bool {
        let dir = self.tree.dirfd(open.parent).ok();
        let gone = dir.map(|dir| self.tree.jail().unlink(&dir, &open.temp));
        let gone = matches!(gone, Some(Ok(()) | Err(Errno::NOENT)));
        if !gone {
            self.left.store(true, Ordering::Release);
        }
        gone
    }

    /// Whether a temporary of this session could not be removed. By its tag in the journal a later run finds it.
    pub(super) fn left_any(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    fn entry_of(&self, file: &SinkFile) -> Arc<OpenFile> {
        lock(&self.open).entry(file.id).or_insert_with(|| self.entry(file)).clone()
    }

    fn entry(&self, file: &SinkFile) -> Arc<OpenFile> {
        Arc::new(OpenFile {
            parent: file.parent,
            name: file.name.clone(),
            temp: self.temp_name(&file.name),
            size: file.size,
            data_len: data_len(file),
            map: file.map.clone(),
            state: Mutex::new(State::New),
            source: OnceLock::new(),
            striped: OnceLock::new(),
            layout: OnceLock::new(),
            path: Mutex::default(),
        })
    }

    fn closed(&self, open: &OpenFile) -> Failure {
        let path = self.tree.path_of(open.parent, &open.name);
        fault::failure(Stage::Write, 0, format!("{path} was discarded before this"))
    }

    /// Says how a file is cut at the source, before it is made.
    pub(super) fn want(&self, file: &SinkFile, striping: Option<Striping>) {
        if let Some(striping) = striping {
            // It is told once for each generation of a file, and a later one may be cut otherwise: the first counts.
            let _ = self.entry_of(file).source.set(striping);
        }
    }

    /// The destination is a local file system.
    pub(super) fn is_local(&self) -> bool {
        self.local
    }

    /// Files were found on more than one storage target.
    pub(super) fn has_several_targets(&self) -> bool {
        self.places.as_ref().is_some_and(|places| places.targets().count() > 1)
    }

    fn create(&self, open: &OpenFile) -> Result<OwnedFd, Failure> {
        let dir = self.tree.dirfd(open.parent)?;
        let jail = self.tree.jail();
        let wanted = match self.places.is_some() && open.size > SMALL_LEN_MAX {
            true => self.stripes.wanted(open.source.get().copied(), || self.striping_before(open, &dir)),
            false => None,
        };
        let make = || {
            if let Some(wanted) = wanted
                && let Some(file) = self.stripes.make(&jail, &dir, &open.temp, wanted)?
            {
                let _ = open.striped.set(wanted);
                return Ok(file);
            }
            jail.create_temp(&dir, &open.temp)
        };
        let mut made = make();
        if matches!(made, Err(Errno::EXIST)) {
            // Only this session writes this tag, so it is a leftover of its own.
            let _ = jail.unlink(&dir, &open.temp);
            made = make();
        }
        made.map_err(|errno| {
            let path = self.tree.path_of(open.parent, &open.temp);
            fault::os_at(Stage::Create, "create", &path, errno, &dir)
        })
    }

    /// How the file is cut that this one replaces, if there is one and it can be asked.
    fn striping_before(&self, open: &OpenFile, dir: &OwnedFd) -> Option<Striping> {
        if self.tree.was_created(open.parent) {
            return None;
        }
        let file = self.tree.jail().open_file(dir, &open.name, false).ok()?;
        let stat = rustix::fs::fstat(&file).ok()?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return None;
        }
        layout_of(&file, stat.st_size as u64).layout.striping()
    }

    /// The temporary as lanes take it.
    fn io_file(&self, open: &OpenFile, fd: OwnedFd) -> Arc<IoFile> {
        // Small files come many at a time and hardly ever on their own: their name alone must do.
        let name = match open.size <= SMALL_LEN_MAX {
            true => fault::show(open.name.as_bytes()),
            false => self.tree.path_of(open.parent, &open.name),
        };
        let device = rustix::fs::fstat(&fd).map_or(0, |stat| stat.st_dev);
        let places = self.places.as_ref().filter(|_| open.size > SMALL_LEN_MAX);
        let layout = places.and_then(|places| places.layout(fd.as_fd(), open.size));
        if let Some(wanted) = open.striped.get() {
            self.stripes.lies(*wanted, layout.as_ref().and_then(Layout::striping));
        }
        let target = layout.as_ref().map_or(Target(device), key_of);
        if let Some(layout) = layout {
            // Set here alone; a file is opened once.
            let _ = open.layout.set(layout);
        }
        let one_writer = self.local;
        let fd = Some(fd);
        let mode = IoMode::Buffered;
        Arc::new(IoFile { fd, mode, target, one_writer, name: name.into() })
    }

    /// A second descriptor of the file's temporary, for direct I/O.
    ///
    /// # Errors
    /// The file system refuses it, or the name no longer leads to the same file.
    pub(super) fn open_direct(&self, open: &OpenFile, file: &IoFile) -> rustix::io::Result<Arc<IoFile>> {
        let dir = self.tree.dirfd(open.parent).map_err(|_| Errno::NOENT)?;
        let fd = self.tree.jail().open_direct(&dir, &open.temp, descriptor(file))?;
        let IoFile { target, name, .. } = file;
        let (fd, target, name) = (Some(fd), *target, name.clone());
        Ok(Arc::new(IoFile { fd, mode: IoMode::Direct, target, one_writer: false, name }))
    }

    /// Writes a small file whole.
    pub(super) fn write_whole(&self, file: &SinkFile, data: &[u8]) -> Result<(), Failure> {
        let temp = self.fd(file)?;
        let fd = descriptor(&temp);
        write_all_at(fd, data, 0).map_err(|errno| {
            let path = self.tree.path_of(file.parent, &file.name);
            fault::os_at(Stage::Write, "write", &path, errno, fd)
        })
    }

    /// What stands at the item's name; and takes over the temporary of an earlier run.
    pub(super) fn look(&self, item: &LookupItem) -> Result<Found, Failure> {
        let file = &item.file;
        let dir = self.tree.dirfd(file.parent)?;
        let adopted = match item.adopt {
            Some(tag) => self.adopt(file, &dir, tag)?,
            None => false,
        };
        // Nothing can stand in a directory that this run made; that spares a request per new file.
        if self.tree.was_created(file.parent) {
            return Ok(Found { existing: Existing::Nothing, adopted });
        }
        let existing = match self.tree.jail().stat(&dir, &file.name) {
            Err(Errno::NOENT) => Existing::Nothing,
            Err(errno) => {
                let path = self.tree.path_of(file.parent, &file.name);
                return Err(fault::os(Stage::Open, "stat", &path, errno));
            }
            Ok(stat) => existing_of(&stat, |mtime| self.grain_for(mtime)),
        };
        Ok(Found { existing, adopted })
    }

    /// Renames the temporary of the run with `tag` to ours and opens it. False if it is not there, or is not
    /// what we left: a regular file with one name.
    fn adopt(&self, file: &SinkFile, dir: &OwnedFd, tag: u32) -> Result<bool, Failure> {
        let jail = self.tree.jail();
        let (old, new) = (temp_name(&file.name, tag), self.temp_name(&file.name));
        let fail = |what, errno| fault::os(Stage::Open, what, &self.tree.path_of(file.parent, &old), errno);
        let ours = |stat: &Stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_nlink == 1
        };
        match jail.stat(dir, &old) {
            Err(Errno::NOENT) => return Ok(false),
            Err(errno) => return Err(fail("stat", errno)),
            Ok(stat) if !ours(&stat) => return Ok(false),
            Ok(_) => {}
        }
        match jail.rename(dir, &old, &new, false) {
            Err(Errno::NOENT) => return Ok(false),
            other => other.map_err(|errno| fail("take over", errno))?,
        }
        let fd = match jail.open_file(dir, &new, true) {
            // Made by another user, or changed meanwhile: worthless to us.
            Err(Errno::LOOP | Errno::NOENT | Errno::ACCESS | Errno::PERM | Errno::NXIO) => {
                let _ = jail.unlink(dir, &new);
                return Ok(false);
            }
            other => other.map_err(|errno| fail("open", errno))?,
        };
        // Looked at again through the descriptor, for the name may have been changed in between.
        if !ours(&rustix::fs::fstat(&fd).map_err(|errno| fail("stat", errno))?) {
            let _ = jail.unlink(dir, &new);
            return Ok(false);
        }
        let open = self.entry(file);
        let file_of = Opened { file: self.io_file(&open, fd), adopted: true, ready: false };
        *lock(&open.state) = State::Open(file_of);
        lock(&self.open).insert(file.id, open);
        Ok(true)
    }

    /// The granularity of the destination's mtimes, nanoseconds. It is probed once, and only when it could
    /// matter: an mtime that is no multiple of 100 ns proves that there is none.
    pub(super) fn grain_for(&self, mtime: Timestamp) -> u32 {
        if !mtime.nanos.is_multiple_of(100) {
            return 1;
        }
        *self.grain.get_or_init(|| self.probe_grain().unwrap_or(1))
    }

    fn probe_grain(&self) -> Option<u32> {
        let (root, jail) = (self.tree.root(), self.tree.jail());
        let name = self.temp_name(&Name::new(b"haul~grain").ok()?);
        let fd = jail.create_temp(root, &name).ok()?;
        let set = Timestamp { secs: 1_000_000_001, nanos: 123_456_789 };
        let read = set_mtime(&fd, set).and_then(|()| rustix::fs::fstat(&fd));
        // A file system that is asked again without its cache would truncate too; the name goes at once.
        let _ = jail.unlink(root, &name);
        Some(grain_between(set, mtime_of(&read.ok()?)))
    }
}

/// The smallest usual granularity that makes `read` of `set`; 1 if none does.
fn grain_between(set: Timestamp, read: Timestamp) -> u32 {
    let total = |t: Timestamp| i128::from(t.secs) * 1_000_000_000 + i128::from(t.nanos);
    let (set, read) = (total(set), total(read));
    [1, 100, 1_000, 1_000_000, 10_000_000, 1_000_000_000, 2_000_000_000]
        .into_iter()
        .find(|grain| set - set.rem_euclid(i128::from(*grain)) == read)
        .unwrap_or(1)
}

pub(super) fn mtime_of(stat: &Stat) -> Timestamp {
    Timestamp { secs: stat.st_mtime, nanos: u32::try_from(stat.st_mtime_nsec).unwrap_or(0) }
}

/// The times to set for this mtime; atime stays. `None`: nanoseconds that the kernel would read as a command.
pub(super) fn times(mtime: Timestamp) -> Option<Timestamps> {
    (mtime.nanos < 1_000_000_000).then(|| Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        last_modification: Timespec { tv_sec: mtime.secs, tv_nsec: i64::from(mtime.nanos) },
    })
}

pub(super) fn set_mtime(fd: impl AsFd, mtime: Timestamp) -> rustix::io::Result<()> {
    rustix::fs::futimens(fd, &times(mtime).ok_or(Errno::INVAL)?)
}

/// Writes all of `data`, however the kernel splits it.
pub(super) fn write_all_at(fd: impl AsFd, mut data: &[u8], mut offset: u64) -> rustix::io::Result<()> {
    while !data.is_empty() {
        match retry_on_intr(|| rustix::io::pwrite(&fd, data, offset))? {
            0 => return Err(Errno::IO),
            written => {
                data = &data[written..];
                offset += written as u64;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the grain is recognised from what the file system made of a known mtime.
    /// Method: each usual grain applied to the probe's value; and a value that no grain explains.
    #[test]
    fn grains_are_recognised() {
        let set = Timestamp { secs: 1_000_000_001, nanos: 123_456_789 };
        let cases =
            [(1, 1, 123_456_789), (100, 1, 123_456_700), (1_000, 1, 123_456_000), (1_000_000_000, 1, 0)];
        for (grain, secs, nanos) in cases {
            assert_eq!(grain_between(set, Timestamp { secs: 1_000_000_000 + secs, nanos }), grain);
        }
        assert_eq!(grain_between(set, Timestamp { secs: 1_000_000_000, nanos: 0 }), 2_000_000_000);
        assert_eq!(grain_between(set, Timestamp { secs: 5, nanos: 5 }), 1);
    }
}
