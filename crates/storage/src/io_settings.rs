//! How an end's storage is driven: what was asked for, and what is chosen where nothing was.
//!
//! In: the user's options. Out: the configuration of the I/O threads, and all that was chosen in words.

use std::thread::available_parallelism;
use std::time::Duration;

use haul_core::stage::Stage;

use crate::descriptors::IO_THREADS_USUAL;
use crate::io::threads::{IO_THREADS_MAX, IoThreadsConfig};
use crate::io::{EngineConfig, EngineFacts};
use crate::options::{EngineName, Order, StorageOptions};

/// IoThreads at most, unless asked for more: each can keep a device busy. What more of them add is hashing at
/// a source, and copying where a sink writes through the cache, and both want a processor each.
const IO_THREADS_DEFAULT_MAX: usize = IO_THREADS_USUAL as usize;
/// Requests in flight at a target: two for each of several disks or servers, and with requests of 4 MiB a
/// quarter of the buffers that are granted by default, so that the rest can be on its way.
const DEPTH_DEFAULT: u16 = 16;
/// Bytes of one request: a whole object of the default size. Smaller ones cost more calls for the same bytes;
/// larger ones would have to wait for a neighbour that may come last.
const REQUEST_DEFAULT: u32 = 4 << 20;
/// Well below the 10 s after which a user should see what hangs; a device behind a full queue takes a second
/// or two.
const DEADLINE_DEFAULT: Duration = Duration::from_secs(5);
const REQUEST_MIN: u32 = 4 << 10;
const REQUEST_MAX: u32 = 64 << 20;
const DEPTH_MIN_MAX: (u16, u16) = (1, 256);

/// Requests in flight when `width` operations may be, where they are `depth` with `started` of them: the same
/// share for each. (An engine takes no more than it was opened for, which is about twice what it began with;
/// but see [`io_threads_of`].)
pub(crate) fn depth_of(depth: usize, width: usize, started: usize) -> usize {
    let (min, max) = DEPTH_MIN_MAX;
    (depth * width / started.max(1)).clamp(min.into(), max.into())
}

/// IoThreads when `width` operations may be in flight, likewise.
pub(crate) fn io_threads_of(io_threads: usize, width: usize, started: usize) -> usize {
    (io_threads * width).div_ceil(started.max(1)).clamp(1, IO_THREADS_MAX)
}

/// How the objects of one end are read or written.
#[derive(Clone)]
pub(crate) struct IoSettings {
    pub(crate) asked: StorageOptions,
    pub(crate) io_threads: IoThreadsConfig,
    /// Why there is no ring, where there could be one.
    engine_why: Option<&'static str>,
}

impl IoSettings {
    /// `memory`: most payload bytes in buffers. `stage`: [`Stage::SourceStorage`] or [`Stage::SinkStorage`].
    pub(crate) fn new(asked: StorageOptions, memory: u64, stage: Stage) -> IoSettings {
        let (depth_min, depth_max) = DEPTH_MIN_MAX;
        let depth = usize::from(asked.depth.unwrap_or(DEPTH_DEFAULT).clamp(depth_min, depth_max));
        let cpus = available_parallelism().map_or(1, usize::from);
        let threads = asked.threads.map_or(cpus.min(IO_THREADS_DEFAULT_MAX), usize::from);
        let request_size = asked.request_size.unwrap_or(REQUEST_DEFAULT).clamp(REQUEST_MIN, REQUEST_MAX);
        let deadline = asked.deadline_ms.map(|ms| Duration::from_millis(u64::from(ms)));
        let io_threads = IoThreadsConfig {
            // The I/O threads add what can be stuck.
            engine: EngineConfig { name: asked.engine, depth, registered_max: memory },
            io_threads: threads.clamp(1, IO_THREADS_MAX),
            depth,
            request_size: request_size.next_power_of_two(),
            // A source reads in order anyway; at a sink objects come more or less so. To wait for the one
            // that is next would hold back all behind it, and with space in advance no order makes better
            // extents.
            order: asked.order.map_or_else(Default::default, Order::policy),
            deadline: deadline.unwrap_or(DEADLINE_DEFAULT),
            stage,
            thread_name: if stage == Stage::SourceStorage { "haul-read" } else { "haul-write" },
        };
        IoSettings { asked, io_threads, engine_why: None }
    }

    /// The destination is no local file system: threads write, unless a ring was asked for. In such a one the
    /// kernel begins the writes of a ring one after another, those to a file and those to files that fall
    /// into the same of 64 buckets; FUSE even holds up the thread that hands them over. So one slow storage
    /// target would hold up others.
    pub(crate) fn set_remote(&mut self) {
        if self.asked.engine == EngineName::Auto {
            self.io_threads.engine.name = EngineName::Pread;
            self.engine_why = Some("a ring's writes would wait for each other in this file system");
        }
    }

    /// Name and value of each setting, with the reason.
    pub(crate) fn report(&self, engine: &EngineFacts, io: &str) -> Vec<(String, String)> {
        let reason = |is_asked: bool, default: &'static str| if is_asked { "as asked" } else { default };
        let remarks = self.engine_why.into_iter().chain(engine.remarks.iter().map(String::as_str));
        let engine = match &remarks.collect::<Vec<_>>()[..] {
            [] => engine.name.to_owned(),
            remarks => format!("{} ({})", engine.name, remarks.join("; ")),
        };
        let asked = &self.asked;
        let request = reason(asked.request_size.is_some(), "an object of the default size in one piece");
        let depth = reason(asked.depth.is_some(), "enough for any target with requests of this size");
        let threads = reason(asked.threads.is_some(), "one for each processor, up to 4");
        let order = reason(asked.order.is_some(), "nothing has to wait for another");
        let IoThreadsConfig { io_threads, depth: in_flight, request_size, order: policy, stage, .. } =
            &self.io_threads;
        let end = if *stage == Stage::SourceStorage { "source" } else { "sink" };
        [
            ("engine", engine),
            ("io", io.to_owned()),
            ("request size", format!("{request_size} bytes ({request})")),
            ("depth", format!("{in_flight} ({depth})")),
            ("io threads", format!("{io_threads} ({threads})")),
            ("order", format!("{policy} ({order})")),
        ]
        .map(|(name, value)| (format!("{end} {name}"), value))
        .to_vec()
    }
}
