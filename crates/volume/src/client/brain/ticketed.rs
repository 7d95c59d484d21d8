//! What a client does about tickets: shows them, and asks again with others.

use haul_core::volume::ticket::{Sealed, make_room};
use haul_core::volume::wire::{Message, Wanted};
use haul_core::volume::{FileNo, RequestNo, ServerNo, gather, storage};
use rustix::io::Errno;

use super::super::renew::{Asks, Held};
use super::{Brain, Connection};
use crate::line::Bytes;

impl Connection {
    /// Shows a ticket, if it was not shown yet.
    pub(super) fn shows(&mut self, sealed: Sealed) {
        let (file, name) = (sealed.ticket.file, sealed.name());
        make_room(&mut self.shown, file);
        if self.shown.insert(file, name) == Some(name) {
            return;
        }
        self.mouth.say(Message::Ticket(sealed), Bytes::default());
    }
}

impl Brain {
    /// A server did nothing, for want of another ticket: it is asked again with one.
    pub(super) fn ticket_wanted(&mut self, server: ServerNo, wanted: Wanted) {
        let now = self.now();
        let Wanted { number, file, had } = wanted;
        let Some((machine, of)) = self.is_answered(server, number) else { return };
        let Some(tickets) = &mut self.tickets else {
            return self.fail(server, machine, of, Errno::ACCESS);
        };
        if let Some(name) = had {
            tickets.refused(file, name);
        }
        if let Some(connection) = self.connections.get_mut(&server)
            && (had.is_none() || connection.shown.get(&file).copied() == had)
        {
            connection.shown.remove(&file);
        }
        self.machines[machine].not_taken(now, of);
    }

    /// Whatever it was that was asked comes to nothing.
    fn fail(&mut self, server: ServerNo, machine: usize, of: RequestNo, errno: Errno) {
        let (now, errno) = (self.now(), errno.raw_os_error());
        // It was asked of one of the two.
        self.machines[machine].gatherer_answered(now, of, gather::Answer::Failed(errno));
        self.machines[machine].storage_answered(now, server, of, storage::Answer::Failed(errno));
    }

    /// The catalog was asked for tickets.
    pub(super) fn tickets_told(&mut self, files: Vec<FileNo>, given: Option<Vec<FileNo>>) {
        let Some(tickets) = &mut self.tickets else { return };
        for (held, is_given) in tickets.told(files, given) {
            if is_given {
                let Held { server, machine, of, asks, bytes } = held;
                self.send(server, machine, of, asks, bytes);
            } else {
                self.gone(held);
            }
        }
    }

    /// Nobody can use a file any more, or not this client.
    pub(super) fn gone(&mut self, Held { server, machine, of, asks, .. }: Held) {
        let now = self.now();
        match asks {
            // To whoever asks for these it is said by a number.
            Asks::Gather(gather::Request::Sync { .. })
            | Asks::Store(storage::Request::Sync { .. } | storage::Request::Read { .. }) => {
                self.fail(server, machine, of, Errno::NOENT);
            }
            Asks::Gather(_) => self.machines[machine].gatherer_answered(now, of, gather::Answer::Gone),
            Asks::Store(_) => {
                self.machines[machine].storage_answered(now, server, of, storage::Answer::Gone);
            }
        }
    }

    /// Why something waits, if it is for the catalog.
    pub(super) fn no_ticket(&self) -> Option<String> {
        let why = self.tickets.as_ref()?.why()?;
        Some(format!("the catalog of the volume, whose tickets servers want: {why}"))
    }
}
