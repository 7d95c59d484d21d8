//! Whether a server that takes files is still there: once a run ends for it, and not each of its files.
//!
//! In: sessions that were opened, or were not; what it does for any of them; data connections that came up,
//! or did not. Out: what becomes of something that was given up.
//! Invariants: a server is gone only if no session could be opened with it for [`QUIET`], and meanwhile it
//! did nothing for any other; data connections are barred only if something was given up for want of one, and
//! none ever came up, or [`BARRED_MAX`] things in a row since the last one; that many in any case where they
//! came up and did not show whose they are, for that may be one stranger's doing.

use std::time::{Duration, Instant};

use haul_ftp::Error;

/// For so long nothing is heard of a server that is gone: shorter, and one that is slow would count as such.
pub(super) const QUIET: Duration = Duration::from_secs(2);
/// How often that is waited for, where the policy has given up: in each of these times another session had
/// something of the server.
pub(super) const LOOKS_MAX: u32 = 3;
/// Files that came to nothing in a row for want of a data connection, where one had come up before. It is two
/// for each session.
const BARRED_MAX: u32 = 16;

/// What is known of a server.
#[derive(Default)]
pub(super) struct There {
    /// When it last did something for any session.
    heard: Option<Instant>,
    /// Since when no session could be opened with it, for it was not reached.
    unreached: Option<Instant>,
    /// A data connection came up at some time.
    ever: bool,
    /// Things that were given up since then, because none did.
    barred: u32,
}

/// What becomes of something that was given up.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It failed by itself.
    Itself,
    /// After that time it is tried once more, to see whether the server is gone.
    Look(Duration),
    /// The server is gone.
    Gone,
    /// It takes no data; true: it did before.
    Barred(bool),
}

impl There {
    /// It did something for some session.
    pub(super) fn heard(&mut self) {
        (self.heard, self.unreached) = (Some(Instant::now()), None);
    }

    /// A data connection came up.
    pub(super) fn connected(&mut self) {
        (self.ever, self.barred) = (true, 0);
    }

    /// No session could be opened with it by an attempt that was begun then.
    pub(super) fn unreached(&mut self, begun: Instant) {
        let since = self.heard.map_or(begun, |heard| heard.max(begun));
        self.unreached.get_or_insert(since);
    }

    /// Something was given up for this reason, after so many looks.
    pub(super) fn judge(&mut self, error: &Error, looks: u32) -> Verdict {
        let is_stranger = error.is_untrusted_for_data();
        if error.is_unreached_for_data() || is_stranger {
            self.barred = self.barred.saturating_add(1);
            let is_barred = !(self.ever || is_stranger) || self.barred >= BARRED_MAX;
            return if is_barred { Verdict::Barred(self.ever) } else { Verdict::Itself };
        }
        match self.unreached.filter(|_| error.is_network()).map(|since| since.elapsed()) {
            Some(quiet) if quiet >= QUIET => Verdict::Gone,
            // Who waited for one that is silent does not wait once more.
            Some(quiet) if looks < LOOKS_MAX && !error.is_silence() => Verdict::Look(QUIET - quiet),
            _ => Verdict::Itself,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn refused(to: &str) -> Error {
        Error::Connect { to: to.into(), cause: io::ErrorKind::ConnectionRefused.into() }
    }

    fn silent(to: &str) -> Error {
        Error::Silent { doing: format!("connect to {to}"), patience: Duration::from_secs(1) }
    }

    /// Goal: a server is gone when no session was opened with it for some time, and none of the others had
    /// anything of it meanwhile; what is lost over a session that was opened says nothing of that.
    #[test]
    fn a_server_is_gone_when_nothing_is_heard_of_it() {
        let long_ago = Instant::now() - 2 * QUIET;
        let mut there = There::default();
        assert_eq!(there.judge(&refused("h:21"), 0), Verdict::Itself, "nobody tried to come anew");
        there.unreached(long_ago);
        assert_eq!(there.judge(&refused("h:21"), 0), Verdict::Gone);
        there.heard();
        assert_eq!(there.judge(&refused("h:21"), 0), Verdict::Itself);
        // An attempt that was begun before that says nothing of the time before.
        there.unreached(long_ago);
        assert!(matches!(there.judge(&refused("h:21"), 0), Verdict::Look(pause) if pause <= QUIET));
        assert_eq!(there.judge(&refused("h:21"), LOOKS_MAX), Verdict::Itself);
        assert_eq!(there.judge(&silent("h:21"), 0), Verdict::Itself, "it was waited for");
        there.unreached = Some(long_ago);
        let full = Error::Refused { said: "STOR x".into(), code: 450, text: "later".into() };
        assert_eq!(there.judge(&full, 0), Verdict::Itself, "a refusal is an answer");
        assert_eq!(there.judge(&silent("h:21"), 0), Verdict::Gone);
    }

    /// Goal: where none of many data connections shows whose it is nothing more is tried; a few are a
    /// stranger's.
    #[test]
    fn data_connections_of_nobody_end_it() {
        let error = Error::Untrusted { to: "the data connection".into(), why: "of version 1".into() };
        let other = Error::Untrusted { to: "h:2811".into(), why: "of version 1".into() };
        for ever in [false, true] {
            let mut there = There { ever, ..There::default() };
            for _ in 1..BARRED_MAX {
                assert_eq!(there.judge(&error, 0), Verdict::Itself);
                assert_eq!(there.judge(&other, 0), Verdict::Itself);
            }
            assert_eq!(there.judge(&error, 0), Verdict::Barred(ever));
        }
    }

    /// Goal: where no data connection ever came up the first thing that is given up for that is enough; where
    /// one did, many in a row. Sessions that are not opened have nothing to do with that.
    #[test]
    fn data_connections_are_barred_when_none_comes_up() {
        for error in [refused("10.0.0.1:50001 (data)"), silent("10.0.0.1:50001 (data)")] {
            let mut there = There::default();
            there.heard();
            assert_eq!(there.judge(&error, 0), Verdict::Barred(false), "{error}");
            there.connected();
            for _ in 1..BARRED_MAX {
                assert_eq!(there.judge(&error, 0), Verdict::Itself, "{error}");
            }
            there.connected();
            for _ in 1..BARRED_MAX {
                assert_eq!(there.judge(&error, 0), Verdict::Itself, "{error}");
            }
            assert_eq!(there.judge(&error, 0), Verdict::Barred(true), "{error}");
        }
    }
}
