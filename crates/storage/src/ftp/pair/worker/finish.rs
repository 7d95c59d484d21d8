//! What becomes of files that were moved: compared, dressed and named, or refused.
//!
//! In: files of which both servers say that all went well. Out: their markers, and those that are to be moved
//! again.
//! Invariants: [`judge`] has the word before a name is given; nothing is replaced but what was found at the
//! name; what counts as copied stands under its name, by the server's word behind the rename; nothing is
//! ended twice, and none is forgotten where a session is lost among them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use haul_core::change::Change;
use haul_core::job::delegated::{Judgement, Sums, Told, Why, judge};
use haul_core::reliability::Step;
use haul_core::wire::{Failure, FailureKind};
use haul_ftp::pair::{End, Fault};
use haul_ftp::{Asked, Error, Facts, Kind, Moment, Session, steer};
use haul_gridftp::ranges::Ranges;

use super::{Job, ONE_NAME, Scope, Shared, Trouble, Worker};
use crate::ftp::begun::Span;
use crate::ftp::is_dir;
use crate::ftp::line::{Attempts, Each, or_untold};
use crate::ftp::names::same_facts;
use crate::ftp::pair::MODE_MASK;
use crate::store::delegated::{DelegatedEnd, DelegatedMove, Marker, Standing};

/// How often a file is begun anew because of what was told of it at the end.
const AFRESH_MAX: u32 = 1;
/// Who waits for its turn looks as often.
const TURN: Duration = Duration::from_millis(5);
/// Sums that are asked for together.
const SUMS_MAX: usize = 16;
/// How often files are renamed whose sessions are lost meanwhile.
const RENAMES_MAX: u32 = 3;

impl Worker {
    /// Compares what can be compared, and gives names. All of them were moved well, as both servers say.
    pub(super) fn finish(&mut self, jobs: &mut Vec<Job>, sum: Option<&'static str>) -> Result<(), Trouble> {
        let shared = self.shared.clone();
        let at =
            |end| move |error| Trouble { scope: Scope::All, fault: Fault::At { end, error, other: None } };
        let sums: Vec<(Sums, Option<Failure>)> = match sum {
            Some(sum) => self.compare(jobs, sum)?,
            None => jobs.iter().map(|_| (Sums::Untold, None)).collect(),
        };
        let temps: Vec<&[u8]> = jobs.iter().map(|job| &job.temp[..]).collect();
        let stored = self.facts_of(End::To, &temps)?;
        let froms: Vec<&[u8]> = jobs.iter().map(|job| &job.entry.from[..]).collect();
        let now = self.facts_of(End::From, &froms)?;
        let (mut good, mut left, mut lost) = (Vec::new(), Vec::new(), None);
        let told = sums.into_iter().zip(stored).zip(now);
        for (mut job, (((sums, refusal), stored), now)) in std::mem::take(jobs).into_iter().zip(told) {
            let told = Told {
                size: job.entry.size,
                source_same: matches!(&now, Asked::Is(now) if same_facts(now, &job.facts)),
                stored: match stored {
                    Asked::Is(facts) => {
                        job.unique = facts.unique;
                        facts.size
                    }
                    _ => None,
                },
                sums,
                held: job.unsent,
                trust: shared.settings.trust,
                must_compare: shared.settings.must_compare,
            };
            match judge(&told) {
                Judgement::Publish => good.push((job, sums)),
                Judgement::Afresh(why) if job.afresh < AFRESH_MAX => {
                    job.afresh += 1;
                    lost = lost.or(self.begin_anew(&mut job).err());
                    if why == Why::SumsDiffer && told.held > 0 {
                        (shared.post)(Marker::Note(format!(
                            "{}: with what had been moved before the content is another; it is moved again from its beginning",
                            crate::ftp::shown(&shared.end(End::To).0, &job.entry.to)
                        )));
                    }
                    left.push(job);
                }
                Judgement::Afresh(why) | Judgement::Fail(why) => {
                    lost = lost.or(self.begin_anew(&mut job).err());
                    let failure = refusal.unwrap_or_else(|| self.refuse(&job, why, sum));
                    self.end(job, Err(failure));
                }
            }
        }
        let published = match lost {
            Some(error) => Err(self.all_again(good, at(End::To)(error))),
            None => self.publish(good, sum),
        };
        // Those that are to be moved again stand before those that were not moved.
        *jobs = left;
        published
    }

    /// Why a file did not get its name.
    fn refuse(&self, job: &Job, why: Why, sum: Option<&'static str>) -> Failure {
        let (from, to) = (&job.entry.from, &job.entry.to);
        let (sum_is_common, sum) = (sum.is_some(), sum.unwrap_or("sum"));
        match why {
            Why::SourceChanged => {
                let why = "what the server tells of it is not what it was when it was begun";
                self.shared.say(End::From, FailureKind::Changed, from, why)
            }
            Why::Length(stored) => {
                let why = format!(
                    "{stored} bytes were stored of {}, although both servers say that all went well",
                    job.entry.size
                );
                self.shared.say(End::To, FailureKind::Write, to, &why)
            }
            Why::LengthUntold => {
                let why =
                    "the server does not tell how long what it stored is, so that it was not given its name";
                self.shared.say(End::To, FailureKind::Write, to, why)
            }
            Why::SumsDiffer => {
                let why = format!(
                    "its {sum} is not that of the source: what was stored is not what the source has"
                );
                self.shared.say(End::To, FailureKind::Digest, to, &why)
            }
            Why::NotCompared => {
                let why = "no sum was told by both, and --verify=disk wants each file compared";
                // EOPNOTSUPP: they have none in common in another run either.
                let errno = if sum_is_common { 0 } else { 95 };
                Failure { errno, ..self.shared.say(End::To, FailureKind::Digest, to, why) }
            }
            Why::SumRefused => {
                let why = "one of the two servers does not tell its sum, so that it was not given its name";
                self.shared.say(End::To, FailureKind::Digest, to, why)
            }
            Why::HeldUnproven => {
                let why = "nothing shows that what was moved of it before is right";
                self.shared.say(End::To, FailureKind::Digest, to, why)
            }
        }
    }

    /// What is stored of it is of no use.
    fn begin_anew(&mut self, job: &mut Job) -> Result<(), Error> {
        let pair = self.pair.as_mut().expect("it is open");
        let removed = steer::remove(pair.session(End::To), &job.temp);
        // Where it may stand there it stays on record, and is removed before it is stored anew.
        let may_stand = removed.as_ref().is_err_and(Error::ends_session);
        if let Some(record) = job.record.as_ref().filter(|_| !may_stand) {
            record.clear();
        }
        (job.held, job.earlier, job.unsent, job.stored) = (Ranges::new(), 0, 0, may_stand);
        (self.shared.post)(Marker::Moved { id: job.entry.id, len: 0, held: 0 });
        match removed {
            Err(error) if error.ends_session() => Err(error),
            _ => Ok(()),
        }
    }

    /// The sums of both, asked of both at the same time; with the failure of a file whose sum one of them
    /// makes and does not tell.
    fn compare(&mut self, jobs: &[Job], sum: &'static str) -> Result<Vec<(Sums, Option<Failure>)>, Trouble> {
        let at =
            |end| move |error| Trouble { scope: Scope::All, fault: Fault::At { end, error, other: None } };
        let mut all = Vec::with_capacity(jobs.len());
        for some in jobs.chunks(SUMS_MAX) {
            let froms: Vec<(&[u8], u64)> =
                some.iter().map(|job| (&job.entry.from[..], job.entry.size)).collect();
            let tos: Vec<(&[u8], u64)> = some.iter().map(|job| (&job.temp[..], job.entry.size)).collect();
            let (from, to) = self.pair.as_mut().expect("it is open").both();
            steer::ask_sums(from, sum, &paths_of(&froms)).map_err(at(End::From))?;
            steer::ask_sums(to, sum, &paths_of(&tos)).map_err(at(End::To))?;
            let ones = steer::sums(from, sum, &froms).map_err(at(End::From))?;
            let others = steer::sums(to, sum, &tos).map_err(at(End::To))?;
            let mut ask = |end, files: &[(&[u8], u64)], told| {
                self.again_of_each(end, &paths_of(files), Each::of(told), |session, open| {
                    let open: Vec<(&[u8], u64)> = open.iter().map(|at| files[*at]).collect();
                    steer::ask_sums(session, sum, &paths_of(&open))?;
                    steer::sums(session, sum, &open)
                })
            };
            let ones = ask(End::From, &froms, ones)?;
            let others = ask(End::To, &tos, others)?;
            for ((job, one), other) in some.iter().zip(ones).zip(others) {
                let refused = |end, path: &[u8], error: &Error| {
                    let is_made = !error.is_unknown() && !haul_mutant::removed("ftp-pairs-want-common-sums");
                    is_made.then(|| self.shared.failure(end, FailureKind::Digest, path, error))
                };
                all.push(match (&one, &other) {
                    (Ok(one), Ok(other)) if one == other => (Sums::Alike, None),
                    (Ok(_), Ok(_)) => (Sums::Differ, None),
                    _ => {
                        let one =
                            one.as_ref().err().and_then(|error| refused(End::From, &job.entry.from, error));
                        let other =
                            || other.as_ref().err().and_then(|error| refused(End::To, &job.entry.to, error));
                        match one.or_else(other) {
                            Some(failure) => (Sums::Refused, Some(failure)),
                            None => (Sums::Untold, None),
                        }
                    }
                });
            }
        }
        Ok(all)
    }

    /// Asks one of the two about several files, and again about those of which it says "later", as long as
    /// its policy says so. `work` is given which of them are open, by their numbers.
    fn again_of_each<T>(
        &mut self,
        end: End,
        paths: &[&[u8]],
        mut each: Each<T>,
        mut work: impl FnMut(&mut Session, &[usize]) -> Result<Vec<Result<T, Error>>, Error>,
    ) -> Result<Vec<Result<T, Error>>, Trouble> {
        let shared = self.shared.clone();
        let mut tries = Attempts::new(Step::File);
        loop {
            if let Some((at, error)) = each.later() {
                match shared.retries[end as usize].failed(&mut tries, error, paths[at], 0) {
                    Some(pause) if !shared.is_cancelled() => self.rest(pause),
                    _ => return Ok(each.told()),
                }
            }
            let open = each.open();
            if open.is_empty() {
                return Ok(each.told());
            }
            let told = work(self.pair.as_mut().expect("it is open").session(end), &open);
            let told = told.map_err(|error| Trouble {
                scope: Scope::All,
                fault: Fault::At { end, error, other: None },
            })?;
            each.put(open, told);
            if self.pair.as_mut().is_some_and(|pair| pair.session(end).is_broken()) {
                // What is open is asked over another one, with all else.
                return Ok(each.told());
            }
        }
    }

    /// What one of the two has at these paths.
    pub(super) fn facts_of(&mut self, end: End, paths: &[&[u8]]) -> Result<Vec<Asked>, Trouble> {
        let told = self.again_of_each(end, paths, Each::new(paths.len()), |session, open| {
            let open: Vec<&[u8]> = open.iter().map(|at| paths[*at]).collect();
            session.facts_of_each(&open)
        })?;
        let at = |error| Trouble { scope: Scope::All, fault: Fault::At { end, error, other: None } };
        told.into_iter().map(|told| or_untold(told).map_err(at)).collect()
    }

    /// Gives them their times, modes and names. What could replace another one of them unseen waits until
    /// that was looked at under its name.
    fn publish(&mut self, good: Vec<(Job, Sums)>, sum: Option<&'static str>) -> Result<(), Trouble> {
        let mut rest = good;
        while !rest.is_empty() {
            let later = rest.split_off(apart(&rest));
            if let Err(trouble) = self.publish_some(rest, sum) {
                return Err(self.all_again(later, trouble));
            }
            rest = later;
        }
        Ok(())
    }

    fn publish_some(&mut self, good: Vec<(Job, Sums)>, sum: Option<&'static str>) -> Result<(), Trouble> {
        let trouble =
            |error| Trouble { scope: Scope::All, fault: Fault::At { end: End::To, error, other: None } };
        let turn = Turn::take(&self.shared, &good);
        let told = self.named_and_dressed(&good);
        drop(turn);
        let (times, modes, named) = match told {
            Ok(told) => told,
            Err(error) => {
                // Which of them have their names is not known: those that have are alike when they are tried
                // again.
                return Err(self.all_again(good, trouble(error)));
            }
        };
        for ((((job, sums), mtime), mode), named) in good.into_iter().zip(times).zip(modes).zip(named) {
            match named {
                Ok(()) => {
                    let mut job = job;
                    if let Some(record) = job.record.take() {
                        record.remove();
                    }
                    let to = crate::ftp::shown(&self.shared.end(End::To).0, &job.entry.to);
                    self.shared.begun.ends(&to, Span::WHOLE);
                    let change = match job.standing {
                        Standing::Differs(change) => change,
                        _ => Change::NEW,
                    };
                    let compared = sum.filter(|_| sums == Sums::Alike);
                    let moved = DelegatedMove {
                        size: job.entry.size,
                        moved: job.moved,
                        held: job.earlier,
                        compared,
                        change,
                        mtime_lost: !mtime,
                        mode_lost: !mode,
                    };
                    self.end(job, Ok(DelegatedEnd::Moved(moved)));
                }
                Err(failure) => {
                    let mut job = job;
                    let _ = self.begin_anew(&mut job);
                    self.end(job, Err(failure));
                }
            }
        }
        Ok(())
    }

    /// They are tried again, one by one ended where that does not help.
    fn all_again(&mut self, good: Vec<(Job, Sums)>, trouble: Trouble) -> Trouble {
        self.pair = None;
        let mut jobs: Vec<Job> = good.into_iter().map(|(job, _)| job).collect();
        for mut job in std::mem::take(&mut jobs) {
            self.keep_or_clean(&mut job);
            let why = "the session was lost while it was given its name: the same command again finds out whether it has it";
            let failure = self.shared.say(End::To, FailureKind::Network, &job.entry.to, why);
            self.end(job, Err(failure));
        }
        trouble
    }

    /// Does something that may be done twice, and does it again over other sessions where these are lost, as
    /// long as the policy says so.
    fn again_over<T>(
        &mut self,
        about: &[u8],
        mut work: impl FnMut(&mut Worker) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let shared = self.shared.clone();
        let mut tries = Attempts::new(Step::File);
        loop {
            let error = match self.open().map_err(why_of).and_then(|()| work(self)) {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            self.pair = None;
            if haul_mutant::removed("ftp-pairs-look-over-other-sessions") {
                return Err(error);
            }
            match shared.retries[End::To as usize].failed(&mut tries, &error, about, 0) {
                Some(pause) if !shared.is_cancelled() => self.rest(pause),
                _ => return Err(error),
            }
        }
    }

    fn named_and_dressed(&mut self, good: &[(Job, Sums)]) -> Result<Given, Error> {
        let about = good.first().map(|(job, _)| job.entry.to.clone()).unwrap_or_default();
        let dressed = self.again_over(&about, |worker| worker.dress(good))?;
        let named = self.name(good, &about, &dressed)?;
        let Dressed { times, modes, .. } = dressed;
        Ok((times, modes, named))
    }

    /// Gives them their times and modes, under the names that they have so far.
    fn dress(&mut self, good: &[(Job, Sums)]) -> Result<Dressed, Error> {
        let no_modes = self.shared.lock().known.no_modes;
        let session = self.pair.as_mut().expect("it is open").session(End::To);
        let wrong: Vec<bool> = good
            .iter()
            .map(|(job, _)| steer::takes_name(session, &job.temp).map(|takes| !takes))
            .collect::<Result<_, _>>()?;
        let moment = |job: &Job| {
            let at = job.entry.meta.mtime;
            Moment { secs: at.secs, nanos: 0 }
        };
        let times: Vec<(&[u8], Moment)> = good.iter().map(|(job, _)| (&job.temp[..], moment(job))).collect();
        let times = steer::set_times(session, &times)?;
        let modes: Vec<(&[u8], u32)> = match no_modes {
            true => Vec::new(),
            false => good
                .iter()
                .filter_map(|(job, _)| Some((&job.temp[..], job.facts.unix_mode? & MODE_MASK)))
                .collect(),
        };
        let mut set = steer::set_modes(session, &modes)?.into_iter();
        let is_told = |job: &Job| job.facts.unix_mode.is_some();
        let modes: Vec<bool> =
            good.iter().map(|(job, _)| !is_told(job) || !no_modes && set.next().unwrap_or(false)).collect();
        if !modes.is_empty() && modes.iter().all(|set| !set) {
            self.shared.lock().known.no_modes = true;
        }
        Ok(Dressed { wrong, times, modes })
    }

    /// Gives them their names.
    fn name(
        &mut self,
        good: &[(Job, Sums)],
        about: &[u8],
        dressed: &Dressed,
    ) -> Result<Vec<Result<(), Failure>>, Error> {
        let shared = self.shared.clone();
        let failed =
            |job: &Job, error: &Error| shared.failure(End::To, FailureKind::Publish, &job.entry.to, error);
        let tos: Vec<&[u8]> = good.iter().map(|(job, _)| &job.entry.to[..]).collect();
        let stands = self.again_over(about, |worker| worker.facts_of(End::To, &tos).map_err(why_of))?;
        let mut named: Vec<Result<(), Failure>> = good
            .iter()
            .zip(&dressed.wrong)
            .zip(&stands)
            .map(|(((job, _), wrong), stands)| match wrong {
                true => Err(failed(job, &Error::Unsayable(steer::OTHER_NAME))),
                false => still_free(&shared, job, stands),
            })
            .collect();
        let going = |named: &[Result<(), Failure>]| -> Vec<usize> {
            named.iter().enumerate().filter(|(_, named)| named.is_ok()).map(|(index, _)| index).collect()
        };
        let goes = going(&named);
        let pairs: Vec<(&[u8], &[u8])> =
            goes.iter().map(|index| (&good[*index].0.temp[..], &good[*index].0.entry.to[..])).collect();
        let tos: Vec<&[u8]> = pairs.iter().map(|(_, to)| *to).collect();
        let (mut taken, mut is_first) = (Vec::new(), true);
        let renamed = self.again_of_each(End::To, &tos, Each::new(pairs.len()), |session, open| {
            // Directly before each rename.
            if !std::mem::replace(&mut is_first, false) {
                let some: Vec<&[u8]> = open.iter().map(|at| tos[*at]).collect();
                for (at, stands) in open.iter().zip(session.facts_of_each(&some)?) {
                    if let Err(failure) = still_free(&shared, &good[goes[*at]].0, &or_untold(stands)?) {
                        taken.push((*at, failure));
                    }
                }
            }
            let is_taken = |at: &usize| taken.iter().any(|(other, _)| other == at);
            let some: Vec<(&[u8], &[u8])> =
                open.iter().filter(|at| !is_taken(at)).map(|at| pairs[*at]).collect();
            let mut renamed = steer::rename(session, &some)?.into_iter();
            let none = || Err(Error::Misfit("it was not renamed".into()));
            Ok(open
                .iter()
                .map(|at| if is_taken(at) { none() } else { renamed.next().unwrap_or_else(none) })
                .collect())
        });
        match renamed.map_err(why_of) {
            Ok(renamed) => {
                for (index, result) in goes.iter().zip(renamed) {
                    named[*index] = result.map_err(|error| failed(&good[*index].0, &error));
                }
            }
            Err(error) if error.ends_session() => {
                self.pair = None;
                self.find_out(good, about, &dressed.times, &mut named, error)?;
            }
            Err(error) => return Err(error),
        }
        for (at, failure) in taken {
            named[goes[at]] = Err(failure);
        }
        let goes = going(&named);
        let paths: Vec<&[u8]> =
            goes.iter().flat_map(|index| [&good[*index].0.entry.to[..], &good[*index].0.temp[..]]).collect();
        let now = self.again_over(about, |worker| worker.facts_of(End::To, &paths).map_err(why_of))?;
        for (index, now) in goes.iter().zip(now.chunks(2)) {
            named[*index] = has_its_name(&shared, &good[*index].0, &now[0], &now[1]);
        }
        Ok(named)
    }

    /// The session was lost while they were renamed: which of them have their names shows at both names of
    /// each. What has not is renamed now; what may be another file fails.
    fn find_out(
        &mut self,
        good: &[(Job, Sums)],
        about: &[u8],
        times: &[bool],
        named: &mut [Result<(), Failure>],
        mut lost: Error,
    ) -> Result<(), Error> {
        let shared = self.shared.clone();
        for _ in 0..RENAMES_MAX {
            let open: Vec<usize> = (0..good.len()).filter(|index| named[*index].is_ok()).collect();
            let paths: Vec<&[u8]> = open
                .iter()
                .flat_map(|index| [&good[*index].0.entry.to[..], &good[*index].0.temp[..]])
                .collect();
            let there = self.again_over(about, |worker| worker.facts_of(End::To, &paths).map_err(why_of))?;
            let mut rest = Vec::new();
            for (index, there) in open.iter().zip(there.chunks(2)) {
                let (job, stands) = (&good[*index].0, &there[0]);
                match (&there[1], stands) {
                    (Asked::Is(_), stands) => match still_free(&shared, job, stands) {
                        Ok(()) => rest.push(*index),
                        Err(failure) => named[*index] = Err(failure),
                    },
                    // Its size and its own name are looked at behind this.
                    (Asked::Not(_), Asked::Is(facts)) if is_what_was_sent(job, facts, times[*index]) => {}
                    _ => {
                        let why = "the session was lost while it was given its name: the same command again finds out whether it has it";
                        named[*index] = Err(shared.say(End::To, FailureKind::Network, &job.entry.to, why));
                    }
                }
            }
            let pairs: Vec<(&[u8], &[u8])> =
                rest.iter().map(|index| (&good[*index].0.temp[..], &good[*index].0.entry.to[..])).collect();
            if pairs.is_empty() {
                return Ok(());
            }
            let session = self.pair.as_mut().expect("it is open").session(End::To);
            match steer::rename(session, &pairs) {
                Ok(renamed) => {
                    for (index, result) in rest.iter().zip(renamed) {
                        let to = &good[*index].0.entry.to;
                        named[*index] =
                            result.map_err(|error| shared.failure(End::To, FailureKind::Publish, to, &error));
                    }
                    return Ok(());
                }
                Err(error) => {
                    self.pair = None;
                    lost = error;
                }
            }
        }
        Err(lost)
    }
}

/// Times that were set, modes, and who has his name.
type Given = (Vec<bool>, Vec<bool>, Vec<Result<(), Failure>>);

/// What became of files before they get their names.
struct Dressed {
    /// The server takes the name of one of ours for another one.
    wrong: Vec<bool>,
    times: Vec<bool>,
    modes: Vec<bool>,
}

/// What stands at the name of a file, of whose rename nothing was heard: by the name that the server has for
/// it alone, else by the time that was set.
fn is_what_was_sent(job: &Job, facts: &Facts, kept_time: bool) -> bool {
    match (&job.unique, &facts.unique) {
        (Some(sent), Some(there)) => sent == there,
        _ => {
            let time = facts.modify.map(|told| told.secs);
            kept_time && time == Some(job.entry.meta.mtime.secs) && facts.size == Some(job.entry.size)
        }
    }
}

/// Files get their names: nobody else gives any that may be one of these meanwhile.
struct Turn {
    shared: Arc<Shared>,
    tos: Vec<Vec<u8>>,
}

impl Turn {
    /// Waits for whoever gives names like these.
    fn take(shared: &Arc<Shared>, good: &[(Job, Sums)]) -> Turn {
        let names: Vec<&[u8]> = good.iter().map(|(job, _)| &job.entry.to[..]).collect();
        while !shared.lock().known.claims.name(&names) {
            std::thread::sleep(TURN);
        }
        Turn { shared: shared.clone(), tos: names.into_iter().map(<[u8]>::to_vec).collect() }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let names: Vec<&[u8]> = self.tos.iter().map(Vec::as_slice).collect();
        self.shared.lock().known.claims.named(&names);
    }
}

/// How many of them, from the first one, are told from each other under their names: by what the server tells
/// of each file alone, or by their lengths.
fn apart(good: &[(Job, Sums)]) -> usize {
    let mut seen = HashSet::new();
    let may_replace = |(job, _): &(Job, Sums)| job.unique.is_none() && !seen.insert(job.entry.size);
    good.iter().position(may_replace).unwrap_or(good.len()).max(1)
}

/// What stands at the name of a file is what was found there when it was begun.
fn still_free(shared: &Shared, job: &Job, stands: &Asked) -> Result<(), Failure> {
    let to = &job.entry.to;
    let exists = |why: &str| {
        // EEXIST.
        Err(Failure { errno: 17, ..shared.say(End::To, FailureKind::Publish, to, why) })
    };
    if shared.lock().known.claims.is_of_another(job.entry.id, stands) {
        return exists(ONE_NAME);
    }
    let facts = match stands {
        Asked::Not(_) => return Ok(()),
        Asked::Is(facts) => facts,
        Asked::Untold(text) => {
            let why = format!("what stands at its name is not known: the server says {text}");
            return Err(shared.say(End::To, FailureKind::Publish, to, &why));
        }
    };
    match &job.found {
        _ if is_dir(facts) => exists("a directory stands there; nothing was removed"),
        _ if shared.settings.no_clobber => exists("something came to stand there; nothing was replaced"),
        Some(found) if same_facts(found, facts) => Ok(()),
        // Another run finds it there, and replaces it.
        _ => {
            let why = "something else came to stand there while it was copied, and was left alone";
            Err(shared.say(End::To, FailureKind::Publish, to, why))
        }
    }
}

/// Behind the rename: the file stands under its name, and under no other.
fn has_its_name(shared: &Shared, job: &Job, now: &Asked, temp: &Asked) -> Result<(), Failure> {
    let say = |why: &str| Err(shared.say(End::To, FailureKind::Publish, &job.entry.to, why));
    let facts = match now {
        Asked::Is(facts) => facts,
        Asked::Not(text) => return say(&format!("it was renamed, and the server does not have it: {text}")),
        Asked::Untold(text) => {
            return say(&format!(
                "it was renamed, and what stands there is not known: the server says {text}"
            ));
        }
    };
    if facts.kind != Some(Kind::File) || facts.is_symlink() {
        return say("it was renamed, and what stands there is no file");
    }
    if facts.size != Some(job.entry.size) {
        let size = facts.size.map_or("an untold number".into(), |size| size.to_string());
        return say(&format!("it was renamed, and the server has {size} of {} bytes of it", job.entry.size));
    }
    if facts.unique.is_some() && job.unique.is_some() && facts.unique != job.unique {
        return say(
            "it was renamed, and another file stands there: the server may take its name for that of another one",
        );
    }
    if let Asked::Is(_) = temp {
        return say(
            "the server says that it was renamed, and still has it under the name that it had before",
        );
    }
    shared.lock().known.claims.place(job.entry.id, facts);
    Ok(())
}

fn why_of(trouble: Trouble) -> Error {
    match trouble.fault {
        Fault::At { error, .. } => error,
        _ => Error::Broken { doing: "asking about names", why: "nothing was said" },
    }
}

fn paths_of<'a>(files: &[(&'a [u8], u64)]) -> Vec<&'a [u8]> {
    files.iter().map(|(path, _)| *path).collect()
}
