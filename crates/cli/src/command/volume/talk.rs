//! What is said to a host of a volume, where a server of it is to start or to be removed.
//!
//! In: where, and how that host is reached. Out: answers to what is said, one by one.
//! Invariants: all waits end with the one limit that all of it has; whoever is dropped before it was told to
//! keep what it did undoes that.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use haul::api::Dialler;
use haul::errno;
use haul_base::stop::{LOOK, Stop};
use haul_launch::{Errand, RemoteSpec};
use haul_volume::access::{Reach, ServerAt};
use haul_volume::boot::{LINE_LEN_MAX, Say, Told};
use haul_volume::home::Role;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::command::serve::volume::ERRAND;
use crate::escape;

/// What was begun and is not kept has so long to undo itself.
const UNDONE_WITHIN: Duration = Duration::from_secs(10);
/// So much of what a program said last is told.
const WORDS_LEN_MAX: u64 = 1000;

/// How long all of it may take, and whoever may want an end before.
#[derive(Clone)]
pub struct Limit {
    pub until: Instant,
    pub within: Duration,
    ended: Arc<AtomicBool>,
    /// Time alone ends it from here on.
    goes_through: Arc<AtomicBool>,
}

impl Limit {
    /// From now on.
    pub fn new(within: Duration) -> Limit {
        let until = Instant::now() + within.min(Duration::from_secs(1 << 30));
        Limit { until, within, ended: Arc::default(), goes_through: Arc::default() }
    }

    /// All that waits is to end.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst) && !self.goes_through.load(Ordering::SeqCst)
    }

    /// Nobody but time ends it any more, for what comes must not be left half done. False: somebody has.
    pub fn goes_through(&self) -> bool {
        self.goes_through.store(true, Ordering::SeqCst);
        let goes = !self.ended.load(Ordering::SeqCst);
        self.goes_through.store(goes, Ordering::SeqCst);
        goes
    }

    pub fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    fn is_over(&self) -> bool {
        self.is_ended() || self.left().is_zero()
    }

    fn stop(&self) -> Stop {
        let limit = self.clone();
        Stop::when(move || limit.is_over())
    }

    /// Why a wait ended.
    fn why(&self) -> String {
        match self.is_ended() {
            true => "it was stopped".into(),
            false => {
                format!("no answer within {} (--within takes more)", humantime::format_duration(self.within))
            }
        }
    }
}

/// How hosts are reached, and how long all of it may take.
pub struct Hosts {
    pub reach: Reach,
    /// This program, to be brought where there is none.
    pub binary: Option<PathBuf>,
    pub limit: Limit,
}

/// A haul on some host.
pub struct Talk {
    way: Way,
    limit: Limit,
    kept: bool,
}

enum Way {
    /// A process of this host, or one that stays with its server on another.
    Pipe {
        child: Child,
        to: Option<ChildStdin>,
        from: ChildStdout,
        heard: Vec<u8>,
        words: File,
    },
    Ssh(Box<Errand>),
}

/// The name of this host.
pub fn this_host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The host of a server that is reached without a host's name, if it is not this one.
pub fn elsewhere(at: &ServerAt) -> Option<&str> {
    at.on.as_deref().filter(|on| at.host.is_none() && *on != this_host())
}

impl Talk {
    /// Starts haul where a server is to be.
    pub fn begin(hosts: &Hosts, at: &ServerAt, role: Role) -> Result<Talk, String> {
        let limit = hosts.limit.clone();
        if limit.is_over() {
            return Err(limit.why());
        }
        let what = if role == Role::Catalog { "catalog" } else { "volume" };
        let way = match &at.host {
            None => {
                if let Some(on) = elsewhere(at) {
                    let why = "which this volume has no remote shell for; do this there";
                    return Err(format!("it is on the host {on}, {why}"));
                }
                // This program, also if its file has been replaced.
                let mut command = Command::new("/proc/self/exe");
                command.arg0("haul").args(["serve", what, "--bootstrap"]);
                // It goes on when this is over: Ctrl-C is not for it. Until it is kept it ends with this.
                command.process_group(0);
                spawn(command)?
            }
            Some(host) if !hosts.reach.launch.is_empty() => {
                let words = hosts.reach.launch.iter().map(|word| word.replace("{host}", host));
                let words: Vec<String> = words.collect();
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]);
                match (&hosts.reach.remote_haul, &hosts.binary) {
                    (Some(path), _) => command.arg(path),
                    (None, Some(path)) => command.arg(path),
                    (None, None) => command.arg("haul"),
                };
                command.args(["serve", what, "--bootstrap", "--stay"]);
                command.process_group(0);
                spawn(command)?
            }
            Some(host) => {
                let spec = RemoteSpec {
                    host: host.clone(),
                    user: None,
                    ssh: hosts.reach.ssh.clone(),
                    remote_haul: hosts.reach.remote_haul.clone().map(PathBuf::from),
                    push: hosts.binary.clone().filter(|_| !hosts.reach.no_push),
                    via: Vec::new(),
                    dial: Dialler::Auto,
                    ports: None,
                    // Several hosts are reached at once, and only one could ask.
                    interactive: false,
                    patience: None,
                    stop: limit.stop(),
                    streams: None,
                    storage_rate: None,
                    ssh_channels: None,
                    sockets: Vec::new(),
                };
                let errand = Errand::begin(&spec, ERRAND, limit.left(), &mut tell(at));
                let errand =
                    errand.map_err(|error| if limit.is_over() { limit.why() } else { error.to_string() })?;
                Way::Ssh(Box::new(errand))
            }
        };
        Ok(Talk { way, limit, kept: false })
    }

    /// Says something, and hears the answer.
    pub fn ask(&mut self, at: &ServerAt, say: &Say) -> Result<Told, String> {
        let limit = self.limit.clone();
        let told = match &mut self.way {
            Way::Ssh(errand) => {
                let notes = &mut tell(at);
                let told = errand.say(say, notes).and_then(|()| errand.hear(notes));
                told.map_err(|error| if limit.is_over() { limit.why() } else { error.to_string() })?
            }
            Way::Pipe { to, from, heard, words, .. } => {
                let mut line = serde_json::to_vec(say).map_err(|error| error.to_string())?;
                line.push(b'\n');
                // Whether it is heard shows in what is answered.
                let _ = to.as_mut().map(|to| to.write_all(&line).and_then(|()| to.flush()));
                loop {
                    let line = match next_line(from, heard, &limit) {
                        Ok(Some(line)) => line,
                        Ok(None) => {
                            return Err(format!("haul ended there without an answer{}", last_words(words)));
                        }
                        Err(error) => return Err(format!("hearing it: {}", errno::text(error))),
                    };
                    // What starts programs may speak, too.
                    if let Some(told) = Told::of_line(&line) {
                        break told;
                    }
                }
            }
        };
        match told {
            Told::Failed(why) => Err(escape::text(&why)),
            told => {
                self.kept = told == Told::Kept;
                Ok(told)
            }
        }
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        let Way::Pipe { child, to, .. } = &mut self.way else { return };
        drop(to.take());
        let until = Instant::now() + UNDONE_WITHIN;
        while !self.kept && matches!(child.try_wait(), Ok(None)) {
            if Instant::now() >= until {
                let _ = child.kill();
                let _ = child.wait();
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn spawn(mut command: Command) -> Result<Way, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |error: io::Error| format!("starting {program}: {}", errno::text(error));
    // A file, for nobody reads what it says when this is over.
    let words = memfd_create("haul-words", MemfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
    let words = File::from(words);
    let stderr = words.try_clone().map_err(failed)?;
    let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr).spawn();
    let mut child = spawned.map_err(failed)?;
    match (child.stdin.take(), child.stdout.take()) {
        (Some(to), Some(from)) => Ok(Way::Pipe { child, to: Some(to), from, heard: Vec::new(), words }),
        _ => Err("a pipe is missing".into()),
    }
}

/// The next line of it; `None`: there is none.
fn next_line(from: &mut ChildStdout, heard: &mut Vec<u8>, limit: &Limit) -> io::Result<Option<Vec<u8>>> {
    loop {
        if let Some(end) = heard.iter().position(|byte| *byte == b'\n') {
            return Ok(Some(heard.drain(..=end).collect()));
        }
        if heard.len() > LINE_LEN_MAX {
            return Err(io::Error::other("it says more than haul does"));
        }
        if limit.is_over() {
            return Err(io::Error::other(limit.why()));
        }
        let look = Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
        match poll(&mut [PollFd::new(&from.as_fd(), PollFlags::IN)], Some(&look)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mut chunk = [0; 4096];
        match from.read(&mut chunk)? {
            0 => return Ok(None),
            len => heard.extend_from_slice(&chunk[..len]),
        }
    }
}

fn last_words(words: &File) -> String {
    let len = words.metadata().map_or(0, |meta| meta.len());
    let mut bytes = vec![0; len.min(WORDS_LEN_MAX) as usize];
    let read = words.read_at(&mut bytes, len.saturating_sub(WORDS_LEN_MAX)).unwrap_or(0);
    let text = escape::line(String::from_utf8_lossy(&bytes[..read]).trim().replace('\n', " / ").as_bytes());
    if text.is_empty() { text } else { format!(": {text}") }
}

/// Lines for people, of a host.
fn tell(at: &ServerAt) -> impl FnMut(String) + use<> {
    let at = at.to_string();
    move |line| drop(writeln!(io::stderr(), "haul: {at}: {}", escape::text(&line)))
}
