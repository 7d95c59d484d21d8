//! rclone to an SFTP remote.
//!
//! `--sftp-chunk-size 255k` is what rclone's manual recommends for OpenSSH, with 64 of them in flight (its
//! default). Each transfer has a connection of its own, so that many files are limited by neither the round
//! trip nor ssh's window; one file is: an upload by SFTP is one stream (`--multi-thread-streams` is for
//! downloads). No checksums afterwards (rclone would run `md5sum` on both sides and read all again), and no
//! look for what is there.

use std::any::Any;
use std::fs;

use anyhow::Context as _;

use super::{Job, Peer, Said, ask_version};
use crate::host::Bench;

/// As many as saturate a path of 128 ms with small files without exhausting an sshd (rclone's manual: 8 to
/// 64).
const TRANSFERS: &str = "32";
const CHUNK: &str = "255k";
const CONCURRENCY: &str = "64";
const CONFIG: &str = "rclone.conf";

pub struct Rclone;

impl Peer for Rclone {
    fn name(&self) -> &'static str {
        "rclone"
    }
    fn about(&self) -> &'static str {
        "rclone copy to SFTP, 32 transfers, 64 x 255 KiB in flight each; ssh, no checksums after; not on media when it ends"
    }
    fn packages(&self) -> &'static [&'static str] {
        &["rclone", "openssh-server", "openssh-sftp-server"]
    }

    fn version(&self) -> anyhow::Result<String> {
        ask_version("rclone", &["version"], "rclone")
    }

    fn start(&self, bench: &Bench) -> anyhow::Result<Box<dyn Any>> {
        let path = bench.scratch.join(CONFIG);
        let dir = bench.scratch.display();
        let config = format!(
            "[far]\ntype = sftp\nhost = {}\nport = {}\nuser = {}\nkey_file = {dir}/user_key\n\
             known_hosts_file = {dir}/known_hosts\ndisable_hashcheck = true\nmd5sum_command = none\n\
             sha1sum_command = none\nshell_type = none\n",
            bench.far().address,
            bench.ssh_port,
            super::user(),
        );
        fs::write(&path, config).with_context(|| format!("write {}", path.display()))?;
        Ok(Box::new(()))
    }

    fn copy(&self, job: &Job<'_>) -> anyhow::Result<Said> {
        let mut command = job.bench.near().command("rclone");
        command.args(arguments(job)?);
        job.bench.run(&mut command, job.limit)?;
        Ok(Said::default())
    }
}

fn arguments(job: &Job<'_>) -> anyhow::Result<Vec<String>> {
    job.check_settings(&["transfers", "chunk-size", "concurrency"])?;
    let transfers = job.setting("transfers", TRANSFERS);
    let mut arguments = vec![
        "copy".to_owned(),
        format!("--config={}", job.bench.scratch.join(CONFIG).display()),
        format!("--cache-dir={}", job.bench.near().home.display()),
        format!("--transfers={transfers}"),
        format!("--checkers={transfers}"),
        format!("--sftp-chunk-size={}", job.setting("chunk-size", CHUNK)),
        format!("--sftp-concurrency={}", job.setting("concurrency", CONCURRENCY)),
    ];
    // A try is a try: what fails is no figure.
    arguments.extend(
        ["--retries=1", "--ignore-checksum", "--no-check-dest", "--stats=0", "-q"].map(str::to_owned),
    );
    arguments.extend([job.from.display().to_string(), format!("far:{}", job.to.display())]);
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use super::super::tests::Fixture;
    use super::*;

    /// Goal: as many checkers as transfers; no configuration but the bench's.
    /// Method: a table of jobs.
    #[test]
    fn peer_rclone_arguments() {
        let of =
            |settings: &[(&str, &str)]| arguments(&Fixture::new(settings).job()).map(|words| words.join(" "));
        let best = of(&[]).unwrap();
        assert!(
            best.starts_with("copy --config=/scratch/rclone.conf --cache-dir=/home-of-host --transfers=32 ")
        );
        assert!(best.ends_with(" /from far:/to"), "{best}");
        assert!(of(&[("transfers", "4")]).unwrap().contains(" --transfers=4 --checkers=4 "));
        assert!(of(&[("transfer", "4")]).is_err());
    }
}
