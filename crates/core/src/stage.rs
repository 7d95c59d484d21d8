//! Where the time went: the five stages of a transfer, and the verdict drawn from them.
//!
//! In: nanoseconds that each stage's threads were busy, starved (waited for the stage before) and
//! blocked (waited for the stage after). Out: which of the five limits the rate.

/// The five parts of a transfer, in the order in which a byte meets them (XDD's impedance model).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    SourceStorage,
    SourceHost,
    Network,
    SinkHost,
    SinkStorage,
}

impl Stage {
    pub const ALL: [Stage; 5] =
        [Stage::SourceStorage, Stage::SourceHost, Stage::Network, Stage::SinkHost, Stage::SinkStorage];

    /// The name in reports and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Stage::SourceStorage => "source_storage",
            Stage::SourceHost => "source_host",
            Stage::Network => "network",
            Stage::SinkHost => "sink_host",
            Stage::SinkStorage => "sink_storage",
        }
    }
}

/// Thread time of one stage, nanoseconds, summed over its threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTime {
    pub busy: u64,
    pub starved: u64,
    pub blocked: u64,
}

impl StageTime {
    /// Shares of (busy, starved, blocked), each 0 to 1, summing to 1 unless no time was counted.
    pub fn shares(&self) -> (f64, f64, f64) {
        let total = (self.busy + self.starved + self.blocked) as f64;
        if total == 0.0 {
            return (0.0, 0.0, 0.0);
        }
        (self.busy as f64 / total, self.starved as f64 / total, self.blocked as f64 / total)
    }
}

/// The stage that limited the rate: the one with the largest busy share; the later one of equals, for what
/// is slow downstream keeps what is upstream busy. `None` if nothing was measured.
pub fn verdict(stages: &[StageTime; 5]) -> Option<Stage> {
    let mut best = None;
    let mut best_share = 0.0;
    for (stage, time) in Stage::ALL.iter().zip(stages) {
        let (busy, _, _) = time.shares();
        if busy > 0.0 && busy >= best_share {
            best = Some(*stage);
            best_share = busy;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the busiest stage is named, and nothing measured names nothing.
    #[test]
    fn verdict_names_the_busiest_stage() {
        let idle = StageTime::default();
        assert_eq!(verdict(&[idle; 5]), None);
        let half = StageTime { busy: 50, starved: 50, blocked: 0 };
        let full = StageTime { busy: 99, starved: 1, blocked: 0 };
        assert_eq!(verdict(&[half, half, full, half, half]), Some(Stage::Network));
        assert_eq!(verdict(&[full, half, half, half, full]), Some(Stage::SinkStorage));
    }
}
