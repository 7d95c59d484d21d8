//! A volume as a destination: where a copy goes, whose job it is, and what a dry run sees.
//!
//! In: a path as typed, what will come. Out: a claim, whose engine writes.
//! Invariant: nothing is written before the job is ours, but for the directories that the destination lies
//! in.

use std::sync::{Arc, OnceLock};

use haul_base::escape;
use haul_core::change::{Change, Stood};
use haul_core::entry::{DEPTH_MAX, Meta, Name};
use haul_core::ids::DirId;
use haul_core::journal::{Former, RootId};
use haul_core::transfer::op::Existing;
use haul_core::volume::catalog::{Entry, EntryNo, Place as At, ROOT, Setting};
use haul_core::wire::{Failure, FailureKind, SinkOptions, SourceRoot};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};

use super::claim::Claim;
use super::homes::Homes;
use super::journal::Journal;
use super::look::{link_change, mode_of, sound_at};
use super::path::{Led, is_dots, last_part, lead};
use super::tree::{Root, Tree, UNFINISHED, stood_of};
use super::writer::{Held, Writer};
use super::{CAPABILITIES, Reach, Volume, is_dir};
use crate::SinkEngine;
use crate::sink::JobKey;
use crate::sink::names::tag_bits;
use crate::source::wall_clock;
use crate::store::job::{begin_journal, fresh_tag, job_of, names_of};
use crate::store::{Capabilities, Claimed, Coming, HeldJob, Looks, SinkStore, Waiting, Writing, dir_stands};

/// A place in a volume, as it was typed.
pub(super) struct VolumeSink {
    pub(super) reach: Reach,
    pub(super) typed: Vec<u8>,
    /// The user wants a journal elsewhere.
    pub(super) state: bool,
    /// Links of the source are followed.
    pub(super) followed: bool,
}

/// Where a copy goes: the directory that its names lie in, the new name of a single file.
struct Ground {
    /// `None`: it is not there.
    root: Option<Root>,
    rename: Option<Name>,
}

/// What is made belongs to who makes it, and is as old as that.
fn ours(mode: u32) -> Meta {
    Meta { mode, uid: geteuid().as_raw(), gid: getegid().as_raw(), mtime: wall_clock()() }
}

impl VolumeSink {
    fn check(&self) -> Result<(), Failure> {
        if self.state {
            let shown = escape::name(&[b"vol://", self.reach.name.as_bytes(), &self.typed].concat());
            let text = format!(
                "destination {shown}: nothing of a job is kept for a volume but in it; leave `state_dir` out"
            );
            return Err(Failure { kind: FailureKind::Usage, errno: 0, text: text.into() });
        }
        Ok(())
    }

    /// Finds where the copy goes, and with `make` makes what is missing there.
    fn ground(&self, volume: &Volume, roots: &[SourceRoot], make: bool) -> Result<Ground, Failure> {
        let typed = &self.typed[..];
        let shown = |path: &[u8]| escape::within(&volume.url(path));
        let told = |failure: Failure| {
            let text = format!("destination {}", failure.text);
            Failure { text: text.into(), ..failure }
        };
        let refused = |errno: Errno, text: String| {
            let text = format!("destination {}: {text}", shown(typed));
            Err(Failure { kind: FailureKind::Create, errno: errno.raw_os_error(), text: text.into() })
        };
        let single = matches!(roots, [SourceRoot::Named { is_dir: false, .. }]);
        let last = last_part(typed);
        let led = lead(volume, typed, true, FailureKind::Create).map_err(told)?;
        let root = |id: EntryNo, path: &[u8], made| Some(Root { id, path: path.to_vec(), made });
        match &led.entry {
            Some(entry) if is_dir(entry) => {
                return Ok(Ground { root: root(entry.id, typed, false), rename: None });
            }
            Some(_) if !single => return refused(Errno::NOTDIR, "it is no directory".into()),
            _ => {}
        }
        if single && !is_dots(last) {
            let name = match Name::new(last) {
                Ok(name) => name,
                Err(why) => return refused(Errno::INVAL, why.to_string()),
            };
            let above = &typed[..typed.len() - last.len()];
            let found = lead(volume, above, true, FailureKind::Create).map_err(told)?;
            return match found.entry.filter(is_dir) {
                Some(entry) => Ok(Ground { root: root(entry.id, above, false), rename: Some(name) }),
                None => refused(
                    Errno::NOENT,
                    format!(
                        "there is no directory {}; make it first, or end the destination with a slash: then it is a directory, and \
                         made",
                        shown(above)
                    ),
                ),
            };
        }
        if !make {
            return Ok(Ground { root: None, rename: None });
        }
        let (id, made) = make_dirs(volume, typed, led).map_err(told)?;
        Ok(Ground { root: root(id, typed, made), rename: None })
    }
}

/// Makes the directories of a path that are not there.
fn make_dirs(volume: &Volume, path: &[u8], led: Led) -> Result<(EntryNo, bool), Failure> {
    let refused = |why| volume.refused(FailureKind::Create, "create directory", path, &why);
    let Led { at: Some(At { parent, name }), missing, .. } = led else {
        return Err(volume.failed(FailureKind::Create, "create directory", path, 0, "it has no name"));
    };
    let (mut parent, mut made) = (parent, false);
    for name in [name].into_iter().chain(missing) {
        let at = At { parent, name };
        made = false;
        parent = match volume.catalog.mkdir(at.clone(), ours(0o777 & !0o022)) {
            Ok(entry) => {
                made = true;
                entry.id
            }
            // Another run was faster, or something else stands there by now.
            Err(why) if why.errno == Errno::EXIST.raw_os_error() => match volume.at(&at).map_err(refused)? {
                Some(entry) if is_dir(&entry) => entry.id,
                _ => return Err(refused(why)),
            },
            Err(why) => return Err(refused(why)),
        };
    }
    Ok((parent, made))
}

impl SinkStore for VolumeSink {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn claim(self: Box<Self>, coming: &Coming<'_>, waiting: &dyn Waiting) -> Result<Claimed, Failure> {
        self.check()?;
        let Coming { roots, policy, .. } = *coming;
        let volume = Arc::new(Volume::connect(&self.reach, FailureKind::Create)?);
        let ground = self.ground(&volume, roots, true)?;
        let (Some(root), rename) = (ground.root, ground.rename) else {
            let why = "it is not there";
            return Err(volume.failed(FailureKind::Create, "open directory", &self.typed, 2, why));
        };
        let identity = [&self.reach.keys.volume.0[..], &root.id.0.to_le_bytes()].concat();
        let identity = RootId::new(&identity).expect("a volume's number and an entry's are short");
        let key = job_of(&identity, roots, rename.as_ref(), coming.part.as_ref());
        let tag = fresh_tag();
        let job = JobKey::new(&key);
        let place = (root.id, &root.path[..]);
        let claim = Arc::new(Claim::take(&volume, place, job.clone(), (tag, coming.what), waiting)?);
        let epoch = claim.epoch();
        let journal = Journal::new(volume.clone(), claim.clone(), place, (job, ours(0o600)));
        let replayed = journal.load(&identity)?;
        let resumed = replayed.is_some();
        let mut replayed = replayed.unwrap_or_default();
        replayed.unproven = claim.unproven(&replayed.tags);
        let bits = |tags: &[u32]| tags.iter().copied().map(tag_bits).collect::<Vec<u32>>();
        let former = Former::new(&bits(&replayed.tags), &bits(&replayed.unproven));
        // Whatever the user wants to last: what the journal says was synced.
        let lasting = Coming { policy: SinkOptions { durable: true, ..policy }, ..*coming };
        let (begun, resume) = begin_journal(replayed, (key, identity), (epoch, tag), &lasting);
        // One that is there must know this run before it takes anything over.
        journal.begin_with(begun, resumed)?;
        let names = names_of(roots, rename.as_ref());
        let wait = !root.made;
        let like = root.made.then(|| root_like(roots)).flatten().map(|like| (like, policy));
        // What lies on this host is there when the volume is not; a part of a file is not all of it. Where a
        // link was followed the file lies somewhere else, and at the name that it came by stands a link.
        let is_elsewhere = self.followed && !haul_mutant::removed("volume-followed-links-have-no-home");
        let homes = match coming.part {
            None if !is_elsewhere => {
                Homes::new(roots, rename.as_ref(), coming.sources_here, depth_of(&volume, root.id))
            }
            _ => Homes::default(),
        };
        let held = HeldVolume {
            volume,
            homes,
            root: root.clone(),
            held: Some(Held { claim: claim.clone(), journal: Arc::new(journal), former, tag }),
            claim,
            like,
            unswept: OnceLock::new(),
        };
        let found = Vec::new();
        Ok(Claimed {
            job: Box::new(held),
            resume,
            epoch,
            tag,
            wait,
            rename,
            resumed,
            names,
            root: None,
            found,
        })
    }

    fn look(self: Box<Self>, coming: &Coming<'_>) -> Result<(Box<dyn Looks>, Option<Name>), Failure> {
        self.check()?;
        let volume = Arc::new(Volume::connect(&self.reach, FailureKind::Create)?);
        let Ground { root, rename } = self.ground(&volume, coming.roots, false)?;
        let tree = root.map(|root| Tree::new(volume.clone(), root, None));
        Ok((Box::new(VolumeLook { volume, tree }), rename))
    }
}

/// How many names lead to a directory; `None`: nobody says.
fn depth_of(volume: &Volume, dir: EntryNo) -> Option<usize> {
    let mut at = dir;
    for depth in 0..=DEPTH_MAX {
        if at == ROOT {
            return Some(depth);
        }
        at = volume.catalog.stat(at).ok()?.parent?;
    }
    None
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

/// A job in a volume.
struct HeldVolume {
    volume: Arc<Volume>,
    /// Where what comes has its home.
    homes: Homes,
    root: Root,
    claim: Arc<Claim>,
    /// `None`: the engine was started.
    held: Option<Held>,
    /// What a root that was made becomes at the end.
    like: Option<(Meta, SinkOptions)>,
    /// Why the root did not become that.
    unswept: OnceLock<String>,
}

impl HeldJob for HeldVolume {
    fn start(&mut self, writing: Writing) -> Result<Box<dyn SinkEngine>, Failure> {
        let failed = |why: String| {
            let text = format!("starting the writing threads: {why}");
            Failure { kind: FailureKind::Local, errno: 0, text: text.into() }
        };
        let held = self.held.take().ok_or_else(|| failed("it was started before".into()))?;
        let tree = Tree::new(self.volume.clone(), self.root.clone(), Some(ours(UNFINISHED)));
        let made = ours(0o600);
        let writer = Writer::start(self.volume.clone(), tree, held, (made, self.homes.clone()), writing);
        Ok(Box::new(writer.map_err(|why| failed(haul_base::errno::text(why)))?))
    }

    // Whoever asks for the job hears that it is held, and whether it is given up is seen by its entry.
    fn set_ends(&self, ends: bool) {
        self.volume.set_ends(ends);
    }
    fn set_yields(&self, _: bool) {}

    fn finish(&self) {
        if let Some((like, policy)) = &self.like {
            let owner = policy.owner && like.owners().is_some();
            let set = Setting {
                mode: Some(mode_of(like.mode, owner)),
                uid: owner.then_some(like.uid),
                gid: owner.then_some(like.gid),
                mtime: Some(like.mtime),
                ..Setting::default()
            };
            if let Err(why) = self.volume.catalog.set_attr(self.root.id, set) {
                let failure =
                    self.volume.refused(FailureKind::Metadata, "set the mode of", &self.root.path, &why);
                let _ = self.unswept.set(failure.text.into());
            }
        }
        self.claim.finish();
    }

    fn stays(&self) -> Option<String> {
        self.claim.stays().or_else(|| self.unswept.get().cloned())
    }

    fn leave(&self) {
        self.claim.leave();
    }
}

/// A destination that is looked at and never changed.
struct VolumeLook {
    volume: Arc<Volume>,
    /// `None`: it is not there.
    tree: Option<Tree>,
}

impl VolumeLook {
    fn at(&self, parent: DirId, name: &Name) -> Result<Option<(At, &Tree)>, Failure> {
        let Some(tree) = &self.tree else { return Ok(None) };
        Ok(tree.find(parent)?.map(|parent| (At { parent, name: name.clone() }, tree)))
    }

    fn look(&self, parent: DirId, name: &Name) -> Result<(Existing, Option<Entry>), Failure> {
        let Some((at, tree)) = self.at(parent, name)? else { return Ok((Existing::Nothing, None)) };
        let found = sound_at(&self.volume, &at, &|| tree.path(parent, Some(name)))?;
        Ok(found.map_or((Existing::Nothing, None), |(entry, existing, _)| (existing, Some(entry))))
    }
}

impl Looks for VolumeLook {
    fn register(&self, id: DirId, parent: DirId, name: Name) {
        if let Some(tree) = &self.tree {
            tree.register(id, parent, name);
        }
    }

    fn forget(&self, id: DirId) {
        if let Some(tree) = &self.tree {
            tree.forget(id);
        }
    }

    fn dir(&self, id: DirId) -> Result<Option<Stood>, Failure> {
        let Some(tree) = &self.tree else { return Ok(None) };
        if tree.find(id)?.is_none() {
            return Ok(None);
        }
        if id != DirId::ROOT {
            return Ok(tree.stood(id));
        }
        let path = || self.volume.url(&tree.root().path);
        let refused = |why| self.volume.refused(FailureKind::Open, "look at", &path(), &why);
        self.volume.catalog.stat(tree.root().id).map(|root| Some(stood_of(&root.meta))).map_err(refused)
    }

    fn is_closed(&self, _: DirId) -> bool {
        false
    }

    fn file(&self, parent: DirId, name: &Name) -> Result<Existing, Failure> {
        self.look(parent, name).map(|(existing, _)| existing)
    }

    fn link(
        &self,
        parent: DirId,
        name: &Name,
        target: &[u8],
        (meta, owner): (&Meta, bool),
    ) -> Result<(Change, Existing), Failure> {
        match self.look(parent, name)? {
            (Existing::Dir, _) => Err(dir_stands()),
            (existing, Some(entry)) => Ok((link_change(&entry, target, meta, owner), existing)),
            (existing, None) => Ok((Change::NEW, existing)),
        }
    }
}
