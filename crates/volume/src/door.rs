//! Who may connect to a server of a volume, or to its catalog.
//!
//! In: a connection that was accepted, the keys of the volume. Out: a link, and whose key was shown.
//! Invariant: nobody is heard who holds none of the volume's keys. Left out: what he may ask then, which
//! `haul_core::volume::rights` says, and with which
//! file, which `haul_core::volume::ticket` does.

use std::net::TcpStream;
use std::time::Duration;

use haul_core::volume::rights::Party;
use haul_core::volume::ticket::{self, TERM};
use haul_transport::tls::{self, Pin};
use haul_transport::{Link, TransportError};

use crate::dial::Keys;

/// Who may connect besides servers; servers of a volume that was made before there were such keys know none.
#[derive(Clone, Default)]
pub struct Guests {
    pub owner: Option<Pin>,
    pub reader: Option<Pin>,
    /// What tickets are sealed with, which they need for each file; `None`: they need none.
    pub tickets: Option<ticket::Key>,
    /// How long a term of tickets is, if not [`TERM`].
    pub term: Option<Duration>,
}

impl Guests {
    pub(crate) fn term(&self) -> Duration {
        self.term.unwrap_or(TERM)
    }
}

/// Has who connects show a key, within that time.
///
/// # Errors
/// He holds none of them, or was not heard in time.
pub(crate) fn admit(
    stream: TcpStream,
    keys: &Keys,
    guests: &Guests,
    limit: Duration,
) -> Result<(Link, Party), TransportError> {
    let Guests { owner, reader, .. } = guests.clone();
    let all = [(Some(keys.pin.clone()), Party::Server), (owner, Party::Owner), (reader, Party::Reader)];
    let (pins, parties): (Vec<Pin>, Vec<Party>) =
        all.into_iter().filter_map(|(pin, party)| Some((pin?, party))).unzip();
    let (link, shown) = tls::server_of(stream, &keys.identity, &pins, limit)?;
    Ok((link, parties[shown]))
}
