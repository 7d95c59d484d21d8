//! The journal's file: `.haul~KEY` in the destination directory, or in a state directory.
//!
//! In: records as bytes, already encoded. Out: the same bytes after a crash. What they mean is `core`'s.
//!
//! What must hold: only the owner of the job writes; a new owner begins with [`Journal::replace`], after
//! which a late former owner writes to a file that has no name any more; after a failed sync nothing more is
//! appended, for what lies before it can no longer be believed to be on media. Space is allocated ahead of
//! the end, for when the data have filled the file system, what they are worth must still be written down.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use haul_core::wire::{Failure, FailureKind};
use rustix::fs::{FallocateFlags, FileType, Stat};
use rustix::io::{Errno, retry_on_intr};

use super::calls::{sync_dir, write_all_at};
use super::fault;
use super::owner::{AcquireError, JobDir, Owner};

/// Bytes that are read at a time.
const READ_LEN: usize = 64 * 1024;
/// Space ahead of the journal's end, bytes: at least, and after it was last made. An epoch of a thousand
/// files or of 256 MiB in objects of 64 KiB needs less than the first.
const RESERVE_MIN: u64 = 256 * 1024;
const RESERVE_LEN: u64 = 2 * RESERVE_MIN;

/// Writes the journal of a job that this process owns.
pub struct Journal {
    owner: Arc<Owner>,
    file: Option<OwnedFd>,
    len: u64,
    /// Up to here space is allocated.
    reserved: u64,
    broken: Option<Failure>,
}

impl JobDir {
    /// Hands the journal's bytes to `feed`, piece by piece. False if there is none. Needs no ownership: the
    /// epoch of the last run is in it, and the next owner must exceed that.
    ///
    /// # Errors
    /// It cannot be read, is another user's, or something else than a file stands there (a symbolic link is
    /// not followed).
    pub fn load(&self, feed: &mut dyn FnMut(&[u8])) -> Result<bool, Failure> {
        let all = &mut |bytes: &[u8]| {
            feed(bytes);
            true
        };
        self.read(true, all).map(|stat| stat.is_some())
    }

    /// As [`JobDir::load`], whoever made it: for `haul clean`, which believes it in what is its owner's. Says
    /// what file was read. `feed` says whether it wants more: a file that anybody can make may be of any
    /// length.
    ///
    /// # Errors
    /// It cannot be read, or is no file.
    pub fn load_any(&self, feed: &mut dyn FnMut(&[u8]) -> bool) -> Result<Option<Stat>, Failure> {
        self.read(false, feed)
    }

    fn read(&self, ours: bool, feed: &mut dyn FnMut(&[u8]) -> bool) -> Result<Option<Stat>, Failure> {
        let name = self.key().journal();
        let path = self.path_of(&name);
        let fd = match self.jail().open_file(self.fd(), &name, false) {
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::ACCESS | Errno::PERM) if ours => {
                let stat = self.jail().stat(self.fd(), &name);
                let foreign = stat.ok().and_then(|stat| self.check_ours(&name, &stat).err());
                let denied = || fault::os(FailureKind::Open, "open the journal", &path, Errno::ACCESS);
                return Err(foreign.map_or_else(denied, |foreign| {
                    fault::failure(FailureKind::Open, 0, foreign.to_string())
                }));
            }
            other => other.map_err(|errno| fault::os(FailureKind::Open, "open the journal", &path, errno))?,
        };
        let fail = |errno| fault::os(FailureKind::Read, "read the journal", &path, errno);
        let stat = rustix::fs::fstat(&fd).map_err(fail)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(fault::failure(
                FailureKind::Open,
                0,
                format!("the journal {path} is not a regular file"),
            ));
        }
        if ours && let Err(foreign) = self.check_ours(&name, &stat) {
            return Err(match foreign {
                AcquireError::Failed(failure) => failure,
                other => fault::failure(FailureKind::Open, 0, other.to_string()),
            });
        }
        let mut piece = vec![0; READ_LEN];
        loop {
            match retry_on_intr(|| rustix::io::read(&fd, &mut piece[..])).map_err(fail)? {
                0 => return Ok(Some(stat)),
                len if feed(&piece[..len]) => {}
                _ => return Ok(Some(stat)),
            }
        }
    }
}

impl Journal {
    /// The journal of the owned job. Nothing is touched before [`Journal::replace`].
    pub fn new(owner: Arc<Owner>) -> Journal {
        Journal { owner, file: None, len: 0, reserved: 0, broken: None }
    }

    /// Begins the journal with `bytes` (a head, and what is still worth knowing of the old one): a new file,
    /// synced, takes the old one's name.
    pub fn replace(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let place = self.owner.place();
        let (dir, jail) = (place.fd(), place.jail());
        let name = place.key().journal();
        let new = place.key().journal_new(self.owner.epoch());
        let path = place.path_of(&name);
        let fail = |what| {
            let path = &path;
            move |errno| fault::os_at(FailureKind::Write, what, path, errno, dir)
        };
        // Those of killed runs, and what an earlier attempt of ours left.
        place.remove_drafts(self.owner.epoch());
        let fd = jail.create_temp(dir, &new).map_err(fail("create the journal"))?;
        let result = write_all_at(&fd, bytes, 0)
            .and_then(|()| retry_on_intr(|| rustix::fs::fdatasync(&fd)))
            .map_err(fail("write the journal"))
            .and_then(|()| self.still_ours())
            .and_then(|()| jail.rename(dir, &new, &name, false).map_err(fail("publish the journal")))
            .and_then(|()| sync_dir(dir).map_err(fail("sync the directory of the journal")));
        if let Err(failure) = result {
            let _ = jail.unlink(dir, &new);
            return Err(failure);
        }
        self.file = Some(fd);
        self.len = bytes.len() as u64;
        self.reserved = 0;
        self.broken = None;
        self.reserve();
        Ok(())
    }

    fn still_ours(&self) -> Result<(), Failure> {
        if haul_mutant::removed("journals-are-the-owners") { Ok(()) } else { self.owner.still_owner() }
    }

    /// For people.
    pub fn path(&self) -> String {
        let place = self.owner.place();
        place.path_of(&place.key().journal())
    }

    /// Appends whole records; with `durable` they are on media when this returns.
    ///
    /// # Errors
    /// The journal keeps what it had; after a failed sync every later call fails too.
    pub fn append(&mut self, bytes: &[u8], durable: bool) -> Result<(), Failure> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let place = self.owner.place();
        let path = || place.path_of(&place.key().journal());
        let Some(fd) = &self.file else {
            return Err(fault::failure(
                FailureKind::Write,
                0,
                format!("the journal {} was not begun", path()),
            ));
        };
        if let Err(errno) = write_all_at(fd, bytes, self.len) {
            let failure = fault::os_at(FailureKind::Write, "append to the journal", &path(), errno, fd);
            // Records after a torn one would never be read again.
            self.reserved = 0;
            if rustix::fs::ftruncate(fd, self.len).is_err() {
                self.broken = Some(failure.clone());
            }
            return Err(failure);
        }
        self.len += bytes.len() as u64;
        if durable && let Err(errno) = retry_on_intr(|| rustix::fs::fdatasync(fd)) {
            let failure = fault::os_at(FailureKind::Sync, "sync the journal", &path(), errno, fd);
            self.broken = Some(failure.clone());
            return Err(failure);
        }
        self.reserve();
        Ok(())
    }

    /// Allocates space ahead, without changing the journal's length. A file system that cannot, or is full
    /// already, is no error: then the next append may fail.
    fn reserve(&mut self) {
        if self.reserved >= self.len + RESERVE_MIN {
            return;
        }
        if let Some(fd) = &self.file
            && rustix::fs::fallocate(fd, FallocateFlags::KEEP_SIZE, self.len, RESERVE_LEN).is_ok()
        {
            self.reserved = self.len + RESERVE_LEN;
        }
    }

    /// The job is complete: removes the journal, gives the job up, and syncs their directory.
    pub fn remove(&mut self) -> Result<(), Failure> {
        self.still_ours()?;
        let place = self.owner.place();
        let dir = place.fd();
        let name = place.key().journal();
        // Of a former owner that was stopped while it drafted, and then killed.
        place.remove_drafts(self.owner.epoch());
        match place.jail().unlink(dir, &name) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => {
                let path = place.path_of(&name);
                return Err(fault::os(FailureKind::Write, "remove the journal", &path, errno));
            }
        }
        self.file = None;
        self.owner.release();
        sync_dir(dir).map_err(|errno| {
            fault::os(FailureKind::Sync, "sync the directory of the journal", &place.path_of(&name), errno)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::names::JobKey;
    use crate::sink::owner::Patience;
    use std::fs;
    use std::path::Path;

    fn place(dir: &Path) -> JobDir {
        JobDir::open(dir, JobKey::new(&[3; 16])).expect("a place")
    }

    fn owned(dir: &Path) -> Arc<Owner> {
        Arc::new(place(dir).acquire(0, "test", &Patience::default()).expect("ours"))
    }

    fn loaded(dir: &Path) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        place(dir).load(&mut |piece| bytes.extend_from_slice(piece)).expect("load").then_some(bytes)
    }

    /// Goal: what was replaced and appended is loaded, in order; a replacement drops what was there.
    /// Method: pieces larger and smaller than what is read at a time.
    #[test]
    fn journal_keeps_what_was_appended() {
        let dir = tempfile::tempdir().expect("tempdir");
        assert_eq!(loaded(dir.path()), None);
        let mut journal = Journal::new(owned(dir.path()));
        assert!(journal.append(b"early", true).is_err());
        journal.replace(b"head").expect("replace");
        let big = vec![7; 3 * READ_LEN + 1];
        journal.append(&big, true).expect("append");
        journal.append(b"tail", false).expect("append");
        assert_eq!(loaded(dir.path()), Some([&b"head"[..], &big, b"tail"].concat()));
        journal.replace(b"second").expect("replace");
        journal.append(b"!", true).expect("append");
        assert_eq!(loaded(dir.path()), Some(b"second!".to_vec()));
        journal.remove().expect("remove");
        assert_eq!(fs::read_dir(dir.path()).expect("ls").count(), 0);
    }

    /// Goal: space is allocated ahead of the journal's end, and its length is what was written.
    /// Method: the blocks and the length of the file after each of many appends, where the file system can.
    #[test]
    fn space_is_kept_ahead() {
        use std::os::unix::fs::MetadataExt as _;
        let dir = tempfile::tempdir().expect("tempdir");
        let probe = fs::File::create(dir.path().join("probe")).expect("create");
        if rustix::fs::fallocate(&probe, FallocateFlags::KEEP_SIZE, 0, 4096).is_err() {
            return;
        }
        let mut journal = Journal::new(owned(dir.path()));
        journal.replace(b"head").expect("replace");
        let path = dir.path().join(format!(".haul~{}", JobKey::new(&[3; 16]).as_str()));
        for count in 0..20 {
            let stat = fs::metadata(&path).expect("stat");
            assert_eq!(stat.len(), 4 + count * 50_000);
            assert!(stat.blocks() * 512 >= stat.len() + RESERVE_MIN, "{} blocks", stat.blocks());
            journal.append(&[7; 50_000], false).expect("append");
        }
    }

    /// Goal: drafts that killed runs left are gone when a new run begins its journal, those that came later
    /// when it ends; drafts of a later owner and of other jobs stay.
    /// Method: drafts planted before both; the names that are left.
    #[test]
    fn drafts_of_killed_runs_are_removed() {
        let dir = tempfile::tempdir().expect("tempdir");
        let plant = |key: &JobKey, epoch| {
            let name = key.journal_new(epoch);
            fs::write(dir.path().join(std::str::from_utf8(name.as_bytes()).expect("ASCII")), "old")
                .expect("plant");
        };
        let drafts = || {
            let names = fs::read_dir(dir.path()).expect("ls").map(|e| e.expect("entry").file_name());
            let mut names: Vec<_> = names.map(|n| n.into_string().expect("ASCII")).collect();
            names.retain(|name| name.contains(".new."));
            names.len()
        };
        let owner = Arc::new(place(dir.path()).acquire(4, "test", &Patience::default()).expect("ours"));
        let key = owner.place().key().clone();
        for epoch in [1, 4, 5] {
            plant(&key, epoch);
        }
        plant(&key, 6);
        plant(&JobKey::new(&[4; 16]), 1);
        let mut journal = Journal::new(owner);
        journal.replace(b"head").expect("replace");
        assert_eq!(drafts(), 2);
        plant(&key, 3);
        journal.remove().expect("remove");
        assert_eq!(drafts(), 2);
    }

    /// Goal: a former owner can neither spoil nor remove the journal of the new one.
    /// Method: a second owner file with a higher epoch, as a takeover leaves it; then all three operations.
    #[test]
    fn former_owner_cannot_touch_the_journal() {
        let dir = tempfile::tempdir().expect("tempdir");
        let owner = owned(dir.path());
        let mut old = Journal::new(owner.clone());
        old.replace(b"old").expect("replace");
        let key = owner.place().key().clone();
        fs::write(dir.path().join(format!(".haul~{}.own.2", key.as_str())), "").expect("takeover");
        fs::write(dir.path().join("n"), "new").expect("write");
        fs::rename(dir.path().join("n"), dir.path().join(format!(".haul~{}", key.as_str()))).expect("rename");
        // Goes to the file without a name.
        old.append(b"late", true).expect("append");
        assert!(old.replace(b"late").is_err());
        assert!(old.remove().is_err());
        assert_eq!(loaded(dir.path()), Some(b"new".to_vec()));
    }

    /// Goal: a link planted at the journal's name is neither read nor written through.
    /// Method: link to a file outside.
    #[test]
    fn journal_refuses_links() {
        let dir = tempfile::tempdir().expect("tempdir");
        let root = dir.path().join("root");
        fs::create_dir(&root).expect("mkdir");
        fs::write(dir.path().join("victim"), "precious").expect("write");
        let key = JobKey::new(&[3; 16]);
        std::os::unix::fs::symlink("../victim", root.join(format!(".haul~{}", key.as_str()))).expect("link");
        assert!(place(&root).load(&mut |_| panic!("read through a link")).is_err());
        let mut journal = Journal::new(owned(&root));
        journal.replace(b"head").expect("replaces the link itself");
        assert_eq!(fs::read(dir.path().join("victim")).expect("read"), b"precious");
        assert_eq!(loaded(&root), Some(b"head".to_vec()));
    }
}
