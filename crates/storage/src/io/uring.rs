//! The engine on io_uring: one ring, registered files and memory, no thread of ours.
//!
//! In: operations, each one entry of the submission queue, handed to the kernel at once. Out: completions.
//!
//! Invariants: the memory of an operation and the array that describes it stay where they are until the
//! kernel says that it is done; if the engine goes before that, however it goes, they are leaked rather than
//! given back, for the kernel may still write to them: their type does that ([`Lent`]), and only a completion
//! takes them out of it. The queues are made for every operation, the waker and their cancellations at once,
//! so no completion is lost. A file that nobody else holds is not kept open by its registration for longer
//! than [`SWEEP_INTERVAL`]. The ring is restricted to the calls that it needs before it takes the first.
//!
//! What the kernel would have to wait for it hands to its own threads; they may be as many as operations, so
//! that one that hangs does not hold up others. But for writes they keep an order: one at a time to a file
//! (and to files that fall into the same of 64 buckets), buffered always, direct where the file system does
//! not say that it can do better. ext4 and XFS say so; btrfs, NFS, Lustre and FUSE do not, and where these
//! cannot begin a write without waiting either (all but btrfs), threads of ours (`pread`) have more writes of
//! one file in flight. A direct write to FUSE even waits for the file's lock in the thread that hands it
//! over. So a sink on such a file system has threads.
//!
//! Left out: `SINGLE_ISSUER` and `DEFER_TASKRUN`, for they tie a ring to one thread, and an engine is made on
//! one and used on another. Polling, of either side: it costs a processor.

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use haul_core::io::IoMode;
use io_uring::register::Restriction;
use io_uring::squeue::Flags;
use io_uring::types::{Fd, Fixed, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, Submitter, cqueue, opcode, squeue};
use rustix::event::EventfdFlags;
use rustix::io::Errno;

use super::{DEPTH_MAX, Engine, EngineConfig, EngineFacts, Full, IoDone, IoKind, IoOp, RWF_DONTCACHE, Waker};

use haul_base::buffer::Part;
use haul_base::errno;
use table::{BUFFERS_MAX, Buffers, FILES_MAX, Files};

mod table;

/// How long a waiting engine can keep a file open that nobody uses.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);
/// The longest single wait in the kernel, far below what its clock can add up.
const WAIT_MAX: Duration = Duration::from_secs(3600);
/// How long a dropped engine waits for what it cancelled.
const CANCEL_WAIT: Duration = Duration::from_secs(1);
/// Pause before the kernel is asked again that had no memory for a request.
const RETRY_PAUSE: Duration = Duration::from_millis(1);
/// The most that one read or write moves (`MAX_RW_COUNT`).
const TRANSFER_MAX: usize = 0x7fff_f000;

/// `user_data` of what is no operation; those have the number of their slot.
const WAKE: u64 = u64::MAX;
const CANCEL: u64 = u64::MAX - 1;
const NOP: u64 = u64::MAX - 2;

/// Operations that a ring must know.
const OPCODES: [(u8, &str); 8] = [
    (opcode::Nop::CODE, "nop"),
    (opcode::Readv::CODE, "readv"),
    (opcode::Writev::CODE, "writev"),
    (opcode::ReadFixed::CODE, "read_fixed"),
    (opcode::WriteFixed::CODE, "write_fixed"),
    (opcode::Fsync::CODE, "fsync"),
    (opcode::PollAdd::CODE, "poll_add"),
    (opcode::AsyncCancel::CODE, "async_cancel"),
];
/// `IORING_REGISTER_FILES_UPDATE` and `IORING_REGISTER_BUFFERS_UPDATE`: what is registered later.
const REGISTER_CALLS: [u8; 2] = [6, 16];

/// An engine with a ring of its own.
pub struct Uring {
    ring: IoUring,
    depth: usize,
    /// At most `depth`, made when they are needed.
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Ended without the kernel: what must not or cannot be asked.
    refused: VecDeque<IoDone>,
    in_flight: usize,
    bell: Arc<Bell>,
    /// The ring watches the bell.
    listening: bool,
    files: Files,
    buffers: Buffers,
    /// The ring does not take entries any more, and why.
    broken: Option<Errno>,
    remarks: Vec<String>,
}

/// Where an operation lives while the kernel has it.
struct Slot {
    /// The operation but for its parts, which are in `lent`.
    op: Option<IoOp>,
    lent: Option<Lent>,
    submitted: Instant,
    /// Registered memory that the operation uses.
    buffer: Option<u16>,
}

/// What the kernel uses until it says that it is done. Dropped, it leaks: whoever goes without a completion
/// (a panic, a request that hangs in a device) must not give back memory that may still be written to.
struct Lent {
    parts: ManuallyDrop<Vec<Part>>,
    /// Describes several parts. Only the kernel looks at it, so it does not move before the completion.
    iovecs: ManuallyDrop<Vec<libc::iovec>>,
}

impl Lent {
    fn new(parts: Vec<Part>, iovecs: Vec<libc::iovec>) -> Lent {
        Lent { parts: ManuallyDrop::new(parts), iovecs: ManuallyDrop::new(iovecs) }
    }

    /// The kernel is done with it.
    fn back(self) -> Vec<Part> {
        drop(ManuallyDrop::into_inner(self.iovecs));
        ManuallyDrop::into_inner(self.parts)
    }
}

// SAFETY: the pointers in `iovecs` lead into `parts`, which are `Send` and travel with them, and are followed
// by the kernel alone.
#[allow(unsafe_code)]
unsafe impl Send for Lent {}

/// Wakes the engine from other threads.
struct Bell {
    fd: OwnedFd,
    /// Rung and not heard yet: once is enough.
    rung: AtomicBool,
}

impl Uring {
    /// A ring that was tried. May be used on another thread than this one.
    ///
    /// # Errors
    /// The kernel has no io_uring, forbids it, or lacks a part that is needed. The text is for people and
    /// says what to do.
    pub fn open(config: &EngineConfig) -> io::Result<Uring> {
        let depth = config.depth.clamp(1, DEPTH_MAX);
        let fail = |what: &'static str| move |error: io::Error| explain(what, &error);
        let ring = new_ring(depth).map_err(fail("io_uring_setup"))?;
        let submitter = ring.submitter();

        let params = ring.params();
        if !params.is_feature_ext_arg() || !params.is_feature_nodrop() || !params.is_feature_fast_poll() {
            return Err(too_old("timed waits (Linux 5.11)"));
        }
        let mut probe = Probe::new();
        submitter.register_probe(&mut probe).map_err(fail("io_uring_register"))?;
        if let Some((_, name)) = OPCODES.iter().find(|(code, _)| !probe.is_supported(*code)) {
            return Err(too_old(name));
        }

        let mut remarks = Vec::new();
        // The kernel's own limit is four threads a processor, which as many hung operations would use up.
        // Before Linux 5.15 it stays.
        let _ = submitter.register_iowq_max_workers(&mut [depth as u32, 0]);
        let files = Files::new(submitter.register_files_sparse(FILES_MAX).is_ok());
        let mut buffers = Buffers::new(config.registered_max);
        if buffers.on
            && let Err(error) = submitter.register_buffers_sparse(BUFFERS_MAX.into())
        {
            buffers.on = false;
            remarks.push(format!("buffers are not registered: {} (needs Linux 5.19)", errno::text(error)));
        }
        // A ring that is more open than it need be works as well, and says so.
        restrict(&submitter, &mut remarks);
        submitter.register_enable_rings().map_err(fail("io_uring_register"))?;

        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let mut uring = Uring {
            ring,
            depth,
            slots: Vec::new(),
            free: Vec::new(),
            refused: VecDeque::new(),
            in_flight: 0,
            bell: Arc::new(Bell { fd, rung: AtomicBool::new(false) }),
            listening: false,
            files,
            buffers,
            broken: None,
            remarks,
        };
        uring.try_out().map_err(fail("io_uring_enter"))?;
        Ok(uring)
    }

    /// One operation that does nothing, there and back.
    fn try_out(&mut self) -> io::Result<()> {
        self.push(&opcode::Nop::new().build().user_data(NOP));
        self.ring.submit_and_wait(1)?;
        match self.ring.completion().next() {
            Some(entry) if entry.user_data() == NOP && entry.result() >= 0 => Ok(()),
            Some(entry) => Err(io::Error::from_raw_os_error(-entry.result())),
            None => Err(Errno::IO.into()),
        }
    }

    /// Puts an entry into the submission queue; what it points to must be in a slot.
    #[allow(unsafe_code)]
    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: an operation's memory and array are lent to the kernel in its slot (`Lent`), where they
        // stay until its completion and leak if that never comes; its file is in the slot too, or registered,
        // and the kernel holds it open once it has the entry; other entries point to nothing.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.expect("the queue is as long as all that can be in it");
    }

    /// Hands what is in the submission queue to the kernel. What it does not take now it takes later.
    fn enter(&mut self) {
        if let Err(error) = self.ring.submit() {
            self.note(&error);
        }
    }

    /// Whether asking again later helps. If not the ring is broken.
    fn note(&mut self, error: &io::Error) -> bool {
        match Errno::from_io_error(error) {
            Some(Errno::INTR | Errno::AGAIN | Errno::BUSY | Errno::TIME) => true,
            errno => {
                self.broken = Some(errno.unwrap_or(Errno::IO));
                false
            }
        }
    }

    /// The entry of an operation, whose parts are lent to the kernel with it. The slot is filled but for the
    /// operation.
    fn entry(&mut self, op: &mut IoOp, index: usize) -> squeue::Entry {
        let mut iovecs = Vec::new();
        let entry = self.describe(op, index, &mut iovecs);
        // Both keep their memory where it is: what moves is the vectors' own words.
        self.slots[index].lent = Some(Lent::new(std::mem::take(&mut op.parts), iovecs));
        entry
    }

    fn describe(&mut self, op: &mut IoOp, index: usize, iovecs: &mut Vec<libc::iovec>) -> squeue::Entry {
        let submitter = self.ring.submitter();
        let raw = op.file.fd.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let fixed = self.files.index_of(&submitter, &op.file, raw);
        let slot = &mut self.slots[index];
        let rw_flags = if op.uncached { RWF_DONTCACHE } else { 0 };
        let (offset, pad) = (op.offset, op.pad);
        macro_rules! build {
            ($opcode:ident($($argument:expr),*) $(.$set:ident($value:expr))*) => {
                match fixed {
                    Some(fixed) => opcode::$opcode::new(Fixed(fixed), $($argument),*)$(.$set($value))*.build(),
                    None => opcode::$opcode::new(Fd(raw), $($argument),*)$(.$set($value))*.build(),
                }
            };
        }
        if op.kind == IoKind::Sync {
            return build!(Fsync().flags(FsyncFlags::DATASYNC));
        }
        if let [part] = &mut op.parts[..] {
            slot.buffer = self.buffers.take(&submitter, part.slab(), &mut self.remarks);
            if let Some(buffer) = slot.buffer {
                let len = (part.len() + pad).min(TRANSFER_MAX) as u32;
                let address = part.room_mut().as_mut_ptr();
                return match op.kind {
                    IoKind::Read => build!(ReadFixed(address, len, buffer).offset(offset).rw_flags(rw_flags)),
                    _ => build!(WriteFixed(address, len, buffer).offset(offset).rw_flags(rw_flags)),
                };
            }
        }
        iovecs.extend(
            op.parts.iter_mut().map(|part| libc::iovec {
                iov_len: part.len(),
                iov_base: part.room_mut().as_mut_ptr().cast(),
            }),
        );
        if let Some(last) = iovecs.last_mut() {
            last.iov_len += pad;
        }
        let (iovecs, count) = (iovecs.as_ptr(), iovecs.len() as u32);
        match op.kind {
            IoKind::Read => build!(Readv(iovecs, count).offset(offset).rw_flags(rw_flags)),
            _ => build!(Writev(iovecs, count).offset(offset).rw_flags(rw_flags)),
        }
    }

    /// Takes completions out of the ring; whether the bell was rung.
    fn collect(&mut self, done: &mut VecDeque<IoDone>) -> bool {
        self.in_flight -= self.refused.len();
        done.append(&mut self.refused);
        let mut woken = false;
        let completed = Instant::now();
        for entry in self.ring.completion() {
            match entry.user_data() {
                WAKE => {
                    self.listening = false;
                    // Also if it was cancelled, because the thread that began to listen is gone.
                    woken |= self.bell.hear();
                    if let Some(errno) = errno_of(&entry)
                        && errno != Errno::CANCELED
                    {
                        self.broken = Some(errno);
                    }
                }
                CANCEL | NOP => {}
                index => {
                    let slot = &mut self.slots[index as usize];
                    let mut op = slot.op.take().expect("an operation completes once");
                    if let Some(lent) = slot.lent.take() {
                        op.parts = lent.back();
                    }
                    if let Some(buffer) = slot.buffer.take() {
                        self.buffers.give_back(buffer);
                    }
                    let result = errno_of(&entry).map_or(Ok(entry.result() as usize), Err);
                    done.push_back(IoDone { op, result, submitted: slot.submitted, completed });
                    self.free.push(index as usize);
                    self.in_flight -= 1;
                }
            }
        }
        woken
    }

    /// Has the ring watch the bell. Done where the engine is used: a thread that ends takes such waits along.
    fn listen(&mut self) {
        if !self.listening {
            self.listening = true;
            let fd = Fd(self.bell.fd.as_raw_fd());
            self.push(&opcode::PollAdd::new(fd, libc::POLLIN as u32).build().user_data(WAKE));
        }
    }

    /// Waits in the kernel for a completion, at most `wait`.
    fn wait(&mut self, wait: Duration) {
        let timespec = Timespec::from(wait);
        let args = SubmitArgs::new().timespec(&timespec);
        if let Err(error) = self.ring.submitter().submit_with_args(1, &args)
            && self.note(&error)
            && matches!(Errno::from_io_error(&error), Some(Errno::AGAIN | Errno::BUSY))
        {
            std::thread::sleep(wait.min(RETRY_PAUSE));
        }
    }
}

impl Engine for Uring {
    fn submit(&mut self, mut op: IoOp) -> Result<(), Full> {
        if self.in_flight == self.depth {
            return Err(Full(op));
        }
        self.in_flight += 1;
        let submitted = Instant::now();
        let fd = op.file.fd.as_ref().ok_or(Errno::BADF);
        if let Err(errno) = op.check().and(fd.map(drop)) {
            self.refused.push_back(IoDone { op, result: Err(errno), submitted, completed: submitted });
            return Ok(());
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { op: None, lent: None, submitted, buffer: None });
            self.slots.len() - 1
        });
        let wanted = op.wanted();
        let mut entry = self.entry(&mut op, index).user_data(index as u64);
        if op.kind == IoKind::Read && wanted > inline_max(op.file.mode) {
            entry = entry.flags(Flags::ASYNC);
        }
        let slot = &mut self.slots[index];
        slot.op = Some(op);
        slot.submitted = submitted;
        self.push(&entry);
        self.enter();
        Ok(())
    }

    fn reap(&mut self, done: &mut VecDeque<IoDone>, wait: Duration) -> io::Result<()> {
        let deadline = Instant::now().checked_add(wait);
        let before = done.len();
        let mut asked = false;
        loop {
            let woken = self.collect(done);
            self.files.sweep(&self.ring.submitter());
            if woken || done.len() > before {
                return Ok(());
            }
            if let Some(errno) = self.broken {
                return Err(io::Error::new(
                    errno.kind(),
                    format!("io_uring does not go on: {}", errno::text(errno)),
                ));
            }
            let now = Instant::now();
            let left = deadline.map_or(WAIT_MAX, |deadline| deadline.saturating_duration_since(now));
            if left.is_zero() && asked {
                return Ok(());
            }
            asked = true;
            self.listen();
            match left.is_zero() {
                true => self.enter(),
                false => {
                    self.wait(left.min(if self.files.entries.is_empty() { WAIT_MAX } else { SWEEP_INTERVAL }))
                }
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn waker(&self) -> Waker {
        let bell = self.bell.clone();
        Arc::new(move || bell.ring())
    }

    fn facts(&self) -> EngineFacts {
        EngineFacts { name: "uring", remarks: self.remarks.clone() }
    }
}

impl Drop for Uring {
    /// Cancels what is in flight and waits for it, at most [`CANCEL_WAIT`]. The memory of what the kernel has
    /// even then (a request that hangs in a device) is leaked: the kernel may still write to it.
    fn drop(&mut self) {
        let mut done = VecDeque::new();
        self.collect(&mut done);
        if self.in_flight > 0 {
            // Empties the queue, so that there is room for as many cancellations.
            self.enter();
            for index in 0..self.slots.len() {
                if self.slots[index].op.is_some() && !self.ring.submission().is_full() {
                    self.push(&opcode::AsyncCancel::new(index as u64).build().user_data(CANCEL));
                }
            }
            let deadline = Instant::now() + CANCEL_WAIT;
            while self.in_flight > 0 && self.broken.is_none() {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                self.wait(left);
                self.collect(&mut done);
            }
        }
        // What is still lent leaks with its slot.
        // The kernel takes a closed ring apart later, and a file that was just written must not be held open
        // until then: whoever runs it would hear that it is busy.
        self.files.clear(&self.ring.submitter());
    }
}

impl Bell {
    fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            // Cannot fail: the counter is not near its end.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Makes the bell ready again; whether it was rung.
    fn hear(&self) -> bool {
        let heard = rustix::io::read(&self.fd, &mut [0; 8]).is_ok();
        // After the counter, so that no ring is lost between: one that comes before this is heard now.
        self.rung.swap(false, Ordering::AcqRel) || heard
    }
}

/// Registers memory at `index`, or with no length frees the index.
#[allow(unsafe_code)]
fn update_buffer(submitter: &Submitter<'_>, index: u16, address: usize, len: usize) -> io::Result<()> {
    let base = std::ptr::with_exposed_provenance_mut(address);
    let iovec = libc::iovec { iov_base: base, iov_len: len };
    // SAFETY: the kernel pins the pages, so registered memory that was given back is never somebody else's to
    // it. It is touched only by an operation that has a part of the slab with this id, which therefore lives.
    unsafe { submitter.register_buffers_update(index.into(), &[iovec], None) }
}

/// A ring that does not run yet, for `depth` operations and the waker, or as many cancellations.
fn new_ring(depth: usize) -> io::Result<IoUring> {
    let entries = depth as u32 + 2;
    let mut builder = IoUring::builder();
    builder.setup_r_disabled().setup_coop_taskrun().setup_taskrun_flag();
    builder.build(entries).or_else(|error| match Errno::from_io_error(&error) {
        // Before Linux 5.19 completions interrupt the thread.
        Some(Errno::INVAL) => IoUring::builder().setup_r_disabled().build(entries),
        _ => Err(error),
    })
}

/// Has the ring refuse what haul never asks of it.
fn restrict(submitter: &Submitter<'_>, remarks: &mut Vec<String>) {
    if let Err(error) = submitter.register_restrictions(&mut restrictions()) {
        remarks
            .push(format!("the ring is not restricted to the calls that haul needs: {}", errno::text(error)));
    }
}

fn restrictions() -> Vec<Restriction> {
    let operations = OPCODES.iter().map(|(code, _)| Restriction::sqe_op(*code));
    let calls = REGISTER_CALLS.iter().map(|call| Restriction::register_op(*call));
    operations
        .chain(calls)
        .chain([Restriction::sqe_flags_allowed((Flags::FIXED_FILE | Flags::ASYNC).bits())])
        .collect()
}

/// The longest read that the submitting thread may begin itself. It is held up where the device's queue is
/// full (direct reads of 16 MiB, 16 in flight, on a disk that takes 256 requests of 1 MiB: 6.6 ms each, and
/// nothing of that when the kernel's threads begin them) and copies what is cached (16 MiB: 1.4 ms). Their
/// help costs 10 us, which is seen in the processor time of direct reads of 1 MiB (22 or 32 ms per GB at
/// depth 1). Writes are never sent there by us: the kernel's threads may do them one after another (see
/// above).
fn inline_max(mode: IoMode) -> usize {
    match mode {
        IoMode::Direct => 1 << 20,
        IoMode::Buffered => 64 << 10,
    }
}

fn errno_of(entry: &cqueue::Entry) -> Option<Errno> {
    (entry.result() < 0).then(|| Errno::from_raw_os_error(-entry.result()))
}

fn too_old(what: &str) -> io::Error {
    let text = format!("io_uring cannot be used: this kernel's lacks {what}; a newer kernel has it");
    io::Error::new(io::ErrorKind::Unsupported, text)
}

/// Why there is no ring, and what to do.
fn explain(what: &str, error: &io::Error) -> io::Error {
    let advice = match Errno::from_io_error(error) {
        Some(Errno::PERM | Errno::ACCESS) => {
            let sysctl = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
            match sysctl.trim() {
                "1" | "2" => format!(
                    "; the administrator switched it off (sysctl kernel.io_uring_disabled is {}, 0 allows it)",
                    sysctl.trim()
                ),
                _ => "; a seccomp filter, as containers have, forbids it: allow io_uring_setup, io_uring_enter and \
                      io_uring_register"
                    .into(),
            }
        }
        Some(Errno::NOSYS) => {
            "; this kernel has none (it came with Linux 5.1), or a seccomp filter hides it".into()
        }
        Some(Errno::NOMEM) => "; raise the limit of locked memory (ulimit -l)".into(),
        _ => String::new(),
    };
    io::Error::new(error.kind(), format!("io_uring cannot be used: {what}: {}{advice}", errno::text(error)))
}

#[cfg(test)]
#[path = "uring_tests.rs"]
mod tests;
