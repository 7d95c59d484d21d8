//! Looks at a file: which version of its bytes it has, and whether the catalog knows that it was written.
//!
//! In: looks; leases that are granted and come back; fences that are over. Out: recalls, fences, versions.
//! Invariants: a version is told when nobody has a lease on the file, nothing that was sent under an earlier
//! one can be carried out any more, and all that it has lasts; each change that a read can show moves the
//! version before a later look is answered; that a file is written lasts in the log before anybody has a
//! lease on it and before anything is brought, and stands there before the bytes that were gathered; it is
//! forgotten only when the catalog knows of all of them.
//! While a look waits for leases nobody gets one on the file. It waits [`LOOK_MAX`] at most: somebody who
//! writes directly all the time is told so, and not held up for longer by who looks.
//! Left out: what the catalog is told, which whoever looks tells it.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use super::cut::CUT_AGAIN;
use super::{Action, Answer, Appending, CutNo, Gatherer, LEASE, Record, Seq, Syncing};
use crate::ids::Time;
use crate::volume::{ClientNo, ContentVersion, FileNo, RequestNo};

/// A look waits so long: for the leases of somebody who is not heard any more, after a grace.
pub const LOOK_MAX: Duration = Duration::from_secs(2 * LEASE.as_secs() + 2);
/// `EBUSY`: somebody writes all the time, or a server is away that has to say that nothing more comes.
pub const BUSY: i32 = 16;

/// What is known of a file's bytes.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// In this life.
    pub(super) changes: u64,
    untold: Option<Untold>,
    /// All of it that was leased lies in these stripes, since nothing could come any more.
    unsettled: Option<Range<u64>>,
    /// Their servers are asked to take nothing more.
    fencing: Option<Range<u64>>,
    /// Until when each waits.
    looks: VecDeque<(Time, ClientNo, RequestNo)>,
}

#[derive(Debug)]
struct Untold {
    /// The first record that says so, and the last.
    since: Seq,
    last: Seq,
    lasts: bool,
    syncing: bool,
}

/// A range that has both.
fn both(one: Option<Range<u64>>, other: Option<Range<u64>>) -> Option<Range<u64>> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.start.min(other.start)..one.end.max(other.end)),
        (one, other) => one.or(other),
    }
}

impl Contents {
    /// A record of an earlier life says that the file is written: who had leases then nobody knows.
    pub(super) fn was_untold(&mut self, seq: Seq) {
        let since = self.untold.as_ref().map_or(seq, |untold| untold.since);
        self.untold = Some(Untold { since, last: seq, lasts: true, syncing: false });
        self.unsettled = Some(0..u64::MAX);
    }

    /// A record of an earlier life says that the catalog knew all, and that nobody had a lease.
    pub(super) fn was_told(&mut self) {
        (self.untold, self.unsettled) = (None, None);
    }

    /// The catalog knows of all that was written, and nothing can come that nobody sees.
    pub(super) fn is_quiet(&self) -> bool {
        self.untold.is_none() && self.unsettled.is_none() && self.fencing.is_none()
    }

    /// How often the file changed in this life, if nobody can have written it directly since a look.
    pub(super) fn settled(&self) -> Option<u64> {
        (self.unsettled.is_none() && self.fencing.is_none()).then_some(self.changes)
    }

    /// Who waits for a look.
    pub(super) fn looks(self) -> impl Iterator<Item = (ClientNo, RequestNo)> {
        self.looks.into_iter().map(|(_, client, number)| (client, number))
    }
}

impl<B> Gatherer<B> {
    /// Something that a read can show of a file is another from here on.
    pub(super) fn changes(&mut self, file: FileNo) {
        self.file(file).contents.changes += 1;
    }

    /// The log says from here on that the file is written.
    pub(super) fn note_untold(&mut self, file: FileNo) {
        if self.file(file).contents.untold.is_none() {
            let seq = self.append(Record::Untold { file }, Appending::Other);
            let untold = Untold { since: seq, last: seq, lasts: false, syncing: false };
            self.file(file).contents.untold = Some(untold);
        }
    }

    /// And that is to last.
    pub(super) fn make_untold(&mut self, file: FileNo) {
        self.note_untold(file);
        if let Some(untold) = &mut self.file(file).contents.untold
            && !untold.lasts
            && !untold.syncing
        {
            untold.syncing = true;
            let since = untold.since;
            self.sync(Syncing::Untold(file, since));
        }
    }

    pub(super) fn untold_lasts(&mut self, file: FileNo, since: Seq) {
        let Some(state) = self.files.get_mut(&file) else { return };
        if let Some(untold) = state.contents.untold.as_mut().filter(|untold| untold.since == since) {
            (untold.lasts, untold.syncing) = (true, false);
        }
        self.go_on_queues(file);
    }

    /// Records before `first` are given up.
    pub(super) fn note_untold_again(&mut self, first: Seq) {
        let is_old = |untold: &Untold| untold.last < first;
        let old = self.files.iter().filter(|(_, state)| state.contents.untold.as_ref().is_some_and(is_old));
        let old: Vec<FileNo> = old.map(|(file, _)| *file).collect();
        for file in old {
            let seq = self.append(Record::Untold { file }, Appending::Other);
            if let Some(untold) = &mut self.file(file).contents.untold {
                untold.last = seq;
            }
        }
    }

    /// Whether leases on a file can be granted now: no look waits for them, and the log says that it is
    /// written.
    pub(super) fn may_lease(&mut self, file: FileNo) -> bool {
        let contents = &self.file(file).contents;
        if !contents.looks.is_empty() && contents.fencing.is_none() {
            return false;
        }
        let lasts = contents.untold.as_ref().is_some_and(|untold| untold.lasts);
        if !lasts {
            self.make_untold(file);
        }
        lasts
    }

    /// Whether bytes of a file can be brought to where they last: a host that stops may forget what the log
    /// says of them, and then the log is to say still that the file is written.
    pub(super) fn may_push(&mut self, file: FileNo) -> bool {
        // A log that takes nothing more has the bytes for now, and they are worth more than the file's time.
        let is_safe = self.failed.is_some()
            || self.file(file).contents.untold.as_ref().is_none_or(|untold| untold.lasts);
        if !is_safe {
            self.make_untold(file);
        }
        is_safe
    }

    pub(super) fn is_leased(&mut self, file: FileNo, stripes: &Range<u64>) {
        self.changes(file);
        let contents = &mut self.file(file).contents;
        contents.unsettled = both(contents.unsettled.take(), Some(stripes.clone()));
    }

    /// What waits in stripes of a file may be done now.
    fn go_on_queues(&mut self, file: FileNo) {
        let Some(state) = self.files.get(&file) else { return };
        let waiting = state.stripes.iter().filter(|(_, stripe)| !stripe.queue.is_empty());
        let waiting: Vec<u64> = waiting.map(|(at, _)| *at).collect();
        waiting.into_iter().for_each(|at| self.go_on(file, at));
    }

    pub(super) fn look(&mut self, client: ClientNo, number: RequestNo, file: FileNo) {
        let until = self.now.after(LOOK_MAX);
        self.file(file).contents.looks.push_back((until, client, number));
        self.go_on_looks(file);
        if self.files.get(&file).is_some_and(|state| !state.contents.looks.is_empty()) {
            self.looking.push_back((until, file));
        }
    }

    /// Answers the looks at a file if nothing is in their way any more, or removes what is.
    pub(super) fn go_on_looks(&mut self, file: FileNo) {
        let Some(state) = self.files.get(&file) else { return };
        if state.contents.looks.is_empty() || state.cutting.is_some() || self.grace.is_some() {
            return;
        }
        let leased = state.stripes.iter().filter(|(_, stripe)| !stripe.leases.is_empty());
        let leased: Vec<(u64, Vec<ClientNo>)> =
            leased.map(|(at, stripe)| (*at, stripe.leases.iter().copied().collect())).collect();
        if !leased.is_empty() {
            leased.into_iter().for_each(|(at, clients)| self.recall(file, at, &clients));
            return;
        }
        if state.contents.fencing.is_some() {
            return;
        }
        let state = self.file(file);
        if let Some(stripes) = state.contents.unsettled.take() {
            state.contents.fencing = Some(stripes.clone());
            // What was given back may be under way still where its connection broke.
            state.fence += 1;
            let epoch = self.epoch(file);
            let cut = CutNo(self.next_cut);
            self.next_cut += 1;
            self.fences.insert(cut, file);
            self.actions.push_back(Action::Fence { cut, file, epoch, stripes });
            return self.go_on_queues(file);
        }
        let looks = std::mem::take(&mut state.contents.looks);
        let looks = looks.into_iter().map(|(_, client, number)| (client, number)).collect();
        let (changes, end, untold) = (state.contents.changes, state.end, state.contents.untold.is_some());
        let version = ContentVersion { gatherer: self.life, changes };
        let answer = Answer::Looked { version, end, untold };
        match self.failed {
            None => self.sync(Syncing::Looked(looks, answer)),
            // What is there can be read still.
            Some(_) => self.is_looked(looks, &answer),
        }
        self.go_on_queues(file);
    }

    pub(super) fn is_looked(&mut self, looks: Vec<(ClientNo, RequestNo)>, answer: &Answer) {
        looks.into_iter().for_each(|(client, number)| self.answer(client, number, answer.clone()));
    }

    /// The servers take nothing more of what was leased before, and what they took lasts; or it came to
    /// nothing.
    pub(super) fn was_fenced(&mut self, file: FileNo, is_durable: bool) {
        let Some(state) = self.files.get_mut(&file) else { return };
        let fenced = state.contents.fencing.take();
        if is_durable {
            return self.go_on_looks(file);
        }
        state.contents.unsettled = both(state.contents.unsettled.take(), fenced);
        self.cut_again.push_back((self.now.after(CUT_AGAIN), file));
    }

    /// Nobody waits for ever for who writes all the time.
    pub(super) fn end_late_looks(&mut self) {
        let now = self.now;
        while self.looking.front().is_some_and(|(until, _)| *until <= now)
            && let Some((_, file)) = self.looking.pop_front()
        {
            let Some(state) = self.files.get_mut(&file) else { continue };
            let looks = std::mem::take(&mut state.contents.looks);
            let (late, rest): (VecDeque<_>, VecDeque<_>) =
                looks.into_iter().partition(|(until, ..)| *until <= now);
            state.contents.looks = rest;
            let late = late.into_iter().map(|(_, client, number)| (client, number)).collect();
            self.is_looked(late, &Answer::Failed(BUSY));
            self.go_on_queues(file);
        }
    }

    /// Nobody has a lease of an earlier life any more.
    pub(super) fn go_on_all_looks(&mut self) {
        let files: BTreeSet<FileNo> = self.looking.iter().map(|(_, file)| *file).collect();
        files.into_iter().for_each(|file| self.go_on_looks(file));
    }

    /// Nothing that a client said over its last connection counts any more. Whoever waits behind its looks
    /// goes on with its leases.
    pub(super) fn leave_looks(&mut self, client: ClientNo) {
        for state in self.files.values_mut() {
            state.contents.looks.retain(|(_, other, _)| *other != client);
        }
    }

    /// The catalog knows what was written up to a version, if that is the file's still. Who says so hears it
    /// when the log does: the next life of a server that is killed then knows it.
    pub(super) fn is_told(&mut self, who: (ClientNo, RequestNo), file: FileNo, version: ContentVersion) {
        let (client, number) = who;
        let now = |changes| ContentVersion { gatherer: self.life, changes };
        let Some(state) = self.files.get(&file) else {
            return self.answer(client, number, Answer::Told { counts: version == now(0) });
        };
        let contents = &state.contents;
        let is_it = version == now(contents.changes)
            && contents.unsettled.is_none()
            && contents.fencing.is_none()
            && state.cutting.is_none()
            // What is on its way into the log is no version yet.
            && state.stripes.values().all(|stripe| stripe.appending == 0);
        if is_it && contents.untold.is_some() {
            let appending = match haul_mutant::removed("volume-told-stands-in-the-log") {
                true => Appending::Other,
                false => Appending::Told { client, number },
            };
            if matches!(appending, Appending::Other) {
                self.answer(client, number, Answer::Told { counts: true });
            }
            self.append(Record::Told { file }, appending);
            self.file(file).contents.untold = None;
        } else {
            self.answer(client, number, Answer::Told { counts: is_it });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Request, Session, Settings};
    use super::*;

    const FILE: FileNo = FileNo(7);
    const CLIENT: (ClientNo, Session) = (ClientNo(1), Session(1));

    /// Does all that the gatherer asks for, and keeps the records; `appends`: they come into the log.
    fn go(gatherer: &mut Gatherer<()>, log: &mut Vec<(Seq, Record<()>)>, appends: bool) -> Vec<Answer> {
        let mut answers = Vec::new();
        while let Some(action) = gatherer.poll_action() {
            match action {
                Action::Append(seq, record) if appends => {
                    log.push((seq, record));
                    gatherer.appended(seq, Ok(()));
                }
                Action::Sync => gatherer.synced(Ok(())),
                Action::Answer(_, _, answer) => answers.push(answer),
                _ => {}
            }
        }
        answers
    }

    /// Goal: whoever hears that the gatherer knows of what the catalog does, finds it so behind a kill, at
    /// whatever moment that comes; and hears of a version that is another by then that it counts for nothing.
    #[test]
    fn what_is_told_stands_in_the_log_first() {
        let settings = Settings { stripe_size: 1 << 20, forget_records: 1000 };
        let new = |log: &[(Seq, Record<()>)], life| {
            let log = log.iter().map(|(seq, record)| (*seq, record));
            let mut gatherer = Gatherer::new(settings, life, Time::default(), Seq(0), log);
            gatherer.join(Time::default(), CLIENT.0, CLIENT.1);
            gatherer
        };
        let ask = |gatherer: &mut Gatherer<()>, request| {
            gatherer.handle_request(Time::default(), CLIENT, RequestNo(0), request);
        };
        let mut log = Vec::new();
        let mut gatherer = new(&log, 1);
        ask(&mut gatherer, Request::Write { file: FILE, offset: 0, len: 9, bytes: () });
        ask(&mut gatherer, Request::Sync { file: FILE });
        go(&mut gatherer, &mut log, true);
        ask(&mut gatherer, Request::Look { file: FILE });
        let answers = go(&mut gatherer, &mut log, true);
        let [Answer::Looked { version, end: 9, untold: true }] = answers[..] else { panic!("{answers:?}") };

        ask(&mut gatherer, Request::Told { file: FILE, version });
        assert_eq!(go(&mut gatherer, &mut log, false), [], "it is not in the log yet");
        let mut killed = new(&log, 2);
        ask(&mut killed, Request::Told { file: FILE, version });
        assert_eq!(go(&mut killed, &mut log, true), [Answer::Told { counts: false }]);
    }
}
