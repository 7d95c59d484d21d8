//! Failures in words: one line of operation, path and cause, whatever bytes the path holds.

use haul_base::{errno, escape};
use haul_core::wire::{Failure, FailureKind, TEXT_LEN_MAX};
use rustix::io::Errno;

/// Most bytes of a printed path in a failure's text; a longer one loses its beginning. Leaves room for
/// operation and cause within [`TEXT_LEN_MAX`].
const PATH_TEXT_MAX: usize = 640;
/// Most bytes of operation and cause together, beyond which the cause is cut.
const CAUSE_TEXT_MAX: usize = 300;
const _: () = assert!(PATH_TEXT_MAX + CAUSE_TEXT_MAX + 8 <= TEXT_LEN_MAX);

/// A failure that the operating system reported of an entry that was found in its directory: "open data/x:
/// Permission denied".
pub(crate) fn os_failure(kind: FailureKind, op: &str, path: &[u8], errno: Errno) -> Failure {
    if errno == Errno::NOENT {
        let cause = "vanished (it was there when its directory was read)";
        return make(FailureKind::Vanished, errno.raw_os_error(), op, path, cause);
    }
    named_failure(kind, op, path, errno)
}

/// The same of a source that the command names: one that is not there is no entry that vanished.
pub(crate) fn named_failure(kind: FailureKind, op: &str, path: &[u8], errno: Errno) -> Failure {
    make(kind, errno.raw_os_error(), op, path, &errno::text(errno))
}

/// A failure of what the command names, or of what lies directly in a directory whose contents it names:
/// "source u/x: open: Permission denied". The near end puts the host before the path.
pub(crate) fn of_source(mut failure: Failure, op: &str, path: &[u8]) -> Failure {
    let named = make(failure.kind, failure.errno, op, path, "");
    let (cut, told) = (named.text.len().saturating_sub(2), named.text.len());
    let path = named.text.get(op.len() + 1..cut).unwrap_or_default();
    let cause = failure.text.get(told..).unwrap_or_default();
    // What is no file was not copied: that says itself.
    failure.text = match op {
        "copy" => format!("source {path}: {cause}").into(),
        op => format!("source {path}: {op}: {cause}").into(),
    };
    failure
}

/// A failure that we found ourselves: "read data/x: the file is shorter than it was".
pub(crate) fn own_failure(kind: FailureKind, op: &str, path: &[u8], cause: &str) -> Failure {
    make(kind, 0, op, path, cause)
}

fn make(kind: FailureKind, errno: i32, op: &str, path: &[u8], cause: &str) -> Failure {
    let path = escape::within(path);
    let path = if path.len() <= PATH_TEXT_MAX {
        path
    } else {
        let mut start = path.len() - PATH_TEXT_MAX + 3;
        while !path.is_char_boundary(start) {
            start += 1;
        }
        format!("...{}", &path[start..])
    };
    let mut end = cause.len().min(CAUSE_TEXT_MAX.saturating_sub(op.len()));
    while !cause.is_char_boundary(end) {
        end -= 1;
    }
    Failure { kind, errno, text: format!("{op} {path}: {}", &cause[..end]).into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what the command names fails in its words, with the side at the front, so that the near end can
    /// put the host there; within the wire's limit too.
    #[test]
    fn named_sources_are_told_as_typed() {
        let told =
            |path: &[u8]| of_source(os_failure(FailureKind::Open, "open", path, Errno::ACCESS), "open", path);
        let failure = told(b"../u/a: b\n");
        assert_eq!(&*failure.text, "source ../u/a: b\\n: open: Permission denied");
        assert_eq!((failure.kind, failure.errno), (FailureKind::Open, 13));
        let long = told("\u{20ac}".repeat(5000).as_bytes()).text;
        assert!(long.len() <= TEXT_LEN_MAX && long.ends_with("\u{20ac}: open: Permission denied"), "{long}");
    }

    /// Goal: a failure is one line within the wire's limit, whatever the path.
    /// Method: newline, escape, non-UTF-8, and paths around and beyond the limit, also of wide characters.
    #[test]
    fn failure_is_one_short_line() {
        let odd = os_failure(FailureKind::Open, "open", b"a\nb\x1b[2J\xff", Errno::ACCESS);
        assert_eq!(&*odd.text, "open a\\nb\\u{1b}[2J\u{fffd}: Permission denied");
        assert_eq!(odd.errno, Errno::ACCESS.raw_os_error());
        for len in [639, 640, 641, 5000] {
            for unit in ["a", "\u{20ac}", "\n", "\u{1}"] {
                let failure =
                    own_failure(FailureKind::Read, "read", unit.repeat(len).as_bytes(), &"x".repeat(900));
                assert!(failure.text.len() <= TEXT_LEN_MAX);
                assert!(!failure.text.chars().any(char::is_control));
            }
        }
    }
}
