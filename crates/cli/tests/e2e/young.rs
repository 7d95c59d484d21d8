//! Sources that change within one step of their file system's clock: no look can show that, and no copy may
//! mix them.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;

use crate::support::compare::{ALL, assert_same};
use crate::support::disk::{Disk, Kind};
use crate::support::ftpd::{self, Ftpd};
use crate::support::mount::Overlay;
use crate::support::run::Haul;
use crate::support::way::Way;
use crate::support::{Room, needs, procs, read};

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

/// Goal: what is changed right behind its copy is copied by the next run, also where the destination keeps
/// times more coarsely than the source.
/// Method: a file is written when a second begins, copied, and written again with the same length; then the
/// copy is made again. A server, and a file system that keeps whole seconds.
#[test]
fn changes_right_behind_a_copy_are_seen() {
    let room = Room::new();
    let (data, sink) = (room.at("data"), room.dir("sink"));
    let seen = |cp: &dyn Fn() -> Haul, copy: &Path| {
        // The clock of files is a tick behind.
        let begun = || (50..200).contains(&into_the_second());
        assert!(procs::wait_until(Duration::from_secs(60), begun), "no second begins");
        fs::write(&data, "first version").expect("write");
        cp().run().sane().exits(0);
        fs::write(&data, "other version").expect("write");
        let ended = cp().run().sane().exits(0);
        assert!(read(copy) == read(&data), "{}: {}", copy.display(), ended.describe());
    };
    if needs::all_here(&["proftpd"]) {
        let ftpd = Ftpd::start(ftpd::Kind::Proftpd);
        seen(&|| Haul::cp([data.as_os_str()]).args([ftpd.url(sink.join("data"))]), &sink.join("data"));
    }
    if needs::all_here(&["ext4"]) {
        let disk = Disk::new(&room, "disk", Kind::Ext4Old);
        seen(&|| Way::Here.cp(&[], &[&data], disk.at("data")), &disk.at("data"));
    }
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
