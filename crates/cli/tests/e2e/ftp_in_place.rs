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
