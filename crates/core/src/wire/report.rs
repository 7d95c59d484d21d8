//! What an end says of itself when a session is over: what it measured, and what a copy does not carry over.

use crate::stage::StageTime;

/// What one end measured over a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndReport {
    /// User and system time of the process, nanoseconds.
    pub cpu: u64,
    /// Peak resident set, bytes.
    pub rss_max: u64,
    /// Stages that this end saw; the others are zero.
    pub stages: [StageTime; 5],
    /// Connections that were not ours.
    pub strays: u64,
    /// Payload bytes sent (source) or received (sink), re-sends included.
    pub payload: u64,
    /// Objects that were sent again.
    pub objects_resent: u64,
    /// Unchanged files whose mode or owner was brought up to date (sink).
    pub amended: u64,
    /// Files that were copied up to the length that they had at their start, for they grew meanwhile
    /// (source); and the bytes of these.
    pub prefixes: u64,
    pub prefix_bytes: u64,
    /// What could not be kept, counted by [`NotKept`].
    pub not_kept: [u64; NotKept::COUNT],
    /// What this end did with the parts of files that an earlier run left.
    pub held: HeldReport,
}

/// What a sink did with the parts of files that an earlier run had left in temporaries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldReport {
    /// Bytes that were read and held against the journal.
    pub checked: u64,
    /// Bytes of these that were not what the journal says, or not there; they were asked for again.
    pub wrong: u64,
    /// Bytes that were believed unread, as the user asked.
    pub trusted: u64,
    /// How long something was being checked, nanoseconds.
    pub time: u64,
}

/// What a copy does not carry over, counted and said once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotKept {
    /// Fifos, sockets and devices are skipped.
    Special,
    /// Files with several names are copied once per name.
    HardLink,
    /// Holes are written as zeros, for the other end does not know them.
    Sparse,
    /// Owner or group could not be set.
    Owner,
    /// Setuid or setgid was dropped.
    SetId,
    /// A temporary, a journal or an owner file of another copy into the source: left out.
    OwnName,
    /// The mode was refused, or the file system keeps another one.
    Mode,
    /// The mtime was refused.
    Mtime,
    /// The mtime lies outside what the file system can hold: the nearest that it can was set.
    MtimeClamped,
    /// An NFSv4 list for which the destination has no place.
    Nfs4Acl,
    /// Extended attributes that a source sent although they are never kept.
    NeverKept,
}

impl NotKept {
    pub const COUNT: usize = 11;
    pub const ALL: [NotKept; 11] = [
        NotKept::Special,
        NotKept::HardLink,
        NotKept::Sparse,
        NotKept::Owner,
        NotKept::SetId,
        NotKept::OwnName,
        NotKept::Mode,
        NotKept::Mtime,
        NotKept::MtimeClamped,
        NotKept::Nfs4Acl,
        NotKept::NeverKept,
    ];

    /// The words of a report.
    pub fn name(self) -> &'static str {
        match self {
            NotKept::Special => "special files (fifos, sockets, devices) skipped",
            NotKept::HardLink => "hard links copied as separate files",
            NotKept::Sparse => "sparse files written in full",
            NotKept::Owner => "owners or groups not set",
            NotKept::SetId => "setuid or setgid bits dropped",
            NotKept::OwnName => "files of copies into the source (temporaries, journals) left out",
            NotKept::Mode => "modes that the destination would not take",
            NotKept::Mtime => "mtimes not set",
            NotKept::MtimeClamped => "mtimes outside what the destination can hold, clamped",
            NotKept::Nfs4Acl => "NFSv4 ACLs, which the destination has no place for",
            NotKept::NeverKept => "attributes of the source's file system or of haul, refused",
        }
    }
}
