//! A file of several objects on its way to a server: from its first object to the server's word that it has
//! the last, in one session.
//!
//! In: objects in their order. Out: what became of each.
//! Invariants: as in `writer`; what broke off is never taken for stored.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use haul_core::ids::FileId;
use haul_core::stage::Stage;
use haul_core::transfer::op::{SinkDone, SinkFile, Took};
use haul_core::wire::{Failure, FailureKind};
use haul_ftp::Error;

use super::onward::Found;
use super::queues::{Gone, Temp, TempState, Write, never_began};
use super::sending::{Open, Sending};
use super::standing::Step;
use super::sums::FileSumming;
use super::tree::check;
use super::writer::Writer;
use crate::owed::panic_point;

impl Writer {
    /// An object of a file of several.
    pub(super) fn write(&mut self, write: Write) {
        let Write { file, offset, len, buffer, payload, start, owed } = write;
        let begun = Instant::now();
        let bytes = &payload.as_slice()[start as usize..start as usize + len as usize];
        let result = self.write_object(&file, offset, bytes);
        let time = begun.elapsed();
        self.common.meter.add_busy(Stage::SinkStorage, time);
        drop(payload);
        if let Err(gone) = &result {
            let _ = self.open.take_if(|open| open.id == file.id);
            self.common.set_temp(file.id, TempState::Failed(gone.clone()));
        }
        if result.is_err() || offset + u64::from(len) == file.size {
            self.leave_home(file.id);
        }
        let took = result.is_ok().then_some(Took { time, cached: false });
        let again = result.as_ref().is_err_and(|gone| gone.again);
        let result = result.map_err(|gone| gone.failure);
        owed.settle(Ok(SinkDone::Write { id: file.id, offset, len, buffer, took, result, again }));
    }

    /// The session is not in the middle of this file any more. It may be another one's by now, before which
    /// objects of this one still wait that come to nothing.
    pub(super) fn leave_home(&mut self, id: FileId) {
        let _ = self.common.lock().home[self.index].take_if(|home| *home == id);
        self.common.ready.notify_all();
    }

    fn write_object(&mut self, file: &SinkFile, offset: u64, bytes: &[u8]) -> Result<(), Gone> {
        let goes_on = self.open.as_ref().is_some_and(|open| open.id == file.id && offset > 0);
        let is_new = offset == 0 || self.common.in_place.is_none() && !goes_on;
        if let Some(failure) = is_new.then(|| self.common.not_begun(&self.common.path(file))).flatten() {
            return Err(failure.into());
        }
        if self.common.in_place.is_some() {
            return self.write_into(file, offset, bytes);
        }
        if let Some(Temp { state: TempState::Failed(gone), .. }) = self.common.temp(file.id) {
            return Err(gone);
        }
        let path = self.common.path(file);
        panic_point("write", &String::from_utf8_lossy(&path));
        self.begins("write", &path);
        if offset == 0 {
            self.abandon();
            self.begin(file, &path)?;
        }
        let common = self.common.clone();
        let Some(mut open) = self.open.take_if(|open| (open.id, open.at) == (file.id, offset)) else {
            let why = format!("it does not go on at byte {offset}");
            return Err(common.say(FailureKind::Write, &path, &why).into());
        };
        open.at += bytes.len() as u64;
        let mut summing = open.summing.take();
        let sum =
            || common.meter.busy(Stage::SinkHost, || summing.iter_mut().for_each(|it| it.update(bytes)));
        let sent = beside(bytes.len(), sum, || self.send_object(file, &path, open, bytes));
        if let Some(open) = &mut self.open {
            open.summing = summing;
        } else if sent.is_ok() {
            let sums = summing.and_then(FileSumming::finish);
            common.set_temp(file.id, TempState::Stored(sums));
        }
        sent
    }

    /// Sends an object, or compares it with what stands there. The file stays open until it is whole.
    fn send_object(
        &mut self,
        file: &SinkFile,
        path: &[u8],
        mut open: Open,
        bytes: &[u8],
    ) -> Result<(), Gone> {
        let common = self.common.clone();
        let (again, rest) = match &mut open.standing {
            None => (Vec::new(), bytes),
            Some(standing) => match common.meter.busy(Stage::SinkHost, || standing.compare(bytes)) {
                Step::More => {
                    self.open = Some(open);
                    return Ok(());
                }
                Step::Lost => return Err(self.stands_otherwise(file.id, standing, path)),
                Step::GoesOn { at, again, rest } => {
                    self.go_on(file, path, &mut open, at)?;
                    (again, rest)
                }
            },
        };
        let whole = open.at == file.size;
        for part in [&again[..], rest] {
            let Some(sending) = open.sending.as_mut().filter(|_| !part.is_empty()) else { continue };
            match sending.write(self.line.open(), part) {
                Ok(()) => {
                    common.network.bytes.fetch_add(part.len() as u64, Ordering::Relaxed);
                    common.retry.heard();
                    if let Some(safe) = sending.safe() {
                        common.parts.mark(file.id, safe);
                    }
                }
                Err(error) => {
                    self.open = Some(open);
                    return Err(self.broke_off(file, path, error));
                }
            }
        }
        if !whole {
            self.open = Some(open);
            return Ok(());
        }
        let Open { sending, temp, tail, .. } = open;
        if let Some(sending) = sending {
            self.hear_whole(file, path, &temp, sending)?;
        }
        match tail {
            Some(tail) => self.look_at_tail(file.id, path, &temp, tail),
            None => Ok(()),
        }
    }

    /// All of a file is sent: the server's word that it has it.
    fn hear_whole(
        &mut self,
        file: &SinkFile,
        path: &[u8],
        temp: &[u8],
        sending: Sending,
    ) -> Result<(), Gone> {
        let in_blocks = sending.is_in_blocks();
        if let Err(error) = self.line.open().and_then(|session| sending.stored(session, temp, false)) {
            return Err(match in_blocks {
                true => self.lost_in_blocks((file.id, file.size), temp, path, &error),
                false => {
                    self.doubt(temp, &error);
                    self.see(&error);
                    let error = self.asked_of_room(file, error);
                    self.gone((file.id, path), (&error, file.size), temp)
                }
            });
        }
        self.common.took();
        if in_blocks {
            self.common.lanes.worked();
        }
        Ok(())
    }

    /// A large file came to nothing in blocks: it is sent once more, as it is, whatever the server says of
    /// that, unless it has no room. What may pass is for the policy to say.
    fn lost_in_blocks(&mut self, (id, len): (FileId, u64), temp: &[u8], path: &[u8], error: &Error) -> Gone {
        self.lose(id, temp, error);
        self.line.close();
        match error.is_passing() || error.is_no_room() {
            true => self.gone((id, path), (error, len), temp),
            false => {
                self.common.again.lost(id, len, error);
                Gone { failure: self.common.failure(FailureKind::Write, path, error), again: true }
            }
        }
    }

    /// A large file came to nothing after so many bytes.
    pub(super) fn gone(&self, (id, path): (FileId, &[u8]), (error, len): (&Error, u64), temp: &[u8]) -> Gone {
        let again = !error.is_no_room() && self.common.is_tried_again((id, path), (error, len), Some(temp));
        if again {
            self.common.again.lost(id, len, error);
        }
        Gone { failure: self.common.failure(FailureKind::Write, path, error), again }
    }

    /// Has the server begin to take a file; or finds what stands there of it, which is compared first.
    fn begin(&mut self, file: &SinkFile, path: &[u8]) -> Result<(), Failure> {
        check(&self.common.server, path, (&file.name, self.common.drops))?;
        self.ensure(file.parent)?;
        // It may have come to nothing before.
        self.await_turn(file.id, path)?;
        let in_parts = self.common.in_parts.are_summed();
        let summing = FileSumming::new(self.common.sum, file.size, in_parts);
        let open = match self.take_up(file, path)? {
            Found::Stands(temp, standing) => {
                let summing = Some(if standing.is_by_word() { summing.deciding() } else { summing });
                Open {
                    id: file.id,
                    at: 0,
                    temp,
                    sending: None,
                    standing: Some(standing),
                    tail: None,
                    summing,
                }
            }
            Found::Nothing(again) => {
                let (temp, sending) = self.begin_anew(file, path, again)?;
                let (sending, summing) = (Some(sending), Some(summing));
                Open { id: file.id, at: 0, temp, sending, standing: None, tail: None, summing }
            }
        };
        self.open = Some(open);
        Ok(())
    }

    /// Has the server begin to take a file from its first byte on. `again`: first under this name, which it
    /// had.
    pub(super) fn begin_anew(
        &mut self,
        file: &SinkFile,
        path: &[u8],
        mut again: Option<Vec<u8>>,
    ) -> Result<(Vec<u8>, Sending), Failure> {
        let mut in_blocks: Option<Error> = None;
        loop {
            self.await_turn(file.id, path)?;
            let before = self.common.sent_before(file.id);
            // Under a name that it had something may stand, whatever the server says next.
            let is_new = again.is_none();
            let temp = self.temp_of(file, again.take());
            let (common, lanes) = (self.common.clone(), self.common.lanes.clone());
            let connections = lanes.connections(file.id, file.size);
            if connections.is_some() {
                common.set_in_blocks(file.id);
            }
            common.parts.begins(file.id, &temp, connections.is_some());
            let (error, temp) = match self.line.open() {
                // Nothing was said of it.
                Err(error) => {
                    if is_new {
                        common.note_refusal(&temp, &error);
                    }
                    (error, None)
                }
                Ok(session) => {
                    let before: Vec<&[u8]> = before.iter().map(Vec::as_slice).collect();
                    let removed = match before.is_empty() {
                        true => Ok(()),
                        // They may still come to be, and are removed at the end, too.
                        false => session.remove(&before).map(|removed| {
                            let gone = before.iter().zip(&removed).filter(|(_, removed)| removed.is_ok());
                            gone.for_each(|(temp, _)| common.parts.gone(temp));
                        }),
                    };
                    let mut begin = || Sending::begin(session, &lanes, (&temp, 0, file.size), connections);
                    let note = |error: &Error| {
                        if is_new {
                            common.note_refusal(&temp, error);
                        }
                    };
                    match removed.and_then(|()| begin().inspect_err(note)) {
                        Ok(sending) => {
                            if let (None, Some(refused)) = (connections, in_blocks) {
                                lanes.taken_otherwise(&refused);
                            }
                            common.parts.begun(file.id);
                            common.again.begins(file.id, 0);
                            match connections {
                                None => common.took(),
                                // They are made with the first bytes.
                                Some(_) => common.well(),
                            }
                            return Ok((temp, sending));
                        }
                        Err(error) => (error, Some(temp)),
                    }
                }
            };
            // Where nothing was said of it, or it was refused, nothing of it came to be.
            match is_new && (temp.is_none() || never_began(&error)) {
                true => common.parts.let_go(file.id),
                false => common.parts.cast_off(file.id),
            }
            let lost_in_blocks = temp.as_deref().filter(|_| connections.is_some() && !error.is_no_room());
            match (lost_in_blocks, &temp) {
                (Some(temp), _) => self.lose(file.id, temp, &error),
                (None, Some(temp)) => {
                    self.doubt(temp, &error);
                    self.see(&error);
                }
                (None, None) => self.see(&error),
            }
            // What is refused in blocks is tried as it is at once.
            let goes_on = (lost_in_blocks.is_some() && !error.is_passing())
                || !error.is_no_room()
                    && common.is_tried_again((file.id, path), (&error, 0), temp.as_deref());
            if !goes_on {
                return Err(common.failure(FailureKind::Create, path, &error));
            }
            if lost_in_blocks.is_some() {
                in_blocks = Some(error);
            }
        }
    }

    /// Waits until a file that came to nothing before is to be tried again.
    pub(super) fn await_turn(&self, id: FileId, path: &[u8]) -> Result<(), Failure> {
        let wait = self.common.next_try(id).map(|next| next.saturating_duration_since(Instant::now()));
        match wait.is_none_or(|wait| self.common.retry.wait(wait)) {
            true => Ok(()),
            false => Err(self.common.say(FailureKind::Network, path, "nobody waits for another attempt")),
        }
    }

    /// The connection of the file that is being sent broke.
    fn broke_off(&mut self, file: &SinkFile, path: &[u8], error: Error) -> Gone {
        let Some(open) = self.open.take() else {
            return self.common.failure(FailureKind::Write, path, &error).into();
        };
        let Some(sending) = open.sending else {
            return self.common.failure(FailureKind::Write, path, &error).into();
        };
        if sending.is_in_blocks() {
            return self.lost_in_blocks((open.id, open.at), &open.temp, path, &error);
        }
        self.common.doubt(open.temp.clone());
        let error = match self.line.now() {
            Some(session) => sending.broken_off(session, path, error),
            None => error,
        };
        // What it says next may be of that file.
        self.line.close();
        self.see(&error);
        let error = self.asked_of_room(file, error);
        self.gone((open.id, path), (&error, open.at), &open.temp)
    }

    /// Sends no more of the file that it is in the middle of.
    pub(super) fn abandon(&mut self) {
        let Some(open) = self.open.take() else { return };
        let Open { sending, temp, .. } = open;
        let left = match sending {
            Some(Sending::Plain(outgoing)) => {
                self.line.open().and_then(|session| session.abandon(outgoing)).is_ok()
            }
            // What its connections still hold must not go into the next file.
            Some(Sending::Blocks { .. }) => false,
            // Nothing was said of it.
            None => return,
        };
        if !left {
            self.common.doubt(temp);
            self.line.close();
        }
    }
}

/// Does both: at the same time where there are so many bytes that a thread for it costs nothing beside.
fn beside<T>(bytes: usize, sum: impl FnOnce() + Send, send: impl FnOnce() -> T) -> T {
    /// A thread is begun in some 30 us, and as many bytes are summed in twenty times that.
    const WORTHWHILE: usize = 1 << 20;
    if bytes < WORTHWHILE {
        sum();
        return send();
    }
    // Whoever gets it does it, once.
    let sum = Mutex::new(Some(sum));
    let take = || sum.lock().unwrap_or_else(PoisonError::into_inner).take();
    std::thread::scope(|scope| {
        let begun = std::thread::Builder::new()
            .name("haul-ftp-sum".into())
            .spawn_scoped(scope, || take().into_iter().for_each(|sum| sum()));
        if begun.is_err() {
            take().into_iter().for_each(|sum| sum());
        }
        send()
    })
}
