//! Small files that a session sends in blocks, in a line that goes on from one bundle to the next: each is
//! said, and at a server that makes sums also given, before those before it are over.
//!
//! In: bundles. Out: what became of each file.
//! Invariants: what was said in advance is begun in its order, or the session is over; what a session that is
//! over had in its line is sent again under another name: the file that it ended with as to any other server,
//! those behind it in a line again, by whoever is free. Where lines end so again and again, bytes wait for
//! the server's word as with large files ([`super::lanes`]).
//! A line ends when something else is to be done, so that nothing waits behind it for ever.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use haul_core::ids::{BufferId, FileId};
use haul_core::stage::Stage;
use haul_core::transfer::op::{BundleWrite, SinkDone};
use haul_core::wire::Failure;
use haul_ftp::{Error, Over, Pipeline};

use super::queues::{Batch, Common, Small, TempState};
use super::sums::{FileSumming, Sums};
use super::tree::check;
use super::writer::Writer;
use crate::ftp::share::Active;
use crate::owed::panic_point;

/// How often a file is in a line that is lost for another file's sake, before it goes by itself.
const LINES_MAX: u8 = 2;

/// A file that was said, and is not over.
struct Lined {
    small: Small,
    temp: Vec<u8>,
    path: Vec<u8>,
    /// The sum of what was given.
    sums: Option<Sums>,
    since: Instant,
}

/// A file that goes by itself: what was sent of it before, and how that ended.
type Alone = (Small, Option<(Vec<u8>, Error)>);

/// What a session has under way.
#[derive(Default)]
struct Row {
    pipeline: Pipeline,
    /// As many as are in the pipeline, and those that are over there and were not looked at yet before them.
    line: VecDeque<Lined>,
    alone: VecDeque<Alone>,
    /// It comes next, when all of the line is over.
    later: Option<Small>,
    active: Option<Active>,
}

impl Small {
    fn item(&self) -> &BundleWrite {
        &self.batch.items[self.taken.range.start]
    }

    fn id(&self) -> FileId {
        self.item().file.id
    }

    fn bytes(&self) -> &[u8] {
        let item = self.item();
        let (start, len) = (item.start as usize, item.file.size as usize);
        let all = self.taken.payload.as_ref().map_or(&[][..], |payload| payload.as_slice());
        if len == 0 { &[] } else { &all[start..start + len] }
    }

    /// It came to that.
    fn end(self, result: Result<(), Failure>) {
        let Small { batch, taken, .. } = self;
        let (buffer, more) = batch.of.unwrap_or((BufferId(u32::MAX), false));
        batch.end(taken, vec![result], |results| {
            let ids = batch.items.iter().map(|item| item.file.id);
            SinkDone::WriteBundle { buffer, results: ids.zip(results).collect(), more }
        });
    }
}

/// The sum of what a file has.
fn sum_of(common: &Common, small: &Small) -> Option<Sums> {
    let mut summing = FileSumming::new(common.sum, small.item().file.size, false);
    common.meter.busy(Stage::SinkHost, || summing.update(small.bytes()));
    summing.finish()
}

impl Writer {
    /// The small files of a bundle and of those that follow, in a line as far as they can be.
    pub(super) fn bundle(&mut self, batch: Arc<Batch<BundleWrite>>) {
        self.line_of(Some(batch), None);
    }

    /// One small file, and those that follow.
    pub(super) fn small(&mut self, small: Small) {
        self.line_of(None, Some(small));
    }

    fn line_of(&mut self, mut batch: Option<Arc<Batch<BundleWrite>>>, first: Option<Small>) {
        let mut row = Row { later: first, ..Row::default() };
        loop {
            let begun = Instant::now();
            // What goes by itself goes when all that was said is over.
            while row.alone.is_empty() && self.has_room(&row) {
                let small = row.later.take().or_else(|| self.next_small(&mut batch));
                let Some(small) = small else { break };
                self.join(small, &mut row);
            }
            if !row.line.is_empty() {
                self.hear_line(&mut row, true);
            } else if let Some((small, before)) = row.alone.pop_front() {
                row.active = None;
                self.send_alone(small, before);
            } else if row.later.is_none() {
                return;
            }
            self.common.meter.add_busy(Stage::SinkStorage, begun.elapsed());
        }
    }

    /// Another file may be said: the line is not long, and the first of it was not said long ago, so that a
    /// slow way holds no more than it moves in that time.
    fn has_room(&self, row: &Row) -> bool {
        let Some(first) = row.line.front() else { return true };
        let lanes = &self.common.lanes;
        row.later.is_none() && row.line.len() < lanes.line_max() && first.since.elapsed() < lanes.line_time()
    }

    /// The next small file that nobody took: of this bundle, or of one that waits.
    fn next_small(&self, batch: &mut Option<Arc<Batch<BundleWrite>>>) -> Option<Small> {
        loop {
            if let Some(batch) = &*batch
                && let Some(taken) = batch.take()
            {
                return Some(Small { batch: batch.clone(), taken, lines: 0 });
            }
            let mut queues = self.common.lock();
            if let Some(small) = queues.next_small(self.index) {
                return Some(small);
            }
            *batch = Some(queues.next_bundle(self.index)?);
        }
    }

    /// Says a file, under the name that it has meanwhile, and gives it; or puts it to those that go by
    /// themselves.
    fn join(&mut self, small: Small, row: &mut Row) {
        let common = self.common.clone();
        let file = &small.item().file;
        let path = common.path(file);
        if let Some(failure) = common.not_begun(&path) {
            return small.end(Err(failure));
        }
        let first = row.line.is_empty();
        let connections = common.lanes.connections(file.id, file.size).filter(|_| small.lines < LINES_MAX);
        if connections.is_none() {
            return row.alone.push_back((small, None));
        }
        // Behind others nothing else can be asked, nor said without a wait.
        let is_odd = path.contains(&0xff) || !common.tree.unknown(file.parent).is_empty();
        if !first && (is_odd || !row.pipeline.has_room(&path)) {
            row.later = Some(small);
            return;
        }
        if check(&common.server, &path, (&file.name, common.drops)).is_err()
            || self.ensure(file.parent).is_err()
        {
            return row.alone.push_back((small, None));
        }
        let session = match self.line.open() {
            Ok(session) => session,
            Err(error) => return self.lose_behind(row, (small, None), &error),
        };
        if first && common.lanes.is_unkept() {
            session.close_outlets();
        }
        panic_point("write", &String::from_utf8_lossy(&path));
        let temp = self.new_temp(&small.item().file);
        common.set_in_blocks(small.id());
        common.again.begins(small.id(), 0);
        row.active.get_or_insert_with(|| common.lanes.begin(1));
        let size = small.item().file.size;
        let said = self.line.open().and_then(|session| row.pipeline.say(session, &temp, size));
        row.line.push_back(Lined { small, temp, path, sums: None, since: Instant::now() });
        if first {
            self.begins_first(row);
        }
        let number = match said {
            Ok(number) => number,
            Err(error) => return self.lose_line(row, error),
        };
        // What the server says of those before is heard meanwhile.
        let early = common.lanes.gives_early();
        let Some(lined) = row.line.back_mut() else { return };
        let bytes = lined.small.bytes();
        let given = self.line.open().and_then(|session| row.pipeline.give(session, number, bytes, early));
        match given {
            Ok(true) => {
                common.network.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                // While the server takes it.
                lined.sums = sum_of(&common, &lined.small);
            }
            Ok(false) => {}
            Err(error) => return self.lose_line(row, error),
        }
        self.hear_line(row, false);
    }

    /// What the server says of the first files of the line; `waits`: of the very first, at least.
    fn hear_line(&mut self, row: &mut Row, mut waits: bool) {
        while !row.line.is_empty() {
            let over = self.line.open().and_then(|session| match waits {
                true => row.pipeline.next(session).map(Some),
                false => row.pipeline.ready(session),
            });
            waits = false;
            match over {
                Ok(Some(over)) => self.settle(row, over),
                Ok(None) => return,
                Err(error) => return self.lose_line(row, error),
            }
        }
    }

    /// The first file of the line is over.
    fn settle(&mut self, row: &mut Row, over: Over) {
        let Some(lined) = row.line.pop_front() else { return };
        self.begins_first(row);
        let id = lined.small.id();
        match over {
            Over::Stored => {
                // The server's word came before the end of what is done with what was given.
                let sums = lined.sums.or_else(|| sum_of(&self.common, &lined.small));
                self.common.lanes.worked();
                self.common.set_temp(id, TempState::Stored(sums));
                lined.small.end(Ok(()));
            }
            Over::Refused(error) => {
                self.common.note_refusal(&lined.temp, &error);
                self.lose_first(row, lined, error);
            }
        }
    }

    /// The first file of the line is what is waited for, for people.
    fn begins_first(&mut self, row: &Row) {
        if let Some(first) = row.line.front() {
            self.begins("write", &first.path);
        }
    }

    /// A file came to nothing in the line.
    fn lose_first(&mut self, row: &mut Row, lined: Lined, error: Error) {
        let Lined { small, temp, .. } = lined;
        self.lose(small.id(), &temp, &error);
        self.common.again.lost(small.id(), small.item().file.size, &error);
        row.alone.push_back((small, Some((temp, error))));
    }

    /// The session is over, and the line with it. What the server said before counts; the first file that it
    /// said nothing of is what it ended with. What was said may come to be at any time.
    fn lose_line(&mut self, row: &mut Row, error: Error) {
        while let Some(over) = row.pipeline.known() {
            self.settle(row, over);
        }
        let has_begun = std::mem::take(&mut row.pipeline).has_begun();
        let Some(first) = row.line.pop_front() else { return self.see(&error) };
        if !row.line.is_empty() || matches!(error, Error::Refused { .. }) {
            self.common.lanes.line_lost();
        }
        let others = row.line.drain(..).map(|lined| {
            // What has a sum went.
            if lined.sums.is_some() {
                self.common.again.lost(lined.small.id(), lined.small.item().file.size, &error);
            }
            self.common.doubt(lined.temp);
            Small { lines: lined.small.lines + 1, ..lined.small }
        });
        let others: Vec<Small> = others.collect();
        if !others.is_empty() {
            self.common.lock().add_smalls(others);
            self.common.ready.notify_all();
        }
        if !has_begun {
            self.common.note_refusal(&first.temp, &error);
        }
        self.lose_first(row, first, error);
    }

    /// There is no session for a file, so that there is none for those before it, either.
    fn lose_behind(&mut self, row: &mut Row, alone: Alone, error: &Error) {
        row.alone.push_back(alone);
        while let Some(lined) = row.line.pop_front() {
            self.common.doubt(lined.temp);
            row.alone.push_back((lined.small, None));
        }
        row.pipeline = Pipeline::default();
        self.see(error);
    }

    /// A file came to nothing in blocks.
    pub(super) fn lose(&mut self, id: FileId, temp: &[u8], error: &Error) {
        self.common.lanes.note(id, error);
        self.common.doubt(temp.to_vec());
        self.see(error);
    }

    /// Sends a file by itself, as often as that may help.
    fn send_alone(&mut self, small: Small, before: Option<(Vec<u8>, Error)>) {
        let more = small.batch.has_more();
        let result = self.send_whole(&small.item().file, small.bytes(), before, more);
        if let Err(failure) = &result {
            self.common.set_temp(small.id(), TempState::Failed(failure.clone().into()));
        }
        small.end(result);
    }
}
