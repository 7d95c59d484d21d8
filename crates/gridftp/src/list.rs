//! Listings of servers without `MLSD`: lines of `NLST`, and of `LIST` in its Unix and its DOS form.
//!
//! In: one line without its end. Out: what it says for certain.
//! Invariants: a name is as in [`check_name`]; a line that is not understood is an error and never guessed.
//! Understood are:
//! - Unix: `-rw-r--r--   1 root root 20000000 Nov 20 21:29 name`, with a year in place of the time, with `+`,
//!   `.` or `@` behind the mode, devices with two numbers for a size, symlinks with ` -> ` and the target,
//!   and `total N`, which is no entry;
//! - DOS: `11-20-26  09:29PM    20000000 name`, `11-20-2026  21:29       <DIR>          name`.
//!
//! Left out: listings without owner or group, with months in other languages, of VMS and mainframes. Times
//! are told as they stand, for neither form says the zone, and one of Unix' not the year.

use crate::FtpError;
use crate::listing::{Kind, LISTING_LINE_LEN_MAX, check_name};
use crate::ranges::FILE_LEN_MAX;
use crate::text::{number, unix_seconds, word};

const WHAT: &str = "line of a listing";
const BAD: FtpError = FtpError::BadForm { what: WHAT };

/// When an entry was changed, in the server's unknown zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListTime {
    /// Within about half a year of the server's now: which year is not told.
    Recent { month: u8, day: u8, hour: u8, minute: u8 },
    /// A day.
    Day { year: u16, month: u8, day: u8 },
    /// A minute.
    Minute { year: u16, month: u8, day: u8, hour: u8, minute: u8 },
}

/// What a line of `LIST` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListEntry<'a> {
    pub kind: Kind,
    /// Of files alone.
    pub size: Option<u64>,
    pub time: ListTime,
    /// Permission bits. The DOS form has none.
    pub mode: Option<u32>,
    /// How many names it has. The DOS form does not tell.
    pub links: Option<u64>,
    pub name: &'a [u8],
    /// Where a symlink leads.
    pub target: Option<&'a [u8]>,
}

/// Reads a name of `NLST` of the directory `dir`: alone, or behind `dir` as it was asked for.
///
/// # Errors
/// If what is left is no legal name.
pub fn parse_nlst<'a>(line: &'a [u8], dir: &[u8]) -> Result<&'a [u8], FtpError> {
    // Of `/` nothing is left but the slash that is there; of no directory at all no slash may be.
    let head = dir.strip_suffix(b"/").unwrap_or(dir);
    let behind = line.strip_prefix(head).and_then(|rest| rest.strip_prefix(b"/")).filter(|_| !dir.is_empty());
    let name = behind.unwrap_or(line);
    check_name(name)?;
    Ok(name)
}

/// Reads a line of `LIST`, in whichever form it is; `None` for `total N`. The directory itself and the one
/// above it, which `LIST -a` tells of, are of a kind of their own, and no children.
///
/// # Errors
/// If the line is in neither form, or its name is no legal one.
pub fn parse_list(line: &[u8]) -> Result<Option<ListEntry<'_>>, FtpError> {
    if line.len() > LISTING_LINE_LEN_MAX {
        return Err(FtpError::TooMany { what: WHAT, max: LISTING_LINE_LEN_MAX as u64 });
    }
    if let Some(blocks) = line.strip_prefix(b"total ") {
        return number(WHAT, blocks, u64::MAX).map(|_| None);
    }
    let is_dos = line.first().is_some_and(u8::is_ascii_digit);
    let mut entry = if is_dos { parse_dos(line)? } else { parse_unix(line)? };
    match entry.name {
        b"." if entry.kind == Kind::Dir => entry.kind = Kind::CurrentDir,
        b".." if entry.kind == Kind::Dir => entry.kind = Kind::ParentDir,
        name => check_name(name)?,
    }
    Ok(Some(entry))
}

/// Kind and name in a line that [`parse_list`] refuses for its name alone, for people: of a symlink with two
/// arrows all that stands behind the time. `None`: the line is in neither form.
pub fn refused_in(line: &[u8]) -> Option<(Kind, &[u8])> {
    let is_dos = line.first().is_some_and(u8::is_ascii_digit);
    let entry = if is_dos { parse_dos(line) } else { parse_columns(line) };
    entry.ok().map(|entry| (entry.kind, entry.name)).filter(|(_, name)| !name.is_empty())
}

fn parse_unix(line: &[u8]) -> Result<ListEntry<'_>, FtpError> {
    let entry = parse_columns(line)?;
    if entry.kind != Kind::Symlink {
        return Ok(entry);
    }
    let (name, target) = split_link(entry.name)?;
    Ok(ListEntry { name, target, ..entry })
}

/// The same, with name and target of a symlink as they stand there.
fn parse_columns(line: &[u8]) -> Result<ListEntry<'_>, FtpError> {
    let (mode, rest) = word(line).ok_or(BAD)?;
    let (kind, is_device, mode) = parse_mode(mode)?;
    let (links, rest) = word(rest).ok_or(BAD)?;
    let links = number(WHAT, links, u64::MAX)?;
    let (_owner, rest) = word(rest).ok_or(BAD)?;
    let (_group, rest) = word(rest).ok_or(BAD)?;
    let (mut size, mut rest) = word(rest).ok_or(BAD)?;
    if is_device && let Some(major) = size.strip_suffix(b",") {
        number(WHAT, major, u64::MAX)?;
        (size, rest) = word(rest).ok_or(BAD)?;
    }
    let size = number(WHAT, size, FILE_LEN_MAX)?;
    let (month, rest) = word(rest).ok_or(BAD)?;
    let (day, rest) = word(rest).ok_or(BAD)?;
    let (clock, rest) = word(rest).ok_or(BAD)?;
    const MONTHS: [&[u8]; 12] =
        [b"jan", b"feb", b"mar", b"apr", b"may", b"jun", b"jul", b"aug", b"sep", b"oct", b"nov", b"dec"];
    let month = MONTHS.iter().position(|m| m.eq_ignore_ascii_case(month)).ok_or(BAD)? as u8 + 1;
    let day = number(WHAT, day, 31)? as u8;
    let time = match clock.iter().position(|b| *b == b':') {
        Some(at) => {
            let (hour, minute) = (number(WHAT, &clock[..at], 23)?, number(WHAT, &clock[at + 1..], 59)?);
            // 29 February is in some year.
            ListTime::Recent { month, day, hour: hour as u8, minute: minute as u8 }
        }
        None if clock.len() == 4 => ListTime::Day { year: number(WHAT, clock, 9999)? as u16, month, day },
        None => return Err(BAD),
    };
    check_time(&time)?;
    // One space, and what else there is belongs to the name.
    let name = rest.strip_prefix(b" ").ok_or(BAD)?;
    let size = (kind == Kind::File).then_some(size);
    Ok(ListEntry { kind, size, time, mode: Some(mode), links: Some(links), name, target: None })
}

/// The name of a symlink and its target: with two arrows nobody can tell which one is which.
fn split_link(text: &[u8]) -> Result<(&[u8], Option<&[u8]>), FtpError> {
    const ARROW: &[u8] = b" -> ";
    let mut arrows = text.windows(ARROW.len()).enumerate().filter(|(_, w)| *w == ARROW);
    match (arrows.next(), arrows.next()) {
        (Some((at, _)), None) => Ok((&text[..at], Some(&text[at + ARROW.len()..]))),
        _ => Err(BAD),
    }
}

/// `drwxr-sr-t`: the kind, whether it is a device, and the permission bits.
fn parse_mode(text: &[u8]) -> Result<(Kind, bool, u32), FtpError> {
    let (text, more) = text.split_at_checked(10).ok_or(BAD)?;
    if !matches!(more, b"" | b"+" | b"." | b"@") {
        return Err(BAD);
    }
    let kind = match text[0] {
        b'-' => Kind::File,
        b'd' => Kind::Dir,
        b'l' => Kind::Symlink,
        b'b' | b'c' | b'p' | b's' => Kind::Other,
        _ => return Err(BAD),
    };
    let mut mode = 0;
    for (class, bits) in text[1..].chunks(3).enumerate() {
        let special = 0o4000 >> class;
        let (lower, upper) = if class == 2 { (b't', b'T') } else { (b's', b'S') };
        let shift = 6 - 3 * class;
        mode |= match bits[0] {
            b'r' => 4 << shift,
            b'-' => 0,
            _ => return Err(BAD),
        };
        mode |= match bits[1] {
            b'w' => 2 << shift,
            b'-' => 0,
            _ => return Err(BAD),
        };
        mode |= match bits[2] {
            b'x' => 1 << shift,
            b'-' => 0,
            b if b == lower => special | 1 << shift,
            b if b == upper => special,
            _ => return Err(BAD),
        };
    }
    Ok((kind, matches!(text[0], b'b' | b'c'), mode))
}

fn parse_dos(line: &[u8]) -> Result<ListEntry<'_>, FtpError> {
    let (date, rest) = word(line).ok_or(BAD)?;
    let (clock, rest) = word(rest).ok_or(BAD)?;
    let (what, rest) = word(rest).ok_or(BAD)?;
    let parts: Vec<&[u8]> = date.splitn(4, |b| *b == b'-').collect();
    let [month, day, year] = parts[..] else { return Err(BAD) };
    if month.len() != 2 || day.len() != 2 {
        return Err(BAD);
    }
    let year = match (year.len(), number(WHAT, year, 9999)? as u16) {
        (2, year @ 70..) => 1900 + year,
        (2, year) => 2000 + year,
        (4, year) => year,
        _ => return Err(BAD),
    };
    let (month, day) = (number(WHAT, month, 12)? as u8, number(WHAT, day, 31)? as u8);
    let (clock, half) = match clock.split_at_checked(5).ok_or(BAD)? {
        (clock, b"") => (clock, None),
        (clock, half) if half.eq_ignore_ascii_case(b"AM") => (clock, Some(0)),
        (clock, half) if half.eq_ignore_ascii_case(b"PM") => (clock, Some(12)),
        _ => return Err(BAD),
    };
    let (hour, minute) = crate::text::split_at_byte(clock, b':').ok_or(BAD)?;
    let (hour, minute) = (number(WHAT, hour, 23)? as u8, number(WHAT, minute, 59)? as u8);
    let hour = match half {
        None => hour,
        Some(half) if (1..=12).contains(&hour) => hour % 12 + half,
        Some(_) => return Err(BAD),
    };
    let time = ListTime::Minute { year, month, day, hour, minute };
    check_time(&time)?;
    let (kind, size, name) = if what == b"<DIR>" {
        // IIS writes ten spaces there, to the end of its column; one beyond these is the name's.
        let blanks = rest.iter().take_while(|b| **b == b' ').count().min(10);
        (Kind::Dir, None, &rest[blanks..])
    } else {
        (Kind::File, Some(number(WHAT, what, FILE_LEN_MAX)?), rest.strip_prefix(b" ").ok_or(BAD)?)
    };
    Ok(ListEntry { kind, size, time, mode: None, links: None, name, target: None })
}

fn check_time(time: &ListTime) -> Result<(), FtpError> {
    let (year, month, day) = match *time {
        // A leap year, for 29 February may be meant.
        ListTime::Recent { month, day, .. } => (2000, month, day),
        ListTime::Day { year, month, day } | ListTime::Minute { year, month, day, .. } => (year, month, day),
    };
    unix_seconds(year.into(), month.into(), day.into(), [0; 3]).map(|_| ()).ok_or(BAD)
}
