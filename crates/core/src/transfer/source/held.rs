//! What the sink holds of a file: ranges that need not be sent, and the values that it says they have.
//!
//! In: subtrees as the sink names them; ranges that it asks for after all. Out: where the next range is that
//! it holds.
//! Invariants: ranges are disjoint; a value that belongs to a range which was asked for again is forgotten
//! with it. The values are another end's word: they are compared with what is read here, and never taken for
//! it. What is asked for goes by its own way and stays out of the plan, so that it is not sent twice.
//! Left out: what was read here, which is the file's digest.

use std::collections::BTreeMap;

use crate::digest::Subtree;

/// Ranges that the sink holds.
#[derive(Default)]
pub(super) struct Held {
    /// From where to where, as it was at first.
    planned: BTreeMap<u64, u64>,
    /// Without what was asked for since.
    ranges: BTreeMap<u64, u64>,
    claims: Vec<Subtree>,
    /// Bytes of them that the sink did not confirm yet.
    pub(super) open: u64,
}

impl Held {
    /// `claims`: nodes of the file's tree, in order, none within another.
    pub(super) fn new(claims: Vec<Subtree>) -> Held {
        let mut ranges: BTreeMap<u64, u64> = BTreeMap::new();
        for Subtree { offset, len, .. } in &claims {
            let end = offset + len;
            match ranges.last_entry().filter(|last| last.get() == offset) {
                Some(mut last) => *last.get_mut() = end,
                None => drop(ranges.insert(*offset, end)),
            }
        }
        let open = claims.iter().map(|claim| claim.len).sum();
        Held { planned: ranges.clone(), ranges, claims, open }
    }

    /// Nothing is planned as held.
    pub(super) fn is_empty(&self) -> bool {
        self.planned.is_empty()
    }

    pub(super) fn claims(&self) -> &[Subtree] {
        &self.claims
    }

    /// Where the range ends that holds the byte at `at`.
    pub(super) fn end_at(&self, at: u64) -> Option<u64> {
        end_at(&self.ranges, at)
    }

    /// As [`Held::end_at`], of what was held at first.
    pub(super) fn planned_end_at(&self, at: u64) -> Option<u64> {
        end_at(&self.planned, at)
    }

    /// Where the first range begins behind `at` that was held at first.
    pub(super) fn planned_from(&self, at: u64) -> Option<u64> {
        self.planned.range(at..).next().map(|(start, _)| *start)
    }

    /// The sink does not hold this range. How much of it was held until now.
    pub(super) fn take(&mut self, offset: u64, len: u64) -> u64 {
        let taken = cut(&mut self.ranges, offset, len);
        if taken > 0 {
            let end = offset.saturating_add(len);
            self.claims.retain(|claim| claim.offset >= end || claim.offset + claim.len <= offset);
        }
        taken
    }

    /// This range is planned like one that was never held.
    pub(super) fn unplan(&mut self, offset: u64, len: u64) {
        cut(&mut self.planned, offset, len);
    }
}

/// Takes a range out. How much of it was there.
fn cut(ranges: &mut BTreeMap<u64, u64>, offset: u64, len: u64) -> u64 {
    let end = offset.saturating_add(len);
    let first = ranges.range(..=offset).next_back().map_or(offset, |(start, _)| *start);
    let within: Vec<(u64, u64)> = ranges.range(first..end).map(|(start, end)| (*start, *end)).collect();
    let mut taken = 0;
    for (from, to) in within.into_iter().filter(|(_, to)| *to > offset) {
        ranges.remove(&from);
        taken += to.min(end) - from.max(offset);
        if from < offset {
            ranges.insert(from, offset);
        }
        if to > end {
            ranges.insert(end, to);
        }
    }
    taken
}

fn end_at(ranges: &BTreeMap<u64, u64>, at: u64) -> Option<u64> {
    ranges.range(..=at).next_back().map(|(_, end)| *end).filter(|end| at < *end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(offset: u64, len: u64) -> Subtree {
        Subtree { offset, len, cv: [0; 32] }
    }

    /// Goal: what is taken out is held no more, with the values that spoke of it, and nothing else is
    /// touched.
    /// Method: ranges taken out at the begin, in the middle, over the end, twice, and where nothing is held.
    #[test]
    fn ranges_are_taken_out_exactly() {
        let mut held = Held::new(vec![claim(0, 8), claim(8, 4), claim(16, 4)]);
        assert_eq!((held.end_at(0), held.end_at(11), held.end_at(12)), (Some(12), Some(12), None));
        assert_eq!((held.planned_from(12), held.planned_from(17), held.open), (Some(16), None, 16));
        assert_eq!(held.take(2, 2), 2);
        assert_eq!((held.end_at(1), held.end_at(2), held.end_at(4)), (Some(2), None, Some(12)));
        assert_eq!(held.claims(), [claim(8, 4), claim(16, 4)]);
        assert_eq!(held.take(2, 2), 0, "twice");
        assert_eq!(held.take(10, 8), 4);
        assert_eq!((held.end_at(9), held.end_at(17), held.end_at(18)), (Some(10), None, Some(20)));
        assert!(held.claims().is_empty());
        assert_eq!(held.take(100, 5), 0);
        assert_eq!(held.take(0, 100), 2 + 6 + 2);
        assert_eq!((held.end_at(0), held.planned_end_at(0)), (None, Some(12)), "the plan is as it was");
        held.unplan(4, 2);
        assert_eq!(
            (held.planned_end_at(0), held.planned_end_at(4), held.planned_from(4)),
            (Some(4), None, Some(6))
        );
    }
}
