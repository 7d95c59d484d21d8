//! The command line of `haul ctl`.

use clap::{Args as ClapArgs, Subcommand};

use super::{STREAMS_MAX, THREADS_MAX, parse_size};

#[derive(ClapArgs, Debug)]
#[command(override_usage = "haul ctl list [--json]\n       haul ctl JOB show [--json]\n       \
          haul ctl JOB pause|resume\n       haul ctl JOB set rate|streams|readers|writers VALUE",
          after_help = AFTER)]
pub struct Ctl {
    /// `list`: the copies of this user that run on this host; or the one that is meant: its PID or name
    ///
    /// The name is that of the first source. The beginning of a name will do if no other begins so.
    #[arg(value_name = "JOB")]
    pub job: String,

    #[command(subcommand)]
    pub verb: Option<Verb>,

    /// Print one JSON object instead of text
    #[arg(long, global = true)]
    pub json: bool,
}

const AFTER: &str = "\
What is set holds within a second, for this run of the copy, without a new connection. A paused copy reads and sends
nothing new; what is on its way lands and becomes durable; Ctrl-C ends it as ever.";

#[derive(Subcommand, Debug)]
pub enum Verb {
    /// Show how far the copy is and how its knobs stand
    Show,
    /// Read and send nothing new until `resume`
    Pause,
    /// Go on
    Resume,
    /// Change a knob of the running copy
    #[command(subcommand)]
    Set(Set),
}

#[derive(Subcommand, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// Most payload bytes a second, over all streams
    Rate {
        /// With its unit, as 80MB/s, 100MiB or 1Gbit/s; `none`: no limit
        #[arg(value_name = "RATE", value_parser = parse_rate)]
        value: u64,
    },
    /// Data connections that carry new data, of those that the copy has
    Streams {
        /// 1 to 16
        #[arg(value_name = "N", value_parser = clap::value_parser!(u64).range(1..=STREAMS_MAX as u64))]
        value: u64,
    },
    /// Threads that read at the source, and with them, in proportion, its requests in flight
    Readers {
        /// 1 to 256
        #[arg(value_name = "N", value_parser = clap::value_parser!(u64).range(1..=THREADS_MAX as u64))]
        value: u64,
    },
    /// Threads that write at the destination, and with them, in proportion, its requests in flight
    Writers {
        /// 1 to 256
        #[arg(value_name = "N", value_parser = clap::value_parser!(u64).range(1..=THREADS_MAX as u64))]
        value: u64,
    },
}

/// Bytes a second; 0: no limit. A unit is required, for nobody agrees on what a bare number means.
fn parse_rate(text: &str) -> Result<u64, String> {
    if ["none", "off"].contains(&text) {
        return Ok(0);
    }
    let amount = text.strip_suffix("/s").unwrap_or(text).trim_end();
    let number = amount.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = amount[number.len()..].trim_start();
    let number = number.trim_end();
    match unit.strip_suffix("bit").map(|prefix| format!("{prefix}b")) {
        Some(unit) => parse_size(&format!("{number}{unit}")).map(|bits| (bits / 8).max(1)),
        None if unit.is_empty() => {
            Err("a rate is a whole number and a unit, as 80MB/s, 100MiB/s or 1Gbit/s; or none".into())
        }
        None => parse_size(&format!("{number}{unit}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use clap::Parser;

    fn ctl(line: &str) -> Result<Ctl, clap::Error> {
        let args = Args::try_parse_from(["haul", "ctl"].into_iter().chain(line.split_whitespace()))?;
        match args.command {
            Command::Ctl(ctl) => Ok(ctl),
            other => panic!("{other:?}"),
        }
    }

    /// Goal: every form is understood, and what is out of range or incomplete is wrong usage.
    #[test]
    fn forms_are_understood() {
        let list = ctl("list --json").unwrap();
        assert!(list.job == "list" && list.verb.is_none() && list.json);
        assert!(matches!(ctl("12 show --json").unwrap(), Ctl { verb: Some(Verb::Show), json: true, .. }));
        assert!(matches!(ctl("data pause").unwrap().verb, Some(Verb::Pause)));
        assert!(matches!(ctl("data resume").unwrap().verb, Some(Verb::Resume)));
        let set = |line: &str| match ctl(&format!("data set {line}")).map(|ctl| ctl.verb) {
            Ok(Some(Verb::Set(set))) => Some(set),
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert_eq!(error.exit_code(), 2, "{line}");
                None
            }
        };
        assert_eq!(set("rate 80MB/s"), Some(Set::Rate { value: 80_000_000 }));
        assert_eq!(set("rate none"), Some(Set::Rate { value: 0 }));
        assert_eq!(set("streams 2"), Some(Set::Streams { value: 2 }));
        assert_eq!(set("readers 256"), Some(Set::Readers { value: 256 }));
        assert_eq!(set("writers 1"), Some(Set::Writers { value: 1 }));
        for line in ["rate 80", "rate", "streams 0", "streams 17", "readers 257", "writers x", "colour 1", ""]
        {
            assert_eq!(set(line), None, "{line}");
        }
        assert!(ctl("").is_err() && ctl("data explode").is_err());
    }

    /// Goal: a rate has a unit, of bytes or of bits.
    #[test]
    fn rates_have_units() {
        for (text, rate) in [
            ("100MiB/s", 100 << 20),
            ("100 MB/s", 100_000_000),
            ("5M", 5 << 20),
            ("1Gbit/s", 125_000_000),
            ("8Kbit", 1000),
            ("8bit/s", 1),
            ("off", 0),
        ] {
            assert_eq!(parse_rate(text), Ok(rate), "{text}");
        }
        // "Mbps" means bits to some and bytes to others.
        for text in ["100", "", "/s", "MB", "1.5GB", "-1MB", "1 parsec", "0MB/s", "100Mbps"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }
}
