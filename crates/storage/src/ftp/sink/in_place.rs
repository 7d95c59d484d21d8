//! Files that are written into what stands at their names: no temporary, no rename.
//!
//! In: files whose bytes come in their order; for a part of one, where in it that goes. Out: what became of
//! each, compared with what the server has then.
//! Invariants: nothing is written through a symbolic link that the server tells of, into a directory or a
//! device, or into one file for two entries; nothing that stands at a name is ever removed. A part goes to
//! its place by a way that was tried on a file of its own first, so that a server that cuts off what stands
//! behind it, or appends, is found out before it has the user's. `ESTO` is that way where the server has it;
//! `REST` with `STOR`, which many servers take for a cut, only where the user asks for it.
//! Left out: blocks, for bytes that go in order leave a file that is shorter than its source where they end;
//! going on with what an interrupted run left, of which nothing is on record; locks, which FTP has not.

use std::sync::atomic::Ordering;

use haul_core::ids::FileId;
use haul_core::reliability::Step;
use haul_core::stage::Stage;
use haul_core::transfer::op::{Publish, SinkFile};
use haul_core::wire::{Failure, FailureKind};
use haul_ftp::{Asked, Error, Facts, Kind, Outgoing, Session, Way};
use rustix::io::Errno;

use super::placed::{InPlace, State};
use super::queues::Gone;
use super::sending::{Open, Sending};
use super::sums::FileSumming;
use super::tree::check;
use super::writer::Writer;
use crate::ftp::begun::Span;
use crate::ftp::line::Attempts;
use crate::ftp::{look, shown};
use crate::owed::panic_point;
use crate::sink::names::temp_name;
use crate::store::{DIRECTORY, NOT_IN_PLACE};
use haul_base::digest;

/// What a way is tried with, and what a server that keeps the rest of a file has afterwards.
const TRIED: &[u8] = b"haul";
const PUT: &[u8] = b"X";
/// There are servers that count in 32 bits, with a sign.
const REST_TRUSTED: u64 = 1 << 31;
/// So much of a file that was tried is read to see its end, where the server begins at no other byte.
const READ_THROUGH_MAX: u64 = 16 << 20;

impl Writer {
    /// An object of a file of several.
    pub(super) fn write_into(&mut self, file: &SinkFile, offset: u64, bytes: &[u8]) -> Result<(), Gone> {
        let common = self.common.clone();
        let Some(place) = &common.in_place else { unreachable!("it is asked only where there is one") };
        if let Some((failure, again)) = place.failed(file.id) {
            return Err(Gone { failure, again });
        }
        let result = self.write_next(place, file, (offset, bytes));
        if let Err(gone) = &result {
            place.set(file.id, State::Failed(gone.failure.clone(), gone.again));
        }
        result
    }

    fn write_next(
        &mut self,
        place: &InPlace,
        file: &SinkFile,
        (offset, bytes): (u64, &[u8]),
    ) -> Result<(), Gone> {
        let common = self.common.clone();
        let path = common.path(file);
        panic_point("write", &String::from_utf8_lossy(&path));
        self.begins("write", &path);
        if offset == 0 {
            self.abandon();
            self.await_turn(file.id, &path)?;
            self.may_go_into(place, file, &path)?;
            let begun = self.begin_into(place, &path, file.size);
            let sending = Some(Sending::Plain(begun.map_err(|error| self.lost(file, &path, (error, 0)))?));
            common.again.begins(file.id, 0);
            let summing = Some(FileSumming::new(common.sum, file.size, false));
            self.open = Some(Open {
                id: file.id,
                at: 0,
                temp: path.clone(),
                sending,
                standing: None,
                tail: None,
                summing,
            });
        }
        let Some(mut open) = self.open.take_if(|open| (open.id, open.at) == (file.id, offset)) else {
            let why = format!("it does not go on at byte {offset}");
            return Err(common.say(FailureKind::Write, &path, &why).into());
        };
        common.meter.busy(Stage::SinkHost, || open.summing.iter_mut().for_each(|it| it.update(bytes)));
        let Some(mut sending) = open.sending.take() else { unreachable!("it was begun") };
        if let Err(error) = sending.write(self.line.open(), bytes) {
            let error = match self.line.now() {
                Some(session) => sending.broken_off(session, &path, error),
                None => error,
            };
            // What it says next may be of that file.
            self.line.close();
            return Err(self.lost(file, &path, (error, open.at)));
        }
        common.network.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        open.at += bytes.len() as u64;
        if open.at < file.size {
            open.sending = Some(sending);
            self.open = Some(open);
            return Ok(());
        }
        let stored = self.line.open().and_then(|session| sending.stored(session, &path, false));
        // The offset must not be taken for that of the next file.
        if place.base() > 0 {
            self.line.close();
        }
        stored.map_err(|error| self.lost(file, &path, (error, open.at)))?;
        common.took();
        let sums = open.summing.and_then(FileSumming::finish);
        place.set(file.id, State::Stored(sums.and_then(|sums| sums.whole().cloned())));
        Ok(())
    }

    /// It came to nothing after so many bytes.
    fn lost(&mut self, file: &SinkFile, path: &[u8], (error, len): (Error, u64)) -> Gone {
        self.see(&error);
        let again = !error.is_no_room() && self.common.is_tried_again((file.id, path), (&error, len), None);
        Gone { failure: self.common.failure(FailureKind::Write, path, &error), again }
    }

    /// Sends a small file whole, and again where that may help.
    pub(super) fn write_whole_into(&mut self, file: &SinkFile, bytes: &[u8]) -> Result<(), Failure> {
        let common = self.common.clone();
        let Some(place) = &common.in_place else { unreachable!("it is asked only where there is one") };
        let path = common.path(file);
        panic_point("write", &String::from_utf8_lossy(&path));
        self.begins("write", &path);
        self.may_go_into(place, file, &path)?;
        let mut summing = FileSumming::new(common.sum, file.size, false);
        common.meter.busy(Stage::SinkHost, || summing.update(bytes));
        let mut tries = Attempts::new(Step::File);
        loop {
            common.again.begins(file.id, 0);
            let sent = self.begin_into(place, &path, file.size).and_then(|mut outgoing| {
                let session = self.line.open()?;
                match outgoing.write(bytes) {
                    Ok(()) => session.stored(outgoing, &path, false),
                    Err(error) => Err(session.broken_off(outgoing, &path, error)),
                }
            });
            let Err(error) = sent else { break };
            self.line.close();
            self.see(&error);
            common.again.lost(file.id, file.size, &error);
            let pause = match error.is_no_room() {
                true => None,
                false => common.retry.failed(&mut tries, &error, &path, 0),
            };
            if !pause.is_some_and(|pause| common.retry.wait(pause)) {
                return Err(common.failure(FailureKind::Write, &path, &error));
            }
        }
        if place.base() > 0 {
            self.line.close();
        }
        common.took();
        common.network.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let sums = summing.finish();
        place.set(file.id, State::Stored(sums.and_then(|sums| sums.whole().cloned())));
        Ok(())
    }

    /// What stands at the name may be written into, by a way that is known to keep the rest of it.
    fn may_go_into(&mut self, place: &InPlace, file: &SinkFile, path: &[u8]) -> Result<(), Failure> {
        let common = self.common.clone();
        check(&common.server, path, (&file.name, common.drops))?;
        self.ensure(file.parent)?;
        let refused = |errno: Errno, why: &str| {
            let failure = common.say(FailureKind::Create, path, why);
            Err(Failure { errno: errno.raw_os_error(), ..failure })
        };
        let asked = self.line.again(|session| look(session, path, true));
        let asked = asked.map_err(|error| common.failure(FailureKind::Open, path, &error))?;
        let stands = match asked {
            Asked::Is(facts) => match facts.kind {
                _ if facts.is_symlink() => return refused(Errno::EXIST, NOT_IN_PLACE),
                Some(Kind::Dir | Kind::CurrentDir | Kind::ParentDir) => {
                    return refused(Errno::ISDIR, DIRECTORY);
                }
                Some(Kind::File) | None => Some(facts),
                Some(_) => return refused(Errno::EXIST, NOT_IN_PLACE),
            },
            Asked::Not(_) => None,
            Asked::Untold(text) => {
                let why =
                    format!("the server does not tell what stands there, and it was left alone: {text}");
                return Err(common.say(FailureKind::Open, path, &why));
            }
        };
        let len = match (place.part, &stands) {
            (None, _) | (_, None) => Some(0),
            (Some(_), Some(facts)) => facts.size,
        };
        if place.is_of_another(file.id, stands.as_ref(), len.unwrap_or(0)) {
            let why = "it is another name of a file that this copy has under a name of its own, and what is written to the one \
                       would be in the other; it was left as it is (without `in_place` each gets a file of its own)";
            return refused(Errno::NOTUNIQ, why);
        }
        let Some(at) = place.part else { return Ok(()) };
        let Some(len) = len else {
            let why = "the server does not tell how long it is, so that nobody would see what is cut off it; leave `to` out";
            return Err(common.say(FailureKind::Open, path, why));
        };
        let before = place.lock().stood.get(&file.id).map_or(len, |stood| stood.len);
        if len < before {
            return Err(common.say(FailureKind::Write, path, &cut_off(before, len)));
        }
        let known = place.lock().way;
        let way = match known {
            Some(way) => way,
            None => self.find_way(place, file, path)?,
        };
        let why = match way {
            Way::Rest if at > len => {
                "of the server's ways only REST with STOR is left, and not all servers write behind the end of what stands \
                 there by it: nothing was written"
            }
            Way::Rest if at == 0 && len > file.size => {
                "of the server's ways only REST with STOR is left, and by that it writes to byte 0 of no file without \
                 cutting off what is behind: nothing was written"
            }
            Way::Esto | Way::Rest => return Ok(()),
        };
        Err(common.say(FailureKind::Create, path, why))
    }

    /// How parts go into files that stand there: tried on a file of its own beside this one.
    fn find_way(&mut self, place: &InPlace, file: &SinkFile, path: &[u8]) -> Result<Way, Failure> {
        let common = self.common.clone();
        let fail = |error: &Error| common.failure(FailureKind::Create, path, error);
        let can = self.line.again(|session| Ok((session.can_write_into(), session.can_go_on())));
        let way = match can.map_err(|error| fail(&error))? {
            (true, _) => Way::Esto,
            (false, true) if place.asked_for => Way::Rest,
            (false, can_go_on) => {
                let why = match can_go_on {
                    true => {
                        "the server has no ESTO, and REST with STOR, which it has, cuts off what stands behind at some \
                         servers: with `in_place` that is tried on a file of its own first, and used if it does not"
                    }
                    false => {
                        "the server has neither ESTO nor REST STREAM, and no part of a file can be written there; leave `to` out"
                    }
                };
                let failure = common.say(FailureKind::Create, path, why);
                return Err(Failure { errno: Errno::OPNOTSUPP.raw_os_error(), ..failure });
            }
        };
        if way == Way::Rest
            && place.base() >= REST_TRUSTED
            && common.sum.is_none()
            && !haul_mutant::removed("ftp-far-places-need-sums")
        {
            let why = "of the server's ways only REST with STOR is left, which cannot be tried at such a place, and there are servers \
                       that count places in 32 bits; it makes no sums that would show where the bytes went (CKSM): nothing was written";
            return Err(common.say(FailureKind::Create, path, why));
        }
        // At byte 0 there is nothing that `REST` says.
        if way == Way::Rest && place.base() == 0 {
            place.lock().way = Some(way);
            return Ok(way);
        }
        let name = temp_name(&file.name, common.tag, common.number());
        let trial = common.tree.path(file.parent, &name);
        let at = place.base().min(1);
        let tried = self.line.again(|session| try_way(session, &trial, way, at));
        let mut want = TRIED.to_vec();
        want[at as usize..][..PUT.len()].copy_from_slice(PUT);
        let far = place.base();
        let tries_far = way == Way::Esto
            && far > 1
            && tried.as_ref().is_ok_and(|has| *has == want)
            && !haul_mutant::removed("ftp-places-in-files-are-tried");
        // What it says next begins elsewhere.
        self.line.close();
        let tried_far = tries_far.then(|| self.line.again(|session| try_place(session, &trial, far)));
        self.line.close();
        let removed = self.line.open().and_then(|session| session.remove(&[&trial]));
        if !removed.is_ok_and(|all| all.iter().all(Result::is_ok)) {
            let gone = self.line.facts(&trial);
            if !matches!(gone, Ok(Asked::Not(_))) {
                common.leave(trial.clone());
            }
        }
        // The offset must not be taken for that of the next file.
        self.line.close();
        let why = match tried {
            Ok(_) if let Some(Err(error)) = &tried_far => {
                if error.is_passing() {
                    return Err(fail(error));
                }
                format!(
                    "{} could not be tried at byte {far} of a file of its own ({}), and nothing was written: {error}",
                    way.name(),
                    shown(&common.server, &trial)
                )
            }
            Ok(_) if let Some(Ok(false)) = tried_far => format!(
                "by {} the server does not write to byte {far} of a file, but elsewhere, as a file shows that was tried beside it: \
                 nothing was written",
                way.name()
            ),
            Ok(has) if has == want || haul_mutant::removed("ftp-ways-into-files-are-tried") => {
                place.lock().way = Some(way);
                return Ok(way);
            }
            Ok(has) => format!(
                "{} does not keep the rest of a file at this server: of a file of {} bytes, tried beside it, {} bytes were left, or others \
                 than they should be; nothing was written",
                way.name(),
                TRIED.len(),
                has.len()
            ),
            Err(error) if error.is_passing() => return Err(fail(&error)),
            Err(error) => format!(
                "{} could not be tried on a file of its own ({}), and nothing was written: {error}",
                way.name(),
                shown(&common.server, &trial)
            ),
        };
        Err(common.say(FailureKind::Create, path, &why))
    }

    fn begin_into(&mut self, place: &InPlace, path: &[u8], size: u64) -> Result<Outgoing, Error> {
        // Before the server hears of it.
        self.common.begun.begins(&shown(&self.common.server, path), span_of(place, size), size);
        let (at, way) = (place.base(), place.lock().way);
        let session = self.line.open()?;
        match (place.part, way) {
            (Some(_), Some(way)) => session.store_into(path, at, way),
            _ => session.store(path),
        }
    }

    /// Holds what was written against what the server has. Nothing gets another name.
    pub(super) fn publish_in_place(&mut self, all: &[&Publish]) -> Vec<Result<(), Failure>> {
        let common = self.common.clone();
        let Some(place) = &common.in_place else { unreachable!("it is asked only where there is one") };
        let mut results = Vec::with_capacity(all.len());
        let mut shared = Vec::new();
        for publish in all {
            let (id, path) = (publish.file.id, common.path(&publish.file));
            let state = place.lock().files.get(&id).cloned();
            let result = match state {
                Some(State::Stored(sum)) => {
                    let held = self.hold_against(place, publish, &path, sum, &mut shared);
                    if held.is_err() && place.part.is_none() {
                        self.spoil_time(&path);
                    }
                    match &held {
                        Ok(()) => place.end(id),
                        Err(_) => place.begins_anew(id),
                    }
                    held
                }
                Some(State::Failed(failure, _)) => Err(failure),
                None => Err(common.say(FailureKind::Publish, &path, "it was not sent whole")),
            };
            results.push(result);
        }
        for (publish, result) in all.iter().zip(&mut results) {
            let (id, path) = (publish.file.id, common.path(&publish.file));
            if result.is_ok()
                && let Some((_, other)) = shared.iter().find(|(with, _)| *with == id)
            {
                *result = Err(self.say_shared(&path, Some(other)));
            }
            match result {
                Ok(()) => {
                    common.begun.ends(&shown(&common.server, &path), span_of(place, publish.file.size));
                    common.forget_tries(id);
                    self.note_unproven(publish);
                }
                Err(failure) => place.set(id, State::Failed(failure.clone(), false)),
            }
        }
        results
    }

    fn say_shared(&self, path: &[u8], other: Option<&Vec<u8>>) -> Failure {
        let other = other.map(|other| shown(&self.common.server, other));
        let why = format!(
            "to the server it is one file with {} of this copy, and what was written to the one is in the other: both are to be \
             copied again (without `in_place`, and if the server makes no difference between their names, under other names)",
            other.as_deref().unwrap_or("another entry")
        );
        let failure = self.common.say(FailureKind::Create, path, &why);
        Failure { errno: Errno::NOTUNIQ.raw_os_error(), ..failure }
    }

    /// What is wrong there is not to look right to another run, also of another host.
    fn spoil_time(&mut self, path: &[u8]) {
        // No file of today has it.
        const NEVER: &str = "19700101000001";
        let _ = self.line.again(|session| session.set_times(&[(path, NEVER)]));
    }

    fn hold_against(
        &mut self,
        place: &InPlace,
        publish: &Publish,
        path: &[u8],
        sum: Option<Vec<u8>>,
        shared: &mut Vec<(FileId, Vec<u8>)>,
    ) -> Result<(), Failure> {
        let common = self.common.clone();
        let (base, size) = (place.base(), publish.file.size);
        let fail = |error: &Error| common.failure(FailureKind::Publish, path, error);
        self.begins("look", path);
        let asked = self.line.facts(path).map_err(|error| fail(&error))?;
        let stood = place.lock().stood.get(&publish.file.id).map(|stood| stood.len);
        let stood = stood.filter(|_| place.part.is_some());
        if let Asked::Is(facts) = &asked
            && let Some((with, other)) = place.is_shared(publish.file.id, path, facts)
        {
            shared.push((with, path.to_vec()));
            return Err(self.say_shared(path, other.as_ref()));
        }
        match asked {
            Asked::Is(Facts { size: Some(told), .. }) => {
                let before = stood.unwrap_or(0);
                if told < before {
                    return Err(common.say(FailureKind::Publish, path, &cut_off(before, told)));
                }
                let want = if size > 0 { before.max(base + size) } else { before };
                // What another program appends meanwhile is its own affair, but to a file that came whole.
                let is_right = if stood.is_some() { told >= want } else { told == size };
                if !is_right {
                    let why =
                        format!("the server said that it took all of it, and has {told} of {want} bytes");
                    return Err(common.say(FailureKind::Digest, path, &why));
                }
            }
            Asked::Not(text) => {
                let why = format!("the server said that it took it, and does not have it: {text}");
                return Err(common.say(FailureKind::Digest, path, &why));
            }
            Asked::Is(_) | Asked::Untold(_) => common.told.no_size.store(true, Ordering::Relaxed),
        }
        self.hold_against_sum(path, (base, size), sum)?;
        if let Some((kind, root)) = publish.verify {
            self.begins("read back", path);
            let read = self.line.again(|session| {
                let mut hasher = digest::Hasher::new(kind, 0);
                let mut incoming = session.begin(path, base)?;
                let mut buffer = vec![0; 256 * 1024];
                let mut left = size;
                while left > 0 {
                    let want = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    match incoming.read(&mut buffer[..want])? {
                        0 => break,
                        len => {
                            hasher.update(&buffer[..len]);
                            left -= len as u64;
                        }
                    }
                }
                // What follows is nobody's business.
                session.give_up(incoming)?;
                Ok(hasher.root())
            });
            self.line.close();
            match read {
                Ok(read) if read == root => {}
                Ok(_) => {
                    let why = "what the server gives back is not what was sent";
                    return Err(common.say(FailureKind::Digest, path, why));
                }
                Err(error) => return Err(common.failure(FailureKind::Digest, path, &error)),
            }
        }
        if place.part.is_none() {
            let kept = self.set_metadata(&[(path.to_vec(), publish.meta)]);
            let (mut mode, mut time) = kept.first().copied().unwrap_or((false, false));
            if let Ok(Asked::Is(facts)) = self.line.facts(path) {
                // What it tells counts, whatever it said before.
                mode = facts.unix_mode.map_or(mode, |told| told & 0o7777 == self.mode_of(&publish.meta));
                time = facts.modify.map_or(time, |told| told.secs == publish.meta.mtime.secs);
            }
            self.count_lost(mode, time);
        }
        Ok(())
    }

    /// The sum of what was written is that of what was sent, where the server makes one.
    fn hold_against_sum(
        &mut self,
        path: &[u8],
        part: (u64, u64),
        sent: Option<Vec<u8>>,
    ) -> Result<(), Failure> {
        let common = self.common.clone();
        let (Some(sum), Some(sent)) = (common.sum, sent) else { return Ok(()) };
        if part.1 == 0 {
            return Ok(());
        }
        self.begins("sum", path);
        let told = self.line.again(|session| session.part_sums(sum, path, &[part]));
        let told = told.map_err(|error| common.failure(FailureKind::Publish, path, &error))?.pop();
        match told {
            Some(Ok(told)) if told == sent || haul_mutant::removed("ftp-sums-in-place-are-compared") => {
                common.told.compared.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Some(Ok(_)) => {
                let why = format!("the {} of what the server keeps is not that of what was sent", sum.name());
                Err(common.say(FailureKind::Digest, path, &why))
            }
            Some(Err(error)) if !error.is_unknown() => {
                Err(common.failure(FailureKind::Publish, path, &error))
            }
            Some(Err(_)) | None => {
                common.told.uncompared.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        }
    }
}

/// What of a file is written for an entry.
fn span_of(place: &InPlace, len: u64) -> Span {
    place.part.map_or(Span::WHOLE, |at| Span::part(at, len))
}

fn cut_off(before: u64, now: u64) -> String {
    format!(
        "it had {before} bytes before this copy wrote into it, and has {now}: the server, or another program, cut it off"
    )
}

/// What a file of its own has, of a few bytes, when some were put into it by this way.
fn try_way(session: &mut Session, trial: &[u8], way: Way, at: u64) -> Result<Vec<u8>, Error> {
    let send = |outgoing: Result<Outgoing, Error>, session: &mut Session, bytes: &[u8]| {
        let mut outgoing = outgoing?;
        match outgoing.write(bytes) {
            Ok(()) => session.stored(outgoing, trial, false),
            Err(error) => Err(session.broken_off(outgoing, trial, error)),
        }
    };
    let first = session.store(trial);
    send(first, session, TRIED)?;
    let second = session.store_into(trial, at, way);
    send(second, session, PUT)?;
    let mut incoming = session.begin(trial, 0)?;
    let mut has = vec![0; 4 * TRIED.len()];
    let len = incoming.fill(&mut has)?;
    has.truncate(len);
    session.give_up(incoming)?;
    Ok(has)
}

/// Whether a byte that goes to such a place in a short file is there, and the file as long as it must be
/// then.
fn try_place(session: &mut Session, trial: &[u8], at: u64) -> Result<bool, Error> {
    let mut outgoing = session.store_into(trial, at, Way::Esto)?;
    match outgoing.write(PUT) {
        Ok(()) => session.stored(outgoing, trial, false)?,
        Err(error) => return Err(session.broken_off(outgoing, trial, error)),
    }
    let want = TRIED.len().max(usize::try_from(at).map_or(usize::MAX, |at| at.saturating_add(PUT.len())));
    let told = match session.facts(trial)? {
        Asked::Is(facts) => facts.size,
        _ => None,
    };
    if told.is_some_and(|told| told != want as u64) {
        return Ok(false);
    }
    // Without `REST` all before it is read too, or the length alone tells.
    let skipped = match session.can_go_on() {
        true => 0,
        false if at <= READ_THROUGH_MAX => at as usize,
        false => return Ok(told.is_some()),
    };
    let mut incoming = session.begin(trial, at - skipped as u64)?;
    let mut has = vec![0; skipped + PUT.len()];
    let len = incoming.fill(&mut has)?;
    session.give_up(incoming)?;
    Ok(len == has.len() && has[skipped..] == *PUT)
}
