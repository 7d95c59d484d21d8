//! Ranges of a file as restart markers and `REST` have them.
//!
//! In: ranges in any order, or their text. Out: a set of bytes as sorted ranges that do not touch; its text.
//! Invariants: `start < end` in each range, `end` of one below `start` of the next, at most [`RANGES_MAX`],
//! no end above [`FILE_LEN_MAX`].
//! **Half-open**: `0-100` is bytes 0 to 99. The examples of GFD.020 (`0-29,30-89`) can be read as inclusive;
//! Globus writes and reads the last byte plus one, and so does everything that talks to it.
//! Not `haul_core::extents`: a map of data has aligned extents and is never added to.

use crate::FtpError;
use crate::text::number;

/// Most ranges of one file that are kept, sent or taken.
pub const RANGES_MAX: usize = 16_384;
/// Longest file: what a signed offset can reach.
pub const FILE_LEN_MAX: u64 = i64::MAX as u64;
/// Longest text of one range with its comma.
const RANGE_LEN_MAX: usize = 2 * 19 + 2;
/// Longest text of a set.
pub const RANGES_LEN_MAX: usize = RANGES_MAX * RANGE_LEN_MAX;

const WHAT: &str = "ranges of a file";

/// A set of bytes of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    list: Vec<(u64, u64)>,
}

impl Ranges {
    /// No byte.
    pub fn new() -> Ranges {
        Ranges::default()
    }

    /// Reads `0-274202624,274464768-274726912`. Ranges may overlap, touch, be empty and have any order.
    ///
    /// # Errors
    /// If the form is another, an end is before its start or beyond [`FILE_LEN_MAX`], or there are too many.
    pub fn parse(text: &[u8]) -> Result<Ranges, FtpError> {
        let mut list = Vec::new();
        for (i, range) in text.split(|b| *b == b',').enumerate() {
            if i >= RANGES_MAX {
                return Err(FtpError::TooMany { what: WHAT, max: RANGES_MAX as u64 });
            }
            let (start, end) =
                crate::text::split_at_byte(range, b'-').ok_or(FtpError::BadForm { what: WHAT })?;
            let (start, end) = (number(WHAT, start, FILE_LEN_MAX)?, number(WHAT, end, FILE_LEN_MAX)?);
            check(start, end)?;
            list.push((start, end));
        }
        list.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(list.len());
        for (start, end) in list {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ if start == end => {}
                _ => merged.push((start, end)),
            }
        }
        Ok(Ranges { list: merged })
    }

    /// Adds the bytes from `start` up to `end`, which is not one of them.
    ///
    /// # Errors
    /// If the range is none, or the set would have too many; then it is as before.
    pub fn insert(&mut self, start: u64, end: u64) -> Result<(), FtpError> {
        check(start, end)?;
        if start == end {
            return Ok(());
        }
        // All that overlap or touch become one.
        let first = self.list.partition_point(|(_, e)| *e < start);
        let last = self.list.partition_point(|(s, _)| *s <= end);
        if first == last && self.list.len() >= RANGES_MAX {
            return Err(FtpError::TooMany { what: WHAT, max: RANGES_MAX as u64 });
        }
        let joined = self.list[first..last].iter().fold((start, end), |(s, e), r| (s.min(r.0), e.max(r.1)));
        self.list.splice(first..last, [joined]);
        Ok(())
    }

    /// Adds all of `other`: the union of incremental markers is the restart set.
    ///
    /// # Errors
    /// As [`Ranges::insert`]; what was added before stays.
    pub fn merge(&mut self, other: &Ranges) -> Result<(), FtpError> {
        other.list.iter().try_for_each(|(start, end)| self.insert(*start, *end))
    }

    /// The ranges, each start and end, by offset.
    pub fn list(&self) -> &[(u64, u64)] {
        &self.list
    }

    /// No byte is in the set.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// How many bytes are in the set.
    pub fn total(&self) -> u64 {
        self.list.iter().map(|(start, end)| end - start).sum()
    }

    /// All bytes from `start` up to `end` are in the set.
    pub fn covers(&self, start: u64, end: u64) -> bool {
        let at = self.list.partition_point(|(_, e)| *e <= start);
        start >= end || self.list.get(at).is_some_and(|(s, e)| *s <= start && end <= *e)
    }

    /// One byte at least from `start` up to `end` is in the set.
    pub fn overlaps(&self, start: u64, end: u64) -> bool {
        let at = self.list.partition_point(|(_, e)| *e <= start);
        start < end && self.list.get(at).is_some_and(|(s, _)| *s < end)
    }

    /// What of a file of `size` bytes is not in the set: what a sender sends after `REST`.
    pub fn missing(&self, size: u64) -> impl Iterator<Item = (u64, u64)> {
        let starts = std::iter::once(0).chain(self.list.iter().map(|r| r.1));
        let ends = self.list.iter().map(|r| r.0).chain(std::iter::once(size));
        starts.zip(ends).map(move |(start, end)| (start, end.min(size))).filter(|(start, end)| start < end)
    }

    /// Appends the text. Of an empty set that is `0-0`, for the grammar has no empty one.
    pub fn encode(&self, out: &mut Vec<u8>) {
        if self.list.is_empty() {
            out.extend_from_slice(b"0-0");
        }
        for (i, (start, end)) in self.list.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            out.extend_from_slice(format!("{comma}{start}-{end}").as_bytes());
        }
    }
}

fn check(start: u64, end: u64) -> Result<(), FtpError> {
    match start <= end && end <= FILE_LEN_MAX {
        true => Ok(()),
        false => Err(FtpError::BadValue { what: WHAT, value: end }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(ranges: &Ranges, size: u64) -> Vec<bool> {
        (0..size).map(|b| ranges.list.iter().any(|(s, e)| (*s..*e).contains(&b))).collect()
    }

    /// Goal: a set is the bytes that were put into it, however they came, and has one form.
    /// Method: seeded ranges of a small file against a byte map; by insertion and by text.
    #[test]
    fn ranges_are_a_set_of_bytes() {
        let mut rng = fastrand::Rng::with_seed(22);
        const SIZE: u64 = 40;
        for _ in 0..2_000 {
            let (mut set, mut expected, mut text) =
                (Ranges::new(), vec![false; SIZE as usize], String::new());
            for i in 0..rng.usize(1..8) {
                let start = rng.u64(0..=SIZE);
                let end = rng.u64(start..=SIZE);
                set.insert(start, end).expect("a legal range");
                expected[start as usize..end as usize].fill(true);
                text += &format!("{}{start}-{end}", if i == 0 { "" } else { "," });
            }
            assert_eq!(model(&set, SIZE), expected);
            assert!(set.list.windows(2).all(|w| w[0].1 < w[1].0) && set.list.iter().all(|r| r.0 < r.1));
            assert_eq!(Ranges::parse(text.as_bytes()), Ok(set.clone()));
            let mut again = Vec::new();
            set.encode(&mut again);
            assert_eq!(Ranges::parse(&again), Ok(set.clone()));
            assert_eq!(set.total(), expected.iter().filter(|b| **b).count() as u64);
            let size = rng.u64(0..=SIZE + 5);
            let mut missing = vec![false; size as usize];
            for (start, end) in set.missing(size) {
                missing[start as usize..end as usize].fill(true);
            }
            let held = |b: usize| expected.get(b).copied().unwrap_or(false);
            assert!((0..size as usize).all(|b| missing[b] != held(b)), "{set:?} {size}");
            for start in 0..SIZE {
                for end in start..=SIZE {
                    let all = expected[start as usize..end as usize].iter().all(|b| *b);
                    assert_eq!(set.covers(start, end), all, "{set:?} {start} {end}");
                    let some = expected[start as usize..end as usize].iter().any(|b| *b);
                    assert_eq!(set.overlaps(start, end), some, "{set:?} {start} {end}");
                }
            }
        }
    }

    /// Goal: the set has a maximum, and what would exceed it changes nothing.
    /// Method: single bytes with gaps up to the maximum, one more, and one that joins two.
    #[test]
    fn the_set_has_a_maximum() {
        let mut set = Ranges::new();
        for i in 0..RANGES_MAX as u64 {
            set.insert(2 * i, 2 * i + 1).expect("below the maximum");
        }
        let before = set.clone();
        assert!(set.insert(1 << 40, (1 << 40) + 1).is_err());
        assert_eq!(set, before);
        set.insert(1, 2).expect("joins two");
        set.insert(1 << 40, (1 << 40) + 1).expect("there is room again");
        let mut text = Vec::new();
        before.encode(&mut text);
        assert!(text.len() <= RANGES_LEN_MAX);
        assert_eq!(Ranges::parse(&text), Ok(before));
        text.extend_from_slice(b",99999999-100000000");
        assert!(Ranges::parse(&text).is_err());
    }

    /// Goal: what is no range is refused.
    /// Method: texts that are nearly ranges.
    #[test]
    fn what_is_no_range_is_refused() {
        let bad = [
            "",
            ",",
            "1",
            "1-",
            "-1",
            "2-1",
            "1-2,",
            " 1-2",
            "1-2, 3-4",
            "1--2",
            "0-9223372036854775808",
            "a-b",
        ];
        for text in bad {
            assert!(Ranges::parse(text.as_bytes()).is_err(), "{text}");
        }
        assert_eq!(Ranges::parse(b"0-0"), Ok(Ranges::new()));
        assert!(Ranges::parse(b"0-9223372036854775807").is_ok());
    }
}
