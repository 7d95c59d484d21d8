//! The way of an object from its buffer into its file.
//!
//! In: `SinkOp::Write` with its buffer. Out: its completion, from a lane's thread. An object of a file that is
//! ready goes to the lanes from the session's own thread, which never waits for storage; one whose file has no
//! temporary yet goes to a thread of the engine first, which makes it and its space.
//!
//! What must hold: the buffer is back in its pool before the completion is posted; every write completes once,
//! also when its file fails; a file is written in one mode at a time (`gate`), and what is beyond the end of a
//! file in a padded write is zeros, never older payload.
//!
//! Left out: bundles. Their files are written whole by the engine's threads, for making them costs more than
//! writing them.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use haul_core::ids::{BufferId, FileId};
use haul_core::io::IoMode;
use haul_core::schedule::Limits;
use haul_core::transfer::SMALL_LEN_MAX;
use haul_core::transfer::op::{SinkDone, SinkFile, SinkOp, Took};
use haul_core::wire::{Failure, Stage, credit_cost};
use rustix::io::{Errno, retry_on_intr};

use super::cache::{Cache, start_write_back};
use super::commit::unsynced;
use super::engine::{Sink, guard, slice};
use super::files::{OpenFile, descriptor};
use super::gate::{Admit, Gate};
use super::mode::{Alignment, Choice, DirectSlot, Shape};
use super::space::Spaces;
use super::{fault, lock};
use crate::buffer::Buffer;
use crate::storage::io::lanes::{Lanes, Transfer, TransferDone};
use crate::storage::io::{EngineFacts, IoFile, IoKind};
use crate::storage::knobs::{Knobs, depth_of, lanes_of};
use crate::storage::{SinkCompletion, SinkJob};

/// For so many targets there may be writes in flight at a time.
const WRITES_TARGETS: u32 = 64;
/// How often an engine that ends looks whether all that is left hangs.
const DRAIN_TICK: Duration = Duration::from_millis(100);

/// How the objects of one file reach storage.
#[derive(Default)]
pub(super) struct Path {
    gate: Gate<Pending>,
    /// Set before the first object.
    buffered: Option<Arc<IoFile>>,
    direct: Option<DirectFile>,
    /// What direct I/O asks for; `None`: this file is written through the cache, from now on for good.
    alignment: Option<Alignment>,
    /// Written and not on its way to media: from, to. Somebody is about to see to it.
    write_back: Option<(u64, u64)>,
}

/// The way that a write takes, as it is when the gate lets it through.
struct Way {
    mode: IoMode,
    file: Arc<IoFile>,
    alignment: Option<Alignment>,
}

/// A write as its completion will name it.
#[derive(Clone, Copy)]
struct Written {
    id: FileId,
    offset: u64,
    len: u32,
    buffer: BufferId,
}

/// A write with its payload.
pub(super) struct Pending {
    written: Written,
    buffer: Buffer,
    start: usize,
}

/// A descriptor for direct I/O.
struct DirectFile {
    file: Arc<IoFile>,
    _slot: DirectSlot,
}

/// What a lane brings back.
pub(super) struct Tag {
    written: Written,
    mode: IoMode,
    open: Arc<OpenFile>,
}

/// What the data path of a session shares.
pub(super) struct Data {
    /// Taken out when the engine ends.
    lanes: Mutex<Option<Arc<Lanes<Tag>>>>,
    pub(super) choice: Choice,
    pub(super) cache: Cache,
    knobs: Knobs,
    /// Writes that were submitted and not completed.
    open: Mutex<usize>,
    none_open: Condvar,
}

impl Data {
    pub(super) fn new(choice: Choice, knobs: Knobs) -> Data {
        Data {
            lanes: Mutex::default(),
            choice,
            cache: Cache::default(),
            knobs,
            open: Mutex::default(),
            none_open: Condvar::new(),
        }
    }

    pub(super) fn set_lanes(&self, lanes: Lanes<Tag>) {
        *lock(&self.lanes) = Some(Arc::new(lanes));
    }

    /// The lanes, until the engine ends.
    pub(super) fn lanes(&self) -> Option<Arc<Lanes<Tag>>> {
        lock(&self.lanes).clone()
    }

    /// Changes lanes and requests in flight: their share of `width` operations, see [`lanes_of`] and [`depth_of`].
    pub(super) fn set_width(&self, width: usize, started: usize) {
        if let Some(lanes) = self.lanes() {
            lanes.use_lanes(lanes_of(self.knobs.lanes.lanes, width, started));
            lanes.set_depth(depth_of(self.knobs.lanes.depth, width, started));
        }
    }

    /// Writes of objects that may be in flight: at one target as many as the lanes give one, for each object is a request at
    /// least; in all what buffers are good for.
    pub(super) fn limits(&self) -> Limits {
        let each = u32::try_from(self.knobs.lanes.depth).unwrap_or(u32::MAX);
        let total = each.saturating_mul(WRITES_TARGETS);
        Limits { total: self.knobs.asked.in_flight.map_or(total, |most| total.min(most.into())), each }
    }

    /// What was chosen, and why.
    pub(super) fn report(&self, spaces: &Spaces) -> Vec<(String, String)> {
        let none = EngineFacts { name: "none", remarks: Vec::new() };
        let facts = self.lanes().map_or(none, |lanes| lanes.facts());
        let mut report = self.knobs.report(&facts, &self.choice.report());
        report.push(("sink page cache".into(), self.cache.report().into()));
        report.push(("sink preallocation".into(), spaces.report()));
        report
    }

    /// Writes are under way.
    pub(super) fn is_writing(&self) -> bool {
        *lock(&self.open) > 0
    }

    /// Waits until every write has completed, or something hangs (in the lanes or, as `hangs` tells, elsewhere) and
    /// nothing else has ended for long; then ends the lanes. False: writes are left that hang.
    pub(super) fn drain(&self, hangs: impl Fn() -> bool) -> bool {
        let mut drained = true;
        let mut open = lock(&self.open);
        let mut last = (*open, Instant::now());
        while *open > 0 {
            open = self.none_open.wait_timeout(open, DRAIN_TICK).unwrap_or_else(PoisonError::into_inner).0;
            if *open != last.0 {
                last = (*open, Instant::now());
            } else if last.1.elapsed() > 2 * self.knobs.lanes.deadline {
                drop(open);
                if self.lanes().is_none_or(|lanes| !lanes.stuck().is_empty()) || hangs() {
                    drained = false;
                    break;
                }
                open = lock(&self.open);
            }
        }
        let lanes = lock(&self.lanes).take();
        drop(lanes);
        drained
    }
}

impl Sink {
    /// Finds out where the objects of a file go; called once for each file, before its first object.
    pub(super) fn begin_path(&self, open: &OpenFile, file: &Arc<IoFile>) {
        let choice = &self.data.choice;
        let mut path = lock(&open.path);
        path.buffered = Some(file.clone());
        if open.size > SMALL_LEN_MAX && choice.may_be_direct() {
            path.alignment = Alignment::probe(descriptor(file));
            if path.alignment.is_none() {
                choice.on_refused(Errno::OPNOTSUPP);
            }
        }
        if path.alignment.is_some() && choice.mode() == IoMode::Direct {
            path.direct = self.open_direct(open, file);
            match path.direct {
                Some(_) => path.gate = Gate::new(IoMode::Direct),
                None => path.alignment = None,
            }
        }
    }

    /// The descriptor for direct I/O; `None`: refused, or there are enough of them.
    fn open_direct(&self, open: &OpenFile, file: &IoFile) -> Option<DirectFile> {
        let choice = &self.data.choice;
        let slot = choice.direct_slot()?;
        match self.files.open_direct(open, file) {
            Ok(file) => Some(DirectFile { file, _slot: slot }),
            Err(errno) => {
                if errno == Errno::INVAL || errno == Errno::OPNOTSUPP {
                    choice.on_refused(errno);
                }
                None
            }
        }
    }

    /// Takes a write, if its file is ready; else gives it back for [`Sink::write_first`]. Never waits for
    /// storage.
    pub(super) fn write_if_ready(self: &Arc<Self>, job: SinkJob) -> Option<SinkJob> {
        let SinkOp::Write { file, .. } = &job.op else { return Some(job) };
        let Some(open) = self.files.if_ready(file) else { return Some(job) };
        match take(job, |file| self.tree.path_of(file.parent, &file.name)) {
            Ok((_, pending)) => self.route(&open, pending),
            Err((written, failure)) => self.complete(written, Err(failure)),
        }
        None
    }

    /// Makes the file ready and takes the write.
    pub(super) fn write_first(self: &Arc<Self>, job: SinkJob) {
        let (file, pending) = match take(job, |file| self.tree.path_of(file.parent, &file.name)) {
            Ok(taken) => taken,
            Err((written, failure)) => return self.complete(written, Err(failure)),
        };
        let ready = guard(Stage::Write, || self.files.ready(&file, |open, file| self.begin_path(open, file)));
        match ready {
            Ok(open) => self.route(&open, pending),
            Err(failure) => {
                let Pending { written, buffer, .. } = pending;
                drop(buffer);
                self.complete(written, Err(failure));
            }
        }
    }

    /// A write was submitted; it ends in [`Sink::complete`].
    pub(super) fn begin_write(&self) {
        *lock(&self.data.open) += 1;
    }

    fn complete(&self, written: Written, result: Result<Took, Failure>) {
        let Written { id, offset, len, buffer } = written;
        let (took, result) = match result {
            Ok(took) => (Some(took), Ok(())),
            Err(failure) => (None, Err(failure)),
        };
        (self.post)(SinkCompletion { done: SinkDone::Write { id, offset, len, buffer, took, result } });
        let mut open = lock(&self.data.open);
        *open -= 1;
        if *open == 0 {
            self.data.none_open.notify_all();
        }
    }

    /// Sends a write to the lanes, or holds it while its file changes its mode.
    fn route(self: &Arc<Self>, open: &Arc<OpenFile>, pending: Pending) {
        let mut path = lock(&open.path);
        let shape = self.shape(open, &pending);
        if path.alignment.is_some_and(|alignment| alignment.pad(&shape).is_none()) {
            path.alignment = None;
        }
        let wish = match path.alignment {
            Some(_) => self.data.choice.mode_under_way(path.gate.mode()),
            None => IoMode::Buffered,
        };
        let admitted = path.gate.admit(wish, pending);
        let way = path.way();
        drop(path);
        match admitted {
            Admit::Go(pending) => self.launch(open, &way, pending),
            Admit::Held => {}
            Admit::Change => self.spawn_change(open, &way.file),
        }
    }

    fn shape(&self, open: &OpenFile, pending: &Pending) -> Shape {
        let payload = pending.buffer.as_slice();
        Shape {
            address: payload.as_ptr().addr() + pending.start,
            // What a buffer of this length has at least.
            room: credit_cost(payload.len() as u64) as usize - pending.start,
            offset: pending.written.offset,
            len: pending.written.len as usize,
            size: open.size,
            request_size: self.data.knobs.lanes.request_size,
        }
    }

    /// Hands a write that the gate let through to the lanes. No lock is held: a lane may want it.
    fn launch(&self, open: &Arc<OpenFile>, way: &Way, pending: Pending) {
        let mode = way.mode;
        let shape = self.shape(open, &pending);
        let Pending { written, mut buffer, start } = pending;
        let len = written.len as usize;
        let mut pad = 0;
        if let (IoMode::Direct, Some(alignment)) = (mode, way.alignment) {
            pad = alignment.pad(&shape).unwrap_or(0);
            buffer = with_zeros_behind(buffer, start, len, pad);
        }
        let uncached = mode == IoMode::Buffered && self.data.cache.asks_uncached();
        self.data.choice.begin(mode);
        let tag = Tag { written, mode, open: open.clone() };
        let (file, kind, offset) = (way.file.clone(), IoKind::Write, written.offset);
        let lanes = self.data.lanes().expect("lanes live until every write has completed");
        let target = open.target_at(offset).unwrap_or(file.target);
        lanes.submit(Transfer { tag, file, target, kind, offset, buffer, start, len, pad, uncached });
    }

    /// A lane's answer.
    pub(super) fn on_written(self: &Arc<Self>, done: TransferDone<Tag>) {
        let TransferDone { tag, file, buffer, start, len, moved, error, service, refused_uncached, .. } =
            done;
        let Tag { written, mode, open } = tag;
        if refused_uncached {
            self.data.cache.on_refused();
        }
        let good = moved == len && error.is_none();
        self.data.choice.end(mode, if good { len as u64 } else { 0 });
        if let (IoMode::Direct, Some((errno @ (Errno::INVAL | Errno::OPNOTSUPP), _))) = (mode, error) {
            // It took the descriptor and refuses the write: what was told of its alignment is not the whole
            // truth. The cache takes everything.
            self.data.choice.on_refused(errno);
            let mut path = lock(&open.path);
            path.alignment = None;
            let due = path.gate.refused(Pending { written, buffer, start });
            drop(path);
            if due {
                self.spawn_change(&open, &file);
            }
            return;
        }
        drop(buffer);
        let result = guard(Stage::Write, || match error {
            Some((errno, at)) => {
                let path = format!("{} at byte {at}", self.tree.path_of(open.parent, &open.name));
                Err(fault::os_at(Stage::Write, "write", &path, errno, descriptor(&file)))
            }
            None if !good => {
                let path = self.tree.path_of(open.parent, &open.name);
                let text = format!(
                    "write {path} at byte {}: the storage took {moved} of {len} bytes and gave no reason",
                    written.offset
                );
                Err(fault::failure(Stage::Write, Errno::IO.raw_os_error(), text))
            }
            None => Ok(Took { time: service, cached: mode == IoMode::Buffered }),
        });
        let mut path = lock(&open.path);
        if path.gate.ended(if good { len as u64 } else { 0 }) {
            self.spawn_change(&open, &file);
        }
        if good && mode == IoMode::Buffered && !self.data.cache.asks_uncached() {
            self.see_to_write_back(&open, &mut path, written.offset, len as u64);
        }
        drop(path);
        self.complete(written, result);
    }

    /// Starts write-back of what was written, on a thread of the engine: it can wait for the device's queue,
    /// and a lane must not. One thread at a time for each file, so what waits for it is bounded.
    fn see_to_write_back(self: &Arc<Self>, open: &Arc<OpenFile>, path: &mut Path, offset: u64, len: u64) {
        let end = offset + len;
        if let Some((from, to)) = &mut path.write_back {
            (*from, *to) = ((*from).min(offset), (*to).max(end));
            return;
        }
        path.write_back = Some((offset, end));
        let Some(file) = path.buffered.clone() else { return };
        let open = open.clone();
        self.spawn(&file, "write back", move |_| {
            let mut path = lock(&open.path);
            let (range, file) = (path.write_back.take(), path.buffered.clone());
            drop(path);
            if let (Some((from, to)), Some(file)) = (range, file) {
                start_write_back(descriptor(&file), from, to - from);
            }
        });
    }

    fn spawn_change(self: &Arc<Self>, open: &Arc<OpenFile>, file: &Arc<IoFile>) {
        let open = open.clone();
        self.spawn(file, "sync", move |sink| {
            if let Err(failure) = guard(Stage::Sync, || sink.change_mode(&open)) {
                sink.fail_held(&open, &failure);
            }
        });
    }

    /// The file failed, and with it every write that was held.
    fn fail_held(&self, open: &OpenFile, failure: &Failure) {
        self.files.fail_open(open, failure, true);
        let held = lock(&open.path).gate.give_up();
        for Pending { written, buffer, .. } in held {
            drop(buffer);
            self.complete(written, Err(failure.clone()));
        }
    }

    /// Nothing of the file is in flight: syncs what was written, changes the mode, and lets through what was
    /// held.
    fn change_mode(self: &Arc<Self>, open: &Arc<OpenFile>) -> Result<(), Failure> {
        let path = lock(&open.path);
        let file = path.buffered.clone().expect("set before the first write");
        let needs_sync = path.gate.needs_sync();
        drop(path);
        if needs_sync {
            self.sync_data(open, &file)?;
        }
        let mut path = lock(&open.path);
        let mut to = match path.alignment {
            Some(_) => path.gate.next().unwrap_or_default(),
            // A write came meanwhile that cannot be direct.
            None => IoMode::Buffered,
        };
        if to == IoMode::Direct && path.direct.is_none() {
            // Opening can wait for storage, and new writes of the file want this lock to be held.
            drop(path);
            let direct = self.open_direct(open, &file);
            path = lock(&open.path);
            path.direct = direct;
            if path.direct.is_none() {
                path.alignment = None;
            }
            if path.alignment.is_none() {
                to = IoMode::Buffered;
            }
        }
        if to == IoMode::Buffered {
            path.direct = None;
        }
        let held = path.gate.changed(to);
        let way = path.way();
        drop(path);
        for pending in held {
            self.launch(open, &way, pending);
        }
        Ok(())
    }

    /// Makes what was written of the file durable.
    pub(super) fn sync_data(&self, open: &OpenFile, file: &IoFile) -> Result<(), Failure> {
        self.synced(open, || {
            retry_on_intr(|| rustix::fs::fdatasync(descriptor(file)))
                .map_err(|errno| unsynced(&fault::show(open.temp.as_bytes()), errno, descriptor(file)))
        })
    }

    /// Keeps the books of a sync: the gate's, and of large files the choice's clock.
    pub(super) fn synced(
        &self,
        open: &OpenFile,
        sync: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (covered, mode) = {
            let path = lock(&open.path);
            (path.gate.sync_begins(), path.gate.mode())
        };
        let counts = open.size > SMALL_LEN_MAX;
        if counts {
            self.data.choice.begin(mode);
        }
        let result = sync();
        if counts {
            self.data.choice.end(mode, 0);
        }
        if result.is_ok() {
            lock(&open.path).gate.synced(covered);
        }
        result
    }
}

impl Path {
    /// Payload bytes that were written in this session.
    pub(super) fn written(&self) -> u64 {
        self.gate.written()
    }

    fn way(&self) -> Way {
        let mode = self.gate.mode();
        let direct = self.direct.as_ref().map(|direct| &direct.file);
        let file = match mode {
            IoMode::Buffered => self.buffered.as_ref(),
            IoMode::Direct => direct,
        };
        let file = file.expect("a file has the descriptor of its mode").clone();
        Way { mode, file, alignment: self.alignment }
    }
}

/// The parts of a write, held against its file and its payload; the buffer of a bad one is dropped.
fn take(job: SinkJob, path: impl Fn(&SinkFile) -> String) -> Result<(SinkFile, Pending), (Written, Failure)> {
    let SinkJob { op: SinkOp::Write { file, offset, len, buffer: id, start }, buffer } = job else {
        unreachable!("writes alone come here");
    };
    let written = Written { id: file.id, offset, len, buffer: id };
    let payload = buffer.as_ref().map(Buffer::as_slice).unwrap_or_default();
    if let Err(failure) = slice(payload, start, u64::from(len)) {
        return Err((written, failure));
    }
    if offset.checked_add(u64::from(len)).is_none_or(|end| end > file.size) {
        let text = format!("{len} bytes at {offset} do not fit into the {} of {}", file.size, path(&file));
        return Err((written, fault::failure(Stage::Protocol, 0, text)));
    }
    match buffer {
        Some(buffer) => Ok((file, Pending { written, buffer, start: start as usize })),
        None => Err((written, fault::failure(Stage::Protocol, 0, "a write without payload"))),
    }
}

/// The buffer with `pad` zeros behind the payload at `start`: memory is used again, and older payload must not
/// get into a file.
fn with_zeros_behind(buffer: Buffer, start: usize, len: usize, pad: usize) -> Buffer {
    if pad == 0 {
        return buffer;
    }
    let whole = buffer.as_slice().len();
    let mut parts = buffer.split(start, len, len.max(1));
    if let Some(last) = parts.last_mut() {
        last.room_mut()[len..len + pad].fill(0);
    }
    Buffer::join(parts, whole)
}

#[cfg(test)]
#[path = "data_tests.rs"]
mod tests;
