//! Which files were begun in place and not proved since, on record at this host.
//!
//! In: files as they are begun in place, and as they end. Out: whether an earlier run, or this one, began a
//! file and nobody saw it whole since.
//! Invariants: a file is on record before the server hears of it; it stays there until what the server has
//! of it was held against what was sent, or it got its name anew. What dead runs left goes over into the
//! list of one that lives before theirs are removed.
//! One list for each run: a line for each file that is begun, one for each that ends. The line of a large
//! file is synced; for small ones nothing is, so that after a power cut of this host (not after a kill) the
//! last of them may be missing.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FlockOperation, OFlags, flock};

/// From this length on a file's line is on media before the file begins.
const SYNCED_LEN_MIN: u64 = 4 << 20;
/// A list that is longer is written anew, if that makes it shorter.
const LIST_LEN_MAX: u64 = 256 << 10;
/// No longer list is read; what a run writes is kept shorter.
const READ_LEN_MAX: u64 = 256 << 20;
/// Letters of a key.
const KEY_LEN: usize = 32;

type Key = [u8; KEY_LEN];

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
    /// All that is unproved, of this run and of those before.
    all: HashSet<Key>,
    /// What stands in this run's list.
    own: HashSet<Key>,
    /// Files that could not be put on record, and why the first one could not.
    missed: u64,
    why: Option<String>,
}

impl Begun {
    /// The lists of a server; what cannot be read is none.
    pub(super) fn open(dir: Option<&Path>, server: &str, tag: u32) -> Begun {
        let name = |dir: &Path| dir.join("in-place").join(letters(server));
        let mut inner = Inner { dir: dir.map(name), tag, ..Inner::default() };
        if inner.take_over().is_err() {
            // What could be read of it counts.
            inner.list = None;
        }
        Begun(Mutex::new(inner))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody saw this file whole since it was begun.
    pub(super) fn is_unproved(&self, shown: &str) -> bool {
        let inner = self.lock();
        !inner.all.is_empty()
            && inner.all.contains(&key(shown))
            && !haul_mutant::removed("ftp-what-was-begun-in-place-is-on-record")
    }

    /// A file is about to be begun in place. One that cannot be put on record is begun all the same, and told
    /// at the end.
    pub(super) fn begins(&self, shown: &str, size: u64) {
        let (key, mut inner) = (key(shown), self.lock());
        inner.all.insert(key);
        if !inner.own.insert(key) {
            return;
        }
        let put = match inner.dir.is_none() {
            true => Err(io::Error::other("this host has no place for that (XDG_STATE_HOME, or HOME)")),
            false => inner.put(b'+', &key),
        };
        let put = put.and_then(|()| match &inner.list {
            Some(list) if size >= SYNCED_LEN_MIN => list.sync_data(),
            _ => Ok(()),
        });
        if let Err(error) = put {
            inner.own.remove(&key);
            inner.missed += 1;
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

    /// What the server has of it was held against what was sent, or it got its name anew.
    pub(super) fn ends(&self, shown: &str) {
        let mut inner = self.lock();
        if inner.all.is_empty() {
            return;
        }
        let key = key(shown);
        inner.all.remove(&key);
        if inner.own.remove(&key) {
            // Where it cannot be written the next run sends the file again.
            let _ = inner.put(b'-', &key);
        }
    }
}

impl Inner {
    /// Reads the lists of all runs; those of dead ones go over into this run's.
    fn take_over(&mut self) -> io::Result<()> {
        let Some(dir) = self.dir.clone() else { return Ok(()) };
        let entries = match fs::read_dir(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        if !is_mine(&dir)? {
            return Ok(());
        }
        let mut dead = Vec::new();
        for entry in entries {
            let path = entry?.path();
            let mut options = OpenOptions::new();
            let options =
                options.read(true).custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
            let Ok(list) = options.open(&path) else { continue };
            let is_dead = flock(&list, FlockOperation::NonBlockingLockExclusive).is_ok();
            let keys = read(&list)?;
            self.all.extend(&keys);
            if is_dead {
                self.own.extend(&keys);
                dead.push((path, list));
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

    /// A line of this run's list, which is made with the first one.
    fn put(&mut self, sign: u8, key: &Key) -> io::Result<()> {
        if self.list.is_none()
            || (self.len > LIST_LEN_MAX && self.len > 4 * line_len() * self.own.len() as u64)
        {
            // With what was begun, which is in it already.
            return self.write_anew();
        }
        let Some(list) = &mut self.list else { return Ok(()) };
        let line = [&[sign], &key[..], b"\n"].concat();
        list.write_all(&line)?;
        self.len += line.len() as u64;
        Ok(())
    }

    /// Writes all that stands in this run's list into a new one, and has it on media.
    fn write_anew(&mut self) -> io::Result<()> {
        let Some(dir) = &self.dir else { return Ok(()) };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        if !is_mine(dir)? {
            let why = "records of unfinished files lie in a directory that is another user's, or that others may write to";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let (path, new) = (dir.join(format!("{:08x}", self.tag)), dir.join(format!("{:08x}.new", self.tag)));
        let mut options = OpenOptions::new();
        let mut list = options.append(true).create_new(true).mode(0o600).open(&new)?;
        flock(&list, FlockOperation::NonBlockingLockExclusive)?;
        let mut text = Vec::with_capacity(self.own.len() * line_len() as usize);
        self.own.iter().for_each(|key| text.extend([b"+", &key[..], b"\n"].concat()));
        list.write_all(&text)?;
        list.sync_data()?;
        fs::rename(&new, &path)?;
        // The name, too.
        File::open(dir)?.sync_all()?;
        (self.list, self.len) = (Some(list), text.len() as u64);
        Ok(())
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let inner = self.lock();
        if let (Some(dir), Some(_), true) = (&inner.dir, &inner.list, inner.own.is_empty()) {
            let _ = fs::remove_file(dir.join(format!("{:08x}", inner.tag)));
        }
    }
}

fn line_len() -> u64 {
    KEY_LEN as u64 + 2
}

/// What is begun in a list and did not end; a torn line is none.
fn read(list: &File) -> io::Result<HashSet<Key>> {
    let mut text = Vec::new();
    if list.metadata()?.is_file() {
        list.take(READ_LEN_MAX).read_to_end(&mut text)?;
    }
    let mut keys = HashSet::new();
    for line in text.split(|byte| *byte == b'\n') {
        match line.split_first().and_then(|(sign, key)| Some((sign, Key::try_from(key).ok()?))) {
            Some((b'+', key)) => drop(keys.insert(key)),
            Some((b'-', key)) => drop(keys.remove(&key)),
            _ => {}
        }
    }
    Ok(keys)
}

fn is_mine(dir: &Path) -> io::Result<bool> {
    let dir = fs::metadata(dir)?;
    Ok(dir.uid() == rustix::process::geteuid().as_raw() && dir.mode() & 0o022 == 0)
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
    use super::*;

    /// Goal: what a dead run began is known until somebody proves it, also through runs that end between;
    /// what a run proved is forgotten, and nothing is left of lists that say nothing.
    #[test]
    fn what_was_begun_stays_on_record_until_it_is_proved() {
        let home = tempfile::tempdir().expect("a directory");
        let open = |tag| Begun::open(Some(home.path()), "ftp://a", tag);
        let first = open(1);
        for name in ["x", "y", "z"] {
            first.begins(name, 1);
        }
        first.ends("y");
        let second = open(2);
        let known = |run: &Begun| ["x", "y", "z"].map(|name| run.is_unproved(name));
        assert_eq!(known(&second), [true, false, true], "of one that lives");
        drop(second);
        drop(first);
        for tag in [3, 4] {
            assert_eq!(known(&open(tag)), [true, false, true], "of one that is dead");
        }
        let last = open(5);
        last.begins("x", 9 << 20);
        last.ends("x");
        last.ends("z");
        assert_eq!(known(&last), [false; 3]);
        drop(last);
        let left = fs::read_dir(home.path().join("in-place").join(letters("ftp://a"))).expect("a directory");
        assert_eq!(left.count(), 0);
        let nowhere = Begun::open(None, "ftp://a", 6);
        assert_eq!((known(&nowhere), nowhere.missed()), ([false; 3], None));
        nowhere.begins("x", 1);
        assert!(nowhere.missed().is_some_and(|words| words.starts_with("1 file begun in place: ")));
    }

    /// Goal: a list does not grow with what has ended.
    #[test]
    fn lists_stay_short() {
        let home = tempfile::tempdir().expect("a directory");
        let run = Begun::open(Some(home.path()), "ftp://a", 1);
        run.begins("stays", 1);
        for n in 0..5_000 {
            run.begins(&n.to_string(), 1);
            run.ends(&n.to_string());
        }
        assert!(run.lock().len <= LIST_LEN_MAX + 2 * line_len());
        assert!(Begun::open(Some(home.path()), "ftp://a", 2).is_unproved("stays"));
    }
}
