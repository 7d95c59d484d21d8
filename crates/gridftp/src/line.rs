//! Lines of a control connection or of a listing, from bytes in any pieces.
//!
//! In: bytes as they arrive. Out: whole lines without their end.
//! Invariants: no line is longer than the reader's maximum; the reader keeps no more than one line. After an
//! error it yields the same error for ever.
//! CRLF ends a line, and LF alone does, for there are servers that write no more. Any other CR, and a NUL,
//! are bytes of the line: what takes a line apart says which bytes may be in it.

use crate::FtpError;

/// The first byte of a Telnet command, which the control connection is made of (RFC 959, 3.1).
const IAC: u8 = 0xff;

/// How the byte 0xff travels on the control connection.
///
/// RFC 959 makes that connection Telnet's, which doubles the byte. Some programs do so, others do not and
/// take two for two. So it is asked for and not decided here, for a name with that byte is another file
/// otherwise; what the standard wants is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Iac {
    /// As RFC 959 wants.
    #[default]
    Doubled,
    /// As it is.
    Plain,
}

impl Iac {
    /// Makes of a line what was meant. A single 0xff stays: no Telnet option is ever agreed to.
    pub fn decode(self, line: &mut Vec<u8>) {
        if self == Iac::Plain {
            return;
        }
        let mut pending = false;
        line.retain(|b| {
            let second = pending && *b == IAC;
            pending = *b == IAC && !second;
            !second
        });
    }

    /// Appends `text` as it is sent.
    pub fn encode(self, text: &[u8], out: &mut Vec<u8>) {
        for b in text {
            out.push(*b);
            if *b == IAC && self == Iac::Doubled {
                out.push(IAC);
            }
        }
    }
}

/// Cuts lines out of bytes.
#[derive(Debug)]
pub struct LineReader {
    what: &'static str,
    len_max: usize,
    line: Vec<u8>,
    failed: Option<FtpError>,
}

impl LineReader {
    /// A reader of lines of at most `len_max` bytes, their end not counted; `what` names them in errors.
    pub fn new(what: &'static str, len_max: usize) -> LineReader {
        LineReader { what, len_max, line: Vec::new(), failed: None }
    }

    /// Takes bytes up to the end of the next line: how many were taken, and the line if it is whole.
    ///
    /// # Errors
    /// If the line is too long.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(usize, Option<Vec<u8>>), FtpError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let end = bytes.iter().position(|b| *b == b'\n');
        let piece = &bytes[..end.unwrap_or(bytes.len())];
        // One byte more than the maximum, for the CR may be the last that is there.
        let room = (self.len_max + 1).saturating_sub(self.line.len());
        if piece.len() > room {
            return Err(self.fail());
        }
        self.line.extend_from_slice(piece);
        if end.is_none() {
            // What cannot become a line any more is told at once.
            let too_long = self.line.len() > self.len_max && self.line.last() != Some(&b'\r');
            return if too_long { Err(self.fail()) } else { Ok((bytes.len(), None)) };
        }
        if self.line.last() == Some(&b'\r') {
            self.line.pop();
        }
        if self.line.len() > self.len_max {
            return Err(self.fail());
        }
        Ok((piece.len() + 1, Some(std::mem::take(&mut self.line))))
    }

    /// No byte of an unfinished line is held. Where a stream may end without the end of its last line, what
    /// is held is that line: [`LineReader::finish`].
    pub fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// What stood behind the last line's end.
    pub fn finish(self) -> Vec<u8> {
        self.line
    }

    fn fail(&mut self) -> FtpError {
        self.line = Vec::new();
        let error = FtpError::TooMany { what: self.what, max: self.len_max as u64 };
        self.failed.insert(error).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]], len_max: usize) -> Result<Vec<Vec<u8>>, FtpError> {
        let mut reader = LineReader::new("line", len_max);
        let mut lines = Vec::new();
        for mut piece in pieces.iter().copied() {
            while !piece.is_empty() {
                let (taken, line) = reader.feed(piece)?;
                assert!(taken > 0);
                piece = &piece[taken..];
                lines.extend(line);
            }
        }
        Ok(lines)
    }

    /// Goal: lines do not depend on how their bytes come, and their maximum is exact.
    /// Method: every split of a text into three pieces, for the maximum that fits and the one below.
    #[test]
    fn pieces_make_no_difference() {
        let text = b"ab\r\n\nc\rd\r\r\nefgh\r\n";
        let expected: Vec<Vec<u8>> =
            [&b"ab"[..], b"", b"c\rd\r", b"efgh"].iter().map(|l| l.to_vec()).collect();
        for i in 0..=text.len() {
            for j in i..=text.len() {
                let pieces = [&text[..i], &text[i..j], &text[j..]];
                assert_eq!(lines(&pieces, 4), Ok(expected.clone()), "{i} {j}");
                assert_eq!(lines(&pieces, 3), Err(FtpError::TooMany { what: "line", max: 3 }), "{i} {j}");
            }
        }
        assert!(lines(&[&[b'x'; 5]], 4).is_err(), "a line that has no end is told before it ends");
    }

    /// Goal: an error stays.
    /// Method: a good line after a bad one.
    #[test]
    fn a_failed_reader_stays_failed() {
        let mut reader = LineReader::new("line", 2);
        assert!(reader.feed(b"abc\n").is_err());
        assert!(reader.feed(b"a\n").is_err());
    }

    /// Goal: what is doubled is made single again, whatever bytes are there.
    /// Method: every string of five bytes of two kinds; pairs and a single one by hand.
    #[test]
    fn iac_survives_its_round_trip() {
        for bits in 0..32_u32 {
            let text: Vec<u8> = (0..5).map(|i| if bits >> i & 1 == 1 { IAC } else { b'x' }).collect();
            for iac in [Iac::Doubled, Iac::Plain] {
                let mut line = Vec::new();
                iac.encode(&text, &mut line);
                iac.decode(&mut line);
                assert_eq!(line, text);
            }
        }
        let mut line = vec![IAC, IAC, IAC, b'a', IAC];
        Iac::Doubled.decode(&mut line);
        assert_eq!(line, [IAC, IAC, b'a', IAC]);
    }
}
