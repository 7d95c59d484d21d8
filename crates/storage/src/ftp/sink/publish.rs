//! How files get their names: compared with what the server has of them, and renamed.
//!
//! In: files that were sent whole. Out: what became of each. Several are asked about together, so that a file
//! costs a part of a round trip.
//! Invariants: no file is renamed whose length, as the server tells it, is not the one that was sent, nor one
//! whose sum differs; nothing is replaced but what was found at the name; where a server does not replace,
//! what stands there gets another name first, and its own back if the new file does not get it. What stands
//! at a name is looked at directly before each rename, and what it shows afterwards is not what stood there.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use haul_core::entry::{Meta, Name};
use haul_core::ids::{DirId, FileId};
use haul_core::transfer::op::{Existing, Publish, Seen};
use haul_core::wire::{Failure, FailureKind};
use haul_ftp::{Asked, Error, Kind};
use rustix::io::Errno;

use super::queues::{Given, Temp, TempState};
use super::shown::Shown;
use super::sums::Sums;
use super::writer::Writer;
use super::{existing_of, seen_of};
use crate::ftp::begun::Span;
use crate::ftp::pair::fold::key;
use crate::ftp::{folded, says_gone, shown};
use haul_base::digest;

const ONE_TO_THE_SERVER: &str = "the server takes its name for that of another file of this copy, and keeps one of them: give one of \
                                 them another name";

pub(super) const FOUND_BY_ANOTHER: &str = "the server shows there what it has under another name of this copy (a link, or names that are one to it), and the bytes are \
                                those of one entry at most: give it another name, or remove the link";

/// A file on its way to its name.
pub(super) struct Going<'a> {
    pub(super) publish: &'a Publish,
    pub(super) path: Vec<u8>,
    pub(super) temp: Vec<u8>,
    pub(super) sum: Option<Sums>,
    /// The server's, where it was asked for with its length.
    pub(super) told: Option<Result<Vec<u8>, Error>>,
    /// What the server calls what was sent, where it has names of its own.
    pub(super) unique: Option<Box<[u8]>>,
    /// What stands at the name.
    pub(super) stands: bool,
    pub(super) seen: Option<Seen>,
    /// Whether the directory lists its final name, where that was asked.
    pub(super) listed: Option<bool>,
    /// The server said that it set its mode, and its time.
    pub(super) kept: (bool, bool),
    /// It was compared in a way that the server may not know.
    pub(super) may_be_right: bool,
    pub(super) result: Result<(), Failure>,
}

impl Going<'_> {
    pub(super) fn goes(&self) -> bool {
        self.result.is_ok()
    }
}

impl Writer {
    pub(super) fn publish(&mut self, all: &[&Publish]) -> Vec<Result<(), Failure>> {
        if self.common.in_place.is_some() {
            return self.publish_in_place(all);
        }
        let mut going: Vec<Going<'_>> = all.iter().map(|publish| self.begin_publish(publish)).collect();
        self.hold_lengths(&mut going);
        self.hold_against_sums(&mut going);
        self.read_back(&mut going);
        self.hold_against_names(&mut going);
        let of = |going: &Going<'_>| (going.temp.clone(), going.publish.meta);
        let metadata: Vec<(Vec<u8>, Meta)> = going.iter().filter(|going| going.goes()).map(of).collect();
        let names: Vec<Vec<u8>> =
            going.iter().filter(|going| going.goes()).map(|going| going.path.clone()).collect();
        let (kept, seen) = self.set_metadata_and_look(&metadata, &names);
        let mut kept = kept.into_iter();
        for going in going.iter_mut().filter(|going| going.goes()) {
            going.kept = kept.next().unwrap_or((false, false));
        }
        self.look_at_names(&mut going, seen);
        self.rename(&mut going);
        self.look_again(&mut going);
        for going in &going {
            let id = going.publish.file.id;
            match &going.result {
                Ok(()) => {
                    self.common.temps().remove(&id);
                    self.common.lanes.forget(id);
                    self.common.forget_tries(id);
                    self.common.parts.end(id);
                    self.common.begun.ends(&shown(&self.common.server, &going.path), Span::WHOLE);
                    self.note_unproven(going.publish);
                }
                Err(failure) if failure.kind == FailureKind::Digest => {
                    self.common.again.lost(id, going.publish.file.size, &failure.text);
                    if !going.may_be_right && self.common.temp(id).is_some_and(|temp| temp.in_blocks) {
                        self.common.lanes.spoiled(id, &failure.text);
                    }
                    self.common.set_temp(id, TempState::Failed(failure.clone().into()));
                }
                Err(_) => {}
            }
        }
        going.into_iter().map(|going| going.result).collect()
    }

    /// It is there, and of what it holds the server's word alone is known, if that is so.
    pub(super) fn note_unproven(&self, publish: &Publish) {
        let is_proven = self.common.sum.is_some() || publish.verify.is_some() || publish.file.size == 0;
        self.common.told.reads_back.fetch_or(publish.verify.is_some(), Ordering::Relaxed);
        self.common.told.unproven.fetch_add(u64::from(!is_proven), Ordering::Relaxed);
    }

    fn begin_publish<'a>(&self, publish: &'a Publish) -> Going<'a> {
        let path = self.common.path(&publish.file);
        let lost = || Err(self.common.say(FailureKind::Publish, &path, "it was not sent whole"));
        let (temp, sum, result) = match self.common.temp(publish.file.id) {
            Some(Temp { path, state: TempState::Stored(sum), .. }) => (path, sum, Ok(())),
            Some(Temp { path, state: TempState::Failed(gone), .. }) => (path, None, Err(gone.failure)),
            _ => (Vec::new(), None, lost()),
        };
        Going {
            publish,
            path,
            temp,
            sum,
            told: None,
            unique: None,
            stands: false,
            seen: None,
            listed: None,
            kept: (false, false),
            may_be_right: false,
            result,
        }
    }

    /// What stands at each name is what was found there. Nothing is asked between this and the renames.
    /// `seen`: that was asked for already, the last of all.
    fn look_at_names(&mut self, all: &mut [Going<'_>], seen: Option<Vec<Asked>>) {
        let paths: Vec<&[u8]> =
            all.iter().filter(|going| going.goes()).map(|going| going.path.as_slice()).collect();
        let Some(first) = paths.first() else { return };
        self.begins("look", first);
        let asked = match seen {
            Some(seen) => Ok(seen),
            None => self.line.facts_of(&paths),
        };
        let asked = match asked {
            Ok(asked) => asked,
            Err(error) => return self.fail_all(all, &error),
        };
        for (going, asked) in all.iter_mut().filter(|going| going.goes()).zip(asked) {
            match self.hold_against_found(going, &asked) {
                Ok(seen) => (going.stands, going.seen) = (seen.is_some(), seen),
                Err(failure) => going.result = Err(failure),
            }
        }
    }

    /// What stands at the name, if that is what was found there and may be replaced.
    pub(super) fn hold_against_found(
        &mut self,
        going: &Going<'_>,
        asked: &Asked,
    ) -> Result<Option<Seen>, Failure> {
        let Publish { file, no_replace, found, .. } = going.publish;
        let (existing, seen) = self.found_at((file.parent, &file.name), &going.path, asked, *no_replace)?;
        let stands = existing != Existing::Nothing;
        let exists = |why: &str| {
            let errno = Errno::EXIST.raw_os_error();
            Err(Failure { errno, ..self.common.say(FailureKind::Publish, &going.path, why) })
        };
        let given = || {
            let given = self.common.told.given.lock().unwrap_or_else(PoisonError::into_inner);
            let of = given_as(asked).and_then(|key| given.get(&key).copied());
            of.is_some_and(|other| other != file.id) || self.is_found_by_another(file.id, asked)
        };
        match existing {
            Existing::Dir => exists("a directory stands there; nothing was removed"),
            _ if stands && *no_replace => exists("something came to stand there; nothing was replaced"),
            _ if stands
                && !is_what_was_found(*found, seen)
                && !haul_mutant::removed("ftp-replaces-what-was-found") =>
            {
                // Another run finds it there, and replaces it.
                let why = "something else came to stand there while it was copied, and was left alone";
                Err(self.common.say(FailureKind::Publish, &going.path, why))
            }
            _ if stands && going.listed == Some(false) => exists(
                "the server shows there what its directory has under another name; nothing was replaced",
            ),
            _ if stands && given() => exists(ONE_TO_THE_SERVER),
            _ => Ok(seen.filter(|_| stands)),
        }
    }

    /// Another entry found what stands there unchanged.
    fn is_found_by_another(&self, id: FileId, asked: &Asked) -> bool {
        let found = self.common.told.found.lock().unwrap_or_else(PoisonError::into_inner);
        given_as(asked).and_then(|(called, ..)| found.get(&called).copied()).is_some_and(|other| other != id)
    }

    /// What looks unchanged at a name is no other entry's, by what the server calls it, and by its name.
    pub(super) fn is_found_alone(
        &mut self,
        (id, parent, name): (FileId, DirId, &Name),
        path: &[u8],
        (asked, unchanged): (&Asked, bool),
    ) -> Result<(), Failure> {
        let common = self.common.clone();
        if !unchanged || haul_mutant::removed("ftp-found-files-are-one-entrys") {
            return Ok(());
        }
        let failed = || {
            let errno = Errno::NOTUNIQ.raw_os_error();
            Err(Failure { errno, ..common.say(FailureKind::Create, path, FOUND_BY_ANOTHER) })
        };
        if let Some(given) = given_as(asked) {
            let known = common.told.given.lock().unwrap_or_else(PoisonError::into_inner).get(&given).copied();
            let mut found = common.told.found.lock().unwrap_or_else(PoisonError::into_inner);
            let finder = *found.entry(given.0).or_insert(id);
            if finder != id || known.is_some_and(|other| other != id) {
                return failed();
            }
        }
        let bytes = name.as_bytes();
        let alike = |name: &[u8]| key(&[&parent.0.to_le_bytes()[..], name].concat());
        let twins = {
            let mut twins = common.told.twins.lock().unwrap_or_else(PoisonError::into_inner);
            let of = twins.entry(alike(bytes)).or_default();
            of.insert(id);
            of.len()
        };
        if twins > 1 || bytes.ends_with(b".") || bytes.ends_with(b" ") {
            let like =
                |names: &Shown| names.keys().filter(|name| alike(name) == alike(bytes)).take(twins).count();
            return match self.names_in(parent, true) {
                Ok(names) if names.contains_key(bytes) && like(&names) == twins => Ok(()),
                Ok(_) => failed(),
                Err(error) => Err(common.failure(FailureKind::Open, path, &error)),
            };
        }
        Ok(())
    }

    /// The same, asked now. `gone`: nothing may stand there.
    pub(super) fn look_once_more(&mut self, going: &Going<'_>, gone: bool) -> Result<(), Failure> {
        let asked = self.line.facts(&going.path);
        let asked = asked.map_err(|error| self.common.failure(FailureKind::Publish, &going.path, &error))?;
        if !gone {
            return self.hold_against_found(going, &asked).map(drop);
        }
        let file = &going.publish.file;
        match self.found_at((file.parent, &file.name), &going.path, &asked, false)? {
            (Existing::Nothing, _) => Ok(()),
            _ => {
                let why = "something else came to stand there while it was renamed, and was left alone";
                Err(self.common.say(FailureKind::Publish, &going.path, why))
            }
        }
    }

    /// What stands at a name; where the server does not know the question, or `thoroughly` where it says that
    /// there is nothing, or nothing that may be seen, the directory's listing says so.
    pub(super) fn found_at(
        &mut self,
        (parent, name): (DirId, &Name),
        path: &[u8],
        asked: &Asked,
        thoroughly: bool,
    ) -> Result<(Existing, Option<Seen>), Failure> {
        let was_made = self.common.tree.was_made(parent);
        let text = match asked {
            Asked::Is(_) => return Ok(existing_of(asked)),
            Asked::Not(_) if was_made || !thoroughly => return Ok((Existing::Nothing, None)),
            Asked::Not(text) => text,
            Asked::Untold(text) if text.starts_with("50") && was_made => {
                return Ok((Existing::Nothing, None));
            }
            Asked::Untold(text) if text.starts_with("50") => text,
            Asked::Untold(text) => {
                let why =
                    format!("the server does not tell what stands there, and it was left alone: {text}");
                return Err(self.common.say(FailureKind::Open, path, &why));
            }
        };
        match self.names_in(parent, thoroughly) {
            Ok(names) if !names.contains_key(name.as_bytes()) => Ok((Existing::Nothing, None)),
            Err(_) if matches!(asked, Asked::Not(text) if says_gone(text)) => Ok((Existing::Nothing, None)),
            Ok(_) => {
                let why =
                    format!("the server lists something there, and says of it: {text}; nothing was replaced");
                let errno = Errno::EXIST.raw_os_error();
                Err(Failure { errno, ..self.common.say(FailureKind::Open, path, &why) })
            }
            Err(error) => Err(self.common.failure(FailureKind::Open, path, &error)),
        }
    }

    /// Two names that are one to the server are not both copied there.
    pub(super) fn refuse_folded(&self, all: &mut [Going<'_>]) {
        let told = &self.common.told;
        let drops_ends = *told.drops_ends.lock().unwrap_or_else(PoisonError::into_inner) == Some(true);
        for going in all.iter_mut().filter(|going| drops_ends && going.goes() && has_doubted_end(going)) {
            let why =
                "the server takes its name for the one without the blank or dot at its end: it was left out";
            going.result = Err(self.common.say(FailureKind::Publish, &going.path, why));
        }
        let folds = *told.folds.lock().unwrap_or_else(PoisonError::into_inner) == Some(true);
        let mut names = told.folded.lock().unwrap_or_else(PoisonError::into_inner);
        for going in all.iter_mut().filter(|going| folds && going.goes()) {
            let file = &going.publish.file;
            let name = (file.parent, folded(file.name.as_bytes()));
            if *names.entry(name).or_insert(file.id) != file.id {
                let why = "the server takes its name for that of another file of this copy, for it makes no difference between \
                           large and small letters: it was left out";
                going.result = Err(self.common.say(FailureKind::Publish, &going.path, why));
            }
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
            name.starts_with(b"..") || name.iter().any(odd) || has_doubted_end(going)
        };
        let doubted: Vec<usize> = all
            .iter()
            .enumerate()
            .filter(|(_, going)| going.goes() && doubted(going))
            .map(|(at, _)| at)
            .collect();
        let mut listed: Vec<(DirId, Result<Arc<Shown>, Error>)> = Vec::new();
        for at in doubted {
            let dir = all[at].publish.file.parent;
            if listed.iter().all(|(other, _)| *other != dir) {
                listed.push((dir, self.names_in(dir, false)));
            }
            let Some((_, names)) = listed.iter().find(|(other, _)| *other == dir) else { continue };
            let going = &mut all[at];
            if let Ok(names) = names {
                going.listed = Some(names.contains_key(going.publish.file.name.as_bytes()));
            }
            let temp = going.temp.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            going.result = match names {
                Ok(names) if names.contains_key(temp) => {
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

    /// What stands at the name now is of the right length; whether its time was kept is counted.
    fn look_again(&mut self, all: &mut [Going<'_>]) {
        let paths: Vec<&[u8]> =
            all.iter().filter(|going| going.goes()).map(|going| going.path.as_slice()).collect();
        let Some(first) = paths.first() else { return };
        self.begins("look", first);
        let asked = self.line.facts_of(&paths);
        let common = self.common.clone();
        let Ok(asked) = asked else {
            // The server said that it has its name. Nothing more is known.
            return;
        };
        // Names that are one to the server show one file now.
        let mut ones: HashSet<FileId> = HashSet::new();
        {
            let mut given = common.told.given.lock().unwrap_or_else(PoisonError::into_inner);
            let ids: HashSet<FileId> =
                all.iter().filter(|going| going.goes()).map(|going| going.publish.file.id).collect();
            let mut keys = common.told.given_to.lock().unwrap_or_else(PoisonError::into_inner);
            for key in ids.iter().filter_map(|id| keys.remove(id)) {
                given.remove(&key);
            }
            for (going, asked) in all.iter().filter(|going| going.goes()).zip(&asked) {
                let id = going.publish.file.id;
                let Some(key) = given_as(asked) else {
                    common.told.alike.note(id, asked);
                    continue;
                };
                match given.insert(key, id) {
                    Some(other) if other != id => ones.extend([id, other]),
                    _ => drop(keys.insert(id, key)),
                }
            }
        }
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
                _ if ones.contains(&going.publish.file.id) => say(ONE_TO_THE_SERVER),
                Asked::Is(facts) if facts.is_symlink() || !matches!(facts.kind, None | Some(Kind::File)) => {
                    say(
                        "it was renamed, and something that is no file stands there now: the file may lie in it",
                    )
                }
                Asked::Is(facts) if facts.size.is_some_and(|told| told != size) => say(&format!(
                    "it was renamed, and the server has {} of {size} bytes of it",
                    facts.size.unwrap_or(0)
                )),
                Asked::Not(text) => say(&format!("it was renamed, and the server does not have it: {text}")),
                Asked::Is(facts) if !self.is_new(going, &facts) => {
                    say("the server said that it renamed it, and has there what it had before")
                }
                Asked::Is(_) | Asked::Untold(_) if has_doubted_end(going) => {
                    match self.names_in(going.publish.file.parent, false) {
                        Ok(names) if names.contains_key(going.publish.file.name.as_bytes()) => Ok(()),
                        Ok(_) => say("it was renamed, and the server does not list it under that name"),
                        Err(error) => Err(common.failure(FailureKind::Publish, &going.path, &error)),
                    }
                }
                Asked::Is(_) | Asked::Untold(_) => Ok(()),
            };
        }
    }
}

/// What a file is known by that this run gave a name, where the server has a name of its own for it.
fn given_as(asked: &Asked) -> Option<Given> {
    let Asked::Is(facts) = asked else { return None };
    let Seen { inode, size, mtime, .. } = facts.unique.as_ref().map(|_| seen_of(facts))?;
    Some((inode.ino, size, mtime.secs))
}

/// A name with an end that some servers drop.
fn has_doubted_end(going: &Going<'_>) -> bool {
    let name = going.publish.file.name.as_bytes();
    name.ends_with(b" ") || name.ends_with(b".")
}

/// What stands at a name is what the look found there.
fn is_what_was_found(found: Option<Seen>, stands: Option<Seen>) -> bool {
    match (found, stands) {
        (Some(found), Some(stands)) => found == stands,
        (found, None) => found.is_none(),
        (None, Some(_)) => false,
    }
}
