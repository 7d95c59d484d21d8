//! Whether files go in blocks over several connections, and over how many.
//!
//! In: what the first session knows of the server, and what went wrong since. Out: a number of connections,
//! or none; for people, why none.
//! Invariant: a file that came to nothing in blocks goes as it is from then on, so that each is sent at least
//! once as to any other server before it fails.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use haul_core::ids::FileId;
use haul_ftp::Error;

use crate::ftp::share::{Active, Share};

/// Files that come to nothing before nobody tries any more: where none went well so far, and where some did.
const UNTRIED_MAX: u32 = 2;
const FAILURES_MAX: u32 = 16;
/// Files that a session has under way: where bytes wait for the server's word, at a server that is near, and
/// at one that is far.
const LINE_MAX: usize = 3;
const LINE_NEAR_MAX: usize = 4;
const LINE_FAR_MAX: usize = 64;
/// No further one is said when the first was said so long ago: in round trips, and at least.
const LINE_TRIPS: u32 = 4;
const LINE_TIME_MIN: Duration = Duration::from_millis(250);
/// So many lines may be lost with all that is in them, before bytes wait for the server's word: within so
/// many files that the server takes.
const LINES_LOST_MAX: u32 = 2;
const FORGIVEN_AFTER: u32 = 512;

/// See the module.
pub(super) struct Lanes {
    share: Arc<Share>,
    round_trip: Duration,
    inner: Mutex<Inner>,
}

struct Inner {
    /// Why not; empty where there never was anything to say.
    off: Option<String>,
    worked: bool,
    failures: u32,
    /// Each file has connections of its own, for the server closes them behind it, or makes no sums.
    unkept: bool,
    /// Lines that were lost, and files that went well since.
    lines_lost: u32,
    well: u32,
    /// Files that came to nothing in blocks.
    alone: HashSet<FileId>,
}

impl Lanes {
    /// `sends`: the server may take files so. `sums`: it makes sums of what it has; of one that makes none
    /// nobody would see that it said too early that it has all of a file, and took the rest of it for the
    /// next one's, so that each file has connections of its own.
    pub(super) fn new(sends: bool, sums: bool, round_trip: Option<Duration>) -> Arc<Lanes> {
        let off = (!sends).then(String::new);
        let inner = Inner {
            off,
            worked: false,
            failures: 0,
            unkept: !sums,
            lines_lost: 0,
            well: 0,
            alone: HashSet::new(),
        };
        let share = Share::new(round_trip);
        let round_trip = round_trip.unwrap_or_default();
        Arc::new(Lanes { share, round_trip, inner: Mutex::new(inner) })
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
        Some(self.share.connections(size))
    }

    /// A session begins a file over so many connections.
    pub(super) fn begin(&self, connections: u32) -> Active {
        self.share.begin(connections)
    }

    /// How many files a session has under way.
    pub(super) fn line_max(&self) -> usize {
        let inner = self.lock();
        match () {
            () if inner.unkept => 1,
            () if !inner.gives_early() => LINE_MAX,
            () if self.share.is_near() => LINE_NEAR_MAX,
            () => LINE_FAR_MAX,
        }
    }

    /// For how long the first of them may be under way when another one is said.
    pub(super) fn line_time(&self) -> Duration {
        (self.round_trip * LINE_TRIPS).max(LINE_TIME_MIN)
    }

    /// The bytes of a file do not wait until the server says that it begins with it. Where that goes wrong it
    /// shows in the sums of files, which a server must make for that.
    pub(super) fn gives_early(&self) -> bool {
        self.lock().gives_early()
    }

    /// A line was lost with all that was in it, for one file's sake.
    pub(super) fn line_lost(&self) {
        let mut inner = self.lock();
        inner.lines_lost += u32::from(!haul_mutant::removed("ftp-lines-that-are-lost-end-early-bytes"));
        inner.well = 0;
    }

    /// The server is near: a round trip costs less than what else would be done about it.
    pub(super) fn is_near(&self) -> bool {
        self.share.is_near()
    }

    /// Connections are made anew for each file.
    pub(super) fn is_unkept(&self) -> bool {
        self.lock().unkept
    }

    /// The server made no sum of a file, whatever it says that it makes.
    pub(super) fn makes_no_sum(&self) {
        self.lock().unkept |= !haul_mutant::removed("ftp-sums-that-never-come-are-noted");
    }

    /// The server says that it has all of a file.
    pub(super) fn worked(&self) {
        let mut inner = self.lock();
        inner.worked = true;
        inner.failures = 0;
        inner.well = inner.well.saturating_add(1);
        if inner.well >= FORGIVEN_AFTER && inner.gives_early() {
            inner.lines_lost = 0;
        }
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
        self.share.words(self.lock().off.as_deref())
    }
}

impl Inner {
    fn gives_early(&self) -> bool {
        !self.unkept && self.lines_lost < LINES_LOST_MAX
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
