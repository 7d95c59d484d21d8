//! Whose a name in a directory of a volume is: a run's of haul here, or the user's.
//!
//! In: a directory. Out: the jobs that have an entry in it or in one above it, and which names are theirs.
//! Walks leave these out, and who counts a user's files does ([`are_ours`]).
//! What must hold: a form proves nothing. A name is a job's only if an entry of a run says so that was made
//! in the very directory in which it lies: a copy of one, in another directory, is a user's link like any
//! other.
//! Of an upload to `serve gridftp` there is no such entry: its names are known by numbers that nothing else
//! has ([`is_of_upload`]).
//! Left out: what stays behind when such an entry was removed by hand.

use std::collections::HashSet;

use haul_core::entry::{DEPTH_MAX, Name};
use haul_core::volume::catalog::{EntryNo, Failure as Refusal, Kind, ROOT};
use haul_volume::catalog::client::Client as Catalog;

use super::claim::said;
use crate::sink::names::{JobFile, is_of_upload, job_file, may_be_ours, tag_bits};
use crate::sink::{JobKey, tag_of};

/// What all names begin with that haul gives in a job's destination.
const PREFIX: &[u8] = b".haul~";

/// The jobs that may own something in a directory.
#[derive(Default)]
pub(super) struct Jobs {
    /// Of their temporaries, here and below.
    tags: HashSet<u32>,
    /// Those that have an entry in the directory itself.
    keys: HashSet<JobKey>,
}

impl Jobs {
    /// The jobs of `dir` and of the directories above it, if one of these names may be theirs. They are
    /// looked for when the names are known: an entry is there before the first temporary.
    ///
    /// # Errors
    /// The catalog does not say.
    pub(super) fn of_names<'a>(
        catalog: &Catalog,
        dir: EntryNo,
        mut names: impl Iterator<Item = &'a Name>,
    ) -> Result<Option<Jobs>, Refusal> {
        match names.any(|name| may_be_ours(name.as_bytes())) {
            true => Jobs::at(catalog, dir).map(Some),
            false => Ok(None),
        }
    }

    fn at(catalog: &Catalog, dir: EntryNo) -> Result<Jobs, Refusal> {
        let (mut jobs, mut at) = (Jobs::default(), dir);
        for _ in 0..=DEPTH_MAX {
            jobs.add(catalog, at, at == dir)?;
            if at == ROOT {
                break;
            }
            let Some(above) = catalog.stat(at)?.parent.filter(|above| *above != at) else { break };
            at = above;
        }
        Ok(jobs)
    }

    /// Adds the jobs that have an entry in a directory.
    fn add(&mut self, catalog: &Catalog, dir: EntryNo, is_here: bool) -> Result<(), Refusal> {
        let mut after = Name::new(PREFIX).ok();
        loop {
            let (page, more) = catalog.read_dir(dir, after)?;
            after = page.last().map(|(name, _)| name.clone());
            for (name, entry) in page {
                if !name.as_bytes().starts_with(PREFIX) {
                    return Ok(());
                }
                let (Some((key, JobFile::Owner { .. })), Kind::Link(text)) =
                    (job_file(name.as_bytes()), &entry.kind)
                else {
                    continue;
                };
                let Some((tag, Some(made_in))) = said(text) else { continue };
                if made_in != dir && !haul_mutant::removed("volume-jobs-are-of-their-directory") {
                    continue;
                }
                self.tags.insert(tag_bits(tag));
                if is_here {
                    self.keys.insert(key);
                }
            }
            if !more || after.is_none() {
                return Ok(());
            }
        }
    }

    /// Whether a name in the directory is a job's.
    pub(super) fn own(&self, name: &[u8]) -> bool {
        match (tag_of(name), job_file(name)) {
            (Some(tag), _) => self.tags.contains(&tag_bits(tag)),
            (None, Some((key, _))) => self.keys.contains(&key),
            (None, None) => false,
        }
    }
}

/// Which of these names in a directory of a volume are a run's of haul, or an upload's to one of its servers,
/// that is not done, or died, in their order.
///
/// # Errors
/// The catalog does not say.
pub fn are_ours<'a>(
    catalog: &Catalog,
    dir: EntryNo,
    names: impl Iterator<Item = &'a Name> + Clone,
) -> Result<Vec<bool>, Refusal> {
    let jobs = Jobs::of_names(catalog, dir, names.clone())?;
    let owns = |name: &Name| {
        is_of_upload(name.as_bytes()) || jobs.as_ref().is_some_and(|jobs| jobs.own(name.as_bytes()))
    };
    Ok(names.map(owns).collect())
}
