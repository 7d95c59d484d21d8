//! The command line of `haul probe`.

use std::path::PathBuf;
use std::time::Duration;

use super::plain;
use clap::{Args as ClapArgs, Subcommand, ValueEnum};

use super::forms::Forms;
use super::{parse_duration, parse_size};

/// Sizes of a request that storage engines take, bytes.
const REQUEST_SIZE_MIN: u64 = 4 << 10;
const REQUEST_SIZE_MAX: u64 = 64 << 20;
/// Most requests in flight at one storage target.
const DEPTH_MAX: i64 = 256;

#[derive(Subcommand, Debug)]
pub enum Probe {
    /// Find the fastest way to read and write the storage that a directory lies on
    Storage(Box<Storage>),
    /// Find the fastest way to use the network to a host: streams, window, congestion control
    Network(Box<super::network::Network>),
    /// Measure all that a copy would pass, name the weakest part, and say what rate to expect
    Path(Box<super::path::Path>),
    /// Match the storage of a source with that of a sink: best settings, and the rate to expect
    Pair(Pair),
    /// Show the passports of storage and networks: what earlier probes found
    Show(Show),
}

#[derive(ClapArgs, Debug)]
#[command(after_help = STORAGE_AFTER)]
pub struct Storage {
    /// A directory on the storage to probe; a scratch file lies in it while the probe runs
    #[arg(value_name = "PATH", value_parser = plain::path())]
    pub path: PathBuf,

    /// Size of the scratch file, as 4GiB
    ///
    /// Default: 1GiB, or what fits --max-bytes. Storage with a cache of its own tells its true rate only when
    /// this is larger than the cache.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,

    /// End within this time, as 60s or 10m
    ///
    /// Default: 60s. The most promising settings come first; what there was no time for is said.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub time: Option<Duration>,

    /// Most bytes to read and write together
    ///
    /// Default: 8GiB, for flash wears and storage is shared.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub max_bytes: Option<u64>,

    /// Measure every combination of settings
    ///
    /// Default: a coarse grid, and what lies near the best of it. Needs far more --time and --max-bytes.
    #[arg(long)]
    pub full: bool,

    /// Do not ask before a network file system is loaded
    #[arg(short, long)]
    pub yes: bool,

    /// How requests reach the kernel
    ///
    /// Default: io_uring where the kernel allows it, else threads; the report says which.
    #[arg(long, value_enum, value_name = "ENGINE", default_value_t = Engine::Auto)]
    pub engine: Engine,

    /// Only these: read, write
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    pub direction: Vec<Direction>,

    /// Only these request sizes, as 1MiB,16MiB
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_request_size)]
    pub request_size: Vec<u32>,

    /// Only so many requests in flight, as 1,4,16
    #[arg(long, value_name = "LIST", value_delimiter = ',',
          value_parser = clap::value_parser!(u16).range(1..=DEPTH_MAX))]
    pub depth: Vec<u16>,

    /// Only these ordering policies: strict, serial, loose, none
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    pub order: Vec<Order>,

    /// Only these: direct, buffered
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    pub io: Vec<Io>,

    /// Only these: sequential, random
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    pub pattern: Vec<Pattern>,

    #[command(flatten)]
    pub forms: Forms,

    /// Write the result as JSON, for `haul probe pair`
    #[arg(long, value_name = "FILE", value_parser = plain::path())]
    pub save_as: Option<PathBuf>,

    /// Do not keep the result as the storage's passport
    ///
    /// Default: it is kept below $XDG_STATE_HOME/haul or ~/.local/state/haul, and gives later copies their
    /// starting values.
    #[arg(long)]
    pub no_save: bool,
}

const STORAGE_AFTER: &str = "\
Exit codes: 0 complete; 1 failed; 2 wrong usage, or a network file system and nobody to ask; 130 or 143 \
interrupted. The scratch file is removed after each of them.";

#[derive(ClapArgs, Debug)]
pub struct Pair {
    /// Probe of the source's storage: a file of --save-as, the output of --json, or a passport
    #[arg(value_name = "SOURCE.json", value_parser = plain::path())]
    pub source: PathBuf,
    /// Probe of the sink's storage
    #[arg(value_name = "SINK.json", value_parser = plain::path())]
    pub sink: PathBuf,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(ClapArgs, Debug)]
pub struct Show {
    /// Show all that is known of the storage that this path lies on
    ///
    /// Default: a list of all passports.
    #[arg(value_name = "PATH", conflicts_with = "all", value_parser = plain::path())]
    pub path: Option<PathBuf>,
    /// List all passports, as without PATH
    #[arg(long)]
    pub all: bool,
    /// Print one JSON object for each passport
    #[arg(long)]
    pub json: bool,
    /// Write the passports as one self-contained page instead
    #[arg(long, value_name = "FILE", conflicts_with = "json", value_parser = plain::path())]
    pub html: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// The best that works here
    Auto,
    /// io_uring
    Uring,
    /// Threads with pread and pwrite
    Pread,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Direction {
    Read,
    Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// Offsets are dealt round-robin to the threads
    Strict,
    /// A request starts when the one before has completed
    Serial,
    /// Requests are issued in order, nothing waits for completion
    Loose,
    /// Whichever thread is free takes the next request
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Io {
    Direct,
    Buffered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pattern {
    Sequential,
    Random,
}

fn parse_request_size(text: &str) -> Result<u32, String> {
    let size = parse_size(text)?;
    if !size.is_power_of_two() || !(REQUEST_SIZE_MIN..=REQUEST_SIZE_MAX).contains(&size) {
        return Err("a request size is a power of two from 4KiB to 64MiB".into());
    }
    u32::try_from(size).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Args, Command};
    use clap::Parser;

    fn storage(line: &str) -> Result<Storage, clap::Error> {
        let line = ["haul", "probe", "storage"].into_iter().chain(line.split(' '));
        match Args::try_parse_from(line)?.command {
            Command::Probe(Probe::Storage(storage)) => Ok(*storage),
            other => panic!("not a probe of storage: {other:?}"),
        }
    }

    /// Goal: lists are read as lists, each item checked.
    #[test]
    fn lists_hold_checked_items() {
        let got =
            storage("--request-size 1MiB,64K --depth 1,256 --order none,strict --io direct /x").unwrap();
        assert_eq!(got.request_size, [1 << 20, 64 << 10]);
        assert_eq!(got.depth, [1, 256]);
        assert_eq!(got.order, [Order::None, Order::Strict]);
        assert_eq!(got.io, [Io::Direct]);
        assert!(got.pattern.is_empty() && got.direction.is_empty());
        for line in [
            "--request-size 3M /x",
            "--request-size 1M,2K /x",
            "--request-size 128M /x",
            "--depth 0 /x",
            "--depth 257 /x",
            "--depth 1,, /x",
            "--order sorted /x",
            "--io both /x",
            "--time 0s /x",
            "--size 0 /x",
        ] {
            assert!(storage(line).is_err(), "{line}");
        }
    }
}
