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

/// See the head of this module.
#[derive(Clone, Debug, Default)]
pub(super) struct Stripes {
    new: BTreeMap<(FileNo, u64), State>,
    old: BTreeMap<(FileNo, u64), State>,
}

impl Stripes {
    /// `None`: nothing of it was written lately.
    pub(super) fn state(&self, file: FileNo, stripe: u64) -> Option<State> {
        let at = (file, stripe);
        self.new.get(&at).or_else(|| self.old.get(&at)).copied()
    }

    fn set(&mut self, file: FileNo, stripe: u64, state: State) {
        if self.new.len() >= KEPT {
            self.old = std::mem::take(&mut self.new);
        }
        self.new.insert((file, stripe), state);
    }

    /// A write to it goes there; perhaps only to see what that costs.
    pub(super) fn goes(&mut self, file: FileNo, stripe: u64, path: Path, explores: bool) {
        let state = match (path, self.state(file, stripe)) {
            (Path::Gather, before) if explores && before != Some(State::Gathered) => State::Explored,
            (Path::Gather, _) => State::Gathered,
            (Path::Direct, Some(State::Leased)) => State::Leased,
            (Path::Direct, _) => State::Leasing,
        };
        self.set(file, stripe, state);
    }

    /// A direct write to it is over.
    pub(super) fn written(&mut self, file: FileNo, stripe: u64) {
        if self.state(file, stripe) == Some(State::Leasing) {
            self.set(file, stripe, State::Leased);
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
        stripes.goes(file, 0, Path::Direct, false);
        stripes.goes(file, 0, Path::Direct, false);
        assert_eq!(stripes.state(file, 0), Some(State::Leasing));
        stripes.written(file, 0);
        stripes.goes(file, 0, Path::Direct, false);
        assert_eq!(stripes.state(file, 0), Some(State::Leased));
        stripes.goes(file, 0, Path::Gather, true);
        assert_eq!(stripes.state(file, 0), Some(State::Explored));
        stripes.goes(file, 0, Path::Gather, false);
        stripes.written(file, 0);
        assert_eq!(stripes.state(file, 0), Some(State::Gathered));
        assert_eq!(stripes.state(FileNo(2), 0), None);
        let many = 10 * KEPT as u64;
        (1..many).for_each(|stripe| stripes.goes(file, stripe, Path::Gather, false));
        assert_eq!(stripes.state(file, 0), None);
        assert!((many - KEPT as u64..many).all(|stripe| stripes.state(file, stripe).is_some()));
        assert!(stripes.new.len() + stripes.old.len() <= 2 * KEPT);
    }
}
