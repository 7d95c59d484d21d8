//! Whether a server has what was sent of files: their lengths, and the sums that it makes of them.
//!
//! In: files that were sent whole. Out: which of them go on to their names.
//! Invariants: a file whose length, as the server tells it, is another one than what was sent, or whose sum
//! is, goes no further; one of which the server makes no sum goes on only where nothing else was believed of
//! it.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use haul_core::wire::{Failure, FailureKind};
use haul_ftp::{Asked, Error, Facts, Sum};

use super::publish::Going;
use super::summed::Compared;
use super::writer::Writer;

/// The sum of what was sent of a file that goes on, where it is compared as a whole.
fn own_sum<'a>(going: &'a Going<'_>) -> Option<&'a Vec<u8>> {
    going.sum.as_ref().filter(|_| going.goes()).and_then(|sums| sums.whole())
}

/// Files of which the server is asked for one.
fn summed<'a>(all: &'a [Going<'_>]) -> Vec<(&'a [u8], u64)> {
    let some = all.iter().filter(|going| own_sum(going).is_some());
    some.map(|going| (going.temp.as_slice(), going.publish.file.size)).collect()
}

impl Writer {
    /// The length of each file is the one that was sent. Its sum is asked for at the same time.
    pub(super) fn hold_lengths(&mut self, all: &mut [Going<'_>]) {
        let mut paths: Vec<&[u8]> =
            all.iter().filter(|going| going.goes()).map(|going| going.temp.as_slice()).collect();
        let Some(first) = paths.first().map(|path| path.to_vec()) else { return };
        self.begins("look", &first);
        // Whether the server takes names that differ in case alone, or by a blank or a dot at their end, for
        // one: asked once.
        let slash = first.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        let turned: Vec<u8> = first[slash..].iter().map(|byte| turned(*byte)).collect();
        let others =
            [[&first[..slash], &turned].concat(), [&first[..], b" "].concat(), [&first[..], b"."].concat()];
        let is_unknown =
            |of: &Mutex<Option<bool>>| of.lock().unwrap_or_else(PoisonError::into_inner).is_none();
        let asks = is_unknown(&self.common.told.folds) || is_unknown(&self.common.told.drops_ends);
        if asks {
            paths.extend(others.iter().map(Vec::as_slice));
        }
        let common = self.common.clone();
        let files = summed(all);
        let told = self.line.again(|session| {
            let told = match common.sum {
                Some(sum) => session.facts_and_sums(&paths, sum, &files),
                None => session.facts_of(&paths).map(|asked| (asked, Vec::new())),
            };
            match told {
                Err(error) if error.is_for_later() || matches!(error, Error::Unsayable(_)) => Ok(None),
                Err(Error::OutOfStep { .. }) if session.is_broken() => Ok(None),
                told => told.map(Some),
            }
        });
        let told = match told {
            Ok(Some((asked, sums))) => Ok((asked.into_iter().map(Ok).collect(), sums)),
            // What is said for now of one of them is no word on the others.
            Ok(None) => self.lengths_and_sums_of_each(&paths, &files),
            Err(error) => Err(error),
        };
        let (asked, sums): (Vec<Result<Asked, Error>>, _) = match told {
            Ok(told) => told,
            Err(error) => return self.fail_all(all, &error),
        };
        let mut asked = asked.into_iter();
        for (going, told) in all.iter_mut().filter(|going| own_sum(going).is_some()).zip(sums) {
            going.told = Some(told);
        }
        for going in all.iter_mut().filter(|going| going.goes()) {
            let size = going.publish.file.size;
            let say = |kind, why: &str| Err(common.say(kind, &going.path, why));
            let told = match asked.next() {
                Some(Err(error)) => {
                    going.result = Err(common.failure(FailureKind::Publish, &going.path, &error));
                    continue;
                }
                told => told.and_then(Result::ok),
            };
            if let Some(Asked::Is(facts)) = &told {
                going.unique = facts.unique.clone();
            }
            going.result = match told {
                Some(Asked::Is(Facts { size: Some(told), .. }))
                    if told == size || haul_mutant::removed("ftp-lengths-are-compared") =>
                {
                    Ok(())
                }
                Some(Asked::Is(Facts { size: Some(told), .. })) => {
                    let why =
                        format!("the server said that it took all of it, and has {told} of {size} bytes");
                    say(FailureKind::Digest, &why)
                }
                Some(Asked::Not(text)) => {
                    let why = format!("the server said that it took it, and does not have it: {text}");
                    say(FailureKind::Digest, &why)
                }
                Some(Asked::Is(_) | Asked::Untold(_)) | None => {
                    common.told.no_size.store(true, Ordering::Relaxed);
                    Ok(())
                }
            };
        }
        if asks {
            // What is not told of is asked again with the next files.
            let [folds, blank, dot] = [(); 3].map(|()| match asked.next() {
                Some(Ok(Asked::Is(_))) => Some(true),
                Some(Ok(Asked::Not(_))) => Some(false),
                Some(Ok(Asked::Untold(_)) | Err(_)) | None => None,
            });
            let drops_ends = match (blank, dot) {
                (Some(true), _) | (_, Some(true)) => Some(true),
                (Some(_), Some(_)) => Some(false),
                _ => None,
            };
            *common.told.folds.lock().unwrap_or_else(PoisonError::into_inner) = folds;
            *common.told.drops_ends.lock().unwrap_or_else(PoisonError::into_inner) = drops_ends;
        }
        self.refuse_folded(all);
    }

    /// The same asked one by one, where the server says "later" of some.
    #[allow(clippy::type_complexity)] // One of each for each file.
    fn lengths_and_sums_of_each(
        &mut self,
        paths: &[&[u8]],
        files: &[(&[u8], u64)],
    ) -> Result<(Vec<Result<Asked, Error>>, Vec<Result<Vec<u8>, Error>>), Error> {
        let asked = self.line.again_of_each(paths.len(), |session, open| {
            let some: Vec<&[u8]> = open.iter().map(|at| paths[*at]).collect();
            session.facts_of_each(&some)
        })?;
        let sums = match self.common.sum {
            Some(sum) => self.line.again_of_each(files.len(), |session, open| {
                let some: Vec<(&[u8], u64)> = open.iter().map(|at| files[*at]).collect();
                session.sums(sum, &some)
            })?,
            None => Vec::new(),
        };
        Ok((asked, sums))
    }

    /// Asks again for sums of which the server said "later".
    fn ask_sums_again(&mut self, all: &mut [Going<'_>], sum: Sum) {
        let is_later = |going: &Going<'_>| {
            matches!(&going.told, Some(Err(error)) if error.is_for_later()) && own_sum(going).is_some()
        };
        let later: Vec<usize> = (0..all.len()).filter(|at| is_later(&all[*at])).collect();
        if later.is_empty() {
            return;
        }
        let files: Vec<(Vec<u8>, u64)> =
            later.iter().map(|at| (all[*at].temp.clone(), all[*at].publish.file.size)).collect();
        self.begins("sum", &files[0].0);
        let told = self.line.again_of_each(files.len(), |session, open| {
            let some: Vec<(&[u8], u64)> =
                open.iter().map(|at| (files[*at].0.as_slice(), files[*at].1)).collect();
            session.sums(sum, &some)
        });
        match told {
            Ok(told) => later.into_iter().zip(told).for_each(|(at, told)| all[at].told = Some(told)),
            Err(error) => {
                for at in later {
                    all[at].result = Err(self.common.failure(FailureKind::Publish, &all[at].path, &error));
                }
            }
        }
    }

    pub(super) fn fail_all(&self, all: &mut [Going<'_>], error: &Error) {
        for going in all.iter_mut().filter(|going| going.goes()) {
            going.result = Err(self.common.failure(FailureKind::Publish, &going.path, error));
        }
    }

    /// The sum of what the server has is that of what was sent.
    pub(super) fn hold_against_sums(&mut self, all: &mut [Going<'_>]) {
        let Some(sum) = self.common.sum else { return };
        let common = self.common.clone();
        for going in all.iter_mut().filter(|going| going.goes() && own_sum(going).is_none()) {
            self.hold_against_parts(going, sum);
        }
        self.ask_sums_again(all, sum);
        for going in all.iter_mut() {
            let Some(own) = own_sum(going).cloned() else { continue };
            going.result = match going.told.take() {
                Some(Ok(told)) if told == own || haul_mutant::removed("ftp-sums-are-compared") => {
                    common.told.compared.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                }
                Some(Ok(_)) => Err(self.other_sum(going, sum)),
                Some(Err(error)) if error.is_unknown() => self.not_compared(going),
                Some(Err(error)) => Err(common.failure(FailureKind::Publish, &going.path, &error)),
                // What was not asked for proves nothing.
                None => Err(common.say(FailureKind::Digest, &going.path, "its sum was not asked for")),
            };
        }
    }

    fn other_sum(&self, going: &Going<'_>, sum: Sum) -> Failure {
        let why = format!("the {} of what the server keeps is not that of what was sent", sum.name());
        self.common.say(FailureKind::Digest, &going.path, &why)
    }

    /// The server makes no sum of a file, whatever it says that it makes.
    fn not_compared(&self, going: &mut Going<'_>) -> Result<(), Failure> {
        self.common.lanes.makes_no_sum();
        let decides = going.sum.as_ref().is_some_and(|sums| sums.decides);
        if decides && !haul_mutant::removed("ftp-words-are-proved") {
            going.may_be_right = true;
            self.common.parts.begins_anew(going.publish.file.id);
            let why = "the server made no sum of it, and nothing else proves what an earlier attempt left of it there: it is sent from \
                       its beginning";
            return Err(self.common.say(FailureKind::Digest, &going.path, why));
        }
        self.common.told.uncompared.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The same of a large file, part by part.
    fn hold_against_parts(&mut self, going: &mut Going<'_>, sum: Sum) {
        let Some(own) = &going.sum else { return };
        let compared = self.compare_parts(&going.temp, going.publish.file.size, own);
        going.result = match compared {
            Ok(Compared::Alike) => {
                self.note_compared(&Compared::Alike);
                let told = &self.common.told;
                told.compared.fetch_add(1, Ordering::Relaxed);
                told.compared_in_parts.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Ok(_) if haul_mutant::removed("ftp-parts-are-compared") => Ok(()),
            Ok(compared) if self.note_compared(&compared) => {
                going.may_be_right = true;
                let why = format!(
                    "the server makes no {} of parts of a file that is that of what was sent: it is sent again, and compared as a whole",
                    sum.name()
                );
                Err(self.common.say(FailureKind::Digest, &going.path, &why))
            }
            // It made some before.
            Ok(Compared::Unknown) => self.not_compared(going),
            Ok(Compared::Other) => Err(self.other_sum(going, sum)),
            Err(error) => Err(self.common.failure(FailureKind::Publish, &going.path, &error)),
        };
    }
}

/// A letter in the other case.
fn turned(byte: u8) -> u8 {
    match byte.is_ascii_lowercase() {
        true => byte.to_ascii_uppercase(),
        false => byte.to_ascii_lowercase(),
    }
}
