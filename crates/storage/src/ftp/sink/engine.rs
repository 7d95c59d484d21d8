//! Writes files over several sessions, each on a thread of its own.
//!
//! In: operations of the session machine. Out: their completions. What needs no server is answered at once.
//! Invariants: each operation is answered once, also of a thread that panics, and its buffer is back in its
//! pool before; what is done of one file is done in the order in which it was submitted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use haul_core::entry::Name;
use haul_core::ids::DirId;
use haul_core::transfer::op::{SinkDone, SinkOp};
use haul_core::wire::{Failure, FailureKind, HeldReport};

use super::again::Again;
use super::lanes::Lanes;
use super::no_links;
use super::parts::{Can, Parts};
use super::placed::InPlace;
use super::queues::{Batch, Common, Gone, Lost, Network, Queues, TempState, Told, Work, Write, refuse};
use super::summed::InParts;
use super::tree::Tree;
use super::writer::Writer;
use super::{GRAIN, Ready};
use crate::ftp::begun::Begun;
use crate::ftp::shown;
use crate::owed::Owed;
use crate::store::{NetworkFacet, NotKept, Writing, no_hard_links};
use crate::{Payload, SinkCompletion, SinkEngine, SinkJob, Stuck};
use haul_base::escape;

/// Sessions that write, at most; servers often take no more than ten of one user.
const SESSIONS: usize = 8;
/// Files that are looked at and renamed together, at a server that is near and at one that is far: so many
/// commands and more are under way at a time.
const PUBLISHED_TOGETHER: usize = 16;
const PUBLISHED_TOGETHER_FAR: usize = 64;
/// Round trips that it takes until files that were sent have their names, however few they are: what is asked
/// for that one after the other, and the end of what the session is at before.
const PUBLISH_TRIPS: u32 = 6;
/// How long the end waits for what a server does not answer.
const END_WITHIN: Duration = Duration::from_secs(10);

/// The engine of a destination at a server.
pub(super) struct FtpWriter {
    common: Arc<Common>,
    threads: Vec<JoinHandle<()>>,
    banner: String,
}

impl FtpWriter {
    /// Starts the threads; each opens its session when there is work for it, the first has one.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn start(ready: Ready, writing: Writing) -> std::io::Result<FtpWriter> {
        let Ready { server, settings, retry, ends, session, root, made, tag, parts, begun, .. } = ready;
        let Ready { trusts, asks_times, in_place, .. } = ready;
        let sessions = SESSIONS.min(writing.writers).max(1);
        let banner = escape::name(session.banner());
        let network = Network { round_trip: session.round_trip(), ..Network::default() };
        let lanes = Lanes::new(
            session.sends_blocks() && in_place.is_none(),
            session.sum().is_some(),
            session.round_trip(),
        );
        let can = Can { goes_on: session.can_go_on(), sums: session.sum().is_some(), trusts };
        let drops = crate::ftp::drops_bytes(&server, &session);
        let mut queues = Queues::new(sessions);
        queues.open[0] = true;
        let begun = Begun::open(begun.as_deref(), &server.url(), tag);
        let common = Arc::new(Common {
            server,
            settings,
            retry,
            ends,
            tree: Tree::new(root, made),
            tag,
            drops,
            sum: session.sum(),
            in_parts: InParts::of(&session),
            meter: writing.meter,
            post: writing.post,
            queues: Mutex::new(queues),
            ready: Condvar::new(),
            temps: Mutex::new(HashMap::new()),
            network,
            lanes,
            hears_late: AtomicBool::new(false),
            lost: Lost::default(),
            told: Told::default(),
            parts: Parts::new(parts, can),
            again: Again::default(),
            in_place,
            begun,
            asks_times,
            left: Mutex::default(),
            doubted: Mutex::default(),
            tries: Mutex::default(),
            refused: Mutex::default(),
            numbers: AtomicU64::new(0),
            silent: AtomicBool::new(false),
        });
        let (post, ends) = (common.post.clone(), common.ends.clone());
        common.retry.tell_when_gone(move |failure| {
            post(SinkCompletion { done: SinkDone::Gone { failure } });
            // Nothing else is begun; what is under way ends by itself.
            ends.set_stopped(true);
        });
        let mut engine = FtpWriter { common: common.clone(), threads: Vec::new(), banner };
        let mut session = Some(session);
        for index in 0..sessions {
            let (common, session) = (common.clone(), session.take());
            let name = format!("haul-ftp-{index}");
            let run = move || Writer::new(common, index, session).run();
            engine.threads.push(thread::Builder::new().name(name).spawn(run)?);
        }
        Ok(engine)
    }

    fn owed(
        &self,
        kind: FailureKind,
        refused: impl FnOnce(Failure) -> SinkDone + Send + 'static,
    ) -> Owed<SinkDone> {
        let post = self.common.post.clone();
        Owed::new(kind, move |answer: Result<SinkDone, Failure>| {
            post(SinkCompletion { done: answer.unwrap_or_else(refused) });
        })
    }

    fn post(&self, done: SinkDone) {
        (self.common.post)(SinkCompletion { done });
    }

    fn add(&self, work: Work, times: usize) {
        let mut queues = self.common.lock();
        match &work {
            Work::Bundle(batch) => {
                (1..times).for_each(|_| queues.common.push_back(Work::Bundle(batch.clone())))
            }
            Work::Publish(batch) => {
                (1..times).for_each(|_| queues.common.push_back(Work::Publish(batch.clone())));
            }
            Work::Write(_) | Work::Op(..) | Work::Small(_) | Work::Sums(_) => {}
        }
        queues.common.push_back(work);
        drop(queues);
        self.common.ready.notify_all();
    }

    fn write(&self, write: Box<Write>) {
        let id = write.file.id;
        if write.offset == 0 && self.common.in_parts.are_summed() {
            self.common.lock().logins.helps_with(write.file.size);
        }
        let failed = match self.common.temp(id).map(|temp| temp.state) {
            Some(TempState::Failed(gone)) => Some(gone),
            _ => {
                let failed = self.common.in_place.as_ref().and_then(|place| place.failed(id));
                failed.map(|(failure, again)| Gone { failure, again })
            }
        };
        let refused = match failed {
            Some(gone) => Some((write, gone)),
            None => self.common.lock().add_write(write).err().map(|write| {
                let path = self.common.path(&write.file);
                let why = format!("byte 0 of it comes next, and not byte {}", write.offset);
                let failure = self.common.not_begun(&path);
                let failure = failure.unwrap_or_else(|| self.common.say(FailureKind::Write, &path, &why));
                (write, failure.into())
            }),
        };
        self.common.ready.notify_all();
        if let Some((write, Gone { failure, again })) = refused {
            let Write { offset, len, buffer, payload, owed, .. } = *write;
            drop(payload);
            let (took, result) = (None, Err(failure));
            owed.settle(Ok(SinkDone::Write { id, offset, len, buffer, took, result, again }));
        }
    }
}

impl Drop for FtpWriter {
    fn drop(&mut self) {
        self.common.ends.set_over();
        let mut queues = self.common.lock();
        queues.ends = true;
        // What nobody began is given up, which tells it.
        let left: Vec<Work> = queues.own.iter_mut().flat_map(std::mem::take).collect();
        let (common, homeless) = (std::mem::take(&mut queues.common), std::mem::take(&mut queues.homeless));
        let smalls = queues.take_smalls();
        drop(queues);
        self.common.ready.notify_all();
        drop((left, common, homeless, smalls));
        // A thread that waits for a server ends by itself; nobody waits for it.
        self.threads.clear();
    }
}

impl SinkEngine for FtpWriter {
    fn submit(&mut self, SinkJob { op, buffer }: SinkJob) {
        let payload = buffer.map(Payload::shared);
        let sessions = self.threads.len();
        match op {
            SinkOp::Write { file, offset, len, buffer, start } => {
                let payload = payload.expect("a write brings its payload");
                let id = file.id;
                let owed = self.owed(FailureKind::Write, move |failure| {
                    let (took, result) = (None, Err(failure));
                    SinkDone::Write { id, offset, len, buffer, took, result, again: false }
                });
                self.write(Box::new(Write { file, offset, len, buffer, payload, start, owed }));
            }
            SinkOp::WriteBundle { buffer, items, more } => {
                let ids: Vec<_> = items.iter().map(|item| item.file.id).collect();
                let owed = self.owed(FailureKind::Write, move |failure| {
                    let results = ids.into_iter().map(|id| (id, Err(failure.clone()))).collect();
                    SinkDone::WriteBundle { buffer, results, more }
                });
                let batch = Batch::new(items, 1, Some((payload, (buffer, more))), owed);
                let times = sessions.min(batch.items.len()).max(1);
                self.add(Work::Bundle(batch), times);
            }
            SinkOp::Commit { items, .. } => {
                let ids: Vec<_> = items.iter().map(|item| item.id).collect();
                let owed = self.owed(FailureKind::Publish, move |failure| {
                    let results = ids.into_iter().map(|id| (id, Err(failure.clone()))).collect();
                    SinkDone::Commit { results, lost: Vec::new() }
                });
                let near = self.common.lanes.is_near();
                let together = if near { PUBLISHED_TOGETHER } else { PUBLISHED_TOGETHER_FAR };
                let batch = Batch::new(items, together, None, owed);
                let times = batch.items.len().div_ceil(together).clamp(1, sessions);
                self.add(Work::Publish(batch), times);
            }
            SinkOp::Clone { .. } => unreachable!("nobody is asked to clone who does not say that he does"),
            SinkOp::MakeDirs { .. }
            | SinkOp::Lookup { .. }
            | SinkOp::Amend { .. }
            | SinkOp::FinishDirs { .. }
            | SinkOp::Discard { .. } => {
                let again = op.clone();
                let owed = self.owed(FailureKind::Create, move |failure| refuse(again, &failure));
                match op {
                    SinkOp::Discard { id } => {
                        self.common.lock().add_discard(id, Work::Op(op, owed));
                        self.common.ready.notify_all();
                    }
                    op => self.add(Work::Op(op, owed), 1),
                }
            }
            SinkOp::Create { file, .. } => self.post(SinkDone::Create { id: file.id, result: Ok(None) }),
            // Nothing of a part is ever taken over.
            SinkOp::Check { file, ranges, .. } => {
                let result = Ok(ranges.iter().map(|_| None).collect());
                self.post(SinkDone::Check { id: file.id, ranges, result });
            }
            SinkOp::MakeLinks { items } => {
                let fail = |item: haul_core::transfer::op::LinkItem| {
                    (item.file.id, Err(no_links(&self.common.server, &self.common.path(&item.file))))
                };
                self.post(SinkDone::MakeLinks { results: items.into_iter().map(fail).collect() });
            }
            SinkOp::Join { items } => {
                let results = items.into_iter().map(|item| (item.file.id, Ok(no_hard_links()))).collect();
                self.post(SinkDone::Join { results });
            }
            // There is no word that makes anything last, and no journal.
            SinkOp::SyncDirs { dirs } => {
                self.post(SinkDone::SyncDirs {
                    results: dirs.into_iter().map(|dir| (dir, Ok(()))).collect(),
                });
            }
            SinkOp::Journal { .. } => self.post(SinkDone::Journal { result: Ok(()) }),
            SinkOp::Note { .. } => self.post(SinkDone::Note { result: Ok(()) }),
            SinkOp::RefuseNote { .. } => {}
            SinkOp::RemoveJournal if self.common.parts.has_left() => {
                let owed = self.owed(FailureKind::Publish, |failure| refuse(SinkOp::RemoveJournal, &failure));
                self.add(Work::Op(SinkOp::RemoveJournal, owed), 1);
            }
            SinkOp::RemoveJournal => self.post(SinkDone::RemoveJournal { result: Ok(()) }),
        }
    }

    fn register(&self, id: DirId, parent: DirId, name: Name) {
        self.common.tree.register(id, parent, name);
    }

    fn forget(&self, id: DirId) {
        self.common.tree.forget(id);
    }

    fn set_width(&mut self, _: Option<u16>) -> Option<u16> {
        None
    }

    fn fixed(&self) -> Option<&'static str> {
        Some("a server is written over as many sessions as there is work for, and as it takes")
    }

    fn stuck(&self) -> Vec<Stuck> {
        let queues = self.common.lock();
        let late = |(since, what, path): &(Instant, &'static str, Vec<u8>)| {
            let since = since.elapsed();
            let name = || shown(&self.common.server, path);
            (since > Duration::from_secs(10)).then(|| Stuck { what, name: name(), offset: 0, since })
        };
        let mut stuck: Vec<Stuck> = queues.busy.iter().flatten().filter_map(late).collect();
        stuck.sort_by_key(|stuck| std::cmp::Reverse(stuck.since));
        stuck
    }

    fn report(&self) -> Vec<(String, String)> {
        let (all, refused) = (self.threads.len(), self.common.lock().logins.refusals());
        let (server, open) = (self.common.server.url(), self.common.places());
        let fewer = if refused > 0 { format!("; the server refused {refused} more") } else { String::new() };
        let what = format!("{server} ({}), {open} of at most {all} sessions{fewer}", self.banner);
        let protection = crate::ftp::protection_of(&self.common.server, &self.common.settings);
        let streams = self.common.lanes.words().map(|words| ("sink streams".into(), words));
        let compared = ("compared with the server".into(), self.compared());
        let in_place = self.common.in_place.as_ref().map(|place| ("in place".into(), place.words()));
        let goes_on = self.common.parts.words(self.common.sum.map(haul_ftp::Sum::name));
        let goes_on = goes_on.map(|words| ("gone on with".into(), words));
        let unproven = self.unproven().map(|words| ("NOT compared".into(), words));
        // Files go in place, or they do not.
        let unrecorded = self.common.begun.missed().or_else(|| self.common.parts.missed());
        let unrecorded = unrecorded.map(|words| ("NOT on record".into(), words));
        let again = self.common.again.words().map(|words| ("sent again".into(), words));
        let lost = self.common.retry.words().map(|words| ("connection lost".into(), words));
        let unseen = self.common.parts.unseen().map(|words| ("kept at the server".into(), words));
        let open = crate::ftp::unprotected(&self.common.server, &self.common.settings);
        let open = open.map(|words| ("NOT protected".into(), words));
        [("sink storage".into(), what), ("sink protection".into(), protection.into())]
            .into_iter()
            .chain(streams)
            .chain(in_place)
            .chain([compared])
            .chain(goes_on)
            .chain(unproven)
            .chain(unrecorded)
            .chain(again)
            .chain(lost)
            .chain(unseen)
            .chain(open)
            .collect()
    }

    fn places(&self) -> Option<u32> {
        Some(self.common.places())
    }

    fn expect(&self, files: usize) {
        if self.common.lock().logins.expect(files) {
            self.common.ready.notify_all();
        }
    }

    fn commit_cost(&self) -> Duration {
        match self.common.network.round_trip {
            Some(trip) if !self.common.lanes.is_near() => trip * PUBLISH_TRIPS,
            _ => Duration::ZERO,
        }
    }

    fn time_grain(&self) -> Option<u32> {
        Some(GRAIN)
    }

    fn not_kept(&self) -> NotKept {
        self.common.lost.read()
    }

    fn left(&self) -> Option<String> {
        self.common.left()
    }

    fn kept(&self) -> u64 {
        self.common.parts.kept()
    }

    fn spared(&self) -> u64 {
        self.common.parts.spared()
    }

    fn resumed(&self) -> bool {
        self.common.parts.resumed()
    }

    fn held(&self) -> HeldReport {
        self.common.parts.held()
    }

    fn network(&self) -> Option<&dyn NetworkFacet> {
        Some(&self.common.network)
    }

    fn end(&mut self) -> Vec<String> {
        self.common.lock().ends = true;
        self.common.ends.set_over();
        self.common.ready.notify_all();
        let until = Instant::now() + END_WITHIN;
        // A session that is still being opened has nothing of anybody.
        let works = |(index, thread): (usize, &JoinHandle<()>)| {
            !thread.is_finished() && !self.common.lock().logins.is_under_way(index)
        };
        while self.threads.iter().enumerate().any(works) && Instant::now() < until {
            thread::sleep(Duration::from_millis(2));
        }
        let hangs = self.threads.iter().enumerate().any(works);
        let temps = self.common.temps();
        let stays = temps.values().map(|temp| shown(&self.common.server, &temp.path));
        match hangs {
            true => stays.map(|path| format!("{path}, which the server does not answer for")).collect(),
            false => Vec::new(),
        }
    }
}

impl FtpWriter {
    /// What is known by its length alone.
    fn unproven(&self) -> Option<String> {
        let told = &self.common.told;
        // Of some a server that makes sums makes none.
        let some = match told.reads_back.load(Ordering::Relaxed) {
            true => 0,
            false => told.uncompared.load(Ordering::Relaxed),
        };
        let files = told.unproven.load(Ordering::Relaxed) + some;
        let count = |files: u64| if files == 1 { "1 file".to_owned() } else { format!("{files} files") };
        let content = (files > 0).then(|| {
            let files = count(files);
            let lengths = match told.no_size.load(Ordering::Relaxed) {
                true => "and not even the length of some, which it does not tell",
                false => "the lengths are alike",
            };
            format!(
                "the content of {files} with what the server keeps, for it makes no sum of it (CKSM); {lengths}"
            )
        });
        let uncalled = self.common.in_place.as_ref().map_or(0, InPlace::uncalled);
        let uncalled = (uncalled > 0).then(|| {
            format!(
                "{} written or found in place with the others of this copy, for the server has no names of its own for files (Unique): two that are one to it, \
                 by links or by letters, have the bytes of the last one",
                count(uncalled)
            )
        });
        let times = told.times.lock().unwrap_or_else(PoisonError::into_inner).words();
        let all: Vec<String> =
            content.into_iter().chain(uncalled).chain(told.alike.words()).chain(times).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    fn compared(&self) -> String {
        let told = &self.common.told;
        let sizes = match told.no_size.load(Ordering::Relaxed) {
            true => "nothing: it tells no sizes",
            false => "sizes",
        };
        let sums = match self.common.sum {
            Some(sum) => {
                let files = told.compared.load(Ordering::Relaxed);
                let not = match told.uncompared.load(Ordering::Relaxed) {
                    0 => String::new(),
                    not => format!("; not of {not} files, of which it made none"),
                };
                let in_parts = match told.compared_in_parts.load(Ordering::Relaxed) {
                    0 => String::new(),
                    large => format!(", {large} of them part by part"),
                };
                format!("{} of what it keeps (CKSM), of {files} files{in_parts}{not}", sum.name())
            }
            None => "not its content, for it makes no sum that is known here (CKSM)".into(),
        };
        format!("{sizes}; {sums}")
    }
}
