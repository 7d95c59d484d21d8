//! The page cache as it was found: which pages of a file others had there, and letting go of our own.
//!
//! In: descriptors and ranges. Out: reads whose pages do not stay; which runs of pages were absent before.
//! Invariants: a page that was cached before we came is not dropped, where the kernel lets us know; what is
//! asked for one range is bounded by [`QUESTIONS_MAX`].
//!
//! The kernel does it by itself where the file system knows `RWF_DONTCACHE` (Linux 6.14 and later). Elsewhere
//! we ask before the read and drop after it: `cachestat` (Linux 6.5) halves a range until each part is all
//! there or all absent; before that, `mincore` of a mapping that is never touched.
//!
//! Left out: pages that others bring in while we read the same range are taken for ours.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{Advice, FileType, OFlags, fadvise, fcntl_getfl, fcntl_setfl, fstat};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use haul_base::sys;

/// Most questions that are asked about one range. A 4 MiB object needs 2,047 if every other page is cached;
/// what is still unclear after so many is taken to be somebody else's.
pub(super) const QUESTIONS_MAX: u32 = 8192;
/// File systems that are remembered; one session seldom sees more than a few.
const FILE_SYSTEMS_MAX: usize = 1024;
/// `RWF_DONTCACHE`: the pages that this read brings in go when it is done, those that were there stay.
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// Runs of pages, bytes from the beginning of the file, each on page edges.
pub(super) type Runs = Vec<Range<u64>>;

/// How the kernel tells what is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asking {
    Cachestat,
    Mincore,
    Nothing,
}

/// What is cached of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cached {
    None,
    /// At least one page is there and one is not.
    Some,
    All,
    Unknown,
}

/// How a read came to its end.
#[derive(Debug)]
pub(super) enum ReadEnd {
    Full,
    /// The file ended after so many bytes.
    Short(usize),
    /// It failed after so many bytes.
    Failed(usize, Errno),
}

/// Asks about the page cache, and reads without changing it. One for each session.
pub(super) struct Pages {
    /// The best way that is not known to fail, as its number.
    asking: AtomicU8,
    page: u64,
    /// Whether a file system takes `RWF_DONTCACHE`, by device number.
    dontcache: Mutex<BTreeMap<u64, bool>>,
}

impl Asking {
    const ALL: [Asking; 3] = [Asking::Cachestat, Asking::Mincore, Asking::Nothing];
}

impl Pages {
    pub(super) fn new() -> Pages {
        Pages::with(Asking::Cachestat)
    }

    /// Begins with this way of asking.
    pub(super) fn with(asking: Asking) -> Pages {
        let page = rustix::param::page_size() as u64;
        Pages { asking: AtomicU8::new(asking as u8), page, dontcache: Mutex::default() }
    }

    /// The way that works, as far as it was tried.
    pub(super) fn asking(&self) -> Asking {
        Asking::ALL[usize::from(self.asking.load(Ordering::Relaxed))]
    }

    /// How much of a range is cached. One system call with `cachestat`.
    pub(super) fn cached(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> Cached {
        let range = self.on_pages(offset, len);
        if range.is_empty() {
            return Cached::None;
        }
        if self.asking() == Asking::Cachestat
            && let Some(cached) = self.count(fd, &range)
        {
            return cached;
        }
        let Some(absent) = self.absent_by_mincore(fd, range.clone()) else { return Cached::Unknown };
        match absent.first() {
            None => Cached::All,
            Some(run) if *run == range => Cached::None,
            Some(_) => Cached::Some,
        }
    }

    /// The pages of a range that are not cached. Where that cannot be known, all of them: our own pages would
    /// push out more than what others have in this one file.
    pub(super) fn absent(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> Runs {
        let range = self.on_pages(offset, len);
        if range.is_empty() {
            return Runs::new();
        }
        if self.asking() == Asking::Cachestat
            && let Some(runs) = self.absent_by_count(fd, range.clone())
        {
            return runs;
        }
        self.absent_by_mincore(fd, range.clone()).unwrap_or_else(|| vec![range])
    }

    /// Whether the file system of an open file takes `RWF_DONTCACHE`. Asked once for each file system, by a
    /// read at `size`, the end of the file, which reads nothing.
    pub(super) fn takes_dontcache(&self, fd: BorrowedFd<'_>, dev: u64, size: u64) -> bool {
        if let Some(known) = self.known_dontcache(dev) {
            return known;
        }
        match preadv2_one(fd, &mut [0], size, DONTCACHE) {
            Ok(_) => self.set_dontcache(dev, true),
            Err(errno) if is_refusal(errno) => self.set_dontcache(dev, false),
            // Says nothing about the flag: the read itself will tell.
            Err(_) => return true,
        }
        self.known_dontcache(dev).unwrap_or(false)
    }

    pub(super) fn known_dontcache(&self, dev: u64) -> Option<bool> {
        self.lock().get(&dev).copied()
    }

    pub(super) fn set_dontcache(&self, dev: u64, takes: bool) {
        let mut known = self.lock();
        if known.len() < FILE_SYSTEMS_MAX {
            known.insert(dev, takes);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, bool>> {
        self.dontcache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads until `room` is full or the file ends, and leaves the page cache as it was. `dev`: of the file.
    pub(super) fn read_at(&self, fd: BorrowedFd<'_>, dev: u64, room: &mut [u8], offset: u64) -> ReadEnd {
        self.read(fd, dev, Reading { room, spare: None, strictly: false }, offset).0
    }

    fn read(&self, fd: BorrowedFd<'_>, dev: u64, reading: Reading<'_>, offset: u64) -> (ReadEnd, bool) {
        let Reading { room, mut spare, strictly } = reading;
        let mut beyond = false;
        let mut flags = DONTCACHE;
        let mut absent = Runs::new();
        if self.known_dontcache(dev) == Some(false) {
            flags = ReadWriteFlags::empty();
            absent = self.absent(fd, offset, room.len() as u64);
        }
        let mut done = 0;
        let mut blocking = false;
        let end = loop {
            let asked = room.len() - done + spare.as_ref().map_or(0, |spare| spare.len());
            if asked == 0 {
                break ReadEnd::Full;
            }
            let read = match &mut spare {
                None => preadv2_one(fd, &mut room[done..], offset + done as u64, flags),
                Some(spare) => preadv2_two(fd, (&mut room[done..], spare), offset + done as u64, flags),
            };
            match read {
                Ok(0) if done == room.len() => break ReadEnd::Full,
                Ok(0) => break ReadEnd::Short(done),
                Ok(n) if done + n > room.len() => {
                    beyond = true;
                    break ReadEnd::Full;
                }
                Ok(n) => {
                    done += n;
                    if done == room.len() && n < asked && !strictly {
                        break ReadEnd::Full;
                    }
                }
                Err(Errno::INTR) => {}
                Err(errno) if !flags.is_empty() && is_refusal(errno) => {
                    self.set_dontcache(dev, false);
                    flags = ReadWriteFlags::empty();
                    absent = self.absent(fd, offset, room.len() as u64);
                }
                // A file system that heeds O_NONBLOCK (data on tape): from here on we wait, if it is a file.
                Err(Errno::AGAIN) if !blocking && is_file(fd) => {
                    blocking = true;
                    let cleared =
                        fcntl_getfl(fd).and_then(|flags| fcntl_setfl(fd, flags.difference(OFlags::NONBLOCK)));
                    if let Err(errno) = cleared {
                        break ReadEnd::Failed(done, errno);
                    }
                }
                Err(errno) => break ReadEnd::Failed(done, errno),
            }
        };
        drop_pages(fd, &absent);
        (end, beyond)
    }

    /// Reads a file from its begin until `room` is full or it ends, as [`Pages::read_at`] does, and says
    /// whether it gives bytes beyond that: each read asks for one more, so that no read has to be added.
    /// `strictly`: it is at its end only where a read gives nothing; else also where one gives less than was
    /// asked, as a regular file does.
    pub(super) fn read_whole(
        &self,
        fd: BorrowedFd<'_>,
        dev: u64,
        room: &mut [u8],
        strictly: bool,
    ) -> (ReadEnd, bool) {
        let mut spare = [0];
        let whole = Reading { room, spare: Some(&mut spare), strictly };
        self.read(fd, dev, whole, 0)
    }

    /// The pages of a range, all of which were absent.
    pub(super) fn around(&self, offset: u64, len: u64) -> Runs {
        vec![self.on_pages(offset, len)]
    }

    /// Widened to whole pages.
    fn on_pages(&self, offset: u64, len: u64) -> Range<u64> {
        if len == 0 {
            return 0..0;
        }
        let end = offset.saturating_add(len);
        offset / self.page * self.page..end.checked_next_multiple_of(self.page).unwrap_or(end)
    }

    fn count(&self, fd: BorrowedFd<'_>, range: &Range<u64>) -> Option<Cached> {
        let len = range.end - range.start;
        match sys::cached_pages(fd, range.start, len) {
            Ok(0) => Some(Cached::None),
            Ok(pages) if pages >= len / self.page => Some(Cached::All),
            Ok(_) => Some(Cached::Some),
            Err(Errno::NOSYS) => {
                self.asking.store(Asking::Mincore as u8, Ordering::Relaxed);
                None
            }
            // This file does not tell; others may.
            Err(_) => None,
        }
    }

    fn absent_by_count(&self, fd: BorrowedFd<'_>, range: Range<u64>) -> Option<Runs> {
        let mut absent = Runs::new();
        let mut waiting = vec![range];
        let mut questions = 0;
        while let Some(range) = waiting.pop() {
            if questions == QUESTIONS_MAX {
                break;
            }
            questions += 1;
            match self.count(fd, &range)? {
                Cached::None => push(&mut absent, range),
                Cached::Some => {
                    // At least two pages, for one alone is there or not.
                    let half = (range.end - range.start) / self.page / 2 * self.page;
                    let middle = range.start + half.max(self.page).min(range.end - range.start);
                    // The lower half is asked first, so that runs come in order and grow together.
                    if middle < range.end {
                        waiting.push(middle..range.end);
                    }
                    waiting.push(range.start..middle);
                }
                Cached::All | Cached::Unknown => {}
            }
        }
        Some(absent)
    }

    /// `None`: not to be known, or not to be believed.
    fn absent_by_mincore(&self, fd: BorrowedFd<'_>, range: Range<u64>) -> Option<Runs> {
        if self.asking() == Asking::Nothing || !may_ask(fd) {
            return None;
        }
        let mut absent = Runs::new();
        let mut resident = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let pages = ((range.end - at) / self.page).clamp(1, sys::RESIDENT_PAGES_MAX as u64);
            resident.clear();
            resident.resize(pages as usize, false);
            sys::resident(fd, at, &mut resident).ok()?;
            for is_cached in &resident {
                if !is_cached {
                    push(&mut absent, at..at + self.page);
                }
                at += self.page;
            }
        }
        Some(absent)
    }
}

/// Whether `mincore` tells this process the truth: it tells everybody else that all pages are cached.
fn may_ask(fd: BorrowedFd<'_>) -> bool {
    let own = rustix::process::geteuid();
    own.is_root() || fstat(fd).is_ok_and(|stat| stat.st_uid == own.as_raw())
}

fn is_file(fd: BorrowedFd<'_>) -> bool {
    fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}

/// Adds a run behind the others, joined to the last one if they touch.
fn push(runs: &mut Runs, range: Range<u64>) {
    match runs.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => runs.push(range),
    }
}

/// Lets go of pages. A kernel that does not is no failure of the read: they age like any other.
pub(super) fn drop_pages(fd: BorrowedFd<'_>, runs: &[Range<u64>]) {
    for run in runs {
        if let Some(len) = NonZeroU64::new(run.end - run.start) {
            let _ = fadvise(fd, run.start, Some(len), Advice::DontNeed);
        }
    }
}

/// No read-ahead on this descriptor: pages beyond an object would come in by nobody's order, and stay.
pub(super) fn no_readahead(fd: BorrowedFd<'_>) {
    // Refused only for what has no page cache.
    let _ = fadvise(fd, 0, None, Advice::Random);
}

/// Where a read goes.
struct Reading<'a> {
    room: &'a mut [u8],
    /// Behind it: what comes here lies beyond what was expected.
    spare: Option<&'a mut [u8; 1]>,
    strictly: bool,
}

fn preadv2_two(
    fd: BorrowedFd<'_>,
    (room, spare): (&mut [u8], &mut [u8; 1]),
    offset: u64,
    flags: ReadWriteFlags,
) -> Result<usize, Errno> {
    let mut parts = [std::io::IoSliceMut::new(room), std::io::IoSliceMut::new(spare)];
    preadv2(fd, &mut parts, offset, flags)
}

fn preadv2_one(
    fd: BorrowedFd<'_>,
    room: &mut [u8],
    offset: u64,
    flags: ReadWriteFlags,
) -> Result<usize, Errno> {
    preadv2(fd, &mut [std::io::IoSliceMut::new(room)], offset, flags)
}

/// What a file system says that does not know `RWF_DONTCACHE`, or a kernel that does not.
fn is_refusal(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS)
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
