//! The sink's session machine: from announced entries to files on media under their names.
//!
//! In: the source's messages, data frames whose digests the stream's thread checked, completions of
//! storage, time. Out: storage operations, messages, entries that ended.
//! Invariants: a file is published only when every object is written, its digest tree is whole and a seal
//! came after the last read; it is acknowledged only when its epoch is on media; every arriving byte was
//! granted and its buffer is granted again only when it is free.
//! What is durable, who may give a name, when a directory is finished and what an earlier run left are
//! decided as for several pairs, in `job`.
//! Left out: a file's way, which is in the modules by its steps: `announce`, `map`, `lookup`, `check`,
//! `data`, `epoch`, `end`, `drain`; directories that were closed to us (`widened`); a destination that cannot
//! be reached any more (`gone`); one of several storage targets (`targets`); one that takes bytes in
//! ascending order alone (`turns`); one that loses what was not synced (`lost`); how much is granted
//! (`window`); extended attributes and lists (`metadata`); what the destination root becomes (`root`);
//! further names of files (`names`); files that are cloned (`clones`).

use alloc::sync::Arc;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;

use crate::change::Change;
use crate::entry::{Meta, Name, Nodes, Part};
use crate::id_map::IdMap;
use crate::ids::{BufferId, DirId, FileId, Generation, SinkTarget, StreamId, Time};
use crate::job::dirs::Dirs;
use crate::job::earlier::Earlier;
use crate::journal::Resume;
use crate::metadata::Values;
use crate::schedule::Limits;
use crate::transfer::op::{SinkDone, SinkOp};
use crate::transfer::{Ended, SessionEnd, protocol};
use crate::wire::{
    Agreed, DoneItem, Failure, FailureKind, FileState, ITEMS_MAX, Message, SUBTREES_MAX, SinkOptions, Totals,
};

mod announce;
mod check;
mod clones;
mod data;

mod drain;
mod end;
mod epoch;
mod file;
mod gone;
mod lookup;
mod lost;
mod map;
mod metadata;
mod names;
mod root;
mod targets;
mod turns;
mod widened;
mod window;

use announce::Announced;
use check::Checks;
pub use clones::Clones;
use clones::Cloning;
use data::Frame;

use drain::Drain;
use epoch::Epochs;
use file::{File, SinkPhase};
use lost::Lost;
use metadata::Metadata;
use names::Names;
use targets::Targets;
use turns::Turns;
use window::{Credit, Window};

/// What the sink machine must know before it starts.
#[derive(Clone, Debug)]
pub struct SinkConfig {
    /// What both ends know and may do.
    pub agreed: Agreed,
    pub policy: SinkOptions,
    /// Payload bytes in buffers, at most: what is granted.
    pub memory: u64,
    /// Names may stand at the destination already: look each up and tell the source.
    pub wait: bool,
    /// Files with open descriptors, at most; more frames wait, and of a bundle the files for which there is
    /// no room. Only where nothing would ever free one a single file more is opened: the source may send what
    /// is open only behind it.
    pub files_open_max: u32,
    /// The tag in the names of this session's temporaries.
    pub tag: u32,
    /// The destination has several storage targets, and both ends know to speak of them: writes of objects in
    /// flight.
    pub targets: Option<Limits>,
    /// The store takes the bytes of a file in ascending order alone, of so many files at a time. Then
    /// [`SinkConfig::wait`] must be set. [`Sink::set_places`] when it takes more, or fewer.
    pub ascending: Option<u32>,
    /// Of the path between the ends, if it is known; [`Sink::set_round_trip`] when it is measured anew.
    pub round_trip: Option<Duration>,
    /// The names that may be announced in the destination root; `None`: any.
    pub names: Option<HashSet<Name>>,
    /// The part of one file that comes, if not files as a whole.
    pub part: Option<Part>,
    /// FIFOs, sockets and devices that may come: those that this end's own command keeps.
    pub nodes: Nodes,
    /// What the destination root becomes when all in it is over; `None`: it stays as it is.
    pub root: Option<Meta>,
    /// Files that are cloned, where the engine can do that; then [`SinkConfig::wait`] must be set.
    pub clones: Option<Clones>,
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
    /// Tell the engine what an entry is to have of extended attributes and lists, before any operation of it;
    /// one of which nothing is told is to have none.
    Metadata {
        id: FileId,
        values: Arc<Values>,
    },
    /// The engine may forget that.
    ForgetMetadata {
        id: FileId,
    },
    /// Tell the engine, before any operation of this file or symbolic link, that other names of it may
    /// follow.
    Lead {
        id: FileId,
        parent: DirId,
        name: Name,
    },
    /// None do any more.
    ForgetLead {
        id: FileId,
    },
    Submit(SinkOp),
    Send(Message),
    FreeBuffer(BufferId),
    CloseStream(StreamId),
    /// An entry is over. `root` is known for copied files, but for sparse ones.
    EntryEnded {
        id: FileId,
        parent: DirId,
        name: Name,
        is_link: bool,
        /// It is a further name of this entry.
        joined: Option<FileId>,
        end: Ended,
        root: Option<[u8; 32]>,
        bytes: u64,
        change: Change,
    },
    /// The destination root is what it is to be, or could not be made so.
    RootEnded {
        end: Ended,
        change: Change,
    },
    /// The source waits for something; show it.
    Notice(Box<str>),
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
    /// Of these, holes of copied files, and files that were cloned: nothing was moved for them.
    pub holes: u64,
    pub unchanged: u64,
    /// Unchanged files whose mode or owner was brought up to date.
    pub amended: u64,
    /// Payload received.
    pub payload: u64,
    /// Objects asked for again.
    pub objects_resent: u64,
    /// How often a file came back wrong from storage.
    pub sent_back: u64,
    /// Extended attributes and lists that the source sent, and that are never kept or were not asked for.
    pub refused_metadata: u64,
    /// Further names that became files of their own, for the destination did not take them as such.
    pub apart: u64,
    /// Payload written to storage.
    pub written: u64,
    /// The source's walk is over: `files` and `bytes` are final.
    pub walked: bool,
}

struct Link {
    parent: DirId,
    name: Name,
    generation: Generation,
    /// What it changes, once it is made.
    change: Change,
    /// `None`: it is a symbolic link of its own.
    joins: Option<names::Joins>,
}

/// The name is taken.
const EEXIST: i32 = 17;
/// What a long path takes, where nobody can say.
const ROUND_TRIP_UNKNOWN: Duration = Duration::from_millis(100);
/// After a stop was asked for, frames that are on their way are still taken for this long.
const STOP_GRACE: Duration = Duration::from_millis(500);

/// What there was no room for.
#[derive(Clone, Copy)]
struct Lack {
    /// Bytes that were still to be written.
    missing: u64,
    /// The length of files that are open, with what their temporaries hold of it.
    whole: u64,
}

/// The sink of one session. One owner, no locks: feed it events, then drain [`Sink::poll_action`].
pub struct Sink {
    config: SinkConfig,
    dirs: Dirs,
    /// Each by itself, as at the source.
    files: IdMap<FileId, Box<File>>,
    links: IdMap<FileId, Link>,
    drains: IdMap<FileId, Drain>,
    announced: Announced,
    /// Data extents in the maps of open files.
    extents: usize,
    /// Bytes of holes in open files: they need no space.
    holes: u64,
    earlier: Earlier,
    /// Directories that were closed to us and are open.
    widened: IdMap<DirId, widened::Open>,
    widened_len: usize,
    epochs: Epochs,
    checks: Checks,
    cloning: Cloning,
    targets: Option<Targets>,
    turns: Option<Turns>,
    lost: IdMap<FileId, Lost>,
    metadata: Metadata,
    names: Names,
    waiting: IdMap<FileId, Vec<Frame>>,
    waiting_count: u64,
    /// Frames that wait for descriptors; those of small files apart.
    deferred: VecDeque<Frame>,
    deferred_small: VecDeque<Frame>,
    /// Buffers of frames of which a part is being written, and the rest waits for descriptors.
    in_parts: HashSet<BufferId>,
    files_open: u32,
    writes: u32,
    other_ops: u32,
    /// Credit that the frames which came have cost.
    received: u64,
    frames: BTreeMap<StreamId, u64>,
    frames_told: BTreeMap<StreamId, u64>,
    closed_streams: BTreeMap<StreamId, bool>,
    /// What the buffers that came cost, of which sink target.
    buffers: HashMap<BufferId, (u64, SinkTarget)>,
    freed: u64,
    granted: u64,
    /// Credit that may be out or in buffers, as found so far; and the dearest frame.
    window: Window,
    frame_cost_max: u64,
    done: Vec<DoneItem>,
    states: Vec<(FileId, Generation, FileState)>,
    end: Option<Totals>,
    stop: Option<SessionEnd>,
    /// There was no room. Until it is said.
    lacks: Option<Lack>,
    /// A stop was asked for; it begins then.
    stop_at: Option<Time>,
    /// What the destination root is still to become.
    root: Option<Meta>,
    removing_journal: bool,
    swept: bool,
    /// Why nothing can be written any more, until what is left is named.
    gone: Option<Failure>,
    /// What the journal goes on to promise of files that were named for that, bytes.
    kept_of_gone: u64,
    finished: bool,
    now: Time,
    counts: SinkCounts,
    actions: VecDeque<SinkAction>,
}

impl Sink {
    /// A machine that waits for announcements and has granted nothing yet.
    pub fn new(config: SinkConfig, mut resume: Resume) -> Sink {
        Sink {
            dirs: Dirs::new(std::mem::take(&mut resume.replayed.finished)),
            files: IdMap::default(),
            links: IdMap::default(),
            drains: IdMap::default(),
            announced: Announced::new(config.agreed.shards),
            extents: 0,
            holes: 0,
            earlier: Earlier::new(resume.replayed, config.tag),
            widened: IdMap::default(),
            widened_len: 0,
            epochs: Epochs::new(config.agreed.lease, resume.log, resume.next_slot),
            checks: Checks::default(),
            cloning: Cloning::default(),
            targets: config.targets.map(|limits| {
                Targets::new(limits, config.memory, config.round_trip.unwrap_or(ROUND_TRIP_UNKNOWN))
            }),
            turns: config.ascending.map(Turns::new),
            lost: IdMap::default(),
            metadata: Metadata::of_root(config.root.is_some() && config.agreed.metadata),
            names: Names::default(),
            waiting: IdMap::default(),
            waiting_count: 0,
            deferred: VecDeque::new(),
            deferred_small: VecDeque::new(),
            in_parts: HashSet::new(),
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
            window: Window::new(config.memory, config.round_trip),
            frame_cost_max: 0,
            done: Vec::new(),
            states: Vec::new(),
            end: None,
            stop: None,
            lacks: None,
            stop_at: None,
            root: config.root,
            removing_journal: false,
            swept: false,
            gone: None,
            kept_of_gone: 0,
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

    /// Grows while something is written or becomes durable: by it a stop sees whether it is worth waiting.
    pub fn steps(&self) -> u64 {
        self.counts.written.wrapping_add(self.epochs.journaled())
    }

    /// The memory, not the path, held the source most of the time: [`SinkConfig::memory`] was out in grants,
    /// and came back full.
    pub fn is_held_by_memory(&self) -> bool {
        self.window.is_held_by_memory()
    }

    /// When [`Sink::handle_tick`] is due, if nothing else happens before.
    pub fn next_deadline(&self) -> Option<Time> {
        let stop = self.stop_at.filter(|_| self.stop.is_none());
        let targets = self.targets.as_ref().and_then(Targets::deadline);
        let turns = self.turns.as_ref().and_then(Turns::deadline);
        [self.epochs.deadline(), stop, targets, turns].into_iter().flatten().min()
    }

    /// Time passed.
    pub fn handle_tick(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.tick_targets();
        if self.stop_at.is_some_and(|at| self.now >= at) && self.stop.is_none() {
            self.peer_ends(SessionEnd::Stopped);
        }
    }

    /// Ends in good order: takes what is on its way for [`STOP_GRACE`], closes the open epoch and keeps the
    /// journal.
    pub fn stop(&mut self) {
        self.stop_at.get_or_insert(self.now.after(STOP_GRACE));
    }

    /// It was told to end, by whomever.
    pub fn is_stopping(&self) -> bool {
        self.stop.is_some() || self.stop_at.is_some()
    }

    /// It came to nothing because this session ends, or nobody waits for the way any more: no fault of the
    /// entry's, which is as one of which nothing came.
    fn is_of_the_stop(&self, failure: &Failure) -> bool {
        self.is_stopping()
            && failure.kind == FailureKind::Network
            && !haul_mutant::removed("stops-fail-no-files")
    }

    fn begin_stop(&mut self, end: SessionEnd) {
        if self.stop.is_none() && !self.finished {
            self.stop = Some(end);
            let deferred = self.deferred.drain(..).chain(self.deferred_small.drain(..));
            let held = self.turns.as_mut().map(Turns::take_held).unwrap_or_default();
            let waiting = self.waiting.drain().flat_map(|(_, frames)| frames);
            let frames: Vec<Frame> = deferred.chain(waiting).chain(held).collect();
            self.waiting_count = 0;
            for frame in frames {
                // One of which a part is being written is free behind that.
                self.free(frame.buffer.filter(|buffer| !self.in_parts.contains(buffer)));
            }
        }
    }

    /// The control stream is gone, and whose fault that is: the session closes its epoch and ends.
    pub fn handle_control_lost(&mut self, failure: Failure) {
        self.peer_ends(SessionEnd::Failed(failure));
    }

    /// The source ends the session: what came whole until now is worth keeping.
    fn peer_ends(&mut self, end: SessionEnd) {
        if !self.finished {
            self.take_deferred();
        }
        self.begin_stop(end);
    }

    fn violation(&mut self, text: &str) {
        // What comes while this end stops, half of it ignored, need not fit, and is not why it stops.
        if self.stop.is_some() {
            return;
        }
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
            Message::FileLayout(files) if self.stop.is_none() => self.handle_file_layout(files),
            Message::Holes { id, generation, extents, last } if self.stop.is_none() => {
                self.handle_holes(id, generation, extents, last);
            }
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
                self.dirs.trouble();
                self.actions.push_back(SinkAction::Trouble { path, failure })
            }
            Message::End(totals) => {
                self.dirs.end(DirId::ROOT);
                if self.end.replace(totals).is_some() || !self.dirs.all_ended() {
                    return self.violation("END came twice, or before the end of a directory");
                }
                if self.metadata.is_half_told(DirId::ROOT.as_file()) {
                    return self.violation("END before all metadata of the destination root");
                }
                self.counts.walked = true;
            }
            Message::Metadata(pieces) if self.stop.is_none() => self.handle_metadata(pieces),
            Message::Notice { text } => self.actions.push_back(SinkAction::Notice(text)),
            Message::StreamClosed { stream, .. } => self.close_stream(stream),
            Message::Stop { .. } => self.stop(),
            Message::Abort(failure) => self.peer_ends(SessionEnd::Failed(failure)),
            Message::Ping(n) => self.actions.push_back(SinkAction::Send(Message::Pong(n))),
            Message::Pong(_)
            | Message::Report(_)
            | Message::Received(_)
            | Message::OwnerNames(_)
            | Message::Streams(_)
            | Message::TargetHealth(_) => {}
            Message::Announce(_)
            | Message::Holes { .. }
            | Message::FileLayout(_)
            | Message::Metadata(_)
            | Message::DirEnd(_) => {}
            other => {
                let text = format!("the source sent a message that only a sink sends: {}", other.name());
                self.violation(&text);
            }
        }
    }

    fn submit(&mut self, op: SinkOp) {
        self.other_ops += 1;
        self.actions.push_back(SinkAction::Submit(op));
    }

    /// A completion of the storage engine.
    pub fn handle_done(&mut self, done: SinkDone, now: Time) {
        self.handle_tick(now);
        match done {
            SinkDone::Create { id, result } => self.handle_made(id, result),
            SinkDone::Write { id, offset, len, buffer, took, result, again } => {
                self.writes -= 1;
                if let Some(targets) = &mut self.targets {
                    targets.written(buffer, took, self.now);
                }
                self.buffer_freed(buffer, took.filter(|took| !took.cached).map(|took| took.time));
                self.handle_written(id, offset, u64::from(len), (result, again));
            }
            SinkDone::WriteBundle { buffer, results, more } => {
                self.writes -= 1;
                match more {
                    true => self.part_written(buffer),
                    false => self.buffer_freed(buffer, None),
                }
                for (id, result) in results {
                    let size = self.files.get(&id).map_or(0, |f| f.size());
                    self.handle_written(id, 0, size, (result, false));
                }
            }
            SinkDone::Lookup { results } => {
                self.other_ops -= 1;
                for (id, result) in results {
                    self.handle_found(id, result);
                }
            }
            SinkDone::Clone { results } => {
                self.other_ops -= 1;
                for (id, result) in results {
                    self.handle_cloned(id, result);
                }
            }
            SinkDone::Amend { results } => {
                self.other_ops -= 1;
                for (id, result) in results {
                    self.handle_amended(id, result);
                }
            }
            SinkDone::MakeDirs { results } => {
                self.other_ops -= 1;
                for (dir, result) in results {
                    let failure = result.err().filter(|failure| !self.is_fatal(failure));
                    self.dirs.made(dir, failure);
                }
            }
            SinkDone::MakeLinks { results } => {
                self.other_ops -= 1;
                for (id, result) in results {
                    match result {
                        Ok(change) => {
                            if let Some(link) = self.links.get_mut(&id) {
                                link.change = change;
                            }
                            self.epochs.add_link(id, self.now);
                        }
                        Err(Failure { errno: EEXIST, .. }) if self.config.policy.no_clobber => {
                            self.skip_link(id);
                        }
                        Err(failure) => {
                            if !self.is_fatal(&failure) {
                                self.end_link(id, Err(failure));
                            }
                        }
                    }
                }
            }
            SinkDone::Join { results } => {
                self.other_ops -= 1;
                for (id, result) in results {
                    self.handle_joined(id, result);
                }
            }
            SinkDone::FinishDirs { results } => {
                self.other_ops -= 1;
                for (dir, result) in results {
                    if result.as_ref().is_err_and(|failure| self.is_of_the_stop(failure)) {
                        continue;
                    }
                    if dir == DirId::ROOT {
                        self.end_root(result);
                        continue;
                    }
                    if result.is_ok() {
                        self.settle_dir(dir);
                    }
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
            SinkDone::Check { id, ranges, result } => self.handle_checked(id, ranges, result),
            SinkDone::Commit { results, lost } => self.epoch_committed(results, &lost),
            SinkDone::SyncDirs { results } => self.epoch_dirs_synced(results),
            SinkDone::Journal { result } => self.epoch_journaled(result),
            SinkDone::Widen { ask, id, dir } => self.handle_widen(ask, id, dir),
            SinkDone::Note { result } => self.handle_noted(result),
            SinkDone::Gone { failure } => self.handle_gone(failure),
            SinkDone::Unkept { id, failure } => self.handle_unkept(id, failure),
        }
    }

    /// The next thing to do, or `None` until the next event.
    pub fn poll_action(&mut self) -> Option<SinkAction> {
        if self.actions.is_empty() && !self.finished {
            self.run_turns();
            self.take_deferred();
            self.run_targets();
            self.run_clones();
            self.run_epochs();
            // An epoch with nothing to write ends at once, and files may have begun with it.
            self.take_deferred();
            self.run_targets();
            self.run_clones();
            self.run_checks();
            self.submit_joins();
            self.finish_dirs();
            self.flush();
            self.end_if_over();
        }
        self.actions.pop_front()
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
            self.actions.push_back(SinkAction::Send(Message::FileStates(states)));
        }
        while !self.done.is_empty() {
            let rest = self.done.split_off(self.done.len().min(DONE_PER_MESSAGE));
            let items = std::mem::replace(&mut self.done, rest);
            self.actions.push_back(SinkAction::Send(Message::Done(items)));
        }
        self.flush_targets();
        let credit = Credit { granted: self.granted, received: self.received, freed: self.freed };
        let stuck = self.waits_for_turns();
        let idle = self.has_idle_target() || stuck;
        let window = self.window.open(self.now, credit, self.frame_cost_max, idle);
        let owed = (window + self.freed).saturating_sub(self.granted);
        let least = if stuck { 1 } else { (window / 8).max(1) };
        if owed >= least && self.stop.is_none() && self.stop_at.is_none() {
            self.granted += owed;
            self.actions.push_back(SinkAction::Send(Message::Grant {
                by: self.config.agreed.lease,
                sink_target: 0,
                total: self.granted,
            }));
            if self.frames != self.frames_told {
                self.frames_told = self.frames.clone();
                let frames = self.frames.iter().map(|(stream, count)| (*stream, *count)).collect();
                let message = Message::Written { bytes: self.counts.written, frames };
                self.actions.push_back(SinkAction::Send(message));
            }
        } else if stuck && self.is_out_of_room() {
            self.drop_furthest();
        }
    }

    fn end_if_over(&mut self) {
        let quiet = self.writes == 0
            && self.other_ops == 0
            && self.checks.in_flight == 0
            && self.epochs.is_idle()
            && self.actions.is_empty();
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
            if self.name_what_is_left() {
                return;
            }
            let message = match &end {
                SessionEnd::Failed(failure) => Message::Abort(failure.clone()),
                SessionEnd::Stopped | SessionEnd::Complete => Message::Stopped,
            };
            self.actions.push_back(SinkAction::Send(message));
            self.finish(end);
        } else if self.end.is_some() && self.is_empty() && !self.removing_journal {
            if self.finish_root() {
                return;
            }
            debug_assert_eq!((self.extents, self.holes), (0, 0), "maps go with their files");
            debug_assert!(self.metadata.is_empty(), "metadata go with their entries");
            self.removing_journal = true;
            self.actions.push_back(SinkAction::Submit(SinkOp::RemoveJournal));
        }
    }

    fn is_empty(&self) -> bool {
        self.files.is_empty() && self.links.is_empty() && self.dirs.is_empty() && self.waiting_count == 0
    }
}

/// Entries in one `FILE_STATE` and in one `FILE_DONE`, so that they stay far below the frame limit.
const STATES_PER_MESSAGE: usize = 1024;
const DONE_PER_MESSAGE: usize = 512;
