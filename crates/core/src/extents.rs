//! Where a sparse file has data: its extent map.
//!
//! In: what the source's file system says, or what a peer claims. Out: a checked list of data extents; what
//! lies between them is holes.
//! Invariants: extents begin at multiples of [`EXTENT_ALIGN`] and end there or at the end of the file, rise,
//! do not touch, and are at most [`EXTENTS_MAX`]. So one file content and one list of holes have one map, and
//! a piece of an extent can be read and written directly.
//! Left out: unwritten extents and holes smaller than the alignment. What the file system calls data is data.

use alloc::sync::Arc;

use crate::wire::SLOT_LEN;

/// Data extents are made of whole slots, but for the end of the file. Smaller holes count as data.
pub const EXTENT_ALIGN: u64 = SLOT_LEN;
/// Most data extents of one file; beyond that the smallest holes count as data.
pub const EXTENTS_MAX: usize = 65_536;
/// Most data extents of all files that are announced and not yet over (16 MiB at each end).
pub const EXTENTS_OPEN_MAX: usize = 1_048_576;

// However many are open, one more file can be mapped when they are over.
const _: () = assert!(EXTENTS_OPEN_MAX >= EXTENTS_MAX);

/// What [`ExtentMap::digest`] begins with: no other hash of haul can be taken for it.
const MAP_CONTEXT: &str = "haul v1 extent map of a sparse file";

/// A range of a file that has data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataExtent {
    pub offset: u64,
    pub len: u64,
}

impl DataExtent {
    /// Where it ends, exclusive. No overflow in a map: an extent lies within its file.
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// Why a list of extents is no map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    #[error("a data extent of {len} bytes at {offset} is empty or not made of whole slots")]
    Unaligned { offset: u64, len: u64 },
    #[error("a data extent of {len} bytes at {offset} goes beyond the end of a file of {size} bytes")]
    BeyondEnd { offset: u64, len: u64, size: u64 },
    #[error("a data extent at {offset} overlaps or touches the one before, or is out of order")]
    OutOfOrder { offset: u64 },
    #[error("more than {EXTENTS_MAX} data extents")]
    TooMany,
}

/// The data extents of a file. A clone shares the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentMap {
    size: u64,
    data: u64,
    extents: Arc<[DataExtent]>,
}

impl ExtentMap {
    /// The map of a file of `size` bytes with these data extents.
    ///
    /// # Errors
    /// If the list breaks a rule of the module's head.
    pub fn new(size: u64, extents: Vec<DataExtent>) -> Result<ExtentMap, MapError> {
        let mut before: Option<&DataExtent> = None;
        if extents.len() > EXTENTS_MAX {
            return Err(MapError::TooMany);
        }
        for extent in &extents {
            check_next(size, before, extent)?;
            before = Some(extent);
        }
        Ok(ExtentMap::of(size, extents))
    }

    /// A map whose extents were checked.
    fn of(size: u64, extents: Vec<DataExtent>) -> ExtentMap {
        let data = extents.iter().map(|e| e.len).sum();
        ExtentMap { size, data, extents: extents.into() }
    }

    /// The map of a file without holes.
    pub fn full(size: u64) -> ExtentMap {
        let whole = DataExtent { offset: 0, len: size };
        ExtentMap::of(size, if size > 0 { vec![whole] } else { Vec::new() })
    }

    /// Size of the file, bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of data.
    pub fn data_len(&self) -> u64 {
        self.data
    }

    /// The data extents, by offset.
    pub fn extents(&self) -> &[DataExtent] {
        &self.extents
    }

    /// There is no hole: the file is no sparse one.
    pub fn is_full(&self) -> bool {
        self.data == self.size
    }

    /// The extent that holds the byte at `offset`; `None` in a hole and behind the end.
    pub fn at(&self, offset: u64) -> Option<DataExtent> {
        self.next(offset).filter(|e| e.offset <= offset)
    }

    /// The first extent that ends behind `offset`.
    pub fn next(&self, offset: u64) -> Option<DataExtent> {
        self.extents.get(self.extents.partition_point(|e| e.end() <= offset)).copied()
    }

    /// All bytes of the range are data. An empty range is so only within an extent.
    pub fn covers(&self, offset: u64, len: u64) -> bool {
        self.at(offset).is_some_and(|e| len <= e.end() - offset)
    }

    /// Tells this map from every other: what a journal keeps of it, and what a sparse root begins with.
    pub fn digest(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key(MAP_CONTEXT);
        hasher.update(&self.size.to_le_bytes());
        hasher.update(&(self.extents.len() as u64).to_le_bytes());
        for extent in &*self.extents {
            hasher.update(&extent.offset.to_le_bytes());
            hasher.update(&extent.len.to_le_bytes());
        }
        *hasher.finalize().as_bytes()
    }
}

/// Whether `extent` may follow `before` in the map of a file of `size` bytes.
///
/// # Errors
/// If it breaks a rule of the module's head.
pub fn check_next(size: u64, before: Option<&DataExtent>, extent: &DataExtent) -> Result<(), MapError> {
    let DataExtent { offset, len } = *extent;
    let Some(end) = offset.checked_add(len).filter(|end| *end <= size) else {
        return Err(MapError::BeyondEnd { offset, len, size });
    };
    let whole_slots = len.is_multiple_of(EXTENT_ALIGN) || end == size;
    if len == 0 || !offset.is_multiple_of(EXTENT_ALIGN) || !whole_slots {
        return Err(MapError::Unaligned { offset, len });
    }
    match before.filter(|_| !haul_mutant::removed("map-in-order")) {
        Some(before) if offset <= before.end() => Err(MapError::OutOfOrder { offset }),
        _ => Ok(()),
    }
}

/// Makes a map of what a file system tells, piece by piece.
#[derive(Debug)]
pub struct MapMaker {
    size: u64,
    extents: Vec<DataExtent>,
    extents_max: usize,
}

impl MapMaker {
    /// A file of `size` bytes, all of it a hole so far.
    pub fn new(size: u64) -> MapMaker {
        MapMaker { size, extents: Vec::new(), extents_max: EXTENTS_MAX }
    }

    /// The bytes from `start` to `end` are data. Calls come in order; ranges may touch and overlap.
    /// Edge: what lies behind the end of the file is not counted.
    pub fn push(&mut self, start: u64, end: u64) {
        let end = end.min(self.size);
        if start >= end {
            return;
        }
        let start = start - start % EXTENT_ALIGN;
        let end = end.checked_next_multiple_of(EXTENT_ALIGN).map_or(self.size, |end| end.min(self.size));
        match self.extents.last_mut() {
            Some(last) if start <= last.end() => last.len = last.len.max(end - last.offset),
            _ => self.extents.push(DataExtent { offset: start, len: end - start }),
        }
        if self.extents.len() >= 2 * self.extents_max {
            self.close_smallest();
        }
    }

    /// The map of what was pushed.
    pub fn finish(mut self) -> ExtentMap {
        self.close_smallest();
        ExtentMap::of(self.size, self.extents)
    }

    /// Takes the smallest holes (of equal ones the first) as data, until the list fits.
    fn close_smallest(&mut self) {
        let Some(surplus) = self.extents.len().checked_sub(self.extents_max).filter(|n| *n > 0) else {
            return;
        };
        let hole = |i: &usize| (self.extents[i + 1].offset - self.extents[*i].end(), *i);
        let mut holes: Vec<usize> = (0..self.extents.len() - 1).collect();
        holes.select_nth_unstable_by_key(surplus - 1, hole);
        let mut closed = vec![false; self.extents.len()];
        holes[..surplus].iter().for_each(|i| closed[i + 1] = true);
        let mut kept: Vec<DataExtent> = Vec::with_capacity(self.extents_max);
        for (extent, joins) in self.extents.iter().zip(closed) {
            match kept.last_mut() {
                Some(last) if joins => last.len = extent.end() - last.offset,
                _ => kept.push(*extent),
            }
        }
        self.extents = kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: u64 = EXTENT_ALIGN;

    fn random_map(rng: &mut fastrand::Rng, slots: u64) -> (ExtentMap, Vec<bool>) {
        let size = (slots - 1) * A + rng.u64(1..=A);
        let data: Vec<bool> = (0..slots).map(|_| rng.u8(..3) == 0).collect();
        let mut maker = MapMaker::new(size);
        for (i, _) in data.iter().enumerate().filter(|(_, data)| **data) {
            let at = i as u64 * A;
            let len = A.min(size - at);
            let start = rng.u64(..len);
            maker.push(at + start, at + rng.u64(start + 1..=len));
        }
        (maker.finish(), data)
    }

    /// Goal: a made map is a legal one that says of every byte what was said of its slot.
    /// Method: random files of up to 40 slots, with odd ends, against one flag for each slot.
    #[test]
    fn maps_say_what_is_data() {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..2000 {
            let slots = rng.u64(1..40);
            let (map, data) = random_map(&mut rng, slots);
            assert_eq!(ExtentMap::new(map.size(), map.extents().to_vec()).as_ref(), Ok(&map));
            for at in 0..slots * 4 {
                let offset = at * A / 4;
                let known = offset < map.size() && data[(offset / A) as usize];
                assert_eq!(map.at(offset).is_some(), known, "{map:?} at {offset}");
                assert!(!known || map.covers(offset, 1));
                let next = (at / 4..slots).find(|slot| data[*slot as usize]).filter(|_| offset < map.size());
                let first = map.next(offset).map(|e| e.offset.max(offset) / A);
                assert_eq!(first, next, "{map:?} next to {offset}");
            }
            assert_eq!(map.is_full(), data.iter().all(|data| *data));
            let len = |i: usize| A.min(map.size() - i as u64 * A);
            let sum: u64 = (0..data.len()).filter(|i| data[*i]).map(len).sum();
            assert_eq!(map.data_len(), sum);
        }
    }

    /// Goal: a list that breaks one rule is refused, and names which.
    /// Method: one change each of a legal list.
    #[test]
    fn bad_lists_are_refused() {
        let extent = |offset, len| DataExtent { offset, len };
        let size = 10 * A + 5;
        let of = |list: &[(u64, u64)]| {
            ExtentMap::new(size, list.iter().map(|(offset, len)| extent(*offset, *len)).collect())
        };
        assert!(of(&[]).is_ok());
        assert!(of(&[(0, A), (2 * A, A), (10 * A, 5)]).is_ok());
        let unaligned = |offset, len| Err(MapError::Unaligned { offset, len });
        assert_eq!(of(&[(1, A)]), unaligned(1, A));
        assert_eq!(of(&[(0, A - 1)]), unaligned(0, A - 1));
        assert_eq!(of(&[(0, 0)]), unaligned(0, 0));
        assert_eq!(of(&[(0, 11 * A)]), Err(MapError::BeyondEnd { offset: 0, len: 11 * A, size }));
        let beyond = MapError::BeyondEnd { offset: u64::MAX - A + 1, len: A, size };
        assert_eq!(of(&[(u64::MAX - A + 1, A)]), Err(beyond));
        for second in [0, A, 2 * A] {
            assert_eq!(of(&[(A, A), (second, A)]), Err(MapError::OutOfOrder { offset: second }));
        }
        let many = (0..=EXTENTS_MAX as u64).map(|i| extent(2 * i * A, A)).collect();
        assert_eq!(ExtentMap::new(u64::MAX, many), Err(MapError::TooMany));
    }

    /// Goal: beyond the limit the smallest holes become data, and nothing that is data is lost.
    /// Method: a limit of 8; extents with holes of known widths; also many more, so that it is cut on the
    /// way.
    #[test]
    fn the_smallest_holes_give_way() {
        let mut rng = fastrand::Rng::with_seed(2);
        for round in 0..200 {
            let mut maker = MapMaker { extents_max: 8, ..MapMaker::new(u64::MAX / 2) };
            let mut widths: Vec<u64> = (1..=if round < 100 { 12 } else { 200 }).collect();
            rng.shuffle(&mut widths);
            let (mut at, mut pushed) = (0, Vec::new());
            for width in &widths {
                maker.push(at, at + A);
                pushed.push(at);
                at += A + width * A;
            }
            let map = maker.finish();
            assert!(map.extents().len() <= 8);
            assert!(ExtentMap::new(map.size(), map.extents().to_vec()).is_ok());
            assert!(pushed.iter().all(|at| map.covers(*at, A)), "data lost: {map:?}");
            if round < 100 {
                // The last one is behind the last extent; the four smallest of the others gave way.
                let mut between = widths[..11].to_vec();
                between.sort_unstable();
                let holes = map.extents().windows(2).map(|e| (e[1].offset - e[0].end()) / A);
                let mut holes: Vec<u64> = holes.collect();
                holes.sort_unstable();
                assert_eq!(holes, between[4..]);
            }
        }
    }

    /// Goal: maps that differ in anything have different digests.
    #[test]
    fn digests_tell_maps_apart() {
        let one = |size, offset, len| ExtentMap::new(size, vec![DataExtent { offset, len }]).expect("a map");
        let all = [
            one(10 * A, 0, A),
            one(10 * A + 1, 0, A),
            one(10 * A, A, A),
            one(10 * A, 0, 2 * A),
            ExtentMap::new(10 * A, Vec::new()).expect("a map"),
            ExtentMap::full(10 * A),
        ];
        for (i, a) in all.iter().enumerate() {
            for (j, b) in all.iter().enumerate() {
                assert_eq!(a.digest() == b.digest(), i == j);
            }
        }
    }
}
