//! Who issues which request: the ordering policies of [`haul_core::io::order`], for one measurement.
//!
//! In: slots that are free (each is an issuer, as a thread of XDD is) and requests that completed. Out: which
//! request a slot issues now. Requests are numbered in the order of the measurement, which is the order that
//! the policies keep: the offsets of a random measurement have none.
//!
//! Loose and none differ only where several threads issue: here one does, so both are in order.

use haul_core::io::OrderPolicy;
use haul_core::io::order::{Queue, Request, Room};

/// Requests of one measurement.
pub(super) struct Deal {
    queue: Queue<u64>,
    /// Slots without a request; what was free last is taken first, for its memory is still in the cache.
    free: Vec<usize>,
    pushed: u64,
    count: u64,
}

impl Deal {
    /// `count` requests for `slots` issuers.
    pub(super) fn new(policy: OrderPolicy, slots: usize, count: u64) -> Deal {
        Deal { queue: Queue::new(policy, slots), free: (0..slots).rev().collect(), pushed: 0, count }
    }

    /// A slot that is free and the request that it issues now; `None`: nothing may start before something
    /// completes, or everything has started.
    pub(super) fn start(&mut self) -> Option<(usize, u64)> {
        for at in (0..self.free.len()).rev() {
            let slot = self.free[at];
            loop {
                if let Some(request) = self.queue.next(slot, |_| Room::Free) {
                    self.free.remove(at);
                    return Some((slot, request.id));
                }
                // What waits is for other slots, or for a completion.
                let strict = self.queue.policy() == OrderPolicy::Strict;
                if self.pushed == self.count || (!strict && !self.queue.is_empty()) {
                    break;
                }
                let (id, offset) = (self.pushed, self.pushed);
                self.queue.push(Request { id, file: 0, target: 0, offset, len: 1 });
                self.pushed += 1;
            }
        }
        None
    }

    /// A slot's request has completed.
    pub(super) fn end(&mut self, slot: usize, request: u64) {
        self.queue.on_completed(request);
        self.free.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each request starts once, whatever completes when; strict deals them round-robin, serial never
    /// has two under way, and the others start in order with every slot in use.
    /// Method: seeded completions.
    #[test]
    fn policies_hold() {
        for policy in OrderPolicy::ALL {
            for seed in 0..20 {
                let mut rng = fastrand::Rng::with_seed(seed);
                let (slots, count) = (rng.usize(1..9), rng.u64(0..200));
                let mut deal = Deal::new(policy, slots, count);
                let (mut flying, mut started): (Vec<(usize, u64)>, Vec<u64>) = (Vec::new(), Vec::new());
                loop {
                    while let Some((slot, request)) = deal.start() {
                        assert!(flying.iter().all(|(other, _)| *other != slot));
                        assert!(policy != OrderPolicy::Strict || request % slots as u64 == slot as u64);
                        flying.push((slot, request));
                        started.push(request);
                    }
                    let left = count - started.len() as u64;
                    match policy {
                        OrderPolicy::Serial => assert!(flying.len() == 1.min(flying.len() + left as usize)),
                        OrderPolicy::Strict => assert!(flying.len() <= slots),
                        _ => assert!(flying.len() == slots || left == 0),
                    }
                    if flying.is_empty() {
                        break;
                    }
                    let (slot, request) = flying.swap_remove(rng.usize(0..flying.len()));
                    deal.end(slot, request);
                }
                if policy != OrderPolicy::Strict {
                    assert!(started.is_sorted());
                }
                started.sort_unstable();
                assert!(started.into_iter().eq(0..count));
            }
        }
    }
}
