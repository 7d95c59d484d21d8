//! What a copy is asked for.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use haul_launch::Dialler;
use haul_storage::store::Picks;

use crate::endpoint::Endpoint;
use crate::options::Options;

/// One copy, as the user asked for it.
#[derive(Clone, Debug)]
pub struct CopyRequest {
    /// At least one; all on the same side.
    pub sources: Vec<Endpoint>,
    /// Where it goes.
    pub destination: Endpoint,
    /// Where else the only source lies: other servers that have the same, which are used where it cannot be
    /// had from the first. Of the host that speaks with that one.
    pub replicas: Vec<Endpoint>,
    /// Every choice.
    pub options: Options,
    /// How the far end is reached and started, if there is one.
    pub remote: RemoteOptions,
    /// Look only: nothing is made or changed at the sink.
    pub dry_run: bool,
    /// Send an [`Event::Entry`] for each entry that ended well.
    pub verbose: bool,
    /// Send [`Event::Targets`].
    pub targets: bool,
    /// Where storage passports are kept on this host, `~/.local/state/haul` say; `None`: none is looked for.
    pub state_home: Option<PathBuf>,
    /// What of a source in a volume comes, where the source is read by this process; `None`: all of it. All
    /// of other sources comes.
    pub picks: Option<Arc<dyn Picks>>,
}

impl CopyRequest {
    /// A copy with the default choices.
    pub fn new(sources: Vec<Endpoint>, destination: Endpoint) -> CopyRequest {
        CopyRequest {
            sources,
            destination,
            replicas: Vec::new(),
            options: Options::default(),
            remote: RemoteOptions::default(),
            dry_run: false,
            verbose: false,
            targets: false,
            state_home: None,
            picks: None,
        }
    }
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
    /// Addresses of the end that listens, instead of the one that ssh reached and those that it names; each
    /// is a path for data. With [`Dialler::Auto`] those that this host has are its own, the others the far
    /// end's.
    pub via: Vec<IpAddr>,
    /// Ports that the end that listens may use, first and last.
    pub ports: Option<(u16, u16)>,
    /// A person can answer ssh's questions, and is waited for: then ssh may say nothing for as long as it
    /// likes, up to a stop.
    pub interactive: bool,
    /// Channels of the ssh connection where all data goes through it, 1 to [`SSH_CHANNELS_MAX`]; `None`:
    /// chosen.
    pub ssh_channels: Option<u16>,
    /// Directories for ssh's control socket, of which the first is taken that can be this user's alone;
    /// without one there is one channel.
    pub sockets: Vec<PathBuf>,
    /// The program to push; `None`: none can be pushed.
    pub binary: Option<PathBuf>,
}

impl Default for RemoteOptions {
    /// `ssh`, without a person who could answer its questions, and without a program to push.
    fn default() -> RemoteOptions {
        RemoteOptions {
            ssh: vec!["ssh".into()],
            remote_haul: None,
            no_push: false,
            dial: Dialler::Auto,
            via: Vec::new(),
            ports: None,
            interactive: false,
            ssh_channels: None,
            sockets: Vec::new(),
            binary: None,
        }
    }
}
