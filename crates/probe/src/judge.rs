//! What the points say: the best setting, how flat the optimum is, and what the classic mistakes cost.
//!
//! In: points. Out: the figures of a [`super::Probe`]. Only sequential points count for the best and the
//! flatness.

pub(super) use haul::passport::storage::best;

use super::{Best, Direction, Io, Mistake, Pattern, Point, Setting};
use haul_storage::options::Order;

/// A setting that reaches this share of the best counts as good.
const GOOD: f64 = 0.9;
/// The depth that is too deep.
const DEPTH_DEEP: u16 = 32;
/// The request size that is too small, bytes.
const REQUEST_SMALL: u32 = 64 << 10;

/// The share of all sequential settings of a direction that reach 90 % of the best of them; 0 if there are
/// none.
pub(super) fn flatness(points: &[Point], direction: Direction) -> f64 {
    let rates: Vec<f64> = points.iter().filter(|p| is_of(p, direction)).map(|p| p.rate).collect();
    let most = rates.iter().copied().fold(0.0, f64::max);
    let good = rates.iter().filter(|rate| **rate >= GOOD * most).count();
    if rates.is_empty() { 0.0 } else { good as f64 / rates.len() as f64 }
}

/// The classic mistakes at a storage whose best setting is `best`: what each changes about it.
pub(super) fn mistakes_of(best: &Setting) -> Vec<(String, Pattern, Setting)> {
    let (other, name) = match best.io {
        Io::Direct => (Io::Buffered, "buffered instead of direct I/O"),
        Io::Buffered => (Io::Direct, "direct instead of buffered I/O"),
    };
    let sequential = Pattern::Sequential;
    let mut all = vec![
        ("one request at a time".to_owned(), sequential, Setting { depth: 1, ..*best }),
        ("requests of 64 KiB".to_owned(), sequential, Setting { request_size: REQUEST_SMALL, ..*best }),
        ("32 requests in flight".to_owned(), sequential, Setting { depth: DEPTH_DEEP, ..*best }),
        (
            "serial order: each request waits for the one before".to_owned(),
            sequential,
            Setting { order: Order::Serial, ..*best },
        ),
        (name.to_owned(), sequential, Setting { io: other, ..*best }),
        ("random instead of sequential offsets".to_owned(), Pattern::Random, *best),
    ];
    all.retain(|(_, pattern, setting)| (*pattern, *setting) != (sequential, *best));
    all
}

/// What the mistakes cost that were measured. A mistake that turned out to be none costs 0.
pub(super) fn mistakes(points: &[Point], best: Option<&Best>, direction: Direction) -> Vec<Mistake> {
    let Some(best) = best else { return Vec::new() };
    let mut found = Vec::new();
    for (what, pattern, setting) in mistakes_of(&best.setting) {
        let point =
            points.iter().find(|p| p.direction == direction && p.pattern == pattern && p.setting == setting);
        let Some(point) = point else { continue };
        let penalty = if best.rate > 0.0 { (1.0 - point.rate / best.rate).clamp(0.0, 1.0) } else { 0.0 };
        found.push(Mistake { what, direction, setting, rate: point.rate, penalty });
    }
    found.sort_by(|a, b| b.penalty.total_cmp(&a.penalty));
    found
}

/// Whether a point counts for the best of its direction.
pub(super) fn is_of(point: &Point, direction: Direction) -> bool {
    point.direction == direction && point.pattern == Pattern::Sequential
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
