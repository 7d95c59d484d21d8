//! What one end did, in its own numbers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use haul_core::schedule::table::UnwellTargets;
use haul_core::stage::{Processors, StageTime};
use haul_core::transfer::SessionEnd;
use haul_core::wire::{EndReport, Failure, NotKept, Placed};

use super::{Tally, Watch};
use haul_base::meter::Meter;
use haul_base::role::Role;
use haul_storage::options::LayoutChoice;
use haul_storage::sink::stripes::in_words as stripes_in_words;
use haul_storage::store::NetworkFacet;

/// What one end did.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) end: SessionEnd,
    pub(crate) tally: Tally,
    pub(crate) own: EndReport,
    pub(crate) far: Option<EndReport>,
    /// Of this end and of the other, as far as they are known.
    pub(crate) processors: [Option<Processors>; 2],
    pub(crate) resumed: bool,
    /// Bytes of unfinished files that a resume finds, as this end knows.
    pub(crate) kept: u64,
    /// Bytes that came to a sink and were not sent on to the server that it writes to, for they stood there.
    pub(crate) spared: u64,
    pub(crate) chosen: Vec<(String, String)>,
    /// Storage targets that were unwell, of this end and of the other.
    pub(crate) unwell: [(Role, UnwellTargets); 2],
}

impl Report {
    /// An end that failed before it began.
    pub(crate) fn failed(failure: Failure, watch: &Watch) -> Report {
        // Whoever wanted it to stop got that.
        let end = if watch.handle.stopped() { SessionEnd::Stopped } else { SessionEnd::Failed(failure) };
        Report {
            end,
            tally: Tally::default(),
            own: EndReport::default(),
            far: None,
            processors: [None; 2],
            resumed: false,
            kept: 0,
            spared: 0,
            chosen: Vec::new(),
            unwell: nobody_unwell(),
        }
    }
}

/// A choice of this name says that the sink's memory, and not the path, held the source most of the time.
pub(crate) const MEMORY_HELD: &str = "memory";

/// No end told of targets that were unwell.
pub(crate) fn nobody_unwell() -> [(Role, UnwellTargets); 2] {
    [Role::Source, Role::Sink].map(|end| (end, UnwellTargets::default()))
}

/// What this process used, for the report.
pub(crate) fn end_report(meter: &Meter, strays: &AtomicU64, payload: u64, objects_resent: u64) -> EndReport {
    EndReport {
        cpu: cpu_time().as_nanos() as u64,
        rss_max: rss_max(),
        stages: meter.read(),
        strays: strays.load(Ordering::Relaxed),
        payload,
        objects_resent,
        amended: 0,
        prefixes: 0,
        prefix_bytes: 0,
        not_kept: [0; NotKept::COUNT],
        held: Default::default(),
    }
}

/// User and system time of this process.
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Most resident memory of this process, bytes; 0 where the kernel does not say.
pub(crate) fn rss_max() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|rest| rest.trim().split(' ').next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Both ends' stages together: each end counts only its own.
pub(crate) fn merge_stages(a: &[StageTime; 5], b: &[StageTime; 5]) -> [StageTime; 5] {
    std::array::from_fn(|i| StageTime {
        busy: a[i].busy + b[i].busy,
        starved: a[i].starved + b[i].starved,
        blocked: a[i].blocked + b[i].blocked,
    })
}

/// What a report says of where a sink's files came to lie.
pub(crate) fn places_in_words(choice: LayoutChoice, placed: &Placed) -> Vec<(String, String)> {
    let several = placed.targets > 1;
    let targets = several.then(|| ("sink targets".to_owned(), format!("{} targets", placed.targets)));
    let layout = stripes_in_words(choice, placed).map(|text| ("sink layout".to_owned(), text));
    targets.into_iter().chain(layout).collect()
}

/// What a report says of the network that a store is reached over.
pub(crate) fn network_of(end: &str, network: Option<&dyn NetworkFacet>) -> Option<(String, String)> {
    network.map(|network| (format!("{end} storage's network"), network.look().in_words()))
}
