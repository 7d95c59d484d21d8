use std::sync::Arc;

use super::*;
use crate::sink::engine::Sink;
use crate::sink::engine::tests::{Bench, META, TAG, config_root, file, name};
use crate::sink::names::temp_name;
use crate::sink::{EngineConfig, JobDir, JobKey, Journal, Patience};
use haul_core::transfer::op::{SinkDone, SinkOp};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// A temporary of the run `tag`, made below `dir`, which is made too.
fn left(dir: &Path, tag: u32, number: u64) -> PathBuf {
    fs::create_dir_all(dir).expect("mkdir");
    let name = temp_name(&name("f"), tag, number);
    let path = dir.join(std::ffi::OsStr::from_bytes(name.as_bytes()));
    fs::write(&path, "part").expect("write");
    path
}

/// A run after those of the tags 5 and 6, whose names are `d` and `e`, and whose journal spoke of these
/// parts.
fn job(config: &mut EngineConfig, parts: &[(u32, u64)]) {
    config.old_tags = vec![5, 6];
    config.left.names = Some(HashSet::from([name("d"), name("e")]));
    config.left.parts = parts.to_vec();
    config.left.clean = "the command".into();
    let place = JobDir::open(&config_root(config), JobKey::new(&[1; 16])).expect("a place");
    let mut journal = Journal::new(Arc::new(place.acquire(0, "test", &Patience::default()).expect("ours")));
    journal.replace(b"head").expect("replaced");
    config.journal = Some(journal);
}

fn ends(bench: &mut Bench) -> Result<(), Failure> {
    match bench.run(SinkOp::RemoveJournal, b"") {
        SinkDone::RemoveJournal { result } => result,
        other => panic!("{other:?}"),
    }
}

/// Goal: what earlier runs left goes from directories that this run did not come to, at any depth, and from
/// no others.
/// Method: a directory that is finished with one below that is not, one that is never asked for, deep ones
/// with two on each level, and one outside the job's names; other tags, links, directories and what another
/// user made there.
#[test]
fn leftovers_go_where_no_run_comes() {
    let mut bench = Bench::with(|config| job(config, &[(5, 1), (5, 2)]));
    let at = |path: &str| bench.root.join(path);
    let mut gone =
        vec![left(&bench.root, 5, 3), left(&at("d"), 5, 4), left(&at("d/x/y"), 5, 1), left(&at("e"), 6, 2)];
    let mut deep = at("e");
    for level in 0..OPEN_MAX + 20 {
        deep = deep.join("a");
        gone.push(left(&deep, 5, 100 + level as u64));
        gone.push(left(&deep.join("b"), 6, 200 + level as u64));
        gone.push(left(&deep.join("c/c"), 6, 300 + level as u64));
    }
    let mut kept = vec![left(&at("d/x"), 7, 1), left(&at("d/x"), TAG, 1), left(&at("other"), 5, 9)];
    kept.push(left(&bench._dir.path().join("outside"), 5, 1));
    std::os::unix::fs::symlink("../../outside", at("d/link")).expect("symlink");
    let dir = at("d/x").join(std::ffi::OsStr::from_bytes(temp_name(&name("g"), 5, 1).as_bytes()));
    fs::create_dir(&dir).expect("mkdir");
    kept.push(dir);
    if rustix::process::geteuid().is_root() {
        // Root gives files away, and others do not make root's.
        let given = left(&at("d/x"), 5, 11);
        std::os::unix::fs::chown(&given, Some(1500), None).expect("chown");
        gone.push(given);
    }
    let dir = bench.dir(1, DirId::ROOT, "d");
    bench.finish(vec![(dir, META)]).remove(0).expect("finished");
    ends(&mut bench).expect("over");
    let there = |paths: &[PathBuf]| paths.iter().filter(|path| path.exists()).count();
    assert_eq!((there(&gone), there(&kept)), (0, kept.len()));
    let journal = JobKey::new(&[1; 16]);
    assert!(!bench.root.join(format!(".haul~{}", journal.as_str())).exists());
}

/// Goal: a part that the journal speaks of is looked for everywhere below the destination, for its directory
/// may have been moved; one that a later run had taken over counts as met.
/// Method: the same tree outside the job's names; parts that are met and one that is not.
#[test]
fn missing_parts_are_looked_for_everywhere() {
    for (parts, found) in [(vec![(5, 1)], false), (vec![(5, 1), (5, 2)], true)] {
        let mut bench = Bench::with(|config| job(config, &parts));
        let met = left(&bench.root.join("d/x"), 6, 1);
        let moved = left(&bench.root.join("other/x/y"), 5, 2);
        ends(&mut bench).expect("over");
        assert!(!met.exists());
        assert_eq!(!moved.exists(), found, "{parts:?}");
    }
}

/// Goal: a part that was taken over, and one whose file has its name already, is missed by nobody, so that no
/// more is looked at.
/// Method: looks for both, as of a run before; what lies outside the job's names stays.
#[test]
fn parts_that_were_met_are_not_looked_for() {
    let files = [file(1, DirId(9), "f", 4), file(2, DirId(9), "g", 4)];
    let parts = files.each_ref().map(|file| (5, file.number));
    let mut bench = Bench::with(|config| job(config, &parts));
    let taken = left(&bench.root.join("d"), 5, files[0].number);
    fs::set_permissions(&taken, fs::Permissions::from_mode(0o600)).expect("chmod");
    fs::write(bench.root.join("d/g"), "here").expect("write");
    bench.dir(9, DirId::ROOT, "d");
    let unseen = left(&bench.root.join("other"), 5, 2);
    assert!(bench.look(&files[0], Some(5)).adopted);
    assert!(!bench.look(&files[1], Some(5)).adopted);
    ends(&mut bench).expect("over");
    assert!(unseen.exists());
}

/// Goal: what other users made is left where the job is not root's.
/// Method: a run whose files are another's, by what it learnt when it began.
#[test]
fn leftovers_of_others_are_left() {
    let mut bench = Bench::with(|config| {
        job(config, &[]);
        config.adopt.ours.as_mut().expect("learnt").uid += 1500;
    });
    let others = left(&bench.root.join("d/x"), 5, 1);
    ends(&mut bench).expect("over");
    assert!(others.exists());
}

/// Goal: a run that lost its job removes nothing where it did not come.
/// Method: the job is lost while the run ends, after the first look.
#[test]
fn a_run_that_lost_its_job_sweeps_nothing() {
    let asked = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let count = asked.clone();
    let mut bench = Bench::with(|config| {
        job(config, &[]);
        config.still_owner = Arc::new(move || match count.fetch_add(1, Ordering::SeqCst) {
            0 => Ok(()),
            _ => Err(fault::failure(FailureKind::Publish, 0, "lost")),
        });
    });
    let path = left(&bench.root.join("d/x"), 5, 1);
    asked.store(0, Ordering::SeqCst);
    assert!(ends(&mut bench).is_err());
    assert!(path.exists());
}

/// Goal: an engine that is asked to end does not look at all directories first, and the journal stays.
/// Method: asked to end while the run sees whether the job is still its own, before the first directory.
#[test]
fn a_stop_ends_the_sweep() {
    let sink: Arc<std::sync::OnceLock<Arc<Sink>>> = Arc::default();
    let asked = sink.clone();
    let mut bench = Bench::with(|config| {
        job(config, &[]);
        config.still_owner = Arc::new(move || {
            while asked.get().is_some_and(|sink| !sink.ends.load(Ordering::Relaxed)) {
                std::thread::yield_now();
            }
            Ok(())
        });
    });
    let path = left(&bench.root.join("d/x"), 5, 1);
    let engine = bench.engine.as_ref().expect("running");
    assert!(sink.set(engine.sink.clone()).is_ok());
    bench.submit(SinkOp::RemoveJournal, b"");
    bench.engine.take().expect("running").join();
    assert!(path.exists());
    let journal = format!(".haul~{}", JobKey::new(&[1; 16]).as_str());
    assert!(bench.root.join(journal).exists());
}
