//! How a source is read.
//!
//! In: the user's options. Out: what its threads and I/O threads are made of, and how many reads the machine
//! may have under way.

use haul_core::digest::DigestKind;
use haul_core::io::slots::TARGET_DEPTHS;
use haul_core::stage::Stage;

use crate::io::threads::IoThreadsConfig;
use crate::io_settings::{IoSettings, depth_of, io_threads_of};
use crate::options::StorageOptions;

/// How the source of a session is read.
#[derive(Clone)]
pub struct ReadConfig {
    /// Threads for all that is no object, 1 to [`super::READERS_MAX`].
    pub readers: usize,
    pub storage: StorageOptions,
    /// Payload bytes in buffers, at most.
    pub memory: u64,
    /// How objects are hashed.
    pub digest: DigestKind,
}

impl ReadConfig {
    pub(super) fn io_settings(&self) -> IoSettings {
        IoSettings::new(self.storage.clone(), self.memory, Stage::SourceStorage)
    }

    /// The same, when so many operations may be in flight instead of [`ReadConfig::readers`].
    pub fn with_width(&self, width: u16) -> ReadConfig {
        let IoThreadsConfig { depth, io_threads, .. } = self.io_settings().io_threads;
        let width = usize::from(width);
        let small = |n: usize| Some(u16::try_from(n).unwrap_or(u16::MAX));
        let depth = small(depth_of(depth, width, self.readers));
        let threads = small(io_threads_of(io_threads, width, self.readers));
        let storage = StorageOptions { depth, threads, ..self.storage.clone() };
        ReadConfig { readers: width, storage, ..self.clone() }
    }

    /// Objects that may be read at a time: enough that storage has its depth while each I/O thread hashes
    /// one, as far as the buffers go; at least two for each reading thread.
    pub fn reads_max(&self, object_size: u32) -> u32 {
        let object_size = u64::from(object_size.max(1));
        let io_threads = self.io_settings().io_threads;
        let in_flight = (io_threads.depth as u64 * u64::from(io_threads.request_size)).div_ceil(object_size);
        let wanted = in_flight + io_threads.io_threads as u64;
        let fitting = wanted.min(self.memory / object_size);
        self.bounded(u32::try_from(fitting.max(self.readers as u64 * 2)).unwrap_or(u32::MAX))
    }

    /// Objects that may be read at a time where they lie on several targets: each target's depth, as far as
    /// half of the buffers go, for what hangs may keep half as much again; at least
    /// [`ReadConfig::reads_max`].
    pub fn reads_total(&self, object_size: u32) -> u32 {
        let one = self.reads_max(object_size);
        let fitting = self.memory / 2 / u64::from(object_size.max(1));
        let all = u64::from(one.saturating_mul(TARGET_DEPTHS));
        self.bounded(u32::try_from(all.min(fitting)).unwrap_or(u32::MAX).max(one))
    }

    fn bounded(&self, reads: u32) -> u32 {
        reads.min(self.storage.in_flight.map_or(u32::MAX, u32::from).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the reads under way fill the depth whatever the sizes, and never the memory beyond two a thread.
    #[test]
    fn reads_fill_the_depth_within_memory() {
        let reads = |depth, request_size, object_size, memory| {
            let (depth, request_size) = (Some(depth), Some(request_size));
            let storage = StorageOptions { depth, request_size, threads: Some(2), ..Default::default() };
            let digest = DigestKind::Blake3;
            ReadConfig { readers: 3, storage, memory, digest }.reads_max(object_size)
        };
        const M: u32 = 1 << 20;
        assert_eq!(reads(16, 4 * M, 4 * M, 256 << 20), 18);
        assert_eq!(reads(16, M, 4 * M, 256 << 20), 6, "four requests make one object");
        assert_eq!(reads(16, 16 * M, 4 * M, 256 << 20), 64, "as many as there are buffers");
        assert_eq!(reads(16, 4 * M, 4 * M, 16 << 20), 6, "two for each thread");
        assert_eq!(reads(1, 4096, 65536, 256 << 20), 6);
    }

    /// Goal: never more than was asked for in all, and at least one.
    #[test]
    fn reads_keep_to_what_is_asked_for_in_all() {
        let reads = |in_flight| {
            let storage =
                StorageOptions { depth: Some(16), in_flight, threads: Some(2), ..Default::default() };
            let digest = DigestKind::Blake3;
            let config = ReadConfig { readers: 3, storage, memory: 1 << 30, digest };
            (config.reads_max(4 << 20), config.reads_total(4 << 20))
        };
        assert_eq!(reads(None), (18, 128));
        assert_eq!([Some(0), Some(1), Some(9), Some(40)].map(reads), [(1, 1), (1, 1), (9, 9), (18, 40)]);
    }

    /// Goal: with another width each operation has its share of the depth and of the I/O threads, and never
    /// none.
    #[test]
    fn depth_follows_the_width() {
        let storage = StorageOptions { depth: Some(16), threads: Some(2), ..Default::default() };
        let config = ReadConfig { readers: 4, storage, memory: 4 << 30, digest: DigestKind::Blake3 };
        let depth = |width| config.with_width(width).io_settings().io_threads.depth;
        assert_eq!([1, 2, 4, 8, 256].map(depth), [4, 8, 16, 32, 256]);
        let io_threads = |width| config.with_width(width).io_settings().io_threads.io_threads;
        assert_eq!([1, 2, 4, 5, 8, 256].map(io_threads), [1, 1, 2, 3, 4, 64]);
        assert_eq!(depth_of(1, 1, 8), 1);
        assert_eq!(config.with_width(8).reads_max(4 << 20), 36);
    }
}
