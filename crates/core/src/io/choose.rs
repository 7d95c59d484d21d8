//! Direct or buffered, by measurement on the live transfer.
//!
//! In: what requests of each mode moved in how much time, and that direct I/O was refused. Out: the mode that
//! requests use from now on, and why.
//!
//! Under [`IoPolicy::Auto`] the mode at the start is tried, then the other, and the faster is kept. Direct
//! wins a tie, for it leaves the page cache to others. When the kept mode's rate shifts and stays so, both
//! are tried once more, the kept one first: the windows that raised the alarm were the odd ones, and to hold
//! the other mode against them would be unfair. Each re-check doubles the distance to the next, and leaving a
//! mode takes more than getting it at first, so that a device whose rate is never the same does not make the
//! mode flap.
//!
//! Invariants: only samples of the mode that is in use count. A mode that was asked for, or refused, is never
//! left again.
//!
//! Left out: to notice that the other mode became faster while the kept one stayed as it was. Trials into the
//! slower mode cost more than that is worth.

use std::fmt;
use std::time::Duration;

use super::{IoMode, IoPolicy};

/// A trial is over when so many bytes were moved ..
pub const TRIAL_LEN: u64 = 256 << 20;
/// .. or storage was busy for so long, for a mode may be six times slower than the other.
pub const TRIAL_BUSY: Duration = Duration::from_secs(2);
/// A direct rate within so many percent of the buffered one is as good.
pub const TIE_PERCENT: u64 = 5;
/// After a re-check the other mode is taken if it is faster by more than so many percent.
pub const GAIN_PERCENT: u64 = 15;
/// The kept mode's rate is judged each time it moved so many bytes ..
pub const WINDOW_LEN: u64 = 64 << 20;
/// .. or was busy for so long.
pub const WINDOW_BUSY: Duration = Duration::from_millis(500);
/// A rate has shifted when it differs from what it was by more than one in so many.
pub const SHIFT_PART: u64 = 3;
/// So many windows in a row must have shifted.
pub const SHIFT_WINDOWS: u32 = 2;
/// Windows between a decision and the first re-check, at least; each re-check doubles it ..
pub const RECHECK_WINDOWS: u32 = 16;
/// .. up to this.
pub const RECHECK_WINDOWS_MAX: u32 = 4096;

/// What requests of one mode did since the last such sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub mode: IoMode,
    /// Bytes moved from or to the device: reads that the page cache answered are left out.
    pub bytes: u64,
    /// The time in which at least one request of theirs was in flight, their syncs included.
    pub busy: Duration,
}

/// The mode, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub mode: IoMode,
    pub why: Reason,
}

/// Why a mode is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The user wants it.
    Asked,
    /// The file system does not take direct I/O.
    Refused {
        /// For people: `EINVAL`, `not on overlayfs`, ..
        cause: String,
    },
    /// The start value: less was moved than a comparison takes.
    TooLittle,
    /// There are several storage targets, whose true service times direct I/O alone shows.
    Targets,
    /// Bytes per second of both, as last measured.
    Measured { direct: u64, buffered: u64 },
}

/// Decides. See the module's head.
#[derive(Clone, Debug)]
pub struct Chooser {
    phase: ChoicePhase,
    /// What was moved in the trial or window that is under way.
    tally: Tally,
    /// Windows that must pass before the next re-check.
    recheck_windows: u32,
}

#[derive(Clone, Debug)]
enum ChoicePhase {
    /// For good.
    Fixed(Choice),
    /// The mode at the start; with where it came from.
    First {
        mode: IoMode,
        why: Reason,
    },
    /// The other one.
    Second {
        mode: IoMode,
        other: Tally,
    },
    Kept(Kept),
    /// Its rate seems to have shifted: the kept mode once more ..
    Doubted(Kept),
    /// .. and then the other, to be held against what that gave.
    Recheck {
        kept: Kept,
        fresh: Tally,
    },
}

/// A decision.
#[derive(Clone, Debug)]
struct Kept {
    mode: IoMode,
    /// Rates of the two at the decision.
    direct: u64,
    buffered: u64,
    windows: u32,
    /// Windows in a row that differ from the decision's rate.
    shifted: u32,
}

/// Bytes and the time that they took.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    bytes: u64,
    busy: Duration,
}

impl Chooser {
    /// Under [`IoPolicy::Auto`] it begins with `start`.
    pub fn new(policy: IoPolicy, start: IoMode) -> Chooser {
        let asked = |mode| ChoicePhase::Fixed(Choice { mode, why: Reason::Asked });
        let phase = match policy {
            IoPolicy::Auto => ChoicePhase::First { mode: start, why: Reason::TooLittle },
            IoPolicy::Direct => asked(IoMode::Direct),
            IoPolicy::Buffered => asked(IoMode::Buffered),
        };
        Chooser { phase, tally: Tally::default(), recheck_windows: RECHECK_WINDOWS }
    }

    /// The mode that requests use now; during trials not the one that will be kept.
    pub fn mode(&self) -> IoMode {
        match &self.phase {
            ChoicePhase::Fixed(choice) => choice.mode,
            ChoicePhase::First { mode, .. } | ChoicePhase::Second { mode, .. } => *mode,
            ChoicePhase::Kept(kept) | ChoicePhase::Doubted(kept) => kept.mode,
            ChoicePhase::Recheck { kept, .. } => other(kept.mode),
        }
    }

    /// The decision so far, for reports.
    pub fn choice(&self) -> Choice {
        match &self.phase {
            ChoicePhase::Fixed(choice) => choice.clone(),
            ChoicePhase::First { mode, why } => Choice { mode: *mode, why: why.clone() },
            ChoicePhase::Second { mode, .. } => Choice { mode: *mode, why: Reason::TooLittle },
            ChoicePhase::Kept(kept) | ChoicePhase::Doubted(kept) | ChoicePhase::Recheck { kept, .. } => {
                Choice {
                    mode: kept.mode,
                    why: Reason::Measured { direct: kept.direct, buffered: kept.buffered },
                }
            }
        }
    }

    /// The file system does not take direct I/O: buffered from now on, also if direct was asked for.
    pub fn on_refused(&mut self, cause: impl Into<String>) {
        let why = Reason::Refused { cause: cause.into() };
        self.phase = ChoicePhase::Fixed(Choice { mode: IoMode::Buffered, why });
    }

    /// The files lie on several storage targets: direct for good, unless that is refused or the user wants
    /// something. What the cache took says nothing of a target, and rates that shift with its load are no
    /// reason to search again.
    pub fn on_targets(&mut self) {
        if !matches!(self.phase, ChoicePhase::Fixed(_)) {
            self.phase = ChoicePhase::Fixed(Choice { mode: IoMode::Direct, why: Reason::Targets });
        }
    }

    /// Takes a sample; those of another mode than [`Chooser::mode`] are stragglers and do not count. Says
    /// whether the mode changed.
    pub fn on_window(&mut self, window: Window) -> bool {
        let before = self.mode();
        if window.mode != before {
            return false;
        }
        self.tally.add(window.bytes, window.busy);
        let (len, busy) = match self.phase {
            ChoicePhase::Kept(_) => (WINDOW_LEN, WINDOW_BUSY),
            _ => (TRIAL_LEN, TRIAL_BUSY),
        };
        // Time without bytes proves nothing yet; it counts with the bytes that come.
        if self.tally.bytes == 0 || self.tally.busy.is_zero() {
            return false;
        }
        if self.tally.bytes >= len || self.tally.busy >= busy {
            let tally = std::mem::take(&mut self.tally);
            self.on_measured(tally);
        }
        self.mode() != before
    }

    /// The trial or window that is under way has enough.
    fn on_measured(&mut self, tally: Tally) {
        match &mut self.phase {
            ChoicePhase::Fixed(_) => {}
            ChoicePhase::First { mode, .. } => {
                self.phase = ChoicePhase::Second { mode: other(*mode), other: tally };
            }
            ChoicePhase::Second { mode, other } => {
                let (direct, buffered) = by_mode(*mode, tally.rate(), other.rate());
                let direct_wins = direct >= percent(buffered, 100 - TIE_PERCENT);
                let mode = if direct_wins { IoMode::Direct } else { IoMode::Buffered };
                self.phase = ChoicePhase::Kept(Kept::new(mode, direct, buffered));
            }
            ChoicePhase::Kept(kept) => {
                kept.windows = kept.windows.saturating_add(1);
                kept.shifted = if kept.has_shifted(tally) { kept.shifted.saturating_add(1) } else { 0 };
                if kept.shifted >= SHIFT_WINDOWS && kept.windows >= self.recheck_windows {
                    self.phase = ChoicePhase::Doubted(kept.clone());
                }
            }
            ChoicePhase::Doubted(kept) if !kept.has_shifted(tally) => {
                self.phase = ChoicePhase::Kept(Kept { shifted: 0, ..kept.clone() });
            }
            ChoicePhase::Doubted(kept) => {
                self.recheck_windows = (self.recheck_windows * 2).min(RECHECK_WINDOWS_MAX);
                self.phase = ChoicePhase::Recheck { kept: kept.clone(), fresh: tally };
            }
            ChoicePhase::Recheck { kept, fresh } => {
                let (of_kept, of_other) = (fresh.rate(), tally.rate());
                let (direct, buffered) = by_mode(kept.mode, of_kept, of_other);
                let leave = of_other > percent(of_kept, 100 + GAIN_PERCENT);
                let mode = if leave { other(kept.mode) } else { kept.mode };
                self.phase = ChoicePhase::Kept(Kept::new(mode, direct, buffered));
            }
        }
    }
}

impl Kept {
    fn new(mode: IoMode, direct: u64, buffered: u64) -> Kept {
        Kept { mode, direct, buffered, windows: 0, shifted: 0 }
    }

    /// Whether this is not the rate of the decision any more.
    fn has_shifted(&self, tally: Tally) -> bool {
        let known = match self.mode {
            IoMode::Direct => self.direct,
            IoMode::Buffered => self.buffered,
        };
        tally.rate().abs_diff(known) > known / SHIFT_PART
    }
}

impl Tally {
    fn add(&mut self, bytes: u64, busy: Duration) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.busy = self.busy.saturating_add(busy);
    }

    /// Bytes per second.
    fn rate(&self) -> u64 {
        let nanos = self.busy.as_nanos().max(1);
        u64::try_from(u128::from(self.bytes) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
    }
}

fn other(mode: IoMode) -> IoMode {
    match mode {
        IoMode::Direct => IoMode::Buffered,
        IoMode::Buffered => IoMode::Direct,
    }
}

/// The rates of direct and buffered, given that of `mode` and that of the other.
fn by_mode(mode: IoMode, of_mode: u64, of_other: u64) -> (u64, u64) {
    match mode {
        IoMode::Direct => (of_mode, of_other),
        IoMode::Buffered => (of_other, of_mode),
    }
}

fn percent(rate: u64, percent: u64) -> u64 {
    u64::try_from(u128::from(rate) * u128::from(percent) / 100).unwrap_or(u64::MAX)
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (", self.mode)?;
        match &self.why {
            Reason::Asked => f.write_str("asked for")?,
            Reason::Refused { cause } => write!(f, "direct is refused: {cause}")?,
            Reason::TooLittle => f.write_str("too little data to compare")?,
            Reason::Targets => f.write_str("what the cache takes says nothing of a storage target")?,
            Reason::Measured { direct, buffered } => {
                let (of_other, of_mode) = by_mode(other(self.mode), *direct, *buffered);
                let unlike = other(self.mode);
                write!(f, "{} against {} {unlike}", Rate(of_mode), Rate(of_other))?;
            }
        }
        f.write_str(")")
    }
}

/// Bytes per second, for people.
struct Rate(u64);

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.0 as f64;
        if self.0 >= 100_000_000 {
            write!(f, "{:.2} GB/s", rate / 1e9)
        } else {
            write!(f, "{:.2} MB/s", rate / 1e6)
        }
    }
}

#[cfg(test)]
#[path = "choose_tests.rs"]
mod tests;
