//! What waits at each storage target, by the range, and which of it may go.
//!
//! In: runs of objects, files that are given up, targets of the sink that are shut or poor. Out: objects,
//! each once.
//!
//! A target's runs stand in lists, one for each target of the sink, first in, first out. SinkTargets take
//! turns, a run at a time, so that a file is read in one go as long as its sink target may go. A sink target
//! that is *shut* has no room at the sink: nothing of it goes. A *poor* one is slow there: it goes when
//! nothing else can, and once whenever it is *tried*.
//!
//! Invariants: at most [`RUNS_MAX`] runs, those of files given up included until they come to the front;
//! `has` and `sources` say which lists are not empty; a target is `blind` for a way of choosing only if none
//! of its sink targets may go that way. So a step costs one look at the words of a set (16 for 1,008 sink
//! targets) and the logarithm of a target's sink targets.
//! Left out: lengths and places. An object is a number; who knows the file knows the rest.

use std::collections::BTreeMap;

use super::bits::Bits;
use super::{Full, Run};
use crate::id_map::IdMap;
use crate::ids::{FileId, SinkTarget, TargetId};

/// Most runs that wait: about 20 MB.
pub const RUNS_MAX: usize = 1 << 18;
/// No node.
const NONE: u32 = u32::MAX;

/// Which sink targets may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Those that are neither shut nor poor, or are tried.
    Good,
    /// Those that are not shut.
    Any,
    /// All, but what has no sink target while [`SinkTarget::ANY`] is shut.
    Ahead,
}

const WAYS: [Way; 3] = [Way::Good, Way::Any, Way::Ahead];

/// What waits. See the module's head.
#[derive(Clone, Debug, Default)]
pub(super) struct Queues {
    nodes: Vec<Node>,
    /// Nodes without a run.
    free: Vec<u32>,
    targets: Vec<Waiting>,
    files: IdMap<FileId, Known>,
    next_order: u64,
    /// Objects that wait, of targets of the sink, without those of files given up.
    placed: u64,
    /// Runs of files that were given up, still in their lists.
    stale: usize,
    shut: Bits,
    poor: Bits,
    /// Poor sink targets that may have one object now.
    tried: Bits,
    /// By sink target: the targets that have something for it.
    sources: Vec<Bits>,
    /// By way: targets of which nothing may go.
    blind: [Bits; WAYS.len()],
}

#[derive(Clone, Debug, Default)]
struct Waiting {
    lists: BTreeMap<u16, List>,
    /// The sink targets in `lists`.
    has: Bits,
    /// The sink target whose turn it is.
    turn: usize,
    objects: u64,
}

#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    run: Run,
    /// Objects of it that were given out.
    taken: u64,
    /// Of its file, as it was when the run was added.
    order: u64,
    next: u32,
}

/// A file with runs that wait.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Files by the order in which they came.
    order: u64,
    runs: usize,
    /// Objects that wait, of targets of the sink.
    placed: u64,
}

/// The object that is next of a target: the file's order and the object's number, for who goes by that.
pub(super) type Head = (u64, u64);

impl Queues {
    /// Puts a run at the end of a list of its target; at the beginning with `again`. `sink_target` names the
    /// list.
    pub(super) fn add(
        &mut self,
        target: TargetId,
        sink_target: SinkTarget,
        run: Run,
        again: bool,
    ) -> Result<(), Full> {
        if self.nodes.len() - self.free.len() >= RUNS_MAX {
            return Err(Full);
        }
        let next_order = &mut self.next_order;
        let known = self.files.entry(run.file).or_insert_with(|| {
            *next_order += 1;
            Known { order: *next_order, runs: 0, placed: 0 }
        });
        known.runs += 1;
        if run.sink != SinkTarget::ANY {
            known.placed = known.placed.saturating_add(run.count);
            self.placed = self.placed.saturating_add(run.count);
        }
        let node = Node { run, taken: 0, order: known.order, next: NONE };
        let index = match self.free.pop() {
            Some(index) => {
                self.nodes[index as usize] = node;
                index
            }
            None => {
                self.nodes.push(node);
                u32::try_from(self.nodes.len() - 1).expect("few nodes")
            }
        };
        let (t, c) = (usize::from(target.0), usize::from(sink_target.0));
        if self.targets.len() <= t {
            self.targets.resize_with(t + 1, Waiting::default);
        }
        if self.sources.len() <= c {
            self.sources.resize_with(c + 1, Bits::default);
        }
        let waiting = &mut self.targets[t];
        waiting.objects = waiting.objects.saturating_add(run.count);
        match waiting.lists.get_mut(&sink_target.0) {
            None => drop(waiting.lists.insert(sink_target.0, List { first: index, last: index })),
            Some(list) if again => {
                self.nodes[index as usize].next = list.first;
                list.first = index;
            }
            Some(list) => {
                self.nodes[list.last as usize].next = index;
                list.last = index;
            }
        }
        waiting.has.set(c, true);
        self.sources[c].set(t, true);
        for blind in &mut self.blind {
            blind.set(t, false);
        }
        Ok(())
    }

    /// Runs that can still be added.
    pub(super) fn room(&self) -> usize {
        RUNS_MAX - (self.nodes.len() - self.free.len())
    }

    /// Something waits of which it is known where it goes.
    pub(super) fn has_placed(&self) -> bool {
        self.placed > 0
    }

    /// Objects that wait at a target, those of files given up included until they come to the front.
    pub(super) fn objects(&self, target: usize) -> u64 {
        self.targets.get(target).map_or(0, |waiting| waiting.objects)
    }

    /// Nothing that waits of this file goes any more.
    pub(super) fn forget(&mut self, file: FileId) {
        if let Some(known) = self.files.remove(&file) {
            self.stale += known.runs;
            self.placed -= known.placed;
        }
    }

    /// Whether a sink target has room at the sink.
    pub(super) fn set_shut(&mut self, sink_target: SinkTarget, shut: bool) {
        if self.shut.set(sink_target.0.into(), shut) && !shut {
            self.see(sink_target, &WAYS);
        }
    }

    /// Whether a sink target is slow at the sink.
    pub(super) fn set_poor(&mut self, sink_target: SinkTarget, poor: bool) {
        self.tried.set(sink_target.0.into(), false);
        if self.poor.set(sink_target.0.into(), poor) && !poor {
            self.see(sink_target, &[Way::Good]);
        }
    }

    pub(super) fn is_poor(&self, sink_target: SinkTarget) -> bool {
        self.poor.contains(sink_target.0.into())
    }

    pub(super) fn is_shut(&self, sink_target: SinkTarget) -> bool {
        self.shut.contains(sink_target.0.into())
    }

    /// A poor sink target may have one object, whatever else can go.
    pub(super) fn try_poor(&mut self, sink_target: SinkTarget) {
        if self.is_poor(sink_target) && self.tried.set(sink_target.0.into(), true) {
            self.see(sink_target, &[Way::Good]);
        }
    }

    fn see(&mut self, sink_target: SinkTarget, ways: &[Way]) {
        if let Some(sources) = self.sources.get(usize::from(sink_target.0)) {
            for way in ways {
                self.blind[*way as usize].remove_all(sources);
            }
        }
    }

    /// The first target of `ready` from `from` on, in a ring, that has something to go this way; and its sink
    /// target.
    pub(super) fn find(&mut self, ready: &Bits, from: usize, way: Way) -> Option<(usize, SinkTarget)> {
        let mut at = from;
        loop {
            let t = ready.next(at, |word| !self.blind[way as usize].word(word))?;
            if let Some(sink_target) = self.sink_target_of(t, way) {
                return Some((t, sink_target));
            }
            self.blind[way as usize].set(t, true);
            at = t + 1;
        }
    }

    fn sink_target_of(&mut self, t: usize, way: Way) -> Option<SinkTarget> {
        loop {
            let waiting = self.targets.get(t)?;
            let may = |word| {
                let poor = self.poor.word(word) & !self.tried.word(word);
                match way {
                    Way::Good => !self.shut.word(word) & !poor,
                    Way::Any => !self.shut.word(word),
                    Way::Ahead => !(self.shut.word(word) & u64::from(word == 0)),
                }
            };
            let c = waiting.has.next(waiting.turn, may)?;
            self.targets[t].turn = c;
            let sink_target = SinkTarget(u16::try_from(c).expect("a sink target"));
            if self.head(t, sink_target).is_some() {
                return Some(sink_target);
            }
        }
    }

    /// The next object of a list. Drops what was given up, and with it perhaps the list.
    pub(super) fn head(&mut self, t: usize, sink_target: SinkTarget) -> Option<Head> {
        loop {
            let list = *self.targets.get(t)?.lists.get(&sink_target.0)?;
            let node = &self.nodes[list.first as usize];
            let alive = self.stale == 0
                || self.files.get(&node.run.file).is_some_and(|known| known.order == node.order);
            if alive {
                return Some((node.order, node.run.object(node.taken)));
            }
            let left = node.run.count - node.taken;
            self.targets[t].objects -= left.min(self.targets[t].objects);
            self.stale -= 1;
            self.drop_first(t, sink_target);
        }
    }

    /// The target of the sink that the next object of a list goes to.
    pub(super) fn sink_of(&self, t: usize, sink_target: SinkTarget) -> Option<SinkTarget> {
        let list = self.targets.get(t)?.lists.get(&sink_target.0)?;
        Some(self.nodes[list.first as usize].run.sink)
    }

    /// Takes the next object of a list that has one.
    pub(super) fn take(&mut self, t: usize, sink_target: SinkTarget) -> (Run, u64) {
        let list = self.targets[t].lists[&sink_target.0];
        let node = &mut self.nodes[list.first as usize];
        let (run, object) = (node.run, node.run.object(node.taken));
        node.taken += 1;
        let over = node.taken == node.run.count;
        self.tried.set(run.sink.0.into(), false);
        self.targets[t].objects -= 1;
        let known = self.files.get_mut(&run.file).expect("a file with runs is known");
        if run.sink != SinkTarget::ANY {
            known.placed -= 1;
            self.placed -= 1;
        }
        if over {
            known.runs -= 1;
            if known.runs == 0 {
                self.files.remove(&run.file);
            }
            self.drop_first(t, sink_target);
            self.targets[t].turn = usize::from(sink_target.0) + 1;
        }
        (run, object)
    }

    fn drop_first(&mut self, t: usize, sink_target: SinkTarget) {
        let waiting = &mut self.targets[t];
        let list = waiting.lists.get_mut(&sink_target.0).expect("it has a first one");
        let first = list.first;
        list.first = self.nodes[first as usize].next;
        self.free.push(first);
        if list.first == NONE {
            waiting.lists.remove(&sink_target.0);
            waiting.has.set(sink_target.0.into(), false);
            self.sources[usize::from(sink_target.0)].set(t, false);
        }
    }
}
