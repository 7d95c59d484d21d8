//! Files of which the store lost what it had taken and not synced: they are sent once more, in this session.
//!
//! In: commits that failed for that; objects that come meanwhile. Out: temporaries to remove, objects asked
//! for again.
//! Such a store is one of several servers, of which one was killed and started again: it takes the same bytes
//! as soon as it is there.
//! Invariants: nothing that was written before counts; a file begins again when its temporary is gone and the
//! journal has taken back what it promised of it; what had come until then is asked for once, everything else
//! is still to come; a file is begun again at most [`LOST_MAX`] times.
//! Left out: stores that take bytes in ascending order alone (`turns`); the seal, which the source makes anew
//! behind what it reads again.

use std::collections::BTreeSet;

use super::file::{Mark, SinkPhase};
use super::{File, Sink, SinkAction};
use crate::ids::FileId;
use crate::transfer::{LOST_MAX, piece_at};
use crate::wire::{Extent, Failure, ITEMS_MAX, Message};

/// A file that was lost at some time.
#[derive(Default)]
pub(super) struct Lost {
    times: u8,
    /// Where the objects begin that came and count no more.
    missing: BTreeSet<u64>,
}

impl Sink {
    /// The store lost what was written of a file, and takes it once more. False: it is not begun again, for
    /// that was tried often enough, or the session ends.
    pub(super) fn lose(&mut self, id: FileId, failure: &Failure) -> bool {
        if self.turns.is_some() {
            return self.begin_again(id, failure);
        }
        if self.stop.is_some() || haul_mutant::removed("what-stores-lose-is-sent-again") {
            return false;
        }
        let lives = |file: &&mut Box<File>| matches!(file.phase, SinkPhase::Open | SinkPhase::Committing);
        let Some(file) = self.files.get_mut(&id).filter(lives) else { return false };
        let lost = self.lost.entry(id).or_default();
        if lost.times >= LOST_MAX {
            return false;
        }
        lost.times += 1;
        lost.missing.extend(came(file));
        file.phase = SinkPhase::Again;
        file.naming.take_back(());
        file.unmark(Mark::Broken);
        file.unmark(Mark::InEpoch);
        let generation = file.kept.generation;
        if file.kept.is_promised() {
            file.mark(Mark::WaitsJournal);
            self.epochs.begin_after(id, generation);
        }
        self.discard(id);
        self.begin_anew(id);
        true
    }

    /// Begins a file again that was lost, if nothing of it is in the way any more.
    pub(super) fn begin_anew(&mut self, id: FileId) {
        let waits = |file: &File| file.phase != SinkPhase::Again || file.is(Mark::WaitsJournal);
        let Some(file) = self.files.get(&id).filter(|file| !waits(file)) else { return };
        if self.stop.is_some() || self.drains.contains_key(&id) {
            return;
        }
        let (generation, size, object_size) = (file.kept.generation, file.size(), file.kept.object_size);
        let missing = self.lost.get_mut(&id).map(|lost| std::mem::take(&mut lost.missing));
        let extent = |at| {
            let (offset, len) = piece_at(size, file.digest.map(), object_size, at)?;
            Some(Extent { id, generation, offset, len })
        };
        let extents: Vec<Extent> = missing.into_iter().flatten().filter_map(extent).collect();
        self.open(id);
        for chunk in extents.chunks(ITEMS_MAX) {
            self.actions.push_back(SinkAction::Send(Message::Resend(chunk.to_vec())));
        }
    }

    /// What came of it before counts no more, whatever becomes of it: its next generation comes whole.
    pub(super) fn ask_nothing_again(&mut self, id: FileId) {
        if let Some(lost) = self.lost.get_mut(&id) {
            lost.missing.clear();
        }
    }

    /// An object came of a file that is not begun again yet.
    pub(super) fn came_too_early(&mut self, id: FileId, offset: u64) {
        match self.turns {
            Some(_) => self.missed(id, offset),
            None => _ = self.lost.entry(id).or_default().missing.insert(offset),
        }
    }
}

/// Where the objects begin that came, or need not come for what an earlier run left.
fn came(file: &File) -> Vec<u64> {
    let (size, object_size) = (file.size(), file.kept.object_size);
    if size == 0 {
        return file.is(Mark::HasTemp).then_some(0).into_iter().collect();
    }
    let map = file.digest.map();
    let whole = [(0, size)];
    let extents = map.map_or_else(
        || whole.to_vec(),
        |map| map.extents().iter().map(|extent| (extent.offset, extent.end())).collect(),
    );
    let mut came = Vec::new();
    for (mut at, end) in extents {
        while at < end
            && let Some((offset, len)) = piece_at(size, map, object_size, at)
        {
            if file.holds(offset, len) {
                came.push(offset);
            }
            at = offset + len;
        }
    }
    came
}
