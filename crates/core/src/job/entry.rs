//! Entries: what the walk announces, and where each of them stands.
//!
//! In: announcements, generations that the source takes back. Out: files for the queue.
//! Invariants: what is announced fits the limits and lies in an open directory; a file that comes again is
//! the one that was withdrawn, under a higher generation; temporaries that somebody might still give its name
//! stay known until it has its name or they are removed.

use super::kept::Old;
use super::*;
use crate::entry::{DEPTH_MAX, Version};
use crate::transfer::protocol;

/// A pair that acts, under its lease.
pub(super) type At = (PairId, Lease);

/// Where a file is between its announcement and its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EntryPhase {
    /// Nobody has it.
    New,
    /// One pair has all of it and may give it its name.
    Whole,
    /// One pair looks what stands there, and makes or finds its temporary.
    Beginning,
    /// It goes in ranges.
    Shared,
    /// All of it is durable: the source is looked at.
    Sealing(Option<At>),
    /// Some end gives it its name, as soon as one has the right.
    Publishing,
    /// It has its name, and the journal is told.
    Published,
    /// The source took this generation back; another comes.
    Withdrawn,
    /// It is over when what is left of it is removed.
    Ending(Ended, Option<At>),
}

/// A range that a pair has.
#[derive(Clone, Debug)]
pub(super) struct Out {
    /// Where it lies, of what is read; and where it is written.
    pub(super) from: Temp,
    pub(super) to: Temp,
    pub(super) end: u64,
    pub(super) kind: WorkKind,
    pub(super) at: At,
    /// What of it is not persisted yet, bytes, as far as it was said.
    pub(super) left: u64,
    /// It was asked for what it has not begun.
    pub(super) asked: Option<(u64, Time)>,
}

pub(super) struct File {
    pub(super) kept: Kept,
    pub(super) is_link: bool,
    pub(super) phase: EntryPhase,
    /// Something may stand under the name of its temporary.
    pub(super) touched: bool,
    /// Temporaries of it that somebody might still give its name, or that are left.
    pub(super) former: Vec<Temp>,
    pub(super) naming: Naming<At>,
    /// Leases that ended and are not written down yet.
    pub(super) fences: u32,
    /// By where they begin; disjoint.
    pub(super) out: BTreeMap<u64, Out>,
    pub(super) queued: bool,
    pub(super) restarts: u8,
    /// What it is published with; of what one pair had, what it said.
    pub(super) root: Option<Root>,
    /// The new temporary that it is published from, if it is copied for that.
    pub(super) copy: Option<Temp>,
}

impl File {
    pub(super) fn size(&self) -> u64 {
        self.kept.size()
    }

    /// Every byte is durable, and nobody has a range of it.
    pub(super) fn is_whole(&self) -> bool {
        self.phase == EntryPhase::Shared && self.out.is_empty() && self.kept.durable.is_complete()
    }

    /// The root of what is durable.
    pub(super) fn durable_root(&self) -> Option<Root> {
        let mut all = match self.kept.durable.map() {
            Some(map) => SubtreeSet::with_map(self.kept.durable.kind(), map.clone()),
            None => SubtreeSet::new(self.kept.durable.kind(), self.size()),
        };
        for subtree in self.kept.durable.iter() {
            all.insert(subtree.offset, subtree.len, subtree.cv).ok()?;
        }
        all.root()
    }

    /// Where the last range that a pair has and that has bytes in this one ends.
    pub(super) fn out_over(&self, begin: u64, end: u64) -> Option<u64> {
        self.out.range(..end).map(|(_, out)| out.end).filter(|end| *end > begin).max()
    }

    /// A part that was written before, has bytes in the range, and of which nobody has any.
    pub(super) fn old_in(&self, offset: u64, len: u64) -> Option<(Temp, Subtree)> {
        let within = |old: &'_ Old| {
            let mut parts = old.parts.touching(offset, len);
            let free = parts.find(|part| self.out_over(part.offset, part.offset + part.len).is_none());
            free.map(|part| (old.temp, part))
        };
        self.kept.olds.iter().find_map(within)
    }

    /// Whether anything in the range was written before.
    pub(super) fn has_old_in(&self, offset: u64, len: u64) -> bool {
        self.kept.olds.iter().any(|old| old.parts.touching(offset, len).next().is_some())
    }

    /// Where the next part begins that was written before.
    pub(super) fn next_old(&self, from: u64) -> Option<u64> {
        let next = |old: &Old| old.parts.touching(from, self.size()).next().map(|part| part.offset);
        self.kept.olds.iter().filter_map(next).min()
    }

    /// Who seals, publishes or removes it, apart from its ranges.
    pub(super) fn acts(&self) -> Option<At> {
        match self.phase {
            EntryPhase::Sealing(act) | EntryPhase::Ending(_, act) => act,
            EntryPhase::Publishing => self.naming.holder(),
            _ => None,
        }
    }

    /// Somebody may still write into its temporary: it goes on in a new one.
    pub(super) fn move_to(&mut self, temp: Temp) {
        let left = self.kept.move_to(temp);
        self.former.push(left);
    }
}

impl Coordinator {
    fn check_new(&self, id: FileId, parent: DirId) -> Result<PathKey, Refused> {
        if self.open_entries() >= self.config.entries_max as usize {
            return Err(Refused::TooMany);
        }
        if self.files.contains_key(&id) || self.dirs.path(id.as_dir()).is_some() {
            return Err(Refused::Twice);
        }
        match self.dirs.path(parent).filter(|_| !self.dirs.is_ended(parent)) {
            Some(path) => Ok(path),
            None => Err(Refused::NoDirectory),
        }
    }

    /// The walk announces a directory, with what its source's storage says of its version. Ends make it when
    /// they need it.
    ///
    /// # Errors
    /// If it cannot be; nothing changed.
    pub fn handle_dir(
        &mut self,
        id: DirId,
        parent: DirId,
        name: Name,
        about: (Meta, Version),
    ) -> Result<(), Refused> {
        let path = self.check_new(id.as_file(), parent)?.child(&name);
        if self.dirs.depth(parent) >= DEPTH_MAX {
            return Err(Refused::TooDeep);
        }
        self.dirs.add(id, parent, name, path, about);
        self.dirs.made(id, None);
        Ok(())
    }

    /// No more entries are announced in `dir`.
    ///
    /// # Errors
    /// If it is not open, or ended before.
    pub fn handle_dir_ended(&mut self, dir: DirId) -> Result<(), Refused> {
        if self.dirs.end(dir) { Ok(()) } else { Err(Refused::NoDirectory) }
    }

    /// The walk announces what is no file and no directory: one pair makes it.
    ///
    /// # Errors
    /// If it cannot be; nothing changed.
    pub fn handle_link(&mut self, id: FileId, parent: DirId, name: Name) -> Result<(), Refused> {
        self.check_new(id, parent)?;
        let (generation, fingerprint, object_size) = (Generation(0), Fingerprint::default(), 0);
        let spec = FileSpec { id, generation, parent, name, fingerprint, object_size, map: None };
        self.add_file(spec, true);
        Ok(())
    }

    /// The walk announces a file; or one that was withdrawn, under a higher generation.
    ///
    /// # Errors
    /// If it cannot be; nothing changed.
    pub fn handle_file(&mut self, spec: FileSpec) -> Result<(), Refused> {
        match self.files.get(&spec.id) {
            Some(old) if old.phase == EntryPhase::Withdrawn && old.kept.generation < spec.generation => {
                let old = self.files.remove(&spec.id).expect("it was just there");
                // Its directory stays held.
                let (id, former, restarts) = (spec.id, old.former, old.restarts);
                let file = self.make_file(spec, false, former, restarts);
                self.files.insert(id, file);
                self.enqueue(id);
                Ok(())
            }
            _ => {
                self.check_new(spec.id, spec.parent)?;
                self.add_file(spec, false);
                Ok(())
            }
        }
    }

    fn add_file(&mut self, spec: FileSpec, is_link: bool) {
        self.dirs.hold(spec.parent);
        let id = spec.id;
        let file = self.make_file(spec, is_link, Vec::new(), 0);
        self.files.insert(id, file);
        self.enqueue(id);
    }

    fn make_file(&mut self, spec: FileSpec, is_link: bool, former: Vec<Temp>, restarts: u8) -> File {
        let FileSpec { id: _, generation, parent, name, fingerprint, object_size, map } = spec;
        let path = self.dirs.path(parent).expect("its directory is open").child(&name);
        let (kind, map) = (self.config.digest, map.filter(|map| !map.is_full()));
        let about = (fingerprint, object_size);
        let mut kept = Kept::new((parent, path, generation), about, self.take_temp(), kind);
        let digest = map.as_ref().map(ExtentMap::digest);
        if map.is_some() {
            kept.set_map(map);
        }
        let mut file = File {
            kept,
            is_link,
            phase: EntryPhase::New,
            touched: false,
            former,
            naming: Naming::new(),
            fences: 0,
            out: BTreeMap::new(),
            queued: false,
            restarts,
            root: None,
            copy: None,
        };
        if let Some(old) = self.earlier.take(&path, &fingerprint, digest, kind) {
            file.kept.promise(None);
            // No source is asked to compare another version with what it announced.
            let fits = old.fits && old.claimed.is_none();
            let temp = Temp { tag: old.partial.tag, number: old.partial.number };
            if self.earlier.may_be_written_late() || !fits {
                file.former.push(temp);
            } else {
                file.kept.temp = temp;
                file.touched = true;
            }
            if fits {
                old.partial.subtrees.iter().for_each(|part| file.kept.expect(temp, part));
            }
        }
        file
    }

    /// The source of a pair says that a generation is not what it was announced as. `retry`: it comes again
    /// under a higher one; else the file is given up.
    pub fn handle_withdrawn(
        &mut self,
        (pair, lease): (PairId, Lease),
        id: FileId,
        generation: Generation,
        retry: bool,
        failure: Option<Failure>,
    ) {
        if !self.hears(pair, lease) {
            return;
        }
        let Some(file) = self.files.get_mut(&id).filter(|file| file.kept.generation == generation) else {
            return;
        };
        // What was looked at after the last read is what it was; that it changed since is another copy's
        // matter.
        if matches!(
            file.phase,
            EntryPhase::Publishing | EntryPhase::Published | EntryPhase::Withdrawn | EntryPhase::Ending(..)
        ) {
            return;
        }
        self.revoke(id, Some(pair));
        self.forget_parts(id);
        match retry {
            true => self.set_phase(id, EntryPhase::Withdrawn),
            false => {
                let failure = failure.unwrap_or_else(|| protocol("the source gave it up"));
                self.begin_end(id, Ended::Failed(failure));
            }
        }
    }

    /// Nobody works at the file any more, and what was written of it counts for nothing. A later one begins
    /// with a temporary of its own, so that whoever has not heard of it writes into the old one.
    pub(super) fn revoke(&mut self, id: FileId, but: Option<PairId>) {
        let Some(file) = self.files.get_mut(&id) else { return };
        let generation = file.kept.generation;
        let out = std::mem::take(&mut file.out);
        let mut holders: Vec<At> = out.values().map(|out| out.at).collect();
        holders.sort_unstable();
        holders.dedup();
        for (offset, out) in &out {
            self.unload(id, *offset, out);
        }
        self.leave_act(id);
        if let Some(file) = self.files.get_mut(&id) {
            file.naming.revoke();
        }
        for (pair, lease) in holders.into_iter().filter(|(pair, _)| Some(*pair) != but) {
            self.actions.push_back(Action::Revoke { pair, lease, id, generation });
        }
    }

    /// The journal is told that nothing of the file is there, if it was told otherwise; its temporary is one
    /// of the former.
    pub(super) fn forget_parts(&mut self, id: FileId) {
        let temp = self.take_temp();
        let Some(file) = self.files.get_mut(&id) else { return };
        let forgotten = file.kept.forget();
        let old = std::mem::replace(&mut file.kept.temp, temp);
        if std::mem::take(&mut file.touched) {
            file.former.push(old);
        }
        file.naming = Naming::new();
        if let Some((slot, named)) = forgotten {
            self.facts.say(Fact::Forgotten { slot, named });
        }
    }

    pub(super) fn set_phase(&mut self, id: FileId, phase: EntryPhase) {
        if let Some(file) = self.files.get_mut(&id) {
            file.phase = phase;
        }
    }

    pub(super) fn enqueue(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id).filter(|file| !file.queued && file.fences == 0) else {
            return;
        };
        if matches!(file.phase, EntryPhase::New | EntryPhase::Shared) {
            file.queued = true;
            self.queue.push_back(id);
        }
    }
}
