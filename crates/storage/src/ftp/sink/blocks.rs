//! Small files that a session sends in blocks, in a line: each is said before the one before it is over.
//!
//! In: the bundles that they lie in. Out: what became of each.
//! Invariants: what was said in advance is begun in its order, or the session is over; what comes to nothing
//! so is sent again as to any other server, under another name, with all of the line behind.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Instant;

use haul_core::ids::{BufferId, FileId};
use haul_core::stage::Stage;
use haul_core::transfer::op::{BundleWrite, SinkDone, SinkFile};
use haul_core::wire::Failure;
use haul_ftp::Error;

use super::queues::{Batch, Taken, TempState};
use super::sums::{FileSumming, Sums};
use super::tree::check;
use super::writer::Writer;
use crate::owed::panic_point;

/// A file that was said, and is still to be begun.
struct Lined {
    taken: Taken,
    temp: Vec<u8>,
    path: Vec<u8>,
}

/// A file that goes by itself: what was sent of it before, and how that ended.
type Alone = (Taken, Option<(Vec<u8>, Error)>);

impl Writer {
    /// The small files of a bundle, in a line as far as they can be. A part of one has one file.
    pub(super) fn bundle(&mut self, batch: &Batch<BundleWrite>) {
        let mut line: VecDeque<Lined> = VecDeque::new();
        let mut alone: VecDeque<Alone> = VecDeque::new();
        loop {
            // What goes by itself goes when all that was said is over.
            while alone.is_empty() && line.len() < self.common.lanes.line_max() {
                let Some(taken) = batch.take() else { break };
                let file = &batch.items[taken.range.start].file;
                if let Some(failure) = self.common.not_begun(&self.common.path(file)) {
                    end(batch, taken, Err(failure));
                    continue;
                }
                match self.join(file, line.is_empty()) {
                    Ok(Some((temp, path))) => line.push_back(Lined { taken, temp, path }),
                    Ok(None) => alone.push_back((taken, None)),
                    Err(error) => {
                        alone.push_back((taken, None));
                        self.lose_line(&mut line, &mut alone, &error);
                    }
                }
            }
            let begun = Instant::now();
            if let Some(lined) = line.pop_front() {
                let item = &batch.items[lined.taken.range.start];
                match self.send_lined(item, &lined) {
                    Ok(sum) => {
                        self.common.lanes.worked();
                        self.common.set_temp(item.file.id, TempState::Stored(sum));
                        end(batch, lined.taken, Ok(()));
                    }
                    Err(error) => {
                        self.lose(item.file.id, &lined.temp, &error);
                        self.common.again.lost(item.file.id, item.file.size, &error);
                        if !self.line.is_open() {
                            self.lose_line(&mut line, &mut alone, &error);
                        }
                        alone.push_back((lined.taken, Some((lined.temp, error))));
                    }
                }
            } else if let Some((taken, before)) = alone.pop_front() {
                self.send_alone(batch, taken, before);
            } else {
                return;
            }
            self.common.meter.add_busy(Stage::SinkStorage, begun.elapsed());
        }
    }

    /// Says a file in advance: the names that it has meanwhile and afterwards. `None`: it does not go in a
    /// line, or not behind others. `first`: there are no others.
    fn join(&mut self, file: &SinkFile, first: bool) -> Result<Option<(Vec<u8>, Vec<u8>)>, Error> {
        let common = self.common.clone();
        let path = common.path(file);
        let connections = common.lanes.connections(file.id, file.size);
        // Behind others nothing else can be asked.
        let is_odd = !first && (path.contains(&0xff) || !common.tree.unknown(file.parent).is_empty());
        let Some(connections) = connections.filter(|_| !is_odd) else { return Ok(None) };
        if check(&common.server, &path, &file.name).is_err() || self.ensure(file.parent).is_err() {
            return Ok(None);
        }
        self.line.open()?;
        let temp = self.new_temp(file);
        common.set_in_blocks(file.id);
        let said = self.line.open().and_then(|session| {
            if first && common.lanes.is_unkept() {
                session.close_outlets();
            }
            session.line_up_stores(&[&temp], connections)
        });
        match said {
            Ok(()) => Ok(Some((temp, path))),
            Err(error) => {
                common.note_refusal(&temp, &error);
                self.lose(file.id, &temp, &error);
                Err(error)
            }
        }
    }

    /// Sends the file that was said first; the sum of what was sent.
    fn send_lined(&mut self, item: &BundleWrite, lined: &Lined) -> Result<Option<Sums>, Error> {
        panic_point("write", &String::from_utf8_lossy(&lined.path));
        self.begins("write", &lined.path);
        let common = self.common.clone();
        let bytes = bytes_of(item, &lined.taken);
        let _active = common.lanes.begin(1);
        let session = self.line.open()?;
        let going = session.next_store(&lined.temp, item.file.size);
        let mut going = going.inspect_err(|error| common.note_refusal(&lined.temp, error))?;
        session.send(&mut going, bytes)?;
        common.network.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let mut summing = FileSumming::new(common.sum, item.file.size, false);
        // While the server takes it.
        common.meter.busy(Stage::SinkHost, || summing.update(bytes));
        session.sent(going)?;
        Ok(summing.finish())
    }

    /// What was said in advance is lost with the session. It may come to be at any time.
    fn lose_line(&mut self, line: &mut VecDeque<Lined>, alone: &mut VecDeque<Alone>, error: &Error) {
        for lined in line.drain(..) {
            self.common.doubt(lined.temp);
            alone.push_back((lined.taken, None));
        }
        self.see(error);
    }

    /// A file came to nothing in blocks.
    pub(super) fn lose(&mut self, id: FileId, temp: &[u8], error: &Error) {
        self.common.lanes.note(id, error);
        self.common.doubt(temp.to_vec());
        self.see(error);
    }

    /// Sends a file by itself, as often as that may help.
    fn send_alone(&mut self, batch: &Batch<BundleWrite>, taken: Taken, before: Option<(Vec<u8>, Error)>) {
        let item = &batch.items[taken.range.start];
        let result = self.send_whole(&item.file, bytes_of(item, &taken), before);
        if let Err(failure) = &result {
            self.common.set_temp(item.file.id, TempState::Failed(failure.clone().into()));
        }
        end(batch, taken, result);
    }
}

fn bytes_of<'a>(item: &BundleWrite, taken: &'a Taken) -> &'a [u8] {
    let (start, len) = (item.start as usize, item.file.size as usize);
    let all = taken.payload.as_ref().map_or(&[][..], |payload| payload.as_slice());
    if len == 0 { &[] } else { &all[start..start + len] }
}

/// The one file of a part came to that.
fn end(batch: &Batch<BundleWrite>, taken: Taken, result: Result<(), Failure>) {
    let (buffer, more) = batch.of.unwrap_or((BufferId(u32::MAX), false));
    batch.end(taken, vec![result], |results| {
        let ids = batch.items.iter().map(|item| item.file.id);
        SinkDone::WriteBundle { buffer, results: ids.zip(results).collect(), more }
    });
}
