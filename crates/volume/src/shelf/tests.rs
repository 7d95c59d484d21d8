//! Shelves in real directories.

mod many;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use haul_core::volume::ServerNo;
use haul_core::volume::wire::VolumeId;
use tempfile::TempDir;

use super::*;
use crate::disk::Extent;

const STRIPE: u64 = 64;
const EIO: i32 = Errno::IO.raw_os_error();
const EINVAL: i32 = Errno::INVAL.raw_os_error();

fn of(server: u16, servers: u16) -> Of {
    Of { volume: VolumeId([7; 16]), server: ServerNo(server), servers, stripe_size: STRIPE }
}

fn tempdir() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

fn open(root: &Path, of: &Of) -> Shelf {
    Shelf::open(root, of).expect("it opens")
}

/// What is not sent is zeros.
fn read(shelf: &Shelf, file: FileNo, offset: u64, len: u64) -> Result<Vec<u8>, i32> {
    let mut bytes = shelf.read(file, offset, len)?;
    bytes.resize(len as usize, 0);
    Ok(bytes)
}

fn refused(root: &Path, of: &Of) -> String {
    Shelf::open(root, of).err().expect("it is refused").to_string()
}

/// Goal: what is written is read again, also after the next opening; all else is zeros.
#[test]
fn bytes_come_back() {
    let dir = tempdir();
    let root = dir.path().join("missing");
    let shelf = open(&root, &of(1, 3));
    let file = FileNo(0x15c);
    shelf.write(file, STRIPE + 3, b"abc").expect("written");
    shelf.write(file, 4 * STRIPE, &[9; STRIPE as usize]).expect("written");
    shelf.sync(file).expect("synced");
    drop(shelf);
    let shelf = open(&root, &of(1, 3));
    let mut stripe = vec![0; STRIPE as usize];
    stripe[3..6].copy_from_slice(b"abc");
    assert_eq!(shelf.read(file, STRIPE, STRIPE), Ok(stripe));
    assert_eq!(shelf.read(file, 4 * STRIPE, STRIPE), Ok(vec![9; STRIPE as usize]));
    assert_eq!(shelf.read(file, 7 * STRIPE + 1, 5), Ok(Vec::new()), "nothing lies there");
    assert_eq!(shelf.read(FileNo(9), STRIPE, 5), Ok(Vec::new()), "nor of a file that is none");
    // Stripes lie one behind the other, and nobody else looks at them.
    let bytes = fs::metadata(root.join("files/5c/000000000000015c")).expect("it is there");
    assert_eq!((bytes.len(), bytes.permissions().mode() & 0o777), (2 * STRIPE, 0o600));
    assert_eq!(fs::metadata(&root).expect("it is there").permissions().mode() & 0o777, 0o700);
    assert!(!root.join("files/09/0000000000000009").exists(), "reading makes no file");
}

/// Goal: the last term that a server was told to keep is known to its next life, and no older one; one that
/// is damaged is none, and the directory is served.
#[test]
fn terms_are_kept() {
    let dir = tempdir();
    let shelf = open(dir.path(), &of(0, 1));
    assert_eq!(shelf.kept_term(), None);
    for term in [5, 7, 6] {
        shelf.keep_term(Term(term)).expect("kept");
    }
    drop(shelf);
    let shelf = open(dir.path(), &of(0, 1));
    assert_eq!(shelf.kept_term(), Some(Term(7)));
    // A catalog that was brought back counts from there.
    shelf.keep_term(Term(3)).expect("kept");
    assert_eq!(shelf.kept_term(), Some(Term(3)));
    drop(shelf);
    let path = dir.path().join("term");
    let text = fs::read_to_string(&path).expect("there").replace('3', "4");
    fs::write(&path, text).expect("changed");
    assert_eq!(open(dir.path(), &of(0, 1)).kept_term(), None);
}

/// Goal: a request that is not for this server, crosses stripes or does not fit is refused.
#[test]
fn requests_of_no_stripe_here_are_refused() {
    let dir = tempdir();
    let shelf = open(dir.path(), &of(1, 3));
    for (offset, len) in [
        (0, 1),
        (2 * STRIPE, 1),
        (STRIPE, STRIPE + 1),
        (2 * STRIPE - 1, 2),
        (u64::MAX, 1),
        (u64::MAX - 1, 5),
        (FILE_LEN_MAX, 1),
        (STRIPE, u64::MAX),
    ] {
        assert_eq!(shelf.read(FileNo(3), offset, len), Err(EINVAL), "{offset} {len}");
        if len < 1000 {
            let bytes = vec![1; len as usize];
            assert_eq!(shelf.write(FileNo(3), offset, &bytes), Err(EINVAL), "{offset} {len}");
        }
    }
    let of = Of { stripe_size: u64::MAX, ..of(0, 1) };
    let huge = tempdir();
    let one = open(huge.path(), &of);
    assert_eq!(one.read(FileNo(1), FILE_LEN_MAX - 4, 4), Ok(Vec::new()));
    assert_eq!(one.read(FileNo(1), 0, BYTES_MAX + 1), Err(EINVAL));
}

/// Goal: lives are numbered from 1 and never twice, over openings too.
#[test]
fn lives_are_never_the_same() {
    let dir = tempdir();
    let shelf = open(dir.path(), &of(0, 1));
    assert_eq!(shelf.begin_life().expect("it begins"), 1);
    assert_eq!(shelf.begin_life().expect("it begins"), 2);
    drop(shelf);
    let shelf = open(dir.path(), &of(0, 1));
    assert_eq!(shelf.begin_life().expect("it begins"), 3);
    drop(shelf);
    fs::write(dir.path().join(LIVES), encode_lives(u32::MAX)).expect("written");
    let shelf = open(dir.path(), &of(0, 1));
    let error = shelf.begin_life().expect_err("there is no higher number");
    assert!(error.to_string().contains("had its last life"), "{error}");
}

/// Goal: a directory has one server.
#[test]
fn a_second_server_is_refused() {
    let dir = tempdir();
    let first = open(dir.path(), &of(0, 1));
    assert!(refused(dir.path(), &of(0, 1)).contains("another server serves"));
    drop(first);
    open(dir.path(), &of(0, 1));
}

/// Goal: what is not of this server is refused and left as it is; the text says what is there.
#[test]
fn other_and_foreign_directories_are_refused() {
    let dir = tempdir();
    drop(open(dir.path(), &of(1, 3)));
    for other in [
        of(0, 3),
        of(1, 4),
        Of { volume: VolumeId([8; 16]), ..of(1, 3) },
        Of { stripe_size: 2 * STRIPE, ..of(1, 3) },
    ] {
        let text = refused(dir.path(), &other);
        assert!(text.contains(&of(1, 3).to_string()) && text.contains(&other.to_string()), "{text}");
        assert!(text.contains(&dir.path().display().to_string()), "{text}");
    }
    let foreign = tempdir();
    fs::set_permissions(foreign.path(), fs::Permissions::from_mode(0o755)).expect("set");
    fs::write(foreign.path().join("thesis.tex"), "x").expect("written");
    let text = refused(foreign.path(), &of(1, 3));
    assert!(text.contains("thesis.tex") && text.contains("name an empty or a missing directory"), "{text}");
    assert_eq!(fs::read_dir(foreign.path()).expect("read").count(), 1);
    assert_eq!(fs::metadata(foreign.path()).expect("it is there").permissions().mode() & 0o777, 0o755);
    for of in [of(3, 3), of(0, 0), Of { stripe_size: 0, ..of(0, 1) }] {
        assert!(refused(&foreign.path().join("new"), &of).starts_with("there is no server"));
    }
}

/// Goal: a damaged identity, or a damaged number of lives, is never taken for another or for none.
/// Method: each byte turned, each prefix, and none at all.
#[test]
fn a_damaged_identity_is_refused() {
    let dir = tempdir();
    let shelf = open(dir.path(), &of(1, 3));
    shelf.begin_life().expect("it begins");
    drop(shelf);
    for name in [IDENTITY, LIVES] {
        let path = dir.path().join(name);
        let good = fs::read(&path).expect("read");
        let mut worlds: Vec<Vec<u8>> = (0..good.len()).map(|len| good[..len].to_vec()).collect();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            worlds.push(bad);
        }
        worlds.push([&good[..], b"\n"].concat());
        for bad in worlds {
            fs::write(&path, &bad).expect("written");
            let text = refused(dir.path(), &of(1, 3));
            assert!(text.contains(&format!("{name} is damaged")), "{text}");
        }
        fs::remove_file(&path).expect("removed");
        let text = refused(dir.path(), &of(1, 3));
        // The files beside it are told.
        assert!(text.contains("damaged or missing") || text.contains("files lies in it"), "{text}");
        fs::write(&path, &good).expect("written");
        open(dir.path(), &of(1, 3));
    }
}

/// Goal: whatever a server leaves that is killed while it makes its directory, the next one goes on.
#[test]
fn a_half_made_directory_is_made() {
    for left in [&[LOCK][..], &[LOCK, "lives.new"], &[LOCK, LIVES], &[LOCK, LIVES, "volume.new"]] {
        let dir = tempdir();
        for name in left {
            let bytes = if *name == LIVES { encode_lives(0) } else { b"torn".to_vec() };
            fs::write(dir.path().join(name), bytes).expect("written");
        }
        assert_eq!(open(dir.path(), &of(0, 1)).begin_life().expect("it begins"), 1);
    }
    // One that had lives was more than half made.
    let dir = tempdir();
    fs::write(dir.path().join(LIVES), encode_lives(3)).expect("written");
    assert!(refused(dir.path(), &of(0, 1)).contains("damaged or missing"));
}

/// Goal: no link leads out of the directory.
#[test]
fn links_are_not_followed() {
    let (dir, out) = (tempdir(), tempdir());
    let victim = out.path().join("victim");
    fs::write(&victim, "precious").expect("written");
    let shelf = open(dir.path(), &of(0, 1));
    let link = |at: &str, to: &Path| std::os::unix::fs::symlink(to, dir.path().join(at)).expect("linked");
    link("files/01/0000000000000001", &victim);
    fs::remove_dir(dir.path().join("files/02")).expect("removed");
    link("files/02", out.path());
    for file in [FileNo(1), FileNo(2)] {
        assert!(shelf.write(file, 0, b"evil").is_err());
        assert!(shelf.read(file, 0, 4).is_err());
        assert!(shelf.cut(file, 0).is_err());
    }
    assert_eq!(fs::read(&victim).expect("read"), b"precious");
    assert_eq!(fs::read_dir(out.path()).expect("read").count(), 1);
    // A fifo has no other end, and nobody waits for it.
    let fifo = dir.path().join("files/03/0000000000000003");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RWXU, 0).expect("made");
    assert_eq!(shelf.write(FileNo(3), 0, b"evil"), Err(Errno::NOTSUP.raw_os_error()));
}

/// Goal: after any operations a shelf reads as a plain map of bytes does.
/// Method: seeds; three open files at most, so that nearly each operation closes one; openings in between.
#[test]
fn random_operations_do_as_a_model_does() {
    for seed in 0..8 {
        let mut random = fastrand::Rng::with_seed(seed);
        let dir = tempdir();
        let servers = random.u16(1..4);
        let of = of(random.u16(0..servers), servers);
        let again = || Shelf::open_with(dir.path(), &of, 3, Box::new(sync_call)).expect("it opens");
        let mut shelf = again();
        let mut model: BTreeMap<(FileNo, u64), u8> = BTreeMap::new();
        for _ in 0..400 {
            let file = FileNo(random.u64(0..6) * 256 + random.u64(0..2));
            // One of each row lies here.
            let row = random.u64(0..4) * u64::from(of.servers);
            let is_here = |stripe: &u64| of.striping().server(file, *stripe) == of.server;
            let stripe = (row..).find(is_here).expect("it lies somewhere");
            let from = random.u64(0..STRIPE);
            let (offset, len) = (stripe * STRIPE + from, random.u64(0..=STRIPE - from));
            match random.u8(0..20) {
                0..8 => {
                    let bytes: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
                    shelf.write(file, offset, &bytes).expect("written");
                    model.extend((offset..).map(|at| (file, at)).zip(bytes));
                }
                8..15 => {
                    let byte = |at| model.get(&(file, at)).copied().unwrap_or(0);
                    let bytes: Vec<u8> = (offset..offset + len).map(byte).collect();
                    assert_eq!(read(&shelf, file, offset, len), Ok(bytes), "seed {seed}");
                }
                15..17 => shelf.sync(file).expect("synced"),
                17 => {
                    let from = random.u64(0..16 * STRIPE);
                    shelf.cut(file, from).expect("cut");
                    model.retain(|(other, at), _| *other != file || *at < from);
                }
                18 => {
                    shelf.remove(file).expect("removed");
                    model.retain(|(other, _), _| *other != file);
                }
                _ => {
                    drop(shelf);
                    shelf = again();
                }
            }
            assert!(shelf.files.open_now() <= 3, "seed {seed}");
        }
    }
}

/// A disk that fails when told to, and counts.
#[derive(Default)]
struct Disk {
    fails_next: AtomicBool,
    /// Not with bytes of a file.
    fails_names: AtomicBool,
    /// Never fails, if 0.
    errno: AtomicI32,
    bytes: AtomicUsize,
    all: AtomicUsize,
}

fn on(disk: &Arc<Disk>, root: &Path, open_max: usize) -> Shelf {
    let disk = disk.clone();
    let call = move |fd: std::os::fd::BorrowedFd<'_>, extent| {
        let count = if extent == Extent::Bytes { &disk.bytes } else { &disk.all };
        count.fetch_add(1, Ordering::SeqCst);
        // As the kernel does: once.
        let fails = disk.fails_next.swap(false, Ordering::SeqCst)
            || extent == Extent::All && disk.fails_names.swap(false, Ordering::SeqCst);
        match fails {
            true => Err(Errno::from_raw_os_error(disk.errno.load(Ordering::SeqCst))),
            false => sync_call(fd, extent),
        }
    };
    Shelf::open_with(root, &of(0, 1), open_max, Box::new(call)).expect("it opens")
}

fn failing() -> Arc<Disk> {
    let disk = Arc::new(Disk::default());
    disk.errno.store(EIO, Ordering::SeqCst);
    disk
}

/// Goal: a file whose sync failed once fails until the life ends; others do not.
#[test]
fn a_failed_sync_is_never_forgotten() {
    let (dir, disk) = (tempdir(), failing());
    let shelf = on(&disk, dir.path(), 512);
    let (bad, good) = (FileNo(1), FileNo(2));
    shelf.write(bad, 0, b"a").expect("written");
    shelf.write(good, 0, b"a").expect("written");
    disk.fails_next.store(true, Ordering::SeqCst);
    assert_eq!(shelf.sync(bad), Err(EIO));
    for _ in 0..2 {
        assert_eq!(shelf.sync(bad), Err(EIO));
        assert_eq!(shelf.write(bad, 0, b"b"), Err(EIO));
        assert_eq!(shelf.cut(bad, 0), Err(EIO));
    }
    shelf.sync(good).expect("synced");
    drop(shelf);
    let shelf = on(&disk, dir.path(), 512);
    shelf.write(bad, 0, b"c").expect("another life");
    shelf.sync(bad).expect("another life");
}

/// Goal: what a file had before is not read as what it has, where what was written since may be lost: after a
/// sync that failed, whoever made it.
#[test]
fn a_file_that_failed_is_not_read() {
    let (dir, disk) = (tempdir(), failing());
    let shelf = on(&disk, dir.path(), 1);
    let (bad, closed, good) = (FileNo(1), FileNo(2), FileNo(3));
    for file in [bad, closed, good] {
        shelf.write(file, 0, b"old old").expect("written");
        shelf.sync(file).expect("synced");
    }
    shelf.write(bad, 0, b"new").expect("written");
    disk.fails_next.store(true, Ordering::SeqCst);
    assert_eq!(shelf.sync(bad), Err(EIO));
    assert_eq!(shelf.read(bad, 0, 3), Err(EIO));
    assert_eq!(shelf.read(bad, 4, 3), Err(EIO), "nobody says for sure what else is lost");
    shelf.write(closed, 0, b"new").expect("written");
    disk.fails_next.store(true, Ordering::SeqCst);
    assert_eq!(read(&shelf, good, 0, 3).expect("read"), b"old");
    assert_eq!(shelf.read(closed, 0, 3), Err(EIO));
}

/// Goal: what was written before a sync that failed is not read in later lives either, and all else of that
/// file is; until it was written anew, or cut off, and synced, or the file was removed.
#[test]
fn what_failed_is_known_later() {
    let (dir, disk) = (tempdir(), failing());
    let fails = |shelf: &Shelf, file| {
        disk.fails_next.store(true, Ordering::SeqCst);
        assert_eq!(shelf.sync(file), Err(EIO));
    };
    let (written, cut, removed, again) = (FileNo(1), FileNo(2), FileNo(3), FileNo(4));
    let shelf = on(&disk, dir.path(), 512);
    for file in [written, cut, removed] {
        shelf.write(file, 0, &[1; 60]).expect("written");
        shelf.sync(file).expect("synced");
        shelf.write(file, 10, &[2; 10]).expect("written");
        shelf.write(file, 30, &[2; 10]).expect("written");
        fails(&shelf, file);
    }
    drop(shelf);
    let shelf = on(&disk, dir.path(), 512);
    for file in [written, cut, removed] {
        for (offset, len, is_lost) in
            [(0, 10, false), (0, 11, true), (19, 1, true), (20, 10, false), (39, 9, true)]
        {
            assert_eq!(shelf.read(file, offset, len).err(), is_lost.then_some(EIO), "{offset}");
        }
        assert_eq!(shelf.read(file, 40, 20), Ok(vec![1; 20]));
    }
    shelf.write(again, 0, &[1; 60]).expect("written");
    shelf.sync(again).expect("synced");
    shelf.cut(again, 20).expect("cut");
    fails(&shelf, again);
    // Half of it, and that is not synced.
    shelf.write(written, 8, &[3; 14]).expect("written");
    assert_eq!(read(&shelf, written, 8, 14).expect("it is there"), [3; 14]);
    assert_eq!(shelf.read(written, 30, 1), Err(EIO));
    drop(shelf);
    let shelf = on(&disk, dir.path(), 512);
    assert_eq!(shelf.read(written, 10, 1), Err(EIO), "nobody synced it");
    assert_eq!(shelf.read(again, 20, 40), Err(EIO), "it may be there again");
    shelf.cut(again, 20).expect("cut");
    shelf.sync(again).expect("synced");
    assert_eq!(shelf.read(again, 0, 60), Ok(vec![1; 20]));
    shelf.write(written, 8, &[3; 14]).expect("written");
    shelf.sync(written).expect("synced");
    shelf.cut(cut, 10).expect("cut");
    shelf.sync(cut).expect("synced");
    shelf.remove(removed).expect("removed");
    shelf.sync(removed).expect("that lasts");
    drop(shelf);
    let shelf = on(&disk, dir.path(), 512);
    assert_eq!(read(&shelf, written, 8, 14).expect("it is there"), [3; 14]);
    assert_eq!(shelf.read(written, 30, 1), Err(EIO));
    assert_eq!(shelf.read(cut, 0, 60), Ok(vec![1; 10]));
    assert_eq!(shelf.read(removed, 0, 60), Ok(Vec::new()));
    shelf.write(written, 30, &[3; 10]).expect("written");
    shelf.sync(written).expect("synced");
    assert_eq!(fs::read_dir(dir.path().join("lost")).expect("there").count(), 0);
}

/// Goal: an error that came when a descriptor was closed to have room is told by the next sync.
#[test]
fn closing_loses_no_error() {
    let (dir, disk) = (tempdir(), failing());
    let shelf = on(&disk, dir.path(), 1);
    let bad = FileNo(1);
    shelf.write(bad, 0, b"a").expect("written");
    disk.fails_next.store(true, Ordering::SeqCst);
    // The only place is wanted.
    shelf.read(FileNo(2), 0, 1).expect("read");
    shelf.write(FileNo(2), 0, b"a").expect("written");
    assert_eq!(shelf.files.open_now(), 1);
    assert!(!disk.fails_next.load(Ordering::SeqCst), "it was synced before it was closed");
    assert_eq!(shelf.write(bad, 0, b"b"), Err(EIO));
    assert_eq!(shelf.sync(bad), Err(EIO));
}

/// Goal: the name of a file lasts with its first sync in this life, whoever made it, and when it changed;
/// after a cut all that is known of it does.
#[test]
fn names_and_lengths_are_synced() {
    let (dir, disk) = (tempdir(), failing());
    let file = FileNo(1);
    let shelf = on(&disk, dir.path(), 512);
    let counts = || (disk.bytes.load(Ordering::SeqCst), disk.all.load(Ordering::SeqCst));
    shelf.write(file, 0, b"ab").expect("written");
    shelf.sync(file).expect("synced");
    assert_eq!(counts(), (1, 1));
    shelf.sync(file).expect("synced");
    assert_eq!(counts(), (2, 1), "the name lasts already");
    shelf.cut(file, 1).expect("cut");
    shelf.sync(file).expect("synced");
    assert_eq!(counts(), (2, 2));
    shelf.remove(file).expect("removed");
    shelf.sync(file).expect("synced");
    assert_eq!(counts(), (2, 3), "that it is gone");
    shelf.write(file, 0, b"ab").expect("written");
    drop(shelf);
    let shelf = on(&disk, dir.path(), 512);
    shelf.sync(file).expect("synced");
    assert_eq!(counts(), (3, 4), "the life that made it did not sync its name");
    // A name that may not last is told for good, and no other directory's.
    shelf.write(FileNo(257), 0, b"a").expect("written");
    disk.fails_names.store(true, Ordering::SeqCst);
    assert_eq!(shelf.sync(FileNo(257)), Err(EIO));
    assert_eq!(shelf.sync(FileNo(257)), Err(EIO));
    shelf.write(FileNo(2), 0, b"a").expect("written");
    shelf.sync(FileNo(2)).expect("synced");
}

/// Goal: a sync of names that never came to the disk is tried again; only what the disk said is for good.
#[test]
fn names_that_were_not_reached_are_synced_later() {
    let (dir, disk) = (tempdir(), failing());
    let shelf = on(&disk, dir.path(), 512);
    let (place, away) = (dir.path().join("files/01"), dir.path().join("files/away"));
    shelf.write(FileNo(1), 0, b"a").expect("written");
    std::fs::rename(&place, &away).expect("moved");
    assert_eq!(shelf.sync(FileNo(1)), Err(Errno::NOENT.raw_os_error()));
    std::fs::rename(&away, &place).expect("moved back");
    assert_eq!(shelf.sync(FileNo(1)), Ok(()));
    assert_eq!(disk.all.load(Ordering::SeqCst), 1);
}

/// Goal: write-back is asked for once for each 8 MiB that were written to a file, and takes nothing from a
/// sync; of what is not open, or not there, nothing is started.
#[test]
fn write_back_is_due_where_much_was_written() {
    let (dir, disk) = (tempdir(), failing());
    let shelf = on(&disk, dir.path(), 1);
    let bytes = vec![7; STRIPE as usize];
    let rounds = (8 << 20) / STRIPE;
    let due = |file, from: u64| {
        let all = (from..from + rounds).map(|at| {
            shelf.write(file, at * STRIPE, &bytes).expect("written");
            shelf.is_much_unwritten(file)
        });
        all.collect::<Vec<_>>()
    };
    for from in [0, rounds] {
        let due = due(FileNo(1), from);
        assert_eq!(due.iter().position(|due| *due), Some(due.len() - 1), "behind the last alone");
    }
    shelf.start_write_back(FileNo(1));
    shelf.start_write_back(FileNo(9));
    disk.fails_next.store(true, Ordering::SeqCst);
    assert_eq!(shelf.sync(FileNo(1)), Err(EIO));
    // Opening another one closes it.
    shelf.write(FileNo(2), 0, b"a").expect("written");
    shelf.start_write_back(FileNo(1));
    assert!(!shelf.is_much_unwritten(FileNo(1)));
    assert!(shelf.files.open_now() <= 1);
}

/// Goal: a file whose write-back could not be started is one whose sync failed, now and in later lives: the
/// kernel may tell that to nobody else.
#[test]
fn write_back_that_fails_is_a_failed_sync() {
    let (dir, disk) = (tempdir(), failing());
    let shelf = on(&disk, dir.path(), 512);
    let (bad, good) = (FileNo(1), FileNo(2));
    shelf.write(bad, 0, b"a").expect("written");
    shelf.write(good, 0, b"a").expect("written");
    disk.fails_next.store(true, Ordering::SeqCst);
    shelf.start_write_back(bad);
    shelf.start_write_back(good);
    assert_eq!(shelf.sync(bad), Err(EIO));
    assert_eq!(shelf.read(bad, 0, 1), Err(EIO));
    shelf.sync(good).expect("synced");
    drop(shelf);
    let shelf = on(&disk, dir.path(), 512);
    assert_eq!(shelf.read(bad, 0, 1), Err(EIO), "another life");
    assert_eq!(shelf.read(good, 0, 1), Ok(b"a".to_vec()));
}

/// Goal: what was removed by its name, and written and synced since, is not told to last.
#[test]
fn what_has_no_name_does_not_last() {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().join("s");
    let shelf = open(&root, &of(0, 1));
    let file = FileNo(0);
    shelf.write(file, 0, b"bytes").expect("written");
    shelf.sync(file).expect("synced");
    std::fs::remove_file(root.join(format!("files/00/{:016x}", file.0))).expect("removed");
    shelf.write(file, 0, b"more").expect("written");
    assert_eq!(shelf.sync(file), Err(Errno::STALE.raw_os_error()));
    assert_eq!(shelf.vanished(), None);
    std::fs::rename(&root, dir.path().join("away")).expect("moved");
    assert!(shelf.vanished().is_some());
}

/// Goal: what was removed by its name while it was closed is not told to last, nor read as a hole, nor made
/// anew; what was removed by request is nothing that is missed.
#[test]
fn what_was_closed_and_has_no_name_does_not_last() {
    let dir = tempdir();
    let shelf = on(&failing(), dir.path(), 1);
    let stale = Errno::STALE.raw_os_error();
    let (synced, written, read, removed, other) = (FileNo(1), FileNo(2), FileNo(3), FileNo(4), FileNo(9));
    for file in [synced, written, read, removed, other] {
        shelf.write(file, 0, b"bytes").expect("written");
    }
    for file in [synced, written, read, removed] {
        let place = dir.path().join(format!("files/{0:02x}/{0:016x}", file.0));
        std::fs::remove_file(place).expect("removed");
    }
    assert_eq!(shelf.sync(synced), Err(stale));
    assert_eq!(shelf.write(written, 5, b"more"), Err(stale));
    assert_eq!(shelf.sync(written), Err(stale));
    assert_eq!(shelf.read(read, 0, 5), Err(stale));
    shelf.remove(removed).expect("nothing is left to do");
    shelf.sync(removed).expect("it is gone, and that lasts");
    shelf.remove(other).expect("removed");
    shelf.sync(other).expect("that lasts");
}
