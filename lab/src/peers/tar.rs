//! tar from here to there: through ssh, or through a bare socket.
//!
//! One stream without a round trip per file: for many small files what others are held against. Records of
//! 256 KiB (`-b 512`): fewer system calls than with the 10 KiB of tapes. Through ssh the channel's window (2
//! MiB in OpenSSH) limits a long path. Through a socket (socat) the kernel sizes the window, and nothing
//! protects the data; the far tar has the socket itself as its input (`nofork`), and answers when it has
//! ended well, for that the last byte was sent says nothing of it.

use std::any::Any;
use std::fs;
use std::process::Command;

use anyhow::{Context as _, ensure};

use super::{Job, Peer, Said, ask_version};
use crate::host::Bench;

/// $1 from, $2 to, the rest: ssh, its options and the host.
const THROUGH_SSH: &str = r#"set -o pipefail
from=$1 to=$2; shift 2
tar -C "$from" -b 512 -c . | "$@" "tar -C '$to' -b 512 -x""#;
/// $1 from, $2 to, $3 address and port. socat closes its half when tar has ended, and waits for the answer.
const THROUGH_SOCKET: &str = r#"set -o pipefail
{ printf '%s\n' "$2"; tar -C "$1" -b 512 -c .; } | socat -b 1048576 -t 1000000 - "TCP:$3""#;
/// What runs at the far end of each connection.
const FAR: &str = r#"exec 2>&1
read -r to && tar -C "$to" -b 512 --read-full-records -x && echo done
"#;

pub struct SshTar;

impl Peer for SshTar {
    fn name(&self) -> &'static str {
        "ssh_tar"
    }
    fn about(&self) -> &'static str {
        "tar | ssh tar, one ssh connection; ssh (AES-GCM); not on media when it ends"
    }
    fn packages(&self) -> &'static [&'static str] {
        &["tar", "openssh-client", "openssh-server"]
    }

    fn version(&self) -> anyhow::Result<String> {
        Ok(format!(
            "{}, {}",
            ask_version("tar", &["--version"], "tar")?,
            ask_version("ssh", &["-V"], "openssh-client")?
        ))
    }

    fn start(&self, _: &Bench) -> anyhow::Result<Box<dyn Any>> {
        Ok(Box::new(()))
    }

    fn copy(&self, job: &Job<'_>) -> anyhow::Result<Said> {
        job.check_settings(&[])?;
        plain(job)?;
        let mut command = script(job, THROUGH_SSH);
        command.args(&job.bench.ssh).arg(&job.bench.far().address);
        job.bench.run(&mut command, job.limit)?;
        Ok(Said::default())
    }
}

pub struct Tar;

impl Peer for Tar {
    fn name(&self) -> &'static str {
        "tar"
    }
    fn about(&self) -> &'static str {
        "tar over a bare TCP socket (socat), one connection; unprotected; not on media when it ends"
    }
    fn packages(&self) -> &'static [&'static str] {
        &["tar", "socat"]
    }

    fn version(&self) -> anyhow::Result<String> {
        let socat = ask_version("socat", &["-V"], "socat");
        // Its first line is about people, the second one is `socat version ...`.
        let said = crate::process::run(Command::new("socat").arg("-V"), super::VERSION_PATIENCE);
        let version = said.ok().and_then(|said| Some(said.stdout.lines().nth(1)?.to_owned()));
        Ok(format!("{}, {}", ask_version("tar", &["--version"], "tar")?, version.map_or(socat, Ok)?))
    }

    fn start(&self, bench: &Bench) -> anyhow::Result<Box<dyn Any>> {
        let port = bench.port(self.name())?;
        let far = bench.far();
        let path = bench.scratch.join("tar-far.sh");
        fs::write(&path, FAR).with_context(|| format!("write {}", path.display()))?;
        let listen = format!("TCP-LISTEN:{port},bind={},reuseaddr,fork", far.address);
        let run = format!("EXEC:bash {},nofork", path.display());
        Ok(Box::new(far.server("socat", port, |command| {
            command.args([listen, run]);
        })?))
    }

    fn copy(&self, job: &Job<'_>) -> anyhow::Result<Said> {
        job.check_settings(&[])?;
        plain(job)?;
        let mut command = script(job, THROUGH_SOCKET);
        command.arg(format!("{}:{}", job.bench.far().address, job.bench.port(self.name())?));
        let said = job.bench.run(&mut command, job.limit)?;
        ensure!(said.stdout == "done\n", "the far tar failed: {} {}", said.stdout.trim(), said.stderr.trim());
        Ok(Said::default())
    }
}

fn script(job: &Job<'_>, text: &str) -> Command {
    let mut command = job.bench.near().command("bash");
    command.args(["-c", text, "tar"]).args([job.from, job.to]);
    command
}

/// The target's name becomes part of a shell's line, and of a line of its own.
fn plain(job: &Job<'_>) -> anyhow::Result<()> {
    let to = job.to.to_str().filter(|to| !to.contains(['\'', '\n', '\\']));
    to.map(drop)
        .with_context(|| format!("{} has quotes or is not UTF-8; take another directory", job.to.display()))
}
