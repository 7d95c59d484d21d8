//! Trees to copy, made from a seed.

use std::ffi::OsString;
use std::fs::{self, File, FileTimes};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::{procs, set_mode};

const MIB: usize = 1 << 20;

/// File sizes at which something changes: nothing, a byte, BLAKE3's chunk, the smallest object, the default
/// object, and several objects with an odd end.
pub const EDGE_SIZES: [usize; 15] = [
    0,
    1,
    1023,
    1024,
    1025,
    65535,
    65536,
    65537,
    MIB,
    4 * MIB - 1,
    4 * MIB,
    4 * MIB + 1,
    8 * MIB,
    9 * MIB + 12345,
    131_072,
];

/// Random bytes; a file made of them cannot be compressed or guessed.
pub fn bytes(rng: &mut fastrand::Rng, len: usize) -> Vec<u8> {
    let mut content = vec![0; len];
    rng.fill(&mut content);
    content
}

/// Writes a file of random bytes with an old modification time that has nanoseconds.
pub fn random_file(path: &Path, rng: &mut fastrand::Rng, len: usize) {
    fs::write(path, bytes(rng, len)).unwrap_or_else(|error| panic!("write {path:?}: {error}"));
    age(path, rng);
}

/// Gives a file or directory a modification time between 2001 and 2020, with nanoseconds.
pub fn age(path: &Path, rng: &mut fastrand::Rng) {
    let since_1970 = Duration::new(rng.u64(1_000_000_000..1_600_000_000), rng.u32(0..1_000_000_000));
    set_mtime(path, SystemTime::UNIX_EPOCH + since_1970);
}

/// Sets the modification time.
pub fn set_mtime(path: &Path, time: SystemTime) {
    let file = File::open(path).unwrap_or_else(|error| panic!("open {path:?}: {error}"));
    file.set_times(FileTimes::new().set_modified(time)).expect("set a modification time");
}

/// A tree with everything in it that a copy must get right: sizes, names, modes, links, empty and read-only
/// directories, depth. About 30 MiB, 100 entries.
pub fn everything(root: &Path, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    fs::create_dir_all(root).expect("make the tree's root");
    sizes(&root.join("sizes"), &mut rng);
    odd_names(&root.join("names"), &mut rng);
    modes(&root.join("modes"), &mut rng);
    links(&root.join("links"), &mut rng);
    let mut deep = root.join("deep");
    for level in 0..40 {
        deep = deep.join(format!("level {level}"));
    }
    fs::create_dir_all(&deep).expect("make a deep directory");
    random_file(&deep.join("bottom"), &mut rng, 77);
    age_directories(root, &mut rng);
}

/// A tree of `files` small files in directories of 64, and one file of `big` bytes.
pub fn plain(root: &Path, seed: u64, files: usize, big: usize) {
    let mut rng = fastrand::Rng::with_seed(seed);
    fs::create_dir_all(root).expect("make the tree's root");
    for index in 0..files {
        let dir = root.join(format!("d{:03}", index / 64));
        fs::create_dir_all(&dir).expect("make a directory");
        let len = rng.usize(0..8192);
        random_file(&dir.join(format!("f{index:05}")), &mut rng, len);
    }
    if big > 0 {
        random_file(&root.join("big"), &mut rng, big);
    }
    age_directories(root, &mut rng);
}

/// A tree of `entries` small files, empty ones, empty directories and links with several modes in nested
/// directories, and one file of `big` bytes and some more.
pub fn mixed(root: &Path, seed: u64, entries: usize, big: usize) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut dirs = vec![root.to_owned()];
    fs::create_dir_all(root).expect("make the tree's root");
    for index in 0..rng.usize(8..24) {
        let dir = rng.choice(&dirs).expect("at least the root").join(format!("d{index:02}"));
        fs::create_dir(&dir).expect("make a directory");
        dirs.push(dir);
    }
    for index in 0..entries {
        let path = rng.choice(&dirs).expect("at least the root").join(format!("e{index:03}"));
        match rng.u32(0..10) {
            0 => symlink(format!("target of {index}"), path).expect("make a symlink"),
            1 => random_file(&path, &mut rng, 0),
            2 => fs::create_dir(path).expect("make a directory"),
            _ => {
                let len = rng.usize(0..16384);
                random_file(&path, &mut rng, len);
                set_mode(&path, rng.choice([0o400, 0o600, 0o644, 0o755]).expect("four"));
            }
        }
    }
    let len = big + rng.usize(1..100_000);
    random_file(&root.join("big"), &mut rng, len);
    age_directories(root, &mut rng);
}

/// Waits until the tree's ctimes say that it is old. A source that has just changed is looked at once more
/// before it is believed, and a test of what is lost at a moment must not see that wait.
pub fn settle(root: &Path) {
    let newest = directories(root).iter().map(PathBuf::as_path).chain([root]).map(newest_in).max();
    let newest = newest.expect("at least the root");
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
    procs::wait_until(Duration::from_secs(10), || now() > newest + 3);
}

/// Seconds since 1970.
fn newest_in(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).expect("list a directory").map(|entry| entry.expect("list a directory"));
    let times = entries.map(|entry| entry.metadata().expect("look at a file")).map(|data| data.ctime());
    times.max().map_or(0, i64::unsigned_abs)
}

/// How many files, and how many bytes in them, lie below `root`. What goes while it is counted counts for
/// nothing.
pub fn totals(root: &Path) -> (u64, u64) {
    let data = match fs::symlink_metadata(root) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return (0, 0),
        data => data.expect("look at a file"),
    };
    if data.is_dir() {
        let entries = fs::read_dir(root)
            .expect("list a directory")
            .map(|entry| entry.expect("list a directory").path());
        return entries.map(|path| totals(&path)).fold((0, 0), |sum, next| (sum.0 + next.0, sum.1 + next.1));
    }
    if data.is_file() { (1, data.len()) } else { (0, 0) }
}

fn sizes(dir: &Path, rng: &mut fastrand::Rng) {
    fs::create_dir_all(dir).expect("make a directory");
    for size in EDGE_SIZES {
        random_file(&dir.join(format!("{size}")), rng, size);
    }
}

/// Names that shells, terminals, parsers and old tools stumble over.
pub fn hard_names() -> Vec<OsString> {
    let mut names: Vec<OsString> = [
        " ",
        " leading",
        "trailing ",
        "two  blanks",
        "-leading-dash",
        "--help",
        "new\nline",
        "tab\tbell\u{7}",
        "\u{1b}[31mred",
        "quote'\"`$HOME",
        "back\\slash",
        "*",
        "?",
        "[a]",
        "~",
        "~root",
        "a:b",
        ":",
        "host:path",
        "...",
        "..a",
        ".hidden",
        "#",
        "%00",
        "Zürich",
        "データ",
        "{a,b}",
        ".haul",
        ".data.hxx",
        "!",
        "&",
        "|",
        ";",
        "con",
        "C:\\x",
    ]
    .map(OsString::from)
    .into();
    names.push(OsString::from_vec(vec![0xff, 0xfe, b'x']));
    names.push(OsString::from_vec((1..=255).filter(|byte| *byte != b'/').step_by(3).collect()));
    names.push(OsString::from_vec(vec![b'n'; 255]));
    names.push(OsString::from_vec([b'm'].iter().chain(&[0xc3; 254]).copied().collect()));
    names
}

fn odd_names(dir: &Path, rng: &mut fastrand::Rng) {
    fs::create_dir_all(dir).expect("make a directory");
    for (index, name) in hard_names().iter().enumerate() {
        let path = dir.join(name);
        if index % 5 == 4 {
            fs::create_dir(&path).expect("make a directory");
            random_file(&path.join(name), rng, index);
        } else {
            random_file(&path, rng, index * 7);
        }
    }
}

fn modes(dir: &Path, rng: &mut fastrand::Rng) {
    fs::create_dir_all(dir).expect("make a directory");
    for mode in [0o400, 0o444, 0o600, 0o640, 0o644, 0o755, 0o777, 0o500, 0o1644] {
        let path = dir.join(format!("file-{mode:o}"));
        random_file(&path, rng, 100);
        set_mode(&path, mode);
    }
    for mode in [0o500, 0o555, 0o700, 0o750, 0o777, 0o1777] {
        let path = dir.join(format!("dir-{mode:o}"));
        fs::create_dir(&path).expect("make a directory");
        random_file(&path.join("inside"), rng, 100);
        fs::create_dir(path.join("empty")).expect("make a directory");
        age(&path.join("empty"), rng);
        age(&path, rng);
        set_mode(&path, mode);
    }
}

fn links(dir: &Path, rng: &mut fastrand::Rng) {
    fs::create_dir_all(dir.join("target")).expect("make a directory");
    random_file(&dir.join("target/file"), rng, 10);
    let targets = [
        "target/file",
        "target",
        "dangling",
        "/etc/passwd",
        "/",
        ".",
        "..",
        "loop",
        "new\nline",
        "../../../../outside",
    ];
    for (index, target) in targets.iter().enumerate() {
        symlink(target, dir.join(if *target == "loop" { "loop".to_owned() } else { format!("link{index}") }))
            .expect("make a symlink");
    }
    let raw = OsString::from_vec(vec![0xff, 0x80]);
    symlink(&raw, dir.join("link-raw")).expect("make a symlink");
    symlink("x".repeat(1000), dir.join("link-long")).expect("make a symlink");
}

/// Gives each directory of a tree an old time, the deepest first; modes stay.
fn age_directories(root: &Path, rng: &mut fastrand::Rng) {
    for path in directories(root) {
        age(&path, rng);
    }
    age(root, rng);
}

/// The directories below `root`, the deepest first.
fn directories(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut entries: Vec<PathBuf> = fs::read_dir(root)
        .expect("list a directory")
        .map(|entry| entry.expect("list a directory").path())
        .collect();
    // Sorted, so that one seed makes one tree.
    entries.sort();
    for path in entries {
        if fs::symlink_metadata(&path).expect("look at a file").is_dir() {
            found.extend(directories(&path));
            found.push(path);
        }
    }
    found
}

/// Makes every directory below writable, so that the tree can be removed by its owner.
pub fn make_removable(root: &Path) {
    let Ok(data) = fs::symlink_metadata(root) else {
        return;
    };
    if !data.is_dir() {
        return;
    }
    if data.permissions().mode() & 0o700 != 0o700 {
        // Whoever still works here may have renamed it since.
        let _ = fs::set_permissions(root, fs::Permissions::from_mode(0o700));
    }
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        make_removable(&entry.path());
    }
}
