//! Directories of a destination by id, made where they are not there.
//!
//! In: directories as they are announced. Out: their numbers in the catalog.
//! Invariants: nothing is made through a symbolic link below the destination; each directory is looked for
//! once, and what came of that stays.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use haul_core::change::{Rights, Stood};
use haul_core::entry::{Meta, Name};
use haul_core::ids::DirId;
use haul_core::volume::catalog::{Entry, EntryNo, Kind, Place as At};
use haul_core::wire::{Failure, FailureKind};
use rustix::io::Errno;

use super::Volume;

const A_LINK: &str = "a symbolic link stands where a directory should go, and no link below the destination is followed; \
                      remove the link, or copy to where it leads";
const NO_DIRECTORY: &str = "something that is no directory stands there; nothing was removed";

/// What a directory has whose metadata come later: nobody else need look into it.
pub(super) const UNFINISHED: u32 = 0o700;

#[derive(Clone)]
enum State {
    Unknown,
    /// `stood`: as it was found; `None`: this run made it.
    There {
        id: EntryNo,
        stood: Option<Stood>,
    },
    /// Nothing is there, and nothing is to be made.
    Missing,
    Failed(Failure),
}

struct Dir {
    parent: DirId,
    name: Name,
    state: Mutex<State>,
}

/// The directory that a copy goes into.
#[derive(Clone)]
pub(super) struct Root {
    pub(super) id: EntryNo,
    /// As typed, without the volume.
    pub(super) path: Vec<u8>,
    /// This run made it: nothing stands in it.
    pub(super) made: bool,
}

/// The directories of a copy.
pub(super) struct Tree {
    volume: Arc<Volume>,
    root: Root,
    /// Of what is made.
    meta: Meta,
    /// What is missing is made.
    makes: bool,
    dirs: Mutex<HashMap<DirId, Arc<Dir>>>,
}

impl Tree {
    /// `meta`: of directories that are made, until they are finished; `None`: none is.
    pub(super) fn new(volume: Arc<Volume>, root: Root, meta: Option<Meta>) -> Tree {
        let makes = meta.is_some();
        Tree { volume, root, meta: meta.unwrap_or_default(), makes, dirs: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<DirId, Arc<Dir>>> {
        self.dirs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn register(&self, id: DirId, parent: DirId, name: Name) {
        let state = Mutex::new(State::Unknown);
        self.lock().insert(id, Arc::new(Dir { parent, name, state }));
    }

    pub(super) fn forget(&self, id: DirId) {
        self.lock().remove(&id);
    }

    pub(super) fn root(&self) -> &Root {
        &self.root
    }

    /// The path of a directory, or of a name in it, in the volume.
    pub(super) fn path(&self, dir: DirId, name: Option<&Name>) -> Vec<u8> {
        let dirs = self.lock();
        let (mut names, mut at) = (Vec::new(), dir);
        while let Some(dir) = dirs.get(&at) {
            names.push(dir.name.as_bytes());
            at = dir.parent;
        }
        names.reverse();
        names.extend(name.map(Name::as_bytes));
        let mut path = self.root.path.clone();
        for name in names {
            if !path.ends_with(b"/") {
                path.push(b'/');
            }
            path.extend_from_slice(name);
        }
        path
    }

    /// The first name on the way to a name in a directory, below the root.
    pub(super) fn first(&self, dir: DirId, name: &Name) -> Name {
        let dirs = self.lock();
        let (mut first, mut at) = (name, dir);
        while let Some(dir) = dirs.get(&at) {
            (first, at) = (&dir.name, dir.parent);
        }
        first.clone()
    }

    /// The directory in the catalog, made if it is not there.
    ///
    /// # Errors
    /// Something else stands there, or at one above it; the catalog does not do it.
    pub(super) fn dir(&self, id: DirId) -> Result<EntryNo, Failure> {
        let path = || self.path(id, None);
        let missing =
            || self.volume.failed(FailureKind::Create, "open directory", &path(), 2, "it is not there");
        self.find(id)?.ok_or_else(missing)
    }

    /// The same; `None`: it is not there, and none is made.
    ///
    /// # Errors
    /// As of [`Tree::dir`].
    pub(super) fn find(&self, id: DirId) -> Result<Option<EntryNo>, Failure> {
        if id == DirId::ROOT {
            return Ok(Some(self.root.id));
        }
        let Some(dir) = self.lock().get(&id).cloned() else {
            let why = "internal error: the directory was not announced";
            return Err(self.volume.failed(FailureKind::Create, "open directory", &self.root.path, 0, why));
        };
        // Whoever comes second waits here; ways to the root meet in one order.
        let mut state = dir.state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::Unknown) {
            *state = match self.look(id, &dir) {
                Ok(state) => state,
                // It may be there for the next one.
                Err(failure) if failure.kind == FailureKind::Network => return Err(failure),
                Err(failure) => State::Failed(failure),
            };
        }
        match &*state {
            State::There { id, .. } => Ok(Some(*id)),
            State::Missing | State::Unknown => Ok(None),
            State::Failed(failure) => Err(failure.clone()),
        }
    }

    fn look(&self, id: DirId, dir: &Dir) -> Result<State, Failure> {
        let Some(parent) = self.find(dir.parent)? else { return Ok(State::Missing) };
        let at = At { parent, name: dir.name.clone() };
        let refused =
            |doing, why| self.volume.refused(FailureKind::Create, doing, &self.path(id, None), &why);
        let is_new = self.was_made(dir.parent);
        let found = match is_new {
            // Nothing can stand in a directory that this run made, but by another run.
            true => None,
            false => self.volume.at(&at).map_err(|why| refused("look up", why))?,
        };
        if let Some(entry) = found {
            return self.found(id, &entry);
        }
        if !self.makes {
            return Ok(State::Missing);
        }
        match self.volume.catalog.mkdir(at.clone(), self.meta) {
            Ok(entry) => Ok(State::There { id: entry.id, stood: None }),
            Err(why) if why.errno == Errno::EXIST.raw_os_error() => {
                match self.volume.at(&at).map_err(|why| refused("look up", why))? {
                    Some(entry) => self.found(id, &entry),
                    None => Err(refused("create directory", why)),
                }
            }
            Err(why) => Err(refused("create directory", why)),
        }
    }

    fn found(&self, id: DirId, entry: &Entry) -> Result<State, Failure> {
        let refused = |why| {
            let errno = Errno::NOTDIR.raw_os_error();
            Err(self.volume.failed(FailureKind::Create, "create directory", &self.path(id, None), errno, why))
        };
        match entry.kind {
            Kind::Directory => Ok(State::There { id: entry.id, stood: Some(stood_of(&entry.meta)) }),
            Kind::Link(_) => refused(A_LINK),
            Kind::File => refused(NO_DIRECTORY),
        }
    }

    /// As it was before anything was made in it; `None`: this run made it, or it is not there.
    pub(super) fn stood(&self, id: DirId) -> Option<Stood> {
        let dir = self.lock().get(&id).cloned()?;
        let state = dir.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &*state {
            State::There { stood, .. } => *stood,
            State::Unknown | State::Missing | State::Failed(_) => None,
        }
    }

    /// Nothing stood in it before this run.
    pub(super) fn was_made(&self, id: DirId) -> bool {
        if id == DirId::ROOT {
            return self.root.made;
        }
        let Some(dir) = self.lock().get(&id).cloned() else { return false };
        let state = dir.state.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(&*state, State::There { stood: None, .. })
    }
}

/// Metadata of what stands in a volume: it keeps all of them exactly.
pub(super) fn stood_of(meta: &Meta) -> Stood {
    Stood { rights: rights_of(meta), mtime: meta.mtime, grain: 1, untold: false }
}

pub(super) fn rights_of(meta: &Meta) -> Rights {
    Rights { mode: meta.mode & 0o7777, uid: meta.uid, gid: meta.gid, ..Rights::default() }
}
