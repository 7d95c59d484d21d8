//! What experiments measure besides copies between two hosts: one end's storage alone, and volumes
//! (`volume`).
//!
//! They stand beside the peers and are called like them, but no files arrive that were there before, so that
//! there is nothing to check. Settings are haul's own options, without the dashes.

use std::any::Any;
use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use super::volume;
use crate::host::Bench;
use crate::peers::{Job, PEERS, Peer, Said};

/// One of haul's own measurements.
struct Own {
    name: &'static str,
    about: &'static str,
    reads: bool,
}

static OWN: [Own; 2] = [
    Own {
        name: "haul-read",
        about: "haul cp from the source's storage to null:// in one process: reads alone, every byte hashed",
        reads: true,
    },
    Own {
        name: "haul-write",
        about: "haul cp from null:// to a file of the sink's storage in one process: writes alone; on media when it ends",
        reads: false,
    },
];

/// All that a competitor may be.
pub fn all() -> impl Iterator<Item = &'static dyn Peer> {
    let own = OWN.iter().map(|own| own as &dyn Peer);
    PEERS.iter().copied().chain(own).chain(volume::ALL.iter().map(|one| one as &dyn Peer))
}

pub fn find(name: &str) -> Option<&'static dyn Peer> {
    all().find(|peer| peer.name() == name)
}

/// Whether it uses the source's storage, and the sink's: `from` and `to` are haul's settings for transfers of
/// nothing.
pub fn ends(peer: &dyn Peer, settings: &BTreeMap<String, toml::Value>) -> [bool; 2] {
    match OWN.iter().find(|own| own.name == peer.name()) {
        Some(own) => [own.reads, !own.reads],
        // Their devices are files there.
        None if volume::ALL.iter().any(|one| one.name() == peer.name()) => [false, true],
        None if peer.limit() == Some("network") => [false; 2],
        None => ["from", "to"].map(|end| !settings.contains_key(end)),
    }
}

impl Peer for Own {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn packages(&self) -> &'static [&'static str] {
        &[]
    }

    /// It is the build that the results name; that it runs was seen there.
    fn version(&self) -> anyhow::Result<String> {
        Ok("the haul of this result".into())
    }

    fn start(&self, _: &Bench) -> anyhow::Result<Box<dyn Any>> {
        Ok(Box::new(()))
    }

    fn copy(&self, job: &Job<'_>) -> anyhow::Result<Said> {
        let mut command = job.bench.near().command(&job.bench.haul);
        command.args(["cp", "--json", "--quiet"]);
        command.args(job.settings.iter().map(|(key, value)| format!("--{key}={value}")));
        let bytes = job.workload.bytes();
        if self.reads {
            // Its content, not itself.
            command.arg("-r").arg(format!("{}/", job.from.display())).arg("null://");
        } else {
            command.arg(format!("null://{bytes}")).arg(job.to.join("f0"));
        }
        let said = job.bench.run(&mut command, job.limit)?;
        let last = said.stdout.lines().last().unwrap_or_default();
        let summary: Value = serde_json::from_str(last).context("read haul's summary")?;
        if summary["status"] != "complete" || summary["bytes"].as_u64() != Some(bytes) {
            bail!("haul: {}, {} of {bytes} bytes", summary["status"], summary["bytes"]);
        }
        let kept = ["seconds", "cpu_seconds", "rss", "limited_by", "processors", "stages", "chosen"];
        let more = kept.iter().map(|key| ((*key).to_owned(), json!(summary[*key]))).collect();
        Ok(Said {
            seconds: summary["seconds"].as_f64(),
            bytes: Some(bytes),
            memory_only: true,
            more,
            ..Said::default()
        })
    }
}
