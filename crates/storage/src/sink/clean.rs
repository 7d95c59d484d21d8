//! Debris of dead jobs: what `haul clean` lists and removes.
//!
//! In: a destination. Out: jobs that left a journal or owner files, temporaries, and their removal. The tree
//! is walked by descriptor and no symbolic link is followed.
//! What must hold: nothing of a living job is removed (its ownership is taken first), and no temporary
//! that is not the caller's [`Debris`]: a user's own file may have a name of that form.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use haul_base::escape;
use haul_core::entry::{DEPTH_MAX, Name};
use haul_core::journal::Widened;
use haul_core::wire::{Failure, FailureKind};
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use super::calls::{each_name, sync_dir};
use super::claim::Debris;
use super::fault;
use super::here::is_of_a_job;
use super::life::{Life, judge};
use super::names::{JobFile, JobKey, job_file, tag_of};
use super::ours::Ours;
use super::owner::{AcquireError, JobDir, OwnerInfo, Patience, Seen};
use super::widened::restore;
use crate::descriptors::budget;
use crate::jail::Jail;
use crate::levels::{Level, Way};

/// A job that left something in a directory.
#[derive(Clone, Debug)]
pub struct Job {
    pub key: JobKey,
    /// Length of its journal, bytes, if there is one. Its content says the tags of its temporaries.
    pub journal: Option<u64>,
    /// The user who made that, or its owner file, and how long ago it was written last.
    pub user: Option<u32>,
    pub age: Option<Duration>,
    /// Its last owner, if the file can be read.
    pub owner: Option<OwnerInfo>,
    /// `Dead` if nobody owns it; `Unknown` if only watching could tell.
    pub life: Life,
}

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    pub files: u64,
    pub bytes: u64,
    /// Temporaries and directories that could not be looked at or removed.
    pub failed: u64,
}

/// A file that looks like a temporary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Temporary {
    /// Below the directory that was searched.
    pub path: PathBuf,
    pub tag: u32,
    pub uid: u32,
    pub size: u64,
    /// Time since its last change; zero if that lies ahead.
    pub age: Duration,
}

/// How long ago something was, roughly: `5 minutes`, `3 hours`, `2 days`.
pub fn age_in_words(age: Duration) -> String {
    let minutes = age.as_secs() / 60;
    let of = |n: u64, one: &str| format!("{n} {one}{}", if n == 1 { "" } else { "s" });
    match minutes {
        0 => "less than a minute".into(),
        1..60 => of(minutes, "minute"),
        60..2880 => of(minutes / 60, "hour"),
        _ => of(minutes / 1440, "day"),
    }
}

/// The jobs that left something in `root` (or a state directory).
///
/// # Errors
/// The directory cannot be read.
pub fn find_debris(root: &Path) -> Result<Vec<Job>, Failure> {
    let dir = JobDir::open(root, JobKey::new(&[0; 16]))?;
    let mut named = Vec::new();
    each_name(dir.fd(), |name, _| {
        if let Some((key, file)) = job_file(name)
            && let Ok(name) = Name::new(name)
        {
            named.push((key, file, name));
        }
    })
    .map_err(|errno| fault::os(FailureKind::Read, "list", &dir.path_of(&dir.key().journal()), errno))?;
    // Anybody may plant such names: the directory is listed once, whatever their number.
    let mut found: BTreeMap<JobKey, Found> = BTreeMap::new();
    for (key, file, name) in named {
        let known = is_of_a_job(dir.jail(), dir.fd(), &name, &key, file)
            || haul_mutant::removed("clean-knows-jobs-by-content");
        // A job is there by what it wrote; then the owner is whoever has the highest number.
        let job = found.entry(key).or_default();
        job.known |= known;
        match file {
            JobFile::Owner { epoch } => job.owner = job.owner.max(Some(epoch)),
            JobFile::Journal => job.journal = known,
            JobFile::NewJournal { .. } => {}
        }
    }
    let mut jobs = Vec::new();
    for (key, job) in found.into_iter().filter(|(_, job)| job.known) {
        let dir = dir.of(key.clone());
        let journal = job.journal.then(|| dir.jail().stat(dir.fd(), &key.journal()).ok()).flatten();
        let (owner, life, user) = match job.owner.map(|epoch| dir.peek(epoch)) {
            None => (None, Life::Dead, None),
            Some(Ok(Some((stat, Seen { info: Some(info), .. })))) => {
                let life = judge(&info, dir.here());
                (Some(info), life, Some(stat.st_uid))
            }
            Some(_) => (None, Life::Unknown, None),
        };
        let user = journal.as_ref().map(|stat| stat.st_uid).or(user);
        let age =
            journal.as_ref().map(|stat| SystemTime::now().duration_since(changed(stat)).unwrap_or_default());
        let journal = journal.map(|stat| stat.st_size as u64);
        jobs.push(Job { key, journal, user, age, owner, life });
    }
    Ok(jobs)
}

/// What stands in a directory of one job.
#[derive(Default)]
struct Found {
    /// One of its files is what it is called.
    known: bool,
    journal: bool,
    /// The highest owner.
    owner: Option<u32>,
}

/// Removes what a dead job left: its `debris` (by its journal) below `root`, directories that it opened to
/// itself (`widened`, by its journal as well), which get their modes again, then its journal and owner files,
/// which lie in `state` (`root` itself unless a state directory is used). The journal stays while anything of
/// it does.
///
/// # Errors
/// The job lives (its ownership is taken first, which waits for a beat where nothing else can tell), its
/// journal may be another's word, or its files cannot be removed.
pub fn remove_debris(
    root: &Path,
    state: &Path,
    job: &Job,
    (debris, widened): (&Debris<'_>, &[Widened]),
    patience: &Patience,
) -> Result<Removed, AcquireError> {
    let place = JobDir::open(state, job.key.clone()).map_err(AcquireError::Failed)?;
    // A run that waits for its network lives: it gives way to a run, not to this.
    let patience = Patience { takes_from_waiting: false, ..patience.clone() };
    let owner = place.acquire(0, "haul clean", &patience)?;
    let tree = Jail::open_root(root).map_err(|errno| {
        let path = escape::within(root.as_os_str().as_encoded_bytes());
        AcquireError::Failed(fault::os(FailureKind::Open, "open directory", &path, errno))
    })?;
    if debris.claim.is_shared() && !place.ours().map_err(AcquireError::Failed)?.faked {
        let text = format!("others may write {}: left", place.path_of(&place.key().journal()));
        return Err(AcquireError::Failed(fault::failure(FailureKind::Open, 0, text)));
    }
    let tree = Arc::new(tree);
    let mut removed = remove_temporaries(&tree, debris);
    let mut left = 0;
    if !widened.is_empty() {
        left = restore_widened(&place, &tree, widened)?;
        removed.failed += left as u64;
    }
    let keeps = removed.failed > 0 && !haul_mutant::removed("clean-keeps-the-journal-of-what-stays");
    if keeps || left > 0 {
        // It alone knows of them, and whose they are.
        owner.release();
        return Ok(removed);
    }
    let mut names = Vec::new();
    let listed = each_name(place.fd(), |name, _| {
        if let Some((key, JobFile::Journal | JobFile::NewJournal { .. })) = job_file(name)
            && key == job.key
            && let Ok(name) = Name::new(name)
        {
            names.push(name);
        }
    });
    if listed.is_err() {
        removed.failed += 1;
    }
    for name in names {
        removed.take(place.jail(), place.fd(), &name);
    }
    if removed.failed == 0 && !haul_mutant::removed("clean-finishes") {
        // Of the run before nothing is left, proven dead or not: nobody has to be told of it.
        owner.settle();
    }
    owner.release();
    let _ = sync_dir(place.fd());
    if let Some(stays) = owner.stays() {
        return Err(AcquireError::Stays(stays.to_owned()));
    }
    Ok(removed)
}

/// Takes back what the job left open, if its journal is ours. Returns how many directories could not be
/// looked at.
fn restore_widened(place: &JobDir, root: &Arc<OwnedFd>, widened: &[Widened]) -> Result<usize, AcquireError> {
    place.load(&mut |_| {}).map_err(AcquireError::Failed)?;
    let jail = Jail::probe(root);
    let ours = Ours::learn_beside(jail, &**root).map_err(|errno| {
        let text = "create a file in the destination";
        AcquireError::Failed(fault::os(FailureKind::Create, text, "to see whose files are", errno))
    })?;
    // Where modes are faked nothing was opened.
    if ours.faked || place.ours().map_err(AcquireError::Failed)?.faked {
        return Ok(0);
    }
    Ok(restore(root, jail, ours, widened.to_vec()).len())
}

/// Removes the temporaries below `root` that are `debris`.
pub fn remove_temporaries(root: &Arc<OwnedFd>, debris: &Debris<'_>) -> Removed {
    let jail = Jail::probe(root);
    let mut removed = Removed::default();
    if debris.claim.is_empty() {
        return removed;
    }
    let failed = walk(jail, root, budget().walk_dirs, &mut |dir, _, name, tag| {
        if jail.stat(dir, name).is_ok_and(|stat| debris.is(tag, &stat)) {
            removed.take(jail, dir, name);
        }
    });
    removed.failed += failed;
    removed
}

/// The files below `root` that look like temporaries, whatever their tag, private and not younger than `age`.
/// A user's own file may be among them: this is for people to look at.
pub fn list_temporaries(root: &Arc<OwnedFd>, age: Duration) -> Vec<Temporary> {
    let jail = Jail::probe(root);
    let mut found = Vec::new();
    let now = SystemTime::now();
    walk(jail, root, budget().walk_dirs, &mut |dir, path, name, tag| {
        let Ok(stat) = jail.stat(dir, name) else { return };
        let old = now.duration_since(changed(&stat)).unwrap_or_default();
        let private = stat.st_mode & 0o7777 == 0o600;
        if private && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && old >= age {
            let name: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(name.as_bytes());
            let (uid, size) = (stat.st_uid, stat.st_size as u64);
            found.push(Temporary { path: path.join(name), tag, uid, size, age: old });
        }
    });
    found
}

fn changed(stat: &Stat) -> SystemTime {
    let secs = u64::try_from(stat.st_mtime).unwrap_or(0);
    // Absurd times of a broken clock must not overflow.
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(secs)).unwrap_or(SystemTime::UNIX_EPOCH)
}

impl Removed {
    fn take(&mut self, jail: Jail, dir: &OwnedFd, name: &Name) {
        let size = jail.stat(dir, name).map(|stat| stat.st_size as u64);
        match jail.unlink(dir, name) {
            Ok(()) => {
                self.files += 1;
                self.bytes = self.bytes.saturating_add(size.unwrap_or(0));
            }
            Err(Errno::NOENT) => {}
            Err(_) => self.failed += 1,
        }
    }
}

/// A directory on the way of a walk.
struct Here {
    path: PathBuf,
    /// Directories in it that are still to come.
    below: Vec<Name>,
}

/// Calls `each` with every name below `root` that ends in a tag. Returns how many directories could not be
/// looked into. Of the directories on the way at most `open_max` are open, and `root`, at most [`DEPTH_MAX`]
/// deep.
fn walk(
    jail: Jail,
    root: &Arc<OwnedFd>,
    open_max: usize,
    each: &mut dyn FnMut(&OwnedFd, &Path, &Name, u32),
) -> u64 {
    let mut failed = 0;
    let mut enter = |name: Option<Name>, fd: Arc<OwnedFd>, path: PathBuf| {
        let (mut below, mut tagged) = (Vec::new(), Vec::new());
        let listed = each_name(&fd, |name, kind| {
            let Ok(name) = Name::new(name) else { return };
            let tag = tag_of(name.as_bytes());
            // Some file systems do not tell the kind; opening as a directory then does.
            if kind == FileType::Directory || (kind == FileType::Unknown && tag.is_none()) {
                below.push(name);
            } else if let Some(tag) = tag {
                tagged.push((name, tag));
            }
        });
        for (name, tag) in tagged {
            each(&fd, &path, &name, tag);
        }
        let mut level = Level::new(Here { path, below }, name, fd);
        // All names at once.
        level.read = true;
        (level, u64::from(listed.is_err()))
    };
    let (top, unread) = enter(None, root.clone(), PathBuf::new());
    failed += unread;
    let mut way = Way::new(top, open_max);
    loop {
        let depth = way.len();
        let Some(level) = way.last() else { return failed };
        let Some(name) = level.below.last().cloned() else {
            way.leave();
            continue;
        };
        if depth > DEPTH_MAX {
            level.below.pop();
            failed += 1;
            continue;
        }
        // It was closed while what lies below it was walked; what cannot be found again cannot be walked.
        if way.open_last().is_err() {
            let left = way.leave().map_or(0, |level| level.below.len());
            failed += left as u64;
            continue;
        }
        let Some(level) = way.last() else { return failed };
        level.below.pop();
        match jail.open_dir(level.fd(), &name) {
            Ok(fd) => {
                let shown: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(name.as_bytes());
                let path = level.path.join(shown);
                let (level, unread) = enter(Some(name), Arc::new(fd), path);
                failed += unread;
                // All of its names are read: nothing is when it is closed.
                way.enter(level, &mut []);
            }
            Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => {}
            // As `lost+found`: another user's, in which nothing of ours can be removed.
            Err(Errno::ACCESS) if is_of_another(jail, &level.fd(), &name) => {}
            Err(_) => failed += 1,
        }
    }
}

fn is_of_another(jail: Jail, dir: &OwnedFd, name: &Name) -> bool {
    jail.stat(dir, name).is_ok_and(|stat| stat.st_uid != rustix::process::geteuid().as_raw())
}

#[cfg(test)]
#[path = "clean_tests.rs"]
mod tests;
