//! Copies from real FTP servers: every byte, name and time of what they hold, whatever ends meanwhile.

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::process::Signal;

use crate::support::beside::beside;
use crate::support::compare::{BELOW, Opts, assert_no_debris, assert_same, debris, snapshot};
use crate::support::ftpd::{Ftpd, Kind, PASSWORD, Talk, USER, contents, escaped_word};
use crate::support::liar::{Lies, Manner};
use crate::support::run::{Haul, Outcome, Running};
use crate::support::sshd::Sshd;
use crate::support::{Room, procs, read, set_mode, tree};

const MIB: usize = 1 << 20;

/// Names that stumble over shells, listings, URLs and globs, and that any server can be asked for.
const NAMES: [&str; 26] = [
    " leading",
    "trailing ",
    "two  blanks",
    "-dash",
    "--help",
    "%41",
    "%2F..",
    "quote'\"`$HOME",
    "back\\slash",
    "*",
    "?",
    "[a]",
    "~",
    "~root",
    "a:b",
    "host:path",
    ".hidden",
    "#",
    "{a,b}",
    ";",
    "a;b=c; d",
    "name -> x",
    "&",
    "|",
    "total 12",
    "Nov 25 09:30 x",
];
/// Names that only some servers can be asked for.
const FURTHER_NAMES: [&str; 5] = ["...", "..a", "Zürich", "データ", "\u{85}"];

/// A time as servers tell it: whole seconds.
fn age(path: &Path, rng: &mut fastrand::Rng) {
    let since_1970 = Duration::from_secs(rng.u64(1_000_000_000..1_600_000_000));
    tree::set_mtime(path, SystemTime::UNIX_EPOCH + since_1970);
}

fn file(path: &Path, rng: &mut fastrand::Rng, len: usize) {
    fs::write(path, tree::bytes(rng, len)).expect("write a file");
    set_mode(path, 0o644);
    age(path, rng);
}

/// A file that was there long ago: of one that has just changed the content is asked for a second later.
fn old(room: &Room, name: &str, content: &str) {
    age(&room.file(name, content), &mut fastrand::Rng::with_seed(89));
}

fn dir(path: &Path) {
    fs::create_dir(path).expect("make a directory");
    set_mode(path, 0o755);
}

/// Some 300 files of up to 3 MiB, a file and a directory of each odd name, nested and empty directories.
fn furnish(root: &Path, seed: u64, kind: Kind) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut dirs: Vec<PathBuf> = ["odd", "empty", "plain", "deep"].map(|name| root.join(name)).into();
    dirs.iter().for_each(|path| dir(path));
    let mut names: Vec<OsString> = NAMES.map(OsString::from).into();
    names.push(OsString::from_vec(vec![b'n'; 255]));
    if kind.takes_every_name() {
        names.extend(FURTHER_NAMES.map(OsString::from));
        names.push(OsString::from_vec(b"M\xfcll".to_vec()));
        names.push(OsString::from_vec(vec![0xf2, 0xf3, b'x']));
        // Telnet's own byte: ProFTPD reads it twice for once, the others do not.
        names.push(OsString::from_vec(vec![0xff, 0xfe, b'x']));
        names.push(OsString::from_vec(b"x\xffy".to_vec()));
    }
    for (index, name) in names.iter().enumerate() {
        file(&root.join("odd").join(name), &mut rng, index * 7);
        let twin = root.join("plain").join(name);
        dir(&twin);
        if index % 3 > 0 {
            file(&twin.join(name), &mut rng, index);
        }
        dirs.push(twin);
    }
    let mut deep = root.join("deep");
    for level in 0..12 {
        deep = deep.join(format!("level {level}"));
        dir(&deep);
        file(&deep.join("f"), &mut rng, level * 1000);
        dirs.push(deep.clone());
    }
    for index in 0..190 {
        let len = rng.usize(0..20_000);
        file(&root.join("plain").join(format!("f{index:03}")), &mut rng, len);
    }
    for (index, len) in [0, 1, 65_535, 65_536, 65_537, MIB, MIB + 1, 3 * MIB].into_iter().enumerate() {
        file(&root.join(format!("size {index}")), &mut rng, len);
    }
    dirs.reverse();
    dirs.iter().for_each(|path| age(path, &mut rng));
}

/// What arrived is what the server has, as far as that server tells it.
#[track_caller]
fn assert_arrived(kind: Kind, data: &Path, copy: &Path) {
    assert_same(data, copy, Opts { metadata: kind.has_mlsd(), ..BELOW });
    assert_times_of_files(data, copy);
}

#[track_caller]
fn assert_times_of_files(data: &Path, copy: &Path) {
    for entry in fs::read_dir(data).expect("list a directory").flatten() {
        let (path, twin) = (entry.path(), copy.join(entry.file_name()));
        if path.is_dir() {
            assert_times_of_files(&path, &twin);
        } else {
            let [ours, theirs] =
                [&path, &twin].map(|path| fs::metadata(path).expect("look at a file").mtime());
            assert_eq!(ours, theirs, "{twin:?}: another second");
        }
    }
}

/// `haul cp --json -r OPTIONS URL SINK`.
fn cp(options: &[&str], url: &str, sink: &Path) -> Haul {
    Haul::cp(["-r"]).args(options).args([url]).args([sink])
}

/// With one file of this length in `data`, which is returned.
fn with_a_big_file(room: &Room, seed: u64, len: usize) -> PathBuf {
    let data = room.dir("data");
    file(&data.join("big"), &mut fastrand::Rng::with_seed(seed), len);
    data
}

/// Slow enough that what is done meanwhile comes before its end: 40 MiB take some five seconds, and not all
/// of them wait in memory.
const SLOW: [&str; 3] = ["--rate=8MiB/s", "--memory=16MiB", "--patience=3s"];

/// Starts it and waits until it has written something.
#[track_caller]
fn begun(haul: Haul) -> Running {
    let mut run = haul.start();
    let begun = run.until(|run| procs::written(&run.near()) > 6 << 20);
    assert!(begun, "it ended before it had begun\n{}", run.stderr());
    run
}

/// Either it is whole, or it is not there and the run said so.
#[track_caller]
fn assert_whole_or_refused(ended: &Outcome, copy: &Path, whole: &[u8]) {
    if copy.exists() {
        assert!(read(copy) == whole, "something else has its name\n{}", ended.describe());
    } else {
        assert!(ended.status.code().is_some_and(|code| code > 0), "no file, no error\n{}", ended.describe());
    }
}

/// Goal: the servers of the rig hold what is in a directory of this machine, serve and end.
/// Method: plain sockets; each kind.
#[test]
fn the_servers_of_the_rig_serve() {
    beside(Kind::here(), |kind| {
        let room = Room::new();
        let data = room.dir("data");
        let content = tree::bytes(&mut fastrand::Rng::with_seed(90), 100_000);
        room.file("data/a file", &content);
        let mut server = Ftpd::start(kind);
        let mut talk = server.talk();
        let path = data.join("a file").display().to_string();
        assert!(talk.fetch(format!("RETR {path}").as_bytes()) == content, "{kind:?}");
        assert!(talk.ask("REST 99990").starts_with("350"), "{kind:?}");
        assert!(talk.fetch(format!("RETR {path}").as_bytes()) == content[99_990..], "{kind:?}");
        assert_eq!(talk.ask(&format!("SIZE {path}")), "213 100000\r\n", "{kind:?}");
        assert!(talk.ask(&format!("CWD {}", data.display())).starts_with("250"), "{kind:?}");
        if kind.has_mlsd() {
            let listed = String::from_utf8_lossy(&talk.fetch(b"MLSD")).to_lowercase();
            assert!(listed.contains("size=100000;") && listed.contains("; a file\r\n"), "{kind:?}: {listed}");
        } else {
            let refused = talk.ask("MLSD");
            assert!(refused.starts_with('5'), "{kind:?}: {refused}");
        }
        let listed = String::from_utf8_lossy(&talk.fetch(b"LIST")).into_owned();
        assert!(listed.contains(" 100000 ") && listed.contains(" a file\r\n"), "{kind:?}: {listed}");
        let session = server.sessions();
        assert!(!session.is_empty(), "{kind:?} serves in its first process");
        server.kill();
        let ends =
            || session.iter().all(|pid| !Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists());
        assert!(procs::wait_until(Duration::from_secs(10), ends), "{kind:?} lives on");
        server.start_again();
        assert!(server.talk().fetch(format!("RETR {path}").as_bytes()) == content, "{kind:?}");
    });
}

/// Goal: the lying server comes as far as its lie.
/// Method: plain sockets.
#[test]
fn the_lying_server_of_the_rig_lies() {
    let whole = b"0123456789";
    let liar = Lies::default()
        .file("/d/good", whole)
        .odd("/d/short", whole, 10, Manner::Short(4), 1)
        .odd("/d/cut", whole, 10, Manner::Cut(3, Some("426 cut")), 1)
        .lines("/d", b"type=file;size=1; ..\r\n")
        .start();
    let mut talk = Talk::to(liar.port);
    assert!(talk.ask("USER x").starts_with("331") && talk.ask("PASS x").starts_with("230"));
    let listed = String::from_utf8_lossy(&talk.fetch(b"MLSD /d")).into_owned();
    assert!(listed.contains("size=10;") && listed.contains("; good\r\n") && listed.contains("; ..\r\n"));
    assert_eq!(talk.fetch(b"RETR /d/short"), whole[..4]);
    assert_eq!(talk.fetch(b"RETR /d/short"), whole);
    assert!(talk.ask("CWD /d").starts_with("250") && talk.ask("REST 8").starts_with("350"));
    assert_eq!(talk.fetch(b"RETR good"), whole[8..]);
    let cut = talk.data();
    talk.say(b"RETR cut");
    assert!(talk.reply().starts_with("150") && talk.reply().starts_with("426"));
    drop(cut);
    assert!(talk.ask("RETR none").starts_with("550"));
    assert!(liar.heard().contains(&"RETR none".to_owned()));
}

/// Goal: a tree arrives with every byte, name and time that the server tells; the same command again copies
/// nothing.
/// Method: some 300 files with odd names, from each kind of server, twice.
#[test]
fn a_tree_arrives_and_a_second_run_copies_nothing() {
    beside(Kind::here(), |kind| {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        furnish(&data, 91, kind);
        let (files, bytes) = tree::totals(&data);
        let server = Ftpd::start(kind);
        let url = server.url(contents(&data));
        let first = cp(&[], &url, &sink).run().sane().exits(0);
        assert_arrived(kind, &data, &sink);
        let summary = first.summary();
        assert_eq!(summary.text("status"), "complete", "{kind:?}");
        assert_eq!((summary.number("files"), summary.number("bytes")), (files, bytes), "{kind:?}");
        let second = cp(&[], &url, &sink).run().sane().exits(0).summary();
        assert_eq!(second.number("bytes_sent"), 0, "{kind:?}: {second:?}");
        assert_eq!(second.number("unchanged"), files, "{kind:?}: {second:?}");
        assert_arrived(kind, &data, &sink);
    });
}

/// Goal: what changed at the server is copied by the next run, and that alone.
/// Method: one file grows, one keeps its length and gets another time, one is new.
#[test]
fn a_second_run_copies_what_changed() {
    beside(Kind::here(), |kind| {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        let mut rng = fastrand::Rng::with_seed(92);
        for name in ["stays", "grows", "turns"] {
            file(&data.join(name), &mut rng, 5000);
        }
        let server = Ftpd::start(kind);
        let url = server.url(contents(&data));
        cp(&[], &url, &sink).run().sane().exits(0);
        for (name, len) in [("grows", 6000), ("turns", 5000), ("new", 10)] {
            file(&data.join(name), &mut rng, len);
        }
        let summary = cp(&[], &url, &sink).run().sane().exits(0).summary();
        assert_eq!((summary.number("files"), summary.number("unchanged")), (3, 1), "{kind:?}: {summary:?}");
        assert_same(&data, &sink, Opts { metadata: false, ..BELOW });
    });
}

/// Goal: a file of many objects arrives, under the name that was given, or in the directory.
#[test]
fn a_large_file_arrives_under_its_name() {
    beside(Kind::here(), |kind| {
        let room = Room::new();
        let data = with_a_big_file(&room, 93, 40 * MIB + 12_345);
        let server = Ftpd::start(kind);
        let (url, sink) = (server.url(data.join("big")), room.dir("sink"));
        Haul::cp([&url]).args([room.at("named")]).run().sane().exits(0);
        assert!(read(room.at("named")) == read(data.join("big")), "{kind:?}");
        let summary = Haul::cp([&url]).args([&sink]).run().sane().exits(0).summary();
        assert_eq!(summary.number("files"), 1, "{kind:?}");
        assert!(read(sink.join("big")) == read(data.join("big")), "{kind:?}");
        assert_times_of_files(&data, &sink);
        assert_no_debris(&sink);
        let slow = Haul::cp(["--rate=20MiB/s"]).args([&url]).args([room.at("slow")]).run().sane().exits(0);
        assert_eq!(slow.summary().text("limited_by"), "rate_limit", "{kind:?}: {}", slow.describe());
    });
}

/// Goal: a slash at the end means the contents, none the directory itself; several sources of one server go
/// side by side; an empty directory arrives; `/~/` begins where the login does.
#[test]
fn urls_name_what_paths_name() {
    beside(Kind::here(), |kind| {
        let room = Room::new();
        let data = room.dir("da ta");
        room.dir("da ta/empty");
        old(&room, "da ta/f%41", "f");
        old(&room, "one", "one");
        let server = Ftpd::start(kind);
        let below = |name: &str| server.url(room.at(name));
        cp(&[], &below("da ta"), &room.at("a")).run().sane().exits(0);
        assert_same(&data, &room.at("a/da ta"), Opts { metadata: false, ..BELOW });
        cp(&[], &server.url(contents(&data)), &room.at("b")).run().sane().exits(0);
        assert_same(&data, &room.at("b"), Opts { metadata: false, ..BELOW });
        let both = [below("one"), below("da ta")];
        Haul::cp(["-r"]).args(&both).args([room.dir("c")]).run().sane().exits(0);
        assert_eq!(read(room.at("c/one")), b"one", "{kind:?}");
        assert_same(&data, &room.at("c/da ta"), Opts { metadata: false, ..BELOW });
        let empty = cp(&[], &below("da ta/empty/"), &room.at("d")).run().sane().exits(0);
        assert!(room.at("d").read_dir().is_ok_and(|mut all| all.next().is_none()), "{}", empty.describe());
        cp(&[], &below("da ta/f%41"), &room.at("e")).run().sane().exits(0);
        assert_eq!(read(room.at("e")), b"f", "{kind:?}");
        let Some(home) = server.home() else { return };
        fs::write(home.join("at home"), "home").expect("write a file");
        cp(&[], &server.url("/~/at home"), &room.at("h")).run().sane().exits(0);
        assert_eq!(read(room.at("h")), b"home", "{kind:?}");
    });
}

/// Goal: a dry run makes nothing, neither in a destination that is there nor one that is not.
#[test]
fn a_dry_run_makes_nothing() {
    beside(Kind::here(), |kind| {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        tree::plain(&data, 94, 10, 100_000);
        room.file("sink/old", "old");
        let server = Ftpd::start(kind);
        let before = snapshot(&sink);
        let dry = cp(&["-n"], &server.url(&data), &sink).run().sane().exits(0);
        assert_eq!(snapshot(&sink), before, "{kind:?}\n{}", dry.describe());
        let summary = dry.summary();
        assert_eq!((summary.number("files"), summary.number("bytes_sent")), (11, 0), "{kind:?}");
        cp(&["-n"], &server.url(&data), &room.at("absent")).run().sane();
        assert!(!room.at("absent").exists(), "{kind:?}: a dry run made the destination");
    });
}

/// Goal: a directory without `-r` is exit 2 and makes nothing.
#[test]
fn a_directory_needs_the_option() {
    for kind in Kind::here() {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        room.file("data/f", "f");
        let server = Ftpd::start(kind);
        for url in [server.url(&data), server.url(contents(&data))] {
            Haul::cp([url]).args([&sink]).run().sane().exits(2).says("-r");
        }
        assert!(sink.read_dir().expect("list the sink").next().is_none(), "{kind:?}");
    }
}

/// Goal: a haul that is killed leaves no torn file under a final name, and the same command completes the
/// copy.
/// Method: SIGKILL in the middle of a large file, twice.
#[test]
fn a_killed_copy_is_completed() {
    beside(Kind::here(), |kind| {
        let room = Room::new();
        let (data, sink) = (with_a_big_file(&room, 95, 40 * MIB), room.dir("sink"));
        for index in 0..20 {
            room.file(&format!("data/small {index}"), "small");
        }
        let server = Ftpd::start(kind);
        let url = server.url(contents(&data));
        for _ in 0..2 {
            let run = begun(cp(&SLOW, &url, &sink));
            run.signal(Signal::KILL);
            let ended = run.wait();
            assert!(ended.was_killed(), "{}", ended.describe());
            assert!(!sink.join("big").exists(), "{kind:?}: half a file has its name");
        }
        cp(&[], &url, &sink).run().sane().exits(0);
        assert_same(&data, &sink, Opts { metadata: false, ..BELOW });
    });
}

/// Goal: a copy that is interrupted says what the next run finds: finished files, and nothing of unfinished
/// ones; nor is that one called resumed.
/// Method: SIGINT in the middle of a large file, then the same command.
#[test]
fn an_interrupted_copy_says_what_is_kept() {
    need!("proftpd");
    let room = Room::new();
    let (data, sink) = (with_a_big_file(&room, 101, 40 * MIB), room.dir("sink"));
    let server = Ftpd::start(Kind::Proftpd);
    let url = server.url(contents(&data));
    let run = begun(cp(&SLOW, &url, &sink));
    run.signal(Signal::INT);
    let ended =
        run.wait().sane().exits(130).says("nothing of unfinished files, unless it has --resume=trust");
    assert!(!ended.stderr.contains("to resume"), "{}", ended.describe());
    let summary = ended.summary();
    assert!(summary.number("bytes_sent") > 0, "{}", ended.describe());
    assert_eq!((summary.number("kept"), summary.number("files")), (0, 0), "{}", ended.describe());
    assert_eq!((&summary.0["resumes"], &summary.0["resumed"]), (&false.into(), &false.into()));
    assert!(!debris(&sink).is_empty(), "there is something that could be taken for kept");
    let again = cp(&[], &url, &sink).run().sane().exits(0);
    let summary = again.summary();
    assert!(summary.number("bytes_sent") >= (40 * MIB) as u64, "{}", again.describe());
    assert_eq!(summary.0["resumed"], false, "{}", again.describe());
    assert!(
        !again.stderr.contains("(resumed)") && !again.stderr.contains("earlier run"),
        "{}",
        again.describe()
    );
}

/// Goal: a file that is written anew at the server while it is copied arrives as it is afterwards, or as it
/// was with the time that it had, or not at all with an error: never a mix of both.
/// Method: in place, in the same length, in the middle of the copy; the same command again, until it is so.
#[test]
fn a_file_that_changes_is_never_mixed() {
    beside(Kind::here(), |kind| {
        let room = Room::new();
        let (data, sink) = (with_a_big_file(&room, 96, 40 * MIB), room.dir("sink"));
        let server = Ftpd::start(kind);
        let (old, time) =
            (read(data.join("big")), fs::metadata(data.join("big")).expect("look at it").mtime());
        let url = server.url(contents(&data));
        let run = begun(cp(&SLOW, &url, &sink));
        let new = tree::bytes(&mut fastrand::Rng::with_seed(97), 40 * MIB);
        let mut big = fs::File::options().write(true).open(data.join("big")).expect("open the file");
        big.write_all(&new).expect("write it anew");
        drop(big);
        let (ended, copy) = (run.wait().sane(), sink.join("big"));
        let was = copy.exists() && read(&copy) == old;
        if was {
            let had = fs::metadata(&copy).expect("look at it").mtime();
            assert_eq!(had, time, "{kind:?}: the old content has the new time\n{}", ended.describe());
        } else {
            assert_whole_or_refused(&ended, &copy, &new);
        }
        cp(&[], &url, &sink).run().sane().exits(0);
        assert!(read(&copy) == new, "{kind:?}: what it was before stays");
    });
}

/// Goal: a path that is not there ends in an error that names it, and the server.
#[test]
fn a_missing_path_is_named() {
    beside(Kind::here(), |kind| {
        let room = Room::new();
        let (good, sink) = (room.file("good", "good"), room.dir("sink"));
        let server = Ftpd::start(kind);
        let missing = server.url(room.at("absent-one"));
        for url in [missing.clone(), format!("{missing}/")] {
            let ended = cp(&[], &url, &sink).run().sane().exits(1).says("absent-one");
            assert_unsaid(&ended, &[PASSWORD, &escaped_word(PASSWORD)]);
            let place = format!("127.0.0.1:{}", server.port);
            assert!(ended.stderr.contains(&place), "no server in it: {}", ended.describe());
        }
        let both = [server.url(good), missing];
        Haul::cp(["-r"]).args(both).args([&sink]).run().sane().exits(1).says("absent-one");
        assert!(!sink.join("good").exists(), "{kind:?}: data moved before the sources were checked");
        assert_no_debris(&sink);
    });
}

/// Goal: what takes a path of a file system refuses a server's, by name and without its password, and does
/// nothing.
#[test]
fn what_takes_no_server_says_so() {
    let room = Room::new();
    let (file, url) = (room.file("f", "f"), "ftp://alice:geheim@127.0.0.1:1/x");
    let (file, sink) = (file.to_str().expect("UTF-8"), room.at("sink"));
    let sink = sink.to_str().expect("UTF-8");
    for (words, taker) in [
        (&["probe", "storage", url][..], "haul probe storage"),
        (&["probe", "path", url, sink], "a probe measures paths"),
        (&["probe", "network", url], "more than a host"),
        (&["layout", url], "haul layout"),
        (&["clean", url], "haul clean"),
        (&["cp", "--manifest", url, file, sink], "--manifest"),
        (&["cp", "--state", url, file, sink], "--state"),
        (&["cp", "ftp:/alice:geheim@127.0.0.1:1/x", sink], "write ftp://alice@127.0.0.1:1/x"),
    ] {
        let ended = Haul::new(words).within(&room.dir("")).run().exits(2).says(taker);
        assert!(ended.stderr.contains("alice@127.0.0.1:1/x"), "which one: {}", ended.describe());
        assert_unsaid(&ended, &["geheim"]);
    }
    let all = fs::read_dir(room.at("")).expect("list the room").flatten();
    assert_eq!(all.map(|entry| entry.file_name()).collect::<Vec<_>>(), ["f"]);
}

/// Goal: a wrong password is a clear error that does not tell it.
#[test]
fn a_wrong_password_is_an_error_that_does_not_tell_it() {
    need!("proftpd");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    room.file("data/f", "f");
    let server = Ftpd::start(Kind::Proftpd);
    let (secret, failures) = ("wr0ng@s3cret", room.at("failures"));
    let option = format!("--failures={}", failures.display());
    let who = format!("{USER}:{}@", escaped_word(secret));
    let secrets = [secret, &escaped_word(secret)];
    for options in [&["-vv", &option][..], &["-n"], &["-q"]] {
        let ended = cp(options, &server.url_as(&who, contents(&data)), &sink).run().sane().exits(1);
        assert_unsaid(&ended, &secrets);
        let said = ended.stderr.to_lowercase();
        let clear = ["password", "login", "log in", "530"].iter().any(|word| said.contains(word));
        assert!(clear, "not clear: {}", ended.describe());
    }
    let listed = String::from_utf8_lossy(&fs::read(failures).unwrap_or_default()).into_owned();
    assert!(secrets.iter().all(|secret| !listed.contains(secret)), "{listed}");
    let nobody = cp(&[], &server.url_as("", contents(&data)), &sink).run().sane();
    assert_eq!(nobody.status.code(), Some(1), "anonymous is not known there: {}", nobody.describe());
    assert!(sink.read_dir().expect("list the sink").next().is_none());
}

/// None of these stands in anything that was said.
#[track_caller]
fn assert_unsaid(ended: &Outcome, secrets: &[&str]) {
    let stdout = String::from_utf8_lossy(&ended.stdout);
    for secret in secrets {
        assert!(!stdout.contains(secret) && !ended.stderr.contains(secret), "{}", ended.describe());
    }
}

/// Goal: a password stands nowhere but in the command that the user typed: not in what is said, however
/// loudly, nor in processes that haul starts, nor in what it keeps on disk.
/// Method: a slow, verbose copy is looked at from outside, and killed; then once more to its end.
#[test]
fn a_password_stands_nowhere() {
    need!("proftpd");
    let room = Room::new();
    let (data, sink, own) = (with_a_big_file(&room, 98, 24 * MIB), room.dir("sink"), room.dir("own"));
    let server = Ftpd::start(Kind::Proftpd);
    let secrets = [PASSWORD.to_owned(), escaped_word(PASSWORD)];
    let secrets = secrets.each_ref().map(String::as_str);
    let copy =
        |options: &[&str]| cp(options, &server.url(contents(&data)), &sink).env("XDG_RUNTIME_DIR", &own);
    let run = begun(copy(&[&SLOW[..], &["-vv"]].concat()));
    let processes = run.near();
    for (index, pid) in processes.iter().enumerate() {
        // The first is what was typed.
        for name in ["environ", "cmdline"].iter().take(if index == 0 { 1 } else { 2 }) {
            let path = format!("/proc/{}/{name}", pid.as_raw_nonzero());
            assert_holds_none(Path::new(&path), &secrets);
        }
    }
    run.signal(Signal::KILL);
    assert_unsaid(&run.wait(), &secrets);
    assert!(!debris(&sink).is_empty(), "a killed copy leaves what it has");
    for path in [&sink, &own] {
        assert_none_below(path, &secrets);
    }
    assert_unsaid(&copy(&["-vv"]).run().sane().exits(0), &secrets);
}

#[track_caller]
fn assert_none_below(path: &Path, secrets: &[&str]) {
    let data = fs::symlink_metadata(path).expect("look at a file");
    if data.is_dir() {
        let all = fs::read_dir(path).expect("list a directory").flatten();
        all.for_each(|entry| assert_none_below(&entry.path(), secrets));
    } else if data.is_file() {
        assert_holds_none(path, secrets);
    }
}

#[track_caller]
fn assert_holds_none(path: &Path, secrets: &[&str]) {
    let content = fs::read(path).unwrap_or_default();
    for secret in secrets {
        let found = content.windows(secret.len()).any(|part| part == secret.as_bytes());
        assert!(!found, "{} tells the password", path.display());
    }
}

/// Goal: a server that dies ends the copy with an error and without half a file; when it is back, the same
/// command completes the copy.
#[test]
fn a_server_that_dies_leaves_no_half_file() {
    beside(Kind::here(), |kind| {
        let room = Room::new();
        let (data, sink) = (with_a_big_file(&room, 99, 40 * MIB), room.dir("sink"));
        let mut server = Ftpd::start(kind);
        let url = server.url(contents(&data));
        let run = begun(cp(&SLOW, &url, &sink));
        server.kill();
        let ended = run.wait().sane();
        assert!(matches!(ended.status.code(), Some(1 | 3)), "{kind:?}: {}", ended.describe());
        assert!(!sink.join("big").exists(), "{kind:?}: half a file has its name");
        server.start_again();
        cp(&[], &url, &sink).run().sane().exits(0);
        assert_same(&data, &sink, Opts { metadata: false, ..BELOW });
    });
}

/// Goal: a connection that dies is made good, or ends the copy with an error: nothing torn either way.
/// Method: the processes that serve are killed, once; the server itself goes on.
#[test]
fn sessions_that_die_leave_no_half_file() {
    beside(Kind::here(), |kind| {
        let room = Room::new();
        let (data, sink) = (with_a_big_file(&room, 100, 40 * MIB), room.dir("sink"));
        let server = Ftpd::start(kind);
        let url = server.url(contents(&data));
        let run = begun(cp(&SLOW, &url, &sink));
        let sessions = server.sessions();
        assert!(!sessions.is_empty(), "{kind:?}: nobody serves");
        procs::signal_all(&sessions, Signal::KILL);
        let ended = run.wait().sane();
        assert_whole_or_refused(&ended, &sink.join("big"), &read(data.join("big")));
        cp(&[], &url, &sink).run().sane().exits(0);
        assert_same(&data, &sink, Opts { metadata: false, ..BELOW });
    });
}

/// Goal: a directory that a server shows but cannot be asked for ends with an error; its parent is not taken
/// for it, again and again.
/// Method: the GridFTP server drops what is not ASCII from a path, so that it shows the parent's contents for
/// such a directory.
#[test]
fn a_directory_that_cannot_be_asked_for_is_an_error() {
    need!("gridftp");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    room.file("data/f", "f");
    room.dir("data/データ");
    room.file("data/データ/inside", "inside");
    let server = Ftpd::start(Kind::Gridftp);
    let ended = cp(&[], &server.url(contents(&data)), &sink).run().sane();
    assert_ne!(ended.status.code(), Some(0), "{}", ended.describe());
    assert!(!sink.join("データ/f").exists(), "the parent was taken for it: {}", ended.describe());
}

/// Goal: a login that a server refuses and nobody typed says where it came from; one that was typed says
/// nothing of that.
#[test]
fn a_refused_login_says_where_it_came_from() {
    need!("proftpd");
    let (room, server) = (Room::new(), Ftpd::start(Kind::Proftpd));
    let data = with_a_big_file(&room, 3, 100);
    let netrc = room.file("logins", "machine 127.0.0.1 login somebody password geheim\n");
    crate::support::set_mode(&netrc, 0o600);
    for (who, is_said) in [("", true), ("somebody:geheim@", false)] {
        let url = server.url_as(who, &data);
        let ended = cp(&[], &url, &room.at("sink")).env("NETRC", &netrc).run().sane().exits(1).says(" 530 ");
        let says = ended.stderr.contains(&format!("the login came from {}", netrc.display()));
        assert_eq!(says, is_said, "{}", ended.describe());
        assert!(!ended.stderr.contains("geheim"), "{}", ended.describe());
    }
}

/// Goal: names that a server spoils fail with the reason, in copies from it and to it, all else is copied,
/// and nobody is told to try them again. Method: the GridFTP server drops what is not ASCII from a path, but
/// over the security of the grid.
#[test]
fn names_that_a_server_spoils_are_not_tried_again() {
    need!("gridftp");
    let room = Room::new();
    let (data, sink, back) = (room.dir("data"), room.dir("sink"), room.dir("back"));
    room.file("data/plain", "f");
    room.file("data/Größe", "g");
    room.dir("data/データ");
    room.file("data/データ/inside", "inside");
    let server = Ftpd::start(Kind::Gridftp);
    for (from, to) in [
        (server.url(contents(&data)), back.display().to_string()),
        (contents(&data).into_string().expect("UTF-8"), server.url(&sink)),
    ] {
        let ended = Haul::cp(["-r", &from, &to]).run().sane().exits(3);
        let ended = ended.says("drops bytes that are not ASCII").says("gsiftp:// keeps them");
        let ended = ended.says("they will fail again until what is said above is mended");
        assert!(!ended.stderr.contains("run the same command again"), "{}", ended.describe());
    }
    for there in [&sink, &back] {
        let names: Vec<_> = fs::read_dir(there).expect("list it").flatten().map(|e| e.file_name()).collect();
        assert_eq!(names, ["plain"]);
    }
}

/// Goal: a link at the server becomes a link, or what it leads to, or is told; it is never lost in silence,
/// and one that leads up is not followed for ever.
#[test]
fn links_at_the_server_are_not_lost_in_silence() {
    beside(Kind::here(), |kind| {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        room.file("data/file", "file");
        for (name, target) in [("to-file", "file"), ("to-above", ".."), ("to-nothing", "nothing")] {
            std::os::unix::fs::symlink(target, data.join(name)).expect("make a link");
        }
        let server = Ftpd::start(kind);
        // ProFTPD does not show in MLSD what leads to nothing.
        let mut talk = server.talk();
        assert!(talk.ask(&format!("CWD {}", data.display())).starts_with("250"), "{kind:?}");
        let listed = talk.fetch(if kind.has_mlsd() { b"MLSD" } else { b"LIST" });
        let listed = String::from_utf8_lossy(&listed).into_owned();
        let ended = cp(&["-vv"], &server.url(contents(&data)), &sink).run().sane();
        assert_eq!(read(sink.join("file")), b"file", "{kind:?}");
        let said = ended.stderr.clone() + &String::from_utf8_lossy(&ended.stdout);
        for name in ["to-file", "to-above", "to-nothing"] {
            let there = fs::symlink_metadata(sink.join(name)).is_ok();
            assert!(
                there || said.contains(name) || !listed.contains(name),
                "{kind:?}: {name} is lost: {}",
                ended.describe()
            );
        }
        let is_link = fs::symlink_metadata(sink.join("to-above")).is_ok_and(|found| found.is_symlink());
        let followed = !is_link && sink.join("to-above/data/to-above/data").exists();
        assert!(!followed, "{kind:?}: {}", ended.describe());
    });
}

/// Goal: a link that is named as a source becomes a link, as one of this machine does, whatever it leads to;
/// with a slash behind it, it is what it leads to.
/// Method: links to a file, to a directory and to nothing, names that listings take for something else, from
/// each kind of server. The GridFTP server tells what a link leads to in the end and not what is written in
/// it, which fails, and nothing of one that leads to nothing.
#[test]
fn named_links_are_links() {
    beside(Kind::here(), |kind| {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        old(&room, "data/file", "file");
        room.dir("data/dir");
        old(&room, "data/dir/inside", "inside");
        let links = [
            ("to-file", "file"),
            ("to-dir", "dir"),
            ("to nothing", "nothing"),
            ("-a [b]*", "file"),
            ("a;b", "dir"),
        ];
        for (name, target) in links {
            std::os::unix::fs::symlink(target, data.join(name)).expect("make a link");
        }
        let server = Ftpd::start(kind);
        for (name, target) in links {
            let ended = Haul::cp([server.url(data.join(name))]).args([&sink]).run().sane();
            let copy = sink.join(name);
            if kind == Kind::Gridftp && target == "nothing" {
                ended.exits(1).says("to nothing");
                continue;
            }
            if kind == Kind::Gridftp {
                // What is written in it is not told.
                ended.exits(3).says("what it leads to in the end");
                assert!(fs::symlink_metadata(&copy).is_err(), "{name}");
                continue;
            }
            let ended = ended.exits(0);
            let leads =
                fs::read_link(&copy).unwrap_or_else(|_| panic!("{kind:?}: {name}: {}", ended.describe()));
            assert!(leads == Path::new(target), "{kind:?}: {name} leads to {leads:?}");
            assert_eq!(ended.summary().number("symlinks"), 1, "{kind:?}: {name}: {}", ended.describe());
        }
        // What is none stays what it is.
        Haul::cp([server.url(data.join("file"))]).args([&sink]).run().sane().exits(0);
        assert!(fs::symlink_metadata(sink.join("file")).is_ok_and(|found| found.is_file()), "{kind:?}");
        let inside = server.url(contents(&data.join("to-dir")));
        cp(&[], &inside, &room.at("followed")).run().sane().exits(0);
        assert_eq!(read(room.at("followed/inside")), b"inside", "{kind:?}");
        assert!(!room.at("followed").is_symlink(), "{kind:?}");
        let ended = cp(&[], &server.url(contents(&data.join("to-file"))), &room.at("none")).run().sane();
        assert_ne!(ended.status.code(), Some(0), "{kind:?}: a file is no directory: {}", ended.describe());
    });
}

/// Goal: the haul of another host reads from a server that only it may reach, and what comes is taken: a
/// directory by its name, or its contents, as the text of the command says.
/// Method: every byte of both; the password of the word is shown nowhere.
#[test]
fn another_host_reads_from_a_server() {
    need!("sshd", "proftpd");
    let (room, sshd, ftpd) = (Room::new(), Sshd::start(), Ftpd::start(Kind::Proftpd));
    let (data, mut rng) = (room.dir("data"), fastrand::Rng::with_seed(47));
    for n in 0..20 {
        let path = data.join(format!("f{n}"));
        file(&path, &mut rng, if n == 0 { 3 * MIB } else { n * 999 });
    }
    let (named, whole) = (room.dir("named"), room.dir("whole"));
    for (source, sink) in [(data.clone().into_os_string(), &named), (contents(&data), &whole)] {
        let word = sshd.path(Path::new(&ftpd.url(source)));
        let ended = Haul::cp(["-r".into(), word, sink.clone().into()]).by(&sshd).run().sane().exits(0);
        assert!(!ended.describe().contains(PASSWORD), "{}", ended.describe());
    }
    assert_same(&data, &named.join("data"), BELOW);
    assert_same(&data, &whole, BELOW);
}

/// Goal: of a source that a server does not have it is said what its words leave open, and that `*` is no
/// pattern.
#[test]
fn what_is_not_there_is_said() {
    beside(Kind::these(&[Kind::Proftpd, Kind::Vsftpd]), |kind| {
        let (room, server) = (Room::new(), Ftpd::start(kind));
        room.file("here", "x");
        let missing = |name: &str| {
            let ended = cp(&[], &server.url(room.at(name)), &room.at("sink")).run().sane().exits(1);
            ended.says("nothing was copied")
        };
        missing("h*").says("no patterns");
        missing("missing").says("it may not be there, or this user may not see it");
    });
}
