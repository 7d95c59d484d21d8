//! How files, links and directories become what they were at the source: size, metadata, sync, final name.
//!
//! What must hold: nothing appears under its final name before all of it is there (and, if durable, on
//! media); an entry that fails leaves what stood at its name untouched and its temporary removed; a run that
//! lost its job publishes nothing and removes nothing, for its temporaries may be the new owner's by now.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use haul_core::change::Change;
use haul_core::entry::Meta;
use haul_core::ids::DirId;
use haul_core::transfer::op::{CommitItem, LinkItem, Publish, SinkFile};
use haul_core::wire::{Failure, Stage};
use rustix::fs::{AtFlags, Gid, Mode, Uid};
use rustix::io::{Errno, retry_on_intr};

use super::cache::drop_pages;
use super::clean::remove_tagged_in;
use super::engine::Sink;
use super::files::{data_len, descriptor, set_mtime, times};
use super::look::{link_change, stood_of};
use super::{fault, lock, tree};

const SETUID_SETGID: u32 = 0o6000;
const SETGID: u32 = 0o2000;

/// Counts of what the destination would not keep. Shared, so that they can be read when the engine is gone.
#[derive(Debug, Default)]
pub struct NotKeptCounters {
    owner: AtomicU64,
    setid: AtomicU64,
    mode: AtomicU64,
    mtime: AtomicU64,
}

/// Entries of which something was not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotKept {
    /// Owner or group were asked for and refused.
    pub owner: u64,
    /// Setuid or setgid were dropped, because the owner was not kept.
    pub setid: u64,
    /// The file system refused the mode.
    pub mode: u64,
    /// The file system refused the mtime; these are sent again by the next run.
    pub mtime: u64,
}

impl NotKeptCounters {
    /// The counts so far.
    pub fn read(&self) -> NotKept {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        NotKept {
            owner: read(&self.owner),
            setid: read(&self.setid),
            mode: read(&self.mode),
            mtime: read(&self.mtime),
        }
    }
}

/// Takes "this file system or user may not do that" as a loss to count, not as a failure.
fn permitted(result: rustix::io::Result<()>, refused: &AtomicU64) -> rustix::io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        // EINVAL: the id has no meaning in this user namespace.
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::INVAL) => {
            refused.fetch_add(1, Ordering::Relaxed);
            Ok(false)
        }
        Err(errno) => Err(errno),
    }
}

fn ids(meta: &Meta) -> Option<(Uid, Gid)> {
    // All ones means "leave as it is" to the kernel and is nobody's id.
    (meta.uid != u32::MAX && meta.gid != u32::MAX).then(|| (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid)))
}

impl Sink {
    /// Commits one file; see `SinkOp::Commit`.
    pub(super) fn commit(&self, item: &CommitItem, durable: bool) -> Result<(), Failure> {
        if let Err(lost) = self.check_owner() {
            self.files.fail(item.id, &lost, false);
            return Err(lost);
        }
        let result = match &item.publish {
            None => self.commit_part(item, durable),
            Some(publish) => self.publish(publish, durable),
        };
        match (&result, &item.publish) {
            // Nothing of a file without data is under way, and nobody discards what was never written.
            (Err(_), Some(publish)) if data_len(&publish.file) == 0 => self.files.close(item.id, true),
            (Err(failure), _) => self.files.fail(item.id, failure, true),
            (Ok(()), Some(_)) => self.files.close(item.id, false),
            (Ok(()), None) => {}
        }
        result
    }

    fn commit_part(&self, item: &CommitItem, durable: bool) -> Result<(), Failure> {
        let (open, file, _) = self.files.fd_of(item.id)?;
        if !durable {
            return Ok(());
        }
        self.sync_data(&open, &file)?;
        drop_pages(descriptor(&file));
        Ok(())
    }

    fn publish(&self, publish: &Publish, durable: bool) -> Result<(), Failure> {
        let file = &publish.file;
        let path = || self.tree.path_of(file.parent, &file.name);
        // Of an empty file nothing was ever written, nor of one that is all hole.
        if data_len(file) == 0 {
            self.files.fd(file)?;
        }
        let (open, temp, counted) = self.files.fd_of(file.id)?;
        let fd = descriptor(&temp);
        let fail = |stage, what, errno| fault::os_at(stage, what, &path(), errno, fd);

        // With space in advance a file has its full size from the beginning, so that says nothing of it.
        let written = lock(&open.path).written();
        if counted && written < open.data_len {
            let text = format!("{} has {written} of {} bytes and was not published", path(), file.size);
            return Err(fault::failure(Stage::Publish, 0, text));
        }

        let stat = rustix::fs::fstat(fd).map_err(|errno| fail(Stage::Publish, "stat", errno))?;
        let size = stat.st_size as u64;
        // A sparse file may end in a hole.
        if size < file.size && file.map.is_none() {
            let text = format!("{} has {size} of {} bytes and was not published", path(), file.size);
            return Err(fault::failure(Stage::Publish, 0, text));
        }
        if size != file.size {
            retry_on_intr(|| rustix::fs::ftruncate(fd, file.size))
                .map_err(|errno| fail(Stage::Publish, "truncate", errno))?;
        }
        if let Some(expected) = publish.verify {
            // Whatever is promised: what is not on media cannot be read from there.
            self.sync_data(&open, &temp)?;
            self.read_back(file, fd, expected)?;
        }
        self.set_meta(fd, &publish.meta, publish.owner, 0)
            .map_err(|(what, errno)| fail(Stage::Metadata, what, errno))?;
        if durable {
            self.synced(&open, || {
                retry_on_intr(|| rustix::fs::fsync(fd)).map_err(|errno| unsynced(&path(), errno, fd))
            })?;
            drop_pages(fd);
        }
        self.give_name(file, publish.no_replace)
    }

    /// Owner first, for a change of owner clears setuid and setgid; mtime last.
    fn set_meta(
        &self,
        fd: impl AsFd,
        meta: &Meta,
        owner: bool,
        keep: u32,
    ) -> Result<(), (&'static str, Errno)> {
        let (fd, lost) = (fd.as_fd(), &*self.not_kept);
        let mut owned = false;
        if owner && let Some((uid, gid)) = ids(meta) {
            let result = rustix::fs::fchown(fd, Some(uid), Some(gid));
            owned = permitted(result, &lost.owner).map_err(|errno| ("set the owner of", errno))?;
        }
        let mut mode = meta.mode & 0o7777;
        if !owned && mode & SETUID_SETGID != 0 {
            mode &= !SETUID_SETGID;
            lost.setid.fetch_add(1, Ordering::Relaxed);
        }
        let result = rustix::fs::fchmod(fd, Mode::from_raw_mode(mode | keep));
        permitted(result, &lost.mode).map_err(|errno| ("set the mode of", errno))?;
        permitted(set_mtime(fd, meta.mtime), &lost.mtime).map_err(|errno| ("set the mtime of", errno))?;
        Ok(())
    }

    /// Renames the temporary to the final name.
    fn give_name(&self, file: &SinkFile, no_replace: bool) -> Result<(), Failure> {
        let dir = self.tree.dirfd(file.parent)?;
        let temp = self.files.temp_name(&file.name);
        // It may have hung in a sync until nobody waits any more.
        self.check_over()?;
        self.tree.jail().rename(&dir, &temp, &file.name, no_replace).map_err(|errno| {
            let path = self.tree.path_of(file.parent, &file.name);
            let told = match errno {
                Errno::ISDIR => "a directory stands there; nothing was removed",
                Errno::EXIST => "it exists and was not replaced",
                Errno::NOENT => "its temporary is gone, which another run of this job or a cleaner removed",
                _ => return fault::os_at(Stage::Publish, "publish", &path, errno, &dir),
            };
            fault::failure(Stage::Publish, errno.raw_os_error(), format!("publish {path}: {told}"))
        })
    }

    /// Makes one symbolic link under a temporary name, then gives it its own.
    pub(super) fn make_link(&self, item: &LinkItem) -> Result<Change, Failure> {
        self.check_owner()?;
        let file = &item.file;
        let dir = self.tree.dirfd(file.parent)?;
        // One that says the same already stays: a second run changes nothing.
        let change = link_change(&self.tree, &dir, &file.name, &item.target, item.meta.mtime);
        if change.is_none() {
            return Ok(change);
        }
        let temp = self.files.temp_name(&file.name);
        let result = self.fill_link(item, &dir).and_then(|()| self.give_name(file, item.no_replace));
        if result.is_err() {
            let _ = self.tree.jail().unlink(&dir, &temp);
        }
        result.map(|()| change)
    }

    fn fill_link(&self, item: &LinkItem, dir: &OwnedFd) -> Result<(), Failure> {
        let jail = self.tree.jail();
        let temp = self.files.temp_name(&item.file.name);
        let fail = |stage, what, errno| {
            let path = self.tree.path_of(item.file.parent, &item.file.name);
            fault::os_at(stage, what, &path, errno, dir)
        };
        let mut made = jail.symlink(&item.target, dir, &temp);
        if made == Err(Errno::EXIST) {
            let _ = jail.unlink(dir, &temp);
            made = jail.symlink(&item.target, dir, &temp);
        }
        made.map_err(|errno| fail(Stage::Create, "make the link", errno))?;
        let name = temp.as_bytes();
        if item.owner
            && let Some((uid, gid)) = ids(&item.meta)
        {
            let result = rustix::fs::chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
            permitted(result, &self.not_kept.owner)
                .map_err(|errno| fail(Stage::Metadata, "set the owner of", errno))?;
        }
        let result = match times(item.meta.mtime) {
            Some(times) => rustix::fs::utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW),
            None => Err(Errno::INVAL),
        };
        permitted(result, &self.not_kept.mtime)
            .map_err(|errno| fail(Stage::Metadata, "set the mtime of", errno))?;
        Ok(())
    }

    /// Syncs one directory.
    pub(super) fn sync_dir(&self, id: DirId) -> Result<(), Failure> {
        let fd = self.tree.dirfd(id)?;
        tree::sync_dir(&fd)
            .map_err(|errno| fault::os_at(Stage::Sync, "sync", &self.tree.path_of_dir(id), errno, &fd))
    }

    /// Finishes one directory; see `SinkOp::FinishDirs`. All its entries have ended, so the temporaries of
    /// dead runs of this job that still lie in it were adopted by nobody.
    pub(super) fn finish_dir(&self, id: DirId, meta: &Meta, durable: bool) -> Result<Change, Failure> {
        self.check_owner()?;
        let fd = self.tree.dirfd(id)?;
        if !self.old_tags.is_empty() && !self.tree.was_created(id) {
            // What cannot be removed is no failure of the directory; `haul clean` names it.
            let _ = remove_tagged_in(self.tree.jail(), &fd, &self.old_tags);
        }
        let fail = |stage, what, errno| fault::os_at(stage, what, &self.tree.path_of_dir(id), errno, &fd);
        // A setgid that the directory has from its parent is the destination's own: it keeps the group of
        // project directories.
        let stat = rustix::fs::fstat(&fd).map_err(|errno| fail(Stage::Metadata, "stat", errno))?;
        self.set_meta(&fd, meta, self.dir_owner, stat.st_mode & SETGID)
            .map_err(|(what, errno)| fail(Stage::Metadata, what, errno))?;
        if durable {
            tree::sync_dir(&fd).map_err(|errno| fail(Stage::Sync, "sync", errno))?;
        }
        // Held against how it stood before this run: what was made in it since has changed its mtime.
        Ok(self.tree.stood(id).map_or(Change::NEW, |stat| {
            let grain = |mtime| if mtime == meta.mtime { 1 } else { self.files.grain_for(mtime) };
            Change::of_dir(&stood_of(&stat, grain), meta, self.dir_owner)
        }))
    }
}

pub(super) fn unsynced(path: &str, errno: Errno, fd: impl AsFd) -> Failure {
    let failure = fault::os_at(Stage::Sync, "sync", path, errno, fd);
    let text =
        format!("{}; its temporary was discarded, for what was written is not to be trusted", failure.text);
    fault::failure(Stage::Sync, failure.errno, text)
}
