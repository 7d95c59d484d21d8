//! One session that reads, and its thread.
//!
//! In: operations from the queues. Out: their completions. The session stays in the middle of a file from one
//! object to the next, as long as that follows.
//! Invariants: bytes are where the file has them: what a session that goes on in the middle gives is held
//! against what came before; a file's end is the one that was told, and the server says so.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use haul_core::entry::{Fingerprint, Meta};
use haul_core::ids::{FileId, Generation};
use haul_core::stage::Stage;
use haul_core::transfer::op::{BundleFile, BundleOk, Look, ReadOk, SourceDone, SourceOp};
use haul_core::wire::{Failure, FailureKind};
use haul_ftp::{Asked, Error, Facts, Incoming, Kind};

use super::blocks::Done;
use super::ends::AGAIN_LEN;
use super::line::Came;
use super::queues::{Common, Work, refuse};
use crate::SourceCompletion;
use crate::ftp::meta_of;
use crate::ftp::names::{SETTLES, same_facts};
use crate::ftp::session::{ATTEMPTS, Line, may_help, pause};
use crate::ftp::untold;
use crate::owed::panic_point;
use haul_base::buffer::Buffer;
use haul_base::digest;

/// A file that a session is in the middle of.
struct Open {
    id: FileId,
    /// The byte that comes next.
    at: u64,
    /// The server was asked to begin in the middle.
    goes_on: bool,
    incoming: Incoming,
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
    pub(super) line: Line,
    open: Option<Open>,
    /// What came of files in blocks, the last one last.
    pub(super) done: Vec<Done>,
    /// The server was silent at the same so often, in another mode.
    pub(super) silent_before: u32,
    counted: bool,
    /// In the middle of its work the server took the session no more, and has others.
    left_out: bool,
}

impl Reader {
    pub(super) fn new(common: Arc<Common>, index: usize) -> Reader {
        let line = Line::new(common.server.clone(), common.settings.clone());
        let (open, done) = (None, Vec::new());
        Reader { common, index, line, open, done, silent_before: 0, counted: false, left_out: false }
    }

    pub(super) fn run(mut self) {
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

    /// Opens the session, if it is not open. Where the server takes no further one, the work is left to the
    /// sessions that it did take: then this one is over, and nothing comes back. Any other error is met, and
    /// told, when the work begins.
    fn connect(&mut self, work: Work) -> Option<Work> {
        for attempt in 1.. {
            match self.line.open() {
                Ok(_) if self.counted => {}
                Ok(_) => {
                    self.counted = true;
                    self.common.lock().open[self.index] = true;
                    self.common.network.connections.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) if error.is_full() => {
                    if self.common.lock().has_others(self.index) {
                        self.leave_to_others(work);
                        return None;
                    }
                    if attempt < ATTEMPTS {
                        thread::sleep(pause(attempt));
                        continue;
                    }
                }
                Err(_) => {}
            }
            break;
        }
        Some(work)
    }

    /// The session is over, and the others have its work.
    fn leave_to_others(&mut self, work: Work) {
        self.common.lock().refuse(self.index, work);
        self.common.network.connections.fetch_sub(u16::from(self.counted), Ordering::Relaxed);
        self.common.ready.notify_all();
    }

    /// The next operation that is this session's: what goes on where it is, for which it waits a little; then
    /// what lies on it, then anything else.
    fn next(&mut self) -> Option<Work> {
        let until = Instant::now() + HOLD;
        let mut queues = self.common.lock();
        loop {
            if queues.ends {
                return None;
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
            let own = queues.objects[self.index].pop_front();
            if let Some(work) = own.or_else(|| queues.other.pop_front()) {
                return Some(work);
            }
            queues = self.common.ready.wait(queues).unwrap_or_else(PoisonError::into_inner);
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
                let result = self.facts(id).map(|(told, now)| look(&told, &now));
                SourceCompletion { done: SourceDone::Look { id, generation, result }, buffer }
            }
            SourceOp::Refresh { id, generation } => {
                self.begins("look", id);
                let result = self.facts(id).and_then(|(_, now)| self.renew(id, &now));
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

    /// What was told of a file, and what is told of it now.
    fn facts(&mut self, id: FileId) -> Result<(Facts, Facts), Failure> {
        let (path, told) = self.known(id)?;
        self.leave();
        match self.line.again(|session| session.facts(&path)) {
            Ok(Asked::Is(now)) => Ok((told, now)),
            Ok(asked) => Err(untold(&self.common.server, &path, &asked)),
            Err(error) => {
                self.left_out = error.is_full() && self.common.lock().has_others(self.index);
                Err(self.common.failure(FailureKind::Read, &path, &error))
            }
        }
    }

    pub(super) fn known(&self, id: FileId) -> Result<(Vec<u8>, Facts), Failure> {
        let gone = || self.common.say(FailureKind::Vanished, b"", "nothing is known of it");
        self.common.names.look(id).ok_or_else(gone)
    }

    /// A file is another than it was announced as.
    fn renew(&self, id: FileId, now: &Facts) -> Result<(Fingerprint, Meta, Duration), Failure> {
        if now.kind != Some(Kind::File) || now.size.is_none() || now.modify.is_none() || now.is_symlink() {
            let (path, _) = self.known(id)?;
            return Err(self.common.say(FailureKind::Changed, &path, "it is no file any more"));
        }
        self.common.names.renew(id, now);
        Ok((self.common.names.fingerprint(now), meta_of(now, false), SETTLES))
    }

    /// The session is in the middle of this file, and this comes next.
    pub(super) fn is_open_at(&self, id: FileId, offset: u64) -> bool {
        self.open.as_ref().is_some_and(|open| (open.id, open.at) == (id, offset))
    }

    /// Leaves the file that the session is in the middle of.
    pub(super) fn leave(&mut self) {
        let Some(open) = self.open.take() else { return };
        let left = self.line.open().and_then(|session| session.give_up(open.incoming));
        if left.is_err() || open.goes_on {
            self.line.close();
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
            let failure = self.common.say(FailureKind::Read, b"", "internal error: a read without a buffer");
            return (Err(failure), None, None);
        };
        let path = match self.known(id) {
            Ok((path, _)) => path,
            Err(failure) => return (Err(failure), Some(buffer), None),
        };
        panic_point("read", &String::from_utf8_lossy(&path));
        let (offset, len, tail) = part;
        let begun = Instant::now();
        let room = &mut buffer.as_mut_slice()[..len as usize];
        if let Err(failure) = self.fill_again((id, generation), &path, (offset, tail), room) {
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

    /// Fills `room` with what the file has from `offset` on, over another session where the first was lost.
    fn fill_again(
        &mut self,
        file: (FileId, Generation),
        path: &[u8],
        (offset, tail): (u64, bool),
        room: &mut [u8],
    ) -> Result<(), Failure> {
        let before = std::mem::take(&mut self.silent_before);
        for attempt in 1 + before.. {
            let error = match self.fill(file, path, (offset, tail), room) {
                Ok(Filled::Whole) => return Ok(()),
                Ok(Filled::Short(len)) => {
                    let why = format!("the server's copy ends after {} bytes", offset + len);
                    return Err(self.common.say(FailureKind::Changed, path, &why));
                }
                Ok(Filled::Differs) => {
                    let why = format!(
                        "what the server gives from byte {offset} on does not follow what it gave before"
                    );
                    return Err(self.common.say(FailureKind::Changed, path, &why));
                }
                Ok(Filled::Longer) => {
                    let why = "the server gives more bytes than it says the file has";
                    return Err(self.common.say(FailureKind::Changed, path, why));
                }
                Err(error) => error,
            };
            self.open = None;
            if error.ends_session() {
                self.line.close();
            }
            self.left_out = error.is_full() && self.common.lock().has_others(self.index);
            if self.left_out {
                return Err(self.common.failure(FailureKind::Read, path, &error));
            }
            if error.is_unavailable() {
                return Err(self.common.failure(FailureKind::Open, path, &error));
            }
            if !may_help(&error, attempt) || self.common.lock().ends {
                return Err(self.common.failure(FailureKind::Read, path, &error));
            }
            thread::sleep(pause(attempt));
        }
        unreachable!("the last attempt returns")
    }

    fn fill(
        &mut self,
        (id, generation): (FileId, Generation),
        path: &[u8],
        (offset, tail): (u64, bool),
        room: &mut [u8],
    ) -> Result<Filled, Error> {
        let goes_on = self.open.as_ref().is_some_and(|open| (open.id, open.at) == (id, offset));
        if !goes_on {
            self.leave();
            match self.begin_at((id, generation), path, offset)? {
                Some((incoming, goes_on)) => self.open = Some(Open { id, at: offset, goes_on, incoming }),
                None => return Ok(Filled::Differs),
            }
        }
        let Some(open) = &mut self.open else { unreachable!("just opened") };
        let len = open.incoming.fill(room)?;
        open.at += len as u64;
        self.common.network.bytes.fetch_add(len as u64, Ordering::Relaxed);
        let whole = len == room.len();
        if whole && !tail {
            let at = offset + len as u64;
            if !self.common.ends.agree(id, generation, at, room) {
                self.leave();
                return Ok(Filled::Differs);
            }
            return Ok(Filled::Whole);
        }
        // Its end must be where it was said to be, and the server must say so.
        let more = whole && open.incoming.fill(&mut [0])? > 0;
        let Some(Open { incoming, goes_on, .. }) = self.open.take() else { unreachable!("it is open") };
        let session = self.line.open()?;
        let ended = if more { session.give_up(incoming) } else { session.finish(incoming, path) };
        if goes_on {
            // The offset must not be taken for the next file's.
            self.line.close();
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
        (id, generation): (FileId, Generation),
        path: &[u8],
        offset: u64,
    ) -> Result<Option<(Incoming, bool)>, Error> {
        let known = self.common.ends.before(id, generation, offset).filter(|_| offset > 0);
        let start = known.as_ref().map_or(0, |known| known.at - known.len as u64);
        let begun = self.line.open()?.begin(path, start);
        if begun.is_err() && start > 0 {
            self.line.close();
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
            self.common.network.bytes.fetch_add(len as u64, Ordering::Relaxed);
            tail.extend_from_slice(&buffer[..len]);
            tail.drain(..tail.len().saturating_sub(AGAIN_LEN));
            let mut differs = len < want || checks.take().is_some_and(|known| !known.is(&buffer[..len]));
            if at == offset {
                differs |= !self.common.ends.agree(id, generation, at, &tail);
            }
            if differs {
                let left = self.line.open()?.give_up(incoming);
                if start > 0 {
                    self.line.close();
                }
                return left.map(|()| None);
            }
        }
        Ok(Some((incoming, start > 0)))
    }

    /// Reads small files whole, and looks at each again after all of them were read.
    pub(super) fn read_bundle(
        &mut self,
        files: Vec<BundleFile>,
        buffer: Option<Buffer>,
        came: Came,
    ) -> SourceCompletion {
        let Some(mut buffer) = buffer else {
            let text = "internal error: a bundle without a buffer";
            let failure = Failure { kind: FailureKind::Read, errno: 0, text: text.into() };
            return SourceCompletion { done: refuse(SourceOp::ReadBundle { files }, &failure), buffer: None };
        };
        let mut at = 0;
        let Came { files: mut here, facts: mut told } = came;
        // Where the payload of each lies, and what was told of it.
        let mut read: Vec<(BundleFile, Result<(usize, Vec<u8>, Facts), Failure>)> = Vec::new();
        for (n, file) in files.into_iter().enumerate() {
            self.begins("read", file.id);
            let len = file.size as usize;
            let room = at..at + len;
            at += len;
            let is_here = std::mem::take(here.get_mut(n).unwrap_or(&mut false));
            if !is_here {
                told = None;
            }
            let result = self.known(file.id).and_then(|(path, told)| {
                if is_here {
                    return Ok((room.start, path, told));
                }
                let begun = Instant::now();
                // Also of one without a byte: what a server says of a length is held against what it gives.
                self.fill_again(
                    (file.id, file.generation),
                    &path,
                    (0, true),
                    &mut buffer.as_mut_slice()[room.clone()],
                )?;
                self.common.meter.add_busy(Stage::SourceStorage, begun.elapsed());
                Ok((room.start, path, told))
            });
            if self.left_out {
                // All of it is read by somebody else.
                let failure = self.common.say(FailureKind::Read, b"", "the session is over");
                let (files, buffer) = (vec![file], Some(buffer));
                return SourceCompletion { done: refuse(SourceOp::ReadBundle { files }, &failure), buffer };
            }
            read.push((file, result));
        }
        let paths: Vec<&[u8]> =
            read.iter().filter_map(|(_, result)| Some(result.as_ref().ok()?.1.as_slice())).collect();
        let asked = match told {
            // One for each file, also of what is not known any more.
            Some(told) => {
                let all = told.into_iter().zip(&read);
                Ok(all.filter(|(_, (_, result))| result.is_ok()).map(|(asked, _)| asked).collect())
            }
            _ if paths.is_empty() => Ok(Vec::new()),
            _ => self.line.again(|session| session.facts_of(&paths)),
        };
        let (mut asked, lost) = match asked {
            Ok(asked) => (asked.into_iter(), None),
            Err(error) => {
                self.left_out = error.is_full() && self.common.lock().has_others(self.index);
                (Vec::new().into_iter(), Some(error))
            }
        };
        let (mut items, mut end) = (Vec::with_capacity(read.len()), 0);
        for (file, result) in read {
            let result = result.and_then(|(start, path, told)| {
                let now = match (asked.next(), &lost) {
                    (Some(Asked::Is(now)), _) => now,
                    (Some(asked), _) => return Err(untold(&self.common.server, &path, &asked)),
                    (None, Some(error)) => {
                        return Err(self.common.failure(FailureKind::Read, &path, error));
                    }
                    (None, None) => return Err(self.common.say(FailureKind::Read, &path, "no answer")),
                };
                if !same_facts(&told, &now) {
                    return Ok(BundleOk { root: [0; 32], look: Look::Changed });
                }
                // What failed or changed leaves no gap.
                let len = file.size as usize;
                buffer.as_mut_slice().copy_within(start..start + len, end);
                let (common, payload) = (&self.common, &buffer.as_slice()[end..end + len]);
                let root = common.meter.busy(Stage::SourceHost, || digest::root(common.kind, payload));
                end += len;
                Ok(BundleOk { root, look: Look::Same })
            });
            items.push((file, result));
        }
        // A buffer is as long as what is in it; one that is to be filled again stays as long as it was.
        if !self.left_out {
            buffer.truncate(end);
        }
        let done = SourceDone::ReadBundle { buffer: buffer.id(), items };
        SourceCompletion { done, buffer: Some(buffer) }
    }
}

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
