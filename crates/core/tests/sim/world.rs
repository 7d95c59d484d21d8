//! One run: sessions of both machines with faults, then quiet ones until all is there, and the judge.
//!
//! A run is one seed. Each step picks one of the things that can happen next: an operation is executed, a
//! completion or a message arrives, a stream moves or breaks, the source's tree changes, an end dies.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use fastrand::Rng;
use haul_core::digest::DigestKind;
use haul_core::ids::{FileId, Generation, StreamId, Time};
use haul_core::schedule::Policy;
use haul_core::transfer::SessionEnd;
use haul_core::transfer::source::{OnChange, Source, SourceConfig, SpillConfig};
use haul_core::wire::{Agreed, Failure, FailureKind};

use super::disk::{Disk, JournalFile, Node};
use super::frozen::Freezes;
use super::link::{Control, Stream};
use super::model::{BLOCK, Kind, OLD, Tree, Version, blocks_of};
use super::sink::SinkEnd;
use super::source::{SourceEnd, Step};
use super::targets::Targets;

/// Steps that one session may take. The longest ones of good code take a tenth of it.
const STEPS_MAX: u32 = 60_000;
/// In worlds of these seeds the sink's store takes files once more that it lost.
const FORGETS: u64 = 6;
/// Events that are kept for a failure's report.
const TRACE_MAX: usize = 400;

thread_local! {
    /// Temporaries that were altered between sessions.
    pub static ALTERED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    static TRACE: RefCell<Option<VecDeque<String>>> = const { RefCell::new(None) };
}

/// Begins to keep what happens.
pub fn trace_start() {
    TRACE.set(Some(VecDeque::new()));
}

/// What happened last, if it was kept.
pub fn trace_take() -> Vec<String> {
    TRACE.take().map(Vec::from).unwrap_or_default()
}

/// What the sink acknowledged of a file: these blocks need not be read again.
#[derive(Clone, Debug)]
pub struct Ack {
    pub version: Version,
    pub blocks: Vec<bool>,
}

/// What shall happen to a session, besides faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    None,
    KillSource,
    KillSink,
    PowerCut,
    StopSource,
    /// The place that it lies at cannot be reached any more.
    LoseSource,
    StopSink,
    Freeze,
}

/// One session and what connects its ends.
pub struct Session {
    pub ids: Vec<usize>,
    pub announced: HashMap<(FileId, Generation), Version>,
    pub up: Control,
    pub down: Control,
    pub streams: Vec<Stream>,
    pub source: Option<SourceEnd>,
    pub sink: Option<SinkEnd>,
    pub source_end: Option<SessionEnd>,
    pub sink_end: Option<SessionEnd>,
    /// Storage and network may fail.
    pub faults: bool,
    /// Nothing of the source can be reached any more.
    pub lost: bool,
    /// How much likelier than usual: changes of the source, faults of storage, breaks of streams, damage.
    pub heat: [u16; 4],
    /// The sink's file system is full now.
    pub full: bool,
    pub faulty: Vec<usize>,
    pub done: Vec<usize>,
    /// Files of which parts were found.
    pub held: Vec<usize>,
    pub copied: u64,
    pub unchanged: u64,
    /// Entries that ended well at the source, those of them that were copied, and how many failed.
    pub right: HashSet<usize>,
    pub copies: HashSet<usize>,
    pub failed: u64,
    /// The run before may still publish something.
    pub follows: bool,
    weights: [u8; EVENTS],
    /// Streams may join later, and control again.
    joins: bool,
    /// Control is lost.
    dark: bool,
}

pub struct World {
    pub rng: Rng,
    pub tree: Tree,
    pub disk: Disk,
    pub journal: JournalFile,
    pub acks: Vec<Option<Ack>>,
    pub now: Time,
    pub boot: u8,
    pub tags: u32,
    pub epoch: u32,
    pub durable: bool,
    pub object_size: u32,
    /// Both ends know sparse files.
    pub holes: bool,
    /// Nothing fails and nothing changes any more.
    pub quiet: bool,
    /// Someone pauses sessions, and changes their live settings. Numbers of its own, so that the other seeds
    /// stay what they were.
    live_settings: Option<Rng>,
    /// The source has a spill file. Numbers of its own, too.
    spill: Option<Rng>,
    /// The source's files lie on several targets.
    pub targets: Option<Targets>,
    /// The sink's file system has several storage targets. Likewise.
    pub sink_targets: Option<Rng>,
    /// The sink's store takes bytes in ascending order alone. Likewise.
    pub ascending: Option<Rng>,
    /// The sink's store takes once more what it lost with a sync that failed. Likewise.
    pub forgets: Option<Rng>,
    /// Both ends know how striped files are cut.
    pub layouts: bool,
    /// What the user chose for files that change; where that is to copy the beginning of those that grow,
    /// some do. Numbers of its own.
    pub changed: OnChange,
    pub grows: Option<Rng>,
    /// Sources are lost that would be stopped.
    loses: bool,
    /// How young files are, and what happens to them unseen. Numbers of its own, too.
    pub young: Rng,
    /// Changes may leave a fingerprint as it is: no file stood at the destination before, which would count
    /// as unchanged.
    pub hides: bool,
    /// Files by mtime that were looked at.
    pub looked_at: HashSet<(usize, i64)>,
    pub hidden: Vec<Hidden>,
    /// Somebody alters temporaries between the sessions. Numbers of its own, too; and the entries that were
    /// struck.
    alters: Option<Rng>,
    pub altered: HashSet<usize>,
    /// Inodes that have a final name, by the epoch that gave it.
    pub published: HashMap<usize, u32>,
    pub freezes: Freezes,
    pub s: Session,
}

/// A change that leaves the fingerprint as it is, for it comes in the same grain of the clock.
#[derive(Clone, Copy, Debug)]
pub struct Hidden {
    pub entry: usize,
    pub version: Version,
    /// It comes before this time.
    pub until: Time,
    pub key: u8,
}

const EVENTS: usize = 15;
/// Streams that a session of the simulator has over its life, at most.
const STREAMS_MAX: usize = 12;

#[derive(Clone, Copy, Debug)]
enum Event {
    SourceExec,
    SourceDone,
    SinkExec,
    JournalExec,
    SinkDone,
    Up,
    Down,
    Send(usize),
    Tell(usize),
    Arrive(usize),
    StreamEnd(usize),
    Walk,
    JoinSource(usize),
    JoinSink(usize),
    Rejoin,
    SpillExec,
}

impl Event {
    fn sink_target(self) -> usize {
        match self {
            Event::SourceExec | Event::SpillExec => 0,
            Event::SourceDone => 1,
            Event::SinkExec => 2,
            Event::JournalExec => 3,
            Event::SinkDone => 4,
            Event::Up => 5,
            Event::Down => 6,
            Event::Send(_) => 7,
            Event::Tell(_) => 8,
            Event::Arrive(_) => 9,
            Event::StreamEnd(_) => 10,
            Event::Walk => 11,
            Event::JoinSource(_) => 12,
            Event::JoinSink(_) => 13,
            Event::Rejoin => 14,
        }
    }
}

pub fn no_session() -> Session {
    Session {
        ids: Vec::new(),
        announced: HashMap::new(),
        up: Control::default(),
        down: Control::default(),
        streams: Vec::new(),
        source: None,
        sink: None,
        source_end: None,
        sink_end: None,
        faults: false,
        lost: false,
        heat: [1; 4],
        full: false,
        faulty: Vec::new(),
        done: Vec::new(),
        held: Vec::new(),
        copied: 0,
        unchanged: 0,
        right: HashSet::new(),
        copies: HashSet::new(),
        failed: 0,
        follows: false,
        weights: [1; EVENTS],
        joins: false,
        dark: false,
    }
}

/// Runs one seed to its end; panics where something is wrong. Returns the steps that it took.
pub fn run(seed: u64) -> u64 {
    let mut world = World::new(seed);
    if seed % 11 == 8 {
        world.ascend(seed);
    }
    if seed % 13 == FORGETS {
        world.forgets = Some(Rng::with_seed(!seed));
    }
    let mut steps = 0;
    let mut targets = (seed % 8 >= 4).then(|| Rng::with_seed(!seed));
    for _ in 0..world.rng.u8(..8) {
        world.targets = targets.as_mut().map(|rng| Targets::new(rng.fork(), world.now));
        steps += world.session();
    }
    world.quiet = true;
    world.note(|| "quiet from here".into());
    steps + world.run_quiet()
}

impl World {
    /// The world of a seed, before its first session.
    pub fn new(seed: u64) -> World {
        let mut rng = Rng::with_seed(seed);
        let tree = Tree::new(&mut rng);
        let durable = rng.u8(..5) != 0;
        let mut world = World {
            acks: vec![None; tree.entries.len()],
            tree,
            disk: Disk::new(),
            journal: JournalFile::default(),
            now: Time(0),
            boot: 1,
            tags: 0,
            epoch: 0,
            durable,
            object_size: BLOCK as u32,
            holes: rng.u8(..5) != 0,
            quiet: false,
            live_settings: (seed % 4 == 3).then(|| Rng::with_seed(!seed)),
            spill: matches!(seed % 8, 1 | 2 | 5).then(|| Rng::with_seed(!seed)),
            targets: None,
            sink_targets: (seed % 4 == 2).then(|| Rng::with_seed(!seed)),
            ascending: None,
            forgets: None,
            layouts: !seed.is_multiple_of(3),
            changed: match seed % 10 {
                1 | 4 => OnChange::Prefix,
                9 => OnChange::Fail,
                _ => OnChange::Retry,
            },
            grows: matches!(seed % 10, 1 | 4).then(|| Rng::with_seed(!seed)),
            loses: seed.is_multiple_of(7),
            young: Rng::with_seed(!seed),
            hides: true,
            looked_at: HashSet::new(),
            hidden: Vec::new(),
            alters: (seed % 5 < 2).then(|| Rng::with_seed(!seed)),
            altered: HashSet::new(),
            published: HashMap::new(),
            freezes: Freezes::default(),
            s: no_session(),
            rng,
        };
        world.stand_already();
        world
    }

    /// The sink's store is one that takes bytes in ascending order, loses files, and knows no holes.
    fn ascend(&mut self, seed: u64) {
        (self.holes, self.sink_targets, self.ascending) = (false, None, Some(Rng::with_seed(!seed)));
    }

    /// Nothing happens any more: one session completes, and another finds all unchanged. Returns the steps
    /// that they took.
    pub fn run_quiet(&mut self) -> u64 {
        let mut steps = self.session();
        assert_eq!(self.s.source_end, Some(SessionEnd::Complete), "a quiet session ends complete");
        assert_eq!(self.s.sink_end, Some(SessionEnd::Complete), "a quiet session ends complete");
        self.judge_copy();
        steps += self.session();
        assert_eq!(self.s.source_end, Some(SessionEnd::Complete));
        assert_eq!(self.s.sink_end, Some(SessionEnd::Complete));
        self.judge_copy();
        let files = (0..self.tree.entries.len())
            .filter(|e| self.tree.entries[*e].alive && self.tree.version(*e).is_some())
            .count();
        assert_eq!(self.s.unchanged, files as u64, "a second run finds all unchanged");
        steps
    }

    pub fn note(&self, text: impl FnOnce() -> String) {
        TRACE.with_borrow_mut(|trace| {
            if let Some(trace) = trace {
                if trace.len() == TRACE_MAX {
                    trace.pop_front();
                }
                trace.push_back(format!("{:>9} {}", self.now.0 / 1000, text()));
            }
        });
    }

    /// The entry that has this id in the session.
    pub fn entry(&self, id: FileId) -> usize {
        self.s.ids[id.0 as usize - 1]
    }

    /// The directories above an entry, outermost first.
    pub fn path_of(&self, entry: usize) -> Vec<usize> {
        let mut path = Vec::new();
        let mut at = self.tree.entries[entry].parent;
        while let Some(dir) = at {
            path.push(dir);
            at = self.tree.entries[dir].parent;
        }
        path.reverse();
        path
    }

    /// Some files stand at the destination from before, as old copies or as other content.
    fn stand_already(&mut self) {
        if self.rng.u8(..4) != 0 {
            return;
        }
        self.hides = false;
        for entry in 0..self.tree.entries.len() {
            let parent = self.tree.entries[entry].parent;
            if !self.disk.has_dir(parent) || self.rng.bool() {
                continue;
            }
            match self.tree.version(entry) {
                None if matches!(self.tree.entries[entry].kind, Kind::Dir) => {
                    self.disk.make_dir(parent, entry);
                }
                None => self.disk.make_link(parent, (entry, None)),
                Some(version) => {
                    let file = self.disk.make_file(parent, (entry, None));
                    let same = self.rng.bool();
                    let (keys, len) = match same {
                        true => (version.keys(), version.len),
                        false => (vec![OLD; blocks_of(70_000)], 70_000),
                    };
                    self.disk.write(file, 0, &keys, len);
                    self.disk.files[file].mtime = if same { version.mtime } else { 3 };
                    self.disk.sync_file(file, true);
                }
            }
            self.disk.sync_dir(parent);
        }
    }

    /// The order of a walk: each directory's entries in random order, subtrees at any time after.
    fn walk_order(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut todo = vec![None];
        while !todo.is_empty() {
            let at = self.rng.usize(..todo.len());
            let dir = todo.swap_remove(at);
            let mut inside: Vec<usize> =
                (0..self.tree.entries.len()).filter(|e| self.tree.entries[*e].parent == dir).collect();
            self.rng.shuffle(&mut inside);
            for entry in inside {
                if matches!(self.tree.entries[entry].kind, Kind::Dir) {
                    todo.push(Some(entry));
                }
                steps.push(Step::Entry(entry));
            }
            steps.push(Step::DirEnd(dir));
        }
        steps.reverse();
        steps
    }

    /// One session, from start to the end of both ends. Returns the steps that it took.
    pub fn session(&mut self) -> u64 {
        self.s = no_session();
        self.begin_apart();
        if !self.quiet {
            for _ in 0..self.rng.u8(..3) {
                self.disturb();
            }
        }
        self.alter_temporaries();
        self.s.faults = !self.quiet && self.rng.u8(..3) != 0;
        for heat in &mut self.s.heat {
            *heat = [1, 1, 4, 10][self.rng.usize(..4)];
        }
        for weight in &mut self.s.weights {
            *weight = [1, 4, 4, 16][self.rng.usize(..4)];
        }
        self.object_size = if self.rng.u8(..4) == 0 { 2 * BLOCK as u32 } else { BLOCK as u32 };
        let streams = self.rng.u16(1..=3);
        self.s.streams = (1..=streams).map(|id| Stream::new(StreamId(id))).collect();
        let memory = [3, 8, 64][self.rng.usize(..3)] * BLOCK;
        let dirs = self.tree.entries.iter().filter(|e| matches!(e.kind, Kind::Dir)).count() as u32;
        let entries_max = dirs + [2, 4, 1000][self.rng.usize(..3)];
        let wait = self.start_sink(memory, entries_max);
        let memory = [2, 4, 16][self.rng.usize(..3)] * BLOCK * 2;
        let reads_max = self.rng.u32(1..6);
        self.s.joins = self.rng.u8(..3) != 0;
        let patience = Duration::from_secs(if self.s.joins { 300 } else { 0 });
        let (holes, digest) = (self.holes, DigestKind::Blake3);
        let (reads_total, policy, bundle_files) = match &self.targets {
            // As of a store that small files cost round trips.
            Some(targets) => (2 * reads_max, targets.policy, 3),
            None => (reads_max, Policy::ADAPTIVE, 512),
        };
        let mut machine = Source::new(SourceConfig {
            agreed: Agreed {
                holes,
                digest,
                targets: self.sink_targets.is_some(),
                layouts: self.layouts,
                ..Agreed::plain(entries_max)
            },
            memory,
            reads_max,
            reads_total,
            bundle_files,
            policy,
            wait,
            dry: false,
            root: false,
            clones: false,
            changed: self.changed,
            verify: false,
            compares: true,
            patience,
        });
        if let Some(rng) = &mut self.spill {
            let (slots, stall) = (rng.u32(1..8), Duration::from_millis(rng.u64(..3)));
            machine.use_spill(SpillConfig { slots, slot_len: 2 * BLOCK as u32, stall });
        }
        for stream in &self.s.streams {
            machine.handle_stream_up(stream.id);
        }
        let walk = self.walk_order();
        self.s.source = Some(SourceEnd::new(machine, walk, memory, entries_max));
        let fate = match self.quiet {
            true => Fate::None,
            false => [
                Fate::None,
                Fate::KillSource,
                Fate::KillSink,
                Fate::PowerCut,
                Fate::PowerCut,
                Fate::StopSource,
                Fate::StopSink,
            ][self.rng.usize(..7)],
        };
        let fate = if self.may_freeze() { Fate::Freeze } else { fate };
        // Who follows a frozen run dies young now and then, so that another follows both.
        let young = self.dies_young();
        let fate = if young.is_some() { Fate::KillSink } else { fate };
        let fate = if fate == Fate::StopSource && self.loses { Fate::LoseSource } else { fate };
        let fate_at = if self.rng.bool() { self.rng.u32(..120) } else { self.rng.u32(..800) };
        let fate_at = young.unwrap_or(fate_at);
        self.note(|| {
            format!(
                "session {}: {fate:?} at {fate_at}, wait {wait}, durable {}, objects {}, {streams} streams, \
                 entries {entries_max}, holes {}",
                self.epoch, self.durable, self.object_size, self.holes
            )
        });
        self.source_act();
        self.sink_act();
        let mut steps = 0;
        while self.s.source.is_some() || self.s.sink.is_some() {
            steps += 1;
            assert!(steps < STEPS_MAX, "a session without an end");
            if steps == fate_at && fate != Fate::Freeze {
                self.suffer(fate);
            }
            if steps >= fate_at && fate == Fate::Freeze && self.freezes_now() {
                self.suffer(fate);
            }
            self.trouble();
            self.change_settings();
            self.step();
            self.step_aside();
        }
        self.give_word();
        u64::from(steps)
    }

    /// When a session dies that follows one that is still aside, if it is to.
    fn dies_young(&mut self) -> Option<u32> {
        let follows = self.freezes.aside.is_some() && !self.quiet;
        let rng = self.freezes.rng.as_mut().filter(|_| follows)?;
        rng.bool().then(|| rng.u32(..60))
    }

    /// The next fate is a frost: where somebody freezes, every other session that none is aside of.
    fn may_freeze(&mut self) -> bool {
        let free = self.freezes.aside.is_none() && !self.quiet;
        free && self.freezes.rng.as_mut().is_some_and(Rng::bool)
    }

    fn suffer(&mut self, fate: Fate) {
        self.note(|| format!("-- {fate:?}"));
        match fate {
            Fate::None => {}
            Fate::Freeze => self.freeze(),
            Fate::KillSource => self.source_gone(false),
            Fate::KillSink => self.sink_gone(false),
            Fate::PowerCut => self.power_cut(),
            Fate::StopSource => {
                if let Some(src) = &mut self.s.source {
                    src.machine.stop("test");
                    self.source_act();
                }
            }
            Fate::LoseSource => self.source_lost(),
            Fate::StopSink => {
                if let Some(snk) = &mut self.s.sink {
                    snk.machine.stop();
                    self.s.down.send(&haul_core::wire::Message::Stop { reason: "test".into() });
                    self.sink_act();
                }
            }
        }
    }

    /// The sink's host loses power.
    pub fn power_cut(&mut self) {
        let spare = !self.durable;
        self.disk.power_cut(&mut self.rng, spare);
        if self.journal.power_cut(&mut self.rng) {
            // A record that takes a file over voids what was said of it before; those that repeat it
            // may be torn off. That costs a re-send, never more.
            let held = std::mem::take(&mut self.s.held);
            held.into_iter().for_each(|entry| self.acks[entry] = None);
        }
        self.boot += 1;
        if !self.durable {
            self.acks.fill(None);
        }
        self.judge_names();
        self.forget_aside();
        // A name that was not on media may be a temporary's again.
        let named = |file: &usize| {
            self.disk.names().any(|(_, (_, tag), node)| tag.is_none() && node == Node::File(*file))
        };
        let unnamed: Vec<usize> = self.published.keys().copied().filter(|file| !named(file)).collect();
        for file in unnamed {
            self.published.remove(&file);
        }
        self.sink_gone(false);
    }

    /// Something happens to a file at the source.
    fn disturb(&mut self) {
        if let Some((entry, what, renewed)) = self.tree.disturb(&mut self.rng) {
            self.note(|| format!("-- {entry} is {what}: {:?}", self.tree.version(entry)));
            if renewed {
                self.acks[entry] = None;
            }
        }
    }

    /// Something is written behind the end of a file at the source.
    fn grow(&mut self) {
        let Some(rng) = &mut self.grows else { return };
        if rng.u8(..60) == 0
            && let Some(entry) = self.tree.grow(rng)
        {
            self.note(|| format!("-- {entry} grows: {:?}", self.tree.version(entry)));
            self.acks[entry] = None;
        }
    }

    /// Somebody, or a disk, changes what an interrupted session left.
    fn alter_temporaries(&mut self) {
        let mut temporaries: Vec<(usize, usize)> = self
            .disk
            .names()
            .filter_map(|(_, (entry, tag), node)| match node {
                Node::File(file) if tag.is_some() => Some((entry, file)),
                _ => None,
            })
            .collect();
        temporaries.sort_unstable();
        if self.freezes.aside.is_some() {
            // Somebody has them open.
            return;
        }
        let Some(rng) = &mut self.alters else { return };
        let mut told = Vec::new();
        for (entry, file) in temporaries {
            if rng.u8(..3) == 0 {
                told.push((entry, self.disk.alter(file, rng)));
                self.acks[entry] = None;
                self.altered.insert(entry);
            }
        }
        ALTERED.set(ALTERED.get() + told.len() as u64);
        for (entry, what) in told {
            self.note(|| format!("-- the temporary of {entry} is {what}"));
        }
    }

    /// What may go wrong at any time.
    fn trouble(&mut self) {
        if self.quiet {
            return;
        }
        if self.rng.u16(..200) < self.s.heat[0] {
            self.disturb();
        }
        self.grow();
        if self.s.faults && self.rng.u16(..300) < self.s.heat[2] {
            let at = self.rng.usize(..self.s.streams.len());
            self.note(|| format!("-- stream {} breaks", at + 1));
            let freed = self.s.streams[at].cut(&mut self.rng, false);
            if let Some(src) = &mut self.s.source {
                src.used -= freed;
            }
        }
        if self.s.joins && self.s.faults && self.rng.u16(..400) < self.s.heat[2] {
            self.trouble_of_joins();
        }
        if self.s.faults && self.rng.u16(..1500) == 0 {
            self.s.full = !self.s.full;
            self.note(|| format!("-- full: {}", self.s.full));
        }
    }

    /// Someone pauses the session or lets it go on, and changes how many streams and reads it has.
    fn change_settings(&mut self) {
        let Some(rng) = &mut self.live_settings else { return };
        let (pauses, streams, reads) = (rng.u8(..40) == 0, rng.u16(..4), rng.u32(..6));
        let turns = rng.u8(..40) == 0;
        if !pauses && !turns {
            return;
        }
        // What the machine asked for before is done before.
        self.source_act();
        let Some(src) = &mut self.s.source else { return };
        if turns {
            if streams > 0 {
                src.machine.use_streams(streams);
            }
            src.machine.handle_reads_max(reads, 2 * reads);
        }
        if pauses {
            let paused = !src.paused;
            self.pause(paused);
        }
    }

    fn pause(&mut self, paused: bool) {
        self.note(|| format!("-- paused: {paused}"));
        if let Some(src) = &mut self.s.source {
            src.paused = paused;
            src.machine.handle_pause(paused);
        }
    }

    /// Streams join and are parked; control breaks.
    fn trouble_of_joins(&mut self) {
        match self.rng.u8(..4) {
            0 if self.s.source.is_some() && self.s.sink.is_some() && !self.s.dark => {
                self.note(|| "-- control breaks".into());
                self.s.dark = true;
                self.s.up.darken(&mut self.rng);
                self.s.down.darken(&mut self.rng);
            }
            1 => {
                let wanted = self.rng.u16(1..4);
                self.note(|| format!("-- {wanted} streams are used"));
                if let Some(src) = &mut self.s.source {
                    src.machine.use_streams(wanted);
                }
            }
            _ => self.join_stream(),
        }
    }

    fn join_stream(&mut self) {
        if self.s.streams.len() < STREAMS_MAX && self.s.source.is_some() && self.s.sink.is_some() {
            let id = self.s.streams.len() as u16 + 1;
            self.note(|| format!("-- stream {id} joins"));
            self.s.streams.push(Stream::joining(StreamId(id)));
        }
    }

    /// Control is joined again: what was not received is sent again.
    fn rejoin(&mut self) {
        if std::mem::take(&mut self.s.dark) {
            self.note(|| "-- control is back".into());
            self.s.up.rejoin();
            self.s.down.rejoin();
        }
    }

    /// The source's end is over. `whole`: in good order, so that what it sent arrives.
    pub fn source_gone(&mut self, whole: bool) {
        if self.s.source.take().is_none() {
            return;
        }
        if whole && self.s.sink.is_some() {
            // An end that has a last word waits in the dark until it is heard.
            self.rejoin();
        }
        self.s.up.cut(&mut self.rng, whole);
        self.cut_streams();
    }

    /// The sink's end is over.
    pub fn sink_gone(&mut self, whole: bool) {
        if self.s.sink.take().is_none() {
            return;
        }
        if whole && self.s.source.is_some() {
            self.rejoin();
        }
        self.s.down.cut(&mut self.rng, whole);
        self.cut_streams();
    }

    fn cut_streams(&mut self) {
        for stream in &mut self.s.streams {
            let freed = stream.cut(&mut self.rng, false);
            if let Some(src) = &mut self.s.source {
                src.used -= freed;
            }
        }
    }

    /// One thing happens.
    pub fn step(&mut self) {
        if !self.step_unless(false, false) {
            self.wait();
        }
    }

    /// One thing happens that needs no frozen end. False: nothing does.
    pub fn step_unless(&mut self, source_frozen: bool, sink_frozen: bool) -> bool {
        self.now = Time(self.now.0 + self.rng.u64(1..4_000_000));
        self.change_hidden();
        let mut events = Vec::with_capacity(24);
        let walks = self.s.source.as_ref().is_some_and(|s| !s.walk_ended && s.machine.wants_entries());
        let mut push = |yes: bool, event: Event| {
            if yes {
                events.push(event);
            }
        };
        if let Some(src) = self.s.source.as_ref().filter(|_| !source_frozen) {
            push(self.some_source_op().is_some(), Event::SourceExec);
            push(!src.dones.is_empty(), Event::SourceDone);
            push(!src.spill_ops.is_empty(), Event::SpillExec);
            push(!self.s.down.is_empty() || (self.s.down.over && !self.s.down.told), Event::Down);
            push(walks, Event::Walk);
        }
        if let Some(snk) = self.s.sink.as_ref().filter(|_| !sink_frozen) {
            push(!snk.ops.is_empty(), Event::SinkExec);
            push(!snk.journal_ops.is_empty(), Event::JournalExec);
            push(!snk.dones.is_empty(), Event::SinkDone);
            push(!self.s.up.is_empty() || (self.s.up.over && !self.s.up.told), Event::Up);
        }
        let has_source = self.s.source.is_some() && !source_frozen;
        let has_sink = self.s.sink.is_some() && !sink_frozen;
        push(self.s.dark && has_source && has_sink, Event::Rejoin);
        for (i, stream) in self.s.streams.iter().enumerate() {
            let (source, sink) = (has_source && stream.source_knows, has_sink && stream.sink_knows);
            push(source && !stream.queue.is_empty(), Event::Send(i));
            push(source && !stream.told.is_empty(), Event::Tell(i));
            push(sink && !stream.wire.is_empty(), Event::Arrive(i));
            push(sink && !stream.up && stream.wire.is_empty() && !stream.sink_told, Event::StreamEnd(i));
            push(has_source && !stream.source_knows && !stream.missed, Event::JoinSource(i));
            push(has_sink && !stream.sink_knows && !stream.missed, Event::JoinSink(i));
        }
        let total: u32 = events.iter().map(|e| u32::from(self.s.weights[e.sink_target()])).sum();
        if total == 0 {
            return false;
        }
        let mut pick = self.rng.u32(..total);
        let event = *events
            .iter()
            .find(|e| {
                let weight = u32::from(self.s.weights[e.sink_target()]);
                let found = pick < weight;
                pick = pick.wrapping_sub(weight);
                found
            })
            .expect("the weights' sum is the total");
        self.happen(event);
        if let Some(src) = self.s.source.as_mut().filter(|_| !source_frozen) {
            src.machine.handle_tick(self.now);
        }
        if let Some(snk) = self.s.sink.as_mut().filter(|_| !sink_frozen) {
            snk.machine.handle_tick(self.now);
        }
        if self.rng.u8(..4) != 0 && !source_frozen {
            self.source_act();
        }
        if self.rng.u8(..4) != 0 && !sink_frozen {
            self.sink_act();
        }
        true
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::SourceExec => self.source_exec(),
            Event::SpillExec => self.spill_exec(),
            Event::SourceDone => self.source_done(),
            Event::SinkExec => self.sink_exec(),
            Event::JournalExec => self.journal_exec(),
            Event::SinkDone => self.sink_done(),
            Event::Up if self.s.up.is_empty() => {
                self.s.up.told = true;
                self.note(|| "sink loses control".into());
                self.s.sink.as_mut().expect("it runs").machine.handle_control_lost(gone("simulated"));
            }
            Event::Down if self.s.down.is_empty() => {
                self.s.down.told = true;
                self.note(|| "source loses control".into());
                self.s.source.as_mut().expect("it runs").machine.handle_control_lost(gone("simulated"));
            }
            Event::Up => self.sink_message(),
            Event::Down => self.source_message(),
            Event::Send(i) => self.sender_sends(i),
            Event::Tell(i) => self.sender_tells(i),
            Event::Arrive(i) => self.frame_arrives(i),
            Event::StreamEnd(i) => {
                self.s.streams[i].sink_told = true;
                let (id, frames) = (self.s.streams[i].id, self.s.streams[i].arrived);
                self.note(|| format!("sink loses stream {id} after {frames} frames"));
                self.s.sink.as_mut().expect("it runs").machine.handle_stream_lost(id, frames);
            }
            Event::Walk => self.walk_step(),
            Event::Rejoin => self.rejoin(),
            Event::JoinSource(i) | Event::JoinSink(i) if self.misses(i) => {
                // Of the two ends, one never hears that it joined; the connection is not kept then.
                self.note(|| format!("stream {} is known to one end only", i + 1));
                self.s.streams[i].missed = true;
                let freed = self.s.streams[i].cut(&mut self.rng, false);
                if let Some(src) = &mut self.s.source {
                    src.used -= freed;
                }
            }
            Event::JoinSource(i) => {
                self.s.streams[i].source_knows = true;
                let id = self.s.streams[i].id;
                self.note(|| format!("source has stream {id}"));
                self.s.source.as_mut().expect("it runs").machine.handle_stream_up(id);
            }
            Event::JoinSink(i) => {
                let id = self.s.streams[i].id;
                let takes = self.s.sink.as_mut().expect("it runs").machine.handle_stream_up(id);
                self.note(|| format!("sink has stream {id}: {takes}"));
                self.s.streams[i].sink_knows = takes;
                self.s.streams[i].missed = !takes;
                if !takes {
                    let freed = self.s.streams[i].cut(&mut self.rng, false);
                    if let Some(src) = &mut self.s.source {
                        src.used -= freed;
                    }
                }
            }
        }
    }

    /// The second end of a join is sometimes not reached.
    fn misses(&mut self, at: usize) -> bool {
        let stream = &self.s.streams[at];
        (stream.source_knows || stream.sink_knows) && self.rng.u8(..5) == 0
    }

    /// Nothing is under way: the machines act, or time passes until the next deadline.
    fn wait(&mut self) {
        self.source_act();
        self.sink_act();
        let idle = |world: &World| {
            let src = world.s.source.as_ref();
            let snk = world.s.sink.as_ref();
            world.some_source_op().is_none()
                && src.is_none_or(|s| s.spill_ops.is_empty() && s.dones.is_empty())
                && snk.is_none_or(|s| s.ops.is_empty() && s.dones.is_empty() && s.journal_ops.is_empty())
                && (src.is_none() || world.s.down.is_empty())
                && (snk.is_none() || world.s.up.is_empty())
                && world.s.streams.iter().all(|s| {
                    !s.source_knows || (s.queue.is_empty() && s.wire.is_empty() && s.told.is_empty())
                })
                && src.is_none_or(|s| s.walk_ended || !s.machine.wants_entries())
                && !(src.is_some() && world.s.down.over && !world.s.down.told)
                && !(snk.is_some() && world.s.up.over && !world.s.up.told)
        };
        if !idle(self) || (self.s.source.is_none() && self.s.sink.is_none()) {
            return;
        }
        if self.s.source.as_ref().is_some_and(|src| src.paused) {
            // All that was on its way has landed.
            let open = self.s.sink.as_ref().is_some_and(|snk| snk.machine.next_deadline().is_some());
            if !open {
                return self.pause(false);
            }
        }
        if self.s.joins && self.rng.u8(..8) != 0 && self.s.streams.iter().all(|s| !s.up) {
            // The end that dials replaces what is lost.
            let before = self.s.streams.len();
            self.join_stream();
            if self.s.streams.len() > before {
                return;
            }
        }
        let source = self.s.source.as_ref().and_then(|s| s.machine.next_deadline());
        let sink = self.s.sink.as_ref().and_then(|s| s.machine.next_deadline());
        let frozen = self.s.source.as_ref().is_some_and(|s| !s.ops.is_empty());
        let thaw = self.targets.as_ref().and_then(Targets::thaws).filter(|_| frozen);
        let Some(due) = [source, sink, thaw].into_iter().flatten().min() else {
            panic!(
                "deadlock: source {}, sink {}, walk ended {:?}, wants entries {:?}, counts {:?} {:?}",
                self.s.source.is_some(),
                self.s.sink.is_some(),
                self.s.source.as_ref().map(|s| s.walk_ended),
                self.s.source.as_ref().map(|s| s.machine.wants_entries()),
                self.s.source.as_ref().map(|s| s.machine.counts()),
                self.s.sink.as_ref().map(|s| s.machine.counts()),
            );
        };
        self.now = self.now.max(due);
        if let Some(src) = &mut self.s.source {
            src.machine.handle_tick(self.now);
        }
        if let Some(snk) = &mut self.s.sink {
            snk.machine.handle_tick(self.now);
        }
        self.source_act();
        self.sink_act();
    }
}

/// The way to the other end is lost.
fn gone(text: &str) -> Failure {
    Failure { kind: FailureKind::Network, errno: 0, text: text.into() }
}
