//! rsync through ssh.
//!
//! New data to an empty directory. `--whole-file`: no comparing of old and new blocks (the manual: faster
//! where the network is; it is the default for local copies only). `--inplace`: no temporary file and rename
//! per file. No `-z`: the data does not compress. One process and one ssh connection: the channel's window (2
//! MiB in OpenSSH) limits a long path.

use std::any::Any;

use super::{Job, Peer, Said, ask_version};
use crate::host::Bench;

pub struct Rsync;

impl Peer for Rsync {
    fn name(&self) -> &'static str {
        "rsync"
    }
    fn about(&self) -> &'static str {
        "rsync -a --whole-file --inplace, one ssh connection; ssh (AES-GCM); not on media when it ends, unless fsync=yes"
    }
    fn packages(&self) -> &'static [&'static str] {
        &["rsync", "openssh-client", "openssh-server"]
    }

    fn version(&self) -> anyhow::Result<String> {
        ask_version("rsync", &["--version"], "rsync")
    }

    fn start(&self, _: &Bench) -> anyhow::Result<Box<dyn Any>> {
        Ok(Box::new(()))
    }

    fn copy(&self, job: &Job<'_>) -> anyhow::Result<Said> {
        let mut command = job.bench.near().command("rsync");
        command.args(arguments(job)?);
        job.bench.run(&mut command, job.limit)?;
        Ok(Said::default())
    }
}

fn arguments(job: &Job<'_>) -> anyhow::Result<Vec<String>> {
    job.check_settings(&["fsync"])?;
    let mut arguments = ["-a", "--whole-file", "--inplace", "-e"].map(str::to_owned).to_vec();
    arguments.push(job.bench.ssh_words());
    if job.flag("fsync")? {
        arguments.push("--fsync".to_owned());
    }
    arguments.extend([job.source_slash(), format!("{}/", job.bench.remote(job.to))]);
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use super::super::tests::Fixture;
    use super::*;

    /// Goal: content goes into content, through the bench's ssh; fsync only where it is asked for.
    /// Method: a table of jobs.
    #[test]
    fn peer_rsync_arguments() {
        let of =
            |settings: &[(&str, &str)]| arguments(&Fixture::new(settings).job()).map(|words| words.join(" "));
        assert_eq!(of(&[]).unwrap(), "-a --whole-file --inplace -e ssh -F none /from/ 10.77.0.2:/to/");
        assert!(of(&[("fsync", "yes")]).unwrap().contains(" --fsync /from/"));
        assert!(!of(&[("fsync", "no")]).unwrap().contains("--fsync"));
        assert!(of(&[("fsync", "maybe")]).is_err() && of(&[("sync", "yes")]).is_err());
    }
}
