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
    let server = Summary { files: 3, verify: Verify::Disk, servers_word: true, ..Summary::default() };
    let server = summary_of(server);
    assert!(server.contains("  verified: each file was read back through the server\n"), "{server}");
    let some = of(3, 1200);
    assert!(some.contains("  verified: each file that was copied was read back"), "{some}");
    assert!(some.contains("  NOT verified: 1,200 unchanged files were not read back"), "{some}");
    let none = of(0, 1);
    assert!(!none.contains("  verified"), "{none}");
    assert!(none.contains("  NOT verified: 1 unchanged file was not read back"), "{none}");
    let empty = of(0, 0);
    assert!(!empty.contains("verified"), "{empty}");
}

/// Goal: what is said of a file that grew is true of a part of it that is not its beginning.
#[test]
fn a_part_of_a_file_that_grew_is_not_called_its_beginning() {
    let of = |source| {
        let part = Part { source, len: Some(3_000_000), sink: None };
        summary_of(Summary {
            files: 1,
            prefixes: 1,
            prefix_bytes: 3_000_000,
            part: Some(part),
            ..Summary::default()
        })
    };
    assert!(
        of(0).contains("  1 file grew while it was copied: its first 3.00 MB were copied\n"),
        "{}",
        of(0)
    );
    let within = of(7);
    assert!(!within.contains("first"), "{within}");
    assert!(within.contains("of it 3.00 MB from byte 7 on were copied\n"), "{within}");
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

/// Goal: the rate is that of data which was moved: holes and what an earlier run left are told apart, and
/// what is not finished counts too.
#[test]
fn rates_are_of_what_was_moved() {
    let of =
        |bytes, bytes_sent| summary_of(Summary { bytes, bytes_sent, seconds: 10.0, ..Summary::default() });
    let sparse = of(517_000_000, 202_000_000);
    assert!(sparse.contains("517 MB in 10 s; moved 202 MB, 20.2 MB/s\n"), "{sparse}");
    let plain = of(517_000_000, 517_000_100);
    assert!(plain.contains("517 MB in 10 s, 51.7 MB/s\n"), "{plain}");
    let unfinished = of(0, 1_520_000_000);
    assert!(unfinished.contains("0 B in 10 s; moved 1.52 GB, 152 MB/s\n"), "{unfinished}");
}

/// Goal: of what was cloned no rate is told, and nobody is told that it was checked.
#[test]
fn clones_are_neither_moved_nor_checked() {
    let of = |files, bytes_sent| {
        let summary = Summary { files, bytes_sent, bytes: 517_000_000, cloned: 1, ..Summary::default() };
        let summary = Summary { cloned_bytes: 500_000_000, digest: Digest::Xxh3, ..summary };
        summary_of(Summary { seconds: 10.0, ..summary })
    };
    let all = of(1, 0);
    assert!(all.contains("517 MB in 10 s\n"), "{all}");
    assert!(
        all.contains("  cloned: 1 file shares its blocks with the source, 500 MB: nothing of that"),
        "{all}"
    );
    assert!(!all.contains("checked with"), "{all}");
    let some = of(2, 17_000_000);
    assert!(some.contains("; moved 17.0 MB, 1.70 MB/s\n") && some.contains("checked with xxh3"), "{some}");
}

/// Goal: a run that did not come to its end says what of it a resume finds; one that did has nothing to
/// resume.
#[test]
fn what_is_kept_for_a_resume_is_told() {
    let of = |status| told(Summary { status, kept: 176_000_000, ..Summary::default() }, Manner::default());
    for status in [Status::Interrupted, Status::Failed] {
        let text = of(status);
        assert!(text.contains("\n  kept for the resume: 176 MB of unfinished files\n"), "{text}");
    }
    assert!(!of(Status::Complete).contains("kept"));
    assert!(!told(Summary::default(), Manner::default()).contains("kept for"), "nothing is kept");
    let null = Summary { status: Status::Interrupted, durability: None, ..Summary::default() };
    let ending = Ending { summary: null, exit_code: 130, lists: Lists::default(), dropped: 0 };
    assert_eq!(verdict(&ending, Manner::default()), ["interrupted"]);
}

/// Goal: of a source that does not prove which file it has, nothing of what is unfinished is said to be kept,
/// and nobody is told to resume.
#[test]
fn what_is_not_kept_is_not_promised() {
    for status in [Status::Interrupted, Status::Failed] {
        let summary = Summary { status, resumes: false, bytes_sent: 9, files: 1, ..Summary::default() };
        let text = told(summary.clone(), Manner::default());
        assert!(
            text.contains("\n  kept for the next run: finished files; nothing of unfinished ones\n"),
            "{text}"
        );
        let trusting = told(Summary { would_resume_by_trust: true, ..summary.clone() }, Manner::default());
        assert!(
            trusting.contains("nothing of unfinished ones, unless it has --resume=trust\n"),
            "{trusting}"
        );
        let none = told(Summary { files: 0, ..summary.clone() }, Manner::default());
        assert!(none.contains("\n  kept for the next run: nothing of unfinished files\n"), "{none}");
        let ending = Ending { summary, exit_code: 1, lists: Lists::default(), dropped: 0 };
        let said = verdict(&ending, Manner::default()).concat();
        assert!(said.contains("unfinished ones from their beginning") && !said.contains("resume"), "{said}");
    }
    for status in [Status::Complete, Status::Partial] {
        let text =
            told(Summary { status, resumes: false, bytes_sent: 9, ..Summary::default() }, Manner::default());
        assert!(!text.contains("kept for"), "{text}");
    }
}

/// A copy that spent time in each stage, limited by `stage`.
fn limited(stage: Stage, protect: &str) -> Summary {
    let half = haul::api::StageTime { busy: 50, starved: 50, blocked: 0 };
    Summary { stages: [half; 5], limited_by: Some(stage), protect: protect.into(), ..Summary::default() }
}

/// Goal: a copy within one host is told without a network and without a second host.
#[test]
fn a_local_copy_has_one_host_and_no_network() {
    let manner = Manner { verbose: 1, ..Manner::default() };
    for stage in Stage::ALL.into_iter().filter(|stage| *stage != Stage::Network) {
        let text = told(limited(stage, "local"), manner);
        for word in ["network", "source host", "sink host", "sealing"] {
            assert!(!text.contains(word), "{word} is in {text}");
        }
        assert!(text.contains("\n  hashing  ") && text.contains("\n  checking  "), "{text}");
    }
    let far = told(limited(Stage::SinkHost, "tls"), manner);
    assert!(far.contains("\n  network  ") && far.contains("limited by the sink host"), "{far}");
}

/// Goal: where other programs have the processors, haul does not blame itself.
#[test]
fn other_programs_are_named() {
    let busy = |count| Some(Processors { count, busy: 1000 });
    let of = |stage, protect: &str, own| {
        let shares = [Some(own), Some(0.02)];
        summary_of(Summary { processors: [busy(2); 2], own_shares: shares, ..limited(stage, protect) })
    };
    let text = of(Stage::SourceHost, "tls", 0.12);
    let want =
        "  limited by the processors of the source host, used up by other programs (haul itself: 12 %)\n";
    assert!(text.contains(want), "{text}");
    assert!(of(Stage::SinkHost, "tls", 0.9).contains("of the sink host, used up by other programs"));
    assert!(of(Stage::SourceHost, "local", 0.12).contains("of this host, used up by other programs"));
    assert!(of(Stage::SourceHost, "tls", 0.8).contains("limited by the source host (hashing"));
    assert!(of(Stage::SourceStorage, "tls", 0.12).contains("limited by reading"));
}

/// Goal: what is in memory alone is not called durable.
#[test]
fn memory_is_not_durable() {
    let chosen = vec![Chosen::new("destination in memory", "tmpfs")];
    let text = summary_of(Summary { chosen: chosen.clone(), ..Summary::default() });
    assert!(text.contains("  NOT durable: the destination is memory (tmpfs): "), "{text}");
    assert!(!text.contains("on media"), "{text}");
    let null = summary_of(Summary { chosen, durability: None, ..Summary::default() });
    assert!(null.contains("NOT kept") && !null.contains("NOT durable"), "{null}");
    assert!(summary_of(Summary::default()).contains("  durable: everything is on media"));
}

/// Goal: what another copy left is offered to be completed first.
#[test]
fn what_can_be_resumed_is_not_called_rubbish() {
    let value = "an interrupted copy (of a to /b) can be completed by its command, or removed with haul clean -- '/b'";
    let chosen = vec![Chosen::new("debris", value)];
    let text = summary_of(Summary { chosen, ..Summary::default() });
    assert!(text.contains(&format!("  left here: {value}\n")) && !text.contains("debris"), "{text}");
}

/// Goal: a command that would fail in the same way is not recommended.
/// Method: failures that last, some that may go away, and both.
#[test]
fn what_fails_for_good_is_not_to_be_tried_again() {
    let of = |failed, lasting, vanished| {
        let summary = Summary {
            status: Status::Partial,
            failed,
            lasting,
            vanished,
            protect: "tls".into(),
            ..Summary::default()
        };
        verdict(&Ending { summary, exit_code: 3, lists: Lists::default(), dropped: 0 }, Manner::default())
            .join("\n")
    };
    let again = "run the same command again";
    let all = of(3, 3, 0);
    assert!(all.contains("they will fail again until") && !all.contains(again), "{all}");
    let some = of(3, 2, 0);
    assert!(some.contains("2 of them will fail") && some.contains("to try the others again"), "{some}");
    assert!(!of(3, 2, 1).contains(again));
    let none = of(3, 0, 0);
    assert!(none.contains("to try those again") && !none.contains("will fail"), "{none}");
}

/// Goal: what is skipped says why, to whoever asked for names.
#[test]
fn what_is_skipped_says_why() {
    let manner = Manner { skips: Some("it is newer there"), ..Manner::default() };
    let of = |manner| entry(b"a\n", (EntryKind::File, EntryEnd::Skipped), manner);
    assert_eq!(of(manner), None);
    for manner in [Manner { verbose: 1, ..manner }, Manner { itemize: true, ..manner }] {
        assert_eq!(of(manner).as_deref(), Some("a\\n (skipped: it is newer there)"));
        let link = entry(b"l", (EntryKind::Symlink, EntryEnd::Skipped), manner);
        assert_eq!(link.as_deref(), Some("l (skipped)"), "it may have been left out");
    }
}

/// Goal: of bytes that a server did not take it is not said that they were moved, and a server is not called
/// storage.
#[test]
fn servers_are_called_so() {
    let of = |stage, (from_server, servers_word)| {
        let at = limited(stage, "local");
        summary_of(Summary { from_server, servers_word, bytes_sent: 21_000_000, ..at })
    };
    let told = of(Stage::SinkStorage, (false, true));
    assert!(told.contains("read 21.0 MB of the source") && !told.contains("moved"), "{told}");
    let resumed = Summary { servers_word: true, resumed: true, bytes_sent: 21_000_000, ..Summary::default() };
    let resumed = summary_of(resumed);
    assert!(resumed.contains("; sent 21.0 MB") && !resumed.contains("read"), "{resumed}");
    assert!(told.contains("limited by the destination's server") && !told.contains("storage"), "{told}");
    let told = of(Stage::SourceStorage, (true, false));
    assert!(told.contains("limited by the source's server") && !told.contains("source's storage"), "{told}");
    let told = of(Stage::SinkStorage, (false, false));
    assert!(told.contains("moved 21.0 MB") && told.contains("writing to the sink's storage"), "{told}");
}

/// Goal: of files in place it is said that they are partly new only where something was sent, and of those at
/// a server that this is its own matter.
#[test]
fn what_was_not_begun_is_not_partly_new() {
    let of = |status, bytes_sent, servers_word| {
        told(
            Summary { status, bytes_sent, servers_word, in_place: true, ..Summary::default() },
            Manner::default(),
        )
    };
    assert!(!of(Status::Failed, 0, false).contains("in place"));
    assert!(
        of(Status::Failed, 1, false).contains("in place: files that were begun and not ended are partly new")
    );
    assert!(of(Status::Partial, 1, true).contains("may be partly new, as their server has it"));
}
