//! Further names of files: hard links of what has its name.
//!
//! In: of which entries other names may follow, what these became at the destination, and the names. Out: the
//! names given, or why they cannot be.
//! What must hold: a further name is given to the very inode that was published or found to be right, with
//! the size and time that it had then, whatever stands at the first name by now; what stands at the name
//! gives way at once and as for a file, or stays as it is; nothing of a name that was not given is left. A
//! further name of a symbolic link is judged as a link that is made there, and is known as one that came.
//! Assumed: `/proc` is there, or this is root (as [`Jail::link_open`](crate::jail::Jail::link_open) needs
//! it).
//! Left out: which names are given, and when, which the session decides.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use haul_core::change::Change;
use haul_core::entry::{Name, Timestamp};
use haul_core::id_map::IdMap;
use haul_core::ids::{DirId, FileId};
use haul_core::transfer::op::{Inode, JoinItem, Joined, Seen};
use haul_core::wire::{Failure, FailureKind};
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use super::Sink;
use crate::meta_rate::cost;
use crate::sink::fold::{is_exact, is_listed};
use crate::sink::names::{NO_FILE, temp_name};
use crate::sink::stat::{inode_of, is_node, is_regular, mtime_of, node_as, seen_of};
use crate::sink::tree::SinkTree;
use crate::sink::{fault, lock};
use crate::store::{DIRECTORY, SPECIAL, no_hard_links};

/// What an entry became of which other names may follow.
#[derive(Clone)]
struct First {
    /// Names of the directories above it, from the root.
    dir: Arc<[Name]>,
    name: Name,
    /// `None`: it has not its name yet.
    is: Option<(Inode, u64, Timestamp)>,
}

/// All of these, and a directory of them that is open.
#[derive(Default)]
pub(super) struct Firsts {
    known: Mutex<IdMap<FileId, First>>,
    /// The directory of the last one that came, which most often is that of the next.
    last: Mutex<Option<(DirId, Arc<[Name]>)>>,
    open: Mutex<Option<(Arc<[Name]>, Arc<OwnedFd>)>>,
    /// Whether there are hard links, by device.
    makes: Mutex<HashMap<u64, bool>>,
}

impl Firsts {
    /// Other names of this entry may follow.
    pub(super) fn lead(&self, tree: &SinkTree, id: FileId, parent: DirId, name: &Name) {
        let mut last = lock(&self.last);
        let dir = match &*last {
            Some((known, names)) if *known == parent => names.clone(),
            _ => {
                let names: Arc<[Name]> = tree.names_of(parent).into();
                *last = Some((parent, names.clone()));
                names
            }
        };
        drop(last);
        lock(&self.known).insert(id, First { dir, name: name.clone(), is: None });
    }

    /// None do any more.
    pub(super) fn forget(&self, id: FileId) {
        lock(&self.known).remove(&id);
    }

    /// What stands at its name, as it was looked at.
    pub(super) fn see(&self, id: FileId, seen: Seen) {
        if let Some(first) = lock(&self.known).get_mut(&id) {
            first.is = Some((seen.inode, seen.size, seen.mtime));
        }
    }

    /// What got its name, and is open.
    pub(super) fn see_open(&self, id: FileId, fd: BorrowedFd<'_>) {
        if !lock(&self.known).contains_key(&id) {
            return;
        }
        if let Ok(stat) = rustix::fs::fstat(fd) {
            self.see(id, seen_of(&stat));
        }
    }

    /// The entry, once it is under its name.
    fn standing(&self, id: FileId) -> Option<(First, Inode, (u64, Timestamp))> {
        let first = lock(&self.known).get(&id).cloned()?;
        let (inode, size, mtime) = first.is?;
        Some((first, inode, (size, mtime)))
    }

    /// Its directory, reached from the root by the names that it was announced with.
    fn dir_of(&self, tree: &SinkTree, first: &First) -> Result<Arc<OwnedFd>, Errno> {
        if let Some((names, fd)) = &*lock(&self.open)
            && (Arc::ptr_eq(names, &first.dir) || *names == first.dir)
        {
            return Ok(fd.clone());
        }
        let at = tree.reach(&first.dir)?;
        *lock(&self.open) = Some((first.dir.clone(), at.clone()));
        Ok(at)
    }
}

impl Sink {
    /// Gives a further name; see `SinkOp::Join`.
    pub(super) fn join(&self, item: &JoinItem) -> Result<Joined, Failure> {
        self.check_owner()?;
        let file = &item.file;
        let path = || self.tree.path_of(file.parent, &file.name);
        let Some((first, inode, was)) = self.firsts.standing(item.to) else {
            return Ok(Joined::Apart(apart(&path(), "what it is a name of is not there")));
        };
        let dir = self.tree.dirfd(file.parent)?;
        let found = match self.tree.jail().stat(&dir, &file.name) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(fault::os(FailureKind::Open, "stat", &path(), errno)),
        };
        if found.is_some_and(|stat| inode_of(&stat) == inode) {
            if let Ok(held) = self.tree.jail().open_path(&dir, &file.name) {
                self.may_join(item, &held)?;
            }
            return self.is_joined(item, &dir, inode);
        }
        if let Some(stat) = &found
            && let Some(joined) = self.stays(item, &dir, stat, || self.is_like(&first, (inode, was), stat))?
        {
            return Ok(joined);
        }
        let held = match self.hold_first(&first, inode, was) {
            Ok(held) => held,
            Err(why) => return Ok(Joined::Apart(apart(&path(), why))),
        };
        self.may_join(item, &held)?;
        self.tree.may_take(&dir, file.parent, &file.name)?;
        if is_link(&held) && !haul_mutant::removed("names-of-links-come-too") {
            self.tree.link_comes(inode);
        }
        // Until it has its name nobody may take its temporary for a leftover.
        let _making = self.files.making();
        let given = match &found {
            None => {
                self.rate.charge(cost::LINK);
                self.fence().map(|()| self.tree.jail().link_open(&held, &dir, &file.name))?
            }
            Some(found) => self.give_over(item, &dir, &held, (inode, seen_of(found)))?,
        };
        match given {
            Ok(()) => {}
            Err(Errno::EXIST) if item.no_replace => return Ok(Joined::Skipped),
            Err(errno) => return self.not_given(item, &dir, errno),
        }
        if let Some(published) = &self.published {
            let stat = self.tree.jail().stat(&dir, &file.name);
            let stat = stat.map_err(|errno| self.unnamed(file, &dir, errno, item.no_replace))?;
            published.add(&self.tree, file.parent, &file.name, seen_of(&stat))?;
        }
        Ok(Joined::Is(change_of(found.as_ref(), was)))
    }

    /// Whether what is held may have this name: where a symbolic link leads depends on where its name is.
    fn may_join(&self, item: &JoinItem, held: &OwnedFd) -> Result<(), Failure> {
        if !is_link(held) || haul_mutant::removed("names-of-links-are-judged-anew") {
            return Ok(());
        }
        let JoinItem { file, .. } = item;
        self.rate.charge(cost::READ_LINK);
        let target = rustix::fs::readlinkat(held, c"", Vec::new()).map_err(|errno| {
            let path = self.tree.path_of(file.parent, &file.name);
            fault::os(FailureKind::Open, "read the link", &path, errno)
        })?;
        self.tree.may_link(file.parent, &file.name, target.as_bytes())
    }

    /// It is a name of the file already, unless the destination takes it for another one.
    fn is_joined(&self, item: &JoinItem, dir: &OwnedFd, inode: Inode) -> Result<Joined, Failure> {
        let JoinItem { file, .. } = item;
        let is_listed = || is_exact(dir) || is_listed(dir, &file.name) == Some(true);
        let is_own = match self.tree.was_created(file.parent) {
            true => is_listed(),
            false => self.tree.claim(file.parent, dir, &file.name, inode, file.id),
        };
        if !is_own {
            return Err(self.tree.folded(file.parent, &file.name));
        }
        if let (Some(published), Ok(stat)) = (&self.published, self.tree.jail().stat(dir, &file.name)) {
            published.add(&self.tree, file.parent, &file.name, seen_of(&stat))?;
        }
        Ok(Joined::Is(Change::NONE))
    }

    /// What stands at the name stays, as was asked. `None`: it gives way.
    fn stays(
        &self,
        item: &JoinItem,
        dir: &OwnedFd,
        stat: &Stat,
        is_like: impl FnOnce() -> bool,
    ) -> Result<Option<Joined>, Failure> {
        let JoinItem { file, meta, no_replace, update, force, .. } = item;
        let path = || self.tree.path_of(file.parent, &file.name);
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            let text = format!("publish {}: {DIRECTORY}", path());
            return Err(fault::failure(FailureKind::Publish, Errno::ISDIR.raw_os_error(), text));
        }
        if *no_replace || (*update && is_regular(stat) && mtime_of(stat) > meta.mtime) {
            return Ok(Some(Joined::Skipped));
        }
        if !matches!(kind, FileType::RegularFile | FileType::Symlink) && !force && !is_like() {
            let text = format!("{}: {SPECIAL}", path());
            return Err(fault::failure(FailureKind::Create, Errno::EXIST.raw_os_error(), text));
        }
        if !self.tree.claim(file.parent, dir, &file.name, inode_of(stat), file.id) {
            return Err(self.tree.folded(file.parent, &file.name));
        }
        Ok(None)
    }

    /// Whether such a FIFO, socket or device stands at the name as it is to be a name of: that gives way, as
    /// it does where one is made.
    fn is_like(&self, first: &First, (inode, was): (Inode, (u64, Timestamp)), stat: &Stat) -> bool {
        let held = self.hold_first(first, inode, was).ok();
        let first = held.and_then(|held| rustix::fs::fstat(held).ok());
        first.and_then(|first| node_as(&first)).is_some_and(|node| is_node(stat, node))
    }

    /// Opens what others are to be names of, if it is still what it was: whoever may write its directory can
    /// have put something else there.
    fn hold_first(
        &self,
        first: &First,
        inode: Inode,
        was: (u64, Timestamp),
    ) -> Result<OwnedFd, &'static str> {
        let gone = |_| "what it is a name of cannot be reached any more";
        let dir = self.firsts.dir_of(&self.tree, first).map_err(gone)?;
        let held = self.tree.jail().open_path(&*dir, &first.name).map_err(gone)?;
        let stat = rustix::fs::fstat(&held).map_err(gone)?;
        let same = inode_of(&stat) == inode && (stat.st_size as u64, mtime_of(&stat)) == was;
        match same || haul_mutant::removed("names-are-of-what-was-published") {
            true => Ok(held),
            false => Err("something else took the place of what it is a name of, or changed it"),
        }
    }

    /// Puts the name over what was found there: under a temporary one first, and then by a rename.
    fn give_over(
        &self,
        item: &JoinItem,
        dir: &OwnedFd,
        held: &OwnedFd,
        (inode, found): (Inode, Seen),
    ) -> Result<Result<(), Errno>, Failure> {
        let (jail, file) = (self.tree.jail(), &item.file);
        let temp = self.files.temp_name(file);
        // With a look at what is left of the temporary one.
        self.rate.charge(cost::LINK + cost::NAME + cost::LOOK);
        let mut made = jail.link_open(held, dir, &temp);
        if made == Err(Errno::EXIST) && self.files.is_stale(dir, &temp, None) {
            let _ = jail.unlink(dir, &temp);
            made = jail.link_open(held, dir, &temp);
        }
        if let Err(errno) = made {
            return match errno {
                Errno::EXIST => Err(self.tree.folded(file.parent, &file.name)),
                errno => Ok(Err(errno)),
            };
        }
        // Directly before the rename, whatever the looks before it took.
        let fenced = self.fence();
        let given = match (&fenced, jail.stat(dir, &file.name)) {
            (Err(_), _) => Ok(()),
            (Ok(()), Ok(stat)) if found.is_still(&seen_of(&stat)) => {
                jail.rename(dir, &temp, &file.name, false)
            }
            (Ok(()), Err(Errno::NOENT)) => jail.rename_new(dir, &temp, &file.name),
            (Ok(()), Ok(_)) => Err(Errno::EXIST),
            (Ok(()), Err(errno)) => Err(errno),
        };
        // A rename of one name of a file to another one does nothing, and says that it did.
        let is_ours = |stat: Stat| inode_of(&stat) == inode;
        if jail.stat(dir, &temp).is_ok_and(is_ours) && jail.unlink(dir, &temp).is_err() {
            self.files.leave();
        }
        if fenced.is_ok() && given.is_ok() {
            self.tree.unclaim(file.parent, found.inode, file.id);
        }
        fenced.map(|()| given)
    }

    /// Why a name was not given, or what becomes of it instead.
    fn not_given(&self, item: &JoinItem, dir: &OwnedFd, errno: Errno) -> Result<Joined, Failure> {
        let file = &item.file;
        let path = self.tree.path_of(file.parent, &file.name);
        let why = match errno {
            Errno::MLINK => "the file has as many names as it can have there",
            Errno::XDEV => "the file lies on another file system there",
            Errno::NOENT | Errno::STALE => "the file is gone there",
            Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS if !self.makes_hard_links(dir) => {
                // It is told of the other names too, each with its own path.
                return Ok(no_hard_links());
            }
            Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS => "this user may give it no further name there",
            _ => return Err(self.unnamed(file, dir, errno, item.no_replace)),
        };
        Ok(Joined::Apart(apart(&path, why)))
    }

    /// Whether a file of this run's own can have a second name in the directory.
    fn makes_hard_links(&self, dir: &OwnedFd) -> bool {
        let device = rustix::fs::fstat(dir).map_or(0, |stat| stat.st_dev);
        let mut makes = lock(&self.firsts.makes);
        *makes.entry(device).or_insert_with(|| {
            let jail = self.tree.jail();
            let name = |text: &[u8]| Some(temp_name(&Name::new(text).ok()?, self.files.tag, NO_FILE));
            let (Some(one), Some(two)) = (name(b"haul~link"), name(b"haul~link2")) else { return false };
            let made = jail.create_temp(dir, &one).and_then(|fd| jail.link_open(fd, dir, &two));
            let _ = (jail.unlink(dir, &one), jail.unlink(dir, &two));
            made.is_ok()
        })
    }
}

fn is_link(held: &OwnedFd) -> bool {
    rustix::fs::fstat(held).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}

/// What giving a name changes.
fn change_of(found: Option<&Stat>, (size, mtime): (u64, Timestamp)) -> Change {
    match found {
        None => Change::NEW.with(Change::LINKED, true),
        Some(stat) if !is_regular(stat) => Change::NEW.with(Change::LINKED, true),
        Some(stat) => Change::LINKED
            .with(Change::SIZE, stat.st_size as u64 != size)
            .with(Change::TIME, mtime_of(stat) != mtime),
    }
}

/// Why a name becomes a file of its own.
fn apart(path: &str, why: &str) -> Failure {
    let text = format!("{path}: no hard link, but a file of its own: {why}");
    fault::failure(FailureKind::Publish, Errno::MLINK.raw_os_error(), text)
}
