//! The list of stores: which one a source, or a destination, as typed is.
//!
//! A new store is a file that implements [`SourceStore`] or [`SinkStore`], and an entry here.

use haul_core::wire::{Failure, Stage};

use super::null::{self, Made, Nowhere};
use super::sink::store::Directory;
use super::source::store::Paths;
use super::store::{Destination, SinkStore, SourceStore, Sources};

/// The store that the sources lie in.
///
/// # Errors
/// They cannot be taken, or are not there.
pub fn source(sources: &Sources<'_>) -> Result<Box<dyn SourceStore>, Failure> {
    #[cfg(test)]
    if let Some(store) = super::model::source(sources) {
        return Ok(store);
    }
    let usage = |text: String| Failure { stage: Stage::Usage, errno: 0, text: text.into() };
    let made = sources.paths.iter().find_map(|path| Made::parse(&path.0));
    match (sources.paths, made) {
        ([_], Some(made)) => Ok(Box::new(made.map_err(usage)?)),
        (_, Some(_)) => Err(usage("null:// and zero:// are copied alone, without other sources".into())),
        (_, None) => Ok(Box::new(Paths::find(sources)?)),
    }
}

/// The store that the destination is in.
///
/// # Errors
/// There is no such store.
pub fn sink(destination: Destination<'_>) -> Result<Box<dyn SinkStore>, Failure> {
    #[cfg(test)]
    if let Some(store) = super::model::sink(&destination) {
        return Ok(store);
    }
    Ok(match destination.path == null::SINK {
        true => Box::new(Nowhere),
        false => Box::new(Directory::new(destination)),
    })
}
