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
use std::time::{Duration, Instant};

use haul_ftp::{Error, Session, Sum};

/// Sessions that ask about one file at the same time: a server's disk is to read it in few places.
const SESSIONS: usize = 4;
/// Those of them that help, of a file of so many parts.
pub(super) fn helpers(parts: usize) -> usize {
    parts.min(SESSIONS).saturating_sub(1)
}

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
    pub(super) fn worked(&self) {
        self.0.store(SEEN, Ordering::Relaxed);
    }

    /// The sums were others, or there were none. True: it may be that the server makes none of parts, and
    /// none is asked for any more.
    pub(super) fn failed(&self) -> bool {
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
    pub(super) fn new(temp: &[u8], parts: Vec<(u64, u64)>) -> Arc<Summed> {
        let told = Told { sums: parts.iter().map(|_| None).collect(), asking: 0 };
        Arc::new(Summed {
            temp: temp.to_vec(),
            parts,
            next: AtomicUsize::new(0),
            told: Mutex::new(told),
            changed: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn temp(&self) -> &[u8] {
        &self.temp
    }

    pub(super) fn part(&self, at: usize) -> (u64, u64) {
        self.parts[at]
    }

    /// The next part that nobody asked about.
    pub(super) fn begin(&self) -> Option<Asking<'_>> {
        let mut told = self.lock();
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        if at >= self.parts.len() {
            return None;
        }
        told.asking += 1;
        Some(Asking { summed: self, at })
    }

    /// Nobody begins with another part; what is known of each when all who ask have heard, or after so long.
    /// What is told later counts for nothing.
    pub(super) fn finish(&self, patience: Duration) -> Vec<Option<Result<Vec<u8>, Error>>> {
        let until = Instant::now() + patience;
        let mut told = self.lock();
        self.next.store(self.parts.len(), Ordering::Relaxed);
        while told.asking > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() && !haul_mutant::removed("ftp-sums-wait-for-nobody") {
                break;
            }
            let left = left.max(Duration::from_millis(100));
            told = self.changed.wait_timeout(told, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let none = self.parts.iter().map(|_| None).collect();
        std::mem::replace(&mut told.sums, none)
    }
}

/// Somebody asks about a part; also where that panics, nobody waits for it for ever.
pub(super) struct Asking<'a> {
    summed: &'a Summed,
    pub(super) at: usize,
}

impl Asking<'_> {
    pub(super) fn tell(self, result: Result<Vec<u8>, Error>) {
        self.summed.lock().sums[self.at] = Some(result);
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.summed.lock().asking -= 1;
        self.summed.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Goal: who wants to know does not wait for a helper that is not answered, and what that says later
    /// harms nothing.
    #[test]
    fn nobody_waits_for_a_helper_without_end() {
        let summed = Summed::new(b"/d/.x.haul~1", vec![(0, 1), (1, 1)]);
        let (helper, (asks, asked), (ends, ended)) = (summed.clone(), mpsc::channel(), mpsc::channel());
        let helping = std::thread::spawn(move || {
            let asking = helper.begin().expect("a part");
            asks.send(()).expect("somebody waits");
            let was_left = ended.recv_timeout(Duration::from_secs(20)).is_ok();
            asking.tell(Ok(vec![1]));
            was_left
        });
        asked.recv().expect("it asks");
        summed.begin().expect("another part").tell(Ok(vec![2]));
        let told = summed.finish(Duration::ZERO);
        let _ = ends.send(());
        assert!(helping.join().expect("it ends"), "it was waited for");
        assert!(matches!(&told[..], [None, Some(Ok(two))] if *two == [2]));
    }
}
