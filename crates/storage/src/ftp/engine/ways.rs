//! Whether files come in blocks over several connections, and over how many.
//!
//! In: what the first session knows of the server, and what went wrong since. Out: a number of connections,
//! or none; for people, why none.
//! Invariant: a version of a file of which a block did not fit is read as changed, by whoever reads of it,
//! and the server gives no more files in blocks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use haul_core::ids::{FileId, Generation};
use haul_ftp::Error;

use crate::ftp::share::{Active, Share};

/// Connections that are lost in the middle of files before nobody tries any more.
const FAILURES_MAX: u32 = 16;

/// See the module.
pub(super) struct Ways {
    share: Arc<Share>,
    failures: AtomicU32,
    inner: Mutex<Inner>,
}

struct Inner {
    /// Why not; empty where there never was anything to say.
    off: Option<String>,
    spoiled: HashMap<FileId, (Generation, String)>,
}

impl Ways {
    /// `has_blocks`: the server gives files so.
    pub(super) fn new(has_blocks: bool, round_trip: Option<Duration>) -> Ways {
        let off = (!has_blocks).then(String::new);
        let inner = Mutex::new(Inner { off, spoiled: HashMap::new() });
        Ways { share: Share::new(round_trip), failures: AtomicU32::new(0), inner }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_on(&self) -> bool {
        self.lock().off.is_none()
    }

    /// A round trip takes less than a further connection is worth.
    pub(super) fn is_near(&self) -> bool {
        self.share.is_near()
    }

    /// Over how many connections a file of this size comes.
    pub(super) fn connections(&self, size: u64) -> u32 {
        self.share.connections(size)
    }

    /// A session begins a file over so many connections.
    pub(super) fn begin(&self, connections: u32) -> Active {
        self.share.begin(connections)
    }

    /// Small files came, over one connection.
    pub(super) fn used(&self) {
        self.share.used(1);
    }

    /// A file in blocks came to nothing.
    pub(super) fn note(&self, error: &Error) {
        let ends = match error {
            Error::Uncalled { .. } | Error::Misfit(_) | Error::Grammar(_) | Error::Broken { .. } => true,
            // Nobody who came on the server's behalf showed that it comes in the user's name.
            Error::Untrusted { .. } => true,
            // That it cannot connect to this host, in its own words.
            Error::Refused { code: 425, .. } => true,
            // Globus has no number of its own for that.
            Error::Refused { text, .. } if text.contains("Unable to connect to ") => true,
            // What has nothing to do with a file will be refused of the next one, too.
            Error::Refused { said, code: 500.., .. } => !said.starts_with("RETR"),
            Error::Refused { .. } => false,
            _ => return self.note_lost(&error.to_string()),
        };
        if ends {
            self.give_up(error.to_string());
        }
    }

    /// The same of something that may go better with the next file.
    pub(super) fn note_lost(&self, why: &str) {
        if self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= FAILURES_MAX {
            self.give_up(why.to_owned());
        }
    }

    /// No file comes in blocks any more. The first reason stays.
    fn give_up(&self, why: String) {
        self.lock().off.get_or_insert(why);
    }

    /// This version of a file may hold what is not of it.
    pub(super) fn spoil(&self, id: FileId, generation: Generation, why: String) {
        self.lock().spoiled.insert(id, (generation, why));
    }

    /// Why no more is to be read of this version of a file.
    pub(super) fn spoiled(&self, id: FileId, generation: Generation) -> Option<String> {
        let inner = self.lock();
        let (of, why) = inner.spoiled.get(&id)?;
        (*of == generation).then(|| why.clone())
    }

    pub(super) fn forget(&self, id: FileId) {
        self.lock().spoiled.remove(&id);
    }

    /// For people, if there is anything to say.
    pub(super) fn words(&self) -> Option<String> {
        self.share.words(self.lock().off.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ways(millis: u64) -> Ways {
        Ways::new(true, Some(Duration::from_millis(millis)))
    }

    /// Goal: what cannot pass ends it at once, what may pass after many times; the first reason stays. What
    /// is of one file ends nothing.
    #[test]
    fn failures_end_it() {
        let of_file = Error::Refused { said: "RETR /x".into(), code: 500, text: "no such file".into() };
        let lost = || Error::Lost { doing: "reading", cause: std::io::ErrorKind::ConnectionReset.into() };
        let ways = ways(0);
        for _ in 1..FAILURES_MAX {
            ways.note(&of_file);
            ways.note(&lost());
        }
        assert!(ways.is_on());
        ways.note(&lost());
        assert!(!ways.is_on());
        ways.note(&Error::Misfit("twice".into()));
        assert!(ways.words().is_some_and(|words| !words.contains("twice")));
        for error in [
            Error::Misfit("twice".into()),
            Error::Uncalled { within: Duration::from_secs(1), stranger: None, refused: None },
            Error::Untrusted { to: "the data connection".into(), why: "the other end is bob".into() },
            Error::Refused { said: "MODE E".into(), code: 504, text: String::new() },
            Error::Refused { said: "RETR /x".into(), code: 425, text: String::new() },
            Error::Refused {
                said: "RETR /x".into(),
                code: 500,
                text: "Command failed. : globus_xio: Unable to connect to 10.0.0.1:35525".into(),
            },
        ] {
            let ways = self::ways(0);
            ways.note(&error);
            assert!(!ways.is_on(), "{error}");
        }
    }
}
