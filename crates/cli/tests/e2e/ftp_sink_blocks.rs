//! Files that go to servers in blocks (MODE E): to those of Globus, and to a server that takes them wrongly.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::support::beside::beside;
use crate::support::compare::{BELOW, assert_no_debris, assert_same};
use crate::support::ftpd::{Ftpd, Kind, contents};
use crate::support::run::{Haul, Outcome};
use crate::support::taker::{InBlocks, Script, Taker, Takes};
use crate::support::{Room, read, set_mode, tree};

const MIB: usize = 1 << 20;
/// A file has several connections from so many bytes on.
const LARGE: usize = 20 * MIB + 777;

fn file(path: &Path, rng: &mut fastrand::Rng, len: usize) {
    std::fs::write(path, tree::bytes(rng, len)).expect("write a file");
    set_mode(path, 0o644);
    tree::set_mtime(
        path,
        SystemTime::UNIX_EPOCH + Duration::from_secs(rng.u64(1_000_000_000..1_600_000_000)),
    );
}

/// A large file and small ones of many lengths.
fn furnish(room: &Room) -> PathBuf {
    let data = room.dir("data");
    let mut rng = fastrand::Rng::with_seed(31);
    file(&data.join("large"), &mut rng, LARGE);
    (0..30).for_each(|n| file(&data.join(format!("f{n}")), &mut rng, n * 3001));
    data
}

/// `haul cp --json -r -v --patience=2s DATA/ TAKER`.
fn cp(data: &Path, taker: &Taker) -> Outcome {
    Haul::cp(["-r", "-v", "--patience=2s"]).args([contents(data)]).args([taker.url("/d/")]).run().sane()
}

/// Each file is there, as it was sent, and nothing else.
#[track_caller]
fn assert_whole(taker: &Taker, data: &Path, ended: &Outcome) {
    for path in taker.paths() {
        let name = path.rsplit('/').next().expect("a name");
        assert!(!name.contains("haul~"), "{path} stays\n{}", ended.describe());
        assert!(taker.file(&path) == Some(read(data.join(name))), "{path} differs\n{}", ended.describe());
    }
    assert_eq!(taker.paths().len(), 31, "{}", ended.describe());
}

/// Goal: to servers of Globus files go in blocks, whatever is shown and protected on data connections, and
/// are there, each byte of them.
/// Method: lengths about those of blocks and objects; compared by other code.
#[test]
fn blocks_go_to_globus() {
    need!("gridftp");
    let room = Room::new();
    let data = furnish(&room);
    let mut rng = fastrand::Rng::with_seed(32);
    for len in [0, 1, 65_502, 65_503, 262_144, 262_145, 4 * MIB, 4 * MIB + 1, 17 * MIB, 33 * MIB + 5] {
        file(&data.join(format!("of {len}")), &mut rng, len);
    }
    let (plain, gsi) = (Ftpd::start(Kind::Gridftp), Ftpd::start(Kind::GridftpGsi));
    let of_grid = ["plain", "shown", "private"].map(|channel| (&gsi, channel));
    beside(of_grid.into_iter().chain([(&plain, "none")]), |(ftpd, channel)| {
        let sink = room.dir(&format!("sink {channel}"));
        let haul = match ftpd.kind {
            Kind::GridftpGsi => Haul::cp([format!("--data-channel={channel}")])
                .env("X509_CERT_DIR", ftpd.of_grid("authorities"))
                .env("X509_USER_PROXY", ftpd.of_grid("alice")),
            _ => Haul::cp([""; 0]),
        };
        let haul = haul.args(["-r", "-v"]).args([contents(&data)]).args([ftpd.url(&sink)]);
        let ended = haul.run().sane().exits(0);
        assert_same(&data, &sink, BELOW);
        assert_no_debris(&sink);
        ended.says("in blocks, up to");
    });
}

/// Goal: small files follow each other over connections that stay; but not where no sum would show that one
/// got what was left of the one before.
#[test]
fn small_files_share_connections() {
    beside([true, false], |sums| {
        let room = Room::new();
        let data = furnish(&room);
        let script = Script::default().in_blocks("none", &[]);
        let taker = if sums { script.with_sums() } else { script }.start();
        let ended = cp(&data, &taker).exits(0);
        assert_whole(&taker, &data, &ended);
        let heard = taker.heard();
        let of = |verb: &str| heard.iter().filter(|line| line.starts_with(verb)).count();
        assert_eq!(of("STOR"), 31, "{heard:?}");
        // One for each session, and those of the large file.
        assert!(if sums { of("EPSV") <= of("USER") + 2 } else { of("EPSV") == 31 }, "{heard:?}");
    });
}

/// Goal: a server that says that it makes sums and makes none is found out: from then on each file has
/// connections of its own, and it is told that nothing was compared; what is no sum is not taken for one.
/// Method: few buffers and one session, so that files are still to come when the first are asked about.
#[test]
fn who_only_says_that_he_makes_sums_is_found_out() {
    // An epoch ends with 1024 files at the latest, while those that memory holds may be on their way.
    const FILES: usize = 2000;
    beside([("504 not of that", 0), ("500 what?", 0), ("213 none of mine", 3)], |(reply, code)| {
        let room = Room::new();
        let data = room.dir("data");
        let mut rng = fastrand::Rng::with_seed(33);
        (0..FILES).for_each(|n| file(&data.join(format!("f{n}")), &mut rng, 30_000));
        let taker = Script::default().in_blocks("none", &[]).sums_say(reply).start();
        let options = ["-r", "-v", "--patience=5s", "--writers=1", "--memory=8MiB"];
        let ended =
            Haul::cp(options).args([contents(&data)]).args([taker.url("/d/")]).run().sane().exits(code);
        let heard = taker.heard();
        let first = heard.iter().position(|line| line.starts_with("CKSM")).expect("a sum is asked for");
        let of = |verb: &str| heard[first..].iter().filter(|line| line.starts_with(verb)).count();
        if code == 0 {
            assert_eq!(taker.paths().len(), FILES, "{}", ended.describe());
            assert!(of("STOR") > 0, "all were sent before: {}", ended.describe());
            assert_eq!(of("EPSV"), of("STOR"), "{}", ended.describe());
            ended.says(&format!("; not of {FILES} files, of which it made none"));
        } else {
            assert!(taker.paths().is_empty(), "{:?}", taker.paths());
        }
    });
}

/// Goal: whatever goes wrong once with a file in blocks, each file is there as it was sent; nothing of ours
/// stays.
/// Method: each way once, of the large file and of one among the small ones; with sums and without.
#[test]
fn what_goes_wrong_is_sent_again() {
    beside(
        [
            InBlocks::Marked,
            InBlocks::Refuse("500 not so"),
            InBlocks::Refuse("553 not this name"),
            InBlocks::Refuse("425 no connections"),
            InBlocks::Refuse("450 not now"),
            InBlocks::Refuse("226 I have it already"),
            InBlocks::Early(1),
            InBlocks::FirstEnd,
            InBlocks::Claims,
            InBlocks::Short(5),
            InBlocks::LosesOne(1, Some("426 broken")),
            InBlocks::LosesOne(1, Some("500 an end-of-file was reached")),
            InBlocks::LosesOne(1, None),
            InBlocks::Confuses("451 my disk is odd"),
            InBlocks::HangUp(1),
            InBlocks::Stall(1),
            InBlocks::StallsOne,
            InBlocks::Deaf,
            InBlocks::Begins,
            InBlocks::Closes,
            InBlocks::Wrong,
        ],
        |how| {
            for part in ["large", ".f7."] {
                let room = Room::new();
                let data = furnish(&room);
                let script = Script::default().in_blocks(part, &[how]);
                // Whoever makes sums is sent files over connections that stay.
                let needs_sums = matches!(how, InBlocks::Wrong | InBlocks::FirstEnd | InBlocks::Begins);
                let taker = if needs_sums || part == "large" { script.with_sums() } else { script }.start();
                let ended = cp(&data, &taker);
                assert!(ended.status.code() == Some(0), "{part} {how:?}: {}", ended.describe());
                assert_whole(&taker, &data, &ended);
                if how == InBlocks::Wrong {
                    // What went twice, and why, is in every summary.
                    let (again, why) = ("sent again: ", "of 1 file, for it came to nothing once");
                    let _ = ended.says(again).says(why).says("SHA256");
                }
            }
        },
    );
}

/// Goal: where it goes wrong with every file in blocks, all go as they are, and it is said once why.
#[test]
fn what_always_goes_wrong_ends_blocks() {
    beside(
        [
            InBlocks::Refuse("500 not so"),
            InBlocks::Refuse("425 no connections"),
            InBlocks::Short(0),
            InBlocks::LosesOne(1, Some("426 broken")),
            InBlocks::Confuses("451 my disk is odd"),
            InBlocks::HangUp(1),
            InBlocks::Deaf,
        ],
        |how| {
            let room = Room::new();
            let data = furnish(&room);
            let taker = Script::default().in_blocks("", &[how; 100]).start();
            let ended = cp(&data, &taker);
            assert!(ended.status.code() == Some(0), "{how:?}: {}", ended.describe());
            assert_whole(&taker, &data, &ended);
            ended.says("one connection a session: ");
        },
    );
    for reply in ["504 no such mode", "500 unknown"] {
        let room = Room::new();
        let data = furnish(&room);
        let taker = Script::default().refuses_blocks(reply).start();
        let ended = cp(&data, &taker).exits(0);
        assert_whole(&taker, &data, &ended);
        ended.says("one connection a session: MODE E");
    }
}

/// Goal: what a server never keeps whole, in blocks or not, never gets its name; the other files do.
#[test]
fn lies_in_blocks_never_get_a_name() {
    beside(
        [("large", InBlocks::Wrong), (".f7.", InBlocks::Wrong), ("large", InBlocks::Short(9))],
        |(part, how)| {
            let room = Room::new();
            let data = furnish(&room);
            let script = Script::default().in_blocks(part, &[how; 20]).takes(part, &[Takes::Wrong; 20]);
            let taker = script.with_sums().start();
            let ended = cp(&data, &taker).exits(3);
            assert_eq!(taker.paths().len(), 30, "{}", ended.describe());
            assert!(taker.paths().iter().all(|path| !path.contains("haul~")), "{}", ended.describe());
        },
    );
}

/// Goal: of a server without room the run ends, and says what to do.
#[test]
fn no_room_in_blocks_ends_the_run() {
    beside([InBlocks::Confuses("452 disk full"), InBlocks::Refuse("552 over quota")], |how| {
        let room = Room::new();
        let data = furnish(&room);
        let taker = Script::default().in_blocks("large", &[how; 20]).start();
        cp(&data, &taker).exits(1).says("there is no room at the server");
        assert_eq!(taker.file("/d/large"), None);
    });
}

/// Goal: what connections still hold of a file that was broken off goes into no other file.
/// Method: a server that breaks off and reads on, as if it were the next file's; all have one length. Its
/// sums would show it, and nobody asks for one of what came to be so.
#[test]
fn what_was_broken_off_is_in_no_other_file() {
    let room = Room::new();
    let data = room.dir("data");
    let mut rng = fastrand::Rng::with_seed(33);
    (0..60).for_each(|n| file(&data.join(format!("f{n}")), &mut rng, 3000));
    for part in [".f2", ".f4"] {
        let how = [InBlocks::Confuses("451 my disk is odd"); 8];
        let taker = Script::default().in_blocks(part, &how).with_sums().start();
        let ended = cp(&data, &taker).exits(0);
        for path in taker.mixed() {
            let is_believed = |line: &String| line.starts_with("CKSM") && line.ends_with(&path);
            assert!(!taker.heard().iter().any(is_believed), "{path}: {}", ended.describe());
        }
        assert_eq!(taker.paths().len(), 60, "{}", ended.describe());
        for path in taker.paths() {
            let name = path.rsplit('/').next().expect("a name");
            assert!(
                taker.file(&path) == Some(read(data.join(name))),
                "{path} is another's: {}",
                ended.describe()
            );
        }
    }
}

/// Goal: a server that says that it has bytes which nobody sent is not believed, whatever it says then.
#[test]
fn what_nobody_sent_is_not_there() {
    let room = Room::new();
    let data = furnish(&room);
    let taker = Script::default().in_blocks("large", &[InBlocks::Claims]).start();
    let ended = cp(&data, &taker).exits(0);
    assert_whole(&taker, &data, &ended);
    let stored =
        taker.heard().iter().filter(|line| line.starts_with("STOR") && line.contains("large")).count();
    assert_eq!(stored, 2, "{:?}", taker.heard());
}
