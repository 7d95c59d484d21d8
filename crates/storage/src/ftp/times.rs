//! Whether a server sets the times of files as it is told: of one that does not, a file has the time at which
//! it came, and that may be the source's new one, where this changed in the second of the copy.
//!
//! In: what came of telling it the time of a file that it shows already, which changes at most the part of a
//! second. Out: whether size and time of what stands there prove anything.
//! Invariants: nothing counts as unchanged before the server took the time of one file at least, in this run;
//! what it refuses of one file, as it does of somebody else's, is not held against the others before it
//! refused [`REFUSED_MAX`] and took none.
//! Left out: a server that says that it set a time, and did not; one that rounds times up, so that a file has
//! the next time of its source.

use haul_ftp::{Asked, Error, Facts, Moment, Session, write_moment};

use super::names::same_facts;

/// So many files are asked about, if none is taken, before all count as refused.
const REFUSED_MAX: u32 = 8;

/// What is known of a server by now.
#[derive(Default)]
pub(super) struct SetsTimes {
    taken: bool,
    refused: u32,
    /// Files that looked unchanged, and were not believed.
    sent: u64,
}

impl SetsTimes {
    /// Whether what looks unchanged is unchanged; `None`: that is to be asked of this file.
    pub(super) fn proves(&self) -> Option<bool> {
        match (self.taken || haul_mutant::removed("ftp-times-are-proved"), self.refused) {
            (true, _) => Some(true),
            (false, REFUSED_MAX..) => Some(false),
            (false, _) => None,
        }
    }

    /// It took the time of a file, or did not.
    pub(super) fn note(&mut self, taken: bool) {
        self.taken |= taken;
        self.refused = self.refused.saturating_add(u32::from(!taken));
    }

    /// A file that looks unchanged is sent again. True: it is the first one.
    pub(super) fn sends(&mut self) -> bool {
        self.sent += 1;
        self.sent == 1
    }

    /// What was sent again for that, for people.
    pub(super) fn words(&self) -> Option<String> {
        let files = match self.sent {
            0 => return None,
            1 => "1 file that looks".to_owned(),
            files => format!("{files} files that look"),
        };
        Some(format!("{files} unchanged by size and time, {WHY}"))
    }
}

/// Why it is sent again.
pub(super) const WHY: &str =
    "for the server sets no times, and a file there may have its time by chance: sent again";

/// Whether the server takes for the file at `path` the time that it shows, by `set`, and shows it still.
///
/// # Errors
/// The session is over.
pub(super) fn takes_its_own(
    session: &mut Session,
    path: &[u8],
    shown: &Facts,
    set: impl FnOnce(&mut Session, Moment) -> Result<bool, Error>,
) -> Result<bool, Error> {
    let Some(moment) = shown.modify.map(|at| Moment { nanos: 0, ..at }) else { return Ok(false) };
    // It was looked at a while ago: who has written it since is not to get the time of before.
    if !matches!(session.facts(path)?, Asked::Is(now) if same_facts(&now, shown)) {
        return Ok(false);
    }
    if !set(session, moment)? {
        return Ok(false);
    }
    let is_it = |now: &Facts| now.modify.is_some_and(|at| at.secs == moment.secs);
    Ok(matches!(session.facts(path)?, Asked::Is(now) if is_it(&now)))
}

/// Says it in each way that the server may know.
///
/// # Errors
/// The session is over.
pub(super) fn set(session: &mut Session, path: &[u8], moment: Moment) -> Result<bool, Error> {
    let Ok(text) = write_moment(moment) else { return Ok(false) };
    let told = session.set_times(&[(path, &text)])?;
    Ok(told.is_some_and(|all| all.iter().all(Result::is_ok)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: nothing is believed before a time was taken, nor what is refused held against all at once.
    #[test]
    fn times_prove_nothing_before_one_was_taken() {
        let mut times = SetsTimes::default();
        for refused in 1..=REFUSED_MAX {
            assert_eq!(times.proves(), None, "{refused}");
            times.note(false);
        }
        assert_eq!(times.proves(), Some(false));
        let mut times = SetsTimes::default();
        times.note(false);
        times.note(true);
        assert_eq!((times.proves(), times.words()), (Some(true), None));
    }
}
