//! A network shows that it is what it says, before anyone measures on it.
//!
//! In: two namespaces and the path that they are to be joined by. Out: what ping and iperf3 saw, or why that
//! is not good enough. Both directions share one path when a network is set up, so the rate is looked at from
//! a to b only.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Serialize;
use serde_json::Value;

use super::line::Path;
use super::netns;
use super::packet::FRAME_OVERHEAD;

const PINGS: u32 = 20;
const SECONDS: u32 = 1;
/// The shortest round trip may be longer than what was set by this, for two system calls and two wake-ups
/// each way.
const RTT_EXCESS_MS: f64 = 1.0;
/// What must arrive of the payload that the rate has room for, and what may at most.
const RATE_LEAST: f64 = 0.8;
/// Where packets are lost, TCP decides how much it sends; that some arrives is all that can be asked.
const RATE_LEAST_LOSSY: f64 = 0.3;
/// A round trip's worth comes on top: what waited behind a lost packet is counted when the gap is filled.
const RATE_MOST: f64 = 1.03;
/// A machine that does something else for a moment gets another chance.
const TRIES: u32 = 3;
const FLOWS: u32 = 4;
/// Round trips until a new connection fills a long path, generously.
const RAMP_RTTS: f64 = 20.0;
/// IP and TCP header with timestamps.
const HEADERS: f64 = 52.0;
const PORT: &str = "5201";

/// What was seen of one NIC.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Seen {
    pub rtt_min_ms: f64,
    pub rtt_mean_ms: f64,
    /// Payload of four TCP connections at the receiver, Gbit/s.
    pub goodput_gbit: f64,
    /// What the rate has room for.
    pub goodput_possible_gbit: f64,
}

/// Looks at one NIC. With `any_rate` it says how much arrives, and is content with anything that is not too
/// much.
///
/// # Errors
/// If a bound does not hold; the text has the figure and the bound.
pub fn prove(
    namespaces: &[String; 2],
    nic: usize,
    path: &Path,
    mtu: u32,
    any_rate: bool,
) -> anyhow::Result<Seen> {
    let (rtt_min_ms, rtt_mean_ms) = prove_rtt(namespaces, nic, path)?;
    let mtu = f64::from(mtu);
    let possible = path.rate as f64 * (mtu - HEADERS) / (mtu + FRAME_OVERHEAD as f64);
    let least = match (any_rate, path.loss > 0.0) {
        (true, _) => 0.0,
        (false, true) => RATE_LEAST_LOSSY,
        (false, false) => RATE_LEAST,
    };
    let rtt = 2.0 * path.delay_ns as f64 / 1e9;
    let most = RATE_MOST * (1.0 + rtt);
    let mut best = 0.0f64;
    for round in 1..=TRIES {
        let seen = goodput(namespaces, nic, path, FLOWS, SECONDS)?;
        if seen > possible * most {
            // What waited behind a packet that was lost earlier comes at once; a line that lets too much
            // through does so each time.
            if round < TRIES {
                continue;
            }
            bail!(
                "iperf3 saw {:.3} Gbit/s, more than {most:.2} times the {:.3} that the rate has room for",
                seen / 1e9,
                possible / 1e9
            );
        }
        best = best.max(seen);
        if best >= possible * least {
            let [goodput_gbit, goodput_possible_gbit] = [best, possible].map(|rate| rate / 1e9);
            return Ok(Seen { rtt_min_ms, rtt_mean_ms, goodput_gbit, goodput_possible_gbit });
        }
    }
    bail!(
        "iperf3 saw {:.3} Gbit/s at best, less than {:.0} % of the {:.3} that the rate has room for: this machine is \
         too busy or too slow for it",
        best / 1e9,
        least * 100.0,
        possible / 1e9
    )
}

fn prove_rtt(namespaces: &[String; 2], nic: usize, path: &Path) -> anyhow::Result<(f64, f64)> {
    let set = 2.0 * path.delay_ns as f64 / 1e6;
    let most = set + 2.0 * path.jitter_ns as f64 / 1e6 + RTT_EXCESS_MS;
    let mut seen = (f64::INFINITY, f64::INFINITY);
    for _ in 0..TRIES {
        seen = ping(namespaces, nic, set + 2.0 * path.jitter_ns as f64 / 1e6, PINGS)?;
        // ping rounds to microseconds.
        if seen.0 < set - 0.001 {
            bail!("ping saw a round trip of {} ms, less than the {set} that were set", seen.0);
        }
        if seen.0 <= most {
            return Ok(seen);
        }
    }
    bail!(
        "ping saw no round trip shorter than {} ms; the bound is {most:.3}: this machine is too busy",
        seen.0
    )
}

/// Shortest and mean round trip in ms, of `count`.
///
/// # Errors
/// If ping is not there, or no answer came.
pub fn ping(namespaces: &[String; 2], nic: usize, rtt_ms: f64, count: u32) -> anyhow::Result<(f64, f64)> {
    let [target, _] = netns::addresses(nic, 1);
    let patience = format!("{:.0}", (rtt_ms * 2.0 / 1e3).ceil().max(1.0));
    let mut command = Command::new("ping");
    command.args(["-n", "-q", "-i", "0.02", "-c"]).arg(count.to_string()).args(["-W", &patience, &target]);
    let output = netns::inside(&namespaces[0], || command.output())?;
    let output = output.context("run ping (package iputils-ping)")?;
    let text = String::from_utf8_lossy(&output.stdout);
    parse_ping(&text).with_context(|| format!("no answer to ping: {}", text.trim().replace('\n', "; ")))
}

/// Shortest and mean round trip in ms: `rtt min/avg/max/mdev = 0.1/0.2/0.3/0.0 ms`
pub fn parse_ping(text: &str) -> Option<(f64, f64)> {
    let figures = text.lines().find(|line| line.starts_with("rtt "))?.split_once('=')?.1;
    let mut figures = figures.trim().split('/').map(str::parse);
    Some((figures.next()?.ok()?, figures.next()?.ok()?))
}

/// Ends the server also on the way out with an error.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended by itself is only collected.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Payload that arrived in so many seconds over so many connections, bit/s.
///
/// # Errors
/// If iperf3 is not there or says nothing.
pub fn goodput(
    namespaces: &[String; 2],
    nic: usize,
    path: &Path,
    flows: u32,
    seconds: u32,
) -> anyhow::Result<f64> {
    let [target, _] = netns::addresses(nic, 1);
    let mut command = Command::new("iperf3");
    command.args(["-s", "-1", "--forceflush", "-p", PORT, "-B", &target]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let child = netns::inside(&namespaces[1], || command.spawn())?.context("run iperf3 (package iperf3)")?;
    let mut server = Server(child);
    let said = BufReader::new(server.0.stdout.take().expect("stdout is piped"));
    if !said.lines().map_while(Result::ok).any(|line| line.contains("listening")) {
        bail!("the iperf3 server did not start on {target}");
    }
    let rtt = Duration::from_nanos(2 * path.delay_ns + path.jitter_ns).as_secs_f64();
    let ramp = if rtt < 0.005 { 0.0 } else { (rtt * RAMP_RTTS).ceil() };
    let mut command = Command::new("iperf3");
    command.args(["-J", "-p", PORT, "-c", &target]);
    command.args(["-t", &seconds.to_string(), "-P", &flows.to_string()]);
    command.args(["-O", &format!("{ramp:.0}")]);
    // Reaches the rate on long and lossy paths; where the kernel lacks it, its default has to do.
    let known = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    if known.is_ok_and(|known| known.split_whitespace().any(|name| name == "bbr")) {
        command.args(["-C", "bbr"]);
    }
    let output = netns::inside(&namespaces[0], || command.output())?.context("run iperf3")?;
    let result: Value = serde_json::from_slice(&output.stdout).context("read what iperf3 says")?;
    let rate = result["end"]["sum_received"]["bits_per_second"].as_f64();
    rate.with_context(|| format!("iperf3: {}", result["error"].as_str().unwrap_or("no result")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: ping's last line is understood, and silence is none.
    /// Method: its output with and without answers.
    #[test]
    fn wan_ping_is_understood() {
        let answered = "--- 10.77.0.2 ping statistics ---\n20 packets transmitted, 20 received\n\
                        rtt min/avg/max/mdev = 128.150/128.260/129.001/0.051 ms, pipe 7\n";
        assert_eq!(parse_ping(answered), Some((128.15, 128.26)));
        assert_eq!(parse_ping("20 packets transmitted, 0 received, 100% packet loss\n"), None);
    }
}
