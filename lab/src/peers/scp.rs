//! scp, which speaks SFTP since OpenSSH 9.
//!
//! `nrequests` and `buffer` (scp(1)): the largest write that OpenSSH's sftp-server takes, and more of them in
//! flight than the 64 of the default. One connection: its window (2 MiB in OpenSSH) limits a long path, and
//! each file takes several round trips.

use std::any::Any;

use super::{Job, Peer, Said, ask_version};
use crate::host::Bench;

/// What sftp-server takes at most: 256 KiB of packet less 1 KiB for the rest of it.
const BUFFER: &str = "261120";
const REQUESTS: &str = "256";

pub struct Scp;

impl Peer for Scp {
    fn name(&self) -> &'static str {
        "scp"
    }
    fn about(&self) -> &'static str {
        "scp -r -p (SFTP), 256 requests of 255 KiB in flight, one ssh connection; ssh (AES-GCM); not on media when it ends"
    }
    fn packages(&self) -> &'static [&'static str] {
        &["openssh-client", "openssh-server", "openssh-sftp-server"]
    }

    fn version(&self) -> anyhow::Result<String> {
        ask_version("ssh", &["-V"], "openssh-client")
    }

    fn start(&self, _: &Bench) -> anyhow::Result<Box<dyn Any>> {
        Ok(Box::new(()))
    }

    fn copy(&self, job: &Job<'_>) -> anyhow::Result<Said> {
        let mut command = job.bench.near().command("scp");
        command.args(arguments(job)?);
        job.bench.run(&mut command, job.limit)?;
        Ok(Said::default())
    }
}

fn arguments(job: &Job<'_>) -> anyhow::Result<Vec<String>> {
    job.check_settings(&["nrequests", "buffer"])?;
    let mut arguments = ["-q", "-r", "-p"].map(str::to_owned).to_vec();
    for (name, best) in [("nrequests", REQUESTS), ("buffer", BUFFER)] {
        arguments.extend(["-X".to_owned(), format!("{name}={}", job.setting(name, best))]);
    }
    arguments.extend(job.bench.ssh[1..].iter().cloned());
    arguments.extend([format!("{}/.", job.from.display()), format!("{}/", job.bench.remote(job.to))]);
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use super::super::tests::Fixture;
    use super::*;

    /// Goal: the bench's ssh options are scp's as well; the content goes, not the directory.
    /// Method: a table of jobs.
    #[test]
    fn peer_scp_arguments() {
        let of =
            |settings: &[(&str, &str)]| arguments(&Fixture::new(settings).job()).map(|words| words.join(" "));
        let best = "-q -r -p -X nrequests=256 -X buffer=261120 -F none /from/. 10.77.0.2:/to/";
        assert_eq!(of(&[]).unwrap(), best);
        assert!(of(&[("nrequests", "1")]).unwrap().contains("nrequests=1 "));
    }
}
