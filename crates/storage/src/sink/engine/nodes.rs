//! FIFOs, sockets and devices: made, and brought to what they are to be where they stand.
//!
//! In: what it is, its owner, mode and time, its lists. Out: it under its name; what changed.
//! What must hold: none is ever opened, for a FIFO would wait and a device might act; one that is made is
//! closed to everybody until it has its owner, and has no name of its own before it is all that it is to be;
//! only what was looked at is changed.
//! Left out: which of them come, which this end's command says (`transfer::sink` holds to it); what is
//! replaced, which is as for links (`commit`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use haul_core::change::Change;
use haul_core::entry::Node;
use haul_core::transfer::op::{LinkItem, Seen};
use haul_core::wire::{Failure, FailureKind};
use rustix::fs::{AtFlags, FileType, Mode, Stat};
use rustix::io::{Errno, retry_on_intr};

use super::Sink;
use crate::attributes::{self, Subject};
use crate::meta_rate::cost;
use crate::sink::calls::times;
use crate::sink::fault;
use crate::sink::gives::note_beyond;
use crate::sink::meta::{count, ids, is_wider, kept_bits, narrow, owned_as, permitted, set_owner, wider};
use crate::sink::stat::{inode_of, is_node, mtime_of, note_differs, rights_of, seen_of, stood_of};

impl Sink {
    /// `found`: what stands at its name and may give way, if it is not that already.
    pub(super) fn make_node(
        &self,
        (item, node): (&LinkItem, Node),
        dir: &OwnedFd,
        found: Option<Seen>,
    ) -> Result<Change, Failure> {
        if let Some(found) = found
            && let Some(change) = self.amend_node((item, node), dir, found)?
        {
            return Ok(change);
        }
        let (jail, file) = (self.tree.jail(), &item.file);
        if found.is_some() && item.no_replace {
            let text =
                format!("{}: it exists and was not replaced", self.tree.path_of(file.parent, &file.name));
            return Err(fault::failure(FailureKind::Publish, Errno::EXIST.raw_os_error(), text));
        }
        // Until it has its name nobody may take its temporary for a leftover.
        let _making = self.files.making();
        self.rate.charge(cost::CREATE + cost::OPEN + self.cost_of_setting(item.owner) + cost::NAME);
        let temp = self.files.temp_name(file);
        let mut made = jail.make_node(dir, &temp, node);
        if made == Err(Errno::EXIST) && self.files.is_stale(dir, &temp, None) {
            let _ = jail.unlink(dir, &temp);
            made = jail.make_node(dir, &temp, node);
        }
        made.map_err(|errno| match errno {
            // Another entry's, which is being made.
            Errno::EXIST => self.tree.folded(file.parent, &file.name),
            _ => self.unmade_link(item, dir, FailureKind::Create, what_is_made(node), errno),
        })?;
        let held = self.hold_node((item, node), dir)?;
        let path = || self.tree.path_of(file.parent, &file.name);
        let inode = inode_of(&held.1);
        let result = self
            .set_node(item, held.0.as_fd(), &held.1, &path)
            .and_then(|_| self.give_name(file, (held.0.as_fd(), inode), true, found, item.no_replace));
        // The name is of this run alone, but what stands there may be another's.
        if result.is_err() && jail.stat(dir, &temp).is_ok_and(|stat| inode_of(&stat) == inode) {
            let _ = jail.unlink(dir, &temp);
        }
        result.map(|()| Change::NEW)
    }

    /// Holds what was just made, without opening it, so that what is done to it is done to nothing else.
    fn hold_node(&self, (item, node): (&LinkItem, Node), dir: &OwnedFd) -> Result<(OwnedFd, Stat), Failure> {
        let temp = self.files.temp_name(&item.file);
        let fail = |errno| {
            if errno != Errno::NOENT {
                self.files.leave();
            }
            self.unmade_link(item, dir, FailureKind::Create, "look at what was made for", errno)
        };
        let held = self.tree.jail().open_path(dir, &temp).map_err(fail)?;
        let stat = rustix::fs::fstat(&held).map_err(fail)?;
        if is_node(&stat, node) && stat.st_nlink == 1 {
            return Ok((held, stat));
        }
        let path = self.tree.path_of(item.file.parent, &item.file.name);
        let text = format!("make {path}: something else took the place of what was made; it was left alone");
        Err(fault::failure(FailureKind::Create, Errno::STALE.raw_os_error(), text))
    }

    /// Brings what was `found` to what it is to be, if it is such a thing. `None`: it is another, changed
    /// meanwhile, has other names, or belongs to somebody who must not get its rights: one is made anew.
    fn amend_node(
        &self,
        (item, node): (&LinkItem, Node),
        dir: &OwnedFd,
        found: Seen,
    ) -> Result<Option<Change>, Failure> {
        let path = || self.tree.path_of(item.file.parent, &item.file.name);
        let fail = |what, errno| fault::os_at(FailureKind::Metadata, what, &path(), errno, dir);
        self.rate.charge(cost::OPEN + self.cost_of_attributes());
        let held =
            self.tree.jail().open_path(dir, &item.file.name).map_err(|errno| fail("look at", errno))?;
        let before = rustix::fs::fstat(&held).map_err(|errno| fail("stat", errno))?;
        if !is_node(&before, node) || seen_of(&before) != found {
            return Ok(None);
        }
        if item.no_replace {
            self.firsts.see(item.file.id, found);
            return Ok(Some(Change::NONE));
        }
        let kind = FileType::from_raw_mode(before.st_mode);
        let differs = self.differs(item.file.id, Subject::Held(held.as_fd()), kind);
        let mut stood = stood_of(&before, |mtime| match mtime == item.meta.mtime {
            true => 1,
            false => self.files.grain_for(dir, before.st_dev, mtime),
        });
        stood.rights = rights_of(&before, self.files.me());
        note_differs(&mut stood.rights, &differs);
        note_beyond(&mut stood.rights, &item.meta, item.owner);
        let change = Change::of_node(&stood, &item.meta, item.owner);
        if change.is_none() {
            self.count_beyond(stood.rights.beyond);
            self.firsts.see(item.file.id, found);
            return Ok(Some(change));
        }
        if !change.may_be_set(stood.rights, &item.meta, item.owner) {
            return Ok(None);
        }
        self.fence()?;
        self.rate.charge(self.cost_of_setting(item.owner));
        let (after, listed) = self.set_node(item, held.as_fd(), &before, &path)?;
        self.firsts.see(item.file.id, seen_of(&after));
        let changed = listed
            .with(
                Change::TIME,
                (before.st_mtime, before.st_mtime_nsec) != (after.st_mtime, after.st_mtime_nsec),
            )
            .with(Change::MODE, before.st_mode != after.st_mode)
            .with(Change::OWNER, before.st_uid != after.st_uid)
            .with(Change::GROUP, before.st_gid != after.st_gid);
        Ok(Some(changed))
    }

    /// Owner, lists, mode and time, in this order, of what is held and not open.
    fn set_node(
        &self,
        item: &LinkItem,
        held: BorrowedFd<'_>,
        before: &Stat,
        path: &dyn Fn() -> String,
    ) -> Result<(Stat, Change), Failure> {
        let (id, meta, jail) = (item.file.id, &item.meta, self.tree.jail());
        let fail = |what, errno| fault::os(FailureKind::Metadata, what, &path(), errno);
        let (kind, subject) = (FileType::from_raw_mode(before.st_mode), Subject::Held(held));
        let values = self.values_of(id);
        // As it stood: a mode that is narrowed changes the mask of a list.
        let differs = attributes::compare(subject, kind, self.keeps, values.as_deref());
        let mut owned = (false, false);
        if item.owner
            && let Some(ids) = ids(meta)
        {
            let flags = AtFlags::EMPTY_PATH;
            narrow(before, ids, meta.mode, |mode| jail.set_mode(held, mode))
                .map_err(|errno| fail("set the mode of", errno))?;
            let chown = |uid, gid| retry_on_intr(|| rustix::fs::chownat(held, "", uid, gid, flags));
            owned = set_owner(ids, chown).map_err(|errno| fail("set the owner of", errno))?;
            if owned != (true, true) {
                count(&self.not_kept.owner);
            }
        }
        let (mut listed, mut says_mode) = (Change::NONE, false);
        if self.keeps.any() {
            let mut unset = attributes::set_first(subject, kind, self.keeps, values.as_deref(), || ());
            says_mode = attributes::set_lists(subject, kind, self.keeps, values.as_deref(), &mut unset);
            attributes::set_rights(subject, self.keeps, values.as_deref(), &mut unset);
            let all = unset.failed.is_empty();
            listed = listed.with(Change::XATTRS, differs.xattrs && all).with(Change::ACL, differs.acl && all);
            self.tell_unset(id, unset, path);
        }
        let mut source = meta.mode & 0o7777;
        let mut mode = kept_bits(source, owned);
        if mode != source {
            count(&self.not_kept.setid);
        }
        if says_mode {
            // A mode with other bits would give the list another mask.
            let now = rustix::fs::fstat(held).map_err(|errno| fail("stat", errno))?.st_mode & 0o777;
            (source, mode) = (source & !0o777 | now, mode & !0o777 | now);
        }
        permitted(jail.set_mode(held, Mode::from_raw_mode(mode)))
            .map_err(|errno| fail("set the mode of", errno))?;
        let set = match times(meta.mtime) {
            Some(times) => jail.set_times(held, &times),
            None => Err(Errno::INVAL),
        };
        let timed = permitted(set).map_err(|errno| fail("set the mtime of", errno))?;
        let after = rustix::fs::fstat(held).map_err(|errno| fail("stat", errno))?;
        match timed {
            true => self.not_kept.note_time(meta.mtime, mtime_of(&after)),
            false => count(&self.not_kept.mtime),
        }
        if owned == (true, true) && owned_as(&after, meta, owned) != owned {
            count(&self.not_kept.owner);
        }
        let got = after.st_mode & 0o7777;
        if got != mode {
            count(&self.not_kept.mode);
        }
        if is_wider(got, source, false) {
            let text = wider(&path(), got, source);
            return Err(fault::failure(FailureKind::Metadata, Errno::PERM.raw_os_error(), text));
        }
        Ok((after, listed))
    }
}

fn what_is_made(node: Node) -> &'static str {
    match node {
        Node::Fifo => "make the FIFO",
        Node::Socket => "make the socket",
        Node::Device { .. } => "make the device",
    }
}
