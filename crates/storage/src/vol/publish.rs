//! How files, links and directories of a volume become what they were at the source.
//!
//! In: what is written under its own name, what the source has. Out: metadata, durability, final names.
//! What must hold: nothing appears under its final name before all of it lasts at all servers, with the
//! length that it should have; what stands there is replaced only if it is what was found; a run that lost
//! its job publishes nothing.
//! Left out: what becomes of a name between the look and the rename, for the catalog renames whatever is
//! there; where nothing was found, nothing is replaced.

use std::sync::atomic::Ordering;

use haul_base::digest::Hasher;
use haul_core::change::Change;
use haul_core::digest::{SubtreeSet, subtrees};
use haul_core::entry::{Meta, Name};
use haul_core::ids::DirId;
use haul_core::transfer::op::{AmendItem, Existing, LinkItem, Publish, Seen, SinkFile};
use haul_core::volume::catalog::{EntryNo, Known, Place as At, Setting};
use haul_core::volume::{ContentVersion, FileNo};
use haul_core::wire::{Failure, FailureKind};
use haul_volume::client::{Look, VolumeError};
use rustix::io::Errno;

use super::files::{Common, OpenFile};
use super::is_missing;
use super::look::{existing_at, link_change, mode_of};
use super::noted;
use super::path::lead;
use crate::store::DIRECTORY;

/// A gatherer is told that often, if it dies so often; then the next who looks tells the catalog again.
const TOLD_MAX: usize = 5;

impl Common {
    /// What an entry gets of its source.
    fn setting(&self, meta: &Meta, owner: bool) -> Setting {
        let owner = owner && meta.owners().is_some();
        let mode = mode_of(meta.mode, owner);
        if mode != meta.mode & 0o7777 {
            self.setid.fetch_add(1, Ordering::Relaxed);
        }
        Setting {
            mode: Some(mode),
            uid: owner.then_some(meta.uid),
            gid: owner.then_some(meta.gid),
            mtime: Some(meta.mtime),
            ..Setting::default()
        }
    }

    /// Publishes a file of which all is written.
    pub(super) fn publish(&self, open: &OpenFile, publish: &Publish) -> Result<(), Failure> {
        let file = &publish.file;
        let path = || self.path(file);
        let failed = |kind, errno, why: &str| self.volume.failed(kind, "publish", &path(), errno, why);
        // Of an empty file nothing was ever written.
        let entry = self.temp(open)?;
        let data_len = file.map.as_ref().map_or(file.size, |map| map.data_len());
        let missing = open.missing(data_len);
        if missing > 0 && !haul_mutant::removed("volume-whole-or-nothing") {
            let why = format!("{missing} of {} bytes are missing, and it was not published", open.size());
            return Err(failed(FailureKind::Publish, 0, &why));
        }
        if file.map.is_some() {
            // It may end in a hole.
            let cut = self.volume.wait_once(&self.volume.client.truncate(FileNo(entry.0), file.size));
            cut.map_err(|why| self.broke(open, (FailureKind::Publish, "set the length of"), &why))?;
        }
        // Also where nothing need last: others do not see how long it is before.
        if !haul_mutant::removed("volume-files-are-synced") {
            self.sync(open, entry)?;
        }
        // One that is new has none. Whatever becomes of it behind this is another state.
        let state = match open.is_adopted() {
            true => self.volume.catalog.known(vec![entry]).ok().and_then(|mut known| known.pop().flatten()),
            false => Some(Known::default()),
        };
        // Of what was never written nobody is asked.
        let look = match file.size {
            0 if file.map.is_none() => None,
            _ => Some(self.volume.wait(|| self.volume.client.look(FileNo(entry.0)))),
        };
        let look = look.transpose();
        let look = look.map_err(|why| self.volume.broke(FailureKind::Publish, "look at", &path(), &why))?;
        let is_whole = |look: Option<Look>| match look.map_or(0, |look| look.end) {
            len if len == file.size => Ok(()),
            len => {
                let why = format!("the volume has {len} of {} bytes, and it was not published", file.size);
                Err(failed(FailureKind::Publish, 0, &why))
            }
        };
        is_whole(look)?;
        if let Some(expected) = publish.verify
            && self.digest_of(file, entry, expected.0)? != Some(expected.1)
            && !haul_mutant::removed("volume-read-back-decides")
        {
            let why = "the servers give back other bytes than were written, and it was not published";
            return Err(failed(FailureKind::Digest, 0, why));
        }
        // Where holes were not written the servers need not have anything. It is known of all that has a
        // name, whoever dies when.
        let whole = file.map.is_none().then_some(file.size);
        let whole = whole.filter(|_| !haul_mutant::removed("volume-names-come-with-lengths"));
        let set = Setting { whole, ..self.setting(&publish.meta, publish.owner) };
        self.volume
            .catalog
            .set_attr(entry, set)
            .map_err(|why| self.volume.refused(FailureKind::Metadata, "set the mode of", &path(), &why))?;
        // It has the time of its source, which tells of all that was written.
        let look = look.map(|look| self.make_told(entry, look)).transpose();
        let look = look.map_err(|why| self.volume.broke(FailureKind::Publish, "look at", &path(), &why))?;
        is_whole(look)?;
        let named = self.give_name(file, open.temp_name(), publish.found, publish.no_replace);
        if let (Ok(()), Some(before)) = (&named, state) {
            let version = look.map_or_else(ContentVersion::default, |look| look.version);
            let first = self.tree.first(file.parent, &file.name);
            self.noted.add(&self.volume, &first, (entry, before.state + noted::FILE), version);
        }
        named
    }

    /// Has the gatherer of a file know that the catalog does, as of that look; and the last look at it.
    ///
    /// A server that starts anew has another version of it, which nobody wrote: the name that it has so far
    /// is ours alone. Had it its final one by then, nobody could tell, and it would be copied once more.
    fn make_told(&self, entry: EntryNo, mut look: Look) -> Result<Look, VolumeError> {
        let file = FileNo(entry.0);
        for _ in 0..TOLD_MAX {
            if !look.untold || self.volume.wait_once(&self.volume.client.told(file, look.version)) == Ok(true)
            {
                break;
            }
            look = self.volume.wait(|| self.volume.client.look(file))?;
        }
        Ok(look)
    }

    /// The digest of what the servers give back.
    fn digest_of(
        &self,
        file: &SinkFile,
        entry: EntryNo,
        kind: haul_core::digest::DigestKind,
    ) -> Result<Option<haul_core::digest::Root>, Failure> {
        let Some(map) = &file.map else {
            let mut hasher = Hasher::new(kind, 0);
            self.read_back(file, entry, (0, file.size), &mut hasher)?;
            return Ok(Some(hasher.root()));
        };
        let mut set = SubtreeSet::with_map(kind, map.clone());
        for extent in map.extents() {
            for (offset, len) in subtrees(extent.offset, extent.len, extent.end() == map.size()) {
                let mut hasher = Hasher::new(kind, offset);
                self.read_back(file, entry, (offset, len), &mut hasher)?;
                let whole = offset == 0 && len == map.size();
                let value = if whole { hasher.root() } else { hasher.value() };
                if set.insert(offset, len, value).is_err() {
                    return Ok(None);
                }
            }
        }
        Ok(set.root())
    }

    /// Renames what is finished to its final name: over what was `found` there, or over nothing.
    fn give_name(
        &self,
        file: &SinkFile,
        temp: &Name,
        found: Option<Seen>,
        no_replace: bool,
    ) -> Result<(), Failure> {
        let path = || self.path(file);
        let failed = |errno: Errno, why: &str| {
            Err(self.volume.failed(FailureKind::Publish, "publish", &path(), errno.raw_os_error(), why))
        };
        let parent = self.tree.dir(file.parent)?;
        let at = At { parent, name: file.name.clone() };
        let over = match found.filter(|_| !no_replace) {
            _ if haul_mutant::removed("volume-publish-over-the-found") => !no_replace,
            None => false,
            Some(found) => match existing_at(&self.volume, &at, &path)? {
                None => false,
                Some((_, Existing::Dir, _)) => return failed(Errno::ISDIR, DIRECTORY),
                Some((_, _, now)) if found.is_still(&now) => true,
                Some(_) => return failed(Errno::EXIST, APPEARED),
            },
        };
        // Directly before the rename, whatever the looks before it took.
        self.claim.check()?;
        let from = At { parent, name: temp.clone() };
        self.volume.catalog.rename(from, at.clone(), !over).or_else(|why| {
            let is = |errno: Errno| why.errno == errno.raw_os_error();
            match () {
                () if is(Errno::ISDIR) => failed(Errno::ISDIR, DIRECTORY),
                () if is(Errno::EXIST) && no_replace => {
                    failed(Errno::EXIST, "it exists and was not replaced")
                }
                () if is(Errno::EXIST) => match self.volume.at(&at) {
                    Ok(Some(entry)) if super::is_dir(&entry) => failed(Errno::ISDIR, DIRECTORY),
                    _ => failed(Errno::EXIST, APPEARED),
                },
                () if is_missing(&why) => failed(
                    Errno::NOENT,
                    "its temporary or its directory is gone, which another run of this job or somebody else removed",
                ),
                () => Err(self.volume.refused(FailureKind::Publish, "publish", &path(), &why)),
            }
        })
    }

    /// Sets mode and owner of a file whose content is right. What of them changed.
    pub(super) fn amend(&self, item: &AmendItem) -> Result<Change, Failure> {
        let file = &item.file;
        let path = || self.path(file);
        let parent = self.tree.dir(file.parent)?;
        let at = At { parent, name: file.name.clone() };
        let found = existing_at(&self.volume, &at, &path)?;
        let Some((before, Existing::File { .. }, _)) = found.filter(|(_, _, now)| item.found.is_still(now))
        else {
            let why =
                "something else stands there since it was looked at, or it was changed; it was left alone";
            let errno = Errno::EXIST.raw_os_error();
            return Err(self.volume.failed(FailureKind::Metadata, "set the mode of", &path(), errno, why));
        };
        self.claim.check()?;
        let set = Setting { mtime: None, ..self.setting(&item.meta, item.owner) };
        let refused = |why| self.volume.refused(FailureKind::Metadata, "set the mode of", &path(), &why);
        let after = self.volume.catalog.set_attr(before.id, set).map_err(refused)?;
        Ok(Change::NONE
            .with(Change::MODE, before.meta.mode != after.meta.mode)
            .with(Change::OWNER, before.meta.uid != after.meta.uid)
            .with(Change::GROUP, before.meta.gid != after.meta.gid))
    }

    /// Makes one symbolic link under a name of its own, then gives it its final one.
    pub(super) fn make_link(&self, item: &LinkItem) -> Result<Change, Failure> {
        let LinkItem { file, target, meta, owner, no_replace, .. } = item;
        let path = || self.path(file);
        let parent = self.tree.dir(file.parent)?;
        let at = At { parent, name: file.name.clone() };
        let stands = match self.tree.was_made(file.parent) {
            true => None,
            false => existing_at(&self.volume, &at, &path)?,
        };
        let refused = |doing, why| self.volume.refused(FailureKind::Create, doing, &path(), &why);
        let set = Setting { mode: None, ..self.setting(&Meta { mode: 0o777, ..*meta }, *owner) };
        let change = match &stands {
            None => Change::NEW,
            Some((_, Existing::Dir, _)) => {
                let errno = Errno::ISDIR.raw_os_error();
                return Err(self.volume.failed(FailureKind::Publish, "publish", &path(), errno, DIRECTORY));
            }
            Some((entry, _, _)) => {
                let change = link_change(entry, target, meta, *owner && !no_replace);
                if change.is_none() {
                    return Ok(change);
                }
                if change.is_rights_alone() {
                    self.claim.check()?;
                    let set = Setting { mtime: None, ..set };
                    return match self.volume.catalog.set_attr(entry.id, set) {
                        Ok(_) => Ok(change),
                        Err(why) => Err(refused("set the owner of", why)),
                    };
                }
                change
            }
        };
        if let Some((entry, Existing::File { .. }, _)) = &stands
            && !no_replace
            && self.leads_to(file, target, entry.id)
        {
            let why =
                "the link leads to the file that stands there, whose content would be lost; it was left";
            let errno = Errno::EXIST.raw_os_error();
            return Err(self.volume.failed(FailureKind::Publish, "make the link", &path(), errno, why));
        }
        self.claim.check()?;
        let temp = self.temp_name(file);
        let made = Meta {
            mode: 0o777,
            uid: set.uid.unwrap_or(self.own().uid),
            gid: set.gid.unwrap_or(self.own().gid),
            mtime: meta.mtime,
        };
        let from = At { parent, name: temp.clone() };
        let made = self
            .volume
            .catalog
            .symlink(from.clone(), made, target)
            .map_err(|why| refused("make the link", why))?;
        let named = self.give_name(file, &temp, stands.map(|(_, _, seen)| seen), *no_replace);
        if named.is_err() {
            // The next run of the job finds it by its tag, where this fails.
            let _ = self.volume.catalog.unlink(from);
        }
        if named.is_ok() {
            let first = self.tree.first(file.parent, &file.name);
            self.noted.add(&self.volume, &first, (made.id, noted::LINK), ContentVersion::default());
        }
        named.map(|()| change)
    }

    /// Whether a link of that text, made where the file is, would lead to this entry.
    fn leads_to(&self, file: &SinkFile, target: &[u8], entry: EntryNo) -> bool {
        let mut path = match target.starts_with(b"/") {
            true => Vec::new(),
            false => self.tree.path(file.parent, None),
        };
        path.push(b'/');
        path.extend_from_slice(target);
        let led = lead(&self.volume, &path, true, FailureKind::Create);
        led.is_ok_and(|led| led.entry.is_some_and(|led| led.id == entry))
    }

    /// Gives a directory the metadata of its source, and removes what dead runs left in it.
    pub(super) fn finish_dir(&self, dir: DirId, meta: &Meta) -> Result<Change, Failure> {
        let entry = self.tree.dir(dir)?;
        self.claim.check()?;
        self.claim.sweep(entry);
        let stood = match dir {
            DirId::ROOT => None,
            dir => self.tree.stood(dir),
        };
        let set = self.setting(meta, self.policy.owner);
        let path = || self.tree.path(dir, None);
        let refused = |why| self.volume.refused(FailureKind::Metadata, "set the mode of", &path(), &why);
        self.volume.catalog.set_attr(entry, set).map_err(refused)?;
        Ok(stood.map_or(Change::NEW, |stood| Change::of_dir(&stood, meta, self.policy.owner)))
    }
}

const APPEARED: &str =
    "something else appeared there while the copy ran, or it was changed, and was left as it is";
