//! The three ways that data can take: on this host, to a host, from a host.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::run::Haul;
use super::sshd::Sshd;

/// A way, with the sshd that it needs.
pub enum Way {
    Here,
    Push(Sshd),
    Pull(Sshd),
}

impl Way {
    /// The ways that this machine can take: without an sshd only the first.
    pub fn all() -> Vec<Way> {
        let mut ways = vec![Way::Here];
        if super::needs::all_here(&["sshd"]) {
            ways.extend([Way::Push(Sshd::start()), Way::Pull(Sshd::start())]);
        }
        ways
    }

    /// `haul cp --json OPTIONS... SOURCES... DESTINATION`, with hosts where the way has them. Nothing is
    /// added to or taken from the paths, so that a slash at the end stays.
    pub fn cp(
        &self,
        options: &[&str],
        sources: &[impl AsRef<OsStr>],
        destination: impl AsRef<OsStr>,
    ) -> Haul {
        self.ends(Haul::cp(options), sources, destination)
    }

    /// The same without `--json`.
    pub fn plain(
        &self,
        options: &[&str],
        sources: &[impl AsRef<OsStr>],
        destination: impl AsRef<OsStr>,
    ) -> Haul {
        self.ends(Haul::new(["cp"]).args(options), sources, destination)
    }

    fn ends(&self, haul: Haul, sources: &[impl AsRef<OsStr>], destination: impl AsRef<OsStr>) -> Haul {
        let sources = sources.iter().map(AsRef::as_ref);
        let destination = destination.as_ref();
        match self {
            Way::Here => haul.args(sources).args([destination]),
            Way::Push(sshd) => haul.by(sshd).args(sources).args([sshd.path(Path::new(destination))]),
            Way::Pull(sshd) => {
                haul.by(sshd).args(sources.map(|source| sshd.path(Path::new(source)))).args([destination])
            }
        }
    }

    /// For messages.
    pub fn name(&self) -> &'static str {
        match self {
            Way::Here => "here",
            Way::Push(_) => "push",
            Way::Pull(_) => "pull",
        }
    }
}

/// `path` with a slash at its end: its contents.
pub fn contents(path: &Path) -> OsString {
    let mut typed = path.as_os_str().to_owned();
    typed.push("/");
    typed
}
