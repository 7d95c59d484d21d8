//! How the parts of files ended that were read: what a session that goes on in the middle of a file is held
//! against, whichever session read what comes before.
//!
//! In: the last bytes of each part, as it was read. Out: whether other bytes, which stand before the same
//! place, are these. Invariant: of what is not known nothing is confirmed.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use haul_core::digest::{DigestKind, Root};
use haul_core::ids::{FileId, Generation};

use haul_base::digest;

/// Bytes before the end of a part that are read once more where a session goes on there.
pub(super) const AGAIN_LEN: usize = 64 * 1024;
/// Ends that are kept of all files together: those of a terabyte in objects of 4 MiB.
const ENDS_MAX: usize = 1 << 18;

/// The ends that are known.
#[derive(Default)]
pub(super) struct Ends(Mutex<Known>);

#[derive(Default)]
struct Known {
    files: HashMap<FileId, File>,
    count: usize,
}

struct File {
    generation: Generation,
    /// By where they are: how many bytes before, and their digest.
    ends: BTreeMap<u64, (usize, Root)>,
}

/// What must stand before a place.
pub(super) struct Before {
    pub(super) at: u64,
    pub(super) len: usize,
    root: Root,
}

impl Before {
    pub(super) fn is(&self, bytes: &[u8]) -> bool {
        bytes.len() == self.len && digest::root(DigestKind::Blake3, bytes) == self.root
    }
}

impl Ends {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `part` of a file was read, and ends at `at`. False: what stands there is known, and this is not it.
    pub(super) fn agree(&self, id: FileId, generation: Generation, at: u64, part: &[u8]) -> bool {
        let mut known = self.lock();
        let Known { files, count } = &mut *known;
        let file = files.entry(id).or_insert_with(|| File { generation, ends: BTreeMap::new() });
        if generation < file.generation {
            // A late answer of the version before, which nobody takes any more.
            return true;
        }
        if generation > file.generation {
            *count -= file.ends.len();
            *file = File { generation, ends: BTreeMap::new() };
        }
        if let Some((len, root)) = file.ends.get(&at) {
            let last = &part[part.len().saturating_sub(*len)..];
            return haul_mutant::removed("ftp-parts-agree") || Before { at, len: *len, root: *root }.is(last);
        }
        // Of a file that has more, the last ones are kept.
        if *count >= ENDS_MAX && file.ends.pop_first().is_some() {
            *count -= 1;
        }
        let last = &part[part.len().saturating_sub(AGAIN_LEN)..];
        file.ends.insert(at, (last.len(), digest::root(DigestKind::Blake3, last)));
        *count += 1;
        true
    }

    /// What is known to stand before `at`, or before the last place ahead of it.
    pub(super) fn before(&self, id: FileId, generation: Generation, at: u64) -> Option<Before> {
        let known = self.lock();
        let file = known.files.get(&id).filter(|file| file.generation == generation)?;
        let (at, (len, root)) = file.ends.range(..=at).next_back()?;
        Some(Before { at: *at, len: *len, root: *root })
    }

    /// Nothing is read of it any more.
    pub(super) fn forget(&self, id: FileId) {
        let mut known = self.lock();
        if let Some(file) = known.files.remove(&id) {
            known.count -= file.ends.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: only what stood there is confirmed, of the version that was read, as long as it is known.
    #[test]
    fn only_what_was_read_is_confirmed() {
        let (ends, id, old, new) = (Ends::default(), FileId(1), Generation(0), Generation(1));
        let part: Vec<u8> = (0..AGAIN_LEN + 10).map(|n| (n % 251) as u8).collect();
        let at = part.len() as u64;
        assert!(ends.agree(id, old, at, &part));
        let before = |generation, at| ends.before(id, generation, at);
        for later in [at, at + 1, u64::MAX] {
            let end = before(old, later).expect("known");
            assert!(
                (end.at, end.len) == (at, AGAIN_LEN)
                    && end.is(&part[10..])
                    && !end.is(&part[9..at as usize - 1])
            );
        }
        assert!(before(old, at - 1).is_none() && before(new, at).is_none());
        // The same place read again, as it was and otherwise.
        assert!(ends.agree(id, old, at, &part) && ends.agree(id, old, at, &part[5..]));
        let mut other = part.clone();
        *other.last_mut().expect("some") += 1;
        assert!(!ends.agree(id, old, at, &other) && !ends.agree(id, old, at, &part[20..]));
        assert!(ends.agree(id, new, 3, b"abc"));
        assert!(before(old, at).is_none() && before(new, 3).is_some_and(|end| end.is(b"abc")));
        // A late answer of the version before changes nothing.
        assert!(ends.agree(id, old, 3, b"abd") && before(new, 3).is_some_and(|end| end.is(b"abc")));
        ends.forget(id);
        assert!(ends.before(id, new, 3).is_none() && ends.lock().count == 0);
    }
}
