//! Which store sources, or a destination, lie in: the one that their scheme brings, or a directory for what
//! is a path.
//!
//! A new store is a file that implements [`SourceStore`] or [`SinkStore`] and has a
//! [`Scheme`](super::place::Scheme), and a line in [`SCHEMES`](super::SCHEMES).

use haul_core::wire::{Failure, FailureKind};

use super::place::{Destination, FILE, Place, PlaceError, Sources, replicas_fit, sources_fit};
use super::sink::store as sink_directory;
use super::source::store as source_directory;
use super::store::delegated::{Delegated, DelegatedJob};
use super::store::{SinkStore, SourceStore};
use haul_base::role::Role;

/// The store that the sources lie in.
///
/// # Errors
/// They cannot be taken, or are not there.
pub fn source(sources: &Sources<'_>) -> Result<Box<dyn SourceStore>, Failure> {
    sources_fit(sources.places).map_err(PlaceError::misused)?;
    replicas_fit(sources.places, sources.replicas).map_err(|why| Failure {
        kind: FailureKind::Usage,
        errno: 0,
        text: why.into(),
    })?;
    let scheme = sources.places.first().map_or(&FILE, |place| place.scheme());
    if sources.part.is_some() && scheme.name != FILE.name && !scheme.server {
        let text = format!("`range` takes a part of a file, and {}:// has none", scheme.name);
        return Err(Failure { kind: FailureKind::Usage, errno: 0, text: text.into() });
    }
    // What is not copied alone is a path.
    scheme.open_source.unwrap_or(source_directory::open)(sources)
}

/// The store that the destination is in.
///
/// # Errors
/// It cannot be one.
pub fn sink(destination: &Destination<'_>) -> Result<Box<dyn SinkStore>, Failure> {
    destination.place.fits(Role::Sink).map_err(PlaceError::misused)?;
    let scheme = destination.place.scheme();
    match scheme.open_sink {
        Some(open) => open(destination),
        None if *scheme == FILE => sink_directory::open(destination),
        // Its entry in the list says that there is one, and brings none.
        None => Err(Failure { kind: FailureKind::Usage, errno: 0, text: "nothing here opens that".into() }),
    }
}

/// Whether the sources' store and the destination's move data between them by themselves.
pub fn is_pair(sources: &[Place], destination: &Place) -> bool {
    #[cfg(feature = "ftp")]
    return super::ftp::pair::is_pair(sources, destination);
    #[cfg(not(feature = "ftp"))]
    {
        let _ = (sources, destination);
        false
    }
}

/// The two stores as a pair.
///
/// # Errors
/// They are none, or one of them cannot be used.
pub fn pair(job: DelegatedJob<'_>) -> Result<Delegated, Failure> {
    sources_fit(job.sources.places).map_err(PlaceError::misused)?;
    #[cfg(feature = "ftp")]
    return super::ftp::pair::open(job);
    #[cfg(not(feature = "ftp"))]
    {
        let text = "nothing here moves data between two stores";
        Err(Failure { kind: FailureKind::Usage, errno: 0, text: text.into() })
    }
}
