//! What an earlier run left in a temporary: expected, then read and held against the journal, while the rest
//! is on its way.
//!
//! In: a temporary that was taken over, what the journal says of it, values that the engine made of what it
//! read there.
//! Out: ranges to read; parts that count as written; parts that are asked for again.
//! Invariants: a value of the journal never goes into a file's digest, unless the user asked for trust: what
//! goes in was made in this run of bytes that were read. What is expected and not read yet is neither digest
//! nor durable; the journal goes on to promise it. What was found wrong is asked for again when the journal
//! promises it no more. At most [`CHECKS_MAX`] reads are under way, of at most [`CHECK_LEN_MAX`] bytes each.
//! Left out: the reading, which is the engine's.

use std::collections::VecDeque;
use std::time::Duration;

use super::file::{File, Mark, SinkPhase};
use super::{Sink, SinkAction};
use crate::digest::{Cv, Subtree, SubtreeSet};
use crate::ids::{FileId, Generation, Time};
use crate::journal::{Partial, SUBTREE_KEPT_MAX};
use crate::transfer::op::SinkOp;
use crate::wire::{Extent, Failure, HeldReport, ITEMS_MAX, Message, SUBTREES_MAX};

/// Reads for checks that are under way, at most. Each takes one thread of the engine, and hashes as fast as
/// one can.
const CHECKS_MAX: u32 = 6;
/// What one of them reads, at most: bytes, and ranges.
const CHECK_LEN_MAX: u64 = SUBTREE_KEPT_MAX;
const CHECK_RANGES_MAX: usize = 1024;

/// What is being checked in a session.
#[derive(Default)]
pub(super) struct Checks {
    /// Files with something to read.
    queue: VecDeque<FileId>,
    pub(super) in_flight: u32,
    /// Bytes that are expected and not read yet.
    left: u64,
    /// Since when there is something.
    since: Option<Time>,
    spent: Duration,
    pub(super) counts: HeldReport,
}

impl Checks {
    /// Nothing is read, or is to be.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.queue.is_empty()
    }

    fn expect(&mut self, len: u64, now: Time) {
        self.left = self.left.saturating_add(len);
        self.since.get_or_insert(now);
    }

    fn settle(&mut self, len: u64, now: Time) {
        self.left = self.left.saturating_sub(len);
        if self.left == 0 {
            self.spent += self.since.take().map_or(Duration::ZERO, |since| now.since(since));
        }
    }

    fn report(&self, now: Time) -> HeldReport {
        let time = self.spent + self.since.map_or(Duration::ZERO, |since| now.since(since));
        HeldReport { time: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), ..self.counts }
    }
}

impl Sink {
    /// What became so far of the parts that an earlier run left, and how many bytes of them are still to be
    /// read.
    pub fn held(&self) -> (HeldReport, u64) {
        (self.checks.report(self.now), self.checks.left)
    }

    /// Bytes of unfinished files that the journal promises: where a resume begins.
    pub fn kept(&self) -> u64 {
        let promised = self.files.values().filter(|file| file.kept.is_promised());
        promised.fold(self.kept_of_gone, |sum, file| {
            let expected = file.kept.expected().map_or(0, SubtreeSet::covered);
            sum.saturating_add(file.kept.durable.covered()).saturating_add(expected)
        })
    }

    /// The temporary of an earlier run is ours, `len` bytes long: what of it counts as held, as the source is
    /// told.
    pub(super) fn take_held(&mut self, id: FileId, partial: Option<Partial>, len: u64) -> Vec<Subtree> {
        let Some(file) = self.files.get_mut(&id) else { return Vec::new() };
        let (trust, now) = (self.config.policy.trust, self.now);
        let temp = file.kept.temp;
        let mut told = file.digest.fresh();
        for subtree in partial.iter().flat_map(|partial| partial.subtrees.iter()) {
            if subtree.offset.saturating_add(subtree.len) > len {
                // It does not reach so far, and need not be read for that.
                add(&mut self.checks.counts.checked, subtree.len);
                add(&mut self.checks.counts.wrong, subtree.len);
            } else if told.insert(subtree.offset, subtree.len, subtree.cv).is_ok() {
                file.kept.expect(temp, subtree);
            }
        }
        let told: Vec<Subtree> = told.iter().take(SUBTREES_MAX).collect();
        // The source sends what it was not told of.
        let end = told.last().map_or(0, |last| last.offset + last.len);
        let expected = file.kept.expected().into_iter().flat_map(SubtreeSet::iter);
        let untold: Vec<u64> = expected.map(|s| s.offset).filter(|offset| *offset >= end).collect();
        for offset in untold {
            file.kept.expect_no_more(temp, offset);
        }
        if trust || haul_mutant::removed("held-is-read") {
            // What the source has to compare first is believed when it has ([`Sink::confirm`]).
            let believed = !file.kept.is_claimed();
            for subtree in file.kept.take_expected() {
                add(&mut self.checks.counts.trusted, if believed { subtree.len } else { 0 });
                add(&mut self.counts.written, subtree.len);
                let _ = file.digest.insert(subtree.offset, subtree.len, subtree.cv);
                file.kept.handle_read(subtree);
                tell(file, subtree);
            }
        } else if let Some(expected) = file.kept.expected() {
            self.checks.expect(expected.covered(), now);
            self.checks.queue.push_back(id);
        }
        told
    }

    /// Has what is expected read, as much at a time as is good.
    pub(super) fn run_checks(&mut self) {
        while self.stop.is_none()
            && self.checks.in_flight < CHECKS_MAX
            && let Some(id) = self.checks.queue.front().copied()
        {
            let file = self.files.get_mut(&id).filter(|f| f.phase == SinkPhase::Open);
            let ranges = file.map(|file| (next_ranges(file), file)).filter(|(ranges, _)| !ranges.is_empty());
            let Some((ranges, file)) = ranges else {
                self.checks.queue.pop_front();
                continue;
            };
            file.checks += 1;
            self.checks.in_flight += 1;
            let (file, kind) = (file.sink_file(id), self.config.agreed.digest);
            self.actions.push_back(SinkAction::Submit(SinkOp::Check { file, kind, ranges }));
        }
    }

    /// Ranges were read, or could not be.
    pub(super) fn handle_checked(
        &mut self,
        id: FileId,
        ranges: Vec<(u64, u64)>,
        result: Result<Vec<Option<Cv>>, Failure>,
    ) {
        self.checks.in_flight -= 1;
        if let Some(drain) = self.drains.get_mut(&id).filter(|d| d.checks > 0) {
            drain.checks -= 1;
            return self.check_drain(id);
        }
        let Some(file) = self.files.get_mut(&id).filter(|f| f.checks > 0) else { return };
        file.checks -= 1;
        let values = match result {
            Ok(values) => values,
            // The engine can do nothing with the file.
            Err(failure) => return self.fail_file(id, failure),
        };
        let now = self.now;
        for ((offset, len), value) in ranges.into_iter().zip(values) {
            // An object may be written over it meanwhile: then this says nothing of the file, and the journal
            // hears the same.
            let Some(expected) = take_expected(file, offset, len) else { continue };
            self.checks.settle(len, now);
            add(&mut self.checks.counts.checked, len);
            match value {
                Some(cv) if cv == expected.cv => {
                    if file.digest.insert(offset, len, cv) == Ok(true) {
                        add(&mut self.counts.written, len);
                    }
                    // The journal goes on to promise it.
                    file.kept.handle_read(Subtree { offset, len, cv });
                    tell(file, Subtree { offset, len, cv });
                }
                _ => {
                    add(&mut self.checks.counts.wrong, len);
                    // The journal hears of what is left under a new slot.
                    file.kept.found_wrong(offset, len);
                }
            }
        }
        file.mark(Mark::InEpoch);
        self.epochs.add_dirty(id, 0, now);
        self.try_complete(id);
    }

    /// Nothing is expected of a file any more.
    pub(super) fn expect_nothing(&mut self, id: FileId) {
        let now = self.now;
        let Some(file) = self.files.get_mut(&id) else { return };
        for expected in file.kept.take_expected() {
            self.checks.settle(expected.len, now);
        }
    }

    /// What was read of a file and is as it was left counts for nothing, where the source says that it is not
    /// of its version, or cannot tell.
    pub(super) fn count_no_held(&mut self, id: FileId) {
        let is_in_vain = |file: &File| file.kept.is_claimed() && !self.config.policy.trust;
        let Some(file) = self.files.get(&id).filter(|file| is_in_vain(file)) else { return };
        if !haul_mutant::removed("held-in-vain-is-not-told") {
            let checked = &mut self.checks.counts.checked;
            *checked = checked.saturating_sub(file.kept.durable.covered());
        }
    }

    /// The journal promises these ranges no more: the source hears that they are not held.
    pub(super) fn ask_again(&mut self, wrong: Vec<(FileId, Generation, u64, u64)>) {
        let missing = |(id, generation, offset, len): &(FileId, Generation, u64, u64)| {
            let file = self.files.get(id).filter(|f| f.is_of(*generation) && f.phase == SinkPhase::Open);
            file.is_some_and(|file| !file.digest.covers(*offset, *len))
        };
        let wrong = wrong.into_iter().filter(missing);
        let extents = wrong.map(|(id, generation, offset, len)| Extent { id, generation, offset, len });
        let extents: Vec<Extent> = extents.collect();
        for chunk in extents.chunks(ITEMS_MAX) {
            self.actions.push_back(SinkAction::Send(Message::NotHeld(chunk.to_vec())));
        }
    }
}

/// Sizes are a peer's and a disk's words: their sum may be anything.
pub(super) fn add(total: &mut u64, more: u64) {
    *total = total.saturating_add(more);
}

/// What of a file is read next.
fn next_ranges(file: &mut File) -> Vec<(u64, u64)> {
    let mut ranges = Vec::new();
    let mut bytes = 0;
    let expected = file.kept.expected();
    for s in expected.into_iter().flat_map(|expected| expected.touching(file.check_next, u64::MAX)) {
        if s.offset < file.check_next {
            continue;
        }
        if ranges.len() == CHECK_RANGES_MAX || (bytes > 0 && bytes + s.len > CHECK_LEN_MAX) {
            break;
        }
        bytes += s.len;
        ranges.push((s.offset, s.len));
    }
    if let Some((offset, len)) = ranges.last() {
        file.check_next = offset + len;
    }
    ranges
}

/// The source hears of it with the next epoch, or when it confirmed that this is still its file.
fn tell(file: &mut File, subtree: Subtree) {
    if !file.kept.is_claimed() {
        file.written.push(subtree);
    }
}

fn take_expected(file: &mut File, offset: u64, len: u64) -> Option<Subtree> {
    let expected = file.kept.expected()?.covering(offset);
    let expected = expected.filter(|s| s.offset == offset && s.len == len)?;
    file.kept.expect_no_more(file.kept.temp, offset);
    Some(expected)
}
