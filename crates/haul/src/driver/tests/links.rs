//! Both real drivers over links that damage, cut and stall, with real storage.

use std::fs;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use haul_core::digest::DigestKind;
use haul_core::ids::{SessionEpoch, StreamId};
use haul_core::transfer::SessionEnd;
use haul_core::wire::kind;

use super::{
    Bench, Links, Protection, Report, Watch, bytes, contents, failure, finish, link_pairs, links_of, sink,
    sink_request, source, source_request, spawn_end, start_sink, start_source,
};
use crate::options::Verify;
use haul_transport::Link;
use haul_transport::frames::{CODE_LEN, FrameKeys};

/// The settings of one run.
#[derive(Clone)]
struct Run {
    streams: u16,
    memory: u64,
    readers: u16,
    writers: u16,
    object_size: Option<u32>,
    protection: Protection,
    verify: Verify,
}

const PLAIN: Protection = Protection {
    digest: DigestKind::Blake3,
    auth_only: false,
    parts: false,
    in_place: false,
    metadata: false,
    hard_links: false,
    manners: false,
};

const RUN: Run = Run {
    streams: 2,
    memory: super::MEMORY,
    readers: 2,
    writers: 2,
    object_size: Some(64 * 1024),
    protection: PLAIN,
    verify: Verify::Transfer,
};

/// A copy of `sources` with the source's and the sink's links changed by `wrap`. Source's report first.
fn copy(
    case: &str,
    bench: &Bench,
    sources: &[PathBuf],
    run: &Run,
    wrap: impl FnOnce(&mut Vec<Link>, &mut Vec<Link>),
) -> (Report, Report) {
    let (mut near, mut far): (Vec<Link>, Vec<Link>) = link_pairs(run.streams).into_iter().unzip();
    wrap(&mut near, &mut far);
    let mut request = source_request(sources);
    (request.memory, request.readers) = (run.memory, run.readers);
    (request.options.object_size, request.options.verify) = (run.object_size, run.verify);
    let protection = run.protection;
    let start = move || source::run(Links { protection, ..links_of(near) }, &request, &Watch::silent());
    let source = spawn_end("source", start);
    let mut request = sink_request(&bench.dst());
    (request.memory, request.writers) = (run.memory, run.writers);
    let start = move || sink::run(Links { protection, ..links_of(far) }, &request, &Watch::silent());
    let sink = spawn_end("sink", start);
    let reports = (finish(case, source), finish(case, sink));
    bench.check(case);
    bench.no_wrong_bytes();
    reports
}

fn whole(case: &str, bench: &Bench, run: &Run) -> (Report, Report) {
    let (source, sink) = copy(case, bench, &[contents(&bench.src())], run, |_, _| {});
    assert_eq!((&source.end, &sink.end), (&SessionEnd::Complete, &SessionEnd::Complete), "{case}");
    bench.same();
    (source, sink)
}

fn plant(bench: &Bench, files: &[(&str, usize)]) {
    for (i, (name, len)) in files.iter().enumerate() {
        let path = bench.src().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes(i as u64, *len)).unwrap();
    }
}

/// Goal: under each digest a tree arrives exactly, damage is repaired, and what a run with one digest left is
/// not taken for the other's: the next run begins those files afresh, and ends with the right bytes.
/// Method: a run that is cut while it holds parts, then one with the other digest and one flipped byte.
#[test]
fn digests_do_not_mix_over_a_resume() {
    let (blake3, xxh3) = (PLAIN, Protection { digest: DigestKind::Xxh3, ..PLAIN });
    for (first, second) in [(xxh3, blake3), (blake3, xxh3), (xxh3, xxh3)] {
        let case = format!("{first:?}, {second:?}");
        let bench = Bench::new();
        plant(&bench, &[("big", 9_000_001), ("small", 5000), ("empty", 0), ("d/one", 65_536)]);
        let run = Run { protection: first, ..RUN };
        let (source, _) = copy(&case, &bench, &[contents(&bench.src())], &run, |near, _| {
            for link in &mut near[1..] {
                let (closer, inner) =
                    (link.closer.clone(), std::mem::replace(&mut link.writer, Box::new(io::sink())));
                link.writer = Box::new(Cut { inner, left: 3_000_000, closer });
            }
        });
        assert!(failure(&source).is_some(), "{case}: it was cut");
        let flipped = Arc::new(AtomicU64::new(0));
        let run = Run { protection: second, ..RUN };
        let (source, sink) = copy(&case, &bench, &[contents(&bench.src())], &run, |near, _| {
            let inner = std::mem::replace(&mut near[1].writer, Box::new(io::sink()));
            let (every, frames, partial) = (7, 0, Vec::new());
            near[1].writer = Box::new(Flip { inner, every, frames, flipped: flipped.clone(), partial });
        });
        assert_eq!((&source.end, &sink.end), (&SessionEnd::Complete, &SessionEnd::Complete), "{case}");
        assert_eq!(sink.own.objects_resent, flipped.load(Ordering::SeqCst), "{case}");
        if first != second {
            assert!(sink.own.payload >= 9_000_001, "{case}: the other digest's parts were taken over");
        }
        bench.same();
    }
}

/// Goal: with data that is authenticated and not encrypted, payload that is changed on the way is repaired
/// object by object, and a stream whose heads are changed is done without; the bytes are right.
#[test]
fn a_man_in_the_middle_changes_nothing() {
    let run = Run { protection: Protection { auth_only: true, ..PLAIN }, ..RUN };
    let guarded = |near: &mut Vec<Link>, far: &mut Vec<Link>| {
        for (i, (near, far)) in near.iter_mut().zip(far).enumerate().skip(1) {
            let name = (StreamId(i as u16), SessionEpoch(1));
            near.guard.keys = Some(FrameKeys::new(&[1; 32], &[2; 16], name, true));
            far.guard.keys = Some(FrameKeys::new(&[1; 32], &[2; 16], name, false));
        }
    };
    for damage in [Damage::Payload, Damage::Head] {
        let bench = Bench::new();
        plant(&bench, &[("a", 3_000_000), ("d/b", 1_000_001), ("c", 262_145), ("e", 77)]);
        let done = Arc::new(AtomicU64::new(0));
        let (source, sink) = copy("middle", &bench, &[contents(&bench.src())], &run, |near, far| {
            guarded(near, far);
            let inner = std::mem::replace(&mut near[1].writer, Box::new(io::sink()));
            near[1].writer =
                Box::new(Middle { inner, damage, frames: 0, done: done.clone(), partial: Vec::new() });
        });
        assert_eq!((&source.end, &sink.end), (&SessionEnd::Complete, &SessionEnd::Complete));
        let done = done.load(Ordering::SeqCst);
        assert!(done > 0);
        if damage == Damage::Payload {
            assert_eq!(sink.own.objects_resent, done);
        }
        bench.same();
    }
}

/// Damages a file at the sink once all of it stands in its temporary and before its seal is let through, so
/// many times.
struct Rot {
    inner: Box<dyn Write + Send>,
    dst: PathBuf,
    content: Vec<u8>,
    times: Arc<AtomicU64>,
    partial: Vec<u8>,
}

impl Rot {
    /// Waits until the temporary holds the content, and flips one bit of it.
    fn rot(&self) {
        let begin = std::time::Instant::now();
        loop {
            assert!(begin.elapsed() < super::PATIENCE, "the content never stood in the temporary");
            let temps = fs::read_dir(&self.dst).unwrap().filter_map(|entry| {
                let entry = entry.unwrap();
                entry.file_name().as_encoded_bytes().starts_with(b".f.h").then(|| entry.path())
            });
            for temp in temps {
                if fs::read(&temp).is_ok_and(|content| content == self.content) {
                    use std::os::unix::fs::FileExt;
                    let at = self.content.len() / 2;
                    let file = fs::OpenOptions::new().write(true).open(&temp).unwrap();
                    file.write_all_at(&[self.content[at] ^ 1], at as u64).unwrap();
                    return;
                }
            }
            std::thread::yield_now();
        }
    }
}

impl Write for Rot {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.partial.extend(data);
        while self.partial.len() >= 24 {
            let len = 24 + u32::from_le_bytes(self.partial[..4].try_into().unwrap()) as usize;
            if self.partial.len() < len {
                break;
            }
            let frame: Vec<u8> = self.partial.drain(..len).collect();
            if frame[4] == kind::SEALED && self.times.load(Ordering::SeqCst) > 0 {
                self.times.fetch_sub(1, Ordering::SeqCst);
                self.rot();
            }
            self.inner.write_all(&frame)?;
        }
        Ok(data.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Goal: with `--verify=disk` bytes that change on their way to the disk are found before the file gets its
/// name, and it is sent once more; when they change again, the file fails and what stood there stays. Without
/// it, nobody notices.
/// Method: a bit of the temporary is flipped behind the sink's back, never, once or twice, under both
/// digests.
#[test]
fn what_storage_changed_is_found_and_sent_again() {
    for digest in [DigestKind::Blake3, DigestKind::Xxh3] {
        for (times, verify) in
            [(0, Verify::Disk), (1, Verify::Disk), (2, Verify::Disk), (1, Verify::Transfer)]
        {
            let case = format!("{digest:?}, {verify:?}, {times} times");
            let bench = Bench::new();
            plant(&bench, &[("f", 700_001), ("small", 4000), ("empty", 0)]);
            fs::write(bench.dst().join("f"), b"old").unwrap();
            let content = fs::read(bench.src().join("f")).unwrap();
            let left = Arc::new(AtomicU64::new(times));
            let run = Run { verify, protection: Protection { digest, ..PLAIN }, ..RUN };
            let (mut near, far): (Vec<Link>, Vec<Link>) = link_pairs(run.streams).into_iter().unzip();
            let inner = std::mem::replace(&mut near[0].writer, Box::new(io::sink()));
            let rot =
                Rot { inner, dst: bench.dst(), content: content.clone(), times: left, partial: Vec::new() };
            near[0].writer = Box::new(rot);
            let protection = run.protection;
            let mut request = source_request(&[contents(&bench.src())]);
            (request.options.object_size, request.options.verify) = (run.object_size, verify);
            let start =
                move || source::run(Links { protection, ..links_of(near) }, &request, &Watch::silent());
            let source = spawn_end("source", start);
            let request = sink_request(&bench.dst());
            let start = move || sink::run(Links { protection, ..links_of(far) }, &request, &Watch::silent());
            let sink = spawn_end("sink", start);
            let (source, sink) = (finish(&case, source), finish(&case, sink));
            assert_eq!((&source.end, &sink.end), (&SessionEnd::Complete, &SessionEnd::Complete), "{case}");
            let wrong = if verify == Verify::Disk { times } else { 0 };
            assert_eq!((source.tally.came_back, sink.tally.came_back), (wrong, wrong), "{case}");
            let stands = fs::read(bench.dst().join("f")).unwrap();
            match (times, verify) {
                (0 | 1, Verify::Disk) => assert!(stands == content, "{case}"),
                (2, _) => {
                    assert_eq!(stands, b"old", "{case}");
                    assert_eq!((source.tally.failed, source.tally.files), (1, 2), "{case}");
                }
                _ => assert!(stands != content && stands.len() == content.len(), "{case}"),
            }
            assert_eq!(
                fs::read(bench.dst().join("small")).unwrap(),
                fs::read(bench.src().join("small")).unwrap()
            );
            bench.check(&case);
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Damage {
    Payload,
    Head,
}

/// Passes frames with codes on and changes one bit of each fifth.
struct Middle {
    inner: Box<dyn Write + Send>,
    damage: Damage,
    frames: u64,
    done: Arc<AtomicU64>,
    partial: Vec<u8>,
}

impl Write for Middle {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.partial.extend(data);
        while self.partial.len() >= 24 {
            let body = u32::from_le_bytes(self.partial[..4].try_into().unwrap()) as usize;
            let len = 24 + body + CODE_LEN;
            if self.partial.len() < len {
                break;
            }
            let mut frame: Vec<u8> = self.partial.drain(..len).collect();
            self.frames += 1;
            if self.frames.is_multiple_of(5) && body > 0 {
                let at = if self.damage == Damage::Payload { len - 1 } else { 30 };
                frame[at] ^= 0x04;
                self.done.fetch_add(1, Ordering::SeqCst);
            }
            self.inner.write_all(&frame)?;
        }
        Ok(data.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Passes frames on and flips one payload byte of every `every`-th frame.
struct Flip {
    inner: Box<dyn Write + Send>,
    every: u64,
    frames: u64,
    flipped: Arc<AtomicU64>,
    partial: Vec<u8>,
}

impl Write for Flip {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.partial.extend(data);
        while self.partial.len() >= 24 {
            let len = 24 + u32::from_le_bytes(self.partial[..4].try_into().unwrap()) as usize;
            if self.partial.len() < len {
                break;
            }
            let mut frame: Vec<u8> = self.partial.drain(..len).collect();
            self.frames += 1;
            if self.frames.is_multiple_of(self.every) {
                *frame.last_mut().unwrap() ^= 0x10;
                self.flipped.fetch_add(1, Ordering::SeqCst);
            }
            self.inner.write_all(&frame)?;
        }
        Ok(data.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Goal: an object that arrives damaged is sent again alone, and the result is exact.
/// Method: one payload byte of every k-th data frame is flipped on the way; files of one object's size and
/// more.
#[test]
fn damaged_payload_is_repaired_alone() {
    for every in [2, 5, 13] {
        let bench = Bench::new();
        plant(&bench, &[("a", 3_000_000), ("d/b", 1_000_001), ("c", 262_145)]);
        let flipped = Arc::new(AtomicU64::new(0));
        let (source, sink) = copy("damage", &bench, &[contents(&bench.src())], &RUN, |near, _| {
            for link in &mut near[1..] {
                let inner = std::mem::replace(&mut link.writer, Box::new(io::sink()));
                let (frames, partial) = (0, Vec::new());
                link.writer = Box::new(Flip { inner, every, frames, flipped: flipped.clone(), partial });
            }
        });
        assert_eq!((&source.end, &sink.end), (&SessionEnd::Complete, &SessionEnd::Complete));
        let flipped = flipped.load(Ordering::SeqCst);
        assert!(flipped > 0);
        assert_eq!((source.own.objects_resent, sink.own.objects_resent), (flipped, flipped));
        bench.same();
    }
}

/// Reads and writes until `left` bytes passed, then both directions are cut.
struct Cut<T> {
    inner: T,
    left: u64,
    closer: Arc<dyn Fn() + Send + Sync>,
}

impl<T> Cut<T> {
    fn pass(&mut self, len: usize) -> io::Result<usize> {
        if self.left == 0 {
            (self.closer)();
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok(len.min(self.left as usize))
    }
}

impl<T: Write> Write for Cut<T> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let len = self.pass(data.len())?;
        let n = self.inner.write(&data[..len])?;
        self.left -= n as u64;
        Ok(n)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Cut<T> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = self.pass(out.len())?;
        let n = self.inner.read(&mut out[..len])?;
        self.left -= n as u64;
        Ok(n)
    }
}

fn cut_writer(link: &mut Link, left: u64) {
    let inner = std::mem::replace(&mut link.writer, Box::new(io::sink()));
    link.writer = Box::new(Cut { inner, left, closer: link.closer.clone() });
}

fn cut_reader(link: &mut Link, left: u64) {
    let inner = std::mem::replace(&mut link.reader, Box::new(io::empty()));
    link.reader = Box::new(Cut { inner, left, closer: link.closer.clone() });
}

/// Goal: a lost stream costs what was on its way on it, and nothing else.
/// Method: one of four streams is cut after N bytes, N from before the first frame to deep inside.
#[test]
fn a_lost_stream_is_made_up_for_by_the_others() {
    let run = Run { streams: 4, ..RUN };
    for left in [0, 10, 24, 100, 65_000, 70_000, 300_001, 1_000_000] {
        for far_end in [false, true] {
            let bench = Bench::new();
            plant(&bench, &[("a", 6_000_000), ("b", 1_000), ("c", 300_000)]);
            let (source, sink) = copy("one cut", &bench, &[contents(&bench.src())], &run, |near, far| {
                if far_end { cut_reader(&mut far[2], left) } else { cut_writer(&mut near[2], left) }
            });
            assert_eq!((&source.end, &sink.end), (&SessionEnd::Complete, &SessionEnd::Complete), "{left}");
            bench.same();
            // A pipe of 256 KiB and two frames in the queue.
            let resent = source.own.payload - 6_301_000;
            assert!(resent <= 256 * 1024 + 3 * 65_536 + 1_000, "{resent} bytes again after {left}");
        }
    }
}

/// Goal: without streams or without control both ends fail, and the same run again completes; what was on
/// media is not sent again.
#[test]
fn cut_sessions_fail_and_resume() {
    let total = 4_000_000 + 300_000 + 5;
    for (what, points) in [
        ("streams", &[0, 30_000, 500_000, 1_500_000][..]),
        ("control near", &[0, 20, 50, 90, 120, 200, 300, 400, 500, 700, 1_000]),
        ("control far", &[0, 20, 50, 90, 120, 200, 300, 400, 500, 700, 1_000]),
        ("control read", &[0, 20, 60, 100, 130, 180, 250, 400, 600]),
    ] {
        for left in points.iter().copied() {
            let case = format!("{what} cut after {left}");
            let bench = Bench::new();
            plant(&bench, &[("a", 4_000_000), ("d/b", 300_000), ("c", 5)]);
            let (source, sink) =
                copy(&case, &bench, &[contents(&bench.src())], &RUN, |near, far| match what {
                    "streams" => near[1..].iter_mut().for_each(|link| cut_writer(link, left)),
                    "control near" => cut_writer(&mut near[0], left),
                    "control far" => cut_writer(&mut far[0], left),
                    _ => cut_reader(&mut near[0], left),
                });
            // A cut after the last word is none.
            if what == "streams" || left < 200 {
                assert!(failure(&source).is_some(), "{case}: {:?}", source.end);
                assert!(failure(&sink).is_some(), "{case}: {:?}", sink.end);
            }
            let (again, _) = whole(&format!("{case}, again"), &bench, &RUN);
            assert!(again.own.payload <= total, "{case}");
            let (third, _) = whole(&format!("{case}, once more"), &bench, &RUN);
            assert_eq!(third.own.payload, 0, "{case}");
        }
    }
}

/// Goal: a rerun after all streams were cut sends nothing that was on media.
/// Method: the sink's own count of what it wrote, held against the second run's payload.
#[test]
fn a_rerun_sends_only_what_is_missing() {
    let bench = Bench::new();
    plant(&bench, &[("a", 8_000_000)]);
    let (_, sink) = copy("first", &bench, &[contents(&bench.src())], &RUN, |near, _| {
        near[1..].iter_mut().for_each(|link| cut_writer(link, 2_000_000));
    });
    assert!(sink.own.payload >= 3_000_000);
    let (source, sink_again) = whole("second", &bench, &RUN);
    assert!(sink_again.resumed);
    assert_eq!(source.own.payload, 8_000_000 - sink.own.payload);
}

/// Goal: no setting of the live settings stops a copy.
/// Method: many files of sizes around the edges under each of the extremes.
#[test]
fn every_setting_copies() {
    let files: Vec<(String, usize)> = [0, 1, 65_535, 65_536, 65_537, 262_144, 262_145, 1_048_577, 5_000_000]
        .into_iter()
        .enumerate()
        .flat_map(|(i, len)| (0..3).map(move |n| (format!("d{n}/f{i}"), len + n)))
        .collect();
    let files: Vec<(&str, usize)> = files.iter().map(|(name, len)| (name.as_str(), *len)).collect();
    for run in [
        Run { streams: 1, ..RUN },
        Run { streams: 16, ..RUN },
        Run { readers: 1, writers: 1, streams: 1, ..RUN },
        Run { object_size: Some(64 << 20), ..RUN },
        Run { object_size: Some(64 << 20), memory: 1 << 30, ..RUN },
        Run { object_size: None, ..RUN },
        Run { memory: 1 << 20, ..RUN },
    ] {
        let bench = Bench::new();
        plant(&bench, &files);
        whole("settings", &bench, &run);
    }
}

/// Goal: little memory and many large files do not lock each other out.
#[test]
fn little_memory_moves_many_large_files() {
    let bench = Bench::new();
    let names: Vec<String> = (0..40).map(|i| format!("f{i}")).collect();
    let files: Vec<(&str, usize)> = names.iter().map(|name| (name.as_str(), 2_500_000)).collect();
    plant(&bench, &files);
    whole("little memory", &bench, &Run { object_size: None, streams: 4, ..RUN });
}

/// Goal: a wide tree of empty files, wider than the window of entries when directories are added, completes.
#[test]
fn many_entries_pass_the_window() {
    let bench = Bench::new();
    for i in 0..20_000 {
        let dir = bench.src().join(format!("d{}", i / 4000));
        if i % 4000 == 0 {
            fs::create_dir(&dir).unwrap();
        }
        fs::write(dir.join(i.to_string()), b"").unwrap();
    }
    let (source, _) = whole("empty files", &bench, &RUN);
    assert_eq!((source.tally.files, source.tally.dirs), (20_000, 5));
}

/// Goal: directories with one file each, beside and below each other, complete.
#[test]
fn nested_directories_pass_the_window() {
    let bench = Bench::new();
    for top in 0..10 {
        let mut dir = bench.src().join(format!("t{top}"));
        for _ in 0..300 {
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("f"), b"x").unwrap();
            dir = dir.join("d");
        }
    }
    let (source, _) = whole("nested", &bench, &RUN);
    assert_eq!((source.tally.files, source.tally.dirs), (3000, 3000));
}

/// Goal: the contents of several directories go into one.
#[test]
fn several_contents_go_into_one_root() {
    let bench = Bench::new();
    plant(&bench, &[("a/x/1", 10), ("b/y/2", 20), ("b/3", 300_000)]);
    let sources = [contents(&bench.src().join("a")), contents(&bench.src().join("b"))];
    let (near, far) = link_pairs(2).into_iter().unzip();
    let source = start_source(near, source_request(&sources));
    let sink = start_sink(far, sink_request(&bench.dst()));
    assert_eq!(finish("contents", source).end, SessionEnd::Complete);
    assert_eq!(finish("contents", sink).end, SessionEnd::Complete);
    for (from, to) in [("a/x/1", "x/1"), ("b/y/2", "y/2"), ("b/3", "3")] {
        assert_eq!(fs::read(bench.src().join(from)).unwrap(), fs::read(bench.dst().join(to)).unwrap());
    }
    bench.check("contents");
}
