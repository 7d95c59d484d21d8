//! Ends that freeze, are taken for dead, and go on: a run of the job that follows one which is still there.
//!
//! A session is put aside at any moment, with its sink or its source frozen or both, and the next session
//! takes its job over. What the frozen sink's storage was given stays there: some of it lands as the kernel
//! gets to it, the rest when the sink goes on, which is during the next session, after it, or after several.
//! Of what a frozen sink was about to publish some had been begun, and of that some was past its last look at
//! the owner: those renames nothing can stop any more.
//!
//! The model does what the program does (`haul`'s `storage/sink`), in the same order: the owner is asked when
//! a commit begins, as of at most [`OWNER_FRESH`] ago, and again directly before the rename; a name is given
//! only over what was found there; what an unproven run has open is copied; names that were given are looked
//! at again before the journal goes. Which runs are dead, and whether names are looked at again,
//! `haul_core::journal` decides for both.
//!
//! What is judged:
//! - a run that lost its job gives no name any more, but where it was past its last look at the owner, once
//!   for each thread; and does not end complete;
//! - no inode that a run has published is written by another, at any time;
//! - what a run copied, that ended complete with every entry, is of a version that its source had during that
//!   run, and it stays at the destination as it was, whatever the former run does afterwards;
//! - what was acknowledged is not sent again, unless its name was replaced too late: no look comes after the
//!   kernel has the rename, so the owner may say that a file is done whose name shows another by then. Its
//!   end sees that, and the next run sends it again. What was acknowledged in a temporary, no late name takes
//!   away.
//!
//! Each protection that is removed was seen to fail (seeds that fail of the first 8,000): no look at the
//! owner directly before a name (359), inodes of an unproven run taken over (54), names not looked at again
//! (16), or only those that were given (14), or only by the run directly after the frozen one (1).
//!
//! Left out: more than one run aside at a time, an end that freezes while it takes the job or removes the
//! journal, names of links, metadata of files that were right already, files that grow (`--changed=prefix`),
//! and temporaries of the former run that cannot be removed: of those, what was past its last look can still
//! get its name after the next run's end.

use std::collections::HashSet;

use fastrand::Rng;
use haul_core::ids::{FileId, Time};
use haul_core::transfer::SessionEnd;
use haul_core::transfer::op::SinkOp;
use haul_core::transfer::source::OnChange;

use super::disk::{DirKey, JournalFile, Node};
use super::model::{Kind, NOTHING, Version, ZERO, entry_of};
use super::targets::Targets;
use super::world::{Ack, Session, World, no_session};

/// How old a look at the owner may be when a commit begins, nanoseconds: as in the program.
pub const OWNER_FRESH: u64 = 50_000_000;
/// Most commits that are under way at once.
const THREADS_MAX: usize = 4;

thread_local! {
    /// Runs that were taken over while they were there, over all runs; names that they gave afterwards; runs
    /// that followed one and ended complete; and those that did not, for a name of theirs was taken.
    pub static TAKEN: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    pub static LANDED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    pub static KEPT_WORD: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    pub static SAID_SO: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// How far a commit was when its run lost the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Midway {
    /// The owner was asked when it began.
    Begun,
    /// The owner was asked for the last time: next is the rename.
    Fenced,
}

/// A session that is not the newest, and what was its own.
pub struct Aside {
    pub s: Session,
    journal: JournalFile,
    object_size: u32,
    targets: Option<Targets>,
    source_frozen: bool,
    sink_frozen: bool,
    /// Another run took the job over while this one had it.
    lost: bool,
    /// Of how many steps one is its own, and of how many it goes on in one.
    pace: u16,
    thaw: u16,
}

/// A file under its final name, as it was when a run said that it is complete.
struct Stands {
    dir: DirKey,
    entry: usize,
    file: usize,
    blocks: Vec<u8>,
    len: u64,
    mtime: i64,
}

/// What a run said: all that stood under final names when it had looked at them for the last time.
pub struct Promise {
    files: Vec<Stands>,
    /// The last version of each file before the run began.
    since: Vec<usize>,
    /// The run ended with every entry. Until then it said nothing.
    given: bool,
}

/// What freezing needs of a world.
#[derive(Default)]
pub struct Freezes {
    /// `None`: in this world nothing freezes.
    pub rng: Option<Rng>,
    pub aside: Option<Box<Aside>>,
    /// It is the session aside that does something now.
    pub in_aside: bool,
    /// Of each file, the newest version when the session began.
    since: Vec<usize>,
    /// The epoch that owns the job.
    pub owner: Option<u32>,
    /// Inodes that got a name from a run that had lost the job.
    pub late: HashSet<usize>,
    /// Tags of runs that lost their job and were there. What they make afterwards nobody may ever find.
    pub lost_tags: HashSet<u32>,
    promise: Option<Promise>,
}

impl Aside {
    /// The entries that its sink was asked to publish.
    fn pending(&self) -> Vec<usize> {
        let ops = self.s.sink.iter().flat_map(|snk| &snk.ops);
        let items = ops.flat_map(|op| if let SinkOp::Commit { items, .. } = op { &items[..] } else { &[] });
        let published = items.filter_map(|item| item.publish.as_ref());
        published.map(|publish| entry_of(&publish.file.name)).collect()
    }
}

impl World {
    /// The session freezes, in part or whole, and is put aside.
    pub fn freeze(&mut self) {
        let Some(rng) = &mut self.freezes.rng else { return };
        if self.freezes.aside.is_some() || self.s.sink.is_none() || self.s.source.is_none() {
            return;
        }
        let (source_frozen, sink_frozen) =
            [(true, true), (false, true), (false, true), (true, false)][rng.usize(..4)];
        let (pace, thaw) = ([2, 20, 100, 400][rng.usize(..4)], [20, 100, 400, 2000][rng.usize(..4)]);
        self.note(|| format!("-- frozen: source {source_frozen}, sink {sink_frozen}"));
        let (object_size, targets) = (self.object_size, self.targets.take());
        let s = std::mem::replace(&mut self.s, no_session());
        // The journal keeps its name until the next run puts its own in its place.
        let journal = JournalFile::default();
        let aside =
            Aside { s, journal, object_size, targets, source_frozen, sink_frozen, lost: false, pace, thaw };
        self.freezes.aside = Some(Box::new(aside));
    }

    /// Whether the session freezes now, which is to: mostly when files are about to get their names.
    pub fn freezes_now(&mut self) -> bool {
        let (Some(rng), Some(snk)) = (&mut self.freezes.rng, &self.s.sink) else { return true };
        let publishes = |op: &SinkOp| match op {
            SinkOp::Commit { items, .. } => items.iter().any(|item| item.publish.is_some()),
            _ => false,
        };
        if snk.ops.iter().any(publishes) { rng.bool() } else { rng.u8(..100) == 0 }
    }

    /// A session begins: the last one's word binds no more, and sources may change.
    pub fn begin_apart(&mut self) {
        self.freezes.promise = None;
        let mut told = Vec::new();
        // Above all of what a frozen run was about to publish.
        let pending = self.freezes.aside.as_ref().map_or(Vec::new(), |aside| aside.pending());
        let changes = !self.quiet || self.freezes.aside.is_some();
        if let Some(rng) = self.freezes.rng.as_mut().filter(|_| changes) {
            for entry in 0..self.tree.entries.len() {
                if rng.u8(..8) < if pending.contains(&entry) { 5 } else { 1 } {
                    told.extend(self.tree.restore(rng, entry).map(|version| (entry, version)));
                }
            }
        }
        for (entry, version) in told {
            self.note(|| format!("-- {entry} is restored: {version:?}"));
            self.acks[entry] = None;
        }
        let newest = |kind: &Kind| if let Kind::File(versions) = kind { versions.len() - 1 } else { 0 };
        self.freezes.since = self.tree.entries.iter().map(|entry| newest(&entry.kind)).collect();
    }

    /// The next run takes the job. Whether the one before was there, so that nobody saw it die.
    pub fn take_job(&mut self, epoch: u32) -> bool {
        let before = self.freezes.owner.replace(epoch);
        let Some(aside) = &mut self.freezes.aside else { return false };
        let Some(snk) = aside.s.sink.as_mut().filter(|snk| before == Some(snk.epoch)) else { return false };
        let rng = self.freezes.rng.as_mut().expect("somebody froze");
        aside.lost = true;
        // What it was at.
        let mut items: Vec<FileId> = Vec::new();
        for op in &snk.ops {
            if let SinkOp::Commit { items: more, .. } = op {
                items.extend(more.iter().filter(|item| item.publish.is_some()).map(|item| item.id));
            }
        }
        items.sort_unstable();
        rng.shuffle(&mut items);
        items.truncate(rng.usize(1..=THREADS_MAX));
        for id in items {
            // An empty file has its temporary, too, before the last look.
            let fenced = rng.bool() && snk.open.contains_key(&id);
            snk.midway.insert(id, if fenced { Midway::Fenced } else { Midway::Begun });
        }
        let (tag, midway) = (snk.tag, snk.midway.clone());
        // The file that has the journal's name is still the former run's; it has it no more when the next one
        // has begun its own.
        aside.journal = JournalFile { bytes: self.journal.bytes.clone(), ..JournalFile::default() };
        self.freezes.lost_tags.insert(tag);
        TAKEN.set(TAKEN.get() + 1);
        self.note(|| format!("-- taken over from {before:?}, which was at {midway:?}"));
        true
    }

    /// The session aside does something, or goes on.
    pub fn step_aside(&mut self) {
        let (Some(rng), Some(aside)) = (&mut self.freezes.rng, &mut self.freezes.aside) else { return };
        let (thaws, lands) = (rng.u16(..aside.thaw) == 0, rng.u16(..aside.pace) == 0);
        if thaws && (aside.source_frozen || aside.sink_frozen) {
            (aside.source_frozen, aside.sink_frozen) = (false, false);
            self.note(|| "-- what was frozen goes on".into());
        } else if lands {
            self.with_aside(|world, frozen| world.step_apart(frozen));
        }
        self.judge_promise();
    }

    /// What is aside goes on to its end.
    pub fn end_aside(&mut self) -> u64 {
        let mut steps = 0;
        if let Some(aside) = &mut self.freezes.aside {
            (aside.source_frozen, aside.sink_frozen) = (false, false);
            self.note(|| "-- what was frozen goes on alone".into());
        }
        while self.freezes.aside.is_some() {
            steps += 1;
            assert!(steps < 60_000, "a session aside without an end");
            self.with_aside(|world, _| world.step());
            self.judge_promise();
        }
        steps
    }

    /// The host of both sinks is gone, and with it what was aside.
    pub fn forget_aside(&mut self) {
        self.freezes.aside = None;
        self.freezes.promise = None;
    }

    fn with_aside(&mut self, act: impl FnOnce(&mut World, (bool, bool))) {
        let Some(mut aside) = self.freezes.aside.take() else { return };
        let swap = |world: &mut World, aside: &mut Aside| {
            std::mem::swap(&mut world.s, &mut aside.s);
            std::mem::swap(&mut world.object_size, &mut aside.object_size);
            std::mem::swap(&mut world.targets, &mut aside.targets);
            if aside.lost {
                std::mem::swap(&mut world.journal, &mut aside.journal);
            }
        };
        swap(self, &mut aside);
        self.freezes.in_aside = true;
        act(self, (aside.source_frozen, aside.sink_frozen));
        self.freezes.in_aside = false;
        swap(self, &mut aside);
        if aside.s.source.is_some() || aside.s.sink.is_some() {
            self.freezes.aside = Some(aside);
        } else if aside.lost {
            let complete = Some(SessionEnd::Complete);
            assert!(
                aside.s.source_end != complete && aside.s.sink_end != complete,
                "a run that lost its job is complete"
            );
        }
    }

    /// One thing happens to the session aside: of a frozen sink, what its storage was given.
    fn step_apart(&mut self, (source_frozen, sink_frozen): (bool, bool)) {
        if !sink_frozen || !source_frozen {
            self.step_unless(source_frozen, sink_frozen);
        }
        if sink_frozen && self.s.sink.is_some() {
            self.land();
        }
    }

    /// The kernel gets to something that a frozen sink gave it.
    fn land(&mut self) {
        let rng = self.freezes.rng.as_mut().expect("somebody froze");
        let snk = self.s.sink.as_mut().expect("the sink is there");
        let mut items: Vec<_> = Vec::new();
        for (at, op) in snk.ops.iter().enumerate() {
            match op {
                SinkOp::Write { .. } | SinkOp::SyncDirs { .. } => items.push((at, None)),
                SinkOp::Commit { items: all, durable } => {
                    let fenced = all.iter().filter(|item| {
                        snk.midway.get(&item.id) == Some(&Midway::Fenced)
                            && !snk.landed.contains_key(&item.id)
                    });
                    items.extend(fenced.map(|item| (at, Some((item.clone(), *durable)))));
                }
                _ => {}
            }
        }
        if items.is_empty() {
            return;
        }
        match items.swap_remove(rng.usize(..items.len())) {
            (at, None) => self.sink_exec_at(at),
            (_, Some((item, durable))) => {
                let result = self.commit(&item, durable);
                self.snk().landed.insert(item.id, result);
            }
        }
    }

    /// A name was given by the session that acts now, over what stood there `before`.
    pub fn gave_name(&mut self, entry: usize, file: usize, (before, midway): (Option<Node>, Option<Midway>)) {
        let (epoch, tag) = (self.snk().epoch, self.snk().tag);
        if self.freezes.owner == Some(epoch) {
            self.published.insert(file, epoch);
            return;
        }
        LANDED.set(LANDED.get() + 1);
        self.note(|| format!("-- {entry} is published by {tag}, which lost the job"));
        // What was acknowledged in a temporary of the owner's is still there.
        let replaced = match before {
            Some(Node::File(before)) => {
                let file = &self.disk.files[before];
                let is_it = |ack: &Ack| (ack.version.len, ack.version.mtime) == (file.len, file.mtime);
                self.acks[entry].as_ref().is_some_and(is_it)
            }
            _ => false,
        };
        if replaced {
            self.acks[entry] = None;
        }
        self.freezes.late.insert(file);
        assert_eq!(midway, Some(Midway::Fenced), "entry {entry} is published by a run that lost its job");
    }

    /// The session writes to an inode.
    pub fn check_writer(&mut self, file: usize) {
        let epoch = self.snk().epoch;
        let by = self.published.get(&file).copied();
        assert!(
            by.is_none_or(|by| by == epoch),
            "epoch {epoch} writes to what epoch {by:?} has published: {:?}",
            self.disk.files[file]
        );
    }

    /// The session has looked at its names for the last time, and says that it is complete.
    pub fn promise(&mut self) {
        if self.freezes.rng.is_none() || self.freezes.in_aside {
            return;
        }
        let files = self.disk.names().filter_map(|(dir, (entry, tag), node)| match (tag, node) {
            (None, Node::File(file)) => {
                let what = &self.disk.files[file];
                Some(Stands { dir, entry, file, blocks: what.keys(false), len: what.len, mtime: what.mtime })
            }
            _ => None,
        });
        let files = files.collect();
        let since = self.freezes.since.clone();
        self.freezes.promise = Some(Promise { files, since, given: false });
    }

    /// The session is over at both ends: if it ended complete, with every entry, what it said is held against
    /// it.
    pub fn give_word(&mut self) {
        if self.freezes.rng.is_none() {
            return;
        }
        let complete = Some(SessionEnd::Complete);
        let kept = self.s.source_end == complete && self.s.sink_end == complete && self.s.failed == 0;
        if !kept {
            self.freezes.promise = None;
            return;
        }
        if self.s.follows {
            KEPT_WORD.set(KEPT_WORD.get() + 1);
        }
        // None: the host of the sink lost power since, and with it whatever was aside.
        let Some(promise) = &mut self.freezes.promise else { return };
        promise.given = true;
        let promise = self.freezes.promise.as_ref().expect("it was there just now");
        for stands in &promise.files {
            let Kind::File(versions) = &self.tree.entries[stands.entry].kind else { continue };
            if !self.s.right.contains(&stands.entry) {
                continue;
            }
            let zeros = |key: &u8| if *key == NOTHING { ZERO } else { *key };
            let blocks: Vec<u8> = stands.blocks.iter().map(zeros).collect();
            let copied = self.s.copies.contains(&stands.entry);
            let shows = |v: &Version| {
                (v.len, v.mtime) == (stands.len, stands.mtime) && (!copied || v.keys() == blocks)
            };
            assert!(
                versions[promise.since[stands.entry]..].iter().any(shows),
                "a run is complete, but entry {} is of none of its versions: {:?} of {} bytes, {}",
                stands.entry,
                stands.blocks,
                stands.len,
                stands.mtime
            );
        }
    }

    /// What a run said that is complete still holds.
    fn judge_promise(&self) {
        let Some(promise) = self.freezes.promise.as_ref().filter(|promise| promise.given) else { return };
        for stands in &promise.files {
            let (entry, node) = (stands.entry, self.disk.at(stands.dir, (stands.entry, None)));
            assert_eq!(node, Some(Node::File(stands.file)), "entry {entry} was complete, and is replaced");
            let file = &self.disk.files[stands.file];
            let now = (file.keys(false), file.len, file.mtime);
            let then = (stands.blocks.clone(), stands.len, stands.mtime);
            assert_eq!(now, then, "entry {entry} was complete, and is changed");
        }
    }

    /// Whether the job is the session's, as it is now.
    pub fn still_owner(&mut self) -> bool {
        let epoch = self.snk().epoch;
        self.freezes.owner == Some(epoch)
    }

    /// Whether it was, at most [`OWNER_FRESH`] ago.
    pub fn check_owner(&mut self) -> bool {
        let now = self.now;
        let fresh = |seen: Time| now.0 - seen.0 < OWNER_FRESH;
        if self.snk().seen_owner.is_some_and(fresh) {
            return true;
        }
        let ours = self.still_owner();
        if ours {
            self.snk().seen_owner = Some(now);
        }
        ours
    }

    /// Asked directly before a name is given.
    pub fn fence(&mut self) -> bool {
        haul_mutant::removed("fence-before-each-rename") || self.still_owner()
    }

    /// Whether each name that this session gave leads to what it was given to, where a former run may still
    /// give names.
    pub fn confirm(&mut self) -> bool {
        if !self.snk().confirm || haul_mutant::removed("published-names-are-confirmed") {
            return true;
        }
        let given: Vec<_> = self.snk().given.iter().map(|(at, node)| (*at, *node)).collect();
        let lost =
            given.iter().find(|((dir, entry), node)| self.disk.at(*dir, (*entry, None)) != Some(*node));
        if let Some(lost) = lost {
            self.note(|| format!("sink: {lost:?} was replaced"));
            SAID_SO.set(SAID_SO.get() + 1);
        }
        lost.is_none()
    }
}

/// Runs one seed of the world in which ends freeze; panics where something is wrong. Returns the steps that
/// it took.
pub fn run(seed: u64) -> u64 {
    let mut world = World::new(seed);
    world.freezes.rng = Some(Rng::with_seed(seed ^ 0x5eed));
    (world.changed, world.grows) = (OnChange::Retry, None);
    let mut steps = 0;
    for _ in 0..world.rng.u8(1..6) {
        steps += world.session();
        if world.rng.u8(..5) == 0 {
            steps += world.end_aside();
        }
    }
    world.quiet = true;
    world.note(|| "quiet from here".into());
    let disputed = world.freezes.aside.is_some();
    steps += world.session();
    if !disputed {
        assert_eq!(world.s.source_end, Some(SessionEnd::Complete), "a quiet session ends complete");
    }
    steps += world.end_aside();
    steps + world.run_quiet()
}
