//! Files of a volume that are written: each under a name of its own, until it has its final one.
//!
//! In: objects, commits, files that are given up. Out: bytes at the servers, temporaries that come and go.
//! One of which a part was synced stays at the end of a run that is not done, for the next one (`adopt`).
//! Invariants: the first write makes the temporary; a file that failed stays failed until it is discarded,
//! and is given up in one step, so that no write under way makes its temporary again. Left out: threads and
//! answers, which are the writer's; final names (`publish`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use haul_core::digest::{Cv, DigestKind};
use haul_core::entry::{Meta, Name};
use haul_core::ids::{DirId, FileId};
use haul_core::journal::Former;
use haul_core::stage::Stage;
use haul_core::transfer::op::{CommitItem, SinkFile};
use haul_core::volume::FileNo;
use haul_core::volume::catalog::{EntryNo, Place as At};
use haul_core::wire::{Failure, FailureKind, SinkOptions};
use haul_volume::client::VolumeError;

use super::claim::Claim;
use super::journal::Journal;
use super::noted::Noted;
use super::tree::Tree;
use super::{Volume, is_missing};
use crate::sink::temp_name;
use crate::{Post, SinkCompletion};
use haul_base::buffer::Buffer;
use haul_base::digest::Hasher;
use haul_base::meter::Meter;

/// Bytes that are read back at a time.
const STEP: u64 = 4 << 20;

/// What all threads share.
pub(super) struct Common {
    pub(super) volume: Arc<Volume>,
    pub(super) tree: Tree,
    pub(super) claim: Arc<Claim>,
    pub(super) journal: Arc<Journal>,
    /// The runs before.
    pub(super) former: Former,
    pub(super) policy: SinkOptions,
    pub(super) tag: u32,
    /// Of a temporary.
    pub(super) made: Meta,
    pub(super) files: Mutex<HashMap<FileId, Arc<OpenFile>>>,
    pub(super) noted: Noted,
    pub(super) meter: Arc<Meter>,
    /// Files whose setuid or setgid was dropped.
    pub(super) setid: AtomicU64,
    /// How often a server had lost what was not synced of a file.
    pub(super) lost: AtomicU64,
    /// A part of a file was synced, so that the journal may speak of one.
    pub(super) has_parts: AtomicBool,
    pub(super) post: Post<SinkCompletion>,
}

/// A file that is written.
pub(super) struct OpenFile {
    pub(super) parent: DirId,
    pub(super) name: Name,
    temp: Name,
    size: u64,
    written: AtomicU64,
    state: Mutex<State>,
    /// A server lost something of it.
    is_lost: AtomicBool,
    /// What of it was written before this run nobody counted here.
    is_adopted: AtomicBool,
    /// A part of it was synced, and the journal may say so.
    is_kept: AtomicBool,
}

/// What became of a commit that did not fail for good.
pub(super) enum Committed {
    Done,
    /// A server lost what was not synced; the file may come once more.
    Lost(Failure),
}

#[derive(Clone)]
enum State {
    New,
    /// Its temporary is there.
    Open(EntryNo),
    Failed(Failure),
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Common {
    /// To whom belongs what is made here.
    pub(super) fn own(&self) -> &Meta {
        &self.made
    }

    pub(super) fn path(&self, file: &SinkFile) -> Vec<u8> {
        self.tree.path(file.parent, Some(&file.name))
    }

    /// The file, known from now on.
    pub(super) fn open(&self, file: &SinkFile) -> Arc<OpenFile> {
        let new = || {
            Arc::new(OpenFile {
                parent: file.parent,
                name: file.name.clone(),
                temp: self.temp_name(file),
                size: file.size,
                written: AtomicU64::new(0),
                state: Mutex::new(State::New),
                is_lost: AtomicBool::new(false),
                is_adopted: AtomicBool::new(false),
                is_kept: AtomicBool::new(false),
            })
        };
        lock(&self.files).entry(file.id).or_insert_with(new).clone()
    }

    pub(super) fn temp_name(&self, file: &SinkFile) -> Name {
        temp_name(&file.name, self.tag, file.number)
    }

    /// The temporary of a file, made at the first call.
    pub(super) fn temp(&self, file: &OpenFile) -> Result<EntryNo, Failure> {
        let mut state = lock(&file.state);
        match &*state {
            State::Open(entry) => return Ok(*entry),
            State::Failed(failure) => return Err(failure.clone()),
            State::New => {}
        }
        let path = || self.tree.path(file.parent, Some(&file.name));
        self.claim.check()?;
        let parent = self.tree.dir(file.parent)?;
        let at = At { parent, name: file.temp.clone() };
        let placing = self.volume.placing(file.size);
        match self.volume.catalog.create_placed(at, self.made, true, false, placing) {
            Ok((entry, _)) => {
                *state = State::Open(entry.id);
                Ok(entry.id)
            }
            Err(why) => {
                // It may have been made all the same: what stands there is not written into.
                self.claim.keep();
                let failure = self.volume.refused(FailureKind::Create, "create", &path(), &why);
                *state = State::Failed(failure.clone());
                Err(failure)
            }
        }
    }

    pub(super) fn write(
        &self,
        file: &SinkFile,
        offset: u64,
        payload: Option<&Buffer>,
        (start, len): (u32, u64),
    ) -> Result<(), Failure> {
        let open = self.open(file);
        if len == 0 {
            return Ok(());
        }
        let entry = self.temp(&open)?;
        let all = payload.map_or(&[][..], Buffer::as_slice);
        let start = start as usize;
        let Some(bytes) = usize::try_from(len).ok().and_then(|len| all.get(start..start.checked_add(len)?))
        else {
            let why = "its bytes are not in their buffer";
            return Err(self.volume.failed(FailureKind::Local, "write", &self.path(file), 0, why));
        };
        let write = || self.volume.client.write(FileNo(entry.0), offset, bytes.to_vec());
        let written = self.volume.wait_for_room(write);
        written.map_err(|why| self.volume.broke(FailureKind::Write, "write", &self.path(file), &why))?;
        open.written.fetch_add(len, Ordering::AcqRel);
        Ok(())
    }

    /// Reads back ranges of what was written, nodes of the file's tree.
    pub(super) fn check(
        &self,
        file: &SinkFile,
        kind: DigestKind,
        ranges: &[(u64, u64)],
    ) -> Result<Vec<Option<Cv>>, Failure> {
        let Some(open) = lock(&self.files).get(&file.id).cloned() else {
            return Ok(ranges.iter().map(|_| None).collect());
        };
        let entry = self.temp(&open)?;
        let value = |(offset, len): &(u64, u64)| {
            let mut hasher = Hasher::new(kind, *offset);
            let read = self.read_back(file, entry, (*offset, *len), &mut hasher);
            let whole = *offset == 0 && *len == file.size;
            // What cannot be read is not there.
            read.ok().map(|()| if whole { hasher.root() } else { hasher.value() })
        };
        Ok(ranges.iter().map(value).collect())
    }

    /// Hashes a range of what the servers give back.
    pub(super) fn read_back(
        &self,
        file: &SinkFile,
        entry: EntryNo,
        (offset, len): (u64, u64),
        hasher: &mut Hasher,
    ) -> Result<(), Failure> {
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let step = (end - at).min(STEP);
            let read = self.volume.wait(|| self.volume.client.read(FileNo(entry.0), at, step));
            let read = read
                .map_err(|why| self.volume.broke(FailureKind::Read, "read back", &self.path(file), &why))?;
            self.meter.busy(Stage::SinkHost, || hasher.update(&read.bytes));
            at += step;
        }
        Ok(())
    }

    /// Commits one file: what was written lasts, and a complete one gets its name. Also where nothing need
    /// last: the journal is believed by whoever reads it.
    pub(super) fn commit(&self, item: &CommitItem) -> Result<Committed, Failure> {
        let open = match &item.publish {
            Some(publish) => Some(self.open(&publish.file)),
            None => lock(&self.files).get(&item.id).cloned(),
        };
        let Some(open) = open else { return Ok(Committed::Done) };
        let result = match &item.publish {
            Some(publish) => self.publish(&open, publish),
            None => self.keep_part(&open),
        };
        match (&result, &item.publish) {
            (Ok(()), Some(_)) => drop(lock(&self.files).remove(&item.id)),
            (Ok(()), None) => {}
            // What was synced before is there when the servers are, and the run ends.
            (Err(failure), _) if self.stays(&open) => {
                *lock(&open.state) = State::Failed(failure.clone());
            }
            (Err(failure), publish) => {
                let _ = self.remove(&open, failure.clone());
                // Nobody discards what was never written.
                if publish.as_ref().is_some_and(|publish| publish.file.size == 0) {
                    drop(lock(&self.files).remove(&item.id));
                }
            }
        }
        match result {
            Err(failure) if open.is_lost.load(Ordering::Acquire) => {
                self.lost.fetch_add(1, Ordering::Relaxed);
                Ok(Committed::Lost(failure))
            }
            result => result.map(|()| Committed::Done),
        }
    }

    /// What was written of a file that is not complete lasts from now on.
    fn keep_part(&self, open: &OpenFile) -> Result<(), Failure> {
        let entry = match &*lock(&open.state) {
            State::Open(entry) => *entry,
            State::Failed(failure) => return Err(failure.clone()),
            State::New => return Ok(()),
        };
        if !haul_mutant::removed("volume-parts-are-synced") {
            self.sync(open, entry)?;
        }
        open.is_kept.store(true, Ordering::Release);
        self.has_parts.store(true, Ordering::Release);
        Ok(())
    }

    /// Its temporary is for the next run, which a server or the catalog that is gone does not take from it.
    fn stays(&self, open: &OpenFile) -> bool {
        open.is_kept.load(Ordering::Acquire) && self.volume.is_gone()
    }

    /// All servers say that what was written lasts, and others see how long the file is.
    pub(super) fn sync(&self, file: &OpenFile, entry: EntryNo) -> Result<(), Failure> {
        let synced = self.volume.wait_once(&self.volume.client.sync(FileNo(entry.0)));
        self.volume.is_broken(&synced);
        synced.map_err(|why| self.broke(file, (FailureKind::Sync, "sync"), &why))
    }

    /// A server lost something of this file, which may come once more.
    pub(super) fn is_lost(&self, id: FileId) -> bool {
        lock(&self.files).get(&id).is_some_and(|file| file.is_lost.load(Ordering::Acquire))
    }

    /// The servers did not do it. Where one lost something, that is noted with the file.
    pub(super) fn broke(
        &self,
        file: &OpenFile,
        (kind, doing): (FailureKind, &str),
        why: &VolumeError,
    ) -> Failure {
        if matches!(why, VolumeError::Lost(_)) {
            file.is_lost.store(true, Ordering::Release);
        }
        self.volume.broke(kind, doing, &self.tree.path(file.parent, Some(&file.name)), why)
    }

    /// Gives a file up, for this reason, and removes its temporary, if it has one: its name is of this run
    /// alone. Whether it is gone; otherwise the next run of the job finds it by its tag. In one step: a write
    /// that is under way must not make the temporary again.
    pub(super) fn remove(&self, file: &OpenFile, why: Failure) -> bool {
        let after = match haul_mutant::removed("volume-files-fail-in-one-step") {
            true => State::New,
            false => State::Failed(why),
        };
        let before = std::mem::replace(&mut *lock(&file.state), after);
        let State::Open(_) = before else { return true };
        let Ok(parent) = self.tree.dir(file.parent) else { return false };
        match self.volume.catalog.unlink(At { parent, name: file.temp.clone() }) {
            Ok(()) => true,
            Err(why) if is_missing(&why) => true,
            Err(_) => {
                self.claim.keep();
                false
            }
        }
    }

    /// Nobody wants the file any more.
    pub(super) fn given_up(&self, file: &OpenFile) -> Failure {
        let path = self.tree.path(file.parent, Some(&file.name));
        self.volume.failed(FailureKind::Local, "write", &path, 0, "it was given up")
    }

    /// What has no final name goes, but for that of which a part lasts; where the catalog does not do it,
    /// nobody waits for it again and again.
    pub(super) fn abandon(&self) {
        let left: Vec<Arc<OpenFile>> = lock(&self.files).drain().map(|(_, file)| file).collect();
        let goes = |file: &&Arc<OpenFile>| {
            !file.is_kept.load(Ordering::Acquire) || haul_mutant::removed("volume-parts-stay")
        };
        let _ = left.iter().filter(goes).all(|file| self.remove(file, self.given_up(file)));
    }
}

impl OpenFile {
    pub(super) fn temp_name(&self) -> &Name {
        &self.temp
    }

    /// Its temporary is this one, which an earlier run began, and which the journal speaks of.
    pub(super) fn adopt(&self, entry: EntryNo) {
        *lock(&self.state) = State::Open(entry);
        self.is_adopted.store(true, Ordering::Release);
        self.is_kept.store(true, Ordering::Release);
    }

    pub(super) fn is_adopted(&self) -> bool {
        self.is_adopted.load(Ordering::Acquire)
    }

    /// So many bytes of it are not written, as far as they were counted: the session knows what of a file
    /// that goes on was found.
    pub(super) fn missing(&self, data_len: u64) -> u64 {
        if self.is_adopted() {
            return 0;
        }
        data_len.saturating_sub(self.written.load(Ordering::Acquire))
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::conformance::{Impatient, file, name};
    use crate::sink::JobKey;
    use crate::vol::test_volume::{META, TestVolume};
    use crate::vol::tree::Root;

    /// Goal: a file that was given up is given up: a write that was under way, and comes behind that, does
    /// not make its temporary again, which nobody would remove.
    #[test]
    fn a_file_is_given_up_in_one_step() {
        let at = TestVolume::start(3);
        let (id, path) = (at.dir(b"/dst"), b"/dst".to_vec());
        let (volume, key) = (at.volume(), JobKey::new(&[1; 16]));
        let claim = Claim::take(&volume, (id, &path), key.clone(), (5, "a test"), &Impatient);
        let claim = Arc::new(claim.unwrap_or_else(|failure| panic!("{}", failure.text)));
        let tree = Tree::new(volume.clone(), Root { id, path, made: false }, Some(META));
        let common = Common {
            volume,
            tree,
            journal: Arc::new(Journal::new(at.volume(), claim.clone(), (id, b"/dst"), (key, META))),
            claim,
            former: Former::default(),
            policy: SinkOptions::PLAIN,
            tag: 5,
            made: META,
            files: Mutex::default(),
            noted: Noted::default(),
            meter: Arc::new(Meter::default()),
            setid: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            has_parts: AtomicBool::new(false),
            post: Arc::new(|_| {}),
        };
        let one = common.open(&file(1, DirId::ROOT, b"f", 10));
        common.temp(&one).expect("made");
        assert_eq!(at.list(b"/dst").len(), 2, "the run's entry and the temporary");
        assert!(common.remove(&one, common.given_up(&one)));
        let failure = common.temp(&one).expect_err("it was given up");
        assert!(failure.text.contains("given up"), "{}", failure.text);
        // One of which there was nothing yet is given up just so.
        let other = common.open(&file(2, DirId::ROOT, b"g", 10));
        assert!(common.remove(&other, common.given_up(&other)));
        assert!(common.temp(&other).is_err());
        let left: Vec<_> = at.list(b"/dst").into_iter().map(|(left, _)| left).collect();
        assert!(left.len() == 1 && left[0].ends_with(b".own.1"), "{left:?}");
        assert_ne!(one.temp_name(), &name(b"f"));
    }
}
