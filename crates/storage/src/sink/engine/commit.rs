//! How files, links and directories become what they were at the source: size, metadata, sync, final name.
//!
//! What must hold: nothing appears under its final name before all of it is there (and, if durable, on
//! media); an entry that fails leaves what stood at its name untouched and its temporary removed; a run that
//! lost its job publishes nothing, and removes nothing of which the journal may speak, for that may be the
//! new owner's by now.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use haul_core::change::Change;
use haul_core::entry::Meta;
use haul_core::ids::DirId;
use haul_core::transfer::SMALL_LEN_MAX;
use haul_core::transfer::op::{CommitItem, Inode, LinkItem, Publish, Seen, SinkFile};
use haul_core::wire::{Failure, FailureKind};
use rustix::fs::{AtFlags, FileType, Stat, statat};
use rustix::io::{Errno, retry_on_intr};

use super::fan_out::{Place, pair, whole};
use super::{Sink, Task, guard};
use crate::attributes::{Keeps, Subject};
use crate::blocking_pool::Turn;
use crate::io::IoFile;
use crate::meta_rate::cost;
use crate::sink::cache::drop_pages;
use crate::sink::calls;
use crate::sink::files::in_place::{InPlace, unfinished_len};
use crate::sink::files::{Files, OpenFile, data_len, descriptor};
use crate::sink::fold::{is_exact, is_listed};
use crate::sink::gives::note_beyond;
use crate::sink::holes::holes_stand;
use crate::sink::looker::link_change;
use crate::sink::meta::{Wanted, count};
use crate::sink::stat::{inode_of, is_node, note_differs, rights_of, seen_of, stood_of};
use crate::sink::syncs::Extent;
use crate::sink::{fault, lock};
use crate::store::{DIRECTORY, SPECIAL};

/// Others read and search.
const OTHERS_LOOK: u32 = 0o005;

/// A file that is all it is to be, but has not its name yet.
pub(super) struct Whole {
    pub(super) open: Arc<OpenFile>,
    pub(super) temp: Arc<IoFile>,
    /// Which inode it is.
    pub(super) made: Inode,
}

impl Sink {
    /// Commits one file; see `SinkOp::Commit`.
    pub(super) fn commit(&self, item: &CommitItem, durable: bool) -> Result<(), Failure> {
        self.may_commit(item)?;
        let result = match &item.publish {
            None => self.commit_part(item, durable),
            Some(publish) => match &self.files.in_place {
                Some(place) => self.finish_in_place(place, publish, durable),
                None => self.publish(publish, durable),
            },
        };
        self.committed(item, &result);
        result
    }

    /// Asked before anything is done about a file that is to be committed.
    pub(super) fn may_commit(&self, item: &CommitItem) -> Result<(), Failure> {
        // Perhaps the owner could only not be seen: then the temporary goes when the file is discarded.
        self.check_owner().inspect_err(|lost| self.files.fail(item.id, lost, || false))
    }

    /// What becomes of a file behind its commit.
    pub(super) fn committed(&self, item: &CommitItem, result: &Result<(), Failure>) {
        match (result, &item.publish) {
            // Nothing of a file without data is under way, and nobody discards what was never written.
            (Err(_), Some(publish)) if data_len(&publish.file) == 0 => self.files.discard(item.id, || true),
            // What the journal speaks of is the new owner's, if there is one.
            (Err(failure), _) => self.files.fail(item.id, failure, || (self.still_owner)().is_ok()),
            (Ok(()), Some(_)) => self.files.close(item.id),
            (Ok(()), None) => {}
        }
    }

    fn commit_part(&self, item: &CommitItem, durable: bool) -> Result<(), Failure> {
        let (open, file, _) = self.files.fd_of(item.id)?;
        if self.files.in_place.is_some() {
            self.files.mark_in_place(&open, descriptor(&file));
        }
        self.files.name(&open, &file, false)?;
        Files::is_promised(&open);
        if !durable {
            return Sink::is_believed(&open);
        }
        self.sync_data(&open, &file)?;
        drop_pages(descriptor(&file));
        Ok(())
    }

    fn publish(&self, publish: &Publish, durable: bool) -> Result<(), Failure> {
        let whole = self.make_whole(publish)?;
        match durable {
            true => self.sync_whole(publish, &whole)?,
            false => Sink::is_believed(&whole.open)?,
        }
        self.give_whole(publish, &whole)
    }

    /// Whether nothing of it is known to be lost.
    ///
    /// # Errors
    /// A sync of it failed, or early write-back.
    pub(super) fn is_believed(open: &OpenFile) -> Result<(), Failure> {
        let syncs = lock(&open.path).syncs.clone();
        syncs.run(|| Ok(()))
    }

    /// Brings a file to what it is to be under its name: all of its bytes, which are looked for, its size and
    /// its metadata.
    pub(super) fn make_whole(&self, publish: &Publish) -> Result<Whole, Failure> {
        let file = &publish.file;
        let path = || self.tree.path_of(file.parent, &file.name);
        // Of an empty file nothing was ever written, nor of one that is all hole.
        if data_len(file) == 0 {
            self.files.fd(file, Some(publish.meta.mode))?;
        }
        let (open, temp, counted) = self.files.fd_of(file.id)?;
        let fd = descriptor(&temp);
        let fail = |kind, what, errno| fault::os_at(kind, what, &path(), errno, fd);

        // With space in advance a file has its full size from the beginning, so that says nothing of it.
        let written = lock(&open.path).written();
        if counted && written < open.data_len && !haul_mutant::removed("whole-or-nothing") {
            let text = format!("{} has {written} of {} bytes and was not published", path(), file.size);
            return Err(fault::failure(FailureKind::Publish, 0, text));
        }

        let made_with = open.made_with();
        let wanted = Wanted {
            meta: &publish.meta,
            owner: publish.owner,
            keep: 0,
            mtime: true,
            made_with,
            may_stand: false,
        };
        // One of a bundle was written to its size, so that the look behind its metadata is most often enough.
        if !counted && file.size <= SMALL_LEN_MAX && publish.verify.is_none() {
            let (stands, _) = self.set_all(file.id, fd, &wanted, &path)?;
            if stands.st_size as u64 == file.size {
                open.is(inode_of(&stands));
                return Ok(Whole { open, temp, made: inode_of(&stands) });
            }
        }
        let stat = rustix::fs::fstat(fd).map_err(|errno| fail(FailureKind::Publish, "stat", errno))?;
        let size = stat.st_size as u64;
        // A sparse file may end in a hole.
        if size < file.size && file.map.is_none() && !haul_mutant::removed("whole-or-nothing") {
            let text = format!("{} has {size} of {} bytes and was not published", path(), file.size);
            return Err(fault::failure(FailureKind::Publish, 0, text));
        }
        if size != file.size {
            retry_on_intr(|| rustix::fs::ftruncate(fd, file.size))
                .map_err(|errno| fail(FailureKind::Publish, "truncate", errno))?;
        }
        if let Some(expected) = publish.verify {
            // Whatever is promised: what is not on media cannot be read from there.
            self.sync_data(&open, &temp)?;
            self.read_back(file, fd, expected)?;
        }
        let (made, _) = self.set_all(file.id, fd, &wanted, &path)?;
        self.note_holes(file, fd, 0);
        let made = inode_of(&made);
        Ok(Whole { open, temp, made })
    }

    /// Has it on media, by a sync of its own.
    pub(super) fn sync_whole(&self, publish: &Publish, whole: &Whole) -> Result<(), Failure> {
        if haul_mutant::removed("files-are-synced") {
            return Ok(());
        }
        let fd = descriptor(&whole.temp);
        let path = || self.tree.path_of(publish.file.parent, &publish.file.name);
        self.synced(&whole.open, || {
            retry_on_intr(|| self.data.sync(fd, Extent::All))
                .map_err(|errno| unsynced(&path(), errno, fd, false))
        })?;
        drop_pages(fd);
        Ok(())
    }

    /// Gives it its name.
    pub(super) fn give_whole(&self, publish: &Publish, whole: &Whole) -> Result<(), Failure> {
        let of = (descriptor(&whole.temp), whole.made);
        let (file, found, no_replace) = (&publish.file, publish.found, publish.no_replace);
        if found.is_some() && !no_replace {
            // For a rename.
            self.files.name(&whole.open, &whole.temp, true)?;
        }
        self.give_name(file, of, whole.open.has_name(), found, no_replace)
    }

    /// Gives the temporary, which is the inode `made` and open, the final name, where nothing may stand but
    /// what was `found` there; by a rename, if it is `named`.
    pub(super) fn give_name(
        &self,
        file: &SinkFile,
        (fd, made): (BorrowedFd<'_>, Inode),
        named: bool,
        found: Option<Seen>,
        no_replace: bool,
    ) -> Result<(), Failure> {
        let dir = self.tree.dirfd(file.parent)?;
        let jail = self.tree.jail();
        let temp = self.files.temp_name(file);
        self.tree.may_take(&dir, file.parent, &file.name)?;
        if !self.tree.claim(file.parent, &dir, &temp, made, file.id) {
            return Err(self.tree.folded(file.parent, &file.name));
        }
        self.files.aliases.made(made, file.id);
        // By its name it is renamed, and somebody may have put another file there: then that is not what was
        // written.
        let stands = || match jail.stat(&dir, &temp) {
            Ok(stat) if inode_of(&stat) == made || haul_mutant::removed("publish-the-made") => Ok(()),
            Ok(_) => Err(Errno::NOENT),
            Err(errno) => Err(errno),
        };
        if named {
            stands().map_err(|errno| self.unnamed(file, &dir, errno, no_replace))?;
        }
        let no_replace = no_replace && !haul_mutant::removed("no-clobber-at-the-rename");
        let found = found.filter(|_| !no_replace);
        // Whether it takes the place of what was found.
        let over = match found {
            _ if haul_mutant::removed("publish-over-the-found") => Ok(!no_replace),
            None => Ok(false),
            Some(found) => match jail.stat(&dir, &file.name) {
                Ok(stat) if found.is_still(&seen_of(&stat)) => Ok(true),
                Ok(stat) if inode_of(&stat) == found.inode && haul_mutant::removed("found-is-unchanged") => {
                    Ok(true)
                }
                Ok(_) => Err(Errno::EXIST),
                Err(Errno::NOENT) => Ok(false),
                Err(errno) => Err(errno),
            },
        };
        // Directly before the rename, whatever the looks before it took.
        self.fence()?;
        let renamed = over.and_then(|over| match over {
            true => jail.rename(&dir, &temp, &file.name, false),
            false if !named => jail.link_open(fd, &dir, &file.name),
            false if no_replace => jail.rename(&dir, &temp, &file.name, true),
            false => jail.rename_new(&dir, &temp, &file.name),
        });
        if let Some(gone) = if renamed.is_ok() { found.map(|found| found.inode) } else { Some(made) } {
            self.tree.unclaim(file.parent, gone, file.id);
        }
        renamed.map_err(|errno| self.unnamed(file, &dir, errno, no_replace))?;
        self.firsts.see_open(file.id, fd);
        match &self.published {
            Some(published) => {
                // As it is now: its new name has changed its ctime.
                let given =
                    rustix::fs::fstat(fd).map_err(|errno| self.unnamed(file, &dir, errno, no_replace))?;
                published.add(&self.tree, file.parent, &file.name, seen_of(&given))
            }
            None => Ok(()),
        }
    }

    /// Why a file did not get its name.
    pub(super) fn unnamed(&self, file: &SinkFile, dir: &OwnedFd, errno: Errno, no_replace: bool) -> Failure {
        let path = self.tree.path_of(file.parent, &file.name);
        let stands = || {
            let stat = self.tree.jail().stat(dir, &file.name).ok()?;
            Some(FileType::from_raw_mode(stat.st_mode))
        };
        let (errno, told) = match errno {
            Errno::EXIST if no_replace => (errno, "it exists and was not replaced"),
            Errno::EXIST if stands() == Some(FileType::Directory) => (Errno::ISDIR, DIRECTORY),
            Errno::ISDIR => (errno, DIRECTORY),
            Errno::EXIST if !is_exact(dir) && is_listed(dir, &file.name) == Some(false) => {
                return self.tree.folded(file.parent, &file.name);
            }
            Errno::EXIST => (
                errno,
                "something else appeared there while the copy ran, or it was changed, and was left as it is",
            ),
            Errno::NOENT => {
                (errno, "its temporary is gone, which another run of this job or a cleaner removed")
            }
            _ => return fault::os_at(FailureKind::Publish, "publish", &path, errno, dir),
        };
        fault::failure(FailureKind::Publish, errno.raw_os_error(), format!("publish {path}: {told}"))
    }

    /// Makes one symbolic link, FIFO, socket or device under a temporary name, then gives it its own.
    pub(super) fn make_link(&self, item: &LinkItem) -> Result<Change, Failure> {
        self.check_owner()?;
        let file = &item.file;
        self.tree.may_link(file.parent, &file.name, &item.target)?;
        let dir = self.tree.dirfd(file.parent)?;
        let found = self.look_for_link(item, &dir)?;
        if let Some(node) = item.node {
            return self.make_node((item, node), &dir, found);
        }
        // One that says the same already stays: a second run changes nothing.
        let (change, beyond) = match found {
            Some(_) => {
                self.rate.charge(cost::READ_LINK + cost::LOOK + self.cost_of_attributes());
                let owner = item.owner && !item.no_replace;
                let keeps = if item.no_replace { Keeps::default() } else { self.keeps };
                let values = self.values_of(file.id);
                let kept = (keeps, values.as_deref());
                link_change(&self.tree, &dir, (&file.name, &item.target), (&item.meta, owner), kept)
            }
            None => (Change::NEW, Change::NONE),
        };
        if change.is_none() {
            self.count_beyond(beyond);
            found.into_iter().for_each(|seen| self.firsts.see(file.id, seen));
            return Ok(change);
        }
        if change.is_rights_alone()
            && let Some(changed) = self.amend_link(item, &dir, found)?
        {
            found.into_iter().for_each(|seen| self.firsts.see(file.id, seen));
            return Ok(changed);
        }
        if !item.no_replace && self.leads_to_itself(item, &dir) {
            let path = self.tree.path_of(file.parent, &file.name);
            let text = format!(
                "{path}: the link leads to the file that stands there, whose content would be lost; it was left"
            );
            return Err(fault::failure(FailureKind::Publish, Errno::EXIST.raw_os_error(), text));
        }
        // Until it has its name nobody may take its temporary for a leftover.
        let _making = self.files.making();
        self.rate.charge(cost::CREATE + cost::OPEN + self.cost_of_setting(item.owner) + cost::NAME);
        self.create_link(item, &dir)?;
        let held = self.hold_link(item, &dir)?;
        self.finish_link(item, &dir, &held, found).map(|()| change)
    }

    /// What stands at a link's name, if a link may take its place.
    fn look_for_link(&self, item: &LinkItem, dir: &OwnedFd) -> Result<Option<Seen>, Failure> {
        let LinkItem { file, node, no_replace, force, .. } = item;
        let path = || self.tree.path_of(file.parent, &file.name);
        let stat = match self.tree.jail().stat(dir, &file.name) {
            Err(Errno::NOENT) => return Ok(None),
            other => other.map_err(|errno| fault::os(FailureKind::Open, "stat", &path(), errno))?,
        };
        let found = seen_of(&stat);
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            // The rename says so. Another entry may be it.
            return Ok(Some(found));
        }
        // In a directory that this session made stands what another entry put there, unless every name is its
        // own.
        let other = self.tree.was_created(file.parent) && !is_exact(dir);
        if other || !self.tree.claim(file.parent, dir, &file.name, found.inode, file.id) {
            return Err(self.tree.folded(file.parent, &file.name));
        }
        match kind {
            FileType::RegularFile | FileType::Symlink => Ok(Some(found)),
            _ if *force || *no_replace || node.is_some_and(|node| is_node(&stat, node)) => Ok(Some(found)),
            _ => {
                let text = format!("{}: {SPECIAL}", path());
                Err(fault::failure(FailureKind::Create, Errno::EXIST.raw_os_error(), text))
            }
        }
    }

    /// The link would take the place of the file that it leads to, seen from where it is made. Asked only
    /// where a file stands; the link's text is the source's, so it is followed to look and for nothing else.
    fn leads_to_itself(&self, item: &LinkItem, dir: &OwnedFd) -> bool {
        let Ok(stands) = self.tree.jail().stat(dir, &item.file.name) else { return false };
        let is_file = FileType::from_raw_mode(stands.st_mode) == FileType::RegularFile;
        if !is_file || haul_mutant::removed("no-link-over-its-target") {
            return false;
        }
        let led = statat(dir, &item.target[..], AtFlags::NO_AUTOMOUNT);
        // What has another hard link is not lost, unless both names are this one.
        let last = item.target.rsplit(|byte| *byte == b'/').next();
        let may_be_lost = stands.st_nlink < 2 || last == Some(item.file.name.as_bytes());
        may_be_lost && led.is_ok_and(|led| inode_of(&led) == inode_of(&stands))
    }

    /// Makes the link under its temporary name.
    fn create_link(&self, item: &LinkItem, dir: &OwnedFd) -> Result<(), Failure> {
        let jail = self.tree.jail();
        let temp = self.files.temp_name(&item.file);
        let mut made = jail.symlink(&item.target, dir, &temp);
        if made == Err(Errno::EXIST) && self.files.is_stale(dir, &temp, None) {
            let _ = jail.unlink(dir, &temp);
            made = jail.symlink(&item.target, dir, &temp);
        }
        made.map_err(|errno| match errno {
            // Another entry's, which is being made.
            Errno::EXIST => self.tree.folded(item.file.parent, &item.file.name),
            _ => self.unmade_link(item, dir, FailureKind::Create, "make the link", errno),
        })
    }

    /// Opens the link that was just made, so that what is done to it is done to nothing else: whoever may
    /// write the directory can put another file under its name at any time.
    pub(super) fn hold_link(&self, item: &LinkItem, dir: &OwnedFd) -> Result<OwnedFd, Failure> {
        let (jail, temp) = (self.tree.jail(), self.files.temp_name(&item.file));
        let fail = |errno| {
            if errno != Errno::NOENT {
                self.files.leave();
            }
            self.unmade_link(item, dir, FailureKind::Create, "look at the link", errno)
        };
        let held = jail.open_path(dir, &temp).map_err(fail)?;
        let stat = rustix::fs::fstat(&held).map_err(fail)?;
        // A link that says the same is as good as ours, and nothing else is.
        let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink && stat.st_nlink == 1;
        let says = || rustix::fs::readlinkat(&held, "", Vec::new());
        if (is_link && says().map_err(fail)?.as_bytes() == &*item.target)
            || haul_mutant::removed("links-are-held")
        {
            return Ok(held);
        }
        let path = self.tree.path_of(item.file.parent, &item.file.name);
        let text = format!(
            "make the link {path}: something else took the place of what was made; it was left alone"
        );
        Err(fault::failure(FailureKind::Create, Errno::STALE.raw_os_error(), text))
    }

    /// Gives the link that is held its owner, its mtime and its name.
    pub(super) fn finish_link(
        &self,
        item: &LinkItem,
        dir: &OwnedFd,
        held: &OwnedFd,
        found: Option<Seen>,
    ) -> Result<(), Failure> {
        let fail = |what, errno| self.unmade_link(item, dir, FailureKind::Metadata, what, errno);
        let made = rustix::fs::fstat(held).map_err(|errno| fail("stat", errno))?;
        let inode = inode_of(&made);
        self.tree.link_comes(inode);
        let result = self
            .set_link_meta(held.as_fd(), &made, &item.meta, item.owner)
            .map_err(|(what, errno)| fail(what, errno))
            .map(|()| {
                let path = || self.tree.path_of(item.file.parent, &item.file.name);
                self.set_link_attributes(item.file.id, held.as_fd(), &path);
            })
            .and_then(|()| self.give_name(&item.file, (held.as_fd(), inode), true, found, item.no_replace));
        let (jail, temp) = (self.tree.jail(), self.files.temp_name(&item.file));
        // The name is of this run alone, but what stands there may be another's.
        let is_ours = || jail.stat(dir, &temp).is_ok_and(|stat| inode_of(&stat) == inode);
        if result.is_err() && (is_ours() || haul_mutant::removed("only-our-link-is-removed")) {
            let _ = jail.unlink(dir, &temp);
        }
        result
    }

    pub(super) fn unmade_link(
        &self,
        item: &LinkItem,
        dir: &OwnedFd,
        kind: FailureKind,
        what: &'static str,
        errno: Errno,
    ) -> Failure {
        fault::os_at(kind, what, &self.tree.path_of(item.file.parent, &item.file.name), errno, dir)
    }

    /// Syncs one directory.
    pub(super) fn sync_dir(&self, id: DirId) -> Result<(), Failure> {
        if haul_mutant::removed("names-are-synced") {
            return Ok(());
        }
        let fd = self.tree.dirfd(id)?;
        calls::sync_dir(&fd)
            .map_err(|errno| fault::os_at(FailureKind::Sync, "sync", &self.tree.path_of_dir(id), errno, &fd))
    }

    /// Finishes directories, the deepest first: a finished one may be closed to us, and then nothing below it
    /// could be reached. (For that they are not split by target.)
    pub(super) fn finish_dirs(
        self: &Arc<Self>,
        turn: &Turn<Task>,
        durable: bool,
        dirs: &[(DirId, Meta)],
    ) -> Vec<(DirId, Result<Change, Failure>)> {
        let mut by_depth: BTreeMap<usize, Vec<(DirId, Meta)>> = BTreeMap::new();
        for (id, meta) in dirs {
            by_depth.entry(self.tree.depth(*id)).or_default().push((*id, *meta));
        }
        let mut ended = HashMap::new();
        for (_, level) in by_depth.into_iter().rev() {
            let (sink, told) = (self.clone(), self.clone());
            let level = Arc::new(level);
            let finish = move |(id, meta): &(DirId, Meta), turn: &Turn<Task>| {
                sink.rate.take_telling(cost::LOOK + sink.cost_of_attributes(), || turn.watch());
                guard(FailureKind::Metadata, || sink.finish_dir(*id, meta, durable))
            };
            let label = move |(id, _): &(DirId, Meta)| told.doing("sync", Place(*id, None));
            let results = turn.share_turns(level.clone(), label, finish);
            ended.extend(level.iter().map(|(id, _)| *id).zip(results));
        }
        let lost =
            || Some(Err(fault::failure(FailureKind::Metadata, 0, "the directory was asked for twice")));
        let results: Vec<_> =
            dirs.iter().map(|(id, _)| ended.remove(id).unwrap_or_else(lost)).map(whole).collect();
        let failed: Vec<bool> = results.iter().map(Result::is_err).collect();
        for (id, failed) in dirs.iter().map(|(id, _)| *id).zip(&failed) {
            if *failed && self.fence().is_ok() {
                self.tree.close_one(id);
            }
            self.tree.forget(id);
        }
        pair(dirs, |(id, _)| *id, results)
    }

    /// Finishes one directory; see `SinkOp::FinishDirs`. All its entries have ended, so the temporaries of
    /// dead runs of this job that still lie in it were adopted by nobody.
    pub(super) fn finish_dir(&self, id: DirId, meta: &Meta, durable: bool) -> Result<Change, Failure> {
        self.fence()?;
        if id == DirId::ROOT {
            return self.finish_root(meta);
        }
        let fd = self.tree.dirfd(id)?;
        if let Some(leftovers) = &self.leftovers {
            leftovers.finish(&self.tree, id, &fd);
        }
        let fail = |kind, what, errno| fault::os_at(kind, what, &self.tree.path_of_dir(id), errno, &fd);
        let stat = rustix::fs::fstat(&fd).map_err(|errno| fail(FailureKind::Metadata, "stat", errno))?;
        // Held against how it stood before this run: what was made in it since has changed its mtime. To
        // learn how times are kept can change it too, so that comes first.
        let before = self.tree.stood(id);
        if let Some(before) = &before {
            self.note_others_dir(id, before, meta);
        }
        let stood = before.map(|before| {
            let grain = |mtime| match mtime == meta.mtime {
                true => 1,
                false => self.files.grain_for(&fd, stat.st_dev, mtime),
            };
            stood_of(&before, grain)
        });
        let keep = stat.st_mode & Change::kept_of_dirs(self.dir_owner);
        let wanted =
            Wanted { meta, owner: self.dir_owner, keep, mtime: true, made_with: None, may_stand: true };
        let differs = self.differs(id.as_file(), Subject::Open(fd.as_fd()), FileType::Directory);
        if self.leftovers.is_some() {
            // That may have taken long, and a new owner may have given it what its source has now: ours may
            // be wider.
            self.fence()?;
        }
        let (_, changed) = self.set_all(id.as_file(), &fd, &wanted, &|| self.tree.path_of_dir(id))?;
        if durable {
            calls::sync_dir(&fd).map_err(|errno| fail(FailureKind::Sync, "sync", errno))?;
        }
        let change = stood.map(|mut stood| {
            note_differs(&mut stood.rights, &differs);
            note_beyond(&mut stood.rights, meta, self.dir_owner);
            let change = Change::of_dir(&stood, meta, self.dir_owner);
            // What could not be set did not change.
            change.without(Change::XATTRS.with(Change::ACL, true)).with(changed, true)
        });
        Ok(change.unwrap_or(Change::NEW))
    }
}

impl Sink {
    /// Ends a file that was written in place: all of it is on media and right before it looks like a copy.
    pub(super) fn finish_in_place(
        &self,
        place: &InPlace,
        publish: &Publish,
        durable: bool,
    ) -> Result<(), Failure> {
        let file = &publish.file;
        let path = || self.tree.path_of(file.parent, &file.name);
        // Of an empty file nothing was ever written, nor of one that is all hole.
        if data_len(file) == 0 {
            self.files.fd(file, Some(publish.meta.mode))?;
        }
        let (open, written_to, counted) = self.files.fd_of(file.id)?;
        let fd = descriptor(&written_to);
        let fail = |kind, what, errno| fault::os_at(kind, what, &path(), errno, fd);
        let written = lock(&open.path).written();
        if counted && written < open.data_len && !haul_mutant::removed("whole-or-nothing") {
            let text = format!("{} has {written} of {} new bytes and is not whole", path(), file.size);
            return Err(fault::failure(FailureKind::Publish, 0, text));
        }
        if (durable && !haul_mutant::removed("in-place-syncs-first")) || publish.verify.is_some() {
            self.sync_data(&open, &written_to)?;
        }
        Sink::is_believed(&open)?;
        if let Some(expected) = publish.verify {
            self.read_back(file, fd, expected)?;
        }
        let dir = self.tree.dirfd(file.parent)?;
        let made = open.inode();
        let is_ours =
            |stat: &Stat| Some(inode_of(stat)) == made || haul_mutant::removed("in-place-has-its-name");
        match self.tree.jail().stat(&dir, &file.name) {
            Ok(stat) if is_ours(&stat) => {}
            Ok(_) | Err(Errno::NOENT) => {
                let text = format!(
                    "publish {}: the file that was written into has not this name any more: something else took it, or removed it",
                    path()
                );
                return Err(fault::failure(FailureKind::Publish, Errno::STALE.raw_os_error(), text));
            }
            Err(errno) => return Err(fail(FailureKind::Publish, "stat", errno)),
        }
        // Directly before it begins to look whole.
        self.fence()?;
        let stat = rustix::fs::fstat(fd).map_err(|errno| fail(FailureKind::Publish, "stat", errno))?;
        let end = place.base() + file.size;
        let size = stat.st_size as u64;
        // A whole file was made so long before its first byte. A part may end in a hole.
        let is_cut = match place.is_part() {
            true => size < end && file.map.is_none(),
            false => size < unfinished_len(file.size) && !haul_mutant::removed("in-place-looks-unfinished"),
        };
        if is_cut && !haul_mutant::removed("whole-or-nothing") {
            let text = format!(
                "{} ends at byte {size}, while it was written: something else cut it, and what it holds is not known",
                path()
            );
            return Err(fault::failure(FailureKind::Publish, 0, text));
        }
        if size != end && !(place.is_part() && size > end) {
            retry_on_intr(|| rustix::fs::ftruncate(fd, end))
                .map_err(|errno| fail(FailureKind::Publish, "truncate", errno))?;
        }
        self.files.unmark_in_place(&open);
        if !place.is_part() {
            // Whose it is may still have it open for writing: see `Change::may_be_set`.
            let foreign = rights_of(&stat, self.files.me()).foreign;
            let meta = match foreign && !haul_mutant::removed("strangers-inodes-get-no-rights") {
                true => self.without_rights(file.id, &publish.meta, publish.owner, &path),
                false => publish.meta,
            };
            let wanted = Wanted {
                meta: &meta,
                owner: publish.owner,
                keep: 0,
                mtime: true,
                made_with: None,
                may_stand: false,
            };
            self.set_all(file.id, fd, &wanted, &path)?;
        }
        self.note_holes(file, fd, place.base());
        if durable && !haul_mutant::removed("files-are-synced") {
            self.synced(&open, || {
                retry_on_intr(|| self.data.sync(fd, Extent::All))
                    .map_err(|errno| unsynced(&path(), errno, fd, true))
            })?;
            drop_pages(fd);
        }
        self.firsts.see_open(file.id, fd);
        Ok(())
    }
}

impl Sink {
    /// A file whose data begins at `base` has all of its bytes: counts one whose holes are none there.
    fn note_holes(&self, file: &SinkFile, fd: BorrowedFd<'_>, base: u64) {
        let map = file.map.as_ref().filter(|_| !haul_mutant::removed("holes-that-are-none-are-counted"));
        if map.is_some_and(|map| !holes_stand(fd, map, base)) {
            count(&self.not_kept.sparse);
        }
    }

    /// Whoever a directory belongs to looks into it. One that another user had made before, under the name of
    /// one that is closed to him at the source, is told.
    fn note_others_dir(&self, id: DirId, stood: &Stat, meta: &Meta) {
        let another = self.files.me().is_some_and(|me| stood.st_uid != me && stood.st_uid != 0);
        if another && stood.st_uid != meta.uid && meta.mode & OTHERS_LOOK != OTHERS_LOOK {
            let mut told = lock(&self.others_dirs);
            told.0 += 1;
            told.1.get_or_insert_with(|| format!("{} of user {}", self.tree.path_of_dir(id), stood.st_uid));
        }
    }

    /// The directories of other users, in words.
    pub(super) fn others_dirs(&self) -> Option<String> {
        let (count, first) = &*lock(&self.others_dirs);
        let first = first.as_ref().filter(|_| !haul_mutant::removed("others-directories-are-told"))?;
        Some(format!(
            "{count} that stood there before, closed to their owners at the source; who owns them here can look at what was copied \
             into them: {first}{}",
            if *count > 1 { " and more" } else { "" }
        ))
    }
}

/// `in_place`: there is no temporary.
pub(super) fn unsynced(path: &str, errno: Errno, fd: impl AsFd, in_place: bool) -> Failure {
    let failure = fault::os_at(FailureKind::Sync, "sync", path, errno, fd);
    let what = if in_place { "nobody goes on with it" } else { "its temporary was discarded" };
    let text = format!("{}; {what}, for what was written is not to be trusted", failure.text);
    fault::failure(FailureKind::Sync, failure.errno, text)
}
