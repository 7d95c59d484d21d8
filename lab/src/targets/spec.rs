//! What the user asks for: sizes, rates, and the description of a model.
//!
//! In: text and JSON. Out: a checked `ModelSpec`. A description is a service spec, whole or as changes to a
//! preset, and changes for single targets:
//! `{"preset": "disk", "depth": 4, "targets": {"3": {"read_rate": 20000000}}}`.

use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::script::Script;
use super::service::ServiceSpec;
use super::stripe::{STRIPE_UNIT, TARGETS_MAX};

/// A model, as its daemon reads it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    pub name: String,
    pub mount: PathBuf,
    pub targets: Vec<ServiceSpec>,
    pub stripe_size: u32,
    pub stripe_count: u32,
    /// Empty or the name of a pool: then layouts are answered in version 3.
    pub pool: String,
    pub space: SpaceSpec,
    /// A layout can be set only before a file was opened for the first time, as on Lustre.
    pub strict_layout: bool,
    /// Upper and lower case of a name are one.
    #[serde(default)]
    pub fold: bool,
    pub seed: u64,
    pub script: Option<Script>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpaceSpec {
    Null,
    /// Bytes at most.
    Memory(u64),
    Directory(PathBuf),
}

impl ModelSpec {
    pub fn check(&self) -> anyhow::Result<()> {
        let count = self.targets.len();
        ensure!(
            (1..=TARGETS_MAX as usize).contains(&count),
            "{count} targets: 1 to {TARGETS_MAX} can be had"
        );
        let size = self.stripe_size;
        ensure!(
            size > 0 && size.is_multiple_of(STRIPE_UNIT),
            "stripe size {size}: must be a multiple of {STRIPE_UNIT}, as on Lustre"
        );
        let count = self.stripe_count;
        ensure!(
            (1..=self.targets.len()).contains(&(count as usize)),
            "stripe count {count}: must be from 1 to the number of targets, {}",
            self.targets.len()
        );
        let pool = &self.pool;
        ensure!(pool.len() <= 15 && !pool.contains('\0'), "pool {pool:?}: at most 15 bytes");
        for (at, target) in self.targets.iter().enumerate() {
            target.check().map_err(|wrong| anyhow::anyhow!("target {at}: {wrong}"))?;
        }
        Ok(())
    }
}

/// The service specs of `count` targets: from a preset's name, or a file with a description.
pub fn targets(spec: &str, count: u32) -> anyhow::Result<Vec<ServiceSpec>> {
    let count = count as usize;
    if let Some(preset) = ServiceSpec::preset(spec) {
        return Ok(vec![preset; count]);
    }
    let text = std::fs::read_to_string(spec)
        .with_context(|| format!("spec {spec:?} is neither null, ssd, disk, array, nor a file"))?;
    describe(&text, count).with_context(|| format!("in {spec}"))
}

/// The same from a description's text.
pub fn describe(text: &str, count: usize) -> anyhow::Result<Vec<ServiceSpec>> {
    let mut all: Map<String, Value> = serde_json::from_str(text)?;
    let single = match all.remove("targets") {
        None => Map::new(),
        Some(Value::Object(single)) => single,
        Some(_) => bail!("\"targets\" is an object with a target's number for key"),
    };
    let base = apply(&ServiceSpec::default(), all)?;
    let mut targets = vec![base; count];
    for (at, changes) in single {
        let target = at.parse::<usize>().ok().and_then(|at| targets.get_mut(at));
        let target = target.with_context(|| format!("no target {at:?} among {count}"))?;
        let Value::Object(changes) = changes else { bail!("target {at}: not an object") };
        *target = apply(target, changes).with_context(|| format!("target {at}"))?;
    }
    Ok(targets)
}

fn apply(base: &ServiceSpec, mut changes: Map<String, Value>) -> anyhow::Result<ServiceSpec> {
    let base = match changes.remove("preset") {
        None => base.clone(),
        Some(name) => {
            let preset = name.as_str().and_then(ServiceSpec::preset);
            preset.with_context(|| format!("no preset {name}: there are null, ssd, disk, array"))?
        }
    };
    let mut whole = serde_json::to_value(base)?;
    for (key, value) in changes {
        whole[key] = value;
    }
    Ok(serde_json::from_value(whole)?)
}

/// Bytes, or bytes a second: `64KiB`, `1GiB`, `100MB`, `100MB/s`, `4096`; `K`, `M`, `G`, `T` alone are powers
/// of 1024.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let bare = text.strip_suffix("/s").unwrap_or(text);
    let digits = bare.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(bare.len());
    let (number, unit) = bare.split_at(digits);
    let factor = match unit {
        "" | "B" => 1,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        "T" | "TiB" => 1u64 << 40,
        "KB" | "kB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return Err(format!("{unit:?} is no unit of bytes: KiB, MiB, GiB, TiB, KB, MB, GB, TB")),
    };
    let number: f64 = number.parse().map_err(|_| format!("{text:?} is no number of bytes"))?;
    Ok((number * factor as f64).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: sizes are read as people write them, and nonsense is refused.
    /// Method: a table.
    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("4096", 4096),
            ("64KiB", 65536),
            ("1.5G", 3 << 29),
            ("100MB/s", 100_000_000),
            ("1TB", 1_000_000_000_000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes));
        }
        for text in ["", "x", "1XB", "-1", "1.2.3", "MiB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    /// Goal: a description changes its preset, single targets change further, and what is not known is
    /// refused.
    /// Method: one of each.
    #[test]
    fn descriptions_change_presets() {
        let text = r#"{"preset":"disk","depth":4,"targets":{"1":{"read_rate":5},"2":{"preset":"ssd"}}}"#;
        let targets = describe(text, 3).unwrap();
        let disk = ServiceSpec { depth: 4, ..ServiceSpec::preset("disk").unwrap() };
        let slow = ServiceSpec { read_rate: 5, ..disk.clone() };
        assert_eq!(targets, [disk, slow, ServiceSpec::preset("ssd").unwrap()]);
        for text in
            [r#"{"dept":4}"#, r#"{"preset":"x"}"#, r#"{"targets":{"3":{}}}"#, r#"{"targets":[]}"#, "[]"]
        {
            assert!(describe(text, 3).is_err(), "{text}");
        }
    }
}
