use super::*;
use crate::io::fault::{Faulty, What, When};
use crate::io::pread::Pread;
use crate::sink::engine::WriteEngine;
use crate::sink::engine::tests::{Bench, META, TAG, Unmount, file, told, whole};
use haul_base::buffer::Pool;
use haul_base::sys::cached_and_dirty;
use haul_core::ids::{BufferId, DirId};
use haul_core::io::IoPolicy;
use haul_core::transfer::op::{BundleWrite, CommitItem, LookupItem};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path as FsPath;

const MIB: usize = 1 << 20;

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut data = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut data);
    data
}

fn with_io(io: IoPolicy) -> Bench {
    Bench::with(|config| config.storage.io = io)
}

/// A bench whose engine fails as planned.
fn faulty(io: IoPolicy, plan: Vec<(When, What)>) -> Bench {
    let dir = tempfile::tempdir().expect("tempdir");
    let root = dir.path().join("root");
    let change = |config: &mut super::super::EngineConfig| {
        config.storage.io = io;
        config.storage.threads = Some(1);
    };
    Bench::start(dir, root, change, |config, meter, post| {
        WriteEngine::start(config, meter, post, |io_threads, meter, on_done| {
            let depth = io_threads.engine.depth;
            let engine = move || {
                let (engine, _) = Faulty::new(Box::new(Pread::new(depth)), plan.clone());
                Ok(Box::new(engine) as Box<dyn crate::io::Engine>)
            };
            IoThreads::start_with(io_threads, meter, on_done, engine)
        })
    })
}

fn sink(bench: &Bench) -> &Arc<Sink> {
    &bench.engine.as_ref().expect("running").sink
}

fn said(bench: &Bench, what: &str) -> String {
    let sink = sink(bench);
    let report = sink.data.report(&sink.files.spaces);
    report.into_iter().find(|(name, _)| name == what).expect("reported").1
}

/// The mode of an open file.
fn mode_of(bench: &Bench, file: &SinkFile) -> IoMode {
    let open = sink(bench).files.if_ready(file).expect("it is ready");
    let path = lock(&open.path);
    path.switch.mode()
}

/// Whether the file system of temporary files takes direct I/O.
fn direct_works() -> bool {
    let bench = with_io(IoPolicy::Direct);
    let file = file(1, DirId::ROOT, "f", MIB as u64);
    let open = sink(&bench).files.ready(&file, |open, file| sink(&bench).begin_path(open, file));
    let works = lock(&open.expect("ready").path).direct.is_some();
    if !works {
        eprintln!("skipped: no direct I/O here");
    }
    works
}

/// Submits the objects of `data` in a seeded order, all at once.
fn submit_all(bench: &mut Bench, file: &SinkFile, data: &[u8], object: usize, seed: u64) -> usize {
    let mut objects: Vec<_> = data.chunks(object).enumerate().collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut objects);
    for (i, chunk) in &objects {
        submit(bench, file, (i * object) as u64, chunk);
    }
    objects.len()
}

fn submit(bench: &mut Bench, file: &SinkFile, offset: u64, data: &[u8]) {
    let len = data.len() as u32;
    bench.submit(SinkOp::Write { file: file.clone(), offset, len, buffer: BufferId(0), start: 0 }, data);
}

fn reap(bench: &mut Bench, count: usize) -> Vec<Result<(), Failure>> {
    let result = |_| match bench.posted.recv_timeout(Duration::from_secs(60)).expect("a completion") {
        (SinkDone::Write { result, .. }, _) => result,
        other => panic!("{other:?}"),
    };
    (0..count).map(result).collect()
}

fn write_all(bench: &mut Bench, file: &SinkFile, data: &[u8], object: usize, seed: u64) {
    let count = submit_all(bench, file, data, object, seed);
    for result in reap(bench, count) {
        result.expect("written");
    }
}

/// Ends the trial of buffered writes, as if much had been written.
fn try_direct(bench: &Bench) {
    let choice = &sink(bench).data.choice;
    choice.begin(IoMode::Buffered);
    choice.end(IoMode::Buffered, 1 << 30);
    choice.on_commit();
    assert_eq!(choice.mode(), IoMode::Direct);
}

/// Mounts a file system for a test; `None` where that needs more rights.
fn mount(kind: &str, options: &str, at: &FsPath) -> bool {
    fs::create_dir_all(at).expect("mkdir");
    let mounted =
        std::process::Command::new("mount").args(["-t", kind, "-o", options, kind]).arg(at).output();
    let good = mounted.is_ok_and(|output| output.status.success());
    if !good {
        eprintln!("skipped: mounting needs root");
    }
    good
}

/// Goal: any size arrives as it is, direct and buffered, with tails of any length; what was asked for is
/// used.
/// Method: sizes around pages and objects, objects in seeded order at once, read back.
#[test]
fn any_size_and_tail_in_both_modes() {
    let direct_works = direct_works();
    let sizes = [1, 511, 4096, 262_144, 262_145, 300_000, MIB, 3 * MIB + 1, 3 * MIB + 4095];
    for io in [IoPolicy::Direct, IoPolicy::Buffered] {
        let mut bench = with_io(io);
        for (i, size) in sizes.into_iter().enumerate() {
            let data = bytes(size, i as u64);
            let f = file(1 + i as u64, DirId::ROOT, &format!("f{size}"), size as u64);
            write_all(&mut bench, &f, &data, 256 << 10, 5);
            let direct = io == IoPolicy::Direct && size as u64 > SMALL_LEN_MAX && direct_works;
            assert_eq!(mode_of(&bench, &f) == IoMode::Direct, direct, "{io:?} {size}");
            bench.publish(&f).expect("published");
            assert_eq!(fs::read(bench.root.join(format!("f{size}"))).expect("read"), data, "{io:?} {size}");
        }
        assert_eq!(bench.ls().len(), sizes.len());
    }
}

/// Goal: what a padded write puts behind the end of a file is zeros, until the commit cuts it off.
/// Method: a pool full of old payload, one odd tail, the temporary read before and the file after the commit.
#[test]
fn pads_are_zeros_and_are_cut_off() {
    if !direct_works() {
        return;
    }
    let mut bench = with_io(IoPolicy::Direct);
    let size = 300_001;
    let mut old = bench.pool.take(size).expect("a buffer");
    let room = old.as_slice().len();
    old.as_mut_slice().fill(0xaa);
    drop(std::mem::replace(&mut old, Pool::new(1 << 20).take(1).expect("a buffer")));
    // All of the memory, not only the payload that a buffer of this length shows.
    let mut dirty = bench.pool.take(credit_cost(room as u64) as usize).expect("a buffer");
    dirty.as_mut_slice().fill(0xaa);
    drop(dirty);
    let f = file(1, DirId::ROOT, "f", size as u64);
    submit(&mut bench, &f, 0, &bytes(size, 1));
    reap(&mut bench, 1).remove(0).expect("written");
    let temp = fs::read(bench.temp("f", TAG)).expect("read");
    assert_eq!(temp.len(), size.next_multiple_of(512).max(temp.len()));
    assert!(temp.len() > size, "it was padded");
    assert!(temp[size..].iter().all(|byte| *byte == 0), "older payload leaked");
    assert!(!bench.root.join("f").exists());
    bench.publish(&f).expect("published");
    assert_eq!(fs::metadata(bench.root.join("f")).expect("stat").len(), size as u64);
}

/// Goal: a file under way follows the choice and stays whole, there and back, and what was written before a
/// change is synced; without durability it keeps its mode.
/// Method: 40 objects at once, the choice turned to direct in the middle and refused at the end.
#[test]
fn files_change_their_mode_and_stay_whole() {
    if !direct_works() {
        return;
    }
    for durable in [true, false] {
        let mut bench = Bench::with(|config| config.durable = durable);
        let object = 128 << 10;
        let data = bytes(60 * object + 77, 9);
        let f = file(1, DirId::ROOT, "f", data.len() as u64);
        let (first, rest) = data.split_at(20 * object);
        let (second, third) = rest.split_at(20 * object);
        let mut count = 0;
        for (i, chunk) in first.chunks(object).enumerate() {
            submit(&mut bench, &f, (i * object) as u64, chunk);
            count += 1;
        }
        // One is there, so that the file is ready; the others may be under way.
        reap(&mut bench, 1).remove(0).expect("written");
        count -= 1;
        try_direct(&bench);
        for (i, chunk) in second.chunks(object).enumerate() {
            submit(&mut bench, &f, ((20 + i) * object) as u64, chunk);
            count += 1;
        }
        assert!(reap(&mut bench, count).iter().all(Result::is_ok));
        let mode = if durable { IoMode::Direct } else { IoMode::Buffered };
        assert_eq!(mode_of(&bench, &f), mode);
        if let (true, Some((_, dirty))) =
            (durable, cached_and_dirty(fs::File::open(bench.temp("f", TAG)).expect("open")))
        {
            assert_eq!(dirty, 0, "pages were dirty while the file was written past them");
        }
        sink(&bench).data.choice.on_refused(Errno::INVAL);
        for (i, chunk) in third.chunks(object).enumerate() {
            submit(&mut bench, &f, ((40 + i) * object) as u64, chunk);
        }
        assert!(reap(&mut bench, third.chunks(object).count()).iter().all(Result::is_ok));
        assert_eq!(mode_of(&bench, &f), IoMode::Buffered);
        bench.publish(&f).expect("published");
        assert_eq!(fs::read(bench.root.join("f")).expect("read"), data);
    }
}

/// Goal: an object that direct I/O cannot take goes through the cache with the rest of its file, and nothing
/// beside it is harmed.
/// Method: objects at odd offsets between aligned ones, all at once, in seeded orders.
#[test]
fn unaligned_objects_go_through_the_cache() {
    for seed in 0..8 {
        let mut bench = with_io(IoPolicy::Direct);
        let data = bytes(MIB, seed);
        let f = file(1, DirId::ROOT, "f", data.len() as u64);
        let mut cuts = vec![0, 65_536, 131_072, 200_001, 262_144, 400_000, 524_288, MIB];
        cuts.dedup();
        let mut ranges: Vec<_> = cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
        fastrand::Rng::with_seed(seed).shuffle(&mut ranges);
        for range in &ranges {
            submit(&mut bench, &f, range.start as u64, &data[range.clone()]);
        }
        assert!(reap(&mut bench, ranges.len()).iter().all(Result::is_ok));
        assert_eq!(mode_of(&bench, &f), IoMode::Buffered);
        bench.publish(&f).expect("published");
        assert_eq!(fs::read(bench.root.join("f")).expect("read"), data, "seed {seed}");
    }
}

/// Goal: a file system without direct I/O is no error, and the report says so.
/// Method: ramfs, whose open refuses it; then a write that is refused though the open was not (planned),
/// after which everything goes through the cache and no byte is missing.
#[test]
fn refused_direct_is_buffered() {
    let dir = tempfile::tempdir().expect("tempdir");
    if mount("ramfs", "size=64m", &dir.path().join("m")) {
        let at = dir.path().join("m");
        let _unmount = Unmount(&at);
        let mut bench = Bench::at(tempfile::tempdir().expect("tempdir"), at.join("root"), |config| {
            config.storage.io = IoPolicy::Direct;
        });
        let f = file(1, DirId::ROOT, "f", MIB as u64);
        write_all(&mut bench, &f, &bytes(MIB, 3), 64 << 10, 1);
        bench.publish(&f).expect("published");
        assert!(said(&bench, "sink io").starts_with("buffered (direct is refused"));
        assert_eq!(fs::read(bench.root.join("f")).expect("read"), bytes(MIB, 3));
        drop(bench);
    }
    if !direct_works() {
        return;
    }
    let mut bench = faulty(IoPolicy::Direct, vec![(When::Nth(IoKind::Write, 3), What::Fail(Errno::INVAL))]);
    let data = bytes(8 * MIB, 4);
    let f = file(1, DirId::ROOT, "f", data.len() as u64);
    // One after the other: writes that wait together are joined, and the third might never come.
    for (i, part) in data.chunks(MIB).enumerate() {
        bench.write(&f, (i * MIB) as u64, part).expect("written");
    }
    assert_eq!(mode_of(&bench, &f), IoMode::Buffered);
    bench.publish(&f).expect("published");
    assert_eq!(fs::read(bench.root.join("f")).expect("read"), data);
    assert!(said(&bench, "sink io").starts_with("buffered (direct is refused"));
}

/// Goal: a file that failed stays failed: late writes neither succeed nor make its temporary again, until it
/// is discarded; and after a lost job nobody removes what may be the new owner's.
/// Method: a commit that fails over a directory; one of a former owner.
#[test]
fn failed_files_stay_failed_until_discarded() {
    for lost in [false, true] {
        let mut bench = Bench::new();
        fs::create_dir(bench.root.join("f")).expect("mkdir");
        let f = file(1, DirId::ROOT, "f", 2 * MIB as u64);
        write_all(&mut bench, &f, &bytes(2 * MIB, 1), MIB, 1);
        // The journal may speak of it now.
        bench.commit(vec![CommitItem { id: f.id, publish: None }]).remove(0).expect("a part");
        bench.lost.store(lost, std::sync::atomic::Ordering::SeqCst);
        let failure = bench.publish(&f).expect_err("it must not be published");
        assert_eq!(bench.temp("f", TAG).exists(), lost);
        for _ in 0..2 {
            assert_eq!(bench.write(&f, 0, b"late").expect_err("it failed"), failure);
            assert_eq!(bench.publish(&f).expect_err("it failed").text, failure.text);
        }
        assert_eq!(bench.temp("f", TAG).exists(), lost);
        bench.run(SinkOp::Discard { id: f.id }, b"");
        assert_eq!(bench.temp("f", TAG).exists(), lost);
        if !lost {
            bench.write(&f, 0, b"anew").expect("written");
            assert!(bench.temp("f", TAG).exists());
        }
    }
}

/// Goal: a large file of which bytes were not written is not published, though its size is right from the
/// beginning.
/// Method: the last object left out.
#[test]
fn size_in_advance_hides_no_missing_bytes() {
    let mut bench = Bench::new();
    let data = bytes(2 * MIB, 1);
    let f = file(1, DirId::ROOT, "f", data.len() as u64);
    submit(&mut bench, &f, 0, &data[..MIB]);
    reap(&mut bench, 1).remove(0).expect("written");
    let failure = bench.publish(&f).expect_err("half of it is missing");
    assert!(failure.text.contains("1048576 of 2097152 bytes"), "{}", failure.text);
    assert!(bench.ls().is_empty());
}

/// Goal: a bundle may hold files of any size, and they are published too.
/// Method: one of 1 MiB beside a small one.
#[test]
fn bundled_files_may_be_large() {
    let mut bench = Bench::new();
    let (f, g) = (file(1, DirId::ROOT, "f", MIB as u64), file(2, DirId::ROOT, "g", 5));
    let data = bytes(MIB + 5, 1);
    let items = vec![
        BundleWrite { file: f.clone(), start: 0, mode: 0o600 },
        BundleWrite { file: g.clone(), start: MIB as u32, mode: 0o600 },
    ];
    bench.run(SinkOp::WriteBundle { buffer: BufferId(0), items, more: false }, &data);
    for result in bench.commit(vec![whole(&f, META), whole(&g, META)]) {
        result.expect("published");
    }
    assert_eq!(fs::read(bench.root.join("f")).expect("read"), data[..MIB]);
}

/// Goal: blocks are there before the data, unless that was switched off.
/// Method: one object of a large file; the temporary's blocks.
#[test]
fn space_comes_before_the_data() {
    for off in [false, true] {
        let mut bench = Bench::with(|config| config.storage.no_preallocate = off);
        let f = file(1, DirId::ROOT, "f", 32 * MIB as u64);
        submit(&mut bench, &f, 0, &bytes(MIB, 1));
        reap(&mut bench, 1).remove(0).expect("written");
        let stat = fs::metadata(bench.temp("f", TAG)).expect("stat");
        let all = stat.blocks() * 512 >= 32 * MIB as u64;
        let told = said(&bench, "sink preallocation");
        assert!(all != off || told.contains("the file system"), "{} blocks, {told}", stat.blocks());
        assert_eq!(told.contains("as asked"), off);
    }
}

/// Goal: where a file does not fit, its failure comes before any of its data is written; a new temporary
/// goes, one of an earlier run stays for the next.
/// Method: tmpfs of 1 MiB; a new file and an adopted one of 4 MiB.
#[test]
fn lack_of_space_is_told_before_data_moves() {
    let dir = tempfile::tempdir().expect("tempdir");
    let at = dir.path().join("m");
    if !mount("tmpfs", "size=1m", &at) {
        return;
    }
    let _unmount = Unmount(&at);
    let mut bench = Bench::at(tempfile::tempdir().expect("tempdir"), at.join("root"), |_| {});
    fs::write(bench.temp("old", 5), "begun").expect("write");
    let old = file(1, DirId::ROOT, "old", 4 * MIB as u64);
    let item =
        LookupItem { file: old.clone(), fingerprint: told(old.size, META.mtime), meta: META, adopt: Some(5) };
    bench.run(SinkOp::Lookup { items: vec![item] }, b"");
    let new = file(2, DirId::ROOT, "new", 4 * MIB as u64);
    for f in [&old, &new] {
        let failure = bench.write(f, 0, b"data").expect_err("no space");
        assert_eq!(failure.errno, Errno::NOSPC.raw_os_error());
        assert!(failure.text.contains("allocate the 4194304 bytes of"), "{}", failure.text);
    }
    assert_eq!(fs::read(bench.temp("old", TAG)).expect("it stays"), b"begun");
    assert!(!bench.temp("new", TAG).exists());
    bench.run(SinkOp::Discard { id: old.id }, b"");
    assert!(bench.ls().is_empty());
    drop(bench);
}

/// Goal: written pages leave the page cache, by the kernel's own flag and without it, at every commit of a
/// part and of the whole, and small files too.
/// Method: 64 MiB and 200 small files; how many of their pages the kernel has after the commit.
#[test]
fn written_pages_leave_the_cache() {
    for refused in [false, true] {
        let mut bench = with_io(IoPolicy::Buffered);
        if refused {
            sink(&bench).data.cache.on_refused();
        }
        let size = 64 * MIB;
        let f = file(1, DirId::ROOT, "f", size as u64);
        let data = bytes(size, 2);
        write_all(&mut bench, &f, &data[..size / 2], 4 * MIB, 3);
        bench.commit(vec![CommitItem { id: f.id, publish: None }]).remove(0).expect("partial");
        let Some((pages, _)) = cached_and_dirty(fs::File::open(bench.temp("f", TAG)).expect("open")) else {
            return eprintln!("skipped: the kernel does not tell");
        };
        assert!(pages < 256, "{pages} pages after half of it");
        for (i, chunk) in data[size / 2..].chunks(4 * MIB).enumerate() {
            submit(&mut bench, &f, (size / 2 + i * 4 * MIB) as u64, chunk);
        }
        assert!(reap(&mut bench, size / 2 / (4 * MIB)).iter().all(Result::is_ok));
        bench.publish(&f).expect("published");
        let pages = cached_and_dirty(fs::File::open(bench.root.join("f")).expect("open")).expect("told").0;
        assert!(pages < 256, "{pages} pages after the commit, refused: {refused}");

        let files: Vec<_> = (2..200).map(|i| file(i, DirId::ROOT, &format!("s{i}"), 8192)).collect();
        let small = bytes(8192, 1);
        for f in &files {
            bench.write(f, 0, &small).expect("written");
        }
        assert!(bench.commit(files.iter().map(|f| whole(f, META)).collect()).iter().all(Result::is_ok));
        let pages: u64 = (2..200)
            .map(|i| fs::File::open(bench.root.join(format!("s{i}"))).expect("open"))
            .map(|file| cached_and_dirty(file).expect("told").0)
            .sum();
        assert!(pages < 40, "{pages} pages of 198 small files");
    }
}

/// Goal: each way in which storage fails gives the file's failure in words, with the errno, and the file
/// alone: another is written by the same engine. What was merely interrupted is no failure.
/// Method: a planned fault in the first write, in both modes.
#[test]
fn storage_faults_are_told() {
    let faults = [
        (What::Fail(Errno::IO), Some((Errno::IO, "Input/output error"))),
        (What::Fail(Errno::NOSPC), Some((Errno::NOSPC, "out of blocks"))),
        (What::Fail(Errno::NODEV), Some((Errno::NODEV, "No such device"))),
        (What::Fail(Errno::INTR), None),
        (What::Fail(Errno::AGAIN), None),
        (What::Short(4096), None),
    ];
    for io in [IoPolicy::Buffered, IoPolicy::Direct] {
        for (what, told) in faults {
            let mut bench = faulty(io, vec![(When::Nth(IoKind::Write, 0), what)]);
            let data = bytes(MIB, 1);
            let f = file(1, DirId::ROOT, "f", MIB as u64);
            submit(&mut bench, &f, 0, &data);
            let result = reap(&mut bench, 1).remove(0);
            assert_eq!(bench.pool.in_use().0, 0);
            match told {
                None => {
                    result.expect("it goes on");
                    bench.publish(&f).expect("published");
                    assert_eq!(fs::read(bench.root.join("f")).expect("read"), data, "{what:?}");
                }
                Some((errno, words)) => {
                    let failure = result.expect_err("a fault");
                    assert_eq!((failure.kind, failure.errno), (FailureKind::Write, errno.raw_os_error()));
                    let text = &failure.text;
                    assert!(text.contains(words) && text.contains("/f at byte 0"), "{what:?}: {text}");
                }
            }
            let g = file(2, DirId::ROOT, "g", MIB as u64);
            submit(&mut bench, &g, 0, &data);
            reap(&mut bench, 1).remove(0).expect("written");
            bench.publish(&g).expect("published");
        }
    }
}

/// Goal: a sync that fails at a change of mode fails the file as one at a commit does: held writes fail with
/// it, the temporary goes, and nothing of it is ever published.
/// Method: the failure that a sync would give is handed in, for a device that fails syncs is not at hand.
#[test]
fn failed_files_fail_what_is_held() {
    let mut bench = Bench::new();
    let f = file(1, DirId::ROOT, "f", 2 * MIB as u64);
    let data = bytes(2 * MIB, 1);
    submit(&mut bench, &f, 0, &data[..MIB]);
    reap(&mut bench, 1).remove(0).expect("written");
    let sink = sink(&bench).clone();
    let open = sink.files.if_ready(&f).expect("ready");
    let mut buffer = bench.pool.take(MIB).expect("a buffer");
    buffer.as_mut_slice().copy_from_slice(&data[MIB..]);
    let admitted = lock(&open.path).switch.admit(IoMode::Direct, pending(&sink, &f, MIB as u64, buffer));
    assert!(matches!(admitted, Admit::Change));
    let failure = fault::failure(FailureKind::Sync, Errno::IO.raw_os_error(), "sync: no");
    sink.fail_held(&open, &failure);
    assert_eq!(reap(&mut bench, 1), [Err(failure.clone())]);
    assert_eq!(bench.pool.in_use().0, 0);
    assert!(bench.ls().is_empty());
    assert_eq!(bench.write(&f, 0, b"late").expect_err("failed"), failure);
    assert_eq!(bench.publish(&f).expect_err("failed"), failure);
}

/// A write of `buffer`, counted as submitted.
fn pending(sink: &Arc<Sink>, file: &SinkFile, offset: u64, buffer: Buffer) -> Pending {
    let len = buffer.as_slice().len() as u32;
    let op = SinkOp::Write { file: file.clone(), offset, len, buffer: BufferId(0), start: 0 };
    let write = sink.new_write(SinkJob { op, buffer: Some(Payload::Own(buffer)) });
    sink.take(write).expect("it fits").1
}

/// Goal: a commit does not call durable what a sync for another purpose, at the same time, heard the error
/// of.
/// Method: a kernel that tells an error once, to the sync before a change of mode; a commit that is asked for
/// while that runs, and again after.
#[test]
fn a_commit_hears_of_another_syncs_error() {
    let mut bench = Bench::new();
    let f = file(1, DirId::ROOT, "f", 2 * MIB as u64);
    submit(&mut bench, &f, 0, &bytes(MIB, 1));
    reap(&mut bench, 1).remove(0).expect("written");
    let sink = sink(&bench).clone();
    let open = sink.files.if_ready(&f).expect("ready");
    let (entered, enters) = crossbeam_channel::unbounded();
    let (go, may_go) = crossbeam_channel::unbounded::<()>();
    let calls = std::sync::atomic::AtomicUsize::new(0);
    sink.data.set_sync(Arc::new(move |_, _| {
        if calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst) > 0 {
            return Ok(());
        }
        entered.send(()).expect("the test waits");
        let _ = may_go.recv();
        Err(Errno::IO)
    }));
    let buffer = bench.pool.take(MIB).expect("a buffer");
    let admitted = lock(&open.path).switch.admit(IoMode::Direct, pending(&sink, &f, MIB as u64, buffer));
    assert!(matches!(admitted, Admit::Change));
    let path = lock(&open.path).buffered.clone().expect("open");
    sink.spawn_change(&open, &path);
    enters.recv_timeout(Duration::from_secs(60)).expect("the first sync runs");
    let part = || vec![CommitItem { id: f.id, publish: None }];
    bench.submit(SinkOp::Commit { durable: true, items: part() }, b"");
    drop(go);
    let mut failed = 0;
    for _ in 0..2 {
        match bench.posted.recv_timeout(Duration::from_secs(60)).expect("a completion").0 {
            SinkDone::Commit { results, .. } => failed += usize::from(results[0].1.is_err()),
            SinkDone::Write { result, .. } => failed += usize::from(result.is_err()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(failed, 2, "the commit, and the write that waited");
    assert!(bench.commit(part()).remove(0).is_err());
    assert!(bench.ls().is_empty(), "nothing of it is believed, so nothing is kept");
}

/// Goal: storage that hangs until the engine has ended, and then comes back, finds nothing to write to and
/// says so.
/// Method: a write that waits for a change of mode; the engine is ended, then the change is made.
#[test]
fn what_comes_back_after_the_end_fails_in_words() {
    let mut bench = Bench::with(|config| config.storage.deadline_ms = Some(20));
    let f = file(1, DirId::ROOT, "f", 2 * MIB as u64);
    submit(&mut bench, &f, 0, &bytes(MIB, 1));
    reap(&mut bench, 1).remove(0).expect("written");
    let sink = sink(&bench).clone();
    let open = sink.files.if_ready(&f).expect("ready");
    let buffer = bench.pool.take(MIB).expect("a buffer");
    let admitted = lock(&open.path).switch.admit(IoMode::Direct, pending(&sink, &f, MIB as u64, buffer));
    assert!(matches!(admitted, Admit::Change));
    let left = bench.engine.take().expect("running").join();
    assert_eq!(left, ["1 writes did not come back"]);
    sink.change_mode(&open).expect("the sync is good");
    let failure = reap(&mut bench, 1).remove(0).expect_err("nobody writes it");
    assert!(failure.text.contains("the session ended"), "{failure:?}");
    assert_eq!(bench.pool.in_use().0, 0);
}
