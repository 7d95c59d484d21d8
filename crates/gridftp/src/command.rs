//! Commands of the control connection to bytes, and a line of one back into verb and argument.
//!
//! In: a [`Command`]. Out: its line with CRLF. For a server the other way: a line, its verb in capitals and
//! the argument as bytes.
//! Invariants: an argument holds no CR, LF or NUL, for with one of these a name becomes a second command; a
//! path is not empty; no line is longer than [`COMMAND_LEN_MAX`]. What is refused leaves no byte behind.
//! All other bytes go as they are, but 0xff, of which [`Iac`] says how.
//! Left out: `MIC`, `CONF` and `ENC` wrap whole lines and belong to who has the keys.

use core::net::SocketAddr;

use crate::FtpError;
use crate::address::{STRIPES_MAX, extended, host_port, spor};
use crate::line::Iac;
use crate::ranges::{FILE_LEN_MAX, RANGES_LEN_MAX, Ranges};

/// Longest line of a command, without its end: `REST` with all ranges, ADAT with a chain of certificates.
pub const COMMAND_LEN_MAX: usize = 1 << 20;
/// Longest verb.
pub const VERB_LEN_MAX: usize = 16;
/// Most data connections that may be asked for between two nodes.
pub const PARALLELISM_MAX: u32 = 1_024;

const _: () = assert!(RANGES_LEN_MAX + VERB_LEN_MAX < COMMAND_LEN_MAX);
const _: () = assert!(STRIPES_MAX * (crate::address::ADDRESS_LEN_MAX + 1) + VERB_LEN_MAX < COMMAND_LEN_MAX);

/// How a transfer over several stripes is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StripeLayout {
    /// Blocks of this size go round.
    Blocked(u64),
    /// Each stripe has one part of the file.
    Partitioned,
}

/// How data connections know each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataAuth<'a> {
    /// Not at all.
    None,
    /// As the user's own.
    Own,
    /// As the subject's.
    Subject(&'a [u8]),
}

/// What a client says. Paths are bytes as the server has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// A verb without an argument: `NOOP`, `QUIT`, `FEAT`, `PASV`, `SPAS`, `PWD`, `CDUP`, `SYST`, `ABOR`.
    Bare(&'a str),
    /// A verb and a path: `RETR`, `STOR`, `APPE`, `SIZE`, `MDTM`, `MLSD`, `MLST`, `NLST`, `LIST`, `CWD`,
    /// `MKD`, `RMD`, `DELE`, `RNFR`, `RNTO`.
    Path(&'a str, &'a [u8]),
    /// A verb and any argument, which may be empty: `USER`, `PASS`, `AUTH`, `ADAT`, `SITE`, `OPTS`, `DCSC`,
    /// `HELP`, and whatever has no form of its own here.
    With(&'a str, &'a [u8]),
    /// `TYPE A`, `TYPE I`.
    Type(u8),
    /// `MODE S`, `MODE E`.
    Mode(u8),
    /// `PROT C`, `S`, `P`.
    Prot(u8),
    /// `PBSZ`: longest protected message.
    Pbsz(u32),
    /// `DCAU`.
    Dcau(DataAuth<'a>),
    /// `SBUF`: buffer of data connections.
    Sbuf(u64),
    /// `ALLO`: so much will come.
    Allo(u64),
    /// `REST` in stream mode: from this byte on.
    Rest(u64),
    /// `REST` in MODE E: all but these. To a receiver and to a sender the same.
    RestRanges(&'a Ranges),
    /// `ERET P`: a part of a file, which is then counted from 0.
    Eret { offset: u64, len: u64, path: &'a [u8] },
    /// `ESTO A`: into a file from `offset` on; what is sent is counted from 0.
    Esto { offset: u64, path: &'a [u8] },
    /// `EPSV`, for what the control connection speaks.
    Epsv,
    /// `SPAS 2`: stripes that listen with IPv6. Plain `SPAS` is a [`Command::Bare`].
    Spas6,
    /// `PORT`: IPv4 alone.
    Port(SocketAddr),
    /// `EPRT`.
    Eprt(SocketAddr),
    /// `SPOR`.
    Spor(&'a [SocketAddr]),
    /// `OPTS RETR`: connections, and perhaps the layout.
    OptsRetr { parallelism: u32, layout: Option<StripeLayout> },
    /// `OPTS PASV AllowDelayed=1;`
    OptsDelayedPassive,
    /// `OPTS STOR Tickets=1;`
    OptsStorTickets,
    /// `OPTS MLST`: these facts. None at all is legal.
    OptsMlst(&'a [&'a str]),
    /// `CKSM`: the sum of a part of a file, of `None` up to its end.
    Cksm { algorithm: &'a str, offset: u64, len: Option<u64>, path: &'a [u8] },
    /// `MFMT`: sets when a file was changed (`YYYYMMDDHHMMSS`).
    Mfmt { moment: &'a str, path: &'a [u8] },
    /// `SITE CHMOD`.
    SiteChmod { mode: u32, path: &'a [u8] },
}

impl Command<'_> {
    /// Appends the line of the command.
    ///
    /// # Errors
    /// If it cannot be said; then nothing is appended.
    pub fn encode(&self, iac: Iac, out: &mut Vec<u8>) -> Result<(), FtpError> {
        let mut line = Vec::new();
        self.write(&mut line)?;
        if let Some(byte) = line.iter().find(|b| matches!(b, b'\r' | b'\n' | 0)) {
            return Err(FtpError::BadByte { what: "argument of a command", byte: *byte });
        }
        let start = out.len();
        iac.encode(&line, out);
        if out.len() - start > COMMAND_LEN_MAX {
            out.truncate(start);
            return Err(FtpError::TooMany { what: "bytes of a command", max: COMMAND_LEN_MAX as u64 });
        }
        out.extend_from_slice(b"\r\n");
        Ok(())
    }

    fn write(&self, line: &mut Vec<u8>) -> Result<(), FtpError> {
        match *self {
            Command::Bare(verb) => check_verb(verb).map(|verb| put(line, verb)),
            Command::Path(verb, path) => {
                put(line, check_verb(verb)?);
                put_path(line, path)
            }
            Command::With(verb, argument) => {
                put(line, check_verb(verb)?);
                line.push(b' ');
                line.extend_from_slice(argument);
                Ok(())
            }
            Command::Type(letter) => put_letter(line, "TYPE", letter, b"AI"),
            Command::Mode(letter) => put_letter(line, "MODE", letter, b"SE"),
            Command::Prot(letter) => put_letter(line, "PROT", letter, b"CSP"),
            Command::Pbsz(len) => put_number(line, "PBSZ", len.into()),
            Command::Dcau(auth) => {
                match auth {
                    DataAuth::None => put(line, "DCAU N"),
                    DataAuth::Own => put(line, "DCAU A"),
                    DataAuth::Subject(subject) => {
                        put(line, "DCAU S");
                        return put_path(line, subject);
                    }
                }
                Ok(())
            }
            Command::Sbuf(len) => put_number(line, "SBUF", len),
            Command::Allo(len) => put_number(line, "ALLO", len),
            Command::Rest(offset) => put_number(line, "REST", offset),
            Command::RestRanges(ranges) => {
                put(line, "REST ");
                ranges.encode(line);
                Ok(())
            }
            Command::Eret { offset, len, path } => {
                put_number(line, "ERET P", offset)?;
                put_number(line, "", len)?;
                put_path(line, path)
            }
            Command::Esto { offset, path } => {
                put_number(line, "ESTO A", offset)?;
                put_path(line, path)
            }
            Command::Epsv => put_line(line, format_args!("EPSV")),
            Command::Spas6 => put_line(line, format_args!("SPAS 2")),
            Command::Port(address) => put_line(line, format_args!("PORT {}", host_port(address)?)),
            Command::Eprt(address) => put_line(line, format_args!("EPRT {}", extended(address))),
            Command::Spor(addresses) => put_line(line, format_args!("SPOR {}", spor(addresses)?)),
            Command::OptsRetr { parallelism, layout } => {
                if parallelism == 0 || parallelism > PARALLELISM_MAX {
                    return Err(FtpError::BadValue { what: "parallelism", value: parallelism.into() });
                }
                put(line, "OPTS RETR ");
                match layout {
                    None => {}
                    Some(StripeLayout::Partitioned) => put(line, "StripeLayout=Partitioned;"),
                    Some(StripeLayout::Blocked(size)) if size > 0 && size <= FILE_LEN_MAX => {
                        put_line(line, format_args!("StripeLayout=Blocked;BlockSize={size};"))?;
                    }
                    Some(StripeLayout::Blocked(value)) => {
                        return Err(FtpError::BadValue { what: "block size of stripes", value });
                    }
                }
                // To begin with, at least and at most; Globus always sends one number thrice.
                put_line(line, format_args!("Parallelism={parallelism},{parallelism},{parallelism};"))
            }
            Command::OptsDelayedPassive => put_line(line, format_args!("OPTS PASV AllowDelayed=1;")),
            Command::OptsStorTickets => put_line(line, format_args!("OPTS STOR Tickets=1;")),
            Command::OptsMlst(facts) => {
                put(line, "OPTS MLST ");
                for fact in facts {
                    check_word("fact of a listing", fact)?;
                    put_line(line, format_args!("{fact};"))?;
                }
                Ok(())
            }
            Command::Cksm { algorithm, offset, len, path } => {
                check_word("algorithm of a sum", algorithm)?;
                put_line(line, format_args!("CKSM {algorithm}"))?;
                put_number(line, "", offset)?;
                match len {
                    Some(len) => put_number(line, "", len)?,
                    None => put(line, " -1"),
                }
                put_path(line, path)
            }
            Command::Mfmt { moment, path } => {
                check_word("time of a file", moment)?;
                put_line(line, format_args!("MFMT {moment}"))?;
                put_path(line, path)
            }
            Command::SiteChmod { mode, path } => {
                if mode > 0o7777 {
                    return Err(FtpError::BadValue { what: "mode of a file", value: mode.into() });
                }
                put_line(line, format_args!("SITE CHMOD {mode:04o}"))?;
                put_path(line, path)
            }
        }
    }
}

/// Takes a line of a command apart: its verb in capitals, and what stands behind the space.
///
/// # Errors
/// If it begins with no verb, is too long, or holds CR or NUL, which no two servers understand alike.
pub fn split_command(line: &[u8]) -> Result<(String, &[u8]), FtpError> {
    if line.len() > COMMAND_LEN_MAX {
        return Err(FtpError::TooMany { what: "bytes of a command", max: COMMAND_LEN_MAX as u64 });
    }
    if let Some(byte) = line.iter().find(|b| matches!(b, b'\r' | b'\n' | 0)) {
        return Err(FtpError::BadByte { what: "command", byte: *byte });
    }
    let (verb, argument) = crate::text::split_at_byte(line, b' ').unwrap_or((line, b""));
    let verb = std::str::from_utf8(verb).map_err(|_| FtpError::BadForm { what: "verb" })?;
    check_verb(verb).map(|verb| (verb.to_ascii_uppercase(), argument))
}

fn check_verb(verb: &str) -> Result<&str, FtpError> {
    let legal = (1..=VERB_LEN_MAX).contains(&verb.len()) && verb.bytes().all(|b| b.is_ascii_alphabetic());
    if legal { Ok(verb) } else { Err(FtpError::BadForm { what: "verb" }) }
}

/// A word of ours or of the server's that goes where a space, a `;` or a `,` would be another word.
fn check_word(what: &'static str, word: &str) -> Result<(), FtpError> {
    let legal = |b: u8| b.is_ascii_graphic() && !matches!(b, b';' | b',' | b'=');
    let is_legal = !word.is_empty() && word.bytes().all(legal);
    if is_legal { Ok(()) } else { Err(FtpError::BadForm { what }) }
}

fn put(line: &mut Vec<u8>, text: &str) {
    line.extend_from_slice(text.as_bytes());
}

fn put_line(line: &mut Vec<u8>, text: std::fmt::Arguments<'_>) -> Result<(), FtpError> {
    put(line, &text.to_string());
    Ok(())
}

fn put_number(line: &mut Vec<u8>, verb: &'static str, value: u64) -> Result<(), FtpError> {
    match value <= FILE_LEN_MAX {
        true => put_line(line, format_args!("{verb} {value}")),
        false => Err(FtpError::BadValue { what: "number in a command", value }),
    }
}

fn put_letter(line: &mut Vec<u8>, verb: &str, letter: u8, legal: &[u8]) -> Result<(), FtpError> {
    match legal.contains(&letter) {
        true => put_line(line, format_args!("{verb} {}", char::from(letter))),
        false => Err(FtpError::BadByte { what: "letter of a command", byte: letter }),
    }
}

fn put_path(line: &mut Vec<u8>, path: &[u8]) -> Result<(), FtpError> {
    if path.is_empty() {
        return Err(FtpError::BadForm { what: "empty path" });
    }
    line.push(b' ');
    line.extend_from_slice(path);
    Ok(())
}
