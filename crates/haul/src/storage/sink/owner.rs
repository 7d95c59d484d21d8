//! One run per job: owner files `.haul~KEY.own.N`, of which the highest N owns the job.
//!
//! In: a job's key and its directory. Out: ownership, or who holds it. An owner file is made with `O_EXCL`,
//! says host, boot and process of its owner, and a counter in it beats. A dead owner is taken over by making
//! N+1: at once where its process can be looked at, after watching its counter otherwise.
//!
//! What must hold: of several that try, one gets the job; an owner that was taken over (stopped, suspended,
//! cut off) sees it in [`Owner::still_owner`] before it publishes anything more.
//! Left out: locks of the file system, which parallel and network file systems implement or do not.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{RecvTimeoutError, Sender, unbounded};
use haul_core::entry::Name;
use haul_core::wire::{Failure, Stage};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use super::files::write_all_at;
use super::names::{JobFile, JobKey, job_file};
use super::{clean, fault, lock};
use crate::storage::jail::Jail;

/// Length of an owner file, bytes. It never changes, so that a beat is one write in place.
const OWNER_LEN: usize = 4096;
/// Longest host name and description in it, characters.
const HOST_CHARS_MAX: usize = 64;
const WHAT_CHARS_MAX: usize = 120;
/// Attempts to get a job while others come and go.
const ATTEMPTS_MAX: u32 = 1000;

/// What an owner file says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerInfo {
    pub host: String,
    pub machine_id: String,
    pub boot: String,
    /// The process id means something only in this namespace.
    pub pid_ns: String,
    pub pid: i32,
    /// When the process started, in clock ticks since boot.
    pub pid_start: u64,
    pub epoch: u32,
    /// Inode of the directory in which this file was made: a copy of it elsewhere says nothing.
    #[serde(default)]
    pub dir_ino: u64,
    /// Counts up while the owner lives.
    pub beat: u64,
    /// When the job was taken, seconds since 1970.
    pub since: u64,
    /// The command, for people.
    pub what: String,
    /// The owner waits for a network that is down, and gives way to a run that is there.
    #[serde(default)]
    pub yields: bool,
}

/// Whether an owner lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Alive,
    Dead,
    /// On another machine, or not to be seen from here: only its beat can tell.
    Unknown,
}

/// How long others are watched, and how often the own counter beats.
#[derive(Clone, Debug)]
pub struct Patience {
    /// A counter that stood still so long belongs to a dead owner.
    pub watch: Duration,
    pub poll: Duration,
    pub beat: Duration,
}

impl Default for Patience {
    /// Five missed beats, so that a slow file system does not look like a death.
    fn default() -> Self {
        Patience {
            watch: Duration::from_secs(15),
            poll: Duration::from_millis(500),
            beat: Duration::from_secs(3),
        }
    }
}

/// Why a job is not ours.
#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    #[error("this job is running already: process {} on {}, epoch {}: {}", .0.pid, .0.host, .0.epoch, .0.what)]
    Held(Box<OwnerInfo>),
    #[error("{}", .0.text)]
    Failed(Failure),
}

/// Where a job keeps its journal and owner files.
#[derive(Clone)]
pub struct JobDir {
    fd: Arc<OwnedFd>,
    path: PathBuf,
    key: JobKey,
    jail: Jail,
    here: Arc<OwnerInfo>,
}

/// The job is ours until this is dropped.
pub struct Owner {
    place: JobDir,
    epoch: u32,
    dev_ino: (u64, u64),
    released: AtomicBool,
    /// Tells whether the job is given away when somebody asks. Dropped to stop the beat.
    beat: Mutex<Option<Sender<bool>>>,
}

impl JobDir {
    /// The directory `path` (the destination root, or a state directory), which must exist.
    pub fn open(path: &Path, key: JobKey) -> Result<JobDir, Failure> {
        let fd = Jail::open_root(path).map_err(|errno| {
            fault::os(Stage::Open, "open directory", &fault::show(path.as_os_str().as_bytes()), errno)
        })?;
        let jail = Jail::probe(&fd);
        Ok(JobDir { fd: Arc::new(fd), path: path.to_owned(), key, jail, here: Arc::new(here()) })
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
        format!("{}/{}", fault::show(self.path.as_os_str().as_bytes()), fault::show(name.as_bytes()))
    }

    /// Takes the job: its epoch exceeds `floor` (the last epoch in the journal) and every owner before.
    /// Waits up to `patience.watch` where only a beat can tell whether the owner lives.
    ///
    /// # Errors
    /// Somebody else has it, or the directory cannot be read or written.
    pub fn acquire(&self, floor: u32, what: &str, patience: &Patience) -> Result<Owner, AcquireError> {
        let mut watched: Option<(u32, Seen, Instant)> = None;
        for _ in 0..ATTEMPTS_MAX {
            let known = self.owners()?;
            let Some(highest) = known.last().copied() else {
                match self.create(floor.saturating_add(1), what, &known, patience)? {
                    Some(owner) => return Ok(owner),
                    None => continue,
                }
            };
            let Some(seen) = self.look(highest)? else { continue };
            let mut life = seen.info.as_ref().map_or(Life::Unknown, |info| self.claims(info));
            if life == Life::Unknown {
                life = match &watched {
                    Some((epoch, first, since)) if *epoch == highest && first.ino == seen.ino => {
                        if first.bytes != seen.bytes {
                            Life::Alive
                        } else if since.elapsed() >= patience.watch {
                            Life::Dead
                        } else {
                            Life::Unknown
                        }
                    }
                    _ => {
                        watched = Some((highest, seen.clone(), Instant::now()));
                        Life::Unknown
                    }
                };
            }
            match life {
                Life::Alive => return Err(AcquireError::Held(Box::new(seen.info.unwrap_or_default()))),
                Life::Unknown => std::thread::sleep(patience.poll),
                Life::Dead => {
                    let epoch = highest.max(floor).saturating_add(1);
                    if let Some(owner) = self.create(epoch, what, &known, patience)? {
                        return Ok(owner);
                    }
                }
            }
        }
        Err(self.fail("take the job in", &self.key.journal(), Errno::AGAIN))
    }

    /// Whether this owner keeps the job from us. One that gives it away is as good as dead.
    fn claims(&self, info: &OwnerInfo) -> Life {
        if info.yields { Life::Dead } else { judge(info, &self.here) }
    }

    /// The owners' epochs, lowest first.
    pub(super) fn owners(&self) -> Result<Vec<u32>, AcquireError> {
        self.owners_and_drafts().map(|(owners, _)| owners)
    }

    /// The epochs of the owners and of the journal's drafts, lowest first.
    fn owners_and_drafts(&self) -> Result<(Vec<u32>, Vec<u32>), AcquireError> {
        let (mut owners, mut drafts) = (Vec::new(), Vec::new());
        clean::each_name(&self.fd, |name, _| match job_file(name) {
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
    pub(super) fn look(&self, epoch: u32) -> Result<Option<Seen>, AcquireError> {
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
            Ok(Seen { ino: stat.st_ino, bytes, info })
        };
        match read() {
            Ok(seen) => Ok(Some(seen)),
            Err(Errno::NOENT | Errno::STALE) => Ok(None),
            Err(errno) => Err(self.fail("read", &name, errno)),
        }
    }

    /// Makes the owner file. `known`: the owners when we looked, of whom the highest is dead and the others
    /// had lost the job to it. `None`: another was faster; look again.
    fn create(
        &self,
        epoch: u32,
        what: &str,
        known: &[u32],
        patience: &Patience,
    ) -> Result<Option<Owner>, AcquireError> {
        let name = self.key.owner(epoch);
        let fd = match self.jail.create_temp(&self.fd, &name) {
            Err(Errno::EXIST) => return Ok(None),
            other => other.map_err(|errno| self.fail("create", &name, errno))?,
        };
        let mut info =
            OwnerInfo { epoch, what: what.chars().take(WHAT_CHARS_MAX).collect(), ..(*self.here).clone() };
        info.dir_ino = rustix::fs::fstat(&*self.fd).map_or(0, |stat| stat.st_ino);
        info.since =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        // Synced, for after a power cut an empty file would have to be watched until it looks dead.
        let made = write_all_at(&fd, &encode(&info), 0)
            .and_then(|()| retry_on_intr(|| rustix::fs::fdatasync(&fd)))
            .and_then(|()| rustix::fs::fstat(&fd));
        let stat = match made {
            Ok(stat) => stat,
            Err(errno) => {
                let _ = self.jail.unlink(&self.fd, &name);
                return Err(self.fail("write", &name, errno));
            }
        };
        // From here on dropping it removes the file again.
        let owner = Owner {
            place: self.clone(),
            epoch,
            dev_ino: (stat.st_dev, stat.st_ino),
            released: AtomicBool::new(false),
            beat: Mutex::new(None),
        };
        let all = self.owners()?;
        // A higher one, or ours gone: somebody held us for dead before we had written who we are.
        if all.last().is_some_and(|highest| *highest > epoch) || !all.contains(&epoch) {
            return Ok(None);
        }
        // A lower one that was not there when we looked: it could not know of us, so it may own the job.
        for lower in all.iter().filter(|lower| **lower < epoch && !known.contains(lower)) {
            if let Some(Seen { info: Some(info), .. }) = self.look(*lower)?
                && self.claims(&info) != Life::Dead
            {
                return Err(AcquireError::Held(Box::new(info)));
            }
        }
        // Lowest first, so that an owner that was taken over always misses its own file or sees the next.
        for lower in all.iter().filter(|lower| **lower < epoch) {
            let _ = self.jail.unlink(&self.fd, &self.key.owner(*lower));
        }
        // Two words at most wait, for each is told when it changes.
        let (stop, told) = unbounded();
        let every = patience.beat;
        let spawned = std::thread::Builder::new().name("haul-owner".into()).spawn(move || {
            loop {
                match told.recv_timeout(every) {
                    Ok(yields) => info.yields = yields,
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
                info.beat += 1;
                // A beat that cannot be written looks like our death to others, and then we see that.
                // Synced, for on network file systems it is not seen before.
                let _ = write_all_at(&fd, &encode(&info), 0).and_then(|()| rustix::fs::fdatasync(&fd));
            }
        });
        if spawned.is_err() {
            return Err(self.fail("start the beat of", &name, Errno::AGAIN));
        }
        *lock(&owner.beat) = Some(stop);
        Ok(Some(owner))
    }

    fn fail(&self, what: &str, name: &Name, errno: Errno) -> AcquireError {
        AcquireError::Failed(fault::os_at(Stage::Create, what, &self.path_of(name), errno, self.fd.as_fd()))
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

    /// From now on another run may take the job over at once, or may not. Does not wait. An owner that lost it so
    /// finds out before it publishes anything more, like any other.
    pub fn set_yields(&self, yields: bool) {
        if let Some(beat) = &*lock(&self.beat) {
            // Its thread is gone only with us.
            let _ = beat.send(yields);
        }
    }

    /// Whether the job is still ours: our file is there, and no higher one.
    ///
    /// # Errors
    /// Another run took it over, or it cannot be seen: then nothing more may be published.
    pub fn still_owner(&self) -> Result<(), Failure> {
        let JobDir { fd, jail, key, .. } = &self.place;
        let name = key.owner(self.epoch);
        let lost = |told: String| Err(fault::failure(Stage::Publish, 0, told));
        let stopped = "another run of this job took over; this one publishes nothing more";
        if self.released.load(Ordering::Acquire) {
            return lost("the job was given up; nothing more is published".into());
        }
        match jail.stat(fd, &name) {
            Ok(stat) if (stat.st_dev, stat.st_ino) == self.dev_ino => {}
            Ok(_) | Err(Errno::NOENT) => {
                return lost(format!("{stopped} ({} is gone)", self.place.path_of(&name)));
            }
            Err(errno) => {
                return Err(fault::os(
                    Stage::Publish,
                    "check the owner file",
                    &self.place.path_of(&name),
                    errno,
                ));
            }
        }
        let next = key.owner(self.epoch.saturating_add(1));
        match jail.stat(fd, &next) {
            Err(Errno::NOENT) => Ok(()),
            Ok(_) => lost(format!("{stopped} ({} is there)", self.place.path_of(&next))),
            Err(errno) => {
                Err(fault::os(Stage::Publish, "check the owner file", &self.place.path_of(&next), errno))
            }
        }
    }

    /// Gives the job up: stops the beat and removes the owner file if it is still ours.
    pub fn release(&self) {
        if self.released.swap(true, Ordering::AcqRel) {
            return;
        }
        lock(&self.beat).take();
        let JobDir { fd, jail, key, .. } = &self.place;
        let name = key.owner(self.epoch);
        if jail.stat(fd, &name).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.dev_ino) {
            // Left behind, it is found dead by the next run.
            let _ = jail.unlink(fd, &name);
        }
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

/// What can be said of an owner without watching it. Machine ids alone prove nothing: diskless nodes and
/// containers share an image, and with it the id.
pub(super) fn judge(info: &OwnerInfo, here: &OwnerInfo) -> Life {
    if info.boot.is_empty() || here.boot.is_empty() {
        return Life::Unknown;
    }
    if info.boot != here.boot {
        let same =
            !here.machine_id.is_empty() && info.machine_id == here.machine_id && info.host == here.host;
        return if same { Life::Dead } else { Life::Unknown };
    }
    if here.pid_ns.is_empty() || info.pid_ns != here.pid_ns {
        return Life::Unknown;
    }
    let Some(pid) = (info.pid > 0).then(|| Pid::from_raw(info.pid)).flatten() else { return Life::Unknown };
    if rustix::process::test_kill_process(pid) == Err(Errno::SRCH) {
        return Life::Dead;
    }
    match process_start(&info.pid.to_string()) {
        Some(start) if start == info.pid_start => Life::Alive,
        Some(_) => Life::Dead,
        // It exists, but /proc hides other users' processes.
        None => Life::Unknown,
    }
}

/// When a process started, clock ticks since boot; `Some(u64::MAX)` if it has ended and waits for its parent.
fn process_start(pid: &str) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program stands in parentheses and may hold anything, also parentheses.
    let after = stat.iter().rposition(|b| *b == b')')?;
    let mut fields = std::str::from_utf8(&stat[after + 1..]).ok()?.split_ascii_whitespace();
    let state = fields.next()?;
    // Field 22; the state is field 3.
    let start = fields.nth(18)?.parse().ok()?;
    Some(if matches!(state, "Z" | "X" | "x") { u64::MAX } else { start })
}

fn read_line(path: &str) -> String {
    std::fs::read_to_string(path)
        .map(|text| text.trim().chars().take(HOST_CHARS_MAX).collect())
        .unwrap_or_default()
}

/// The id of this boot, which a journal without durability is bound to; zero if the system has none.
pub fn boot_id() -> [u8; 16] {
    let digits: String =
        read_line("/proc/sys/kernel/random/boot_id").chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes()
}

/// This process as an owner.
fn here() -> OwnerInfo {
    let system = rustix::system::uname();
    let host: String = system.nodename().to_string_lossy().chars().take(HOST_CHARS_MAX).collect();
    let machine_id = Some(read_line("/etc/machine-id")).filter(|id| !id.is_empty()).unwrap_or(host.clone());
    let pid_ns = std::fs::read_link("/proc/self/ns/pid")
        .map(|link| link.to_string_lossy().chars().take(HOST_CHARS_MAX).collect())
        .unwrap_or_default();
    OwnerInfo {
        host,
        machine_id,
        boot: read_line("/proc/sys/kernel/random/boot_id"),
        pid_ns,
        pid: rustix::process::getpid().as_raw_nonzero().get(),
        pid_start: process_start("self").unwrap_or(0),
        ..OwnerInfo::default()
    }
}

#[cfg(test)]
#[path = "owner_tests.rs"]
mod tests;
