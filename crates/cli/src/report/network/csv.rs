//! Measurements as CSV, RFC 4180: one line for each point, a header, CRLF.

use std::fmt::Write;

use haul_probe::network::Network;

const HEADER: &str = "streams,window,congestion,rate,bytes,seconds,sent,resent,rtt_min,rtt_median,rtt_p99,cpu_seconds,limit,rising";

/// All points, in the order of the probe. Sizes in bytes, rates in bytes per second, times in seconds; a
/// window is empty where it was the kernel's own. Names of congestion controls are plain words, so that
/// nothing is quoted.
pub fn points(probe: &Network) -> String {
    let mut out = format!("{HEADER}\r\n");
    for p in &probe.points {
        let window = p.setting.window.map_or(String::new(), |bytes| bytes.to_string());
        // A file may hold anything.
        let plain = |c: &char| c.is_ascii_alphanumeric() || *c == '_' || *c == '-';
        let congestion: String = p.setting.congestion.chars().filter(plain).collect();
        let _ = write!(
            out,
            "{},{window},{congestion},{},{},{},{},{},{},{},{},{},{},{}\r\n",
            p.setting.streams,
            p.rate,
            p.bytes,
            p.seconds,
            p.sent,
            p.resent,
            p.rtt_min,
            p.rtt_median,
            p.rtt_p99,
            p.cpu_seconds,
            p.limit.name(),
            p.rising
        );
    }
    out
}
