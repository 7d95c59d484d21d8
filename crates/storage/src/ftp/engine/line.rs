//! A session reads small files in a line: each is asked for before the last one came, and so is what is told
//! of it behind.
//!
//! In: bundles, files of one object, and looks, from the queue as long as there is room in the line. Out:
//! their completions, in the same order.
//! Invariants: what was asked for is taken in its order, or the session is over; what did not come so is
//! left to be read as it is, with all of the line behind that is not lost.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Instant;

use haul_core::ids::FileId;
use haul_core::stage::Stage;
use haul_core::transfer::op::{ReadOk, SourceDone, SourceOp};
use haul_ftp::{Asked, COMMANDS_LEN_MAX, Error, Facts, Wanted};

use super::came::Came;
use super::queues::{Queues, SITE, Work};
use super::reader::{Reader, look};
use crate::SourceCompletion;
use crate::ftp::names::Told;
use haul_base::digest;

/// Bytes of files that are asked for and did not come yet: what a session gets in a round trip, on most ways.
const LINE_LEN: u64 = 8 << 20;
/// Longest file that goes into a line.
const FILE_LEN_MAX: u64 = 4 << 20;
/// What a command is longer than its path.
const VERB_LEN: usize = 8;

/// What was at the front when the session was lost, what of it came, and why.
type Lost = (Work, Came, Error);

/// Something in the line.
struct Lined {
    work: Work,
    /// What is asked for: of a bundle all files.
    files: Vec<(FileId, Vec<u8>, u64)>,
    told: Facts,
    begun: Instant,
}

impl Lined {
    fn len(&self) -> u64 {
        self.files.iter().map(|(_, _, len)| len).sum()
    }

    fn commands_len(&self) -> usize {
        // Of each file and of its facts.
        self.files.iter().map(|(_, path, _)| 2 * (path.len() + VERB_LEN)).sum()
    }

    fn wanted(&self) -> Vec<Wanted<'_>> {
        let files = self.files.iter().map(|(_, path, _)| Wanted::File(path));
        let facts = self.files.iter().map(|(_, path, _)| Wanted::Facts(path));
        match self.work.op {
            SourceOp::ReadBundle { .. } => files.chain(facts).collect(),
            SourceOp::Look { .. } => facts.collect(),
            _ => files.collect(),
        }
    }
}

impl Reader {
    /// Whether it can be the first in a line.
    pub(super) fn can_be_lined_up(&mut self, work: &Work) -> bool {
        // A session that is not in a line is as fast with one question.
        let is_worth_it = match work.op {
            SourceOp::Look { .. } => self.lines.open(SITE).is_ok_and(|session| session.is_ready_for_a_line()),
            _ => true,
        };
        is_worth_it && self.line_of(work).is_some_and(|(_, commands)| commands <= COMMANDS_LEN_MAX)
    }

    /// How many bytes it has, and its commands, if it may be in a line.
    fn line_of(&self, work: &Work) -> Option<(u64, usize)> {
        // Whoever asks so is given all of a file.
        if !self.common.ways.is_on() || self.common.names.part().is_some() {
            return None;
        }
        let name = |id| self.common.names.look(id).map(|Told { path, .. }| 2 * (path.len() + VERB_LEN));
        match &work.op {
            SourceOp::ReadBundle { files } if work.buffer.is_some() => {
                let commands: Option<usize> = files.iter().map(|file| name(file.id)).sum();
                Some((files.iter().map(|file| u64::from(file.size)).sum(), commands?))
            }
            SourceOp::Read { id, generation, offset: 0, len, tail: true, .. }
                if work.buffer.is_some()
                    && u64::from(*len) <= FILE_LEN_MAX
                    && self.common.ways.spoiled(*id, *generation).is_none()
                    && !self.done.iter().any(|done| done.is_plain(*id, *generation)) =>
            {
                Some((u64::from(*len), name(*id)?))
            }
            SourceOp::Look { id, .. } => Some((0, name(*id)?)),
            _ => None,
        }
    }

    /// What else goes into the line behind so much: of this session's files, or a bundle that nobody else
    /// waits for.
    fn next_in_line(&self, (len, commands): (u64, usize)) -> Option<Work> {
        let mut queues = self.common.lock();
        let fits = |work: &Work| {
            self.line_of(work).is_some_and(|(more, further)| {
                len + more <= LINE_LEN && commands + further <= COMMANDS_LEN_MAX && !self.is_odd(work)
            })
        };
        if let Some(work) = queues.objects[self.index].front() {
            return if fits(work) { queues.objects[self.index].pop_front() } else { None };
        }
        let is_idle =
            |other: &usize| *other != self.index && queues.busy[*other].is_none() && queues.open[*other];
        let idle = (0..queues.busy.len()).filter(is_idle).count();
        let Queues { other, .. } = &mut *queues;
        let may = other.len() > idle && other.front().is_some_and(fits);
        if may { other.pop_front() } else { None }
    }

    /// A path has a byte that the server may have to be asked about, which nobody can while others come.
    fn is_odd(&self, work: &Work) -> bool {
        let odd = |id: FileId| self.common.names.look(id).is_none_or(|told| told.path.contains(&0xff));
        match &work.op {
            SourceOp::ReadBundle { files } => files.iter().any(|file| odd(file.id)),
            SourceOp::Read { id, .. } | SourceOp::Look { id, .. } => odd(*id),
            _ => true,
        }
    }

    fn lined(&self, work: Work) -> Result<Lined, Work> {
        let ids: Vec<(FileId, u64)> = match &work.op {
            SourceOp::ReadBundle { files } => {
                files.iter().map(|file| (file.id, u64::from(file.size))).collect()
            }
            SourceOp::Read { id, len, .. } => vec![(*id, u64::from(*len))],
            SourceOp::Look { id, .. } => vec![(*id, 0)],
            _ => Vec::new(),
        };
        let (mut files, mut told) = (Vec::with_capacity(ids.len()), Facts::default());
        for (id, len) in ids {
            let Some(Told { path, facts, .. }) = self.common.names.look(id) else { return Err(work) };
            files.push((id, path, len));
            told = facts;
        }
        match files.is_empty() {
            true => Err(work),
            false => Ok(Lined { work, files, told, begun: Instant::now() }),
        }
    }

    /// Reads in a line, from `first` on, as long as there is something for it. What comes back is to be read
    /// as it is, in this order.
    pub(super) fn read_in_line(&mut self, first: Work) -> VecDeque<(Work, Came)> {
        self.leave();
        let (mut line, mut later): (VecDeque<Lined>, VecDeque<(Work, Came)>) = Default::default();
        let mut next = Some(first);
        loop {
            while later.is_empty() {
                let behind = line.iter().fold((0, 0), |(len, commands), lined| {
                    (len + lined.len(), commands + lined.commands_len())
                });
                let Some(work) = next.take().or_else(|| self.next_in_line(behind)) else { break };
                let lined = match self.lined(work) {
                    Ok(lined) => lined,
                    Err(work) => {
                        later.push_back((work, Came::default()));
                        break;
                    }
                };
                let sent = self.lines.open(SITE).and_then(|session| session.line_up(&lined.wanted()));
                if let Err(error) = sent {
                    // What was lined up before it is lost with the session.
                    line.push_back(lined);
                    let Some(front) = line.pop_front() else { break };
                    later.push_back((front.work, Came::default()));
                    self.lose(&error, &mut line);
                    return later;
                }
                line.push_back(lined);
            }
            let Some(front) = line.pop_front() else { return later };
            if self.common.lock().ends {
                // Nobody waits for any of it.
                self.lines.close(SITE);
                later.push_back((front.work, Came::default()));
                line.drain(..).for_each(drop);
                return VecDeque::new();
            }
            match self.take_lined(front) {
                Ok(None) => {}
                Ok(Some(left)) => later.push_back(left),
                Err(lost) => {
                    let (work, came, error) = *lost;
                    later.push_back((work, came));
                    self.lose(&error, &mut line);
                    return later;
                }
            }
        }
    }

    /// The session is over, and what was in its line goes back to where it came from.
    fn lose(&mut self, error: &Error, line: &mut VecDeque<Lined>) {
        self.silent_before = u32::from(error.is_silence());
        self.common.ways.note(error);
        self.lines.close(SITE);
        self.give_back(line.drain(..).map(|lined| lined.work).collect());
    }

    /// Puts work back to the front of the queue.
    pub(super) fn give_back(&self, all: Vec<Work>) {
        let mut queues = self.common.lock();
        for work in all.into_iter().rev() {
            match work.op {
                SourceOp::Read { .. } | SourceOp::Look { .. } => {
                    queues.objects[self.index].push_front(work);
                }
                _ => queues.other.push_front(work),
            }
        }
        drop(queues);
        self.common.ready.notify_all();
    }

    /// Takes what is first in the line, and answers it. `Some`: it did not come, or not all of it, and
    /// nothing is wrong with the line.
    fn take_lined(&mut self, lined: Lined) -> Result<Option<(Work, Came)>, Box<Lost>> {
        let Lined { mut work, files, told, begun } = lined;
        let last = files.last().expect("a line has no gaps").0;
        self.begins(if let SourceOp::Look { .. } = work.op { "look" } else { "read" }, last);
        let mut came = Came::default();
        // It is opened; should it be lost, each of these says so.
        let session = match self.lines.open(SITE) {
            Ok(session) => session,
            Err(error) => return Err(Box::new((work, came, error))),
        };
        let from = Instant::now();
        if let Some(buffer) = &mut work.buffer {
            let mut room = buffer.as_mut_slice();
            for (_, path, len) in &files {
                let (own, rest) = room.split_at_mut(*len as usize);
                room = rest;
                let taken = session.next_file(path, own);
                came.files.push(taken.is_ok());
                match taken {
                    Ok(()) => drop(self.common.network.bytes.fetch_add(*len, Ordering::Relaxed)),
                    Err(error) if session.is_broken() => return Err(Box::new((work, came, error))),
                    Err(error) => self.common.ways.note(&error),
                }
            }
        }
        if let SourceOp::ReadBundle { .. } | SourceOp::Look { .. } = work.op {
            let mut facts = Vec::with_capacity(files.len());
            for (_, path, _) in &files {
                match session.next_facts(path) {
                    Ok(asked) => facts.push(asked),
                    Err(error) => return Err(Box::new((work, came, error))),
                }
            }
            came.facts = Some(facts);
        }
        self.common.meter.add_busy(Stage::SourceStorage, from.elapsed());
        self.lines.heard(SITE);
        if came.files.contains(&true) {
            self.common.ways.used();
        }
        if came.files.contains(&false) {
            return Ok(Some((work, came)));
        }
        let Work { op, buffer, owed } = work;
        let (done, buffer) = match (op, buffer, came.facts.as_deref()) {
            (SourceOp::ReadBundle { files }, buffer, _) => {
                let answer = self.read_bundle(files, buffer, came);
                (answer.done, answer.buffer)
            }
            (SourceOp::Look { id, generation }, buffer, Some([Asked::Is(now)])) => {
                (SourceDone::Look { id, generation, result: Ok(look(&told, now)) }, buffer)
            }
            (SourceOp::Read { id, generation, offset, len, target, whole, .. }, Some(buffer), _) => {
                let (common, payload) = (&self.common, &buffer.as_slice()[..len as usize]);
                let kind = common.kind;
                let cvs = common.meter.busy(Stage::SourceHost, || match whole {
                    true => vec![digest::root(kind, payload)],
                    false => digest::chaining_values(kind, offset, payload, true),
                });
                let result = Ok(ReadOk { buffer: buffer.id(), cvs });
                let service = Some(begun.elapsed());
                (SourceDone::Read { id, generation, offset, len, target, service, result }, Some(buffer))
            }
            // What is not there any more is told of in other words.
            (op, buffer, _) => return Ok(Some((Work { op, buffer, owed }, Came::default()))),
        };
        self.common.lock().busy[self.index] = None;
        owed.settle(Ok(SourceCompletion { done, buffer }));
        Ok(None)
    }
}
