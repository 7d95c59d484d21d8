//! The source's session machine: from walked entries to sealed files.
//!
//! In: entries of the walk, completions of reads, the sink's messages, streams that come and go, time.
//! Out: reads to make, frames to send, entries that ended.
//! Invariants: no payload is read without a grant for it and a buffer; a file is sealed only by a look that
//! came after its last read; an entry is known from its announcement until it ended, never longer.
//! Left out: entries as they come and their announcement (`announce`); what the sink says (`heard`); a file's
//! way, which is in the modules by its steps: `map`, `answer`, `read`, `done`, `seal`, `changed`; frames that
//! wait on flash (`spill`); a place that cannot be reached any more (`gone`).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::change::Change;
use crate::id_map::IdMap;
use crate::ids::{BufferId, DirId, FileId, Generation, StreamId, Time};
use crate::schedule::{Limits, Policy};
use crate::transfer::op::SourceOp;
use crate::transfer::{Ended, SessionEnd, lost};
use crate::wire::{Agreed, Announced, DataHeader, Failure, Message, Totals};

mod announce;
mod answer;
mod changed;
mod done;
mod file;
mod gone;
mod heard;
mod held;
mod map;
mod metadata;
mod names;
mod plan;
mod read;
mod seal;
mod sink_targets;
mod spill;
mod streams;
mod young;

use file::File;
use map::Maps;
use metadata::Metadata;
use names::Joins;
use plan::Plan;
pub use plan::{LOCATE_FILES_MAX, Lies};
use read::Ready;
use sink_targets::SinkTargets;
use spill::Spill;
pub use spill::{SPILL_SLOTS_MAX, SPILL_STALL, STALLS_TOLD, SpillConfig, SpillCounts, Stall};
pub use streams::QUEUED_MAX;
use streams::{Settled, Streams};

/// What becomes of a file that changes while it is copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnChange {
    /// It fails.
    Fail,
    /// It is tried once more, in its new version, and then it fails.
    #[default]
    Retry,
    /// One that only grows is copied up to the length that it had at its start; any other fails.
    Prefix,
}

/// What the source machine must know before it starts.
#[derive(Clone, Copy, Debug)]
pub struct SourceConfig {
    /// What both ends know and may do.
    pub agreed: Agreed,
    /// Payload bytes in this end's buffers, at most.
    pub memory: u64,
    /// Reads in flight at one storage target, at most; and in all, while there is only one.
    pub reads_max: u32,
    /// Reads in flight at all targets together, at most; [`SourceConfig::reads_max`] if that is more.
    pub reads_total: u32,
    /// Small files that are read in one go, 1 to [`BUNDLE_ENTRIES_MAX`]: fewer, where each costs the store
    /// round trips, so that several are under way at a time.
    pub bundle_files: usize,
    /// Which object is read next, and at which target.
    pub policy: Policy,
    /// The sink asked for it: no file is sent before its state is known.
    pub wait: bool,
    /// The sink reads files back before they get their names, and says which came back wrong.
    pub verify: bool,
    /// The storage can hold what the sink has of a file against the file ([`SourceOp::Verify`]).
    pub compares: bool,
    /// Nothing is sent: the sink says what would be.
    pub dry: bool,
    /// The sink says what became of the destination root.
    pub root: bool,
    /// It may clone files, which are then neither read nor hashed.
    pub clones: bool,
    /// What becomes of files that change while they are copied.
    pub changed: OnChange,
    /// How long it may be without any data stream; where none can join later, zero. A second is always
    /// waited.
    pub patience: Duration,
}

/// What the driver must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceAction {
    /// Give this to the storage engine; `Read` and `ReadBundle` with a buffer of the length that they ask.
    Submit(SourceOp),
    Send(Message),
    SendData {
        stream: StreamId,
        header: DataHeader,
        buffer: Option<BufferId>,
    },
    FreeBuffer(BufferId),
    /// Write this buffer's first `len` bytes into a slot of the spill file, and answer by
    /// [`Source::handle_stored`]; the buffer is freed by an action of its own.
    Store {
        slot: u32,
        buffer: BufferId,
        len: u32,
    },
    /// Read a slot's first `len` bytes into a new buffer, and answer by [`Source::handle_fetched`].
    Fetch {
        slot: u32,
        len: u32,
    },
    /// The sink waits for something; show it.
    Notice(Box<str>),
    /// Close this data stream and drop what is queued on it.
    CloseStream(StreamId),
    /// An entry is over. `root` is known for copied files, but for sparse ones. Its path is forgotten
    /// afterwards.
    EntryEnded {
        id: FileId,
        end: Ended,
        root: Option<[u8; 32]>,
        bytes: u64,
        /// It is a further name of this entry.
        joined: Option<FileId>,
        /// What it changed at the destination, as the sink says.
        change: Change,
    },
    Finished(SessionEnd),
}

/// Counters for progress and report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceCounts {
    pub files: u64,
    pub bytes: u64,
    pub files_done: u64,
    pub bytes_done: u64,
    /// Of these, holes of copied files, and files that were cloned: nothing was moved for them.
    pub holes: u64,
    pub unchanged: u64,
    /// Files that the sink cloned, and their length: nothing of them was read.
    pub cloned: u64,
    pub cloned_bytes: u64,
    /// Payload handed to streams, re-sends included.
    pub payload: u64,
    pub objects_resent: u64,
    /// How often a file came back wrong from the sink's storage.
    pub sent_back: u64,
    /// Files that were copied up to the length that they had at their start, for they grew meanwhile; and
    /// that length of all of them.
    pub prefixes: u64,
    pub prefix_bytes: u64,
    /// Bytes that the sink said it wrote, durable or not.
    pub written: u64,
    /// Bytes that the sink said are on media, of files not yet done.
    pub durable: u64,
    /// Bytes that the sink said it holds from an earlier run.
    pub held: u64,
    /// Those of them that it neither confirmed nor asked for yet.
    pub held_open: u64,
}

/// The source of one session. One owner, no locks: feed it events, then drain [`Source::poll_action`].
pub struct Source {
    config: SourceConfig,
    /// Each by itself: many are open, and one is large, so that a table of them would cost several times its
    /// memory as it grows.
    files: IdMap<FileId, Box<File>>,
    /// Other entries that were announced: directories (with the number of open entries), symlinks, and
    /// further names of files and symlinks.
    dirs: IdMap<DirId, ()>,
    links: IdMap<FileId, Option<Box<Joins>>>,
    /// Of these, further names.
    joins: usize,
    plan: Plan,
    sink_targets: SinkTargets,
    small: VecDeque<FileId>,
    small_bytes: u64,
    retries: Vec<FileId>,
    maps: Maps,
    /// Files whose new fingerprint is being taken.
    refreshing: u32,
    /// Files that are neither sealed nor waiting for a retry.
    unsealed: u64,
    /// Files that wait for their ctime to be old enough, and until when.
    young: BTreeMap<(Time, FileId), Generation>,
    /// The time of the last tick.
    now: Time,
    /// Every data stream is lost: when that is taken for the end. A sink that ended says why on control, and
    /// its streams may be seen to go first.
    lost_until: Option<Time>,
    reads: u32,
    buffers_used: u64,
    /// Bytes that reads may be ahead of the streams, as found so far.
    ahead: u64,
    /// The next read could be had, but for that.
    held_back: bool,
    /// Cost of the frames that came from storage since this was looked at.
    landed: u64,
    credit: u64,
    credit_used: u64,
    streams: Streams,
    frames: VecDeque<Ready>,
    spill: Spill,
    announce: Vec<Announced>,
    announce_bytes: usize,
    metadata: Metadata,
    dir_ends: Vec<DirId>,
    sealed: Vec<(FileId, Generation, u16)>,
    totals: Option<Totals>,
    end_sent: bool,
    stopping: bool,
    /// Why it stops, where that is because its place cannot be reached any more.
    gone: Option<Failure>,
    /// Nothing new is taken in, read or sent; see [`Source::handle_pause`].
    paused: bool,
    finished: bool,
    prefer_small: bool,
    counts: SourceCounts,
    actions: VecDeque<SourceAction>,
}

impl Source {
    /// A machine with nothing to do. Entries come by [`Source::handle_entry`].
    pub fn new(config: SourceConfig) -> Source {
        Source {
            config,
            files: IdMap::default(),
            dirs: IdMap::default(),
            links: IdMap::default(),
            joins: 0,
            plan: Plan::new(config.policy, limits(&config)),
            sink_targets: SinkTargets::default(),
            small: VecDeque::new(),
            small_bytes: 0,
            retries: Vec::new(),
            maps: Maps::default(),
            refreshing: 0,
            unsealed: 0,
            young: BTreeMap::new(),
            now: Time(0),
            lost_until: None,
            reads: 0,
            buffers_used: 0,
            ahead: 0,
            held_back: false,
            landed: 0,
            credit: 0,
            credit_used: 0,
            streams: Streams::default(),
            frames: VecDeque::new(),
            spill: Spill::default(),
            announce: Vec::new(),
            announce_bytes: 0,
            metadata: Metadata::default(),
            dir_ends: Vec::new(),
            sealed: Vec::new(),
            totals: None,
            end_sent: false,
            stopping: false,
            gone: None,
            paused: false,
            finished: false,
            prefer_small: false,
            counts: SourceCounts::default(),
            actions: VecDeque::new(),
        }
    }

    /// More entries may be handed in. While false, the walk must wait.
    pub fn wants_entries(&self) -> bool {
        !self.stopping
            && !self.finished
            && !self.paused
            && self.open_entries() < self.config.agreed.limits.entries as usize
            && self.metadata.has_room()
    }

    /// Counters so far.
    pub fn counts(&self) -> SourceCounts {
        self.counts
    }

    /// There is something to read that waits for a grant or a buffer: the stages after are slow.
    pub fn is_blocked(&self) -> bool {
        let waits = (self.plan.files > 0 && !self.plan.holds) || !self.small.is_empty();
        waits && self.may_read()
    }

    /// When [`Source::handle_tick`] is due, if nothing else happens before.
    pub fn next_deadline(&self) -> Option<Time> {
        let young = self.young.keys().next().map(|(time, _)| *time);
        let target = self.plan.schedule.next_deadline();
        young.into_iter().chain(target).chain(self.lost_until).chain(self.spill.deadline()).min()
    }

    fn open_entries(&self) -> usize {
        self.files.len() + self.dirs.len() + self.links.len()
    }

    /// A data stream is up, at any time. One that the sink has closed already is closed here too.
    pub fn handle_stream_up(&mut self, stream: StreamId) {
        match self.streams.open(stream) {
            true => self.lost_until = None,
            false => self.actions.push_back(SourceAction::CloseStream(stream)),
        }
    }

    /// Gives this stream no more frames, unless no other is left. It stays open, and what it has is sent.
    pub fn park(&mut self, stream: StreamId) {
        self.streams.set_parked(stream, true);
    }

    /// From now on `wanted` streams get frames, the oldest that are up; the others are parked. Returns how
    /// many are missing for that.
    pub fn use_streams(&mut self, wanted: u16) -> u16 {
        self.streams.want(wanted.max(1))
    }

    /// The stream is open and gets no frames.
    pub fn is_parked(&self, stream: StreamId) -> bool {
        self.streams.up().any(|(id, parked)| id == stream && parked)
    }

    /// Streams that are up, and how many of them are parked.
    pub fn streams(&self) -> (usize, usize) {
        (self.streams.up().count(), self.streams.up().filter(|(_, parked)| *parked).count())
    }

    /// The payload of frame `seq` was handed to the network; its buffer is free.
    pub fn handle_sent(&mut self, stream: StreamId, seq: u64) {
        self.buffers_used -= self.streams.sent(stream, seq);
    }

    /// A data stream broke on this side. What was not received goes again when the sink has said how far
    /// it got.
    pub fn handle_stream_lost(&mut self, stream: StreamId) {
        if self.streams.lose(stream) {
            let message = Message::StreamClosed { stream, frames: 0 };
            self.actions.push_back(SourceAction::Send(message));
            self.actions.push_back(SourceAction::CloseStream(stream));
        }
    }

    /// Without streams the session goes on only while nothing has to be sent: the sink may close its end
    /// before its last word is heard.
    fn check_streams(&mut self) {
        let over = self.stopping
            || (self.end_sent && self.all_sealed() && self.frames.is_empty() && self.spill.is_empty());
        match !over && self.streams.all_lost() {
            true => drop(self.lost_until.get_or_insert(self.now.after(self.wait_for_streams()))),
            false => self.lost_until = None,
        }
    }

    /// Until then a stream may join, or the sink say why there is none.
    fn wait_for_streams(&self) -> Duration {
        self.config.patience.max(LAST_WORD_WAIT)
    }

    fn handle_stream_closed(&mut self, stream: StreamId, frames: u64) {
        if self.streams.lose(stream) {
            self.actions.push_back(SourceAction::CloseStream(stream));
        }
        let Settled { lost, buffers, credit, sink_targets } = self.streams.settle(stream, frames);
        self.buffers_used -= buffers;
        self.credit_used -= credit;
        for (sink_target, cost) in sink_targets {
            self.give_back(sink_target, cost);
        }
        for (id, generation, offset) in lost {
            self.send_again(id, generation, offset);
        }
    }

    /// Time passed.
    pub fn handle_tick(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.plan.schedule.handle_tick(self.now);
        if self.lost_until.is_some_and(|until| until <= now) {
            self.finish(SessionEnd::Failed(lost("every data stream is lost")));
        }
        self.wake_young();
    }

    /// Someone pauses the session, or lets it go on. While it is paused no entry is taken in, no payload is
    /// read and none is given to a stream. What is on its way lands: reads that were begun end and keep their
    /// buffers, frames that a stream has are sent, and what the sink answers is heard, so that its epochs
    /// close. A paused session can be stopped.
    pub fn handle_pause(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// From now on at most `reads_max` (at least 1 is taken) reads are in flight at a target, and
    /// `reads_total` in all. Those that were begun go on.
    pub fn handle_reads_max(&mut self, reads_max: u32, reads_total: u32) {
        (self.config.reads_max, self.config.reads_total) = (reads_max.max(1), reads_total);
        self.plan.schedule.set_limits(limits(&self.config));
    }

    /// It was told to end, by whomever.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// Ends in good order: reads nothing more and asks the sink to close its epoch.
    pub fn stop(&mut self, reason: &str) {
        if !self.stopping && !self.finished {
            self.stopping = true;
            self.drop_frames();
            self.actions.push_back(SourceAction::Send(Message::Stop { reason: reason.into() }));
        }
    }

    /// The control stream is gone, and whose fault that is: nothing more can be learnt.
    pub fn handle_control_lost(&mut self, failure: Failure) {
        self.finish(SessionEnd::Failed(failure));
    }

    fn finish(&mut self, end: SessionEnd) {
        if !self.finished {
            self.finished = true;
            self.name_what_is_left(&end);
            self.actions.push_back(SourceAction::Finished(end));
        }
    }

    /// The next thing to do, or `None` until the next event.
    pub fn poll_action(&mut self) -> Option<SourceAction> {
        if self.actions.is_empty() && !self.finished {
            self.flush_announcements();
            self.flush_sealed();
            self.dispatch();
            self.take_maps();
            self.schedule();
            self.look_at_spill();
            self.end_if_over();
            self.check_streams();
        }
        self.actions.pop_front()
    }

    fn end_if_over(&mut self) {
        // What comes back wrong is announced again, and after the end nothing is.
        // So may a further name be.
        let over = self.all_sealed() && self.joins == 0 && (!self.config.verify || self.files.is_empty());
        if let Some(totals) = self.totals.filter(|_| over && !self.end_sent && !self.stopping) {
            self.flush_announcements();
            self.flush_sealed();
            self.end_sent = true;
            self.actions.push_back(SourceAction::Send(Message::End(totals)));
        }
    }
}

fn limits(config: &SourceConfig) -> Limits {
    Limits { total: config.reads_total.max(config.reads_max), each: config.reads_max }
}

/// How long the sink's last word is waited for when every data stream is lost.
const LAST_WORD_WAIT: Duration = Duration::from_secs(1);
