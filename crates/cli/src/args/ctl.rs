//! The command line of `haul ctl`.

use clap::{Args as ClapArgs, Subcommand};

use super::{STREAMS_MAX, THREADS_MAX, rate};

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
What is set holds within a second, for this run of the copy; connections that exist stay. A paused copy reads and sends \
nothing new; what is on its way lands and becomes durable; Ctrl-C ends it as ever.";

#[derive(Subcommand, Debug)]
pub enum Verb {
    /// Show how far the copy is and what its live settings are
    #[command(override_usage = "haul ctl JOB show [--json]")]
    Show,
    /// Read and send nothing new until `resume`
    #[command(override_usage = "haul ctl JOB pause")]
    Pause,
    /// Go on
    #[command(override_usage = "haul ctl JOB resume")]
    Resume,
    /// Change a live setting of the running copy
    #[command(subcommand, override_usage = "haul ctl JOB set rate|streams|readers|writers VALUE")]
    Set(Set),
}

#[derive(Subcommand, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// Most payload bytes a second, over all streams
    #[command(override_usage = "haul ctl JOB set rate RATE")]
    Rate {
        /// With its unit, as 80MB/s, 100MiB/s or 1Gbit/s; `none`: no limit
        #[arg(value_name = "RATE", value_parser = parse_rate)]
        value: u64,
    },
    /// Data connections that carry new data: more are opened where they can join, what is too many is left
    /// idle
    #[command(override_usage = "haul ctl JOB set streams N")]
    Streams {
        /// 1 to 64
        #[arg(value_name = "N", value_parser = clap::value_parser!(u64).range(1..=STREAMS_MAX as u64))]
        value: u64,
    },
    /// Threads that read at the source, and with them, in proportion, its requests in flight
    #[command(override_usage = "haul ctl JOB set readers N")]
    Readers {
        /// 1 to 256
        #[arg(value_name = "N", value_parser = clap::value_parser!(u64).range(1..=THREADS_MAX as u64))]
        value: u64,
    },
    /// Threads that write at the destination, and with them, in proportion, its requests in flight
    #[command(override_usage = "haul ctl JOB set writers N")]
    Writers {
        /// 1 to 256
        #[arg(value_name = "N", value_parser = clap::value_parser!(u64).range(1..=THREADS_MAX as u64))]
        value: u64,
    },
}

/// Bytes a second, as `--rate` takes them; 0: no limit.
fn parse_rate(text: &str) -> Result<u64, String> {
    match text {
        "none" => Ok(0),
        text => rate::parse_rate(text).map_err(|error| format!("{error}, or none")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Args, Command};
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
        assert_eq!(set("streams 64"), Some(Set::Streams { value: 64 }));
        assert_eq!(set("readers 256"), Some(Set::Readers { value: 256 }));
        assert_eq!(set("writers 1"), Some(Set::Writers { value: 1 }));
        for line in ["rate 80", "rate", "streams 0", "streams 65", "readers 257", "writers x", "colour 1", ""]
        {
            assert_eq!(set(line), None, "{line}");
        }
        assert!(ctl("").is_err() && ctl("data explode").is_err());
    }

    /// Goal: what a help shows as usage can be typed so: the job comes first.
    /// Method: the usage of every verb and live setting, both ways to ask for it.
    #[test]
    fn usages_begin_with_the_job() {
        let usage = |line: &[&str]| {
            let error = Args::try_parse_from(["haul"].iter().chain(line)).expect_err("help");
            let text = error.to_string();
            let usage = text.lines().find_map(|line| line.strip_prefix("Usage: ")).map(str::to_owned);
            usage.unwrap_or_else(|| panic!("{text}"))
        };
        for words in [&["show"][..], &["pause"], &["resume"], &["set"], &["set", "rate"], &["set", "streams"]]
        {
            let want = format!("haul ctl JOB {}", words.join(" "));
            let long = [&["help", "ctl"], words].concat();
            let short = [&["ctl", "help"], words].concat();
            let behind = [&["ctl", "data"], words, &["--help"]].concat();
            for line in [long, short, behind] {
                assert!(usage(&line).starts_with(&want), "{line:?}: {}", usage(&line));
            }
        }
    }

    /// Goal: a rate is what it is for `--rate`, or none.
    #[test]
    fn rates_are_those_of_a_copy() {
        assert_eq!((parse_rate("100MiB/s"), parse_rate("none")), (Ok(100 << 20), Ok(0)));
        for text in ["100", "", "0", "1KiB/s", "None of it"] {
            assert!(parse_rate(text).is_err_and(|error| error.ends_with("or none")), "{text}");
        }
    }
}
