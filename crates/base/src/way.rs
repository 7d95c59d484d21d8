//! Who can change what a path leads to: the walk along a path that somebody is to be trusted with.
//!
//! In: the path of a directory. Out: that directory, as it was looked at, or who can put another in its
//! place.
//! Invariants: by whichever links the directory is reached, each name of the way stands where only root and
//! this process's user can change names, or in a directory such as `/tmp`, where nobody renames what is
//! another's; what is looked at is what is opened, for all is done by the descriptors of the directories on
//! the way.
//! Left out: who can change what lies in the directory itself.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// So many links lead to a directory at most, as for the kernel.
const LINKS_MAX: u32 = 40;
/// Nobody renames here what is another's.
const STICKY: u32 = 0o1000;

/// How the way is gone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manner {
    /// What is missing of it is made, for this user alone.
    pub makes: bool,
    /// Who lets a group write into a directory of his own, often one that has nobody else in it, meant that.
    pub own_groups: bool,
}

/// Why a way is not gone to its end.
#[derive(Debug, thiserror::Error)]
pub enum Blocked {
    /// Somebody else can change what the name `at` is.
    #[error(
        "others can change what {} is (uid {uid}, mode {mode:04o} of {})", .at.display(), .above.display()
    )]
    ByOthers { at: PathBuf, above: PathBuf, uid: u32, mode: u32 },
    /// The system says so of this name.
    #[error("{}", .at.display())]
    BySystem { at: PathBuf, source: io::Error },
}

impl Blocked {
    fn system(at: &Path, errno: Errno) -> Blocked {
        Blocked::BySystem { at: at.to_owned(), source: errno.into() }
    }

    /// Something of the way is not there.
    pub fn is_missing(&self) -> bool {
        matches!(self, Blocked::BySystem { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// Opens the directory at `path`, to which nobody else can change the way.
///
/// # Errors
/// Somebody can; or it is not there, is none, or may not be seen.
pub fn open_dir(path: &Path, manner: Manner) -> Result<OwnedFd, Blocked> {
    let ours = [0, rustix::process::geteuid().as_raw()];
    let parts = |path: &Path| path.components().map(|part| part.as_os_str().to_owned()).collect::<Vec<_>>();
    let absolute = std::path::absolute(path);
    let absolute = absolute.map_err(|source| Blocked::BySystem { at: path.to_owned(), source })?;
    // The next one is the last.
    let mut left: Vec<OsString> = parts(&absolute).into_iter().rev().collect();
    let (mut at, mut dir, mut links) = (PathBuf::from("/"), root()?, 0);
    while let Some(part) = left.pop() {
        match part.as_bytes() {
            b"/" => (at, dir) = (PathBuf::from("/"), root()?),
            b"." => {}
            b".." => {
                dir = open(&dir, &part).map_err(|errno| Blocked::system(&at, errno))?;
                at.pop();
            }
            _ => {
                let next = at.join(&part);
                let failed = |errno| Blocked::system(&next, errno);
                let above = rustix::fs::fstat(&dir).map_err(failed)?;
                let stat = || rustix::fs::statat(&dir, &part, AtFlags::SYMLINK_NOFOLLOW);
                let is_held = |stands| is_held((&above, stands), &ours, manner);
                let by_others = || Blocked::ByOthers {
                    at: next.clone(),
                    above: at.clone(),
                    uid: above.st_uid,
                    mode: above.st_mode & 0o7777,
                };
                let stands = match stat() {
                    Err(Errno::NOENT) if manner.makes => {
                        if !is_held(None) {
                            return Err(by_others());
                        }
                        match rustix::fs::mkdirat(&dir, &part, Mode::RWXU) {
                            Ok(()) | Err(Errno::EXIST) => {}
                            Err(errno) => return Err(failed(errno)),
                        }
                        stat().map_err(failed)?
                    }
                    stands => stands.map_err(failed)?,
                };
                if !is_held(Some(&stands)) {
                    return Err(by_others());
                }
                if FileType::from_raw_mode(stands.st_mode) == FileType::Symlink {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(failed(Errno::LOOP));
                    }
                    let to = rustix::fs::readlinkat(&dir, &part, Vec::new()).map_err(failed)?;
                    left.extend(parts(Path::new(OsStr::from_bytes(to.as_bytes()))).into_iter().rev());
                } else {
                    // A link that came meanwhile is refused, and another directory is not this one.
                    let opened = open(&dir, &part).map_err(failed)?;
                    let facts = rustix::fs::fstat(&opened).map_err(failed)?;
                    if (facts.st_dev, facts.st_ino) != (stands.st_dev, stands.st_ino) {
                        return Err(failed(Errno::STALE));
                    }
                    (at, dir) = (next, opened);
                }
            }
        }
    }
    Ok(dir)
}

const DIR_FLAGS: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn root() -> Result<OwnedFd, Blocked> {
    let root = rustix::fs::openat(CWD, "/", DIR_FLAGS, Mode::empty());
    root.map_err(|errno| Blocked::system(Path::new("/"), errno))
}

fn open(dir: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(dir, name, DIR_FLAGS, Mode::empty())
}

/// Nobody but these can put something else in the place of what stands, or is to stand, in the directory
/// `above`.
fn is_held((above, stands): (&Stat, Option<&Stat>), ours: &[u32; 2], manner: Manner) -> bool {
    let others = if manner.own_groups && above.st_uid == ours[1] { 0o002 } else { 0o022 };
    let is_open = above.st_mode & others != 0;
    let is_held = above.st_mode & STICKY != 0 && stands.is_none_or(|facts| ours.contains(&facts.st_uid));
    ours.contains(&above.st_uid) && (!is_open || is_held) || haul_mutant::removed("ways-are-ours")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};

    use super::*;

    const STRICT: Manner = Manner { makes: false, own_groups: false };

    /// Goal: a directory is opened only where nobody else can make its path lead elsewhere, by whichever
    /// links and dots it is reached; a group that a directory of ours was given to counts as others where it
    /// is said to; what is missing is made only on such a way, and only if that is wanted.
    #[test]
    fn ways_that_others_can_change_are_not_gone() {
        let room = tempfile::tempdir().expect("a directory");
        let at = |name: &str| room.path().join(name);
        let set = |name: &str, mode| {
            fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).expect("chmod");
        };
        for name in ["own", "own/end", "open", "open/end"] {
            fs::create_dir(at(name)).expect("make a directory");
            set(name, 0o755);
        }
        symlink(at("open/end"), at("own/far")).expect("a link");
        symlink("../own/end", at("open/near")).expect("a link");
        symlink("round", at("own/round")).expect("a link");
        fs::write(at("own/file"), "").expect("a file");
        let goes = |name: &str, manner| match open_dir(&at(name), manner) {
            Ok(dir) => {
                let (dir, there) = (rustix::fs::fstat(&dir).expect("it is open"), fs::metadata(at(name)));
                assert_eq!(dir.st_ino, there.expect("it is there").ino(), "{name}");
                true
            }
            Err(Blocked::ByOthers { above, .. }) => {
                assert_eq!(above, at("open").canonicalize().expect("it is there"), "{name}");
                false
            }
            Err(other) => panic!("{name}: {other}"),
        };
        let all = ["own/end", "own/far", "open/near", "open/end", "open/../own/end", "own/../open/near"];
        let gone = |manner| all.map(|name| goes(name, manner));
        let group = Manner { own_groups: true, ..STRICT };
        assert_eq!(gone(STRICT), [true; 6]);
        set("open", 0o777);
        assert_eq!(gone(STRICT), [true, false, false, false, true, false]);
        assert_eq!(gone(group), gone(STRICT));
        set("open", 0o775);
        assert_eq!((goes("open/end", STRICT), goes("open/end", group)), (false, true));
        // Nobody takes another's names away there.
        set("open", 0o1777);
        assert_eq!(gone(STRICT), [true; 6]);
        if rustix::process::geteuid().is_root() {
            chown(at("open/end"), Some(1), None).expect("given away");
            assert_eq!((goes("open/end", STRICT), goes("open/near", STRICT)), (false, true));
            set("open", 0o755);
            chown(at("open"), Some(1), None).expect("given away");
            assert!(!goes("open/near", group), "its owner can");
            chown(at("open"), Some(0), None).expect("taken back");
        }

        let errno = |name: &str, manner| match open_dir(&at(name), manner) {
            Err(Blocked::BySystem { source, .. }) => source.raw_os_error(),
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(errno("own/round", STRICT), Some(Errno::LOOP.raw_os_error()));
        assert_eq!(errno("own/file", STRICT), Some(Errno::NOTDIR.raw_os_error()));
        assert!(open_dir(&at("own/new/deep"), STRICT).is_err_and(|error| error.is_missing()));
        let makes = Manner { makes: true, ..STRICT };
        assert!(goes("own/new/deep", makes));
        assert_eq!(fs::metadata(at("own/new/deep")).expect("made").mode() & 0o7777, 0o700);
        set("open", 0o777);
        assert!(!goes("open/new", makes) && !at("open/new").exists());
    }
}
