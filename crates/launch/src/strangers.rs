//! Who has not shown yet who he is, and who of them goes when there are too many.
//!
//! In: connections with the address that they come from. Out: those for which there is no room any more.
//! Invariants: there are never more than places; whoever comes gets one. An address that has shown the key
//! before, or from which the other end is known to come, gives up a place only when nobody else has one; of
//! the others the address with the most gives up its oldest. So neither those who only hold places nor those
//! who come in great numbers keep ours out.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;

/// See the module.
pub(super) struct Strangers<T> {
    /// The oldest first.
    places: VecDeque<Stranger<T>>,
    most: usize,
    next: u64,
}

struct Stranger<T> {
    number: u64,
    from: IpAddr,
    what: T,
}

impl<T> Strangers<T> {
    /// `most`: places, one at least.
    pub(super) fn new(most: usize) -> Strangers<T> {
        Strangers { places: VecDeque::new(), most, next: 0 }
    }

    /// One more, with his number; and who has to go. `known`: addresses that ours come from.
    pub(super) fn enter(&mut self, from: IpAddr, what: T, known: &BTreeSet<IpAddr>) -> (u64, Option<T>) {
        let number = self.next;
        self.next += 1;
        let goes = match self.places.len() < self.most || haul_mutant::removed("stranger-places") {
            true => None,
            false if haul_mutant::removed("stranger-goes") => return (number, Some(what)),
            false => self.places.remove(self.victim(known)),
        };
        self.places.push_back(Stranger { number, from, what });
        (number, goes.map(|stranger| stranger.what))
    }

    fn victim(&self, known: &BTreeSet<IpAddr>) -> usize {
        let is_known = |stranger: &Stranger<T>| {
            known.contains(&stranger.from) && !haul_mutant::removed("known-address-stays")
        };
        let all_known = self.places.iter().all(is_known);
        let may_go = |stranger: &&Stranger<T>| all_known || !is_known(stranger);
        let mut of: HashMap<IpAddr, usize> = HashMap::new();
        self.places.iter().filter(may_go).for_each(|stranger| *of.entry(stranger.from).or_default() += 1);
        let most = of.values().copied().max().unwrap_or(0);
        let oldest = self
            .places
            .iter()
            .position(|stranger| (all_known || !is_known(stranger)) && of.get(&stranger.from) == Some(&most));
        oldest.unwrap_or(0)
    }

    /// He has shown who he is, or has gone.
    pub(super) fn leave(&mut self, number: u64) -> Option<T> {
        let at = self.places.iter().position(|stranger| stranger.number == number)?;
        self.places.remove(at).map(|stranger| stranger.what)
    }

    /// All, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, IpAddr, &T)> {
        self.places.iter().map(|stranger| (stranger.number, stranger.from, &stranger.what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: places are bounded, the address with the most gives up its oldest, and one that is known is
    /// spared until there is nobody else.
    #[test]
    fn the_oldest_of_the_greediest_goes() {
        let ip = |n: u8| IpAddr::from([10, 0, 0, n]);
        let known = BTreeSet::from([ip(9)]);
        let mut all = Strangers::new(4);
        let mut come = |n: u8, what: &'static str| all.enter(ip(n), what, &known).1;
        for (n, what) in [(1, "a"), (2, "b"), (2, "c"), (9, "ours")] {
            assert_eq!(come(n, what), None);
        }
        assert_eq!(come(3, "d"), Some("b"), "the oldest of the address with the most");
        assert_eq!(come(3, "e"), Some("a"), "each has one: the oldest");
        assert_eq!(come(9, "ours too"), Some("d"));
        assert_eq!(come(9, "and this"), Some("c"));
        assert_eq!(come(9, "more"), Some("e"));
        assert_eq!(come(9, "still more"), Some("ours"), "nobody else is left");
        let (number, _, _) = all.iter().next().unwrap();
        assert_eq!((all.leave(number), all.leave(number)), (Some("ours too"), None));
        assert_eq!(all.enter(ip(1), "room", &known).1, None);
    }
}
