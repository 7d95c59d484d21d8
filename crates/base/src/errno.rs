//! What the operating system says of a failure, in words for people.
//!
//! In: an error of a system call, as `rustix` or the standard library has it. Out: its words, without the
//! number behind them: who wants to match on the number has it in a field of its own.

use std::fmt::Display;

/// The words of `error`: "No such file or directory". What is no error of the system stays as it is.
pub fn text(error: impl Display) -> String {
    let mut text = error.to_string();
    if let Some(end) = text.rfind(" (os error ").filter(|_| text.ends_with(')')) {
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

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
