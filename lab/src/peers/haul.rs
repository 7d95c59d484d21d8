//! haul itself.
//!
//! Its best known setting is none at all: it chooses by itself. Settings are the long options of `haul cp`,
//! and `from` and `to` in place of the job's own (`null://SIZE`, `null://`), for transfers without storage.

use std::any::Any;

use serde_json::Value;

use super::{Job, Peer, Said, ask_version};
use crate::host::{self, Bench};

/// Options that experiments may set, by their long names.
const OPTIONS: &[&str] = &[
    "streams",
    "readers",
    "writers",
    "order",
    "object-size",
    "request-size",
    "depth",
    "io-threads",
    "memory",
    "durability",
    "io",
    "engine",
    "via",
    "digest",
    "protect",
    "verify",
    "congestion",
    "schedule",
    "in-flight",
    "spill",
    "spill-size",
];

pub struct Haul;

impl Peer for Haul {
    fn name(&self) -> &'static str {
        "haul"
    }
    fn about(&self) -> &'static str {
        "haul cp -r, chooses by itself; TLS 1.3 and BLAKE3 of every byte; on media when it ends, unless durability=none"
    }
    fn packages(&self) -> &'static [&'static str] {
        &[]
    }

    fn version(&self) -> anyhow::Result<String> {
        ask_version(&host::haul().to_string_lossy(), &["--version"], "none, build it: make build")
    }

    fn start(&self, _: &Bench) -> anyhow::Result<Box<dyn Any>> {
        Ok(Box::new(()))
    }

    fn copy(&self, job: &Job<'_>) -> anyhow::Result<Said> {
        let mut command = job.bench.near().command(&job.bench.haul);
        command.args(arguments(job)?);
        let said = job.bench.run(&mut command, job.limit)?;
        let ends = ["from", "to"].map(|end| job.settings.contains_key(end));
        summary(&said.stdout, ends.contains(&true))
    }
}

fn arguments(job: &Job<'_>) -> anyhow::Result<Vec<String>> {
    job.check_settings(&[OPTIONS, &["from", "to"]].concat())?;
    let from = job.setting("from", job.source_slash());
    let to = job.setting("to", job.to.display().to_string());
    let mut arguments = ["cp", "--json", "-q", "--no-push", "-e"].map(str::to_owned).to_vec();
    arguments.push(job.bench.ssh_words());
    if !job.settings.contains_key("from") {
        arguments.push("-r".to_owned());
    }
    for (name, value) in job.settings.iter().filter(|(name, _)| OPTIONS.contains(&name.as_str())) {
        arguments.push(format!("--{name}={value}"));
    }
    arguments.extend([from, format!("{}:{to}", job.bench.far().address)]);
    Ok(arguments)
}

/// What the last line of its events says. `memory_only`: nothing lies at the far end that is the job's.
pub(super) fn summary(events: &str, memory_only: bool) -> anyhow::Result<Said> {
    let last = events.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let more: Value =
        serde_json::from_str(last).map_err(|error| anyhow::anyhow!("haul's summary: {error}"))?;
    anyhow::ensure!(more["event"] == "summary", "haul's last event is no summary: {last}");
    anyhow::ensure!(more["status"] == "complete", "haul: {}: {}", more["status"], more["error"]);
    Ok(Said {
        seconds: memory_only.then(|| more["seconds"].as_f64()).flatten(),
        bytes: memory_only.then(|| more["bytes"].as_u64()).flatten(),
        memory_only,
        more,
        ..Said::default()
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::Fixture;
    use super::*;

    /// Goal: settings become options, ends can be replaced, and a misspelt setting is refused.
    /// Method: a table of jobs.
    #[test]
    fn peer_haul_arguments() {
        let of = |settings: &[(&str, &str)]| {
            let fixture = Fixture::new(settings);
            arguments(&fixture.job()).map(|words| words.join(" "))
        };
        assert_eq!(of(&[]).unwrap(), "cp --json -q --no-push -e ssh -F none -r /from/ 10.77.0.2:/to");
        let set = of(&[("streams", "4"), ("durability", "none")]).unwrap();
        assert!(set.contains(" -r --durability=none --streams=4 /from/ "), "{set}");
        let null = of(&[("from", "null://1GiB"), ("to", "null://")]).unwrap();
        assert!(null.ends_with(" -e ssh -F none null://1GiB 10.77.0.2:null://"), "{null}");
        assert!(of(&[("steams", "4")]).unwrap_err().to_string().contains("streams"));
    }

    /// Goal: only a summary that says complete is a success; figures are its own only without storage.
    /// Method: events as haul writes them, cut short, and failed.
    #[test]
    fn peer_haul_summary() {
        let good = "{\"event\":\"start\"}\n{\"event\":\"summary\",\"status\":\"complete\",\"seconds\":2.5,\"bytes\":7}\n";
        let said = summary(good, false).unwrap();
        assert_eq!((said.seconds, said.bytes, said.memory_only), (None, None, false));
        assert_eq!(said.more["seconds"], 2.5);
        let said = summary(good, true).unwrap();
        assert_eq!((said.seconds, said.bytes, said.memory_only), (Some(2.5), Some(7), true));
        for bad in ["", "{\"event\":\"start\"}", "{\"event\":\"summary\",\"status\":\"partial\"}", "{"] {
            assert!(summary(bad, false).is_err(), "{bad}");
        }
    }
}
