//! Names that are one to a server: which files of this copy have them.
//!
//! In: files and their names at the destination, and what the server tells of those that were named. Out:
//! whether a name is another file's already.
//! Invariants: of two files of a copy whose names are one to the server, the second one is left out, whether
//! or not it would be copied.
//! Left out: other ways to take two names for one; these show when what stands at a name is looked at.

use std::collections::{HashMap, HashSet};

use haul_core::ids::FileId;
use haul_ftp::{Asked, Error, Facts, Session, steer};

use crate::ftp::folded;

/// What is said of the second one.
pub(super) const ONE_NAME: &str =
    "the server takes its name for that of another file of this copy: it was left out";

/// Who has which name, and which file of the server.
#[derive(Default)]
pub(super) struct Claims {
    names: HashMap<[u8; 16], FileId>,
    /// By what the server tells of a file alone.
    placed: HashMap<Box<[u8]>, FileId>,
    /// Last names under which a worker just puts files. Where two ways lead to one directory, files of two
    /// ways are one under a last name that they have in common.
    naming: HashSet<[u8; 16]>,
    /// The server takes names like these for one; `None`: nobody asked it.
    pub(super) folds: Option<bool>,
}

impl Claims {
    /// Another file of this copy has a name like this.
    pub(super) fn is_twin(&mut self, id: FileId, to: &[u8]) -> bool {
        *self.names.entry(key(to)).or_insert(id) != id
    }

    /// Files are about to get these names, until [`Claims::named`]; false: others get names that are like one
    /// of them, and what stands there is not known before that is over.
    pub(super) fn name(&mut self, tos: &[&[u8]]) -> bool {
        let keys: Vec<[u8; 16]> = tos.iter().map(|to| key(split(to).1)).collect();
        if keys.iter().any(|key| self.naming.contains(key))
            && !haul_mutant::removed("ftp-pairs-name-in-turns")
        {
            return false;
        }
        self.naming.extend(keys);
        true
    }

    /// They have them, or do not get them.
    pub(super) fn named(&mut self, tos: &[&[u8]]) {
        tos.iter().for_each(|to| _ = self.naming.remove(&key(split(to).1)));
    }

    /// A file of this copy has got its name, and is this one.
    pub(super) fn place(&mut self, id: FileId, facts: &Facts) {
        if let Some(unique) = &facts.unique {
            self.placed.insert(unique.clone(), id);
        }
    }

    /// A file is as it should be, and is this one: false if that is another file of this copy.
    pub(super) fn find(&mut self, id: FileId, facts: &Facts) -> bool {
        let Some(unique) = &facts.unique else { return true };
        *self.placed.entry(unique.clone()).or_insert(id) == id
            || haul_mutant::removed("ftp-pairs-find-for-one-entry")
    }

    /// What stands there is another file of this copy.
    pub(super) fn is_of_another(&self, id: FileId, there: &Asked) -> bool {
        let Asked::Is(Facts { unique: Some(unique), .. }) = there else { return false };
        self.placed.get(unique).is_some_and(|other| *other != id)
    }
}

/// The same for names that differ in case alone, or in dots and spaces at their ends.
pub(in crate::ftp) fn key(path: &[u8]) -> [u8; 16] {
    let mut key = blake3::Hasher::new();
    for part in path.split(|byte| *byte == b'/') {
        let end = part.iter().rposition(|byte| !matches!(byte, b'.' | b' ')).map_or(0, |last| last + 1);
        key.update(&folded(&part[..end]));
        key.update(b"/");
    }
    let mut short = [0; 16];
    short.copy_from_slice(&key.finalize().as_bytes()[..16]);
    short
}

/// Whether the server takes such names for one in the directory of this path: a directory is made there, and
/// looked for under names like its own. Where none can be made, it does.
///
/// # Errors
/// The session is over.
pub(super) fn asks_folds(session: &mut Session, beside: &[u8], tag: &str) -> Result<bool, Error> {
    let probe = |end: &str| [split(beside).0, b".haul~", tag.as_bytes(), end.as_bytes()].concat();
    let dir = probe("a\u{e9}");
    let dir = match steer::make_dir(session, &dir) {
        Ok(_) => dir,
        Err(error) if error.ends_session() => return Err(error),
        // There are servers that take no such letter.
        Err(_) => {
            let dir = probe("a");
            match steer::make_dir(session, &dir) {
                Ok(_) => dir,
                Err(error) if error.ends_session() => return Err(error),
                Err(_) => return Ok(true),
            }
        }
    };
    let is_ascii = dir.is_ascii();
    let twins = if is_ascii { ["A", "a.", "a "] } else { ["A\u{c9}", "a\u{e9}.", "a\u{e9} "] }.map(probe);
    let twins: Vec<&[u8]> = twins.iter().map(Vec::as_slice).collect();
    let asked = session.facts_of(&twins)?;
    let _ = steer::remove_dir(session, &dir);
    Ok(asked.iter().any(|asked| !matches!(asked, Asked::Not(_))))
}

/// The directory of a path, with its slash, and the name in it.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let end = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    path.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a file of the server that one entry found as it should be is no other entry's; one without a
    /// name of its own tells nothing.
    #[test]
    fn what_is_found_is_one_entrys() {
        let mut claims = Claims::default();
        let facts = |unique: &[u8]| Facts { unique: Some(unique.into()), ..Facts::default() };
        assert!(claims.find(FileId(1), &facts(b"x")) && claims.find(FileId(1), &facts(b"x")));
        assert!(!claims.find(FileId(2), &facts(b"x")), "it is the other's");
        assert!(claims.is_of_another(FileId(2), &Asked::Is(facts(b"x"))));
        assert!(claims.find(FileId(2), &facts(b"y")) && claims.find(FileId(3), &Facts::default()));
        assert!(claims.find(FileId(4), &Facts::default()));
    }

    /// Goal: files of one last name get their names one after the other, all others at the same time.
    #[test]
    fn names_that_may_be_one_have_their_turns() {
        let mut claims = Claims::default();
        let (first, second, other): ([&[u8]; 2], [&[u8]; 2], [&[u8]; 1]) =
            ([b"/a/x", b"/a/y"], [b"/b/X", b"/b/z"], [b"/b/w"]);
        assert!(claims.name(&first) && !claims.name(&second) && claims.name(&other));
        claims.named(&first);
        assert!(claims.name(&second) && !claims.name(&first));
    }

    /// Goal: names that some server takes for one are twins, in whatever directory of the way they differ; a
    /// file is no twin of itself, and other names are none.
    #[test]
    fn names_that_may_be_one_are_twins() {
        let mut claims = Claims::default();
        assert!(!claims.is_twin(FileId(1), b"/d/Name") && !claims.is_twin(FileId(1), b"/d/Name"));
        for (number, twin) in ["/d/name", "/D/Name", "/d/name.", "/d./name ", "/d/NAME. ."].iter().enumerate()
        {
            assert!(claims.is_twin(FileId(2 + number as u64), twin.as_bytes()), "{twin}");
        }
        assert!(!claims.is_twin(FileId(40), "/d/\u{c9}t\u{c9}".as_bytes()));
        assert!(claims.is_twin(FileId(41), "/d/\u{e9}t\u{e9}".as_bytes()));
        for (number, other) in
            ["/d/stra\u{df}e", "/d/strasse", "/d/\u{131}", "/d/i", "/d/\u{fb01}n", "/d/fin"]
                .iter()
                .enumerate()
        {
            assert!(!claims.is_twin(FileId(50 + number as u64), other.as_bytes()), "{other}");
        }
        for (number, other) in [&b"/d/a\xfe"[..], b"/d/a\xfd"].iter().enumerate() {
            assert!(!claims.is_twin(FileId(60 + number as u64), other));
        }
        for (number, other) in ["/d/nam", "/dn/ame", "/d/n/ame", "/d/.name"].iter().enumerate() {
            assert!(!claims.is_twin(FileId(20 + number as u64), other.as_bytes()), "{other}");
        }
    }
}
