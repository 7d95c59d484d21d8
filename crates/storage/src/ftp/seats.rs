//! Who has a session with a server of the source, and who was refused one: the walk, and those that read. A
//! server may take one session and no more.
//!
//! In: sessions that are opened, closed and left; who is refused one. Out: whether he tries again, waits for
//! the other side, or goes without; a session that was left, to whoever comes next.
//! Invariants: nobody waits for a side that has no session, nor for its own, to which its work can be left; a
//! session that the other side waits for is left as soon as whoever has it can do nothing with it (the walk
//! that found more than is taken of it, a reader that has nothing to read), so that the two never wait for
//! each other.

use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use haul_base::stop::LOOK;
use haul_core::reliability::pause;

/// How often in a row a server that has none of these sessions any more may say that it has too many.
const SOON_MAX: u32 = 4;

/// Whose a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Walk,
    Readers,
}

impl Side {
    fn other(self) -> Side {
        match self {
            Side::Walk => Side::Readers,
            Side::Readers => Side::Walk,
        }
    }
}

/// The sessions with one server.
#[derive(Clone, Copy, Default)]
struct Seated {
    /// How many each side has.
    open: [u32; 2],
    /// How many of each side were refused one, and want it.
    waiting: [u32; 2],
    /// Sessions that were closed or left so far.
    left: u64,
}

struct State<S> {
    sites: Vec<Seated>,
    /// A session that somebody has no use for, and with which server.
    spare: Option<(usize, S)>,
    /// Somebody who reads wanted a session at some time.
    is_read: bool,
}

/// See the module. `S` is a session.
pub(super) struct Seats<S> {
    state: Mutex<State<S>>,
    changed: Condvar,
    /// Has readers look whether the walk waits.
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// What becomes of somebody who was refused a session.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// One was left or closed meanwhile.
    Again,
    /// The other side has one.
    Waits,
    /// Nobody has one any more, and the server may not have noticed yet that those that were closed are.
    Soon,
    /// Nobody leaves him one.
    Without,
}

impl<S> State<S> {
    /// `before`: [`Seats::left`] as it was when the session was asked for that was refused.
    fn judge(&self, side: Side, site: usize, before: u64) -> Verdict {
        let Seated { open, left, .. } = self.sites[site];
        match () {
            () if self.has_spare(site) => Verdict::Again,
            () if open[side as usize] > 0 => Verdict::Without,
            () if left != before => Verdict::Again,
            () if open[side.other() as usize] > 0 => Verdict::Waits,
            () if left > 0 => Verdict::Soon,
            () => Verdict::Without,
        }
    }

    fn has_spare(&self, site: usize) -> bool {
        self.spare.as_ref().is_some_and(|(of, _)| *of == site)
    }
}

impl<S> Seats<S> {
    pub(super) fn new(sites: usize) -> Seats<S> {
        let state = State { sites: vec![Seated::default(); sites], spare: None, is_read: false };
        Seats { state: Mutex::new(state), changed: Condvar::new(), wake: OnceLock::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `wake`, from any thread, when the walk waits for a session of those that read.
    pub(super) fn wake_readers_by(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.wake.set(Box::new(wake));
    }

    /// A session was opened.
    pub(super) fn opened(&self, side: Side, site: usize) {
        self.lock().sites[site].open[side as usize] += 1;
        // Who waits for its own side's has it now.
        self.changed.notify_all();
    }

    /// A session was closed.
    pub(super) fn closed(&self, side: Side, site: usize) {
        let mut state = self.lock();
        let seated = &mut state.sites[site];
        seated.open[side as usize] = seated.open[side as usize].saturating_sub(1);
        seated.left += 1;
        drop(state);
        self.changed.notify_all();
    }

    /// So many sessions were closed or left so far.
    pub(super) fn left(&self, site: usize) -> u64 {
        self.lock().sites[site].left
    }

    /// The other side waits for a session of this one's.
    pub(super) fn is_wanted(&self, side: Side, site: usize) -> bool {
        let state = self.lock();
        state.sites[site].waiting[side.other() as usize] > 0 && !state.has_spare(site)
    }

    /// Leaves a session to the other side; it is closed where nobody there waits for one, unless that is
    /// because nobody began to read.
    pub(super) fn leave(&self, side: Side, site: usize, session: S) {
        let mut state = self.lock();
        let is_of_use =
            state.sites[site].waiting[side.other() as usize] > 0 || side == Side::Walk && !state.is_read;
        let unused = match is_of_use {
            true => state.spare.replace((site, session)).map(|(_, old)| old),
            false => Some(session),
        };
        drop(state);
        drop(unused);
        self.closed(side, site);
    }

    /// Takes a session that was left: this side has it now.
    pub(super) fn take(&self, side: Side, site: usize) -> Option<S> {
        let mut state = self.lock();
        state.is_read |= side == Side::Readers;
        let (_, session) = state.spare.take_if(|(of, _)| *of == site)?;
        state.sites[site].open[side as usize] += 1;
        Some(session)
    }

    /// Somebody was refused a session.
    pub(super) fn refused(&self, side: Side, site: usize) -> Waiting<'_, S> {
        let mut state = self.lock();
        let waiting = &mut state.sites[site].waiting[side as usize];
        let is_first = *waiting == 0;
        *waiting += 1;
        drop(state);
        if let Some(wake) = self.wake.get().filter(|_| side == Side::Walk) {
            wake();
        }
        Waiting { seats: self, side, site, is_first, attempts: 0 }
    }
}

/// Somebody who was refused a session, as long as he wants it.
pub(super) struct Waiting<'a, S> {
    seats: &'a Seats<S>,
    side: Side,
    site: usize,
    /// He tries again after a while; who waits beside him for the same does not.
    is_first: bool,
    attempts: u32,
}

impl<S> Waiting<'_, S> {
    /// Waits until it may go better, as long as the other side has a session, which may be long. `before`:
    /// [`Seats::left`] as it was before the attempt that was refused; `is_full`: the server says that it has
    /// too many. False: nobody leaves him one, or `is_wanted`, which is asked often, says that nobody wants
    /// it any more.
    pub(super) fn waits(&mut self, before: u64, is_full: bool, is_wanted: &mut dyn FnMut() -> bool) -> bool {
        self.attempts += 1;
        let until = Instant::now() + pause(self.attempts);
        while is_wanted() {
            let state = self.seats.lock();
            match state.judge(self.side, self.site, before) {
                Verdict::Again => return true,
                Verdict::Without => return false,
                Verdict::Soon if !is_full || self.attempts > SOON_MAX => return false,
                Verdict::Soon if Instant::now() >= until => return true,
                Verdict::Soon => {}
                Verdict::Waits if self.is_first && Instant::now() >= until => return true,
                Verdict::Waits => {}
            }
            let woken = self.seats.changed.wait_timeout(state, LOOK);
            drop(woken.unwrap_or_else(PoisonError::into_inner));
        }
        false
    }
}

impl<S> Drop for Waiting<'_, S> {
    fn drop(&mut self) {
        let mut state = self.seats.lock();
        let (side, site) = (self.side as usize, self.site);
        state.sites[site].waiting[side] -= 1;
        // He has one by himself, and nobody else wanted that which was left meanwhile.
        let unused = match state.sites[site].waiting {
            [0, 0] => state.spare.take_if(|(of, _)| *of == site),
            _ => None,
        };
        drop(state);
        drop(unused);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: who is refused a session waits for the other side as long as that has one and his own has none,
    /// and tries again when one was closed or left.
    #[test]
    fn who_is_refused_waits_for_the_other_side_alone() {
        for (side, other) in [(Side::Walk, Side::Readers), (Side::Readers, Side::Walk)] {
            let seats: Seats<()> = Seats::new(2);
            let judge = |before| seats.lock().judge(side, 1, before);
            assert_eq!(judge(0), Verdict::Without, "{side:?}");
            seats.opened(other, 0);
            assert_eq!(judge(0), Verdict::Without, "another server's");
            seats.opened(other, 1);
            assert_eq!(judge(0), Verdict::Waits);
            seats.opened(side, 1);
            assert_eq!(judge(0), Verdict::Without, "his own side has one");
            seats.closed(side, 1);
            assert_eq!(judge(0), Verdict::Again, "it was closed meanwhile");
            assert_eq!(judge(1), Verdict::Waits);
            assert!(!seats.is_wanted(other, 1) && !seats.is_wanted(side, 1));
            let mut waiting = seats.refused(side, 1);
            assert!(seats.is_wanted(other, 1) && !seats.is_wanted(side, 1) && !seats.is_wanted(other, 0));
            assert!(!waiting.waits(1, true, &mut || false), "nobody wants it");
            seats.leave(other, 1, ());
            assert!(!seats.is_wanted(other, 1), "one is enough");
            assert!(waiting.waits(2, true, &mut || true));
            assert_eq!(seats.take(side, 1), Some(()));
            drop(waiting);
            seats.closed(side, 1);
            assert_eq!(judge(seats.left(1)), Verdict::Soon);
            let (mut waiting, left) = (seats.refused(side, 1), seats.left(1));
            assert!(!waiting.waits(left, false, &mut || true), "it is not there");
            let again = (0..100).take_while(|_| waiting.waits(left, true, &mut || true)).count();
            assert!((3..100).contains(&again), "it is not asked for ever: {again}");
        }
    }

    /// Goal: of several that wait one tries again by himself, so that a server which takes no session is not
    /// asked by all of them.
    #[test]
    fn one_of_those_that_wait_tries_again() {
        let seats: Seats<()> = Seats::new(1);
        seats.opened(Side::Walk, 0);
        let looks = std::cell::Cell::new(0);
        let (mut first, mut second) = (seats.refused(Side::Readers, 0), seats.refused(Side::Readers, 0));
        // As long as that it would have tried again.
        let mut for_a_while = || {
            looks.set(looks.get() + 1);
            looks.get() < 10
        };
        assert!(!second.waits(0, true, &mut for_a_while));
        assert!(first.waits(0, true, &mut || true));
    }

    /// Goal: what a walk leaves is kept for the first that reads, for who waits, and for nobody else.
    #[test]
    fn what_nobody_waits_for_is_closed() {
        let seats: Seats<u8> = Seats::new(1);
        seats.leave(Side::Walk, 0, 1);
        assert_eq!(seats.take(Side::Readers, 0), Some(1), "nobody had begun to read");
        seats.leave(Side::Walk, 0, 2);
        assert_eq!(seats.take(Side::Readers, 0), None);
        let waiting = seats.refused(Side::Readers, 0);
        seats.leave(Side::Walk, 0, 3);
        drop(waiting);
        assert_eq!(seats.take(Side::Readers, 0), None, "he has another one");
        let _waiting = seats.refused(Side::Walk, 0);
        seats.leave(Side::Readers, 0, 4);
        assert_eq!(seats.take(Side::Walk, 0), Some(4));
    }
}
