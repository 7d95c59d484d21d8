//! Tickets as bytes: as the catalog gives them, as clients show them, and as servers want others.

use super::bad;
use crate::volume::ticket::{CODE_LEN, Rights, Sealed, Term, Ticket};
use crate::volume::{ClientNo, FileNo, RequestNo};
use crate::wire::codec::{Reader, Writer};
use crate::wire::{CONTROL_LEN_MAX, FILE_LEN_MAX, WireError};

/// Most tickets that are given at a time, and most epochs that are told.
pub const TICKETS_MAX: usize = 1024;
const SEALED_LEN: usize = 8 + 8 + 4 + 8 + 8 + 1 + 8 + CODE_LEN;
const RAISED_LEN: usize = 8 + 4;
const _: () = assert!(16 + TICKETS_MAX * (SEALED_LEN + RAISED_LEN) <= CONTROL_LEN_MAX);

/// What the catalog gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenTickets {
    /// The term that it is.
    pub term: Term,
    /// Servers want tickets of whoever holds this client's key.
    pub needed: bool,
    /// At most [`TICKETS_MAX`].
    pub tickets: Vec<Sealed>,
    /// To a server: files whose epoch was raised, and to which; at most [`TICKETS_MAX`].
    pub raised: Vec<(FileNo, u32)>,
}

/// What a server wants another ticket for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub number: RequestNo,
    pub file: FileNo,
    /// The one that it had, see [`Sealed::name`]; `None`: it had none.
    pub had: Option<u64>,
}

pub(super) fn write_sealed(w: &mut Writer<'_>, sealed: &Sealed) {
    let Ticket { client, file, epoch, range, rights, term } = &sealed.ticket;
    w.u64(client.0);
    w.u64(file.0);
    w.u32(*epoch);
    w.u64(range.start);
    w.u64(range.end);
    w.u8(rights.bits());
    w.u64(term.0);
    w.raw(&sealed.code);
}

pub(super) fn read_sealed(r: &mut Reader<'_>) -> Result<Sealed, WireError> {
    let (client, file) = (ClientNo(r.u64("client of a ticket")?), FileNo(r.u64("file of a ticket")?));
    let epoch = r.u32("epoch of a ticket")?;
    let (start, end) = (r.u64("start of a ticket")?, r.u64("end of a ticket")?);
    if start > end || end > FILE_LEN_MAX {
        return Err(bad("end of a ticket", end));
    }
    let bits = r.u8("rights of a ticket")?;
    let rights = Rights::from_bits(bits).ok_or_else(|| bad("rights of a ticket", bits.into()))?;
    let term = Term(r.u64("term of a ticket")?);
    let code = r.array("code of a ticket")?;
    Ok(Sealed { ticket: Ticket { client, file, epoch, range: start..end, rights, term }, code })
}

pub(super) fn write_wanted(w: &mut Writer<'_>, wanted: &Wanted) {
    w.u64(wanted.number.0);
    w.u64(wanted.file.0);
    w.bool(wanted.had.is_some());
    w.u64(wanted.had.unwrap_or_default());
}

pub(super) fn read_wanted(r: &mut Reader<'_>) -> Result<Wanted, WireError> {
    let (number, file) = (RequestNo(r.u64("request")?), FileNo(r.u64("file")?));
    let had = match (r.bool("whether there was a ticket")?, r.u64("ticket")?) {
        (true, name) => Some(name),
        (false, 0) => None,
        (false, name) => return Err(bad("ticket that there was not", name)),
    };
    Ok(Wanted { number, file, had })
}

pub(super) fn write_given(w: &mut Writer<'_>, given: &GivenTickets) {
    w.u64(given.term.0);
    w.bool(given.needed);
    w.count("tickets", given.tickets.len(), TICKETS_MAX);
    given.tickets.iter().for_each(|sealed| write_sealed(w, sealed));
    w.count("raised epochs", given.raised.len(), TICKETS_MAX);
    for (file, epoch) in &given.raised {
        w.u64(file.0);
        w.u32(*epoch);
    }
}

pub(super) fn read_given(r: &mut Reader<'_>) -> Result<GivenTickets, WireError> {
    let (term, needed) = (Term(r.u64("term")?), r.bool("whether tickets are needed")?);
    let tickets = r.list("tickets", TICKETS_MAX, SEALED_LEN, read_sealed)?;
    let raised = r.list("raised epochs", TICKETS_MAX, RAISED_LEN, |r| {
        Ok((FileNo(r.u64("file of an epoch")?), r.u32("epoch of a file")?))
    })?;
    Ok(GivenTickets { term, needed, tickets, raised })
}
