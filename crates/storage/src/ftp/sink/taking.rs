//! What a session of a destination takes next, and that it is there for it.
//!
//! In: the queues, and what is known of the session. Out: something to do, or that the session is over; small
//! files that a line goes on with, as long as nothing else comes before them.
//! Invariants: what any session may do is not taken by one whose session is over and that gets no other, nor
//! by one that may not be answered while others are, but for help with sums; what a session has begun stays
//! its own. When a session is opened, [`super::opening`] says.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use haul_core::transfer::op::BundleWrite;

use super::queues::{Batch, Queues, Small, Work};
use super::writer::Writer;
use crate::ftp::SILENT_AFTER;

impl Writer {
    /// The session is gone, and the server takes no other in its place, while it has some: it says so, or
    /// whoever comes is closed, or hears nothing. Should it be gone itself, the last one that there is meets
    /// that.
    pub(super) fn is_taken_back(&mut self) -> bool {
        if self.line.is_open() || self.common.is_silent() {
            return false;
        }
        if !self.common.lock().has_others(self.index) {
            return false;
        }
        let Err(error) = self.line.open() else { return false };
        let is_network = error.is_network() && !haul_mutant::removed("ftp-unheard-sinks-give-back");
        if !(error.is_full() || is_network) {
            return false;
        }
        let mut queues = self.common.lock();
        if !queues.has_others(self.index) {
            // Meanwhile it is the last one.
            return false;
        }
        queues.open[self.index] = false;
        queues.leave_all(self.index);
        queues.logins.refused(self.index, error.is_full());
        drop(queues);
        self.open = None;
        self.common.network.connections.fetch_sub(1, Ordering::Relaxed);
        self.common.ready.notify_all();
        true
    }

    pub(super) fn next(&mut self) -> Option<Work> {
        let common = self.common.clone();
        let mut queues = common.lock();
        loop {
            if queues.waits_for_anybody(self.index) {
                // What all may take is not taken by one whose session is over, and that gets no other.
                if !self.has_session() && !haul_mutant::removed("ftp-work-is-taken-with-a-session") {
                    drop(queues);
                    if self.is_taken_back() {
                        return None;
                    }
                    queues = common.lock();
                } else if !queues.is_help_next() && self.is_silent() && queues.has_others(self.index) {
                    // Nor by one that may not be answered, while others are, or may be.
                    queues.asking[self.index] = true;
                    drop(queues);
                    let answers = self.answers();
                    queues = common.lock();
                    queues.asking[self.index] = false;
                    if answers || queues.has_others_there(self.index) {
                        continue;
                    }
                }
            }
            let had_home = queues.home[self.index].is_some();
            if let Some(work) = queues.next(self.index) {
                if !had_home && queues.home[self.index].is_some() {
                    // What waits behind it may be worth another session.
                    common.ready.notify_all();
                }
                return Some(work);
            }
            if queues.is_over(self.index) {
                return None;
            }
            queues = self.common.ready.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Its session is there, as far as it said nothing else meanwhile.
    fn has_session(&mut self) -> bool {
        if self.line.now().is_some_and(|session| session.is_over()) {
            self.line.close();
        }
        self.line.is_open()
    }

    /// Nothing was heard of its session for a while.
    fn is_silent(&mut self) -> bool {
        let silent_for = self.line.now().map_or(Duration::ZERO, |session| session.silent_for());
        silent_for >= SILENT_AFTER && !haul_mutant::removed("ftp-silent-sessions-get-no-work")
    }

    /// Whether the server answers its session. Meanwhile the others do what is to be done; where all others
    /// are asked, too, that is waited for no longer than [`SILENT_AFTER`].
    fn answers(&mut self) -> bool {
        let (common, index, begun) = (self.common.clone(), self.index, Instant::now());
        let waits = || {
            let queues = common.lock();
            !queues.ends && (begun.elapsed() < SILENT_AFTER || queues.has_others_there(index))
        };
        let asked = self.line.open().and_then(|session| session.ask_whether_there(waits));
        if asked.is_err() {
            self.line.close();
        }
        asked.is_ok()
    }
}

impl Queues {
    /// Small files that a session had when it ended go on elsewhere.
    pub(super) fn add_smalls(&mut self, smalls: Vec<Small>) {
        self.smalls.extend(smalls);
    }

    /// All of these, which nobody takes any more.
    pub(super) fn take_smalls(&mut self) -> VecDeque<Small> {
        std::mem::take(&mut self.smalls)
    }

    /// Something comes before small files that this thread would go on with.
    fn has_more_urgent(&self, index: usize) -> bool {
        !self.own[index].is_empty() || self.home[index].is_some() || !self.homeless.is_empty()
    }

    /// The next small file that goes again, if this thread has nothing else to do before.
    pub(super) fn next_small(&mut self, index: usize) -> Option<Small> {
        if self.has_more_urgent(index) { None } else { self.smalls.pop_front() }
    }

    /// The next bundle, if nothing else comes before it.
    pub(super) fn next_bundle(&mut self, index: usize) -> Option<Arc<Batch<BundleWrite>>> {
        if self.has_more_urgent(index) || !matches!(self.common.front(), Some(Work::Bundle(_))) {
            return None;
        }
        match self.common.pop_front() {
            Some(Work::Bundle(batch)) => Some(batch),
            _ => None,
        }
    }
}
