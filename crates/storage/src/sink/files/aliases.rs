//! Which files of the destination have several names, and whose each is.
//!
//! In: what stands at the names of entries, and whether it looks like what they are to be. Out: whether an
//! entry may have it, or count on it.
//! Invariants: size and time do not show whose bytes a file has: no two entries count on one file as their
//! copy, unless their sources are one file as well; in place none is written that another entry has or counts
//! on. Where file systems are mounted below the destination more than once, a file has several names without
//! a further link, and is one entry's, whatever becomes of it.
//! Bounds: remembered is only what may have several names, and of that so many as [`ALIASES_MAX`]; what comes
//! behind that is copied, and in place left alone.
//! Left out: mounts that come or go while a copy runs, and one file system under two device numbers.

use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Mutex;

use haul_core::entry::Fingerprint;
use haul_core::ids::FileId;
use haul_core::transfer::op::Inode;
use rustix::fs::Stat;

use crate::sink::lock;
use crate::sink::stat::inode_of;

/// Files with several names that are remembered.
const ALIASES_MAX: usize = 1 << 20;

/// What may be done with a file that has several names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sink) enum Verdict {
    /// It is this entry's.
    Mine,
    /// Nobody remembers whose it is: it is not what the entry is to be.
    Unknown,
    /// Another entry has it, or counts on it.
    Anothers,
}

/// Which version of which source a file is a copy of, if that can be told apart from all others of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sink) struct Print(Option<u64>);

impl Print {
    /// No entry's source is known to be the same.
    pub(in crate::sink) const NONE: Print = Print(None);

    pub(in crate::sink) fn of(told: &Fingerprint) -> Print {
        if told.version.as_bytes().is_empty() {
            return Print::NONE;
        }
        let mut hash = blake3::Hasher::new();
        hash.update(&told.size.to_le_bytes());
        hash.update(&told.mtime.secs.to_le_bytes());
        hash.update(&told.mtime.nanos.to_le_bytes());
        hash.update(told.version.as_bytes());
        Print(hash.finalize().as_bytes().first_chunk().map(|first| u64::from_le_bytes(*first)))
    }

    fn is(self, other: Print) -> bool {
        self.0.is_some() && self == other
    }
}

/// Whose an inode with several names is.
#[derive(Clone, Copy, Debug)]
enum Alias {
    /// This entry alone may have it.
    Of(FileId),
    /// It looked like this entry's copy, which may have counted on it.
    Counted(FileId, Print),
    /// So for several entries, whose source is one: nobody writes it.
    CountedBySeveral(Print),
}

/// See the module.
pub(in crate::sink) struct Aliases {
    /// Files have several names where they have one link.
    shared: bool,
    in_place: bool,
    files: Mutex<HashMap<Inode, Alias>>,
}

impl Aliases {
    /// `shared`: see [`mounted_twice`].
    pub(in crate::sink) fn new(in_place: bool, shared: bool) -> Aliases {
        Aliases { shared, in_place, files: Mutex::default() }
    }

    /// The same, as it is where files are written so.
    pub(in crate::sink) fn with(self, in_place: bool) -> Aliases {
        Aliases { in_place, ..self }
    }

    /// What stands at an entry's name. `counts`: it looks like what the entry is to be, whose source this is.
    pub(in crate::sink) fn find(&self, stat: &Stat, id: FileId, counts: Option<Print>) -> Verdict {
        if stat.st_nlink < 2 && !self.shared {
            return Verdict::Mine;
        }
        // What only loses a name is no matter to its other names.
        let excludes = self.in_place || self.shared;
        if !excludes && counts.is_none() {
            return Verdict::Mine;
        }
        let mut files = lock(&self.files);
        let (inode, room) = (inode_of(stat), files.len() < ALIASES_MAX);
        let next = match (files.get(&inode).copied(), counts) {
            (None, _) if !room && excludes => return Verdict::Anothers,
            (None, _) if !room => return Verdict::Unknown,
            (None, Some(print)) => Alias::Counted(id, print),
            (None, None) => Alias::Of(id),
            (Some(Alias::Of(other) | Alias::Counted(other, _)), None) if other == id => Alias::Of(id),
            (Some(Alias::Of(other)), Some(_)) if other == id => Alias::Of(id),
            (Some(Alias::Counted(other, _)), Some(print)) if other == id => Alias::Counted(id, print),
            (Some(Alias::Counted(_, known) | Alias::CountedBySeveral(known)), Some(print))
                if known.is(print) || haul_mutant::removed("found-files-are-one-entrys") =>
            {
                Alias::CountedBySeveral(print)
            }
            (Some(_), _) => return Verdict::Anothers,
        };
        files.insert(inode, next);
        Verdict::Mine
    }

    /// An entry gets this inode as its own, under a name that may be another's.
    pub(in crate::sink) fn made(&self, inode: Inode, id: FileId) {
        if self.shared {
            let mut files = lock(&self.files);
            if files.len() < ALIASES_MAX {
                files.insert(inode, Alias::Of(id));
            }
        }
    }
}

/// Whether one file system is mounted more than once at or below a directory, so that one file has several
/// names there. Where that cannot be read it may be.
pub(in crate::sink) fn mounted_twice(root: &Path) -> bool {
    let (Ok(root), Ok(table)) = (std::fs::canonicalize(root), std::fs::read("/proc/self/mountinfo")) else {
        return true;
    };
    repeats(root.as_os_str().as_bytes(), &table)
}

/// The same by a table of mounts, as `/proc/self/mountinfo` has it.
fn repeats(root: &[u8], table: &[u8]) -> bool {
    let below = |path: &[u8], above: &[u8]| {
        let above = above.strip_suffix(b"/").unwrap_or(above);
        path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    };
    let mounts: Vec<(&[u8], Vec<u8>)> = table
        .split(|byte| *byte == b'\n')
        .filter_map(|line| {
            let mut words = line.split(|byte| *byte == b' ').skip(2);
            let (device, _, point) = (words.next()?, words.next()?, words.next()?);
            Some((device, unescaped(point)))
        })
        .collect();
    // The last of the longest is the one that shows.
    let own = mounts.iter().filter(|(_, point)| below(root, point)).max_by_key(|(_, point)| point.len());
    let Some((own, _)) = own else { return true };
    let mut seen = HashSet::from([*own]);
    mounts
        .iter()
        .filter(|(_, point)| point != root && below(point, root))
        .any(|(device, _)| !seen.insert(device))
}

/// The kernel writes blanks and the like as a backslash and three octal digits.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let (mut out, mut at) = (Vec::with_capacity(word.len()), 0);
    while let Some(&byte) = word.get(at) {
        let digits =
            word.get(at + 1..at + 4).filter(|digits| digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        match digits.filter(|_| byte == b'\\') {
            Some(digits) => {
                out.push(
                    digits.iter().fold(0u8, |sum, digit| sum.wrapping_mul(8).wrapping_add(digit - b'0')),
                );
                at += 4;
            }
            None => {
                out.push(byte);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a file system that is mounted twice below a directory is seen, whatever its names; others, and
    /// mounts beside it, are nothing.
    #[test]
    fn mounts_that_repeat_are_seen() {
        let table = |lines: &[(&str, &str)]| {
            let line = |(device, point): &(&str, &str)| format!("1 2 {device} / {point} rw - ext4 x rw\n");
            lines.iter().map(line).collect::<String>().into_bytes()
        };
        let base = [("8:1", "/"), ("8:2", "/data")];
        for (more, expected) in [
            (&[][..], false),
            (&[("0:7", "/data/to/proc")], false),
            (&[("8:2", "/data/to/d2")], true),
            (&[("8:2", "/data/to\\040b/d2")], false),
            (&[("8:2", "/data/other/d2"), ("8:2", "/data/to")], false),
            (&[("8:1", "/data/to/a"), ("8:1", "/data/to/b")], true),
            (&[("8:1", "/data/to/a")], false),
        ] {
            assert_eq!(repeats(b"/data/to", &table(&[&base[..], more].concat())), expected, "{more:?}");
        }
        let blank = table(&[&base[..], &[("8:2", "/data/to\\040b/d2")]].concat());
        assert!(repeats(b"/data/to b", &blank));
        assert!(repeats(b"/data", b""), "nobody knows");
    }
}
