//! What changes a file as a whole, in its turn among the client's writes.
//!
//! Invariant: while such a change is under way nothing of the client's writes to the file is.

use super::{Asked, Client, File, OpNo, Outcome, Piece, Where};
use crate::ids::Time;
use crate::volume::gather::{self, AppendNo};
use crate::volume::{Epoch, FileNo};

/// `EPROTO`: what was answered is no answer to what was asked.
pub(super) const NO_ANSWER: i32 = 71;

#[derive(Debug)]
pub(super) enum Turn<B> {
    Write(Piece<B>),
    Change(OpNo, Change<B>),
}

#[derive(Debug)]
pub(super) enum Change<B> {
    Truncate(u64),
    Append(AppendNo, u64, B),
    Remove,
}

impl<B> File<B> {
    /// Something was written directly up to there, under that epoch.
    pub(super) fn reaches(&mut self, epoch: Epoch, end: u64) {
        // What a newer one says counts at least as long.
        if self.ends.range(epoch..).any(|(_, other)| *other >= end) {
            return;
        }
        self.ends.retain(|other, other_end| *other > epoch || *other_end > end);
        self.ends.insert(epoch, end);
    }
}

impl<B: Clone> Client<B> {
    /// The application wants a file to end there: what is behind it is gone, and what was not there is zeros.
    pub fn truncate(&mut self, now: Time, op: OpNo, file: FileNo, len: u64) {
        self.now = self.now.max(now);
        self.file(file).turns.push_back(Turn::Change(op, Change::Truncate(len)));
        self.take_turns(file);
    }

    /// A file that no name leads to is removed, when nobody has it open any more.
    pub fn remove(&mut self, now: Time, op: OpNo, file: FileNo) {
        self.now = self.now.max(now);
        self.file(file).turns.push_back(Turn::Change(op, Change::Remove));
        self.take_turns(file);
    }

    /// The application puts bytes behind a file's end: behind what was gathered or appended, what a sync of
    /// anybody was for, and what it wrote itself. It comes to [`Outcome::Appended`], or to
    /// [`Outcome::Reserved`] if it lies in more than one stripe: then its pieces are to be written there.
    ///
    /// One whose connection broke is asked for again, and may be appended twice if the gatherer began another
    /// life, as long as its writer has not heard.
    pub fn append(&mut self, now: Time, op: OpNo, file: FileNo, len: u64, bytes: B) {
        self.now = self.now.max(now);
        let number = AppendNo(self.next);
        self.next += 1;
        let state = self.file(file);
        state.writes.insert(op);
        state.turns.push_back(Turn::Change(op, Change::Append(number, len, bytes)));
        self.take_turns(file);
    }

    /// Lets writes into their stripes, up to a change of the whole file; and begins that when they are over.
    pub(super) fn take_turns(&mut self, file: FileNo) {
        let is_there = self.gatherer.is_some();
        loop {
            let state = self.file(file);
            match state.turns.front() {
                None => return,
                Some(Turn::Change(_, change)) => {
                    if state.is_turning || state.in_stripes > 0 || !is_there {
                        return;
                    }
                    let request = match change {
                        Change::Truncate(len) => gather::Request::Truncate { file, len: *len },
                        Change::Remove => gather::Request::Remove { file },
                        Change::Append(number, len, bytes) => {
                            let (number, len, bytes) = (*number, *len, bytes.clone());
                            gather::Request::Append { file, number, len, bytes }
                        }
                    };
                    state.is_turning = true;
                    let appends = matches!(request, gather::Request::Append { .. });
                    for (epoch, end) in state.ends.clone().into_iter().filter(|_| appends) {
                        self.tell_gatherer(gather::Request::Grow { file, epoch, end });
                    }
                    return self.ask_gatherer(Asked::Change { file }, request);
                }
                Some(Turn::Write(_)) => {}
            }
            let Some(Turn::Write(piece)) = state.turns.pop_front() else {
                unreachable!("it was just looked at")
            };
            state.in_stripes += 1;
            let at = piece.offset / self.striping.stripe_size;
            self.stripe(file, at).queue.push_back(piece);
            self.go_on(file, at);
        }
    }

    /// The gatherer says what became of a change.
    pub(super) fn changed(&mut self, file: FileNo, answer: gather::Answer) {
        let life = self.gatherer;
        let outcome = match answer {
            gather::Answer::Appended { offset } => {
                self.file(file).gathered = life;
                Outcome::Appended { offset }
            }
            gather::Answer::Reserved { offset } => Outcome::Reserved { offset },
            gather::Answer::Removed => Outcome::Removed,
            gather::Answer::Gone => Outcome::Gone,
            gather::Answer::Truncated => Outcome::Truncated,
            gather::Answer::Failed(errno) => Outcome::Failed(Where::Gatherer, errno),
            _ => Outcome::Failed(Where::Gatherer, NO_ANSWER),
        };
        let state = self.file(file);
        state.is_turning = false;
        let Some(Turn::Change(op, _)) = state.turns.pop_front() else {
            unreachable!("what is under way is first")
        };
        state.writes.remove(&op);
        self.done(op, outcome);
        self.take_turns(file);
        self.begin_syncs(file);
    }
}
