//! Shelves in memory as sources.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use haul_core::digest::DigestKind;
use haul_core::entry::{EntryKind, Extras, Fingerprint, Meta, Name, Version};
use haul_core::extents::ExtentMap;
use haul_core::ids::{DirId, FileId, Generation, TargetId};
use haul_core::layout::Layout;
use haul_core::transfer::op::{BundleOk, HashOk, Look, ReadOk, SourceDone, SourceOp};
use haul_core::transfer::source::Lies;
use haul_core::wire::{Announced, Failure, FailureKind, SourceRoot, Totals};

use super::{ENOENT, Lying, META, OnShelf, Shelf, failure};
use crate::store::{Capabilities, NetworkFacet, Reading, SourceNames, SourceParts, SourceStore, Stamp};
use crate::targets::Targets;
use crate::walk::{Walk, WalkItem};
use crate::{Post, SourceCompletion, SourceEngine, SourceJob, Stuck};
use haul_base::digest;

impl SourceStore for OnShelf {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn roots(&self) -> Result<Vec<SourceRoot>, Failure> {
        Ok(vec![SourceRoot::Contents { of: None, meta: META }])
    }

    fn start(self: Box<Self>, reading: Reading) -> Result<SourceParts, Failure> {
        let (mut items, mut paths, mut ids) = (Vec::new(), HashMap::new(), HashMap::new());
        let mut totals = Totals { files: 0, dirs: 0, symlinks: 0, bytes: 0 };
        let all = self.0.lock().lying.clone();
        for (n, (path, (what, ino))) in all.iter().enumerate() {
            let id = FileId(n as u64 + 1);
            let (above, name) = match path.iter().rposition(|byte| *byte == b'/') {
                Some(at) => (Some(&path[..at]), &path[at + 1..]),
                None => (None, &path[..]),
            };
            let parent = above.map_or(DirId::ROOT, |above| ids[above]);
            let (meta, kind) = match what {
                Lying::Dir(meta) => {
                    totals.dirs += 1;
                    ids.insert(&path[..], DirId(id.0));
                    (*meta, EntryKind::Dir { version: Version::NONE })
                }
                Lying::Link(target, meta) => {
                    totals.symlinks += 1;
                    (*meta, EntryKind::Symlink { target: target.clone().into() })
                }
                Lying::File(data, meta) => {
                    totals.files += 1;
                    totals.bytes += data.len() as u64;
                    let (fingerprint, object_size) = (print_of(data, meta, *ino), reading.object_size);
                    (*meta, EntryKind::File { fingerprint, object_size, sparse: false, striped: false })
                }
            };
            paths.insert(id, path.clone());
            let name = Name::new(name).expect("a legal name");
            items.push(WalkItem::Entry(Announced {
                id,
                generation: Generation(0),
                parent,
                name,
                meta,
                kind,
                extras: Extras::default(),
            }));
        }
        items.extend(ids.values().map(|id| WalkItem::DirEnd(*id)));
        items.push(WalkItem::End(totals));
        let names = Arc::new(ShelfNames { paths, targets: Targets::new() });
        let kind = reading.agreed.digest;
        let engine = ShelfReader { shelf: self.0, names: names.clone(), kind, post: reading.post };
        Ok(SourceParts { names, engine: Box::new(engine), walk: Walk::of(items) })
    }
}

fn print_of(data: &[u8], meta: &Meta, ino: u64) -> Fingerprint {
    let version = Version::new(&ino.to_le_bytes()).expect("short");
    Fingerprint { size: data.len() as u64, mtime: meta.mtime, version }
}

struct ShelfNames {
    paths: HashMap<FileId, Vec<u8>>,
    targets: Targets,
}

impl SourceNames for ShelfNames {
    fn path_of(&self, id: FileId) -> Vec<u8> {
        self.paths.get(&id).cloned().unwrap_or_default()
    }
    fn origin_of(&self, _: FileId) -> Option<(Vec<u8>, Stamp)> {
        None
    }
    fn lies(&self, _: FileId) -> Lies {
        Lies::At(TargetId(0))
    }
    fn targets(&self) -> &Targets {
        &self.targets
    }
}

struct ShelfReader {
    shelf: Arc<Shelf>,
    names: Arc<ShelfNames>,
    kind: DigestKind,
    post: Post<SourceCompletion>,
}

impl ShelfReader {
    fn data(&self, id: FileId) -> Result<(Vec<u8>, Meta, u64), Failure> {
        let path = self.names.path_of(id);
        match self.shelf.lock().lying.get(&path) {
            Some((Lying::File(data, meta), ino)) => Ok((data.clone(), *meta, *ino)),
            _ => Err(failure(FailureKind::Vanished, ENOENT, &path, "is gone")),
        }
    }

    /// A part of a file, if all of it is there.
    fn part(&self, id: FileId, offset: u64, len: usize) -> Result<Vec<u8>, Failure> {
        let (data, ..) = self.data(id)?;
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let part = data.get(offset..offset.saturating_add(len)).map(<[u8]>::to_vec);
        self.shelf.bytes.fetch_add(len as u64, Ordering::Relaxed);
        part.ok_or_else(|| failure(FailureKind::Changed, 0, &self.names.path_of(id), "ended early"))
    }

    fn hash(&self, id: FileId, parts: &[(u64, u64)]) -> Result<HashOk, Failure> {
        let (data, ..) = self.data(id)?;
        let value = |(offset, len): &(u64, u64)| {
            let part = &data[*offset as usize..][..*len as usize];
            digest::chaining_values(self.kind, *offset, part, offset + len == data.len() as u64)
        };
        let cvs = parts.iter().flat_map(value).collect();
        Ok(HashOk { root: digest::root(self.kind, &data), cvs })
    }
}

impl SourceEngine for ShelfReader {
    fn submit(&mut self, SourceJob { op, mut buffer }: SourceJob) {
        let done = match op {
            SourceOp::Read { id, generation, offset, len, tail, whole, target } => {
                let room = buffer.as_mut().expect("a read brings its buffer");
                let part = self.part(id, offset, len as usize);
                let result = part.map(|part| {
                    room.as_mut_slice()[..part.len()].copy_from_slice(&part);
                    let cvs = match whole {
                        true => vec![digest::root(self.kind, &part)],
                        false => digest::chaining_values(self.kind, offset, &part, tail),
                    };
                    ReadOk { buffer: room.id(), cvs }
                });
                let service = Some(Duration::ZERO);
                SourceDone::Read { id, generation, offset, len, target, service, result }
            }
            SourceOp::ReadBundle { files } => {
                let room = buffer.as_mut().expect("a bundle brings its buffer");
                let (mut at, mut items) = (0, Vec::new());
                for file in files {
                    let part = self.part(file.id, 0, file.size as usize).map(|part| {
                        room.as_mut_slice()[at..at + part.len()].copy_from_slice(&part);
                        at += part.len();
                        BundleOk { root: digest::root(self.kind, &part), look: Look::Same }
                    });
                    items.push((file, part));
                }
                SourceDone::ReadBundle { buffer: room.id(), items }
            }
            SourceOp::Map { id, generation } => {
                let result = self.data(id).map(|(data, ..)| ExtentMap::full(data.len() as u64));
                SourceDone::Map { id, generation, result }
            }
            SourceOp::Look { id, generation } => {
                SourceDone::Look { id, generation, result: self.data(id).map(|_| Look::Same) }
            }
            SourceOp::Verify { id, generation, .. } => {
                SourceDone::Verify { id, generation, result: Ok(false) }
            }
            SourceOp::HashFile { id, generation, parts, .. } => {
                SourceDone::HashFile { id, generation, result: self.hash(id, &parts) }
            }
            SourceOp::Refresh { id, generation } => {
                let new = |(data, meta, ino): (Vec<u8>, Meta, u64)| {
                    (print_of(&data, &meta, ino), meta, Duration::ZERO)
                };
                SourceDone::Refresh { id, generation, result: self.data(id).map(new) }
            }
            SourceOp::Locate { files } => {
                let layout = Arc::new(Layout::flat(TargetId(0)));
                let lies = |(id, generation)| (id, generation, layout.clone());
                SourceDone::Locate { files: files.into_iter().map(lies).collect() }
            }
            SourceOp::Forget { .. } | SourceOp::ForgetDir { .. } => return,
        };
        (self.post)(SourceCompletion { done, buffer });
    }

    fn set_width(&mut self, width: Option<u16>) -> u16 {
        width.unwrap_or(1)
    }
    fn reads_max(&self, _: u32) -> (u32, u32) {
        (4, 4)
    }
    fn compares(&self) -> bool {
        false
    }

    fn stuck(&self) -> Vec<Stuck> {
        Vec::new()
    }
    fn report(&self) -> Vec<(String, String)> {
        vec![("source storage".into(), "a shelf in memory".into())]
    }
    fn network(&self) -> Option<&dyn NetworkFacet> {
        self.shelf.network()
    }
}
