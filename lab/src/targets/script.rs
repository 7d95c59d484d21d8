//! Congestion scripts: who is slow, how slow, and when it moves.
//!
//! In: a script, read from JSON, and the number of targets. Out: for each step how long it lasts and what is
//! wrong with each target meanwhile. The same script and number give the same steps. Left out: ramps.

use std::time::Duration;

use anyhow::{bail, ensure};
use fastrand::Rng;
use serde::{Deserialize, Serialize};

use super::service::Congestion;

/// Most steps of a script.
pub const STEPS_MAX: usize = 10_000;

/// A script as it stands in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// For random choices.
    #[serde(default)]
    pub seed: u64,
    /// Begin again after the last step; else all targets are well then.
    #[serde(default)]
    pub repeat: bool,
    pub steps: Vec<Step>,
}

/// One step: the chosen targets suffer, the others are well.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    pub for_ms: u64,
    #[serde(default)]
    pub who: Who,
    #[serde(default = "once")]
    pub slow: f64,
    #[serde(default)]
    pub extra_us: u64,
    #[serde(default)]
    pub freeze: bool,
}

fn once() -> f64 {
    1.0
}

/// Who suffers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Who {
    /// Nobody.
    #[default]
    None,
    /// These.
    Targets(Vec<u32>),
    /// So many, drawn anew each time.
    Random(u32),
    /// So many, going round from where the last such step ended.
    Next(u32),
}

/// Goes through a script.
pub struct Player {
    script: Script,
    targets: u32,
    rng: Rng,
    step: usize,
    next: u32,
}

impl Player {
    /// Refuses a script that names a target that is not there, or would never let time pass.
    pub fn new(script: Script, targets: u32) -> anyhow::Result<Player> {
        ensure!(script.steps.len() <= STEPS_MAX, "a script has at most {STEPS_MAX} steps");
        ensure!(!script.steps.is_empty(), "a script has at least one step");
        for (at, step) in script.steps.iter().enumerate() {
            ensure!(step.for_ms > 0, "step {at}: for_ms must not be 0");
            ensure!(
                (0.001..=1e6).contains(&step.slow),
                "step {at}: slow {} is not within 0.001 and 1e6",
                step.slow
            );
            let most = match &step.who {
                Who::None => 0,
                Who::Targets(these) => these.iter().max().map_or(0, |most| most.saturating_add(1)),
                Who::Random(n) | Who::Next(n) => *n,
            };
            if most > targets {
                bail!("step {at} wants {most} targets, there are {targets}");
            }
        }
        let rng = Rng::with_seed(script.seed);
        Ok(Player { script, targets, rng, step: 0, next: 0 })
    }

    /// The next step; none when the script has ended.
    pub fn advance(&mut self) -> Option<(Duration, Vec<Congestion>)> {
        if self.step == self.script.steps.len() && self.script.repeat {
            self.step = 0;
        }
        let step = self.script.steps.get(self.step)?;
        self.step += 1;
        let chosen: Vec<u32> = match &step.who {
            Who::None => Vec::new(),
            Who::Targets(these) => these.clone(),
            Who::Random(n) => self.rng.choose_multiple(0..self.targets, *n as usize),
            Who::Next(n) => {
                let from = self.next;
                self.next = (from + n) % self.targets;
                (0..*n).map(|at| (from + at) % self.targets).collect()
            }
        };
        let ill = Congestion { slow: step.slow, extra_us: step.extra_us, frozen: step.freeze };
        let all = (0..self.targets).map(|at| if chosen.contains(&at) { ill } else { Congestion::default() });
        Some((Duration::from_millis(step.for_ms), all.collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ill(script: &str, steps: usize) -> Vec<Vec<usize>> {
        let mut player = Player::new(serde_json::from_str(script).unwrap(), 4).unwrap();
        (0..steps)
            .map_while(|_| player.advance())
            .map(|(_, all)| (0..4).filter(|at| all[*at] != Congestion::default()).collect())
            .collect()
    }

    /// Goal: congestion moves as the script says, the same way each time.
    /// Method: one script of each kind; the random one twice.
    #[test]
    fn congestion_moves_as_the_script_says() {
        let next = r#"{"repeat":true,"steps":[{"for_ms":5,"who":{"next":1},"slow":10}]}"#;
        assert_eq!(ill(next, 6), [[0], [1], [2], [3], [0], [1]]);
        let named = r#"{"steps":[{"for_ms":5,"who":{"targets":[3,1]},"freeze":true},{"for_ms":1}]}"#;
        assert_eq!(ill(named, 9), [vec![1, 3], vec![]]);
        let random = r#"{"seed":3,"repeat":true,"steps":[{"for_ms":5,"who":{"random":2},"extra_us":9}]}"#;
        assert_eq!(ill(random, 50), ill(random, 50));
        assert!(ill(random, 50).iter().all(|chosen| chosen.len() == 2));
        assert!((0..4).all(|target| ill(random, 50).iter().any(|chosen| chosen.contains(&target))));
    }

    /// Goal: a script that cannot be played is refused.
    /// Method: one wrong thing each.
    #[test]
    fn impossible_scripts_are_refused() {
        for script in [
            r#"{"steps":[]}"#,
            r#"{"steps":[{"for_ms":0}]}"#,
            r#"{"steps":[{"for_ms":1,"slow":0}]}"#,
            r#"{"steps":[{"for_ms":1,"who":{"targets":[4]}}]}"#,
            r#"{"steps":[{"for_ms":1,"who":{"next":5}}]}"#,
        ] {
            assert!(Player::new(serde_json::from_str(script).unwrap(), 4).is_err(), "{script}");
        }
    }
}
