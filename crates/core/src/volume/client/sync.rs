//! Syncs of a file: what they wait for, and what they come to.
//!
//! Invariant: a sync succeeds only if whoever took writes before it says that they last, in the life in
//! which he took them; what was lost fails every sync that was asked for before that, and the next one; and
//! so does a sync that failed, if it was for more than it was asked for. What a disk says of one sync, all
//! say that were asked for meanwhile: what the first was for was written before them, and they ask nobody
//! about it.

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
        if let Some(failed) = failed {
            for sync in &mut state.syncs {
                // What a disk says is told before what was lost: it is of writes, too, that were under way
                // when this was asked for, and no later sync is asked about those.
                let is_said = matches!(sync.failed, Some(Outcome::Failed(..)));
                if sync.failed.is_none() || !is_said && matches!(failed, Outcome::Failed(..)) {
                    sync.failed = Some(failed.clone());
                }
                if haul_mutant::removed("volume-syncs-that-wait-fail-too") {
                    break;
                }
            }
            // Who asked for more than this one did waits for the next one.
            if state.syncs.front().is_some_and(|first| first.has_later) {
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

#[cfg(test)]
mod tests {
    use super::super::{Action, Path, Striping};
    use super::*;

    const FILE: FileNo = FileNo(0);
    const EIO: i32 = 5;

    /// Goal: a disk that says no is told by the sync that asked it, though that sync was for something of the
    /// gatherer's life before, too, and by the one that was asked for meanwhile: that one asks nobody about
    /// what the first was for.
    #[test]
    fn what_a_disk_says_is_not_hidden_by_what_was_lost() {
        let mut client = Client::new(Striping::new(8, 1));
        let life = Incarnation(1);
        client.gatherer_joined(Time(1), 1);
        client.server_joined(Time(1), ServerNo(0), life);
        client.heard(Time(1), Time(1));
        let sent = |client: &mut Client<&'static str>| match client.poll_action() {
            Some(Action::ToGatherer(number, _) | Action::ToStorage(_, number, _)) => number,
            other => panic!("{other:?} asks for nothing"),
        };
        client.write(Time(2), OpNo(1), Path::Gather, FILE, (0, 3), "abc");
        let gathered = sent(&mut client);
        client.gatherer_answered(Time(3), gathered, gather::Answer::Written);
        assert_eq!(client.poll_action(), Some(Action::Done(OpNo(1), Outcome::Written)));
        // The gatherer's next life has nothing of that write.
        client.gatherer_joined(Time(4), 2);
        client.heard(Time(4), Time(4));
        client.write(Time(5), OpNo(2), Path::Direct, FILE, (8, 3), "def");
        let leased = sent(&mut client);
        client.sync(Time(6), OpNo(3), FILE);
        let answer = gather::Answer::Leased { stripes: 1..2, epoch: Epoch { gatherer: 2, fence: 0 } };
        client.gatherer_answered(Time(7), leased, answer);
        let written = sent(&mut client);
        client.storage_answered(Time(8), ServerNo(0), written, storage::Answer::Written(life));
        assert_eq!(client.poll_action(), Some(Action::Done(OpNo(2), Outcome::Written)));
        client.sync(Time(9), OpNo(4), FILE);
        let mut done = Vec::new();
        while let Some(action) = client.poll_action() {
            match action {
                Action::ToStorage(server, number, storage::Request::Sync { .. }) => {
                    client.storage_answered(Time(10), server, number, storage::Answer::Failed(EIO));
                }
                Action::ToGatherer(number, gather::Request::Sync { .. }) => {
                    client.gatherer_answered(Time(10), number, gather::Answer::Durable);
                }
                Action::ToGatherer(_, gather::Request::Grow { .. }) => {}
                Action::Done(op, outcome) => done.push((op, outcome)),
                other => panic!("{other:?}"),
            }
        }
        let failed = Outcome::Failed(Where::Storage(ServerNo(0)), EIO);
        assert_eq!(done, [(OpNo(3), failed.clone()), (OpNo(4), failed)]);
        // It was heard, and is no more than that.
        client.sync(Time(11), OpNo(5), FILE);
        while let Some(action) = client.poll_action() {
            match action {
                Action::ToGatherer(number, _) => {
                    client.gatherer_answered(Time(11), number, gather::Answer::Durable);
                }
                Action::Done(op, outcome) => assert_eq!((op, outcome), (OpNo(5), Outcome::Synced)),
                other => panic!("{other:?}"),
            }
        }
    }
}
