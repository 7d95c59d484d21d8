use super::super::life::{Ended, judge, process};
use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Instant;

fn place(dir: &Path) -> JobDir {
    JobDir::open(dir, JobKey::new(&[1; 16])).expect("a place")
}

/// Short enough for a test; nothing is asserted on time.
fn short() -> Patience {
    Patience {
        takes_unproven: true,
        watch: Duration::from_millis(60),
        poll: Duration::from_millis(5),
        beat: Duration::from_millis(5),
        notice: Duration::ZERO,
        ending: Duration::from_secs(60),
        takes_from_waiting: true,
    }
}

fn plant(place: &JobDir, epoch: u32, change: impl FnOnce(&mut OwnerInfo)) -> PathBuf {
    let mut info = OwnerInfo { epoch, what: "planted".into(), ..(*place.here).clone() };
    change(&mut info);
    let name = place.key.owner(epoch);
    let path = place.path.join(String::from_utf8(name.as_bytes().to_vec()).expect("ASCII"));
    fs::write(&path, encode(&info)).expect("write");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
    path
}

/// A process that has ended and was waited for.
fn dead_pid() -> i32 {
    let mut child = Command::new("true").spawn().expect("true");
    child.wait().expect("wait");
    child.id() as i32
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .expect("ls")
        .map(|e| e.expect("entry").file_name().into_string().expect("ASCII"))
        .collect();
    names.sort();
    names
}

/// Goal: a job has one owner at a time, who is named; a released one can be taken again with the floor kept.
/// Method: acquire twice, release, acquire above a journal's epoch.
#[test]
fn second_run_is_told_who_holds_the_job() {
    let dir = tempfile::tempdir().expect("tempdir");
    let first = place(dir.path()).acquire(0, "first", &short()).expect("ours");
    assert_eq!(first.epoch(), 1);
    first.still_owner().expect("ours");
    match place(dir.path()).acquire(7, "second", &short()) {
        Err(AcquireError::Held(info)) => {
            assert_eq!((info.pid, info.what.as_str()), (std::process::id() as i32, "first"));
        }
        _ => panic!("two owners"),
    }
    drop(first);
    assert!(names(dir.path()).is_empty());
    let third = place(dir.path()).acquire(7, "third", &short()).expect("ours");
    assert_eq!(third.epoch(), 8);
    third.release();
    assert!(third.still_owner().is_err());
}

/// Goal: an owner that leaves says what it was, publishes nothing more, and the next has the job at once as
/// that of a dead one, also while this process lives.
#[test]
fn an_owner_that_leaves_is_known_and_dead() {
    let dir = tempfile::tempdir().expect("tempdir");
    let owner = place(dir.path()).acquire(0, "copy of a to b", &short()).expect("ours");
    owner.leave();
    assert!(owner.still_owner().is_err());
    drop(owner);
    let place = place(dir.path());
    let seen = place.look(1).expect("read").expect("there").info.expect("whole");
    assert_eq!(
        (seen.what.as_str(), seen.over, judge(&seen, place.here())),
        ("copy of a to b", true, Life::Dead)
    );
    let next = place.acquire(0, "next", &short()).expect("at once");
    assert!(!next.follows_unproven());
    next.release();
    assert!(names(dir.path()).is_empty());
}

/// Goal: sixteen different jobs live side by side in one directory.
/// Method: sixteen keys, all held at once.
#[test]
fn different_jobs_do_not_meet() {
    let dir = tempfile::tempdir().expect("tempdir");
    let owners: Vec<_> = (0..16u8)
        .map(|i| {
            let place = JobDir::open(dir.path(), JobKey::new(&[i; 16])).expect("a place");
            place.acquire(0, "one of many", &short()).expect("ours")
        })
        .collect();
    for owner in &owners {
        owner.still_owner().expect("ours");
    }
    assert_eq!(names(dir.path()).len(), 16);
}

/// Goal: an owner whose process is gone, is a zombie, or is another process with its id is taken over at
/// once, and a process that lives is not.
/// Method: planted owners on this machine; `watch` is so long that waiting for it would be seen.
#[test]
fn dead_processes_are_taken_over_at_once() {
    let never = Patience { watch: Duration::from_secs(3600), ..short() };
    let mut zombie = Command::new("true").spawn().expect("true");
    let id = zombie.id().to_string();
    while process(&id).is_none_or(|process| process.ended != Ended::Wholly) {
        std::thread::yield_now();
    }
    let cases: [(&str, i32, u64, bool); 4] = [
        ("gone", dead_pid(), 1, true),
        ("zombie", zombie.id() as i32, 1, true),
        ("other", std::process::id() as i32, 1, true),
        ("alive", std::process::id() as i32, process("self").expect("of this").start, false),
    ];
    for (what, pid, start, dead) in cases {
        let dir = tempfile::tempdir().expect("tempdir");
        let place = place(dir.path());
        let path = plant(&place, 4, |info| (info.pid, info.pid_start) = (pid, start));
        match place.acquire(2, "taker", &never) {
            Ok(owner) => {
                assert!(dead, "{what}");
                assert_eq!(owner.epoch(), 5);
                assert!(!path.exists());
            }
            Err(AcquireError::Held(info)) => assert!(!dead && info.what == "planted", "{what}"),
            Err(other) => panic!("{what}: {other}"),
        }
    }
    zombie.wait().expect("wait");
}

/// Goal: of many that find a dead owner at the same moment, exactly one gets the job.
/// Method: 30 rounds of 8 threads behind a barrier; everyone who got it still owns it at the end.
#[test]
fn one_of_many_takers_wins() {
    let gone = dead_pid();
    // A slow machine must not make a taker that has not written its file yet look dead.
    let patient = Patience { watch: Duration::from_secs(3600), ..short() };
    for round in 0..30 {
        let dir = tempfile::tempdir().expect("tempdir");
        // Half of the rounds begin without any owner.
        if round % 2 == 0 {
            plant(&place(dir.path()), 3, |info| (info.pid, info.pid_start) = (gone, 1));
        }
        let barrier = std::sync::Barrier::new(8);
        let owners: Vec<Owner> = std::thread::scope(|scope| {
            let takers: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        let place = place(dir.path());
                        barrier.wait();
                        match place.acquire(0, "taker", &patient) {
                            Ok(owner) => Some(owner),
                            Err(AcquireError::Held(_)) => None,
                            Err(other) => panic!("{other}"),
                        }
                    })
                })
                .collect();
            takers.into_iter().filter_map(|taker| taker.join().expect("no panic")).collect()
        });
        assert_eq!(owners.len(), 1, "round {round}");
        owners[0].still_owner().expect("the winner owns it");
    }
}

/// Goal: whoever made an owner file that another run has overtaken meanwhile does not own the job, and leaves
/// nothing.
/// Method: a file is made as for a job whose owner was looked at before a higher one came.
#[test]
fn a_taker_that_is_overtaken_gives_up() {
    let dir = tempfile::tempdir().expect("tempdir");
    let place = place(dir.path());
    plant(&place, 5, |_| {});
    let before = names(dir.path());
    assert!(place.create(3, "late", &[2], &short(), false).expect("no error").is_none());
    assert_eq!(names(dir.path()), before);
}

/// Goal: an owner on another machine is taken over when its counter stands still, and is left alone while it
/// beats; so is one in another process namespace or on a machine with a cloned id.
/// Method: planted foreign owners; a thread that beats until the taker has answered.
#[test]
fn foreign_owners_are_judged_by_their_beat() {
    let changes: [fn(&mut OwnerInfo); 4] = [
        // Nobody says which machine it was.
        |info| (info.machine_id, info.boot) = (String::new(), "other".into()),
        |info| (info.machine_id, info.boot) = ("other".into(), "other".into()),
        |info| info.pid_ns = "pid:[1]".into(),
        |info| (info.host, info.boot) = ("clone".into(), "other".into()),
    ];
    for change in changes {
        let dir = tempfile::tempdir().expect("tempdir");
        let place = place(dir.path());
        let path = plant(&place, 1, change);
        let patient = Patience { watch: Duration::from_secs(3600), ..short() };
        let answered = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let file = fs::OpenOptions::new().write(true).open(&path).expect("open");
                let mut info = OwnerInfo { epoch: 1, ..(*place.here).clone() };
                change(&mut info);
                while !answered.load(Ordering::Acquire) {
                    info.beat += 1;
                    std::os::unix::fs::FileExt::write_all_at(&file, &encode(&info), 0).expect("beat");
                    std::thread::yield_now();
                }
            });
            let held = matches!(place.acquire(0, "taker", &patient), Err(AcquireError::Held(_)));
            answered.store(true, Ordering::Release);
            assert!(held);
        });
        let owner = place.acquire(0, "taker", &short()).expect("taken over");
        assert_eq!(owner.epoch(), 2);
        assert!(!path.exists());
    }
}

/// Goal: a reboot kills owners of the same machine, known by host and machine id.
/// Method: another boot id, all else the same; waiting would be seen.
#[test]
fn reboot_ends_ownership() {
    let dir = tempfile::tempdir().expect("tempdir");
    let mut place = place(dir.path());
    // A machine that shows who it is, which this one need not.
    place.here = Arc::new(OwnerInfo { machine_id: "this one".into(), ..(*place.here).clone() });
    plant(&place, 1, |info| info.boot = "an earlier one".into());
    let never = Patience { watch: Duration::from_secs(3600), ..short() };
    assert_eq!(place.acquire(0, "taker", &never).expect("taken over").epoch(), 2);
}

/// Goal: an owner that was taken over sees it, whether or not its file is removed yet, and leaves the new
/// owner's file alone; junk in an owner file is waited out, not believed.
/// Method: the states of a takeover made by hand.
#[test]
fn former_owner_sees_the_takeover() {
    let dir = tempfile::tempdir().expect("tempdir");
    let place = place(dir.path());
    let old = place.acquire(0, "old", &short()).expect("ours");
    let new = plant(&place, 2, |_| {});
    assert!(old.still_owner().is_err());
    fs::remove_file(dir.path().join(&names(dir.path())[0])).expect("rm");
    assert!(old.still_owner().is_err());
    // Its name is taken by a file of somebody else, and a higher one came and went.
    plant(&place, 1, |_| {});
    fs::remove_file(&new).expect("rm");
    assert!(old.still_owner().is_err());
    plant(&place, 2, |_| {});
    drop(old);
    assert_eq!(names(dir.path()).len(), 2);
    fs::write(&new, b"{\"pid\":").expect("junk");
    assert_eq!(place.acquire(0, "taker", &short()).expect("taken over").epoch(), 3);
}

/// Goal: the counter of an owner goes up by itself.
/// Method: read until it has changed twice.
#[test]
fn owners_beat() {
    let dir = tempfile::tempdir().expect("tempdir");
    let place = place(dir.path());
    let owner = place.acquire(0, "x".repeat(5000).as_str(), &short()).expect("ours");
    let beat =
        || place.look(owner.epoch()).expect("look").and_then(|seen| seen.info).map_or(0, |info| info.beat);
    while beat() < 2 {
        std::thread::yield_now();
    }
    owner.still_owner().expect("ours");
}

/// Goal: a taker that looked too early yields: to a higher owner, and to a lower one that it did not know of
/// and that lives; one that it knew to be deposed goes.
/// Method: the owner file is made as after a look at a directory that has changed since.
#[test]
fn late_takers_yield() {
    let dir = tempfile::tempdir().expect("tempdir");
    let place = place(dir.path());
    plant(&place, 5, |_| {});
    assert!(matches!(place.create(4, "late", &[], &short(), false), Ok(None)));
    assert!(matches!(place.create(6, "late", &[], &short(), false), Err(AcquireError::Held(_))));
    assert_eq!(names(dir.path()).len(), 1);
    let owner = place.create(6, "taker", &[5], &short(), false).expect("made").expect("ours");
    assert_eq!(names(dir.path()).len(), 1);
    owner.still_owner().expect("ours");
}

/// Goal: an owner that waits in the dark gives the job to a run that is there, and publishes nothing more.
/// Method: a live owner of this very process, which no judge holds for dead, says so.
#[test]
fn a_yielding_owner_is_taken_over() {
    let dir = tempfile::tempdir().expect("a directory");
    let place = place(dir.path());
    let first = place.acquire(0, "first", &short()).expect("nobody has it");
    assert!(matches!(place.acquire(0, "second", &short()), Err(AcquireError::Held(_))));
    first.set_yields(true);
    let deadline = Instant::now() + Duration::from_secs(30);
    let second = loop {
        match place.acquire(0, "second", &short()) {
            Ok(owner) => break owner,
            Err(_) => assert!(Instant::now() < deadline, "it is never given away"),
        }
    };
    assert!(second.epoch() > first.epoch() && second.still_owner().is_ok());
    while first.still_owner().is_ok() {
        assert!(Instant::now() < deadline, "it does not see that it lost the job");
    }
}

/// Goal: an owner that waits for its network gives way to no one who would remove its files; a dead one that
/// waited does.
/// Method: a live owner of this very process says that it waits; then what it said stays behind a process
/// that is gone.
#[test]
fn who_waits_gives_way_to_runs_only() {
    let dir = tempfile::tempdir().expect("a directory");
    let place = place(dir.path());
    let cleaner = Patience { takes_from_waiting: false, ..short() };
    for (info, held) in [((std::process::id() as i32, true), true), ((dead_pid(), false), false)] {
        let (pid, lives) = info;
        plant(&place, 1, |info| {
            (info.yields, info.pid) = (true, pid);
            info.pid_start = if lives { info.pid_start } else { 1 };
        });
        let taken = place.acquire(0, "haul clean", &cleaner);
        assert_eq!(matches!(taken, Err(AcquireError::Held(_))), held, "{lives}");
        assert_eq!(taken.is_ok(), !held, "{lives}");
    }
    plant(&place, 1, |info| info.yields = true);
    place.acquire(0, "a run", &short()).expect("taken over");
}

/// Goal: whether the former owner is proven dead is told, and is not forgotten by a chain of owners: one that
/// took the job from an unproven one and died before its journal said so is itself no proof.
/// Method: owners that are gone, that are silent, that follow an unproven one; and one that gives up before
/// it has settled.
#[test]
fn unproven_owners_are_remembered() {
    let gone = dead_pid();
    type Change = fn(&mut OwnerInfo);
    let silent: Change = |info| (info.machine_id, info.boot) = ("other".into(), "other".into());
    let dead: Change = |info| info.pid_start = 1;
    let follows: Change = |info| (info.pid_start, info.follows_unproven) = (1, true);
    let yields: Change = |info| info.yields = true;
    for (what, change, unproven) in [
        ("dead", dead, false),
        ("silent", silent, true),
        ("follows", follows, true),
        ("yields", yields, true),
    ] {
        let dir = tempfile::tempdir().expect("tempdir");
        let place = place(dir.path());
        plant(&place, 1, |info| {
            if what == "dead" || what == "follows" {
                info.pid = gone;
            }
            change(info);
        });
        let owner = place.acquire(0, "taker", &short()).expect("taken over");
        assert_eq!(owner.follows_unproven(), unproven, "{what}");
        if unproven {
            owner.release();
            assert_eq!(names(dir.path()).len(), 1, "{what}: only its file says whom it followed");
            // This very process lives on, and gives the job away.
            let patient = Patience { notice: Duration::from_secs(60), ..short() };
            let next = place.acquire(0, "next", &patient).expect("taken over");
            assert!(next.follows_unproven(), "{what}");
            next.settle();
            next.release();
        } else {
            owner.release();
        }
        assert!(names(dir.path()).is_empty(), "{what}");
        assert!(!place.acquire(0, "last", &short()).expect("free").follows_unproven(), "{what}");
    }
}

/// Goal: an owner that ends is waited for, and then nothing is unproven; whoever waits can be stopped, and
/// has taken nothing.
/// Method: an owner of this very process that says that it ends; a taker that is stopped at its first
/// question, then one in whose wait the owner goes.
#[test]
fn an_ending_owner_is_waited_for() {
    let dir = tempfile::tempdir().expect("tempdir");
    let place = place(dir.path());
    let mut first = Some(place.acquire(0, "first", &short()).expect("nobody has it"));
    first.as_ref().expect("there").set_ends(true);
    while !place.look(1).expect("look").and_then(|seen| seen.info).is_some_and(|info| info.ends) {
        std::thread::yield_now();
    }
    let stopped = place.acquire_unless(0, "second", &short(), &mut |_| true);
    assert!(matches!(stopped, Err(AcquireError::Stopped)));
    first.as_ref().expect("there").still_owner().expect("undisturbed");
    let mut told = Vec::new();
    let third = place.acquire_unless(0, "third", &short(), &mut |text| {
        told.push(text.to_owned());
        drop(first.take());
        false
    });
    assert!(!third.expect("ours").follows_unproven());
    assert!(told[0].contains("waiting for the run before to end"), "{told:?}");
}

/// Goal: a stop is heeded while a frozen owner is watched, and the job is not taken.
/// Method: a silent owner, a watch that never ends; stopped at the third question.
#[test]
fn a_watch_can_be_stopped() {
    let dir = tempfile::tempdir().expect("tempdir");
    let place = place(dir.path());
    let path = plant(&place, 1, |info| info.pid_ns = "pid:[1]".into());
    let never = Patience { watch: Duration::from_secs(3600), ..short() };
    let mut asked = 0;
    let stopped = place.acquire_unless(0, "taker", &never, &mut |_| {
        asked += 1;
        asked == 3
    });
    assert!(matches!(stopped, Err(AcquireError::Stopped)));
    assert!(path.exists() && names(dir.path()).len() == 1);
}

/// Goal: owner files and journals of another user are refused by name, and what others may write is not
/// believed.
/// Method: a dead owner and a journal, each given to another user (as root), and opened to all.
#[test]
fn jobs_of_others_are_refused() {
    let gone = dead_pid();
    for journal in [false, true] {
        for another in [false, true] {
            let dir = tempfile::tempdir().expect("tempdir");
            let place = place(dir.path());
            let path = match journal {
                true => {
                    let path = dir.path().join(format!(".haul~{}", place.key().as_str()));
                    fs::write(&path, "forged").expect("write");
                    path
                }
                false => plant(&place, 1, |info| (info.pid, info.pid_start) = (gone, 1)),
            };
            if another {
                if std::os::unix::fs::chown(&path, Some(12345), None).is_err() {
                    eprintln!("skipped: a file can be given away by root only");
                    continue;
                }
                fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
            } else {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("chmod");
            }
            let text = match journal {
                true => place.load(&mut |_| panic!("believed")).expect_err("refused").text.to_string(),
                false => place.acquire(0, "taker", &short()).err().expect("refused").to_string(),
            };
            assert!(text.contains(".haul~"), "{text}");
            let why = if another { "belongs to user 12345" } else { "others may write it" };
            assert!(text.contains(why), "{text}");
            assert!(path.exists(), "it is not ours to remove");
        }
    }
}
