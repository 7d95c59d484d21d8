//! How a source is driven: what was asked for, and what is chosen where nothing was.
//!
//! In: the user's options. Out: the configuration of the lanes, how many reads the machine may have under way, and
//! both in words.

use std::thread::available_parallelism;
use std::time::Duration;

use haul_core::io::OrderPolicy;
use haul_core::stage::Stage;

use super::WallClock;
use crate::job::StorageOptions;
use crate::storage::io::lanes::{LANES_MAX, LaneConfig};
use crate::storage::io::{EngineConfig, EngineFacts};

/// Lanes at most, unless asked for more: each can keep a device busy, what more of them add is hashing, and that
/// wants a processor each.
const LANES_DEFAULT_MAX: usize = 4;
/// Requests in flight at a target: with requests of 4 MiB more than any device or server needs to run at full rate.
const DEPTH_DEFAULT: u16 = 16;
/// Bytes of one request: a whole object of the default size, so that nothing is put together from parts. The kernel
/// cuts it as the device wants it.
const REQUEST_DEFAULT: u32 = 4 << 20;
/// Well below the 10 s after which a user should see what hangs.
const DEADLINE_DEFAULT: Duration = Duration::from_secs(5);
const REQUEST_MIN: u32 = 4 << 10;
const REQUEST_MAX: u32 = 64 << 20;
const DEPTH_MIN_MAX: (u16, u16) = (1, 256);

/// How the source of a session is read.
#[derive(Clone)]
pub struct ReadConfig {
    /// Threads for all that is no object, 1 to [`super::READERS_MAX`].
    pub readers: usize,
    /// Tells whether a change of a file could hide in the grain of its ctime.
    pub clock: WallClock,
    pub storage: StorageOptions,
    /// Payload bytes in buffers, at most.
    pub memory: u64,
}

impl ReadConfig {
    /// Bytes of one request.
    pub(super) fn request_size(&self) -> u32 {
        let asked = self.storage.request_size.unwrap_or(REQUEST_DEFAULT);
        asked.clamp(REQUEST_MIN, REQUEST_MAX).next_power_of_two()
    }

    fn depth(&self) -> usize {
        usize::from(self.storage.depth.unwrap_or(DEPTH_DEFAULT).clamp(DEPTH_MIN_MAX.0, DEPTH_MIN_MAX.1))
    }

    fn threads(&self) -> usize {
        let cpus = available_parallelism().map_or(1, usize::from);
        let asked = self.storage.threads.map(usize::from);
        asked.unwrap_or(cpus.min(LANES_DEFAULT_MAX)).clamp(1, LANES_MAX)
    }

    fn order(&self) -> OrderPolicy {
        self.storage.order.map_or_else(OrderPolicy::default, crate::job::Order::policy)
    }

    pub(super) fn lanes(&self) -> LaneConfig {
        let deadline = self.storage.deadline_ms.map(|ms| Duration::from_millis(u64::from(ms)));
        LaneConfig {
            // The lanes add what can be stuck.
            engine: EngineConfig {
                name: self.storage.engine,
                depth: self.depth(),
                registered_max: self.memory,
            },
            lanes: self.threads(),
            depth: self.depth(),
            request_size: self.request_size(),
            order: self.order(),
            deadline: deadline.unwrap_or(DEADLINE_DEFAULT),
            stage: Stage::SourceStorage,
            thread_name: "haul-read",
        }
    }

    /// Objects that may be read at a time: enough that storage has its depth while each lane hashes one, as
    /// far as the buffers go; at least two for each reading thread.
    pub fn reads_max(&self, object_size: u32) -> u32 {
        let object_size = u64::from(object_size.max(1));
        let in_flight = (self.depth() as u64 * u64::from(self.request_size())).div_ceil(object_size);
        let wanted = in_flight + self.threads() as u64;
        let fitting = wanted.min(self.memory / object_size);
        u32::try_from(fitting.max(self.readers as u64 * 2)).unwrap_or(u32::MAX)
    }

    /// Name and value of each knob, with the reason.
    pub(super) fn report(&self, engine: &EngineFacts, io: &str) -> Vec<(String, String)> {
        let reason = |is_asked: bool, default: &str| {
            if is_asked { "as asked".to_owned() } else { default.to_owned() }
        };
        let engine = match &engine.remarks[..] {
            [] => engine.name.to_owned(),
            remarks => format!("{} ({})", engine.name, remarks.join("; ")),
        };
        let options = &self.storage;
        let request = reason(options.request_size.is_some(), "an object of the default size in one piece");
        let depth = reason(options.depth.is_some(), "enough for any target with requests of this size");
        let threads = reason(options.threads.is_some(), "one for each processor, up to 4");
        let order = reason(options.order.is_some(), "nothing has to wait for another");
        [
            ("source engine", engine),
            ("source io", io.to_owned()),
            ("source request size", format!("{} bytes ({request})", self.request_size())),
            ("source depth", format!("{} ({depth})", self.depth())),
            ("source lanes", format!("{} ({threads})", self.threads())),
            ("source order", format!("{} ({order})", self.order())),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::source::wall_clock;

    /// Goal: the reads under way fill the depth whatever the sizes, and never the memory beyond two a thread.
    #[test]
    fn reads_fill_the_depth_within_memory() {
        let reads = |depth, request_size, object_size, memory| {
            let (depth, request_size) = (Some(depth), Some(request_size));
            let storage = StorageOptions { depth, request_size, threads: Some(2), ..Default::default() };
            ReadConfig { readers: 3, clock: wall_clock(), storage, memory }.reads_max(object_size)
        };
        const M: u32 = 1 << 20;
        assert_eq!(reads(16, 4 * M, 4 * M, 256 << 20), 18);
        assert_eq!(reads(16, M, 4 * M, 256 << 20), 6, "four requests make one object");
        assert_eq!(reads(16, 16 * M, 4 * M, 256 << 20), 64, "as many as there are buffers");
        assert_eq!(reads(16, 4 * M, 4 * M, 16 << 20), 6, "two for each thread");
        assert_eq!(reads(1, 4096, 65536, 256 << 20), 6);
    }
}
