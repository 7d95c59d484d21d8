//! How storage is driven: whatever is chosen, the bytes are the same; and ends without storage.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::compare::assert_no_debris;
use crate::support::way::{Way, contents};
use crate::support::{Room, read, tree};

/// Lengths around the edges of blocks, slots, requests and objects, and files of several objects with odd
/// ends.
const LENGTHS: [usize; 13] = [
    0,
    1,
    4095,
    4097,
    256 << 10,
    (256 << 10) + 1,
    (1 << 20) - 511,
    1 << 20,
    (4 << 20) - 1,
    4 << 20,
    (4 << 20) + 513,
    (8 << 20) + 4096,
    (9 << 20) + 13,
];

fn odd_files(dir: &Path, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    for (i, len) in LENGTHS.into_iter().enumerate() {
        let path = dir.join(format!("file {i}"));
        tree::random_file(&path, &mut rng, len);
        tree::age(&path, &mut rng);
    }
}

#[track_caller]
fn assert_equal(source: &Path, sink: &Path, options: &[&str]) {
    for i in 0..LENGTHS.len() {
        let name = format!("file {i}");
        assert!(read(source.join(&name)) == read(sink.join(&name)), "{name} differs after {options:?}");
    }
    assert_no_debris(sink);
}

/// What the summary says of a choice, of whichever end it is.
fn chosen(summary: &crate::support::run::Summary, name: &str) -> String {
    let all = summary.0["chosen"].as_array().cloned().unwrap_or_default();
    let found = all.iter().find(|choice| choice["name"] == name);
    found.and_then(|choice| choice["value"].as_str()).unwrap_or_default().to_owned()
}

/// Goal: every way to drive storage copies every byte, whatever the length of the file.
/// Method: each engine, way of I/O and ordering policy at both ends, with request sizes below and above the
/// objects, over files whose lengths lie around every edge.
#[test]
fn every_way_to_drive_storage_copies_every_byte() {
    let room = Room::new();
    let source = room.dir("source");
    odd_files(&source, 1);
    let mut round = 0;
    for engine in ["uring", "pread"] {
        for io in ["direct", "buffered", "auto"] {
            for (order, request, depth, threads) in [
                ("strict", "64KiB", "8", "3"),
                ("serial", "1MiB", "4", "2"),
                ("loose", "16MiB", "1", "1"),
                ("none", "4KiB", "32", "4"),
            ] {
                round += 1;
                let sink = room.dir(&format!("sink {round}"));
                let options = [
                    &format!("--engine={engine}")[..],
                    &format!("--io={io}"),
                    &format!("--order={order}"),
                    &format!("--request-size={request}"),
                    &format!("--depth={depth}"),
                    &format!("--io-threads={threads}"),
                    "-r",
                ];
                let run = Way::Here.cp(&options, &[contents(&source)], &sink).run().sane();
                if engine == "uring" && run.stderr.contains("io_uring cannot be used") {
                    println!("SKIP every_way_to_drive_storage_copies_every_byte: needs io_uring");
                    break;
                }
                run.exits(0);
                assert_equal(&source, &sink, &options);
            }
        }
    }
}

/// Goal: the live settings of one side reach that side, also where it is far away, and only that.
/// Method: other values for source and sink on each way; the near end's are read from the summary.
#[test]
fn settings_reach_their_side() {
    for way in Way::all() {
        let room = Room::new();
        let (source, sink) = (room.dir("source"), room.dir("sink"));
        odd_files(&source, 2);
        let options = [
            "-r",
            "-v",
            "--engine=source=pread",
            "--io=source=buffered",
            "--io=sink=direct",
            "--request-size=source=64KiB",
            "--request-size=sink=1MiB",
            "--order=source=strict",
            "--order=sink=loose",
            "--depth=source=3",
            "--depth=sink=5",
            "--no-preallocate",
        ];
        let summary = way.cp(&options, &[contents(&source)], &sink).run().sane().exits(0).summary();
        assert_equal(&source, &sink, &options);
        let says = |name: &str, word: &str| {
            let said = chosen(&summary, name);
            assert!(said.contains(word), "{}: {name} is {said:?}, not {word}", way.name());
        };
        if !matches!(way, Way::Pull(_)) {
            says("source engine", "pread");
            says("source io", "buffered");
            says("source request size", "65536");
            says("source order", "strict");
            says("source depth", "3 ");
        }
        if !matches!(way, Way::Push(_)) {
            says("sink io", "direct");
            says("sink request size", "1048576");
            says("sink order", "loose");
            says("sink depth", "5 ");
        }
    }
}

/// Goal: made-up sources have the size that was asked for and hold zeroes; a made-up sink takes everything
/// and leaves nothing, and a run between the two touches no storage at all.
/// Method: each kind of end on each way that data can take.
#[test]
fn ends_without_storage_work_on_every_way() {
    for way in Way::all() {
        let room = Room::new();
        let sink = room.dir("sink");
        let typed = |path: &str| -> (PathBuf, PathBuf) {
            match &way {
                Way::Here => (path.into(), sink.join("made")),
                Way::Push(sshd) => (path.into(), sshd.path(&sink.join("made")).into()),
                Way::Pull(sshd) => (sshd.path(Path::new(path)).into(), sink.join("made")),
            }
        };
        let cp = |source: &Path, destination: &Path| {
            let haul = crate::support::run::Haul::cp(Vec::<&str>::new());
            let haul = match &way {
                Way::Here => haul,
                Way::Push(sshd) | Way::Pull(sshd) => haul.by(sshd),
            };
            haul.args([source, destination]).run().sane().exits(0).summary()
        };
        for (path, size) in [("zero://9437185", 9_437_185), ("null://70000", 70_000), ("zero://5", 5)] {
            let (source, destination) = typed(path);
            let summary = cp(&source, &destination);
            assert_eq!(summary.number("bytes"), size, "{}: {path}", way.name());
            let made = read(sink.join("made"));
            assert_eq!(made.len() as u64, size, "{}: {path}", way.name());
            assert!(made.iter().all(|byte| *byte == 0), "{}: {path}", way.name());
            fs::remove_file(sink.join("made")).expect("remove");
        }
        let null = |far: bool| match &way {
            Way::Push(sshd) if far => PathBuf::from(sshd.path(Path::new("null://"))),
            _ => PathBuf::from("null://"),
        };
        let (source, _) = typed("null://64MiB");
        let summary = cp(&source, &null(true));
        assert_eq!(summary.number("bytes"), 64 << 20, "{}", way.name());
        assert_eq!(summary.text("durability"), "discarded", "{}", way.name());
        let data = room.dir("data");
        odd_files(&data, 3);
        let real = match &way {
            Way::Pull(sshd) => PathBuf::from(sshd.path(&data.join("file 12"))),
            _ => data.join("file 12"),
        };
        assert_eq!(cp(&real, &null(true)).number("bytes"), LENGTHS[12] as u64, "{}", way.name());
        assert_eq!(crate::support::compare::snapshot_of_files(&sink).len(), 0, "{}", way.name());
    }
}

/// Goal: where the processors are used up, they are said to be so and the host is the limit; each end's are
/// known at the near end, whichever way data goes.
/// Method: nothing but hashing on one processor, for that is all there is to do; over ssh both ends have all
/// processors.
#[test]
fn used_up_processors_are_named() {
    let local = ["null://16GiB", "null://"].map(PathBuf::from);
    let summary = crate::support::run::Haul::cp(&local).on_one_processor().run().sane().exits(0).summary();
    for end in ["source", "sink"] {
        let processors = &summary.0["processors"][end];
        assert_eq!(processors["count"], 1, "{summary:?}");
        assert!(processors["busy"].as_f64().is_some_and(|busy| busy >= 0.9), "{summary:?}");
    }
    // On a busy machine it may be others who have that processor, and then they are named.
    let [own, busy] = ["own", "busy"].map(|field| summary.0["processors"]["source"][field].as_f64());
    let others = own.expect("known") < busy.expect("known") / 2.0;
    let limits: &[&str] = if others { &["other_programs"] } else { &["source_host", "sink_host"] };
    assert!(limits.contains(&summary.text("limited_by")), "{summary:?}");
    let all = std::thread::available_parallelism().expect("processors").get();
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        tree::plain(&data, 4, 8, 64 << 20);
        let summary = way.cp(&["-r", "--rate=128MiB/s"], &[&data], &sink).run().sane().exits(0).summary();
        for end in ["source", "sink"] {
            assert_eq!(summary.0["processors"][end]["count"], all, "{}: {summary:?}", way.name());
        }
    }
}

/// Goal: what cannot be an end without storage is refused with a sentence that says what to write.
#[test]
fn wrong_made_up_ends_are_refused() {
    let room = Room::new();
    let sink = room.dir("sink");
    let to = sink.to_str().expect("plain");
    for (words, hint) in [
        (["null://", to], "needs a size"),
        (["zero://", to], "whole number"),
        (["zero://5X", to], "no unit"),
        (["zero://1G", "null://1G"], "without a size"),
    ] {
        crate::support::run::Haul::cp(words).run().exits(2).says(hint);
    }
    assert_eq!(crate::support::compare::snapshot_of_files(&sink).len(), 0);
}
