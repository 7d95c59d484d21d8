//! Parts of files (`--range`) from FTP servers, and to them.

use std::fs;

use crate::support::beside::beside;
use crate::support::compare::assert_no_debris;
use crate::support::ftpd::{Ftpd, Kind};
use crate::support::liar::{Lies, Rest};
use crate::support::run::Haul;
use crate::support::{Room, read, tree};

const MIB: usize = 1 << 20;
const LEN: usize = 13 * MIB + 5;

fn some_bytes() -> Vec<u8> {
    tree::bytes(&mut fastrand::Rng::with_seed(71), LEN)
}

/// Goal: a part of a file at a server comes, as a file of its own or into one that stands here, and a part of
/// a file here goes to one; each byte of it, and no other. What is no part of the file is refused. Into files
/// at servers: `ftp_in_place`.
/// Method: each kind of server; parts shorter than an object and longer, at the beginning, within, at the
/// end.
#[test]
fn parts_come_and_go() {
    beside(Kind::here(), |kind| {
        let (room, ftpd) = (Room::new(), Ftpd::start(kind));
        let big = some_bytes();
        let source = room.file("big", &big);
        // Of what has just changed the content is asked for a second later.
        tree::age(&source, &mut fastrand::Rng::with_seed(72));
        let url = ftpd.url(&source);
        let end = format!("{}:", 12 * MIB);
        let parts = [("0:1", 0..1), ("7:300KiB", 7..7 + 300 * 1024), ("3MiB:9MiB", 3 * MIB..12 * MIB)];
        for (n, (range, bytes)) in parts.into_iter().chain([(&end[..], 12 * MIB..LEN)]).enumerate() {
            let sink = room.at(&format!("part {n}"));
            let ended = Haul::cp(["--range", range, &url]).args([&sink]).run().sane().exits(0);
            assert!(read(&sink) == big[bytes.clone()], "{kind:?} {range}: {}", ended.describe());
            let there = room.at(&format!("sent {n}"));
            let ended = Haul::cp(["--range", range]).args([&source]).args([ftpd.url(&there)]).run();
            let ended =
                ended.sane().exits(0).says("NOT protected").says("can be read and changed on their way");
            assert!(read(&there) == big[bytes], "{kind:?} {range}: {}", ended.describe());
        }
        let into = room.file("into", vec![7; 8 * MIB]);
        let ended = Haul::cp(["--range", "1MiB:5MiB", "--to", "2MiB", &url]).args([&into]).run();
        let ended = ended.sane().exits(0);
        let mut want = vec![7; 8 * MIB];
        want[2 * MIB..7 * MIB].copy_from_slice(&big[MIB..6 * MIB]);
        assert!(read(&into) == want, "{kind:?}: {}", ended.describe());

        let refused = |options: &[&str], from: &str, to: String, says: &str| {
            let ended = Haul::cp(options).args([from]).args([to]).run().sane().says(says);
            assert!(matches!(ended.status.code(), Some(1 | 2)), "{kind:?}: {}", ended.describe());
        };
        let here = room.at("none").display().to_string();
        refused(&["--range", "13MiB:9"], &url, here.clone(), "no such part");
        refused(&["--range", "0:9"], &ftpd.url(room.at("")), here, "is a directory");
        assert_no_debris(&room.at(""));
    });
}

/// Goal: a long part of a file at a server that has blocks comes in blocks, over several connections; each
/// byte of it, and no other.
#[test]
fn long_parts_come_in_blocks() {
    for kind in Kind::these(&[Kind::Gridftp]) {
        let (room, ftpd) = (Room::new(), Ftpd::start(kind));
        let big = tree::bytes(&mut fastrand::Rng::with_seed(72), 40 * MIB + 7);
        let source = room.file("big", &big);
        let (end, all) = (format!("{}:", 20 * MIB + 1), format!("0:{}", 40 * MIB + 7));
        let parts = [
            ("3:17MiB", 3..3 + 17 * MIB, true),
            (&end[..], 20 * MIB + 1..40 * MIB + 7, true),
            (&all[..], 0..40 * MIB + 7, true),
            ("5MiB:15MiB", 5 * MIB..20 * MIB, false),
        ];
        for (range, bytes, in_blocks) in parts {
            let sink = room.at("part");
            let ended = Haul::cp(["--range", range]).args([ftpd.url(&source)]).args([&sink]).run();
            let ended = ended.sane().exits(0);
            assert!(read(&sink) == big[bytes], "{kind:?} {range}: {}", ended.describe());
            let streams = ended.summary().chosen("source streams").to_owned();
            assert_eq!(streams.contains("connections a file"), in_blocks, "{range}: {streams}");
        }
        let into = room.file("into", vec![7; 30 * MIB]);
        let place = ["--range", "1MiB:20MiB", "--to", "2MiB"];
        let ended = Haul::cp(place).args([ftpd.url(&source)]).args([&into]).run().sane().exits(0);
        let mut want = vec![7; 30 * MIB];
        want[2 * MIB..22 * MIB].copy_from_slice(&big[MIB..21 * MIB]);
        assert!(read(&into) == want, "{kind:?}: {}", ended.describe());
    }
}

/// Goal: of a server that begins elsewhere than it is told to no part is taken.
#[test]
fn a_part_from_elsewhere_is_none() {
    let (room, big) = (Room::new(), some_bytes());
    let liar = Lies::default().rest(Rest::Ignored).file("/d/big", &big).start();
    for range in ["7:300KiB", "3MiB:9MiB", "12MiB:"] {
        let sink = room.at("copy");
        let ended = Haul::cp(["--patience=3s", "--range", range, &liar.url("/d/big")]).args([&sink]).run();
        let ended = ended.sane().exits(3);
        assert!(fs::read(&sink).is_err(), "{range}: {}", ended.describe());
    }
}
