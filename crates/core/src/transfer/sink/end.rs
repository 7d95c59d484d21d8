//! How entries come to their end: sealed, complete, failed.
//!
//! In: seals, results of files, links and directories. Out: files for the next epoch, entries that ended,
//! what the source is told of them.
//! Invariants: an entry ends once; its directory is released with it, or with its temporary if that is still
//! to be removed; a full or read-only file system ends the run and not the file.
//! Left out: publication (`epoch`); who may publish, and when (`job::naming`).

use super::check::add;
use super::file::{Mark, SinkPhase};
use super::{Lack, Sink, SinkAction};
use crate::change::Change;
use crate::ids::{DirId, FileId, Generation};
use crate::transfer::{Ended, SMALL_LEN_MAX, SessionEnd, link_end, other_end};
use crate::tune::show_amount;
use crate::wire::{DoneItem, Failure, Outcome};

impl Sink {
    pub(super) fn seal(&mut self, id: FileId, generation: Generation, pass: u16) {
        let Some(file) = self.files.get_mut(&id).filter(|f| f.kept.generation == generation) else { return };
        file.naming.handle_seal(pass);
        self.confirm(id);
        self.try_complete(id);
    }

    /// The source goes on with a file: what is held of it, it has compared.
    pub(super) fn confirm(&mut self, id: FileId) {
        let now = self.now;
        let Some(file) = self.files.get_mut(&id).filter(|f| f.kept.is_claimed()) else { return };
        if self.config.policy.trust {
            add(&mut self.checks.counts.trusted, file.kept.durable.covered());
        }
        // The journal hears of it under a new slot, and the source of what was found until now.
        let anew = file.kept.confirm();
        file.written.extend(file.kept.durable.iter());
        if anew {
            file.mark(Mark::InEpoch);
            self.epochs.add_dirty(id, 0, now);
        }
    }

    pub(super) fn try_complete(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        let whole = file.is_whole();
        if file.naming.give((), whole) {
            if !file.is(Mark::HasTemp) {
                // All of it is one hole: its publication makes the temporary.
                file.mark(Mark::HasTemp);
                self.files_open += 1;
            }
            file.phase = SinkPhase::Committing;
            file.mark(Mark::InEpoch);
            self.epochs.add_complete(id, self.now);
        }
    }

    /// Ends a file: it is over and forgotten.
    pub(super) fn end_file(&mut self, id: FileId, end: Ended, root: Option<[u8; 32]>) {
        // A sparse root is no hash of the content.
        let root = root.filter(|_| self.files.get(&id).is_some_and(|f| f.digest.map().is_none()));
        let map = self.files.get(&id).and_then(|file| file.digest.map()).filter(|_| end == Ended::Copied);
        let mut holes = map.map_or(0, |map| map.size() - map.data_len());
        if let Some(file) = self.files.get(&id).filter(|f| f.is(Mark::Cloned) && end == Ended::Copied) {
            holes = file.size();
        }
        self.drop_map(id);
        self.leave_targets(id);
        self.leave_turns(id);
        self.lost.remove(&id);
        self.expect_nothing(id);
        let Some(file) = self.files.remove(&id) else { return };
        if file.is(Mark::HasTemp) {
            self.files_open -= 1;
        }
        let stands = matches!(end, Ended::Copied | Ended::Unchanged);
        self.first_ended(id, stands);
        self.counts.files_done += 1;
        self.counts.bytes_done = self.counts.bytes_done.saturating_add(file.size());
        self.counts.holes = self.counts.holes.saturating_add(holes);
        if end == Ended::Unchanged {
            self.counts.unchanged += 1;
        }
        self.dirs.handle_end(file.kept.parent, &end);
        match self.drains.get_mut(&id) {
            Some(drain) => drain.release = Some(file.kept.parent),
            None => {
                self.dirs.release(file.kept.parent);
                self.forget_metadata(id);
            }
        }
        self.take_unkept(id);
        let bytes = file.size();
        // Of what is unchanged, mode and owner may have been set.
        let changes = matches!(end, Ended::Copied | Ended::Unchanged);
        let change = if changes { file.change } else { Change::NONE };
        let (parent, name, is_link) = (file.kept.parent, file.name, false);
        self.actions.push_back(SinkAction::EntryEnded {
            id,
            parent,
            name,
            is_link,
            joined: None,
            end,
            root,
            bytes,
            change,
        });
        for frame in self.waiting.remove(&id).unwrap_or_default() {
            self.waiting_count -= 1;
            self.defer(frame);
        }
    }

    /// Ends a file that failed here and tells the source.
    pub(super) fn fail_file(&mut self, id: FileId, failure: Failure) {
        if self.is_fatal(&failure) {
            return;
        }
        self.discard(id);
        self.leave_file(id, failure);
    }

    /// The same for a file of which this run has nothing: what an earlier run left of it stays, and stays
    /// promised.
    pub(super) fn leave_file(&mut self, id: FileId, failure: Failure) {
        let Some(file) = self.files.get(&id) else { return };
        let generation = file.kept.generation;
        self.done.push(DoneItem { id, generation, outcome: Outcome::Failed(failure.clone()) });
        self.end_file(id, Ended::Failed(failure), None);
    }

    /// A full or read-only file system ends the run; what is durable stays resumable.
    pub(super) fn is_fatal(&mut self, failure: &Failure) -> bool {
        const ENOSPC: i32 = 28;
        const EROFS: i32 = 30;
        const EDQUOT: i32 = 122;
        if !matches!(failure.errno, ENOSPC | EROFS | EDQUOT) {
            return false;
        }
        if self.stop.is_none() {
            let missing = self.counts.bytes.saturating_sub(self.counts.bytes_done.max(self.counts.written));
            let missing = missing.saturating_sub(self.holes);
            self.lacks = (failure.errno != EROFS).then(|| Lack { missing, whole: self.surely_needed() });
            self.begin_stop(SessionEnd::Failed(failure.clone()));
        }
        true
    }

    /// The whole length of open files that the destination surely has no place for yet but in their
    /// temporaries. What may turn out to be right already, takes the place of another file, or lies in
    /// temporaries that nobody can name is left out.
    fn surely_needed(&self) -> u64 {
        let needed = self.files.values().filter(|file| {
            let begun = !file.digest.is_empty() || file.writes > 0;
            let small = file.size() <= SMALL_LEN_MAX && begun;
            matches!(file.phase, SinkPhase::Open) && file.found.is_none() && file.adopt.is_empty() && !small
        });
        let lens = needed.map(|file| file.digest.map().map_or(file.size(), |map| map.data_len()));
        lens.fold(0, u64::saturating_add)
    }

    /// What is written has no room: what the run still needs is said with its end, once. `room`: bytes that
    /// the file system has left for us and those that the open temporaries have, if they are what limits.
    pub fn tell_room(&mut self, room: impl FnOnce() -> Option<u64>) {
        let Some(Lack { missing: needed, whole }) = self.lacks.take() else { return };
        let Some(SessionEnd::Failed(failure)) = &mut self.stop else { return };
        let missing = room().and_then(|room| whole.checked_sub(room)).filter(|missing| *missing > 0);
        let more = match missing {
            // A twentieth less, by which it may be rounded up.
            Some(missing) => format!("at least {} more are needed", show_amount(missing - missing / 20)),
            None => format!("{} are still to be written", show_amount(needed)),
        };
        failure.text = format!("{}; {more}", failure.text).into();
    }

    pub(super) fn end_link(&mut self, id: FileId, result: Result<(), Failure>) {
        let change = self.links.get(&id).map_or(Change::NONE, |link| link.change);
        let result = result.and(self.take_unkept(id).map_or(Ok(()), Err));
        let (outcome, mut end) = ends(result.map(|()| change));
        let joins = self.links.get(&id).is_some_and(|link| link.joins.is_some());
        if end == Ended::Copied && !joins {
            end = link_end(change);
            self.counts.amended += u64::from(end == Ended::Unchanged);
        }
        self.close_link(id, outcome, end);
    }

    /// `--no-clobber` found something under the link's name.
    pub(super) fn skip_link(&mut self, id: FileId) {
        self.close_link(id, Outcome::Done { root: None, change: Change::NONE }, Ended::Skipped);
    }

    fn close_link(&mut self, id: FileId, outcome: Outcome, end: Ended) {
        let Some(link) = self.links.get(&id) else { return };
        self.done.push(DoneItem { id, generation: link.generation, outcome });
        self.forget_link(id, end);
    }

    /// A link is over, and the source knows.
    pub(super) fn forget_link(&mut self, id: FileId, end: Ended) {
        let Some(link) = self.links.remove(&id) else { return };
        self.forget_metadata(id);
        self.take_unkept(id);
        self.dirs.handle_end(link.parent, &end);
        self.dirs.release(link.parent);
        let changes = matches!(end, Ended::Copied | Ended::Unchanged);
        self.first_ended(id, changes);
        let change = if changes { link.change } else { Change::NONE };
        // One that is apart was to come as what its first name is.
        let (joined, is_link) = match &link.joins {
            Some(joins) => (joins.to.filter(|_| !joins.apart), joins.is_link),
            None => (None, true),
        };
        let (parent, name) = (link.parent, link.name);
        self.actions.push_back(SinkAction::EntryEnded {
            id,
            parent,
            name,
            is_link,
            joined,
            end,
            root: None,
            bytes: 0,
            change,
        });
    }

    pub(super) fn finish_dir(&mut self, dir: DirId, result: Result<Change, Failure>) {
        let unkept = self.take_unkept(dir.as_file());
        let result = result.and_then(|change| unkept.map_or(Ok(change), Err));
        let Some(gone) = self.dirs.remove(dir, result.is_ok()) else { return };
        self.forget_metadata(dir.as_file());
        if let Some(mark) = gone.mark {
            self.epochs.add_finished(gone.path, mark, self.now);
        }
        let result = match gone.failure {
            Some(failure) => Err(failure),
            None => result,
        };
        let change = result.as_ref().map_or(Change::NONE, |change| *change);
        let (outcome, end) = ends(result);
        let id = dir.as_file();
        self.done.push(DoneItem { id, generation: Generation(0), outcome });
        let (parent, name) = (gone.parent, gone.name);
        self.actions.push_back(SinkAction::EntryEnded {
            id,
            parent,
            name,
            is_link: false,
            joined: None,
            end,
            root: None,
            bytes: 0,
            change,
        });
        self.actions.push_back(SinkAction::ForgetDir { id: dir });
    }
}

/// Of what is no file.
fn ends(result: Result<Change, Failure>) -> (Outcome, Ended) {
    match result {
        Ok(change) => (Outcome::Done { root: None, change }, other_end(change)),
        Err(failure) => (Outcome::Failed(failure.clone()), Ended::Failed(failure)),
    }
}
