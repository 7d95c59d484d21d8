//! A session reads a large file in blocks: over several connections, its objects in any order.
//!
//! In: objects of one file from the session's queue, as many as there are. Out: their completions, each when
//! its bytes are there; the last one when the server said that all was sent, and all fits.
//! Invariants: what has no buffer stays in its socket; where a transfer goes on after one that was lost,
//! what ended before is read once more and compared; after a block that did not fit nothing of that version
//! of the file counts.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use haul_core::ids::{FileId, Generation};
use haul_core::reliability::pause;
use haul_core::stage::Stage;
use haul_core::transfer::op::{ReadOk, SourceDone, SourceOp};
use haul_core::wire::{Failure, FailureKind};
use haul_ftp::{Error, Ranges, Room, Turn};

use super::came::Done;
use super::ends::Before;
use super::queues::{Queues, SITE, Work, refuse};
use super::reader::{HOLD, Reader};
use crate::SourceCompletion;
use crate::ftp::names::Told;
use crate::owed::panic_point;
use haul_base::digest;

/// How long the sockets are waited for before the queue is looked at again.
const LOOK: Duration = Duration::from_millis(5);
/// How long a server may send what there is no room for while what is asked for does not come.
const OUT_OF_ORDER: Duration = Duration::from_secs(2);
/// Files of which a session knows what it has; of one that was left, and is not known any more, all that
/// follows comes again.
const DONE_MAX: usize = 64;
/// Transfers of one file that are lost one after the other, before it comes as it is.
const LOST_MAX: u32 = 2;

/// An object that is asked for.
struct Pending {
    work: Work,
    len: u64,
    tail: bool,
    whole: bool,
    /// Each byte comes once: all are there when so many are.
    have: u64,
    begun: Instant,
}

/// The file as it comes.
struct File {
    id: FileId,
    generation: Generation,
    path: Vec<u8>,
    /// Where what comes of it begins at the server.
    base: u64,
    pending: BTreeMap<u64, Pending>,
    /// What is read once more, and what it must be.
    lead: Option<Lead>,
}

struct Lead {
    start: u64,
    bytes: Vec<u8>,
    have: usize,
    known: Before,
}

/// Why a session does not go on with a file.
enum End {
    /// It is over.
    Whole,
    /// Others, or the walk, wait for the session, and nobody for the file.
    Left,
    /// What is asked for does not come, and what comes has no room.
    OutOfOrder,
    Failed(Error),
    /// What comes is of another version than what came.
    Differs(String),
}

impl Room for File {
    fn room(&mut self, offset: u64, len: u64) -> Option<&mut [u8]> {
        let offset = offset.checked_sub(self.base)?;
        if let Some(lead) = &mut self.lead {
            let end = lead.start + lead.bytes.len() as u64;
            if (lead.start..end).contains(&offset) {
                let at = (offset - lead.start) as usize;
                let len = (len.min(end - offset)) as usize;
                return lead.bytes.get_mut(at..at + len);
            }
        }
        let (start, pending) = self.pending.range_mut(..=offset).next_back()?;
        let at = offset - start;
        let len = len.min(pending.len.checked_sub(at).filter(|left| *left > 0)?);
        let buffer = pending.work.buffer.as_mut()?.as_mut_slice();
        buffer.get_mut(at as usize..(at + len) as usize)
    }

    fn came(&mut self, offset: u64, len: usize) {
        let offset = offset.saturating_sub(self.base);
        if let Some(lead) = &mut self.lead
            && (lead.start..lead.start + lead.bytes.len() as u64).contains(&offset)
        {
            lead.have += len;
        } else if let Some((_, pending)) = self.pending.range_mut(..=offset).next_back() {
            pending.have += len as u64;
        }
    }
}

impl File {
    fn take(&mut self, work: Work) {
        let SourceOp::Read { offset, len, tail, whole, .. } = work.op else { return };
        panic_point("read", &String::from_utf8_lossy(&self.path));
        let len = u64::from(len);
        let pending = Pending { work, len, tail, whole, have: 0, begun: Instant::now() };
        self.pending.insert(offset, pending);
    }

    /// Takes what the queue has of it that still comes.
    fn take_all(&mut self, queue: &mut std::collections::VecDeque<Work>, comes: &Ranges) {
        let mut at = 0;
        while let Some(work) = queue.get(at) {
            match work.op {
                SourceOp::Read { id, generation, offset, len, .. }
                    if (id, generation) == (self.id, self.generation)
                        && work.buffer.is_some()
                        && !comes.overlaps(offset, offset + u64::from(len))
                        && !self.pending.contains_key(&offset) =>
                {
                    let Some(work) = queue.remove(at) else { break };
                    self.take(work);
                }
                _ => at += 1,
            }
        }
    }
}

impl Reader {
    /// Whether an object comes in blocks.
    pub(super) fn comes_in_blocks(&self, work: &Work) -> bool {
        let SourceOp::Read { id, generation, offset, .. } = work.op else { return false };
        if work.buffer.is_none() || !self.common.ways.is_on() || self.is_open_at(id, offset) {
            return false;
        }
        // What follows what is not known is read from a known place on.
        let follows = offset == 0
            || self.common.ends.before(id, generation, offset).is_some_and(|before| before.at == offset);
        follows && !self.done.iter().any(|done| done.is_plain(id, generation))
    }

    /// What the session has of a file; it stands last.
    fn done_of(&mut self, id: FileId, generation: Generation, from: u64) -> &mut Done {
        let known = self.done.iter().position(|done| done.is(id, generation));
        let done = known.map(|at| self.done.remove(at)).unwrap_or_else(|| {
            let mut ranges = Ranges::new();
            let _ = ranges.insert(0, from);
            Done { id, generation, ranges, lost: 0, plainly: false }
        });
        if self.done.len() == DONE_MAX {
            self.done.remove(0);
        }
        self.done.push(done);
        self.done.last_mut().expect("just pushed")
    }

    /// Reads a file in blocks, from an object on; what does not come so goes back to the queue.
    pub(super) fn read_in_blocks(&mut self, first: Work) {
        let SourceOp::Read { id, generation, offset, len, .. } = first.op else { return };
        let (path, size) = match self.known(id) {
            Ok(Told { path, facts, .. }) => (path, facts.size.unwrap_or(0)),
            Err(failure) => {
                let done = refuse(first.op, &failure);
                return first.owed.settle(Ok(SourceCompletion { done, buffer: first.buffer }));
            }
        };
        self.leave();
        let done = self.done_of(id, generation, offset);
        // What is asked for once more comes once more.
        done.ranges = without(&done.ranges, offset, offset + u64::from(len));
        let base = self.common.names.base();
        let mut file = File { id, generation, path, base, pending: BTreeMap::new(), lead: None };
        file.take(first);
        let connections = self.common.names.part().map_or(size, |part| part.len);
        let connections = self.common.ways.connections(connections);
        let active = self.common.ways.begin(connections);
        let end = self.come(&mut file, size, connections);
        drop(active);
        let mut silent_before = 0;
        let done = self.done_of(id, generation, 0);
        let why = match end {
            End::Left => None,
            // What is asked for now is asked for once more: alone.
            End::Whole => {
                done.plainly = true;
                None
            }
            End::OutOfOrder => {
                done.plainly = true;
                self.common
                    .ways
                    .note_lost("the server sends in an order that needs more memory than there is");
                None
            }
            End::Differs(why) => Some(why),
            End::Failed(error) => {
                let spoils = matches!(error, Error::Misfit(_) | Error::Resized(_) | Error::Grammar(_));
                done.lost += 1;
                // A server that is silent is asked once more, as it is.
                silent_before = u32::from(error.is_silence());
                done.plainly = !error.is_passing() || error.is_silence() || done.lost > LOST_MAX;
                let (waits, has_some) = ((!done.plainly).then(|| pause(done.lost)), !done.ranges.is_empty());
                self.common.ways.note(&error);
                if error.ends_session() {
                    self.lines.close(SITE);
                }
                thread::sleep(waits.unwrap_or_default());
                (spoils && has_some).then(|| error.to_string())
            }
        };
        self.silent_before = silent_before;
        if let Some(why) = why
            && !haul_mutant::removed("ftp-misfit-spoils")
        {
            self.common.ways.spoil(id, generation, why);
        }
        // From the front on, in their order.
        let left = std::mem::take(&mut file.pending);
        let mut queues = self.common.lock();
        queues.busy[self.index] = None;
        for pending in left.into_values().rev() {
            queues.objects[self.index].push_front(pending.work);
        }
    }

    /// Has the file come until that ends, one way or another.
    fn come(&mut self, file: &mut File, size: u64, connections: u32) -> End {
        let mut have = self.done_of(file.id, file.generation, 0).ranges.clone();
        let first = file.pending.keys().next().copied().unwrap_or(0);
        if first > 0 {
            let Some(known) = self.common.ends.before(file.id, file.generation, first) else {
                return End::Left;
            };
            let start = first - known.len as u64;
            have = without(&have, start, first);
            file.lead = Some(Lead { start, bytes: vec![0; known.len], have: 0, known });
        }
        if let Some(part) = self.common.names.part() {
            have = within(&have, (part.source, part.len), size);
        }
        let begun = self
            .lines
            .open(SITE)
            .and_then(|session| session.begin_blocks(&file.path, (size, &have), connections));
        let mut coming = match begun {
            Ok(coming) => coming,
            Err(error) => return End::Failed(error),
        };
        let index = self.index;
        let (mut waits_since, mut stuck_since): (Option<Instant>, Option<Instant>) = (None, None);
        let mut last = Instant::now();
        loop {
            {
                let common = self.common.clone();
                let mut queues = common.lock();
                if queues.ends {
                    self.lines.close(SITE);
                    return End::Left;
                }
                let done = self.done_of(file.id, file.generation, 0);
                file.take_all(&mut queues.objects[index], &done.ranges);
                queues.busy[self.index] = Some((last, "read", file.id));
                if file.pending.is_empty() {
                    // Nobody asks for more of it, yet.
                    let since = *waits_since.get_or_insert_with(Instant::now);
                    let others =
                        |queues: &Queues| !queues.objects[self.index].is_empty() || !queues.other.is_empty();
                    if since.elapsed() >= HOLD && (others(&queues) || self.lines.are_wanted()) {
                        drop(queues);
                        self.lines.close(SITE);
                        return End::Left;
                    }
                    queues.busy[self.index] = None;
                    let woken = self.common.ready.wait_timeout(queues, HOLD);
                    drop(woken.unwrap_or_else(PoisonError::into_inner));
                    continue;
                }
                waits_since = None;
            }
            let Ok(session) = self.lines.open(SITE) else { return End::Left };
            let turn = match session.receive(&mut coming, file, LOOK) {
                Ok(turn) => turn,
                Err(error) => return End::Failed(error),
            };
            if turn != Turn::NoRoom {
                stuck_since = None;
            }
            if turn == Turn::Nothing {
                continue;
            }
            if let Some(lead) = file.lead.take_if(|lead| lead.have == lead.bytes.len())
                && !lead.known.is(&lead.bytes)
                && !haul_mutant::removed("ftp-lost-transfer-agrees")
            {
                self.lines.close(SITE);
                let at = lead.start;
                return End::Differs(format!(
                    "what the server gives from byte {at} on is not what it gave there before"
                ));
            }
            if turn == Turn::NoRoom {
                let since = *stuck_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= OUT_OF_ORDER.min(self.common.sites.all[SITE].settings.patience) {
                    self.lines.close(SITE);
                    return End::OutOfOrder;
                }
                let queues = self.common.lock();
                drop(self.common.ready.wait_timeout(queues, LOOK));
            }
            let whole = turn == Turn::Whole;
            let ready: Vec<u64> = match &file.lead {
                // Nothing counts before it is known that it is of the same version.
                Some(_) => Vec::new(),
                None => {
                    let is_ready =
                        |pending: &Pending| pending.have == pending.len && (whole || !pending.tail);
                    file.pending.iter().filter(|(_, pending)| is_ready(pending)).map(|(at, _)| *at).collect()
                }
            };
            for offset in ready {
                let Some(pending) = file.pending.remove(&offset) else { continue };
                self.settle(file, offset, pending, last.elapsed());
                last = Instant::now();
            }
            if whole {
                return End::Whole;
            }
        }
    }

    /// An object is there.
    fn settle(&mut self, file: &File, offset: u64, pending: Pending, busy: Duration) {
        let Pending { work: Work { op, buffer, owed }, len, tail, whole, begun, .. } = pending;
        let SourceOp::Read { id, generation, target, .. } = op else { return };
        let Some(buffer) = buffer else { return };
        let common = &self.common;
        common.meter.add_busy(Stage::SourceStorage, busy);
        common.network.bytes.fetch_add(len, Ordering::Relaxed);
        self.lines.heard(SITE);
        let payload = &buffer.as_slice()[..len as usize];
        let agrees = tail || common.ends.agree(id, generation, offset + len, payload);
        let result = match agrees {
            true => {
                let kind = common.kind;
                let cvs = common.meter.busy(Stage::SourceHost, || match whole {
                    true => vec![digest::root(kind, payload)],
                    false => digest::chaining_values(kind, offset, payload, tail),
                });
                Ok(ReadOk { buffer: buffer.id(), cvs })
            }
            false => {
                let why = format!(
                    "what the server gives before byte {} is not what it gave there before",
                    offset + len
                );
                Err(common.say(SITE, FailureKind::Changed, &file.path, &why))
            }
        };
        let done = self.done_of(id, generation, 0);
        // What has too many parts to be noted comes once more, if need be.
        let _ = done.ranges.insert(offset, offset + len);
        done.lost = 0;
        let (len, service) = (len as u32, Some(begun.elapsed()));
        let done = SourceDone::Read { id, generation, offset, len, target, service, result };
        owed.settle(Ok(SourceCompletion { done, buffer: Some(buffer) }));
    }

    /// Answers an object of a version of a file that does not count any more; else it comes back.
    pub(super) fn unless_spoiled(&self, work: Work) -> Option<Work> {
        let SourceOp::Read { id, generation, .. } = work.op else { return Some(work) };
        let Some(why) = self.common.ways.spoiled(id, generation) else { return Some(work) };
        let path = self.known(id).map(|told| told.path).unwrap_or_default();
        let failure: Failure = self.common.say(SITE, FailureKind::Changed, &path, &why);
        let done = refuse(work.op, &failure);
        work.owed.settle(Ok(SourceCompletion { done, buffer: work.buffer }));
        None
    }
}

/// What a server is told that is here of a file, of which this part alone is to come: all around it, and what
/// came of it.
fn within(came: &Ranges, (source, len): (u64, u64), size: u64) -> Ranges {
    let mut have = Ranges::new();
    let came = came.list().iter().map(|(from, to)| (source + from, source + to));
    for (from, to) in [(0, source)].into_iter().chain(came).chain([(source + len, size)]) {
        if from < to {
            // What has too many parts comes once more.
            let _ = have.insert(from, to);
        }
    }
    have
}

/// The set without the bytes from `start` up to `end`.
fn without(ranges: &Ranges, start: u64, end: u64) -> Ranges {
    let mut rest = Ranges::new();
    for (from, to) in ranges.list() {
        for (from, to) in [(*from, (*to).min(start)), ((*from).max(end), *to)] {
            if from < to {
                // Of one range at most two come, and the text of a command has room for that.
                let _ = rest.insert(from, to);
            }
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: of a part nothing else is asked for than what of it did not come.
    /// Method: every part of a small file, of which one range came or none, against single bytes.
    #[test]
    fn nothing_around_a_part_is_asked_for() {
        let size = 7;
        for (source, len) in (0..size).flat_map(|from| (1..=size - from).map(move |len| (from, len))) {
            for (from, to) in (0..len).flat_map(|from| (from..=len).map(move |to| (from, to))) {
                let mut came = Ranges::new();
                if from < to {
                    came.insert(from, to).expect("one range");
                }
                let have = within(&came, (source, len), size);
                for byte in 0..size {
                    let is_of_it = (source..source + len).contains(&byte);
                    let came = is_of_it && came.covers(byte - source, byte - source + 1);
                    assert_eq!(have.covers(byte, byte + 1), !is_of_it || came, "{source} {len} {byte}");
                }
            }
        }
    }

    /// Goal: what is asked for once more is asked for, and nothing else.
    /// Method: every part of a set of two ranges, against single bytes.
    #[test]
    fn a_part_is_taken_out() {
        let mut all = Ranges::new();
        for (start, end) in [(2, 6), (8, 12)] {
            all.insert(start, end).expect("two ranges");
        }
        for start in 0..14 {
            for end in start..14 {
                let rest = without(&all, start, end);
                for byte in 0..14 {
                    let is_out = (start..end).contains(&byte);
                    assert_eq!(rest.covers(byte, byte + 1), all.covers(byte, byte + 1) && !is_out);
                }
            }
        }
    }
}
