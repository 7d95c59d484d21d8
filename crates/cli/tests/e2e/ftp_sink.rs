//! Copies to real FTP servers: every byte, name and time that they can hold, and nothing else beside them.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::support::beside::beside;
use crate::support::compare::{BELOW, Opts, assert_no_debris, assert_same, debris};
use crate::support::ftpd::{Ftpd, Kind, certificate};
use crate::support::mount::Tmpfs;
use crate::support::node::{Node, Software};
use crate::support::run::{Haul, Outcome};
use crate::support::sshd::Sshd;
use crate::support::taker::{Script, Taker, Takes};
use crate::support::{Room, procs, read, set_mode, tree};

const MIB: usize = 1 << 20;

/// A time as servers tell it: whole seconds.
fn age(path: &Path, secs: u64) {
    tree::set_mtime(path, SystemTime::UNIX_EPOCH + Duration::from_secs(secs));
}

fn file(path: &Path, rng: &mut fastrand::Rng, len: usize) {
    fs::write(path, tree::bytes(rng, len)).expect("write a file");
    set_mode(path, 0o644);
    age(path, rng.u64(1_000_000_000..1_600_000_000));
}

fn dir(path: &Path) {
    fs::create_dir(path).expect("make a directory");
    set_mode(path, 0o755);
}

/// Small and large files, odd names, nested and empty directories.
fn furnish(data: &Path, seed: u64, kind: Kind) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut dirs: Vec<PathBuf> = ["odd", "empty", "plain"].map(|name| data.join(name)).into();
    dirs.iter().for_each(|path| dir(path));
    let mut deep = data.join("plain");
    for level in 0..6 {
        deep = deep.join(format!("level {level}"));
        dir(&deep);
        file(&deep.join("f"), &mut rng, level * 1000);
        dirs.push(deep.clone());
    }
    let mut names =
        vec![" leading", "trailing ", "-dash", "%41", "quote'\"`$HOME", "*", "~", "a:b", "#", "x -> y"];
    if kind.takes_every_name() {
        names.extend(["...", "..a", "Zürich", "データ"]);
    }
    for (index, name) in names.iter().enumerate() {
        file(&data.join("odd").join(name), &mut rng, index * 7);
    }
    for index in 0..150 {
        let len = rng.usize(0..20_000);
        file(&data.join("plain").join(format!("f{index:03}")), &mut rng, len);
    }
    let sizes = [0, 1, 262_143, 262_145, MIB, 4 * MIB, 4 * MIB + 1, 9 * MIB, 13 * MIB + 7];
    for (index, len) in sizes.into_iter().enumerate() {
        file(&data.join(format!("size {index}")), &mut rng, len);
    }
    set_mode(&data.join("size 1"), 0o600);
    dirs.reverse();
    dirs.iter().for_each(|path| age(path, rng.u64(1_000_000_000..1_600_000_000)));
}

/// `haul cp --json -r OPTIONS SOURCE URL`.
fn cp(options: &[&str], source: impl AsRef<std::ffi::OsStr>, url: &str) -> Haul {
    Haul::cp(["-r"]).args(options).args([source]).args([url])
}

/// Goal: a tree comes to lie at a server, whole; a second run finds all of it there and sends nothing.
/// Method: each kind of server; compared by other code.
#[test]
fn trees_go_to_servers() {
    beside(Kind::here(), |kind| {
        let (room, ftpd) = (Room::new(), Ftpd::start(kind));
        let data = room.dir("data");
        furnish(&data, 7, kind);
        let sink = room.dir("sink");
        let url = ftpd.url(&sink);
        let ended = cp(&["-v"], crate::support::ftpd::contents(&data), &url).run().sane().exits(0);
        assert_same(&data, &sink, Opts { metadata: kind.has_mlsd(), ..BELOW });
        assert_no_debris(&sink);
        ended.says("server");
        let again = cp(&[], crate::support::ftpd::contents(&data), &url).run().sane().exits(0);
        assert_eq!(again.summary().number("bytes_sent"), 0, "{kind:?}: {}", again.describe());
    });
}

/// `haul cp --json -r --patience=2s OPTIONS SOURCE URL`.
fn to_taker(options: &[&str], source: impl AsRef<std::ffi::OsStr>, taker: &Taker) -> Haul {
    let patience: &[&str] =
        if options.iter().any(|option| option.starts_with("--patience")) { &[] } else { &["--patience=2s"] };
    Haul::cp(["-r"]).args(patience).args(options).args([source]).args([taker.url("/d/")])
}

/// A directory with a small file `small` and one of several objects, `large`.
fn two_files(room: &Room) -> (PathBuf, Vec<u8>) {
    let data = room.dir("data");
    let mut rng = fastrand::Rng::with_seed(77);
    file(&data.join("large"), &mut rng, 13 * MIB);
    file(&data.join("small"), &mut rng, 1000);
    let large = read(data.join("large"));
    (data, large)
}

/// Nothing has a final name but what is whole, and nothing of ours stays.
#[track_caller]
fn assert_whole_or_none(taker: &Taker, data: &Path, ended: &Outcome) {
    for path in taker.paths() {
        let name = path.rsplit('/').next().expect("a name");
        let whole = fs::read(data.join(name)).ok();
        assert!(!name.contains("haul~"), "{path} stays\n{}", ended.describe());
        assert!(taker.file(&path) == whole, "{path} is not what was sent\n{}", ended.describe());
    }
}

/// Goal: a server that breaks off, hangs up or stalls once is sent the file again, and has it whole; nothing
/// of ours stays.
/// Method: each trouble once, for a large file and a small one.
#[test]
fn what_breaks_off_is_sent_again() {
    let parts = [("large", 5 * MIB), ("small", 100)].into_iter();
    let rows = parts.flat_map(|(part, at)| {
        [Takes::Cut(at, "426 broken"), Takes::HangUp(at), Takes::Short(at), Takes::Refuse("450 not now")]
            .map(|how| (part, how))
    });
    beside(rows, |(part, how)| {
        let (room, how) = (Room::new(), [how]);
        let (data, _) = two_files(&room);
        let taker = Script::default().takes(part, &how).start();
        let ended = to_taker(&[], crate::support::ftpd::contents(&data), &taker).run().sane();
        assert_whole_or_none(&taker, &data, &ended);
        if how != [Takes::Refuse("450 not now")] {
            assert_eq!(ended.status.code(), Some(0), "{part} {how:?}\n{}", ended.describe());
            assert_eq!(taker.paths(), ["/d/large", "/d/small"], "{part} {how:?}\n{}", ended.describe());
        }
    });
}

/// Goal: what a server never keeps whole never gets its name, whatever it says; the other files do.
/// Method: lies for as long as the copy tries.
#[test]
fn lies_never_get_a_name() {
    let ever = |how| vec![how; 20];
    let parts = [("large", 5 * MIB), ("small", 100)].into_iter();
    let rows = parts.flat_map(|(part, at)| {
        [
            Takes::Short(at),
            Takes::Wrong,
            Takes::Cut(at, "426 broken"),
            Takes::Cut(at, "451 my disk is odd"),
            Takes::HangUp(at),
            Takes::Refuse("553 not such a name"),
        ]
        .map(|how| (part, how))
    });
    beside(rows, |(part, how)| {
        let room = Room::new();
        let (data, _) = two_files(&room);
        let taker = Script::default().takes(part, &ever(how)).with_sums().start();
        let ended = to_taker(&[], crate::support::ftpd::contents(&data), &taker).run().sane().exits(3);
        assert_whole_or_none(&taker, &data, &ended);
        let other = if part == "large" { "/d/small" } else { "/d/large" };
        assert_eq!(taker.paths(), [other], "{how:?}\n{}", ended.describe());
        ended.says(part);
    });
}

/// Goal: what is said to be left at the server may stand there: not what the server refused to begin with, in
/// whatever words it then says that there is nothing to remove; but what it has and does not remove.
#[test]
fn what_is_left_is_named_and_nothing_else() {
    const SAID: &str = "could not be removed";
    beside([("large", 5 * MIB), ("small", 100)], |(part, at)| {
        let room = Room::new();
        let (data, _) = two_files(&room);
        let refused = Script::default().takes(part, &[Takes::Refuse("553 not such a name"); 20]);
        let taker = refused.removes_not("500 Command failed", false).start();
        let ended = to_taker(&[], crate::support::ftpd::contents(&data), &taker).run().sane().exits(3);
        let said = String::from_utf8_lossy(&ended.stdout).into_owned() + &ended.stderr;
        assert!(!said.contains(SAID), "{part}: {}", ended.describe());
        // Another run would hear the same.
        assert!(!said.contains("run the same command again"), "{part}: {}", ended.describe());
        let refused = Script::default().takes(part, &[Takes::Refuse("553 not such a name"); 20]);
        let taker = refused.removes_none("450 No such file or directory").start();
        let ended = to_taker(&[], crate::support::ftpd::contents(&data), &taker).run().sane().exits(3);
        let said = String::from_utf8_lossy(&ended.stdout).into_owned() + &ended.stderr;
        assert!(!said.contains(SAID), "{part}: {}", ended.describe());
        // Nothing of it was said to the server.
        let unreachable = Script::default().unreachable().removes_not("500 Command failed", false);
        let taker = unreachable.start();
        let ended = to_taker(&[], crate::support::ftpd::contents(&data), &taker).run().sane().exits(1);
        let said = String::from_utf8_lossy(&ended.stdout).into_owned() + &ended.stderr;
        assert!(!said.contains(SAID), "{part}: {}", ended.describe());
        // It may say of what stays that it removed it.
        for reply in ["553 not yours", "250 removed"] {
            let short = Script::default().takes(part, &[Takes::Short(at); 20]);
            let taker = short.removes_not(reply, true).start();
            let ended = to_taker(&[], crate::support::ftpd::contents(&data), &taker).run().sane().exits(3);
            let said = String::from_utf8_lossy(&ended.stdout).into_owned() + &ended.stderr;
            assert!(said.contains(SAID), "{part} {reply}: {}", ended.describe());
        }
    });
}

/// Goal: a server without room ends the run, in whatever words it says so, and says what to do; nothing is
/// sent once more, and nothing of ours stays.
#[test]
fn no_room_ends_the_run() {
    beside(
        [
            Takes::Cut(5 * MIB, "452 disk full"),
            Takes::Cut(MIB, "552 over quota"),
            Takes::Cut(MIB, "451 Failure writing to local file."),
            Takes::Refuse("452 no"),
        ],
        |how| {
            let room = Room::new();
            let (data, _) = two_files(&room);
            let taker = Script::default().takes("large", &[how; 20]).start();
            let ended = to_taker(&[], crate::support::ftpd::contents(&data), &taker).run().sane().exits(1);
            assert_whole_or_none(&taker, &data, &ended);
            let heard = taker.heard();
            let sent = heard.iter().filter(|line| line.starts_with("STOR") && line.contains("large")).count();
            assert_eq!(sent, 1, "{heard:?}");
            ended.says("there is no room at the server");
        },
    );
}

/// Goal: of what may be a full disk, and may be any other trouble with one, the server is asked by a few
/// bytes more, while what it has stands there: it ends the run, or the file is tried again. Method: a large
/// file and a small one; servers that have no room for these bytes, at once or where the first of them took
/// the last of it, and one whose trouble passes. What was asked by is gone afterwards.
#[test]
fn what_may_be_a_full_disk_is_asked() {
    const ODD: &str = "451 Transfer aborted. Input/output error";
    const FULL: &str = "452 Transfer aborted. No space left on device";
    beside([("large", 5 * MIB), ("small", 100)], |(name, at)| {
        let room = Room::new();
        let (data, _) = two_files(&room);
        for (asked, code, stores) in [
            (&[Takes::Cut(0, FULL)][..], 1, 2),
            (&[Takes::Cut(1000, ODD), Takes::Cut(0, FULL)], 1, 3),
            (&[Takes::Refuse("452 no")], 1, 2),
            (&[], 0, 3),
            (&[Takes::Refuse("553 no such names"), Takes::Whole], 0, 3),
        ] {
            let how = [&[Takes::Cut(at, ODD)], asked].concat();
            let taker = Script::default().takes(name, &how).start();
            let ended = to_taker(&[], crate::support::ftpd::contents(&data), &taker).run().sane().exits(code);
            assert_whole_or_none(&taker, &data, &ended);
            let heard = taker.heard();
            let sent = heard.iter().filter(|line| line.starts_with("STOR") && line.contains(name)).count();
            assert_eq!(sent, stores, "{how:?}: {heard:?}");
            if code == 0 {
                assert_eq!(taker.file(&format!("/d/{name}")), Some(read(data.join(name))), "{how:?}");
            } else {
                let _ = ended.says("there is no room at the server");
            }
        }
    });
}

/// Goal: a disk of ProFTPD's that gets full ends the run with one error, and no file is sent twice.
/// Method: a small file system; one large file, then many small ones.
#[test]
fn a_full_disk_of_proftpd_ends_the_run() {
    need!("proftpd", "tmpfs");
    for (count, len) in [(1, 20 * MIB), (60, 300_000)] {
        let (room, ftpd) = (Room::new(), Ftpd::start(Kind::Proftpd));
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        let mut rng = fastrand::Rng::with_seed(19);
        (0..count).for_each(|n| file(&data.join(format!("f{n}")), &mut rng, len));
        let _small = Tmpfs::mount(&sink, "size=8m,mode=777");
        let ended = cp(&[], crate::support::ftpd::contents(&data), &ftpd.url(&sink)).run().sane().exits(1);
        let ended = ended.says("there is no room at the server").says("No space left on device");
        let summary = ended.summary();
        assert!(summary.0["error"].to_string().contains("no room"), "{}", ended.describe());
        assert!(!ended.stderr.contains("sent again"), "{}", ended.describe());
        assert_no_debris(&sink);
        for entry in fs::read_dir(&sink).expect("list it").flatten() {
            assert!(read(entry.path()) == read(data.join(entry.file_name())), "{:?}", entry.path());
        }
    }
}

/// Goal: where a session opens no data connection any more, as ProFTPD does under TLS when it does not know
/// that again, the files go over another one: a large one as well as small ones.
#[test]
fn a_session_without_data_connections_is_left() {
    let room = Room::new();
    let (data, _) = two_files(&room);
    let mut rng = fastrand::Rng::with_seed(8);
    (0..30).for_each(|n| file(&data.join(format!("f{n}")), &mut rng, 100));
    file(&data.join("larger"), &mut rng, 14 * MIB);
    let taker = Script::default().connections_max(2).start();
    let ended = to_taker(&[], crate::support::ftpd::contents(&data), &taker).run().sane().exits(0);
    assert_whole_or_none(&taker, &data, &ended);
    assert_eq!(taker.paths().len(), 33, "{}", ended.describe());
}

/// Goal: a server that takes nothing any more ends a file, and not the run for ever.
#[test]
fn a_stall_ends() {
    let room = Room::new();
    let (data, _) = two_files(&room);
    let taker = Script::default().takes("large", &[Takes::Stall(MIB); 20]).start();
    let ended =
        to_taker(&["--patience=1s"], crate::support::ftpd::contents(&data), &taker).run().sane().exits(3);
    assert_eq!(taker.file("/d/small"), Some(read(data.join("small"))), "{}", ended.describe());
    assert_eq!(taker.file("/d/large"), None, "{}", ended.describe());
}

/// Goal: a server that says nothing any more is waited for twice at one thing: for what it does not take, and
/// for its greeting to one who comes anew; nothing else waits for it, to remove a part say.
/// Method: a server that stalls in a file and greets nobody from then on, who counts those.
#[test]
fn a_silent_server_is_waited_for_twice() {
    beside([(9 * MIB, MIB), (1000, 100)], |(len, at)| {
        let room = Room::new();
        let data = room.dir("data");
        file(&data.join("f"), &mut fastrand::Rng::with_seed(9), len);
        let taker = Script::default().takes("f", &[Takes::Mute(at)]).start();
        let options = ["--patience=1s", "--writers=1"];
        let ended = to_taker(&options, crate::support::ftpd::contents(&data), &taker).run().sane().exits(3);
        assert_eq!(taker.ungreeted(), 1, "{len}: {}", ended.describe());
        ended.says("remove them at the server");
    });
}

/// Goal: what stands at a name is replaced only by what is whole: also where the server replaces nothing by a
/// rename, and where it renames nothing at all.
#[test]
fn what_stands_is_replaced_or_kept() {
    let room = Room::new();
    let (data, large) = two_files(&room);
    let old = b"what stood there".to_vec();
    let script = || Script::default().has("/d/large", &old).has("/d/small", &old);
    for (script, new) in
        [(script(), true), (script().keeps_names(), true), (script().rnto("550 never"), false)]
    {
        let taker = script.start();
        let code = if new { 0 } else { 3 };
        let ended = to_taker(&[], crate::support::ftpd::contents(&data), &taker).run().sane().exits(code);
        assert_eq!(taker.paths(), ["/d/large", "/d/small"], "{}", ended.describe());
        let stands = taker.file("/d/large").expect("it is there");
        assert!(stands == if new { large.clone() } else { old.clone() }, "{}", ended.describe());
    }
}

/// Goal: what comes to stand at a name while its file is copied is left alone, and said.
/// Method: it is put there when the temporary is.
#[test]
fn what_comes_meanwhile_is_left_alone() {
    need!("proftpd");
    let (room, ftpd) = (Room::new(), Ftpd::start(Kind::Proftpd));
    let data = room.dir("data");
    file(&data.join("big"), &mut fastrand::Rng::with_seed(6), 20 * MIB);
    let sink = room.dir("sink");
    let source = crate::support::ftpd::contents(&data);
    let mut run = cp(&["--rate=8MiB/s"], source, &ftpd.url(&sink)).start();
    assert!(run.until(|_| !debris(&sink).is_empty()), "{}", run.stderr());
    fs::write(sink.join("big"), "somebody's").expect("write a file");
    let ended = run.wait().exits(3).says("came to stand there");
    assert_eq!(read(sink.join("big")), b"somebody's", "{}", ended.describe());
    assert_no_debris(&sink);
}

/// Goal: of two names that a server takes for one, one is copied and the other said.
#[test]
fn names_that_are_one_are_said() {
    let room = Room::new();
    let data = room.dir("data");
    let mut rng = fastrand::Rng::with_seed(5);
    for (one, another, kept) in
        [("Name", "name", "name"), ("\u{c9}t\u{c9}", "\u{e9}t\u{e9}", "\u{e9}t\u{e9}")]
    {
        let _ = fs::remove_dir_all(&data);
        let data = room.dir("data");
        [one, another, "other"].iter().for_each(|name| file(&data.join(name), &mut rng, 50));
        let taker = Script::default().folds().start();
        let ended = to_taker(&[], crate::support::ftpd::contents(&data), &taker).run().sane().exits(3);
        let mut names = [format!("/d/{kept}"), "/d/other".into()];
        names.sort();
        assert_eq!(taker.paths(), names, "{}", ended.describe());
        ended.says("it was left out");
    }
}

/// Goal: a rename that a server only says it did is a failure, and what stood there is not taken for the
/// file.
#[test]
fn a_rename_that_was_only_said_is_none() {
    let room = Room::new();
    let (data, _) = two_files(&room);
    let old = vec![7; 1000];
    let taker = Script::default().has("/d/small", &old).rnto("250 renamed").start();
    let ended = to_taker(&[], crate::support::ftpd::contents(&data), &taker).run().sane().exits(3);
    assert_eq!(taker.file("/d/small"), Some(old), "{}", ended.describe());
    ended.says("what it had before");
}

/// Goal: no two attempts to send a file have one name, for a server may still write what it was sent first.
#[test]
fn each_attempt_has_a_name_of_its_own() {
    beside(["large", "small"], |part| {
        let room = Room::new();
        let (data, _) = two_files(&room);
        let taker = Script::default().takes(part, &[Takes::HangUp(100), Takes::Cut(100, "426 no")]).start();
        let ended = to_taker(&[], crate::support::ftpd::contents(&data), &taker).run().sane();
        assert_whole_or_none(&taker, &data, &ended);
        let heard = taker.heard();
        let mut stored: Vec<&String> = heard.iter().filter(|line| line.starts_with("STOR")).collect();
        let all = stored.len();
        assert!(all > 2, "{heard:?}");
        stored.sort();
        stored.dedup();
        assert_eq!(stored.len(), all, "{heard:?}");
    });
}

/// Goal: where a server leaves bytes out of names, nothing goes into the directory that it shows instead, be
/// it on the way to the destination or below it.
#[test]
fn names_that_lead_elsewhere_are_left_out() {
    let room = Room::new();
    let data = room.dir("data");
    let mut rng = fastrand::Rng::with_seed(15);
    for name in ["d\u{e9}", "plain"] {
        dir(&data.join(name));
        file(&data.join(name).join("f"), &mut rng, 50);
    }
    let old = b"of another directory";
    let script = || Script::default().drops_bytes().has_dir("/d/d").has("/d/d/f", old);
    for script in [script(), script().makes_again()] {
        let taker = script.start();
        let ended = to_taker(&[], crate::support::ftpd::contents(&data), &taker).run().sane().exits(3);
        assert_eq!(taker.file("/d/d/f").as_deref(), Some(&old[..]), "{}", ended.describe());
        assert_eq!(taker.paths(), ["/d/d/f", "/d/plain/f"], "{}", ended.describe());
        ended.says("does not list it under that name");
    }
    let taker = script().start();
    let url = taker.url("/d/d%C3%A9/");
    let ended = Haul::cp(["-r"]).args([crate::support::ftpd::contents(&data)]).args([url]).run().sane();
    assert_ne!(ended.status.code(), Some(0), "{}", ended.describe());
    assert_eq!(taker.paths(), ["/d/d/f"], "{}", ended.describe());
    ended.says("does not list it under that name");
}

/// Goal: a sum that is refused for one file leaves the others compared, and is told.
#[test]
fn a_sum_that_is_refused_is_told() {
    let room = Room::new();
    let data = room.dir("data");
    let mut rng = fastrand::Rng::with_seed(16);
    (0..40).for_each(|n| file(&data.join(format!("f{n}")), &mut rng, 50));
    let script = || Script::default().with_sums().without_sum_of("f0");
    let taker = script().start();
    let ended = to_taker(&["-v"], crate::support::ftpd::contents(&data), &taker).run().sane().exits(0);
    ended.says("of 39 files; not of 1 files");
    let wrong = script().takes("f39", &[Takes::Wrong; 20]).start();
    let ended = to_taker(&[], crate::support::ftpd::contents(&data), &wrong).run().sane().exits(3);
    assert_eq!(wrong.file("/d/f39"), None, "{}", ended.describe());
}

/// Goal: where a server says of directories that are there that it made them, a second run finds its files.
#[test]
fn directories_that_are_made_again_are_looked_into() {
    let room = Room::new();
    let data = room.dir("data");
    dir(&data.join("below"));
    file(&data.join("below/f"), &mut fastrand::Rng::with_seed(17), 50);
    let taker = Script::default().makes_again().start();
    for _ in 0..2 {
        file(&data.join("below/f"), &mut fastrand::Rng::with_seed(18), 60);
        let ended = to_taker(&[], crate::support::ftpd::contents(&data), &taker).run().sane().exits(0);
        assert_eq!(taker.file("/d/below/f"), Some(read(data.join("below/f"))), "{}", ended.describe());
    }
}

/// Goal: sessions that the server ended while they had nothing to do, and of which it takes no other, take no
/// work: the one that is left does it. Others are told so, or closed without a word.
#[test]
fn sessions_that_ended_take_no_work() {
    let room = Room::new();
    let (data, mut rng) = (room.dir("data"), fastrand::Rng::with_seed(79));
    let source = data.join("source");
    file(&source, &mut rng, 12 * MIB);
    // Sessions are opened for files.
    (0..100).for_each(|n| file(&data.join(format!("small{n}")), &mut rng, 300));
    for closes in [false, false, true, true] {
        let taker = Script::default().with_sums().evicts(MIB).closes(closes).start();
        let from = crate::support::ftpd::contents(&data);
        let ended = to_taker(&["--rate=8MiB/s"], from, &taker).run().sane().exits(0);
        assert!(taker.file("/d/source") == Some(read(&source)), "{}", ended.describe());
        assert_whole_or_none(&taker, &data, &ended);
        let logins = taker.heard().iter().filter(|line| line.starts_with("USER")).count();
        assert!(logins > 1, "nothing was to be ended: {}", ended.describe());
    }
}

/// Goal: with fewer sessions than it would have, down to one, a copy comes to its end.
#[test]
fn few_sessions_suffice() {
    beside([1, 2, 3], |max| {
        let room = Room::new();
        let data = room.dir("data");
        let mut rng = fastrand::Rng::with_seed(9);
        (0..5).for_each(|n| file(&data.join(format!("large{n}")), &mut rng, 9 * MIB + n));
        (0..60).for_each(|n| file(&data.join(format!("small{n}")), &mut rng, 3000));
        let taker = Script::default().sessions_max(max).with_sums().start();
        let ended =
            to_taker(&["--memory=8MiB"], crate::support::ftpd::contents(&data), &taker).run().sane().exits(0);
        assert_eq!(taker.paths().len(), 65);
        assert_whole_or_none(&taker, &data, &ended);
    });
}

/// Goal: where a server cannot be told a time, that is said, and a sum that it makes is compared.
#[test]
fn what_is_not_kept_is_said() {
    let room = Room::new();
    let (data, _) = two_files(&room);
    let taker = Script::default().without_times().with_sums().start();
    let ended = to_taker(&["-v"], crate::support::ftpd::contents(&data), &taker).run().sane().exits(0);
    ended.says("SHA256 of what it keeps (CKSM), of 2 files").says("times");
}

/// Goal: at a server that sets no times a change of the source is copied although the file there has its
/// size and its time, for that is when the copy came; where times are set nothing is sent twice.
/// Method: the source gets the time that the server's file has, and other bytes. vsftpd with and without
/// `mdtm_write`; and a server without a word for times, also in place.
#[test]
fn a_time_by_chance_proves_nothing() {
    let room = Room::new();
    let data = room.at("data");
    fs::write(&data, "first version").expect("write");
    let taker = Script::default().without_times().with_sums().has("/d/data", b"first version").start();
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_577_934_245);
    for (options, content) in [(&[][..], "other version"), (&["--in-place"], "third version")] {
        fs::write(&data, content).expect("write");
        tree::set_mtime(&data, then);
        let ended = to_taker(options, &data, &taker).run().sane().exits(0).says("sets no times");
        assert!(taker.file("/d/data") == Some(read(&data)), "{}", ended.describe());
    }
    need!("vsftpd");
    for (more, sets) in [("", true), ("mdtm_write=NO\n", false)] {
        let ftpd = Node::start(Software::Vsftpd, [127, 0, 0, 1], more);
        let there = ftpd.place("data");
        let run = || Haul::cp([data.as_os_str()]).args([ftpd.url(&there)]).run().sane().exits(0);
        run();
        fs::write(&data, "new version").expect("write");
        tree::set_mtime(&data, fs::metadata(&there).expect("look").modified().expect("a time"));
        let ended = run();
        assert!(read(&there) == read(&data), "{}", ended.describe());
        let again = run();
        assert_eq!(again.summary().number("unchanged"), u64::from(sets), "{}", again.describe());
    }
}

/// Goal: what makes no sense at a server is refused by its name, before anything is made.
#[test]
fn what_makes_no_sense_is_refused() {
    let room = Room::new();
    let (data, _) = two_files(&room);
    let taker = Script::default().start();
    let large = data.join("large");
    for (options, says) in [
        (&["--in-place", "--resume=trust"][..], "--in-place"),
        (&["--range=0,100"], "--range"),
        (&["--streams=4"], "--streams"),
        (&["--layout=source"], "--layout"),
        (&["--state=/tmp"], "--state"),
    ] {
        let ended = Haul::cp(options).args([&large]).args([taker.url("/d/x")]).run().sane();
        assert!(matches!(ended.status.code(), Some(1 | 2)), "{}", ended.describe());
        ended.says(says);
        assert_eq!(taker.paths(), [] as [String; 0], "{options:?}");
    }
}

/// Goal: a stop leaves nothing of ours at the server, and no part under a final name.
#[test]
fn a_stop_leaves_nothing() {
    need!("proftpd");
    let (room, ftpd) = (Room::new(), Ftpd::start(Kind::Proftpd));
    let data = room.dir("data");
    file(&data.join("big"), &mut fastrand::Rng::with_seed(3), 40 * MIB);
    let sink = room.dir("sink");
    let mut run =
        cp(&["--rate=8MiB/s", "--memory=16MiB"], crate::support::ftpd::contents(&data), &ftpd.url(&sink))
            .start();
    assert!(run.until(|_| !debris(&sink).is_empty()), "{}", run.stderr());
    run.signal(rustix::process::Signal::INT);
    let ended = run.wait().exits(130);
    assert_eq!(fs::read_dir(&sink).expect("list it").count(), 0, "{}", ended.describe());
}

/// Goal: whenever it is killed, no part has a final name, and the same command completes the copy.
#[test]
fn a_kill_leaves_no_part_under_a_name() {
    need!("proftpd");
    let (room, ftpd) = (Room::new(), Ftpd::start(Kind::Proftpd));
    let data = room.dir("data");
    let mut rng = fastrand::Rng::with_seed(4);
    (0..3).for_each(|n| file(&data.join(format!("big{n}")), &mut rng, 9 * MIB));
    (0..40).for_each(|n| file(&data.join(format!("small{n}")), &mut rng, 5000));
    for after in [1, 3, 6] {
        let sink = room.dir(&format!("sink{after}"));
        let url = ftpd.url(&sink);
        let mut run = cp(&["--rate=16MiB/s"], crate::support::ftpd::contents(&data), &url).start();
        run.until(|_| fs::read_dir(&sink).map_or(0, |all| all.count()) > after);
        procs::signal_all(&run.near(), rustix::process::Signal::KILL);
        run.wait();
        for entry in fs::read_dir(&sink).expect("list it").flatten() {
            let name = entry.file_name().into_string().expect("UTF-8");
            if !name.starts_with('.') {
                assert!(read(entry.path()) == read(data.join(&name)), "{name} is a part");
            }
        }
        cp(&[], crate::support::ftpd::contents(&data), &url).run().sane().exits(0);
        for entry in fs::read_dir(&data).expect("list it").flatten() {
            assert!(read(entry.path()) == read(sink.join(entry.file_name())), "{after}");
        }
    }
}

/// Goal: trees go under TLS, and by a certificate, to servers that take nothing else; and from a host that
/// ssh reaches, through this one.
#[test]
fn trees_go_protected_and_from_afar() {
    beside(Kind::these(&Kind::UNDER_TLS).into_iter().chain(Kind::these(&[Kind::GridftpGsi])), |kind| {
        let (room, ftpd) = (Room::new(), Ftpd::start(kind));
        let data = room.dir("data");
        furnish(&data, 9, Kind::Gridftp);
        let sink = room.dir("sink");
        let haul = cp(&[], crate::support::ftpd::contents(&data), &ftpd.url(&sink));
        let haul = match kind {
            Kind::GridftpGsi => haul
                .env("X509_CERT_DIR", ftpd.of_grid("authorities"))
                .env("X509_USER_PROXY", ftpd.of_grid("alice")),
            _ => haul.env("SSL_CERT_FILE", certificate("ca.pem")),
        };
        haul.run().sane().exits(0);
        assert_same(&data, &sink, Opts { metadata: kind.has_mlsd(), ..BELOW });
        assert_no_debris(&sink);
    });
    need!("sshd", "proftpd");
    let (room, sshd, ftpd) = (Room::new(), Sshd::start(), Ftpd::start(Kind::Proftpd));
    let data = room.dir("data");
    furnish(&data, 10, Kind::Proftpd);
    let sink = room.dir("sink");
    let word = sshd.path(Path::new(&crate::support::ftpd::contents(&data)));
    Haul::cp(["-r".into(), word, ftpd.url(&sink).into()]).by(&sshd).run().sane().exits(0);
    assert_same(&data, &sink, BELOW);
}

/// Goal: many long names that are asked about together under TLS do not have a server wait that takes a part
/// of a record of TLS and looks at the rest when the next one comes.
#[test]
fn long_names_go_under_tls() {
    need!("proftpd-tls");
    let (room, ftpd) = (Room::new(), Ftpd::start(Kind::ProftpdTls));
    let data = room.dir("data");
    for index in 0..200 {
        let name = format!("{}{index:03}", "n".repeat(200));
        file(&data.join(name), &mut fastrand::Rng::with_seed(index), 1000);
    }
    let sink = room.dir("sink");
    let haul = cp(&[], crate::support::ftpd::contents(&data), &ftpd.url(&sink));
    haul.env("SSL_CERT_FILE", certificate("ca.pem")).run().sane().exits(0);
    assert_same(&data, &sink, BELOW);
}

/// Goal: a copy from one server to another, one of a single file under a new name, and dry runs.
#[test]
fn servers_copy_to_each_other() {
    need!("proftpd", "gridftp");
    let (room, from, to) = (Room::new(), Ftpd::start(Kind::Gridftp), Ftpd::start(Kind::Proftpd));
    let data = room.dir("data");
    furnish(&data, 8, Kind::Gridftp);
    let sink = room.dir("sink");
    let url = to.url(&sink);
    let dry = cp(&["--dry-run"], from.url(crate::support::ftpd::contents(&data)), &url).run().sane().exits(0);
    assert_eq!(fs::read_dir(&sink).expect("list it").count(), 0, "{}", dry.describe());
    cp(&[], from.url(crate::support::ftpd::contents(&data)), &url).run().sane().exits(0);
    assert_same(&data, &sink, BELOW);
    assert_no_debris(&sink);

    let itself = cp(&[], to.url(&sink), &to.url(sink.join("plain"))).run().sane().exits(2);
    itself.says("would copy itself");
    let named = room.at("sink/new name");
    Haul::cp([data.join("size 7")]).args([to.url(&named)]).run().sane().exits(0);
    assert!(read(&named) == read(data.join("size 7")));
    let nowhere = to.url(room.at("missing/x"));
    Haul::cp([data.join("size 7")]).args([nowhere]).run().sane().exits(1).says("there is no directory");
    let deep = room.at("made/by/it/");
    Haul::cp([data.join("size 7")]).args([to.url(&deep)]).run().sane().exits(0);
    assert!(read(deep.join("size 7")) == read(data.join("size 7")));
}

/// Goal: no two entries of a copy are one file at a server that has no names of its own for files and tells
/// of links by listings alone, in the first run and in the next one, also without its changing anything:
/// nothing is written through a link of a directory, and what looks unchanged behind a link of a file is no
/// proof.
/// Method: two directories, of which one is a link to the other; a file and two links to it, and two names of
/// one file, that look like their sources.
#[test]
fn links_at_a_server_make_no_two_entries_one() {
    beside(Kind::these(&[Kind::ProftpdList, Kind::Vsftpd]), |kind| {
        let (room, ftpd) = (Room::new(), Ftpd::start(kind));
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        let write = |path: &Path, content: &str| {
            fs::write(path, content).expect("write");
            set_mode(path, 0o644);
            age(path, 1_500_000_000);
        };
        for at in ["d1", "d2"] {
            dir(&data.join(at));
            write(&data.join(at).join("f"), &format!("the file of {at}"));
        }
        dir(&sink.join("d1"));
        set_mode(&sink, 0o777);
        set_mode(&sink.join("d1"), 0o777);
        std::os::unix::fs::symlink("d1", sink.join("d2")).expect("make a link");
        let url = ftpd.url(&sink);
        for options in [&[][..], &[], &["--dry-run"], &["--in-place"]] {
            let ended = cp(options, crate::support::ftpd::contents(&data), &url).run().sane().exits(3);
            let ended = ended.says("d2: a symbolic link stands there");
            assert!(read(sink.join("d1/f")) == read(data.join("d1/f")), "{kind:?}: {}", ended.describe());
        }
        assert_no_debris(&sink);

        let (data, sink) = (room.dir("files"), room.dir("copies"));
        for name in ["a", "m", "z"] {
            write(&data.join(name), &format!("the file of {name}"));
        }
        set_mode(&sink, 0o777);
        write(&sink.join("m"), "the file of m");
        for link in ["a", "z"] {
            std::os::unix::fs::symlink("m", sink.join(link)).expect("make a link");
        }
        let ended = cp(&[], crate::support::ftpd::contents(&data), &ftpd.url(&sink)).run().sane();
        let all_right = ["a", "m", "z"].iter().all(|name| read(sink.join(name)) == read(data.join(name)));
        let failed = ended.status.code() == Some(3) && ended.stderr.contains("of one entry at most");
        assert!(failed || all_right && ended.status.code() == Some(0), "{kind:?}: {}", ended.describe());

        let sink = room.dir("linked");
        set_mode(&sink, 0o777);
        write(&sink.join("m"), "the file of m");
        fs::hard_link(sink.join("m"), sink.join("z")).expect("link");
        let cp = cp(&[], crate::support::ftpd::contents(&data), &ftpd.url(&sink));
        let _ = cp.run().sane().exits(3).says("of one entry at most");
    });
}

/// Goal: symbolic links, which a server has no command to make, are left out as special files are: counted,
/// named, and no failure, by a dry run and a second run too. One that was named as the source fails.
/// Method: more links than a summary has names for, one of them in a directory.
#[test]
fn links_are_left_out_and_said() {
    need!("proftpd");
    let (room, ftpd) = (Room::new(), Ftpd::start(Kind::Proftpd));
    let (data, _) = two_files(&room);
    dir(&data.join("d"));
    let links: Vec<String> =
        (0..10).map(|n| if n == 0 { "d/link".to_owned() } else { format!("link {n}") }).collect();
    for name in &links {
        std::os::unix::fs::symlink("small", data.join(name)).expect("make a link");
    }
    let (sink, contents) = (room.dir("sink"), crate::support::ftpd::contents(&data));
    for option in ["--dry-run", "-v", "-vv"] {
        let ended = cp(&["-v", option], &contents, &ftpd.url(&sink)).run().sane().exits(0);
        let summary = ended.summary();
        assert_eq!((summary.number("skipped"), summary.number("failed")), (10, 0), "{}", ended.describe());
        let not_kept = summary.0["not_kept"].as_array().expect("a list");
        let left = not_kept.iter().find(|left| left["what"] == "symbolic links left out");
        assert!(left.is_some_and(|left| left["count"] == 10), "{}", ended.describe());
        let mut told: Vec<String> = ended
            .events()
            .iter()
            .filter(|event| event["kind"] == "skipped")
            .map(|event| event["path"].as_str().expect("a path").to_owned())
            .collect();
        told.sort();
        assert_eq!(told, links, "{}", ended.describe());
        if option == "--dry-run" {
            assert_eq!(fs::read_dir(&sink).expect("list it").count(), 0, "{}", ended.describe());
            continue;
        }
        let ended = ended.says("and 2 more (symbolic links").says("copy what they lead to by itself");
        assert_eq!(fs::read_dir(&sink).expect("list it").count(), 3, "{}", ended.describe());
        assert_eq!(fs::read_dir(sink.join("d")).expect("list it").count(), 0, "{}", ended.describe());
        assert_eq!(
            fs::metadata(sink.join("small")).expect("there").mtime(),
            fs::metadata(data.join("small")).expect("there").mtime()
        );
    }
    for (to, name) in [(ftpd.url(&sink), "link 1"), (ftpd.url(sink.join("new")), "new")] {
        let ended = Haul::cp([data.join("link 1")]).args([to]).run().sane().exits(3);
        let ended = ended.says(name).says("of which haul makes none at servers");
        assert_eq!(ended.summary().number("failed"), 1, "{}", ended.describe());
    }
    // What it leads to goes by itself.
    let ended = Haul::cp(["-r"]).args([data.join("small")]).args([ftpd.url(sink.join("by itself"))]).run();
    ended.sane().exits(0);
    assert_eq!(
        fs::read(sink.join("by itself")).expect("there"),
        fs::read(data.join("small")).expect("there")
    );
}

/// Goal: a server that takes files and renames none is found out before any file is sent, and said with what
/// to do: one empty file stays, and is named. Written in place files go there.
/// Method: vsftpd as a drop box, and a server of ours; one that renames files, whatever it says of what is
/// not there, is none. One that shows only with the files what it is ends the run as well.
#[test]
fn drop_boxes_are_found_out() {
    let room = Room::new();
    let (data, _) = two_files(&room);
    let source = crate::support::ftpd::contents(&data);
    let drop_box = Script::default().drop_box().start();
    let ended = to_taker(&[], &source, &drop_box).run().sane().exits(1);
    let ended = ended.says("renames none").says("--in-place");
    let stays = drop_box.paths();
    assert!(matches!(&stays[..], [one] if one.contains(".haul~")), "{stays:?}");
    assert_eq!(drop_box.file(&stays[0]), Some(Vec::new()), "{stays:?}");
    let ended = ended.says(&stays[0]);
    assert_eq!(ended.summary().number("bytes_sent"), 0, "{}", ended.describe());
    for kind in Kind::these(&[Kind::VsftpdDropBox]) {
        let (ftpd, sink) = (Ftpd::start(kind), room.dir("sink"));
        cp(&[], &source, &ftpd.url(&sink)).run().sane().exits(1).says("renames none");
        assert_eq!((fs::read_dir(&sink).expect("list it").count(), debris(&sink).len()), (1, 1));
        let ended = cp(&["--in-place"], &source, &ftpd.url(&sink)).run().sane().exits(0);
        for name in ["large", "small"] {
            assert!(read(sink.join(name)) == read(data.join(name)), "{name}: {}", ended.describe());
        }
    }
    let named = Script::default().denies_nothing().start();
    let ended = to_taker(&[], &source, &named).run().sane().exits(0);
    assert_whole_or_none(&named, &data, &ended);
    assert_eq!(named.paths().len(), 2, "{}", ended.describe());
    let mut rng = fastrand::Rng::with_seed(31);
    (0..200).for_each(|n| file(&data.join(format!("f{n}")), &mut rng, 100));
    let late = Script::default().rnto("553 never").start();
    let ended = to_taker(&[], &source, &late).run().sane().exits(1).says("renames none");
    assert_eq!(late.paths(), [] as [String; 0], "{}", ended.describe());
    let asked = late.heard().iter().filter(|line| line.starts_with("RNTO")).count();
    assert!(asked < 200, "each is tried: {}", ended.describe());
}
