//! What is known of files before they are moved, and where each is stored meanwhile.
//!
//! In: files of the queue. Out: those that are to be moved, with what of them is there already; what is over
//! by then is told.
//! Invariants: what an earlier run left is gone on with only where it is of the version that the source has
//! now; what is young is read when a change of it would show.

use std::time::Instant;

use haul_core::change::Change;
use haul_core::wire::{Failure, FailureKind};
use haul_ftp::pair::{End, Fault};
use haul_ftp::{Asked, Error, Kind, Session, steer};
use haul_gridftp::ranges::Ranges;

use super::{Job, RECORDED_MIN, Scope, Trouble, Worker, is_ours, split, temporary};
use crate::ftp::line::Line;
use crate::ftp::names::{SETTLES, is_young, same_facts};
use crate::ftp::pair::fold::{ONE_NAME, asks_folds};
use crate::ftp::pair::records::{Kept, Record, version};
use crate::ftp::pair::standing;
use crate::ftp::times::{Answer, Verdict, ask};
use crate::ftp::{meta_of, time_of, untold};
use crate::store::delegated::{DelegatedEnd, Marker, Standing};

impl Worker {
    /// Asks both for all of them: what the source is now, and what stands at the destination.
    pub(super) fn look(&mut self, jobs: &mut Vec<Job>) -> Result<(), Trouble> {
        let shared = self.shared.clone();
        let froms: Vec<&[u8]> = jobs.iter().map(|job| &job.entry.from[..]).collect();
        let at =
            |end| move |error| Trouble { scope: Scope::All, fault: Fault::At { end, error, other: None } };
        let sources = self.facts_of(End::From, &froms)?;
        let tos: Vec<&[u8]> = jobs.iter().map(|job| &job.entry.to[..]).collect();
        let sinks = self.facts_of(End::To, &tos)?;
        let left_out = self.left_out_twins(jobs).map_err(at(End::To))?;
        let mut settles = None;
        let mut left = Vec::with_capacity(jobs.len());
        let told = sources.into_iter().zip(sinks).zip(left_out);
        for (mut job, ((source, sink), left_out)) in std::mem::take(jobs).into_iter().zip(told) {
            if left_out || shared.lock().known.claims.is_of_another(job.entry.id, &sink) {
                let failure = shared.say(End::To, FailureKind::Create, &job.entry.to, ONE_NAME);
                self.end_unwanted(job, Err(failure));
                continue;
            }
            let facts = match source {
                Asked::Is(facts) if facts.kind == Some(Kind::File) && !facts.is_symlink() => facts,
                Asked::Is(_) => {
                    let why = "it is no file any more";
                    let failure = shared.say(End::From, FailureKind::Changed, &job.entry.from, why);
                    self.end_unwanted(job, Err(failure));
                    continue;
                }
                asked => {
                    let failure = untold(&shared.end(End::From).0, &job.entry.from, &asked);
                    self.end_unwanted(job, Err(failure));
                    continue;
                }
            };
            let (Some(size), Some(_)) = (facts.size, facts.modify) else {
                let why = "the server does not tell any more how long it is, and when it was changed";
                let failure = shared.say(End::From, FailureKind::Read, &job.entry.from, why);
                self.end_unwanted(job, Err(failure));
                continue;
            };
            if job.stored && !same_facts(&job.facts, &facts) {
                // What lies there is of another version, whoever believes in it: `prepare` removes it.
                (job.held, job.earlier) = (Ranges::new(), 0);
                if let Some(record) = &job.record {
                    record.clear();
                }
            }
            // What changed since it was looked at shows only in the next second, for times are told in whole
            // ones.
            let announced = shared.names.look(job.entry.id).map(|told| told.facts);
            let young = is_young((shared.clock)().secs, time_of(&facts).secs);
            if young && announced.is_none_or(|told| !same_facts(&told, &facts)) {
                settles = settles.max(Some(Instant::now() + SETTLES));
                shared.names.renew(job.entry.id, &facts);
            } else if young {
                settles = settles.max(crate::store::SourceNames::not_before(&*shared.names, job.entry.id));
            }
            job.entry.size = size;
            job.entry.meta = meta_of(&facts, false);
            let is_itself = |sink: &Asked| match sink {
                Asked::Is(there) => {
                    there.unique.is_some() && there.unique == facts.unique && shared.same_server
                }
                _ => false,
            };
            let standing = match (standing(&shared, &sink, &job.entry), &sink) {
                // What is not to be replaced stays as it is, also its time.
                (Ok(Standing::Unchanged), Asked::Is(_))
                    if !is_itself(&sink)
                        && (!shared.settings.no_clobber
                            || haul_mutant::removed("ftp-no-clobber-asks-nothing")) =>
                {
                    let anew = Standing::Differs(Change::NONE.with(Change::TIME, true));
                    Ok(if self.times_prove(&job.entry.to) { Standing::Unchanged } else { anew })
                }
                (standing, _) => standing,
            };
            match standing {
                Ok(Standing::Unchanged) => {
                    let is_its = match &sink {
                        Asked::Is(there) => shared.lock().known.claims.find(job.entry.id, there),
                        _ => true,
                    };
                    let end = match is_its {
                        true => Ok(DelegatedEnd::Unchanged),
                        false => Err(shared.say(End::To, FailureKind::Create, &job.entry.to, ONE_NAME)),
                    };
                    self.end_unwanted(job, end);
                }
                Ok(Standing::Skipped) => self.end_unwanted(job, Ok(DelegatedEnd::Skipped)),
                Ok(_) if is_itself(&sink) => {
                    let why = "it is the source: two names of one file";
                    let failure = shared.say(End::To, FailureKind::Create, &job.entry.to, why);
                    self.end_unwanted(job, Err(failure));
                }
                Ok(standing) => {
                    job.standing = standing;
                    job.facts = facts;
                    job.found = match sink {
                        Asked::Is(found) => Some(found),
                        _ => None,
                    };
                    left.push(job);
                }
                Err(failure) => {
                    let text = failure.text.to_string();
                    let said = shared.say(End::To, failure.kind, &job.entry.to, &text);
                    self.end_unwanted(job, Err(Failure { errno: failure.errno, ..said }));
                }
            }
        }
        *jobs = left;
        if let Some(until) = settles.filter(|_| !jobs.is_empty()) {
            self.rest(until.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }

    /// What looks unchanged beside this path is unchanged; shown by a file of ours there, if that is not
    /// known.
    fn times_prove(&mut self, path: &[u8]) -> bool {
        let shared = self.shared.clone();
        let dir = split(path).0;
        let known = shared.lock().known.times.of(dir);
        let verdict = known.unwrap_or_else(|| {
            let shown = self.ask_times(dir);
            shared.lock().known.times.note(dir, shown)
        });
        let why = shared.lock().known.times.count(verdict);
        if let Some(why) = why {
            let url = shared.end(End::To).0.url();
            (shared.post)(Marker::Note(format!("{url}: files that look unchanged by size and time, {why}")));
        }
        verdict != Verdict::Sent
    }

    /// The same, asked over a session of its own, for those of the pair move data to each other. Of a server
    /// that takes no further one, or no data from this host, nothing is shown.
    fn ask_times(&mut self, dir: &[u8]) -> Option<Answer> {
        let shared = self.shared.clone();
        if self.has_turn {
            // There is no other one beside it.
            self.pair = None;
        }
        let number = {
            let mut queue = shared.lock();
            queue.known.temps += 1;
            queue.known.temps
        };
        let temp = temporary(&[dir, b"times"].concat(), shared.tag, number);
        let (server, settings) = shared.end(End::To).clone();
        let mut line = Line::new(server.clone(), settings, &shared.retries[End::To as usize]);
        let set = |session: &mut Session, moment| {
            Ok(steer::set_times(session, &[(&temp[..], moment)])?.iter().all(|set| *set))
        };
        let mut begun = false;
        let asked = line.again(|session| {
            begun = true;
            ask(session, &temp, set)
        });
        let (shown, stays) = match asked {
            Ok((shown, stays)) => (Some(shown), stays),
            Err(_) => (None, begun),
        };
        if stays {
            let removed = self.cleaner.open().and_then(|session| {
                let removed = steer::remove(session, &temp);
                Ok(removed.is_ok() || matches!(session.facts(&temp)?, Asked::Not(_)))
            });
            if !removed.unwrap_or(false) {
                let shown = crate::ftp::shown(&server, &temp);
                (shared.post)(Marker::Note(format!(
                    "{shown}: it was made to see whether the server sets times, and could not be removed; remove it at the server"
                )));
            }
        }
        shown
    }

    /// Which of them have names that are those of other files of this copy to the server.
    fn left_out_twins(&mut self, jobs: &[Job]) -> Result<Vec<bool>, Error> {
        let shared = self.shared.clone();
        let (twins, folds, tag) = {
            let mut queue = shared.lock();
            let claims = &mut queue.known.claims;
            let twins: Vec<bool> =
                jobs.iter().map(|job| claims.is_twin(job.entry.id, &job.entry.to)).collect();
            let folds = claims.folds;
            queue.known.temps += 1;
            (twins, folds, format!("{:08x}{}", shared.tag, queue.known.temps))
        };
        let Some(first) = twins.iter().position(|twin| *twin) else { return Ok(twins) };
        let folds = match folds {
            Some(folds) => folds,
            None => {
                let session = self.pair.as_mut().expect("it is open").session(End::To);
                let folds = asks_folds(session, &jobs[first].entry.to, &tag)?;
                shared.lock().known.claims.folds = Some(folds);
                folds
            }
        };
        Ok(twins.into_iter().map(|twin| twin && folds).collect())
    }

    /// Under which name it is stored, and what of it is there already.
    pub(super) fn prepare(&mut self, job: &mut Job, can_compare: bool) -> Result<(), Trouble> {
        let shared = self.shared.clone();
        let at = |error| Trouble { scope: Scope::All, fault: Fault::At { end: End::To, error, other: None } };
        let pair = self.pair.as_mut().expect("it is open");
        // Where it was begun anew no sum may have been told, so that parts would count for nothing.
        let goes_on = pair.is_extended()
            && !job.no_restart
            && (can_compare && job.afresh == 0 || shared.settings.trust);
        let is_recorded = job.entry.size >= RECORDED_MIN;
        if let (None, Some(records), true) = (&job.record, &shared.records, is_recorded && !job.stored) {
            let [from, to] = [(End::From, &job.entry.from), (End::To, &job.entry.to)]
                .map(|(end, path)| crate::ftp::shown(&shared.end(end).0, path));
            match records.take(&from, &to) {
                Ok(record) => job.record = record,
                Err(error) => {
                    let why = haul_base::errno::text(error);
                    (shared.post)(Marker::Note(format!(
                        "what the destination has of unfinished files cannot be kept in {}: {why}",
                        records.0.display()
                    )));
                }
            }
            if let Some(kept) =
                job.record.as_ref().and_then(Record::read).filter(|kept| is_ours(&kept.temp, &job.entry.to))
            {
                let end = kept.ranges.list().last().map_or(0, |range| range.1);
                let is_it = goes_on && kept.version == version(&job.facts) && end > 0;
                let there = match is_it {
                    true => pair.session(End::To).facts(&kept.temp).map_err(at)?,
                    false => Asked::Not(String::new()),
                };
                let may_be_there = match &there {
                    Asked::Is(facts) => facts.size.is_some_and(|size| size >= end),
                    // There are servers, as haul's own, that show nobody what is not whole. Of one that has
                    // nothing only the sum would tell that what is not moved again is missing.
                    Asked::Not(_) => is_it && can_compare,
                    Asked::Untold(_) => false,
                };
                match may_be_there {
                    true => {
                        job.earlier = kept.ranges.total();
                        (job.temp, job.held, job.stored) = (kept.temp, kept.ranges, true);
                    }
                    false => match steer::remove(pair.session(End::To), &kept.temp) {
                        Err(error) if error.ends_session() => return Err(at(error)),
                        _ => {}
                    },
                }
            }
        }
        let goes_on = goes_on && !job.held.is_empty() && job.stored;
        if !goes_on {
            if job.stored {
                // Who broke off there may still write for a while.
                match steer::remove(pair.session(End::To), &job.temp) {
                    Err(error) if error.ends_session() => return Err(at(error)),
                    _ => {}
                }
            }
            (job.held, job.earlier) = (Ranges::new(), 0);
            let mut queue = shared.lock();
            queue.known.temps += 1;
            job.temp = temporary(&job.entry.to, shared.tag, queue.known.temps);
        }
        job.stored = true;
        if let Some(record) = &job.record {
            let kept = Kept {
                version: version(&job.facts),
                temp: job.temp.clone(),
                ranges: job.held.clone(),
                others: Vec::new(),
            };
            let _ = record.write(&kept);
        }
        Ok(())
    }
}
