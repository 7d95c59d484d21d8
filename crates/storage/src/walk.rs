//! Walks the sources of a job: what is there, in batches, with bounded memory whatever the number of files.
//!
//! In: source roots. Out: [`WalkItem`]s over a bounded channel, and every announced entry registered in the
//! [`SourceTree`] before it is sent. A consumer that is slow stops the walk.
//! Invariants: a directory comes before what lies in it, and its `DirEnd` after all of it. Entries are
//! reached by directory descriptors; no symlink below a source root is followed but where the user wants that
//! ([`manners`](crate::manners)), and then no directory is entered below itself. Of the levels of depth no
//! more are open than the walk's share of descriptors (`way`). Only names of one read of each directory on
//! the way down are in memory. What lies deeper than [`DEPTH_MAX`] is walked too, and counted. Where some
//! entries alone are wanted, these are looked for by name, and each that is not there is told.
//! Left out: what becomes of an entry that was looked at (`entry`), and what is told beside entries (`told`);
//! several directories at a time. Where `stat` is slow (a network file system), the entries of one read of a
//! directory are looked at by several threads.

use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, thread};

use crossbeam_channel::{Receiver, bounded};
use haul_core::entry::{DEPTH_MAX, EntryKind, Extras, Name};
use haul_core::ids::{DirId, Generation};
use haul_core::metadata::{Unread, Values};
use haul_core::wire::{Announced, FailureKind, Totals};
use rustix::fs::{FileType, Mode, OFlags, open, openat};

use crate::attributes::Subject;
use crate::descriptors::budget;
use crate::manners::{OnlyThese, Wanted};
use crate::meta_rate::{MetaRate, cost};
use crate::sink::Jobs;
use crate::sink::names::may_be_ours;
use crate::source::failure::{of_source, own_failure};
use crate::source::roots::{RootSpec, RootTarget};
use crate::source::tree::SourceTree;
use crate::source::view::Place;
pub use item::{CountsAs, NotKept, NotKeptWhat, WalkItem};
use manners::{Down, identity_of};
use named::{RootNames, no_file};
use names::Names;
use out::Out;
use owners::Owners;
use probe::{Probe, Probed};
use way::{About, DIR_FLAGS, Here, Level, Way};

mod entry;
mod item;
mod manners;
mod named;
mod names;
pub(crate) mod out;
mod owners;
mod probe;
mod told;
mod way;

/// Items sent together at most, but for those of one entry.
pub const BATCH_ITEMS_MAX: usize = 512;
/// The shard whose ids a walk gives: that of a session of one pair.
const SHARD: u16 = 0;
/// Batches that wait for the consumer at most.
pub const BATCHES_MAX: usize = 8;
/// Bytes of names read from a directory at a time: 85 of the longest, about a thousand short ones.
pub const READ_DIR_LEN: usize = 24 * 1024;

/// A running walk. Dropping it ends the walk, at the latest when a system call that hangs returns.
pub struct Walk {
    items: Receiver<Vec<WalkItem>>,
    cancelled: Arc<AtomicBool>,
    /// Of its source.
    rate: Arc<MetaRate>,
}

impl Walk {
    /// Starts to walk. `object_size` chooses the object size from a file's size; `stat_threads` look at
    /// entries at the same time where one alone is slow.
    ///
    /// Errors: the thread cannot be started.
    pub fn start(
        roots: Vec<RootSpec>,
        tree: Arc<SourceTree>,
        stat_threads: usize,
        object_size: impl FnMut(u64) -> u32 + Send + 'static,
    ) -> io::Result<Walk> {
        Walk::start_with(roots, tree, stat_threads, budget().walk_dirs, object_size)
    }

    /// As [`Walk::start`]; `open_max`: levels of the way down that are open at a time.
    pub(crate) fn start_with(
        roots: Vec<RootSpec>,
        tree: Arc<SourceTree>,
        stat_threads: usize,
        open_max: usize,
        object_size: impl FnMut(u64) -> u32 + Send + 'static,
    ) -> io::Result<Walk> {
        let (sender, items) = bounded(BATCHES_MAX);
        let cancelled = Arc::new(AtomicBool::new(false));
        let rate = tree.rate().clone();
        let probe = Probe::new(stat_threads, rate.clone());
        let owners = Owners::new(tree.by_name());
        let mut walker = Walker {
            tree,
            object_size,
            out: Out { sender, batch: Vec::new(), bytes: 0, cancelled: cancelled.clone() },
            probe,
            read_dir: vec![MaybeUninit::uninit(); READ_DIR_LEN],
            next_id: 1,
            totals: Totals::default(),
            root_names: RootNames::of(&roots),
            names: Names::default(),
            owners,
            open_max,
            root_dev: 0,
            sink: None,
            met: HashSet::new(),
        };
        thread::Builder::new().name("haul-walk".into()).spawn(move || {
            let walked = catch_unwind(AssertUnwindSafe(|| walker.run(&roots)));
            if walked.is_err() {
                let failure =
                    own_failure(FailureKind::Walk, "walk", b"sources", "internal error, see the log");
                walker.out.push(WalkItem::Failed { path: Vec::new(), failure, counts_as: CountsAs::Subtree });
            }
            walker.out.flush();
        })?;
        Ok(Walk { items, cancelled, rate })
    }

    /// A walk that is over already and found `items`.
    pub fn of(items: Vec<WalkItem>) -> Walk {
        let (sender, batches) = bounded(1);
        sender.send(items).expect("the receiver is right here");
        Walk { items: batches, cancelled: Arc::default(), rate: Arc::default() }
    }

    #[cfg(any(feature = "ftp", feature = "volume"))]
    /// A walk whose items come over a channel, from whoever else walks; it heeds `cancelled`.
    pub(crate) fn over(items: Receiver<Vec<WalkItem>>, cancelled: Arc<AtomicBool>) -> Walk {
        Walk { items, cancelled, rate: Arc::default() }
    }

    /// The items, in batches.
    pub fn items(&self) -> &Receiver<Vec<WalkItem>> {
        &self.items
    }

    /// Ends the walk soon; its channel closes without [`WalkItem::End`].
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        // Its thread may wait for that.
        self.rate.lift();
    }

    /// It was told to end; what closes its channel then is no fault.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        self.cancel();
    }
}

struct Walker<F> {
    tree: Arc<SourceTree>,
    object_size: F,
    out: Out,
    probe: Probe,
    read_dir: Vec<MaybeUninit<u8>>,
    next_id: u64,
    totals: Totals,
    root_names: RootNames,
    /// Files that have other names, if these are kept.
    names: Names,
    owners: Owners,
    /// Levels that are open at a time.
    open_max: usize,
    /// The device of the source that is walked.
    root_dev: u64,
    /// Device and inode of the destination, where it is on this host and known to be there.
    sink: Option<(u64, u64)>,
    /// Where some entries alone are wanted: names in the destination's root that were found.
    met: HashSet<Name>,
}

impl<F: FnMut(u64) -> u32> Walker<F> {
    fn run(&mut self, roots: &[RootSpec]) {
        // Sources by name often lie in one directory: one descriptor for all of those in a row.
        let mut last_base: Option<(Vec<u8>, Place)> = None;
        // A single file may have another name at the destination: it is what was named.
        let is_single = matches!(roots, [RootSpec { is_dir: false, .. }]);
        let only = self.tree.manners().only.clone().filter(|only| !is_single || only.is_nothing());
        let mut has_root = false;
        for root in roots {
            if self.out.cancelled() {
                return;
            }
            match &root.target {
                RootTarget::Contents => {
                    // The first is what the destination root becomes.
                    let is_first = !std::mem::replace(&mut has_root, true);
                    self.walk_contents(&root.path, is_first, only.clone());
                }
                RootTarget::Named(name) => {
                    let wanted = only.as_ref().map_or(Wanted::All, |only| only.below(name));
                    self.walk_named(root, name, &mut last_base, wanted);
                }
            }
        }
        if let Some(only) = &only {
            self.tell_missing(only);
            self.tell_parted();
        }
        if !self.out.cancelled() {
            self.out.push(WalkItem::End(self.totals));
        }
    }

    fn walk_contents(&mut self, path: &Path, is_root: bool, only: Option<OnlyThese>) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        self.tree.rate().take(cost::OPEN);
        match open(path, flags, Mode::empty()) {
            Ok(fd) => {
                let fd = Arc::new(fd);
                if is_root {
                    let seen = rustix::fs::fstat(&fd).map(crate::source::stat::Seen::from);
                    self.tell_owners(seen.iter().map(|seen| &seen.meta));
                    let (values, unread) = self.read_dir_values(Subject::Open(fd.as_fd()));
                    self.tell_unread(b".", &unread);
                    self.tell_root(values);
                }
                let place = self.tree.add_base(fd.clone(), path.as_os_str().as_bytes());
                let identity = identity_of(&fd).unwrap_or_default();
                self.root_dev = identity.0;
                let here = Here { identity, ..Here::new(DirId::ROOT, place) }.wanted(0, only);
                self.descend(Level::new(here, None, fd));
            }
            Err(errno) => {
                if is_root && self.tree.keeps().any() {
                    // What it has is not known, and nothing goes for that.
                    let mut none = Values::new();
                    Unread { xattrs: true, acls: true }.mark(&mut none);
                    self.tell_root(none);
                }
                self.fail_named("open directory", path.as_os_str().as_bytes(), errno, CountsAs::Subtree);
            }
        }
    }

    fn walk_named(
        &mut self,
        root: &RootSpec,
        name: &Name,
        last_base: &mut Option<(Vec<u8>, Place)>,
        wanted: Wanted,
    ) {
        if matches!(wanted, Wanted::Nothing) {
            return;
        }
        self.met.insert(name.clone());
        let bytes = root.path.as_os_str().as_bytes();
        // "a/b" lies in "a/", "b" in "./".
        let parent = match bytes.iter().rposition(|b| *b == b'/') {
            Some(slash) => &bytes[..=slash],
            None => b"./",
        };
        let base = match last_base {
            Some((path, place)) if path == parent => *place,
            _ => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                self.tree.rate().take(cost::OPEN);
                let fd = match open(parent, flags, Mode::empty()) {
                    Ok(fd) => fd,
                    Err(errno) => return self.fail_named("open directory", parent, errno, CountsAs::Entry),
                };
                let place = self.tree.add_base(Arc::new(fd), parent);
                *last_base = Some((parent.to_vec(), place));
                place
            }
        };
        let fd = match self.tree.dir_fd(base) {
            Ok(fd) => fd,
            Err(errno) => return self.fail_named("open directory", parent, errno, CountsAs::Entry),
        };
        let probed = self.probe.one(fd.as_fd(), name, self.looks(0));
        if let Err(errno) = probed {
            return self.fail_named("stat", bytes, errno, CountsAs::Entry);
        }
        if let Ok(probed) = &probed
            && let Some(why) = no_file(fd.as_fd(), name, probed, self.tree.nodes().kept)
        {
            let failure = of_source(own_failure(FailureKind::Walk, "copy", bytes, why), "copy", bytes);
            let path = name.as_bytes().to_vec();
            return self.out.push(WalkItem::Failed { path, failure, counts_as: CountsAs::Entry });
        }
        if self.is_not_there(base, name, &probed, &wanted) {
            return;
        }
        let probed = probed.map(|probed| self.with_values(&fd, name, probed));
        self.tell_owners(probed.iter().map(|probed| &probed.seen.meta));
        let Some(about) = self.emit(base, DirId::ROOT, name.clone(), probed) else { return };
        self.root_dev = about.identity.0;
        let down = Down { depth: 1, only: wanted.some(), trail: Vec::new() };
        if !root.is_dir {
            let failure =
                own_failure(FailureKind::Walk, "enter", name.as_bytes(), "became a directory meanwhile");
            let path = name.as_bytes().to_vec();
            self.out.push(WalkItem::Failed { path, failure, counts_as: CountsAs::Entry });
        } else if let Some(level) = self.enter((base, DirId::ROOT), &fd, name.clone(), about, down) {
            self.descend(level);
        }
    }

    /// Walks a directory and everything below it.
    fn descend(&mut self, top: Level) {
        // Levels above the first that have a name of their own: contents are the root itself.
        let above = usize::from(top.id != DirId::ROOT);
        let mut way = Way::new(top, self.open_max);
        // What lies too deep: how many levels are above it, its path, and how many entries it is so far.
        let mut too_deep: Option<(usize, Vec<u8>, u64)> = None;
        while let Some(level) = way.last() {
            if self.out.cancelled() {
                return;
            }
            if level.is_over() {
                let left = way.leave().expect("there is one");
                if !left.counted && left.id != DirId::ROOT {
                    self.out.push(WalkItem::DirEnd(left.id));
                }
                if let Some((_, path, entries)) = too_deep.take_if(|(levels, ..)| *levels == way.len()) {
                    self.leave_out(path, entries);
                }
            } else if let Err(errno) = way.open_last() {
                let level = way.last().expect("there is one");
                level.give_up();
                let path = self.tree.path_of(level.id.as_file());
                self.fail("return to directory", &path, errno, CountsAs::Subtree);
            } else {
                let levels = way.len();
                self.go_on(&mut way, levels + above, &mut too_deep);
            }
            if self.out.sender.is_empty() {
                // The consumer has nothing: do not let it wait for a full batch.
                self.out.flush();
            }
        }
    }

    /// Reads more of the last level, which is open, or enters the next directory in it; `depth` is that
    /// directory's.
    fn go_on(&mut self, way: &mut Way, depth: usize, too_deep: &mut Option<(usize, Vec<u8>, u64)>) {
        let levels = way.len();
        let level = way.last().expect("a level goes on");
        let Some((name, about)) = level.subdirs.next() else {
            match too_deep {
                Some((_, _, entries)) if level.counted => *entries += self.count_level(level),
                _ => self.read_level(level),
            }
            return;
        };
        if depth > DEPTH_MAX {
            let first = too_deep.is_none();
            let path = || self.path(level.place, &name);
            // The first is one of those that are left out; what is in it is counted when it is read.
            let (.., entries) = too_deep.get_or_insert_with(|| (levels, path(), 1));
            match level.below(name) {
                Ok(level) => way.enter(level, &mut self.read_dir),
                Err(_) if first => {
                    let entries = *entries;
                    let (_, path, _) = too_deep.take().expect("just put there");
                    self.leave_out(path, entries);
                }
                // It is counted as one.
                Err(_) => {}
            }
            return;
        }
        let (at, fd, depth) = ((level.place, level.id), level.fd(), level.depth + 1);
        let only = level.wants(&name).some();
        let trail = match self.tree.manners().links.follows() {
            true => way.levels().map(|here| here.identity).collect(),
            false => Vec::new(),
        };
        if let Some(level) = self.enter(at, &fd, name, about, Down { depth, only, trail }) {
            way.enter(level, &mut self.read_dir);
        }
    }

    /// Announces a directory and opens it.
    fn enter(
        &mut self,
        (place, parent): (Place, DirId),
        above: &OwnedFd,
        name: Name,
        about: About,
        Down { depth, only, trail }: Down,
    ) -> Option<Level> {
        let About { meta, version, followed, .. } = about;
        let flags = if followed { DIR_FLAGS.difference(OFlags::NOFOLLOW) } else { DIR_FLAGS };
        let opened = match self.is_mounted(about.identity) {
            // Not even opened, which can be what mounts it.
            true => None,
            false => {
                self.tree.rate().take(cost::OPEN);
                Some(openat(above, name.as_bytes(), flags, Mode::empty()))
            }
        };
        // What was opened counts, whatever was looked at.
        let identity = match &opened {
            Some(Ok(fd)) if self.tree.manners().tells_directories_apart() => identity_of(fd).ok(),
            _ => None,
        };
        let identity = identity.unwrap_or(about.identity);
        let mounted = self.is_mounted(identity);
        if (mounted && !self.is_made_empty(place, &name)) || self.leads_back(place, &name, identity, &trail) {
            return None;
        }
        let file_id = self.take_id();
        let id = file_id.as_dir();
        self.tree.add_dir(id, place, name.clone());
        if followed {
            self.tree.follow(file_id);
        }
        self.totals.dirs += 1;
        let subject = match &opened {
            Some(Ok(fd)) => Subject::Open(fd.as_fd()),
            _ if followed => Subject::Through(above.as_fd(), &name),
            _ => Subject::Name(above.as_fd(), &name),
        };
        let (values, unread) = self.read_dir_values(subject);
        self.tell_values(place, &name, values, unread);
        self.out.push(WalkItem::Entry(Announced {
            id: file_id,
            generation: Generation(0),
            parent,
            name: name.clone(),
            meta,
            kind: EntryKind::Dir { version },
            extras: Extras::default(),
        }));
        match opened.filter(|_| !mounted) {
            None => {
                self.out.push(WalkItem::DirEnd(id));
                None
            }
            Some(Ok(fd)) => {
                let fd = Arc::new(fd);
                self.tree.keep_dir(id, fd.clone());
                let here = Here { identity, ..Here::new(id, Place::Dir(id)) }.wanted(depth, only);
                let level = Level::new(here, Some(name), fd);
                Some(if followed { level.through_link() } else { level })
            }
            Some(Err(errno)) => {
                let path = self.path(place, &name);
                self.fail("open directory", &path, errno, CountsAs::Subtree);
                self.out.push(WalkItem::DirEnd(id));
                None
            }
        }
    }

    /// Reads some names of a directory, or takes those that are wanted, and announces what is not a
    /// directory.
    fn read_level(&mut self, level: &mut Level) {
        let wanted = level.wanted_names();
        let is_listed = wanted.is_some();
        let way::Names { mut names, impossible, broken } = match wanted {
            Some(names) => way::Names { names, ..way::Names::default() },
            None => level.next_names(&mut self.read_dir),
        };
        for (bytes, why) in impossible {
            let mut path = self.tree.path_of(level.id.as_file());
            path.push(b'/');
            path.extend_from_slice(&bytes);
            let failure = own_failure(FailureKind::Walk, "name", &path, &why.to_string());
            self.out.push(WalkItem::Failed { path, failure, counts_as: CountsAs::Entry });
        }
        if let Some(errno) = broken {
            let path = self.tree.path_of(level.id.as_file());
            self.fail("read directory", &path, errno, CountsAs::Subtree);
        }
        // The jobs are looked for when the names are known: a journal is there before its first temporary.
        let jobs = names.iter().any(|name| may_be_ours(name.as_bytes())).then(|| Jobs::at(level.fd()));
        // What is looked for by its name takes that only if it is there.
        if !is_listed {
            names.retain(|name| self.keep_name(level, name, jobs.as_ref()));
        }
        let mut subdirs = Vec::new();
        let looks = self.looks(level.depth);
        let found = self.probe.probe_all(&level.fd(), names, looks);
        self.tell_owners(found.iter().filter_map(|(_, probed)| Some(&probed.as_ref().ok()?.seen.meta)));
        for (name, probed) in found {
            if is_listed
                && (self.is_not_there_below(level, &name, &probed)
                    || !self.keep_name(level, &name, jobs.as_ref()))
            {
                continue;
            }
            let probed = probed.map(|probed| self.with_values(&level.fd(), &name, probed));
            if let Some(about) = self.emit(level.place, level.id, name.clone(), probed) {
                subdirs.push((name, about));
            }
        }
        level.subdirs = subdirs.into_iter();
    }

    /// Reads some names of a directory that lies too deep, and returns how many they are.
    fn count_level(&mut self, level: &mut Level) -> u64 {
        let way::Names { names, impossible, .. } = level.next_names(&mut self.read_dir);
        let entries = names.len() + impossible.len();
        let looks = self.looks(level.depth);
        let found = self.probe.probe_all(&level.fd(), names, looks);
        let is_dir = |probed: &Probed| probed.seen.kind == FileType::Directory;
        let dirs = found.into_iter().filter(|(_, probed)| probed.as_ref().is_ok_and(is_dir));
        level.subdirs = dirs.map(|(name, _)| (name, About::default())).collect::<Vec<_>>().into_iter();
        entries as u64
    }

    /// Whether a name that was found is to be copied: not a job's, and not taken in the root.
    fn keep_name(&mut self, level: &Level, name: &Name, jobs: Option<&Jobs>) -> bool {
        if jobs.is_some_and(|jobs| jobs.own(name.as_bytes()))
            || haul_mutant::removed("names-are-the-users") && may_be_ours(name.as_bytes())
        {
            let path = self.path(level.place, name);
            self.out.push(WalkItem::NotKept(NotKept { path, what: NotKeptWhat::Debris }));
            return false;
        }
        if level.id == DirId::ROOT && !self.root_names.take(name) {
            let path = self.path(level.place, name);
            let cause = "another source has this name already; copy the two into different directories";
            let failure = own_failure(FailureKind::Walk, "name", &path, cause);
            self.out.push(WalkItem::Failed { path, failure, counts_as: CountsAs::Entry });
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests;
