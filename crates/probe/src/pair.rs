//! Which read setting of one storage and which write setting of another match for a transfer.
//!
//! In: a probe of the source and one of the sink. Out: a [`Pairing`]. What a transfer can reach is what the
//! slower side does; among settings that reach about the same, the two that cost least: one request size at
//! both ends, so that nothing is split or joined between them, few requests in flight, little CPU time.
//!
//! The rate with swapped settings is that of the nearest setting that was measured.
//!
//! Left out: the network, and storage that is the same at both ends and so does both at once.

use std::cmp::Ordering;

use super::{Best, Direction, Io, Pairing, Pattern, Point, Probe, ProbeError, Setting, judge};

/// Rates as near as this to the best count as equal.
const EQUAL: f64 = 0.03;
/// What nobody tuned: request size in bytes, requests in flight, through the page cache.
const NAIVE: (u32, u16, Io) = (1 << 20, 1, Io::Buffered);

/// Matches the reading side of `source` with the writing side of `sink`.
///
/// # Errors
/// One of them has no sequential point of its direction.
pub fn pair(source: &Probe, sink: &Probe) -> Result<Pairing, ProbeError> {
    let reads = points(source, Direction::Read)?;
    let writes = points(sink, Direction::Write)?;
    let none = || ProbeError::Pair("the probes have no rate to pair".into());
    let best = |points: &[&Point], direction| judge::best(points.iter().copied(), direction).ok_or_else(none);
    let (read_best, write_best) = (best(&reads, Direction::Read)?, best(&writes, Direction::Write)?);
    let (read_most, write_most) = (read_best.rate, write_best.rate);
    let rate_most = read_most.min(write_most);
    let good = |point: &&&Point| point.rate >= rate_most * (1.0 - EQUAL);
    let all = reads
        .iter()
        .filter(good)
        .flat_map(|read| writes.iter().filter(good).map(move |write| (*read, *write)));
    let (read, write) = all.min_by(|a, b| cheaper(*a, *b)).ok_or_else(none)?;
    let at = |points: &[&Point], setting: Setting| {
        let near = |point: &Point| distance(&point.setting, &setting);
        let nearer = |a: &Point, b: &Point| near(a).total_cmp(&near(b)).then(a.setting.cmp(&b.setting));
        points.iter().min_by(|a, b| nearer(a, b)).map(|point| point.rate)
    };
    let naive = |points: &[&Point]| {
        let (request_size, depth, io) = NAIVE;
        let found = points.iter().filter(|point| {
            let setting = point.setting;
            (setting.request_size, setting.depth, setting.io) == (request_size, depth, io)
        });
        found.map(|point| point.rate).reduce(f64::max)
    };
    let both = |read: Option<f64>, write: Option<f64>| Some(read?.min(write?));
    let limited_by = if read_most <= write_most { Direction::Read } else { Direction::Write };
    Ok(Pairing {
        read: Best { rate: read.rate, setting: read.setting },
        write: Best { rate: write.rate, setting: write.setting },
        rate: read.rate.min(write.rate),
        limited_by,
        reason: reason(read, write, read_most, write_most),
        swapped_rate: both(at(&reads, write_best.setting), at(&writes, read_best.setting)),
        naive_rate: both(naive(&reads), naive(&writes)),
    })
}

fn points(probe: &Probe, direction: Direction) -> Result<Vec<&Point>, ProbeError> {
    let points = probe.points.iter().filter(|point| {
        point.direction == direction
            && point.pattern == Pattern::Sequential
            && point.rate.is_finite()
            && point.rate > 0.0
    });
    let points: Vec<&Point> = points.collect();
    if points.is_empty() {
        let what = match direction {
            Direction::Read => "reading",
            Direction::Write => "writing",
        };
        return Err(ProbeError::Pair(format!(
            "the probe of {} on {} did not measure {what}: probe again with it",
            probe.path, probe.host
        )));
    }
    Ok(points)
}

/// Which of two pairs of equal rate costs less. The settings come last, so that the same probes always give
/// the same pair.
fn cheaper(a: (&Point, &Point), b: (&Point, &Point)) -> Ordering {
    let key = |(read, write): (&Point, &Point)| {
        let differ = read.setting.request_size != write.setting.request_size;
        (differ, u32::from(read.setting.depth) + u32::from(write.setting.depth))
    };
    let settings = |(read, write): (&Point, &Point)| (read.setting, write.setting);
    key(a).cmp(&key(b)).then(cpu(a.0, a.1).total_cmp(&cpu(b.0, b.1))).then(settings(a).cmp(&settings(b)))
}

/// How far two settings are from each other: in powers of two, with another order or another way through the
/// page cache farther than any of these.
fn distance(a: &Setting, b: &Setting) -> f64 {
    let steps = |a: u32, b: u32| (f64::from(a).log2() - f64::from(b).log2()).abs();
    let size = steps(a.request_size, b.request_size);
    let depth = steps(u32::from(a.depth), u32::from(b.depth));
    size + depth + 100.0 * f64::from(u8::from(a.io != b.io)) + 50.0 * f64::from(u8::from(a.order != b.order))
}

/// CPU seconds per byte of both sides.
fn cpu(read: &Point, write: &Point) -> f64 {
    let each = |point: &Point| if point.bytes == 0 { 0.0 } else { point.cpu_seconds / point.bytes as f64 };
    each(read) + each(write)
}

fn reason(read: &Point, write: &Point, read_most: f64, write_most: f64) -> String {
    let (slow, fast, share) = match read_most <= write_most {
        true => ("reading", "writing", read_most / write_most),
        false => ("writing", "reading", write_most / read_most),
    };
    let limit = match share > 1.0 - EQUAL {
        true => "both sides are equally fast".to_owned(),
        false => format!("{slow} limits: at its best it does {:.0} % of what {fast} does", share * 100.0),
    };
    let sizes = match read.setting.request_size == write.setting.request_size {
        true => "the same request size at both ends, so that nothing is split or joined",
        false => "different request sizes, for no common one comes near this rate",
    };
    format!(
        "{limit}; {sizes}; of what is within {:.0} % the fewest requests in flight and the least CPU time",
        EQUAL * 100.0
    )
}

#[cfg(test)]
#[path = "pair_tests.rs"]
mod tests;
