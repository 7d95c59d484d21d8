//! Directories that are open: announced, and not yet finished.
//!
//! Invariant: a directory is finished (mode and mtime set) once, after everything in it ended.

use std::collections::{HashMap, VecDeque};

use crate::entry::{Meta, Name};
use crate::ids::DirId;
use crate::journal::PathKey;
use crate::wire::Failure;

struct Dir {
    parent: DirId,
    name: Option<Name>,
    path: PathKey,
    meta: Meta,
    depth: usize,
    /// Open entries in it, and one while it is being made.
    holds: u32,
    /// No more entries will be announced in it.
    ended: bool,
    /// Its name is on media in its parent.
    linked: bool,
    failure: Option<Failure>,
}

/// A directory that was removed from the table.
pub(crate) struct Gone {
    pub(crate) parent: DirId,
    pub(crate) name: Name,
    pub(crate) failure: Option<Failure>,
}

pub(crate) struct Dirs {
    dirs: HashMap<DirId, Dir>,
    finished: VecDeque<DirId>,
}

impl Dirs {
    /// The destination root, open.
    pub(crate) fn new() -> Dirs {
        let root = Dir {
            parent: DirId::ROOT,
            name: None,
            path: PathKey::ROOT,
            meta: Meta::default(),
            depth: 0,
            holds: 0,
            ended: false,
            linked: true,
            failure: None,
        };
        Dirs { dirs: HashMap::from([(DirId::ROOT, root)]), finished: VecDeque::new() }
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

    /// A directory that is to be made: [`Dirs::made`] must follow. It is not finished before, or its making could begin
    /// when it is forgotten already.
    pub(crate) fn add(&mut self, id: DirId, parent: DirId, name: Name, path: PathKey, meta: Meta) {
        let depth = self.depth(parent) + 1;
        self.hold(parent);
        let (holds, ended, linked, failure) = (1, false, false, None);
        let dir = Dir { parent, name: Some(name), path, meta, depth, holds, ended, linked, failure };
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

    /// A finished directory leaves the table.
    pub(crate) fn remove(&mut self, dir: DirId) -> Option<Gone> {
        let entry = self.dirs.remove(&dir)?;
        self.release(entry.parent);
        Some(Gone { parent: entry.parent, name: entry.name?, failure: entry.failure })
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
