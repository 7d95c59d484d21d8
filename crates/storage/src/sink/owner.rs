//! One run per job: owner files `.haul~KEY.own.N`, of which the highest N owns the job.
//!
//! In: a job's key and its directory. Out: ownership, or who holds it. An owner file is made with `O_EXCL`,
//! says host, boot and process of its owner, and a counter in it beats. A dead owner is taken over by making
//! N+1: at once where its process can be looked at, after watching its counter otherwise. One that says that
//! it ends is waited for.
//!
//! What must hold: of several that try, one gets the job; an owner that was taken over (stopped, suspended,
//! cut off) sees it in [`Owner::still_owner`] before it publishes anything more. Whether the former owner is
//! proven dead is told ([`Owner::follows_unproven`]) and stays in the owner file until the journal says it:
//! of one that is not, the files that it had open may still be written. An owner file of another user is
//! never judged, only named.
//! Left out: locks of the file system, which parallel and network file systems implement or do not.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crossbeam_channel::Sender;
use haul_base::escape;
use haul_core::entry::Name;
use haul_core::wire::{Failure, FailureKind};
use rustix::fs::{AtFlags, Stat, StatxFlags};
use rustix::io::{Errno, retry_on_intr};

use super::calls::each_name;
use super::life::here;
pub use super::life::{Life, OwnerInfo};
use super::names::{JobFile, JobKey, job_file};
use super::ours::Ours;
use super::{fault, lock};
use crate::jail::Jail;

mod acquire;

/// Length of an owner file, bytes. It never changes, so that a beat is one write in place.
const OWNER_LEN: usize = 4096;
/// `AT_STATX_FORCE_SYNC`: a network file system asks its server.
const AT_STATX_FORCE_SYNC: u32 = 0x2000;
/// The last word of an owner is waited for so long.
const LEAVE_MAX: Duration = Duration::from_secs(5);
/// How long others are watched, and how often the own counter beats.
#[derive(Clone, Debug)]
pub struct Patience {
    /// A counter that stood still so long belongs to a dead owner.
    pub watch: Duration,
    pub poll: Duration,
    pub beat: Duration,
    /// A live owner has so long to learn that it must end, whose near end may just have been killed.
    pub notice: Duration,
    /// One that ends is waited for so long.
    pub ending: Duration,
    /// One that waits for its network gives way: to a run of the job, which goes on with its files, and to
    /// nobody who would remove them.
    pub takes_from_waiting: bool,
    /// An owner that was not proven dead is followed: what it still has open is of no effect then. Not where
    /// it writes into the files that this run would write into.
    pub takes_unproven: bool,
}

impl Default for Patience {
    /// Five missed beats, so that a slow file system does not look like a death. An end that sends nothing
    /// does not see its streams go for three seconds.
    fn default() -> Self {
        Patience {
            watch: Duration::from_secs(15),
            poll: Duration::from_millis(500),
            beat: Duration::from_secs(3),
            notice: Duration::from_secs(5),
            ending: Duration::from_secs(30),
            takes_from_waiting: true,
            takes_unproven: true,
        }
    }
}

impl Patience {
    fn takes_it(&self) -> bool {
        self.takes_from_waiting || haul_mutant::removed("clean-spares-who-waits")
    }
}

/// Why a job is not ours, or not over.
#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    #[error("this job is running already: process {} on {}, epoch {}: {}", .0.pid, .0.host, .0.epoch, .0.what)]
    Held(Box<OwnerInfo>),
    #[error(
        "{path} belongs to user {uid}, and files made here to user {ours}: this is another user's copy into the same \
         place. Let that user complete it or remove it (`haul clean`), or copy into a directory of your own"
    )]
    Foreign { path: String, uid: u32, ours: u32 },
    #[error(
        "this job was begun by process {} on {}, which was not heard of and is not proven to have ended: it may still write into the files at \
         the destination, and nothing is written in place beside it. Run the command without `in_place`, or make sure that the process has \
         ended and remove what it left with haul clean", .0.pid, .0.host
    )]
    Unproven(Box<OwnerInfo>),
    #[error("{0}")]
    Stays(String),
    #[error("stopped while another run of this job was waited for")]
    Stopped,
    #[error("{}", .0.text)]
    Failed(Failure),
}

/// What an owner is told of others.
enum Word {
    Yields(bool),
    Ends(bool),
    /// The journal says whom it follows.
    Settled,
    /// Nothing is under way any more. Answered when it is written.
    Over(Sender<()>),
}

/// Where a job keeps its journal and owner files.
#[derive(Clone)]
pub struct JobDir {
    fd: Arc<OwnedFd>,
    path: PathBuf,
    key: JobKey,
    jail: Jail,
    here: Arc<OwnerInfo>,
    ours: Arc<OnceLock<Ours>>,
}

/// The job is ours until this is dropped.
pub struct Owner {
    place: JobDir,
    epoch: u32,
    dev_ino: (u64, u64),
    released: AtomicBool,
    /// Why its file is still there after it was given up.
    stays: OnceLock<String>,
    follows_unproven: bool,
    settled: AtomicBool,
    /// Dropped to stop the beat.
    beat: Mutex<Option<Sender<Word>>>,
}

impl JobDir {
    /// The directory `path` (the destination root, or a state directory), which must exist.
    pub fn open(path: &Path, key: JobKey) -> Result<JobDir, Failure> {
        let fd = Jail::open_root(path).map_err(|errno| {
            fault::os(
                FailureKind::Open,
                "open directory",
                &escape::within(path.as_os_str().as_bytes()),
                errno,
            )
        })?;
        let jail = Jail::probe(&fd);
        Ok(JobDir {
            fd: Arc::new(fd),
            path: path.to_owned(),
            key,
            jail,
            here: Arc::new(here()),
            ours: Arc::default(),
        })
    }

    /// The same directory for another job.
    pub(super) fn of(&self, key: JobKey) -> JobDir {
        JobDir { key, ..self.clone() }
    }

    /// The job's key.
    pub fn key(&self) -> &JobKey {
        &self.key
    }
    pub(super) fn here(&self) -> &OwnerInfo {
        &self.here
    }
    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }
    pub(super) fn jail(&self) -> Jail {
        self.jail
    }
    pub(super) fn path_of(&self, name: &Name) -> String {
        format!("{}/{}", escape::within(self.path.as_os_str().as_bytes()), escape::within(name.as_bytes()))
    }

    /// How files look that we make here; a file is made for that, once.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn ours(&self) -> Result<Ours, Failure> {
        if let Some(ours) = self.ours.get() {
            return Ok(*ours);
        }
        // A draft of no owner, so that whoever removes drafts removes one that was left.
        let name = self.key.journal_new(0);
        let ours = Ours::learn(self.jail, &*self.fd, &name).map_err(|errno| {
            fault::os_at(FailureKind::Create, "create", &self.path_of(&name), errno, self.fd.as_fd())
        })?;
        Ok(*self.ours.get_or_init(|| ours))
    }

    /// Whether a file of the job may be believed.
    ///
    /// # Errors
    /// It is another user's, or others may write it.
    pub(super) fn check_ours(&self, name: &Name, stat: &Stat) -> Result<(), AcquireError> {
        let ours = self.ours().map_err(AcquireError::Failed)?;
        let path = || self.path_of(name);
        if haul_mutant::removed("foreign-jobs-are-refused") {
            return Ok(());
        }
        if stat.st_uid != ours.uid {
            return Err(AcquireError::Foreign { path: path(), uid: stat.st_uid, ours: ours.uid });
        }
        if !ours.made(stat) {
            let text = format!(
                "{} is not as a run leaves it: others may write it, it has several names, or it is no file (mode {:o}); \
                 look what made it, and remove it",
                path(),
                stat.st_mode & 0o7777
            );
            return Err(AcquireError::Failed(fault::failure(FailureKind::Open, 0, text)));
        }
        Ok(())
    }

    /// The owners' epochs, lowest first.
    pub(super) fn owners(&self) -> Result<Vec<u32>, AcquireError> {
        self.owners_and_drafts().map(|(owners, _)| owners)
    }

    /// The epochs of the owners and of the journal's drafts, lowest first.
    fn owners_and_drafts(&self) -> Result<(Vec<u32>, Vec<u32>), AcquireError> {
        let (mut owners, mut drafts) = (Vec::new(), Vec::new());
        each_name(&self.fd, |name, _| match job_file(name) {
            Some((key, JobFile::Owner { epoch })) if key == self.key => owners.push(epoch),
            Some((key, JobFile::NewJournal { epoch })) if key == self.key => drafts.push(epoch),
            _ => {}
        })
        .map_err(|errno| self.fail("list the directory of", &self.key.journal(), errno))?;
        owners.sort_unstable();
        drafts.sort_unstable();
        Ok((owners, drafts))
    }

    /// Removes drafts of the journal that runs up to the epoch `last` left when they were killed. One that
    /// cannot be removed or listed harms nobody, and `haul clean` names it.
    pub(super) fn remove_drafts(&self, last: u32) {
        let drafts = self.owners_and_drafts().map(|(_, drafts)| drafts).unwrap_or_default();
        for epoch in drafts.into_iter().filter(|epoch| *epoch <= last) {
            let _ = self.jail.unlink(&self.fd, &self.key.journal_new(epoch));
        }
    }

    /// What the owner file says now. `None`: it is gone.
    ///
    /// # Errors
    /// It is another user's, or cannot be read.
    pub(super) fn look(&self, epoch: u32) -> Result<Option<Seen>, AcquireError> {
        let name = self.key.owner(epoch);
        match self.peek(epoch) {
            Ok(None) => Ok(None),
            Ok(Some((stat, seen))) => self.check_ours(&name, &stat).map(|()| Some(seen)),
            // The name tells whose it is.
            Err(failed) => match self.jail.stat(&self.fd, &name) {
                Ok(stat) => Err(self.check_ours(&name, &stat).err().unwrap_or(failed)),
                Err(_) => Err(failed),
            },
        }
    }

    /// What the owner file says now, whoever made it. `None`: it is gone.
    pub(super) fn peek(&self, epoch: u32) -> Result<Option<(Stat, Seen)>, AcquireError> {
        let name = self.key.owner(epoch);
        let read = || {
            let fd = self.jail.open_file(&self.fd, &name, false)?;
            let stat = rustix::fs::fstat(&fd)?;
            let mut bytes = vec![0; OWNER_LEN];
            let mut len = 0;
            while len < bytes.len() {
                match retry_on_intr(|| rustix::io::read(&fd, &mut bytes[len..]))? {
                    0 => break,
                    read => len += read,
                }
            }
            bytes.truncate(len);
            let info = serde_json::from_slice(&bytes).ok();
            Ok((stat, Seen { ino: stat.st_ino, bytes, info }))
        };
        match read() {
            Ok(seen) => Ok(Some(seen)),
            Err(Errno::NOENT | Errno::STALE) => Ok(None),
            Err(errno) => Err(self.fail("read", &name, errno)),
        }
    }

    fn fail(&self, what: &str, name: &Name, errno: Errno) -> AcquireError {
        AcquireError::Failed(fault::os_at(
            FailureKind::Create,
            what,
            &self.path_of(name),
            errno,
            self.fd.as_fd(),
        ))
    }
}

/// An owner file as it was read.
#[derive(Clone)]
pub(super) struct Seen {
    ino: u64,
    bytes: Vec<u8>,
    /// `None`: not (or not yet) what an owner writes.
    pub(super) info: Option<OwnerInfo>,
}

impl Owner {
    /// The session's epoch.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Where the job keeps its files.
    pub fn place(&self) -> &JobDir {
        &self.place
    }

    /// The job was taken from a run that was not proven dead: what that one had open it may still write, and
    /// what it was about to publish it may still publish.
    pub fn follows_unproven(&self) -> bool {
        self.follows_unproven
    }

    /// The journal says whom this run follows: the next need not hear it from the owner file.
    pub fn settle(&self) {
        self.settled.store(true, Ordering::Release);
        self.tell(Word::Settled);
    }

    /// This run is about to end, for its near end is gone: the next waits for that, and finds it proven dead.
    /// Does not wait.
    pub fn set_ends(&self, ends: bool) {
        self.tell(Word::Ends(ends));
    }

    fn tell(&self, word: Word) {
        if let Some(beat) = &*lock(&self.beat) {
            // Its thread is gone only with us.
            let _ = beat.send(word);
        }
    }

    /// From now on another run may take the job over at once, or may not. Does not wait. An owner that lost
    /// it so finds out before it publishes anything more, like any other.
    pub fn set_yields(&self, yields: bool) {
        self.tell(Word::Yields(yields));
    }

    /// Whether the job is still ours: our file is there, and no higher one.
    ///
    /// # Errors
    /// Another run took it over, or it cannot be seen: then nothing more may be published.
    pub fn still_owner(&self) -> Result<(), Failure> {
        let JobDir { fd, jail, key, .. } = &self.place;
        let name = key.owner(self.epoch);
        let lost = |told: String| Err(fault::failure(FailureKind::Publish, 0, told));
        let stopped = "another run of this job took over; this one publishes nothing more";
        let next = key.owner(self.epoch.saturating_add(1));
        if self.released.load(Ordering::Acquire) {
            return lost("the job was given up; nothing more is published".into());
        }
        match self.now_at(&name) {
            Ok(dev_ino) if dev_ino == self.dev_ino => {}
            Err(Errno::NOENT) if matches!(jail.stat(fd, &next), Err(Errno::NOENT)) => {
                return lost(format!(
                    "{} is gone: the destination was removed, or what is in it, or another run of this job took over; nothing more \
                     is published",
                    self.place.path_of(&name)
                ));
            }
            Ok(_) | Err(Errno::NOENT) => {
                return lost(format!("{stopped} ({} is gone)", self.place.path_of(&name)));
            }
            Err(errno) => {
                return Err(fault::os(
                    FailureKind::Publish,
                    "check the owner file",
                    &self.place.path_of(&name),
                    errno,
                ));
            }
        }
        match jail.stat(fd, &next) {
            Err(Errno::NOENT) => Ok(()),
            Ok(_) => lost(format!("{stopped} ({} is there)", self.place.path_of(&next))),
            Err(errno) => Err(fault::os(
                FailureKind::Publish,
                "check the owner file",
                &self.place.path_of(&next),
                errno,
            )),
        }
    }

    /// What stands at the name, as the server says now and not as it was remembered.
    fn now_at(&self, name: &Name) -> rustix::io::Result<(u64, u64)> {
        let JobDir { fd, jail, .. } = &self.place;
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::from_bits_retain(AT_STATX_FORCE_SYNC);
        let seen = retry_on_intr(|| rustix::fs::statx(&**fd, name.as_bytes(), flags, StatxFlags::INO));
        match seen {
            Ok(seen) => Ok((rustix::fs::makedev(seen.stx_dev_major, seen.stx_dev_minor), seen.stx_ino)),
            // A filter that knows nothing of this call.
            Err(Errno::NOSYS | Errno::PERM) => jail.stat(fd, name).map(|stat| (stat.st_dev, stat.st_ino)),
            Err(errno) => Err(errno),
        }
    }

    /// Gives the job up before it is complete, when nothing of it is under way any more: the owner file stays
    /// and says that, so that whoever looks for interrupted copies learns what this one was.
    pub fn leave(&self) {
        if !self.settled.load(Ordering::Acquire) || self.released.load(Ordering::Acquire) {
            return self.release();
        }
        let (written, told) = crossbeam_channel::bounded(1);
        if self.still_owner().is_err() {
            return self.release();
        }
        self.tell(Word::Over(written));
        // Storage that hangs keeps it: then this process is found dead.
        let _ = told.recv_timeout(LEAVE_MAX);
        self.released.store(true, Ordering::Release);
        lock(&self.beat).take();
    }

    /// Gives the job up: stops the beat and removes the owner file if it is still ours. It stays where it
    /// alone says that the run before was not proven dead.
    pub fn release(&self) {
        if self.released.swap(true, Ordering::AcqRel) {
            return;
        }
        if !self.settled.load(Ordering::Acquire) {
            // Found dead by the next run, or given away while this process goes on.
            self.tell(Word::Yields(true));
            lock(&self.beat).take();
            return;
        }
        lock(&self.beat).take();
        let JobDir { fd, jail, key, .. } = &self.place;
        let name = key.owner(self.epoch);
        if jail.stat(fd, &name).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.dev_ino) {
            // Left behind, it is found dead by the next run.
            match jail.unlink(fd, &name) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => {
                    let path = self.place.path_of(&name);
                    let _ = self
                        .stays
                        .set(fault::os(FailureKind::Write, "remove", &path, errno).text.to_string());
                }
            }
        }
    }

    /// What could not be removed when the job was given up, in words.
    pub fn stays(&self) -> Option<&str> {
        self.stays.get().map(String::as_str)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.release();
    }
}

/// The file's content: one line of JSON, padded.
fn encode(info: &OwnerInfo) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(info).expect("numbers and strings have a JSON form");
    assert!(bytes.len() < OWNER_LEN, "its strings were cut when they were made");
    bytes.resize(OWNER_LEN - 1, b' ');
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
#[path = "owner_tests.rs"]
mod tests;
