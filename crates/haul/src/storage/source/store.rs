//! POSIX files and directories as a source.

use std::sync::Arc;
use std::time::Instant;

use haul_core::ids::FileId;
use haul_core::transfer::source::Lies;
use haul_core::wire::{Failure, SourceRoot, Stage};

use super::roots::{RootSpec, SourceError, resolve_sources, source_roots};
use super::tree::SourceTree;
use super::{ReadConfig, ReadEngine};
use crate::storage::store::{Capabilities, Reading, SourceNames, SourceParts, SourceStore, Sources, Stamp};
use crate::storage::stores::misused;
use crate::storage::targets::Targets;
use crate::storage::walk::Walk;

/// Threads that stat ahead of the walk.
const STAT_THREADS: usize = 4;

/// Paths that were found.
pub struct Paths(Vec<RootSpec>);

impl Paths {
    /// What paths as typed mean.
    ///
    /// # Errors
    /// One of them is not there, or is a directory that was not asked for.
    pub fn find(sources: &Sources<'_>) -> Result<Paths, Failure> {
        let paths = sources.places.iter().map(|place| place.as_file().map(<[u8]>::to_vec));
        let paths = paths.collect::<Result<Vec<_>, _>>().map_err(misused)?;
        resolve_sources(&paths, sources.recursive, sources.home).map(Paths).map_err(refused)
    }
}

/// See [`Scheme::open_source`](crate::storage::place::Scheme::open_source).
pub(in crate::storage) fn open(sources: &Sources<'_>) -> Result<Box<dyn SourceStore>, Failure> {
    Ok(Box::new(Paths::find(sources)?))
}

/// `Stage::Usage`: for the command says so, and not what lies there.
fn refused(why: SourceError) -> Failure {
    let stage = if why.is_usage() { Stage::Usage } else { Stage::Walk };
    Failure { stage, errno: 0, text: why.to_string().into() }
}

impl SourceStore for Paths {
    fn capabilities(&self) -> Capabilities {
        Capabilities::POSIX
    }

    fn roots(&self) -> Result<Vec<SourceRoot>, Failure> {
        source_roots(&self.0).map_err(refused)
    }

    fn start(self: Box<Self>, reading: Reading) -> Result<SourceParts, Failure> {
        let Reading { agreed, readers, storage, memory, object_size, clock, changed, meter, post } = reading;
        let tree = Arc::new(SourceTree::with_clock(clock).on_change(changed));
        let config = ReadConfig { readers, storage, memory, digest: agreed.digest };
        let failed = |what: &str, why: std::io::Error| {
            let text = format!("starting the {what}: {why}");
            Failure { stage: Stage::Protocol, errno: 0, text: text.into() }
        };
        let engine =
            ReadEngine::start(tree.clone(), post, meter, config).map_err(|e| failed("reading threads", e))?;
        let walk = Walk::start(self.0, tree.clone(), STAT_THREADS, move |_| object_size)
            .map_err(|e| failed("walk", e))?;
        Ok(SourceParts { names: tree, engine: Box::new(engine), walk })
    }
}

impl SourceNames for SourceTree {
    fn path_of(&self, id: FileId) -> Vec<u8> {
        SourceTree::path_of(self, id)
    }
    fn origin_of(&self, id: FileId) -> Option<(Vec<u8>, Stamp)> {
        SourceTree::origin_of(self, id)
    }
    fn lies(&self, id: FileId) -> Lies {
        SourceTree::lies(self, id)
    }
    fn not_before(&self, id: FileId) -> Option<Instant> {
        SourceTree::not_before(self, id)
    }
    fn targets(&self) -> &Targets {
        SourceTree::targets(self)
    }
}
