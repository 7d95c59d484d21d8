//! One session that writes, and its thread.
//!
//! In: operations from the queues. Out: their completions. A file of several objects stays in its session
//! from its first byte to the server's word that it has the last; a small one is sent whole, and again over
//! another session where that may help.
//! Invariants: a file's bytes go out in their order and end at its length; what the server did not say that
//! it has is never taken for stored. A session that the server takes back leaves its work to the others.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use haul_core::change::Change;
use haul_core::entry::Meta;
use haul_core::ids::{DirId, FileId};
use haul_core::reliability::Step;
use haul_core::stage::Stage;
use haul_core::transfer::op::{
    AmendItem, CommitItem, Existing, Found, LookupItem, Publish, SinkDone, SinkFile, SinkOp,
};
use haul_core::wire::{Failure, FailureKind};
use haul_ftp::{Asked, Error, Moment, Session, write_moment};

use super::queues::{Batch, Common, Temp, TempState, Work, refuse};
use super::sending::{Open, Sending};
use super::sums::FileSumming;
use super::tree::check;
use crate::ftp::line::{Attempts, Line};
use crate::ftp::{says_gone, shown};
use crate::owed::panic_point;
use crate::sink::names::temp_name;

/// So long a server may have a temporary in use that is to be removed.
const BUSY_PATIENCE: Duration = Duration::from_secs(4);

/// One session and its thread.
pub(super) struct Writer {
    pub(super) common: Arc<Common>,
    pub(super) index: usize,
    pub(super) line: Line,
    pub(super) open: Option<Open>,
}

impl Writer {
    pub(super) fn new(common: Arc<Common>, index: usize, session: Option<Session>) -> Writer {
        let (server, settings) = (common.server.clone(), common.settings.clone());
        let line = match session {
            Some(session) => Line::with(server, settings, &common.retry, session),
            None => Line::new(server, settings, &common.retry),
        };
        Writer { common, index, line, open: None }
    }

    pub(super) fn run(mut self) {
        /// Also where something panics: what waits for it goes to others.
        struct Leaves(Arc<Common>, usize);
        impl Drop for Leaves {
            fn drop(&mut self) {
                let mut queues = self.0.lock();
                queues.gone[self.1] = true;
                queues.leave_all(self.1);
                drop(queues);
                self.0.ready.notify_all();
            }
        }
        let _leaves = Leaves(self.common.clone(), self.index);
        while self.connects() {
            while let Some(work) = self.next() {
                self.work(work);
                self.common.lock().busy[self.index] = None;
                if self.is_taken_back() {
                    break;
                }
            }
            if self.common.lock().open[self.index] {
                return self.remove_doubted();
            }
            // The others do what is left, until it gets another one.
        }
    }

    /// Removes what sessions that were lost may have left. What nobody hears of may come late.
    fn remove_doubted(&mut self) {
        if self.common.is_silent() {
            return;
        }
        let doubted = self.common.take_doubted();
        let Some(first) = doubted.first() else { return };
        self.begins("remove", first);
        // They stay until it is known that they do not.
        doubted.iter().for_each(|path| self.common.leave(path.clone()));
        let mut paths: Vec<&[u8]> = doubted.iter().map(Vec::as_slice).collect();
        let until = Instant::now() + BUSY_PATIENCE;
        let mut pause = Duration::from_millis(20);
        loop {
            paths = self.remove(&paths);
            if paths.is_empty() || Instant::now() >= until {
                break;
            }
            // The session that was lost is still at work on it at the server, as a rule for a moment.
            std::thread::sleep(pause);
            pause *= 2;
        }
        self.common.lock().busy[self.index] = None;
    }

    /// Removes these, and out come those that the server has in use.
    fn remove<'a>(&mut self, paths: &[&'a [u8]]) -> Vec<&'a [u8]> {
        let remove = |writer: &mut Writer| {
            let session = writer.line.open()?;
            let removed = session.remove(paths)?;
            Ok::<_, Error>((removed, session.facts_of(paths)?))
        };
        let mut removed = remove(self);
        if let Err(error) = &removed
            && !error.is_silence()
        {
            // The session may have been over for long. Nobody waits for more attempts by now.
            self.line.close();
            removed = remove(self);
        }
        let Ok((removed, asked)) = removed else { return Vec::new() };
        let mut busy = Vec::new();
        for ((path, removed), asked) in paths.iter().zip(removed).zip(asked) {
            match asked {
                // Whatever is said of its removal.
                Asked::Is(_) if removed.is_ok() && !haul_mutant::removed("ftp-removals-are-looked-at") => {
                    self.common.stands(path);
                }
                _ if removed.is_ok() => self.common.stays_not(path),
                // One that is in use may be shown to nobody, and stays on the list.
                _ if removed.as_ref().is_err_and(is_busy) => {
                    self.common.stands(path);
                    busy.push(*path);
                }
                Asked::Not(_) => self.common.stays_not(path),
                Asked::Is(_) => self.common.stands(path),
                // There is nothing to tell of, and nothing to remove: other than where that is not allowed.
                Asked::Untold(_)
                    if removed.is_err_and(|error| error.is_unavailable() && !error.is_denied()) =>
                {
                    self.common.stays_not(path);
                }
                Asked::Untold(_) => {}
            }
        }
        busy
    }

    pub(super) fn begins(&mut self, what: &'static str, path: &[u8]) {
        self.line.set_about(path);
        self.common.lock().busy[self.index] = Some((Instant::now(), what, path.to_vec()));
    }

    fn work(&mut self, work: Work) {
        match work {
            Work::Write(write) => self.write(*write),
            Work::Bundle(batch) => self.bundle(batch),
            Work::Small(small) => self.small(small),
            Work::Publish(batch) => self.publish_batch(&batch),
            Work::Sums(summed) => self.help(&summed),
            Work::Op(op, owed) => {
                let stopped = self.common.not_begun(&self.common.tree.dir(DirId::ROOT));
                let done = match (op, stopped) {
                    (op @ (SinkOp::MakeDirs { .. } | SinkOp::Lookup { .. }), Some(failure)) => {
                        refuse(op, &failure)
                    }
                    (op, _) => self.done(op),
                };
                owed.settle(Ok(done));
            }
        }
    }

    fn done(&mut self, op: SinkOp) -> SinkDone {
        match op {
            SinkOp::MakeDirs { dirs } => SinkDone::MakeDirs { results: self.make_dirs(dirs) },
            SinkOp::Lookup { items } => SinkDone::Lookup { results: self.look_up(items) },
            SinkOp::Amend { items, .. } => SinkDone::Amend { results: self.amend(items) },
            SinkOp::FinishDirs { dirs, .. } => SinkDone::FinishDirs { results: self.finish_dirs(dirs) },
            SinkOp::Discard { id } => {
                self.discard(id);
                SinkDone::Discard { id }
            }
            SinkOp::RemoveJournal => {
                self.remove_left();
                SinkDone::RemoveJournal { result: Ok(()) }
            }
            // Answered where they are submitted.
            op => {
                let text = "nobody asks for it".into();
                let failure = Failure { kind: FailureKind::Local, errno: 0, text };
                refuse(op, &failure)
            }
        }
    }

    /// What a session was sending when it was lost may still be written to, or come to be, at any time: no
    /// other attempt has that name, and it is removed at the end.
    pub(super) fn doubt(&self, temp: &[u8], error: &Error) {
        if error.ends_session() {
            self.common.doubt(temp.to_vec());
        }
    }

    /// A name for what is sent now, which no other attempt of this run has.
    pub(super) fn new_temp(&self, file: &SinkFile) -> Vec<u8> {
        self.temp_of(file, None)
    }

    /// The same; or this name, which an attempt before had.
    pub(super) fn temp_of(&self, file: &SinkFile, again: Option<Vec<u8>>) -> Vec<u8> {
        let name = temp_name(&file.name, self.common.tag, self.common.number());
        let path = again.unwrap_or_else(|| self.common.tree.path(file.parent, &name));
        let temp = Temp { path: path.clone(), state: TempState::Partial, in_blocks: false };
        self.common.temps().insert(file.id, temp);
        path
    }

    /// A session that is of no use any more is closed.
    pub(super) fn see(&mut self, error: &Error) {
        self.common.note_silence(error);
        if error.wants_another_session() {
            self.line.close();
        }
    }

    /// Sends a file whole, and again where that may help. `before`: what was sent of it, and how that ended;
    /// `more`: another one follows.
    pub(super) fn send_whole(
        &mut self,
        file: &SinkFile,
        bytes: &[u8],
        mut before: Option<(Vec<u8>, Error)>,
        more: bool,
    ) -> Result<(), Failure> {
        let path = self.common.path(file);
        if let Some(failure) = self.common.not_begun(&path) {
            return Err(failure);
        }
        if self.common.in_place.is_some() {
            return self.write_whole_into(file, bytes);
        }
        panic_point("write", &String::from_utf8_lossy(&path));
        self.begins("write", &path);
        check(&self.common.server, &path, (&file.name, self.common.drops))?;
        self.ensure(file.parent)?;
        let mut summing = FileSumming::new(self.common.sum, file.size, false);
        self.common.meter.busy(Stage::SinkHost, || summing.update(bytes));
        let lanes = self.common.lanes.clone();
        // What is refused in blocks, in whatever way, goes at least once as it is.
        let mut in_blocks = before.is_some();
        let mut tries = Attempts::new(Step::File);
        loop {
            if let Some((_, error)) = &before {
                let pause = match in_blocks && !error.is_passing() {
                    _ if error.is_no_room() => None,
                    true => Some(Duration::ZERO),
                    false => self.common.retry.failed(&mut tries, error, &path, 0),
                };
                if !pause.is_some_and(|pause| self.common.retry.wait(pause)) {
                    return Err(self.common.failure(FailureKind::Write, &path, error));
                }
            }
            if let Err(error) = self.line.open() {
                // Nothing was said of it.
                self.see(&error);
                in_blocks = false;
                before = Some((before.map(|(temp, _)| temp).unwrap_or_default(), error));
                continue;
            }
            let connections = lanes.connections(file.id, file.size);
            let temp = self.new_temp(file);
            self.common.again.begins(file.id, 0);
            if connections.is_some() {
                self.common.set_in_blocks(file.id);
            }
            let sent = self.line.open().and_then(|session| {
                if let Some((before, _)) = before.as_ref().filter(|(before, _)| !before.is_empty()) {
                    let _ = session.remove(&[before])?;
                }
                let sending = Sending::begin(session, &lanes, (&temp, 0, file.size), connections);
                let mut sending = sending.inspect_err(|error| self.common.note_refusal(&temp, error))?;
                match sending.write(Ok(&mut *session), bytes) {
                    Ok(()) => {
                        self.common.network.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                        let hears_late = &self.common.hears_late;
                        let more = more && !hears_late.load(Ordering::Relaxed);
                        let stored = sending.stored(session, &temp, more);
                        hears_late.fetch_or(session.is_asked_nothing_ahead(), Ordering::Relaxed);
                        stored
                    }
                    Err(error) => Err(sending.broken_off(session, &temp, error)),
                }
            });
            let Err(error) = sent else {
                self.common.took();
                match (connections, before) {
                    (Some(_), _) => lanes.worked(),
                    (None, Some((_, refused))) if in_blocks => lanes.taken_otherwise(&refused),
                    (None, _) => {}
                }
                break;
            };
            in_blocks = connections.is_some();
            self.common.again.lost(file.id, file.size, &error);
            // Also what is removed before the next attempt: who still writes there may make it anew.
            match in_blocks {
                true => self.lose(file.id, &temp, &error),
                false => {
                    self.common.doubt(temp.clone());
                    self.see(&error);
                }
            }
            let error = if in_blocks { error } else { self.asked_of_room(file, error) };
            before = Some((temp, error));
        }
        self.common.set_temp(file.id, TempState::Stored(summing.finish()));
        Ok(())
    }

    fn look_up(&mut self, items: Vec<LookupItem>) -> Vec<(FileId, Result<Found, Failure>)> {
        let found = |(existing, seen)| Found { existing, seen, adopted: false, len: 0, begun: false };
        let nothing = found((Existing::Nothing, None));
        let mut results: Vec<(FileId, Option<Result<Found, Failure>>)> = Vec::new();
        let mut paths = Vec::new();
        for item in &items {
            let SinkFile { id, parent, name, .. } = &item.file;
            self.common.parts.note(*id, item.fingerprint);
            let path = self.common.path(&item.file);
            let ensured = check(&self.common.server, &path, (name, self.common.drops))
                .and_then(|()| self.ensure(*parent));
            let result = match ensured {
                Err(failure) => Some(Err(failure)),
                Ok(()) if self.common.tree.was_made(*parent) => Some(Ok(nothing)),
                Ok(()) => {
                    paths.push((results.len(), path));
                    None
                }
            };
            results.push((*id, result));
        }
        if let Some((_, path)) = paths.first() {
            self.begins("look", path);
            let asked: Vec<&[u8]> = paths.iter().map(|(_, path)| path.as_slice()).collect();
            let asked = self.line.facts_of(&asked);
            for (n, (at, path)) in paths.iter().enumerate() {
                let file = &items[*at].file;
                results[*at].1 = Some(match &asked {
                    Ok(asked) => {
                        let there = self.found_at((file.parent, &file.name), path, &asked[n], false);
                        let there = there.map(found);
                        there
                            .and_then(|found| self.holds_for_unchanged(&items[*at], path, (found, &asked[n])))
                    }
                    Err(error) => Err(self.common.failure(FailureKind::Open, path, error)),
                });
            }
        }
        let told = |(id, result): (FileId, Option<_>)| (id, result.unwrap_or(Ok(nothing)));
        results.into_iter().map(told).collect()
    }

    /// What was begun in place and not proved since is begun anew, whatever its size and time; and in place
    /// nothing counts as unchanged that was written for another entry.
    fn holds_for_unchanged(
        &mut self,
        item: &LookupItem,
        path: &[u8],
        (mut found, asked): (Found, &Asked),
    ) -> Result<Found, Failure> {
        let common = self.common.clone();
        let (Existing::File { size, mtime, .. }, Asked::Is(facts)) = (&mut found.existing, asked) else {
            return Ok(found);
        };
        let looks_unchanged = *size == item.fingerprint.size && mtime.secs == item.fingerprint.mtime.secs;
        if common.begun.is_unproved(&shown(&common.server, path)) {
            (*size, found.begun) = (u64::MAX, true);
            return Ok(found);
        }
        self.look_behind_links(&item.file, path, (facts, looks_unchanged), &mut found.existing)?;
        // What is copied anew is nobody's.
        let looks_unchanged = looks_unchanged
            && matches!(found.existing, Existing::File { size, .. } if size == item.fingerprint.size);
        let is_part = common.in_place.as_ref().is_some_and(|place| place.part.is_some());
        if looks_unchanged && !is_part && common.asks_times && !self.times_prove(item.file.parent) {
            if let Existing::File { size, .. } = &mut found.existing {
                *size = u64::MAX;
            }
            return Ok(found);
        }
        let id = item.file.id;
        let in_place = common.in_place.as_ref().filter(|_| looks_unchanged);
        if in_place.is_some_and(|place| place.is_written_by_another(id, facts)) {
            let why = "it is another name of a file that this copy wrote under a name of its own, whose bytes it has (without `in_place` \
                       each gets a file of its own)";
            let failure = common.say(FailureKind::Create, path, why);
            return Err(Failure { errno: rustix::io::Errno::NOTUNIQ.raw_os_error(), ..failure });
        }
        let file = &item.file;
        self.is_found_alone((id, file.parent, &file.name), path, (asked, looks_unchanged))?;
        Ok(found)
    }

    /// Files whose content is right get the mode that they should have.
    fn amend(&mut self, items: Vec<AmendItem>) -> Vec<(FileId, Result<Change, Failure>)> {
        let paths: Vec<Vec<u8>> = items.iter().map(|item| self.common.path(&item.file)).collect();
        let modes: Vec<(&[u8], u32)> = items
            .iter()
            .zip(&paths)
            .map(|(item, path)| (path.as_slice(), self.mode_of(&item.meta)))
            .collect();
        let set = self.line.again(|session| session.set_modes(&modes));
        let set = set.ok().flatten();
        let result = |(at, item): (usize, &AmendItem)| {
            let done = set.as_ref().is_some_and(|all| all[at].is_ok());
            self.common.lost.mode.fetch_add(u64::from(!done), Ordering::Relaxed);
            (item.file.id, Ok(if done { Change::MODE } else { Change::NONE }))
        };
        items.iter().enumerate().map(result).collect()
    }

    /// Without their owner setuid and setgid are never set.
    pub(super) fn mode_of(&self, meta: &Meta) -> u32 {
        meta.mode & 0o1777
    }

    pub(super) fn count_lost(&self, kept_mode: bool, kept_time: bool) {
        let lost = &self.common.lost;
        lost.mode.fetch_add(u64::from(!kept_mode), Ordering::Relaxed);
        lost.mtime.fetch_add(u64::from(!kept_time), Ordering::Relaxed);
    }

    /// Sets modes and times, as far as the server lets anybody: of which of them it says so, mode and time.
    pub(super) fn set_metadata(&mut self, all: &[(Vec<u8>, Meta)]) -> Vec<(bool, bool)> {
        self.set_metadata_and_look(all, &[]).0
    }

    /// The same; and what is at other paths behind that, where it could be asked for together.
    pub(super) fn set_metadata_and_look(
        &mut self,
        all: &[(Vec<u8>, Meta)],
        paths: &[Vec<u8>],
    ) -> (Vec<(bool, bool)>, Option<Vec<Asked>>) {
        let Some((first, _)) = all.first() else { return (Vec::new(), None) };
        self.begins("metadata", first);
        let modes: Vec<(&[u8], u32)> =
            all.iter().map(|(path, meta)| (path.as_slice(), self.mode_of(meta))).collect();
        let moment = |meta: &Meta| write_moment(Moment { secs: meta.mtime.secs, nanos: 0 }).ok();
        let moments: Vec<Option<String>> = all.iter().map(|(_, meta)| moment(meta)).collect();
        let times: Vec<(&[u8], &str)> = all
            .iter()
            .zip(&moments)
            .filter_map(|((path, _), moment)| Some((path.as_slice(), moment.as_deref()?)))
            .collect();
        let paths: Vec<&[u8]> = paths.iter().map(Vec::as_slice).collect();
        let together = match paths.is_empty() {
            true => Ok(None),
            false => self.line.again(|session| session.set_and_look(&modes, &times, &paths)),
        };
        let (modes, times, seen) = match together {
            Ok(Some(set)) => (Ok(Some(set.modes)), Ok(Some(set.times)), Some(set.seen)),
            Ok(None) => (
                self.line.again(|session| session.set_modes(&modes)),
                self.line.again(|session| session.set_times(&times)),
                None,
            ),
            // Whether the server is there is seen by what comes next.
            Err(_) => (Ok(None), Ok(None), None),
        };
        let setid = all.iter().filter(|(_, meta)| meta.mode & 0o6000 != 0).count() as u64;
        self.common.lost.setid.fetch_add(setid, Ordering::Relaxed);
        let kept = |set: Result<Option<Vec<Result<(), Error>>>, Error>| {
            let set = set.ok().flatten().unwrap_or_default();
            set.iter().map(Result::is_ok).collect::<Vec<_>>()
        };
        let (modes, times) = (kept(modes), kept(times));
        let mut times = times.into_iter();
        // A moment that cannot be said was not asked for.
        let told = |at: usize, times: &mut std::vec::IntoIter<bool>| {
            moments[at].is_some() && times.next().unwrap_or(false)
        };
        let kept = (0..all.len()).map(|at| (modes.get(at) == Some(&true), told(at, &mut times))).collect();
        (kept, seen)
    }

    /// Removes what was sent of a file.
    fn discard(&mut self, id: FileId) {
        if self.open.as_ref().is_some_and(|open| open.id == id) {
            self.abandon();
        }
        self.leave_home(id);
        if let Some(place) = &self.common.in_place {
            place.end(id);
        }
        let Some(Temp { path, state, .. }) = self.common.temps().remove(&id) else { return };
        let is_wrong = matches!(&state, TempState::Failed(gone) if gone.failure.kind == FailureKind::Digest);
        if !is_wrong && self.leave_part(id, &path) {
            return;
        }
        self.begins("remove", &path);
        match self.remove_part(&path) {
            Removed::Gone => self.common.parts.end(id),
            // The record names it until it is gone: removed in the end, or by the same command later.
            Removed::Stays | Removed::Busy => {
                self.common.parts.doubts(id);
                self.common.doubt(path);
            }
        }
    }

    /// Removes a file that is not whole.
    ///
    /// Once, and no more where the server was silent: a stop is not to wait for it file by file.
    fn remove_part(&mut self, path: &[u8]) -> Removed {
        if self.common.is_silent() {
            return Removed::Stays;
        }
        let remove = |writer: &mut Writer| {
            let removed = writer.line.open().and_then(|session| session.remove(&[path]));
            match &removed {
                Ok(_) => writer.common.well(),
                Err(error) => {
                    writer.line.close();
                    writer.common.note_silence(error);
                }
            }
            removed
        };
        let mut removed = remove(self);
        if removed.is_err() && !self.common.is_silent() {
            // The session may have been over for long.
            removed = remove(self);
        }
        // Where nothing of it was made there is nothing to remove, in whatever words that is refused.
        let refused = match removed {
            Ok(mut all) => match all.pop() {
                Some(Err(error)) => Some(error),
                _ => None,
            },
            Err(_) => return Removed::Stays,
        };
        let asked = self.line.open().and_then(|session| session.facts(path));
        let Some(refused) = refused else {
            return match asked {
                Ok(Asked::Is(_)) if !haul_mutant::removed("ftp-removals-are-looked-at") => {
                    self.common.stands(path);
                    Removed::Stays
                }
                _ => Removed::Gone,
            };
        };
        match asked {
            Ok(Asked::Is(_)) => self.common.stands(path),
            Ok(Asked::Not(_)) if !is_busy(&refused) => return Removed::Gone,
            Ok(Asked::Untold(_)) if refused.is_unavailable() => return Removed::Gone,
            _ => {}
        }
        match is_busy(&refused) {
            true => Removed::Busy,
            false => Removed::Stays,
        }
    }

    fn publish_batch(&mut self, batch: &Batch<CommitItem>) {
        while let Some(taken) = batch.take() {
            let items = &batch.items[taken.range.clone()];
            if self.common.ends.is_over() {
                // Nobody hears of it any more.
                let refused = |item: &CommitItem| {
                    let path = item.publish.as_ref().map(|publish| self.common.path(&publish.file));
                    let why = "the run is over";
                    Err(self.common.say(FailureKind::Network, &path.unwrap_or_default(), why))
                };
                let results = items.iter().map(refused).collect();
                batch.end(taken, results, |results| committed(batch, results));
                continue;
            }
            let publish: Vec<&Publish> = items.iter().filter_map(|item| item.publish.as_ref()).collect();
            let mut published = self.publish(&publish).into_iter();
            let result = |item: &CommitItem| match &item.publish {
                Some(_) => published.next().unwrap_or(Ok(())),
                None => Ok(()),
            };
            let results = items.iter().map(result).collect();
            batch.end(taken, results, |results| committed(batch, results));
        }
    }
}

fn committed(batch: &Batch<CommitItem>, results: Vec<Result<(), Failure>>) -> SinkDone {
    let ids = batch.items.iter().map(|item| item.id);
    SinkDone::Commit { results: ids.zip(results).collect(), lost: Vec::new() }
}

/// What became of a temporary that was to be removed.
enum Removed {
    Gone,
    /// It is there, or may be: that is told at the end, if it is so then.
    Stays,
    /// The server has it in use: it is removed at the end.
    Busy,
}

/// The server has it, and cannot remove it now.
pub(super) fn is_busy(error: &Error) -> bool {
    let Error::Refused { code: code @ 400..500, text, .. } = error else { return false };
    // There are servers that say so of what is not there.
    let is_gone = *code == 450 && says_gone(text);
    !is_gone && !haul_mutant::removed("ftp-what-is-busy-is-named")
}
