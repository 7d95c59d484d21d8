//! Tickets: what the catalog lets a client do with a file, so that its servers need not ask.
//!
//! In: a key that catalog and servers have in common and clients do not; terms, as the catalog counts them;
//! time. Out: tickets with a code, and at a server whether one is good for what is asked.
//! Invariants: no ticket is good that the catalog did not give, for this volume, this client and this file;
//! none of a lower epoch of its file than the server saw, nor outside of its range and rights. No two hosts'
//! clocks are compared: the catalog raises the *term* every so often, and a server takes tickets of the term
//! that it knows and of the one before. It hears of terms from the catalog, and by tickets of later ones; one
//! that was started anew takes none that was over before. Where it hears neither the catalog nor of a later
//! term for too long by its own clock, it is parted from the catalog: then tickets let nobody change anything
//! there. Left out: who may get which ticket, which the catalog knows.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use super::{ClientNo, FileNo, VolumeId, gather, storage};
use crate::ids::Time;
use crate::wire::FILE_LEN_MAX;

/// How a volume's files lie on its servers changes with its generation; there is only this one yet.
pub const GENERATION: u32 = 1;
/// Bytes of a ticket's code.
pub const CODE_LEN: usize = 32;
/// A term is so long, if nobody says otherwise.
pub const TERM: Duration = Duration::from_secs(60);
/// A server that heard of no later term for so many terms is parted from its catalog.
pub const PARTED_TERMS: u32 = 5;
/// Epochs of files that a server remembers, until tickets of lower ones are over by their term; only a file
/// that lost its name has one that is not the first.
const EPOCHS_MAX: usize = 262_144;
/// Tickets of one connection that both ends know to be shown there; of more they begin anew.
pub const SHOWN_MAX: usize = 16_384;

/// Makes room for one more among those that were shown. Both ends do this alike; where they do not, the
/// server says that it has no ticket.
pub fn make_room<T>(shown: &mut BTreeMap<FileNo, T>, file: FileNo) {
    if shown.len() >= SHOWN_MAX && !shown.contains_key(&file) {
        shown.clear();
    }
}

/// A term; a catalog that was started anew is in a later one than ever before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(pub u64);

impl Term {
    /// The first one of a catalog's life, of which each has another number, later ones higher ones.
    pub fn first_of(life: u64) -> Term {
        Term(life << 32)
    }

    pub fn next(self) -> Term {
        Term(self.0.saturating_add(1))
    }
}

/// What a ticket lets its client do: some of these together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rights(u8);

impl Rights {
    pub const READ: Rights = Rights(1);
    pub const WRITE: Rights = Rights(2);
    /// To cut it to a length, and to remove it.
    pub const CUT: Rights = Rights(4);
    pub const ALL: Rights = Rights(7);

    pub fn bits(self) -> u8 {
        self.0
    }

    pub fn from_bits(bits: u8) -> Option<Rights> {
        (bits <= Rights::ALL.0).then_some(Rights(bits))
    }

    pub fn has(self, other: Rights) -> bool {
        self.0 & other.0 == other.0
    }
}

/// What a client may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub client: ClientNo,
    pub file: FileNo,
    /// How often the catalog took back what it had given of the file: with its name.
    pub epoch: u32,
    /// Bytes.
    pub range: Range<u64>,
    pub rights: Rights,
    pub term: Term,
}

/// A ticket, and what shows that the catalog gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    pub ticket: Ticket,
    pub code: [u8; CODE_LEN],
}

impl Sealed {
    /// What it is called where it was refused; no two have the same, as far as anybody can tell.
    pub fn name(&self) -> u64 {
        let (first, _) = self.code.split_first_chunk().expect("a code is longer");
        u64::from_le_bytes(*first)
    }
}

/// What tickets are sealed with.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// The key that a secret of the servers makes.
    pub fn of_secret(secret: &[u8]) -> Key {
        Key(blake3::derive_key("haul 2026-11 tickets of a volume's catalog", secret))
    }

    fn code(&self, volume: VolumeId, generation: u32, ticket: &Ticket) -> blake3::Hash {
        let Ticket { client, file, epoch, range, rights, term } = ticket;
        let mut told = [0; 16 + 4 + 8 + 8 + 4 + 8 + 8 + 1 + 8];
        let mut rest = &mut told[..];
        let mut put = |bytes: &[u8]| {
            let (head, tail) = std::mem::take(&mut rest).split_at_mut(bytes.len());
            head.copy_from_slice(bytes);
            rest = tail;
        };
        put(&volume.0);
        put(&generation.to_le_bytes());
        put(&client.0.to_le_bytes());
        put(&file.0.to_le_bytes());
        put(&epoch.to_le_bytes());
        put(&range.start.to_le_bytes());
        put(&range.end.to_le_bytes());
        put(&[rights.0]);
        put(&term.0.to_le_bytes());
        blake3::keyed_hash(&self.0, &told)
    }

    pub fn seal(&self, volume: VolumeId, ticket: Ticket) -> Sealed {
        let code = self.code(volume, GENERATION, &ticket).into();
        Sealed { ticket, code }
    }

    /// Whether it was sealed for this volume.
    fn fits(&self, volume: VolumeId, sealed: &Sealed) -> bool {
        // In constant time.
        self.code(volume, GENERATION, &sealed.ticket) == blake3::Hash::from_bytes(sealed.code)
    }
}

/// What a request needs a ticket for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    pub file: FileNo,
    pub rights: Rights,
    pub range: Range<u64>,
    /// It tells what was done under a ticket that was good then, and has no answer: any that was given will
    /// do.
    pub tells: bool,
}

impl Need {
    fn new(file: FileNo, rights: Rights, range: Range<u64>) -> Need {
        Need { file, rights, range, tells: false }
    }

    /// `None`: it gives something back.
    pub fn of_gather<B>(request: &gather::Request<B>, stripe_size: u64) -> Option<Need> {
        use gather::Request;
        let bytes = |range: &Range<u64>| {
            let at = |stripe: u64| stripe.saturating_mul(stripe_size).min(FILE_LEN_MAX);
            at(range.start)..at(range.end)
        };
        Some(match request {
            Request::Release { .. } => return None,
            Request::Read { file, offset, len } => Need::new(*file, Rights::READ, *offset..offset + len),
            Request::Map { file, stripes } => Need::new(*file, Rights::READ, bytes(stripes)),
            Request::Look { file } => Need::new(*file, Rights::READ, 0..0),
            Request::Write { file, offset, len, .. } => {
                Need::new(*file, Rights::WRITE, *offset..offset + len)
            }
            Request::Lease { file, stripes } => Need::new(*file, Rights::WRITE, bytes(stripes)),
            Request::Sync { file } | Request::Told { file, .. } => Need::new(*file, Rights::WRITE, 0..0),
            // Where it will stand nobody knows yet.
            Request::Append { file, .. } => Need::new(*file, Rights::WRITE, 0..FILE_LEN_MAX),
            Request::Grow { file, end, .. } => {
                Need { tells: true, ..Need::new(*file, Rights::WRITE, 0..*end) }
            }
            Request::Truncate { file, len } => Need::new(*file, Rights::CUT, *len..FILE_LEN_MAX),
            Request::Remove { file } => Need::new(*file, Rights::CUT, 0..FILE_LEN_MAX),
        })
    }

    pub fn of_store<B>(request: &storage::Request<B>, len: u64) -> Need {
        use storage::Request;
        match request {
            Request::Read { file, offset, len } => Need::new(*file, Rights::READ, *offset..offset + len),
            Request::Write { file, offset, .. } => Need::new(*file, Rights::WRITE, *offset..offset + len),
            Request::Sync { file } => Need::new(*file, Rights::WRITE, 0..0),
            Request::Cut { file, from, .. } => Need::new(*file, Rights::CUT, *from..FILE_LEN_MAX),
            Request::Remove { file, .. } => Need::new(*file, Rights::CUT, 0..FILE_LEN_MAX),
        }
    }
}

/// Why a ticket is good for nothing any more, or none was shown: with another one the same may be asked
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    Missing,
    /// It was not given by this volume's catalog, or to another client.
    Forged,
    /// The file has another epoch.
    Epoch,
    /// Its term is over.
    Term,
    /// The server heard nothing of its catalog for too long.
    Parted,
}

/// Why something is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Stale(Stale),
    /// The ticket is good, and not for that.
    Beyond,
}

/// What a server knows of tickets.
#[derive(Debug)]
pub struct Tickets {
    key: Key,
    volume: VolumeId,
    /// So long without the catalog, and it is parted.
    parted: Duration,
    term: Option<Term>,
    /// The term is what an earlier life of this server knew: what the catalog says counts more.
    is_kept: bool,
    /// When the catalog was heard last, or of a later term.
    since: Time,
    /// And in which term they were so high at the latest: no ticket of a lower one is of a later term.
    epochs: BTreeMap<FileNo, (u32, Term)>,
}

impl Tickets {
    /// Of a server that begins a life; `kept`: the last term that an earlier one knew, if there was one.
    pub fn new(key: Key, volume: VolumeId, parted: Duration, kept: Option<Term>) -> Tickets {
        let term = kept.filter(|_| !haul_mutant::removed("volume-kept-terms-count"));
        let (since, epochs) = (Time::default(), BTreeMap::new());
        Tickets { key, volume, parted, term, is_kept: term.is_some(), since, epochs }
    }

    /// The term that is known; `None` before anything was heard of any.
    pub fn term(&self) -> Option<Term> {
        self.term
    }

    /// It is this term, says the catalog itself.
    pub fn told(&mut self, now: Time, term: Term) {
        // One that counts none yet knows of none.
        if term == Term::default() {
            return;
        }
        self.since = self.since.max(now);
        // A catalog that was brought back from an older copy is the catalog.
        if self.is_kept || self.term.is_none_or(|known| known < term) {
            self.begins(term);
        }
    }

    /// There is this term, says a ticket.
    fn hear(&mut self, now: Time, term: Term) {
        if self.term.is_none_or(|known| known < term) {
            self.since = self.since.max(now);
            self.begins(term);
        }
    }

    fn begins(&mut self, term: Term) {
        self.term = Some(term);
        self.is_kept = false;
        self.epochs.retain(|_, (_, of)| of.next() >= term);
    }

    /// The catalog raised the epoch of a file.
    pub fn raise(&mut self, file: FileNo, epoch: u32) {
        self.note_epoch(file, epoch, self.term.unwrap_or_default());
    }

    fn epoch(&self, file: FileNo) -> u32 {
        self.epochs.get(&file).map_or(0, |(epoch, _)| *epoch)
    }

    fn note_epoch(&mut self, file: FileNo, epoch: u32, of: Term) {
        // Where there is no room, tickets of lower ones end with their terms.
        let has_room = self.epochs.len() < EPOCHS_MAX || self.epochs.contains_key(&file);
        if epoch > self.epoch(file) && has_room {
            self.epochs.insert(file, (epoch, of));
        }
    }

    /// A client shows a ticket.
    ///
    /// # Errors
    /// It is none, or none any more.
    pub fn show(&mut self, now: Time, client: ClientNo, sealed: &Sealed) -> Result<(), Stale> {
        let is_given = self.key.fits(self.volume, sealed) || haul_mutant::removed("volume-ticket-codes");
        let ticket = &sealed.ticket;
        if !is_given || ticket.client != client {
            return Err(Stale::Forged);
        }
        self.hear(now, ticket.term);
        self.note_epoch(ticket.file, ticket.epoch, ticket.term);
        self.is_good(ticket)
    }

    fn is_good(&self, ticket: &Ticket) -> Result<(), Stale> {
        if ticket.epoch < self.epoch(ticket.file) && !haul_mutant::removed("volume-ticket-epochs") {
            return Err(Stale::Epoch);
        }
        let is_over = self.term.is_none_or(|term| ticket.term.next() < term);
        if is_over && !haul_mutant::removed("volume-ticket-terms") {
            return Err(Stale::Term);
        }
        Ok(())
    }

    /// Whether that may be done with a ticket that was shown and is not [forged](Stale::Forged); `None`: none
    /// was.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, now: Time, ticket: Option<&Ticket>, need: &Need) -> Result<(), Refusal> {
        let ticket = ticket.filter(|ticket| ticket.file == need.file);
        let ticket = ticket.ok_or(Refusal::Stale(Stale::Missing))?;
        let is_within = need.range.is_empty()
            || ticket.range.start <= need.range.start && need.range.end <= ticket.range.end
            || haul_mutant::removed("volume-ticket-ranges");
        let may = ticket.rights.has(need.rights) || haul_mutant::removed("volume-ticket-rights");
        if !is_within || !may {
            return Err(Refusal::Beyond);
        }
        if need.tells {
            return Ok(());
        }
        self.is_good(ticket).map_err(Refusal::Stale)?;
        let is_parted = self.since.after(self.parted) <= now && need.rights != Rights::READ;
        match is_parted && !haul_mutant::removed("volume-parted-servers-change-nothing") {
            true => Err(Refusal::Stale(Stale::Parted)),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
