//! What stands at a name already, and what the destination makes of times.
//!
//! In: a name, and what was announced of it. Out: which inode stands there, of what kind, and how it
//! compares; an mtime that the file system cannot hold is told as the announced one where its nearest stands.
//! What must hold: nothing is opened for it, so that no FIFO is waited for and no device wakes up; what
//! another entry of this session has is no entry's to find.
//! Left out: what follows from it, which the session decides.

use std::os::fd::OwnedFd;

use haul_core::change::same_time;
use haul_core::entry::{Name, Timestamp};
use haul_core::transfer::op::{Existing, Found, LookupItem};
use haul_core::wire::{Failure, FailureKind};
use rustix::fs::FileType;
use rustix::io::Errno;

use super::Files;
use super::aliases::{Print, Verdict};
use super::in_place::InPlace;
use crate::sink::calls::set_mtime;
use crate::sink::meta::HELD_BY_ALL;
use crate::sink::names::{NO_FILE, temp_name};
use crate::sink::stat::{existing_of, mtime_of, seen_of};
use crate::sink::{fault, lock};

/// Odd mtimes that are remembered; others are tried each time.
const HELD_MAX: usize = 4096;

impl Files {
    /// What stands at the item's name; and takes over the temporary of an earlier run.
    pub(in crate::sink) fn look(&self, item: &LookupItem) -> Result<Found, Failure> {
        let file = &item.file;
        let dir = self.tree.dirfd(file.parent)?;
        let adopted = match item.adopt {
            Some(tag) => self.adopt(file, &dir, tag)?,
            None => false,
        };
        let len = if adopted { self.look_at_adopted(file) } else { None };
        let (adopted, len) = (len.is_some(), len.unwrap_or(0));
        let nothing = Found { existing: Existing::Nothing, seen: None, adopted, len, begun: false };
        // Nothing can stand in a directory that this run made; that spares a request per new file.
        if self.tree.was_created(file.parent) {
            return Ok(nothing);
        }
        let stat = match self.tree.jail().stat(&dir, &file.name) {
            Err(Errno::NOENT) => return Ok(nothing),
            Err(errno) => {
                let path = self.tree.path_of(file.parent, &file.name);
                return Err(fault::os(FailureKind::Open, "stat", &path, errno));
            }
            Ok(stat) => stat,
        };
        let seen = seen_of(&stat);
        let kind = FileType::from_raw_mode(stat.st_mode);
        // A directory is no file's to have, and another entry may be it.
        if kind != FileType::Directory && !self.tree.claim(file.parent, &dir, &file.name, seen.inode, file.id)
        {
            return Err(self.tree.folded(file.parent, &file.name));
        }
        let mut existing = existing_of(&stat, self.me(), |mtime| self.grain_for(&dir, stat.st_dev, mtime));
        if let (Existing::File { size, .. }, Some(tag), false) = (&existing, item.adopt, adopted)
            && *size == file.size
        {
            // It had its name before the journal said so: its temporary is nowhere to be looked for.
            self.adopt.met(tag, file.number);
        }
        if let Existing::File { size, mtime, grain, .. } = &mut existing
            && *size == file.size
            && !same_time(item.fingerprint.mtime, *mtime, *grain)
            && self.holds_as(&dir, stat.st_dev, item.fingerprint.mtime).is_some_and(|held| held == *mtime)
        {
            *mtime = item.fingerprint.mtime;
        }
        if let Existing::File { size, mtime, grain, .. } = &mut existing {
            let counts = !self.copies_all
                && *size == file.size
                && same_time(item.fingerprint.mtime, *mtime, *grain)
                && !self.in_place.as_ref().is_some_and(InPlace::is_part);
            match self.aliases.find(&stat, file.id, counts.then(|| Print::of(&item.fingerprint))) {
                Verdict::Mine => {}
                Verdict::Unknown => *size = u64::MAX,
                Verdict::Anothers if self.in_place.is_some() => {
                    return Err(self.has_other_entry(file.parent, &file.name));
                }
                Verdict::Anothers => return Err(is_counted_on(&self.tree.path_of(file.parent, &file.name))),
            }
        }
        let begun = item.adopt.filter(|_| !adopted && stat.st_nlink > 1).is_some_and(|tag| {
            let marked = self.tree.jail().stat(&dir, &temp_name(&file.name, tag, file.number));
            let same = marked.is_ok_and(|marked| seen_of(&marked).inode == seen.inode);
            same && !haul_mutant::removed("half-written-is-not-left-alone")
        });
        if let Some(tag) = item.adopt.filter(|_| begun) {
            self.adopt.leave_begun(tag, file.number);
        }
        Ok(Found { existing, seen: Some(seen), adopted, len, begun })
    }

    /// To whom files belong that we make here, if that says anything.
    pub(in crate::sink) fn me(&self) -> Option<u32> {
        self.adopt.ours.filter(|ours| !ours.faked).map(|ours| ours.uid)
    }

    /// What the file system of `dir` makes of an mtime that some cannot hold. `None`: all can, or nobody
    /// knows.
    fn holds_as(&self, dir: &OwnedFd, device: u64, mtime: Timestamp) -> Option<Timestamp> {
        if HELD_BY_ALL.contains(&mtime.secs) || haul_mutant::removed("clamped-times-compare") {
            return None;
        }
        if let Some(known) = lock(&self.held).get(&(device, mtime)) {
            return *known;
        }
        let held = self.probe_time(dir, mtime);
        let mut known = lock(&self.held);
        if known.len() < HELD_MAX {
            known.insert((device, mtime), held);
        }
        held
    }

    /// What becomes of an mtime in `dir`.
    fn probe_time(&self, dir: &OwnedFd, mtime: Timestamp) -> Option<Timestamp> {
        let jail = self.tree.jail();
        let name =
            temp_name(&Name::new(format!("haul~time{}", mtime.secs).as_bytes()).ok()?, self.tag, NO_FILE);
        let fd = jail.create_temp(dir, &name).ok()?;
        let read = set_mtime(&fd, mtime).and_then(|()| rustix::fs::fstat(&fd));
        let _ = jail.unlink(dir, &name);
        Some(mtime_of(&read.ok()?))
    }

    /// The granularity of mtimes on the file system of `dir`, which is that `device`, nanoseconds. It is
    /// probed once for each, and only when it could matter: an mtime that is no multiple of 100 ns proves
    /// that there is none.
    pub(in crate::sink) fn grain_for(&self, dir: &OwnedFd, device: u64, mtime: Timestamp) -> u32 {
        if !mtime.nanos.is_multiple_of(100) {
            return 1;
        }
        let device = if haul_mutant::removed("grains-are-of-one-file-system") { 0 } else { device };
        let known = lock(&self.grains).entry(device).or_default().clone();
        // One probe, whoever else asks for it meanwhile: each makes a file.
        let mut known = lock(&known);
        if known.is_none() {
            // A directory that takes no file says nothing of its file system.
            *known = self.probe_grain(dir);
        }
        known.unwrap_or(1)
    }

    fn probe_grain(&self, dir: &OwnedFd) -> Option<u32> {
        let jail = self.tree.jail();
        let name = temp_name(&Name::new(b"haul~grain").ok()?, self.tag, NO_FILE);
        let fd = jail.create_temp(dir, &name).ok()?;
        let set = Timestamp { secs: 1_000_000_001, nanos: 123_456_789 };
        let read = set_mtime(&fd, set).and_then(|()| rustix::fs::fstat(&fd));
        // A file system that is asked again without its cache would truncate too; the name goes at once.
        let _ = jail.unlink(dir, &name);
        Some(grain_between(set, mtime_of(&read.ok()?)))
    }
}

/// Why what stands at a name is not taken for its copy.
pub(in crate::sink) fn is_counted_on(path: &str) -> Failure {
    let text = format!(
        "{path}: it is one file at the destination with another entry of this copy (a hard link, or one directory mounted twice), \
         and has the bytes of one of them at most; it was left as it is (where these are hard links, `force` gives each a file of its own)"
    );
    fault::failure(FailureKind::Create, Errno::NOTUNIQ.raw_os_error(), text)
}

/// The smallest usual granularity that makes `read` of `set`; 1 if none does.
fn grain_between(set: Timestamp, read: Timestamp) -> u32 {
    let total = |t: Timestamp| i128::from(t.secs) * 1_000_000_000 + i128::from(t.nanos);
    let (set, read) = (total(set), total(read));
    [1, 100, 1_000, 1_000_000, 10_000_000, 1_000_000_000, 2_000_000_000]
        .into_iter()
        .find(|grain| set - set.rem_euclid(i128::from(*grain)) == read)
        .unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the grain is recognised from what the file system made of a known mtime.
    /// Method: each usual grain applied to the probe's value; and a value that no grain explains.
    #[test]
    fn grains_are_recognised() {
        let set = Timestamp { secs: 1_000_000_001, nanos: 123_456_789 };
        let cases =
            [(1, 1, 123_456_789), (100, 1, 123_456_700), (1_000, 1, 123_456_000), (1_000_000_000, 1, 0)];
        for (grain, secs, nanos) in cases {
            assert_eq!(grain_between(set, Timestamp { secs: 1_000_000_000 + secs, nanos }), grain);
        }
        assert_eq!(grain_between(set, Timestamp { secs: 1_000_000_000, nanos: 0 }), 2_000_000_000);
        assert_eq!(grain_between(set, Timestamp { secs: 5, nanos: 5 }), 1);
    }
}
