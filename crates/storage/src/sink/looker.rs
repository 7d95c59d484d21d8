//! A destination that is looked at and never changed, for dry runs; and what a link would change there.
//!
//! In: directories and names as they are announced. Out: what stands there. Invariant: no call in here makes
//! or changes anything, not even a time.
//! Left out: what is made of it, which the policy says.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use haul_core::change::{Change, Stood};
use haul_core::entry::{Fingerprint, Meta, Name, Node};
use haul_core::ids::{DirId, FileId};
use haul_core::metadata::Values;
use haul_core::transfer::op::{Existing, Inode, Rights};
use haul_core::wire::{Failure, FailureKind};
use rustix::fs::{Access, AtFlags, FileType, FsWord, Stat, accessat, fstat, fstatfs};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::fault;
use super::files::aliases::{Aliases, Print, Verdict, mounted_twice};
use super::files::in_place::{InPlace, has_other_entry, is_a_source};
use super::files::look::is_counted_on;
use super::gives::{note_beyond, note_beyond_of_file};
use super::meta::may_change;
use super::stat::{existing_of, inode_of, is_node, mtime_of, note_differs, rights_of, stood_of};
use super::tree::{Closed, SinkTree};
use crate::attributes::{self, Keeps, Subject};
use crate::manners::LinksThere;
use crate::store::{Looks, dir_stands};

/// FAT and exFAT keep mtimes in two seconds, and the time of a change finer than that.
const FAT: [FsWord; 2] = [0x4d44, 0x2011_bab0];
const FAT_GRAIN: u32 = 2_000_000_000;

fn is_fat(root: impl AsFd) -> bool {
    fstatfs(root).is_ok_and(|fs| FAT.contains(&fs.f_type))
}

/// How coarsely the file system of a directory keeps mtimes, nanoseconds, if that is by a second or more. Who
/// shows whole seconds may have taken them from one that keeps every second one.
pub(super) fn coarse_grain(root: impl AsFd) -> Option<u32> {
    let is_coarse = is_fat(&root) || fstat(root).is_ok_and(|stat| stat.st_ctime_nsec == 0);
    is_coarse.then_some(FAT_GRAIN)
}

/// What stands at a destination.
pub struct Looker {
    /// `None`: the destination is not there yet.
    tree: Option<SinkTree>,
    fat: bool,
    /// The root becomes what its source says.
    takes_root: bool,
    /// Files would be written in place.
    in_place: Option<InPlace>,
    aliases: Aliases,
    keeps: Keeps,
    /// What the next entry is to have.
    expected: RefCell<Option<Values>>,
    /// Its mode, owner and group, if it gets an owner.
    owned: Cell<Option<Meta>>,
    /// What of the last one stays as it is, for this user can give it to no file.
    beyond: Cell<Change>,
}

impl Looker {
    /// A destination at which nothing stands.
    pub fn at_nothing() -> Looker {
        Looker {
            tree: None,
            fat: false,
            takes_root: false,
            in_place: None,
            aliases: Aliases::new(false, false),
            keeps: Keeps::default(),
            expected: RefCell::default(),
            owned: Cell::default(),
            beyond: Cell::default(),
        }
    }

    /// Opens the destination root, if it is there.
    ///
    /// # Errors
    /// It cannot be opened, or is no directory.
    pub fn open(root: &Path) -> Result<Looker, Failure> {
        match SinkTree::open_root_with(root, false, (None, false), Closed::Looks) {
            Ok(tree) => {
                let fat = is_fat(tree.root());
                let aliases = Aliases::new(false, mounted_twice(root));
                let (tree, takes_root) = (Some(tree.to_look_at()), true);
                Ok(Looker { tree, fat, takes_root, aliases, ..Looker::at_nothing() })
            }
            Err(failure) if is_nothing(&failure) => Ok(Looker { takes_root: true, ..Looker::at_nothing() }),
            Err(failure) => Err(failure),
        }
    }

    /// As for a copy that writes in place.
    pub fn in_place(self, in_place: Option<InPlace>) -> Looker {
        let aliases = self.aliases.with(in_place.is_some());
        Looker { in_place, aliases, ..self }
    }

    /// As for a copy that keeps these.
    pub(super) fn keeping(self, keeps: Keeps) -> Looker {
        Looker { keeps, ..self }
    }

    /// As for a copy at whose destination this becomes of links.
    pub(super) fn with_links(self, links: LinksThere) -> Looker {
        let tree = self.tree.map(|tree| tree.with_links(links));
        Looker { tree, ..self }
    }

    /// The root is not there.
    pub fn is_nothing(&self) -> bool {
        self.tree.is_none()
    }

    /// The root, if it is there.
    pub fn root(&self) -> Option<&OwnedFd> {
        self.tree.as_ref().map(|tree| &**tree.root())
    }

    /// Why nothing can be made in the root, as far as that can be told without doing it.
    pub fn denies_files(&self) -> Option<Errno> {
        let root = self.tree.as_ref()?.root();
        denied(root, b".", Access::WRITE_OK | Access::EXEC_OK)
    }

    /// The descriptor of a directory, if it is there.
    fn fd(&self, id: DirId) -> Result<Option<(&SinkTree, std::sync::Arc<OwnedFd>)>, Failure> {
        let Some(tree) = &self.tree else { return Ok(None) };
        match tree.dirfd(id) {
            Ok(fd) => Ok(Some((tree, fd))),
            Err(failure) if is_nothing(&failure) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Puts in what this user can give to no file, as for a copy.
    fn note_beyond(&self, rights: &mut Rights, is_file: bool) {
        if let Some(meta) = self.owned.get() {
            note_beyond_of_file(rights, &meta, (true, is_file && self.in_place.is_some()));
            self.beyond.set(rights.beyond);
        }
    }

    /// The granularity in which the file system keeps times, as the time of the last change shows it, which
    /// nobody sets.
    fn grain(&self, stat: &Stat) -> u32 {
        if self.fat {
            return FAT_GRAIN;
        }
        let nanos = u32::try_from(stat.st_ctime_nsec).unwrap_or(0);
        let keeps = |grain: &u32| nanos.is_multiple_of(*grain);
        [1_000_000_000, 10_000_000, 1_000_000, 1_000, 100].into_iter().find(keeps).unwrap_or(1)
    }
}

impl Looks for Looker {
    fn register(&self, id: DirId, parent: DirId, name: Name) {
        if let Some(tree) = &self.tree {
            tree.register(id, parent, name);
        }
    }

    fn forget(&self, id: DirId) {
        if let Some(tree) = &self.tree {
            tree.forget(id);
        }
    }

    fn dir(&self, id: DirId) -> Result<Option<Stood>, Failure> {
        let (Some(tree), opened) = (&self.tree, self.fd(id)) else { return Ok(None) };
        // One that is closed to us can be looked at, and only what is in it cannot.
        let stood = tree.stood(id);
        match opened {
            Ok(None) => return Ok(None),
            Err(failure) if stood.is_none() => return Err(failure),
            Ok(Some(_)) | Err(_) => {}
        }
        let mut stood = stood.map(|stat| stood_of(&stat, |_| self.grain(&stat)));
        if let Some(stood) = stood.as_mut().filter(|stood| id == DirId::ROOT && !may_change(stood.rights.uid))
        {
            // Nothing of it will change.
            stood.untold = true;
        }
        if let (Some(stood), Ok(Some((_, fd)))) = (&mut stood, self.fd(id)) {
            // A root that is closed to us is held, and not open.
            let subject = match id == DirId::ROOT {
                true => Subject::Held(fd.as_fd()),
                false => Subject::Open(fd.as_fd()),
            };
            let values = self.expected.take();
            let differs = attributes::compare(subject, FileType::Directory, self.keeps, values.as_ref());
            note_differs(&mut stood.rights, &differs);
        }
        if let Some(stood) = &mut stood {
            self.note_beyond(&mut stood.rights, false);
        }
        Ok(stood)
    }

    fn root(&self) -> Option<Result<Option<Stood>, Failure>> {
        self.takes_root.then(|| self.dir(DirId::ROOT))
    }

    fn expect(&self, values: Option<Values>, owned: Option<Meta>) {
        self.expected.replace(values);
        self.owned.set(owned);
        self.beyond.set(Change::NONE);
    }

    fn beyond(&self) -> Change {
        self.beyond.get()
    }

    fn is_closed(&self, id: DirId) -> bool {
        !haul_mutant::removed("closed-directories-are-told")
            && self.tree.as_ref().is_some_and(|tree| tree.is_closed(id))
    }

    fn file(&self, parent: DirId, name: &Name) -> Result<Existing, Failure> {
        let Some((tree, dir)) = self.fd(parent)? else { return Ok(Existing::Nothing) };
        match tree.jail().stat(&dir, name) {
            Err(Errno::NOENT) => Ok(Existing::Nothing),
            Err(errno) => Err(fault::os(FailureKind::Open, "stat", &tree.path_of(parent, name), errno)),
            Ok(stat) => {
                let me = geteuid().as_raw();
                let mut existing = existing_of(&stat, Some(me), |_| self.grain(&stat));
                if let Existing::File { rights, .. } = &mut existing {
                    let (subject, values) = (Subject::Name(dir.as_fd(), name), self.expected.take());
                    let differs =
                        attributes::compare(subject, FileType::RegularFile, self.keeps, values.as_ref());
                    note_differs(rights, &differs);
                    self.note_beyond(rights, true);
                }
                Ok(existing)
            }
        }
    }

    fn inode(&self, parent: DirId, name: &Name) -> Option<Inode> {
        let (tree, dir) = self.fd(parent).ok()??;
        tree.jail().stat(&dir, name).ok().map(|stat| inode_of(&stat))
    }

    fn may_have(
        &self,
        (parent, name): (DirId, &Name),
        id: FileId,
        (counts, writes): (Option<&Fingerprint>, bool),
    ) -> Result<(), Failure> {
        if self.in_place.is_none() && !writes && counts.is_none() {
            return Ok(());
        }
        let Some((tree, dir)) = self.fd(parent)? else { return Ok(()) };
        let path = || tree.path_of(parent, name);
        let fails = |what, errno| Err(fault::os(FailureKind::Create, what, &path(), errno));
        let stat = tree.jail().stat(&dir, name).ok();
        let anothers = |stat, counts| self.aliases.find(stat, id, counts) == Verdict::Anothers;
        if let (None, Some(stat)) = (&self.in_place, &stat)
            && anothers(stat, counts.map(Print::of))
        {
            return Err(is_counted_on(&path()));
        }
        if let (Some(place), Some(stat)) = (&self.in_place, stat) {
            if anothers(&stat, counts.map(Print::of)) || (writes && anothers(&stat, None)) {
                return Err(has_other_entry(&path()));
            }
            if !writes {
                return Ok(());
            }
            if place.is_of_a_source(&stat) {
                return Err(is_a_source(&path()));
            }
            return match denied(&dir, name.as_bytes(), Access::WRITE_OK) {
                Some(errno) => fails("open", errno),
                None => Ok(()),
            };
        }
        if !writes {
            return Ok(());
        }
        // A directory of ours a copy opens to itself.
        let is_ours = || rustix::fs::fstat(&dir).is_ok_and(|stat| stat.st_uid == geteuid().as_raw());
        match denied(&dir, b".", Access::WRITE_OK | Access::EXEC_OK) {
            Some(errno) if errno == Errno::ROFS || !is_ours() => fails("create", errno),
            _ => Ok(()),
        }
    }

    fn node(
        &self,
        parent: DirId,
        name: &Name,
        node: Node,
        (meta, owner): (&Meta, bool),
    ) -> Result<(Change, Existing), Failure> {
        let existing = self.file(parent, name)?;
        let at = self.fd(parent)?;
        if let (Existing::Special, Some((tree, dir))) = (existing, &at)
            && let Ok(stat) = tree.jail().stat(dir, name)
            && is_node(&stat, node)
        {
            let mut stood = stood_of(&stat, |_| self.grain(&stat));
            let (subject, values) = (Subject::Name(dir.as_fd(), name), self.expected.take());
            let kind = FileType::from_raw_mode(stat.st_mode);
            note_differs(&mut stood.rights, &attributes::compare(subject, kind, self.keeps, values.as_ref()));
            self.note_beyond(&mut stood.rights, false);
            return Ok((Change::of_node(&stood, meta, owner), Existing::Nothing));
        }
        match existing {
            Existing::Dir => Err(dir_stands()),
            _ if matches!(node, Node::Device { .. }) && !geteuid().is_root() => Err(fault::os(
                FailureKind::Create,
                "make the device",
                &haul_base::escape::within(name.as_bytes()),
                Errno::PERM,
            )),
            existing => Ok((Change::NEW, existing)),
        }
    }

    fn link(
        &self,
        parent: DirId,
        name: &Name,
        target: &[u8],
        (meta, owner): (&Meta, bool),
    ) -> Result<(Change, Existing), Failure> {
        let existing = self.file(parent, name)?;
        match (existing, self.fd(parent)?) {
            (Existing::Dir, _) => Err(dir_stands()),
            (Existing::Nothing, _) | (_, None) => Ok((Change::NEW, Existing::Nothing)),
            (_, Some((tree, dir))) => {
                let values = self.expected.take();
                let kept = (self.keeps, values.as_ref());
                let (change, beyond) = link_change(tree, &dir, (name, target), (meta, owner), kept);
                self.beyond.set(beyond);
                Ok((change, existing))
            }
        }
    }
}

/// Why that access is not ours. What else is wrong is for the copy to say.
pub(super) fn denied(dir: impl AsFd, name: &[u8], access: Access) -> Option<Errno> {
    let denied = accessat(dir, name, access, AtFlags::EACCESS).err();
    denied.filter(|errno| matches!(*errno, Errno::ACCESS | Errno::PERM | Errno::ROFS))
}

fn is_nothing(failure: &Failure) -> bool {
    failure.errno == Errno::NOENT.raw_os_error()
}

/// What a symbolic link to `target` changes, and what of its owner and group stays as it is; one that leads
/// there already stays, and with `owner` gets its owner.
pub(super) fn link_change(
    tree: &SinkTree,
    dir: impl AsFd,
    (name, target): (&Name, &[u8]),
    (meta, owner): (&Meta, bool),
    (keeps, values): (Keeps, Option<&Values>),
) -> (Change, Change) {
    let dir = dir.as_fd();
    let change = match rustix::fs::readlinkat(dir, name.as_bytes(), Vec::new()) {
        Ok(stands) if stands.as_bytes() == target => match tree.jail().stat(dir, name) {
            Ok(stat) => {
                let mut rights = rights_of(&stat, None);
                let subject = Subject::Name(dir, name);
                note_differs(&mut rights, &attributes::compare(subject, FileType::Symlink, keeps, values));
                // A link has no mode.
                note_beyond(&mut rights, &Meta { mode: 0, ..*meta }, owner);
                return (Change::of_link(rights, meta, owner), rights.beyond);
            }
            Err(_) => Change::NONE,
        },
        Ok(_) => {
            let other = tree.jail().stat(dir, name).is_ok_and(|stat| mtime_of(&stat) != meta.mtime);
            Change::TARGET.with(Change::TIME, other)
        }
        Err(_) => Change::NEW,
    };
    (change, Change::NONE)
}
