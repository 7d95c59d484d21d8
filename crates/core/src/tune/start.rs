//! How many streams a path gets before anything was sent over it.
//!
//! In: round-trip time, what one stream can have under way, rates that are known, processors, memory. Out: a
//! count and why.

use std::time::Duration;

use super::{Choice, LOCAL_RTT, show_ms, show_rate, show_size};

/// The rate that is aimed at where nobody knows one, bytes per second: 10 Gbit/s.
pub const RATE_DEFAULT: u64 = 1_250_000_000;
/// Streams of a long path at least: four ride out a loss on one of them.
pub const STREAMS_LONG_MIN: u16 = 4;
/// Streams in one room at most: each keeps a processor at each end busy.
pub const STREAMS_LOCAL_MAX: u16 = 4;
/// Memory that a stream needs to be kept busy: what it sends, and what is read meanwhile.
const STREAM_MEMORY: u64 = 8 << 20;

/// What is known of a path before data flows. Every number may be a peer's.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// `None`: not known.
    pub rtt: Option<Duration>,
    /// Bytes that one stream can have under way by the buffers of both ends; `None`: not known.
    pub window: Option<u64>,
    /// The slowest part that is known (network card, storage), bytes per second.
    pub rate: Option<u64>,
    /// Processors of the end that has fewer.
    pub cpus: u16,
    /// Payload buffers of the end that has fewer, bytes.
    pub memory: u64,
    /// Most streams that are possible.
    pub max: u16,
}

impl Path {
    /// Bytes under way when the path is full.
    pub fn product(&self) -> Option<u64> {
        let rate = u128::from(self.rate.unwrap_or(RATE_DEFAULT));
        let bytes = rate.saturating_mul(self.rtt?.as_nanos()) / 1_000_000_000;
        Some(u64::try_from(bytes).unwrap_or(u64::MAX))
    }
}

/// The number of streams to begin with.
pub fn streams(path: &Path) -> Choice<u16> {
    let max = path.max.max(1);
    let Some(rtt) = path.rtt else {
        let value = STREAMS_LONG_MIN.min(max);
        return Choice { value, why: "the path was not measured".into() };
    };
    if rtt < LOCAL_RTT {
        let value = path.cpus.clamp(1, STREAMS_LOCAL_MAX.min(max));
        return Choice { value, why: format!("one for each processor, over {}", show_ms(rtt)) };
    }
    let by_memory = u16::try_from(path.memory / STREAM_MEMORY).unwrap_or(u16::MAX).max(1);
    let most = max.min(by_memory);
    let floor = STREAMS_LONG_MIN.min(most);
    let (Some(window), Some(product)) = (path.window.filter(|w| *w > 0), path.product()) else {
        return Choice { value: floor, why: format!("the buffers of {} are not known", show_ms(rtt)) };
    };
    let needed = product.div_ceil(window);
    let rate = show_rate(path.rate.unwrap_or(RATE_DEFAULT) as f64);
    if needed <= u64::from(floor) {
        let why = format!("one fills {rate} over {}, more ride out losses", show_ms(rtt));
        let why = if needed == 1 { why } else { format!("{needed} fill {rate} over {}", show_ms(rtt)) };
        return Choice { value: floor, why };
    }
    let value = u16::try_from(needed).unwrap_or(u16::MAX).min(most);
    let mut why = format!("window limit {} over {}, for {rate}", show_size(window), show_ms(rtt));
    if u64::from(value) < needed {
        let what =
            if most == by_memory && most < max { "`memory` holds no more" } else { "the most there can be" };
        why = format!("{why}; {needed} would be needed, {what}");
    }
    Choice { value, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(rtt_us: u64, window: Option<u64>) -> Path {
        let rtt = Some(Duration::from_micros(rtt_us));
        Path { rtt, window, rate: None, cpus: 2, memory: 1 << 30, max: 64 }
    }

    /// Goal: the count fills the path by its windows, and no more; few where windows are no limit.
    #[test]
    fn the_count_fills_the_path() {
        let count = |rtt_us, window| streams(&path(rtt_us, Some(window))).value;
        assert_eq!([count(128_000, 3 << 20), count(26_800, 3 << 20), count(26_800, 64 << 20)], [51, 11, 4]);
        assert_eq!([count(128_000, 1 << 20), count(280, 1 << 20), count(60_000_000, 1)], [64, 2, 64]);
        let slow = Path { rate: Some(125_000_000), ..path(128_000, Some(3 << 20)) };
        assert_eq!(streams(&slow).value, 6);
        assert_eq!(streams(&Path { rtt: None, ..slow }).value, 4);
        assert_eq!(streams(&Path { max: 1, ..slow }).value, 1);
        assert_eq!(streams(&Path { memory: 24 << 20, ..slow }).value, 3);
        assert_eq!(streams(&Path { window: None, ..slow }).value, 4);
    }

    /// Goal: the reason names what decided.
    #[test]
    fn the_reason_says_what_decided() {
        let why = |path: &Path| streams(path).why;
        assert!(why(&path(128_000, Some(6 << 20))).starts_with("window limit 6 MiB over 128 ms"));
        assert!(why(&path(128_000, Some(1 << 20))).contains("153 would be needed"));
        assert!(why(&path(26_800, Some(64 << 20))).contains("1.25 GB/s"));
        assert!(why(&Path { memory: 48 << 20, ..path(128_000, Some(1 << 20)) }).contains("`memory`"));
    }

    /// Goal: no number that a peer can say breaks it.
    #[test]
    fn any_numbers_will_do() {
        for rtt in [None, Some(Duration::ZERO), Some(Duration::MAX)] {
            for number in [0, 1, u64::MAX] {
                for small in [0, 1, u16::MAX] {
                    let rate = Some(number);
                    let path = Path { rtt, window: rate, rate, cpus: small, memory: number, max: small };
                    assert!((1..=small.max(1)).contains(&streams(&path).value));
                }
            }
        }
    }
}
