//! Where the bytes of a file lie: RAID-0 striping as Lustre's client does it.
//!
//! In: a layout and a range of the file. Out: one contiguous range for each object that it touches; a
//! contiguous range of a file is contiguous in every object. Left out: components, mirrors, data on the
//! metadata target.

/// Most targets of a model; Lustre's own limit for one file is 2000.
pub const TARGETS_MAX: u32 = 1024;
/// Lustre refuses stripes that are not a multiple of this.
pub const STRIPE_UNIT: u32 = 64 << 10;

/// One object of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectPlace {
    pub target: u32,
    /// Unique in the file system, at least 1.
    pub id: u64,
}

/// The layout of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub stripe_size: u32,
    /// In stripe order, at least one.
    pub objects: Vec<ObjectPlace>,
    /// Empty, or the name of a pool of at most 15 bytes.
    pub pool: String,
}

/// What a range of a file is on one of its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub place: ObjectPlace,
    /// From the start of the object.
    pub offset: u64,
    pub len: u64,
}

impl Layout {
    /// The parts of `len` bytes from `offset`, one for each object touched, the object of the first byte
    /// first.
    pub fn parts(&self, offset: u64, len: u64) -> Vec<Part> {
        let count = self.objects.len() as u64;
        let touched = if len == 0 {
            0
        } else {
            let size = u64::from(self.stripe_size);
            (offset + len - 1) / size - offset / size + 1
        };
        let first = offset / u64::from(self.stripe_size);
        (0..touched.min(count))
            .map(|at| {
                let slot = (first + at) % count;
                let from = self.below(slot, offset);
                let place = self.objects[usize::try_from(slot).expect("slot < objects.len()")];
                Part { place, offset: from, len: self.below(slot, offset + len) - from }
            })
            .collect()
    }

    /// How many of the first `end` bytes of the file lie on the object in `slot`.
    fn below(&self, slot: u64, end: u64) -> u64 {
        let (size, count) = (u64::from(self.stripe_size), self.objects.len() as u64);
        let row = size * count;
        end / row * size + (end % row).saturating_sub(slot * size).min(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every byte of a range lies on exactly one target, at the place that the definition of RAID-0
    /// says, and the parts are one contiguous range each.
    /// Method: all small ranges over small layouts, against a byte-at-a-time model.
    #[test]
    fn every_byte_lies_on_exactly_one_target() {
        for (size, count) in [(1, 1), (1, 3), (2, 1), (2, 2), (3, 4), (4, 3), (5, 2)] {
            let objects =
                (0..count).map(|at| ObjectPlace { target: 7 - at, id: u64::from(at) + 1 }).collect();
            let layout = Layout { stripe_size: size, objects, pool: String::new() };
            for (offset, len) in (0..30).flat_map(|offset| (0..40).map(move |len| (offset, len))) {
                let mut bytes: Vec<(u64, u64)> = layout
                    .parts(offset, len)
                    .iter()
                    .inspect(|part| assert!(part.len > 0))
                    .flat_map(|part| (part.offset..part.offset + part.len).map(|at| (part.place.id, at)))
                    .collect();
                let mut model: Vec<(u64, u64)> = (offset..offset + len)
                    .map(|byte| {
                        let (stripe, count) = (byte / u64::from(size), u64::from(count));
                        (stripe % count + 1, stripe / count * u64::from(size) + byte % u64::from(size))
                    })
                    .collect();
                let parts = layout.parts(offset, len).len();
                assert_eq!(model.first().map(|m| m.0), layout.parts(offset, len).first().map(|p| p.place.id));
                bytes.sort_unstable();
                model.sort_unstable();
                assert_eq!(bytes, model, "{len} bytes from {offset} in stripes of {size} over {count}");
                model.dedup_by_key(|byte| byte.0);
                assert_eq!(parts, model.len(), "one part for each object");
            }
        }
    }
}
