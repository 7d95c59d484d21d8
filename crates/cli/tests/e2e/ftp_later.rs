//! Servers that say "later" (`4yz`) of one thing, once or for ever, and that do not tell what became of a
//! rename: what may pass is asked for again, and nothing is believed instead.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crate::support::beside::beside;
use crate::support::ftpd::contents;
use crate::support::liar::Lies;
use crate::support::run::Haul;
use crate::support::taker::{Script, Taker};
use crate::support::{Room, read, tree};

const LARGE: usize = 13 << 20;
const SMALL: usize = 1000;
const LATER: [&str; 2] = ["450 busy, try later", "451 later"];

/// A directory with a small file and one of several objects, in a directory of its own.
fn two_files(room: &Room) -> PathBuf {
    let data = room.dir("data");
    fs::create_dir(data.join("sub")).expect("make a directory");
    let mut rng = fastrand::Rng::with_seed(22);
    for (name, len) in [("small", SMALL), ("sub/large", LARGE)] {
        fs::write(data.join(name), tree::bytes(&mut rng, len)).expect("write a file");
        tree::set_mtime(&data.join(name), SystemTime::UNIX_EPOCH + Duration::from_secs(1_300_000_000));
    }
    data
}

fn to(room: &Room, data: &std::path::Path, taker: &Taker) -> Haul {
    Haul::cp(["-r", "--patience=5s"])
        .env("XDG_STATE_HOME", room.at("state"))
        .args([contents(data)])
        .args([taker.url("/d/")])
}

/// Goal: whatever a server says "later" to once, each file arrives whole, and nothing of ours stays.
#[test]
fn what_is_said_for_now_is_asked_for_again() {
    let verbs = [
        ("STOR", "small"),
        ("STOR", "large"),
        ("CKSM", "small"),
        ("CKSM", "large"),
        ("RNFR", "small"),
        ("RNTO", "large"),
        ("RNTO", "small"),
        ("MKD", "sub"),
        ("MLST", "small"),
        ("MLST", ".haul~"),
    ];
    beside(verbs.into_iter().flat_map(|verb| LATER.map(|reply| (verb, reply))), |((verb, part), reply)| {
        let room = Room::new();
        let data = two_files(&room);
        let taker = Script::default().with_sums().says(verb, part, reply, 1).start();
        let ended = to(&room, &data, &taker).run().sane().exits(0);
        let words = format!("{verb} {part} {reply}: {}", ended.describe());
        assert_eq!(taker.paths(), ["/d/small", "/d/sub/large"], "{words}");
        for name in ["small", "sub/large"] {
            assert!(taker.file(&format!("/d/{name}")) == Some(read(data.join(name))), "{words}");
        }
        let heard = taker.heard();
        let stored = heard.iter().filter(|line| line.starts_with("STOR") && line.contains(part)).count();
        // Asked again is not sent again.
        assert!(verb == "STOR" || verb == "MKD" || part == ".haul~" || stored == 1, "{words}");
    });
}

/// Goal: a file of which a server says "later" for ever fails alone, and never has its name; the other one is
/// copied.
#[test]
fn what_is_never_said_fails_one_file() {
    let rows = ["CKSM", "RNTO", "RNFR", "MLST"].into_iter().flat_map(|verb| LATER.map(|reply| (verb, reply)));
    beside(rows, |(verb, reply)| {
        let room = Room::new();
        let data = two_files(&room);
        let taker = Script::default().with_sums().says(verb, "small", reply, usize::MAX).start();
        let ended = to(&room, &data, &taker).run().sane().exits(3);
        let words = format!("{verb} {reply}: {}", ended.describe());
        assert_eq!(taker.file("/d/small"), None, "{words}");
        assert!(taker.file("/d/sub/large") == Some(read(data.join("sub/large"))), "{words}");
        assert_eq!(ended.summary().number("failed"), 1, "{words}");
    });
}

/// Goal: what a source's server says "later" to once is asked for again, and each file arrives.
#[test]
fn what_a_source_says_for_now_is_asked_for_again() {
    let content = tree::bytes(&mut fastrand::Rng::with_seed(23), SMALL);
    let verbs = [("RETR", "/d/x"), ("MLSD", "/d"), ("MLST", "/d/x"), ("MLSD", "/d/sub")];
    beside(verbs.into_iter().flat_map(|verb| LATER.map(|reply| (verb, reply))), |((verb, path), reply)| {
        let (room, reply) = (Room::new(), format!("{reply}\r\n"));
        let has = Lies::default().file("/d/x", &content).file("/d/y", b"other").file("/d/sub/z", b"deep");
        let liar = has.says(verb, path, reply.as_bytes(), 1).start();
        let ended = Haul::cp(["-r", "--patience=5s"]).args([liar.url("/d/")]).args([room.at("sink")]);
        let ended = ended.run().sane().exits(0);
        for (name, content) in [("x", &content[..]), ("y", b"other"), ("sub/z", b"deep")] {
            assert_eq!(
                read(room.at("sink").join(name)),
                content,
                "{verb} {reply} {name}: {}",
                ended.describe()
            );
        }
    });
}

/// Goal: of a rename that was not heard of, what stands at the name counts only if it is what was sent.
/// Method: the server hangs up there; what was sent is gone, and a file of somebody else, as long as it,
/// stands at the name; at a server that makes sums, at one that has names of its own for files, and at one
/// with neither, where the time tells.
#[test]
fn a_rename_that_was_not_heard_of_is_proved() {
    let scripts: [fn() -> Script; 3] =
        [|| Script::default().with_sums(), || Script::default().calls_files(), Script::default];
    beside(
        scripts
            .into_iter()
            .flat_map(|script| [("small", SMALL), ("large", LARGE)].map(|part| (script, part))),
        |(script, (part, len))| {
            let room = Room::new();
            let data = two_files(&room);
            let other = tree::bytes(&mut fastrand::Rng::with_seed(99), len);
            let taker = script().swaps_at_rename(part, &other).start();
            let ended = to(&room, &data, &taker).run().sane();
            let path = if part == "small" { "/d/small" } else { "/d/sub/large" };
            let is_there = taker.file(path) == Some(read(data.join(path.trim_start_matches("/d/"))));
            assert!(is_there || ended.status.code() == Some(3), "{part}: {}", ended.describe());
            assert_eq!(
                ended.summary().number("files"),
                if is_there { 2 } else { 1 },
                "{part}: {}",
                ended.describe()
            );
        },
    );
}
