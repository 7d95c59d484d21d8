//! BeeGFS: the answers to its ioctls, put together.
//!
//! In: the bytes of `GET_STRIPEINFO`, and the number of the target at each position. Out: a [`Layout`] whose
//! targets are `target N`, or `group N` where chunks are mirrored.
//! Source: `beegfs_client.h`; the structures have C's natural layout in the byte order of the host.

use super::{Answer, Component, Layout, LayoutError, STRIPES_MAX, TargetName};

/// Most targets of a file.
pub const BEEGFS_TARGETS_MAX: usize = STRIPES_MAX;
/// Chunks are powers of two, at least this large.
const CHUNK_MIN: u64 = 64 * 1024;
const PATTERN_BUDDY_MIRROR: u32 = 3;

/// What `GET_STRIPEINFO` (12 bytes: pattern, chunk size, number of targets) says, and the targets in stripe
/// order: `target(index)` asks for one.
///
/// # Errors
/// The answer makes no sense; else the one of `target`.
pub fn beegfs<E: From<LayoutError>>(
    info: &[u8],
    mut target: impl FnMut(u32) -> Result<u32, E>,
) -> Result<Layout, E> {
    let answer = Answer(info);
    let pattern = answer.u32(0, "the pattern")?;
    let chunk = u64::from(answer.u32(4, "the chunk size")?);
    let count = answer.u16(8, "the number of targets")?;
    if !(1..=PATTERN_BUDDY_MIRROR).contains(&pattern) {
        return Err(LayoutError::Kind(pattern).into());
    }
    if chunk < CHUNK_MIN || !chunk.is_power_of_two() {
        return Err(LayoutError::Value { what: "the chunk size", value: chunk }.into());
    }
    if count == 0 || usize::from(count) > BEEGFS_TARGETS_MAX {
        return Err(LayoutError::Value { what: "the number of targets", value: count.into() }.into());
    }
    let word = if pattern == PATTERN_BUDDY_MIRROR { "group" } else { "target" };
    let mut targets = Vec::with_capacity(count.into());
    for index in 0..u32::from(count) {
        targets.push(TargetName::new(&format!("{word} {}", target(index)?)));
    }
    Ok(Layout::new(vec![Component { start: 0, stripe_size: chunk, targets }])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(pattern: u32, chunk: u32, count: u16) -> Vec<u8> {
        [&pattern.to_le_bytes()[..], &chunk.to_le_bytes(), &count.to_le_bytes(), &[0; 2]].concat()
    }

    /// Goal: chunks go round the targets in the order asked for; groups are named as such.
    #[test]
    fn chunks_go_round() {
        let layout = beegfs(&info(1, 512 * 1024, 3), |index| Ok::<_, LayoutError>(101 + index)).unwrap();
        let at = |chunk: u64| layout.at(chunk * 512 * 1024).target.as_str();
        assert_eq!([at(0), at(1), at(2), at(3)], ["target 101", "target 102", "target 103", "target 101"]);
        let layout = beegfs(&info(3, 65_536, 1), |_| Ok::<_, LayoutError>(7)).unwrap();
        assert_eq!(layout.at(0).target.as_str(), "group 7");
    }

    /// Goal: nonsense is refused; an error of a question comes through.
    #[test]
    fn broken_answers_are_refused() {
        let ask = |bytes: &[u8]| beegfs(bytes, |_| Ok::<_, LayoutError>(1));
        for bad in
            [info(0, 65_536, 1), info(4, 65_536, 1), info(1, 1000, 1), info(1, 65_536, 0), vec![1, 0, 0]]
        {
            assert!(ask(&bad).is_err());
        }
        let failed = beegfs(&info(1, 65_536, 2), |_| Err::<u32, _>(LayoutError::NoObjects));
        assert_eq!(failed, Err(LayoutError::NoObjects));
    }
}
