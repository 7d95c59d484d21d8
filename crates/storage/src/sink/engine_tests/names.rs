//! Further names of what was published or found.

use super::*;

const FIRST: FileId = FileId(1);

fn item(id: u64, text: &str) -> JoinItem {
    let (no_replace, update, force) = (false, false, false);
    JoinItem { file: file(id, DirId::ROOT, text, 0), to: FIRST, meta: META, no_replace, update, force }
}

fn join(bench: &mut Bench, item: JoinItem) -> Result<Joined, Failure> {
    match bench.run(SinkOp::Join { items: vec![item] }, b"") {
        SinkDone::Join { mut results } => results.remove(0).1,
        other => panic!("{other:?}"),
    }
}

/// A bench in which a file of this size has its name, of which others may follow.
fn with_first(size: usize) -> Bench {
    let mut bench = Bench::new();
    let first = file(FIRST.0, DirId::ROOT, "first", size as u64);
    bench.engine.as_ref().expect("running").lead(first.id, first.parent, &first.name);
    bench.write(&first, 0, &vec![b'x'; size]).expect("written");
    bench.publish(&first).expect("published");
    bench
}

/// Goal: a name is given to the file that was published, whatever stands there that gives way, and nothing
/// else of it is left; a name that is the file's already stays, and so does what is asked to stay.
/// Method: nothing, another file, a link, the file itself; a directory, a pipe; each with each choice.
#[test]
fn names_are_of_what_was_published() {
    for size in [5, 400_000] {
        let mut bench = with_first(size);
        let root = bench.root.clone();
        let at = |text: &str| root.join(text);
        let inode = fs::metadata(at("first")).expect("stat").ino();
        for text in ["other", "kept", "newer", "older"] {
            fs::write(at(text), "old").expect("write");
        }
        symlink("first", at("link")).expect("link");
        fs::create_dir(at("dir")).expect("mkdir");
        let fifo = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), rustix::fs::FileType::Fifo, fifo, 0)
            .expect("mkfifo");
        let past = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        fs::File::options().write(true).open(at("older")).expect("open").set_modified(past).expect("utimes");
        let is = |change| Some(Joined::Is(change));
        let new = Change::NEW.with(Change::LINKED, true);
        let differs = Change::LINKED.with(Change::SIZE, true).with(Change::TIME, true);
        for (id, text, no_replace, update, force, want) in [
            (2, "new", false, false, false, is(new)),
            (2, "new", true, false, false, is(Change::NONE)),
            (3, "other", false, false, false, is(differs)),
            (3, "other", false, false, false, is(Change::NONE)),
            (4, "link", false, false, false, is(new)),
            (5, "kept", true, false, false, Some(Joined::Skipped)),
            (6, "newer", false, true, false, Some(Joined::Skipped)),
            (7, "older", false, true, false, is(differs)),
            (8, "dir", false, false, true, None),
            (9, "fifo", false, false, false, None),
            (9, "fifo", false, false, true, is(new)),
        ] {
            let got = join(&mut bench, JoinItem { no_replace, update, force, ..item(id, text) });
            assert_eq!(got.clone().ok(), want, "{size} {text}: {got:?}");
            let stands = fs::symlink_metadata(at(text)).expect("stat").ino() == inode;
            assert_eq!(stands, matches!(want, Some(Joined::Is(_))), "{text}");
        }
        assert_eq!(fs::metadata(at("first")).expect("stat").nlink(), 6);
        let mut all =
            ["dir", "fifo", "first", "kept", "link", "new", "newer", "older", "other"].map(str::to_owned);
        all.sort();
        assert_eq!(bench.ls(), all, "no temporary is left");
    }
}

/// Goal: what took the place of a file, or was written into it, gets none of its names; nor does one that was
/// never there.
/// Method: another file under its name with its size and time; a change in place; a file that is gone; an
/// entry that was not published.
#[test]
fn what_took_the_place_of_a_file_gets_no_names() {
    let replace = |first: &Path| {
        let time = fs::metadata(first).and_then(|stat| stat.modified()).expect("stat");
        let other = first.with_extension("new");
        fs::write(&other, "evil!").expect("write");
        fs::File::options().write(true).open(&other).expect("open").set_modified(time).expect("utimes");
        fs::rename(&other, first).expect("rename");
    };
    let change = |first: &Path| fs::write(first, "evil").expect("write");
    let remove = |first: &Path| fs::remove_file(first).expect("rm");
    let cases: [&dyn Fn(&Path); 3] = [&replace, &change, &remove];
    for (n, case) in cases.into_iter().enumerate() {
        let mut bench = with_first(5);
        case(&bench.root.join("first"));
        let got = join(&mut bench, item(2, "name")).expect("it is told");
        assert!(matches!(got, Joined::Apart(_)), "{n}: {got:?}");
        assert!(!bench.root.join("name").exists(), "{n}");
    }
    let mut bench = Bench::new();
    fs::write(bench.root.join("first"), "old").expect("write");
    bench.engine.as_ref().expect("running").lead(FIRST, DirId::ROOT, &name("first"));
    assert!(matches!(join(&mut bench, item(2, "name")), Ok(Joined::Apart(_))), "it has not its name yet");
    bench.engine.as_ref().expect("running").forget_lead(FIRST);
    assert!(matches!(join(&mut bench, item(2, "name")), Ok(Joined::Apart(_))));
    assert_eq!(bench.ls(), ["first"]);
}

/// Goal: a file that was found to be right has names too, and a symbolic link; a run that lost its job gives
/// none.
/// Method: a look at a file; a link that is made; then the owner's answer.
#[test]
fn found_files_and_links_have_names() {
    let dir = tempfile::tempdir().expect("tempdir");
    let root = dir.path().join("root");
    // What this run made is not looked into.
    fs::create_dir(&root).expect("mkdir");
    let mut bench = Bench::at(dir, root, |_| {});
    let first = file(FIRST.0, DirId::ROOT, "first", 3);
    fs::write(bench.root.join("first"), "old").expect("write");
    bench.engine.as_ref().expect("running").lead(first.id, first.parent, &first.name);
    bench.look(&first, None);
    assert!(matches!(join(&mut bench, item(2, "name")), Ok(Joined::Is(_))));
    assert_eq!(fs::metadata(bench.root.join("name")).expect("stat").nlink(), 2);
    let link = LinkItem {
        file: file(5, DirId::ROOT, "link", 0),
        target: b"nowhere"[..].into(),
        node: None,
        meta: META,
        owner: false,
        no_replace: false,
        force: false,
    };
    bench.engine.as_ref().expect("running").lead(FileId(5), DirId::ROOT, &name("link"));
    bench.run(SinkOp::MakeLinks { items: vec![link] }, b"");
    assert!(matches!(join(&mut bench, JoinItem { to: FileId(5), ..item(6, "l2") }), Ok(Joined::Is(_))));
    let inode = |text: &str| fs::symlink_metadata(bench.root.join(text)).expect("stat").ino();
    assert_eq!(inode("link"), inode("l2"));
    bench.lost.store(true, Ordering::SeqCst);
    join(&mut bench, item(3, "late")).expect_err("the job is another's");
    assert!(!bench.root.join("late").exists());
}
