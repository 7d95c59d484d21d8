//! The emulator against netem: the same measurements through both, side by side.
//!
//! In: presets. Out: a table or JSON, and where the two disagree. Delay and loss are judged; rates are only
//! told, for netem's are those of one slow processor, and its losses hit whole super-packets.
//!
//! Bounds. A round trip is never shorter than what was set. The shortest of both differ by at most
//! [`MIN_APART_MS`], the means by at most [`MEAN_APART_MS`], each the best of [`ROUNDS`] rounds. Of the
//! probes, UDP datagrams from host a to host b, as many are lost as was set, and as many by both, within
//! [`SIGMAS`] standard deviations; none where none should be.

use std::io::{ErrorKind, Write as _};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use serde::Serialize;
use serde_json::json;

use crate::wan::line::Path;
use crate::wan::{self, Carrier, netns, options, proof};

const PINGS: u32 = 20;
const ROUNDS: u32 = 3;
/// ping rounds to microseconds.
const ROUNDING_MS: f64 = 0.001;
const MIN_APART_MS: f64 = 0.5;
const MEAN_APART_MS: f64 = 2.0;
const SIGMAS: f64 = 4.0;
/// Losses to be expected of a lossy path, so that the bound means something, and the probes that this may
/// take.
const LOSSES: f64 = 30.0;
const PROBES_MIN: u64 = 20_000;
const PROBES_MAX: u64 = 400_000;
const PROBES_PER_SECOND: u64 = 30_000;
/// Bits on a cable of a probe; and the share of the rate that probes may take.
const PROBE_BITS: u64 = 84 * 8;
const PROBE_SHARE: u64 = 5;
const TICK: Duration = Duration::from_millis(1);
const PORT: u16 = 5202;
/// Nothing came for so long, and a round trip: nothing more will.
const SILENCE: Duration = Duration::from_secs(1);
/// The receiver may not get a core for a while.
const RECEIVE_BUFFER: usize = 32 << 20;
const FLOWS: [u32; 2] = [1, 8];
const DEFAULT: [&str; 4] = ["rtt-0.28ms", "rtt-26.8ms", "rtt-128ms", "lossy-0.01%"];

#[derive(Args)]
pub struct Check {
    /// Paths to compare; not named: rtt-0.28ms, rtt-26.8ms, rtt-128ms and lossy-0.01%
    #[arg(value_parser = options::PRESETS.map(|preset| preset.name))]
    presets: Vec<String>,
    /// One line of JSON in place of a table
    #[arg(long)]
    json: bool,
    /// How long iperf3 counts; 0 leaves the rates out
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=60))]
    seconds: u32,
}

/// What was seen of a path through one of the two.
#[derive(Clone, Debug, Default, Serialize)]
struct Side {
    rtt_min_ms: f64,
    rtt_mean_ms: f64,
    /// Payload at the receiver with 1 and with 8 connections; empty if rates were left out.
    goodput_gbit: Vec<f64>,
    probes: u64,
    lost: u64,
}

#[derive(Debug, Serialize)]
struct Pair {
    preset: String,
    path: Path,
    emulator: Side,
    netem: Side,
    disagreements: Vec<String>,
}

impl Check {
    /// # Errors
    /// If something cannot be measured, or delay or loss disagree.
    pub fn run(&self) -> anyhow::Result<()> {
        let presets: Vec<_> = match self.presets.as_slice() {
            [] => DEFAULT.map(str::to_owned).to_vec(),
            named => named.to_vec(),
        };
        let mut pairs = Vec::new();
        for preset in presets {
            let path = options::resolve(Some(&preset), &options::Change::default());
            let path = path.map_err(anyhow::Error::msg)?;
            let measure = |carrier| {
                let side = measure(&preset, &path, carrier, self.seconds);
                side.with_context(|| format!("{preset} through {}", of(carrier)))
            };
            let (emulator, netem) = (measure(Carrier::Emulator)?, measure(Carrier::Kernel)?);
            let disagreements = judge(&path, &emulator, &netem);
            pairs.push(Pair { preset, path, emulator, netem, disagreements });
        }
        let agree = pairs.iter().all(|pair| pair.disagreements.is_empty());
        let text = if self.json {
            json!({ "agree": agree, "bounds": {
                "rtt_min_apart_ms": MIN_APART_MS, "rtt_mean_apart_ms": MEAN_APART_MS, "loss_sigmas": SIGMAS,
            }, "pairs": pairs })
            .to_string()
        } else {
            table(&pairs)
        };
        writeln!(std::io::stdout(), "{text}").context("write to standard output")?;
        if !agree {
            bail!("the emulator and netem disagree");
        }
        Ok(())
    }
}

fn of(carrier: Carrier) -> &'static str {
    match carrier {
        Carrier::Emulator => "emulator",
        Carrier::Kernel => "netem",
    }
}

/// Takes the network down also on the way out with an error.
struct Network(String);

impl Network {
    fn down(&self) -> anyhow::Result<()> {
        wan::down(&self.0).map(drop)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Err(error) = self.down() {
            eprintln!("lab: {error:#}");
        }
    }
}

fn measure(preset: &str, path: &Path, carrier: Carrier, seconds: u32) -> anyhow::Result<Side> {
    let network = Network(format!("check-{}", std::process::id()));
    let up = wan::Up {
        carrier,
        name: network.0.clone(),
        ..wan::Up::new(Some(preset), options::Change::default())
    };
    up.make()?;
    let namespaces = ["a", "b"].map(|host| format!("haul-lab-{}-{host}", network.0));
    let set = 2.0 * path.delay_ns as f64 / 1e6;
    let mut side = Side { rtt_min_ms: f64::INFINITY, rtt_mean_ms: f64::INFINITY, ..Side::default() };
    for _ in 0..ROUNDS {
        let (min, mean) = proof::ping(&namespaces, 0, set, PINGS)?;
        side.rtt_min_ms = side.rtt_min_ms.min(min);
        side.rtt_mean_ms = side.rtt_mean_ms.min(mean);
    }
    side.probes = probes(path);
    side.lost = side.probes - probe(&namespaces, path, side.probes)?;
    if seconds > 0 {
        for flows in FLOWS {
            side.goodput_gbit.push(proof::goodput(&namespaces, 0, path, flows, seconds)? / 1e9);
        }
    }
    network.down()?;
    Ok(side)
}

fn probes(path: &Path) -> u64 {
    let wanted = if path.loss > 0.0 { LOSSES / path.loss } else { 0.0 };
    (wanted as u64).clamp(PROBES_MIN, PROBES_MAX)
}

/// Sends datagrams from a to b, evenly. Returns how many arrived.
fn probe(namespaces: &[String; 2], path: &Path, count: u64) -> anyhow::Result<u64> {
    let [near, far] = [0, 1].map(|host| netns::addresses(0, host)[0].clone());
    let bind = |host: usize, address: &str, port: u16| {
        netns::inside(&namespaces[host], || UdpSocket::bind((address, port)))?
            .with_context(|| format!("bind a socket to {address}"))
    };
    let (sender, receiver) = (bind(0, &near, 0)?, bind(1, &far, PORT)?);
    sender.connect((far.as_str(), PORT)).context("name the other end")?;
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&receiver, RECEIVE_BUFFER)
        .context("make a large receive buffer")?;
    let patience = SILENCE + Duration::from_nanos(2 * path.delay_ns);
    receiver.set_read_timeout(Some(patience)).context("set a timeout")?;
    let pace = PROBES_PER_SECOND.min(path.rate / PROBE_SHARE / PROBE_BITS).max(1);
    std::thread::scope(|scope| {
        let arrived = scope.spawn(move || -> std::io::Result<u64> {
            let (mut arrived, mut number) = (0, [0; 8]);
            loop {
                match receiver.recv(&mut number) {
                    Ok(8) => arrived += 1,
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(arrived),
                    Err(error) => return Err(error),
                }
            }
        });
        let began = Instant::now();
        let mut sent = 0u64;
        while sent < count {
            // What is late is sent at once, so that the time does not grow; the path has room for it.
            let due = (began.elapsed().as_secs_f64() * pace as f64) as u64 + 1;
            while sent < due.min(count) {
                sender.send(&sent.to_le_bytes()).context("send a probe")?;
                sent += 1;
            }
            std::thread::sleep(TICK);
        }
        let arrived = arrived.join().map_err(|_| anyhow::anyhow!("the receiving thread panicked"))?;
        arrived.context("receive probes")
    })
}

/// Where the two disagree, or one of them with what was set.
fn judge(path: &Path, emulator: &Side, netem: &Side) -> Vec<String> {
    let mut found = Vec::new();
    let set = 2.0 * path.delay_ns as f64 / 1e6;
    for (name, side) in [("emulator", emulator), ("netem", netem)] {
        if side.rtt_min_ms < set - ROUNDING_MS {
            found.push(format!("{name}: a round trip of {:.3} ms, shorter than {set} ms", side.rtt_min_ms));
        }
        let expected = side.probes as f64 * path.loss;
        if (side.lost as f64 - expected).abs() > SIGMAS * expected.sqrt() {
            found.push(format!(
                "{name}: lost {} of {} probes, {expected:.0} expected",
                side.lost, side.probes
            ));
        }
    }
    let mut apart = |what: &str, one: f64, other: f64, most: f64| {
        if (one - other).abs() > most {
            found
                .push(format!("{what} round trips of {one:.3} and {other:.3} ms, more than {most} ms apart"));
        }
    };
    apart("shortest", emulator.rtt_min_ms, netem.rtt_min_ms, MIN_APART_MS);
    apart("mean", emulator.rtt_mean_ms, netem.rtt_mean_ms, MEAN_APART_MS);
    let (one, other) = (emulator.lost as f64, netem.lost as f64);
    if (one - other).abs() > SIGMAS * (one + other).sqrt() {
        found.push(format!("losses of {one} and {other}"));
    }
    found
}

fn table(pairs: &[Pair]) -> String {
    let mut text = "| preset | through | ping min / mean, ms | 1 flow, Gbit/s | 8 flows | lost of probes |\n\
                    |---|---|---|---|---|---|\n"
        .to_owned();
    for pair in pairs {
        for (name, side) in [("emulator", &pair.emulator), ("netem", &pair.netem)] {
            let rate = |flow| side.goodput_gbit.get(flow).map_or("-".to_owned(), |rate| format!("{rate:.2}"));
            text += &format!(
                "| `{}` | {name} | {:.3} / {:.3} | {} | {} | {} of {} |\n",
                pair.preset,
                side.rtt_min_ms,
                side.rtt_mean_ms,
                rate(0),
                rate(1),
                side.lost,
                side.probes
            );
        }
    }
    text.push('\n');
    let mut agree = true;
    for pair in pairs {
        for line in &pair.disagreements {
            agree = false;
            text += &format!("{}: {line}\n", pair.preset);
        }
    }
    if agree {
        text += "Delay and loss agree.";
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each bound is one that can be broken, and noise within it is not told.
    /// Method: a pair that agrees; then one figure at a time just beyond.
    #[test]
    fn kernel_check_tells_disagreement() {
        let path = options::resolve(Some("lossy-0.01%"), &options::Change::default()).expect("a preset");
        let side =
            Side { rtt_min_ms: 50.02, rtt_mean_ms: 50.1, probes: 300_000, lost: 30, ..Side::default() };
        let near = Side { rtt_min_ms: 50.4, rtt_mean_ms: 51.9, lost: 45, ..side.clone() };
        assert_eq!(judge(&path, &side, &near), [""; 0]);
        let told = |other: Side| judge(&path, &side, &other).len();
        assert_eq!(told(Side { rtt_min_ms: 50.6, ..side.clone() }), 1);
        assert_eq!(told(Side { rtt_min_ms: 49.99, ..side.clone() }), 1);
        assert_eq!(told(Side { rtt_mean_ms: 52.2, ..side.clone() }), 1);
        assert_eq!(told(Side { lost: 60, ..side.clone() }), 1);
        let clean = Path { loss: 0.0, ..path };
        let none = Side { lost: 0, ..side.clone() };
        assert_eq!(judge(&clean, &none, &none), [""; 0]);
        assert_eq!(judge(&clean, &none, &Side { lost: 1, ..none.clone() }).len(), 1);
    }
}
