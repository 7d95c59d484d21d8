//! What a server of a volume is asked by who holds its files against the catalog, and what it answers.
//!
//! In: nothing; these are words. What is asked changes nothing, holds up nobody who writes, and is answered
//! as things are at that moment. Left out: what it means, which whoever asks decides from several answers
//! (`haul_volume::fsck`).

use std::ops::Range;

use super::wire::VolumeId;
use super::{ContentVersion, FileNo, ServerNo};

/// Most files of one question or answer.
pub const FILES_MAX: usize = 1024;
/// Most ranges that are told of what a gatherer has of one file, and in one answer.
pub const RANGES_MAX: usize = 256;
pub const ALL_RANGES_MAX: usize = 32_768;
/// Most texts of one answer, and the longest of them, bytes.
pub const WORDS_MAX: usize = 64;
pub const WORDS_LEN_MAX: usize = 512;

/// Asks a server; the first that is said of a connection, in place of a join, and all that is said later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub volume: VolumeId,
    pub to: ServerNo,
    pub ask: Ask,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Whether what the server was opened with is still there: its identity, lives, and log.
    Itself,
    /// Which files lie in its directory, behind this one in its order; from the first, without it.
    Shelf { after: Option<FileNo> },
    /// Of which files above this one its log has bytes; those are read.
    Log { after: FileNo },
    /// What it has of these files.
    Files(Vec<FileNo>),
    /// Of how many files it has bytes, on disk or in its log, whose serial is above `last` or in one of
    /// `skipped`, at most [`SKIPS_MAX`](super::catalog::SKIPS_MAX): of which the catalog knows nothing.
    Numbers { last: u64, skipped: Vec<Range<u64>> },
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// What is wrong, in words; at most [`WORDS_MAX`].
    Itself { faults: Vec<Box<str>> },
    /// Files, each with its length there, bytes; names that are none of haul's; whether there are more behind
    /// the last.
    Shelf { files: Vec<(FileNo, u64)>, odd: Vec<Box<str>>, more: bool },
    /// Files in the order of their numbers; what of them cannot be read; whether there are more.
    Log { files: Vec<FileNo>, faults: Vec<Box<str>>, more: bool },
    /// In the order in which they were asked for.
    Files(Vec<Has>),
    /// The highest serial of a file of which it has bytes, or 0, and how many there are that were asked for.
    Numbers { highest: u64, files: u64 },
    /// The disk says no.
    Failed(i32),
}

/// What a server has of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Has {
    /// Bytes that lie in its directory, one stripe behind the other; `None`: no such file.
    pub len: Option<u64>,
    /// If the server gathers it.
    pub gathered: Option<Gathered>,
}

/// What a gatherer knows of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gathered {
    pub version: ContentVersion,
    pub end: u64,
    /// Nobody can write it directly, nothing of it is under way, and the catalog knows of all that was
    /// written.
    pub quiet: bool,
    /// It was removed: nothing of it is anywhere, or will be.
    pub removed: bool,
    /// What its log has, in ascending order; at most [`RANGES_MAX`].
    pub ranges: Vec<Range<u64>>,
    /// There are more than are told.
    pub more: bool,
}
