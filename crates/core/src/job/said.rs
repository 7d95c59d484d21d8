//! What pairs say of ranges, and what follows when the journal says it too.
//!
//! In: ranges that are on media, parts that were read, completions of the journal. Out: facts; what sources
//! are told to be durable; entries that ended.
//! Invariant: a fact has its effect when the journal has it, if the lease under which it was said lives then
//! (`facts`).

use super::entry::{At, EntryPhase};
use super::*;

impl Known for File {
    fn takes_parts(&self) -> bool {
        matches!(self.phase, EntryPhase::Whole | EntryPhase::Shared)
    }
    fn kept(&self) -> &Kept {
        &self.kept
    }
    fn kept_mut(&mut self) -> &mut Kept {
        &mut self.kept
    }
}

impl Coordinator {
    /// These parts of a range that the pair was given, at `offset`, are on media here, with these values.
    /// `over`: all of the range is, nothing more of it is written, and it was said before or now.
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
        let Some(file) = self.files.get_mut(&id).filter(|file| file.kept.generation == generation) else {
            return;
        };
        if !matches!(file.phase, EntryPhase::Whole | EntryPhase::Shared) {
            return;
        }
        let Some(out) = file.out.get_mut(&offset).filter(|out| out.at == at && out.kind != WorkKind::Read)
        else {
            return self.violates(at, "parts persisted that it was not given");
        };
        let within = |s: &Subtree| s.offset >= offset && s.offset.saturating_add(s.len) <= out.end;
        let fits = |s: &Subtree| within(s) && file.kept.durable.would_take(s.offset, s.len, &s.cv).is_ok();
        if !subtrees.iter().all(fits) || (over && out.kind == WorkKind::Whole) {
            return self.violates(at, "parts persisted that do not fit their range");
        }
        if self.facts.len() + subtrees.len() + usize::from(over) > FACTS_MAX {
            return self.violates(at, "more parts persisted than anybody can write down");
        }
        let len = subtrees.iter().fold(0, |sum: u64, s| sum.saturating_add(s.len)).min(out.left);
        out.left -= len;
        let temp = out.to;
        if let Some(held) = self.pairs.get_mut(&at.0) {
            held.did(len, self.now);
        }
        if !subtrees.is_empty() {
            let wrong = Vec::new();
            self.facts.say(Fact::Persisted { at, id, generation, temp, subtrees, wrong });
        }
        if over {
            self.facts.say(Fact::Over { at, id, generation, offset });
        }
        if haul_mutant::removed("durable-when-journaled") && !self.facts.is_writing() {
            let facts = self.facts.believe(&mut self.files);
            self.follow(facts);
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
        let Some(file) = self.files.get_mut(&id).filter(|file| file.kept.generation == generation) else {
            return;
        };
        let reads = |out: &entry::Out| out.at == at && out.kind == WorkKind::Read;
        let Some(out) = file.out.get(&offset).filter(|out| reads(out)).cloned() else { return };
        let (temp, here) = (file.kept.temp, out.from == file.kept.temp);
        let old = file.kept.olds.iter_mut().find(|old| old.temp == out.from);
        let part = old.and_then(|old| old.parts.covering(offset)).filter(|part| part.offset == offset);
        let right = part.filter(|part| value == Some(part.cv));
        if let Some(part) = right.filter(|_| !here && out.to == temp) {
            if self.facts.len() + 2 > FACTS_MAX {
                return self.violates(at, "more parts read than anybody can write down");
            }
            // It was taken over: the journal hears of it as of what was moved.
            let (subtrees, wrong) = (vec![part], Vec::new());
            self.facts.say(Fact::Persisted { at, id, generation, temp, subtrees, wrong });
            return self.facts.say(Fact::Over { at, id, generation, offset });
        }
        // Where it was taken over into what was left since, it is read once more.
        if here || right.is_none() {
            file.kept.expect_no_more(out.from, offset);
        }
        match right {
            // The journal says the same.
            Some(part) if here => file.kept.handle_read(part),
            // What is left is said anew.
            None if here => file.kept.say_anew(),
            _ => {}
        }
        file.out.remove(&offset);
        if let Some(held) = self.pairs.get_mut(&at.0) {
            held.works.remove(&(id, offset));
            held.did(entry_cost(&out), self.now);
        }
        self.advance(id);
    }

    /// What was said since goes to the journal, when that is free.
    pub(super) fn journal_facts(&mut self) {
        while let Ok(Some(bytes)) = self.facts.write(&mut self.files, &mut self.dirs) {
            match bytes.is_empty() {
                true => self.handle_facts(Ok(())),
                false => self.actions.push_back(Action::Journal { bytes }),
            }
        }
    }

    /// What was to be appended is on media, or could not be written.
    pub fn handle_journaled(&mut self, result: Result<(), Failure>, now: Time) {
        self.now = self.now.max(now);
        if self.facts.is_writing() {
            self.handle_facts(result);
        }
    }

    fn handle_facts(&mut self, result: Result<(), Failure>) {
        let pairs = &self.pairs;
        let live = |at: At| pairs::is_live(pairs, at);
        match self.facts.handle_journaled(result, &mut self.files, live) {
            Ok(facts) => self.follow(facts),
            Err(_) => self.stopped = true,
        }
    }

    /// The journal says so.
    fn follow(&mut self, facts: Vec<Fact<At>>) {
        let mut told: BTreeMap<At, Vec<Extent>> = BTreeMap::new();
        for fact in facts {
            match fact {
                Fact::Persisted { at, id, generation, subtrees, .. } => {
                    let Some(file) = self.files.get_mut(&id) else { continue };
                    for Subtree { offset, len, .. } in subtrees {
                        file.kept.have(offset, len);
                        told.entry(at).or_default().push(Extent { id, generation, offset, len });
                    }
                }
                Fact::Over { at, id, generation, offset } => {
                    let of = |file: &&mut File| file.kept.generation == generation;
                    let Some(file) = self.files.get_mut(&id).filter(of) else { continue };
                    let Some(out) = file.out.remove(&offset) else { continue };
                    if out.at != at {
                        file.out.insert(offset, out);
                        continue;
                    }
                    self.unload(id, offset, &out);
                    self.advance(id);
                }
                Fact::Published { at, id, generation, root } => {
                    let of = |file: &&File| {
                        file.kept.generation == generation
                            && file.phase == EntryPhase::Published
                            && file.naming.was_given_by(at)
                    };
                    if self.files.get(&id).is_some_and(|file| of(&file)) {
                        self.end_entry(id, Ended::Copied, root);
                    }
                }
                Fact::Forgotten { .. } | Fact::Noted(_) => {}
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
