//! Files made shorter or longer, and removed: what has to be over before the servers cut, and what comes
//! after.
//!
//! In: that a client wants a file to end somewhere; leases that come back, pushes that are over;
//! what became of the servers' cut. Out: a record before, the servers' cut, a record after, the answer.
//! Invariants: the servers cut when the log's record of it lasts, when nobody has a lease on a stripe behind
//! the new end, and no push of one is under way; nothing else is done to the file until the record
//! lasts that they have cut: nothing of before comes back, in the next life either, and nothing of after is
//! cut away.
//!
//! A removal is a cut of everything after which the file is forgotten, but for its number: in this life
//! nothing makes it exist again, and in a later one nothing that counts, for no name leads there.
//!
//! What the log has behind the new end is shown until the servers have cut: they may have older bytes below.

use std::time::Duration;

use super::stripe::{Queued, cut};
use super::{Action, Answer, Appending, File, Gatherer, Record, Request, Seq, Syncing};
use crate::volume::{ClientNo, Epoch, FileNo, RequestNo};

/// Servers that did not cut are asked again so much later.
pub(super) const CUT_AGAIN: Duration = Duration::from_millis(500);

/// A cut by all servers, until it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CutNo(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// For leases and pushes of what is to be cut.
    Waits,
    /// The log is to say first that it will be.
    Noting(Seq),
    /// The servers cut.
    Cuts(Seq),
    /// They are asked again a little later.
    Again(Seq),
    /// They have cut, and the log is to say so.
    Ends,
}

#[derive(Debug)]
pub(super) struct Cutting {
    /// Who is to hear that it is done.
    asked: Option<(ClientNo, RequestNo)>,
    from: u64,
    removes: bool,
    epoch: Epoch,
    stage: Stage,
}

impl Cutting {
    /// One that the log speaks of, and does not say that it is done.
    pub(super) fn of_log(from: u64, epoch: Epoch, seq: Seq) -> Cutting {
        Cutting { asked: None, from, removes: false, epoch, stage: Stage::Noting(seq) }
    }

    /// A removal likewise.
    pub(super) fn removal_of_log(seq: Seq) -> Cutting {
        Cutting { removes: true, ..Cutting::of_log(0, Epoch::default(), seq) }
    }

    /// The record that the next life begins from.
    pub(super) fn record(&self) -> Option<Seq> {
        match self.stage {
            Stage::Noting(seq) | Stage::Cuts(seq) | Stage::Again(seq) => Some(seq),
            Stage::Waits | Stage::Ends => None,
        }
    }
}

impl<B> Gatherer<B> {
    /// The first stripe of which something is being cut.
    pub(super) fn first_cut(&self, file: FileNo) -> Option<u64> {
        let cutting = self.files.get(&file)?.cutting.as_ref()?;
        Some(cutting.from / self.settings.stripe_size)
    }

    pub(super) fn begin_cut(&mut self, client: ClientNo, number: RequestNo, file: FileNo, from: u64) {
        self.begin(client, number, file, from, false);
    }

    pub(super) fn begin_removal(&mut self, client: ClientNo, number: RequestNo, file: FileNo) {
        self.begin(client, number, file, 0, true);
    }

    fn begin(&mut self, client: ClientNo, number: RequestNo, file: FileNo, from: u64, removes: bool) {
        let epoch = self.epoch(file);
        let asked = Some((client, number));
        self.file(file).cutting = Some(Cutting { asked, from, removes, epoch, stage: Stage::Waits });
        self.go_on_cut(file);
    }

    /// Goes on with a cut if nothing is in its way any more.
    pub(super) fn go_on_cut(&mut self, file: FileNo) {
        let Some(first) = self.first_cut(file) else { return };
        let state = self.file(file);
        if state.cutting.as_ref().is_none_or(|cutting| cutting.stage != Stage::Waits) {
            return;
        }
        let behind = || state.stripes.range(first..);
        let is_free =
            behind().all(|(_, stripe)| stripe.leases.is_empty() && !stripe.pushing && stripe.appending == 0);
        let leased: Vec<(u64, Vec<ClientNo>)> =
            behind().map(|(at, stripe)| (*at, stripe.leases.iter().copied().collect())).collect();
        for (at, clients) in leased {
            self.recall(file, at, &clients);
        }
        if !is_free {
            return;
        }
        // What was written under older ones came before it.
        self.note_untold(file);
        self.file(file).fence += 1;
        let epoch = self.epoch(file);
        let cutting = self.file(file).cutting.as_mut().expect("it was just there");
        cutting.epoch = epoch;
        let record = match cutting.removes {
            true => Record::Remove { file },
            false => Record::Cut { file, from: cutting.from, epoch },
        };
        let seq = self.append(record, Appending::Other);
        self.file(file).cutting.as_mut().expect("it was just there").stage = Stage::Noting(seq);
        self.sync(Syncing::Cut(file));
    }

    /// The log's record lasts, or is of an earlier life: the servers are to cut.
    pub(super) fn ask_to_cut(&mut self, file: FileNo) {
        // Under the newest, for servers may have heard of it.
        let epoch = self.epoch(file);
        let Some(cutting) = &mut self.file(file).cutting else { return };
        let Some(seq) = cutting.record() else { return };
        cutting.stage = Stage::Cuts(seq);
        let (from, removes) = (cutting.from, cutting.removes);
        let cut = CutNo(self.next_cut);
        self.next_cut += 1;
        self.cuts.insert(cut, file);
        self.actions.push_back(match removes {
            true => Action::Remove { cut, file, epoch },
            false => Action::Cut { cut, file, epoch, from },
        });
    }

    /// All servers have cut, or removed, and synced, or it came to nothing: then they are asked again a
    /// little later.
    ///
    /// # Panics
    /// There was no such cut.
    pub fn was_cut(&mut self, cut: CutNo, is_durable: bool) {
        if let Some(file) = self.fences.remove(&cut) {
            return self.was_fenced(file, is_durable);
        }
        let file = self.cuts.remove(&cut).expect("a cut is over once");
        let Some(cutting) = &mut self.file(file).cutting else { return };
        let (from, removes, epoch) = (cutting.from, cutting.removes, cutting.epoch);
        let Some(seq) = cutting.record() else { return };
        if !is_durable {
            cutting.stage = Stage::Again(seq);
            self.cut_again.push_back((self.now.after(CUT_AGAIN), file));
            return;
        }
        cutting.stage = Stage::Ends;
        if removes {
            self.append(Record::Gone { file }, Appending::Other);
            return self.sync(Syncing::Gone(file));
        }
        let seq = self.append(Record::IsCut { file, from, epoch }, Appending::Other);
        self.is_cut(file, from, epoch, seq);
        // The next life would cut again, what is newer.
        self.sync(Syncing::IsCut(file));
    }

    /// Cuts that came to nothing are made again.
    pub(super) fn cut_those_left(&mut self) {
        while self.cut_again.front().is_some_and(|(when, _)| *when <= self.now)
            && let Some((_, file)) = self.cut_again.pop_front()
        {
            // It may be here for a fence, with a cut under way that must not be made twice.
            let cutting = self.files.get(&file).and_then(|state| state.cutting.as_ref());
            if cutting.is_some_and(|cutting| matches!(cutting.stage, Stage::Again(_))) {
                self.ask_to_cut(file);
            }
            self.go_on_looks(file);
        }
    }

    /// What the log has there is gone, as that record says.
    pub(super) fn is_cut(&mut self, file: FileNo, from: u64, epoch: Epoch, seq: Seq) {
        let first = from / self.settings.stripe_size;
        let state = self.file(file);
        for (_, stripe) in state.stripes.range_mut(first..) {
            cut(&mut stripe.parts, from, u64::MAX, |_| true);
        }
        (state.end, state.tail) = (from, from);
        state.contents.changes += 1;
        state.noted = Some((from, seq));
        state.last_cut = Some((epoch, seq));
    }

    /// The log says that the servers have cut: the file goes on.
    pub(super) fn end_cut(&mut self, file: FileNo) {
        if let Some(cutting) = self.file(file).cutting.take()
            && let Some((client, number)) = cutting.asked
        {
            self.answer(client, number, Answer::Truncated);
        }
        self.go_on_after_cut(file);
    }

    /// The log says that the servers have removed a file: it is forgotten, and whoever waits for it hears so.
    pub(super) fn end_removal(&mut self, file: FileNo) {
        let Some(state) = self.forget_file(file) else { return };
        if let Some((client, number)) = state.cutting.and_then(|cutting| cutting.asked) {
            self.answer(client, number, Answer::Removed);
        }
        for one in state.stripes.into_values().flat_map(|stripe| stripe.queue) {
            match one {
                Queued::Write { client, number, .. } => self.answer(client, number, Answer::Gone),
                Queued::Append { client, .. } => self.end_append(client, file, Answer::Gone),
                Queued::Lease(wanted) => {
                    if let Some(wanted) = self.wanted.remove(&wanted) {
                        self.answer(wanted.client, wanted.number, Answer::Gone);
                    }
                }
            }
        }
        let those = (file, ClientNo(0))..=(file, ClientNo(u64::MAX));
        let those: Vec<(FileNo, ClientNo)> = self.appends.range(those).map(|(key, _)| *key).collect();
        those.into_iter().for_each(|key| _ = self.appends.remove(&key));
        for (client, number, request) in state.later {
            self.take(client, number, request);
        }
        for (client, number) in state.contents.looks() {
            self.answer(client, number, Answer::Gone);
        }
    }

    /// Nothing is known of a file but that it was removed.
    pub(super) fn forget_file(&mut self, file: FileNo) -> Option<File<B>> {
        self.gone.insert(file);
        self.files.remove(&file)
    }

    /// Answers what is asked of a file that was removed.
    pub(super) fn answer_for_gone(&mut self, client: ClientNo, number: RequestNo, request: &Request<B>) {
        match request {
            Request::Release { .. } | Request::Grow { .. } => {}
            Request::Remove { .. } => self.answer(client, number, Answer::Removed),
            // There is nothing of it that has to last.
            Request::Sync { .. } => self.sync(Syncing::Client(client, number)),
            _ => self.answer(client, number, Answer::Gone),
        }
    }

    fn go_on_after_cut(&mut self, file: FileNo) {
        let stripes: Vec<u64> = self.file(file).stripes.keys().copied().collect();
        for at in stripes {
            self.go_on(file, at);
        }
        while self.file(file).cutting.is_none()
            && let Some((client, number, request)) = self.file(file).later.pop_front()
        {
            self.take(client, number, request);
        }
        self.go_on_looks(file);
    }

    /// Something that has to wait for a cut of its file.
    pub(super) fn take_later(&mut self, client: ClientNo, number: RequestNo, request: Request<B>) {
        let Some(file) = request.changes() else { return };
        if let Request::Write { offset, .. } = &request {
            // Its client counts on it, and gives back no other.
            self.give_back(client, file, *offset / self.settings.stripe_size);
        }
        self.file(file).later.push_back((client, number, request));
        self.go_on_cut(file);
    }

    /// Nothing that a client said counts any more: a cut that waits does not either.
    pub(super) fn leave_cuts(&mut self, client: ClientNo) {
        let mut free = Vec::new();
        for (file, state) in &mut self.files {
            state.later.retain(|(other, ..)| *other != client);
            if let Some(cutting) = &mut state.cutting
                && cutting.asked.is_some_and(|(other, _)| other == client)
            {
                cutting.asked = None;
                if cutting.stage == Stage::Waits {
                    state.cutting = None;
                    free.push(*file);
                }
            }
        }
        free.into_iter().for_each(|file| self.go_on_after_cut(file));
    }

    /// The log failed: whoever waits for a cut hears so.
    pub(super) fn fail_cuts(&mut self, file: FileNo, errno: i32) {
        let state = self.file(file);
        let asked = state.cutting.as_mut().and_then(|cutting| cutting.asked.take());
        let later = std::mem::take(&mut state.later);
        let waits = later.into_iter().map(|(client, number, _)| (client, number));
        for (client, number) in asked.into_iter().chain(waits) {
            self.answer(client, number, Answer::Failed(errno));
        }
    }
}
