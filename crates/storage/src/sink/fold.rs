//! Names that the destination takes for one: upper and lower case, forms of Unicode.
//!
//! In: under which name which inode was found or made, and for which entry. Out: whether another entry has
//! that inode already. What must hold: two entries of one session never have one file, link or directory,
//! whatever the file system makes of their names; hard links that stood there before are two.
//! Bounds: what is remembered goes with its directory, and nothing is where every name is its own (ext4,
//! btrfs, F2FS and tmpfs say so by a flag; elsewhere a name with its case turned is looked up once for each
//! directory).
//! Left out: directories that this session made, where a name that is taken cannot be taken again.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use haul_core::entry::Name;
use haul_core::id_map::IdMap;
use haul_core::ids::{DirId, FileId};
use haul_core::transfer::op::Inode;
use rustix::fs::{FsWord, Mode, OFlags};
use rustix::io::Errno;

use super::lock;
use super::stat::inode_of;
use crate::jail::Jail;

/// Magic numbers of file systems that keep every name as it is unless a directory's flag says otherwise: ext2
/// to ext4, btrfs, F2FS, tmpfs.
const FLAGGED: [FsWord; 4] = [0xef53, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];
/// `FS_CASEFOLD_FL`
const CASEFOLD: u32 = 0x4000_0000;
/// Names that are looked through to learn under which of them something stands.
const LISTED_MAX: usize = 65_536;

/// What a directory makes of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sense {
    Unknown,
    /// Every name is its own.
    Exact,
    /// Case tells names apart; forms of Unicode may not.
    Case,
    Folds,
}

struct Dir {
    sense: Sense,
    /// Which entry has an inode, and under which name.
    taken: HashMap<Inode, (FileId, Name)>,
}

/// Who has which inode, by directory.
#[derive(Default)]
pub(super) struct Claims {
    dirs: Mutex<IdMap<DirId, Arc<Mutex<Dir>>>>,
}

impl Claims {
    /// The entry `who` has what stands at `name` in the directory. False: another entry has it.
    pub(super) fn claim(
        &self,
        jail: Jail,
        (id, fd): (DirId, &OwnedFd),
        name: &Name,
        inode: Inode,
        who: FileId,
    ) -> bool {
        let fresh = || Arc::new(Mutex::new(Dir { sense: Sense::Unknown, taken: HashMap::new() }));
        let dir = lock(&self.dirs).entry(id).or_insert_with(fresh).clone();
        let mut dir = lock(&dir);
        if dir.sense == Sense::Unknown {
            dir.sense = sense(jail, fd, name, inode);
            match dir.sense {
                Sense::Exact => dir.taken = HashMap::new(),
                Sense::Case => dir.taken.retain(|_, (_, name)| !name.as_bytes().is_ascii()),
                Sense::Unknown | Sense::Folds => {}
            }
        }
        let ascii = name.as_bytes().is_ascii();
        if dir.sense == Sense::Exact || (dir.sense == Sense::Case && ascii) {
            return true;
        }
        match dir.taken.get(&inode) {
            // Two names of one inode that are both there were hard links before.
            Some((other, before)) if *other != who => {
                [name, before].into_iter().all(|name| is_listed(fd, name) == Some(true))
            }
            Some(_) => true,
            None => {
                dir.taken.insert(inode, (who, name.clone()));
                true
            }
        }
    }

    /// The entry `who` has this inode no more: its number may come again.
    pub(super) fn release(&self, id: DirId, inode: Inode, who: FileId) {
        let dir = lock(&self.dirs).get(&id).cloned();
        if let Some(dir) = dir {
            let mut dir = lock(&dir);
            if dir.taken.get(&inode).is_some_and(|(holder, _)| *holder == who) {
                dir.taken.remove(&inode);
            }
        }
    }

    /// The directory is over.
    pub(super) fn forget(&self, id: DirId) {
        lock(&self.dirs).remove(&id);
    }
}

fn has_flag(dir: &OwnedFd) -> bool {
    rustix::fs::ioctl_getflags(dir).is_ok_and(|flags| flags.bits() & CASEFOLD != 0)
}

/// The directory is known to keep every name as it is.
pub(super) fn is_exact(dir: &OwnedFd) -> bool {
    rustix::fs::fstatfs(dir).is_ok_and(|stat| FLAGGED.contains(&stat.f_type)) && !has_flag(dir)
}

/// Whether the directory at `path` may take names for one that differ in case. Nothing is made to see: its
/// own name with the case turned tells, where the file system does not.
pub fn may_fold_case(path: &Path) -> bool {
    let (Ok(path), flags) =
        (std::fs::canonicalize(path), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC)
    else {
        return true;
    };
    let Ok(dir) = rustix::fs::open(&path, flags, Mode::empty()) else { return true };
    if is_exact(&dir) {
        return false;
    }
    let Some(name) = path.file_name().filter(|_| !has_flag(&dir)) else { return true };
    let turned = turned(name.as_bytes());
    let same = |a: &Path, b: &Path| match (rustix::fs::stat(a), rustix::fs::stat(b)) {
        (Ok(a), Ok(b)) => inode_of(&a) == inode_of(&b),
        _ => false,
    };
    turned == name.as_bytes() || same(&path.with_file_name(OsStr::from_bytes(&turned)), &path)
}

fn turned(name: &[u8]) -> Vec<u8> {
    let turned = |byte: &u8| match byte.is_ascii_lowercase() {
        true => byte.to_ascii_uppercase(),
        false => byte.to_ascii_lowercase(),
    };
    name.iter().map(turned).collect()
}

/// What the directory makes of names, as far as `name`, at which `inode` stands, tells.
fn sense(jail: Jail, fd: &OwnedFd, name: &Name, inode: Inode) -> Sense {
    if has_flag(fd) {
        return Sense::Folds;
    }
    if is_exact(fd) {
        return Sense::Exact;
    }
    let turned = turned(name.as_bytes());
    if turned == name.as_bytes() {
        return Sense::Unknown;
    }
    let Ok(turned) = Name::new(&turned) else { return Sense::Unknown };
    match jail.stat(fd, &turned) {
        Err(Errno::NOENT) => Sense::Case,
        Ok(stat) if inode_of(&stat) != inode => Sense::Case,
        Ok(stat) if stat.st_nlink == 1 || is_listed(fd, &turned) == Some(false) => Sense::Folds,
        Ok(_) | Err(_) => Sense::Unknown,
    }
}

/// Whether the directory lists exactly this name; `None`: it cannot be read, or is too long to be looked
/// through.
pub(super) fn is_listed(dir: &OwnedFd, name: &Name) -> Option<bool> {
    let mut entries = rustix::fs::Dir::read_from(dir).ok()?;
    for _ in 0..LISTED_MAX {
        match entries.next() {
            None => return Some(false),
            Some(Ok(entry)) if entry.file_name().to_bytes() == name.as_bytes() => return Some(true),
            Some(Ok(_)) => {}
            Some(Err(_)) => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).expect("a legal name")
    }

    /// Goal: where names may fold, an inode that one entry has is refused to the next, until it is given up;
    /// two names that are both listed are hard links, and two entries.
    /// Method: a directory of which nothing is known yet (names without letters tell nothing), by inode
    /// numbers.
    #[test]
    fn an_inode_belongs_to_one_entry() {
        let dir = tempfile::tempdir().expect("tempdir");
        fs::write(dir.path().join("1"), "x").expect("write");
        fs::hard_link(dir.path().join("1"), dir.path().join("2")).expect("link");
        let fd = Jail::open_root(dir.path()).expect("open");
        let jail = Jail::probe(&fd);
        let claims = Claims::default();
        let folding = Dir { sense: Sense::Folds, taken: HashMap::new() };
        lock(&claims.dirs).insert(DirId::ROOT, Arc::new(Mutex::new(folding)));
        let inode = inode_of(&jail.stat(&fd, &name("1")).expect("stat"));
        let claim = |text: &str, who| claims.claim(jail, (DirId::ROOT, &fd), &name(text), inode, FileId(who));
        assert!(claim("1", 1) && claim("1", 1));
        assert!(claim("2", 2), "a hard link");
        assert!(!claim("3", 3), "another name of the same");
        claims.release(DirId::ROOT, inode, FileId(3));
        assert!(!claim("3", 3), "it was not its to give up");
        claims.release(DirId::ROOT, inode, FileId(1));
        assert!(claim("3", 3));
        assert!(!claim("1", 1), "it is listed, and the name of who has it is not");
    }

    /// Goal: where every name is its own nothing is kept.
    /// Method: a directory of this machine's temporary file system.
    #[test]
    fn exact_directories_keep_nothing() {
        let dir = tempfile::tempdir().expect("tempdir");
        let fd = Jail::open_root(dir.path()).expect("open");
        let claims = Claims::default();
        for who in 0..100 {
            let text = format!("f{who}");
            fs::write(dir.path().join(&text), "").expect("write");
            let jail = Jail::probe(&fd);
            let inode = inode_of(&jail.stat(&fd, &name(&text)).expect("stat"));
            assert!(claims.claim(jail, (DirId::ROOT, &fd), &name(&text), inode, FileId(who)));
        }
        assert!(lock(&lock(&claims.dirs)[&DirId::ROOT]).taken.is_empty());
        claims.forget(DirId::ROOT);
        assert!(lock(&claims.dirs).is_empty());
    }
}
