//! Directories at a server: made where they are not there, and given their times at the end.
//!
//! In: directories as they are announced. Out: what became of each.
//! Invariants: nothing is made in a directory before it is known to be the right one; nothing is written
//! through a symbolic link; of what is there the server's word that it made it is not believed.

use std::collections::HashSet;

use haul_core::change::Change;
use haul_core::entry::Meta;
use haul_core::ids::DirId;
use haul_core::wire::{Failure, FailureKind};
use haul_ftp::{Asked, Error, steer};

use super::stood_of;
use super::tree::{Known, check};
use super::writer::Writer;
use crate::ftp::{is_dir, is_doubted, is_listed};

impl Writer {
    /// Makes sure that a directory is there, and those above it.
    pub(super) fn ensure(&mut self, dir: DirId) -> Result<(), Failure> {
        let unknown = self.common.tree.unknown(dir);
        if unknown.is_empty() {
            return Ok(());
        }
        let results = self.make_dirs(unknown);
        results.into_iter().try_for_each(|(_, result)| result)
    }

    pub(super) fn make_dirs(&mut self, dirs: Vec<DirId>) -> Vec<(DirId, Result<(), Failure>)> {
        // Each with those above it, once, the outermost first.
        let mut all: Vec<DirId> = Vec::new();
        for dir in &dirs {
            for one in self.common.tree.unknown(*dir) {
                if !all.contains(&one) {
                    all.push(one);
                }
            }
        }
        let mut failed: Vec<(DirId, Failure)> = Vec::new();
        let mut open: Vec<(DirId, Vec<u8>)> = Vec::new();
        for dir in all {
            let path = self.common.tree.dir(dir);
            let name = self.common.tree.name(dir);
            match name.map_or(Ok(()), |name| check(&self.common.server, &path, (&name, self.common.drops))) {
                Ok(()) => open.push((dir, path)),
                Err(failure) => failed.push((dir, failure)),
            }
        }
        // Nothing is made in a directory before it is known to be the right one.
        while !open.is_empty() {
            let ids: HashSet<DirId> = open.iter().map(|(dir, _)| *dir).collect();
            let tree = &self.common.tree;
            let (later, now): (Vec<_>, Vec<_>) =
                open.into_iter().partition(|(dir, _)| ids.contains(&tree.parent(*dir)));
            let mut level = Vec::new();
            for (dir, path) in now {
                let above = tree.parent(dir);
                match failed.iter().find(|(other, _)| *other == above) {
                    Some((_, failure)) => failed.push((dir, failure.clone())),
                    None => level.push((dir, path)),
                }
            }
            self.make_level(&level, &mut failed);
            open = later;
        }
        let result = |dir: DirId| {
            let above = |(other, _): &&(DirId, Failure)| *other == dir;
            (dir, failed.iter().find(above).map_or(Ok(()), |(_, failure)| Err(failure.clone())))
        };
        dirs.into_iter().map(result).collect()
    }

    /// Makes directories of which none lies in another one, where they are not there.
    fn make_level(&mut self, level: &[(DirId, Vec<u8>)], failed: &mut Vec<(DirId, Failure)>) {
        let Some((_, first)) = level.first() else { return };
        self.begins("mkdir", first);
        let common = self.common.clone();
        let (mut known, mut seen) = (Vec::new(), Vec::new());
        let (looked, mut missing): (Vec<_>, Vec<_>) =
            level.iter().partition(|(dir, _)| !common.tree.was_made(common.tree.parent(*dir)));
        let fail = |failed: &mut Vec<(DirId, Failure)>, all: &[&(DirId, Vec<u8>)], error: &Error| {
            let one = |one: &&(DirId, Vec<u8>)| (one.0, common.failure(FailureKind::Create, &one.1, error));
            failed.extend(all.iter().map(one));
        };
        let mut unsure = HashSet::new();
        if !looked.is_empty() {
            // There are servers that say of what is there that they made it.
            let paths: Vec<&[u8]> = looked.iter().map(|(_, path)| path.as_slice()).collect();
            match self.line.facts_of(&paths) {
                Err(error) => return fail(failed, &level.iter().collect::<Vec<_>>(), &error),
                Ok(asked) => {
                    for (one, asked) in looked.into_iter().zip(asked) {
                        match asked {
                            Asked::Is(facts) => seen.push((one, facts)),
                            Asked::Not(_) => missing.push(one),
                            Asked::Untold(_) => {
                                unsure.insert(one.0);
                                missing.push(one);
                            }
                        }
                    }
                }
            }
        }
        let paths: Vec<&[u8]> = missing.iter().map(|(_, path)| path.as_slice()).collect();
        let mut refused = Vec::new();
        if !missing.is_empty() {
            let made = self.line.again_of_each(paths.len(), |session, open| {
                let some: Vec<&[u8]> = open.iter().map(|at| paths[*at]).collect();
                session.make_dirs(&some)
            });
            match made {
                Err(error) => fail(failed, &missing, &error),
                Ok(made) => {
                    for (one, made) in missing.iter().zip(made) {
                        match made {
                            Ok(()) if unsure.contains(&one.0) => {
                                known.push((*one, Known::Stood(Box::default())));
                            }
                            Ok(()) => known.push((*one, Known::Made)),
                            Err(error) => refused.push((*one, error)),
                        }
                    }
                }
            }
        }
        if !refused.is_empty() {
            let paths: Vec<&[u8]> = refused.iter().map(|((_, path), _)| path.as_slice()).collect();
            match self.line.facts_of(&paths) {
                Err(error) => fail(failed, &refused.iter().map(|(one, _)| *one).collect::<Vec<_>>(), &error),
                Ok(asked) => {
                    for ((one, error), asked) in refused.iter().zip(asked) {
                        match asked {
                            Asked::Is(facts) => seen.push((*one, facts)),
                            Asked::Not(_) | Asked::Untold(_) => fail(failed, &[*one], error),
                        }
                    }
                }
            }
        }
        for ((dir, path), facts) in seen {
            let why = match () {
                () if is_dir(&facts) => {
                    known.push((level.iter().find(|one| one.0 == *dir).expect("one of them"), {
                        Known::Stood(Box::new(facts))
                    }));
                    continue;
                }
                () if facts.is_symlink() => steer::LINK_STANDS,
                () => "something that is no directory stands there",
            };
            failed.push((*dir, common.say(FailureKind::Create, path, why)));
        }
        for ((dir, path), known) in known {
            let is_right = self.leads_there(*dir, path).and_then(|()| match &known {
                Known::Stood(facts) => self.is_no_link(*dir, path, facts),
                Known::Made | Known::Nothing => Ok(()),
            });
            match is_right {
                Ok(()) => common.tree.learn(*dir, known),
                Err(failure) => failed.push((*dir, failure)),
            }
        }
    }

    /// A directory whose name some servers take for that of another one is in the directory that it should be
    /// in, under that very name.
    fn leads_there(&mut self, dir: DirId, path: &[u8]) -> Result<(), Failure> {
        let common = self.common.clone();
        let is_folded = common.tree.is_folded(dir);
        let Some(name) = common.tree.name(dir).filter(|name| is_folded || is_doubted(name.as_bytes())) else {
            return Ok(());
        };
        let above = common.tree.dir(common.tree.parent(dir));
        let asked = self.line.again(|session| Ok((session.list(&above)?, session.facts(path)?)));
        let why = match asked {
            Ok((listed, Asked::Is(facts))) if is_listed(&listed, name.as_bytes(), &facts) => return Ok(()),
            Ok(_) if is_folded => {
                "the server takes its name for that of another directory of this copy, for it makes no difference between \
                 large and small letters: it was left out"
            }
            Ok(_) => {
                "the server does not list it under that name, and may have made, or show, another one; give it a name of \
                 plain letters"
            }
            Err(error) => return Err(common.failure(FailureKind::Create, path, &error)),
        };
        Err(common.say(FailureKind::Create, path, why))
    }

    pub(super) fn finish_dirs(&mut self, dirs: Vec<(DirId, Meta)>) -> Vec<(DirId, Result<Change, Failure>)> {
        let mut results = Vec::new();
        for (dir, meta) in &dirs {
            let result = self.ensure(*dir).map(|()| match self.common.tree.known(*dir) {
                Known::Stood(facts) => Change::of_dir(&stood_of(&facts), meta, false),
                Known::Made | Known::Nothing => Change::NEW,
            });
            results.push((*dir, result));
        }
        let good = |(at, (dir, meta)): (usize, &(DirId, Meta))| {
            results[at].1.is_ok().then(|| (self.common.tree.dir(*dir), *meta))
        };
        let good: Vec<(Vec<u8>, Meta)> = dirs.iter().enumerate().filter_map(good).collect();
        for (mode, time) in self.set_metadata(&good) {
            self.count_lost(mode, time);
        }
        results
    }
}
