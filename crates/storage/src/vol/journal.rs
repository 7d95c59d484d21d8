//! The journal of a job in a volume: a file in its destination, as a run in a directory of a file system has
//! one, so that whoever uses the volume may go on.
//!
//! In: records of the session machine, whole and in their order. Out: what an earlier run's are worth; a file
//! `.haul~KEY` beside the entry of the run ([`super::claim`]).
//! Invariants: a record is told to be written when the servers synced it; what one lost before that is
//! written again; a journal is begun under a name of the run's own and takes that of the one before whole,
//! and only while the job is ours; one that could not be written takes nothing more.
//! As long as no part of a file lasts, nothing is begun: a copy of small files need not wait for it. What was
//! held until then is written when the run ends and the job is not done.
//! Left out: what records mean, which is `core`'s.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use haul_base::kernel::boot_id;
use haul_core::entry::Meta;
use haul_core::journal::{JournalError, Replay, Replayed, RootId};
use haul_core::volume::FileNo;
use haul_core::volume::catalog::{EntryNo, Place as At};
use haul_core::volume::layout::Placing;
use haul_core::wire::{Failure, FailureKind};
use haul_volume::client::VolumeError;
use rustix::io::Errno;

use super::claim::Claim;
use super::{Volume, is_missing};
use crate::sink::JobKey;

/// Bytes that are read, or written, at a time.
const STEP: usize = 1 << 20;
/// So much is held before the journal is begun for that alone, bytes.
const HELD_MAX: usize = 256 * 1024;
/// How often a record is written again that a server lost before it was synced.
const LOST_MAX: u32 = 16;

/// See the module.
pub(super) struct Journal {
    volume: Arc<Volume>,
    claim: Arc<Claim>,
    dir: EntryNo,
    /// Of the directory, for people.
    path: Vec<u8>,
    key: JobKey,
    /// Of the file.
    made: Meta,
    state: Mutex<State>,
}

enum State {
    /// It is not begun. `told`: more than its beginning is in it.
    Held {
        bytes: Vec<u8>,
        told: bool,
    },
    Open {
        file: FileNo,
        len: u64,
    },
    Broken(Failure),
    Removed,
}

impl Journal {
    /// The journal of a job that is ours, in this directory. `made`: of its file.
    pub(super) fn new(
        volume: Arc<Volume>,
        claim: Arc<Claim>,
        (dir, path): (EntryNo, &[u8]),
        (key, made): (JobKey, Meta),
    ) -> Journal {
        let state = Mutex::new(State::Held { bytes: Vec::new(), told: false });
        Journal { volume, claim, dir, path: path.to_vec(), key, made, state }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at(&self) -> At {
        At { parent: self.dir, name: self.key.journal() }
    }

    fn shown(&self) -> Vec<u8> {
        let slash: &[u8] = if self.path.is_empty() || self.path.ends_with(b"/") { b"" } else { b"/" };
        [&self.path[..], slash, self.key.journal().as_bytes()].concat()
    }

    /// What an earlier run's journal is worth to this one; `None`: there is none. One of another directory,
    /// or of a run that came later than this one, is worth nothing.
    ///
    /// # Errors
    /// It cannot be read, or an older or newer haul wrote it.
    pub(super) fn load(&self, root: &RootId) -> Result<Option<Replayed>, Failure> {
        let refused = |why| self.volume.refused(FailureKind::Open, "read the journal", &self.shown(), &why);
        let Some(entry) = self.volume.at(&self.at()).map_err(refused)? else { return Ok(None) };
        let unusable = |why: &str| {
            self.volume.failed(FailureKind::Open, "read the journal of this job", &self.shown(), 0, why)
        };
        let Some(file) = entry.file() else { return Err(unusable("it is no file")) };
        let broke =
            |why: VolumeError| self.volume.broke(FailureKind::Read, "read the journal", &self.shown(), &why);
        let len = self.volume.len(file).map_err(broke)?;
        let (mut replay, mut at) = (Replay::new(), 0);
        let bad = |error: JournalError| unusable(&error.to_string());
        while at < len && !replay.is_over() {
            let step = (len - at).min(STEP as u64);
            let read = self.volume.wait(|| self.volume.client.read(file, at, step)).map_err(broke)?;
            replay.feed(&read.bytes).map_err(bad)?;
            at += step;
        }
        // All of it was synced, and what it speaks of too.
        let replayed = replay.finish(boot_id(), true).map_err(bad)?;
        let is_ours = replayed.head.as_ref().is_none_or(|(_, of)| of == root)
            && replayed.epoch_max < self.claim.epoch();
        Ok(Some(if is_ours { replayed } else { Replayed::default() }))
    }

    /// What it begins with. `now`: it is there, in the place of the one before, when this returns.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn begin_with(&self, bytes: Vec<u8>, now: bool) -> Result<(), Failure> {
        let mut state = self.lock();
        *state = match now {
            true => self.begin(&bytes)?,
            false => State::Held { bytes, told: false },
        };
        Ok(())
    }

    /// Appends whole records, which last when this returns, or are held. `parts`: they may speak of parts of
    /// files.
    ///
    /// # Errors
    /// The journal takes nothing more.
    pub(super) fn append(&self, records: &[u8], parts: bool) -> Result<(), Failure> {
        let mut state = self.lock();
        let result = match &mut *state {
            State::Held { bytes, told } => {
                bytes.extend_from_slice(records);
                *told |= !records.is_empty();
                match parts || bytes.len() > HELD_MAX {
                    true => self.begin(&std::mem::take(bytes)).map(Some),
                    false => Ok(None),
                }
            }
            State::Open { file, len } => self.put(*file, *len, records).map(|()| {
                *len += records.len() as u64;
                None
            }),
            State::Broken(failure) => return Err(failure.clone()),
            State::Removed => return Ok(()),
        };
        match result {
            Ok(Some(open)) => *state = open,
            Ok(None) => {}
            Err(failure) => {
                // Records behind a torn one would never be read.
                *state = State::Broken(failure.clone());
                return Err(failure);
            }
        }
        Ok(())
    }

    /// The run ends and the job is not done: what was held is written.
    pub(super) fn keep(&self) {
        let mut state = self.lock();
        if let State::Held { bytes, told: true } = &mut *state
            && !self.volume.is_gone()
        {
            let bytes = std::mem::take(bytes);
            // What is not there is not known.
            *state = self.begin(&bytes).unwrap_or_else(State::Broken);
        }
    }

    /// The job is done: nothing of it stays.
    pub(super) fn remove(&self) {
        let mut state = self.lock();
        *state = State::Removed;
        if self.claim.check().is_err() {
            return;
        }
        let drafts = self.claim.epochs().map(|epoch| self.key.journal_new(epoch));
        for name in drafts.chain([self.key.journal()]) {
            match self.volume.catalog.unlink(At { parent: self.dir, name }) {
                Ok(()) => {}
                Err(why) if is_missing(&why) => {}
                Err(_) => self.claim.keep(),
            }
        }
    }

    /// A new file, synced, takes the name of the one before.
    fn begin(&self, bytes: &[u8]) -> Result<State, Failure> {
        let refused = |why| self.volume.refused(FailureKind::Write, "begin the journal", &self.shown(), &why);
        let new = At { parent: self.dir, name: self.key.journal_new(self.claim.epoch()) };
        let make = || {
            let made =
                self.volume.catalog.create_placed(new.clone(), self.made, true, false, Placing::ROUND_ROBIN);
            made.map(|(entry, _)| entry)
        };
        self.claim.check()?;
        let made = match make() {
            // Of an attempt of ours that came to nothing.
            Err(why) if why.errno == Errno::EXIST.raw_os_error() => {
                self.volume.catalog.unlink(new.clone()).and_then(|()| make())
            }
            made => made,
        };
        let file = FileNo(made.map_err(refused)?.id.0);
        self.put(file, 0, bytes)?;
        self.claim.check()?;
        self.volume.catalog.rename(new, self.at(), false).map_err(refused)?;
        Ok(State::Open { file, len: bytes.len() as u64 })
    }

    /// Bytes, synced. What a server lost of them meanwhile is written again: of everything before it was told
    /// that it lasts.
    fn put(&self, file: FileNo, at: u64, bytes: &[u8]) -> Result<(), Failure> {
        let broke =
            |kind, why: VolumeError| self.volume.broke(kind, "write the journal", &self.shown(), &why);
        let mut lost = 0;
        loop {
            let mut offset = at;
            for part in bytes.chunks(STEP) {
                let write = || self.volume.client.write(file, offset, part.to_vec());
                self.volume.wait_for_room(write).map_err(|why| broke(FailureKind::Write, why))?;
                offset += part.len() as u64;
            }
            let synced = self.volume.wait_once(&self.volume.client.sync(file));
            self.volume.is_broken(&synced);
            match synced {
                Ok(()) => return Ok(()),
                Err(VolumeError::Lost(_)) if lost < LOST_MAX => lost += 1,
                Err(why) => return Err(broke(FailureKind::Sync, why)),
            }
        }
    }
}
