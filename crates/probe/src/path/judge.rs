//! What the figures say: the rate of each part, the weakest, and what a copy will reach.
//!
//! In: what each storage gave, and what the session from memory to memory gave and cost. Out: five rates and
//! their least.
//!
//! A host gives as much as its processors can carry: what the session cost there for each byte, and what its
//! storage cost for each byte that it gave. Where hosts held the session down, the time that it had of the
//! processors is all that there is, else all of them are. Both ends of a session within one process have one
//! host, and share it.

use haul_core::stage::Stage;

/// What TCP sends of a new connection before it hears of any of it, bytes: ten segments (RFC 6928), twice as
/// much each round trip (RFC 5681).
const FIRST_WINDOW: f64 = 14_600.0;
/// Round trips of a copy that carry no data: what is asked for and answered at its start, and its last words.
const TURNS: f64 = 2.0;
/// Rates that differ by less are the same: of these the host is named before the network, and what is later
/// before what is earlier.
const SAME: f64 = 0.01;

/// What a storage gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Storage {
    /// Bytes per second.
    pub(super) rate: f64,
    /// Processor seconds for each byte.
    pub(super) cost: f64,
}

/// What one host spent on the session.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Host {
    pub(super) cpus: f64,
    /// Processor seconds for each byte.
    pub(super) cost: f64,
}

/// What the session from memory to memory gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Session {
    /// Within one process: bytes per second, processor seconds for each byte, and the source's share of
    /// these, 0 to 1.
    Local { rate: f64, cost: f64, share: f64 },
    /// Between two hosts. `hosts_limit`: not the network was what held it.
    Pair { rate: f64, hosts_limit: bool, source: Host, sink: Host },
}

/// What is made of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Verdict {
    /// In the order of [`Stage::ALL`]; `None`: no limit.
    pub(super) rates: [Option<f64>; 5],
    pub(super) weakest: Option<Stage>,
    pub(super) expected: Option<f64>,
}

/// Judges. `source`, `sink`: `None` where an end is no storage.
pub(super) fn judge(source: Option<Storage>, session: Session, sink: Option<Storage>) -> Verdict {
    let cost = |storage: Option<Storage>| storage.map_or(0.0, |storage| sound(storage.cost));
    let (hosts, network, later) = match session {
        Session::Local { rate, cost: own, share } => {
            let (from, to) = (own * share + cost(source), own * (1.0 - share) + cost(sink));
            // All the time that the session had of the processors, spent on more for each byte.
            let both = rate * own / (from + to).max(own).max(f64::MIN_POSITIVE);
            let both = if own > 0.0 { both } else { rate };
            ([both; 2], None, to >= from)
        }
        Session::Pair { rate, hosts_limit, source: from, sink: to } => {
            let busy = |host: Host| rate * sound(host.cost) / host.cpus.max(1.0);
            let later = busy(to) >= busy(from);
            let gives = |host: Host, storage, is_busier: bool| {
                let own = sound(host.cost);
                let cpus = if hosts_limit && is_busier { rate * own } else { host.cpus.max(1.0) };
                let all = own + cost(storage);
                if all > 0.0 { cpus / all } else { f64::INFINITY }
            };
            ([gives(from, source, !later), gives(to, sink, later)], Some(rate), later)
        }
    };
    let finite = |rate: f64| Some(rate).filter(|rate| rate.is_finite() && *rate > 0.0);
    let rates = [
        source.and_then(|storage| finite(storage.rate)),
        finite(hosts[0]),
        network.and_then(finite),
        finite(hosts[1]),
        sink.and_then(|storage| finite(storage.rate)),
    ];
    let expected = rates.iter().flatten().copied().min_by(f64::total_cmp);
    // Of two hosts that give the same, the one with more to do.
    let hosts =
        if later { [Stage::SinkHost, Stage::SourceHost] } else { [Stage::SourceHost, Stage::SinkHost] };
    let order = [Stage::SinkStorage, Stage::SourceStorage, hosts[0], hosts[1], Stage::Network];
    let rate_of = |stage: Stage| Stage::ALL.iter().position(|one| *one == stage).and_then(|at| rates[at]);
    let weakest = expected.and_then(|least| {
        let is_least = |stage: &Stage| rate_of(*stage).is_some_and(|rate| rate <= least * (1.0 + SAME));
        order.into_iter().find(is_least)
    });
    Verdict { rates, weakest, expected }
}

/// What a copy takes besides the time in which its bytes move at `rate`, seconds: to join the ends, the turns
/// in which nothing moves, and what is lost until `streams` new connections have `rate` under way over `rtt`
/// seconds.
///
/// All of it may be a peer's: what is no number counts for nothing.
pub(super) fn startup(joined_in: f64, rtt: f64, streams: u16, rate: f64) -> f64 {
    let (rtt, rate) = (sound(rtt), sound(rate));
    let doublings = (rate * rtt / (FIRST_WINDOW * f64::from(streams.max(1)))).max(1.0).log2();
    // What moves meanwhile is worth about one.
    sound(sound(joined_in) + rtt * (TURNS + (doublings - 1.0).max(0.0)))
}

fn sound(cost: f64) -> f64 {
    if cost.is_finite() { cost.max(0.0) } else { 0.0 }
}
