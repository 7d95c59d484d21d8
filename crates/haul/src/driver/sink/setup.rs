//! What a sink agrees with the source, and makes sure of at the destination, before the first entry.
//!
//! In: control, what the user asked. Out: a [`Setup`]: whose job it is, what an earlier run left of it, the limits of the
//! session. Invariants: nothing is written before the job is ours; the far end takes no names but those that follow from
//! the command.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use haul_core::entry::Name;
use haul_core::ids::DirId;
use haul_core::journal::{Record, Replay, compact};
use haul_core::transfer::sink::Resume;
use haul_core::wire::{
    Agreed, Failure, Hello, Message, Policy, ROOTS_MAX, SourceRoot, Stage as FailureStage, capability,
};

use super::super::hello::Opening;
use super::super::protocol;
use super::place::{no_state, unopened, unwritable};
use super::{Own, SinkRequest};
use crate::api::{DEBRIS, IN_MEMORY, age_in_words};
use crate::job::PathBytes;
use crate::storage::null::{self, Made};
use crate::storage::sink::clean::{Job, find_debris};
use crate::storage::sink::fault;
use crate::storage::sink::owner::{Life, boot_id};
use crate::storage::sink::widened::restore;
use crate::storage::sink::{AcquireError, Adopt, JobDir, JobKey, Journal, Ours, Owner, Patience, SinkTree};
use crate::storage::source::failure::strerror;
use crate::storage::volume::identity;
use crate::users::{self, Unexpanded, name_of};

/// What was agreed and found before the first entry.
pub(super) struct Setup {
    /// `None`: `null://`.
    pub(super) place: Option<(SinkTree, Arc<Owner>, Journal)>,
    pub(super) resume: Resume,
    pub(super) policy: Policy,
    pub(super) wait: bool,
    pub(super) rename: Option<Name>,
    pub(super) resumed: bool,
    pub(super) tag: u32,
    pub(super) names: Option<HashSet<Name>>,
    /// Which temporaries of earlier runs may be taken over.
    pub(super) adopt: Adopt,
    /// For the summary, by name: what other jobs left here.
    pub(super) found: Vec<(String, String)>,
    /// The command that removes what is left of this job, for people.
    pub(super) clean: String,
}

pub(super) fn set_up(opening: &Opening<'_, Own>, request: &SinkRequest) -> Result<(Agreed, Setup), Failure> {
    let (agreed, roots, policy) = hear(opening, request)?;
    if request.destination.0 == null::SINK {
        // No journal: nothing is kept that could be resumed.
        let head = Record::Head { job: [0; 16], root_ino: 0 };
        let session = Record::Session { epoch: 0, tag: 0, boot: boot_id(), durable: policy.durable };
        let (_, log, _, next_slot) = compact(&Default::default(), head, session);
        let resume = Resume { replayed: Default::default(), log, next_slot };
        let names = names_of(&roots, None);
        let (place, wait, rename, resumed, tag) = (None, false, None, false, 0);
        let (adopt, found, clean) = (Adopt::new(None, &[], &[]), Vec::new(), String::new());
        let setup = Setup { place, resume, policy, wait, rename, resumed, tag, names, adopt, found, clean };
        return Ok((agreed, setup));
    }
    let (root, rename) = destination(&request.destination.0, &roots, request.home.as_deref())?;
    // Only the last component of a new destination is made for a single file's directory: a typing error
    // must not grow a tree.
    let tree = SinkTree::open_root(&root, rename.is_none())
        .map_err(|failure| unopened(failure, &request.destination.0, &root, rename.is_some()))?;
    if let Some(name) = rename.as_ref().filter(|_| !policy.force && !policy.no_clobber) {
        refuse_special(&tree, name)?;
    }
    let job = job_of((&identity(tree.root()), tree.root_ino()), &roots, rename.as_ref());
    let state = request.state_dir.as_deref();
    let place = JobDir::open(state.unwrap_or(&root), JobKey::new(&job)).map_err(|failure| match state {
        Some(dir) => no_state(failure, dir),
        None => failure,
    })?;
    let floor = replay(&place, policy.durable)?.map_or(0, |replayed| replayed.epoch_max);
    let mut said = String::new();
    let mut stop = |waits: &str| {
        if said != waits {
            said = waits.to_owned();
            opening.say(waits);
        }
        opening.stopped()
    };
    let what = described(&roots, request.what.trim_start_matches("copy "));
    let owner = place.acquire_unless(floor, &what, &Patience::default(), &mut stop).map_err(|e| match e {
        AcquireError::Failed(failure) => unwritable(failure, &root, state),
        held => Failure { stage: FailureStage::Create, errno: 0, text: held.to_string().into() },
    })?;
    let owner = Arc::new(owner);
    let ours = whose(&place, &tree, request.state_dir.is_some(), &|text| opening.say(text))?;
    let replayed = replay(&place, policy.durable)?;
    let resumed = replayed.is_some();
    let mut replayed = replayed.unwrap_or_default();
    if place.ours()?.faked {
        // Anybody may have written it. Its tags serve to remove what runs left, and no more.
        replayed.partials.clear();
        replayed.done.clear();
        replayed.widened.clear();
    }
    if owner.follows_unproven() {
        replayed.follow_unproven();
    }
    if let Some((_, ino)) = replayed.head.filter(|(_, ino)| *ino != tree.root_ino()) {
        let text = format!(
            "the journal in {} belongs to another destination directory (inode {ino}, this one has {}); \
             look whether the right file system is mounted, or remove the journal",
            root.display(),
            tree.root_ino()
        );
        return Err(Failure { stage: FailureStage::Create, errno: 0, text: text.into() });
    }
    // What cannot be looked at now is left to the next run.
    replayed.widened = match ours {
        Some(ours) => restore(tree.root(), tree.jail(), ours, replayed.widened),
        None => Vec::new(),
    };
    let tag = fresh_tag();
    let head = Record::Head { job, root_ino: tree.root_ino() };
    let session = Record::Session { epoch: owner.epoch(), tag, boot: boot_id(), durable: policy.durable };
    let (bytes, log, _, next_slot) = compact(&replayed, head, session);
    let mut journal = Journal::new(owner.clone());
    // Before the first temporary is made: its tag must be known to whoever cleans up.
    journal.replace(&bytes)?;
    owner.settle();
    let adopt = Adopt::new(ours, &replayed.tags, &replayed.unproven);
    let mut found = debris_of_others(&place, &root, request.state_dir.is_some());
    found.extend(in_memory(tree.root()).map(|kind| (IN_MEMORY.to_owned(), kind.to_owned())));
    let wait = resumed || stands_already(&tree, &roots, rename.as_ref());
    let resume = Resume { replayed, log, next_slot };
    let names = names_of(&roots, rename.as_ref());
    let place = Some((tree, owner, journal));
    let clean = clean_command(&root, request.state_dir.as_deref());
    let setup = Setup { place, resume, policy, wait, rename, resumed, tag, names, adopt, found, clean };
    Ok((agreed, setup))
}

/// How our files look in the destination. `None`: nobody can tell whose a file is there, so that nothing is taken over; that
/// is said.
fn whose(
    place: &JobDir,
    tree: &SinkTree,
    elsewhere: bool,
    say: &dyn Fn(&str),
) -> Result<Option<Ours>, Failure> {
    let kept = place.ours()?;
    let ours = match elsewhere {
        false => kept,
        true => {
            let name = Name::new(b".haul~whose").expect("a legal name");
            Ours::learn(tree.jail(), &**tree.root(), &name).map_err(|errno| {
                let text = format!("create a file in the destination: {}", strerror(errno.raw_os_error()));
                Failure { stage: FailureStage::Create, errno: errno.raw_os_error(), text: text.into() }
            })?
        }
    };
    let fakes = |what: &str| {
        format!(
            "{what} does not keep owners and modes of files (vfat, CIFS, or NFS that makes all users one)"
        )
    };
    if kept.faked {
        let what = if elsewhere { "the state directory" } else { "the destination" };
        say(&format!(
            "{}, so that nobody can tell whose a journal or a temporary there is: an interrupted copy begins its unfinished files \
             anew. With --state DIR, on a file system that keeps them, it goes on where it was",
            fakes(what)
        ));
        return Ok(None);
    }
    if ours.faked {
        say(&format!(
            "{}: parts of files are taken over as the journal in the state directory says, but whoever may write to the \
             destination may write into them while they are copied",
            fakes("the destination")
        ));
    }
    Ok(Some(ours))
}

/// What dead copies of other jobs left where this one keeps its journal, and how to remove it. Where that cannot be seen it is
/// not told.
fn debris_of_others(place: &JobDir, root: &Path, elsewhere: bool) -> Vec<(String, String)> {
    if elsewhere {
        // The jobs of a state directory are of many destinations.
        return Vec::new();
    }
    let jobs = find_debris(root).unwrap_or_default();
    let dead: Vec<&Job> =
        jobs.iter().filter(|job| job.life == Life::Dead && job.key != *place.key()).collect();
    let clean = clean_command(root, None);
    // The youngest is the one that somebody may want to go on with.
    let Some(last) = dead.iter().min_by_key(|job| job.age.unwrap_or(Duration::MAX)) else {
        return Vec::new();
    };
    let what = last.owner.as_ref().map(|owner| owner.what.trim_start_matches("copy ").to_owned());
    let by = last.user.map(|user| format!("by {}", name_of(user)));
    let age = last.age.map(|age| format!("{} ago", age_in_words(age)));
    let known: Vec<String> = [what.filter(|what| !what.is_empty()), by, age].into_iter().flatten().collect();
    let known = known.join(", ");
    let text = match dead.len() {
        1 => format!("an interrupted copy ({known}) can be resumed by its command, or removed with {clean}"),
        n => format!(
            "{n} interrupted copies (the last {known}) can be resumed by their commands, or removed with \
             {clean}"
        ),
    };
    vec![(DEBRIS.to_owned(), text)]
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
    match rustix::fs::fstatfs(root).ok()?.f_type as u64 & 0xffff_ffff {
        TMPFS => Some("tmpfs"),
        RAMFS => Some("ramfs"),
        _ => None,
    }
}

/// What a job says of itself: what comes from the source, and where it goes.
fn described(roots: &[SourceRoot], to: &str) -> String {
    let names: Vec<String> = roots
        .iter()
        .map(|root| match root {
            SourceRoot::Named { name, .. } => fault::show(name.as_bytes()),
            SourceRoot::Contents { of } => {
                fault::show(of.as_ref().map_or(b"".as_slice(), |of| of.as_bytes())) + "/"
            }
        })
        .collect();
    match &names[..] {
        [] => format!("copy {to}"),
        [one] => format!("copy of {one} {to}"),
        [first, more @ ..] => format!("copy of {first} and {} more {to}", more.len()),
    }
}

/// Whether what comes was asked for; only the near end can say.
fn was_asked(request: &SinkRequest, roots: &[SourceRoot], policy: Policy) -> Result<(), Failure> {
    match &request.asked {
        Some((typed, own)) if !(policy == *own && Asked::of(typed).covers(roots)) => {
            Err(protocol("the far end wants to send what was not asked for"))
        }
        _ => Ok(()),
    }
}

/// Says hello, and hears what will come.
pub(crate) fn hear<T>(
    opening: &Opening<'_, T>,
    request: &SinkRequest,
) -> Result<(Agreed, Vec<SourceRoot>, Policy), Failure> {
    let ours = opening.hello(request.memory);
    opening.send(Message::Hello(ours.clone()));
    let (agreed, theirs) = opening.agree(&ours)?;
    let (roots, policy) = hear_sources(opening, &theirs)?;
    was_asked(request, &roots, policy)?;
    Ok((agreed, roots, policy))
}

/// What will come: the roots of all messages that tell of them, and the user's choices.
fn hear_sources<T>(opening: &Opening<'_, T>, theirs: &Hello) -> Result<(Vec<SourceRoot>, Policy), Failure> {
    let in_parts = theirs.capabilities.iter().any(|c| c.kind == capability::SOURCE_ROOTS);
    let mut all = Vec::new();
    loop {
        let (mut part, policy) = opening.expect(|message| match message {
            Message::SourceRoots(part) if in_parts && !part.is_empty() => Ok(Some((part, None))),
            Message::Sources { roots, policy } => Ok(Some((roots, Some(policy)))),
            _ => Ok(None),
        })?;
        if all.len() + part.len() > ROOTS_MAX {
            return Err(protocol(format!("the other end names more than {ROOTS_MAX} sources")));
        }
        all.append(&mut part);
        if let Some(policy) = policy {
            return Ok((all, policy));
        }
    }
}

/// The names that the sources may take in the destination root: a source must not bring others along. `None`: the
/// contents of a directory, whose names only the source knows.
fn names_of(roots: &[SourceRoot], rename: Option<&Name>) -> Option<HashSet<Name>> {
    if let Some(name) = rename {
        return Some(HashSet::from([name.clone()]));
    }
    let name = |root: &SourceRoot| match root {
        SourceRoot::Named { name, .. } => Some(name.clone()),
        SourceRoot::Contents { .. } => None,
    };
    roots.iter().map(name).collect()
}

/// What the journal in `place` is worth; `None` if there is none.
fn replay(place: &JobDir, durable: bool) -> Result<Option<haul_core::journal::Replayed>, Failure> {
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
        Failure { stage: FailureStage::Create, errno: 0, text: text.into() }
    };
    finished.map(Some).map_err(failed)
}

/// The source roots that follow from what was typed: the last component of each path, or contents where it ends in
/// none.
struct Asked<'a> {
    names: HashSet<&'a [u8]>,
    made: Vec<Name>,
    contents: bool,
    /// What `~` and `~name` are called is known to the far end alone.
    home: bool,
}

impl Asked<'_> {
    fn of(typed: &[PathBytes]) -> Asked<'_> {
        let mut asked = Asked { names: HashSet::new(), made: Vec::new(), contents: false, home: false };
        for path in typed {
            let last = path.0.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            match Made::parse(&path.0) {
                Some(made) => asked.made.extend(made.ok().map(|made| made.name())),
                None => drop(asked.names.insert(last)),
            }
            asked.contents |= matches!(last, b"" | b"." | b"..");
            asked.home |= path.0.starts_with(b"~") && !path.0.contains(&b'/');
        }
        asked
    }

    fn covers(&self, roots: &[SourceRoot]) -> bool {
        roots.iter().all(|root| match root {
            SourceRoot::Named { name, .. } => {
                self.home || self.names.contains(name.as_bytes()) || self.made.contains(name)
            }
            SourceRoot::Contents { .. } => self.contents,
        })
    }
}

/// The destination root, and the new name of a single file.
///
/// One file and a destination that is no directory and ends in no slash and no dots: the destination is the file.
pub(crate) fn destination(
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
            Failure { stage: FailureStage::Create, errno: 2, text: text.into() }
        })?,
        (path, None) => PathBuf::from(OsStr::from_bytes(path)),
    };
    let single = matches!(roots, [SourceRoot::Named { is_dir: false, .. }]);
    let last = path.as_os_str().as_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    if last == b".." && !path.is_dir() {
        // Above what is not there is nothing that could be made.
        let text = format!("destination {}: there is no such directory", path.display());
        return Err(Failure { stage: FailureStage::Create, errno: 2, text: text.into() });
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
        Failure { stage: FailureStage::Create, errno: 36, text: text.into() }
    })?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok((parent.unwrap_or(Path::new(".")).to_owned(), Some(name)))
}

/// Job key: the destination root's identity (its file system and inode) and the final top-level names; never host, source path or argv.
fn job_of((volume, root_ino): (&[u8], u64), roots: &[SourceRoot], rename: Option<&Name>) -> [u8; 16] {
    let mut parts: Vec<Vec<u8>> = roots
        .iter()
        .map(|root| match (root, rename) {
            (SourceRoot::Named { .. }, Some(name)) => [b"n".as_slice(), name.as_bytes()].concat(),
            (SourceRoot::Named { name, .. }, None) => [b"n".as_slice(), name.as_bytes()].concat(),
            (SourceRoot::Contents { of }, _) => {
                [b"c".as_slice(), of.as_ref().map_or(&[], Name::as_bytes)].concat()
            }
        })
        .collect();
    parts.sort();
    let mut hasher = blake3::Hasher::new_derive_key("haul job v2");
    hasher.update(&root_ino.to_le_bytes());
    let volume = if haul_mutant::removed("job-key-names-the-volume") { &[] } else { volume };
    hasher.update(&(volume.len() as u64).to_le_bytes());
    hasher.update(volume);
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(&part);
    }
    let mut job = [0; 16];
    job.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    job
}

/// A device, FIFO or socket that the command names as its destination is no place for a file, and what keeps its journal
/// beside it would write into `/dev`.
fn refuse_special(tree: &SinkTree, name: &Name) -> Result<(), Failure> {
    use rustix::fs::{AtFlags, FileType, statat};
    let stat = statat(tree.root(), name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW);
    let kind = stat.ok().map(|stat| FileType::from_raw_mode(stat.st_mode));
    let special = kind
        .is_some_and(|kind| !matches!(kind, FileType::RegularFile | FileType::Directory | FileType::Symlink));
    if !special || haul_mutant::removed("special-files-stay") {
        return Ok(());
    }
    let path = tree.path_of(DirId::ROOT, name);
    let text =
        format!("{path} is a device, FIFO or socket and was left alone; --force replaces it with the file");
    Err(Failure { stage: FailureStage::Create, errno: 17, text: text.into() })
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

fn fresh_tag() -> u32 {
    let mut bytes = [0; 4];
    // The tag only has to differ from those of earlier runs; a kernel without random numbers still has time.
    if aws_lc_rs::rand::fill(&mut bytes).is_err() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        bytes = now.map_or(0, |now| now.subsec_nanos()).to_le_bytes();
    }
    u32::from_le_bytes(bytes) & 0x3fff_ffff
}

#[cfg(test)]
mod asked_tests {
    use super::*;

    /// Goal: two destinations that have only their inode number in common are two jobs, and so are two sources; one whose
    /// contents changed is not.
    /// Method: keys of the same roots on two volumes, and of other roots.
    #[test]
    fn jobs_on_two_volumes_differ() {
        let named = |name: &str| Name::new(name.as_bytes()).expect("legal");
        let contents = |name: &str| [SourceRoot::Contents { of: Some(named(name)) }];
        let key = |volume: &[u8], roots: &[SourceRoot]| job_of((volume, 2), roots, None);
        assert_eq!(key(b"one", &contents("data")), key(b"one", &contents("data")));
        assert_ne!(key(b"one", &contents("data")), key(b"two", &contents("data")));
        assert_ne!(key(b"one", &contents("data")), key(b"one", &contents("other")));
        let whole = [SourceRoot::Named { name: named("data"), is_dir: true }];
        assert_ne!(key(b"one", &contents("data")), key(b"one", &whole));
    }

    /// Goal: a far end can send under the names that follow from the command, and no others.
    /// Method: paths as typed against roots that a source may claim.
    #[test]
    fn only_what_was_typed_is_taken() {
        let typed =
            |paths: &[&str]| paths.iter().map(|p| PathBytes(p.as_bytes().to_vec())).collect::<Vec<_>>();
        let named =
            |name: &str| SourceRoot::Named { name: Name::new(name.as_bytes()).expect("legal"), is_dir: true };
        let contents = SourceRoot::Contents { of: None };
        let paths = typed(&["a/data", "~/x y", "/only/this"]);
        for good in ["data", "x y", "this"] {
            assert!(Asked::of(&paths).covers(&[named(good)]));
        }
        for bad in [".bashrc", "a", "only", "dat"] {
            assert!(!Asked::of(&paths).covers(&[named(bad)]), "{bad}");
        }
        assert!(!Asked::of(&paths).covers(std::slice::from_ref(&contents)), "contents were not asked for");
        for path in ["data/", ".", "a/..", "/"] {
            assert!(Asked::of(&typed(&[path])).covers(std::slice::from_ref(&contents)), "{path}");
            assert!(!Asked::of(&typed(&[path])).covers(&[named("data")]), "{path}");
        }
        assert!(Asked::of(&typed(&["~"])).covers(&[named("user")]));
        assert!(Asked::of(&typed(&["zero://5"])).covers(&[named("zero")]));
        assert!(
            !Asked::of(&typed(&["zero://5"])).covers(&[named("5")])
                && !Asked::of(&paths).covers(&[named("null")])
        );
    }
}
