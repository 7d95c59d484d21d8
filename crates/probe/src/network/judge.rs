//! What the points say: the fastest setting, the one to use, and what limits it.
//!
//! In: points. Out: figures and words of a [`super::Network`]. A setting that was measured several times
//! counts with its median.

use std::collections::BTreeMap;
use std::time::Duration;

use haul_core::tune::show_rate;

use super::{Advice, Best, End, Limit, Point, Setting};
use haul_transport::path;

/// A setting that reaches this share of the fastest is as good: two measurements of the same differ by a few
/// percent.
pub(super) const MARGIN: f64 = 0.95;
/// Shares of bytes sent again that differ by less than this are the same, as are rates that differ by less
/// than that.
const LOSS_STEP: f64 = 1e-3;
const RATE_STEP: f64 = 0.02;

/// Each setting once, with its median rate and its share of bytes sent again in all.
pub(super) fn settings(points: &[Point]) -> Vec<Best> {
    let mut groups: BTreeMap<&Setting, Vec<&Point>> = BTreeMap::new();
    for point in points.iter().filter(|point| point.rate.is_finite() && point.rate > 0.0) {
        groups.entry(&point.setting).or_default().push(point);
    }
    let one = |(setting, mut points): (&Setting, Vec<&Point>)| {
        points.sort_by(|a, b| a.rate.total_cmp(&b.rate));
        let rate = f64::midpoint(points[(points.len() - 1) / 2].rate, points[points.len() / 2].rate);
        let (sent, again) = points.iter().fold((0, 0), |(sent, again), point| {
            (point.sent.saturating_add(sent), point.resent.saturating_add(again))
        });
        Best { setting: setting.clone(), rate, loss: again as f64 / sent.max(1) as f64 }
    };
    groups.into_iter().map(one).collect()
}

/// The fastest setting.
pub(super) fn best(points: &[Point]) -> Option<Best> {
    settings(points).into_iter().max_by(|a, b| a.rate.total_cmp(&b.rate).then(b.setting.cmp(&a.setting)))
}

/// The cheapest setting within [`MARGIN`] of the fastest: of these the fewest streams, the kernel's own
/// window before a fixed one, others than reno, the fewest bytes sent again, `own` (the system's congestion
/// control) before others, the fastest.
///
/// Reno is last, unless it is `own`: it may hold a rate as well as others and lose less, but after a loss it
/// grows by one segment a round trip (RFC 5681), so that a copy that loses at its start has minutes to go on
/// a long path (RFC 9438, section 1). Rates that are measured when they stand do not show that.
pub(super) fn recommended(points: &[Point], own: &str) -> Option<Best> {
    let most = best(points)?.rate;
    let good = settings(points).into_iter().filter(|one| one.rate >= MARGIN * most);
    good.min_by(|a, b| {
        let cost = |one: &Best| {
            let lost = (one.loss / LOSS_STEP).round() as u64;
            let slower = ((1.0 - one.rate / most) / RATE_STEP) as u64;
            let Setting { streams, window, congestion } = &one.setting;
            let is_own = congestion == own;
            (*streams, window.is_some(), congestion == "reno" && !is_own, lost, slower, !is_own)
        };
        cost(a).cmp(&cost(b)).then(b.rate.total_cmp(&a.rate)).then(a.setting.cmp(&b.setting))
    })
}

/// What limits `chosen`, in words. Of the host that data comes from: its processors, against which the time
/// that they were busy is held, and what it is called.
pub(super) fn limited_by(points: &[Point], chosen: &Best, (cpus, whose): (u16, &str)) -> String {
    let of = || points.iter().filter(|point| point.setting == chosen.setting);
    let Some(point) = of().next_back() else { return String::new() };
    let busy = point.cpu_seconds / (point.seconds * f64::from(cpus.max(1))).max(1e-9);
    // Of this process alone: what the kernel does for it in interrupts is on nobody's account.
    if busy > 0.85 {
        return format!("the processors of {whose} ({:.0} % of {cpus} busy with it)", busy * 100.0);
    }
    match point.limit {
        Limit::Window => "the windows of the connections".into(),
        Limit::Hosts => "the hosts: the streams waited for data, or for the other end's processors".into(),
        Limit::Path if point.loss() > 1e-4 => {
            format!("the path, which lost {:.3} % of the bytes", point.loss() * 100.0)
        }
        Limit::Path => "the path".into(),
    }
}

/// The setting of a system that would help, if one does.
pub(super) fn advice(rtt: Option<Duration>, source: &End, sink: &End, points: &[Point]) -> Option<Advice> {
    let best = best(points)?;
    let facts = |end: &End| path::EndFacts {
        limits: end.limits,
        cpus: end.cpus,
        memory: None,
        device: None,
        storage: None,
        widens: true,
    };
    let text = path::advise(rtt, &facts(source), &facts(sink), best.rate as u64)?;
    let one = settings(points)
        .into_iter()
        .filter(|one| one.setting.streams == 1 && one.setting.window.is_none())
        .map(|one| one.rate)
        .fold(0.0, f64::max);
    let seen = match one > 0.0 {
        true => format!(" (one was measured at {})", show_rate(one)),
        false => String::new(),
    };
    Some(Advice { text: format!("{text}{seen}") })
}

#[cfg(test)]
#[path = "judge_tests.rs"]
pub(super) mod tests;
