//! When a destination opens another session than its first: each costs the server a login, and under GSI a
//! key that it makes, and there are servers that take few of one user.
//!
//! In: files that are known, what waits, which sessions there are, logins that came to nothing. Out: that a
//! thread opens its session now, or has to wait.
//! Invariants: there are no more sessions than files that are not over, sessions that help with the sums of a
//! large one, and one for what waits behind sessions that all are in the middle of a file. Where there is
//! none at all, one is opened for whatever waits. After a login that came to nothing one is tried at a time,
//! each after a longer pause, and only while there is work for it; those that there are go on meanwhile.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::queues::{Queues, Work};
use super::writer::Writer;

/// So many files are worth all sessions at once, however near the server is.
const MANY: usize = 64;

/// Whether a thread opens its session.
#[derive(Debug, PartialEq, Eq)]
enum Opens {
    Now,
    /// When something changes, or after that time.
    Later(Option<Duration>),
}

impl Queues {
    /// Sessions that there is work for.
    fn wanted(&self) -> usize {
        let sums = self.common.iter().filter(|work| matches!(work, Work::Sums(_))).count();
        let homes = self.home.iter().flatten().count();
        let sessions = self.sessions();
        let behind = if self.waits() && homes >= sessions { sessions + 1 } else { 0 };
        let helpers = match haul_mutant::removed("ftp-large-files-have-helpers") {
            true => 0,
            false => self.logins.helpers.max(sums),
        };
        (self.logins.files.max(1) + helpers).max(behind)
    }

    /// Something waits that any session may do.
    fn waits(&self) -> bool {
        !(self.common.is_empty() && self.homeless.is_empty() && self.smalls.is_empty())
    }

    fn opens(&self, is_near: bool) -> Opens {
        let (sessions, logins) = (self.sessions(), &self.logins);
        let under_way = logins.under_way.iter().filter(|is| **is).count();
        let all = sessions + under_way;
        let is_wanted = match all {
            0 => self.waits(),
            _ => self.wanted() > all || haul_mutant::removed("ftp-few-files-have-few-logins"),
        };
        let is_over = all > 0 && logins.refusals() > 0 && haul_mutant::removed("ftp-logins-are-tried-again");
        if !is_wanted || is_over {
            return Opens::Later(None);
        }
        // Without any nobody waits: whoever takes the work tries again as for any file.
        if let Some(until) = logins.until.filter(|_| all > 0) {
            let left = until.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                return Opens::Later(Some(left));
            }
        }
        // At a near server what a login costs it delays the sessions that are open: their number is doubled,
        // at most, unless all are worth it. At a far one it is round trips that a login takes, and all take
        // them together.
        let at_once = match () {
            () if logins.failed > 0 => 1,
            () if is_near && logins.files < MANY => sessions.max(1),
            () => usize::MAX,
        };
        if under_way < at_once { Opens::Now } else { Opens::Later(None) }
    }
}

impl Writer {
    /// Waits until its session is worth a login, and opens it. False: nothing more comes.
    pub(super) fn connects(&mut self) -> bool {
        let is_near = self.common.lanes.is_near();
        while !self.line.is_open() {
            let mut queues = self.common.lock();
            loop {
                // Behind a stop nothing new is begun, and whoever is there ends what is under way.
                if queues.ends {
                    return false;
                }
                let stopped = self.common.ends.is_stopped() && queues.sessions() > 0;
                let waits = match queues.opens(is_near) {
                    Opens::Now if !stopped => break,
                    Opens::Now => None,
                    Opens::Later(time) => time,
                };
                queues = match waits {
                    Some(time) => {
                        let woken = self.common.ready.wait_timeout(queues, time);
                        woken.unwrap_or_else(PoisonError::into_inner).0
                    }
                    None => self.common.ready.wait(queues).unwrap_or_else(PoisonError::into_inner),
                };
            }
            if queues.sessions() == 0 && !queues.logins.under_way.contains(&true) {
                // It has the work before it has a session, and tries to get one as the policy says.
                drop(queues);
                break;
            }
            queues.logins.begin(self.index);
            drop(queues);
            let opened = self.line.open().map(drop);
            let mut queues = self.common.lock();
            queues.logins.under_way[self.index] = false;
            let Err(error) = opened else { break };
            queues.logins.refused(self.index, !error.is_network());
            drop(queues);
            self.common.ready.notify_all();
        }
        let mut queues = self.common.lock();
        queues.open[self.index] = true;
        if self.line.is_open() {
            queues.logins.taken(self.index);
        }
        drop(queues);
        self.common.network.connections.fetch_add(1, Ordering::Relaxed);
        self.common.ready.notify_all();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ftp::sink::sums::PART_LEN;

    /// Queues with so many sessions that are open, of eight.
    fn queues(open: usize) -> Queues {
        let mut queues = Queues::new(8);
        queues.open[..open].fill(true);
        queues
    }

    /// How many threads open their sessions at the same time.
    fn at_once(queues: &mut Queues, is_near: bool) -> usize {
        let first = queues.sessions();
        (first..8)
            .take_while(|index| {
                let opens = queues.opens(is_near) == Opens::Now;
                if opens {
                    queues.logins.begin(*index);
                }
                opens
            })
            .count()
    }

    /// Goal: a session for each file, and for those that help with sums, and no more; at a near server few at
    /// a time, unless there is work for many.
    #[test]
    fn sessions_follow_the_work() {
        for (open, files, size, near, far) in [
            (1, 0, 0, 0, 0),
            (1, 1, PART_LEN, 0, 0),
            (1, 1, PART_LEN + 1, 1, 1),
            (1, 1, 100 * PART_LEN, 1, 3),
            (1, 2, 0, 1, 1),
            (1, 10, 0, 1, 7),
            (3, 10, 0, 3, 5),
            (3, 3, 0, 0, 0),
            (1, 1000, 0, 7, 7),
            (8, 1000, 0, 0, 0),
        ] {
            for (is_near, want) in [(true, near), (false, far)] {
                let mut queues = queues(open);
                queues.logins.expect(files);
                queues.logins.helps_with(size);
                assert_eq!(at_once(&mut queues, is_near), want, "{open} {files} {size} {is_near}");
            }
        }
    }

    /// Goal: after a login that came to nothing one is tried at a time, later, and longer after each; where
    /// one is taken all are tried. What the server is full for waits longer.
    #[test]
    fn logins_that_fail_are_tried_one_at_a_time() {
        let mut queues = queues(2);
        queues.logins.expect(1000);
        let mut last = Duration::ZERO;
        for n in 0..20 {
            queues.logins.refused(2 + n % 6, true);
            let Opens::Later(Some(pause)) = queues.opens(false) else { panic!("it waits") };
            assert!(pause > last || n > 8, "{pause:?} after {last:?}");
            last = pause;
        }
        let mut away = self::queues(2);
        away.logins.expect(1000);
        away.logins.refused(2, false);
        assert!(matches!(away.opens(false), Opens::Later(Some(pause)) if pause < Duration::from_secs(1)));
        queues.logins.until = Some(Instant::now());
        assert_eq!(at_once(&mut queues, false), 1);
        queues.logins.under_way.fill(false);
        queues.logins.taken(2);
        assert_eq!((at_once(&mut queues, false), queues.logins.refusals()), (6, 5));
        // One that began before another one was refused says nothing of it.
        queues.logins.refused(3, true);
        queues.logins.taken(4);
        assert!(queues.logins.until.is_some());
    }
}
