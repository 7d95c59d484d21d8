//! The end of entries: sealed, published by one end, removed, or failed; and of directories.
//!
//! In: files of which every byte is durable, answers of ends. Out: looks at the source, names to be given,
//! what is to be removed, entries and directories that ended.
//! Invariants: the source is looked at after the last byte is durable; one end at a time has a file's name to
//! give; an entry ends once, and its directory is released with it.

use super::entry::{At, EntryPhase};
use super::*;
use crate::change::Change;
use crate::transfer::other_end;
use crate::wire::FailureKind;

impl Coordinator {
    /// Something happened to a file: whatever can be done with it next is.
    pub(super) fn advance(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id).filter(|file| file.fences == 0) else { return };
        if file.is_whole() {
            file.phase = EntryPhase::Sealing(None);
            file.naming.begin_seal();
        }
        match file.phase {
            EntryPhase::New | EntryPhase::Shared => self.enqueue(id),
            EntryPhase::Sealing(None) | EntryPhase::Ending(_, None) => self.acts.push_back(id),
            _ => {}
        }
    }

    /// Gives seals, publications and removals to pairs.
    pub(super) fn run_acts(&mut self) {
        while let Some(id) = self.acts.front().copied() {
            let Some(pair) = self.best(false) else { return };
            let lease = self.pairs[&pair].lease;
            self.acts.pop_front();
            let spare = self.take_temp();
            let Some(file) = self.files.get_mut(&id).filter(|file| file.fences == 0) else { continue };
            let generation = file.kept.generation;
            let action = match &mut file.phase {
                EntryPhase::Sealing(act @ None) => {
                    *act = Some((pair, lease));
                    Action::Seal { pair, lease, id, generation }
                }
                EntryPhase::Publishing => {
                    let whole = file.out.is_empty() && file.kept.durable.is_complete();
                    if !file.naming.give((pair, lease), whole) {
                        continue;
                    }
                    let root = file.root.expect("it was sealed");
                    let doubtful = file.naming.is_doubtful();
                    let way = if doubtful { Way::Copy { to: spare } } else { Way::Rename };
                    file.copy = doubtful.then_some(spare);
                    let (temp, former) = (file.kept.temp, file.former.clone());
                    let publication = Publication { id, generation, temp, root, way, former };
                    Action::Publish { pair, lease, publication }
                }
                EntryPhase::Ending(end, act @ None) => {
                    let own = Some(file.kept.temp).filter(|_| file.touched);
                    let temps: Vec<Temp> = file.former.iter().copied().chain(own).collect();
                    if temps.is_empty() {
                        let end = end.clone();
                        self.end_entry(id, end, None);
                        continue;
                    }
                    *act = Some((pair, lease));
                    Action::Discard { pair, lease, id, temps }
                }
                _ => continue,
            };
            let held = self.pairs.get_mut(&pair).expect("it was chosen");
            held.acts.insert(id);
            self.actions.push_back(action);
        }
    }

    /// The pair that seals, publishes or removes a file has nothing more to do with it.
    pub(super) fn leave_act(&mut self, id: FileId) {
        let Some((pair, lease)) = self.files.get(&id).and_then(File::acts) else { return };
        if let Some(held) = self.pairs.get_mut(&pair).filter(|held| held.lease == lease) {
            held.acts.remove(&id);
        }
    }

    /// The source was looked at after the last byte was durable, and is what was announced. `root`: it made
    /// one by itself, as it does where only its ctime changed.
    pub fn handle_sealed(&mut self, at: At, id: FileId, generation: Generation, root: Option<Root>) {
        if !self.hears(at.0, at.1) {
            return;
        }
        let seals =
            |file: &&File| file.kept.generation == generation && file.phase == EntryPhase::Sealing(Some(at));
        if self.files.get(&id).filter(seals).is_none() {
            return;
        }
        self.leave_act(id);
        let Some(file) = self.files.get_mut(&id) else { return };
        file.root = file.durable_root();
        match file.root {
            Some(own) if root.is_none_or(|root| root == own) => {
                file.naming.seal();
                file.phase = EntryPhase::Publishing;
                self.acts.push_back(id);
            }
            _ => self.restart(id),
        }
    }

    /// The end gave an entry its name, on media: one that it had all of, or that it was told to publish.
    /// `root`: of the bytes that it wrote, or read for that; `None` of what is no file.
    pub fn handle_published(
        &mut self,
        at: At,
        id: FileId,
        generation: Generation,
        result: Result<Option<Root>, Failure>,
    ) {
        if !self.hears(at.0, at.1) {
            return;
        }
        let Some(file) = self.files.get_mut(&id).filter(|file| file.kept.generation == generation) else {
            return;
        };
        let had_all = file.phase == EntryPhase::Whole;
        if file.naming.holder() != Some(at) {
            return self.violates(at, "a name given that it was not told to give");
        }
        let root = match result {
            Ok(root) => root,
            Err(failure) if failure.kind == FailureKind::Digest && !had_all => {
                self.leave_act(id);
                return self.restart(id);
            }
            Err(failure) => return self.handle_failed(at, id, generation, failure),
        };
        if root.is_none() != file.is_link || (!had_all && root != file.root) {
            return self.violates(at, "a name given to something else");
        }
        if self.facts.len() >= FACTS_MAX {
            return self.violates(at, "more names given than anybody can write down");
        }
        self.leave_act(id);
        let Some(file) = self.files.get_mut(&id) else { return };
        file.root = root;
        file.phase = EntryPhase::Published;
        file.naming.handle_given(at);
        let out = if had_all { file.out.remove(&0) } else { None };
        if let Some(out) = out
            && let Some(held) = self.pairs.get_mut(&at.0)
        {
            held.works.remove(&(id, 0));
            held.did(pairs::cost(&out), self.now);
        }
        self.facts.say(Fact::Published { at, id, generation, root });
    }

    /// An entry need not be moved, says a pair that was to begin with it: it is there, or may not be touched.
    pub fn handle_not_needed(&mut self, at: At, id: FileId, generation: Generation, end: Ended) {
        if self.hears(at.0, at.1) && self.has(at, id, generation) {
            let begins = |file: &&File| matches!(file.phase, EntryPhase::Whole | EntryPhase::Beginning);
            match self.files.get(&id).filter(begins) {
                Some(_) => self.give_up(at, id, end),
                None => self.violates(at, "an entry that was begun needs not be moved"),
            }
        }
    }

    /// A pair cannot do with an entry what it was to do.
    pub fn handle_failed(&mut self, at: At, id: FileId, generation: Generation, failure: Failure) {
        if self.hears(at.0, at.1) && self.has(at, id, generation) {
            self.give_up(at, id, Ended::Failed(failure));
        }
    }

    /// Whether a pair has something to do with a file.
    fn has(&self, at: At, id: FileId, generation: Generation) -> bool {
        self.files.get(&id).is_some_and(|file| {
            let acts = file.acts() == Some(at) && !matches!(file.phase, EntryPhase::Ending(..));
            file.kept.generation == generation && (acts || file.out.values().any(|out| out.at == at))
        })
    }

    fn give_up(&mut self, at: At, id: FileId, end: Ended) {
        let Some(file) = self.files.get_mut(&id) else { return };
        if file.phase == EntryPhase::Whole {
            // Who had all of it left nothing.
            file.touched = false;
        }
        self.revoke(id, Some(at.0));
        self.begin_end(id, end);
    }

    /// What was to be published is not what was written: all of it comes again, a few times.
    fn restart(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        file.restarts += 1;
        let over = file.restarts > RESTARTS_MAX;
        // The copy that could not be made may be left.
        file.former.extend(file.copy.take());
        self.forget_parts(id);
        if over {
            let text =
                "what was read back before its publication was not what had been written, several times";
            let failure = Failure { kind: FailureKind::Digest, errno: 0, text: text.into() };
            return self.begin_end(id, Ended::Failed(failure));
        }
        self.set_phase(id, EntryPhase::New);
        self.advance(id);
    }

    /// An entry is over when nothing is left of it.
    pub(super) fn begin_end(&mut self, id: FileId, end: Ended) {
        let Some(file) = self.files.get(&id) else { return };
        if file.kept.is_promised() || !file.kept.olds.is_empty() || file.touched {
            self.forget_parts(id);
        }
        self.set_phase(id, EntryPhase::Ending(end, None));
        self.advance(id);
    }

    /// What was left of an entry is removed, or cannot be.
    pub fn handle_discarded(&mut self, at: At, id: FileId) {
        if !self.hears(at.0, at.1) {
            return;
        }
        let Some(file) = self.files.get(&id) else { return };
        if let EntryPhase::Ending(end, Some(act)) = &file.phase
            && *act == at
        {
            let end = end.clone();
            self.leave_act(id);
            self.end_entry(id, end, None);
        }
    }

    pub(super) fn end_entry(&mut self, id: FileId, end: Ended, root: Option<Root>) {
        let Some(file) = self.files.remove(&id) else { return };
        self.dirs.handle_end(file.kept.parent, &end);
        self.dirs.release(file.kept.parent);
        self.actions.push_back(Action::Ended { id, generation: file.kept.generation, end, root });
    }

    /// Directories in which everything ended are finished, each by one pair.
    pub(super) fn finish_dirs(&mut self) {
        let Some(pair) = self.best(false) else { return };
        let finished = self.dirs.take_finished(ITEMS_MAX);
        let Some(held) = self.pairs.get_mut(&pair) else { return };
        let lease = held.lease;
        for (dir, meta) in finished {
            held.dirs.insert(dir);
            self.actions.push_back(Action::FinishDir { pair, lease, dir, meta });
        }
    }

    /// A directory has its metadata, or cannot get it.
    pub fn handle_finished_dir(&mut self, at: At, dir: DirId, result: Result<Change, Failure>) {
        if !self.hears(at.0, at.1) {
            return;
        }
        if !self.pairs.get_mut(&at.0).is_some_and(|held| held.dirs.remove(&dir)) {
            return self.violates(at, "a directory finished that it was not told to finish");
        }
        let Some(gone) = self.dirs.remove(dir, result.is_ok()) else { return };
        if let Some(mark) = gone.mark {
            self.facts.finish(gone.path, mark);
        }
        let end = match gone.failure.map_or(result, Err) {
            Ok(change) => other_end(change),
            Err(failure) => Ended::Failed(failure),
        };
        let (id, generation, root) = (dir.as_file(), Generation(0), None);
        self.actions.push_back(Action::Ended { id, generation, end, root });
    }
}
