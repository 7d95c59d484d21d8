//! Where the programs of a measurement run: two hosts, which are namespaces or this machine itself.
//!
//! In: what `lab wan up` said, or nothing for loopback. Out: commands that run there.
//! Invariant: a host is only named here; who made a namespace removes it.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

/// A host: the near one (0, where the user types) or the far one (1, with an sshd).
#[derive(Clone, Debug)]
pub struct Host {
    /// Name below `/run/netns`; none: this machine itself.
    pub namespace: Option<String>,
    /// The address that the other host dials.
    pub address: String,
    /// A directory of this host's own; nothing else writes there.
    pub root: PathBuf,
}

impl Host {
    /// A command that will run on this host.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        match &self.namespace {
            None => Command::new(program),
            Some(namespace) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net=/run/netns/{namespace}")).arg("--").arg(program);
                command
            }
        }
    }
}

/// Both hosts, and how the near one logs in to the far one.
#[derive(Clone, Debug)]
pub struct Bench {
    pub hosts: [Host; 2],
    /// The ssh program and its options, without the host: what goes to `haul -e` and `rsync -e`.
    pub ssh: Vec<String>,
    /// The `haul` that is measured.
    pub haul: PathBuf,
}

impl Bench {
    pub fn near(&self) -> &Host {
        &self.hosts[0]
    }
    pub fn far(&self) -> &Host {
        &self.hosts[1]
    }
}
