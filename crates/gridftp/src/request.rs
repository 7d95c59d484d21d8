//! Lines of the control connection as a server reads them: a verb and its argument become a [`Request`].
//!
//! In: one line without its end. Out: what the client wants, as types; or the code and the words that refuse
//! it: `500` for a verb that is none here, `501` for an argument of the wrong form, `504` for one that is
//! known and not served.
//! Invariants: a path is not empty and holds no CR, LF or NUL; every number is within its bounds.
//! Left out: whether the client may have it, and in which order things are said. `AUTH`, `ADAT`, `ENC` and
//! what else protects the connection keep their arguments as they came.

use core::net::SocketAddr;

use crate::FtpError;
use crate::address::{parse_extended, parse_host_port, parse_spor};
use crate::command::{DataAuth, PARALLELISM_MAX, StripeLayout, split_command};
use crate::listing::{Moment, parse_moment};
use crate::ranges::{FILE_LEN_MAX, Ranges};
use crate::text::{number, split_at_byte, trim, word};

/// What `REST` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Restart {
    /// From this byte on: stream mode. Also the one range that begins at 0.
    Offset(u64),
    /// All but these.
    Ranges(Ranges),
}

/// Which address `EPSV` wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// That of the control connection.
    Same,
    V4,
    V6,
    /// From now on nothing else is asked for.
    All,
}

/// What `OPTS` sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opts {
    /// `OPTS RETR`: connections of a transfer to begin with; markers every so many seconds; which bytes go by
    /// which stripe.
    Retr { parallelism: Option<u32>, markers: Option<u64>, layout: Option<StripeLayout> },
    /// `OPTS PASV AllowDelayed=`.
    DelayedPassive(bool),
    /// `OPTS STOR Tickets=`: the client hears data connections out, also where he sends.
    StorTickets(bool),
    /// `OPTS MLST`: the facts that are wanted, in lower case.
    Mlst(Vec<String>),
    /// `OPTS UTF8 ON`: names are bytes, so nothing changes.
    Utf8,
}

/// What a client wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    User(&'a [u8]),
    Pass(&'a [u8]),
    Acct,
    Quit,
    Noop,
    Help,
    Syst,
    Feat,
    Abor,
    Pwd,
    Cdup,
    Lang,
    /// Of the session, or of what is named.
    Stat(Option<&'a [u8]>),
    Opts(Opts),
    /// `A` or `I`.
    Type(u8),
    /// `S` or `E`.
    Mode(u8),
    Stru,
    Sbuf(u64),
    Allo(u64),
    Rest(Restart),
    Pasv,
    Epsv(Family),
    /// True: with IPv6.
    Spas(bool),
    Port(SocketAddr),
    Eprt(SocketAddr),
    Spor(Vec<SocketAddr>),
    /// With the part that `ERET` names: offset and length.
    Retr {
        path: &'a [u8],
        part: Option<(u64, u64)>,
    },
    /// With the offset that `ESTO` names.
    Stor {
        path: &'a [u8],
        at: Option<u64>,
    },
    Appe(&'a [u8]),
    Mlst(Option<&'a [u8]>),
    Mlsd(Option<&'a [u8]>),
    Nlst(Option<&'a [u8]>),
    List(Option<&'a [u8]>),
    Size(&'a [u8]),
    Mdtm(&'a [u8]),
    Mfmt {
        moment: Moment,
        path: &'a [u8],
    },
    Mkd(&'a [u8]),
    Rmd(&'a [u8]),
    Dele(&'a [u8]),
    Rnfr(&'a [u8]),
    Rnto(&'a [u8]),
    Cwd(&'a [u8]),
    /// The sum of a part of a file; `None`: up to its end.
    Cksm {
        algorithm: String,
        offset: u64,
        len: Option<u64>,
        path: &'a [u8],
    },
    SiteHelp,
    SiteChmod {
        mode: u32,
        path: &'a [u8],
    },
    /// What a client says of itself: told, and without effect.
    SiteClient(&'a [u8]),
    Dcau(DataAuth<'a>),
    Pbsz(u64),
    /// `C`, `S`, `E` or `P`.
    Prot(u8),
    /// `AUTH`, `ADAT`, `ENC`, `MIC`, `CONF`, `CCC`: for who has the keys.
    Security {
        verb: String,
        argument: &'a [u8],
    },
}

/// Why a line is no request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub code: u16,
    pub words: String,
}

impl Refused {
    fn new(code: u16, words: impl Into<String>) -> Refused {
        Refused { code, words: words.into() }
    }
}

/// Bytes of Telnet that clients send before `ABOR` (RFC 959, 4.1.3): interrupt, and synchronise.
fn without_telnet(line: &[u8]) -> &[u8] {
    const COMMANDS: [&[u8]; 3] = [b"\xff\xf4", b"\xff\xf2", b"\xf2"];
    let mut line = line;
    while let Some(rest) = COMMANDS.iter().find_map(|command| line.strip_prefix(*command)) {
        line = rest;
    }
    line
}

impl<'a> Request<'a> {
    /// Reads a line.
    ///
    /// # Errors
    /// What is to be answered.
    pub fn parse(line: &'a [u8]) -> Result<Request<'a>, Refused> {
        let (verb, argument) = split_command(without_telnet(line)).map_err(|error| match error {
            FtpError::BadByte { .. } => {
                Refused::new(501, "A command that holds CR, LF or NUL is not understood.")
            }
            _ => Refused::new(500, "This is no command."),
        })?;
        let refused = |error: FtpError| Refused::new(501, format!("{verb}: {error}."));
        let path = || match argument.is_empty() {
            true => Err(Refused::new(501, format!("{verb} wants a name."))),
            false => Ok(argument),
        };
        let perhaps = (!argument.is_empty()).then_some(argument);
        Ok(match verb.as_str() {
            "USER" => Request::User(argument),
            "PASS" => Request::Pass(argument),
            "ACCT" => Request::Acct,
            "QUIT" => Request::Quit,
            "NOOP" => Request::Noop,
            "HELP" => Request::Help,
            "SYST" => Request::Syst,
            "FEAT" => Request::Feat,
            "ABOR" => Request::Abor,
            "PWD" | "XPWD" => Request::Pwd,
            "CDUP" | "XCUP" => Request::Cdup,
            "LANG" => Request::Lang,
            "STAT" => Request::Stat(without_flags(argument)),
            "OPTS" => Request::Opts(parse_opts(argument)?),
            "TYPE" => Request::Type(parse_type(argument)?),
            "MODE" => Request::Mode(letter(&verb, argument, b"SE", b"BCX")?),
            "STRU" => letter(&verb, argument, b"F", b"RP").map(|_| Request::Stru)?,
            "SBUF" => Request::Sbuf(number("buffer", trim(argument), FILE_LEN_MAX).map_err(refused)?),
            "ALLO" => Request::Allo(parse_allo(argument).map_err(refused)?),
            "REST" => Request::Rest(parse_rest(trim(argument)).map_err(refused)?),
            "PASV" => Request::Pasv,
            "EPSV" => Request::Epsv(parse_family(argument)?),
            "SPAS" => Request::Spas(trim(argument) == b"2"),
            "PORT" => Request::Port(parse_host_port(trim(argument)).map_err(refused)?),
            "EPRT" => Request::Eprt(parse_extended(trim(argument)).map_err(refused)?),
            "SPOR" => Request::Spor(parse_spor(argument).map_err(refused)?),
            "RETR" => Request::Retr { path: path()?, part: None },
            "ERET" => parse_eret(argument)?,
            "STOR" => Request::Stor { path: path()?, at: None },
            "ESTO" => parse_esto(argument)?,
            "APPE" => Request::Appe(path()?),
            "MLST" => Request::Mlst(perhaps),
            "MLSD" => Request::Mlsd(perhaps),
            "NLST" => Request::Nlst(without_flags(argument)),
            "LIST" => Request::List(without_flags(argument)),
            "SIZE" => Request::Size(path()?),
            "MDTM" => Request::Mdtm(path()?),
            "MFMT" => parse_mfmt(argument).map_err(refused)?,
            "MKD" | "XMKD" => Request::Mkd(path()?),
            "RMD" | "XRMD" => Request::Rmd(path()?),
            "DELE" => Request::Dele(path()?),
            "RNFR" => Request::Rnfr(path()?),
            "RNTO" => Request::Rnto(path()?),
            "CWD" | "XCWD" => Request::Cwd(path()?),
            "CKSM" => parse_cksm(argument).map_err(refused)?,
            "SITE" => parse_site(argument)?,
            "DCAU" => Request::Dcau(parse_dcau(argument)?),
            "PBSZ" => Request::Pbsz(number("buffer", trim(argument), u32::MAX.into()).map_err(refused)?),
            "PROT" => Request::Prot(letter(&verb, argument, b"CSEP", b"")?),
            "AUTH" | "ADAT" | "ENC" | "MIC" | "CONF" | "CCC" => Request::Security { verb, argument },
            _ => return Err(Refused::new(500, format!("{verb} is not known here."))),
        })
    }
}

/// One letter, which may be in either case: one of `served`. Those of `known` are said to be not served.
fn letter(verb: &str, argument: &[u8], served: &[u8], known: &[u8]) -> Result<u8, Refused> {
    match trim(argument) {
        [letter] if served.contains(&letter.to_ascii_uppercase()) => Ok(letter.to_ascii_uppercase()),
        [letter] if known.contains(&letter.to_ascii_uppercase()) => {
            Err(Refused::new(504, format!("{verb} {} is not served.", char::from(*letter))))
        }
        _ => Err(Refused::new(501, format!("{verb} wants a letter."))),
    }
}

fn parse_type(argument: &[u8]) -> Result<u8, Refused> {
    match trim(argument).to_ascii_uppercase().as_slice() {
        b"A" | b"A N" => Ok(b'A'),
        b"I" | b"L 8" | b"L8" => Ok(b'I'),
        _ => Err(Refused::new(504, "TYPE is A or I here.")),
    }
}

fn parse_family(argument: &[u8]) -> Result<Family, Refused> {
    match trim(argument).to_ascii_uppercase().as_slice() {
        b"" => Ok(Family::Same),
        b"1" => Ok(Family::V4),
        b"2" => Ok(Family::V6),
        b"ALL" => Ok(Family::All),
        _ => Err(Refused::new(522, "Network protocol is not served, use (1,2).")),
    }
}

fn parse_allo(argument: &[u8]) -> Result<u64, FtpError> {
    // `ALLO 100 R 20`: the size of a record says nothing here.
    let (size, _) = word(argument).ok_or(FtpError::BadForm { what: "size" })?;
    number("size", size, FILE_LEN_MAX)
}

fn parse_rest(argument: &[u8]) -> Result<Restart, FtpError> {
    if argument.contains(&b'-') {
        let ranges = Ranges::parse(argument)?;
        return Ok(match ranges.list() {
            [] => Restart::Offset(0),
            _ => Restart::Ranges(ranges),
        });
    }
    number("offset", argument, FILE_LEN_MAX).map(Restart::Offset)
}

/// What stands behind a word and one space: a path, whose own spaces count.
fn path_behind(rest: &[u8]) -> Result<&[u8], FtpError> {
    match rest.strip_prefix(b" ") {
        Some(path) if !path.is_empty() => Ok(path),
        _ => Err(FtpError::BadForm { what: "name" }),
    }
}

fn parse_eret(argument: &[u8]) -> Result<Request<'_>, Refused> {
    let parse = || {
        let bad = FtpError::BadForm { what: "ERET" };
        let (kind, rest) = word(argument).ok_or(bad.clone())?;
        let (offset, rest) = word(rest).ok_or(bad.clone())?;
        let (len, rest) = word(rest).ok_or(bad)?;
        let part = (number("offset", offset, FILE_LEN_MAX)?, number("length", len, FILE_LEN_MAX)?);
        Ok((kind, part, path_behind(rest)?))
    };
    let (kind, part, path) =
        parse().map_err(|_: FtpError| Refused::new(501, "ERET is: ERET P OFFSET LENGTH NAME."))?;
    match kind.eq_ignore_ascii_case(b"P") {
        true => Ok(Request::Retr { path, part: Some(part) }),
        false => Err(Refused::new(504, "Of ERET only P is served.")),
    }
}

fn parse_esto(argument: &[u8]) -> Result<Request<'_>, Refused> {
    let parse = || {
        let bad = FtpError::BadForm { what: "ESTO" };
        let (kind, rest) = word(argument).ok_or(bad.clone())?;
        let (offset, rest) = word(rest).ok_or(bad)?;
        Ok((kind, number("offset", offset, FILE_LEN_MAX)?, path_behind(rest)?))
    };
    let (kind, at, path) =
        parse().map_err(|_: FtpError| Refused::new(501, "ESTO is: ESTO A OFFSET NAME."))?;
    match kind.eq_ignore_ascii_case(b"A") {
        true => Ok(Request::Stor { path, at: Some(at) }),
        false => Err(Refused::new(504, "Of ESTO only A is served.")),
    }
}

fn parse_mfmt(argument: &[u8]) -> Result<Request<'_>, FtpError> {
    let (moment, rest) = word(argument).ok_or(FtpError::BadForm { what: "time of a file" })?;
    Ok(Request::Mfmt { moment: parse_moment(moment)?, path: path_behind(rest)? })
}

fn parse_cksm(argument: &[u8]) -> Result<Request<'_>, FtpError> {
    let bad = FtpError::BadForm { what: "sum of a file" };
    let (algorithm, rest) = word(argument).ok_or(bad.clone())?;
    let (offset, rest) = word(rest).ok_or(bad.clone())?;
    let (len, rest) = word(rest).ok_or(bad.clone())?;
    let algorithm = core::str::from_utf8(algorithm).map_err(|_| bad)?.to_ascii_uppercase();
    let offset = number("offset", offset, FILE_LEN_MAX)?;
    let len = match len {
        b"-1" => None,
        _ => Some(number("length", len, FILE_LEN_MAX)?),
    };
    Ok(Request::Cksm { algorithm, offset, len, path: path_behind(rest)? })
}

fn parse_dcau(argument: &[u8]) -> Result<DataAuth<'_>, Refused> {
    let bad = || Refused::new(501, "DCAU is N, A or S SUBJECT.");
    let (kind, rest) = word(argument).ok_or_else(bad)?;
    match kind {
        b"N" | b"n" => Ok(DataAuth::None),
        b"A" | b"a" => Ok(DataAuth::Own),
        b"S" | b"s" => path_behind(rest).map(DataAuth::Subject).map_err(|_| bad()),
        _ => Err(bad()),
    }
}

fn parse_opts(argument: &[u8]) -> Result<Opts, Refused> {
    let bad = |what: &str| Refused::new(501, format!("{what} is not understood."));
    let (name, rest) = word(argument).ok_or_else(|| bad("OPTS without a name"))?;
    let settings = || {
        let settings = rest.split(|b| *b == b';').map(trim).filter(|setting| !setting.is_empty());
        settings.map(|setting| split_at_byte(setting, b'='))
    };
    match name.to_ascii_uppercase().as_slice() {
        b"RETR" => {
            let (mut parallelism, mut markers, mut layout) = (None, None, None);
            for setting in settings() {
                let (name, value) = setting.ok_or_else(|| bad("An option of RETR"))?;
                match name.to_ascii_lowercase().as_slice() {
                    b"parallelism" => {
                        let first = value.split(|b| *b == b',').next().unwrap_or_default();
                        let count = number("parallelism", first, PARALLELISM_MAX.into());
                        let count = count.ok().filter(|count| *count > 0);
                        let count = count.ok_or_else(|| bad("Parallelism"))?;
                        parallelism = Some(u32::try_from(count).expect("below its maximum"));
                    }
                    b"markers" => {
                        let every = number("markers", value, u32::MAX.into());
                        markers = Some(every.map_err(|_| bad("Markers"))?);
                    }
                    b"stripelayout" => match value.to_ascii_lowercase().as_slice() {
                        b"partitioned" => layout = Some(StripeLayout::Partitioned),
                        b"blocked" => {}
                        _ => return Err(bad("StripeLayout")),
                    },
                    b"blocksize" => {
                        let size = number("block size of stripes", value, FILE_LEN_MAX);
                        let size = size.map_err(|_| bad("BlockSize"))?;
                        // Of parts of a file none has a size.
                        if size > 0 && layout.is_none() {
                            layout = Some(StripeLayout::Blocked(size));
                        }
                    }
                    _ => return Err(bad("An option of RETR")),
                }
            }
            Ok(Opts::Retr { parallelism, markers, layout })
        }
        b"PASV" => match settings().next().flatten() {
            Some((name, value)) if name.eq_ignore_ascii_case(b"AllowDelayed") => match value {
                b"0" => Ok(Opts::DelayedPassive(false)),
                b"1" => Ok(Opts::DelayedPassive(true)),
                _ => Err(bad("AllowDelayed")),
            },
            _ => Err(bad("An option of PASV")),
        },
        b"STOR" => match settings().next().flatten() {
            Some((name, value)) if name.eq_ignore_ascii_case(b"Tickets") => match value {
                b"0" => Ok(Opts::StorTickets(false)),
                b"1" => Ok(Opts::StorTickets(true)),
                _ => Err(bad("Tickets")),
            },
            _ => Err(bad("An option of STOR")),
        },
        b"MLST" => {
            let facts = rest.split(|b| *b == b';').map(trim).filter(|fact| !fact.is_empty());
            let facts: Vec<&[u8]> = facts.take(crate::listing::FACTS_MAX).collect();
            Ok(Opts::Mlst(facts.into_iter().map(|f| String::from_utf8_lossy(f).to_lowercase()).collect()))
        }
        b"UTF8" => match trim(rest).to_ascii_uppercase().as_slice() {
            b"" | b"ON" | b"NLST" => Ok(Opts::Utf8),
            _ => Err(Refused::new(504, "Names are bytes here, and UTF-8 cannot be switched off.")),
        },
        _ => Err(bad("This option")),
    }
}

fn parse_site(argument: &[u8]) -> Result<Request<'_>, Refused> {
    let (name, rest) = word(argument).ok_or_else(|| Refused::new(501, "SITE wants a command."))?;
    match name.to_ascii_uppercase().as_slice() {
        b"HELP" => Ok(Request::SiteHelp),
        b"CLIENTINFO" => Ok(Request::SiteClient(trim(rest))),
        b"CHMOD" => {
            let bad = || Refused::new(501, "SITE CHMOD wants a mode in octal digits and a name.");
            let (digits, rest) = word(rest).ok_or_else(bad)?;
            if digits.len() > 5 || !digits.iter().all(|b| (b'0'..=b'7').contains(b)) {
                return Err(bad());
            }
            let mode = digits.iter().fold(0, |mode, b| mode << 3 | u32::from(b - b'0'));
            if mode > 0o7777 {
                return Err(bad());
            }
            Ok(Request::SiteChmod { mode, path: path_behind(rest).map_err(|_| bad())? })
        }
        _ => Err(Refused::new(500, "This SITE command is not known here.")),
    }
}

/// The name in an argument of `LIST`, `NLST` or `STAT`, in which clients put flags of `ls`.
fn without_flags(argument: &[u8]) -> Option<&[u8]> {
    let mut rest = argument;
    while let Some((flags, behind)) = word(rest).filter(|(word, _)| word.len() > 1 && word[0] == b'-') {
        // `-1x` may be a file; what `ls` knows as flags is letters and a digit.
        if !flags[1..].iter().all(|b| b.is_ascii_alphanumeric()) || flags.len() > 6 {
            break;
        }
        rest = behind.strip_prefix(b" ").unwrap_or(behind);
    }
    (!rest.is_empty()).then_some(rest)
}
