use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use super::*;
use crate::source::tests::pages::{cache_exactly, disk_dir};

const PAGES: usize = 200;

fn page() -> usize {
    rustix::param::page_size()
}

fn runs_of(cached: &[bool], range: Range<usize>) -> Runs {
    let mut runs = Runs::new();
    for i in range.filter(|i| !cached[*i]) {
        push(&mut runs, (i * page()) as u64..((i + 1) * page()) as u64);
    }
    runs
}

/// Goal: both ways of asking tell exactly which pages are absent, and how much of a range is there.
/// Method: seeded patterns of cached pages in a file on a disk, ranges on and off page edges, against the
/// pattern.
#[test]
fn absent_pages_are_known_exactly() {
    let Some(dir) = disk_dir() else { return };
    let path = dir.path().join("f");
    fs::write(&path, vec![7; PAGES * page()]).expect("write");
    let file = File::open(&path).expect("open");
    file.sync_all().expect("sync");
    let mut rng = fastrand::Rng::with_seed(1);
    for density in [0, 10, 50, 90, 100] {
        let cached: Vec<bool> = (0..PAGES).map(|_| rng.u32(0..100) < density).collect();
        cache_exactly(&file, &cached);
        for asking in [Asking::Cachestat, Asking::Mincore] {
            let pages = Pages::with(asking);
            for _ in 0..20 {
                let from = rng.usize(0..PAGES);
                let to = rng.usize(from + 1..=PAGES);
                let (cut_front, cut_back) = (rng.usize(0..page() / 2), rng.usize(0..page() / 2));
                let offset = from * page() + cut_front;
                let len = to * page() - cut_back - offset;
                let (offset, len) = (offset as u64, len as u64);
                let absent = runs_of(&cached, from..to);
                assert_eq!(pages.absent(file.as_fd(), offset, len), absent, "{asking:?} {from}..{to}");
                let there = (from..to).filter(|i| cached[*i]).count();
                let expected = match there {
                    0 => Cached::None,
                    n if n == to - from => Cached::All,
                    _ => Cached::Some,
                };
                assert_eq!(pages.cached(file.as_fd(), offset, len), expected, "{asking:?} {from}..{to}");
            }
        }
    }
    let blind = Pages::with(Asking::Nothing);
    assert_eq!(blind.cached(file.as_fd(), 0, 1), Cached::Unknown);
    assert_eq!(blind.absent(file.as_fd(), 5, 1), vec![0..page() as u64]);
    assert_eq!(blind.absent(file.as_fd(), 5, 0), Runs::new());
}

/// Goal: a read through the cache leaves it as it was, by the kernel's help and without.
/// Method: seeded patterns, the file read whole in pieces that end off page edges, each way of asking; the
/// pattern after.
#[test]
fn reads_leave_the_cache_as_found() {
    let Some(dir) = disk_dir() else { return };
    let path = dir.path().join("f");
    let mut content = vec![0; PAGES * page() - 100];
    fastrand::Rng::with_seed(2).fill(&mut content);
    fs::write(&path, &content).expect("write");
    let file = File::open(&path).expect("open");
    file.sync_all().expect("sync");
    let dev = 1;
    let mut rng = fastrand::Rng::with_seed(3);
    for (asking, dontcache) in
        [(Asking::Cachestat, None), (Asking::Cachestat, Some(false)), (Asking::Mincore, Some(false))]
    {
        let pages = Pages::with(asking);
        if let Some(takes) = dontcache {
            pages.set_dontcache(dev, takes);
        }
        for density in [0, 30, 100] {
            let cached: Vec<bool> = (0..PAGES).map(|_| rng.u32(0..100) < density).collect();
            cache_exactly(&file, &cached);
            let mut read = vec![0; content.len()];
            let ours = File::open(&path).expect("open");
            no_readahead(ours.as_fd());
            for (i, part) in read.chunks_mut(37 * page() + 11).enumerate() {
                let offset = (i * (37 * page() + 11)) as u64;
                let end = pages.read_at(ours.as_fd(), dev, part, offset);
                assert!(matches!(end, ReadEnd::Full), "{end:?}");
            }
            assert!(read == content);
            let absent = Pages::new().absent(file.as_fd(), 0, content.len() as u64);
            assert_eq!(absent, runs_of(&cached, 0..PAGES), "{asking:?} {dontcache:?} {density}");
        }
    }
    let mut room = vec![0; 200];
    let end = Pages::new().read_at(file.as_fd(), dev, &mut room, content.len() as u64 - 50);
    assert!(matches!(end, ReadEnd::Short(50)), "{end:?}");
    assert!(file.read_at(&mut room, 0).is_ok());
}

/// Goal: a file system that does not take the flag is found out once, by a read that reads nothing.
/// Method: a file in memory, whose file system has no use for it; the books of two file systems.
#[test]
fn refusals_are_remembered_for_each_file_system() {
    let shm = std::path::Path::new("/dev/shm");
    let Ok(dir) = tempfile::tempdir_in(shm) else { return };
    let file = File::create_new(dir.path().join("f")).expect("create");
    let pages = Pages::new();
    if rustix::fs::fstatfs(&file).is_ok_and(|stat| stat.f_type as u64 & 0xffff_ffff == 0x0102_1994) {
        assert!(!pages.takes_dontcache(file.as_fd(), 5, 0));
        assert_eq!(pages.known_dontcache(5), Some(false));
    }
    pages.set_dontcache(6, true);
    assert!(pages.takes_dontcache(file.as_fd(), 6, 0), "known already");
    assert_eq!(pages.known_dontcache(7), None);
}
