//! Files being written: one temporary and one descriptor each, from the first write to the commit.
//!
//! What must hold: a file has one temporary, also when its first writes come at once; the descriptor that it
//! began with stays open until the file is committed or discarded, for through it failed write-backs are seen
//! (also those of a second descriptor for direct I/O, which may come and go: errors belong to the inode, and
//! every descriptor that was open hears of them). A file that failed stays failed until it is discarded.
//! The session bounds how many are open (`descriptors::budget`).

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use haul_base::escape;
use haul_core::entry::{Name, Timestamp};
use haul_core::extents::ExtentMap;
use haul_core::id_map::IdMap;
use haul_core::ids::{DirId, FileId, TargetId};
use haul_core::io::IoMode;
use haul_core::layout::{Layout, Striping};
use haul_core::transfer::SMALL_LEN_MAX;
use haul_core::transfer::op::{Inode, SinkFile};
use haul_core::wire::{Failure, FailureKind};
use rustix::fs::{FileType, FsWord};
use rustix::io::Errno;

use super::calls::write_all_at;
use super::holes::clear_holes;
use super::layout::{SinkLayout, key_of, key_of_one};
use super::names::temp_name;
use super::space::Spaces;
use super::stat::{inode_of, is_regular};
use super::stripes::Stripes;
use super::tree::SinkTree;
use super::way::Path;
use super::{fault, lock};
use crate::io::{IoFile, IoTarget};
use crate::layout::layout_of;
use adopt::Adopt;
use aliases::{Aliases, mounted_twice};
use in_place::InPlace;
use nameless::Nameless;

pub(super) mod adopt;
pub(super) mod aliases;
pub(super) mod in_place;
mod live;
pub(super) mod look;
mod nameless;

/// Magic numbers of file systems that take the inode's lock for a buffered write: ext2 to ext4, XFS, btrfs,
/// f2fs, tmpfs.
const LOCAL: [FsWord; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];

/// The open files of a session.
pub(super) struct Files {
    pub(super) tree: Arc<SinkTree>,
    /// Stands in the names of this session's temporaries.
    pub(super) tag: u32,
    pub(super) adopt: Adopt,
    open: Mutex<IdMap<FileId, Arc<OpenFile>>>,
    /// Temporaries that are open, but for those of small files, whose inodes are asked for when that matters.
    /// One of them is never removed to make room for another, whatever the file system takes their names for.
    live: Mutex<HashSet<Inode>>,
    /// Temporaries that are being made and may not be among these yet.
    making: AtomicUsize,
    /// Granularity of mtimes by device, as far as that was asked.
    pub(super) grains: Mutex<HashMap<u64, Arc<Mutex<Option<u32>>>>>,
    /// What the destination makes of an mtime, as far as that was asked.
    pub(super) held: Mutex<HashMap<(u64, Timestamp), Option<Timestamp>>>,
    /// The file system is of [`LOCAL`]. The destination is one file system, but for what is mounted below it;
    /// where this is wrong it costs time only.
    local: bool,
    pub(super) spaces: Spaces,
    /// `None`: the destination has one storage target.
    sink_layout: Option<SinkLayout>,
    pub(super) stripes: Stripes,
    /// A temporary of this session could not be removed.
    left: AtomicBool,
    /// `None`: each file has a temporary of its own.
    pub(super) in_place: Option<InPlace>,
    nameless: Nameless,
    /// Which files have several names.
    pub(super) aliases: Aliases,
    /// Nothing counts as unchanged.
    copies_all: bool,
    /// One was not removed, for the job was another's or could not be looked at.
    kept: AtomicBool,
}

impl Files {
    /// Bytes that the open temporaries have on the file system. One that cannot be asked now counts as whole.
    pub(super) fn allocated(&self) -> u64 {
        let open: Vec<Arc<OpenFile>> = lock(&self.open).values().cloned().collect();
        let of = |file: &OpenFile| match file.state.try_lock().as_deref() {
            Ok(FileState::Open(opened)) => match rustix::fs::fstat(descriptor(&opened.file)) {
                Ok(stat) => (stat.st_blocks as u64).saturating_mul(512),
                Err(_) => file.size,
            },
            Ok(_) => 0,
            Err(_) => file.size,
        };
        open.iter().map(|file| of(file)).fold(0, u64::saturating_add)
    }
}

/// A file being written.
pub(super) struct OpenFile {
    pub(super) id: FileId,
    pub(super) parent: DirId,
    pub(super) name: Name,
    pub(super) temp: Name,
    /// The temporary does not have that name.
    nameless: AtomicBool,
    /// The mode that it was made with, if that is the one that it is to have.
    made_with: OnceLock<u32>,
    /// Which inode the temporary is, once that was asked: of a small file when it is whole, or is to be
    /// removed.
    inode: OnceLock<Inode>,
    /// The journal of this run or of one before may speak of it: whoever takes the job over may take it over,
    /// too.
    promised: AtomicBool,
    pub(super) size: u64,
    /// Bytes that have to be written: all but holes.
    pub(super) data_len: u64,
    /// `None`: it has data everywhere.
    pub(super) map: Option<ExtentMap>,
    state: Mutex<FileState>,
    /// How it is cut at the source, if that was told.
    source: OnceLock<Striping>,
    /// The stripes that it was made with, if it was made so.
    striped: OnceLock<Striping>,
    /// Where it lies, if that was asked and told.
    layout: OnceLock<Layout<TargetId>>,
    /// How its objects reach storage; bundled files have no need of it.
    pub(super) path: Mutex<Path>,
}

enum FileState {
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
    /// Whether its temporary may be removed. One that no journal speaks of is nobody's but ours, whoever owns
    /// the job now: its name is of this run alone.
    fn may_go(&self, may: impl FnOnce() -> bool) -> bool {
        let unknown =
            !self.promised.load(Ordering::Acquire) && !haul_mutant::removed("losers-clear-their-own");
        unknown || may()
    }

    /// Which inode it is, once that was asked.
    pub(super) fn inode(&self) -> Option<Inode> {
        self.inode.get().copied()
    }

    /// Its temporary can be found by its name, once it was made.
    pub(super) fn has_name(&self) -> bool {
        !self.nameless.load(Ordering::Acquire)
    }

    /// The mode that its temporary was made with, if that is the one that it is to have.
    pub(super) fn made_with(&self) -> Option<u32> {
        self.made_with.get().copied()
    }

    /// Its temporary was seen to be this inode.
    pub(super) fn is(&self, inode: Inode) {
        let _ = self.inode.set(inode);
    }

    /// What a request at this offset is told apart by, if the file's layout is known.
    pub(super) fn target_at(&self, offset: u64) -> Option<IoTarget> {
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
        (tag, adopt): (u32, Adopt),
        spaces: Spaces,
        sink_layout: Option<SinkLayout>,
        stripes: Stripes,
        (in_place, copies_all): (Option<InPlace>, bool),
    ) -> Files {
        let aliases = Aliases::new(in_place.is_some(), mounted_twice(tree.root_path()));
        let root = tree.dirfd(DirId::ROOT).ok().and_then(|root| rustix::fs::fstatfs(root).ok());
        let kind = root.map(|stat| stat.f_type);
        let local = kind.is_some_and(|kind| LOCAL.contains(&kind));
        Files {
            tree,
            tag,
            adopt,
            open: Mutex::default(),
            live: Mutex::default(),
            making: AtomicUsize::new(0),
            grains: Mutex::default(),
            held: Mutex::default(),
            local,
            spaces,
            sink_layout,
            stripes,
            left: AtomicBool::new(false),
            in_place,
            nameless: Nameless::new(kind),
            aliases,
            copies_all,
            kept: AtomicBool::new(false),
        }
    }

    /// The file's temporary in this session.
    pub(super) fn temp_name(&self, file: &SinkFile) -> Name {
        temp_name(&file.name, self.tag, file.number)
    }

    /// The file's temporary, made at the first call. `mode`: what it is to have, of one that is written whole
    /// at once.
    pub(super) fn fd(&self, file: &SinkFile, mode: Option<u32>) -> Result<Arc<IoFile>, Failure> {
        let open = self.entry_of(file);
        let mut state = lock(&open.state);
        self.opened(&open, &mut state, mode).map(|opened| opened.file)
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
        let mut opened = self.opened(&open, &mut state, None)?;
        self.name(&open, &opened.file, false)?;
        if !opened.ready {
            let path = || self.tree.path_of(open.parent, &open.name);
            let fd = descriptor(&opened.file);
            let extents: Option<Vec<(u64, u64)>> = open
                .map
                .as_ref()
                .map(|map| map.extents().iter().map(|extent| (extent.offset, extent.len)).collect());
            let device = rustix::fs::fstat(fd).map_or(0, |stat| stat.st_dev);
            // What is written into has its space, and its size says that it is not whole yet.
            let reserved = match &self.in_place {
                Some(_) => Ok(()),
                None => self.spaces.reserve(fd, device, open.size, extents.as_deref(), path),
            };
            if let Err(failure) = reserved {
                // What an earlier run brought here stays for the next one; nothing is in a new one.
                let temp = opened.adopted || !self.remove(&open);
                *state = FileState::Failed { failure: failure.clone(), temp };
                return Err(failure);
            }
            begin(&open, &opened.file);
            opened.ready = true;
            *state = FileState::Open(opened.clone());
        }
        drop(state);
        Ok(open)
    }

    /// The file, if it is ready for objects; never waits for storage.
    pub(super) fn if_ready(&self, file: &SinkFile) -> Option<Arc<OpenFile>> {
        let open = lock(&self.open).get(&file.id).cloned()?;
        let ready = matches!(&*open.state.try_lock().ok()?, FileState::Open(opened) if opened.ready);
        ready.then_some(open)
    }

    /// The temporary, made if the file has none yet; `mode` as in [`Files::fd`].
    fn opened(&self, open: &OpenFile, state: &mut FileState, mode: Option<u32>) -> Result<Opened, Failure> {
        match state {
            FileState::Open(opened) => return Ok(opened.clone()),
            FileState::Failed { failure, .. } => return Err(failure.clone()),
            FileState::Closed => return Err(self.closed(open)),
            FileState::New => {}
        }
        match self.create(open, mode) {
            Ok((fd, device)) => {
                let opened = Opened { file: self.io_file(open, fd, device), adopted: false, ready: false };
                *state = FileState::Open(opened.clone());
                Ok(opened)
            }
            Err(failure) => {
                *state = FileState::Failed { failure: failure.clone(), temp: false };
                Err(failure)
            }
        }
    }

    /// The temporary of a file that was written before, and whether all of its bytes went through its path in
    /// this session (neither from a bundle nor in part by an earlier run).
    pub(super) fn fd_of(&self, id: FileId) -> Result<(Arc<OpenFile>, Arc<IoFile>, bool), Failure> {
        let open = lock(&self.open).get(&id).cloned();
        let Some(open) = open else {
            return Err(fault::failure(
                FailureKind::Publish,
                0,
                format!("file {id} has no temporary in this session"),
            ));
        };
        let opened = match &*lock(&open.state) {
            FileState::Open(opened) => opened.clone(),
            FileState::Failed { failure, .. } => return Err(failure.clone()),
            FileState::New | FileState::Closed => return Err(self.closed(&open)),
        };
        Ok((open, opened.file, opened.ready && !opened.adopted))
    }

    /// What the requests of an open file are told apart by, if that is more than its device.
    pub(super) fn target_of(&self, id: FileId) -> Option<IoTarget> {
        let open = lock(&self.open).get(&id).cloned()?;
        open.layout.get().map(key_of)
    }

    /// Files may lie on several storage targets.
    pub(super) fn has_places(&self) -> bool {
        self.sink_layout.is_some()
    }

    /// Where a file lies of which something was written.
    pub(super) fn place_of(&self, id: FileId) -> Option<(DirId, Name)> {
        lock(&self.open).get(&id).map(|open| (open.parent, open.name.clone()))
    }

    /// Closes the file, which has its name.
    pub(super) fn close(&self, id: FileId) {
        self.close_as(id, |_, _| {});
    }

    /// Closes the file; its temporary loses its name, if it has one that is ours. What a journal may speak of
    /// is a later owner's to take over, so of that `may` is asked; where it says no, the temporary stays.
    pub(super) fn discard(&self, id: FileId, may: impl FnOnce() -> bool) {
        self.close_as(id, |open, was| match open.may_go(may) {
            true => {
                if let FileState::Open(opened) = was {
                    open.know(&opened.file);
                }
                self.remove(open);
            }
            false => self.kept.store(true, Ordering::Release),
        });
    }

    fn close_as(&self, id: FileId, end: impl FnOnce(&OpenFile, &FileState)) {
        let Some(open) = lock(&self.open).remove(&id) else { return };
        let was = std::mem::replace(&mut *lock(&open.state), FileState::Closed);
        if matches!(was, FileState::Open(_) | FileState::Failed { temp: true, .. }) {
            end(&open, &was);
        }
        if let Some(inode) = open.inode.get() {
            lock(&self.live).remove(inode);
        }
    }

    /// The file failed: writes of it fail with this until it is discarded. Its temporary goes at once, if it
    /// may (as in [`Files::discard`]), else then. Nothing happens to a file that failed before.
    pub(super) fn fail(&self, id: FileId, failure: &Failure, may: impl FnOnce() -> bool) {
        let open = lock(&self.open).get(&id).cloned();
        if let Some(open) = open {
            self.fail_open(&open, failure, may);
        }
    }

    pub(super) fn fail_open(&self, open: &OpenFile, failure: &Failure, may: impl FnOnce() -> bool) {
        let mut state = lock(&open.state);
        let temp = match &*state {
            FileState::Open(opened) => {
                // Its descriptor goes with this.
                open.know(&opened.file);
                let goes = open.may_go(may);
                !(goes && self.remove(open)) && (goes || !haul_mutant::removed("doubted-files-are-discarded"))
            }
            FileState::New => false,
            FileState::Failed { .. } | FileState::Closed => return,
        };
        *state = FileState::Failed { failure: failure.clone(), temp };
    }

    /// Why a file failed, if it did.
    pub(super) fn failure_of(&self, open: &OpenFile) -> Option<Failure> {
        // Never waits: who holds the lock may wait for storage.
        match &*open.state.try_lock().ok()? {
            FileState::Failed { failure, .. } => Some(failure.clone()),
            _ => None,
        }
    }

    /// This run has lost its job. What no journal speaks of, nobody else would ever find: it goes.
    pub(super) fn abandon(&self) {
        let open: Vec<FileId> = lock(&self.open).keys().copied().collect();
        open.into_iter().for_each(|id| self.discard(id, || false));
    }

    /// From here on the journal may say that a part of the file is here.
    pub(super) fn is_promised(open: &OpenFile) {
        open.promised.store(true, Ordering::Release);
    }

    /// Removes the temporary's name. False if it is still there. Another file that somebody put there is not
    /// ours to remove.
    fn remove(&self, open: &OpenFile) -> bool {
        if !open.has_name() {
            return true;
        }
        let dir = self.tree.dirfd(open.parent).ok();
        let jail = self.tree.jail();
        let unlink = |dir: Arc<OwnedFd>| match (jail.stat(&dir, &open.temp), open.inode.get()) {
            (Ok(stat), Some(inode)) if is_regular(&stat) && inode_of(&stat) != *inode => Ok(()),
            _ => jail.unlink(&dir, &open.temp),
        };
        let gone = dir.map(unlink);
        let gone = matches!(gone, Some(Ok(()) | Err(Errno::NOENT)));
        if !gone {
            self.leave();
        }
        gone
    }

    /// A file that was written in place loses its second name, if a journal spoke of it.
    pub(super) fn unmark_in_place(&self, open: &OpenFile) {
        if open.promised.load(Ordering::Acquire) {
            self.remove(open);
        }
    }

    /// Files are open.
    pub(super) fn has_any(&self) -> bool {
        !lock(&self.open).is_empty()
    }

    /// Whether a temporary of this session could not be removed. By its tag in the journal a later run finds
    /// it.
    pub(super) fn left_any(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// Whether one was not removed because the job was not seen to be ours.
    pub(super) fn kept_any(&self) -> bool {
        self.kept.load(Ordering::Acquire)
    }

    /// A temporary of this session stays.
    pub(super) fn leave(&self) {
        self.left.store(true, Ordering::Release);
    }

    fn entry_of(&self, file: &SinkFile) -> Arc<OpenFile> {
        lock(&self.open).entry(file.id).or_insert_with(|| self.entry(file)).clone()
    }

    pub(super) fn entry(&self, file: &SinkFile) -> Arc<OpenFile> {
        Arc::new(OpenFile {
            id: file.id,
            parent: file.parent,
            name: file.name.clone(),
            temp: self.temp_name(file),
            nameless: AtomicBool::new(false),
            made_with: OnceLock::new(),
            inode: OnceLock::new(),
            promised: AtomicBool::new(false),
            size: file.size,
            data_len: data_len(file),
            map: file.map.clone(),
            state: Mutex::new(FileState::New),
            source: OnceLock::new(),
            striped: OnceLock::new(),
            layout: OnceLock::new(),
            path: Mutex::default(),
        })
    }

    fn closed(&self, open: &OpenFile) -> Failure {
        let path = self.tree.path_of(open.parent, &open.name);
        fault::failure(FailureKind::Write, 0, format!("{path} was discarded before this"))
    }

    /// Says how a file is cut at the source, before it is made.
    pub(super) fn want(&self, file: &SinkFile, striping: Option<Striping>) {
        if let Some(striping) = striping {
            // It is told once for each generation of a file, and a later one may be cut otherwise: the first
            // counts.
            let _ = self.entry_of(file).source.set(striping);
        }
    }

    /// The destination is a local file system.
    pub(super) fn is_local(&self) -> bool {
        self.local
    }

    /// Files were found on more than one storage target.
    pub(super) fn has_several_targets(&self) -> bool {
        self.sink_layout.as_ref().is_some_and(|sink_layout| sink_layout.targets().count() > 1)
    }

    /// Makes the temporary; with the device that it lies on.
    fn create(&self, open: &OpenFile, mode: Option<u32>) -> Result<(OwnedFd, u64), Failure> {
        if let Some(place) = &self.in_place {
            let fd = self.open_in_place(place, open)?;
            let device = rustix::fs::fstat(&fd).map_or(0, |stat| stat.st_dev);
            return Ok((fd, device));
        }
        let dir = self.tree.dirfd(open.parent)?;
        let jail = self.tree.jail();
        if let Some(mode) = mode.filter(|_| self.goes_nameless(open, &dir)) {
            return self.create_nameless(open, &dir, mode);
        }
        let wanted = match self.sink_layout.is_some() && open.size > SMALL_LEN_MAX {
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
        let making = self.making();
        let mut made = make();
        if matches!(made, Err(Errno::EXIST)) && self.is_stale(&dir, &open.temp, Some(open.id)) {
            // Only this session writes this tag, so it is a leftover of its own.
            let _ = jail.unlink(&dir, &open.temp);
            made = make();
        }
        // Of a small one its directory's is taken for it, and which inode it is can be seen as long as it is
        // open.
        let mut device = self.tree.target_of(open.parent).device();
        if open.size > SMALL_LEN_MAX
            && let Ok(stat) = made.as_ref().map_err(|errno| *errno).and_then(rustix::fs::fstat)
        {
            self.is_live(open, &stat);
            device = stat.st_dev;
        }
        drop(making);
        made.map(|fd| (fd, device)).map_err(|errno| {
            if errno == Errno::EXIST && jail.stat(&dir, &open.temp).is_ok_and(|stat| is_regular(&stat)) {
                return self.tree.folded(open.parent, &open.name);
            }
            let path = self.tree.path_of(open.parent, &open.temp);
            fault::os_at(FailureKind::Create, "create", &path, errno, &dir)
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

    /// The temporary, which lies on `device`, as I/O threads take it.
    fn io_file(&self, open: &OpenFile, fd: OwnedFd, device: u64) -> Arc<IoFile> {
        // Small files come many at a time and hardly ever on their own: their name alone must do.
        let name = match open.size <= SMALL_LEN_MAX {
            true => escape::within(open.name.as_bytes()),
            false => self.tree.path_of(open.parent, &open.name),
        };
        let sink_layout = self.sink_layout.as_ref().filter(|_| open.size > SMALL_LEN_MAX);
        let layout =
            sink_layout.and_then(|sink_layout| sink_layout.layout(fd.as_fd(), self.base() + open.size));
        if let Some(wanted) = open.striped.get() {
            self.stripes.lies(*wanted, layout.as_ref().and_then(Layout::striping));
        }
        let target = layout.as_ref().map_or(IoTarget::Device(device), key_of);
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
        let name = if self.in_place.is_some() { &open.name } else { &open.temp };
        let fd = self.tree.jail().open_direct(&dir, name, descriptor(file))?;
        let IoFile { target, name, .. } = file;
        let (fd, target, name) = (Some(fd), *target, name.clone());
        Ok(Arc::new(IoFile { fd, mode: IoMode::Direct, target, one_writer: false, name }))
    }

    /// Writes a small file whole.
    pub(super) fn write_whole(&self, file: &SinkFile, mode: u32, data: &[u8]) -> Result<(), Failure> {
        let temp = self.fd(file, Some(mode))?;
        let fd = descriptor(&temp);
        write_all_at(fd, data, self.base()).map_err(|errno| {
            let path = self.tree.path_of(file.parent, &file.name);
            fault::os_at(FailureKind::Write, "write", &path, errno, fd)
        })
    }

    /// The length of a temporary that was taken over, with holes where the file has them. `None`: these
    /// cannot be had, and it was removed.
    pub(super) fn look_at_adopted(&self, file: &SinkFile) -> Option<u64> {
        let (_, temp, _) = self.fd_of(file.id).ok()?;
        let fd = descriptor(&temp);
        // What was opened in place has them since.
        let holes =
            file.map.as_ref().filter(|_| self.in_place.is_none()).is_none_or(|map| clear_holes(fd, map, 0));
        let size = rustix::fs::fstat(fd).ok().filter(|_| holes).map(|stat| stat.st_size as u64);
        let len = size.map(|size| size.saturating_sub(self.base()));
        if len.is_none() {
            self.discard(file.id, || true);
        }
        len
    }

    /// Takes over the temporary of the run with `tag`. False if it is not there, or is not what we left.
    pub(super) fn adopt(&self, file: &SinkFile, dir: &Arc<OwnedFd>, tag: u32) -> Result<bool, Failure> {
        let taken = match &self.in_place {
            Some(place) => self.take_over_in_place(place, file, dir, tag)?,
            None => self.take_over(file, dir, tag)?,
        };
        let Some(fd) = taken else { return Ok(false) };
        let open = self.entry(file);
        let mut device = 0;
        if let Ok(stat) = rustix::fs::fstat(&fd) {
            self.is_live(&open, &stat);
            device = stat.st_dev;
        }
        Files::is_promised(&open);
        let file_of = Opened { file: self.io_file(&open, fd, device), adopted: true, ready: false };
        *lock(&open.state) = FileState::Open(file_of);
        lock(&self.open).insert(file.id, open);
        Ok(true)
    }
}
