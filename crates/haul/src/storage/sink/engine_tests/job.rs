//! What belongs to the job: its journal, its owner, its temporaries.

use super::*;

/// Goal: a run that lost its job publishes nothing, removes nothing, and finishes nothing.
/// Method: ownership is lost between write and commit.
#[test]
fn former_owner_publishes_nothing() {
    let mut bench = Bench::new();
    let f = file(1, DirId::ROOT, "f", 1);
    bench.write(&f, 0, b"x").expect("written");
    bench.lost.store(true, Ordering::SeqCst);
    assert_eq!(&*bench.publish(&f).expect_err("lost").text, "lost");
    assert!(bench.temp("f", TAG).exists(), "it may be the new owner's by now");
    let link = LinkItem {
        file: file(2, DirId::ROOT, "l", 0),
        target: b"x"[..].into(),
        meta: META,
        owner: false,
        no_replace: false,
        force: false,
    };
    assert!(
        matches!(bench.run(SinkOp::MakeLinks { items: vec![link] }, b""), SinkDone::MakeLinks { results } if results[0].1.is_err())
    );
    let dir = bench.dir(9, DirId::ROOT, "d");
    assert!(bench.finish(vec![(dir, META)])[0].is_err());
    assert!(matches!(bench.run(SinkOp::RemoveJournal, b""), SinkDone::RemoveJournal { result: Err(_) }));
    assert_eq!(bench.ls().len(), 1);
}

/// Goal: what stands at a name is told by kind, links are not followed, and the temporary of an earlier run
/// becomes ours only if it is what a run leaves.
/// Method: each kind; good, missing, linked, hard-linked and directory temporaries.
#[test]
fn lookup_tells_and_adopts() {
    let mut bench = Bench::new();
    fs::write(bench.root.join("f"), "12345").expect("write");
    fs::create_dir(bench.root.join("d")).expect("mkdir");
    symlink("f", bench.root.join("l")).expect("symlink");
    // The root was made by this run, so look into a directory that was not.
    fs::create_dir(bench.root.join("old")).expect("mkdir");
    for text in ["f", "d", "l"] {
        fs::rename(bench.root.join(text), bench.root.join("old").join(text)).expect("rename");
    }
    let old = bench.dir(50, DirId::ROOT, "old");
    match bench.look(&file(1, old, "f", 0), None).existing {
        Existing::File { size: 5, grain, .. } => assert!(grain >= 1),
        other => panic!("{other:?}"),
    }
    assert_eq!(bench.look(&file(2, old, "d", 0), None).existing, Existing::Dir);
    assert_eq!(bench.look(&file(3, old, "l", 0), None).existing, Existing::Link);
    let missing = bench.look(&file(4, old, "m", 0), Some(5));
    assert_eq!(missing, Found { existing: Existing::Nothing, inode: None, adopted: false });

    fs::write(bench.temp("good", 5), "half").expect("write");
    assert!(bench.look(&file(5, DirId::ROOT, "good", 8), Some(5)).adopted);
    assert!(bench.temp("good", TAG).exists() && !bench.temp("good", 5).exists());
    bench.write(&file(5, DirId::ROOT, "good", 8), 4, b"rest").expect("written");
    bench.publish(&file(5, DirId::ROOT, "good", 8)).expect("published");
    assert_eq!(fs::read(bench.root.join("good")).expect("read"), b"halfrest");

    fs::write(bench.root.join("victim"), "precious").expect("write");
    symlink("victim", bench.temp("linked", 5)).expect("symlink");
    fs::hard_link(bench.root.join("victim"), bench.temp("hard", 5)).expect("link");
    fs::create_dir(bench.temp("dir", 5)).expect("mkdir");
    for (id, text) in [(6, "linked"), (7, "hard"), (8, "dir")] {
        let f = file(id, DirId::ROOT, text, 1);
        assert!(!bench.look(&f, Some(5)).adopted, "{text}");
        bench.write(&f, 0, b"x").expect("written");
        bench.publish(&f).expect("published");
    }
    assert_eq!(fs::read(bench.root.join("victim")).expect("read"), b"precious");
}

/// Goal: leftovers of dead runs go when their directory is finished, and the root's with the journal; a
/// user's files, other runs' and this run's temporaries stay.
/// Method: tags of a dead run, of another job and our own in a directory that stood there and in the root.
#[test]
fn leftovers_go_at_the_end() {
    let mut bench = Bench::with(|config| config.old_tags = vec![5, 6, TAG]);
    fs::create_dir(bench.root.join("d")).expect("mkdir");
    for tag in [5, 6, 7, TAG] {
        fs::write(bench.temp("f", tag), "").expect("write");
        let file = bench.temp("f", tag).file_name().expect("named").to_owned();
        fs::write(bench.root.join("d").join(file), "").expect("write");
    }
    let dir = bench.dir(1, DirId::ROOT, "d");
    bench.finish(vec![(dir, META)]).remove(0).expect("finished");
    assert_eq!(fs::read_dir(bench.root.join("d")).expect("ls").count(), 2);
    assert_eq!(bench.ls().len(), 5);
    assert_eq!(fs::metadata(bench.root.join("d")).expect("stat").mtime(), 1_600_000_000);
    assert!(matches!(bench.run(SinkOp::RemoveJournal, b""), SinkDone::RemoveJournal { result: Ok(()) }));
    assert_eq!(bench.ls().len(), 3);
}

/// Goal: a discarded file leaves nothing, and a late write of it is refused or makes a new one.
/// Method: write, discard, look; discard of what never was.
#[test]
fn discarded_files_leave_nothing() {
    let mut bench = Bench::new();
    let f = file(1, DirId::ROOT, "f", 2);
    bench.write(&f, 0, b"x").expect("written");
    for _ in 0..2 {
        assert_eq!(bench.run(SinkOp::Discard { id: f.id }, b""), SinkDone::Discard { id: f.id });
    }
    assert!(bench.ls().is_empty());
    assert!(bench.publish(&f).is_err());
}

/// Goal: a leftover with our own tag is replaced; where something that cannot be removed stands, the write
/// fails and says so.
/// Method: a file and a directory at the temporary's name.
#[test]
fn own_stale_temporary_is_replaced() {
    let mut bench = Bench::new();
    fs::write(bench.temp("f", TAG), "stale and longer").expect("write");
    let f = file(1, DirId::ROOT, "f", 1);
    bench.write(&f, 0, b"x").expect("written");
    bench.publish(&f).expect("published");
    assert_eq!(fs::read(bench.root.join("f")).expect("read"), b"x");
    fs::create_dir(bench.temp("g", TAG)).expect("mkdir");
    let failure = bench.write(&file(2, DirId::ROOT, "g", 1), 0, b"x").expect_err("in the way");
    assert_eq!((failure.stage, failure.errno), (Stage::Create, Errno::EXIST.raw_os_error()));
}

/// Goal: journal records are appended in the order of their submission and removed with the owner file at
/// the end.
/// Method: 100 records submitted at once; then the file as it is.
#[test]
fn journal_keeps_its_order() {
    let mut kept: Option<Arc<Owner>> = None;
    let mut bench = Bench::with(|config| {
        let place = JobDir::open(&config_root(config), JobKey::new(&[1; 16])).expect("a place");
        let owner = Arc::new(place.acquire(0, "test", &Patience::default()).expect("ours"));
        let mut journal = Journal::new(owner.clone());
        journal.replace(b"head").expect("replaced");
        let asked = owner.clone();
        config.still_owner = Arc::new(move || asked.still_owner());
        config.journal = Some(journal);
        kept = Some(owner);
    });
    let mut expected = b"head".to_vec();
    for i in 0..100u8 {
        bench.submit(SinkOp::Journal { bytes: vec![i; 3], durable: i % 10 == 0 }, b"");
        expected.extend([i; 3]);
    }
    for _ in 0..100 {
        let (done, _) = bench.posted.recv_timeout(Duration::from_secs(60)).expect("a completion");
        assert_eq!(done, SinkDone::Journal { result: Ok(()) });
    }
    let key = JobKey::new(&[1; 16]);
    assert_eq!(fs::read(bench.root.join(format!(".haul~{}", key.as_str()))).expect("read"), expected);
    assert_eq!(bench.run(SinkOp::RemoveJournal, b""), SinkDone::RemoveJournal { result: Ok(()) });
    assert!(bench.ls().is_empty());
    assert!(kept.expect("set").still_owner().is_err(), "given up");
}

/// Goal: the journal outlives a run that could not remove one of its temporaries, for it alone knows their tag.
/// Method: a directory in the temporary's place; the file is discarded, then the job ends.
#[test]
fn journal_stays_while_temporaries_do() {
    let mut bench = Bench::with(|config| {
        let place = JobDir::open(&config_root(config), JobKey::new(&[1; 16])).expect("a place");
        let owner = Arc::new(place.acquire(0, "test", &Patience::default()).expect("ours"));
        let mut journal = Journal::new(owner);
        journal.replace(b"head").expect("replaced");
        config.journal = Some(journal);
    });
    let f = file(1, DirId::ROOT, "f", 2);
    bench.write(&f, 0, b"x").expect("written");
    fs::remove_file(bench.temp("f", TAG)).expect("rm");
    fs::create_dir(bench.temp("f", TAG)).expect("mkdir");
    bench.run(SinkOp::Discard { id: f.id }, b"");
    assert_eq!(bench.run(SinkOp::RemoveJournal, b""), SinkDone::RemoveJournal { result: Ok(()) });
    let key = JobKey::new(&[1; 16]);
    assert_eq!(fs::read(bench.root.join(format!(".haul~{}", key.as_str()))).expect("read"), b"head");
}
