//! What is served: directories and files, of a file system or of a volume.
//!
//! In: a directory that is open, and one name in it. Out: what stands there; bytes; changes, each of which
//! lasts when it and the sync behind it came back.
//! What must hold, however it is done: a name is one component, and no link is followed at it; a file that is
//! open is the same one whatever becomes of its name; of two that lock one file the second is refused.
//! Two do it: [`posix`] by haul's jail, [`volume`] by the client of a volume. What one cannot do it refuses.
//! Left out: paths, which [`crate::tree`] walks over either.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use haul_core::entry::Name;
pub use rustix::fs::FileType;
use rustix::io::Errno;

pub mod posix;
pub mod volume;

/// Why something was not done: the nearest error of the system, and what else there is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub errno: Errno,
    /// Whole sentences without their end, where the system's words say too little.
    pub words: Option<Box<str>>,
}

impl Fault {
    pub fn is(&self, errno: Errno) -> bool {
        self.errno == errno
    }
}

impl From<Errno> for Fault {
    fn from(errno: Errno) -> Fault {
        Fault { errno, words: None }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.words {
            Some(words) => f.write_str(words),
            None => f.write_str(&haul_base::errno::text(self.errno)),
        }
    }
}

/// What something is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    pub kind: FileType,
    /// Bits of permission, and those above them.
    pub mode: u32,
    pub links: u64,
    pub uid: u32,
    pub gid: u32,
    /// Bytes.
    pub len: u64,
    /// Seconds since 1970, and nanoseconds.
    pub mtime: (i64, i64),
    /// Moves with each write: in a file system the time of the last change, in a volume the version of a
    /// file's bytes.
    pub version: (i64, i64),
    pub dev: u64,
    pub ino: u64,
}

impl Stat {
    pub fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }

    /// Which file it is, whatever becomes of it.
    pub fn identity(&self) -> (u64, u64) {
        (self.dev, self.ino)
    }
}

/// A name in a directory.
pub struct Entry {
    pub name: Vec<u8>,
    /// What it is, and where it leads if it is a link; `None`: who wants to know looks.
    pub seen: Option<(Stat, Option<Vec<u8>>)>,
}

/// All names of a directory, but for those of itself and of the one above.
pub type Entries = Box<dyn Iterator<Item = Result<Entry, Fault>>>;

/// What implementations tell each other by.
#[derive(Clone, Copy)]
pub enum Inner<'a> {
    Posix(BorrowedFd<'a>),
    Volume(&'a haul_volume::api::Dir),
}

/// How a file lies: blocks of `size` bytes go round over `count` servers, from the one of number `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    pub size: u64,
    pub count: u64,
    pub first: u64,
}

/// A directory that is open.
pub trait Dir: Send + Sync {
    fn inner(&self) -> Inner<'_>;
    /// The same one.
    ///
    /// # Errors
    /// As each of these methods: the system says no, or a server does not answer.
    fn again(&self) -> Result<Box<dyn Dir>, Fault>;
    /// What it is itself.
    fn stat(&self) -> Result<Stat, Fault>;
    /// Whether anything may be done in it.
    fn can_enter(&self) -> Result<(), Fault>;
    /// What stands at a name; a link itself.
    fn look(&self, name: &Name) -> Result<Stat, Fault>;
    /// Which file stands there, and no more: [`Stat::identity`].
    fn identity(&self, name: &Name) -> Result<(u64, u64), Fault>;
    /// Where a link leads.
    fn link(&self, name: &Name) -> Result<Vec<u8>, Fault>;
    /// What is in it. `looks`: what each name is will be asked for.
    fn entries(&self, looks: bool) -> Result<Entries, Fault>;
    fn open_dir(&self, name: &Name) -> Result<Box<dyn Dir>, Fault>;
    /// The file of a name, to read, or with `write` also to write.
    fn open(&self, name: &Name, write: bool) -> Result<Box<dyn File>, Fault>;
    /// A new file, for its owner only; the name must be free (`EEXIST`).
    fn make(&self, name: &Name) -> Result<Box<dyn File>, Fault>;
    /// A new directory with these bits of permission.
    fn make_dir(&self, name: &Name, mode: u32) -> Result<(), Fault>;
    /// Takes a name away that is no directory's.
    fn remove(&self, name: &Name) -> Result<(), Fault>;
    fn remove_dir(&self, name: &Name) -> Result<(), Fault>;
    /// Gives what has the one name the other, in place of what stood there.
    fn rename(&self, from: &Name, to_dir: &dyn Dir, to: &Name) -> Result<(), Fault>;
    /// Bits of permission of what is no link.
    fn set_mode(&self, name: &Name, mode: u32) -> Result<(), Fault>;
    /// The time of what is no link: seconds since 1970, and nanoseconds.
    fn set_mtime(&self, name: &Name, secs: i64, nanos: u32) -> Result<(), Fault>;
    /// Makes last what was done to names in it.
    fn sync(&self) -> Result<(), Fault>;
    /// Bytes that there is room for, if that is known.
    fn free(&self) -> Option<u64>;
    /// Files belong to users, and others than this one may write here.
    fn has_users(&self) -> bool;
}

/// A file that is open. Several threads may use it.
pub trait File: Send + Sync {
    /// # Errors
    /// As each of these methods: the system says no, or a server does not answer.
    fn stat(&self) -> Result<Stat, Fault>;
    /// Bytes, as far as this process knows.
    fn length(&self) -> Result<u64, Fault>;
    /// As [`Stat::identity`].
    fn identity(&self) -> Result<(u64, u64), Fault>;
    /// How many bytes were read from there on: none only at the end.
    fn read_at(&self, bytes: &mut [u8], at: u64) -> Result<usize, Fault>;
    /// These ranges will be read next, from where up to where.
    fn ahead(&self, _ranges: &[(u64, u64)]) {}
    /// Writes all of them there.
    fn write_at(&self, bytes: &[u8], at: u64) -> Result<(), Fault>;
    fn set_len(&self, len: u64) -> Result<(), Fault>;
    fn set_mode(&self, mode: u32) -> Result<(), Fault>;
    /// Makes last what this process wrote.
    fn sync_data(&self) -> Result<(), Fault>;
    /// And what others see of it: length, mode, time.
    fn sync(&self) -> Result<(), Fault>;
    /// Locks it until it is dropped; `EAGAIN`: somebody else has it.
    fn lock(&self) -> Result<(), Fault>;
    /// For how long a read does not count behind a look that told this: a write could leave all of it as it
    /// is.
    fn settles(&self, _seen: &Stat) -> Duration {
        Duration::ZERO
    }
    /// How it lies, if that is known, and if it lies so.
    fn round(&self) -> Option<Round> {
        None
    }
    /// Its descriptor, if it is a file of the system.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
