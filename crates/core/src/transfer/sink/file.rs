//! A file that was announced to the sink: where it stands between its announcement and its end.
//!
//! In: nothing; the other parts of the machine write its fields. Out: whether it is whole.
//! Invariant: it is whole only when every object is written and its digest tree is.
//! Left out: the steps from phase to phase, which are beside their events; what is durable of it
//! (`job::kept`), and whether it may have its name (`job::naming`).

use std::collections::BTreeMap;

use crate::change::Change;
use crate::digest::{Subtree, SubtreeSet};
use crate::entry::{Meta, Name};
use crate::extents::{DataExtent, ExtentMap};
use crate::ids::{FileId, Generation, SinkTarget, TargetId};
use crate::job::earlier::{Earlier, Taken};
use crate::job::facts::Known;
use crate::job::kept::Kept;
use crate::job::naming::Naming;
use crate::layout::{Layout, Striping};
use crate::transfer::op::{LookupItem, Seen, SinkFile};

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(super) enum SinkPhase {
    /// What stands at the destination is being looked up, or will be when its map is whole.
    Looking,
    /// Its content is right; its mode and owner are being made so.
    Amending,
    /// It is being cloned, or waits for that.
    Cloning,
    /// Objects are taken.
    Open,
    /// Handed to an epoch for publication.
    Committing,
    /// The source withdrew this generation; another comes.
    Withdrawn,
    /// The store lost what was written; it is begun again, in its turn where there are turns.
    Again,
}

/// Whether its temporary was made to learn where it lies.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(super) enum EarlyTemporary {
    /// Not for that: the first write makes it, if there is no other need.
    No,
    Asked,
    Yes,
}

/// What holds a file back, and what is true of it besides its phase.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(super) enum Mark {
    /// It begins when the journal has taken back what it promised of it.
    WaitsJournal,
    /// It begins when its map is whole.
    WaitsMap,
    /// Its data are taken up when it is known how it is cut at the source.
    WaitsLayout,
    /// Something of it is in the open epoch.
    InEpoch,
    /// A commit of it is under way.
    InCommit,
    /// A temporary exists: something was written or taken over.
    HasTemp,
    /// The source knows where it lies.
    Told,
    /// A write failed for want of space: it cannot be completed in this run.
    Broken,
    /// What stands at its name an earlier run began to write in place, and did not end.
    Begun,
    /// It is looked up, or gets its name, when its metadata are whole.
    WaitsMetadata,
    /// All of it was cloned, and nothing hashed.
    Cloned,
}

/// A set of them.
#[derive(Debug, PartialEq, Eq, Clone, Copy, Default)]
pub(super) struct Marks(u16);

impl Marks {
    pub(super) fn with(self, mark: Mark, holds: bool) -> Marks {
        let bit = 1 << mark as u16;
        Marks(if holds { self.0 | bit } else { self.0 & !bit })
    }
    fn has(self, mark: Mark) -> bool {
        self.0 & 1 << mark as u16 != 0
    }
}

pub(super) struct File {
    /// What the job knows of it.
    pub(super) kept: Kept,
    pub(super) name: Name,
    pub(super) meta: Meta,
    pub(super) phase: SinkPhase,
    pub(super) marks: Marks,
    /// Everything that arrived whole, or was read of what an earlier run left.
    pub(super) digest: SubtreeSet,
    /// Up to here it was read, or is being read.
    pub(super) check_next: u64,
    /// Reads of it that are under way.
    pub(super) checks: u32,
    /// Chaining values of objects that are being written, by the object's offset.
    pub(super) writing: BTreeMap<u64, Vec<Subtree>>,
    /// Written in the open epoch.
    pub(super) written: Vec<Subtree>,
    /// What the look found at its name.
    pub(super) found: Option<Seen>,
    /// What its publication changes at the destination.
    pub(super) change: Change,
    /// How it is cut at the source, as far as it was told.
    pub(super) striping: Option<Striping>,
    /// The parts of the map that came.
    pub(super) map_parts: Vec<DataExtent>,
    pub(super) writes: u32,
    pub(super) naming: Naming<()>,
    /// What the journal promises of it, until its temporary is found.
    pub(super) held: Option<Box<Taken>>,
    /// Tags under which the temporary of an earlier run may be found; the last is tried next.
    pub(super) adopt: Vec<u32>,
    pub(super) made: EarlyTemporary,
    /// Where it lies, if that is known.
    pub(super) places: Option<Layout<TargetId>>,
    /// The targets by which it is synced, once it was.
    pub(super) set: Option<Vec<SinkTarget>>,
    /// Objects that arrived damaged.
    pub(super) damaged: u64,
}

impl Known for Box<File> {
    fn takes_parts(&self) -> bool {
        self.phase != SinkPhase::Withdrawn
    }
    fn kept(&self) -> &Kept {
        &self.kept
    }
    fn kept_mut(&mut self) -> &mut Kept {
        &mut self.kept
    }
}

impl File {
    pub(super) fn is(&self, mark: Mark) -> bool {
        self.marks.has(mark)
    }
    pub(super) fn mark(&mut self, mark: Mark) {
        self.marks = self.marks.with(mark, true);
    }
    /// Whether it was marked so until now.
    pub(super) fn unmark(&mut self, mark: Mark) -> bool {
        let was = self.is(mark);
        self.marks = self.marks.with(mark, false);
        was
    }
    pub(super) fn size(&self) -> u64 {
        self.kept.size()
    }
    pub(super) fn sink_file(&self, id: FileId) -> SinkFile {
        let map = self.digest.map().cloned();
        let (parent, name, number) = (self.kept.parent, self.name.clone(), self.kept.temp.number);
        SinkFile { id, parent, name, number, size: self.size(), map }
    }
    /// Takes up what an earlier run's journal promises of its path. Its map is known.
    pub(super) fn take_up(&mut self, earlier: &mut Earlier) {
        let map = self.digest.map().map(ExtentMap::digest);
        let taken = earlier.take(&self.kept.path, &self.kept.fingerprint, map, self.digest.kind());
        let Some(mut taken) = taken else { return };
        self.kept.promise(None);
        if taken.fits {
            // The tag is this run's, which the engine gives it.
            self.kept.temp.number = taken.partial.number;
            self.adopt = std::mem::take(&mut taken.tags);
            self.held = Some(Box::new(taken));
        }
    }
    /// What is asked of its name; the next of its tags to adopt goes with it.
    pub(super) fn lookup(&mut self, id: FileId) -> LookupItem {
        let adopt = self.adopt.pop();
        let (fingerprint, meta) = (self.kept.fingerprint, self.meta);
        LookupItem { file: self.sink_file(id), fingerprint, meta, adopt }
    }
    /// All of it is one hole, so that nothing of it is ever written.
    pub(super) fn is_hole(&self) -> bool {
        self.digest.map().is_some_and(|map| map.data_len() == 0)
    }
    /// Every byte of the range is there, or expected.
    pub(super) fn holds(&self, offset: u64, len: u64) -> bool {
        let expected = self.kept.expected();
        let mut at = offset;
        while at < offset + len {
            match self.digest.covering(at).or_else(|| expected?.covering(at)) {
                Some(held) => at = held.offset + held.len,
                None => return false,
            }
        }
        true
    }
    /// Something has to come before it is looked up.
    pub(super) fn waits_to_be_looked_up(&self) -> bool {
        self.is(Mark::WaitsMap) || self.is(Mark::WaitsMetadata)
    }
    /// It is of this generation, and the source did not withdraw it.
    pub(super) fn is_of(&self, generation: Generation) -> bool {
        self.kept.generation == generation && self.phase != SinkPhase::Withdrawn
    }
    /// Every byte is there, and nobody writes or reads any.
    pub(super) fn is_whole(&self) -> bool {
        self.phase == SinkPhase::Open
            && !self.is(Mark::Broken)
            && (!self.is(Mark::WaitsMetadata) || haul_mutant::removed("metadata-before-the-name"))
            && self.digest.is_complete()
            && self.writes == 0
            && self.checks == 0
            && (self.is(Mark::HasTemp) || self.is_hole())
    }
}
