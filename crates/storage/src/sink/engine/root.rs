//! The destination root, which becomes what the directory is whose contents came into it.
//!
//! In: what that directory is, and its attributes and lists. Out: the root with them; what changed.
//! What must hold: of another user's root, of which this one may change nothing, it is counted what was not
//! kept, and that is no failure; until journal and owner file are gone its owner can remove them.
//! Left out: its mtime, and the rest of its mode, which wait for that
//! ([`SinkTree::end_root`](crate::sink::tree::SinkTree)).

use std::os::fd::{AsFd, BorrowedFd};

use haul_core::change::{Change, same_time};
use haul_core::entry::Meta;
use haul_core::ids::DirId;
use haul_core::wire::{Failure, FailureKind};
use rustix::fs::{FileType, Mode, Stat};

use super::Sink;
use crate::attributes::{self, Subject};
use crate::sink::fault;
use crate::sink::gives::note_beyond;
use crate::sink::meta::{Wanted, count, may_change};
use crate::sink::stat::{mtime_of, note_differs, stood_of};

const OWNER: u32 = 0o700;

impl Sink {
    /// Gives the root what `meta` says, but for what [`SinkTree::end_root`](crate::sink::tree::SinkTree)
    /// does.
    pub(super) fn finish_root(&self, meta: &Meta) -> Result<Change, Failure> {
        let fd = self.tree.root().clone();
        let path = || self.tree.path_of_dir(DirId::ROOT);
        let fail = |what, errno| fault::os_at(FailureKind::Metadata, what, &path(), errno, &fd);
        let stat = rustix::fs::fstat(&fd).map_err(|errno| fail("stat", errno))?;
        let before = self.tree.stood(DirId::ROOT);
        let stood = before.map(|before| {
            let grain = |mtime| match mtime == meta.mtime {
                true => 1,
                false => self.files.grain_for(&fd, stat.st_dev, mtime),
            };
            stood_of(&before, grain)
        });
        let subject = Subject::Open(fd.as_fd());
        let differs = self.differs(DirId::ROOT.as_file(), subject, FileType::Directory);
        let told = |changed: Change| match stood {
            None => Change::NEW,
            Some(mut stood) => {
                note_differs(&mut stood.rights, &differs);
                note_beyond(&mut stood.rights, meta, self.dir_owner);
                let change = Change::of_dir(&stood, meta, self.dir_owner);
                // What could not be set did not change.
                change.without(Change::XATTRS.with(Change::ACL, true)).with(changed, true)
            }
        };
        if !may_change(stat.st_uid) && !haul_mutant::removed("others-roots-are-left") {
            return Ok(self.leave_root(fd.as_fd(), &stat, meta, (differs.xattrs, differs.acl)));
        }
        let keep = stat.st_mode & Change::kept_of_dirs(self.dir_owner) | OWNER;
        let wanted =
            Wanted { meta, owner: self.dir_owner, keep, mtime: false, made_with: None, may_stand: true };
        let (stands, changed) = self.set_all(DirId::ROOT.as_file(), &fd, &wanted, &path)?;
        let given = Mode::from_raw_mode(stands.st_mode & 0o7777);
        let last = given & !Mode::from_raw_mode(OWNER & !meta.mode);
        self.tree.set_last_of_root((given != last).then_some((given, last)), Some(meta.mtime));
        Ok(told(changed))
    }

    /// It belongs to another user: what of it differs is counted as not kept, and what everybody may set who
    /// may write there is set.
    fn leave_root(
        &self,
        fd: BorrowedFd<'_>,
        stat: &Stat,
        meta: &Meta,
        (xattrs, acl): (bool, bool),
    ) -> Change {
        if self.dir_owner && (stat.st_uid, stat.st_gid) != (meta.uid, meta.gid) {
            count(&self.not_kept.owner);
        }
        let (stands, source) = (stat.st_mode & 0o7777, meta.mode & 0o7777);
        if stands != source | stat.st_mode & Change::kept_of_dirs(self.dir_owner) {
            count(&self.not_kept.mode);
        }
        if !same_time(meta.mtime, mtime_of(stat), 1) {
            count(&self.not_kept.mtime);
        }
        if !xattrs && !acl {
            return Change::NONE;
        }
        let id = DirId::ROOT.as_file();
        let (kind, values) = (FileType::Directory, self.values_of(id));
        let subject = Subject::Open(fd);
        let mut unset = attributes::set_first(subject, kind, self.keeps, values.as_deref(), || ());
        attributes::set_lists(subject, kind, self.keeps, values.as_deref(), &mut unset);
        attributes::set_rights(subject, self.keeps, values.as_deref(), &mut unset);
        let all = unset.failed.is_empty();
        self.tell_unset(id, unset, &|| self.tree.path_of_dir(DirId::ROOT));
        Change::NONE.with(Change::XATTRS, xattrs && all).with(Change::ACL, acl && all)
    }
}
