//! How long requests take at each target, against the target's own past and against its peers.
//!
//! In: bytes and service time of each request that came back. Out: at the end of each *round* (as many
//! requests as the target may have in flight, at least [`ROUND_MIN`]) how much longer its requests take than
//! they did at best; and what that is at the middle one of its peers.
//!
//! Requests of unlike sizes are scaled to [`UNIT`]: a request costs as much as its bytes and
//! [`Sizes::offset`] more, the bytes that a target could move in the time that a request of none takes. The
//! offset is found by regression over requests that are held against their own target's mean, and only moves
//! in large steps.
//!
//! *Best* is the lowest mean of rounds, smoothed. It follows a lower one at once. It rises when the target is
//! slow with one request in flight, for then the reason is not ours: slowly if only this target is slow, so
//! that a target that changed for good is known after a minute or so, quickly if its peers are too. A new
//! target's best is what its peers need, if that is less, so that one that is congested from the start is
//! seen.
//!
//! A single request that takes much longer than the others counts as if it had taken [`OUTLIER`] times the
//! mean. Middles are followed in small steps, up or down by whether a value is above: no memory, and no
//! outlier moves them.

use std::time::Duration;

use super::Sample;

/// Bytes of the request that times are scaled to.
const UNIT: f64 = 1024.0 * 1024.0;
/// Least requests of a round.
pub(super) const ROUND_MIN: u32 = 4;
/// See the module's head.
const OUTLIER: f64 = 8.0;
/// Weight of a round in the mean.
const MEAN_WEIGHT: f64 = 0.5;
/// Part of the way that best goes to a lower mean, or to a higher one when peers are slow too.
const DOWN: f64 = 0.5;
const UP_WITH_PEERS: f64 = 0.25;
/// What best rises by in a round (and for each request that is asked of a slow target to see how it is).
const UP_ALONE: f64 = 1.0 / 16.0;
/// Less inflation than this is noise: best rises by [`UP_NOISE`].
pub(super) const NOISE: f64 = 1.5;
const UP_NOISE: f64 = 1.0 / 64.0;
/// Steps of the middles.
const STEP: f64 = 1.0 / 16.0;

/// Statistics of all targets. Times are nanoseconds for [`UNIT`] bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    targets: Vec<Target>,
    sizes: Sizes,
    /// The middle inflation; 0 before the first.
    peers: f64,
    /// The middle mean; 0 before the first.
    usual: f64,
    /// The middle service time, not scaled: for targets that nothing is known of.
    usual_raw: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Target {
    sum: f64,
    count: u32,
    /// 0: not known.
    mean: f64,
    best: f64,
    /// Smoothed service time, not scaled, nanoseconds.
    raw: f64,
    done: u64,
    bytes: u64,
}

/// What reports say of a target: mean and best, scaled, zero if not known; requests that came back, and their
/// bytes.
pub(super) struct Told {
    pub(super) service: Duration,
    pub(super) best: Duration,
    pub(super) done: u64,
    pub(super) bytes: u64,
}

impl History {
    /// Takes a request that came back of a target with this window. At the end of a round: its inflation, the
    /// mean over the best, at least 1.
    pub(super) fn add(&mut self, t: usize, sample: Sample, window: u32) -> Option<f64> {
        let time = self.scaled(t, sample);
        let (peers, usual) = (self.peers(), self.usual);
        let target = &mut self.targets[t];
        target.sum += time;
        target.count += 1;
        if target.count < window.max(ROUND_MIN) {
            return None;
        }
        let round = target.sum / f64::from(target.count);
        (target.sum, target.count) = (0.0, 0);
        target.mean = if target.mean == 0.0 { round } else { toward(target.mean, round, MEAN_WEIGHT) };
        if target.best == 0.0 {
            target.best = if usual == 0.0 { round } else { round.min(usual) };
        }
        let inflation = target.mean / target.best;
        if inflation < 1.0 {
            target.best = toward(target.best, target.mean, DOWN);
        } else if inflation < NOISE {
            target.best = (target.best * (1.0 + UP_NOISE)).min(target.mean);
        } else if window <= 1 && inflation < NOISE * peers {
            target.best = toward(target.best, target.mean, UP_WITH_PEERS);
        } else if window <= 1 {
            target.best *= 1.0 + UP_ALONE;
        }
        let (inflation, mean) = (inflation.max(1.0), target.mean);
        follow(&mut self.peers, inflation);
        follow(&mut self.usual, mean);
        Some(inflation)
    }

    /// As [`History::add`], of a request that a slow target was asked to see how it is. Returns the inflation
    /// of this one.
    pub(super) fn add_trial(&mut self, t: usize, sample: Sample) -> f64 {
        let time = self.scaled(t, sample);
        let usual = self.usual;
        let target = &mut self.targets[t];
        (target.sum, target.count) = (0.0, 0);
        if target.best == 0.0 {
            target.best = if usual == 0.0 { time } else { time.min(usual) };
        }
        target.mean = time;
        let inflation = (time / target.best).max(1.0);
        if inflation > NOISE {
            target.best *= 1.0 + UP_ALONE;
        }
        // Where all are slow the middles are those of such requests.
        follow(&mut self.peers, inflation);
        follow(&mut self.usual, time);
        inflation
    }

    /// Whether this inflation is so many times its peers', and the target not even as fast as they are.
    pub(super) fn is_slow(&self, t: usize, inflation: f64, times: f64) -> bool {
        let mean = self.targets.get(t).map_or(0.0, |target| target.mean);
        inflation > times * self.peers() && mean > NOISE * self.usual
    }

    /// The time of a request, scaled, without what is out of all proportion.
    fn scaled(&mut self, t: usize, sample: Sample) -> f64 {
        if self.targets.len() <= t {
            self.targets.resize(t + 1, Target::default());
        }
        let nanos = (sample.service.as_nanos() as f64).max(1.0);
        let bytes = sample.bytes as f64;
        let mean = self.targets[t].mean;
        let time = nanos * self.sizes.scale(bytes);
        if self.sizes.add(bytes, if mean == 0.0 { 1.0 } else { time / mean }) {
            // What was measured was scaled otherwise.
            for target in &mut self.targets {
                (target.sum, target.count, target.mean, target.best) = (0.0, 0, 0.0, 0.0);
            }
            self.usual = 0.0;
        }
        let target = &mut self.targets[t];
        target.done += 1;
        target.bytes = target.bytes.saturating_add(sample.bytes);
        target.raw = if target.raw == 0.0 { nanos } else { toward(target.raw, nanos, 1.0 / 8.0) };
        follow(&mut self.usual_raw, nanos);
        if mean == 0.0 { time } else { time.min(mean * OUTLIER) }
    }

    /// The middle inflation, at least 1.
    pub(super) fn peers(&self) -> f64 {
        self.peers.max(1.0)
    }

    /// What the target's requests took lately (or, if nothing is known of it, those of its peers), not
    /// scaled.
    pub(super) fn lately(&self, t: usize) -> Option<Duration> {
        let own = self.targets.get(t).map_or(0.0, |target| target.raw);
        let nanos = if own == 0.0 { self.usual_raw } else { own };
        (nanos > 0.0).then(|| Duration::from_nanos(nanos as u64))
    }

    /// For reports.
    pub(super) fn told(&self, t: usize) -> Told {
        let target = self.targets.get(t).copied().unwrap_or_default();
        let time = |nanos: f64| Duration::from_nanos(nanos as u64);
        let (service, best) = (time(target.mean), time(target.best));
        Told { service, best, done: target.done, bytes: target.bytes }
    }
}

/// What a request costs beside its bytes, as bytes. See the module's head.
#[derive(Clone, Debug)]
struct Sizes {
    offset: f64,
    /// Decaying sums over requests: count, bytes, times, their squares and products; bytes in [`UNIT`].
    sums: [f64; 5],
    count: u32,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes { offset: UNIT / 2.0, sums: [0.0; 5], count: 0 }
    }
}

impl Sizes {
    const OFFSET_MIN: f64 = UNIT / 16.0;
    const OFFSET_MAX: f64 = UNIT * 16.0;
    /// Requests between two looks, and the weight that is left of them at the next.
    const LOOK: u32 = 1024;
    const LEFT: f64 = 0.5;
    /// The offset moves if it is wrong by more than this factor.
    const MOVE: f64 = 4.0;
    /// Sizes that vary less than this part of their mean say nothing.
    const VARY: f64 = 0.2;

    fn scale(&self, bytes: f64) -> f64 {
        (UNIT + self.offset) / (bytes + self.offset)
    }

    /// Takes a request and its time, over what its target needs for its bytes as they are scaled now. Says
    /// whether the offset moved.
    fn add(&mut self, bytes: f64, time: f64) -> bool {
        let (x, y) = (bytes / UNIT, time.min(OUTLIER) / self.scale(bytes));
        for (sum, value) in self.sums.iter_mut().zip([1.0, x, y, x * x, x * y]) {
            *sum += value;
        }
        self.count += 1;
        if self.count < Sizes::LOOK {
            return false;
        }
        self.count = 0;
        let [n, sx, sy, sxx, sxy] = self.sums;
        self.sums = self.sums.map(|sum| sum * Sizes::LEFT);
        let (x, y) = (sx / n, sy / n);
        let (varies, with) = (sxx / n - x * x, sxy / n - x * y);
        if varies < (Sizes::VARY * x).powi(2) || with <= 0.0 {
            return false;
        }
        let slope = with / varies;
        let offset = ((y - slope * x) / slope * UNIT).clamp(Sizes::OFFSET_MIN, Sizes::OFFSET_MAX);
        let moves = offset > self.offset * Sizes::MOVE || offset * Sizes::MOVE < self.offset;
        if moves {
            self.offset = offset;
            self.sums = [0.0; 5];
        }
        moves
    }
}

fn toward(from: f64, to: f64, part: f64) -> f64 {
    from + (to - from) * part
}

/// Moves a middle one step toward a value.
fn follow(middle: &mut f64, value: f64) {
    *middle = match *middle {
        0.0 => value,
        now if value > now => now * (1.0 + STEP),
        now => now / (1.0 + STEP),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: requests of unlike sizes are held against each other rightly, whatever a request costs beside
    /// its bytes.
    /// Method: devices with a time for each request and a rate; afterwards small and large scale to the same.
    #[test]
    fn sizes_do_not_matter() {
        for (fixed, rate) in [(8e6, 0.1), (1e5, 1.0), (2e4, 3.0), (5e6, 1.0)] {
            let mut rng = fastrand::Rng::with_seed(4);
            let mut history = History::default();
            let time = |bytes: u64, noise: f64| (fixed + bytes as f64 / rate) * noise;
            for _ in 0..20_000 {
                let bytes = 1 << rng.u32(16..25);
                let nanos = time(bytes, 0.7 + 0.6 * rng.f64());
                let service = Duration::from_nanos(nanos as u64);
                history.add(0, Sample { bytes, service }, 1);
            }
            let scaled: Vec<f64> = [1 << 16, 1 << 20, 1 << 24]
                .map(|bytes: u64| time(bytes, 1.0) * history.sizes.scale(bytes as f64))
                .into();
            let spread = scaled.iter().fold(0.0, |a: f64, b| a.max(*b))
                / scaled.iter().fold(1e300, |a: f64, b| a.min(*b));
            assert!(spread < 4.0, "{fixed} ns and {rate} B/ns: {scaled:?}, {:?}", history.sizes);
        }
    }

    /// Goal: a middle is the middle, whatever lies above it.
    #[test]
    fn outliers_move_no_middle() {
        let mut rng = fastrand::Rng::with_seed(5);
        let mut middle = 0.0;
        for _ in 0..10_000 {
            follow(&mut middle, if rng.u8(..10) == 0 { 1e12 } else { 1.0 + rng.f64() });
        }
        assert!((1.0..2.2).contains(&middle), "{middle}");
    }
}
