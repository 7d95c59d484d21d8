//! Which stripes are gathered, and reads of those that are not: from where they lie, and nobody else is
//! asked.

use std::ops::Range;

use super::{Asked, Client, OpNo};
use crate::ids::Time;
use crate::volume::FileNo;

impl<B: Clone> Client<B> {
    /// Which of these stripes are gathered, where the file ends, and which version of its bytes it has. It
    /// comes to [`Outcome::Map`](super::Outcome::Map).
    pub fn map(&mut self, now: Time, op: OpNo, file: FileNo, stripes: Range<u64>) {
        self.now = self.now.max(now);
        self.reads.push_back(Asked::Map { op, file, stripes });
        self.begin_reads();
    }

    /// The application reads a range of one stripe that was not gathered when a map was asked for, and what
    /// the map said of the file's end: it is read where it lies. It comes to what a read comes to.
    ///
    /// What was written since the map was asked for may be missed: to whoever asked for the map it is one
    /// read that began with that.
    pub fn read_stored(&mut self, now: Time, op: OpNo, file: FileNo, (offset, len): (u64, u64), end: u64) {
        self.now = self.now.max(now);
        self.reads.push_back(Asked::Stored { op, file, offset, len, gathered: Vec::new(), end });
        self.begin_reads();
    }
}
