//! One pair of sessions, and its thread.
//!
//! In: entries from the queue, small ones several at a time. Out: their markers.
//! Invariants: each entry ends once, whatever happens; a file gets its name only in [`finish`], by what both
//! servers told after its last byte; what was stored and did not get its name is removed, unless what the
//! destination has of it is kept for a later run.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use haul_base::stop::Stop;
use haul_core::reliability::{Step, pause};
use haul_core::wire::{Failure, FailureKind};
use haul_ftp::pair::{End, Fault, Heard, Manner, Move, Pair};
use haul_ftp::{Asked, Error, Facts, Settings, steer};
use haul_gridftp::command::StripeLayout;
use haul_gridftp::ranges::Ranges;

use super::fold::{ONE_NAME, split};
use super::records::{Kept, Record, version};
use super::{CONNECTIONS, Shared};
use crate::ftp::line::{Attempts, Line};
use crate::source::failure::own_failure;
use crate::store::delegated::{DelegatedEnd, DelegatedEntry, Marker, Standing, Stripes};

mod begin;
mod finish;
mod turns;

use turns::{Paired, enter_source};

/// Files of this length are kept in mind while they are moved.
const RECORDED_MIN: u64 = 4 << 20;
/// How often what is safe is written down.
const RECORD_EVERY: Duration = Duration::from_secs(1);
/// How long it is tried to remove what is of no use.
const CLEANING: Duration = Duration::from_secs(3);
/// How often in a row a server whose only session was closed may say that it has too many.
const SOON_MAX: u32 = 4;
/// And to look how far a file is.
const WATCHING: Duration = Duration::from_secs(5);

/// A file that is under way.
struct Job {
    entry: DelegatedEntry,
    /// As it was when it was begun.
    facts: Facts,
    standing: Standing,
    /// What stood at its name then.
    found: Option<Facts>,
    /// Where it is stored for now.
    temp: Vec<u8>,
    /// What the server tells of that file alone.
    unique: Option<Box<[u8]>>,
    /// Something may lie there.
    stored: bool,
    record: Option<Record>,
    /// What the destination says it has there.
    held: Ranges,
    /// Of that, what an earlier run had.
    earlier: u64,
    /// What of it the last attempt did not send: an earlier run had sent it, or an earlier attempt.
    unsent: u64,
    moved: u64,
    /// Of it was safe, at most.
    furthest: u64,
    tries: Attempts,
    afresh: u32,
    /// One of the two refused to go on with it.
    no_restart: bool,
}

/// Whom something concerns.
enum Scope {
    All,
    One(usize),
}

/// Something went wrong that ends the sessions.
struct Trouble {
    scope: Scope,
    fault: Fault,
}

pub(super) struct Worker {
    shared: Arc<Shared>,
    pair: Option<Paired>,
    counted: bool,
    /// Looks how far a file is, where its server does not say so.
    watcher: Option<Line>,
    /// Removes what is of no use, whatever was stopped.
    cleaner: Line,
    /// The server takes no more sessions, and other workers have theirs.
    left_out: bool,
    /// The destination takes one session and no more: this one works in turns with who makes directories, and
    /// has that place now.
    in_turns: bool,
    has_turn: bool,
    /// The source takes one, too: this worker waits for the walk.
    reads_in_turns: bool,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>) -> Worker {
        let (server, settings) = shared.end(End::To).clone();
        let retry = &shared.retries[End::To as usize];
        let patience = settings.patience.min(CLEANING);
        let cleaning = Settings { stop: Stop::never(), patience, ..settings.clone() };
        let cleaner = Line::new(server.clone(), cleaning, retry);
        let patience = settings.patience.min(WATCHING);
        let watcher = Some(Line::new(server, Settings { patience, ..settings }, retry));
        Worker {
            shared,
            pair: None,
            counted: false,
            watcher,
            cleaner,
            left_out: false,
            in_turns: false,
            has_turn: false,
            reads_in_turns: false,
        }
    }

    pub(super) fn run(mut self) {
        let shared = self.shared.clone();
        while let Some(batch) = shared.next(|| self.leaves_idle()) {
            if batch.is_empty() {
                self.end_turn();
                continue;
            }
            let mut jobs: Vec<Job> = batch.into_iter().map(|entry| self.job(entry)).collect();
            if catch_unwind(AssertUnwindSafe(|| self.work(&mut jobs))).is_err() {
                self.end_turn();
                for job in jobs {
                    let text = "internal error in a pair of sessions";
                    let failure = own_failure(FailureKind::Local, "copy", &job.entry.to, text);
                    self.end(job, Err(failure));
                }
                continue;
            }
            if self.left_out {
                let mut queue = self.shared.lock();
                jobs.into_iter().rev().for_each(|job| queue.waiting.push_front(job.entry));
                drop(queue);
                self.shared.ready.notify_all();
                return;
            }
            if self.is_turn_over() {
                self.end_turn();
            }
        }
    }

    fn job(&self, entry: DelegatedEntry) -> Job {
        Job {
            entry,
            facts: Facts::default(),
            standing: Standing::New,
            found: None,
            temp: Vec::new(),
            unique: None,
            stored: false,
            record: None,
            held: Ranges::new(),
            earlier: 0,
            unsent: 0,
            moved: 0,
            furthest: 0,
            tries: Attempts::new(Step::File),
            afresh: 0,
            no_restart: false,
        }
    }

    /// Until all of them ended.
    fn work(&mut self, jobs: &mut Vec<Job>) {
        while !jobs.is_empty() && !self.left_out {
            if self.shared.is_cancelled() {
                return self.give_up(jobs);
            }
            let no_way = self.shared.lock().known.no_way.clone();
            if let Some(why) = no_way {
                for mut job in std::mem::take(jobs) {
                    self.keep_or_clean(&mut job);
                    let failure = own_failure(FailureKind::Network, "copy", &job.entry.to, &why);
                    self.end(job, Err(failure));
                }
                return;
            }
            if let Err(trouble) = self.attempt(jobs) {
                self.pair = None;
                self.meet(trouble, jobs);
            }
            // Servers count sessions.
            self.cleaner.close();
        }
    }

    /// Nobody wants them any more.
    fn give_up(&mut self, jobs: &mut Vec<Job>) {
        self.pair = None;
        for mut job in std::mem::take(jobs) {
            self.keep_or_clean(&mut job);
            let failure = own_failure(FailureKind::Local, "copy", &job.entry.to, "a stop was asked for");
            self.end(job, Err(failure));
        }
        self.cleaner.close();
    }

    /// What is done about trouble: the sessions are gone already.
    fn meet(&mut self, Trouble { scope, fault }: Trouble, jobs: &mut Vec<Job>) {
        let shared = self.shared.clone();
        let (end, error, other) = match fault {
            Fault::Stopped => return,
            Fault::NoWay { listens, why } => return self.no_way(listens, why),
            Fault::NoRestart { end, why } => return self.no_restart(end, &why, jobs),
            Fault::Stalled { end, why } => {
                let end_of = end.unwrap_or(End::To);
                let name = |end: End| shared.end(end).0.url();
                let who = match end {
                    Some(end) => format!("{} stalls", name(end)),
                    None => format!("{} or {} stalls", name(End::From), name(End::To)),
                };
                let doing = format!("{who}: {why}");
                let patience = shared.end(end_of).1.patience;
                (end_of, Error::Silent { doing, patience }, None)
            }
            Fault::At { end, error, other } => (end, error, other),
        };
        if error.is_full() {
            let mut queue = shared.lock();
            if queue.alive > 1 && jobs.iter().all(|job| !job.stored) {
                queue.alive -= 1;
                self.left_out = true;
                return;
            }
            let is_last = queue.alive == 1;
            drop(queue);
            // The walk, or who makes directories, has the only one.
            let turns = match end {
                End::From => &mut self.reads_in_turns,
                End::To => &mut self.in_turns,
            };
            let shares = is_last && !haul_mutant::removed("ftp-pairs-work-in-turns");
            if shares && !std::mem::replace(turns, true) {
                return;
            }
        }
        let concerned = |index: usize| match scope {
            Scope::All => true,
            Scope::One(one) => one == index,
        };
        // What is everybody's trouble is asked about once.
        let (mut left, mut longest, mut all_again) = (Vec::new(), None, None);
        for (index, mut job) in std::mem::take(jobs).into_iter().enumerate() {
            if !concerned(index) {
                left.push(job);
                continue;
            }
            let mut ask = || {
                let marker = job.held.total();
                if marker > job.furthest {
                    job.furthest = marker;
                    job.tries.came_on();
                }
                let path = if end == End::From { &job.entry.from } else { &job.entry.to };
                shared.retries[end as usize].failed(&mut job.tries, &error, path, marker)
            };
            let pause = match scope {
                // It will not be there in some seconds, either.
                _ if end == End::To && error.is_no_room() => None,
                Scope::All => *all_again.get_or_insert_with(ask),
                Scope::One(_) => ask(),
            };
            if pause.is_some() {
                longest = longest.max(pause);
                left.push(job);
                continue;
            }
            self.keep_or_clean(&mut job);
            let (kind, path) = match end {
                End::From if error.is_unavailable() => (FailureKind::Open, &job.entry.from),
                End::From => (FailureKind::Read, &job.entry.from),
                End::To => (FailureKind::Write, &job.entry.to),
            };
            let mut failure = shared.failure(end, kind, path, &error);
            if let Some(other) = &other {
                let name = shared.end(end.other()).0.url();
                failure.text = format!("{}; and {name}: {other}", failure.text).into();
            }
            self.end(job, Err(failure));
        }
        *jobs = left;
        if let Some(pause) = longest {
            self.rest(pause);
        }
    }

    /// Data finds no way while that one listens.
    fn no_way(&mut self, listens: End, why: String) {
        let shared = self.shared.clone();
        let mut queue = shared.lock();
        let known = &mut queue.known;
        if listens == End::To && !known.stream && known.extended == Some(true) {
            // In MODE E nobody else can listen.
            known.stream = true;
        }
        known.refused[listens as usize].get_or_insert(why);
        known.way = known.way.filter(|way| *way != listens);
        if let ([Some(from), Some(to)], None) = (&known.refused, &known.no_way) {
            let (a, b) = (shared.end(End::From).0.url(), shared.end(End::To).0.url());
            let text = format!(
                "{a} and {b} cannot move files between them: while {b} listens, {to}; while {a} listens, {from}"
            );
            known.no_way = Some(text.clone());
            // Heard before the end of any file that ends because of it.
            (shared.post)(Marker::NoWay(text));
        }
    }

    /// Nobody goes on with what is at the destination: it is moved from its beginning, at once.
    fn no_restart(&self, end: End, why: &str, jobs: &mut [Job]) {
        let shared = &self.shared;
        for job in jobs.iter_mut().filter(|job| !job.held.is_empty()) {
            // What lies there is removed by `prepare`.
            (job.held, job.earlier, job.no_restart) = (Ranges::new(), 0, true);
            if let Some(record) = &job.record {
                record.clear();
            }
            (shared.post)(Marker::Moved { id: job.entry.id, len: 0, held: 0 });
            let (shown, at) =
                (crate::ftp::shown(&shared.end(End::To).0, &job.entry.to), shared.end(end).0.url());
            (shared.post)(Marker::Note(format!(
                "{shown}: {at} does not go on with what had been moved before ({why}); it is moved from its beginning"
            )));
        }
    }

    /// Waits, but for a stop.
    fn rest(&self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until && !self.shared.is_cancelled() {
            thread::sleep(Duration::from_millis(50).min(until.saturating_duration_since(Instant::now())));
        }
    }

    fn end(&self, job: Job, result: Result<DelegatedEnd, Failure>) {
        let id = job.entry.id;
        self.shared.names.forget(id);
        (self.shared.post)(Marker::Ended { id, result });
    }

    /// The same where what was stored of it is of no use to anybody.
    fn end_unwanted(&mut self, mut job: Job, result: Result<DelegatedEnd, Failure>) {
        job.held = Ranges::new();
        self.keep_or_clean(&mut job);
        self.end(job, result);
    }

    /// Both sessions, opened where they are not.
    fn open(&mut self) -> Result<(), Trouble> {
        if self.pair.is_some() {
            return Ok(());
        }
        if self.in_turns && !self.has_turn {
            let shared = self.shared.clone();
            self.has_turn = shared.scout.borrow(|| shared.is_cancelled());
            if !self.has_turn {
                return Err(Trouble { scope: Scope::All, fault: Fault::Stopped });
            }
        }
        let shared = &self.shared;
        let at =
            |end| move |error| Trouble { scope: Scope::All, fault: Fault::At { end, error, other: None } };
        let open_to = || {
            let (server, settings) = shared.end(End::To);
            let open = || shared.retries[End::To as usize].open(server, settings);
            let mut opened = open();
            // It may not have noticed yet that the one before was closed.
            for again in 1..=SOON_MAX {
                if !self.has_turn || shared.is_cancelled() || !opened.as_ref().is_err_and(Error::is_full) {
                    break;
                }
                thread::sleep(pause(again));
                opened = open();
            }
            opened.map_err(at(End::To))
        };
        let open_from = || enter_source(shared, self.reads_in_turns).map_err(at(End::From));
        // Each takes several round trips, and none waits for the other.
        let (from, to) = thread::scope(|both| {
            let from = both.spawn(open_from);
            let to = open_to();
            (from.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), to)
        });
        let ((from, seat), to) = (from?, to?);
        for (end, shuns) in [(End::From, from.shuns(&to)), (End::To, to.shuns(&from))] {
            if shuns {
                let at = shared.end(end).0.url();
                let why =
                    format!("{at} moves data to and from its client's host alone (there: --third-party)");
                shared.lock().known.refused[End::From as usize].get_or_insert(why.clone());
                let fault = Fault::NoWay { listens: End::To, why };
                return Err(Trouble { scope: Scope::All, fault });
            }
        }
        let sum = steer::common_sum(&from, &to);
        let settings = &shared.settings;
        let layout = settings.stripes.map(|stripes| match stripes {
            Stripes::Blocked(size) => StripeLayout::Blocked(size),
            Stripes::Partitioned => StripeLayout::Partitioned,
        });
        let (patience, stream) = (shared.end(End::To).1.patience, shared.lock().known.stream);
        let parallelism = settings.connections.unwrap_or(CONNECTIONS);
        let manner = Manner { parallelism, layout, patience, stream };
        let stop = shared.end(End::To).1.stop.clone();
        let pair = Pair::new(from, to, manner, stop);
        let pair = pair.map_err(|fault| Trouble { scope: Scope::All, fault })?;
        let mut queue = shared.lock();
        queue.known.extended = Some(pair.is_extended());
        queue.known.sum = Some(sum);
        queue.known.pairs += u16::from(!std::mem::replace(&mut self.counted, true));
        drop(queue);
        shared.retries.iter().for_each(|retry| retry.well());
        self.pair = Some(Paired::new(pair, seat));
        Ok(())
    }

    /// Moves them once. Those that ended are gone from `jobs` then; of the others more is to be tried.
    fn attempt(&mut self, jobs: &mut Vec<Job>) -> Result<(), Trouble> {
        self.open()?;
        self.look(jobs)?;
        if jobs.is_empty() {
            return Ok(());
        }
        // It was left where a server takes one session, and was asked for something else.
        self.open()?;
        let sum = self.shared.lock().known.sum.flatten();
        for job in jobs.iter_mut() {
            self.prepare(job, sum.is_some())?;
        }
        let (done, fault) = self.transfer(jobs);
        if done > 0 {
            let rest = jobs.split_off(done);
            if fault.is_some() {
                // Of what was under way behind them answers are still to come.
                self.pair = None;
                if let Err(trouble) = self.open() {
                    jobs.extend(rest);
                    return Err(trouble);
                }
            }
            let finished = self.finish(jobs, sum);
            jobs.extend(rest);
            finished?;
        }
        // What ended is no more among them, and what is to be moved again stands before the others.
        match fault {
            Some(fault) => {
                let again = jobs.iter().take_while(|job| job.afresh > 0 && !job.stored).count();
                // The one may refuse a later file before the other says the end of an earlier one: then the
                // words name the later one.
                let named = jobs.iter().skip(again).position(|job| is_named(&fault, job)).unwrap_or(0);
                Err(Trouble { scope: Scope::One(again + named), fault })
            }
            None => Ok(()),
        }
    }

    /// Moves them; how many are over well.
    fn transfer(&mut self, jobs: &mut [Job]) -> (usize, Option<Fault>) {
        let Worker { shared, pair, watcher, .. } = self;
        let pair = pair.as_mut().expect("it is open");
        let listens = {
            let queue = shared.lock();
            let known = &queue.known;
            let free = |end: &End| known.refused[*end as usize].is_none();
            let any = [End::To, End::From].into_iter().find(free).unwrap_or(End::To);
            (known.way.unwrap_or(any), known.way.is_some())
        };
        let before: Vec<Ranges> = jobs.iter().map(|job| job.held.clone()).collect();
        let mut held = before.clone();
        let mut moved = vec![0_u64; jobs.len()];
        let mut written = Instant::now();
        let ran = {
            let moves: Vec<Move<'_>> = jobs
                .iter()
                .zip(&before)
                .map(|(job, held)| Move {
                    from: &job.entry.from,
                    to: &job.temp,
                    size: job.entry.size,
                    held: (!held.is_empty()).then_some(held),
                })
                .collect();
            let mut hear = |heard: Heard<'_>| match heard {
                Heard::Moved(index, len) => {
                    if len > moved[index] {
                        // Both live, whether or not they take further sessions.
                        shared.retries.iter().for_each(|retry| retry.heard());
                    }
                    moved[index] = moved[index].max(len);
                    let held = before[index].total();
                    let len = (held + len).min(jobs[index].entry.size);
                    (shared.post)(Marker::Moved { id: jobs[index].entry.id, len, held });
                }
                Heard::Safe(index, ranges) => {
                    // More ranges than can be kept are as good as none of them.
                    let _ = held[index].merge(ranges);
                    if let Some(record) =
                        jobs[index].record.as_ref().filter(|_| written.elapsed() > RECORD_EVERY)
                    {
                        let (version, temp) = (version(&jobs[index].facts), jobs[index].temp.clone());
                        let _ = record.write(&Kept {
                            version,
                            temp,
                            ranges: held[index].clone(),
                            others: Vec::new(),
                        });
                        written = Instant::now();
                    }
                }
            };
            let mut watch = |index: usize| {
                let temp = &jobs[index].temp;
                let told = watcher.as_mut()?.open().and_then(|session| session.facts(temp));
                match told {
                    Ok(Asked::Is(facts)) => facts.size,
                    Ok(_) => None,
                    Err(_) => {
                        // The server has no session for it.
                        *watcher = None;
                        None
                    }
                }
            };
            pair.run(listens, &moves, &mut hear, &mut watch)
        };
        for (index, job) in jobs.iter_mut().enumerate() {
            job.unsent = before[index].total();
            let all = job.entry.size.saturating_sub(job.unsent);
            job.moved += if index < ran.done { all } else { moved[index] };
            job.held = std::mem::take(&mut held[index]);
            if index > ran.done {
                // What of it was begun behind a failure may be of another file.
                job.held = Ranges::new();
            }
            if let Some(record) = job.record.as_ref().filter(|_| index >= ran.done) {
                let (version, temp) = (version(&job.facts), job.temp.clone());
                let _ = record.write(&Kept { version, temp, ranges: job.held.clone(), others: Vec::new() });
            }
        }
        let mut queue = shared.lock();
        queue.known.stripes = queue.known.stripes.max(pair.stripes());
        if ran.done > 0 && !pair.is_extended() {
            queue.known.way = Some(listens.0);
        }
        let replaced = pair.replaced().filter(|_| !std::mem::replace(&mut queue.known.told_address, true));
        drop(queue);
        if let Some((told, used)) = replaced {
            (shared.post)(Marker::Note(format!(
                "a server said that it listens for data at {told}; {used}, where its commands go, was used in its place"
            )));
        }
        (ran.done, ran.fault)
    }

    /// What is stored of a file that did not end well: kept in mind, or removed.
    fn keep_or_clean(&mut self, job: &mut Job) {
        let is_kept = job.record.is_some() && !job.held.is_empty();
        if !job.stored || is_kept {
            return;
        }
        let removed = self.cleaner.open().and_then(|session| steer::remove(session, &job.temp));
        if removed.as_ref().is_err_and(Error::wants_another_session) {
            self.cleaner.close();
        }
        if removed.is_ok()
            && let Some(record) = job.record.take()
        {
            record.remove();
        }
        job.stored = false;
    }
}

/// A server's refusal is of a command with one of this file's paths.
fn is_named(fault: &Fault, job: &Job) -> bool {
    let Fault::At { end, error: Error::Refused { said, .. }, .. } = fault else { return false };
    let path = if *end == End::From { &job.entry.from } else { &job.temp };
    said.ends_with(&format!(" {}", String::from_utf8_lossy(path)))
}

/// Under which name a file is stored until it gets its own.
fn temporary(to: &[u8], tag: u32, number: u64) -> Vec<u8> {
    let (dir, name) = split(to);
    let tag = format!(".haul~{tag:08x}{number}");
    // Two dots at the beginning are more than a name to some servers.
    let dot: &[u8] = if name.starts_with(b".") { b"" } else { b"." };
    match dot.len() + name.len() + tag.len() <= 255 {
        true => [dir, dot, name, tag.as_bytes()].concat(),
        false => [dir, tag.as_bytes()].concat(),
    }
}

/// It is a name of ours beside the file.
fn is_ours(temp: &[u8], to: &[u8]) -> bool {
    let ((one, name), (other, _)) = (split(temp), split(to));
    one == other && name.windows(6).any(|part| part == b".haul~")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is not finished lies beside what it becomes, under a name of ours that any server takes.
    #[test]
    fn temporaries_lie_beside() {
        let long = [b"/d/".as_slice(), &[b'n'; 255]].concat();
        for to in [&b"/d/x"[..], b"/x", b"/d/.hidden", b"/d/ a b ", &long] {
            let temp = temporary(to, 7, 12);
            assert!(is_ours(&temp, to) && temp != to, "{to:?}");
            let (_, name) = split(&temp);
            assert!(name.len() <= 255 && name.starts_with(b".") && !name.starts_with(b".."), "{to:?}");
        }
        assert!(!is_ours(b"/e/.x.haul~1", b"/d/x") && !is_ours(b"/d/x", b"/d/x"));
    }
}
