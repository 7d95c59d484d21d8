//! fio: the most that the storage at one end takes or gives.
//!
//! Writes as many files of the same size at the far end, or reads the workload itself at the near one
//! (`rw=read`), past the page cache, 16 requests of 1 MiB in flight in each of two jobs. Sizes are rounded up
//! to 4 KiB, for direct I/O has no odd ends. Its time does not include its own start.

use std::any::Any;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use super::{Job, Peer, Said, ask_version};
use crate::host::Bench;

const ALIGNMENT: u64 = 4096;
const REQUEST: u64 = 1 << 20;
const DEPTH: &str = "16";
const JOBS: u64 = 2;

pub struct Fio;

impl Peer for Fio {
    fn name(&self) -> &'static str {
        "fio"
    }
    fn about(&self) -> &'static str {
        "LIMIT of the storage: as many files of that size, direct, 2 jobs of 16 x 1 MiB; no network; fsync at the end"
    }
    fn packages(&self) -> &'static [&'static str] {
        &["fio"]
    }
    fn limit(&self) -> Option<&'static str> {
        Some("storage")
    }

    fn version(&self) -> anyhow::Result<String> {
        ask_version("fio", &["--version"], "fio")
    }

    fn start(&self, _: &Bench) -> anyhow::Result<Box<dyn Any>> {
        Ok(Box::new(()))
    }

    fn copy(&self, job: &Job<'_>) -> anyhow::Result<Said> {
        let read = job.setting("rw", "write") == "read";
        let host = if read { job.bench.near() } else { job.bench.far() };
        let mut command = host.command("fio");
        command.args(arguments(job)?).current_dir(&host.home);
        let said = job.bench.run(&mut command, job.limit)?;
        result(&said.stdout, if read { "read" } else { "write" })
    }
}

fn arguments(job: &Job<'_>) -> anyhow::Result<Vec<String>> {
    job.check_settings(&["rw", "depth", "jobs", "request-size", "engine", "direct"])?;
    let size = job.workload.size.next_multiple_of(ALIGNMENT).max(ALIGNMENT);
    let request = job.setting("request-size", REQUEST.min(size).to_string());
    let jobs: u64 = match job.settings.get("jobs") {
        None => JOBS.min(job.workload.files),
        Some(jobs) => {
            jobs.parse().ok().filter(|jobs| *jobs > 0).context("the setting jobs is a number from 1")?
        }
    };
    let direct = job.setting("direct", "yes");
    ensure!(direct == "yes" || direct == "no", "the setting direct is yes or no, not {direct}");
    let mut arguments = vec![
        "--name=limit".to_owned(),
        "--output-format=json".to_owned(),
        "--thread".to_owned(),
        "--group_reporting".to_owned(),
        format!("--ioengine={}", job.setting("engine", "io_uring")),
        format!("--direct={}", u8::from(direct == "yes")),
        format!("--bs={request}"),
        format!("--iodepth={}", job.setting("depth", DEPTH)),
    ];
    match job.setting("rw", "write").as_str() {
        "write" => {
            let files = job.workload.files.div_ceil(jobs).max(1);
            arguments.extend([
                "--rw=write".to_owned(),
                format!("--numjobs={jobs}"),
                format!("--directory={}", job.to.display()),
                format!("--nrfiles={files}"),
                format!("--filesize={size}"),
                format!("--size={}", files * size),
                // Files are made while the clock runs, as a copy has to; one after the other.
                "--file_service_type=sequential".to_owned(),
                "--create_on_open=1".to_owned(),
                "--fallocate=none".to_owned(),
                "--end_fsync=1".to_owned(),
                format!("--openfiles={}", files.min(64)),
            ]);
        }
        "read" => arguments.extend([
            "--rw=read".to_owned(),
            "--numjobs=1".to_owned(),
            format!("--opendir={}", job.from.display()),
            "--file_service_type=sequential".to_owned(),
        ]),
        other => anyhow::bail!("the setting rw is read or write, not {other}"),
    }
    Ok(arguments)
}

fn result(said: &str, way: &str) -> anyhow::Result<Said> {
    // Warnings may stand before it.
    let begin = said.find('{').with_context(|| format!("fio says no figures: {}", said.trim()))?;
    let all: Value = serde_json::from_str(&said[begin..]).context("read what fio says")?;
    let job = &all["jobs"][0];
    ensure!(job["error"] == 0, "fio: error {}", job["error"]);
    let figures = job[way]["io_bytes"].as_u64().zip(job[way]["runtime"].as_f64());
    let (bytes, milliseconds) = figures.context("fio says no bytes or no time")?;
    ensure!(bytes > 0, "fio moved nothing");
    // It counts whole milliseconds.
    let seconds = milliseconds.max(1.0) / 1e3;
    let more = json!({ way: job[way], "fio version": all["fio version"] });
    Ok(Said { seconds: Some(seconds), bytes: Some(bytes), memory_only: true, more, ..Said::default() })
}

#[cfg(test)]
mod tests {
    use super::super::tests::Fixture;
    use super::*;

    /// Goal: as many bytes as the workload, in aligned pieces; one file has one job.
    /// Method: three files of 1000 bytes; one of 1 GiB; wrong settings.
    #[test]
    fn peer_fio_arguments() {
        let mut fixture = Fixture::new(&[]);
        let words = arguments(&fixture.job()).unwrap().join(" ");
        assert!(
            words.contains("--numjobs=2 --directory=/to --nrfiles=2 --filesize=4096 --size=8192 "),
            "{words}"
        );
        assert!(words.contains(" --bs=4096 "), "{words}");
        fixture.workload = crate::workload::Workload { files: 1, size: 1 << 30, seed: 1 };
        let words = arguments(&fixture.job()).unwrap().join(" ");
        assert!(words.contains(" --bs=1048576 ") && words.contains("--numjobs=1 "), "{words}");
        let read = arguments(&Fixture::new(&[("rw", "read")]).job()).unwrap().join(" ");
        assert!(read.contains("--rw=read --numjobs=1 --opendir=/from"), "{read}");
        for bad in [("rw", "trim"), ("jobs", "0"), ("direct", "1"), ("bs", "1")] {
            assert!(arguments(&Fixture::new(&[bad]).job()).is_err(), "{bad:?}");
        }
    }

    /// Goal: figures are those of the direction that was asked for; an error is one.
    /// Method: results as fio writes them.
    #[test]
    fn peer_fio_result() {
        let good = "note: x\n{\"jobs\":[{\"error\":0,\"write\":{\"io_bytes\":4096,\"runtime\":2000}}]}";
        let said = result(good, "write").unwrap();
        assert_eq!((said.seconds, said.bytes, said.memory_only), (Some(2.0), Some(4096), true));
        assert!(result(good, "read").is_err() && result("", "write").is_err());
        assert!(result("{\"jobs\":[{\"error\":22}]}", "write").unwrap_err().to_string().contains("22"));
    }
}
