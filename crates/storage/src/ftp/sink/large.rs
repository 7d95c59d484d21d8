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

use super::queues::{Temp, TempState, Write};
use super::sending::{Open, Sending};
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
        let Some(open) = self.open.as_mut().filter(|open| (open.id, open.at) == (file.id, offset)) else {
            let why = format!("it does not go on at byte {offset}");
            return Err(self.common.say(FailureKind::Write, &path, &why));
        };
        let written = open.sending.write(self.line.open(), bytes);
        self.common.meter.busy(Stage::SinkHost, || open.summing.update(bytes));
        open.at += bytes.len() as u64;
        let whole = open.at == file.size;
        match written {
            Ok(()) => self.common.network.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed),
            Err(error) => return Err(self.broke_off(&path, error)),
        };
        if !whole {
            return Ok(());
        }
        let Some(Open { sending, summing, temp, .. }) = self.open.take() else { return Ok(()) };
        let session =
            self.line.open().map_err(|error| self.common.failure(FailureKind::Write, &path, &error))?;
        let in_blocks = sending.is_in_blocks();
        if let Err(error) = sending.stored(session, &temp) {
            return Err(match in_blocks {
                true => self.lost_in_blocks(file.id, &temp, &path, &error),
                false => {
                    self.doubt(&temp, &error);
                    self.see(&error);
                    self.common.failure(FailureKind::Write, &path, &error)
                }
            });
        }
        if in_blocks {
            self.common.lanes.worked();
        }
        self.common.set_temp(file.id, TempState::Stored(summing.finish()));
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

    /// Has the server begin to take a file.
    fn begin(&mut self, file: &SinkFile, path: &[u8]) -> Result<(), Failure> {
        check(&self.common.server, path, &file.name)?;
        self.ensure(file.parent)?;
        let mut in_blocks: Option<Error> = None;
        for attempt in 1.. {
            let temp = self.new_temp(file);
            let lanes = self.common.lanes.clone();
            let connections = lanes.connections(file.id, file.size);
            if connections.is_some() {
                self.common.set_in_blocks(file.id);
            }
            let begin = |session| Sending::begin(session, &lanes, (&temp, file.size), connections);
            let error = match self.line.open().and_then(begin) {
                Ok(sending) => {
                    if let (None, Some(refused)) = (connections, in_blocks) {
                        lanes.taken_otherwise(&refused);
                    }
                    let summing = Summing::new(self.common.sum);
                    self.open = Some(Open { id: file.id, at: 0, temp, sending, summing });
                    break;
                }
                Err(error) => error,
            };
            if connections.is_some() && !error.is_no_room() {
                self.lose(file.id, &temp, &error);
                in_blocks = Some(error);
                continue;
            }
            self.doubt(&temp, &error);
            self.see(&error);
            if error.is_no_room() || !may_help(&error, attempt) {
                return Err(self.common.failure(FailureKind::Create, path, &error));
            }
            thread::sleep(pause(attempt));
        }
        Ok(())
    }

    /// The connection of the file that is being sent broke.
    fn broke_off(&mut self, path: &[u8], error: Error) -> Failure {
        let Some(open) = self.open.take() else {
            return self.common.failure(FailureKind::Write, path, &error);
        };
        if open.sending.is_in_blocks() {
            return self.lost_in_blocks(open.id, &open.temp, path, &error);
        }
        self.common.doubt(open.temp.clone());
        let error = match self.line.open() {
            Ok(session) => open.sending.broken_off(session, path, error),
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
            Sending::Plain(outgoing) => {
                self.line.open().and_then(|session| session.abandon(outgoing)).is_ok()
            }
            // What its connections still hold must not go into the next file.
            Sending::Blocks { .. } => false,
        };
        if !left {
            self.common.doubt(temp);
            self.line.close();
        }
    }
}
