//! Reading: the bytes of a journal, in pieces of any size, become what the next session may rely on.
//!
//! Invariants: nothing is allocated from a number in the file; at most one record is held. The first record
//! that is not whole, not in the chain or not where it belongs ends the replay for good.
//! Facts are kept in two layers, `solid` (made durable) and `loose` (made without durability, on one boot),
//! because the boot that counts is known only at the end. A path is in one layer at most, as partial or done.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use super::codec::decode;
use super::{
    DONE_REPLAYED_MAX, DirMark, DoneMark, FINISHED_REPLAYED_MAX, JournalError, LEN_LEN, MAGIC, MAGIC_LEN,
    PARTIALS_REPLAYED_MAX, Partial, PathKey, RECORD_LEN_MAX, Record, Replayed, RootId, SUBTREE_KEPT_MAX,
    SUBTREES_REPLAYED_MAX, SUM_LEN, TAGS_MAX, WIDENED_LEN_MAX, Widened, sum,
};
use crate::digest::{Subtree, SubtreeSet};
use crate::ids::Holder;

/// Replays a journal that is fed in order.
#[derive(Debug)]
pub struct Replay {
    state: ReplayState,
    /// Bytes of the magic or of one record that is not whole yet.
    pending: Vec<u8>,
    chain: [u8; SUM_LEN],
    good_len: u64,
    head: Option<([u8; 16], RootId)>,
    epoch_max: u32,
    tags: Vec<u32>,
    unproven: Vec<u32>,
    /// As whom the current session writes.
    session_lease: Holder,
    /// Whether the current session's facts are durable; `None` before the first session.
    session_durable: Option<bool>,
    /// The current session's partial files.
    slots: HashMap<u32, PathKey>,
    solid: Facts,
    loose: Facts,
    /// The boot that `loose` counts on.
    loose_boot: [u8; 16],
    /// Directories that are open to us, by the order of their records; and by slot those of the current
    /// session.
    widened: BTreeMap<u64, Widened>,
    widened_slots: HashMap<u32, u64>,
    widened_len: usize,
    dropped: u64,
    bounds: Bounds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplayState {
    Magic,
    Records,
    /// A bad record was seen: nothing behind it is believed.
    Over,
    Refused(JournalError),
}

/// Most of each kind that is kept.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    done: usize,
    finished: usize,
    partials: usize,
    subtrees: usize,
    widened_len: usize,
}

/// What is known of paths.
#[derive(Debug, Default)]
struct Facts {
    /// With the slot that named it when it was declared.
    partials: HashMap<PathKey, (u32, Partial)>,
    done: HashMap<PathKey, DoneMark>,
    finished: HashMap<PathKey, DirMark>,
    /// Paths of `done` and `finished`, by the directory that they are in.
    children: HashMap<PathKey, HashSet<PathKey>>,
    /// Subtrees in `partials`.
    subtrees: usize,
}

impl Replay {
    /// A replay that has seen nothing.
    pub fn new() -> Replay {
        Replay {
            state: ReplayState::Magic,
            pending: Vec::new(),
            chain: MAGIC,
            good_len: 0,
            head: None,
            epoch_max: 0,
            tags: Vec::new(),
            unproven: Vec::new(),
            session_lease: Holder::ALONE,
            session_durable: None,
            slots: HashMap::new(),
            solid: Facts::default(),
            loose: Facts::default(),
            loose_boot: [0; 16],
            widened: BTreeMap::new(),
            widened_slots: HashMap::new(),
            widened_len: 0,
            dropped: 0,
            bounds: Bounds {
                done: DONE_REPLAYED_MAX,
                finished: FINISHED_REPLAYED_MAX,
                partials: PARTIALS_REPLAYED_MAX,
                subtrees: SUBTREES_REPLAYED_MAX,
                widened_len: WIDENED_LEN_MAX,
            },
        }
    }

    /// Takes the next bytes of the file.
    ///
    /// # Errors
    /// If the file does not begin as a journal of this format does. Damage behind that is no error.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), JournalError> {
        loop {
            let need = match self.state {
                ReplayState::Magic => MAGIC_LEN,
                ReplayState::Records => self.record_need(),
                ReplayState::Over => return Ok(()),
                ReplayState::Refused(error) => return Err(error),
            };
            if self.pending.len() < need {
                if bytes.is_empty() {
                    return Ok(());
                }
                let (now, later) = bytes.split_at(bytes.len().min(need - self.pending.len()));
                self.pending.extend_from_slice(now);
                bytes = later;
            } else if self.state == ReplayState::Magic {
                self.take_magic();
            } else {
                self.take_record();
            }
        }
    }

    /// Nothing behind what was fed counts any more.
    pub fn is_over(&self) -> bool {
        matches!(self.state, ReplayState::Over | ReplayState::Refused(_))
    }

    /// Ends the replay. `boot` is the current boot of this host. `durable`: the next session promises
    /// durability, so that what was done without it is worth nothing to it.
    ///
    /// Edge: an empty file, and one whose first bytes never reached the disk, is a journal without records.
    ///
    /// # Errors
    /// As of [`Replay::feed`]; also for a file shorter than the magic that does not begin as it does.
    pub fn finish(self, boot: [u8; 16], durable: bool) -> Result<Replayed, JournalError> {
        if let ReplayState::Refused(error) = self.state {
            return Err(error);
        }
        let torn_start = self.pending.iter().all(|b| *b == 0) || MAGIC.starts_with(&self.pending);
        if self.state == ReplayState::Magic && !torn_start {
            return Err(JournalError::NotAJournal);
        }
        let mut facts = self.solid;
        let loose_counts =
            !durable && self.loose_boot == boot || haul_mutant::removed("durable-on-this-boot");
        let loose_empty =
            self.loose.partials.is_empty() && self.loose.done.is_empty() && self.loose.finished.is_empty();
        if loose_counts {
            facts.partials.extend(self.loose.partials);
            facts.done.extend(self.loose.done);
            facts.finished.extend(self.loose.finished);
        }
        Ok(Replayed {
            head: self.head,
            epoch_max: self.epoch_max,
            tags: self.tags,
            unproven: self.unproven,
            partials: facts.partials.into_iter().map(|(path, (_, partial))| (path, partial)).collect(),
            done: facts.done,
            finished: facts.finished,
            widened: self.widened.into_values().collect(),
            dropped: self.dropped,
            volatile: loose_counts && !loose_empty,
            good_len: self.good_len,
            damaged: self.state == ReplayState::Over || !self.pending.is_empty(),
        })
    }

    /// Bytes of the record in `pending`, as far as they can be told.
    fn record_need(&self) -> usize {
        match self.pending.first_chunk::<LEN_LEN>() {
            None => LEN_LEN,
            Some(len) => match u32::from_le_bytes(*len) as usize {
                // Not a record; `take_record` says so without waiting for more.
                len if len > RECORD_LEN_MAX => LEN_LEN,
                len => LEN_LEN + len + SUM_LEN,
            },
        }
    }

    /// `pending` holds the file's first bytes.
    fn take_magic(&mut self) {
        let (text, version) = self.pending.split_at(MAGIC_LEN - 2);
        self.state = if self.pending == MAGIC {
            self.good_len = MAGIC_LEN as u64;
            ReplayState::Records
        } else if self.pending.iter().all(|b| *b == 0) {
            // A file system may keep the length and lose the bytes.
            ReplayState::Over
        } else if MAGIC.starts_with(text) {
            let version = u16::from_le_bytes([version[0], version[1]]);
            ReplayState::Refused(JournalError::Version(version))
        } else {
            ReplayState::Refused(JournalError::NotAJournal)
        };
        self.pending.clear();
    }

    /// `pending` holds a whole record, or a length that none can have.
    fn take_record(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        if self.try_record(&pending).is_none() {
            self.state = ReplayState::Over;
            return;
        }
        self.good_len += pending.len() as u64;
        // Keep the allocation.
        self.pending = pending;
        self.pending.clear();
    }

    /// Checks and applies a record with its length and checksum; `None` if it is not to be believed.
    fn try_record(&mut self, bytes: &[u8]) -> Option<()> {
        let (_, rest) = bytes.split_first_chunk::<LEN_LEN>()?;
        let (body, found) = rest.split_last_chunk::<SUM_LEN>()?;
        let expected = sum(&self.chain, body);
        if *found != expected && !haul_mutant::removed("journal-sum") {
            return None;
        }
        self.apply(decode(body)?)?;
        self.chain = expected;
        Some(())
    }

    /// Applies a whole record; `None` if it does not belong where it stands.
    fn apply(&mut self, record: Record) -> Option<()> {
        match record {
            Record::Head { job, root } if self.head.is_none() => self.head = Some((job, root)),
            _ if self.head.is_none() => return None,
            Record::Head { .. } => return None,
            Record::Session { epoch, tag, boot, durable, lease } => {
                self.epoch_max = self.epoch_max.max(epoch);
                add_tag(&mut self.tags, tag);
                self.slots.clear();
                self.widened_slots.clear();
                self.session_durable = Some(durable);
                self.session_lease = lease;
                if !durable && self.loose_boot != boot {
                    // Another boot came between: what was loose on the one before may be lost.
                    self.loose = Facts::default();
                    self.loose_boot = boot;
                }
            }
            Record::Tags { tags } => tags.into_iter().for_each(|tag| add_tag(&mut self.tags, tag)),
            Record::Unproven { tags } => tags.into_iter().for_each(|tag| add_tag(&mut self.unproven, tag)),
            Record::Partial { slot, path, fingerprint, object_size, tag, number, map, digest } => {
                let durable = self.session_durable?;
                self.forget(&path);
                self.slots.remove(&slot);
                let bounded = !haul_mutant::removed("replay-is-bounded");
                if self.solid.partials.len() + self.loose.partials.len() < self.bounds.partials || !bounded {
                    let subtrees = SubtreeSet::capped(digest, fingerprint.size, SUBTREE_KEPT_MAX);
                    let partial = Partial { fingerprint, object_size, tag, number, map, subtrees };
                    self.layer(durable).partials.insert(path, (slot, partial));
                    self.slots.insert(slot, path);
                } else {
                    self.dropped += 1;
                }
            }
            Record::Durable { slot, by, subtrees } => {
                let durable = self.session_durable?;
                if by != self.session_lease && !haul_mutant::removed("journals-know-leases") {
                    self.dropped += subtrees.len() as u64;
                    return Some(());
                }
                // No such slot: it was withdrawn meanwhile, or its file was over a bound.
                if let Some(path) = self.slots.get(&slot).copied() {
                    subtrees.iter().for_each(|subtree| self.add_subtree(durable, &path, subtree));
                }
            }
            Record::Withdrawn { slot } => {
                self.session_durable?;
                if let Some(path) = self.slots.get(&slot).copied() {
                    self.forget(&path);
                }
            }
            Record::Done { path, mark } => {
                let durable = self.session_durable?;
                self.forget(&path);
                self.reopen(&mark.parent);
                if self.solid.done.len() + self.loose.done.len() < self.bounds.done {
                    self.layer(durable).put_done(path, mark);
                } else {
                    self.dropped += 1;
                }
            }
            Record::Finished { path, mark } => {
                let durable = self.session_durable?;
                self.forget(&path);
                self.reopen(&mark.parent);
                // Also where the mark itself is over a bound: that only forgets.
                for facts in [&mut self.solid, &mut self.loose] {
                    facts.drop_children(&path);
                }
                if self.solid.finished.len() + self.loose.finished.len() < self.bounds.finished {
                    self.layer(durable).put_finished(path, mark);
                } else {
                    self.dropped += 1;
                }
            }
            Record::Reopened { path } => {
                self.session_durable?;
                self.reopen(&path);
            }
            Record::Widened { slot, dir } => {
                self.session_durable?;
                self.widened_slots.remove(&slot);
                if self.widened_len + dir.cost() <= self.bounds.widened_len {
                    self.widened_len += dir.cost();
                    let at = self.widened.last_key_value().map_or(0, |(last, _)| last + 1);
                    self.widened.insert(at, dir);
                    self.widened_slots.insert(slot, at);
                } else {
                    self.dropped += 1;
                }
            }
            Record::Narrowed { slot } => {
                self.session_durable?;
                let dir = self.widened_slots.remove(&slot).and_then(|at| self.widened.remove(&at));
                self.widened_len -= dir.map_or(0, |dir| dir.cost());
            }
        }
        Some(())
    }

    fn layer(&mut self, durable: bool) -> &mut Facts {
        if durable { &mut self.solid } else { &mut self.loose }
    }

    /// A directory is not finished any more.
    fn reopen(&mut self, path: &PathKey) {
        if haul_mutant::removed("finished-directories-reopen") {
            return;
        }
        for facts in [&mut self.solid, &mut self.loose] {
            if facts.finished.contains_key(path) {
                facts.drop_mark(path);
            }
        }
    }

    fn add_subtree(&mut self, durable: bool, path: &PathKey, subtree: &Subtree) {
        let full = self.solid.subtrees + self.loose.subtrees >= self.bounds.subtrees;
        let facts = if durable { &mut self.solid } else { &mut self.loose };
        let Some((_, partial)) = facts.partials.get_mut(path) else { return };
        let before = partial.subtrees.len();
        let long = subtree.len > SUBTREE_KEPT_MAX;
        if full || long || partial.subtrees.insert(subtree.offset, subtree.len, subtree.cv).is_err() {
            self.dropped += 1;
            return;
        }
        facts.subtrees = facts.subtrees - before + partial.subtrees.len();
    }

    /// Forgets everything about a path, in both layers: a session without durability may have undone what
    /// one with it had made.
    fn forget(&mut self, path: &PathKey) {
        for facts in [&mut self.solid, &mut self.loose] {
            facts.drop_mark(path);
            if let Some((slot, partial)) = facts.partials.remove(path) {
                facts.subtrees -= partial.subtrees.len();
                if self.slots.get(&slot) == Some(path) {
                    self.slots.remove(&slot);
                }
            }
        }
    }
}

impl Facts {
    fn put_done(&mut self, path: PathKey, mark: DoneMark) {
        self.children.entry(mark.parent).or_default().insert(path);
        self.done.insert(path, mark);
    }

    fn put_finished(&mut self, path: PathKey, mark: DirMark) {
        self.children.entry(mark.parent).or_default().insert(path);
        self.finished.insert(path, mark);
    }

    /// Forgets that a path was done or finished.
    fn drop_mark(&mut self, path: &PathKey) {
        let done = self.done.remove(path).map(|mark| mark.parent);
        let Some(parent) = self.finished.remove(path).map(|mark| mark.parent).or(done) else { return };
        if let Entry::Occupied(mut siblings) = self.children.entry(parent) {
            siblings.get_mut().remove(path);
            if siblings.get().is_empty() {
                siblings.remove();
            }
        }
    }

    /// Forgets the marks of all that is directly in a directory.
    fn drop_children(&mut self, dir: &PathKey) {
        for path in self.children.remove(dir).unwrap_or_default() {
            self.done.remove(&path);
            self.finished.remove(&path);
        }
    }
}

/// The newest tag stands last, and each once; of too many the oldest is forgotten.
fn add_tag(tags: &mut Vec<u32>, tag: u32) {
    tags.retain(|known| *known != tag);
    if tags.len() == TAGS_MAX {
        tags.remove(0);
    }
    tags.push(tag);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::DigestKind;
    use crate::entry::Fingerprint;
    use crate::journal::{Log, WIDENED_LEN};

    /// Goal: beyond a bound facts are dropped and counted, and what is dropped takes no part in later
    /// records.
    /// Method: small bounds; more of each kind than they allow.
    #[test]
    fn bounds_drop_and_count() {
        let mut bytes = Vec::new();
        let mut log = Log::start(&mut bytes);
        log.append(&Record::Head { job: [1; 16], root: RootId::new(&[2]).expect("short") }, &mut bytes);
        log.append(
            &Record::Session { epoch: 1, tag: 1, boot: [1; 16], durable: true, lease: Holder::ALONE },
            &mut bytes,
        );
        let fingerprint = Fingerprint { size: 64 * 1024, ..Fingerprint::default() };
        let digest = DigestKind::Blake3;
        let path = |i: u32| PathKey([i as u8; 16]);
        for slot in 0..5 {
            let partial = Record::Partial {
                slot,
                path: path(slot),
                fingerprint,
                object_size: 1024,
                tag: 1,
                number: 1,
                map: None,
                digest,
            };
            log.append(&partial, &mut bytes);
            // No siblings: none merge.
            let subtrees = (0..2).map(|i| Subtree { offset: i * 4096, len: 1024, cv: [9; 32] }).collect();
            log.append(&Record::Durable { slot, by: Holder::ALONE, subtrees }, &mut bytes);
        }
        for i in 10..15 {
            log.append(
                &Record::Done {
                    path: path(i),
                    mark: DoneMark::new(PathKey([99; 16]), &fingerprint, [0; 32]),
                },
                &mut bytes,
            );
        }
        // A finished file makes room for subtrees and for a partial file.
        log.append(
            &Record::Done { path: path(0), mark: DoneMark::new(PathKey([99; 16]), &fingerprint, [0; 32]) },
            &mut bytes,
        );
        let partial = Record::Partial {
            slot: 9,
            path: path(9),
            fingerprint,
            object_size: 1024,
            tag: 1,
            number: 1,
            map: None,
            digest,
        };
        log.append(&partial, &mut bytes);
        // One more takes a slot that is in use: it is dropped, and what is durable of it is not the other's.
        let partial = Record::Partial {
            slot: 2,
            path: path(30),
            fingerprint,
            object_size: 1024,
            tag: 1,
            number: 1,
            map: None,
            digest,
        };
        log.append(&partial, &mut bytes);
        let subtrees = vec![Subtree { offset: 8192, len: 1024, cv: [9; 32] }];
        log.append(&Record::Durable { slot: 2, by: Holder::ALONE, subtrees }, &mut bytes);

        for slot in 40..44 {
            if slot == 42 {
                // What is settled makes room.
                log.append(&Record::Narrowed { slot: 41 }, &mut bytes);
                log.append(&Record::Narrowed { slot: 41 }, &mut bytes);
            }
            for _ in 0..1 + u32::from(slot == 43) {
                let dir = Widened { path: b"d"[..].into(), ino: u64::from(slot) - 40, mode: 0 };
                log.append(&Record::Widened { slot, dir }, &mut bytes);
            }
        }

        // Three directories side by side are one too many; the parent of two stands for both and makes room.
        let mut finish = |path: PathKey, parent| {
            let mark = DirMark { parent, mtime: fingerprint.mtime, version: fingerprint.version };
            log.append(&Record::Finished { path, mark }, &mut bytes);
        };
        let (above, root) = (path(60), PathKey::ROOT);
        [50, 51, 52].into_iter().for_each(|i| finish(path(i), above));
        finish(above, root);
        finish(path(53), root);

        let mut replay = Replay::new();
        replay.bounds =
            Bounds { done: 4, finished: 2, partials: 3, subtrees: 5, widened_len: 2 * (WIDENED_LEN + 1) };
        replay.feed(&bytes).expect("a journal");
        assert_eq!(replay.slots.len(), 2);
        let replayed = replay.finish([0; 16], true).expect("a journal");
        assert_eq!(replayed.done.len(), 4);
        let mut held: Vec<_> = replayed.partials.iter().map(|(p, f)| (p.0[0], f.subtrees.len())).collect();
        held.sort_unstable();
        assert_eq!(held, [(1, 2), (2, 1), (9, 0)]);
        assert_eq!(replayed.widened.iter().map(|dir| dir.ino).collect::<Vec<_>>(), [0, 2]);
        // Three partials, one subtree, two done marks, two directories that are open to us, one that is
        // finished.
        let mut finished: Vec<_> = replayed.finished.keys().map(|path| path.0[0]).collect();
        finished.sort_unstable();
        assert_eq!(finished, [53, 60]);
        assert_eq!(replayed.dropped, 3 + 1 + 2 + 2 + 1);
        assert!(!replayed.damaged);
    }
}
