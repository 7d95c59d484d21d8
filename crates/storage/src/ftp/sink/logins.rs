//! What is known of how many sessions a destination is worth, and what became of logins so far.
//!
//! In: files that are announced, large ones that are sent, logins that went well or did not. Out: how many,
//! and until when none is tried. Who opens a session when is in `opening`.
//! Invariant: a login that went well says nothing of one that came to nothing meanwhile.

use std::time::Instant;

use haul_core::reliability;

use super::summed::helpers;
use super::sums::PART_LEN;

/// A server that takes no further session is asked more seldom than one that is away: others have to leave
/// first. In pauses of the policy for what may pass.
const FULL_PAUSES: u32 = 10;

/// What is known of it, and what became of it so far.
#[derive(Default)]
pub(super) struct Logins {
    /// Files that were announced and are not over.
    pub(super) files: usize,
    /// Sessions that may help with the sums of a file of this run.
    pub(super) helpers: usize,
    /// Sessions that are being opened, and how many logins had come to nothing when that began.
    pub(super) under_way: Vec<bool>,
    begun: Vec<u32>,
    /// Sessions that the server did not take, or took back.
    refused: Vec<bool>,
    /// Logins that came to nothing since the last one that did not, and until when none is tried.
    pub(super) failed: u32,
    pub(super) until: Option<Instant>,
}

impl Logins {
    pub(super) fn new(sessions: usize) -> Logins {
        Logins {
            under_way: vec![false; sessions],
            begun: vec![0; sessions],
            refused: vec![false; sessions],
            ..Logins::default()
        }
    }

    /// So many files are known of and not over. True: more than before.
    pub(super) fn expect(&mut self, files: usize) -> bool {
        files > std::mem::replace(&mut self.files, files)
    }

    /// A file of this size is sent, whose parts are compared one by one.
    pub(super) fn helps_with(&mut self, size: u64) {
        let parts = usize::try_from(size.div_ceil(PART_LEN)).unwrap_or(usize::MAX);
        self.helpers = self.helpers.max(helpers(parts));
    }

    /// A session is being opened.
    pub(super) fn is_under_way(&self, index: usize) -> bool {
        self.under_way[index]
    }

    /// Sessions that the server does not take.
    pub(super) fn refusals(&self) -> usize {
        self.refused.iter().filter(|refused| **refused).count()
    }

    /// A session is to be opened.
    pub(super) fn begin(&mut self, index: usize) {
        (self.under_way[index], self.begun[index]) = (true, self.failed);
    }

    /// The server took a session: it may take more, unless it refused one meanwhile.
    pub(super) fn taken(&mut self, index: usize) {
        self.refused[index] = false;
        if self.begun[index] == self.failed {
            (self.failed, self.until) = (0, None);
        }
    }

    /// It did not take one, or takes none in the place of one that is gone; `is_full`: it has too many, or
    /// does not want this user, and may be asked later.
    pub(super) fn refused(&mut self, index: usize, is_full: bool) {
        self.refused[index] = true;
        self.failed = self.failed.saturating_add(1);
        let pause = reliability::pause(self.failed) * if is_full { FULL_PAUSES } else { 1 };
        self.until = Some(Instant::now() + pause);
    }
}
