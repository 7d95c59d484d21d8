//! What can be wrong with bytes from a peer.

use crate::entry::NameError;
use crate::layout::LayoutError;

/// Bytes from a peer that are not protocol v1. `what` names the field. The connection cannot go on after
/// any of these: the place where the next frame begins is not known, or the peer is not to be trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes end inside a field, or a count promises more than they can hold.
    #[error("{what} ends early: {missing} more bytes are needed")]
    Truncated { what: &'static str, missing: u64 },
    /// A length or count above its named maximum.
    #[error("{what}: {len}, but at most {max} is allowed")]
    TooLong { what: &'static str, len: u64, max: u64 },
    /// A value outside its field's range, a reserved bit or byte that is not zero, an unknown enum value.
    /// Signed values are shown as the two's complement.
    #[error("{what}: bad value {value}")]
    BadValue { what: &'static str, value: u64 },
    /// Bytes that are no legal path component.
    #[error("{what} is not one legal path component")]
    BadName { what: &'static str, source: NameError },
    /// Components that make no layout.
    #[error("{what}: no layout")]
    BadLayout { what: &'static str, source: LayoutError },
    /// Text that is not UTF-8.
    #[error("{what} is not UTF-8")]
    BadText { what: &'static str },
    /// A frame kind that is neither known nor marked as one that may be ignored.
    #[error("unknown frame kind {0:#04x}: the peer speaks another protocol")]
    UnknownKind(u8),
    /// A capability or an extra field that the peer says must be understood, and is not.
    #[error("the peer requires {what} {kind:#06x}, which this version does not know; update haul here")]
    UnknownRequired { what: &'static str, kind: u16 },
    /// Bytes after the last field.
    #[error("{len} bytes too many after {what}")]
    Trailing { what: &'static str, len: u64 },
    /// No protocol version is common to both ends. Ranges are (oldest, newest).
    #[error(
        "no common protocol version: this end speaks {}-{}, the peer {}-{}; use the same haul on both ends",
        ours.0, ours.1, theirs.0, theirs.1
    )]
    Version { ours: (u16, u16), theirs: (u16, u16) },
    /// One end wants what the other does not: nothing that protects data is ever taken for granted.
    #[error("only one of the two ends wants {what}; use the same haul on both ends")]
    OneSided { what: &'static str },
    /// Payload that nothing but its digest guards, under a digest that stops no attacker.
    #[error("data that is authenticated and not encrypted needs blake3 as its digest")]
    WeakDigest,
    /// The hello of another session.
    #[error("the peer's hello belongs to another session")]
    WrongSession,
}
