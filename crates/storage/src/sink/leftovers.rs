//! What earlier runs of this job left, wherever it lies below the destination.
//!
//! In: the tags of those runs, the parts that the journal speaks of, directories as they are finished. Out:
//! their temporaries are removed; or, in words, why some may be left, so that the journal, which alone knows
//! their tags, stays. A directory is cleared when it is finished. What this run does not come to, for the
//! source has it no more or has something else of that name, is noted then and walked at the end: so a tree
//! that is as it was costs nothing more. If after that a part that the journal speaks of was not met, its
//! directory was moved, and all of the destination is walked.
//! What must hold: only what those runs made is removed: by their tags, of our user, no directory and no
//! device; no symbolic link is followed. A run that lost its job removes nothing. No more than [`OPEN_MAX`]
//! descriptors are held.
//! Left out: what is mounted outside the job's own names, and what was moved out of them before the journal
//! spoke of it.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use haul_base::escape;
use haul_core::entry::{DEPTH_MAX, Name};
use haul_core::ids::DirId;
use haul_core::wire::{Failure, FailureKind};
use rustix::fs::{FileType, Stat, fstat};
use rustix::io::{Errno, Result as OsResult};

use super::calls::{each_name, sync_dir};
use super::files::adopt::{Adopt, Taken};
use super::names::{number_bits, tag_and_number, tag_bits};
use super::tree::SinkTree;
use super::{fault, lock};
use crate::jail::Jail;

/// Most directories that are noted for the end. Where there are more, all of the job's names are walked.
const STRAYS_MAX: usize = 65_536;
/// Most directories on the way down that are kept open; others are found again by their names.
const OPEN_MAX: usize = 16;

/// Where temporaries of earlier runs may lie.
#[derive(Clone, Debug, Default)]
pub struct Left {
    /// The names that the job has in the destination. `None`: the contents of a directory, whatever they are
    /// called.
    pub names: Option<HashSet<Name>>,
    /// Tag and number of each temporary that the journal speaks of.
    pub parts: Vec<(u32, u64)>,
    /// The command that removes what is left, for people.
    pub clean: String,
}

/// What is known of the leftovers of earlier runs.
pub(super) struct Leftovers {
    /// The tags of those runs, with their place in time.
    tags: HashMap<u32, usize>,
    /// Whose their files are; 0 may have given them away. `None`: that cannot be told here.
    uid: Option<u32>,
    names: Option<HashSet<Name>>,
    /// Parts that were not met yet, by number, with the time of the run that the journal names. A later run
    /// may have taken one over and kept its number.
    parts: Mutex<HashMap<u64, usize>>,
    taken: Taken,
    /// Second names of files that were begun in place, which nobody completes in this run: they stay.
    begun: Option<Taken>,
    /// Hashed names of finished directories, by the directory above, while that is not finished.
    finished: Mutex<HashMap<DirId, HashSet<u64>>>,
    hasher: RandomState,
    strays: Mutex<Strays>,
    left: Mutex<Option<String>>,
}

/// Directories that this run did not come to, by the names that lead there.
#[derive(Default)]
struct Strays {
    ways: Vec<Vec<Name>>,
    /// There were too many to be noted.
    over: bool,
}

/// What stands in a directory.
struct Listed {
    below: Vec<Name>,
    /// Names of the form of earlier runs' temporaries, with tag and number.
    tagged: Vec<(Name, u32, u64)>,
}

impl Leftovers {
    /// `tags`: of earlier runs, oldest first. `own`: of this one, which is never a leftover's. `None`: no run
    /// came before.
    pub(super) fn new(tags: &[u32], own: u32, left: &Left, adopt: &Adopt) -> Option<Leftovers> {
        let old = tags.iter().map(|tag| tag_bits(*tag)).enumerate();
        let tags: HashMap<u32, usize> =
            old.filter(|(_, tag)| *tag != tag_bits(own)).map(|(place, tag)| (tag, place)).collect();
        if tags.is_empty() {
            return None;
        }
        let place = |tag| tags.get(&tag_bits(tag)).copied().unwrap_or(0);
        let parts = left.parts.iter().map(|(tag, number)| (number_bits(*number), place(*tag))).collect();
        Some(Leftovers {
            uid: adopt.ours.filter(|ours| !ours.faked).map(|ours| ours.uid),
            names: left.names.clone(),
            parts: Mutex::new(parts),
            taken: adopt.taken.clone(),
            begun: adopt.begun.clone(),
            finished: Mutex::default(),
            hasher: RandomState::new(),
            strays: Mutex::default(),
            left: Mutex::default(),
            tags,
        })
    }

    /// Clears a directory whose entries have all ended, so that nobody takes over any more what lies there,
    /// and notes those in it that this run did not come to. What cannot be done is tried again at the end.
    pub(super) fn finish(&self, tree: &SinkTree, id: DirId, dir: &OwnedFd) {
        let came_to = lock(&self.finished).remove(&id).unwrap_or_default();
        if !tree.was_created(id) {
            let Ok(listed) = self.list(tree.jail(), dir) else { return };
            if self.remove(tree.jail(), dir, listed.tagged).is_err() {
                return;
            }
            let way = tree.names_of(id);
            for name in listed.below {
                if !came_to.contains(&self.hasher.hash_one(&name)) {
                    lock(&self.strays).add(&way, name);
                }
            }
        }
        if let Some((parent, name)) = tree.place_of(id)
            && !(parent != DirId::ROOT && tree.was_created(parent))
        {
            lock(&self.finished).entry(parent).or_default().insert(self.hasher.hash_one(&name));
        }
    }

    /// Removes what is left, at the end of a run. `goes_on` is asked at each directory, `may` before anything
    /// is removed.
    ///
    /// # Errors
    /// One of them said no.
    pub(super) fn sweep(
        &self,
        tree: &SinkTree,
        goes_on: &dyn Fn() -> Result<(), Failure>,
        may: &dyn Fn() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        for (tag, number) in std::mem::take(&mut *lock(&self.taken)) {
            self.met(tag, number);
        }
        let root_dev = fstat(&**tree.root()).map(|stat| stat.st_dev).ok();
        let mut look = Look { of: self, tree, goes_on, may, root_dev, failed: None, closed: None };
        let strays = std::mem::take(&mut *lock(&self.strays));
        let came_to = lock(&self.finished).remove(&DirId::ROOT).unwrap_or_default();
        // The root is never finished.
        let below = look.clear(tree.root(), &[])?;
        if haul_mutant::removed("leftovers-are-looked-for") {
            return Ok(());
        }
        let of_the_job = |name: &&Name| self.names.as_ref().is_none_or(|names| names.contains(*name));
        for name in below.iter().filter(of_the_job) {
            if strays.over || !came_to.contains(&self.hasher.hash_one(name)) {
                look.walk(vec![name.clone()], self.names.is_some())?;
            }
        }
        for way in strays.ways.into_iter().filter(|_| !strays.over) {
            look.walk(way, true)?;
        }
        let missing = || !lock(&self.parts).is_empty();
        if missing() && !haul_mutant::removed("missing-parts-are-looked-for") {
            let failed = look.failed.take();
            for name in below {
                look.walk(vec![name], false)?;
            }
            // What is wrong elsewhere than in the job's own directories matters only while something is
            // missing.
            let elsewhere = look.failed.take();
            look.failed = failed;
            look.closed = look.closed.take().or(elsewhere);
        }
        let closed = look.closed.filter(|_| missing());
        *lock(&self.left) = look.failed.or(closed);
        Ok(())
    }

    /// A file was begun in place and this run left it so: the journal stays, which alone knows.
    pub(super) fn is_half_new(&self) -> bool {
        self.begun.as_ref().is_some_and(|begun| !lock(begun).is_empty())
    }

    /// Why something may be left, after [`Leftovers::sweep`].
    pub(super) fn left(&self) -> Option<String> {
        let why =
            lock(&self.left).clone().filter(|_| !haul_mutant::removed("journal-stays-with-leftovers"))?;
        Some(format!("files of earlier runs of this copy may be left ({why})"))
    }

    /// A temporary of an earlier run was taken over, or removed.
    fn met(&self, tag: u32, number: u64) {
        let mut parts = lock(&self.parts);
        if let (Some(of), Some(place)) = (parts.get(&number), self.tags.get(&tag))
            && place >= of
        {
            parts.remove(&number);
        }
    }

    fn list(&self, jail: Jail, dir: &OwnedFd) -> OsResult<Listed> {
        let (mut below, mut tagged, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
        each_name(dir, |name, kind| {
            let Ok(name) = Name::new(name) else { return };
            match (kind, tag_and_number(name.as_bytes())) {
                (FileType::Directory, _) => below.push(name),
                (_, Some((tag, number))) if self.tags.contains_key(&tag) => tagged.push((name, tag, number)),
                // Some file systems do not tell.
                (FileType::Unknown, _) => unknown.push(name),
                _ => {}
            }
        })?;
        unknown.retain(|name| jail.stat(dir, name).is_ok_and(|stat| kind_of(&stat) == FileType::Directory));
        below.append(&mut unknown);
        Ok(Listed { below, tagged })
    }

    /// Removes those that are an earlier run's. The first error, after all were tried.
    fn remove(&self, jail: Jail, dir: &OwnedFd, tagged: Vec<(Name, u32, u64)>) -> OsResult<()> {
        let mut result = Ok(());
        let stays = |it: &(u32, u64)| self.begun.as_ref().is_some_and(|begun| lock(begun).contains(it));
        for (name, tag, number) in tagged.into_iter().filter(|(_, tag, number)| !stays(&(*tag, *number))) {
            let removed = jail.stat(dir, &name).and_then(|stat| match self.made(&stat) {
                true => jail.unlink(dir, &name).map(|()| self.met(tag, number)),
                false => Ok(()),
            });
            match removed {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => result = result.and(Err(errno)),
            }
        }
        result
    }

    /// Whether an earlier run made it. A file may have a second name, which it keeps: one that was published
    /// by linking it.
    fn made(&self, stat: &Stat) -> bool {
        let kind = kind_of(stat) != FileType::Directory;
        let ours = self.uid.is_none_or(|uid| uid == 0 || uid == stat.st_uid);
        kind && (ours || haul_mutant::removed("leftovers-are-ours"))
    }
}

impl Strays {
    fn add(&mut self, way: &[Name], name: Name) {
        match self.ways.len() < STRAYS_MAX {
            true => self.ways.push(way.iter().cloned().chain([name]).collect()),
            false => self.over = true,
        }
    }
}

fn kind_of(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// A look at directories that no run finished.
struct Look<'a> {
    of: &'a Leftovers,
    tree: &'a SinkTree,
    goes_on: &'a dyn Fn() -> Result<(), Failure>,
    may: &'a dyn Fn() -> Result<(), Failure>,
    root_dev: Option<u64>,
    /// What was not possible, the first time.
    failed: Option<String>,
    /// The first directory that is closed to us and another user's, or too deep for a run to write there.
    closed: Option<String>,
}

/// A directory on the way down.
struct Level {
    name: Name,
    /// `None`: it was closed meanwhile.
    fd: Option<OwnedFd>,
    below: Vec<Name>,
}

impl Look<'_> {
    /// Walks the directory to which these names lead, if there is one. `cross`: also what is mounted there.
    fn walk(&mut self, mut way: Vec<Name>, cross: bool) -> Result<(), Failure> {
        let Some(first) = way.pop() else { return Ok(()) };
        let above = way.len();
        let mut levels: Vec<Level> = Vec::new();
        let mut next = match self.open_way(&way) {
            Some(dir) => self.open(&dir, &way, first, cross),
            None => None,
        };
        loop {
            if let Some((fd, name)) = next.take() {
                way.push(name.clone());
                let below = self.clear(&fd, &way)?;
                levels.push(Level { name, fd: Some(fd), below });
                if let Some(i) = levels.len().checked_sub(1 + OPEN_MAX) {
                    levels[i].fd = None;
                }
            }
            let Some(level) = levels.last_mut() else { return Ok(()) };
            let Some(name) = level.below.pop() else {
                way.pop();
                levels.pop();
                continue;
            };
            if above + levels.len() >= DEPTH_MAX {
                self.closed.get_or_insert_with(|| format!("{}: too deep", shown(self.tree, &way)));
                continue;
            }
            let fd = match levels.last_mut().and_then(|level| level.fd.take()) {
                Some(fd) => Some(fd),
                None => self.open_way(&way),
            };
            let Some(fd) = fd else { continue };
            next = self.open(&fd, &way, name, cross);
            if let Some(level) = levels.last_mut() {
                debug_assert_eq!(way.last(), Some(&level.name));
                level.fd = Some(fd);
            }
        }
    }

    /// Removes what is an earlier run's in a directory; the directories in it.
    fn clear(&mut self, dir: &OwnedFd, way: &[Name]) -> Result<Vec<Name>, Failure> {
        (self.goes_on)()?;
        let listed = match self.of.list(self.tree.jail(), dir) {
            Ok(listed) => listed,
            Err(errno) => {
                self.fail("list", way, errno);
                return Ok(Vec::new());
            }
        };
        if !listed.tagged.is_empty() {
            (self.may)()?;
            // So that none comes back after a power cut, when there is no journal any more.
            let removed = self.of.remove(self.tree.jail(), dir, listed.tagged);
            if let Err(errno) = removed.and_then(|()| sync_dir(dir)) {
                self.fail("remove a temporary in", way, errno);
            }
        }
        Ok(listed.below)
    }

    /// The directory to which these names lead, if there is one.
    fn open_way(&mut self, way: &[Name]) -> Option<OwnedFd> {
        let mut at: Option<OwnedFd> = None;
        for (i, name) in way.iter().enumerate() {
            let dir = at.as_ref().unwrap_or(self.tree.root());
            match self.tree.jail().open_dir(dir, name) {
                Ok(fd) => at = Some(fd),
                Err(errno) => {
                    self.unopened(errno, &way[..=i], true);
                    return None;
                }
            }
        }
        match at {
            Some(fd) => Some(fd),
            None => rustix::io::dup(&**self.tree.root()).map_err(|errno| self.fail("open", way, errno)).ok(),
        }
    }

    fn open(&mut self, dir: &OwnedFd, way: &[Name], name: Name, cross: bool) -> Option<(OwnedFd, Name)> {
        match self.tree.jail().open_dir(dir, &name) {
            Ok(fd) => {
                let near = cross || fstat(&fd).map(|stat| stat.st_dev).ok() == self.root_dev;
                near.then_some((fd, name))
            }
            Err(errno) => {
                let me = self.of.uid.unwrap_or_else(|| rustix::process::geteuid().as_raw());
                let ours = self.tree.jail().stat(dir, &name).map_or(true, |stat| stat.st_uid == me);
                self.unopened(errno, &[way, &[name]].concat(), ours);
                None
            }
        }
    }

    fn unopened(&mut self, errno: Errno, way: &[Name], ours: bool) {
        match errno {
            // It is gone, or something else.
            Errno::NOTDIR | Errno::LOOP | Errno::NOENT => {}
            Errno::ACCESS | Errno::PERM if !ours => {
                let why = fault::os(FailureKind::Open, "open", &shown(self.tree, way), errno).text;
                self.closed.get_or_insert(why.to_string());
            }
            _ => self.fail("open", way, errno),
        }
    }

    fn fail(&mut self, what: &str, way: &[Name], errno: Errno) {
        let why = fault::os(FailureKind::Open, what, &shown(self.tree, way), errno).text;
        self.failed.get_or_insert(why.to_string());
    }
}

fn shown(tree: &SinkTree, way: &[Name]) -> String {
    let mut path = tree.path_of_dir(DirId::ROOT);
    for name in way {
        path.push('/');
        path += &escape::within(name.as_bytes());
    }
    path
}

#[cfg(test)]
#[path = "leftovers_tests.rs"]
mod tests;
