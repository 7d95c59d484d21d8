//! Which files were begun in place and not proved since, on record at this host.
//!
//! In: files, and parts of files, as they are begun in place and as they end. Out: whether an earlier run,
//! or this one, began anything of a file and nobody saw that right since. Invariants: a file is on record
//! before the server hears of it. What was begun stays there until what the server has of all of that was
//! held against what was sent, or the file got its name anew: a part says nothing of what lies beside it.
//! What dead runs left goes over into the list of one that lives before theirs are removed. Behind a line
//! that could not be written whole nothing is appended: the list is written anew. One list for each run: a
//! line for each part that is begun, one for each that ends. The line of a large one is synced; for small
//! ones nothing is, so that after a power cut of this host (not after a kill) the last of them may be
//! missing.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::ops::RangeInclusive;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use haul_base::way::{self, Blocked, Manner};
use rustix::fs::{FlockOperation, OFlags, flock};

/// From this length on a file's line is on media before the file begins.
const SYNCED_LEN_MIN: u64 = 4 << 20;
/// A list that is longer is written anew, if that makes it shorter.
const LIST_LEN_MAX: u64 = 256 << 10;
/// No longer list is read; what a run writes is kept shorter.
const READ_LEN_MAX: u64 = 256 << 20;
/// Letters of a key, and of a place in a file.
const KEY_LEN: usize = 32;
const PLACE_LEN: usize = 16;
/// A sign, whose file, from where to where, and an end.
const LINE_LEN: usize = 1 + KEY_LEN + 2 * PLACE_LEN + 1;
/// How often the lists are looked through where one of them goes meanwhile.
const LOOKS_MAX: usize = 100;
/// What a run leaves that is killed while it writes a list anew is removed when it is as old.
const NEW_AGE_MAX: Duration = Duration::from_secs(3600);

type Key = [u8; KEY_LEN];

/// What is begun of a file, from one byte up to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Span {
    start: u64,
    end: u64,
}

impl Span {
    pub(super) const WHOLE: Span = Span { start: 0, end: u64::MAX };

    pub(super) fn part(at: u64, len: u64) -> Span {
        Span { start: at, end: at.saturating_add(len) }
    }

    fn has(self, other: Span) -> bool {
        self.start <= other.start && other.end <= self.end
    }
}

type Part = (Key, Span);

/// See the module.
pub(super) struct Begun(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// Where the lists of this server lie; `None`: there is no place for any.
    dir: Option<PathBuf>,
    tag: u32,
    /// This run's own.
    list: Option<File>,
    len: u64,
    /// It may not say what it should.
    is_torn: bool,
    /// All that is unproved, of this run and of those before.
    all: BTreeSet<Part>,
    /// What is to stand in this run's list.
    own: BTreeSet<Part>,
    /// Files that could not be put on record, and why the first one could not.
    missed: u64,
    why: Option<String>,
}

impl Begun {
    /// The lists of a server; what cannot be read is none.
    pub(super) fn open(dir: Option<&Path>, server: &str, tag: u32) -> Begun {
        let name = |dir: &Path| dir.join("in-place").join(letters(server));
        let mut inner = Inner { dir: dir.map(name), tag, ..Inner::default() };
        if inner.take_over(|| ()).is_err() {
            // What could be read of it counts.
            inner.list = None;
        }
        Begun(Mutex::new(inner))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something of this file was begun, and nobody saw it right since.
    pub(super) fn is_unproved(&self, shown: &str) -> bool {
        let inner = self.lock();
        !inner.all.is_empty()
            && inner.all.range(of_file(key(shown))).next().is_some()
            && !haul_mutant::removed("ftp-what-was-begun-in-place-is-on-record")
    }

    /// So much of a file is about to be begun in place. What cannot be put on record is begun all the same,
    /// and told at the end.
    pub(super) fn begins(&self, shown: &str, span: Span, len: u64) {
        let (part, mut inner) = ((key(shown), span), self.lock());
        inner.all.insert(part);
        let is_new = inner.own.insert(part);
        if !is_new && !inner.is_torn {
            return;
        }
        let put = match inner.dir.is_none() {
            true => Err(io::Error::other("this host has no place for that (XDG_STATE_HOME, or HOME)")),
            false => inner.put(b'+', &part),
        };
        let put = put.and_then(|()| match &inner.list {
            Some(list) if len >= SYNCED_LEN_MIN => list.sync_data(),
            _ => Ok(()),
        });
        if let Err(error) = put {
            inner.is_torn = true;
            inner.missed += u64::from(is_new);
            inner.why.get_or_insert_with(|| error.to_string());
        }
    }

    /// What could not be put on record, in words.
    pub(super) fn missed(&self) -> Option<String> {
        let inner = self.lock();
        let why = inner.why.as_ref()?;
        let files = if inner.missed == 1 { "1 file".to_owned() } else { format!("{} files", inner.missed) };
        Some(format!(
            "{files} begun in place: {why}; had this run been killed, a later one could have taken what was half \
             written for a copy"
        ))
    }

    /// What the server has of so much of it was held against what was sent, or it got its name anew.
    pub(super) fn ends(&self, shown: &str, span: Span) {
        let mut inner = self.lock();
        if inner.all.is_empty() {
            return;
        }
        let span = match haul_mutant::removed("ftp-parts-in-place-end-alone") {
            true => Span::WHOLE,
            false => span,
        };
        let is_over = |(_, begun): &&Part| span.has(*begun);
        let over: Vec<Part> = inner.all.range(of_file(key(shown))).filter(is_over).copied().collect();
        for part in over {
            inner.all.remove(&part);
            if inner.own.remove(&part) {
                // Where it cannot be written the next run sends the file again.
                let put = inner.put(b'-', &part);
                inner.is_torn |= put.is_err();
            }
        }
    }
}

impl Inner {
    /// Reads the lists of all runs; those of dead ones go over into this run's. `listed` is called when it is
    /// known which lists there are.
    fn take_over(&mut self, mut listed: impl FnMut()) -> io::Result<()> {
        let Some(dir) = self.dir.clone() else { return Ok(()) };
        let mut dead = Vec::new();
        for _ in 0..LOOKS_MAX {
            if self.look_through(&dir, &mut dead, &mut listed)?
                || haul_mutant::removed("ftp-lists-that-go-are-looked-for")
            {
                break;
            }
        }
        if self.own.is_empty() {
            // Nothing is left of any of them.
            dead.iter().for_each(|(path, _)| drop(fs::remove_file(path)));
            return Ok(());
        }
        self.write_anew()?;
        dead.iter().for_each(|(path, _)| drop(fs::remove_file(path)));
        Ok(())
    }

    /// Reads the lists once; false: one of them went meanwhile, and what it says is in another one by now,
    /// which may not have been there yet.
    fn look_through(
        &mut self,
        dir: &Path,
        dead: &mut Vec<(PathBuf, File)>,
        listed: &mut impl FnMut(),
    ) -> io::Result<bool> {
        let entries = match fs::read_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            entries => entries?.collect::<io::Result<Vec<_>>>()?,
        };
        listed();
        if !is_mine(dir)? {
            return Ok(true);
        }
        for entry in entries {
            let path = entry.path();
            if dead.iter().any(|(known, _)| *known == path) {
                continue;
            }
            if path.extension().is_some() {
                // What it is to say stands elsewhere until it is whole.
                let is_old = |facts: fs::Metadata| facts.modified().ok()?.elapsed().ok();
                if path.symlink_metadata().ok().and_then(is_old).is_some_and(|age| age > NEW_AGE_MAX) {
                    let _ = fs::remove_file(&path);
                }
                continue;
            }
            let mut options = OpenOptions::new();
            let options =
                options.read(true).custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
            let list = match options.open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
                Err(_) => continue,
                Ok(list) => list,
            };
            let is_dead = flock(&list, FlockOperation::NonBlockingLockExclusive).is_ok();
            let parts = read(&list)?;
            self.all.extend(&parts);
            if is_dead {
                self.own.extend(&parts);
                dead.push((path, list));
            }
        }
        Ok(true)
    }

    /// A line of this run's list, which is made with the first one.
    fn put(&mut self, sign: u8, part: &Part) -> io::Result<()> {
        let is_torn = self.is_torn && !haul_mutant::removed("ftp-torn-lists-are-written-anew");
        let is_long = self.len > LIST_LEN_MAX && self.len > 4 * LINE_LEN as u64 * self.own.len() as u64;
        if self.list.is_none() || is_torn || is_long {
            // With what was begun, which is in it already.
            return self.write_anew();
        }
        let Some(list) = &mut self.list else { return Ok(()) };
        let line = line(sign, part);
        list.write_all(&line)?;
        self.len += line.len() as u64;
        Ok(())
    }

    /// Writes all that stands in this run's list into a new one, and has it on media.
    fn write_anew(&mut self) -> io::Result<()> {
        let Some(dir) = &self.dir else { return Ok(()) };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        if !is_mine(dir)? {
            let why = "records of unfinished files lie in a directory that is another user's, or that others may \
                       change, or change the way to";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let (path, new) = (dir.join(format!("{:08x}", self.tag)), dir.join(format!("{:08x}.new", self.tag)));
        let mut options = OpenOptions::new();
        let mut list = options.append(true).create_new(true).mode(0o600).open(&new)?;
        let text: Vec<u8> = self.own.iter().flat_map(|part| line(b'+', part)).collect();
        let mut fill = || {
            flock(&list, FlockOperation::NonBlockingLockExclusive)?;
            list.write_all(&text)?;
            list.sync_data()?;
            fs::rename(&new, &path)
        };
        if let Err(error) = fill() {
            // The next attempt needs the name.
            let _ = fs::remove_file(&new);
            return Err(error);
        }
        (self.list, self.len) = (Some(list), text.len() as u64);
        // The name, too.
        File::open(dir)?.sync_all()?;
        self.is_torn = false;
        Ok(())
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let mut inner = self.lock();
        if inner.is_torn && !inner.own.is_empty() {
            // There may be room by now.
            let _ = inner.write_anew();
        }
        if let (Some(dir), Some(_), true) = (&inner.dir, &inner.list, inner.own.is_empty()) {
            let _ = fs::remove_file(dir.join(format!("{:08x}", inner.tag)));
        }
    }
}

/// All that there can be of one file.
fn of_file(key: Key) -> RangeInclusive<Part> {
    (key, Span { start: 0, end: 0 })..=(key, Span { start: u64::MAX, end: u64::MAX })
}

fn line(sign: u8, (key, span): &Part) -> Vec<u8> {
    let places = format!("{:0PLACE_LEN$x}{:0PLACE_LEN$x}\n", span.start, span.end);
    [&[sign], &key[..], places.as_bytes()].concat()
}

/// What is begun in a list and did not end; a torn line is none.
fn read(list: &File) -> io::Result<BTreeSet<Part>> {
    let mut text = Vec::new();
    if list.metadata()?.is_file() {
        list.take(READ_LEN_MAX).read_to_end(&mut text)?;
    }
    let mut parts = BTreeSet::new();
    for line in text.split(|byte| *byte == b'\n') {
        match parse(line) {
            Some((b'+', part)) => drop(parts.insert(part)),
            Some((b'-', part)) => drop(parts.remove(&part)),
            _ => {}
        }
    }
    Ok(parts)
}

fn parse(line: &[u8]) -> Option<(u8, Part)> {
    if line.len() + 1 != LINE_LEN {
        return None;
    }
    let (sign, rest) = line.split_first()?;
    let (key, places) = rest.split_first_chunk::<KEY_LEN>()?;
    let place = |text: &[u8]| u64::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok();
    let (start, end) = places.split_at(PLACE_LEN);
    Some((*sign, (*key, Span { start: place(start)?, end: place(end)? })))
}

/// Whether nobody else can change what lies in this directory, nor what the way to it leads to.
fn is_mine(dir: &Path) -> io::Result<bool> {
    let dir = match way::open_dir(dir, Manner { makes: false, own_groups: true }) {
        Err(Blocked::ByOthers { .. }) => return Ok(false),
        Err(Blocked::BySystem { source, .. }) => return Err(source),
        Ok(dir) => rustix::fs::fstat(dir)?,
    };
    Ok(dir.st_uid == rustix::process::geteuid().as_raw() && dir.st_mode & 0o022 == 0)
}

fn letters(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..KEY_LEN].to_owned()
}

fn key(shown: &str) -> Key {
    let mut key = [0; KEY_LEN];
    key.copy_from_slice(letters(shown).as_bytes());
    key
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Goal: what a dead run began is known until somebody proves it, also through runs that end between;
    /// what a run proved is forgotten, and nothing is left of lists that say nothing.
    #[test]
    fn what_was_begun_stays_on_record_until_it_is_proved() {
        let home = tempfile::tempdir().expect("a directory");
        let open = |tag| Begun::open(Some(home.path()), "ftp://a", tag);
        let first = open(1);
        for name in ["x", "y", "z"] {
            first.begins(name, Span::WHOLE, 1);
        }
        first.ends("y", Span::WHOLE);
        let second = open(2);
        let known = |run: &Begun| ["x", "y", "z"].map(|name| run.is_unproved(name));
        assert_eq!(known(&second), [true, false, true], "of one that lives");
        drop(second);
        drop(first);
        for tag in [3, 4] {
            assert_eq!(known(&open(tag)), [true, false, true], "of one that is dead");
        }
        let last = open(5);
        last.begins("x", Span::WHOLE, 9 << 20);
        last.ends("x", Span::WHOLE);
        last.ends("z", Span::WHOLE);
        assert_eq!(known(&last), [false; 3]);
        drop(last);
        let left = fs::read_dir(home.path().join("in-place").join(letters("ftp://a"))).expect("a directory");
        assert_eq!(left.count(), 0);
        let nowhere = Begun::open(None, "ftp://a", 6);
        assert_eq!((known(&nowhere), nowhere.missed()), ([false; 3], None));
        nowhere.begins("x", Span::WHOLE, 1);
        assert!(nowhere.missed().is_some_and(|words| words.starts_with("1 file begun in place: ")));
    }

    /// Goal: lists that others could have put there are not believed, and none is left to them. Method: the
    /// directory itself, and one above it, in which everybody may rename what is there.
    #[test]
    fn lists_that_others_can_change_are_no_word() {
        let home = tempfile::tempdir().expect("a directory");
        let above = home.path().join("above");
        let open = |tag| Begun::open(Some(&above), "ftp://a", tag);
        fs::create_dir(&above).expect("made");
        open(1).begins("x", Span::WHOLE, 1);
        let dir = above.join("in-place").join(letters("ftp://a"));
        for changed in [dir.as_path(), above.as_path()] {
            let set = |mode| fs::set_permissions(changed, fs::Permissions::from_mode(mode)).expect("set");
            set(0o777);
            let run = open(2);
            assert!(!run.is_unproved("x"), "{}", changed.display());
            run.begins("y", Span::WHOLE, 1);
            assert!(run.missed().is_some_and(|words| words.contains("others may change")));
            drop(run);
            set(0o700);
            let later = open(3);
            assert_eq!(["x", "y"].map(|name| later.is_unproved(name)), [true, false]);
        }
    }

    /// Goal: a list does not grow with what has ended.
    #[test]
    fn lists_stay_short() {
        let home = tempfile::tempdir().expect("a directory");
        let run = Begun::open(Some(home.path()), "ftp://a", 1);
        run.begins("stays", Span::WHOLE, 1);
        for n in 0..5_000 {
            run.begins(&n.to_string(), Span::WHOLE, 1);
            run.ends(&n.to_string(), Span::WHOLE);
        }
        assert!(run.lock().len <= LIST_LEN_MAX + 2 * LINE_LEN as u64);
        assert!(Begun::open(Some(home.path()), "ftp://a", 2).is_unproved("stays"));
    }

    /// Goal: what is proved of a file is no word on what was begun beside it. Method: parts that lie in
    /// others, over their edges and beside them, and the whole, each by a run of its own.
    #[test]
    fn a_part_ends_what_lies_in_it_alone() {
        let home = tempfile::tempdir().expect("a directory");
        let tags = std::cell::Cell::new(0);
        let open = || {
            tags.set(tags.get() + 1);
            Begun::open(Some(home.path()), "ftp://a", tags.get())
        };
        let begun = Span::part(100, 50);
        for (span, ends) in [
            (Span::part(100, 50), true),
            (Span::part(90, 70), true),
            (Span::WHOLE, true),
            (Span::part(100, 49), false),
            (Span::part(101, 90), false),
            (Span::part(150, 9), false),
            (Span::part(0, 0), false),
        ] {
            open().begins("x", begun, 50);
            let second = open();
            second.begins("x", span, 1);
            second.ends("x", span);
            assert_eq!(second.is_unproved("x"), !ends, "{span:?}");
            drop(second);
            assert_eq!(open().is_unproved("x"), !ends, "{span:?}");
            open().ends("x", Span::WHOLE);
        }
        open().begins("x", Span::WHOLE, 1);
        open().ends("x", Span::part(0, 1 << 60));
        assert!(open().is_unproved("x"), "a part is not the whole, however long it is");
    }

    /// Goal: a line that was not written whole costs no other file its record, and its own file has one as
    /// soon as there is room. Method: a list that takes nothing for a moment, of a sign of either kind, and
    /// has half a line then.
    #[test]
    fn nothing_follows_a_torn_line() {
        for sign in ["+", "-"] {
            let home = tempfile::tempdir().expect("a directory");
            let run = Begun::open(Some(home.path()), "ftp://a", 1);
            ["a", "b"].iter().for_each(|name| run.begins(name, Span::WHOLE, 1));
            let path = home.path().join("in-place").join(letters("ftp://a")).join("00000001");
            let kept = run.lock().list.replace(File::open(&path).expect("it is there")).expect("a list");
            match sign {
                "+" => run.begins("torn", Span::WHOLE, 1),
                _ => run.ends("b", Span::WHOLE),
            }
            (&kept).write_all(format!("{sign}0123").as_bytes()).expect("there is room again");
            run.lock().list = Some(kept);
            run.begins("c", Span::WHOLE, 1);
            let later = Begun::open(Some(home.path()), "ftp://a", 2);
            let known = ["a", "b", "torn", "c"].map(|name| later.is_unproved(name));
            assert_eq!(known, [true, sign == "+", sign == "+", true], "{sign}");
            assert_eq!(run.missed().is_some(), sign == "+");
        }
    }

    /// Goal: what goes over into another run's list while the lists are looked through is found there.
    /// Method: the other run takes it over when it is known which lists there are, and before any is read.
    #[test]
    fn lists_that_go_over_are_found() {
        let home = tempfile::tempdir().expect("a directory");
        Begun::open(Some(home.path()), "ftp://a", 0).begins("x", Span::WHOLE, 1);
        let mut goes = Some(());
        let dir = home.path().join("in-place").join(letters("ftp://a"));
        let mut inner = Inner { dir: Some(dir), tag: 1, ..Inner::default() };
        let taken = inner.take_over(|| {
            if goes.take().is_some() {
                drop(Begun::open(Some(home.path()), "ftp://a", 7));
            }
        });
        taken.expect("the lists are read");
        assert!(Begun(Mutex::new(inner)).is_unproved("x"));
    }
}
