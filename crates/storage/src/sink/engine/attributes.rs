//! Extended attributes and lists of what the engine makes or finds.
//!
//! In: what an entry is to have, told before its operations. Out: that set, in its order around mode, owner
//! and mtime; how what stands there differs; what could not be kept, told before its operation ends.
//! What must hold: they are set while nobody sees the entry under its name, and before it is synced; an entry
//! of which some cannot be kept gets its name all the same; while a list is missing, the mode gives nobody
//! but the owner anything.
//! Left out: reading, comparing and setting themselves ([`attributes`](crate::attributes)).

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use haul_core::change::Change;
use haul_core::entry::{Meta, Namespace};
use haul_core::ids::FileId;
use haul_core::metadata::{CAPABILITY, Values};
use haul_core::transfer::op::{Existing, LookupItem, SinkDone};
use haul_core::wire::{Failure, FailureKind};
use rustix::fs::{FileType, Mode, Stat};
use rustix::io::{Errno, retry_on_intr};

use super::Sink;
use crate::SinkCompletion;
use crate::attributes::{self, Differs, Failed, Subject, Unset};
use crate::meta_rate::cost;
use crate::sink::gives::note_beyond_of_file;
use crate::sink::meta::{Wanted, count, permitted, set_mode_of, set_owner_of};
use crate::sink::stat::note_differs;
use crate::sink::{fault, lock};

const WRITE: Mode = Mode::WUSR;
const SETID: u32 = 0o6000;

impl Sink {
    /// What an entry is to have; `None`: nothing.
    pub(super) fn values_of(&self, id: FileId) -> Option<Arc<Values>> {
        lock(&self.metadata).get(&id).cloned()
    }

    /// How what is held differs from what the entry is to have.
    pub(super) fn differs(&self, id: FileId, subject: Subject<'_>, kind: FileType) -> Differs {
        attributes::compare(subject, kind, self.keeps, self.values_of(id).as_deref())
    }

    /// How a file that a look found differs in what is kept of attributes and lists, and what of its owner
    /// and mode stays as it is.
    pub(super) fn look_at_rights(&self, item: &LookupItem, existing: &mut Existing) -> Result<(), Failure> {
        let Existing::File { rights, .. } = existing else { return Ok(()) };
        if self.keeps.any() {
            let dir = self.tree.dirfd(item.file.parent)?;
            // What takes its place meanwhile is not amended, for it is not what was seen.
            self.rate.charge(cost::ATTRIBUTES);
            if let Ok(held) = self.tree.jail().open_path(&dir, &item.file.name) {
                let differs = self.differs(item.file.id, Subject::Held(held.as_fd()), FileType::RegularFile);
                note_differs(rights, &differs);
            }
        }
        note_beyond_of_file(rights, &item.meta, (self.dir_owner, self.files.in_place.is_some()));
        Ok(())
    }

    /// As [`set_meta`](Self::set_meta), with attributes and lists around it. What they changed comes with it.
    pub(super) fn set_all(
        &self,
        id: FileId,
        fd: impl AsFd,
        wanted: &Wanted<'_>,
        path: &dyn Fn() -> String,
    ) -> Result<(Stat, Change), Failure> {
        let fd = fd.as_fd();
        if !self.keeps.any() || haul_mutant::removed("attributes-before-the-name") {
            return Ok((self.set_meta(fd, wanted, path)?, Change::NONE));
        }
        let fail = |errno| fault::os_at(FailureKind::Metadata, "stat", &path(), errno, fd);
        let stat = rustix::fs::fstat(fd).map_err(fail)?;
        let (kind, subject) = (FileType::from_raw_mode(stat.st_mode), Subject::Open(fd));
        let values = self.values_of(id);
        let before = attributes::compare(subject, kind, self.keeps, values.as_deref());
        let nothing = !before.xattrs && !before.acl && !insists(values.as_deref());
        // With a list that is the same all the same: a change of mode changes its mask.
        if nothing && before.access.is_none() {
            return Ok((self.set_meta(fd, wanted, path)?, Change::NONE));
        }
        self.charge_setting(wanted);
        // Until its list stands nobody but its owner has anything by the mode: a list that goes leaves its
        // mask to the group, and the entries of one that comes may deny what the mode allows.
        let alone = stat.st_mode & 0o700;
        let narrow = before.acl && stat.st_mode & 0o7777 != alone;
        if narrow && !haul_mutant::removed("no-wider-mode-without-its-list") {
            // Where it is refused lists cannot be changed either.
            permitted(retry_on_intr(|| rustix::fs::fchmod(fd, Mode::from_raw_mode(alone)))).map_err(
                |errno| fault::os_at(FailureKind::Metadata, "set the mode of", &path(), errno, fd),
            )?;
        }
        let open = || {
            if let Ok(now) = rustix::fs::fstat(fd) {
                let _ = rustix::fs::fchmod(fd, Mode::from_raw_mode(now.st_mode & 0o7777) | WRITE);
            }
        };
        let mut unset = attributes::set_first(subject, kind, self.keeps, values.as_deref(), open);
        let owned = set_owner_of(fd, wanted, &self.not_kept, path)?;
        let says_mode = attributes::set_lists(subject, kind, self.keeps, values.as_deref(), &mut unset)
            && !haul_mutant::removed("lists-say-the-mode");
        // What it was made with may be another by now.
        let wanted = &Wanted { made_with: None, ..*wanted };
        set_mode_of(fd, wanted, (owned, says_mode), &self.not_kept, path)?;
        attributes::set_rights(subject, self.keeps, values.as_deref(), &mut unset);
        let changed = Change::NONE
            .with(Change::XATTRS, before.xattrs && unset.failed.is_empty())
            .with(Change::ACL, before.acl && unset.failed.is_empty());
        self.tell_unset(id, unset, path);
        Ok((rustix::fs::fstat(fd).map_err(fail)?, changed))
    }

    /// Sets those of a symbolic link that is held. What changed.
    pub(super) fn set_link_attributes(
        &self,
        id: FileId,
        link: BorrowedFd<'_>,
        path: &dyn Fn() -> String,
    ) -> Change {
        if !self.keeps.xattrs {
            return Change::NONE;
        }
        let (subject, kind) = (Subject::Held(link), FileType::Symlink);
        let values = self.values_of(id);
        let before = attributes::compare(subject, kind, self.keeps, values.as_deref());
        if !before.xattrs {
            return Change::NONE;
        }
        let mut unset = attributes::set_first(subject, kind, self.keeps, values.as_deref(), || ());
        attributes::set_rights(subject, self.keeps, values.as_deref(), &mut unset);
        let changed = Change::NONE.with(Change::XATTRS, unset.failed.is_empty());
        self.tell_unset(id, unset, path);
        changed
    }

    /// Another user's file is as it is to be but for what only he may change.
    pub(super) fn tell_unamended(&self, id: FileId, held: BorrowedFd<'_>, path: &dyn Fn() -> String) {
        let differs = self.differs(id, Subject::Held(held), FileType::RegularFile);
        if differs.xattrs || differs.acl {
            let what = if differs.xattrs { &b"extended attributes"[..] } else { b"the access control list" };
            let unset = Unset { failed: vec![(what.into(), Errno::PERM)], nfs4: false };
            self.tell_unset(id, unset, path);
        }
    }

    /// What a file of another user, which was written in place, is to have: no setuid, no setgid and not a
    /// program's rights, which is told.
    pub(super) fn without_rights(
        &self,
        id: FileId,
        meta: &Meta,
        owner: bool,
        path: &dyn Fn() -> String,
    ) -> Meta {
        let key = (Namespace::Xattr, Box::from(CAPABILITY));
        if let Some(values) = self.values_of(id).filter(|values| values.contains_key(&key)) {
            let mut values = (*values).clone();
            values.remove(&key);
            lock(&self.metadata).insert(id, Arc::new(values));
            self.tell_unset(id, Unset { failed: vec![(CAPABILITY.into(), Errno::PERM)], nfs4: false }, path);
        }
        // Without their owner these are never set, which is counted where that is seen.
        if owner && meta.mode & SETID != 0 {
            count(&self.not_kept.setid);
            return Meta { mode: meta.mode & !SETID, ..*meta };
        }
        *meta
    }

    /// Tells what could not be kept of an entry, ahead of the end of its operation.
    pub(super) fn tell_unset(&self, id: FileId, unset: Unset, path: &dyn Fn() -> String) {
        if unset.nfs4 {
            count(&self.not_kept.nfs4);
        }
        let Some(((name, errno), more)) =
            unset.failed.split_first().map(|(first, more)| (first.clone(), more))
        else {
            return;
        };
        let failure = unkept(&path(), (&name, errno), more);
        (self.post)(SinkCompletion { done: SinkDone::Unkept { id, failure } });
    }
}

/// Whether there is something that is set whatever stands: a change of owner takes a program's rights, and
/// that an NFSv4 list has no place is told where it is tried.
fn insists(values: Option<&Values>) -> bool {
    let is_such = |(namespace, name): &(Namespace, Box<[u8]>)| {
        *namespace == Namespace::Nfs4Acl || &name[..] == CAPABILITY
    };
    values.is_some_and(|values| values.keys().any(is_such))
}

/// In words. Not with [`fault::os_at`]: where there is no room for an attribute there may be room for all
/// else.
fn unkept(path: &str, (name, errno): (&[u8], Errno), more: &[Failed]) -> Failure {
    let what = format!("set {} of", haul_base::escape::within(name));
    let failure = fault::os(FailureKind::Metadata, &what, path, errno);
    let others = match more.len() {
        0 => String::new(),
        1 => ", and one more".to_owned(),
        count => format!(", and {count} more"),
    };
    let text = format!("{}{others}; all else of it is as at the source", failure.text);
    fault::failure(FailureKind::Metadata, failure.errno, text)
}
