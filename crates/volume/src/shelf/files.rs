//! The files of a shelf, and which of them are open.
//!
//! In: a file's number, and offsets in what lies here of it. Out: bytes, errors of the system.
//! Invariants: the kernel tells an error of what it wrote back once, to whoever has the file open then. So a
//! file has one descriptor, its syncs come one after the other, none comes after one that failed, and a
//! descriptor through which something was written is closed only after a sync, whose error counts as any
//! other's. What a sync covers was written before it began. A file whose sync failed is not read either: the
//! kernel may have dropped what was written, and give what was there before. A file that was here and is
//! closed is known, and one that is known and not there any more is an error, and not an empty one.
//! Left out: which offsets of a file lie here.
//!
//! Locks, in this order: a file's descriptor, its syncs, the table of files or that of failures. Whoever
//! closes another file to have room has none of them. The tables of known files
//! and of what is lost have no other behind them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use haul_core::volume::FileNo;
use rustix::io::{Errno, Result, retry_on_intr};

use super::lost::{Done, Lost};
use crate::disk::{Dir, Extent, SyncCall, lock, read_at, write_at};

/// Descriptors that are kept open.
pub(super) const OPEN_MAX: usize = 512;
/// Directories that files are spread over.
const DIRS: usize = 256;
/// So many bytes written to a file are on their way to media, however far off its sync is: what comes in is
/// written while more comes, not behind the last of it. Less is left to the kernel, for files that are
/// removed soon.
const WRITE_BACK_LEN: u64 = 8 << 20;
/// After so many failed files nothing is believed here any more.
const FAILED_MAX: usize = 65_536;
/// So many files that were closed are known to be here; of more those alone that were written in this life.
const KNOWN_MAX: usize = 1 << 20;

struct Entry {
    file: FileNo,
    fd: RwLock<Option<OwnedFd>>,
    is_open: AtomicBool,
    /// When it was asked for last.
    used: AtomicU64,
    /// Written or cut since the last sync began. Set after that, before its lock is given up.
    is_dirty: AtomicBool,
    is_cut: AtomicBool,
    /// Written or cut in this life, since it was opened.
    was_changed: AtomicBool,
    /// Since the last sync began.
    since: Mutex<Done>,
    /// Bytes written since write-back was started last.
    waits: AtomicU64,
    /// Syncs that began.
    begun: AtomicU64,
    /// The last sync that was over well; whoever makes one has the lock.
    done: Mutex<u64>,
}

/// The names in one of the directories.
struct Names {
    /// Changes of names. An earlier life may have left some that do not last: hence the first.
    changes: AtomicU64,
    synced: Mutex<Result<Option<u64>>>,
}

/// Some of what lies here.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) files: Vec<(FileNo, u64)>,
    pub(crate) odd: Vec<PathBuf>,
    pub(crate) more: bool,
}

pub(super) struct Files {
    dir: Dir,
    names: Vec<Names>,
    entries: Mutex<BTreeMap<FileNo, Arc<Entry>>>,
    open: AtomicUsize,
    open_max: usize,
    clock: AtomicU64,
    failed: Mutex<BTreeMap<FileNo, Errno>>,
    /// Files that were here when they were closed, and that nobody was told to remove since.
    known: Mutex<BTreeSet<FileNo>>,
    /// What may be lost of files whose sync failed, also in earlier lives.
    lost: Lost,
    sync: SyncCall,
}

fn place_of(file: FileNo) -> usize {
    (file.0 % DIRS as u64) as usize
}

impl Files {
    /// Makes the directories that are not there; that they are there lasts.
    pub(super) fn open((dir, lost): (Dir, Lost), open_max: usize, sync: SyncCall) -> Result<Files> {
        for place in 0..DIRS {
            dir.make_sub(format!("{place:02x}"))?;
        }
        dir.sync()?;
        Ok(Files {
            dir,
            names: (0..DIRS)
                .map(|_| Names { changes: AtomicU64::new(0), synced: Mutex::new(Ok(None)) })
                .collect(),
            entries: Mutex::new(BTreeMap::new()),
            open: AtomicUsize::new(0),
            open_max,
            clock: AtomicU64::new(0),
            failed: Mutex::new(BTreeMap::new()),
            known: Mutex::new(BTreeSet::new()),
            lost,
            sync,
        })
    }

    pub(super) fn dir(&self) -> &Dir {
        &self.dir
    }

    fn dir_of(&self, file: FileNo) -> Result<Dir> {
        self.dir.sub(format!("{:02x}", place_of(file)))
    }

    fn check(&self, file: FileNo) -> Result<()> {
        let failed = lock(&self.failed);
        match failed.get(&file) {
            Some(errno) => Err(*errno),
            None if failed.len() >= FAILED_MAX => Err(Errno::IO),
            None => Ok(()),
        }
    }

    fn entry(&self, file: FileNo) -> Arc<Entry> {
        let mut entries = lock(&self.entries);
        let entry = entries.entry(file).or_insert_with(|| {
            Arc::new(Entry {
                file,
                fd: RwLock::new(None),
                is_open: AtomicBool::new(false),
                used: AtomicU64::new(0),
                is_dirty: AtomicBool::new(false),
                is_cut: AtomicBool::new(false),
                was_changed: AtomicBool::new(false),
                since: Mutex::default(),
                waits: AtomicU64::new(0),
                begun: AtomicU64::new(0),
                done: Mutex::new(0),
            })
        });
        entry.used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        entry.clone()
    }

    /// A file that is not open and that nobody else wants is not remembered.
    fn release(&self, entry: Arc<Entry>) {
        let mut entries = lock(&self.entries);
        // The table's and ours.
        if !entry.is_open.load(Ordering::Relaxed) && Arc::strong_count(&entry) == 2 {
            entries.remove(&entry.file);
        }
        drop(entry);
        drop(entries);
    }

    /// Does something with the open file, and others may do so at the same time. `None`: there is no such
    /// file, and it is not to be made.
    fn with<T>(
        &self,
        file: FileNo,
        makes: bool,
        does: impl FnOnce(&Entry, BorrowedFd<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        let entry = self.entry(file);
        loop {
            if let Some(fd) = &*entry.fd.read().unwrap_or_else(PoisonError::into_inner) {
                return does(&entry, fd.as_fd()).map(Some);
            }
            while self.open.load(Ordering::Relaxed) >= self.open_max && self.close_one() {}
            let mut fd = entry.fd.write().unwrap_or_else(PoisonError::into_inner);
            if fd.is_some() {
                continue;
            }
            match self.open_file(file, makes) {
                Ok(Some(opened)) => {
                    *fd = Some(opened);
                    entry.is_open.store(true, Ordering::Relaxed);
                    self.open.fetch_add(1, Ordering::Relaxed);
                }
                none_or_error => {
                    drop(fd);
                    // Others have opened so much.
                    if matches!(none_or_error, Err(Errno::MFILE | Errno::NFILE)) && self.close_one() {
                        continue;
                    }
                    self.release(entry);
                    return none_or_error.map(|_| None);
                }
            }
        }
    }

    fn open_file(&self, file: FileNo, makes: bool) -> Result<Option<OwnedFd>> {
        let dir = self.dir_of(file)?;
        let name = format!("{:016x}", file.0);
        match dir.file(&name) {
            Err(Errno::NOENT)
                if lock(&self.known).contains(&file)
                    && !haul_mutant::removed("volume-known-files-are-there") =>
            {
                // What was written to it is gone, and a new one in its place would hide that.
                lock(&self.failed).insert(file, Errno::STALE);
                Err(Errno::STALE)
            }
            Err(Errno::NOENT) if makes => {
                let fd = dir.make_file(&name)?;
                self.names[place_of(file)].changes.fetch_add(1, Ordering::SeqCst);
                Ok(Some(fd))
            }
            Err(Errno::NOENT) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Closes the file that was not asked for for longest, of those that can be closed at once if there are
    /// any. Whether there was one.
    fn close_one(&self) -> bool {
        let oldest = {
            let entries = lock(&self.entries);
            let open = entries.values().filter(|entry| entry.is_open.load(Ordering::Relaxed));
            let age = |entry: &&Arc<Entry>| {
                (entry.is_dirty.load(Ordering::Relaxed), entry.used.load(Ordering::Relaxed))
            };
            open.min_by_key(age).cloned()
        };
        let Some(entry) = oldest else { return false };
        {
            let mut fd = entry.fd.write().unwrap_or_else(PoisonError::into_inner);
            if let Some(open) = &*fd {
                if entry.is_dirty.load(Ordering::SeqCst) {
                    // An error is kept, and told to whoever syncs or writes next.
                    let _ = self.sync_open(&entry, open.as_fd());
                }
                let mut known = lock(&self.known);
                if known.len() < KNOWN_MAX || entry.was_changed.load(Ordering::Relaxed) {
                    known.insert(entry.file);
                }
                *fd = None;
                entry.is_open.store(false, Ordering::Relaxed);
                self.open.fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.release(entry);
        true
    }

    /// Makes last what was written and cut before. Whoever waits for another's sync that began after it was
    /// called needs none of its own.
    fn sync_open(&self, entry: &Entry, fd: BorrowedFd<'_>) -> Result<()> {
        let begun = entry.begun.load(Ordering::SeqCst);
        let mut done = lock(&entry.done);
        self.check(entry.file)?;
        if *done > begun {
            return Ok(());
        }
        let this = entry.begun.fetch_add(1, Ordering::SeqCst) + 1;
        entry.is_dirty.store(false, Ordering::SeqCst);
        let extent = if entry.is_cut.swap(false, Ordering::SeqCst) { Extent::All } else { Extent::Bytes };
        let since = std::mem::take(&mut *lock(&entry.since));
        if let Err(errno) = (self.sync)(fd, extent) {
            lock(&self.failed).insert(entry.file, errno);
            self.lost.add(entry.file, &since);
            return Err(errno);
        }
        self.lost.is_synced(entry.file, &since);
        *done = this;
        Ok(())
    }

    fn sync_names(&self, file: FileNo) -> Result<()> {
        let names = &self.names[place_of(file)];
        let mut synced = lock(&names.synced);
        let changes = names.changes.load(Ordering::SeqCst);
        if (*synced)? != Some(changes) {
            // Of what failed before it, nothing was lost, and it may be tried again.
            let dir = self.dir_of(file)?;
            *synced = (self.sync)(dir.as_fd(), Extent::All).map(|()| Some(changes));
        }
        (*synced).map(drop)
    }

    pub(super) fn write(&self, file: FileNo, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check(file)?;
        self.with(file, true, |entry, fd| {
            self.check(file)?;
            let written = write_at(fd, &mut [IoSlice::new(bytes)], offset);
            entry.is_dirty.store(true, Ordering::SeqCst);
            entry.was_changed.store(true, Ordering::Relaxed);
            entry.waits.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            let mut done = Done::default();
            done.written.add(offset..offset.saturating_add(bytes.len() as u64));
            lock(&entry.since).written.add(offset..offset.saturating_add(bytes.len() as u64));
            self.is_done(file, &done, written.is_ok());
            written
        })
        .map(drop)
    }

    /// Something was done to a file, well or not: what of it is known to be lost, or may be.
    fn is_done(&self, file: FileNo, done: &Done, well: bool) {
        if well {
            self.lost.is_done(file, done);
        }
        // A sync that failed meanwhile may not have known of it.
        if self.check(file).is_err() {
            self.lost.add(file, done);
        }
    }

    /// Whether so much was written of a file since it was asked last that write-back is to start.
    pub(super) fn is_much_unwritten(&self, file: FileNo) -> bool {
        let entries = lock(&self.entries);
        let Some(entry) = entries.get(&file) else { return false };
        entry.waits.load(Ordering::Relaxed) >= WRITE_BACK_LEN
            && entry.waits.swap(0, Ordering::Relaxed) >= WRITE_BACK_LEN
    }

    /// Has what was written of a file on its way to media. This may wait for the device's queue, and holds
    /// nothing meanwhile that others want, and takes no error from a sync. One that it meets itself may be
    /// told to nobody else: where no place can be found for the bytes the kernel gives them up.
    pub(super) fn start_write_back(&self, file: FileNo) {
        let Some(entry) = lock(&self.entries).get(&file).cloned() else { return };
        // Of the same open file: what the kernel tells it tells both.
        let again = {
            let fd = entry.fd.read().unwrap_or_else(PoisonError::into_inner);
            fd.as_ref().map(OwnedFd::try_clone)
        };
        self.release(entry.clone());
        // A sync that runs beside it would not hear of an error.
        let _syncs = lock(&entry.done);
        if let Some(Ok(fd)) = again
            && let Err(errno) = (self.sync)(fd.as_fd(), Extent::Start)
            && !haul_mutant::removed("volume-write-back-may-fail")
        {
            let since = std::mem::take(&mut *lock(&entry.since));
            lock(&self.failed).insert(file, errno);
            self.lost.add(file, &since);
        }
    }

    /// Fills `bytes` as far as the file has any, and says how far: before that what was never written is
    /// zeros.
    pub(super) fn read(&self, file: FileNo, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        let filled = self.with(file, false, |_, fd| read_at(fd, bytes, offset))?;
        if self.lost.touches(file, &(offset..offset.saturating_add(bytes.len() as u64))) {
            return Err(Errno::IO);
        }
        // Behind it, for a sync may have failed meanwhile.
        if !haul_mutant::removed("volume-failed-files-are-not-read") {
            self.check(file)?;
        }
        Ok(filled.unwrap_or(0))
    }

    /// What was written and cut before lasts, and that there is such a file, or none.
    pub(super) fn sync(&self, file: FileNo) -> Result<()> {
        self.check(file)?;
        self.with(file, false, |entry, fd| self.sync_open(entry, fd))?;
        self.sync_names(file)
    }

    pub(super) fn cut(&self, file: FileNo, from: u64) -> Result<()> {
        self.check(file)?;
        self.with(file, false, |entry, fd| {
            self.check(file)?;
            let is_shorter = rustix::fs::fstat(fd)?.st_size as u64 <= from;
            // One that was cut before, and whose sync failed, is to be known to be so.
            if is_shorter && !self.lost.touches(file, &(from..u64::MAX)) {
                return Ok(());
            }
            let cut = match is_shorter {
                true => Ok(()),
                false => retry_on_intr(|| rustix::fs::ftruncate(fd, from)),
            };
            entry.is_cut.store(true, Ordering::SeqCst);
            entry.is_dirty.store(true, Ordering::SeqCst);
            entry.was_changed.store(true, Ordering::Relaxed);
            let mut since = lock(&entry.since);
            since.cut = Some(since.cut.map_or(from, |before| before.min(from)));
            drop(since);
            self.is_done(file, &Done { cut: Some(from), ..Done::default() }, cut.is_ok());
            cut
        })
        .map(drop)
    }

    pub(super) fn remove(&self, file: FileNo) -> Result<()> {
        let entry = self.entry(file);
        let removed = {
            // Who opens it meanwhile would write to what has no name any more.
            let mut fd = entry.fd.write().unwrap_or_else(PoisonError::into_inner);
            let removed = self.dir_of(file).and_then(|dir| dir.remove(format!("{:016x}", file.0)));
            if matches!(removed, Ok(()) | Err(Errno::NOENT)) {
                lock(&self.known).remove(&file);
                self.lost.forget(file);
            }
            if removed.is_ok() {
                self.names[place_of(file)].changes.fetch_add(1, Ordering::SeqCst);
                if fd.take().is_some() {
                    entry.is_open.store(false, Ordering::Relaxed);
                    entry.is_dirty.store(false, Ordering::SeqCst);
                    self.open.fetch_sub(1, Ordering::Relaxed);
                }
            }
            removed
        };
        self.release(entry);
        match removed {
            Err(Errno::NOENT) => Ok(()),
            other => other,
        }
    }

    /// How long what lies here of a file is; `None`: nothing of it does.
    pub(super) fn len(&self, file: FileNo) -> Result<Option<u64>> {
        self.dir_of(file)?.len_of(format!("{:016x}", file.0))
    }

    /// Files and their lengths behind this one in the order of the directories, at most `max`; paths of
    /// names that are none of ours; whether there are more.
    pub(super) fn page(&self, after: Option<FileNo>, max: usize) -> Result<Page> {
        let mut page = Page::default();
        for place in after.map_or(0, place_of)..DIRS {
            let dir = self.dir.sub(format!("{place:02x}"))?;
            for name in dir.names()? {
                let number = name.to_str().and_then(|name| u64::from_str_radix(name, 16).ok()).map(FileNo);
                let ours =
                    number.filter(|file| name == *format!("{:016x}", file.0) && place_of(*file) == place);
                let Some(file) = ours else {
                    // They are told with the directory's first page.
                    if after.is_none_or(|after| place_of(after) != place) {
                        page.odd.push(dir.path_of(&name));
                    }
                    continue;
                };
                if after.is_some_and(|after| place_of(after) == place && after >= file) {
                    continue;
                }
                if page.files.len() == max {
                    page.more = true;
                    return Ok(page);
                }
                match dir.len_of(&name) {
                    Ok(Some(len)) => page.files.push((file, len)),
                    // It went meanwhile.
                    Ok(None) => {}
                    Err(Errno::NOTSUP) => page.odd.push(dir.path_of(&name)),
                    Err(errno) => return Err(errno),
                }
            }
        }
        Ok(page)
    }

    /// All that lies here, in no order; names that are none of ours are left out.
    pub(super) fn numbers(&self) -> Result<Vec<FileNo>> {
        let mut all = Vec::new();
        for place in 0..DIRS {
            let names = self.dir.sub(format!("{place:02x}"))?.names()?;
            let number = |name: &std::ffi::OsString| u64::from_str_radix(name.to_str()?, 16).ok().map(FileNo);
            all.extend(names.iter().filter_map(number).filter(|file| place_of(*file) == place));
        }
        Ok(all)
    }

    #[cfg(test)]
    pub(super) fn open_now(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}
