//! The sink's session machine: from announced entries to files on media under their names.
//!
//! In: the source's messages, data frames whose digests the stream's thread checked, completions of
//! storage, time. Out: storage operations, messages, entries that ended.
//! Invariants: a file is published only when every object is written, its digest tree is whole and a seal
//! came after the last read; it is acknowledged only when its epoch is on media; every arriving byte was
//! granted and its buffer is granted again only when it is free.
//! Left out: target classes (one, "any", for now), holes.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use crate::digest::{Subtree, SubtreeSet, subtrees};
use crate::entry::{DEPTH_MAX, EntryKind, Fingerprint, Meta, Name, Timestamp};
use crate::ids::{BufferId, DirId, FileId, Generation, StreamId, Time};
use crate::journal::{Log, PathKey, Replayed};
use crate::transfer::op::{BundleWrite, Existing, Found, LinkItem, LookupItem, SinkDone, SinkFile, SinkOp};
use crate::transfer::{Ended, SessionEnd, resends_max};
use crate::wire::{
    Announced, DataEntry, DataHeader, DoneItem, Extent, Failure, FileState, ITEMS_MAX, Message, Outcome,
    Policy, SUBTREES_MAX, Stage, Totals, credit_cost,
};

mod dirs;
mod epoch;

use dirs::Dirs;
use epoch::Epochs;

/// What the sink machine must know before it starts.
#[derive(Clone, Debug)]
pub struct SinkConfig {
    pub policy: Policy,
    /// Payload bytes in buffers, at most: what is granted.
    pub memory: u64,
    /// Entries announced and not yet ended, at most.
    pub entries_max: u32,
    /// Names may stand at the destination already: look each up and tell the source.
    pub wait: bool,
    /// Files with open descriptors, at most; more frames wait.
    pub files_open_max: u32,
    /// The tag in the names of this session's temporaries.
    pub tag: u32,
    /// The names that may be announced in the destination root; `None`: any.
    pub names: Option<HashSet<Name>>,
}

/// What the journal of an earlier run knew, and the log that this run goes on writing.
pub struct Resume {
    pub replayed: Replayed,
    pub log: Log,
    pub next_slot: u32,
}

/// What the driver must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SinkAction {
    /// Tell the engine's tree this directory before any operation in it.
    RegisterDir {
        id: DirId,
        parent: DirId,
        name: Name,
    },
    /// The engine's tree may forget this directory.
    ForgetDir {
        id: DirId,
    },
    Submit(SinkOp),
    Send(Message),
    FreeBuffer(BufferId),
    CloseStream(StreamId),
    EntryEnded {
        id: FileId,
        parent: DirId,
        name: Name,
        end: Ended,
        root: Option<[u8; 32]>,
        bytes: u64,
    },
    /// The source reports something that was never announced.
    Trouble {
        path: Box<[u8]>,
        failure: Failure,
    },
    Finished(SessionEnd),
}

/// Counters for progress and report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkCounts {
    pub files: u64,
    pub bytes: u64,
    pub files_done: u64,
    pub bytes_done: u64,
    pub unchanged: u64,
    /// Payload received.
    pub payload: u64,
    /// Objects asked for again.
    pub objects_resent: u64,
    /// Payload written to storage.
    pub written: u64,
    /// The source's walk is over: `files` and `bytes` are final.
    pub walked: bool,
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Phase {
    /// What stands at the destination is being looked up.
    Looking,
    /// Objects are taken.
    Open,
    /// Handed to an epoch for publication.
    Committing,
    /// The source withdrew this generation; another comes.
    Withdrawn,
}

struct File {
    generation: Generation,
    parent: DirId,
    name: Name,
    path: PathKey,
    meta: Meta,
    fingerprint: Fingerprint,
    object_size: u32,
    phase: Phase,
    /// Everything that arrived whole, or is held from an earlier run.
    digest: SubtreeSet,
    /// What is on media.
    durable: SubtreeSet,
    /// Chaining values of objects that are being written, by the object's offset.
    writing: BTreeMap<u64, Vec<Subtree>>,
    /// Written in the open epoch.
    written: Vec<Subtree>,
    /// A temporary exists: something was written or taken over.
    has_temp: bool,
    /// Parts are held of a source version that differs in inode or ctime, and the source did not confirm
    /// them yet: until then the journal must not say that they are of the announced version.
    claimed: Option<Fingerprint>,
    /// The journal may promise parts of it.
    journaled: bool,
    /// It begins when the journal has taken back what it promised of it.
    waits_journal: bool,
    /// A commit of it is under way.
    in_commit: bool,
    writes: u32,
    pass_max: u16,
    sealed: Option<u16>,
    slot: Option<u32>,
    /// Tags under which the temporary of an earlier run may be found; the last is tried next.
    adopt: Vec<u32>,
    in_epoch: bool,
    /// A write failed for want of space: it cannot be completed in this run.
    broken: bool,
    /// Objects that arrived damaged.
    damaged: u64,
}

impl File {
    fn size(&self) -> u64 {
        self.fingerprint.size
    }
    fn sink_file(&self, id: FileId) -> SinkFile {
        SinkFile { id, parent: self.parent, name: self.name.clone(), size: self.size() }
    }
    /// It is of this generation, and the source did not withdraw it.
    fn is_of(&self, generation: Generation) -> bool {
        self.generation == generation && self.phase != Phase::Withdrawn
    }
    fn is_complete(&self) -> bool {
        self.phase == Phase::Open
            && !self.broken
            && self.digest.is_complete()
            && self.writes == 0
            && self.has_temp
            && self.sealed.is_some_and(|pass| pass >= self.pass_max)
    }
}

/// The temporary of a file that was given up: it is removed when nothing is under way on it any more.
struct Drain {
    writes: u32,
    in_commit: bool,
    /// The file ended; its directory is held until the temporary is gone.
    release: Option<DirId>,
}

struct Link {
    parent: DirId,
    name: Name,
    generation: Generation,
}

/// A data frame that waits for an announcement, a lookup or a free descriptor.
struct Frame {
    header: DataHeader,
    buffer: Option<BufferId>,
    good: Vec<bool>,
}

/// The sink of one session. One owner, no locks: feed it events, then drain [`Sink::poll_action`].
pub struct Sink {
    config: SinkConfig,
    dirs: Dirs,
    files: HashMap<FileId, File>,
    links: HashMap<FileId, Link>,
    drains: HashMap<FileId, Drain>,
    announced_max: FileId,
    resume: Replayed,
    epochs: Epochs,
    waiting: HashMap<FileId, Vec<Frame>>,
    waiting_count: u64,
    deferred: VecDeque<Frame>,
    files_open: u32,
    writes: u32,
    other_ops: u32,
    /// Credit that the frames which came have cost.
    received: u64,
    frames: BTreeMap<StreamId, u64>,
    frames_told: BTreeMap<StreamId, u64>,
    closed_streams: BTreeMap<StreamId, bool>,
    buffers: HashMap<BufferId, u64>,
    freed: u64,
    granted: u64,
    done: Vec<DoneItem>,
    states: Vec<(FileId, Generation, FileState)>,
    end: Option<Totals>,
    stop: Option<SessionEnd>,
    removing_journal: bool,
    swept: bool,
    finished: bool,
    now: Time,
    counts: SinkCounts,
    actions: VecDeque<SinkAction>,
}

impl Sink {
    /// A machine that waits for announcements and has granted nothing yet.
    pub fn new(config: SinkConfig, resume: Resume) -> Sink {
        Sink {
            dirs: Dirs::new(),
            files: HashMap::new(),
            links: HashMap::new(),
            drains: HashMap::new(),
            announced_max: FileId(0),
            resume: resume.replayed,
            epochs: Epochs::new(resume.log, resume.next_slot),
            waiting: HashMap::new(),
            waiting_count: 0,
            deferred: VecDeque::new(),
            files_open: 0,
            writes: 0,
            other_ops: 0,
            received: 0,
            frames: BTreeMap::new(),
            frames_told: BTreeMap::new(),
            closed_streams: BTreeMap::new(),
            buffers: HashMap::new(),
            freed: 0,
            granted: 0,
            done: Vec::new(),
            states: Vec::new(),
            end: None,
            stop: None,
            removing_journal: false,
            swept: false,
            finished: false,
            now: Time::default(),
            counts: SinkCounts::default(),
            actions: VecDeque::new(),
            config,
        }
    }

    /// Counters so far.
    pub fn counts(&self) -> SinkCounts {
        self.counts
    }

    /// When [`Sink::handle_tick`] is due, if nothing else happens before.
    pub fn next_deadline(&self) -> Option<Time> {
        self.epochs.deadline()
    }

    /// Time passed.
    pub fn handle_tick(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    /// Ends in good order: closes the open epoch and keeps the journal.
    pub fn stop(&mut self) {
        self.begin_stop(SessionEnd::Stopped);
    }

    fn begin_stop(&mut self, end: SessionEnd) {
        if self.stop.is_none() && !self.finished {
            self.stop = Some(end);
            let frames: Vec<Frame> =
                self.deferred.drain(..).chain(self.waiting.drain().flat_map(|(_, frames)| frames)).collect();
            self.waiting_count = 0;
            for frame in frames {
                self.free(frame.buffer);
            }
        }
    }

    /// The control stream is gone: the session closes its epoch and ends.
    pub fn handle_control_lost(&mut self, text: &str) {
        self.peer_ends(SessionEnd::Failed(protocol(text)));
    }

    /// The source ends the session: what came whole until now is worth keeping.
    fn peer_ends(&mut self, end: SessionEnd) {
        if !self.finished {
            self.take_deferred();
        }
        self.begin_stop(end);
    }

    fn violation(&mut self, text: &str) {
        let failure = protocol(text);
        self.actions.push_back(SinkAction::Send(Message::Abort(failure.clone())));
        self.begin_stop(SessionEnd::Failed(failure));
    }

    fn finish(&mut self, end: SessionEnd) {
        if !self.finished {
            self.finished = true;
            self.actions.push_back(SinkAction::Finished(end));
        }
    }

    /// A message of the source.
    pub fn handle_message(&mut self, message: Message, now: Time) {
        self.handle_tick(now);
        if self.finished {
            return;
        }
        match message {
            Message::Announce(entries) if self.stop.is_none() => self.handle_announce(entries),
            Message::DirEnd(dirs) if self.stop.is_none() => {
                for dir in dirs {
                    if !self.dirs.end(dir) {
                        return self.violation("DIR_END of a directory that is not open");
                    }
                }
            }
            Message::Sealed(items) => {
                for (id, generation, pass) in items {
                    self.seal(id, generation, pass);
                }
            }
            Message::Withdraw { id, generation, retry, failure } => {
                self.handle_withdraw(id, generation, retry, failure);
            }
            Message::Trouble { path, failure } => {
                self.actions.push_back(SinkAction::Trouble { path, failure })
            }
            Message::End(totals) => {
                self.dirs.end(DirId::ROOT);
                if self.end.replace(totals).is_some() || !self.dirs.all_ended() {
                    return self.violation("END came twice, or before the end of a directory");
                }
                self.counts.walked = true;
            }
            Message::StreamClosed { stream, .. } => self.close_stream(stream),
            Message::Stop { .. } => self.peer_ends(SessionEnd::Stopped),
            Message::Abort(failure) => self.peer_ends(SessionEnd::Failed(failure)),
            Message::Ping(n) => self.actions.push_back(SinkAction::Send(Message::Pong(n))),
            Message::Pong(_) | Message::Report(_) | Message::TargetHealth(_) => {}
            Message::Announce(_) | Message::DirEnd(_) => {}
            other => {
                let text = format!("the source sent a message that only a sink sends: {}", other.name());
                self.violation(&text);
            }
        }
    }

    fn handle_announce(&mut self, entries: Vec<Announced>) {
        let (mut lookups, mut made, mut links) = (Vec::new(), Vec::new(), Vec::new());
        for entry in entries {
            if self.files.len() + self.links.len() + self.dirs.len() > self.config.entries_max as usize {
                return self.violation("more entries announced than the limit that was agreed");
            }
            let is_file = matches!(entry.kind, EntryKind::File { .. });
            let known = self.files.contains_key(&entry.id) || self.links.contains_key(&entry.id);
            if is_file && !known && entry.generation > Generation(0) && entry.id <= self.announced_max {
                // It failed here, and the source had not heard of that yet.
                continue;
            }
            let Some(path) = self.dirs.path(entry.parent) else {
                return self.violation("an entry in a directory that is not open");
            };
            let path = path.child(&entry.name);
            let known = self.files.get(&entry.id);
            let again = known.filter(|f| f.phase == Phase::Withdrawn && f.generation < entry.generation);
            // The file holds its directory open: it must stay the same one.
            let moved = again.is_some_and(|f| f.parent != entry.parent || f.name != entry.name);
            let again = again.is_some();
            if moved || (again && !matches!(entry.kind, EntryKind::File { .. })) {
                return self.violation("a file announced again as something else");
            }
            if entry.id <= self.announced_max && !again {
                return self.violation("an entry announced twice, or out of order");
            }
            if !again && self.dirs.is_ended(entry.parent) {
                return self.violation("an entry in a directory that is not open any more");
            }
            let names = self.config.names.as_ref().filter(|_| entry.parent == DirId::ROOT);
            if names.is_some_and(|names| !names.contains(&entry.name)) {
                return self.violation("an entry whose name is not among the sources");
            }
            self.announced_max = self.announced_max.max(entry.id);
            let Announced { id, generation, parent, name, meta, kind } = entry;
            match kind {
                EntryKind::Dir => {
                    if again || self.dirs.depth(parent) >= DEPTH_MAX {
                        return self.violation("a directory deeper than the limit");
                    }
                    self.dirs.add(id.as_dir(), parent, name.clone(), path, meta);
                    self.actions.push_back(SinkAction::RegisterDir { id: id.as_dir(), parent, name });
                    made.push(id.as_dir());
                }
                EntryKind::Symlink { target } => {
                    self.dirs.hold(parent);
                    let file = SinkFile { id, parent, name: name.clone(), size: 0 };
                    let (owner, no_replace) = (self.config.policy.owner, self.config.policy.no_clobber);
                    links.push(LinkItem { file, target, meta, owner, no_replace });
                    self.links.insert(id, Link { parent, name, generation });
                }
                EntryKind::File { fingerprint, object_size } => {
                    if again {
                        let old = self.files.remove(&id).expect("it is known");
                        self.counts.bytes = self.counts.bytes.saturating_sub(old.size());
                    } else {
                        self.dirs.hold(parent);
                        self.counts.files += 1;
                    }
                    // A peer's numbers: their sum may be anything.
                    self.counts.bytes = self.counts.bytes.saturating_add(fingerprint.size);
                    let partial = self.resume.partials.get(&path);
                    let adopt = match partial {
                        Some(partial) if partial.fingerprint.same_content(&fingerprint) => {
                            // Only a later run can have taken the temporary over; what an earlier one
                            // left under this name is not what the journal speaks of.
                            let tags = &self.resume.tags;
                            let own = tags.iter().position(|tag| *tag == partial.tag);
                            let later = own.map_or(&[][..], |own| &tags[own + 1..]);
                            later.iter().copied().chain([partial.tag]).collect()
                        }
                        _ => Vec::new(),
                    };
                    let mut file = File {
                        generation,
                        parent,
                        name,
                        path,
                        meta,
                        fingerprint,
                        object_size,
                        phase: Phase::Looking,
                        digest: SubtreeSet::new(fingerprint.size),
                        durable: SubtreeSet::new(fingerprint.size),
                        writing: BTreeMap::new(),
                        written: Vec::new(),
                        has_temp: false,
                        claimed: None,
                        journaled: false,
                        // A crash must not leave the new temporary under an old promise.
                        waits_journal: again,
                        in_commit: false,
                        writes: 0,
                        pass_max: 0,
                        sealed: None,
                        slot: None,
                        adopt,
                        in_epoch: false,
                        broken: false,
                        damaged: 0,
                    };
                    if again {
                        self.files.insert(id, file);
                        self.epochs.begin_after(id, generation);
                        continue;
                    }
                    if self.config.wait {
                        let adopt = file.adopt.pop();
                        lookups.push(LookupItem { file: file.sink_file(id), adopt });
                    } else {
                        file.phase = Phase::Open;
                    }
                    self.files.insert(id, file);
                    self.wake(id);
                }
            }
        }
        if !made.is_empty() {
            self.submit(SinkOp::MakeDirs { dirs: made });
        }
        if !lookups.is_empty() {
            self.submit(SinkOp::Lookup { items: lookups });
        }
        if !links.is_empty() {
            self.submit(SinkOp::MakeLinks { items: links });
        }
    }

    fn submit(&mut self, op: SinkOp) {
        self.other_ops += 1;
        self.actions.push_back(SinkAction::Submit(op));
    }

    /// Frames that waited for this file are taken up.
    fn wake(&mut self, id: FileId) {
        if self.files.get(&id).is_none_or(|f| f.phase != Phase::Looking) {
            for frame in self.waiting.remove(&id).unwrap_or_default() {
                self.waiting_count -= 1;
                self.deferred.push_back(frame);
            }
        }
    }

    fn handle_withdraw(&mut self, id: FileId, generation: Generation, retry: bool, failure: Option<Failure>) {
        // A file that was withdrawn before may be given up under a generation that was never announced.
        let names = |f: &&mut File| {
            f.generation == generation || (f.phase == Phase::Withdrawn && f.generation < generation)
        };
        let Some(file) = self.files.get_mut(&id).filter(names) else { return };
        if file.phase == Phase::Committing {
            // A seal was sent for it before, so the source may not take it back.
            return self.violation("a sealed file was withdrawn");
        }
        if file.phase == Phase::Looking && self.config.wait {
            // The answer of the lookup would be taken for the next generation's.
            return self.violation("a file was withdrawn before its state was told");
        }
        file.phase = Phase::Withdrawn;
        self.discard(id);
        if !retry {
            let failure = failure.unwrap_or_else(|| protocol("the source gave it up"));
            self.end_file(id, Ended::Failed(failure), None);
        }
    }

    /// Removes what was written of a file and tells the journal.
    fn discard(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        file.written.clear();
        file.digest = SubtreeSet::new(file.size());
        file.durable = SubtreeSet::new(file.size());
        let promised = self.resume.partials.remove(&file.path).is_some() || file.journaled;
        file.claimed = None;
        file.journaled = false;
        let slot = file.slot.take();
        if promised {
            let (path, fingerprint, object_size) = (file.path, file.fingerprint, file.object_size);
            self.epochs.withdraw(slot, path, fingerprint, object_size, self.config.tag);
        }
        let Some(file) = self.files.get_mut(&id) else { return };
        file.writing.clear();
        if file.has_temp {
            file.has_temp = false;
            self.files_open -= 1;
            let writes = std::mem::take(&mut file.writes);
            let in_commit = std::mem::take(&mut file.in_commit);
            self.drains.insert(id, Drain { writes, in_commit, release: None });
            self.check_drain(id);
        }
    }

    /// Removes the temporary of a file that was given up, when its last write and its commit are over.
    fn check_drain(&mut self, id: FileId) {
        if self.drains.get(&id).is_some_and(|d| d.writes == 0 && !d.in_commit) {
            self.submit(SinkOp::Discard { id });
        }
    }

    /// The temporary is gone; the next generation of the file may begin.
    fn drained(&mut self, id: FileId) {
        let Some(drain) = self.drains.remove(&id) else { return };
        if let Some(dir) = drain.release {
            self.dirs.release(dir);
        }
        if self.files.get(&id).is_some_and(|f| f.phase == Phase::Looking && !f.waits_journal) {
            self.look_up_or_open(id);
        }
    }

    fn look_up_or_open(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        if self.config.wait {
            let adopt = file.adopt.pop();
            let item = LookupItem { file: file.sink_file(id), adopt };
            self.submit(SinkOp::Lookup { items: vec![item] });
        } else {
            file.phase = Phase::Open;
            self.wake(id);
        }
    }

    fn seal(&mut self, id: FileId, generation: Generation, pass: u16) {
        let Some(file) = self.files.get_mut(&id).filter(|f| f.generation == generation) else { return };
        file.sealed = file.sealed.max(Some(pass));
        self.confirm(id);
        self.try_complete(id);
    }

    /// The source goes on with a file: what is held of it, it has compared.
    fn confirm(&mut self, id: FileId) {
        let now = self.now;
        let Some(file) = self.files.get_mut(&id).filter(|f| f.claimed.is_some()) else { return };
        file.claimed = None;
        // The journal hears of it under a new slot.
        if file.slot.take().is_some() {
            file.in_epoch = true;
            self.epochs.add_dirty(id, 0, now);
        }
    }

    fn try_complete(&mut self, id: FileId) {
        if let Some(file) = self.files.get_mut(&id).filter(|f| f.is_complete()) {
            file.phase = Phase::Committing;
            file.in_epoch = true;
            self.epochs.add_complete(id, self.now);
        }
    }

    /// Ends a file: it is over and forgotten.
    fn end_file(&mut self, id: FileId, end: Ended, root: Option<[u8; 32]>) {
        let Some(file) = self.files.remove(&id) else { return };
        if file.has_temp {
            self.files_open -= 1;
        }
        self.counts.files_done += 1;
        self.counts.bytes_done = self.counts.bytes_done.saturating_add(file.size());
        if end == Ended::Unchanged {
            self.counts.unchanged += 1;
        }
        match self.drains.get_mut(&id) {
            Some(drain) => drain.release = Some(file.parent),
            None => self.dirs.release(file.parent),
        }
        let bytes = file.size();
        let (parent, name) = (file.parent, file.name);
        self.actions.push_back(SinkAction::EntryEnded { id, parent, name, end, root, bytes });
        for frame in self.waiting.remove(&id).unwrap_or_default() {
            self.waiting_count -= 1;
            self.deferred.push_back(frame);
        }
    }

    /// Ends a file that failed here and tells the source.
    fn fail_file(&mut self, id: FileId, failure: Failure) {
        if self.is_fatal(&failure) {
            return;
        }
        let Some(file) = self.files.get(&id) else { return };
        let generation = file.generation;
        self.discard(id);
        self.done.push(DoneItem { id, generation, outcome: Outcome::Failed(failure.clone()) });
        self.end_file(id, Ended::Failed(failure), None);
    }

    /// A full or read-only file system ends the run; what is durable stays resumable.
    fn is_fatal(&mut self, failure: &Failure) -> bool {
        const ENOSPC: i32 = 28;
        const EROFS: i32 = 30;
        const EDQUOT: i32 = 122;
        if !matches!(failure.errno, ENOSPC | EROFS | EDQUOT) {
            return false;
        }
        if self.stop.is_none() {
            let missing = self.counts.bytes.saturating_sub(self.counts.bytes_done.max(self.counts.written));
            let text = match failure.errno {
                EROFS => failure.text.clone(),
                _ => format!(
                    "{}; at least {missing} more bytes are needed; free space and run the same command again",
                    failure.text
                )
                .into(),
            };
            let failure = Failure { text, ..failure.clone() };
            self.begin_stop(SessionEnd::Failed(failure));
        }
        true
    }

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
        let payload = header.payload_len();
        *self.frames.entry(stream).or_default() += 1;
        self.counts.payload += payload;
        let cost = credit_cost(payload);
        if let Some(buffer) = buffer {
            self.buffers.insert(buffer, cost);
        }
        if self.stop.is_some() || self.finished {
            return self.free(buffer);
        }
        self.received += cost;
        if self.received > self.granted {
            // The pool bounds payload; this bounds frames without any.
            self.free(buffer);
            return self.violation("more data than was granted");
        }
        self.deferred.push_back(Frame { header, buffer, good });
    }

    /// A data stream ended after `frames` data frames.
    pub fn handle_stream_lost(&mut self, stream: StreamId, frames: u64) {
        let told = self.closed_streams.insert(stream, true);
        if told != Some(true) {
            self.actions.push_back(SinkAction::Send(Message::StreamClosed { stream, frames }));
        }
    }

    /// The source lost it; its receiver is closed and then says how far it got.
    fn close_stream(&mut self, stream: StreamId) {
        if self.closed_streams.contains_key(&stream) {
            return;
        }
        self.closed_streams.insert(stream, false);
        self.actions.push_back(SinkAction::CloseStream(stream));
    }

    fn free(&mut self, buffer: Option<BufferId>) {
        if let Some(buffer) = buffer {
            self.freed += self.buffers.remove(&buffer).unwrap_or(0);
            self.actions.push_back(SinkAction::FreeBuffer(buffer));
        }
    }

    /// Takes up one frame: writes what is wanted, drops the rest.
    fn take_frame(&mut self, frame: Frame) {
        // An entry that is not announced yet (its announcement is on another stream), or is being looked up.
        for entry in &frame.header.entries {
            let early = match self.files.get(&entry.id) {
                None => entry.id > self.announced_max,
                Some(file) => file.generation < entry.generation || file.phase == Phase::Looking,
            };
            if early {
                self.waiting_count += 1;
                self.waiting.entry(entry.id).or_default().push(frame);
                return;
            }
        }
        if frame.buffer.is_none() {
            self.freed += credit_cost(frame.header.payload_len());
        }
        let mut start = 0;
        let mut bundle = Vec::new();
        let mut object = None;
        let mut resend = Vec::new();
        for (entry, good) in frame.header.entries.iter().zip(&frame.good) {
            let at = start;
            start += entry.len;
            let Some(file) = self.files.get_mut(&entry.id) else { continue };
            if file.generation != entry.generation || file.phase != Phase::Open {
                continue;
            }
            let len = u64::from(entry.len);
            // A whole file is one object; over parts that are being written it could only be somebody's trick.
            let over_parts = *good && entry.root && file.writes > 0 && !file.digest.covers(0, len);
            if !fits(file, entry) || over_parts {
                self.violation("an object that does not fit its file");
                break;
            }
            if !good {
                file.damaged += 1;
                if file.damaged > resends_max(file.size(), file.object_size) {
                    let text =
                        "too much of it arrived damaged; look for bad memory or a broken network device";
                    self.fail_file(entry.id, Failure { stage: Stage::Digest, errno: 0, text: text.into() });
                    continue;
                }
                self.counts.objects_resent += 1;
                resend.push(Extent { id: entry.id, generation: entry.generation, offset: entry.offset, len });
                continue;
            }
            file.pass_max = file.pass_max.max(entry.pass);
            self.confirm(entry.id);
            let Some(file) = self.files.get_mut(&entry.id) else { continue };
            if entry.sealed {
                file.sealed = file.sealed.max(Some(entry.pass));
            }
            let duplicate =
                if file.size() == 0 { file.has_temp } else { file.digest.covers(entry.offset, len) };
            if duplicate {
                self.try_complete(entry.id);
                continue;
            }
            if !take_digest(file, entry) {
                self.violation("chaining values that do not fit the file's tree");
                break;
            }
            if !file.has_temp {
                file.has_temp = true;
                self.files_open += 1;
            }
            file.writes += 1;
            let sink_file = file.sink_file(entry.id);
            if entry.root {
                bundle.push(BundleWrite { file: sink_file, start: at });
            } else {
                object = Some((sink_file, entry.offset, entry.len, at));
            }
        }
        if !resend.is_empty() {
            self.actions.push_back(SinkAction::Send(Message::Resend(resend)));
        }
        let buffer = frame.buffer;
        if !bundle.is_empty() {
            self.writes += 1;
            let buffer = buffer.unwrap_or(NO_BUFFER);
            self.actions.push_back(SinkAction::Submit(SinkOp::WriteBundle { buffer, items: bundle }));
        } else if let (Some((file, offset, len, start)), Some(buffer)) = (object, buffer) {
            self.writes += 1;
            self.actions.push_back(SinkAction::Submit(SinkOp::Write { file, offset, len, buffer, start }));
        } else {
            self.free(buffer);
        }
    }

    /// A completion of the storage engine.
    pub fn handle_done(&mut self, done: SinkDone, now: Time) {
        self.handle_tick(now);
        match done {
            SinkDone::Write { id, offset, len, buffer, result } => {
                self.writes -= 1;
                self.buffer_freed(buffer);
                self.handle_written(id, offset, u64::from(len), result);
            }
            SinkDone::WriteBundle { buffer, results } => {
                self.writes -= 1;
                self.buffer_freed(buffer);
                for (id, result) in results {
                    let size = self.files.get(&id).map_or(0, |f| f.size());
                    self.handle_written(id, 0, size, result);
                }
            }
            SinkDone::Lookup { results } => {
                self.other_ops -= 1;
                for (id, result) in results {
                    self.handle_found(id, result);
                }
            }
            SinkDone::MakeDirs { results } => {
                self.other_ops -= 1;
                for (dir, result) in results {
                    if let Err(failure) = result
                        && !self.is_fatal(&failure)
                    {
                        self.dirs.fail(dir, failure);
                    }
                }
            }
            SinkDone::MakeLinks { results } => {
                self.other_ops -= 1;
                for (id, result) in results {
                    match result {
                        Ok(()) => self.epochs.add_link(id, self.now),
                        Err(failure) => {
                            if !self.is_fatal(&failure) {
                                self.end_link(id, Err(failure));
                            }
                        }
                    }
                }
            }
            SinkDone::FinishDirs { results } => {
                self.other_ops -= 1;
                for (dir, result) in results {
                    self.finish_dir(dir, result);
                }
            }
            SinkDone::Discard { id } => {
                self.other_ops -= 1;
                self.drained(id);
            }
            SinkDone::RemoveJournal { result } => match result {
                Ok(()) => {
                    self.actions.push_back(SinkAction::Send(Message::Complete));
                    self.finish(SessionEnd::Complete);
                }
                Err(failure) => self.begin_stop(SessionEnd::Failed(failure)),
            },
            SinkDone::Commit { results } => self.epoch_committed(results),
            SinkDone::SyncDirs { results } => self.epoch_dirs_synced(results),
            SinkDone::Journal { result } => self.epoch_journaled(result),
        }
    }

    fn buffer_freed(&mut self, buffer: BufferId) {
        self.freed += self.buffers.remove(&buffer).unwrap_or(0);
    }

    fn handle_written(&mut self, id: FileId, offset: u64, len: u64, result: Result<(), Failure>) {
        if let Some(drain) = self.drains.get_mut(&id).filter(|d| d.writes > 0) {
            drain.writes -= 1;
            return self.check_drain(id);
        }
        let Some(file) = self.files.get_mut(&id).filter(|f| f.writes > 0) else { return };
        file.writes -= 1;
        let mut subtrees = file.writing.remove(&offset);
        if let Err(failure) = result {
            file.broken = true;
            return self.fail_file(id, failure);
        }
        self.counts.written += len;
        // A whole file whose seal is still to come (its ctime is young, say) is made durable with its epoch
        // like a part of one, so that an end before the seal does not cost it.
        let unsealed = file.sealed.is_none_or(|pass| pass < file.pass_max);
        if let Some(root) = file.digest.root().filter(|_| unsealed && len > 0 && len == file.size()) {
            subtrees = Some(vec![Subtree { offset: 0, len, cv: root }]);
        }
        if let Some(subtrees) = subtrees {
            file.written.extend(subtrees);
            file.in_epoch = true;
            self.epochs.add_dirty(id, len, self.now);
        }
        self.try_complete(id);
    }

    fn handle_found(&mut self, id: FileId, result: Result<Found, Failure>) {
        let Some(file) = self.files.get_mut(&id).filter(|f| f.phase == Phase::Looking) else { return };
        let found = match result {
            Ok(found) => found,
            Err(failure) => return self.fail_file(id, failure),
        };
        let policy = self.config.policy;
        let verdict = match found.existing {
            Existing::Dir => {
                let text = "a directory stands there; nothing was removed";
                let failure = Failure { stage: Stage::Create, errno: 21, text: text.into() };
                return self.fail_file(id, failure);
            }
            Existing::Nothing => None,
            Existing::Other => policy.no_clobber.then_some(Ended::Skipped),
            Existing::File { size, mtime, grain } => {
                let fits = size == file.size() && same_time(file.fingerprint.mtime, mtime, grain);
                let finished_before =
                    self.resume.done.get(&file.path).is_some_and(|mark| mark.matches(&file.fingerprint));
                if fits && (!policy.force || finished_before) {
                    Some(Ended::Unchanged)
                } else if policy.no_clobber || (policy.update && mtime > file.fingerprint.mtime) {
                    Some(Ended::Skipped)
                } else {
                    None
                }
            }
        };
        let generation = file.generation;
        if let Some(end) = verdict {
            if found.adopted {
                file.has_temp = true;
                self.files_open += 1;
                self.discard(id);
            }
            let state = if end == Ended::Skipped { FileState::Skipped } else { FileState::Unchanged };
            self.states.push((id, generation, state));
            return self.end_file(id, end, None);
        }
        if found.adopted {
            file.has_temp = true;
            self.files_open += 1;
            // Two entries of one name, and the other took it.
            let partial = self.resume.partials.remove(&file.path);
            let verify = partial.as_ref().is_none_or(|partial| partial.fingerprint != file.fingerprint);
            file.claimed = partial.as_ref().filter(|_| verify).map(|partial| partial.fingerprint);
            file.journaled = true;
            let subtrees: Vec<Subtree> =
                partial.iter().flat_map(|partial| partial.subtrees.iter()).take(SUBTREES_MAX).collect();
            for subtree in &subtrees {
                let _ = file.digest.insert(subtree.offset, subtree.len, subtree.cv);
                let _ = file.durable.insert(subtree.offset, subtree.len, subtree.cv);
            }
            file.in_epoch = true;
            self.epochs.add_dirty(id, 0, self.now);
            self.counts.written += file.durable.covered();
            self.states.push((id, generation, FileState::Held { subtrees, verify }));
        } else if let Some(tag) = file.adopt.pop() {
            let item = LookupItem { file: file.sink_file(id), adopt: Some(tag) };
            return self.submit(SinkOp::Lookup { items: vec![item] });
        } else if self.resume.partials.contains_key(&file.path) {
            // The journal promises parts of it that cannot be found. A new temporary would be taken for them
            // by the next run, so the journal takes it back before one is made.
            file.waits_journal = true;
            self.discard(id);
            return self.epochs.begin_after(id, generation);
        } else {
            self.states.push((id, generation, FileState::Fresh));
        }
        let file = self.files.get_mut(&id).expect("it is there");
        file.phase = Phase::Open;
        self.wake(id);
    }

    /// The journal promises nothing of this file any more: it begins afresh.
    fn begin(&mut self, id: FileId, generation: Generation) {
        let waits = |f: &&mut File| f.generation == generation && f.phase == Phase::Looking;
        let Some(file) = self.files.get_mut(&id).filter(waits) else { return };
        file.waits_journal = false;
        if self.stop.is_none() && !self.drains.contains_key(&id) {
            self.look_up_or_open(id);
        }
    }

    fn end_link(&mut self, id: FileId, result: Result<(), Failure>) {
        let Some(link) = self.links.remove(&id) else { return };
        self.dirs.release(link.parent);
        let (outcome, end) = ends(result);
        self.done.push(DoneItem { id, generation: link.generation, outcome });
        let (parent, name) = (link.parent, link.name);
        self.actions.push_back(SinkAction::EntryEnded { id, parent, name, end, root: None, bytes: 0 });
    }

    fn finish_dir(&mut self, dir: DirId, result: Result<(), Failure>) {
        let Some(gone) = self.dirs.remove(dir) else { return };
        let result = match gone.failure {
            Some(failure) => Err(failure),
            None => result,
        };
        let (outcome, end) = ends(result);
        let id = dir.as_file();
        self.done.push(DoneItem { id, generation: Generation(0), outcome });
        let (parent, name) = (gone.parent, gone.name);
        self.actions.push_back(SinkAction::EntryEnded { id, parent, name, end, root: None, bytes: 0 });
        self.actions.push_back(SinkAction::ForgetDir { id: dir });
    }

    /// The next thing to do, or `None` until the next event.
    pub fn poll_action(&mut self) -> Option<SinkAction> {
        if self.actions.is_empty() && !self.finished {
            self.take_deferred();
            self.run_epochs();
            // An epoch with nothing to write ends at once, and files may have begun with it.
            self.take_deferred();
            self.finish_dirs();
            self.flush();
            self.end_if_over();
        }
        self.actions.pop_front()
    }

    fn take_deferred(&mut self) {
        // No new entry comes after the end, so data of an unknown one would wait for ever. Its id may also be one
        // that the announcements left out.
        if self.end.is_some()
            && self.stop.is_none()
            && self.waiting.keys().any(|id| !self.files.contains_key(id))
        {
            return self.violation("data of a file that was never announced");
        }
        while self.stop.is_none() {
            // Small files hold a descriptor each until their epoch is over.
            if self.files_open >= self.config.files_open_max && !self.epochs.is_idle() {
                break;
            }
            let Some(frame) = self.deferred.pop_front() else { break };
            self.take_frame(frame);
        }
    }

    fn finish_dirs(&mut self) {
        if self.stop.is_some() {
            return;
        }
        let dirs = self.dirs.take_finished(ITEMS_MAX);
        if !dirs.is_empty() {
            self.submit(SinkOp::FinishDirs { durable: self.config.policy.durable, dirs });
        }
    }

    fn flush(&mut self) {
        while !self.states.is_empty() {
            // A state that lists many subtrees is long; few files have one.
            let mut subtrees = 0;
            let fits = |(_, _, state): &&(FileId, Generation, FileState)| {
                if let FileState::Held { subtrees: held, .. } = state {
                    subtrees += held.len();
                }
                subtrees <= SUBTREES_MAX
            };
            let count = self.states.iter().take(STATES_PER_MESSAGE).take_while(fits).count().max(1);
            let rest = self.states.split_off(count);
            let states = std::mem::replace(&mut self.states, rest);
            self.actions.push_back(SinkAction::Send(Message::State(states)));
        }
        while !self.done.is_empty() {
            let rest = self.done.split_off(self.done.len().min(DONE_PER_MESSAGE));
            let items = std::mem::replace(&mut self.done, rest);
            self.actions.push_back(SinkAction::Send(Message::Done(items)));
        }
        let owed = self.config.memory + self.freed - self.granted;
        if owed >= (self.config.memory / 8).max(1) && self.stop.is_none() {
            self.granted += owed;
            self.actions.push_back(SinkAction::Send(Message::Grant { class: 0, total: self.granted }));
            if self.frames != self.frames_told {
                self.frames_told = self.frames.clone();
                let frames = self.frames.iter().map(|(stream, count)| (*stream, *count)).collect();
                let message = Message::Written { bytes: self.counts.written, frames };
                self.actions.push_back(SinkAction::Send(message));
            }
        }
    }

    fn end_if_over(&mut self) {
        let quiet =
            self.writes == 0 && self.other_ops == 0 && self.epochs.is_idle() && self.actions.is_empty();
        if !quiet {
            return;
        }
        if let Some(end) = self.stop.clone() {
            if !std::mem::replace(&mut self.swept, true) {
                self.sweep();
                if !self.actions.is_empty() {
                    return;
                }
            }
            let message = match &end {
                SessionEnd::Failed(failure) => Message::Abort(failure.clone()),
                SessionEnd::Stopped | SessionEnd::Complete => Message::Stopped,
            };
            self.actions.push_back(SinkAction::Send(message));
            self.finish(end);
        } else if self.end.is_some() && self.is_empty() && !self.removing_journal {
            self.removing_journal = true;
            self.actions.push_back(SinkAction::Submit(SinkOp::RemoveJournal));
        }
    }

    /// Before a stop: removes temporaries of which nothing is durable; a resume could not use them.
    fn sweep(&mut self) {
        let useless = self.files.iter().filter(|(_, f)| f.has_temp && f.durable.covered() == 0);
        let mut useless: Vec<FileId> = useless.map(|(id, _)| *id).collect();
        // The order of a hash map differs from run to run, and a simulation must not.
        useless.sort_unstable();
        for id in useless {
            self.discard(id);
        }
    }

    fn is_empty(&self) -> bool {
        self.files.is_empty() && self.links.is_empty() && self.dirs.is_empty() && self.waiting_count == 0
    }
}

/// Entries in one `FILE_STATE` and in one `FILE_DONE`, so that they stay far below the frame limit.
const STATES_PER_MESSAGE: usize = 1024;
const DONE_PER_MESSAGE: usize = 512;
/// Stands for the buffer of a bundle without payload.
const NO_BUFFER: BufferId = BufferId(u32::MAX);

/// The object has the place and length that the file's object size gives it.
fn fits(file: &File, entry: &DataEntry) -> bool {
    let (size, object_size) = (file.size(), u64::from(file.object_size));
    let len = u64::from(entry.len);
    if entry.hole {
        return false;
    }
    if entry.root {
        return entry.offset == 0 && len == size;
    }
    entry.offset < size
        && entry.offset.is_multiple_of(object_size)
        && len == object_size.min(size - entry.offset)
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

/// Times are equal at the destination's grain (nanoseconds).
fn same_time(source: Timestamp, sink: Timestamp, grain: u32) -> bool {
    if source == sink {
        return true;
    }
    let total = |t: Timestamp| i128::from(t.secs) * 1_000_000_000 + i128::from(t.nanos);
    let grain = i128::from(grain.max(1));
    total(source).div_euclid(grain) == total(sink).div_euclid(grain)
}

fn ends(result: Result<(), Failure>) -> (Outcome, Ended) {
    match result {
        Ok(()) => (Outcome::Done { root: None }, Ended::Copied),
        Err(failure) => (Outcome::Failed(failure.clone()), Ended::Failed(failure)),
    }
}

fn protocol(text: &str) -> Failure {
    Failure { stage: Stage::Protocol, errno: 0, text: text.into() }
}
