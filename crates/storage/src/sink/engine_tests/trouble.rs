//! Operations that panic, hang, or find no space.

use super::*;

/// Goal: a panic while an operation is executed completes it as failed, for every item, and the engine goes
/// on.
/// Method: the question for ownership panics once it is told to.
#[test]
fn panics_complete_the_operation() {
    let bad = Arc::new(AtomicBool::new(true));
    let asked = bad.clone();
    let mut bench = Bench::with(|config| {
        config.still_owner = Arc::new(move || {
            assert!(!asked.load(Ordering::SeqCst), "on purpose");
            Ok(())
        });
    });
    let files: Vec<_> = (0..100).map(|i| file(1 + i, DirId::ROOT, &format!("f{i}"), 0)).collect();
    let items: Vec<_> = files.iter().map(|f| whole(f, META)).collect();
    for result in bench.commit(items.clone()) {
        assert_eq!(&*result.expect_err("panicked").text, "internal error: on purpose");
    }
    assert!(matches!(bench.run(SinkOp::RemoveJournal, b""), SinkDone::RemoveJournal { result: Err(_) }));
    bad.store(false, Ordering::SeqCst);
    assert!(bench.commit(items).iter().all(Result::is_ok));
}

/// Goal: when space or inodes run out, the failure says which, and what is left; nothing is published.
/// Method: tmpfs of 1 MiB, with and without allocation before the data, and one of 16 inodes.
#[test]
fn exhausted_space_is_named() {
    let dir = tempfile::tempdir().expect("tempdir");
    let cases = [
        ("size=1m", "allocate the 1048576 bytes of", "out of blocks", 1 << 20, false),
        ("size=1m", "write", "out of blocks", 1 << 20, true),
        ("size=1m,nr_inodes=16", "create", "out of inodes", 1, false),
    ];
    for (option, what, word, size, no_preallocate) in cases {
        let at = dir.path().join(what);
        fs::create_dir(&at).expect("mkdir");
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", option, "tmpfs"])
            .arg(&at)
            .output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: mounting needs root");
            return;
        }
        let _unmount = Unmount(&at);
        let mut bench = Bench::at(tempfile::tempdir().expect("tempdir"), at.join("root"), |config| {
            config.storage.no_preallocate = no_preallocate;
        });
        let data = vec![1; 128 << 10];
        let failure = (0..100)
            .find_map(|i| {
                let f = file(1 + i, DirId::ROOT, &format!("f{i}"), size);
                bench.write(&f, 0, &data[..data.len().min(size as usize)]).err()
            })
            .expect("it is full");
        assert_eq!(failure.errno, Errno::NOSPC.raw_os_error());
        assert!(failure.text.starts_with(what), "{}", failure.text);
        assert!(failure.text.contains(word) && failure.text.contains("B and "), "{}", failure.text);
        drop(bench);
    }
}

/// Goal: an item that hangs is named; every other of its operation is done meanwhile, and other operations go
/// on; when it comes back its operation completes.
/// Method: 40 files to publish, of which the first hangs in the question for the owner; then another bundle.
#[test]
fn an_item_that_hangs_holds_no_other() {
    let (gate, closed) = unbounded::<()>();
    let asked = Arc::new(AtomicBool::new(true));
    let armed = asked.clone();
    let mut bench = Bench::with(|config| {
        config.storage.deadline_ms = Some(20);
        config.still_owner = Arc::new(move || {
            if !asked.swap(true, Ordering::SeqCst) {
                let _ = closed.recv();
            }
            Ok(())
        });
    });
    let files: Vec<_> = (0..40).map(|i| file(i + 1, DirId::ROOT, &format!("f{i}"), 3)).collect();
    let bundle = |files: &[SinkFile]| SinkOp::WriteBundle {
        buffer: BufferId(0),
        more: false,
        items: files
            .iter()
            .map(|file| BundleWrite { file: file.clone(), start: 0, mode: META.mode })
            .collect(),
    };
    bench.run(bundle(&files), b"abc");
    armed.store(false, Ordering::SeqCst);
    let items = files.iter().map(|file| whole(file, META)).collect();
    bench.submit(SinkOp::Commit { durable: true, items }, b"");
    until(|| bench.ls().iter().filter(|name| name.starts_with('f')).count() == 39);
    until(|| !bench.engine.as_ref().expect("running").stuck().is_empty());
    let stuck = bench.engine.as_ref().expect("running").stuck();
    // Whether it has its name behind a sync of its own, or of the file system, is what is cheaper here.
    assert!(stuck.iter().all(|stuck| ["publish", "sync"].contains(&stuck.what)), "{stuck:?}");
    let missing = (0..40).find(|i| !bench.root.join(format!("f{i}")).exists()).expect("one hangs");
    let path = bench.root.join(format!("f{missing}")).to_string_lossy().into_owned();
    assert!(stuck.iter().any(|stuck| stuck.name == path), "{path} is not in {stuck:?}");
    let more = file(100, DirId::ROOT, "more", 3);
    assert!(matches!(bench.run(bundle(&[more]), b"abc"), SinkDone::WriteBundle { .. }));
    drop(gate);
    match bench.posted.recv_timeout(Duration::from_secs(60)).expect("it completes").0 {
        SinkDone::Commit { results, .. } => assert!(results.iter().all(|(_, result)| result.is_ok())),
        other => panic!("{other:?}"),
    }
}

/// Goal: an engine whose threads hang can be ended all the same, and what comes back publishes nothing.
/// Method: a publication that hangs until the engine is gone.
#[test]
fn an_engine_that_hangs_can_be_ended() {
    let (gate, closed) = unbounded::<()>();
    let (back, came_back) = unbounded::<()>();
    let armed = Arc::new(AtomicBool::new(false));
    let hangs = armed.clone();
    let mut bench = Bench::with(|config| {
        config.storage.deadline_ms = Some(20);
        config.still_owner = Arc::new(move || {
            if hangs.load(Ordering::SeqCst) {
                let _ = closed.recv();
                let _ = back.send(());
            }
            Ok(())
        });
    });
    let f = file(1, DirId::ROOT, "f", 3);
    bench.write(&f, 0, b"abc").expect("written");
    armed.store(true, Ordering::SeqCst);
    bench.submit(SinkOp::Commit { durable: true, items: vec![whole(&f, META)] }, b"");
    let left = bench.engine.take().expect("running").join();
    assert!(!left.is_empty() && left.iter().any(|what| what.contains("hangs for")), "{left:?}");
    drop(gate);
    came_back.recv_timeout(Duration::from_secs(60)).expect("it comes back");
    let done = bench.posted.recv_timeout(Duration::from_secs(60)).expect("it tells, to nobody").0;
    assert!(matches!(done, SinkDone::Commit { results, .. } if results[0].1.is_err()));
    assert!(!bench.root.join("f").exists());
}

fn until(mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(60), "it never came");
        std::thread::yield_now();
    }
}

/// Goal: wherever a thread panics over an operation, it ends as a failure of its own entry, with its buffer
/// back; the engine ends as always, and after all but an I/O thread's panic others go on.
/// Method: a panic at each point, by the name of the file.
#[test]
fn a_panic_is_a_failed_operation() {
    let points = ["write_first", "route", "on_written", "split", "create", "io_thread"];
    for point in points {
        let mut bench = Bench::new();
        let f = file(1, DirId::ROOT, &format!("panic~{point}"), 1 << 20);
        let fails = |bench: &mut Bench| {
            let op = match point {
                "split" => SinkOp::Lookup {
                    items: vec![LookupItem {
                        file: f.clone(),
                        fingerprint: told(f.size, META.mtime),
                        meta: META,
                        adopt: None,
                    }],
                },
                "create" => SinkOp::Create { file: f.clone(), striping: None },
                _ => SinkOp::Write { file: f.clone(), offset: 0, len: 4, buffer: BufferId(0), start: 0 },
            };
            bench.submit(op, b"abcd");
            let (done, out) = bench.posted.recv_timeout(Duration::from_secs(60)).expect("it is told");
            let failure = match done {
                SinkDone::Write { result, .. } => result.err(),
                SinkDone::Create { result, .. } => result.err(),
                SinkDone::Lookup { mut results } => results.remove(0).1.err(),
                other => panic!("{point}: {other:?}"),
            };
            let text = failure.unwrap_or_else(|| panic!("{point}: it was good")).text;
            assert!(text.contains("internal error"), "{point}: {text}");
            assert_eq!(out, 0, "{point}: a buffer is out");
        };
        fails(&mut bench);
        fails(&mut bench);
        assert!(matches!(bench.run(SinkOp::Discard { id: f.id }, b""), SinkDone::Discard { .. }));
        let other = file(2, DirId::ROOT, "other", 4);
        assert_eq!(bench.write(&other, 0, b"abcd").is_ok(), point != "io_thread", "{point}");
        let left = bench.engine.take().expect("running").join();
        assert!(left.is_empty(), "{point}: {left:?}");
    }
}
