//! Taking over the temporary of an earlier run of the job.
//!
//! In: a file's name, and the tag under which a run left a part of it. Out: its temporary under this run's
//! tag, open.
//! What must hold: only what that run made is taken over, looked at by its descriptor: a file of ours, under
//! one name, that nobody else may write. What a run had open that was not seen to die is never published, for
//! it may go on writing: of its file a copy is made, in an inode that only this run has ever opened, and what
//! the copy holds is on media before the old one goes.
//! Assumed: an inode that is named after a run was made by it, or by one that was proven dead when that run
//! took it over. Each run keeps to this, so that to know a temporary's tag is enough.
//! Left out: whether its content is right; nothing here makes it believed.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use haul_core::entry::Name;
use haul_core::journal::Former;
use haul_core::transfer::op::SinkFile;
use haul_core::wire::{Failure, FailureKind};
use rustix::fs::{FileType, SeekFrom, Stat};
use rustix::io::{Errno, Result as OsResult, retry_on_intr};

use super::Files;
use crate::sink::calls::write_all_at;
use crate::sink::names::{number_bits, tag_bits, temp_name};
use crate::sink::ours::Ours;
use crate::sink::{fault, lock};

/// Bytes that are copied with one call, and with one read where the kernel does not copy.
const COPY_LEN: usize = 64 << 20;
const READ_LEN: usize = 1 << 20;

/// Temporaries that the journal spoke of and this run took over, or found under their final names, by tag and
/// number.
pub(in crate::sink) type Taken = Arc<Mutex<Vec<(u32, u64)>>>;

/// Which temporaries of earlier runs are taken over.
#[derive(Clone, Debug)]
pub struct Adopt {
    /// How our files look here. `None`: nothing is taken over, for nobody can tell whose a file is.
    pub ours: Option<Ours>,
    /// By what names say of their tags.
    pub former: Former,
    /// What was taken over, or has its name.
    pub(in crate::sink) taken: Taken,
    /// With `--no-clobber`: second names of files that were begun in place, which this run fails over, and
    /// which stay for the next.
    pub(in crate::sink) begun: Option<Taken>,
}

impl Adopt {
    pub fn new(ours: Option<Ours>, tags: &[u32], unproven: &[u32], no_clobber: bool) -> Adopt {
        let bits = |tags: &[u32]| tags.iter().copied().map(tag_bits).collect::<Vec<u32>>();
        Adopt {
            ours,
            former: Former::new(&bits(tags), &bits(unproven)),
            taken: Taken::default(),
            begun: no_clobber.then(Taken::default),
        }
    }

    /// This file is left half new, and the next run has to learn that too.
    pub(super) fn leave_begun(&self, tag: u32, number: u64) {
        let Some(begun) = &self.begun else { return };
        if !haul_mutant::removed("half-written-is-remembered") {
            lock(begun).push((tag_bits(tag), number_bits(number)));
            self.met(tag, number);
        }
    }

    /// Nobody need look any more for this temporary, of which the journal speaks.
    pub(super) fn met(&self, tag: u32, number: u64) {
        lock(&self.taken).push((tag_bits(tag), number_bits(number)));
    }
}

impl Files {
    /// The temporary of the run with `tag`, under our name and open. `None` if it is not there, or is not
    /// what we left.
    pub(super) fn take_over(
        &self,
        file: &SinkFile,
        dir: &Arc<OwnedFd>,
        tag: u32,
    ) -> Result<Option<OwnedFd>, Failure> {
        let taken = self.try_take_over(file, dir, tag)?;
        if taken.is_some() {
            self.adopt.met(tag, file.number);
        }
        Ok(taken)
    }

    fn try_take_over(
        &self,
        file: &SinkFile,
        dir: &Arc<OwnedFd>,
        tag: u32,
    ) -> Result<Option<OwnedFd>, Failure> {
        let Some(ours) = self.adopt.ours else { return Ok(None) };
        let jail = self.tree.jail();
        let (old, new) = (temp_name(&file.name, tag, file.number), self.temp_name(file));
        let fail =
            |what, errno| fault::os(FailureKind::Open, what, &self.tree.path_of(file.parent, &old), errno);
        // First what it is: what a stranger put there may hang when it is opened, and is not ours to touch.
        match jail.stat(dir, &old) {
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(fail("stat", errno)),
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile => return Ok(None),
            Ok(_) => {}
        }
        let fd = match jail.open_file(dir, &old, true) {
            Err(Errno::LOOP | Errno::NOENT | Errno::ACCESS | Errno::PERM | Errno::NXIO) => return Ok(None),
            other => other.map_err(|errno| fail("open", errno))?,
        };
        let stat = rustix::fs::fstat(&fd).map_err(|errno| fail("stat", errno))?;
        if !ours.made(&stat) {
            return Ok(None);
        }
        if !self.adopt.former.is_dead(tag_bits(tag)) {
            return self.copy_over(file, dir, (&old, &new), &fd).map_err(|errno| fail("copy", errno));
        }
        match jail.rename_new(dir, &old, &new) {
            // Gone; or another file's temporary has a name that is taken for this one.
            Err(Errno::NOENT | Errno::EXIST) => return Ok(None),
            other => other.map_err(|errno| fail("take over", errno))?,
        }
        // The name may have been given to another file in between.
        let named = jail.stat(dir, &new).map_err(|errno| fail("stat", errno))?;
        if !is_same(&named, &stat) {
            let _ = jail.unlink(dir, &new);
            return Ok(None);
        }
        Ok(Some(fd))
    }

    /// A copy of what another run has open, under our name, in place of it. Where there is no room for two,
    /// there is none.
    fn copy_over(
        &self,
        file: &SinkFile,
        dir: &Arc<OwnedFd>,
        (old, new): (&Name, &Name),
        from: &OwnedFd,
    ) -> OsResult<Option<OwnedFd>> {
        let jail = self.tree.jail();
        let to = match jail.create_temp(dir, new) {
            // Of an attempt in this run that failed.
            Err(Errno::EXIST) if self.is_stale(dir, new, Some(file.id)) => {
                jail.unlink(dir, new)?;
                jail.create_temp(dir, new)?
            }
            other => other?,
        };
        // Synced, for the journal says of the old one that it is on media, and soon there is only this one.
        let copied =
            copy_all(from, &to, file.size).and_then(|()| retry_on_intr(|| rustix::fs::fdatasync(&to)));
        if let Err(errno) = copied {
            let _ = jail.unlink(dir, new);
            return match errno {
                Errno::NOSPC | Errno::DQUOT => Ok(None),
                errno => Err(errno),
            };
        }
        match jail.unlink(dir, old) {
            Ok(()) | Err(Errno::NOENT) => Ok(Some(to)),
            Err(errno) => Err(errno),
        }
    }
}

fn is_same(a: &Stat, b: &Stat) -> bool {
    (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
}

/// Makes `to`, which is empty, what `from` is up to `size`: by sharing its blocks where the file system can,
/// else extent by extent; holes stay holes.
pub(super) fn copy_all(from: impl AsFd, to: impl AsFd, size: u64) -> OsResult<()> {
    let (from, to) = (from.as_fd(), to.as_fd());
    if retry_on_intr(|| rustix::fs::ioctl_ficlone(to, from)).is_ok() {
        return Ok(());
    }
    let len = (rustix::fs::fstat(from)?.st_size as u64).min(size);
    let mut at = 0;
    while at < len {
        let data = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(data) => data,
            // Nothing but a hole follows.
            Err(Errno::NXIO) => break,
            // It does not tell.
            Err(_) => at,
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(data)).map_or(len, |end| end.clamp(data, len));
        copy_range(from, to, data, end)?;
        at = end.max(data + 1);
    }
    retry_on_intr(|| rustix::fs::ftruncate(to, len))
}

fn copy_range(from: impl AsFd, to: impl AsFd, mut at: u64, end: u64) -> OsResult<()> {
    while at < end {
        let (mut read_at, mut write_at) = (at, at);
        let want = usize::try_from(end - at).unwrap_or(usize::MAX).min(COPY_LEN);
        let copied = retry_on_intr(|| {
            rustix::fs::copy_file_range(&from, Some(&mut read_at), &to, Some(&mut write_at), want)
        });
        match copied {
            // It became shorter.
            Ok(0) => return Ok(()),
            Ok(copied) => at += copied as u64,
            Err(Errno::NOSPC | Errno::DQUOT) => return Err(Errno::NOSPC),
            Err(_) => return copy_by_hand(from, to, at, end),
        }
    }
    Ok(())
}

fn copy_by_hand(from: impl AsFd, to: impl AsFd, mut at: u64, end: u64) -> OsResult<()> {
    let mut piece = vec![0; READ_LEN];
    while at < end {
        let want = usize::try_from(end - at).unwrap_or(usize::MAX).min(READ_LEN);
        match retry_on_intr(|| rustix::io::pread(&from, &mut piece[..want], at))? {
            0 => return Ok(()),
            read => {
                write_all_at(&to, &piece[..read], at)?;
                at += read as u64;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{FileExt, MetadataExt};

    /// Goal: a copy has the content and the holes of its original, by the kernel and by hand.
    /// Method: a file with data at its beginning, in the middle and near its end, a hole behind.
    #[test]
    fn copies_are_whole_and_keep_holes() {
        let dir = tempfile::tempdir().expect("tempdir");
        let from = fs::File::create_new(dir.path().join("from")).expect("create");
        for at in [0, 3 << 20, (8 << 20) - 5000] {
            from.write_all_at(&[at as u8 | 1; 4096], at).expect("write");
        }
        from.set_len(8 << 20).expect("truncate");
        let from = fs::File::open(dir.path().join("from")).expect("open");
        for name in ["kernel", "hand"] {
            let to = fs::File::options().read(true).write(true).create_new(true).open(dir.path().join(name));
            let to = to.expect("create");
            match name {
                "kernel" => copy_all(&from, &to, 8 << 20).expect("copied"),
                _ => copy_by_hand(&from, &to, 0, 8 << 20).expect("copied"),
            }
            let read = |path: &str| fs::read(dir.path().join(path)).expect("read");
            assert!(read("from") == read(name), "{name}");
        }
        assert!(fs::metadata(dir.path().join("kernel")).expect("stat").blocks() * 512 < 4 << 20);
    }
}
