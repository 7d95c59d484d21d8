//! The source's session machine: from walked entries to sealed files.
//!
//! In: entries of the walk, completions of reads, the sink's messages, streams that come and go, time.
//! Out: reads to make, frames to send, entries that ended.
//! Invariants: no payload is read without a grant for it and a buffer; a file is sealed only by a look that
//! came after its last read; an entry is known from its announcement until it ended, never longer.
//! Left out: queues per storage target (one target for now), spill.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::digest::{Subtree, SubtreeSet, subtrees};
use crate::entry::{EntryKind, Fingerprint, Meta, Name};
use crate::ids::{BufferId, DirId, FileId, Generation, StreamId, Time};
use crate::transfer::op::{BundleFile, Look, SourceDone, SourceOp};
use crate::transfer::{BUNDLE_LEN_MAX, Ended, SMALL_LEN_MAX, SessionEnd, resends_max};
use crate::wire::{
    ANNOUNCE_ENTRIES_MAX, Announced, BUNDLE_ENTRIES_MAX, DataEntry, DataHeader, DigestKind, Extent, Failure,
    FileState, ITEMS_MAX, Message, Outcome, Stage, Totals, announced_len, credit_cost,
};

mod streams;
pub use streams::QUEUED_MAX;
use streams::Streams;

/// What the source machine must know before it starts.
#[derive(Clone, Copy, Debug)]
pub struct SourceConfig {
    /// Entries announced and not yet ended, at most (the smaller of both ends' limits).
    pub entries_max: u32,
    /// Payload bytes in this end's buffers, at most.
    pub memory: u64,
    /// Reads in flight, at most.
    pub reads_max: u32,
    /// The sink asked for it: no file is sent before its state is known.
    pub wait: bool,
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
    /// Close this data stream and drop what is queued on it.
    CloseStream(StreamId),
    /// An entry is over. `root` is known for copied files. Its path is forgotten afterwards.
    EntryEnded {
        id: FileId,
        end: Ended,
        root: Option<[u8; 32]>,
        bytes: u64,
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
    pub unchanged: u64,
    /// Payload handed to streams, re-sends included.
    pub payload: u64,
    pub objects_resent: u64,
    /// Bytes that the sink said are on media, of files not yet done.
    pub durable: u64,
}

/// Bundles smaller than this wait for more files while other reads are under way.
const BUNDLE_ENTRIES_MIN: usize = 64;
/// A file that changed is tried once more.
const TRIES_MAX: u8 = 2;

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Phase {
    /// Announced; the sink's `FileState` decides.
    AwaitState,
    /// Held subtrees are being compared with the source.
    Verifying,
    /// Objects are read and sent.
    Sending,
    /// All read; a look at the fingerprint is under way or due.
    Looking,
    /// ctime alone changed; the whole file is hashed.
    Hashing,
    /// Sealed; the sink will say how it ended.
    Sealed,
    /// Changed while it was read; waits for its second try.
    Retry,
    /// A new fingerprint is being taken for the second try.
    Refreshing,
}

struct File {
    generation: Generation,
    parent: DirId,
    name: Name,
    meta: Meta,
    fingerprint: Fingerprint,
    object_size: u32,
    phase: Phase,
    /// Chaining values of everything that was read or is held at the sink.
    digest: SubtreeSet,
    held: Vec<Subtree>,
    /// Next offset to read for the first time.
    cursor: u64,
    /// Offsets to read again.
    again: VecDeque<u64>,
    reads: u32,
    /// A look or a hash of this generation is under way.
    checking: bool,
    /// The look that is due must begin after the one that is under way: more was read since.
    look_again: bool,
    /// Bytes of it that the sink said are on media.
    durable: u64,
    /// How often the file had been sealed (or was about to be) before the next read.
    pass: u16,
    tries: u8,
    queue: Queue,
    /// How often the sink asked for objects of it again.
    resends: u64,
}

/// Where a file waits to be read.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Queue {
    None,
    /// Whole, in a bundle; its size is counted in `small_bytes`.
    Small,
    /// By objects.
    Large,
}

impl File {
    fn size(&self) -> u64 {
        self.fingerprint.size
    }
    fn is_small(&self) -> bool {
        self.size() <= SMALL_LEN_MAX && self.size() <= u64::from(self.object_size)
    }
    /// The next object to read: offset and length.
    fn next_object(&mut self) -> Option<(u64, u32)> {
        let object_size = u64::from(self.object_size);
        if let Some(offset) = self.again.pop_front() {
            return Some((offset, object_size.min(self.size() - offset) as u32));
        }
        let (start, _) = self.digest.next_missing(self.cursor)?;
        let offset = start - start % object_size;
        self.cursor = offset + object_size;
        Some((offset, object_size.min(self.size() - offset) as u32))
    }
    fn has_unread(&self) -> bool {
        !self.again.is_empty() || self.digest.next_missing(self.cursor).is_some()
    }
}

/// A frame that was read and waits for a stream.
struct Ready {
    header: DataHeader,
    buffer: Option<BufferId>,
    /// Credit that it takes at the sink.
    cost: u64,
    /// What its buffer takes here; more than `cost` when a bundle came out shorter than was asked.
    held: u64,
}

/// The source of one session. One owner, no locks: feed it events, then drain [`Source::poll_action`].
pub struct Source {
    config: SourceConfig,
    files: HashMap<FileId, File>,
    /// Other entries that were announced: directories (with the number of open entries) and symlinks.
    dirs: HashMap<DirId, ()>,
    links: HashMap<FileId, ()>,
    large: VecDeque<FileId>,
    small: VecDeque<FileId>,
    small_bytes: u64,
    retries: Vec<FileId>,
    /// Files whose new fingerprint is being taken.
    refreshing: u32,
    /// Files that are neither sealed nor waiting for a retry.
    unsealed: u64,
    looks: BTreeMap<(Time, FileId), Generation>,
    reads: u32,
    buffers_used: u64,
    credit: u64,
    credit_used: u64,
    streams: Streams,
    frames: VecDeque<Ready>,
    announce: Vec<Announced>,
    announce_bytes: usize,
    dir_ends: Vec<DirId>,
    sealed: Vec<(FileId, Generation, u16)>,
    totals: Option<Totals>,
    end_sent: bool,
    stopping: bool,
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
            files: HashMap::new(),
            dirs: HashMap::new(),
            links: HashMap::new(),
            large: VecDeque::new(),
            small: VecDeque::new(),
            small_bytes: 0,
            retries: Vec::new(),
            refreshing: 0,
            unsealed: 0,
            looks: BTreeMap::new(),
            reads: 0,
            buffers_used: 0,
            credit: 0,
            credit_used: 0,
            streams: Streams::default(),
            frames: VecDeque::new(),
            announce: Vec::new(),
            announce_bytes: 0,
            dir_ends: Vec::new(),
            sealed: Vec::new(),
            totals: None,
            end_sent: false,
            stopping: false,
            finished: false,
            prefer_small: false,
            counts: SourceCounts::default(),
            actions: VecDeque::new(),
        }
    }

    /// More entries may be handed in. While false, the walk must wait.
    pub fn wants_entries(&self) -> bool {
        !self.stopping && !self.finished && self.open_entries() < self.config.entries_max as usize
    }

    /// Counters so far.
    pub fn counts(&self) -> SourceCounts {
        self.counts
    }

    /// There is something to read that waits for a grant or a buffer: the stages after are slow.
    pub fn is_blocked(&self) -> bool {
        !(self.large.is_empty() && self.small.is_empty()) && self.reads < self.config.reads_max
    }

    /// When [`Source::handle_tick`] is due, if nothing else happens before.
    pub fn next_deadline(&self) -> Option<Time> {
        self.looks.keys().next().map(|(time, _)| *time)
    }

    fn open_entries(&self) -> usize {
        self.files.len() + self.dirs.len() + self.links.len()
    }

    /// The walk found an entry. Its id was never used before and its parent was handed in before it.
    pub fn handle_entry(&mut self, entry: Announced) {
        match &entry.kind {
            EntryKind::Dir => {
                self.dirs.insert(entry.id.as_dir(), ());
            }
            EntryKind::Symlink { .. } => {
                self.links.insert(entry.id, ());
            }
            EntryKind::File { fingerprint, object_size } => {
                self.counts.files += 1;
                self.counts.bytes += fingerprint.size;
                self.unsealed += 1;
                self.files.insert(
                    entry.id,
                    File {
                        generation: entry.generation,
                        parent: entry.parent,
                        name: entry.name.clone(),
                        meta: entry.meta,
                        fingerprint: *fingerprint,
                        object_size: *object_size,
                        phase: Phase::AwaitState,
                        digest: SubtreeSet::new(fingerprint.size),
                        held: Vec::new(),
                        cursor: 0,
                        again: VecDeque::new(),
                        reads: 0,
                        checking: false,
                        look_again: false,
                        durable: 0,
                        pass: 0,
                        tries: 1,
                        queue: Queue::None,
                        resends: 0,
                    },
                );
            }
        }
        let (id, is_file) = (entry.id, matches!(entry.kind, EntryKind::File { .. }));
        self.push_announcement(entry);
        if is_file && !self.config.wait {
            self.start_sending(id);
        }
    }

    fn push_announcement(&mut self, entry: Announced) {
        let len = announced_len(&entry);
        if self.announce.len() >= ANNOUNCE_ENTRIES_MAX || self.announce_bytes + len > ANNOUNCE_LEN_MAX {
            self.flush_announcements();
        }
        self.announce_bytes += len;
        self.announce.push(entry);
    }

    /// The walk emitted the last entry of this directory.
    pub fn handle_dir_end(&mut self, dir: DirId) {
        self.dir_ends.push(dir);
        if self.dir_ends.len() >= ITEMS_MAX {
            self.flush_announcements();
        }
    }

    /// The walk could not read something that was therefore never announced.
    pub fn handle_trouble(&mut self, path: &[u8], failure: Failure) {
        self.actions.push_back(SourceAction::Send(Message::Trouble { path: path.into(), failure }));
    }

    /// The walk is over.
    pub fn handle_walk_end(&mut self, totals: Totals) {
        self.totals = Some(totals);
    }

    /// A data stream is up.
    pub fn handle_stream_up(&mut self, stream: StreamId) {
        self.streams.open(stream);
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
        let over = self.stopping || (self.end_sent && self.all_sealed() && self.frames.is_empty());
        if !over && self.streams.all_lost() {
            self.finish(SessionEnd::Failed(protocol("every data stream is lost")));
        }
    }

    /// Every file is sealed or ended.
    fn all_sealed(&self) -> bool {
        self.unsealed == 0 && self.retries.is_empty() && self.refreshing == 0
    }

    fn handle_stream_closed(&mut self, stream: StreamId, frames: u64) {
        if self.streams.lose(stream) {
            self.actions.push_back(SourceAction::CloseStream(stream));
        }
        let (lost, buffers, credit) = self.streams.settle(stream, frames);
        self.buffers_used -= buffers;
        self.credit_used -= credit;
        for (id, generation, offset) in lost {
            self.send_again(id, generation, offset);
        }
    }

    /// Time passed.
    pub fn handle_tick(&mut self, now: Time) {
        while let Some((&(time, id), &generation)) = self.looks.first_key_value() {
            if time > now {
                break;
            }
            self.looks.pop_first();
            let waits = |f: &File| f.generation == generation && f.phase == Phase::Looking && !f.checking;
            if self.files.get(&id).is_some_and(waits) {
                self.look(id);
            }
        }
    }

    /// Ends in good order: reads nothing more and asks the sink to close its epoch.
    pub fn stop(&mut self, reason: &str) {
        if !self.stopping && !self.finished {
            self.stopping = true;
            self.drop_frames();
            self.actions.push_back(SourceAction::Send(Message::Stop { reason: reason.into() }));
        }
    }

    /// The control stream is gone: nothing more can be learnt.
    pub fn handle_control_lost(&mut self, text: &str) {
        self.finish(SessionEnd::Failed(protocol(text)));
    }

    fn drop_frames(&mut self) {
        for Ready { buffer, cost, held, .. } in std::mem::take(&mut self.frames) {
            self.buffers_used -= held;
            self.credit_used -= cost;
            if let Some(buffer) = buffer {
                self.actions.push_back(SourceAction::FreeBuffer(buffer));
            }
        }
    }

    fn finish(&mut self, end: SessionEnd) {
        if !self.finished {
            self.finished = true;
            self.actions.push_back(SourceAction::Finished(end));
        }
    }

    /// A message of the sink.
    pub fn handle_message(&mut self, message: Message) {
        if self.finished {
            return;
        }
        match message {
            Message::Grant { total, .. } => self.credit = self.credit.max(total),
            Message::State(states) => {
                for (id, generation, state) in states {
                    self.handle_state(id, generation, state);
                }
            }
            Message::Written { frames, .. } => {
                for (stream, count) in frames {
                    self.streams.received(stream, count);
                }
            }
            Message::Durable(extents) => {
                for extent in extents {
                    let file = self.files.get_mut(&extent.id);
                    if let Some(file) = file.filter(|f| f.generation == extent.generation) {
                        // Told twice or too much: it is never more than the file.
                        let more = extent.len.min(file.size() - file.durable);
                        file.durable += more;
                        self.counts.durable += more;
                    }
                }
            }
            Message::Done(items) => {
                for item in items {
                    self.handle_entry_done(item.id, item.generation, item.outcome);
                }
            }
            Message::Resend(extents) => {
                for Extent { id, generation, offset, .. } in extents {
                    self.handle_resend(id, generation, offset);
                }
            }
            Message::StreamClosed { stream, frames } => self.handle_stream_closed(stream, frames),
            Message::Stop { .. } => {
                self.stopping = true;
                self.drop_frames();
            }
            Message::Stopped => self.finish(SessionEnd::Stopped),
            Message::Complete => {
                let end = if self.end_sent && self.open_entries() == 0 {
                    SessionEnd::Complete
                } else {
                    SessionEnd::Failed(protocol("the sink says complete, but entries are still open"))
                };
                self.finish(end);
            }
            Message::Abort(failure) => self.finish(SessionEnd::Failed(failure)),
            Message::Ping(n) => self.actions.push_back(SourceAction::Send(Message::Pong(n))),
            Message::Pong(_) | Message::Report(_) | Message::TargetHealth(_) => {}
            other => {
                let text = format!("the sink sent a message that only a source sends: {}", other.name());
                self.finish(SessionEnd::Failed(protocol(&text)));
            }
        }
    }

    fn handle_state(&mut self, id: FileId, generation: Generation, state: FileState) {
        let Some(file) = self.files.get_mut(&id) else { return };
        if file.generation != generation || file.phase != Phase::AwaitState {
            return;
        }
        match state {
            FileState::Fresh => self.start_sending(id),
            FileState::Unchanged => self.end_file(id, Ended::Unchanged, None),
            FileState::Skipped => self.end_file(id, Ended::Skipped, None),
            FileState::Held { subtrees, verify } => {
                file.held = disjoint(subtrees, file.size());
                if verify {
                    file.phase = Phase::Verifying;
                    let op =
                        SourceOp::Verify { id, generation, size: file.size(), subtrees: file.held.clone() };
                    self.actions.push_back(SourceAction::Submit(op));
                } else {
                    self.believe_held(id);
                }
            }
        }
    }

    /// Takes what the sink holds as read.
    fn believe_held(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        for subtree in std::mem::take(&mut file.held) {
            // A subtree that does not fit the file is the sink's error; without it the range is sent again.
            let _ = file.digest.insert(subtree.offset, subtree.len, subtree.cv);
        }
        file.durable = file.digest.covered();
        self.counts.durable += file.durable;
        self.start_sending(id);
    }

    fn start_sending(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        file.phase = Phase::Sending;
        if file.is_small() && file.digest.covered() == 0 {
            file.queue = Queue::Small;
            self.small_bytes += file.size();
            self.small.push_back(id);
        } else if file.has_unread() {
            file.queue = Queue::Large;
            self.large.push_back(id);
        } else {
            self.look(id);
        }
    }

    /// Asks for the fingerprint, now that everything was read.
    fn look(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        file.phase = Phase::Looking;
        if file.checking {
            // What it will say may be of a moment before the last read.
            file.look_again = true;
            return;
        }
        file.checking = true;
        let op = SourceOp::Look { id, generation: file.generation };
        self.actions.push_back(SourceAction::Submit(op));
    }

    /// A look or a hash came back; false if what it says is too old.
    fn checked(&mut self, id: FileId, generation: Generation) -> bool {
        let Some(file) = self.files.get_mut(&id).filter(|f| f.generation == generation) else { return false };
        file.checking = false;
        if std::mem::take(&mut file.look_again) {
            if file.phase == Phase::Looking {
                self.look(id);
            }
            return false;
        }
        true
    }

    /// The sink asks for an object again, for it arrived damaged.
    fn handle_resend(&mut self, id: FileId, generation: Generation, offset: u64) {
        let Some(file) = self.files.get_mut(&id).filter(|f| f.generation == generation) else { return };
        if !offset.is_multiple_of(u64::from(file.object_size)) || offset >= file.size().max(1) {
            let text = "the sink asks for a part of a file that does not begin an object";
            return self.finish(SessionEnd::Failed(protocol(text)));
        }
        file.resends += 1;
        if file.resends > resends_max(file.size(), file.object_size) {
            let text =
                "the sink asked for it again and again; look for bad memory or a broken network device";
            return self.fail_file(id, Failure { stage: Stage::Digest, errno: 0, text: text.into() });
        }
        self.send_again(id, generation, offset);
    }

    /// An object was lost on the way or arrived damaged.
    fn send_again(&mut self, id: FileId, generation: Generation, offset: u64) {
        let Some(file) = self.files.get_mut(&id) else { return };
        if file.generation != generation || offset >= file.size().max(1) {
            return;
        }
        if matches!(file.phase, Phase::Retry | Phase::Refreshing | Phase::AwaitState | Phase::Verifying) {
            return;
        }
        self.counts.objects_resent += 1;
        if file.phase != Phase::Sending {
            // It was sealed, or is about to be, by a look that this read will come after.
            let Some(pass) = file.pass.checked_add(1) else {
                let text = "it had to be sent again too often";
                return self.fail_file(id, protocol(text));
            };
            file.pass = pass;
            if file.phase == Phase::Sealed {
                self.unsealed += 1;
            }
            file.phase = Phase::Sending;
        }
        if file.is_small() {
            if file.queue == Queue::None {
                file.queue = Queue::Small;
                self.small_bytes += file.size();
                self.small.push_back(id);
            }
        } else {
            if !file.again.contains(&offset) {
                file.again.push_back(offset);
            }
            if file.queue == Queue::None {
                file.queue = Queue::Large;
                self.large.push_back(id);
            }
        }
    }

    fn handle_entry_done(&mut self, id: FileId, generation: Generation, outcome: Outcome) {
        if self.dirs.remove(&id.as_dir()).is_some() {
            let end = match outcome {
                Outcome::Done { .. } => Ended::Copied,
                Outcome::Failed(failure) => Ended::Failed(failure),
            };
            self.actions.push_back(SourceAction::EntryEnded { id, end, root: None, bytes: 0 });
            self.actions.push_back(SourceAction::Submit(SourceOp::ForgetDir { id: id.as_dir() }));
        } else if self.links.remove(&id).is_some() {
            let end = match outcome {
                Outcome::Done { .. } => Ended::Copied,
                Outcome::Failed(failure) => Ended::Failed(failure),
            };
            self.actions.push_back(SourceAction::EntryEnded { id, end, root: None, bytes: 0 });
            self.actions.push_back(SourceAction::Submit(SourceOp::Forget { id }));
        } else if let Some(file) = self.files.get(&id) {
            // What failed at the sink is over there, even if it is to begin again here.
            let failed = matches!(outcome, Outcome::Failed(_)) && generation < file.generation;
            if generation != file.generation && !failed {
                return;
            }
            match outcome {
                Outcome::Failed(failure) => self.end_file(id, Ended::Failed(failure), None),
                Outcome::Done { .. } if file.phase != Phase::Sealed => {
                    let text = "the sink says that a file is done before all of it was sent and sealed";
                    self.finish(SessionEnd::Failed(protocol(text)));
                }
                Outcome::Done { root } if root.is_some() && root == file.digest.root() => {
                    self.end_file(id, Ended::Copied, root);
                }
                Outcome::Done { .. } => {
                    let text = "the sink's digest of the whole file differs from the source's; \
                                remove the destination file and run again";
                    let failure = Failure { stage: Stage::Digest, errno: 0, text: text.into() };
                    self.end_file(id, Ended::Failed(failure), None);
                }
            }
        }
    }

    fn end_file(&mut self, id: FileId, end: Ended, root: Option<[u8; 32]>) {
        let Some(file) = self.files.remove(&id) else { return };
        match file.phase {
            Phase::Sealed | Phase::Retry => {}
            Phase::Refreshing => self.refreshing -= 1,
            _ => self.unsealed -= 1,
        }
        if file.queue == Queue::Small {
            self.small_bytes -= file.size();
        }
        self.counts.durable -= file.durable;
        self.counts.files_done += 1;
        self.counts.bytes_done += file.size();
        if end == Ended::Unchanged {
            self.counts.unchanged += 1;
        }
        self.actions.push_back(SourceAction::EntryEnded { id, end, root, bytes: file.size() });
        self.actions.push_back(SourceAction::Submit(SourceOp::Forget { id }));
    }

    /// The file cannot be read: the sink forgets it, the report names it.
    fn fail_file(&mut self, id: FileId, failure: Failure) {
        let Some(file) = self.files.get(&id) else { return };
        let generation = file.generation;
        let message = Message::Withdraw { id, generation, retry: false, failure: Some(failure.clone()) };
        self.flush_announcements();
        self.actions.push_back(SourceAction::Send(message));
        self.end_file(id, Ended::Failed(failure), None);
    }

    /// The file changed while it was read: once more at the end, then it is reported.
    fn changed(&mut self, id: FileId, failure: Option<Failure>) {
        let Some(file) = self.files.get_mut(&id) else { return };
        if matches!(file.phase, Phase::Retry | Phase::Refreshing) {
            return;
        }
        if file.tries >= TRIES_MAX {
            let failure = failure.unwrap_or(Failure {
                stage: Stage::Changed,
                errno: 0,
                text: "the source changed while it was read, twice; the destination is as it was".into(),
            });
            return self.fail_file(id, Failure { stage: Stage::Changed, ..failure });
        }
        file.tries += 1;
        if file.queue == Queue::Small {
            self.small_bytes -= file.size();
        }
        file.queue = Queue::None;
        file.again.clear();
        file.phase = Phase::Retry;
        self.unsealed -= 1;
        self.retries.push(id);
        let message = Message::Withdraw { id, generation: file.generation, retry: true, failure: None };
        self.flush_announcements();
        self.actions.push_back(SourceAction::Send(message));
    }

    /// Announces a file again under the next generation.
    fn announce_again(&mut self, id: FileId, fingerprint: Fingerprint, meta: Meta) {
        let wait = self.config.wait;
        let Some(file) = self.files.get_mut(&id) else { return };
        self.counts.bytes = self.counts.bytes - file.size() + fingerprint.size;
        self.counts.durable -= std::mem::take(&mut file.durable);
        file.fingerprint = fingerprint;
        file.meta = meta;
        file.digest = SubtreeSet::new(fingerprint.size);
        file.cursor = 0;
        file.again.clear();
        file.pass = 0;
        file.reads = 0;
        file.checking = false;
        file.look_again = false;
        file.phase = Phase::AwaitState;
        self.refreshing -= 1;
        self.unsealed += 1;
        let entry = Announced {
            id,
            generation: file.generation,
            parent: file.parent,
            name: file.name.clone(),
            meta,
            kind: EntryKind::File { fingerprint, object_size: file.object_size },
        };
        self.push_announcement(entry);
        if !wait {
            self.start_sending(id);
        }
    }

    /// A completion of the storage engine.
    pub fn handle_done(&mut self, done: SourceDone, now: Time) {
        match done {
            SourceDone::Read { id, generation, offset, len, result } => {
                self.reads -= 1;
                let cost = credit_cost(u64::from(len));
                let current = self.files.get_mut(&id).filter(|f| f.generation == generation);
                if let Some(file) = current {
                    file.reads -= 1;
                    match result {
                        Ok(ok) if file.phase == Phase::Sending && !self.stopping => {
                            let tail = offset + u64::from(len) == file.size();
                            let root = offset == 0 && tail;
                            if root {
                                let _ = file.digest.insert(0, file.size(), ok.cvs[0]);
                            } else {
                                for ((start, part), cv) in subtrees(offset, u64::from(len), tail).zip(&ok.cvs)
                                {
                                    let _ = file.digest.insert(start, part, *cv);
                                }
                            }
                            let entry = DataEntry {
                                id,
                                generation,
                                offset,
                                len,
                                root,
                                hole: false,
                                tail,
                                sealed: false,
                                pass: file.pass,
                                digest: DigestKind::Blake3,
                                cvs: ok.cvs,
                            };
                            let header = DataHeader { entries: vec![entry] };
                            let last = file.reads == 0 && file.queue == Queue::None;
                            self.frames.push_back(Ready {
                                header,
                                buffer: Some(ok.buffer),
                                cost,
                                held: cost,
                            });
                            if last {
                                self.look(id);
                            }
                            return;
                        }
                        Ok(ok) => self.actions.push_back(SourceAction::FreeBuffer(ok.buffer)),
                        Err(failure) if failure.stage == Stage::Changed => self.changed(id, Some(failure)),
                        Err(failure) => self.fail_file(id, failure),
                    }
                } else if let Ok(ok) = result {
                    self.actions.push_back(SourceAction::FreeBuffer(ok.buffer));
                }
                self.buffers_used -= cost;
                self.credit_used -= cost;
            }
            SourceDone::ReadBundle { buffer, items } => self.handle_bundle(buffer, items, now),
            SourceDone::Look { id, generation, result } => {
                if !self.checked(id, generation) || !self.is_in(id, generation, Phase::Looking) {
                    return;
                }
                match result {
                    Ok(look) => self.handle_look(id, look, now),
                    Err(failure) => self.fail_file(id, failure),
                }
            }
            SourceDone::HashFile { id, generation, result } => {
                if !self.checked(id, generation) || !self.is_in(id, generation, Phase::Hashing) {
                    return;
                }
                match result {
                    Ok(root) if self.files.get(&id).and_then(|f| f.digest.root()) == Some(root) => {
                        self.seal(id)
                    }
                    Ok(_) => self.changed(id, None),
                    Err(failure) => self.fail_file(id, failure),
                }
            }
            SourceDone::Verify { id, generation, result } => {
                if !self.is_in(id, generation, Phase::Verifying) {
                    return;
                }
                match result {
                    Ok(true) => self.believe_held(id),
                    Ok(false) => {
                        // Same size and mtime, other content: start it afresh under the next generation.
                        let Some(file) = self.files.get_mut(&id) else { return };
                        let message =
                            Message::Withdraw { id, generation: file.generation, retry: true, failure: None };
                        file.generation = Generation(file.generation.0 + 1);
                        file.held.clear();
                        file.phase = Phase::Refreshing;
                        let generation = file.generation;
                        self.unsealed -= 1;
                        self.refreshing += 1;
                        self.actions.push_back(SourceAction::Send(message));
                        self.actions.push_back(SourceAction::Submit(SourceOp::Refresh { id, generation }));
                    }
                    Err(failure) => self.fail_file(id, failure),
                }
            }
            SourceDone::Refresh { id, generation, result } => {
                if !self.is_in(id, generation, Phase::Refreshing) {
                    return;
                }
                match result {
                    Ok((fingerprint, meta)) => self.announce_again(id, fingerprint, meta),
                    Err(failure) => self.fail_file(id, failure),
                }
            }
        }
    }

    fn is_in(&self, id: FileId, generation: Generation, phase: Phase) -> bool {
        self.files.get(&id).is_some_and(|f| f.generation == generation && f.phase == phase)
    }

    fn handle_look(&mut self, id: FileId, look: Look, now: Time) {
        let Some(file) = self.files.get_mut(&id) else { return };
        match look {
            Look::Same => self.seal(id),
            Look::Recent { wait } => {
                self.looks.insert((now.after(wait), id), file.generation);
            }
            Look::MetaOnly => {
                file.phase = Phase::Hashing;
                file.checking = true;
                let op = SourceOp::HashFile { id, generation: file.generation };
                self.actions.push_back(SourceAction::Submit(op));
            }
            Look::Changed => self.changed(id, None),
        }
    }

    fn seal(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        file.phase = Phase::Sealed;
        self.unsealed -= 1;
        self.sealed.push((id, file.generation, file.pass));
        if self.sealed.len() >= ITEMS_MAX {
            self.flush_sealed();
        }
    }

    fn handle_bundle(
        &mut self,
        buffer: BufferId,
        items: Vec<(BundleFile, Result<crate::transfer::op::BundleOk, Failure>)>,
        now: Time,
    ) {
        self.reads -= 1;
        let asked: u64 = items.iter().map(|(file, _)| u64::from(file.size)).sum();
        let mut entries = Vec::with_capacity(items.len());
        for (BundleFile { id, generation, size }, result) in items {
            let sending = self.is_in(id, generation, Phase::Sending);
            match result {
                // Its payload lies in the buffer, so it must be in the frame: the sink drops what it does
                // not want.
                Ok(ok) if ok.look != Look::Changed => {
                    let mut pass = 0;
                    if let Some(file) = self.files.get_mut(&id).filter(|_| sending) {
                        file.reads -= 1;
                        pass = file.pass;
                        let _ = file.digest.insert(0, u64::from(size), ok.root);
                    }
                    entries.push(DataEntry {
                        id,
                        generation,
                        offset: 0,
                        len: size,
                        root: true,
                        hole: false,
                        tail: true,
                        sealed: sending && ok.look == Look::Same,
                        pass,
                        digest: DigestKind::Blake3,
                        cvs: vec![ok.root],
                    });
                    if let Some(file) = self.files.get_mut(&id).filter(|_| sending) {
                        if ok.look == Look::Same {
                            file.phase = Phase::Sealed;
                            self.unsealed -= 1;
                        } else {
                            file.phase = Phase::Looking;
                            self.handle_look(id, ok.look, now);
                        }
                    }
                }
                Ok(_) if sending => self.changed(id, None),
                Err(failure) if sending && failure.stage == Stage::Changed => self.changed(id, Some(failure)),
                Err(failure) if sending => self.fail_file(id, failure),
                Ok(_) | Err(_) => {}
            }
        }
        // The frame may be shorter than what was asked: its credit is too, its buffer is not.
        let asked_cost = credit_cost(asked);
        if entries.is_empty() || self.stopping {
            self.buffers_used -= asked_cost;
            self.credit_used -= asked_cost;
            self.actions.push_back(SourceAction::FreeBuffer(buffer));
            return;
        }
        let header = DataHeader { entries };
        let cost = credit_cost(header.payload_len());
        self.credit_used -= asked_cost - cost;
        self.frames.push_back(Ready { header, buffer: Some(buffer), cost, held: asked_cost });
    }

    /// The next thing to do, or `None` until the next event.
    pub fn poll_action(&mut self) -> Option<SourceAction> {
        if self.actions.is_empty() && !self.finished {
            self.flush_announcements();
            self.flush_sealed();
            self.dispatch();
            self.schedule();
            self.end_if_over();
            self.check_streams();
        }
        self.actions.pop_front()
    }

    fn flush_announcements(&mut self) {
        if !self.announce.is_empty() {
            self.announce_bytes = 0;
            let entries = std::mem::take(&mut self.announce);
            self.actions.push_back(SourceAction::Send(Message::Announce(entries)));
        }
        if !self.dir_ends.is_empty() {
            let dirs = std::mem::take(&mut self.dir_ends);
            self.actions.push_back(SourceAction::Send(Message::DirEnd(dirs)));
        }
    }

    fn flush_sealed(&mut self) {
        if !self.sealed.is_empty() {
            let sealed = std::mem::take(&mut self.sealed);
            self.actions.push_back(SourceAction::Send(Message::Sealed(sealed)));
        }
    }

    /// Gives finished reads to free streams.
    fn dispatch(&mut self) {
        while !self.frames.is_empty() {
            let Some(stream) = self.streams.free() else { return };
            let Ready { header, buffer, cost, held } = self.frames.pop_front().expect("not empty");
            self.counts.payload += header.payload_len();
            self.streams.push(stream, &header, cost, held);
            self.actions.push_back(SourceAction::SendData { stream, header, buffer });
        }
    }

    /// Starts reads while a grant, a slot and a buffer can be had.
    fn schedule(&mut self) {
        if self.stopping {
            return;
        }
        while self.reads < self.config.reads_max {
            let small_first = self.prefer_small || self.large.is_empty();
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
        if walked || self.retries.len() >= self.config.entries_max as usize / 2 {
            for id in std::mem::take(&mut self.retries) {
                let Some(file) = self.files.get_mut(&id) else { continue };
                file.phase = Phase::Refreshing;
                self.refreshing += 1;
                file.generation = Generation(file.generation.0 + 1);
                let op = SourceOp::Refresh { id, generation: file.generation };
                self.actions.push_back(SourceAction::Submit(op));
            }
        }
    }

    fn room(&self, len: u64) -> bool {
        let cost = credit_cost(len);
        self.credit_used + cost <= self.credit && self.buffers_used + cost <= self.config.memory
    }

    fn take(&mut self, len: u64) {
        let cost = credit_cost(len);
        self.credit_used += cost;
        self.buffers_used += cost;
        self.reads += 1;
    }

    fn read_object(&mut self) -> bool {
        while let Some(&id) = self.large.front() {
            let ready = |f: &&mut File| f.phase == Phase::Sending && f.queue == Queue::Large;
            let Some(file) = self.files.get_mut(&id).filter(ready) else {
                self.large.pop_front();
                continue;
            };
            let len = u64::from(file.object_size).min(file.size());
            if !self.room(len) {
                return false;
            }
            let file = self.files.get_mut(&id).expect("it is there");
            let Some((offset, len)) = file.next_object() else {
                file.queue = Queue::None;
                self.large.pop_front();
                continue;
            };
            file.reads += 1;
            if !file.has_unread() {
                file.queue = Queue::None;
                self.large.pop_front();
            }
            let file = &self.files[&id];
            let tail = offset + u64::from(len) == file.size();
            let generation = file.generation;
            let op = SourceOp::Read { id, generation, offset, len, tail, whole: tail && offset == 0 };
            self.take(u64::from(len));
            self.actions.push_back(SourceAction::Submit(op));
            return true;
        }
        false
    }

    fn read_bundle(&mut self) -> bool {
        let plenty = self.small.len() >= BUNDLE_ENTRIES_MIN || self.small_bytes >= BUNDLE_LEN_MAX / 2;
        let more_will_come = self.totals.is_none() && self.wants_entries();
        if self.small.is_empty() || (!plenty && more_will_come && self.reads > 0) {
            return false;
        }
        let mut files = Vec::new();
        let mut bytes = 0;
        while let Some(&id) = self.small.front() {
            let waits = self.files.get_mut(&id).filter(|f| f.queue == Queue::Small);
            let Some(file) = waits else {
                self.small.pop_front();
                continue;
            };
            if file.phase != Phase::Sending {
                // A read that was under way when it was queued again has served it.
                file.queue = Queue::None;
                self.small_bytes -= file.size();
                self.small.pop_front();
                continue;
            }
            let size = file.size();
            let full =
                files.len() >= BUNDLE_ENTRIES_MAX || (!files.is_empty() && bytes + size > BUNDLE_LEN_MAX);
            if full || !self.room(bytes + size) {
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
        self.take(bytes);
        self.actions.push_back(SourceAction::Submit(SourceOp::ReadBundle { files }));
        true
    }

    fn end_if_over(&mut self) {
        let over = self.all_sealed();
        if let Some(totals) = self.totals.filter(|_| over && !self.end_sent && !self.stopping) {
            self.flush_announcements();
            self.flush_sealed();
            self.end_sent = true;
            self.actions.push_back(SourceAction::Send(Message::End(totals)));
        }
    }
}

fn protocol(text: &str) -> Failure {
    Failure { stage: Stage::Protocol, errno: 0, text: text.into() }
}

/// What the sink may hold of a file of `size` bytes: nodes of its tree in order, none within another. Else it
/// could have the same bytes hashed thousands of times.
fn disjoint(subtrees: Vec<Subtree>, size: u64) -> Vec<Subtree> {
    let mut set = SubtreeSet::new(size);
    let mut end = 0;
    let mut keep = |s: &Subtree| {
        let fits = s.offset >= end && s.len > 0 && set.insert(s.offset, s.len, s.cv).is_ok();
        if fits {
            end = s.offset + s.len;
        }
        fits
    };
    subtrees.into_iter().filter(|s| keep(s)).collect()
}

/// Bytes of entries in one announcement, at most.
const ANNOUNCE_LEN_MAX: usize = 512 * 1024;
