//! The session that makes directories at the destination of a pair; and who has it where that server takes
//! one session and no more.
//!
//! In: what is to be made, and who was refused a session because the server has as many as it takes. Out: the
//! session, or the place of it.
//! Invariants: its place is lent to one worker at a time, who gives it back between two batches as soon as it
//! is wanted, or nothing is left to move: so both come on in turns, and neither waits for itself. Nobody
//! takes it from who makes directories one after the other. Left out: servers that take more than one
//! session; there nobody is ever lent this one.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use haul_base::stop::{LOOK, Stop};

use crate::ftp::line::Line;

/// Who makes directories has all that he wants to make when he has made none for so long.
const IDLE: Duration = Duration::from_millis(400);

struct State {
    line: Line,
    lent: bool,
    /// Somebody wants it back.
    wanted: bool,
    /// When it was of use last.
    used: Instant,
}

/// See the module.
pub(super) struct Scout {
    state: Mutex<State>,
    changed: Condvar,
}

impl Scout {
    pub(super) fn new(line: Line) -> Scout {
        let state = State { line, lent: false, wanted: false, used: Instant::now() };
        Scout { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something over the session, which is waited for where it is lent.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Line) -> T) -> T {
        let mut state = self.lock();
        while state.lent {
            state.wanted = true;
            let woken = self.changed.wait_timeout(state, LOOK);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        let done = work(&mut state.line);
        (state.wanted, state.used) = (false, Instant::now());
        done
    }

    /// The session is not lent: nobody need wait for it. Where it is, it will be given back.
    pub(super) fn is_here(&self) -> bool {
        let mut state = self.lock();
        state.wanted = state.lent;
        !state.lent
    }

    /// Has its place from now on: the server has one session less. Waits until it is of no use for a while.
    /// False: nobody waits for it any more, as `is_over` says.
    pub(super) fn borrow(&self, is_over: impl Fn() -> bool) -> bool {
        let mut state = self.lock();
        while !is_over() {
            if !state.lent && state.used.elapsed() >= IDLE {
                state.lent = true;
                state.line.close();
                return true;
            }
            let woken = self.changed.wait_timeout(state, LOOK);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    /// Who has its place is to give it back.
    pub(super) fn is_wanted(&self) -> bool {
        self.lock().wanted
    }

    /// Nothing more is made: the session ends, which only `stop` can keep from being waited for.
    pub(super) fn end(&self, stop: &Stop) {
        let mut state = self.lock();
        if let Some(session) = state.line.now() {
            session.heed(stop);
        }
        state.line.close();
    }

    /// Its place is free again: who had it has no session any more.
    pub(super) fn give_back(&self) {
        let mut state = self.lock();
        (state.lent, state.wanted, state.used) = (false, false, Instant::now());
        drop(state);
        self.changed.notify_all();
    }
}
