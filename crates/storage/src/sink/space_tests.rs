use super::*;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

/// Goal: the data extents alone get blocks, the file gets its full size, and what it holds stays.
/// Method: two extents of a sparse file with bytes in it; one extent reaches beyond the size.
#[test]
fn data_extents_alone_are_allocated() {
    let file = tempfile::tempfile().expect("a file");
    file.write_all_at(b"kept", 8192).expect("written");
    let size = 64 << 20;
    let extents = [(8192, 1 << 20), (size - 4096, u64::MAX)];
    match preallocate(&file, size, Some(&extents)).expect("there is space") {
        Space::Unsupported | Space::InMemory => {
            return eprintln!("skipped: this file system allocates nothing in advance");
        }
        Space::Allocated => {}
    }
    let stat = file.metadata().expect("stat");
    assert_eq!(stat.size(), size);
    let blocks = stat.blocks() * 512;
    assert!(((1 << 20) + 4096..2 << 20).contains(&blocks), "{blocks} bytes of blocks");
    let mut kept = [0; 4];
    file.read_exact_at(&mut kept, 8192).expect("read");
    assert_eq!(&kept, b"kept");
}

/// Goal: a file system in memory gets no zeros: no page of it is taken in advance, and that is said.
/// Method: ramfs and tmpfs, where they can be mounted; files must stay without blocks, and get their size.
#[test]
fn memory_is_not_cleared_in_advance() {
    for kind in ["ramfs", "tmpfs"] {
        memory_of_one_kind(kind);
    }
}

fn memory_of_one_kind(kind: &str) {
    let dir = tempfile::tempdir().expect("tempdir");
    let mounted = std::process::Command::new("mount").args(["-t", kind, kind]).arg(dir.path()).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: mounting needs root");
    }
    let file = File::create(dir.path().join("f")).expect("created");
    let spaces = Spaces::new(false);
    let results: Vec<_> = (0..3).map(|_| spaces.reserve(&file, 7, 1 << 30, None, || "f".into())).collect();
    let stat = file.metadata().expect("stat");
    drop(file);
    let _ = std::process::Command::new("umount").arg(dir.path()).status();
    assert!(results.iter().all(|result| result.is_ok()), "{results:?}");
    assert_eq!((stat.size(), stat.blocks()), (1 << 30, 0), "{kind}: pages were taken");
    assert_eq!(spaces.report(), "no (the file system is in memory, and has room; 3 files)");
}

/// Goal: nothing is asked of the file system where it was switched off, nor for small files.
/// Method: sizes on both sides of the bound; the file's size tells whether it was touched.
#[test]
fn small_files_and_the_switch_are_left_alone() {
    for (off, size, touched) in
        [(false, SMALL_LEN_MAX, false), (true, 1 << 20, false), (false, 1 << 20, true)]
    {
        let file = tempfile::tempfile().expect("a file");
        Spaces::new(off).reserve(&file, 1, size, None, String::new).expect("there is space");
        assert_eq!(file.metadata().expect("stat").size() == size, touched);
    }
}

/// Goal: a file that does not fit fails by name, with what it needs and what is free, and the room that
/// others need is free again.
/// Method: tmpfs of 8 MiB with 4 MiB of it taken; 6 MiB more, which fit into an empty one.
#[test]
fn too_large_is_named_and_leaves_nothing() {
    let dir = tempfile::tempdir().expect("tempdir");
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"])
        .arg(dir.path())
        .output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: mounting needs root");
    }
    let taken = File::create(dir.path().join("taken")).expect("created");
    assert_eq!(preallocate(&taken, 4 << 20, None), Ok(Space::InMemory));
    taken.write_all_at(&vec![1; 4 << 20], 0).expect("written");
    let file = File::create(dir.path().join("f")).expect("created");
    let said = Spaces::new(false).reserve(&file, 1, 6 << 20, None, || "/d/huge".into());
    let stat = file.metadata().expect("stat");
    // A file that holds a part of it already needs only the rest.
    let rest = preallocate(&taken, 6 << 20, None);
    drop((taken, file));
    let _ = std::process::Command::new("umount").arg(dir.path()).status();
    let failure = said.expect_err("it does not fit");
    assert_eq!(failure.errno, Errno::NOSPC.raw_os_error());
    let text = &failure.text;
    assert!(text.contains("the 6291456 bytes of /d/huge"), "{text}");
    assert!(text.contains("4.2 MB and"), "what is free is what others can have: {text}");
    assert_eq!((stat.size(), stat.blocks()), (0, 0));
    assert_eq!(rest, Ok(Space::InMemory));
}

/// Goal: mount options that have files compressed are known as such.
/// Method: options as the kernel shows them.
#[test]
fn compression_is_read_from_options() {
    for options in
        ["rw,compress-force=zstd:3,space_cache=v2", "rw,compress=lzo", "rw,compression=lz4", "compress"]
    {
        assert!(compresses_by(options), "{options}");
    }
    for options in ["rw,relatime", "rw,compress=no", "rw,compression=none", "rw,compress_extension=txt", ""] {
        assert!(!compresses_by(options), "{options}");
    }
}
