//! A volume as a source: what was named, found; and how it begins to be read.

use std::sync::Arc;

use haul_base::escape;
use haul_core::entry::{FileRange, Name, Part};
use haul_core::volume::catalog::{Kind, ROOT};
use haul_core::wire::{Failure, FailureKind, SourceRoot};

use super::names::Names;
use super::path::{Led, is_dots, last_part, lead, name_of_dir};
use super::reader::Reader;
use super::walk::{self, Found};
use super::{CAPABILITIES, Reach, Volume, is_dir, usage};
use crate::place::Sources;
use crate::store::{Capabilities, Reading, SourceParts, SourceStore};

struct VolumeSource {
    volume: Arc<Volume>,
    found: Vec<Found>,
    /// What of the only one comes, if not all.
    part: Option<FileRange>,
}

/// Finds sources in a volume.
///
/// # Errors
/// The volume cannot be reached; one of them is not there, or cannot be copied so.
pub(super) fn find(reach: &Reach, sources: &Sources<'_>) -> Result<Box<dyn SourceStore>, Failure> {
    let volume = Arc::new(Volume::connect(reach, FailureKind::Walk)?);
    let mut found: Vec<Found> = Vec::new();
    for place in sources.places {
        let typed = place.path();
        let shown = || escape::within(&volume.url(typed));
        let last = last_part(typed);
        // As of a file system: with a slash or dots behind it a link is followed.
        let Led { entry, at, .. } = lead(&volume, typed, is_dots(last), FailureKind::Walk)?;
        let Some(entry) = entry else {
            let text = format!("source {}: there is nothing of that name; nothing was copied", shown());
            return Err(Failure { kind: FailureKind::Walk, errno: 2, text: text.into() });
        };
        if is_dir(&entry) && !sources.recursive && sources.part.is_none() {
            return Err(usage(format!("source {} is a directory (use `recursive`)", shown())));
        }
        let name = match is_dots(last) {
            true => None,
            false => Some(Name::new(last).map_err(|why| usage(format!("source {}: {why}", shown())))?),
        };
        if let Some(other) = found.iter().find(|other| name.is_some() && other.name == name) {
            let name = name.as_ref().map_or_else(String::new, |name| escape::within(name.as_bytes()));
            let first = escape::within(&volume.url(&other.path));
            let text = format!("sources {first} and {} would both become {name} at the destination", shown());
            return Err(usage(text));
        }
        let parent = at.map_or(ROOT, |at| at.parent);
        found.push(Found { entry, name, parent, path: typed.to_vec() });
    }
    if found.is_empty() {
        return Err(usage("no source given".into()));
    }
    let part = sources.part.map(|part| range_of(&volume, &found, &part)).transpose()?;
    Ok(Box::new(VolumeSource { volume, found, part }))
}

/// The range that the part is of the only source.
fn range_of(volume: &Volume, found: &[Found], part: &Part) -> Result<FileRange, Failure> {
    let [Found { entry, path, .. }] = found else {
        let text = format!("`range` takes a part of one file, and {} sources are given", found.len());
        return Err(usage(text));
    };
    let shown = escape::within(&volume.url(path));
    let file = match (&entry.kind, entry.file()) {
        (_, Some(file)) => file,
        (Kind::Directory, _) => {
            return Err(usage(format!(
                "`range` takes a part of one file, and source {shown} is a directory"
            )));
        }
        _ => {
            let text = format!("`range` takes a part of one file, and source {shown} is no regular file");
            return Err(usage(text));
        }
    };
    let size = volume.len(file).map_err(|why| volume.broke(FailureKind::Walk, "look at", path, &why))?;
    let rest = size.saturating_sub(part.source);
    match part.len.unwrap_or(rest) {
        len @ 1.. if len <= rest => Ok(part.of_len(len)),
        _ => {
            let asked = Part { sink: None, ..*part }.in_words();
            Err(usage(format!(
                "source {shown} has {size} bytes, and no such part: {asked}; nothing was copied"
            )))
        }
    }
}

impl SourceStore for VolumeSource {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn roots(&self) -> Result<Vec<SourceRoot>, Failure> {
        let root = |found: &Found| match &found.name {
            Some(name) => SourceRoot::Named { name: name.clone(), is_dir: is_dir(&found.entry) },
            None => SourceRoot::Contents { of: name_of_dir(&found.path), meta: found.entry.meta },
        };
        Ok(self.found.iter().map(root).collect())
    }

    fn start(self: Box<Self>, reading: Reading) -> Result<SourceParts, Failure> {
        let VolumeSource { volume, found, part } = *self;
        volume.goes_on_without();
        let failed = |what: &str, why: std::io::Error| {
            let text = format!("starting the {what}: {}", haul_base::errno::text(why));
            Failure { kind: FailureKind::Local, errno: 0, text: text.into() }
        };
        let (picks, no_links) = (reading.picks.clone(), reading.no_links);
        let names = Arc::new(Names::new(&volume.name, part, picks.clone()));
        let object_size = reading.object_size;
        let engine = Reader::start(volume.clone(), names.clone(), reading)
            .map_err(|why| failed("reading threads", why))?;
        let walk = walk::start(volume, (found, picks, no_links), names.clone(), object_size)
            .map_err(|why| failed("walk", why))?;
        Ok(SourceParts { names, engine: Box::new(engine), walk })
    }
}
