//! What came of files so far, where more than one way of reading has a hand in it.
//!
//! In: what blocks, lines and moves to another replica came to. Out: the same, for whoever goes on with it.

use haul_core::ids::{FileId, Generation};
use haul_core::wire::Failure;
use haul_ftp::{Asked, Ranges};

/// What the session has of a file that comes in blocks, over all transfers of it.
pub(super) struct Done {
    pub(super) id: FileId,
    pub(super) generation: Generation,
    pub(super) ranges: Ranges,
    /// Transfers that were lost since something came of it.
    pub(super) lost: u32,
    /// It comes as it is from now on.
    pub(super) plainly: bool,
}

impl Done {
    pub(super) fn is_plain(&self, id: FileId, generation: Generation) -> bool {
        self.is(id, generation) && self.plainly
    }

    pub(super) fn is(&self, id: FileId, generation: Generation) -> bool {
        (self.id, self.generation) == (id, generation)
    }
}

/// What of a bundle came already: which of its files, and, if it was all, what was told behind it.
#[derive(Default)]
pub(super) struct Came {
    pub(super) files: Vec<bool>,
    pub(super) facts: Option<Vec<Asked>>,
}

/// A file that is at another replica now.
pub(super) enum Moved {
    /// As the same version, as far as the two servers tell.
    GoesOn,
    /// As another version: what was read before is of no use.
    Anew(Failure),
}
