//! Which of what stands at a destination is a symbolic link, where only a listing tells that.
//!
//! In: directories and files that stood there, and what was told under their paths. Out: whether that is of
//! them, or of what a link leads to.
//! Invariants: where the server has no name of its own for a directory (`Unique`) and tells of links by its
//! listings alone, none that stood there is written through before the one above it was listed; two files
//! that look alike are both unchanged only if neither is a link, or has another name. What no listing tells
//! is counted, and said.
//! Left out: two directories that are one without a link (mounted twice), of which such a server shows
//! nothing.

use std::sync::{Arc, PoisonError};

use haul_core::entry::Name;
use haul_core::ids::DirId;
use haul_core::transfer::op::{Existing, SinkFile};
use haul_core::wire::{Failure, FailureKind};
use haul_ftp::{Error, Facts, Listed, steer};
use rustix::io::Errno;

use super::publish::FOUND_BY_ANOTHER;
use super::shown::{Shown, Shows, key_of};
use super::writer::Writer;
use crate::ftp::times::{Verdict, ask, set};
use crate::sink::names::temp_name;

/// Directories of which the names are kept.
const KEPT: usize = 64;

impl Writer {
    /// The names that a directory has. `before`: those that it had at some time of this run suffice.
    pub(super) fn names_in(&mut self, dir: DirId, before: bool) -> Result<Arc<Shown>, Error> {
        let common = self.common.clone();
        let kept = || common.told.listed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(names) = kept().get(&dir).filter(|_| before) {
            return Ok(names.clone());
        }
        let path = common.tree.dir(dir);
        let (listed, tells) = self.line.again(|session| {
            let listed = session.list(&path)?;
            match listed.iter().any(|line| matches!(line, Listed::Cut(_) | Listed::Short(_))) {
                true => Err(Error::Broken { doing: "reading a directory", why: "it came not whole" }),
                false => Ok((listed, session.lists_links())),
            }
        })?;
        let shows = |line: Listed| match line {
            Listed::Entry { name, facts, .. } if facts.is_symlink() => Some((name, Shows::Link)),
            Listed::Entry { name, facts, .. } if tells => Some((name, Shows::Itself(facts.links))),
            Listed::Entry { name, .. } | Listed::Bad { name, .. } => Some((name, Shows::Untold)),
            Listed::Itself(_) | Listed::Cut(_) | Listed::Short(_) => None,
        };
        let names: Arc<Shown> = Arc::new(listed.into_iter().filter_map(shows).collect());
        if before {
            let mut kept = kept();
            if kept.len() >= KEPT {
                kept.clear();
            }
            kept.insert(dir, names.clone());
        }
        Ok(names)
    }

    /// What the directory above shows of something that stood there before this run, of which this was told.
    fn shows(&mut self, (parent, name): (DirId, &Name), facts: &Facts) -> Result<Shows, Error> {
        if facts.unique.is_some() || self.line.again(|session| Ok(session.tells_links()))? {
            return Ok(Shows::Itself(None));
        }
        match self.names_in(parent, true) {
            Ok(names) => Ok(names.get(name.as_bytes()).copied().unwrap_or(Shows::Untold)),
            Err(error) if error.ends_session() && !matches!(error, Error::Broken { .. }) => Err(error),
            // It may not be listed.
            Err(_) => Ok(Shows::Untold),
        }
    }

    /// A directory that stood there is no link to one.
    pub(super) fn is_no_link(&mut self, dir: DirId, path: &[u8], facts: &Facts) -> Result<(), Failure> {
        let common = self.common.clone();
        let Some(name) = common.tree.name(dir) else { return Ok(()) };
        if haul_mutant::removed("ftp-links-of-directories-are-listed") {
            return Ok(());
        }
        match self.shows((common.tree.parent(dir), &name), facts) {
            Ok(Shows::Itself(_)) => Ok(()),
            Ok(Shows::Link) => Err(common.say(FailureKind::Create, path, steer::LINK_STANDS)),
            Ok(Shows::Untold) => {
                common.told.alike.leave_dir(dir);
                Ok(())
            }
            Err(error) => Err(common.failure(FailureKind::Create, path, &error)),
        }
    }

    /// What was found at the name of a file, where another entry of this copy found, or wrote, what looks so
    /// too: a link is replaced, and what has another name is copied anew.
    pub(super) fn look_behind_links(
        &mut self,
        file: &SinkFile,
        path: &[u8],
        (facts, unchanged): (&Facts, bool),
        existing: &mut Existing,
    ) -> Result<(), Failure> {
        let common = self.common.clone();
        let Some(key) = key_of(facts).filter(|_| !haul_mutant::removed("ftp-found-links-are-listed")) else {
            return Ok(());
        };
        let Some(first) = common.told.alike.find(file, key, unchanged) else { return Ok(()) };
        let fail = |error: &Error| common.failure(FailureKind::Open, path, error);
        let untold = || common.told.alike.leave_file(file.id);
        if let Some((parent, name)) = first {
            match self.shows((parent, &name), facts).map_err(|error| fail(&error))? {
                // It counts as unchanged already.
                Shows::Link | Shows::Itself(Some(2..)) => {
                    let failure = common.say(FailureKind::Create, path, FOUND_BY_ANOTHER);
                    return Err(Failure { errno: Errno::NOTUNIQ.raw_os_error(), ..failure });
                }
                Shows::Itself(Some(_)) => {}
                Shows::Itself(None) | Shows::Untold => untold(),
            }
        }
        if !unchanged {
            return Ok(());
        }
        match self.shows((file.parent, &file.name), facts).map_err(|error| fail(&error))? {
            Shows::Link => *existing = Existing::Link,
            Shows::Itself(Some(2..)) => {
                if let Existing::File { size, .. } = existing {
                    *size = u64::MAX;
                }
            }
            Shows::Itself(Some(_)) => {}
            Shows::Itself(None) | Shows::Untold => untold(),
        }
        Ok(())
    }

    /// What looks unchanged in this directory is unchanged; shown by a file of ours in it, if that is not
    /// known.
    pub(super) fn times_prove(&mut self, dir: DirId) -> bool {
        let common = self.common.clone();
        let times = || common.told.times.lock().unwrap_or_else(PoisonError::into_inner);
        let above = common.tree.dir(dir);
        // One asks, and the others wait for what comes of it.
        let _one = common.told.asks_times.lock().unwrap_or_else(PoisonError::into_inner);
        let known = times().of(&above);
        // Nothing is made at a server that is to be left; what would be sent is not any more.
        let is_stopped = common.ends.is_stopped() && !haul_mutant::removed("ftp-stops-ask-no-times");
        if known.is_none() && is_stopped {
            return false;
        }
        let mut is_lost = false;
        let verdict = known.unwrap_or_else(|| {
            let name = temp_name(&Name::new(b"times").expect("legal"), common.tag, common.number());
            let path = common.tree.path(dir, &name);
            self.begins("times", &path);
            let asked = self.line.again(|session| {
                let asked = ask(session, &path, |session, moment| set(session, &path, moment));
                match &asked {
                    Ok((_, false)) => {}
                    Ok((_, true)) => common.doubt_ours(path.clone()),
                    Err(error) => {
                        common.note_refusal(&path, error);
                        common.doubt_ours(path.clone());
                    }
                }
                asked
            });
            let shown = match asked {
                Ok((shown, _)) => Some(shown),
                Err(_) => None,
            };
            // Behind a stop nobody waits for what it shows, and nothing is sent for that.
            is_lost = shown.is_none() && common.ends.is_stopped();
            if is_lost { Verdict::Sent } else { times().note(&above, shown) }
        });
        if is_lost {
            return false;
        }
        times().count(verdict);
        verdict != Verdict::Sent
    }
}
