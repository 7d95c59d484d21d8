//! A POSIX directory as a destination: whose job it is, what an earlier run left of it, and the engine that
//! writes into it.
//!
//! In: a path as typed, what will come. Out: a claim, with the job's owner, its journal replayed and begun
//! anew.
//! Invariants: nothing is written before the job is ours; the journal that is begun names the tag of this
//! run's temporaries before the first of them is made.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use haul_core::entry::{Meta, Name};
use haul_core::ids::DirId;
use haul_core::journal::{Replay, Replayed};
use haul_core::wire::{Failure, FailureKind, SinkOptions, SourceRoot};
use rustix::fs::Access;
use rustix::io::Errno;

use super::clean::{Job, age_in_words, find_debris};
use super::looker::{Looker, denied};
use super::owner::Life;
use super::place::{no_state, refuse_special, unopened, unwritable};
use super::tree::{Closed, is_closed_to_us};
use super::whole_sync::WholeSync;
use super::widened::restore;
use super::{
    AcquireError, Adopt, Beside, EngineConfig, Ground, InPlace, JobDir, JobKey, Journal, Left,
    NotKeptCounters, Ours, Owner, Patience, SinkLayout, SinkTree, Stripes, WriteEngine,
};
use crate::SinkEngine;
use crate::attributes::Keeps;
use crate::jail::Jail;
use crate::manners::LinksThere;
use crate::place::{Destination, PlaceError};
use crate::store::job::{begin_journal, fresh_tag, job_of, names_of};
use crate::store::{Capabilities, Claimed, Coming, Finding, HeldJob, Looks, SinkStore, Waiting, Writing};
use haul_base::errno;
use haul_base::escape;
use haul_base::kernel::boot_id;
use haul_base::mounts::Mount;
use haul_base::users::{self, Unexpanded, name_of};

/// A directory, or a file in one, as it was typed.
pub struct Directory {
    typed: Vec<u8>,
    home: Option<PathBuf>,
    state: Option<PathBuf>,
    links: LinksThere,
}

/// Names a destination that is a path.
pub(crate) fn open(destination: &Destination<'_>) -> Result<Box<dyn SinkStore>, Failure> {
    let typed = destination.place.as_file().map_err(PlaceError::misused)?.to_vec();
    let (home, state) = (destination.home.map(Path::to_owned), destination.state.map(Path::to_owned));
    let links = destination.links;
    Ok(Box::new(Directory { typed, home, state, links }))
}

impl SinkStore for Directory {
    fn capabilities(&self) -> Capabilities {
        Capabilities::POSIX
    }

    fn claim(self: Box<Self>, coming: &Coming<'_>, waiting: &dyn Waiting) -> Result<Claimed, Failure> {
        let Coming { roots, policy, .. } = *coming;
        let (root, rename) = destination(&self.typed, roots, self.home.as_deref())?;
        // Only the last component of a new destination is made for a single file's directory: a typing error
        // must not grow a tree.
        let like = root_like(roots);
        // Who must not be in it may be told by its list alone, which it gets at the end.
        let closed =
            coming.root().is_some() && policy.acls && !haul_mutant::removed("roots-wait-for-their-lists");
        let opens = if coming.root().is_some() { Closed::Opens } else { Closed::Stays };
        let tree = SinkTree::open_root_with(&root, rename.is_none(), (like.as_ref(), closed), opens)
            .map_err(|failure| unopened(failure, &self.typed, &root, rename.is_some()))?
            .with_links(self.links);
        // Until the job is ours, or not: then it is closed again.
        let tree = ClosesAgain(Some(tree));
        refuse_special(tree.root(), &root, rename.as_ref(), coming)?;
        if coming.root().is_some() {
            tree.open_root_to_us().map_err(|errno| {
                let text = format!("open the destination to its owner: {}", errno::text(errno));
                Failure { kind: FailureKind::Create, errno: errno.raw_os_error(), text: text.into() }
            })?;
        }
        let key = job_of(tree.root_id(), roots, rename.as_ref(), coming.part.as_ref());
        let state = self.state.as_deref();
        let place =
            JobDir::open(state.unwrap_or(&root), JobKey::new(&key)).map_err(|failure| match state {
                Some(dir) => no_state(failure, dir),
                None => failure,
            })?;
        let owner = acquire(&place, coming, waiting).map_err(|e| match e {
            AcquireError::Failed(failure) => unwritable(failure, &root, state),
            // EBUSY: it passes, with that run.
            AcquireError::Held(_) => {
                Failure { kind: FailureKind::Create, errno: 16, text: e.to_string().into() }
            }
            held => Failure { kind: FailureKind::Create, errno: 0, text: held.to_string().into() },
        })?;
        let owner = Arc::new(owner);
        let ours = whose(&place, &tree, state.is_some(), waiting)?;
        let replayed = replay(&place, policy.durable)?;
        let resumed = replayed.is_some();
        let replayed = believed(replayed.unwrap_or_default(), &place, &owner)?;
        if coming.in_place && (owner.follows_unproven() || !replayed.unproven.is_empty()) {
            refuse_unproven()?;
        }
        let replayed = of_this_place(replayed, &tree, &root, ours)?;
        let (epoch, tag) = (owner.epoch(), fresh_tag());
        let (bytes, resume) = begin_journal(replayed, (key, tree.root_id().clone()), (epoch, tag), coming);
        let mut journal = Journal::new(owner.clone());
        // Before the first temporary is made: its tag must be known to whoever cleans up.
        journal.replace(&bytes)?;
        owner.settle();
        let mut found: Vec<Finding> = debris_of_others(&place, &root, state.is_some()).into_iter().collect();
        found.extend(in_memory(tree.root()).map(Finding::InMemory));
        let wait = resumed || stands_already(&tree, roots, rename.as_ref());
        let names = names_of(roots, rename.as_ref());
        let earlier = &resume.replayed;
        let (job_root, tree) = (coming.root(), Arc::new(tree.keep()));
        let job = HeldDirectory {
            like: like.filter(|_| job_root.is_none()).map(|like| (like, policy)),
            durable: policy.durable,
            written: OnceLock::new(),
            ready: Some(Ready {
                adopt: Adopt::new(ours, &earlier.tags, &earlier.unproven, policy.no_clobber),
                old_tags: earlier.tags.clone(),
                left: Left {
                    names: names.clone(),
                    parts: earlier.partials.values().map(|p| (p.tag, p.number)).collect(),
                    clean: clean_command(&root, state),
                },
                confirm: owner.follows_unproven() || earlier.may_be_overtaken(),
                in_place: in_place(coming),
                tree: tree.clone(),
                journal,
                tag,
            }),
            tree,
            owner,
        };
        let root = job_root;
        Ok(Claimed { job: Box::new(job), resume, epoch, tag, wait, rename, resumed, names, root, found })
    }

    fn look(self: Box<Self>, coming: &Coming<'_>) -> Result<(Box<dyn Looks>, Option<Name>), Failure> {
        let (root, rename) = destination(&self.typed, coming.roots, self.home.as_deref())?;
        let looker = Looker::open(&root)?.in_place(in_place(coming)).keeping(Keeps::of(&coming.policy));
        let looker = looker.with_links(self.links);
        let failed = |errno: Errno| {
            let (errno, text) = (errno.raw_os_error(), "create a file there".into());
            Failure { kind: FailureKind::Open, errno, text }
        };
        // As a copy has it: only the last component of a new destination is made for a single file, and one
        // in which nothing can be written is told at the start.
        if rename.is_some() && looker.is_nothing() {
            return Err(unopened(failed(Errno::NOENT), &self.typed, &root, rename.is_some()));
        }
        if let Some(stands) = looker.root() {
            refuse_special(stands, &root, rename.as_ref(), coming)?;
        }
        if let Some(errno) = above_denies(&root).filter(|_| looker.is_nothing()) {
            return Err(unopened(failed(errno), &self.typed, &root, false));
        }
        if let Some(state) = self.state.as_deref() {
            let place = Jail::open_root(state).map_err(|errno| no_state(failed(errno), state))?;
            if let Some(errno) = denied(&place, b".", Access::WRITE_OK | Access::EXEC_OK) {
                return Err(unwritable(failed(errno), &root, Some(state)));
            }
        }
        let is_closed = |dir: &OwnedFd| rustix::fs::fstat(dir).is_ok_and(|stat| is_closed_to_us(&stat));
        let opens = |looker: &Looker| looker.root().is_some_and(is_closed) && coming.root().is_some();
        if let Some(errno) = looker.denies_files().filter(|_| !opens(&looker)) {
            return Err(unwritable(failed(errno), &root, None));
        }
        Ok((Box::new(looker), rename))
    }
}

/// What the engine is made of.
struct Ready {
    tree: Arc<SinkTree>,
    journal: Journal,
    tag: u32,
    old_tags: Vec<u32>,
    left: Left,
    /// Which temporaries of earlier runs may be taken over.
    adopt: Adopt,
    confirm: bool,
    /// Files are written in place.
    in_place: Option<InPlace>,
}

struct HeldDirectory {
    owner: Arc<Owner>,
    tree: Arc<SinkTree>,
    /// What a root that was made becomes at the end, where its engine does not see to that.
    like: Option<(Meta, SinkOptions)>,
    durable: bool,
    /// Once the engine was started: what it could not keep.
    written: OnceLock<Arc<NotKeptCounters>>,
    /// `None`: the engine was started.
    ready: Option<Ready>,
}

impl HeldJob for HeldDirectory {
    fn start(&mut self, writing: Writing) -> Result<Box<dyn SinkEngine>, Failure> {
        let Writing { agreed, policy, clones, writers, storage, layout, memory, budget, meter, post } =
            writing;
        let ready = self.ready.take().ok_or_else(|| started("it was started before"))?;
        let still_owner = {
            let owner = self.owner.clone();
            Arc::new(move || owner.still_owner())
        };
        let ground = Ground::of(&ready.tree, ready.tag);
        let tree = &self.tree;
        let config = EngineConfig {
            tree: ready.tree,
            tag: ready.tag,
            old_tags: ready.old_tags,
            left: ready.left,
            adopt: ready.adopt,
            confirm: ready.confirm,
            threads: writers,
            dir_owner: policy.owner,
            keeps: Keeps::of(&policy),
            still_owner,
            journal: Some(ready.journal),
            storage,
            memory,
            budget,
            sink_layout: SinkLayout::of(&ground).filter(|_| agreed.targets),
            stripes: Stripes::new(layout, ground.provider.clone()),
            in_place: ready.in_place,
            copies_all: policy.force,
            object_len: ground.object_len,
            whole_sync: policy.durable.then(|| WholeSync::new(tree)).flatten(),
            clones,
            durable: policy.durable,
        };
        let engine = WriteEngine::new(config, meter, post).map_err(started)?;
        // Set here alone, once.
        let _ = self.written.set(engine.not_kept_counters());
        Ok(Box::new(engine))
    }

    fn set_ends(&self, ends: bool) {
        self.owner.set_ends(ends);
    }

    fn set_yields(&self, yields: bool) {
        self.owner.set_yields(yields);
    }

    fn finish(&self) {
        self.owner.release();
        let Some(lost) = self.written.get() else { return };
        // What is refused is counted, and nothing is wider for it.
        if let Some((like, policy)) = &self.like {
            let _ = self.tree.finish_root(like, (policy.owner, policy.durable), lost);
        }
        let _ = self.tree.end_root(self.durable, lost);
    }

    fn stays(&self) -> Option<String> {
        self.owner.stays().map(str::to_owned)
    }

    fn leave(&self) {
        self.owner.leave();
    }
}

impl Drop for HeldDirectory {
    fn drop(&mut self) {
        // Of a run that came to no end: the next one opens it again.
        let _ = self.tree.end_root(false, &NotKeptCounters::default());
    }
}

/// A tree whose root is closed again when it is dropped, if it was opened to us.
struct ClosesAgain(Option<SinkTree>);

impl ClosesAgain {
    fn keep(mut self) -> SinkTree {
        self.0.take().expect("it is kept once")
    }
}

impl std::ops::Deref for ClosesAgain {
    type Target = SinkTree;

    fn deref(&self) -> &SinkTree {
        self.0.as_ref().expect("it was not kept yet")
    }
}

impl Drop for ClosesAgain {
    fn drop(&mut self) {
        if let Some(tree) = &self.0 {
            let _ = tree.end_root(false, &NotKeptCounters::default());
        }
    }
}

fn started(why: impl std::fmt::Display) -> Failure {
    let text = format!("starting the writing threads: {}", errno::text(why));
    Failure { kind: FailureKind::Local, errno: 0, text: text.into() }
}

/// Why the missing directories of a destination cannot be made, as far as that can be told without doing it.
fn above_denies(root: &Path) -> Option<Errno> {
    let stands = |above: &&Path| above.as_os_str().is_empty() || above.symlink_metadata().is_ok();
    let above = root.ancestors().skip(1).find(stands)?;
    let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
    denied(rustix::fs::CWD, above.as_os_str().as_bytes(), Access::WRITE_OK | Access::EXEC_OK)
}

/// How files are written in place, if they are.
fn in_place(coming: &Coming<'_>) -> Option<InPlace> {
    let part = coming.part.and_then(|part| part.sink);
    let sources = || Beside::new(coming.sources_here.to_vec());
    coming.in_place.then(|| InPlace::new(part, coming.policy.durable, sources()))
}

/// What a destination root becomes that has to be made: what the directory is whose contents come into it. Of
/// several it allows what all of them do.
fn root_like(roots: &[SourceRoot]) -> Option<Meta> {
    let contents = roots.iter().filter_map(|root| match root {
        SourceRoot::Contents { meta, .. } => Some(*meta),
        SourceRoot::Named { .. } => None,
    });
    contents.reduce(|first, next| Meta { mode: first.mode & next.mode, ..first })
}

/// Takes the job, when who has it is dead or gives way.
fn acquire(place: &JobDir, coming: &Coming<'_>, waiting: &dyn Waiting) -> Result<Owner, AcquireError> {
    let floor = replay(place, coming.policy.durable).map_err(AcquireError::Failed)?;
    let floor = floor.map_or(0, |replayed| replayed.epoch_max);
    let mut said = String::new();
    let mut stop = |waits: &str| {
        if said != waits {
            said = waits.to_owned();
            waiting.say(waits);
        }
        waiting.stopped()
    };
    let what = described(coming);
    let patience = Patience { takes_unproven: !coming.in_place, ..Patience::default() };
    place.acquire_unless(floor, &what, &patience, &mut stop)
}

/// An earlier run of the job may still write, into the very files that this one would write into.
fn refuse_unproven() -> Result<(), Failure> {
    if haul_mutant::removed("in-place-follows-the-dead") {
        return Ok(());
    }
    let text = "an earlier run of this copy is not known to have ended, and may still write into the files at the destination: \
                nothing is written in place beside it. Run the command without `in_place`, or make sure that it has ended and remove what it \
                left with haul clean";
    Err(Failure { kind: FailureKind::Create, errno: 0, text: text.into() })
}

/// What of a journal counts, by who wrote it and who may still write.
fn believed(mut replayed: Replayed, place: &JobDir, owner: &Owner) -> Result<Replayed, Failure> {
    if place.ours()?.faked {
        // Anybody may have written it. Its tags serve to remove what runs left, and no more.
        replayed.partials.clear();
        replayed.done.clear();
        replayed.finished.clear();
        replayed.widened.clear();
    }
    if owner.follows_unproven() {
        replayed.follow_unproven();
    }
    Ok(replayed)
}

/// The journal must be of this directory; directories that an earlier run opened are closed again.
fn of_this_place(
    mut replayed: Replayed,
    tree: &SinkTree,
    root: &Path,
    ours: Option<Ours>,
) -> Result<Replayed, Failure> {
    if replayed.head.as_ref().is_some_and(|(_, of)| of != tree.root_id()) {
        let text = format!(
            "the journal in {} belongs to another destination directory; look whether the right file system is mounted, or \
             remove the journal",
            root.display()
        );
        return Err(Failure { kind: FailureKind::Create, errno: 0, text: text.into() });
    }
    // What cannot be looked at now is left to the next run.
    replayed.widened = match ours {
        Some(ours) => restore(tree.root(), tree.jail(), ours, replayed.widened),
        None => Vec::new(),
    };
    Ok(replayed)
}

/// How our files look in the destination. `None`: nobody can tell whose a file is there, so that nothing is
/// taken over; that is said.
fn whose(
    place: &JobDir,
    tree: &SinkTree,
    elsewhere: bool,
    waiting: &dyn Waiting,
) -> Result<Option<Ours>, Failure> {
    let kept = place.ours()?;
    let ours = match elsewhere {
        false => kept,
        true => Ours::learn_beside(tree.jail(), &**tree.root()).map_err(|errno| {
            let text = format!("create a file in the destination: {}", errno::text(errno));
            Failure { kind: FailureKind::Create, errno: errno.raw_os_error(), text: text.into() }
        })?,
    };
    let fakes = |what: &str| {
        format!(
            "{what} does not keep owners and modes of files (vfat, CIFS, or NFS that makes all users one)"
        )
    };
    if kept.faked {
        let what = if elsewhere { "the state directory" } else { "the destination" };
        waiting.say(&format!(
            "{}, so that nobody can tell whose a journal or a temporary there is: an interrupted copy begins its unfinished files \
             anew. With a `state_dir`, on a file system that keeps them, it goes on where it was",
            fakes(what)
        ));
        return Ok(None);
    }
    if ours.faked {
        waiting.say(&format!(
            "{}: parts of files are taken over as the journal in the state directory says, but whoever may write to the \
             destination may write into them while they are copied",
            fakes("the destination")
        ));
    }
    Ok(Some(ours))
}

/// What dead copies of other jobs left where this one keeps its journal, and how to remove it. Where that
/// cannot be seen it is not told.
fn debris_of_others(place: &JobDir, root: &Path, elsewhere: bool) -> Option<Finding> {
    if elsewhere {
        // The jobs of a state directory are of many destinations.
        return None;
    }
    let jobs = find_debris(root).unwrap_or_default();
    let dead: Vec<&Job> =
        jobs.iter().filter(|job| job.life == Life::Dead && job.key != *place.key()).collect();
    let clean = clean_command(root, None);
    // The youngest is the one that somebody may want to go on with.
    let last = dead.iter().min_by_key(|job| job.age.unwrap_or(Duration::MAX))?;
    let what = last.owner.as_ref().map(|owner| owner.what.trim_start_matches("copy ").to_owned());
    let by = last.user.map(|user| format!("by {}", name_of(user)));
    let age = last.age.map(|age| format!("{} ago", age_in_words(age)));
    let known: Vec<String> = [what.filter(|what| !what.is_empty()), by, age].into_iter().flatten().collect();
    let known = known.join(", ");
    let text = match dead.len() {
        1 => {
            format!("an interrupted copy ({known}) can be completed by its command, or removed with {clean}")
        }
        n => format!(
            "{n} interrupted copies (the last {known}) can be completed by their commands, or removed with \
             {clean}"
        ),
    };
    Some(Finding::Debris(text))
}

/// The command that removes what dead copies into `root` left, for a shell.
fn clean_command(root: &Path, state: Option<&Path>) -> String {
    let quoted = |path: &Path| {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
    };
    match state {
        None => format!("haul clean -- {}", quoted(root)),
        Some(state) => format!("haul clean --state {} -- {}", quoted(state), quoted(root)),
    }
}

/// The name of the file system, if it is one that keeps files in memory alone.
fn in_memory(root: impl AsFd) -> Option<&'static str> {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    const OVERLAY: u64 = 0x794c_7630;
    let kind = |fs: rustix::fs::StatFs| fs.f_type as u64 & 0xffff_ffff;
    let mut found = kind(rustix::fs::fstatfs(&root).ok()?);
    if found == OVERLAY {
        // It keeps what its upper directory does, where that can be seen.
        let mount = Mount::of(&root).ok()??;
        let upper = mount.options.split(',').find_map(|option| option.strip_prefix("upperdir="))?;
        found = kind(rustix::fs::statfs(upper).ok()?);
    }
    match found {
        TMPFS => Some("tmpfs"),
        RAMFS => Some("ramfs"),
        _ => None,
    }
}

/// What a job says of itself: what comes from the source, and where it goes.
fn described(coming: &Coming<'_>) -> String {
    let part = coming.part.map(|part| format!("({}) ", part.in_words())).unwrap_or_default();
    let to = format!("{part}{}", coming.what.trim_start_matches("copy "));
    let names: Vec<String> = coming
        .roots
        .iter()
        .map(|root| match root {
            SourceRoot::Named { name, .. } => escape::within(name.as_bytes()),
            SourceRoot::Contents { of, .. } => {
                escape::within(of.as_ref().map_or(b"".as_slice(), |of| of.as_bytes())) + "/"
            }
        })
        .collect();
    match &names[..] {
        [] => format!("copy {to}"),
        [one] => format!("copy of {one} {to}"),
        [first, more @ ..] => format!("copy of {first} and {} more {to}", more.len()),
    }
}

/// What the journal in `place` is worth; `None` if there is none.
fn replay(place: &JobDir, durable: bool) -> Result<Option<Replayed>, Failure> {
    let mut replay = Replay::new();
    let mut bad = None;
    let found = place.load(&mut |bytes| {
        if bad.is_none() {
            bad = replay.feed(bytes).err();
        }
    })?;
    if !found {
        return Ok(None);
    }
    let finished = match bad {
        Some(e) => Err(e),
        None => replay.finish(boot_id(), durable),
    };
    let failed = |e: haul_core::journal::JournalError| {
        let text = format!("the journal of this job cannot be used: {e}");
        Failure { kind: FailureKind::Create, errno: 0, text: text.into() }
    };
    finished.map(Some).map_err(failed)
}

/// The destination root, and the new name of a single file.
///
/// One file and a destination that is no directory and ends in no slash and no dots: the destination is the
/// file.
pub fn destination(
    path: &[u8],
    roots: &[SourceRoot],
    home: Option<&Path>,
) -> Result<(PathBuf, Option<Name>), Failure> {
    let path = match (path, home) {
        (b"", _) => PathBuf::from("."),
        (path, Some(home)) => users::expand(path, home).map_err(|why| {
            let path = String::from_utf8_lossy(path);
            let text = match why {
                Unexpanded::NoHome => {
                    format!("destination {path}: '~' cannot be expanded, for HOME is not set")
                }
                Unexpanded::NoUser => format!(
                    "destination {path}: there is no such user; for a name that begins with '~' write ./~"
                ),
            };
            Failure { kind: FailureKind::Create, errno: 2, text: text.into() }
        })?,
        (path, None) => PathBuf::from(OsStr::from_bytes(path)),
    };
    let single = matches!(roots, [SourceRoot::Named { is_dir: false, .. }]);
    let last = path.as_os_str().as_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    if last == b".." && !path.is_dir() {
        // Above what is not there is nothing that could be made.
        let text = format!("destination {}: there is no such directory", path.display());
        return Err(Failure { kind: FailureKind::Create, errno: 2, text: text.into() });
    }
    // `new/.` names a directory as `new/` does. What is made is `new`, for nobody can make the dot.
    if last == b"." {
        return Ok((path.components().collect(), None));
    }
    if !single || last.is_empty() || path.is_dir() {
        return Ok((path, None));
    }
    let Some(name) = path.file_name() else { return Ok((path, None)) };
    let name = Name::new(name.as_bytes()).map_err(|e| {
        let text = format!("destination {}: {e}", path.display());
        Failure { kind: FailureKind::Create, errno: 36, text: text.into() }
    })?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok((parent.unwrap_or(Path::new(".")).to_owned(), Some(name)))
}

/// Something stands at the destination already under a name of this job.
fn stands_already(tree: &SinkTree, roots: &[SourceRoot], rename: Option<&Name>) -> bool {
    use rustix::fs::{AtFlags, statat};
    let stands = |name: &Name| statat(tree.root(), name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW).is_ok();
    roots.iter().any(|root| match (root, rename) {
        (_, Some(name)) | (SourceRoot::Named { name, .. }, None) => stands(name),
        (SourceRoot::Contents { .. }, None) => !tree.was_created(DirId::ROOT),
    })
}
