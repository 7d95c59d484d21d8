//! A file of the source as whoever opens and reads it needs it, copied out of the tree.
//!
//! Left out: how the directory is reached that it lies in, which [`tree`](super::tree) knows.

use std::os::fd::BorrowedFd;

use haul_core::entry::{FileRange, Name};
use haul_core::ids::{DirId, Generation};
use haul_core::transfer::source::OnChange;
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::acl;
use super::stat::{Seen, Stamp, look_at, look_surely, look_through};
use crate::attributes::{self, Keeps, Subject};

/// Where an entry lies: in a directory outside of the job (the one that holds a source root, or whose
/// contents are the source), or in one that the walk announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Base(usize),
    Dir(DirId),
}

/// A file as the engine needs it, copied out of the tree.
#[derive(Clone, Debug)]
pub(crate) struct FileView {
    pub(crate) place: Place,
    pub(crate) name: Name,
    /// The name is a link, and the file is what it leads to.
    pub(super) followed: bool,
    pub(crate) generation: Generation,
    /// As `stat` shows it.
    pub(crate) stamp: Stamp,
    /// The file system of its directory, as `stat` calls it.
    pub(crate) dev: u64,
    /// What it gives when it is read, where that is more than its size.
    pub(super) measured: Option<u64>,
    pub(super) changed: OnChange,
    pub(super) part: Option<FileRange>,
    pub(super) keeps: Keeps,
    /// Tells its attributes, as they were announced, from others.
    pub(super) attributes: u64,
}

impl FileView {
    /// How its name is opened.
    pub(super) fn follow_flags(&self) -> OFlags {
        if self.followed { OFlags::empty() } else { OFlags::NOFOLLOW }
    }
    /// Looks at it in the directory that it lies in.
    pub(crate) fn look(&self, dir: BorrowedFd<'_>) -> Result<Seen, Errno> {
        if self.followed { look_through(dir, &self.name) } else { look_at(dir, &self.name) }
    }
    /// As [`FileView::look`], from whoever keeps the file.
    pub(super) fn look_surely(&self, dir: BorrowedFd<'_>) -> Result<Seen, Errno> {
        look_surely(dir, &self.name, self.followed)
    }
    /// What was seen of it, with the mode that is to be told.
    pub(super) fn told(&self, dir: BorrowedFd<'_>, seen: Seen) -> Seen {
        acl::told(dir, &self.name, seen, self.followed)
    }
    /// What its attributes are read of.
    pub(super) fn subject<'a>(&'a self, dir: BorrowedFd<'a>) -> Subject<'a> {
        if self.followed { Subject::Through(dir, &self.name) } else { Subject::Name(dir, &self.name) }
    }
    /// Bytes that are read of it.
    pub(crate) fn size(&self) -> u64 {
        self.part.map_or(self.measured.unwrap_or(self.stamp.size), |part| part.len)
    }
    /// Where these begin in what stands there.
    pub(crate) fn base(&self) -> u64 {
        self.part.map_or(0, |part| part.source)
    }
    /// Behind what is read of it more may follow, which is nobody's business.
    pub(crate) fn is_part(&self) -> bool {
        self.part.is_some()
    }
    /// Its size says nothing: it ends where a read gives nothing more.
    pub(crate) fn is_measured(&self) -> bool {
        self.measured.is_some()
    }
    /// What stands there `now` can be this file after it grew, and the user asked for the beginning of such
    /// files. Whether its beginning is what it was is for a second reading to say.
    pub(crate) fn may_have_grown(&self, now: &Stamp) -> bool {
        let is_same_file = now.ino == self.stamp.ino || haul_mutant::removed("prefix-is-of-one-file");
        self.changed == OnChange::Prefix && !self.is_measured() && is_same_file && now.size >= self.stamp.size
    }
    /// Whether an open file has the attributes that were announced with what is read of it.
    pub(super) fn has_its_attributes(&self, fd: BorrowedFd<'_>) -> bool {
        if !self.keeps.any() || haul_mutant::removed("attributes-are-of-what-is-read") {
            return true;
        }
        let (values, _) = attributes::read(Subject::Open(fd), FileType::RegularFile, self.keeps);
        attributes::print(&values) == self.attributes
    }
    /// Where it changed, it is looked at once more later.
    pub(crate) fn is_tried_again(&self) -> bool {
        self.changed == OnChange::Retry
    }
}
