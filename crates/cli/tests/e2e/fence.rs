//! Who owns a job, its temporaries and its names: runs that were frozen and go on, other users, other jobs,
//! and files that only look like a job's.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::support::compare::{ALL, assert_no_debris, assert_same, debris};
use crate::support::run::{self, Haul};
use crate::support::sshd::{FarHaul, Sshd};
use crate::support::way::{Way, contents};
use crate::support::{Room, procs, read, set_mode, tree};

/// So slow that a run is still there when it is looked at.
const SLOW: &str = "--rate=16MB/s";

/// Names below `dir` that begin so.
fn files(dir: &Path, is: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let all = debris(dir).into_iter();
    all.filter(|path| path.file_name().and_then(OsStr::to_str).is_some_and(&is)).collect()
}

fn read_if_there(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn temporary(dir: &Path) -> PathBuf {
    let mut found = files(dir, |name| !name.starts_with(".haul~"));
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

/// Goal: a run that was frozen, taken over, and goes on, writes nothing into what the next one published; its
/// copy may have been changed since.
/// Method: a local copy is stopped half-way; the same command from another process namespace, which cannot
/// see that it lives, watches it for its time and completes; the file is edited in place; the first run goes
/// on.
#[test]
fn a_fenced_run_writes_into_nothing_that_was_published() {
    need!("unshare");
    const LEN: usize = 384 << 20;
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    tree::plain(&data, 81, 0, LEN);
    let cp = || Haul::cp(["-r", "--io=buffered", "--no-preallocate"]);
    // As fast as it can: what waits in its buffers is written as soon as it goes on.
    let mut first = cp().args([&data, &sink]).start();
    // When the journal speaks of parts, the next run takes them over.
    let journal = || files(&sink, |name| name.len() == 22 && name.starts_with(".haul~"));
    let speaks = || journal().iter().any(|path| fs::metadata(path).is_ok_and(|stat| stat.len() > 300));
    let begun = first.until(|run| speaks() && procs::written(&run.near()) >= 32 << 20);
    assert!(begun, "it was over too early");
    first.signal(Signal::STOP);
    cp().args([&data, &sink]).in_its_own_pids().run().sane().exits(0);
    assert_same(&data, &sink.join("data"), ALL);
    let copy = fs::File::options().write(true).open(sink.join("data/big")).expect("open");
    let edited = vec![b'e'; LEN];
    copy.write_all_at(&edited, 0).expect("edit");
    let changed = copy.metadata().expect("stat").mtime();
    first.signal(Signal::CONT);
    first.wait().sane().exits(1);
    assert!(read(sink.join("data/big")) == edited, "the frozen run wrote into what the next one published");
    assert_eq!(copy.metadata().expect("stat").mtime(), changed);
}

/// Goal: a run that was frozen and taken over publishes nothing any more: no old file over a new one, also
/// none that it was about to publish when it was frozen.
/// Method: many small files, and a large one, so that the next run lasts. A run whose syncs take long is
/// stopped when threads of it are in the sync that comes before a file's name; the sources change; another
/// run publishes all small files anew, and the first one goes on while that one is stopped, before it removes
/// what the first one left.
#[test]
fn a_fenced_run_publishes_nothing_old() {
    need!("unshare", "strace");
    const FILES: usize = 600;
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    tree::plain(&data, 90, 0, 320 << 20);
    let write = |version: &str| {
        for i in 0..FILES {
            fs::write(data.join(format!("f{i}")), format!("{version} of {i}")).expect("write");
        }
    };
    write("version 1");
    let published = |version: &str| {
        (0..FILES).filter(|i| read_if_there(&sink.join(format!("f{i}"))).starts_with(version)).count()
    };
    let cp = || Haul::cp(["-r", SLOW]).args([contents(&data), sink.clone().into()]);
    // The first syncs of each thread are as fast as ever, so that some files have their names; where they are
    // synced together, those of the first commit have.
    let calls = ["fsync:delay_enter=3s:when=4+", "fdatasync:delay_enter=3s:when=4+", "syncfs:delay_enter=3s"];
    let mut first = cp().injected(&calls.map(String::from)).start();
    let syncs = |pids: &[_]| procs::in_syncs(pids) >= 4 || procs::in_whole_syncs(pids) > 0;
    let at_it = first.until(|run| syncs(&run.near()) && published("version 1") >= 4);
    assert!(at_it, "it was over too early");
    first.signal(Signal::STOP);
    assert!(published("version 1") < FILES, "it was over when it was stopped");
    write("another version 2");
    let mut second = cp().in_its_own_pids().start();
    let all = second.until(|_| published("another version 2") == FILES);
    assert!(all, "the next run was over before the first could go on\n{}", second.stderr());
    // Until the first one has done what it had begun.
    second.signal(Signal::STOP);
    first.signal(Signal::CONT);
    first.wait().sane().exits(1);
    assert_eq!(published("another version 2"), FILES, "the frozen run published old files");
    second.signal(Signal::CONT);
    second.wait().sane().exits(0);
    assert_eq!(published("another version 2"), FILES);
    assert!(read(sink.join("big")) == read(data.join("big")));
}

/// Goal: a run that lives keeps its job where `/proc` speaks of other processes than ours.
/// Method: two runs in a process namespace of their own that shows the `/proc` of the one above, where the
/// first one's number is that of another process.
#[test]
fn a_run_lives_whatever_proc_says() {
    need!("unshare");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    tree::plain(&data, 84, 0, 48 << 20);
    // It outlasts the second one's looks.
    let mut first = Haul::cp(["-r", "--rate=3MB/s"]).args([&data, &sink]).in_its_own_pids_unseen().start();
    assert!(first.until(|run| procs::written(&run.near()) >= 1 << 20), "it was over too early");
    let pid = first.near().iter().map(|pid| pid.as_raw_nonzero().get()).max().expect("it runs");
    let second = Haul::cp(["-r"]).args([&data, &sink]).in_the_pids_of(pid).run().exits(1);
    assert!(second.stderr.contains("running"), "{}", second.describe());
    first.wait().sane().exits(0);
    assert_same(&data, &sink.join("data"), ALL);
}

/// Goal: a stop is heeded while a frozen run is watched, with its exit code, and the job is not taken.
/// Method: a run that is frozen; a second one, which says that it watches, gets SIGTERM.
#[test]
fn a_stop_is_heeded_while_another_run_is_watched() {
    need!("unshare");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    tree::plain(&data, 82, 0, 48 << 20);
    let mut first = Haul::cp(["-r", SLOW]).args([&data, &sink]).start();
    assert!(first.until(|run| procs::written(&run.near()) >= 4 << 20), "it was over too early");
    first.signal(Signal::STOP);
    let before = files(&sink, |name| name.contains(".own."));
    let mut second = Haul::cp(["-r"]).args([&data, &sink]).in_its_own_pids().start();
    assert!(
        second.until(|run| run.stderr().contains("watching it for")),
        "it does not say what it waits for"
    );
    second.signal(Signal::TERM);
    second.wait().exits(143);
    assert_eq!(files(&sink, |name| name.contains(".own.")), before);
    first.signal(Signal::CONT);
    first.wait().sane().exits(0);
    assert_same(&data, &sink.join("data"), ALL);
}

/// Goal: the same command right after its near end was killed waits for the far end that is left, says so,
/// and completes.
/// Method: a push, killed at its near end half-way, and again at once. The syncs of the first far end take
/// long, so that it cannot be gone by then: it ends when what it has begun is on media.
#[test]
fn a_rerun_waits_for_the_dying_far_end() {
    need!("sshd", "strace");
    let slow = ["fsync:delay_enter=2s", "fdatasync:delay_enter=2s"].map(String::from);
    let under: Vec<String> = run::strace_args(&slow).iter().map(|word| format!("'{word}'")).collect();
    let room = Room::new();
    let is_slow = room.file("is-slow", "");
    let script = format!(
        "[ ! -e {} ] || exec {} \"$HAUL\" \"$@\"\nexec \"$HAUL\" \"$@\"",
        is_slow.display(),
        under.join(" ")
    );
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    let way = Way::Push(Sshd::start_as(FarHaul::Script(script), None));
    tree::plain(&data, 83, 4, 64 << 20);
    let Way::Push(sshd) = &way else { unreachable!() };
    let mut first = way.cp(&["-r"], &[&data], &sink).start();
    let far = || procs::marked(&sshd.mark);
    let begun = first.until(|_| procs::written(&far()) >= 24 << 20 && procs::in_syncs(&far()) > 0);
    assert!(begun, "it was over too early");
    fs::remove_file(is_slow).expect("rm");
    first.signal(Signal::KILL);
    let ended = way.cp(&["-r"], &[&data], &sink).run().sane().exits(0);
    let told = ["another run of this job is there", "waiting for the run before to end"];
    assert!(
        told.iter().any(|told| ended.stderr.contains(told)),
        "it does not say what it waits for\n{}",
        ended.stderr
    );
    assert_same(&data, &sink.join("data"), ALL);
    drop(first);
    procs::wait_gone(&sshd.mark);
    assert_no_debris(&sink);
}

/// Goal: files whose names look like haul's are copied like all others, and by a second run left alone.
/// Method: names of the forms that temporaries and journals have had, with and without a journal of another
/// place.
#[test]
fn files_named_like_temporaries_are_copied() {
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    let names = [
        ".zsh.history",
        ".app.headers",
        ".x.hostkey",
        ".haul~notes",
        ".haul~aaaaaaaaaaaaaaaa",
        ".haul~aaaaaaaaaaaaaaaa.own.1",
        ".f.haul~aaaaaaaaaaaaaa",
    ];
    for name in names {
        room.file(&format!("data/{name}"), name);
    }
    for _ in 0..2 {
        Haul::cp(["-r"]).args([&data, &sink]).run().sane().exits(0);
        for name in names {
            assert_eq!(read(sink.join("data").join(name)), name.as_bytes());
        }
    }
}

/// Goal: a copy from a directory into which another copy runs leaves that one's files out, and names them.
/// Method: a slow copy into a directory; meanwhile a copy of that directory.
#[test]
fn files_of_a_running_copy_into_the_source_are_left_out() {
    let room = Room::new();
    let (data, middle, sink) = (room.dir("data"), room.dir("middle"), room.dir("sink"));
    tree::plain(&data, 84, 0, 64 << 20);
    room.file("middle/.f.haul~aaaaaaaaaaaaaa", "mine");
    let mut first = Haul::cp(["-r", SLOW]).args([&data, &middle]).start();
    assert!(first.until(|run| procs::written(&run.near()) >= 4 << 20), "it was over too early");
    let ended = Haul::cp(["-r"]).args([&middle, &sink]).run().sane().exits(0);
    let said = ended.describe();
    for part in ["left out: ", "middle/.haul~", ".own.1", "middle/data/.big.haul~"] {
        assert!(said.contains(part), "{part} is not named\n{said}");
    }
    let found = debris(&sink);
    assert_eq!(
        found,
        [sink.join("middle/.f.haul~aaaaaaaaaaaaaa")],
        "a user's file, and nothing of the job's"
    );
    first.wait().sane().exits(0);
}

/// Goal: what another user put in the place of a killed copy's temporary is not taken over, and a copy of
/// another user is refused by name, also by root.
/// Method: a copy of an unprivileged user into a directory that all may write, killed; its temporary is
/// replaced by one of another user that all may write, kept open; the owner runs again, then another killed
/// copy of his is met by root.
#[test]
fn files_of_other_users_are_not_taken_over() {
    need!("setpriv");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    tree::plain(&data, 85, 0, 32 << 20);
    set_mode(&sink, 0o777);
    let begin = || {
        let mut run =
            Haul::cp(["-r", SLOW]).args([contents(&data), sink.clone().into()]).run_by_nobody(&room).start();
        assert!(run.until(|run| procs::written(&run.near()) >= 12 << 20), "it was over too early");
        let mark = run.mark.clone();
        run.signal(Signal::KILL);
        drop(run);
        procs::wait_gone(&mark);
    };
    begin();
    let victim = temporary(&sink);
    let content = read(&victim);
    fs::remove_file(&victim).expect("rm");
    fs::write(&victim, &content).expect("write");
    std::os::unix::fs::chown(&victim, Some(12345), Some(12345)).expect("chown");
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o666)).expect("chmod");
    let planted = fs::File::options().write(true).open(&victim).expect("open");
    Haul::cp(["-r"]).args([contents(&data), sink.clone().into()]).run_by_nobody(&room).run().sane().exits(0);
    planted.write_all_at(b"evil", 0).expect("write");
    assert!(read(sink.join("big")) == read(data.join("big")));
    let stat = fs::metadata(sink.join("big")).expect("stat");
    assert_eq!(stat.uid(), 65534);
    assert_ne!(stat.ino(), planted.metadata().expect("stat").ino());
    fs::remove_file(sink.join("big")).expect("rm");
    begin();
    let left = debris(&sink);
    let refused = Haul::cp(["-r"]).args([contents(&data), sink.clone().into()]).run().exits(1);
    assert!(refused.stderr.contains("belongs to user 65534"), "{}", refused.describe());
    assert_eq!(debris(&sink), left);
}

/// Goal: the contents of a directory are one job whatever comes into it; what other dead jobs left is named
/// in the summary, with the command that removes it.
/// Method: `data/` killed, a name added, again: no debris. Then another source killed, and `data/` once more.
#[test]
fn debris_of_other_jobs_is_named() {
    let room = Room::new();
    let (data, other, sink) = (room.dir("data"), room.dir("other"), room.dir("sink"));
    tree::plain(&data, 86, 0, 32 << 20);
    tree::plain(&other, 87, 0, 32 << 20);
    fs::rename(other.join("big"), other.join("large")).expect("rename");
    let kill = |source: &Path| {
        let mut run = Haul::cp(["-r", SLOW]).args([contents(source), sink.clone().into()]).start();
        assert!(run.until(|run| procs::written(&run.near()) >= 8 << 20), "it was over too early");
        let mark = run.mark.clone();
        run.signal(Signal::KILL);
        drop(run);
        procs::wait_gone(&mark);
    };
    let copy = || Haul::cp(["-r"]).args([contents(&data), sink.clone().into()]).run().sane().exits(0);
    kill(&data);
    room.file("data/new", "new");
    let clean = copy();
    assert_no_debris(&sink);
    assert!(!clean.describe().contains("haul clean"), "{}", clean.describe());
    kill(&other);
    let told = copy();
    let command = format!("haul clean -- '{}'", sink.display());
    assert!(told.describe().contains(&command), "{}", told.describe());
    Haul::new(["clean"]).args([&sink]).run().sane().exits(0);
    assert_no_debris(&sink);
}
