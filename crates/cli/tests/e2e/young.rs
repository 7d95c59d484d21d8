//! Sources that change within one step of their file system's clock: no look can show that, and no copy may
//! mix them.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;

use crate::support::compare::{ALL, assert_same};
use crate::support::disk::{Disk, Kind};
use crate::support::mount::Overlay;
use crate::support::read;
use crate::support::way::Way;
use crate::support::{Room, procs};

const LEN: usize = 4 << 20;

/// How far the present second has come, ms.
fn into_the_second() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock that is set").subsec_millis()
}

/// Comes back when a second has just begun.
fn second_begins() {
    assert!(procs::wait_until(Duration::from_secs(60), || into_the_second() < 50), "no second begins");
}

/// Writes all of the file in its place, in parts.
fn rewrite(path: &Path, byte: u8) {
    let file = File::options().write(true).create(true).truncate(false).open(path).expect("open");
    for at in (0..LEN).step_by(64 << 10) {
        file.write_all_at(&[byte; 64 << 10], at as u64).expect("write");
    }
}

fn whole_seconds(path: &Path) {
    rewrite(path, 0);
    let meta = fs::metadata(path).expect("stat");
    assert_eq!((meta.ctime_nsec(), meta.mtime_nsec()), (0, 0), "this file system keeps whole seconds");
}

/// Goal: what is copied is one version of a file, the newest, also if it was changed while it was copied and
/// none of its times shows that.
/// Method: a file is written again and again until its second is over, while it is copied.
fn changes_in_one_second_are_not_mixed(room: &Room, data: &Path, options: &[&str]) {
    whole_seconds(data);
    for round in 0..2 {
        let sink = room.dir(&format!("sink{round}"));
        second_begins();
        rewrite(data, 1);
        let haul = Way::Here.cp(options, &[data], &sink).start();
        let mut byte = 1_u8;
        while into_the_second() < 700 {
            byte = byte.wrapping_add(1);
            rewrite(data, byte);
        }
        haul.wait().sane().exits(0);
        assert_same(data, &sink.join("data"), ALL);
    }
}

/// Goal: nor does a resumed copy mix them.
/// Method: a copy is killed and its file changed, before the second is over in which it was written; then the
/// copy is made again.
fn changes_between_runs_are_not_mixed(room: &Room, data: &Path) {
    whole_seconds(data);
    let sink = room.dir("resumed");
    second_begins();
    rewrite(data, 1);
    // So slow that it is not done before it is killed.
    let mut haul = Way::Here.cp(&["--rate", "4MB/s"], &[data], &sink).start();
    haul.until(|_| into_the_second() >= 700);
    haul.signal(Signal::KILL);
    assert!(haul.wait().was_killed());
    rewrite(data, 2);
    Way::Here.cp(&[], &[data], &sink).run().sane().exits(0);
    let copy = read(sink.join("data"));
    assert!(copy == read(data), "{} bytes of the version before", copy.iter().filter(|b| **b == 1).count());
}

#[test]
fn whole_seconds_of_ext4_mix_nothing() {
    need!("ext4");
    let room = Room::new();
    let disk = Disk::new(&room, "disk", Kind::Ext4Old);
    changes_in_one_second_are_not_mixed(&room, &disk.at("data"), &[]);
    changes_between_runs_are_not_mixed(&room, &disk.at("data"));
}

/// Goal: nor does a copy that lets files grow, if they are changed in their place: no other content can have
/// the size and mtime that are published.
#[test]
fn whole_seconds_mix_nothing_in_prefixes() {
    need!("ext4");
    let room = Room::new();
    let disk = Disk::new(&room, "disk", Kind::Ext4Old);
    changes_in_one_second_are_not_mixed(&room, &disk.at("data"), &["--changed=prefix"]);
}

#[test]
fn whole_seconds_below_an_overlay_mix_nothing() {
    need!("ext4", "overlay");
    let room = Room::new();
    let disk = Disk::new(&room, "disk", Kind::Ext4Old);
    let overlay = Overlay::mount(&room, "over", &disk.at(""));
    changes_in_one_second_are_not_mixed(&room, &overlay.at("data"), &[]);
    changes_between_runs_are_not_mixed(&room, &overlay.at("data"));
}
