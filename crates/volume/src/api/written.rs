//! What this program wrote to a file and did not sync: that it did, and how far the file reaches by it.
//!
//! Invariants: what was written since a sync began is not taken for synced; where a file ends by this is
//! never less than what this program wrote and did not sync. It may be more, where somebody else cut the
//! file.

use std::sync::{Mutex, PoisonError};

/// See the head of this module.
#[derive(Debug, Default)]
pub(super) struct Written {
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Beginnings and ends of writes.
    steps: u64,
    /// How many of them were before the last sync that went well.
    synced: u64,
    end: u64,
}

impl Written {
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A write begins. Whatever becomes of it, something may have been written.
    pub(super) fn begins(&self) {
        self.with(|state| state.steps += 1);
    }

    /// A write is over, and the file reaches there.
    pub(super) fn wrote(&self, end: u64) {
        self.with(|state| (state.steps, state.end) = (state.steps + 1, state.end.max(end)));
    }

    /// Something that says the file's end itself begins: a sync or a cut. Then [`Written::synced`] or
    /// [`Written::cut`], with what this returns.
    pub(super) fn mark(&self) -> u64 {
        self.with(|state| state.steps)
    }

    /// The sync went well.
    pub(super) fn synced(&self, mark: u64) {
        self.with(|state| {
            state.synced = state.synced.max(mark);
            state.forget_end(mark);
        });
    }

    /// The file was cut, which the catalog has still to hear of.
    pub(super) fn cut(&self, mark: u64) {
        self.with(|state| {
            state.forget_end(mark);
            state.steps += 1;
        });
    }

    /// Where the file ends by it.
    pub(super) fn end(&self) -> u64 {
        self.with(|state| state.end)
    }

    /// Whether all of it was synced.
    pub(super) fn is_synced(&self) -> bool {
        self.with(|state| state.synced >= state.steps)
    }
}

impl State {
    fn forget_end(&mut self, mark: u64) {
        if self.steps == mark {
            self.end = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a sync says nothing of what was written beside it.
    #[test]
    fn what_is_written_beside_a_sync_is_not_synced() {
        let written = Written::default();
        assert!(written.is_synced());
        written.begins();
        written.wrote(10);
        let mark = written.mark();
        written.synced(mark);
        assert_eq!((written.is_synced(), written.end()), (true, 0));
        written.begins();
        let mark = written.mark();
        written.wrote(20);
        written.synced(mark);
        assert_eq!((written.is_synced(), written.end()), (false, 20));
        let mark = written.mark();
        written.cut(mark);
        assert_eq!((written.is_synced(), written.end()), (false, 0), "its time is to be told");
        written.synced(written.mark());
        assert!(written.is_synced());
    }
}
