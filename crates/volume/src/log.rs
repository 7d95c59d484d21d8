//! The log of a gatherer on disk.
//!
//! In: records of the gatherer's machine, in their order. Out: the same after a restart, and bytes of them.
//! Invariants: what was synced is there when the log is opened again, or the opening fails and says where it
//! is not; what was not is there up to some record, and nothing behind that; bytes that are not those of the
//! record are never given out; a log whose sync failed takes nothing more; what has bytes leaves room for
//! records without any, so that a full disk refuses the former alone.
//! Left out: which records are of use, which `haul_core::volume::gather` knows.
//!
//! Every header says what was synced when it was written. What was synced last nothing later may ever say: so
//! each sync leaves a mark behind the last record, which the next record overwrites.
//!
//! ```text
//! log/head                    the log's id, and its first record
//!    /lock                    held by whoever has the log
//!    /0000000000000000.log    a segment, by its first record
//! ```

mod check;
mod frame;
mod room;
mod scan;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use haul_core::volume::gather::{Part, Record, Seq};
use rustix::io::{Errno, retry_on_intr};

pub use self::check::WeakReader;
use self::frame::{CHECK_LEN, HEAD_LEN, HEADER_LEN, Head, Header, Key};
use self::room::blocks_to;
use crate::disk::{Dir, Extent, Lock, SyncCall, lock, read_at, sync_call, write_at};
use crate::reserve::is_full;

const HEAD: &str = "head";
const LOCK: &str = "lock";
/// A place in a segment is told in 32 bits, and one record more than that fits.
const SEGMENT_LEN_MAX: u64 = 1 << 30;

/// What a log goes by.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// A segment is full when the next record would make it longer, bytes; not above 1 GiB.
    pub segment_len: u64,
    /// All segments together, bytes. A record with bytes that would make them longer is refused as on a full
    /// disk.
    pub limit: u64,
    /// Bytes that are taken in advance for records without bytes, where the file system does that.
    pub room: u64,
}

/// What a server takes in advance, bytes.
pub(crate) const ROOM: u64 = 512 << 10;
impl Default for Settings {
    fn default() -> Settings {
        Settings { segment_len: 64 << 20, limit: 4 << 30, room: ROOM }
    }
}

/// Bytes of a record that lie in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub len: u64,
}

/// Why a log is not opened.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("cannot {op} {}", path.display())]
    Io { op: &'static str, path: PathBuf, source: io::Error },
    #[error("another server has {}; end it first", path.display())]
    InUse { path: PathBuf },
    #[error(
        "{} is damaged or missing, so the log has no beginning; bring it back from a copy, or give up what \
         was gathered here and not brought to its place",
        path.display()
    )]
    Head { path: PathBuf },
    #[error(
        "{} is missing, where the log begins; bring it back from a copy, or give up what was gathered here \
         and not brought to its place",
        path.display()
    )]
    Missing { path: PathBuf },
    #[error(
        "the log is damaged: record {seq} should be in {} at byte {offset}, and all before record {synced} \
         was on media; bring the file back from a copy, or give up what was gathered here from that record \
         on",
        path.display()
    )]
    Lost { path: PathBuf, offset: u64, seq: u64, synced: u64 },
}

fn failed(op: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(Errno) -> LogError {
    let path = path.into();
    move |errno| LogError::Io { op, path, source: errno.into() }
}

fn segment_name(first: u64) -> String {
    format!("{first:016x}.log")
}

struct Segment {
    /// The first record that it ever had.
    first: u64,
    /// The record that `offsets` begins with.
    base: u64,
    fd: OwnedFd,
    offsets: RwLock<Vec<u32>>,
    /// Where its last record ends.
    end: AtomicU64,
}

impl Segment {
    fn new(first: u64, base: u64, fd: OwnedFd, offsets: Vec<u32>, end: u64) -> Segment {
        Segment { first, base, fd, offsets: RwLock::new(offsets), end: AtomicU64::new(end) }
    }

    /// The record after its last.
    fn next(&self) -> u64 {
        self.base + self.offsets.read().unwrap_or_else(PoisonError::into_inner).len() as u64
    }

    fn offset_of(&self, seq: u64) -> Option<u64> {
        let offsets = self.offsets.read().unwrap_or_else(PoisonError::into_inner);
        offsets.get(usize::try_from(seq.checked_sub(self.base)?).ok()?).map(|offset| u64::from(*offset))
    }
}

/// The end of the log.
struct Tail {
    head: Head,
    /// The record that comes next.
    next: u64,
    /// All before that one is on media.
    synced: u64,
    current: Arc<Segment>,
    /// Where the next record goes in it.
    end: u64,
    /// Bytes of all segments.
    bytes: u64,
    /// The current segment has blocks up to there.
    room_to: u64,
    /// The file system gives no blocks in advance.
    no_room: bool,
    /// Segments that have records which were not synced; the current one always counts as such.
    unsynced: Vec<Arc<Segment>>,
    has_new_names: bool,
    failed: Option<Errno>,
}

struct Shared {
    dir: Dir,
    key: Key,
    segments: RwLock<VecDeque<Arc<Segment>>>,
    tail: Mutex<Tail>,
    /// Whoever syncs has it, and takes `tail` under it.
    syncing: Mutex<()>,
    sync: SyncCall,
    _lock: Lock,
}

/// The log; who has it appends and forgets.
pub struct Log {
    shared: Arc<Shared>,
    settings: Settings,
}

/// Syncs the log, from any thread.
#[derive(Clone)]
pub struct Syncer(Arc<Shared>);

/// Reads bytes of records, from any thread.
#[derive(Clone)]
pub struct Reader(Arc<Shared>);

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("dir", &self.shared.dir).finish_non_exhaustive()
    }
}

impl Log {
    /// Opens the log in `dir`, which is made if it is missing, and says its first record and those that it
    /// has from there on; there may be none. What it says is on media.
    pub fn open(dir: &Path, settings: Settings) -> Result<(Log, Seq, Vec<(Seq, Record<Held>)>), LogError> {
        Log::open_with(dir, settings, Box::new(sync_call))
    }

    fn open_with(
        path: &Path,
        settings: Settings,
        sync: SyncCall,
    ) -> Result<(Log, Seq, Vec<(Seq, Record<Held>)>), LogError> {
        let settings = Settings { segment_len: settings.segment_len.min(SEGMENT_LEN_MAX), ..settings };
        let dir = open_dir(path)?;
        let held = dir.lock(LOCK).map_err(|errno| match errno {
            Errno::WOULDBLOCK | Errno::STALE => LogError::InUse { path: dir.path().to_owned() },
            errno => failed("lock", dir.path_of(LOCK))(errno),
        })?;
        let head = head_of(&dir)?;
        let key = Key::new(&head.id);
        let mut found = scan::segments_in(&dir)?;
        // Forgetting them was begun.
        let forgotten: Vec<u64> = found.extract_if(.., |first| *first < head.segment).collect();
        if found.first() != Some(&head.segment) {
            return Err(LogError::Missing { path: dir.path_of(segment_name(head.segment)) });
        }
        let mut scan = scan::scan(&dir, &head, &found, &key, &sync)?;
        let cuts = || {
            // The last first: of those that are left each has all before it.
            for name in scan.removes.iter().rev() {
                dir.remove(name)?;
            }
            for first in &forgotten {
                dir.remove(segment_name(*first))?;
            }
            sync(dir.as_fd(), Extent::All)?;
            if let (Some(torn), Some(last)) = (scan.torn, scan.segments.last()) {
                retry_on_intr(|| rustix::fs::ftruncate(&last.fd, torn))?;
                sync(last.fd.as_fd(), Extent::All)?;
            }
            Ok(())
        };
        cuts().map_err(failed("cut what is torn in", dir.path()))?;
        let records = std::mem::take(&mut scan.records);
        let segments: VecDeque<Arc<Segment>> = scan.segments.into_iter().map(Arc::new).collect();
        let current = segments.back().expect("the head's segment is there").clone();
        let tail = Tail {
            head,
            next: scan.next,
            synced: scan.next,
            end: scan.end,
            bytes: scan.bytes,
            room_to: blocks_to(&current).max(scan.end),
            no_room: settings.room == 0,
            unsynced: vec![current.clone()],
            current,
            has_new_names: false,
            failed: None,
        };
        let shared = Shared {
            dir,
            key,
            segments: RwLock::new(segments),
            tail: Mutex::new(tail),
            syncing: Mutex::new(()),
            sync,
            _lock: held,
        };
        let log = Log { shared: Arc::new(shared), settings };
        // Whoever opens it next is to know that these were here.
        log.shared.mark(&lock(&log.shared.tail));
        Ok((log, Seq(head.first), records))
    }

    /// Takes the room in advance that records without bytes may need.
    ///
    /// # Errors
    /// There is none, or the log has all bytes that it may have.
    pub fn take_room(&mut self) -> io::Result<()> {
        let mut tail = lock(&self.shared.tail);
        if tail.bytes >= self.settings.limit {
            return Err(Errno::NOSPC.into());
        }
        let end = tail.end;
        self.shared.take_room(&mut tail, end, self.settings.room)?;
        Ok(())
    }

    /// What no other log has, and this one for good.
    pub fn id(&self) -> [u8; 16] {
        lock(&self.shared.tail).head.id
    }

    /// Appends a record, whose number is the next. It lasts after the next sync. One without bytes takes the
    /// room that was taken in advance where the disk is full.
    ///
    /// # Errors
    /// The log is as it was, and this record can be appended again, or another one in its place.
    pub fn append(&mut self, seq: Seq, record: &Record<&[u8]>) -> io::Result<()> {
        let mut tail = lock(&self.shared.tail);
        tail.check()?;
        let header = Header::of(seq.0, tail.synced, record).filter(|header| header.seq == tail.next);
        let header = header.ok_or(Errno::INVAL)?;
        let frame_len = header.frame_len();
        let has_bytes = matches!(record, Record::Bytes { .. });
        if has_bytes && tail.bytes + frame_len > self.settings.limit {
            return Err(Errno::NOSPC.into());
        }
        if tail.end > 0 && tail.end + frame_len > self.settings.segment_len {
            let stays = tail.end + frame_len <= SEGMENT_LEN_MAX && !has_bytes;
            match self.shared.begin_segment(&mut tail, self.settings.room) {
                // There may be room in this one.
                Err(errno) if is_full(errno) && stays => {}
                begun => begun?,
            }
        }
        if has_bytes && !haul_mutant::removed("volume-logs-keep-room") {
            let to = tail.end + frame_len;
            self.shared.take_room(&mut tail, to, self.settings.room)?;
        }
        let payload = if let Record::Bytes { bytes, .. } = record { bytes } else { &[][..] };
        let bytes = header.encode(&self.shared.key);
        let check = self.shared.key.seal(&bytes, payload);
        let mut slices = [IoSlice::new(&bytes), IoSlice::new(payload), IoSlice::new(&check)];
        if let Err(errno) = write_at(&tail.current.fd, &mut slices, tail.end) {
            // If that fails as well, the next one is written over it.
            let _ = retry_on_intr(|| rustix::fs::ftruncate(&tail.current.fd, tail.end));
            tail.room_to = tail.end;
            self.shared.mark(&tail);
            return Err(errno.into());
        }
        let mut offsets = tail.current.offsets.write().unwrap_or_else(PoisonError::into_inner);
        offsets.push(u32::try_from(tail.end).expect("a segment is not that long"));
        drop(offsets);
        tail.end += frame_len;
        tail.current.end.store(tail.end, Ordering::Relaxed);
        tail.bytes += frame_len;
        tail.next += 1;
        Ok(())
    }

    /// Makes last what was appended before.
    ///
    /// # Errors
    /// The log takes nothing more.
    pub fn sync(&mut self) -> io::Result<()> {
        self.shared.sync()
    }

    /// Syncs it while others append.
    pub fn syncer(&self) -> Syncer {
        Syncer(self.shared.clone())
    }

    /// Reads while others append.
    pub fn reader(&self) -> Reader {
        Reader(self.shared.clone())
    }

    /// The bytes that a part names.
    pub fn bytes(&self, part: &Part) -> io::Result<Vec<u8>> {
        self.shared.bytes(part)
    }

    /// How many bytes its segments have, of at most [`Settings::limit`].
    pub fn len(&self) -> u64 {
        lock(&self.shared.tail).bytes
    }

    /// Whether there is no record in it.
    pub fn is_empty(&self) -> bool {
        let tail = lock(&self.shared.tail);
        tail.head.first == tail.next
    }

    /// Records before `first` are not there when the log is opened again, and segments that have no others
    /// are removed.
    ///
    /// # Errors
    /// It may be that they are forgotten and still have their room, until the log is opened again.
    pub fn forget(&mut self, first: Seq) -> io::Result<()> {
        let shared = &self.shared;
        let is_synced = {
            let tail = lock(&shared.tail);
            tail.check()?;
            if first.0 > tail.next {
                return Err(Errno::INVAL.into());
            }
            if first.0 <= tail.head.first {
                return Ok(());
            }
            first.0 <= tail.synced
        };
        if !is_synced {
            shared.sync()?;
        }
        let mut tail = lock(&shared.tail);
        tail.check()?;
        if first.0 == tail.next && tail.end > 0 {
            match shared.begin_segment(&mut tail, self.settings.room) {
                // The current one goes on where it ends.
                Err(errno) if is_full(errno) => {}
                begun => begun.and_then(|()| (shared.sync)(shared.dir.as_fd(), Extent::All))?,
            }
        }
        // Only who has the log changes them.
        let segments: Vec<Arc<Segment>> = shared.segments().iter().cloned().collect();
        let kept = segments.iter().position(|segment| segment.next() > first.0);
        // All are forgotten: the last one has none behind its end.
        let kept = kept.unwrap_or(segments.len() - 1);
        let head = Head {
            first: first.0,
            segment: segments[kept].first,
            offset: segments[kept].offset_of(first.0).unwrap_or(tail.end),
            ..tail.head
        };
        match shared.dir.replace(HEAD, &head.encode()) {
            // What was taken in advance makes room for it, and what is removed then makes more.
            Err(errno) if is_full(errno) => {
                shared.give_room(&mut tail)?;
                shared.dir.replace(HEAD, &head.encode())?;
            }
            replaced => replaced?,
        }
        tail.head = head;
        shared.segments.write().unwrap_or_else(PoisonError::into_inner).drain(..kept);
        let gone = &segments[..kept];
        tail.unsynced.retain(|segment| segment.first >= head.segment);
        tail.bytes -= gone.iter().map(|segment| segment.end.load(Ordering::Relaxed)).sum::<u64>();
        for segment in gone {
            shared.dir.remove(segment_name(segment.first))?;
        }
        if !gone.is_empty() {
            (shared.sync)(shared.dir.as_fd(), Extent::All)?;
        }
        let end = tail.end;
        let _ = shared.take_room(&mut tail, end, self.settings.room);
        Ok(())
    }
}

impl Syncer {
    /// Makes last what was appended before this was called.
    ///
    /// # Errors
    /// The log takes nothing more.
    pub fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

impl Reader {
    /// The bytes that a part names.
    pub fn bytes(&self, part: &Part) -> io::Result<Vec<u8>> {
        self.0.bytes(part)
    }
}

impl Tail {
    fn check(&self) -> Result<(), Errno> {
        self.failed.map_or(Ok(()), Err)
    }
}

impl Shared {
    fn segments(&self) -> RwLockReadGuard<'_, VecDeque<Arc<Segment>>> {
        self.segments.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves word of what was synced behind the last record. It need not last, and may fail.
    fn mark(&self, tail: &Tail) {
        let header = Header::synced(tail.next, tail.synced).encode(&self.key);
        let check = self.key.seal(&header, &[]);
        let mut slices = [IoSlice::new(&header), IoSlice::new(&check)];
        let _ = write_at(&tail.current.fd, &mut slices, tail.end);
    }

    fn sync(&self) -> io::Result<()> {
        let _one = lock(&self.syncing);
        let (upto, segments, has_new_names) = {
            let mut tail = lock(&self.tail);
            tail.check()?;
            if tail.synced == tail.next {
                return Ok(());
            }
            (tail.next, tail.unsynced.clone(), std::mem::take(&mut tail.has_new_names))
        };
        let synced = segments.iter().try_for_each(|segment| (self.sync)(segment.fd.as_fd(), Extent::Bytes));
        let synced = synced.and_then(|()| match has_new_names {
            true => (self.sync)(self.dir.as_fd(), Extent::All),
            false => Ok(()),
        });
        let mut tail = lock(&self.tail);
        if let Err(errno) = synced {
            tail.failed = Some(errno);
            return Err(errno.into());
        }
        tail.synced = tail.synced.max(upto);
        let Tail { unsynced, current, .. } = &mut *tail;
        unsynced.retain(|segment| Arc::ptr_eq(segment, current) || segment.next() > upto);
        self.mark(&tail);
        Ok(())
    }

    fn bytes(&self, part: &Part) -> io::Result<Vec<u8>> {
        let segment = {
            let segments = self.segments();
            let after = segments.partition_point(|segment| segment.base <= part.seq.0);
            after.checked_sub(1).map(|index| segments[index].clone())
        };
        let found = segment.and_then(|segment| Some((segment.offset_of(part.seq.0)?, segment)));
        let (offset, segment) = found.ok_or(Errno::NOENT)?;
        let mut bytes = vec![0; HEADER_LEN];
        read_at(&segment.fd, &mut bytes, offset)?;
        let header = Header::decode(&bytes, &self.key).ok_or(Errno::IO)?;
        bytes.resize(header.frame_len() as usize, 0);
        read_at(&segment.fd, &mut bytes, offset)?;
        // Once more: it was read twice.
        let header = frame::frame(&bytes, &self.key).filter(|header| header.seq == part.seq.0);
        let record = header.and_then(|header| header.record());
        let Some(Record::Bytes { offset, len, .. }) = record else { return Err(Errno::IO.into()) };
        let end = part.from.checked_add(part.len).filter(|end| *end <= len);
        match end {
            Some(end) if offset.checked_add(part.from) == Some(part.offset) => {
                bytes.truncate(HEADER_LEN + end as usize);
                bytes.drain(..HEADER_LEN + part.from as usize);
                Ok(bytes)
            }
            _ => Err(Errno::INVAL.into()),
        }
    }
}

fn open_dir(path: &Path) -> Result<Dir, LogError> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(failed("open", path)(Errno::INVAL));
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let open = || {
        let parent = Dir::open(parent)?;
        parent.make_sub(name)?;
        parent.sync()?;
        parent.sub(name)
    };
    open().map_err(failed("open", path))
}

/// The head of a log, which is begun if there is none.
fn head_of(dir: &Dir) -> Result<Head, LogError> {
    let path = || dir.path_of(HEAD);
    // One byte more is seen.
    if let Some(bytes) = dir.read_small(HEAD, HEAD_LEN + 1).map_err(failed("read", path()))? {
        return Head::decode(&bytes).ok_or_else(|| LogError::Head { path: path() });
    }
    // Whoever began one and was killed left an empty segment.
    for first in scan::segments_in(dir)? {
        let fd = dir.file(segment_name(first)).map_err(failed("open", dir.path_of(segment_name(first))))?;
        let stat = rustix::fs::fstat(&fd).map_err(failed("look at", path()))?;
        if first != 0 || stat.st_size != 0 {
            return Err(LogError::Head { path: path() });
        }
    }
    let mut head = Head { id: [0; 16], first: 0, segment: 0, offset: 0 };
    let mut begin = || {
        let got =
            retry_on_intr(|| rustix::rand::getrandom(&mut head.id, rustix::rand::GetRandomFlags::empty()))?;
        if got != head.id.len() {
            return Err(Errno::IO);
        }
        dir.empty_file(segment_name(0))?;
        dir.sync()?;
        dir.replace(HEAD, &head.encode()).map(|()| head)
    };
    begin().map_err(failed("begin the log in", dir.path()))
}

const _: () = assert!(SEGMENT_LEN_MAX + haul_core::volume::wire::BYTES_MAX < u32::MAX as u64);
const _: () = assert!(HEADER_LEN.is_multiple_of(8) && CHECK_LEN == 16);
