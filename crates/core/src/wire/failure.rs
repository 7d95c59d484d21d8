//! A failure as one end tells it to the other.

/// Where something failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    Walk,
    Open,
    Read,
    /// The source changed while it was read, twice.
    Changed,
    Create,
    Write,
    Sync,
    Publish,
    Metadata,
    Digest,
    Protocol,
    /// The command makes no sense, and nothing was done.
    Usage,
    /// It was there when its directory was read, and is there no more.
    Vanished,
    /// This host had no thread, no memory or no other means of its own; no peer and no storage is to blame.
    Local,
    /// The connection to the other end was lost, or nothing came over it.
    Network,
}

/// A failure as it crosses the wire. `errno` 0: not from the operating system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub kind: FailureKind,
    pub errno: i32,
    pub text: Box<str>,
}

impl FailureKind {
    /// The name in reports and JSON.
    pub fn name(self) -> &'static str {
        match self {
            FailureKind::Walk => "walk",
            FailureKind::Open => "open",
            FailureKind::Read => "read",
            FailureKind::Changed => "changed",
            FailureKind::Create => "create",
            FailureKind::Write => "write",
            FailureKind::Sync => "sync",
            FailureKind::Publish => "publish",
            FailureKind::Metadata => "metadata",
            FailureKind::Digest => "digest",
            FailureKind::Protocol => "protocol",
            FailureKind::Usage => "usage",
            FailureKind::Vanished => "vanished",
            FailureKind::Local => "local",
            FailureKind::Network => "network",
        }
    }
}
