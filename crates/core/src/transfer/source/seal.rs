//! From the last read of a file to its seal, and back when it changed or has to be sent again.
//!
//! In: what a look found, what the sink lost or got damaged, a new fingerprint. Out: looks and hashes to
//! make, seals, files withdrawn and announced again.
//! Invariants: a seal is of a look, and where that does not settle it of a hash, that began after the last
//! read of its pass; what was read more than once for sending was the same each time, as far as the source's
//! own tree or that hash can tell; the sink may ask for objects again only so often.
//! Left out: what becomes of a file that changed (`changed`); when the second tries begin (`read`).

use super::changed::differs;
use super::file::{Queue, SourcePhase};
use super::{Source, SourceAction};
use crate::digest::SubtreeSet;
use crate::entry::{EntryKind, Fingerprint, Meta};
use crate::ids::{FileId, Generation, Time};
use crate::transfer::op::{HashOk, Look, SourceOp};
use crate::transfer::{LOST_MAX, SMALL_LEN_MAX, SessionEnd, protocol, resends_max};
use crate::wire::{Announced, Failure, FailureKind, ITEMS_MAX, Message};

/// How often a file is hashed whose metadata change all the time, before it counts as changed.
const HASHES_MAX: u8 = 4;

impl Source {
    /// Asks for the fingerprint, now that everything was read.
    pub(super) fn look(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        file.phase = SourcePhase::Looking;
        if file.checking {
            // What it will say may be of a moment before the last read.
            file.look_again = true;
            return;
        }
        file.checking = true;
        let op = SourceOp::Look { id, generation: file.generation };
        self.actions.push_back(SourceAction::Submit(op));
    }

    /// A look or a hash came back; false if what it says is too old.
    pub(super) fn checked(&mut self, id: FileId, generation: Generation) -> bool {
        let Some(file) = self.files.get_mut(&id).filter(|f| f.generation == generation) else { return false };
        file.checking = false;
        if std::mem::take(&mut file.look_again) {
            if file.phase == SourcePhase::Looking {
                self.look(id);
            }
            return false;
        }
        true
    }

    pub(super) fn handle_look(&mut self, id: FileId, look: Look, now: Time) {
        let Some(file) = self.files.get_mut(&id) else { return };
        // A hash that is still under way began before the last read, and says nothing of it.
        let is_stale = file.checking && !haul_mutant::removed("hash-after-last-read");
        match look {
            Look::Same => self.seal(id),
            Look::MetaOnly { .. } | Look::Grown { .. } if is_stale => {
                (file.phase, file.look_again) = (SourcePhase::Looking, true);
            }
            Look::MetaOnly { seen, settle } => {
                file.phase = SourcePhase::Hashing;
                (file.seen, file.not_before) = (Some(seen), now.after(settle));
                if !self.is_young(id) {
                    self.hash(id);
                }
            }
            Look::Grown { size } => self.has_grown(id, size),
            Look::Longer => self.is_longer(id),
            Look::Changed => self.changed(id, None),
        }
    }

    /// Has the whole file hashed.
    pub(super) fn hash(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        file.checking = true;
        // Rare, so that all other operations stay small.
        let seen = file.seen.map(Box::new);
        let (generation, map, parts) = (file.generation, file.digest.map().cloned(), file.sent_twice());
        self.actions.push_back(SourceAction::Submit(SourceOp::HashFile { id, generation, map, seen, parts }));
    }

    /// The whole file was hashed a second time.
    pub(super) fn handle_hashed(&mut self, id: FileId, all: &HashOk) {
        let Some(file) = self.files.get(&id) else { return };
        match file.hashed(all) {
            Some(true) => self.seal(id),
            Some(false) => self.changed(id, file.seen.is_none().then(|| differs(file.size()))),
            // What the sink says of its parts makes no whole any more, which is no word on the source.
            None => self.try_again(id, None),
        }
    }

    /// What a look saw is not there any more: another look says whether it is the content that changed.
    pub(super) fn look_anew(&mut self, id: FileId, failure: Failure) {
        let Some(file) = self.files.get_mut(&id) else { return };
        if file.seen.is_none() {
            // It may be anything but shorter, or another file.
            return self.changed(id, Some(failure));
        }
        file.hashes += 1;
        match file.hashes < HASHES_MAX {
            true => self.look(id),
            false => self.changed(id, Some(failure)),
        }
    }

    pub(super) fn seal(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        file.phase = SourcePhase::Sealed;
        self.unsealed -= 1;
        self.sealed.push((id, file.generation, file.pass));
        if self.sealed.len() >= ITEMS_MAX {
            self.flush_sealed();
        }
    }

    pub(super) fn flush_sealed(&mut self) {
        if !self.sealed.is_empty() {
            let sealed = std::mem::take(&mut self.sealed);
            self.actions.push_back(SourceAction::Send(Message::Sealed(sealed)));
        }
    }

    /// Every file is sealed or ended.
    pub(super) fn all_sealed(&self) -> bool {
        self.unsealed == 0 && self.retries.is_empty() && self.refreshing == 0
    }

    /// The sink asks for an object again, for it arrived damaged.
    pub(super) fn handle_resend(&mut self, id: FileId, generation: Generation, offset: u64) {
        let Some(file) = self.files.get_mut(&id).filter(|f| f.generation == generation) else { return };
        if file.piece(offset).is_none_or(|(start, _)| start != offset) {
            let text = "the sink asks for a part of a file that does not begin an object";
            return self.finish(SessionEnd::Failed(protocol(text)));
        }
        file.resends += 1;
        // What came damaged, and what a store lost, with all that had come of the file.
        let most = resends_max(file.size(), file.digest.map(), file.object_size);
        let lost = most.saturating_mul(LOST_MAX.into());
        if file.resends > most.saturating_add(lost) {
            let text =
                "the sink asked for it again and again; look for bad memory or a broken network device";
            return self.fail_file(id, Failure { kind: FailureKind::Digest, errno: 0, text: text.into() });
        }
        self.send_again(id, generation, offset);
    }

    /// An object was lost on the way or arrived damaged.
    pub(super) fn send_again(&mut self, id: FileId, generation: Generation, offset: u64) {
        if self.send_once_more(id, generation, offset) {
            self.counts.objects_resent += 1;
        }
    }

    /// This object is to be read, after whatever was read before. False: not now, or never again.
    pub(super) fn send_once_more(&mut self, id: FileId, generation: Generation, offset: u64) -> bool {
        let Some(file) = self.files.get_mut(&id) else { return false };
        if file.generation != generation || offset >= file.size().max(1) {
            return false;
        }
        if matches!(
            file.phase,
            SourcePhase::Mapping
                | SourcePhase::AwaitState
                | SourcePhase::Cloned
                | SourcePhase::Verifying
                | SourcePhase::Young
                | SourcePhase::Retry
                | SourcePhase::Refreshing
        ) {
            return false;
        }
        if !self.reopen(id) {
            return false;
        }
        let Some(file) = self.files.get_mut(&id) else { return false };
        if file.is_small() {
            if file.queue == Queue::None && file.left == 0 && !file.adding {
                file.queue = Queue::Small;
                self.small_bytes += file.size();
                self.small.push_back(id);
            }
        } else if !file.again.contains(&offset) {
            file.again.push_back(offset);
            let object = offset / u64::from(file.object_size);
            self.add_again(id, object);
        }
        true
    }

    /// More of a file is to be read, whatever it was about to be. False: that was too often.
    pub(super) fn reopen(&mut self, id: FileId) -> bool {
        let Some(file) = self.files.get_mut(&id) else { return false };
        if file.phase != SourcePhase::Sending {
            // It was sealed, or is about to be, by a look that this read will come after.
            let Some(pass) = file.pass.checked_add(1) else {
                let text = "it had to be sent again too often";
                self.fail_file(id, protocol(text));
                return false;
            };
            file.pass = pass;
            if file.phase == SourcePhase::Sealed {
                self.unsealed += 1;
            }
            file.phase = SourcePhase::Sending;
        }
        true
    }

    /// The sink's storage gave back other bytes than were written: the file comes once more, as one that
    /// changed does.
    pub(super) fn came_back_wrong(&mut self, id: FileId, failure: Failure) {
        let Some(file) = self.files.get_mut(&id).filter(|f| f.phase == SourcePhase::Sealed) else { return };
        file.phase = SourcePhase::Sending;
        self.unsealed += 1;
        self.counts.sent_back += 1;
        self.try_again(id, Some(failure));
    }

    /// Announces a file again under the next generation.
    pub(super) fn announce_again(
        &mut self,
        id: FileId,
        fingerprint: Fingerprint,
        meta: Meta,
        not_before: Time,
    ) {
        // It may have got holes or lost them since it was walked.
        let sparse = self.config.agreed.holes && fingerprint.size > SMALL_LEN_MAX;
        let Some(file) = self.files.get(&id) else { return };
        if let Err(failure) = self.may_begin_anew(file, &fingerprint) {
            return self.fail_file(id, failure);
        }
        let values = self.metadata.take_anew(id).filter(|_| self.config.agreed.metadata);
        if values.as_ref().is_some_and(|values| !self.metadata.fit_again(id, values)) {
            let text = "it has more extended attributes now than there is room for, beside those of other open entries";
            let failure = Failure { kind: FailureKind::Local, errno: 0, text: text.into() };
            return self.fail_file(id, failure);
        }
        let Some(file) = self.files.get_mut(&id) else { return };
        file.extras.metadata = values.is_some();
        let others = self.counts.bytes.saturating_sub(file.size());
        self.counts.bytes = others.saturating_add(fingerprint.size);
        self.counts.durable = self.counts.durable.saturating_sub(std::mem::take(&mut file.durable));
        file.fingerprint = fingerprint;
        file.meta = meta;
        file.not_before = not_before;
        file.digest = SubtreeSet::new(self.config.agreed.digest, fingerprint.size);
        file.twice.clear();
        // What came instead may lie somewhere else.
        file.layout = file.layout.take().filter(|_| !file.asks);
        file.sink_targets = None;
        file.object_size = file.object_size_max;
        file.striped = self.config.agreed.layouts && file.asks && fingerprint.size > SMALL_LEN_MAX;
        file.pass = 0;
        file.hashes = 0;
        file.grown_to = 0;
        file.reads = 0;
        file.checking = false;
        file.look_again = false;
        file.phase = SourcePhase::AwaitState;
        self.refreshing -= 1;
        self.unsealed += 1;
        let entry = Announced {
            id,
            generation: file.generation,
            parent: file.parent,
            name: file.name.clone(),
            meta,
            kind: EntryKind::File {
                fingerprint,
                object_size: file.object_size,
                sparse,
                striped: file.striped,
            },
            extras: file.extras,
        };
        let generation = entry.generation;
        self.push_announcement(entry);
        match values {
            Some(values) => self.metadata.push(id, generation, values, false),
            None => self.metadata.forget(id),
        }
        self.announced(id, sparse);
    }
}
