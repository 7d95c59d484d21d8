//! What becomes of something that failed: whether it is tried again, when, and where.
//!
//! In: what failed and how, how far it had come (its restart marker), how often and for how long it was
//! tried, how many other places there are. Out: a [`Decision`]. A policy does nothing itself and knows no
//! clock: whoever met the trouble waits, goes to another replica, or gives up, and keeps its own promises at
//! that: a second attempt never doubles an effect, and never mixes the bytes of two versions of a file.
//! Two policies are built in, [`Bounded`] and [`Patient`]; one that asks a command is in `haul-launch`, for
//! nothing here starts a process.
//! Source: the reliability plug-in of the Globus GridFTP papers, which sees errors and restart markers and
//! says what to do.

use core::time::Duration;

use crate::wire::FailureKind;

/// Attempts at something that may go well later, where nobody asked for more.
pub const ATTEMPTS: u32 = 5;
/// The same of a server that says nothing: each attempt takes as long as there is patience.
const ATTEMPTS_SILENT: u32 = 2;
/// The pause after the first attempt; each further one is twice as long, and none is longer than the other.
const PAUSE: Duration = Duration::from_millis(300);
pub const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Of the time that something has been failing a pause is at least this part.
const PAUSE_SHARE: u32 = 8;

/// What was being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A server was to be reached, and nothing was read or written there yet.
    Start,
    /// A directory of it was listed or made, or an entry looked at or named.
    List,
    /// A file of it was read or written.
    File,
    /// The copy as a whole: the far end, or the connection to it, was lost or never there.
    Copy,
}

impl Step {
    /// As a command is told it.
    pub fn name(self) -> &'static str {
        match self {
            Step::Start => "start",
            Step::List => "list",
            Step::File => "file",
            Step::Copy => "copy",
        }
    }
}

/// Something that failed.
#[derive(Clone, Debug)]
pub struct Trouble<'a> {
    pub step: Step,
    /// What it is about, for people, and without a password: `ftp://h/dir/file`.
    pub about: &'a str,
    /// What went wrong, for people.
    pub text: &'a str,
    pub kind: FailureKind,
    /// The same may go well later: the network was lost, or the other end says so.
    pub passing: bool,
    /// The other end said nothing for as long as anybody waits.
    pub silent: bool,
    /// How often it was tried there, this time included: at least once.
    pub attempts: u32,
    /// How long it has been failing, since the first time or since it last came on.
    pub since: Duration,
    /// The restart marker: so many bytes of it are safe and need not come again.
    pub marker: u64,
    /// Other replicas that were not tried since it last came on.
    pub others: u16,
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Once more at the same place, after so long.
    After(Duration),
    /// Once more at the next replica. Only where there is one: [`Trouble::others`].
    Replica,
    /// It failed.
    GiveUp,
}

/// Says what becomes of what failed. Asked from any thread.
pub trait Reliability: Send + Sync {
    fn decide(&self, trouble: &Trouble<'_>) -> Decision;
    /// For people, where somebody asked for it.
    fn name(&self) -> String;
}

/// A few attempts, with pauses that grow, at what may pass; then another replica, if there is one. What never
/// began is not begun again, for whoever asked is still there to see to it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bounded;

impl Reliability for Bounded {
    fn decide(&self, trouble: &Trouble<'_>) -> Decision {
        let most = match trouble.step {
            Step::Start | Step::Copy => 1,
            Step::List | Step::File if trouble.silent => ATTEMPTS_SILENT,
            Step::List | Step::File => ATTEMPTS,
        };
        match trouble.passing && trouble.attempts < most {
            true => Decision::After(pause(trouble.attempts)),
            false => elsewhere(trouble),
        }
    }

    fn name(&self) -> String {
        format!("{ATTEMPTS} attempts")
    }
}

/// As [`Bounded`] until a replica is left; and again and again at what may pass, for as long as the user
/// said, from when it last came on.
#[derive(Clone, Copy, Debug)]
pub struct Patient {
    pub for_so_long: Duration,
}

impl Reliability for Patient {
    fn decide(&self, trouble: &Trouble<'_>) -> Decision {
        let most = if trouble.silent { ATTEMPTS_SILENT } else { ATTEMPTS };
        if !trouble.passing || trouble.since >= self.for_so_long {
            return elsewhere(trouble);
        }
        if trouble.others > 0 && (trouble.attempts >= most || trouble.step == Step::Start) {
            return Decision::Replica;
        }
        let pause = pause(trouble.attempts).max(trouble.since / PAUSE_SHARE).min(PAUSE_MAX);
        // The last attempt is at the end of that time, and not well before.
        Decision::After(pause.min(self.for_so_long - trouble.since))
    }

    fn name(&self) -> String {
        format!("for {} s", self.for_so_long.as_secs())
    }
}

fn elsewhere(trouble: &Trouble<'_>) -> Decision {
    if trouble.others > 0 { Decision::Replica } else { Decision::GiveUp }
}

/// How long to wait after so many attempts.
pub fn pause(attempts: u32) -> Duration {
    PAUSE.saturating_mul(1 << attempts.saturating_sub(1).min(16)).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trouble(step: Step) -> Trouble<'static> {
        Trouble {
            step,
            about: "ftp://h/f",
            text: "lost",
            kind: FailureKind::Network,
            passing: true,
            silent: false,
            attempts: 1,
            since: Duration::ZERO,
            marker: 0,
            others: 0,
        }
    }

    /// Runs a policy against something that fails for ever: its pauses, how many replicas it left, and
    /// whether it gave up within a million questions.
    fn fails_for_ever(policy: &dyn Reliability, mut trouble: Trouble<'_>) -> (Vec<Duration>, u16, bool) {
        let (mut pauses, mut left) = (Vec::new(), 0);
        for _ in 0..1_000_000 {
            match policy.decide(&trouble) {
                Decision::After(pause) => {
                    pauses.push(pause);
                    trouble.since += pause;
                    trouble.attempts += 1;
                }
                Decision::Replica => {
                    assert!(trouble.others > 0, "there is none");
                    (left, trouble.others, trouble.attempts) = (left + 1, trouble.others - 1, 1);
                }
                Decision::GiveUp => return (pauses, left, true),
            }
        }
        (pauses, left, false)
    }

    /// Goal: the default tries what may pass five times over some five seconds, a silent server twice, and
    /// what does not pass, or never began, once.
    #[test]
    fn the_default_is_bounded() {
        let (pauses, _, ended) = fails_for_ever(&Bounded, trouble(Step::File));
        assert!(
            ended && pauses.len() == 4 && pauses.windows(2).all(|two| two[1] == 2 * two[0]),
            "{pauses:?}"
        );
        assert_eq!(pauses.iter().sum::<Duration>(), Duration::from_millis(4500));
        let silent = Trouble { silent: true, ..trouble(Step::List) };
        assert_eq!(fails_for_ever(&Bounded, silent).0.len(), 1);
        for once in
            [trouble(Step::Start), trouble(Step::Copy), Trouble { passing: false, ..trouble(Step::File) }]
        {
            assert_eq!(fails_for_ever(&Bounded, once), (vec![], 0, true));
        }
    }

    /// Goal: each replica is tried before anything is given up, whatever the trouble.
    #[test]
    fn replicas_are_tried_before_giving_up() {
        let patient = Patient { for_so_long: Duration::from_secs(60) };
        for policy in [&Bounded as &dyn Reliability, &patient] {
            for step in [Step::Start, Step::List, Step::File] {
                for passing in [true, false] {
                    let two = Trouble { passing, others: 2, ..trouble(step) };
                    let (_, left, ended) = fails_for_ever(policy, two);
                    assert!(ended && left == 2, "{step:?} {passing}");
                }
            }
        }
    }

    /// Goal: patience lasts as long as was said and no longer, with pauses that stay bounded, and never for
    /// what does not pass.
    #[test]
    fn patience_has_its_end() {
        let day = Duration::from_secs(86_400);
        let patient = Patient { for_so_long: day };
        for step in [Step::Start, Step::List, Step::File, Step::Copy] {
            let (pauses, _, ended) = fails_for_ever(&patient, trouble(step));
            assert!(ended && pauses.iter().all(|pause| *pause <= PAUSE_MAX), "{step:?}");
            assert_eq!(pauses.iter().sum::<Duration>(), day);
            assert!(pauses.len() < 2000, "{}", pauses.len());
            let lasting = Trouble { passing: false, ..trouble(step) };
            assert_eq!(patient.decide(&lasting), Decision::GiveUp);
        }
    }
}
