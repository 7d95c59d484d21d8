//! Files of a source on this host, for the sink of the same process to clone.
//!
//! In: what the source announced, by id; who clones. Out: whether what was cloned is the file that was
//! announced, all of it as it was at one moment.
//! Invariants: a file is opened as a reading thread opens it, by the descriptor of its directory and one
//! name, and it is what was announced; size, mtime, ctime and inode are the same before and after the clone,
//! and before the clone they are old enough to tell a change ([`age`](super::age)). Where ctime alone moved
//! nobody holds content against content, for a clone is of one moment: it is cloned once more, with the new
//! ctime before and after it.
//! Left out: what cannot be cloned; what becomes of it then.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use haul_core::transfer::op::{CloneItem, Cloned};
use haul_core::wire::{Failure, FailureKind};
use rustix::fs::OFlags;
use rustix::io::{Errno, Result as OsResult};

use super::failure::own_failure;
use super::open::{OpenError, open_view};
use super::stat::{Seen, look_into};
use super::tree::SourceTree;
use super::view::FileView;

/// So often a file is looked at before it counts as one that changes all the time.
const LOOKS_MAX: u32 = 4;
/// So often who waits asks whether anybody still wants it.
const TICK: Duration = Duration::from_millis(20);

/// Where a sink finds the files of the source: known as soon as that walks.
#[derive(Default)]
pub struct Originals(OnceLock<Arc<SourceTree>>);

impl std::fmt::Debug for Originals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Originals")
    }
}

impl Originals {
    /// The source walks.
    pub(crate) fn found(&self, tree: &Arc<SourceTree>) {
        // Once in a session.
        let _ = self.0.set(tree.clone());
    }

    /// Has an open file cloned by `clone`, which may be called again for the same temporary. `over`: nobody
    /// wants it any more.
    ///
    /// # Errors
    /// Those of `clone`. What that was refused, and a file that is not what was announced, is no error.
    pub(crate) fn clone_file(
        &self,
        item: &CloneItem,
        over: &dyn Fn() -> bool,
        clone: &mut dyn FnMut(BorrowedFd<'_>) -> Result<OsResult<()>, Failure>,
    ) -> Result<Cloned, Failure> {
        let id = item.file.id;
        let Some(tree) = self.0.get() else {
            let path = item.file.name.as_bytes();
            return Ok(Cloned::Not(own_failure(FailureKind::Open, "clone", path, "its source is not known")));
        };
        let changed = |cause: &str| {
            Ok(Cloned::Not(own_failure(FailureKind::Changed, "clone", &tree.path_of(id), cause)))
        };
        let failed = |kind, what: &str, errno: Errno| Ok(Cloned::Not(tree.failed(kind, what, id, errno)));
        let view = match tree.file(id) {
            Some(view) if view.generation == item.generation => view,
            _ => return changed("another version of it is copied by now"),
        };
        if view.is_part() || view.is_measured() {
            return failed(FailureKind::Create, "clone", Errno::OPNOTSUPP);
        }
        let opened = match open_view(|| tree.dir_fd(view.place), &view, OFlags::empty()) {
            Ok(opened) => opened,
            Err(OpenError::Changed(what)) => return changed(what),
            Err(OpenError::Os(errno)) => return failed(FailureKind::Open, "open", errno),
        };
        let fd = opened.fd.as_fd();
        let (mut known, mut settled) = (view.stamp, tree.not_before(id));
        for _ in 0..LOOKS_MAX {
            if !haul_mutant::removed("young-files-are-not-cloned") && !wait(settled, over) {
                return changed("the session ended before it could be cloned");
            }
            let before = match look_into(fd) {
                Ok(seen) => seen,
                Err(errno) => return failed(FailureKind::Read, "stat", errno),
            };
            if !is_it(&before, &view) {
                return changed("changed since its directory was read");
            }
            if before.stamp == known {
                if let Err(errno) = clone(fd)? {
                    return failed(FailureKind::Create, "clone", errno);
                }
                match look_again(tree, &view, fd) {
                    _ if haul_mutant::removed("clones-are-of-one-version") => return Ok(Cloned::Whole),
                    Ok((after, named)) => {
                        if !is_it(&after, &view) || !is_it(&named, &view) {
                            return changed("changed while it was cloned");
                        }
                        if after.stamp == known && named.stamp == known {
                            return Ok(Cloned::Whole);
                        }
                        known = after.stamp;
                        settled = Some(Instant::now() + tree.settle(view.place, &after));
                    }
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                        return changed("was moved or removed while it was cloned");
                    }
                    Err(errno) => return failed(FailureKind::Read, "stat", errno),
                }
            } else {
                known = before.stamp;
                settled = Some(Instant::now() + tree.settle(view.place, &before));
            }
        }
        changed("changed all the time while it was cloned")
    }
}

/// What is open, and what stands at its name.
fn look_again(tree: &SourceTree, view: &FileView, fd: BorrowedFd<'_>) -> OsResult<(Seen, Seen)> {
    let after = look_into(fd)?;
    let dir = tree.dir_fd(view.place)?;
    Ok((after, view.look_surely(dir.as_fd())?))
}

/// It has the content that was announced, as far as size and mtime tell, and a name.
fn is_it(seen: &Seen, view: &FileView) -> bool {
    seen.is_file() && seen.links > 0 && seen.stamp.same_content(&view.stamp)
}

/// False: nobody wants it any more.
fn wait(until: Option<Instant>, over: &dyn Fn() -> bool) -> bool {
    let Some(until) = until else { return true };
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        if over() {
            return false;
        }
        thread::sleep(left.min(TICK));
    }
}
