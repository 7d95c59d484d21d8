//! Which unfinished files of this command a server has, on record at this host.
//!
//! In: large files that begin, break off, get their names. Out: what an earlier attempt left of one; what is
//! to be removed in the end.
//! Invariants: a temporary is on record before the server hears of it; one run at a time has a file's record,
//! so that no two write one temporary; of a record that is of another version of the source only the
//! temporary counts, which is then removed; a record names nothing but temporaries beside its file; what may
//! stand at the server stays on record until it is known that it does not, whatever becomes of its file.
//! Left out: whether what stands there is what the source has (`standing`).

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use haul_core::entry::Fingerprint;
use haul_core::ids::FileId;
use haul_core::wire::HeldReport;
use haul_ftp::Ranges;

use crate::ftp::pair::records::{Kept, OTHERS_MAX, Record, Records};

/// Shorter files begin anew.
pub(super) const FILE_LEN_MIN: u64 = 4 << 20;
/// In place of the source in a record's key: the version tells which one it is.
const FROM: &str = "anywhere";
/// Why nothing is on record, where this host is nobody's home.
const NO_PLACE: &str = "this host has no place for that (XDG_STATE_HOME, or HOME)";
/// Ends the version of a file that was sent in blocks, of which there may be gaps anywhere.
const IN_BLOCKS: &str = " blocks";
/// In place of a version, where nothing that is on record is gone on with.
const OF_NONE: &str = "none";

/// What a server can do towards going on.
#[derive(Clone, Copy)]
pub(super) struct Can {
    /// It takes files from another byte on than the first.
    pub(super) goes_on: bool,
    pub(super) sums: bool,
    /// The user believes it.
    pub(super) trusts: bool,
}

/// See the module.
pub(super) struct Parts {
    records: Option<Records>,
    /// Files are of a kind that is put on record, if there is a place for that.
    wanted: bool,
    can: Can,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Large files of the source, as it told them last.
    told: HashMap<FileId, Fingerprint>,
    parts: HashMap<FileId, Part>,
    /// Records of files that are over, of which something may stand there.
    doubted: Vec<Doubted>,
    /// What stood there of them was of no use: nothing is gone on with.
    afresh: HashSet<FileId>,
    /// Files that an earlier run had on record; and one of these was gone on with.
    earlier: HashSet<FileId>,
    resumed: bool,
    /// Files that were gone on with, and bytes of them that did not go again.
    files: u64,
    bytes: u64,
    held: HeldReport,
    /// What of each file counts in these three so far: one that goes on twice counts once.
    counted: HashMap<FileId, Counted>,
    /// Large files that could not be put on record, and why the first one could not.
    missed: HashSet<FileId>,
    why: Option<String>,
}

impl Inner {
    /// A file could not be put on record.
    fn miss(&mut self, id: FileId, why: impl ToString) {
        self.missed.insert(id);
        self.why.get_or_insert_with(|| why.to_string());
    }
}

#[derive(Clone, Copy, Default)]
struct Counted {
    held: HeldReport,
    goes_on_at: u64,
}

/// What is to be removed of a file that is over.
struct Doubted {
    /// The file, as its record has it.
    to: String,
    names: Vec<Vec<u8>>,
    record: Record,
}

/// A file that has a record.
struct Part {
    /// The file, as its record has it.
    to: String,
    version: String,
    /// While it is this run's.
    record: Option<Record>,
    /// Its temporary; empty: there is none.
    temp: Vec<u8>,
    /// What earlier attempts were called that may stand there; the oldest first.
    others: Vec<Vec<u8>>,
    in_blocks: bool,
    /// The server began to take it.
    begun: bool,
    /// What of it the server said that it has, where it goes in blocks.
    safe: Ranges,
    /// How long it is there, where it was left; `None`: nobody could be asked.
    len: Option<u64>,
}

impl Part {
    /// So much of it is there, as far as that was told.
    fn known(&self) -> Option<u64> {
        let said = if self.in_blocks { up_to(&self.safe) } else { 0 };
        self.len.or(Some(said).filter(|len| *len > 0))
    }

    /// All that may stand there.
    fn names(&self) -> Vec<Vec<u8>> {
        self.others.iter().chain([&self.temp]).filter(|name| !name.is_empty()).cloned().collect()
    }

    /// Nothing is gone on with at its temporary, which may stand there.
    fn cast_off(&mut self) {
        let temp = std::mem::take(&mut self.temp);
        if temp.is_empty() || haul_mutant::removed("ftp-parts-that-may-stand-are-on-record") {
            return;
        }
        if self.others.len() == OTHERS_MAX {
            self.others.remove(0);
        }
        self.others.push(temp);
    }

    /// Puts it on record as it is.
    fn put(&self) -> io::Result<()> {
        let Some(record) = &self.record else { return Ok(()) };
        let mut others = self.others.clone();
        let (temp, version) = match (self.temp.is_empty(), self.in_blocks) {
            (true, _) => (others.pop().unwrap_or_default(), OF_NONE.to_owned()),
            (false, true) => (self.temp.clone(), format!("{}{IN_BLOCKS}", self.version)),
            (false, false) => (self.temp.clone(), self.version.clone()),
        };
        if temp.is_empty() {
            record.clear();
            return Ok(());
        }
        record.write(&Kept { version, temp, ranges: self.safe.clone(), others })
    }
}

impl Can {
    /// What stands there of a file can be gone on with.
    fn is_of_use(self, part: &Part) -> bool {
        self.goes_on && part.begun && !part.temp.is_empty() && (self.sums || self.trusts && !part.in_blocks)
    }
}

/// What an earlier attempt left.
pub(super) struct Earlier {
    pub(super) temp: Vec<u8>,
    pub(super) in_blocks: bool,
    /// The server said that it has all up to here.
    pub(super) safe: u64,
    /// It is of the same version of the source, and may be gone on with.
    pub(super) fits: bool,
    /// What else may stand there.
    pub(super) others: Vec<Vec<u8>>,
}

impl Parts {
    /// `wanted`: files are put on record, if this host has a place for that, which is `dir`.
    pub(super) fn new((dir, wanted): (Option<PathBuf>, bool), can: Can) -> Parts {
        let records = dir.filter(|_| wanted).map(Records);
        Parts { records, wanted, can, inner: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn can(&self) -> Can {
        self.can
    }

    /// A file of the source is this one.
    pub(super) fn note(&self, id: FileId, fingerprint: Fingerprint) {
        if fingerprint.size >= FILE_LEN_MIN && self.records.is_some() {
            self.lock().told.insert(id, fingerprint);
        }
    }

    /// The file begins: this run has its record from now on, if no other one has it. What an earlier attempt
    /// left.
    pub(super) fn take(&self, id: FileId, size: u64, to: String, path: &[u8]) -> Option<Earlier> {
        if size < FILE_LEN_MIN || !self.wanted {
            return None;
        }
        let mut inner = self.lock();
        let Some(records) = &self.records else {
            inner.miss(id, NO_PLACE);
            return None;
        };
        // What this run had of it so far is on record.
        let had = inner.parts.remove(&id).is_some() || inner.counted.contains_key(&id);
        let Fingerprint { mtime, version, .. } = *inner.told.get(&id)?;
        let version = format!("{size} {}.{:09} {version:?}", mtime.secs, mtime.nanos);
        let doubted = inner.doubted.iter().position(|doubted| doubted.to == to);
        if let Some(Doubted { names, record, .. }) = doubted.map(|at| inner.doubted.swap_remove(at)) {
            // This run removes them in the end, and does not wait for that before.
            let (temp, record, safe) = (Vec::new(), Some(record), Ranges::new());
            let (in_blocks, begun, len) = (false, false, None);
            let part = Part { to, version, record, temp, others: names, in_blocks, begun, safe, len };
            inner.parts.insert(id, part);
            return None;
        }
        let record = match records.take(FROM, &to) {
            Ok(Some(record)) => record,
            Ok(None) => {
                inner.miss(id, "another run has it on record");
                return None;
            }
            Err(error) => {
                inner.miss(id, error);
                return None;
            }
        };
        let kept = record.read().filter(|kept| is_beside(&kept.temp, path));
        let mut safe = Ranges::new();
        let earlier = kept.map(|Kept { version: told, temp, ranges, mut others }| {
            others.retain(|other| is_beside(other, path));
            let (told, in_blocks) = match told.strip_suffix(IN_BLOCKS) {
                Some(told) => (told, true),
                None => (told.as_str(), false),
            };
            let fits = (told == version || haul_mutant::removed("ftp-parts-are-of-a-version"))
                && self.can.goes_on
                && !inner.afresh.contains(&id);
            safe = ranges;
            Earlier { temp, in_blocks, safe: up_to(&safe), fits, others }
        });
        let others = earlier.as_ref().map(|earlier| earlier.others.clone()).unwrap_or_default();
        let temp = earlier.as_ref().map(|earlier| earlier.temp.clone()).unwrap_or_default();
        let (in_blocks, begun) =
            (earlier.as_ref().is_some_and(|earlier| earlier.in_blocks), earlier.is_some());
        let record = Some(record);
        let part = Part { to, version, record, temp, others, in_blocks, begun, safe, len: None };
        inner.parts.insert(id, part);
        if earlier.is_some() && !had {
            inner.earlier.insert(id);
        }
        earlier
    }

    /// The server is about to hear of a temporary.
    pub(super) fn begins(&self, id: FileId, temp: &[u8], in_blocks: bool) {
        let mut inner = self.lock();
        let Some(part) = inner.parts.get_mut(&id) else { return };
        if part.temp != temp {
            part.safe = Ranges::new();
            part.cast_off();
        }
        (part.temp, part.in_blocks, part.begun) = (temp.to_vec(), in_blocks, false);
        let written = part.put();
        if part.record.is_none() || written.is_err() {
            // Nobody would find it.
            inner.parts.remove(&id);
        }
        if let Err(error) = written {
            inner.miss(id, error);
        }
    }

    /// What could not be put on record, in words.
    pub(super) fn missed(&self) -> Option<String> {
        let inner = self.lock();
        let why = inner.why.as_ref()?;
        let files = match inner.missed.len() {
            1 => "1 file".to_owned(),
            files => format!("{files} files"),
        };
        Some(format!(
            "{files} of 4 MiB or more: {why}; interrupted, they begin anew, and a run that is killed leaves what it \
             sent of them at the server"
        ))
    }

    /// The server said that it has this of a file that goes in blocks.
    pub(super) fn mark(&self, id: FileId, safe: &Ranges) {
        let mut inner = self.lock();
        let Some(part) = inner.parts.get_mut(&id).filter(|part| part.in_blocks) else { return };
        let before = part.safe.total();
        if part.safe.merge(safe).is_err() || part.safe.total() == before {
            return;
        }
        // Where it cannot be written, what was known before counts.
        let _ = part.put();
    }

    /// Up to where the server said that it has a file, which it does not show.
    pub(super) fn hidden(&self, id: FileId) -> Option<u64> {
        self.lock().parts.get(&id).filter(|part| part.in_blocks).map(|part| up_to(&part.safe))
    }

    /// The server takes it.
    pub(super) fn begun(&self, id: FileId) {
        if let Some(part) = self.lock().parts.get_mut(&id) {
            part.begun = true;
        }
    }

    /// The temporary that is on record is not there.
    pub(super) fn let_go(&self, id: FileId) {
        if let Some(part) = self.lock().parts.get_mut(&id) {
            part.temp.clear();
            let _ = part.put();
        }
    }

    /// The temporary that is on record is of no use, and may be there: it is to be removed.
    pub(super) fn cast_off(&self, id: FileId) {
        if let Some(part) = self.lock().parts.get_mut(&id) {
            part.cast_off();
            let _ = part.put();
        }
    }

    /// Nothing is gone on with any more of this file in this run.
    pub(super) fn begins_anew(&self, id: FileId) {
        self.lock().afresh.insert(id);
    }

    /// What stands at this temporary can be gone on with.
    pub(super) fn keeps(&self, id: FileId, temp: &[u8]) -> bool {
        let inner = self.lock();
        let is_of_use = |part: &&Part| part.record.is_some() && self.can.is_of_use(part);
        let part = inner.parts.get(&id).filter(|part| part.temp == temp).filter(is_of_use);
        part.is_some() && !inner.afresh.contains(&id)
    }

    /// The same, of whatever file it is.
    pub(super) fn keeps_any(&self, temp: &[u8]) -> bool {
        let of = self.lock().parts.iter().find(|(_, part)| part.temp == temp).map(|(id, _)| *id);
        of.is_some_and(|id| self.keeps(id, temp))
    }

    /// The file is left as it is, so long, if that is known. A later attempt, of this run or another, finds
    /// it.
    pub(super) fn leave(&self, id: FileId, len: Option<u64>) {
        if let Some(part) = self.lock().parts.get_mut(&id) {
            (part.record, part.len) = (None, len);
        }
    }

    /// The file has its name, or is given up and gone.
    pub(super) fn end(&self, id: FileId) {
        if let Some(part) = self.lock().parts.get_mut(&id) {
            part.temp.clear();
        }
        self.doubts(id);
    }

    /// The file is over, and what may be there of it is removed in the end, if that can be, or by a later
    /// run: until then it is on record.
    pub(super) fn doubts(&self, id: FileId) {
        let mut inner = self.lock();
        let part = inner.parts.remove(&id);
        inner.counted.remove(&id);
        let Some(part) = part else { return };
        let names = part.names();
        if !names.is_empty() {
            let _ = part.put();
        }
        let Part { to, record: Some(record), .. } = part else { return };
        match names.is_empty() {
            true => record.remove(),
            false => inner.doubted.push(Doubted { to, names, record }),
        }
    }

    /// A temporary is gone.
    pub(super) fn gone(&self, temp: &[u8]) {
        let mut inner = self.lock();
        inner.parts.values_mut().for_each(|part| part.others.retain(|other| other != temp));
        inner.doubted.iter_mut().for_each(|doubted| doubted.names.retain(|name| name != temp));
        for over in inner.doubted.extract_if(.., |doubted| doubted.names.is_empty()) {
            over.record.remove();
        }
    }

    /// The next run of the same command finds it, and removes it.
    pub(super) fn is_on_record(&self, temp: &[u8]) -> bool {
        let inner = self.lock();
        let has = |names: &[Vec<u8>]| names.iter().any(|name| name == temp);
        inner.doubted.iter().any(|doubted| has(&doubted.names))
            || inner.parts.values().any(|part| has(&part.names()))
    }

    /// What of files that failed lies there, when all else is over: of each all names, with its record, which
    /// nobody else has.
    pub(super) fn take_left(&self) -> Vec<(Vec<Vec<u8>>, Record)> {
        let left = std::mem::take(&mut self.lock().parts);
        let Some(records) = &self.records else { return Vec::new() };
        let one = |part: Part| {
            let names = part.names();
            let record = match part.record {
                Some(record) => record,
                None => records.take(FROM, &part.to).ok().flatten()?,
            };
            // Another run may have gone on with it meanwhile.
            let kept = record.read().filter(|kept| names.contains(&kept.temp))?;
            Some((kept.others.into_iter().chain([kept.temp]).collect(), record))
        };
        left.into_values().filter(|part| !part.names().is_empty()).filter_map(one).collect()
    }

    pub(super) fn has_left(&self) -> bool {
        !self.lock().parts.is_empty()
    }

    /// Bytes that stood at the server and did not go again.
    pub(super) fn spared(&self) -> u64 {
        self.lock().bytes
    }

    /// Bytes of unfinished files that a later run goes on with, as far as they are known.
    pub(super) fn kept(&self) -> u64 {
        self.lock().parts.values().filter_map(Part::known).fold(0, u64::saturating_add)
    }

    /// Of which files it goes on with nobody could be asked how much there is, for people.
    pub(super) fn unseen(&self) -> Option<String> {
        let is_unseen = |part: &&Part| self.can.is_of_use(part) && part.known().is_none();
        let unseen = self.lock().parts.values().filter(is_unseen).count();
        let files =
            if unseen == 1 { "1 unfinished file".into() } else { format!("{unseen} unfinished files") };
        (unseen > 0).then(|| {
            format!("what it has of {files}, which is on record here; it could not be asked how much that is")
        })
    }

    /// Something that an earlier run had sent was gone on with.
    pub(super) fn resumed(&self) -> bool {
        self.lock().resumed
    }

    /// A file was compared: so many bytes, of which `good` were the source's; or so many were believed. Where
    /// that was so before, what counts is the most of it, and where it goes on now.
    pub(super) fn count(&self, id: FileId, (checked, good, trusted): (u64, u64, u64), goes_on_at: u64) {
        let mut inner = self.lock();
        let before = inner.counted.get(&id).copied().unwrap_or_default();
        let now = HeldReport {
            checked: checked.max(before.held.checked),
            wrong: checked.saturating_sub(good).max(before.held.wrong),
            trusted: trusted.max(before.held.trusted),
            time: 0,
        };
        inner.counted.insert(id, Counted { held: now, goes_on_at });
        inner.resumed |= goes_on_at > 0 && inner.earlier.contains(&id);
        let swap =
            |all: &mut u64, before: u64, now: u64| *all = all.saturating_sub(before).saturating_add(now);
        swap(&mut inner.files, u64::from(before.goes_on_at > 0), u64::from(goes_on_at > 0));
        swap(&mut inner.bytes, before.goes_on_at, goes_on_at);
        let held = &mut inner.held;
        swap(&mut held.checked, before.held.checked, now.checked);
        swap(&mut held.wrong, before.held.wrong, now.wrong);
        swap(&mut held.trusted, before.held.trusted, now.trusted);
    }

    pub(super) fn held(&self) -> HeldReport {
        self.lock().held
    }

    /// For people, if anything was gone on with.
    pub(super) fn words(&self, sum: Option<&str>) -> Option<String> {
        let inner = self.lock();
        let how = match sum {
            Some(sum) if inner.held.checked > 0 => {
                format!("{sum} of what stood there was compared, part by part")
            }
            Some(sum) => format!("it said that it has it (111), and {sum} of the whole was compared"),
            None => "NOT compared but for the end of each, for the server makes no sums".into(),
        };
        let (files, bytes) = (inner.files, inner.bytes);
        (files > 0).then(|| format!("behind {bytes} bytes of {files} files that stood at the server: {how}"))
    }
}

/// Where the first gap is.
fn up_to(safe: &Ranges) -> u64 {
    safe.list().first().filter(|(start, _)| *start == 0).map_or(0, |(_, end)| *end)
}

/// It is a name that haul gives, in the directory of the file.
fn is_beside(temp: &[u8], path: &[u8]) -> bool {
    let dir = |path: &[u8]| path.iter().rposition(|byte| *byte == b'/').map(|at| path[..at].to_vec());
    let name = temp.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let is_ours = name.starts_with(b".") && name.windows(6).any(|some| some == b".haul~");
    is_ours && dir(temp).is_some() && dir(temp) == dir(path)
}

#[cfg(test)]
mod tests {
    use haul_core::entry::{Timestamp, Version};

    use super::*;

    /// Goal: a record whose name would lead elsewhere is none.
    #[test]
    fn a_part_lies_beside_its_file() {
        assert!(is_beside(b"/d/.big.haul~abc", b"/d/big"));
        for other in [&b"/e/.big.haul~abc"[..], b"/d/big", b"/d/.big", b"/d/x/.big.haul~a", b".big.haul~abc"]
        {
            assert!(!is_beside(other, b"/d/big"), "{other:?}");
        }
    }

    fn told(secs: i64, inode: u8) -> Fingerprint {
        let version = Version::new(&[inode]).expect("short");
        Fingerprint { size: FILE_LEN_MIN, mtime: Timestamp { secs, nanos: 5 }, version }
    }

    /// Goal: another file of the same size and time is another version: what stands there may still be
    /// written to by the session that was lost, with bytes of the one before.
    #[test]
    fn a_part_is_of_one_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let can = Can { goes_on: true, sums: true, trusts: false };
        let take = |inode| {
            let run = Parts::new((Some(dir.path().join("uploads")), true), can);
            run.note(FileId(1), told(1, inode));
            let earlier = run.take(FileId(1), FILE_LEN_MIN, "ftp://a/d/x".into(), b"/d/x");
            run.begins(FileId(1), b"/d/.x.haul~1", false);
            earlier.map(|earlier| earlier.fits)
        };
        assert_eq!([take(1), take(1), take(2)], [None, Some(true), Some(false)]);
    }

    /// Goal: a file that goes on twice in a run counts once in what the summary says of it, with the most
    /// that was compared; others count beside it.
    #[test]
    fn what_goes_on_twice_counts_once() {
        let parts = Parts::new((None, true), Can { goes_on: true, sums: true, trusts: false });
        let told = || {
            let HeldReport { checked, wrong, trusted, .. } = parts.held();
            (checked, wrong, trusted, parts.spared(), parts.words(Some("SUM")).expect("words"))
        };
        let words = |bytes, files| {
            format!(
                "behind {bytes} bytes of {files} files that stood at the server: SUM of what stood there was compared, part by part"
            )
        };
        parts.count(FileId(1), (100, 80, 0), 80);
        parts.count(FileId(1), (120, 120, 0), 120);
        assert_eq!(told(), (120, 20, 0, 120, words(120, 1)));
        parts.count(FileId(2), (0, 0, 50), 50);
        parts.end(FileId(1));
        parts.count(FileId(2), (0, 0, 60), 60);
        assert_eq!(told(), (120, 20, 60, 180, words(180, 2)));
        // What stood there was something else after all.
        parts.count(FileId(2), (70, 0, 0), 0);
        assert_eq!(told(), (190, 90, 60, 120, words(120, 1)));
    }

    /// Goal: two runs never go on with one temporary; another version of the source does not, either.
    #[test]
    fn a_part_is_of_one_run_and_one_version() {
        let dir = tempfile::tempdir().expect("a directory");
        let can = Can { goes_on: true, sums: true, trusts: false };
        let run = || Parts::new((Some(dir.path().join("uploads")), true), can);
        let id = FileId(1);
        let take = |run: &Parts, secs| {
            run.note(id, told(secs, 1));
            run.take(id, FILE_LEN_MIN, "ftp://a/d/x".into(), b"/d/x")
        };
        let first = run();
        assert!(take(&first, 1).is_none());
        first.begins(id, b"/d/.x.haul~1", true);
        assert!(!first.keeps(id, b"/d/.x.haul~1"), "the server did not begin");
        first.begun(id);
        assert!(first.keeps(id, b"/d/.x.haul~1"));

        let second = run();
        assert!(take(&second, 1).is_none(), "it is the first run's");
        assert!(
            second.missed().is_some_and(|words| words.starts_with("1 file of 4 MiB or more: another run "))
        );
        assert_eq!(first.missed(), None);
        second.begins(id, b"/d/.x.haul~2", true);
        assert!(!second.keeps(id, b"/d/.x.haul~2"), "nobody would find it");
        first.leave(id, Some(7));
        assert_eq!(first.kept(), 7);

        let third = run();
        assert!(take(&third, 2).is_some_and(|earlier| !earlier.fits && earlier.in_blocks));
        drop(third);
        let fourth = run();
        assert!(take(&fourth, 1).is_some_and(|earlier| earlier.fits && earlier.temp == b"/d/.x.haul~1"));
        assert!(first.take_left().is_empty(), "the fourth run has it");
        fourth.end(id);
        assert!(take(&run(), 1).is_none(), "it has its name");
    }

    /// Goal: what may stand at the server stays on record, whatever becomes of its file and however often it
    /// was sent, until it is known to be gone; a later run is told all of it, and this one when it begins
    /// anew.
    #[test]
    fn what_may_stand_there_is_on_record() {
        let dir = tempfile::tempdir().expect("a directory");
        let can = Can { goes_on: true, sums: false, trusts: false };
        let run = || Parts::new((Some(dir.path().join("uploads")), true), can);
        let (id, names) = (FileId(1), [b"/d/.x.haul~1", b"/d/.x.haul~2", b"/d/.x.haul~3"]);
        let take = |run: &Parts| {
            run.note(id, told(1, 1));
            let earlier = run.take(id, FILE_LEN_MIN, "ftp://a/d/x".into(), b"/d/x");
            earlier.map(|earlier| earlier.others.into_iter().chain([earlier.temp]).collect::<Vec<_>>())
        };
        let lost = |run: &Parts| {
            for name in names {
                run.begins(id, name, false);
                run.begun(id);
            }
        };
        let first = run();
        assert_eq!(take(&first), None);
        lost(&first);
        first.gone(names[1]);
        // The server is gone, and the file with it.
        first.doubts(id);
        assert!(first.is_on_record(names[0]) && first.is_on_record(names[2]));
        assert_eq!(take(&run()), None, "the first run is there still");
        // It removes them in the end by itself.
        assert_eq!(take(&first), None);
        first.begins(id, b"/d/.x.haul~4", false);
        first.begun(id);
        drop(first);

        let second = run();
        let told = take(&second).expect("it is on record");
        assert_eq!(told, [names[0].to_vec(), names[2].to_vec(), b"/d/.x.haul~4".to_vec()]);
        second.cast_off(id);
        second.begins(id, b"/d/.x.haul~5", false);
        // It has its name, and what was cast off may stand there.
        second.end(id);
        assert!(!second.is_on_record(b"/d/.x.haul~5") && second.is_on_record(names[2]));
        drop(second);

        let third = run();
        let told = take(&third).expect("it is on record");
        assert!(told.contains(&names[0].to_vec()) && told.contains(&names[2].to_vec()), "{told:?}");
        assert!(!told.contains(&b"/d/.x.haul~5".to_vec()), "{told:?}");
        third.end(id);
        told.iter().for_each(|name| third.gone(name));
        assert_eq!(take(&run()), None, "all of it is gone");
    }
}
