//! Objects: ranges of open files, read by the I/O threads and hashed on their threads.
//!
//! In: read operations of files that are open. Out: their completions, posted from an I/O thread with the
//! payload hashed while it is in the processor's cache. Each is answered once, also when a thread panics over
//! it ([`Owed`]); after the engine is dropped, none is.
//! Invariants: an object whose pages are cached is read from there, for direct I/O would flush and miss them.
//! A direct read that is refused is made again through the cache. Pages that were absent before are absent
//! after.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use haul_core::digest::DigestKind;
use haul_core::ids::{FileId, Generation, TargetId};
use haul_core::io::IoMode;
use haul_core::stage::Stage;
use haul_core::transfer::op::{ReadOk, SourceDone, SourceOp};
use haul_core::wire::{self, Failure, SLOT_LEN};
use rustix::io::Errno;

use super::cache::{self, Cached, Pages, Runs};
use super::failure::own_failure;
use super::mode::Modes;
use super::open::{ALIGN_MAX, OpenFile};
use super::tree::SourceTree;
use crate::io::threads::{IoThreads, Transfer, TransferDone};
use crate::io::{IoKind, IoTarget};
use crate::owed::{Owed, panic_point};
use crate::{Post, SourceCompletion, SourceJob};
use haul_base::buffer::Buffer;
use haul_base::digest;
use haul_base::meter::Meter;

/// Files of this size on are read direct where that is chosen. Below, the second open costs more than it
/// wins.
pub(super) const DIRECT_FILE_MIN: u64 = 1 << 20;
// The padding of a direct read lies in the slot that its last byte begins.
const _: () = assert!(ALIGN_MAX <= SLOT_LEN);

/// What an object's read has to know when it comes back.
pub(super) struct Tag {
    owed: Owed<SourceCompletion>,
    id: FileId,
    generation: Generation,
    tail: bool,
    whole: bool,
    /// Where it lies.
    target: TargetId,
    /// All of it was in the page cache: its time tells nothing of its target.
    was_cached: bool,
    open: Arc<OpenFile>,
    mode: IoMode,
    /// Nothing of it was cached before, so that its time tells of storage.
    is_sample: bool,
    /// Pages to let go of: absent before, and no help from the kernel.
    absent: Runs,
}

/// How an object is to be read.
struct Choice {
    mode: IoMode,
    is_sample: bool,
    /// What is cached of it, if that was asked.
    cached: Option<Cached>,
}

/// What I/O threads, reading threads and the engine share.
pub(super) struct Shared {
    pub(super) tree: Arc<SourceTree>,
    pub(super) meter: Arc<Meter>,
    pub(super) post: Post<SourceCompletion>,
    /// The engine is gone: nobody waits for answers.
    pub(super) stopped: AtomicBool,
    pub(super) pages: Pages,
    pub(super) modes: Modes,
    pub(super) digest: DigestKind,
    /// Objects that the I/O threads have.
    in_flight: AtomicUsize,
    /// For the second try of a refused direct read.
    objects: OnceLock<Weak<Objects>>,
}

/// The way of objects through the I/O threads.
pub(super) struct Objects {
    shared: Arc<Shared>,
    io_threads: IoThreads<Tag>,
    request_size: u32,
}

impl Shared {
    pub(super) fn new(
        tree: Arc<SourceTree>,
        meter: Arc<Meter>,
        post: Post<SourceCompletion>,
        pages: Pages,
        modes: Modes,
        digest: DigestKind,
    ) -> Arc<Shared> {
        let (stopped, in_flight) = (AtomicBool::new(false), AtomicUsize::new(0));
        let objects = OnceLock::new();
        Arc::new(Shared { tree, meter, post, stopped, pages, modes, digest, in_flight, objects })
    }

    /// The answer to a read of `len` bytes at `offset`, until it is settled or given up.
    fn owed(
        self: &Arc<Self>,
        (id, generation): (FileId, Generation),
        (offset, len): (u64, u32),
        target: TargetId,
    ) -> Owed<SourceCompletion> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        let shared = self.clone();
        Owed::new(wire::FailureKind::Read, move |answer: Result<SourceCompletion, Failure>| {
            shared.in_flight.fetch_sub(1, Ordering::Relaxed);
            let completion = answer.unwrap_or_else(|failure| {
                let (service, result) = (None, Err(failure));
                let done = SourceDone::Read { id, generation, offset, len, target, service, result };
                SourceCompletion { done, buffer: None }
            });
            if !shared.stopped.load(Ordering::Relaxed) {
                (shared.post)(completion);
            }
        })
    }

    /// Whether the I/O threads have anything to do.
    pub(super) fn has_objects(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) > 0
    }
}

impl Objects {
    pub(super) fn new(shared: Arc<Shared>, io_threads: IoThreads<Tag>, request_size: u32) -> Arc<Objects> {
        let objects = Arc::new(Objects { shared, io_threads, request_size });
        // Set here alone, once.
        let _ = objects.shared.objects.set(Arc::downgrade(&objects));
        objects
    }

    pub(super) fn io_threads(&self) -> &IoThreads<Tag> {
        &self.io_threads
    }

    /// Takes a read whose descriptors are open; gives back what a reading thread has to look at first. Never
    /// waits for storage.
    pub(super) fn submit(&self, mut job: SourceJob) -> Result<(), SourceJob> {
        let SourceOp::Read { id, generation, len, .. } = job.op else { return Err(job) };
        let tree = &self.shared.tree;
        let known = tree.file(id).filter(|view| view.generation == generation);
        let (Some(view), Some(open)) = (known, tree.open_file(id)) else { return Err(job) };
        let Some(buffer) = job.buffer.take() else { return Err(job) };
        let choice = self.choose(&open, view.size(), &job.op);
        if buffer.as_slice().len() != len as usize
            || (choice.mode == IoMode::Direct && open.is_direct_untried())
        {
            return Err(SourceJob { op: job.op, buffer: Some(buffer) });
        }
        self.send(open, &job.op, buffer, choice, None);
        Ok(())
    }

    /// Takes a read on a reading thread, which may wait: opens the descriptor for direct reads if need be.
    /// `buffer` is of the object's length.
    pub(super) fn submit_opening(&self, open: Arc<OpenFile>, op: &SourceOp, buffer: Buffer) {
        let SourceOp::Read { id, .. } = *op else { return };
        let shared = &self.shared;
        let Some(view) = shared.tree.file(id) else {
            // Forgotten this moment: nobody waits for more than an answer.
            let choice = Choice { mode: IoMode::Buffered, is_sample: false, cached: None };
            return self.send(open, op, buffer, choice, None);
        };
        let mut choice = self.choose(&open, view.size(), op);
        if choice.mode == IoMode::Direct && open.is_direct_untried() {
            let opened = shared
                .meter
                .busy(Stage::SourceStorage, || open.open_direct(|| shared.tree.dir_fd(view.place), &view));
            if let Err(why) = opened {
                shared.modes.on_refused(open.dev(), &why);
                choice.mode = IoMode::Buffered;
            }
        }
        self.send(open, op, buffer, choice, None);
    }

    /// Direct or buffered for one object.
    fn choose(&self, open: &OpenFile, size: u64, op: &SourceOp) -> Choice {
        let SourceOp::Read { offset, len, .. } = *op else { unreachable!("only reads are objects") };
        let modes = &self.shared.modes;
        let possible = open.is_direct_untried() || open.direct().is_some();
        if size < DIRECT_FILE_MIN || !possible || !modes.may_be_direct(open.dev()) {
            return Choice { mode: IoMode::Buffered, is_sample: false, cached: None };
        }
        let offset = self.shared.tree.base() + offset;
        let cached = self.shared.pages.cached(open.fd(), offset, u64::from(len));
        if cached == Cached::All {
            return Choice { mode: IoMode::Buffered, is_sample: false, cached: Some(cached) };
        }
        let is_sample = matches!(cached, Cached::None | Cached::Unknown);
        Choice { mode: modes.mode(), is_sample, cached: Some(cached) }
    }

    /// Hands a read to the I/O threads. It is owed an answer from here on, and who calls this gives it none,
    /// not even if this panics; `owed`: it was before.
    fn send(
        &self,
        open: Arc<OpenFile>,
        op: &SourceOp,
        buffer: Buffer,
        choice: Choice,
        owed: Option<Owed<SourceCompletion>>,
    ) {
        let SourceOp::Read { id, generation, offset, len, tail, whole, target } = *op else { return };
        let shared = &self.shared;
        // Where it lies in what stands there.
        let at = shared.tree.base() + offset;
        let Choice { mut mode, mut is_sample, cached } = choice;
        let was_cached = cached == Some(Cached::All);
        let mut file = open.plain().clone();
        let mut pad = 0;
        if mode == IoMode::Direct {
            let fits = |align: u64| at.is_multiple_of(align) && u64::from(self.request_size) >= align;
            match open.direct().filter(|direct| fits(direct.align)) {
                Some(direct) => {
                    file = direct.file.clone();
                    pad = (u64::from(len).next_multiple_of(direct.align) - u64::from(len)) as usize;
                }
                None => (mode, is_sample) = (IoMode::Buffered, false),
            }
        }
        let uncached = mode == IoMode::Buffered && shared.pages.known_dontcache(open.dev()) != Some(false);
        let absent = match (mode, cached) {
            (IoMode::Direct, _) | (_, Some(Cached::All)) => Runs::new(),
            _ if uncached => Runs::new(),
            _ => shared.pages.absent(open.fd(), at, u64::from(len)),
        };
        if is_sample {
            shared.modes.begin(mode);
        }
        let owed = owed.unwrap_or_else(|| shared.owed((id, generation), (offset, len), target));
        let len = buffer.as_slice().len();
        let tag =
            Tag { owed, id, generation, tail, whole, target, was_cached, open, mode, is_sample, absent };
        let target = IoTarget::One(target);
        let kind = IoKind::Read;
        let read = Transfer { buffer, tag, file, target, kind, offset: at, start: 0, len, pad, uncached };
        // The hook has reported a panic, and the answer is given where it is dropped.
        drop(catch_unwind(AssertUnwindSafe(|| self.io_threads.submit(read))));
    }

    /// Once more, through the cache.
    fn again(&self, tag: Tag, offset: u64, buffer: Buffer) {
        let Tag { owed, id, generation, tail, whole, target, open, .. } = tag;
        let len = buffer.as_slice().len() as u32;
        let op = SourceOp::Read { id, generation, offset, len, tail, whole, target };
        let choice = Choice { mode: IoMode::Buffered, is_sample: false, cached: None };
        self.send(open, &op, buffer, choice, Some(owed));
    }
}

/// What the I/O threads call.
pub(super) fn on_done(shared: &Arc<Shared>) -> Post<TransferDone<Tag>> {
    let shared = shared.clone();
    Arc::new(move |done| shared.finish(done))
}

thread_local! {
    /// When this I/O thread last ended a completion.
    static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
}

impl Shared {
    /// Takes what the I/O threads bring back. Runs on an I/O thread.
    fn finish(&self, done: TransferDone<Tag>) {
        let now = Instant::now();
        // What lies between was not spent on payload by this thread.
        if let Some(last) = LAST.get() {
            self.meter.add_idle(Stage::SourceHost, now.saturating_duration_since(last));
        }
        self.take_up(done);
        LAST.set(Some(Instant::now()));
    }

    fn take_up(&self, done: TransferDone<Tag>) {
        let TransferDone { tag, offset: at, buffer, len, moved, error, service, refused_uncached, .. } = done;
        let offset = at.saturating_sub(self.tree.base());
        panic_point("panic~take_up", &String::from_utf8_lossy(&self.tree.path_of(tag.id)));
        let is_whole = error.is_none() && moved >= len;
        if tag.is_sample {
            self.modes.end(tag.mode, if is_whole { len as u64 } else { 0 });
        }
        if refused_uncached {
            self.pages.set_dontcache(tag.open.dev(), false);
        }
        if self.stopped.load(Ordering::Relaxed) {
            // Given up, and told to nobody.
            return;
        }
        if let Some((errno @ (Errno::INVAL | Errno::OPNOTSUPP), failed_at)) = error
            && tag.mode == IoMode::Direct
        {
            // Further on it can be the end of a file that shrank, which is no word on the file system.
            if failed_at == at {
                let why = format!("a read was refused: {}", haul_base::errno::text(errno));
                self.modes.on_refused(tag.open.dev(), &why);
            }
            tag.open.fail_direct();
            // Without an engine nobody waits for the answer.
            if let Some(objects) = self.objects.get().and_then(Weak::upgrade) {
                objects.again(tag, offset, buffer);
            }
            return;
        }
        if tag.mode == IoMode::Direct && tag.is_sample {
            self.hold_to_direct(&tag, at, len);
        }
        let (id, generation) = (tag.id, tag.generation);
        let hashed = || match error {
            Some((errno, failed_at)) => Err(read_failure(&self.tree, id, failed_at, errno)),
            None if !is_whole && !haul_mutant::removed("nothing-is-filled-up") => {
                Err(short_failure(&self.tree, id, at + moved as u64))
            }
            None => Ok(self.hash(&tag, offset, &buffer)),
        };
        let result = catch_unwind(AssertUnwindSafe(hashed)).unwrap_or_else(|_| {
            Err(own_failure(wire::FailureKind::Read, "read", b"source", "internal error in a reading thread"))
        });
        cache::drop_pages(tag.open.fd(), &tag.absent);
        let service = (!tag.was_cached).then_some(service);
        let (len, target) = (len as u32, tag.target);
        let done = SourceDone::Read { id, generation, offset, len, target, service, result };
        tag.owed.settle(Ok(SourceCompletion { done, buffer: Some(buffer) }));
    }

    /// Some file systems take direct reads and answer them through the page cache (btrfs, what it
    /// compressed). None of the object was there before.
    fn hold_to_direct(&self, tag: &Tag, offset: u64, len: usize) {
        let open = &tag.open;
        if self.pages.cached(open.fd(), offset, len as u64) == Cached::All {
            cache::drop_pages(open.fd(), &self.pages.around(offset, len as u64));
            open.fail_direct();
            self.modes.on_refused(open.dev(), "direct reads go through the page cache");
        }
    }

    fn hash(&self, tag: &Tag, offset: u64, buffer: &Buffer) -> ReadOk {
        let cvs = self.meter.busy(Stage::SourceHost, || {
            if tag.whole {
                vec![digest::root(self.digest, buffer.as_slice())]
            } else {
                digest::chaining_values(self.digest, offset, buffer.as_slice(), tag.tail)
            }
        });
        ReadOk { buffer: buffer.id(), cvs }
    }
}

/// The system refused to read at `offset`.
pub(super) fn read_failure(tree: &SourceTree, id: FileId, offset: u64, errno: Errno) -> Failure {
    tree.failed(wire::FailureKind::Read, &format!("read at byte {offset} of"), id, errno)
}

/// The file ended at `offset`, before it should.
pub(super) fn short_failure(tree: &SourceTree, id: FileId, offset: u64) -> Failure {
    let op = format!("read at byte {offset} of");
    own_failure(wire::FailureKind::Changed, &op, &tree.path_of(id), "the file is shorter than it was")
}
