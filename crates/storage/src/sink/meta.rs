//! Metadata of what stands at the destination: owner, mode, mtime, and what became of them.
//!
//! In: a descriptor and what the source has. Out: that set, what was refused counted, or a failure.
//! What must hold: nothing is wider here than at its source without an error; what a system call or a file
//! system did not do is counted, also where it said nothing.

use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use haul_core::entry::{Meta, Timestamp};
use haul_core::wire::{Failure, FailureKind};
use rustix::fs::{FileType, Gid, Mode, Stat, Uid};
use rustix::io::{Errno, retry_on_intr};

use super::calls::set_mtime;
use super::fault;
use super::stat::{may_give, mtime_of};
use crate::store::NotKept;

const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
const STICKY: u32 = 0o1000;
/// Seconds that every file system can hold that is in use: from 1980 (FAT) to 2038 (32 bits).
pub(super) const HELD_BY_ALL: RangeInclusive<i64> = 315_619_200..=0x7fff_ffff;

/// Counts of what the destination would not keep. Shared, so that they can be read when the engine is gone.
#[derive(Debug, Default)]
pub struct NotKeptCounters {
    pub(super) owner: AtomicU64,
    pub(super) setid: AtomicU64,
    pub(super) mode: AtomicU64,
    pub(super) mtime: AtomicU64,
    clamped: AtomicU64,
    pub(super) nfs4: AtomicU64,
    pub(super) sparse: AtomicU64,
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
            clamped: read(&self.clamped),
            nfs4: read(&self.nfs4),
            sparse: read(&self.sparse),
        }
    }

    /// An mtime was set, and this is what stands.
    pub(super) fn note_time(&self, set: Timestamp, stands: Timestamp) {
        if !is_held(set, stands) {
            count(&self.clamped);
        }
    }
}

/// Whether this user may change what belongs to `uid`.
pub(super) fn may_change(uid: u32) -> bool {
    rustix::process::geteuid().as_raw() == uid || may_give()
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Takes "this file system or user may not do that" for an answer, not for a failure.
pub(super) fn permitted(result: rustix::io::Result<()>) -> rustix::io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        // EINVAL: the id has no meaning in this user namespace.
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::INVAL) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Whose it is to be, where the source says so: all ones, which is nobody's number, means "leave as it is" to
/// the kernel.
pub(super) fn ids(meta: &Meta) -> Option<(Uid, Gid)> {
    meta.owners().map(|(uid, gid)| (Uid::from_raw(uid), Gid::from_raw(gid)))
}

/// Sets owner and group by `chown`, each alone where both together are refused: a user may give a file to a
/// group of his, but to nobody. Which of them the file has now.
pub(super) fn set_owner(
    (uid, gid): (Uid, Gid),
    chown: impl Fn(Option<Uid>, Option<Gid>) -> rustix::io::Result<()>,
) -> rustix::io::Result<(bool, bool)> {
    if permitted(chown(Some(uid), Some(gid)))? {
        return Ok((true, true));
    }
    let group = !haul_mutant::removed("group-alone") && permitted(chown(None, Some(gid)))?;
    let user = permitted(chown(Some(uid), None))?;
    Ok((user, group))
}

/// Which of them what stands has: some file systems take an owner, say nothing, and keep their own.
pub(super) fn owned_as(stands: &Stat, meta: &Meta, (user, group): (bool, bool)) -> (bool, bool) {
    if haul_mutant::removed("owners-are-looked-at") {
        return (user, group);
    }
    (user && stands.st_uid == meta.uid, group && stands.st_gid == meta.gid)
}

/// Whether `stands` lets anybody do what `source` does not. To execute what one may read already is nothing
/// new; to search a directory is.
pub(super) fn is_wider(stands: u32, source: u32, is_dir: bool) -> bool {
    let more = stands & !source & !0o1000;
    // The execute bit of each class that may read by the source's mode.
    let readers = (source & 0o444) >> 2;
    // Set-id bits of a directory say whose is what is made in it.
    more & if is_dir { 0o777 } else { !readers & 0o7777 } != 0
}

/// What is to be set.
pub(super) struct Wanted<'a> {
    pub(super) meta: &'a Meta,
    pub(super) owner: bool,
    /// Bits of the mode that the destination has of its own.
    pub(super) keep: u32,
    pub(super) mtime: bool,
    /// The mode that it was made with, as far as nobody took something of it away; `None`: another.
    pub(super) made_with: Option<u32>,
    /// All of it may stand already, so that a look comes first: to set what stands makes it an inode that is
    /// to be written again.
    pub(super) may_stand: bool,
}

impl Wanted<'_> {
    /// Whether this is all of what is wanted, and nothing of that would be counted as not kept.
    fn is(&self, stat: &Stat) -> bool {
        let owned = match ids(self.meta) {
            Some((uid, gid)) if self.owner => {
                if (stat.st_uid, stat.st_gid) != (uid.as_raw(), gid.as_raw()) {
                    return false;
                }
                (true, true)
            }
            _ => (false, false),
        };
        let source = self.meta.mode & 0o7777;
        kept_bits(source, owned) == source
            && stat.st_mode & 0o7777 == source | self.keep
            && (!self.mtime || mtime_of(stat) == self.meta.mtime)
    }
}

/// What stands, where that is all that is wanted already.
pub(super) fn stands(fd: impl AsFd, wanted: &Wanted<'_>) -> Option<Stat> {
    let stat = wanted.may_stand.then(|| rustix::fs::fstat(fd))?.ok()?;
    wanted.is(&stat).then_some(stat)
}

/// Owner first, for a change of owner clears setuid and setgid, and before it the mode is narrowed; mtime
/// last. Then looks what stands.
pub(super) fn set_meta(
    fd: impl AsFd,
    wanted: &Wanted<'_>,
    lost: &NotKeptCounters,
    path: &dyn Fn() -> String,
) -> Result<Stat, Failure> {
    let fd = fd.as_fd();
    let owned = set_owner_of(fd, wanted, lost, path)?;
    set_mode_of(fd, wanted, (owned, false), lost, path)
}

/// Sets owner and group, if that is wanted. Which of them it has now.
pub(super) fn set_owner_of(
    fd: BorrowedFd<'_>,
    wanted: &Wanted<'_>,
    lost: &NotKeptCounters,
    path: &dyn Fn() -> String,
) -> Result<(bool, bool), Failure> {
    let meta = wanted.meta;
    let fail = |what, errno| fault::os_at(FailureKind::Metadata, what, &path(), errno, fd);
    let (mut user, mut group) = (false, false);
    if wanted.owner
        && let Some(ids) = ids(meta)
    {
        // A look costs less than to set what stands, where files are made without a name: there the kernel
        // knows at once whose they are.
        let stat = rustix::fs::fstat(fd).map_err(|errno| fail("stat", errno))?;
        match wanted.made_with {
            Some(_) if (stat.st_uid, stat.st_gid) == (meta.uid, meta.gid) => return Ok((true, true)),
            // It gives nobody more than its source.
            Some(_) => {}
            None => {
                let chmod = |mode| retry_on_intr(|| rustix::fs::fchmod(fd, mode));
                narrow(&stat, ids, meta.mode | wanted.keep, chmod)
                    .map_err(|errno| fail("set the mode of", errno))?;
            }
        }
        let chown = |uid, gid| retry_on_intr(|| rustix::fs::fchown(fd, uid, gid));
        (user, group) = set_owner(ids, chown).map_err(|errno| fail("set the owner of", errno))?;
        if !(user && group) {
            count(&lost.owner);
        }
    }
    Ok((user, group))
}

/// Before another owner or group has what is `stat`: takes away what its mode gives and `allowed` does not,
/// or they would have that until the mode is set, and for good where this run ends before.
pub(super) fn narrow(
    stat: &Stat,
    (uid, gid): (Uid, Gid),
    allowed: u32,
    chmod: impl FnOnce(Mode) -> rustix::io::Result<()>,
) -> rustix::io::Result<()> {
    let before = stat.st_mode & 0o7777;
    // The sticky bit gives nothing, it denies.
    let both = before & (allowed | STICKY);
    let is_theirs = (stat.st_uid, stat.st_gid) == (uid.as_raw(), gid.as_raw());
    if is_theirs || both == before || haul_mutant::removed("modes-are-narrowed-before-the-owner") {
        return Ok(());
    }
    // Where it is refused its owner is not set either.
    permitted(chmod(Mode::from_raw_mode(both))).map(drop)
}

/// Sets mode and mtime of what was given its owner as far as `owned` says, and looks what stands.
/// `says_mode`: its list is set, and what everybody may do is as that says.
pub(super) fn set_mode_of(
    fd: BorrowedFd<'_>,
    wanted: &Wanted<'_>,
    (claimed, says_mode): ((bool, bool), bool),
    lost: &NotKeptCounters,
    path: &dyn Fn() -> String,
) -> Result<Stat, Failure> {
    let meta = wanted.meta;
    let fail = |what, errno| fault::os_at(FailureKind::Metadata, what, &path(), errno, fd);
    let mut source = meta.mode & 0o7777;
    let look = || rustix::fs::fstat(fd).map_err(|errno| fail("stat", errno));
    // Before it is setuid it is looked at, and all else behind that.
    let owned = match source & (SETUID | SETGID) {
        0 => claimed,
        _ => owned_as(&look()?, meta, claimed),
    };
    let mut mode = kept_bits(source, owned);
    if mode != source {
        count(&lost.setid);
    }
    let mut listed = None;
    if says_mode {
        let now = look()?.st_mode & 0o7777;
        // A mode with other bits would give the list another mask.
        let by_list = |mode: u32| mode & !0o777 | now & 0o777;
        (source, mode) = (by_list(source), by_list(mode));
        listed = Some(now);
    }
    let mode = mode | wanted.keep;
    let chmod = || {
        let changed = retry_on_intr(|| rustix::fs::fchmod(fd, Mode::from_raw_mode(mode)));
        permitted(changed).map_err(|errno| fail("set the mode of", errno))
    };
    let has_mode = [wanted.made_with, listed].contains(&Some(mode));
    if !has_mode {
        chmod()?;
    }
    let timed = !wanted.mtime
        || permitted(set_mtime(fd, meta.mtime)).map_err(|errno| fail("set the mtime of", errno))?;
    let mut stands = look()?;
    // The umask of whoever made it, or rights that its directory gives.
    if has_mode && stands.st_mode & 0o7777 != mode && !haul_mutant::removed("made-modes-are-looked-at") {
        chmod()?;
        stands = look()?;
    }
    if claimed == (true, true) && owned_as(&stands, meta, claimed) != claimed {
        count(&lost.owner);
    }
    // Some file systems refuse a mode, others keep their own and say nothing.
    let got = stands.st_mode & 0o7777;
    if got != mode {
        count(&lost.mode);
    }
    let is_dir = FileType::from_raw_mode(stands.st_mode) == FileType::Directory;
    if is_wider(got, source | wanted.keep, is_dir) && !haul_mutant::removed("no-wider-mode") {
        return Err(fault::failure(
            FailureKind::Metadata,
            Errno::PERM.raw_os_error(),
            wider(&path(), got, source),
        ));
    }
    if !timed {
        count(&lost.mtime);
    } else if wanted.mtime {
        lost.note_time(meta.mtime, mtime_of(&stands));
    }
    Ok(stands)
}

/// A directory that was just made and has `stat` allows more than its source.
pub(super) fn refuse_wider(stat: &Stat, source: &Meta, path: &str) -> Result<(), Failure> {
    let (got, source) = (stat.st_mode & 0o7777, source.mode & 0o7777);
    // What its owner may do is taken back at the end, and a setgid is its parent's.
    if !is_wider(got, source | 0o2700, true) || haul_mutant::removed("made-root-is-no-wider") {
        return Ok(());
    }
    let text = format!(
        "{path}: the file system keeps mode {got:04o}, which allows more than {source:04o} at the source; the directory was made and \
         is empty: run the command again if everything may come into it all the same"
    );
    Err(fault::failure(FailureKind::Metadata, Errno::PERM.raw_os_error(), text))
}

/// The mode without what must not stand there where owner and group are not those of the source.
pub(super) fn kept_bits(source: u32, (user, group): (bool, bool)) -> u32 {
    let mut mode = source;
    // A setuid program may be meant for its group alone.
    let kept = (user && group) || haul_mutant::removed("setid-needs-its-owner");
    if !kept {
        mode &= !SETUID;
    }
    if !group {
        mode &= !SETGID;
    }
    mode
}

pub(super) fn wider(path: &str, got: u32, source: u32) -> String {
    format!(
        "{path}: the file system keeps mode {got:04o}, which allows more than {source:04o} at the source; \
         mount it with a umask that does not, or copy to another one"
    )
}

/// The mtime that was set is the one that stands, as finely as the file system keeps it: no grain is above 2
/// s (FAT).
fn is_held(set: Timestamp, stands: Timestamp) -> bool {
    set.secs.abs_diff(stands.secs) <= 2
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Goal: a mode is wider where somebody may do more with what is in the file or directory, and not where
    /// he may execute what he reads.
    /// Method: pairs of modes.
    #[test]
    fn wider_is_what_gives_somebody_more() {
        for (stands, source) in
            [(0o644, 0o600), (0o755, 0o600), (0o620, 0o600), (0o711, 0o700), (0o2755, 0o755)]
        {
            assert!(is_wider(stands, source, false), "{stands:o} {source:o}");
        }
        for (stands, source) in
            [(0o755, 0o644), (0o600, 0o644), (0o700, 0o600), (0o644, 0o644), (0o1644, 0o644)]
        {
            assert!(!is_wider(stands, source, false), "{stands:o} {source:o}");
        }
        assert!(is_wider(0o755, 0o744, true) && !is_wider(0o755, 0o755, true));
        assert!(!is_wider(0o2755, 0o755, true));
    }

    /// Goal: where owner and group together are refused each is tried alone, and it is known which of them
    /// holds.
    /// Method: a system that refuses one, the other, both or none.
    #[test]
    fn owner_and_group_are_tried_alone() {
        let (uid, gid) = (Uid::from_raw(5), Gid::from_raw(6));
        for (may_user, may_group) in [(true, true), (true, false), (false, true), (false, false)] {
            let has = RefCell::new((false, false));
            let chown = |uid: Option<Uid>, gid: Option<Gid>| {
                if (uid.is_some() && !may_user) || (gid.is_some() && !may_group) {
                    return Err(Errno::PERM);
                }
                let mut has = has.borrow_mut();
                *has = (has.0 || uid.is_some(), has.1 || gid.is_some());
                Ok(())
            };
            assert_eq!(set_owner((uid, gid), chown), Ok((may_user, may_group)));
            assert_eq!(*has.borrow(), (may_user, may_group));
        }
        assert_eq!(set_owner((uid, gid), |_, _| Err(Errno::IO)), Err(Errno::IO));
    }
}
