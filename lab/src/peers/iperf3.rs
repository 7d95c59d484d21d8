//! iperf3: from memory to memory, which is the most that TCP moves over this network.
//!
//! As many bytes as the workload has, and at least those of a second, over eight connections (ESnet,
//! fasterdata: several flows where one is limited by its window or by loss); one is to be asked for by
//! `flows`. The kernel sizes the windows; `congestion` names another congestion control than the machine's.
//! Unprotected.

use std::any::Any;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use super::{Job, Peer, Said, ask_version};
use crate::host::Bench;

/// Fewer bytes than this say nothing where no rate is set.
const BYTES_MIN: u64 = 64 << 20;
/// Round trips' worth that are the least: a new connection needs some until it is at its rate.
const BDPS_MIN: u64 = 4;

const FLOWS: &str = "8";

pub struct Iperf3;

impl Peer for Iperf3 {
    fn name(&self) -> &'static str {
        "iperf3"
    }
    fn about(&self) -> &'static str {
        "LIMIT of the network: as many bytes (at least a second's) from memory to memory, 8 TCP flows; unprotected; nothing is stored"
    }
    fn packages(&self) -> &'static [&'static str] {
        &["iperf3"]
    }
    fn limit(&self) -> Option<&'static str> {
        Some("network")
    }

    fn version(&self) -> anyhow::Result<String> {
        ask_version("iperf3", &["--version"], "iperf3")
    }

    fn start(&self, bench: &Bench) -> anyhow::Result<Box<dyn Any>> {
        let port = bench.port(self.name())?;
        let address = bench.far().address.clone();
        let server = bench.far().server("iperf3", port, |command| {
            command.args(["-s", "-B", &address, "-p", &port.to_string()]);
        })?;
        Ok(Box::new(server))
    }

    fn copy(&self, job: &Job<'_>) -> anyhow::Result<Said> {
        let mut command = job.bench.near().command("iperf3");
        command.args(arguments(job)?);
        let said = job.bench.run(&mut command, job.limit)?;
        result(&said.stdout)
    }
}

fn arguments(job: &Job<'_>) -> anyhow::Result<Vec<String>> {
    job.check_settings(&["flows", "congestion"])?;
    let line = &job.bench.line;
    let least =
        line.bdp().zip(line.rate).map(|(bdp, rate)| bdp.saturating_mul(BDPS_MIN).saturating_add(rate / 8));
    let bytes = job.workload.bytes().max(least.unwrap_or(BYTES_MIN));
    let mut arguments = ["-J", "-l", "1M"].map(str::to_owned).to_vec();
    arguments.extend(["-n".to_owned(), bytes.to_string(), "-P".to_owned(), job.setting("flows", FLOWS)]);
    arguments.extend(["-c".to_owned(), job.bench.far().address.clone()]);
    arguments.extend(["-p".to_owned(), job.bench.port("iperf3")?.to_string()]);
    if let Some(congestion) = job.settings.get("congestion") {
        arguments.extend(["-C".to_owned(), congestion.clone()]);
    }
    Ok(arguments)
}

/// What arrived, and in what time.
fn result(said: &str) -> anyhow::Result<Said> {
    let all: Value = serde_json::from_str(said).context("read what iperf3 says")?;
    if let Some(error) = all["error"].as_str() {
        anyhow::bail!("iperf3: {error}");
    }
    let end = &all["end"];
    let received = &end["sum_received"];
    let figures = received["seconds"].as_f64().zip(received["bytes"].as_u64());
    let (seconds, bytes) = figures.context("iperf3 says nothing of what was received")?;
    ensure!(seconds > 0.0 && bytes > 0, "iperf3: {bytes} bytes in {seconds} s");
    let more = json!({
        "sent": end["sum_sent"],
        "received": received,
        "cpu": end["cpu_utilization_percent"],
        "congestion": end["sender_tcp_congestion"],
    });
    Ok(Said { seconds: Some(seconds), bytes: Some(bytes), memory_only: true, more, ..Said::default() })
}

#[cfg(test)]
mod tests {
    use super::super::tests::Fixture;
    use super::*;

    /// Goal: all flows together move the workload's bytes, or as many as say something.
    /// Method: jobs with and without settings, and with a large workload.
    #[test]
    fn peer_iperf3_arguments() {
        let of =
            |settings: &[(&str, &str)]| arguments(&Fixture::new(settings).job()).map(|words| words.join(" "));
        assert!(of(&[]).unwrap().starts_with("-J -l 1M -n 1890000000 -P 8 -c 10.77.0.2 -p "));
        let mut large = Fixture::new(&[]);
        large.workload.size = 1 << 30;
        assert!(arguments(&large.job()).unwrap().contains(&(3u64 << 30).to_string()));
        let one = of(&[("flows", "1"), ("congestion", "bbr")]).unwrap();
        assert!(one.contains(" -P 1 ") && one.ends_with(" -C bbr"), "{one}");
    }

    /// Goal: the receiver's figures count; an error is one.
    /// Method: results as iperf3 writes them.
    #[test]
    fn peer_iperf3_result() {
        let good = r#"{"end":{"sum_sent":{"bytes":9},"sum_received":{"seconds":2.0,"bytes":8}}}"#;
        let said = result(good).unwrap();
        assert_eq!((said.seconds, said.bytes, said.memory_only), (Some(2.0), Some(8), true));
        assert!(result(r#"{"end":{},"error":"refused"}"#).unwrap_err().to_string().contains("refused"));
        let nothing = r#"{"end":{"sum_received":{"seconds":0,"bytes":0}}}"#;
        assert!(result("{}").is_err() && result("").is_err() && result(nothing).is_err());
    }
}
