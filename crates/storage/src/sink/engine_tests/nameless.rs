//! Small files that get their only name when they are published.

use super::*;

/// Writes a file of a bundle.
fn bundled(bench: &mut Bench, file: &SinkFile, data: &[u8]) {
    let items = vec![BundleWrite { file: file.clone(), start: 0, mode: META.mode }];
    match bench.run(SinkOp::WriteBundle { buffer: BufferId(0), items, more: false }, data) {
        SinkDone::WriteBundle { mut results, .. } => results.remove(0).1.expect("written"),
        other => panic!("{other:?}"),
    }
}

/// A bench with a file that was written and has no name; `None` where the file system has no such files.
fn nameless() -> Option<(Bench, SinkFile)> {
    let mut bench = Bench::new();
    let f = file(1, DirId::ROOT, "f", 3);
    bundled(&mut bench, &f, b"new");
    if !bench.ls().is_empty() {
        eprintln!("skipped: files need names here");
        return None;
    }
    Some((bench, f))
}

fn publish(bench: &mut Bench, f: &SinkFile, change: impl FnOnce(&mut Publish)) -> Result<(), Failure> {
    let mut item = whole(f, META);
    change(item.publish.as_mut().expect("set"));
    bench.commit_as_it_is(vec![item], vec![f.id]).remove(0)
}

/// Goal: a small file has no name before it is published, and then its own, with all that it is to be; one
/// that is given up leaves nothing.
#[test]
fn a_small_file_gets_one_name() {
    let Some((mut bench, f)) = nameless() else { return };
    publish(&mut bench, &f, |_| {}).expect("published");
    assert_eq!(fs::read(bench.root.join("f")).expect("read"), b"new");
    let stat = fs::metadata(bench.root.join("f")).expect("stat");
    assert_eq!((stat.mode() & 0o7777, stat.mtime(), stat.mtime_nsec()), (0o640, 1_600_000_000, 123_456_700));
    assert_eq!(stat.nlink(), 1);
    let g = file(2, DirId::ROOT, "g", 3);
    bundled(&mut bench, &g, b"old");
    bench.run(SinkOp::Discard { id: g.id }, b"");
    assert_eq!(bench.ls(), ["f"]);
    assert_eq!(bench.engine.as_ref().expect("running").left(), None);
}

/// Goal: what appeared at a name meanwhile stays, and the entry fails; what was found there is replaced.
/// Method: a file that appears, without and with a word that nothing is to be replaced, and one that was
/// looked at.
#[test]
fn what_stands_at_the_name_decides() {
    for (found, no_replace, replaced) in [(false, false, false), (false, true, false), (true, false, true)] {
        let Some((mut bench, f)) = nameless() else { return };
        fs::write(bench.root.join("f"), "mine").expect("write");
        let seen = seen_at(&bench.root.join("f")).filter(|_| found);
        let result =
            publish(&mut bench, &f, |publish| (publish.found, publish.no_replace) = (seen, no_replace));
        assert_eq!(result.is_ok(), replaced, "{result:?}");
        if let Err(failure) = result {
            assert_eq!(failure.errno, Errno::EXIST.raw_os_error());
        }
        let stands = fs::read(bench.root.join("f")).expect("read");
        assert_eq!(stands, if replaced { b"new".to_vec() } else { b"mine".to_vec() });
        assert_eq!(bench.ls(), ["f"]);
    }
}

/// Goal: what the journal may speak of, and what gets objects, has the name that it is looked for by; then it
/// is published as any other.
#[test]
fn what_is_promised_has_its_name() {
    for objects in [false, true] {
        let Some((mut bench, f)) = nameless() else { return };
        match objects {
            true => bench.write(&f, 0, b"new").expect("written"),
            false => {
                bench.commit(vec![CommitItem { id: f.id, publish: None }]).remove(0).expect("synced");
            }
        }
        assert_eq!(fs::read(bench.temp("f", TAG)).expect("it is there"), b"new");
        assert_eq!(fs::metadata(bench.temp("f", TAG)).expect("stat").mode() & 0o777, 0o600);
        publish(&mut bench, &f, |_| {}).expect("published");
        assert_eq!(bench.ls(), ["f"]);
    }
}

/// Goal: a run that lost its job gives no name.
#[test]
fn losers_give_no_name() {
    let Some((mut bench, f)) = nameless() else { return };
    bench.lost.store(true, Ordering::SeqCst);
    publish(&mut bench, &f, |_| {}).expect_err("the job is another's");
    assert_eq!(bench.ls(), [""; 0]);
}

/// Goal: a file that was made with its mode has it, whatever the umask took, and bits that are no
/// permissions.
/// Method: modes that every umask in use takes something of, and set-id bits.
#[test]
fn modes_are_whole() {
    for mode in [0o640, 0o666, 0o777, 0o400, 0o4755, 0o1644] {
        let Some((mut bench, _)) = nameless() else { return };
        let f = file(2, DirId::ROOT, "g", 3);
        let items = vec![BundleWrite { file: f.clone(), start: 0, mode }];
        bench.run(SinkOp::WriteBundle { buffer: BufferId(0), items, more: false }, b"new");
        // Set-id bits are kept where the owner is.
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        publish(&mut bench, &f, |publish| {
            (publish.meta, publish.owner) = (Meta { mode, uid, gid, ..META }, true);
        })
        .expect("published");
        assert_eq!(fs::metadata(bench.root.join("g")).expect("stat").mode() & 0o7777, mode, "{mode:o}");
    }
}

/// Goal: a file has the owner that it is to have, also where the file system gave it another when it was
/// made.
/// Method: a directory that hands on its group, and ids that are this process's and others'.
#[test]
fn owners_are_the_sources() {
    if !is_root() {
        eprintln!("skipped: files can be given to others by root alone");
        return;
    }
    for (inherits, ids) in [(false, (0, 0)), (true, (0, 0)), (true, (0, 12345)), (false, (12345, 0))] {
        let Some((mut bench, _)) = nameless() else { return };
        let mode = if inherits { 0o2755 } else { 0o755 };
        std::os::unix::fs::chown(&bench.root, None, Some(12345)).expect("chown");
        fs::set_permissions(&bench.root, fs::Permissions::from_mode(mode)).expect("chmod");
        let f = file(2, DirId::ROOT, "g", 3);
        bundled(&mut bench, &f, b"new");
        publish(&mut bench, &f, |publish| {
            let (uid, gid) = ids;
            (publish.meta, publish.owner) = (Meta { uid, gid, ..META }, true);
        })
        .expect("published");
        let stat = fs::metadata(bench.root.join("g")).expect("stat");
        assert_eq!((stat.uid(), stat.gid()), ids, "inherits: {inherits}");
    }
}
