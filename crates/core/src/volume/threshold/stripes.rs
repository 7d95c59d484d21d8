//! Which way this client's writes to stripes went last.
//!
//! Invariant: at most twice [`KEPT`] stripes are remembered; those that were not written for longest are
//! forgotten, and count as fresh again.

use std::collections::BTreeMap;

use super::Path;
use crate::volume::FileNo;

const KEPT: usize = 4096;

/// What a stripe is to this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// A direct write is to get a lease on it, and none is over yet.
    Leasing,
    /// Written directly: it has a lease on it, if nobody wanted that back.
    Leased,
    /// Written through the gatherer: its log may have bytes of it, which are brought before it is leased.
    Gathered,
    /// The same, where only exploration wrote so.
    Explored,
}

/// What is known of one.
#[derive(Clone, Copy, Debug)]
struct Known {
    state: State,
    /// Nanoseconds that small writes lost that went directly only because it was leased, since a write went
    /// there that had to.
    lost: f64,
}

/// See the head of this module.
#[derive(Clone, Debug, Default)]
pub(super) struct Stripes {
    new: BTreeMap<(FileNo, u64), Known>,
    old: BTreeMap<(FileNo, u64), Known>,
}

impl Stripes {
    /// `None`: nothing of it was written lately.
    pub(super) fn state(&self, file: FileNo, stripe: u64) -> Option<State> {
        self.known((file, stripe)).map(|known| known.state)
    }

    fn known(&self, at: (FileNo, u64)) -> Option<Known> {
        self.new.get(&at).or_else(|| self.old.get(&at)).copied()
    }

    fn set(&mut self, file: FileNo, stripe: u64, state: State, lost: f64) {
        if self.new.len() >= KEPT {
            self.old = std::mem::take(&mut self.new);
        }
        self.new.insert((file, stripe), Known { state, lost });
    }

    /// What was lost by small writes to a leased stripe, nanoseconds. `None`: it is not leased.
    pub(super) fn lost(&self, file: FileNo, stripe: u64) -> Option<f64> {
        let known = self.known((file, stripe))?;
        matches!(known.state, State::Leased | State::Leasing).then_some(known.lost)
    }

    /// A write to it goes there; perhaps only to see what that costs. `lost`: by how many nanoseconds that is
    /// dearer than the way of its size, if it goes directly only because the stripe is leased.
    pub(super) fn goes(&mut self, file: FileNo, stripe: u64, path: Path, explores: bool, lost: Option<f64>) {
        let before = self.lost(file, stripe);
        let lost = match lost {
            Some(lost) => before.unwrap_or(0.0) + lost,
            // A lease that was only for a look is worth nothing.
            None if explores => before.unwrap_or(f64::INFINITY),
            None => 0.0,
        };
        let state = match (path, self.state(file, stripe)) {
            (Path::Gather, before) if explores && before != Some(State::Gathered) => State::Explored,
            (Path::Gather, _) => State::Gathered,
            (Path::Direct, Some(State::Leased)) => State::Leased,
            (Path::Direct, _) => State::Leasing,
        };
        self.set(file, stripe, state, lost);
    }

    /// A direct write to it is over.
    pub(super) fn written(&mut self, file: FileNo, stripe: u64) {
        if let Some(Known { state: State::Leasing, lost }) = self.known((file, stripe)) {
            self.set(file, stripe, State::Leased, lost);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a stripe is what the last write to it made of it; of many the latest are remembered.
    #[test]
    fn stripes_are_what_was_done_last() {
        let (file, mut stripes) = (FileNo(1), Stripes::default());
        assert_eq!(stripes.state(file, 0), None);
        stripes.goes(file, 0, Path::Direct, false, None);
        stripes.goes(file, 0, Path::Direct, false, None);
        assert_eq!(stripes.state(file, 0), Some(State::Leasing));
        stripes.written(file, 0);
        stripes.goes(file, 0, Path::Direct, false, None);
        assert_eq!(stripes.state(file, 0), Some(State::Leased));
        stripes.goes(file, 0, Path::Gather, true, None);
        assert_eq!(stripes.state(file, 0), Some(State::Explored));
        stripes.goes(file, 0, Path::Gather, false, None);
        stripes.written(file, 0);
        assert_eq!(stripes.state(file, 0), Some(State::Gathered));
        assert_eq!(stripes.state(FileNo(2), 0), None);
        assert_eq!((stripes.lost(file, 0), stripes.lost(FileNo(2), 0)), (None, None));
        // What is lost adds up until a write comes that goes directly by its size.
        for (lost, all) in [(None, 0.0), (Some(3.0), 3.0), (Some(4.0), 7.0), (None, 0.0), (Some(1.0), 1.0)] {
            stripes.goes(file, 0, Path::Direct, false, lost);
            stripes.written(file, 0);
            assert_eq!(stripes.lost(file, 0), Some(all));
        }
        stripes.goes(file, 0, Path::Gather, false, None);
        let many = 10 * KEPT as u64;
        (1..many).for_each(|stripe| stripes.goes(file, stripe, Path::Gather, false, None));
        assert_eq!(stripes.state(file, 0), None);
        assert!((many - KEPT as u64..many).all(|stripe| stripes.state(file, stripe).is_some()));
        assert!(stripes.new.len() + stripes.old.len() <= 2 * KEPT);
    }
}
