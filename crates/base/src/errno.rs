//! What the operating system says of a failure, in words for people.
//!
//! In: an error of a system call, as `rustix` or the standard library has it, or the number that somebody
//! else says it had. Out: its words, without the number behind them: who wants to match on the number has it
//! in a field of its own.

use std::error::Error;
use std::fmt::Display;

use rustix::io::Errno;

/// The error of this number. `None` for what is no number of an error on Linux, zero among it: it may come
/// from a failure that no system call had, or from the other end.
pub fn of(number: i32) -> Option<Errno> {
    (1..4096).contains(&number).then(|| Errno::from_raw_os_error(number))
}

/// The words of `error`: "No such file or directory". What is no error of the system stays as it is.
pub fn text(error: impl Display) -> String {
    let mut text = error.to_string();
    if let Some(end) = text.rfind(" (os error ").filter(|_| text.ends_with(')')) {
        text.truncate(end);
    }
    text
}

/// The sentence of `error` and of each error that caused it: "cannot start ssh: Permission denied". A cause
/// that the sentence before it ends with is not told twice.
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = text(error);
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = self::text(error);
        if !text.ends_with(&words) {
            text = format!("{text}: {words}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    /// Goal: whatever number a peer says, there is an answer, and none where it is no error.
    #[test]
    fn numbers_of_others_are_no_trap() {
        assert_eq!(of(2), Some(Errno::NOENT));
        assert_eq!(of(4095).map(Errno::raw_os_error), Some(4095));
        for none in [0, -1, 4096, 65_536 + 2, i32::MIN, i32::MAX] {
            assert_eq!(of(none), None, "{none}");
        }
    }

    /// Goal: causes follow, once each.
    #[test]
    fn causes_are_told() {
        #[derive(Debug, thiserror::Error)]
        #[error("{what}")]
        struct Outer {
            what: &'static str,
            source: io::Error,
        }
        let cause = || io::Error::from(Errno::ACCESS);
        let told = |what| with_causes(&Outer { what, source: cause() });
        assert_eq!(told("cannot start ssh"), "cannot start ssh: Permission denied");
        assert_eq!(told("connecting: Permission denied"), "connecting: Permission denied");
        assert_eq!(with_causes(&cause()), "Permission denied");
    }

    /// Goal: the same words wherever an error comes from, and no number; other errors are left alone.
    #[test]
    fn errors_are_told_in_words() {
        let words = "No such file or directory";
        let errno = rustix::io::Errno::NOENT;
        assert_eq!(text(errno), words);
        let error = io::Error::from(errno);
        assert_eq!(text(&error), words);
        assert_eq!(text(error), words);
        assert_eq!(text(io::Error::other("it is no file (of ours)")), "it is no file (of ours)");
        assert_eq!(text(io::Error::from(io::ErrorKind::TimedOut)), "timed out");
        // Numbers that nobody gave a meaning have words too.
        assert!(!text(io::Error::from_raw_os_error(4000)).contains("os error"));
    }
}
