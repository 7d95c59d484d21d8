//! Which store sources, or a destination, lie in.
//!
//! A new store is a file that implements [`SourceStore`] or [`SinkStore`] and has a [`Scheme`](super::place::Scheme), and a line in
//! [`SCHEMES`](super::SCHEMES).

use haul_core::wire::{Failure, Stage};

use super::place::{FILE, PlaceError, sources_fit};
use super::store::{Destination, SinkStore, SourceStore, Sources};
use haul_base::role::Role;

/// The store that the sources lie in.
///
/// # Errors
/// They cannot be taken, or are not there.
pub fn source(sources: &Sources<'_>) -> Result<Box<dyn SourceStore>, Failure> {
    sources_fit(sources.places).map_err(misused)?;
    let scheme = sources.places.first().map_or(&FILE, |place| place.scheme());
    if sources.part.is_some() && scheme.name != FILE.name {
        let text = format!("--range takes a part of a file, and {}:// has none", scheme.name);
        return Err(Failure { stage: Stage::Usage, errno: 0, text: text.into() });
    }
    // What is not copied alone is a path.
    scheme.open_source.or(FILE.open_source).map_or_else(|| Err(none()), |open| open(sources))
}

/// The store that the destination is in.
///
/// # Errors
/// It cannot be one.
pub fn sink(destination: &Destination<'_>) -> Result<Box<dyn SinkStore>, Failure> {
    destination.place.fits(Role::Sink).map_err(misused)?;
    destination.place.scheme().open_sink.map_or_else(|| Err(none()), |open| open(destination))
}

/// The command says so, and not what lies there.
pub(super) fn misused(why: PlaceError) -> Failure {
    Failure { stage: Stage::Usage, errno: 0, text: why.to_string().into() }
}

/// An entry in the list says that there is one, and brings none.
fn none() -> Failure {
    Failure { stage: Stage::Usage, errno: 0, text: "nothing here opens that".into() }
}
