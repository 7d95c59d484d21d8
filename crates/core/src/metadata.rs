//! Extended attributes and access control lists of an entry: which are ever kept, and how they come.
//!
//! In: names; values, or the pieces of an entry, in the order in which they came. Out: whether an attribute
//! is one that is kept; pieces, or values, when they are whole.
//! Invariants: a value is gathered from its beginning to its end without gaps, and none is there twice; all
//! values of an entry and their names are at most [`METADATA_LEN_MAX`] bytes, counted when a value begins, so
//! that nothing is gathered in vain.
//! Left out: what a single piece may be, which its decoder holds to; what a file system makes of the values.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::entry::{METADATA_LEN_MAX, METADATA_VALUE_COST, Namespace};
use crate::ids::{FileId, Generation};
use crate::wire::{METADATA_PIECE_LEN_MAX, MetadataPiece};

/// The values of an entry, by their namespaces and names.
pub type Values = BTreeMap<(Namespace, Box<[u8]>), Vec<u8>>;

/// Attributes of these names are kept, and those that begin so: what users and programs say of a file.
const KEPT: [&[u8]; 2] = [b"user.", b"trusted."];
/// A program's rights.
pub const CAPABILITY: &[u8] = b"security.capability";
/// Of these, what file systems and haul keep for themselves: layouts, states and labels of where a file lies,
/// which say of its copy what is not so. (Copied to Lustre, a layout puts every first stripe on one target.)
const NEVER_KEPT: [&[u8]; 13] = [
    b"trusted.lov",
    b"trusted.lma",
    b"trusted.lmv",
    b"trusted.link",
    b"trusted.hsm",
    b"trusted.fid",
    b"trusted.gfid",
    b"trusted.afr",
    b"trusted.glusterfs",
    b"trusted.overlay",
    // How XFS shows the lists that it has: as attributes they would be lists where nobody asked for them.
    b"trusted.SGI_",
    b"user.haul.",
    b"trusted.haul.",
];

/// An attribute of haul's own, which no file has: not all that the source has of the entry came. Its value is
/// one byte of [`Unread`].
const UNREAD: &[u8] = b"user.haul.unread";

/// What of an entry may be more than came: of that, nothing that stands at the destination is removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unread {
    pub xattrs: bool,
    pub acls: bool,
}

impl Unread {
    /// As these values say of themselves.
    pub fn of(values: &Values) -> Unread {
        let key = (Namespace::Xattr, Box::from(UNREAD));
        let bits = values.get(&key).map_or(0, |value| value.first().copied().unwrap_or(3));
        Unread { xattrs: bits & 1 != 0, acls: bits & 2 != 0 }
    }

    pub fn any(self) -> bool {
        self.xattrs || self.acls
    }

    /// Has the values say it.
    pub fn mark(self, values: &mut Values) {
        if self.any() {
            let bits = u8::from(self.xattrs) | u8::from(self.acls) << 1;
            values.insert((Namespace::Xattr, Box::from(UNREAD)), vec![bits]);
        }
    }
}

/// Whether it says that others did not come.
pub fn is_mark(namespace: Namespace, name: &[u8]) -> bool {
    namespace == Namespace::Xattr && name == UNREAD
}

/// Whether an extended attribute of this name is ever read, set, compared or removed. Lists
/// (`system.posix_acl_access`) have namespaces of their own.
pub fn may_be_kept(name: &[u8]) -> bool {
    if haul_mutant::removed("layouts-and-labels-stay") {
        return true;
    }
    let begins = |all: &[&[u8]]| all.iter().any(|prefix| name.starts_with(prefix));
    // A prefix with nothing behind it is no attribute.
    let named = KEPT.iter().any(|prefix| name.len() > prefix.len() && name.starts_with(prefix));
    name == CAPABILITY || named && !begins(&NEVER_KEPT)
}

/// What values take of the bounds on all of them.
pub fn cost_of(values: &Values) -> usize {
    values.iter().map(|((_, name), value)| name.len() + value.len() + METADATA_VALUE_COST).sum()
}

/// Of their bytes and names, as the bound on an entry counts them.
pub fn len_of(values: &Values) -> usize {
    values.iter().map(|((_, name), value)| name.len() + value.len()).sum()
}

/// The values of an entry in pieces, which they are put together from by [`Gathering`].
pub fn pieces_of(id: FileId, generation: Generation, values: Values) -> Vec<MetadataPiece> {
    let mut pieces = Vec::with_capacity(values.len());
    for ((namespace, name), value) in values {
        let total = u32::try_from(value.len()).unwrap_or(u32::MAX);
        let mut offset = 0;
        loop {
            let end = value.len().min(offset + METADATA_PIECE_LEN_MAX);
            pieces.push(MetadataPiece {
                id,
                generation,
                namespace,
                name: name.clone(),
                total,
                offset: offset as u32,
                piece: value[offset..end].into(),
                last: false,
            });
            offset = end;
            if offset == value.len() {
                break;
            }
        }
    }
    if let Some(piece) = pieces.last_mut() {
        piece.last = true;
    }
    pieces
}

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
    /// Of all values and names, bytes; and values.
    len: u32,
    count: usize,
    whole: bool,
}

impl Gathering {
    /// What it takes of the bound on all entries together.
    pub fn cost(&self) -> usize {
        self.len as usize + self.count * METADATA_VALUE_COST
    }

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
                self.count += 1;
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

    /// Goal: values come out of their pieces as they were, whatever their lengths are.
    /// Method: values around the length of a piece, an empty one, a list without a name.
    #[test]
    fn values_become_pieces_and_values_again() {
        let len = METADATA_PIECE_LEN_MAX;
        let mut values = Values::new();
        for (at, len) in [0, 1, len - 1, len, len + 1, 2 * len].into_iter().enumerate() {
            let name = format!("user.{at}").into_bytes().into();
            values.insert((Namespace::Xattr, name), (0..len).map(|at| at as u8).collect());
        }
        values.insert((Namespace::DefaultAcl, [].into()), vec![2, 0, 0, 0]);
        let (mut all, mut told) = (Gathering::default(), None);
        for piece in pieces_of(FileId(1), Generation(0), values.clone()) {
            assert_eq!(told, None, "nothing follows the last");
            told = all.add(piece).expect("it fits");
        }
        assert_eq!(all.cost(), cost_of(&values));
        assert_eq!(told, Some(values));
        assert_eq!(pieces_of(FileId(1), Generation(0), Values::new()), []);
    }

    /// Goal: what users say of a file is kept; what file systems, security modules and haul say for
    /// themselves never is.
    /// Method: names of each class, and around their edges.
    #[test]
    fn layouts_and_labels_are_never_kept() {
        for name in ["user.a", "user.\u{e9}", "user.hauler", "trusted.x", "trusted.lo", "security.capability"]
        {
            assert!(may_be_kept(name.as_bytes()), "{name}");
        }
        for name in [
            "",
            "user",
            "user.",
            "trusted.",
            "lustre.lov",
            "ceph.dir.layout",
            "trusted.lov",
            "trusted.lma",
            "trusted.lmv",
            "trusted.link",
            "trusted.hsm",
            "trusted.fid",
            "trusted.gfid",
            "trusted.gfid2path.1",
            "trusted.afr.dirty",
            "trusted.glusterfs.dht",
            "trusted.overlay.opaque",
            "trusted.SGI_ACL_FILE",
            "system.posix_acl_access",
            "system.nfs4_acl",
            "system.cifs_acl",
            "security.ima",
            "security.evm",
            "security.selinux",
            "security.capability2",
            "user.haul.x",
            "trusted.haul.x",
            "btrfs.compression",
            "osx.x",
        ] {
            assert!(!may_be_kept(name.as_bytes()), "{name}");
        }
        assert!(!may_be_kept(b"os2.\xff"));
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
