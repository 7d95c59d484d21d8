//! Files and symbolic links that have several names, told apart by their inodes.
//!
//! In: entries with more than one link, as they are looked at. Out: which are the first of their file, and
//! which are other names of one that came before.
//! Invariants: a name belongs to another only if both are of one inode with one size and mtime; each names
//! the first, and of that no more are told than it has links. A file is forgotten when all of its names came.
//! Bounds: what is remembered is within [`NAMES_OPEN_MAX`], as the sink counts it too; what comes beyond that
//! is files of their own.

use std::collections::HashMap;
use std::sync::Arc;

use haul_core::entry::{NAMES_COST, NAMES_OPEN_MAX, Timestamp};
use haul_core::ids::FileId;

use crate::source::stat::Seen;

/// What an entry is a name of.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Of {
    Nothing,
    /// The first of a file with so many.
    First(u32),
    Another {
        to: FileId,
        path: Arc<[u8]>,
    },
    /// There is no room to remember it.
    TooMany,
}

struct First {
    id: FileId,
    size: u64,
    mtime: Timestamp,
    /// Names that it has.
    links: u32,
    /// Names that were not found yet.
    left: u32,
    path: Arc<[u8]>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Names {
    firsts: HashMap<(u64, u64), First>,
    cost: usize,
}

impl Names {
    /// An entry that has several links, and gets this id.
    pub(super) fn find(&mut self, seen: &Seen, id: FileId, path: &[u8]) -> Of {
        let key = (seen.dev, seen.stamp.ino);
        let (size, mtime) = (seen.stamp.size, seen.stamp.mtime);
        if let Some(first) = self.firsts.get_mut(&key) {
            // What changed since is not what was announced; nor is what was made anew in its place.
            let same = (first.size, first.mtime) == (size, mtime);
            if same || haul_mutant::removed("names-are-of-what-was-seen") {
                let (to, path) = (first.id, first.path.clone());
                first.left -= 1;
                if first.left == 0 {
                    self.forget(key);
                }
                return Of::Another { to, path };
            }
            self.forget(key);
        }
        let cost = NAMES_COST + path.len();
        if self.cost + cost > NAMES_OPEN_MAX {
            return Of::TooMany;
        }
        self.cost += cost;
        let names = u32::try_from(seen.links).unwrap_or(u32::MAX).max(2);
        self.firsts.insert(key, First { id, size, mtime, links: names, left: names - 1, path: path.into() });
        Of::First(names)
    }

    /// Of each file of which names were not found: the path of the first that was, how many were not, and how
    /// many there are. By path.
    pub(super) fn parted(&self) -> Vec<(&[u8], u32, u32)> {
        let mut parted: Vec<_> =
            self.firsts.values().map(|first| (&*first.path, first.left, first.links)).collect();
        parted.sort_unstable();
        parted
    }

    fn forget(&mut self, key: (u64, u64)) {
        if let Some(first) = self.firsts.remove(&key) {
            self.cost -= NAMES_COST + first.path.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use haul_core::entry::Meta;
    use rustix::fs::FileType;

    use super::*;
    use crate::source::stat::Stamp;

    fn seen(ino: u64, links: u64, size: u64) -> Seen {
        let stamp = Stamp { ino, size, ..Stamp::default() };
        let meta = Meta::default();
        Seen { kind: FileType::RegularFile, meta, stamp, links, allocated: 0, dev: 1, rdev: 0 }
    }

    /// Goal: names of one inode name the first of them, as often as it has links; then, or where it is not
    /// what it was, another is the first. Nothing is remembered of a file whose names all came.
    /// Method: three names of a file with three links, and one more; a name behind which another size stands.
    #[test]
    fn names_of_one_inode_name_the_first() {
        let mut names = Names::default();
        let (first, path) = (FileId(1), Arc::from(&b"d/a"[..]));
        assert_eq!(names.find(&seen(7, 3, 5), first, b"d/a"), Of::First(3));
        for id in [2, 3] {
            assert_eq!(
                names.find(&seen(7, 3, 5), FileId(id), b"b"),
                Of::Another { to: first, path: Arc::clone(&path) }
            );
        }
        assert_eq!((names.firsts.len(), names.cost), (0, 0));
        assert_eq!(names.parted(), []);
        assert_eq!(names.find(&seen(7, 3, 5), FileId(4), b"c"), Of::First(3));
        assert_eq!(names.find(&seen(7, 3, 6), FileId(5), b"e"), Of::First(3), "it is another file by now");
        assert_eq!(names.find(&seen(8, 2, 6), FileId(6), b"f"), Of::First(2));
        assert_eq!(names.parted(), [(&b"e"[..], 2, 3), (b"f", 1, 2)]);
    }

    /// Goal: what is remembered has a bound, and what comes beyond it is told.
    /// Method: files of long paths, none of which has another name that comes.
    #[test]
    fn memory_of_names_is_bounded() {
        let mut names = Names { cost: NAMES_OPEN_MAX - NAMES_COST - 3, ..Names::default() };
        assert_eq!(names.find(&seen(1, 2, 5), FileId(1), b"abc"), Of::First(2));
        assert_eq!(names.find(&seen(2, 2, 5), FileId(2), b"d"), Of::TooMany);
        let path = Arc::from(&b"abc"[..]);
        assert_eq!(names.find(&seen(1, 2, 5), FileId(3), b"e"), Of::Another { to: FileId(1), path });
        assert_eq!(names.find(&seen(2, 2, 5), FileId(4), b"d"), Of::First(2));
    }
}
