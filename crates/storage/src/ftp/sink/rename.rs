//! Files get their names by a rename, which is not always what a server says that it was.
//!
//! In: files that were compared, and what stands at their names. Out: what became of each.
//! Invariants: what stands at a name is looked at directly before each rename; where a server does not
//! replace, it gets another name first, and its own back if the new file does not get it; what was not heard
//! of is looked at.

use haul_core::reliability::Step;
use haul_core::wire::{Failure, FailureKind};
use haul_ftp::{Asked, Error, Facts};

use super::compare::the_one;
use super::publish::Going;
use super::seen_of;
use super::summed::Compared;
use super::writer::Writer;
use crate::ftp::line::Attempts;
use crate::sink::names::temp_name;

impl Writer {
    pub(super) fn rename(&mut self, all: &mut [Going<'_>]) {
        let names: Vec<(&[u8], &[u8])> = all
            .iter()
            .filter(|going| going.goes())
            .map(|going| (going.temp.as_slice(), going.path.as_slice()))
            .collect();
        let Some((_, first)) = names.first() else { return };
        if self.renames_none() {
            for going in all.iter_mut().filter(|going| going.goes()) {
                let why = "it was not renamed, for the server renames none";
                going.result = Err(self.common.say(FailureKind::Publish, &going.path, why));
            }
            return;
        }
        self.begins("rename", first);
        let mut open: Vec<usize> = (0..all.len()).filter(|at| all[*at].goes()).collect();
        let mut tries = Attempts::new(Step::List);
        while !open.is_empty() {
            let names: Vec<(&[u8], &[u8])> =
                open.iter().map(|at| (all[*at].temp.as_slice(), all[*at].path.as_slice())).collect();
            let renamed = match self.line.open().and_then(|session| session.rename(&names)) {
                Ok(renamed) => renamed,
                Err(error) => {
                    self.line.close();
                    for at in open {
                        all[at].result = self.rename_unheard(&all[at], &error);
                    }
                    return;
                }
            };
            let mut later = Vec::new();
            for (at, renamed) in open.into_iter().zip(renamed) {
                self.note_rename(&all[at], &renamed);
                match renamed {
                    Ok(()) => {}
                    Err(error) if error.is_for_later() => later.push((at, error)),
                    Err(error) => all[at].result = self.rename_refused(&all[at], error),
                }
            }
            let pause = later
                .first()
                .and_then(|(at, error)| self.common.retry.failed(&mut tries, error, &all[*at].path, 0));
            let is_over = !pause.is_some_and(|pause| self.common.retry.wait(pause));
            open = Vec::new();
            for (at, error) in later {
                // Directly before each rename.
                let looked = if is_over {
                    self.rename_refused(&all[at], error)
                } else {
                    self.look_once_more(&all[at], false).inspect(|()| open.push(at))
                };
                all[at].result = looked;
            }
        }
    }

    /// The session was lost before the server said what became of it: that is looked at.
    fn rename_unheard(&mut self, going: &Going<'_>, error: &Error) -> Result<(), Failure> {
        let failed = |writer: &Writer, error: &Error| {
            let failure = writer.common.failure(FailureKind::Publish, &going.path, error);
            // It may have its name: to send it again could replace what is right.
            Err(Failure { kind: FailureKind::Publish, ..failure })
        };
        let paths = [going.temp.as_slice(), going.path.as_slice()];
        let asked = match self.line.facts_of(&paths) {
            Ok(asked) => asked,
            Err(error) => return failed(self, &error),
        };
        match &asked[..] {
            [Asked::Is(_), asked] => {
                self.hold_against_found(going, asked)?;
                let pair = [(going.temp.as_slice(), going.path.as_slice())];
                match self.line.open().and_then(|session| session.rename(&pair)) {
                    Ok(mut renamed) => match renamed.pop() {
                        Some(Err(error)) => self.rename_refused(going, error),
                        _ => Ok(()),
                    },
                    Err(error) => failed(self, &error),
                }
            }
            [Asked::Not(_), Asked::Is(facts)]
                if facts.size == Some(going.publish.file.size) && self.is_what_was_sent(going, facts) =>
            {
                Ok(())
            }
            _ => failed(self, error),
        }
    }

    /// The server does not rename it. Where something stands at the name, it may be that it replaces nothing:
    /// then that is renamed first, and has its name again unless the new file has it.
    fn rename_refused(&mut self, going: &Going<'_>, error: Error) -> Result<(), Failure> {
        let failed = |writer: &Writer, error: &Error| {
            Err(writer.common.failure(FailureKind::Publish, &going.path, error))
        };
        if !going.stands || error.ends_session() {
            return failed(self, &error);
        }
        let file = &going.publish.file;
        // No file's number is so large.
        let aside = temp_name(&file.name, self.common.tag, u64::MAX - self.common.number());
        let aside = self.common.tree.path(file.parent, &aside);
        let one = |writer: &mut Writer, from: &[u8], to: &[u8]| {
            let renamed = writer.line.open().and_then(|session| session.rename(&[(from, to)]))?;
            renamed.into_iter().next().unwrap_or(Ok(()))
        };
        self.look_once_more(going, false)?;
        if let Err(error) = one(self, &going.path, &aside) {
            return failed(self, &error);
        }
        let of =
            |writer: &Writer, error: &Error| writer.common.failure(FailureKind::Publish, &going.path, error);
        let placed = self
            .look_once_more(going, true)
            .and_then(|()| one(self, &going.temp, &going.path).map_err(|error| of(self, &error)));
        let Err(failure) = placed else {
            let removed = self.line.again(|session| session.remove(&[&aside]));
            if !removed.is_ok_and(|all| all.iter().all(Result::is_ok)) {
                self.common.leave(aside);
            }
            return Ok(());
        };
        let back = self
            .look_once_more(going, true)
            .and_then(|()| one(self, &aside, &going.path).map_err(|error| of(self, &error)));
        match back {
            Ok(()) => Err(failure),
            Err(back) => {
                let kept = crate::ftp::shown(&self.common.server, &aside);
                let why = format!(
                    "it was not renamed ({}), and what stood there is now {kept} ({}); rename it back",
                    failure.text, back.text
                );
                Err(self.common.say(FailureKind::Publish, &going.path, &why))
            }
        }
    }

    /// What stands at the name is the new file, and not what was found there. Where its facts are the same,
    /// its sum says so; or, where the server makes none and has no name of its own for what it holds, that
    /// the file has its old name no more. A server that sets no times shows the same of two files of one size
    /// that came within a second.
    pub(super) fn is_new(&mut self, going: &Going<'_>, facts: &Facts) -> bool {
        if going.seen != Some(seen_of(facts)) {
            return true;
        }
        match self.hold_sum_at_name(going) {
            Ok(Compared::Alike) => return true,
            Ok(Compared::Other) => return false,
            Ok(Compared::Unknown) | Err(_) => {}
        }
        let time = facts.modify.map(|told| told.secs);
        facts.unique.is_none()
            && (!going.kept.1 || time == Some(going.publish.meta.mtime.secs))
            && self.line.facts(&going.temp).is_ok_and(|asked| matches!(asked, Asked::Not(_)))
    }

    /// What stands at the name is the file that was sent: by its sum where the server makes one; else by the
    /// name that the server has for it (`Unique`), which stays in a rename; else by the time that was set.
    /// That the name it had before is gone proves nothing: whoever removed that may have put something else
    /// here.
    fn is_what_was_sent(&mut self, going: &Going<'_>, facts: &Facts) -> bool {
        if haul_mutant::removed("ftp-unheard-renames-are-proved") {
            return self.is_new(going, facts);
        }
        match self.hold_sum_at_name(going) {
            Ok(Compared::Alike) => return true,
            Ok(Compared::Unknown) => {}
            Ok(Compared::Other) | Err(_) => return false,
        }
        match (&going.unique, &facts.unique) {
            (Some(sent), Some(there)) => sent == there,
            _ => {
                let time = facts.modify.map(|told| told.secs);
                going.kept.1 && time == Some(going.publish.meta.mtime.secs) && self.is_new(going, facts)
            }
        }
    }

    /// Holds the sum of what stands at a name against that of what was sent.
    ///
    /// # Errors
    /// The server makes such sums, and does not tell this one.
    fn hold_sum_at_name(&mut self, going: &Going<'_>) -> Result<Compared, Error> {
        let (Some(sum), Some(own)) = (self.common.sum, &going.sum) else { return Ok(Compared::Unknown) };
        let size = going.publish.file.size;
        let Some(whole) = own.whole() else { return self.compare_parts(&going.path, size, own) };
        let file = [(going.path.as_slice(), size)];
        let told = self.line.again(|session| session.sums(sum, &file).and_then(the_one));
        match told {
            Ok(told) if told == *whole => Ok(Compared::Alike),
            Ok(_) => Ok(Compared::Other),
            Err(error) if error.is_unknown() => Ok(Compared::Unknown),
            Err(error) => Err(error),
        }
    }
}
