//! A sink whose destination has several storage targets: the machine itself, in a world of targets of
//! different speed.
//!
//! In: a seed. Out: when what was written, and what the sink said of it. The source here is a small one that
//! obeys grants and prefers healthy sink targets by core's own schedule; the engine serves each target's
//! requests one after another.
//! What is judged: every object is written once, with its own payload, at the target where its file lies; a
//! file that is said to be done has the digest of all of it; never more payload at the sink than its memory;
//! and what the test asks.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::time::Duration;

use haul_core::change::Change;
use haul_core::digest::{DigestKind, SubtreeSet, subtrees};
use haul_core::entry::{EntryKind, Extras, Fingerprint, Meta, Name, Timestamp, Version};
use haul_core::ids::{
    BufferId, DirId, FileId, Generation, Holder, SessionEpoch, SinkTarget, StreamId, TargetId, Time,
};
use haul_core::journal::{Log, Replayed, Resume};
use haul_core::layout::{Component, Layout, Striping};
use haul_core::schedule::table::{Table, Troubles};
use haul_core::schedule::{Health, Limits, Policy, Run, Schedule};
use haul_core::transfer::op::{SinkDone, SinkOp, Took};
use haul_core::transfer::sink::{Sink, SinkAction, SinkConfig};
use haul_core::transfer::{Ended, SessionEnd};
use haul_core::wire::{
    Agreed, Announced, DataEntry, DataHeader, FILE_SINK_TARGETS_MAX, FileLayout, Message, Outcome,
    SinkOptions, TARGET_COMPONENTS_MAX, TargetHealth, Totals, encode_frame,
};

const OBJECT: u64 = 1 << 20;
const LOOK_EVERY: Duration = Duration::from_millis(200);
const HALF_TRIP: Duration = Duration::from_millis(5);

/// Everything about a run.
#[derive(Clone)]
struct Setting {
    targets: u16,
    files: u64,
    file_objects: u64,
    /// Over how many targets file `i` is striped.
    stripes: fn(u64) -> u16,
    memory: u64,
    /// Both ends know targets.
    agreed: bool,
    /// Nanoseconds for an object at each target.
    speed: fn(u16) -> u64,
    /// A target that does nothing from, to.
    frozen: Option<(u16, Time, Time)>,
}

#[derive(Debug, PartialEq, Eq)]
enum Event {
    /// The source hears it.
    Down(Message),
    Up(Message),
    Data(DataHeader),
    Done(SinkDone),
    Wake,
}

struct World {
    s: Setting,
    now: Time,
    events: BinaryHeap<(Reverse<(Time, u64)>, usize)>,
    what: Vec<Option<Event>>,
    sink: Sink,
    /// When each target is done with what it has.
    busy: Vec<Time>,
    schedule: Schedule,
    /// Objects that are to be sent and whose place is known.
    placed: u64,
    unsent: BTreeMap<FileId, BTreeSet<u64>>,
    granted: u64,
    used: u64,
    told: HashMap<SinkTarget, u64>,
    taken: HashMap<SinkTarget, u64>,
    buffers: HashMap<BufferId, (FileId, u64, u64)>,
    held: u64,
    frames: u32,
    places: HashMap<FileId, Layout<TargetId>>,
    wake: Time,
    end: Option<SessionEnd>,
    out: Told,
}

/// What came of it.
#[derive(Debug, Default)]
struct Told {
    /// File, object: when it was written.
    written: BTreeMap<(u64, u64), Time>,
    done: BTreeMap<u64, Time>,
    made: u64,
    file_targets: u64,
    sink_target_grants: u64,
    healths: Vec<(Time, TargetHealth)>,
    held_max: u64,
    end: Time,
    /// The targets as people would see them, about five times a second; and which were unwell.
    tables: Vec<(Time, Table)>,
    troubles: Troubles,
}

fn cv(file: u64, object: u64) -> [u8; 32] {
    let mut cv = [7; 32];
    cv[..8].copy_from_slice(&file.to_le_bytes());
    cv[8..16].copy_from_slice(&object.to_le_bytes());
    cv
}

fn layout_of(s: &Setting, file: u64) -> Layout<TargetId> {
    let first = (file * 3 % u64::from(s.targets)) as u16;
    let targets = (0..(s.stripes)(file)).map(|i| TargetId((first + i) % s.targets)).collect();
    Layout::new(vec![Component { start: 0, stripe_size: OBJECT, targets }]).expect("it is one")
}

fn entry(id: u64, object: u64, size: u64) -> DataEntry {
    let (offset, len) = (object * OBJECT, OBJECT.min(size - object * OBJECT));
    let tail = offset + len == size;
    let cvs = subtrees(offset, len, tail).map(|_| cv(id, object)).collect();
    DataEntry {
        id: FileId(id),
        generation: Generation(0),
        offset,
        len: len as u32,
        root: len == size,
        hole: false,
        tail,
        sealed: false,
        pass: 0,
        digest: DigestKind::Blake3,
        cvs,
    }
}

fn config(memory: u64, targets: Option<Limits>) -> SinkConfig {
    SinkConfig {
        part: None,
        agreed: Agreed { holes: true, layouts: true, ..Agreed::plain(10_000) },
        policy: SinkOptions::PLAIN,
        memory,
        wait: false,
        files_open_max: 1_000,
        tag: 1,
        targets,
        ascending: None,
        round_trip: Some(Duration::from_millis(10)),
        root: None,
        clones: None,
        nodes: Default::default(),
        names: None,
    }
}

fn new_sink(memory: u64, targets: Option<Limits>) -> Sink {
    let resume = Resume { replayed: Replayed::default(), log: Log::start(&mut Vec::new()), next_slot: 0 };
    Sink::new(config(memory, targets), resume)
}

const TARGETS: Limits = Limits { total: 256, each: 16 };

fn announced(id: u64, size: u64) -> Announced {
    let mtime = Timestamp { secs: 1, nanos: 0 };
    let fingerprint = Fingerprint { size, mtime, version: Version::NONE };
    Announced {
        id: FileId(id),
        generation: Generation(0),
        parent: DirId::ROOT,
        name: Name::new(format!("f{id}").as_bytes()).expect("legal"),
        meta: Meta { mode: 0o644, uid: 0, gid: 0, mtime },
        kind: EntryKind::File { fingerprint, object_size: OBJECT as u32, sparse: false, striped: false },
        extras: Extras::default(),
    }
}

fn name(target: TargetId) -> String {
    format!("t{target}")
}

fn run(s: &Setting) -> Told {
    let mut world = World {
        s: s.clone(),
        now: Time(0),
        events: BinaryHeap::new(),
        what: Vec::new(),
        sink: new_sink(s.memory, s.agreed.then_some(TARGETS)),
        busy: vec![Time(0); usize::from(s.targets)],
        schedule: Schedule::new(Policy::ROUND_ROBIN, Limits { total: u32::MAX / 2, each: u32::MAX / 2 }),
        placed: 0,
        unsent: BTreeMap::new(),
        granted: 0,
        used: 0,
        told: HashMap::new(),
        taken: HashMap::new(),
        buffers: HashMap::new(),
        held: 0,
        frames: 0,
        places: HashMap::new(),
        wake: Time(u64::MAX),
        end: None,
        out: Told::default(),
    };
    world.begin();
    let mut steps = 0;
    while world.end.is_none() {
        let (Reverse((time, _)), at) = world.events.pop().expect("it never comes to rest before the end");
        world.now = time;
        let event = world.what[at].take().expect("each comes once");
        world.handle(event);
        world.look();
        steps += 1;
        assert!(steps < 2_000_000, "it ends");
    }
    assert_eq!(world.end, Some(SessionEnd::Complete));
    world.out.end = world.now;
    // Its last words are on their way.
    while let Some((_, at)) = world.events.pop() {
        if let Some(Event::Down(message)) = world.what[at].take() {
            world.hear(message);
        }
    }
    let objects = s.files * s.file_objects;
    assert_eq!(world.out.written.len() as u64, objects, "every object was written");
    assert_eq!(world.out.done.len() as u64, s.files);
    assert!(world.buffers.is_empty() && world.held == 0, "every buffer came back");
    world.out
}

impl World {
    fn at(&mut self, time: Time, event: Event) {
        self.what.push(Some(event));
        let number = self.what.len();
        self.events.push((Reverse((time, number as u64)), number - 1));
    }

    /// What is shown of the sink's targets.
    fn look(&mut self) {
        let (now, out) = (self.now, &mut self.out);
        if out.tables.last().is_none_or(|(last, _)| now.since(*last) >= LOOK_EVERY) {
            out.troubles.note(self.sink.unwell(), now);
            out.tables.push((now, Table::of(self.sink.targets(), name)));
        }
    }

    fn size(&self) -> u64 {
        // The last object is short.
        self.s.file_objects * OBJECT - 1000
    }

    fn begin(&mut self) {
        let size = self.size();
        let ids: Vec<u64> = (1..=self.s.files).collect();
        for part in ids.chunks(100) {
            let entries = part.iter().map(|id| announced(*id, size)).collect();
            self.at(Time(0).after(HALF_TRIP), Event::Up(Message::Announce(entries)));
        }
        for id in ids {
            let file = FileId(id);
            let run = Run::objects(file, SinkTarget::ANY, 0, self.s.file_objects);
            self.schedule.add(TargetId(0), run).expect("there is room");
            self.unsent.insert(file, (0..self.s.file_objects).collect());
        }
        self.act();
    }

    fn handle(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Up(message) => self.sink.handle_message(message, now),
            Event::Data(header) => {
                let (id, offset) = (header.entries[0].id, header.entries[0].offset);
                self.frames += 1;
                let buffer = BufferId(self.frames);
                self.held += OBJECT;
                self.out.held_max = self.out.held_max.max(self.held);
                assert!(self.held <= self.s.memory, "more than the sink's memory");
                self.buffers.insert(buffer, (id, offset / OBJECT, OBJECT));
                self.sink.handle_data(StreamId(1), header, Some(buffer), vec![true], now);
            }
            Event::Done(done) => {
                if let SinkDone::Write { id, offset, buffer, .. } = &done {
                    self.free(*buffer);
                    let again = self.out.written.insert((id.0, offset / OBJECT), now);
                    assert_eq!(again, None, "an object is written once");
                }
                self.sink.handle_done(done, now);
            }
            Event::Wake => {
                self.wake = Time(u64::MAX);
                self.sink.handle_tick(now);
            }
            Event::Down(message) => self.hear(message),
        }
        self.send();
        self.act();
    }

    /// The source hears the sink.
    fn hear(&mut self, message: Message) {
        match message {
            Message::Grant { by: Holder::ALONE, sink_target: 0, total } => self.granted = total,
            Message::Grant { by: Holder::ALONE, sink_target, total } => {
                self.out.sink_target_grants += 1;
                let before = self.told.insert(SinkTarget(sink_target), total);
                assert!(before < Some(total), "a grant grows");
                self.shut(SinkTarget(sink_target));
            }
            Message::FileTargets { id, layout, .. } => {
                self.out.file_targets += 1;
                self.schedule.forget(id);
                for object in self.unsent[&id].clone() {
                    let sink_target = *layout.at(object * OBJECT).target;
                    assert_ne!(sink_target, SinkTarget::ANY);
                    self.placed += 1;
                    self.shut(sink_target);
                    let run = Run::objects(id, sink_target, object, 1);
                    self.schedule.add(TargetId(0), run).expect("there is room");
                }
            }
            Message::TargetHealth(targets) => {
                for target in targets {
                    self.schedule.handle_sink_health(target.sink_target, target.health, self.now);
                    self.out.healths.push((self.now, target));
                }
            }
            Message::Done(items) => {
                for item in items {
                    let mut all = SubtreeSet::new(DigestKind::Blake3, self.size());
                    for object in 0..self.s.file_objects {
                        let entry = entry(item.id.0, object, self.size());
                        let ranges = subtrees(entry.offset, entry.len.into(), entry.tail);
                        for ((offset, len), cv) in ranges.zip(entry.cvs) {
                            all.insert(offset, len, cv).expect("it fits");
                        }
                    }
                    assert_eq!(item.outcome, Outcome::Done { root: all.root(), change: Change::NEW });
                    assert_eq!(self.out.done.insert(item.id.0, self.now), None);
                }
            }
            Message::Abort(failure) => panic!("{failure:?}"),
            _ => {}
        }
    }

    fn shut(&mut self, sink_target: SinkTarget) {
        let taken = self.taken.get(&sink_target).copied().unwrap_or(0);
        let shut = taken + OBJECT > self.told.get(&sink_target).copied().unwrap_or(0);
        self.schedule.set_shut(sink_target, shut);
    }

    fn send(&mut self) {
        while self.used + OBJECT <= self.granted {
            // As long as there is one whose place is known, the others wait until theirs is told.
            self.schedule.set_shut(SinkTarget::ANY, self.placed > 0);
            let Some(issue) = self.schedule.next(self.now) else { break };
            self.schedule.done(issue.target, OBJECT, Duration::from_micros(1), self.now);
            let (id, sink_target, size) = (issue.file, issue.sink, self.size());
            assert!(self.unsent.get_mut(&id).expect("it is known").remove(&issue.object));
            self.used += OBJECT;
            *self.taken.entry(sink_target).or_default() += OBJECT;
            if sink_target != SinkTarget::ANY {
                self.placed -= 1;
                self.shut(sink_target);
            }
            let header = DataHeader { sink_target, entries: vec![entry(id.0, issue.object, size)] };
            let there = self.now.after(HALF_TRIP);
            self.at(there, Event::Data(header));
            if self.unsent[&id].is_empty() {
                self.at(there, Event::Up(Message::Sealed(vec![(id, Generation(0), 0)])));
            }
            if self.unsent.values().all(BTreeSet::is_empty) {
                let totals = Totals { files: self.s.files, ..Totals::default() };
                self.at(there, Event::Up(Message::End(totals)));
            }
        }
    }

    /// When a target that is asked now is done.
    fn serve(&mut self, target: TargetId, nanos: u64) -> Time {
        let t = usize::from(target.0);
        let mut end = self.busy[t].max(self.now).after(Duration::from_nanos(nanos));
        if let Some((frozen, from, to)) = self.s.frozen
            && frozen == target.0
            && end > from
            && self.now < to
        {
            end = end.max(to.after(Duration::from_nanos(nanos)));
        }
        self.busy[t] = end;
        end
    }

    fn act(&mut self) {
        while let Some(action) = self.sink.poll_action() {
            let now = self.now;
            match action {
                SinkAction::Submit(op) => self.submit(op),
                SinkAction::Send(message) => self.at(now.after(HALF_TRIP), Event::Down(message)),
                SinkAction::FreeBuffer(buffer) => self.free(buffer),
                SinkAction::EntryEnded { end, .. } => assert_eq!(end, Ended::Copied),
                SinkAction::Finished(end) => self.end = Some(end),
                other => panic!("{other:?}"),
            }
        }
        if let Some(deadline) = self.sink.next_deadline().filter(|time| *time < self.wake) {
            self.wake = deadline.max(self.now.after(Duration::from_nanos(1)));
            self.at(self.wake, Event::Wake);
        }
    }

    fn free(&mut self, buffer: BufferId) {
        let (_, _, cost) = self.buffers.remove(&buffer).expect("a buffer is freed once");
        self.held -= cost;
    }

    fn submit(&mut self, op: SinkOp) {
        let soon = self.now.after(Duration::from_millis(1));
        match op {
            SinkOp::Create { file, .. } => {
                self.out.made += 1;
                let layout = layout_of(&self.s, file.id.0);
                self.places.insert(file.id, layout.clone());
                self.at(soon, Event::Done(SinkDone::Create { id: file.id, result: Ok(Some(layout)) }));
            }
            SinkOp::Write { file, offset, len, buffer, .. } => {
                let (id, object, _) = self.buffers[&buffer];
                assert_eq!((id, object * OBJECT), (file.id, offset), "payload of another object");
                assert!(!self.s.agreed || self.places.contains_key(&id), "written before it was made");
                let target = *layout_of(&self.s, id.0).at(offset).target;
                let (now, nanos) = (self.now, (self.s.speed)(target.0));
                let end = self.serve(target, nanos);
                let took = Some(Took { time: end.since(now), cached: false });
                let done = SinkDone::Write { id, offset, len, buffer, took, result: Ok(()), again: false };
                self.at(end, Event::Done(done));
            }
            SinkOp::Commit { items, .. } => {
                let mut end = soon;
                for item in &items {
                    for target in layout_of(&self.s, item.id.0).targets() {
                        if let Some((frozen, from, to)) = self.s.frozen
                            && frozen == target.0
                            && (from..to).contains(&self.now)
                        {
                            end = end.max(to);
                        }
                    }
                }
                let results = items.iter().map(|item| (item.id, Ok(()))).collect();
                self.at(end, Event::Done(SinkDone::Commit { results, lost: Vec::new() }));
            }
            SinkOp::SyncDirs { dirs } => {
                let results = dirs.into_iter().map(|dir| (dir, Ok(()))).collect();
                self.at(soon, Event::Done(SinkDone::SyncDirs { results }));
            }
            SinkOp::Journal { .. } => self.at(soon, Event::Done(SinkDone::Journal { result: Ok(()) })),
            SinkOp::RemoveJournal => {
                self.at(soon, Event::Done(SinkDone::RemoveJournal { result: Ok(()) }));
            }
            other => panic!("{other:?}"),
        }
    }
}

const SECOND: u64 = 1_000_000_000;

/// Eight targets of 100 MB/s each, for some seconds.
fn eight() -> Setting {
    Setting {
        targets: 8,
        files: 400,
        file_objects: 16,
        stripes: |file| [1, 2, 4][file as usize % 3],
        memory: 128 << 20,
        agreed: true,
        speed: |_| 10_000_000,
        frozen: None,
    }
}

fn lies_on(s: &Setting, file: u64, target: u16) -> bool {
    layout_of(s, file).targets().contains(&&TargetId(target))
}

/// Objects written, and files done, from one time to another: of files without this target.
fn rest(s: &Setting, told: &Told, target: u16, from: u64, to: u64) -> (usize, usize) {
    let within = |time: &Time| (from * SECOND..to * SECOND).contains(&time.0);
    let place = |file: u64, object: u64| *layout_of(s, file).at(object * OBJECT).target;
    let objects = told.written.iter().filter(|((f, o), time)| place(*f, *o).0 != target && within(time));
    let files = told.done.iter().filter(|(file, time)| !lies_on(s, **file, target) && within(time));
    (objects.count(), files.count())
}

/// Goal: a target that is frozen for five seconds costs its own objects and files: those of the others are
/// written, and are on media under their names, as if nothing was; and in the end all is there. The source
/// hears how it fares.
#[test]
fn a_frozen_target_costs_its_own() {
    let quiet = eight();
    let frozen = Setting { frozen: Some((2, Time(SECOND), Time(6 * SECOND))), ..eight() };
    let (before, after) = (run(&quiet), run(&frozen));
    let (objects, files) = rest(&quiet, &before, 2, 2, 6);
    let (still, ended) = rest(&frozen, &after, 2, 2, 6);
    assert!(objects > 2000 && files > 50, "the quiet run is long enough: {objects} objects, {files} files");
    assert!(still * 10 >= objects * 9, "{still} of {objects} objects of other targets while one is frozen");
    assert!(ended * 10 >= files * 9, "{ended} of {files} files on other targets while one is frozen");
    let last = |told: &Told, of: fn(Health) -> bool| {
        told.healths
            .iter()
            .rfind(|(_, health)| health.sink_target == SinkTarget(3) && of(health.health))
            .map(|(t, _)| *t)
    };
    let hung = last(&after, |health| health == Health::Hung).expect("it was said that it hangs");
    assert!((SECOND..6 * SECOND + SECOND / 2).contains(&hung.0), "hung at {hung:?}");
    assert!(last(&after, |health| health == Health::Healthy) > Some(hung), "and that it recovered");
    assert!(last(&before, |health| health == Health::Hung).is_none());
}

/// Goal: who looks sees which target it is that hangs, above all others, with what it has in flight; and in
/// the end is told for how long, of that one alone. Where all are well nothing is said.
/// Method: the tables of the same runs; the target is frozen for five seconds and hangs from the third on at
/// the latest.
#[test]
fn a_frozen_target_is_seen() {
    let frozen = Setting { frozen: Some((2, Time(SECOND), Time(6 * SECOND))), ..eight() };
    let told = run(&frozen);
    let during: Vec<&Table> = told
        .tables
        .iter()
        .filter(|(time, _)| (4 * SECOND..6 * SECOND).contains(&time.0))
        .map(|(_, table)| table)
        .collect();
    assert!(during.len() > 5);
    for table in during {
        assert_eq!((table.targets(), table.counts[Health::Hung as usize]), (8, 1), "{table:?}");
        let first = &table.rows[0];
        assert_eq!((&*first.name, first.health, first.in_flight > 0), ("t2", Health::Hung, true));
        assert!(table.rows[1..].iter().all(|row| row.health != Health::Hung && row.done > 0));
    }
    let (_, last) = told.tables.last().expect("some");
    let bytes: u64 = last.rows.iter().map(|row| row.bytes).sum();
    assert!(bytes > frozen.files * (frozen.file_objects - 1) * OBJECT, "{last:?}");
    let worst = told.troubles.worst(Duration::from_nanos(told.end.0), name);
    let [only] = &worst.named[..] else { panic!("{worst:?}") };
    assert_eq!((&*only.name, worst.others), ("t2", 0));
    assert!((1..=5).contains(&only.hung.as_secs()) && only.congested + only.hung <= Duration::from_secs(6));
    let quiet = run(&eight());
    assert_eq!(quiet.troubles.worst(Duration::from_nanos(quiet.end.0), name), Default::default());
}

/// Goal: a target of a fifteenth of the speed keeps the others from nothing: their last object is written as
/// early as if it was as fast as they are.
#[test]
fn a_slow_target_costs_its_own() {
    let quiet = eight();
    let slow = Setting { speed: |t| if t == 2 { 150_000_000 } else { 10_000_000 }, ..eight() };
    let end = |s: &Setting, told: &Told| {
        let others = |(file, object): &(u64, u64)| layout_of(s, *file).at(object * OBJECT).target.0 != 2;
        told.written.iter().filter(|(key, _)| others(key)).map(|(_, time)| *time).max().expect("some")
    };
    let (before, after) = (end(&quiet, &run(&quiet)), end(&slow, &run(&slow)));
    assert!(after.0 * 10 <= before.0 * 11, "{after:?} against {before:?}");
}

/// Goal: what slow targets hold is no reason to grant no more: from the first second on the others have all
/// they can write.
/// Method: slow targets as large as what is granted at first: four of thirteen with a tenth of the speed, and
/// four objects each, where sixteen are granted; objects of the nine others in three seconds, of which each
/// could write ten.
#[test]
fn slow_targets_leave_room_for_others() {
    let s = Setting {
        targets: 13,
        files: 52,
        file_objects: 8,
        stripes: |_| 1,
        memory: 64 << 20,
        speed: |t| if t < 4 { 2_900_000_000 } else { 290_000_000 },
        ..eight()
    };
    let told = run(&s);
    let slow = |file: u64| layout_of(&s, file).at(0).target.0 < 4;
    let early = |((file, _), time): &(&(u64, u64), &Time)| !slow(*file) && time.0 < 3 * SECOND;
    let others = told.written.iter().filter(early).count();
    assert!(others >= 80, "{others} of 90");
}

/// Goal: where there is one target nothing is said of it: general grants alone; and where the ends did not
/// agree on targets nothing is made ahead either. What one target can do is done.
#[test]
fn one_target_is_as_none() {
    for (agreed, made) in [(true, 100), (false, 0)] {
        let s = Setting { targets: 1, stripes: |_| 1, files: 100, agreed, ..eight() };
        let told = run(&s);
        assert_eq!((told.file_targets, told.sink_target_grants, told.healths.len()), (0, 0, 0));
        assert_eq!(told.made, made);
        let busy = 1600 * 10_000_000;
        assert!(told.end.0 < busy + SECOND, "{:?}", told.end);
    }
}

/// Goal: the source learns where each large file lies, and each sink target is granted something.
#[test]
fn every_file_is_told() {
    let told = run(&eight());
    assert_eq!((told.made, told.file_targets), (400, 400));
    assert!(told.sink_target_grants >= 8);
    assert!(told.healths.iter().all(|(_, health)| (1..=8).contains(&health.sink_target.0)));
    let sink_targets: BTreeSet<u16> = told.healths.iter().map(|(_, health)| health.sink_target.0).collect();
    assert_eq!(sink_targets.len(), 8);
}

/// A sink with a file on each of two targets, and what it said so far.
/// Goal: a large file of one object, which travels whole, has its place and its target's turn as those of
/// several.
/// Method: the world knows no bundles; and what a frozen target holds up is its own.
#[test]
fn whole_files_have_their_place() {
    let frozen = Some((2, Time(SECOND / 2), Time(2 * SECOND)));
    let s = Setting { file_objects: 1, files: 2000, stripes: |_| 1, frozen, ..eight() };
    let told = run(&s);
    assert_eq!((told.made, told.file_targets, told.done.len()), (2000, 2000, 2000));
    let all = run(&Setting { frozen: None, ..s.clone() });
    let (with, without) = (rest(&s, &told, 2, 1, 2).0, rest(&s, &all, 2, 1, 2).0);
    assert!(10 * with >= 9 * without, "{with} of {without}");
}

fn two_files(layout: Layout<TargetId>) -> (Sink, Vec<Message>) {
    let mut sink = new_sink(64 << 20, Some(TARGETS));
    let entries = (1..=2).map(|id| announced(id, 4 * OBJECT)).collect();
    sink.handle_message(Message::Announce(entries), Time(1));
    let mut said = Vec::new();
    let mut layouts = vec![layout, Layout::flat(TargetId(0))];
    loop {
        match sink.poll_action() {
            Some(SinkAction::Submit(SinkOp::Create { file, .. })) => {
                let result = Ok(layouts.pop());
                sink.handle_done(SinkDone::Create { id: file.id, result }, Time(2));
            }
            Some(SinkAction::Send(message)) => said.push(message),
            Some(_) => {}
            None => return (sink, said),
        }
    }
}

fn says(sink: &mut Sink) -> String {
    let mut said = String::new();
    while let Some(action) = sink.poll_action() {
        if let SinkAction::Send(Message::Abort(failure)) = action {
            // It is said again when all has ended.
            said = failure.text.into();
        }
    }
    said
}

/// Goal: a source that takes of a sink target what it was not granted, or of one that there is not, is
/// stopped with the reason; what it was granted it may send.
#[test]
fn a_source_that_takes_too_much_is_stopped() {
    let data = |sink_target: u16, object: u64| DataHeader {
        sink_target: SinkTarget(sink_target),
        entries: vec![entry(1, object, 4 * OBJECT)],
    };
    let good = || vec![true];
    let (mut sink, said) = two_files(Layout::flat(TargetId(1)));
    let granted = |sink_target: u16| {
        let of = |m: &Message| matches!(m, Message::Grant { by: Holder::ALONE, sink_target: c, .. } if *c == sink_target);
        said.iter().rfind(|m| of(m)).map(|m| if let Message::Grant { total, .. } = m { *total } else { 0 })
    };
    // Four objects are a sink target's first share.
    assert_eq!((granted(1), granted(2), granted(3)), (Some(4 * OBJECT), Some(4 * OBJECT), None));
    for object in 0..4 {
        sink.handle_data(StreamId(1), data(1, object), Some(BufferId(object as u32)), good(), Time(3));
    }
    assert_eq!(says(&mut sink), "");
    sink.handle_data(StreamId(1), data(1, 0), Some(BufferId(9)), good(), Time(3));
    assert_eq!(says(&mut sink), "more data of a target than was granted");
    for sink_target in [3, 4095] {
        let (mut sink, _) = two_files(Layout::flat(TargetId(1)));
        sink.handle_data(StreamId(1), data(sink_target, 0), Some(BufferId(1)), good(), Time(3));
        assert_eq!(says(&mut sink), "more data of a target than was granted");
    }
    let (mut sink, _) = two_files(Layout::flat(TargetId(1)));
    let empty = DataEntry { root: true, len: 0, cvs: vec![[0; 32]], ..entry(1, 0, 4 * OBJECT) };
    sink.handle_data(
        StreamId(1),
        DataHeader { sink_target: SinkTarget(1), entries: vec![empty] },
        None,
        good(),
        Time(3),
    );
    assert_eq!(says(&mut sink), "data of a target without payload");
    // No sink target is known where the ends did not agree on them.
    let mut sink = new_sink(64 << 20, None);
    sink.handle_message(Message::Announce(vec![announced(1, 4 * OBJECT)]), Time(1));
    while sink.poll_action().is_some() {}
    sink.handle_data(StreamId(1), data(1, 0), Some(BufferId(1)), good(), Time(3));
    assert_eq!(says(&mut sink), "data of a target, of which this session was not to know");
    // Nor does a source say where files lie.
    let (mut sink, _) = two_files(Layout::flat(TargetId(1)));
    let lie = Message::FileTargets {
        id: FileId(1),
        generation: Generation(0),
        layout: Layout::flat(SinkTarget(1)),
    };
    sink.handle_message(lie, Time(3));
    assert_eq!(says(&mut sink), "the source sent a message that only a sink sends: FILE_TARGETS");
}

/// Goal: data of a file that is cut in a way yet to be told wait for that, and then have the length that was
/// told; the file is made with the source's stripes. What is told twice, of nobody or too long, ends the
/// session.
#[test]
fn data_wait_for_how_a_file_is_cut() {
    let generation = Generation(0);
    let striping = Some(Striping { stripe_size: OBJECT / 2, stripe_count: 3 });
    let told = |id: u64, object_size: u64| {
        let object_size = object_size as u32;
        Message::FileLayout(vec![FileLayout { id: FileId(id), generation, object_size, striping }])
    };
    let begin = || {
        let mut sink = new_sink(64 << 20, Some(TARGETS));
        let mut entry = announced(1, 4 * OBJECT);
        let EntryKind::File { striped, .. } = &mut entry.kind else { panic!("a file") };
        *striped = true;
        sink.handle_message(Message::Announce(vec![entry]), Time(1));
        sink
    };
    let ops = |sink: &mut Sink| -> Vec<SinkOp> {
        let all = std::iter::from_fn(|| sink.poll_action());
        all.filter_map(|action| if let SinkAction::Submit(op) = action { Some(op) } else { None }).collect()
    };
    let mut sink = begin();
    assert_eq!(ops(&mut sink), []);
    let half = OBJECT / 2;
    let part = DataEntry { offset: half, len: half as u32, ..entry(1, 0, 4 * OBJECT) };
    let cvs = subtrees(half, half, false).map(|(offset, _)| [offset as u8; 32]).collect();
    let header = DataHeader { sink_target: SinkTarget::ANY, entries: vec![DataEntry { cvs, ..part }] };
    sink.handle_data(StreamId(1), header, Some(BufferId(1)), vec![true], Time(2));
    assert_eq!(ops(&mut sink), [], "nothing is made before it is known how");
    sink.handle_message(told(1, half), Time(3));
    let made = ops(&mut sink);
    let [SinkOp::Create { file, striping: wanted }] = &made[..] else { panic!("{made:?}") };
    assert_eq!((file.id, *wanted), (FileId(1), striping));
    sink.handle_done(SinkDone::Create { id: FileId(1), result: Ok(None) }, Time(4));
    let written = ops(&mut sink);
    assert!(
        matches!(written[..], [SinkOp::Write { offset, len, .. }] if (offset, u64::from(len)) == (half, half))
    );
    sink.handle_message(told(1, half), Time(5));
    assert!(says(&mut sink).contains("twice"));
    for (wrong, why) in [(told(1, 2 * OBJECT), "longer"), (told(2, OBJECT), "never announced")] {
        let mut sink = begin();
        sink.handle_message(wrong, Time(2));
        assert!(says(&mut sink).contains(why));
    }
}

/// Goal: of a file of more components and sink targets than one message holds its beginning is told, and of
/// the rest that it may be anywhere.
#[test]
fn long_layouts_are_cut() {
    let parts = |count: u64, width: u16| {
        let part = |n: u64| Component {
            start: n * OBJECT,
            stripe_size: OBJECT,
            targets: (0..width).map(|t| TargetId(t + 1)).collect(),
        };
        Layout::new((0..count).map(part).collect()).expect("it is one")
    };
    for (count, width, kept) in
        [(5000, 1, TARGET_COMPONENTS_MAX), (9, 1000, FILE_SINK_TARGETS_MAX / 1000 + 1), (3, 1000, 3)]
    {
        let (_, said) = two_files(parts(count, width));
        let of_second = |m: &Message| match m {
            Message::FileTargets { id: FileId(2), layout, .. } => Some(layout.clone()),
            _ => None,
        };
        let layout = said.iter().find_map(of_second).expect("it was told");
        assert_eq!(layout.components().len(), kept);
        let cut = kept < count as usize;
        assert_eq!(layout.at(u64::MAX).target == &SinkTarget::ANY, cut, "{count} components of {width}");
        let message = Message::FileTargets { id: FileId(2), generation: Generation(0), layout };
        encode_frame(&message, StreamId(0), SessionEpoch(1), 1);
    }
}
