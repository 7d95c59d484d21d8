//! What of files may be lost since a sync of them failed, over lives: a small file for each of them.
//!
//! In: ranges of what lies here of a file that were written before a sync that failed, and such as were
//! written and synced since. Out: whether something of a range may be lost.
//! Invariants: what may be lost is no more so when it was written or cut anew, and is forgotten on disk only
//! when that is on media. A file of these that is damaged says it of all of its file. That something may be
//! lost is written on the disk that just failed: where that does not take it, only this life knows.
//! Left out: which files are refused as a whole until this life ends (`files`).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

use haul_core::volume::FileNo;
use rustix::io::{Errno, Result};

use crate::disk::{Dir, lock};

/// Holds a file for each file, by its number.
const LOST: &str = "lost";
/// So many ranges are told apart in one file; what lies between two is taken for lost where there are more.
const RANGES_MAX: usize = 256;
const LEN_MAX: usize = 16 * RANGES_MAX + blake3::OUT_LEN;

/// Ranges of one file that do not touch, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(Vec<Range<u64>>);

impl Ranges {
    fn all() -> Ranges {
        Ranges(std::iter::once(0..u64::MAX).collect())
    }

    pub(super) fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        // Those that it touches become one with it.
        let first = self.0.partition_point(|one| one.end < range.start);
        let end = self.0.partition_point(|one| one.start <= range.end);
        let touched = &self.0[first..end];
        let from = touched.first().map_or(range.start, |one| one.start.min(range.start));
        let to = touched.last().map_or(range.end, |one| one.end.max(range.end));
        self.0.splice(first..end, std::iter::once(from..to));
        if self.0.len() > RANGES_MAX {
            let gap = |pair: &[Range<u64>]| pair[1].start - pair[0].end;
            let least = (1..self.0.len()).min_by_key(|at| gap(&self.0[at - 1..=*at])).unwrap_or(1);
            let joined = self.0[least - 1].start..self.0[least].end;
            self.0.splice(least - 1..=least, [joined]);
        }
    }

    fn remove(&mut self, range: &Range<u64>) {
        let rest = self.0.iter().flat_map(|one| {
            let before = one.start..one.end.min(range.start);
            let behind = one.start.max(range.end)..one.end;
            [before, behind].into_iter().filter(|part| !part.is_empty())
        });
        let rest: Vec<Range<u64>> = if range.is_empty() { return } else { rest.collect() };
        if rest.len() <= RANGES_MAX {
            self.0 = rest;
        }
    }

    fn touches(&self, range: &Range<u64>) -> bool {
        let at = self.0.partition_point(|one| one.end <= range.start);
        !range.is_empty() && self.0.get(at).is_some_and(|one| one.start < range.end)
    }

    fn encode(&self) -> Vec<u8> {
        let ends = self.0.iter().flat_map(|one| [one.start, one.end]);
        let mut bytes: Vec<u8> = ends.flat_map(u64::to_le_bytes).collect();
        let check = blake3::hash(&bytes);
        bytes.extend_from_slice(check.as_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Ranges> {
        let (ranges, check) = bytes.split_at_checked(bytes.len().checked_sub(blake3::OUT_LEN)?)?;
        if *blake3::hash(ranges).as_bytes() != *check || ranges.len() % 16 != 0 {
            return None;
        }
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        let mut all = Ranges::default();
        ranges.chunks_exact(16).for_each(|one| all.add(number(&one[..8])..number(&one[8..])));
        Some(all)
    }
}

/// What was done to a file since it was synced.
#[derive(Clone, Debug, Default)]
pub(super) struct Done {
    pub(super) written: Ranges,
    /// From where on it was cut, if it was.
    pub(super) cut: Option<u64>,
}

impl Done {
    fn is_over(&self, ranges: &mut Ranges) {
        self.written.0.iter().for_each(|one| ranges.remove(one));
        if let Some(from) = self.cut {
            ranges.remove(&(from..u64::MAX));
        }
    }
}

/// See the head of this module.
pub(super) struct Lost {
    root: Dir,
    /// What may be lost now, and as it stands on disk.
    files: Mutex<BTreeMap<FileNo, (Ranges, Ranges)>>,
}

fn name_of(file: FileNo) -> String {
    format!("{:016x}", file.0)
}

impl Lost {
    /// What earlier lives left in the directory of a server.
    pub(super) fn open(root: Dir) -> Result<Lost> {
        let mut files = BTreeMap::new();
        let dir = match root.sub(LOST) {
            Err(Errno::NOENT) => return Ok(Lost { root, files: Mutex::default() }),
            other => other?,
        };
        for name in dir.names()? {
            let number = name.to_str().and_then(|name| u64::from_str_radix(name, 16).ok()).map(FileNo);
            let Some(file) = number.filter(|file| name == *name_of(*file)) else { continue };
            let bytes = dir.read_small(&name_of(file), LEN_MAX)?;
            let ranges = bytes.as_deref().and_then(Ranges::decode).unwrap_or_else(Ranges::all);
            files.insert(file, (ranges.clone(), ranges));
        }
        Ok(Lost { root, files: Mutex::new(files) })
    }

    fn write(&self, file: FileNo, ranges: &Ranges) -> Result<()> {
        if ranges.0.is_empty() {
            return match self.root.sub(LOST).and_then(|dir| dir.remove(name_of(file))) {
                Err(Errno::NOENT) => Ok(()),
                other => other,
            };
        }
        self.root.make_sub(LOST)?;
        self.root.sync()?;
        self.root.sub(LOST)?.replace(&name_of(file), &ranges.encode())
    }

    /// A sync failed, of what was done before.
    pub(super) fn add(&self, file: FileNo, done: &Done) {
        let mut files = lock(&self.files);
        let (now, kept) = files.entry(file).or_default();
        for one in &done.written.0 {
            now.add(one.clone());
            kept.add(one.clone());
        }
        // What was cut off may be there again.
        if let Some(from) = done.cut {
            now.add(from..u64::MAX);
            kept.add(from..u64::MAX);
        }
        if haul_mutant::removed("volume-failed-files-are-known-later") {
            return;
        }
        let _ = self.write(file, &kept.clone());
    }

    /// Whether something of a range may be lost.
    pub(super) fn touches(&self, file: FileNo, range: &Range<u64>) -> bool {
        lock(&self.files).get(&file).is_some_and(|(now, _)| now.touches(range))
    }

    /// This was done, and can be read.
    pub(super) fn is_done(&self, file: FileNo, done: &Done) {
        if let Some((now, _)) = lock(&self.files).get_mut(&file) {
            done.is_over(now);
        }
    }

    /// It is on media.
    pub(super) fn is_synced(&self, file: FileNo, done: &Done) {
        let mut files = lock(&self.files);
        let Some((now, kept)) = files.get_mut(&file) else { return };
        let before = kept.clone();
        done.is_over(kept);
        let is_over = now.0.is_empty() && kept.0.is_empty();
        // Where that is not told to the disk the next life takes more for lost than is.
        if *kept != before {
            let _ = self.write(file, &kept.clone());
        }
        if is_over {
            files.remove(&file);
        }
    }

    /// The file is no more.
    pub(super) fn forget(&self, file: FileNo) {
        if lock(&self.files).remove(&file).is_some() {
            let _ = self.write(file, &Ranges::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: ranges are as a set of their bytes; where there are more than can be told apart they have more,
    /// and never less.
    /// Method: random ones against such a set.
    #[test]
    fn ranges_are_sets() {
        let mut random = fastrand::Rng::with_seed(7);
        let (mut ranges, mut model) = (Ranges::default(), std::collections::BTreeSet::new());
        for _ in 0..2000 {
            let from = random.u64(..400);
            let range = from..from + random.u64(..40);
            match random.u8(..3) {
                0 => {
                    ranges.remove(&range);
                    model.retain(|at| !range.contains(at));
                }
                1 => {
                    ranges.add(range.clone());
                    model.extend(range);
                }
                _ => assert_eq!(ranges.touches(&range), range.clone().any(|at| model.contains(&at))),
            }
            assert!(ranges.0.windows(2).all(|pair| pair[0].end < pair[1].start), "{ranges:?}");
            assert_eq!(Ranges::decode(&ranges.encode()).as_ref(), Some(&ranges));
        }
        assert_eq!(ranges.0.iter().cloned().flatten().collect::<std::collections::BTreeSet<_>>(), model);
        let mut many = Ranges::default();
        (0..2 * RANGES_MAX as u64).for_each(|n| many.add(10 * n..10 * n + 1));
        assert!(
            many.0.len() == RANGES_MAX
                && (0..2 * RANGES_MAX as u64).all(|n| many.touches(&(10 * n..10 * n + 1)))
        );
        assert_eq!(Ranges::decode(b"something else"), None);
        let mut bytes = many.encode();
        bytes[3] ^= 1;
        assert_eq!(Ranges::decode(&bytes), None);
    }
}
