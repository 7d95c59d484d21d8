//! The driver: small and dumb. It carries events to a session machine and its actions to storage and network.
//!
//! In: links that are up, what the user asked for. Out: a [`Report`] of one end.
//! Each session has one mailbox. Engines and streams post completions into it from their own threads; a post
//! never blocks, for what can be outstanding is bounded by the machine (reads, writes, frames, grants).

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use haul_core::digest::DigestKind;
use haul_core::entry::{Name, Nodes};
use haul_core::ids::{SessionEpoch, StreamId, Time};
use haul_core::wire::{Failure, FailureKind};

pub(crate) use crate::events::EntryKind as Kind;
use crate::events::{Event, Observer};
use crate::handle::Handle;
use haul_transport::Link;
use haul_transport::rejoin::Joins;
pub(crate) use hello::policy;
pub(crate) use left_out::LeftOut;
use notices::{Notices, Teller};
use pulse::Pulse;
pub(crate) use report::{MEMORY_HELD, Report, cpu_time, merge_stages, rss_max};
use report::{end_report, network_of, places_in_words};
use stopping::Stopping;
pub(crate) use streams::PATIENCE;
pub(crate) use tally::{Mapping, Tally, Unmoved};

pub(crate) mod choices;
pub(crate) mod dry;
mod held;
mod hello;
mod left_out;
mod live_settings;
mod mailbox;
pub(crate) mod net;
mod notices;
mod owners;
mod processors;
pub(crate) mod pulse;
mod report;
mod session;
pub(crate) mod sink;
pub(crate) mod source;
mod spill;
mod stopping;
mod streams;
mod tally;
#[cfg(test)]
mod tests;
pub(crate) mod trial;
mod view;

/// The fencing epoch of a session's start; each time that control joins again it is higher.
pub(crate) const EPOCH: SessionEpoch = SessionEpoch(1);
/// What is told where the other end knows nothing of it.
const ROOT_STAYS: &str = "the haul at the other end is older: the destination directory itself keeps its mode, owner, times and lists";
/// Progress is told this often, and a stop is noticed.
const TICK: Duration = Duration::from_millis(200);
/// Connections of a session, all authenticated.
pub(crate) struct Links {
    pub(crate) session: [u8; 16],
    pub(crate) control: Link,
    /// Those of the start that are up.
    pub(crate) data: Vec<(StreamId, Link)>,
    /// Data streams of the start, which have the ids 1 to `streams`; the rest of them joins later.
    pub(crate) streams: u16,
    /// How others come up later, and how long a lost control is waited for.
    pub(crate) joins: Joins,
    pub(crate) patience: Duration,
    /// How long an end may wait, before the ends agree, for a server that it is to read or write.
    pub(crate) waits: Duration,
    /// Connections that were not ours.
    pub(crate) strays: Arc<AtomicU64>,
    pub(crate) protection: Protection,
}

/// What both ends must want alike; each says it in its hello.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Protection {
    pub(crate) digest: DigestKind,
    /// Data frames are authenticated and not encrypted.
    pub(crate) auth_only: bool,
    /// A part of a file comes, and none as a whole; files are written in place. Both ends have to know.
    pub(crate) parts: bool,
    pub(crate) in_place: bool,
    /// Extended attributes or lists are kept.
    pub(crate) metadata: bool,
    /// Hard links are kept.
    pub(crate) hard_links: bool,
    /// The tree is walked, or links are taken, in another way than ever.
    pub(crate) manners: bool,
}

/// Who watches this end: the near end has an observer, an agent has none.
#[derive(Clone)]
pub(crate) struct Watch {
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) handle: Handle,
    pub(crate) verbose: bool,
    /// Takes the paths of unchanged and of sparse files, whose digest a manifest needs; `None`: no manifest
    /// is asked for.
    pub(crate) manifest: Option<Sender<Unmoved>>,
    /// The observer wants to hear of the storage targets.
    pub(crate) targets: bool,
    /// In a dry run: what its mappings are shown as.
    pub(crate) plan: Option<Arc<Mapping>>,
    /// As typed, if the sources are at another host.
    pub(crate) source_host: Option<String>,
    /// The destination may have no symbolic links: one that it cannot make is left out, and counted, unless
    /// it has one of these names, which are those of the sources.
    pub(crate) leaves_links: Option<Arc<[Vec<u8>]>>,
    /// FIFOs, sockets and devices that were asked for by name: none of these is left out.
    pub(crate) asked_nodes: Nodes,
}

impl Watch {
    pub(crate) fn silent() -> Watch {
        Watch {
            observer: None,
            handle: Handle::new(),
            verbose: false,
            manifest: None,
            targets: false,
            plan: None,
            source_host: None,
            leaves_links: None,
            asked_nodes: Nodes::default(),
        }
    }

    /// This end is where the user sits, who waits for its end.
    pub(crate) fn is_near(&self) -> bool {
        self.observer.is_some()
    }

    pub(crate) fn tell(&self, event: Event) {
        if let Some(observer) = &self.observer {
            observer.event(event);
        }
    }
}

/// The session's clock: core is given times since this moment.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock { start: Instant::now() }
    }
    pub(crate) fn now(&self) -> Time {
        Time(self.start.elapsed().as_nanos() as u64)
    }
    /// A moment of this host's monotonic clock; of one before the session, its begin.
    pub(crate) fn at(&self, moment: Instant) -> Time {
        Time(moment.saturating_duration_since(self.start).as_nanos() as u64)
    }
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
    /// How long until `time`, at most `max`.
    pub(crate) fn until(&self, time: Option<Time>, max: Duration) -> Duration {
        time.map_or(max, |time| time.since(self.now()).min(max))
    }
}

/// What this host lacked.
pub(crate) fn local(text: impl Into<String>) -> Failure {
    Failure { kind: FailureKind::Local, errno: 0, text: text.into().into() }
}

/// The connection to the other end is lost.
pub(crate) fn lost(text: impl Into<String>) -> Failure {
    Failure { kind: FailureKind::Network, errno: 0, text: text.into().into() }
}

/// The other end did what no haul of its version does.
pub(crate) fn protocol(text: impl Into<String>) -> Failure {
    Failure { kind: FailureKind::Protocol, errno: 0, text: text.into().into() }
}

/// The path of an entry below the destination root.
pub(crate) fn join(dir: &[u8], name: &Name) -> Vec<u8> {
    let mut path = dir.to_vec();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name.as_bytes());
    path
}
