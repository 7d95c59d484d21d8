//! Tests of the table of source entries.

use super::*;

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("legal name")
}

fn base(tree: &SourceTree, path: &std::path::Path) -> Place {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    tree.add_base(Arc::new(rustix::fs::open(path, flags, Mode::empty()).expect("open base")), b"")
}

/// Goal: a directory stays while anything in it is left, and goes with the last of it.
/// Method: a chain of three with one file at its end, forgotten in both orders.
#[test]
fn directories_go_with_their_last_entry() {
    for dirs_first in [true, false] {
        let tree = SourceTree::new();
        let temp = tempfile::tempdir().expect("tempdir");
        let root = base(&tree, temp.path());
        tree.add_dir(DirId(1), root, name("a"));
        tree.add_dir(DirId(2), Place::Dir(DirId(1)), name("b"));
        tree.add_dir(DirId(3), Place::Dir(DirId(2)), name("c"));
        tree.add_entry(FileId(4), Place::Dir(DirId(3)), name("f"), None, &Values::new());
        assert_eq!(tree.path_of(FileId(4)), b"a/b/c/f");
        assert_eq!(tree.path_of(FileId(2)), b"a/b");
        if dirs_first {
            for id in [1, 2, 3] {
                tree.forget_dir(DirId(id));
            }
            assert_eq!(tree.path_of(FileId(4)), b"a/b/c/f");
            tree.forget(FileId(4));
        } else {
            tree.forget(FileId(4));
            assert_eq!(tree.len(), (0, 3));
            for id in [3, 1, 2] {
                tree.forget_dir(DirId(id));
            }
        }
        assert!(tree.is_empty());
    }
}

/// Goal: an entry is forgotten at once exactly where nothing is closed for it.
/// Method: entries of a directory that is over: any but the last; one that is open; one that is not known.
#[test]
fn what_closes_nothing_is_forgotten_at_once() {
    let tree = SourceTree::new();
    let temp = tempfile::tempdir().expect("tempdir");
    let root = base(&tree, temp.path());
    tree.add_dir(DirId(1), root, name("a"));
    for id in 2..6 {
        tree.add_entry(FileId(id), Place::Dir(DirId(1)), name(&format!("f{id}")), None, &Values::new());
    }
    assert!(tree.forget_at_once(FileId(2)) && !tree.forget_at_once(FileId(2)));
    assert!(!tree.forget_at_once(FileId(1)), "a directory");
    tree.forget_dir(DirId(1));
    assert!(tree.forget_at_once(FileId(3)) && tree.forget_at_once(FileId(4)));
    assert!(!tree.forget_at_once(FileId(5)), "its directory goes with it");
    assert_eq!(tree.len(), (1, 1));
    tree.forget(FileId(5));
    assert!(tree.is_empty());
}

/// Goal: a directory is reached whatever was evicted, within the limit, and never through a symlink.
/// Method: a chain of 40 directories with two descriptors; then one link of the chain is replaced.
#[test]
fn evicted_directories_are_opened_again_without_following() {
    let temp = tempfile::tempdir().expect("tempdir");
    let tree = SourceTree::with_limits(2, 2);
    let mut place = base(&tree, temp.path());
    let mut path = temp.path().to_path_buf();
    let mut inodes = Vec::new();
    for i in 1..=40 {
        path.push(format!("d{i}"));
        std::fs::create_dir(&path).expect("mkdir");
        tree.add_dir(DirId(i), place, name(&format!("d{i}")));
        place = Place::Dir(DirId(i));
        inodes.push(std::os::unix::fs::MetadataExt::ino(&path.metadata().expect("stat")));
    }
    let mut rng = fastrand::Rng::with_seed(7);
    for _ in 0..200 {
        let i = rng.u64(1..=40);
        let fd = tree.dir_fd(Place::Dir(DirId(i))).expect("reachable");
        assert_eq!(rustix::fs::fstat(&fd).expect("fstat").st_ino, inodes[i as usize - 1]);
        assert!(tree.lock().dir_fds.fds.len() <= 2);
    }
    let second = temp.path().join("d1/d2");
    std::fs::rename(&second, temp.path().join("moved")).expect("rename");
    std::os::unix::fs::symlink(temp.path().join("moved"), &second).expect("symlink");
    tree.dir_fd(Place::Dir(DirId(1))).expect("still there");
    {
        let mut inner = tree.lock();
        inner.dir_fds = FdCache::new(2);
    }
    let refused = tree.dir_fd(Place::Dir(DirId(40))).expect_err("a symlink on the way");
    assert!(refused == Errno::NOTDIR || refused == Errno::LOOP, "{refused}");
}
