//! The source's end: walk, storage engine and driver around `transfer::source`.

use std::collections::HashMap;
use std::time::Duration;

use haul_core::digest::subtrees;
use haul_core::entry::{self, EntryKind, Extras};
use haul_core::ids::{BufferId, DirId, FileId, Generation, TargetId, Time};
use haul_core::transfer::Ended;
use haul_core::transfer::op::{BundleOk, HashOk, Look, ReadOk, SourceDone, SourceOp};
use haul_core::transfer::source::{Lies, OnChange, Source, SourceAction};
use haul_core::wire::{Announced, Failure, FailureKind, Message, Totals, credit_cost};

use super::link::{Frame, Told};
use super::model::{
    BLOCK, GARBAGE, HIDDEN, KEYS, Kind, NOTHING, Version, ZERO, blocks_of, map_of, mixed_node, name_of,
    plain_root, root_of,
};
use super::targets::Targets;
use super::world::{Hidden, World};

pub enum Step {
    Entry(usize),
    DirEnd(Option<usize>),
}

/// A payload buffer: the keys of its blocks, by entry.
struct Payload {
    cost: u64,
    blocks: Vec<Vec<u8>>,
}

thread_local! {
    /// Frames that were fetched from flash, over all runs.
    pub static FETCHED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    /// Files that were found grown, over all runs.
    pub static GROWN: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    /// Sessions whose source was lost, over all runs.
    pub static LOST: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    /// Parts that were sent twice and of which a hash told the value, over all runs.
    pub static TWICE: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

pub enum SpillOp {
    Store { slot: u32, buffer: BufferId },
    Fetch { slot: u32, buffer: BufferId },
}

pub struct SourceEnd {
    pub machine: Source,
    pub walk: Vec<Step>,
    pub walk_ended: bool,
    ids: HashMap<usize, FileId>,
    views: HashMap<FileId, (Generation, Version)>,
    pub ops: Vec<(SourceOp, Option<BufferId>)>,
    pub dones: Vec<SourceDone>,
    /// What goes to flash and comes from there, and what lies there: blocks by slot.
    pub spill_ops: Vec<SpillOp>,
    flash: HashMap<u32, Vec<Vec<u8>>>,
    buffers: HashMap<BufferId, Payload>,
    next_buffer: u32,
    pub memory: u64,
    pub used: u64,
    /// Entries handed in and not ended.
    open: usize,
    entries_max: u32,
    pub payload_reads: u64,
    /// From when on what is read of a file counts.
    ready: HashMap<(FileId, Generation), Time>,
    /// Someone paused the session: no payload may be read or sent.
    pub paused: bool,
}

impl SourceEnd {
    pub fn new(machine: Source, walk: Vec<Step>, memory: u64, entries_max: u32) -> SourceEnd {
        SourceEnd {
            machine,
            walk,
            walk_ended: false,
            ids: HashMap::new(),
            views: HashMap::new(),
            ops: Vec::new(),
            dones: Vec::new(),
            spill_ops: Vec::new(),
            flash: HashMap::new(),
            buffers: HashMap::new(),
            next_buffer: 0,
            memory,
            used: 0,
            open: 0,
            entries_max,
            payload_reads: 0,
            ready: HashMap::new(),
            paused: false,
        }
    }
}

fn failure(kind: FailureKind, errno: i32) -> Failure {
    Failure { kind, errno, text: "simulated".into() }
}

impl World {
    fn src(&mut self) -> &mut SourceEnd {
        self.s.source.as_mut().expect("the source runs")
    }

    /// The walk goes one step.
    pub fn walk_step(&mut self) {
        // What ended is counted before something is added.
        self.source_act();
        if self.s.source.is_none() {
            return;
        }
        let object_size = self.object_size;
        let dir_id = |src: &SourceEnd, dir: Option<usize>| dir.map_or(DirId::ROOT, |d| src.ids[&d].as_dir());
        match self.src().walk.pop() {
            Some(Step::Entry(entry)) => {
                if !self.tree.entries[entry].alive {
                    return;
                }
                self.s.ids.push(entry);
                let id = FileId(self.s.ids.len() as u64);
                let kind = match &self.tree.entries[entry].kind {
                    Kind::Dir => EntryKind::Dir { version: entry::Version::NONE },
                    Kind::Link => EntryKind::Symlink { target: b"target"[..].into() },
                    Kind::File(versions) => {
                        let version = *versions.last().expect("at least one");
                        self.s.announced.insert((id, Generation(0)), version);
                        self.src().views.insert(id, (Generation(0), version));
                        let sparse = version.holes != 0;
                        EntryKind::File {
                            fingerprint: version.fingerprint(),
                            object_size,
                            sparse,
                            striped: false,
                        }
                    }
                };
                let meta = match self.tree.version(entry) {
                    Some(version) => version.meta(),
                    None => Version { len: 0, key: 0, mtime: 500 + entry as i64, ctime: 0, ino: 0, holes: 0 }
                        .meta(),
                };
                let parent = self.tree.entries[entry].parent;
                self.note(|| format!("walk: {entry} is {id}"));
                let lies = self.targets.as_mut().map_or(Lies::At(TargetId(0)), Targets::lies);
                let not_before = match &kind {
                    EntryKind::File { .. } => self.settles(entry, id, Generation(0)),
                    _ => Time(0),
                };
                let src = self.src();
                src.ids.insert(entry, id);
                let parent = dir_id(src, parent);
                let name = name_of(entry);
                src.open += 1;
                assert!(src.open <= src.entries_max as usize, "more entries than agreed");
                let generation = Generation(0);
                let entry = Announced { id, generation, parent, name, meta, kind, extras: Extras::default() };
                src.machine.handle_entry(entry, lies, not_before);
            }
            Some(Step::DirEnd(dir)) => {
                let src = self.src();
                let dir = dir_id(src, dir);
                if dir != DirId::ROOT {
                    src.machine.handle_dir_end(dir);
                }
            }
            None => {
                self.note(|| "walk: over".into());
                let src = self.src();
                src.walk_ended = true;
                src.machine.handle_walk_end(Totals::default());
            }
        }
    }

    fn answers(&self, op: &SourceOp) -> bool {
        self.targets.as_ref().is_none_or(|targets| targets.answers(op, self.now))
    }

    /// An operation of the source's storage that can end now.
    pub fn some_source_op(&self) -> Option<usize> {
        self.s.source.as_ref()?.ops.iter().position(|(op, _)| self.answers(op))
    }

    /// Executes one operation of the source's storage.
    pub fn source_exec(&mut self) {
        let count = self.src().ops.len();
        let mut at = self.rng.usize(..count);
        if !self.answers(&self.s.source.as_ref().expect("the source runs").ops[at].0) {
            at = self.some_source_op().expect("one can be done");
        }
        let (op, buffer) = self.src().ops.swap_remove(at);
        self.note(|| format!("source does {op:?}"));
        let done = match op {
            SourceOp::Locate { files } => {
                let targets = self.targets.as_mut().expect("who asks has targets");
                let located = files.into_iter().map(|(id, generation)| (id, generation, targets.layout()));
                SourceDone::Locate { files: located.collect() }
            }
            SourceOp::Read { id, generation, offset, len, tail, whole, target } => {
                let buffer = buffer.expect("a read has one");
                let result = self.read(id, generation, offset, u64::from(len), tail, whole);
                let result = match result {
                    Ok((cvs, blocks)) => {
                        self.src().buffers.get_mut(&buffer).expect("it was taken").blocks = vec![blocks];
                        Ok(ReadOk { buffer, cvs })
                    }
                    Err(failure) => {
                        self.free_source(buffer);
                        Err(failure)
                    }
                };
                let service = match &mut self.targets {
                    Some(targets) => targets.service(target),
                    None => Some(Duration::from_millis(1)),
                };
                SourceDone::Read { id, generation, offset, len, target, service, result }
            }
            SourceOp::ReadBundle { files } => {
                let buffer = buffer.expect("a read has one");
                let (mut items, mut all, mut sum) = (Vec::new(), Vec::new(), 0);
                for file in files {
                    let result = self.read_small(file.id, file.generation, u64::from(file.size));
                    let result = result.map(|(ok, blocks)| {
                        if ok.look != Look::Changed {
                            all.push(blocks);
                            sum += u64::from(file.size);
                        }
                        ok
                    });
                    items.push((file, result));
                }
                let src = self.src();
                let payload = src.buffers.get_mut(&buffer).expect("it was taken");
                payload.blocks = all;
                src.used -= payload.cost - credit_cost(sum);
                payload.cost = credit_cost(sum);
                SourceDone::ReadBundle { buffer, items }
            }
            SourceOp::Map { id, generation } => {
                let result = self.current(id, generation).and_then(|(view, now)| {
                    let now = self.as_prefix(&view, now);
                    let map = || map_of(&now.keys(), now.len, |key| key != ZERO);
                    now.same_content(&view).then(map).ok_or(failure(FailureKind::Changed, 0))
                });
                SourceDone::Map { id, generation, result }
            }
            SourceOp::Look { id, generation } => {
                let result = self.view(id, generation).map(|view| self.look(id, &view));
                SourceDone::Look { id, generation, result }
            }
            SourceOp::Verify { id, generation, size, subtrees } => {
                let result = self.current(id, generation).map(|(view, now)| {
                    let now = self.as_prefix(&view, now);
                    let keys = now.keys();
                    let fits = |s: &haul_core::digest::Subtree| {
                        let first = (s.offset / BLOCK) as usize;
                        mixed_node(&keys[first..first + blocks_of(s.len)], now.len, s.offset, s.len) == s.cv
                    };
                    now.len == size && subtrees.iter().all(fits)
                });
                SourceDone::Verify { id, generation, result }
            }
            SourceOp::HashFile { id, generation, map, seen, parts } => {
                let result = self.current(id, generation).and_then(|(view, now)| {
                    let (mut same, now) = match seen {
                        Some(seen) => (now.same_content(&view) && now.fingerprint() == *seen, now),
                        None => {
                            let now = self.as_prefix(&view, now);
                            (now.len == view.len && now.ino == view.ino, now)
                        }
                    };
                    let mut keys = now.keys();
                    let mapped = map.is_some();
                    if let Some(map) = map.filter(|_| same) {
                        for (i, key) in keys.iter_mut().enumerate() {
                            if map.at(i as u64 * BLOCK).is_none() {
                                same &= *key == ZERO;
                                *key = NOTHING;
                            }
                        }
                    }
                    let value = |(offset, len): &(u64, u64)| {
                        let first = (offset / BLOCK) as usize;
                        mixed_node(&keys[first..first + blocks_of(*len)], now.len, *offset, *len)
                    };
                    let hash = || HashOk {
                        root: if mapped { root_of(&keys, now.len) } else { plain_root(&keys, now.len) },
                        cvs: parts.iter().map(value).collect(),
                    };
                    let count = parts.len() as u64;
                    same.then(hash)
                        .inspect(|_| TWICE.set(TWICE.get() + count))
                        .ok_or(failure(FailureKind::Changed, 0))
                });
                SourceDone::HashFile { id, generation, result }
            }
            SourceOp::Refresh { id, generation } => {
                let entry = self.entry(id);
                let result = match self.tree.version(entry).filter(|_| self.tree.entries[entry].alive) {
                    Some(now) => {
                        self.src().views.insert(id, (generation, now));
                        self.s.announced.insert((id, generation), now);
                        let not_before = self.settles(entry, id, generation);
                        Ok((now.fingerprint(), now.meta(), not_before.since(self.now)))
                    }
                    None => Err(failure(FailureKind::Open, 2)),
                };
                SourceDone::Refresh { id, generation, result }
            }
            SourceOp::Forget { id } => {
                self.src().views.remove(&id);
                return;
            }
            SourceOp::ForgetDir { .. } => return,
        };
        self.src().dones.push(done);
    }

    /// Flash does something.
    pub fn spill_exec(&mut self) {
        let count = self.src().spill_ops.len();
        let at = self.rng.usize(..count);
        let op = self.src().spill_ops.swap_remove(at);
        let broken = !self.quiet && self.rng.u8(..60) == 0;
        let result = if broken { Err(failure(FailureKind::Write, 28)) } else { Ok(()) };
        let src = self.src();
        match op {
            SpillOp::Store { slot, buffer } => {
                if !broken {
                    let blocks =
                        src.buffers.get(&buffer).expect("it is stored before it is freed").blocks.clone();
                    src.flash.insert(slot, blocks);
                }
                self.note(|| format!("flash stores {slot}: {result:?}"));
                self.src().machine.handle_stored(slot, result);
            }
            SpillOp::Fetch { slot, buffer } => {
                let blocks = src.flash.remove(&slot).expect("what is fetched was stored");
                match broken {
                    true => self.free_source(buffer),
                    false => src.buffers.get_mut(&buffer).expect("it was taken").blocks = blocks,
                }
                FETCHED.set(FETCHED.get() + 1);
                self.note(|| format!("flash fetches {slot}: {result:?}"));
                self.src().machine.handle_fetched(slot, result.map(|()| buffer));
            }
        }
    }

    fn new_buffer(&mut self, len: u64) -> BufferId {
        let src = self.src();
        src.next_buffer += 1;
        let (id, cost) = (BufferId(src.next_buffer), credit_cost(len));
        src.buffers.insert(id, Payload { cost, blocks: Vec::new() });
        src.used += cost;
        assert!(src.used <= src.memory, "source buffers: {} of {}", src.used, src.memory);
        id
    }

    fn view(&mut self, id: FileId, generation: Generation) -> Result<Version, Failure> {
        match self.src().views.get(&id) {
            Some((known, view)) if *known == generation => Ok(*view),
            _ => Err(failure(FailureKind::Changed, 0)),
        }
    }

    /// The version that is known of a file and the one that stands there now.
    fn current(&mut self, id: FileId, generation: Generation) -> Result<(Version, Version), Failure> {
        let view = self.view(id, generation)?;
        let entry = self.entry(id);
        if !self.tree.entries[entry].alive {
            return Err(failure(FailureKind::Open, 2));
        }
        if self.s.lost {
            // What was acknowledged of it must not be read again all the same.
            return Err(failure(FailureKind::Read, 111));
        }
        if !self.quiet && self.rng.u16(..600) == 0 {
            self.fault(entry);
            return Err(failure(FailureKind::Read, 5));
        }
        Ok((view, self.tree.version(entry).expect("a file")))
    }

    /// A look gives the fingerprint of a file. Before what time another change may leave that fingerprint as
    /// it is: of some that were never looked at before. Such a change comes then, or does not.
    fn settles(&mut self, entry: usize, id: FileId, generation: Generation) -> Time {
        let version = self.tree.version(entry).expect("a file");
        let is_first = self.looked_at.insert((entry, version.mtime));
        let pending =
            self.hidden.iter().filter(|hidden| hidden.entry == entry).map(|hidden| hidden.until).max();
        let ready = match self.young.u8(..3) {
            0 => Time(self.now.0 + self.young.u64(1..500_000_000)),
            _ => Time(0),
        };
        let ready = pending.map_or(ready, |until| ready.max(until));
        if is_first && self.hides && ready > self.now && self.young.bool() {
            let key = self.young.u8(1..=KEYS);
            self.hidden.push(Hidden { entry, version, until: ready, key });
        }
        self.src().ready.insert((id, generation), ready);
        ready
    }

    /// Changes that no look can show happen: those whose time is over, and some others.
    pub fn change_hidden(&mut self) {
        let mut at = 0;
        while at < self.hidden.len() {
            let Hidden { entry, version, until, key } = self.hidden[at];
            if until > self.now && self.young.u8(..20) != 0 {
                at += 1;
                continue;
            }
            self.hidden.swap_remove(at);
            let Kind::File(versions) = &mut self.tree.entries[entry].kind else { continue };
            let Some(last) = versions.last_mut().filter(|last| last.fingerprint() == version.fingerprint())
            else {
                continue;
            };
            last.key = key;
            self.acks[entry] = None;
            let new = *last;
            if self.changed == OnChange::Prefix {
                // As what a shorter version had grown to, it can have been copied.
                versions.insert(versions.len() - 1, Version { ino: HIDDEN, ..version });
            }
            self.note(|| format!("{entry} is changed unseen: {version:?} is {new:?}"));
            let same = |known: &&mut Version| {
                known.fingerprint() == version.fingerprint() && known.key == version.key
            };
            let ids: Vec<FileId> =
                (1..=self.s.ids.len() as u64).map(FileId).filter(|id| self.entry(*id) == entry).collect();
            for id in ids {
                let announced = self.s.announced.iter_mut().filter(|((known, _), _)| *known == id);
                announced.map(|(_, version)| version).filter(same).for_each(|known| *known = new);
                let view = self.s.source.as_mut().and_then(|src| src.views.get_mut(&id));
                view.map(|(_, version)| version).filter(same).into_iter().for_each(|known| *known = new);
            }
        }
    }

    /// The beginnings of files that grow are copied.
    pub fn prefixes(&self) -> bool {
        self.changed == OnChange::Prefix
    }

    /// What is to be copied of a file as it is now.
    fn as_prefix(&self, view: &Version, now: Version) -> Version {
        let grows = self.prefixes() && now.ino == view.ino && now.len >= view.len;
        if grows { now.cut(view.len) } else { now }
    }

    fn look(&mut self, id: FileId, view: &Version) -> Look {
        let entry = self.entry(id);
        let now = self.tree.version(entry).expect("a file");
        if !self.tree.entries[entry].alive {
            Look::Changed
        } else if !now.same_content(view) {
            let grown = self.prefixes() && now.ino == view.ino && now.len >= view.len;
            GROWN.set(GROWN.get() + u64::from(grown));
            if grown { Look::Grown { size: now.len } } else { Look::Changed }
        } else if now.ino != view.ino || now.ctime != view.ctime {
            let settle = Duration::from_millis(if self.young.bool() { self.young.u64(1..400) } else { 0 });
            Look::MetaOnly { seen: now.fingerprint(), settle }
        } else {
            Look::Same
        }
    }

    fn read(
        &mut self,
        id: FileId,
        generation: Generation,
        offset: u64,
        len: u64,
        tail: bool,
        whole: bool,
    ) -> Result<(Vec<[u8; 32]>, Vec<u8>), Failure> {
        let (view, now) = self.current(id, generation)?;
        let now = self.as_prefix(&view, now);
        if now.len < offset + len {
            return Err(failure(FailureKind::Changed, 0));
        }
        self.src().payload_reads += 1;
        let blocks = blocks_of(len);
        if now.len != view.len {
            // Grown: bytes of a version that nobody announced.
            let cvs = if whole { 1 } else { subtrees(offset, len, tail).count() };
            return Ok((vec![[now.key; 32]; cvs], vec![GARBAGE; blocks]));
        }
        let first = (offset / BLOCK) as usize;
        self.check_not_acknowledged(id, first..first + blocks);
        let keys = now.keys();
        let node = |(o, l)| mixed_node(&keys[(o / BLOCK) as usize..][..blocks_of(l)], now.len, o, l);
        let cvs = match whole {
            true => vec![plain_root(&keys, now.len)],
            false => subtrees(offset, len, tail).map(node).collect(),
        };
        Ok((cvs, keys[first..first + blocks].to_vec()))
    }

    fn read_small(
        &mut self,
        id: FileId,
        generation: Generation,
        len: u64,
    ) -> Result<(BundleOk, Vec<u8>), Failure> {
        const CHANGED: BundleOk = BundleOk { root: [0; 32], look: Look::Changed };
        let (view, now) = self.current(id, generation)?;
        let now = self.as_prefix(&view, now);
        if now.len != len || view.len != len {
            return Ok((CHANGED, Vec::new()));
        }
        self.src().payload_reads += 1;
        let look = self.look(id, &view);
        if look == Look::Changed {
            return Ok((CHANGED, Vec::new()));
        }
        self.check_not_acknowledged(id, 0..blocks_of(len));
        let keys = now.keys();
        Ok((BundleOk { root: plain_root(&keys, len), look }, keys))
    }

    fn free_source(&mut self, buffer: BufferId) {
        let src = self.src();
        let payload = src.buffers.remove(&buffer).expect("a buffer is freed once");
        src.used -= payload.cost;
    }

    /// A completion reaches the source's machine.
    pub fn source_done(&mut self) {
        let count = self.src().dones.len();
        let at = self.rng.usize(..count);
        let done = self.src().dones.swap_remove(at);
        self.note(|| format!("source hears {done:?}"));
        let now = self.now;
        if self.s.lost {
            self.tell_lost();
        }
        self.src().machine.handle_done(done, now);
    }

    /// From now on nothing can be read; the machine hears that first.
    pub fn source_lost(&mut self) {
        if self.s.source.is_some() {
            self.s.lost = true;
            LOST.set(LOST.get() + 1);
            self.tell_lost();
            self.source_act();
        }
    }

    /// As a store says it, again and again.
    fn tell_lost(&mut self) {
        let now = self.now;
        let gone = SourceDone::Gone { failure: failure(FailureKind::Read, 111) };
        self.src().machine.handle_done(gone, now);
    }

    /// A message reaches the source's machine.
    pub fn source_message(&mut self) {
        let (message, tell) = self.s.down.take();
        if let Some(tell) = tell {
            self.s.up.send(&tell);
        }
        match message {
            Some(Message::Received(number)) => self.s.up.received(number),
            Some(message) => {
                self.note(|| format!("source gets {message:?}"));
                self.src().machine.handle_message(message);
            }
            None => {}
        }
    }

    /// A stream's thread tells the source something.
    pub fn sender_tells(&mut self, stream: usize) {
        let Some(told) = self.s.streams[stream].told.pop_front() else { return };
        let id = self.s.streams[stream].id;
        match told {
            Told::Sent(seq) => self.src().machine.handle_sent(id, seq),
            Told::Lost => {
                self.note(|| format!("source loses stream {id}"));
                self.src().machine.handle_stream_lost(id);
            }
        }
    }

    /// The sender's thread hands a frame to the network.
    pub fn sender_sends(&mut self, stream: usize) {
        let Some(frame) = self.s.streams[stream].queue.pop_front() else { return };
        if let Some(src) = &mut self.s.source {
            src.used -= frame.cost;
        }
        let stream = &mut self.s.streams[stream];
        stream.told.push_back(Told::Sent(frame.seq));
        stream.wire.push_back(frame);
    }

    /// Does what the source's machine asks.
    pub fn source_act(&mut self) {
        while let Some(action) = self.s.source.as_mut().and_then(|src| src.machine.poll_action()) {
            match action {
                SourceAction::Submit(op) => {
                    let src = self.src();
                    let reads = matches!(op, SourceOp::Read { .. } | SourceOp::ReadBundle { .. });
                    assert!(!(src.paused && reads), "a paused source reads {op:?}");
                    let files = match &op {
                        SourceOp::Read { id, generation, .. }
                        | SourceOp::Map { id, generation }
                        | SourceOp::Verify { id, generation, .. } => vec![(*id, *generation)],
                        SourceOp::ReadBundle { files } => {
                            files.iter().map(|file| (file.id, file.generation)).collect()
                        }
                        _ => Vec::new(),
                    };
                    for file in files {
                        let ready = self.src().ready[&file];
                        assert!(ready <= self.now, "{op:?} comes too early");
                    }
                    let len = match &op {
                        SourceOp::Read { len, .. } => Some(u64::from(*len)),
                        SourceOp::ReadBundle { files } => Some(files.iter().map(|f| u64::from(f.size)).sum()),
                        _ => None,
                    };
                    let buffer = len.map(|len| self.new_buffer(len));
                    self.src().ops.push((op, buffer));
                }
                SourceAction::Send(message) => {
                    self.note(|| format!("source sends {message:?}"));
                    self.s.up.send(&message);
                }
                SourceAction::SendData { stream, header, buffer } => {
                    let buffer = buffer.expect("the source gives a buffer with every frame");
                    let src = self.src();
                    assert!(!src.paused, "a paused source sends {header:?}");
                    let payload = src.buffers.remove(&buffer).expect("a buffer is freed once");
                    let cost = payload.cost;
                    let at = usize::from(stream.0) - 1;
                    let stream = &mut self.s.streams[at];
                    let seq = stream.next_seq();
                    let frame = Frame::new(&header, stream.id, seq, payload.blocks, cost);
                    if stream.up {
                        stream.queue.push_back(frame);
                    } else {
                        self.src().used -= cost;
                    }
                    self.note(|| format!("source sends {header:?} as {seq} on {}", at + 1));
                }
                SourceAction::FreeBuffer(buffer) => self.free_source(buffer),
                SourceAction::Store { slot, buffer, .. } => {
                    self.src().spill_ops.push(SpillOp::Store { slot, buffer })
                }
                SourceAction::Fetch { slot, len } => {
                    let buffer = self.new_buffer(u64::from(len));
                    self.src().spill_ops.push(SpillOp::Fetch { slot, buffer });
                }
                SourceAction::Notice(_) => {}
                SourceAction::CloseStream(stream) => {
                    let at = usize::from(stream.0) - 1;
                    let freed = self.s.streams[at].cut(&mut self.rng, true);
                    self.src().used -= freed;
                }
                SourceAction::EntryEnded { id, end, root, .. } => {
                    self.note(|| format!("source: {id} ended {end:?}"));
                    let src = self.src();
                    src.open = src.open.checked_sub(1).expect("an entry ends once");
                    self.entry_ended(id, &end, root);
                }
                SourceAction::Finished(end) => {
                    self.note(|| format!("source finished: {end:?}"));
                    if end == haul_core::transfer::SessionEnd::Complete {
                        assert_eq!(self.src().open, 0, "complete, but entries are open at the source");
                    }
                    self.s.source_end = Some(end);
                    self.source_gone(true);
                    return;
                }
            }
        }
    }

    fn entry_ended(&mut self, id: FileId, end: &Ended, root: Option<[u8; 32]>) {
        let entry = self.entry(id);
        match end {
            Ended::Copied => {
                if let Some(version) = self.tree.version(entry) {
                    let sparse = self.holes && version.holes != 0;
                    assert!(
                        root.is_some() || sparse || !self.quiet || self.freezes.in_aside,
                        "a copied file has a root"
                    );
                }
                self.s.copied += 1;
                self.s.right.insert(entry);
                self.s.copies.insert(entry);
            }
            Ended::Unchanged => {
                self.s.unchanged += 1;
                self.s.right.insert(entry);
            }
            Ended::Skipped => {}
            Ended::Failed(failure) => {
                self.s.failed += 1;
                // One that the store lost, too, may be asked for more often than the source sends it.
                let often = self.ascending.is_some() && failure.text.contains("again and again");
                let digest = failure.kind == FailureKind::Digest && !often;
                assert!(!digest, "entry {entry}: digests differ at the end");
                let disputed = self.freezes.in_aside || self.s.follows;
                assert!(!self.quiet || disputed, "entry {entry} failed without a fault: {failure:?}");
            }
        }
    }
}
