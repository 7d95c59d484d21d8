//! What belongs to the job: its journal, its owner, its temporaries.

use super::*;
use crate::volume;
use haul_core::ids::Holder;
use haul_core::journal::{Record, Replayed, compact};

/// Goal: a run that lost its job publishes nothing, finishes nothing, and removes nothing that the journal
/// may speak of.
/// Method: ownership is lost between write and commit, of a file of which a part was committed before.
#[test]
fn former_owner_publishes_nothing() {
    let mut bench = Bench::new();
    let f = file(1, DirId::ROOT, "f", 1);
    bench.write(&f, 0, b"x").expect("written");
    bench.commit(vec![CommitItem { id: f.id, publish: None }]).remove(0).expect("a part");
    bench.lost.store(true, Ordering::SeqCst);
    assert_eq!(&*bench.publish(&f).expect_err("lost").text, "lost");
    bench.run(SinkOp::Discard { id: f.id }, b"");
    assert!(bench.temp("f", TAG).exists(), "it may be the new owner's by now");
    let link = LinkItem {
        file: file(2, DirId::ROOT, "l", 0),
        target: b"x"[..].into(),
        node: None,
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
    assert_eq!(
        missing,
        Found { existing: Existing::Nothing, seen: None, adopted: false, len: 0, begun: false }
    );

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

/// Goal: what another user may write, or made, is never published as ours.
/// Method: temporaries of a dead run, opened to all, to the group, and given to another user; a descriptor of
/// each that writes on; and a good one.
#[test]
fn files_of_others_are_not_adopted() {
    let mut bench = Bench::new();
    for (id, text, mode) in
        [(1, "good", 0o600), (2, "all", 0o602), (3, "group", 0o620), (4, "another", 0o600)]
    {
        fs::write(bench.temp(text, 5), "half").expect("write");
        fs::set_permissions(bench.temp(text, 5), fs::Permissions::from_mode(mode)).expect("chmod");
        if text == "another" && std::os::unix::fs::chown(bench.temp(text, 5), Some(12345), None).is_err() {
            eprintln!("skipped: a file can be given away by root only");
            continue;
        }
        let stranger = fs::File::options().write(true).open(bench.temp(text, 5)).expect("open");
        let f = file(id, DirId::ROOT, text, 8);
        let adopted = bench.look(&f, Some(5)).adopted;
        assert_eq!(adopted, text == "good", "{text}");
        if !adopted {
            bench.write(&f, 0, b"all anew").expect("written");
            std::os::unix::fs::FileExt::write_all_at(&stranger, b"evil", 0).expect("write");
            bench.publish(&f).expect("published");
            assert_eq!(fs::read(bench.root.join(text)).expect("read"), b"all anew", "{text}");
        }
    }
}

/// Goal: what a run that lost its job has made, and no journal speaks of, goes with it, for nobody else would
/// ever look for it; what the journal speaks of stays for the new owner, and what another put under such a
/// name is his.
/// Method: a file that was only written, one of which a part was committed, and one that was exchanged; the
/// job is lost and the commit fails, or the engine ends before there was any.
#[test]
fn losers_clear_their_own() {
    for commits in [true, false] {
        let mut bench = Bench::new();
        let files =
            [("new", 1), ("part", 2), ("strange", 3)].map(|(text, id)| file(id, DirId::ROOT, text, 1));
        for f in &files {
            bench.write(f, 0, b"x").expect("written");
        }
        let [_, part, _] = &files;
        bench.commit(vec![CommitItem { id: part.id, publish: None }]).remove(0).expect("a part");
        let strange = bench.temp("strange", TAG);
        fs::rename(&strange, bench.root.join("aside")).expect("rename");
        fs::write(&strange, "another's").expect("write");
        bench.lost.store(true, Ordering::SeqCst);
        if commits {
            let results = bench.commit(files.iter().map(|f| whole(f, META)).collect());
            assert!(results.iter().all(Result::is_err));
        }
        bench.engine.take().expect("running").join();
        let stands = ["new", "part", "strange"].map(|text| bench.temp(text, TAG).exists());
        assert_eq!(stands, [false, true, true], "commits: {commits}");
        assert_eq!(fs::read_to_string(&strange).expect("read"), "another's");
    }
}

/// Goal: a run that lost its job makes no temporaries any more.
/// Method: objects and bundles of a run whose job is another's from the beginning.
#[test]
fn losers_make_nothing() {
    let mut bench = Bench::new();
    bench.lost.store(true, Ordering::SeqCst);
    let f = file(1, DirId::ROOT, "f", 1);
    assert_eq!(&*bench.write(&f, 0, b"x").expect_err("lost").text, "lost");
    let items = vec![BundleWrite { file: file(2, DirId::ROOT, "g", 1), start: 0, mode: META.mode }];
    match bench.run(SinkOp::WriteBundle { buffer: BufferId(0), items, more: false }, b"x") {
        SinkDone::WriteBundle { results, .. } => assert!(results[0].1.is_err()),
        other => panic!("{other:?}"),
    }
    let create = SinkOp::Create { file: file(3, DirId::ROOT, "h", 1), striping: None };
    assert!(matches!(bench.run(create, b""), SinkDone::Create { result: Err(_), .. }));
    assert!(bench.ls().is_empty(), "{:?}", bench.ls());
}

/// Goal: where it could for once not be seen whose the job is, a file fails, and leaves nothing when it is
/// discarded.
/// Method: one question comes to nothing, at the commit of a file of which a part was committed; then they
/// are answered again, or never: then it stays, and so does the journal.
#[test]
fn a_doubt_leaves_nothing() {
    use std::sync::atomic::AtomicU32;
    for (doubts, stays) in [(2, false), (u32::MAX, true)] {
        let left = Arc::new(AtomicU32::new(0));
        let asked = left.clone();
        let mut bench = Bench::with(|config| {
            config.still_owner = Arc::new(move || {
                match asked.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)) {
                    Ok(_) => Err(fault::failure(FailureKind::Publish, Errno::IO.raw_os_error(), "not seen")),
                    Err(_) => Ok(()),
                }
            });
        });
        let f = file(1, DirId::ROOT, "f", 1);
        bench.write(&f, 0, b"x").expect("written");
        bench.commit(vec![CommitItem { id: f.id, publish: None }]).remove(0).expect("a part");
        left.store(doubts, Ordering::SeqCst);
        assert_eq!(&*bench.publish(&f).expect_err("not seen").text, "not seen");
        if !stays {
            left.store(0, Ordering::SeqCst);
        }
        bench.run(SinkOp::Discard { id: f.id }, b"");
        assert_eq!(bench.temp("f", TAG).exists(), stays);
        left.store(0, Ordering::SeqCst);
        assert_eq!(bench.engine.as_ref().expect("running").left().is_some(), stays);
    }
}

/// Goal: what a run has open that was not seen to die is never published: its parts are copied to a new file.
/// Method: a temporary of such a run, and one of a run of which nobody knows; a descriptor of each that
/// writes on after the takeover, as a thawed process does, before and after publication.
#[test]
fn what_an_unproven_run_has_open_is_copied() {
    let mut bench = Bench::new();
    for (id, tag) in [(1, 6), (2, 9)] {
        let text = format!("f{tag}");
        fs::write(bench.temp(&text, tag), "half").expect("write");
        fs::set_permissions(bench.temp(&text, tag), fs::Permissions::from_mode(0o600)).expect("chmod");
        let zombie = fs::File::options().write(true).open(bench.temp(&text, tag)).expect("open");
        let f = file(id, DirId::ROOT, &text, 8);
        assert!(bench.look(&f, Some(tag)).adopted);
        assert!(!bench.temp(&text, tag).exists() && bench.temp(&text, TAG).exists());
        let late = |bytes: &[u8]| std::os::unix::fs::FileExt::write_all_at(&zombie, bytes, 0).expect("write");
        late(b"LATE");
        bench.write(&f, 4, b"rest").expect("written");
        bench.publish(&f).expect("published");
        late(b"LATER!!!");
        assert_eq!(fs::read(bench.root.join(&text)).expect("read"), b"halfrest");
        assert_eq!(fs::metadata(bench.root.join(&text)).expect("stat").mtime(), META.mtime.secs);
    }
}

/// Goal: whether the job is ours is asked directly before each rename, not only before the syncs; what was
/// not published then is left alone.
/// Method: an owner that loses the job between the two questions, for a file and for a link.
#[test]
fn the_owner_is_asked_before_each_rename() {
    use std::sync::atomic::AtomicU32;
    let asked = Arc::new(AtomicU32::new(u32::MAX));
    let left = asked.clone();
    let mut bench = Bench::with(|config| {
        config.still_owner = Arc::new(move || {
            match left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)) {
                Ok(_) => Ok(()),
                Err(_) => Err(fault::failure(FailureKind::Publish, 0, "lost")),
            }
        });
    });
    let f = file(1, DirId::ROOT, "f", 1);
    bench.write(&f, 0, b"x").expect("written");
    bench.commit(vec![CommitItem { id: f.id, publish: None }]).remove(0).expect("a part");
    // As long after the last question as another is asked before a commit.
    *lock(&bench.engine.as_ref().expect("running").sink.seen_owner) = None;
    asked.store(1, Ordering::SeqCst);
    assert_eq!(&*bench.publish(&f).expect_err("lost").text, "lost");
    assert!(bench.temp("f", TAG).exists() && !bench.root.join("f").exists());
    asked.store(0, Ordering::SeqCst);
    let target = b"x"[..].into();
    let link = LinkItem {
        file: file(2, DirId::ROOT, "l", 0),
        target,
        node: None,
        meta: META,
        owner: false,
        no_replace: false,
        force: false,
    };
    let done = bench.run(SinkOp::MakeLinks { items: vec![link] }, b"");
    assert!(matches!(done, SinkDone::MakeLinks { results } if results[0].1.is_err()));
    assert!(fs::symlink_metadata(bench.root.join("l")).is_err());
}

/// Goal: a run that followed one which may still publish does not end well while something else stands at a
/// name that it gave.
/// Method: files at the top and below, one of them replaced by a rename as a thawed run's; and nothing
/// replaced.
#[test]
fn published_names_are_confirmed() {
    for replaced in [None, Some("f"), Some("d/g")] {
        let mut bench = Bench::with(|config| config.confirm = true);
        let dir = bench.dir(9, DirId::ROOT, "d");
        for f in [file(1, DirId::ROOT, "f", 1), file(2, dir, "g", 1)] {
            bench.write(&f, 0, b"x").expect("written");
            bench.publish(&f).expect("published");
        }
        bench.finish(vec![(dir, META)]).remove(0).expect("finished");
        if let Some(name) = replaced {
            fs::write(bench.root.join("late"), "old").expect("write");
            fs::rename(bench.root.join("late"), bench.root.join(name)).expect("rename");
        }
        match (bench.run(SinkOp::RemoveJournal, b""), replaced) {
            (SinkDone::RemoveJournal { result: Ok(()) }, None) => {}
            (SinkDone::RemoveJournal { result: Err(failure) }, Some(name)) => {
                assert!(failure.text.contains("1 of the files") && failure.text.contains(name));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Goal: nor does such a run end well over a file that it found right, and that was replaced after it was
/// looked at.
/// Method: a file that stands there is looked up, and replaced by a rename as a thawed run's, or not.
#[test]
fn found_names_are_confirmed() {
    for replaced in [false, true] {
        let mut bench = Bench::with(|config| config.confirm = true);
        // The root was made by this run, so look into a directory that was not.
        fs::create_dir(bench.root.join("old")).expect("mkdir");
        fs::write(bench.root.join("old/f"), "new").expect("write");
        let old = bench.dir(50, DirId::ROOT, "old");
        let found = bench.look(&file(1, old, "f", 3), None);
        assert!(matches!(found.existing, Existing::File { size: 3, .. }), "{found:?}");
        if replaced {
            fs::write(bench.root.join("late"), "old").expect("write");
            fs::rename(bench.root.join("late"), bench.root.join("old/f")).expect("rename");
        } else {
            // What the run itself gives it is no replacement.
            let (meta, owner) = (Meta { mode: 0o600, ..META }, false);
            let found = found.seen.expect("it stands");
            let items = vec![AmendItem { file: file(1, old, "f", 3), meta, owner, found }];
            let done = bench.run(SinkOp::Amend { durable: true, items }, b"");
            assert!(matches!(done, SinkDone::Amend { results } if results[0].1 == Ok(Change::MODE)));
        }
        match bench.run(SinkOp::RemoveJournal, b"") {
            SinkDone::RemoveJournal { result } => assert_eq!(result.is_err(), replaced, "{result:?}"),
            other => panic!("{other:?}"),
        }
    }
}

/// Goal: an entry that takes the name of a file of a job here fails alone: of this job's temporaries, and of
/// the journal, owner file or temporaries of another; the same names elsewhere are the user's.
/// Method: files, links and directories of such names beside a live job, and beside none.
#[test]
fn names_of_jobs_here_are_refused() {
    let mut bench = Bench::with(|config| config.old_tags = vec![5]);
    let other = JobDir::open(&bench.root, JobKey::new(&[9; 16])).expect("a place");
    let owner = Arc::new(other.acquire(0, "another", &Patience::default()).expect("ours"));
    let mut journal = Journal::new(owner.clone());
    let root = volume::root_id(fs::File::open(&bench.root).expect("open")).expect("stat");
    let session = Record::Session { epoch: 1, tag: 6, boot: [0; 16], durable: true, lease: Holder::ALONE };
    let (bytes, ..) = compact(&Replayed::default(), Record::Head { job: [9; 16], root }, session);
    journal.replace(&bytes).expect("replaced");
    let key = format!(".haul~{}", JobKey::new(&[9; 16]).as_str());
    let temp = |tag| String::from_utf8(temp_name(&name("f"), tag, 1).as_bytes().to_vec()).expect("ASCII");
    let refused = [key.clone(), format!("{key}.own.2"), format!("{key}.new.1"), temp(TAG), temp(5), temp(6)];
    let taken =
        [".haul~notes".to_owned(), temp(7), format!(".haul~{}.own.2", JobKey::new(&[8; 16]).as_str())];
    let before = bench.ls();
    for (i, text) in refused.iter().chain(&taken).enumerate() {
        let id = 10 * i as u64 + 100;
        let wanted = taken.contains(text);
        let f = file(id, DirId::ROOT, text, 1);
        bench.write(&f, 0, b"x").expect("written");
        let published = bench.publish(&f);
        assert_eq!(published.is_ok(), wanted, "{text}: {published:?}");
        if wanted {
            fs::remove_file(bench.root.join(text)).expect("rm");
        }
        let target = b"x"[..].into();
        let file = file(id + 1, DirId::ROOT, text, 0);
        let link =
            LinkItem { file, target, node: None, meta: META, owner: false, no_replace: false, force: false };
        match bench.run(SinkOp::MakeLinks { items: vec![link] }, b"") {
            SinkDone::MakeLinks { results } => assert_eq!(results[0].1.is_ok(), wanted, "{text}"),
            other => panic!("{other:?}"),
        }
        if wanted {
            fs::remove_file(bench.root.join(text)).expect("rm");
        }
        let dir = bench.dir(id + 2, DirId::ROOT, text);
        match bench.run(SinkOp::MakeDirs { dirs: vec![dir] }, b"") {
            SinkDone::MakeDirs { results } => assert_eq!(results[0].1.is_ok(), wanted, "{text}"),
            other => panic!("{other:?}"),
        }
        if wanted {
            fs::remove_dir(bench.root.join(text)).expect("rmdir");
        }
    }
    assert_eq!(bench.ls(), before);
    owner.still_owner().expect("undisturbed");
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
    assert_eq!((failure.kind, failure.errno), (FailureKind::Create, Errno::EXIST.raw_os_error()));
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

/// Goal: the journal outlives a run that could not remove one of its temporaries, for it alone knows their
/// tag.
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
