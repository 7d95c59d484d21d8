//! Which files clients have open: the bytes of those stay, also when their names are gone.
//!
//! In: who opened and closed what, who came and went, the time of the catalog's own clock. Out: which files
//! nobody has open any more.
//! Invariants: a file counts as open as long as one client has it so; what a client has open outlives its
//! connection by [`GRACE`], and the catalog's process by the same: for so long after a start nobody can know
//! who has what open, and nothing counts as closed. Nothing here is on disk; clients say it again.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use haul_core::volume::ClientNo;
use haul_core::volume::catalog::{EntryNo, OPEN_MAX};

/// A client that went, and everybody after a start, has so long to come back.
pub const GRACE: Duration = Duration::from_secs(30);
/// Files that all clients together may have open; about 200 MB of memory.
const TOTAL_MAX: usize = 4 << 20;
/// Time between two looks at the clock counts at most so much: what a catalog slept through, its clients
/// could not use to come back.
const STEP_MAX: Duration = Duration::from_secs(1);

/// The catalog's own clock: how long it was there to be talked to.
pub struct Clock {
    looked: Instant,
    passed: Duration,
}

impl Clock {
    pub fn start(now: Instant) -> Clock {
        Clock { looked: now, passed: Duration::ZERO }
    }

    /// The time since the start.
    pub fn look(&mut self, now: Instant) -> Duration {
        let step = now.saturating_duration_since(self.looked);
        self.looked = now;
        self.passed +=
            if haul_mutant::removed("catalog-sleep-is-no-grace") { step } else { step.min(STEP_MAX) };
        self.passed
    }
}

/// It cannot have more files open.
#[derive(Debug, PartialEq, Eq)]
pub struct TooMany;

#[derive(Default)]
struct Client {
    files: HashSet<EntryNo>,
    /// When its connection was gone.
    gone: Option<Duration>,
}

/// See the head of this module.
pub struct Holds {
    grace: Duration,
    clients: HashMap<ClientNo, Client>,
    /// How many clients have it open; never 0.
    files: HashMap<EntryNo, u32>,
    total: usize,
}

impl Default for Holds {
    fn default() -> Holds {
        Holds::with_grace(GRACE)
    }
}

impl Holds {
    /// `grace`: see the head, in place of [`GRACE`].
    pub fn with_grace(grace: Duration) -> Holds {
        Holds { grace, clients: HashMap::new(), files: HashMap::new(), total: 0 }
    }

    /// Whether everybody who had something open before the catalog started has had the time to say so.
    pub fn are_known(&self, now: Duration) -> bool {
        now >= self.grace || haul_mutant::removed("catalog-grace-after-start")
    }

    pub fn is_open(&self, file: EntryNo) -> bool {
        self.files.contains_key(&file)
    }

    /// Whether this client has it open.
    pub fn has(&self, client: ClientNo, file: EntryNo) -> bool {
        self.clients.get(&client).is_some_and(|client| client.files.contains(&file))
    }

    /// A client has a connection.
    pub fn come(&mut self, client: ClientNo) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.gone = None;
        }
    }

    /// A client has none any more.
    pub fn go(&mut self, client: ClientNo, now: Duration) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.gone = Some(now);
        }
    }

    /// How many files clients have open, each as often as clients have it so; and how many of those are of
    /// clients that have no connection.
    pub fn count(&self) -> (u64, u64) {
        let gone = self.clients.values().filter(|client| client.gone.is_some());
        (self.total as u64, gone.map(|client| client.files.len() as u64).sum())
    }

    /// Whether it could have so many files more.
    ///
    /// # Errors
    /// It could not.
    pub fn have_room(&self, client: ClientNo, more: usize) -> Result<(), TooMany> {
        let has = self.clients.get(&client).map_or(0, |client| client.files.len());
        match has + more <= OPEN_MAX && self.total + more <= TOTAL_MAX {
            true => Ok(()),
            false => Err(TooMany),
        }
    }

    pub fn open(&mut self, client: ClientNo, file: EntryNo) {
        if self.clients.entry(client).or_default().files.insert(file) {
            *self.files.entry(file).or_insert(0) += 1;
            self.total += 1;
        }
    }

    /// Whether nobody has it open now, and this client had.
    pub fn close(&mut self, client: ClientNo, file: EntryNo) -> bool {
        let Some(held) = self.clients.get_mut(&client) else { return false };
        if !held.files.remove(&file) {
            return false;
        }
        if held.files.is_empty() && held.gone.is_none() {
            self.clients.remove(&client);
        }
        self.less(file)
    }

    fn less(&mut self, file: EntryNo) -> bool {
        self.total -= 1;
        let count = self.files.get_mut(&file).expect("what a client has open is counted");
        *count -= 1;
        if *count == 0 {
            self.files.remove(&file);
            return true;
        }
        false
    }

    /// The client has nothing open from here on; says what nobody else has either.
    pub fn end(&mut self, client: ClientNo) -> Vec<EntryNo> {
        let files = self.clients.remove(&client).unwrap_or_default().files;
        files.into_iter().filter(|file| self.less(*file)).collect()
    }

    /// Ends those that are gone for too long; says what nobody has open any more.
    pub fn expire(&mut self, now: Duration) -> Vec<EntryNo> {
        let grace = self.grace;
        let is_over = |client: &Client| client.gone.is_some_and(|gone| now >= gone + grace);
        let over: Vec<_> =
            self.clients.iter().filter(|(_, client)| is_over(client)).map(|(number, _)| *number).collect();
        over.into_iter().flat_map(|client| self.end(client)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientNo = ClientNo(1);
    const B: ClientNo = ClientNo(2);
    const F: EntryNo = EntryNo(10);
    const G: EntryNo = EntryNo(11);

    fn at(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    /// Goal: a file is open until the last who opened it closed it, however often each said so.
    #[test]
    fn the_last_one_closes() {
        let mut holds = Holds::default();
        holds.open(A, F);
        holds.open(A, F);
        holds.open(B, F);
        assert!(!holds.close(A, F));
        assert!(!holds.close(A, F), "it has closed it already");
        assert!(holds.is_open(F));
        assert!(holds.close(B, F));
        assert!(!holds.is_open(F));
        assert_eq!((holds.total, holds.clients.len(), holds.files.len()), (0, 0, 0));
    }

    /// Goal: who comes back in time loses nothing; who does not, loses all, and others keep theirs.
    #[test]
    fn who_comes_back_in_time_loses_nothing() {
        let mut holds = Holds::default();
        holds.open(A, F);
        holds.open(A, G);
        holds.open(B, G);
        holds.go(A, at(100));
        assert_eq!(holds.expire(at(129)), []);
        holds.come(A);
        assert_eq!(holds.expire(at(1000)), []);
        holds.go(A, at(1000));
        assert_eq!(holds.expire(at(1030)), [F]);
        assert!(holds.is_open(G) && !holds.is_open(F));
        assert_eq!(holds.end(B), [G]);
        assert_eq!(holds.total, 0);
    }

    /// Goal: time that the catalog slept through is none in which its clients could have come back.
    #[test]
    fn sleep_is_no_grace() {
        let begun = Instant::now();
        let mut clock = Clock::start(begun);
        assert_eq!(clock.look(begun + Duration::from_millis(500)), Duration::from_millis(500));
        assert!(clock.look(begun + at(3600)) < at(2));
        assert_eq!(clock.look(begun), clock.passed, "and it never goes back");
    }

    /// Goal: nobody can have more open than the bound.
    #[test]
    fn there_is_a_bound() {
        let mut holds = Holds::default();
        (0..OPEN_MAX as u64).for_each(|file| holds.open(A, EntryNo(file)));
        assert_eq!(holds.have_room(A, 1), Err(TooMany));
        assert_eq!(holds.have_room(B, 1), Ok(()));
    }
}
