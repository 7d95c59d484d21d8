//! Facts: what ends say, until the journal says it too.
//!
//! In: ranges that are on media, entries that have their names, completions of the journal. Out: records;
//! what is durable; what holds from then on.
//! Invariants: facts are journaled in the order in which they came, one write at a time, and have their
//! effect when that write is over; those of a lease that ended before have none, nor those of which no record
//! could be made; once a write failed nothing has any effect any more, nor does a write succeed, of however
//! little. The first fact of what is made anew in a directory takes back that an earlier run finished it, in
//! the same write; that one is finished is said behind the marks of what is in it.
//!
//! A coordinator of several pairs and the sink of a session, which is the only pair there is, have one each.
//! Left out: what follows of a fact that holds, which is beside its events.

use std::collections::{BTreeSet, VecDeque};

use super::Temp;
use super::dirs::Dirs;
use super::kept::Kept;
use super::ledger::{Ledger, Named};
use crate::digest::{DigestKind, Root, Subtree};
use crate::id_map::IdMap;
use crate::ids::{DirId, FileId, Generation, Holder};
use crate::journal::{DirMark, DoneMark, Log, PathKey, Record};
use crate::wire::Failure;

/// So many finished directories are journaled though nothing else is; and so many wait at most.
const FINISHED_ALONE: usize = 4096;
const FINISHED_MAX: usize = 65_536;

/// What somebody said, on its way to the journal. `A` is who: nobody else's end is the end of what it said.
pub(crate) enum Fact<A> {
    /// These parts are on media in `temp`.
    Persisted {
        at: A,
        id: FileId,
        generation: Generation,
        temp: Temp,
        subtrees: Vec<Subtree>,
        /// Ranges that the journal promises no more with it.
        wrong: Vec<(u64, u64)>,
    },
    /// Nothing more is written of the range that begins here.
    Over { at: A, id: FileId, generation: Generation, offset: u64 },
    /// It has its name. `root`: of its bytes, if it is a file of which they are known: one that was cloned
    /// was not read.
    Published { at: A, id: FileId, generation: Generation, root: Option<Root> },
    /// What the journal promised of a file is worth nothing.
    Forgotten { slot: Option<u32>, named: Named },
    /// This is so, whoever said it.
    Noted(Record),
}

impl<A: Copy> Fact<A> {
    fn weight(&self) -> usize {
        match self {
            Fact::Persisted { subtrees, .. } => subtrees.len().max(1),
            _ => 1,
        }
    }

    fn at(&self) -> Option<A> {
        match self {
            Fact::Persisted { at, .. } | Fact::Over { at, .. } | Fact::Published { at, .. } => Some(*at),
            Fact::Forgotten { .. } | Fact::Noted(_) => None,
        }
    }
}

/// A file of which facts speak.
pub(crate) trait Known {
    /// Of this generation, and parts of it may become durable.
    fn takes_parts(&self) -> bool;
    fn kept(&self) -> &Kept;
    fn kept_mut(&mut self) -> &mut Kept;
}

/// See the module.
pub(crate) struct Facts<A> {
    /// As whom the journal hears of them.
    by: Holder,
    ledger: Ledger,
    said: VecDeque<Fact<A>>,
    /// What they weigh.
    len: usize,
    writing: Option<Vec<Fact<A>>>,
    /// Finished directories that the next record may name. They wait for one: no sync is made for them alone,
    /// but for many.
    finished: Vec<Record>,
}

impl<A: Copy + PartialEq> Facts<A> {
    pub(crate) fn new(by: Holder, log: Log, next_slot: u32) -> Facts<A> {
        let ledger = Ledger::new(log, next_slot);
        Facts { by, ledger, said: VecDeque::new(), len: 0, writing: None, finished: Vec::new() }
    }

    /// What waits weighs so much, in subtrees and ends.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Nothing is said that the journal did not hear, and that anybody waits for.
    pub(crate) fn is_empty(&self) -> bool {
        self.said.is_empty() && self.writing.is_none()
    }

    /// A write of the journal is under way.
    pub(crate) fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Why nothing is written any more.
    pub(crate) fn broken(&self) -> Option<&Failure> {
        self.ledger.broken()
    }

    /// The journal refused a record: those behind it would not be read.
    pub(crate) fn break_off(&mut self, failure: &Failure) {
        self.ledger.break_off(failure);
    }

    pub(crate) fn take_slot(&mut self) -> u32 {
        self.ledger.take_slot()
    }

    /// The bytes of a record that goes to the journal by itself, in its turn.
    ///
    /// # Errors
    /// Why the journal takes none.
    pub(crate) fn note(&mut self, record: &Record) -> Result<Vec<u8>, Failure> {
        self.ledger.encode(std::slice::from_ref(record))
    }

    pub(crate) fn say(&mut self, fact: Fact<A>) {
        self.len += fact.weight();
        self.said.push_back(fact);
    }

    /// All in a directory ended well, and it has its metadata. While the journal hangs, what is over a bound
    /// is forgotten.
    pub(crate) fn finish(&mut self, path: PathKey, mark: DirMark) {
        if self.finished.len() < FINISHED_MAX {
            self.finished.push(Record::Finished { path, mark });
        }
    }

    /// So many directories are finished that it is worth a write of its own.
    pub(crate) fn is_worth_a_write(&self) -> bool {
        self.finished.len() >= FINISHED_ALONE
    }

    /// Facts of a lease that ended and are not in the journal are dropped. Returns the files that they, or
    /// those that are being written, say to be published.
    pub(crate) fn drop_of(&mut self, ended: A) -> BTreeSet<FileId> {
        let of = |fact: &&Fact<A>| fact.at() == Some(ended);
        let published = |fact: &Fact<A>| match fact {
            Fact::Published { id, .. } => Some(*id),
            _ => None,
        };
        let all = self.said.iter().chain(self.writing.iter().flatten());
        let files = all.filter(of).filter_map(published).collect();
        if !haul_mutant::removed("ended-leases-have-no-effect") {
            self.said.retain(|fact| fact.at() != Some(ended));
            self.len = self.said.iter().map(Fact::weight).sum();
        }
        files
    }

    /// What was said since, for the journal, if that is free: bytes to append, none if nothing of it need be
    /// written down. [`Facts::handle_journaled`] must follow.
    ///
    /// # Errors
    /// Why the journal takes none any more.
    pub(crate) fn write<F: Known>(
        &mut self,
        files: &mut IdMap<FileId, F>,
        dirs: &mut Dirs,
    ) -> Result<Option<Vec<u8>>, Failure> {
        if self.writing.is_some() {
            return Ok(None);
        }
        if let Some(failure) = self.ledger.broken().cloned() {
            drop((self.take_said(), std::mem::take(&mut self.finished)));
            return Err(failure);
        }
        if self.said.is_empty() && !self.is_worth_a_write() {
            return Ok(None);
        }
        let (mut facts, mut finished) = (self.take_said(), std::mem::take(&mut self.finished));
        let mut records = Vec::new();
        facts.retain_mut(|fact| self.record(fact, files, dirs, &mut records));
        // Behind the marks of what is in them: these are of earlier records, or of this one.
        records.append(&mut finished);
        let bytes = self.ledger.encode(&records)?;
        self.writing = Some(facts);
        Ok(Some(bytes))
    }

    fn take_said(&mut self) -> Vec<Fact<A>> {
        self.len = 0;
        self.said.drain(..).collect()
    }

    /// The records of a fact. False if there is nothing to be said, so that nothing may follow of it.
    fn record<F: Known>(
        &mut self,
        fact: &mut Fact<A>,
        files: &mut IdMap<FileId, F>,
        dirs: &mut Dirs,
        records: &mut Vec<Record>,
    ) -> bool {
        match fact {
            Fact::Persisted { id, generation, temp, subtrees, wrong, .. } => {
                let taken = files.get_mut(id).filter(|file| takes(*file, *generation));
                let Some(file) = taken else { return false };
                if file.kept().temp != *temp {
                    // It is written elsewhere since.
                    file.kept_mut().handle_said(*temp, subtrees);
                    return false;
                }
                reopen(dirs, file.kept().parent, records);
                *wrong = file.kept_mut().say(&mut self.ledger, self.by, subtrees, records);
            }
            Fact::Published { id, generation, root: Some(root), .. } => {
                let file = files.get(id).map(Known::kept).filter(|file| file.generation == *generation);
                let Some(file) = file else { return false };
                reopen(dirs, file.parent, records);
                let parent = dirs.path(file.parent).expect("a file holds its directory open");
                let mark = DoneMark::new(parent, &file.fingerprint, *root);
                self.ledger.done(file.path, mark, records);
            }
            Fact::Forgotten { slot, named } => {
                // Nothing is kept of it: of what digest is all the same.
                self.ledger.withdraw(*slot, *named, DigestKind::default(), records);
            }
            Fact::Noted(record) => records.push(record.clone()),
            // Of a file whose bytes nobody read there is no mark.
            Fact::Published { id, generation, root: None, .. } => {
                let file = files.get(id).map(Known::kept).filter(|file| file.generation == *generation);
                file.into_iter().for_each(|file| reopen(dirs, file.parent, records));
            }
            Fact::Over { .. } => {}
        }
        true
    }

    /// What was to be appended is on media, or could not be written. Returns what holds now, in order: what
    /// is persisted is durable in its file, unless that goes on in another temporary.
    ///
    /// # Errors
    /// If it could not be written, or something before it.
    pub(crate) fn handle_journaled<F: Known>(
        &mut self,
        result: Result<(), Failure>,
        files: &mut IdMap<FileId, F>,
        is_live: impl Fn(A) -> bool,
    ) -> Result<Vec<Fact<A>>, Failure> {
        let mut facts = self.writing.take().unwrap_or_default();
        // What was written behind a record that is not there is not read.
        if let Some(failure) = result.err().or_else(|| self.ledger.broken().cloned()) {
            self.ledger.break_off(&failure);
            drop(self.take_said());
            return Err(failure);
        }
        facts.retain(|fact| fact.at().is_none_or(&is_live) && settle(fact, files));
        Ok(facts)
    }

    /// As if the journal had said everything.
    pub(crate) fn believe<F: Known>(&mut self, files: &mut IdMap<FileId, F>) -> Vec<Fact<A>> {
        let mut facts = self.take_said();
        facts.retain(|fact| settle(fact, files));
        facts
    }
}

/// Something in `dir` is made anew, says the next record.
fn reopen(dirs: &mut Dirs, dir: DirId, records: &mut Vec<Record>) {
    records.extend(dirs.reopen(dir).into_iter().map(|path| Record::Reopened { path }));
}

fn takes(file: &impl Known, generation: Generation) -> bool {
    file.kept().generation == generation && file.takes_parts()
}

/// The journal says so. False if nothing follows of it.
fn settle<A, F: Known>(fact: &Fact<A>, files: &mut IdMap<FileId, F>) -> bool {
    let Fact::Persisted { id, generation, temp, subtrees, .. } = fact else { return true };
    let file = files.get_mut(id).filter(|file| takes(*file, *generation));
    file.is_some_and(|file| file.kept_mut().handle_said(*temp, subtrees))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Fingerprint, Timestamp, Version};
    use crate::wire::FailureKind;

    const LEN: u64 = 1 << 20;

    struct One {
        kept: Kept,
        takes: bool,
    }

    impl Known for One {
        fn takes_parts(&self) -> bool {
            self.takes
        }
        fn kept(&self) -> &Kept {
            &self.kept
        }
        fn kept_mut(&mut self) -> &mut Kept {
            &mut self.kept
        }
    }

    const HERE: Temp = Temp { tag: 9, number: 1 };
    const ELSEWHERE: Temp = Temp { tag: 9, number: 2 };

    /// What a journal hears, the only file, and the directories.
    fn bench() -> (Facts<()>, IdMap<FileId, One>, Dirs) {
        let (mtime, version) = (Timestamp { secs: 1, nanos: 0 }, Version::NONE);
        let about = (Fingerprint { size: 4 * LEN, mtime, version }, LEN as u32);
        let path = (DirId::ROOT, PathKey([1; 16]), Generation(0));
        let kept = Kept::new(path, about, HERE, DigestKind::Blake3);
        let files = IdMap::from_iter([(FileId(1), One { kept, takes: true })]);
        let facts = Facts::new(Holder::ALONE, Log::start(&mut Vec::new()), 0);
        (facts, files, Dirs::new(Default::default()))
    }

    fn persisted() -> Fact<()> {
        let subtrees = vec![Subtree { offset: 0, len: LEN, cv: [7; 32] }];
        let (id, generation) = (FileId(1), Generation(0));
        Fact::Persisted { at: (), id, generation, temp: HERE, subtrees, wrong: Vec::new() }
    }

    fn broken() -> Failure {
        Failure { kind: FailureKind::Write, errno: 5, text: "broken".into() }
    }

    /// Goal: a part is durable only if a record says so, whatever the file is when that is on media.
    /// Method: a file that takes no parts, or is written elsewhere, while the records are made, and before
    /// and after that as it was.
    #[test]
    fn nothing_is_durable_without_a_record() {
        for (takes, temp) in [(true, HERE), (false, HERE), (true, ELSEWHERE)] {
            let (mut facts, mut files, mut dirs) = bench();
            let change = |files: &mut IdMap<FileId, One>, takes, temp| {
                let file = files.get_mut(&FileId(1)).expect("it is there");
                (file.takes, file.kept.temp) = (takes, temp);
            };
            facts.say(persisted());
            change(&mut files, takes, temp);
            let bytes = facts.write(&mut files, &mut dirs).expect("it takes records").expect("one was said");
            change(&mut files, true, HERE);
            let hold = facts.handle_journaled(Ok(()), &mut files, |()| true).expect("it is on media");
            let durable = !files[&FileId(1)].kept.durable.is_empty();
            let as_it_was = takes && temp == HERE;
            assert_eq!((!bytes.is_empty(), durable, hold.len()), (as_it_was, as_it_was, as_it_was.into()));
        }
    }

    /// Goal: a journal that refused a record takes nothing more, also where there is nothing to write, and
    /// what it is said to have taken since then has no effect.
    #[test]
    fn a_broken_journal_refuses_nothing_too() {
        let (mut facts, mut files, mut dirs) = bench();
        assert_eq!(facts.write(&mut files, &mut dirs), Ok(None), "there is nothing to write");
        facts.say(persisted());
        assert!(facts.write(&mut files, &mut dirs).is_ok_and(|bytes| bytes.is_some()));
        facts.break_off(&broken());
        let held = facts.handle_journaled(Ok(()), &mut files, |()| true);
        assert_eq!(held.err(), Some(broken()), "it hangs behind a record that is not there");
        assert!(files[&FileId(1)].kept.durable.is_empty());
        assert_eq!(facts.write(&mut files, &mut dirs), Err(broken()));
        facts.say(persisted());
        assert_eq!(facts.write(&mut files, &mut dirs), Err(broken()));
        assert_eq!((facts.is_empty(), facts.len()), (true, 0), "nobody waits for it");
    }
}
