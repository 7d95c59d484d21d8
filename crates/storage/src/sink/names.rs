//! The names that haul gives to what is not yet, or not, the user's data.
//!
//! A temporary lies beside its final name: `.NAME.haul~TAGNUMBER`, so that file systems which place files by
//! name (GlusterFS: `^\.(.+)\.[^.]+$`) put it where the final one belongs; or `.haul~HASH.haul~TAGNUMBER`
//! when that would be too long. The tag is the run's, the number the file's alone in that run. A job's
//! journal is `.haul~KEY`, its owner files `.haul~KEY.own.N`.
//! Invariant: both forms of a temporary end in tag and number, and no journal or owner file looks like one. A
//! form proves nothing: a user's file may have it ([`super::here`] says whose it is).

use haul_core::entry::{NAME_LEN_MAX, Name};

const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// Characters of a tag: 30 bits.
const TAG_LEN: usize = 6;
/// Characters of a number: 40 bits. More files than that in one run would have to share.
const NUMBER_LEN: usize = 8;
/// What stands before the tag, in a last component of the name of its own.
const MARK: &[u8] = b".haul~";
const SUFFIX_LEN: usize = MARK.len() + TAG_LEN + NUMBER_LEN;
/// The number of temporaries that are no file's: those of files begin with 1.
pub(super) const NO_FILE: u64 = 0;
/// Characters of a job's key: 80 bits.
const KEY_LEN: usize = 16;
const PREFIX: &[u8] = b".haul~";

fn base32(bytes: &[u8], out: &mut Vec<u8>) {
    let (mut bits, mut held) = (0u32, 0);
    for byte in bytes {
        bits = bits << 8 | u32::from(*byte);
        held += 8;
        while held >= 5 {
            held -= 5;
            out.push(ALPHABET[(bits >> held & 31) as usize]);
        }
    }
    if held > 0 {
        out.push(ALPHABET[(bits << (5 - held) & 31) as usize]);
    }
}

/// The low bits of `value` in so many characters.
fn digits(value: u64, len: usize, out: &mut Vec<u8>) {
    out.extend((0..len).rev().map(|i| ALPHABET[(value >> (5 * i) & 31) as usize]));
}

fn value(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0u64, |value, c| {
        let digit = ALPHABET.iter().position(|a| a == c)?;
        Some(value << 5 | digit as u64)
    })
}

fn legal(bytes: &[u8]) -> Name {
    Name::new(bytes).expect("names made here are legal: short, no '/', no NUL")
}

/// The temporary with this number, of the file `name`, in a run with this tag, of which the low 30 bits
/// count.
pub fn temp_name(name: &Name, tag: u32, number: u64) -> Name {
    let mut bytes = Vec::with_capacity(NAME_LEN_MAX);
    if 1 + name.as_bytes().len() + SUFFIX_LEN <= NAME_LEN_MAX {
        bytes.push(b'.');
        bytes.extend_from_slice(name.as_bytes());
    } else {
        bytes.extend_from_slice(PREFIX);
        base32(&blake3::hash(name.as_bytes()).as_bytes()[..16], &mut bytes);
    }
    bytes.extend_from_slice(MARK);
    digits(tag.into(), TAG_LEN, &mut bytes);
    digits(number, NUMBER_LEN, &mut bytes);
    legal(&bytes)
}

/// The tag in the name of a temporary; `None` if it cannot be one. A user's own name may look like a
/// temporary, so nothing is removed or left out for its form alone.
pub fn tag_of(name: &[u8]) -> Option<u32> {
    tag_and_number(name).map(|(tag, _)| tag)
}

/// Tag and number in the name of a temporary, as [`tag_of`].
pub(super) fn tag_and_number(name: &[u8]) -> Option<(u32, u64)> {
    if name.len() <= 1 + SUFFIX_LEN || name[0] != b'.' {
        return None;
    }
    let tail = name[name.len() - SUFFIX_LEN..].strip_prefix(MARK)?;
    let (tag, number) = tail.split_at(TAG_LEN);
    Some((u32::try_from(value(tag)?).ok()?, value(number)?))
}

/// The low 40 bits, which are what a name can say of a number.
pub(super) fn number_bits(number: u64) -> u64 {
    number & ((1 << (5 * NUMBER_LEN)) - 1)
}

/// Numbers of what an upload to `serve gridftp` has until it is done: its part, its record, and a new one of
/// either. No file of a copy has them.
pub const PART: u64 = (1 << 40) - 2;
pub const RECORD: u64 = (1 << 40) - 3;
pub const NEXT_PART: u64 = (1 << 40) - 4;
pub const NEXT_RECORD: u64 = (1 << 40) - 5;

/// Whether this is a name that an upload to `serve gridftp` has until it is done, whichever user's.
pub fn is_of_upload(name: &[u8]) -> bool {
    let number = tag_and_number(name).map(|(_, number)| number);
    number.is_some_and(|number| [PART, RECORD, NEXT_PART, NEXT_RECORD].contains(&number))
}

/// Whether a job may own a file of this name: all names that haul gives have one of these forms.
pub fn may_be_ours(name: &[u8]) -> bool {
    tag_of(name).is_some() || job_file(name).is_some()
}

/// The low 30 bits, which are what a name can say of a tag.
pub fn tag_bits(tag: u32) -> u32 {
    tag & 0x3fff_ffff
}

/// A job's key as text, as it stands in the names of its journal and owner files.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobKey(String);

impl JobKey {
    /// The key of a job (`Record::Head`), of which the first 80 bits count.
    pub fn new(job: &[u8; 16]) -> JobKey {
        let mut text = Vec::with_capacity(KEY_LEN);
        base32(&job[..10], &mut text);
        JobKey(String::from_utf8(text).expect("base32 is ASCII"))
    }
    /// A key as typed or as read from a name.
    pub fn parse(text: &[u8]) -> Option<JobKey> {
        let good = text.len() == KEY_LEN && text.iter().all(|c| ALPHABET.contains(c));
        good.then(|| JobKey(String::from_utf8_lossy(text).into_owned()))
    }
    /// 16 characters, `a-z2-7`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
    pub(crate) fn journal(&self) -> Name {
        legal(&[PREFIX, self.0.as_bytes()].concat())
    }
    /// The journal while it is replaced. Each owner has its own, so that a late one cannot spoil it.
    pub(crate) fn journal_new(&self, epoch: u32) -> Name {
        legal(format!(".haul~{}.new.{epoch}", self.0).as_bytes())
    }
    pub(crate) fn owner(&self, epoch: u32) -> Name {
        legal(format!(".haul~{}.own.{epoch}", self.0).as_bytes())
    }
}

/// What a file of a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobFile {
    Journal,
    NewJournal { epoch: u32 },
    Owner { epoch: u32 },
}

/// Takes the name of a job's file apart.
pub(crate) fn job_file(name: &[u8]) -> Option<(JobKey, JobFile)> {
    let rest = name.strip_prefix(PREFIX)?;
    let key = JobKey::parse(rest.get(..KEY_LEN)?)?;
    let rest = &rest[KEY_LEN..];
    let number = |digits: &[u8]| {
        let text = std::str::from_utf8(digits).ok()?;
        let number: u32 = text.parse().ok()?;
        (number.to_string() == text).then_some(number)
    };
    if rest.is_empty() {
        Some((key, JobFile::Journal))
    } else if let Some(digits) = rest.strip_prefix(b".own.") {
        Some((key, JobFile::Owner { epoch: number(digits)? }))
    } else {
        let epoch = number(rest.strip_prefix(b".new.")?)?;
        Some((key, JobFile::NewJournal { epoch }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Goal: a temporary's name is legal for names of every length, differs by name, by tag and by number,
    /// and tells its tag; GlusterFS finds the final name in it.
    /// Method: all lengths from 1 to 255 with three tags and numbers; GlusterFS takes what stands between the
    /// first dot and the last.
    #[test]
    fn temporaries_carry_their_tag() {
        let mut seen = HashSet::new();
        for len in 1..=NAME_LEN_MAX {
            for tag in [0, 1, 0x3fff_ffff] {
                for number in [0, 1, 0xff_ffff_ffff] {
                    let name = Name::new(&vec![0xff; len]).expect("legal");
                    let temp = temp_name(&name, tag, number);
                    assert_eq!(tag_of(temp.as_bytes()), Some(tag));
                    assert!(job_file(temp.as_bytes()).is_none() && may_be_ours(temp.as_bytes()));
                    let last = temp.as_bytes().iter().rposition(|b| *b == b'.').expect("a dot");
                    let placed_as = &temp.as_bytes()[1..last];
                    assert!(placed_as == name.as_bytes() || len > NAME_LEN_MAX - 1 - SUFFIX_LEN);
                    assert!(seen.insert(temp));
                }
            }
        }
        assert_eq!(temp_name(&legal(b"f"), 33, 1).as_bytes(), b".f.haul~aaaabbaaaaaaab");
        for no in [
            "f.haul~aaaaaaaaaaaaaa",
            ".haul~aaaaaaaaaaaaaa",
            ".f.haul~aaaaaaaaaaaaa",
            ".f.haul~aaaaaaaaaaaaa1",
        ] {
            assert_eq!(tag_of(no.as_bytes()), None, "{no}");
        }
        for users in
            [".zsh.history", ".app.headers", ".x.hostkey", ".vimrc.habcdef", ".haul~notes", ".f.haul~x"]
        {
            assert!(!may_be_ours(users.as_bytes()), "{users}");
        }
    }

    /// Goal: a job's files are recognised, and only those, and none looks like a temporary.
    /// Method: made and taken apart; near misses.
    #[test]
    fn job_files_are_recognised() {
        let key = JobKey::new(&[7; 16]);
        assert_eq!(key.as_str().len(), KEY_LEN);
        let made = [
            (key.journal(), JobFile::Journal),
            (key.journal_new(4), JobFile::NewJournal { epoch: 4 }),
            (key.owner(4_000_000_000), JobFile::Owner { epoch: 4_000_000_000 }),
        ];
        for (name, file) in made {
            assert_eq!(job_file(name.as_bytes()), Some((key.clone(), file)));
            assert_eq!(tag_of(name.as_bytes()), None);
        }
        let text = key.as_str();
        for miss in ["x", ".own.", ".own.01", ".own.-1", ".own.99999999999", ".new.", ".own.1 "] {
            assert_eq!(job_file(format!(".haul~{text}{miss}").as_bytes()), None, "{miss}");
        }
        assert_eq!(job_file(b".haul~ABC"), None);
    }
}
