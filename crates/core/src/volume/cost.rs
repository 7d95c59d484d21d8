//! What writes cost, by their size.
//!
//! In: sizes and times of requests that are over, and how long syncs took and for how many bytes. Out: what a
//! request of any size costs, and a sync.
//!
//! Costs are kept for sizes between two powers of two ([`Curve`]), as means in which what is older than
//! [`MEMORY`] hardly counts. Of a size that nothing is known of the neighbours tell: a straight line
//! through them, for a request costs so much for itself and so much for each byte. They tell of what lies
//! between them, and of what is at most [`REACH`] classes beyond: what a few small requests cost says nothing
//! of bytes, of which they had none to speak of. So does a sync ([`Syncs`]): most of it is for itself,
//! however few requests were before it.

use std::time::Duration;

use crate::ids::Time;

/// Sizes that are kept apart: from 1 byte, from 2, from 4, and so on; the last has all that are larger.
pub const CLASSES: usize = 28;
/// What is so old counts a third.
const MEMORY: Duration = Duration::from_secs(1);
/// A mean is as good as of so many requests, however old they are: no single one moves it by more than a
/// third.
const WEIGHT_MIN: f64 = 2.0;
/// Of sizes so many classes beyond those that are known these tell: four times as large, or a quarter.
const REACH: usize = 2;
/// From so many bytes on a request is large: what bytes cost such tell alone. A smaller one costs as much for
/// itself as for its bytes, or more.
pub const LARGE: u64 = 64 << 10;

/// Which of the [`CLASSES`] a request of `len` bytes is in.
pub fn class_of(len: u64) -> usize {
    (len.max(1).ilog2() as usize).min(CLASSES - 1)
}

/// The smallest request of a class, in bytes.
pub fn class_start(class: usize) -> u64 {
    1 << class.min(CLASSES - 1)
}

/// Means of one class; all are sums in which what is old counts less.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Class {
    weight: f64,
    lens: f64,
    costs: f64,
    at: Time,
}

impl Class {
    fn fade(&mut self, now: Time) {
        let kept = (-(now.since(self.at).as_secs_f64() / MEMORY.as_secs_f64())).exp();
        self.at = self.at.max(now);
        // A mean stays what it is however old it is; it only weighs less beside what comes.
        let weight = (self.weight * kept).max(self.weight.min(WEIGHT_MIN));
        if self.weight > 0.0 {
            let part = weight / self.weight;
            for sum in [&mut self.weight, &mut self.lens, &mut self.costs] {
                *sum *= part;
            }
        }
    }

    /// Mean length and mean cost.
    fn point(&self) -> Option<(f64, f64)> {
        (self.weight > 0.0).then(|| (self.lens / self.weight, self.costs / self.weight))
    }
}

/// What requests of any size cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    classes: [Class; CLASSES],
}

impl Default for Curve {
    fn default() -> Curve {
        Curve { classes: [Class::default(); CLASSES] }
    }
}

impl Curve {
    /// A request of `len` bytes cost so many nanoseconds.
    pub fn add(&mut self, now: Time, len: u64, cost: f64) {
        let class = &mut self.classes[class_of(len)];
        class.fade(now);
        class.weight += 1.0;
        class.lens += len.max(1) as f64;
        class.costs += cost.max(0.0);
    }

    /// Nanoseconds that a request of `len` bytes costs. `None`: nothing is known of such, nor of any that are
    /// near enough to tell.
    pub fn cost(&self, len: u64) -> Option<f64> {
        let (at, is_known) = (class_of(len), |class: &Class| class.weight > 0.0);
        let low = self.classes.iter().position(is_known)?;
        let high = self.classes.iter().rposition(is_known)?;
        let is_near = at + REACH >= low && at <= high + REACH;
        (is_near || haul_mutant::removed("volume-costs-reach")).then(|| self.line(len)).flatten()
    }

    /// No byte of a request costs less, nanoseconds. `None`: no large one is known.
    pub fn byte(&self) -> Option<f64> {
        let large = self.points().filter(|(len, _)| *len >= LARGE as f64);
        large.map(|(len, cost)| cost / len).reduce(f64::min)
    }

    fn line(&self, len: u64) -> Option<f64> {
        let at = class_of(len);
        if let Some((_, cost)) = self.classes[at].point() {
            return Some(cost);
        }
        let mut below = self.classes[..at].iter().rev().filter_map(Class::point);
        let mut above = self.classes[at + 1..].iter().filter_map(Class::point);
        let len = len.max(1) as f64;
        match (below.next(), above.next()) {
            (Some(low), Some(high)) => Some(line(low, high, len).max(0.0)),
            // No dearer a byte than the largest, and no cheaper than it as a whole.
            (Some(high), None) => {
                let each = below.next().map_or(high.1 / high.0, |low| (high.1 - low.1) / (high.0 - low.0));
                Some(high.1 + (len - high.0) * each.clamp(0.0, high.1 / high.0))
            }
            (None, Some(low)) => {
                let each = above.next().map_or(0.0, |high| (high.1 - low.1) / (high.0 - low.0));
                Some(low.1 - (low.0 - len) * each.clamp(0.0, low.1 / low.0))
            }
            (None, None) => None,
        }
    }

    /// What is known: mean length in bytes and cost in nanoseconds of each class that something is known of.
    pub fn points(&self) -> impl Iterator<Item = (f64, f64)> {
        self.classes.iter().filter_map(Class::point)
    }
}

/// What syncs take, by how many bytes were written since the one before: a straight line through the last
/// few of all servers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Syncs {
    count: f64,
    bytes: f64,
    took: f64,
    squares: f64,
    products: f64,
}

impl Syncs {
    /// Each counts so much less with the next one.
    const KEPT: f64 = 0.95;
    /// So many times as long, or as short, is far off; and counts so much.
    const FAR: f64 = 3.0;
    const OF_FAR: f64 = 0.05;
    /// A line is drawn through those whose bytes differ by so much of their mean.
    const APART: f64 = 0.3;

    /// One for so many bytes took so many nanoseconds. What is far off the line moves it little: a server is
    /// slow then, and not what syncs take.
    pub fn add(&mut self, bytes: f64, took: f64) {
        let near = 1.0 / Syncs::FAR..=Syncs::FAR;
        let is_far =
            self.each().and(self.cost(bytes)).is_some_and(|is| !near.contains(&(took / is.max(1.0))));
        let weight = if is_far { Syncs::OF_FAR } else { 1.0 };
        let kept = 1.0 - (1.0 - Syncs::KEPT) * weight;
        for (sum, more) in [
            (&mut self.count, 1.0),
            (&mut self.bytes, bytes),
            (&mut self.took, took),
            (&mut self.squares, bytes * bytes),
            (&mut self.products, bytes * took),
        ] {
            *sum = *sum * kept + more * weight;
        }
    }

    /// Nanoseconds of each byte. `None`: they were for about as many bytes each, which tells nothing of it.
    pub fn each(&self) -> Option<f64> {
        let (bytes, took) = (self.bytes / self.count, self.took / self.count);
        let apart = self.squares / self.count - bytes * bytes;
        let is_known = self.count > 1.0 && bytes > 0.0 && apart > (Syncs::APART * bytes).powi(2);
        is_known.then(|| ((self.products / self.count - bytes * took) / apart).clamp(0.0, took / bytes))
    }

    /// Nanoseconds that one took in the mean. `None`: none was made.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0.0).then(|| self.took / self.count)
    }

    /// Nanoseconds of one for so many bytes; where nothing is known of bytes each costs what they cost in the
    /// mean. `None`: none was made.
    pub fn cost(&self, bytes: f64) -> Option<f64> {
        let (mean, took) = (self.bytes / self.count, self.took / self.count);
        let each = self.each().unwrap_or(0.0);
        (self.count > 0.0).then(|| (took + (bytes - mean) * each).max(0.0))
    }
}

/// What a request costs for itself, and for each byte, nanoseconds, by points of a curve: the straight line
/// that is nearest to all of them, each by its own measure. What was not measured is not told: nothing of a
/// request where all are [`LARGE`], nothing of a byte where none is.
pub fn straight(points: &[(u64, u64)]) -> (Option<f64>, Option<f64>) {
    let (small, large): (Vec<&(u64, u64)>, Vec<_>) = points.iter().partition(|(len, _)| *len < LARGE);
    let mean = |values: &mut dyn Iterator<Item = f64>, count: usize| values.sum::<f64>() / count as f64;
    match (small.len(), large.len()) {
        (0, 0) => (None, None),
        (few, 0) => (Some(mean(&mut small.iter().map(|(_, cost)| *cost as f64), few)), None),
        (0, few) => {
            let each = |(len, cost): &&(u64, u64)| *cost as f64 / *len as f64;
            (None, Some(mean(&mut large.iter().map(each), few)))
        }
        _ => {
            let (request, byte) = nearest(points);
            (Some(request), Some(byte))
        }
    }
}

/// Least squares of what costs are off the line, as parts of themselves; neither part is below nothing.
fn nearest(points: &[(u64, u64)]) -> (f64, f64) {
    let [mut all, mut lens, mut squares, mut costs, mut products] = [0.0; 5];
    for (len, cost) in points {
        let (len, cost) = (*len as f64, (*cost as f64).max(1.0));
        let weight = 1.0 / (cost * cost);
        all += weight;
        lens += weight * len;
        squares += weight * len * len;
        costs += weight * cost;
        products += weight * len * cost;
    }
    let byte = (all * products - lens * costs) / (all * squares - lens * lens);
    let request = (costs - byte * lens) / all;
    match (request >= 0.0, byte >= 0.0) {
        (true, true) => (request, byte),
        (true, false) => (costs / all, 0.0),
        _ => (0.0, products / squares),
    }
}

/// The straight line through two points, at `x`.
fn line(low: (f64, f64), high: (f64, f64), x: f64) -> f64 {
    low.1 + (x - low.0) * (high.1 - low.1) / (high.0 - low.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time(micros * 1000)
    }

    /// Goal: a class has the sizes from a power of two up to the next one.
    #[test]
    fn classes_tile_the_sizes() {
        for class in 1..CLASSES {
            assert_eq!(class_of(class_start(class)), class);
            assert_eq!(class_of(class_start(class) - 1), class - 1);
        }
        assert_eq!((class_of(0), class_of(1), class_of(u64::MAX)), (0, 0, CLASSES - 1));
    }

    /// Goal: between two sizes that are known cost grows in a straight line; a little beyond them it goes on
    /// no wilder than that, and of what is further nothing is said.
    #[test]
    fn neighbours_tell_of_what_is_not_known() {
        let mut curve = Curve::default();
        assert_eq!(curve.cost(100), None);
        let cost = |len: u64| 5000.0 + 2.0 * len as f64;
        curve.add(at(0), 1 << 10, cost(1 << 10));
        assert_eq!(curve.cost(1 << 8), Some(cost(1 << 10)));
        assert_eq!(curve.cost(1 << 12), Some(4.0 * cost(1 << 10)));
        for far in [16, (1 << 8) - 1, 1 << 13, 1 << 20] {
            assert_eq!(curve.cost(far), None, "{far}");
        }
        curve.add(at(0), 1 << 20, cost(1 << 20));
        for len in [1 << 8, 1 << 10, 1 << 15, 1 << 20, 1 << 22] {
            let (is, told) = (cost(len), curve.cost(len).expect("it is known"));
            assert!((told / is - 1.0).abs() < 0.01, "{len}: {told} for {is}");
        }
        assert_eq!((curve.cost(16), curve.cost(1 << 24)), (None, None));
    }

    /// Goal: what a byte costs large requests tell alone, and of these the one with the least.
    #[test]
    fn bytes_are_told_by_large_ones() {
        let mut curve = Curve::default();
        curve.add(at(0), 100, 8000.0);
        curve.add(at(0), LARGE / 2, 8000.0);
        assert_eq!(curve.byte(), None);
        curve.add(at(0), LARGE, 4.0 * LARGE as f64);
        curve.add(at(0), 8 * LARGE, 24.0 * LARGE as f64);
        assert_eq!(curve.byte(), Some(3.0));
    }

    /// Goal: a cost of so much a request and so much a byte is told as these two, never as less than nothing,
    /// and of what was not measured nothing is told.
    #[test]
    fn a_line_is_told_as_one() {
        let cost = |len: u64| (len, 5000 + 2 * len);
        let is = |points: &[(u64, u64)], wanted: (Option<f64>, Option<f64>)| {
            let (told, near) =
                (straight(points), |told: f64, wanted: f64| (told - wanted).abs() <= 1e-6 * wanted);
            let alike = |told: Option<f64>, wanted: Option<f64>| match (told, wanted) {
                (Some(told), Some(wanted)) => near(told, wanted),
                (told, wanted) => told == wanted,
            };
            assert!(
                alike(told.0, wanted.0) && alike(told.1, wanted.1),
                "{points:?}: {told:?}, not {wanted:?}"
            );
        };
        is(&[cost(16), cost(4096), cost(1 << 20)], (Some(5000.0), Some(2.0)));
        is(&[(16, 9000), (700, 8000), (2000, 7000)], (Some(8000.0), None));
        is(&[(1 << 20, 2 << 20), (4 << 20, 16 << 20)], (None, Some(3.0)));
        is(&[(16, 10)], (Some(10.0), None));
        is(&[], (None, None));
        // Cheaper the larger, or dearer than in a straight line: by chance.
        let (request, byte) = straight(&[(16, 1000), (1 << 20, 400)]);
        assert!(
            request.is_some_and(|cost| (400.0..1000.0).contains(&cost)) && byte == Some(0.0),
            "{request:?}"
        );
        let (request, byte) = straight(&[(16, 1), (1 << 17, 10), (1 << 20, 1 << 30)]);
        assert!(request >= Some(0.0) && byte > Some(0.0), "{request:?}, {byte:?}");
    }

    /// Goal: a sync costs so much for itself and so much for each byte, as far as its bytes ever differed;
    /// where they did not, it costs what it cost.
    #[test]
    fn syncs_have_their_own_line() {
        let mut syncs = Syncs::default();
        assert_eq!((syncs.each(), syncs.cost(1.0)), (None, None));
        (0..5).for_each(|_| syncs.add(1000.0, 7000.0));
        assert_eq!(syncs.each(), None);
        let is = |cost: Option<f64>, wanted: f64| {
            let cost = cost.expect("it is known");
            assert!((cost - wanted).abs() < 0.01 * wanted + 1.0, "{cost} and not {wanted}");
        };
        is(syncs.cost(16.0), 7000.0);
        syncs.add(100_000.0, 205_000.0);
        is(syncs.each(), 2.0);
        is(syncs.cost(16.0), 5032.0);
        is(syncs.cost(50_000.0), 105_000.0);
        // A server that is slow moves the line little.
        syncs.add(100_000.0, 2_050_000.0);
        let slow = syncs.cost(100_000.0).expect("it is known");
        assert!((205_000.0..300_000.0).contains(&slow), "{slow}");
        // What is cheaper the more it is for is so by chance.
        let mut chance = Syncs::default();
        chance.add(10.0, 9000.0);
        chance.add(10_000.0, 1000.0);
        assert_eq!(chance.each(), Some(0.0));
    }

    /// Goal: a cost that changed is believed after a few times as long as it is remembered, and one request
    /// alone changes little, however long nothing came before it.
    #[test]
    fn what_changed_is_learnt() {
        let mut curve = Curve::default();
        for n in 0..1000 {
            curve.add(at(n * 1000), 16, 100.0);
        }
        curve.add(at(60_000_000), 16, 1000.0);
        assert!(curve.cost(16).expect("known") < 450.0, "{:?}", curve.cost(16));
        for n in 0..300 {
            curve.add(at(61_000_000 + n * 10_000), 16, 1000.0);
        }
        assert!(curve.cost(16).expect("known") > 900.0, "{:?}", curve.cost(16));
    }
}
