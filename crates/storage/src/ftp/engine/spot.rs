//! Where the user believes what a server tells of a file (`--resume=trust`), one part that an earlier run had
//! is read again.
//!
//! In: what the destination holds of a file whose length and time are the same. Out: whether that is gone on
//! with. What was read again is where the session goes on, and what others that go on there are held against.
//! Invariant: of a file of which nothing was read again nothing is believed.
//! Left out: all other parts, which is what trust means.

use std::time::Instant;

use haul_core::digest::Subtree;
use haul_core::ids::{FileId, Generation};
use haul_core::reliability::Step;
use haul_core::stage::Stage;
use haul_core::wire::{Failure, FailureKind};
use haul_ftp::Error;

use super::ends::AGAIN_LEN;
use super::reader::{Open, Reader};
use crate::ftp::names::Told;
use crate::ftp::session::{Next, Tries};
use haul_base::digest::RangeHasher;

/// So much is read in one go.
const PIECE_LEN: usize = 256 << 10;

impl Reader {
    /// Reads the part before the first gap again, or the last one where the beginning is missing. True: it is
    /// what the earlier run had.
    ///
    /// # Errors
    /// The server does not give it.
    pub(super) fn spot_check(
        &mut self,
        (id, generation): (FileId, Generation),
        size: u64,
        held: &[Subtree],
    ) -> Result<bool, Failure> {
        // Of a file that is held as a whole all would be read.
        let Some(part) = before_the_gap(held).filter(|part| part.len < size) else { return Ok(false) };
        let told = self.known(id)?;
        let mut tries = Tries::new(Step::File, &self.common.sites, told.site);
        loop {
            let begun = Instant::now();
            let read = self.read_again(&told, (id, generation), size, part);
            self.common.meter.add_busy(Stage::SourceStorage, begun.elapsed());
            let error = match read {
                Ok(is_same) => return Ok(is_same),
                Err(error) => error,
            };
            self.open = None;
            if error.wants_another_session() {
                self.lines.close(told.site);
            }
            self.left_out = self.leaves(told.site, &error);
            if self.left_out {
                return Err(self.common.failure(told.site, FailureKind::Read, &told.path, &error));
            }
            match tries.failed(&self.common.sites, (&error).into(), &told.path, 0) {
                Next::After(pause) if self.common.wait(pause) => {}
                _ => {
                    let failure = self.common.failure(told.site, FailureKind::Read, &told.path, &error);
                    return Err(self.common.given_up(&tries, failure));
                }
            }
        }
    }

    fn read_again(
        &mut self,
        told: &Told,
        (id, generation): (FileId, Generation),
        size: u64,
        part: &Subtree,
    ) -> Result<bool, Error> {
        let (end, site) = (part.offset + part.len, told.site);
        self.leave();
        let from = self.common.names.base() + part.offset;
        let mut incoming = self.lines.open(site)?.begin(&told.path, from)?;
        let mut hasher = RangeHasher::part(self.common.kind, part.offset, part.len, end == size);
        let (mut buffer, mut tail, mut left) = (vec![0; PIECE_LEN], Vec::new(), part.len);
        while left > 0 {
            let want = left.min(PIECE_LEN as u64) as usize;
            let len = incoming.fill(&mut buffer[..want])?;
            self.common.network.count(len);
            self.lines.heard(site);
            hasher.update(&buffer[..len]);
            tail.extend_from_slice(&buffer[..len]);
            tail.drain(..tail.len().saturating_sub(AGAIN_LEN));
            left -= len as u64;
            if len < want {
                break;
            }
        }
        let is_same = left == 0
            && (hasher.finish() == [part.cv] || haul_mutant::removed("ftp-trust-reads-a-part"))
            && self.common.ends.agree(id, generation, end, &tail);
        if is_same && end < size && !self.common.ways.is_on() {
            // What comes next is what is missing.
            self.open = Some(Open { id, site, at: end, goes_on: true, incoming });
            return Ok(true);
        }
        let given_up = self.lines.open(site)?.give_up(incoming);
        // The offset must not be taken for that of the next file.
        self.lines.close(site);
        given_up.map(|()| is_same)
    }
}

/// The part that ends where the first gap begins; the last one, where the beginning is missing.
fn before_the_gap(held: &[Subtree]) -> Option<&Subtree> {
    let mut at = 0;
    let whole = held.iter().take_while(|part| {
        let goes_on = part.offset == at;
        at += part.len;
        goes_on
    });
    whole.last().or(held.last())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the part that is read again is the one that what is missing follows.
    #[test]
    fn the_part_before_the_gap_is_found() {
        let parts = |all: &[(u64, u64)]| -> Vec<Subtree> {
            all.iter().map(|(offset, len)| Subtree { offset: *offset, len: *len, cv: [0; 32] }).collect()
        };
        let found = |all: &[(u64, u64)]| before_the_gap(&parts(all)).map(|part| part.offset);
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[(0, 8), (8, 4), (16, 4)]), Some(8));
        assert_eq!(found(&[(0, 8)]), Some(0));
        assert_eq!(found(&[(4, 4), (16, 4)]), Some(16));
    }
}
