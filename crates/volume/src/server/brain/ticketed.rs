//! Who may have what done: by the key that he showed, and by tickets.
//!
//! Invariant: of whoever is no server nothing is carried out without a ticket that is good for it. What is
//! refused for want of one is answered so, and may be asked again with another; what has no answer ends the
//! connection then, so that nobody believes it was heard.

use haul_core::volume::FileNo;
use haul_core::volume::gather;
use haul_core::volume::rights::Party;
use haul_core::volume::storage;
use haul_core::volume::ticket::{Need, Refusal, Sealed, Stale, Term, Tickets, make_room};
use haul_core::volume::wire::{Message, Wanted, Who};

use super::{Asker, Brain};
use crate::line::Bytes;
use crate::server::disk::Job;
use crate::server::event::LineNo;

impl Brain {
    /// A client shows a ticket.
    pub(super) fn shown(&mut self, line: LineNo, sealed: &Sealed) {
        let now = self.now();
        let (Some(tickets), Some(from)) = (&mut self.tickets, self.lines.get_mut(&line)) else { return };
        let Who::Client(client) = from.who else { return };
        let before = tickets.term();
        // One that is over is looked at again when something is asked: what is told needs no better.
        let is_one = tickets.show(now, client, sealed) != Err(Stale::Forged);
        let ticket = is_one.then(|| sealed.ticket.clone());
        make_room(&mut from.shown, sealed.ticket.file);
        from.shown.insert(sealed.ticket.file, (sealed.name(), ticket));
        self.keep_term(before);
    }

    /// The catalog tells of its term, and of epochs.
    pub(super) fn told_of_tickets(&mut self, term: Term, raised: &[(FileNo, u32)]) {
        let now = self.now();
        let Some(tickets) = &mut self.tickets else { return };
        let before = tickets.term();
        tickets.told(now, term);
        raised.iter().for_each(|(file, epoch)| tickets.raise(*file, *epoch));
        self.keep_term(before);
    }

    /// Has the next life know of a term that this one did not know before.
    fn keep_term(&self, before: Option<Term>) {
        let known = self.tickets.as_ref().and_then(Tickets::term);
        if let Some(term) = known.filter(|term| Some(*term) != before) {
            self.disk.does(Job::Term(term));
        }
    }

    /// Whether that may be done for whoever says it; if not he was told.
    pub(super) fn may(&mut self, line: LineNo, message: &Message) -> bool {
        let now = self.now();
        let Some(from) = self.lines.get(&line) else { return false };
        let (by_key, need) = match message {
            Message::Gather(_, request) => {
                (from.party.may_gather(request), Need::of_gather(request, self.striping.stripe_size))
            }
            Message::Store(_, request) => {
                (from.party.may_store(request), Some(Need::of_store(request, message.following().into())))
            }
            _ => return true,
        };
        if let Err(errno) = by_key {
            self.deny(line, message, errno);
            return false;
        }
        let (Some(tickets), Some(need)) = (&self.tickets, need) else { return true };
        if from.party == Party::Server {
            return true;
        }
        let shown = from.shown.get(&need.file);
        let ticket = shown.and_then(|(_, ticket)| ticket.as_ref());
        match tickets.check(now, ticket, &need) {
            Ok(()) => return true,
            Err(Refusal::Beyond) => self.deny(line, message, rustix::io::Errno::ACCESS.raw_os_error()),
            Err(Refusal::Stale(_)) if need.tells => {
                self.refuse(line, "nothing is told of a file without a ticket for it");
            }
            Err(Refusal::Stale(_)) => {
                let had = shown.map(|(name, _)| *name);
                if let Message::Gather(number, _) | Message::Store(number, _) = message {
                    let wanted = Wanted { number: *number, file: need.file, had };
                    self.answer(
                        Asker { line, number: *number },
                        |_| Message::TicketWanted(wanted),
                        Bytes::default(),
                    );
                }
            }
        }
        false
    }

    /// Answers what somebody may not ask.
    fn deny(&mut self, line: LineNo, message: &Message, errno: i32) {
        match message {
            Message::Gather(number, request) if gather::is_mute(request) => {
                if let Some(from) = self.lines.get_mut(&line) {
                    from.asked.remove(number);
                }
            }
            Message::Gather(number, _) => {
                let (number, answer) = (*number, gather::Answer::Failed(errno));
                let said = |work| Message::Gathered(number, answer, work);
                self.answer(Asker { line, number }, said, Bytes::default());
            }
            Message::Store(number, _) => {
                let (number, answer) = (*number, storage::Answer::Failed(errno));
                let said = |work| Message::Stored(number, answer, work);
                self.answer(Asker { line, number }, said, Bytes::default());
            }
            _ => {}
        }
    }
}
