//! The command line of `haul volume`.
//!
//! In: words. Out: what each of its commands was told, each value checked on its own. Left out: whether the
//! servers of a volume fit each other.

use std::time::Duration;

use clap::{ArgAction, Args as ClapArgs, Subcommand};
use haul_core::volume::layout::Placement;
use haul_volume::access::{check_name, without_scheme};

use super::far::{self, SshCommand, parse_ssh};
use super::{parse_duration, parse_object_size, parse_patience, parse_size, plain, protect, rate};

/// Most servers of a volume.
const SERVERS_MAX: usize = haul_core::volume::catalog::SERVERS_MAX;

#[derive(Subcommand, Debug)]
pub enum Volume {
    /// Make a volume: start its servers and its catalog
    #[command(override_usage = "haul volume create [OPTIONS] NAME --server HOST:DIR,...\n       \
              haul volume create [OPTIONS] NAME --hosts 'n[01-04]' --root DIR")]
    Create(Box<Create>),
    /// List the volumes that are known here, or what is in one
    Ls(Ls),
    /// Say what an entry of a volume is
    Stat(Entry),
    /// Remove files of a volume
    Rm(Rm),
    /// Look whether the servers of a volume answer
    Health(One),
    /// Bring what has no home outside of a volume to a file system
    Drain(Box<Drain>),
    /// Hold the catalog of a volume against what its servers have
    Fsck(Fsck),
    /// Write an access to a volume for those who shall only read it
    Access(AccessOf),
    /// Start those servers of a volume that do not run
    Start(Begins),
    /// End the servers of a volume; what is in it stays
    Stop(Begins),
    /// End the servers of a volume and remove what is in it
    Destroy(Destroy),
}

#[derive(ClapArgs, Debug)]
#[command(after_help = CREATE_AFTER)]
pub struct Create {
    /// What the volume is called here: letters of ASCII, digits, `-`, `_`, `.`
    ///
    /// What whoever uses it holds, its key among it, is written to $XDG_STATE_HOME/haul/volumes/NAME, else to
    /// ~/.local/state/haul/volumes/NAME: whoever can read that can do everything with the volume. See
    /// docs/volumes.md.
    #[arg(value_name = "NAME", value_parser = parse_name)]
    pub name: String,

    /// Storage servers, each an empty or missing directory: HOST:DIR, or /DIR on this host; several with
    /// commas, or given several times
    #[arg(long, value_name = "HOST:DIR,...", value_delimiter = ',', value_parser = parse_place,
          required_unless_present = "hosts", conflicts_with = "hosts")]
    pub server: Vec<Place>,

    /// Hosts of storage servers, as 'n[01-04,7],m1'; each serves the directory of --root
    #[arg(long, value_name = "HOSTS", value_parser = parse_hosts, requires = "root")]
    pub hosts: Option<Hosts>,

    /// The directory of each of --hosts
    #[arg(long, value_name = "DIR", value_parser = plain::path(), requires = "hosts")]
    pub root: Option<std::path::PathBuf>,

    /// Where the catalog is [default: beside the first server, in DIR/catalog]
    #[arg(long, value_name = "HOST:DIR", value_parser = parse_place)]
    pub catalog: Option<Place>,

    /// Bytes of a stripe, a power of two from 64KiB to 64MiB
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = parse_stripe)]
    pub stripe: u32,

    /// How new files lie on the servers: round-robin, stripes in turns; partitioned, each in as many parts as
    /// there are servers, where it is known how long it will be (as in copies); given, as programs say of
    /// files that they make, and in turns where nobody says it
    #[arg(long, value_name = "HOW", default_value = "round-robin", value_parser = parse_placement)]
    pub placement: String,

    /// Remote shell and its arguments, as one word, without anybody who answers it: -e 'ssh -p 2222 -i key'
    #[arg(short = 'e', long = "ssh", visible_alias = "rsh", value_name = "CMD", value_parser = parse_ssh,
          conflicts_with = "launch")]
    pub ssh: Option<SshCommand>,

    /// In place of a remote shell, what starts a program on a host and stays with it, as one word, `{host}`
    /// in it is the host: --launch 'srun -N1 -n1 --overlap -w {host}'. haul must lie at the same path there
    #[arg(long, value_name = "CMD", value_parser = parse_launch)]
    pub launch: Option<SshCommand>,

    /// Path of haul at the hosts [default: the one in the PATH, else the pushed one]
    #[arg(long, value_name = "PATH", value_parser = plain::path())]
    pub remote_haul: Option<std::path::PathBuf>,

    /// Never send the haul program itself to a host
    #[arg(long)]
    pub no_push: bool,

    /// All of it may take so long
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = parse_duration)]
    pub within: Duration,

    /// Print what was made as one JSON object
    #[arg(long)]
    pub json: bool,
}

const CREATE_AFTER: &str = "\
Exit codes: 0 done; 1 failed, and nothing is left of what was begun; 2 wrong usage; 130 or 143 interrupted, as 1.";

#[derive(ClapArgs, Debug)]
pub struct Ls {
    /// A volume, or a directory in one [default: all volumes that are known here]
    #[arg(value_name = "NAME[/PATH]")]
    pub path: Option<String>,

    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,
}

#[derive(ClapArgs, Debug)]
pub struct Entry {
    /// A file or directory in a volume
    #[arg(value_name = "NAME/PATH")]
    pub path: String,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(ClapArgs, Debug)]
#[command(
    after_help = "Exit codes: 0 all were removed; 1 none was; 2 wrong usage, and nothing was removed; 3 some were not, each of \
                  which is named."
)]
pub struct Rm {
    /// Files in volumes
    #[arg(value_name = "NAME/PATH", required = true)]
    pub paths: Vec<String>,

    /// Directories too, with all that is in them
    #[arg(short, long)]
    pub recursive: bool,
}

#[derive(ClapArgs, Debug)]
#[command(after_help = "Exit codes: 0 all of them answer; 1 one does not, or it failed; 2 wrong usage.")]
pub struct One {
    /// The volume
    #[arg(value_name = "NAME", value_parser = parse_name)]
    pub name: String,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(ClapArgs, Debug)]
#[command(after_help = DRAIN_AFTER)]
pub struct Drain {
    /// The volume, which may be in use
    #[arg(value_name = "NAME", value_parser = parse_name)]
    pub name: String,

    /// Where to: its files come into that directory by the names that they have in the volume
    ///
    /// As the destination of `haul cp`: PATH, HOST:PATH or ftp://SERVER/PATH; not a volume.
    #[arg(long, value_name = "DST")]
    pub to: std::ffi::OsString,

    /// Also what has a home already, here or elsewhere
    #[arg(long)]
    pub all: bool,

    /// Bring also what may replace something newer
    ///
    /// Files whose home at DST was written since they came from it, which are named and left else; and all,
    /// where servers hold files that the catalog does not know, as when it was brought back from an older
    /// copy.
    #[arg(long)]
    pub force: bool,

    /// Say what would be brought, and how much; change nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,

    /// Write a line of each entry that is brought to stdout, as `haul cp -i` does; with -n, that would be
    #[arg(short, long = "itemize-changes", action = ArgAction::Count, conflicts_with = "json")]
    pub itemize_changes: u8,

    /// Keep owner and group where that is allowed
    #[arg(short, long)]
    pub archive: bool,

    /// Name each entry that was brought and, at the end, the values that haul chose
    #[arg(short, long, action = ArgAction::Count, conflicts_with = "quiet")]
    pub verbose: u8,

    /// Print nothing but errors
    #[arg(short, long)]
    pub quiet: bool,

    /// Write events as JSON lines to stdout, as `haul cp` does
    #[arg(long)]
    pub json: bool,

    /// Write one JSON line per entry that failed: path, stage, errno, text
    #[arg(long, value_name = "FILE", value_parser = plain::path())]
    pub failures: Option<std::path::PathBuf>,

    /// Send no faster than this, as 100MiB/s or 1Gbit/s
    #[arg(long, visible_alias = "bwlimit", value_name = "RATE", value_parser = rate::parse_rate)]
    pub rate: Option<u64>,

    /// Data connections, 1 to 64
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub streams: Option<u16>,

    /// Most payload in memory at each end, as 512MiB or 2G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,

    /// How long a network or a server that is down is waited for, as 90s or 5m
    #[arg(long, value_name = "TIME", value_parser = parse_patience)]
    pub patience: Option<u32>,

    /// Stop after this time, as 3h50m, as Ctrl-C would; the same command goes on later
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub stop_after: Option<Duration>,

    #[command(flatten)]
    pub far: far::Far,

    #[command(flatten)]
    pub protection: protect::Protection,
}

const DRAIN_AFTER: &str = "\
Exit codes: as of `haul cp`. A file that is written while it is brought has no home, and the same command brings it once more. What is not \
in the volume any more is not removed at DST.";

#[derive(ClapArgs, Debug)]
#[command(after_help = FSCK_AFTER)]
pub struct Fsck {
    /// The volume, which may be in use
    #[arg(value_name = "NAME", value_parser = parse_name)]
    pub name: String,

    /// Remove bytes that no entry of the catalog has, and nothing else
    #[arg(long)]
    pub repair: bool,

    /// Print one JSON object a line: of each fault, and of what was looked at
    #[arg(long)]
    pub json: bool,
}

const FSCK_AFTER: &str = "\
Exit codes: 0 nothing is wrong; 1 something is, or somebody was not reached; 2 wrong usage. See docs/volumes.md.";

#[derive(ClapArgs, Debug)]
#[command(after_help = ACCESS_AFTER)]
pub struct AccessOf {
    /// The volume
    #[arg(value_name = "NAME", value_parser = parse_name)]
    pub name: String,

    /// Whoever holds it reads all that is in the volume, and changes nothing
    #[arg(long)]
    pub read_only: bool,

    /// The file to write, which must not be there; its last name is what the volume is called where it is
    /// used
    #[arg(value_name = "FILE", value_parser = plain::path())]
    pub file: std::path::PathBuf,
}

const ACCESS_AFTER: &str = "\
Exit codes: 0 done; 1 failed; 2 wrong usage. The file is used from $XDG_STATE_HOME/haul/volumes or ~/.local/state/haul/volumes of \
whoever reads, where it must be his own, of mode 600. The access that `haul volume create` wrote is for everything, and copied as it is. \
See docs/volumes.md.";

#[derive(ClapArgs, Debug)]
pub struct Begins {
    /// The volume
    #[arg(value_name = "NAME", value_parser = parse_name)]
    pub name: String,

    /// All of it may take so long
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = parse_duration)]
    pub within: Duration,

    /// Print what was done as one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(ClapArgs, Debug)]
pub struct Destroy {
    /// The volume
    #[arg(value_name = "NAME", value_parser = parse_name)]
    pub name: String,

    /// Also if there are files in it that have no home outside of it
    #[arg(long)]
    pub yes: bool,

    /// All of it may take so long
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = parse_duration)]
    pub within: Duration,

    /// Print what was done as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A directory of a host; `None`: of this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub host: Option<String>,
    pub dir: String,
}

/// Hosts, written out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts(pub Vec<String>);

/// `NAME`, `vol://NAME` or `vol://NAME/`.
fn parse_name(text: &str) -> Result<String, String> {
    let bare = without_scheme(text);
    let name = if bare.len() < text.len() { bare.strip_suffix('/').unwrap_or(bare) } else { bare };
    check_name(name).map(|()| name.to_owned()).map_err(|error| error.to_string())
}

/// `HOST:DIR`, `[::1]:DIR` or `/DIR`.
fn parse_place(text: &str) -> Result<Place, String> {
    let wrong = || "a server is HOST:DIR, or /DIR on this host".to_owned();
    if text.starts_with('/') {
        return Ok(Place { host: None, dir: text.into() });
    }
    let from = text.find(']').filter(|_| text.contains('[')).unwrap_or(0);
    let (host, dir) = text.split_at(from + text[from..].find(':').ok_or_else(wrong)?);
    let dir = &dir[1..];
    match host.is_empty() || dir.is_empty() || host.starts_with('-') {
        true => Err(wrong()),
        false => Ok(Place { host: Some(host.into()), dir: dir.into() }),
    }
}

/// The bounds of a stripe are those of an object, which is one or a part of one.
fn parse_stripe(text: &str) -> Result<u32, String> {
    parse_size(text)?;
    parse_object_size(text).map_err(|_| "a stripe has a power of two of bytes, from 64KiB to 64MiB".into())
}

fn parse_placement(text: &str) -> Result<String, String> {
    match Placement::from_word(text) {
        Some(_) => Ok(text.into()),
        None => Err("round-robin, partitioned and given are the placements that there are".into()),
    }
}

fn parse_launch(text: &str) -> Result<SshCommand, String> {
    let command = parse_ssh(text)?;
    match command.0.iter().skip(1).any(|word| word.contains("{host}")) {
        true => Ok(command),
        false => Err("it does not say where the host goes: {host}, as in 'srun -N1 -n1 -w {host}'".into()),
    }
}

/// A list of hosts as batch systems write it, with one range in brackets each.
fn parse_hosts(text: &str) -> Result<Hosts, String> {
    let mut hosts = Vec::new();
    let mut depth = 0;
    let words = text.split(|c: char| {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    for word in words {
        let wrong = || format!("'{word}' is no list of hosts, as n[01-04,7] is");
        let good = |part: &str| part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.@".contains(c));
        let Some((head, rest)) = word.split_once('[') else {
            if word.is_empty() || word.starts_with('-') || !good(word) {
                return Err(wrong());
            }
            hosts.push(word.to_owned());
            continue;
        };
        let (ranges, tail) = rest.split_once(']').ok_or_else(wrong)?;
        if head.is_empty() || head.starts_with('-') || !good(head) || !good(tail) {
            return Err(wrong());
        }
        for range in ranges.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let number = |text: &str| text.parse::<u32>().ok().filter(|_| !text.starts_with('+'));
            let (from, to) = number(first).zip(number(last)).filter(|(a, b)| a <= b).ok_or_else(wrong)?;
            for number in from..=to {
                hosts.push(format!("{head}{number:0width$}{tail}", width = first.len()));
                if hosts.len() > SERVERS_MAX {
                    return Err(format!("a volume has at most {SERVERS_MAX} servers"));
                }
            }
        }
    }
    Ok(Hosts(hosts))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: lists of hosts are written out as batch systems do, and what is none is refused.
    #[test]
    fn hosts_are_written_out() {
        let hosts = |text| parse_hosts(text).map(|hosts| hosts.0.join(" "));
        assert_eq!(hosts("n[01-04,7],m1").as_deref(), Ok("n01 n02 n03 n04 n7 m1"));
        assert_eq!(hosts("u@a[8-11].x").as_deref(), Ok("u@a8.x u@a9.x u@a10.x u@a11.x"));
        for text in
            ["", "a,", "n[", "n[]", "n[2-1]", "n[a]", "[1-2]", "-x", "-x[1]", "a b", "n[0-99999]", "n[+1]"]
        {
            assert!(hosts(text).is_err(), "{text}");
        }
    }

    /// Goal: a directory on a host or on this one is told apart, and no host can be an option.
    #[test]
    fn places_are_read() {
        let place = |text| parse_place(text).map(|place| (place.host.unwrap_or_default(), place.dir));
        let pair = |a: &str, b: &str| Ok((a.to_owned(), b.to_owned()));
        assert_eq!(place("/a:b"), pair("", "/a:b"));
        assert_eq!(place("u@h:/a:b"), pair("u@h", "/a:b"));
        assert_eq!(place("h:a"), pair("h", "a"));
        assert_eq!(place("[::1]:/a"), pair("[::1]", "/a"));
        for text in ["", "a", ":", "h:", ":/a", "-oX:/a"] {
            assert!(place(text).is_err(), "{text}");
        }
    }

    /// Goal: each placement has its word, and nothing else is one; a launcher says where the host goes.
    #[test]
    fn placements_and_launchers_are_read() {
        assert!(["round-robin", "partitioned", "given"].iter().all(|word| parse_placement(word).is_ok()));
        assert!(parse_placement("Given").is_err_and(|why| why.contains("round-robin")));
        assert!(parse_launch("srun -w {host}").is_ok() && parse_launch("srun").is_err());
    }
}
