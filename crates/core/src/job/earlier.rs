//! What earlier runs left of files, as their journal says; and names of temporaries that neither they nor
//! this run have.
//!
//! In: what the journal of the run before knew. Out: what one file takes up.
//! Invariants: each promise is taken up once, by the first file of its path, so that two entries of one name
//! never write one temporary; it counts only for the announced content, under the same map, in values of the
//! same digest; a number is given once.
//! Left out: whether anything of it is there, and right, which is found by looking and reading (`kept`).

use std::collections::HashMap;

use super::Temp;
use crate::digest::DigestKind;
use crate::entry::Fingerprint;
use crate::journal::{Partial, PathKey, Replayed};

/// A promise that a file took up.
#[derive(Debug)]
pub(crate) struct Taken {
    /// It is of the file as it was announced.
    pub(crate) fits: bool,
    /// The version that the parts are of, if its source has to compare that with the one that it announced.
    pub(crate) claimed: Option<Fingerprint>,
    /// Tags under which the temporary may be found, the likeliest last.
    pub(crate) tags: Vec<u32>,
    pub(crate) partial: Partial,
}

/// See the module.
pub(crate) struct Earlier {
    partials: HashMap<PathKey, Partial>,
    /// Of all runs, oldest first.
    tags: Vec<u32>,
    written_late: bool,
    /// Of this run.
    tag: u32,
    /// The last that was given to a temporary.
    number: u64,
}

impl Earlier {
    /// `tag`: of this run.
    pub(crate) fn new(replayed: Replayed, tag: u32) -> Earlier {
        let number = replayed.partials.values().map(|partial| partial.number).max().unwrap_or(0);
        let written_late = replayed.may_be_overtaken() && !haul_mutant::removed("written-late-is-left");
        // The journal that was begun for this run has the marks of finished files; nobody asks for them.
        Earlier { partials: replayed.partials, tags: replayed.tags, written_late, tag, number }
    }

    /// Somebody may still write into what an earlier run made.
    pub(super) fn may_be_written_late(&self) -> bool {
        self.written_late
    }

    /// A name that no temporary of this session has, nor one that the journal speaks of.
    pub(crate) fn take_temp(&mut self) -> Temp {
        self.number += 1;
        Temp { tag: self.tag, number: self.number }
    }

    /// What the journal promises of a path, for the file that has it now.
    pub(crate) fn take(
        &mut self,
        path: &PathKey,
        fingerprint: &Fingerprint,
        map: Option<[u8; 32]>,
        kind: DigestKind,
    ) -> Option<Taken> {
        let partial = self.partials.remove(path)?;
        let fits = partial.fingerprint.same_content(fingerprint)
            && partial.map == map
            && partial.subtrees.kind() == kind;
        let compare =
            partial.fingerprint != *fingerprint && !haul_mutant::removed("other-inodes-are-compared");
        // Only a later run can have taken the temporary over; what an earlier one left under this name is not
        // what the journal speaks of.
        let own = self.tags.iter().position(|tag| *tag == partial.tag);
        let later = own.map_or(&[][..], |own| &self.tags[own + 1..]);
        let tags = if fits { later.iter().copied().chain([partial.tag]).collect() } else { Vec::new() };
        Some(Taken { fits, claimed: compare.then_some(partial.fingerprint), tags, partial })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::SubtreeSet;
    use crate::entry::{Name, Timestamp, Version};

    fn print(secs: i64, version: &[u8]) -> Fingerprint {
        let version = Version::new(version).expect("short");
        Fingerprint { size: 4096, mtime: Timestamp { secs, nanos: 0 }, version }
    }

    /// Goal: a promise is taken up once, counts only for the same content, and is compared if the version is
    /// another.
    #[test]
    fn promises_are_taken_up_once() {
        let kind = DigestKind::Blake3;
        let path = |name: &[u8]| PathKey::ROOT.child(&Name::new(name).expect("a name"));
        let names: [&[u8]; 3] = [b"same", b"other", b"touched"];
        let partial = |number| Partial {
            fingerprint: print(1, b"a"),
            object_size: 4096,
            tag: 7,
            number,
            map: None,
            subtrees: SubtreeSet::new(kind, 4096),
        };
        let partials = (0..).zip(names).map(|(number, name)| (path(name), partial(number))).collect();
        let replayed = Replayed { partials, tags: vec![5, 7, 8], ..Replayed::default() };
        let mut earlier = Earlier::new(replayed, 9);
        assert_eq!(earlier.take_temp(), Temp { tag: 9, number: 3 }, "no number of the journal's");
        let same = earlier.take(&path(b"same"), &print(1, b"a"), None, kind).expect("it is promised");
        assert_eq!((same.fits, same.claimed, same.tags), (true, None, vec![8, 7]));
        assert!(earlier.take(&path(b"same"), &print(1, b"a"), None, kind).is_none());
        let other = earlier.take(&path(b"other"), &print(2, b"a"), None, kind).expect("it is promised");
        assert!(!other.fits && other.tags.is_empty());
        let touched = earlier.take(&path(b"touched"), &print(1, b"b"), None, kind).expect("it is promised");
        assert_eq!((touched.fits, touched.claimed), (true, Some(print(1, b"a"))));
    }
}
