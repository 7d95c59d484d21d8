//! Runs that are killed, stopped, doubled: nothing torn has a name, and the same command completes the job.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal};

use crate::support::compare::{ALL, BELOW, assert_no_debris, assert_none_torn, assert_same, debris};
use crate::support::run::{Haul, Running};
use crate::support::sshd::Sshd;
use crate::support::way::{Way, contents};
use crate::support::{Room, number_from_env, procs, set_mode, tree};

/// What may be in flight or in an open epoch when a run is stopped in order, bytes.
const IN_FLIGHT_MAX: u64 = 64 << 20;

/// Looks at the bytes written between two sweeps of all processes.
const SWEEP_EVERY: u32 = 16;

/// Who is killed.
#[derive(Clone, Copy)]
enum End {
    Near,
    Far,
    Both,
}

/// A tree to copy and where to, with its size.
struct Job {
    room: Room,
    data: PathBuf,
    bytes: u64,
}

impl Job {
    fn new(seed: u64, files: usize, big: usize) -> Job {
        let room = Room::new();
        let data = room.dir("data");
        tree::plain(&data, seed, files, big);
        let (_, bytes) = tree::totals(&data);
        Job { room, data, bytes }
    }

    fn haul(&self, way: &Way, sink: &Path) -> Haul {
        way.cp(&["-r"], &[&self.data], sink)
    }

    /// Starts a copy and waits until about this much of it is written. `None`: it was over before.
    fn start_until(&self, way: &Way, sink: &Path, written: u64) -> Option<Running> {
        until_written(self.haul(way, sink).start(), way, written)
    }

    /// The same command again: it completes, leaves no debris and says what it sent.
    fn completes(&self, way: &Way, sink: &Path) -> u64 {
        let summary = self.haul(way, sink).run().sane().exits(0).summary();
        assert_same(&self.data, &sink.join("data"), ALL);
        assert_no_debris(sink);
        let sent = summary.number("bytes_sent");
        assert!(sent <= self.bytes, "{sent} of {} bytes were sent by a run that resumed", self.bytes);
        sent
    }
}

/// Waits until about this much is written by a run. `None`: it was over before.
fn until_written(mut run: Running, way: &Way, written: u64) -> Option<Running> {
    let (mut looks, mut pids) = (0, Vec::new());
    let reached = run.until(|run| {
        // The far end comes later than the near one. A look at all processes costs more than one at ours.
        if looks % SWEEP_EVERY == 0 {
            pids = both_ends(way, run);
        }
        looks += 1;
        procs::written(&pids) >= written
    });
    reached.then_some(run)
}

fn far_mark(way: &Way) -> Option<&str> {
    match way {
        Way::Here => None,
        Way::Push(sshd) | Way::Pull(sshd) => Some(&sshd.mark),
    }
}

fn far(way: &Way) -> Vec<Pid> {
    far_mark(way).map(procs::marked).unwrap_or_default()
}

fn both_ends(way: &Way, run: &Running) -> Vec<Pid> {
    run.near().into_iter().chain(far(way)).collect()
}

/// Waits until both ends of a run are gone: a far end that has lost its near end closes its epoch first.
fn wait_gone(way: &Way, near_mark: &str) {
    procs::wait_gone(near_mark);
    if let Some(mark) = far_mark(way) {
        procs::wait_gone(mark);
    }
}

/// Kills one end at many moments, each in a fresh destination, and resumes.
fn kill_and_resume(way: &Way, end: End) {
    let kills = number_from_env("HAUL_TEST_KILLS", 6);
    let seed = number_from_env("HAUL_TEST_SEED", 1);
    let mut rng = fastrand::Rng::with_seed(seed);
    let job = Job::new(20, 300, 24 << 20);
    let mut hits = 0;
    for round in 0..kills {
        // Spread over the run, so that few kills cover it too.
        let moment = job.bytes * round / kills + rng.u64(0..job.bytes / kills);
        let sink = job.room.dir(&format!("sink{round}"));
        let Some(run) = job.start_until(way, &sink, moment) else {
            continue;
        };
        hits += 1;
        let mark = run.mark.clone();
        match end {
            End::Near => run.signal(Signal::KILL),
            End::Far => procs::signal_all(&far(way), Signal::KILL),
            End::Both => procs::signal_all(&both_ends(way, &run), Signal::KILL),
        }
        let ended = run.wait().sane();
        if matches!(end, End::Far) && ended.status.code() != Some(0) {
            ended.exits(1);
        }
        wait_gone(way, &mark);
        assert_none_torn(&job.data, &sink.join("data"));
        job.completes(way, &sink);
    }
    assert!(hits > 0, "no kill of {kills} hit a run");
}

/// Goal: after SIGKILL at any moment nothing torn has a name, and the same command completes the copy.
/// Method: kills spread over the bytes written, every byte compared after the rerun.
#[test]
fn a_local_copy_survives_kills() {
    kill_and_resume(&Way::Here, End::Near);
}

/// Goal, method: as above; the near end of a push.
#[test]
fn a_push_survives_kills_of_the_near_end() {
    need!("sshd");
    kill_and_resume(&Way::Push(Sshd::start()), End::Near);
}

/// Goal, method: as above; the far end of a push. The near end says so with code 1 and outlives nothing.
#[test]
fn a_push_survives_kills_of_the_far_end() {
    need!("sshd");
    kill_and_resume(&Way::Push(Sshd::start()), End::Far);
}

/// Goal, method: as above; the near end of a pull.
#[test]
fn a_pull_survives_kills_of_the_near_end() {
    need!("sshd");
    kill_and_resume(&Way::Pull(Sshd::start()), End::Near);
}

/// Goal, method: as above; the far end of a pull.
#[test]
fn a_pull_survives_kills_of_the_far_end() {
    need!("sshd");
    kill_and_resume(&Way::Pull(Sshd::start()), End::Far);
}

/// Goal, method: as above; both ends at once, as when a site loses power but not its disks.
#[test]
fn a_push_survives_kills_of_both_ends() {
    need!("sshd");
    kill_and_resume(&Way::Push(Sshd::start()), End::Both);
}

/// Kills a local copy when one of its threads makes the nth of these calls, and resumes.
fn kill_at_call(calls: &str, nths: &[u32]) {
    let job = Job::new(21, 100, 12 << 20);
    let mut hits = 0;
    for nth in nths {
        let sink = job.room.dir(&format!("sink{nth}"));
        let injection = format!("{calls}:signal=SIGKILL:when={nth}");
        let run = job.haul(&Way::Here, &sink).injected(&[injection]).start();
        let mark = run.mark.clone();
        let ended = run.wait().sane();
        hits += u32::from(ended.was_killed());
        procs::wait_gone(&mark);
        assert_none_torn(&job.data, &sink.join("data"));
        job.completes(&Way::Here, &sink);
    }
    assert!(hits > 0, "no thread made a call of {calls} {nths:?} times");
}

/// Goal: a kill between any two writes loses nothing.
/// Method: strace kills at the nth write of a thread.
#[test]
fn kills_at_writes_lose_nothing() {
    need!("strace");
    kill_at_call("write,pwrite64,pwritev,pwritev2,writev,copy_file_range", &[1, 2, 3, 5, 9]);
}

/// Goal: a kill between any two syncs loses nothing.
/// Method: strace kills at the nth sync of a thread.
#[test]
fn kills_at_syncs_lose_nothing() {
    need!("strace");
    kill_at_call("fsync,fdatasync,sync_file_range,syncfs", &[1, 2, 3, 5, 9]);
}

/// Goal: a kill around any change of a name loses nothing.
/// Method: strace kills at the nth rename, link or unlink of a thread.
#[test]
fn kills_at_renames_lose_nothing() {
    need!("strace");
    kill_at_call("/^rename", &[1, 2, 7, 30]);
    kill_at_call("linkat", &[1, 2, 7, 30]);
    kill_at_call("/^unlink", &[1, 2]);
}

/// Goal: Ctrl-C closes the open epoch: code 130, a word about resuming, and what was sent is not sent again.
/// Method: the signal at a quarter of the copy, to haul and to its ssh as a terminal does; the bytes of both
/// runs.
#[test]
fn ctrl_c_loses_only_what_is_in_flight() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        for way in Way::all() {
            let job = Job::new(22, 200, 160 << 20);
            let sink = job.room.dir("sink");
            let run = job.start_until(&way, &sink, job.bytes / 4).expect("the copy lasts until the signal");
            let mark = run.mark.clone();
            procs::signal_all(&procs::marked_ssh(&mark), signal);
            run.signal(signal);
            let ended = run.wait().sane();
            if ended.status.code() == Some(0) {
                // The signal came too late.
                assert_same(&job.data, &sink.join("data"), ALL);
                continue;
            }
            let first = ended.exits(code).says("resum").summary();
            assert_eq!(first.text("status"), "interrupted");
            wait_gone(&way, &mark);
            assert_none_torn(&job.data, &sink.join("data"));
            let second = job.completes(&way, &sink);
            let first = first.number("bytes_sent");
            assert!(second < job.bytes, "{}: everything was sent again", way.name());
            assert!(
                first + second <= job.bytes + IN_FLIGHT_MAX,
                "{}: {first} and {second} of {} bytes sent",
                way.name(),
                job.bytes
            );
        }
    }
}

/// Many small files whose syncs take their time, beside a few large ones: bytes of all.
fn mixed(room: &Room) -> (PathBuf, u64) {
    let data = room.dir("data");
    let (small, large) = (room.dir("data/small"), room.dir("data/large"));
    for i in 0..6000_u32 {
        room.file(&format!("data/small/f{i}"), i.to_string().repeat(20));
    }
    assert!(small.exists());
    let mut rng = fastrand::Rng::with_seed(29);
    for i in 0..3 {
        let mut bytes = vec![0; 100 << 20];
        rng.fill(&mut bytes);
        std::fs::write(large.join(format!("f{i}")), bytes).expect("write");
    }
    let (_, bytes) = tree::totals(&data);
    (data, bytes)
}

/// Goal: after an orderly stop hardly anything goes again, and after a kill only the last moments do, also
/// where many small files, each of which is a sync of its own, are copied beside large ones.
/// Method: publications that take 10 ms each, and a second where many are synced together; a stop, and a
/// kill, when two thirds are written; bytes of both runs.
#[test]
fn small_files_hold_up_no_large_ones() {
    need!("strace");
    let room = Room::new();
    let (data, bytes) = mixed(&room);
    for (signal, code, most) in
        [(Signal::TERM, Some(143), IN_FLIGHT_MAX), (Signal::KILL, None, 2 * IN_FLIGHT_MAX)]
    {
        let sink = room.dir(&format!("sink{}", signal.as_raw()));
        let slow = ["fsync:delay_enter=10000", "syncfs:delay_enter=1s"].map(String::from);
        let run = Way::Here.cp(&["-r", "--rate=100MB/s"], &[&data], &sink).injected(&slow).start();
        let run = until_written(run, &Way::Here, bytes / 3 * 2).expect("the copy lasts until the signal");
        let mark = run.mark.clone();
        let written = procs::written(&run.near());
        run.signal(signal);
        let ended = run.wait().sane();
        assert!(code.is_none() || ended.status.code() == code, "{}", ended.describe());
        procs::wait_gone(&mark);
        assert_none_torn(&data, &sink.join("data"));
        let first = match code {
            Some(_) => ended.summary().number("bytes_sent"),
            None => written,
        };
        let second =
            Way::Here.cp(&["-r"], &[&data], &sink).run().sane().exits(0).summary().number("bytes_sent");
        assert_same(&data, &sink.join("data"), ALL);
        assert!(first + second <= bytes + most, "{signal:?}: {first} and {second} of {bytes} bytes");
    }
}

/// Goal: a second Ctrl-C ends the run at once, whatever the far end does.
/// Method: the far end is frozen, so that no epoch can be closed.
#[test]
fn a_second_ctrl_c_does_not_wait() {
    need!("sshd");
    let way = Way::Push(Sshd::start());
    let job = Job::new(23, 10, 96 << 20);
    let sink = job.room.dir("sink");
    let run = job.start_until(&way, &sink, 1 << 20).expect("the copy lasts until the signal");
    let mark = run.mark.clone();
    let frozen = far(&way);
    procs::signal_all(&frozen, Signal::STOP);
    run.signal(Signal::INT);
    // Two signals of one number in one go would be one.
    procs::wait_until(std::time::Duration::from_millis(300), || false);
    run.signal(Signal::INT);
    run.wait().sane().exits(130);
    procs::signal_all(&frozen, Signal::CONT);
    wait_gone(&way, &mark);
    job.completes(&way, &sink);
}

/// Goal: a second run of the same job names the first and leaves; the first is not disturbed.
/// Method: the first is frozen half-way, so that it is there for certain; `clean` keeps off it too.
#[test]
fn a_second_run_names_the_first_and_leaves() {
    for way in Way::all() {
        let job = Job::new(24, 100, 64 << 20);
        let sink = job.room.dir("sink");
        let run = job.start_until(&way, &sink, 4 << 20).expect("the copy lasts until it is frozen");
        let ends = both_ends(&way, &run);
        procs::signal_all(&ends, Signal::STOP);
        let refused = job.haul(&way, &sink).run().sane().exits(1);
        let named = ends.iter().any(|pid| refused.stderr.contains(&pid.as_raw_nonzero().to_string()));
        let left = debris(&sink);
        let cleaned = Haul::new(["clean"]).args([&sink]).run().sane();
        let kept = debris(&sink);
        procs::signal_all(&ends, Signal::CONT);
        run.wait().sane().exits(0);
        assert!(named, "{}: the first run's process is not named\n{}", way.name(), refused.describe());
        assert_eq!(kept, left, "clean took what a running job needs\n{}", cleaned.describe());
        assert_same(&job.data, &sink.join("data"), ALL);
        assert_no_debris(&sink);
    }
}

/// Goal: jobs with different sources into one directory do not know each other.
/// Method: sixteen at once, every tree compared.
#[test]
fn sixteen_jobs_share_a_destination() {
    let room = Room::new();
    let sink = room.dir("sink");
    let sources: Vec<PathBuf> = (0..16).map(|index| room.dir(&format!("data{index}"))).collect();
    for (seed, source) in sources.iter().enumerate() {
        tree::plain(source, seed as u64, 40, 2_000_000);
    }
    let runs: Vec<Running> =
        sources.iter().map(|source| Way::Here.cp(&["-r"], &[source], &sink).start()).collect();
    for run in runs {
        run.wait().sane().exits(0);
    }
    for (index, source) in sources.iter().enumerate() {
        assert_same(source, &sink.join(format!("data{index}")), ALL);
    }
    assert_no_debris(&sink);
}

/// Goal: a job belongs to its destination, not to a host: what one way began, another completes.
/// Method: a local copy killed half-way, completed by a push; the other way round by a pull.
#[test]
fn another_host_may_complete_the_job() {
    need!("sshd");
    for (first, second) in [(Way::Here, Way::Push(Sshd::start())), (Way::Pull(Sshd::start()), Way::Here)] {
        let job = Job::new(25, 100, 64 << 20);
        let sink = job.room.dir("sink");
        let run = job.start_until(&first, &sink, 8 << 20).expect("the copy lasts until the kill");
        let mark = run.mark.clone();
        procs::signal_all(&both_ends(&first, &run), Signal::KILL);
        drop(run);
        wait_gone(&first, &mark);
        job.completes(&second, &sink);
    }
}

/// Goal: `clean` lists, and with `--remove` deletes, what a dead job left, and nothing else.
/// Method: a copy killed half-way beside files that look a little like debris.
#[test]
fn clean_removes_only_the_debris_of_the_dead() {
    let job = Job::new(26, 100, 64 << 20);
    let sink = job.room.dir("sink");
    for name in ["sink/.hidden", "sink/.haul", "sink/.f.hyphenated"] {
        job.room.file(name, "mine");
    }
    let run = job.start_until(&Way::Here, &sink, 8 << 20).expect("the copy lasts until the kill");
    let mark = run.mark.clone();
    run.signal(Signal::KILL);
    drop(run);
    procs::wait_gone(&mark);
    assert!(!debris(&sink).is_empty(), "a killed copy left nothing, so this shows nothing");
    let left = debris(&sink);
    Haul::new(["clean", "-n"]).args([&sink]).run().sane().exits(0);
    assert_eq!(debris(&sink), left, "a list removes nothing");
    Haul::new(["clean"]).args([&sink]).run().sane().exits(0);
    assert_no_debris(&sink);
    for name in [".hidden", ".haul", ".f.hyphenated"] {
        assert!(sink.join(name).exists(), "{name} is gone");
    }
    assert_none_torn(&job.data, &sink.join("data"));
}

/// Goal: a directory that was closed to its owner, and that a killed run left open, is closed again by
/// `haul clean` and by the next run of the job, before it does anything else; one that is copied into ends as
/// its source is.
/// Method: a copy into a directory of mode 0500, by a user whom that binds, killed while the directory is
/// open; then each. The next run comes to it no more, or completes it.
#[test]
fn directories_left_open_are_closed() {
    need!("setpriv");
    let room = Room::new();
    let (data, sink, aside) = (room.dir("data"), room.dir("sink"), room.at("aside"));
    let (locked, to) = (room.dir("data/locked"), room.dir("sink/locked"));
    room.file("data/other", "other");
    tree::plain(&locked, 86, 0, 32 << 20);
    set_mode(&sink, 0o777);
    std::os::unix::fs::chown(&to, Some(65534), Some(65534)).expect("give it away");
    let mode = || fs::metadata(&to).expect("stat").permissions().mode() & 0o7777;
    let copy = |options: &[&str]| Way::Here.cp(options, &[contents(&data)], &sink).run_by_nobody(&room);
    let begin = || {
        set_mode(&to, 0o500);
        let mut run = copy(&["-r", "--rate=10MB/s"]).start();
        let open = |run: &Running| mode() == 0o700 && procs::written(&run.near()) >= 8 << 20;
        assert!(run.until(open), "it was over too early");
        let mark = run.mark.clone();
        run.signal(Signal::KILL);
        drop(run);
        procs::wait_gone(&mark);
        assert_eq!(mode(), 0o700, "a killed run leaves it open, or this shows nothing");
    };
    begin();
    Haul::new(["clean", "-n"]).args([&sink]).run_by_nobody(&room).run().sane().exits(0);
    assert_eq!(mode(), 0o700, "a list changes nothing");
    Haul::new(["clean"]).args([&sink]).run_by_nobody(&room).run().sane().exits(0);
    assert_eq!(mode(), 0o500, "after haul clean");
    assert_no_debris(&sink);
    begin();
    copy(&["-r"]).run().sane().exits(0);
    assert_same(&data, &sink, BELOW);
    fs::remove_file(to.join("big")).expect("rm");
    begin();
    fs::rename(&locked, &aside).expect("away from the source");
    copy(&["-r"]).run().sane().exits(0);
    assert_eq!(mode(), 0o500, "after the next run");
}

/// Goal: what a dead job left is found however deep it lies, with few descriptors.
/// Method: a copy of a file 400 directories deep, killed; `clean` under a limit of 256.
#[test]
fn deep_debris_needs_few_descriptors() {
    need!("prlimit");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    let deep = (0..400).fold(data.clone(), |dir, _| dir.join("d"));
    fs::create_dir_all(&deep).expect("make the chain");
    tree::plain(&deep, 87, 0, 32 << 20);
    let copy = Way::Here.cp(&["-r", "--rate=10MB/s"], &[contents(&data)], &sink);
    let run = until_written(copy.start(), &Way::Here, 8 << 20).expect("the copy lasts until the kill");
    let mark = run.mark.clone();
    run.signal(Signal::KILL);
    drop(run);
    procs::wait_gone(&mark);
    assert!(debris(&sink).len() > 1, "no temporary was left, so this shows nothing: {:?}", debris(&sink));
    Haul::new(["clean"]).args([&sink]).limited("--nofile=256").run().sane().exits(0);
    assert_no_debris(&sink);
}

/// Goal: debris whose journal lies in a state directory is found and removed, and nothing of another
/// destination's.
/// Method: two destinations with a copy each that was killed half-way, one state directory; the one is
/// cleaned, the other resumed.
#[test]
fn clean_finds_journals_that_lie_elsewhere() {
    let job = Job::new(28, 100, 64 << 20);
    let state = job.room.dir("state");
    let option = format!("--state={}", state.display());
    let sinks = ["one", "two"].map(|name| job.room.dir(name));
    for sink in &sinks {
        let run = until_written(job.haul(&Way::Here, sink).args([&option]).start(), &Way::Here, 8 << 20)
            .expect("the copy lasts until the kill");
        let mark = run.mark.clone();
        run.signal(Signal::KILL);
        drop(run);
        procs::wait_gone(&mark);
        assert!(!debris(sink).is_empty(), "a killed copy left nothing, so this shows nothing");
    }
    let (left, journals) = (debris(&sinks[1]), debris(&state));
    Haul::new(["clean"]).args([&sinks[0]]).run().sane().exits(0);
    assert!(!debris(&sinks[0]).is_empty(), "its journal is not there");
    Haul::new(["clean", "-n", &option]).args([&sinks[0]]).run().sane().exits(0);
    assert_eq!(debris(&state), journals, "a list removes nothing");
    Haul::new(["clean", &option]).args([&sinks[0]]).run().sane().exits(0);
    assert_no_debris(&sinks[0]);
    assert_eq!(debris(&sinks[1]), left, "another destination's");
    assert!(!debris(&state).is_empty() && debris(&state).len() < journals.len(), "{:?}", debris(&state));
    Haul::cp(["-r", &option]).args([&job.data, &sinks[1]]).run().sane().exits(0);
    assert_same(&job.data, &sinks[1].join("data"), ALL);
    assert_no_debris(&state);
}

/// Goal: once the streams are up, losing the ssh process loses nothing.
/// Method: ssh is killed at a tenth of the copy.
#[test]
fn losing_ssh_loses_nothing() {
    need!("sshd");
    for way in [Way::Push(Sshd::start()), Way::Pull(Sshd::start())] {
        let job = Job::new(27, 100, 96 << 20);
        let sink = job.room.dir("sink");
        let run = job.start_until(&way, &sink, job.bytes / 10).expect("the copy lasts until the kill");
        let mark = run.mark.clone();
        let ssh = procs::marked_ssh(&mark);
        assert!(!ssh.is_empty(), "no ssh process was found");
        procs::signal_all(&ssh, Signal::KILL);
        run.wait().sane().exits(0);
        wait_gone(&way, &mark);
        assert_same(&job.data, &sink.join("data"), ALL);
        assert_no_debris(&sink);
    }
}
