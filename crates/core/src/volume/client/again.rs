//! What is asked again: of somebody who was gone, and what a server did not take for want of a ticket.
//!
//! Invariant: what is asked again of a stripe goes before what was to follow it there.

use super::{Asked, Client, Where};
use crate::ids::Time;
use crate::volume::RequestNo;

impl<B: Clone> Client<B> {
    /// What was asked of somebody who is gone is asked again when he is there.
    pub(super) fn ask_again(&mut self, of: Where) {
        let lost: Vec<RequestNo> =
            self.asked.iter().filter(|(_, (asked, _))| *asked == of).map(|(number, _)| *number).collect();
        for number in lost.into_iter().rev() {
            let (_, asked) = self.asked.remove(&number).expect("it was just there");
            self.wants_again(of, asked);
        }
    }

    /// What was asked is to be asked again.
    fn wants_again(&mut self, of: Where, asked: Asked<B>) {
        match asked {
            Asked::Write { file, stripe, piece, .. } => {
                let stripe = self.stripe(file, stripe);
                stripe.is_back(&piece);
                stripe.queue.push_front(piece);
            }
            Asked::Sync { file, op } => self.sync_answered(file, op, of, None),
            Asked::Change { file } => self.file(file).is_turning = false,
            asked @ (Asked::Look { .. }
            | Asked::Told { .. }
            | Asked::Length { .. }
            | Asked::Map { .. }
            | Asked::Gathered { .. }
            | Asked::Stored { .. }) => self.reads.push_front(asked),
            Asked::Lease { .. } => {}
        }
    }

    /// A server did not take a request, for want of a ticket, and did nothing for it: it is asked again.
    pub fn not_taken(&mut self, now: Time, number: RequestNo) {
        self.now = self.now.max(now);
        let Some((of, asked)) = self.asked.remove(&number) else { return };
        let (file, stripes) = match &asked {
            Asked::Write { file, stripe, .. } => (*file, *stripe..*stripe + 1),
            Asked::Lease { file, stripes, .. } => (*file, stripes.clone()),
            Asked::Change { file } | Asked::Sync { file, .. } => (*file, 0..0),
            _ => {
                self.wants_again(of, asked);
                return self.begin_reads();
            }
        };
        let is_lease = matches!(asked, Asked::Lease { .. });
        self.wants_again(of, asked);
        for at in stripes {
            if is_lease {
                self.stripe(file, at).asked = false;
            }
            self.go_on(file, at);
        }
        self.take_turns(file);
        self.begin_syncs(file);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Action, OpNo, Outcome, Striping};
    use super::*;
    use crate::volume::threshold::Path;
    use crate::volume::{FileNo, gather};

    const FILE: FileNo = FileNo(4);

    /// A client whose gatherer is there and does not take the write that it began.
    fn not_taken() -> (Client<&'static str>, RequestNo) {
        let mut client = Client::new(Striping::new(8, 1));
        client.gatherer_joined(Time(1), 1);
        client.write(Time(2), OpNo(1), Path::Gather, FILE, (9, 3), "abc");
        let Some(Action::ToGatherer(number, first)) = client.poll_action() else {
            panic!("nothing is asked")
        };
        client.not_taken(Time(3), number);
        let Some(Action::ToGatherer(number, again)) = client.poll_action() else { panic!("it asks") };
        assert_eq!(first, again);
        assert_eq!(client.poll_action(), None);
        (client, number)
    }

    /// Goal: what was not taken is asked again, and comes to an end as if it had been taken at once.
    #[test]
    fn what_is_not_taken_is_asked_again() {
        let (mut client, number) = not_taken();
        client.gatherer_answered(Time(4), number, gather::Answer::Written);
        assert_eq!(client.poll_action(), Some(Action::Done(OpNo(1), Outcome::Written)));
        // What nobody waits for changes nothing.
        client.not_taken(Time(5), number);
        assert_eq!(client.poll_action(), None);
    }

    /// Goal: a gatherer that never took a write, which would end a lease, does not wait for that lease.
    #[test]
    fn a_write_that_never_came_gives_its_lease_back() {
        let (mut client, number) = not_taken();
        client.gatherer_answered(Time(4), number, gather::Answer::Gone);
        let released = gather::Request::Release { file: FILE, stripes: 1..2 };
        let Some(Action::ToGatherer(_, request)) = client.poll_action() else { panic!("nothing is said") };
        assert_eq!(request, released);
        assert_eq!(client.poll_action(), Some(Action::Done(OpNo(1), Outcome::Gone)));
    }
}
