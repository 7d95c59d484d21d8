//! The way of an object from its buffer into its file.
//!
//! In: `SinkOp::Write` with its buffer. Out: its completion, from an I/O thread. An object of a file that is
//! ready goes to the I/O threads from the session's own thread, which never waits for storage; one whose file
//! has no temporary yet goes to a thread of the engine first, which makes it and its space.
//!
//! What must hold: the buffer is back in its pool before the completion is posted; every write completes
//! once, also when its file fails or a thread panics over it ([`Owed`]); a file is written in one mode at a
//! time (`mode_switch`), and what is beyond the end of a file in a padded write is zeros, never older
//! payload.
//!
//! Left out: bundles. Their files are written whole by the engine's threads, for making them costs more than
//! writing them.

use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use haul_core::io::IoMode;
use haul_core::schedule::Limits;
use haul_core::transfer::SMALL_LEN_MAX;
use haul_core::transfer::op::{SinkDone, SinkFile, SinkOp, Took};
use haul_core::wire::{Failure, FailureKind, credit_cost};
use rustix::io::{Errno, retry_on_intr};

use super::commit::unsynced;
use super::fan_out::Place;
use super::{Sink, guard, slice};
use crate::io::threads::{IoThreads, Transfer, TransferDone};
use crate::io::{EngineFacts, IoFile, IoKind};
use crate::io_settings::{IoSettings, depth_of, io_threads_of};
use crate::owed::{Owed, panic_point, words_of};
use crate::sink::cache::{Cache, start_write_back};
use crate::sink::files::in_place::InPlace;
use crate::sink::files::{OpenFile, descriptor};
use crate::sink::mode::{Alignment, Choice, Shape};
use crate::sink::mode_switch::{Admit, ModeSwitch};
use crate::sink::space::Spaces;
use crate::sink::syncs::{self, Extent, SyncCall};
use crate::sink::way::{DirectFile, Path, Pending, Way};
use crate::sink::{fault, lock};
use crate::{Payload, SinkCompletion, SinkJob};
use haul_base::buffer::Buffer;
use haul_base::escape;

/// For so many targets there may be writes in flight at a time.
const WRITES_TARGETS: u32 = 64;
/// How often an engine that ends looks whether all that is left hangs.
const DRAIN_TICK: Duration = Duration::from_millis(100);

/// A write as it came, and its answer. The buffer stands first: it is back in its pool before the answer is
/// given up.
pub(super) struct NewWrite {
    buffer: Option<Buffer>,
    file: SinkFile,
    offset: u64,
    len: u32,
    start: u32,
    owed: Owed<Took>,
}

/// What an I/O thread brings back.
pub(super) struct Tag {
    owed: Owed<Took>,
    mode: IoMode,
    open: Arc<OpenFile>,
}

/// What the data path of a session shares.
pub(super) struct Data {
    /// Taken out when the engine ends.
    io_threads: Mutex<Option<Arc<IoThreads<Tag>>>>,
    pub(super) choice: Choice,
    pub(super) cache: Cache,
    settings: IoSettings,
    sync_call: Mutex<SyncCall>,
    /// Writes that were submitted and not completed.
    open: Mutex<usize>,
    none_open: Condvar,
}

impl Data {
    pub(super) fn new(choice: Choice, settings: IoSettings) -> Data {
        Data {
            io_threads: Mutex::default(),
            choice,
            cache: Cache::default(),
            settings,
            sync_call: Mutex::new(syncs::kernel()),
            open: Mutex::default(),
            none_open: Condvar::new(),
        }
    }

    /// One sync. Only what runs in a file's [`Syncs`] calls it.
    pub(super) fn sync(&self, fd: BorrowedFd<'_>, extent: Extent) -> rustix::io::Result<()> {
        let call = lock(&self.sync_call).clone();
        call(fd, extent)
    }

    #[cfg(test)]
    pub(super) fn set_sync(&self, call: SyncCall) {
        *lock(&self.sync_call) = call;
    }

    pub(super) fn set_threads(&self, io_threads: IoThreads<Tag>) {
        *lock(&self.io_threads) = Some(Arc::new(io_threads));
    }

    /// The I/O threads, until the engine ends.
    pub(super) fn io_threads(&self) -> Option<Arc<IoThreads<Tag>>> {
        lock(&self.io_threads).clone()
    }

    /// Changes I/O threads and requests in flight: their share of `width` operations, see [`io_threads_of`]
    /// and [`depth_of`].
    pub(super) fn set_width(&self, width: usize, started: usize) {
        if let Some(io_threads) = self.io_threads() {
            io_threads.use_threads(io_threads_of(self.settings.io_threads.io_threads, width, started));
            io_threads.set_depth(depth_of(self.settings.io_threads.depth, width, started));
        }
    }

    /// Writes of objects that may be in flight: at one target as many as the I/O threads give one, for each
    /// object is a request at least; in all what buffers are good for.
    pub(super) fn limits(&self) -> Limits {
        let each = u32::try_from(self.settings.io_threads.depth).unwrap_or(u32::MAX);
        let total = each.saturating_mul(WRITES_TARGETS);
        Limits { total: self.settings.asked.in_flight.map_or(total, |most| total.min(most.into())), each }
    }

    /// What was chosen, and why.
    pub(super) fn report(&self, spaces: &Spaces) -> Vec<(String, String)> {
        let none = EngineFacts { name: "none", remarks: Vec::new() };
        let facts = self.io_threads().map_or(none, |io_threads| io_threads.facts());
        let mut report = self.settings.report(&facts, &self.choice.report());
        report.push(("sink page cache".into(), self.cache.report().into()));
        report.push(("sink preallocation".into(), spaces.report()));
        report
    }

    /// Writes are under way.
    pub(super) fn is_writing(&self) -> bool {
        *lock(&self.open) > 0
    }

    /// Waits until every write has completed, or none has for twice the deadline, however that comes; then
    /// ends the I/O threads.
    /// Says what is left: writes that hang, and complete as failures if they ever come back.
    pub(super) fn drain(&self) -> Vec<String> {
        let mut open = lock(&self.open);
        let mut last = (*open, Instant::now());
        while *open > 0 {
            open = self.none_open.wait_timeout(open, DRAIN_TICK).unwrap_or_else(PoisonError::into_inner).0;
            if *open != last.0 {
                last = (*open, Instant::now());
            } else if last.1.elapsed() > 2 * self.settings.io_threads.deadline {
                break;
            }
        }
        let count = *open;
        drop(open);
        let io_threads = lock(&self.io_threads).take();
        if count == 0 {
            return Vec::new();
        }
        let mut left = vec![format!("{count} writes did not come back")];
        left.extend(
            io_threads.iter().flat_map(|io_threads| io_threads.stuck()).map(|stuck| stuck.in_words()),
        );
        left
    }
}

impl NewWrite {
    /// Where its file lies.
    pub(super) fn place(&self) -> Place {
        Place(self.file.parent, Some(self.file.name.clone()))
    }
}

impl Sink {
    /// Finds out where the objects of a file go; called once for each file, before its first object.
    pub(super) fn begin_path(&self, open: &OpenFile, file: &Arc<IoFile>) {
        let choice = &self.data.choice;
        let mut path = lock(&open.path);
        path.buffered = Some(file.clone());
        // A part begins anywhere, and what lies beside it stays.
        let is_part = self.files.in_place.as_ref().is_some_and(InPlace::is_part);
        if open.size > SMALL_LEN_MAX && choice.may_be_direct() && !is_part {
            path.alignment = Alignment::probe(descriptor(file));
            if path.alignment.is_none() {
                choice.on_refused(Errno::OPNOTSUPP);
            }
        }
        if path.alignment.is_some() && choice.mode() == IoMode::Direct {
            path.direct = self.open_direct(open, file);
            match path.direct {
                Some(_) => path.switch = ModeSwitch::new(IoMode::Direct),
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

    /// A write comes in; whatever becomes of it, it is answered.
    pub(super) fn new_write(self: &Arc<Self>, job: SinkJob) -> NewWrite {
        let SinkJob { op: SinkOp::Write { file, offset, len, buffer: id, start }, buffer } = job else {
            unreachable!("writes alone come here");
        };
        *lock(&self.data.open) += 1;
        let (sink, file_id) = (self.clone(), file.id);
        let owed = Owed::new(FailureKind::Write, move |result: Result<Took, Failure>| {
            let (took, result) = match result {
                Ok(took) => (Some(took), Ok(())),
                Err(failure) => (None, Err(failure)),
            };
            let done = SinkDone::Write { id: file_id, offset, len, buffer: id, took, result, again: false };
            (sink.post)(SinkCompletion { done });
            let mut open = lock(&sink.data.open);
            *open -= 1;
            if *open == 0 {
                sink.data.none_open.notify_all();
            }
        });
        // An object has its buffer for itself.
        let buffer = match buffer {
            Some(Payload::Own(buffer)) => Some(buffer),
            Some(Payload::Shared(_)) | None => None,
        };
        NewWrite { buffer, file, offset, len, start, owed }
    }

    /// Takes a write, if its file is ready; else gives it back for [`Sink::write_first`]. Never waits for
    /// storage.
    pub(super) fn write_if_ready(self: &Arc<Self>, write: NewWrite) -> Option<NewWrite> {
        let Some(open) = self.files.if_ready(&write.file) else { return Some(write) };
        if let Some((_, pending)) = self.take(write) {
            self.route(&open, pending);
        }
        None
    }

    /// Makes the file ready and takes the write.
    pub(super) fn write_first(self: &Arc<Self>, write: NewWrite) {
        let Some((file, pending)) = self.take(write) else { return };
        panic_point("panic~write_first", &escape::within(file.name.as_bytes()));
        let ready = guard(FailureKind::Write, || {
            self.may_make()?;
            self.files.ready(&file, |open, file| self.begin_path(open, file))
        });
        match ready {
            Ok(open) => self.route(&open, pending),
            Err(failure) => pending.fail(failure),
        }
    }

    /// The write, held against its file and its payload; a bad one is answered.
    fn take(&self, write: NewWrite) -> Option<(SinkFile, Pending)> {
        let NewWrite { owed, file, offset, len, start, buffer } = write;
        let payload = buffer.as_ref().map(Buffer::as_slice).unwrap_or_default();
        let fits = match slice(payload, start, u64::from(len)) {
            Err(failure) => Err(failure),
            Ok(_) if offset.checked_add(u64::from(len)).is_none_or(|end| end > file.size) => {
                let path = self.tree.path_of(file.parent, &file.name);
                let text = format!("{len} bytes at {offset} do not fit into the {} of {path}", file.size);
                Err(fault::failure(FailureKind::Protocol, 0, text))
            }
            Ok(_) => Ok(()),
        };
        match (buffer, fits) {
            (Some(buffer), Ok(())) => {
                Some((file, Pending { buffer, start: start as usize, offset, len, owed }))
            }
            (buffer, fits) => {
                drop(buffer);
                let none =
                    || fault::failure(FailureKind::Local, 0, "internal error: a write without payload");
                owed.settle(Err(fits.err().unwrap_or_else(none)));
                None
            }
        }
    }

    /// Does `work` on a file's way. A panic in it leaves the books of the file in doubt: the file fails, and
    /// with it every write that is held; what was under way has its own answer.
    fn watched(&self, open: &OpenFile, work: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            let text = format!("internal error: {}", words_of(&*panic));
            self.fail_held(open, &fault::failure(FailureKind::Write, 0, text));
        }
    }

    /// Sends a write to the I/O threads, or holds it while its file changes its mode.
    fn route(self: &Arc<Self>, open: &Arc<OpenFile>, pending: Pending) {
        self.watched(open, || {
            panic_point("panic~route", &escape::within(open.name.as_bytes()));
            let mut path = lock(&open.path);
            let shape = self.shape(open, &pending);
            if path.alignment.is_some_and(|alignment| alignment.pad(&shape).is_none()) {
                path.alignment = None;
            }
            let wish = match path.alignment {
                Some(_) => self.data.choice.mode_under_way(path.switch.mode()),
                None => IoMode::Buffered,
            };
            let admitted = path.switch.admit(wish, pending);
            let way = path.way();
            drop(path);
            match admitted {
                Admit::Go(pending) => self.launch(open, &way, pending),
                Admit::Held => {}
                Admit::Change => self.spawn_change(open, &way.file),
                Admit::Over(pending) => pending.fail(self.why_over(open)),
            }
        });
    }

    /// Why nothing more is written to a file that was given up.
    fn why_over(&self, open: &OpenFile) -> Failure {
        self.files.failure_of(open).unwrap_or_else(|| {
            let path = self.tree.path_of(open.parent, &open.name);
            fault::failure(FailureKind::Write, 0, format!("{path} was given up before this"))
        })
    }

    fn shape(&self, open: &OpenFile, pending: &Pending) -> Shape {
        let payload = pending.buffer.as_slice();
        Shape {
            address: payload.as_ptr().addr() + pending.start,
            // What a buffer of this length has at least.
            room: credit_cost(payload.len() as u64) as usize - pending.start,
            offset: pending.offset,
            len: pending.len as usize,
            size: open.size,
            request_size: self.data.settings.io_threads.request_size,
        }
    }

    /// Hands a write that the switch let through to the I/O threads. No lock is held: an I/O thread may want
    /// it.
    fn launch(&self, open: &Arc<OpenFile>, way: &Way, pending: Pending) {
        let mode = way.mode;
        let shape = self.shape(open, &pending);
        let Some(io_threads) = self.data.io_threads() else {
            // Storage hung until the engine had ended, and comes back now.
            return pending.fail(fault::failure(
                FailureKind::Write,
                0,
                "the session ended while the storage hung",
            ));
        };
        let Pending { owed, start, offset, len, mut buffer } = pending;
        let len = len as usize;
        let mut pad = 0;
        if let (IoMode::Direct, Some(alignment)) = (mode, way.alignment) {
            pad = alignment.pad(&shape).unwrap_or(0);
            buffer = with_zeros_behind(buffer, start, len, pad);
        }
        let uncached = mode == IoMode::Buffered && self.data.cache.asks_uncached();
        self.data.choice.begin(mode);
        let tag = Tag { owed, mode, open: open.clone() };
        let (file, kind) = (way.file.clone(), IoKind::Write);
        let offset = self.files.base() + offset;
        let target = open.target_at(offset).unwrap_or(file.target);
        io_threads.submit(Transfer { buffer, tag, file, target, kind, offset, start, len, pad, uncached });
    }

    /// An I/O thread's answer.
    pub(super) fn on_written(self: &Arc<Self>, done: TransferDone<Tag>) {
        let open = done.tag.open.clone();
        self.watched(&open, || self.take_written(done));
    }

    fn take_written(self: &Arc<Self>, done: TransferDone<Tag>) {
        // In this order: what is named later is dropped first, and the buffer must be back before the answer
        // is given up.
        let TransferDone {
            tag: Tag { owed, mode, open },
            file,
            offset: at,
            start,
            len,
            moved,
            error,
            service,
            refused_uncached,
            buffer,
        } = done;
        let offset = at.saturating_sub(self.files.base());
        panic_point("panic~on_written", &escape::within(open.name.as_bytes()));
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
            let refused = path.switch.refused(Pending { buffer, start, offset, len: len as u32, owed });
            drop(path);
            match refused {
                Ok(true) => self.spawn_change(&open, &file),
                Ok(false) => {}
                Err(pending) => pending.fail(self.why_over(&open)),
            }
            return;
        }
        drop(buffer);
        let result = guard(FailureKind::Write, || match error {
            Some((errno, failed_at)) => {
                let path = format!("{} at byte {failed_at}", self.tree.path_of(open.parent, &open.name));
                Err(fault::os_at(FailureKind::Write, "write", &path, errno, descriptor(&file)))
            }
            None if !good => {
                let path = self.tree.path_of(open.parent, &open.name);
                let text = format!(
                    "write {path} at byte {offset}: the storage took {moved} of {len} bytes and gave no reason"
                );
                Err(fault::failure(FailureKind::Write, Errno::IO.raw_os_error(), text))
            }
            None => Ok(Took { time: service, cached: mode == IoMode::Buffered }),
        });
        let mut path = lock(&open.path);
        if path.switch.ended(if good { len as u64 } else { 0 }) {
            self.spawn_change(&open, &file);
        }
        if good && mode == IoMode::Buffered && !self.data.cache.asks_uncached() {
            self.see_to_write_back(&open, &mut path, at, len as u64);
        }
        drop(path);
        owed.settle(result);
    }

    /// Starts write-back of what was written, on a thread of the engine: it can wait for the device's queue,
    /// and an I/O thread must not. One thread at a time for each file, so what waits for it is bounded.
    fn see_to_write_back(self: &Arc<Self>, open: &Arc<OpenFile>, path: &mut Path, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        if let Some((from, to)) = &mut path.write_back {
            (*from, *to) = ((*from).min(offset), (*to).max(end));
            return;
        }
        path.write_back = Some((offset, end));
        let Some(file) = path.buffered.clone() else { return };
        let open = open.clone();
        self.spawn(&file, "write back", move |sink| {
            let mut path = lock(&open.path);
            let (range, file) = (path.write_back.take(), path.buffered.clone());
            let syncs = path.syncs.clone();
            drop(path);
            let (Some((from, to)), Some(file)) = (range, file) else { return };
            let start = || {
                start_write_back(descriptor(&file), from, to - from).map_err(|errno| {
                    let name = sink.tree.path_of(open.parent, &open.temp);
                    unsynced(&name, errno, descriptor(&file), false)
                })
            };
            // No sync behind it makes a failure right, and none that runs beside it would hear of one.
            let _ = match haul_mutant::removed("write-back-may-fail") {
                true => start(),
                false => syncs.run(start),
            };
        });
    }

    fn spawn_change(self: &Arc<Self>, open: &Arc<OpenFile>, file: &Arc<IoFile>) {
        let open = open.clone();
        self.spawn(file, "sync", move |sink| {
            if let Err(failure) = guard(FailureKind::Sync, || sink.change_mode(&open)) {
                sink.fail_held(&open, &failure);
            }
        });
    }

    /// The file failed, and with it every write that was held.
    fn fail_held(&self, open: &OpenFile, failure: &Failure) {
        self.files.fail_open(open, failure, || true);
        let held = lock(&open.path).switch.give_up();
        held.into_iter().for_each(|pending| pending.fail(failure.clone()));
    }

    /// Nothing of the file is in flight: syncs what was written, changes the mode, and lets through what was
    /// held.
    fn change_mode(self: &Arc<Self>, open: &Arc<OpenFile>) -> Result<(), Failure> {
        let path = lock(&open.path);
        let file = path.buffered.clone().expect("set before the first write");
        let needs_sync = path.switch.needs_sync();
        drop(path);
        if needs_sync {
            self.sync_data(open, &file)?;
        }
        let mut path = lock(&open.path);
        let mut to = match path.alignment {
            Some(_) => path.switch.next().unwrap_or_default(),
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
        let held = path.switch.changed(to);
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
            retry_on_intr(|| self.data.sync(descriptor(file), Extent::Data)).map_err(|errno| {
                let in_place = self.files.in_place.is_some();
                let name = if in_place { &open.name } else { &open.temp };
                unsynced(&escape::within(name.as_bytes()), errno, descriptor(file), in_place)
            })
        })
    }

    /// Has a file synced, alone ([`Syncs`]), and keeps the books of it: the switch's, and of large files the
    /// choice's clock.
    pub(super) fn synced(
        &self,
        open: &OpenFile,
        sync: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let syncs = lock(&open.path).syncs.clone();
        syncs.run(|| {
            let (covered, mode) = {
                let path = lock(&open.path);
                (path.switch.sync_begins(), path.switch.mode())
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
                lock(&open.path).switch.synced(covered);
            }
            result
        })
    }
}

/// The buffer with `pad` zeros behind the payload at `start`: memory is used again, and older payload must
/// not get into a file.
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
