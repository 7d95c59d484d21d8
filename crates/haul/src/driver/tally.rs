//! Entries by how they ended: counted for the summary, and told to whoever watches.
//!
//! In: each entry's end, as the machine of either end says it. Out: numbers, and events for the observer.
//! What must hold: a path is put together only when somebody is told of it.

use haul_core::change::Change;
use haul_core::transfer::Ended;
use haul_core::wire::{Failure, FailureKind};

use super::{Kind, LeftOut, Watch};
use crate::error::ErrorKind;
use crate::events::{EntryEnd, Event};
use crate::summary::SKIPPED;
use haul_storage::store::Stamp;

/// How the mappings of a dry run are shown.
pub(crate) struct Mapping {
    /// As typed: the first source, and the destination.
    pub(crate) source: Vec<u8>,
    pub(crate) destination: Vec<u8>,
}

/// What a destination says of something that it has no way to make.
const EOPNOTSUPP: i32 = 95;

/// Mappings that a dry run shows.
const MAPPINGS_MAX: u64 = 10;

/// Entries by how they ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) files: u64,
    pub(crate) dirs: u64,
    /// Of these, what stood there, and had mode, time or owner brought up to date.
    pub(crate) amended_dirs: u64,
    pub(crate) symlinks: u64,
    /// Further names that were given to files or symbolic links.
    pub(crate) hard_links: u64,
    /// FIFOs, sockets and devices.
    pub(crate) specials: u64,
    pub(crate) unchanged: u64,
    pub(crate) skipped: u64,
    pub(crate) failed: u64,
    /// Of these, what was gone from the source when it was to be read.
    pub(crate) vanished: u64,
    /// Of these, what fails again until somebody renames or moves something.
    pub(crate) lasting: u64,
    /// Content of the files that were copied.
    pub(crate) bytes: u64,
    /// How often a file came back wrong from the sink's storage.
    pub(crate) came_back: u64,
    /// Files that were cloned, and their length: nothing of them was read.
    pub(crate) cloned: u64,
    pub(crate) cloned_bytes: u64,
    /// The single file takes the name that the destination ends in.
    pub(crate) renamed: bool,
    /// Symbolic links that the destination cannot have.
    links_left: LeftOut,
    /// FIFOs, sockets and devices that this user, or the file system, cannot make.
    nodes_left: LeftOut,
    /// Mappings that were shown.
    mapped: u64,
}

impl Mapping {
    fn show(&self, path: &[u8], renamed: bool, (bytes, metadata_only): (Option<u64>, bool)) -> Event {
        if renamed {
            let (source, destination) = (self.source.clone(), self.destination.clone());
            return Event::Plan { source, destination, bytes, metadata_only };
        }
        let slash: &[u8] = if self.destination.ends_with(b"/") { b"" } else { b"/" };
        let destination = [&self.destination[..], slash, path].concat();
        Event::Plan { source: path.to_vec(), destination, bytes, metadata_only }
    }
}

impl Tally {
    /// Counts an entry that ended, and tells the observer.
    pub(crate) fn count(
        &mut self,
        watch: &Watch,
        kind: Kind,
        end: &Ended,
        (root, change): (Option<[u8; 32]>, Change),
        bytes: u64,
        path: impl FnOnce() -> Vec<u8>,
        source: impl FnOnce() -> Option<(Vec<u8>, Stamp)>,
    ) {
        let entry_end = match end {
            Ended::Copied => {
                match kind {
                    Kind::File => {
                        self.files += 1;
                        // In a dry run these are a peer's numbers.
                        self.bytes = self.bytes.saturating_add(bytes);
                    }
                    Kind::Dir => {
                        self.dirs += 1;
                        self.amended_dirs += u64::from(!change.has(Change::NEW));
                    }
                    Kind::Symlink => self.symlinks += 1,
                    Kind::Special | Kind::Device => self.specials += 1,
                }
                EntryEnd::Copied
            }
            Ended::Unchanged => {
                // Directories and links that were right are nothing that a run did or left out.
                self.unchanged += u64::from(kind == Kind::File || !change.is_none());
                EntryEnd::Unchanged
            }
            Ended::Skipped => {
                self.skipped += 1;
                EntryEnd::Skipped
            }
            Ended::Failed(failure) => {
                let path = path();
                if self.leaves_node(watch, kind, failure) {
                    self.nodes_left.add(&path);
                } else if kind == Kind::Symlink && self.leaves_link(watch, &path, failure) {
                    self.links_left.add(&path);
                } else {
                    return self.fail(watch, path, failure);
                }
                self.skipped += 1;
                if watch.verbose {
                    let (end, change) = (EntryEnd::Skipped, Change::NONE);
                    watch.tell(Event::Entry { path, kind, end, change, bytes: 0, link_of: None });
                }
                return;
            }
        };
        // Of a directory that stood there nothing else can change.
        let amended = match kind {
            Kind::Dir => *end == Ended::Copied && !change.has(Change::NEW),
            Kind::File | Kind::Symlink | Kind::Special | Kind::Device => {
                *end == Ended::Unchanged && !change.is_none()
            }
        };
        let shows = *end == Ended::Copied || amended;
        let maps = watch.plan.as_ref().filter(|_| shows && self.mapped < MAPPINGS_MAX);
        if watch.observer.is_none() || !(watch.verbose || watch.manifest.is_some() || maps.is_some()) {
            return;
        }
        let path = path();
        if let Some(mapping) = maps {
            self.mapped += 1;
            let size = (kind == Kind::File && !amended).then_some(bytes);
            watch.tell(mapping.show(&path, self.renamed, (size, amended)));
        }
        if watch.verbose {
            let (path, end) = (path.clone(), entry_end);
            watch.tell(Event::Entry { path, kind, end, change, bytes, link_of: None });
        }
        let copied = (*end == Ended::Copied).then_some(bytes);
        match (&watch.manifest, root) {
            (Some(_), Some(root)) => watch.tell(Event::Digest { path, root, bytes: copied }),
            // The hashing thread may be gone only when the run is over.
            // A sparse file's own digest is none of its content.
            (Some(hasher), None) if kind == Kind::File && *end != Ended::Skipped => {
                drop(hasher.send(Unmoved { path, source: source(), len: copied }));
            }
            _ => {}
        }
    }

    /// The same of a further name of the entry at `to`.
    pub(crate) fn count_name(
        &mut self,
        watch: &Watch,
        kind: Kind,
        end: &Ended,
        change: Change,
        path: impl FnOnce() -> Vec<u8>,
        to: impl FnOnce() -> Vec<u8>,
        source: impl FnOnce() -> Option<(Vec<u8>, Stamp)>,
    ) {
        let end = match end {
            Ended::Copied => {
                self.hard_links += 1;
                EntryEnd::Copied
            }
            Ended::Unchanged => {
                self.unchanged += u64::from(kind == Kind::File);
                EntryEnd::Unchanged
            }
            Ended::Skipped => {
                self.skipped += 1;
                EntryEnd::Skipped
            }
            Ended::Failed(failure) => return self.fail(watch, path(), failure),
        };
        if watch.observer.is_none() || !(watch.verbose || watch.manifest.is_some()) {
            return;
        }
        let path = path();
        if watch.verbose {
            let (path, link_of) = (path.clone(), Some(to()));
            watch.tell(Event::Entry { path, kind, end, change, bytes: 0, link_of });
        }
        if let (Some(hasher), Kind::File) = (&watch.manifest, kind)
            && end != EntryEnd::Skipped
        {
            // The hashing thread may be gone only when the run is over.
            drop(hasher.send(Unmoved { path, source: source(), len: None }));
        }
    }

    /// Tells the observer how the destination root ended. It is in no count but that of failures.
    pub(crate) fn root(&mut self, watch: &Watch, end: &Ended, change: Change) {
        let path = b".".to_vec();
        match end {
            Ended::Failed(failure) => self.fail(watch, path, failure),
            Ended::Copied if watch.verbose => {
                let (kind, end) = (Kind::Dir, EntryEnd::Copied);
                watch.tell(Event::Entry { path, kind, end, change, bytes: 0, link_of: None });
            }
            _ => {}
        }
    }

    /// Whether it is what a destination without symbolic links says of one, and nobody named this one.
    fn leaves_link(&self, watch: &Watch, path: &[u8], failure: &Failure) -> bool {
        let Some(sources) = &watch.leaves_links else { return false };
        let is_named = match self.renamed {
            true => !path.contains(&b'/'),
            false => sources.iter().any(|name| name == path),
        };
        failure.kind == FailureKind::Create && failure.errno == EOPNOTSUPP && !is_named
    }

    /// Whether it is a FIFO, socket or device that cannot be made there, and that nobody asked for by name.
    fn leaves_node(&self, watch: &Watch, kind: Kind, failure: &Failure) -> bool {
        let asked = match kind {
            Kind::Special => watch.asked_nodes.specials,
            Kind::Device => watch.asked_nodes.devices,
            Kind::File | Kind::Dir | Kind::Symlink => return false,
        };
        const EPERM: i32 = 1;
        !asked && failure.kind == FailureKind::Create && matches!(failure.errno, EPERM | EOPNOTSUPP)
    }

    /// What of these a summary says: what was not kept, and their names.
    pub(crate) fn nodes_left(&self) -> Option<((String, u64), (String, String))> {
        let names = self
            .nodes_left
            .in_words("devices, which root alone makes, or what the file system has none of")?;
        let count = self.nodes_left.count();
        Some((("special files that could not be made there".into(), count), (SKIPPED.into(), names)))
    }

    /// What of these links a summary says: what was not kept, and their names.
    pub(crate) fn links_left(&self) -> Option<((String, u64), (String, String))> {
        let why = "symbolic links, of which haul makes none at servers: copy what they lead to by itself";
        let names = self.links_left.in_words(why)?;
        let count = self.links_left.count();
        Some((("symbolic links left out".into(), count), (SKIPPED.into(), names)))
    }

    /// Counts a failure, and tells the observer.
    pub(crate) fn fail(&mut self, watch: &Watch, path: Vec<u8>, failure: &Failure) {
        self.failed += 1;
        self.vanished += u64::from(failure.kind == FailureKind::Vanished);
        self.lasting += u64::from(lasts(failure));
        let text = match (&watch.source_host, failure.text.strip_prefix("source ")) {
            (Some(host), Some(path)) => format!("source {host}:{path}"),
            _ => failure.text.to_string(),
        };
        let kind = ErrorKind::of(failure.kind, failure.errno);
        let operation = failure.kind.into();
        watch.tell(Event::Failed { path, kind, operation, errno: failure.errno, text });
    }
}

/// A name that is taken by what does not give way, or that the destination cannot have, what may not be read
/// or written, or is no file, what a server has no way to do or refuses for good: the same run would end the
/// same.
fn lasts(failure: &Failure) -> bool {
    const EPERM: i32 = 1;
    const EACCES: i32 = 13;
    const EREMOTEIO: i32 = 121;
    if failure.kind == FailureKind::Vanished {
        return false;
    }
    if matches!(failure.errno, EPERM | EACCES | EREMOTEIO)
        || (failure.kind == FailureKind::Walk && failure.errno == 0)
    {
        return true;
    }
    const EEXIST: i32 = 17;
    const ENOTDIR: i32 = 20;
    const EISDIR: i32 = 21;
    const EINVAL: i32 = 22;
    const ENAMETOOLONG: i32 = 36;
    const EILSEQ: i32 = 84;
    const ENOTUNIQ: i32 = 76;
    failure.errno == EOPNOTSUPP
        || matches!(failure.kind, FailureKind::Create | FailureKind::Publish)
            && matches!(failure.errno, EEXIST | ENOTDIR | EISDIR | EINVAL | ENAMETOOLONG | EILSEQ | ENOTUNIQ)
}

/// A file that was not moved, of which the manifest wants the digest.
pub(crate) struct Unmoved {
    /// At the destination, as the manifest names it.
    pub(crate) path: Vec<u8>,
    /// At the source, if that is this end, and which version of it the session knows.
    pub(crate) source: Option<(Vec<u8>, Stamp)>,
    /// How much of it was copied, if it was: at the source it can have grown since.
    pub(crate) len: Option<u64>,
}
