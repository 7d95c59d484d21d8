//! What a path needs: streams, buffers, memory, and the one setting of the system that would help.
//!
//! In: what both ends say of themselves ([`EndFacts`]), the control connection's round-trip time. Out: a
//! [`Plan`] with a reason for each value. What the other end says is believed as far as it harms nobody but
//! the rate.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use haul_core::tune::start::{self, Path, RATE_DEFAULT};
use haul_core::tune::{Choice, LOCAL_RTT, show_ms, show_rate, show_size};
use haul_core::wire::STREAMS_MAX;
use serde::{Deserialize, Serialize};

use super::tcp::HostLimits;
use super::{Link, routes};

/// Share of a buffer that is payload under way, as measured on Linux 6.18 with segments of 1500 bytes: the
/// rest is the kernel's book-keeping. (128 ms, a stock kernel's 6 MiB and 4 MiB: a window of 4.17 MB, 3.6 MB
/// under way.)
const RECEIVE_SHARE: f64 = 0.66;
const SEND_SHARE: f64 = 0.86;
/// Objects for which there is room beyond what is under way, bytes: 64 of 4 MiB.
const MEMORY_AT_REST: u64 = 64 * (4 << 20);

/// What an end says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndFacts {
    #[serde(default)]
    pub limits: HostLimits,
    /// Processors that this process may use.
    #[serde(default)]
    pub cpus: u16,
    /// Payload buffers, bytes, if the user named a number.
    #[serde(default)]
    pub memory: Option<u64>,
    /// Rates of its network device, and of its storage by the passport, bytes per second; `None`: not known.
    #[serde(default)]
    pub device: Option<u64>,
    #[serde(default)]
    pub storage: Option<u64>,
    /// It widens receive buffers by itself where its limits allow more than the kernel's own growth.
    #[serde(default)]
    pub widens: bool,
}

impl EndFacts {
    /// Those of this host, for packets that leave for `to`. `storage`: bytes per second, as
    /// [`EndFacts::storage`].
    pub fn here(memory: Option<u64>, to: Option<IpAddr>, storage: Option<u64>) -> EndFacts {
        let cpus = thread::available_parallelism().map_or(1, |n| n.get().min(256) as u16);
        let device = to.and_then(routes::device_rate);
        EndFacts { limits: HostLimits::here(), cpus, memory, device, storage, widens: true }
    }
}

/// What was chosen for a path before data flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub streams: Choice<u16>,
    pub rtt: Option<Duration>,
    /// Name, value and reason, as [`crate::api::Summary::chosen`] has them.
    pub advice: Option<String>,
}

/// Plans for data from `source` to `sink`. `asked`: the user's count.
pub fn plan(
    rtt: Option<Duration>,
    source: &EndFacts,
    sink: &EndFacts,
    window: Option<u64>,
    asked: Option<u16>,
) -> Plan {
    let (send, receive) = holds(source, sink);
    // Both devices bound the rate, and both ends' storage; of a path whose devices are not known the default
    // does.
    let device = [source.device, sink.device].into_iter().flatten().min().unwrap_or(RATE_DEFAULT);
    let known = [source.device, source.storage, sink.device, sink.storage].iter().any(Option::is_some);
    let rate = [source.storage, sink.storage].into_iter().flatten().fold(device, u64::min);
    let rate = known.then_some(rate.max(1));
    let held = [send, receive, window].into_iter().flatten().min();
    let memory = [source.memory, sink.memory].into_iter().flatten().min().unwrap_or(u64::MAX);
    let path = Path { rtt, window: held, rate, cpus: source.cpus.min(sink.cpus), memory, max: STREAMS_MAX };
    let streams = match asked {
        Some(value) => Choice { value: value.clamp(1, STREAMS_MAX), why: "as asked".into() },
        None => start::streams(&path),
    };
    let advice = advice(&path, source, sink, send, receive, window);
    Plan { streams, rtt, advice }
}

/// The setting of the system that holds one stream below `rate` (bytes per second), and what another value
/// would bring. `None`: nothing does, or nobody knows.
pub fn advise(rtt: Option<Duration>, source: &EndFacts, sink: &EndFacts, rate: u64) -> Option<String> {
    let (send, receive) = holds(source, sink);
    let window = [send, receive].into_iter().flatten().min();
    let path = Path { rtt, window, rate: Some(rate), cpus: 1, memory: 0, max: 1 };
    advice(&path, source, sink, send, receive, None)
}

/// Payload that the buffers of one stream hold at most: the source's, and the sink's.
fn holds(source: &EndFacts, sink: &EndFacts) -> (Option<u64>, Option<u64>) {
    let send = largest(source.limits.wmem_auto, source.limits.wmem_fixed).map(|b| share(b, SEND_SHARE));
    let limits = &sink.limits;
    let fixed = limits.rmem_fixed.filter(|_| sink.widens || limits.rmem_auto.is_none());
    let receive = largest(limits.rmem_auto, fixed).map(|b| share(b, RECEIVE_SHARE));
    (send, receive)
}

/// The setting of the system that holds one stream down, and what another value would bring.
fn advice(
    path: &Path,
    source: &EndFacts,
    sink: &EndFacts,
    send: Option<u64>,
    receive: Option<u64>,
    window: Option<u64>,
) -> Option<String> {
    let rtt = path.rtt.filter(|rtt| *rtt >= LOCAL_RTT)?;
    let (product, held) = (path.product()?, path.window.filter(|held| *held > 0)?);
    // What the user set is no matter of the system's.
    if window.is_some_and(|window| window <= held) || held >= product {
        return None;
    }
    let (name, end, first, auto, least, share) = match (send, receive) {
        (Some(send), Some(receive)) if send < receive => {
            ("tcp_wmem", "source", "4096 16384", source.limits.wmem_auto, send, SEND_SHARE)
        }
        (Some(send), None) => ("tcp_wmem", "source", "4096 16384", source.limits.wmem_auto, send, SEND_SHARE),
        (_, Some(receive)) => {
            ("tcp_rmem", "sink", "4096 131072", sink.limits.rmem_auto, receive, RECEIVE_SHARE)
        }
        (None, None) => return None,
    };
    let rate = least as f64 / rtt.as_secs_f64();
    let want = ((product as f64 / share) as u64).checked_next_power_of_two()?;
    Some(format!(
        "net.ipv4.{name} max {} at the {end} holds one stream at {} over {}; sysctl -w net.ipv4.{name}='{first} {want}' \
         there would let one stream carry {}, if the other buffers do",
        show_size(auto.unwrap_or(least)),
        show_rate(rate),
        show_ms(rtt),
        show_rate(path.rate.unwrap_or(RATE_DEFAULT) as f64),
    ))
}

/// The larger of what the kernel grows to and what can be fixed, if at least one is known.
fn largest(auto: Option<u64>, fixed: Option<u64>) -> Option<u64> {
    auto.max(fixed)
}

fn share(bytes: u64, share: f64) -> u64 {
    (bytes as f64 * share) as u64
}

/// Payload buffers that keep a path of this length full: twice what is under way, and [`MEMORY_AT_REST`].
/// `known`: the path's rate, bytes per second, if one is known.
pub fn memory(rtt: Option<Duration>, known: Option<u64>) -> Choice<u64> {
    let rate = known.unwrap_or(0).max(RATE_DEFAULT);
    let path = Path { rtt, window: None, rate: Some(rate), cpus: 1, memory: 0, max: 1 };
    match (rtt.filter(|rtt| *rtt >= LOCAL_RTT), path.product()) {
        (Some(rtt), Some(product)) => Choice {
            value: product.saturating_mul(2).saturating_add(MEMORY_AT_REST),
            why: format!(
                "64 objects of 4 MiB, and twice what {} over {} holds",
                show_rate(rate as f64),
                show_ms(rtt)
            ),
        },
        _ => Choice { value: MEMORY_AT_REST, why: "64 objects of 4 MiB".into() },
    }
}

/// The round-trip time of a link, if it has a connection of its own.
pub fn rtt(link: &Link) -> Option<Duration> {
    let sample = link.connection.as_ref()?.sample()?;
    // The handshake's answers may have waited for a busy peer: the shortest is the path's.
    Some(sample.min_rtt.unwrap_or(sample.rtt)).filter(|rtt| !rtt.is_zero())
}

/// How a copy starts to use a network that was probed, as far as the user left it open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// It counts only where this address was dialled.
    pub address: IpAddr,
    pub streams: u16,
    pub window: Option<u64>,
    pub congestion: Option<String>,
    /// Bytes per second to expect.
    pub rate: u64,
    /// The path lost packets then.
    pub lossy: bool,
    /// In words, for the report.
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn end(rmem: u64, wmem: u64) -> EndFacts {
        let limits = HostLimits {
            rmem_auto: Some(rmem),
            wmem_auto: Some(wmem),
            rmem_fixed: Some(425_984),
            wmem_fixed: Some(425_984),
        };
        EndFacts { limits, cpus: 8, memory: None, device: None, storage: None, widens: true }
    }

    fn ms(ms: u64) -> Option<Duration> {
        Some(Duration::from_millis(ms))
    }

    /// Goal: stock buffers are made up for by streams, tuned ones are not, and the user's word counts.
    #[test]
    fn streams_make_up_for_small_buffers() {
        let stock = end(6 * MIB, 4 * MIB);
        let tuned = end(512 * MIB, 512 * MIB);
        let count = |rtt, a: &EndFacts, b: &EndFacts| plan(rtt, a, b, None, None).streams.value;
        assert_eq!(count(ms(128), &stock, &stock), 45);
        assert_eq!(count(ms(27), &stock, &stock), 10);
        assert_eq!(count(ms(128), &tuned, &tuned), 4);
        // The sink's send buffer and the source's receive buffer do not matter.
        assert_eq!(count(ms(128), &end(1, 512 * MIB), &end(512 * MIB, 1)), 4);
        assert_eq!(plan(ms(128), &stock, &stock, None, Some(3)).streams.value, 3);
        assert_eq!(count(None, &stock, &stock), 4);
        // Larger buffers can be fixed; a receiver's only by one that does so.
        let limits = HostLimits { rmem_fixed: Some(8 * MIB), wmem_fixed: Some(8 * MIB), ..stock.limits };
        let recent = EndFacts { limits, ..stock };
        assert_eq!(count(ms(128), &recent, &recent), 29);
        assert_eq!(count(ms(128), &recent, &EndFacts { widens: false, ..recent }), 39);
        let none = EndFacts { limits: HostLimits::default(), cpus: 0, memory: Some(0), ..stock };
        assert_eq!(count(ms(128), &none, &none), 1);
    }

    /// Goal: the slowest part that is known counts, at whichever end it is; storage alone never raises the
    /// rate.
    #[test]
    fn the_slowest_part_counts() {
        let stock = end(6 * MIB, 4 * MIB);
        let count = |a: &EndFacts, b: &EndFacts| plan(ms(128), a, b, None, None).streams.value;
        let device = |rate| EndFacts { device: Some(rate), ..stock };
        let storage = |rate| EndFacts { storage: Some(rate), ..stock };
        assert_eq!([count(&device(125_000_000), &stock), count(&stock, &device(125_000_000))], [5; 2]);
        assert_eq!(count(&device(125_000_000), &device(12_500_000_000)), 5);
        assert_eq!(count(&device(12_500_000_000), &device(3_000_000_000)), 64);
        assert_eq!([count(&storage(500_000_000), &stock), count(&stock, &storage(500_000_000))], [18; 2]);
        assert_eq!(count(&storage(20_000_000_000), &storage(20_000_000_000)), 45);
        assert_eq!(count(&device(0), &storage(0)), 4);
        assert!(plan(ms(128), &device(125_000_000), &stock, None, None).streams.why.contains("125 MB/s"));
    }

    /// Goal: the advice names the buffer that binds, where, and what it costs; there is none where none
    /// helps.
    #[test]
    fn advice_names_what_binds() {
        let stock = end(6 * MIB, 4 * MIB);
        let advice = |a: &EndFacts, b: &EndFacts| plan(ms(128), a, b, None, None).advice;
        let text = advice(&stock, &stock).unwrap();
        assert!(
            text.starts_with(
                "net.ipv4.tcp_wmem max 4 MiB at the source holds one stream at 28 MB/s over 128 ms"
            ),
            "{text}"
        );
        assert!(text.contains("sysctl -w net.ipv4.tcp_wmem='4096 16384 268435456'"), "{text}");
        let text = advice(&end(6 * MIB, 512 * MIB), &stock).unwrap();
        assert!(
            text.starts_with("net.ipv4.tcp_rmem max 6 MiB at the sink holds one stream at 32 MB/s"),
            "{text}"
        );
        let tuned = end(512 * MIB, 512 * MIB);
        assert_eq!(advice(&tuned, &tuned), None);
        assert_eq!(plan(Some(Duration::from_micros(90)), &stock, &stock, None, None).advice, None);
        assert_eq!(plan(ms(128), &stock, &stock, Some(MIB), None).advice, None);
    }

    /// Goal: memory follows the path, and stays as it was where there is none.
    #[test]
    fn memory_follows_the_path() {
        assert_eq!(memory(None, None).value, 256 * MIB);
        assert_eq!(memory(Some(Duration::from_micros(100)), None).value, 256 * MIB);
        assert_eq!(memory(ms(100), None).value, 256 * MIB + 250_000_000);
        assert_eq!(memory(ms(100), Some(1)).value, 256 * MIB + 250_000_000);
        assert_eq!(memory(ms(100), Some(12_500_000_000)).value, 256 * MIB + 2_500_000_000);
        assert!(memory(Some(Duration::MAX), None).value > 1 << 40);
    }
}
