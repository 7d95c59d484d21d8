//! Data: from a frame that arrived to bytes in the temporary.
//!
//! In: frames whose digests the stream's thread checked, streams that end, completions of writes. Out:
//! writes, objects asked for again, buffers that are free.
//! Invariants: more than was granted is a violation; a frame waits until its entries are announced and looked
//! up; an object is written only if it has its place and length and its chaining values fit the file's tree;
//! a buffer is free when its write is over, or at once when nothing of its frame is wanted.
//! Left out: holes, which no data may fill; where they are is known from the map (`map`).

use std::time::Duration;

use super::file::{EarlyTemporary, File, Mark, SinkPhase};
use super::{Sink, SinkAction};
use crate::digest::{Subtree, SubtreeSet, subtrees};
use crate::ids::{BufferId, FileId, SinkTarget, StreamId, Time};
use crate::transfer::op::{BundleWrite, SinkOp};
use crate::transfer::{SMALL_LEN_MAX, piece_at, resends_max};
use crate::wire::{DataEntry, DataHeader, Extent, Failure, FailureKind, Message, credit_cost};

/// Stands for the buffer of a bundle without payload.
const NO_BUFFER: BufferId = BufferId(u32::MAX);

/// Of so many descriptors one is kept for large files.
const LARGE_SHARE: u32 = 8;

/// A data frame that waits for an announcement, a lookup or a free descriptor.
pub(super) struct Frame {
    pub(super) header: DataHeader,
    pub(super) buffer: Option<BufferId>,
    pub(super) good: Vec<bool>,
    /// Entries that were taken up already: there were no descriptors for the others.
    pub(super) taken: usize,
}

impl Sink {
    /// A data frame arrived; `good[i]` says whether the payload of entry `i` fits its digest.
    pub fn handle_data(
        &mut self,
        stream: StreamId,
        header: DataHeader,
        buffer: Option<BufferId>,
        good: Vec<bool>,
        now: Time,
    ) {
        self.handle_tick(now);
        self.see_data();
        let payload = header.payload_len();
        *self.frames.entry(stream).or_default() += 1;
        self.counts.payload += payload;
        let cost = credit_cost(payload);
        if let Some(buffer) = buffer {
            self.buffers.insert(buffer, (cost, header.sink_target));
        }
        if self.stop.is_some() || self.finished {
            return self.free(buffer);
        }
        self.received += cost;
        self.frame_cost_max = self.frame_cost_max.max(cost);
        if self.received > self.granted && !haul_mutant::removed("grants-are-kept") {
            // The pool bounds payload; this bounds frames without any.
            self.free(buffer);
            return self.violation("more data than was granted");
        }
        if let Some(refused) = self.refuses_sink_target(header.sink_target, cost, buffer.is_some()) {
            self.free(buffer);
            return self.violation(refused);
        }
        self.defer(Frame { header, buffer, good, taken: 0 });
    }

    /// Books what a frame took of a sink target. What is wrong with it, if anything is.
    fn refuses_sink_target(
        &mut self,
        sink_target: SinkTarget,
        cost: u64,
        payload: bool,
    ) -> Option<&'static str> {
        if sink_target == SinkTarget::ANY {
            return None;
        }
        let now = self.now;
        match &mut self.targets {
            None => Some("data of a target, of which this session was not to know"),
            Some(_) if !payload => Some("data of a target without payload"),
            Some(targets) => {
                (!targets.arrived(sink_target, cost, now)).then_some("more data of a target than was granted")
            }
        }
    }

    /// A data stream joined; false if it is over already: the source said so before its join was known here.
    pub fn handle_stream_up(&mut self, stream: StreamId) -> bool {
        !self.closed_streams.contains_key(&stream)
    }

    /// A data stream ended after `frames` data frames, or never came to be (0).
    pub fn handle_stream_lost(&mut self, stream: StreamId, frames: u64) {
        let told = self.closed_streams.insert(stream, true);
        if told != Some(true) {
            // The source counts from what is said here.
            self.frames.remove(&stream);
            self.frames_told.remove(&stream);
            self.actions.push_back(SinkAction::Send(Message::StreamClosed { stream, frames }));
        }
    }

    /// The source lost it; its receiver is closed and then says how far it got.
    pub(super) fn close_stream(&mut self, stream: StreamId) {
        if self.closed_streams.contains_key(&stream) {
            return;
        }
        self.closed_streams.insert(stream, false);
        self.actions.push_back(SinkAction::CloseStream(stream));
    }

    pub(super) fn take_deferred(&mut self) {
        // No new entry comes after the end, so data of an unknown one would wait for ever. Its id may also be
        // one that the announcements left out.
        if self.end.is_some()
            && self.stop.is_none()
            && self.waiting.keys().any(|id| !self.files.contains_key(id))
        {
            return self.violation("data of a file that was never announced");
        }
        // Small files hold a descriptor each until their epoch is over, and many wait for those. Large files
        // need few: a part of the bound is theirs, and they do not wait behind small ones.
        let most = self.config.files_open_max;
        while let Some((frame, room)) = self.next_deferred(false, most) {
            self.take_frame(frame, room);
        }
        while let Some((frame, room)) = self.next_deferred(true, most - most / LARGE_SHARE) {
            self.take_frame(frame, room);
        }
    }

    /// The next frame of small files, or of others, for which there are descriptors if `most` may be open,
    /// and how many files it may open.
    fn next_deferred(&mut self, small: bool, most: u32) -> Option<(Frame, u32)> {
        if self.stop.is_some() {
            return None;
        }
        let room = most.saturating_sub(self.files_open);
        let (queue, files) = match small {
            true => (&mut self.deferred_small, &self.files),
            false => (&mut self.deferred, &self.files),
        };
        let opens = |entry: &DataEntry| files.get(&entry.id).is_none_or(|file| !file.is(Mark::HasTemp));
        // A part of it is being written: the rest comes behind that.
        let busy = |frame: &Frame| frame.buffer.is_some_and(|buffer| self.in_parts.contains(&buffer));
        let ready = |frame: &Frame| {
            let next = frame.header.entries.get(frame.taken);
            !busy(frame) && (room > 0 || !next.is_some_and(opens))
        };
        if queue.front().is_some_and(ready) {
            return queue.pop_front().map(|frame| (frame, room));
        }
        // Neither a write nor an epoch nor a read of what is held nor a file that is given up will free one:
        // what completes an open file is taken first, wherever it waits; else one file more is opened, for
        // what is open may come behind it.
        let idle =
            self.writes == 0 && self.epochs.is_idle() && self.checks.is_idle() && self.drains.is_empty();
        if !idle || queue.is_empty() {
            return None;
        }
        let at = queue.iter().position(ready);
        let room = if at.is_none() { 1 } else { room };
        queue.remove(at.unwrap_or(0)).map(|frame| (frame, room))
    }

    /// A frame is taken up in its turn.
    pub(super) fn defer(&mut self, frame: Frame) {
        let small = |entry: &DataEntry| entry.root && u64::from(entry.len) <= SMALL_LEN_MAX;
        match frame.header.entries.iter().all(small) {
            true => self.deferred_small.push_back(frame),
            false => self.deferred.push_back(frame),
        }
    }

    /// Takes up one frame: writes what is wanted, drops the rest. At most `room` files are opened for it;
    /// those behind wait.
    fn take_frame(&mut self, frame: Frame, room: u32) {
        let open_max = self.files_open.saturating_add(room);
        // An entry that is not announced yet (its announcement is on another stream), or is being looked up.
        for entry in &frame.header.entries[frame.taken..] {
            let early = match self.files.get(&entry.id) {
                None => !self.announced.is_past(entry.id) && self.announced.has_shard(entry.id),
                // What is of an older generation waits for nothing: nobody wants it.
                Some(file) => {
                    let waits = file.phase == SinkPhase::Looking || file.is(Mark::WaitsLayout);
                    file.kept.generation < entry.generation
                        || (file.kept.generation == entry.generation && waits)
                }
            };
            if early || self.waits_for_place(entry.id) {
                self.waiting_count += 1;
                self.waiting.entry(entry.id).or_default().push(frame);
                return;
            }
        }
        let Some(mut frame) = self.in_turn(frame) else { return };
        if frame.buffer.is_none() && frame.taken == 0 {
            self.freed += credit_cost(frame.header.payload_len());
        }
        let first = std::mem::replace(&mut frame.taken, frame.header.entries.len());
        let mut start = frame.header.entries[..first].iter().map(|entry| entry.len).sum();
        let mut bundle = Vec::new();
        let mut object = None;
        let mut resend = Vec::new();
        for (i, (entry, good)) in frame.header.entries.iter().zip(&frame.good).enumerate().skip(first) {
            let at = start;
            start += entry.len;
            let Some(file) = self.files.get_mut(&entry.id) else { continue };
            if file.kept.generation != entry.generation || file.phase != SinkPhase::Open {
                if file.kept.generation == entry.generation && file.phase == SinkPhase::Again {
                    self.came_too_early(entry.id, entry.offset);
                }
                continue;
            }
            let len = u64::from(entry.len);
            // A whole file is one object; over parts that are being written it could only be somebody's
            // trick. (What an earlier run left of it, in shorter objects, is written over.)
            let over_parts = *good && entry.root && file.writes > 0 && !file.digest.covers(0, len);
            if !fits(file, entry) || over_parts || entry.digest != self.config.agreed.digest {
                self.violation("an object that does not fit its file");
                break;
            }
            if !good {
                file.damaged += 1;
                if file.damaged > resends_max(file.size(), file.digest.map(), file.kept.object_size) {
                    let text =
                        "too much of it arrived damaged; look for bad memory or a broken network device";
                    self.fail_file(
                        entry.id,
                        Failure { kind: FailureKind::Digest, errno: 0, text: text.into() },
                    );
                    continue;
                }
                self.counts.objects_resent += 1;
                resend.push(Extent { id: entry.id, generation: entry.generation, offset: entry.offset, len });
                continue;
            }
            file.naming.handle_read(entry.pass);
            self.confirm(entry.id);
            let full = self.files_open >= open_max;
            let Some(file) = self.files.get_mut(&entry.id) else { continue };
            if full && !file.is(Mark::HasTemp) && !haul_mutant::removed("files-open-max") {
                frame.taken = i;
                break;
            }
            if entry.sealed {
                file.naming.handle_seal(entry.pass);
            }
            let duplicate =
                if file.size() == 0 { file.is(Mark::HasTemp) } else { file.holds(entry.offset, len) };
            if duplicate {
                self.try_complete(entry.id);
                continue;
            }
            if !take_digest(file, entry) {
                self.violation("chaining values that do not fit the file's tree");
                break;
            }
            if !file.is(Mark::HasTemp) {
                file.mark(Mark::HasTemp);
                self.files_open += 1;
            }
            file.writes += 1;
            let sink_file = file.sink_file(entry.id);
            // A large file in one object was made like those of several, and waits for its target's turn as
            // they do.
            let alone = file.made == EarlyTemporary::Yes && frame.header.entries.len() == 1;
            if entry.root && !alone {
                bundle.push(BundleWrite { file: sink_file, start: at, mode: file.meta.mode });
            } else {
                object = Some((sink_file, entry.offset, entry.len, at));
            }
        }
        if !resend.is_empty() {
            self.actions.push_back(SinkAction::Send(Message::Resend(resend)));
        }
        let buffer = frame.buffer;
        let more = frame.taken < frame.header.entries.len() && self.stop.is_none();
        if !bundle.is_empty() {
            self.writes += 1;
            self.in_parts.extend(buffer.filter(|_| more));
            let op = SinkOp::WriteBundle { buffer: buffer.unwrap_or(NO_BUFFER), items: bundle, more };
            self.actions.push_back(SinkAction::Submit(op));
        } else if let (Some((file, offset, len, start)), Some(buffer)) = (object, buffer) {
            let (id, end) = (file.id, offset + u64::from(len));
            self.write(file, offset, len, buffer, start);
            self.turned(id, end);
        } else if !more {
            self.free(buffer);
        }
        if more {
            self.deferred_small.push_front(frame);
        }
    }

    /// A part of a frame is written; the rest may be taken up.
    pub(super) fn part_written(&mut self, buffer: BufferId) {
        self.in_parts.remove(&buffer);
        if self.stop.is_some() {
            self.free(Some(buffer));
        }
    }

    pub(super) fn free(&mut self, buffer: Option<BufferId>) {
        if let Some(buffer) = buffer {
            self.buffer_freed(buffer, None);
            self.actions.push_back(SinkAction::FreeBuffer(buffer));
        }
    }

    /// `service`: how long the write of it took, if that is known.
    pub(super) fn buffer_freed(&mut self, buffer: BufferId, service: Option<Duration>) {
        let Some((cost, sink_target)) = self.buffers.remove(&buffer) else { return };
        self.freed += cost;
        if let Some(targets) = self.targets.as_mut().filter(|_| sink_target != SinkTarget::ANY) {
            targets.freed(sink_target, cost, service, self.now);
        }
    }

    /// `again`: the store takes the file once more.
    pub(super) fn handle_written(
        &mut self,
        id: FileId,
        offset: u64,
        len: u64,
        (result, again): (Result<(), Failure>, bool),
    ) {
        if let Some(drain) = self.drains.get_mut(&id).filter(|d| d.writes > 0) {
            drain.writes -= 1;
            return self.check_drain(id);
        }
        let Some(file) = self.files.get_mut(&id).filter(|f| f.writes > 0) else { return };
        file.writes -= 1;
        let mut subtrees = file.writing.remove(&offset);
        if let Err(failure) = result {
            if again && self.lose(id, &failure) {
                return;
            }
            let leaves = self.is_of_the_stop(&failure);
            let Some(file) = self.files.get_mut(&id) else { return };
            file.mark(Mark::Broken);
            if !leaves {
                self.fail_file(id, failure);
            }
            return;
        }
        self.counts.written = self.counts.written.saturating_add(len);
        // A whole file whose seal is still to come (its ctime is young, say) is made durable with its epoch
        // like a part of one, so that an end before the seal does not cost it.
        let whole = !file.naming.is_sealed() && len > 0 && len == file.size();
        if let Some(root) = Some(&file.digest).filter(|_| whole).and_then(SubtreeSet::root) {
            subtrees = Some(vec![Subtree { offset: 0, len, cv: root }]);
        }
        // A store that keeps nothing of a part promises nothing of one.
        if let Some(subtrees) = subtrees.filter(|_| self.turns.is_none()) {
            file.written.extend(subtrees);
            file.mark(Mark::InEpoch);
            self.epochs.add_dirty(id, len, self.now);
        }
        if self.files.get(&id).is_some_and(|file| file.writes == 0 && file.digest.is_complete()) {
            self.leave_place(id);
        }
        self.try_complete(id);
    }
}

/// The object has the place and length that the file's object size and map give it.
fn fits(file: &File, entry: &DataEntry) -> bool {
    let size = file.size();
    let len = u64::from(entry.len);
    if entry.hole {
        return false;
    }
    if entry.root {
        // Of several objects nobody sends it whole, so that none is ever written over parts of it.
        let one = size <= u64::from(file.kept.object_size) || haul_mutant::removed("whole-is-one-object");
        return entry.offset == 0 && len == size && one && file.digest.map().is_none();
    }
    piece_at(size, file.digest.map(), file.kept.object_size, entry.offset) == Some((entry.offset, len))
        && entry.tail == (entry.offset + len == size)
}

/// Puts the entry's chaining values into the file's tree; false if they do not fit.
fn take_digest(file: &mut File, entry: &DataEntry) -> bool {
    let len = u64::from(entry.len);
    if entry.root {
        let [root] = entry.cvs[..] else { return false };
        return if len == 0 {
            file.digest.root() == Some(root)
        } else {
            file.digest.insert(0, len, root).is_ok()
        };
    }
    let ranges: Vec<(u64, u64)> = subtrees(entry.offset, len, entry.tail).collect();
    if ranges.len() != entry.cvs.len() {
        return false;
    }
    let parts = ranges.iter().zip(&entry.cvs).map(|((offset, len), cv)| Subtree {
        offset: *offset,
        len: *len,
        cv: *cv,
    });
    let parts: Vec<Subtree> = parts.collect();
    let fits = parts.iter().all(|s| file.digest.insert(s.offset, s.len, s.cv).is_ok());
    file.writing.insert(entry.offset, parts);
    fits
}
