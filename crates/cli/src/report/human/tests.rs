//! What the summary of a run says, and what it must not say.

use super::*;
use crate::report::Lists;

fn told(summary: Summary, manner: Manner) -> String {
    let ending = Ending { summary, exit_code: 0, lists: Lists::default(), dropped: 0 };
    super::summary(&ending, manner)
}

fn summary_of(summary: Summary) -> String {
    told(Summary { status: Status::Complete, ..summary }, Manner::default())
}

/// Goal: `--verify=disk` is told of the files that were read back, and of no others.
/// Method: runs that copied all, some and nothing of a tree.
#[test]
fn what_was_not_read_back_is_not_called_verified() {
    let of = |files, unchanged| {
        summary_of(Summary { files, unchanged, verify: Verify::Disk, ..Summary::default() })
    };
    let all = of(3, 0);
    assert!(all.contains("  verified: each file was read back from the destination's storage\n"), "{all}");
    assert!(!all.contains("NOT"), "{all}");
    let some = of(3, 1200);
    assert!(some.contains("  verified: each file that was copied was read back"), "{some}");
    assert!(some.contains("  NOT verified: 1,200 unchanged files were not read back"), "{some}");
    let none = of(0, 1);
    assert!(!none.contains("  verified"), "{none}");
    assert!(none.contains("  NOT verified: 1 unchanged file was not read back"), "{none}");
    let empty = of(0, 0);
    assert!(!empty.contains("verified"), "{empty}");
}

/// Goal: one is told in the singular, and everything else is not.
#[test]
fn one_is_told_in_the_singular() {
    let one = Summary { files: 1, dirs: 1, symlinks: 1, amended: 1, unchanged: 1, ..Summary::default() };
    let one = summary_of(Summary { protect: "tls".into(), streams: 1, objects_resent: 1, strays: 1, ..one });
    for part in [
        "copied 1 file, 1 directory, 1 symlink, ",
        "  1 file: metadata only\n",
        "in 1 TLS 1.3 stream; 1 object was sent again",
        "  1 connection from strangers was turned away\n",
    ] {
        assert!(one.contains(part), "{part} is not in {one}");
    }
    let many = Summary { files: 2, dirs: 2, symlinks: 2, amended: 2, unchanged: 2, ..Summary::default() };
    let many = summary_of(Summary { protect: "tls".into(), streams: 2, ..many });
    for part in ["copied 2 files, 2 directories, 2 symlinks, ", "  2 files: metadata only\n"] {
        assert!(many.contains(part), "{part} is not in {many}");
    }
    assert!(summary_of(Summary::default()).contains("copied 0 files, "));
}
