//! Whether files go in blocks over several connections, and over how many.
//!
//! In: what the first session knows of the server, and what went wrong since. Out: a number of connections,
//! or none; for people, why none.
//! Invariant: a file that came to nothing in blocks goes as it is from then on, so that each is sent at least
//! once as to any other server before it fails.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use haul_core::ids::FileId;
use haul_ftp::Error;

/// Connections of one file to a server that is near, and to one that is far.
const NEAR: u32 = 4;
const FAR_MAX: u32 = 16;
/// So much of a round trip is worth one more connection: each takes what fits into its buffers in one.
const WORTH_ONE: Duration = Duration::from_millis(6);
/// What is shorter has one connection, for each costs the server something at each file.
const SEVERAL_FROM: u64 = 16 << 20;
/// Files that come to nothing before nobody tries any more: where none went well so far, and where some did.
const UNTRIED_MAX: u32 = 2;
const FAILURES_MAX: u32 = 16;
/// Files that a session says in advance: the next one is begun when the one before is over.
const LINE_MAX: usize = 3;

/// See the module.
pub(super) struct Lanes {
    round_trip: Option<Duration>,
    /// Sessions in the middle of a file in blocks; and the most connections that one had.
    active: AtomicU32,
    most: AtomicU32,
    inner: Mutex<Inner>,
}

struct Inner {
    /// Why not; empty where there never was anything to say.
    off: Option<String>,
    worked: bool,
    failures: u32,
    /// Each file has connections of its own, for the server closes them behind it, or makes no sums.
    unkept: bool,
    /// Files that came to nothing in blocks.
    alone: HashSet<FileId>,
}

/// A session is in the middle of a file in blocks as long as it has this.
pub(super) struct Active(Arc<Lanes>);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lanes {
    /// `sends`: the server may take files so. `sums`: it makes sums of what it has; of one that makes none
    /// nobody would see that it said too early that it has all of a file, and took the rest of it for the
    /// next one's, so that each file has connections of its own.
    pub(super) fn new(sends: bool, sums: bool, round_trip: Option<Duration>) -> Arc<Lanes> {
        let off = (!sends).then(String::new);
        let inner = Inner { off, worked: false, failures: 0, unkept: !sums, alone: HashSet::new() };
        let zero = || AtomicU32::new(0);
        Arc::new(Lanes { round_trip, active: zero(), most: zero(), inner: Mutex::new(inner) })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Over how many connections a file goes; `None`: it goes as it is.
    pub(super) fn connections(&self, id: FileId, size: u64) -> Option<u32> {
        let inner = self.lock();
        if inner.off.is_some() || inner.alone.contains(&id) {
            return None;
        }
        drop(inner);
        if size < SEVERAL_FROM {
            return Some(1);
        }
        let worth = self.round_trip.map_or(0, |time| (time.as_millis() / WORTH_ONE.as_millis()) as u32);
        // Several files at a time share them. Few different numbers: a new one is new connections.
        let all = worth.next_power_of_two().clamp(NEAR, FAR_MAX);
        Some((all / self.active.load(Ordering::Relaxed).max(1).next_power_of_two()).max(2))
    }

    /// A session begins a file over so many connections.
    pub(super) fn begin(self: &Arc<Lanes>, connections: u32) -> Active {
        self.active.fetch_add(1, Ordering::Relaxed);
        self.most.fetch_max(connections, Ordering::Relaxed);
        Active(self.clone())
    }

    /// How many files are said in advance.
    pub(super) fn line_max(&self) -> usize {
        if self.lock().unkept { 1 } else { LINE_MAX }
    }

    /// Connections are made anew for each file.
    pub(super) fn is_unkept(&self) -> bool {
        self.lock().unkept
    }

    /// The server made no sum of a file, whatever it says that it makes.
    pub(super) fn makes_no_sum(&self) {
        self.lock().unkept = true;
    }

    /// The server says that it has all of a file.
    pub(super) fn worked(&self) {
        let mut inner = self.lock();
        inner.worked = true;
        inner.failures = 0;
    }

    /// A file came to nothing in blocks, and goes as it is from now on.
    pub(super) fn note(&self, id: FileId, error: &Error) {
        let mut inner = self.lock();
        match error {
            // Nothing of it went.
            Error::Unkept(_) => return inner.unkept = true,
            // What has nothing to do with a file will be refused of the next one, too.
            Error::Refused { said, code: 500.., .. } if !said.starts_with("STOR") => {
                inner.off.get_or_insert(error.to_string());
            }
            _ => {}
        }
        inner.alone.insert(id);
        // What the server says of a file before it begins is of that file, unless it takes it otherwise.
        if matches!(error, Error::Refused { code: 500.., .. }) || error.is_no_room() {
            return;
        }
        inner.failures += 1;
        if inner.failures >= if inner.worked { FAILURES_MAX } else { UNTRIED_MAX } {
            inner.off.get_or_insert(error.to_string());
        }
    }

    /// What was refused in blocks for this reason was taken as it is.
    pub(super) fn taken_otherwise(&self, refused: &Error) {
        if matches!(refused, Error::Refused { code: 500.., .. }) {
            self.give_up(&refused.to_string());
        }
    }

    /// The server keeps something else than what it was sent of a file in blocks.
    pub(super) fn spoiled(&self, id: FileId, why: &str) {
        self.lock().alone.insert(id);
        self.give_up(why);
    }

    /// No file goes in blocks any more. The first reason stays.
    fn give_up(&self, why: &str) {
        self.lock().off.get_or_insert(why.to_owned());
    }

    pub(super) fn forget(&self, id: FileId) {
        self.lock().alone.remove(&id);
    }

    /// For people, if there is anything to say.
    pub(super) fn words(&self) -> Option<String> {
        let used = match self.most.load(Ordering::Relaxed) {
            0 => None,
            1 => Some("in blocks, one connection a file".to_owned()),
            most => Some(format!("in blocks, up to {most} connections a file")),
        };
        match (used, self.lock().off.as_deref()) {
            (used, None) => used,
            (_, Some("")) => None,
            (None, Some(why)) => Some(format!("one connection a session: {why}")),
            (Some(used), Some(why)) => Some(format!("{used}; then one connection a session: {why}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(millis: u64) -> Arc<Lanes> {
        Lanes::new(true, true, Some(Duration::from_millis(millis)))
    }

    fn refused(said: &str, code: u16) -> Error {
        Error::Refused { said: said.into(), code, text: String::new() }
    }

    fn lost() -> Error {
        Error::Lost { doing: "sending", cause: std::io::ErrorKind::ConnectionReset.into() }
    }

    /// Goal: the farther the server and the fewer files at a time, the more connections has one; small files
    /// have one.
    #[test]
    fn connections_follow_the_way() {
        let id = FileId(1);
        for (millis, alone) in [(0, 4), (20, 4), (30, 8), (50, 8), (90, 16), (10_000, 16)] {
            let lanes = lanes(millis);
            assert_eq!(lanes.connections(id, 1 << 40), Some(alone), "{millis} ms");
            assert_eq!(lanes.connections(id, 1 << 20), Some(1));
            let all: Vec<Active> = (0..8).map(|_| lanes.begin(1)).collect();
            assert_eq!(lanes.connections(id, 1 << 40), Some(2), "{millis} ms, shared");
            drop(all);
            assert_eq!(lanes.connections(id, 1 << 40), Some(alone), "{millis} ms");
        }
    }

    /// Goal: a file that came to nothing in blocks goes as it is; others go on in blocks until it is known
    /// that the server does not take them so.
    #[test]
    fn failures_end_it() {
        let is_on = |lanes: &Lanes, id| lanes.connections(FileId(id), 1).is_some();
        let lanes = self::lanes(0);
        lanes.note(FileId(1), &lost());
        assert!(!is_on(&lanes, 1) && is_on(&lanes, 2));
        lanes.worked();
        for id in 10..10 + u64::from(FAILURES_MAX) {
            assert!(is_on(&lanes, 9), "{id}");
            lanes.note(FileId(id), &lost());
            // Of that file alone.
            lanes.note(FileId(id), &refused("STOR /x", 553));
        }
        assert!(!is_on(&lanes, 9));

        let lanes = self::lanes(0);
        lanes.note(FileId(1), &lost());
        lanes.note(FileId(2), &lost());
        assert!(!is_on(&lanes, 9), "where none went well");

        let lanes = self::lanes(0);
        lanes.note(FileId(1), &refused("STOR /x", 500));
        assert!(is_on(&lanes, 2));
        lanes.taken_otherwise(&refused("STOR /x", 500));
        assert!(!is_on(&lanes, 2));
        for error in [refused("MODE E", 504), refused("EPSV", 502)] {
            let lanes = self::lanes(0);
            lanes.note(FileId(1), &error);
            assert!(!is_on(&lanes, 2), "{error}");
            lanes.spoiled(FileId(3), "other bytes");
            assert!(lanes.words().is_some_and(|words| words.contains("50")), "the first reason stays");
        }
    }
}
