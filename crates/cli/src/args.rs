//! The command line: what may be typed, what it means, and the texts of `--help`.
//!
//! In: words. Out: what each command was told, each value checked on its own. Which commands there are is in
//! `command.rs`. What concerns two values at once is checked in `command::copy`. Left out: endpoints, see
//! `haul::endpoint`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args as ClapArgs, ValueEnum, ValueHint};
use haul::api::SSH_CHANNELS_MAX;
use haul::options::{LayoutChoice, Policy, Range, Stripes};
use haul::size::parse_size;

pub mod ctl;
pub mod dd;
pub mod far;
pub mod forms;
pub mod given;
pub mod globus;
pub mod hidden;
pub mod kept;
pub mod network;
pub mod path;
pub mod plain;
pub mod probe;
pub mod protect;
mod range;
mod rate;
pub mod retry;
pub mod rsync;
pub mod storage;
pub mod top;
pub mod tree;
pub mod volume;

/// Most data streams.
const STREAMS_MAX: i64 = 64;
/// Most reading or writing threads: more than any storage target has been seen to reward.
const THREADS_MAX: i64 = 256;
/// Object sizes that the wire allows, bytes.
pub const OBJECT_SIZE_MIN: u64 = 64 << 10;
pub const OBJECT_SIZE_MAX: u64 = 64 << 20;
/// Blocks that go to several nodes, bytes, unless somebody says how long.
const STRIPE_BLOCK: u64 = 1 << 20;
/// What is said of `--schedule` behind its first line.
const SCHEDULE_HELP: &str = "Matters where the source's files lie on several storage targets. adaptive goes round those that are slow at the moment, \
     and has nothing to set; the others are there to compare with: targets in turns, one file after another, and turns that \
     pass over a target M times whose mean service time over W milliseconds is above T milliseconds.";

const SCHEDULE_IN_SHORT: &str = "Which part of which file is read next";

/// The everyday help has no policies, for nobody needs one; the long one has those of the list.
fn schedule_help() -> String {
    format!("{SCHEDULE_IN_SHORT}: {}\n\n{SCHEDULE_HELP}", Policy::forms("or"))
}

#[derive(ClapArgs, Debug)]
#[command(override_usage = "haul cp [OPTIONS] SRC... DST", after_help = CP_AFTER)]
pub struct Cp {
    #[command(flatten)]
    pub paths: Paths,

    /// Copy directories with all that is in them
    ///
    /// Default: a directory as a source is an error, so that a whole tree never moves by accident.
    #[arg(short, long, overrides_with = "recursive")]
    pub recursive: bool,

    /// Like -r, and keep owner and group where that is allowed, and devices, FIFOs and sockets (-D)
    ///
    /// Mode, times and symlinks are always kept; ACLs, extended attributes and hard links are not, as rsync
    /// -a keeps none of them either (see -A, -X and -H). Default: files belong to whoever writes them.
    #[arg(short, long, overrides_with = "archive")]
    pub archive: bool,

    #[command(flatten)]
    pub kept: kept::Kept,

    #[command(flatten)]
    pub given: given::Given,

    /// Say what would be copied where, and how much; change nothing
    ///
    /// Looks at the destination: what is there already is not listed. The list goes to stdout: the first ten,
    /// with -i or -v all. Parts of files that an interrupted run left are not looked at.
    #[arg(short = 'n', long, overrides_with = "dry_run", conflicts_with = "manifest")]
    pub dry_run: bool,

    /// List on stdout what changes of each entry, as rsync does: >f.st...... path
    ///
    /// In a dry run and in a real one. `<` sent, `>` received or copied here, `c` made, `h` a hard link (of
    /// what stands behind =>), `.` metadata alone; f, d, L, D (device) or S (FIFO, socket); then c target of
    /// a link, s size, t time, p mode, o owner, g group, a ACL, x extended attributes, or + for all of
    /// something new. Given twice, or with -vv, what is unchanged is listed too. Not with --json, which says
    /// the same of each entry with -v.
    #[arg(short, long = "itemize-changes", action = ArgAction::Count, conflicts_with = "json")]
    pub itemize_changes: u8,

    /// End each entry of the list with NUL instead of a line end, names as they are
    ///
    /// With -i or -n; then all entries are listed.
    #[arg(short = '0', long, conflicts_with = "json")]
    pub print0: bool,

    /// Name each copied entry and, at the end, the values that haul chose
    ///
    /// Given twice, unchanged and skipped entries are named too.
    #[arg(short, long, action = ArgAction::Count, conflicts_with = "quiet")]
    pub verbose: u8,

    /// Print nothing but errors
    #[arg(short, long, overrides_with = "quiet")]
    pub quiet: bool,

    /// Copy files that look unchanged, too
    ///
    /// Default: a file with the same size and modification time is left alone, which makes a rerun cheap.
    #[arg(long, conflicts_with_all = ["no_clobber", "update"])]
    pub force: bool,

    /// Never replace an existing file
    ///
    /// Default: a file that differs is replaced, in one step; readers see the old or the new content.
    #[arg(long, conflicts_with = "update")]
    pub no_clobber: bool,

    /// Leave files alone that are newer at the destination
    ///
    /// Default: a file that differs is replaced, whatever its age, so that the copy equals the source.
    #[arg(short, long)]
    pub update: bool,

    #[command(flatten)]
    pub tree: tree::Tree,

    /// Copy this part of one source file: LEN bytes from OFFSET on, as 1GiB:64MiB; OFFSET: goes to its end
    ///
    /// DST becomes a file of just these bytes, whole or not at all, unless --to says where in it they go.
    /// Default: all of each source.
    #[arg(long, value_name = "OFFSET:LEN", value_parser = range::parse_range)]
    pub range: Option<Range>,

    /// Write the part at this offset of DST, and leave what else that holds as it is
    ///
    /// Needs --range, and writes in place (see --in-place). A DST that is missing is made. Its times and mode
    /// stay its own. At an FTP server without ESTO together with --in-place alone. Default: the part is all
    /// of DST.
    #[arg(long, value_name = "OFFSET", value_parser = range::parse_offset, requires = "range")]
    pub to: Option<u64>,

    /// Write into the files that stand at the destination, without a second copy and a rename
    ///
    /// For destinations that have no room for two versions of a file, or whose snapshots keep both. Gives up
    /// that a file is whole or not at all: one that is interrupted is partly new, until the same command has
    /// completed it. Default: a new file takes the name when it is whole.
    #[arg(long, visible_alias = "inplace", conflicts_with_all = ["no_clobber", "update"])]
    pub in_place: bool,

    /// What becomes of a file that changes while it is copied
    ///
    /// Default: retry. No file is copied half old and half new: one that changed is read again at the end,
    /// and fails if it changes once more. prefix is for files that only grow, logs and streams of detectors:
    /// what a file had at its start is copied, and read a second time where it grew; the next run copies it
    /// anew. Not for databases, nor for whatever is written in its place.
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Changed::Retry)]
    pub changed: Changed,

    /// Within one file system, share the blocks of the source's files
    ///
    /// Default: auto. Files of more than 256 KiB are cloned where the file system does that (XFS, btrfs),
    /// which takes no time and no room until one of the two is written to. What is cloned is not read, so
    /// nothing of it is hashed or checked; what --manifest, --verify=disk, --range or --in-place want is
    /// read, as is what cannot be cloned. always: every file that has bytes is cloned, or fails. never: every
    /// file is read and hashed, and what is written lies by itself.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Reflink::Auto)]
    pub reflink: Reflink,

    /// What a finished file is worth
    ///
    /// The default costs syncs, many in parallel, for a report of success should survive a power cut.
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = Durability::Disk)]
    pub durability: Durability,

    /// Data connections, 1 to 64
    ///
    /// Default: as many as the path's length and the buffers of both ends need; -v says what and why.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=STREAMS_MAX))]
    pub streams: Option<u16>,

    /// Send no faster than this, all connections together, as 100MiB/s or 1Gbit/s
    ///
    /// A unit is required: B/s, KiB/s MiB/s GiB/s (binary), KB/s MB/s GB/s, and bit/s, Kbit/s Mbit/s Gbit/s
    /// (decimal).
    /// Default: no limit. The summary says when this held the rate down.
    #[arg(long, visible_alias = "bwlimit", value_name = "RATE", value_parser = rate::parse_rate)]
    pub rate: Option<u64>,

    /// Bytes under way that each connection's buffers shall hold, as 16MiB
    ///
    /// Default: the kernel's own growth, which is better wherever its limits allow enough; where they do not,
    /// more connections make up for it. The kernel cuts what is above its limits.
    #[arg(long, value_name = "SIZE", value_parser = rate::parse_window)]
    pub window: Option<u64>,

    /// Congestion control of the data connections, as bbr or cubic
    ///
    /// Default: the system's, unless the path speaks against it: no pacing within one room, and pacing where
    /// a long path loses packets. One that the sending host does not allow is an error that names those that
    /// it does.
    #[arg(long, value_name = "NAME", value_parser = rate::parse_control)]
    pub congestion: Option<String>,

    /// Most payload in memory at each end, as 512MiB or 2G
    ///
    /// Default: what the path needs to stay full, at most an eighth of the RAM or a quarter of the cgroup's
    /// limit. The summary says when this held the rate down.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,

    /// Threads that read at the source, 1 to 256
    ///
    /// Default: chosen from the processors and the storage.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=THREADS_MAX))]
    pub readers: Option<u16>,

    /// Threads that write at the destination, 1 to 256
    ///
    /// Default: chosen from the processors and the storage.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=THREADS_MAX))]
    pub writers: Option<u16>,

    /// Unit of sending and of resuming, a power of two from 64KiB to 64MiB
    ///
    /// Default: 4MiB, large enough to cost little per object and small enough to lose little.
    #[arg(long, value_name = "SIZE", value_parser = parse_object_size)]
    pub object_size: Option<u32>,

    /// Which end opens the data connections: source, sink or auto
    ///
    /// Default: auto: this end dials the far one; where its port cannot be reached within 3 s, the far end
    /// dials this one; where that fails too, data goes through the ssh connection. With source or sink only
    /// that end dials, and it is an error if that way is closed.
    #[arg(long, value_name = "END", default_value = "auto", hide_default_value = true)]
    pub dial: Dial,

    #[command(flatten)]
    pub far: far::Far,

    /// Channels of the ssh connection, where all data goes through it
    ///
    /// Default: as many as the path's round trip needs, at most 10, which is what sshd allows (MaxSessions);
    /// 1 is the first one alone. More need an ssh that can share its connection. None of them logs in again.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(SSH_CHANNELS_MAX)))]
    pub ssh_channels: Option<u16>,

    /// Keep the journal in this directory of the destination's host
    ///
    /// Default: in the destination itself, so that any host of that site can resume.
    #[arg(long, value_name = "DIR", value_parser = plain::path())]
    pub state: Option<PathBuf>,

    /// Write the BLAKE3 hash of each file, for `b3sum --check`
    ///
    /// Its names are relative to DST: cd DST && b3sum --check FILE. Written when the run ends complete or
    /// partial; - is stdout. Names that b3sum cannot check go to FILE.json, which must be free or a list of
    /// an earlier run. Not in a source.
    #[arg(long, value_name = "FILE", value_parser = plain::path())]
    pub manifest: Option<PathBuf>,

    /// Write one JSON line per entry that failed: path, stage, errno, text
    ///
    /// Each as it comes; - is stdout. The last line has "whole":true if all that was not copied is listed.
    /// Default: the first 20 are shown on stderr, with -v all, and the rest is counted.
    #[arg(long, value_name = "FILE", value_parser = plain::path())]
    pub failures: Option<PathBuf>,

    /// Write events as JSON lines to stdout, the last one is the summary
    ///
    /// The schema is docs/events.schema.json. Each entry has a line with -v only; those that fail always have
    /// one. Texts for people stay on stderr; -q silences those.
    #[arg(long)]
    pub json: bool,

    /// Show how the storage targets of both ends stand, below the progress line
    ///
    /// Needs a terminal; from another one `haul top` shows the same. Matters where files lie on several
    /// storage targets.
    #[arg(long, conflicts_with_all = ["quiet", "dry_run"])]
    pub watch: bool,

    /// Stop after this time, as 3h50m, as Ctrl-C would; the same command goes on later
    ///
    /// Default: run to the end. Meant for the limits of a batch system.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub stop_after: Option<Duration>,

    /// How long a network that is down is waited for, as 90s or 5m; 0s: not at all
    ///
    /// Default: 5m. Lost connections are replaced meanwhile and nothing is lost; after that time the run
    /// fails, and the same command goes on later. Has no effect where all goes through ssh: what ssh loses is
    /// lost. Of an FTP server: how long it may be silent, 30s by itself and 1s at least. Of an ssh that
    /// nobody sits before: how long it may say nothing before the far end speaks, 2m by itself and 10s at
    /// least.
    #[arg(long, value_name = "TIME", value_parser = parse_patience)]
    pub patience: Option<u32>,

    #[command(flatten)]
    pub retry: retry::Retry,

    /// While the other end stalls, read ahead into a file on flash in this directory (of the source's host)
    ///
    /// Default: none. Used only where storage at the source is what the copy else waits for, which the report
    /// says. The file has no name and is gone with the copy.
    #[arg(long, value_name = "DIR", value_parser = plain::path())]
    pub spill: Option<PathBuf>,

    /// Bytes that the spill file may have
    ///
    /// Default: 16GiB, or a quarter of what is free there if that is less.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "spill")]
    pub spill_size: Option<u64>,

    // The policies are those of a list, which tells their names.
    #[arg(
        long,
        value_name = "POLICY",
        default_value_t,
        help = SCHEDULE_IN_SHORT,
        long_help = schedule_help()
    )]
    pub schedule: Policy,

    /// How new files come to lie on the destination's storage targets: auto, keep, or copy
    ///
    /// auto leaves that to the destination's file system: what its directory asks for. keep gives a file that
    /// replaces one the stripe size and count of that one. copy gives the source's stripe size and count, on
    /// Lustre and CephFS; what cannot be had is no failure, and the report says so. None of them chooses
    /// which targets.
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = parse_layout)]
    pub layout: LayoutChoice,

    /// How a file goes over several nodes of two GridFTP servers: blocked, blocked:SIZE or partitioned
    ///
    /// Default: as the servers like, blocks of 1 MiB say. blocked sends blocks of this size to one node after
    /// the other, partitioned one part of the file to each.
    #[arg(long, value_name = "HOW", value_parser = parse_stripes)]
    pub stripes: Option<Stripes>,

    #[command(flatten)]
    pub protection: protect::Protection,

    #[command(flatten)]
    pub storage: storage::Storage,
}

/// The sources and the destination. Options may stand anywhere between them: clap counts the words of each
/// stretch by itself, so that "at least two" must be two arguments.
#[derive(ClapArgs, Debug)]
pub struct Paths {
    /// What to copy: PATH, HOST:PATH, USER@HOST:PATH or ftp://SERVER/PATH
    ///
    /// A colon before the first slash means a host, reached through your own ssh; [::1]:PATH for an IPv6
    /// address; ./NAME for a local file with a colon in its name. ftp://[USER[:PASSWORD]@]HOST[:PORT]/PATH is
    /// an FTP server's, which needs no haul; a login without a password is looked up in ~/.netrc. Where SRC
    /// and DST are at FTP servers, these move the data between them. vol://NAME/PATH is in a volume that this
    /// user knows (haul volume ls). `data` gives DST/data, `data/` gives its contents in DST, whether or not
    /// DST exists.
    #[arg(value_name = "SRC", required = true, value_hint = ValueHint::AnyPath)]
    first: OsString,

    /// Further sources, all on the same side, and last where to
    #[arg(value_name = "DST", required = true, num_args = 1.., value_hint = ValueHint::AnyPath)]
    others: Vec<OsString>,
}

impl Paths {
    /// In the order in which they were typed; at least two.
    pub fn all(&self) -> Vec<OsString> {
        [&self.first].into_iter().chain(&self.others).cloned().collect()
    }
}

const CP_AFTER: &str = "\
Exit codes: 0 complete; 1 failed; 2 wrong usage; 3 some entries failed, the others are complete; \
4 the same, and all of them had vanished from the source; 130 or 143 interrupted. After any of them, running the same command again moves only what is missing, \
from an FTP server the files that are not finished.";

#[derive(ClapArgs, Debug)]
pub struct Clean {
    /// Destination directory of earlier copies, on this host
    #[arg(value_name = "DST", value_parser = plain::word())]
    pub root: OsString,
    /// List only: delete nothing
    ///
    /// Default: delete the journals and temporary files of dead jobs, which then cannot be resumed. Running
    /// jobs are never touched.
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Look for the journals in this directory, where the copies were told to keep them
    #[arg(long, value_name = "DIR", value_parser = plain::path())]
    pub state: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(ClapArgs, Debug)]
pub struct LayoutArgs {
    /// Regular files on this host
    #[arg(value_name = "FILE", required = true, value_parser = plain::word())]
    pub files: Vec<OsString>,
    /// Print one JSON object a line for each file
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Durability {
    /// Success means that everything is on media under its name
    Disk,
    /// No syncs: faster, but a power cut may lose what was reported
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Changed {
    /// It fails, at once
    Fail,
    /// It is tried once more when all else was read, then it fails
    Retry,
    /// One that only grows is copied up to the length that it had at its start, others fail; not for
    /// databases
    Prefix,
}

/// Whether files are cloned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Reflink {
    /// Where that can be done, and nothing wants them read
    Auto,
    /// Or they fail
    Always,
    /// All are read
    Never,
}

/// The end that dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Dial {
    /// This end, then the far one, then ssh
    Auto,
    /// Where the data come from
    Source,
    /// Where the data go to
    Sink,
}

fn parse_layout(text: &str) -> Result<LayoutChoice, String> {
    match text {
        "auto" => Ok(LayoutChoice::Auto),
        "keep" => Ok(LayoutChoice::Keep),
        "copy" => Ok(LayoutChoice::Copy),
        _ => Err("auto, keep or copy".into()),
    }
}

fn parse_stripes(text: &str) -> Result<Stripes, String> {
    match text.split_once(':') {
        None if text == "blocked" => Ok(Stripes::Blocked(STRIPE_BLOCK)),
        None if text == "partitioned" => Ok(Stripes::Partitioned),
        Some(("blocked", size)) => match parse_size(size)? {
            size @ 4096.. => Ok(Stripes::Blocked(size)),
            _ => Err("a block has 4KiB at least".into()),
        },
        _ => Err("blocked, blocked:SIZE or partitioned".into()),
    }
}

fn parse_object_size(text: &str) -> Result<u32, String> {
    let size = parse_size(text)?;
    if !size.is_power_of_two() || !(OBJECT_SIZE_MIN..=OBJECT_SIZE_MAX).contains(&size) {
        return Err("an object size is a power of two from 64KiB to 64MiB".into());
    }
    u32::try_from(size).map_err(|error| error.to_string())
}

/// Seconds, at most a day.
fn parse_patience(text: &str) -> Result<u32, String> {
    if text == "0s" {
        return Ok(0);
    }
    let time = parse_duration(text)?;
    match u32::try_from(time.as_secs()) {
        Ok(seconds @ 0..=86_400) => Ok(seconds),
        _ => Err("write a time of at most 24h".into()),
    }
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("no time at all".into()),
        Ok(time) => Ok(time),
        Err(error) => Err(format!("{error}; write it as 90s, 45m or 3h50m")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Args, Command};
    use clap::{CommandFactory, Parser};

    fn cp(line: &[&str]) -> Result<Cp, clap::Error> {
        let line = ["haul", "cp"].iter().chain(line);
        match Args::try_parse_from(line)?.command {
            Command::Cp(cp) => Ok(*cp),
            other => panic!("not cp: {other:?}"),
        }
    }

    /// Goal: clap's own rules hold for our definitions.
    #[test]
    fn definitions_are_sound() {
        Args::command().debug_assert();
    }

    /// Goal: object sizes are powers of two within their bounds; anything else is an error.
    #[test]
    fn object_sizes_are_powers_of_two() {
        for (text, size) in [("64KiB", 64 << 10), ("4M", 4 << 20), ("64MiB", 64 << 20)] {
            assert_eq!(parse_object_size(text), Ok(size));
        }
        for text in ["32KiB", "128MiB", "3M", "4MB", "8192P"] {
            assert!(parse_object_size(text).is_err(), "{text}");
        }
    }

    /// Goal: the letters mean what they mean to rsync users, and contradictions are refused.
    #[test]
    fn options_are_understood_and_contradictions_refused() {
        let got =
            cp(&["-avn", "-e", "ssh -p 2", "--stop-after", "3h50m", "--port=1-2", "a", "b", "h:c"]).unwrap();
        assert!(got.archive && got.dry_run && !got.recursive && got.verbose == 1);
        assert_eq!(got.far.ssh.0, ["ssh", "-p", "2"]);
        assert_eq!(got.stop_after, Some(Duration::from_secs(3 * 3600 + 50 * 60)));
        assert_eq!(got.far.port, Some(far::Ports(1, 2)));
        assert_eq!(got.paths.all(), ["a", "b", "h:c"]);
        assert_eq!(cp(&["--rsh=x y", "a", "b"]).unwrap().far.ssh.0, ["x", "y"]);
        for line in [
            &["a"][..],
            &["-q", "-v", "a", "b"],
            &["--force", "--no-clobber", "a", "b"],
            &["--force", "-u", "a", "b"],
            &["--no-clobber", "-u", "a", "b"],
            &["-n", "--manifest", "m", "a", "b"],
            &["--streams", "0", "a", "b"],
            &["--streams", "65", "a", "b"],
            &["--rate", "100", "a", "b"],
            &["--congestion", "../x", "a", "b"],
            &["--window", "1", "a", "b"],
            &["--patience", "2d", "a", "b"],
            &["--spill-size", "1GiB", "a", "b"],
            &["--durability", "fast", "a", "b"],
            &["--via", "example.org", "a", "b"],
            &["--via", "10.0.0.1,", "a", "b"],
            &["--via", "0.0.0.0", "a", "b"],
            &["--stop-after", "0s", "a", "b"],
            &["--patience", "1", "a", "b"],
        ] {
            assert_eq!(cp(line).expect_err(&format!("{line:?}")).exit_code(), 2);
        }
    }

    /// Goal: options may stand between the paths and behind them, as for cp, scp and rsync; two paths are
    /// needed wherever they stand.
    /// Method: one command in every order; commands that lack a path.
    #[test]
    fn options_stand_anywhere() {
        for line in [
            "-r -e x a b h:c",
            "-r a b -e x h:c",
            "a -r b -e x h:c",
            "a -e x b h:c -r",
            "a b h:c -r -e x",
            "a -e x b -r -- h:c",
        ] {
            let got = cp(&line.split(' ').collect::<Vec<_>>()).expect(line);
            assert_eq!(got.paths.all(), ["a", "b", "h:c"], "{line}");
            assert!(got.recursive && got.far.ssh.0 == ["x"], "{line}");
        }
        for line in [&["-r"][..], &["-r", "a", "-e", "x"], &["a", "-r", "--"]] {
            let error = cp(line).expect_err(&format!("{line:?}"));
            assert!(error.exit_code() == 2 && error.to_string().contains("<DST>..."), "{error}");
        }
        assert_eq!(cp(&["a", "--", "-b", "-c"]).expect("paths").paths.all(), ["a", "-b", "-c"]);
    }

    /// Goal: what the README shows to be typed is understood.
    /// Method: each line of its code blocks that begins with `haul`, without what follows a `#`.
    #[test]
    fn commands_of_the_readme_are_understood() {
        let page = include_str!("../../../README.md");
        let lines = page.split("```").skip(1).step_by(2).flat_map(str::lines);
        let mut commands = 0;
        for line in lines.filter(|line| line.starts_with("haul ")) {
            let words = line.split('#').next().unwrap_or_default().split_whitespace();
            assert!(Args::try_parse_from(words).is_ok(), "{line}");
            commands += 1;
        }
        assert!(commands >= 10, "{commands}");
        assert!(page.contains("haul cp --in-place ") && page.contains("haul cp --range "));
    }

    const BEGIN: &str = "<!-- help: ";
    const END: &str = "<!-- end of help -->\n";

    /// Goal: docs/cli.md shows the help that the program prints.
    /// Method: the marked parts are rendered afresh and compared. After a change of the texts refresh them
    /// with `REFRESH=1 cargo test -p haul-cli help`.
    #[test]
    fn help_is_documented() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
        let found = std::fs::read_to_string(path).unwrap();
        let mut fresh = String::new();
        let mut rest = found.as_str();
        let mut parts = 0;
        while let Some(at) = rest.find(BEGIN) {
            let after = &rest[at + BEGIN.len()..];
            let words = &after[..after.find(" -->").unwrap()];
            let line = words.split(' ').chain(["--help"]);
            let command = Args::command().term_width(100).color(clap::ColorChoice::Never);
            let help = command.try_get_matches_from(line).unwrap_err().to_string();
            let help = help.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
            fresh += &rest[..at];
            fresh += &format!("{BEGIN}{words} -->\n```text\n{help}\n```\n{END}");
            rest = &after[after.find(END).unwrap() + END.len()..];
            parts += 1;
        }
        fresh += rest;
        assert!(parts >= 3);
        if std::env::var_os("REFRESH").is_some() {
            std::fs::write(path, &fresh).unwrap();
        } else {
            assert!(fresh == found, "docs/cli.md is old: REFRESH=1 cargo test -p haul-cli help");
        }
    }
}
