//! Tuning of the network: how many streams, which congestion control, how fast at most.
//!
//! In: what is known of the path and what was measured on it. Out: a value and the reason in words. Each part
//! is a machine or a function of its own: [`start`] the count to begin with, [`streams`] the count while data
//! flows, [`congestion`] the control, [`rate`] the limit that a user set.
//!
//! Left out: the system's names of settings, and setting them.

pub mod congestion;
pub mod rate;
pub mod start;
pub mod streams;
#[cfg(test)]
mod streams_tests;

use std::time::Duration;

/// A path shorter than this is the same machine or the same room: windows are no limit there, processors are.
pub const LOCAL_RTT: Duration = Duration::from_millis(1);

/// What haul chose, and why, for the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice<T> {
    pub value: T,
    pub why: String,
}

/// A time as people write it: `128 ms`, `26.8 ms`, `0.28 ms`.
pub fn show_ms(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1e3;
    match ms {
        ms if ms >= 99.95 => format!("{ms:.0} ms"),
        ms if ms >= 0.995 => format!("{ms:.1} ms"),
        ms => format!("{ms:.2} ms"),
    }
}

/// A size in binary units: `6 MiB`, `3.2 MiB`, `640 KiB`.
pub fn show_size(bytes: u64) -> String {
    let (unit, name) = match bytes {
        b if b >= 1 << 30 => (1 << 30, "GiB"),
        b if b >= 1 << 20 => (1 << 20, "MiB"),
        _ => (1 << 10, "KiB"),
    };
    match bytes % unit {
        0 => format!("{} {name}", bytes / unit),
        _ => format!("{:.1} {name}", bytes as f64 / unit as f64),
    }
}

/// An amount of data in decimal units: `77 MB`, `1.3 TB`.
pub fn show_amount(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let (mut value, mut unit) = (bytes as f64, "");
    for name in UNITS {
        (value, unit) = (value / 1000.0, name);
        if value < 999.5 {
            break;
        }
    }
    let digits = usize::from(value < 9.95);
    format!("{value:.digits$} {unit}")
}

/// A rate in decimal units of bytes: `1.25 GB/s`, `47 MB/s`.
pub fn show_rate(bytes: f64) -> String {
    if bytes >= 1e9 { format!("{:.2} GB/s", bytes / 1e9) } else { format!("{:.0} MB/s", bytes / 1e6) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: amounts have a unit that fits, also at its edges.
    #[test]
    fn amounts_have_a_unit_that_fits() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (9_949, "9.9 kB"),
            (9_950, "10 kB"),
            (999_499, "999 kB"),
            (999_500, "1.0 MB"),
            (77_170_350, "77 MB"),
            (u64::MAX, "18 EB"),
        ] {
            assert_eq!(show_amount(bytes), text, "{bytes}");
        }
    }

    /// Goal: quantities read as people write them.
    #[test]
    fn quantities_in_words() {
        let micros = |us| show_ms(Duration::from_micros(us));
        assert_eq!([micros(128_000), micros(26_800), micros(280)], ["128 ms", "26.8 ms", "0.28 ms"]);
        assert_eq!(
            [show_size(6 << 20), show_size(3_355_444), show_size(1024)],
            ["6 MiB", "3.2 MiB", "1 KiB"]
        );
        assert_eq!([show_rate(1.25e9), show_rate(47.1e6)], ["1.25 GB/s", "47 MB/s"]);
    }
}
