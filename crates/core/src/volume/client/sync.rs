//! Syncs of a file: what they wait for, and what they come to.
//!
//! Invariant: a sync succeeds only if whoever took writes before it says that they last, in the life in
//! which he took them; what was lost fails every sync that was asked for before that, and the next one; and
//! so does a sync that failed, if it was for more than it was asked for.

use std::collections::{BTreeMap, BTreeSet};

use super::{Asked, Client, File, OpNo, Outcome, Where};
use crate::ids::Time;
use crate::volume::{Epoch, FileNo, Incarnation, ServerNo, gather, storage};

#[derive(Debug)]
pub(super) struct Syncing {
    pub(super) op: OpNo,
    /// Writes before it.
    waits: BTreeSet<OpNo>,
    /// Who is to answer, and in which life.
    storage: BTreeMap<ServerNo, Incarnation>,
    gatherer: Option<u32>,
    /// Lengths that the gatherer is to make last.
    ends: BTreeMap<Epoch, u64>,
    begun: bool,
    /// It is for writes, too, that were asked for after it and were over when it began.
    has_later: bool,
    failed: Option<Outcome<()>>,
}

impl<B> File<B> {
    /// Somebody lost what was not synced. Every sync that waits was for some of it, and the next may be.
    pub(super) fn loses(&mut self, of: Where) {
        self.lost = Some(of);
        for sync in &mut self.syncs {
            sync.failed.get_or_insert(Outcome::Lost(of));
        }
    }
}

impl<B: Clone> Client<B> {
    /// The application wants what it wrote to a file before to last.
    pub fn sync(&mut self, now: Time, op: OpNo, file: FileNo) {
        self.now = self.now.max(now);
        let state = self.file(file);
        let waits = state.writes.clone();
        let lost = state.lost.take();
        state.syncs.push_back(Syncing {
            op,
            waits,
            storage: BTreeMap::new(),
            gatherer: None,
            ends: BTreeMap::new(),
            begun: false,
            has_later: false,
            failed: lost.map(Outcome::Lost),
        });
        self.begin_syncs(file);
    }

    /// Begins the first sync of a file that waits for no write any more.
    pub(super) fn begin_syncs(&mut self, file: FileNo) {
        let connected = self.gatherer;
        let Some(state) = self.files.get_mut(&file) else { return };
        let Some(first) = state.syncs.front_mut() else { return };
        if first.begun || !first.waits.is_disjoint(&state.writes) {
            return;
        }
        let tells = first.gatherer.is_none() && (state.gathered.is_some() || !state.ends.is_empty());
        if tells && connected.is_none() || state.dirty.keys().any(|server| !self.servers.contains_key(server))
        {
            return;
        }
        first.begun = true;
        first.has_later |= state.written > Some(first.op);
        let storage = std::mem::take(&mut state.dirty);
        first.storage.extend(&storage);
        if tells {
            first.gatherer = connected;
            state.gathered = None;
            first.ends = std::mem::take(&mut state.ends);
        }
        let (op, ends) = (first.op, first.ends.clone());
        if tells {
            for (epoch, end) in ends {
                self.tell_gatherer(gather::Request::Grow { file, epoch, end });
            }
            self.ask_gatherer(Asked::Sync { file, op }, gather::Request::Sync { file });
        }
        for server in storage.into_keys() {
            self.ask_storage(server, Asked::Sync { file, op }, storage::Request::Sync { file });
        }
        self.end_sync(file);
    }

    /// Somebody answered a sync: in which life, or the disk's error. `None`: he is gone, and nobody knows.
    pub(super) fn sync_answered(
        &mut self,
        file: FileNo,
        op: OpNo,
        of: Where,
        answer: Option<Result<Option<Incarnation>, i32>>,
    ) {
        let state = self.file(file);
        let Some(first) = state.syncs.front_mut().filter(|first| first.op == op) else { return };
        let failed = match (of, answer) {
            (Where::Storage(server), Some(Ok(incarnation))) => {
                (first.storage.remove(&server) != incarnation).then_some(Outcome::Lost(of))
            }
            (Where::Gatherer, Some(Ok(_))) => {
                first.gatherer = None;
                first.ends.clear();
                None
            }
            (of, Some(Err(errno))) => {
                match of {
                    Where::Storage(server) => _ = first.storage.remove(&server),
                    Where::Gatherer => first.gatherer = None,
                }
                Some(Outcome::Failed(of, errno))
            }
            // It is made again, if the same life is there again; else it was lost.
            (Where::Storage(server), None) => {
                if let Some(incarnation) = first.storage.remove(&server) {
                    state.dirty.entry(server).or_insert(incarnation);
                }
                first.begun = false;
                None
            }
            (Where::Gatherer, None) => {
                state.gathered = state.gathered.or(first.gatherer.take());
                first.begun = false;
                None
            }
        };
        if of == Where::Gatherer {
            // What is not known to last is told again.
            for (epoch, end) in std::mem::take(&mut first.ends) {
                state.reaches(epoch, end);
            }
        }
        let Some(first) = state.syncs.front_mut() else { return };
        if let Some(failed) = failed {
            first.failed.get_or_insert(failed);
            // Who asked for those waits for the next one.
            if first.has_later {
                state.loses(of);
            }
        }
        self.end_sync(file);
    }

    fn end_sync(&mut self, file: FileNo) {
        let state = self.file(file);
        let is_over = |first: &Syncing| first.begun && first.storage.is_empty() && first.gatherer.is_none();
        if state.syncs.front().is_some_and(is_over)
            && let Some(first) = state.syncs.pop_front()
        {
            let outcome = match first.failed {
                None => Outcome::Synced,
                Some(Outcome::Failed(of, errno)) => Outcome::Failed(of, errno),
                Some(Outcome::Lost(of)) => Outcome::Lost(of),
                Some(_) => unreachable!("a sync fails by these alone"),
            };
            self.done(first.op, outcome);
            self.begin_syncs(file);
        }
    }
}
