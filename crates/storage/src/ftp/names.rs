//! What is known of the entries that were walked.
//!
//! In: entries as the walk finds them. Out: their paths at the server and at the destination, what the server
//! told of them, on which session they are read.
//! Invariants: an entry is known from before it is announced until the session forgets it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use haul_core::entry::{FileRange, Fingerprint, Name, Version};
use haul_core::ids::{DirId, FileId, TargetId};
use haul_core::layout::TargetName;
use haul_core::transfer::source::Lies;
use haul_ftp::Facts;

use super::time_of;
use crate::store::{SourceNames, Stamp};
use crate::targets::Targets;

/// What is younger than this may be changed again within the second that its time tells. As long as a day,
/// and a little more, for the clock of the server is not known here, nor its zone where it tells local time.
const YOUNG: Duration = Duration::from_secs(26 * 3600);

/// A file of this time may be changed again within the second that its time tells; both in seconds. A time to
/// come is that of a clock that is ahead by nobody knows how much.
pub(super) fn is_young(now: i64, time: i64) -> bool {
    let ago = now.saturating_sub(time);
    ago < YOUNG.as_secs() as i64
        && (ago > -(YOUNG.as_secs() as i64) || !haul_mutant::removed("ftp-times-to-come-are-young"))
}

/// How long a second takes, and what a clock may be out by within it.
pub(super) const SETTLES: Duration = Duration::from_secs(1).saturating_add(CLOCK_MARGIN);
const CLOCK_MARGIN: Duration = Duration::from_millis(100);

/// Where an entry lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Above {
    /// Directly in one of the paths that the walk began with.
    Base(usize),
    Dir(DirId),
}

/// An entry.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) above: Above,
    pub(super) name: Name,
    /// As it was announced last, as the server tells it that it comes from.
    pub(super) facts: Facts,
    /// The server that it comes from.
    pub(super) site: usize,
    /// It may not be read before.
    pub(super) not_before: Option<Instant>,
}

/// A path that the walk begins with.
pub(super) struct Base {
    /// What it lies below, or itself where only its contents come.
    pub(super) above: Vec<u8>,
    /// At each server what `above` and the first name are together; none of the first one is needed.
    pub(super) whole: Vec<Vec<u8>>,
    /// The first name below it is its own, and another replica may have it under another one.
    pub(super) is_named: bool,
}

/// What is known of an entry.
pub(super) struct Told {
    /// At the server that it comes from.
    pub(super) path: Vec<u8>,
    pub(super) facts: Facts,
    pub(super) site: usize,
}

#[derive(Default)]
struct Inner {
    bases: Vec<Base>,
    entries: HashMap<FileId, Entry>,
}

/// The entries of a walk.
pub(super) struct Names {
    inner: Mutex<Inner>,
    targets: Targets,
    /// Sessions that read, one target each.
    sessions: Vec<TargetId>,
    /// No two runs have it.
    nonce: [u8; 16],
    /// Fingerprints that were given.
    announced: AtomicU64,
    /// What of the only file comes, if not all.
    part: Option<FileRange>,
    /// See [`Names::settles`].
    settles: Duration,
    seen: Seen,
}

/// What summaries say of entries as they were found; numbers of them.
#[derive(Default)]
pub(super) struct Seen {
    /// Files that were read only when a change of theirs would show.
    pub(super) young: AtomicU64,
    /// Directories whose time the server did not tell.
    pub(super) untimed: AtomicU64,
    /// Files that are called as unfinished ones of haul's.
    pub(super) parts: AtomicU64,
}

impl Seen {
    /// The rows of a summary; `settles` as of [`Names::settles`].
    fn rows(&self, settles: Duration) -> Vec<(String, String)> {
        let count = |number: &AtomicU64, one: &str, many: &str| match number.load(Ordering::Relaxed) {
            0 => None,
            1 => Some(format!("1 {one}")),
            number => Some(format!("{number} {many}")),
        };
        let young = count(&self.young, "file", "files").map(|files| {
            let secs = settles.as_secs_f64();
            format!(
                "{files} {secs:.1} s after being found, for the server tells times in whole seconds, and a change within the second that is \
                 told would not show; those that were changed more than 26 hours ago are not waited for"
            )
        });
        let untimed = count(&self.untimed, "directory", "directories").map(|dirs| {
            format!("the times of {dirs}, which the server does not tell; what was made has that of the copy")
        });
        let parts = count(&self.parts, "file", "files").map(|files| {
            format!(
                "{files} named like unfinished ones of haul's (.NAME.haul~...), as any other: nobody can tell whether they are. Where they are, \
                 remove them at both ends"
            )
        });
        [("waited for", young), ("NOT known", untimed), ("came along", parts)]
            .into_iter()
            .filter_map(|(name, words)| Some((name.to_owned(), words?)))
            .collect()
    }
}

impl Names {
    /// `kept`: the destination keeps times in such steps.
    pub(super) fn new(
        sessions: usize,
        nonce: [u8; 16],
        (part, kept): (Option<FileRange>, Duration),
    ) -> Names {
        let targets = Targets::new();
        let name = |n: usize| targets.id(&TargetName::new(&format!("session {}", n + 1)));
        let sessions = (0..sessions).map(name).collect();
        let settles = SETTLES.max(kept + CLOCK_MARGIN);
        Names {
            inner: Mutex::default(),
            targets,
            sessions,
            nonce,
            announced: AtomicU64::new(0),
            part,
            settles,
            seen: Seen::default(),
        }
    }

    /// What summaries say of entries as they were found.
    pub(super) fn seen(&self) -> &Seen {
        &self.seen
    }

    /// The same, as rows of a summary.
    pub(super) fn rows(&self) -> Vec<(String, String)> {
        self.seen.rows(self.settles)
    }

    /// After so long a change has another time than before, here and at the destination.
    pub(super) fn settles(&self) -> Duration {
        self.settles
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A path that the walk begins with.
    pub(super) fn add_base(&self, base: Base) -> usize {
        let mut inner = self.lock();
        inner.bases.push(base);
        inner.bases.len() - 1
    }

    pub(super) fn add(&self, id: FileId, entry: Entry) {
        self.lock().entries.insert(id, entry);
    }

    pub(super) fn forget(&self, id: FileId) {
        self.lock().entries.remove(&id);
    }

    /// The path at the server that it comes from, and what was told of it.
    pub(super) fn look(&self, id: FileId) -> Option<Told> {
        let inner = self.lock();
        let entry = inner.entries.get(&id)?;
        let path = inner.path(entry.above, Some(&entry.name), Some(entry.site));
        Some(Told { path, facts: entry.facts.clone(), site: entry.site })
    }

    /// The path that an entry has at one of the servers.
    pub(super) fn path_at(&self, id: FileId, site: usize) -> Option<Vec<u8>> {
        let inner = self.lock();
        let entry = inner.entries.get(&id)?;
        Some(inner.path(entry.above, Some(&entry.name), Some(site)))
    }

    /// It comes from another server from now on, which tells this of it.
    pub(super) fn move_to(&self, id: FileId, site: usize, facts: &Facts) {
        if let Some(entry) = self.lock().entries.get_mut(&id) {
            (entry.site, entry.facts) = (site, facts.clone());
        }
    }

    /// It was looked at again, and later reads hold against this.
    pub(super) fn renew(&self, id: FileId, facts: &Facts) {
        if let Some(entry) = self.lock().entries.get_mut(&id) {
            entry.facts = facts.clone();
        }
    }

    /// The path at the server of something in a directory, or of that itself.
    pub(super) fn server_path(&self, site: usize, above: Above, name: Option<&Name>) -> Vec<u8> {
        self.lock().path(above, name, Some(site))
    }

    /// The path at the destination.
    pub(super) fn path(&self, above: Above, name: Option<&Name>) -> Vec<u8> {
        self.lock().path(above, name, None)
    }

    /// What a file is known by. The version is another in each run, for nothing that a server tells proves
    /// that a file is what it was: what an earlier run left of it is asked about, and not believed.
    pub(super) fn fingerprint(&self, facts: &Facts) -> Fingerprint {
        // No two files have the same one.
        let number = self.announced.fetch_add(1, Ordering::Relaxed).to_le_bytes();
        let hash = blake3::hash(&[&self.nonce[..], &number].concat());
        let version = Version::new(&hash.as_bytes()[..16]).unwrap_or(Version::NONE);
        let size = self.part.map_or(facts.size.unwrap_or(0), |part| part.len);
        Fingerprint { size, mtime: time_of(facts), version }
    }

    /// The part that comes of the only file, if not all.
    pub(super) fn part(&self) -> Option<FileRange> {
        self.part
    }

    /// Where what comes of a file begins at the server.
    pub(super) fn base(&self) -> u64 {
        self.part.map_or(0, |part| part.source)
    }

    /// Behind what comes of a file the server has more of it, which is nobody's business.
    pub(super) fn is_cut(&self, facts: &Facts) -> bool {
        self.part.is_some_and(|part| Some(part.source + part.len) != facts.size)
    }

    /// The session that a file is read on.
    pub(super) fn session_of(&self, id: FileId) -> TargetId {
        self.sessions[(id.0 % self.sessions.len() as u64) as usize]
    }
}

impl Inner {
    /// `site`: as that server has it; `None`: at the destination.
    fn path(&self, above: Above, name: Option<&Name>, site: Option<usize>) -> Vec<u8> {
        let mut names: Vec<&[u8]> = name.map(Name::as_bytes).into_iter().collect();
        let mut at = above;
        let base = loop {
            match at {
                Above::Base(base) => match (self.bases.get(base), site) {
                    (None, _) => break &b""[..],
                    (Some(base), None | Some(0)) => break &base.above,
                    (Some(base), Some(site)) => {
                        // Its own name is part of the whole, which another one may have instead.
                        let taken = base.is_named && names.pop().is_some();
                        match base.whole.get(site) {
                            Some(whole) if taken || !base.is_named => break whole,
                            _ => break &b""[..],
                        }
                    }
                },
                Above::Dir(id) => match self.entries.get(&id.as_file()) {
                    Some(entry) => {
                        names.push(entry.name.as_bytes());
                        at = entry.above;
                    }
                    // It is forgotten only after all in it.
                    None => break &b""[..],
                },
            }
        };
        names.reverse();
        let below = names.join(&b'/');
        match (site, below.is_empty()) {
            (None, _) => below,
            (Some(_), true) => base.to_vec(),
            (Some(_), false) => [base.strip_suffix(b"/").unwrap_or(base), b"/", &below].concat(),
        }
    }
}

/// It is called as what copies to a server, or between two, leave there unfinished. A form proves nothing: a
/// user's own file may have it.
pub(super) fn is_part(name: &[u8]) -> bool {
    const MARK: &[u8] = b".haul~";
    let at = name.windows(MARK.len()).rposition(|some| some == MARK);
    let tag = at.map(|at| &name[at + MARK.len()..]).unwrap_or_default();
    let is_tag = |byte: &u8| byte.is_ascii_digit() || byte.is_ascii_lowercase();
    name.starts_with(b".") && (9..=28).contains(&tag.len()) && tag.iter().all(is_tag)
}

/// Names that a server takes for the same as this one, which has blanks or dots at an end, if it leaves those
/// out: with one more of them at that end, or more where `is_known` knows that name.
pub(super) fn longer_at_its_ends(name: &[u8], is_known: impl Fn(&[u8]) -> bool) -> Vec<Vec<u8>> {
    let first = name.utf8_chunks().next().and_then(|chunk| chunk.valid().chars().next());
    let last = name.utf8_chunks().last().filter(|chunk| chunk.invalid().is_empty());
    let last = last.and_then(|chunk| chunk.valid().chars().next_back());
    let ends = [
        (first.filter(|letter| letter.is_whitespace()), true),
        (last.filter(|letter| letter.is_whitespace() || *letter == '.'), false),
    ];
    let mut all = Vec::new();
    for (letter, at_start) in ends {
        let Some(letter) = letter else { continue };
        let (mut space, mut longer) = ([0; 4], name.to_vec());
        let letter = letter.encode_utf8(&mut space).as_bytes();
        loop {
            longer = if at_start { [letter, &longer].concat() } else { [&longer, letter].concat() };
            if !is_known(&longer) {
                break;
            }
        }
        all.push(longer);
    }
    all
}

/// Nothing that the server tells of a file differs.
pub(super) fn same_facts(one: &Facts, other: &Facts) -> bool {
    let of = |facts: &Facts| (facts.kind, facts.size, facts.modify, facts.unique.clone());
    of(one) == of(other)
}

impl SourceNames for Names {
    fn path_of(&self, id: FileId) -> Vec<u8> {
        let inner = self.lock();
        inner.entries.get(&id).map_or_else(Vec::new, |e| inner.path(e.above, Some(&e.name), None))
    }
    fn origin_of(&self, _: FileId) -> Option<(Vec<u8>, Stamp)> {
        None
    }
    fn lies(&self, id: FileId) -> Lies {
        Lies::At(self.session_of(id))
    }
    fn not_before(&self, id: FileId) -> Option<Instant> {
        self.lock().entries.get(&id).and_then(|entry| entry.not_before)
    }
    fn targets(&self) -> &Targets {
        &self.targets
    }
}

/// The same for who holds it in an `Arc`.
pub(super) type Shared = Arc<Names>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::names::temp_name;

    /// Goal: what unfinished uploads are called is known, and what only looks like it is not.
    #[test]
    fn unfinished_uploads_are_known_by_their_names() {
        let of_upload = temp_name(&Name::new(b"f").expect("legal"), 7, 1);
        for name in [of_upload.as_bytes(), b".f.haul~0000000712", b".haul~0123456789abcdef"] {
            assert!(is_part(name), "{}", String::from_utf8_lossy(name));
        }
        for name in [&b"f.haul~0000000712"[..], b".f.haul~", b".f.haul~notes", b".f.haul~a/b", b".f", b""] {
            assert!(!is_part(name), "{}", String::from_utf8_lossy(name));
        }
    }

    /// Goal: what was found is told in numbers, and nothing of what was not.
    #[test]
    fn what_was_found_is_told() {
        let seen = Seen::default();
        assert_eq!(seen.rows(SETTLES), []);
        seen.untimed.store(1, Ordering::Relaxed);
        seen.parts.store(2, Ordering::Relaxed);
        seen.young.store(3, Ordering::Relaxed);
        let rows = seen.rows(SETTLES);
        let told = |name: &str, words: &str| rows.iter().any(|row| row.0 == name && row.1.contains(words));
        assert!(told("waited for", "3 files 1.1 s") && told("came along", "2 files"), "{rows:?}");
        assert!(told("NOT known", "the times of 1 directory"), "{rows:?}");
    }

    /// Goal: a name with blanks or dots at an end has a longer one that nobody knows; no other name has.
    #[test]
    fn ends_of_names_have_longer_ones() {
        let longer = |name: &str| longer_at_its_ends(name.as_bytes(), |longer| longer == b"a  ");
        for (name, all) in [
            ("a ", &["a   "][..]),
            (" a", &["  a"]),
            (" a.", &["  a.", " a.."]),
            ("a\u{a0}", &["a\u{a0}\u{a0}"]),
            ("a", &[]),
            (".a b", &[]),
            ("\u{e9}", &[]),
        ] {
            let all: Vec<Vec<u8>> = all.iter().map(|name| name.as_bytes().to_vec()).collect();
            assert_eq!(longer(name), all, "{name:?}");
        }
        assert!(longer_at_its_ends(b"a \xff", |_| false).is_empty());
    }

    /// Goal: what may have been changed within the last second is young by whatever clock its server has that
    /// is not a day behind; what was changed long ago is not.
    #[test]
    fn times_to_come_are_young() {
        let (now, day) = (1_800_000_000, 24 * 3600);
        for ago in [0, 1, day, -1, -day, -3 * day, -400_000 * day] {
            assert!(is_young(now, now - ago), "{ago}");
        }
        for ago in [2 * day, 400 * day] {
            assert!(!is_young(now, now - ago), "{ago}");
        }
        assert!(is_young(now, i64::MAX) && !is_young(now, i64::MIN));
    }
}
