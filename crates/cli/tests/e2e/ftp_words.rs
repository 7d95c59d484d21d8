//! What a copy with an FTP server says: of names that it cannot have, of what it found, of what is not there.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::beside::beside;
use crate::support::ftpd::{Ftpd, Kind, contents};
use crate::support::liar::{Lies, Manner};
use crate::support::node::{Node, Software, are_here};
use crate::support::run::{Haul, Outcome};
use crate::support::steered::{Odd, Steered};
use crate::support::taker::{Script, Takes};
use crate::support::{Room, read};

const ALWAYS: usize = usize::MAX;
/// A port that nobody listens at.
const NOBODY: &str = "ftp://127.0.0.1:1";
const ITSELF: &str = "drwxr-xr-x   2 0        0            4096 Nov 25  2019 .\r\n";
const GOOD: &str = "-rw-r--r--   1 0        0               4 Nov 25  2019 good\r\n";

fn good() -> Lies {
    Lies::default().file("/d/good", b"good")
}

/// The lines of a list of failures.
fn failures(list: &Path) -> Vec<Value> {
    let text = String::from_utf8(read(list)).expect("JSON is UTF-8");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is an object")).collect()
}

/// Goal: a source that is not at its server is not found, where its words or its directory say so; where
/// neither does, nobody knows.
#[test]
fn what_is_not_there_is_not_found() {
    let refuses = |text: &[u8]| {
        ["MLST", "SIZE", "MDTM", "CWD"]
            .into_iter()
            .fold(good(), |lies, command| lies.says(command, "/d/nope", text, ALWAYS))
    };
    for (lies, kind) in [
        (refuses(b"550 nope: No such file or directory\r\n"), "not_found"),
        (refuses(b"550 Could not get file size.\r\n"), "not_found"),
        (
            refuses(b"550 no\r\n").says("MLSD", "/d", b"550 no\r\n", ALWAYS).says(
                "CWD",
                "/d",
                b"550 no\r\n",
                ALWAYS,
            ),
            "storage",
        ),
    ] {
        let (room, liar) = (Room::new(), lies.start());
        let ended = Haul::cp(["--patience=2s"]).args([liar.url("/d/nope")]).args([room.dir("sink")]).run();
        let ended = ended.sane().exits(1);
        assert_eq!(ended.summary().0["error_kind"], kind, "{}", ended.describe());
    }
}

/// Goal: an entry whose name is refused is told by that name, and not by its line of a listing; of a link
/// with two arrows by what stands there.
#[test]
fn names_that_are_refused_are_told_alone() {
    let wrong = "-rw-r--r--   1 0        0               3 Nov 25  2019 a\x07b\r\n";
    let arrows = "lrwxrwxrwx   1 0        0               4 Nov 25  2019 l -> m -> n\r\n";
    let room = Room::new();
    let (sink, list) = (room.dir("sink"), room.at("failures"));
    let lines = [ITSELF, GOOD, wrong, arrows].concat();
    let liar = good().list(b"").lists("LIST -a", "/d", lines.as_bytes()).start();
    let failures_to = format!("--failures={}", list.display());
    let ended = Haul::cp(["-r", "--patience=2s", &failures_to]).args([liar.url("/d")]).args([&sink]).run();
    let ended = ended.sane().exits(3);
    let mut paths: Vec<String> =
        failures(&list).iter().filter_map(|line| Some(line["path"].as_str()?.to_owned())).collect();
    paths.sort();
    assert_eq!(paths, ["d/a\u{7}b", "d/l -> m -> n"], "{}", ended.describe());
    assert_eq!(read(sink.join("d/good")), b"good");
}

/// Goal: what came along that is called as unfinished uploads are, directories whose time is not told, and
/// what was waited for are in the summary.
#[test]
fn what_was_found_is_said() {
    let part = ".good.haul~abcdefaaaaaaab";
    let line = format!("-rw-r--r--   1 0        0               4 Nov 25  2019 {part}\r\n");
    let sub = "drwxr-xr-x   2 0        0            4096 Nov 25  2019 sub\r\n";
    let room = Room::new();
    let sink = room.dir("sink");
    let has = good().file(&format!("/d/{part}"), b"good").file("/d/sub/in", b"in").list(b"");
    let has = has.lists("LIST -a", "/d", [ITSELF, GOOD, &line, sub].concat().as_bytes());
    let inside = "-rw-r--r--   1 0        0               2 Nov 25  2019 in\r\n";
    let liar = has.lists("LIST -a", "/d/sub", [ITSELF, inside].concat().as_bytes());
    let liar = liar.modified("/d/good", "29990101000000").start();
    let ended = Haul::cp(["-r", "--patience=2s"]).args([liar.url("/d")]).args([&sink]).run().sane().exits(0);
    let summary = ended.summary();
    assert!(summary.chosen("came along").starts_with("1 file named"), "{}", ended.describe());
    assert!(summary.chosen("NOT known").starts_with("the times of 2 directories"), "{}", ended.describe());
    assert!(summary.chosen("waited for").starts_with("1 file 1.1 s"), "{}", ended.describe());
    assert!(
        ended.stderr.contains("came along") && ended.stderr.contains("NOT known"),
        "{}",
        ended.describe()
    );
    assert!(!ended.stderr.contains("waited for"), "asked for by -v: {}", ended.describe());
    assert_eq!(read(sink.join("d").join(part)), b"good");
    // Their time is that of the copy again, and they were there.
    let again = Haul::cp(["-a", "--patience=2s"]).args([liar.url("/d")]).args([&sink]).run().sane().exits(0);
    assert!(!again.stderr.contains("owners"), "nothing was copied: {}", again.describe());
    assert!(again.stderr.contains("copied 0 files, 0 B in"), "{}", again.describe());
    let _ = again.says("2 directories: metadata only");
}

/// Goal: of a replica that was never reached it is not said that data of it could be read.
#[test]
fn what_was_not_reached_showed_nothing() {
    let (room, liar) = (Room::new(), good().start());
    let replica = format!("--replica={NOBODY}/d");
    let ended =
        Haul::cp(["-r", "--patience=2s", &replica]).args([liar.url("/d")]).args([room.dir("sink")]).run();
    let ended = ended.sane().exits(0);
    let told = ended.summary();
    let told = told.chosen("NOT protected");
    assert!(told.contains(&liar.port.to_string()), "{told}");
    assert!(!ended.stderr.contains(&format!("of {NOBODY} can be read")), "{}", ended.describe());
}

/// Goal: a server that takes no session now is told with how to wait for one; one that is full by its words
/// is quoted, and nobody is told that a password is missing.
#[test]
fn a_full_server_is_told_as_it_says() {
    let room = Room::new();
    let refused = |lies: Lies| {
        let liar = lies.start();
        let ended = Haul::cp(["--patience=2s"]).args([liar.url("/d/good")]).args([room.dir("sink")]).run();
        ended.sane().exits(1)
    };
    let busy = refused(good().reply("", b"421 Too many users\r\n"));
    assert!(
        busy.stderr.contains("421 Too many users") && busy.stderr.contains("--retry-for"),
        "{}",
        busy.describe()
    );
    let full = refused(good().reply("USER", b"530 Sorry, the maximum number of clients are connected\r\n"));
    assert!(full.stderr.contains("530 Sorry, the maximum number"), "{}", full.describe());
    assert!(full.stderr.contains("it is full") && !full.stderr.contains("password"), "{}", full.describe());
}

/// Goal: a name that no server can be told fails so that nobody is told to try the same again.
#[test]
fn names_that_cannot_be_stored_are_not_tried_again() {
    let (room, node) = (Room::new(), Node::start(Software::Haul, [127, 0, 0, 1], ""));
    let source = room.dir("source");
    fs::write(source.join("good"), b"good").expect("write a file");
    fs::write(source.join("two\nlines"), b"x").expect("write a file");
    let to = node.url(node.place("in"));
    let ended =
        Haul::cp(["-r", "--patience=5s"]).args([format!("{}/", source.display()), to]).run().sane().exits(3);
    assert!(ended.stderr.contains("will fail again until"), "{}", ended.describe());
    assert!(!ended.stderr.contains("run the same command again"), "{}", ended.describe());
}

/// Goal: a dry run counts directories as the run behind it does, at a server that does not tell their times;
/// and says what no look there tells.
#[test]
fn a_dry_run_counts_as_the_run() {
    if !are_here(&[Software::Vsftpd]) {
        return;
    }
    let (room, node) = (Room::new(), Node::start(Software::Vsftpd, [127, 0, 0, 1], ""));
    let source = room.dir("source");
    for dir in ["a/b", "c"] {
        fs::create_dir_all(source.join(dir)).expect("make directories");
        fs::write(source.join(dir).join("file"), b"x").expect("write a file");
    }
    let place = node.place("in");
    fs::create_dir_all(&place).expect("make a directory");
    crate::support::set_mode(&place, 0o777);
    let to = node.url(&place);
    let cp = |more: &[&str]| {
        let args = [source.display().to_string(), to.clone()];
        Haul::cp(["-r", "--patience=5s"]).args(more).args(args).run().sane().exits(0)
    };
    for again in [false, true] {
        let (dry, real) = (cp(&["-n"]), cp(&[]));
        for number in ["files", "dirs", "unchanged"] {
            let (dry_said, said) = (dry.summary().number(number), real.summary().number(number));
            assert_eq!(dry_said, said, "{number}, {again}: {}", dry.describe());
            // What nobody sees there changes nothing.
            assert!(!again || number != "dirs" || said == 0, "{said}: {}", real.describe());
        }
        assert!(
            dry.stderr.contains("not looked at: whether this user may write there"),
            "{}",
            dry.describe()
        );
    }
}

/// Goal: between two servers each entry below a directory that was not made is told by its whole path.
#[test]
fn what_lies_below_is_told_by_its_path() {
    let a = good().file("/d/sub/more/x", b"abc").start();
    let b = Steered::start([127, 0, 0, 3]).odd("MKD", "sub", ALWAYS, Odd::Says("550 no"));
    let room = Room::new();
    let list = room.at("failures");
    let options =
        [format!("--failures={}", list.display()), format!("--state={}", room.at("state").display())];
    let ended =
        Haul::cp(["-r", "--patience=2s"]).args(options).args([a.url("/d"), b.url("/in/")]).run().sane();
    let told = failures(&list);
    let dry =
        Haul::cp(["-r", "-n", "--patience=2s"]).args([a.url("/d"), b.url("/in/")]).run().sane().exits(0);
    assert!(dry.stderr.contains("not looked at: whether this user may write there"), "{}", dry.describe());
    let told: Vec<&str> = told.iter().filter_map(|line| line["path"].as_str()).collect();
    for path in ["d/sub", "d/sub/more", "d/sub/more/x"] {
        assert!(told.contains(&path), "{path} is not in {told:?}: {}", ended.describe());
    }
}

/// Goal: `-a` where an end is a server keeps what can be kept, and says that owners are not; another run
/// finds nothing to mend.
/// Method: from a server, to one, and between two.
#[test]
fn archive_says_that_owners_are_not_kept() {
    let room = Room::new();
    let (data, sink, state) = (room.dir("data"), room.dir("sink"), room.at("state"));
    room.file("data/f", "f");
    let (liar, taker) = (good().start(), Script::default().start());
    let (a, b) = (Steered::start([127, 0, 0, 2]).file("/d/x", b"abc"), Steered::start([127, 0, 0, 3]));
    let from = || Haul::cp(["-a", "--patience=2s"]).args([liar.url("/d")]).args([&sink]);
    let to = || Haul::cp(["-a", "--patience=2s"]).args([&data]).args([taker.url("/d/")]);
    let state = format!("--state={}", state.display());
    let between = || Haul::cp(["-a", "--patience=2s", &state]).args([a.url("/d/x"), b.url("/in/")]);
    let owners = |ended: &Outcome| ended.summary().0["not_kept"].to_string().contains("owners and groups");
    for run in [&from as &dyn Fn() -> Haul, &to, &between] {
        let ended =
            run().run().sane().exits(0).says("not kept: owners and groups, which servers do not keep (");
        assert!(owners(&ended), "{}", ended.describe());
        let again = run().run().sane().exits(0);
        assert!(!owners(&again), "nothing was copied: {}", again.describe());
        assert_eq!(again.summary().number("metadata_only"), 0, "{}", again.describe());
    }
    assert_eq!((read(sink.join("d/good")), b.content("/in/x")), (b"good".to_vec(), Some(b"abc".to_vec())));
    assert_eq!(taker.file("/d/data/f"), Some(b"f".to_vec()));
}

/// Goal: what a server refuses for good fails again, and the same command is not what is advised; what
/// somebody uses there may come another time.
/// Method: files that a server does not give, and does not take, in words of several servers.
#[test]
fn what_a_server_refuses_for_good_is_not_to_be_tried_again() {
    const REFUSALS: [(&str, &str, u64); 4] = [
        ("550 Failed to open file.", "553 Could not create file.", 1),
        ("550 Not enough privileges.", "550 Not enough privileges.", 1),
        ("550 no", "550 This login may not change anything here.", 1),
        ("550 It is being used by another process.", "550 It is being used by another process.", 0),
    ];
    for (given, taken, lasting) in REFUSALS {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        room.file("data/f", "f");
        let liar = Lies::default().odd("/d/f", b"f", 1, Manner::Refuse(given), ALWAYS).start();
        let taker = Script::default().takes("f", &[Takes::Refuse(taken); 30]).start();
        let runs = [
            Haul::cp(["-r", "--patience=2s"]).args([liar.url("/d/")]).args([&sink]),
            Haul::cp(["-r", "--patience=2s"]).args([&data]).args([taker.url("/d/")]),
        ];
        for run in runs {
            let ended = run.run().sane().exits(3);
            assert_eq!(ended.summary().number("lasting"), lasting, "{}", ended.describe());
            let again = ended.stderr.contains("run the same command again");
            assert_eq!(again, lasting == 0, "{}", ended.describe());
        }
    }
}

/// Goal: a list of failures of a run that ended as a whole says by its last line that not all is in it, and
/// why: of a server without room as of a full file system.
#[test]
fn lists_say_why_a_run_ended() {
    let room = Room::new();
    let (data, list) = (room.dir("data"), room.at("failures"));
    (0..20).for_each(|n| drop(room.file(&format!("data/f{n}"), "content")));
    let taker = Script::default().takes("f", &[Takes::Refuse("552 over quota"); 30]).start();
    let option = format!("--failures={}", list.display());
    let ended = Haul::cp(["-r", "--patience=2s", &option]).args([&data]).args([taker.url("/d/")]).run();
    let ended = ended.sane().exits(1).says("there is no room at the server");
    let told = failures(&list);
    let last = told.last().unwrap_or_else(|| panic!("it is empty: {}", ended.describe()));
    assert_eq!((&last["stage"], &last["whole"], &last["errno"]), (&"run".into(), &false.into(), &28.into()));
    assert!(last["text"].as_str().is_some_and(|text| text.contains("552 over quota")), "{last}");
    assert!(last["path"].is_null(), "{last}");
}

/// Goal: symbolic links are left out where that is wanted, counted and named, and are no failure: also those
/// of a server that tells only what they lead to in the end, or does not list those that lead nowhere.
/// Method: every real server, and this host.
#[test]
fn links_are_left_out_where_that_is_wanted() {
    let tree = |room: &Room| {
        let data = room.dir("data");
        for (path, content) in [("data/f", "f"), ("data/real/g", "g")] {
            fs::create_dir_all(room.at(path).parent().expect("it has one")).expect("make a directory");
            room.file(path, content);
        }
        for (name, target) in [("tofile", "f"), ("todir", "real"), ("real/nowhere", "gone")] {
            std::os::unix::fs::symlink(target, data.join(name)).expect("make a link");
        }
        data
    };
    let is_right = |sink: &Path, ended: &Outcome| {
        let links = ended.summary().0["not_kept"].to_string();
        assert!(links.contains("symbolic links and special files left out"), "{}", ended.describe());
        assert!(
            ended.stderr.contains("tofile") && ended.stderr.contains("(symbolic links)"),
            "{}",
            ended.describe()
        );
        assert_eq!((read(sink.join("f")), read(sink.join("real/g"))), (b"f".to_vec(), b"g".to_vec()));
        for name in ["tofile", "todir", "real/nowhere"] {
            assert!(sink.join(name).symlink_metadata().is_err(), "{name}: {}", ended.describe());
        }
    };
    let room = Room::new();
    let (data, sink) = (tree(&room), room.dir("sink"));
    let ended = Haul::cp(["-r", "--no-links"]).args([contents(&data)]).args([&sink]).run().sane().exits(0);
    is_right(&sink, &ended);
    beside(Kind::here(), |kind| {
        let (room, server) = (Room::new(), Ftpd::start(kind));
        let (data, sink) = (tree(&room), room.dir("sink"));
        let copy = |options: &[&str]| {
            Haul::cp(["-r"]).args(options).args([server.url(contents(&data))]).args([&sink]).run().sane()
        };
        if kind == Kind::Gridftp {
            let ended = copy(&[]).exits(3).says("--no-links leaves links out");
            assert_eq!(ended.summary().number("lasting"), ended.summary().number("failed"));
        }
        is_right(&sink, &copy(&["--no-links"]).exits(0));
    });
}

/// Goal: a name with a line's end, of a server that says it as it is, is told as what it may be; `-` beside a
/// server is no stream, and no file.
#[test]
fn pieces_of_names_and_streams_are_told() {
    let pieces = "-rw-r--r--   1 0        0               3 Nov 25  2019 a\r\nb\r\n";
    let room = Room::new();
    let sink = room.dir("sink");
    let liar = good().list(b"").lists("LIST -a", "/d", [ITSELF, GOOD, pieces].concat().as_bytes()).start();
    let ended = Haul::cp(["-r", "--patience=2s"]).args([liar.url("/d")]).args([&sink]).run().sane().exits(3);
    let ended = ended.says("it may be a piece of a name that holds a line's end");
    assert_eq!(read(sink.join("d/good")), b"good", "{}", ended.describe());
    for (from, to) in [(liar.url("/d/good"), "-".to_owned()), ("-".to_owned(), liar.url("/d/x"))] {
        let ended = Haul::cp([&from, &to]).within(&sink).run().sane().exits(2);
        assert!(ended.stderr.contains("`-` is no stream"), "{}", ended.describe());
    }
}

/// Goal: `--resume=trust` is spoken of where something is there that it would go on with, and not before.
/// Method: a stop of a download at once, and one behind what was durable.
#[test]
fn trust_is_spoken_of_where_something_is_there() {
    let big = vec![7; 24 << 20];
    for (at, has) in [(1000, false), (20 << 20, true)] {
        let (room, lies) = (Room::new(), Lies::default());
        let liar = lies.odd("/d/big", &big, big.len(), Manner::Stall(at), ALWAYS).start();
        let sink = room.at("copy");
        let mut run = Haul::cp(["--patience=60s", "-v"]).args([liar.url("/d/big")]).args([&sink]).start();
        assert!(run.until(|_| liar.sent() >= at), "{}", run.stderr());
        run.signal(rustix::process::Signal::INT);
        let ended = run.wait().sane().exits(130);
        assert_eq!(ended.stderr.contains("--resume=trust"), has, "{}", ended.describe());
    }
}
