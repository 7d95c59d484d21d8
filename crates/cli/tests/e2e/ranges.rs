//! Parts of files (`--range`, `--to`), and files that are written in place (`--in-place`).

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::support::compare::{assert_no_debris, debris};
use crate::support::run::{Haul, Outcome};
use crate::support::sshd::Sshd;
use crate::support::way::Way;
use crate::support::{Room, number_from_env, procs, read, set_mode};

/// Of the source, and of what stands at the destination; no multiple of anything.
pub(crate) const LEN: usize = 24_000_003;
const STOOD: usize = 30_000_001;
/// Slow enough for a kill half-way, fast enough for a test.
const SLOW: &str = "--rate=16MiB/s";

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut content = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut content);
    content
}

/// A source and a destination that differ everywhere.
pub(crate) struct Pair {
    pub(crate) room: Room,
    new: Vec<u8>,
    pub(crate) old: Vec<u8>,
    pub(crate) source: PathBuf,
    pub(crate) sink: PathBuf,
}

impl Pair {
    pub(crate) fn new() -> Pair {
        let room = Room::new();
        let (new, old) = (bytes(1, LEN), bytes(2, STOOD));
        let source = room.file("source", &new);
        let sink = room.dir("sink");
        Pair { room, new, old, source, sink }
    }

    /// A destination in which the old content stands, if anything does.
    pub(crate) fn stands(&self, old: bool) -> PathBuf {
        let path = self.sink.join("file");
        let _ = fs::remove_file(&path);
        if old {
            fs::write(&path, &self.old).expect("write");
        }
        path
    }

    /// What the destination has to be when `len` bytes from `offset` on went to `to` of `stood`.
    fn patched(&self, stood: &[u8], (offset, len): (usize, usize), to: usize) -> Vec<u8> {
        let mut whole = stood.to_vec();
        whole.resize(whole.len().max(to + len), 0);
        whole[to..to + len].copy_from_slice(&self.new[offset..offset + len]);
        whole
    }
}

fn inode(path: &Path) -> u64 {
    fs::metadata(path).expect("stat").ino()
}

/// What of an earlier run was looked at.
fn checked(outcome: &Outcome) -> u64 {
    outcome.summary().0["held"]["checked"].as_u64().expect("a number")
}

/// Starts a copy and kills it when about so much is written and its journal speaks of parts. False: it was
/// over before.
fn killed(haul: Haul, way: &Way, sink: &Path, written: u64) -> bool {
    let far = |way: &Way| match way {
        Way::Here => Vec::new(),
        Way::Push(sshd) | Way::Pull(sshd) => procs::marked(&sshd.mark),
    };
    // `.haul~KEY`; a head and a session are shorter.
    let speaks = || {
        let journals =
            debris(sink).into_iter().filter(|path| path.file_name().is_some_and(|name| name.len() == 22));
        journals.into_iter().any(|path| fs::metadata(path).is_ok_and(|stat| stat.len() > 300))
    };
    let mut run = haul.start();
    let mark = run.mark.clone();
    let reached = run.until(|run| {
        let pids: Vec<_> = run.near().into_iter().chain(far(way)).collect();
        procs::written(&pids) >= written && speaks()
    });
    let pids: Vec<_> = run.near().into_iter().chain(far(way)).collect();
    procs::signal_all(&pids, Signal::KILL);
    run.wait();
    procs::wait_gone(&mark);
    if let Way::Push(sshd) | Way::Pull(sshd) = way {
        procs::wait_gone(&sshd.mark);
    }
    reached
}

/// Goal: a part becomes a file of just these bytes, wherever it begins and ends, small or large, direct or
/// through the cache.
/// Method: parts around pages, objects and the file's end, there and back, over whatever stood there; mtime
/// and mode are the source's.
#[test]
fn a_part_is_a_file_of_its_own() {
    let pair = Pair::new();
    set_mode(&pair.source, 0o640);
    for way in Way::all() {
        for (range, offset, len) in [
            ("0:1", 0, 1),
            ("4095:2", 4095, 2),
            ("4097:300001", 4097, 300_001),
            ("8MiB:4MiB", 8 << 20, 4 << 20),
            ("12345:9876543", 12_345, 9_876_543),
            ("24000002:", LEN - 1, 1),
            ("1:", 1, LEN - 1),
            ("0:", 0, LEN),
        ] {
            let sink = pair.stands(len == 1 || len > 9_000_000);
            for io in ["direct", "buffered"] {
                let io = format!("--io={io}");
                way.cp(&[&io, "--range", range], &[&pair.source], &sink).run().sane().exits(0);
                assert!(read(&sink) == pair.new[offset..offset + len], "{} {range} {io}", way.name());
            }
            let (copy, source) =
                (fs::metadata(&sink).expect("stat"), fs::metadata(&pair.source).expect("stat"));
            assert_eq!((copy.mtime(), copy.mode()), (source.mtime(), source.mode()));
            assert_no_debris(&pair.sink);
        }
    }
    // Another part of the same length is another file.
    let sink = pair.stands(false);
    for offset in [10, 20] {
        let range = format!("{offset}:10");
        Way::Here.cp(&["--range", &range], &[&pair.source], &sink).run().sane().exits(0);
        assert!(read(&sink) == pair.new[offset..offset + 10], "{range}");
    }
}

/// Goal: a part has holes where its source has, and nothing else.
/// Method: a sparse source, parts that begin and end in holes and in data, to files of their own and into one
/// that is all data.
#[test]
fn parts_of_sparse_files_keep_holes() {
    let pair = Pair::new();
    let source = pair.room.at("sparse");
    let file = File::create_new(&source).expect("create");
    file.set_len(LEN as u64).expect("truncate");
    file.write_all_at(&pair.new[..100_000], 5_000_001).expect("write");
    file.write_all_at(&pair.new[..3_000_000], 15_000_000).expect("write");
    let content = read(&source);
    for (offset, len) in
        [(0, LEN), (1, LEN - 1), (4_999_999, 300_001), (5_050_000, 15_000_001), (5_200_000, 9_000_000)]
    {
        let (range, sink) = (format!("{offset}:{len}"), pair.stands(false));
        Way::Here.cp(&["--range", &range], &[&source], &sink).run().sane().exits(0);
        assert!(read(&sink) == content[offset..offset + len], "{range}");
        let held = fs::metadata(&sink).expect("stat").blocks() * 512;
        assert!(len < 1 << 20 || held < len as u64 / 2, "{range}: {held}");
        let sink = pair.stands(true);
        Way::Here.cp(&["--range", &range, "--to", "777"], &[&source], &sink).run().sane().exits(0);
        let mut want = pair.old.clone();
        want[777..777 + len].copy_from_slice(&content[offset..offset + len]);
        assert!(read(&sink) == want, "{range} into a file");
    }
    let sink = pair.stands(true);
    Way::Here.cp(&["--in-place"], &[&source], &sink).run().sane().exits(0);
    assert!(read(&sink) == content, "old data shows in holes");
}

/// Goal: what is no part of one file is refused, in words, and nothing is made.
#[test]
fn what_is_no_part_is_refused() {
    let pair = Pair::new();
    let sink = pair.sink.join("new");
    let text = |path: &Path| path.to_str().expect("utf-8").to_owned();
    let (source, dir, link) = (text(&pair.source), text(&pair.room.dir("dir")), pair.room.at("link"));
    symlink(&pair.source, &link).expect("link");
    let link = text(&link);
    let small = text(&pair.room.file("small", "small"));
    let cases: [(&[&str], &[&str], i32, &str); 16] = [
        (
            &["--range", "24000003:"],
            &[&source],
            2,
            "has 24000003 bytes, and no such part: all from byte 24000003 on; nothing was copied\n",
        ),
        (
            &["--range", "24000000:4"],
            &[&source],
            2,
            "has 24000003 bytes, and no such part: 4 bytes from byte 24000000 on; nothing was copied (--range 24000000: copies what is",
        ),
        (&["--range", "0:1"], &[&dir], 2, "is a directory"),
        (&["-r", "--range", "0:1"], &[&dir], 2, "is a directory"),
        (&["--range", "0:1"], &[&link], 2, "symbolic link"),
        (&["--range", "0:1"], &[&source, &small], 2, "one file, and 2 sources"),
        (&["--range", "0:1"], &["zero://5"], 2, "zero:// has none"),
        (&["--range", "0:0"], &[&source], 2, "zero bytes"),
        (&["--range", "5"], &[&source], 2, "OFFSET:LEN"),
        (&["--range", "9223372036854775807:1"], &[&source], 2, "longest file"),
        (&["--to", "5"], &[&source], 2, "--range"),
        (&["--in-place", "--update"], &[&source], 2, "--update"),
        (&["--range", "0:1", "--to", "0", "--no-clobber"], &[&source], 2, "--no-clobber"),
        (&["--in-place", "--resume=trust"], &[&source], 2, "--resume=trust"),
        (&["if=x", "skip=1"], &[&source], 2, "these are dd's words"),
        (&["--seek=1"], &[&source], 2, "--seek is dd's: write --range"),
    ];
    for (options, sources, code, words) in cases {
        Way::Here.plain(options, sources, &sink).run().sane().exits(code).says(words);
        assert!(!sink.exists(), "{options:?}");
    }
    if let Some(way) = Way::all().into_iter().find(|way| matches!(way, Way::Pull(_))) {
        let refused = way.plain(&["--range", "24000003:"], &[&source], &sink).run().sane().exits(2);
        refused.says("has 24000003 bytes, and no such part");
    }
    assert_no_debris(&pair.sink);
}

/// Goal: what goes to an offset of a file leaves the rest of it, its mode and its inode; one that is missing
/// is made, with a hole.
/// Method: offsets within, across and behind the end, there and back, read back too.
#[test]
fn a_part_goes_into_a_file() {
    let pair = Pair::new();
    for way in Way::all() {
        for (offset, len, to) in [
            (1001, 5_000_000, 777),
            (0, 300, 4096),
            (8 << 20, 4 << 20, 12 << 20),
            (5, 9_000_001, STOOD - 7),
            (3, 600_001, STOOD + 100_001),
        ] {
            let (range, at) = (format!("{offset}:{len}"), to.to_string());
            let sink = pair.stands(true);
            set_mode(&sink, 0o604);
            let before = fs::metadata(&sink).expect("stat");
            let options = ["--verify=disk", "--range", &range, "--to", &at];
            let done = way.cp(&options, &[&pair.source], &sink).run().sane().exits(0);
            assert_eq!(done.summary().0["in_place"], true);
            assert!(read(&sink) == pair.patched(&pair.old, (offset, len), to), "{} {range} {to}", way.name());
            let after = fs::metadata(&sink).expect("stat");
            assert_eq!((after.ino(), after.mode()), (before.ino(), before.mode()));
            let sink = pair.stands(false);
            way.cp(&options, &[&pair.source], &sink).run().sane().exits(0);
            assert!(read(&sink) == pair.patched(&[], (offset, len), to), "{} {range} {to}", way.name());
            assert_no_debris(&pair.sink);
        }
    }
}

/// Goal: after SIGKILL at any moment a file of a part is there whole or not at all, a file that a part goes
/// into keeps everything else, one that is written in place has another size than the source; and the same
/// command completes each, with what it finds.
/// Method: kills spread over the bytes written, every byte compared before and after the rerun.
fn kill_and_resume(way: &Way) {
    const PART: (usize, usize) = (4099, 20_000_001);
    const TO: usize = 12_347;
    let pair = Pair::new();
    let kills = number_from_env("HAUL_TEST_KILLS", 2);
    let (range, to) = (format!("{}:{}", PART.0, PART.1), TO.to_string());
    let cases: [(&[&str], bool); 4] = [
        (&["--range", &range], true),
        (&["--range", &range, "--to", &to], true),
        (&["--range", &range, "--to", &to], false),
        (&["--in-place"], true),
    ];
    let part = &pair.new[PART.0..PART.0 + PART.1];
    for (options, stood) in cases {
        let (mut hits, mut looked_at) = (0, 0);
        for round in 0..kills {
            let sink = pair.stands(stood);
            let slow: Vec<&str> = options.iter().copied().chain([SLOW]).collect();
            let moment = (3 << 20) + (LEN as u64 / 2) * round / kills;
            hits += u64::from(killed(way.cp(&slow, &[&pair.source], &sink), way, &pair.sink, moment));
            let now = if sink.exists() { read(&sink) } else { Vec::new() };
            let base: &[u8] = if stood { &pair.old } else { &[] };
            let want = match options {
                [_, _] => {
                    assert!(now == pair.old || now == part, "{options:?}: torn");
                    part.to_vec()
                }
                [_, _, _, _] => {
                    let outside = |content: &[u8]| {
                        let end = (TO + PART.1).min(content.len());
                        (content[..TO.min(content.len())].to_vec(), content[end..].to_vec())
                    };
                    let kept =
                        outside(&now) == outside(base) || (!stood && outside(&now).0.iter().all(|b| *b == 0));
                    assert!(kept, "{options:?}: the rest of the file was changed");
                    pair.patched(base, PART, TO)
                }
                _ => {
                    assert!(now == pair.new || now.len() > LEN, "{options:?}: it looks whole");
                    pair.new.clone()
                }
            };
            let done = way.cp(options, &[&pair.source], &sink).run().sane().exits(0);
            assert!(read(&sink) == want, "{} {options:?}", way.name());
            looked_at += checked(&done);
            assert_no_debris(&pair.sink);
        }
        assert!(hits > 0, "{options:?}: no kill of {kills} hit a run");
        assert!(looked_at > 0, "{options:?}: nothing was resumed");
    }
}

/// See [`kill_and_resume`].
#[test]
fn parts_and_files_in_place_survive_kills_here() {
    kill_and_resume(&Way::Here);
}

/// See [`kill_and_resume`].
#[test]
fn parts_and_files_in_place_survive_kills_of_a_push() {
    need!("sshd");
    kill_and_resume(&Way::Push(Sshd::start()));
}

/// See [`kill_and_resume`].
#[test]
fn parts_and_files_in_place_survive_kills_of_a_pull() {
    need!("sshd");
    kill_and_resume(&Way::Pull(Sshd::start()));
}

/// Goal: what is left of one part is not taken for another part, nor for one of a source that changed
/// meanwhile.
/// Method: a part is killed half-way, then another one goes to the same name, then the first again; then the
/// same with a source that changed in between, for each way of writing.
#[test]
fn no_part_is_taken_for_another() {
    let pair = Pair::new();
    let sink = pair.stands(false);
    let part = |offset: usize| format!("{offset}:20000000");
    let first = Way::Here.cp(&["--range", &part(7), SLOW], &[&pair.source], &sink);
    assert!(killed(first, &Way::Here, &pair.sink, 6 << 20), "it was over too early");
    for offset in [1_000_007, 7] {
        Way::Here.cp(&["--range", &part(offset)], &[&pair.source], &sink).run().sane().exits(0);
        assert!(read(&sink) == pair.new[offset..offset + 20_000_000], "{offset}");
    }
    assert_no_debris(&pair.sink);
    for options in [&["--range", "7:20000000"][..], &["--range", "7:20000000", "--to", "5"], &["--in-place"]]
    {
        fs::write(&pair.source, &pair.new).expect("write");
        let sink = pair.stands(true);
        let slow: Vec<&str> = options.iter().copied().chain([SLOW]).collect();
        let first = Way::Here.cp(&slow, &[&pair.source], &sink);
        assert!(killed(first, &Way::Here, &pair.sink, 6 << 20), "it was over too early");
        let other = bytes(3, LEN);
        fs::write(&pair.source, &other).expect("write");
        let done = Way::Here.cp(options, &[&pair.source], &sink).run().sane().exits(0);
        assert_eq!(checked(&done), 0, "{options:?}: parts of another version were looked at");
        let now = read(&sink);
        match options.len() {
            1 => assert!(now == other),
            2 => assert!(now == other[7..20_000_007]),
            _ => assert!(now[..5] == pair.old[..5] && now[5..20_000_005] == other[7..20_000_007]),
        }
        assert_no_debris(&pair.sink);
    }
}

/// Goal: what is written in place is in the same inode, which a hard link and an open reader see; longer,
/// shorter, empty and small files end as their sources are.
#[test]
fn files_in_place_stay_the_same_inode() {
    for way in Way::all() {
        let pair = Pair::new();
        let (tree, sink) = (pair.room.dir("tree"), pair.room.dir("copy"));
        for (name, new, old) in [
            ("large", LEN, STOOD),
            ("longer", STOOD, LEN),
            ("small", 1000, 2000),
            ("grown", 2000, 1000),
            ("empty", 0, 5),
            ("same", 5000, 5000),
            ("shrunk", 5, STOOD),
        ] {
            fs::write(tree.join(name), bytes(5, new)).expect("write");
            fs::write(sink.join(name), bytes(6, old)).expect("write");
            let old = File::options().write(true).open(sink.join(name)).expect("open");
            old.set_modified(std::time::UNIX_EPOCH).expect("mtime");
        }
        fs::write(tree.join("new"), bytes(7, LEN)).expect("write");
        fs::hard_link(sink.join("large"), pair.room.at("link")).expect("link");
        let reader = File::open(sink.join("large")).expect("open");
        let before: Vec<u64> =
            ["large", "small", "empty"].iter().map(|name| inode(&sink.join(name))).collect();
        let options = ["-r", "--inplace", "--verify=disk"];
        let source = crate::support::way::contents(&tree);
        way.cp(&options, &[&source], &sink).run().sane().exits(0);
        crate::support::compare::assert_same(&tree, &sink, crate::support::compare::BELOW);
        let after: Vec<u64> =
            ["large", "small", "empty"].iter().map(|name| inode(&sink.join(name))).collect();
        assert_eq!(before, after);
        assert!(read(pair.room.at("link")) == bytes(5, LEN));
        let mut seen = vec![0; LEN];
        reader.read_exact_at(&mut seen, 0).expect("read");
        assert!(seen == bytes(5, LEN));
        assert_no_debris(&sink);
        let again = way.cp(&options, &[&source], &sink).run().sane().exits(0);
        assert_eq!(again.summary().number("unchanged"), 8);
    }
}

/// Goal: nothing is written through a link, into a device or FIFO, into the source itself, nor into one file
/// for two entries.
/// Method: each of them, small and large.
#[test]
fn nothing_else_is_written_in_place() {
    let pair = Pair::new();
    let small = pair.room.file("small", "small");
    let target = pair.room.file("target", "precious");
    for source in [&small, &pair.source] {
        let link = pair.sink.join("file");
        let _ = fs::remove_file(&link);
        symlink(&target, &link).expect("link");
        Way::Here
            .plain(&["--in-place"], &[source], &link)
            .run()
            .sane()
            .exits(3)
            .says("nothing is written into one");
        assert_eq!(read(&target), b"precious");
        fs::remove_file(&link).expect("remove");
        rustix::fs::mknodat(rustix::fs::CWD, &link, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .expect("fifo");
        Way::Here.plain(&["--in-place", "--force"], &[source], &link).run().sane().exits(3);
        fs::remove_file(&link).expect("remove");
        fs::hard_link(source, &link).expect("link");
        Way::Here.plain(&["--in-place", "--force"], &[source], &link).run().sane().exits(2).says("the same");
    }
    let (tree, sink) = (pair.room.dir("tree"), pair.room.dir("copy"));
    for (name, len) in [("a", 1000), ("b", 2000), ("c", LEN)] {
        fs::write(tree.join(name), bytes(8, len)).expect("write");
    }
    fs::write(sink.join("a"), "one").expect("write");
    fs::hard_link(sink.join("a"), sink.join("b")).expect("link");
    fs::hard_link(sink.join("a"), sink.join("c")).expect("link");
    let source = crate::support::way::contents(&tree);
    let refused = Way::Here.plain(&["-r", "--in-place"], &[&source], &sink).run().sane().exits(3);
    refused.says("another name of a file");
    let now = read(sink.join("a"));
    assert!(["a", "b", "c"].iter().any(|name| now == read(tree.join(name))), "two entries are in one file");
}

/// Goal: a file that a kill left half new is never taken for the source's, whatever times say.
/// Method: a destination with the source's size and mtime and other bytes, written in place with --force and
/// killed; its mtime is set to the source's, as a clock might; then an ordinary run. So again for a file that
/// is as long at once.
#[test]
fn a_half_written_file_is_no_copy() {
    let pair = Pair::new();
    let sink = pair.stands(false);
    fs::write(&sink, bytes(9, LEN)).expect("write");
    let mtime = fs::metadata(&pair.source).expect("stat").modified().expect("mtime");
    let back = || File::options().write(true).open(&sink).expect("open").set_modified(mtime).expect("mtime");
    back();
    let first = Way::Here.cp(&["--in-place", "--force", SLOW], &[&pair.source], &sink);
    assert!(killed(first, &Way::Here, &pair.sink, 4 << 20), "it was over too early");
    back();
    Way::Here.cp(&[], &[&pair.source], &sink).run().sane().exits(0);
    assert!(read(&sink) == pair.new, "what was half written counted as a copy");
    assert_no_debris(&pair.sink);
}

/// Goal: what an interrupted run wrote in place is no file to leave alone: no run of the job calls itself
/// complete with it.
/// Method: a killed run, then the same copy with each option that leaves files alone; the file stood before,
/// or did not.
#[test]
fn a_half_written_file_is_not_skipped() {
    let pair = Pair::new();
    for option in ["--no-clobber", "--update"] {
        for old in [false, true] {
            let sink = pair.stands(old);
            let first = Way::Here.cp(&["--in-place", SLOW], &[&pair.source], &sink);
            assert!(killed(first, &Way::Here, &pair.sink, 6 << 20), "it was over too early");
            if option == "--no-clobber" {
                for _ in 0..3 {
                    let half = read(&sink);
                    let left = Way::Here.plain(&[option], &[&pair.source], &sink).run().sane().exits(3);
                    left.says("half new");
                    assert!(read(&sink) == half);
                }
                Way::Here.cp(&[], &[&pair.source], &sink).run().sane().exits(0);
            } else {
                Way::Here.cp(&[option], &[&pair.source], &sink).run().sane().exits(0);
            }
            assert!(read(&sink) == pair.new, "{option}: what was half written was left alone");
            assert_no_debris(&pair.sink);
        }
    }
}

/// Goal: a run goes on only with the file that the one before it wrote into.
/// Method: a killed run's file is replaced by a copy of itself; the next run finds nothing of its own, and
/// completes that one.
#[test]
fn another_file_is_not_gone_on_with() {
    let pair = Pair::new();
    for replaced in [false, true] {
        let sink = pair.stands(true);
        let first = Way::Here.cp(&["--in-place", SLOW], &[&pair.source], &sink);
        assert!(killed(first, &Way::Here, &pair.sink, 6 << 20), "it was over too early");
        if replaced {
            let other = pair.room.at("other");
            fs::copy(&sink, &other).expect("copy");
            fs::rename(&other, &sink).expect("rename");
        }
        let stands = inode(&sink);
        let done = Way::Here.cp(&["--in-place"], &[&pair.source], &sink).run().sane().exits(0);
        assert_eq!(checked(&done) == 0, replaced, "{}", done.describe());
        assert!(read(&sink) == pair.new && inode(&sink) == stands);
        assert_no_debris(&pair.sink);
    }
}

/// Goal: nothing is written in place beside a run that may still write; without --in-place the job is taken
/// over as ever.
/// Method: a run that is killed in a process namespace of its own, so that nobody can see that it is dead.
#[test]
fn no_silent_owner_is_taken_over_in_place() {
    need!("unshare");
    let pair = Pair::new();
    let sink = pair.stands(true);
    let first = Way::Here.cp(&["--in-place", SLOW], &[&pair.source], &sink).in_its_own_pids();
    assert!(killed(first, &Way::Here, &pair.sink, 4 << 20), "it was over too early");
    let half = read(&sink);
    let refused = Way::Here.plain(&["--in-place"], &[&pair.source], &sink).run().sane().exits(1);
    refused.says("not proven to have ended");
    assert!(read(&sink) == half, "it was written beside a run that may still write");
    Way::Here.cp(&[], &[&pair.source], &sink).run().sane().exits(0);
    assert!(read(&sink) == pair.new);
    assert_no_debris(&pair.sink);
}

/// Goal: the manifest of a part says of what it is which part; b3sum is asked to check only what is all of
/// its file.
#[test]
fn the_manifest_of_a_part_says_which() {
    let pair = Pair::new();
    let list = pair.room.at("sums");
    let text = list.to_str().expect("utf-8");
    for (to, plain) in [(None, 1), (Some("5"), 0)] {
        let sink = pair.stands(true);
        let mut options = vec!["--range", "7:3000001", "--manifest", text];
        options.extend(to.into_iter().flat_map(|to| ["--to", to]));
        Way::Here.cp(&options, &[&pair.source], &sink).run().sane().exits(0);
        assert_eq!(fs::read_to_string(&list).expect("a list").lines().count(), plain);
        let json = fs::read_to_string(pair.room.at("sums.json")).expect("a list");
        let line: serde_json::Value = serde_json::from_str(&json).expect("one line");
        assert_eq!(line["blake3"], blake3::hash(&pair.new[7..3_000_008]).to_hex().as_str());
        assert_eq!((&line["part"]["offset"], &line["part"]["length"]), (&7.into(), &3_000_001.into()));
        assert_eq!(line["part"]["source"]["path"], pair.source.to_str().expect("utf-8"));
        assert_eq!(line["part"]["to"].as_u64(), to.map(|to| to.parse().expect("a number")));
    }
}

/// Goal: two runs that write one file in place are not both complete; the later one leaves it alone. Parts go
/// side by side.
/// Method: a slow run, and one of another job onto the same name; then two slow runs of parts.
#[test]
fn one_run_at_a_time_writes_a_file_in_place() {
    let pair = Pair::new();
    let sink = pair.stands(false);
    fs::write(&sink, "old").expect("write");
    let tree = pair.room.dir("tree");
    fs::write(tree.join("file"), bytes(4, LEN)).expect("write");
    let contents = crate::support::way::contents(&tree);
    // Longer than the other one waits for it.
    let mut first = Way::Here.cp(&["--in-place", "--rate=4MiB/s"], &[&pair.source], &sink).start();
    // It was opened, for it looks unfinished.
    assert!(first.until(|_| fs::metadata(&sink).expect("stat").len() > LEN as u64));
    let second = Way::Here.plain(&["-r", "--in-place"], &[&contents], &pair.sink).run().sane().exits(3);
    second.says("another program has it locked");
    first.wait().sane().exits(0);
    assert!(read(&sink) == pair.new);
    let old = pair.stands(true);
    let part = |range: &str, to: &str| {
        Way::Here.cp(&["--range", range, "--to", to, SLOW], &[&pair.source], &old).start()
    };
    let (one, two) = (part("0:8000000", "0"), part("9000000:8000000", "8000000"));
    one.wait().sane().exits(0);
    two.wait().sane().exits(0);
    let first = pair.patched(&pair.old, (0, 8_000_000), 0);
    assert!(read(&old) == pair.patched(&first, (9_000_000, 8_000_000), 8_000_000));
}

/// Goal: a file that is cut while it is written is not called complete.
/// Method: the destination is emptied half-way, with a source that is full and with one that ends in a hole.
#[test]
fn what_is_cut_meanwhile_is_not_complete() {
    let pair = Pair::new();
    for sparse in [false, true] {
        if sparse {
            let source = File::options().write(true).open(&pair.source).expect("open");
            source.set_len(LEN as u64 + (8 << 20)).expect("a hole");
        }
        let sink = pair.stands(true);
        let mut run = Way::Here.cp(&["--in-place", SLOW], &[&pair.source], &sink).start();
        assert!(run.until(|run| procs::written(&run.near()) >= 6 << 20));
        File::options().write(true).open(&sink).expect("open").set_len(0).expect("cut");
        run.wait().sane().exits(3);
        Way::Here.cp(&["--in-place"], &[&pair.source], &sink).run().sane().exits(0);
        assert!(read(&sink) == read(&pair.source));
    }
}

/// Goal: nothing is written into a source of the copy, whatever name that has at the destination.
/// Method: hard links: to another source that is named, to another file of the tree, to the file itself with
/// --force.
#[test]
fn no_source_is_written_over() {
    let pair = Pair::new();
    let other = pair.room.file("other", bytes(3, LEN));
    let sink = pair.room.dir("named");
    fs::hard_link(&other, sink.join("source")).expect("link");
    let refused = Way::Here.plain(&["--in-place"], &[&pair.source, &other], &sink).run().sane().exits(3);
    refused.says("another name of a source");
    assert!(read(&other) == bytes(3, LEN) && read(sink.join("other")) == bytes(3, LEN));
    let (tree, sink) = (pair.room.dir("tree"), pair.room.dir("copy"));
    for (name, seed) in [("log", 4), ("log.1", 5)] {
        fs::write(tree.join(name), bytes(seed, LEN)).expect("write");
    }
    fs::hard_link(tree.join("log.1"), sink.join("log")).expect("link");
    let contents = crate::support::way::contents(&tree);
    let refused = Way::Here.plain(&["-r", "--in-place"], &[&contents], &sink).run().sane().exits(3);
    refused.says("another name of a source");
    fs::remove_file(sink.join("log")).expect("remove");
    fs::remove_file(sink.join("log.1")).expect("remove");
    fs::hard_link(tree.join("log"), sink.join("log")).expect("link");
    Way::Here.plain(&["-r", "--in-place", "--force"], &[&contents], &sink).run().sane().exits(3);
    for (name, seed) in [("log", 4), ("log.1", 5)] {
        assert!(read(tree.join(name)) == bytes(seed, LEN), "{name}");
    }
    assert!(read(sink.join("log.1")) == bytes(5, LEN));
}

/// Goal: hard links at the destination that are as their sources are stay unchanged, and are no failure.
#[test]
fn links_that_are_right_stay() {
    let pair = Pair::new();
    let (tree, sink) = (pair.room.dir("tree"), pair.room.dir("copy"));
    for dir in [&tree, &sink] {
        fs::write(dir.join("one"), "the same").expect("write");
        fs::hard_link(dir.join("one"), dir.join("two")).expect("link");
        let file = File::options().write(true).open(dir.join("one")).expect("open");
        file.set_modified(std::time::UNIX_EPOCH).expect("mtime");
    }
    let contents = crate::support::way::contents(&tree);
    let done = Way::Here.cp(&["-r", "--in-place"], &[&contents], &sink).run().sane().exits(0);
    assert_eq!(done.summary().number("unchanged"), 2);
}

/// Goal: of two entries that have one file at the destination one at most is unchanged, where their sources
/// are two, in place and not, in each run and in a dry run; with `--force` each gets a file of its own.
/// Method: two sources of one size and time; hard links at the destination, which look like either.
#[test]
fn one_file_is_unchanged_for_one_entry() {
    for options in [&["-r"][..], &["-r", "--in-place"]] {
        let pair = Pair::new();
        let (tree, sink) = (pair.room.dir("tree"), pair.room.dir("copy"));
        for (dir, name, text) in
            [(&tree, "one", "of the one"), (&tree, "two", "of the two"), (&sink, "one", "of the two")]
        {
            fs::write(dir.join(name), text).expect("write");
            let file = File::options().write(true).open(dir.join(name)).expect("open");
            file.set_modified(std::time::UNIX_EPOCH).expect("mtime");
        }
        fs::hard_link(sink.join("one"), sink.join("two")).expect("link");
        let contents = crate::support::way::contents(&tree);
        for more in [&[][..], &["--dry-run"], &[]] {
            let options = [options, more].concat();
            let done = Way::Here.cp(&options, &[&contents], &sink).run().sane().exits(3);
            assert_eq!(done.summary().number("unchanged"), 1, "{}", done.describe());
            let _ = done.says("another");
        }
        if options.len() == 1 {
            let _ = Way::Here.cp(&["-r", "--force"], &[&contents], &sink).run().sane().exits(0);
            for name in ["one", "two"] {
                assert_eq!(
                    fs::read(tree.join(name)).expect("read"),
                    fs::read(sink.join(name)).expect("read")
                );
            }
        }
    }
}

/// Goal: a destination that has no files to write into refuses it by name, also in a dry run.
#[test]
fn nowhere_is_nothing_in_place() {
    let pair = Pair::new();
    for options in [&["--in-place"][..], &["--range", "1:2", "--to", "3"], &["--in-place", "--dry-run"]] {
        let refused = Haul::cp(options).args([pair.source.as_os_str(), "null://".as_ref()]).run().exits(2);
        refused.says("nothing can be written in place");
    }
}

/// Goal: where a device stands nobody is told to try --force, which writes into none in place.
/// Method: a FIFO as the destination and in a tree, in copies and dry runs, without --force and with it.
#[test]
fn force_is_no_hint_in_place() {
    let pair = Pair::new();
    let (tree, copy) = (pair.room.dir("tree"), pair.room.dir("sink/tree"));
    fs::write(tree.join("file"), "content").expect("write");
    let fifo = |path: &Path| {
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .expect("fifo");
    };
    let alone = pair.sink.join("alone");
    fifo(&alone);
    fifo(&copy.join("file"));
    for more in [&[][..], &["-n"], &["--force"], &["-n", "--force"]] {
        let told = |options: &[&str], source: &Path, sink: &Path| {
            let options = [options, more].concat();
            let refused = Way::Here.plain(&options, &[source], sink).run().sane();
            assert!(matches!(refused.status.code(), Some(1 | 3)), "{}", refused.describe());
            assert!(refused.stderr.contains("nothing is written into"), "{}", refused.describe());
            assert!(!refused.describe().contains("--force replaces"), "{}", refused.describe());
        };
        told(&["--in-place"], &pair.source, &alone);
        told(&["--range=0:1", "--to=0"], &pair.source, &alone);
        told(&["-r", "--in-place"], &tree, &pair.sink);
    }
}
