//! The public API: run a copy, watch it, steer it, stop it.
//!
//! In: a [`CopyRequest`], an [`Observer`] that hears what happens, a [`Control`] that can stop and steer it.
//! Out: a [`Summary`]. Nothing here prints or exits.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use haul_core::change::Change;
pub use haul_core::layout::{Component, Layout};
pub use haul_core::schedule::Health;
pub use haul_core::stage::{Processors, Stage, StageTime, others_use_up};
pub use haul_core::tune::rate::RATE_MIN;

pub use crate::board::{Side, Sides, SlowTarget, TargetRow, TargetTable};
pub use crate::control::{Control, Knob, Phase, Setting, State};
pub use crate::endpoint::{Endpoint, EndpointError, Place, PlaceError, Scheme};
pub use crate::storage::sink::OTHERS_DIRS;
pub use crate::storage::sink::clean::age_in_words;
pub use crate::transport::bootstrap::{Dialler, SSH_CHANNELS_MAX, protocol_line};

use crate::job::{Changed, Digest, Durability, Options, Part, Resume, Role, Verify};

/// One copy, as the user asked for it.
#[derive(Clone, Debug)]
pub struct CopyRequest {
    /// At least one; all on the same side.
    pub sources: Vec<Endpoint>,
    pub destination: Endpoint,
    pub options: Options,
    pub remote: RemoteOptions,
    /// Look only: nothing is made or changed at the sink.
    pub dry_run: bool,
    /// Send an [`Event::Entry`] for each entry that ended well.
    pub verbose: bool,
    /// Send [`Event::Targets`].
    pub targets: bool,
    /// Where storage passports are kept on this host, `~/.local/state/haul` say; `None`: none is looked for.
    pub state_home: Option<PathBuf>,
}

/// How the far end is reached and started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteOptions {
    /// The remote shell and its arguments, at least one word.
    pub ssh: Vec<String>,
    /// A `haul` at the far end, instead of the one in its PATH or a pushed one.
    pub remote_haul: Option<PathBuf>,
    /// Never copy the local binary to the far end.
    pub no_push: bool,
    /// Which end opens the connections.
    pub dial: Dialler,
    /// Addresses of the end that listens, instead of the one that ssh reached and those that it names; each is a path for
    /// data. With [`Dialler::Auto`] those that this host has are its own, the others the far end's.
    pub via: Vec<IpAddr>,
    /// Ports that the end that listens may use, first and last.
    pub ports: Option<(u16, u16)>,
    /// A person can answer ssh's questions.
    pub interactive: bool,
    /// Channels of the ssh connection where all data goes through it, 1 to [`SSH_CHANNELS_MAX`]; `None`: chosen.
    pub ssh_channels: Option<u16>,
    /// Directories for ssh's control socket, of which the first is taken that can be this user's alone; without one there is
    /// one channel.
    pub sockets: Vec<PathBuf>,
    /// The program to push; `None`: none can be pushed.
    pub binary: Option<PathBuf>,
}

/// Hears what happens. Called from haul's own threads; must not block.
pub trait Observer: Send + Sync {
    fn event(&self, event: Event);
}

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// One line for people: push, firewall, what was chosen and why.
    Note(String),
    /// Dry run: one of the first mappings. `metadata_only`: of a file whose content would not be copied.
    Plan { source: Vec<u8>, destination: Vec<u8>, bytes: Option<u64>, metadata_only: bool },
    /// About every 200 ms.
    Progress(Progress),
    /// Only if [`CopyRequest::targets`]: how the storage targets of one end stand, about twice a second for each end that tells.
    Targets(TargetTable),
    /// Only if [`CopyRequest::targets`]: this end will not tell of its targets, and why.
    NoTargets { end: Role, why: String },
    /// Only if [`CopyRequest::verbose`]. `change`: what differs at the destination from before this run (in a dry run: would).
    Entry { path: Vec<u8>, kind: EntryKind, end: EntryEnd, change: Change, bytes: u64 },
    /// An entry that was not copied. `errno` is 0 if no system call failed.
    Failed { path: Vec<u8>, stage: String, errno: i32, text: String },
    /// Only if [`Options::manifest`]: the BLAKE3 hash of a file at the destination, and how much that is of, if it was copied.
    Digest { path: Vec<u8>, root: [u8; 32], bytes: Option<u64> },
}

/// What every summary shows of [`Summary::chosen`], by name: what other copies left at the destination, what was left out of
/// the source (files of copies into it, and special files), and what a dry run could not look at.
pub const DEBRIS: &str = "debris";
/// The destination is of this file system, which keeps files in memory alone.
pub const IN_MEMORY: &str = "destination in memory";
pub const LEFT_OUT: &str = "left out";
pub const SKIPPED: &str = "skipped";
pub const UNSEEN: &str = "not looked at";
/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    File,
    Dir,
    Symlink,
}

/// How an entry ended, if it did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryEnd {
    Copied,
    Unchanged,
    Skipped,
}

/// How far a copy is. Counts are since the start of this run.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Sizes of the files that are done, and of the parts of others that are: holes and what was unchanged included.
    pub bytes_done: u64,
    /// What the walk has found so far; final once `counting` is false.
    pub bytes_total: u64,
    pub files_done: u64,
    pub files_total: u64,
    pub unchanged: u64,
    pub failed: u64,
    /// The walk still runs.
    pub counting: bool,
    pub elapsed: Duration,
    /// Data that was moved, also within one host: no holes, nothing unchanged; what was sent again is included.
    pub bytes_sent: u64,
    /// Of `bytes_done`, holes of copied files.
    pub holes: u64,
    /// What holds it up, in words: a storage operation of either end that hangs ("waiting 12 s for the sink's write of
    /// big.dat"), or the network ("waiting 12 s for the network").
    pub waiting: Option<String>,
    /// Parts that an earlier run left are being read; none of that is in `bytes_done` yet.
    pub checking: Option<Checking>,
    /// Somebody paused the copy.
    pub paused: bool,
    /// Data crosses the network unencrypted.
    pub unencrypted: bool,
}

/// The parts of files that an earlier run left are being read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Checking {
    /// Bytes still to be read.
    pub left: u64,
    /// At the rate so far, if that is known.
    pub seconds_left: Option<f64>,
}

/// What became of the parts of files that an earlier run left, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Held {
    /// They were read, and what of them was not as it was left was sent again.
    pub checked: u64,
    pub wrong: u64,
    /// They were believed unread: `resume` is trust.
    pub trusted: u64,
    /// How long the check took; other data moved meanwhile.
    pub seconds: f64,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Everything is where it should be.
    Complete,
    /// Some entries failed, the others are complete.
    Partial,
    /// Ended by an error; can be run again.
    Failed,
    /// Stopped by [`Control::stop`]; can be resumed.
    Interrupted,
}

/// What a run did.
#[derive(Clone, Debug)]
pub struct Summary {
    pub status: Status,
    pub files: u64,
    pub dirs: u64,
    pub symlinks: u64,
    pub unchanged: u64,
    /// Those of the unchanged files whose mode or owner was brought up to date.
    pub amended: u64,
    pub changed: Changed,
    /// With `changed` prefix: of the files that were copied, those that grew meanwhile, and what of them was copied, bytes.
    pub prefixes: u64,
    pub prefix_bytes: u64,
    pub skipped: u64,
    pub failed: u64,
    /// Of these, entries that were gone from the source when they were to be read.
    pub vanished: u64,
    /// Of these, entries that fail again until somebody moves or renames something: their name is taken, or cannot be.
    pub lasting: u64,
    /// The command makes no sense as it stands, and nothing was done.
    pub usage: bool,
    /// Sizes of the files that were copied, bytes: holes and what an earlier run left included.
    pub bytes: u64,
    /// Data that was moved, also within one host: no holes; what was sent again is included.
    pub bytes_sent: u64,
    pub objects_resent: u64,
    pub seconds: f64,
    pub cpu_seconds_near: f64,
    /// `None`: there is no far end, or it did not say.
    pub cpu_seconds_far: Option<f64>,
    /// Most resident memory, bytes.
    pub rss_near: u64,
    pub rss_far: Option<u64>,
    pub streams: u16,
    /// `tls`, `integrity` (data unencrypted), `ssh` or `local`.
    pub protect: String,
    pub digest: Digest,
    pub verify: Verify,
    /// With `verify` disk: how often a file came back wrong from the destination's storage. The first time it is written again,
    /// the second time it fails.
    pub came_back: u64,
    pub resume: Resume,
    pub held: Held,
    /// Where the data went, in words for people.
    pub path: String,
    /// What was asked for; `None`: the destination keeps nothing (`null://`).
    pub durability: Option<Durability>,
    /// Files were written into those that stood at the destination.
    pub in_place: bool,
    /// The part of one file that was copied, if not files as a whole.
    pub part: Option<Part>,
    /// In the order of [`Stage::ALL`].
    pub stages: [StageTime; 5],
    /// Of the source's host and of the sink's, by whomever they were kept busy while payload moved; `None`: not known.
    pub processors: [Option<Processors>; 2],
    /// What haul itself used of these processors over the whole run, 0 to 1.
    pub own_shares: [Option<f64>; 2],
    pub limited_by: Option<Stage>,
    /// What the copy does not carry over, with the number of entries concerned.
    pub not_kept: Vec<(String, u64)>,
    /// Connections from strangers that were turned away.
    pub strays: u64,
    /// An earlier run of this job had left a journal.
    pub resumed: bool,
    /// Of a run that did not come to its end: bytes of unfinished files that a resume finds at the destination.
    pub kept: u64,
    /// Why the run as a whole ended, if not well.
    pub error: Option<String>,
    /// The user's own limit held the rate down.
    pub rate_limited: bool,
    /// The memory limit held the rate down.
    pub memory_limited: bool,
    /// Values that haul chose, by name, with the reason.
    pub chosen: Vec<(String, String)>,
    /// Storage targets that were congested or hung for a noticeable time, the worst of each end; and how many more.
    pub slow_targets: Vec<SlowTarget>,
    pub slow_others: u64,
}

impl Summary {
    /// The file system of the destination, if it keeps files in memory alone.
    pub fn in_memory(&self) -> Option<&str> {
        self.chosen.iter().find(|(name, _)| name == IN_MEMORY).map(|(_, kind)| kind.as_str())
    }

    /// The host that limited the rate had no processor left, and it was other programs that had them: what haul itself used.
    pub fn others_busy(&self) -> Option<f64> {
        let end = match self.limited_by? {
            Stage::SourceHost => 0,
            Stage::SinkHost => 1,
            Stage::SourceStorage | Stage::Network | Stage::SinkStorage => return None,
        };
        self.own_shares[end].filter(|own| others_use_up(self.processors[end], Some(*own)))
    }
}

impl Default for Summary {
    fn default() -> Self {
        Summary {
            status: Status::Failed,
            files: 0,
            dirs: 0,
            symlinks: 0,
            unchanged: 0,
            amended: 0,
            changed: Changed::default(),
            prefixes: 0,
            prefix_bytes: 0,
            skipped: 0,
            failed: 0,
            vanished: 0,
            lasting: 0,
            usage: false,
            bytes: 0,
            bytes_sent: 0,
            objects_resent: 0,
            seconds: 0.0,
            cpu_seconds_near: 0.0,
            cpu_seconds_far: None,
            rss_near: 0,
            rss_far: None,
            streams: 0,
            protect: "local".into(),
            digest: Digest::default(),
            verify: Verify::default(),
            came_back: 0,
            resume: Resume::default(),
            held: Held::default(),
            path: String::new(),
            durability: Some(Durability::Disk),
            in_place: false,
            part: None,
            stages: [StageTime::default(); 5],
            processors: [None; 2],
            own_shares: [None; 2],
            limited_by: None,
            not_kept: Vec::new(),
            strays: 0,
            resumed: false,
            kept: 0,
            error: None,
            rate_limited: false,
            memory_limited: false,
            chosen: Vec::new(),
            slow_targets: Vec::new(),
            slow_others: 0,
        }
    }
}

/// Runs a copy to its end. What goes wrong is in the summary.
pub fn copy(request: CopyRequest, observer: Arc<dyn Observer>, control: Control) -> Summary {
    crate::copy::run(&request, observer, control)
}

/// Whether plain files that the caller writes while the copy runs, by their names behind all links, are apart from what is
/// copied: none lies in a local source, is one, or has the name of a file that is copied.
///
/// # Errors
/// A sentence for people about the first that is not.
pub fn lists_are_apart(request: &CopyRequest, files: &[PathBuf]) -> Result<(), String> {
    crate::copy::lists::are_apart(request, files)
}

/// `haul agent`: serves one session over stdin and stdout. Returns the exit code.
///
/// `home`: the user's home directory; `ssh_connection`: what sshd says of the connection
/// (`SSH_CONNECTION`), from which the address to listen on is taken.
pub fn agent(home: Option<PathBuf>, ssh_connection: Option<String>) -> i32 {
    crate::copy::serve(home, ssh_connection)
}

/// `haul agent --channel`: brings a further channel of an ssh connection to the agent of this user that the near end names on
/// stdin, and waits until that has done with it. Returns the exit code.
pub fn agent_channel() -> i32 {
    use std::os::fd::AsFd;
    let handed = crate::transport::bootstrap::channel(std::io::stdin().as_fd(), std::io::stdout().as_fd());
    i32::from(handed.is_err())
}

/// What dead jobs left below a destination.
#[derive(Clone, Debug, Default)]
pub struct CleanReport {
    pub jobs: Vec<CleanJob>,
    /// Files that are named like temporaries and that no journal here speaks of.
    pub strays: u64,
}

/// One job's journal and temporaries.
#[derive(Clone, Debug)]
pub struct CleanJob {
    /// The job's key, as in the name of its journal.
    pub key: String,
    /// `dead`, or who runs it.
    pub state: String,
    /// From what to where, as its last owner said; `None`: not known.
    pub what: Option<String>,
    /// Whose journal it is, by name if that is known.
    pub user: Option<String>,
    /// Since it was last written.
    pub age: Option<Duration>,
    /// Its temporaries, and their bytes with those of its journal; the same whether they were removed or not.
    pub files: u64,
    pub bytes: u64,
    pub removed: bool,
    /// It is dead and this user's to remove (root's is everybody's), and could not be.
    pub failed: bool,
}

/// Lists what jobs left below `root`; `remove` deletes what dead ones left, never what a running one needs. `state`: the
/// directory of their journals, where they were told to keep them elsewhere.
pub fn clean(root: &Path, state: Option<&Path>, remove: bool) -> Result<CleanReport, String> {
    crate::clean::run(root, state, remove)
}

/// Where a file lies.
#[derive(Clone, Debug)]
pub struct FileLayout {
    /// Bytes.
    pub size: u64,
    /// `lustre`, `cephfs`, `glusterfs`, `beegfs`, or `flat` where no file system says more than the device.
    pub provider: &'static str,
    pub layout: Layout,
    /// A parallel file system was asked and gave no layout: its reason.
    pub why_flat: Option<String>,
}

/// Asks the file system where the regular file at `path` lies. Reads nothing of it.
///
/// # Errors
/// It cannot be opened, or is no regular file.
pub fn layout(path: &Path) -> Result<FileLayout, String> {
    use rustix::fs::{FileType, Mode, OFlags, fstat, open};
    let failed = |what: &str, error: &dyn std::fmt::Display| format!("{what} {}: {error}", path.display());
    // Without waiting, for it may turn out to be a pipe.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty()).map_err(|e| failed("open", &e))?;
    let stat = fstat(&file).map_err(|e| failed("look at", &e))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(format!("{} is no regular file; only these have a layout", path.display()));
    }
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let found = crate::storage::layout::layout_of(&file, size);
    Ok(FileLayout { size, provider: found.provider.name(), layout: found.layout, why_flat: found.why_flat })
}
