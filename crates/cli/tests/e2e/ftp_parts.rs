//! Large files that a server's sums are compared with part by part, over several sessions at a time.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::support::compare::{BELOW, assert_no_debris, assert_same};
use crate::support::ftpd::{Ftpd, Kind, contents};
use crate::support::run::{Haul, Outcome};
use crate::support::taker::{GoesOn, InBlocks, Script, Taker};
use crate::support::{Room, read, set_mode, tree};

/// Two parts, the second of which is short.
const LARGE: usize = (256 << 20) + 70_001;

/// A file of two parts, random at the end of each and zeroes between, and a small one.
fn furnish(room: &Room) -> PathBuf {
    let data = room.dir("data");
    let mut rng = fastrand::Rng::with_seed(41);
    let mut bytes = vec![0; LARGE];
    let edge = LARGE - 200_000;
    bytes[edge..].copy_from_slice(&tree::bytes(&mut rng, 200_000));
    for (name, bytes) in [("large", &bytes[..]), ("small", &bytes[edge..])] {
        let path = data.join(name);
        std::fs::write(&path, bytes).expect("write a file");
        set_mode(&path, 0o644);
        tree::set_mtime(&path, SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000));
    }
    data
}

fn cp(data: &Path, taker: &Taker) -> Outcome {
    Haul::cp(["-r", "-v", "--patience=20s"]).args([contents(data)]).args([taker.url("/d/")]).run().sane()
}

/// How often it was sent.
fn times(taker: &Taker, data: &Path) -> usize {
    let heard = taker.heard();
    // Under no name twice.
    let large = heard.iter().filter(|line| line.starts_with("STOR") && line.contains(".large.")).count();
    assert_eq!(taker.file("/d/large"), Some(read(data.join("large"))));
    assert_eq!(taker.file("/d/small"), Some(read(data.join("small"))));
    large
}

/// The ranges that it was asked for sums of, of the large file.
fn asked(taker: &Taker) -> Vec<String> {
    let of = |line: &String| {
        let words: Vec<&str> = line.split(' ').collect();
        (words[0] == "CKSM" && line.contains(".large.")).then(|| words[2..4].join("+"))
    };
    let mut asked: Vec<String> = taker.heard().iter().filter_map(of).collect();
    asked.sort();
    asked
}

/// Goal: Globus is asked about a large file part by part, and it is there.
#[test]
fn large_files_are_compared_in_parts() {
    if Kind::these(&[Kind::Gridftp]).is_empty() {
        return;
    }
    let (room, ftpd) = (Room::new(), Ftpd::start(Kind::Gridftp));
    let (data, sink) = (furnish(&room), room.dir("sink"));
    let ended = Haul::cp(["-r", "-v"]).args([contents(&data)]).args([ftpd.url(&sink)]).run().sane().exits(0);
    assert_same(&data, &sink, BELOW);
    assert_no_debris(&sink);
    ended.says("of 2 files, 1 of them part by part");
}

/// Goal: whatever a server makes of sums of parts, a file has its name when the server has it as it was sent,
/// and one that is right is not sent for ever.
/// Method: a byte that is another one in either part; a server that makes the sum of the whole whatever part
/// it is asked for, and one that refuses parts: both get the file once more, and no further one.
#[test]
fn parts_decide_and_who_makes_none_is_found_out() {
    let room = Room::new();
    let data = furnish(&room);
    let script = || Script::default().with_sums();
    let [first, second] = ["0+268435456", "268435456+70001"].map(str::to_owned);
    let whole = "0+-1".to_owned();
    std::thread::scope(|scope| {
        for (wrong, script, sent, asks) in [
            (None, script().goes_on(GoesOn::Well), 1, vec![first.clone(), second.clone()]),
            (
                Some(InBlocks::Wrong),
                script().goes_on(GoesOn::Well),
                2,
                vec![whole.clone(), first.clone(), second.clone()],
            ),
            (None, script(), 2, vec![whole.clone(), first.clone(), second.clone()]),
            (None, script().without_part_sums(), 2, vec![whole.clone(), first.clone(), second.clone()]),
        ] {
            let data = &data;
            scope.spawn(move || {
                let how: Vec<InBlocks> = wrong.into_iter().collect();
                let taker = script.in_blocks("large", &how).start();
                let ended = cp(data, &taker).exits(0);
                assert_eq!(times(&taker, data), sent, "{}", ended.describe());
                let mut all = asked(&taker);
                all.dedup();
                assert_eq!(all, asks, "{}", ended.describe());
                ended.says(if sent == 1 { "of 2 files, 1 of them part by part" } else { "of 2 files" });
            });
        }
    });
}
