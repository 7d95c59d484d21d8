//! A file of several objects on its way to a server: from its first object to the server's word that it has
//! the last, in one session.
//!
//! In: objects in their order. Out: what became of each.
//! Invariants: as in `writer`; what broke off is never taken for stored.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use haul_core::ids::FileId;
use haul_core::stage::Stage;
use haul_core::transfer::op::{SinkDone, SinkFile, Took};
use haul_core::wire::{Failure, FailureKind};
use haul_ftp::Error;

use super::onward::Found;
use super::queues::{Temp, TempState, Write};
use super::sending::{Open, Sending};
use super::standing::Step;
use super::sums::Summing;
use super::tree::check;
use super::writer::Writer;
use crate::ftp::line::{may_help, pause};
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
        if let Err(failure) = &result {
            let _ = self.open.take_if(|open| open.id == file.id);
            self.common.set_temp(file.id, TempState::Failed(failure.clone()));
        }
        if result.is_err() || offset + u64::from(len) == file.size {
            self.leave_home(file.id);
        }
        let took = result.is_ok().then_some(Took { time, cached: false });
        owed.settle(Ok(SinkDone::Write { id: file.id, offset, len, buffer, took, result }));
    }

    /// The session is not in the middle of this file any more. It may be another one's by now, before which
    /// objects of this one still wait that come to nothing.
    pub(super) fn leave_home(&mut self, id: FileId) {
        let _ = self.common.lock().home[self.index].take_if(|home| *home == id);
        self.common.ready.notify_all();
    }

    fn write_object(&mut self, file: &SinkFile, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        if let Some(Temp { state: TempState::Failed(failure), .. }) = self.common.temp(file.id) {
            return Err(failure);
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
            return Err(common.say(FailureKind::Write, &path, &why));
        };
        common.meter.busy(Stage::SinkHost, || open.summing.update(bytes));
        open.at += bytes.len() as u64;
        let (again, rest) = match &mut open.standing {
            None => (Vec::new(), bytes),
            Some(standing) => match common.meter.busy(Stage::SinkHost, || standing.compare(bytes)) {
                Step::More => {
                    self.open = Some(open);
                    return Ok(());
                }
                Step::Lost => return Err(self.stands_otherwise(file.id, standing, &path)),
                Step::GoesOn { at, again, rest } => {
                    self.go_on(file, &path, &mut open, at)?;
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
                    if let Some(safe) = sending.safe() {
                        common.parts.mark(file.id, safe);
                    }
                }
                Err(error) => {
                    self.open = Some(open);
                    return Err(self.broke_off(&path, error));
                }
            }
        }
        if !whole {
            self.open = Some(open);
            return Ok(());
        }
        let Open { sending, summing, temp, .. } = open;
        if let Some(sending) = sending {
            self.hear_whole(file, &path, &temp, sending)?;
        }
        self.common.set_temp(file.id, TempState::Stored(summing.finish()));
        Ok(())
    }

    /// All of a file is sent: the server's word that it has it.
    fn hear_whole(
        &mut self,
        file: &SinkFile,
        path: &[u8],
        temp: &[u8],
        sending: Sending,
    ) -> Result<(), Failure> {
        let session =
            self.line.open().map_err(|error| self.common.failure(FailureKind::Write, path, &error))?;
        let in_blocks = sending.is_in_blocks();
        if let Err(error) = sending.stored(session, temp) {
            return Err(match in_blocks {
                true => self.lost_in_blocks(file.id, temp, path, &error),
                false => {
                    self.doubt(temp, &error);
                    self.see(&error);
                    self.common.failure(FailureKind::Write, path, &error)
                }
            });
        }
        if in_blocks {
            self.common.lanes.worked();
        }
        Ok(())
    }

    /// A large file came to nothing in blocks: it is sent once more, as it is, whatever the server says of
    /// that, unless it has no room.
    fn lost_in_blocks(&mut self, id: FileId, temp: &[u8], path: &[u8], error: &Error) -> Failure {
        self.lose(id, temp, error);
        self.line.close();
        let failure = self.common.failure(FailureKind::Write, path, error);
        let kind = if error.is_no_room() { failure.kind } else { FailureKind::Network };
        Failure { kind, ..failure }
    }

    /// Has the server begin to take a file; or finds what stands there of it, which is compared first.
    fn begin(&mut self, file: &SinkFile, path: &[u8]) -> Result<(), Failure> {
        check(&self.common.server, path, &file.name)?;
        self.ensure(file.parent)?;
        let summing = Summing::new(self.common.sum);
        let open = match self.take_up(file, path)? {
            Found::Stands(temp, standing) => {
                Open { id: file.id, at: 0, temp, sending: None, standing: Some(standing), summing }
            }
            Found::Nothing(again) => {
                let (temp, sending) = self.begin_anew(file, path, again)?;
                Open { id: file.id, at: 0, temp, sending: Some(sending), standing: None, summing }
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
        for attempt in 1.. {
            let temp = self.temp_of(file, again.take());
            let (common, lanes) = (self.common.clone(), self.common.lanes.clone());
            let connections = lanes.connections(file.id, file.size);
            if connections.is_some() {
                common.set_in_blocks(file.id);
            }
            common.parts.begins(file.id, &temp, connections.is_some());
            let begin = |session| Sending::begin(session, &lanes, (&temp, 0, file.size), connections);
            let error = match self.line.open().and_then(begin) {
                Ok(sending) => {
                    if let (None, Some(refused)) = (connections, in_blocks) {
                        lanes.taken_otherwise(&refused);
                    }
                    common.parts.begun(file.id);
                    return Ok((temp, sending));
                }
                Err(error) => error,
            };
            common.parts.let_go(file.id);
            if connections.is_some() && !error.is_no_room() {
                self.lose(file.id, &temp, &error);
                in_blocks = Some(error);
                continue;
            }
            self.doubt(&temp, &error);
            self.see(&error);
            if error.is_no_room() || !may_help(&error, attempt) {
                return Err(common.failure(FailureKind::Create, path, &error));
            }
            thread::sleep(pause(attempt));
        }
        Err(self.common.say(FailureKind::Create, path, "it was tried too often"))
    }

    /// The connection of the file that is being sent broke.
    fn broke_off(&mut self, path: &[u8], error: Error) -> Failure {
        let Some(open) = self.open.take() else {
            return self.common.failure(FailureKind::Write, path, &error);
        };
        let Some(sending) = open.sending else {
            return self.common.failure(FailureKind::Write, path, &error);
        };
        if sending.is_in_blocks() {
            return self.lost_in_blocks(open.id, &open.temp, path, &error);
        }
        self.common.doubt(open.temp.clone());
        let error = match self.line.open() {
            Ok(session) => sending.broken_off(session, path, error),
            Err(_) => error,
        };
        // What it says next may be of that file.
        self.line.close();
        self.common.failure(FailureKind::Write, path, &error)
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
