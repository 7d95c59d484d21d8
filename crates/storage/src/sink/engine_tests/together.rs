//! Small files that get to media together.

use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use super::*;
use crate::sink::whole_sync::WholeSync;

/// How often a file system was synced, and a file.
#[derive(Default)]
struct Counts {
    wholes: AtomicUsize,
    eachs: AtomicUsize,
}

/// A bench whose file system is synced by `whole`, and whose files by `each`; both are counted.
fn bench(
    whole: impl Fn(&Path) -> rustix::io::Result<()> + Send + Sync + 'static,
    each: impl Fn(BorrowedFd<'_>) -> rustix::io::Result<()> + Send + Sync + 'static,
) -> (Bench, Arc<Counts>) {
    let seen = Arc::<Counts>::default();
    let counts = seen.clone();
    let bench = Bench::with(|config| {
        let root = config.tree.root_path().to_owned();
        let call = Arc::new(move |_: BorrowedFd<'_>| {
            counts.wholes.fetch_add(1, Ordering::SeqCst);
            whole(&root)
        });
        config.whole_sync = WholeSync::with(&config.tree, call, || 0);
    });
    let counts = seen.clone();
    let sink = bench.engine.as_ref().expect("running").sink.clone();
    sink.data.set_sync(Arc::new(move |fd, _| {
        counts.eachs.fetch_add(1, Ordering::SeqCst);
        each(fd)
    }));
    (bench, seen)
}

/// Writes files `a0`, `a1` and so on, and commits them.
fn commit(bench: &mut Bench, letter: &str, count: u64) -> Vec<Result<(), Failure>> {
    let first = u64::from(letter.as_bytes()[0]) * 10_000;
    let files: Vec<_> =
        (0..count).map(|i| file(first + i, DirId::ROOT, &format!("{letter}{i}"), 4)).collect();
    for f in &files {
        bench.write(f, 0, b"abcd").expect("written");
    }
    bench.commit(files.iter().map(|f| whole(f, META)).collect())
}

/// The final names, and how many temporaries there are.
fn names(root: &Path) -> (Vec<String>, usize) {
    let all = fs::read_dir(root).expect("ls");
    let all = all.map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned());
    let (temps, finals): (Vec<_>, Vec<_>) = all.partition(|name| name.starts_with('.'));
    (finals, temps.len())
}

/// Goal: small files get to media by one sync, which begins when all of them are whole, before any of them
/// has its name.
#[test]
fn one_sync_is_for_all() {
    let at_sync: Arc<Mutex<Vec<_>>> = Arc::default();
    let told = at_sync.clone();
    let (mut bench, seen) = bench(
        move |root| {
            let temps = fs::read_dir(root).expect("ls").map(|entry| entry.expect("entry").metadata());
            let times: Vec<_> = temps.map(|meta| meta.expect("stat").mtime()).collect();
            lock(&told).push((names(root), times));
            Ok(())
        },
        |_| Ok(()),
    );
    commit(&mut bench, "a", 100).into_iter().for_each(|result| result.expect("published"));
    let seen_at = std::mem::take(&mut *lock(&at_sync));
    let [((finals, temps), times)] = &seen_at[..] else { panic!("{seen_at:?}") };
    assert!(finals.is_empty() && *temps == 100, "{finals:?} {temps}");
    assert!(times.iter().all(|time| *time == META.mtime.secs), "not whole: {times:?}");
    assert_eq!(seen.eachs.load(Ordering::SeqCst), 0);
    assert_eq!(names(&bench.root).0.len(), 100);
    // A few are synced by themselves, to see what that costs.
    commit(&mut bench, "b", 100).into_iter().for_each(|result| result.expect("published"));
    let eachs = seen.eachs.load(Ordering::SeqCst);
    assert!((1..100).contains(&eachs), "{eachs}");
    for n in 0..100 {
        assert_eq!(fs::read(bench.root.join(format!("b{n}"))).expect("read"), b"abcd");
    }
}

/// Goal: an error of the whole sync is nobody's, so each file is synced by itself; the one whose sync fails
/// fails alone, and the file system is never synced again, for it tells an error once.
#[test]
fn behind_an_error_each_is_synced() {
    let ours = Arc::new(AtomicUsize::new(0));
    let bad = ours.clone();
    let (mut bench, seen) = bench(
        |_| Err(Errno::IO),
        move |fd| {
            let size = rustix::fs::fstat(fd).expect("stat").st_ino;
            match bad.compare_exchange(0, size as usize, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => Err(Errno::IO),
                Err(_) => Ok(()),
            }
        },
    );
    let results = commit(&mut bench, "a", 50);
    let failed: Vec<_> = results.iter().filter(|result| result.is_err()).collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert!(failed[0].as_ref().is_err_and(|failure| failure.kind == FailureKind::Sync), "{failed:?}");
    assert_eq!(names(&bench.root), (names(&bench.root).0, 0));
    assert_eq!(names(&bench.root).0.len(), 49);
    commit(&mut bench, "b", 50).into_iter().for_each(|result| result.expect("published"));
    let counts = (seen.wholes.load(Ordering::SeqCst), seen.eachs.load(Ordering::SeqCst));
    assert_eq!(counts, (1, 100));
}

/// Goal: a file whose data was lost by an earlier sync is not published, though the file system's sync is
/// good.
#[test]
fn a_failed_file_stays_failed() {
    let fails = Arc::new(AtomicBool::new(true));
    let told = fails.clone();
    let (mut bench, seen) =
        bench(|_| Ok(()), move |_| if told.load(Ordering::SeqCst) { Err(Errno::IO) } else { Ok(()) });
    let files: Vec<_> = (0..20).map(|i| file(1 + i, DirId::ROOT, &format!("f{i}"), 4)).collect();
    for f in &files {
        bench.write(f, 0, b"abcd").expect("written");
    }
    let sink = bench.engine.as_ref().expect("running").sink.clone();
    let (open, temp, _) = sink.files.fd_of(files[7].id).expect("open");
    sink.sync_data(&open, &temp).expect_err("lost");
    drop((open, temp, sink));
    fails.store(false, Ordering::SeqCst);
    let results = bench.commit(files.iter().map(|f| whole(f, META)).collect());
    let failed: Vec<usize> = (0..20).filter(|i| results[*i].is_err()).collect();
    assert_eq!((failed, seen.wholes.load(Ordering::SeqCst)), (vec![7], 1));
    assert_eq!(names(&bench.root).0.len(), 19);
}

/// Goal: what lies on another file system, which is mounted below the destination, is synced by itself.
#[test]
fn what_lies_elsewhere_is_synced_by_itself() {
    let (bench, _) = bench(|_| Ok(()), |_| Ok(()));
    let sink = bench.engine.as_ref().expect("running").sink.clone();
    let whole_sync = sink.whole_sync.as_ref().expect("given");
    let here = crate::sink::stat::inode_of(&rustix::fs::stat(&bench.root).expect("stat"));
    assert!(whole_sync.covers(here) && !whole_sync.covers(Inode { dev: here.dev + 1, ..here }));
}
