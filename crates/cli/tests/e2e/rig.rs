//! The rig itself: a test sees and leaves only what is its own.

use std::process::Command;

use crate::support::mount::Tmpfs;
use crate::support::{Room, set_mode};

/// Goal: a test that fails leaves no folder, whatever was going on in it.
/// Method: a test that panics with a file system mounted in its folder, a directory that is closed, and a
/// program that still makes files there.
#[test]
fn a_test_that_fails_leaves_nothing() {
    need!("tmpfs");
    let mut at = None;
    let mut busy = None;
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let room = Room::new();
        at = Some(room.at(""));
        room.dir("closed/inner");
        set_mode(&room.at("closed"), 0o500);
        // Its guard comes too late, as one does that is held beside the room.
        std::mem::forget(Tmpfs::mount(&room.dir("disk"), "size=1m"));
        room.file("disk/f", "f");
        let line = "for i in $(seq 400); do mkdir \"$0/d$i\" && : >\"$0/d$i/f\" || exit 0; sleep 0.002; done";
        let writer = Command::new("sh").args(["-c", line]).arg(room.dir("busy")).spawn();
        busy = Some(writer.expect("start a shell"));
        // Not by panic!, which would print as if a test had failed.
        std::panic::resume_unwind(Box::new("as a test that fails"));
    }));
    assert!(failed.is_err());
    busy.expect("it was started").wait().expect("it ends by itself");
    let at = at.expect("there was a room");
    assert!(!at.exists(), "{} is left", at.display());
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("read the mounts");
    assert!(!mounts.contains(&*at.to_string_lossy()), "something is still mounted in it");
}
