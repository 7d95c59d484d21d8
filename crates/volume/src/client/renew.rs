//! Tickets of a client: which one is shown, and others for those that are of no use any more.
//!
//! In: files, and which tickets servers did not take. Out: tickets, and for which files the catalog gives
//! some. A thread asks the catalog, for many files at once: in the last term of a ticket that is used, and
//! where there is none that can be. Invariants: what waits for a ticket keeps its order in its file; where
//! servers take no ticket of a file it is not asked for others without a rest. Left out: how long who asked
//! has patience.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use haul_core::volume::catalog::PAGE_MAX;
use haul_core::volume::ticket::{Rights, Sealed};
use haul_core::volume::wire::Message;
use haul_core::volume::{FileNo, RequestNo, ServerNo, gather, storage};

use crate::catalog::client::Tickets;
use crate::line::Bytes;

/// Between two questions to a catalog that does not answer, and where what it gave was not taken.
const REST: Duration = Duration::from_millis(500);
/// Of a file that was refused within this what is given next may be refused as well.
const REFUSED: Duration = Duration::from_secs(1);
/// Files that are remembered for that.
const REFUSED_MAX: usize = 1024;

/// A request that has no number on its connection yet.
pub(super) enum Asks {
    Gather(gather::Request<u32>),
    Store(storage::Request<u32>),
}

impl Asks {
    pub(super) fn message(self, number: RequestNo) -> Message {
        match self {
            Asks::Gather(request) => Message::Gather(number, request),
            Asks::Store(request) => Message::Store(number, request),
        }
    }

    fn removes(&self) -> bool {
        matches!(self, Asks::Gather(gather::Request::Remove { .. }))
    }

    /// The file that it needs a ticket for.
    fn file(&self) -> Option<FileNo> {
        match self {
            Asks::Gather(gather::Request::Release { .. }) => None,
            Asks::Gather(request) => Some(request.file()),
            Asks::Store(request) => Some(request.file()),
        }
    }
}

/// What waits for a ticket: of which machine, to whom.
pub(super) struct Held {
    pub(super) server: ServerNo,
    pub(super) machine: usize,
    pub(super) of: RequestNo,
    pub(super) asks: Asks,
    pub(super) bytes: Bytes,
}

/// What becomes of a request.
pub(super) enum Shown {
    /// It goes, behind this ticket.
    Goes(Held, Option<Sealed>),
    Waits,
    /// Nobody can use the file any more.
    Gone(Held),
}

/// See the head of this module.
pub(super) struct Renewal {
    tickets: Arc<Tickets>,
    /// Files, and whether to rest before.
    asks: Sender<(FileNo, bool)>,
    waiting: BTreeMap<FileNo, Vec<Held>>,
    /// What is asked for though there is one that is good still.
    early: BTreeSet<FileNo>,
    /// When a ticket of a file was refused last, of late, and whether one was just before.
    refused: BTreeMap<FileNo, (Instant, bool)>,
}

impl Renewal {
    /// `tells`: is told for which files the catalog was asked, and for which of them it gave tickets, if it
    /// answered; says whether anybody wants to know more.
    pub(super) fn start(
        tickets: Tickets,
        tells: impl Fn(Vec<FileNo>, Option<Vec<FileNo>>) -> bool + Send + 'static,
    ) -> io::Result<Renewal> {
        let (asks, asked) = unbounded();
        let tickets = Arc::new(tickets);
        let of_thread = tickets.clone();
        let thread = thread::Builder::new().name("haul-vol-ticket".into());
        thread.spawn(move || ask_for(&of_thread, &asked, tells))?;
        let (waiting, early, refused) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Ok(Renewal { tickets, asks, waiting, early, refused })
    }

    /// Which ticket goes with a request, if there is one.
    pub(super) fn show(&mut self, held: Held) -> Shown {
        let Some(file) = held.asks.file() else { return Shown::Goes(held, None) };
        if let Some(others) = self.waiting.get_mut(&file) {
            others.push(held);
            return Shown::Waits;
        }
        match self.tickets.get(file) {
            // What is given for removing what is left of it.
            Some((sealed, _)) if sealed.ticket.rights == Rights::CUT && !held.asks.removes() => {
                Shown::Gone(held)
            }
            Some((sealed, is_last)) => {
                if is_last && self.early.insert(file) {
                    let _ = self.asks.send((file, false));
                }
                Shown::Goes(held, Some(sealed))
            }
            None => {
                self.waiting.insert(file, vec![held]);
                let rests =
                    self.refused.get(&file).is_some_and(|(at, again)| *again && at.elapsed() < REFUSED);
                let _ = self.asks.send((file, rests));
                Shown::Waits
            }
        }
    }

    /// A server did not take this ticket.
    pub(super) fn refused(&mut self, file: FileNo, name: u64) {
        // Others that were asked with it are refused as well.
        if !self.tickets.forget(file, name) {
            return;
        }
        if self.refused.len() >= REFUSED_MAX {
            self.refused.clear();
        }
        let again = self.refused.get(&file).is_some_and(|(last, _)| last.elapsed() < REFUSED);
        self.refused.insert(file, (Instant::now(), again));
    }

    /// Nothing goes to a server any more that waits here: it is asked anew over its next connection.
    pub(super) fn lost(&mut self, server: ServerNo) {
        self.waiting.values_mut().for_each(|held| held.retain(|one| one.server != server));
    }

    /// The catalog answered, or did not: what waited for it, and whether there are tickets for it now.
    pub(super) fn told(&mut self, files: Vec<FileNo>, given: Option<Vec<FileNo>>) -> Vec<(Held, bool)> {
        let mut all = Vec::new();
        for file in files {
            self.early.remove(&file);
            match &given {
                Some(given) => {
                    let is_given = given.contains(&file);
                    let held = self.waiting.remove(&file).unwrap_or_default();
                    all.extend(held.into_iter().map(|one| (one, is_given)));
                }
                None if self.waiting.contains_key(&file) => _ = self.asks.send((file, true)),
                None => {}
            }
        }
        all
    }

    /// Why something waits, if it is for the catalog.
    pub(super) fn why(&self) -> Option<String> {
        let waits = self.waiting.values().any(|held| !held.is_empty());
        waits.then(|| self.tickets.why())
    }
}

fn ask_for(
    tickets: &Tickets,
    asked: &Receiver<(FileNo, bool)>,
    tells: impl Fn(Vec<FileNo>, Option<Vec<FileNo>>) -> bool,
) {
    while let Ok(first) = asked.recv() {
        let all: Vec<(FileNo, bool)> =
            [first].into_iter().chain(asked.try_iter().take(PAGE_MAX - 1)).collect();
        if all.iter().any(|(_, rests)| *rests) {
            thread::sleep(REST);
        }
        let files: Vec<FileNo> = all.into_iter().map(|(file, _)| file).collect();
        let given = tickets.ask(&files).ok();
        if !tells(files, given) {
            return;
        }
    }
}
