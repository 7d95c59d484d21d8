//! Whether a reader has a session: that it is opened when there is something for it, left to the others where
//! the server takes none, tried again later, and asked where nobody knows whether the server is there.
//!
//! In: work that wants a session, errors of those that were opened or used. Out: a session, or work that the
//! others have.
//! Invariant: work is left only to a session that the server took; the last one that there is goes by the
//! policy.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Instant;

use haul_core::reliability::Step;
use haul_core::transfer::op::SourceOp;
use haul_ftp::Error;

use super::Reader;
use crate::ftp::SILENT_AFTER;
use crate::ftp::engine::logins::Opens;
use crate::ftp::engine::queues::{SITE, Work};
use crate::ftp::session::{Next, Tries, Why};

impl Reader {
    /// Opens the session, if it is not open. Where the server takes no further one, whether it says so or is
    /// not heard of, the work is left to the sessions that it did take: then this one is over, and nothing
    /// comes back. Any other error is met, and told, when the work begins.
    pub(super) fn connect(&mut self, work: Work) -> Option<Work> {
        let first = match &work.op {
            SourceOp::ReadBundle { files } => files.first().map(|file| file.id),
            SourceOp::Read { id, .. } | SourceOp::Look { id, .. } => Some(*id),
            SourceOp::Verify { id, .. } | SourceOp::Refresh { id, .. } => Some(*id),
            _ => None,
        };
        let told = first.and_then(|id| self.common.names.look(id));
        let (path, site) = told.map(|told| (told.path, told.site)).unwrap_or_default();
        let site = self.common.sites.instead_of(site);
        let mut tries = Tries::new(Step::File, &self.common.sites, site);
        loop {
            match self.lines.open(site).map(drop) {
                Ok(()) => self.count(),
                Err(error) if self.leaves(site, &error) => {
                    self.leave_to_others(work);
                    return None;
                }
                Err(error) if error.is_full() => {
                    // Where else it may come from is settled file by file.
                    let full = Why::from(&error).passing();
                    match tries.failed(&self.common.sites, full, &path, 0) {
                        Next::After(pause) if self.common.wait(pause) => continue,
                        _ => {}
                    }
                }
                Err(_) => {}
            }
            break;
        }
        Some(work)
    }

    /// The session is open.
    pub(super) fn count(&mut self) {
        if !std::mem::replace(&mut self.counted, true) {
            self.common.lock().open[self.index] = true;
            self.common.network.connections.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Opens the session before there is anything for it. False: the server takes no further one.
    pub(super) fn open_ahead(&mut self) -> bool {
        match self.lines.open(SITE).map(drop) {
            Ok(()) => self.count(),
            Err(error) if self.leaves(SITE, &error) => {
                self.leave_to_others(None);
                return false;
            }
            Err(_) => self.tried = true,
        }
        true
    }

    /// See [`Common::leaves`].
    pub(in crate::ftp::engine) fn leaves(&self, site: usize, error: &Error) -> bool {
        self.common.leaves(self.index, error, self.lines.unopened_since(site))
    }

    /// The session is over, and the others have its work.
    pub(super) fn leave_to_others(&mut self, work: impl Into<Option<Work>>) {
        self.common.lock().refuse(self.index, work.into());
        let counted = std::mem::take(&mut self.counted);
        self.common.network.connections.fetch_sub(u16::from(counted), Ordering::Relaxed);
        self.common.ready.notify_all();
    }

    /// Behind a session that the server did not take, or no more: waits until there is work for another one,
    /// and opens it. False: nobody wants it.
    pub(super) fn comes_back(&mut self) -> bool {
        // Of a replica that takes none the others know nothing.
        if self.common.sites.has_replicas() || haul_mutant::removed("ftp-sources-log-in-again") {
            return false;
        }
        // What came of files goes on elsewhere.
        (self.left_out, self.tried, self.open) = (false, false, None);
        self.done.clear();
        self.lines.close(SITE);
        let common = self.common.clone();
        loop {
            let mut queues = common.lock();
            loop {
                if queues.ends {
                    return false;
                }
                queues = match queues.opens_again(common.sites.seats.left(SITE)) {
                    Opens::Now => break,
                    Opens::Later(Some(time)) => {
                        let woken = common.ready.wait_timeout(queues, time);
                        woken.unwrap_or_else(PoisonError::into_inner).0
                    }
                    Opens::Later(None) => common.ready.wait(queues).unwrap_or_else(PoisonError::into_inner),
                };
            }
            queues.logins.begin();
            drop(queues);
            let opened = self.lines.open(SITE).map(drop);
            let mut queues = common.lock();
            queues.logins.tried(opened.is_ok());
            match &opened {
                Ok(()) => queues.refused[self.index] = false,
                Err(error) => {
                    let left = common.sites.seats.left(SITE);
                    queues.logins.refused(error.is_full(), left, Instant::now());
                }
            }
            drop(queues);
            common.ready.notify_all();
            if opened.is_ok() {
                self.count();
                return true;
            }
        }
    }

    /// Another session is lost, and it has to be known whether the server is there: it is asked over this
    /// one, which has nothing to do.
    pub(super) fn tells_whether_there(&mut self) {
        self.leave();
        let (common, begun) = (self.common.clone(), Instant::now());
        let waits = || !common.lock().ends && begun.elapsed() < SILENT_AFTER;
        if !self.lines.is_open(SITE) {
            return;
        }
        match self.lines.open(SITE).and_then(|session| session.ask_whether_there(waits)) {
            Ok(()) => self.lines.heard(SITE),
            Err(_) => self.lines.close(SITE),
        }
    }

    /// Nothing was heard of its session for a while, of which something should have been.
    pub(super) fn is_silent(&self) -> bool {
        self.open.is_none()
            && !self.common.sites.has_replicas()
            && self.lines.silent_for(SITE).is_some_and(|time| time >= SILENT_AFTER)
            && !haul_mutant::removed("ftp-silent-readers-get-no-work")
    }

    /// Asks whether the server is there; if it does not answer, the session is over. Meanwhile the others do
    /// what any may do; where all of them are asked, too, that is waited for no longer than [`SILENT_AFTER`].
    pub(super) fn asks(&mut self) {
        let (common, index, begun) = (self.common.clone(), self.index, Instant::now());
        let waits = || {
            let queues = common.lock();
            // What is its own, others cannot do.
            let is_free = queues.objects[index].is_empty() && queues.has_others_there(index);
            !queues.ends && (begun.elapsed() < SILENT_AFTER || is_free)
        };
        if self.lines.open(SITE).and_then(|session| session.ask_whether_there(waits)).is_err() {
            self.lines.close(SITE);
        }
    }
}
