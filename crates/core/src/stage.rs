//! Where the time went: the five stages of a transfer, and the verdict drawn from them.
//!
//! In: nanoseconds that each stage's threads were busy, starved (waited for the stage before) and
//! blocked (waited for the stage after), and how busy the processors of both ends were. Out: which of the
//! five limits the rate.

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
        // A peer's numbers, perhaps: their sum may be anything.
        let total = self.busy as f64 + self.starved as f64 + self.blocked as f64;
        if total == 0.0 {
            return (0.0, 0.0, 0.0);
        }
        (self.busy as f64 / total, self.starved as f64 / total, self.blocked as f64 / total)
    }
}

/// The processors that one end may use, while payload moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Processors {
    pub count: u16,
    /// How busy they were, whoever kept them so: 0 to [`Processors::ALL`].
    pub busy: u16,
}

impl Processors {
    /// All of them, all of the time.
    pub const ALL: u16 = 1000;
    /// From here on a thread that has work waits for one.
    const USED_UP: u16 = 900;

    /// How busy they were, 0 to 1.
    pub fn share(&self) -> f64 {
        f64::from(self.busy) / f64::from(Processors::ALL)
    }

    /// There was nothing left of them.
    pub fn are_used_up(&self) -> bool {
        self.busy >= Processors::USED_UP
    }
}

/// The processors are used up, and less than half of that is haul's own doing. `own`: its share of them, 0 to
/// 1.
pub fn others_use_up(processors: Option<Processors>, own: Option<f64>) -> bool {
    let used_up = processors.filter(Processors::are_used_up);
    used_up.is_some_and(|all| own.is_some_and(|own| own < all.share() / 2.0))
}

/// A stage that is busy for so much of the time is what the others wait for, whatever the processors do.
const STANDS_OUT: f64 = 0.8;
/// The same of a source's storage whose end has no processor left: what is read from memory is busy with
/// nothing but one, and waits for it besides. On one processor that was four fifths of the time.
const STANDS_OUT_READING: f64 = 0.9;
/// A sink's storage that is the busiest stage, and busy for so much of the time, is what that end spends its
/// processors on.
const MOSTLY: f64 = 0.66;
/// Processors that differ by less (see [`Processors::busy`]) are as busy.
const AS_BUSY: u16 = 20;

/// The stage that limited the rate: the one with the largest busy share; the later one of equals, for what
/// is slow downstream keeps what is upstream busy. But if none stands out and an end had no processor left,
/// then every stage's time has in it what its threads waited for one, and it is that host (of two such ends
/// the busier one, of as busy ones the one whose hashing and sealing took more). That in turn does not hold
/// where the busiest stage is such a sink's storage, and busy for two thirds of its time: making, syncing and
/// naming thousands of small files is work of that storage, though processors do it. A source's is not asked,
/// for what is read from memory is busy with nothing but a processor. `None` if nothing was measured.
///
/// A storage that waits for processors which others use up is not what they are spent on.
///
/// `processors`: of source and sink; `own`: what haul itself used of them, 0 to 1. `None`: not known.
pub fn verdict(
    stages: &[StageTime; 5],
    processors: [Option<Processors>; 2],
    own: [Option<f64>; 2],
) -> Option<Stage> {
    let mut best = None;
    let mut best_share = 0.0;
    for (stage, time) in Stage::ALL.iter().zip(stages) {
        let (busy, _, _) = time.shares();
        if busy > 0.0 && busy >= best_share {
            best = Some(*stage);
            best_share = busy;
        }
    }
    let used_up = processors.map(|end| end.filter(Processors::are_used_up).map(|end| end.busy));
    let stands_out = match best == Some(Stage::SourceStorage) && used_up[0].is_some() {
        true => STANDS_OUT_READING,
        false => STANDS_OUT,
    };
    if best_share >= stands_out {
        return best;
    }
    let others = others_use_up(processors[1], own[1]);
    if best == Some(Stage::SinkStorage) && used_up[1].is_some() && !others && best_share >= MOSTLY {
        return best;
    }
    let host = match used_up {
        [None, None] => return best,
        [Some(_), None] => Stage::SourceHost,
        [None, Some(_)] => Stage::SinkHost,
        [Some(source), Some(sink)] if source.abs_diff(sink) < AS_BUSY => {
            let busy = |stage: Stage| stages[stage as usize].busy;
            if busy(Stage::SourceHost) > busy(Stage::SinkHost) { Stage::SourceHost } else { Stage::SinkHost }
        }
        [Some(source), Some(sink)] if source > sink => Stage::SourceHost,
        _ => Stage::SinkHost,
    };
    best.map(|_| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: StageTime = StageTime { busy: 0, starved: 0, blocked: 0 };
    const HALF: StageTime = StageTime { busy: 50, starved: 50, blocked: 0 };
    const FULL: StageTime = StageTime { busy: 99, starved: 1, blocked: 0 };

    /// Goal: the busiest stage is named, and nothing measured names nothing.
    #[test]
    fn verdict_names_the_busiest_stage() {
        let verdict = |stages: &[StageTime; 5]| verdict(stages, [None; 2], [None; 2]);
        assert_eq!(verdict(&[IDLE; 5]), None);
        assert_eq!(verdict(&[HALF, HALF, FULL, HALF, HALF]), Some(Stage::Network));
        assert_eq!(verdict(&[FULL, HALF, HALF, HALF, FULL]), Some(Stage::SinkStorage));
    }

    /// Goal: small files that a sink spends its processors on are its storage's, also where both ends share a
    /// machine.
    /// Method: shares as 52,074 small files gave them within one machine; then with a sink that mostly
    /// waited, and with processors that are used up at the other end alone.
    #[test]
    fn small_files_are_the_work_of_storage() {
        let of = |busy| Some(Processors { count: 2, busy });
        let part = |busy| StageTime { busy, starved: 100 - busy, blocked: 0 };
        let verdict = |stages: &[StageTime; 5], processors| verdict(stages, processors, [None; 2]);
        let small = [part(30), part(41), part(3), part(12), part(78)];
        assert_eq!(verdict(&small, [of(970), of(970)]), Some(Stage::SinkStorage));
        assert_eq!(verdict(&small, [None, of(950)]), Some(Stage::SinkStorage));
        assert_eq!(verdict(&small, [None, None]), Some(Stage::SinkStorage));
        assert_eq!(verdict(&small, [of(950), of(200)]), Some(Stage::SourceHost));
        let waits = [part(30), part(41), part(3), part(12), part(50)];
        assert_eq!(verdict(&waits, [of(970), of(970)]), Some(Stage::SourceHost));
        // From memory, and from a disk that is slow; and from either where there are processors.
        let reading = |busy| [part(busy), part(41), part(3), part(12), part(50)];
        for busy in [70, 84] {
            assert_eq!(verdict(&reading(busy), [of(970), of(970)]), Some(Stage::SourceHost));
        }
        assert_eq!(verdict(&reading(95), [of(970), of(970)]), Some(Stage::SourceStorage));
        assert_eq!(verdict(&reading(84), [of(500), of(970)]), Some(Stage::SourceStorage));
    }

    /// Goal: what others do with the processors is not taken for the work of haul, nor of its storage.
    /// Method: a share of haul's own around the half of what is busy; the small files of above on such a
    /// host.
    #[test]
    fn other_programs_are_told_from_haul() {
        let of = |busy| Some(Processors { count: 2, busy });
        for (busy, own, others) in [
            (1000, Some(0.12), true),
            (1000, Some(0.49), true),
            (1000, Some(0.5), false),
            (890, Some(0.12), false),
            (1000, None, false),
        ] {
            assert_eq!(others_use_up(of(busy), own), others, "{busy} {own:?}");
        }
        assert!(!others_use_up(None, Some(0.1)));
        let part = |busy| StageTime { busy, starved: 100 - busy, blocked: 0 };
        let small = [part(30), part(41), part(3), part(12), part(78)];
        let at_sink = |own| verdict(&small, [of(100), of(970)], [Some(0.05), Some(own)]);
        assert_eq!((at_sink(0.9), at_sink(0.1)), (Some(Stage::SinkStorage), Some(Stage::SinkHost)));
    }

    /// Goal: where an end has no processor left and no stage stands out, that host is named; where one stands
    /// out, that one.
    /// Method: all pairs of ends that are idle, used up, or a little more.
    #[test]
    fn used_up_processors_are_the_limit_unless_a_stage_stands_out() {
        let of = |busy| Some(Processors { count: 2, busy });
        let more = StageTime { busy: 60, starved: 40, blocked: 0 };
        let verdict = |stages: &[StageTime; 5], processors| verdict(stages, processors, [None; 2]);
        let network = [HALF, HALF, more, HALF, IDLE];
        let cases = [
            ([None, None], Stage::Network),
            ([of(899), of(500)], Stage::Network),
            ([of(900), of(500)], Stage::SourceHost),
            ([None, of(1000)], Stage::SinkHost),
            ([of(990), of(950)], Stage::SourceHost),
            ([of(950), of(990)], Stage::SinkHost),
            // As busy: the one that had more to do, the later one of equals.
            ([of(960), of(950)], Stage::SinkHost),
        ];
        for (processors, host) in cases {
            assert_eq!(verdict(&network, processors), Some(host), "{processors:?}");
        }
        let source = [HALF, more, HALF, HALF, IDLE];
        assert_eq!(verdict(&source, [of(950), of(960)]), Some(Stage::SourceHost));
        assert_eq!(verdict(&[HALF, HALF, FULL, HALF, HALF], [of(1000); 2]), Some(Stage::Network));
        assert_eq!(verdict(&[IDLE; 5], [of(1000); 2]), None);
    }
}
