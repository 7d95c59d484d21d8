//! The arithmetic of axes and colours: values to positions, ticks, units and steps of a ramp.

/// Steps of the ramp of heat maps: `.h0` to `.h8` of the style.
pub const HEAT_STEPS: usize = 9;
/// Steps of the ramp of ordered curves: `.o0` to `.o7`.
pub const ORDERED_STEPS: usize = 8;
/// Colours of curves that have no order: `.c0` to `.c3`.
pub const UNORDERED_STEPS: usize = 4;

/// A unit that values are shown in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unit {
    pub name: &'static str,
    /// So many of what was measured are one of these.
    pub per: f64,
}

impl Unit {
    /// For bytes per second of which `max` is the largest.
    pub fn rate(max: f64) -> Unit {
        let (name, per) = match max {
            _ if max >= 1e9 => ("GB/s", 1e9),
            _ if max >= 1e6 => ("MB/s", 1e6),
            _ => ("kB/s", 1e3),
        };
        Unit { name, per }
    }

    /// The value without its unit, three figures where they are after the point.
    pub fn show(self, value: f64) -> String {
        let value = value / self.per;
        let digits = match value.abs() {
            v if v >= 99.95 => 0,
            v if v >= 9.995 => 1,
            _ => 2,
        };
        format!("{value:.digits$}")
    }
}

/// Ticks of an axis from zero that holds `max`, in steps of 1, 2, 2.5 or 5 times a power of ten; four to
/// seven of them, the last one at or above `max`. What is no positive number gives the axis of 1.
pub fn ticks(max: f64) -> Vec<f64> {
    let max = if max.is_finite() && max > 0.0 { max } else { 1.0 };
    let power = 10f64.powf((max / 5.0).log10().floor());
    // Far below what a reader sees, far above the rounding of the power.
    let enough = |step: f64| step * 5.0 * (1.0 + 1e-9) >= max;
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| enough(*step));
    let step = step.unwrap_or(max / 5.0);
    let count = ((max / step) * (1.0 - 1e-9)).ceil() as u32;
    (0..=count).map(|n| f64::from(n) * step).collect()
}

/// Digits after the point that tell ticks of this distance apart.
pub fn tick_digits(step: f64) -> usize {
    (0..6)
        .find(|digits| {
            let scaled = step * 10f64.powi(*digits);
            (scaled - scaled.round()).abs() < 1e-6 * scaled.max(1e-3)
        })
        .map_or(6, |digits| digits as usize)
}

/// An axis that gives equal room to each doubling.
#[derive(Clone, Copy, Debug)]
pub struct Log2 {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Log2 {
    /// `low` to `high` (positive) onto `from` to `to`; one value alone stands in the middle.
    pub fn new(low: f64, high: f64, from: f64, to: f64) -> Log2 {
        Log2 { low: low.max(f64::MIN_POSITIVE).log2(), high: high.max(f64::MIN_POSITIVE).log2(), from, to }
    }

    pub fn at(self, value: f64) -> f64 {
        let span = self.high - self.low;
        let share = if span > 0.0 { (value.max(f64::MIN_POSITIVE).log2() - self.low) / span } else { 0.5 };
        self.from + share * (self.to - self.from)
    }
}

/// The step of the ramp of `steps` for `value` of `max`. All the rest is the lowest step.
pub fn step(value: f64, max: f64, steps: usize) -> usize {
    let share = value / max;
    // A float cast saturates, and NaN becomes zero.
    ((share * steps as f64) as usize).min(steps - 1)
}

/// The step of the ramp for number `index` of `count` in their order.
pub fn spread(index: usize, count: usize, steps: usize) -> usize {
    match count {
        0 | 1 => steps / 2,
        _ => (index * (steps - 1) + (count - 1) / 2) / (count - 1),
    }
}

/// Moves positions, which must ascend, apart until neighbours are `gap` from each other, as little as
/// possible in all (least squares) and within the bounds. Where there is too little room the gap shrinks.
pub fn apart(positions: &[f64], gap: f64, low: f64, high: f64) -> Vec<f64> {
    let between = positions.len().saturating_sub(1);
    let gap = gap.min((high - low) / between.max(1) as f64);
    // Without the gaps the places need only ascend: neighbours that do not are pooled at their mean.
    let mut pools: Vec<(f64, usize)> = Vec::new();
    for (index, position) in positions.iter().enumerate() {
        let mut pool = (position - gap * index as f64, 1);
        while let Some((mean, count)) = pools.pop_if(|(mean, _)| *mean > pool.0) {
            let all = count + pool.1;
            pool = ((mean * count as f64 + pool.0 * pool.1 as f64) / all as f64, all);
        }
        pools.push(pool);
    }
    let most = high - gap * between as f64;
    let means = pools.iter().flat_map(|(mean, count)| std::iter::repeat_n(*mean, *count));
    // Not `clamp`: rounding may put `most` below `low`.
    means.enumerate().map(|(index, mean)| mean.min(most).max(low) + gap * index as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: ticks hold the largest value, are few, even and round.
    /// Method: maxima over thirty powers of ten, at the edges of each and in between.
    #[test]
    fn ticks_are_few_and_hold_the_maximum() {
        let mut random = fastrand::Rng::with_seed(3);
        for power in -12..18 {
            for factor in [1.0, 1.000_001, 2.0, 2.5, 4.999_999, 5.0, 7.5, 9.999, 1.0 + 9.0 * random.f64()] {
                let max = factor * 10f64.powi(power);
                let ticks = ticks(max);
                let step = ticks[1];
                assert!((3..=6).contains(&(ticks.len() - 1)), "{max}: {ticks:?}");
                assert!(*ticks.last().unwrap() >= max * 0.999_999, "{max}: {ticks:?}");
                assert!(ticks[ticks.len() - 2] < max, "{max}: no tick too many in {ticks:?}");
                let lead = step / 10f64.powf(step.log10().floor() + 1e-12);
                let round = [1.0, 2.0, 2.5, 5.0, 10.0].iter().any(|r: &f64| (lead / r - 1.0).abs() < 1e-6);
                assert!(round, "{max}: steps of {step}");
            }
        }
        for odd in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(ticks(odd).last(), Some(&1.0));
        }
    }

    /// Goal: labels of ticks are as long as needed to tell them apart, not longer.
    #[test]
    fn tick_labels_are_exact() {
        for (step, digits) in [(1.0, 0), (20.0, 0), (2.5, 1), (0.5, 1), (0.25, 2), (0.1, 1), (0.025, 3)] {
            assert_eq!(tick_digits(step), digits, "{step}");
        }
    }

    /// Goal: a doubling takes the same room anywhere; ends meet ends; one value alone stands in the middle.
    #[test]
    fn doublings_are_even() {
        let axis = Log2::new(4096.0, 65536.0, 50.0, 450.0);
        let at: Vec<f64> = [4096.0, 8192.0, 16384.0, 32768.0, 65536.0].map(|v| axis.at(v)).into();
        for (got, want) in at.iter().zip([50.0, 150.0, 250.0, 350.0, 450.0]) {
            assert!((got - want).abs() < 1e-9, "{at:?}");
        }
        assert_eq!(Log2::new(1.0, 1.0, 0.0, 10.0).at(1.0), 5.0);
        assert!(Log2::new(0.0, 0.0, 0.0, 10.0).at(0.0).is_finite());
    }

    /// Goal: every value has a step, higher ones never a lower step; broken ones the lowest.
    #[test]
    fn steps_ascend() {
        let steps: Vec<usize> = (0..=1000).map(|n| step(f64::from(n), 1000.0, HEAT_STEPS)).collect();
        assert!(steps.is_sorted() && steps[0] == 0 && steps[1000] == HEAT_STEPS - 1);
        for value in [f64::NAN, f64::NEG_INFINITY, -1.0] {
            assert_eq!(step(value, 1.0, HEAT_STEPS), 0);
        }
        assert_eq!(step(f64::INFINITY, 1.0, HEAT_STEPS), HEAT_STEPS - 1);
        assert_eq!(step(0.0, 0.0, HEAT_STEPS), 0);
        for count in 1..20 {
            let steps: Vec<usize> = (0..count).map(|n| spread(n, count, ORDERED_STEPS)).collect();
            assert!(steps.is_sorted() && steps.iter().all(|step| *step < ORDERED_STEPS));
            assert!(count == 1 || (steps[0] == 0 && steps[count - 1] == ORDERED_STEPS - 1));
        }
    }

    /// Goal: labels keep their order, their distance and the bounds.
    /// Method: seeded positions, in room and out of it.
    #[test]
    fn labels_stay_apart() {
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..1000 {
            let mut positions: Vec<f64> = (0..random.usize(1..20)).map(|_| random.f64() * 240.0).collect();
            positions.sort_by(f64::total_cmp);
            let out = apart(&positions, 15.0, 10.0, 230.0);
            let gap = 15f64.min(220.0 / (positions.len() - 1).max(1) as f64);
            assert!(out.iter().all(|y| (10.0 - 1e-6..=230.0 + 1e-6).contains(y)), "{out:?}");
            assert!(out.windows(2).all(|pair| pair[1] - pair[0] >= gap - 1e-6), "{out:?}");
        }
        assert_eq!(apart(&[20.0, 100.0], 15.0, 0.0, 200.0), [20.0, 100.0]);
        assert_eq!(apart(&[50.0, 50.0, 50.0], 10.0, 0.0, 200.0), [40.0, 50.0, 60.0], "to both sides");
        assert!(apart(&[], 15.0, 0.0, 1.0).is_empty());
    }

    /// Goal: units fit the largest value, numbers have about three figures.
    #[test]
    fn units_fit() {
        assert_eq!(Unit::rate(2.5e9).name, "GB/s");
        assert_eq!(Unit::rate(999e6).name, "MB/s");
        assert_eq!(Unit::rate(0.0).name, "kB/s");
        let unit = Unit::rate(2e9);
        for (value, text) in [(0.0, "0.00"), (1.234e9, "1.23"), (12.34e9, "12.3"), (123.4e9, "123")] {
            assert_eq!(unit.show(value), text);
        }
    }
}
