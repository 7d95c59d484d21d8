//! GridFTP: Globus's client and server, anonymous, without any protection.
//!
//! One file: `-p 8 -fast` (MODE E, eight data connections; the Globus guide and ESnet: 4 to 8 on long paths),
//! from the client's own files. Many: third party from a server at the near host, for only there `-pp`
//! (pipelined commands, no round trip per file) has effect, over `-cc 8` control connections. `-tcp-bs` is
//! not set: a buffer that is set turns the kernel's own sizing off, and is cut to `net.core.*mem_max`; as a
//! setting `tcp-bs` takes bytes, or `bdp` for twice the bandwidth-delay product by the number of connections.

use std::any::Any;
use std::fs;
use std::path::Path;

use anyhow::Context as _;

use super::{Job, Peer, Said, ask_version};
use crate::host::{Bench, Host};
use crate::process::Server;

const PARALLEL: &str = "8";
const CONCURRENCY: &str = "8";
pub(super) const FAR: &str = "gridftp";
pub(super) const NEAR: &str = "gridftp-near";
/// Server and client ask for the names of addresses and fail without an answer; a host of the lab has no name
/// service. $0 is a file to find it in, in place of /etc/hosts and for this program only.
const WITH_NAMES: &str = r#"mount --bind "$0" /etc/hosts && exec "$@""#;

pub struct Gridftp;

impl Peer for Gridftp {
    fn name(&self) -> &'static str {
        "gridftp"
    }
    fn about(&self) -> &'static str {
        "globus-url-copy -fast, one file: -p 8, many: third party -pp -cc 8; UNPROTECTED, anonymous; not on media when it ends"
    }
    fn packages(&self) -> &'static [&'static str] {
        &["globus-gass-copy-progs", "globus-gridftp-server-progs"]
    }

    fn version(&self) -> anyhow::Result<String> {
        let client = ask_version("globus-url-copy", &["-version"], "globus-gass-copy-progs")?;
        let server = ask_version("globus-gridftp-server", &["-version"], "globus-gridftp-server-progs")?;
        Ok(format!("{client}, {server}"))
    }

    fn start(&self, bench: &Bench) -> anyhow::Result<Box<dyn Any>> {
        let far = server(bench, bench.far(), bench.port(FAR)?)?;
        let near = server(bench, bench.near(), bench.port(NEAR)?)?;
        Ok(Box::new([far, near]))
    }

    fn copy(&self, job: &Job<'_>) -> anyhow::Result<Said> {
        let near = job.bench.near();
        let mut words = with_names(job.bench, near)?;
        words.push("globus-url-copy".to_owned());
        words.extend(arguments(job)?);
        let mut command = near.command(&words[0]);
        command.env("GLOBUS_HOSTNAME", &near.address).args(&words[1..]);
        job.bench.run(&mut command, job.limit)?;
        Ok(Said::default())
    }
}

pub(super) fn server(bench: &Bench, host: &Host, port: u16) -> anyhow::Result<Server> {
    let user = super::user();
    let mut words = with_names(bench, host)?;
    // No configuration of the machine's; no fork into the background. `-aa` lets anonymous users in.
    let own = ["globus-gridftp-server", "-c", "", "-s", "-aa", "-anonymous-user", &user, "-allow-root"];
    words.extend(own.map(str::to_owned));
    words.extend(["-allow-disabled-login", "-p", &port.to_string()].map(str::to_owned));
    words.extend(["-control-interface", &host.address, "-data-interface", &host.address].map(str::to_owned));
    host.server(&words[0], port, |command| {
        command.env("GLOBUS_HOSTNAME", &host.address).args(&words[1..]);
    })
}

/// Words that bring a program of a host under names for both addresses.
pub(super) fn with_names(bench: &Bench, host: &Host) -> anyhow::Result<Vec<String>> {
    if host.namespace.is_none() {
        return Ok(Vec::new());
    }
    let path = bench.scratch.join("gridftp-hosts");
    let [near, far] = [&bench.near().address, &bench.far().address];
    fs::write(&path, format!("127.0.0.1 localhost\n{near} near\n{far} far\n"))
        .with_context(|| format!("write {}", path.display()))?;
    Ok(["unshare", "--mount", "sh", "-c", WITH_NAMES, &path.display().to_string()]
        .map(str::to_owned)
        .to_vec())
}

fn arguments(job: &Job<'_>) -> anyhow::Result<Vec<String>> {
    job.check_settings(&["parallel", "concurrency", "tcp-bs"])?;
    let bench = job.bench;
    let one = job.workload.files == 1;
    let parallel = job.setting("parallel", if one { PARALLEL } else { "1" });
    let mut arguments = ["-fast", "-r", "-cd", "-p", &parallel].map(str::to_owned).to_vec();
    match job.settings.get("tcp-bs").map(String::as_str) {
        None => {}
        Some("bdp") => {
            let bdp = bench.line.bdp().context("tcp-bs=bdp needs a path with a rate")?;
            let flows: u64 = parallel.parse().context("the setting parallel is a number")?;
            arguments.extend(["-tcp-bs".to_owned(), (2 * bdp / flows.max(1)).max(64 << 10).to_string()]);
        }
        Some(bytes) => arguments.extend(["-tcp-bs".to_owned(), bytes.to_owned()]),
    }
    let url =
        |host: &Host, port: u16, path: &Path| format!("ftp://{}:{port}{}/", host.address, path.display());
    if one {
        arguments.push(format!("file://{}/", job.from.display()));
    } else {
        arguments.extend(["-pp".to_owned(), "-cc".to_owned(), job.setting("concurrency", CONCURRENCY)]);
        arguments.push(url(bench.near(), bench.port(NEAR)?, job.from));
    }
    arguments.push(url(bench.far(), bench.port(FAR)?, job.to));
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use super::super::tests::Fixture;
    use super::*;

    /// Goal: one file goes over eight connections from the client, many by pipelined third-party transfers;
    /// buffers are set only where asked for, from the path.
    /// Method: both workloads; 10 Gbit/s at 128 ms are 160 MB on the way, a quarter of twice that for 8
    /// connections.
    #[test]
    fn peer_gridftp_arguments() {
        let many = Fixture::new(&[]);
        let words = arguments(&many.job()).unwrap().join(" ");
        assert!(words.starts_with("-fast -r -cd -p 1 -pp -cc 8 ftp://10.77.0.1:"), "{words}");
        assert!(words.ends_with("/to/") && words.contains(" ftp://10.77.0.2:"), "{words}");
        let mut one = Fixture::new(&[("tcp-bs", "bdp")]);
        one.workload.files = 1;
        let words = arguments(&one.job()).unwrap().join(" ");
        assert!(
            words.starts_with("-fast -r -cd -p 8 -tcp-bs 40000000 file:///from/ ftp://10.77.0.2:"),
            "{words}"
        );
    }
}
