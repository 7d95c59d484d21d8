//! A worker's sessions with servers that take one session and no more: it works in turns with the walk of the
//! source, and with who makes directories at the destination.
//!
//! In: who else wants a session. Out: sessions, and when they are to end.
//! Invariants: what this worker has of a server, the others are told of as long as it has it; between two
//! batches it leaves what is wanted, and everything where nothing waits to be moved, so that nobody waits for
//! who waits for him.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use haul_ftp::pair::{End, Pair};
use haul_ftp::{Error, Session};

use super::{Shared, Worker};
use crate::ftp::line::Line;
use crate::ftp::seats::Side;

/// Both sessions, of which the walk knows that one is with its server.
pub(super) struct Paired {
    pair: Pair,
    /// Behind the session itself.
    _seat: Seat,
}

impl Paired {
    pub(super) fn new(pair: Pair, seat: Seat) -> Paired {
        Paired { pair, _seat: seat }
    }
}

impl Deref for Paired {
    type Target = Pair;

    fn deref(&self) -> &Pair {
        &self.pair
    }
}

impl DerefMut for Paired {
    fn deref_mut(&mut self) -> &mut Pair {
        &mut self.pair
    }
}

/// There is a session with the source.
pub(super) struct Seat(Arc<Shared>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.sites.seats.closed(Side::Readers, 0);
    }
}

/// A session with the source: that which the walk left, or another one. `waits`: where the server takes none,
/// for the walk has it, until it is left or over.
///
/// # Errors
/// The server is not there, or takes no further one.
pub(super) fn enter_source(shared: &Arc<Shared>, waits: bool) -> Result<(Session, Seat), Error> {
    let (seats, seat) = (&shared.sites.seats, || Seat(shared.clone()));
    let mut waiting = None;
    loop {
        if let Some(session) = seats.take(Side::Readers, 0) {
            let seat = seat();
            if !session.is_hung_up() && !session.is_over() {
                return Ok((session, seat));
            }
        }
        let left = seats.left(0);
        let (server, settings) = shared.end(End::From);
        let error = match shared.retries[End::From as usize].open(server, settings) {
            Ok(session) => {
                seats.opened(Side::Readers, 0);
                return Ok((session, seat()));
            }
            Err(error) => error,
        };
        if !waits || !error.is_full() {
            return Err(error);
        }
        let waiting = waiting.get_or_insert_with(|| seats.refused(Side::Readers, 0));
        if !waiting.waits(left, true, &mut || !shared.is_cancelled()) {
            return Err(error);
        }
    }
}

impl Worker {
    /// The sessions end, and with them the turn of this one.
    pub(super) fn end_turn(&mut self) {
        if let Some(mut pair) = self.pair.take() {
            let (from, to) = pair.both();
            [from, to].into_iter().for_each(|session| session.heed(&self.shared.outer));
        }
        self.watcher.iter_mut().for_each(Line::close);
        self.cleaner.close();
        if std::mem::take(&mut self.has_turn) {
            self.shared.scout.give_back();
        }
    }

    /// Its sessions are of no use, while nothing waits to be moved, and of use to somebody else, or the
    /// servers ended them: the walk, which lost its own, may wait for one.
    pub(super) fn leaves_idle(&mut self) -> bool {
        let Some(pair) = &mut self.pair else { return false };
        let (from, to) = pair.both();
        let is_lost = from.is_hung_up() || to.is_hung_up();
        is_lost || self.shared.sites.seats.is_wanted(Side::Readers, 0)
    }

    /// Somebody wants the only session of one of the two, or one with the source, or nothing waits to be
    /// moved.
    pub(super) fn is_turn_over(&self) -> bool {
        let is_wanted = self.has_turn && self.shared.scout.is_wanted()
            || self.shared.sites.seats.is_wanted(Side::Readers, 0);
        let is_narrow = self.has_turn || self.reads_in_turns;
        is_wanted || is_narrow && self.shared.lock().waiting.is_empty()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end_turn();
        self.shared.lock().running -= 1;
        self.shared.ready.notify_all();
    }
}
