//! One run: a job of several pairs of ends, whose hosts crash, freeze and thaw, until it is left in peace and
//! must end.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use fastrand::Rng;
use haul_core::change::Change;
use haul_core::digest::DigestKind;
use haul_core::entry::{Fingerprint, Meta, Name, Timestamp, Version};
use haul_core::ids::{DirId, FileId, Generation, Holder, HostId, Lease, PairId, SessionEpoch, Time};
use haul_core::job::{Action, Config, Coordinator, FileSpec, Proof};
use haul_core::journal::{PathKey, Record, Replay, Replayed, Resume, RootId, compact};
use haul_core::transfer::{Ended, SessionEnd};
use haul_core::wire::{Failure, FailureKind};

use super::end::{Around, Down, End, Known, Up};
use super::judge::Judge;
use super::store::{Print, Store};

/// Steps that a run may take. The longest ones of good code take a fifth of it.
const STEPS_MAX: u64 = 400_000;
const TRACE_MAX: usize = 300;
const LEASE_TIME: Duration = Duration::from_secs(8);
const LENGTHS: [u64; 12] =
    [0, 1, 1000, 65_536, 200_000, 1 << 20, 1_500_000, 2_621_441, 3 << 20, 5_000_000, 8 << 20, 9_437_961];

thread_local! {
    static TRACE: RefCell<Option<VecDeque<String>>> = const { RefCell::new(None) };
    /// Over all runs: hosts that crashed, that froze and were given up, coordinators that were started again,
    /// ranges given back, files published as copies, parts that were read, sources that changed.
    pub static COUNTS: RefCell<[u64; 7]> = const { RefCell::new([0; 7]) };
}

pub fn trace_start() {
    TRACE.set(Some(VecDeque::new()));
}

pub fn trace_take() -> Vec<String> {
    TRACE.take().map(Vec::from).unwrap_or_default()
}

pub fn trace(text: impl FnOnce() -> String) {
    TRACE.with_borrow_mut(|trace| {
        if let Some(lines) = trace {
            if lines.len() == TRACE_MAX {
                lines.pop_front();
            }
            lines.push_back(text());
        }
    });
}

pub fn count(what: usize) {
    COUNTS.with_borrow_mut(|counts| counts[what] += 1);
}

/// An entry of the source.
pub struct Entry {
    pub parent: Option<usize>,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Dir,
    Link,
    /// The newest version: content, length, mtime.
    File(u8, u64, i64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Host {
    Lives,
    Frozen,
    Dead,
}

pub struct World {
    pub rng: Rng,
    pub entries: Vec<Entry>,
    pub store: Store,
    pub job: Option<Coordinator>,
    pub judge: Judge,
    ends: BTreeMap<PairId, End>,
    sources: Vec<Host>,
    sinks: Vec<Host>,
    pub files: BTreeMap<(FileId, Generation), Known>,
    given: Vec<(usize, usize, Lease)>,
    finished: Vec<DirId>,
    /// Of the journal: what is on media, and what is being appended.
    pub journal: Vec<u8>,
    appending: Option<Vec<u8>>,
    fencing: VecDeque<Lease>,
    /// What the walk announces next; and what was withdrawn and is to be announced again.
    walk: usize,
    again: Vec<(FileId, Generation)>,
    ended_dirs: bool,
    epoch: u32,
    now: Time,
    quiet: bool,
    object_size: u32,
    may_crash: u16,
    /// Runs that were complete since it is quiet.
    passes: u32,
}

/// Runs one seed of a world with so many hosts a side; returns its steps.
pub fn run(sources: u16, sinks: u16, seed: u64) -> u64 {
    let mut world = World::new(sources, sinks, seed);
    world.start();
    let faults = world.rng.u64(0..6_000).max(1);
    let mut steps = 0;
    loop {
        steps += 1;
        assert!(steps < STEPS_MAX, "it does not end: {}", world.state());
        if steps == faults {
            world.calm();
        }
        if world.step() && world.quiet {
            break;
        }
    }
    world.judge_end();
    steps
}

impl World {
    fn new(sources: u16, sinks: u16, seed: u64) -> World {
        let mut rng = Rng::with_seed(seed);
        let mut entries = Vec::new();
        for i in 0..rng.usize(1..9) {
            let dirs: Vec<usize> =
                (0..i).filter(|at| matches!((&entries as &Vec<Entry>)[*at].kind, Kind::Dir)).collect();
            let parent = rng.choice(dirs).filter(|_| rng.u8(..3) > 0);
            let kind = match rng.u8(..8) {
                0 | 1 => Kind::Dir,
                2 => Kind::Link,
                _ => Kind::File(1, LENGTHS[rng.usize(..LENGTHS.len())], 1),
            };
            entries.push(Entry { parent, kind });
        }
        let object_size = [64 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20][rng.usize(..5)];
        let may_crash = [0, 2, 10, 40][rng.usize(..4)];
        World {
            rng,
            entries,
            store: Store::default(),
            job: None,
            judge: Judge::default(),
            ends: BTreeMap::new(),
            sources: vec![Host::Lives; usize::from(sources)],
            sinks: vec![Host::Lives; usize::from(sinks)],
            files: BTreeMap::new(),
            given: Vec::new(),
            finished: Vec::new(),
            journal: Vec::new(),
            appending: None,
            fencing: VecDeque::new(),
            walk: 0,
            again: Vec::new(),
            ended_dirs: false,
            epoch: 0,
            now: Time::default(),
            quiet: false,
            object_size,
            may_crash,
            passes: 0,
        }
    }

    fn state(&self) -> String {
        format!("{:?} {:?} walk {} open {:?}", self.sources, self.sinks, self.walk, self.judge.open)
    }

    /// A coordinator from what the journal says.
    fn start(&mut self) {
        self.epoch += 1;
        let tag = 100 + self.epoch;
        let mut replay = Replay::new();
        replay.feed(&self.journal).expect("it is a journal");
        let mut replayed: Replayed = replay.finish([1; 16], true).expect("it is a journal");
        // A frozen end of an earlier run may write on.
        if self.sinks.contains(&Host::Frozen) {
            replayed.follow_unproven();
        }
        let head = Record::Head { job: [7; 16], root: RootId::new(&[1]).expect("short") };
        let session =
            Record::Session { epoch: self.epoch, tag, boot: [1; 16], durable: true, lease: Holder::ALONE };
        let (bytes, log, _, next_slot) = compact(&replayed, head, session);
        self.journal = bytes;
        self.store.epoch = self.epoch;
        let config = Config {
            entries_max: 64,
            digest: DigestKind::Blake3,
            durable: true,
            epoch: SessionEpoch(self.epoch),
            tag,
            shared_min: self.rng.choice([0, 1 << 20, 3 << 20]).expect("three"),
            range_max: self.rng.choice([1 << 20, 3 << 20, 16 << 20]).expect("three"),
            lease_time: Some(LEASE_TIME),
        };
        self.job = Some(Coordinator::new(config, Resume { replayed, log, next_slot }));
        self.judge.begin();
        self.appending = None;
        self.fencing.clear();
        self.again.clear();
        // Names of files go on to be known to ends that are frozen.
        self.walk = 0;
        self.ended_dirs = false;
        for at in self.ends.values_mut() {
            at.up.clear();
        }
        self.join_all();
    }

    /// Ids of this run: those of earlier ones mean something else to ends that are still frozen.
    fn id(&self, entry: usize) -> FileId {
        FileId::new(0, u64::from(self.epoch) * 1000 + 1 + entry as u64)
    }

    pub fn entry(&self, id: FileId) -> usize {
        self.entry_of(id)
    }

    pub fn lease_of(&self, pair: PairId) -> Option<Lease> {
        self.job.as_ref().and_then(|job| job.lease_of(pair))
    }

    /// What the journal calls an entry.
    pub fn path_of(&self, entry: usize) -> PathKey {
        let parent = self.entries[entry].parent.map_or(PathKey::ROOT, |parent| self.path_of(parent));
        parent.child(&name_of(entry))
    }

    fn entry_of(&self, id: FileId) -> usize {
        (id.0 % 1000) as usize - 1
    }

    fn dir_id(&self, entry: Option<usize>) -> DirId {
        entry.map_or(DirId::ROOT, |entry| self.id(entry).as_dir())
    }

    /// Pairs whose hosts live and that have no lease join.
    fn join_all(&mut self) {
        for i in 0..self.sources.len() {
            for j in 0..self.sinks.len() {
                let pair = PairId { source: HostId(i as u16), sink: HostId(j as u16) };
                self.join(pair);
            }
        }
    }

    fn join(&mut self, pair: PairId) {
        let lives = self.sources[usize::from(pair.source.0)] == Host::Lives
            && self.sinks[usize::from(pair.sink.0)] == Host::Lives;
        let current = self.ends.get(&pair).is_some_and(|end| end.lease.epoch().0 == self.epoch);
        let Some(job) = self.job.as_mut().filter(|_| lives && !current) else { return };
        let lease = job.handle_joined(pair, self.now).expect("few pairs");
        let speed = self.rng.u8(1..=10);
        trace(|| format!("{pair:?} joins under {lease:?}"));
        self.ends.insert(pair, End::new(pair, lease, speed));
    }

    /// No more faults: what is frozen thaws, what is dead comes back.
    fn calm(&mut self) {
        trace(|| "calm".into());
        self.quiet = true;
        self.sources.fill(Host::Lives);
        for sink in 0..self.sinks.len() {
            if self.sinks[sink] == Host::Frozen {
                self.thaw(sink);
            }
            self.sinks[sink] = Host::Lives;
        }
        if self.job.is_none() {
            self.start();
        }
        self.join_all();
    }

    /// One thing happens; true if the job is complete.
    fn step(&mut self) -> bool {
        if self.job.is_none() {
            // The coordinator's host is down; the others go on.
            if self.rng.u8(..20) == 0 {
                self.restart();
            }
        }
        if !self.quiet && self.rng.u16(..2000) < self.may_crash {
            self.fault();
        }
        match self.rng.u8(..16) {
            0 => self.tick(),
            1 => self.announce(),
            2 => {
                let runs = |host: u16| self.sinks[usize::from(host)] == Host::Lives;
                self.store.write_back(&mut self.rng, runs);
            }
            3 => self.journal_step(),
            4 => {
                if let (Some(lease), Some(job)) = (self.fencing.pop_front(), self.job.as_mut()) {
                    self.store.fenced.insert(lease);
                    job.handle_fenced(lease);
                }
            }
            5..=6 => self.deliver_up(),
            7..=8 => self.deliver_down(),
            _ => self.step_end(),
        }
        self.judge_names();
        self.drain()
    }

    fn some_end(&mut self) -> Option<PairId> {
        let pairs: Vec<PairId> = self.ends.keys().copied().collect();
        self.rng.choice(pairs)
    }

    /// A host goes on. It may do much before it hears what was said meanwhile.
    fn thaw(&mut self, sink: usize) {
        self.sinks[sink] = Host::Lives;
        let pairs: Vec<PairId> =
            self.ends.keys().copied().filter(|p| usize::from(p.sink.0) == sink).collect();
        for pair in pairs {
            for _ in 0..self.rng.u32(..24) {
                self.step_pair(pair);
                self.judge_names();
            }
        }
    }

    fn step_end(&mut self) {
        let Some(pair) = self.some_end() else { return };
        self.step_pair(pair);
    }

    fn step_pair(&mut self, pair: PairId) {
        let (source, sink) = (self.sources[usize::from(pair.source.0)], self.sinks[usize::from(pair.sink.0)]);
        let end = self.ends.get_mut(&pair).expect("it was chosen");
        if sink != Host::Lives || self.rng.u8(..10) >= end.speed {
            return;
        }
        let entries = &self.entries;
        let newest = |entry: usize| match entries[entry].kind {
            Kind::File(key, len, mtime) => (key, (len, mtime)),
            _ => (0, (0, 0)),
        };
        let mut around = Around {
            store: &mut self.store,
            rng: &mut self.rng,
            files: &self.files,
            source: &newest,
            reads: source == Host::Lives,
            given: &mut self.given,
            finished: &mut self.finished,
        };
        end.step(&mut around);
    }

    fn deliver_down(&mut self) {
        let Some(pair) = self.some_end() else { return };
        if self.sinks[usize::from(pair.sink.0)] != Host::Lives {
            return;
        }
        let end = self.ends.get_mut(&pair).expect("it was chosen");
        if end.hear(&self.files) {
            trace(|| format!("{pair:?} hears that its lease ended"));
            self.ends.remove(&pair);
            self.join(pair);
        }
    }

    fn deliver_up(&mut self) {
        let Some(pair) = self.some_end() else { return };
        let Some(job) = self.job.as_mut() else { return };
        let Some((lease, up)) = self.ends.get_mut(&pair).and_then(|end| end.up.pop_front()) else { return };
        let at = (pair, lease);
        trace(|| format!("from {} {lease}: {up:?}", pair.sink));
        job.handle_heard(at, self.now);
        match up {
            Up::Begun(id, generation, found) => job.handle_begun(at, id, generation, found),
            Up::Persisted(id, generation, offset, subtrees, over) => {
                job.handle_persisted(at, id, generation, offset, subtrees, over);
            }
            Up::Read(id, generation, offset, value) => {
                count(5);
                job.handle_read(at, id, generation, offset, value);
            }
            Up::Returned(id, generation, offset, from) => {
                if from.is_some() {
                    count(3);
                    self.judge.given_up(id, at);
                }
                job.handle_returned(at, id, generation, offset, from);
            }
            Up::Sealed(id, generation) => job.handle_sealed(at, id, generation, None),
            Up::Withdrawn(id, generation) => {
                self.judge.given_up(id, at);
                job.handle_withdrawn(at, id, generation, true, None);
                self.again.push((id, generation));
            }
            Up::Published(id, generation, result) => job.handle_published(at, id, generation, result),
            Up::Failed(id, generation, text) => {
                let failure = Failure { kind: FailureKind::Publish, errno: 2, text: text.into() };
                job.handle_failed(at, id, generation, failure);
            }
            Up::NotNeeded(id, generation) => {
                job.handle_not_needed(at, id, generation, Ended::Unchanged);
            }
            Up::Discarded(id) => job.handle_discarded(at, id),
            Up::FinishedDir(dir) => job.handle_finished_dir(at, dir, Ok(Change::NONE)),
        }
    }

    fn tick(&mut self) {
        self.now = self.now.after(Duration::from_millis(self.rng.u64(..200)));
        let Some(job) = &mut self.job else { return };
        for (pair, end) in &self.ends {
            let hosts = (self.sources[usize::from(pair.source.0)], self.sinks[usize::from(pair.sink.0)]);
            if hosts == (Host::Lives, Host::Lives) {
                job.handle_heard((*pair, end.lease), self.now);
            }
        }
        job.handle_tick(self.now);
    }

    fn journal_step(&mut self) {
        let (Some(bytes), Some(job)) = (self.appending.take(), self.job.as_mut()) else { return };
        self.journal.extend(bytes);
        job.handle_journaled(Ok(()), self.now);
    }

    fn known(&self, entry: usize) -> Known {
        let (print, is_link): (Print, bool) = match self.entries[entry].kind {
            Kind::File(_, len, mtime) => ((len, mtime), false),
            _ => ((0, 0), true),
        };
        Known { entry, print, object_size: self.object_size, is_link }
    }

    fn announce(&mut self) {
        let Some(mut job) = self.job.take() else { return };
        if let Some((id, generation)) = self.again.pop() {
            let entry = self.entry_of(id);
            let next = Generation(generation.0 + 1);
            if job.handle_file(self.spec(entry, next)).is_ok() {
                self.judge.announced(id, next, self.entries[entry].kind);
                self.files.insert((id, next), self.known(entry));
            }
        } else if self.walk < self.entries.len() {
            let entry = self.walk;
            self.walk += 1;
            let id = self.id(entry);
            let (parent, name) = (self.dir_id(self.entries[entry].parent), name_of(entry));
            let generation = Generation(0);
            match self.entries[entry].kind {
                Kind::Dir => job.handle_dir(id.as_dir(), parent, name, (Meta::default(), Version::default())),
                Kind::Link => job.handle_link(id, parent, name),
                Kind::File(..) => job.handle_file(self.spec(entry, generation)),
            }
            .expect("it is in order");
            self.judge.open_entry(id, self.entries[entry].parent.map(|parent| self.id(parent)));
            self.judge.announced(id, generation, self.entries[entry].kind);
            self.files.insert((id, generation), self.known(entry));
        } else if !self.ended_dirs {
            self.ended_dirs = true;
            for entry in (0..self.entries.len()).filter(|at| self.entries[*at].kind == Kind::Dir) {
                job.handle_dir_ended(self.id(entry).as_dir()).expect("it is open");
            }
            job.handle_walked();
        }
        self.job = Some(job);
    }

    fn spec(&self, entry: usize, generation: Generation) -> FileSpec {
        let Kind::File(_, size, mtime) = self.entries[entry].kind else { panic!("no file") };
        let mtime = Timestamp { secs: mtime, nanos: 0 };
        let version = Version::new(&entry.to_le_bytes()).expect("short");
        let fingerprint = Fingerprint { size, mtime, version };
        FileSpec {
            id: self.id(entry),
            generation,
            parent: self.dir_id(self.entries[entry].parent),
            name: name_of(entry),
            fingerprint,
            object_size: self.object_size,
            map: None,
        }
    }

    fn fault(&mut self) {
        match self.rng.u8(..13) {
            0 | 1 => self.crash_coordinator(),
            2 => {
                let i = self.rng.usize(..self.sources.len());
                self.lose_source(i);
            }
            3 | 4 => {
                let j = self.rng.usize(..self.sinks.len());
                if self.sinks[j] != Host::Dead {
                    self.crash_sink(j);
                }
            }
            5 | 6 => {
                let j = self.rng.usize(..self.sinks.len());
                if self.sinks[j] == Host::Lives {
                    trace(|| format!("sink {j} freezes"));
                    self.sinks[j] = Host::Frozen;
                }
            }
            7 => {
                let i = self.rng.usize(..self.sources.len());
                if self.sources[i] == Host::Lives {
                    trace(|| format!("source {i} freezes"));
                    self.sources[i] = Host::Frozen;
                }
            }
            8 => {
                // Time for somebody to be given up.
                for _ in 0..90 {
                    self.tick();
                }
            }
            9 => {
                let files =
                    (0..self.entries.len()).filter(|at| matches!(self.entries[*at].kind, Kind::File(..)));
                let files: Vec<usize> = files.collect();
                if let Some(entry) = self.rng.choice(files) {
                    self.change(entry);
                }
            }
            10 => {
                // A sink freezes with a small file that it will not make before another did, and its source
                // changed.
                let lives = |pair: &PairId| self.sinks[usize::from(pair.sink.0)] == Host::Lives;
                let ends = self.ends.iter().filter(|(pair, _)| lives(pair));
                let found = ends.filter_map(|(pair, end)| Some((*pair, end.in_bundle()?))).next();
                if let Some((pair, id)) = found {
                    trace(|| format!("sink {} freezes with {id}", pair.sink));
                    self.sinks[usize::from(pair.sink.0)] = Host::Frozen;
                    self.change(self.entry_of(id));
                    for _ in 0..90 {
                        self.tick();
                    }
                }
            }
            _ => {
                let host = self.rng.usize(..self.sources.len() + self.sinks.len());
                match host.checked_sub(self.sources.len()) {
                    None => self.sources[host] = Host::Lives,
                    Some(sink) if self.sinks[sink] == Host::Frozen => self.thaw(sink),
                    Some(sink) => self.sinks[sink] = Host::Lives,
                }
                self.join_all();
            }
        }
    }

    fn change(&mut self, entry: usize) {
        let Kind::File(key, len, mtime) = self.entries[entry].kind else { return };
        if key < 60 {
            count(6);
            trace(|| format!("entry {entry} changes"));
            let len = if self.rng.bool() { len } else { LENGTHS[self.rng.usize(..LENGTHS.len())] };
            self.entries[entry].kind = Kind::File(key + 1, len, mtime + 1);
        }
    }

    fn lose_source(&mut self, i: usize) {
        if self.sources[i] == Host::Dead {
            return;
        }
        count(0);
        trace(|| format!("source {i} dies"));
        self.sources[i] = Host::Dead;
        let pairs = self.ends.keys().copied().filter(|pair| usize::from(pair.source.0) == i);
        for pair in pairs.collect::<Vec<_>>() {
            // A sink that lives drops what it had of it, and says so.
            if self.sinks[usize::from(pair.sink.0)] == Host::Lives {
                let end = self.ends.remove(&pair).expect("it is there");
                if let Some(job) = &mut self.job {
                    job.handle_lost((pair, end.lease), Proof::Settled, self.now);
                }
            }
        }
    }

    fn crash_sink(&mut self, j: usize) {
        count(0);
        trace(|| format!("sink {j} dies"));
        self.sinks[j] = Host::Dead;
        self.store.lose(j as u16);
        let pairs = self.ends.keys().copied().filter(|pair| usize::from(pair.sink.0) == j);
        let seen = self.rng.u8(..3);
        for pair in pairs.collect::<Vec<_>>() {
            let end = self.ends.remove(&pair).expect("it is there");
            let Some(job) = &mut self.job else { continue };
            match seen {
                0 => job.handle_lost((pair, end.lease), Proof::Settled, self.now),
                1 => job.handle_lost((pair, end.lease), Proof::Unknown, self.now),
                // Nobody sees it: its lease ends by its silence.
                _ => {}
            }
        }
    }

    fn crash_coordinator(&mut self) {
        if self.job.take().is_some() {
            trace(|| "the coordinator dies".into());
            count(2);
            if let Some(bytes) = self.appending.take() {
                let torn = self.rng.usize(..=bytes.len());
                self.journal.extend(&bytes[..torn]);
            }
            self.fencing.clear();
        }
    }

    fn restart(&mut self) {
        // Names that are just being given are given before it looks, or never: the looks at such names
        // afterwards are the business of the storage that gives them.
        for pair in self.ends.keys().copied().collect::<Vec<_>>() {
            let frozen = self.sinks[usize::from(pair.sink.0)] == Host::Frozen;
            let end = &self.ends[&pair];
            if !frozen || end.in_window() {
                self.ends.remove(&pair);
            }
        }
        self.start();
    }

    fn judge_names(&mut self) {
        for (entry, inode, lease) in std::mem::take(&mut self.given) {
            trace(|| format!("entry {entry} has its name from {lease:?}, inode {inode}"));
            self.judge.name_given(entry, &self.store.inodes[inode]);
        }
        if self.rng.u8(..8) == 0 {
            self.judge.finals(&self.store);
        }
    }

    /// Everything that the coordinator wants is on its way; true if it is complete.
    fn drain(&mut self) -> bool {
        let mut complete = false;
        while let Some(action) = self.job.as_mut().and_then(Coordinator::poll_action) {
            trace(|| format!("{action:?}"));
            let mut judge = std::mem::take(&mut self.judge);
            judge.see(&action, self);
            self.judge = judge;
            complete |= self.act(action);
        }
        if let Some(job) = &self.job {
            assert!(job.held() <= 400 + 20 * self.ends.len(), "{} are held", job.held());
        }
        complete
    }

    fn send(&mut self, pair: PairId, lease: Lease, down: Down) {
        if let Some(end) = self.ends.get_mut(&pair) {
            end.down.push_back((lease, down));
        }
    }

    fn act(&mut self, action: Action) -> bool {
        match action {
            Action::Assign { pair, lease, works } => self.send(pair, lease, Down::Assign(works)),
            Action::GiveBack { pair, lease, items } => self.send(pair, lease, Down::GiveBack(items)),
            Action::Revoke { pair, lease, id, generation } => {
                self.send(pair, lease, Down::Revoke(id, generation));
            }
            Action::End { pair, lease, text } => {
                if text.starts_with("nothing was heard") {
                    count(1);
                }
                let honest = ["the pair ", "nothing was heard", "it neither moved"];
                assert!(honest.iter().any(|why| text.starts_with(why)), "an honest end is refused: {text}");
                self.send(pair, lease, Down::End);
            }
            Action::Fence { lease, .. } => self.fencing.push_back(lease),
            Action::Journal { bytes } => {
                assert!(self.appending.replace(bytes).is_none(), "two writes of the journal at a time");
            }
            Action::Seal { pair, lease, id, generation } => {
                self.send(pair, lease, Down::Seal(id, generation));
            }
            Action::Publish { pair, lease, publication } => {
                if publication.way != haul_core::job::Way::Rename {
                    count(4);
                }
                self.send(pair, lease, Down::Publish(publication));
            }
            Action::Discard { pair, lease, id, temps } => self.send(pair, lease, Down::Discard(id, temps)),
            Action::FinishDir { pair, lease, dir, .. } => {
                self.send(pair, lease, Down::FinishDir(dir));
            }
            Action::Durable { .. } | Action::Ended { .. } => {}
            Action::Finished(end) => {
                assert_eq!(end, SessionEnd::Complete);
                // It is done, and the next command finds it so, or what changed since.
                self.passes += u32::from(self.quiet);
                if self.passes < 2 {
                    self.job = None;
                    self.restart();
                }
                return self.passes == 2;
            }
        }
        false
    }

    fn judge_end(&mut self) {
        self.judge.finals(&self.store);
        for (entry, what) in self.entries.iter().enumerate() {
            match what.kind {
                Kind::Dir => {}
                Kind::Link => {
                    assert!(self.store.names.contains_key(&(entry, None)), "link {entry} is missing")
                }
                Kind::File(key, len, mtime) => {
                    let inode = self.store.names.get(&(entry, None));
                    let inode = inode.unwrap_or_else(|| panic!("file {entry} is missing"));
                    let inode = &self.store.inodes[*inode];
                    assert_eq!(inode.print, Some((len, mtime)), "file {entry} is not the newest");
                    assert!(inode.blocks.iter().all(|k| *k == key), "file {entry}: {:?}", inode.blocks);
                }
            }
        }
    }
}

fn name_of(entry: usize) -> Name {
    Name::new(format!("e{entry}").as_bytes()).expect("a name")
}
