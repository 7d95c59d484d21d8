//! Files that are written into what stands there.

use super::*;

fn bench(part: Option<u64>) -> Bench {
    Bench::with(move |config| config.in_place = Some(InPlace::new(part, true)))
}

/// Goal: a file in place is the same inode, looks unfinished from before its first byte to its end, and then is as long as it should be,
/// with its metadata; while the journal may speak of it, it has a second name of this run, and neither before nor after.
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
                let items = vec![BundleWrite { file: f.clone(), start: 0 }];
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
