//! The command line of `haul probe network`.

use std::time::Duration;

use clap::Args as ClapArgs;

use super::rate::{parse_control, parse_window};
use super::{parse_duration, parse_size};

/// Most data streams.
const STREAMS_MAX: i64 = 64;

#[derive(ClapArgs, Debug)]
#[command(after_help = AFTER)]
pub struct Network {
    /// The host to probe the network to, as for ssh: HOST or USER@HOST
    #[arg(value_name = "HOST")]
    pub host: String,

    /// Measure the way from HOST to here, which a pull takes
    ///
    /// Default: the way from here to HOST. Each way has its own passport.
    #[arg(long)]
    pub reverse: bool,

    /// End the measurements within this time, as 30s or 5m
    ///
    /// Default: 60s. Few connections come first; settings that cannot win are left out, and so is what there
    /// was no time for; both are shown as not measured.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub time: Option<Duration>,

    /// Send no more than this in all
    ///
    /// Default: no limit but the time. Networks are shared: a probe fills this one.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub max_bytes: Option<u64>,

    /// Measure every combination of settings
    ///
    /// Default: those that could be the best. Needs far more --time.
    #[arg(long)]
    pub full: bool,

    /// Only so many data connections, as 1,4,16
    #[arg(long, value_name = "LIST", value_delimiter = ',',
          value_parser = clap::value_parser!(u16).range(1..=STREAMS_MAX))]
    pub streams: Vec<u16>,

    /// Only these windows, as 0,1MiB; 0 is the kernel's own growth
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_window_or_none)]
    pub window: Vec<u64>,

    /// Only these congestion controls, as cubic,bbr
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_control)]
    pub congestion: Vec<String>,

    #[command(flatten)]
    pub far: super::far::Far,

    #[command(flatten)]
    pub forms: super::forms::Forms,

    /// Do not keep the result as the network's passport
    ///
    /// Default: it is kept below $XDG_STATE_HOME/haul or ~/.local/state/haul, and later copies to this host
    /// (with --reverse: from it) start with it.
    #[arg(long)]
    pub no_save: bool,
}

const AFTER: &str = "\
Exit codes: 0 complete; 1 failed, as when the host cannot be reached; 2 wrong usage; 130 or 143 interrupted.";

fn parse_window_or_none(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { parse_window(text) }
}
