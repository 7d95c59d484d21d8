//! What a server does on its disk, away from the thread that decides: threads for stripes, and one for the
//! log.
//!
//! Invariants: each job is answered once, by [`Event`]; appends and syncs of the log are done in their order.
//! Where there is no room, what has bytes is refused, and something without any stands in the log in its
//! place; where there is none for that either, the log waits until there is.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use haul_core::volume::gather::{Part, PushNo, Record, Seq};
use haul_core::volume::storage::{Done, Op, OpNo};
use haul_core::volume::ticket::Term;

use super::event::{Asker, Event};
use crate::line::Bytes;
use crate::log::{self, Log};
use crate::reserve::{Reserve, is_full_raw};
use crate::shelf::Shelf;

/// Bytes of a push go in pieces of at most so many.
const PIECE: usize = 4 << 20;
/// A log without room looks for some as often.
const ROOM_AGAIN: Duration = Duration::from_millis(500);
const NO_ERRNO: i32 = rustix::io::Errno::IO.raw_os_error();

/// Something for the threads of stripes; they also read what the log has.
pub(super) enum Job {
    Carry(OpNo, Op<Bytes>),
    /// The parts of an answer, one behind the other.
    Parts(Asker, Vec<Part>, u64),
    /// The parts of a push, those that touch put together.
    Push(PushNo, Vec<Part>),
    /// Look whether the server's directory is there.
    Look,
    /// Keep room for the next start, as far as there is any.
    Reserve,
    /// Have the next life know of this term of tickets.
    Term(Term),
}

/// Something for the log's thread.
pub(super) enum LogJob {
    Append(Seq, Record<Bytes>),
    Sync,
    Forget(Seq),
}

/// The threads. Dropping it waits until they have done what was begun.
pub(super) struct Disk {
    to: Option<(Sender<Job>, Sender<LogJob>)>,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

pub(super) fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(NO_ERRNO)
}

impl Disk {
    pub(super) fn start(
        (shelf, reserve): (&Arc<Shelf>, Reserve),
        log: Log,
        threads: usize,
        post: &Sender<Event>,
    ) -> io::Result<Disk> {
        let (jobs, to_do) = unbounded();
        let (reader, mut all) = (log.reader(), Vec::new());
        let (running, reserve) = (Arc::new(AtomicU32::new(0)), Arc::new(reserve));
        let (to_write, written) = unbounded();
        let writes_back = shelf.clone();
        let thread = std::thread::Builder::new().name("haul-vol-writes".into());
        // Ends behind the last of the others, each of which says to it what it wrote.
        all.push(thread.spawn(move || {
            written.into_iter().for_each(|file| writes_back.start_write_back(file));
        })?);
        for number in 0..threads {
            let to_write = to_write.clone();
            let (to_do, shelf, reader, post) = (to_do.clone(), shelf.clone(), reader.clone(), post.clone());
            let thread = std::thread::Builder::new().name(format!("haul-vol-disk-{number}"));
            let (running, reserve) = (running.clone(), reserve.clone());
            all.push(thread.spawn(move || {
                for job in to_do {
                    let written = match &job {
                        Job::Carry(_, Op::Write { file, .. }) => Some(*file),
                        _ => None,
                    };
                    let _ = post.send(carry_out(job, (&*shelf, &*reserve), &reader, &running));
                    if let Some(file) = written.filter(|file| shelf.is_much_unwritten(*file)) {
                        let _ = to_write.send(file);
                    }
                }
            })?);
        }
        let (to_log, to_append) = unbounded();
        let post = post.clone();
        let thread = std::thread::Builder::new().name("haul-vol-log".into());
        let over = Arc::new(AtomicBool::new(false));
        let keeper = Keeper { log, post, over: over.clone(), full: false };
        all.push(thread.spawn(move || keeper.keep(&to_append))?);
        Ok(Disk { to: Some((jobs, to_log)), over, threads: all })
    }

    pub(super) fn does(&self, job: Job) {
        if let Some((jobs, _)) = &self.to {
            let _ = jobs.send(job);
        }
    }

    pub(super) fn logs(&self, job: LogJob) {
        if let Some((_, log)) = &self.to {
            let _ = log.send(job);
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.to = None;
        self.over.store(true, Ordering::Release);
        self.threads.drain(..).for_each(|thread| _ = thread.join());
    }
}

fn carry_out(
    job: Job,
    (shelf, reserve): (&Shelf, &Reserve),
    log: &log::Reader,
    running: &AtomicU32,
) -> Event {
    match job {
        Job::Carry(number, op) => {
            let (beside, begun) = (running.fetch_add(1, Ordering::AcqRel) + 1, Instant::now());
            let done = match op {
                Op::Write { file, offset, bytes } => {
                    shelf.write(file, offset, &bytes).map_or_else(Done::Failed, |()| Done::Written)
                }
                Op::Read { file, offset, len } => shelf
                    .read(file, offset, len)
                    .map_or_else(Done::Failed, |bytes| Done::Read(Arc::new(bytes))),
                Op::Cut { file, from } => shelf.cut(file, from).map_or_else(Done::Failed, |()| Done::Written),
                Op::Remove { file } => shelf.remove(file).map_or_else(Done::Failed, |()| Done::Written),
                Op::Sync { file } => shelf.sync(file).map_or_else(Done::Failed, |()| Done::Synced),
            };
            let took = begun.elapsed();
            // Those that ran when it began and when it ended shared that time.
            let beside = (beside + running.fetch_sub(1, Ordering::AcqRel)).max(2);
            Event::Carried(number, done, took * 2 / beside)
        }
        Job::Parts(asker, parts, end) => {
            let mut all = Vec::with_capacity(parts.iter().map(|part| part.len as usize).sum());
            let read =
                parts.iter().try_for_each(|part| log.bytes(part).map(|bytes| all.extend_from_slice(&bytes)));
            Event::PartsRead(
                asker,
                parts,
                end,
                read.map(|()| Arc::new(all)).map_err(|error| errno_of(&error)),
            )
        }
        Job::Push(push, parts) => {
            let mut pieces: Vec<(u64, Vec<u8>)> = Vec::new();
            let read = parts.iter().try_for_each(|part| {
                let bytes = log.bytes(part)?;
                match pieces.last_mut() {
                    Some((offset, last))
                        if *offset + last.len() as u64 == part.offset
                            && last.len() + bytes.len() <= PIECE =>
                    {
                        last.extend_from_slice(&bytes);
                    }
                    _ => pieces.push((part.offset, bytes)),
                }
                Ok(())
            });
            let read = read.map_err(|error: io::Error| errno_of(&error));
            Event::PushRead(
                push,
                read.map(|()| pieces.into_iter().map(|(at, b)| (at, Arc::new(b))).collect()),
            )
        }
        Job::Look => {
            let root = || shelf.path().to_owned();
            let gone = shelf.vanished().map(Path::to_owned).or_else(|| (!log.is_there()).then(root));
            Event::Looked(gone.filter(|_| !haul_mutant::removed("volume-servers-see-that-they-are-gone")))
        }
        // What else is wrong with it whoever writes will hear.
        Job::Reserve => Event::Reserved(reserve.fill().unwrap_or(true)),
        Job::Term(term) => {
            // Without it the next life takes tickets that are over until it hears of the catalog.
            let _ = shelf.keep_term(term);
            Event::TermKept
        }
    }
}

/// The thread that has the log.
struct Keeper {
    log: Log,
    post: Sender<Event>,
    over: Arc<AtomicBool>,
    /// There was no room.
    full: bool,
}

impl Keeper {
    fn keep(mut self, jobs: &Receiver<LogJob>) {
        loop {
            let job = match self.full {
                true => jobs.recv_timeout(ROOM_AGAIN),
                false => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match job {
                Ok(job) => self.does(job),
                Err(RecvTimeoutError::Timeout) => {
                    if self.log.take_room().is_ok() {
                        self.is_full(None);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn does(&mut self, job: LogJob) {
        let begun = Instant::now();
        let event = match job {
            LogJob::Append(seq, record) => {
                // The log wants them as they lie in memory.
                let bytes = match &record {
                    Record::Bytes { bytes, .. } => bytes.clone(),
                    _ => Bytes::default(),
                };
                let has_bytes = matches!(record, Record::Bytes { .. });
                let record = record.map(|_| &bytes[..]);
                let appended = match self.log.append(seq, &record).map_err(|error| errno_of(&error)) {
                    Err(errno) if is_full_raw(errno) && has_bytes => {
                        self.is_full(Some(errno));
                        match self.append_in_the_end(seq, &Record::Nothing) {
                            Ok(()) => {
                                let _ = self.post.send(Event::Refused(seq, errno));
                                return;
                            }
                            failed => failed,
                        }
                    }
                    Err(errno) if is_full_raw(errno) => {
                        self.is_full(Some(errno));
                        self.append_in_the_end(seq, &record)
                    }
                    Ok(()) if has_bytes => {
                        self.is_full(None);
                        Ok(())
                    }
                    other => other,
                };
                Event::Appended(seq, appended, begun.elapsed(), self.log.len())
            }
            LogJob::Sync => {
                let synced = self.log.sync().map_err(|error| errno_of(&error));
                Event::LogSynced(synced, begun.elapsed())
            }
            LogJob::Forget(first) => match self.log.forget(first) {
                Ok(()) => return,
                Err(error) => Event::Trouble(format!(
                    "forgetting the log's beginning: {}",
                    haul_base::errno::text(&error)
                )),
            },
        };
        let _ = self.post.send(event);
    }

    /// Appends what has no bytes, and waits for room as long as it takes: what is gathered stays in order,
    /// and whoever waits for it has patience of his own.
    fn append_in_the_end(&mut self, seq: Seq, record: &Record<&[u8]>) -> Result<(), i32> {
        loop {
            match self.log.append(seq, record).map_err(|error| errno_of(&error)) {
                Err(errno) if is_full_raw(errno) && !self.over.load(Ordering::Acquire) => {
                    std::thread::sleep(ROOM_AGAIN);
                }
                other => return other,
            }
        }
    }

    /// Why there is no room for what has bytes; `None`: there is.
    fn is_full(&mut self, errno: Option<i32>) {
        if self.full != errno.is_some() {
            self.full = errno.is_some();
            let _ = self.post.send(Event::LogFull(errno));
        }
    }
}
