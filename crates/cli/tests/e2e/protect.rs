//! What protects the data is the user's choice: each choice moves every byte, over connections of either
//! direction, through lost ones and over kills.

use rustix::process::Signal;

use crate::support::hosts::Hosts;
use crate::support::procs;

/// Goal: every byte arrives under each choice, both ways, whichever end dials, and the summary says what
/// protected it; what cannot go together is refused before anything is touched.
#[test]
fn each_choice_moves_every_byte() {
    need!("netns", "sshd");
    let hosts = Hosts::new(91, 300, 20_000_000);
    for pull in [false, true] {
        for (options, protect) in [
            (&["--protect=integrity"][..], "integrity"),
            (&["--protect=integrity", "--dial=source"], "integrity"),
            (&["--protect=integrity", "--dial=sink", "--verify=disk"], "integrity"),
            (&["--digest=xxh3"], "tls"),
            (&["--digest=xxh3", "--verify=disk"], "tls"),
            (&["--verify=disk"], "tls"),
        ] {
            let ended = hosts.copy(pull, options).run().sane().exits(0);
            assert_eq!(ended.summary().text("protect"), protect, "{options:?}: {}", ended.describe());
            hosts.assert_copied();
            hosts.make_room("sink");
        }
        hosts.copy(pull, &["--protect=integrity", "--digest=xxh3"]).run().sane().exits(2).says("xxh3");
        assert!(!hosts.room.at("sink/data").exists());
    }
}

/// Goal: connections without encryption are replaced as others are, and a killed copy goes on under another
/// choice.
/// Method: `ss -K` of all connections but ssh's of a copy that has begun; SIGKILL of another, whose rest is
/// copied with another digest.
#[test]
fn unencrypted_copies_survive() {
    need!("netns", "sshd", "ss");
    let hosts = Hosts::new(91, 20, 400 << 20);
    let begin = |options: &[&str]| hosts.begin(false, &[&["--port=40120"], options].concat());
    let run = begin(&["--protect=integrity"]);
    hosts.near(&["ss", "-Kt", "dport", "=", ":40120"]);
    let ended = run.wait().sane().exits(0);
    assert_eq!(ended.summary().text("protect"), "integrity", "{}", ended.describe());
    hosts.assert_copied();
    hosts.make_room("sink");

    let run = begin(&["--digest=xxh3"]);
    run.signal(Signal::KILL);
    assert!(run.wait().was_killed());
    procs::wait_gone(&hosts.sshd.mark);
    hosts.copy(false, &["--protect=integrity"]).run().sane().exits(0);
    hosts.assert_copied();
    hosts.make_room("sink");
}
