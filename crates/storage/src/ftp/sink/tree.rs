//! What directories are called at the server, and what is known of them.
//!
//! In: directories as they are announced, what was made and found. Out: paths.
//! Invariants: a path is the root's and legal names below it, none of which holds a control byte, for that
//! would end the command.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use haul_core::entry::Name;
use haul_core::ids::DirId;
use haul_core::wire::{Failure, FailureKind};
use haul_ftp::{Facts, Server};

use crate::ftp::{DROPS, folded, said};

/// What is known of a directory.
#[derive(Clone, Debug, Default)]
pub(super) enum Known {
    #[default]
    Nothing,
    /// This run made it: nothing stood in it.
    Made,
    /// It was there.
    Stood(Box<Facts>),
}

struct Dir {
    parent: DirId,
    name: Name,
    known: Known,
}

/// The directories of a copy.
pub(super) struct Tree {
    root: Vec<u8>,
    root_made: bool,
    dirs: Mutex<HashMap<DirId, Dir>>,
    /// Who had a name first, of those that are one where large and small letters are.
    folded: Mutex<HashMap<(DirId, Vec<u8>), DirId>>,
}

impl Tree {
    pub(super) fn new(root: Vec<u8>, root_made: bool) -> Tree {
        Tree { root, root_made, dirs: Mutex::default(), folded: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<DirId, Dir>> {
        self.dirs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn register(&self, id: DirId, parent: DirId, name: Name) {
        self.lock().insert(id, Dir { parent, name, known: Known::Nothing });
    }

    pub(super) fn forget(&self, id: DirId) {
        self.lock().remove(&id);
    }

    /// The path of a directory.
    pub(super) fn dir(&self, id: DirId) -> Vec<u8> {
        let dirs = self.lock();
        let (mut names, mut at) = (Vec::new(), id);
        while let Some(dir) = dirs.get(&at) {
            names.push(dir.name.as_bytes());
            at = dir.parent;
        }
        let mut path = self.root.clone();
        for name in names.into_iter().rev() {
            join(&mut path, name);
        }
        path
    }

    /// The path of what has this name in a directory.
    pub(super) fn path(&self, parent: DirId, name: &Name) -> Vec<u8> {
        let mut path = self.dir(parent);
        join(&mut path, name.as_bytes());
        path
    }

    /// The directory and those above it of which nothing is known yet, outermost first.
    pub(super) fn unknown(&self, id: DirId) -> Vec<DirId> {
        let dirs = self.lock();
        let (mut all, mut at) = (Vec::new(), id);
        while let Some(dir) = dirs.get(&at) {
            if matches!(dir.known, Known::Nothing) {
                all.push(at);
            }
            at = dir.parent;
        }
        all.reverse();
        all
    }

    pub(super) fn parent(&self, id: DirId) -> DirId {
        self.lock().get(&id).map_or(DirId::ROOT, |dir| dir.parent)
    }

    /// Another directory of this copy has the same name but for large and small letters.
    pub(super) fn is_folded(&self, id: DirId) -> bool {
        let dirs = self.lock();
        let Some(dir) = dirs.get(&id) else { return false };
        let name = (dir.parent, folded(dir.name.as_bytes()));
        *self.folded.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_insert(id) != id
    }

    pub(super) fn name(&self, id: DirId) -> Option<Name> {
        self.lock().get(&id).map(|dir| dir.name.clone())
    }

    /// What is found out of a directory first is kept.
    pub(super) fn learn(&self, id: DirId, known: Known) {
        if let Some(dir) = self.lock().get_mut(&id).filter(|dir| !matches!(dir.known, Known::Made)) {
            dir.known = known;
        }
    }

    pub(super) fn known(&self, id: DirId) -> Known {
        match id == DirId::ROOT {
            true if self.root_made => Known::Made,
            true => Known::Nothing,
            false => self.lock().get(&id).map(|dir| dir.known.clone()).unwrap_or_default(),
        }
    }

    /// Nothing stood in it before this run.
    pub(super) fn was_made(&self, id: DirId) -> bool {
        matches!(self.known(id), Known::Made)
    }
}

fn join(path: &mut Vec<u8>, name: &[u8]) {
    if !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

/// A name that can be said to a server. `drops`: to one that drops bytes of names.
pub(super) fn check(server: &Server, path: &[u8], (name, drops): (&Name, bool)) -> Result<(), Failure> {
    if drops && !path.is_ascii() {
        const EILSEQ: i32 = 84;
        return Err(Failure { errno: EILSEQ, ..said(server, FailureKind::Create, path, DROPS) });
    }
    let is_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let is_lost = |byte: &&u8| byte.is_ascii_control() && !haul_mutant::removed("ftp-names-can-come-back");
    let why = match name.as_bytes().iter().find(is_lost) {
        _ if name.as_bytes().iter().any(is_end) => {
            "its name holds a line's end, which no FTP command can carry; give it another name first"
                .to_owned()
        }
        // It would be taken, by most servers; and refused where they list it.
        Some(byte) => format!(
            "its name holds the control byte 0x{byte:02x}: from a server haul takes no such name back, nor do others \
             (curl); give it another name first"
        ),
        None => return Ok(()),
    };
    // The same name is refused again.
    const EINVAL: i32 = 22;
    Err(Failure { errno: EINVAL, ..said(server, FailureKind::Create, path, &why) })
}
