//! Whether a server sets the times of files as it is told: of one that does not, a file has the time at which
//! it came, and that may be the source's new one, where this changed in the second of the copy.
//!
//! In: what came of telling it the time of a file of haul's own, which is made for that beside the one in
//! question, and removed. Out: whether size and time of what stands there prove anything.
//! Invariants: nothing counts as unchanged before the server was seen to set a time in this run, or let
//! nothing be made there; no file of anybody else is touched for that.
//! Where nothing can be made (no right, no room, no data connection) nothing could be sent either: what looks
//! unchanged is left as it is, so that a copy that has nothing to do does not fail for a question, and that
//! is told.
//! Left out: a server that rounds times up, so that a file has the next time of its source. What it does with
//! files of other owners is not asked: haul sets no times of these.

use haul_ftp::{Asked, Error, Moment, Session, write_moment};

/// In so many directories it is tried to make something, if that comes to nothing everywhere.
const CLOSED_MAX: usize = 8;
/// So many questions may come to nothing, before what they are about counts as not set.
const LOST_MAX: u32 = 2;
/// What no file that was just made has by chance: 2001-09-09 01:46:40 UTC. Its second is an even one, as that
/// of servers that keep times in steps of two.
const LONG_AGO: Moment = Moment { secs: 1_000_000_000, nanos: 0 };

/// What a file of haul's own shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Sets,
    SetsNot,
    /// None can be made.
    NotMade,
}

/// What becomes of a file that looks unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Unchanged,
    /// It counts as unchanged, and nothing shows that it is.
    Believed,
    Sent,
}

/// What is known of a server by now.
#[derive(Default)]
pub(super) struct SetsTimes {
    sets: Option<bool>,
    /// Sessions that were lost over the question, or told "later" of it, for as long as they were asked.
    lost: u32,
    /// Directories in which nothing can be made.
    closed: Vec<Vec<u8>>,
    /// Files that looked unchanged.
    sent: u64,
    believed: u64,
}

impl SetsTimes {
    /// Whether what looks unchanged in this directory is unchanged; `None`: that is to be asked there.
    pub(super) fn of(&self, dir: &[u8]) -> Option<Verdict> {
        if haul_mutant::removed("ftp-times-are-proved") {
            return Some(Verdict::Unchanged);
        }
        let is_closed = || self.closed.len() >= CLOSED_MAX || self.closed.iter().any(|closed| closed == dir);
        match self.sets {
            Some(true) => Some(Verdict::Unchanged),
            Some(false) => Some(Verdict::Sent),
            None => is_closed().then_some(Verdict::Believed),
        }
    }

    /// What was shown in this directory, if the session was not lost before, and what that says of the files
    /// in it.
    pub(super) fn note(&mut self, dir: &[u8], shown: Option<Answer>) -> Verdict {
        match shown {
            // What it shows is not worth waiting for each time.
            None => {
                self.lost += 1;
                if self.lost >= LOST_MAX && !haul_mutant::removed("ftp-lost-questions-end") {
                    self.sets = Some(false);
                }
            }
            Some(Answer::NotMade) if !haul_mutant::removed("ftp-closed-directories-are-believed") => {
                self.closed.push(dir.to_vec());
            }
            Some(shown) => self.sets = Some(shown == Answer::Sets),
        }
        // What comes of a session that is lost is seen by what is sent.
        self.of(dir).unwrap_or(Verdict::Sent)
    }

    /// That becomes of one more file; why, of the first of them.
    pub(super) fn count(&mut self, verdict: Verdict) -> Option<&'static str> {
        let (count, why) = match verdict {
            Verdict::Unchanged => return None,
            Verdict::Believed => (&mut self.believed, NOT_MADE),
            Verdict::Sent if self.lost >= LOST_MAX => (&mut self.sent, UNSHOWN),
            Verdict::Sent => (&mut self.sent, SETS_NOT),
        };
        *count += 1;
        (*count == 1).then_some(why)
    }

    /// What became of files for that, for people.
    pub(super) fn words(&self) -> Option<String> {
        let words = |count: u64, why: &str| {
            let files = match count {
                0 => return None,
                1 => "1 file that looks".to_owned(),
                files => format!("{files} files that look"),
            };
            Some(format!("{files} unchanged by size and time, {why}"))
        };
        // What another directory showed since is true of all.
        let believed = if self.sets == Some(true) { 0 } else { self.believed };
        let sent = if self.lost >= LOST_MAX { UNSHOWN } else { SETS_NOT };
        let all = [words(self.sent, sent), words(believed, NOT_MADE)];
        let all: Vec<String> = all.into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

const SETS_NOT: &str =
    "for the server sets no times, and a file there may have its time by chance: sent again";
const UNSHOWN: &str = "for the session was lost, or told to wait, when the server was to show that it sets times, without which a \
                       file there may have its time by chance: sent again";
const NOT_MADE: &str = "and the server lets nothing be made beside them that shows whether it sets times, without which a file there \
                        may have its time by chance: left as they are";

/// Has the server make a small file at `path`, where nobody has one, tells it a time of that, by `set`, and
/// removes it. Out: what that shows, and whether the file stays.
///
/// # Errors
/// The session is over, or the server says "later": the file may be there.
pub(super) fn ask(
    session: &mut Session,
    path: &[u8],
    set: impl FnOnce(&mut Session, Moment) -> Result<bool, Error>,
) -> Result<(Answer, bool), Error> {
    let refused = |error: Error| match is_for_good(&error) {
        true => Ok(Answer::NotMade),
        false => Err(error),
    };
    let mut outgoing = match session.store(path) {
        Ok(outgoing) => outgoing,
        // Of a session that was lost nobody knows.
        Err(error) => return refused(error).map(|shown| (shown, session.is_broken())),
    };
    let stored = match outgoing.write(b"?") {
        Ok(()) => session.stored(outgoing, path, false),
        Err(error) => Err(session.broken_off(outgoing, path, error)),
    };
    let shown = match stored {
        Ok(()) => look(session, path, set),
        Err(error) => refused(error),
    };
    if haul_mutant::removed("ftp-what-shows-times-is-removed") {
        return Ok((shown?, false));
    }
    // Whatever came of it, if the session lives.
    let stays = match session.is_broken() {
        true => true,
        false => {
            let removed = session.remove(&[path])?.iter().all(Result::is_ok);
            !removed && !matches!(session.facts(path), Ok(Asked::Not(_)))
        }
    };
    Ok((shown?, stays))
}

/// No other session would have it made.
fn is_for_good(error: &Error) -> bool {
    let is_refused = matches!(error, Error::Refused { .. }) && (!error.is_passing() || error.is_no_room());
    is_refused || error.is_unreached_for_data() || error.is_untrusted_for_data()
}

fn look(
    session: &mut Session,
    path: &[u8],
    set: impl FnOnce(&mut Session, Moment) -> Result<bool, Error>,
) -> Result<Answer, Error> {
    if !set(session, LONG_AGO)? {
        return Ok(Answer::SetsNot);
    }
    let is_set = match session.facts(path)? {
        Asked::Is(now) => now.modify.is_some_and(|at| at.secs == LONG_AGO.secs),
        Asked::Not(_) | Asked::Untold(_) => false,
    };
    match is_set || haul_mutant::removed("ftp-set-times-are-looked-at") {
        true => Ok(Answer::Sets),
        false => Ok(Answer::SetsNot),
    }
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

    /// Goal: nothing is believed before a time was set, but where nothing can be made; what one file showed
    /// is true of all.
    #[test]
    fn times_prove_nothing_before_one_was_set() {
        let mut times = SetsTimes::default();
        assert_eq!((times.of(b"/a"), times.note(b"/a", None)), (None, Verdict::Sent));
        assert_eq!(times.note(b"/a", Some(Answer::NotMade)), Verdict::Believed);
        assert!(times.count(Verdict::Believed).is_some() && times.count(Verdict::Believed).is_none());
        assert!(times.words().is_some_and(|words| words.starts_with("2 files")));
        assert_eq!((times.of(b"/a"), times.of(b"/b")), (Some(Verdict::Believed), None));
        assert_eq!(times.note(b"/b", Some(Answer::Sets)), Verdict::Unchanged);
        assert_eq!((times.of(b"/a"), times.words()), (Some(Verdict::Unchanged), None));
        let mut times = SetsTimes::default();
        assert_eq!(times.note(b"/a", Some(Answer::SetsNot)), Verdict::Sent);
        assert_eq!((times.of(b"/b"), times.count(Verdict::Sent).is_some()), (Some(Verdict::Sent), true));
        let mut times = SetsTimes::default();
        for dir in 0..CLOSED_MAX as u8 {
            assert_eq!(times.of(&[dir]), None);
            times.note(&[dir], Some(Answer::NotMade));
        }
        assert_eq!(times.of(b"/z"), Some(Verdict::Believed));
        let mut times = SetsTimes::default();
        (0..LOST_MAX).for_each(|_| {
            assert_eq!((times.of(b"/a"), times.note(b"/a", None)), (None, Verdict::Sent));
        });
        assert_eq!(times.of(b"/b"), Some(Verdict::Sent), "it is not asked for ever");
        assert_eq!(times.count(Verdict::Sent), Some(UNSHOWN));
        assert!(times.words().is_some_and(|words| words.contains(UNSHOWN)));
    }
}
