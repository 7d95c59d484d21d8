//! Who gives tickets, and counts their terms.
//!
//! In: time by the catalog's own clock. Out: terms, tickets for clients. Invariants: terms go on rising over
//! lives of the catalog, whatever its clock does; a reader gets tickets for reading alone.

use std::time::Duration;

use haul_core::volume::rights::Party;
use haul_core::volume::ticket::{Key, Rights, Sealed, Term, Ticket};
use haul_core::volume::wire::{GivenTickets, VolumeId};
use haul_core::volume::{ClientNo, FileNo};
use haul_core::wire::FILE_LEN_MAX;

use super::store::{Store, Trouble, is_full};
use super::tree::{NAMELESS, OfTicket};

/// See the head of this module.
pub(super) struct Giver {
    key: Key,
    volume: VolumeId,
    len: Duration,
    /// The term that it is, and until when; `None`: this life has no number yet.
    now: Option<(Term, Duration)>,
}

impl Giver {
    pub(super) fn new(key: Key, volume: VolumeId, len: Duration) -> Giver {
        Giver { key, volume, len, now: None }
    }

    /// Time passes: whether another term begins.
    pub(super) fn turn(&mut self, now: Duration, store: &Store) -> bool {
        let term = match self.now {
            Some((_, until)) if now < until => return false,
            Some((term, _)) => term.next(),
            None => match life(store) {
                Some(life) => Term::first_of(life),
                // There is no room, or the disk fails: who asks it for something hears that.
                None => return false,
            },
        };
        self.now = Some((term, now + self.len));
        true
    }

    /// What there is to say of terms, with these tickets.
    pub(super) fn given(&self, party: Party, tickets: Vec<Sealed>) -> GivenTickets {
        GivenTickets { term: self.term(), needed: party != Party::Server, tickets, raised: Vec::new() }
    }

    /// What servers are told of files that lost their names, at most so many as one message has.
    pub(super) fn raised(&self, files: &[FileNo]) -> GivenTickets {
        let raised = files.iter().map(|file| (*file, NAMELESS)).collect();
        GivenTickets { term: self.term(), needed: false, tickets: Vec::new(), raised }
    }

    fn term(&self) -> Term {
        self.now.map_or(Term::default(), |(term, _)| term)
    }

    /// Whether tickets can be given.
    pub(super) fn is_ready(&self) -> bool {
        self.now.is_some()
    }

    /// A ticket for a client, if it gets one.
    pub(super) fn give(&self, party: Party, client: ClientNo, file: FileNo, of: OfTicket) -> Option<Sealed> {
        let (term, _) = self.now?;
        let (epoch, rights) = match (of, party) {
            (OfTicket::Nothing, _) | (_, Party::Server) => return None,
            (OfTicket::File { epoch }, Party::Owner) => (epoch, Rights::ALL),
            (OfTicket::File { epoch }, Party::Reader) if haul_mutant::removed("catalog-readers-read") => {
                (epoch, Rights::ALL)
            }
            (OfTicket::File { epoch }, Party::Reader) => (epoch, Rights::READ),
            (OfTicket::Gone, Party::Owner) => (u32::MAX, Rights::CUT),
            (OfTicket::Gone, Party::Reader) => return None,
        };
        let ticket = Ticket { client, file, epoch, range: 0..FILE_LEN_MAX, rights, term };
        Some(self.key.seal(self.volume, ticket))
    }
}

/// The number of this life: one that no life had, nor will have; clients get theirs of the same.
fn life(store: &Store) -> Option<u64> {
    let number = || store.alone(Store::new_client);
    let got = match number() {
        Err(Trouble::Disk(error)) if is_full(&error) => {
            store.ease();
            number()
        }
        got => got,
    };
    got.ok().map(|ClientNo(life)| life)
}
