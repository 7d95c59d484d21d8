//! lftp to SFTP.
//!
//! `mirror -R --parallel`: a connection for each file that is under way, so that many files hide the round
//! trip. A file that is sent is one stream (`pget` is for files that are fetched). lftp(1): so many
//! `sftp:max-packets-in-flight` that twice ssh's own window (2 MiB) is under way. `sftp:size-write` stays at
//! its 32 KiB: with more than lftp's own buffers of 64 KiB each packet waits for half a second.

use std::any::Any;

use super::{Job, Peer, Said, ask_version};
use crate::host::Bench;

/// Files under way.
const PARALLEL: &str = "16";
const PACKETS: u32 = 128;

pub struct Lftp;

impl Peer for Lftp {
    fn name(&self) -> &'static str {
        "lftp"
    }
    fn about(&self) -> &'static str {
        "lftp mirror -R to SFTP, 16 files at a time, 128 x 32 KiB in flight each; ssh (AES-GCM); not on media when it ends"
    }
    fn packages(&self) -> &'static [&'static str] {
        &["lftp", "openssh-client", "openssh-server", "openssh-sftp-server"]
    }

    fn version(&self) -> anyhow::Result<String> {
        ask_version("lftp", &["--version"], "lftp")
    }

    fn start(&self, _: &Bench) -> anyhow::Result<Box<dyn Any>> {
        Ok(Box::new(()))
    }

    fn copy(&self, job: &Job<'_>) -> anyhow::Result<Said> {
        let mut command = job.bench.near().command("lftp");
        command.args(["--norc", "-c", &script(job)?]);
        job.bench.run(&mut command, job.limit)?;
        Ok(Said::default())
    }
}

fn script(job: &Job<'_>) -> anyhow::Result<String> {
    job.check_settings(&["parallel"])?;
    let parallel = job.setting("parallel", PARALLEL);
    let bench = job.bench;
    let settings = [
        "cmd:fail-exit yes".to_owned(),
        "net:max-retries 1".to_owned(),
        "net:timeout 60".to_owned(),
        "net:connection-limit 0".to_owned(),
        format!("sftp:connect-program \"{} -a -x\"", bench.ssh_words()),
        format!("sftp:max-packets-in-flight {PACKETS}"),
    ];
    let set: String = settings.iter().map(|setting| format!("set {setting}; ")).collect();
    let open =
        format!("open -u {},none -p {} sftp://{}; ", super::user(), bench.ssh_port, bench.far().address);
    let mirror =
        format!("mirror -R --parallel={parallel} \"{}/\" \"{}/\"", job.from.display(), job.to.display());
    Ok(format!("{set}{open}{mirror}"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::Fixture;
    use super::*;

    /// Goal: content goes into content, through the bench's ssh.
    /// Method: a table of jobs.
    #[test]
    fn peer_lftp_script() {
        let of = |settings: &[(&str, &str)]| script(&Fixture::new(settings).job());
        let best = of(&[]).unwrap();
        assert!(best.contains("set sftp:connect-program \"ssh -F none -a -x\"; "), "{best}");
        assert!(best.ends_with("sftp://10.77.0.2; mirror -R --parallel=16 \"/from/\" \"/to/\""), "{best}");
        assert!(of(&[("parallel", "2")]).unwrap().contains("--parallel=2 "));
    }
}
