//! XRootD: xrdcp to an xrootd server, without authentication or protection.
//!
//! One file: `-S 15`, the most streams that xrdcp has, and as many chunks of 8 MiB in flight
//! (`XRD_CPPARALLELCHUNKS`, 4 by default) as twice the path holds (xrdcp(1)). Many: 16 copies at a time
//! (`--parallel`), each with its own chunks. xrootd refuses to run as root; it gets a user namespace in which
//! root has another number, so that files belong to root outside.

use std::any::Any;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::{Job, Peer, Said, ask_version};
use crate::host::Bench;

const STREAMS: &str = "15";
/// xrdcp(1) knows no limit; each is a thread of xrdcp with connections of its own to one server.
const PARALLEL: &str = "16";
const CHUNK: u64 = 8 << 20;
/// Chunks in flight: xrdcp's default, and 1 GiB of memory.
const CHUNKS: std::ops::RangeInclusive<u64> = 4..=128;
/// Any number but root's.
const USER: &str = "65533";

pub struct Xrootd;

impl Peer for Xrootd {
    fn name(&self) -> &'static str {
        "xrootd"
    }
    fn about(&self) -> &'static str {
        "xrdcp, one file: -S 15, many: --parallel 16; chunks in flight for twice the path; UNPROTECTED; not on media when it ends"
    }
    fn packages(&self) -> &'static [&'static str] {
        &["xrootd-client", "xrootd-server"]
    }

    fn version(&self) -> anyhow::Result<String> {
        let client = ask_version("xrdcp", &["--version"], "xrootd-client")?;
        Ok(format!("xrdcp {client}, xrootd {}", ask_version("xrootd", &["-v"], "xrootd-server")?))
    }

    fn start(&self, bench: &Bench) -> anyhow::Result<Box<dyn Any>> {
        let port = bench.port(self.name())?;
        let dir = bench.scratch.join("xrootd");
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        let config = dir.join("xrootd.cfg");
        let text = format!(
            "all.export / r/w\nall.adminpath {dir}\nall.pidpath {dir}\nxrd.port {port}\nxrd.network nodnr\n\
             xrd.allow host {near}\n",
            dir = dir.display(),
            near = bench.near().address,
        );
        fs::write(&config, text).with_context(|| format!("write {}", config.display()))?;
        let own = ["xrootd", "-n", "lab", "-c"];
        let root = rustix::process::geteuid().is_root();
        let program = if root { "unshare" } else { own[0] };
        let server = bench.far().server(program, port, |command| {
            if root {
                command.args(["--user", "--map-user", USER, "--map-group", USER, "--", own[0]]);
            }
            command.args(&own[1..]).arg(&config).current_dir(&dir);
        })?;
        Ok(Box::new(server))
    }

    fn copy(&self, job: &Job<'_>) -> anyhow::Result<Said> {
        let mut command = job.bench.near().command("xrdcp");
        let (environment, arguments) = call(job, &entries(job.from)?)?;
        command.envs(environment).args(arguments);
        job.bench.run(&mut command, job.limit)?;
        Ok(Said::default())
    }
}

/// What is in a directory: xrdcp would take the directory itself along.
fn entries(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let list = fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))?;
    let paths: std::io::Result<Vec<_>> = list.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut paths = paths.with_context(|| format!("list {}", dir.display()))?;
    paths.sort();
    Ok(paths)
}

/// Environment and arguments.
fn call(job: &Job<'_>, entries: &[PathBuf]) -> anyhow::Result<(Vec<(&'static str, String)>, Vec<String>)> {
    job.check_settings(&["streams", "parallel", "chunks"])?;
    let one = job.workload.files == 1;
    let chunks = job.setting("chunks", chunks(job.bench.line.bdp()).to_string());
    let environment = vec![
        ("XRD_CPPARALLELCHUNKS", if one { chunks } else { CHUNKS.start().to_string() }),
        ("XRD_CPCHUNKSIZE", CHUNK.to_string()),
    ];
    let mut arguments = ["-s", "-f", "-N", "-r"].map(str::to_owned).to_vec();
    if one {
        arguments.extend(["-S".to_owned(), job.setting("streams", STREAMS)]);
    } else {
        arguments.extend(["--parallel".to_owned(), job.setting("parallel", PARALLEL)]);
    }
    let port = job.bench.port("xrootd")?;
    arguments.extend(entries.iter().map(|path| path.display().to_string()));
    arguments.push(format!("root://{}:{port}/{}/", job.bench.far().address, job.to.display()));
    Ok((environment, arguments))
}

/// So many that twice the path is full.
fn chunks(bdp: Option<u64>) -> u64 {
    let wanted = bdp.unwrap_or(0).saturating_mul(2).div_ceil(CHUNK);
    wanted.clamp(*CHUNKS.start(), *CHUNKS.end())
}

#[cfg(test)]
mod tests {
    use super::super::tests::Fixture;
    use super::*;

    /// Goal: chunks in flight follow from the path, within bounds.
    /// Method: 128 ms and 0.28 ms at 10 Gbit/s, loopback, and a path to the moon.
    #[test]
    fn peer_xrootd_chunks() {
        assert_eq!(chunks(Some(160_000_000)), 39);
        assert_eq!(chunks(Some(350_000)), 4);
        assert_eq!(chunks(None), 4);
        assert_eq!(chunks(Some(u64::MAX)), 128);
    }

    /// Goal: one file gets streams, many get jobs.
    /// Method: both workloads.
    #[test]
    fn peer_xrootd_call() {
        let mut fixture = Fixture::new(&[]);
        let (environment, words) = call(&fixture.job(), &["/from/d0".into(), "/from/d1".into()]).unwrap();
        assert_eq!(environment[0].1, "4");
        assert!(words.join(" ").starts_with("-s -f -N -r --parallel 16 /from/d0 /from/d1 root://10.77.0.2:"));
        fixture.workload.files = 1;
        let (environment, words) = call(&fixture.job(), &["/from/d0".into(), "/from/d1".into()]).unwrap();
        assert_eq!(environment[0].1, "39");
        assert!(words.contains(&"-S".to_owned()) && words.last().unwrap().ends_with("//to/"), "{words:?}");
    }
}
