//! Who gets what: files and ranges to pairs, and back from those that are slow.
//!
//! In: files with something to do, how fast each pair is and what it owes. Out: work, and what is wanted
//! back. Work is taken, not dealt: a pair gets about [`AHEAD_TIME`] of it at a time, so a fast one does more.
//! A large file is cut where pairs take from it, into ranges that get shorter towards its end. When nothing
//! is left and a pair is idle, what the slowest has not begun is asked back and given to it; one that neither
//! moves nor gives back loses its lease.
//! Invariants: ranges that are out are disjoint; none begins within a page or an object, nor in a page of
//! which an earlier run's part is still to be read.

use super::entry::{At, EntryPhase, File, Out};
use super::pairs::{ENTRY_COST, Pair, cost};
use super::*;
use crate::transfer::protocol;

/// What a pair is given ahead of what it does; and a range is not more than half of it.
const AHEAD_TIME: Duration = Duration::from_secs(2);
/// The same where nobody knows how fast the pair is; and the rate that it is taken to have, bytes a second.
const AHEAD_LEN: u64 = 64 << 20;
const RATE_UNKNOWN: u64 = 100 << 20;
/// Of small entries a pair gets so much before it is asked again who should have the next.
const BATCH_COST: u64 = 16 << 20;
/// What is asked back is answered within this, or the pair is lost if others are idle; and one that ended
/// nothing for so long is asked for everything.
const RETURN_TIME: Duration = Duration::from_secs(10);

impl Coordinator {
    pub(super) fn assign(&mut self) {
        while !self.queue.is_empty() {
            let Some(pair) = self.best(true) else { return };
            let lease = self.pairs[&pair].lease;
            let mut works = Vec::new();
            let mut given = 0;
            while works.len() < ITEMS_MAX
                && given < BATCH_COST
                && self.has_room(pair)
                && let Some(id) = self.queue.front().copied()
            {
                match self.next_work(id, (pair, lease)) {
                    Some(work) => {
                        given += work.len.saturating_add(ENTRY_COST);
                        works.push(work);
                    }
                    None => {
                        self.queue.pop_front();
                        if let Some(file) = self.files.get_mut(&id) {
                            file.queued = false;
                        }
                    }
                }
            }
            if !works.is_empty() {
                self.actions.push_back(Action::Assign { pair, lease, works });
            }
        }
    }

    /// The pair that would be done with more work first. `room`: among those that may have more of it.
    pub(super) fn best(&self, room: bool) -> Option<PairId> {
        let able = self.pairs.iter().filter(|(pair, _)| !room || self.has_room(**pair));
        able.min_by_key(|(_, held)| wait(held)).map(|(pair, _)| *pair)
    }

    fn has_room(&self, pair: PairId) -> bool {
        self.pairs.get(&pair).is_some_and(|held| {
            let ahead = held.rate().map_or(AHEAD_LEN, |rate| rate.saturating_mul(AHEAD_TIME.as_secs()));
            held.works.len() < WORKS_MAX && held.owed < ahead.max(1)
        })
    }

    /// The next of a file that somebody can do.
    fn next_work(&mut self, id: FileId, at: At) -> Option<Work> {
        let pairs = self.pairs.len() as u64;
        let rate = self.pairs.get(&at.0).and_then(Pair::rate);
        let shared_min = self.config.shared_min;
        let file = self.files.get_mut(&id).filter(|file| file.fences == 0)?;
        if file.former.len() >= FORMER_MAX {
            let failure = protocol("too many ends were lost while they had it");
            self.begin_end(id, Ended::Failed(failure));
            return None;
        }
        let (kind, offset, end, from) = match file.phase {
            EntryPhase::New => {
                let parts = !file.kept.durable.is_empty() || !file.kept.olds.is_empty();
                let shared = parts || (file.size() >= shared_min && pairs > 1);
                match shared && !file.is_link {
                    true => (WorkKind::Begin, 0, 0, file.kept.temp),
                    false => (WorkKind::Whole, 0, file.size(), file.kept.temp),
                }
            }
            EntryPhase::Shared => {
                let want = rate.unwrap_or(AHEAD_LEN).min(self.config.range_max);
                next_range(file, want, pairs)?
            }
            _ => return None,
        };
        match kind {
            WorkKind::Whole => {
                file.phase = EntryPhase::Whole;
                // It looks at the source itself.
                file.naming.entrust(at);
            }
            WorkKind::Begin => file.phase = EntryPhase::Beginning,
            WorkKind::Range | WorkKind::Read => {}
        }
        file.touched = true;
        let out = Out { from, to: file.kept.temp, end, kind, at, left: end - offset, asked: None };
        let held = self.pairs.get_mut(&at.0).expect("it was chosen");
        held.works.insert((id, offset));
        held.load(cost(&out), self.now);
        file.out.insert(offset, out);
        let former = if kind == WorkKind::Whole { file.former.clone() } else { Vec::new() };
        let (generation, temp) = (file.kept.generation, file.kept.temp);
        Some(Work { id, generation, kind, offset, len: end - offset, temp, from, former })
    }

    /// A pair has nothing more to do with a range.
    pub(super) fn unload(&mut self, id: FileId, offset: u64, out: &Out) {
        if let Some(held) = self.pairs.get_mut(&out.at.0).filter(|held| held.lease == out.at.1) {
            held.works.remove(&(id, offset));
            held.unload(cost(out));
        }
    }

    /// It looked what stands there, and its temporary is made; `found`: it was there, with what was written
    /// of it.
    pub fn handle_begun(&mut self, at: At, id: FileId, generation: Generation, found: bool) {
        if !self.hears(at.0, at.1) {
            return;
        }
        let Some(file) = self.files.get_mut(&id).filter(|file| file.kept.generation == generation) else {
            return;
        };
        let begins = |out: &Out| out.at == at && out.kind == WorkKind::Begin;
        let Some(out) = file.out.get(&0).filter(|out| begins(out)).cloned() else { return };
        file.out.remove(&0);
        file.phase = EntryPhase::Shared;
        if !found {
            // What the journal promises was in another inode.
            if let Some((slot, named)) = file.kept.forget_here() {
                self.facts.say(Fact::Forgotten { slot, named });
            }
        }
        self.unload(id, 0, &out);
        self.advance(id);
    }

    /// Asks for work back, if somebody has nothing to do.
    pub(super) fn steal(&mut self) {
        if self.now.since(self.stolen) < pairs::TICK || !self.queue.is_empty() || self.stopped {
            return;
        }
        self.stolen = self.now;
        let now = self.now;
        let Some(idle) = self.pairs.iter().find(|(_, held)| held.owed == 0).map(|(pair, _)| *pair) else {
            return;
        };
        let others: Vec<PairId> = self.pairs.keys().copied().filter(|pair| *pair != idle).collect();
        let late = |held: &Pair| !held.works.is_empty() && now.since(held.moved) > RETURN_TIME;
        let mut lost = Vec::new();
        for pair in &others {
            let held = &self.pairs[pair];
            let stuck = late(held);
            let unanswered = held.works.iter().any(|(id, offset)| {
                let out = self.files.get(id).and_then(|file| file.out.get(offset));
                out.and_then(|out| out.asked).is_some_and(|(_, at)| now.since(at) > RETURN_TIME)
            });
            if unanswered || (stuck && now.since(held.moved) > 3 * RETURN_TIME) {
                lost.push((*pair, held.lease));
            }
        }
        for at in lost {
            self.end_lease(at, Proof::Unknown, "it neither moved what it had nor gave it back");
        }
        let slowest = others.into_iter().filter(|pair| self.pairs.contains_key(pair));
        let Some(slowest) = slowest.max_by_key(|pair| wait(&self.pairs[pair])) else { return };
        self.ask_back(slowest, idle);
    }

    /// Asks a slow pair for about as much as an idle one would do in the same time.
    fn ask_back(&mut self, from: PairId, to: PairId) {
        let (slow, quick) = (&self.pairs[&from], &self.pairs[&to]);
        let (lease, stuck) = (slow.lease, self.now.since(slow.moved) > RETURN_TIME);
        let known = |pair: &Pair| pair.rate().unwrap_or(RATE_UNKNOWN);
        let (theirs, ours) = (known(slow), known(quick));
        let share = u128::from(slow.owed) * u128::from(ours) / (u128::from(ours) + u128::from(theirs)).max(1);
        let share = if stuck { u64::MAX } else { u64::try_from(share).unwrap_or(u64::MAX) };
        let (now, mut taken, mut items) = (self.now, 0, Vec::new());
        // What it was given last it begins last, as far as anybody can say from here.
        for (id, offset) in slow.works.iter().rev() {
            if taken >= share || items.len() == ITEMS_MAX {
                break;
            }
            let Some(file) = self.files.get_mut(id) else { continue };
            let unit = file.kept.unit();
            let (generation, size) = (file.kept.generation, file.size());
            let Some(out) = file.out.get_mut(offset).filter(|out| out.asked.is_none()) else { continue };
            if matches!(out.kind, WorkKind::Begin | WorkKind::Read) && !stuck {
                continue;
            }
            let want = share - taken;
            let all = cost(out) <= want || size <= unit || out.kind == WorkKind::Begin;
            let cut = (out.end.saturating_sub(want.min(out.left))).next_multiple_of(unit);
            let cut = if all { *offset } else { cut.max(*offset) };
            if cut >= out.end && !all {
                continue;
            }
            taken = taken.saturating_add(out.end - cut).saturating_add(ENTRY_COST);
            out.asked = Some((cut, now));
            items.push(Return { id: *id, generation, offset: *offset, from: cut });
        }
        if !items.is_empty() {
            self.actions.push_back(Action::GiveBack { pair: from, lease, items });
        }
    }

    /// An answer to [`Action::GiveBack`]: what lies behind `from` was not begun, and nothing of it will be
    /// written by this pair; `None`: it keeps all. Of what it gave a part of back it does not give the name,
    /// even if it had all.
    pub fn handle_returned(
        &mut self,
        at: At,
        id: FileId,
        generation: Generation,
        offset: u64,
        from: Option<u64>,
    ) {
        if !self.hears(at.0, at.1) {
            return;
        }
        let Some(file) = self.files.get_mut(&id).filter(|file| file.kept.generation == generation) else {
            return;
        };
        let unit = file.kept.unit();
        let asked = |out: &&mut Out| out.at == at && out.asked.is_some();
        let Some(out) = file.out.get_mut(&offset).filter(asked) else { return };
        out.asked = None;
        let Some(from) = from else { return };
        let fits = from >= offset && from <= out.end && (from.is_multiple_of(unit) || from == offset);
        if !fits || (file.is_link && from > 0) {
            return self.violates(at, "a range given back that was not asked for");
        }
        if from == offset && out.left < out.end - offset {
            // Of what it said to be persisted the next one would find nothing.
            return self.violates(at, "a range given back as not begun that is persisted in part");
        }
        let before = cost(out);
        if from == offset {
            let out = file.out.remove(&offset).expect("it was just there");
            file.naming.take_back(at);
            if matches!(file.phase, EntryPhase::Whole | EntryPhase::Beginning) {
                file.phase = EntryPhase::New;
            }
            self.unload(id, offset, &out);
        } else {
            out.left = out.left.saturating_sub(out.end - from);
            out.end = from;
            out.kind = WorkKind::Range;
            let less = before.saturating_sub(cost(out));
            if file.phase == EntryPhase::Whole {
                file.phase = EntryPhase::Shared;
                file.naming.take_back(at);
            }
            if let Some(held) = self.pairs.get_mut(&at.0) {
                held.unload(less);
            }
        }
        self.enqueue(id);
    }
}

/// How long a pair has to do, as far as is known, nanoseconds; by that pairs are compared.
fn wait(pair: &Pair) -> u128 {
    u128::from(pair.owed) * 1_000_000_000 / u128::from(pair.rate().unwrap_or(RATE_UNKNOWN))
}

/// The next range of a file that nobody has and of which something is missing: to be read, if an earlier run
/// wrote it, else to be moved, about `want` bytes of it.
fn next_range(file: &File, want: u64, pairs: u64) -> Option<(WorkKind, u64, u64, Temp)> {
    let (unit, size) = (file.kept.unit(), file.size());
    let mut from = 0;
    loop {
        let (start, missing_end) = file.kept.durable.next_missing(from)?;
        let begin = start - start % unit;
        let unit_end = begin.saturating_add(unit).min(size);
        if file.has_old_in(begin, unit_end - begin) {
            match file.old_in(begin, unit_end - begin) {
                Some((from, part)) => {
                    return Some((WorkKind::Read, part.offset, part.offset + part.len, from));
                }
                None => from = unit_end,
            }
            continue;
        }
        if let Some(end) = file.out_over(begin, unit_end) {
            from = end.max(unit_end);
            continue;
        }
        let next_out = file.out.range(begin..).next().map_or(size, |(offset, _)| *offset);
        let next_old = file.next_old(begin).unwrap_or(size);
        let bound = next_out.min(next_old);
        let bound = if bound < size { bound - bound % unit } else { size };
        let run = missing_end.next_multiple_of(unit).min(bound);
        let most = want.min((run - begin) / (2 * pairs.max(1))).max(unit);
        let end = begin.saturating_add(most.next_multiple_of(unit)).min(run);
        return Some((WorkKind::Range, begin, end, file.kept.temp));
    }
}
