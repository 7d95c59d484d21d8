//! Replies of the control connection (RFC 959, 4.2), from bytes in any pieces, and written.
//!
//! In: bytes. Out: one [`Reply`] after another, each with all its lines.
//! Invariants: a reply has a code of 100 to 699 and at least one line; no line is longer than
//! [`REPLY_LINE_LEN_MAX`], no reply has more than [`REPLY_LINES_MAX`] lines or [`REPLY_LEN_MAX`] bytes.
//! A multi-line reply ends with its own code and a space, and with nothing else: lines that begin with other
//! digits, with the code and a hyphen or with the bare code are lines within it.
//! Left out: what a code means for a command. Lines are bytes: who shows them escapes them first.

use crate::FtpError;
use crate::line::{Iac, LineReader};

/// Longest line of a reply, without its end. ADAT tokens take 20 kB; a marker has as many ranges as one may
/// have.
pub const REPLY_LINE_LEN_MAX: usize = 1 << 20;
/// Most lines of a reply: an MLSC or STAT of a directory is one.
pub const REPLY_LINES_MAX: usize = 65_536;
/// Most bytes of all lines of a reply.
pub const REPLY_LEN_MAX: usize = 4 << 20;

const _: () = assert!(REPLY_LINE_LEN_MAX <= REPLY_LEN_MAX);

/// What the first digit of a code says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// 1yz: begun; another reply to the same command follows.
    Preliminary,
    /// 2yz: done.
    Completed,
    /// 3yz: so far so good; the next command belongs to it.
    Intermediate,
    /// 4yz: not done; the same command may be done later.
    Transient,
    /// 5yz: not done, and never will be as it was said.
    Permanent,
    /// 6yz: another reply, protected (RFC 2228).
    Protected,
}

/// One reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    code: u16,
    lines: Vec<Box<[u8]>>,
}

impl Reply {
    /// A reply with these lines, as [`Reply::lines`] has them.
    ///
    /// # Errors
    /// If a maximum is exceeded, a line holds CR, LF or NUL, there is none, or one that is neither first nor
    /// last would be taken for the last.
    pub fn new(code: u16, lines: impl IntoIterator<Item = impl Into<Box<[u8]>>>) -> Result<Reply, FtpError> {
        if !(100..=699).contains(&code) {
            return Err(FtpError::BadValue { what: "code of a reply", value: code.into() });
        }
        let lines: Vec<Box<[u8]>> = lines.into_iter().map(Into::into).collect();
        let mut len = 0;
        for (i, line) in lines.iter().enumerate() {
            check_line(line)?;
            let within = i > 0 && i + 1 < lines.len();
            if within && head(line) == Some((code, Some(b' '))) {
                return Err(FtpError::BadForm { what: "line within a reply" });
            }
            len += line.len();
            bounds(i + 1, len)?;
            // The code and what follows it are a part of the line on the wire.
            if !within && line.len() + 4 > REPLY_LINE_LEN_MAX {
                return Err(FtpError::TooMany { what: "line of a reply", max: REPLY_LINE_LEN_MAX as u64 });
            }
        }
        match lines.is_empty() {
            false => Ok(Reply { code, lines }),
            true => Err(FtpError::BadForm { what: "reply without a line" }),
        }
    }

    /// The code, 100 to 699.
    pub fn code(&self) -> u16 {
        self.code
    }

    /// What the first digit says.
    pub fn class(&self) -> Class {
        match self.code / 100 {
            1 => Class::Preliminary,
            2 => Class::Completed,
            3 => Class::Intermediate,
            4 => Class::Transient,
            5 => Class::Permanent,
            _ => Class::Protected,
        }
    }

    /// The lines: of the first and the last what stands behind the code, of those between all that is there.
    /// A reply of one line has that line alone.
    pub fn lines(&self) -> &[Box<[u8]>] {
        &self.lines
    }

    /// The text of a reply of one line, or the first line of a longer one.
    pub fn text(&self) -> &[u8] {
        self.lines.first().map_or(&[], |line| line)
    }

    /// The lines between the first and the last, a space or `code-` before each left out. Globus writes the
    /// latter (`553-GlobusError: ...`), and base64 of protected replies comes so.
    ///
    /// Edge: of a listing the lines themselves are wanted, for a file may be called `213-x`.
    pub fn inner(&self) -> impl Iterator<Item = &[u8]> {
        let inner = self.lines.get(1..self.lines.len().max(2) - 1).unwrap_or_default();
        inner.iter().map(|line| match head(line) {
            Some((code, Some(b'-'))) if code == self.code => &line[4..],
            _ => line.strip_prefix(b" ").unwrap_or(line),
        })
    }

    /// Appends the bytes of the reply.
    pub fn encode(&self, iac: Iac, out: &mut Vec<u8>) {
        let last = self.lines.len() - 1;
        for (i, line) in self.lines.iter().enumerate() {
            if i == 0 || i == last {
                out.extend_from_slice(self.code.to_string().as_bytes());
                out.push(if i == last { b' ' } else { b'-' });
            }
            iac.encode(line, out);
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// Reads replies.
#[derive(Debug)]
pub struct ReplyReader {
    iac: Iac,
    reader: LineReader,
    /// The code of a reply that has more lines.
    open: Option<u16>,
    lines: Vec<Box<[u8]>>,
    len: usize,
    failed: Option<FtpError>,
}

impl ReplyReader {
    pub fn new(iac: Iac) -> ReplyReader {
        let reader = LineReader::new("line of a reply", REPLY_LINE_LEN_MAX);
        ReplyReader { iac, reader, open: None, lines: Vec::new(), len: 0, failed: None }
    }

    /// Takes bytes up to the end of the next reply: how many were taken, and the reply if it is whole. What
    /// is left is to be fed again, unless it belongs to something else, as behind `234` to TLS.
    ///
    /// # Errors
    /// If a line or the reply is too long, or no reply begins where one must.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(usize, Option<Reply>), FtpError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let mut taken = 0;
        while taken < bytes.len() {
            let (len, line) = self.reader.feed(&bytes[taken..]).map_err(|error| self.fail(error))?;
            taken += len;
            let Some(mut line) = line else { break };
            self.iac.decode(&mut line);
            if let Some(reply) = self.take(&line).map_err(|error| self.fail(error))? {
                return Ok((taken, Some(reply)));
            }
        }
        Ok((taken, None))
    }

    /// Nothing of a reply is held: the connection may end here.
    pub fn is_idle(&self) -> bool {
        self.open.is_none() && self.reader.is_empty()
    }

    fn take(&mut self, line: &[u8]) -> Result<Option<Reply>, FtpError> {
        let head = head(line);
        let (text, ends) = match self.open {
            Some(code) if head == Some((code, Some(b' '))) => (&line[4..], true),
            Some(_) => (line, false),
            None => {
                let (code, then) = head.ok_or(FtpError::BadForm { what: "beginning of a reply" })?;
                self.open = Some(code);
                // Servers that cut blanks off send a bare code; only there can it mean nothing else.
                (line.get(4..).unwrap_or_default(), then != Some(b'-'))
            }
        };
        self.len += text.len();
        bounds(self.lines.len() + 1, self.len)?;
        self.lines.push(text.into());
        if !ends {
            return Ok(None);
        }
        let lines = std::mem::take(&mut self.lines);
        self.len = 0;
        Ok(self.open.take().map(|code| Reply { code, lines }))
    }

    fn fail(&mut self, error: FtpError) -> FtpError {
        self.lines = Vec::new();
        self.failed.insert(error).clone()
    }
}

/// The code that a line begins with and the byte behind it, which is a space, a hyphen or the line's end.
fn head(line: &[u8]) -> Option<(u16, Option<u8>)> {
    let (digits, rest) = line.split_first_chunk::<3>()?;
    let legal = digits.iter().all(u8::is_ascii_digit) && (b'1'..=b'6').contains(&digits[0]);
    let code = digits.iter().fold(0, |code, digit| code * 10 + u16::from(digit.wrapping_sub(b'0')));
    match rest.first() {
        None | Some(b' ' | b'-') if legal => Some((code, rest.first().copied())),
        _ => None,
    }
}

fn bounds(lines: usize, len: usize) -> Result<(), FtpError> {
    if lines > REPLY_LINES_MAX {
        return Err(FtpError::TooMany { what: "lines of a reply", max: REPLY_LINES_MAX as u64 });
    }
    if len > REPLY_LEN_MAX {
        return Err(FtpError::TooMany { what: "bytes of a reply", max: REPLY_LEN_MAX as u64 });
    }
    Ok(())
}

fn check_line(line: &[u8]) -> Result<(), FtpError> {
    if line.len() > REPLY_LINE_LEN_MAX {
        return Err(FtpError::TooMany { what: "line of a reply", max: REPLY_LINE_LEN_MAX as u64 });
    }
    match line.iter().find(|b| matches!(b, b'\r' | b'\n' | 0)) {
        None => Ok(()),
        Some(b) => Err(FtpError::BadByte { what: "line of a reply", byte: *b }),
    }
}
