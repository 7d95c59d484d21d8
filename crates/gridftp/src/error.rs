//! What can be wrong with bytes from a peer, or with what is to be said to one.

/// Bytes that are not FTP as this crate knows it. `what` names the part. After an error of a reader its
/// connection cannot go on: the place where the next reply or block begins is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FtpError {
    /// A length or count above its named maximum.
    #[error("{what}: more than {max}")]
    TooMany { what: &'static str, max: u64 },
    /// A number outside its range.
    #[error("{what}: bad value {value}")]
    BadValue { what: &'static str, value: u64 },
    /// Bytes that do not have the form that they must have.
    #[error("{what} has a form that is not understood")]
    BadForm { what: &'static str },
    /// A byte that may not stand there.
    #[error("{what} holds the byte {byte:#04x}")]
    BadByte { what: &'static str, byte: u8 },
    /// A name that is no component of a path, or one that no terminal should see.
    #[error("a name that is empty, '.' or '..', too long, or holds '/' or a control byte")]
    BadName,
}
