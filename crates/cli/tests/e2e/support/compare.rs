//! The verifier: two trees compared by plain system calls, byte for byte, and the debris that is left.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

/// Bytes compared at a time.
const PIECE_LEN: usize = 1 << 20;

/// Of whom a deep tree is looked at, bytes.
const DEEP_STACK: usize = 64 << 20;

/// A failure shows at most this many differences.
const SHOWN_MAX: usize = 20;

/// What has to be equal beside names, kinds, bytes and link targets.
#[derive(Clone, Copy)]
pub struct Opts {
    /// Mode bits and modification times, nanoseconds, of files and directories.
    pub metadata: bool,
    /// These of the two roots as well.
    pub root: bool,
    /// The copy must lack the setuid and setgid bits of its source.
    pub setid_dropped: bool,
}

/// Everything, the roots too: `cp -r data DST` against `DST/data`.
pub const ALL: Opts = Opts { metadata: true, root: true, setid_dropped: false };
/// Everything below the roots: `cp -r data/ DST` against `DST`.
pub const BELOW: Opts = Opts { root: false, ..ALL };

/// Checks that `copy` is what `source` is, and that no debris lies in it.
#[track_caller]
pub fn assert_same(source: &Path, copy: &Path, opts: Opts) {
    let differences = differences(source, copy, opts);
    let shown: Vec<String> = differences.iter().take(SHOWN_MAX).cloned().collect();
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), shown.join("\n"));
    assert_no_debris(copy);
}

/// Every difference between two trees, one line each.
pub fn differences(source: &Path, copy: &Path, opts: Opts) -> Vec<String> {
    deep(|| {
        let mut found = Vec::new();
        entry(source, copy, opts, opts.root, &mut found);
        found
    })
}

/// With room for what calls itself at each level of a tree of a thousand levels: without optimisation a
/// test's own stack is too small for that.
fn deep<T: Send>(look: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let looks = thread::Builder::new().stack_size(DEEP_STACK).spawn_scoped(scope, look);
        looks.expect("a thread").join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

fn entry(source: &Path, copy: &Path, opts: Opts, metadata: bool, found: &mut Vec<String>) {
    let (a, b) = match (fs::symlink_metadata(source), fs::symlink_metadata(copy)) {
        (Ok(a), Ok(b)) => (a, b),
        (Err(error), _) => return found.push(format!("{source:?}: {error}")),
        (_, Err(error)) => return found.push(format!("{copy:?}: {error}")),
    };
    if a.file_type() != b.file_type() {
        return found.push(format!("{copy:?}: is {:?}, not {:?}", b.file_type(), a.file_type()));
    }
    if a.is_symlink() {
        let targets = (fs::read_link(source).ok(), fs::read_link(copy).ok());
        if targets.0 != targets.1 {
            found.push(format!("{copy:?}: points to {:?}, not {:?}", targets.1, targets.0));
        }
        return;
    }
    if metadata && opts.metadata {
        of_metadata(&a, &b, copy, opts, found);
    }
    if a.is_dir() {
        let (mut ours, mut theirs) = (list(source), list(copy));
        for (name, path) in &ours {
            match theirs.remove(name) {
                Some(twin) => entry(path, &twin, opts, true, found),
                None => found.push(format!("{:?}: missing", copy.join(name))),
            }
        }
        ours.clear();
        found.extend(theirs.values().map(|path| format!("{path:?}: should not be there")));
    } else if a.is_file() {
        of_bytes(source, copy, &a, &b, found);
    }
}

fn of_metadata(a: &Metadata, b: &Metadata, copy: &Path, opts: Opts, found: &mut Vec<String>) {
    let mask = if opts.setid_dropped { 0o1777 } else { 0o7777 };
    let modes = (a.permissions().mode() & mask, b.permissions().mode() & 0o7777);
    if modes.0 != modes.1 {
        found.push(format!("{copy:?}: mode {:o}, not {:o}", modes.1, modes.0));
    }
    let times = ((a.mtime(), a.mtime_nsec()), (b.mtime(), b.mtime_nsec()));
    if times.0 != times.1 {
        found.push(format!("{copy:?}: mtime {:?}, not {:?}", times.1, times.0));
    }
}

fn of_bytes(source: &Path, copy: &Path, a: &Metadata, b: &Metadata, found: &mut Vec<String>) {
    if a.len() != b.len() {
        return found.push(format!("{copy:?}: {} bytes, not {}", b.len(), a.len()));
    }
    let (Ok(mut ours), Ok(mut theirs)) = (File::open(source), File::open(copy)) else {
        return found.push(format!("{copy:?} or its source cannot be opened"));
    };
    let (mut left, mut right) = (vec![0; PIECE_LEN], vec![0; PIECE_LEN]);
    let mut offset = 0;
    while offset < a.len() {
        let len = usize::try_from(a.len() - offset).map_or(PIECE_LEN, |rest| rest.min(PIECE_LEN));
        let read = ours.read_exact(&mut left[..len]).and(theirs.read_exact(&mut right[..len]));
        if let Err(error) = read {
            return found.push(format!("{copy:?} at byte {offset}: {error}"));
        }
        if left[..len] != right[..len] {
            let at = (0..len).find(|i| left[*i] != right[*i]).map_or(offset, |i| offset + i as u64);
            return found.push(format!("{copy:?}: differs from byte {at}"));
        }
        offset += len as u64;
    }
}

fn list(dir: &Path) -> BTreeMap<OsString, PathBuf> {
    let entries = fs::read_dir(dir).unwrap_or_else(|error| panic!("list {dir:?}: {error}"));
    let entries = entries.map(|entry| entry.unwrap_or_else(|error| panic!("list {dir:?}: {error}")));
    entries.map(|entry| (entry.file_name(), entry.path())).collect()
}

/// Journals and temporaries below `dir`: `.haul~*` and `.NAME.haul~TAGNUMBER`.
pub fn debris(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(metadata) = fs::symlink_metadata(dir) else {
        return found;
    };
    if !metadata.is_dir() {
        return found;
    }
    for (name, path) in list(dir) {
        if is_debris(name.as_bytes()) {
            found.push(path);
        } else {
            found.extend(debris(&path));
        }
    }
    found
}

fn is_debris(name: &[u8]) -> bool {
    let tail = name.len().checked_sub(20).map(|at| &name[at..]);
    name.starts_with(b".haul~")
        || (name.starts_with(b".")
            && tail.is_some_and(|tail| {
                tail.starts_with(b".haul~") && tail[6..].iter().all(u8::is_ascii_alphanumeric)
            }))
}

/// Checks that neither a journal nor a temporary is left below `dir`.
#[track_caller]
pub fn assert_no_debris(dir: &Path) {
    let left = deep(|| debris(dir));
    assert!(left.is_empty(), "debris is left: {left:?}");
}

/// Mode, size, inode and times of everything below `dir` and of itself: what must not move when nothing may
/// change.
pub fn snapshot(dir: &Path) -> Vec<String> {
    snapshot_of(dir, |_| true)
}

/// The same of all that is no directory: a job that makes and removes its journal moves a directory's times.
pub fn snapshot_of_files(dir: &Path) -> Vec<String> {
    snapshot_of(dir, |data| !data.is_dir())
}

fn snapshot_of(path: &Path, counts: fn(&Metadata) -> bool) -> Vec<String> {
    let mut lines = Vec::new();
    if let Ok(data) = fs::symlink_metadata(path) {
        if counts(&data) {
            let times = (data.mtime(), data.mtime_nsec(), data.ctime(), data.ctime_nsec());
            lines.push(format!("{path:?} {:o} {} {} {times:?}", data.mode(), data.len(), data.ino()));
        }
        if data.is_dir() {
            lines.extend(list(path).values().flat_map(|entry| snapshot_of(entry, counts)));
        }
    }
    lines
}

/// Checks that each file of a copy that was cut off is either absent or whole.
#[track_caller]
pub fn assert_none_torn(source: &Path, copy: &Path) {
    let mut torn = Vec::new();
    look_for_torn(source, copy, &mut torn);
    assert!(torn.is_empty(), "incomplete under a final name: {torn:?}");
}

fn look_for_torn(source: &Path, copy: &Path, torn: &mut Vec<String>) {
    let Ok(data) = fs::symlink_metadata(copy) else {
        return;
    };
    if data.is_dir() {
        for (name, path) in list(copy).iter().filter(|(name, _)| !is_debris(name.as_bytes())) {
            look_for_torn(&source.join(name), path, torn);
        }
    } else {
        // Its metadata too: the name must come after them.
        entry(source, copy, ALL, true, torn);
    }
}
