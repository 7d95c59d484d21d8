//! Metadata that come in pieces: from messages to the values of one entry.
//!
//! In: the pieces of an entry, in the order in which they came. Out: its values, when they are whole.
//! Invariants: a value is gathered from its beginning to its end without gaps, and none is there twice; all
//! values of an entry and their names are at most [`METADATA_LEN_MAX`] bytes, counted when a value begins, so
//! that nothing is gathered in vain.
//! Left out: what a single piece may be, which its decoder holds to; what a file system makes of the values.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::entry::{METADATA_LEN_MAX, Namespace};
use crate::wire::MetadataPiece;

/// The values of an entry, by their namespaces and names.
pub type Values = BTreeMap<(Namespace, Box<[u8]>), Vec<u8>>;

/// Why a piece does not fit those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PieceError {
    #[error("metadata after the last piece")]
    AfterLast,
    #[error("a piece of metadata that does not follow the one before")]
    Misplaced,
    #[error("metadata of one name twice")]
    Twice,
    #[error("metadata of more than {METADATA_LEN_MAX} bytes in one entry")]
    TooMuch,
}

/// The metadata of one entry, as far as they came.
#[derive(Debug, Default)]
pub struct Gathering {
    values: Values,
    /// The value that is not whole, and its length when it is.
    open: Option<((Namespace, Box<[u8]>), u32)>,
    /// Of all values and names, bytes.
    len: u32,
    whole: bool,
}

impl Gathering {
    /// Takes the next piece. The values are whole with that which says that it is the last.
    pub fn add(&mut self, piece: MetadataPiece) -> Result<Option<Values>, PieceError> {
        if self.whole {
            return Err(PieceError::AfterLast);
        }
        let key = (piece.namespace, piece.name);
        let value = match self.open.take() {
            Some((open, total)) => match self.values.get_mut(&key) {
                Some(value) if key == open && (piece.total, piece.offset) == (total, value.len() as u32) => {
                    value
                }
                _ => return Err(PieceError::Misplaced),
            },
            None if piece.offset > 0 => return Err(PieceError::Misplaced),
            None => {
                let more = piece.total.saturating_add(key.1.len() as u32);
                let len = self.len.saturating_add(more);
                if len > METADATA_LEN_MAX && !haul_mutant::removed("metadata-are-bounded") {
                    return Err(PieceError::TooMuch);
                }
                self.len = len;
                match self.values.entry(key.clone()) {
                    Entry::Vacant(place) => place.insert(Vec::new()),
                    Entry::Occupied(_) => return Err(PieceError::Twice),
                }
            }
        };
        value.extend_from_slice(&piece.piece);
        if (value.len() as u64) < u64::from(piece.total) {
            self.open = Some((key, piece.total));
        }
        if !piece.last {
            return Ok(None);
        }
        if self.open.is_some() {
            return Err(PieceError::Misplaced);
        }
        self.whole = true;
        Ok(Some(std::mem::take(&mut self.values)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::METADATA_VALUE_LEN_MAX;
    use crate::ids::{FileId, Generation};

    fn piece(name: &str, total: u32, offset: u32, len: usize, last: bool) -> MetadataPiece {
        MetadataPiece {
            id: FileId(1),
            generation: Generation(0),
            namespace: if name.is_empty() { Namespace::AccessAcl } else { Namespace::Xattr },
            name: name.as_bytes().into(),
            total,
            offset,
            piece: (0..len).map(|at| (offset as usize + at) as u8).collect(),
            last,
        }
    }

    /// Goal: pieces in order become the values that they are of, an empty one too.
    #[test]
    fn pieces_become_values() {
        let mut all = Gathering::default();
        for (name, total, offset, len) in [("user.a", 5, 0, 3), ("user.a", 5, 3, 2), ("user.b", 0, 0, 0)] {
            assert_eq!(all.add(piece(name, total, offset, len, false)), Ok(None));
        }
        let values = all.add(piece("", 2, 0, 2, true)).expect("it fits").expect("it is the last");
        let told: Vec<(&[u8], &[u8])> =
            values.iter().map(|((_, name), value)| (&name[..], &value[..])).collect();
        assert_eq!(told, [(&b"user.a"[..], &[0, 1, 2, 3, 4][..]), (b"user.b", &[]), (b"", &[0, 1])]);
        assert_eq!(all.add(piece("user.c", 0, 0, 0, true)), Err(PieceError::AfterLast));
    }

    /// Goal: gaps, pieces of another value between, other lengths, ends before the end and names that come
    /// twice are refused.
    /// Method: a value that has begun, and each of these behind it; and one that is whole.
    #[test]
    fn pieces_out_of_place_are_refused() {
        for bad in [
            piece("user.a", 5, 2, 3, false),
            piece("user.a", 5, 4, 1, false),
            piece("user.a", 6, 3, 3, false),
            piece("user.b", 5, 3, 2, false),
            piece("user.b", 1, 0, 1, false),
            piece("user.a", 5, 3, 1, true),
        ] {
            let mut all = Gathering::default();
            assert_eq!(all.add(piece("user.a", 5, 0, 3, false)), Ok(None));
            assert_eq!(all.add(bad.clone()), Err(PieceError::Misplaced), "{bad:?}");
        }
        let mut all = Gathering::default();
        assert_eq!(all.add(piece("user.a", 1, 1, 0, false)), Err(PieceError::Misplaced));
        assert_eq!(all.add(piece("user.a", 1, 0, 1, false)), Ok(None));
        assert_eq!(all.add(piece("user.a", 1, 0, 1, false)), Err(PieceError::Twice));
    }

    /// Goal: an entry has no more than its bound, and what would pass it is refused before a byte of it is
    /// kept.
    #[test]
    fn an_entry_has_no_more_than_its_bound() {
        let mut all = Gathering::default();
        let name = |at: u32| format!("user.{at:04}");
        let fit = METADATA_LEN_MAX / (METADATA_VALUE_LEN_MAX + 9);
        for at in 0..fit {
            let mut offset = 0;
            while offset < METADATA_VALUE_LEN_MAX {
                let len = 32 * 1024;
                let told = all.add(piece(&name(at), METADATA_VALUE_LEN_MAX, offset, len as usize, false));
                assert_eq!(told, Ok(None), "{at}");
                offset += len;
            }
        }
        let over = piece(&name(fit), METADATA_VALUE_LEN_MAX, 0, 1, false);
        assert_eq!(all.add(over), Err(PieceError::TooMuch));
        assert!(all.values.len() as u32 == fit && all.len <= METADATA_LEN_MAX);
    }
}
