use super::*;
use crate::jail::Resolve;
use crate::sink::NotKeptCounters;
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

/// Runs the named test again as a user whom modes bind, if this one is root. False: nobody else is needed, or
/// nobody else can run this program.
pub(in crate::sink) fn as_nobody(test: &str) -> bool {
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        return false;
    }
    let program = std::env::current_exe().expect("this program");
    let mut command = std::process::Command::new(program);
    command
        .args(["--exact", test, "--nocapture"])
        .uid(65534)
        .gid(65534)
        .env("TMPDIR", "/tmp")
        .current_dir("/");
    match command.output() {
        Ok(output) => {
            let told = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && told.contains("1 passed"), "{told}");
            true
        }
        Err(error) => {
            eprintln!("skipped: as nobody: {error}");
            false
        }
    }
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a legal name")
}

/// Runs `check` with both jails on a tree at `base/root` that keeps two descriptors open.
fn both(check: impl Fn(SinkTree, &Path)) {
    for resolve in [Resolve::Openat2, Resolve::Components] {
        let dir = tempfile::tempdir().expect("tempdir");
        fs::create_dir(dir.path().join("outside")).expect("mkdir");
        let tree = SinkTree::open_root(&dir.path().join("root"), true).expect("root");
        if resolve == Resolve::Openat2 && tree.jail().resolve() != Resolve::Openat2 {
            eprintln!("skipped: openat2 is not there");
            continue;
        }
        check(tree.with_limits(Jail::with(resolve), 2), dir.path());
    }
}

/// Goal: directories appear when they are asked for, with their parents, and are the same ones after their
/// descriptors were closed.
/// Method: 50 chains of three; two descriptors are kept; inode numbers are compared in seeded random order.
#[test]
fn directories_are_made_lazily_and_found_again() {
    both(|tree, base| {
        let mut inodes = HashMap::new();
        for chain in 0..50u64 {
            let mut parent = DirId::ROOT;
            for level in 0..3 {
                let id = DirId(1 + chain * 3 + level);
                tree.register(id, parent, name(&format!("d{chain}.{level}")));
                parent = id;
            }
        }
        assert_eq!(fs::read_dir(base.join("root")).expect("ls").count(), 0);
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..2000 {
            let id = DirId(rng.u64(1..=150));
            let fd = tree.dirfd(id).expect("a directory");
            let ino = rustix::fs::fstat(&fd).expect("stat").st_ino;
            assert_eq!(*inodes.entry(id).or_insert(ino), ino);
            assert!(tree.was_created(id));
            assert!(lock(&tree.recent).by_tick.len() <= 2);
            let open = lock(&tree.nodes).values().filter(|node| lock(&node.slot).fd.is_some()).count();
            assert!(open <= 3, "{open} descriptors are kept");
        }
        assert!(base.join("root/d7.0/d7.1/d7.2").is_dir());
        assert_eq!(tree.depth(DirId(3)), 3);
        for id in 1..=150 {
            tree.forget(DirId(id));
        }
        assert_eq!(tree.known(), 0);
        assert!(tree.dirfd(DirId(1)).is_err());
    });
}

/// Goal: what stands where a directory should be fails every operation in it with one sentence, and stays.
/// Method: a file, a link to a directory outside, a dangling link; each asked directly and from below.
#[test]
fn no_directory_is_made_over_something_else() {
    both(|tree, base| {
        fs::write(base.join("root/file"), "x").expect("write");
        symlink("../outside", base.join("root/link")).expect("symlink");
        symlink("../outside/new", base.join("root/dangling")).expect("symlink");
        let link = " is a symbolic link where a directory should go";
        for (i, (text, why)) in
            [("file", " is not a directory; nothing was removed"), ("link", link), ("dangling", link)]
                .iter()
                .enumerate()
        {
            let (id, below) = (DirId(10 + i as u64), DirId(20 + i as u64));
            tree.register(id, DirId::ROOT, name(text));
            tree.register(below, id, name("below"));
            for dir in [id, below, id] {
                let failure = tree.dirfd(dir).expect_err("not a directory");
                assert!(failure.text.contains(&format!("/{text}{why}")), "{}", failure.text);
                assert_eq!(failure.errno, Errno::NOTDIR.raw_os_error());
            }
        }
        assert_eq!(fs::read_dir(base.join("outside")).expect("ls").count(), 0);
        assert_eq!(fs::read(base.join("root/file")).expect("read"), b"x");
        // The answer stays the same for the whole run.
        fs::remove_file(base.join("root/file")).expect("rm");
        assert!(tree.dirfd(DirId(20)).is_err());
    });
}

/// Goal: a directory that is replaced by a link after it was used leads nowhere outside.
/// Method: swapped while its descriptor is cached, then again after that was closed.
#[test]
fn swapped_directories_do_not_lead_out() {
    both(|tree, base| {
        for (id, text) in [(1, "a"), (2, "b"), (3, "c"), (4, "d")] {
            tree.register(DirId(id), DirId::ROOT, name(text));
        }
        tree.register(DirId(5), DirId(1), name("below"));
        tree.dirfd(DirId(1)).expect("made");
        fs::rename(base.join("root/a"), base.join("root/moved")).expect("rename");
        symlink("../outside", base.join("root/a")).expect("symlink");
        tree.dirfd(DirId(5)).expect("made in the directory that was opened");
        assert!(base.join("root/moved/below").is_dir());
        for id in 2..=4 {
            tree.dirfd(DirId(id)).expect("made");
        }
        assert!(tree.dirfd(DirId(5)).is_err(), "reopened through the link");
        assert_eq!(fs::read_dir(base.join("outside")).expect("ls").count(), 0);
    });
}

/// Goal: directories that stood there are used and told apart from those that were made, also where their
/// mode forbids their owner to read, enter or change them.
/// Method: every mode of the owner's three bits; as somebody else than root.
#[test]
fn existing_directories_are_used() {
    if as_nobody("sink::tree::tests::existing_directories_are_used") {
        return;
    }
    both(|tree, base| {
        for mode in 0..8u32 {
            let (id, text) = (DirId(1 + u64::from(mode)), format!("mode{mode}"));
            let path = base.join("root").join(&text);
            fs::create_dir(&path).expect("mkdir");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode << 6 | 0o5)).expect("chmod");
            tree.register(id, DirId::ROOT, name(&text));
            let fd = tree.dirfd(id).expect("opened");
            assert!(!tree.was_created(id));
            tree.jail().create_temp(&fd, &name("f")).expect("changed");
            let now = fs::metadata(&path).expect("stat").permissions().mode();
            assert!(now & 0o300 == 0o300 && now & 0o77 == 0o5, "{now:o}");
        }
    });
}

/// Goal: the root may be a symbolic link, is made with its parents only if asked, and must be a directory.
/// Method: each case by path.
#[test]
fn root_is_opened_by_path_once() {
    let dir = tempfile::tempdir().expect("tempdir");
    let deep = dir.path().join("a/b/c");
    assert!(SinkTree::open_root(&deep, false).is_err());
    assert!(!dir.path().join("a").exists());
    let tree = SinkTree::open_root(&deep, true).expect("made");
    assert!(tree.was_created(DirId::ROOT));
    symlink(&deep, dir.path().join("l")).expect("symlink");
    let linked = SinkTree::open_root(&dir.path().join("l"), true).expect("opened");
    assert!(!linked.was_created(DirId::ROOT));
    assert_eq!(linked.root_id(), tree.root_id());
    fs::write(dir.path().join("f"), "").expect("write");
    let failure = SinkTree::open_root(&dir.path().join("f"), true).err().expect("a file");
    assert!(failure.text.contains("is not a directory; nothing was removed"));
}

/// Goal: a path in a message is bounded, ends in the name, and has no raw control byte.
/// Method: a deep chain of long names; a name with an escape sequence.
#[test]
fn shown_paths_are_bounded() {
    let dir = tempfile::tempdir().expect("tempdir");
    let tree = SinkTree::open_root(dir.path(), false).expect("root");
    for id in 1..=20u64 {
        tree.register(DirId(id), DirId(id - 1), name(&"x".repeat(250)));
    }
    let path = tree.path_of(DirId(20), &name("\x1b[2J"));
    assert!(path.len() <= SHOWN_PATH_LEN_MAX + 3 && path.ends_with("x/\\u{1b}[2J"));
    assert_eq!(tree.path_of(DirId::ROOT, &name("f")), format!("{}/f", dir.path().display()));
}

/// Goal: the names that lead to a destination are synced by every run, for who made them may have been killed
/// before.
/// Method: a destination that stands already, three directories deep; how many above it were synced.
#[test]
fn names_above_the_destination_are_synced_by_every_run() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("a/b/root");
    fs::create_dir_all(&path).expect("mkdir");
    let tree = SinkTree::open_root(&path, true).expect("root");
    assert!(!tree.was_created(DirId::ROOT));
    assert!(tree.synced_above() >= 3, "{} were synced", tree.synced_above());
    assert_eq!(SinkTree::open_root(&path, false).expect("root").synced_above(), 0, "nothing is made here");
}

/// Goal: a root that is made lets nobody do what its source does not, whatever the umask would give; one that
/// is found stays as it is.
/// Method: sources of several modes; the root before and after it is finished.
#[test]
fn a_root_is_made_no_wider_than_its_source() {
    let temp = tempfile::tempdir().expect("tempdir");
    let mode = |path: &Path| std::fs::metadata(path).expect("stat").permissions().mode() & 0o7777;
    let lost = NotKeptCounters::default();
    for source in [0o700, 0o711, 0o777, 0o500, 0o1770] {
        let mtime = haul_core::entry::Timestamp { secs: 1_500_000_000, nanos: 0 };
        let like = Meta { mode: source, uid: u32::MAX, gid: u32::MAX, mtime };
        let path = temp.path().join(format!("above/{source:o}/."));
        let tree = SinkTree::open_root_like(&path, true, Some(&like)).expect("made");
        assert_eq!(mode(&path), source | 0o700);
        tree.finish_root(&like, (false, false), &lost).expect("finished");
        assert_eq!(mode(&path), source);
        let other = Meta { mode: 0o755, ..like };
        SinkTree::open_root_like(&path, true, Some(&other))
            .expect("found")
            .finish_root(&other, (false, false), &lost)
            .expect("left");
        assert_eq!(mode(&path), source, "it stood there");
    }
    assert_ne!(mode(&temp.path().join("above")), 0o700, "those above follow the umask");
}

/// Goal: a root of this user's that is closed to him is opened to him alone, where that is asked for, and has
/// its mode again where nobody took it or its tree ended; another's is never opened. A look changes nothing.
/// Method: as a user whom modes bind, modes of every kind.
#[test]
fn closed_roots_are_opened_to_their_owner() {
    if as_nobody("sink::tree::tests::closed_roots_are_opened_to_their_owner") {
        return;
    }
    if rustix::process::geteuid().is_root() {
        return eprintln!("skipped: nobody else can run this");
    }
    let temp = tempfile::tempdir().expect("tempdir");
    let path = temp.path().join("root");
    fs::create_dir_all(path.join("d")).expect("mkdir");
    let mode = || fs::metadata(&path).expect("stat").permissions().mode() & 0o7777;
    let open = |closed| SinkTree::open_root_with(&path, false, (None, false), closed);
    for closed in [0, 0o055, 0o100, 0o300, 0o1377] {
        fs::set_permissions(&path, fs::Permissions::from_mode(closed)).expect("chmod");
        assert!(open(Closed::Stays).is_err());
        let looks = open(Closed::Looks).expect("it is looked at");
        assert_eq!(looks.is_closed(DirId::ROOT), closed & 0o100 == 0);
        assert_eq!((mode(), looks.stood(DirId::ROOT).expect("it stood").st_mode & 0o7777), (closed, closed));
        let tree = open(Closed::Opens).expect("it is opened");
        assert_eq!(
            (mode(), tree.stood(DirId::ROOT).expect("it stood").st_mode & 0o7777),
            (closed | 0o700, closed)
        );
        tree.open_root_to_us().expect("it is open");
        tree.register(DirId(1), DirId::ROOT, name("d"));
        tree.dirfd(DirId(1)).expect("it can be entered");
        tree.end_root(false, &NotKeptCounters::default()).expect("it is closed");
        assert_eq!(mode(), closed);
        drop(Opened::at(&path, Closed::Opens).expect("it is opened"));
        assert_eq!(mode(), closed, "nobody took it");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("chmod");
    let others = Path::new("/root");
    if fs::read_dir(others).is_err() && others.exists() {
        for closed in [Closed::Opens, Closed::Looks] {
            assert_eq!(Opened::at(others, closed).err(), Some(Errno::ACCESS));
        }
    }
}
