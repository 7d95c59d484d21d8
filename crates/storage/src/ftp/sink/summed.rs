//! Sums of the parts of a large file, asked of the server over several sessions at the same time.
//!
//! In: a file that the server has whole, and the sums of what was sent of it. Out: whether it has that.
//! Invariants: each part is asked about until there is an answer or a reason, by whoever is free and at last
//! by whoever wants to know; nothing is asked before the server said that it has the whole file, so that no
//! part can change behind its sum but by somebody else's hand.
//!
//! Nobody can ask whether a server makes sums of parts. Those that speak of MODE E and make a SHA do (Globus,
//! haul; dCache refuses, and makes none). If one does not after all, its files are compared as a whole from
//! then on, and the one that this was seen with is sent again.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use haul_ftp::{Error, Session, Sum};

use super::queues::Work;
use super::sums::Sums;
use super::writer::Writer;

/// Sessions that ask about one file at the same time: a server's disk is to read it in few places.
const SESSIONS: usize = 4;

/// Whether large files are compared in parts.
pub(super) struct InParts(AtomicU8);

const NOT: u8 = 0;
const LIKELY: u8 = 1;
const SEEN: u8 = 2;

impl InParts {
    pub(super) fn of(session: &Session) -> InParts {
        let is_sha = session.sum().is_some_and(|sum| sum != Sum::Adler32);
        InParts(AtomicU8::new(if is_sha && session.sends_blocks() { LIKELY } else { NOT }))
    }

    pub(super) fn are_summed(&self) -> bool {
        self.0.load(Ordering::Relaxed) != NOT
    }

    /// A file was compared so, and is what was sent.
    fn worked(&self) {
        self.0.store(SEEN, Ordering::Relaxed);
    }

    /// The sums were others, or there were none. True: it may be that the server makes none of parts, and
    /// none is asked for any more.
    fn failed(&self) -> bool {
        self.0.compare_exchange(LIKELY, NOT, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            || self.0.load(Ordering::Relaxed) == NOT
    }
}

/// A file at the server, and what is known of its parts.
pub(super) struct Summed {
    temp: Vec<u8>,
    /// Each by its offset and length.
    parts: Vec<(u64, u64)>,
    next: AtomicUsize,
    told: Mutex<Told>,
    changed: Condvar,
}

struct Told {
    sums: Vec<Option<Result<Vec<u8>, Error>>>,
    /// Parts that somebody is asking about.
    asking: usize,
}

/// What became of a file.
pub(super) enum Compared {
    Alike,
    Other,
    /// The server makes no such sums: nothing is known of what it has.
    Unknown,
}

impl Summed {
    fn new(temp: &[u8], parts: Vec<(u64, u64)>) -> Arc<Summed> {
        let told = Told { sums: parts.iter().map(|_| None).collect(), asking: 0 };
        Arc::new(Summed {
            temp: temp.to_vec(),
            parts,
            next: AtomicUsize::new(0),
            told: Mutex::new(told),
            changed: Condvar::new(),
        })
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody asks about a part; also where that panics, nobody waits for it for ever.
struct Asking<'a>(&'a Summed);

impl<'a> Asking<'a> {
    fn begin(summed: &'a Summed) -> Option<(Asking<'a>, usize)> {
        let mut told = summed.told();
        let at = summed.next.fetch_add(1, Ordering::Relaxed);
        if at >= summed.parts.len() {
            return None;
        }
        told.asking += 1;
        Some((Asking(summed), at))
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.told().asking -= 1;
        self.0.changed.notify_all();
    }
}

impl Writer {
    /// Asks about parts that nobody else asks about.
    pub(super) fn help(&mut self, summed: &Summed) {
        let Some(sum) = self.common.sum else { return };
        while let Some((asking, at)) = Asking::begin(summed) {
            let result = self.ask_sum(sum, summed, at);
            let failed = result.is_err();
            summed.told().sums[at] = Some(result);
            drop(asking);
            if failed {
                // Whoever wants to know finds out what it is.
                return;
            }
        }
    }

    fn ask_sum(&mut self, sum: Sum, summed: &Summed, at: usize) -> Result<Vec<u8>, Error> {
        self.begins("sum", &summed.temp);
        let parts = [summed.parts[at]];
        let told = self.line.again(|session| session.part_sums(sum, &summed.temp, &parts))?;
        let none = Error::Broken { doing: "asking for a sum", why: "nothing was said" };
        told.into_iter().next().unwrap_or(Err(none))
    }

    /// Whether the server has of a file of so many bytes what was sent of it.
    ///
    /// # Errors
    /// It does not say.
    pub(super) fn compare_parts(&mut self, temp: &[u8], size: u64, own: &Sums) -> Result<Compared, Error> {
        let Some(sum) = self.common.sum else { return Ok(Compared::Unknown) };
        let parts: Vec<(u64, u64)> = own.parts(size).map(|(part, _)| part).collect();
        let others = parts.len().min(SESSIONS).saturating_sub(1);
        let summed = Summed::new(temp, parts);
        {
            let mut queues = self.common.lock();
            (0..others).for_each(|_| queues.common.push_back(Work::Sums(summed.clone())));
        }
        self.common.ready.notify_all();
        self.help(&summed);
        let mut told = summed.told();
        while told.asking > 0 {
            told = summed.changed.wait(told).unwrap_or_else(PoisonError::into_inner);
        }
        let mut sums = std::mem::take(&mut told.sums);
        drop(told);
        for at in 0..sums.len() {
            // Of what another session was not told this one asks.
            if !matches!(&sums[at], Some(Ok(_))) {
                sums[at] = Some(self.ask_sum(sum, &summed, at));
            }
            match sums[at].take() {
                Some(Ok(told)) => sums[at] = Some(Ok(told)),
                Some(Err(error)) if error.is_unknown() => return Ok(Compared::Unknown),
                Some(Err(error)) => return Err(error),
                None => {}
            }
        }
        let alike =
            own.parts(size).zip(&sums).all(|((_, own), told)| matches!(told, Some(Ok(told)) if told == own));
        Ok(if alike { Compared::Alike } else { Compared::Other })
    }

    /// What the comparison of a file says of the server. True: it may be that it makes no sums of parts.
    pub(super) fn note_compared(&self, compared: &Compared) -> bool {
        match compared {
            Compared::Alike => {
                self.common.in_parts.worked();
                false
            }
            Compared::Other | Compared::Unknown => self.common.in_parts.failed(),
        }
    }
}
