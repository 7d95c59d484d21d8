//! Directories that are open: announced, and not yet finished.
//!
//! In: entries that begin and end in them. Out: those whose metadata can be set; what the journal may say of
//! one that has them.
//! Invariants: a directory is finished (mode and mtime set) once, after everything in it ended; the journal
//! calls it finished only if all in it, at any depth, ended well, and no longer when something in it is made
//! anew.

use std::collections::{HashMap, VecDeque};

use crate::entry::{Meta, Name, Version};
use crate::id_map::IdMap;
use crate::ids::DirId;
use crate::journal::{DirMark, PathKey};
use crate::transfer::Ended;
use crate::wire::Failure;

struct Dir {
    parent: DirId,
    name: Option<Name>,
    path: PathKey,
    meta: Meta,
    /// What the source's storage says of its version.
    version: Version,
    depth: usize,
    /// Open entries in it, and one while it is being made.
    holds: u32,
    /// No more entries will be announced in it.
    ended: bool,
    /// Its name is on media in its parent.
    linked: bool,
    failure: Option<Failure>,
    /// Something in it, at any depth, did not end well.
    spoiled: bool,
    /// What the source had failed to announce anywhere before it came.
    troubles: u64,
    /// Something was made anew in it, so that no earlier run finished it, nor what is above it.
    reopened: bool,
}

/// A directory that was removed from the table.
pub(crate) struct Gone {
    pub(crate) parent: DirId,
    pub(crate) name: Name,
    pub(crate) failure: Option<Failure>,
    pub(crate) path: PathKey,
    /// What the journal may say of it, if all that is in it ended well.
    pub(crate) mark: Option<DirMark>,
}

pub(crate) struct Dirs {
    dirs: IdMap<DirId, Dir>,
    finished: VecDeque<DirId>,
    /// What the source failed to announce, anywhere.
    troubles: u64,
    /// What the journal says that an earlier run finished.
    earlier: HashMap<PathKey, DirMark>,
}

impl Dirs {
    /// The destination root, open. `earlier`: directories that an earlier run finished.
    pub(crate) fn new(earlier: HashMap<PathKey, DirMark>) -> Dirs {
        let root = Dir {
            parent: DirId::ROOT,
            name: None,
            path: PathKey::ROOT,
            meta: Meta::default(),
            version: Version::NONE,
            depth: 0,
            holds: 0,
            ended: false,
            linked: true,
            failure: None,
            spoiled: false,
            troubles: 0,
            reopened: false,
        };
        let dirs = IdMap::from_iter([(DirId::ROOT, root)]);
        Dirs { dirs, finished: VecDeque::new(), troubles: 0, earlier }
    }

    /// Open directories without the root.
    pub(crate) fn len(&self) -> usize {
        self.dirs.len() - 1
    }

    /// Only the root is left, and nothing is open in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.dirs.len() == 1 && self.dirs[&DirId::ROOT].holds == 0
    }

    /// The path key of a directory that is not finished.
    pub(crate) fn path(&self, dir: DirId) -> Option<PathKey> {
        // A withdrawn file comes again after its directory ended; the file holds the directory open.
        self.dirs.get(&dir).map(|d| d.path)
    }

    /// How long the path is of an entry of this name in `dir`, which is open.
    pub(crate) fn path_len(&self, dir: DirId, name: &Name) -> usize {
        let (mut len, mut at) = (name.as_bytes().len(), dir);
        while let Some(Dir { parent, name: Some(name), .. }) = self.dirs.get(&at) {
            len += 1 + name.as_bytes().len();
            at = *parent;
        }
        len
    }

    /// No more entries may come in `dir`.
    pub(crate) fn is_ended(&self, dir: DirId) -> bool {
        self.dirs.get(&dir).is_none_or(|d| d.ended)
    }

    /// No more entries may come anywhere.
    pub(crate) fn all_ended(&self) -> bool {
        self.dirs.values().all(|d| d.ended)
    }

    pub(crate) fn depth(&self, dir: DirId) -> usize {
        self.dirs.get(&dir).map_or(0, |d| d.depth)
    }

    /// A directory that is to be made: [`Dirs::made`] must follow. It is not finished before, or its making
    /// could begin when it is forgotten already.
    pub(crate) fn add(
        &mut self,
        id: DirId,
        parent: DirId,
        name: Name,
        path: PathKey,
        about: (Meta, Version),
    ) {
        let (meta, version) = about;
        let depth = self.depth(parent) + 1;
        self.hold(parent);
        let dir = Dir {
            parent,
            name: Some(name),
            path,
            meta,
            version,
            depth,
            holds: 1,
            ended: false,
            linked: false,
            failure: None,
            spoiled: false,
            troubles: self.troubles,
            reopened: false,
        };
        self.dirs.insert(id, dir);
    }

    /// It was made, or could not be.
    pub(crate) fn made(&mut self, dir: DirId, failure: Option<Failure>) {
        if let Some(failure) = failure {
            self.fail(dir, failure);
        }
        self.release(dir);
    }

    /// Something is open in `dir`.
    pub(crate) fn hold(&mut self, dir: DirId) {
        self.dirs.get_mut(&dir).expect("its path was asked for").holds += 1;
    }

    /// As [`Dirs::release`], of one that may be over.
    pub(crate) fn release_held(&mut self, dir: DirId) {
        if self.dirs.contains_key(&dir) {
            self.release(dir);
        }
    }

    /// Something in `dir` ended.
    pub(crate) fn release(&mut self, dir: DirId) {
        let entry = self.dirs.get_mut(&dir).expect("it was held");
        entry.holds -= 1;
        self.check(dir);
    }

    /// No more entries in `dir`; false if it is not open or ended before.
    pub(crate) fn end(&mut self, dir: DirId) -> bool {
        match self.dirs.get_mut(&dir) {
            Some(entry) if !entry.ended => {
                entry.ended = true;
                self.check(dir);
                true
            }
            _ => false,
        }
    }

    fn check(&mut self, dir: DirId) {
        let entry = &self.dirs[&dir];
        if dir != DirId::ROOT && entry.ended && entry.holds == 0 {
            self.finished.push_back(dir);
        }
    }

    /// Up to `count` directories whose metadata can be set now.
    pub(crate) fn take_finished(&mut self, count: usize) -> Vec<(DirId, Meta)> {
        let count = count.min(self.finished.len());
        self.finished.drain(..count).map(|dir| (dir, self.dirs[&dir].meta)).collect()
    }

    /// Who was to finish it is gone: it can be taken once more.
    pub(crate) fn again(&mut self, dir: DirId) {
        if self.dirs.contains_key(&dir) {
            self.finished.push_front(dir);
        }
    }

    /// The directory could not be made.
    pub(crate) fn fail(&mut self, dir: DirId, failure: Failure) {
        if let Some(entry) = self.dirs.get_mut(&dir) {
            entry.failure = Some(failure);
        }
    }

    /// An entry in `dir` ended so, and is released apart from that.
    pub(crate) fn handle_end(&mut self, dir: DirId, end: &Ended) {
        // What was skipped another run may want.
        if matches!(end, Ended::Failed(_) | Ended::Skipped) {
            self.spoil(dir);
        }
    }

    /// Something in `dir` did not end well, or not as it would in a later run: no journal may call it
    /// finished.
    fn spoil(&mut self, dir: DirId) {
        if let Some(entry) = self.dirs.get_mut(&dir) {
            entry.spoiled = true;
        }
    }

    /// The source failed to announce something, perhaps in a directory that is open.
    pub(crate) fn trouble(&mut self) {
        self.troubles += 1;
    }

    /// A finished directory leaves the table. `well`: it got its metadata.
    pub(crate) fn remove(&mut self, dir: DirId, well: bool) -> Option<Gone> {
        let entry = self.dirs.remove(&dir)?;
        let Dir { parent, path, version, failure, .. } = entry;
        let well = well && failure.is_none() && !entry.spoiled && entry.troubles == self.troubles
            || haul_mutant::removed("only-what-ended-well-is-finished");
        let above = self.dirs.get(&parent).map(|above| above.path);
        let mark = above.filter(|_| well).map(|parent| DirMark { parent, mtime: entry.meta.mtime, version });
        if mark.is_none() {
            self.spoil(parent);
        }
        self.release(parent);
        Some(Gone { parent, name: entry.name?, failure, path, mark })
    }

    /// Something is made anew in `dir`. Returns the directories that an earlier run finished and that are not
    /// finished any more with that: it, and those above it.
    pub(super) fn reopen(&mut self, dir: DirId) -> Vec<PathKey> {
        let mut gone = Vec::new();
        if self.earlier.is_empty() {
            return gone;
        }
        let mut at = dir;
        while let Some(entry) = self.dirs.get_mut(&at).filter(|entry| !entry.reopened) {
            entry.reopened = true;
            gone.extend(self.earlier.remove(&entry.path).map(|_| entry.path));
            at = entry.parent;
        }
        gone
    }

    /// `dir` and those above it whose names are not on media yet.
    pub(crate) fn unlinked(&self, dir: DirId) -> Vec<DirId> {
        let mut chain = vec![dir];
        let mut at = dir;
        while let Some(entry) = self.dirs.get(&at).filter(|d| !d.linked) {
            at = entry.parent;
            chain.push(at);
        }
        chain
    }

    /// Directories in `synced` were synced: the names of their children are on media.
    pub(crate) fn mark_linked(&mut self, dir: DirId) {
        let mut at = dir;
        while let Some(entry) = self.dirs.get_mut(&at).filter(|d| !d.linked) {
            entry.linked = true;
            at = entry.parent;
        }
    }
}
