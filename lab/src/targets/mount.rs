//! The model as a file system: FUSE requests to the tree, the stores and the targets.
//!
//! In: requests of the kernel, on several threads. Out: answers, those to reads, writes and syncs from the
//! threads of the targets, so that a target that does not answer holds up nobody else. Invariants: names and
//! attributes are answered at once, only data pays for its targets; files bypass the page cache.
//! Left out: `LL_IOC_LOV_GETSTRIPE`: its number says that the kernel copies nothing back, and FUSE holds
//! ioctls to that, so it gets ENOTTY, as on a file system that is not Lustre; cost of metadata.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Config, Errno, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, Session, SessionACL, TimeOrNow, WriteFlags,
};

use super::file::FileBody;
use super::lov;
use super::spec::{ModelSpec, SpaceSpec};
use super::store::Space;
use super::tree::{Birth, Change, Kind, Tree};
use super::volume::Volume;

/// All changes go through this mount, so the kernel may believe what it was told.
const TTL: Duration = Duration::from_secs(60);
/// Largest request; the kernel's own limit is mostly the same.
const REQUEST_LEN_MAX: u32 = 1 << 20;
/// Requests of asynchronous direct I/O that the kernel lets wait for an answer: a frozen target fills this,
/// and must not keep others from being asked.
const BACKGROUND_MAX: u16 = 8192;
const THREADS: usize = 4;
/// What Lustre is asked for by `O_LOV_DELAY_CREATE`, as far as FUSE lets it through (Linux's `FASYNC`).
const DELAY_CREATE: i32 = libc::O_ASYNC;
/// What a model without memory to count says that it has room for.
const ROOM: u64 = 1 << 50;
const BLOCK: u32 = 4096;

type Listing = Arc<Vec<(u64, FileType, OsString)>>;

pub struct Model {
    tree: Mutex<Tree>,
    volume: Arc<Volume>,
    space: Space,
    strict_layout: bool,
    names_ttl: Duration,
    listings: Mutex<HashMap<u64, Listing>>,
    next_handle: AtomicU64,
    zeros: Arc<[u8]>,
}

/// Mounts a model; it is served once `Session::spawn` is called.
pub fn mount(spec: &ModelSpec, volume: Arc<Volume>) -> io::Result<Session<Model>> {
    let space = match &spec.space {
        SpaceSpec::Null => Space::Null,
        SpaceSpec::Memory(most) => Space::Memory { held: Arc::default(), most: *most },
        SpaceSpec::Directory(dir) => Space::Directory(dir.clone()),
    };
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let model = Model {
        tree: Mutex::new(Tree::new(uid, gid, spec.fold)),
        volume,
        space,
        strict_layout: spec.strict_layout,
        // A name that is kept would outlive the renaming of its other form.
        names_ttl: if spec.fold { Duration::ZERO } else { TTL },
        listings: Mutex::default(),
        next_handle: AtomicU64::new(1),
        zeros: vec![0; REQUEST_LEN_MAX as usize].into(),
    };
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(format!("haul-lab-{}", spec.name)),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
    ];
    config.acl = if uid == 0 { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    Session::new(model, &spec.mount, &config)
}

impl Model {
    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().expect("no panic under this lock")
    }

    fn make(
        &self,
        request: &Request,
        parent: u64,
        name: &OsStr,
        mode: u32,
        kind: Kind,
    ) -> Result<fuser::FileAttr, Errno> {
        let birth = Birth { uid: request.uid(), gid: request.gid(), mode };
        self.tree().make(parent, name, kind, &birth)
    }

    /// Makes a regular file; `placed` gives it objects right away.
    fn make_file(
        &self,
        request: &Request,
        parent: u64,
        name: &OsStr,
        mode: u32,
        placed: bool,
    ) -> Result<fuser::FileAttr, Errno> {
        let mut tree = self.tree();
        let wish = tree.wish_of(parent);
        let store = self.space.store(tree.next_inode()).map_err(Errno::from)?;
        let layout = placed.then(|| self.volume.place(wish.as_ref()));
        let body = Arc::new(FileBody::new(store, layout, wish));
        let birth = Birth { uid: request.uid(), gid: request.gid(), mode };
        tree.make(parent, name, Kind::File(body), &birth)
    }

    fn resize(&self, inode: u64, size: u64) -> Result<(), Errno> {
        let body = self.tree().file(inode)?;
        if size < body.size.swap(size, Ordering::AcqRel) {
            body.store.truncate(size).map_err(Errno::from)?;
        }
        Ok(())
    }

    fn xattr(&self, inode: u64, name: &OsStr) -> Result<Vec<u8>, Errno> {
        let tree = self.tree();
        let node = tree.node(inode)?;
        if !is_lov(name) {
            return node.xattrs.get(name).cloned().ok_or(Errno::NO_XATTR);
        }
        match &node.kind {
            Kind::File(body) => body.layout().map(|layout| lov::encode(inode, &layout)),
            Kind::Directory { wish, .. } => wish.as_ref().map(lov::encode_default),
            Kind::Link(_) | Kind::Other => None,
        }
        .ok_or(Errno::NO_XATTR)
    }

    fn set_layout(&self, inode: u64, value: &[u8]) -> Result<(), Errno> {
        let wanted = lov::decode(value).filter(|wish| self.volume.can(wish)).ok_or(Errno::EINVAL)?;
        match &mut self.tree().node_mut(inode)?.kind {
            Kind::Directory { wish, .. } => *wish = Some(wanted),
            Kind::File(body) => {
                let mut layout = body.layout.write().expect("no panic under this lock");
                let fresh = body.size.load(Ordering::Acquire) == 0 && !self.strict_layout;
                // Lustre says nothing when it is too late, and so does this.
                if layout.is_none() || fresh {
                    *layout = Some(self.volume.place(Some(&wanted)));
                }
            }
            Kind::Link(_) | Kind::Other => return Err(Errno::EOPNOTSUPP),
        }
        Ok(())
    }

    fn xattr_names(&self, inode: u64) -> Result<Vec<u8>, Errno> {
        let has_layout = self.xattr(inode, OsStr::new(lov::NAMES[0])).is_ok();
        let tree = self.tree();
        let names = tree.node(inode)?.xattrs.keys().map(|name| name.as_encoded_bytes());
        let lov = has_layout.then_some(lov::NAMES[0].as_bytes());
        Ok(names.chain(lov).flat_map(|name| [name, b"\0"].concat()).collect())
    }
}

fn is_lov(name: &OsStr) -> bool {
    lov::NAMES.iter().any(|lov| name == *lov)
}

fn answer_xattr(value: Result<Vec<u8>, Errno>, size: u32, reply: ReplyXattr) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() <= size as usize => reply.data(&value),
        Ok(_) => reply.error(Errno::ERANGE),
        Err(errno) => reply.error(errno),
    }
}

fn answer_entry(ttl: &Duration, attr: Result<fuser::FileAttr, Errno>, reply: ReplyEntry) {
    match attr {
        Ok(attr) => reply.entry(ttl, &attr, Generation(0)),
        Err(errno) => reply.error(errno),
    }
}

fn answer(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn opened() -> FopenFlags {
    FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
}

impl Filesystem for Model {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        config
            .set_max_write(REQUEST_LEN_MAX)
            .map_err(|most| io::Error::other(format!("max_write: {most}")))?;
        config
            .set_max_background(BACKGROUND_MAX)
            .map_err(|least| io::Error::other(format!("background: {least}")))?;
        for wanted in
            [InitFlags::FUSE_ASYNC_DIO, InitFlags::FUSE_PARALLEL_DIROPS, InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP]
        {
            // An older kernel is slower, or has no shared mappings here; nothing else depends on these.
            let _ = config.add_capabilities(wanted);
        }
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        answer_entry(&self.names_ttl, self.tree().lookup(parent.0, name), reply);
    }

    fn forget(&self, _request: &Request, inode: INodeNo, lookups: u64) {
        self.tree().forget(inode.0, lookups);
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.tree().node(inode.0) {
            Ok(node) => reply.attr(&TTL, &node.attr()),
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let time = |time: TimeOrNow| match time {
            TimeOrNow::SpecificTime(time) => time,
            TimeOrNow::Now => SystemTime::now(),
        };
        let (atime, mtime) = (atime.map(time), mtime.map(time));
        let change = Change { mode, uid, gid, atime, mtime, ctime, resized: size.is_some() };
        let resized = size.map_or(Ok(()), |size| self.resize(inode.0, size));
        match resized.and_then(|()| self.tree().change(inode.0, &change)) {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(errno) => reply.error(errno),
        }
    }

    fn readlink(&self, _request: &Request, inode: INodeNo, reply: ReplyData) {
        match self.tree().node(inode.0).map(|node| &node.kind) {
            Ok(Kind::Link(to)) => reply.data(to.as_os_str().as_encoded_bytes()),
            Ok(_) => reply.error(Errno::EINVAL),
            Err(errno) => reply.error(errno),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        let made = match mode & libc::S_IFMT {
            0 | libc::S_IFREG => self.make_file(request, parent.0, name, mode, false),
            _ => self.make(request, parent.0, name, mode, Kind::Other),
        };
        answer_entry(&self.names_ttl, made, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let wish = self.tree().wish_of(parent.0);
        let kind = Kind::Directory { parent: parent.0, entries: Default::default(), wish };
        answer_entry(&self.names_ttl, self.make(request, parent.0, name, mode, kind), reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(self.tree().remove(parent.0, name, false), reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(self.tree().remove(parent.0, name, true), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, to: &Path, reply: ReplyEntry) {
        answer_entry(
            &self.names_ttl,
            self.make(request, parent.0, name, 0o777, Kind::Link(to.to_owned())),
            reply,
        );
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        answer(self.tree().rename((parent.0, name), (new_parent.0, new_name), flags), reply);
    }

    fn link(&self, _request: &Request, inode: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        answer_entry(&self.names_ttl, self.tree().link(inode.0, parent.0, name), reply);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        match self.make_file(request, parent.0, name, mode, flags & DELAY_CREATE == 0) {
            Ok(attr) => reply.created(&self.names_ttl, &attr, Generation(0), FileHandle(0), opened()),
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, _request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.tree().file(inode.0) {
            Ok(body) => {
                // To read, Lustre opens a file without objects as it is.
                if flags.0 & DELAY_CREATE == 0 && flags.0 & libc::O_ACCMODE != libc::O_RDONLY {
                    self.volume.layout(&body);
                }
                reply.opened(FileHandle(0), opened());
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        len: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let body = match self.tree().file(inode.0) {
            Ok(body) => body,
            Err(errno) => return reply.error(errno),
        };
        let len = u64::from(len).min(body.size.load(Ordering::Acquire).saturating_sub(offset));
        let (of_done, zeros) = (body.clone(), self.zeros.clone());
        let done = move || {
            thread_local!(static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
            let len = len as usize;
            if of_done.store.is_null() && len <= zeros.len() {
                return reply.data(&zeros[..len]);
            }
            BUFFER.with_borrow_mut(|buffer| {
                buffer.resize(buffer.len().max(len), 0);
                match of_done.store.read(offset, &mut buffer[..len]) {
                    Ok(()) => reply.data(&buffer[..len]),
                    Err(e) => reply.error(Errno::from(e)),
                }
            });
        };
        self.volume.read(&body, offset, len, Box::new(done));
    }

    fn write(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let body = match self.tree().file(inode.0) {
            Ok(body) => body,
            Err(errno) => return reply.error(errno),
        };
        let len = data.len() as u64;
        let Some(end) = offset.checked_add(len).filter(|end| i64::try_from(*end).is_ok()) else {
            return reply.error(Errno::EFBIG);
        };
        if let Err(e) = body.store.write(offset, data) {
            return reply.error(Errno::from(e));
        }
        body.size.fetch_max(end, Ordering::AcqRel);
        if let Ok(node) = self.tree().node_mut(inode.0) {
            node.touch();
        }
        self.volume.write(&body, offset, len, Box::new(move || reply.written(len as u32)));
    }

    fn flush(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        match self.tree().file(inode.0) {
            Ok(body) => body.sync(Box::new(move || reply.ok())),
            Err(errno) => reply.error(errno),
        }
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fallocate(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let result = self.tree().file(inode.0).and_then(|body| match mode {
            0 => {
                let end =
                    offset.checked_add(len).filter(|end| i64::try_from(*end).is_ok()).ok_or(Errno::EFBIG)?;
                body.size.fetch_max(end, Ordering::AcqRel);
                Ok(())
            }
            libc::FALLOC_FL_KEEP_SIZE => Ok(()),
            _ => Err(Errno::EOPNOTSUPP),
        });
        answer(result, reply);
    }

    // A listing is taken when its reading begins, so that names that come and go neither hide nor repeat
    // others.
    fn opendir(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(self.next_handle.fetch_add(1, Ordering::Relaxed)), FopenFlags::empty());
    }

    fn readdir(
        &self,
        _request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let known = self.listings.lock().expect("no panic under this lock").get(&handle.0).cloned();
        let listing = match known.filter(|_| offset > 0) {
            Some(listing) => listing,
            None => match self.tree().list(inode.0) {
                Ok(listing) => Arc::new(listing),
                Err(errno) => return reply.error(errno),
            },
        };
        for (at, (inode, kind, name)) in listing.iter().enumerate().skip(offset as usize) {
            if reply.add(INodeNo(*inode), at as u64 + 1, *kind, name) {
                break;
            }
        }
        self.listings.lock().expect("no panic under this lock").insert(handle.0, listing);
        reply.ok();
    }

    fn releasedir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.listings.lock().expect("no panic under this lock").remove(&handle.0);
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        let (all, free) = match &self.space {
            Space::Null => (ROOM, ROOM),
            Space::Memory { held, most } => (*most, most.saturating_sub(held.load(Ordering::Relaxed))),
            Space::Directory(dir) => match rustix::fs::statvfs(dir) {
                Ok(stat) => (stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize),
                Err(errno) => return reply.error(Errno::from_i32(errno.raw_os_error())),
            },
        };
        let blocks = |bytes: u64| bytes / u64::from(BLOCK);
        let files = self.tree().len() as u64;
        reply.statfs(blocks(all), blocks(free), blocks(free), files + ROOM, ROOM, BLOCK, 255, BLOCK);
    }

    fn setxattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let result = if is_lov(name) {
            self.set_layout(inode.0, value)
        } else {
            self.tree().node_mut(inode.0).and_then(|node| node.set_xattr(name, Some(value), flags))
        };
        answer(result, reply);
    }

    fn getxattr(&self, _request: &Request, inode: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        answer_xattr(self.xattr(inode.0, name), size, reply);
    }

    fn listxattr(&self, _request: &Request, inode: INodeNo, size: u32, reply: ReplyXattr) {
        answer_xattr(self.xattr_names(inode.0), size, reply);
    }

    fn removexattr(&self, _request: &Request, inode: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut tree = self.tree();
        let result = tree.node_mut(inode.0).and_then(|node| match &mut node.kind {
            Kind::Directory { wish, .. } if is_lov(name) => wish.take().map(drop).ok_or(Errno::NO_XATTR),
            _ if is_lov(name) => Err(Errno::EOPNOTSUPP),
            _ => node.set_xattr(name, None, 0),
        });
        answer(result, reply);
    }

    fn ioctl(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _flags: fuser::IoctlFlags,
        _command: u32,
        _input: &[u8],
        _output_len: u32,
        reply: fuser::ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }
}
