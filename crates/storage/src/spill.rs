//! The spill file: frames of the source that wait on flash while the sink stalls.
//!
//! In: a directory and a size; buffers for slots, and slots to be read again. Out: the buffers back, with
//! what became of them, posted from an I/O thread. The file has no name from its first moment on
//! (`O_TMPFILE`), so that nothing is left of it however haul ends; after a crash it is useless by design. Its
//! blocks are allocated before the first frame, so that it is never the spill that fills a disk in the middle
//! of a transfer. Direct I/O where the file system takes it: a page cache would only hold the same bytes once
//! more.
//! Left out: which frame goes when (`transfer::source::spill`), and digests: a frame's header keeps them, and
//! the sink holds what arrives against them.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use haul_core::io::{IoMode, OrderPolicy};
use haul_core::stage::Stage;
use haul_core::transfer::source::SPILL_SLOTS_MAX;
use haul_core::wire::{self, Failure};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use super::Post;
use super::io::threads::{IoThreads, IoThreadsConfig, Transfer, TransferDone};
use super::io::{EngineConfig, IoFile, IoKind, IoTarget};
use super::owed::Owed;
use super::source::failure::{os_failure, own_failure};
use crate::options::EngineName;
use crate::sink::space::fits;
use haul_base::buffer::Buffer;
use haul_base::errno;
use haul_base::meter::Meter;

/// Slots begin at multiples of this, and are whole ones of it: what direct I/O asks for at most on any device
/// we know.
const ALIGN: u64 = 4096;
/// Frames that are with the device at a time.
const DEPTH: usize = 8;
const IO_THREADS: usize = 2;
/// What takes longer is named as stuck.
const DEADLINE: Duration = Duration::from_secs(10);

/// What was done to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpillOp {
    Store,
    Fetch,
}

/// A slot was written or read.
pub struct SpillDone {
    pub slot: u32,
    pub op: SpillOp,
    /// The buffer that was given; of a fetch that went well it holds the frame's payload. `None`: it is lost,
    /// for a thread panicked over it.
    pub buffer: Option<Buffer>,
    pub result: Result<(), Failure>,
}

/// Why there is no spill file: which directory, what was tried, why not, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum SpillError {
    #[error("cannot spill to {path}: {what}: {}{remedy}", errno::text(source))]
    Io { path: String, what: &'static str, source: std::io::Error, remedy: &'static str },
    #[error("cannot spill to {path}: {size} bytes hold no frame of {slot_len}; use a larger `spill_size`")]
    Small { path: String, size: u64, slot_len: u64 },
}

/// The spill file of one source; gone when it is dropped.
pub struct SpillFile {
    io_threads: IoThreads<Tag>,
    post: Post<SpillDone>,
    file: Arc<IoFile>,
    slots: u32,
    slot_len: u64,
    /// Pad to whole blocks.
    direct: bool,
}

struct Tag {
    owed: Owed<SpillDone>,
    slot: u32,
    op: SpillOp,
}

/// What helps where no file can be made in the directory.
fn remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::NOENT => "; make the directory at the source's host, or name one that is there",
        Errno::NOTDIR => "; name a directory",
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            "; name a directory at the source's host that you may write to"
        }
        _ => "",
    }
}

impl SpillFile {
    /// Makes a file of up to `size` bytes below `dir`, for frames of up to `frame_len` bytes each.
    /// Completions go to `post`, at most one for each submission.
    ///
    /// # Errors
    /// The directory cannot be used, its file system has no files without a name, it has no room, or `size`
    /// is less than one frame.
    pub fn create(
        dir: &Path,
        size: u64,
        frame_len: u64,
        post: Post<SpillDone>,
    ) -> Result<SpillFile, SpillError> {
        let slot_len = frame_len.next_multiple_of(ALIGN);
        let path = || dir.display().to_string();
        let failed = |what, remedy| {
            move |errno: Errno| SpillError::Io {
                path: dir.display().to_string(),
                what,
                source: errno.into(),
                remedy,
            }
        };
        let slots = u32::try_from(size / slot_len).unwrap_or(u32::MAX).min(SPILL_SLOTS_MAX);
        if slots == 0 {
            return Err(SpillError::Small { path: path(), size, slot_len });
        }
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let open = |more| rustix::fs::open(dir, flags | more, mode);
        let (fd, direct): (OwnedFd, bool) = match open(OFlags::DIRECT) {
            Ok(fd) => (fd, true),
            Err(Errno::INVAL) => {
                (open(OFlags::empty()).map_err(failed("making a file without a name there", ""))?, false)
            }
            Err(errno @ (Errno::OPNOTSUPP | Errno::ISDIR)) => {
                let remedy = "; name a directory of a local file system (ext4, XFS, btrfs)";
                return Err(failed("making a file without a name there", remedy)(errno));
            }
            Err(errno) => return Err(failed("making a file there", remedy(errno))(errno)),
        };
        let len = u64::from(slots) * slot_len;
        // What cannot fit is not tried: until it fails it would take all the room that others need.
        let allocated = match fits(&fd, len) {
            true => rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len),
            false => Err(Errno::NOSPC),
        };
        match allocated {
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(errno) => {
                return Err(failed("allocating it", "; make room, or use a smaller `spill_size`")(errno));
            }
        }
        let target = IoTarget::of(&fd);
        let mode = if direct { IoMode::Direct } else { IoMode::Buffered };
        let name = format!("spill file in {}", dir.display()).into();
        let file = Arc::new(IoFile { fd: Some(fd), mode, target, one_writer: false, name });
        let on_done: Post<TransferDone<Tag>> = Arc::new(finished);
        let config = IoThreadsConfig {
            engine: EngineConfig { name: EngineName::Auto, depth: DEPTH, registered_max: 0 },
            io_threads: IO_THREADS,
            depth: DEPTH,
            request_size: 4 << 20,
            order: OrderPolicy::None,
            deadline: DEADLINE,
            stage: Stage::SourceHost,
            thread_name: "haul-spill",
        };
        // Time at flash is none of the five stages'.
        let io_threads = IoThreads::start(config, Arc::new(Meter::default()), on_done).map_err(|source| {
            SpillError::Io { path: path(), what: "starting its threads", source, remedy: "" }
        })?;
        Ok(SpillFile { io_threads, post, file, slots, slot_len, direct })
    }

    /// Frames that it holds, and the longest that each may be, bytes.
    pub fn slots(&self) -> (u32, u64) {
        (self.slots, self.slot_len)
    }

    /// Whether it goes past the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Writes the first `len` bytes of a buffer into a slot; a buffer of a pool, at most as long as a slot.
    pub fn store(&self, slot: u32, buffer: Buffer, len: usize) {
        self.submit(SpillOp::Store, IoKind::Write, slot, buffer, len);
    }

    /// Reads a slot into the buffer, as many bytes as that has.
    pub fn fetch(&self, slot: u32, buffer: Buffer) {
        let len = buffer.as_slice().len();
        self.submit(SpillOp::Fetch, IoKind::Read, slot, buffer, len);
    }

    /// What hangs.
    pub fn stuck(&self) -> Vec<super::Stuck> {
        self.io_threads.stuck()
    }

    fn submit(&self, op: SpillOp, kind: IoKind, slot: u32, buffer: Buffer, len: usize) {
        debug_assert!(slot < self.slots && len as u64 <= self.slot_len);
        let pad = if self.direct { len.next_multiple_of(ALIGN as usize) - len } else { 0 };
        let post = self.post.clone();
        let owed = Owed::new(wire::FailureKind::Read, move |answer: Result<SpillDone, Failure>| {
            post(answer.unwrap_or_else(|failure| SpillDone { slot, op, buffer: None, result: Err(failure) }));
        });
        self.io_threads.submit(Transfer {
            tag: Tag { owed, slot, op },
            file: self.file.clone(),
            target: self.file.target,
            kind,
            offset: u64::from(slot) * self.slot_len,
            buffer,
            start: 0,
            len,
            pad,
            uncached: false,
        });
    }
}

fn finished(done: TransferDone<Tag>) {
    let TransferDone { tag: Tag { owed, slot, op }, file, buffer, len, moved, error, .. } = done;
    let name = file.name.as_bytes();
    let (stage, verb) = match op {
        SpillOp::Store => (wire::FailureKind::Write, "write to"),
        SpillOp::Fetch => (wire::FailureKind::Read, "read from"),
    };
    let result = match error {
        Some((errno, _)) => Err(os_failure(stage, verb, name, errno)),
        None if moved < len => Err(own_failure(stage, verb, name, "it is shorter than it was made")),
        None => Ok(()),
    };
    owed.settle(Ok(SpillDone { slot, op, buffer: Some(buffer), result }));
}

#[cfg(test)]
#[path = "spill_tests.rs"]
mod tests;
