//! What a user may choose of how storage is driven.

use std::fmt;

pub use haul_core::io::IoPolicy;
use haul_core::io::OrderPolicy;
use serde::{Deserialize, Serialize};

/// Whether storage goes through the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", remote = "IoPolicy")]
enum IoPolicyJson {
    #[default]
    Auto,
    Direct,
    Buffered,
}

/// The order of requests; `null` in JSON: haul chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    Strict,
    Serial,
    Loose,
    None,
}

impl Order {
    /// The policy of core with the same name.
    pub fn policy(self) -> OrderPolicy {
        match self {
            Order::Strict => OrderPolicy::Strict,
            Order::Serial => OrderPolicy::Serial,
            Order::Loose => OrderPolicy::Loose,
            Order::None => OrderPolicy::None,
        }
    }
}

/// Which engine carries out requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineName {
    /// io_uring where the kernel allows it, else threads with `pread` and `pwrite`.
    #[default]
    Auto,
    Uring,
    Pread,
}

/// How one end drives its storage. `None`: chosen, from the storage passport if there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StorageOptions {
    #[serde(with = "IoPolicyJson")]
    pub io: IoPolicy,
    pub order: Option<Order>,
    /// Bytes of one request, a power of two from 4 KiB to 64 MiB. Independent of the object size: objects are
    /// split into requests, and objects side by side are joined into one.
    pub request_size: Option<u32>,
    /// Requests in flight at one storage target, 1 to 256.
    pub depth: Option<u16>,
    /// Objects in flight at all storage targets together, at least 1, where there are several.
    pub in_flight: Option<u16>,
    /// Threads that drive requests, 1 to 64; each has `depth / threads` in flight (at least one).
    pub threads: Option<u16>,
    pub engine: EngineName,
    /// After so many milliseconds a request no longer counts as in flight, and is named as stuck.
    pub deadline_ms: Option<u32>,
    /// Sink: allocate a file's blocks before it is written.
    pub no_preallocate: bool,
    /// Sink, in a volume: writes that are smaller go through the server that gathers them, bytes; 0: none
    /// does, `u64::MAX`: all do. `None`: it sets itself.
    pub write_threshold: Option<u64>,
    /// Operations of metadata (`stat`, `open`, making, renaming, removing, setting owner, mode and times)
    /// that it makes in a second at most, see [`meta_rate::RATES`](crate::meta_rate::RATES). Servers and
    /// volumes do not know it.
    pub meta_rate: Option<u64>,
}

/// What is protected on data connections of GridFTP servers and under TLS. Commands always are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataChannel {
    /// Both ends show whose they are, and data are encrypted. A limited proxy is delegated for that.
    #[default]
    Private,
    /// The same, and data go as they are.
    Shown,
    /// Nothing is delegated, nobody shows anything, and data go as they are.
    Plain,
    /// As `Private`, and of data connections it need not be shown that they are of the session that asked
    /// for them: whoever can redirect connections can swap those of two sessions.
    Untied,
}

/// How new files come to lie on the destination's storage targets. No choice names a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LayoutChoice {
    /// As the destination's file system decides for a new file in its directory.
    #[default]
    Auto,
    /// A file that replaces one has its stripes; others as with `Auto`.
    Keep,
    /// With the source's stripe size and count, where the destination can.
    Copy,
}

impl fmt::Display for LayoutChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LayoutChoice::Auto => "auto",
            LayoutChoice::Keep => "keep",
            LayoutChoice::Copy => "copy",
        })
    }
}
