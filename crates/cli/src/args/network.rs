//! The command line of `haul probe network`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;

use super::rate::{parse_control, parse_window};
use super::{Ports, SshCommand, parse_address, parse_duration, parse_ports, parse_size, parse_ssh};

/// Most data streams.
const STREAMS_MAX: i64 = 64;

#[derive(ClapArgs, Debug)]
#[command(after_help = AFTER)]
pub struct Network {
    /// The host to probe the network to, as for ssh: HOST or USER@HOST
    #[arg(value_name = "HOST")]
    pub host: String,

    /// End the measurements within this time, as 30s or 5m
    ///
    /// Default: 60s. Few connections come first; settings that cannot win are left out, and so is what there was no time
    /// for; both are shown as not measured.
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

    /// Remote shell and its arguments, as one word: -e 'ssh -p 2222 -i key'
    ///
    /// Default: ssh, with your own configuration, keys and agent.
    #[arg(short = 'e', long = "ssh", visible_alias = "rsh", value_name = "CMD", default_value = "ssh",
          hide_default_value = true, value_parser = parse_ssh)]
    pub ssh: SshCommand,

    /// Dial these addresses of the far host
    ///
    /// Default: the one that ssh itself reached, and what else of both hosts reaches each other, as for a copy.
    #[arg(long, value_name = "ADDR,...", value_delimiter = ',', value_parser = parse_address)]
    pub via: Vec<IpAddr>,

    /// Port or ports A-B that the far end may listen on
    ///
    /// Default: any free one.
    #[arg(long, value_name = "A-B", value_parser = parse_ports)]
    pub port: Option<Ports>,

    /// Never send the haul program itself to the far host
    ///
    /// Default: a far host without haul in its PATH gets this program into a private cache.
    #[arg(long)]
    pub no_push: bool,

    /// Path of haul at the far host
    ///
    /// Default: the one in its PATH, else the pushed one.
    #[arg(long, value_name = "PATH")]
    pub remote_haul: Option<PathBuf>,

    /// Write events as JSON lines to stdout, the last one is the summary
    ///
    /// The schema is docs/probe.schema.json. Texts for people stay on stderr.
    #[arg(long)]
    pub json: bool,

    /// Write every measurement as CSV to FILE, or to stdout in place of the table for -
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,

    /// Write the report as one self-contained page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Do not keep the result as the network's passport
    ///
    /// Default: it is kept below $XDG_STATE_HOME/haul or ~/.local/state/haul, and later copies to this host start with it.
    #[arg(long)]
    pub no_save: bool,
}

const AFTER: &str = "\
Exit codes: 0 complete; 1 failed, as when the host cannot be reached; 2 wrong usage; 130 or 143 interrupted.";

fn parse_window_or_none(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { parse_window(text) }
}
