//! Where the data of an end lies, in an experiment's words: a medium, or targets that are modelled, with what
//! congests them.
//!
//! In: `[source]` and `[sink]` of an experiment. Out: a checked [`Storage`]; what its targets can do, and who
//! is slow when.
//! Invariant: what congests the targets is the same in each run, and begins with it.

use std::fmt;

use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Serialize};

use super::words::parse_size;
use crate::targets::{self, Player, Script, ServiceSpec};
use crate::workload::Workload;

/// Stripes, unless said.
const STRIPE_SIZE: &str = "1MiB";

/// Where the data of an end lies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Storage {
    pub on: Medium,
    /// Of a model: what a target can do.
    pub spec: Option<Spec>,
    /// Of a model: how many.
    pub targets: Option<u32>,
    /// Of a model: bytes of a stripe, 1 MiB if not said.
    pub stripe_size: Option<String>,
    /// Of a model: targets of a file, all if not said.
    pub stripe_count: Option<u32>,
    /// Of a model: who is slow when, from the start of each run on; as a script of `lab targets`.
    pub congestion: Option<Script>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Medium {
    /// In memory.
    Tmpfs,
    /// What the scratch directory lies on, which is no tmpfs.
    Disk,
    /// `lab targets --model`, its data in memory.
    Model,
    /// Nothing is stored at this end.
    None,
}

/// What a target can do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Spec {
    /// As `lab targets --spec` takes it.
    Named(String),
    /// What stands in such a file.
    Own(toml::Table),
}

impl Storage {
    /// # Errors
    /// Something is missing, wrong, or for a model only.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.on == Medium::Model {
            ensure!(
                self.spec.is_some(),
                "on = \"model\" needs spec: null, ssd, disk, array, a file, or what stands in one"
            );
            let targets = self.targets.filter(|targets| *targets > 0);
            let targets = targets.context("on = \"model\" needs targets, at least one")?;
            parse_size(self.stripe_size()).context("stripe_size")?;
            if let Some(count) = self.stripe_count {
                ensure!(
                    (1..=targets).contains(&count),
                    "stripe_count = {count}: 1 to {targets}, as there are targets"
                );
            }
            if let Some(Spec::Own(_)) = &self.spec {
                self.specs().context("spec")?;
            }
            if let Some(script) = &self.congestion {
                Player::new(script.clone(), targets).context("congestion")?;
            }
            return Ok(());
        }
        let said = [
            ("spec", self.spec.is_some()),
            ("targets", self.targets.is_some()),
            ("stripe_size", self.stripe_size.is_some()),
            ("stripe_count", self.stripe_count.is_some()),
            ("congestion", self.congestion.is_some()),
        ];
        match said.into_iter().find(|(_, said)| *said) {
            Some((key, _)) => bail!("{key} is for on = \"model\" only"),
            None => Ok(()),
        }
    }

    /// What congestion costs can be told only where each target has as much of the data as any other.
    ///
    /// # Errors
    /// It has not.
    pub fn check_even(&self, workload: &Workload) -> anyhow::Result<()> {
        if self.congestion.is_none() {
            return Ok(());
        }
        let targets = u64::from(self.targets.unwrap_or(1));
        let count = self.stripe_count.map_or(targets, u64::from);
        let row = parse_size(self.stripe_size())?.saturating_mul(count);
        ensure!(
            (workload.files * count).is_multiple_of(targets)
                && (count == 1 || workload.size.is_multiple_of(row)),
            "with congestion, all {targets} targets must have the same part of {} files of {} bytes",
            workload.files,
            workload.size
        );
        Ok(())
    }

    pub fn stripe_size(&self) -> &str {
        self.stripe_size.as_deref().unwrap_or(STRIPE_SIZE)
    }

    /// What each target can do; none if it is no model.
    ///
    /// # Errors
    /// The description cannot be read.
    pub fn specs(&self) -> anyhow::Result<Vec<ServiceSpec>> {
        let count = self.targets.unwrap_or(0);
        match &self.spec {
            None => Ok(Vec::new()),
            Some(Spec::Named(name)) => targets::specs(name, count),
            Some(own) => targets::describe(&own.json()?, count as usize),
        }
    }
}

impl Spec {
    /// For a file that `lab targets --spec` takes.
    ///
    /// # Errors
    /// It is a name.
    pub fn json(&self) -> anyhow::Result<String> {
        match self {
            Spec::Named(name) => bail!("{name:?} is a name"),
            Spec::Own(table) => serde_json::to_string(table).context("write the description of a target"),
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Spec::Named(name) => write!(f, "{name}"),
            own => write!(f, "`{}`", own.json().map_err(|_| fmt::Error)?),
        }
    }
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.on {
            Medium::Tmpfs => write!(f, "tmpfs"),
            Medium::Disk => write!(f, "the machine's disk"),
            Medium::None => write!(f, "none"),
            Medium::Model => {
                let targets = self.targets.unwrap_or(1);
                write!(f, "{targets} modelled targets (")?;
                self.spec.iter().try_for_each(|spec| write!(f, "{spec}"))?;
                write!(
                    f,
                    "), stripes of {} over {}",
                    self.stripe_size(),
                    self.stripe_count.unwrap_or(targets)
                )?;
                if let Some(script) = &self.congestion {
                    let words = serde_json::to_string(script).map_err(|_| fmt::Error)?;
                    write!(f, "; congestion from the start of each run: `{words}`")?;
                }
                Ok(())
            }
        }
    }
}
