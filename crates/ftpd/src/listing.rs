//! Lines of `MLSD`, `NLST` and `LIST` for what a directory has, made as they are sent.
//!
//! In: an open directory. Out: lines with CRLF, a piece of some lines at a time.
//! Invariants: no more than a piece is held, whatever the directory has. What goes away between its name and
//! the look at it is left out; a name that no line can hold is counted, for an answer that leaves it out
//! unsaid would lose it.

use haul_core::entry::Name;
use haul_gridftp::listing::{Facts, Kind, Moment, write_moment};
use rustix::io::Errno;

use crate::config::Access;
use crate::store::{Dir, Entries, Fault, FileType, Stat};
use crate::tree::{Lost, is_kept};

/// Bytes of lines that are made at a time.
const PIECE_LEN: usize = 64 << 10;
/// Files that are older, in seconds, are listed with their year.
const HALF_A_YEAR: i64 = 182 * 86_400;
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Which facts are told, in the order in which they stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted([bool; FACTS.len()]);

/// Facts that can be told.
pub const FACTS: [&str; 8] =
    ["type", "modify", "size", "perm", "unix.mode", "unix.uid", "unix.gid", "unix.slink"];
/// The one that is always the last.
const UNIQUE: &str = "unique";

impl Wanted {
    pub const ALL: Wanted = Wanted([true; FACTS.len()]);

    /// Those of `names` that there are.
    pub fn of(names: &[String]) -> Wanted {
        Wanted(FACTS.map(|fact| names.iter().any(|name| name == fact)))
    }

    fn has(self, fact: &str) -> bool {
        FACTS.iter().position(|f| *f == fact).is_some_and(|at| self.0[at])
    }

    /// For the answer to `FEAT`, and to `OPTS MLST`.
    pub fn in_words(self, star: bool) -> String {
        let told = |fact: &str| match (self.has(fact), star) {
            (true, true) => format!("{fact}*;"),
            (true, false) => format!("{fact};"),
            (false, true) => format!("{fact};"),
            (false, false) => String::new(),
        };
        let mut text: String = FACTS.iter().map(|fact| told(fact)).collect();
        if star {
            text += UNIQUE;
            text += "*;";
        }
        text
    }
}

/// What a listing looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Facts(Wanted),
    Names,
    Long,
}

/// What is known of an entry.
pub fn facts(stat: &Stat, kind: Option<Kind>, link: Option<&[u8]>, access: Access, wanted: Wanted) -> Facts {
    let of = stat.kind;
    let kind = kind.unwrap_or(match of {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Dir,
        FileType::Symlink => Kind::Symlink,
        _ => Kind::Other,
    });
    let perm: &[u8] = match (of, access) {
        (FileType::Directory, Access::Read) => b"el",
        (FileType::Directory, Access::Write) => b"cdeflmp",
        (FileType::RegularFile, Access::Read) => b"r",
        (FileType::RegularFile, Access::Write) => b"adfrw",
        (_, Access::Read) => b"",
        (_, Access::Write) => b"df",
    };
    let legal = |link: &&[u8]| !link.iter().any(|b| matches!(b, b';' | b' ' | b'\r' | b'\n' | 0));
    let on = |fact| wanted.has(fact);
    Facts {
        kind: on("type").then_some(kind),
        size: (on("size") && of == FileType::RegularFile).then_some(stat.len),
        modify: on("modify").then_some(Moment { secs: stat.mtime.0, nanos: 0 }),
        perm: on("perm").then(|| perm.into()),
        unique: Some(format!("{:x}-{:x}", stat.dev, stat.ino).into_bytes().into()),
        unix_mode: on("unix.mode").then_some(stat.mode),
        unix_uid: on("unix.uid").then_some(stat.uid),
        unix_gid: on("unix.gid").then_some(stat.gid),
        unix_slink: link.filter(legal).filter(|_| on("unix.slink")).map(Into::into),
        ..Facts::default()
    }
}

/// A line as `ls -l` writes it, without its end. `now` is in seconds since 1970.
pub fn long_line(stat: &Stat, name: &[u8], link: Option<&[u8]>, now: i64) -> Vec<u8> {
    let kind = match stat.kind {
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        FileType::CharacterDevice => 'c',
        FileType::BlockDevice => 'b',
        _ => '-',
    };
    let bit = |shift: u32, letter: char| if stat.mode >> shift & 1 == 1 { letter } else { '-' };
    let rights: String = (0..9).map(|i| bit(8 - i, ['r', 'w', 'x'][i as usize % 3])).collect();
    let digits = write_moment(Moment { secs: stat.mtime.0, nanos: 0 });
    let digits = digits.unwrap_or_else(|_| "19700101000000".to_owned());
    let month = digits[4..6].parse::<usize>().ok().and_then(|month| MONTHS.get(month.wrapping_sub(1)));
    let day = digits[6..8].trim_start_matches('0');
    let age = now.saturating_sub(stat.mtime.0);
    let when = match (0..HALF_A_YEAR).contains(&age) {
        true => format!("{}:{}", &digits[8..10], &digits[10..12]),
        false => format!(" {}", &digits[..4]),
    };
    let head = format!(
        "{kind}{rights} {:>4} {:<8} {:<8} {:>12} {} {day:>2} {when} ",
        stat.links,
        stat.uid,
        stat.gid,
        stat.len,
        month.unwrap_or(&MONTHS[0]),
    );
    let arrow = link.map(|link| [b" -> ", link].concat()).unwrap_or_default();
    [head.as_bytes(), name, &arrow].concat()
}

/// The lines of one directory, or the one of a file.
pub struct Listing {
    dir: Box<dyn Dir>,
    entries: Option<Entries>,
    /// Of a file: its name as it was said, and what it is.
    single: Option<(Name, Vec<u8>)>,
    /// Lines before those of the entries: the directory itself.
    first: Vec<u8>,
    form: Form,
    access: Access,
    now: i64,
    /// Names that no line can hold.
    pub untold: u64,
}

impl Listing {
    /// Of all that is in `dir`.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of_dir(dir: Box<dyn Dir>, form: Form, access: Access, now: i64) -> Result<Self, Lost> {
        let entries = Some(dir.entries(form != Form::Names)?);
        let mut first = Vec::new();
        if let Form::Facts(wanted) = form {
            let stat = dir.stat()?;
            let told = facts(&stat, Some(Kind::CurrentDir), None, access, wanted);
            told.encode(b".", &mut first).map_err(|_| Lost::BadName)?;
            first.extend_from_slice(b"\r\n");
        }
        Ok(Listing { dir, entries, single: None, first, form, access, now, untold: 0 })
    }

    /// Of one name in `dir`, which is shown as it was said.
    pub fn of_name(dir: Box<dyn Dir>, name: Name, said: &[u8], form: Form, access: Access, now: i64) -> Self {
        let single = Some((name, said.to_vec()));
        Listing { dir, entries: None, single, first: Vec::new(), form, access, now, untold: 0 }
    }

    /// The next piece; empty at the end.
    ///
    /// # Errors
    /// The directory cannot be read to its end.
    pub fn piece(&mut self) -> Result<Vec<u8>, Lost> {
        let mut out = std::mem::take(&mut self.first);
        if let Some((name, said)) = self.single.take() {
            self.line(&name, &said, None, &mut out)?;
            return Ok(out);
        }
        while out.len() < PIECE_LEN {
            let Some(entry) = self.entries.as_mut().and_then(Iterator::next) else { break };
            let entry = entry?;
            if is_kept(&entry.name) {
                continue;
            }
            let Ok(name) = Name::new(&entry.name) else {
                self.untold += 1;
                continue;
            };
            self.line(&name, &entry.name, entry.seen, &mut out)?;
        }
        Ok(out)
    }

    /// `seen`: what it is, and where it leads, if that is known already.
    fn line(
        &mut self,
        name: &Name,
        said: &[u8],
        seen: Option<(Stat, Option<Vec<u8>>)>,
        out: &mut Vec<u8>,
    ) -> Result<(), Lost> {
        if said.iter().any(|b| matches!(b, b'\r' | b'\n')) {
            self.untold += 1;
            return Ok(());
        }
        if self.form == Form::Names {
            out.extend_from_slice(said);
            out.extend_from_slice(b"\r\n");
            return Ok(());
        }
        let look = || -> Result<(Stat, Option<Vec<u8>>), Fault> {
            let stat = self.dir.look(name)?;
            let link = (stat.kind == FileType::Symlink).then(|| self.dir.link(name).ok()).flatten();
            Ok((stat, link))
        };
        let (stat, link) = match seen.map_or_else(look, Ok) {
            Ok(seen) => seen,
            Err(fault) if fault.is(Errno::NOENT) => return Ok(()),
            Err(fault) => return Err(fault.into()),
        };
        let link = link.as_deref();
        match self.form {
            Form::Facts(wanted) => {
                if facts(&stat, None, link, self.access, wanted).encode(said, out).is_err() {
                    self.untold += 1;
                    return Ok(());
                }
            }
            _ => {
                let link = link.filter(|link| !link.iter().any(|b| matches!(b, b'\r' | b'\n')));
                out.extend_from_slice(&long_line(&stat, said, link, self.now));
            }
        }
        out.extend_from_slice(b"\r\n");
        Ok(())
    }
}
