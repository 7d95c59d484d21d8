//! What is read next, and what was read on its way to a stream.
//!
//! In: what the plan gives out, small files, the grant, free buffers and slots. Out: reads to make; frames
//! for free streams.
//! Invariants: a read starts only when a slot, a grant and a buffer could be had for it; what it took of
//! grant and buffers goes on with its frame, or is given back when there is none. Small and large files take
//! turns. Reads run ahead of the streams no further than keeps these busy: memory that was not touched yet is
//! dear, and cold when it is sent.
//! Left out: which object is next (`plan`); reads without a grant (`spill`).

use super::file::{Queue, SourcePhase};
use super::{Source, SourceAction, limits};
use crate::ids::{BufferId, Generation, SinkTarget};
use crate::schedule::Limits;
use crate::transfer::BUNDLE_LEN_MAX;
use crate::transfer::op::{BundleFile, SourceOp};
use crate::wire::{DataHeader, credit_cost};

/// Bundles smaller than this wait for more files while other reads are under way.
const BUNDLE_ENTRIES_MIN: usize = 64;

/// What may always be read ahead of the streams: so many bytes (or an eighth of the memory), and so many
/// frames. More whenever a stream was idle for want of it.
const AHEAD_MIN: u64 = 32 << 20;
const AHEAD_FRAMES: u64 = 8;

/// A frame that was read and waits for a stream.
pub(super) struct Ready {
    pub(super) header: DataHeader,
    pub(super) buffer: Option<BufferId>,
    /// Credit that it takes at the sink.
    pub(super) cost: u64,
    /// What its buffer takes here; more than `cost` when a bundle came out shorter than was asked.
    pub(super) held: u64,
    /// Where it goes at the sink; it took `cost` of that credit, too.
    pub(super) sink_target: SinkTarget,
}

impl Source {
    /// Starts reads while a grant, a slot and a buffer can be had.
    pub(super) fn schedule(&mut self) {
        if self.stopping || self.paused {
            return;
        }
        if self.plan.files > 0 {
            self.fill_plan();
        }
        while self.may_read() {
            let small_first = self.prefer_small || self.plan.files == 0;
            let mut started = small_first && self.read_bundle();
            started = started || self.read_object();
            started = started || (!small_first && self.read_bundle());
            if !started {
                break;
            }
            self.prefer_small = !self.prefer_small;
        }
        // "Tried once more at the end": when nothing else is left to be read.
        // Or when the walk cannot go on for them.
        let walked = self.unsealed == 0 && (self.totals.is_some() || !self.wants_entries());
        if walked || self.retries.len() >= self.config.agreed.limits.entries as usize / 2 {
            for id in std::mem::take(&mut self.retries) {
                let Some(file) = self.files.get_mut(&id) else { continue };
                file.phase = SourcePhase::Refreshing;
                self.refreshing += 1;
                file.generation = Generation(file.generation.0 + 1);
                let op = SourceOp::Refresh { id, generation: file.generation };
                self.actions.push_back(SourceAction::Submit(op));
            }
        }
    }

    /// A slot is free. What hangs at one target takes none from the others, within bounds.
    pub(super) fn may_read(&self) -> bool {
        let schedule = &self.plan.schedule;
        let Limits { total, each } = limits(&self.config);
        self.reads - schedule.excused() < if schedule.is_lone() { each } else { total }
    }

    /// No grant covers a read of this length.
    pub(super) fn is_short_of(&self, len: u64) -> bool {
        self.credit_used + credit_cost(len) > self.credit
    }

    pub(super) fn room(&mut self, len: u64) -> bool {
        let cost = credit_cost(len);
        let used = self.buffers_used + cost;
        let had = !self.is_short_of(len) && used <= self.config.memory;
        // What is under way at slow targets is none that the streams wait for.
        let slow = u64::from(self.plan.schedule.slow_in_flight()) * credit_cost(self.plan.object_max);
        let used = used.saturating_sub(slow);
        self.held_back = had && used > self.ahead.max(self.ahead_min()).max(AHEAD_FRAMES * cost);
        had && !self.held_back
    }

    fn ahead_min(&self) -> u64 {
        AHEAD_MIN.min(self.config.memory / 8)
    }

    /// A read came back. If a stream is idle for want of it while others were held back, they may run further
    /// ahead.
    fn run_further(&mut self) {
        let landed = std::mem::take(&mut self.landed);
        if landed > 0 && self.held_back && self.frames.is_empty() && self.streams.free().is_some() {
            let used = self.ahead.max(self.ahead_min()).max(self.buffers_used);
            self.ahead = (used + landed).min(self.config.memory);
        }
    }

    fn take(&mut self, len: u64) {
        let cost = credit_cost(len);
        self.credit_used += cost;
        self.buffers_used += cost;
        self.reads += 1;
    }

    fn read_object(&mut self) -> bool {
        if self.plan.files == 0 {
            return false;
        }
        // The next one is at most so long.
        let len = self.plan.object_max;
        let has_room = self.room(len);
        (self.plan.holds, self.plan.shut_out) = (false, false);
        let piece = if has_room { self.next_piece(false) } else { None };
        let granted = piece.is_some();
        let ahead = !granted && (self.plan.shut_out || self.is_short_of(len)) && self.may_spill(len);
        let piece = if ahead { self.next_piece(true) } else { piece };
        let Some((issue, offset, len)) = piece else { return false };
        let (id, target) = (issue.file, issue.target);
        let file = self.files.get_mut(&id).expect("a piece of it was just given out");
        file.reads += 1;
        let tail = offset + u64::from(len) == file.size();
        let (generation, whole) = (file.generation, tail && offset == 0);
        let op = SourceOp::Read { id, generation, offset, len, tail, whole, target };
        match granted {
            true => {
                self.take_sink_target(issue.sink, (id, generation, offset), credit_cost(len.into()));
                self.take(u64::from(len));
            }
            false => self.take_spilling((id, generation, Some(offset)), u64::from(len), issue.sink),
        }
        self.actions.push_back(SourceAction::Submit(op));
        true
    }

    fn read_bundle(&mut self) -> bool {
        let files_max = self.config.bundle_files;
        let plenty =
            self.small.len() >= BUNDLE_ENTRIES_MIN.min(files_max) || self.small_bytes >= BUNDLE_LEN_MAX / 2;
        let more_will_come = self.totals.is_none() && self.wants_entries();
        if self.small.is_empty() || (!plenty && more_will_come && self.reads > 0) {
            return false;
        }
        let mut files: Vec<BundleFile> = Vec::new();
        let mut bytes = 0;
        // Without a grant, into the spill file.
        let mut spilling = false;
        while let Some(&id) = self.small.front() {
            let waits = self.files.get_mut(&id).filter(|f| f.queue == Queue::Small);
            let Some(file) = waits else {
                self.small.pop_front();
                continue;
            };
            if file.phase != SourcePhase::Sending {
                // A read that was under way when it was queued again has served it.
                file.queue = Queue::None;
                self.small_bytes -= file.size();
                self.small.pop_front();
                continue;
            }
            let size = file.size();
            let full = files.len() >= files_max || (!files.is_empty() && bytes + size > BUNDLE_LEN_MAX);
            if full {
                break;
            }
            if files.is_empty() {
                spilling = !self.room(size);
            }
            let all = bytes + size;
            let fits = if spilling { self.is_short_of(all) && self.may_spill(all) } else { self.room(all) };
            if !fits {
                break;
            }
            bytes += size;
            self.small.pop_front();
            self.small_bytes -= size;
            let file = self.files.get_mut(&id).expect("it is there");
            file.queue = Queue::None;
            file.reads += 1;
            let size = u32::try_from(size).expect("a small file");
            files.push(BundleFile { id, generation: file.generation, size });
        }
        if files.is_empty() {
            return false;
        }
        match spilling {
            false => self.take(bytes),
            true => self.take_spilling((files[0].id, files[0].generation, None), bytes, SinkTarget::ANY),
        }
        self.actions.push_back(SourceAction::Submit(SourceOp::ReadBundle { files }));
        true
    }

    /// Gives finished reads to free streams.
    pub(super) fn dispatch(&mut self) {
        self.drain_spill();
        while !self.paused && !self.frames.is_empty() {
            let Some(stream) = self.streams.free() else { return };
            let Ready { header, buffer, cost, held, sink_target } =
                self.frames.pop_front().expect("not empty");
            self.counts.payload += header.payload_len();
            self.streams.push(stream, &header, (cost, held), sink_target);
            self.actions.push_back(SourceAction::SendData { stream, header, buffer });
        }
        self.run_further();
    }

    pub(super) fn drop_frames(&mut self) {
        self.drop_spill();
        for Ready { buffer, cost, held, sink_target, .. } in std::mem::take(&mut self.frames) {
            self.give_back(sink_target, cost);
            self.buffers_used -= held;
            self.credit_used -= cost;
            if let Some(buffer) = buffer {
                self.actions.push_back(SourceAction::FreeBuffer(buffer));
            }
        }
    }
}
