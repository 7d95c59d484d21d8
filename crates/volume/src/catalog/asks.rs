//! Which numbers servers have bytes under that the catalog never gave: it is an older copy then.
//!
//! In: where the servers are, what each answers. Out: that no number is given before all have answered, and
//! then none that one of them has bytes under; which servers have files that the catalog does not know.
//! Invariants: a server is asked once in a life of the catalog, and again until it has answered; nobody but
//! who wants a number waits for it. Left out: which files they are, which `fsck` names.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use haul_core::volume::ServerNo;
use haul_core::volume::check::{Ask, Found};
use haul_core::volume::wire::{Ill, Illness};
use rustix::io::Errno;

use super::store::{Store, Trouble, disk_failure, is_full};
use crate::access::resolve;
use crate::check::Checker;
use crate::dial::Keys;

/// A server has so long to be met, and then to answer: it reads the names of all its files.
const MET_WITHIN: Duration = Duration::from_secs(5);
const ANSWER_WITHIN: Duration = Duration::from_secs(120);
/// Between two tries, from the first on, and at most.
const REST: Duration = Duration::from_millis(50);
const REST_MAX: Duration = Duration::from_secs(2);

/// Who wants a number waits for so long, and so many do; less than anybody's patience.
const HELD_FOR: Duration = Duration::from_secs(15);
const HELD_MAX: usize = 4096;

/// What a server answered.
pub(super) struct Numbers {
    pub(super) server: ServerNo,
    pub(super) highest: u64,
    pub(super) files: u64,
}

/// What is known of what servers have.
#[derive(Default)]
pub(super) struct Asks {
    /// Those that have not answered.
    missing: BTreeSet<ServerNo>,
    highest: u64,
    /// How many files each has that the catalog does not know.
    unknown: BTreeMap<ServerNo, u64>,
    is_settled: bool,
}

impl Asks {
    /// Nobody is asked: the volume is new, or there is nobody.
    pub(super) fn nobody() -> Asks {
        Asks { is_settled: true, ..Asks::default() }
    }

    /// Asks all servers of the volume, each by a thread that ends when it has answered, or the catalog is
    /// over.
    ///
    /// # Errors
    /// The disk's; no thread can be started.
    pub(super) fn begin(
        store: &Store,
        keys: &Keys,
        servers: &[String],
        over: &Arc<AtomicBool>,
        post: impl Fn(Numbers) + Clone + Send + 'static,
    ) -> std::io::Result<Asks> {
        let ask = store.given().map(|(last, skipped)| Ask::Numbers { last, skipped }).map_err(|trouble| {
            std::io::Error::other(match trouble {
                Trouble::Failed(failure) => failure.words.into(),
                Trouble::Disk(error) => error.to_string(),
            })
        })?;
        let mut missing = BTreeSet::new();
        for (number, at) in servers.iter().enumerate() {
            let server = ServerNo(number as u16);
            let asker = Asker { keys: keys.clone(), server, at: at.clone(), over: over.clone() };
            let (ask, post) = (ask.clone(), post.clone());
            let named = thread::Builder::new().name("haul-cat-ask".into());
            named.spawn(move || {
                if let Some(numbers) = asker.ask_on(&ask) {
                    post(numbers);
                }
            })?;
            missing.insert(server);
        }
        Ok(Asks { missing, ..Asks::default() })
    }

    fn hear(&mut self, numbers: &Numbers) {
        let Numbers { server, highest, files } = *numbers;
        self.missing.remove(&server);
        self.highest = self.highest.max(highest);
        if files > 0 {
            self.unknown.insert(server, files);
        }
    }

    /// Whether numbers can be given: all have answered, and that none of theirs is given again is on media.
    ///
    /// # Errors
    /// The disk's.
    fn settle(&mut self, store: &Store) -> Result<bool, Trouble> {
        if haul_mutant::removed("catalog-asks-before-it-gives") {
            return Ok(true);
        }
        if !self.is_settled && self.missing.is_empty() {
            let highest = self.highest;
            let skip = || store.alone(|store| store.skip_to(highest));
            match skip() {
                Err(Trouble::Disk(error)) if is_full(&error) => {
                    store.ease();
                    skip()?;
                }
                other => other?,
            }
            self.is_settled = true;
        }
        Ok(self.is_settled)
    }

    /// What visitors hear of it.
    fn ills(&self, since: Duration) -> Vec<Ill> {
        let ill = |what, errno: Errno| Ill { what, errno: errno.raw_os_error(), since };
        let unknown = self
            .unknown
            .iter()
            .map(|(server, files)| ill(Illness::Unknown { server: *server, files: *files }, Errno::STALE));
        let unasked =
            self.missing.iter().map(|server| ill(Illness::Unasked { server: *server }, Errno::AGAIN));
        unknown.chain(unasked).collect()
    }

    /// Why no number can be given.
    fn why(&self, servers: &[Box<str>]) -> String {
        let name = |server: &ServerNo| {
            format!("server {}, {}", server.0, servers.get(usize::from(server.0)).map_or("", |at| at))
        };
        let some: Vec<String> = self.missing.iter().take(3).map(name).collect();
        let more = if self.missing.len() > some.len() { ", ..." } else { "" };
        format!(
            "nothing new is made before all servers have said, once after the catalog began, which numbers they \
             have files under; not heard yet: {}{more}; start what does not run (`haul volume health` names it)",
            some.join("; ")
        )
    }
}

/// What came to the catalog, and what of it waits for a number.
pub(super) struct Held<E> {
    asks: Asks,
    waits: VecDeque<(Instant, E)>,
    /// Why it is not on media which numbers are skipped.
    trouble: Option<Trouble>,
}

/// What goes on, in its order, and what waited for too long.
pub(super) struct Sifted<E> {
    pub(super) ready: Vec<E>,
    pub(super) refused: Vec<E>,
}

impl<E> Held<E> {
    pub(super) fn new(asks: Asks) -> Held<E> {
        Held { asks, waits: VecDeque::new(), trouble: None }
    }

    pub(super) fn hear(&mut self, numbers: &Numbers) {
        self.asks.hear(numbers);
    }

    pub(super) fn ills(&self, since: Duration) -> Vec<Ill> {
        self.asks.ills(since)
    }

    /// What of all that came and waits goes on now.
    pub(super) fn sift(
        &mut self,
        came: Vec<E>,
        store: &Store,
        wants_a_number: impl Fn(&E) -> bool,
    ) -> Sifted<E> {
        let settled = self.asks.settle(store);
        if let Ok(true) = settled {
            let ready = self.waits.drain(..).map(|(_, event)| event).chain(came).collect();
            return Sifted { ready, refused: Vec::new() };
        }
        self.trouble = settled.err();
        let now = Instant::now();
        let (wait, ready): (Vec<E>, Vec<E>) = came.into_iter().partition(wants_a_number);
        self.waits.extend(wait.into_iter().map(|event| (now, event)));
        let is_late = |(since, _): &(Instant, E)| now.duration_since(*since) > HELD_FOR;
        let mut refused = Vec::new();
        while self.waits.len() > HELD_MAX || self.waits.front().is_some_and(is_late) {
            refused.extend(self.waits.pop_front().map(|(_, event)| event));
        }
        Sifted { ready, refused }
    }

    /// Why something waited in vain. `servers`: where they are.
    pub(super) fn why(&self, servers: &[Box<str>]) -> String {
        match &self.trouble {
            Some(Trouble::Disk(error)) => disk_failure(error).words.into(),
            Some(Trouble::Failed(failure)) => failure.words.clone().into(),
            None => self.asks.why(servers),
        }
    }
}

struct Asker {
    keys: Keys,
    server: ServerNo,
    at: String,
    over: Arc<AtomicBool>,
}

impl Asker {
    /// Asks until there is an answer, or the catalog is over.
    fn ask_on(&self, ask: &Ask) -> Option<Numbers> {
        let mut rest = REST;
        while !self.over.load(Ordering::Acquire) {
            if let Some(numbers) = self.try_once(ask) {
                return Some(numbers);
            }
            thread::sleep(rest);
            rest = (rest * 2).min(REST_MAX);
        }
        None
    }

    fn try_once(&self, ask: &Ask) -> Option<Numbers> {
        let at = resolve(&self.at).ok()?;
        let mut server =
            Checker::connect_within(&self.keys, at, self.server, (MET_WITHIN, ANSWER_WITHIN)).ok()?;
        match server.ask(ask.clone()).ok()? {
            Found::Numbers { highest, files } => Some(Numbers { server: self.server, highest, files }),
            _ => None,
        }
    }
}
