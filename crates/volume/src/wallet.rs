//! Tickets that a client was given, and how it gets others.
//!
//! In: what the catalog gives, at any time. Out: the newest ticket for a file, while it is not known to be of
//! no use. Invariant: a bounded number of them is kept, and always the last one; any can be had again.

use std::collections::BTreeMap;

use haul_core::volume::FileNo;
use haul_core::volume::ticket::{Sealed, Term};
use haul_core::volume::wire::GivenTickets;

/// Tickets that are kept.
const KEPT_MAX: usize = 65_536;

/// See the head of this module.
#[derive(Default)]
pub(crate) struct Wallet {
    term: Term,
    needed: bool,
    tickets: BTreeMap<FileNo, Sealed>,
}

impl Wallet {
    /// The catalog gives these.
    pub(crate) fn put(&mut self, given: GivenTickets) {
        self.term = self.term.max(given.term);
        self.needed |= given.needed;
        for sealed in given.tickets {
            if self.tickets.len() >= KEPT_MAX && !self.tickets.contains_key(&sealed.ticket.file) {
                self.tickets.clear();
            }
            self.tickets.insert(sealed.ticket.file, sealed);
        }
    }

    pub(crate) fn term(&self) -> Term {
        self.term
    }

    /// Whether servers want tickets of this client.
    pub(crate) fn needed(&self) -> bool {
        self.needed
    }

    /// One that is not over yet, and whether another should be had soon: its term is.
    pub(crate) fn get(&self, file: FileNo) -> Option<(&Sealed, bool)> {
        let sealed = self.tickets.get(&file)?;
        let of = sealed.ticket.term;
        (of.next() >= self.term).then_some((sealed, of < self.term))
    }

    /// A server did not take this one, by its name; false: there is another one, or none.
    pub(crate) fn forget(&mut self, file: FileNo, name: u64) -> bool {
        let is_it = self.tickets.get(&file).is_some_and(|sealed| sealed.name() == name);
        is_it && self.tickets.remove(&file).is_some()
    }
}

#[cfg(test)]
mod tests {
    use haul_core::volume::ClientNo;
    use haul_core::volume::ticket::{CODE_LEN, Rights, Ticket};

    use super::*;

    fn sealed(file: u64, term: Term) -> Sealed {
        let (client, file) = (ClientNo(1), FileNo(file));
        let ticket = Ticket { client, file, epoch: 0, range: 0..1, rights: Rights::READ, term };
        Sealed { ticket, code: [file.0 as u8; CODE_LEN] }
    }

    fn given(term: Term, tickets: Vec<Sealed>) -> GivenTickets {
        GivenTickets { term, needed: true, tickets, raised: Vec::new() }
    }

    /// Goal: a ticket is shown in its term and the next one, when another is asked for, and no longer.
    #[test]
    fn tickets_are_renewed_before_they_are_over() {
        let (mut wallet, first) = (Wallet::default(), Term(5));
        let (file, one) = (FileNo(7), sealed(7, first));
        wallet.put(given(first, vec![one.clone()]));
        assert_eq!(wallet.get(file), Some((&one, false)));
        wallet.put(given(first.next(), Vec::new()));
        assert_eq!(wallet.get(file), Some((&one, true)));
        wallet.put(given(first.next().next(), Vec::new()));
        assert_eq!(wallet.get(file), None);
        assert!(!wallet.forget(file, one.name().wrapping_add(1)));
        wallet.put(given(first, vec![sealed(7, first.next())]));
        assert!(matches!(wallet.get(file), Some((_, true))));
        assert!(wallet.forget(file, one.name()));
        assert_eq!(wallet.get(file), None);
    }

    /// Goal: the ticket that was just given is there, however many there were before.
    #[test]
    fn the_last_one_is_kept() {
        let (mut wallet, term) = (Wallet::default(), Term(5));
        for file in (0..KEPT_MAX as u64 + 10).rev() {
            wallet.put(given(term, vec![sealed(file, term)]));
            assert!(wallet.get(FileNo(file)).is_some() && wallet.tickets.len() <= KEPT_MAX);
        }
    }
}
