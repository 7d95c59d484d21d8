//! What servers' disks refuse of what was gathered here: what waits, why and since when, and when it is tried
//! again.
//!
//! In: pushes that are to begin, and what became of them; servers that begin a life; time. Out: which pushes
//! begin and which are refused at once; where something is to be tried; what visitors are told.
//! Invariants: to a disk that refuses one push at a time goes, not more often than every [`REST`]; all others
//! come to nothing at once, so that no cut and no client waits for them; whatever is taken there ends that.
//! A server without room refuses all files; another error is of one file, for others may be well.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use haul_core::volume::gather::{Part, PushNo};
use haul_core::volume::wire::{Ill, Illness};
use haul_core::volume::{Epoch, FileNo, ServerNo};

use crate::reserve::is_full_raw;

/// A disk without room is asked again after so long.
pub(super) const REST: Duration = Duration::from_secs(1);
/// And one that fails: that does not pass by itself before its server begins another life.
const LONG_REST: Duration = Duration::from_secs(30);

/// A push that may begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Push {
    pub(super) push: PushNo,
    pub(super) server: ServerNo,
    pub(super) file: FileNo,
    pub(super) epoch: Epoch,
    pub(super) parts: Vec<Part>,
}

/// Who refuses: a server all files, or one.
pub(super) type Whose = (ServerNo, Option<FileNo>);

struct Refusing {
    errno: i32,
    since: Instant,
    /// Not before then is anything tried.
    next: Instant,
    /// The gatherer was asked for something to try.
    asked: bool,
    /// What is tried.
    tried: Option<PushNo>,
}

/// See the head of this module.
#[derive(Default)]
pub(super) struct Care {
    refusing: BTreeMap<Whose, Refusing>,
}

fn rest_of(errno: i32) -> Duration {
    if is_full_raw(errno) { REST } else { LONG_REST }
}

impl Care {
    fn whose(&self, server: ServerNo, file: FileNo) -> Option<Whose> {
        let keys = [(server, None), (server, Some(file))];
        keys.into_iter().find(|key| self.refusing.contains_key(key))
    }

    /// Whether a server takes what is of this file, as far as is known.
    pub(super) fn takes(&self, server: ServerNo, file: FileNo) -> bool {
        self.whose(server, file).is_none()
    }

    /// Whether a push begins.
    ///
    /// # Errors
    /// Its server's disk refuses it, as it refused what came before.
    pub(super) fn begins(&mut self, push: &Push) -> Result<(), i32> {
        let whose = self.whose(push.server, push.file);
        let Some(refusing) = whose.and_then(|whose| self.refusing.get_mut(&whose)) else { return Ok(()) };
        if !refusing.asked && !haul_mutant::removed("volume-refused-rest") {
            return Err(refusing.errno);
        }
        (refusing.tried, refusing.asked) = (Some(push.push), false);
        Ok(())
    }

    /// A push is over. `refused`: by the disk, with that number. Whether that is news.
    pub(super) fn is_over(
        &mut self,
        now: Instant,
        (push, server, file): (PushNo, ServerNo, FileNo),
        is_well: bool,
        refused: Option<i32>,
    ) -> bool {
        for refusing in self.refusing.values_mut() {
            let _ = refusing.tried.take_if(|tried| *tried == push);
        }
        if is_well {
            self.refusing.remove(&(server, None));
            self.refusing.remove(&(server, Some(file)));
            return false;
        }
        let Some(errno) = refused else { return false };
        let file = (!is_full_raw(errno)).then_some(file);
        let mut is_new = false;
        let refusing = self.refusing.entry((server, file)).or_insert_with(|| {
            is_new = true;
            Refusing { errno, since: now, next: now, asked: false, tried: None }
        });
        (refusing.errno, refusing.next) = (errno, now + rest_of(errno));
        is_new
    }

    /// A server began a life, or is there again: it may be well.
    pub(super) fn is_there(&mut self, now: Instant, server: ServerNo) {
        let of_it = self.refusing.iter_mut().filter(|((of, _), _)| *of == server);
        of_it.for_each(|(_, refusing)| (refusing.next, refusing.tried) = (now, None));
    }

    /// Where something is to be tried at that time.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Whose> {
        let mut due = Vec::new();
        for (whose, refusing) in self.refusing.iter_mut().filter(|(_, one)| one.next <= now) {
            refusing.next = now + rest_of(refusing.errno);
            if refusing.tried.is_none() {
                refusing.asked = true;
                due.push(*whose);
            }
        }
        due
    }

    /// Nothing waits there any more.
    pub(super) fn is_done(&mut self, whose: Whose) {
        self.refusing.remove(&whose);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.refusing.is_empty()
    }

    /// What waits for whom, of `waiting`: file, its server, and bytes.
    pub(super) fn ills(
        &self,
        now: Instant,
        waiting: impl Iterator<Item = (FileNo, ServerNo, u64)>,
    ) -> Vec<Ill> {
        let mut all: BTreeMap<(ServerNo, i32), (Instant, BTreeMap<FileNo, u64>)> = BTreeMap::new();
        for ((server, _), one) in &self.refusing {
            let (since, _) = all.entry((*server, one.errno)).or_insert_with(|| (one.since, BTreeMap::new()));
            *since = one.since.min(*since);
        }
        for (file, server, len) in waiting {
            let Some(whose) = self.whose(server, file) else { continue };
            let errno = self.refusing[&whose].errno;
            if let Some((_, files)) = all.get_mut(&(server, errno)) {
                *files.entry(file).or_default() += len;
            }
        }
        let ill = |((server, errno), (since, files)): ((ServerNo, i32), (Instant, BTreeMap<FileNo, u64>))| {
            let (count, bytes) = (files.len() as u64, files.values().sum());
            let what = Illness::Waits { server, files: count, bytes };
            Ill { what, errno, since: now.saturating_duration_since(since) }
        };
        all.into_iter().map(ill).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: i32 = rustix::io::Errno::NOSPC.raw_os_error();
    const BROKEN: i32 = rustix::io::Errno::IO.raw_os_error();

    fn push(number: u64, server: u16, file: u64) -> Push {
        let (push, server, file) = (PushNo(number), ServerNo(server), FileNo(file));
        Push { push, server, file, epoch: Epoch::default(), parts: Vec::new() }
    }

    fn of(push: &Push) -> (PushNo, ServerNo, FileNo) {
        (push.push, push.server, push.file)
    }

    /// Goal: a disk that refuses gets one push at a time, after a rest; others are refused at once; and when
    /// it takes something all goes on. Other servers are not held up.
    #[test]
    fn what_is_refused_rests() {
        let (mut care, begun) = (Care::default(), Instant::now());
        let [one, two, other] = [push(1, 1, 9), push(2, 1, 8), push(3, 2, 9)];
        assert_eq!(care.begins(&one), Ok(()));
        assert!(care.is_over(begun, of(&one), false, Some(FULL)), "it is news");
        assert_eq!(care.begins(&two), Err(FULL));
        assert_eq!(care.begins(&other), Ok(()));
        assert!(care.due(begun).is_empty(), "it rests");
        let later = begun + REST;
        assert_eq!(care.due(later), [(ServerNo(1), None)]);
        assert_eq!(care.begins(&two), Ok(()));
        assert_eq!(care.begins(&one), Err(FULL), "one at a time");
        assert!(care.due(later + REST).is_empty(), "that one is slow");
        assert!(!care.is_over(later + REST, of(&two), false, Some(FULL)));
        assert!(care.due(later + REST).is_empty());
        assert_eq!(care.due(later + 2 * REST), [(ServerNo(1), None)]);
        assert_eq!(care.begins(&one), Ok(()));
        assert!(!care.is_over(later + 2 * REST, of(&one), true, None));
        assert!(care.is_empty() && care.begins(&two) == Ok(()));
    }

    /// Goal: an error that is of one file holds up no other; it is told what waits, for whom and why.
    #[test]
    fn one_file_is_not_all() {
        let (mut care, now) = (Care::default(), Instant::now());
        let [one, two] = [push(1, 1, 9), push(2, 1, 8)];
        care.is_over(now, of(&one), false, Some(BROKEN));
        assert_eq!(care.begins(&two), Ok(()));
        assert_eq!(care.begins(&one), Err(BROKEN));
        let waiting = [(FileNo(9), ServerNo(1), 5), (FileNo(9), ServerNo(1), 6), (FileNo(8), ServerNo(1), 7)];
        let ills = care.ills(now + REST, waiting.into_iter());
        let what = Illness::Waits { server: ServerNo(1), files: 1, bytes: 11 };
        assert_eq!(ills, [Ill { what, errno: BROKEN, since: REST }]);
        // A file's error passes with the life of its server alone.
        assert!(care.due(now + REST).is_empty());
        care.is_there(now + REST, ServerNo(1));
        assert_eq!(care.due(now + REST), [(ServerNo(1), Some(FileNo(9)))]);
    }
}
