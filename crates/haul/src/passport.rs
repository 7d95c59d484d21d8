//! Passports: what a probe found of storage or of a network, kept for the copies that come.
//!
//! In: a state directory (the caller's; nothing here reads the environment). Out: the passport of a file
//! system ([`storage`]) or of a pair of hosts ([`pair`]), with its age, and the values that a copy starts
//! with. Whoever probes writes them.

use serde::{Deserialize, Serialize};

use haul_storage::options::Order;

pub mod identity;
pub mod network;
pub mod pair;
#[cfg(any(test, feature = "testing"))]
pub mod samples;
pub mod storage;

/// The version of the JSON form.
pub const FORMAT: u32 = 1;

/// Whether data was read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// It was read.
    Read,
    /// It was written.
    Write,
}

/// How offsets followed each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Each behind the one before.
    Sequential,
    /// Anywhere in the file.
    Random,
}

/// Through the page cache or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Io {
    /// Through the page cache.
    Buffered,
    /// Past it.
    Direct,
}

/// One way to drive storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Setting {
    /// Bytes.
    pub request_size: u32,
    /// Requests in flight.
    pub depth: u16,
    /// In which order requests go.
    pub order: Order,
    /// Through the page cache or not.
    pub io: Io,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Read or written.
    pub direction: Direction,
    /// How offsets followed each other.
    pub pattern: Pattern,
    /// The way in which storage was driven.
    #[serde(flatten)]
    pub setting: Setting,
    /// Bytes per second, the sync included where data was written.
    pub rate: f64,
    /// Payload that was moved.
    pub bytes: u64,
    /// How long it took.
    pub seconds: f64,
    /// User and system time of this process.
    pub cpu_seconds: f64,
    /// Service time of single requests, seconds: median and 99th percentile.
    pub service_median: f64,
    /// The 99th percentile of the same.
    pub service_p99: f64,
}

/// The best setting of one direction (sequential), as the `summary` event and the passport have it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Bytes per second.
    pub rate: f64,
    /// The way in which storage was driven.
    #[serde(flatten)]
    pub setting: Setting,
}

/// What a classic mistake costs at this storage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mistake {
    /// In words: "requests of 64 KiB", "one request at a time", "buffered writes", ..
    pub what: String,
    /// Read or written.
    pub direction: Direction,
    /// The way in which storage was driven.
    pub setting: Setting,
    /// Bytes per second.
    pub rate: f64,
    /// The share of the best rate that is lost, 0 to 1.
    pub penalty: f64,
}

/// Which file system was probed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageIdentity {
    /// Stable over mounts and reboots where the system tells one: file system UUID or `fsid` in hex, else
    /// device.
    pub id: String,
    /// `ext4`, `xfs`, `lustre`, ..
    pub kind: String,
    /// What is mounted, and where.
    pub source: String,
    /// Where it is mounted.
    pub mount_point: String,
    /// Of the file system, bytes.
    pub size: u64,
    /// It is reached over a network.
    pub network: bool,
}

/// All that a probe found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// [`FORMAT`] of the program that wrote it.
    pub format: u32,
    /// The program's version.
    pub haul: String,
    /// Where it was measured.
    pub host: String,
    /// The directory, as asked for.
    pub path: String,
    /// The file system below it.
    pub storage: StorageIdentity,
    /// Seconds since 1970.
    pub taken: u64,
    /// What made the requests: `uring` or `pread`.
    pub engine: String,
    /// Bytes of the scratch file.
    pub size: u64,
    /// How long it took.
    pub seconds: f64,
    /// In all measurements together.
    pub bytes_read: u64,
    /// The same.
    pub bytes_written: u64,
    /// Every measurement.
    pub points: Vec<Point>,
    /// The fastest way to read; `None`: none was measured.
    pub read_best: Option<Best>,
    /// The same for writing.
    pub write_best: Option<Best>,
    /// The share of all sequential settings of a direction that reach 90 % of the best rate, 0 to 1: 1 is
    /// flat.
    pub read_flatness: f64,
    /// The same for writing.
    pub write_flatness: f64,
    /// What classic mistakes cost here.
    pub mistakes: Vec<Mistake>,
    /// What was left out or did not work, in words.
    pub remarks: Vec<String>,
}
