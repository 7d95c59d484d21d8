//! Kernels that lack something, or a sandbox that forbids it: slower perhaps, never wrong.
//!
//! strace answers for the kernel. The answers are those that old kernels, seccomp filters and odd file
//! systems really give.

use std::os::unix::fs::symlink;

use crate::support::compare::{ALL, assert_no_debris, assert_same, snapshot};
use crate::support::run::strace_args;
use crate::support::sshd::{FarHaul, Sshd};
use crate::support::way::{Way, contents};
use crate::support::{Room, tree};

/// What may be missing, and how that looks.
const MASKS: &[(&str, &[&str])] = &[
    ("openat2", &["ENOSYS", "EPERM", "EINVAL"]),
    ("renameat2", &["ENOSYS", "EPERM", "EINVAL"]),
    ("linkat", &["ENOSYS", "EPERM", "EINVAL"]),
    ("fallocate", &["ENOSYS", "EPERM", "EINVAL", "EOPNOTSUPP"]),
    ("statx", &["ENOSYS", "EPERM"]),
    ("sync_file_range", &["ENOSYS", "EPERM", "EINVAL"]),
    ("fadvise64", &["ENOSYS", "EPERM", "EINVAL"]),
    ("io_uring_setup", &["ENOSYS", "EPERM"]),
];

/// Copies the seeded tree with one feature masked, for each of its masks.
fn copies_without(call: &str) {
    need!("strace");
    let (_, errors) = MASKS.iter().find(|(name, _)| *name == call).expect("a mask of the table");
    let room = Room::new();
    let data = room.dir("data");
    tree::everything(&data, 40);
    for error in *errors {
        let sink = room.dir(error);
        let injection = [format!("{call}:error={error}")];
        Way::Here.cp(&["-r"], &[&data], &sink).injected(&injection).run().sane().exits(0);
        assert_same(&data, &sink.join("data"), ALL);
        assert_no_debris(&sink);
        let again =
            Way::Here.cp(&["-r"], &[&data], &sink).injected(&injection).run().sane().exits(0).summary();
        assert_eq!(again.number("bytes_sent"), 0, "{error}: {again:?}");
    }
}

/// Goal: without openat2 the jail is walked by component.
/// Method: the call fails in each way that kernels and sandboxes have.
#[test]
fn copies_without_openat2() {
    copies_without("openat2");
}

/// Goal, method: as above; renames without flags.
#[test]
fn copies_without_renameat2() {
    copies_without("renameat2");
}

/// Goal, method: as above; files that get no name by their descriptors, so that they have one from the
/// beginning.
#[test]
fn copies_without_linkat() {
    copies_without("linkat");
}

/// Goal, method: as above; file systems that cannot reserve space.
#[test]
fn copies_without_fallocate() {
    copies_without("fallocate");
}

/// Goal, method: as above; the older stat calls.
#[test]
fn copies_without_statx() {
    copies_without("statx");
}

/// Goal, method: as above; write-back that cannot be started early.
#[test]
fn copies_without_sync_file_range() {
    copies_without("sync_file_range");
}

/// Goal, method: as above; advice that is not taken.
#[test]
fn copies_without_fadvise() {
    copies_without("fadvise64");
}

/// Goal, method: as above; no ring.
#[test]
fn copies_without_io_uring() {
    copies_without("io_uring_setup");
}

/// Goal: the far end copes as well, with everything masked at once.
/// Method: a wrapper in the far PATH that runs haul under strace; both ways.
#[test]
fn a_far_end_with_an_old_kernel_copies() {
    need!("strace", "sshd");
    let injections: Vec<String> = MASKS.iter().map(|(call, _)| format!("{call}:error=ENOSYS")).collect();
    let script = || FarHaul::Script(format!("exec {} \"$HAUL\" \"$@\"", strace_args(&injections).join(" ")));
    for way in [Way::Push(Sshd::start_as(script(), None)), Way::Pull(Sshd::start_as(script(), None))] {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        tree::everything(&data, 41);
        way.cp(&["-r"], &[&data], &sink).run().sane().exits(0);
        assert_same(&data, &sink.join("data"), ALL);
        assert_no_debris(&sink);
    }
}

/// Goal: the jail holds without openat2 too: a link at the sink leads nowhere.
/// Method: a directory of the tree is a link to outside at the sink.
#[test]
fn the_jail_holds_without_openat2() {
    need!("strace");
    let room = Room::new();
    let (data, outside) = (room.dir("data"), room.dir("outside"));
    room.dir("data/dir");
    room.file("data/dir/escaped", "must not get out");
    for error in ["ENOSYS", "EPERM", "EINVAL"] {
        let sink = room.dir(error);
        symlink(&outside, sink.join("dir")).expect("make a symlink");
        let before = snapshot(&outside);
        let haul = Way::Here.cp(&["-r"], &[contents(&data)], &sink);
        let ended = haul.injected(&[format!("openat2:error={error}")]).run().sane();
        assert!(matches!(ended.status.code(), Some(0 | 3)), "{}", ended.describe());
        assert_eq!(snapshot(&outside), before, "something outside was touched");
    }
}
