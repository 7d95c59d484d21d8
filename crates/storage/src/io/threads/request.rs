//! One request to storage: pieces of transfers side by side in a file, and what is done when it comes back
//! short or with an errno.
//!
//! In: what an engine says of it. Out: pieces that are settled, and whether the request goes again.
//!
//! Invariants: every byte of a piece is settled exactly once. A direct request begins at a multiple of
//! [`ALIGN`], first time and again. An errno is told of a piece only if that piece was asked for alone, for
//! an engine does not say which of several it means.

use std::sync::Arc;
use std::time::Duration;

use haul_core::io::IoMode;
use rustix::io::Errno;

use super::super::{IoFile, IoKind, IoOp, IoTarget};
use haul_base::buffer::Part;

/// What direct I/O may ask of offsets and addresses, bytes; request sizes are multiples of it.
pub(super) const ALIGN: usize = 4096;
/// How often in a row a request may be interrupted, or answered without an errno but with nothing new.
pub(super) const INTERRUPTED_MAX: u32 = 100;
/// How often in a row a request may be answered `EAGAIN`; with the pauses these are about 2 s.
pub(super) const AGAIN_MAX: u32 = 20;
/// Pauses after `EAGAIN` begin here, double, and end there.
const AGAIN_PAUSE_MIN: Duration = Duration::from_millis(1);
const AGAIN_PAUSE_MAX: Duration = Duration::from_millis(128);

/// A range of a transfer, as part of a request. Its bytes travel beside it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) transfer: u64,
    /// Bytes from the transfer's beginning.
    pub(super) at: usize,
    /// See `IoOp::pad`; of the last piece of a transfer.
    pub(super) pad: usize,
}

/// A piece with its bytes.
type Filled = (Piece, Part);

/// A request: where it goes, and its pieces in ascending order without gaps.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) file: Arc<IoFile>,
    pub(super) target: IoTarget,
    pub(super) kind: IoKind,
    pub(super) offset: u64,
    pub(super) uncached: bool,
    /// Those that are asked for together. Their parts are with the engine while it is in flight.
    pieces: Vec<Piece>,
    parts: Vec<Part>,
    /// Those that are asked for afterwards, one by one, because an errno could be anyone's.
    aside: Vec<Filled>,
    /// Bytes from `offset` that are known to have moved and are asked for once more, for alignment's sake.
    known: usize,
    /// Answers in a row that brought nothing.
    tries: u32,
}

/// A piece, or the first bytes of one, of which no more will be asked.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) transfer: u64,
    pub(super) at: usize,
    pub(super) part: Part,
    /// Bytes of `part` that moved.
    pub(super) moved: usize,
    /// Why not all.
    pub(super) error: Option<Errno>,
    /// The rest of the piece is still asked for.
    pub(super) more: bool,
}

/// What follows an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// All pieces are settled.
    Over,
    /// The request goes again, after a pause.
    Again(Duration),
    /// It goes again, no longer uncached.
    Cached,
}

impl Request {
    pub(super) fn new(
        (file, target): (Arc<IoFile>, IoTarget),
        kind: IoKind,
        offset: u64,
        uncached: bool,
        only: Filled,
    ) -> Request {
        let (piece, part) = only;
        Request {
            file,
            target,
            kind,
            offset,
            uncached,
            pieces: vec![piece],
            parts: vec![part],
            aside: Vec::new(),
            known: 0,
            tries: 0,
        }
    }

    /// Bytes asked for, pad not counted; known only while the parts are here.
    pub(super) fn len(&self) -> usize {
        self.parts.iter().map(Part::len).sum()
    }

    pub(super) fn piece_count(&self) -> usize {
        self.pieces.len()
    }

    /// Whether another request may begin where this one ends and be one with it.
    pub(super) fn may_be_continued(&self) -> bool {
        let len = self.len();
        let pad = self.pieces.last().map_or(0, |piece| piece.pad);
        self.kind != IoKind::Sync
            && pad == 0
            && len > 0
            && (self.file.mode == IoMode::Buffered || len.is_multiple_of(ALIGN))
    }

    /// Takes in a request that begins where this one ends.
    pub(super) fn append(&mut self, next: Request) {
        debug_assert!(next.offset == self.offset + self.len() as u64 && next.kind == self.kind);
        self.pieces.extend(next.pieces);
        self.parts.extend(next.parts);
    }

    /// The transfers that it has pieces of.
    pub(super) fn transfers(&self) -> impl Iterator<Item = u64> {
        self.pieces.iter().chain(self.aside.iter().map(|(piece, _)| piece)).map(|piece| piece.transfer)
    }

    /// The operation for the engine; the parts go with it.
    pub(super) fn op(&mut self, key: u64) -> IoOp {
        IoOp {
            key,
            file: self.file.clone(),
            kind: self.kind,
            offset: self.offset,
            parts: std::mem::take(&mut self.parts),
            pad: self.pieces.last().map_or(0, |piece| piece.pad),
            uncached: self.uncached,
        }
    }

    /// The engine did not take it.
    pub(super) fn take_back(&mut self, op: IoOp) {
        self.parts = op.parts;
    }

    /// What the engine said.
    pub(super) fn handle(
        &mut self,
        parts: Vec<Part>,
        result: Result<usize, Errno>,
        settled: &mut Vec<Settled>,
    ) -> Next {
        self.parts = parts;
        match result {
            Ok(moved) => self.handle_moved(moved.min(self.len()), settled),
            Err(Errno::INTR) if self.tries < INTERRUPTED_MAX => {
                self.tries += 1;
                Next::Again(Duration::ZERO)
            }
            Err(Errno::AGAIN) if self.tries < AGAIN_MAX => {
                let pause = AGAIN_PAUSE_MIN * 2_u32.pow(self.tries.min(10));
                self.tries += 1;
                Next::Again(pause.min(AGAIN_PAUSE_MAX))
            }
            Err(Errno::OPNOTSUPP) if self.uncached => {
                self.uncached = false;
                Next::Cached
            }
            Err(errno) => self.fail(errno, settled),
        }
    }

    fn handle_moved(&mut self, moved: usize, settled: &mut Vec<Settled>) -> Next {
        if moved == self.len() {
            self.settle(moved, None, settled);
            return self.next_aside();
        }
        if moved <= self.known {
            // A further read that ends at the same byte says that the file does, for what lies aside too. One
            // that ends before it says that of a file that shrinks; it is asked again.
            let tried = self.tries >= INTERRUPTED_MAX;
            if self.kind == IoKind::Read && (moved == self.known || tried) {
                self.pieces.extend(self.aside.iter().map(|(piece, _)| *piece));
                self.parts.extend(self.aside.drain(..).map(|(_, part)| part));
                self.settle(moved, None, settled);
                return Next::Over;
            }
            // A write of nothing without an errno: POSIX knows no such thing.
            if tried {
                return self.fail(Errno::IO, settled);
            }
            self.tries += 1;
            return Next::Again(Duration::ZERO);
        }
        let begin = match self.file.mode {
            IoMode::Buffered => moved,
            IoMode::Direct => moved - moved % ALIGN,
        };
        self.settle_first(begin, settled);
        self.known = moved - begin;
        self.tries = 0;
        Next::Again(Duration::ZERO)
    }

    /// An errno. Of several pieces the first goes again alone, and the others after it.
    fn fail(&mut self, errno: Errno, settled: &mut Vec<Settled>) -> Next {
        if self.pieces.len() > 1 {
            let rest: Vec<Filled> = self.pieces.drain(1..).zip(self.parts.drain(1..)).collect();
            self.aside.splice(0..0, rest);
            self.known = self.known.min(self.len());
            self.tries = 0;
            return Next::Again(Duration::ZERO);
        }
        self.settle(self.known, Some(errno), settled);
        self.next_aside()
    }

    /// Goes on with the first piece that lies aside.
    fn next_aside(&mut self) -> Next {
        if self.aside.is_empty() {
            return Next::Over;
        }
        let (piece, part) = self.aside.remove(0);
        self.pieces.push(piece);
        self.parts.push(part);
        self.tries = 0;
        Next::Again(Duration::ZERO)
    }

    /// Settles all pieces that are asked for; `moved` of their bytes moved.
    fn settle(&mut self, moved: usize, error: Option<Errno>, settled: &mut Vec<Settled>) {
        let mut left = moved;
        for (piece, part) in self.pieces.drain(..).zip(self.parts.drain(..)) {
            let moved = part.len().min(left);
            left -= moved;
            self.offset += part.len() as u64;
            settled.push(Settled { transfer: piece.transfer, at: piece.at, part, moved, error, more: false });
        }
        self.known = 0;
    }

    /// Settles the first `len` bytes, which moved; fewer than all.
    fn settle_first(&mut self, len: usize, settled: &mut Vec<Settled>) {
        let (mut left, mut whole) = (len, 0);
        while left > 0 && self.parts[whole].len() <= left {
            left -= self.parts[whole].len();
            whole += 1;
        }
        for (piece, part) in self.pieces.drain(..whole).zip(self.parts.drain(..whole)) {
            let moved = part.len();
            settled.push(Settled {
                transfer: piece.transfer,
                at: piece.at,
                part,
                moved,
                error: None,
                more: false,
            });
        }
        if left > 0 {
            let (first, rest) = self.parts.remove(0).split_at(left);
            let piece = &mut self.pieces[0];
            let (transfer, at) = (piece.transfer, piece.at);
            settled.push(Settled { transfer, at, part: first, moved: left, error: None, more: true });
            piece.at += left;
            self.parts.insert(0, rest);
        }
        self.offset += len as u64;
    }
}
