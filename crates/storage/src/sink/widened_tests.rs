use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use haul_core::journal::WIDENED_PATH_LEN_MAX;

use super::*;

fn set(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("stat").mode() & 0o7777
}

fn us() -> Ours {
    Ours { uid: rustix::process::geteuid().as_raw(), faked: false }
}

/// A record of the directory at `path` below `root`, which had this mode.
fn record(root: &Path, path: &str, mode: u32) -> Widened {
    let ino = fs::metadata(root.join(path)).map_or(7, |stat| stat.ino());
    Widened { path: path.as_bytes().into(), ino, mode }
}

fn restored(root: &Path, ours: Ours, left: Vec<Widened>) -> Vec<Widened> {
    let fd = Arc::new(Jail::open_root(root).expect("root"));
    let jail = Jail::probe(&fd);
    restore(&fd, jail, ours, left)
}

/// Goal: directories that were left open get the modes that they had, in each other too, and what was decided
/// since stays.
/// Method: three levels as a killed run leaves them; one that somebody gave another mode meanwhile; one that
/// is gone.
#[test]
fn left_directories_are_closed() {
    let dir = tempfile::tempdir().expect("tempdir");
    let root = dir.path();
    fs::create_dir_all(root.join("a/b/c")).expect("mkdir");
    fs::create_dir(root.join("other")).expect("mkdir");
    set(&root.join("a/b/c"), 0o2750);
    set(&root.join("a/b"), 0o700);
    set(&root.join("a"), 0o755);
    set(&root.join("other"), 0o750);
    let list = vec![
        record(root, "a", 0o555),
        record(root, "a/b", 0),
        record(root, "a/b/c", 0o2450),
        record(root, "other", 0o555),
        record(root, "gone", 0o500),
        record(root, "gone/below", 0o500),
    ];
    assert_eq!(restored(root, us(), list.clone()), []);
    assert_eq!(mode(&root.join("other")), 0o750, "somebody else decided");
    assert_eq!(mode(&root.join("a")), 0o555);
    set(&root.join("a"), 0o755);
    assert_eq!(mode(&root.join("a/b")), 0);
    set(&root.join("a/b"), 0o700);
    assert_eq!(mode(&root.join("a/b/c")), 0o2450);
    set(&root.join("a/b/c"), 0o2450);
    // A second time nothing is as it was left.
    set(&root.join("a"), 0o555);
    restored(root, us(), vec![record(root, "a", 0o500)]);
    assert_eq!(mode(&root.join("a")), 0o555);
    set(&root.join("a"), 0o755);
}

/// Goal: whatever a record says, no directory gets wider, and none changes that is not as opening it would
/// have left it.
/// Method: every mode of owner and others that matters, against every one that a record may say.
#[test]
fn no_record_widens() {
    let dir = tempfile::tempdir().expect("tempdir");
    let root = dir.path();
    let at = root.join("d");
    fs::create_dir(&at).expect("mkdir");
    let modes: Vec<u32> =
        (0..8).flat_map(|owner| [0, 0o55, 0o77, 0o1020, 0o4000].map(|rest| owner << 6 | rest)).collect();
    for before in &modes {
        for said in &modes {
            set(&at, *before);
            let before = mode(&at);
            let dir = record(root, "d", *said);
            restored(root, us(), vec![dir]);
            let after = mode(&at);
            assert_eq!(after & !before, 0, "{before:o} became {after:o} by {said:o}");
            let left = before & 0o777 == (said | 0o700) & 0o777;
            let expected = if left { before & !0o700 | before & said & 0o700 } else { before };
            assert_eq!(after, expected, "{before:o} by {said:o}");
        }
    }
    set(&at, 0o700);
}

/// Goal: a forged record reaches nothing outside the destination, nothing of others, and nothing that it does
/// not know.
/// Method: a directory outside by dots, by a link and by a link on the way; another's; another inode; a file;
/// odd paths.
#[test]
fn forged_records_reach_nothing() {
    let dir = tempfile::tempdir().expect("tempdir");
    let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
    for path in [&outside.join("deep"), &root.join("d"), &root.join("e")] {
        fs::create_dir_all(path).expect("mkdir");
        set(path, 0o755);
    }
    set(&outside, 0o755);
    symlink(&outside, root.join("link")).expect("link");
    fs::write(root.join("file"), "f").expect("write");
    set(&root.join("file"), 0o755);
    let before = |path: &Path| mode(path) == 0o755;
    let long = "d/".repeat(DEPTH_MAX + 1) + "d";
    let ino = fs::metadata(&outside).expect("stat").ino();
    for path in ["../outside", "link", "link/deep", "file", "", "/", "d/", "//", "d/../d", ".", "..", &long] {
        for ino in [ino, record(&root, "d", 0).ino, record(&root, path, 0).ino] {
            let forged = Widened { path: path.as_bytes().into(), ino, mode: 0o055 };
            restored(&root, us(), vec![forged]);
        }
    }
    let forged = Widened { path: b"d\0"[..].into(), ..record(&root, "d", 0o055) };
    restored(&root, us(), vec![forged, Widened { ino: 7, ..record(&root, "d", 0o055) }]);
    let others = Ours { uid: us().uid + 1, faked: false };
    restored(&root, others, vec![record(&root, "d", 0o055)]);
    for path in [&outside, &outside.join("deep"), &root.join("d"), &root.join("e"), &root.join("file")] {
        assert!(before(path), "{} was changed", path.display());
    }
    // The same record, in earnest.
    restored(&root, us(), vec![record(&root, "d", 0o055)]);
    assert_eq!(mode(&root.join("d")), 0o055);
    set(&root.join("d"), 0o755);
}

/// Goal: what is written down is what can be read back, for the deepest tree that a record holds too.
#[test]
fn paths_are_written_as_they_are_read() {
    let names = ["a", "\u{e4}", "x\ny"].map(|text| Name::new(text.as_bytes()).expect("legal"));
    let dir = tempfile::tempdir().expect("tempdir");
    let stat = rustix::fs::stat(dir.path()).expect("stat");
    let Widened { path, ino, mode } = about(&names, &stat);
    assert_eq!((&*path, ino, mode), ("a/\u{e4}/x\ny".as_bytes(), stat.st_ino, stat.st_mode & 0o7777));
    assert!(about(&names, &stat).cost() < WIDENED_PATH_LEN_MAX);
}
