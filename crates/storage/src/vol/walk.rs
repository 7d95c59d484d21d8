//! Walks the sources in a volume: each directory is read in pages, and the files of a page are looked at
//! all at once.
//!
//! In: the sources as they were found. Out: [`WalkItem`]s, as of the walk of a file system.
//! Invariants: a directory comes before what lies in it, and its end after all of that; one that could not be
//! read whole fails by its path. A catalog that does not answer ends the walk.
//! What runs of haul have there that are not done, or died, is left out, and named.
//! Left out: entries that come or go while a directory is read, which may be in it or not.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use crossbeam_channel::bounded;
use haul_core::entry::{DEPTH_MAX, EntryKind, Extras, Name, Version};
use haul_core::ids::{DirId, FileId, Generation};
use haul_core::volume::catalog::{Entry, EntryNo, Failure as Refusal, Kind, Place as At};
use haul_core::volume::{Candidate, FileNo, Wanted};
use haul_core::wire::{Announced, Failure, FailureKind, Totals};
use haul_volume::client::{Look, Waiting};

use super::here::are_ours;
use super::look::Unknown;
use super::names::{Above, Names, State};
use super::path::{is_dots, last_part};
use super::{Volume, is_dir, is_missing};
use crate::store::Picks;
use crate::walk::out::Out;
use crate::walk::{BATCHES_MAX, CountsAs, NotKept, NotKeptWhat, Walk, WalkItem};

/// A source as it was found.
pub(super) struct Found {
    pub(super) entry: Entry,
    /// The name that it gets; `None`: its contents go into the destination itself.
    pub(super) name: Option<Name>,
    /// The directory that it is in.
    pub(super) parent: EntryNo,
    /// As typed.
    pub(super) path: Vec<u8>,
}

/// An entry of a page, and what is known of it if it is a file.
type Listed = ((Name, Entry), Option<Looked>);

/// A directory whose entries were announced.
struct Level {
    id: DirId,
    above: Above,
    entry: EntryNo,
    dirs: std::vec::IntoIter<(Name, Entry)>,
}

/// A file that was looked at, or is being.
enum Looked {
    /// With the length that the catalog knew of it.
    Asked(Waiting<Look>, Option<u64>),
    Known(State),
}

struct Walker {
    volume: Arc<Volume>,
    names: Arc<Names>,
    /// Who wants some of what is found alone.
    picks: Option<Arc<dyn Picks>>,
    /// Symbolic links are left out.
    no_links: bool,
    object_size: u32,
    next_id: u64,
    totals: Totals,
    out: Out,
    /// A server is gone, and that was told.
    gone: bool,
}

/// Starts to walk.
///
/// # Errors
/// The system gives no thread.
pub(super) fn start(
    volume: Arc<Volume>,
    (found, picks, no_links): (Vec<Found>, Option<Arc<dyn Picks>>, bool),
    names: Arc<Names>,
    object_size: u32,
) -> io::Result<Walk> {
    let (sender, items) = bounded(BATCHES_MAX);
    let cancelled = Arc::new(AtomicBool::new(false));
    let out = Out { sender, batch: Vec::new(), bytes: 0, cancelled: cancelled.clone() };
    let totals = Totals::default();
    let mut walker =
        Walker { volume, names, picks, no_links, object_size, next_id: 1, totals, out, gone: false };
    // A panic closes the channel without an end, which is told as a walk that broke.
    thread::Builder::new().name("haul-walk".into()).spawn(move || {
        for found in found {
            walker.root(found);
        }
        if !walker.out.cancelled() {
            walker.out.push(WalkItem::End(walker.totals));
        }
        walker.out.flush();
    })?;
    Ok(Walk::over(items, cancelled))
}

impl Walker {
    fn root(&mut self, found: Found) {
        let Found { entry, name, parent, path } = found;
        let Some(name) = name else {
            let above = self.names.add_base(path);
            return self.descend(DirId::ROOT, above, entry.id);
        };
        let last = last_part(&path);
        let above = match is_dots(last) {
            true => path.clone(),
            false => path[..path.len() - last.len()].to_vec(),
        };
        let above = self.names.add_base(above);
        let look = self.looks_at(&entry);
        let known = match self.lengths(std::iter::once(&entry)) {
            Ok(known) => known.into_iter().next().flatten(),
            Err(why) => return self.unread(above, &why),
        };
        let look = look.map(|look| Looked::Asked(look, known));
        let id = entry.id;
        let at = At { parent, name };
        if let Some(dir) = self.announce(DirId::ROOT, above, (at, entry), look) {
            self.descend(dir, Above::Dir(dir), id);
        }
    }

    /// Begins to look how long a file is, and of which version.
    fn looks_at(&self, entry: &Entry) -> Option<Waiting<Look>> {
        entry.file().map(|file| self.volume.client.look(file))
    }

    /// How long each of these entries is, if the catalog knows of it that it is whole.
    fn lengths<'a>(&self, entries: impl Iterator<Item = &'a Entry>) -> Result<Vec<Option<u64>>, Refusal> {
        let entries: Vec<&Entry> = entries.collect();
        let files = entries.iter().filter(|entry| entry.file().is_some()).map(|entry| entry.id);
        let files: Vec<_> = files.collect();
        if files.is_empty() {
            return Ok(vec![None; entries.len()]);
        }
        let mut known = self.volume.catalog.known(files)?.into_iter();
        let length = |entry: &&Entry| entry.file().and_then(|_| known.next()??.whole);
        Ok(entries.iter().map(length).collect())
    }

    /// What a file is by the look at it.
    fn settle(&self, entry: &mut Entry, look: Waiting<Look>, known: Option<u64>) -> Result<State, Unknown> {
        let file = FileNo(entry.id.0);
        let needs = self.volume.needed_to_look(file);
        let looked = self.volume.wait_for_at(&needs, look, || self.volume.client.look(file));
        let state = self.volume.state(entry, looked)?;
        self.volume.has_its_length(&state, known)?;
        Ok(state)
    }

    fn is_over(&self) -> bool {
        self.gone || self.volume.is_gone() || self.out.cancelled()
    }

    /// Walks a directory and everything below it.
    fn descend(&mut self, id: DirId, above: Above, entry: EntryNo) {
        let dirs = self.list(id, above, entry);
        let mut way = vec![Level { id, above, entry, dirs: dirs.into_iter() }];
        while let Some(level) = way.last_mut() {
            if self.is_over() {
                return;
            }
            let (parent, above, dir) = (level.id, level.above, level.entry);
            let Some((name, entry)) = level.dirs.next() else {
                way.pop();
                if parent != DirId::ROOT {
                    self.out.push(WalkItem::DirEnd(parent));
                }
                continue;
            };
            if way.len() >= DEPTH_MAX {
                let why = format!("deeper than {DEPTH_MAX} directories: copy it as a source of its own");
                let failure = self.failed(FailureKind::Walk, "walk", (above, Some(&name)), 0, &why);
                self.fail((above, Some(&name)), failure, CountsAs::Subtree);
                continue;
            }
            let (at, below) = (At { parent: dir, name }, entry.id);
            if let Some(id) = self.announce(parent, above, (at, entry), None) {
                let above = Above::Dir(id);
                let dirs = self.list(id, above, below);
                way.push(Level { id, above, entry: below, dirs: dirs.into_iter() });
            }
            if self.out.sender.is_empty() {
                self.out.flush();
            }
        }
    }

    /// Announces what is in a directory but for the directories in it, which are returned.
    fn list(&mut self, id: DirId, above: Above, dir: EntryNo) -> Vec<(Name, Entry)> {
        let (mut dirs, mut after) = (Vec::new(), None);
        loop {
            if self.is_over() {
                return dirs;
            }
            let (page, more) = match self.volume.catalog.read_dir(dir, after) {
                Ok(page) => page,
                Err(why) => {
                    self.unread(above, &why);
                    return dirs;
                }
            };
            after = page.last().map(|(name, _)| name.clone());
            let page = match self.keep_users(above, dir, page) {
                Ok(page) => page,
                Err(why) => {
                    self.unread(above, &why);
                    return dirs;
                }
            };
            let looks: Vec<_> = page.iter().map(|(_, entry)| self.looks_at(entry)).collect();
            // While these come.
            let known = match self.lengths(page.iter().map(|(_, entry)| entry)) {
                Ok(known) => known,
                Err(why) => {
                    self.unread(above, &why);
                    return dirs;
                }
            };
            let looks = looks.into_iter().zip(known);
            let looks = looks.map(|(look, known)| look.map(|look| Looked::Asked(look, known)));
            let mut page: Vec<_> = page.into_iter().zip(looks).collect();
            if let Some(picks) = self.picks.clone() {
                page = match self.picked(&*picks, above, page) {
                    Ok(page) => page,
                    Err(why) => {
                        self.unread(above, &why);
                        return dirs;
                    }
                };
            }
            for ((name, entry), look) in page {
                if self.is_over() {
                    return dirs;
                }
                match is_dir(&entry) {
                    true => dirs.push((name, entry)),
                    false => {
                        let _ = self.announce(id, above, (At { parent: dir, name }, entry), look);
                    }
                }
            }
            // A page that is empty has nothing behind it.
            if !more || after.is_none() {
                return dirs;
            }
        }
    }

    /// Leaves out what is not wanted: all looks are over before anybody says what is.
    fn picked(&mut self, picks: &dyn Picks, above: Above, page: Vec<Listed>) -> Result<Vec<Listed>, Refusal> {
        let (mut kept, mut candidates) = (Vec::with_capacity(page.len()), Vec::new());
        for ((name, mut entry), look) in page {
            let (mut version, mut len) = (None, 0);
            let look = match look {
                Some(Looked::Asked(look, known)) => match self.settle(&mut entry, look, known) {
                    Ok(state) => {
                        (version, len) = (state.version, state.len);
                        Some(Looked::Known(state))
                    }
                    Err(why) => {
                        self.is_unknown((above, &name), &why);
                        continue;
                    }
                },
                look => look,
            };
            if !is_dir(&entry) {
                let path = self.names.path_in(above, Some(&name), false);
                let target = match &entry.kind {
                    Kind::Link(target) => Some(target.clone()),
                    Kind::File | Kind::Directory => None,
                };
                let mtime = entry.meta.mtime;
                candidates.push(Candidate { path, entry: entry.id, version, len, mtime, target });
            }
            kept.push(((name, entry), look));
        }
        let mut wanted = picks.pick(&candidates)?.into_iter();
        kept.retain(|((name, entry), _)| {
            if is_dir(entry) {
                return true;
            }
            match wanted.next().unwrap_or(Wanted::Yes) {
                Wanted::Yes => true,
                Wanted::No => false,
                Wanted::Refused(why) => {
                    let failure = self.failed(FailureKind::Create, "bring", (above, Some(name)), 0, &why);
                    self.fail((above, Some(name)), failure, CountsAs::Entry);
                    false
                }
            }
        });
        Ok(kept)
    }

    /// Leaves out what runs of haul have in a directory of which they are not done, and names it.
    fn keep_users(
        &mut self,
        above: Above,
        dir: EntryNo,
        page: Vec<(Name, Entry)>,
    ) -> Result<Vec<(Name, Entry)>, Refusal> {
        let mut ours = are_ours(&self.volume.catalog, dir, page.iter().map(|(name, _)| name))?.into_iter();
        let mut users = Vec::with_capacity(page.len());
        for (name, entry) in page {
            if ours.next() != Some(true) || haul_mutant::removed("volume-walks-leave-out-ours") {
                users.push((name, entry));
                continue;
            }
            let path = self.names.path_in(above, Some(&name), false);
            self.out.push(WalkItem::NotKept(NotKept { path, what: NotKeptWhat::Debris }));
        }
        Ok(users)
    }

    /// A directory could not be read, or not to its end.
    fn unread(&mut self, above: Above, why: &Refusal) {
        let (kind, counts_as) = match is_missing(why) {
            true => (FailureKind::Vanished, CountsAs::Vanished),
            false => (FailureKind::Walk, CountsAs::Subtree),
        };
        let path = self.names.path_in(above, None, true);
        let failure = self.volume.refused(kind, "read directory", &path, why);
        self.fail((above, None), failure, counts_as);
        self.tell_gone();
    }

    /// Nothing more is walked of a volume of which a server is gone.
    fn tell_gone(&mut self) {
        if let Some(failure) = self.volume.gone().filter(|_| !self.gone) {
            self.gone = true;
            self.out.push(WalkItem::Gone(failure));
        }
    }

    /// Announces an entry; of a directory its number comes back.
    fn announce(
        &mut self,
        parent: DirId,
        above: Above,
        (at, mut entry): (At, Entry),
        look: Option<Looked>,
    ) -> Option<DirId> {
        let mut file = None;
        let kind = match entry.kind.clone() {
            Kind::Directory => {
                self.totals.dirs += 1;
                EntryKind::Dir { version: Version::NONE }
            }
            Kind::Link(_) if self.no_links => {
                let path = self.names.path_in(above, Some(&at.name), false);
                self.out.push(WalkItem::NotKept(NotKept { path, what: NotKeptWhat::Link }));
                return None;
            }
            Kind::Link(target) => {
                self.totals.symlinks += 1;
                EntryKind::Symlink { target }
            }
            Kind::File => {
                let is = match look? {
                    Looked::Known(state) => Ok(state),
                    Looked::Asked(look, known) => self.settle(&mut entry, look, known),
                };
                let is = match is {
                    Ok(is) => is,
                    Err(why) => {
                        self.is_unknown((above, &at.name), &why);
                        return None;
                    }
                };
                file = Some(is);
                self.totals.files += 1;
                let fingerprint = self.names.fingerprint(&is);
                self.totals.bytes = self.totals.bytes.saturating_add(fingerprint.size);
                let object_size = self.object_size;
                EntryKind::File { fingerprint, object_size, sparse: false, striped: false }
            }
        };
        let id = FileId(self.next_id);
        self.next_id += 1;
        let is_dir = matches!(kind, EntryKind::Dir { .. });
        let range = self.names.part().filter(|_| file.is_some());
        let name = at.name.clone();
        self.names.add(id, above, at, file);
        self.out.push(WalkItem::Entry(Announced {
            id,
            generation: Generation(0),
            parent,
            name,
            meta: entry.meta,
            kind,
            extras: Extras { range, ..Extras::default() },
        }));
        is_dir.then(|| id.as_dir())
    }

    fn is_unknown(&mut self, (above, name): (Above, &Name), why: &Unknown) {
        let (kind, counts_as) = match why.is_gone() {
            true => (FailureKind::Vanished, CountsAs::Vanished),
            false => (FailureKind::Walk, CountsAs::Entry),
        };
        let path = self.names.path_in(above, Some(name), true);
        let failure = match why {
            Unknown::Servers(why) => self.volume.broke(kind, "look at", &path, why),
            Unknown::Catalog(why) => self.volume.refused(kind, "look at", &path, why),
        };
        self.fail((above, Some(name)), failure, counts_as);
        self.tell_gone();
    }

    fn failed(
        &self,
        kind: FailureKind,
        doing: &str,
        (above, name): (Above, Option<&Name>),
        errno: i32,
        why: &str,
    ) -> Failure {
        self.volume.failed(kind, doing, &self.names.path_in(above, name, true), errno, why)
    }

    fn fail(&mut self, (above, name): (Above, Option<&Name>), failure: Failure, counts_as: CountsAs) {
        let path = self.names.path_in(above, name, false);
        self.out.push(WalkItem::Failed { path, failure, counts_as });
    }
}
