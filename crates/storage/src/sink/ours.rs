//! Which files are ours: those that belong to whoever owns a file that we just made beside them.
//!
//! In: a directory. Out: the owner that files get which we make there, whatever a server makes of us (root is
//! nobody where it is squashed), and whether owners and modes mean anything there.
//! What must hold: a file is taken over only if it is a regular one of that owner, under one name, and nobody
//! else may write it.
//! Assumed: the kernel, or the server, keeps others from opening what their mode forbids them; whoever is the
//! same user to it may do anything.
//! Left out: ACLs. They give others no more than the mode's group bits say, and those are looked at.

use std::os::fd::AsFd;

use haul_core::entry::Name;
use rustix::fs::{FileType, Mode, Stat, fchmod, fstat};
use rustix::io::{Errno, Result as OsResult};

use crate::jail::Jail;

/// Times that the file is made, where others make it too.
const ATTEMPTS_MAX: u32 = 16;
/// What a temporary is made with, and what it is changed to, to see whether modes are kept.
const MADE: u32 = 0o600;
const CHANGED: u32 = 0o640;
const OTHERS_WRITE: u32 = 0o022;

/// How files that we make in a directory look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ours {
    pub uid: u32,
    /// Owners or modes are not what they were made with: they say nothing of whose a file is (vfat, CIFS, NFS
    /// with `all_squash`).
    pub faked: bool,
}

impl Ours {
    /// Makes a file of this name, looks at it by its descriptor, and removes it. A file of that name is
    /// another run's, which does the same, or was left when one was killed at it.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn learn(jail: Jail, dir: impl AsFd, name: &Name) -> OsResult<Ours> {
        let dir = dir.as_fd();
        for _ in 0..ATTEMPTS_MAX {
            let file = match jail.create_temp(dir, name) {
                Err(Errno::EXIST) => match jail.unlink(dir, name) {
                    Ok(()) | Err(Errno::NOENT) => continue,
                    Err(errno) => return Err(errno),
                },
                other => other?,
            };
            // Whoever makes the same file now may remove ours; what it is we see by its descriptor.
            let _ = jail.unlink(dir, name);
            return Ours::of(&file);
        }
        Err(Errno::EXIST)
    }

    /// The same in a directory of the user's, where no name belongs to haul: nothing that stands there is
    /// touched.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn learn_beside(jail: Jail, dir: impl AsFd) -> OsResult<Ours> {
        let dir = dir.as_fd();
        for _ in 0..ATTEMPTS_MAX {
            let random = std::hash::BuildHasher::build_hasher(&std::hash::RandomState::new());
            let name = format!(".haul~whose-{:016x}", std::hash::Hasher::finish(&random));
            let name = Name::new(name.as_bytes()).expect("a legal name");
            match jail.create_temp(dir, &name) {
                Err(Errno::EXIST) => continue,
                Err(errno) => return Err(errno),
                Ok(file) => {
                    let _ = jail.unlink(dir, &name);
                    return Ours::of(&file);
                }
            }
        }
        Err(Errno::EXIST)
    }

    /// Looks at a file that was just made, whose mode is another for a moment.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub(super) fn of(file: impl AsFd) -> OsResult<Ours> {
        let file = file.as_fd();
        let made = fstat(file)?;
        // A file system without modes refuses this, or forgets it.
        let _ = fchmod(file, Mode::from_raw_mode(CHANGED));
        let changed = fstat(file).map_or(0, |stat| stat.st_mode & 0o7777);
        let _ = fchmod(file, Mode::from_raw_mode(MADE));
        let me = rustix::process::geteuid();
        let another = made.st_uid != me.as_raw() && !me.is_root();
        let faked = made.st_mode & 0o7777 != MADE || changed != CHANGED || another;
        Ok(Ours { uid: made.st_uid, faked })
    }

    /// Whether this is a file that we made, and that nobody else can have open for writing.
    pub fn made(&self, stat: &Stat) -> bool {
        if haul_mutant::removed("foreign-files-are-not-adopted") {
            return true;
        }
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && stat.st_nlink == 1
            && stat.st_uid == self.uid
            // Where modes are faked they are the same for all files, the destination's as well.
            && (self.faked || stat.st_mode & OTHERS_WRITE == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: to learn whose files are costs a user's file nothing, and leaves none.
    #[test]
    fn learning_removes_nothing() {
        let dir = tempfile::tempdir().expect("tempdir");
        fs::write(dir.path().join(".haul~whose"), "mine").expect("write");
        let fd = Jail::open_root(dir.path()).expect("root");
        let ours = Ours::learn_beside(Jail::probe(&fd), &fd).expect("learnt");
        assert_eq!(ours.uid, rustix::process::geteuid().as_raw());
        assert_eq!(fs::read(dir.path().join(".haul~whose")).expect("read"), b"mine");
        assert_eq!(fs::read_dir(dir.path()).expect("list").count(), 1);
    }
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    /// Goal: what we make is ours; what others may write, what has two names and what is no file is not, nor
    /// what another owns.
    /// Method: one file, changed in each way and back.
    #[test]
    fn only_what_we_made_is_ours() {
        let dir = tempfile::tempdir().expect("tempdir");
        let fd = fs::File::open(dir.path()).expect("open");
        let name = Name::new(b".haul~probe").expect("legal");
        fs::write(dir.path().join(".haul~probe"), "left by a killed run").expect("write");
        let ours = Ours::learn(Jail::probe(&fd), &fd, &name).expect("learnt");
        assert_eq!(ours, Ours { uid: rustix::process::geteuid().as_raw(), faked: false });
        assert_eq!(fs::read_dir(dir.path()).expect("ls").count(), 0);
        let path = dir.path().join("f");
        fs::write(&path, "x").expect("write");
        let chmod = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
        let is_ours = |ours: Ours| ours.made(&fstat(fs::File::open(&path).expect("open")).expect("stat"));
        for (mode, good) in [(0o600, true), (0o644, true), (0o660, false), (0o602, false)] {
            chmod(mode);
            assert_eq!(is_ours(ours), good, "{mode:o}");
        }
        chmod(0o600);
        assert!(!is_ours(Ours { uid: ours.uid + 1, ..ours }), "another's");
        fs::hard_link(&path, dir.path().join("second")).expect("link");
        assert!(!is_ours(ours), "two names");
        assert!(!ours.made(&fstat(&fd).expect("stat")), "a directory");
    }
}
