//! Starting the far end, and the connections between the two.
//!
//! In: a host, the user's own ssh command, and what the agent shall do. Out: authenticated [`Link`]s, one for
//! control and N for data, and the ssh process that vouched for them.
//!
//! The near end runs ssh once ([`ssh`]) with a constant command. A stage written in `sh` finds a `haul` there
//! or takes one from us ([`push`]), and becomes `haul agent`. Over that pipe both ends exchange versions and
//! one-time keys ([`message`]); the agent listens ([`listener`]), the near end dials ([`happy_eyeballs`]),
//! over each path between the two that answers, and each connection is TLS pinned to those keys. If the port
//! cannot be reached, the two change places ([`reverse`]); if that fails too, all streams go through ssh:
//! they share its pipe, and further channels of the same connection ([`channels`]) where ssh can share that
//! ([`ssh_sharing`]).
//!
//! Invariants: nothing that the user or a peer wrote is part of the remote command; no secret is in an
//! argument, the environment or a log; a stranger's connection changes a counter and nothing else; there is
//! no path without protection (TLS, ssh itself, or, where both ends want that, codes of data frames).
//! Later connections join by the same keys and the session's secret ([`haul_transport::rejoin`]); in the ssh
//! pipe none can.
//!
#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use haul_base::errno;
use haul_base::stop::{Stop, Stopped};
use haul_core::ids::StreamId;
use haul_core::tune::Choice;
use haul_core::wire::{VERSION, VERSION_MIN};

use haul_transport::Protect;
use haul_transport::path::{EndFacts, Plan};
use haul_transport::rejoin::Joins;
use haul_transport::{Link, TransportError, mux};

mod agent;
mod arrived;
mod channel_listener;
mod channels;
mod clients;
mod coming;
mod errand;
mod happy_eyeballs;
mod join_handshake;
mod listener;
mod message;
mod named;
mod near;
mod push;
mod redial;
mod request;
pub mod retry_command;
mod reverse;
mod shell;
mod ssh;
mod ssh_sharing;
mod start;
mod strangers;

pub use agent::{AgentConnected, AgentEnv, AgentHooks, AnswerFn, Answers, StorageRate, agent};
pub use channel_listener::channel;
pub use errand::{Errand, ErrandFn, ErrandLine, Errands};
pub use message::ADDRESSES_MAX;
#[doc(hidden)]
pub use message::read_any;
pub use near::{connect, connect_and_hear};
pub use request::{Needs, Request};
pub use shell::split_command;
pub use ssh::SshGuard;

/// Most channels of one ssh connection.
pub const SSH_CHANNELS_MAX: u16 = message::FURTHER_MAX + 1;
/// The name of data that is authenticated and not encrypted.
pub const INTEGRITY: &str = "integrity";
/// Starts each of the answers to `haul agent --protocol`.
pub const PROTOCOL_WORD: &str = "haul-protocol";

/// What `haul agent --protocol` prints: one line, so that a stranger's program of the same name is not
/// taken for ours.
pub fn protocol_line() -> String {
    format!("{PROTOCOL_WORD} {VERSION_MIN}-{VERSION}")
}

/// How to reach and start the far end.
#[derive(Clone, Debug)]
pub struct RemoteSpec {
    /// Host as typed: a name, an address, `[::1]`, or an alias of the user's ssh configuration; `user@host`
    /// is understood too.
    pub host: String,
    pub user: Option<String>,
    /// The ssh program and its options ([`split_command`] of `--ssh`); empty: `ssh`.
    pub ssh: Vec<String>,
    /// `--remote-haul`: the program at the far end. `~/` is expanded there.
    pub remote_haul: Option<PathBuf>,
    /// The program to push where the far end has none (this very program); `None`: `--no-push`.
    pub push: Option<PathBuf>,
    /// `--via`: addresses of the end that listens, to listen on and to dial, each a path; empty: the one that
    /// ssh reached, and what else that end has. With [`Dialler::Auto`] those that this host has are its own,
    /// the others the far end's. At most [`ADDRESSES_MAX`].
    pub via: Vec<IpAddr>,
    /// `--dial`: which end opens the connections.
    pub dial: Dialler,
    /// `--port A-B` of the end that listens, inclusive; `None`: any free port.
    pub ports: Option<(u16, u16)>,
    /// Somebody can answer: ssh may ask for a password. Else it is told never to.
    pub interactive: bool,
    /// How long ssh may say nothing before the far end speaks, where nobody can answer; `None`: two minutes.
    pub patience: Option<Duration>,
    /// Whoever can want an end before the two ends have met.
    pub stop: Stop,
    /// Data streams wanted, 1 to `STREAMS_MAX`; `None`: as many as the path needs.
    pub streams: Option<u16>,
    /// What this host's storage is known to give, bytes per second.
    pub storage_rate: Option<u64>,
    /// Channels of the ssh connection where all goes through it, at most [`SSH_CHANNELS_MAX`]; `None`: as
    /// many as the path needs and sshd allows by default.
    pub ssh_channels: Option<u16>,
    /// Directories for ssh's control socket, of which the first that can be this user's alone is taken, and
    /// made if it is not there. Without one there is one channel.
    pub sockets: Vec<PathBuf>,
}

/// Which end opens the connections. The other one listens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialler {
    /// The near end; if it cannot reach the far end, the far end; if neither can, all goes through ssh.
    #[default]
    Auto,
    /// The end that the data come from; nothing else is tried.
    Source,
    /// The end that the data go to; nothing else is tried.
    Sink,
}

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Own connections, from the near end to this address of the far end.
    Direct { addr: SocketAddr },
    /// Own connections, from the far end to this address of the near end.
    Reverse { addr: SocketAddr },
    /// All streams in the ssh connection.
    Ssh,
}

impl Path {
    /// What protects the bytes, as the report names it.
    pub fn protect(self, asked: Protect) -> &'static str {
        match self {
            Path::Direct { .. } | Path::Reverse { .. } if asked == Protect::Integrity => INTEGRITY,
            Path::Direct { .. } | Path::Reverse { .. } => "tls",
            Path::Ssh => "ssh",
        }
    }
}

/// The near end's side of a session that is up.
pub struct Connected {
    /// Random; both ends say the same one in their hello.
    pub session: [u8; 16],
    pub control: Link,
    /// Streams 1 to n, in order.
    pub data: Vec<(StreamId, Link)>,
    /// How further streams come up, and control again.
    pub joins: Joins,
    pub path: Path,
    /// [`Path::protect`].
    pub protect: &'static str,
    /// The protocol version that both ends agreed on.
    pub protocol: u16,
    /// The far program's version, escaped.
    pub remote_version: String,
    /// What was chosen for the path, and why.
    pub plan: Plan,
    /// With [`Path::Ssh`], the channels of the ssh connection, and why so many.
    pub ssh_channels: Option<Choice<u16>>,
    /// Connections that were not ours, where this end listens.
    pub strays: Arc<AtomicU64>,
    /// What the far end says of itself; `None`: its haul is too old for that.
    pub far: Option<EndFacts>,
    /// How long it took, without what the far end took to answer a question.
    pub took: Duration,
    /// Keeps ssh until the session is over. Drop it after the links.
    pub guard: SshGuard,
}

impl Connected {
    /// From where to where the data streams go, with their number; none where they share the ssh pipe.
    pub fn paths(&self) -> Vec<(IpAddr, IpAddr, usize)> {
        let mut order: Vec<(IpAddr, IpAddr)> = Vec::new();
        let mut counts = BTreeMap::new();
        for [from, to] in self.data.iter().filter_map(|(_, link)| link.connection.as_ref()?.ends()) {
            let path = (from.ip().to_canonical(), to.ip().to_canonical());
            if !order.contains(&path) {
                order.push(path);
            }
            *counts.entry(path).or_insert(0) += 1;
        }
        order.into_iter().map(|path| (path.0, path.1, counts[&path])).collect()
    }
}

impl std::fmt::Debug for Connected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connected({:?}, {} data streams)", self.path, self.data.len())
    }
}

/// Which part of starting the far end failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootstrapKind {
    /// The host, the ssh command or a path as given by the user is not usable.
    Usage,
    /// ssh could not be run, or ended before the far end spoke.
    Ssh,
    /// The far shell talks too much before haul starts.
    Chatter,
    /// The far end's kernel is too old.
    Kernel,
    /// There is no haul at the far end and it may not be pushed.
    NoProgram,
    /// Pushing haul, or running the pushed one, failed.
    Push,
    /// The two programs have no protocol version in common.
    Version,
    /// The other end said something that haul does not say, or fell silent.
    Peer,
    /// The other end refused, in its own words.
    Refused,
    /// No connection came up in the direction that the user named.
    Closed,
    /// Something on this machine failed.
    Local,
    /// Somebody wanted an end.
    Stopped,
}

/// Why the far end could not be started: what happened, its cause, and what to do about it.
#[derive(Debug)]
pub struct BootstrapError {
    pub kind: BootstrapKind,
    /// One sentence, fit for a terminal (peers' bytes are escaped). ssh's own words are quoted in it.
    pub what: String,
    /// What the user can do.
    pub remedy: Option<String>,
    /// ssh's exit code, if it ended (255: ssh itself failed).
    pub ssh_exit: Option<i32>,
    /// The cause, where a system call failed. It is part of the sentence.
    pub source: Option<io::Error>,
}

impl std::error::Error for BootstrapError {}

impl fmt::Display for BootstrapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if let Some(cause) = self.source.as_ref().map(errno::text).filter(|cause| !self.what.ends_with(cause))
        {
            write!(f, ": {cause}")?;
        }
        self.remedy.as_ref().map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
    }
}

impl BootstrapError {
    fn new(kind: BootstrapKind, what: impl Into<String>) -> Self {
        BootstrapError { kind, what: what.into(), remedy: None, ssh_exit: None, source: None }
    }
    fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
    fn local(what: impl Into<String>, source: io::Error) -> Self {
        BootstrapError { source: Some(source), ..BootstrapError::new(BootstrapKind::Local, what) }
    }
}

/// Keeps keys out of core files and away from debuggers, for the rest of the process: a program calls it
/// before the first key exists. Where the kernel refuses, the session is not weaker than without it, so that
/// is no error.
pub fn harden() {
    use rustix::process::{Resource, Rlimit};
    let _ = rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
}

/// Bytes of one stream in the ssh pipe that may wait for their reader if the user set none: about
/// all that is granted over so slow a path. Memory is used as bytes come.
const PIPE_CAPACITY: u64 = 256 << 20;

/// Control and `streams` data streams in one pipe, and the data streams that have channels of their own.
fn share_pipe(
    reader: Box<dyn Read + Send>,
    writer: Box<dyn Write + Send>,
    streams: u16,
    channels: Vec<Link>,
    memory: Option<u64>,
) -> Result<Vec<Link>, BootstrapError> {
    let capacity = memory.unwrap_or(PIPE_CAPACITY);
    let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
    // The links themselves tell their readers when the pipe ends.
    let mut links = mux::mux(reader, writer, streams + 1, capacity, Box::new(|_| {}))?;
    links.extend(channels);
    Ok(links)
}

impl From<Stopped> for BootstrapError {
    fn from(stopped: Stopped) -> Self {
        BootstrapError::new(BootstrapKind::Stopped, stopped.to_string())
    }
}

impl From<TransportError> for BootstrapError {
    fn from(error: TransportError) -> Self {
        BootstrapError { source: error.source, ..BootstrapError::new(BootstrapKind::Local, error.what) }
    }
}
