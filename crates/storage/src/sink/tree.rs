//! The destination tree: ids of directories become descriptors.
//!
//! In: announced directories (id, parent, name). Out: an open descriptor of a directory, made if it was not
//! there. Directories are made lazily, private at first; their final mode comes when they are finished.
//! What must hold: at most `fds_max` descriptors are kept (they are reopened from their parents), and a
//! directory that could not be made answers every operation in it with the same failure.
//! No lock is held over a system call but that of the directory concerned, so a slow one delays no other.

use std::collections::{BTreeMap, HashSet};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use haul_base::escape;
use haul_core::entry::{DEPTH_MAX, Meta, Name};
use haul_core::id_map::IdMap;
use haul_core::ids::{DirId, FileId};
use haul_core::journal::{RootId, Widened};
use haul_core::transfer::op::Inode;
use haul_core::wire::{Failure, FailureKind};
use rustix::fs::{Mode, Stat};
use rustix::io::{Errno, Result as OsResult};

use super::above::{make_root, sync_above};
use super::fault;
use super::fold::Claims;
use super::here::Jobs;
use super::lock;
use super::meta::refuse_wider;
use super::names::{may_be_ours, tag_bits, tag_of};
use super::stat::inode_of;
use crate::descriptors::budget;
use crate::io::IoTarget;
use crate::jail::Jail;
use crate::manners::{LinksThere, leads_out};
use crate::meta_rate::MetaRate;
use crate::source::wall_clock;
use crate::volume;

mod enter;
mod root;
mod standing;

pub(super) use root::{Closed, is_closed_to_us};
use root::{LastOfRoot, Opened};
use standing::Standing;

/// Longest path in a message, bytes; longer ones lose their beginning.
const SHOWN_PATH_LEN_MAX: usize = 600;

/// Writes down that a directory is about to be opened to its owner.
pub(super) type Note = Box<dyn Fn(DirId, Widened) -> OsResult<()> + Send + Sync>;

/// The tree below the destination root.
pub struct SinkTree {
    jail: Jail,
    root: Arc<OwnedFd>,
    root_path: PathBuf,
    root_created: bool,
    /// As it was when it was opened, before anything was made in it.
    root_stat: Stat,
    /// What is done to it when the job's own files in it are gone.
    root_last: Mutex<Option<LastOfRoot>>,
    synced_above: usize,
    root_id: RootId,
    root_target: IoTarget,
    /// It is looked at only: nothing is made.
    looks: bool,
    /// A directory lies on another file system than the root.
    several: AtomicBool,
    /// Of temporaries of this job, in this run and before.
    own_tags: OnceLock<HashSet<u32>>,
    nodes: Mutex<IdMap<DirId, Arc<Node>>>,
    claims: Claims,
    /// `None`: no link is followed.
    standing: Option<Standing>,
    /// No link is made that leads out of what is copied.
    safe_links: bool,
    /// Modes of directories that were opened to us and are not finished.
    pub(super) widened: Mutex<BTreeMap<DirId, Mode>>,
    pub(super) note: OnceLock<Note>,
    recent: Mutex<Recent>,
    /// Of who makes something in it.
    rate: OnceLock<Arc<MetaRate>>,
}

struct Node {
    parent: DirId,
    name: Name,
    /// Known when it was opened; before, it is that of the parent.
    target: OnceLock<IoTarget>,
    slot: Mutex<Slot>,
}

struct Slot {
    state: DirState,
    fd: Option<Arc<OwnedFd>>,
    /// In a tree that is looked at: a copy would open it to us.
    closed: bool,
}

enum DirState {
    Unmade,
    /// `stood`: as it was before this run, if it was there.
    There {
        created: bool,
        stood: Option<Box<Stat>>,
    },
    Failed(Failure),
}

/// Which directories are open, least recently used first.
struct Recent {
    fds_max: usize,
    tick: u64,
    by_tick: BTreeMap<u64, DirId>,
    of_dir: IdMap<DirId, u64>,
}

impl SinkTree {
    /// Opens the destination root, which may be a symbolic link; with `create` it is made if it is missing,
    /// with its parents, and their names are synced, whoever made them.
    ///
    /// # Errors
    /// The root is missing, is no directory, or cannot be made.
    pub fn open_root(path: &Path, create: bool) -> Result<SinkTree, Failure> {
        SinkTree::open_root_like(path, create, None)
    }

    /// The same; a root that is made becomes what `like` is, of which contents come into it: at once in what
    /// others may do there, and in the rest by [`SinkTree::finish_root`].
    ///
    /// # Errors
    /// The same, and the file system keeps a mode that allows more.
    pub fn open_root_like(path: &Path, create: bool, like: Option<&Meta>) -> Result<SinkTree, Failure> {
        SinkTree::open_root_with(path, create, (like, false), Closed::Stays)
    }

    /// The same; with `private` a root that is made is its owner's alone until it is finished. `closed`: what
    /// becomes of one that stands and is closed to its owner.
    ///
    /// # Errors
    /// The same.
    pub(super) fn open_root_with(
        path: &Path,
        create: bool,
        (like, private): (Option<&Meta>, bool),
        closed: Closed,
    ) -> Result<SinkTree, Failure> {
        let shown = escape::within(path.as_os_str().as_bytes());
        let mut created = false;
        let opened = match Opened::at(path, closed) {
            Err(Errno::NOENT) if create => {
                let others = if private { 0 } else { 0o1777 };
                let mode = like.map(|like| Mode::from_raw_mode(like.mode & others) | Mode::RWXU);
                created = make_root(path, mode)
                    .map_err(|errno| fault::os(FailureKind::Create, "create directory", &shown, errno))?;
                Opened::at(path, Closed::Stays)
            }
            other => other,
        };
        let opened = opened.map_err(|errno| match errno {
            Errno::NOTDIR => not_a_directory(&shown),
            _ => fault::os(FailureKind::Open, "open directory", &shown, errno),
        })?;
        let root = opened.fd.clone();
        let synced_above = match create {
            true => sync_above(&root)
                .map_err(|errno| fault::os(FailureKind::Sync, "sync above", &shown, errno))?,
            false => 0,
        };
        let jail = Jail::probe(&root);
        let stat =
            rustix::fs::fstat(&root).map_err(|errno| fault::os(FailureKind::Open, "stat", &shown, errno))?;
        let stat = opened.stood.unwrap_or(stat);
        if let Some(like) = like.filter(|_| created) {
            refuse_wider(&stat, like, &shown)?;
        }
        let root_id =
            volume::root_id(&root).map_err(|errno| fault::os(FailureKind::Open, "stat", &shown, errno))?;
        Ok(SinkTree {
            jail,
            root_target: IoTarget::of(&root),
            looks: false,
            several: AtomicBool::new(false),
            root,
            root_path: path.to_owned(),
            root_created: created,
            root_stat: stat,
            root_last: Mutex::new(opened.take()),
            synced_above,
            root_id,
            own_tags: OnceLock::new(),
            nodes: Mutex::default(),
            claims: Claims::default(),
            standing: None,
            safe_links: false,
            widened: Mutex::default(),
            note: OnceLock::new(),
            recent: Mutex::new(Recent {
                fds_max: budget().sink_dirs,
                tick: 0,
                by_tick: BTreeMap::new(),
                of_dir: IdMap::default(),
            }),
            rate: OnceLock::new(),
        })
    }

    /// From now on no more than `max` directories are kept open.
    pub(super) fn set_dirs_open(&self, max: usize) {
        let mut recent = self.recent.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        recent.fds_max = recent.fds_max.min(max.max(1));
    }

    /// The same tree with another jail and at most `fds_max` (at least one) descriptors kept open.
    pub fn with_limits(mut self, jail: Jail, fds_max: usize) -> SinkTree {
        self.jail = jail;
        self.recent.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()).fds_max = fds_max.max(1);
        self
    }

    /// The same tree, in which nothing is made or changed: a directory that is not there fails with `ENOENT`.
    pub fn to_look_at(mut self) -> SinkTree {
        self.looks = true;
        self
    }

    /// The same tree, where this becomes of symbolic links.
    pub(super) fn with_links(self, links: LinksThere) -> SinkTree {
        let standing = links.keep.then(|| {
            let standing = Standing::new(links.begun, wall_clock()());
            // What is copied comes into the root.
            let _ = standing.take(inode_of(&self.root_stat), DirId::ROOT, None);
            standing
        });
        SinkTree { standing, safe_links: links.safe, ..self }
    }

    /// A link that this copy makes is about to get its name.
    pub(super) fn link_comes(&self, inode: Inode) {
        if let Some(standing) = &self.standing
            && !haul_mutant::removed("links-are-known-when-they-come")
        {
            standing.comes(inode);
        }
    }

    /// Whether a link of this text may be made in the directory.
    ///
    /// # Errors
    /// It leads out of what is copied, and none of these is wanted: an honest source leaves it out.
    pub(super) fn may_link(&self, parent: DirId, name: &Name, target: &[u8]) -> Result<(), Failure> {
        let leads_out = self.safe_links && leads_out(target, self.depth(parent));
        if !leads_out || haul_mutant::removed("unsafe-links-are-refused") {
            return Ok(());
        }
        let path = self.path_of(parent, name);
        let text = format!("{path}: a link that leads out of what is copied, which `safe_links` leaves out");
        Err(fault::failure(FailureKind::Create, Errno::PERM.raw_os_error(), text))
    }

    /// What directories cost that are reached again, or by links, is charged to this rate. The first word
    /// counts.
    pub(super) fn set_rate(&self, rate: &Arc<MetaRate>) {
        let _ = self.rate.set(rate.clone());
    }

    /// Operations of metadata are made, perhaps with a lock held.
    fn charge(&self, operations: u32) {
        if let Some(rate) = self.rate.get() {
            rate.charge(operations);
        }
    }

    /// The jail of all effects in this tree.
    pub fn jail(&self) -> Jail {
        self.jail
    }

    /// The descriptor of the destination root.
    pub fn root(&self) -> &Arc<OwnedFd> {
        &self.root
    }

    /// Directories above the root that were synced when it was opened.
    pub fn synced_above(&self) -> usize {
        self.synced_above
    }

    /// What tells the destination root from all others.
    pub fn root_id(&self) -> &RootId {
        &self.root_id
    }

    /// Says which tags stand in the names of this job's temporaries. The first word counts.
    pub(super) fn set_own_tags(&self, tags: impl IntoIterator<Item = u32>) {
        let _ = self.own_tags.set(tags.into_iter().map(tag_bits).collect());
    }

    /// Whether an entry of this name may be made in the directory: what a job here owns is not for a source
    /// to name, this job's least of all.
    ///
    /// # Errors
    /// The name is that of a job's journal, owner file or temporary.
    pub(super) fn may_take(&self, dir: &OwnedFd, parent: DirId, name: &Name) -> Result<(), Failure> {
        let bytes = name.as_bytes();
        if !may_be_ours(bytes) || haul_mutant::removed("job-names-are-refused") {
            return Ok(());
        }
        let own = |tags: &HashSet<u32>| tag_of(bytes).is_some_and(|tag| tags.contains(&tag));
        if !self.own_tags.get().is_some_and(own) && !Jobs::at(dir).own(bytes) {
            return Ok(());
        }
        let path = self.path_of(parent, name);
        let text =
            format!("{path} is the name of a file of a copy into this destination; rename it at the source");
        Err(fault::failure(FailureKind::Create, Errno::EXIST.raw_os_error(), text))
    }

    /// Makes the directory known. The root is known already, and a second registration changes nothing.
    pub fn register(&self, id: DirId, parent: DirId, name: Name) {
        if id != DirId::ROOT {
            let slot = Mutex::new(Slot { state: DirState::Unmade, fd: None, closed: false });
            lock(&self.nodes)
                .entry(id)
                .or_insert_with(|| Arc::new(Node { parent, name, target: OnceLock::new(), slot }));
        }
    }

    /// The directory is over: nothing below it will be asked for.
    pub fn forget(&self, id: DirId) {
        lock(&self.nodes).remove(&id);
        lock(&self.recent).forget(id);
        self.claims.forget(id);
        if let Some(standing) = &self.standing {
            standing.forget(id);
        }
        lock(&self.widened).remove(&id);
    }

    /// Directories known now, without the root.
    pub fn known(&self) -> usize {
        lock(&self.nodes).len()
    }

    /// The directory as it is, made if it was not there.
    ///
    /// # Errors
    /// It, or a directory above it, could not be made or opened, or is something else than a directory.
    pub fn dirfd(&self, id: DirId) -> Result<Arc<OwnedFd>, Failure> {
        let mut below = Vec::new();
        let mut at = id;
        let mut fd = loop {
            if at == DirId::ROOT {
                break self.root.clone();
            }
            let node = self.node(at)?;
            let slot = lock(&node.slot);
            if let DirState::Failed(failure) = &slot.state {
                return Err(failure.clone());
            }
            if let Some(fd) = &slot.fd {
                break fd.clone();
            }
            drop(slot);
            if below.len() == DEPTH_MAX {
                return Err(too_deep(at));
            }
            let parent = node.parent;
            below.push((at, node));
            at = parent;
        };
        for (id, node) in below.into_iter().rev() {
            fd = self.enter(id, &node, &fd)?;
        }
        if id != DirId::ROOT {
            self.touch(id);
        }
        Ok(fd)
    }

    /// As it was named.
    pub(super) fn root_path(&self) -> &Path {
        &self.root_path
    }

    /// Whether this run made the directory. False as long as nothing was asked of it.
    pub fn was_created(&self, id: DirId) -> bool {
        if id == DirId::ROOT {
            return self.root_created;
        }
        match self.node(id) {
            Ok(node) => matches!(lock(&node.slot).state, DirState::There { created: true, .. }),
            Err(_) => false,
        }
    }

    /// The entry `who` has the inode that stands at `name`, in the directory open as `fd`. False: the
    /// destination takes the names of two entries for one, and the other has it.
    pub(super) fn claim(&self, dir: DirId, fd: &OwnedFd, name: &Name, inode: Inode, who: FileId) -> bool {
        let free = self.was_created(dir) || haul_mutant::removed("one-entry-per-inode");
        free || self.claims.claim(self.jail, (dir, fd), name, inode, who)
    }

    /// The entry has this inode no more.
    pub(super) fn unclaim(&self, dir: DirId, inode: Inode, who: FileId) {
        self.claims.release(dir, inode, who);
    }

    /// Why an entry cannot have its name: another one of this copy has it.
    pub(super) fn folded(&self, dir: DirId, name: &Name) -> Failure {
        let text = format!(
            "{}: another entry of this copy stands there, for the destination takes both names for one (upper and lower \
             case, or forms of Unicode); it was left as it is",
            self.path_of(dir, name)
        );
        fault::failure(FailureKind::Publish, Errno::NOTUNIQ.raw_os_error(), text)
    }

    /// The directory as it was when it was opened first, before anything was made in it. `None`: this run
    /// made it, or nothing was asked of it yet.
    pub fn stood(&self, id: DirId) -> Option<Stat> {
        if id == DirId::ROOT {
            return (!self.root_created).then_some(self.root_stat);
        }
        match &lock(&self.node(id).ok()?.slot).state {
            DirState::There { stood, .. } => stood.as_deref().copied(),
            DirState::Unmade | DirState::Failed(_) => None,
        }
    }

    /// In a tree that is looked at: the directory, or one above it, is ours and closed to us, so that nobody
    /// can look into it before a copy has opened it.
    pub fn is_closed(&self, id: DirId) -> bool {
        let mut at = id;
        for _ in 0..=DEPTH_MAX {
            if at == DirId::ROOT {
                let no_search = self.root_stat.st_mode & Mode::XUSR.as_raw_mode() == 0;
                return no_search && is_closed_to_us(&self.root_stat);
            }
            let Ok(node) = self.node(at) else { return false };
            if lock(&node.slot).closed {
                return true;
            }
            at = node.parent;
        }
        false
    }

    /// Directories between this one and the root.
    pub fn depth(&self, id: DirId) -> usize {
        let mut depth = 0;
        let mut at = id;
        while at != DirId::ROOT && depth <= DEPTH_MAX {
            let Ok(node) = self.node(at) else { break };
            at = node.parent;
            depth += 1;
        }
        depth
    }

    /// The target of all directories that were opened so far, if there is only one.
    pub fn one_target(&self) -> Option<IoTarget> {
        (!self.several.load(Ordering::Relaxed)).then_some(self.root_target)
    }

    /// The storage target of what lies in the directory, as far as it was opened; never waits for storage.
    pub fn target_of(&self, id: DirId) -> IoTarget {
        let mut at = id;
        // Most trees are one file system, and nothing has to be looked up for each file.
        while at != DirId::ROOT && self.several.load(Ordering::Relaxed) {
            let Ok(node) = self.node(at) else { break };
            if let Some(target) = node.target.get() {
                return *target;
            }
            at = node.parent;
        }
        self.root_target
    }

    /// The path of `name` in the directory, for messages: control bytes escaped, the beginning cut off if it
    /// is long.
    pub fn path_of(&self, dir: DirId, name: &Name) -> String {
        self.shown_path(dir, Some(name))
    }

    /// The path of the directory, for messages.
    pub fn path_of_dir(&self, dir: DirId) -> String {
        self.shown_path(dir, None)
    }

    /// The names that lead from the root to the directory.
    pub(super) fn names_of(&self, dir: DirId) -> Vec<Name> {
        let mut names = Vec::new();
        let mut at = dir;
        while at != DirId::ROOT && names.len() <= DEPTH_MAX {
            let Ok(node) = self.node(at) else { break };
            names.push(node.name.clone());
            at = node.parent;
        }
        names.reverse();
        names
    }

    /// The directory above, and the name in it. `None`: the root, or one that is over.
    pub(super) fn place_of(&self, dir: DirId) -> Option<(DirId, Name)> {
        let node = self.node(dir).ok().filter(|_| dir != DirId::ROOT)?;
        Some((node.parent, node.name.clone()))
    }

    fn shown_path(&self, dir: DirId, name: Option<&Name>) -> String {
        let mut parts: Vec<String> = name.iter().map(|name| escape::within(name.as_bytes())).collect();
        let mut at = dir;
        while at != DirId::ROOT && parts.len() <= DEPTH_MAX {
            let Ok(node) = self.node(at) else { break };
            parts.push(escape::within(node.name.as_bytes()));
            at = node.parent;
        }
        parts.push(escape::within(self.root_path.as_os_str().as_bytes()));
        parts.reverse();
        let path = parts.join("/");
        if path.len() <= SHOWN_PATH_LEN_MAX {
            return path;
        }
        let cut = (path.len() - SHOWN_PATH_LEN_MAX..path.len()).find(|at| path.is_char_boundary(*at));
        format!("...{}", &path[cut.unwrap_or(path.len())..])
    }

    fn node(&self, id: DirId) -> Result<Arc<Node>, Failure> {
        lock(&self.nodes).get(&id).cloned().ok_or_else(|| {
            fault::failure(FailureKind::Protocol, 0, format!("directory {id} was never announced or is over"))
        })
    }

    /// Notes a use and closes the directory that was not used for longest if too many are open.
    fn touch(&self, id: DirId) {
        let closed = lock(&self.recent).touch(id);
        for id in closed {
            if let Ok(node) = self.node(id) {
                lock(&node.slot).fd = None;
            }
        }
    }
}

impl Recent {
    /// Returns the directories to close.
    fn touch(&mut self, id: DirId) -> Vec<DirId> {
        self.tick += 1;
        if let Some(before) = self.of_dir.insert(id, self.tick) {
            self.by_tick.remove(&before);
        }
        self.by_tick.insert(self.tick, id);
        let mut closed = Vec::new();
        while self.by_tick.len() > self.fds_max {
            if let Some((_, id)) = self.by_tick.pop_first() {
                self.of_dir.remove(&id);
                closed.push(id);
            }
        }
        closed
    }
    fn forget(&mut self, id: DirId) {
        if let Some(tick) = self.of_dir.remove(&id) {
            self.by_tick.remove(&tick);
        }
    }
}

fn not_a_directory(path: &str) -> Failure {
    fault::failure(
        FailureKind::Create,
        Errno::NOTDIR.raw_os_error(),
        format!("{path} is not a directory; nothing was removed"),
    )
}

fn too_deep(id: DirId) -> Failure {
    fault::failure(
        FailureKind::Protocol,
        0,
        format!("directory {id} lies more than {DEPTH_MAX} levels below the destination"),
    )
}

#[cfg(test)]
#[path = "tree_tests.rs"]
pub(super) mod tests;
