//! Lines of `MLSD`, `MLST` and their kin (RFC 3659): facts and a name.
//!
//! In: one line without its end. Out: [`Facts`] and the name as bytes; and the same written.
//! Invariants: a name that [`parse_mlsd`] yields is one component that no terminal minds ([`check_name`]); no
//! line is longer than [`LISTING_LINE_LEN_MAX`], none has more than [`FACTS_MAX`] facts.
//! A size, time or count that is none, or a fact that is told twice, spoils the line: a size that is guessed
//! is worse than a file that is told to be left out. Facts that are not known are passed over, and so are
//! modes and numbers of owners in a form that is not known: without them there are others. Left out:
//! `UNIX.slink` is kept as it came, for some servers encode it as URLs do and others do not.

use crate::FtpError;
use crate::ranges::FILE_LEN_MAX;
use crate::text::{fraction, number, split_at_byte, strip_ignoring_case, unix_seconds};

/// Longest line of a listing, of whatever kind, without its end.
pub const LISTING_LINE_LEN_MAX: usize = 16_384;
/// Most facts of an entry.
pub const FACTS_MAX: usize = 64;
/// Longest name, as file systems have it.
pub const NAME_LEN_MAX: usize = 255;

const WHAT: &str = "line of a listing";

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Dir,
    /// The directory that is listed.
    CurrentDir,
    /// The directory above it.
    ParentDir,
    Symlink,
    /// A device, a pipe, a socket, or what the server alone knows.
    Other,
}

/// A moment in UTC: seconds since 1970 and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    pub secs: i64,
    pub nanos: u32,
}

/// What a server says of an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub kind: Option<Kind>,
    pub size: Option<u64>,
    pub modify: Option<Moment>,
    /// What the user may do with it, as letters of RFC 3659, 7.5.5.
    pub perm: Option<Box<[u8]>>,
    /// The same for two names of one file, and for no other file of the server.
    pub unique: Option<Box<[u8]>>,
    /// Permission bits, without the kind.
    pub unix_mode: Option<u32>,
    pub unix_owner: Option<Box<[u8]>>,
    pub unix_group: Option<Box<[u8]>>,
    pub unix_uid: Option<u32>,
    pub unix_gid: Option<u32>,
    /// Where a symlink leads, as it came. Globus tells the kind of what is there beside it, and the whole
    /// path of that, whatever is written in the link.
    pub unix_slink: Option<Box<[u8]>>,
    /// Of a directory that is listed: how many names it has, `.` and `..` among them (`X.count` of Globus).
    pub count: Option<u64>,
    /// How many names it has, where a line of `LIST` tells; no fact of `MLSD`.
    pub links: Option<u64>,
}

impl Facts {
    /// The name itself is a symlink, whatever the kind says of its target.
    pub fn is_symlink(&self) -> bool {
        self.kind == Some(Kind::Symlink) || self.unix_slink.is_some()
    }

    /// It is a link, and what is told is only what it leads to in the end: as Globus has it, with the kind of
    /// that.
    pub fn is_resolved_link(&self) -> bool {
        self.kind.is_some_and(|kind| kind != Kind::Symlink)
            && self.unix_slink.as_ref().is_some_and(|target| target.starts_with(b"/"))
    }

    /// Appends the facts that are there, a space and `name`, without a line's end.
    ///
    /// # Errors
    /// If a value or the name cannot stand in a line.
    pub fn encode(&self, name: &[u8], out: &mut Vec<u8>) -> Result<(), FtpError> {
        let start = out.len();
        let kind = self.kind.map(|kind| match kind {
            Kind::File => "file",
            Kind::Dir => "dir",
            Kind::CurrentDir => "cdir",
            Kind::ParentDir => "pdir",
            Kind::Symlink => "OS.unix=slink",
            Kind::Other => "OS.unix=other",
        });
        let text = |value: Option<String>| value.map(String::into_bytes);
        let copy = |value: &Option<Box<[u8]>>| value.as_ref().map(|v| v.to_vec());
        let modify = match self.modify {
            Some(moment) => Some(write_moment(moment)?),
            None => None,
        };
        let facts = [
            ("Type", text(kind.map(str::to_owned))),
            ("Modify", text(modify)),
            ("Size", text(self.size.map(|size| size.to_string()))),
            ("Perm", copy(&self.perm)),
            ("UNIX.mode", text(self.unix_mode.map(|mode| format!("{:04o}", mode & 0o7777)))),
            ("UNIX.owner", copy(&self.unix_owner)),
            ("UNIX.uid", text(self.unix_uid.map(|id| id.to_string()))),
            ("UNIX.group", copy(&self.unix_group)),
            ("UNIX.gid", text(self.unix_gid.map(|id| id.to_string()))),
            ("UNIX.slink", copy(&self.unix_slink)),
            ("Unique", copy(&self.unique)),
        ];
        let bad = |b: &&u8| matches!(**b, b';' | b' ' | b'\r' | b'\n' | 0);
        for (fact, value) in facts {
            let Some(value) = value else { continue };
            if let Some(byte) = value.iter().find(bad) {
                out.truncate(start);
                return Err(FtpError::BadByte { what: "fact of a listing", byte: *byte });
            }
            out.extend_from_slice(format!("{fact}=").as_bytes());
            out.extend_from_slice(&value);
            out.push(b';');
        }
        out.push(b' ');
        out.extend_from_slice(name);
        let byte = name.iter().find(|b| matches!(b, b'\r' | b'\n' | 0));
        if name.is_empty() || byte.is_some() || out.len() - start > LISTING_LINE_LEN_MAX {
            out.truncate(start);
            return Err(FtpError::BadName);
        }
        Ok(())
    }
}

/// Reads one line of `MLSD`: facts and the name of a child. The directory itself and the one above are none.
///
/// # Errors
/// If the line is not understood, or the name is no legal one.
pub fn parse_mlsd(line: &[u8]) -> Result<Option<(Facts, &[u8])>, FtpError> {
    let (facts, name) = parse_facts(line)?;
    if matches!(facts.kind, Some(Kind::CurrentDir | Kind::ParentDir)) {
        return Ok(None);
    }
    check_name(name)?;
    Ok(Some((facts, name)))
}

/// Reads the line between the first and the last of a reply to `MLST`: facts and the path as the server has
/// it. It is no name: whoever asked knows what it asked for.
///
/// # Errors
/// If the line is not understood.
pub fn parse_mlst(line: &[u8]) -> Result<(Facts, &[u8]), FtpError> {
    // RFC 3659 wants one space there; without it the line begins with its facts.
    parse_facts(line.strip_prefix(b" ").unwrap_or(line))
}

/// Whether `name` can be one component of a path here, and be shown.
///
/// # Errors
/// If it is empty, `.`, `..`, longer than [`NAME_LEN_MAX`], or holds `/`, NUL or a control byte.
pub fn check_name(name: &[u8]) -> Result<(), FtpError> {
    let is_bad = |b: &u8| *b == b'/' || b.is_ascii_control();
    match name {
        b"" | b"." | b".." => Err(FtpError::BadName),
        _ if name.len() > NAME_LEN_MAX || name.iter().any(is_bad) => Err(FtpError::BadName),
        _ => Ok(()),
    }
}

/// Reads one line of `MLSD` as it stands: also of the directory itself and the one above, and whatever the
/// name is. Whoever takes the name asks [`check_name`].
///
/// # Errors
/// If the line is not understood.
pub fn parse_facts_of(line: &[u8]) -> Result<(Facts, &[u8]), FtpError> {
    parse_facts(line)
}

fn parse_facts(line: &[u8]) -> Result<(Facts, &[u8]), FtpError> {
    if line.len() > LISTING_LINE_LEN_MAX {
        return Err(FtpError::TooMany { what: WHAT, max: LISTING_LINE_LEN_MAX as u64 });
    }
    // No fact holds a space; the first one is what the name stands behind, and may be followed by the name's.
    let (text, name) = split_at_byte(line, b' ').ok_or(FtpError::BadForm { what: WHAT })?;
    let mut facts = Facts::default();
    let mut in_type = None;
    if let Some(text) = text.strip_suffix(b";") {
        for (i, fact) in text.split(|b| *b == b';').enumerate() {
            if i == FACTS_MAX {
                return Err(FtpError::TooMany { what: "facts", max: FACTS_MAX as u64 });
            }
            let (fact, value) = split_at_byte(fact, b'=').ok_or(FtpError::BadForm { what: WHAT })?;
            parse_fact(&mut facts, &mut in_type, &fact.to_ascii_lowercase(), value)?;
        }
    } else if !text.is_empty() {
        return Err(FtpError::BadForm { what: WHAT });
    }
    if facts.unix_slink.is_none() {
        facts.unix_slink = in_type;
    }
    Ok((facts, name))
}

fn parse_fact(
    facts: &mut Facts,
    slink_in_type: &mut Option<Box<[u8]>>,
    fact: &[u8],
    value: &[u8],
) -> Result<(), FtpError> {
    match fact {
        b"type" => {
            let (kind, target) = parse_kind(value);
            *slink_in_type = target.map(Into::into);
            once(&mut facts.kind, kind)
        }
        b"size" => once(&mut facts.size, number("size", value, FILE_LEN_MAX)?),
        b"modify" => once(&mut facts.modify, parse_moment(value)?),
        b"perm" => once(&mut facts.perm, value.into()),
        b"unique" => once(&mut facts.unique, value.into()),
        b"unix.mode" => once_if_known(&mut facts.unix_mode, parse_mode(value)),
        b"unix.owner" => once(&mut facts.unix_owner, value.into()),
        b"unix.group" => once(&mut facts.unix_group, value.into()),
        b"unix.uid" => once_if_known(&mut facts.unix_uid, parse_id(value)),
        b"unix.gid" => once_if_known(&mut facts.unix_gid, parse_id(value)),
        b"unix.slink" => once(&mut facts.unix_slink, value.into()),
        b"x.count" => once(&mut facts.count, number("count", value, u64::MAX)?),
        _ => Ok(()),
    }
}

fn once<T>(place: &mut Option<T>, value: T) -> Result<(), FtpError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(FtpError::BadForm { what: "fact that is told twice" }),
    }
}

/// The same of what nobody needs: a value of a form that is not known is none.
fn once_if_known<T>(place: &mut Option<T>, value: Option<T>) -> Result<(), FtpError> {
    value.map_or(Ok(()), |value| once(place, value))
}

fn parse_kind(value: &[u8]) -> (Kind, Option<&[u8]>) {
    let known = [
        (&b"file"[..], Kind::File),
        (b"dir", Kind::Dir),
        (b"cdir", Kind::CurrentDir),
        (b"pdir", Kind::ParentDir),
        (b"OS.unix=slink", Kind::Symlink),
        (b"OS.unix=symlink", Kind::Symlink),
    ];
    if let Some((_, kind)) = known.iter().find(|(name, _)| name.eq_ignore_ascii_case(value)) {
        return (*kind, None);
    }
    match strip_ignoring_case(value, b"OS.unix=slink:") {
        Some(target) => (Kind::Symlink, Some(target)),
        None => (Kind::Other, None),
    }
}

/// `YYYYMMDDHHMMSS`, and perhaps a dot and a fraction; in UTC (RFC 3659, 2.3). It is what `MDTM` answers too.
///
/// Edge: servers with the fault of the year 2000 send 15 digits (`19100...` for 2000): refused.
///
/// # Errors
/// If it is anything else, or no date.
pub fn parse_moment(value: &[u8]) -> Result<Moment, FtpError> {
    const WHAT: &str = "time of a file";
    let (digits, nanos) = match split_at_byte(value, b'.') {
        Some((digits, rest)) => (digits, fraction(WHAT, rest)?),
        None => (value, 0),
    };
    if digits.len() != 14 {
        return Err(FtpError::BadForm { what: WHAT });
    }
    let part = |at: usize, len: usize| number(WHAT, &digits[at..at + len], u64::MAX);
    let time = [part(8, 2)?, part(10, 2)?, part(12, 2)?];
    let secs = unix_seconds(part(0, 4)?, part(4, 2)?, part(6, 2)?, time);
    Ok(Moment { secs: secs.ok_or(FtpError::BadForm { what: WHAT })?, nanos })
}

/// Writes what [`parse_moment`] reads, with a fraction only where there is one.
///
/// # Errors
/// If the year is not of four digits.
pub fn write_moment(moment: Moment) -> Result<String, FtpError> {
    let days = moment.secs.div_euclid(86_400);
    let time = moment.secs.rem_euclid(86_400);
    // Days since 1 March of the year 0; the inverse of `unix_seconds`.
    let bad = FtpError::BadForm { what: "time of a file" };
    let days = days.checked_add(719_468).ok_or(bad.clone())?;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * months + 2) / 5 + 1;
    let month = if months < 10 { months + 3 } else { months - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    if !(1..=9999).contains(&year) || moment.nanos > 999_999_999 {
        return Err(bad);
    }
    let (hour, minute, second) = (time / 3_600, time / 60 % 60, time % 60);
    let mut text = format!("{year:04}{month:02}{day:02}{hour:02}{minute:02}{second:02}");
    if moment.nanos > 0 {
        text += format!(".{:09}", moment.nanos).trim_end_matches('0');
    }
    Ok(text)
}

/// Octal digits, behind `0o` where Python wrote them (pyftpdlib); bits that say the kind are taken and
/// dropped.
fn parse_mode(value: &[u8]) -> Option<u32> {
    let digits = value.strip_prefix(b"0o").unwrap_or(value);
    if digits.is_empty() || digits.len() > 7 || !digits.iter().all(|b| (b'0'..=b'7').contains(b)) {
        return None;
    }
    let mode = digits.iter().fold(0, |mode, b| mode << 3 | u32::from(b - b'0'));
    (mode <= 0o177_777).then_some(mode & 0o7777)
}

fn parse_id(value: &[u8]) -> Option<u32> {
    number("id", value, u32::MAX.into()).ok().map(|id| id as u32)
}
