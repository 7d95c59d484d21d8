//! Logs in real directories.

mod power;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use haul_core::ids::Time;
use haul_core::volume::gather::{self, Action, Gatherer};
use haul_core::volume::{ClientNo, Epoch, FileNo, RequestNo, Session};
use tempfile::TempDir;

use super::*;

type Owned = Record<Vec<u8>>;

const SMALL: Settings = Settings { segment_len: 400, limit: 1 << 20, room: 0 };
const EIO: Option<i32> = Some(Errno::IO.raw_os_error());
const ENOSPC: Option<i32> = Some(Errno::NOSPC.raw_os_error());

fn tempdir() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

fn open(dir: &Path) -> (Log, Seq, Vec<(Seq, Record<Held>)>) {
    Log::open(&dir.join("log"), SMALL).expect("it opens")
}

fn bytes_record(file: u64, offset: u64, bytes: &[u8]) -> Owned {
    Record::Bytes { file: FileNo(file), offset, len: bytes.len() as u64, bytes: bytes.to_vec() }
}

fn bytes_of(record: &Owned) -> &[u8] {
    match record {
        Record::Bytes { bytes, .. } => bytes,
        _ => &[],
    }
}

fn borrowed(record: &Owned) -> Record<&[u8]> {
    record.clone().map(|_| bytes_of(record))
}

fn held(record: &Owned) -> Record<Held> {
    record.clone().map(|bytes| Held { len: bytes.len() as u64 })
}

fn append(log: &mut Log, seq: u64, record: &Owned) {
    log.append(Seq(seq), &borrowed(record)).expect("appended");
}

/// All of a record's bytes.
fn whole(seq: u64, offset: u64, len: u64) -> Part {
    Part { offset, len, seq: Seq(seq), from: 0 }
}

/// What was read is what was appended, from `first` on, bytes too.
fn assert_are(log: &Log, read: &[(Seq, Record<Held>)], first: u64, appended: &[Owned]) {
    assert!(read.len() <= appended.len(), "{} of {}", read.len(), appended.len());
    for (index, ((seq, record), expected)) in read.iter().zip(appended).enumerate() {
        assert_eq!((*seq, record), (Seq(first + index as u64), &held(expected)));
        if let Record::Bytes { offset, len, bytes, .. } = expected {
            let read = log.bytes(&whole(seq.0, *offset, *len)).expect("they are there");
            assert_eq!(&read, bytes);
        }
    }
}

fn some() -> Vec<Owned> {
    vec![
        Record::Client(ClientNo(3)),
        bytes_record(1, 100, b"hello"),
        Record::End { file: FileNo(1), end: 105 },
        bytes_record(1, 102, &[7; 200]),
        Record::Brought { file: FileNo(1), stripe: 0, upto: Seq(3) },
        bytes_record(2, u64::MAX - 10, b""),
        bytes_record(2, 0, &[1; 500]),
        Record::End { file: FileNo(u64::MAX), end: u64::MAX },
    ]
}

/// Goal: each kind of record comes back, over several segments; parts are read from where they lie.
#[test]
fn records_come_back() {
    let dir = tempdir();
    let (mut log, first, records) = open(dir.path());
    assert_eq!((first, records.len(), log.is_empty()), (Seq(0), 0, true));
    let some = some();
    for (seq, record) in some.iter().enumerate() {
        append(&mut log, seq as u64, record);
    }
    let part = Part { offset: 101, len: 3, seq: Seq(1), from: 1 };
    assert_eq!(log.bytes(&part).expect("they are there"), b"ell");
    log.sync().expect("synced");
    drop(log);
    let (mut log, first, records) = open(dir.path());
    assert_eq!((first, records.len()), (Seq(0), some.len()));
    assert_are(&log, &records, 0, &some);
    assert_eq!(log.bytes(&part).expect("they are there"), b"ell");
    append(&mut log, 8, &some[1]);
    assert!(fs::read_dir(dir.path().join("log")).expect("read").count() > 5, "several segments");
    // What is not of the record.
    for part in [Part { len: 5, ..part }, Part { offset: 102, ..part }, Part { from: u64::MAX, ..part }] {
        assert_eq!(log.bytes(&part).expect_err("refused").raw_os_error(), Some(Errno::INVAL.raw_os_error()));
    }
    assert!(log.bytes(&whole(9, 0, 0)).is_err() && log.bytes(&whole(0, 0, 0)).is_err());
}

/// Goal: what the log says of cuts and removals comes back, epochs whole.
#[test]
fn cuts_come_back() {
    let cuts: [Owned; 5] = [
        Record::Remove { file: FileNo(4) },
        Record::Gone { file: FileNo(4) },
        Record::Cut { file: FileNo(1), from: 3, epoch: Epoch { gatherer: 7, fence: u32::MAX } },
        Record::IsCut { file: FileNo(1), from: u64::MAX, epoch: Epoch { gatherer: u32::MAX, fence: 1 } },
        Record::LastCut { file: FileNo(9), epoch: Epoch { gatherer: 1, fence: 2 } },
    ];
    let dir = tempdir();
    let (mut log, ..) = open(dir.path());
    cuts.iter().enumerate().for_each(|(seq, record)| append(&mut log, seq as u64, record));
    drop(log);
    let (log, _, records) = open(dir.path());
    assert_eq!(records.len(), cuts.len());
    assert_are(&log, &records, 0, &cuts);
}

/// Goal: records go in one after the other, and as they say.
#[test]
fn gaps_and_false_lengths_are_refused() {
    let dir = tempdir();
    let (mut log, ..) = open(dir.path());
    let record = bytes_record(1, 0, b"abc");
    append(&mut log, 0, &record);
    for seq in [0, 2, u64::MAX] {
        assert!(log.append(Seq(seq), &borrowed(&record)).is_err());
    }
    let short = Record::Bytes { file: FileNo(1), offset: 0, len: 4, bytes: &b"abc"[..] };
    assert!(log.append(Seq(1), &short).is_err());
    append(&mut log, 1, &record);
    drop(log);
    assert_eq!(open(dir.path()).2.len(), 2);
}

/// A log of which the first `synced` records were synced, and its records.
fn world(synced: usize) -> (TempDir, Vec<Owned>) {
    let dir = tempdir();
    let (mut log, ..) = open(dir.path());
    let some = some();
    for (seq, record) in some.iter().enumerate() {
        if seq == synced {
            log.sync().expect("synced");
        }
        append(&mut log, seq as u64, record);
    }
    if synced == some.len() {
        log.sync().expect("synced");
    }
    (dir, some)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to.join("log")).expect("made");
    for entry in fs::read_dir(from.join("log")).expect("read") {
        let entry = entry.expect("read");
        fs::copy(entry.path(), to.join("log").join(entry.file_name())).expect("copied");
    }
}

/// The segments, with where in them the first `count` records end, and their lengths.
fn segments(dir: &Path, count: usize) -> Vec<(String, usize, usize)> {
    let dir = dir.join("log");
    let head = fs::read(dir.join(HEAD)).expect("read");
    let key = &Key::new(&Head::decode(&head).expect("it is whole").id);
    let mut found = Vec::new();
    for first in scan::segments_in(&Dir::open(&dir).expect("open")).expect("read") {
        let name = segment_name(first);
        let bytes = fs::read(dir.join(&name)).expect("read");
        let (mut at, mut synced) = (0, 0);
        while let Some(header) = frame::frame(&bytes[at..], key) {
            at += header.frame_len() as usize;
            if header.record().is_some() && header.seq < count as u64 {
                synced = at;
            }
        }
        found.push((name, synced, bytes.len()));
    }
    assert!(found.len() > 2, "several segments");
    found
}

/// Opens a damaged copy. What it has must be as it was appended, and all that was synced, or it is an error.
fn opens(dir: &Path, some: &[Owned], synced: usize, what: &str) -> Result<usize, LogError> {
    let opened = Log::open(&dir.join("log"), SMALL);
    let (mut log, first, records) = opened?;
    assert_eq!(first, Seq(0), "{what}");
    assert_are(&log, &records, 0, some);
    assert!(records.len() >= synced, "{what}: {} of {synced}", records.len());
    // It goes on from there, and what was torn never comes back.
    append(&mut log, records.len() as u64, &Record::Client(ClientNo(99)));
    log.sync().expect("synced");
    drop(log);
    let (_, _, again) = Log::open(&dir.join("log"), SMALL).expect("it opens");
    assert_eq!(again.len(), records.len() + 1, "{what}");
    assert_eq!(again.last().map(|(_, record)| record), Some(&Record::Client(ClientNo(99))), "{what}");
    Ok(records.len())
}

/// Goal: one turned byte, anywhere, never becomes a wrong record, and loses nothing that was synced without
/// a word.
/// Method: each byte of each file of small logs, of which nothing, a part and all was synced.
#[test]
fn a_turned_byte_is_seen() {
    for synced in [0, 2, 5, 8] {
        let (dir, some) = world(synced);
        for (name, synced_end, len) in segments(dir.path(), synced) {
            for at in 0..len {
                let twin = tempdir();
                copy(dir.path(), twin.path());
                let path = twin.path().join("log").join(&name);
                let mut bytes = fs::read(&path).expect("read");
                bytes[at] ^= 1 << (at % 8);
                fs::write(&path, bytes).expect("written");
                let what = format!("{synced} synced, {name}, byte {at}");
                match opens(twin.path(), &some, synced, &what) {
                    Ok(_) => assert!(at >= synced_end, "{what}: it was synced"),
                    Err(LogError::Lost { path: said, offset, .. }) => {
                        assert!(at < synced_end, "{what}: it was not synced");
                        assert_eq!(said, path, "{what}");
                        assert!(offset as usize <= at, "{what}");
                    }
                    Err(other) => panic!("{what}: {other}"),
                }
            }
        }
        let head = fs::read(dir.path().join("log/head")).expect("read");
        for at in 0..head.len() {
            let mut bad = head.clone();
            bad[at] ^= 1;
            fs::write(dir.path().join("log/head"), bad).expect("written");
            assert!(matches!(Log::open(&dir.path().join("log"), SMALL), Err(LogError::Head { .. })));
        }
        fs::remove_file(dir.path().join("log/head")).expect("removed");
        assert!(matches!(Log::open(&dir.path().join("log"), SMALL), Err(LogError::Head { .. })));
    }
}

/// Goal: a segment that ends anywhere behind what was synced opens, with all of that; one that ends before,
/// though a later one tells of it, is an error.
/// Method: each length of each segment of small logs; also none.
#[test]
fn a_torn_log_has_all_that_was_synced() {
    for synced in [0, 2, 5, 8] {
        let (dir, some) = world(synced);
        let segments = segments(dir.path(), synced);
        let last = segments.iter().rposition(|(_, synced_end, _)| *synced_end > 0).unwrap_or(0);
        for (index, (name, synced_end, len)) in segments.iter().enumerate() {
            for cut in 0..=*len {
                let twin = tempdir();
                copy(dir.path(), twin.path());
                let path = twin.path().join("log").join(name);
                fs::OpenOptions::new()
                    .write(true)
                    .open(&path)
                    .expect("open")
                    .set_len(cut as u64)
                    .expect("cut");
                let what = format!("{synced} synced, {name} cut at {cut}");
                if cut >= *synced_end {
                    opens(twin.path(), &some, synced, &what).expect(&what);
                } else if index < last || segments.len() > index + 1 {
                    let error = opens(twin.path(), &some, synced, &what).expect_err(&what);
                    assert!(matches!(error, LogError::Lost { .. }), "{what}: {error}");
                } else {
                    // Nothing is left that tells of it: no power cut does that, and no record is wrong.
                    let _ = opens(twin.path(), &some, 0, &what);
                }
            }
            let twin = tempdir();
            copy(dir.path(), twin.path());
            fs::remove_file(twin.path().join("log").join(name)).expect("removed");
            let what = format!("{synced} synced, {name} missing");
            let opened = opens(twin.path(), &some, if index < last { synced } else { 0 }, &what);
            assert!(opened.is_err() || *synced_end == 0 || index + 1 == segments.len(), "{what}");
        }
    }
}

/// Goal: bytes that turned after the opening are an error, never given out.
/// Method: each byte of a record in the file of an open log.
#[test]
fn turned_bytes_are_not_read() {
    let dir = tempdir();
    let (mut log, ..) = open(dir.path());
    append(&mut log, 0, &bytes_record(1, 0, b"hello"));
    let reader = log.reader();
    let path = dir.path().join("log").join(segment_name(0));
    let good = fs::read(&path).expect("read");
    // Without the mark, which is overwritten.
    for at in 0..HEADER_LEN + 5 + CHECK_LEN {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        fs::write(&path, bad).expect("written");
        let error = reader.bytes(&Part { offset: 4, len: 1, seq: Seq(0), from: 4 }).expect_err("it turned");
        assert_eq!(error.raw_os_error(), EIO);
    }
    fs::write(&path, good).expect("written");
    assert_eq!(reader.bytes(&whole(0, 0, 5)).expect("as it was"), b"hello");
}

/// Goal: a payload that looks like a record is none, whatever is torn before it.
/// Method: a client writes a copy of the log's own bytes and of another log's; the record before is damaged.
#[test]
fn payloads_are_no_records() {
    let (dir, other) = (tempdir(), tempdir());
    let (mut foreign, ..) = open(other.path());
    for seq in 0..3 {
        append(&mut foreign, seq, &bytes_record(1, 0, b"x"));
        foreign.sync().expect("synced");
    }
    let path = |dir: &Path| dir.join("log").join(segment_name(0));
    let looks = fs::read(path(other.path())).expect("read");
    let (mut log, ..) = open(dir.path());
    append(&mut log, 0, &bytes_record(1, 0, b"y"));
    append(&mut log, 1, &bytes_record(1, 0, &looks));
    drop(log);
    let mut bytes = fs::read(path(dir.path())).expect("read");
    bytes[80] ^= 1;
    fs::write(path(dir.path()), &bytes).expect("written");
    assert_eq!(open(dir.path()).2.len(), 0, "nothing was synced");
}

/// Goal: a log has one owner.
#[test]
fn a_second_opening_is_refused() {
    let dir = tempdir();
    let (log, ..) = open(dir.path());
    assert!(matches!(Log::open(&dir.path().join("log"), SMALL), Err(LogError::InUse { .. })));
    drop(log);
    open(dir.path());
    let link = tempdir();
    std::os::unix::fs::symlink(dir.path().join("log"), link.path().join("log")).expect("linked");
    assert!(Log::open(&link.path().join("log"), SMALL).is_err(), "a link is not followed");
}

/// Goal: what is forgotten is not there again, its room is free, and numbers go on.
/// Method: each first record; the segments that were removed come back, as after a kill in between.
#[test]
fn what_is_forgotten_stays_so() {
    for synced in [true, false] {
        for first in 0..=8 {
            let (dir, some) = world(if synced { 8 } else { 0 });
            let before = tempdir();
            copy(dir.path(), before.path());
            let (mut log, ..) = open(dir.path());
            let len = log.len();
            log.forget(Seq(first)).expect("forgotten");
            assert_eq!(log.len() < len, first > 2, "the first three are in one segment: {first}");
            assert!(log.forget(Seq(9)).is_err(), "there is no such record");
            let back = |name: &str| {
                let to = dir.path().join("log").join(name);
                if !to.exists() {
                    fs::copy(before.path().join("log").join(name), to).expect("copied");
                }
            };
            let is_empty = log.is_empty();
            drop(log);
            if first % 2 == 0 {
                fs::read_dir(before.path().join("log"))
                    .expect("read")
                    .for_each(|entry| back(&entry.expect("read").file_name().into_string().expect("text")));
            }
            let (mut log, now, records) = open(dir.path());
            assert_eq!((now, records.len()), (Seq(first), 8 - first as usize));
            assert_eq!(is_empty, first == 8);
            assert_are(&log, &records, first, &some[first as usize..]);
            append(&mut log, 8, &some[1]);
            log.sync().expect("synced");
            log.forget(Seq(9)).expect("forgotten");
            drop(log);
            let (_, now, records) = open(dir.path());
            assert_eq!((now, records.len()), (Seq(9), 0));
            assert_eq!(
                scan::segments_in(&Dir::open(&dir.path().join("log")).expect("open")).expect("read"),
                [9]
            );
        }
    }
}

/// Goal: a head never says a segment whose name may not last, and nothing is removed that the head on media
/// needs.
/// Method: head and segments as they are at each sync of the directory while all is forgotten.
#[test]
fn forgetting_has_its_order() {
    let dir = tempdir();
    let path = dir.path().join("log");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let call: SyncCall = {
        let (seen, path) = (seen.clone(), path.clone());
        Box::new(move |_, extent| {
            if extent == Extent::All && path.join(HEAD).exists() {
                let head = Head::decode(&fs::read(path.join(HEAD)).expect("read")).expect("it is whole");
                let dir = Dir::open(&path)?;
                lock(&seen).push((head.segment, scan::segments_in(&dir).expect("read")));
            }
            Ok(())
        })
    };
    let (mut log, ..) = Log::open_with(&path, SMALL, call).expect("it opens");
    for seq in 0..3 {
        append(&mut log, seq, &bytes_record(1, 0, &[1; 250]));
    }
    log.sync().expect("synced");
    lock(&seen).clear();
    log.forget(Seq(3)).expect("forgotten");
    assert_eq!(*lock(&seen), [(0, vec![0, 1, 2, 3]), (3, vec![3])]);
}

/// Goal: the machine goes on with what the log says after it forgot: the next number it gives is the one that
/// the log takes.
#[test]
fn the_machine_goes_on_where_the_log_does() {
    for first in [0, 3, 8] {
        let (dir, _) = world(8);
        let (mut log, ..) = open(dir.path());
        log.forget(Seq(first)).expect("forgotten");
        drop(log);
        let (mut log, first, records) = open(dir.path());
        let settings = gather::Settings { stripe_size: 1 << 20, forget_records: 1 };
        let log_now = records.iter().map(|(seq, record)| (*seq, record));
        let now = Time::default();
        let mut machine = Gatherer::new(settings, 1, now, first, log_now);
        let (client, session) = (ClientNo(5), Session(1));
        let later = now.after(Duration::from_secs(60));
        machine.join(later, client, session);
        let (file, bytes) = (FileNo(77), Held { len: 3 });
        let write = gather::Request::Write { file, offset: 0, len: 3, bytes };
        machine.handle_request(later, (client, session), RequestNo(1), write);
        let mut appended = 0;
        while let Some(action) = machine.poll_action() {
            if let Action::Append(seq, record) = action {
                appended += u32::from(matches!(record, Record::Bytes { .. }));
                log.append(seq, &record.map(|_| &b"abc"[..])).expect("the next");
            }
        }
        assert_eq!(appended, 1);
    }
}

/// Goal: the limit is told as a full disk is, and after forgetting there is room.
#[test]
fn the_limit_is_a_full_disk() {
    let dir = tempdir();
    let settings = Settings { segment_len: 300, limit: 1000, room: 0 };
    let (mut log, ..) = Log::open(&dir.path().join("log"), settings).expect("it opens");
    let record = bytes_record(1, 0, &[1; 112]);
    for seq in 0..5 {
        append(&mut log, seq, &record);
    }
    let error = log.append(Seq(5), &borrowed(&record)).expect_err("it is full");
    assert_eq!(error.raw_os_error(), ENOSPC);
    log.sync().expect("synced");
    log.forget(Seq(3)).expect("forgotten");
    append(&mut log, 5, &record);
    assert_eq!(log.len(), 3 * 200);
}

/// Goal: a full disk leaves a log that goes on when there is room, and whose records are all there.
/// Method: a tmpfs of 1 MiB. Needs root; says so where it has to be skipped.
#[test]
fn a_full_disk_leaves_the_log_whole() {
    let dir = tempdir();
    let mount = ["-t", "tmpfs", "-o", "size=1m", "tmpfs"];
    let mounted = std::process::Command::new("mount").args(mount).arg(dir.path()).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: mounting needs root");
    }
    let fill = || {
        let settings = Settings { segment_len: 300_000, room: 20_000, ..Settings::default() };
        let (mut log, ..) = Log::open(&dir.path().join("log"), settings).expect("it opens");
        let large = bytes_record(1, 0, &[3; 100_000]);
        let mut appended = Vec::new();
        let error = loop {
            match log.append(Seq(appended.len() as u64), &borrowed(&large)) {
                Ok(()) => appended.push(large.clone()),
                Err(error) => break error,
            }
        };
        assert_eq!(error.raw_os_error(), ENOSPC);
        assert!(appended.len() >= 8, "{}", appended.len());
        let small = Record::Client(ClientNo(1));
        append(&mut log, appended.len() as u64, &small);
        appended.push(small);
        log.sync().expect("synced");
        drop(log);
        let (mut log, _, records) = Log::open(&dir.path().join("log"), settings).expect("it opens");
        assert_eq!(records.len(), appended.len());
        assert_are(&log, &records, 0, &appended);
        log.forget(Seq(6)).expect("forgotten");
        append(&mut log, appended.len() as u64, &large);
    };
    let result = std::panic::catch_unwind(fill);
    let _ = std::process::Command::new("umount").arg(dir.path()).status();
    result.expect("as it should");
}

/// Goal: a full disk refuses records with bytes alone: some hundred others are taken, over the end of a
/// segment too, and all of them are there when the log is opened again; its beginning is forgotten there,
/// which makes room. Method: a tmpfs of 1 MiB, which is filled beside the log, before and after it is opened
/// anew. Needs root; says so where it has to be skipped.
#[test]
fn a_full_disk_refuses_bytes_alone() {
    let dir = tempdir();
    let mount = ["-t", "tmpfs", "-o", "size=1m", "tmpfs"];
    let mounted = std::process::Command::new("mount").args(mount).arg(dir.path()).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: mounting needs root");
    }
    let fill = || {
        use std::io::Write as _;
        let mut filler =
            fs::File::options().create(true).append(true).open(dir.path().join("filler")).expect("made");
        while filler.write_all(&[1; 4096]).is_ok() {}
    };
    let run = || {
        let settings = Settings { segment_len: 120_000, room: 40_000, ..Settings::default() };
        let path = dir.path().join("log");
        let (mut log, ..) = Log::open(&path, settings).expect("it opens");
        let mut appended = vec![bytes_record(1, 0, &[3; 100_000])];
        append(&mut log, 0, &appended[0]);
        fill();
        for _ in 0..2 {
            let large = bytes_record(1, 0, &[4; 10_000]);
            let error = loop {
                match log.append(Seq(appended.len() as u64), &borrowed(&large)) {
                    Ok(()) => appended.push(large.clone()),
                    Err(error) => break error,
                }
            };
            assert_eq!(error.raw_os_error(), ENOSPC);
            let next = appended.len() as u64;
            for number in 0..150 {
                let small = if number == 0 { Record::Nothing } else { Record::Client(ClientNo(number)) };
                append(&mut log, next + number, &small);
                appended.push(small);
            }
            log.sync().expect("synced");
            drop(log);
            fill();
            let opened = Log::open(&path, settings).expect("it opens");
            assert_eq!(opened.2.len(), appended.len());
            assert_are(&opened.0, &opened.2, 0, &appended);
            log = opened.0;
        }
        let all = Seq(appended.len() as u64);
        log.forget(all).expect("forgotten");
        fs::remove_file(dir.path().join("filler")).expect("removed");
        append(&mut log, all.0, &bytes_record(1, 0, &[5; 10_000]));
        drop(log);
        let (_, first, records) = Log::open(&path, settings).expect("it opens");
        assert_eq!((first, records.len()), (all, 1));
    };
    let result = std::panic::catch_unwind(run);
    let _ = std::process::Command::new("umount").arg("-l").arg(dir.path()).status();
    result.expect("as it should");
}

/// Goal: after a failed sync the log takes nothing more, and the next life has what lasts.
#[test]
fn a_failed_sync_is_never_forgotten() {
    let dir = tempdir();
    let fails = Arc::new(AtomicBool::new(false));
    let call: SyncCall = {
        let fails = fails.clone();
        Box::new(move |fd, extent| match fails.swap(false, Ordering::SeqCst) {
            true => Err(Errno::IO),
            false => sync_call(fd, extent),
        })
    };
    let (mut log, ..) = Log::open_with(&dir.path().join("log"), SMALL, call).expect("it opens");
    let record = bytes_record(1, 0, b"abc");
    append(&mut log, 0, &record);
    fails.store(true, Ordering::SeqCst);
    assert_eq!(log.syncer().sync().expect_err("it failed").raw_os_error(), EIO);
    assert_eq!(log.sync().expect_err("it failed").raw_os_error(), EIO);
    assert_eq!(log.append(Seq(1), &borrowed(&record)).expect_err("it failed").raw_os_error(), EIO);
    assert_eq!(log.forget(Seq(1)).expect_err("it failed").raw_os_error(), EIO);
}

/// Goal: records are read, appended and synced by several threads at a time, and none reads a wrong byte.
#[test]
fn threads_share_the_log() {
    let dir = tempdir();
    let (mut log, ..) = open(dir.path());
    let (syncer, reader) = (log.syncer(), log.reader());
    let (there, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let bytes_of = |seq: u64| vec![seq as u8; (seq % 150) as usize];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                syncer.sync().expect("synced");
            }
        });
        for seed in 0..2 {
            let (reader, there, over) = (reader.clone(), &there, &over);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                while !over.load(Ordering::SeqCst) {
                    let seq = random.u64(0..there.load(Ordering::SeqCst).max(1));
                    match reader.bytes(&whole(seq, 0, seq % 150)) {
                        Ok(bytes) => assert_eq!(bytes, bytes_of(seq)),
                        // Not there yet, or not any more.
                        Err(error) => assert_eq!(error.raw_os_error(), Some(Errno::NOENT.raw_os_error())),
                    }
                }
            });
        }
        for seq in 0..600 {
            append(&mut log, seq, &bytes_record(1, 0, &bytes_of(seq)));
            there.store(seq + 1, Ordering::SeqCst);
            if seq % 100 == 99 {
                log.forget(Seq(seq - 30)).expect("forgotten");
            }
        }
        over.store(true, Ordering::SeqCst);
    });
    drop((log, syncer, reader));
    let (_, first, records) = open(dir.path());
    assert_eq!((first, records.len()), (Seq(569), 31));
}
