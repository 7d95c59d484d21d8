//! One session that reads, and its thread.
//!
//! In: operations from the queues. Out: their completions. The session stays in the middle of a file from one
//! object to the next, as long as that follows.
//! Invariants: bytes are where the file has them: what a session that goes on in the middle gives is held
//! against what came before; a file's end is the one that was told, and the server says so.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use haul_core::entry::{Fingerprint, Meta};
use haul_core::ids::{FileId, Generation};
use haul_core::reliability::Step;
use haul_core::stage::Stage;
use haul_core::transfer::op::{Look, ReadOk, SourceDone, SourceOp};
use haul_core::wire::{Failure, FailureKind};
use haul_ftp::{Asked, Error, Facts, Incoming, Kind};

use super::came::{Came, Done, Moved};
use super::ends::AGAIN_LEN;
use super::parts::Needs;
use super::queues::{Common, SITE, Work, refuse};
use crate::SourceCompletion;
use crate::ftp::lines::{Again, Lines};
use crate::ftp::names::{Told, same_facts};
use crate::ftp::seats::Side;
use crate::ftp::session::{Next, Tries};
use crate::ftp::{is_listed, lacks, meta_of, parted, says_gone, untold};
use crate::owed::panic_point;
use haul_base::buffer::Buffer;
use haul_base::digest;

mod bundle;
mod connect;

/// A file that a session is in the middle of.
pub(super) struct Open {
    pub(super) id: FileId,
    /// The server that it comes from.
    pub(super) site: usize,
    /// The byte that comes next.
    pub(super) at: u64,
    /// The server was asked to begin in the middle.
    pub(super) goes_on: bool,
    pub(super) incoming: Incoming,
}

impl Open {
    fn goes_on_with(&self, work: &Work) -> bool {
        matches!(work.op, SourceOp::Read { id, offset, .. } if (id, offset) == (self.id, self.at))
    }
}

/// How long a session in the middle of a file waits for what follows there, before it leaves that for another
/// file: what the server has sent ahead would be lost.
pub(super) const HOLD: Duration = Duration::from_millis(200);

/// One session and its thread.
pub(super) struct Reader {
    pub(super) common: Arc<Common>,
    pub(super) index: usize,
    pub(super) lines: Lines,
    pub(super) open: Option<Open>,
    /// What came of files in blocks, the last one last.
    pub(super) done: Vec<Done>,
    /// The server was silent at the same so often, in another mode.
    pub(super) silent_before: u32,
    counted: bool,
    /// It could not be opened ahead of what it should read, which meets that.
    tried: bool,
    /// In the middle of its work the server took the session no more, and has others.
    pub(super) left_out: bool,
}

impl Reader {
    pub(super) fn new(common: Arc<Common>, index: usize) -> Reader {
        let wants = common.clone();
        let lines = Lines::new(&common.sites, Side::Readers, move || !wants.lock().ends);
        let (open, done) = (None, Vec::new());
        let (counted, tried, left_out) = (false, false, false);
        Reader { common, index, lines, open, done, silent_before: 0, counted, tried, left_out }
    }

    pub(super) fn run(mut self) {
        loop {
            self.run_on();
            if !self.comes_back() {
                return;
            }
        }
    }

    /// As long as something comes for it, and the server takes its session.
    fn run_on(&mut self) {
        while let Some(work) = self.next() {
            let Some(work) = self.unless_spoiled(work) else { continue };
            let Some(work) = self.connect(work) else { return };
            if self.comes_in_blocks(&work) {
                self.read_in_blocks(work);
                continue;
            }
            let mut all = match self.can_be_lined_up(&work) {
                true => self.read_in_line(work),
                false => VecDeque::from([(work, Came::default())]),
            };
            while let Some((Work { op, buffer, owed }, came)) = all.pop_front() {
                let again = op.clone();
                let answer = self.work(op, buffer, came);
                if self.left_out {
                    let rest = all.into_iter().map(|(work, _)| work).collect();
                    self.give_back(rest);
                    return self.leave_to_others(Work { op: again, buffer: answer.buffer, owed });
                }
                self.common.lock().busy[self.index] = None;
                owed.settle(Ok(answer));
            }
        }
    }

    /// The next operation that is this session's: what goes on where it is, for which it waits a little; then
    /// what lies on it, then what anybody can do, unless its server may not answer while others do. It takes
    /// that only when the session is open: meanwhile those that are open have it.
    fn next(&mut self) -> Option<Work> {
        let until = Instant::now() + HOLD;
        let mut queues = self.common.lock();
        loop {
            if queues.ends {
                return None;
            }
            if queues.to_ask[self.index] {
                drop(queues);
                self.tells_whether_there();
                queues = self.common.lock();
                queues.to_ask[self.index] = false;
                self.common.ready.notify_all();
                continue;
            }
            let hold = match &self.open {
                Some(open) => {
                    let own = &mut queues.objects[self.index];
                    if let Some(at) = own.iter().position(|work| open.goes_on_with(work)) {
                        return own.remove(at);
                    }
                    until.saturating_duration_since(Instant::now())
                }
                None => Duration::ZERO,
            };
            if hold > Duration::ZERO {
                let woken = self.common.ready.wait_timeout(queues, hold);
                queues = woken.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            if let Some(own) = queues.objects[self.index].pop_front() {
                return Some(own);
            }
            if !queues.other.is_empty() && self.is_silent() && queues.has_others(self.index) {
                queues.asking[self.index] = true;
                drop(queues);
                self.asks();
                queues = self.common.lock();
                queues.asking[self.index] = false;
                continue;
            }
            if self.counted || self.tried {
                if let Some(work) = queues.other.pop_front() {
                    return Some(work);
                }
            } else if !queues.other.is_empty() && queues.may_open(self.common.ways.is_near()) {
                queues.opening += 1;
                drop(queues);
                let goes_on = self.open_ahead();
                queues = self.common.lock();
                queues.opening -= 1;
                self.common.ready.notify_all();
                if !goes_on {
                    return None;
                }
                continue;
            }
            if self.lines.are_wanted() && !haul_mutant::removed("ftp-idle-readers-leave-their-session") {
                drop(queues);
                self.leave();
                self.lines.hand_over();
                queues = self.common.lock();
                continue;
            }
            // One that began in the middle of a file is over when it leaves that.
            let can_be_left = self.open.as_ref().is_none_or(|open| !open.goes_on);
            queues.idle[self.index] = can_be_left && self.lines.is_open(SITE);
            queues = self.common.ready.wait(queues).unwrap_or_else(PoisonError::into_inner);
            queues.idle[self.index] = false;
        }
    }

    /// `came`: what of it came already.
    fn work(&mut self, op: SourceOp, buffer: Option<Buffer>, came: Came) -> SourceCompletion {
        match op {
            SourceOp::Read { id, generation, offset, len, tail, whole, target } => {
                self.begins("read", id);
                let (result, buffer, service) =
                    self.read((id, generation), (offset, len, tail), whole, buffer);
                let done = SourceDone::Read { id, generation, offset, len, target, service, result };
                SourceCompletion { done, buffer }
            }
            SourceOp::ReadBundle { files } => self.read_bundle(files, buffer, came),
            SourceOp::Look { id, generation } => {
                self.begins("look", id);
                let result = self.facts(id).map(|facts| match facts {
                    Some((told, now)) => look(&told, &now),
                    None => Look::Changed,
                });
                SourceCompletion { done: SourceDone::Look { id, generation, result }, buffer }
            }
            SourceOp::Verify { id, generation, size, subtrees } => {
                self.begins("compare", id);
                let result = self.spot_check((id, generation), size, &subtrees);
                SourceCompletion { done: SourceDone::Verify { id, generation, result }, buffer }
            }
            SourceOp::Refresh { id, generation } => {
                self.begins("look", id);
                let result = self.refresh(id);
                SourceCompletion { done: SourceDone::Refresh { id, generation, result }, buffer }
            }
            // Answered where they are submitted.
            op => {
                let failure =
                    Failure { kind: FailureKind::Local, errno: 0, text: "nobody asks for it".into() };
                SourceCompletion { done: refuse(op, &failure), buffer }
            }
        }
    }

    pub(super) fn begins(&self, what: &'static str, id: FileId) {
        self.common.lock().busy[self.index] = Some((Instant::now(), what, id));
    }

    /// What was told of a file, and what is told of it now by the server that it comes from; `None`: from now
    /// on it comes from another one.
    fn facts(&mut self, id: FileId) -> Result<Option<(Facts, Facts)>, Failure> {
        let told = self.known(id)?;
        self.leave();
        let mut tries = Tries::new(Step::File, &self.common.sites, told.site);
        let common = self.common.clone();
        let over = |error: &Error, lost| common.leaves(self.index, error, lost);
        let wait = |pause| common.wait(pause);
        let asked = self.lines.again(&mut tries, &told.path, (&over, &wait), |s| s.facts(&told.path));
        let (mut why, mut failure) = match asked {
            Again::Done(Asked::Is(now)) => return Ok(Some((told.facts, now))),
            Again::Done(asked) => return Err(untold(common.sites.server(told.site), &told.path, &asked)),
            Again::Failed(error) => {
                self.left_out = over(&error, None);
                let failure = common.failure(told.site, FailureKind::Read, &told.path, &error);
                return Err(common.given_up(&tries, failure));
            }
            Again::Moves(to, error) => match self.move_file(id, &told, to) {
                Ok(_) => return Ok(None),
                Err((why, _)) => (why, common.failure(told.site, FailureKind::Read, &told.path, &error)),
            },
        };
        loop {
            match tries.failed(&common.sites, why, &told.path, 0) {
                Next::After(pause) if common.wait(pause) => {}
                Next::Site(_) => {}
                Next::After(_) | Next::Over => return Err(common.given_up(&tries, failure)),
            }
            (why, failure) = match self.move_file(id, &told, tries.site) {
                Ok(_) => return Ok(None),
                Err(failed) => failed,
            };
        }
    }

    /// What a file is known by from now on, wherever it comes from.
    fn refresh(&mut self, id: FileId) -> Result<(Fingerprint, Meta, Duration), Failure> {
        match self.facts(id)? {
            Some((before, now)) => {
                self.must_be_listed(id, &before, &now)?;
                self.renew(id, &now)
            }
            None => {
                let told = self.known(id)?;
                self.renew(id, &told.facts)
            }
        }
    }

    /// Facts of what seems to be another file are those of what the directory has under this very name: there
    /// are servers that leave out of a path what they cannot read, and show what is there then.
    fn must_be_listed(&mut self, id: FileId, before: &Facts, now: &Facts) -> Result<(), Failure> {
        let told = self.known(id)?;
        let is_another = before.unique.is_some() && before.unique != now.unique;
        let is_doubted = (before.unique.is_none() || now.unique.is_none())
            && told.path.split(|byte| *byte == b'/').any(crate::ftp::is_doubted);
        if !(is_another || is_doubted) {
            return Ok(());
        }
        let (dir, name) = parted(&told.path);
        let mut tries = Tries::new(Step::File, &self.common.sites, told.site);
        let common = self.common.clone();
        let over = |error: &Error, lost| common.leaves(self.index, error, lost);
        let wait = |pause| common.wait(pause);
        let listed = match self.lines.again(&mut tries, &told.path, (&over, &wait), |s| s.list(dir)) {
            Again::Done(listed) => listed,
            Again::Failed(error) | Again::Moves(_, error) => {
                self.left_out = over(&error, None);
                let failure = common.failure(told.site, FailureKind::Read, &told.path, &error);
                return Err(common.given_up(&tries, failure));
            }
        };
        match is_listed(&listed, name, now) {
            true => Ok(()),
            false => {
                let why =
                    "the server tells of another file under that path than its directory has under that name";
                Err(common.say(told.site, FailureKind::Read, &told.path, why))
            }
        }
    }

    pub(super) fn known(&self, id: FileId) -> Result<Told, Failure> {
        let gone = || self.common.say(0, FailureKind::Vanished, b"", "nothing is known of it");
        self.common.names.look(id).ok_or_else(gone)
    }

    /// A file is another than it was announced as.
    fn renew(&self, id: FileId, now: &Facts) -> Result<(Fingerprint, Meta, Duration), Failure> {
        if now.kind != Some(Kind::File) || now.size.is_none() || now.modify.is_none() || now.is_symlink() {
            let Told { path, site, .. } = self.known(id)?;
            return Err(self.common.say(site, FailureKind::Changed, &path, "it is no file any more"));
        }
        self.common.names.renew(id, now);
        let names = &self.common.names;
        Ok((names.fingerprint(now), meta_of(now, false), names.settles()))
    }

    /// The session is in the middle of this file, and this comes next.
    pub(super) fn is_open_at(&self, id: FileId, offset: u64) -> bool {
        self.open.as_ref().is_some_and(|open| (open.id, open.at) == (id, offset))
    }

    /// Leaves the file that the session is in the middle of.
    pub(super) fn leave(&mut self) {
        let Some(open) = self.open.take() else { return };
        let left = self.lines.open(open.site).and_then(|session| session.give_up(open.incoming));
        if left.is_err() || open.goes_on {
            self.lines.close(open.site);
        }
    }

    /// Reads one object, and again where that may help.
    fn read(
        &mut self,
        (id, generation): (FileId, Generation),
        part: (u64, u32, bool),
        whole: bool,
        buffer: Option<Buffer>,
    ) -> (Result<ReadOk, Failure>, Option<Buffer>, Option<Duration>) {
        let Some(mut buffer) = buffer else {
            let failure =
                self.common.say(0, FailureKind::Read, b"", "internal error: a read without a buffer");
            return (Err(failure), None, None);
        };
        match self.known(id) {
            Ok(told) => panic_point("read", &String::from_utf8_lossy(&told.path)),
            Err(failure) => return (Err(failure), Some(buffer), None),
        }
        let (offset, len, tail) = part;
        let begun = Instant::now();
        let room = &mut buffer.as_mut_slice()[..len as usize];
        if let Err(failure) = self.fill_again((id, generation), (offset, tail), room) {
            return (Err(failure), Some(buffer), None);
        }
        let service = begun.elapsed();
        self.common.meter.add_busy(Stage::SourceStorage, service);
        let payload = &buffer.as_slice()[..len as usize];
        let kind = self.common.kind;
        let cvs = self.common.meter.busy(Stage::SourceHost, || match whole {
            true => vec![digest::root(kind, payload)],
            false => digest::chaining_values(kind, offset, payload, tail),
        });
        (Ok(ReadOk { buffer: buffer.id(), cvs }), Some(buffer), Some(service))
    }

    /// Fills `room` with what the file has from `offset` on, over another session where the first was lost,
    /// and from another replica where the policy says so.
    fn fill_again(
        &mut self,
        file: (FileId, Generation),
        (offset, tail): (u64, bool),
        room: &mut [u8],
    ) -> Result<(), Failure> {
        let common = self.common.clone();
        let id = file.0;
        let mut told = self.known(id)?;
        // What was begun goes on where it is, as long as that goes.
        let begins = if offset == 0 { common.sites.instead_of(told.site) } else { told.site };
        let mut tries = Tries::new(Step::File, &common.sites, begins);
        tries.count(std::mem::take(&mut self.silent_before));
        let mut moves = begins != told.site;
        loop {
            let (why, failure) = if moves {
                match self.move_file(id, &told, tries.site) {
                    Ok(Moved::GoesOn) => {
                        (told, moves) = (self.known(id)?, false);
                        continue;
                    }
                    Ok(Moved::Anew(failure)) => return Err(failure),
                    Err(failed) => failed,
                }
            } else {
                let path = &told.path;
                let changed = |why: &str| Err(common.say(told.site, FailureKind::Changed, path, why));
                let error = match self.fill(file, &told, (offset, tail), room) {
                    Ok(Filled::Whole) => {
                        if common.sites.has_replicas() {
                            common.parts.add(id, file.1, told.site, (offset, room));
                        }
                        if tail {
                            common.sites.gave(told.site);
                        }
                        return Ok(());
                    }
                    Ok(Filled::Short(len)) => {
                        return changed(&format!("the server's copy ends after {} bytes", offset + len));
                    }
                    Ok(Filled::Differs) => {
                        return changed(&format!(
                            "what the server gives from byte {offset} on does not follow what came before"
                        ));
                    }
                    Ok(Filled::Longer) => {
                        return changed("the server gives more bytes than it says the file has");
                    }
                    Err(error) => error,
                };
                self.open = None;
                if error.wants_another_session() {
                    self.lines.close(told.site);
                }
                self.left_out = self.leaves(told.site, &error);
                let kind = if error.is_unavailable() { FailureKind::Open } else { FailureKind::Read };
                let failure = common.failure(told.site, kind, path, &error);
                if self.left_out {
                    return Err(failure);
                }
                (self.lines.why(told.site, &error), failure)
            };
            match tries.failed(&common.sites, why, &told.path, offset) {
                Next::After(pause) if common.wait(pause) => {}
                Next::Site(_) => moves = true,
                Next::After(_) | Next::Over => {
                    let failure = if failure.kind == FailureKind::Open {
                        self.vanished(&told, failure)
                    } else {
                        failure
                    };
                    return Err(common.given_up(&tries, failure));
                }
            }
        }
    }

    /// What is said of a file that the server refused to give, by the number that it has for what is not
    /// there and for what may not be had: it vanished where the server, asked about it, says the same, and
    /// its directory, listed anew, does not have it; or where that is not listed and its words say that it is
    /// not there.
    fn vanished(&mut self, told: &Told, failure: Failure) -> Failure {
        if haul_mutant::removed("ftp-refused-files-are-looked-at") {
            return failure;
        }
        let asked = self.lines.open(told.site).and_then(|session| session.facts(&told.path));
        let Ok(Asked::Not(text)) = asked else { return failure };
        let (dir, name) = parted(&told.path);
        let listed = self.lines.open(told.site).and_then(|session| session.list(dir));
        let is_gone = match listed {
            Ok(listed) => lacks(&listed, name),
            Err(_) => says_gone(&text),
        };
        if is_gone { Failure { kind: FailureKind::Vanished, ..failure } } else { failure }
    }

    fn fill(
        &mut self,
        (id, generation): (FileId, Generation),
        told: &Told,
        (offset, tail): (u64, bool),
        room: &mut [u8],
    ) -> Result<Filled, Error> {
        let (path, site) = (&told.path, told.site);
        let goes_on = |open: &Open| (open.id, open.at, open.site) == (id, offset, site);
        if !self.open.as_ref().is_some_and(goes_on) {
            self.leave();
            match self.begin_at(told, (id, generation), offset)? {
                Some((incoming, goes_on)) => {
                    self.count();
                    self.open = Some(Open { id, site, at: offset, goes_on, incoming });
                }
                None => return Ok(Filled::Differs),
            }
        }
        let Some(open) = &mut self.open else { unreachable!("just opened") };
        let len = open.incoming.fill(room)?;
        open.at += len as u64;
        self.common.network.count(len);
        if len > 0 {
            self.lines.heard(site);
        }
        let whole = len == room.len();
        if whole && !tail {
            let at = offset + len as u64;
            if !self.common.ends.agree(id, generation, at, room) {
                self.leave();
                return Ok(Filled::Differs);
            }
            return Ok(Filled::Whole);
        }
        if self.common.names.is_cut(&told.facts) {
            // What follows is nobody's business, nor what the server says when it is left in the middle.
            if let Some(open) = self.open.take() {
                let _ = self.lines.open(site).and_then(|session| session.give_up(open.incoming));
            }
            self.lines.close(site);
            return Ok(if whole { Filled::Whole } else { Filled::Short(len as u64) });
        }
        // Its end must be where it was said to be, and the server must say so.
        let more = whole && open.incoming.fill(&mut [0])? > 0;
        let Some(Open { incoming, goes_on, .. }) = self.open.take() else { unreachable!("it is open") };
        let session = self.lines.open(site)?;
        let ended = if more { session.give_up(incoming) } else { session.finish(incoming, path) };
        if goes_on {
            // The offset must not be taken for the next file's.
            self.lines.close(site);
        }
        ended?;
        if more {
            return Ok(Filled::Longer);
        }
        Ok(if whole { Filled::Whole } else { Filled::Short(len as u64) })
    }

    /// Begins to read a file at `offset`. In the middle of it what is known to stand before is read too, and
    /// must be that, whichever session read it; what lies between is read and agreed on for those that come
    /// to it. `None`: it is not. A server may say that it goes on at an offset, and begin somewhere else.
    ///
    /// Whether the server was asked to begin in the middle comes with it: such an offset must not be taken
    /// for that of the next file.
    fn begin_at(
        &mut self,
        told: &Told,
        (id, generation): (FileId, Generation),
        offset: u64,
    ) -> Result<Option<(Incoming, bool)>, Error> {
        let (path, site, base) = (&told.path[..], told.site, self.common.names.base());
        match self.common.parts.needs(id, generation, site) {
            Needs::Nothing => {}
            Needs::These(parts) => {
                let begun = self.begin_shown(site, (id, generation), path, (parts, offset))?;
                if begun.is_none() {
                    self.common.sites.differed(site);
                }
                return Ok(begun.map(|incoming| (incoming, false)));
            }
            Needs::TooMuch => return Ok(None),
        }
        let known = self.common.ends.before(id, generation, offset).filter(|_| offset > 0);
        let start = known.as_ref().map_or(0, |known| known.at - known.len as u64);
        if known.is_none() && base > 0 && !haul_mutant::removed("ftp-parts-begin-where-they-should") {
            self.obeys_offsets(told)?;
        }
        let begun = self.lines.open(site)?.begin(path, base + start);
        if begun.is_err() && base + start > 0 {
            self.lines.close(site);
        }
        let mut incoming = begun?;
        let mut checks = known;
        let (mut at, mut tail, mut buffer) = (start, Vec::new(), vec![0; AGAIN_LEN]);
        while at < offset {
            // First what is known, by itself.
            let want = match &checks {
                Some(known) => known.len,
                None => (offset - at).min(AGAIN_LEN as u64) as usize,
            };
            let len = incoming.fill(&mut buffer[..want])?;
            at += len as u64;
            self.common.network.count(len);
            self.lines.heard(site);
            tail.extend_from_slice(&buffer[..len]);
            tail.drain(..tail.len().saturating_sub(AGAIN_LEN));
            let mut differs = len < want || checks.take().is_some_and(|known| !known.is(&buffer[..len]));
            if at == offset {
                differs |= !self.common.ends.agree(id, generation, at, &tail);
            }
            if differs {
                let left = self.lines.open(site)?.give_up(incoming);
                if base + start > 0 {
                    self.lines.close(site);
                }
                return left.map(|()| None);
            }
        }
        Ok(Some((incoming, base + start > 0)))
    }

    /// Nothing binds what comes of a part to its place: so the server is asked for the last byte of the file
    /// first, and gives that one and no more.
    ///
    /// # Errors
    /// It does not begin where it is told to.
    fn obeys_offsets(&mut self, told: &Told) -> Result<(), Error> {
        let Some(last) = told.facts.size.and_then(|size| size.checked_sub(1)) else { return Ok(()) };
        let session = self.lines.open(told.site)?;
        let mut incoming = session.begin(&told.path, last)?;
        let is_one = incoming.fill(&mut [0; 2])? == 1;
        let left = match is_one {
            true => session.finish(incoming, &told.path),
            false => session.give_up(incoming),
        };
        if left.is_err() || !is_one {
            self.lines.close(told.site);
        }
        left?;
        let why = "the server does not begin where it is told to, and no part of a file can be had of it";
        if is_one { Ok(()) } else { Err(Error::Broken { doing: "reading a part of a file", why }) }
    }
}

/// What the facts of a file behind its last read say of it.
pub(super) fn look(told: &Facts, now: &Facts) -> Look {
    if same_facts(told, now) { Look::Same } else { Look::Changed }
}

/// What came of a part of a file.
enum Filled {
    Whole,
    /// It ended after so many bytes, and the server says that this is all.
    Short(u64),
    /// Behind what the file should have there is more.
    Longer,
    /// It does not go on where the part before it ended.
    Differs,
}
