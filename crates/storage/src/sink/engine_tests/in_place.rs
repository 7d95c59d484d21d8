//! Files that are written into what stands there.

use super::*;
use crate::sink::Beside;

fn bench(part: Option<u64>) -> Bench {
    Bench::with(move |config| config.in_place = Some(InPlace::new(part, true, Beside::default())))
}

/// Goal: a file in place is the same inode, looks unfinished from before its first byte to its end, and then
/// is as long as it should be, with its metadata; while the journal may speak of it, it has a second name of
/// this run, and neither before nor after.
/// Method: over a longer file, one of the same length, and none.
#[test]
fn a_file_looks_unfinished_until_it_is_whole() {
    for stood in [Some(20), Some(10), Some(3), None] {
        let mut bench = bench(None);
        let path = bench.root.join("f");
        if let Some(len) = stood {
            fs::write(&path, vec![b'o'; len]).expect("write");
        }
        let before = fs::metadata(&path).ok().map(|stat| stat.ino());
        let f = file(1, DirId::ROOT, "f", 10);
        bench.write(&f, 5, b"56789").expect("written");
        let len = || fs::metadata(&path).expect("stat").len();
        assert!(len() > 10, "{stood:?}");
        assert_eq!(bench.ls(), ["f"]);
        bench.commit(vec![CommitItem { id: f.id, publish: None }]).remove(0).expect("partial");
        assert!(len() > 10 && bench.temp("f", TAG).exists(), "{stood:?}");
        bench.write(&f, 0, b"01234").expect("written");
        assert!(len() > 10, "{stood:?}");
        bench.publish(&f).expect("published");
        assert_eq!(fs::read(&path).expect("read"), b"0123456789");
        let stat = fs::metadata(&path).expect("stat");
        assert!(before.is_none_or(|before| before == stat.ino()));
        assert_eq!((stat.mode() & 0o7777, stat.mtime()), (0o640, 1_600_000_000));
        assert_eq!((bench.ls(), stat.nlink()), (vec!["f".to_owned()], 1));
    }
}

/// Goal: a file does not look whole before its data is on media.
/// Method: syncs that fail.
#[test]
fn data_is_synced_before_a_file_looks_whole() {
    let mut bench = bench(None);
    fs::write(bench.root.join("f"), "old").expect("write");
    let f = file(1, DirId::ROOT, "f", 5);
    bench.write(&f, 0, b"01234").expect("written");
    let sink = bench.engine.as_ref().expect("running").sink.clone();
    sink.data.set_sync(Arc::new(|_, _| Err(Errno::IO)));
    bench.publish(&f).expect_err("not on media");
    assert_eq!(fs::metadata(bench.root.join("f")).expect("stat").len(), 6);
}

/// Goal: what took the name of a file while that was written is not made to look like it.
/// Method: another file under the name, and none, directly before the end.
#[test]
fn what_took_the_name_is_left() {
    for other in [Some("another"), None] {
        let mut bench = bench(None);
        let path = bench.root.join("f");
        fs::write(&path, "old").expect("write");
        let f = file(1, DirId::ROOT, "f", 5);
        bench.write(&f, 0, b"01234").expect("written");
        fs::rename(&path, bench.root.join("moved")).expect("rename");
        if let Some(other) = other {
            fs::write(&path, other).expect("write");
        }
        let failure = bench.publish(&f).expect_err("it has not its name");
        assert!(failure.text.contains("not this name any more"), "{}", failure.text);
        assert_eq!(fs::read_to_string(&path).ok().as_deref(), other);
        assert_eq!(fs::metadata(bench.root.join("moved")).expect("stat").len(), 6, "it does not look whole");
    }
}

/// Goal: a part goes to its place and everything else of the file stays, also where it comes in a bundle.
#[test]
fn a_part_leaves_the_rest() {
    for bundled in [false, true] {
        let mut bench = bench(Some(4));
        let path = bench.root.join("f");
        fs::write(&path, "0123456789").expect("write");
        let f = file(1, DirId::ROOT, "f", 3);
        match bundled {
            true => {
                let items = vec![BundleWrite { file: f.clone(), start: 0, mode: META.mode }];
                let op = SinkOp::WriteBundle { buffer: BufferId(0), items, more: false };
                assert!(
                    matches!(bench.run(op, b"abc"), SinkDone::WriteBundle { results, .. } if results[0].1.is_ok())
                );
            }
            false => bench.write(&f, 0, b"abc").expect("written"),
        }
        bench.publish(&f).expect("published");
        assert_eq!(fs::read_to_string(&path).expect("read"), "0123abc789");
        assert_ne!(fs::metadata(&path).expect("stat").mtime(), META.mtime.secs);
    }
}

/// Goal: only the inode that the earlier run wrote into is gone on with, under this run's tag.
/// Method: a file with its second name, and another file of that name.
#[test]
fn only_what_was_written_in_place_is_adopted() {
    for same in [true, false] {
        let mut bench = bench(None);
        let (path, old) = (bench.root.join("f"), bench.temp("f", 5));
        fs::write(&path, "half").expect("write");
        match same {
            true => fs::hard_link(&path, &old).expect("link"),
            false => fs::write(&old, "half").expect("write"),
        }
        let f = file(1, DirId::ROOT, "f", 4);
        let found = bench.look(&f, Some(5));
        assert_eq!(found.adopted, same);
        assert_eq!((bench.temp("f", TAG).exists(), old.exists()), (same, !same));
        assert_eq!(fs::metadata(&path).expect("stat").len(), if same { 5 } else { 4 });
    }
}

/// Goal: a run that lost its job writes into nothing any more, not even to make it look unfinished; nor does
/// it take over what an earlier run left.
/// Method: a file that the next owner has finished; large, small and with a second name, and a job that is
/// lost before.
#[test]
fn a_loser_writes_into_nothing() {
    let mut bench = bench(None);
    // It was asked a moment ago, when the job was ours.
    bench.write(&file(7, DirId::ROOT, "first", 1), 0, b"x").expect("written");
    for (id, name) in [(1, "large"), (2, "small"), (3, "held")] {
        fs::write(bench.root.join(name), "next!").expect("write");
        let f = file(id, DirId::ROOT, name, 5);
        bench.lost.store(true, Ordering::SeqCst);
        let failed = match name {
            "large" => bench.write(&f, 0, b"01234").is_err(),
            "small" => {
                let items = vec![BundleWrite { file: f.clone(), start: 0, mode: META.mode }];
                let op = SinkOp::WriteBundle { buffer: BufferId(0), items, more: false };
                let done = bench.run(op, b"01234");
                matches!(done, SinkDone::WriteBundle { results, .. } if results[0].1.is_err())
            }
            _ => {
                fs::hard_link(bench.root.join(name), bench.temp(name, 5)).expect("link");
                let item = LookupItem {
                    file: f.clone(),
                    fingerprint: told(f.size, META.mtime),
                    meta: META,
                    adopt: Some(5),
                };
                let done = bench.run(SinkOp::Lookup { items: vec![item] }, b"");
                matches!(done, SinkDone::Lookup { results } if results[0].1.is_err())
            }
        };
        assert!(failed, "{name}");
        assert_eq!(fs::read_to_string(bench.root.join(name)).expect("read"), "next!");
        bench.lost.store(false, Ordering::SeqCst);
    }
}

/// Goal: what was taken over in place is not looked for at the end, in all of the destination.
#[test]
fn what_was_adopted_is_met() {
    let mut bench = bench(None);
    fs::write(bench.root.join("f"), "half").expect("write");
    fs::hard_link(bench.root.join("f"), bench.temp("f", 5)).expect("link");
    assert!(bench.look(&file(1, DirId::ROOT, "f", 4), Some(5)).adopted);
    let sink = &bench.engine.as_ref().expect("running").sink;
    assert_eq!(lock(&sink.files.adopt.taken).len(), 1);
}

/// Goal: a file that something else cut while it was written is not taken for whole, though its length is
/// right again.
/// Method: cut to nothing between two objects, with data everywhere and with a hole.
#[test]
fn a_file_that_was_cut_is_not_whole() {
    const STEP: usize = 64 << 10;
    for sparse in [false, true] {
        let mut bench = bench(None);
        let path = bench.root.join("f");
        fs::write(&path, "old").expect("write");
        let mut f = file(1, DirId::ROOT, "f", 3 * STEP as u64);
        if sparse {
            let mut maker = haul_core::extents::MapMaker::new(f.size);
            maker.push(0, 2 * STEP as u64);
            f.map = Some(maker.finish());
        }
        bench.write(&f, 0, &[1; STEP]).expect("written");
        fs::File::options().write(true).open(&path).expect("open").set_len(0).expect("cut");
        bench
            .write(&f, STEP as u64, &[2; 2 * STEP][..if sparse { STEP } else { 2 * STEP }])
            .expect("written");
        let failure = bench.publish(&f).expect_err("it was cut");
        assert!(failure.text.contains("something else cut it"), "{}", failure.text);
    }
}

/// Goal: one file under two names is written for no entry that another one counts on, and stays unchanged for
/// both where they are one file at the source, and there alone.
#[test]
fn files_with_several_names_are_one_entrys() {
    let dir = tempfile::tempdir().expect("tempdir");
    // One that this run made has nothing in it to find.
    let root = dir.path().join("root");
    fs::create_dir(&root).expect("mkdir");
    let place = InPlace::new(None, true, Beside::default());
    let mut bench = Bench::at(dir, root, |config| config.in_place = Some(place));
    let (one, two) = (bench.root.join("one"), bench.root.join("two"));
    fs::write(&one, "hello").expect("write");
    let time = std::time::UNIX_EPOCH + Duration::new(META.mtime.secs as u64, META.mtime.nanos);
    fs::File::options().write(true).open(&one).expect("open").set_modified(time).expect("mtime");
    fs::hard_link(&one, &two).expect("link");
    let (a, b) = (file(1, DirId::ROOT, "one", 5), file(2, DirId::ROOT, "two", 5));
    let mut look = |f: &SinkFile, version: &[u8]| {
        let mut item = bench.lookup_item(f, None);
        item.fingerprint.version = Version::new(version).expect("short");
        match bench.run(SinkOp::Lookup { items: vec![item] }, b"") {
            SinkDone::Lookup { mut results } => results.remove(0).1.map(|found| found.existing),
            other => panic!("{other:?}"),
        }
    };
    for f in [&a, &b, &a] {
        assert!(matches!(look(f, b"one"), Ok(Existing::File { size: 5, .. })), "two names of one source");
    }
    for version in [&b"two"[..], b""] {
        let failure = look(&b, version).expect_err("it may have the bytes of the other alone");
        assert!(failure.text.contains("another name"), "{}", failure.text);
    }
    let failure = bench.write(&a, 0, b"HELLO").expect_err("the other counts on it");
    assert!(failure.text.contains("another name"), "{}", failure.text);
    assert_eq!(fs::read_to_string(&two).expect("read"), "hello");
}

/// Goal: a whole file has one writer, parts go side by side.
/// Method: another descriptor with a lock, as another run has it.
#[test]
fn a_file_has_one_writer() {
    for (part, other, fits) in [
        (None, rustix::fs::FlockOperation::LockExclusive, false),
        (None, rustix::fs::FlockOperation::LockShared, false),
        (Some(1), rustix::fs::FlockOperation::LockExclusive, false),
        (Some(1), rustix::fs::FlockOperation::LockShared, true),
    ] {
        let mut bench = bench(part);
        let path = bench.root.join("f");
        fs::write(&path, "stood").expect("write");
        let held = fs::File::open(&path).expect("open");
        rustix::fs::flock(&held, other).expect("locked");
        let result = bench.write(&file(1, DirId::ROOT, "f", 3), 0, b"abc");
        assert_eq!(result.is_ok(), fits, "{part:?} {other:?}");
        if !fits {
            assert_eq!(fs::read_to_string(&path).expect("read"), "stood");
        }
    }
}

/// Goal: what is half new runs as nobody else, whoever writes it; a part leaves the mode as it is.
#[test]
fn nothing_half_new_is_setuid() {
    for part in [None, Some(1)] {
        let mut bench = bench(part);
        let path = bench.root.join("f");
        fs::write(&path, "stood").expect("write");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).expect("mode");
        bench.write(&file(1, DirId::ROOT, "f", 3), 0, b"abc").expect("written");
        let mode = fs::metadata(&path).expect("stat").mode() & 0o7777;
        // Only a privileged writer's write leaves these bits.
        let root = rustix::process::geteuid().is_root();
        assert_eq!(mode, if part.is_some() && root { 0o6755 } else { 0o755 });
    }
}
