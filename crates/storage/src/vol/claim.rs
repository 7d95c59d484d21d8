//! Whose a job is, in a volume: one run has it at a time, and what dead runs left is known by their tags.
//!
//! In: a directory and a job's key. Out: a [`Claim`] that is held until it is left or dropped.
//! A run has an entry `.haul~KEY.own.N` in the destination: a symbolic link that leads nowhere, whose text
//! tells the tag of the run's temporaries and which process it is. The highest `N` has the job. Its time is
//! set again and again; one whose time did not change for [`LEASE`] by the clock of who looks has lost it.
//! One whose mode is 0 was left.
//! A run is proven dead if it was left, or if its process is gone, which can be seen on its own host
//! ([`life`](crate::sink::life)): nobody waits for that one, and it writes nothing any more. One that lost
//! the job by its silence may still write.
//! Invariants: the clocks of two hosts are never compared; who could not show for a lease that it lives does
//! nothing that counts before it has looked whether it still has the job.
//! Left out: what happens between that look and what is done next, which nobody sees: the new owner's
//! temporaries have other names, so that each file is still one run's alone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use haul_core::entry::{Meta, Name};
use haul_core::volume::catalog::{EntryNo, Failure as Refusal, Kind, Place as At, Setting};
use haul_core::wire::{Failure, FailureKind};
use rustix::io::Errno;

use super::{Volume, is_missing};
use crate::sink::life::{here, judge};
use crate::sink::names::{JobFile, job_file, tag_bits};
use crate::sink::owner::Life;
use crate::sink::{JobKey, OwnerInfo, tag_of};
use crate::source::wall_clock;
use crate::store::Waiting;

/// How often a run shows that it lives.
const BEAT: Duration = Duration::from_secs(2);
/// Who did not show it for so long is dead.
const LEASE: Duration = Duration::from_secs(15);
const _: () = assert!(LEASE.as_millis() > 3 * BEAT.as_millis());
/// How often the entry of another run is looked at.
const WATCH: Duration = Duration::from_millis(500);
/// What the text of an entry begins with.
const HEAD: &str = "haul-run ";
/// What stands between the tag and the number of the directory that the entry was made in.
const IN: &str = " in ";
/// What stands between that and what the run says of itself, in JSON.
const BY: &str = " by ";
/// Of what it is about, so many bytes are said.
const WHAT_MAX: usize = 200;
/// Modes of the entry: of a run that has the job, and of one that left it.
const HELD: u32 = 0o777;
const LEFT: u32 = 0;

/// The entry of a run.
struct Run {
    epoch: u32,
    entry: EntryNo,
    name: Name,
    meta: Meta,
    tag: Option<u32>,
    /// It can write nothing any more.
    is_dead: bool,
}

/// A job that is held.
pub(super) struct Claim {
    shared: Arc<Shared>,
    /// Dropped to end the beats.
    beats: Mutex<Option<Sender<()>>>,
    /// Runs that are dead or left: their entries, and the tags of their temporaries.
    dead: Vec<(Name, u32)>,
    tags: Vec<u32>,
    /// Those of them whose runs are proven dead.
    proven: Vec<u32>,
    /// Something of them could not be removed.
    kept: AtomicBool,
}

struct Shared {
    volume: Arc<Volume>,
    dir: EntryNo,
    path: Vec<u8>,
    key: JobKey,
    epoch: u32,
    name: Name,
    entry: EntryNo,
    over: AtomicBool,
    /// When what showed last that the job is ours was begun; `None`: it is ours no more.
    shown: Mutex<Option<Instant>>,
}

impl Claim {
    /// Takes the job, if nobody who lives has it. `tag`: of this run's temporaries; `what`: for people.
    ///
    /// # Errors
    /// Another run has it, or nobody wants to wait until that is known.
    pub(super) fn take(
        volume: &Arc<Volume>,
        (dir, path): (EntryNo, &[u8]),
        key: JobKey,
        (tag, what): (u32, &str),
        waiting: &dyn Waiting,
    ) -> Result<Claim, Failure> {
        let refused = |why| volume.refused(FailureKind::Create, "take the job in", path, &why);
        loop {
            let mut runs = runs(volume, dir, &key).map_err(refused)?;
            if let Some(last) = runs.last()
                && !last.is_dead
            {
                wait_for_end(volume, path, last, waiting)?;
                // It ended, or is dead; somebody else may have taken the job meanwhile.
                let now = self::runs(volume, dir, &key).map_err(refused)?;
                let same = |now: &Run| now.entry == last.entry && now.meta.mtime == last.meta.mtime;
                if !now.last().is_none_or(|now| now.is_dead || same(now)) {
                    continue;
                }
                runs = now;
            }
            let epoch = runs.last().map_or(1, |last| last.epoch.saturating_add(1));
            let name = key.owner(epoch);
            let begun = Instant::now();
            let meta = Meta { mode: HELD, uid: 0, gid: 0, mtime: wall_clock()() };
            let text = text_of(tag, dir, epoch, what);
            let at = At { parent: dir, name: name.clone() };
            let entry = match volume.catalog.symlink(at, meta, text.as_bytes()) {
                Ok(entry) => entry.id,
                // Another run was faster.
                Err(why) if why.errno == Errno::EXIST.raw_os_error() => continue,
                Err(why) => return Err(refused(why)),
            };
            let shared = Arc::new(Shared {
                volume: volume.clone(),
                dir,
                path: path.to_vec(),
                key,
                epoch,
                name,
                entry,
                over: AtomicBool::new(false),
                shown: Mutex::new(Some(begun)),
            });
            let (beats, over) = bounded(0);
            let beating = shared.clone();
            let failed = |error: std::io::Error| {
                let text = format!("starting a thread: {}", haul_base::errno::text(error));
                Failure { kind: FailureKind::Local, errno: 0, text: text.into() }
            };
            thread::Builder::new()
                .name("haul-claim".into())
                .spawn(move || beating.beat(&over))
                .map_err(failed)?;
            let tags = runs.iter().filter_map(|run| run.tag).collect();
            let proven = runs.iter().filter(|run| run.is_dead).filter_map(|run| run.tag).collect();
            let dead = runs.into_iter().map(|run| (run.name, run.epoch)).collect();
            let kept = AtomicBool::new(false);
            return Ok(Claim { shared, beats: Mutex::new(Some(beats)), dead, tags, proven, kept });
        }
    }

    /// Which run of the job this is.
    pub(super) fn epoch(&self) -> u32 {
        self.shared.epoch
    }

    /// And which the earlier ones are that have an entry.
    pub(super) fn epochs(&self) -> impl Iterator<Item = u32> {
        self.dead.iter().map(|(_, epoch)| *epoch)
    }

    /// The runs with these tags that may still write into what they had open: all that are not proven dead.
    pub(super) fn unproven(&self, tags: &[u32]) -> Vec<u32> {
        let proven = |tag: &u32| self.proven.iter().any(|dead| tag_bits(*dead) == tag_bits(*tag));
        tags.iter().copied().filter(|tag| !proven(tag)).collect()
    }

    /// Asked before what cannot be undone.
    ///
    /// # Errors
    /// Another run has the job by now, or nobody can say.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if haul_mutant::removed("volume-losers-publish-nothing") {
            return Ok(());
        }
        self.shared.check()
    }

    /// Removes from a directory what dead runs of this job left there.
    pub(super) fn sweep(&self, dir: EntryNo) {
        if self.tags.is_empty() {
            return;
        }
        let volume = &self.shared.volume;
        let mut after = None;
        loop {
            let Ok((page, more)) = volume.catalog.read_dir(dir, after) else {
                return self.keep();
            };
            after = page.last().map(|(name, _)| name.clone());
            let left = |name: &Name| tag_of(name.as_bytes()).is_some_and(|tag| self.tags.contains(&tag));
            for (name, _) in page.into_iter().filter(|(name, entry)| left(name) && !super::is_dir(entry)) {
                match volume.catalog.unlink(At { parent: dir, name }) {
                    Ok(()) => {}
                    Err(why) if is_missing(&why) => {}
                    Err(_) => self.keep(),
                }
            }
            if !more || after.is_none() {
                return;
            }
        }
    }

    /// Something that this run, or one before, left may still be there: the next run looks for it.
    pub(super) fn keep(&self) {
        self.kept.store(true, Ordering::Relaxed);
    }

    /// All is done: nothing of the job stays, nor of the runs before.
    pub(super) fn finish(&self) {
        let is_kept = self.kept.load(Ordering::Relaxed);
        if is_kept || self.shared.over.load(Ordering::Acquire) || self.shared.check().is_err() {
            return self.leave();
        }
        self.end();
        for name in self.dead.iter().map(|(name, _)| name).chain([&self.shared.name]) {
            let at = At { parent: self.shared.dir, name: name.clone() };
            match self.shared.volume.catalog.unlink(at) {
                Ok(()) => {}
                Err(why) if is_missing(&why) => {}
                Err(_) => self.keep(),
            }
        }
    }

    /// What could not be removed, for people.
    pub(super) fn stays(&self) -> Option<String> {
        let path = haul_base::escape::within(&self.shared.volume.url(&self.shared.path));
        let text = format!("what an interrupted run of this copy left in {path} could not be removed");
        self.kept.load(Ordering::Relaxed).then_some(text)
    }

    /// This run is over: another one need not wait.
    pub(super) fn leave(&self) {
        if self.end() {
            let set = Setting { mode: Some(LEFT), ..Setting::default() };
            // Whoever cannot hear it waits for a lease.
            let _ = self.shared.volume.catalog.set_attr(self.shared.entry, set);
        }
    }

    /// Ends the beats; false: they were ended before.
    fn end(&self) -> bool {
        let beats = self.beats.lock().unwrap_or_else(PoisonError::into_inner).take();
        !self.shared.over.swap(true, Ordering::AcqRel) && beats.is_some()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Longest text of an entry, bytes.
const TEXT_MAX: usize = 1024;

impl Shared {
    fn beat(&self, over: &Receiver<()>) {
        while let Err(RecvTimeoutError::Timeout) = over.recv_timeout(BEAT) {
            let begun = Instant::now();
            let set = Setting { mtime: Some(wall_clock()()), ..Setting::default() };
            match self.volume.catalog.set_attr_beside(self.entry, set) {
                Ok(_) => _ = self.look(begun),
                Err(why) if is_missing(&why) => self.show(None),
                // It is tried again; who is asked meanwhile looks for himself.
                Err(_) => {}
            }
        }
    }

    fn show(&self, at: Option<Instant>) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        // What was lost stays lost.
        if shown.is_some() {
            *shown = at;
        }
    }

    /// Looks whether the job is still this run's.
    fn look(&self, begun: Instant) -> Result<bool, Refusal> {
        let at = |epoch: u32| At { parent: self.dir, name: self.key.owner(epoch) };
        let is_ours = self.volume.at(&at(self.epoch))?.is_some_and(|entry| entry.id == self.entry)
            && self.volume.at(&at(self.epoch.saturating_add(1)))?.is_none();
        self.show(is_ours.then_some(begun));
        Ok(is_ours)
    }

    fn check(&self) -> Result<(), Failure> {
        let shown = *self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let is_ours = match shown {
            None => Ok(false),
            Some(shown) if shown.elapsed() < BEAT * 2 => Ok(true),
            Some(_) => self.look(Instant::now()),
        };
        let busy = Errno::BUSY.raw_os_error();
        match is_ours {
            Ok(true) => Ok(()),
            Ok(false) => {
                let why = "another run of this copy took it over, and goes on";
                Err(self.volume.failed(FailureKind::Publish, "go on with the copy to", &self.path, busy, why))
            }
            Err(why) => {
                Err(self.volume.refused(FailureKind::Publish, "go on with the copy to", &self.path, &why))
            }
        }
    }
}

/// What the text of an entry says: the tag of its run's temporaries, and the directory that it was made in.
/// One that does not tell the latter proves nothing to who walks there.
pub(super) fn said(text: &[u8]) -> Option<(u32, Option<EntryNo>)> {
    let text = std::str::from_utf8(text).ok()?.strip_prefix(HEAD)?;
    let number = |text: &str| text.split(' ').next().map(str::to_owned);
    let tag = number(text)?.parse().ok()?;
    let dir = text.split_once(IN).and_then(|(_, rest)| number(rest)?.parse().ok());
    Some((tag, dir.map(EntryNo)))
}

/// What an entry says.
fn text_of(tag: u32, dir: EntryNo, epoch: u32, what: &str) -> String {
    let cut = (0..=what.len().min(WHAT_MAX)).rev().find(|at| what.is_char_boundary(*at));
    let what = what[..cut.unwrap_or(0)].to_owned();
    let text = format!("{HEAD}{tag}{IN}{}", dir.0);
    let info = serde_json::to_string(&OwnerInfo { epoch, what, ..here() });
    let long = info.map(|info| format!("{text}{BY}{info}"));
    // Whoever says less of himself is not proven dead, and nothing else.
    long.ok().filter(|long| long.len() <= TEXT_MAX).unwrap_or(text)
}

/// Whether who made the entry is proven dead, by what it says of him.
fn is_dead(text: &[u8], here: &OwnerInfo) -> bool {
    let said = std::str::from_utf8(text).ok().filter(|text| text.starts_with(HEAD));
    let info = said.and_then(|text| serde_json::from_str::<OwnerInfo>(text.split_once(BY)?.1).ok());
    info.is_some_and(|info| judge(&info, here) == Life::Dead)
}

/// The runs of a job that have an entry, in their order.
fn runs(volume: &Volume, dir: EntryNo, key: &JobKey) -> Result<Vec<Run>, Refusal> {
    let head = [b".haul~".as_slice(), key.as_str().as_bytes(), b".own"].concat();
    // All of them come behind this name, and before anything else that does not begin so.
    let (mut all, mut after) = (Vec::new(), Name::new(&head).ok());
    let here = here();
    loop {
        let (page, more) = volume.catalog.read_dir(dir, after)?;
        after = page.last().map(|(name, _)| name.clone());
        let mut is_behind = false;
        for (name, entry) in page {
            is_behind = !name.as_bytes().starts_with(&head);
            if is_behind {
                break;
            }
            let epoch = match job_file(name.as_bytes()) {
                Some((of, JobFile::Owner { epoch })) if of == *key => epoch,
                _ => continue,
            };
            let Kind::Link(text) = &entry.kind else { continue };
            let tag = said(text).map(|(tag, _)| tag);
            let is_dead = entry.meta.mode == LEFT || is_dead(text, &here);
            all.push(Run { epoch, entry: entry.id, name, meta: entry.meta, tag, is_dead });
        }
        if !more || is_behind || after.is_none() {
            break;
        }
    }
    // Names have no order of numbers.
    all.sort_by_key(|run| run.epoch);
    Ok(all)
}

/// Waits until a run has left its job, or shows no life for a lease.
fn wait_for_end(volume: &Volume, path: &[u8], run: &Run, waiting: &dyn Waiting) -> Result<(), Failure> {
    let begun = Instant::now();
    let mut said = false;
    loop {
        let busy = |why: &str| {
            let errno = Errno::BUSY.raw_os_error();
            Err(volume.failed(FailureKind::Create, "take the job in", path, errno, why))
        };
        match volume.catalog.stat(run.entry) {
            Ok(entry) if entry.meta.mode == LEFT => return Ok(()),
            Ok(entry) if entry.meta.mtime != run.meta.mtime => {
                return busy("another run of this copy has it; wait for its end, or stop it");
            }
            Ok(_) if begun.elapsed() >= LEASE => return Ok(()),
            Ok(_) => {}
            Err(why) if is_missing(&why) => return Ok(()),
            Err(why) => return Err(volume.refused(FailureKind::Create, "take the job in", path, &why)),
        }
        if waiting.stopped() {
            return busy("another run of this copy has it, or died a moment ago");
        }
        if !said {
            said = true;
            let seconds = LEASE.as_secs();
            waiting.say(&format!(
                "an earlier run of this copy did not end in order: it is watched for {seconds} s whether it lives"
            ));
        }
        thread::sleep(WATCH);
    }
}
