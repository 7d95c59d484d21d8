use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{CWD, FileType as Kind, mknodat};

use haul_core::ids::Holder;
use haul_core::journal::{Record, Replayed, compact};

use super::*;
use crate::attributes::Keeps;
use crate::manners::{LinkRule, Manners};
use crate::sink::{JobDir, JobKey, Journal, Patience, temp_name};
use crate::source::roots::resolve_sources;
use crate::volume;

/// A file system path below `root`, from bytes.
fn below(root: &Path, path: &[u8]) -> std::path::PathBuf {
    root.join(OsStr::from_bytes(path))
}

fn specs(root: &Path, tails: &[&str]) -> Vec<RootSpec> {
    let paths: Vec<_> =
        tails.iter().map(|tail| [root.as_os_str().as_bytes(), tail.as_bytes()].concat()).collect();
    resolve_sources(&paths, true, None).expect("sources are there")
}

/// All that a walk says, with the tree that it filled.
fn walk(roots: Vec<RootSpec>) -> (Vec<WalkItem>, Arc<SourceTree>) {
    walk_with(roots, |_| 4 << 20)
}

fn walk_with(
    roots: Vec<RootSpec>,
    object_size: impl FnMut(u64) -> u32 + Send + 'static,
) -> (Vec<WalkItem>, Arc<SourceTree>) {
    let tree = Arc::new(SourceTree::new());
    let walk = Walk::start(roots, tree.clone(), 4, object_size).expect("starts");
    (walk.items().iter().flatten().collect(), tree)
}

/// The paths of the entries, held against the order that is promised and against the tree's own paths.
fn checked_paths(items: &[WalkItem], tree: &SourceTree) -> BTreeSet<Vec<u8>> {
    let mut open = HashMap::from([(DirId::ROOT, Vec::new())]);
    let mut paths = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for item in items {
        match item {
            WalkItem::Entry(entry) => {
                let mut path: Vec<u8> =
                    open.get(&entry.parent).expect("parent is announced and open").clone();
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(entry.name.as_bytes());
                assert_eq!(tree.path_of(entry.id), path);
                assert!(ids.insert(entry.id), "id given twice");
                if matches!(entry.kind, EntryKind::Dir { .. }) {
                    open.insert(entry.id.as_dir(), path.clone());
                }
                assert!(paths.insert(path), "path announced twice");
            }
            WalkItem::DirEnd(id) => {
                assert_ne!(*id, DirId::ROOT);
                open.remove(id).expect("ends once, after its announcement");
            }
            WalkItem::Failed { .. } | WalkItem::NotKept(_) | WalkItem::Note(_) => {}
            WalkItem::Metadata(_) | WalkItem::NameOf { .. } | WalkItem::Root(_) | WalkItem::Owners(_) => {}
            WalkItem::Gone(failure) => panic!("{failure:?}"),
            WalkItem::End(_) => assert_eq!(item, items.last().expect("not empty"), "End is last"),
        }
    }
    assert_eq!(open.len(), 1, "every directory ended");
    assert_eq!(ids.first().map(|id| id.0), (!ids.is_empty()).then_some(1));
    assert_eq!(ids.last().map(|id| id.0), (!ids.is_empty()).then_some(ids.len() as u64));
    paths
}

fn failures(items: &[WalkItem]) -> Vec<(String, CountsAs)> {
    let failed = |item: &WalkItem| match item {
        WalkItem::Failed { failure, counts_as, .. } => Some((failure.text.to_string(), *counts_as)),
        _ => None,
    };
    items.iter().filter_map(failed).collect()
}

fn not_kept(items: &[WalkItem]) -> BTreeMap<Vec<u8>, NotKeptWhat> {
    let lost = |item: &WalkItem| match item {
        WalkItem::NotKept(not_kept) => Some((not_kept.path.clone(), not_kept.what)),
        _ => None,
    };
    items.iter().filter_map(lost).collect()
}

fn totals(items: &[WalkItem]) -> Totals {
    match items.last() {
        Some(WalkItem::End(totals)) => *totals,
        other => panic!("no End but {other:?}"),
    }
}

/// Goal: all of a tree comes, once, a directory before its entries and its end after them, with the right
/// metadata and totals.
/// Method: seeded random trees with odd names, held against what was made.
#[test]
fn walk_is_complete_and_in_order() {
    for seed in 0..6 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let temp = tempfile::tempdir().expect("tempdir");
        let top = temp.path().join("top");
        fs::create_dir(&top).expect("mkdir");
        let mut dirs = vec![b"top".to_vec()];
        let mut expected = BTreeMap::from([(b"top".to_vec(), None)]);
        let mut expect = Totals { dirs: 1, ..Totals::default() };
        for i in 0..rng.usize(0..400) {
            let mut path = dirs[rng.usize(..dirs.len())].clone();
            let odd: [&[u8]; 5] = [b"x", b"new\nline", b"\xff\xfe", b" ", b"-rf *"];
            path.extend_from_slice(b"/");
            path.extend_from_slice(odd[rng.usize(..odd.len())]);
            path.extend_from_slice(i.to_string().as_bytes());
            let on_disk = below(temp.path(), &path);
            match rng.u8(0..10) {
                0..3 => {
                    fs::create_dir(&on_disk).expect("mkdir");
                    dirs.push(path.clone());
                    expect.dirs += 1;
                }
                3 => {
                    symlink("/does not matter", &on_disk).expect("symlink");
                    expect.symlinks += 1;
                }
                _ => {
                    let size = rng.usize(0..9000);
                    fs::write(&on_disk, vec![7; size]).expect("write");
                    fs::set_permissions(&on_disk, fs::Permissions::from_mode(0o640)).expect("chmod");
                    expect.files += 1;
                    expect.bytes += size as u64;
                }
            }
            expected.insert(path, Some(on_disk));
        }
        let (items, tree) = walk(specs(temp.path(), &["/top"]));
        let paths = checked_paths(&items, &tree);
        assert_eq!(paths, expected.keys().cloned().collect(), "seed {seed}");
        assert_eq!(totals(&items), expect, "seed {seed}");
        assert_eq!(failures(&items), []);
        let mut marks = None;
        for item in &items {
            let WalkItem::Entry(entry) = item else { continue };
            let Some(Some(on_disk)) = expected.get(&tree.path_of(entry.id)) else { continue };
            let stat = fs::symlink_metadata(on_disk).expect("stat");
            assert_eq!(entry.meta.mode, stat.mode() & 0o7777);
            assert_eq!(
                (entry.meta.mtime.secs, i64::from(entry.meta.mtime.nanos)),
                (stat.mtime(), stat.mtime_nsec())
            );
            match &entry.kind {
                EntryKind::File { fingerprint, object_size, sparse, .. } => {
                    assert!(!sparse);
                    assert_eq!(fingerprint.size, stat.len());
                    // Of one file system all are marked alike.
                    let version = fingerprint.version.as_bytes();
                    let ctime = version.first_chunk().map(|secs| i64::from_le_bytes(*secs));
                    let ino = version.last_chunk().map(|ino| u64::from_le_bytes(*ino)).expect("an inode");
                    let mark = ino ^ stat.ino();
                    assert_eq!(*marks.get_or_insert(mark), mark);
                    assert_eq!(ctime, Some(stat.ctime()));
                    assert_eq!(*object_size, 4 << 20);
                }
                EntryKind::Symlink { target } => assert_eq!(&**target, b"/does not matter"),
                EntryKind::Dir { version } => {
                    assert!(stat.is_dir() && version.as_bytes().len() > 8, "it says which version it is");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Goal: depth is no trouble up to its limit, and an error beyond it that says how many entries are left out,
/// with all else walked.
/// Method: chains of 300 and of 1030 directories of long names, made by descriptors, with a file at each
/// level.
#[test]
fn deep_trees_are_walked_to_the_limit() {
    for depth in [300, DEPTH_MAX + 6] {
        let temp = tempfile::tempdir().expect("tempdir");
        let name = "n".repeat(200);
        let mut fd: OwnedFd = fs::File::open(temp.path()).expect("open").into();
        for _ in 0..depth {
            rustix::fs::mkdirat(&fd, &*name, Mode::RWXU).expect("mkdir");
            fd = openat(&fd, &*name, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).expect("open");
            openat(&fd, "f", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).expect("create");
        }
        let (items, tree) = walk(specs(temp.path(), &["/"]));
        let kept = depth.min(DEPTH_MAX) as u64;
        assert_eq!((totals(&items).dirs, totals(&items).files), (kept, kept));
        assert_eq!(checked_paths(&items, &tree).len() as u64, 2 * kept);
        let failures = failures(&items);
        if depth > DEPTH_MAX {
            assert_eq!(failures.len(), 1);
            assert!(failures[0].0.contains("deeper than 1024 directories: 12 entries"), "{}", failures[0].0);
            assert_eq!(failures[0].1, CountsAs::Subtree);
        } else {
            assert_eq!(failures, []);
        }
    }
}

/// Goal: a walk that closes what it comes from finds all on its way up, and never goes on in another
/// directory than it left.
/// Method: a chain of 40 directories, each with files and directories beside the next, and several reads long
/// where it divides, walked with one to three levels open; then with one of them moved to another directory
/// while the walk is below it, so that `..` leads elsewhere.
#[test]
fn closed_levels_are_found_again() {
    const DEEP: usize = 40;
    let make = |root: &Path| {
        let mut dir = root.to_path_buf();
        for depth in 0..DEEP {
            dir.push(format!("m{depth}"));
            fs::create_dir(&dir).expect("mkdir");
            for beside in ["a", "z"] {
                fs::create_dir(dir.join(beside)).expect("mkdir");
                fs::write(dir.join(beside).join("f"), "x").expect("write");
            }
            let files = if depth % 10 == 5 { 400 } else { 2 };
            (0..files).for_each(|i| fs::write(dir.join(format!("{i:0200}")), "").expect("write"));
        }
    };
    let walk_few = |root: &Path, open: usize, object_size: Box<dyn FnMut(u64) -> u32 + Send>| {
        let tree = Arc::new(SourceTree::new());
        let walk = Walk::start_with(specs(root, &["/"]), tree.clone(), 0, open, object_size).expect("starts");
        (walk.items().iter().flatten().collect::<Vec<_>>(), tree)
    };
    let temp = tempfile::tempdir().expect("tempdir");
    make(temp.path());
    let all = DEEP * 5 + (DEEP - DEEP / 10) * 2 + DEEP / 10 * 400;
    for open in [1, 2, 3, 100] {
        let (items, tree) = walk_few(temp.path(), open, Box::new(|_| 1 << 16));
        assert_eq!(failures(&items), []);
        assert_eq!(checked_paths(&items, &tree).len(), all);
    }
    let moved = tempfile::tempdir().expect("tempdir");
    make(moved.path());
    // Not below what is walked, or the walk would come to the trigger again.
    let (below, other) = (moved.path().join("m0/m1/m2/m3"), tempfile::tempdir().expect("tempdir"));
    (0..40).for_each(|i| fs::create_dir(moved.path().join(format!("m0/m1/m2/b{i}"))).expect("mkdir"));
    let bottom = (4..DEEP).fold(below.clone(), |path, depth| path.join(format!("m{depth}")));
    fs::write(bottom.join("trigger"), [0; 77]).expect("write");
    let to = other.path().join("m3");
    let trigger = move |size| {
        if size == 77 {
            fs::rename(&below, &to).expect("rename");
        }
        1 << 16
    };
    let (items, tree) = walk_few(moved.path(), 1, Box::new(trigger));
    let paths = checked_paths(&items, &tree);
    for i in 0..40 {
        assert!(paths.contains(format!("m0/m1/m2/b{i}").as_bytes()), "{i}: {:?}", failures(&items));
    }
    assert_eq!(failures(&items), []);
}

/// Goal: a directory that is gone on with after it was closed gives all of its names where positions in it
/// are counts, also if names that were read are removed meanwhile.
/// Method: a merged directory of an overlay with files of distinct sizes and chains of directories beside
/// them; when the walk is at the bottom of a chain, files that it has seen are removed. One level is open at
/// a time, besides the first, which is above it.
#[test]
fn counted_positions_lose_no_names() {
    const FILES: u64 = 3000;
    const BOTTOM: u64 = 1 << 20;
    let temp = tempfile::tempdir().expect("tempdir");
    let [lower, upper, work, merged] = ["lower", "upper", "work", "merged"].map(|name| {
        let dir = temp.path().join(name);
        fs::create_dir(&dir).expect("mkdir");
        dir
    });
    fs::create_dir(upper.join("top")).expect("mkdir");
    fs::create_dir(lower.join("top")).expect("mkdir");
    for i in 1..=FILES {
        let file = fs::File::create(upper.join(format!("top/{i:0200}"))).expect("create");
        file.set_len(i).expect("size");
    }
    for i in 0..40 {
        let chain = [&upper, &lower][i % 2].join(format!("top/{i:0200}-chain/a/b/c"));
        fs::create_dir_all(&chain).expect("mkdir");
        fs::File::create(chain.join("bottom")).expect("create").set_len(BOTTOM).expect("size");
    }
    let options =
        format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    let mount = |args: &[&std::ffi::OsStr]| {
        std::process::Command::new("mount").args(args).output().is_ok_and(|output| output.status.success())
    };
    let args = ["-t", "overlay", "-o", &options, "overlay"].map(std::ffi::OsStr::new);
    if !mount(&[&args[..], &[merged.as_os_str()]].concat()) {
        return eprintln!("skipped: mounting an overlay needs root");
    }
    let top = merged.join("top");
    let seen = Arc::new(std::sync::Mutex::new((Vec::new(), Vec::new())));
    let (books, dir) = (seen.clone(), top.clone());
    let watch = move |size| {
        let (seen, removed) = &mut *books.lock().expect("books");
        if size != BOTTOM {
            seen.push(size);
        } else if removed.is_empty() {
            for i in seen.iter().take(500) {
                fs::remove_file(dir.join(format!("{i:0200}"))).expect("rm");
                removed.push(*i);
            }
        }
        1 << 16
    };
    let tree = Arc::new(SourceTree::new());
    let walk = Walk::start_with(specs(&merged, &["/"]), tree.clone(), 0, 1, Box::new(watch)).expect("starts");
    let items: Vec<_> = walk.items().iter().flatten().collect();
    let found = checked_paths(&items, &tree).len() as u64;
    drop((walk, items, tree));
    let unmounted = std::process::Command::new("umount").arg(&merged).status().expect("umount");
    assert!(unmounted.success());
    let books = seen.lock().expect("books");
    assert!(
        !books.1.is_empty() && (books.0.len() as u64) == FILES,
        "{} of {FILES} files seen",
        books.0.len()
    );
    assert_eq!(found, 1 + FILES + 40 * 5);
}

/// Goal: names of 255 bytes come whole.
#[test]
fn longest_names_come_whole() {
    let temp = tempfile::tempdir().expect("tempdir");
    for i in 0..200_u8 {
        fs::write(below(temp.path(), &[[b'a'; 252].as_slice(), format!("{i:03}").as_bytes()].concat()), "")
            .expect("write");
    }
    let (items, tree) = walk(specs(temp.path(), &["/"]));
    assert_eq!(checked_paths(&items, &tree).len(), 200);
    assert!(checked_paths(&items, &tree).iter().all(|path| path.len() == 255));
}

/// Goal: symlinks are copied and never followed; special files are skipped, without a hang, and said; files
/// that lose something are said and copied.
#[test]
fn what_is_not_kept_is_said() {
    let temp = tempfile::tempdir().expect("tempdir");
    let at = |name: &str| temp.path().join(name);
    fs::create_dir(at("outside")).expect("mkdir");
    fs::write(at("outside/secret"), "x").expect("write");
    fs::create_dir(at("in")).expect("mkdir");
    symlink("../outside", at("in/link")).expect("symlink");
    mknodat(CWD, at("in/fifo"), Kind::Fifo, Mode::RUSR, 0).expect("mkfifo");
    let _socket = std::os::unix::net::UnixListener::bind(at("in/socket")).expect("socket");
    fs::write(at("in/one"), "x").expect("write");
    fs::hard_link(at("in/one"), at("in/two")).expect("link");
    fs::File::create(at("in/holes")).and_then(|f| f.set_len(1 << 30)).expect("truncate");

    let (items, tree) = walk(specs(temp.path(), &["/in"]));
    let lost = not_kept(&items);
    let expected = [
        ("in/fifo", NotKeptWhat::Fifo),
        ("in/one", NotKeptWhat::HardLink),
        ("in/socket", NotKeptWhat::Socket),
        ("in/two", NotKeptWhat::HardLink),
    ];
    assert_eq!(lost, expected.map(|(path, what)| (path.as_bytes().to_vec(), what)).into());
    let sparse = items.iter().filter_map(|item| match item {
        WalkItem::Entry(Announced { id, kind: EntryKind::File { sparse: true, .. }, .. }) => {
            Some(tree.path_of(*id))
        }
        _ => None,
    });
    assert_eq!(sparse.collect::<Vec<_>>(), [b"in/holes"], "what may have holes is marked");
    let paths: Vec<_> = ["in", "in/holes", "in/link", "in/one", "in/two"].into();
    assert_eq!(checked_paths(&items, &tree).into_iter().collect::<Vec<_>>(), paths.map_bytes());
}

trait MapBytes {
    fn map_bytes(self) -> Vec<Vec<u8>>;
}

impl MapBytes for Vec<&str> {
    fn map_bytes(self) -> Vec<Vec<u8>> {
        self.into_iter().map(|text| text.as_bytes().to_vec()).collect()
    }
}

/// Goal: a source that is a symlink is copied as one; with a slash behind it, its directory is walked.
#[test]
fn root_symlink_is_followed_only_with_a_slash() {
    let temp = tempfile::tempdir().expect("tempdir");
    fs::create_dir(temp.path().join("data")).expect("mkdir");
    fs::write(temp.path().join("data/f"), "x").expect("write");
    symlink("data", temp.path().join("link")).expect("symlink");
    let paths = |tail: &str| {
        let (items, tree) = walk(specs(temp.path(), &[tail]));
        checked_paths(&items, &tree).into_iter().collect::<Vec<_>>()
    };
    assert_eq!(paths("/link"), vec!["link"].map_bytes());
    assert_eq!(paths("/link/"), vec!["f"].map_bytes());
    assert_eq!(paths("/data"), vec!["data", "data/f"].map_bytes());
}

/// Goal: a directory that vanishes on the way, and one that may not be read, are failures of their own kind,
/// end in order, and stop nothing else.
/// Method: it is removed while its sibling is announced, which comes after both were looked at.
#[test]
fn lost_directories_fail_alone() {
    let temp = tempfile::tempdir().expect("tempdir");
    for dir in ["vanishes", "locked", "stays"] {
        fs::create_dir(temp.path().join(dir)).expect("mkdir");
        fs::write(temp.path().join(dir).join("f"), "x").expect("write");
    }
    fs::write(temp.path().join("trigger"), "x").expect("write");
    let locked = !rustix::process::geteuid().is_root();
    if locked {
        fs::set_permissions(temp.path().join("locked"), fs::Permissions::from_mode(0o0)).expect("chmod");
    } else {
        println!("skipped: a directory that may not be read (runs as root)");
    }
    let victim = temp.path().join("vanishes");
    let (items, tree) = walk_with(specs(temp.path(), &["/."]), move |_| {
        if victim.exists() {
            fs::remove_dir_all(&victim).expect("remove");
        }
        1 << 16
    });
    checked_paths(&items, &tree);
    let mut expected = vec![(
        "open directory vanishes: vanished (it was there when its directory was read)".to_owned(),
        CountsAs::Vanished,
    )];
    if locked {
        expected.push(("open directory locked: Permission denied".to_owned(), CountsAs::Subtree));
        fs::set_permissions(temp.path().join("locked"), fs::Permissions::from_mode(0o700)).expect("chmod");
    }
    let (mut found, mut expected) = (failures(&items), expected);
    found.sort_by(|a, b| a.0.cmp(&b.0));
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(found, expected);
    assert_eq!(totals(&items).files, if locked { 2 } else { 3 });
    assert_eq!(totals(&items).dirs, 3);
}

/// Goal: a source that is named and is no file fails by name and says what to do; a link to a device stays a
/// link.
/// Method: a FIFO, a socket, a device, a pipe's descriptor as a shell names it, and beside them a link to
/// `/dev/null`.
#[test]
fn named_special_files_fail() {
    let temp = tempfile::tempdir().expect("tempdir");
    mknodat(CWD, temp.path().join("fifo"), FileType::Fifo, Mode::RUSR, 0).expect("mkfifo");
    let _socket = std::os::unix::net::UnixListener::bind(temp.path().join("socket")).expect("socket");
    symlink("/dev/null", temp.path().join("masked")).expect("symlink");
    let (pipe, _writer) = std::io::pipe().expect("pipe");
    let descriptor = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&pipe));
    let at = |name: &str| temp.path().join(name).into_os_string().into_vec();
    let typed = [at("fifo"), at("socket"), b"/dev/null".to_vec(), descriptor.into_bytes(), at("masked")];
    let (items, tree) = walk(resolve_sources(&typed, true, None).expect("there"));
    let failures = failures(&items);
    for (failure, what) in
        failures.iter().zip(["is a FIFO", "is a socket", "is a device", "a process has open"])
    {
        assert!(failure.0.contains(what) && failure.1 == CountsAs::Entry, "{failure:?}");
    }
    assert_eq!(failures.len(), 4);
    assert_eq!(not_kept(&items).len(), 0);
    assert_eq!(checked_paths(&items, &tree), [b"masked".to_vec()].into());
}

/// Goal: a source that goes between command and walk fails alone.
#[test]
fn lost_sources_fail_alone() {
    let temp = tempfile::tempdir().expect("tempdir");
    for file in ["a", "b", "c"] {
        fs::write(temp.path().join(file), "x").expect("write");
    }
    fs::create_dir(temp.path().join("d")).expect("mkdir");
    let roots = specs(temp.path(), &["/a", "/b", "/d/", "/c"]);
    fs::remove_file(temp.path().join("a")).expect("remove");
    fs::remove_file(temp.path().join("b")).expect("remove");
    fs::remove_dir(temp.path().join("d")).expect("remove");
    fs::create_dir_all(temp.path().join("b/inner")).expect("mkdir");
    let (items, tree) = walk(roots);
    assert_eq!(checked_paths(&items, &tree), [b"c".to_vec()].into());
    let failures = failures(&items);
    assert_eq!(failures.len(), 3);
    assert_eq!(failures[0].1, CountsAs::Vanished);
    assert_eq!(failures[1].0, "enter b: became a directory meanwhile");
    assert_eq!(failures[2].1, CountsAs::Vanished);
}

/// Goal: no two entries of one job take the same name in the destination root.
/// Method: two sources with contents and one by name share names in all combinations.
#[test]
fn colliding_contents_fail() {
    let temp = tempfile::tempdir().expect("tempdir");
    for file in ["one/same", "one/only1", "two/same", "two/only2", "two/named", "named"] {
        let path = temp.path().join(file);
        fs::create_dir_all(path.parent().expect("has one")).expect("mkdir");
        fs::write(path, file).expect("write");
    }
    let collisions = |tails: &[&str]| {
        let (items, tree) = walk(specs(temp.path(), tails));
        let paths = checked_paths(&items, &tree).len();
        let failures = failures(&items);
        assert!(failures.iter().all(|(text, _)| text.contains("another source has this name")));
        (paths, failures.len())
    };
    assert_eq!(collisions(&["/one/", "/two/", "/named"]), (4, 2));
    assert_eq!(collisions(&["/two/", "/named"]), (3, 1));
    assert_eq!(collisions(&["/named", "/two/"]), (3, 1));
    assert_eq!(collisions(&["/one/", "/named"]), (3, 0));
}

/// Goal: a slow consumer stops the walk, and one that leaves ends it.
/// Method: 20,000 files; before each batch is taken, the walk has filled the channel, and never is more
/// registered than what was received, what fits in the channel and what one read of a directory holds.
#[test]
fn slow_consumer_stops_the_walk() {
    const FILES: usize = 20_000;
    let temp = tempfile::tempdir().expect("tempdir");
    for i in 0..FILES {
        let dir = temp.path().join(format!("d{}", i / 2500));
        if i % 2500 == 0 {
            fs::create_dir(&dir).expect("mkdir");
        }
        fs::write(dir.join(format!("{i}")), "").expect("write");
    }
    let tree = Arc::new(SourceTree::new());
    let walk = Walk::start(specs(temp.path(), &["/"]), tree.clone(), 2, |_| 1 << 16).expect("starts");
    let ahead_max = (BATCHES_MAX + 2) * BATCH_ITEMS_MAX;
    let mut received = 0;
    let mut ended = false;
    while received < FILES / 2 {
        loop {
            let full = walk.items().is_full();
            let (files, dirs) = tree.len();
            assert!(files + dirs <= received + ahead_max, "{files} files, {dirs} dirs, {received} received");
            if full {
                break;
            }
            std::thread::yield_now();
        }
        let batch = walk.items().recv().expect("not at its end");
        assert!(batch.len() <= BATCH_ITEMS_MAX);
        received += batch.iter().filter(|item| matches!(item, WalkItem::Entry(_))).count();
        ended |= matches!(batch.last(), Some(WalkItem::End(_)));
    }
    assert!(!ended);
    let items = walk.items().clone();
    walk.cancel();
    assert!(!items.iter().flatten().any(|item| matches!(item, WalkItem::End(_))), "closes without End");
    drop(walk);
}

/// Goal: a walk that breaks says so and closes its channel.
#[test]
fn broken_walk_does_not_hang() {
    let temp = tempfile::tempdir().expect("tempdir");
    fs::write(temp.path().join("f"), "x").expect("write");
    let (items, _) = walk_with(specs(temp.path(), &["/f"]), |_| panic!("on purpose"));
    assert_eq!(failures(&items).len(), 1);
    assert!(!items.iter().any(|item| matches!(item, WalkItem::End(_))));
}

/// Goal: nothing is left out by its name: only what a job owns whose destination the source is, its journal,
/// owner file and temporaries at any depth; and these are named.
/// Method: a live job in the source, beside files that only look like a job's, one of them the copy of
/// another's journal.
#[test]
fn only_what_a_job_here_owns_is_left_out() {
    let temp = tempfile::tempdir().expect("tempdir");
    let at = |name: &str| temp.path().join(name);
    fs::create_dir_all(at("in/d")).expect("mkdir");
    let (place, elsewhere) =
        (|dir: &str| JobDir::open(&at(dir), JobKey::new(&[7; 16])).expect("a place"), at("copy"));
    fs::create_dir(&elsewhere).expect("mkdir");
    let begin = |dir: &str, tag| {
        let owner = Arc::new(place(dir).acquire(0, "test", &Patience::default()).expect("ours"));
        let mut journal = Journal::new(owner.clone());
        let root = volume::root_id(fs::File::open(at(dir)).expect("open")).expect("stat");
        let head = Record::Head { job: [7; 16], root };
        let session = Record::Session { epoch: 1, tag, boot: [0; 16], durable: true, lease: Holder::ALONE };
        let (bytes, ..) = compact(&Replayed::default(), head, session);
        journal.replace(&bytes).expect("replaced");
        (owner, journal)
    };
    let _live = begin("in", 5);
    let _other = begin("copy", 9);
    let key = format!(".haul~{}", JobKey::new(&[7; 16]).as_str());
    fs::create_dir(at("in/saved")).expect("mkdir");
    for name in [key.clone(), format!("{key}.own.1")] {
        fs::copy(elsewhere.join(&name), at("in/saved").join(&name)).expect("copy");
    }
    let temporary = |tag| {
        String::from_utf8(temp_name(&Name::new(b"f").expect("legal"), tag, 1).as_bytes().to_vec())
            .expect("ASCII")
    };
    let (live, users) = (temporary(5), temporary(9));
    let plain = [".zsh.history", ".app.headers", ".x.hostkey", ".haul~notes", ".a.habcdef", &users];
    for name in plain.iter().copied().chain([&*live]) {
        fs::write(at("in").join(name), "x").expect("write");
        fs::write(at("in/d").join(name), "x").expect("write");
    }
    let (items, tree) = walk(specs(temp.path(), &["/in"]));
    let owned =
        [format!("in/{key}"), format!("in/{key}.own.1"), format!("in/{live}"), format!("in/d/{live}")];
    let owned = owned.map(|path| (path.into_bytes(), NotKeptWhat::Debris));
    assert_eq!(not_kept(&items), owned.into());
    let found = checked_paths(&items, &tree);
    for name in plain {
        for dir in ["in", "in/d"] {
            assert!(found.contains(format!("{dir}/{name}").as_bytes()), "{dir}/{name}");
        }
    }
    for name in [key.clone(), format!("{key}.own.1")] {
        assert!(
            found.contains(format!("in/saved/{name}").as_bytes()),
            "a copy of another's {name} is the user's"
        );
    }
}

/// Goal: only what its directory named can vanish; a source that the command names and that is gone is
/// missing.
/// Method: a file and a directory, contents and named, that are removed between the look at the command and
/// the walk.
#[test]
fn a_named_source_does_not_vanish() {
    let temp = tempfile::tempdir().expect("tempdir");
    fs::create_dir_all(temp.path().join("dir/sub")).expect("mkdir");
    fs::write(temp.path().join("file"), "x").expect("write");
    for tails in [&["/file"][..], &["/dir"], &["/dir/"], &["/dir/sub"]] {
        let roots = specs(temp.path(), tails);
        let (aside, there) = (temp.path().with_extension("aside"), temp.path());
        fs::rename(there, &aside).expect("move away");
        let (items, _) = walk_with(roots, |_| 1 << 16);
        fs::rename(&aside, there).expect("move back");
        let stages: Vec<_> = items
            .iter()
            .filter_map(|item| match item {
                WalkItem::Failed { failure, .. } => Some((failure.kind, failure.errno)),
                _ => None,
            })
            .collect();
        assert_eq!(stages, [(FailureKind::Walk, 2)], "{tails:?}");
    }
}

/// Goal: each entry costs the walk its operations, once, whatever is kept of it; a walk that waits for its
/// rate ends when it is told.
/// Method: a tree of each kind at a rate that is never reached, also where attributes are kept and where
/// links are followed; many files at one operation a second, of which the first batch is never awaited.
#[test]
fn entries_cost_operations() {
    let temp = tempfile::tempdir().expect("tempdir");
    fs::create_dir(temp.path().join("d")).expect("mkdir");
    let mode = |at: &str, mode| {
        fs::set_permissions(temp.path().join(at), fs::Permissions::from_mode(mode)).expect("chmod");
    };
    mode("d", 0o755);
    for (i, mode_of) in [0o644, 0o644, 0o640].into_iter().enumerate() {
        fs::write(temp.path().join(format!("d/{i}")), "x").expect("write");
        mode(&format!("d/{i}"), mode_of);
    }
    symlink("0", temp.path().join("d/link")).expect("symlink");
    let (xattrs, all) = (Keeps { xattrs: true, acls: false }, LinkRule { all: true, ..LinkRule::default() });
    let (plain, links) = (Keeps::default(), LinkRule::default());
    // Five looks, a link, a list that a mode may hide, and two directories that are opened: the source is
    // one. Attributes are those of the two directories, three files and a link; a link that is followed is
    // looked through.
    for (keeps, links, cost) in [(plain, links, 11), (xattrs, links, 11 + 6 * 2), (plain, all, 11 + 1)] {
        let tree = SourceTree::new().with_rate(MetaRate::new(Some(10_000_000))).keeping(keeps);
        let tree = Arc::new(tree.with_manners(Manners { links, ..Manners::default() }));
        let walked = Walk::start(specs(temp.path(), &["/"]), tree.clone(), 4, |_| 4 << 20).expect("starts");
        assert!(matches!(walked.items().iter().flatten().last(), Some(WalkItem::End(_))));
        let (_, told) = tree.rate().report("source").expect("there is a rate");
        assert!(told.contains(&format!("({cost} operations")), "{told}");
    }

    (0..1000).for_each(|i| fs::write(temp.path().join(format!("f{i}")), "").expect("write"));
    let tree = Arc::new(SourceTree::new().with_rate(MetaRate::new(Some(1))));
    let walked = Walk::start(specs(temp.path(), &["/"]), tree, 4, |_| 4 << 20).expect("starts");
    walked.cancel();
    assert!(!walked.items().iter().flatten().any(|item| matches!(item, WalkItem::End(_))));
}
