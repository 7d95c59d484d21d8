//! What an entry of the copy changes at the destination.
//!
//! In: what stands there, what was announced. Out: a [`Change`], which crosses the wire and is shown as
//! rsync's letters.
//! Left out: whether the entry is copied at all, which is the policy's.

use crate::entry::{Meta, Timestamp};

const SETUID_SETGID: u32 = 0o6000;
const SETGID: u32 = 0o2000;

/// A set of differences. Empty: it is there already, as it should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change(u16);

impl Change {
    pub const NONE: Change = Change(0);
    /// Nothing stood there, or something that is no such entry.
    pub const NEW: Change = Change(1);
    /// Where a symbolic link leads.
    pub const TARGET: Change = Change(2);
    pub const SIZE: Change = Change(4);
    pub const TIME: Change = Change(8);
    pub const MODE: Change = Change(16);
    pub const OWNER: Change = Change(32);
    pub const GROUP: Change = Change(64);
    /// Extended attributes.
    pub const XATTRS: Change = Change(128);
    /// Access control lists.
    pub const ACL: Change = Change(256);
    /// Of which file it is a further name.
    pub const LINKED: Change = Change(512);
    /// What [`Rights`] tell.
    pub const RIGHTS: Change = Change(16 | 32 | 64 | 128 | 256);

    const ALL: u16 = 1023;

    /// As on the wire; `None`: no such set.
    pub fn from_bits(bits: u16) -> Option<Change> {
        (bits & !Change::ALL == 0).then_some(Change(bits))
    }

    pub fn bits(self) -> u16 {
        self.0
    }

    pub fn is_none(self) -> bool {
        self == Change::NONE
    }

    /// Mode, owner, group, attributes or lists and nothing else.
    pub fn is_rights_alone(self) -> bool {
        !self.is_none() && self.0 & !Change::RIGHTS.0 == 0
    }

    pub fn has(self, other: Change) -> bool {
        self.0 & other.0 != 0
    }

    #[must_use]
    pub fn with(self, other: Change, holds: bool) -> Change {
        if holds { Change(self.0 | other.0) } else { self }
    }

    /// Of a file of this size; `owner`: owner and group are kept.
    pub fn of_file(existing: &Existing, size: u64, meta: &Meta, owner: bool) -> Change {
        let Existing::File { size: found, mtime, grain, rights } = existing else { return Change::NEW };
        let same = same_time(meta.mtime, *mtime, *grain);
        let change = Change::NONE.with(Change::SIZE, size != *found).with(Change::TIME, !same);
        change.rights(meta, *rights, owner, 0)
    }

    /// Of a file that a part goes into and that keeps everything else: nothing but its content is held
    /// against the source's.
    pub fn of_part_of_file(existing: &Existing) -> Change {
        match existing {
            Existing::File { .. } => Change::NONE,
            _ => Change::NEW,
        }
    }

    /// Of a link that leads where it should.
    pub fn of_link(found: Rights, meta: &Meta, owner: bool) -> Change {
        // Links have no mode of their own.
        let change = Change::NONE.rights(&Meta { mode: found.mode & 0o7777, ..*meta }, found, owner, 0);
        change.without(Change::MODE)
    }

    /// Of a FIFO, socket or device that is what it is to be.
    pub fn of_node(stood: &Stood, meta: &Meta, owner: bool) -> Change {
        let same = same_time(meta.mtime, stood.mtime, stood.grain);
        Change::NONE.with(Change::TIME, !same).rights(meta, stood.rights, owner, 0)
    }

    #[must_use]
    pub fn without(self, other: Change) -> Change {
        Change(self.0 & !other.0)
    }

    /// Of a directory that stood there.
    pub fn of_dir(stood: &Stood, meta: &Meta, owner: bool) -> Change {
        if stood.untold {
            return Change::NONE;
        }
        let same = same_time(meta.mtime, stood.mtime, stood.grain);
        let keep = stood.rights.mode & Change::kept_of_dirs(owner);
        Change::NONE.with(Change::TIME, !same).rights(meta, stood.rights, owner, keep)
    }

    /// The bits of its mode that a directory keeps of its own. With its owner it becomes what its source is,
    /// as with rsync; without, a setgid, which it has from its parent, is the destination's own: it keeps the
    /// group of project directories.
    pub fn kept_of_dirs(owner: bool) -> u32 {
        if owner && !haul_mutant::removed("set-ids-of-directories-go") { 0 } else { SETGID }
    }

    /// Whether rights that differ so may be set where the file stands, which has the right content as far as
    /// size and mtime say. Not if it has other names, which may lie elsewhere. Nor if it is another user's,
    /// who may still have it open for writing, and it would get another owner or group, be setuid or setgid,
    /// or get a program's rights: what he put there would speak in another's name. Where nothing differs that
    /// could be set ([`Rights::beyond`]) a file made anew would be no other.
    pub fn may_be_set(self, found: Rights, meta: &Meta, owner: bool) -> bool {
        if self.is_none() || haul_mutant::removed("strangers-files-stay-theirs") {
            return true;
        }
        let given_away =
            self.has(Change::OWNER.with(Change::GROUP, true)) || (owner && meta.mode & SETUID_SETGID != 0);
        !(found.linked || found.foreign && (given_away || found.gains_rights))
    }

    fn rights(self, meta: &Meta, found: Rights, owner: bool, keep: u32) -> Change {
        // Of whom the source says nothing, nothing is set.
        let owned = owner && meta.owners().is_some();
        // Without their owner these two are never set.
        let bits = if owned { 0o7777 } else { 0o7777 & !SETUID_SETGID };
        self.with(Change::MODE, !found.untold && (meta.mode & bits) | keep != found.mode & 0o7777)
            .with(Change::OWNER, owned && meta.uid != found.uid)
            .with(Change::GROUP, owned && meta.gid != found.gid)
            .without(found.beyond)
            .with(Change::XATTRS, found.other_xattrs)
            .with(Change::ACL, found.other_acl)
    }
}

/// What stands at a destination name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    Nothing,
    /// A regular file; `grain` of its mtime, nanoseconds.
    File {
        size: u64,
        mtime: Timestamp,
        grain: u32,
        rights: Rights,
    },
    Dir,
    /// A symbolic link: replaced like a file.
    Link,
    /// A device, FIFO or socket: left alone unless the user insists.
    Special,
}

/// Who may do what with a file at the destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// It has other names, which would change with it.
    pub linked: bool,
    /// It is another user's, and this one may give files away.
    pub foreign: bool,
    /// The store does not tell its mode: that is held against nothing.
    pub untold: bool,
    /// It has other extended attributes, or another list, than it is to have, and these are kept.
    pub other_xattrs: bool,
    pub other_acl: bool,
    /// It would get a program's rights with them, which it has not.
    pub gains_rights: bool,
    /// What of mode, owner and group differs and stays so, for this user can give it to no file of his. It is
    /// counted as not kept, and is nothing to copy for.
    pub beyond: Change,
}

/// A directory as it stood before anything was made in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stood {
    pub rights: Rights,
    pub mtime: Timestamp,
    /// Granularity of that, nanoseconds.
    pub grain: u32,
    /// The store does not tell its time: what is set there shows nowhere, and counts as no change.
    pub untold: bool,
}

/// Times are equal at the destination's grain (nanoseconds).
pub fn same_time(source: Timestamp, sink: Timestamp, grain: u32) -> bool {
    if source == sink {
        return true;
    }
    let total = |t: Timestamp| i128::from(t.secs) * 1_000_000_000 + i128::from(t.nanos);
    let grain = i128::from(grain.max(1));
    total(source).div_euclid(grain) == total(sink).div_euclid(grain)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each difference is told, and only that.
    /// Method: one field after the other differs, with and without owners.
    #[test]
    fn each_difference_is_told() {
        let mtime = Timestamp { secs: 7, nanos: 5 };
        let meta = Meta { mode: 0o4644, uid: 1, gid: 2, mtime };
        let rights = Rights { mode: 0o644, uid: 1, gid: 2, ..Rights::default() };
        let of = |size, mtime, rights, owner| {
            Change::of_file(&Existing::File { size, mtime, grain: 1, rights }, 10, &meta, owner)
        };
        assert_eq!(of(10, mtime, rights, false), Change::NONE);
        assert_eq!(of(10, mtime, rights, true), Change::MODE, "setuid is kept with its owner");
        assert_eq!(of(9, mtime, rights, false), Change::SIZE);
        assert_eq!(of(10, Timestamp { secs: 8, nanos: 5 }, rights, false), Change::TIME);
        let other = Rights { mode: 0o4644, uid: 3, gid: 4, ..Rights::default() };
        assert_eq!(of(10, mtime, other, true), Change::OWNER.with(Change::GROUP, true));
        assert_eq!(Change::of_file(&Existing::Nothing, 10, &meta, true), Change::NEW);
        let group = Rights { mode: 0o2755, ..Rights::default() };
        let stood = Stood { rights: group, mtime, grain: 1, untold: false };
        assert_eq!(Change::of_dir(&stood, &Meta { mode: 0o755, ..meta }, false), Change::NONE);
        let ours = Stood { rights: Rights { uid: 1, gid: 2, ..group }, ..stood };
        for mode in [0o755, 0o4755, 0o1755] {
            let set = Stood { rights: Rights { mode: mode | 0o2000, ..ours.rights }, ..ours };
            assert_eq!(Change::of_dir(&set, &Meta { mode, ..meta }, true), Change::MODE, "{mode:o}");
        }
        assert_eq!(Change::of_dir(&ours, &Meta { mode: 0o2755, ..meta }, true), Change::NONE);
        assert_eq!(Change::of_dir(&stood, &Meta { mode: 0o700, ..meta }, false), Change::MODE);
        for nobody in [Meta { uid: u32::MAX, ..meta }, Meta { gid: u32::MAX, ..meta }] {
            let rights = Rights { mode: 0o644, ..Rights::default() };
            assert_eq!(
                Change::NONE.rights(&nobody, rights, true, 0),
                Change::NONE,
                "of nobody nothing is set"
            );
        }
        let marked = Rights { other_xattrs: true, other_acl: true, ..rights };
        let told = Change::XATTRS.with(Change::ACL, true);
        assert_eq!(of(10, mtime, marked, false), told);
        assert!(told.is_rights_alone() && !told.has(Change::SIZE));
        for bits in 0..=u16::MAX {
            assert_eq!(Change::from_bits(bits).map(Change::bits), (bits < 1024).then_some(bits));
        }
    }

    /// Goal: what this user can give to no file is no difference, and hides none that he can mend.
    #[test]
    fn what_cannot_be_given_is_no_difference() {
        let meta = Meta { mode: 0o4755, uid: 1, gid: 2, mtime: Timestamp::default() };
        let all = Change::MODE.with(Change::OWNER, true).with(Change::GROUP, true);
        let rights = Rights { mode: 0o755, uid: 5, gid: 6, linked: true, ..Rights::default() };
        let of = |rights: Rights| Change::NONE.rights(&meta, rights, true, 0);
        assert_eq!(of(rights), all);
        for beyond in [Change::NONE, Change::OWNER, Change::OWNER.with(Change::MODE, true), all] {
            let found = Rights { beyond, ..rights };
            let change = of(found);
            assert_eq!(change, all.without(beyond));
            assert_eq!(change.may_be_set(found, &meta, true), change.is_none());
        }
        let marked = Rights { beyond: all, other_acl: true, ..rights };
        assert_eq!(of(marked), Change::ACL);
        assert!(!of(marked).may_be_set(marked, &meta, true));
    }

    /// Goal: what another user put there, or what has other names, is not given rights; what is ours is.
    /// Method: each difference, of a file of ours, of another's and of one with two names.
    #[test]
    fn rights_are_not_given_to_what_others_made() {
        let meta = Meta { mode: 0o644, uid: 1, gid: 2, mtime: Timestamp::default() };
        let setuid = Meta { mode: 0o4755, ..meta };
        let ours = Rights { mode: 0o600, uid: 0, gid: 0, ..Rights::default() };
        let (foreign, linked) = (Rights { foreign: true, ..ours }, Rights { linked: true, ..ours });
        for change in [Change::MODE, Change::OWNER, Change::GROUP, Change::XATTRS, Change::ACL] {
            let given_away = change == Change::OWNER || change == Change::GROUP;
            assert!(change.may_be_set(ours, &setuid, true));
            assert!(!change.may_be_set(linked, &meta, false));
            assert_eq!(change.may_be_set(foreign, &meta, true), !given_away);
            assert!(!change.may_be_set(foreign, &setuid, true));
        }
        assert!(Change::MODE.may_be_set(foreign, &setuid, false), "it is not set then");
        for rights in [ours, linked, foreign] {
            assert!(Change::NONE.may_be_set(rights, &setuid, true), "there is nothing to set");
        }
        let gains = |rights| Rights { gains_rights: true, ..rights };
        assert!(Change::XATTRS.may_be_set(gains(ours), &meta, true));
        assert!(!Change::XATTRS.may_be_set(gains(foreign), &meta, false));
    }
}
