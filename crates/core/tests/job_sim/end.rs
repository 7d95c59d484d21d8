//! A pair of ends as the coordinator sees one: a source that reads, a sink that writes, syncs, and gives
//! names.
//!
//! One step of it is one thing that a host does between two system calls, so that a freeze or a crash may
//! come between any two. It believes nothing of the coordinator but what comes under the lease that it joined
//! with, and looks at the fence directly before it gives a name.

use std::collections::{BTreeMap, VecDeque};

use fastrand::Rng;
use haul_core::digest::{Cv, Root, Subtree, subtrees};

use haul_core::ids::{DirId, FileId, Generation, Lease, PairId};
use haul_core::job::{PAGE_LEN, Publication, Return, Temp, Way, Work, WorkKind};
use haul_core::transfer::SMALL_LEN_MAX;
use haul_core::wire::{Failure, FailureKind};

use super::store::{BLOCK, Print, Store, blocks_of, node, root};

/// What the coordinator tells a pair.
#[derive(Clone, Debug)]
pub enum Down {
    Assign(Vec<Work>),
    GiveBack(Vec<Return>),
    Revoke(FileId, Generation),
    End,
    Seal(FileId, Generation),
    Publish(Publication),
    Discard(FileId, Vec<Temp>),
    FinishDir(DirId),
}

/// What a pair tells the coordinator.
#[derive(Clone, Debug)]
pub enum Up {
    Begun(FileId, Generation, bool),
    Persisted(FileId, Generation, u64, Vec<Subtree>, bool),
    Read(FileId, Generation, u64, Option<Cv>),
    Returned(FileId, Generation, u64, Option<u64>),
    Sealed(FileId, Generation),
    Withdrawn(FileId, Generation),
    Published(FileId, Generation, Result<Option<Root>, Failure>),
    Failed(FileId, Generation, &'static str),
    NotNeeded(FileId, Generation),
    Discarded(FileId),
    FinishedDir(DirId),
}

/// What the ends know of a file of the session.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    pub entry: usize,
    pub print: Print,
    pub object_size: u32,
    pub is_link: bool,
}

/// The files of the session.
pub type Files = BTreeMap<(FileId, Generation), Known>;

/// What is outside of an end.
pub struct Around<'a> {
    pub store: &'a mut Store,
    pub rng: &'a mut Rng,
    pub files: &'a Files,
    /// Content of an entry's newest version, and what tells it.
    pub source: &'a dyn Fn(usize) -> (u8, Print),
    /// The source can be read.
    pub reads: bool,
    /// Names that were given: entry and inode.
    pub given: &'a mut Vec<(usize, usize, Lease)>,
    pub finished: &'a mut Vec<DirId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Look,
    /// Small files: read whole and looked at by the source, and nothing is made at the sink yet.
    Bundle,
    Move,
    /// All of it is written, and the source was looked at.
    Sealed,
    Unlink,
    Fence,
    Rename,
}

#[derive(Clone, Debug)]
struct Task {
    work: Work,
    end: u64,
    step: Step,
    inode: usize,
    /// Up to here it was read.
    next: u64,
    /// On their way, in any order; written; synced and to be told.
    frames: Vec<(u64, u64, Vec<u8>)>,
    written: Vec<(u64, u64, Vec<u8>)>,
    /// What was read, for the root of what is whole.
    keys: Vec<u8>,
}

#[derive(Clone, Debug)]
struct Giving {
    publication: Publication,
    step: Step,
    from: Option<Temp>,
}

/// See the module.
pub struct End {
    pub pair: PairId,
    pub lease: Lease,
    tasks: Vec<Task>,
    giving: Vec<Giving>,
    small: VecDeque<Down>,
    pub down: VecDeque<(Lease, Down)>,
    pub up: VecDeque<(Lease, Up)>,
    /// How many of its turns it takes, of ten.
    pub speed: u8,
}

impl End {
    pub fn new(pair: PairId, lease: Lease, speed: u8) -> End {
        End {
            pair,
            lease,
            tasks: Vec::new(),
            giving: Vec::new(),
            small: VecDeque::new(),
            down: VecDeque::new(),
            up: VecDeque::new(),
            speed,
        }
    }

    /// It is between the look at the fence and the name.
    pub fn in_window(&self) -> bool {
        let renames = |step: &Step| *step == Step::Rename;
        self.tasks.iter().any(|task| renames(&task.step)) || self.giving.iter().any(|g| renames(&g.step))
    }

    /// A small file that it read, and of which nothing is made at the sink yet.
    pub fn in_bundle(&self) -> Option<FileId> {
        self.tasks.iter().find(|task| task.step == Step::Bundle).map(|task| task.work.id)
    }

    fn say(&mut self, up: Up) {
        self.up.push_back((self.lease, up));
    }

    /// Takes a message; true if its lease ended with it.
    pub fn hear(&mut self, files: &Files) -> bool {
        let Some((lease, down)) = self.down.pop_front() else { return false };
        if lease != self.lease {
            return false;
        }
        match down {
            Down::Assign(works) => {
                for work in works {
                    let (next, end) = (work.offset, work.offset + work.len);
                    let (step, inode, keys) = (Step::Look, usize::MAX, Vec::new());
                    let (frames, written) = (Vec::new(), Vec::new());
                    self.tasks.push(Task { work, end, step, inode, next, frames, written, keys });
                }
            }
            Down::GiveBack(items) => {
                for item in items {
                    let from = self.give_back(&item, files);
                    self.say(Up::Returned(item.id, item.generation, item.offset, from));
                }
            }
            Down::Revoke(id, generation) => {
                self.tasks.retain(|t| (t.work.id, t.work.generation) != (id, generation));
                self.giving.retain(|g| (g.publication.id, g.publication.generation) != (id, generation));
            }
            Down::End => return true,
            Down::Publish(publication) => {
                let step = if publication.way == Way::Rename { Step::Unlink } else { Step::Move };
                self.giving.push(Giving { publication, step, from: None });
            }
            other => self.small.push_back(other),
        }
        false
    }

    fn give_back(&mut self, item: &Return, files: &Files) -> Option<u64> {
        let of = |t: &Task| {
            (t.work.id, t.work.generation, t.work.offset) == (item.id, item.generation, item.offset)
        };
        let at = self.tasks.iter().position(of)?;
        let task = &mut self.tasks[at];
        if task.step == Step::Look {
            self.tasks.remove(at);
            return Some(item.offset);
        }
        if task.step != Step::Move || matches!(task.work.kind, WorkKind::Read | WorkKind::Begin) {
            return None;
        }
        // What was read is written, and so is the rest of its page and of its object.
        let unit = PAGE_LEN.max(u64::from(files[&(item.id, item.generation)].object_size));
        let from = if task.next <= item.from { item.from } else { task.next.next_multiple_of(unit) };
        if from >= task.end || from <= item.offset {
            return None;
        }
        task.end = from;
        task.work.kind = WorkKind::Range;
        Some(from)
    }

    /// Does one thing, if there is one.
    pub fn step(&mut self, around: &mut Around<'_>) {
        let count = self.tasks.len() + self.giving.len() + usize::from(!self.small.is_empty());
        if count == 0 {
            return;
        }
        let at = around.rng.usize(..count);
        if at < self.tasks.len() {
            self.step_task(at, around);
        } else if at < self.tasks.len() + self.giving.len() {
            self.step_giving(at - self.tasks.len(), around);
        } else if let Some(down) = self.small.pop_front() {
            self.step_small(down, around);
        }
    }

    fn step_small(&mut self, down: Down, around: &mut Around<'_>) {
        match down {
            Down::Seal(id, generation) => {
                if !around.reads {
                    return self.small.push_back(Down::Seal(id, generation));
                }
                let known = around.files[&(id, generation)];
                let same = (around.source)(known.entry).1 == known.print;
                self.say(if same { Up::Sealed(id, generation) } else { Up::Withdrawn(id, generation) });
            }
            Down::Discard(id, temps) => {
                let entry = around.files.iter().find(|((of, _), _)| *of == id).map(|(_, known)| known.entry);
                for temp in temps {
                    around.store.names.remove(&(entry.expect("it was announced"), Some(temp)));
                }
                self.say(Up::Discarded(id));
            }
            Down::FinishDir(dir) => {
                around.finished.push(dir);
                self.say(Up::FinishedDir(dir));
            }
            other => panic!("{other:?} is no small thing"),
        }
    }

    fn step_task(&mut self, at: usize, around: &mut Around<'_>) {
        let host = self.pair.sink.0;
        let task = &mut self.tasks[at];
        let (id, generation) = (task.work.id, task.work.generation);
        let known = around.files[&(id, generation)];
        let temp = (known.entry, Some(task.work.temp));
        let len = known.print.0;
        match task.step {
            Step::Look => {
                let kind = task.work.kind;
                let there = around.store.names.get(&(known.entry, None));
                let fits = there.is_some_and(|i| around.store.inodes[*i].print == Some(known.print));
                if kind == WorkKind::Read {
                    let range = (task.work.offset / BLOCK) as usize..blocks_of(task.end);
                    let from = around.store.names.get(&(known.entry, Some(task.work.from)));
                    let keys = from.map(|inode| around.store.read(host, *inode)[range].to_vec());
                    if let Some(keys) = keys.as_ref().filter(|_| task.work.from != task.work.temp) {
                        let (inode, _) = around.store.open(temp, len);
                        around.store.write(host, inode, (task.work.offset / BLOCK) as usize, keys);
                        around.store.sync(host, inode);
                    }
                    let value = keys.map(|keys| node(&keys, len, task.work.offset, task.work.len));
                    let offset = task.work.offset;
                    self.tasks.remove(at);
                    return self.say(Up::Read(id, generation, offset, value));
                }
                if fits && kind != WorkKind::Range {
                    self.tasks.remove(at);
                    return self.say(Up::NotNeeded(id, generation));
                }
                if kind == WorkKind::Whole && !known.is_link && len <= SMALL_LEN_MAX {
                    if around.reads {
                        let (key, print) = (around.source)(known.entry);
                        if print != known.print {
                            self.tasks.remove(at);
                            return self.say(Up::Withdrawn(id, generation));
                        }
                        task.keys = vec![key; blocks_of(len)];
                        task.step = Step::Bundle;
                    }
                    return;
                }
                let (inode, found) = around.store.open(temp, len);
                task.inode = inode;
                task.step = Step::Move;
                if kind == WorkKind::Whole {
                    task.keys = vec![0; blocks_of(len)];
                }
                if kind == WorkKind::Begin {
                    self.tasks.remove(at);
                    self.say(Up::Begun(id, generation, found));
                }
            }
            Step::Bundle => {
                task.inode = around.store.open(temp, len).0;
                around.store.write(host, task.inode, 0, &task.keys);
                task.step = Step::Sealed;
            }
            Step::Move => self.step_move(at, known, around),
            Step::Sealed => {
                around.store.sync(host, task.inode);
                task.step = Step::Unlink;
            }
            Step::Unlink => {
                for former in &task.work.former {
                    around.store.names.remove(&(known.entry, Some(*former)));
                }
                task.step = Step::Fence;
            }
            Step::Fence => match around.store.allows(self.lease) {
                true => task.step = Step::Rename,
                false => drop(self.tasks.remove(at)),
            },
            Step::Rename => {
                let task = self.tasks.remove(at);
                if !give_name(around, temp, known, self.lease) {
                    return self.say(Up::Failed(id, generation, "its temporary is gone"));
                }
                let root = (!known.is_link).then(|| root(&task.keys, len));
                self.say(Up::Published(id, generation, Ok(root)));
            }
        }
    }

    fn step_move(&mut self, at: usize, known: Known, around: &mut Around<'_>) {
        let host = self.pair.sink.0;
        let task = &mut self.tasks[at];
        let (id, generation, offset) = (task.work.id, task.work.generation, task.work.offset);
        let whole = task.work.kind == WorkKind::Whole;
        match around.rng.u8(..8) {
            0..=3 if task.next < task.end && around.reads => {
                let len = u64::from(known.object_size).min(task.end - task.next);
                let keys = vec![(around.source)(known.entry).0; blocks_of(len)];
                if whole {
                    let first = (task.next / BLOCK) as usize;
                    task.keys[first..first + keys.len()].copy_from_slice(&keys);
                }
                task.frames.push((task.next, len, keys));
                task.next += len;
            }
            4..=6 if !task.frames.is_empty() => {
                let frame = task.frames.swap_remove(around.rng.usize(..task.frames.len()));
                around.store.write(host, task.inode, (frame.0 / BLOCK) as usize, &frame.2);
                task.written.push(frame);
            }
            7 if !task.written.is_empty() || (task.next == task.end && task.frames.is_empty()) => {
                let all = task.next == task.end && task.frames.is_empty();
                if all && whole {
                    if around.reads {
                        match (around.source)(known.entry).1 == known.print {
                            true => task.step = Step::Sealed,
                            false => {
                                self.tasks.remove(at);
                                self.say(Up::Withdrawn(id, generation));
                            }
                        }
                    }
                    return;
                }
                around.store.sync(host, task.inode);
                let total = known.print.0;
                let mut told = Vec::new();
                for (at, len, keys) in std::mem::take(&mut task.written) {
                    for (start, part) in subtrees(at, len, at + len == total) {
                        let first = ((start - at) / BLOCK) as usize;
                        let cv = node(&keys[first..], total, start, part);
                        told.push(Subtree { offset: start, len: part, cv });
                    }
                }
                let over = all && !whole;
                if over {
                    self.tasks.remove(at);
                }
                self.say(Up::Persisted(id, generation, offset, told, over));
            }
            _ => {}
        }
    }

    fn step_giving(&mut self, at: usize, around: &mut Around<'_>) {
        let lease = self.lease;
        let giving = &mut self.giving[at];
        let publication = giving.publication.clone();
        let (id, generation) = (publication.id, publication.generation);
        let known = around.files[&(id, generation)];
        let entry = known.entry;
        let (to, copies) = match publication.way {
            Way::Rename => (publication.temp, false),
            Way::Copy { to } => (to, true),
        };
        match giving.step {
            Step::Move => {
                let names =
                    [Some(publication.temp)].into_iter().chain(publication.former.iter().map(|t| Some(*t)));
                let found = names.chain([None]).find_map(|name| {
                    let inode = around.store.names.get(&(entry, name))?;
                    let blocks = around.store.inodes[*inode].blocks.clone();
                    (blocks.len() == blocks_of(known.print.0)
                        && root(&blocks, known.print.0) == publication.root)
                        .then_some((name, blocks))
                });
                let Some((from, blocks)) = found else {
                    self.giving.remove(at);
                    let failure =
                        Failure { kind: FailureKind::Digest, errno: 0, text: "it is not there".into() };
                    return self.say(Up::Published(id, generation, Err(failure)));
                };
                let (inode, _) = around.store.open((entry, Some(to)), known.print.0);
                around.store.inodes[inode].blocks = blocks;
                giving.from = from;
                giving.step = Step::Unlink;
            }
            Step::Unlink => {
                let base = copies.then_some(publication.temp);
                for temp in publication.former.iter().copied().chain(base) {
                    around.store.names.remove(&(entry, Some(temp)));
                }
                giving.step = Step::Fence;
            }
            Step::Fence => match around.store.allows(lease) {
                true => giving.step = Step::Rename,
                false => drop(self.giving.remove(at)),
            },
            Step::Rename => {
                self.giving.remove(at);
                match give_name(around, (entry, Some(to)), known, lease) {
                    true => self.say(Up::Published(id, generation, Ok(Some(publication.root)))),
                    false => self.say(Up::Failed(id, generation, "the temporary is gone")),
                }
            }
            Step::Look | Step::Bundle | Step::Sealed => panic!("a publication has no such step"),
        }
    }
}

fn give_name(around: &mut Around<'_>, from: (usize, Option<Temp>), known: Known, lease: Lease) -> bool {
    let Some(inode) = around.store.names.remove(&from) else { return false };
    around.store.inodes[inode].print = Some(known.print);
    around.store.names.insert((known.entry, None), inode);
    around.given.push((known.entry, inode, lease));
    true
}
