//! The command line of `haul probe path`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args as ClapArgs;

use super::{parse_duration, parse_size};

#[derive(ClapArgs, Debug)]
#[command(after_help = AFTER)]
pub struct Path {
    /// What would be copied, as for haul cp: PATH, HOST:PATH or USER@HOST:PATH
    ///
    /// Its storage is read: a large file of it where there is one, which nothing is written for; else a
    /// scratch file without a name beside it. null://SIZE is no storage.
    #[arg(value_name = "SRC")]
    pub source: OsString,

    /// Where it would go, as for haul cp; one of the two may be remote
    ///
    /// Its storage is written: a scratch file without a name, in the directory or the nearest parent that is
    /// there. null:// is no storage.
    #[arg(value_name = "DST")]
    pub destination: OsString,

    /// End within this time, as 60s or 10m
    ///
    /// Default: 90s, or 30s with --quick; it counts from when the two ends are joined.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub time: Option<Duration>,

    /// Most bytes to read and write at each storage
    ///
    /// Default: 4GiB, or 1GiB with --quick; a quarter of it is the scratch file.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub max_bytes: Option<u64>,

    /// Take a third of the time and a quarter of the bytes
    ///
    /// Caches of storage and long networks may then look better, or worse, than they are.
    #[arg(long)]
    pub quick: bool,

    /// Load network file systems, which others share
    #[arg(short, long)]
    pub yes: bool,

    #[command(flatten)]
    pub far: super::far::Far,

    #[command(flatten)]
    pub forms: super::forms::Forms,

    /// Do not keep what was found as passports of storage and network
    ///
    /// Default: each end keeps that of its storage, and this one that of the network; copies start with them.
    #[arg(long)]
    pub no_save: bool,
}

const AFTER: &str = "\
Exit codes: 0 complete; 1 failed, as when an end cannot be reached or written to; 2 wrong usage, or a network file system \
without --yes; 130 or 143 interrupted. Scratch files are gone after each of them.";
