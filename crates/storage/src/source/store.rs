//! POSIX files and directories as a source.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Instant;

use haul_base::escape;
use haul_core::entry::{FileRange, Part};
use haul_core::ids::FileId;
use haul_core::transfer::source::Lies;
use haul_core::wire::{Failure, FailureKind, SourceRoot};
use rustix::fs::{AtFlags, CWD, FileType, statat};

use super::failure::os_failure;
use super::roots::{RootSpec, resolve_sources_by, source_roots};
use super::stat::Seen;
use super::tree::SourceTree;
use super::{ReadConfig, ReadEngine};
use crate::manners::LinkRule;
use crate::meta_rate::MetaRate;
use crate::place::{PlaceError, Sources};
use crate::store::{Capabilities, Reading, SourceNames, SourceParts, SourceStore, Stamp};
use crate::targets::Targets;
use crate::walk::Walk;

/// Threads that stat ahead of the walk.
const STAT_THREADS: usize = 4;

/// Paths that were found.
pub struct Paths {
    roots: Vec<RootSpec>,
    /// This of the only one.
    part: Option<FileRange>,
}

impl Paths {
    /// What paths as typed mean.
    ///
    /// # Errors
    /// One of them is not there, or is a directory that was not asked for. A part was asked for of what has
    /// none.
    pub fn find(sources: &Sources<'_>) -> Result<Paths, Failure> {
        let paths = sources.places.iter().map(|place| place.as_file().map(<[u8]>::to_vec));
        let paths = paths.collect::<Result<Vec<_>, _>>().map_err(PlaceError::misused)?;
        let (recursive, home) = (sources.recursive || sources.part.is_some(), sources.home);
        let roots = resolve_sources_by(&paths, recursive, home, sources.links).map_err(Failure::from)?;
        let part = sources.part.map(|part| range_of(&roots, &part, sources.links)).transpose()?;
        Ok(Paths { roots, part })
    }
}

/// Finds sources that are paths.
pub(crate) fn open(sources: &Sources<'_>) -> Result<Box<dyn SourceStore>, Failure> {
    Ok(Box::new(Paths::find(sources)?))
}

/// The range that the part is of the only source.
///
/// # Errors
/// There are more, it is no file, or has no such part.
fn range_of(roots: &[RootSpec], part: &Part, links: LinkRule) -> Result<FileRange, Failure> {
    let usage = |text: String| Failure { kind: FailureKind::Usage, errno: 0, text: text.into() };
    let [root] = roots else {
        let text = format!("`range` takes a part of one file, and {} sources are given", roots.len());
        return Err(usage(text));
    };
    let shown = escape::within(root.path.as_os_str().as_bytes());
    let follow = if links.all { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    let stat = statat(CWD, &root.path, follow)
        .map(Seen::from)
        .map_err(|errno| os_failure(FailureKind::Walk, "stat", root.path.as_os_str().as_bytes(), errno))?;
    if !stat.is_file() {
        let text = match stat.kind {
            FileType::Directory => {
                format!("`range` takes a part of one file, and source {shown} is a directory")
            }
            FileType::Symlink => {
                format!(
                    "`range` takes a part of one file, and source {shown} is a symbolic link; name what it leads to"
                )
            }
            _ => format!("`range` takes a part of one file, and source {shown} is no regular file"),
        };
        return Err(usage(text));
    }
    let size = stat.stamp.size;
    let rest = size.saturating_sub(part.source);
    match part.len.unwrap_or(rest) {
        len @ 1.. if len <= rest => Ok(part.of_len(len)),
        _ => {
            let asked = Part { sink: None, ..*part }.in_words();
            let instead = match rest {
                0 => String::new(),
                _ => format!(" (`range` {}: copies what is there from there on)", part.source),
            };
            Err(usage(format!(
                "source {shown} has {size} bytes, and no such part: {asked}; nothing was copied{instead}"
            )))
        }
    }
}

impl SourceStore for Paths {
    fn capabilities(&self) -> Capabilities {
        Capabilities::POSIX
    }

    fn roots(&self) -> Result<Vec<SourceRoot>, Failure> {
        source_roots(&self.roots).map_err(Failure::from)
    }

    fn start(self: Box<Self>, reading: Reading) -> Result<SourceParts, Failure> {
        let Reading {
            picks: _,
            originals,
            agreed,
            readers,
            storage,
            memory,
            object_size,
            clock,
            kept,
            changed,
            no_links,
            manners,
            by_name,
            nodes,
            keeps,
            hard_links,
            budget,
            meter,
            post,
        } = reading;
        let tree = SourceTree::with_clock(clock)
            .within(&budget)
            .on_change(changed)
            .of_part(self.part)
            .without_links(no_links)
            .with_manners(manners)
            .with_nodes(nodes)
            .with_names(by_name)
            .keeping(keeps)
            .keeping_hard_links(hard_links)
            .with_rate(MetaRate::new(storage.meta_rate));
        let tree = Arc::new(tree.kept_in(kept));
        originals.iter().for_each(|originals| originals.found(&tree));
        let config = ReadConfig { readers, storage, memory, digest: agreed.digest };
        let failed = |what: &str, why: std::io::Error| {
            let text = format!("starting the {what}: {}", haul_base::errno::text(why));
            Failure { kind: FailureKind::Local, errno: 0, text: text.into() }
        };
        let engine =
            ReadEngine::start(tree.clone(), post, meter, config).map_err(|e| failed("reading threads", e))?;
        let walk =
            Walk::start_with(self.roots, tree.clone(), STAT_THREADS, budget.walk_dirs, move |_| object_size)
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
