//! Storage targets of the destination, where it has several: where files lie, what each target may hold,
//! whose turn it is.
//!
//! In: files that are open for data; where the engine says that they lie; frames that name a sink target; how
//! long writes took.
//! Out: files to be made ahead; `FILE_TARGETS`, grants of sink targets and `TARGET_HEALTH` for the source;
//! objects in the order in which targets are to have them.
//! Invariants: an object of a large file is written only when it is known where that file lies; what of a
//! sink target arrives was granted to it, besides the general grant, which alone says that there is room;
//! what was taken of a sink target comes back to it with its buffer, wherever the object went. Until a second
//! target is met nothing is told and nothing waits here.
//! Left out: bundles, whose files are small: they go on the general grant, and straight to the engine.
//!
//! A sink target is a target's number and 1 ([`SinkTarget::of`]).

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use super::file::{EarlyTemporary, File, Mark, SinkPhase};
use super::{Sink, SinkAction};
use crate::id_map::IdMap;
use crate::ids::{BufferId, FileId, SinkTarget, TargetId, Time};
use crate::layout::{Component, Layout};
use crate::schedule::buffer_shares::Shares;
use crate::schedule::{Health, Limits, Policy, Run, Schedule, TargetState};
use crate::transfer::SMALL_LEN_MAX;
use crate::transfer::op::{SinkFile, SinkOp, Took};
use crate::wire::{
    FILE_SINK_TARGETS_MAX, Failure, FileLayout, ITEMS_MAX, Message, OBJECT_LEN_MIN, TARGET_COMPONENTS_MAX,
    TargetHealth,
};

/// Files that are made before data of them came, at most; those that were longer ago than [`AHEAD_FOR`], or
/// lie on a target that is not well, do not count.
const AHEAD_MAX: usize = 64;
const AHEAD_FOR: Duration = Duration::from_secs(1);
/// So often they are looked at, when there are so many.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// So often the source is told how the targets fare that had anything to do.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// An object that waits for its turn.
struct Waiting {
    file: SinkFile,
    offset: u64,
    len: u32,
    buffer: BufferId,
    start: u32,
}

/// The targets of a session.
pub(super) struct Targets {
    schedule: Schedule,
    shares: Shares,
    /// By file and a number of their own.
    waiting: BTreeMap<(FileId, u64), Waiting>,
    count: u64,
    /// Target and length of each object that is being written.
    writing: HashMap<BufferId, (TargetId, u32)>,
    /// Files that shall be made.
    wished: VecDeque<FileId>,
    /// Made, or being made, and no data of them came; since when.
    ahead: BTreeMap<FileId, Time>,
    /// When these are looked at again.
    look_at: Time,
    met: BTreeSet<SinkTarget>,
    /// Files that were made while there was but one target.
    untold: Vec<FileId>,
    /// Credit that frames took of each sink target.
    received: BTreeMap<SinkTarget, u64>,
    /// When the source is told next; objects done of each target when it was told last.
    tell_at: Time,
    told: BTreeMap<TargetId, (Health, u64)>,
}

impl Targets {
    pub(super) fn new(limits: Limits, memory: u64, round_trip: Duration) -> Targets {
        Targets {
            schedule: Schedule::new(Policy::ADAPTIVE, limits),
            shares: Shares::new(memory, OBJECT_LEN_MIN.into(), round_trip),
            waiting: BTreeMap::new(),
            count: 0,
            writing: HashMap::new(),
            wished: VecDeque::new(),
            ahead: BTreeMap::new(),
            look_at: Time(0),
            met: BTreeSet::new(),
            untold: Vec::new(),
            received: BTreeMap::new(),
            tell_at: Time(0),
            told: BTreeMap::new(),
        }
    }

    fn several(&self) -> bool {
        self.met.len() > 1
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        let tell = (self.several() && self.schedule.in_flight() > 0).then_some(self.tell_at);
        let full = self.ahead.len() >= AHEAD_MAX && !self.wished.is_empty();
        let look = full.then_some(self.look_at);
        [self.schedule.next_deadline(), tell, look].into_iter().flatten().min()
    }

    /// A longer object came than any before.
    pub(super) fn set_object(&mut self, len: u64) {
        self.shares.set_object(len);
    }

    /// A frame came that took of this sink target. False: more than was granted.
    pub(super) fn arrived(&mut self, sink_target: SinkTarget, cost: u64, now: Time) -> bool {
        let received = self.received.entry(sink_target).or_default();
        *received += cost;
        let granted = *received <= self.shares.told(sink_target);
        if granted {
            self.shares.handle_arrived(sink_target, cost, now);
        }
        granted
    }

    /// The buffer of such a frame is free.
    pub(super) fn freed(&mut self, sink_target: SinkTarget, cost: u64, service: Option<Duration>, now: Time) {
        self.shares.handle_freed(sink_target, cost, service, now);
    }

    /// A write is over. What only the cache took says something too: where the cache has no more room for a
    /// target, its writers wait, and its peers' do not.
    pub(super) fn written(&mut self, buffer: BufferId, took: Option<Took>, now: Time) {
        let Some((target, len)) = self.writing.remove(&buffer) else { return };
        match took {
            Some(took) => self.schedule.done(target, len.into(), took.time, now),
            None => self.schedule.failed(target, now),
        }
    }

    /// Files whose data do not come keep no others from being made: the target where they lie, at either end,
    /// may hang. Of this end's it is known which are not well.
    fn look_at_ahead(&mut self, files: &IdMap<FileId, Box<File>>, now: Time) {
        if now < self.look_at {
            return;
        }
        self.look_at = now.after(LOOK_EVERY);
        let schedule = &self.schedule;
        let well = |target: &TargetId| schedule.health(*target) == Health::Healthy;
        self.ahead.retain(|id, since| {
            let places = files.get(id).and_then(|file| file.places.as_ref());
            let well = places.is_none_or(|layout| layout.targets().into_iter().all(well));
            well && now.since(*since) < AHEAD_FOR
        });
    }

    /// How targets fare that changed, or of which more is done than was told.
    fn healths(&mut self, all: bool) -> Vec<TargetHealth> {
        let mut changed = BTreeSet::new();
        while let Some((target, _)) = self.schedule.take_change() {
            changed.insert(target);
        }
        if changed.is_empty() && !all {
            return Vec::new();
        }
        let mut list = Vec::new();
        for state in self.schedule.targets() {
            let (health, done) = (state.health, state.done);
            let new = self.told.get(&state.target) != Some(&(health, done)) || state.in_flight > 0;
            if !(changed.contains(&state.target) || all && new) {
                continue;
            }
            self.told.insert(state.target, (health, done));
            let number = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
            let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            let sink_target = SinkTarget::of(state.target);
            if sink_target == SinkTarget::ANY {
                continue;
            }
            list.push(TargetHealth {
                sink_target,
                health,
                waiting: number(state.waiting),
                in_flight: state.in_flight,
                service: nanos(state.service),
                best: nanos(state.best),
                done,
            });
        }
        list
    }
}

impl Sink {
    /// How the storage targets of this end fare; none before there are several.
    pub fn targets(&self) -> impl Iterator<Item = TargetState> + '_ {
        self.several_targets().into_iter().flat_map(|targets| targets.schedule.targets())
    }

    /// Those of them that are not healthy, and that files are to be written to.
    pub fn unwell(&self) -> impl Iterator<Item = (TargetId, Health)> + '_ {
        self.several_targets().into_iter().flat_map(|targets| {
            targets.schedule.sick().filter(|(target, _)| targets.shares.is_wanted(SinkTarget::of(*target)))
        })
    }

    fn several_targets(&self) -> Option<&Targets> {
        self.targets.as_ref().filter(|targets| targets.several())
    }

    /// Whether files go to a target for which nothing is here.
    pub(super) fn has_idle_target(&self) -> bool {
        self.several_targets().is_some_and(|targets| targets.shares.wanted() > targets.schedule.busy())
    }

    /// The path's round trip was measured anew.
    pub fn set_round_trip(&mut self, round_trip: Option<Duration>) {
        let Some(round_trip) = round_trip else { return };
        self.window.set_round_trip(round_trip);
        if let Some(targets) = &mut self.targets {
            targets.shares.set_round_trip(round_trip);
        }
    }

    /// The file is open for data: if it is large it is made, before data come if there is room for that.
    pub(super) fn wish(&mut self, id: FileId) {
        let Some(targets) = &mut self.targets else { return };
        let waits =
            |file: &File| file.is_striped() && file.made == EarlyTemporary::No && !file.is(Mark::WaitsLayout);
        if self.files.get(&id).is_some_and(|file| waits(file)) {
            targets.wished.push_back(id);
        }
    }

    /// How files are cut at the source. Their data may come now.
    pub(super) fn handle_file_layout(&mut self, files: Vec<FileLayout>) {
        for FileLayout { id, generation, object_size, striping } in files {
            let Some(file) = self.files.get_mut(&id) else {
                if !self.announced.is_past(id) {
                    return self.violation("how a file is cut that was never announced");
                }
                // Else it is over here, and the source had not heard of that yet.
                continue;
            };
            let told = file.kept.generation == generation;
            if !told || !file.is(Mark::WaitsLayout) || object_size > file.kept.object_size {
                return self.violation("how a file is cut, twice, late, or in longer objects than announced");
            }
            file.unmark(Mark::WaitsLayout);
            (file.kept.object_size, file.striping) = (object_size, striping);
            if file.phase == SinkPhase::Open {
                self.wish(id);
            }
            self.wake(id);
        }
    }

    /// Whether data of this file must wait until it is known where it lies. Sees to it that it will be.
    pub(super) fn waits_for_place(&mut self, id: FileId) -> bool {
        let Some(targets) = &mut self.targets else { return false };
        targets.ahead.remove(&id);
        let Some(file) = self.files.get(&id) else { return false };
        match file.made {
            EarlyTemporary::No if file.is_striped() && file.phase == SinkPhase::Open => {
                self.make(id);
                true
            }
            EarlyTemporary::Asked => true,
            EarlyTemporary::No | EarlyTemporary::Yes => false,
        }
    }

    fn make(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        if !file.is(Mark::HasTemp) {
            file.mark(Mark::HasTemp);
            self.files_open += 1;
        }
        file.made = EarlyTemporary::Asked;
        // Whoever gives the file up waits for this as for a write.
        file.writes += 1;
        let op = SinkOp::Create { file: file.sink_file(id), striping: file.striping };
        self.submit(op);
    }

    fn make_ahead(&mut self) {
        while let Some(targets) = &mut self.targets {
            if self.stop.is_some() {
                targets.wished.clear();
            }
            if targets.ahead.len() >= AHEAD_MAX {
                targets.look_at_ahead(&self.files, self.now);
            }
            if targets.ahead.len() >= AHEAD_MAX || self.files_open >= self.config.files_open_max / 2 {
                return;
            }
            let Some(id) = targets.wished.pop_front() else { return };
            let wants = |file: &File| {
                file.phase == SinkPhase::Open
                    && file.made == EarlyTemporary::No
                    && !file.is(Mark::WaitsLayout)
            };
            if self.files.get(&id).is_some_and(|file| wants(file)) {
                targets.ahead.insert(id, self.now);
                self.make(id);
            }
        }
    }

    /// The file was made, and lies so.
    pub(super) fn handle_made(&mut self, id: FileId, result: Result<Option<Layout<TargetId>>, Failure>) {
        self.other_ops -= 1;
        if let Some(drain) = self.drains.get_mut(&id).filter(|drain| drain.writes > 0) {
            drain.writes -= 1;
            return self.check_drain(id);
        }
        let Some(file) = self.files.get_mut(&id).filter(|file| file.made == EarlyTemporary::Asked) else {
            return;
        };
        file.writes -= 1;
        file.made = EarlyTemporary::Yes;
        match result {
            Ok(places) => file.places = places,
            Err(failure) => {
                file.mark(Mark::Broken);
                return self.fail_file(id, failure);
            }
        }
        let Some(targets) = &mut self.targets else { return };
        let before = targets.several();
        targets.met.extend(file.sink_targets());
        targets.untold.push(id);
        if targets.several() {
            if !before {
                targets.tell_at = self.now.after(TELL_EVERY);
            }
            for id in std::mem::take(&mut targets.untold) {
                self.tell_places(id);
            }
        }
        self.wake(id);
        // All of it may be held from before, and sealed.
        self.try_complete(id);
    }

    fn tell_places(&mut self, id: FileId) {
        let waits = |file: &&mut Box<File>| file.made == EarlyTemporary::Yes && !file.is(Mark::Told);
        let (Some(targets), Some(file)) = (&mut self.targets, self.files.get_mut(&id).filter(waits)) else {
            return;
        };
        file.mark(Mark::Told);
        file.sink_targets().into_iter().for_each(|sink_target| targets.shares.handle_wanted(sink_target));
        let generation = file.kept.generation;
        let layout = file.places.as_ref().map_or_else(|| Layout::flat(SinkTarget::ANY), told_of);
        self.actions.push_back(SinkAction::Send(Message::FileTargets { id, generation, layout }));
    }

    /// The file is over, or begins anew: nothing of it waits any more.
    pub(super) fn leave_targets(&mut self, id: FileId) {
        let (Some(targets), Some(file)) = (&mut self.targets, self.files.get_mut(&id)) else { return };
        targets.ahead.remove(&id);
        if file.unmark(Mark::Told) {
            file.sink_targets().into_iter().for_each(|sink_target| targets.shares.handle_over(sink_target));
        }
        file.made = EarlyTemporary::No;
        file.places = None;
        targets.untold.retain(|untold| *untold != id);
        targets.schedule.forget(id);
        let keys: Vec<_> = targets.waiting.range((id, 0)..=(id, u64::MAX)).map(|(key, _)| *key).collect();
        let left: Vec<_> = keys.iter().filter_map(|key| targets.waiting.remove(key)).collect();
        file.writes -= u32::try_from(left.len()).expect("buffers bound it");
        for object in left {
            self.writes -= 1;
            self.free(Some(object.buffer));
        }
    }

    /// Writes an object, when its target has its turn if it is known which.
    pub(super) fn write(&mut self, file: SinkFile, offset: u64, len: u32, buffer: BufferId, start: u32) {
        self.writes += 1;
        let id = file.id;
        let object = Waiting { file, offset, len, buffer, start };
        let target = self.files.get(&id).and_then(|file| file.target_at(offset));
        if let (Some(target), Some(targets)) = (target, self.targets.as_mut().filter(|t| t.several())) {
            targets.count += 1;
            let run = Run::objects(id, SinkTarget::ANY, targets.count, 1);
            if targets.schedule.add(target, run).is_ok() {
                targets.waiting.insert((id, targets.count), object);
                return;
            }
        }
        self.submit_write(object);
    }

    fn submit_write(&mut self, object: Waiting) {
        let Waiting { file, offset, len, buffer, start } = object;
        self.actions.push_back(SinkAction::Submit(SinkOp::Write { file, offset, len, buffer, start }));
    }

    /// Makes files, and begins the writes whose turn it is.
    pub(super) fn run_targets(&mut self) {
        self.make_ahead();
        let now = self.now;
        while let Some(targets) = &mut self.targets {
            let Some(issue) = targets.schedule.next(now) else { return };
            let object = targets.waiting.remove(&(issue.file, issue.object));
            let object = object.expect("what is given out was waiting");
            targets.writing.insert(object.buffer, (issue.target, object.len));
            self.submit_write(object);
        }
    }

    /// Tells the source what sink targets may have, and how targets fare.
    pub(super) fn flush_targets(&mut self) {
        let Some(targets) = self.targets.as_mut().filter(|t| t.several()) else { return };
        let due = self.now >= targets.tell_at;
        if due {
            targets.tell_at = self.now.after(TELL_EVERY);
        }
        if self.stop.is_some() || self.stop_at.is_some() {
            return;
        }
        while let Some((sink_target, total)) = targets.shares.poll_grant(self.now) {
            self.actions.push_back(SinkAction::Send(Message::Grant {
                by: self.config.agreed.lease,
                sink_target: sink_target.0,
                total,
            }));
        }
        for part in targets.healths(due).chunks(ITEMS_MAX) {
            self.actions.push_back(SinkAction::Send(Message::TargetHealth(part.to_vec())));
        }
    }

    pub(super) fn tick_targets(&mut self) {
        if let Some(targets) = &mut self.targets {
            targets.schedule.handle_tick(self.now);
        }
    }

    /// The targets that the file lies on, by which it is synced with others or apart from them. Empty: not
    /// known, or there is but one. It stays what it was at first.
    pub(super) fn set_of(&mut self, id: FileId) -> Vec<SinkTarget> {
        let several = self.targets.as_ref().is_some_and(Targets::several);
        let Some(file) = self.files.get_mut(&id) else { return Vec::new() };
        if file.set.is_none() {
            file.set = Some(if several { file.sink_targets().into_iter().collect() } else { Vec::new() });
        }
        file.set.clone().unwrap_or_default()
    }
}

impl File {
    /// It may lie on several targets, and comes in objects.
    pub(super) fn is_striped(&self) -> bool {
        self.size() > SMALL_LEN_MAX
    }

    /// The sink targets that it lies on, as far as they are known.
    fn sink_targets(&self) -> BTreeSet<SinkTarget> {
        let targets = self.places.iter().flat_map(Layout::targets);
        targets
            .map(|target| SinkTarget::of(*target))
            .filter(|sink_target| *sink_target != SinkTarget::ANY)
            .collect()
    }

    fn target_at(&self, offset: u64) -> Option<TargetId> {
        self.places.as_ref().map(|layout| *layout.at(offset).target)
    }
}

/// What the source is told of a layout: as much as one message holds. What lies behind that may be anywhere.
fn told_of(layout: &Layout<TargetId>) -> Layout<SinkTarget> {
    let mut room = FILE_SINK_TARGETS_MAX;
    let mut components = Vec::new();
    for component in layout.components() {
        // One is kept for the rest.
        if components.len() + 1 == TARGET_COMPONENTS_MAX || component.targets.len() >= room {
            let (start, stripe_size) = (component.start, u64::MAX);
            components.push(Component { start, stripe_size, targets: vec![SinkTarget::ANY] });
            break;
        }
        room -= component.targets.len();
        let targets = component.targets.iter().map(|target| SinkTarget::of(*target)).collect();
        components.push(Component { start: component.start, stripe_size: component.stripe_size, targets });
    }
    Layout::new(components).expect("a part of a layout is one")
}
