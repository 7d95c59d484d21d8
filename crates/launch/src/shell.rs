//! Words: a command line that the user typed, and lines that somebody else wrote.
//!
//! Invariant: what comes out of [`Lines`] can be printed on any terminal.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use haul_base::escape;

use super::{BootstrapError, BootstrapKind};

/// Longest line of ssh's stderr that is kept whole, bytes.
const LINE_LEN_MAX: usize = 1024;
/// Most lines of ssh's stderr that are kept.
const LINES_MAX: usize = 64;
/// Most of a far shell's chatter that is quoted in an error, bytes.
const QUOTE_LEN_MAX: usize = 200;

/// Receives lines for the user.
pub(super) type Notes<'a> = &'a mut dyn FnMut(String);

/// Splits a command line as a shell would: blanks separate; single quotes, double quotes and backslashes
/// protect. Nothing is expanded and no shell runs.
///
/// # Errors
/// If a quote is not closed or nothing is left.
pub fn split_command(text: &str) -> Result<Vec<String>, BootstrapError> {
    let unclosed = |what: &str| {
        BootstrapError::new(
            BootstrapKind::Usage,
            format!("the ssh command '{}' has an open {what}", escape::line(text.as_bytes())),
        )
    };
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            ' ' | '\t' | '\n' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next().ok_or_else(|| unclosed("single quote"))? {
                        '\'' => break,
                        c => word.push(c),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next().ok_or_else(|| unclosed("double quote"))? {
                        '"' => break,
                        '\\' => match chars.next().ok_or_else(|| unclosed("double quote"))? {
                            c @ ('"' | '\\' | '$' | '`') => word.push(c),
                            c => word.extend(['\\', c]),
                        },
                        c => word.push(c),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(chars.next().ok_or_else(|| unclosed("backslash"))?),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    if words.is_empty() {
        return Err(BootstrapError::new(BootstrapKind::Usage, "the ssh command is empty"));
    }
    Ok(words)
}

/// The beginning of `bytes` in quotation marks, for an error.
pub(super) fn quote(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(QUOTE_LEN_MAX)];
    let dots = if bytes.len() > shown.len() { "..." } else { "" };
    format!("\"{}{dots}\"", escape::line(shown))
}

/// What the `sh` stage says on stderr when haul has ended; what follows is its exit code.
const ENDED: &[u8] = b"HAUL-STAGE0 1 ended";

/// Cuts a byte stream into escaped lines and keeps the last of them.
#[derive(Default)]
pub(super) struct Lines {
    partial: Vec<u8>,
    lines: VecDeque<String>,
    /// The far end's shell has said that haul ended there. That line is for nobody else.
    pub ended: Arc<AtomicBool>,
}

impl Lines {
    /// Each line goes to `notes` as it ends.
    pub(super) fn push(&mut self, bytes: &[u8], notes: Notes<'_>) {
        for &byte in bytes {
            if byte == b'\n' {
                self.end(notes);
            } else if self.partial.len() < LINE_LEN_MAX {
                self.partial.push(byte);
            }
        }
    }

    /// Ends the line that is open, if any.
    pub(super) fn end(&mut self, notes: Notes<'_>) {
        let line = self.partial.strip_suffix(b"\r").unwrap_or(&self.partial);
        if line.starts_with(ENDED) {
            self.ended.store(true, Ordering::Release);
            self.partial.clear();
            return;
        }
        let text = escape::line(line);
        self.partial.clear();
        if text.is_empty() {
            return;
        }
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(text.clone());
        notes(text);
    }

    /// Only these are kept, to be taken.
    pub(super) fn keep(&mut self, lines: Vec<String>) {
        self.lines = lines.into();
    }

    /// The lines that are kept now, which are not kept any longer.
    pub(super) fn take(&mut self) -> Vec<String> {
        self.lines.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: words come out as a shell would cut them, and nothing is expanded.
    #[test]
    fn commands_split_like_a_shell() {
        let table: &[(&str, &[&str])] = &[
            ("ssh", &["ssh"]),
            ("  ssh\t-p 2222  -i key ", &["ssh", "-p", "2222", "-i", "key"]),
            ("ssh -i 'my key'", &["ssh", "-i", "my key"]),
            (r#"ssh -o "ProxyCommand nc \"x\" \y $HOME""#, &["ssh", "-o", r#"ProxyCommand nc "x" \y $HOME"#]),
            (r"ssh a\ b'c'd ''", &["ssh", "a bcd", ""]),
            ("ssh $(x) `y` *", &["ssh", "$(x)", "`y`", "*"]),
        ];
        for (text, words) in table {
            assert_eq!(&split_command(text).unwrap(), words, "{text}");
        }
        for text in ["", "  ", "ssh 'x", "ssh \"x", "ssh \"x\\", "ssh \\"] {
            assert!(split_command(text).is_err(), "{text}");
        }
    }

    /// Goal: that haul has ended there is heard, however it comes, and shown to nobody.
    #[test]
    fn the_end_of_haul_is_heard() {
        let mut lines = Lines::default();
        let mut seen = Vec::new();
        lines.push(b"HAUL-STAGE0 2 ended\nHAUL-STAGE0 1 en", &mut |l| seen.push(l));
        assert!(!lines.ended.load(Ordering::Acquire));
        lines.push(b"ded 137\nKilled\n", &mut |l| seen.push(l));
        assert!(lines.ended.load(Ordering::Acquire));
        assert_eq!(seen, ["HAUL-STAGE0 2 ended", "Killed"]);
    }

    /// Goal: lines are cut where they end however they arrive, and neither their length nor their number
    /// grows without bound.
    #[test]
    fn lines_are_cut_and_bounded() {
        let mut lines = Lines::default();
        let mut seen = Vec::new();
        for byte in b"one\r\ntw\x07o\n\nthree" {
            lines.push(&[*byte], &mut |l| seen.push(l));
        }
        lines.end(&mut |l| seen.push(l));
        assert_eq!(seen, ["one", "tw\\x07o", "three"]);
        for _ in 0..1000 {
            lines.push(&[b'x'; 3 * LINE_LEN_MAX], &mut |_| {});
            lines.push(b"\n", &mut |_| {});
        }
        assert_eq!(lines.lines.len(), LINES_MAX);
        assert!(lines.lines.iter().all(|l| l.len() <= LINE_LEN_MAX));
    }
}
