//! Lustre: the value of the extended attribute `lustre.lov`.
//!
//! In: the bytes, `lov_user_md_v1`, `_v3` or `lov_comp_md_v1`, in either byte order. Out: a [`Layout`] whose
//! targets are `OST` and four hexadecimal digits, as Lustre's own tools name them, or `MDT` for data on the
//! metadata target.
//! Skipped: components that have no objects yet (not INIT), that are stale, parity or mere extension space.
//! Of several mirrors the first one with objects counts.
//! Source: `lustre_user.h`, and `lov_stripe_number` for the arithmetic inside components.

use std::collections::BTreeMap;

use super::{Answer, Component, Layout, LayoutError, STRIPES_MAX, Striping, TargetName};

const V1: u32 = 0x0BD1_0BD0;
const V3: u32 = 0x0BD3_0BD0;
const COMPOSITE: u32 = 0x0BD6_0BD0;
const HEAD_V1: usize = 32;
const POOL_LEN: usize = 16;
const OBJECT_LEN: usize = 24;
const COMPOSITE_HEAD: usize = 32;
const ENTRY_LEN: usize = 48;
/// Stripes are multiples of this (`LOV_MIN_STRIPE_SIZE`).
const STRIPE_UNIT: u64 = 65_536;

/// Where a wish speaks of the first target: whichever.
const FIRST_ANY: u16 = 0xffff;

const PATTERN_RAID0: u32 = 0x1;
const PATTERN_MDT: u32 = 0x100;
const PATTERN_OVERSTRIPING: u32 = 0x200;
const PATTERN_RELEASED: u32 = 0x8000_0000;
const PATTERN_FLAGS: u32 = 0xffff_0000;

const ENTRY_STALE: u32 = 0x1;
const ENTRY_OFFLINE: u32 = 0x8;
const ENTRY_INIT: u32 = 0x10;
const ENTRY_EXTENSION: u32 = 0x40;
const ENTRY_PARITY: u32 = 0x80;
const MIRROR_MASK: u32 = 0x7fff_0000;

/// Reads the attribute's value.
///
/// # Errors
/// [`LayoutError::NoObjects`] for a file without objects: not written yet, or released to an archive (opening
/// such a file to read would restore it). Others where the bytes are none of Lustre's.
pub fn lustre(bytes: &[u8]) -> Result<Layout, LayoutError> {
    let magic = Answer(bytes).u32(0, "the magic number")?;
    if matches!(magic.swap_bytes(), V1 | V3 | COMPOSITE) {
        // Of a server with the other byte order; no client that haul runs on gives such an answer.
        return Err(LayoutError::Form("the byte order is not this machine's"));
    }
    match magic {
        V1 | V3 => Layout::new(vec![plain(bytes, 0)?.ok_or(LayoutError::NoObjects)?]),
        COMPOSITE => composite(bytes),
        other => Err(LayoutError::Kind(other)),
    }
}

/// What is set on a file without objects to have it striped so, on targets that the file system chooses.
/// `None`: no file of Lustre's can be.
pub fn lustre_wish(striping: Striping) -> Option<Vec<u8>> {
    let stripe_size = u32::try_from(striping.stripe_size).ok()?;
    if stripe_size == 0 || !u64::from(stripe_size).is_multiple_of(STRIPE_UNIT) || striping.stripe_count == 0 {
        return None;
    }
    let mut bytes = Vec::with_capacity(HEAD_V1);
    bytes.extend(V1.to_le_bytes());
    bytes.extend(PATTERN_RAID0.to_le_bytes());
    bytes.extend([0; 16]);
    bytes.extend(stripe_size.to_le_bytes());
    bytes.extend(striping.stripe_count.to_le_bytes());
    bytes.extend(FIRST_ANY.to_le_bytes());
    Some(bytes)
}

/// One striping; `None` if it has no objects.
fn plain(bytes: &[u8], start: u64) -> Result<Option<Component>, LayoutError> {
    let answer = Answer(bytes);
    let objects_at = match answer.u32(0, "the magic number")? {
        V1 => HEAD_V1,
        V3 => HEAD_V1 + POOL_LEN,
        other => return Err(LayoutError::Kind(other)),
    };
    let pattern = answer.u32(4, "the pattern")?;
    let stripe_size = u64::from(answer.u32(24, "the stripe size")?);
    let count = usize::from(answer.u16(28, "the stripe count")?);
    answer.bytes(0, objects_at, "the head")?;
    if pattern & PATTERN_RELEASED != 0 {
        return Ok(None);
    }
    match pattern & !PATTERN_FLAGS & !PATTERN_OVERSTRIPING {
        PATTERN_RAID0 => {}
        PATTERN_MDT => {
            let targets = vec![TargetName::new("MDT")];
            return Ok(Some(Component { start, stripe_size: u64::MAX, targets }));
        }
        other => return Err(LayoutError::Kind(other)),
    }
    if count == 0 {
        return Ok(None);
    }
    if count > STRIPES_MAX {
        return Err(LayoutError::Value { what: "the stripe count", value: count as u64 });
    }
    if stripe_size == 0 || stripe_size % STRIPE_UNIT != 0 {
        return Err(LayoutError::Value { what: "the stripe size", value: stripe_size });
    }
    let target = |index| {
        let ost = answer.u32(objects_at + index * OBJECT_LEN + 20, "an object")?;
        Ok(TargetName::new(&format!("OST{ost:04x}")))
    };
    let targets = (0..count).map(target).collect::<Result<_, LayoutError>>()?;
    Ok(Some(Component { start, stripe_size, targets }))
}

fn composite(bytes: &[u8]) -> Result<Layout, LayoutError> {
    let answer = Answer(bytes);
    let size = answer.u32(4, "the size")? as usize;
    let answer = Answer(answer.bytes(0, size.max(COMPOSITE_HEAD), "the components")?);
    let count = usize::from(answer.u16(14, "the number of components")?);
    // By mirror, then by start: the first mirror that has objects is the one to read.
    let mut mirrors: BTreeMap<u32, BTreeMap<u64, Component>> = BTreeMap::new();
    for index in 0..count {
        let at = COMPOSITE_HEAD + index * ENTRY_LEN;
        let id = answer.u32(at, "a component")?;
        let flags = answer.u32(at + 4, "a component")?;
        let start = answer.u64(at + 8, "a component")?;
        let end = answer.u64(at + 16, "a component")?;
        let offset = answer.u32(at + 24, "a component")? as usize;
        let len = answer.u32(at + 28, "a component")? as usize;
        if start >= end {
            return Err(LayoutError::Value { what: "the end of a component", value: end });
        }
        if flags & ENTRY_INIT == 0
            || flags & (ENTRY_STALE | ENTRY_OFFLINE | ENTRY_EXTENSION | ENTRY_PARITY) != 0
        {
            continue;
        }
        if let Some(component) = plain(answer.bytes(offset, len, "a component's stripes")?, start)? {
            mirrors.entry(id & MIRROR_MASK).or_default().insert(start, component);
        }
    }
    let Some(mut components) = mirrors.into_values().find(|mirror| mirror.contains_key(&0)) else {
        return Err(LayoutError::NoObjects);
    };
    // Between the last component with objects and those to come nothing is written yet.
    Layout::new(std::mem::take(&mut components).into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a plain layout.
    fn blob(magic: u32, pattern: u32, stripe_size: u32, osts: &[u32]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(magic.to_le_bytes());
        bytes.extend(pattern.to_le_bytes());
        bytes.extend([7; 16]);
        bytes.extend(stripe_size.to_le_bytes());
        bytes.extend((osts.len() as u16).to_le_bytes());
        bytes.extend(0_u16.to_le_bytes());
        if magic == V3 {
            bytes.extend(*b"flash\0\0\0\0\0\0\0\0\0\0\0");
        }
        for ost in osts {
            bytes.extend([9; 16]);
            bytes.extend(0_u32.to_le_bytes());
            bytes.extend(ost.to_le_bytes());
        }
        bytes
    }

    /// Bytes of a composite layout: (id, flags, start, end, stripes).
    fn blob_of(parts: &[(u32, u32, u64, u64, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = vec![0; COMPOSITE_HEAD];
        bytes[..4].copy_from_slice(&COMPOSITE.to_le_bytes());
        bytes[14..16].copy_from_slice(&(parts.len() as u16).to_le_bytes());
        let mut offset = COMPOSITE_HEAD + parts.len() * ENTRY_LEN;
        for (id, flags, start, end, stripes) in parts {
            let mut entry = Vec::new();
            entry.extend(id.to_le_bytes());
            entry.extend(flags.to_le_bytes());
            entry.extend(start.to_le_bytes());
            entry.extend(end.to_le_bytes());
            entry.extend((offset as u32).to_le_bytes());
            entry.extend((stripes.len() as u32).to_le_bytes());
            entry.resize(ENTRY_LEN, 0);
            bytes.extend(entry);
            offset += stripes.len();
        }
        for part in parts {
            bytes.extend(&part.4);
        }
        let len = bytes.len() as u32;
        bytes[4..8].copy_from_slice(&len.to_le_bytes());
        bytes
    }

    fn names(component: &Component) -> Vec<&str> {
        component.targets.iter().map(TargetName::as_str).collect()
    }

    /// Goal: plain layouts, with and without a pool, and with the same target twice (overstriping).
    #[test]
    fn plain_layouts() {
        for magic in [V1, V3] {
            let layout = lustre(&blob(magic, PATTERN_RAID0, 1 << 20, &[5, 0, 0x1f])).unwrap();
            assert_eq!(names(&layout.components()[0]), ["OST0005", "OST0000", "OST001f"]);
            assert_eq!(layout.at((1 << 20) + 3).target.as_str(), "OST0000");
            assert_eq!(layout.at((1 << 20) + 3).len, (1 << 20) - 3);
        }
        let twice = lustre(&blob(V1, PATTERN_RAID0 | PATTERN_OVERSTRIPING, 65_536, &[2, 2])).unwrap();
        assert_eq!(names(&twice.components()[0]), ["OST0002", "OST0002"]);
        assert_eq!(twice.targets().len(), 1);
        assert_eq!(lustre(&blob(V1, PATTERN_MDT, 0, &[])).unwrap().at(7).target.as_str(), "MDT");
    }

    /// Goal: a wish is `lov_user_md_v1` that names no target; what no file can have is no wish.
    /// Method: bytes written by hand from the struct.
    #[test]
    fn wishes_leave_the_targets_open() {
        let wish = |stripe_size, stripe_count| lustre_wish(Striping { stripe_size, stripe_count });
        let mut bytes = vec![0xd0, 0x0b, 0xd1, 0x0b, 1, 0, 0, 0];
        bytes.extend([0; 16]);
        bytes.extend([0, 0, 0x20, 0, 3, 0, 0xff, 0xff]);
        assert_eq!(wish(2 << 20, 3), Some(bytes));
        assert_eq!([wish(1000, 3), wish(1 << 32, 3), wish(0, 3), wish(1 << 20, 0)], [None, None, None, None]);
    }

    /// Goal: a progressive file: components by offset; those without objects, stale ones and second mirrors
    /// are skipped.
    #[test]
    fn composite_layouts() {
        let stripes = |osts: &[u32]| blob(V1, PATTERN_RAID0, 1 << 20, osts);
        let first = 4 << 20;
        let parts = [
            (0x1_0001, ENTRY_INIT, 0, first, stripes(&[3])),
            (0x1_0002, ENTRY_INIT, first, 1 << 30, stripes(&[1, 2])),
            (0x1_0003, 0, 1 << 30, u64::MAX, stripes(&[])),
        ];
        let layout = lustre(&blob_of(&parts)).unwrap();
        assert_eq!(layout.components().len(), 2);
        assert_eq!(layout.at(first - 1).target.as_str(), "OST0003");
        assert_eq!(layout.at(first - 1).len, 1);
        // Stripe 4, counted from the start of the file.
        assert_eq!(layout.at(first).target.as_str(), "OST0001");
        assert_eq!(layout.at(first + (1 << 20)).target.as_str(), "OST0002");

        let mirrored = [
            (0x1_0001, ENTRY_INIT | ENTRY_STALE, 0, u64::MAX, stripes(&[1])),
            (0x2_0001, ENTRY_INIT, 0, u64::MAX, stripes(&[8])),
            (0x3_0001, ENTRY_INIT, 0, u64::MAX, stripes(&[9])),
        ];
        assert_eq!(lustre(&blob_of(&mirrored)).unwrap().at(0).target.as_str(), "OST0008");
    }

    /// Goal: what has no objects is said to have none: empty, not written yet, released to an archive.
    #[test]
    fn files_without_objects() {
        let released = blob(V1, PATTERN_RAID0 | PATTERN_RELEASED, 1 << 20, &[]);
        let wish = blob_of(&[(0x1_0001, 0, 0, u64::MAX, blob(V1, PATTERN_RAID0, 1 << 20, &[]))]);
        for bytes in [released, blob(V1, PATTERN_RAID0, 1 << 20, &[]), wish] {
            assert_eq!(lustre(&bytes), Err(LayoutError::NoObjects));
        }
    }

    /// Goal: nothing that an answer claims is believed: no panic, and an error where it is cut or nonsense.
    /// Method: every prefix of good answers; each byte set to extremes.
    #[test]
    fn broken_answers_are_refused() {
        let stripes = blob(V3, PATTERN_RAID0, 1 << 20, &[1, 2]);
        let good = [stripes.clone(), blob_of(&[(0x1_0001, ENTRY_INIT, 0, u64::MAX, stripes)])];
        for bytes in &good {
            assert!(lustre(bytes).is_ok());
            for len in 0..bytes.len() {
                assert!(lustre(&bytes[..len]).is_err(), "{len} of {}", bytes.len());
            }
            for at in 0..bytes.len() {
                for value in [0, 1, 0x7f, 0xff] {
                    let mut bytes = bytes.clone();
                    bytes[at] = value;
                    let _ = lustre(&bytes);
                }
            }
        }
        assert!(lustre(&blob(V1, PATTERN_RAID0, 1000, &[1])).is_err());
        assert!(lustre(&blob(0x0BD7_0BD0, PATTERN_RAID0, 65_536, &[1])).is_err());
    }
}
