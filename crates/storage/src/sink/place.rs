//! Why the destination, or where its journal lies, cannot be used: in the words of the command, with what to
//! do.
//!
//! In: failures that name what haul itself was about to make or open; what stands at the name that was typed.
//! Out: failures that name what the user wrote. The near end puts the host before the path (`copy::summary`),
//! so each begins with the side.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use haul_base::{errno, escape};
use haul_core::entry::Name;
use haul_core::wire::{Failure, FailureKind, SinkOptions};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, PROC_SUPER_MAGIC, fstatfs, openat, readlinkat, statat};
use rustix::io::Errno;

use crate::store::Coming;

/// Links that the kernel follows at most.
const LINKS_MAX: usize = 40;

/// The destination root did not open. `single`: the destination is the name of one file.
pub(crate) fn unopened(failure: Failure, typed: &[u8], root: &Path, single: bool) -> Failure {
    let (typed, root) = (escape::within(typed), shown(root));
    match errno::of(failure.errno) {
        Some(Errno::NOENT) if single => told(
            failure,
            format!(
                "destination {typed}: there is no directory {root}; make it first, or end the destination with a slash: then it is a \
                 directory, and made"
            ),
        ),
        Some(Errno::NOENT) => failure,
        Some(Errno::ACCESS | Errno::PERM) => {
            let text = format!("destination {typed}: no permission: {}", failure.text);
            told(failure, text)
        }
        _ => {
            let text = format!("destination {typed}: {}", failure.text);
            told(failure, text)
        }
    }
}

/// The directory of `--state` did not open.
pub(super) fn no_state(failure: Failure, dir: &Path) -> Failure {
    let dir = shown(dir);
    match errno::of(failure.errno) {
        Some(Errno::NOENT | Errno::NOTDIR) => Failure {
            kind: FailureKind::Usage,
            ..told(
                failure,
                format!(
                    "`state_dir` {dir}: there is no such directory at the destination's host; make it first"
                ),
            )
        },
        _ => {
            let text = format!("`state_dir` {dir}: {}", failure.text);
            told(failure, text)
        }
    }
}

/// What haul keeps of the job could not be made in `root`, or in the directory of `--state`.
pub(crate) fn unwritable(failure: Failure, root: &Path, state: Option<&Path>) -> Failure {
    let place = match state {
        Some(dir) => format!("`state_dir` {}", shown(dir)),
        None => format!("destination {}", shown(root)),
    };
    if !failure.text.starts_with("create ") {
        return failure;
    }
    let why = match errno::of(failure.errno) {
        Some(Errno::ACCESS | Errno::PERM) => "no permission to write there",
        Some(Errno::ROFS) => "its file system is read-only",
        Some(Errno::NOENT | Errno::OPNOTSUPP) => "no files can be made there",
        _ => return failure,
    };
    told(failure, format!("{place}: {why}"))
}

/// What the command names as its destination is no place for a file: a device, FIFO or socket, a link to one,
/// or what lies in `/proc`, as what `/dev/stdout` leads to does. Whoever keeps a journal beside it would
/// write into `/dev`, and the file would take the link's place. `root` as it is shown is the open directory
/// `dir`; `name`: of the only file.
///
/// # Errors
/// It is one of these. A device, FIFO or socket gives way where the user insists.
pub(super) fn refuse_special(
    dir: &OwnedFd,
    root: &Path,
    name: Option<&Name>,
    coming: &Coming<'_>,
) -> Result<(), Failure> {
    if haul_mutant::removed("special-files-stay") {
        return Ok(());
    }
    let refused = |text: String| Err(Failure { kind: FailureKind::Create, errno: 17, text: text.into() });
    let path = name.map_or(root.to_owned(), |name| root.join(OsStr::from_bytes(name.as_bytes())));
    if is_proc(dir) {
        return refused(format!("destination {} is in /proc, which holds no files", shown(&path)));
    }
    let Some(name) = name else { return Ok(()) };
    let SinkOptions { force, no_clobber, .. } = coming.policy;
    let (what, but) = match kind_of(dir, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW) {
        Some(kind) if is_special(kind) && !force && !no_clobber => match coming.in_place {
            true => ("a device, FIFO or socket", "nothing is written into one in place"),
            false => ("a device, FIFO or socket", "`force` replaces it with the file"),
        },
        // Nobody means that by `force`: programs find their output through such a link.
        Some(FileType::Symlink) if leads_to_special(dir, name) => {
            ("a link to a device or into /proc", "name a file, or remove the link first")
        }
        _ => return Ok(()),
    };
    refused(format!("destination {} is {what}, and was left alone; {but}", shown(&path)))
}

/// A link to a device, FIFO or socket, or one that passes `/proc`: what that names is of a process, and no
/// place of the file's own.
fn leads_to_special(dir: &OwnedFd, name: &Name) -> bool {
    if kind_of(dir, name.as_bytes(), AtFlags::empty()).is_some_and(is_special) {
        return true;
    }
    let (mut above, mut link) = (None::<OwnedFd>, name.as_bytes().to_vec());
    for _ in 0..LINKS_MAX {
        let here = above.as_ref().unwrap_or(dir);
        let Ok(target) = readlinkat(here, &link[..], Vec::new()) else { return false };
        let target = Path::new(OsStr::from_bytes(target.as_bytes()));
        let Some(last) = target.file_name() else { return false };
        let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(next) = openat(here, parent.unwrap_or(Path::new(".")), flags, Mode::empty()) else {
            return false;
        };
        if is_proc(&next) {
            return true;
        }
        (above, link) = (Some(next), last.as_bytes().to_vec());
    }
    false
}

fn is_proc(dir: &OwnedFd) -> bool {
    fstatfs(dir).is_ok_and(|fs| fs.f_type == PROC_SUPER_MAGIC)
}

fn kind_of(dir: &OwnedFd, name: &[u8], flags: AtFlags) -> Option<FileType> {
    statat(dir, name, flags).ok().map(|stat| FileType::from_raw_mode(stat.st_mode))
}

fn is_special(kind: FileType) -> bool {
    !matches!(kind, FileType::RegularFile | FileType::Directory | FileType::Symlink)
}

fn shown(path: &Path) -> String {
    escape::within(path.as_os_str().as_bytes())
}

fn told(failure: Failure, text: String) -> Failure {
    Failure { text: text.into(), ..failure }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(errno: Errno, text: &str) -> Failure {
        Failure { kind: FailureKind::Create, errno: errno.raw_os_error(), text: text.into() }
    }

    /// Goal: what cannot be used is named as it was typed, with the side and what to do, and no file of
    /// haul's own is; what says more by itself stays.
    #[test]
    fn places_are_named_as_typed() {
        let (root, own) = (Path::new("b/c"), "create b/c/.haul~x.own.1: Permission denied");
        let text = unopened(failed(Errno::NOENT, "open directory b/c: none"), b"b/c/d", root, true).text;
        assert!(text.starts_with("destination b/c/d: there is no directory b/c; make it first"), "{text}");
        let text = unopened(failed(Errno::ACCESS, "create directory b/c: x"), b"b/c/", root, false).text;
        assert!(text.starts_with("destination b/c/: no permission"), "{text}");
        let state = no_state(failed(Errno::NOENT, "open directory st: none"), Path::new("st"));
        assert!(
            state.kind == FailureKind::Usage && state.text.contains("`state_dir` st: "),
            "{}",
            state.text
        );
        assert_eq!(no_state(failed(Errno::IO, "x"), Path::new("st")).kind, FailureKind::Create);
        let text = |errno, state| unwritable(failed(errno, own), root, state).text.to_string();
        assert_eq!(text(Errno::ACCESS, None), "destination b/c: no permission to write there");
        assert_eq!(text(Errno::ROFS, Some(Path::new("st"))), "`state_dir` st: its file system is read-only");
        assert_eq!(text(Errno::NOSPC, None), own);
        let other = "read b/c/.haul~x.own.1: Permission denied";
        assert_eq!(&*unwritable(failed(Errno::ACCESS, other), root, None).text, other);
    }
}
