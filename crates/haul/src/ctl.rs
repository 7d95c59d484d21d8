//! Remote control of a copy that runs: a Unix socket for each, and who may speak to it.
//!
//! In: a [`Handle`] that shall be reached. Out: [`Server`], and for the other side [`jobs`] and [`ask`]. A
//! request is one line of JSON, a reply is one line of JSON, then the connection ends.
//!
//! Invariants: a socket lies in a directory that belongs to this user and is closed to all others, and is
//! itself of mode 0600; no symlink is followed on the way to it. Who connects is this user or root, as the
//! kernel says. Nobody who connects can hold the copy, or another client: requests are bounded in length and
//! time.
//! Left out: a lasting connection that is told of changes; other hosts' jobs (log in there).

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::handle::{CopyPhase, CopyState, Handle, LiveSetting, SettingState};
use crate::target_tables::Sides;
use haul_base::errno;

mod client;
mod server;

pub use client::{Found, Lost, ask, find, jobs};
pub use server::Server;

/// Longest request, its line end included, bytes.
pub const REQUEST_LEN_MAX: usize = 4096;
/// Longest reply that is believed to be one, bytes.
pub const REPLY_LEN_MAX: usize = 64 * 1024;
/// Longest name of a job, bytes.
pub const NAME_LEN_MAX: usize = 32;
/// A client has this long to say what it wants, and a job to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What can be asked of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// How it stands.
    Show,
    /// Read and send no new data.
    Pause,
    /// Go on after [`Request::Pause`].
    Resume,
    /// Change one of its live settings.
    Set {
        /// Which one. The word on the socket is that of older versions, whose copies may still run.
        #[serde(rename = "knob")]
        setting: LiveSetting,
        /// To what; see [`LiveSetting::range`].
        value: u64,
    },
    /// How the storage targets of both ends stand. What is not known yet comes with a later reply.
    Targets,
}

/// What it says to that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// Why nothing was done.
    pub error: Option<String>,
    /// How the job stands, if it may be told.
    pub job: Option<Job>,
    /// Only to [`Request::Targets`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets: Option<Sides>,
}

/// A job that runs, as it says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Of the process that runs it.
    pub pid: u32,
    /// As the user named it, or a word that haul chose.
    pub name: String,
    /// For people: from where to where.
    pub what: String,
    /// Seconds since 1970.
    pub since: u64,
    /// What it is doing.
    pub state: CopyPhase,
    /// As in [`Progress`](crate::api::Progress), like all counts here.
    pub bytes_done: u64,
    /// What was found so far.
    pub bytes_total: u64,
    /// The walk still runs: totals grow.
    pub counting: bool,
    /// Payload that was moved.
    pub bytes_sent: u64,
    /// Files that ended.
    pub files_done: u64,
    /// Files that were found so far.
    pub files_total: u64,
    /// Entries that failed.
    pub failed: u64,
    /// The limit of the rate.
    pub rate: SettingState,
    /// Data streams.
    pub streams: SettingState,
    /// Operations in flight at each storage target of the source.
    pub readers: SettingState,
    /// The same at the sink.
    pub writers: SettingState,
}

impl Job {
    fn of(handle: &Handle, label: &Label) -> Job {
        let CopyState { phase, settings: [rate, streams, readers, writers], progress } = handle.state();
        Job {
            pid: label.pid,
            name: label.name.clone(),
            what: label.what.clone(),
            since: label.since,
            state: phase,
            bytes_done: progress.bytes_done,
            bytes_total: progress.bytes_total,
            counting: progress.counting || phase == CopyPhase::Starting,
            bytes_sent: progress.bytes_sent,
            files_done: progress.files_done,
            files_total: progress.files_total,
            failed: progress.failed,
            rate,
            streams,
            readers,
            writers,
        }
    }

    /// The live setting of this kind.
    pub fn setting(&self, setting: LiveSetting) -> &SettingState {
        match setting {
            LiveSetting::Rate => &self.rate,
            LiveSetting::Streams => &self.streams,
            LiveSetting::Readers => &self.readers,
            LiveSetting::Writers => &self.writers,
        }
    }
}

/// What a job says of itself and what does not change.
#[derive(Clone, Debug, Default)]
struct Label {
    pid: u32,
    name: String,
    what: String,
    since: u64,
}

/// Why there is no socket, or no answer from one.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The text of each says it.
pub enum CtlError {
    #[error("{op} {}: {}", path.display(), errno::text(source))]
    System { op: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is {what}; it must be a directory of this user that is closed to others", path.display())]
    NotPrivate { path: PathBuf, what: &'static str },
    #[error("job {pid}: {what}")]
    NoAnswer { pid: u32, what: String },
}

fn system(op: &'static str, path: &Path) -> impl FnOnce(rustix::io::Errno) -> CtlError {
    move |errno| CtlError::System { op, path: path.to_owned(), source: errno.into() }
}

/// A name that does in a file name and on a command line: letters, digits, `.`, `_` and `-`, others become
/// `_`; never empty, and no longer than [`NAME_LEN_MAX`].
pub fn short_name(text: &[u8]) -> String {
    let plain = |byte: &u8| match byte {
        byte if byte.is_ascii_alphanumeric() || b"._-".contains(byte) => char::from(*byte),
        _ => '_',
    };
    let name: String = text.iter().take(NAME_LEN_MAX).map(plain).collect();
    if name.is_empty() { "copy".into() } else { name }
}

/// A directory for sockets, open and checked.
struct Place {
    dir: OwnedFd,
    path: PathBuf,
}

impl Place {
    /// Opens the directory; `None`: it is not there.
    fn open(path: &Path) -> Result<Option<Place>, CtlError> {
        use rustix::fs::FileType;
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(dir) => dir,
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => {
                return Err(CtlError::NotPrivate { path: path.to_owned(), what: "a symlink or a file" });
            }
            Err(errno) => return Err(system("open", path)(errno)),
        };
        let stat = rustix::fs::fstat(&dir).map_err(system("stat", path))?;
        let not = |what| Err(CtlError::NotPrivate { path: path.to_owned(), what });
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return not("no directory");
        }
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return not("another user's");
        }
        if stat.st_mode & 0o077 != 0 {
            return not("open to others");
        }
        Ok(Some(Place { dir, path: path.to_owned() }))
    }

    /// The same; made if it is not there. (Not its parents.)
    fn make(path: &Path) -> Result<Place, CtlError> {
        match rustix::fs::mkdir(path, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(errno) => return Err(system("make", path)(errno)),
        }
        Place::open(path)?.ok_or_else(|| system("open", path)(rustix::io::Errno::NOENT))
    }

    /// An address of a socket in it: by the descriptor, so that the directory is the one that was checked,
    /// and its path may be longer than an address can be.
    fn address(&self, file: &str) -> Result<rustix::net::SocketAddrUnix, CtlError> {
        let by_fd = format!("/proc/self/fd/{}/{file}", self.dir.as_fd().as_raw_fd());
        rustix::net::SocketAddrUnix::new(by_fd).map_err(system("name", &self.path))
    }

    fn remove(&self, file: &str) {
        // Whoever was quicker has done it.
        let _ = rustix::fs::unlinkat(&self.dir, file, rustix::fs::AtFlags::empty());
    }
}

/// Pid and name of a job's socket.
fn parse_file(file: &[u8]) -> Option<(u32, &str)> {
    let stem = std::str::from_utf8(file).ok()?.strip_suffix(".sock")?;
    let (pid, name) = stem.split_once('-')?;
    let number: u32 = pid.parse().ok().filter(|number| *number > 0)?;
    // As it would have been written, and no other way.
    (short_name(name.as_bytes()) == name && number.to_string() == pid).then_some((number, name))
}

impl fmt::Display for CopyPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CopyPhase::Starting => "starting",
            CopyPhase::Running => "running",
            CopyPhase::Paused => "paused",
            CopyPhase::Stopping => "stopping",
            CopyPhase::Ended => "ended",
        })
    }
}

#[cfg(test)]
mod tests;
