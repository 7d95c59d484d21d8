//! Lines of listings, and what two listings of one directory say together.
//!
//! In: the bytes of `MLSD`, `LIST` and `LIST -a`. Out: entries, and what is none.
//! Invariants: no line is passed over in silence; what is not understood comes as it is.

use std::collections::HashSet;

use haul_gridftp::FtpError;
use haul_gridftp::line::LineReader;
use haul_gridftp::list::{parse_list, refused_in};
use haul_gridftp::listing::{Facts, Kind, LISTING_LINE_LEN_MAX, check_name, parse_facts_of};

use crate::Error;

/// Most lines of one directory's listing.
const LISTING_LINES_MAX: usize = 1_000_000;

/// A line of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listed {
    /// `exact`: size and time are to the second; if not, they are to be asked for.
    Entry { name: Vec<u8>, facts: Facts, exact: bool },
    /// The directory that was asked for; before all that is in it.
    Itself(Facts),
    /// What is no legal name or is not understood, and why: its name as far as that can be told, else the
    /// line as it came; and its kind, where `LIST` told it.
    Bad { name: Vec<u8>, kind: Option<Kind>, why: String },
    /// The listing ends within this line: more may lie there.
    Cut(Vec<u8>),
    /// By the server's word there is more; why.
    Short(String),
}

impl Listed {
    /// The name of an entry.
    pub fn name(&self) -> Option<&[u8]> {
        match self {
            Listed::Entry { name, .. } => Some(name),
            _ => None,
        }
    }
}

/// What a listing says of this name.
pub(crate) fn named<'a>(listed: &'a [Listed], wanted: &[u8]) -> Option<&'a Facts> {
    listed.iter().find_map(|line| match line {
        Listed::Entry { name, facts, .. } if name == wanted => Some(facts),
        _ => None,
    })
}

/// What a directory holds by `LIST -a` and by `LIST`: what either of them shows. But if there is a directory
/// of the option's name, and the first does not show all that the second does, the first is of that one.
pub(crate) fn either(with: Vec<Listed>, without: Vec<Listed>) -> Vec<Listed> {
    let name = |line: &Listed| match line {
        Listed::Entry { name, .. } | Listed::Bad { name, .. } => Some(name.clone()),
        Listed::Cut(_) | Listed::Short(_) | Listed::Itself(_) => None,
    };
    let shown: HashSet<Vec<u8>> = with.iter().filter_map(name).collect();
    let is_dir = named(&without, b"-a").is_some_and(|facts| facts.kind != Some(Kind::File));
    if is_dir && !without.iter().filter_map(name).all(|name| shown.contains(&name)) {
        return without;
    }
    let known: HashSet<Vec<u8>> = without.iter().filter_map(name).collect();
    let is_more = |line: &Listed| match line {
        Listed::Entry { name, .. } => !known.contains(name),
        // Some servers send here in words that there is no such file.
        Listed::Bad { name, kind, .. } => !known.contains(name) && (kind.is_some() || begins_as_listed(name)),
        Listed::Cut(_) | Listed::Short(_) | Listed::Itself(_) => true,
    };
    let more: Vec<Listed> = with.into_iter().filter(is_more).collect();
    without.into_iter().chain(more).collect()
}

/// It begins as a line of `LIST` does, with a mode or a date.
fn begins_as_listed(line: &[u8]) -> bool {
    let is_mode = |mode: &[u8]| mode.iter().all(|byte| b"-dlbcpsrwxStT".contains(byte));
    line.first().is_some_and(u8::is_ascii_digit) || line.get(..10).is_some_and(is_mode)
}

/// The lines of a listing.
pub(crate) fn lines(
    bytes: &[u8],
    read: &mut dyn FnMut(&[u8]) -> Option<Listed>,
) -> Result<Vec<Listed>, Error> {
    let (mut all, mut at) = (Vec::new(), 0);
    let mut reader = LineReader::new("line of a listing", LISTING_LINE_LEN_MAX);
    while at < bytes.len() {
        let (len, line) = reader.feed(&bytes[at..])?;
        at += len;
        let Some(line) = line else { break };
        all.extend(read(&line));
        if all.len() > LISTING_LINES_MAX {
            return Err(Error::Broken {
                doing: "reading a directory",
                why: "it has more than a million entries",
            });
        }
    }
    let last = reader.finish();
    if !last.is_empty() {
        all.push(Listed::Cut(last));
    }
    Ok(all)
}

/// A line of `MLSD`; `None`: it is of nothing that lies there.
pub(crate) fn mlsd_line(line: &[u8]) -> Option<Listed> {
    if line.is_empty() {
        return None;
    }
    Some(match parse_facts_of(line) {
        Ok((Facts { kind: Some(Kind::ParentDir), .. }, _)) => return None,
        Ok((facts @ Facts { kind: Some(Kind::CurrentDir), .. }, _)) => Listed::Itself(facts),
        Ok((facts, name)) => match check_name(name) {
            Ok(()) => Listed::Entry { name: name.to_vec(), facts, exact: true },
            Err(error) => bad(name, None, &error),
        },
        Err(error) => bad(line, None, &error),
    })
}

/// The same of `LIST`; `saw_itself`: one was of the directory itself.
pub(crate) fn list_line(line: &[u8], saw_itself: &mut bool) -> Option<Listed> {
    if line.is_empty() {
        return None;
    }
    match parse_list(line) {
        Ok(None) => None,
        Ok(Some(entry)) if entry.kind == Kind::CurrentDir => {
            *saw_itself = true;
            None
        }
        Ok(Some(entry)) if entry.kind == Kind::ParentDir => None,
        Ok(Some(entry)) => {
            let facts = Facts {
                kind: Some(entry.kind),
                size: entry.size,
                unix_mode: entry.mode,
                links: entry.links,
                unix_slink: entry.target.map(Into::into),
                ..Facts::default()
            };
            Some(Listed::Entry { name: entry.name.to_vec(), facts, exact: false })
        }
        Err(error) => Some(match refused_in(line) {
            Some((kind, name)) => bad(name, Some(kind), &error),
            None => bad(line, None, &error),
        }),
    }
}

fn bad(name: &[u8], kind: Option<Kind>, why: &FtpError) -> Listed {
    Listed::Bad { name: name.to_vec(), kind, why: why.to_string() }
}
