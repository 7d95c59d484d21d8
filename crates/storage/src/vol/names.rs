//! What is known of the entries that were walked.
//!
//! In: entries as the walk finds them. Out: their paths in the volume and at the destination, what they were
//! when they were announced.
//! Invariant: an entry is known from before it is announced until the session forgets it.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use haul_core::entry::{FileRange, Fingerprint, Name, Timestamp, VERSION_LEN_MAX, Version};
use haul_core::ids::{DirId, FileId, Generation, TargetId};
use haul_core::layout::TargetName;
use haul_core::transfer::source::Lies;
use haul_core::volume::catalog::{EntryNo, Place as At};
use haul_core::volume::{Candidate, ContentVersion};

use crate::store::{Picks, SourceNames, Stamp};
use crate::targets::Targets;

/// Number of the entry, and version of its bytes.
const VERSION_LEN: usize = 20;
const _: () = assert!(VERSION_LEN <= VERSION_LEN_MAX);

/// Where an entry lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Above {
    /// Directly in one of the directories that the walk began with.
    Base(usize),
    Dir(DirId),
}

/// A file as it was announced, or looked at again, last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) id: EntryNo,
    /// Of all of it, whatever part comes.
    pub(super) len: u64,
    pub(super) mtime: Timestamp,
    /// Of its bytes; `None`: somebody wrote all the time, and there was none.
    pub(super) version: Option<ContentVersion>,
}

/// A file as who reads it needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) is: State,
    /// Where the bytes begin that come, and how many they are.
    pub(super) base: u64,
    pub(super) size: u64,
}

struct Entry {
    above: Above,
    /// The directory that it is in, as the catalog has it.
    parent: EntryNo,
    name: Name,
    generation: Generation,
    /// `None`: it is no file.
    file: Option<State>,
}

#[derive(Default)]
struct Inner {
    /// Paths of the directories that the walk began with.
    bases: Vec<Vec<u8>>,
    entries: HashMap<FileId, Entry>,
}

/// The entries of a walk.
pub(super) struct Names {
    inner: Mutex<Inner>,
    targets: Targets,
    target: TargetId,
    /// What of the only file comes, if not all.
    part: Option<FileRange>,
    /// In place of a version that nobody knows: another one in each session.
    salt: u64,
    /// Who has to know what is read.
    picks: Option<Arc<dyn Picks>>,
}

impl Names {
    pub(super) fn new(volume: &str, part: Option<FileRange>, picks: Option<Arc<dyn Picks>>) -> Names {
        let targets = Targets::new();
        let target = targets.id(&TargetName::new(&format!("volume {volume}")));
        let salt = RandomState::new().build_hasher().finish();
        Names { inner: Mutex::default(), targets, target, part, salt, picks }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn part(&self) -> Option<FileRange> {
        self.part
    }

    /// A directory that the walk begins with.
    pub(super) fn add_base(&self, path: Vec<u8>) -> Above {
        let mut inner = self.lock();
        inner.bases.push(path);
        Above::Base(inner.bases.len() - 1)
    }

    pub(super) fn add(&self, id: FileId, above: Above, at: At, file: Option<State>) {
        let At { parent, name } = at;
        let entry = Entry { above, parent, name, generation: Generation(0), file };
        self.lock().entries.insert(id, entry);
    }

    pub(super) fn forget(&self, id: FileId) {
        self.lock().entries.remove(&id);
    }

    /// The path of an entry in the volume.
    pub(super) fn path(&self, id: FileId) -> Vec<u8> {
        let inner = self.lock();
        inner.entries.get(&id).map_or_else(Vec::new, |entry| inner.path(entry.above, Some(&entry.name), true))
    }

    /// The path of a name in a directory: in the volume, or at the destination.
    pub(super) fn path_in(&self, above: Above, name: Option<&Name>, in_volume: bool) -> Vec<u8> {
        self.lock().path(above, name, in_volume)
    }

    /// The file, if it is still of this generation.
    pub(super) fn view(&self, id: FileId, generation: Generation) -> Option<View> {
        let inner = self.lock();
        let entry = inner.entries.get(&id).filter(|entry| entry.generation == generation)?;
        let is = entry.file?;
        let (base, size) = self.part.map_or((0, is.len), |part| (part.source, part.len));
        Some(View { is, base, size })
    }

    /// Its place in the catalog.
    pub(super) fn at(&self, id: FileId) -> Option<At> {
        let inner = self.lock();
        let entry = inner.entries.get(&id)?;
        Some(At { parent: entry.parent, name: entry.name.clone() })
    }

    /// It was looked at again, and later reads of this generation hold against this.
    pub(super) fn renew(&self, id: FileId, generation: Generation, file: State) {
        if let Some(picks) = &self.picks {
            let (path, entry) = (self.path_of(id), file.id);
            let State { version, len, mtime, .. } = file;
            picks.is_another(&Candidate { path, entry, version, len, mtime, target: None });
        }
        if let Some(entry) = self.lock().entries.get_mut(&id) {
            (entry.generation, entry.file) = (generation, Some(file));
        }
    }

    /// What others are told of a file.
    pub(super) fn fingerprint(&self, file: &State) -> Fingerprint {
        let ContentVersion { gatherer, changes } =
            file.version.unwrap_or(ContentVersion { gatherer: 0, changes: self.salt });
        let mut bytes = [0; VERSION_LEN];
        bytes[..8].copy_from_slice(&file.id.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&gatherer.to_le_bytes());
        bytes[12..].copy_from_slice(&changes.to_le_bytes());
        if let Some(part) = &self.part {
            // Another part is another version.
            let numbers = [file.len, part.source, part.len].map(u64::to_le_bytes).concat();
            let hash =
                blake3::hash(&[b"haul part of a volume's file ".as_slice(), &bytes, &numbers].concat());
            bytes.copy_from_slice(&hash.as_bytes()[..VERSION_LEN]);
        }
        let version = Version::new(&bytes).expect("VERSION_LEN is below the maximum");
        let size = self.part.map_or(file.len, |part| part.len);
        Fingerprint { size, mtime: file.mtime, version }
    }
}

impl Inner {
    fn path(&self, above: Above, name: Option<&Name>, in_volume: bool) -> Vec<u8> {
        let mut names: Vec<&[u8]> = name.map(Name::as_bytes).into_iter().collect();
        let mut at = above;
        let base = loop {
            match at {
                Above::Base(base) => break base,
                Above::Dir(dir) => match self.entries.get(&dir.as_file()) {
                    Some(entry) => {
                        names.push(entry.name.as_bytes());
                        at = entry.above;
                    }
                    // Forgotten: its path begins nowhere.
                    None => break usize::MAX,
                },
            }
        };
        if in_volume && let Some(base) = self.bases.get(base).filter(|base| !base.is_empty()) {
            names.push(base.strip_suffix(b"/").unwrap_or(base));
        }
        names.reverse();
        names.join(&b'/')
    }
}

impl SourceNames for Names {
    fn path_of(&self, id: FileId) -> Vec<u8> {
        let inner = self.lock();
        let path = |entry: &Entry| inner.path(entry.above, Some(&entry.name), false);
        inner.entries.get(&id).map(path).unwrap_or_default()
    }
    fn origin_of(&self, _: FileId) -> Option<(Vec<u8>, Stamp)> {
        None
    }
    fn lies(&self, _: FileId) -> Lies {
        // The volume's client cuts what is asked at the stripes, and has a window for each server.
        Lies::At(self.target)
    }
    fn targets(&self) -> &Targets {
        &self.targets
    }
}
