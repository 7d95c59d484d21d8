//! Storage that hangs: it is named, and when it answers the copy goes on.

use std::fs;

use crate::support::compare::{BELOW, assert_same};
use crate::support::disk::{Disk, Kind};
use crate::support::way::{Way, contents};
use crate::support::{Room, procs, read, tree};

/// Enough that a copy in small requests is still at it when the disk is frozen.
const BIG: usize = 200 << 20;

/// Goal: a write that hangs is named in the progress of the end that people watch, wherever it hangs; when
/// the storage answers again the copy is completed with the right bytes.
/// Method: a file system that is frozen while a large file is written to it, locally and over ssh.
#[test]
fn a_hung_write_is_named_and_waited_for() {
    need!("xfs");
    for way in Way::all() {
        if matches!(way, Way::Pull(_)) {
            // The sink is near, as in a local copy.
            continue;
        }
        let room = Room::new();
        let data = room.dir("data");
        tree::random_file(&data.join("big"), &mut fastrand::Rng::with_seed(1), BIG);
        let disk = Disk::new(&room, "disk", Kind::Xfs);
        let sink = disk.at("");
        let mut run = way.cp(&["--io-deadline=1s", "--rate=64MiB/s"], &[data.join("big")], &sink).start();
        let begun = run.until(|run| procs::written(&run.near()) + bytes_below(&sink) > 4 << 20);
        assert!(begun, "{}: the copy was over before the disk could be frozen", way.name());
        let frozen = disk.freeze();
        let named = run.until(|run| {
            let said = String::from_utf8_lossy(&run.stdout()).into_owned();
            said.contains("s for the sink's write of ") && said.contains("big")
        });
        assert!(named, "{}: nobody named the write that hangs", way.name());
        assert!(!run.ended());
        drop(frozen);
        run.wait().sane().exits(0);
        assert!(read(data.join("big")) == read(sink.join("big")), "{}: the copy differs", way.name());
    }
}

/// Goal: one file system below the destination that hangs is named, also where nothing but names is asked of
/// it, and does not keep the bytes of files elsewhere from being written.
/// Method: a frozen file system under one directory of a tree of small files; the others are looked for
/// meanwhile.
#[test]
fn a_hung_file_system_does_not_hold_up_others() {
    need!("xfs");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    for (dir, files) in [("data/other", 300), ("data/disk", 20)] {
        let dir = room.dir(dir);
        for i in 0..files {
            tree::random_file(&dir.join(format!("{i}")), &mut fastrand::Rng::with_seed(i), 10_000);
        }
    }
    let disk = Disk::new(&room, "sink/disk", Kind::Xfs);
    let frozen = disk.freeze();
    let mut run = Way::Here.cp(&["-r", "--io-deadline=1s"], &[contents(&data)], &sink).start();
    let named = run.until(|run| {
        let said = String::from_utf8_lossy(&run.stdout()).into_owned();
        said.contains("s for the sink's ") && said.contains("disk")
    });
    assert!(named, "nobody named what hangs");
    let others = run.until(|_| fs::read_dir(sink.join("other")).is_ok_and(|dir| dir.count() >= 300));
    assert!(others && !run.ended(), "the others were not written");
    drop(frozen);
    run.wait().sane().exits(0);
    assert_same(&data.join("other"), &sink.join("other"), BELOW);
    assert_same(&data.join("disk"), &disk.at(""), BELOW);
}

/// Blocks of the files in a directory, bytes.
fn bytes_below(dir: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|meta| meta.blocks() * 512).sum()
}
