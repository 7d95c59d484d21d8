//! What a name is given to, and what must not be put aside for it.

use super::*;
use std::os::unix::fs::FileTypeExt;

fn committed(bench: &mut Bench, item: CommitItem) -> Result<(), Failure> {
    let ids = vec![item.id];
    bench.commit_as_it_is(vec![item], ids).remove(0)
}

fn over(file: &SinkFile, found: Option<Seen>) -> CommitItem {
    let mut item = whole(file, META);
    item.publish.as_mut().expect("set").found = found;
    item
}

/// Goal: what a look did not find is never put aside: where it found nothing, nothing is replaced, and where
/// it found a file, that one alone; what appeared stays and the entry fails by name. What vanished meanwhile
/// hinders nobody.
/// Method: a file that appears, one that is replaced, one that goes, one that stays as it was.
#[test]
fn only_what_was_found_is_put_aside() {
    let mut bench = Bench::new();
    for text in ["replaced", "gone", "same"] {
        fs::write(bench.root.join(text), "old").expect("write");
    }
    let found = |text: &str| seen_at(&bench.root.join(text));
    let looks = [
        ("appeared", None),
        ("replaced", found("replaced")),
        ("gone", found("gone")),
        ("same", found("same")),
    ];
    fs::write(bench.root.join("appeared"), "mine").expect("write");
    fs::write(bench.root.join("other"), "mine").expect("write");
    fs::rename(bench.root.join("other"), bench.root.join("replaced")).expect("rename");
    fs::remove_file(bench.root.join("gone")).expect("rm");
    for (id, (text, found)) in (1..).zip(looks) {
        let f = file(id, DirId::ROOT, text, 3);
        bench.write(&f, 0, b"new").expect("written");
        let result = committed(&mut bench, over(&f, found));
        let stays = matches!(text, "appeared" | "replaced");
        assert_eq!(result.is_err(), stays, "{text}: {result:?}");
        let content = if stays { "mine" } else { "new" };
        assert_eq!(fs::read_to_string(bench.root.join(text)).expect("read"), content, "{text}");
        if let Err(failure) = result {
            assert!(failure.text.contains(text), "{}", failure.text);
        }
    }
    assert_eq!(bench.ls(), ["appeared", "gone", "replaced", "same"]);
}

/// Changes what stands at `path`, keeping its inode, its size and its mtime, until its ctime is another.
fn change_in_place(path: &Path, content: &str) {
    let before = seen_at(path).expect("it stands");
    while seen_at(path).expect("it stands").ctime == before.ctime {
        fs::write(path, content).expect("write");
        let mtime = std::time::UNIX_EPOCH
            + Duration::new(before.mtime.secs.try_into().expect("after 1970"), before.mtime.nanos);
        fs::File::options().write(true).open(path).expect("open").set_modified(mtime).expect("utimes");
    }
    let after = seen_at(path).expect("it stands");
    assert_eq!((after.inode, after.size, after.mtime), (before.inode, before.size, before.mtime));
}

/// Goal: the number of an inode is no identity of a file that nobody holds open: what has the number of what
/// was found, and is another file by its size, its mtime or its ctime, is not put aside. A file that got
/// another name, or lost one, is the same.
/// Method: each difference alone, made in place, which is what a file looks like that was made anew under the
/// same number.
#[test]
fn a_number_that_came_again_is_no_identity() {
    let mut bench = Bench::new();
    let at = |text: &str| bench.root.join(text);
    for text in ["size", "mtime", "ctime", "same", "linked", "unlinked"] {
        fs::write(at(text), "old").expect("write");
    }
    fs::hard_link(at("unlinked"), at("second")).expect("link");
    let names = ["size", "mtime", "ctime", "same", "linked", "unlinked"];
    let looks = names.map(|text| (text, seen_at(&at(text))));
    fs::write(at("size"), "precious").expect("write");
    let newer = std::time::SystemTime::now() + Duration::from_secs(9);
    fs::File::options().write(true).open(at("mtime")).expect("open").set_modified(newer).expect("utimes");
    change_in_place(&at("ctime"), "dlo");
    fs::hard_link(at("linked"), at("third")).expect("link");
    fs::remove_file(at("second")).expect("rm");
    for (id, (text, found)) in (1..).zip(looks) {
        let f = file(id, DirId::ROOT, text, 3);
        bench.write(&f, 0, b"new").expect("written");
        let result = committed(&mut bench, over(&f, found));
        let stays = matches!(text, "size" | "mtime" | "ctime");
        assert_eq!(result.is_err(), stays, "{text}: {result:?}");
        assert_eq!(fs::read(bench.root.join(text)).expect("read") != b"new", stays, "{text}");
    }
    assert_eq!(bench.ls().len(), 7, "{:?}", bench.ls());
}

/// Goal: rights are given to what was looked at only while nothing of it changed, and only if they may be
/// given to what it is now.
/// Method: a file that was changed in place with its size and mtime kept; then, as within one tick of the
/// clock, looks that see the very file that stands there: one that has another name, and one that another
/// user made (as root).
#[test]
fn rights_are_given_to_what_was_seen() {
    let mut bench = Bench::new();
    let root = bench.root.clone();
    let at = |text: &str| root.join(text);
    let amend = |bench: &mut Bench, text, meta: Meta, found| {
        let items = vec![AmendItem { file: file(1, DirId::ROOT, text, 4), meta, owner: true, found }];
        match bench.run(SinkOp::Amend { durable: true, items }, b"") {
            SinkDone::Amend { mut results } => results.remove(0).1,
            other => panic!("{other:?}"),
        }
    };
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let meta = Meta { mode: 0o4755, uid, gid, ..META };
    for text in ["changed", "linked", "anothers"] {
        fs::write(at(text), "good").expect("write");
        fs::set_permissions(at(text), fs::Permissions::from_mode(0o755)).expect("chmod");
    }
    let found = seen_at(&at("changed")).expect("it stands");
    change_in_place(&at("changed"), "evil");
    amend(&mut bench, "changed", meta, found).expect_err("it changed");
    fs::hard_link(at("linked"), at("second")).expect("link");
    let mut judged = vec!["linked"];
    if is_root() {
        std::os::unix::fs::chown(at("anothers"), Some(65_534), Some(65_534)).expect("chown");
        judged.push("anothers");
    }
    for text in judged {
        let found = seen_at(&at(text)).expect("it stands");
        amend(&mut bench, text, meta, found).expect_err(text);
    }
    for text in ["changed", "linked", "anothers"] {
        assert_eq!(fs::metadata(at(text)).expect("stat").mode() & 0o7777, 0o755, "{text}");
    }
}

/// Goal: owner, time and name are given to the link that was made, whatever stands at its temporary name by
/// then; and what stands there stays.
/// Method: another file takes the name before the link is held, and after.
#[test]
fn only_the_link_that_was_made_is_published() {
    let mut bench = Bench::new();
    let meta = Meta { uid: 12345, gid: 12345, ..META };
    let item = LinkItem {
        file: file(1, DirId::ROOT, "l", 0),
        target: b"target"[..].into(),
        node: None,
        meta,
        owner: is_root(),
        no_replace: false,
        force: false,
    };
    let temp = bench.temp("l", TAG);
    let (sink, dir) =
        (bench.engine.as_ref().expect("running").sink.clone(), bench.tree.dirfd(DirId::ROOT).expect("root"));
    fs::write(&temp, "secret").expect("write");
    sink.hold_link(&item, &dir).expect_err("it is a file");
    fs::remove_file(&temp).expect("rm");
    symlink("elsewhere", &temp).expect("symlink");
    sink.hold_link(&item, &dir).expect_err("it leads elsewhere");
    fs::remove_file(&temp).expect("rm");
    symlink("target", &temp).expect("symlink");
    let held = sink.hold_link(&item, &dir).expect("it is the link");
    fs::rename(&temp, bench.root.join("aside")).expect("rename");
    fs::write(&temp, "secret").expect("write");
    let before = seen_at(&temp);
    sink.finish_link(&item, &dir, &held, None).expect_err("it has lost its name");
    assert_eq!(seen_at(&temp), before, "neither changed nor removed");
    assert!(fs::symlink_metadata(bench.root.join("l")).is_err());
    let aside = fs::symlink_metadata(bench.root.join("aside")).expect("stat");
    assert_eq!(aside.mtime(), META.mtime.secs, "what is held was changed");
    assert!(!is_root() || aside.uid() == 12345);
    drop(sink);
    fs::remove_file(&temp).expect("rm");
    let done = bench.run(SinkOp::MakeLinks { items: vec![item] }, b"");
    assert!(matches!(done, SinkDone::MakeLinks { results } if results[0].1.is_ok()));
    assert_eq!(fs::read_link(bench.root.join("l")).expect("link").as_os_str(), "target");
}

/// Goal: a directory that another user had made before the copy, under the name of one that is closed at the
/// source, is told; no other is.
/// Method: as root, directories of another user that stood there, closed, open and his own at the source, and
/// one of ours.
#[test]
fn directories_of_others_are_told() {
    if !is_root() {
        return eprintln!("skipped: owners need root");
    }
    let mut bench = Bench::new();
    let cases = [("closed", 7, 0o700), ("open", 7, 0o755), ("his", 7, 0o700), ("ours", 0, 0o700)];
    for (id, (text, uid, mode)) in (1..).zip(cases) {
        fs::create_dir(bench.root.join(text)).expect("mkdir");
        std::os::unix::fs::chown(bench.root.join(text), Some(uid), None).expect("chown");
        let dir = bench.dir(id, DirId::ROOT, text);
        let uid = if text == "his" { 7 } else { 0 };
        bench.finish(vec![(dir, Meta { mode, uid, ..META })]).remove(0).expect("finished");
    }
    let lines = bench.engine.as_ref().expect("running").report();
    let told: Vec<_> = lines.iter().filter(|(name, _)| name == crate::sink::OTHERS_DIRS).collect();
    assert_eq!(told.len(), 1, "{lines:?}");
    assert!(told[0].1.starts_with("1 that") && told[0].1.contains("closed of user 7"), "{told:?}");
}

/// Goal: another file under the temporary's name is neither published nor removed.
/// Method: the temporary is put aside, and a file of somebody's takes its name, before the commit.
#[test]
fn only_what_was_written_is_published() {
    let mut bench = Bench::new();
    let f = file(1, DirId::ROOT, "f", 3);
    bench.write(&f, 0, b"new").expect("written");
    let [temp] = bench.ls().try_into().expect("one temporary");
    let (temp, aside) = (bench.root.join(temp), bench.root.join("aside"));
    fs::rename(&temp, &aside).expect("rename");
    fs::write(&temp, "strange").expect("write");
    committed(&mut bench, over(&f, None)).expect_err("it is not what was written");
    assert!(!bench.root.join("f").exists());
    assert_eq!(fs::read_to_string(&temp).expect("it is not ours to remove"), "strange");
}

/// Goal: two entries that have one name in a directory of this session, as where case is folded, are one
/// entry and one failure that says why; the live temporary of the first is not touched by the second.
/// Method: files of one name, written in turns and one after the other.
#[test]
fn entries_of_one_name_fail_alone() {
    let mut bench = Bench::new();
    let (one, two) = (file(1, DirId::ROOT, "f", 3), file(2, DirId::ROOT, "f", 3));
    bench.write(&one, 0, b"on").expect("written");
    let failure = bench.write(&two, 0, b"two").expect_err("its temporary is the other's");
    assert!(failure.text.contains("takes both names for one"), "{}", failure.text);
    bench.write(&one, 2, b"e").expect("written");
    committed(&mut bench, over(&one, None)).expect("published");
    let three = file(3, DirId::ROOT, "f", 5);
    bench.write(&three, 0, b"three").expect("written");
    committed(&mut bench, over(&three, None)).expect_err("the name is taken");
    assert_eq!(fs::read(bench.root.join("f")).expect("read"), b"one");
    assert_eq!(bench.ls(), ["f"]);
}

/// Goal: a FIFO is told as what it is, and stays where a link would take its place, unless that is insisted
/// on.
/// Method: a FIFO in a directory that stood before; a look, a link, a link with force.
#[test]
fn special_files_are_told_and_stay() {
    let mut bench = Bench::new();
    let old = bench.dir(1, DirId::ROOT, "old");
    fs::create_dir(bench.root.join("old")).expect("mkdir");
    let fifo = bench.root.join("old/fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .expect("mkfifo");
    let found = bench.look(&file(2, old, "fifo", 0), None);
    assert_eq!((found.existing, found.seen), (Existing::Special, seen_at(&fifo)));
    for force in [false, true] {
        let file = file(3, old, "fifo", 0);
        let item = LinkItem {
            file,
            target: b"t"[..].into(),
            node: None,
            meta: META,
            owner: false,
            no_replace: false,
            force,
        };
        match bench.run(SinkOp::MakeLinks { items: vec![item] }, b"") {
            SinkDone::MakeLinks { results } => assert_eq!(results[0].1.is_ok(), force, "{results:?}"),
            other => panic!("{other:?}"),
        }
        let stands = fs::symlink_metadata(&fifo).expect("stat").file_type();
        assert_eq!(stands.is_fifo(), !force);
    }
}

/// Goal: no link takes the place of the file that it leads to, which would be lost; a link to anything else
/// does, and to another hard link of that file.
/// Method: links to the very name by its bare, a roundabout and its whole path, and to others, over files in
/// a directory that stood before.
#[test]
fn no_link_takes_the_place_of_its_target() {
    let mut bench = Bench::new();
    let old = bench.dir(1, DirId::ROOT, "old");
    fs::create_dir(bench.root.join("old")).expect("mkdir");
    let at = |text: &str| bench.root.join("old").join(text);
    let all = ["bare", "round", "whole", "other", "linked"];
    for text in all {
        fs::write(at(text), "DATA").expect("write");
    }
    fs::hard_link(at("linked"), at("second")).expect("link");
    let whole = at("whole").into_os_string().into_encoded_bytes();
    let targets = [&b"bare"[..], b"../old/./round", &whole, b"bare", b"second"];
    for (id, (text, target)) in (2..).zip(all.into_iter().zip(targets)) {
        let file = file(id, old, text, 0);
        let (meta, owner, no_replace, force) = (META, false, false, true);
        let item = LinkItem { file, target: target.into(), node: None, meta, owner, no_replace, force };
        let results = match bench.run(SinkOp::MakeLinks { items: vec![item] }, b"") {
            SinkDone::MakeLinks { results } => results,
            other => panic!("{other:?}"),
        };
        let stays = !matches!(text, "other" | "linked");
        assert_eq!(results[0].1.is_err(), stays, "{text}: {results:?}");
        let path = bench.root.join("old").join(text);
        assert_eq!(fs::symlink_metadata(&path).expect("stat").is_symlink(), !stays, "{text}");
        assert_eq!(fs::read(&path).expect("nothing is lost"), b"DATA", "{text}");
    }
    assert_eq!(fs::read_dir(bench.root.join("old")).expect("ls").count(), 6);
}

/// Goal: mode of a file is set alone, also where its owner may not read it; only of the inode that was looked
/// at, and never through a link; and it is told whether anything changed.
/// Method: modes from and to nothing, as somebody whom modes bind; another file and a link at the name.
#[test]
fn metadata_is_amended_where_it_was_looked_at() {
    if as_nobody("sink::engine::tests::publish::metadata_is_amended_where_it_was_looked_at") {
        return;
    }
    let mut bench = Bench::new();
    let at = bench.root.join("f");
    let mode = |path: &Path| fs::symlink_metadata(path).expect("stat").mode() & 0o7777;
    let amend = |bench: &mut Bench, found, mode| {
        let (file, meta) = (file(1, DirId::ROOT, "f", 0), Meta { mode, ..META });
        let items = vec![AmendItem { file, meta, owner: false, found }];
        match bench.run(SinkOp::Amend { durable: true, items }, b"") {
            SinkDone::Amend { mut results } => results.remove(0).1,
            other => panic!("{other:?}"),
        }
    };
    fs::write(&at, "").expect("write");
    fs::set_permissions(&at, fs::Permissions::from_mode(0o644)).expect("chmod");
    let found = || seen_at(&at).expect("it stands");
    for (wanted, changes) in
        [(0o600, true), (0o600, false), (0, true), (0, false), (0o111, true), (0o640, true)]
    {
        let changes = Change::NONE.with(Change::MODE, changes);
        assert_eq!(amend(&mut bench, found(), wanted), Ok(changes), "{wanted:o}");
        assert_eq!(mode(&at), wanted);
    }
    let found = found();
    let other = Seen { inode: Inode { ino: found.inode.ino + 1, ..found.inode }, ..found };
    assert!(amend(&mut bench, other, 0o777).is_err());
    fs::rename(&at, bench.root.join("g")).expect("rename");
    symlink("g", &at).expect("symlink");
    let link = seen_at(&at).expect("it stands");
    assert!(amend(&mut bench, link, 0o777).is_err() && amend(&mut bench, found, 0o777).is_err());
    assert_eq!(mode(&bench.root.join("g")), 0o640);
}

/// Goal: where a mode is refused and what stands allows more than the source, the entry fails; where it
/// allows no more it is counted, as is an mtime that is refused.
/// Method: a directory of somebody else, open to all, which nobody may change but its owner (as root, and as
/// nobody).
#[test]
fn what_stays_wider_than_its_source_fails() {
    let theirs = |pid: u32| std::env::temp_dir().join(format!("haul-wider-{pid}"));
    if is_root() {
        let at = Path::new("/tmp").join(theirs(std::process::id()).file_name().expect("a name"));
        fs::create_dir_all(at.join("root/d")).expect("mkdir");
        fs::set_permissions(at.join("root/d"), fs::Permissions::from_mode(0o755)).expect("chmod");
        let ran = as_nobody("sink::engine::tests::publish::what_stays_wider_than_its_source_fails");
        fs::remove_dir_all(&at).expect("rm");
        if !ran {
            eprintln!("skipped: nobody cannot run this");
        }
        return;
    }
    let at = theirs(std::os::unix::process::parent_id()).join("root");
    if !at.is_dir() {
        return eprintln!("skipped: needs root to begin with");
    }
    let mut bench = Bench::at(tempfile::tempdir().expect("tempdir"), at, |_| {});
    let finish = |bench: &mut Bench, id, mode| {
        let dir = bench.dir(id, DirId::ROOT, "d");
        bench.finish(vec![(dir, Meta { mode, ..META })]).remove(0)
    };
    finish(&mut bench, 1, 0o755).expect("as it should be, but for its mtime");
    assert_eq!(bench.not_kept(), NotKept { mtime: 1, ..NotKept::default() });
    finish(&mut bench, 2, 0o777).expect("narrower");
    assert_eq!(bench.not_kept().mode, 1);
    let failure = finish(&mut bench, 3, 0o700).expect_err("wider");
    assert!(failure.text.contains("0755, which allows more than 0700"), "{}", failure.text);
}

/// Goal: an mtime that the file system cannot hold is counted, and a look tells it as the announced one.
/// Method: the year 3000 and 1800, where the file system ends before; a third time that is just different.
#[test]
fn clamped_times_are_counted_and_compare() {
    let mut bench = Bench::new();
    let old = bench.dir(1, DirId::ROOT, "old");
    fs::create_dir(bench.root.join("old")).expect("mkdir");
    let odd = [32_503_680_000, -5_364_662_400].map(|secs| Timestamp { secs, nanos: 0 });
    for (id, mtime) in (2..).zip(odd) {
        let f = file(id, old, &format!("f{id}"), 0);
        bench.commit(vec![whole(&f, Meta { mtime, ..META })]).remove(0).expect("published");
        let stands = fs::metadata(bench.root.join(format!("old/f{id}"))).expect("stat").mtime();
        if stands == mtime.secs {
            return eprintln!("skipped: this file system holds such times");
        }
        let look = |bench: &mut Bench, mtime| {
            let item =
                LookupItem { file: f.clone(), fingerprint: told(f.size, mtime), meta: META, adopt: None };
            match bench.run(SinkOp::Lookup { items: vec![item] }, b"") {
                SinkDone::Lookup { mut results } => results.remove(0).1.expect("found").existing,
                other => panic!("{other:?}"),
            }
        };
        assert!(matches!(look(&mut bench, mtime), Existing::File { mtime: told, .. } if told == mtime));
        let today = META.mtime;
        assert!(matches!(look(&mut bench, today), Existing::File { mtime: told, .. } if told.secs == stands));
    }
    assert_eq!(bench.not_kept(), NotKept { clamped: 2, ..NotKept::default() });
    assert_eq!(fs::read_dir(bench.root.join("old")).expect("ls").count(), 2);
}

/// Goal: a directory that was closed to us has its mode again when a run ends that did not finish it; one
/// that was finished has that of its source; nothing is closed to a new owner of the job.
/// Method: two closed directories in each other, opened by a use, as somebody whom modes bind; ends in good
/// order, after one was finished, and after the job was lost.
#[test]
fn directories_are_closed_again() {
    if as_nobody("sink::engine::tests::publish::directories_are_closed_again") {
        return;
    }
    for (finished, lost, outer, inner) in
        [(false, false, 0o500, 0), (true, false, 0o500, 0o640), (false, true, 0o700, 0o700)]
    {
        let mut bench = Bench::new();
        let (a, b) = (bench.root.join("a"), bench.root.join("a/b"));
        fs::create_dir_all(&b).expect("mkdir");
        let set =
            |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
        set(&b, 0);
        set(&a, 0o500);
        let outside = bench.dir(1, DirId::ROOT, "a");
        let inside = bench.dir(2, outside, "b");
        let f = file(3, inside, "f", 1);
        bench.write(&f, 0, b"x").expect("written");
        bench.commit(vec![whole(&f, META)]).remove(0).expect("published");
        if finished {
            bench.finish(vec![(inside, META)]).remove(0).expect("finished");
        }
        bench.lost.store(lost, Ordering::SeqCst);
        bench.engine.take().expect("running").join();
        let mode = |path: &Path| fs::metadata(path).expect("stat").mode() & 0o7777;
        assert_eq!((mode(&a), mode(&b)), (outer, inner), "finished {finished}, lost {lost}");
        set(&a, 0o755);
        set(&b, 0o755);
    }
}

/// Goal: a directory that was opened to us, and got another mode meanwhile, keeps that when the run ends or
/// gives it up.
/// Method: as somebody whom modes bind, a closed directory that is opened by a use and made private by its
/// owner; the run ends, or cannot finish it.
#[test]
fn modes_given_meanwhile_stay() {
    if as_nobody("sink::engine::tests::publish::modes_given_meanwhile_stay") {
        return;
    }
    for given_up in [false, true] {
        let mut bench = Bench::new();
        let a = bench.root.join("a");
        fs::create_dir(&a).expect("mkdir");
        let set = |mode| fs::set_permissions(&a, fs::Permissions::from_mode(mode)).expect("chmod");
        set(0o555);
        let inside = bench.dir(1, DirId::ROOT, "a");
        bench.run(SinkOp::MakeDirs { dirs: vec![inside] }, b"");
        assert_eq!(fs::metadata(&a).expect("stat").mode() & 0o7777, 0o755, "opened");
        set(0o700);
        match given_up {
            true => bench.tree.close_one(inside),
            false => drop(bench.engine.take().expect("running").join()),
        }
        assert_eq!(fs::metadata(&a).expect("stat").mode() & 0o7777, 0o700, "given up: {given_up}");
    }
}

/// Goal: a directory that is closed to us is not opened before the journal knows of it, and not at all if it
/// cannot; nobody waits for an answer when the engine ends.
/// Method: as somebody whom modes bind, a file in such a directory; the session's answer is kept back, given,
/// refused, or never comes.
#[test]
fn directories_are_written_down_before_they_are_opened() {
    if as_nobody("sink::engine::tests::publish::directories_are_written_down_before_they_are_opened") {
        return;
    }
    for answer in ["noted", "refused", "none"] {
        let dir = tempfile::tempdir().expect("tempdir");
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("a")).expect("mkdir");
        let a = root.join("a");
        let mode = || fs::metadata(&a).expect("stat").mode() & 0o7777;
        fs::set_permissions(&a, fs::Permissions::from_mode(0o500)).expect("chmod");
        let place = JobDir::open(&root, JobKey::new(&[3; 16])).expect("a place");
        let journal_at = root.join(std::str::from_utf8(place.key().journal().as_bytes()).expect("ASCII"));
        let owner = Arc::new(place.acquire(0, "test", &Patience::default()).expect("ours"));
        let mut journal = Journal::new(owner);
        journal.replace(b"head").expect("begun");
        let mut bench = Bench::at(dir, root, |config| config.journal = Some(journal));
        let inside = bench.dir(1, DirId::ROOT, "a");
        bench.submit(SinkOp::MakeDirs { dirs: vec![inside] }, b"");
        let hear =
            |bench: &Bench| bench.posted.recv_timeout(Duration::from_secs(60)).expect("a completion").0;
        let SinkDone::Widen { ask, id, dir } = hear(&bench) else { panic!("nothing was asked") };
        assert_eq!((id, &*dir.path, dir.mode, mode()), (inside, &b"a"[..], 0o500, 0o500));
        let made = |done: SinkDone| match done {
            SinkDone::MakeDirs { mut results } => results.remove(0).1,
            other => panic!("{other:?}"),
        };
        match answer {
            "noted" => {
                bench.submit(SinkOp::Note { ask, bytes: b"+noted".to_vec(), durable: true }, b"");
                let (mut noted, mut ended) = (0, None);
                for _ in 0..2 {
                    match hear(&bench) {
                        SinkDone::Note { result } => noted += u32::from(result.is_ok()),
                        done => ended = Some(made(done)),
                    }
                }
                assert_eq!((noted, ended), (1, Some(Ok(()))));
                assert_eq!((fs::read(&journal_at).expect("read"), mode()), (b"head+noted".to_vec(), 0o700));
            }
            "refused" => {
                let failure = fault::failure(FailureKind::Create, Errno::ACCESS.raw_os_error(), "no");
                bench.submit(SinkOp::RefuseNote { ask, failure }, b"");
                assert!(made(hear(&bench)).is_err());
                assert_eq!(mode(), 0o500);
            }
            _ => {
                bench.engine.take().expect("running").join();
                assert!(made(hear(&bench)).is_err());
                assert_eq!(mode(), 0o500);
            }
        }
        bench.engine.take();
        fs::set_permissions(&a, fs::Permissions::from_mode(0o755)).expect("chmod");
    }
}

/// Goal: a directory that cannot be finished has its mode again, though the run goes on; nothing is closed to
/// a new owner.
/// Method: as somebody whom modes bind; the job is doubted once, when the directory is finished, or lost.
#[test]
fn what_cannot_be_finished_is_closed_again() {
    if as_nobody("sink::engine::tests::publish::what_cannot_be_finished_is_closed_again") {
        return;
    }
    for (doubts, after) in [(1, 0o500), (u32::MAX, 0o700)] {
        let left = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let asked = left.clone();
        let mut bench = Bench::with(|config| {
            config.still_owner = Arc::new(move || {
                let doubted = asked.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
                match doubted {
                    Ok(_) => Err(fault::failure(FailureKind::Publish, 0, "lost")),
                    Err(_) => Ok(()),
                }
            });
        });
        let a = bench.root.join("a");
        fs::create_dir(&a).expect("mkdir");
        fs::set_permissions(&a, fs::Permissions::from_mode(0o500)).expect("chmod");
        let inside = bench.dir(1, DirId::ROOT, "a");
        bench.run(SinkOp::MakeDirs { dirs: vec![inside] }, b"");
        left.store(doubts, Ordering::SeqCst);
        assert!(bench.finish(vec![(inside, META)]).remove(0).is_err());
        assert_eq!(fs::metadata(&a).expect("stat").mode() & 0o7777, after, "doubts: {doubts}");
        fs::set_permissions(&a, fs::Permissions::from_mode(0o755)).expect("chmod");
    }
}

/// Goal: a directory that is all that it is to be is left as it is, so that there is nothing to be written
/// again; one of which anything differs becomes what it is to be.
/// Method: the ctime, which every change moves; mode, mtime and, as root, owner that differ.
#[test]
fn directories_that_are_right_are_left_alone() {
    let mut bench = Bench::with(|config| config.dir_owner = true);
    let path = bench.root.join("d");
    fs::create_dir(&path).expect("mkdir");
    let ids = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let meta = Meta { mode: 0o750, uid: ids.0, gid: ids.1, ..META };
    let ctime = || {
        let stat = fs::metadata(&path).expect("stat");
        (stat.ctime(), stat.ctime_nsec())
    };
    let others = if is_root() { vec![Meta { gid: 12345, ..meta }] } else { Vec::new() };
    let wanted =
        [meta, Meta { mode: 0o700, ..meta }, Meta { mtime: Timestamp { secs: 5, nanos: 7 }, ..meta }];
    for meta in wanted.into_iter().chain(others) {
        let id = bench.dir(1, DirId::ROOT, "d");
        bench.finish(vec![(id, meta)]).remove(0).expect("finished");
        let stat = fs::metadata(&path).expect("stat");
        assert_eq!(
            (stat.mode() & 0o7777, stat.mtime(), stat.mtime_nsec()),
            (meta.mode, meta.mtime.secs, i64::from(meta.mtime.nanos))
        );
        assert!(!is_root() || stat.gid() == meta.gid);
        let before = ctime();
        // Longer than any clock of a file system ticks.
        std::thread::sleep(Duration::from_millis(30));
        let id = bench.dir(1, DirId::ROOT, "d");
        bench.finish(vec![(id, meta)]).remove(0).expect("finished");
        assert_eq!(ctime(), before, "it was set again: {meta:?}");
    }
}
