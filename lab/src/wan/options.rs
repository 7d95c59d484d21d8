//! Paths as people write them: presets, and `128ms`, `10Gbit`, `0.01%`, `64MiB`.
//!
//! In: words of the command line. Out: checked values of [`Path`].

use clap::Args;
use serde::{Deserialize, Serialize};

use super::line::{Nanos, Path};

const MS: f64 = 1e6;
const GBIT: u64 = 1_000_000_000;
/// A buffer that nobody named holds this long at the full rate, or the bandwidth-delay product if that is
/// more: less than a few dozen super-packets would be a network for small packets only.
const BUFFER_TIME_NS: u64 = 50_000_000;
const BUFFER_DEFAULT_MAX: u64 = 256 << 20;

/// A path that has a name.
pub struct Preset {
    pub name: &'static str,
    rtt_ms: f64,
    rate: u64,
    loss: f64,
}

/// The round-trip times are those of the XDD papers' testbed at 10 Gbit/s; the last four are ours.
pub const PRESETS: [Preset; 8] = [
    Preset { name: "rtt-0.28ms", rtt_ms: 0.28, rate: 10 * GBIT, loss: 0.0 },
    Preset { name: "rtt-26.8ms", rtt_ms: 26.8, rate: 10 * GBIT, loss: 0.0 },
    Preset { name: "rtt-128ms", rtt_ms: 128.0, rate: 10 * GBIT, loss: 0.0 },
    Preset { name: "rtt-163ms", rtt_ms: 163.0, rate: 10 * GBIT, loss: 0.0 },
    Preset { name: "lan", rtt_ms: 0.2, rate: 10 * GBIT, loss: 0.0 },
    Preset { name: "cross-country", rtt_ms: 60.0, rate: 10 * GBIT, loss: 0.0 },
    Preset { name: "lossy-0.01%", rtt_ms: 50.0, rate: 10 * GBIT, loss: 1e-4 },
    Preset { name: "thin-100M", rtt_ms: 40.0, rate: GBIT / 10, loss: 0.0 },
];

/// What can be said of a path; what is not said stays as it is.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Round-trip time: half of it in each direction, without queueing (128ms, 280us)
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub rtt: Option<Nanos>,
    /// One-way delay, in place of half the round-trip time
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "rtt")]
    pub delay: Option<Nanos>,
    /// Added to the one-way delay of each packet: evenly from 0 to this, packets stay in order
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub jitter: Option<Nanos>,
    /// Bits per second of Ethernet frames, preamble and gap included (10Gbit, 100Mbit)
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub rate: Option<u64>,
    /// Probability that a packet is lost (0.01% or 0.0001), each segment of a super-packet for itself
    #[arg(long, value_name = "P", value_parser = parse_loss)]
    pub loss: Option<f64>,
    /// Bytes that may wait for the bottleneck; what comes then is dropped (64MiB)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub buffer: Option<u64>,
    /// Lose everything from now on
    #[arg(long, conflicts_with = "up")]
    pub down: bool,
    /// Carry packets again
    #[arg(long)]
    pub up: bool,
}

impl Change {
    /// `path` with what was said.
    pub fn apply(&self, path: &Path) -> Path {
        Path {
            // Never less than was asked for.
            delay_ns: self.delay.or(self.rtt.map(|rtt| rtt.div_ceil(2))).unwrap_or(path.delay_ns),
            jitter_ns: self.jitter.unwrap_or(path.jitter_ns),
            rate: self.rate.unwrap_or(path.rate),
            loss: self.loss.unwrap_or(path.loss),
            buffer: self.buffer.unwrap_or(path.buffer),
            up: self.up || path.up && !self.down,
        }
    }
}

/// The path that `up` makes of a preset and of what was said besides.
///
/// # Errors
/// If there is neither a preset nor both a delay and a rate, or if the path cannot be emulated.
pub fn resolve(preset: Option<&str>, change: &Change) -> Result<Path, String> {
    let preset = preset.map(|name| {
        let known = PRESETS.iter().find(|preset| preset.name == name);
        let names = || PRESETS.map(|preset| preset.name).join(", ");
        known.ok_or_else(|| format!("no preset is called {name}; there are {}", names()))
    });
    let preset = preset.transpose()?;
    if preset.is_none() && (change.rate.is_none() || change.rtt.or(change.delay).is_none()) {
        return Err("without a preset, --rate and one of --rtt and --delay are needed".to_owned());
    }
    let base = Path {
        delay_ns: preset.map_or(0, |preset| ((preset.rtt_ms * MS).round() as Nanos).div_ceil(2)),
        jitter_ns: 0,
        rate: preset.map_or(0, |preset| preset.rate),
        loss: preset.map_or(0.0, |preset| preset.loss),
        buffer: 0,
        up: true,
    };
    let mut path = change.apply(&base);
    if change.buffer.is_none() {
        let bytes = |ns: u64| (u128::from(path.rate) * u128::from(ns) / 8_000_000_000) as u64;
        let round_trip = path.delay_ns.saturating_mul(2).max(BUFFER_TIME_NS);
        path.buffer = bytes(round_trip).clamp(super::line::BUFFER_MIN, BUFFER_DEFAULT_MAX);
    }
    path.check()?;
    Ok(path)
}

/// Number and unit; the unit in lower case.
fn split(text: &str) -> Result<(f64, String), String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..end].parse().map_err(|_| format!("{text} does not begin with a number"))?;
    Ok((number, text[end..].trim().to_ascii_lowercase()))
}

/// A time; a bare number is no time.
pub fn parse_time(text: &str) -> Result<Nanos, String> {
    let (number, unit) = split(text)?;
    let factor = match unit.as_str() {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => MS,
        "s" => 1e9,
        _ if number == 0.0 => 0.0,
        _ => return Err(format!("{text} is no time; units are ns, us, ms, s")),
    };
    Ok((number * factor).round() as Nanos)
}

/// A rate in bit/s.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let unit = unit.trim_end_matches("/s").trim_end_matches("bps").trim_end_matches("bit");
    let factor = match unit {
        "" => 1.0,
        "k" => 1e3,
        "m" => 1e6,
        "g" => 1e9,
        "t" => 1e12,
        _ => return Err(format!("{text} is no rate; write it like 10Gbit, 100Mbit or 64kbit")),
    };
    Ok((number * factor).round() as u64)
}

/// A probability.
pub fn parse_loss(text: &str) -> Result<f64, String> {
    let (number, unit) = split(text)?;
    let loss = match unit.as_str() {
        "" => number,
        "%" => number / 100.0,
        _ => return Err(format!("{text} is no probability; write it like 0.01% or 0.0001")),
    };
    if (0.0..=1.0).contains(&loss) { Ok(loss) } else { Err(format!("{text} is more than 100%")) }
}

/// A size in bytes.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let factor: u64 = match unit.as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => return Err(format!("{text} is no size; write it like 64MiB")),
    };
    Ok((number * factor as f64).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every preset can be emulated, under its name, with the round-trip time that the name says.
    /// Method: all of them; the name read back as a time where it is one.
    #[test]
    fn wan_presets_hold_what_they_say() {
        for preset in &PRESETS {
            let path = resolve(Some(preset.name), &Change::default()).expect(preset.name);
            assert!(path.up);
            if let Some(rtt) = preset.name.strip_prefix("rtt-") {
                assert_eq!(path.delay_ns * 2, parse_time(rtt).expect("a time"));
                assert_eq!(path.rate, parse_rate("10Gbit/s").expect("a rate"));
            }
        }
        assert!(resolve(Some("moon"), &Change::default()).unwrap_err().contains("rtt-128ms"));
        assert!(resolve(None, &Change { rate: Some(1_000_000), ..Change::default() }).is_err());
    }

    /// Goal: units mean what they mean elsewhere, and nonsense is refused.
    /// Method: a table.
    #[test]
    fn wan_units_are_read() {
        assert_eq!(parse_time("0.28ms"), Ok(280_000));
        assert_eq!(parse_time("2s"), Ok(2_000_000_000));
        assert_eq!(parse_rate("10Gbit"), Ok(10_000_000_000));
        assert_eq!(parse_rate("64kbit/s"), Ok(64_000));
        assert_eq!(parse_rate("100M"), Ok(100_000_000));
        assert_eq!(parse_loss("0.01%"), Ok(0.0001));
        assert_eq!(parse_loss("0.5"), Ok(0.5));
        assert_eq!(parse_size("64MiB"), Ok(64 << 20));
        assert_eq!(parse_size("1.5k"), Ok(1536));
        for wrong in ["", "ms", "12parsec", "-1ms", "1.2.3s"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
        assert!(
            parse_loss("101%").is_err() && parse_rate("10Gfurlong").is_err() && parse_size("1ms").is_err()
        );
    }

    /// Goal: a change touches what it names, and nothing else.
    /// Method: single changes to one path; down and up.
    #[test]
    fn wan_changes_touch_what_they_name() {
        let path = resolve(Some("rtt-128ms"), &Change::default()).expect("a preset");
        let down = Change { down: true, ..Change::default() }.apply(&path);
        assert_eq!(down, Path { up: false, ..path });
        assert_eq!(Change::default().apply(&down), down);
        assert_eq!(Change { up: true, ..Change::default() }.apply(&down), path);
        let odd = Change { rtt: Some(3), ..Change::default() }.apply(&path);
        assert_eq!(odd, Path { delay_ns: 2, ..path });
    }
}
