//! Files that are written into what stands at FTP servers: `--to` and `--in-place`.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use crate::support::compare::assert_no_debris;
use crate::support::ftpd::{Ftpd, Kind};
use crate::support::run::Haul;
use crate::support::serve;
use crate::support::taker::{Into, Script, Takes};
use crate::support::{Room, read, tree};

const MIB: usize = 1 << 20;

fn some_bytes(len: usize) -> Vec<u8> {
    tree::bytes(&mut fastrand::Rng::with_seed(73), len)
}

/// `haul cp --range RANGE --to TO SOURCE URL`, and more.
fn put(range: &str, to: &str, more: &[&str], source: &std::path::Path, url: &str) -> Haul {
    Haul::cp(["--range", range, "--to", to]).args(more).args([source]).args([url])
}

/// Goal: a part goes to its place in a file at a server, which keeps every other byte, its mode and its name;
/// what stood there may be shorter, or not be there, where the server can do that. Which way the bytes went,
/// and what was compared, is said. Without ESTO nothing is written unless the user asks for it.
/// Method: each kind of server; parts shorter than an object and longer.
#[test]
fn parts_go_into_files_at_servers() {
    let kinds = Kind::here();
    let served = Room::new();
    served.dir("root");
    let root: &[&str] = if rustix::process::geteuid().is_root() { &["--user", "root"] } else { &[] };
    let (port, _running) = serve::started("127.0.0.1", " listen ftp://", |port| {
        let listen = format!("127.0.0.1:{port}");
        let words = ["serve", "gridftp", "--anonymous", "write", "--listen", &listen, "--root"];
        Haul::new(words).args([served.at("root")]).args(root)
    });
    for kind in kinds.into_iter().map(Some).chain([None]) {
        let (room, ftpd) = (Room::new(), kind.map(Ftpd::start));
        let base = if kind.is_some() { room.at("") } else { served.at("root") };
        let url = |name: &str| match &ftpd {
            Some(ftpd) => ftpd.url(base.join(name)),
            None => format!("ftp://127.0.0.1:{port}/{name}"),
        };
        let by_esto = matches!(kind, None | Some(Kind::Gridftp));
        let asks: &[&str] = if by_esto { &[] } else { &["--in-place"] };
        let big = some_bytes(9 * MIB);
        let source = room.file("source", &big);
        let (into, mut want) = (base.join("into"), vec![7; 8 * MIB]);
        fs::write(&into, &want).expect("write");
        for (range, to, from, at) in
            [("7:300KiB", "5", 7..7 + 300 * 1024, 5), ("1MiB:5MiB", "2MiB", MIB..6 * MIB, 2 * MIB)]
        {
            if !by_esto {
                let ended = put(range, to, &[], &source, &url("into")).run().sane().exits(3);
                let _ = ended.says("no ESTO").says("--in-place");
                assert!(read(&into) == want, "{kind:?}: nothing is written that nobody asked for");
            }
            let ended =
                put(range, to, &[asks, &["-v"]].concat(), &source, &url("into")).run().sane().exits(0);
            want[at..at + from.len()].copy_from_slice(&big[from]);
            assert!(read(&into) == want, "{kind:?} {range}: {}", ended.describe());
            let _ = ended
                .says("in place: it was written into the files that stood there")
                .says(if by_esto { "by ESTO" } else { "by REST with STOR" })
                .says(if by_esto { "of 1 files" } else { "NOT compared: the content of 1 file with" });
        }
        // Behind the end; from byte 0; where nothing stands; read back as well.
        let (more, shorter) = (&[asks, &["--verify=disk"]].concat(), base.join("shorter"));
        fs::write(&shorter, b"0123456789").expect("write");
        let code = if by_esto { 0 } else { 3 };
        put("0:4", "20", more, &source, &url("shorter")).run().sane().exits(code);
        put("0:4", "0", more, &source, &url("shorter")).run().sane().exits(code);
        put("0:4", "3", more, &source, &url("missing")).run().sane().exits(code);
        put("0:4", "6", more, &source, &url("shorter")).run().sane().exits(0);
        let mut want = b"0123456789".to_vec();
        want[6..].copy_from_slice(&big[..4]);
        if by_esto {
            want.resize(24, 0);
            want[..4].copy_from_slice(&big[..4]);
            want[20..].copy_from_slice(&big[..4]);
            assert!(read(base.join("missing")) == [&[0; 3], &big[..4]].concat(), "{kind:?}");
        }
        assert!(read(&shorter) == want, "{kind:?}: {:?}", read(&shorter));
        put("0:4", "0", more, &source, &url("new")).run().sane().exits(0);
        assert!(read(base.join("new")) == big[..4], "{kind:?}");
        assert_no_debris(&base);
    }
}

/// Goal: with `--in-place` files are written into those that stand at a server: the same inode, no second
/// file; a link is not written through, a directory not replaced, and one file not written for two entries.
/// A second run skips what is whole. haul's own server replaces them as a whole.
/// Method: each kind of server; a small file and one of several objects, shorter and longer than what stands.
#[test]
fn files_are_written_in_place_at_servers() {
    for kind in Kind::here() {
        let (room, ftpd) = (Room::new(), Ftpd::start(kind));
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        for (name, len, stood) in
            [("large", 5 * MIB + 3, 6 * MIB), ("small", 1000, 10), ("new", 70_000, 0), ("bare", 0, 5)]
        {
            fs::write(data.join(name), some_bytes(len)).expect("write");
            if stood > 0 {
                fs::write(sink.join(name), vec![1; stood]).expect("write");
            }
        }
        let inode = |name: &str| fs::metadata(sink.join(name)).expect("it is there").ino();
        let before = ["large", "small", "bare"].map(inode);
        let url = ftpd.url(&sink) + "/";
        let cp = || Haul::cp(["-r", "--in-place"]).args([crate::support::ftpd::contents(&data)]).args([&url]);
        let ended = cp().run().sane().exits(0);
        for name in ["large", "small", "new", "bare"] {
            assert!(read(sink.join(name)) == read(data.join(name)), "{kind:?} {name}: {}", ended.describe());
        }
        assert_eq!(["large", "small", "bare"].map(inode), before, "{kind:?}: {}", ended.describe());
        assert_eq!(cp().run().sane().exits(0).summary().number("unchanged"), 4, "{kind:?}");

        // What is written into nothing else.
        fs::write(data.join("linked"), b"linked").expect("write");
        std::os::unix::fs::symlink("large", sink.join("linked")).expect("a link");
        fs::write(data.join("a dir"), b"file").expect("write");
        fs::create_dir(sink.join("a dir")).expect("a directory");
        let ended = cp().run().sane().exits(3);
        let ended = ended.says("linked").says("a dir");
        assert!(read(sink.join("large")) == read(data.join("large")), "{kind:?}: {}", ended.describe());
        assert!(fs::symlink_metadata(sink.join("linked")).expect("it is there").is_symlink(), "{kind:?}");

        // One file of two names there, of which one is unchanged.
        let (data, sink) = (room.dir("names"), room.dir("one"));
        let then = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_577_934_245);
        for base in [&data, &sink] {
            fs::write(base.join("A"), "one").expect("write");
            tree::set_mtime(&base.join("A"), then);
        }
        fs::write(data.join("B"), "another").expect("write");
        fs::hard_link(sink.join("A"), sink.join("B")).expect("a link");
        let url = ftpd.url(&sink) + "/";
        let cp = Haul::cp(["-r", "--in-place"]).args([crate::support::ftpd::contents(&data)]).args([&url]);
        let ended = cp.run().sane();
        if matches!(kind, Kind::Proftpd | Kind::Gridftp) {
            let ended = ended.exits(3).says("this copy");
            assert!(read(sink.join("A")) == b"one", "{kind:?}: {}", ended.describe());
        } else if ended.status.code() == Some(0) {
            let _ = ended.says("no names of its own for files (Unique)");
        }
        assert_no_debris(&room.at(""));
    }
}

/// Goal: a server that does not keep the rest of a file is found out before it has the user's file; one that
/// keeps that of what haul tries it with alone is told of afterwards. What was written otherwise than it was
/// sent fails where the server makes sums, or it is read back.
#[test]
fn servers_that_lose_the_rest_are_found_out() {
    let room = Room::new();
    let (source, stood) = (room.file("source", b"abcdef"), b"0123456789");
    let cases = [
        (Into::Cuts, "does not keep the rest"),
        (Into::Appends, "does not keep the rest"),
        (Into::Replaces, "does not keep the rest"),
        (Into::CutsFinal, "cut it off"),
        (Into::Zeros, "SHA256"),
        (Into::Well, ""),
    ];
    for (how, says) in cases {
        for by_esto in [true, false] {
            let script = Script::default().has("/d/f", stood).with_sums();
            let taker = script.into(how, by_esto).start();
            let more: &[&str] = if by_esto { &["--patience=2s"] } else { &["--patience=2s", "--in-place"] };
            let ended = put("0:3", "4", more, &source, &taker.url("/d/f")).run().sane();
            let is_kept = !matches!(how, Into::CutsFinal | Into::Zeros);
            let want: &[u8] = if how == Into::Well { b"0123abc789" } else { stood };
            assert!(!is_kept || taker.file("/d/f").as_deref() == Some(want), "{how:?}: {}", ended.describe());
            let _ = ended.exits(if how == Into::Well { 0 } else { 3 }).says(says);
            assert_eq!(taker.paths(), ["/d/f"], "{how:?}: what was tried is not left");
        }
    }
}

/// Goal: a server that takes a place far behind in a file for another one is found out before it has the
/// user's file, where places can be tried.
#[test]
fn ways_into_files_are_tried_at_the_place() {
    let (room, stood) = (Room::new(), vec![9; 4 * MIB]);
    let source = room.file("source", b"abcdef");
    let taker = Script::default().has("/d/f", &stood).with_sums().into(Into::Wraps, true).start();
    let ended = put("0:", "2MiB", &["--patience=2s"], &source, &taker.url("/d/f")).run().sane();
    assert!(taker.file("/d/f").as_deref() == Some(&stood[..]), "{}", ended.describe());
    let _ = ended.exits(3).says("nothing was written");
    assert_eq!(taker.paths(), ["/d/f"], "what was tried is not left");
    // Where that cannot be tried, and nothing would show it.
    let taker = Script::default().has("/d/f", &stood).into(Into::Well, false).start();
    let ended = put("0:", "2GiB", &["--in-place"], &source, &taker.url("/d/f")).run().sane().exits(3);
    let _ = ended.says("count places in 32 bits");
    assert!(taker.file("/d/f").as_deref() == Some(&stood[..]));
    // In the middle of what was tried with, at its end, and behind it.
    for at in [2, 4, 5, MIB - 1] {
        let taker = Script::default().has("/d/f", &stood).with_sums().into(Into::Wraps, true).start();
        put("0:1", &at.to_string(), &[], &source, &taker.url("/d/f")).run().sane().exits(0);
        let mut want = stood.clone();
        want[at] = b'a';
        assert!(taker.file("/d/f") == Some(want), "{at}");
    }
}

/// Goal: what stands at a final name is never removed, whatever breaks off; the part is sent again where that
/// may help, and what stands there is whole then.
#[test]
fn what_breaks_off_in_place_is_sent_again() {
    let (room, stood) = (Room::new(), vec![9; 12 * MIB]);
    let big = some_bytes(7 * MIB);
    let source = room.file("source", &big);
    let mut want = stood.clone();
    want[MIB..8 * MIB].copy_from_slice(&big);
    for (how, code) in [
        (vec![Takes::HangUp(3 * MIB), Takes::Cut(2 * MIB, "426 lost")], 0),
        (vec![Takes::Refuse("550 not for you")], 3),
        (vec![Takes::HangUp(MIB); 9], 3),
    ] {
        let script = Script::default().has("/d/target", &stood).takes("/target", &how);
        let taker = script.into(Into::Well, true).start();
        let ended = put("0:", "1MiB", &["--patience=2s"], &source, &taker.url("/d/target")).run().sane();
        let has = taker.file("/d/target").expect("it is never removed");
        assert!(code != 0 || has == want, "{how:?}: {}", ended.describe());
        assert!(has.len() == stood.len() && has[8 * MIB..] == stood[8 * MIB..] && has[..MIB] == stood[..MIB]);
        let _ = ended.exits(code);
        assert!(!taker.heard().iter().any(|line| line.starts_with("DELE /d/target")), "{how:?}");
    }
}

/// Goal: in place one file at a server gets the bytes of one entry: of two names that are one to it, by their
/// letters, by a link of a directory, or by two links of one file of which one is unchanged, one fails at
/// least, and what is said to be copied, or unchanged, has its own bytes. Of a server that has no names of
/// its own for files the summary says that this was not looked at.
#[test]
fn one_file_at_a_server_is_one_entrys() {
    // As the server says that it wrote what it has.
    let then = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_577_934_245);
    for (folds, names, stands) in [
        (true, ["A", "a"], false),
        (false, ["d1/x", "d2/x"], false),
        (false, ["A", "B"], true),
        (false, ["B", "A"], true),
    ] {
        for calls in [true, false] {
            let room = Room::new();
            let data = room.dir("data");
            for dir in ["d1", "d2"] {
                fs::create_dir_all(data.join(dir)).expect("a directory");
            }
            let contents = [b"first content of two".to_vec(), b"and the other, which is another".to_vec()];
            for (name, content) in names.iter().zip(&contents) {
                fs::write(data.join(name), content).expect("write");
                tree::set_mtime(&data.join(name), then);
            }
            let mut script = Script::default().with_sums().leads("/d/d2", "/d/d1").leads("/d/B", "/d/A");
            if stands {
                script = script.has("/d/A", &contents[0]);
            }
            if folds {
                script = script.folds();
            }
            if calls {
                script = script.calls_files();
            }
            let taker = script.start();
            let cp =
                Haul::cp(["-r", "--in-place", "--patience=2s"]).args([crate::support::ftpd::contents(&data)]);
            let ended = cp.args([taker.url("/d/")]).env("XDG_STATE_HOME", room.at("state")).run().sane();
            let held: Vec<_> = taker.paths().iter().filter_map(|path| taker.file(path)).collect();
            assert_eq!(held.len(), 1, "{names:?}: {}", ended.describe());
            if calls {
                let ended = ended.exits(3).says("this copy");
                let names = names.map(|name| ended.stderr.contains(&format!("/{name}: ")));
                // Who is not named has its bytes.
                let told_right =
                    names.iter().zip(&contents).all(|(failed, content)| *failed || held[0] == *content);
                assert!(told_right, "{names:?}: {}", ended.describe());
            } else if ended.status.code() == Some(0) {
                let _ = ended.says("no names of its own for files (Unique)");
            }
        }
    }
}

/// Goal: a file at a server is unchanged for one entry of a copy, in place or not: of two names that are one
/// to it the second fails in each run.
/// Method: one file stands there, which looks like either of two sources; a directory that is a link, and
/// letters that make no difference, where the server has names of its own for files and where not.
#[test]
fn one_file_at_a_server_is_unchanged_for_one_entry() {
    let then = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_577_934_245);
    for (folds, calls, names) in
        [(false, true, ["d1/x", "d2/x"]), (true, true, ["A", "a"]), (true, false, ["A", "a"])]
    {
        // In place nothing is known of files that have no names of their own, as the summary says.
        for in_place in [false, true].into_iter().filter(|in_place| calls || !in_place) {
            let room = Room::new();
            let data = room.dir("data");
            for dir in ["d1", "d2"] {
                fs::create_dir_all(data.join(dir)).expect("a directory");
            }
            let contents = [b"content of the one", b"content of the two"];
            for (name, content) in names.iter().zip(contents) {
                fs::write(data.join(name), content).expect("write");
                tree::set_mtime(&data.join(name), then);
            }
            let mut script = Script::default().with_sums().leads("/d/d2", "/d/d1");
            script = script.has(&format!("/d/{}", names[0]), contents[0]);
            if folds {
                script = script.folds();
            }
            if calls {
                script = script.calls_files();
            }
            let taker = script.start();
            for _ in 0..2 {
                let options: &[&str] =
                    if in_place { &["-r", "--in-place", "--patience=2s"] } else { &["-r", "--patience=2s"] };
                let cp = Haul::cp(options).args([crate::support::ftpd::contents(&data)]);
                let ended = cp.args([taker.url("/d/")]).env("XDG_STATE_HOME", room.at("state")).run().sane();
                assert_eq!(
                    ended.status.code(),
                    Some(3),
                    "{names:?} {calls} {in_place}: {}",
                    ended.describe()
                );
            }
        }
    }
}

/// Goal: a file that was begun in place and not seen whole, or seen to be wrong, is unchanged to no later
/// run, also where its length and its time are those of the source, and where the server sets no times; one
/// that was seen to be wrong not to another host, either. What is whole then is unchanged, unless the server
/// sets no times, where these prove nothing.
/// Method: the server's own time of a file is that of the source; it keeps another byte, or has all bytes
/// when the run is killed, and the source changes behind that.
#[test]
fn what_was_begun_in_place_is_not_unchanged() {
    let then = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_577_934_245);
    let (killed, wrong) = (Takes::Stall(5000), Takes::Wrong);
    for (how, sets_times, same_host, in_place) in [
        (wrong, false, true, true),
        (wrong, false, true, false),
        (wrong, true, false, true),
        (killed, true, true, true),
    ] {
        let room = Room::new();
        let source = room.file("source", some_bytes(5000));
        tree::set_mtime(&source, then);
        let times = if how == killed { 1 } else { 2 };
        let mut script = Script::default().with_sums().takes("/d/f", &vec![how; times]);
        if !sets_times {
            script = script.without_times();
        }
        let taker = script.start();
        let cp = |in_place: bool, state: &str| {
            let cp = Haul::cp(["--patience=2s"]).args(in_place.then_some("--in-place")).args([&source]);
            cp.args([taker.url("/d/f")]).env("XDG_STATE_HOME", room.at(state))
        };
        if how == killed {
            let mut run = cp(true, "state").start();
            assert!(run.until(|_| taker.file("/d/f").is_some_and(|has| has.len() == 5000)));
            run.signal(rustix::process::Signal::KILL);
            assert!(run.wait().was_killed());
            let mut bytes = read(&source);
            bytes[77] ^= 1;
            fs::write(&source, bytes).expect("write");
            tree::set_mtime(&source, then);
        } else {
            let _ = cp(true, "state").run().sane().exits(3).says("SHA256");
        }
        let state = if same_host { "state" } else { "elsewhere" };
        let ended = cp(in_place, state).run().sane().exits(0);
        assert!(taker.file("/d/f") == Some(read(&source)), "{how:?} {sets_times}: {}", ended.describe());
        let again = cp(in_place, state).run().sane().exits(0);
        let unchanged = u64::from(sets_times);
        assert_eq!(again.summary().number("unchanged"), unchanged, "{how:?}: {}", again.describe());
    }

    // Where nothing can be put on record, that is said.
    let room = Room::new();
    let (source, no_directory) = (room.file("source", some_bytes(5000)), room.file("file", ""));
    let taker = Script::default().with_sums().start();
    let cp = Haul::cp(["--in-place"]).args([&source]).args([taker.url("/d/f")]);
    cp.env("XDG_STATE_HOME", no_directory)
        .run()
        .sane()
        .exits(0)
        .says("NOT on record: 1 file begun in place: ");
}
