//! Files get their names by a rename, which is not always what a server says that it was.
//!
//! In: files that were compared, and what stands at their names. Out: what became of each.
//! Invariants: what stands at a name is looked at directly before each rename; where a server does not
//! replace, it gets another name first, and its own back if the new file does not get it; what was not heard
//! of is looked at.

use haul_core::wire::{Failure, FailureKind};
use haul_ftp::{Asked, Error, Facts};

use super::publish::Going;
use super::seen_of;
use super::summed::Compared;
use super::writer::Writer;
use crate::sink::names::temp_name;

impl Writer {
    pub(super) fn rename(&mut self, all: &mut [Going<'_>]) {
        let names: Vec<(&[u8], &[u8])> = all
            .iter()
            .filter(|going| going.goes())
            .map(|going| (going.temp.as_slice(), going.path.as_slice()))
            .collect();
        let Some((_, first)) = names.first() else { return };
        self.begins("rename", first);
        let renamed = self.line.open().and_then(|session| session.rename(&names));
        match renamed {
            Ok(renamed) => {
                let mut renamed = renamed.into_iter();
                for going in all.iter_mut().filter(|going| going.goes()) {
                    if let Some(Err(error)) = renamed.next() {
                        going.result = self.rename_refused(going, error);
                    }
                }
            }
            Err(error) => {
                self.line.close();
                for going in all.iter_mut().filter(|going| going.goes()) {
                    going.result = self.rename_unheard(going, &error);
                }
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
        let asked = match self.line.again(|session| session.facts_of(&paths)) {
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
            // It has its name, if that is not what stood there.
            [Asked::Not(_), Asked::Is(facts)]
                if facts.size == Some(going.publish.file.size) && self.is_new(going, facts) =>
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
    /// the file has its old name no more.
    pub(super) fn is_new(&mut self, going: &Going<'_>, facts: &Facts) -> bool {
        if going.seen != Some(seen_of(facts)) {
            return true;
        }
        if let (Some(sum), Some(own)) = (self.common.sum, &going.sum) {
            let size = going.publish.file.size;
            let alike = match own.whole() {
                Some(own) => {
                    let file = [(going.path.as_slice(), size)];
                    let told = self.ask_sums(|session| session.sums(sum, &file));
                    told.ok().and_then(|mut all| all.pop()?.ok()).map(|told| told == *own)
                }
                None => match self.compare_parts(&going.path, size, own) {
                    Ok(Compared::Alike) => Some(true),
                    Ok(Compared::Other) => Some(false),
                    Ok(Compared::Unknown) | Err(_) => None,
                },
            };
            if let Some(alike) = alike {
                return alike;
            }
        }
        let time = facts.modify.map(|told| told.secs);
        facts.unique.is_none()
            && going.kept.1
            && time == Some(going.publish.meta.mtime.secs)
            && self
                .line
                .again(|session| session.facts(&going.temp))
                .is_ok_and(|asked| matches!(asked, Asked::Not(_)))
    }
}
