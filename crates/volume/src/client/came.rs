//! What came of a piece: the bytes of its server, and over them what its gatherer had.
//!
//! Invariant: whatever servers sent, a piece has exactly as many bytes as are copied out of it; what nobody
//! sent is zeros.

use haul_core::volume::gather::Part;

use crate::line::Bytes;

/// The bytes of one piece, as they came.
#[derive(Clone, Debug)]
pub struct Came {
    offset: u64,
    stored: Bytes,
    /// Where each part lies in the piece, and in the gatherer's bytes; and how many bytes it has.
    parts: Vec<(usize, usize, usize)>,
    gathered: Bytes,
    end: u64,
    nowhere: Option<u64>,
}

/// Where the first byte is of `len` from `offset` on that lies before the file's end and that nobody sent:
/// its server sent `stored` of them, its gatherer these parts, in their order.
pub(super) fn nowhere((offset, len): (u64, u64), stored: usize, parts: &[Part], end: u64) -> Option<u64> {
    let last = offset.saturating_add(len).min(end);
    let mut at = offset.saturating_add(stored as u64);
    for part in parts {
        if part.offset <= at {
            at = at.max(part.offset.saturating_add(part.len));
        }
    }
    (at < last).then_some(at)
}

impl Came {
    pub(super) fn new(
        (offset, asked): (u64, u64),
        stored: Bytes,
        gathered: Option<(Vec<Part>, Bytes)>,
        end: u64,
    ) -> Came {
        let (parts, gathered) = gathered.unwrap_or_default();
        let nowhere = nowhere((offset, asked), stored.len(), &parts, end);
        let parts = parts.into_iter().filter(|part| part.offset >= offset);
        let parts =
            parts.map(|part| ((part.offset - offset) as usize, part.from as usize, part.len as usize));
        Came { offset, stored, parts: parts.collect(), gathered, end, nowhere }
    }

    /// Where the piece begins in its file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Where the file ends, as far as its gatherer knew.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Where the first of its bytes is that no server has, before the end: see
    /// [`Read::nowhere`](super::Read::nowhere).
    pub fn nowhere(&self) -> Option<u64> {
        self.nowhere
    }

    /// All of its bytes that its server sent, if nothing of them was gathered.
    pub fn plain(&self) -> Option<&[u8]> {
        self.parts.is_empty().then_some(&self.stored[..])
    }

    /// Copies its bytes from there on, as many as there is room for.
    pub fn copy(&self, from: usize, to: &mut [u8]) {
        let stored = self.stored.get(from..).unwrap_or_default();
        let len = stored.len().min(to.len());
        to[..len].copy_from_slice(&stored[..len]);
        to[len..].fill(0);
        let end = from + to.len();
        for &(at, in_bytes, len) in &self.parts {
            let (first, last) = (at.max(from), (at + len).min(end));
            if first < last
                && let Some(bytes) = self.gathered.get(in_bytes + (first - at)..in_bytes + (last - at))
            {
                to[first - from..last - from].copy_from_slice(bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use haul_core::volume::gather::Seq;

    use super::*;

    /// Goal: any range of a piece is what was stored with what was gathered over it, and zeros where a server
    /// sent less than was asked for.
    /// Method: all ranges of one piece, against a plain copy.
    #[test]
    fn what_was_gathered_lies_over_what_was_stored() {
        let part = |offset, len, from| Part { offset, len, seq: Seq(0), from };
        let parts = vec![part(101, 2, 0), part(105, 3, 2)];
        let (stored, gathered) = (Arc::new(vec![1, 2, 3, 4, 5, 6, 7]), Arc::new(vec![11, 12, 13, 14, 15]));
        let came = Came::new((100, 10), stored.clone(), Some((parts, gathered)), 110);
        assert_eq!(came.nowhere(), Some(108), "behind what was stored there is a part");
        let whole = [1, 11, 12, 4, 5, 13, 14, 15, 0, 0];
        for from in 0..whole.len() {
            for to in from..whole.len() {
                let mut room = vec![99; to - from];
                came.copy(from, &mut room);
                assert_eq!(room, whole[from..to], "{from}..{to}");
            }
        }
        assert!(came.plain().is_none());
        let came = |len, end| Came::new((100, len), stored.clone(), None, end);
        assert_eq!(came(10, 107).plain(), Some(&[1, 2, 3, 4, 5, 6, 7][..]));
        let nowhere = [came(7, 200), came(10, 107), came(10, 108), came(10, 200)].map(|came| came.nowhere());
        assert_eq!(nowhere, [None, None, Some(107), Some(107)], "before the end alone");
    }
}
