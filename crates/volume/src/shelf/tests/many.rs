//! Shelves under several threads, kills and full disks.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc;

use super::*;

/// Goal: threads share a shelf, also when nearly each request closes the file of another.
/// Method: four threads, two open files at most; each has files of its own and stripes of one that all write.
#[test]
fn threads_share_a_shelf() {
    let dir = tempdir();
    let shelf = Shelf::open_with(dir.path(), &of(0, 1), 2, Box::new(sync_call)).expect("it opens");
    let shared = FileNo(1);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let shelf = &shelf;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread);
                let mut model: BTreeMap<(FileNo, u64), Vec<u8>> = BTreeMap::new();
                for _ in 0..300 {
                    let own = FileNo(10 * thread + random.u64(2..5));
                    let file = if random.bool() { shared } else { own };
                    let offset = (random.u64(0..4) * 4 + thread) * STRIPE;
                    match random.u8(0..20) {
                        0..9 => {
                            let bytes = vec![random.u8(..); STRIPE as usize];
                            shelf.write(file, offset, &bytes).expect("written");
                            model.insert((file, offset), bytes);
                        }
                        9 => shelf.sync(file).expect("synced"),
                        10 => {
                            shelf.remove(own).expect("removed");
                            model.retain(|(other, _), _| *other != own);
                        }
                        _ => {
                            let expected = model.get(&(file, offset)).cloned();
                            let read = read(shelf, file, offset, STRIPE);
                            assert_eq!(read, Ok(expected.unwrap_or(vec![0; STRIPE as usize])));
                        }
                    }
                }
            });
        }
    });
}

/// A shelf whose first sync of a file says that it began, and ends as it is told.
fn held(root: &Path) -> (Shelf, mpsc::Receiver<()>, mpsc::Sender<Result<(), Errno>>, Arc<AtomicUsize>) {
    let ((began, has_begun), (ends, end)) = (mpsc::channel(), mpsc::channel());
    let (count, end) = (Arc::new(AtomicUsize::new(0)), Mutex::new(end));
    let counted = count.clone();
    let call = move |fd: std::os::fd::BorrowedFd<'_>, extent| {
        if extent == Extent::Bytes && counted.fetch_add(1, Ordering::SeqCst) == 0 {
            began.send(()).expect("the test waits");
            return lock(&end).recv().expect("the test says so");
        }
        sync_call(fd, extent)
    };
    let shelf = Shelf::open_with(root, &of(0, 1), 512, Box::new(call)).expect("it opens");
    (shelf, has_begun, ends, count)
}

/// Goal: a sync that began before a write says nothing of it; of those that wait for it one is enough.
#[test]
fn a_sync_covers_what_came_before_it() {
    let dir = tempdir();
    let (shelf, has_begun, ends, count) = held(dir.path());
    let file = FileNo(1);
    shelf.write(file, 0, b"a").expect("written");
    std::thread::scope(|scope| {
        let first = scope.spawn(|| shelf.sync(file));
        has_begun.recv().expect("it begins");
        shelf.write(file, 1, b"b").expect("writes go on");
        let second = scope.spawn(|| shelf.sync(file));
        ends.send(Ok(())).expect("it waits");
        first.join().expect("no panic").expect("synced");
        second.join().expect("no panic").expect("synced");
    });
    assert_eq!(count.load(Ordering::SeqCst), 2);
}

/// Goal: an error that the kernel tells one of two syncs at a time is heard by both.
#[test]
fn an_error_told_once_is_heard_by_all() {
    let dir = tempdir();
    let (shelf, has_begun, ends, _) = held(dir.path());
    let file = FileNo(1);
    shelf.write(file, 0, b"a").expect("written");
    std::thread::scope(|scope| {
        let first = scope.spawn(|| shelf.sync(file));
        has_begun.recv().expect("it begins");
        let second = scope.spawn(|| shelf.sync(file));
        ends.send(Err(Errno::IO)).expect("it waits");
        assert_eq!(first.join().expect("no panic"), Err(EIO));
        assert_eq!(second.join().expect("no panic"), Err(EIO));
    });
}

/// Goal: a full disk is told by its number, takes nothing that was there, and what was removed makes room.
/// Method: a tmpfs of 1 MiB. Needs root; says so where it has to be skipped.
#[test]
fn a_full_disk_is_told() {
    let dir = tempdir();
    let mount = ["-t", "tmpfs", "-o", "size=1m,nr_inodes=0", "tmpfs"];
    let mounted = Command::new("mount").args(mount).arg(dir.path()).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: mounting needs root");
    }
    let fill = || {
        let of = Of { stripe_size: 1 << 16, ..of(0, 1) };
        let shelf = open(&dir.path().join("shelf"), &of);
        let stripe = vec![5; 1 << 16];
        let mut written = 0;
        let errno = loop {
            match shelf.write(FileNo(written % 2), (written / 2) << 16, &stripe) {
                Ok(()) => written += 1,
                Err(errno) => break errno,
            }
        };
        assert_eq!(errno, Errno::NOSPC.raw_os_error());
        assert!(written >= 10, "{written}");
        assert!(shelf.begin_life().is_err(), "what cannot be written is no life");
        for number in 0..written {
            let read = shelf.read(FileNo(number % 2), (number / 2) << 16, 1 << 16);
            assert!(read.as_ref() == Ok(&stripe), "{number}");
        }
        shelf.sync(FileNo(0)).expect("it is no file's failure");
        shelf.remove(FileNo(1)).expect("removed");
        shelf.write(FileNo(0), 100 << 16, &stripe).expect("there is room");
        assert_eq!(shelf.begin_life().expect("there is room"), 2);
    };
    let result = std::panic::catch_unwind(fill);
    let _ = Command::new("umount").arg(dir.path()).status();
    result.expect("as it should");
}

const CHILD: &str = "HAUL_TEST_SHELF";

/// The child of [`kills_repeat_no_life`]: begins lives until it is killed, and writes one stripe in each. Not
/// a test without its variable.
#[test]
fn child_that_is_killed() {
    let Some(root) = std::env::var_os(CHILD) else { return };
    let shelf = open(Path::new(&root), &of(0, 1));
    loop {
        let life = shelf.begin_life().expect("it begins");
        println!("life {life}");
        let offset = u64::from(life) * STRIPE;
        shelf.write(FileNo(1), offset, &[life as u8; STRIPE as usize]).expect("written");
        shelf.sync(FileNo(1)).expect("synced");
        println!("synced {life}");
    }
}

/// Goal: no life has the number of another, and what was synced is there, whenever the server is killed; the
/// making of the directory may be what is interrupted.
/// Method: a process of this very program on a real directory, killed again and again.
#[test]
fn kills_repeat_no_life() {
    let (dir, mut random) = (tempdir(), fastrand::Rng::with_seed(1));
    let root = dir.path().join("shelf");
    let (mut last, mut synced) = (0, Vec::new());
    for _ in 0..20 {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "shelf::tests::many::child_that_is_killed", "--nocapture", "--test-threads=1"])
            .env(CHILD, &root)
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        let mut said: Vec<String> = (&mut lines).take(random.usize(0..40)).collect();
        child.kill().expect("killed");
        child.wait().expect("ended");
        // It went on while we read.
        said.extend(lines);
        for line in said {
            let number = |word| line.rsplit_once(word).and_then(|(_, number)| number.parse::<u32>().ok());
            if let Some(life) = number("life ") {
                assert!(life > last, "{life} after {last}");
                last = life;
            } else if let Some(life) = number("synced ") {
                synced.push(life);
            }
        }
    }
    assert!(!synced.is_empty());
    let shelf = open(&root, &of(0, 1));
    assert!(shelf.begin_life().expect("it begins") > last);
    for life in synced {
        let read = shelf.read(FileNo(1), u64::from(life) * STRIPE, STRIPE);
        assert_eq!(read, Ok(vec![life as u8; STRIPE as usize]));
    }
}
