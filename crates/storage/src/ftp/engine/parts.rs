//! What was read of files: what another replica is held against before it gives the rest of one.
//!
//! In: the parts of a file, as they were read and given away. Out: those that must stand in the other replica
//! too, byte by byte.
//! Invariant: of a file of which a part is missing here nothing can be shown, and it starts afresh.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use haul_core::digest::{DigestKind, Root};
use haul_core::ids::{FileId, Generation};

use haul_base::digest;

/// Parts that are kept of all files together: those of a terabyte in objects of 4 MiB.
const PARTS_MAX: usize = 1 << 18;

/// The parts that were read.
#[derive(Default)]
pub(super) struct Parts(Mutex<Known>);

#[derive(Default)]
struct Known {
    files: HashMap<FileId, File>,
    count: usize,
}

struct File {
    generation: Generation,
    /// The server that gave them all, or has shown that it has them.
    site: usize,
    /// By where they begin: their length and digest.
    parts: BTreeMap<u64, (u64, Root)>,
    /// One of them was not kept.
    is_short: bool,
}

/// Bytes that stand in a file.
pub(super) struct Part {
    pub(super) at: u64,
    pub(super) len: u64,
    root: Root,
}

impl Part {
    pub(super) fn is(&self, bytes: &[u8]) -> bool {
        bytes.len() as u64 == self.len && digest::root(DigestKind::Blake3, bytes) == self.root
    }
}

/// What a server must show before it gives more of a file.
pub(super) enum Needs {
    Nothing,
    /// That it has these, in order.
    These(Vec<Part>),
    /// More than is known here.
    TooMuch,
}

impl Parts {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These bytes were read at `site`, and are given away.
    pub(super) fn add(&self, id: FileId, generation: Generation, site: usize, (at, bytes): (u64, &[u8])) {
        let part = (bytes.len() as u64, digest::root(DigestKind::Blake3, bytes));
        let mut known = self.lock();
        let Known { files, count } = &mut *known;
        let fresh = || File { generation, site, parts: BTreeMap::new(), is_short: false };
        let file = files.entry(id).or_insert_with(fresh);
        if generation < file.generation {
            return;
        }
        if generation > file.generation {
            *count -= file.parts.len();
            *file = fresh();
        }
        match *count >= PARTS_MAX || file.site != site {
            true => file.is_short = true,
            // What was read twice was held against the other time by whoever hashes it for the copy.
            false => *count += usize::from(file.parts.insert(at, part).is_none()),
        }
    }

    /// What `site` must show before it gives more of a file.
    pub(super) fn needs(&self, id: FileId, generation: Generation, site: usize) -> Needs {
        let known = self.lock();
        let file = known.files.get(&id).filter(|file| file.generation == generation && file.site != site);
        let Some(file) = file.filter(|_| !haul_mutant::removed("ftp-replicas-show-what-they-have")) else {
            return Needs::Nothing;
        };
        let part = |(at, (len, root)): (&u64, &(u64, Root))| Part { at: *at, len: *len, root: *root };
        match file.is_short {
            true => Needs::TooMuch,
            false => Needs::These(file.parts.iter().map(part).collect()),
        }
    }

    /// `site` has shown that it has all of them.
    pub(super) fn shown(&self, id: FileId, generation: Generation, site: usize) {
        let mut known = self.lock();
        if let Some(file) = known.files.get_mut(&id).filter(|file| file.generation == generation) {
            file.site = site;
        }
    }

    /// Nothing is read of it any more.
    pub(super) fn forget(&self, id: FileId) {
        let mut known = self.lock();
        if let Some(file) = known.files.remove(&id) {
            known.count -= file.parts.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what was given away must be shown, byte by byte, by whoever did not give it, as long as it is of
    /// the version that is read and not forgotten.
    #[test]
    fn what_was_given_away_must_be_shown() {
        let (parts, id, old, new) = (Parts::default(), FileId(1), Generation(0), Generation(1));
        let all = |generation, site| match parts.needs(id, generation, site) {
            Needs::Nothing => Vec::new(),
            Needs::These(all) => all,
            Needs::TooMuch => panic!("all is known"),
        };
        assert!(all(old, 1).is_empty());
        parts.add(id, old, 0, (4, b"efgh"));
        parts.add(id, old, 0, (0, b"abcd"));
        assert!(all(old, 0).is_empty(), "it gave them");
        let known = all(old, 1);
        assert_eq!(known.iter().map(|part| (part.at, part.len)).collect::<Vec<_>>(), [(0, 4), (4, 4)]);
        assert!(known[0].is(b"abcd") && known[1].is(b"efgh"));
        assert!(!known[0].is(b"abcx") && !known[0].is(b"abc") && !known[0].is(b"xabcd"));
        parts.shown(id, old, 1);
        assert!(all(old, 1).is_empty() && all(old, 0).len() == 2);
        parts.add(id, new, 0, (0, b"x"));
        assert!(all(old, 0).is_empty());
        // A late answer of the version before.
        parts.add(id, old, 0, (0, b"abcd"));
        assert!(all(new, 1).len() == 1 && all(new, 1)[0].is(b"x"));
        parts.forget(id);
        assert_eq!(parts.lock().count, 0);
    }

    /// Goal: of a file of which not all is kept, or whose parts come from two places, nothing can be shown.
    #[test]
    fn what_is_not_all_known_cannot_be_shown() {
        let (parts, id, generation) = (Parts::default(), FileId(1), Generation(0));
        parts.lock().count = PARTS_MAX - 1;
        parts.add(id, generation, 0, (0, b"a"));
        assert!(matches!(parts.needs(id, generation, 1), Needs::These(_)));
        parts.add(id, generation, 0, (1, b"b"));
        assert!(matches!(parts.needs(id, generation, 1), Needs::TooMuch));
        let parts = Parts::default();
        parts.add(id, generation, 0, (0, b"a"));
        parts.add(id, generation, 1, (1, b"b"));
        assert!(matches!(parts.needs(id, generation, 1), Needs::TooMuch));
    }
}
