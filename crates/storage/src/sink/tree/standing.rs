//! Links to directories that stand at the destination, where the user wants them to be taken for these.
//!
//! In: the inodes of links that this copy makes; the name of a link where a directory should go. Out: the
//! directory that it leads to, open.
//! What must hold: no link is followed that came with this copy, nor one that leads through such a one,
//! whenever it comes: a source could else write wherever its links lead. So each link on the way is held,
//! told by its inode, and read while it is held; nothing is resolved by anybody else. Of a copy that is begun
//! again the links of the attempts before count as its own, by their ctime. A directory that was followed
//! once is followed again by the same link alone, and only to the same directory. No directory of the
//! destination becomes that of two entries by a link: each would take the other's files for its own.
//! Bounds: the inodes of [`CAME_MAX`] links are kept, and of [`TAKEN_MAX`] directories; when more have come,
//! no further link is followed.
//! Left out: links that an earlier command brought, which nobody can tell from those of the user. Where the
//! clock of a file server is two seconds behind this host's, those of an earlier attempt.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use haul_core::entry::{Name, Timestamp};
use haul_core::ids::DirId;
use haul_core::transfer::op::Inode;
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat};
use rustix::io::{Errno, Result};

use crate::meta_rate::cost;
use crate::sink::lock;
use crate::sink::stat::{inode_of, seen_of};

/// Links of one copy that are told from others.
const CAME_MAX: usize = 1 << 20;
/// Directories of one copy that are told from others.
const TAKEN_MAX: usize = 1 << 20;
/// Links behind each other that are followed, as many as Linux does.
const LINKS_MAX: usize = 40;
/// Times of files are this coarse at most.
const GRAIN: Duration = Duration::from_secs(2);

/// Why a link is not followed.
pub(super) const CAME: Errno = Errno::LOOP;

/// See the module.
pub(super) struct Standing {
    came: Mutex<HashSet<Inode>>,
    /// Links that are younger may have come with an earlier attempt.
    before: Option<Timestamp>,
    /// Directories that were entered so.
    followed: Mutex<HashMap<DirId, Followed>>,
    /// Whose each directory is that was entered, in whatever way; kept when they are over.
    taken: Mutex<HashMap<Inode, Taken>>,
}

struct Followed {
    link: Inode,
    dir: Inode,
    /// Path of the link, for messages.
    shown: Arc<str>,
}

struct Taken {
    id: DirId,
    /// The link that it lies behind, for messages.
    behind: Option<Arc<str>>,
}

/// Why a directory cannot be an entry's.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// It is another's too, by this link.
    Anothers(Arc<str>),
    /// Nobody remembers whether it is.
    Unknown,
}

impl Standing {
    /// `begun`: how long before `now` the first attempt began, if this is another.
    pub(super) fn new(begun: Option<Duration>, now: Timestamp) -> Standing {
        let before = begun.map(|ago| {
            let ago = i64::try_from((ago + GRAIN).as_secs() + 1).unwrap_or(i64::MAX);
            Timestamp { secs: now.secs.saturating_sub(ago), nanos: 0 }
        });
        Standing { came: Mutex::default(), before, followed: Mutex::default(), taken: Mutex::default() }
    }

    /// This copy made the link, which has no name yet.
    pub(super) fn comes(&self, inode: Inode) {
        let mut came = lock(&self.came);
        if came.len() < CAME_MAX {
            came.insert(inode);
        }
    }

    /// The directory is over.
    pub(super) fn forget(&self, id: DirId) {
        lock(&self.followed).remove(&id);
    }

    /// The link by which the directory was entered, for messages.
    pub(super) fn link_of(&self, id: DirId) -> Option<Arc<str>> {
        lock(&self.followed).get(&id).map(|followed| followed.shown.clone())
    }

    /// The directory with this inode is the entry's, which lies behind the link `behind` or behind none.
    ///
    /// # Errors
    /// It may be another entry's, and one of both lies behind a link.
    pub(super) fn take(
        &self,
        inode: Inode,
        id: DirId,
        behind: Option<Arc<str>>,
    ) -> std::result::Result<(), Refused> {
        let mut taken = lock(&self.taken);
        let has_room = taken.len() < TAKEN_MAX;
        match taken.entry(inode) {
            Entry::Occupied(other) if other.get().id != id => {
                match behind.or_else(|| other.get().behind.clone()) {
                    Some(link) => Err(Refused::Anothers(link)),
                    // A file system that is mounted twice.
                    None => Ok(()),
                }
            }
            Entry::Occupied(_) => Ok(()),
            Entry::Vacant(_) if !has_room => behind.map_or(Ok(()), |_| Err(Refused::Unknown)),
            Entry::Vacant(free) => {
                free.insert(Taken { id, behind });
                Ok(())
            }
        }
    }

    /// Opens what the link `name` in `parent` leads to, for an entry, whose path is `shown`. `asks` hears of
    /// the operations of metadata that this costs.
    ///
    /// # Errors
    /// As [`lead`](Self::lead). `ESTALE`: it leads not to the directory that it led to.
    pub(super) fn open(
        &self,
        parent: &OwnedFd,
        name: &Name,
        (id, shown): (DirId, &dyn Fn() -> String),
        asks: &dyn Fn(u32),
    ) -> Result<OwnedFd> {
        let (found, (link, dir)) = self.lead(parent, name, asks)?;
        let mut followed = lock(&self.followed);
        let before = followed.entry(id).or_insert_with(|| Followed { link, dir, shown: Arc::from(shown()) });
        match (before.link, before.dir) == (link, dir) {
            true => Ok(found),
            false => Err(Errno::STALE),
        }
    }

    /// Opens what the link `name` in `parent` leads to. With it come the inodes of the link and of that.
    ///
    /// # Errors
    /// [`CAME`]: it, or one on its way, came with this copy. `ENOTDIR`: it leads to no directory.
    pub(super) fn lead(
        &self,
        parent: &OwnedFd,
        name: &Name,
        asks: &dyn Fn(u32),
    ) -> Result<(OwnedFd, (Inode, Inode))> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut at = openat(parent, c".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let mut ahead: VecDeque<Vec<u8>> = VecDeque::from([name.as_bytes().to_vec()]);
        let (mut links, mut first) = (0, None);
        while let Some(part) = ahead.pop_front() {
            asks(cost::OPEN);
            let next = openat(&at, &part[..], flags, Mode::empty())?;
            let stat = fstat(&next)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
                at = next;
                continue;
            }
            links += 1;
            if links > LINKS_MAX || (self.has_come(&stat) && !haul_mutant::removed("links-that-came")) {
                return Err(CAME);
            }
            first.get_or_insert(inode_of(&stat));
            asks(cost::READ_LINK);
            let target = readlinkat(&next, c"", Vec::new())?.into_bytes();
            if target.starts_with(b"/") {
                at = openat(CWD, c"/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
            }
            let parts = target.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
            parts.rev().for_each(|part| ahead.push_front(part.to_vec()));
        }
        let link = first.ok_or(Errno::NOTDIR)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        asks(cost::OPEN);
        let dir = openat(&at, c".", flags, Mode::empty())?;
        let leads = (link, inode_of(&fstat(&dir)?));
        Ok((dir, leads))
    }

    fn has_come(&self, link: &Stat) -> bool {
        let came = lock(&self.came);
        let before = self.before.filter(|_| !haul_mutant::removed("links-of-earlier-attempts"));
        let young = before.is_some_and(|before| seen_of(link).ctime >= before);
        young || came.len() >= CAME_MAX || came.contains(&inode_of(link))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::path::Path;

    use super::*;
    use crate::jail::Jail;

    const NOW: Timestamp = Timestamp { secs: 0, nanos: 0 };

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).expect("a legal name")
    }

    fn inode(path: &Path) -> Inode {
        let stat = fs::symlink_metadata(path).expect("stat");
        Inode { dev: stat.dev(), ino: stat.ino() }
    }

    /// Goal: a link that stood there leads to its directory, by whatever way; one that came, or leads through
    /// one that came, to none.
    /// Method: relative, absolute and chained links, with dots; the last of a chain comes with the copy.
    #[test]
    fn links_that_came_are_not_followed() {
        let dir = tempfile::tempdir().expect("tempdir");
        let base = dir.path();
        fs::create_dir_all(base.join("root/in")).expect("mkdir");
        fs::create_dir_all(base.join("elsewhere/deep")).expect("mkdir");
        fs::write(base.join("elsewhere/file"), "x").expect("write");
        let link = |to: &str, at: &str| symlink(to, base.join("root").join(at)).expect("symlink");
        link("in", "near");
        link("../elsewhere/./deep/", "up");
        link(base.join("elsewhere/deep").to_str().expect("text"), "whole");
        link("../elsewhere/deep/..", "dots");
        link("chain2", "chain1");
        link("up", "chain2");
        link("../elsewhere/file", "file");
        link("nowhere", "dangling");
        link("loop", "loop");
        let root = Jail::open_root(&base.join("root")).expect("root");
        let standing = Standing::new(None, NOW);
        let opens = |at: &str, id| standing.open(&root, &name(at), (DirId(id), &|| at.to_owned()), &|_| ());
        let leads = |at: &str, id| inode_of(&fstat(opens(at, id).expect(at)).expect("stat"));
        assert_eq!(leads("near", 1), inode(&base.join("root/in")));
        for (id, at) in (2..).zip(["up", "whole", "chain1"]) {
            assert_eq!(leads(at, id), inode(&base.join("elsewhere/deep")), "{at}");
        }
        assert_eq!(leads("dots", 9), inode(&base.join("elsewhere")));
        for (id, (at, why)) in (20..).zip([
            ("file", Errno::NOTDIR),
            ("dangling", Errno::NOENT),
            ("loop", Errno::LOOP),
            ("in", Errno::NOTDIR),
        ]) {
            assert_eq!(opens(at, id).expect_err(at), why, "{at}");
        }
        standing.comes(inode(&base.join("root/up")));
        assert_eq!(opens("up", 30).expect_err("it came"), CAME);
        assert_eq!(opens("chain1", 31).expect_err("it leads through one that came"), CAME);
        leads("near", 1);
        // The same directory again, by another link.
        fs::remove_file(base.join("root/near")).expect("rm");
        link("../elsewhere", "near");
        assert_eq!(opens("near", 1).expect_err("another link"), Errno::STALE);
        standing.forget(DirId(1));
        leads("near", 1);
    }

    /// Goal: what may have come with an earlier attempt is not followed.
    #[test]
    fn links_of_earlier_attempts_are_not_followed() {
        let dir = tempfile::tempdir().expect("tempdir");
        fs::create_dir(dir.path().join("in")).expect("mkdir");
        symlink("in", dir.path().join("link")).expect("symlink");
        let ctime = fs::symlink_metadata(dir.path().join("link")).expect("stat").ctime();
        let root = Jail::open_root(dir.path()).expect("root");
        let opens = |begun, secs| {
            let standing = Standing::new(begun, Timestamp { secs, nanos: 0 });
            standing.open(&root, &name("link"), (DirId(1), &String::new), &|_| ()).map(drop)
        };
        let minute = Some(Duration::from_secs(60));
        assert_eq!(opens(None, ctime), Ok(()));
        assert_eq!(opens(minute, ctime + 50), Err(CAME));
        assert_eq!(opens(minute, ctime + 70), Ok(()));
    }
}
