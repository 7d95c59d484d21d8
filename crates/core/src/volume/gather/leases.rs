//! Leases on stripes: granted when all of them are clean, asked back, given up.

use super::stripe::{Queued, WantedLease};
use super::{Action, Answer, Gatherer};
use crate::volume::{ClientNo, FileNo};

impl<B> Gatherer<B> {
    pub(super) fn recall(&mut self, file: FileNo, at: u64, clients: &[ClientNo]) {
        for client in clients {
            if self.stripe(file, at).recalled.insert(*client) {
                self.actions.push_back(Action::Recall(*client, file, at..at + 1));
            }
        }
    }

    /// Grants a lease if all of its stripes are clean and it is first in each. Whether it did.
    pub(super) fn lease(&mut self, number: u64) -> bool {
        let Some(wanted) = self.wanted.get(&number) else {
            // Whoever wanted it is gone.
            return self.take_from_queues(number);
        };
        let (client, file, stripes) = (wanted.client, wanted.file, wanted.stripes.clone());
        let is_known = self.clients.get(&client).is_some_and(|client| client.is_known);
        let is_ready = |at: u64| {
            let stripe = self.files.get(&file).and_then(|file| file.stripes.get(&at));
            stripe.is_some_and(|stripe| {
                stripe.is_clean()
                    && matches!(stripe.queue.front(), Some(Queued::Lease(first)) if *first == number)
            })
        };
        if !is_known || !stripes.clone().all(is_ready) || !self.may_lease(file) {
            return false;
        }
        let wanted = self.wanted.remove(&number).expect("it was just there");
        for at in stripes.clone() {
            let stripe = self.stripe(file, at);
            stripe.queue.pop_front();
            stripe.leases.insert(client);
            stripe.recalled.remove(&client);
        }
        self.is_leased(file, &stripes);
        let epoch = self.epoch(file);
        self.answer(client, wanted.number, Answer::Leased { stripes: stripes.clone(), epoch });
        // What waited behind it in other stripes.
        let others: Vec<u64> = stripes.collect();
        others.into_iter().for_each(|at| self.go_on(file, at));
        true
    }

    /// Takes a lease that nobody wants any more out of the queues where it is first.
    fn take_from_queues(&mut self, number: u64) -> bool {
        let mut took = false;
        for stripe in self.files.values_mut().flat_map(|file| file.stripes.values_mut()) {
            if matches!(stripe.queue.front(), Some(Queued::Lease(other)) if *other == number) {
                stripe.queue.pop_front();
                took = true;
            }
        }
        took
    }

    /// What was gathered of a stripe is not taken where it lies: nobody who waits for a lease there gets one
    /// for now.
    pub(super) fn refuse_leases(&mut self, file: FileNo, at: u64, errno: i32) {
        let is_there = |wanted: &WantedLease| wanted.file == file && wanted.stripes.contains(&at);
        let refused = self.wanted.iter().filter(|(_, wanted)| is_there(wanted));
        let refused: Vec<u64> = refused.map(|(number, _)| *number).collect();
        for number in refused {
            let Some(wanted) = self.wanted.remove(&number) else { continue };
            self.answer(wanted.client, wanted.number, Answer::Refused(errno));
            // What waited behind it in other stripes goes on; in this one when the push is over.
            wanted.stripes.filter(|other| *other != at).for_each(|other| self.go_on(file, other));
        }
    }

    /// A client has no lease on a stripe any more.
    pub(super) fn give_back(&mut self, client: ClientNo, file: FileNo, at: u64) {
        let stripe = self.stripe(file, at);
        stripe.leases.remove(&client);
        stripe.recalled.remove(&client);
    }

    /// A client is not there any more, and says nothing of its writes: its leases are void.
    pub(super) fn void_leases(&mut self, client: ClientNo) {
        for file in self.files.values_mut() {
            let has = file.stripes.values().any(|stripe| stripe.leases.contains(&client));
            file.fence += u32::from(has);
        }
        self.drop_leases(client);
    }

    /// A client has no leases, and wants none.
    fn drop_leases(&mut self, client: ClientNo) {
        self.wanted.retain(|_, wanted| wanted.client != client);
        let mut changed = Vec::new();
        for (file, state) in &mut self.files {
            for (at, stripe) in &mut state.stripes {
                if stripe.leases.remove(&client) || !stripe.queue.is_empty() {
                    stripe.recalled.remove(&client);
                    changed.push((*file, *at));
                }
            }
        }
        changed.into_iter().for_each(|(file, at)| self.go_on(file, at));
    }
}
