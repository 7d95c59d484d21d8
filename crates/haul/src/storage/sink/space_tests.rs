use super::*;
use std::fs::File;
use std::os::unix::fs::MetadataExt;

/// Goal: the data extents alone get blocks, the file gets its full size, and what it holds stays.
/// Method: two extents of a sparse file with bytes in it; one extent reaches beyond the size.
#[test]
fn data_extents_alone_are_allocated() {
    use std::os::unix::fs::FileExt;
    let file = tempfile::tempfile().expect("a file");
    file.write_all_at(b"kept", 8192).expect("written");
    let size = 64 << 20;
    let extents = [(8192, 1 << 20), (size - 4096, u64::MAX)];
    match preallocate(&file, size, Some(&extents)).expect("there is space") {
        Space::Unsupported => return eprintln!("skipped: this file system allocates nothing in advance"),
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

/// Goal: a file system that allocates nothing in advance is asked once, counted, and gets no zeros.
/// Method: `/dev/null`'s errno is none of these, so a pipe's: EINVAL for ftruncate is an error, hence a
/// file on ramfs where it can be mounted; its files must stay without blocks.
#[test]
fn unsupported_is_silent_and_counted() {
    let dir = tempfile::tempdir().expect("tempdir");
    let mounted = std::process::Command::new("mount").args(["-t", "ramfs", "ramfs"]).arg(dir.path()).output();
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
    assert_eq!(stat.blocks(), 0, "zeros were written");
    assert_eq!(lock(&spaces.unsupported).get(&7), Some(&3));
    assert!(spaces.report().contains("3 files"), "{}", spaces.report());
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

/// Goal: a file that does not fit fails by name, with what it needs and what is free.
/// Method: more than the file system that holds it; ENOSPC or EFBIG.
#[test]
fn too_large_is_named() {
    let file = tempfile::tempfile().expect("a file");
    let room = rustix::fs::fstatvfs(&file).expect("statvfs");
    let size = (room.f_bavail + (1 << 20)) * room.f_frsize;
    match Spaces::new(false).reserve(&file, 1, size, None, || "/d/huge".into()) {
        Ok(()) => eprintln!("skipped: this file system promises more than it has"),
        Err(failure) => {
            assert!(
                [Errno::NOSPC, Errno::FBIG].map(Errno::raw_os_error).contains(&failure.errno),
                "{failure:?}"
            );
            let text = &failure.text;
            assert!(text.contains("/d/huge") && text.contains(&size.to_string()), "{text}");
        }
    }
}
