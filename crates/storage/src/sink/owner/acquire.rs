//! How a job is taken: who has it, whether that one lives, and the owner file that says that it is ours.
//!
//! In: the owner files that are there, and how patient to be. Out: an [`Owner`], or why there is none.
//! What must hold: of several that try, one gets the job, and one that lost it sees that.

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, OnceLock};
use std::time::{Instant, SystemTime};

use crossbeam_channel::{RecvTimeoutError, unbounded};
use rustix::io::{Errno, retry_on_intr};

use super::{AcquireError, JobDir, Owner, Patience, Seen, Word, encode};
use crate::sink::calls::write_all_at;
use crate::sink::life::{Life, OwnerInfo, judge};
use crate::sink::lock;
use crate::sink::ours::Ours;

/// Longest description in an owner file, characters.
const WHAT_CHARS_MAX: usize = 120;
/// Attempts to get a job while others come and go.
const ATTEMPTS_MAX: u32 = 1000;

impl JobDir {
    /// As [`JobDir::acquire_unless`], whatever happens meanwhile.
    ///
    /// # Errors
    /// As there.
    pub fn acquire(&self, floor: u32, what: &str, patience: &Patience) -> Result<Owner, AcquireError> {
        self.acquire_unless(floor, what, patience, &mut |_| false)
    }

    /// Takes the job: its epoch exceeds `floor` (the last epoch in the journal) and every owner before.
    /// Waits where only a beat can tell whether the owner lives, and for one that ends. `stop` is asked while
    /// it waits, and told why, in words.
    ///
    /// # Errors
    /// Somebody else has it, it is another user's, `stop` said so, or the directory cannot be read or
    /// written.
    pub fn acquire_unless(
        &self,
        floor: u32,
        what: &str,
        patience: &Patience,
        stop: &mut dyn FnMut(&str) -> bool,
    ) -> Result<Owner, AcquireError> {
        let (mut watched, mut alive): (Option<(u32, Seen, Instant)>, Option<(u32, Instant)>) = (None, None);
        for _ in 0..ATTEMPTS_MAX {
            let known = self.owners()?;
            let Some(highest) = known.last().copied() else {
                // The last one removed its file when nothing of it was under way any more.
                match self.create(floor.saturating_add(1), what, &known, patience, false)? {
                    Some(owner) => return Ok(owner),
                    None => continue,
                }
            };
            let Some(seen) = self.look(highest)? else { continue };
            let judged = seen.info.as_ref().map_or(Life::Unknown, |info| judge(info, &self.here));
            let info = seen.info.clone().unwrap_or_default();
            let mut life = judged;
            if life != Life::Dead && info.yields && !info.ends && patience.takes_it() {
                life = Life::Dead;
            } else if life == Life::Unknown {
                life = match &watched {
                    Some((epoch, first, since)) if *epoch == highest && first.ino == seen.ino => {
                        if first.bytes != seen.bytes && !haul_mutant::removed("beats-are-heard") {
                            Life::Alive
                        } else if since.elapsed() >= patience.watch {
                            Life::Dead
                        } else {
                            Life::Unknown
                        }
                    }
                    _ => Life::Unknown,
                };
                let again = watched.as_ref().is_none_or(|(epoch, first, _)| {
                    *epoch != highest || first.ino != seen.ino || first.bytes != seen.bytes
                });
                if again {
                    watched = Some((highest, seen.clone(), Instant::now()));
                }
            }
            let process = || format!("process {} on {}", info.pid, info.host);
            let waits = match life {
                Life::Alive => {
                    let since = match alive {
                        Some((epoch, since)) if epoch == highest => since,
                        _ => alive.insert((highest, Instant::now())).1,
                    };
                    let waited_for = info.ends && !haul_mutant::removed("ending-owners-are-waited-for");
                    let limit = if waited_for { patience.ending } else { patience.notice };
                    if since.elapsed() >= limit {
                        return Err(AcquireError::Held(Box::new(info)));
                    }
                    match info.ends {
                        true => format!("waiting for the run before to end: {}", process()),
                        false => {
                            format!("another run of this job is there: {}; seeing whether it ends", process())
                        }
                    }
                }
                Life::Unknown => {
                    let seconds = patience.watch.as_secs();
                    format!("another run of this job was there: {}; watching it for {seconds} s", process())
                }
                Life::Dead => {
                    let follows = info.follows_unproven && !haul_mutant::removed("unproven-is-remembered");
                    let unproven = judged != Life::Dead || follows;
                    if unproven
                        && !patience.takes_unproven
                        && !haul_mutant::removed("in-place-follows-the-dead")
                    {
                        return Err(AcquireError::Unproven(Box::new(info)));
                    }
                    let epoch = highest.max(floor).saturating_add(1);
                    if let Some(owner) = self.create(epoch, what, &known, patience, unproven)? {
                        return Ok(owner);
                    }
                    continue;
                }
            };
            if stop(&waits) && !haul_mutant::removed("a-watch-stops") {
                return Err(AcquireError::Stopped);
            }
            std::thread::sleep(patience.poll);
        }
        Err(self.fail("take the job in", &self.key.journal(), Errno::AGAIN))
    }

    /// Makes the owner file. `known`: the owners when we looked, of whom the highest is dead and the others
    /// had lost the job to it. `follows_unproven`: it may still write. `None`: another was faster; look
    /// again.
    pub(super) fn create(
        &self,
        epoch: u32,
        what: &str,
        known: &[u32],
        patience: &Patience,
        follows_unproven: bool,
    ) -> Result<Option<Owner>, AcquireError> {
        let name = self.key.owner(epoch);
        let fd = match self.jail.create_temp(&self.fd, &name) {
            Err(Errno::EXIST) => return Ok(None),
            other => other.map_err(|errno| self.fail("create", &name, errno))?,
        };
        // It is a file that we made, so that no other has to be made to see how those look here: each more
        // may lie on a storage target that hangs.
        if self.ours.get().is_none()
            && let Ok(ours) = Ours::of(&fd)
        {
            let _ = self.ours.set(ours);
        }
        let mut info =
            OwnerInfo { epoch, what: what.chars().take(WHAT_CHARS_MAX).collect(), ..(*self.here).clone() };
        info.dir_ino = rustix::fs::fstat(&*self.fd).map_or(0, |stat| stat.st_ino);
        info.follows_unproven = follows_unproven;
        info.since =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        // Synced, for after a power cut an empty file would have to be watched until it looks dead.
        let made = write_all_at(&fd, &encode(&info), 0)
            .and_then(|()| retry_on_intr(|| rustix::fs::fdatasync(&fd)))
            .and_then(|()| rustix::fs::fstat(&fd));
        let stat = match made {
            Ok(stat) => stat,
            Err(errno) => {
                let _ = self.jail.unlink(&self.fd, &name);
                return Err(self.fail("write", &name, errno));
            }
        };
        // From here on dropping it removes the file again.
        let owner = Owner {
            place: self.clone(),
            epoch,
            dev_ino: (stat.st_dev, stat.st_ino),
            released: AtomicBool::new(false),
            stays: OnceLock::new(),
            follows_unproven,
            settled: AtomicBool::new(!follows_unproven),
            beat: Mutex::new(None),
        };
        let all = self.owners()?;
        // A higher one, or ours gone: somebody held us for dead before we had written who we are.
        let lost = all.last().is_some_and(|highest| *highest > epoch) || !all.contains(&epoch);
        if lost && !haul_mutant::removed("one-taker-wins") {
            return Ok(None);
        }
        // A lower one that was not there when we looked: it could not know of us, so it may own the job.
        for lower in all.iter().filter(|lower| **lower < epoch && !known.contains(lower)) {
            if let Some(Seen { info: Some(info), .. }) = self.look(*lower)?
                && judge(&info, &self.here) != Life::Dead
                && !(info.yields && patience.takes_it())
            {
                return Err(AcquireError::Held(Box::new(info)));
            }
        }
        // Lowest first, so that an owner that was taken over always misses its own file or sees the next.
        for lower in all.iter().filter(|lower| **lower < epoch) {
            let lower = self.key.owner(*lower);
            match self.jail.unlink(&self.fd, &lower) {
                Ok(()) | Err(Errno::NOENT) => {}
                // By that it would see that it lost the job.
                Err(errno) => return Err(self.fail("remove", &lower, errno)),
            }
        }
        // Two words at most wait, for each is told when it changes.
        let (stop, told) = unbounded();
        let every = patience.beat;
        let spawned = std::thread::Builder::new().name("haul-owner".into()).spawn(move || {
            let mut over = None;
            while over.is_none() {
                match told.recv_timeout(every) {
                    Ok(Word::Yields(yields)) => info.yields = yields,
                    Ok(Word::Ends(ends)) => info.ends = ends,
                    Ok(Word::Settled) => info.follows_unproven = false,
                    Ok(Word::Over(written)) => {
                        info.over = true;
                        over = Some(written);
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
                info.beat += 1;
                // A beat that cannot be written looks like our death to others, and then we see that.
                // Synced, for on network file systems it is not seen before.
                let _ = write_all_at(&fd, &encode(&info), 0).and_then(|()| rustix::fs::fdatasync(&fd));
            }
            if let Some(written) = over {
                let _ = written.send(());
            }
        });
        if spawned.is_err() {
            return Err(self.fail("start the beat of", &name, Errno::AGAIN));
        }
        *lock(&owner.beat) = Some(stop);
        Ok(Some(owner))
    }
}
