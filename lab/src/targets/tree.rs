//! Names and inodes of a model, in memory.
//!
//! In: operations on inode numbers and names. Out: attributes, or an errno. Invariants: an inode is kept as
//! long as it has a name or the kernel knows it; the kernel checks permissions (`default_permissions`),
//! nobody here does.
//! Left out: quota, device nodes.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use fuser::{Errno, FileAttr, FileType, INodeNo, RenameFlags};

use super::file::FileBody;
use super::lov::Wish;

pub const ROOT: u64 = 1;
const NAME_MAX: usize = 255;
const LINKS_MAX: u32 = 65_000;
/// Most bytes of all extended attributes of one inode.
const XATTRS_LEN_MAX: usize = 64 << 10;

pub enum Kind {
    File(Arc<FileBody>),
    Directory {
        parent: u64,
        entries: BTreeMap<OsString, u64>,
        /// Layout of the files to come.
        wish: Option<Wish>,
    },
    Link(PathBuf),
    /// A FIFO or a socket: the kernel does the rest.
    Other,
}

pub struct Node {
    attr: FileAttr,
    /// How often the kernel was told of it.
    lookups: u64,
    pub kind: Kind,
    pub xattrs: BTreeMap<OsString, Vec<u8>>,
}

impl Node {
    pub fn attr(&self) -> FileAttr {
        let mut attr = self.attr;
        if let Kind::File(body) = &self.kind {
            attr.size = body.size.load(Ordering::Acquire);
            attr.blocks = attr.size.div_ceil(512);
        }
        attr
    }

    pub fn touch(&mut self) {
        self.attr.mtime = SystemTime::now();
        self.attr.ctime = self.attr.mtime;
    }

    /// Sets an extended attribute, or removes it; `flags` as of setxattr(2).
    pub fn set_xattr(&mut self, name: &OsStr, value: Option<&[u8]>, flags: i32) -> Result<(), Errno> {
        let known = self.xattrs.contains_key(name);
        let Some(value) = value else {
            self.attr.ctime = SystemTime::now();
            return self.xattrs.remove(name).map(drop).ok_or(Errno::NO_XATTR);
        };
        if flags & libc::XATTR_CREATE != 0 && known {
            return Err(Errno::EEXIST);
        }
        if flags & libc::XATTR_REPLACE != 0 && !known {
            return Err(Errno::NO_XATTR);
        }
        let others = self.xattrs.iter().filter(|(other, _)| *other != name);
        let len: usize = others.map(|(name, value)| name.len() + value.len()).sum();
        if len + name.len() + value.len() > XATTRS_LEN_MAX {
            return Err(Errno::ENOSPC);
        }
        self.xattrs.insert(name.to_owned(), value.to_owned());
        self.attr.ctime = SystemTime::now();
        Ok(())
    }
}

/// Who makes an inode, and with what mode.
pub struct Birth {
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
}

/// What setattr changes.
#[derive(Default)]
pub struct Change {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub atime: Option<SystemTime>,
    pub mtime: Option<SystemTime>,
    pub ctime: Option<SystemTime>,
    pub resized: bool,
}

pub struct Tree {
    /// Upper and lower case of a name are one; names stay as they were made.
    fold: bool,
    nodes: HashMap<u64, Node>,
    next: u64,
}

impl Tree {
    pub fn new(uid: u32, gid: u32, fold: bool) -> Tree {
        let mut tree = Tree { fold, nodes: HashMap::new(), next: ROOT };
        let kind = Kind::Directory { parent: ROOT, entries: BTreeMap::new(), wish: None };
        tree.insert(kind, FileType::Directory, &Birth { uid, gid, mode: 0o755 });
        tree
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn node(&self, inode: u64) -> Result<&Node, Errno> {
        self.nodes.get(&inode).ok_or(Errno::ESTALE)
    }

    pub fn node_mut(&mut self, inode: u64) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&inode).ok_or(Errno::ESTALE)
    }

    pub fn file(&self, inode: u64) -> Result<Arc<FileBody>, Errno> {
        match &self.node(inode)?.kind {
            Kind::File(body) => Ok(body.clone()),
            Kind::Directory { .. } => Err(Errno::EISDIR),
            Kind::Link(_) | Kind::Other => Err(Errno::EINVAL),
        }
    }

    /// The number that the next inode gets.
    pub fn next_inode(&self) -> u64 {
        self.next
    }

    fn insert(&mut self, kind: Kind, file_type: FileType, birth: &Birth) -> u64 {
        let inode = self.next;
        self.next += 1;
        let now = SystemTime::now();
        let size = match &kind {
            Kind::Link(to) => to.as_os_str().len() as u64,
            Kind::Directory { .. } => 4096,
            Kind::File(_) | Kind::Other => 0,
        };
        let attr = FileAttr {
            ino: INodeNo(inode),
            size,
            blocks: size.div_ceil(512),
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            kind: file_type,
            perm: (birth.mode & 0o7777) as u16,
            nlink: if file_type == FileType::Directory { 2 } else { 1 },
            uid: birth.uid,
            gid: birth.gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        };
        self.nodes.insert(inode, Node { attr, lookups: 0, kind, xattrs: BTreeMap::new() });
        inode
    }

    fn entries(&self, parent: u64) -> Result<&BTreeMap<OsString, u64>, Errno> {
        match &self.node(parent)?.kind {
            Kind::Directory { entries, .. } => Ok(entries),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn entries_mut(&mut self, parent: u64) -> Result<&mut BTreeMap<OsString, u64>, Errno> {
        let node = self.node_mut(parent)?;
        node.touch();
        match &mut node.kind {
            Kind::Directory { entries, .. } => Ok(entries),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn find(&self, parent: u64, name: &OsStr) -> Result<u64, Errno> {
        let name = self.key(parent, name)?;
        self.entries(parent)?.get(&name).copied().ok_or(Errno::ENOENT)
    }

    /// The name under which the directory has what is asked for by `name`; that name if there is none.
    fn key(&self, parent: u64, name: &OsStr) -> Result<OsString, Errno> {
        let entries = self.entries(parent)?;
        if !self.fold || entries.contains_key(name) {
            return Ok(name.to_owned());
        }
        let folded = |name: &OsStr| name.to_string_lossy().to_lowercase();
        let wanted = folded(name);
        Ok(entries.keys().find(|key| folded(key) == wanted).map_or_else(|| name.to_owned(), Clone::clone))
    }

    /// Finds a name, and counts that the kernel knows the inode now.
    pub fn lookup(&mut self, parent: u64, name: &OsStr) -> Result<FileAttr, Errno> {
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let inode = self.find(parent, name)?;
        self.known(inode)
    }

    fn known(&mut self, inode: u64) -> Result<FileAttr, Errno> {
        let node = self.node_mut(inode)?;
        node.lookups += 1;
        Ok(node.attr())
    }

    pub fn forget(&mut self, inode: u64, lookups: u64) {
        if let Some(node) = self.nodes.get_mut(&inode) {
            node.lookups = node.lookups.saturating_sub(lookups);
            self.sweep(inode);
        }
    }

    /// Drops an inode that has no name and that the kernel forgot.
    fn sweep(&mut self, inode: u64) {
        let gone = |node: &Node| node.attr.nlink == 0 && node.lookups == 0;
        if self.nodes.get(&inode).is_some_and(gone) {
            self.nodes.remove(&inode);
        }
    }

    /// The layout that a directory wants for the files to come.
    pub fn wish_of(&self, directory: u64) -> Option<Wish> {
        match &self.node(directory).ok()?.kind {
            Kind::Directory { wish, .. } => wish.clone(),
            _ => None,
        }
    }

    /// Makes an inode under a new name.
    pub fn make(&mut self, parent: u64, name: &OsStr, kind: Kind, birth: &Birth) -> Result<FileAttr, Errno> {
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        if self.find(parent, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        let file_type = match (&kind, birth.mode & libc::S_IFMT) {
            (Kind::File(_), _) => FileType::RegularFile,
            (Kind::Directory { .. }, _) => FileType::Directory,
            (Kind::Link(_), _) => FileType::Symlink,
            (Kind::Other, libc::S_IFIFO) => FileType::NamedPipe,
            (Kind::Other, libc::S_IFSOCK) => FileType::Socket,
            (Kind::Other, _) => return Err(Errno::EPERM),
        };
        let mut birth = Birth { ..*birth };
        let above = self.node(parent)?.attr;
        if u32::from(above.perm) & libc::S_ISGID != 0 {
            birth.gid = above.gid;
            if file_type == FileType::Directory {
                birth.mode |= libc::S_ISGID;
            }
        }
        let inode = self.insert(kind, file_type, &birth);
        self.entries_mut(parent)?.insert(name.to_owned(), inode);
        if file_type == FileType::Directory {
            self.node_mut(parent)?.attr.nlink += 1;
        }
        self.known(inode)
    }

    pub fn link(&mut self, inode: u64, parent: u64, name: &OsStr) -> Result<FileAttr, Errno> {
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        if self.find(parent, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        let node = self.node_mut(inode)?;
        if node.attr.kind == FileType::Directory {
            return Err(Errno::EPERM);
        }
        if node.attr.nlink >= LINKS_MAX {
            return Err(Errno::EMLINK);
        }
        node.attr.nlink += 1;
        node.attr.ctime = SystemTime::now();
        self.entries_mut(parent)?.insert(name.to_owned(), inode);
        self.known(inode)
    }

    /// Removes a name: of a directory if `directory`, else of anything else.
    pub fn remove(&mut self, parent: u64, name: &OsStr, directory: bool) -> Result<(), Errno> {
        let inode = self.find(parent, name)?;
        match (&self.node(inode)?.kind, directory) {
            (Kind::Directory { entries, .. }, true) if !entries.is_empty() => return Err(Errno::ENOTEMPTY),
            (Kind::Directory { .. }, true) => {}
            (Kind::Directory { .. }, false) => return Err(Errno::EISDIR),
            (_, true) => return Err(Errno::ENOTDIR),
            (_, false) => {}
        }
        let key = self.key(parent, name)?;
        self.entries_mut(parent)?.remove(&key);
        self.unlinked(parent, inode)
    }

    /// An inode has lost a name below `parent`.
    fn unlinked(&mut self, parent: u64, inode: u64) -> Result<(), Errno> {
        let node = self.node_mut(inode)?;
        node.attr.ctime = SystemTime::now();
        if node.attr.kind == FileType::Directory {
            node.attr.nlink = 0;
            self.node_mut(parent)?.attr.nlink -= 1;
        } else {
            node.attr.nlink -= 1;
        }
        self.sweep(inode);
        Ok(())
    }

    pub fn rename(
        &mut self,
        from: (u64, &OsStr),
        to: (u64, &OsStr),
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        if to.1.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let inode = self.find(from.0, from.1)?;
        let there = self.find(to.0, to.1).ok();
        let from_key = self.key(from.0, from.1)?;
        if flags.contains(RenameFlags::RENAME_EXCHANGE) {
            let there = there.ok_or(Errno::ENOENT)?;
            self.entries_mut(from.0)?.insert(from.1.to_owned(), there);
            self.entries_mut(to.0)?.insert(to.1.to_owned(), inode);
            self.moved(inode, from.0, to.0)?;
            return self.moved(there, to.0, from.0);
        }
        if !(flags - RenameFlags::RENAME_NOREPLACE).is_empty() {
            return Err(Errno::EINVAL);
        }
        if let Some(there) = there {
            if flags.contains(RenameFlags::RENAME_NOREPLACE) {
                return Err(Errno::EEXIST);
            }
            if there == inode {
                return Ok(());
            }
            let directory = self.node(inode)?.attr.kind == FileType::Directory;
            self.remove(to.0, to.1, directory)?;
        }
        self.entries_mut(from.0)?.remove(&from_key);
        self.entries_mut(to.0)?.insert(to.1.to_owned(), inode);
        self.moved(inode, from.0, to.0)
    }

    /// An inode has changed its directory.
    fn moved(&mut self, inode: u64, from: u64, to: u64) -> Result<(), Errno> {
        let node = self.node_mut(inode)?;
        node.attr.ctime = SystemTime::now();
        if let Kind::Directory { parent, .. } = &mut node.kind {
            *parent = to;
            self.node_mut(from)?.attr.nlink -= 1;
            self.node_mut(to)?.attr.nlink += 1;
        }
        Ok(())
    }

    pub fn change(&mut self, inode: u64, change: &Change) -> Result<FileAttr, Errno> {
        let node = self.node_mut(inode)?;
        let attr = &mut node.attr;
        let now = SystemTime::now();
        if let Some(mode) = change.mode {
            attr.perm = (mode & 0o7777) as u16;
        }
        attr.uid = change.uid.unwrap_or(attr.uid);
        attr.gid = change.gid.unwrap_or(attr.gid);
        attr.atime = change.atime.unwrap_or(attr.atime);
        attr.mtime = change.mtime.unwrap_or(if change.resized { now } else { attr.mtime });
        attr.ctime = change.ctime.unwrap_or(now);
        Ok(node.attr())
    }

    /// All entries of a directory, `.` and `..` first.
    pub fn list(&self, inode: u64) -> Result<Vec<(u64, FileType, OsString)>, Errno> {
        let Kind::Directory { parent, entries, .. } = &self.node(inode)?.kind else {
            return Err(Errno::ENOTDIR);
        };
        let mut all =
            vec![(inode, FileType::Directory, ".".into()), (*parent, FileType::Directory, "..".into())];
        for (name, inode) in entries {
            all.push((*inode, self.node(*inode)?.attr.kind, name.clone()));
        }
        Ok(all)
    }
}
