//! The ends of a copy: what each is asked for, the defaults of what nobody asked, and how one is run.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use haul_core::tune::Choice;

use super::passport::state_of;
use crate::driver::sink::{self, SinkRequest};
use crate::driver::source::{self, SourceRequest};
use crate::driver::{Links, PATIENCE, Report, Watch, dry};
use crate::endpoint::Place;
use crate::options::{OBJECT_SIZE_DEFAULT, Options};
use haul_storage::descriptors::{Claim, READERS_USUAL, Share, WRITERS_USUAL};
use haul_storage::manners::LinksThere;
use haul_storage::source::wall_clock;
use haul_transport::pace::Pacer;
use haul_transport::path;

/// Payload buffers of an end are never less than this, bytes: two of the smallest bundles.
const MEMORY_MIN: u64 = 8 * 1024 * 1024;

/// So many objects fit into the buffers of each end where this process writes to a server: each of the seven
/// large files that it takes at a time has one.
const OBJECTS_BESIDE: u64 = 8;

/// One end, ready to be run.
pub(super) enum End {
    Source(Box<SourceRequest>),
    Sink(SinkRequest),
    /// A sink that looks, and writes nothing.
    Look(SinkRequest),
}

impl End {
    pub(super) fn sink(request: SinkRequest, dry_run: bool) -> End {
        if dry_run { End::Look(request) } else { End::Sink(request) }
    }

    /// Runs it to the end of its session.
    pub(super) fn run(&self, links: Links, watch: &Watch) -> Report {
        match self {
            End::Source(request) => source::run(links, request, watch),
            End::Sink(request) => sink::run(links, request, watch),
            End::Look(request) => dry::run(links, request, watch),
        }
    }
}

/// A source of `sources`, as typed, whose relative ones begin at `home`.
pub(super) fn source_request(
    sources: Vec<Place>,
    options: &Options,
    home: Option<PathBuf>,
    memory: Choice<u64>,
    (share, pacer): (&Arc<Share>, &Arc<Pacer>),
) -> SourceRequest {
    let readers = options.readers.unwrap_or_else(|| cpus().clamp(2, READERS_USUAL));
    let (claim, readers) =
        Claim::new(share, readers, READERS_USUAL, options.source_storage.threads.unwrap_or(0));
    let (pacer, clock) = (pacer.clone(), wall_clock());
    let Choice { value: memory, why: memory_why } = memory;
    SourceRequest {
        sources,
        replicas: Vec::new(),
        retry: super::again::policy(options),
        ssh: (Vec::new(), false),
        options: options.clone(),
        volumes: home.as_deref().map(state_of),
        picks: None,
        home,
        sink_here: None,
        originals: None,
        memory,
        memory_why,
        readers,
        claim,
        pacer,
        clock,
        trial: None,
    }
}

/// A sink below `destination` with so many bytes of buffers.
pub(super) fn sink_request(
    destination: Place,
    options: &Options,
    home: Option<PathBuf>,
    memory: u64,
    share: &Arc<Share>,
) -> SinkRequest {
    let what = format!("copy to {}", String::from_utf8_lossy(&destination.shown()));
    // More writers than processors: most of their time goes into waiting for syncs.
    let writers = options.writers.unwrap_or_else(|| (cpus() * 4).clamp(8, WRITERS_USUAL));
    let (claim, writers) =
        Claim::new(share, writers, WRITERS_USUAL, options.sink_storage.threads.unwrap_or(0));
    SinkRequest {
        destination,
        state_dir: options.state_dir.clone(),
        parts_dir: None,
        volumes: home.as_deref().map(state_of),
        home,
        data_channel: options.data_channel,
        ssh: (Vec::new(), false),
        patience: options.patience.map(|seconds| Duration::from_secs(seconds.into())),
        retry: super::again::policy(options),
        memory,
        writers,
        claim,
        window: options.window,
        storage: options.sink_storage.clone(),
        layout: options.layout,
        given: options.given(),
        nodes: options.nodes().kept,
        part: options.part(),
        in_place: options.is_in_place(),
        in_place_asked: options.in_place,
        links: LinksThere {
            keep: options.keep_dirlinks,
            begun: None,
            safe: options.safe_links,
            followed: options.copy_links || options.copy_dirlinks || options.copy_unsafe_links,
        },
        sources_here: Vec::new(),
        clones: None,
        what,
        asked: None,
        hears: None,
    }
}

/// Processors that this process may use.
fn cpus() -> u16 {
    thread::available_parallelism().map_or(1, |n| n.get().min(256) as u16)
}

/// How long a broken network is waited out.
pub(super) fn patience(options: &Options) -> Duration {
    options.patience.map_or(PATIENCE, |seconds| Duration::from_secs(seconds.into()))
}

/// How long an end may wait for a server before it answers the other one: as long as it is tried again.
pub(super) fn waits(options: &Options) -> Duration {
    /// A command that is asked may say anything.
    const A_DAY: Duration = Duration::from_secs(86_400);
    let asked = Duration::from_secs(options.retry_for.unwrap_or(0).into());
    if options.retry_command.is_empty() { asked } else { asked.max(A_DAY) }
}

/// Payload bytes in buffers: as asked, else what a path of this round-trip time holds twice and 64 objects,
/// an eighth of RAM or a quarter of the cgroup's limit at most. It is a bound: memory is made when payload
/// comes.
pub(super) fn memory(options: &Options, rtt: Option<Duration>) -> Choice<u64> {
    if let Some(asked) = options.memory {
        return Choice { value: asked.max(MEMORY_MIN), why: "as asked".into() };
    }
    let ram = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let ram = ram.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let ram = ram.and_then(|rest| rest.trim().split(' ').next()?.parse::<u64>().ok()).map(|kib| kib * 1024);
    let groups = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let group = groups.iter().find_map(|path| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok());
    let known = options.start.as_ref().map(|start| start.rate);
    let Choice { value: wanted, why } = path::memory(rtt, known);
    let limits = [
        (wanted, why),
        (ram.map_or(u64::MAX, |ram| ram / 8), "an eighth of the memory".to_owned()),
        (group.map_or(u64::MAX, |max| max / 4), "a quarter of the cgroup's limit".to_owned()),
    ];
    let least = limits.into_iter().min_by_key(|(bytes, _)| *bytes);
    let (value, why) = least.unwrap_or((MEMORY_MIN, String::new()));
    Choice { value: value.max(MEMORY_MIN), why }
}

/// The same, where this process reads what it sends to a server: that takes few files at a time, each in
/// ascending order, and no path whose length must be in buffers lies between the ends. What is beyond the
/// processor's caches is cleared, filled and then read from memory again, and gains nothing.
pub(super) fn beside_server(options: &Options, memory: Choice<u64>) -> Choice<u64> {
    let enough = options.object_size.map_or(0, u64::from).max(OBJECT_SIZE_DEFAULT) * OBJECTS_BESIDE;
    if options.memory.is_some() || memory.value <= enough {
        return memory;
    }
    Choice { value: enough, why: format!("{OBJECTS_BESIDE} objects, for it goes from here to a server") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what goes to a server has few buffers, of whatever objects; what was asked for is kept, and
    /// what a small host can give.
    #[test]
    fn a_server_needs_few_buffers() {
        let of = |memory: Option<u64>, object_size, usual: u64| {
            let options = Options { memory, object_size, ..Options::default() };
            beside_server(&options, Choice { value: memory.unwrap_or(usual), why: String::new() }).value
        };
        assert_eq!(of(None, None, 256 << 20), 32 << 20);
        assert_eq!(of(None, Some(16 << 20), 256 << 20), 128 << 20);
        assert_eq!(of(None, Some(64 << 10), 256 << 20), 32 << 20);
        assert_eq!(of(None, None, 20 << 20), 20 << 20);
        assert_eq!(of(Some(1 << 30), None, 256 << 20), 1 << 30);
    }

    /// Goal: the ends wait for each other as long as one of them may wait for a server.
    #[test]
    fn servers_are_waited_for_before_the_ends_agree() {
        let of = |retry_for, words: &[&str]| {
            let retry_command = words.iter().map(|word| (*word).to_owned()).collect();
            waits(&Options { retry_for, retry_command, ..Options::default() }).as_secs()
        };
        assert_eq!(of(None, &[]), 0);
        assert_eq!(of(Some(600), &[]), 600);
        assert_eq!((of(None, &["x"]), of(Some(172_800), &["x"])), (86_400, 172_800));
    }
}
