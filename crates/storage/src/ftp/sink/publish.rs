//! How files get their names: compared with what the server has of them, and renamed.
//!
//! In: files that were sent whole. Out: what became of each. Several are asked about together, so that a file
//! costs a part of a round trip.
//! Invariants: no file is renamed whose length, as the server tells it, is not the one that was sent, nor one
//! whose sum differs; nothing is replaced but what was found at the name; where a server does not replace,
//! what stands there gets another name first, and its own back if the new file does not get it.

use std::collections::HashSet;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use haul_core::entry::Meta;
use haul_core::transfer::op::{Existing, Publish, Seen};
use haul_core::wire::{Failure, FailureKind};
use haul_ftp::{Asked, Error, Facts, Listed};
use rustix::io::Errno;

use super::existing_of;
use super::queues::{Temp, TempState};
use super::writer::Writer;
use crate::sink::names::temp_name;
use haul_base::digest;

/// A file on its way to its name.
struct Going<'a> {
    publish: &'a Publish,
    path: Vec<u8>,
    temp: Vec<u8>,
    sum: Option<Vec<u8>>,
    /// What stands at the name.
    stands: bool,
    /// The server said that it set its mode, and its time.
    kept: (bool, bool),
    result: Result<(), Failure>,
}

impl Going<'_> {
    fn goes(&self) -> bool {
        self.result.is_ok()
    }
}

impl Writer {
    pub(super) fn publish(&mut self, all: &[&Publish]) -> Vec<Result<(), Failure>> {
        let mut going: Vec<Going<'_>> = all.iter().map(|publish| self.begin_publish(publish)).collect();
        self.hold_against_server(&mut going);
        self.hold_against_sums(&mut going);
        self.read_back(&mut going);
        self.hold_against_names(&mut going);
        let of = |going: &Going<'_>| (going.temp.clone(), going.publish.meta);
        let metadata: Vec<(Vec<u8>, Meta)> = going.iter().filter(|going| going.goes()).map(of).collect();
        let mut kept = self.set_metadata(&metadata).into_iter();
        for going in going.iter_mut().filter(|going| going.goes()) {
            going.kept = kept.next().unwrap_or((false, false));
        }
        self.rename(&mut going);
        self.look_again(&mut going);
        for going in going.iter().filter(|going| going.goes()) {
            self.common.temps().remove(&going.publish.file.id);
        }
        going.into_iter().map(|going| going.result).collect()
    }

    fn begin_publish<'a>(&self, publish: &'a Publish) -> Going<'a> {
        let path = self.common.path(&publish.file);
        let lost = || Err(self.common.say(FailureKind::Publish, &path, "it was not sent whole"));
        let (temp, sum, result) = match self.common.temp(publish.file.id) {
            Some(Temp { path, state: TempState::Stored(sum) }) => (path, sum, Ok(())),
            Some(Temp { path, state: TempState::Failed(failure) }) => (path, None, Err(failure)),
            _ => (Vec::new(), None, lost()),
        };
        Going { publish, path, temp, sum, stands: false, kept: (false, false), result }
    }

    /// The length of each file is the one that was sent, and what stands at its name is what was found there.
    fn hold_against_server(&mut self, all: &mut [Going<'_>]) {
        let mut paths: Vec<&[u8]> = all
            .iter()
            .filter(|going| going.goes())
            .flat_map(|going| [&going.temp[..], &going.path])
            .collect();
        let Some(first) = paths.first().map(|path| path.to_vec()) else { return };
        self.begins("look", &first);
        // Whether the server takes names that differ in case alone for one: asked once.
        let turned: Vec<u8> = first.iter().map(|byte| turned(*byte)).collect();
        let asks = self.common.told.folds.lock().unwrap_or_else(PoisonError::into_inner).is_none();
        let slash = first.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        let turned = [&first[..slash], &turned[slash..]].concat();
        if asks {
            paths.push(&turned);
        }
        let asked = self.line.again(|session| session.facts_of(&paths));
        let common = self.common.clone();
        let mut asked = match asked {
            Ok(asked) => asked.into_iter(),
            Err(error) => {
                for going in all.iter_mut().filter(|going| going.goes()) {
                    going.result = Err(common.failure(FailureKind::Publish, &going.path, &error));
                }
                return;
            }
        };
        for going in all.iter_mut().filter(|going| going.goes()) {
            let (temp, name) = (asked.next(), asked.next());
            let size = going.publish.file.size;
            let say = |kind, why: &str| Err(common.say(kind, &going.path, why));
            going.result = match temp {
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
            if !going.goes() {
                continue;
            }
            let (existing, seen) = name.as_ref().map_or((Existing::Nothing, None), existing_of);
            going.stands = existing != Existing::Nothing;
            let exists = |why: &str| {
                let errno = Errno::EXIST.raw_os_error();
                Err(Failure { errno, ..common.say(FailureKind::Publish, &going.path, why) })
            };
            going.result = match existing {
                Existing::Dir => exists("a directory stands there; nothing was removed"),
                _ if going.stands && going.publish.no_replace => {
                    exists("something came to stand there; nothing was replaced")
                }
                _ if going.stands
                    && !is_what_was_found(going.publish.found, seen)
                    && !haul_mutant::removed("ftp-replaces-what-was-found") =>
                {
                    exists(
                        "something else came to stand there while it was copied, and was left alone; run the command again",
                    )
                }
                _ => Ok(()),
            };
        }
        if asks && let Some(asked) = asked.next() {
            let folds = matches!(asked, Asked::Is(_));
            *common.told.folds.lock().unwrap_or_else(PoisonError::into_inner) = Some(folds);
        }
        self.refuse_folded(all);
    }

    /// Two names that are one to the server are not both copied there.
    fn refuse_folded(&self, all: &mut [Going<'_>]) {
        let told = &self.common.told;
        if *told.folds.lock().unwrap_or_else(PoisonError::into_inner) != Some(true) {
            return;
        }
        let mut names = told.folded.lock().unwrap_or_else(PoisonError::into_inner);
        for going in all.iter_mut().filter(|going| going.goes()) {
            let file = &going.publish.file;
            let name = (file.parent, file.name.as_bytes().to_ascii_lowercase());
            if *names.entry(name).or_insert(file.id) != file.id {
                let why = "the server takes its name for that of another file of this copy, for it makes no difference between \
                           large and small letters: it was left out";
                going.result = Err(self.common.say(FailureKind::Publish, &going.path, why));
            }
        }
    }

    /// The sum of what the server has is that of what was sent.
    fn hold_against_sums(&mut self, all: &mut [Going<'_>]) {
        let Some(sum) = self.common.sum else { return };
        let files: Vec<(&[u8], u64)> = all
            .iter()
            .filter(|going| going.goes() && going.sum.is_some())
            .map(|going| (going.temp.as_slice(), going.publish.file.size))
            .collect();
        if files.is_empty() || self.common.told.no_sum.load(Ordering::Relaxed) {
            return;
        }
        self.begins("sum", files[0].0);
        let sums = self.line.again(|session| session.sums(sum, &files));
        let common = self.common.clone();
        let sums = sums.map(Vec::into_iter);
        let mut sums = match sums {
            Ok(sums) => sums,
            Err(error) => {
                for going in all.iter_mut().filter(|going| going.goes()) {
                    going.result = Err(common.failure(FailureKind::Publish, &going.path, &error));
                }
                return;
            }
        };
        for going in all.iter_mut().filter(|going| going.goes() && going.sum.is_some()) {
            going.result = match sums.next() {
                Some(Ok(told))
                    if Some(&told) == going.sum.as_ref() || haul_mutant::removed("ftp-sums-are-compared") =>
                {
                    common.told.compared.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                }
                Some(Ok(_)) => {
                    let why =
                        format!("the {} of what the server keeps is not that of what was sent", sum.name());
                    Err(common.say(FailureKind::Digest, &going.path, &why))
                }
                Some(Err(error)) if error.is_unknown() => {
                    common.told.no_sum.store(true, Ordering::Relaxed);
                    Ok(())
                }
                Some(Err(error)) => Err(common.failure(FailureKind::Publish, &going.path, &error)),
                None => Ok(()),
            };
        }
    }

    /// What the server gives back has the digest that it must have, where somebody wants that.
    fn read_back(&mut self, all: &mut [Going<'_>]) {
        for going in all.iter_mut().filter(|going| going.goes()) {
            let Some((kind, root)) = going.publish.verify else { continue };
            self.begins("read back", &going.temp);
            let temp = &going.temp;
            let mut buffer = vec![0; 256 * 1024];
            let read = self.line.again(|session| {
                let mut incoming = session.begin(temp, 0)?;
                let mut hasher = digest::Hasher::new(kind, 0);
                loop {
                    match incoming.read(&mut buffer)? {
                        0 => break,
                        len => hasher.update(&buffer[..len]),
                    }
                }
                session.finish(incoming, temp)?;
                Ok(hasher.root())
            });
            going.result = match read {
                Ok(read) if read == root => Ok(()),
                Ok(_) => {
                    let why = "what the server gives back is not what was sent";
                    Err(self.common.say(FailureKind::Digest, &going.path, why))
                }
                Err(error) => Err(self.common.failure(FailureKind::Digest, &going.path, &error)),
            };
        }
    }

    /// The server keeps names as they are said: of bytes that some servers drop or change that is looked at.
    fn hold_against_names(&mut self, all: &mut [Going<'_>]) {
        let doubted = |going: &Going<'_>| {
            let kept = self.common.told.kept_bytes.lock().unwrap_or_else(PoisonError::into_inner);
            let name = going.publish.file.name.as_bytes();
            let odd = |byte: &u8| !(byte.is_ascii_graphic() || *byte == b' ' || kept.contains(byte));
            name.starts_with(b"..") || name.iter().any(odd)
        };
        let doubted: Vec<usize> = all
            .iter()
            .enumerate()
            .filter(|(_, going)| going.goes() && doubted(going))
            .map(|(at, _)| at)
            .collect();
        let mut listed: Vec<(Vec<u8>, Result<HashSet<Vec<u8>>, Error>)> = Vec::new();
        for at in doubted {
            let going = &mut all[at];
            let file = &going.publish.file;
            let dir = self.common.tree.dir(file.parent);
            if listed.iter().all(|(other, _)| *other != dir) {
                let names = self.line.again(|session| session.list(&dir)).map(|lines| {
                    let name = |line: Listed| match line {
                        Listed::Entry { name, .. } => Some(name),
                        _ => None,
                    };
                    lines.into_iter().filter_map(name).collect()
                });
                listed.push((dir.clone(), names));
            }
            let Some((_, names)) = listed.iter().find(|(other, _)| *other == dir) else { continue };
            let temp = going.temp.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            going.result = match names {
                Ok(names) if names.contains(temp) => {
                    let mut kept = self.common.told.kept_bytes.lock().unwrap_or_else(PoisonError::into_inner);
                    kept.extend(temp);
                    Ok(())
                }
                Ok(_) => {
                    let why = "the server keeps it under another name than it was told; give it a name of plain letters";
                    Err(self.common.say(FailureKind::Create, &going.path, why))
                }
                Err(error) => Err(self.common.failure(FailureKind::Create, &going.path, error)),
            };
        }
    }

    fn rename(&mut self, all: &mut [Going<'_>]) {
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
            [Asked::Is(_), _] => {
                let pair = [(going.temp.as_slice(), going.path.as_slice())];
                match self.line.open().and_then(|session| session.rename(&pair)) {
                    Ok(mut renamed) => match renamed.pop() {
                        Some(Err(error)) => self.rename_refused(going, error),
                        _ => Ok(()),
                    },
                    Err(error) => failed(self, &error),
                }
            }
            // It has its name, if that is of its length; the next look says so.
            [_, Asked::Is(facts)] if facts.size == Some(going.publish.file.size) => Ok(()),
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
        if let Err(error) = one(self, &going.path, &aside) {
            return failed(self, &error);
        }
        let Err(error) = one(self, &going.temp, &going.path) else {
            let removed = self.line.again(|session| session.remove(&[&aside]));
            if !removed.is_ok_and(|all| all.iter().all(Result::is_ok)) {
                self.common.leave(aside);
            }
            return Ok(());
        };
        match one(self, &aside, &going.path) {
            Ok(()) => failed(self, &error),
            Err(back) => {
                let kept = crate::ftp::shown(&self.common.server, &aside);
                let why = format!(
                    "it was not renamed ({error}), and what stood there is now {kept} ({back}); rename it back"
                );
                Err(self.common.say(FailureKind::Publish, &going.path, &why))
            }
        }
    }

    /// What stands at the name now is of the right length; whether its time was kept is counted.
    fn look_again(&mut self, all: &mut [Going<'_>]) {
        let paths: Vec<&[u8]> =
            all.iter().filter(|going| going.goes()).map(|going| going.path.as_slice()).collect();
        let Some(first) = paths.first() else { return };
        self.begins("look", first);
        let asked = self.line.again(|session| session.facts_of(&paths));
        let common = self.common.clone();
        let Ok(asked) = asked else {
            // The server said that it has its name. Nothing more is known.
            return;
        };
        for (going, asked) in all.iter_mut().filter(|going| going.goes()).zip(asked) {
            let size = going.publish.file.size;
            let (mut mode, mut time) = going.kept;
            if let Asked::Is(facts) = &asked {
                // What it tells counts, whatever it said before.
                mode =
                    facts.unix_mode.map_or(mode, |told| told & 0o7777 == self.mode_of(&going.publish.meta));
                let wanted = going.publish.meta.mtime.secs;
                time = facts.modify.map_or(time, |told| told.secs == wanted);
            }
            self.count_lost(mode, time);
            let say = |why: &str| Err(common.say(FailureKind::Publish, &going.path, why));
            going.result = match asked {
                Asked::Is(facts) if facts.size.is_some_and(|told| told != size) => say(&format!(
                    "it was renamed, and the server has {} of {size} bytes of it",
                    facts.size.unwrap_or(0)
                )),
                Asked::Not(text) => say(&format!("it was renamed, and the server does not have it: {text}")),
                Asked::Is(_) | Asked::Untold(_) => Ok(()),
            };
        }
    }
}

/// What stands at a name is what the look found there.
fn is_what_was_found(found: Option<Seen>, stands: Option<Seen>) -> bool {
    match (found, stands) {
        (Some(found), Some(stands)) => found == stands,
        (found, None) => found.is_none(),
        (None, Some(_)) => false,
    }
}

/// A letter in the other case.
fn turned(byte: u8) -> u8 {
    match byte.is_ascii_lowercase() {
        true => byte.to_ascii_uppercase(),
        false => byte.to_ascii_lowercase(),
    }
}
