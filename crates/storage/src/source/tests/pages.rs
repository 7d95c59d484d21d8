//! The page cache is left as it was found, by every operation of the engine.

use std::fs::File;
use std::ops::Range;

use haul_core::io::IoPolicy;
use rustix::fs::{Advice, fadvise};

use super::*;
use crate::source::cache::{Asking, Pages};

/// A directory on a file system that has a page cache of its own: not one in memory.
pub(in crate::source) fn disk_dir() -> Option<tempfile::TempDir> {
    const TMPFS: u64 = 0x0102_1994;
    let is_disk = |dir: &tempfile::TempDir| {
        rustix::fs::statfs(dir.path()).is_ok_and(|stat| stat.f_type as u64 & 0xffff_ffff != TMPFS)
    };
    let temp = tempfile::tempdir().expect("tempdir");
    if is_disk(&temp) {
        return Some(temp);
    }
    let target = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target");
    let temp =
        fs::create_dir_all(target).ok().and_then(|()| tempfile::tempdir_in(target).ok()).filter(is_disk);
    if temp.is_none() {
        println!("skipped: no directory on a disk for a test of the page cache");
    }
    temp
}

/// Caches exactly these pages of a file that is clean.
pub(in crate::source) fn cache_exactly(file: &File, cached: &[bool]) {
    fadvise(file, 0, None, Advice::DontNeed).expect("fadvise");
    fadvise(file, 0, None, Advice::Random).expect("fadvise");
    let page = rustix::param::page_size() as u64;
    for i in (0..cached.len()).filter(|i| cached[*i]) {
        assert_eq!(file.read_at(&mut [0], i as u64 * page).expect("read"), 1);
    }
}

/// Runs of pages that are not cached, of a whole file.
fn absent(file: &File) -> Vec<Range<u64>> {
    Pages::new().absent(file.as_fd(), 0, file.metadata().expect("stat").len())
}

fn cached_bytes(file: &File) -> u64 {
    let len = file.metadata().expect("stat").len();
    let page = rustix::param::page_size() as u64;
    len.next_multiple_of(page) - absent(file).iter().map(|run| run.end - run.start).sum::<u64>()
}

/// A bench on a disk. `helped`: the kernel may keep the cache clean by itself.
fn bench(dir: tempfile::TempDir, io: IoPolicy, helped: bool) -> Bench {
    Bench::start(dir, tomorrow(), |tree, post, meter| {
        let mut config = config(2);
        config.storage.io = io;
        let io_threads = config.io_settings().io_threads;
        let pages = Pages::with(Asking::Cachestat);
        let dev = tree.dir_fd(Place::Base(0)).ok().and_then(|fd| rustix::fs::fstat(&fd).ok());
        if let (false, Some(stat)) = (helped, dev) {
            pages.set_dontcache(open::device_of(&stat), false);
        }
        ReadEngine::start_with(tree, post, meter, config, pages, move || crate::io::open(&io_threads.engine))
    })
}

/// Most rounds in which somebody else took pages away.
const DISTURBED_MAX: usize = 20;

/// Goal: whatever is read, in whatever mode, the pages that were cached are cached after, and no others.
/// Method: a file with one half and some odd pages cached, read as objects in random order, hashed, compared
/// and in a bundle; direct and buffered, with and without the kernel's help. A file beside it that nobody
/// reads has the same pages cached: where it loses some, the kernel wanted the memory, and that round says
/// nothing.
#[test]
fn the_cache_is_left_as_found() {
    for io in [IoPolicy::Buffered, IoPolicy::Direct, IoPolicy::Auto] {
        for helped in [true, false] {
            let mut disturbed = 0;
            while let Err(why) = leaves_the_cache(io, helped) {
                disturbed += 1;
                assert!(disturbed < DISTURBED_MAX, "the kernel takes pages away all the time: {why}");
            }
        }
    }
}

/// One round. `Err`: what was found, and the file that nobody reads lost pages too.
fn leaves_the_cache(io: IoPolicy, helped: bool) -> Result<(), String> {
    let Some(dir) = disk_dir() else { return Ok(()) };
    let mut bench = bench(dir, io, helped);
    let size = (8 << 20) + 5000;
    let content = random(size, 11);
    let id = aged(&mut bench, "f", &content);
    let small = aged(&mut bench, "small", &content[..200_000]);
    aged(&mut bench, "witness", &content);
    let pages = size.div_ceil(rustix::param::page_size());
    let mut rng = fastrand::Rng::with_seed(12);
    let cached: Vec<bool> = (0..pages).map(|i| i < pages / 2 || rng.u32(0..50) == 0).collect();
    let open = |name: &str| File::open(bench.path(name)).expect("open");
    let (file, small_file, witness) = (open("f"), open("small"), open("witness"));
    let small_cached = &[false, true, false][..];
    for (file, cached) in [(&witness, &cached[..]), (&file, &cached), (&small_file, small_cached)] {
        file.sync_all().expect("sync");
        cache_exactly(file, cached);
    }
    let before = (absent(&file), absent(&small_file), absent(&witness));
    let what = format!("{io:?}, helped: {helped}");
    let check = |file: &File, before: &Vec<Range<u64>>, step: &str, witnessed: &Vec<Range<u64>>| {
        let now = absent(file);
        if now != *before && absent(&witness) != *witnessed {
            return Err(format!("{what}: {step}: {now:?}"));
        }
        assert_eq!(now, *before, "{what}: {step}");
        Ok(())
    };
    let mut offsets: Vec<usize> = (0..size).step_by(1 << 20).collect();
    rng.shuffle(&mut offsets);
    for offset in offsets {
        let len = (size - offset).min(1 << 20);
        let completion = bench.read(id, offset as u64, len as u32, size as u64);
        assert!(read_result(&completion).is_ok(), "{what}");
        let payload = completion.buffer.expect("comes back");
        assert!(payload.as_slice() == &content[offset..offset + len], "{what}");
    }
    check(&file, &before.0, "objects", &before.2)?;
    assert_eq!(bench.hash(id, G0), Ok(*blake3::hash(&content).as_bytes()), "{what}");
    check(&file, &before.0, "hash", &before.2)?;
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset(4 << 20);
    hasher.update(&content[4 << 20..8 << 20]);
    let subtrees = vec![Subtree { offset: 4 << 20, len: 4 << 20, cv: hasher.finalize_non_root() }];
    let op = SourceOp::Verify { id, generation: G0, size: size as u64, subtrees };
    let SourceDone::Verify { result, .. } = bench.run(op, None).done else { panic!() };
    assert_eq!(result, Ok(true), "{what}");
    check(&file, &before.0, "compare", &before.2)?;
    let files = vec![BundleFile { id: small, generation: G0, size: 200_000 }];
    let completion = bench.run(SourceOp::ReadBundle { files }, Some(200_000));
    assert!(completion.buffer.expect("comes back").as_slice() == &content[..200_000], "{what}");
    check(&small_file, &before.1, "bundle", &before.2)
}

/// Goal: a large file leaves less than 1 MiB in the cache.
/// Method: 64 MiB (`HAUL_PAGES_MIB` of them where it is set), absent before, 32 objects under way
/// at a time.
#[test]
fn a_large_file_leaves_nothing_behind() {
    let mib = std::env::var("HAUL_PAGES_MIB").ok().and_then(|text| text.parse().ok()).unwrap_or(64_usize);
    for (io, helped) in [(IoPolicy::Buffered, true), (IoPolicy::Buffered, false), (IoPolicy::Auto, true)] {
        let Some(dir) = disk_dir() else { return };
        let mut bench = bench(dir, io, helped);
        let size = mib << 20;
        let id = aged(&mut bench, "f", &random(size, 13));
        let file = File::open(bench.path("f")).expect("open");
        file.sync_all().expect("sync");
        cache_exactly(&file, &[]);
        let started = Instant::now();
        let mut under_way = 0;
        let take = |bench: &Bench| {
            let completion = bench.done.recv_timeout(Duration::from_secs(60)).expect("answered");
            assert!(read_result(&completion).is_ok());
        };
        for offset in (0..size).step_by(4 << 20) {
            if under_way == 32 {
                take(&bench);
                under_way -= 1;
            }
            under_way += 1;
            let op = SourceOp::Read {
                id,
                generation: G0,
                offset: offset as u64,
                len: 4 << 20,
                tail: offset + (4 << 20) == size,
                whole: false,
                target: TargetId(0),
            };
            let buffer = Some(bench.pool.take(4 << 20).expect("room"));
            bench.engine.submit(SourceJob { op, buffer });
        }
        (0..under_way).for_each(|_| take(&bench));
        let rate = size as f64 / started.elapsed().as_secs_f64() / 1e6;
        let left = cached_bytes(&file);
        let report = bench.engine.report();
        println!("{io:?}, helped {helped}: {left} bytes of {mib} MiB stay, {rate:.0} MB/s; {:?}", report[1]);
        assert!(left < 1 << 20, "{io:?}, helped {helped}: {left} bytes");
    }
}
