//! Files that come in blocks (MODE E): from the servers of Globus, and from servers that lie about them.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::support::beside::beside;
use crate::support::block_liar::{BlockLiar, BlockLies, Manner};
use crate::support::compare::{BELOW, assert_no_debris, assert_same};
use crate::support::ftpd::{Ftpd, Kind, contents};
use crate::support::run::{Haul, Outcome};
use crate::support::{Room, read, tree};

fn some_bytes(len: usize) -> Vec<u8> {
    tree::bytes(&mut fastrand::Rng::with_seed(111), len)
}

/// `haul cp -r -v --patience=2s OPTIONS URL SINK`, in objects of 256 KiB.
fn cp(options: &[&str], liar: &BlockLiar, path: &str, sink: &Path) -> Outcome {
    let haul = Haul::cp(["-r", "-v", "--patience=2s", "--object-size=256KiB"]).args(options);
    haul.args([liar.url(path)]).args([sink]).run().sane()
}

/// A large file has several connections from so many bytes on.
const LARGE: usize = 20 << 20;

/// Goal: whatever goes wrong with the blocks of a large file, the copy is the server's file, or there is
/// none; and where it went wrong once, there is one, by another attempt or another way.
/// Method: each way once; the file as the liar has it.
#[test]
fn what_comes_is_the_file_or_nothing() {
    let content = some_bytes(LARGE + 777);
    beside(
        [
            Manner::Honest,
            Manner::Twice,
            Manner::TwiceOther,
            Manner::FalseFirst,
            Manner::Overlaps,
            Manner::Outside,
            Manner::FarOutside,
            Manner::Gap,
            Manner::Short,
            Manner::Promises(0),
            Manner::Promises(3),
            Manner::Promises(5),
            Manner::Promises(4097),
            Manner::Promises(u64::MAX),
            Manner::EofFirst,
            Manner::EofAmong,
            Manner::Apart,
            Manner::Drops,
            Manner::DropsBetween,
            Manner::ClosesEarly,
            Manner::Stalls,
            Manner::HangsUp,
            Manner::Refuses("425 cannot connect"),
            Manner::Refuses("504 no blocks today"),
            Manner::Refuses("226 it is there already"),
            Manner::Nobody,
            Manner::BeginsAlone,
            Manner::Regrets,
            Manner::Backwards,
            Manner::Parts(1000),
            Manner::Halves,
            Manner::Injected,
            Manner::InjectedCut,
            Manner::InjectedHeld,
            Manner::Stranger,
            Manner::Movers,
            Manner::OneMore,
            Manner::GoesOn,
            Manner::Reuses,
            Manner::OddBits,
        ],
        |manner| {
            let room = Room::new();
            let sink = room.dir("sink");
            let liar = BlockLies::default().file("/d/big", &content).manners(&[manner]).start();
            let ended = cp(&[], &liar, "/d/", &sink);
            let copy = fs::read(sink.join("big"));
            assert!(copy.is_ok_and(|copy| copy == content), "{manner:?}: {}", ended.describe());
            let ended = ended.exits(0);
            assert!(liar.heard_of("MODE E") > 0, "{manner:?}: {:?}", liar.heard());
            // What is as it may be needs no second attempt.
            if matches!(
                manner,
                Manner::Honest | Manner::EofFirst | Manner::EofAmong | Manner::Apart | Manner::Stranger
            ) {
                assert_eq!(liar.heard_of("RETR"), 1, "{manner:?}: {:?}", liar.heard());
                // Fewer than four where another file was under way when it began.
                ended.says("in blocks, up to ");
            }
        },
    );
}

/// Goal: data may come from the hosts that a server names as its nodes, and from no others; of a list that
/// holds an address of nobody none is believed.
/// Method: connections from 127.0.0.3, or a stranger's from 127.0.0.2, against what was named.
#[test]
fn nodes_that_a_server_names_may_send() {
    let content = some_bytes(LARGE);
    beside(
        [
            (&["127,0,0,3,20,0"][..], Manner::Movers, true),
            (&["127,0,0,3,20,0"], Manner::Stranger, true),
            (&["127,0,0,2,20,0"], Manner::Movers, false),
            (&["127,0,0,3,20,0", "224,0,0,1,20,0"], Manner::Movers, false),
        ],
        |(named, manner, is_taken)| {
            let room = Room::new();
            let sink = room.dir("sink");
            let liar = BlockLies::default().file("/big", &content).nodes(named).manners(&[manner]).start();
            let ended = cp(&[], &liar, "/big", &sink).exits(0);
            assert!(read(sink.join("big")) == content, "{named:?}, {manner:?}: {}", ended.describe());
            assert_eq!(liar.heard_of("RETR") == 1, is_taken, "{named:?}, {manner:?}: {:?}", liar.heard());
        },
    );
}

/// Goal: where it always goes wrong, and nothing else is there, the file fails in bounded time and words; no
/// byte of it is there.
#[test]
fn what_never_fits_fails() {
    let content = some_bytes(LARGE);
    beside(
        [
            Manner::TwiceOther,
            Manner::FalseFirst,
            Manner::Gap,
            Manner::Promises(5),
            Manner::Drops,
            Manner::Stalls,
            Manner::HangsUp,
            Manner::Injected,
            Manner::InjectedCut,
            Manner::Movers,
            Manner::Regrets,
        ],
        |manner| {
            let room = Room::new();
            let sink = room.dir("sink");
            let lies = BlockLies::default().file("/big", &content).always(manner);
            let liar = lies.blocks_only().start();
            let ended = cp(&[], &liar, "/big", &sink);
            assert!(matches!(ended.status.code(), Some(1 | 3)), "{manner:?}: {}", ended.describe());
            assert!(!sink.join("big").exists(), "{manner:?}");
            assert!(ended.stderr.len() < 64 << 10, "{manner:?}: {} bytes", ended.stderr.len());
            // What was written and is not whole has no name; what the next run could use there is none of.
            assert!(liar.heard_of("RETR") < 100, "{manner:?}: {}", liar.heard_of("RETR"));
        },
    );
}

/// Goal: small files come one behind the other, each its own content, whatever happens to one of them; and
/// where blocks do not fit, as they are.
/// Method: files of many lengths; one manner for one of them, at the start and among them; one is refused.
#[test]
fn small_files_keep_their_names() {
    let all = some_bytes(1 << 20);
    beside(
        [
            Manner::Honest,
            Manner::TwiceOther,
            Manner::Outside,
            Manner::Short,
            Manner::Promises(0),
            Manner::Promises(2),
            Manner::Apart,
            Manner::Drops,
            Manner::HangsUp,
            Manner::Refuses("550 not this one"),
            Manner::Refuses("425 cannot connect"),
            Manner::Nobody,
            Manner::BeginsAlone,
            Manner::Regrets,
            Manner::Injected,
            Manner::InjectedCut,
            Manner::InjectedHeld,
            Manner::Stranger,
            Manner::OneMore,
            Manner::GoesOn,
            Manner::Reuses,
        ],
        |manner| {
            for before in [0, 5] {
                let room = Room::new();
                let sink = room.dir("sink");
                let mut lies = BlockLies::default();
                for n in 0..20 {
                    lies = lies.file(&format!("/d/f{n}"), &all[n * 100..n * 1100]);
                }
                let mut manners = vec![Manner::Honest; before];
                manners.push(manner);
                let liar = lies.refuses("/d/f7").manners(&manners).start();
                let ended = cp(&[], &liar, "/d/", &sink);
                for n in 0..20 {
                    let copy = fs::read(sink.join(format!("f{n}")));
                    let same = copy.is_ok_and(|copy| copy == all[n * 100..n * 1100]);
                    assert!(same, "{manner:?}, {before} before: f{n} in {}", ended.describe());
                }
                ended.exits(0);
            }
        },
    );
}

/// Goal: a session that does not come up has nothing that others could have read meanwhile.
/// Method: the walk's login and one more are answered, all others never are.
#[test]
fn a_login_without_an_answer_holds_up_no_file() {
    let all = some_bytes(1 << 20);
    let room = Room::new();
    let sink = room.dir("sink");
    let mut lies = BlockLies::default().logins(2);
    for n in 0..1000 {
        lies = lies.file(&format!("/d/f{n}"), &all[n..n + 1000]);
    }
    let liar = lies.start();
    let haul = Haul::cp(["-r", "-v", "--patience=40s"]).args([liar.url("/d/")]).args([&sink]);
    let ended = haul.run().sane();
    for n in 0..1000 {
        assert_eq!(read(sink.join(format!("f{n}"))), &all[n..n + 1000], "f{n} in {}", ended.describe());
    }
    ended.exits(0);
}

/// Goal: a transfer that was lost goes on where it was, of the same version; of two versions no file is made.
/// Method: sessions have two versions in turns, or one; the first transfers drop; how much was asked for
/// again.
#[test]
fn a_lost_transfer_goes_on_with_its_own() {
    let both = some_bytes(2 * LARGE);
    let (one, other) = both.split_at(LARGE);
    beside([1, 2, 3, 100], |times| {
        let room = Room::new();
        let sink = room.dir("sink");
        let liar = BlockLies::default().file("/big", one).manners(&vec![Manner::Drops; times]).start();
        let ended = cp(&[], &liar, "/big", &sink);
        assert!(read(sink.join("big")) == one, "{}", ended.describe());
        if times == 1 {
            let again: Vec<String> =
                liar.heard().into_iter().filter(|line| line.starts_with("REST")).collect();
            assert!(again.len() == 1 && again[0].contains('-'), "{again:?}");
        }
        ended.exits(0);
        for manner in [Manner::Drops, Manner::FromTheStart] {
            let sink = room.dir(&format!("{manner:?}"));
            let liar = BlockLies::default()
                .in_turn("/big", &[one, other])
                .manners(&[Manner::Drops, manner])
                .manners(&vec![Manner::Drops; times])
                .start();
            let ended = cp(&[], &liar, "/big", &sink);
            if let Ok(copy) = fs::read(sink.join("big")) {
                assert!(copy == one || copy == other, "of neither: {}", ended.describe());
            } else {
                assert!(matches!(ended.status.code(), Some(1 | 3)), "{}", ended.describe());
            }
        }
    });
}

/// A server's place with files of every kind of length.
fn filled(room: &Room) -> std::path::PathBuf {
    let (data, mut rng) = (room.dir("data"), fastrand::Rng::with_seed(52));
    fs::create_dir(data.join("sub")).expect("make a directory");
    let lens = [0, 1, 6, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, 9_000_000, 40 << 20];
    for (n, len) in lens.into_iter().chain((0..200).map(|n| n * 313)).enumerate() {
        let path = data.join(if n % 3 == 0 { format!("sub/f{n}") } else { format!("f{n}") });
        fs::write(&path, tree::bytes(&mut rng, len)).expect("write a file");
        tree::set_mtime(&path, SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000 + n as u64));
    }
    for dir in [data.join("sub"), data.clone()] {
        tree::set_mtime(&dir, SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000));
    }
    data
}

/// Goal: trees come in blocks from a real server, plain and with users of the grid, byte by byte, however
/// data are protected.
/// Method: the servers of Globus, with one process and with two data movers.
#[test]
fn trees_come_in_blocks() {
    need!("gridftp");
    let room = Room::new();
    let data = filled(&room);
    beside(
        [
            (Kind::Gridftp, None),
            (Kind::GridftpStriped, None),
            (Kind::GridftpGsi, Some("plain")),
            (Kind::GridftpGsi, Some("shown")),
            (Kind::GridftpGsi, Some("private")),
        ],
        |(kind, data_channel)| {
            let ftpd = Ftpd::start(kind);
            let sink = room.dir(&format!("{kind:?}-{data_channel:?}"));
            let mut haul = Haul::cp(["-r", "-v"]).args([ftpd.url(contents(&data))]).args([&sink]);
            if let Some(data_channel) = data_channel {
                haul = haul
                    .env("X509_CERT_DIR", ftpd.of_grid("authorities"))
                    .env("X509_USER_PROXY", ftpd.of_grid("alice"))
                    .args(["--data-channel", data_channel]);
            }
            let ended = haul.run().sane().exits(0);
            assert_same(&data, &sink, BELOW);
            assert_no_debris(&sink);
            // Fewer than four where another file was under way when it began.
            ended.says("in blocks, up to ");
        },
    );
}
