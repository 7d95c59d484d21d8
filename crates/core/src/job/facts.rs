//! Facts: what pairs say, until the journal says it too.
//!
//! In: ranges that are on media, entries that have their names, completions of the journal. Out: records; what is durable;
//! entries that ended.
//! Invariants: facts are journaled in the order in which they came, one write at a time, and have their effect when that
//! write is over; those of a lease that ended before have none.

use std::collections::BTreeSet;

use super::entry::{At, Phase};
use super::ledger::Named;
use super::*;
use crate::ids::Holder;
use crate::journal::{DoneMark, Record};

/// What somebody said, on its way to the journal.
pub(super) enum Fact {
    Persisted {
        at: At,
        id: FileId,
        generation: Generation,
        temp: Temp,
        subtrees: Vec<Subtree>,
    },
    /// Nothing more is written of the range that begins here.
    Over {
        at: At,
        id: FileId,
        generation: Generation,
        offset: u64,
    },
    /// It has its name.
    Published {
        at: At,
        id: FileId,
        generation: Generation,
    },
    /// What the journal promised of a file is worth nothing.
    Forgotten {
        slot: Option<u32>,
        named: Named,
        kind: DigestKind,
    },
}

impl Fact {
    fn weight(&self) -> usize {
        match self {
            Fact::Persisted { subtrees, .. } => subtrees.len().max(1),
            _ => 1,
        }
    }

    fn at(&self) -> Option<At> {
        match self {
            Fact::Persisted { at, .. } | Fact::Over { at, .. } | Fact::Published { at, .. } => Some(*at),
            Fact::Forgotten { .. } => None,
        }
    }
}

impl Coordinator {
    pub(super) fn push_fact(&mut self, fact: Fact) {
        self.facts_len += fact.weight();
        self.facts.push_back(fact);
    }

    /// These parts of a range that the pair was given, at `offset`, are on media here, with these values. `over`: all of the range
    /// is, nothing more of it is written, and it was said before or now.
    pub fn handle_persisted(
        &mut self,
        at: At,
        id: FileId,
        generation: Generation,
        offset: u64,
        subtrees: Vec<Subtree>,
        over: bool,
    ) {
        if !self.hears(at.0, at.1) {
            return;
        }
        let Some(file) = self.files.get_mut(&id).filter(|file| file.generation == generation) else { return };
        if !matches!(file.phase, Phase::Whole | Phase::Shared) {
            return;
        }
        let Some(out) = file.out.get_mut(&offset).filter(|out| out.at == at && out.kind != WorkKind::Read)
        else {
            return self.violates(at, "parts persisted that it was not given");
        };
        let within = |s: &Subtree| s.offset >= offset && s.offset.saturating_add(s.len) <= out.end;
        let fits = |s: &Subtree| within(s) && file.durable.would_take(s.offset, s.len, &s.cv).is_ok();
        if !subtrees.iter().all(fits) || (over && out.kind == WorkKind::Whole) {
            return self.violates(at, "parts persisted that do not fit their range");
        }
        let len = subtrees.iter().fold(0, |sum: u64, s| sum.saturating_add(s.len)).min(out.left);
        out.left -= len;
        let temp = out.to;
        if let Some(held) = self.pairs.get_mut(&at.0) {
            held.did(len, self.now);
        }
        if self.facts_len + subtrees.len() > FACTS_MAX {
            return self.violates(at, "more parts persisted than anybody can write down");
        }
        if !subtrees.is_empty() {
            self.push_fact(Fact::Persisted { at, id, generation, temp, subtrees });
        }
        if over {
            self.push_fact(Fact::Over { at, id, generation, offset });
        }
        if haul_mutant::removed("durable-when-journaled") && self.writing.is_none() {
            let facts: Vec<Fact> = self.facts.drain(..).collect();
            self.facts_len = 0;
            self.apply(facts);
        }
    }

    /// A range that an earlier run wrote was read, and has this value; `None`: it could not be.
    pub fn handle_read(
        &mut self,
        at: At,
        id: FileId,
        generation: Generation,
        offset: u64,
        value: Option<Cv>,
    ) {
        if !self.hears(at.0, at.1) {
            return;
        }
        let Some(file) = self.files.get_mut(&id).filter(|file| file.generation == generation) else { return };
        let reads = |out: &entry::Out| out.at == at && out.kind == WorkKind::Read;
        let Some(out) = file.out.get(&offset).filter(|out| reads(out)).cloned() else { return };
        let (temp, here) = (file.temp, out.from == file.temp);
        let old = file.olds.iter_mut().find(|old| old.temp == out.from);
        let part = old.and_then(|old| old.parts.covering(offset)).filter(|part| part.offset == offset);
        let right = part.filter(|part| value == Some(part.cv));
        if let Some(part) = right.filter(|_| !here && out.to == temp) {
            // It was taken over: the journal hears of it as of what was moved.
            self.push_fact(Fact::Persisted { at, id, generation, temp, subtrees: vec![part] });
            return self.push_fact(Fact::Over { at, id, generation, offset });
        }
        // Where it was taken over into what was left since, it is read once more.
        if here || right.is_none() {
            file.expect_no_more(out.from, offset);
        }
        match right {
            // The journal says the same.
            Some(part) if here => drop(file.durable.insert(part.offset, part.len, part.cv)),
            // What is left is said anew.
            None if here => file.slot = None,
            _ => {}
        }
        file.out.remove(&offset);
        if let Some(held) = self.pairs.get_mut(&at.0) {
            held.works.remove(&(id, offset));
            held.did(entry_cost(&out), self.now);
        }
        self.advance(id);
    }

    /// Facts of a lease that ended and are not in the journal are dropped. Returns the files that they, or those that are being
    /// written, say to be published.
    pub(super) fn drop_facts(&mut self, ended: At) -> BTreeSet<FileId> {
        let of = |fact: &&Fact| fact.at() == Some(ended);
        let published = |fact: &Fact| match fact {
            Fact::Published { id, .. } => Some(*id),
            _ => None,
        };
        let all = self.facts.iter().chain(self.writing.iter().flatten());
        let files = all.filter(of).filter_map(published).collect();
        if !haul_mutant::removed("ended-leases-have-no-effect") {
            self.facts.retain(|fact| fact.at() != Some(ended));
            self.facts_len = self.facts.iter().map(Fact::weight).sum();
        }
        files
    }

    /// What was said since goes to the journal, when that is free.
    pub(super) fn journal_facts(&mut self) {
        while self.writing.is_none() && !self.facts.is_empty() {
            let facts: Vec<Fact> = self.facts.drain(..).collect();
            self.facts_len = 0;
            let mut records = Vec::new();
            for fact in &facts {
                self.record(fact, &mut records);
            }
            match self.ledger.encode(&records) {
                Err(_) => return,
                Ok(bytes) if bytes.is_empty() => self.apply(facts),
                Ok(bytes) => {
                    self.writing = Some(facts);
                    self.actions.push_back(Action::Journal { bytes });
                }
            }
        }
    }

    fn record(&mut self, fact: &Fact, records: &mut Vec<Record>) {
        let of = |file: &&mut File, generation: Generation| file.generation == generation;
        match fact {
            Fact::Persisted { id, generation, temp, subtrees, .. } => {
                let here = |file: &&mut File| of(file, *generation) && file.temp == *temp;
                let Some(file) = self.files.get_mut(id).filter(here) else { return };
                let (fresh, named) = (file.slot.is_none(), file.named());
                let slot = self.ledger.slot(&mut file.slot, named, &file.durable, records);
                if fresh {
                    // What was not read yet is where the next run has to look, too.
                    let olds = file.olds.iter().filter(|old| old.temp == *temp);
                    let olds = olds.flat_map(|old| old.parts.iter());
                    let all: Vec<Subtree> = file.durable.iter().chain(olds).collect();
                    Ledger::say_durable(slot, Holder::ALONE, &all, records);
                }
                Ledger::say_durable(slot, Holder::ALONE, subtrees, records);
            }
            Fact::Published { id, generation, .. } => {
                let Some(file) = self.files.get_mut(id).filter(|file| of(file, *generation)) else { return };
                let parent = self.dirs.path(file.parent).expect("a file holds its directory open");
                if let Some(root) = file.root.filter(|_| !file.is_link) {
                    let mark = DoneMark::new(parent, &file.fingerprint, root);
                    records.push(Record::Done { path: file.path, mark });
                }
            }
            Fact::Forgotten { slot, named, kind } => {
                let empty = SubtreeSet::new(*kind, 0);
                self.ledger.withdraw(*slot, *named, &empty, records);
            }
            Fact::Over { .. } => {}
        }
    }

    /// What was to be appended is on media, or could not be written.
    pub fn handle_journaled(&mut self, result: Result<(), Failure>, now: Time) {
        self.now = self.now.max(now);
        let Some(facts) = self.writing.take() else { return };
        match result {
            Ok(()) => self.apply(facts),
            Err(failure) => {
                self.ledger.break_off(&failure);
                self.stopped = true;
                self.facts.clear();
                self.facts_len = 0;
            }
        }
    }

    /// The journal says so.
    fn apply(&mut self, facts: Vec<Fact>) {
        let mut told: BTreeMap<At, Vec<Extent>> = BTreeMap::new();
        for fact in facts {
            if fact.at().is_some_and(|at| !self.is_live(at)) {
                continue;
            }
            match fact {
                Fact::Persisted { at, id, generation, temp, subtrees } => {
                    let parts = |file: &&mut File| {
                        file.generation == generation && matches!(file.phase, Phase::Whole | Phase::Shared)
                    };
                    let Some(file) = self.files.get_mut(&id).filter(parts) else { continue };
                    if file.temp != temp {
                        // It lies in a temporary that was left since.
                        subtrees.into_iter().for_each(|part| file.expect(temp, part));
                        continue;
                    }
                    for Subtree { offset, len, cv } in subtrees {
                        file.have(offset, len);
                        let _ = file.durable.insert(offset, len, cv);
                        told.entry(at).or_default().push(Extent { id, generation, offset, len });
                    }
                }
                Fact::Over { at, id, generation, offset } => {
                    let Some(file) = self.files.get_mut(&id).filter(|file| file.generation == generation)
                    else {
                        continue;
                    };
                    let Some(out) = file.out.remove(&offset) else { continue };
                    if out.at != at {
                        file.out.insert(offset, out);
                        continue;
                    }
                    self.unload(id, offset, &out);
                    self.advance(id);
                }
                Fact::Published { at, id, generation } => {
                    let of = |file: &&File| {
                        file.generation == generation && file.phase == Phase::Published && file.by == Some(at)
                    };
                    if let Some(root) = self.files.get(&id).filter(of).map(|file| file.root) {
                        self.end_entry(id, Ended::Copied, root);
                    }
                }
                Fact::Forgotten { .. } => {}
            }
        }
        for ((pair, lease), extents) in told {
            for part in extents.chunks(ITEMS_MAX) {
                self.actions.push_back(Action::Durable { pair, lease, extents: part.to_vec() });
            }
        }
    }
}

fn entry_cost(out: &entry::Out) -> u64 {
    pairs::cost(out)
}
