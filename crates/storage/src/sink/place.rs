//! Why the destination, or where its journal lies, cannot be used: in the words of the command, with what to do.
//!
//! In: failures that name what haul itself was about to make or open. Out: failures that name what the user wrote. The near end
//! puts the host before the path (`copy::summary`), so each begins with the side.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use haul_core::wire::{Failure, Stage};
use rustix::io::Errno;

use crate::source::failure::printable;

/// The destination root did not open. `single`: the destination is the name of one file.
pub(crate) fn unopened(failure: Failure, typed: &[u8], root: &Path, single: bool) -> Failure {
    let (typed, root) = (printable(typed), shown(root));
    match Errno::from_raw_os_error(failure.errno) {
        Errno::NOENT if single => told(
            failure,
            format!(
                "destination {typed}: there is no directory {root}; make it first, or end the destination with a slash: then it is a \
                 directory, and made"
            ),
        ),
        Errno::NOENT => failure,
        Errno::ACCESS | Errno::PERM => {
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
    match Errno::from_raw_os_error(failure.errno) {
        Errno::NOENT | Errno::NOTDIR => Failure {
            stage: Stage::Usage,
            ..told(
                failure,
                format!("--state {dir}: there is no such directory at the destination's host; make it first"),
            )
        },
        _ => {
            let text = format!("--state {dir}: {}", failure.text);
            told(failure, text)
        }
    }
}

/// What haul keeps of the job could not be made in `root`, or in the directory of `--state`.
pub(crate) fn unwritable(failure: Failure, root: &Path, state: Option<&Path>) -> Failure {
    let place = match state {
        Some(dir) => format!("--state {}", shown(dir)),
        None => format!("destination {}", shown(root)),
    };
    if !failure.text.starts_with("create ") {
        return failure;
    }
    let why = match Errno::from_raw_os_error(failure.errno) {
        Errno::ACCESS | Errno::PERM => "no permission to write there",
        Errno::ROFS => "its file system is read-only",
        Errno::NOENT | Errno::OPNOTSUPP => "no files can be made there",
        _ => return failure,
    };
    told(failure, format!("{place}: {why}"))
}

fn shown(path: &Path) -> String {
    printable(path.as_os_str().as_bytes())
}

fn told(failure: Failure, text: String) -> Failure {
    Failure { text: text.into(), ..failure }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(errno: Errno, text: &str) -> Failure {
        Failure { stage: Stage::Create, errno: errno.raw_os_error(), text: text.into() }
    }

    /// Goal: what cannot be used is named as it was typed, with the side and what to do, and no file of haul's own is; what says
    /// more by itself stays.
    #[test]
    fn places_are_named_as_typed() {
        let (root, own) = (Path::new("b/c"), "create b/c/.haul~x.own.1: Permission denied");
        let text = unopened(failed(Errno::NOENT, "open directory b/c: none"), b"b/c/d", root, true).text;
        assert!(text.starts_with("destination b/c/d: there is no directory b/c; make it first"), "{text}");
        let text = unopened(failed(Errno::ACCESS, "create directory b/c: x"), b"b/c/", root, false).text;
        assert!(text.starts_with("destination b/c/: no permission"), "{text}");
        let state = no_state(failed(Errno::NOENT, "open directory st: none"), Path::new("st"));
        assert!(state.stage == Stage::Usage && state.text.contains("--state st: "), "{}", state.text);
        assert_eq!(no_state(failed(Errno::IO, "x"), Path::new("st")).stage, Stage::Create);
        let text = |errno, state| unwritable(failed(errno, own), root, state).text.to_string();
        assert_eq!(text(Errno::ACCESS, None), "destination b/c: no permission to write there");
        assert_eq!(text(Errno::ROFS, Some(Path::new("st"))), "--state st: its file system is read-only");
        assert_eq!(text(Errno::NOSPC, None), own);
        let other = "read b/c/.haul~x.own.1: Permission denied";
        assert_eq!(&*unwritable(failed(Errno::ACCESS, other), root, None).text, other);
    }
}
