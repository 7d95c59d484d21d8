//! The layout question and its answer, byte for byte as Lustre's client gives it.
//!
//! In: a layout, or the bytes that a program sets. Out: `lov_user_md_v1`, or `_v3` where the file has a pool;
//! and what a program wishes. Host byte order is little here, as on the wire. The generation is always 0 in
//! an answer, for Lustre clears it, so that an archive of the attribute is not taken for a wish to start at
//! that target.
//! Source: `lustre_user.h` and `llite/xattr.c`. Left out: composite layouts (PFL, mirrors), foreign ones.

use super::stripe::{Layout, STRIPE_UNIT};

const MAGIC_V1: u32 = 0x0BD1_0BD0;
const MAGIC_V3: u32 = 0x0BD3_0BD0;
const PATTERN_RAID0: u32 = 1;
/// `FID_SEQ_NORMAL` + 1: the first sequence of files that Lustre hands out.
const SEQUENCE: u64 = 0x2_0000_0401;
const POOL_LEN: usize = 16;
const HEAD_V1: usize = 32;
const ANY: u16 = 0xffff;

/// The names under which it is asked.
pub const NAMES: [&str; 2] = ["lustre.lov", "trusted.lov"];

/// What a program wishes for a file, or for the files to come in a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// 0 is the default of the file system.
    pub stripe_size: u32,
    /// 0 is the default of the file system, 0xffff all targets.
    pub stripe_count: u16,
    /// First target; none lets the file system choose.
    pub first: Option<u32>,
    pub pool: String,
}

/// The answer for a file.
pub fn encode(inode: u64, layout: &Layout) -> Vec<u8> {
    let count = u16::try_from(layout.objects.len()).expect("no more than TARGETS_MAX");
    let mut bytes = head(inode, SEQUENCE, layout.stripe_size, count, 0, &layout.pool);
    for object in &layout.objects {
        bytes.extend(object.id.to_le_bytes()); // ost_oi.oi_id
        bytes.extend(0u64.to_le_bytes()); // ost_oi.oi_seq
        bytes.extend(0u32.to_le_bytes()); // ost_gen
        bytes.extend(object.target.to_le_bytes()); // ost_idx
    }
    bytes
}

/// The answer for a directory: what the files to come will have, without objects.
pub fn encode_default(wish: &Wish) -> Vec<u8> {
    head(0, 0, wish.stripe_size, wish.stripe_count, 0, &wish.pool)
}

fn head(id: u64, sequence: u64, stripe_size: u32, count: u16, generation: u16, pool: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_V1 + POOL_LEN + 24 * usize::from(count));
    bytes.extend(if pool.is_empty() { MAGIC_V1 } else { MAGIC_V3 }.to_le_bytes());
    bytes.extend(PATTERN_RAID0.to_le_bytes());
    bytes.extend(id.to_le_bytes());
    bytes.extend(sequence.to_le_bytes());
    bytes.extend(stripe_size.to_le_bytes());
    bytes.extend(count.to_le_bytes());
    bytes.extend(generation.to_le_bytes());
    if !pool.is_empty() {
        let mut name = [0; POOL_LEN];
        name[..pool.len()].copy_from_slice(pool.as_bytes());
        bytes.extend(name);
    }
    bytes
}

/// Reads what a program sets; none if Lustre would answer EINVAL.
///
/// An offset of 0 means any target: Lustre takes it so, for that is what it answers when asked.
pub fn decode(bytes: &[u8]) -> Option<Wish> {
    let u16_at = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let u32_at = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let pool = match u32_at(0)? {
        MAGIC_V1 => String::new(),
        MAGIC_V3 => {
            let name = bytes.get(HEAD_V1..HEAD_V1 + POOL_LEN)?;
            let len = name.iter().position(|byte| *byte == 0)?;
            std::str::from_utf8(&name[..len]).ok()?.to_owned()
        }
        _ => return None,
    };
    let (pattern, stripe_size) = (u32_at(4)?, u32_at(24)?);
    if pattern > PATTERN_RAID0 || stripe_size % STRIPE_UNIT != 0 {
        return None;
    }
    let first = u16_at(30)?;
    let first = (first != 0 && first != ANY).then_some(u32::from(first));
    Some(Wish { stripe_size, stripe_count: u16_at(28)?, first, pool })
}

#[cfg(test)]
mod tests {
    use super::super::stripe::ObjectPlace;
    use super::*;

    fn layout(pool: &str) -> Layout {
        let objects = vec![ObjectPlace { target: 5, id: 0x1122 }, ObjectPlace { target: 0, id: 0x1123 }];
        Layout { stripe_size: 0x0040_0000, objects, pool: pool.to_owned() }
    }

    /// Goal: a layout without a pool is answered as `lov_user_md_v1`.
    /// Method: bytes written by hand from the struct.
    #[test]
    fn an_answer_without_pool_is_version_1_byte_for_byte() {
        #[rustfmt::skip]
        let bytes = [
            0xd0, 0x0b, 0xd1, 0x0b, // lmm_magic
            0x01, 0x00, 0x00, 0x00, // lmm_pattern: RAID0
            0x42, 0, 0, 0, 0, 0, 0, 0, // lmm_oi.oi_id
            0x01, 0x04, 0x00, 0x00, 0x02, 0, 0, 0, // lmm_oi.oi_seq
            0x00, 0x00, 0x40, 0x00, // lmm_stripe_size
            0x02, 0x00, // lmm_stripe_count
            0x00, 0x00, // lmm_layout_gen
            0x22, 0x11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, // lmm_objects[0]
            0x23, 0x11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // lmm_objects[1]
        ];
        assert_eq!(encode(0x42, &layout("")), bytes);
    }

    /// Goal: a layout with a pool is answered as `lov_user_md_v3`: the name stands before the objects.
    /// Method: bytes written by hand from the struct.
    #[test]
    fn an_answer_with_pool_is_version_3_byte_for_byte() {
        #[rustfmt::skip]
        let bytes = [
            0xd0, 0x0b, 0xd3, 0x0b,
            0x01, 0x00, 0x00, 0x00,
            0x42, 0, 0, 0, 0, 0, 0, 0,
            0x01, 0x04, 0x00, 0x00, 0x02, 0, 0, 0,
            0x00, 0x00, 0x40, 0x00,
            0x02, 0x00,
            0x00, 0x00,
            b'f', b'l', b'a', b's', b'h', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // lmm_pool_name
            0x22, 0x11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0,
            0x23, 0x11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(encode(0x42, &layout("flash")), bytes);
    }

    /// Goal: a wish is understood as Lustre does, and what Lustre refuses is refused.
    /// Method: hand-made heads; every cut of one; one wrong field each.
    #[test]
    fn wishes_are_read_and_hostile_ones_refused() {
        let good = head(0, 0, 1 << 20, 4, 2, "flash");
        let wish = Wish { stripe_size: 1 << 20, stripe_count: 4, first: Some(2), pool: "flash".into() };
        assert_eq!(decode(&good), Some(wish));
        assert_eq!(decode(&head(0, 0, 0, 0, 0, "")), Some(Wish::default()), "0 is any");
        assert_eq!(decode(&head(0, 0, 0, 0, ANY, "")), Some(Wish::default()));
        for len in 0..good.len() {
            assert_eq!(decode(&good[..len]), None, "{len} bytes");
        }
        let wrong = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            decode(&bytes)
        };
        assert_eq!(wrong(0, 0), None, "magic");
        assert_eq!(wrong(4, 2), None, "pattern");
        assert_eq!(wrong(24, 1), None, "stripe size");
        assert_eq!(decode(&[&good[..32], &[b'x'; 16]].concat()), None, "pool without an end");
    }
}
