//! What waits at each storage target, by the range, and which of it may go.
//!
//! In: runs of objects, files that are given up, classes of the sink that are shut or poor. Out: objects, each once.
//!
//! A target's runs stand in lists, one for each class of the sink, first in, first out. Classes take turns, a run at
//! a time, so that a file is read in one go as long as its class may go. A class that is *shut* has no room at the
//! sink: nothing of it goes. A *poor* one is slow there: it goes when nothing else can, and once whenever it is
//! *tried*.
//!
//! Invariants: at most [`RUNS_MAX`] runs, those of files given up included until they come to the front; `has` and
//! `sources` say which lists are not empty; a target is `blind` for a way of choosing only if none of its classes may
//! go that way. So a step costs one look at the words of a set (16 for 1,008 classes) and the logarithm of a
//! target's classes.
//! Left out: lengths and places. An object is a number; who knows the file knows the rest.

use std::collections::{BTreeMap, HashMap};

use super::bits::Bits;
use super::{Full, Run};
use crate::ids::{Class, FileId, TargetId};

/// Most runs that wait: about 20 MB.
pub const RUNS_MAX: usize = 1 << 18;
/// No node.
const NONE: u32 = u32::MAX;

/// Which classes may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Those that are neither shut nor poor, or are tried.
    Good,
    /// Those that are not shut.
    Any,
    /// All, but what has no class while [`Class::ANY`] is shut.
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
    files: HashMap<FileId, Known>,
    next_order: u64,
    /// Objects that wait, of classes of the sink, without those of files given up.
    placed: u64,
    /// Runs of files that were given up, still in their lists.
    stale: usize,
    shut: Bits,
    poor: Bits,
    /// Poor classes that may have one object now.
    tried: Bits,
    /// By class: the targets that have something for it.
    sources: Vec<Bits>,
    /// By way: targets of which nothing may go.
    blind: [Bits; WAYS.len()],
}

#[derive(Clone, Debug, Default)]
struct Waiting {
    lists: BTreeMap<u16, List>,
    /// The classes in `lists`.
    has: Bits,
    /// The class whose turn it is.
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
    /// Objects that wait, of classes of the sink.
    placed: u64,
}

/// The object that is next of a target: the file's order and the object's number, for who goes by that.
pub(super) type Head = (u64, u64);

impl Queues {
    /// Puts a run at the end of a list of its target; at the beginning with `again`. `class` names the list.
    pub(super) fn add(&mut self, target: TargetId, class: Class, run: Run, again: bool) -> Result<(), Full> {
        if self.nodes.len() - self.free.len() >= RUNS_MAX {
            return Err(Full);
        }
        let next_order = &mut self.next_order;
        let known = self.files.entry(run.file).or_insert_with(|| {
            *next_order += 1;
            Known { order: *next_order, runs: 0, placed: 0 }
        });
        known.runs += 1;
        if run.sink != Class::ANY {
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
        let (t, c) = (usize::from(target.0), usize::from(class.0));
        if self.targets.len() <= t {
            self.targets.resize_with(t + 1, Waiting::default);
        }
        if self.sources.len() <= c {
            self.sources.resize_with(c + 1, Bits::default);
        }
        let waiting = &mut self.targets[t];
        waiting.objects = waiting.objects.saturating_add(run.count);
        match waiting.lists.get_mut(&class.0) {
            None => drop(waiting.lists.insert(class.0, List { first: index, last: index })),
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

    /// Whether a class has room at the sink.
    pub(super) fn set_shut(&mut self, class: Class, shut: bool) {
        if self.shut.set(class.0.into(), shut) && !shut {
            self.see(class, &WAYS);
        }
    }

    /// Whether a class is slow at the sink.
    pub(super) fn set_poor(&mut self, class: Class, poor: bool) {
        self.tried.set(class.0.into(), false);
        if self.poor.set(class.0.into(), poor) && !poor {
            self.see(class, &[Way::Good]);
        }
    }

    pub(super) fn is_poor(&self, class: Class) -> bool {
        self.poor.contains(class.0.into())
    }

    pub(super) fn is_shut(&self, class: Class) -> bool {
        self.shut.contains(class.0.into())
    }

    /// A poor class may have one object, whatever else can go.
    pub(super) fn try_poor(&mut self, class: Class) {
        if self.is_poor(class) && self.tried.set(class.0.into(), true) {
            self.see(class, &[Way::Good]);
        }
    }

    fn see(&mut self, class: Class, ways: &[Way]) {
        if let Some(sources) = self.sources.get(usize::from(class.0)) {
            for way in ways {
                self.blind[*way as usize].remove_all(sources);
            }
        }
    }

    /// The first target of `ready` from `from` on, in a ring, that has something to go this way; and its class.
    pub(super) fn find(&mut self, ready: &Bits, from: usize, way: Way) -> Option<(usize, Class)> {
        let mut at = from;
        loop {
            let t = ready.next(at, |word| !self.blind[way as usize].word(word))?;
            if let Some(class) = self.class_of(t, way) {
                return Some((t, class));
            }
            self.blind[way as usize].set(t, true);
            at = t + 1;
        }
    }

    fn class_of(&mut self, t: usize, way: Way) -> Option<Class> {
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
            let class = Class(u16::try_from(c).expect("a class"));
            if self.head(t, class).is_some() {
                return Some(class);
            }
        }
    }

    /// The next object of a list. Drops what was given up, and with it perhaps the list.
    pub(super) fn head(&mut self, t: usize, class: Class) -> Option<Head> {
        loop {
            let list = *self.targets.get(t)?.lists.get(&class.0)?;
            let node = &self.nodes[list.first as usize];
            let alive = self.stale == 0
                || self.files.get(&node.run.file).is_some_and(|known| known.order == node.order);
            if alive {
                return Some((node.order, node.run.object(node.taken)));
            }
            let left = node.run.count - node.taken;
            self.targets[t].objects -= left.min(self.targets[t].objects);
            self.stale -= 1;
            self.drop_first(t, class);
        }
    }

    /// The class of the sink that the next object of a list goes to.
    pub(super) fn sink_of(&self, t: usize, class: Class) -> Option<Class> {
        let list = self.targets.get(t)?.lists.get(&class.0)?;
        Some(self.nodes[list.first as usize].run.sink)
    }

    /// Takes the next object of a list that has one.
    pub(super) fn take(&mut self, t: usize, class: Class) -> (Run, u64) {
        let list = self.targets[t].lists[&class.0];
        let node = &mut self.nodes[list.first as usize];
        let (run, object) = (node.run, node.run.object(node.taken));
        node.taken += 1;
        let over = node.taken == node.run.count;
        self.tried.set(run.sink.0.into(), false);
        self.targets[t].objects -= 1;
        let known = self.files.get_mut(&run.file).expect("a file with runs is known");
        if run.sink != Class::ANY {
            known.placed -= 1;
            self.placed -= 1;
        }
        if over {
            known.runs -= 1;
            if known.runs == 0 {
                self.files.remove(&run.file);
            }
            self.drop_first(t, class);
            self.targets[t].turn = usize::from(class.0) + 1;
        }
        (run, object)
    }

    fn drop_first(&mut self, t: usize, class: Class) {
        let waiting = &mut self.targets[t];
        let list = waiting.lists.get_mut(&class.0).expect("it has a first one");
        let first = list.first;
        list.first = self.nodes[first as usize].next;
        self.free.push(first);
        if list.first == NONE {
            waiting.lists.remove(&class.0);
            waiting.has.set(class.0.into(), false);
            self.sources[usize::from(class.0)].set(t, false);
        }
    }
}
