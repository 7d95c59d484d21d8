//! Owner, mode and times of what the engine made or found: set, and of what is right already amended.
//!
//! In: what is held, what the source has. Out: what changed.
//! What must hold: only the inode that was looked at is changed, and no link is followed.
//! Left out: times of files that are amended, for they were found right; how they are set (`meta`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use haul_core::change::Change;
use haul_core::entry::Meta;
use haul_core::transfer::op::{AmendItem, Existing, LinkItem, Seen};
use haul_core::wire::{Failure, FailureKind};
use rustix::fs::{AtFlags, FileType, Mode, Stat};
use rustix::io::{Errno, retry_on_intr};

use super::Sink;
use crate::attributes::{Differs, Subject};
use crate::meta_rate::cost;
use crate::sink::calls::times;
use crate::sink::fault;
use crate::sink::gives::note_beyond_of_file;
use crate::sink::meta::{
    HELD_BY_ALL, Wanted, count, ids, is_wider, owned_as, permitted, set_meta, set_owner, stands,
};
use crate::sink::stat::{existing_of, mtime_of, note_differs, seen_of};

impl Sink {
    pub(super) fn set_meta(
        &self,
        fd: impl AsFd,
        wanted: &Wanted<'_>,
        path: &dyn Fn() -> String,
    ) -> Result<Stat, Failure> {
        if let Some(stands) = stands(&fd, wanted) {
            return Ok(stands);
        }
        self.charge_setting(wanted);
        set_meta(fd, wanted, &self.not_kept, path)
    }

    /// Attributes and lists, where they are kept.
    pub(super) fn cost_of_attributes(&self) -> u32 {
        if self.keeps.any() { cost::ATTRIBUTES } else { 0 }
    }

    /// What it costs to give an entry all that is kept of its metadata.
    pub(super) fn cost_of_setting(&self, owner: bool) -> u32 {
        let owner = if owner { cost::OWNER } else { 0 };
        cost::SET + owner + self.cost_of_attributes()
    }

    /// Of what may stand already nothing was taken for that before.
    pub(super) fn charge_setting(&self, wanted: &Wanted<'_>) {
        if wanted.may_stand {
            self.rate.charge(self.cost_of_setting(wanted.owner));
        }
    }

    /// An entry stays as it is that differs in what this user can give to no file ([`Rights::beyond`]).
    ///
    /// [`Rights::beyond`]: haul_core::transfer::op::Rights
    pub(super) fn count_beyond(&self, beyond: Change) {
        if beyond.has(Change::OWNER.with(Change::GROUP, true)) {
            count(&self.not_kept.owner);
        }
        if beyond.has(Change::MODE) {
            count(&self.not_kept.setid);
        }
    }

    /// Owner and mtime of a symbolic link that is held, and is what `made` says.
    pub(super) fn set_link_meta(
        &self,
        link: BorrowedFd<'_>,
        made: &Stat,
        meta: &Meta,
        owner: bool,
    ) -> Result<(), (&'static str, Errno)> {
        let mut given = false;
        if owner
            && let Some(ids) = ids(meta)
            && (made.st_uid, made.st_gid) != (meta.uid, meta.gid)
        {
            let chown =
                |uid, gid| retry_on_intr(|| rustix::fs::chownat(link, "", uid, gid, AtFlags::EMPTY_PATH));
            let (user, group) = set_owner(ids, chown).map_err(|errno| ("set the owner of", errno))?;
            given = user && group;
            if !given {
                count(&self.not_kept.owner);
            }
        }
        let set = match times(meta.mtime) {
            Some(times) => self.tree.jail().set_times(link, &times),
            None => Err(Errno::INVAL),
        };
        let timed = permitted(set).map_err(|errno| ("set the mtime of", errno))?;
        if !timed {
            count(&self.not_kept.mtime);
        }
        let is_odd = timed && !HELD_BY_ALL.contains(&meta.mtime.secs);
        // What most links have is not looked for: whose they are, and a time that every file system holds.
        if (given || is_odd) && !haul_mutant::removed("links-are-looked-at") {
            let stands = rustix::fs::fstat(link).map_err(|errno| ("stat", errno))?;
            if given && owned_as(&stands, meta, (true, true)) != (true, true) {
                count(&self.not_kept.owner);
            }
            if is_odd {
                self.not_kept.note_time(meta.mtime, mtime_of(&stands));
            }
        }
        Ok(())
    }

    /// Sets the owner of the link that was looked at, which leads where it should. `None`: it has other
    /// names, which may lie elsewhere.
    pub(super) fn amend_link(
        &self,
        item: &LinkItem,
        dir: &OwnedFd,
        found: Option<Seen>,
    ) -> Result<Option<Change>, Failure> {
        let path = || self.tree.path_of(item.file.parent, &item.file.name);
        let fail = |what, errno| fault::os_at(FailureKind::Metadata, what, &path(), errno, dir);
        self.rate.charge(cost::OPEN + self.cost_of_attributes());
        let inode = self.tree.jail().open_path(dir, &item.file.name).map_err(|errno| fail("open", errno))?;
        let before = rustix::fs::fstat(&inode).map_err(|errno| fail("stat", errno))?;
        let link = FileType::from_raw_mode(before.st_mode) == FileType::Symlink;
        if !link || Some(seen_of(&before)) != found || before.st_nlink > 1 {
            return Ok(None);
        }
        let marked = self.set_link_attributes(item.file.id, inode.as_fd(), &path);
        let Some(ids) = ids(&item.meta).filter(|_| item.owner) else { return Ok(Some(marked)) };
        self.rate.charge(cost::OWNER);
        let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
        let chown = |uid, gid| retry_on_intr(|| rustix::fs::chownat(&inode, c"", uid, gid, flags));
        let (user, group) = set_owner(ids, chown).map_err(|errno| fail("set the owner of", errno))?;
        if !(user && group) {
            count(&self.not_kept.owner);
        }
        let after = rustix::fs::fstat(&inode).map_err(|errno| fail("stat", errno))?;
        let changed = marked
            .with(Change::OWNER, before.st_uid != after.st_uid)
            .with(Change::GROUP, before.st_gid != after.st_gid);
        Ok(Some(changed))
    }

    /// Sets mode and owner of a file whose content is right; see `SinkOp::Amend`. What of them changed.
    pub(super) fn amend(&self, item: &AmendItem, durable: bool) -> Result<Change, Failure> {
        self.check_owner()?;
        let file = &item.file;
        let dir = self.tree.dirfd(file.parent)?;
        let jail = self.tree.jail();
        let path = || self.tree.path_of(file.parent, &file.name);
        let fail = |what, errno| fault::os(FailureKind::Metadata, what, &path(), errno);
        let inode = jail.open_path(&dir, &file.name).map_err(|errno| fail("open", errno))?;
        let before = rustix::fs::fstat(&inode).map_err(|errno| fail("stat", errno))?;
        let replaced = || {
            let text = format!(
                "{}: something else stands there since it was looked at, or it was changed; it was left alone",
                path()
            );
            fault::failure(FailureKind::Metadata, Errno::EXIST.raw_os_error(), text)
        };
        let differs = self.differs(file.id, Subject::Held(inode.as_fd()), FileType::RegularFile);
        if let Some(beyond) = self.may_amend(item, &before, &differs).ok_or_else(replaced)? {
            self.count_beyond(beyond);
            return Ok(Change::NONE);
        }
        self.fence()?;
        let fd = match jail.reopen(&inode, false) {
            // Somebody has a lease on it, and is asked to give it up.
            Err(Errno::AGAIN) if !haul_mutant::removed("leases-are-waited-for") => {
                let fd = jail.reopen(&inode, true);
                let now = fd.as_ref().map_err(|errno| *errno).and_then(rustix::fs::fstat);
                if now.is_ok_and(|now| seen_of(&now) != seen_of(&before)) {
                    return Err(replaced());
                }
                // That may have taken long.
                self.fence()?;
                fd
            }
            // The owner may open it to himself, and it is given its mode right after.
            Err(Errno::ACCESS) => jail
                .set_mode(&inode, Mode::from_raw_mode(before.st_mode & 0o7777) | Mode::RUSR)
                .and_then(|()| jail.reopen(&inode, false)),
            other => other,
        };
        let fd = match fd {
            Ok(fd) => fd,
            // It is somebody else's.
            Err(Errno::ACCESS | Errno::PERM) => {
                let (stands, source) = (before.st_mode & 0o7777, item.meta.mode & 0o7777);
                if is_wider(stands, source, false) && !haul_mutant::removed("no-wider-mode-of-others") {
                    let text = format!(
                        "{}: it belongs to user {} and has mode {stands:04o}, which allows more than {source:04o} at the source; \
                         remove it, or have its owner change it",
                        path(),
                        before.st_uid
                    );
                    return Err(fault::failure(FailureKind::Metadata, Errno::PERM.raw_os_error(), text));
                }
                count(&self.not_kept.mode);
                self.tell_unamended(file.id, inode.as_fd(), &path);
                return Ok(Change::NONE);
            }
            Err(errno) => return Err(fail("open", errno)),
        };
        let wanted = Wanted {
            meta: &item.meta,
            owner: item.owner,
            keep: 0,
            mtime: false,
            made_with: None,
            may_stand: false,
        };
        let (after, changed) = self.set_all(file.id, &fd, &wanted, &path)?;
        let changed = changed
            .with(Change::MODE, before.st_mode != after.st_mode)
            .with(Change::OWNER, before.st_uid != after.st_uid)
            .with(Change::GROUP, before.st_gid != after.st_gid);
        if let Some(published) = &self.published {
            published.add(&self.tree, file.parent, &file.name, seen_of(&after))?;
        }
        if !changed.is_none() && durable {
            retry_on_intr(|| rustix::fs::fsync(&fd))
                .map_err(|errno| fault::os_at(FailureKind::Sync, "sync", &path(), errno, &fd))?;
        }
        Ok(changed)
    }
}

impl Sink {
    /// Whether `now`, which is held, is what was looked at, and nobody changed it since; and what of its
    /// rights stays as it is, if all else is as it is to be. What it may be given is judged once more: within
    /// one tick of the file system's clock it can have become another's with the same ctime.
    fn may_amend(&self, item: &AmendItem, now: &Stat, differs: &Differs) -> Option<Option<Change>> {
        if haul_mutant::removed("amended-is-what-was-seen") {
            return Some(None);
        }
        let (seen, found) = (seen_of(now), &item.found);
        let same = match haul_mutant::removed("amended-is-unchanged") {
            true => seen.inode == found.inode,
            false => seen == *found,
        };
        let mut existing = existing_of(now, self.files.me(), |_| 1);
        if let Existing::File { rights, .. } = &mut existing {
            note_differs(rights, differs);
            note_beyond_of_file(rights, &item.meta, (item.owner, self.files.in_place.is_some()));
        }
        let Existing::File { rights, .. } = existing else { return None };
        // Size and time were found right, as finely as they are kept there.
        let found_right = Change::SIZE.with(Change::TIME, true);
        let change = Change::of_file(&existing, item.file.size, &item.meta, item.owner).without(found_right);
        let may = change.may_be_set(rights, &item.meta, item.owner);
        let left = change.is_none() && !haul_mutant::removed("what-is-as-it-can-be-is-left");
        let beyond = left.then_some(rights.beyond);
        (same && (may || haul_mutant::removed("rights-are-judged-again"))).then_some(beyond)
    }
}
