//! The sink's end: storage engine, journal and driver around `transfer::sink`.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use haul_core::change::Change;
use haul_core::digest::{Cv, DigestKind};
use haul_core::entry::Timestamp;
use haul_core::extents::ExtentMap;
use haul_core::ids::{BufferId, DirId, FileId, Holder, TargetId, Time};
use haul_core::journal::{Former, Record, Replay, Resume, RootId, compact};
use haul_core::layout::{Component, Layout};
use haul_core::schedule::Limits;
use haul_core::transfer::SessionEnd;
use haul_core::transfer::op::{
    CommitItem, Existing, Found, Inode, LookupItem, Publish, Rights, Seen, SinkDone, SinkFile, SinkOp, Took,
};
use haul_core::transfer::sink::{Sink, SinkAction, SinkConfig};
use haul_core::wire::{Agreed, Failure, FailureKind, Message, SinkOptions, credit_cost};

use super::disk::{DirKey, Node};
use super::frozen::Midway;
use super::model::{BLOCK, GARBAGE, KEYS, NOTHING, ZERO, blocks_of, entry_of, mixed_node};
use super::world::World;

thread_local! {
    /// How often a file was lost that is taken once more.
    pub static FORGOTTEN: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

pub struct OpenFile {
    dir: DirKey,
    entry: usize,
    pub number: u64,
    pub file: usize,
    /// A commit of it failed: nothing can be written until it is discarded.
    failed: bool,
    /// Its temporary has no name any more.
    gone: bool,
    /// The journal may speak of it.
    promised: bool,
    /// Where the next write begins, if bytes come in ascending order.
    next: u64,
}

/// A payload buffer: where each entry's payload starts, and its blocks' keys.
struct Payload {
    cost: u64,
    parts: Vec<(u32, Vec<u8>)>,
}

pub struct SinkEnd {
    pub machine: Sink,
    pub tag: u32,
    pub epoch: u32,
    old_tags: Vec<u32>,
    /// Which of the runs before are dead, and whether names are looked at again at the end.
    former: Former,
    pub confirm: bool,
    /// What was given to names, if they are looked at again.
    pub given: BTreeMap<(DirKey, usize), Node>,
    /// When the job was last seen to be ours.
    pub seen_owner: Option<Time>,
    /// How far commits were when the job was lost, and what became of those that landed since.
    pub midway: BTreeMap<FileId, Midway>,
    pub landed: HashMap<FileId, Result<(), Failure>>,
    dirs: HashMap<DirId, (DirId, usize)>,
    pub ops: Vec<SinkOp>,
    pub journal_ops: Vec<SinkOp>,
    pub dones: Vec<SinkDone>,
    pub open: HashMap<FileId, OpenFile>,
    buffers: HashMap<BufferId, Payload>,
    next_buffer: u32,
    memory: u64,
    held: u64,
}

fn failure(kind: FailureKind, errno: i32) -> Failure {
    Failure { kind, errno, text: "simulated".into() }
}

impl World {
    pub fn snk(&mut self) -> &mut SinkEnd {
        self.s.sink.as_mut().expect("the sink runs")
    }

    /// Sets the sink up as its driver does: replay, compact, replace. Returns whether the source must wait.
    pub fn start_sink(&mut self, memory: u64, entries_max: u32) -> bool {
        let boot = [self.boot; 16];
        let replayed = self.journal.bytes.as_ref().map(|bytes| {
            let mut replay = Replay::new();
            for piece in bytes.chunks(97) {
                replay.feed(piece).expect("a journal of ours");
            }
            replay.finish(boot, self.durable).expect("a journal of ours")
        });
        let resumed = replayed.is_some();
        let mut replayed = replayed.unwrap_or_default();
        self.note(|| format!("sink starts with {replayed:?}"));
        self.epoch += 1;
        self.tags += 1;
        let tag = self.tags;
        let unproven = self.take_job(self.epoch);
        if unproven {
            replayed.follow_unproven();
        }
        let confirm = unproven || replayed.may_be_overtaken();
        self.s.follows = unproven || !replayed.unproven.is_empty();
        let former = Former::new(&replayed.tags, &replayed.unproven);
        let head = Record::Head { job: [1; 16], root: RootId::new(&[1]).expect("short") };
        let session =
            Record::Session { epoch: self.epoch, tag, boot, durable: self.durable, lease: Holder::ALONE };
        let (bytes, log, _, next_slot) = compact(&replayed, head, session);
        self.journal.durable = bytes.len();
        self.journal.bytes = Some(bytes);
        self.journal.broken = false;
        let wait = resumed || !self.disk.dir(None).live.is_empty();
        let policy = SinkOptions { durable: self.durable, ..SinkOptions::PLAIN };
        let files_open_max = [4, 16, 1000][self.rng.usize(..3)];
        let (names, holes, digest) = (None, self.holes, DigestKind::Blake3);
        let targets =
            self.sink_targets.as_mut().map(|rng| Limits { total: rng.u32(1..40), each: rng.u32(1..9) });
        let round_trip = self.sink_targets.as_mut().map_or(20_000, |rng| rng.u64(..50_000));
        let ascending = self.ascending.as_mut().map(|rng| rng.u32(1..5));
        let wait = wait || ascending.is_some();
        let config = SinkConfig {
            root: None,
            clones: None,
            nodes: Default::default(),
            part: None,
            agreed: Agreed { holes, digest, layouts: self.layouts, ..Agreed::plain(entries_max) },
            policy,
            memory,
            wait,
            files_open_max,
            tag,
            targets,
            ascending,
            round_trip: Some(Duration::from_micros(round_trip)),
            names,
        };
        let old_tags = replayed.tags.clone();
        self.s.sink = Some(SinkEnd {
            machine: Sink::new(config, Resume { replayed, log, next_slot }),
            tag,
            epoch: self.epoch,
            old_tags,
            former,
            confirm,
            given: BTreeMap::new(),
            seen_owner: None,
            midway: BTreeMap::new(),
            landed: HashMap::new(),
            dirs: HashMap::new(),
            ops: Vec::new(),
            journal_ops: Vec::new(),
            dones: Vec::new(),
            open: HashMap::new(),
            buffers: HashMap::new(),
            next_buffer: 0,
            memory,
            held: 0,
        });
        wait
    }

    /// The directory, made if it is not there.
    fn enter(&mut self, id: DirId) -> DirKey {
        if id == DirId::ROOT {
            return None;
        }
        let (parent, entry) = *self.snk().dirs.get(&id).expect("operations name registered directories");
        let parent = self.enter(parent);
        self.disk.make_dir(parent, entry);
        Some(entry)
    }

    /// A fault strikes an operation of this entry: what was promised of it may be gone.
    pub fn fault(&mut self, entry: usize) {
        self.acks[entry] = None;
        self.s.faulty.push(entry);
    }

    fn strikes(&mut self, one_in: u16) -> bool {
        !self.quiet && self.s.faults && self.rng.u16(..one_in) < self.s.heat[1]
    }

    fn temp(&mut self, file: &SinkFile) -> Result<usize, Failure> {
        if let Some(open) = self.snk().open.get(&file.id) {
            return if open.failed { Err(failure(FailureKind::Write, 0)) } else { Ok(open.file) };
        }
        if !haul_mutant::removed("losers-make-nothing") && !self.check_owner() {
            return Err(failure(FailureKind::Create, 0));
        }
        let dir = self.enter(file.parent);
        let (entry, number, tag) = (entry_of(&file.name), file.number, self.snk().tag);
        let made = self.disk.make_file(dir, (entry, Some((tag, number))));
        let (failed, gone, promised, next) = (false, false, false, 0);
        let open = OpenFile { dir, entry, number, file: made, failed, gone, promised, next };
        self.snk().open.insert(file.id, open);
        Ok(made)
    }

    /// Where a file lies: somehow over the session's targets; sometimes nobody can say.
    fn places_of(&mut self, file: &SinkFile) -> Option<Layout<TargetId>> {
        let rng = self.sink_targets.as_mut()?;
        let count = 1 + self.tags as u16 % 5;
        let mut start = 0;
        let components = (0..rng.u8(..4)).map(|_| {
            let targets = (0..rng.usize(1..4)).map(|_| TargetId(rng.u16(..count))).collect();
            let component = Component { start, stripe_size: BLOCK * rng.u64(1..4), targets };
            start += rng.u64(1..=file.size.max(1));
            component
        });
        Layout::new(components.collect()).ok()
    }

    fn took(&mut self) -> Took {
        let Some(rng) = &mut self.sink_targets else { return Took { time: Duration::ZERO, cached: true } };
        let slow = if rng.u8(..8) == 0 { 400 } else { 1 };
        Took { time: Duration::from_micros(rng.u64(50..500) * slow), cached: rng.bool() }
    }

    fn write(&mut self, file: &SinkFile, offset: u64, len: u64, keys: &[u8]) -> Result<(), Failure> {
        let entry = entry_of(&file.name);
        assert_eq!(keys.len(), blocks_of(len), "payload and range of entry {entry}");
        let in_data = file.map.as_ref().is_none_or(|map| map.covers(offset, len));
        assert!(in_data, "entry {entry}: {len} bytes at {offset} fill a hole");
        let temp = self.temp(file)?;
        if self.s.full && !self.quiet && self.rng.bool() {
            // Nothing more of it may be written behind that.
            let ascends = self.ascending.is_some();
            self.snk().open.get_mut(&file.id).expect("it was just opened").failed |= ascends;
            return Err(failure(FailureKind::Write, 28));
        }
        if self.strikes(120) {
            self.fault(entry);
            let lost = self.ascending.as_mut().is_some_and(|rng| rng.bool());
            if self.ascending.is_some() {
                self.snk().open.get_mut(&file.id).expect("it was just opened").failed = true;
            }
            return Err(failure(if lost { FailureKind::Network } else { FailureKind::Write }, 5));
        }
        if self.ascending.is_some() {
            let open = self.snk().open.get_mut(&file.id).expect("it was just opened");
            assert_eq!(open.next, offset, "entry {entry}: bytes out of their order");
            open.next += len;
        }
        self.check_writer(temp);
        self.disk.write(temp, (offset / BLOCK) as usize, keys, offset + len);
        Ok(())
    }

    fn close(&mut self, id: FileId, remove: bool) {
        let Some(open) = self.snk().open.remove(&id) else { return };
        // What the journal speaks of is the new owner's, if there is one.
        if remove && !open.gone && (!open.promised || self.still_owner()) {
            let tag = (self.snk().tag, open.number);
            self.disk.remove(open.dir, (open.entry, Some(tag)));
        }
    }

    fn take_payload(&mut self, buffer: BufferId) -> Vec<(u32, Vec<u8>)> {
        if buffer == BufferId(u32::MAX) {
            return Vec::new();
        }
        let snk = self.snk();
        let payload = snk.buffers.remove(&buffer).expect("a buffer is freed once");
        snk.held -= payload.cost;
        payload.parts
    }

    /// The payload of a frame of which more is to be written.
    fn payload(&mut self, buffer: BufferId) -> Vec<(u32, Vec<u8>)> {
        let none = buffer == BufferId(u32::MAX);
        let held = || self.s.sink.as_ref().expect("the sink runs").buffers.get(&buffer);
        if none {
            Vec::new()
        } else {
            held().expect("a buffer stays until all of it is written").parts.clone()
        }
    }

    /// Executes one operation of the sink's storage.
    pub fn sink_exec(&mut self) {
        let count = self.snk().ops.len();
        let at = self.rng.usize(..count);
        self.sink_exec_at(at);
    }

    pub fn sink_exec_at(&mut self, mut at: usize) {
        if self.ascending.is_some()
            && let SinkOp::Write { file, .. } = &self.snk().ops[at]
        {
            let id = file.id;
            let first = self
                .snk()
                .ops
                .iter()
                .position(|op| matches!(op, SinkOp::Write { file, .. } if file.id == id));
            at = first.expect("it is one");
        }
        let op = match self.ascending.is_some() {
            true => self.snk().ops.remove(at),
            false => self.snk().ops.swap_remove(at),
        };
        self.sink_do(op);
    }

    pub fn journal_exec(&mut self) {
        let mut op = self.snk().journal_ops.remove(0);
        if let SinkOp::Journal { bytes, .. } = &mut op
            && !bytes.is_empty()
            && !self.journal.broken
            && self.rng.bool()
        {
            // Written, and not synced yet.
            let bytes = std::mem::take(bytes);
            self.note(|| format!("sink writes {} bytes of journal", bytes.len()));
            self.journal.bytes.as_mut().expect("the journal was begun").extend_from_slice(&bytes);
            self.snk().journal_ops.insert(0, op);
            if !self.quiet && !self.freezes.in_aside && self.rng.u8(..16) == 0 {
                self.power_cut();
            }
            return;
        }
        self.sink_do(op);
    }

    fn sink_do(&mut self, op: SinkOp) {
        self.note(|| match &op {
            SinkOp::Journal { bytes, .. } => format!("sink does Journal of {} bytes", bytes.len()),
            op => format!("sink does {op:?}"),
        });
        let done = match op {
            SinkOp::MakeDirs { dirs } => {
                let mut results = Vec::new();
                for dir in dirs {
                    assert!(self.snk().dirs.contains_key(&dir), "{dir:?} is made when it is forgotten");
                    self.enter(dir);
                    results.push((dir, Ok(())));
                }
                SinkDone::MakeDirs { results }
            }
            SinkOp::Lookup { items } => {
                let results = items.iter().map(|item| (item.file.id, Ok(self.look_up(item)))).collect();
                SinkDone::Lookup { results }
            }
            SinkOp::Create { file, .. } => {
                let result = match self.strikes(60) {
                    true => {
                        self.fault(entry_of(&file.name));
                        Err(failure(FailureKind::Create, 5))
                    }
                    false => self.temp(&file).map(|_| self.places_of(&file)),
                };
                SinkDone::Create { id: file.id, result }
            }
            SinkOp::Write { file, offset, len, buffer, start } => {
                let parts = self.take_payload(buffer);
                let part = parts.iter().find(|(s, keys)| *s == start && !keys.is_empty());
                let keys = part.expect("the payload starts there").1.clone();
                let result = self.write(&file, offset, u64::from(len), &keys);
                let took = result.is_ok().then(|| self.took());
                let is_lost = |failure: &Failure| failure.kind == FailureKind::Network;
                let again = self.ascending.is_some() && result.as_ref().is_err_and(is_lost);
                SinkDone::Write { id: file.id, offset, len, buffer, took, result, again }
            }
            SinkOp::WriteBundle { buffer, items, more } => {
                let parts = match more {
                    true => self.payload(buffer),
                    false => self.take_payload(buffer),
                };
                let mut results = Vec::new();
                for item in items {
                    let part = parts.iter().find(|(s, keys)| *s == item.start && !keys.is_empty());
                    let keys = match item.file.size {
                        0 => Vec::new(),
                        _ => part.expect("the payload starts there").1.clone(),
                    };
                    results.push((item.file.id, self.write(&item.file, 0, item.file.size, &keys)));
                }
                SinkDone::WriteBundle { buffer, results, more }
            }
            SinkOp::Check { file, ranges, .. } => {
                let result = Ok(ranges.iter().map(|range| self.check(&file, *range)).collect());
                SinkDone::Check { id: file.id, ranges, result }
            }
            SinkOp::Commit { durable, items } => {
                let results: Vec<_> =
                    items.iter().map(|item| (item.id, self.commit(item, durable))).collect();
                let lost = self.lost(&results);
                SinkDone::Commit { results, lost }
            }
            SinkOp::Clone { .. } => unreachable!("no session of these clones"),
            SinkOp::Amend { items, .. } => {
                let mut results = Vec::new();
                for item in items {
                    let result = match self.strikes(60) {
                        true => {
                            self.fault(entry_of(&item.file.name));
                            Err(failure(FailureKind::Metadata, 5))
                        }
                        false => Ok(Change::MODE),
                    };
                    results.push((item.file.id, result));
                }
                SinkDone::Amend { results }
            }
            SinkOp::MakeLinks { items } => {
                let mut results = Vec::new();
                for item in items {
                    if !self.fence() {
                        results.push((item.file.id, Err(failure(FailureKind::Publish, 0))));
                        continue;
                    }
                    let dir = self.enter(item.file.parent);
                    self.disk.make_link(dir, (entry_of(&item.file.name), None));
                    results.push((item.file.id, Ok(Change::NEW)));
                }
                SinkDone::MakeLinks { results }
            }
            SinkOp::Join { .. } => unreachable!("no source has hard links here"),
            SinkOp::SyncDirs { dirs } => {
                let mut results = Vec::new();
                for id in dirs {
                    // What it was synced for failed meanwhile, and the directory was finished.
                    if id != DirId::ROOT && !self.snk().dirs.contains_key(&id) {
                        results.push((id, Err(failure(FailureKind::Sync, 0))));
                        continue;
                    }
                    let dir = self.enter(id);
                    if self.strikes(60) {
                        let inside: Vec<usize> =
                            self.disk.dir(dir).live.keys().map(|(entry, _)| *entry).collect();
                        // The names of all below may be lost with it.
                        (0..self.tree.entries.len())
                            .filter(|e| {
                                inside.contains(e) || self.path_of(*e).iter().any(|d| inside.contains(d))
                            })
                            .collect::<Vec<_>>()
                            .into_iter()
                            .for_each(|e| self.fault(e));
                        results.push((id, Err(failure(FailureKind::Sync, 5))));
                    } else {
                        self.disk.sync_dir(dir);
                        results.push((id, Ok(())));
                    }
                }
                SinkDone::SyncDirs { results }
            }
            SinkOp::FinishDirs { durable, dirs } => {
                let mut results = Vec::new();
                for (id, meta) in dirs {
                    if !self.fence() {
                        results.push((id, Err(failure(FailureKind::Publish, 0))));
                        continue;
                    }
                    let dir = self.enter(id);
                    self.sweep_tags(dir);
                    self.disk.set_dir_mtime(dir, meta.mtime.secs);
                    if durable {
                        self.disk.sync_dir(dir);
                    }
                    results.push((id, Ok(Change::NEW)));
                }
                SinkDone::FinishDirs { results }
            }
            SinkOp::Discard { id } => {
                self.close(id, true);
                SinkDone::Discard { id }
            }
            SinkOp::Journal { bytes, durable } => {
                let result = if self.journal.broken || (!bytes.is_empty() && self.strikes(100)) {
                    Err(failure(FailureKind::Write, 5))
                } else {
                    let journal = self.journal.bytes.as_mut().expect("the journal was begun");
                    journal.extend_from_slice(&bytes);
                    let len = journal.len();
                    if durable && self.strikes(100) {
                        self.journal.broken = true;
                        Err(failure(FailureKind::Sync, 5))
                    } else {
                        if durable {
                            self.journal.durable = len;
                        }
                        Ok(())
                    }
                };
                SinkDone::Journal { result }
            }
            SinkOp::Note { .. } | SinkOp::RefuseNote { .. } => unreachable!("nothing is closed here"),
            SinkOp::RemoveJournal => SinkDone::RemoveJournal { result: self.remove_journal() },
        };
        self.snk().dones.push(done);
    }

    fn remove_journal(&mut self) -> Result<(), Failure> {
        if !self.still_owner() {
            return Err(failure(FailureKind::Publish, 0));
        }
        self.sweep_tags(None);
        self.disk.sync_dir(None);
        if !self.confirm() {
            return Err(failure(FailureKind::Publish, 0));
        }
        self.journal.bytes = None;
        self.journal.durable = 0;
        self.freezes.owner = None;
        self.promise();
        Ok(())
    }

    /// Removes what dead runs left in a directory.
    fn sweep_tags(&mut self, dir: DirKey) {
        let tags = self.snk().old_tags.clone();
        let old = |tag: &Option<(u32, u64)>| tag.is_some_and(|(tag, _)| tags.contains(&tag));
        let names: Vec<_> = self.disk.dir(dir).live.keys().filter(|(_, tag)| old(tag)).copied().collect();
        names.into_iter().for_each(|name| self.disk.remove(dir, name));
    }

    fn look_up(&mut self, item: &LookupItem) -> Found {
        let (dir, entry) = (self.enter(item.file.parent), entry_of(&item.file.name));
        let (mut adopted, mut len) = (false, 0);
        let number = item.file.number;
        if let Some(tag) = item.adopt
            && let Some(Node::File(file)) =
                self.disk.dir(dir).live.get(&(entry, Some((tag, number)))).copied()
        {
            let (old, ours) = ((entry, Some((tag, number))), (self.snk().tag, number));
            let file = match self.snk().former.is_dead(tag) {
                true => {
                    self.disk.rename(dir, old, (entry, Some(ours)));
                    file
                }
                // Whoever has it open may go on writing.
                false => {
                    let copy = self.disk.copy_file(dir, (entry, Some(ours)), file);
                    self.disk.remove(dir, old);
                    copy
                }
            };
            let (failed, gone, promised, next) = (false, false, true, 0);
            let open = OpenFile { dir, entry, number, file, failed, gone, promised, next };
            self.snk().open.insert(item.file.id, open);
            adopted = true;
            len = self.disk.files[file].len;
            if let Some(map) = &item.file.map {
                self.disk.punch(file, |block| map.at(block as u64 * BLOCK).is_none());
            }
        }
        let existing = match self.disk.dir(dir).live.get(&(entry, None)) {
            None => Existing::Nothing,
            Some(Node::Dir) => Existing::Dir,
            Some(Node::Link) => Existing::Link,
            Some(Node::File(file)) => {
                let file = &self.disk.files[*file];
                let mtime = Timestamp { secs: file.mtime, nanos: 7 };
                // Now and then the rights are not those of the source.
                let rights =
                    Rights { mode: if self.rng.u8(..4) == 0 { 0o666 } else { 0o644 }, ..Rights::default() };
                Existing::File { size: file.len, mtime, grain: 1, rights }
            }
        };
        let seen = self.seen_at(dir, entry);
        let snk = self.s.sink.as_mut().expect("the sink runs");
        if snk.confirm && !haul_mutant::removed("found-names-are-confirmed") {
            snk.given.extend(self.disk.at(dir, (entry, None)).map(|node| ((dir, entry), node)));
        }
        Found { existing, seen, adopted, len, begun: false }
    }

    /// The value of what lies in a range of a temporary now.
    fn check(&mut self, file: &SinkFile, (offset, len): (u64, u64)) -> Option<Cv> {
        let open = self.snk().open.get(&file.id).expect("a check is of an open file").file;
        let first = (offset / BLOCK) as usize;
        let temp = &self.disk.files[open];
        if temp.len < offset + len || temp.blocks.len() < first + blocks_of(len) {
            return None;
        }
        let keys: Vec<u8> = temp.blocks[first..first + blocks_of(len)].iter().map(|b| b.live).collect();
        let of_a_version = |key: &u8| (1..=KEYS).contains(key) || *key == ZERO;
        // What no version has, has a value that nothing else has.
        let strange = [[offset as u8, len as u8, 0xee, keys[0]].repeat(8)].concat();
        match keys.iter().all(of_a_version) {
            true => Some(mixed_node(&keys, file.size, offset, len)),
            false => strange.try_into().ok(),
        }
    }

    /// What stands at a final name.
    fn seen_at(&self, dir: DirKey, entry: usize) -> Option<Seen> {
        let inode = match self.disk.at(dir, (entry, None))? {
            Node::File(file) => Inode { dev: 1, ino: file as u64 },
            Node::Dir | Node::Link => Inode { dev: 0, ino: entry as u64 },
        };
        // No number is given twice here.
        let never = Timestamp { secs: 0, nanos: 0 };
        Some(Seen { inode, size: 0, mtime: never, ctime: never, links: 1 })
    }

    pub fn commit(&mut self, item: &CommitItem, durable: bool) -> Result<(), Failure> {
        if let Some(landed) = self.snk().landed.remove(&item.id) {
            return landed;
        }
        if !self.snk().midway.contains_key(&item.id) && !self.check_owner() {
            if let Some(open) = self.snk().open.get_mut(&item.id) {
                open.failed = true;
            }
            return Err(failure(FailureKind::Publish, 0));
        }
        let result = match &item.publish {
            None => self.commit_part(item.id, durable),
            Some(publish) => self.publish(publish, durable),
        };
        if result.is_ok() && item.publish.is_some() {
            self.close(item.id, false);
        } else if result.is_err()
            && let Some(open) = self.snk().open.get_mut(&item.id)
        {
            open.failed = true;
            let (dir, entry, number, promised) = (open.dir, open.entry, open.number, open.promised);
            let name = (entry, Some((self.snk().tag, number)));
            if !promised || self.still_owner() {
                self.disk.remove(dir, name);
                self.snk().open.get_mut(&item.id).expect("it is open").gone = true;
            }
        }
        result
    }

    /// Of these, which failed, the store takes some once more.
    fn lost(&mut self, results: &[(FileId, Result<(), Failure>)]) -> Vec<FileId> {
        let Some(rng) = &mut self.forgets else { return Vec::new() };
        let is_sync =
            |result: &Result<(), Failure>| result.as_ref().is_err_and(|why| why.kind == FailureKind::Sync);
        let failed = results.iter().filter(|(_, result)| is_sync(result));
        let lost: Vec<FileId> = failed.map(|(id, _)| *id).filter(|_| rng.u8(..4) > 0).collect();
        FORGOTTEN.set(FORGOTTEN.get() + lost.len() as u64);
        lost
    }

    fn commit_part(&mut self, id: FileId, durable: bool) -> Result<(), Failure> {
        let open = self.snk().open.get_mut(&id).expect("a commit names open files");
        let (file, entry) = (open.file, open.entry);
        open.promised = true;
        if open.failed {
            return Err(failure(FailureKind::Sync, 5));
        }
        if durable {
            let good = !self.strikes(60);
            self.disk.sync_file(file, good);
            if !good {
                self.fault(entry);
                return Err(failure(FailureKind::Sync, 5));
            }
        }
        Ok(())
    }

    fn publish(&mut self, publish: &Publish, durable: bool) -> Result<(), Failure> {
        let file = &publish.file;
        let temp = match file.map.as_ref().map_or(file.size, ExtentMap::data_len) {
            0 => self.temp(file)?,
            _ => self.snk().open.get(&file.id).expect("a commit names open files").file,
        };
        let OpenFile { dir, entry, .. } = self.snk().open[&file.id];
        if let Some(map) = &file.map {
            self.disk.extend(temp, blocks_of(file.size), file.size);
            for (i, block) in self.disk.files[temp].blocks.iter().enumerate() {
                let data = map.at(i as u64 * BLOCK).is_some();
                assert_eq!(data, block.live != NOTHING, "entry {entry}: block {i} of a sparse file");
            }
        }
        assert_eq!(self.disk.files[temp].len, file.size, "entry {entry}: length at publication");
        self.check_writer(temp);
        self.disk.files[temp].mtime = publish.meta.mtime.secs;
        if durable {
            let good = !self.strikes(60);
            self.disk.sync_file(temp, good);
            if !good {
                self.fault(entry);
                return Err(failure(FailureKind::Sync, 5));
            }
        }
        let keys = self.disk.files[temp].keys(false);
        let known = self.tree.shown(entry, (file.size, publish.meta.mtime.secs), &keys, self.prefixes());
        assert!(
            known.is_some(),
            "entry {entry} is published with what no version had: {:?}",
            self.disk.files[temp]
        );
        self.give_name(publish, dir, entry)
    }

    /// Gives a temporary its final name: over what was found there, or over nothing.
    fn give_name(&mut self, publish: &Publish, dir: DirKey, entry: usize) -> Result<(), Failure> {
        let midway = self.snk().midway.get(&publish.file.id).copied();
        if midway != Some(Midway::Fenced) && !self.fence() {
            return Err(failure(FailureKind::Publish, 0));
        }
        let temp = (entry, Some((self.snk().tag, publish.file.number)));
        let Some(Node::File(file)) = self.disk.at(dir, temp) else {
            // The next run took it over, or removed it.
            assert!(!self.still_owner(), "the temporary of entry {entry} is gone");
            return Err(failure(FailureKind::Publish, 2));
        };
        let stands = self.seen_at(dir, entry);
        // Past its last look at the owner it has looked at the name, too; over nothing the kernel gives no
        // name that is taken.
        let looked = midway == Some(Midway::Fenced) && publish.found.is_some();
        if stands.is_some() && stands != publish.found && !looked {
            assert!(
                self.s.follows || self.freezes.in_aside,
                "entry {entry} is not what was found: {stands:?}"
            );
            self.fault(entry);
            return Err(failure(FailureKind::Publish, 17));
        }
        let before = self.disk.at(dir, (entry, None));
        self.disk.rename(dir, temp, (entry, None));
        self.gave_name(entry, file, (before, midway));
        let snk = self.snk();
        if snk.confirm {
            snk.given.insert((dir, entry), Node::File(file));
        }
        Ok(())
    }

    /// A completion reaches the sink's machine.
    pub fn sink_done(&mut self) {
        let count = self.snk().dones.len();
        let at = self.rng.usize(..count);
        let done = self.snk().dones.swap_remove(at);
        self.note(|| format!("sink hears {done:?}"));
        let now = self.now;
        self.snk().machine.handle_done(done, now);
    }

    /// A message reaches the sink's machine.
    pub fn sink_message(&mut self) {
        let (message, tell) = self.s.up.take();
        if let Some(tell) = tell {
            self.s.down.send(&tell);
        }
        let message = match message {
            Some(Message::Received(number)) => return self.s.down.received(number),
            Some(message) => message,
            None => return,
        };
        self.note(|| format!("sink gets {message:?}"));
        let now = self.now;
        self.snk().machine.handle_message(message, now);
    }

    /// A data frame reaches the sink's machine.
    pub fn frame_arrives(&mut self, stream: usize) {
        let Some(frame) = self.s.streams[stream].wire.pop_front() else { return };
        self.s.streams[stream].arrived += 1;
        let id = self.s.streams[stream].id;
        if self.s.sink.is_none() {
            return;
        }
        let header = frame.header();
        let payload = header.payload_len();
        let damage = !self.quiet && self.s.faults;
        let good: Vec<bool> =
            header.entries.iter().map(|_| !damage || self.rng.u16(..40) >= self.s.heat[3]).collect();
        let mut at = 0;
        let parts = header.entries.iter().zip(frame.blocks).zip(&good).map(|((entry, mut blocks), good)| {
            assert_eq!(blocks.len(), blocks_of(u64::from(entry.len)), "payload of {entry:?}");
            if !good {
                blocks.fill(GARBAGE);
            }
            let start = at;
            at += entry.len;
            (start, blocks)
        });
        let parts: Vec<_> = parts.collect();
        self.note(|| format!("sink gets frame {} of {id}, good {good:?}: {header:?}", frame.seq));
        let now = self.now;
        let snk = self.snk();
        let buffer = (payload > 0).then(|| {
            snk.next_buffer += 1;
            let (buffer, cost) = (BufferId(snk.next_buffer), credit_cost(payload));
            snk.buffers.insert(buffer, Payload { cost, parts });
            snk.held += cost;
            assert!(snk.held <= snk.memory, "sink buffers: {} of {}", snk.held, snk.memory);
            buffer
        });
        snk.machine.handle_data(id, header, buffer, good, now);
    }

    /// Does what the sink's machine asks.
    pub fn sink_act(&mut self) {
        while let Some(action) = self.s.sink.as_mut().and_then(|snk| snk.machine.poll_action()) {
            match action {
                SinkAction::RegisterDir { id, parent, name } => {
                    self.snk().dirs.insert(id, (parent, entry_of(&name)));
                }
                SinkAction::ForgetDir { id } => drop(self.snk().dirs.remove(&id)),
                SinkAction::Metadata { .. } | SinkAction::ForgetMetadata { .. } => {}
                // No source has hard links here.
                SinkAction::Lead { .. } | SinkAction::ForgetLead { .. } => {}
                SinkAction::Submit(op) => {
                    let journal = matches!(op, SinkOp::Journal { .. } | SinkOp::RemoveJournal);
                    let snk = self.snk();
                    if journal { snk.journal_ops.push(op) } else { snk.ops.push(op) }
                }
                SinkAction::Send(message) => {
                    self.note(|| format!("sink sends {message:?}"));
                    self.judge(&message);
                    self.s.down.send(&message);
                }
                SinkAction::FreeBuffer(buffer) => drop(self.take_payload(buffer)),
                SinkAction::CloseStream(stream) => {
                    let at = usize::from(stream.0) - 1;
                    if !self.s.streams[at].sink_knows {
                        // It never joined here; should it still, it is over.
                        self.snk().machine.handle_stream_lost(stream, 0);
                    }
                    let freed = self.s.streams[at].cut(&mut self.rng, false);
                    self.s.streams[at].wire.clear();
                    if let Some(src) = &mut self.s.source {
                        src.used -= freed;
                    }
                }
                SinkAction::EntryEnded { .. }
                | SinkAction::RootEnded { .. }
                | SinkAction::Trouble { .. }
                | SinkAction::Notice(_) => {}
                SinkAction::Finished(end) => {
                    self.note(|| format!("sink finished: {end:?}"));
                    // Behind one that is aside the next may have begun.
                    if end == SessionEnd::Complete && !self.freezes.in_aside {
                        self.judge_complete();
                    }
                    // The engine ends what it was given.
                    let ops = std::mem::take(&mut self.snk().ops);
                    ops.into_iter().for_each(|op| self.sink_do(op));
                    let ops = std::mem::take(&mut self.snk().journal_ops);
                    ops.into_iter().for_each(|op| self.sink_do(op));
                    self.s.sink_end = Some(end);
                    self.sink_gone(true);
                    return;
                }
            }
        }
    }
}
