//! What the journal says of one file, and may be told of it.
//!
//! In: parts that are on media, parts that an earlier run wrote. Out: records; what is durable; what is
//! promised no more.
//! Invariants: a part is durable once the journal says so, never before; what was expected and not read is
//! promised on, and is not durable; a slot names one temporary of one version, and when that is another one,
//! or when parts of it are worth nothing, the next record begins a new slot.
//!
//! Both the coordinator's file and the file of a session's sink have one: nobody else decides what is
//! durable.
//! Left out: when anything is written (`facts`).

use super::Temp;
use super::ledger::{Ledger, Named};
use crate::digest::{DigestKind, Subtree, SubtreeSet};
use crate::entry::Fingerprint;
use crate::extents::ExtentMap;
use crate::ids::{DirId, Generation, Holder};
use crate::journal::{PathKey, Record, SUBTREE_KEPT_MAX};

/// Parts of a file that were written before, and where.
#[derive(Clone, Debug)]
pub(crate) struct Old {
    pub(crate) temp: Temp,
    pub(crate) parts: SubtreeSet,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) generation: Generation,
    pub(crate) parent: DirId,
    pub(crate) path: PathKey,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) object_size: u32,
    /// Where it is written.
    pub(crate) temp: Temp,
    /// What is on media and the journal says so, in subtrees as it keeps them; made in this run, of frames or
    /// by reading.
    pub(crate) durable: SubtreeSet,
    /// What is expected elsewhere and not read yet: what an earlier run's journal said, and what is durable
    /// in temporaries that somebody may still write into. Of none of them nothing.
    pub(crate) olds: Vec<Old>,
    /// Of this run, in which the journal says it.
    slot: Option<u32>,
    /// The next record begins a new slot.
    anew: bool,
    /// The journal may promise parts of it.
    promised: bool,
    /// Parts are held under another version in the fingerprint, and the source did not confirm
    /// them yet: until then the journal must not say that they are of the announced version.
    claimed: Option<Fingerprint>,
    /// Ranges that were not what the journal says, while it still says so.
    wrong: Vec<(u64, u64)>,
}

impl Kept {
    /// Of a file of which nothing is written. `temp` is where it will be.
    pub(crate) fn new(
        (parent, path, generation): (DirId, PathKey, Generation),
        (fingerprint, object_size): (Fingerprint, u32),
        temp: Temp,
        kind: DigestKind,
    ) -> Kept {
        Kept {
            generation,
            parent,
            path,
            fingerprint,
            object_size,
            temp,
            durable: SubtreeSet::capped(kind, fingerprint.size, SUBTREE_KEPT_MAX),
            olds: Vec::new(),
            slot: None,
            anew: false,
            promised: false,
            claimed: None,
            wrong: Vec::new(),
        }
    }

    pub(crate) fn size(&self) -> u64 {
        self.fingerprint.size
    }

    /// It has data only where this says, or anywhere. Nothing of it is durable.
    pub(crate) fn set_map(&mut self, map: Option<ExtentMap>) {
        let (kind, size) = (self.durable.kind(), self.size());
        self.durable = match map {
            Some(map) => SubtreeSet::capped_with_map(kind, map, SUBTREE_KEPT_MAX),
            None => SubtreeSet::capped(kind, size, SUBTREE_KEPT_MAX),
        };
    }

    fn named(&self) -> Named {
        Named {
            path: self.path,
            fingerprint: self.claimed.unwrap_or(self.fingerprint),
            object_size: self.object_size,
            tag: self.temp.tag,
            number: self.temp.number,
            map: self.durable.map().map(ExtentMap::digest),
        }
    }

    /// The journal does not speak of its temporary yet, so whoever has it say so sees to the temporary's name
    /// first.
    pub(crate) fn is_unnamed(&self) -> bool {
        self.slot.is_none() || self.anew
    }

    pub(crate) fn is_promised(&self) -> bool {
        self.promised
    }

    /// An earlier run's journal promises something of its path. `claimed`: of that version, which the source
    /// is to compare.
    pub(crate) fn promise(&mut self, claimed: Option<Fingerprint>) {
        self.promised = true;
        self.claimed = claimed;
    }

    /// The source did not say yet whether what is held is of the announced version.
    pub(crate) fn is_claimed(&self) -> bool {
        self.claimed.is_some()
    }

    /// What is held is of the announced version. True if the journal has to hear of it anew.
    pub(crate) fn confirm(&mut self) -> bool {
        self.claimed = None;
        let said = !self.is_unnamed();
        self.say_anew();
        said || !self.durable.is_empty()
    }

    /// What is left is said anew, under another slot.
    pub(crate) fn say_anew(&mut self) {
        self.anew = true;
    }

    /// This range is not what the journal says.
    pub(crate) fn found_wrong(&mut self, offset: u64, len: u64) {
        self.wrong.push((offset, len));
        self.say_anew();
    }

    /// The records that say that these parts are on media too. Returns ranges that are promised no more with
    /// them.
    pub(super) fn say(
        &mut self,
        ledger: &mut Ledger,
        by: Holder,
        subtrees: &[Subtree],
        records: &mut Vec<Record>,
    ) -> Vec<(u64, u64)> {
        self.promised = true;
        let (fresh, named) = (self.is_unnamed() || ledger.is_void(&self.path), self.named());
        if fresh {
            (self.slot, self.anew) = (None, false);
        }
        let slot = ledger.slot(&mut self.slot, named, self.durable.kind(), records);
        let mut wrong = Vec::new();
        if fresh {
            wrong = std::mem::take(&mut self.wrong);
            // What was not read yet is where the next run has to look, too.
            let olds = self.olds.iter().filter(|old| old.temp == self.temp);
            let all: Vec<Subtree> =
                self.durable.iter().chain(olds.flat_map(|old| old.parts.iter())).collect();
            Ledger::say_durable(slot, by, &all, records);
        }
        if let [one] = subtrees {
            Ledger::say_durable(slot, by, &[*one], records);
        } else {
            let mut merged = self.durable.fresh();
            for s in subtrees {
                let _ = merged.insert(s.offset, s.len, s.cv);
            }
            let merged: Vec<Subtree> = merged.iter().collect();
            Ledger::say_durable(slot, by, &merged, records);
        }
        wrong
    }

    /// The journal says that these are on media in `temp`. False if it is written elsewhere since: then they
    /// are expected there.
    pub(super) fn handle_said(&mut self, temp: Temp, subtrees: &[Subtree]) -> bool {
        let here = self.temp == temp;
        for part in subtrees {
            match here {
                true => drop(self.durable.insert(part.offset, part.len, part.cv)),
                false => self.expect(temp, *part),
            }
        }
        here
    }

    /// What was read where it lies is what the journal says, which goes on to say it.
    pub(crate) fn handle_read(&mut self, part: Subtree) {
        let _ = self.durable.insert(part.offset, part.len, part.cv);
    }

    /// Nothing of it is worth anything any more. What the journal is to be told, if it promised something.
    pub(crate) fn forget(&mut self) -> Option<(Option<u32>, Named)> {
        self.claimed = None;
        // Whatever it was a part of: without its map it is nobody's.
        let named = Named { map: None, ..self.named() };
        let slot = self.slot.take();
        self.durable = self.durable.fresh();
        self.olds.clear();
        self.wrong.clear();
        std::mem::take(&mut self.promised).then_some((slot, named))
    }

    /// Its temporary is not there, or is another inode. What the journal is to be told, if it promised
    /// something of that.
    pub(super) fn forget_here(&mut self) -> Option<(Option<u32>, Named)> {
        let temp = self.temp;
        let promised = !self.durable.is_empty() || self.olds.iter().any(|old| old.temp == temp);
        let named = self.named();
        self.durable = self.durable.fresh();
        self.olds.retain(|old| old.temp != temp);
        self.say_anew();
        promised.then(|| (self.slot.take(), named))
    }

    /// Ranges that several ends have begin at multiples of this.
    pub(super) fn unit(&self) -> u64 {
        let page = if haul_mutant::removed("ranges-begin-at-pages") { 1 } else { super::PAGE_LEN };
        page.max(u64::from(self.object_size))
    }

    /// This is to be taken over from another temporary, if it can be: two ends must not write one page for
    /// that.
    pub(crate) fn expect(&mut self, temp: Temp, part: Subtree) {
        let unit = self.unit();
        let at_edges = part.offset.is_multiple_of(unit)
            && (part.len.is_multiple_of(unit) || part.offset + part.len == self.size());
        if temp != self.temp && !at_edges {
            return;
        }
        if let Some(old) = self.olds.iter_mut().find(|old| old.temp == temp) {
            let _ = old.parts.insert(part.offset, part.len, part.cv);
        } else {
            let mut parts = self.durable.fresh();
            // Of an empty file there is nothing to be read.
            if parts.insert(part.offset, part.len, part.cv) == Ok(true) {
                self.olds.push(Old { temp, parts });
            }
        }
    }

    /// The part that begins here was read.
    pub(crate) fn expect_no_more(&mut self, temp: Temp, offset: u64) {
        for old in self.olds.iter_mut().filter(|old| old.temp == temp) {
            old.parts.remove(offset);
        }
        self.olds.retain(|old| !old.parts.is_empty());
    }

    /// What is expected where it is written, and not read yet.
    pub(crate) fn expected(&self) -> Option<&SubtreeSet> {
        self.olds.iter().find(|old| old.temp == self.temp).map(|old| &old.parts)
    }

    /// Nothing is expected where it is written any more. Returns what was.
    pub(crate) fn take_expected(&mut self) -> Vec<Subtree> {
        let temp = self.temp;
        let here = self.olds.iter().position(|old| old.temp == temp).map(|at| self.olds.remove(at));
        here.iter().flat_map(|old| old.parts.iter()).collect()
    }

    /// Of this range nothing need be read any more.
    pub(super) fn have(&mut self, offset: u64, len: u64) {
        for old in &mut self.olds {
            let parts: Vec<Subtree> = old.parts.touching(offset, len).collect();
            let inside = parts.iter().filter(|p| p.offset >= offset && p.offset + p.len <= offset + len);
            for part in inside {
                old.parts.remove(part.offset);
            }
        }
        self.olds.retain(|old| !old.parts.is_empty());
    }

    /// Somebody may still write into its temporary: it goes on in a new one, into which what is durable is
    /// taken over. Returns the one that is left.
    pub(super) fn move_to(&mut self, temp: Temp) -> Temp {
        let left = std::mem::replace(&mut self.temp, temp);
        self.say_anew();
        let fresh = self.durable.fresh();
        let durable = Old { temp: left, parts: std::mem::replace(&mut self.durable, fresh) };
        // What was only to be read where it lies is to be taken over now.
        for old in std::mem::take(&mut self.olds).into_iter().chain([durable]) {
            old.parts.iter().for_each(|part| self.expect(old.temp, part));
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Timestamp, Version};

    /// Goal: nothing is expected where nothing can be read, and nothing any more when all of it was.
    /// Method: the only part of an empty file, which has no bytes, and one of a file of a page, here and
    /// elsewhere.
    #[test]
    fn expected_is_what_has_bytes() {
        let (here, elsewhere) = (Temp { tag: 9, number: 1 }, Temp { tag: 9, number: 2 });
        for (size, temp) in [(0, here), (0, elsewhere), (4096, here), (4096, elsewhere)] {
            let (mtime, version) = (Timestamp { secs: 1, nanos: 0 }, Version::NONE);
            let about = (Fingerprint { size, mtime, version }, 1 << 20);
            let path = (DirId::ROOT, PathKey([1; 16]), Generation(0));
            let mut kept = Kept::new(path, about, here, DigestKind::Blake3);
            kept.expect(temp, Subtree { offset: 0, len: size, cv: [7; 32] });
            assert_eq!(kept.olds.len(), usize::from(size > 0), "{size} in {temp:?}");
            kept.expect_no_more(temp, 0);
            assert!(kept.olds.is_empty());
        }
    }
}
