//! Files that share the blocks of the source's: cloned in one call, and neither read nor written.
//!
//! In: the source's files, opened and looked at by [`Originals`](crate::source::Originals). Out: temporaries
//! that hold all of them; for the report, how many, and why others were not.
//! What must hold: what takes no clone leaves no temporary; a destination without room is a failure, for it
//! has none for a copy either.
//! Assumed: a file system that clones an empty file onto another one clones files of the sources that are on
//! it, too. One that does not costs time only: these are read.
//! Left out: whether a file is what was announced; what is read in place of a clone.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use haul_base::errno;
use haul_core::transfer::SMALL_LEN_MAX;
use haul_core::transfer::op::{CloneItem, Cloned};
use haul_core::tune::show_amount;
use haul_core::wire::{Failure, FailureKind};
use rustix::fs::{Mode, fstat, fstatfs, ioctl_ficlone};
use rustix::io::{Errno, retry_on_intr};

use super::Sink;
use crate::sink::files::descriptor;
use crate::sink::tree::SinkTree;
use crate::sink::{fault, lock};
use crate::store::CloneFrom;

const BTRFS: u64 = 0x9123_683e;

/// What is cloned in a session.
pub(super) struct Clones {
    from: CloneFrom,
    /// Why nothing is.
    off: Option<String>,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    files: u64,
    bytes: u64,
    /// Files that were not cloned, and why the first of them.
    others: u64,
    first: Option<String>,
    /// File systems of the source, and those of the destination into which nothing of them can be cloned.
    foreign: HashSet<(u64, u64)>,
}

impl Clones {
    pub(super) fn new(from: CloneFrom, tree: &SinkTree) -> Clones {
        let off = match (from.off, from.always) {
            (Some(why), _) => Some(why.to_owned()),
            // Each says it by itself.
            (None, true) => None,
            (None, false) => not_here(tree, &from.sources),
        };
        Clones { from, off, told: Mutex::default() }
    }

    /// Files are cloned.
    pub(super) fn are_made(&self) -> bool {
        self.off.is_none()
    }

    /// For people.
    pub(super) fn report(&self) -> String {
        if let Some(why) = &self.off {
            return format!("no ({why})");
        }
        let Told { files, bytes, others, ref first, .. } = *lock(&self.told);
        let read = match (others, first) {
            (0, _) | (_, None) => String::new(),
            (count, Some(first)) => format!("; {count} not, the first: {first}"),
        };
        let why = if self.from.always { "as asked" } else { "source and destination share a file system" };
        let cloned = if files == 1 { "file" } else { "files" };
        format!("yes ({why}): {files} {cloned} cloned, {}{read}", show_amount(bytes))
    }
}

impl Sink {
    /// Makes the temporary of a file as a clone of the source's file; see `SinkOp::Clone`.
    pub(super) fn clone_file(&self, item: &CloneItem) -> Result<Cloned, Failure> {
        let clones = self.clones.as_ref().expect("asked only where the engine says that it clones");
        self.may_make()?;
        let file = &item.file;
        // As one of a bundle: nobody sees it before it has its name.
        let mode = (file.size <= SMALL_LEN_MAX).then_some(item.mode);
        let path = || self.tree.path_of(file.parent, &file.name);
        let over = || self.has_ended();
        let outcome = clones.from.originals.clone_file(item, &over, &mut |from| {
            let there = self.tree.target_of(file.parent).device();
            let devices = (fstat(from).map_or(0, |stat| stat.st_dev), there);
            if lock(&clones.told).foreign.contains(&devices) {
                return Ok(Err(Errno::XDEV));
            }
            let temp = self.files.fd(file, mode)?;
            let fd = descriptor(&temp);
            match retry_on_intr(|| ioctl_ficlone(fd, from)) {
                Ok(()) => Ok(Ok(())),
                Err(errno) if is_refusal(errno) => {
                    if errno == Errno::XDEV {
                        lock(&clones.told).foreign.insert(devices);
                    }
                    Ok(Err(errno))
                }
                Err(errno) => Err(fault::os_at(FailureKind::Write, "clone into", &path(), errno, fd)),
            }
        });
        let mut told = lock(&clones.told);
        match &outcome {
            Ok(Cloned::Whole) => {
                told.files += 1;
                told.bytes = told.bytes.saturating_add(file.size);
            }
            Ok(Cloned::Not(why)) => {
                told.others += 1;
                told.first.get_or_insert_with(|| why.text.to_string());
                drop(told);
                // Whoever reads it makes another.
                self.files.discard(file.id, || true);
            }
            // The session discards it.
            Err(_) => {}
        }
        outcome
    }
}

/// Whether that says no more than that this file cannot be cloned.
fn is_refusal(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::OPNOTSUPP
            | Errno::INVAL
            | Errno::XDEV
            | Errno::TXTBSY
            | Errno::PERM
            | Errno::ACCESS
            | Errno::NOTTY
            | Errno::NOSYS
            | Errno::BADF
            | Errno::ISDIR
    )
}

/// Why no file of the sources can be cloned there; `None`: some may.
fn not_here(tree: &SinkTree, sources: &[PathBuf]) -> Option<String> {
    let root = tree.root();
    let Ok(there) = fstat(root) else { return Some("the destination cannot be looked at".to_owned()) };
    // What `stat` calls two file systems may be two subvolumes of one.
    let is_btrfs = |kind: rustix::fs::FsWord| kind as u64 & 0xffff_ffff == BTRFS;
    let has_subvolumes = fstatfs(root).is_ok_and(|stat| is_btrfs(stat.f_type));
    let is_near = |source: &PathBuf| {
        let source: &Path = source;
        let same = rustix::fs::stat(source).is_ok_and(|stat| stat.st_dev == there.st_dev);
        same || has_subvolumes && rustix::fs::statfs(source).is_ok_and(|stat| is_btrfs(stat.f_type))
    };
    if !sources.iter().any(is_near) {
        return Some("source and destination are on different file systems".to_owned());
    }
    let jail = tree.jail();
    let nameless = || jail.create_nameless(root, Mode::RUSR | Mode::WUSR);
    let cloned = nameless().and_then(|from| {
        let to = nameless()?;
        retry_on_intr(|| ioctl_ficlone(to.as_fd(), from.as_fd()))
    });
    cloned.err().map(|errno| match errno {
        Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS => "the file system does not clone files".to_owned(),
        errno => format!("whether the file system clones files cannot be tried: {}", errno::text(errno)),
    })
}
