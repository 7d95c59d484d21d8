//! The write threshold of a volume in words: what it is, between which costs it lies, and how far it was
//! measured.
//!
//! In: what servers heard of what writes cost. Out: two lines, and the same for programs.
//! Left out: how it is found (`haul_core::volume::threshold`), which reckons more than these two costs.

use haul_core::volume::cost::class_of;
use haul_core::volume::wire::Heard;
use serde::Serialize;

use crate::progress::bytes;

/// The threshold of the client that spoke of it last.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Threshold {
    /// What is smaller is gathered, bytes; `None`: everything is.
    bytes: Option<u64>,
    state: State,
    /// The server that heard of it last, and how long ago.
    server: u16,
    age_seconds: u64,
    /// What writes of sizes just below it cost there, and of it and above.
    below: Option<Cost>,
    above: Option<Cost>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    /// The user said it.
    Pinned,
    /// It follows from what both paths cost.
    Measured,
    /// One of the paths is not known: it stands where it began.
    NotYetMeasured,
}

/// What a write of such a size costs.
#[derive(Debug, PartialEq, Serialize)]
struct Cost {
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    direct_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gathered_us: Option<f64>,
}

impl Threshold {
    /// Of what servers heard the last.
    pub(super) fn of<'a>(heard: impl Iterator<Item = (u16, &'a Heard)>) -> Option<Threshold> {
        let (server, Heard { costs, age, .. }) = heard.min_by_key(|(_, heard)| heard.age)?;
        let at = costs.threshold;
        let state = match (costs.pinned, costs.direct.is_empty() || costs.gather.is_empty()) {
            (true, _) => State::Pinned,
            (false, false) => State::Measured,
            (false, true) => State::NotYetMeasured,
        };
        let is_below = |len: u64| at == u64::MAX || class_of(len) < class_of(at) && at > 0;
        // Of both paths in one class, which is two of size.
        let cost = |class: usize| {
            let of = |points: &[(u64, u64)]| points.iter().find(|(len, _)| class_of(*len) == class).copied();
            let (direct, gathered) = (of(&costs.direct), of(&costs.gather));
            let us = |(_, nanos): (u64, u64)| (nanos as f64 / 100.0).round() / 10.0;
            let (bytes, _) = gathered.or(direct)?;
            Some(Cost { bytes, direct_us: direct.map(us), gathered_us: gathered.map(us) })
        };
        let lens = || costs.direct.iter().chain(&costs.gather).map(|(len, _)| *len);
        let below = lens().filter(|len| is_below(*len)).map(class_of).max().and_then(cost);
        let above = lens().filter(|len| !is_below(*len)).map(class_of).min().and_then(cost);
        let bytes = (at != u64::MAX).then_some(at);
        Some(Threshold { bytes, state, server, age_seconds: age.as_secs(), below, above })
    }

    pub(super) fn in_words(&self) -> String {
        let what = match self.bytes {
            None => "everything: each write goes through the server that gathers its file".to_owned(),
            Some(0) => "0: each write goes directly to where it lies".to_owned(),
            Some(at) => format!(
                "{}: a smaller write goes through the server that gathers its file, any other directly to where it lies",
                bytes(at)
            ),
        };
        let state = match self.state {
            State::Pinned => "pinned by --write-threshold",
            State::Measured => {
                "measured, and moves with what all writes of the last seconds cost: waits and syncs too"
            }
            State::NotYetMeasured => {
                "not yet measured, for nobody wrote enough in both ways: it is where a client begins"
            }
        };
        let costs: Vec<String> =
            [&self.below, &self.above].into_iter().flatten().map(Cost::in_words).collect();
        let costs = match costs.is_empty() {
            true => String::new(),
            false => format!("  on either side of it, at server {}: {}\n", self.server, costs.join("; ")),
        };
        format!("write threshold {what} ({state})\n{costs}")
    }
}

impl Cost {
    fn in_words(&self) -> String {
        let us = |us: Option<f64>| us.map_or_else(|| "not measured".to_owned(), micros);
        format!("{} {} directly, {} gathered", bytes(self.bytes), us(self.direct_us), us(self.gathered_us))
    }
}

/// A time of a request, to read.
pub(super) fn micros(micros: f64) -> String {
    match micros {
        1000.0.. => format!("{:.1} ms", micros / 1000.0),
        _ => format!("{micros:.0} us"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use haul_core::volume::wire::Costs;

    use super::*;

    fn heard(threshold: u64, pinned: bool, direct: &[(u64, u64)], gather: &[(u64, u64)]) -> Heard {
        let (direct, gather) = (direct.into(), gather.into());
        let costs = Costs { threshold, pinned, writes: 9, direct, gather };
        Heard { costs, age: Duration::from_secs(3), clients: 1 }
    }

    /// Goal: it is said of the threshold what it is, whether it was measured, and what writes cost next to it
    /// on either side; nothing that nobody measured.
    #[test]
    fn the_threshold_is_explained() {
        let both = heard(
            4096,
            false,
            &[(300, 90_000), (2500, 95_000), (5000, 100_000), (1 << 20, 1_500_000)],
            &[(300, 20_000), (2400, 30_000), (70_000, 400_000)],
        );
        let of = |heard: &Heard| Threshold::of([(2, heard)].into_iter()).expect("it was heard");
        let said = of(&both).in_words();
        assert!(said.starts_with("write threshold 4.10 kB: a smaller write goes through"), "{said}");
        assert!(said.contains("(measured, and moves"), "{said}");
        let costs = "at server 2: 2.40 kB 95 us directly, 30 us gathered; 5.00 kB 100 us directly, not measured gathered";
        assert!(said.contains(costs), "{said}");
        let said = of(&heard(4096, false, &[], &[(300, 20_000)])).in_words();
        assert!(
            said.contains("not yet measured") && said.contains("300 B not measured directly, 20 us"),
            "{said}"
        );
        let said = of(&heard(u64::MAX, true, &[], &[])).in_words();
        assert_eq!(
            said,
            "write threshold everything: each write goes through the server that gathers its file (pinned by \
             --write-threshold)\n"
        );
        assert!(
            of(&heard(0, true, &[(5, 5)], &[]))
                .in_words()
                .starts_with("write threshold 0: each write goes directly")
        );
        assert_eq!(Threshold::of(std::iter::empty()), None);
    }
}
