//! What goes to a server once more: how many bytes, of how many files, and why first.
//!
//! In: files that came to nothing, and how far they had gone; where they go on. Out: words for people, where
//! there is anything to say.
//! Invariant: a byte counts when it goes again, and not before; one that stands at the server and is gone on
//! behind does not.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use haul_core::ids::FileId;
use haul_core::tune::show_size;

/// See the module.
#[derive(Default)]
pub(super) struct Again(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// How far files had gone that came to nothing, and were not begun again yet.
    reached: HashMap<FileId, u64>,
    files: HashSet<FileId>,
    bytes: u64,
    times: u64,
    /// Why the first of them came to nothing.
    first: String,
}

impl Again {
    /// A file came to nothing when it had gone so far, and is to be begun again.
    pub(super) fn lost(&self, id: FileId, reached: u64, why: impl std::fmt::Display) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.times == 0 {
            inner.first = why.to_string();
        }
        inner.times += 1;
        let before = inner.reached.entry(id).or_default();
        *before = reached.max(*before);
    }

    /// A file is begun from this byte on.
    pub(super) fn begins(&self, id: FileId, at: u64) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(again) = inner.reached.remove(&id).and_then(|reached| reached.checked_sub(at)) else {
            return;
        };
        if again > 0 {
            inner.bytes = inner.bytes.saturating_add(again);
            inner.files.insert(id);
        }
    }

    /// For people, if anything went again.
    pub(super) fn words(&self) -> Option<String> {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (bytes, files, times) = (show_size(inner.bytes), inner.files.len(), inner.times);
        let files = if files == 1 { "1 file".to_owned() } else { format!("{files} files") };
        let times = if times == 1 { "once".to_owned() } else { format!("{times} times, first") };
        (inner.bytes > 0)
            .then(|| format!("{bytes} of {files}, for it came to nothing {times}: {}", inner.first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is gone on behind does not count, and what never went does not, either; the first cause is
    /// the one that is told.
    #[test]
    fn bytes_that_go_again_are_counted() {
        let (again, one, other) = (Again::default(), FileId(1), FileId(2));
        again.begins(one, 0);
        assert_eq!(again.words(), None);
        again.lost(one, 9_000, "refused");
        assert_eq!(again.words(), None, "it did not go again");
        again.begins(one, 4_000);
        again.lost(other, 0, "lost");
        again.begins(other, 0);
        again.lost(other, 700, "lost");
        again.lost(other, 0, "lost");
        again.begins(other, 0);
        let want = format!("{} of 2 files, for it came to nothing 4 times, first: refused", show_size(5_700));
        assert_eq!(again.words(), Some(want));
    }
}
