//! The I/O engines: requests on open files, submitted and reaped.
//!
//! In: an [`IoOp`] with the memory that it fills or writes. Out: an [`IoDone`] with all of it back. An engine
//! belongs to one thread (which may be woken from others by a [`Waker`]) and does what it is told, once: it
//! does not order, split, join, retry, or hold back. That is [`threads`]' work.
//!
//! What must hold, and what the conformance suite holds every engine against: `submit` never blocks on
//! storage; each operation comes back exactly once, with its parts in order; memory and descriptor live until
//! then, also when the engine is dropped; a short transfer and an errno are reported as they came; one
//! operation that hangs does not keep others from completing.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_core::ids::TargetId;
use haul_core::io::IoMode;
use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;

use crate::options::EngineName;
use haul_base::buffer::Part;

#[cfg(test)]
#[path = "io/conformance_tests.rs"]
mod conformance;
#[cfg(any(test, feature = "testing"))]
pub mod fault;
pub mod null;
pub mod pread;
pub mod threads;
pub mod uring;

/// Most operations that an engine can have in flight, stuck ones included.
pub const DEPTH_MAX: usize = 1024;
/// Most parts of one operation: what `preadv` takes everywhere (`IOV_MAX`).
pub const PARTS_MAX: usize = 1024;
/// `RWF_DONTCACHE` (Linux 6.14).
const RWF_DONTCACHE: i32 = 0x80;

/// Where a request goes. An engine tells all of its requests apart in one way: by devices, or by storage
/// targets where the file system has several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IoTarget {
    /// The file system of this device number; 0 where it cannot be told.
    Device(u64),
    /// This storage target.
    One(TargetId),
    /// A set of storage targets, by a hash of it: sets that share a hash share what counts for one.
    Several(u64),
}

impl Default for IoTarget {
    fn default() -> IoTarget {
        IoTarget::Device(0)
    }
}

impl IoTarget {
    /// Where an open file or directory lies. No server is asked.
    pub fn of(fd: impl AsFd) -> IoTarget {
        // The device number is known without any of the attributes.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = rustix::fs::statx(fd, c"", flags, StatxFlags::empty());
        IoTarget::Device(stat.map_or(0, |stat| rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor)))
    }

    /// The device number; 0 of a storage target, which may lie anywhere.
    pub fn device(self) -> u64 {
        match self {
            IoTarget::Device(device) => device,
            IoTarget::One(_) | IoTarget::Several(_) => 0,
        }
    }
}

/// A file that is open for requests. Several engines may hold it.
pub struct IoFile {
    /// `None`: no file at all, for the null engines.
    pub fd: Option<OwnedFd>,
    pub mode: IoMode,
    pub target: IoTarget,
    /// At most one write at a time: local file systems take the inode's lock for a buffered write, and
    /// threads that wait for it spin. [`threads`] keeps it.
    pub one_writer: bool,
    /// For people: the path, as it will stand in errors and in the status line.
    pub name: Box<str>,
}

/// What to do with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoKind {
    /// Fill the parts, one after another, from `offset` on.
    Read,
    /// Write the parts, one after another, from `offset` on.
    Write,
    /// `fdatasync`; `offset` and parts mean nothing.
    Sync,
}

/// One operation.
#[derive(Debug)]
pub struct IoOp {
    /// The caller's; comes back unchanged.
    pub key: u64,
    pub file: Arc<IoFile>,
    pub kind: IoKind,
    pub offset: u64,
    /// At most [`PARTS_MAX`].
    pub parts: Vec<Part>,
    /// Bytes beyond the last part's length, within its room, that are read or written too (direct I/O at the
    /// end of a file). They count in the result.
    pub pad: usize,
    /// Ask that the pages which this operation brings into the cache do not stay (`RWF_DONTCACHE`); a file
    /// system that cannot answers `EOPNOTSUPP`.
    pub uncached: bool,
}

/// An operation that ended.
#[derive(Debug)]
pub struct IoDone {
    pub op: IoOp,
    /// Bytes moved, less than asked for if the transfer was short.
    pub result: Result<usize, Errno>,
    /// When the engine took it, and when it ended.
    pub submitted: Instant,
    pub completed: Instant,
}

/// The engine has [`DEPTH_MAX`] (or as many as it was made for) in flight; the operation comes back.
#[derive(Debug)]
pub struct Full(pub IoOp);

/// Makes a waiting `reap` return, from any thread.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// What an engine turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineFacts {
    /// `uring`, `pread`, `null` or `zero`.
    pub name: &'static str,
    /// For people: why it is not the preferred one, or what of it did not work (no registered buffers, ..).
    pub remarks: Vec<String>,
}

/// Carries out operations.
pub trait Engine: Send {
    /// Takes an operation. Never blocks on storage.
    ///
    /// # Errors
    /// [`Full`] when no more can be in flight.
    fn submit(&mut self, op: IoOp) -> Result<(), Full>;

    /// Appends what ended to `done`. Waits for the first one, at most `wait`; returns early (perhaps with
    /// nothing) when woken.
    ///
    /// # Errors
    /// The engine itself is broken; what is in flight may never come back.
    fn reap(&mut self, done: &mut VecDeque<IoDone>, wait: Duration) -> std::io::Result<()>;

    /// Operations taken and not yet reaped.
    fn in_flight(&self) -> usize;

    fn waker(&self) -> Waker;

    fn facts(&self) -> EngineFacts;
}

/// Which engine, for how many operations in flight.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    pub name: EngineName,
    /// 1 to [`DEPTH_MAX`]: room for stuck operations included.
    pub depth: usize,
    /// Most bytes of payload memory that the engine may keep registered with the kernel.
    pub registered_max: u64,
}

/// The engine that was asked for; for [`EngineName::Auto`] io_uring, and threads where the kernel does not
/// let us, with a remark in the facts that says why and what to do. May be used on another thread than this
/// one.
///
/// # Errors
/// [`EngineName::Uring`] was asked for and is not to be had; the text says why and what to do.
pub fn open(config: &EngineConfig) -> std::io::Result<Box<dyn Engine>> {
    match config.name {
        EngineName::Pread => Ok(Box::new(pread::Pread::new(config.depth))),
        EngineName::Uring => Ok(Box::new(uring::Uring::open(config)?)),
        EngineName::Auto => match uring::Uring::open(config) {
            Ok(uring) => Ok(Box::new(uring)),
            Err(error) => Ok(Box::new(pread::Pread::new(config.depth).with_remark(error.to_string()))),
        },
    }
}

impl IoOp {
    /// Payload bytes asked for, pad included.
    pub fn wanted(&self) -> usize {
        self.parts.iter().map(Part::len).sum::<usize>() + self.pad
    }

    /// What an engine must not be asked, for it would touch memory of others: every engine answers `EINVAL`.
    fn check(&self) -> Result<(), Errno> {
        let room = self.parts.last().map_or(0, |part| part.room() - part.len());
        match self.parts.len() <= PARTS_MAX && self.pad <= room {
            true => Ok(()),
            false => Err(Errno::INVAL),
        }
    }
}

impl fmt::Debug for IoFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.mode)
    }
}
