//! Measurements as CSV, RFC 4180: one line for each point, a header, CRLF.

use std::fmt::Write;

use haul_probe::Probe;

use super::{direction, io, pattern};

const HEADER: &str =
    "direction,pattern,io,order,request_size,depth,rate,bytes,seconds,cpu_seconds,service_median,service_p99";

/// All points, in the order of the probe. Sizes in bytes, rates in bytes per second, times in
/// seconds. No field ever holds a comma or a quote, so none is quoted.
pub fn points(probe: &Probe) -> String {
    let mut out = format!("{HEADER}\r\n");
    for p in &probe.points {
        let s = &p.setting;
        let _ = write!(
            out,
            "{},{},{},{},{},{},{},{},{},{},{},{}\r\n",
            direction(p.direction),
            pattern(p.pattern),
            io(s.io),
            s.order.policy(),
            s.request_size,
            s.depth,
            p.rate,
            p.bytes,
            p.seconds,
            p.cpu_seconds,
            p.service_median,
            p.service_p99
        );
    }
    out
}
