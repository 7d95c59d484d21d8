//! What killed runs leave where the next one does not come, and what `haul clean` believes of a journal.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::support::compare::{assert_no_debris, debris};
use crate::support::disk::{Disk, Kind};
use crate::support::mount::Tmpfs;
use crate::support::run::{Haul, Outcome};
use crate::support::way::contents;
use crate::support::{Room, procs, read, set_mode, tree};

/// So slow that a run is still there when it is killed.
const SLOW: &str = "--rate=16MB/s";

fn named(dir: &Path, is: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let all = debris(dir).into_iter();
    all.filter(|path| path.file_name().and_then(OsStr::to_str).is_some_and(&is)).collect()
}

fn journals(dir: &Path) -> Vec<PathBuf> {
    named(dir, |name| name.len() == 22 && name.starts_with(".haul~"))
}

fn temporaries(dir: &Path) -> Vec<PathBuf> {
    named(dir, |name| !name.starts_with(".haul~"))
}

/// Starts the copy and kills it when its journal speaks of a part.
fn kill(cp: Haul, sink: &Path) {
    let mut run = cp.start();
    let speaks = || journals(sink).iter().any(|path| fs::metadata(path).is_ok_and(|stat| stat.len() > 300));
    assert!(run.until(|_| speaks()), "it was over too early");
    let mark = run.mark.clone();
    run.signal(Signal::KILL);
    drop(run);
    procs::wait_gone(&mark);
    assert_eq!(temporaries(sink).len(), 1, "a killed copy left nothing, so this shows nothing");
}

/// A source with one large file far down, and a directory beside it.
fn source(room: &Room) -> PathBuf {
    let data = room.dir("data");
    tree::plain(&room.dir("data/sub/deep"), 91, 0, 48 << 20);
    room.dir("data/keep");
    data
}

/// Goal: a copy that was stopped in good order is known by what it was, as one that was killed is, and the
/// next run has it at once.
/// Method: SIGTERM; then `haul clean -n`, another copy into the same place, and the same again.
#[test]
fn a_stopped_copy_says_what_it_was() {
    let room = Room::new();
    let (data, sink) = (source(&room), room.dir("sink"));
    let other = room.file("other", "other");
    let cp = || Haul::cp(["-r"]).args([&data, &sink]);
    let mut run = cp().args([SLOW]).start();
    let speaks = || journals(&sink).iter().any(|path| fs::metadata(path).is_ok_and(|stat| stat.len() > 300));
    assert!(run.until(|_| speaks()), "it was over too early");
    run.signal(Signal::TERM);
    run.wait().sane().exits(143);
    let what = format!("copy of data to {}", sink.display());
    let listed = Haul::new(["clean", "-n"]).args([&sink]).run().exits(0);
    let list = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(list.contains("dead") && list.contains(&what), "{}", listed.describe());
    let beside = Haul::cp([&other, &sink]).run().sane().exits(0);
    assert!(beside.describe().contains("an interrupted copy (of data to "), "{}", beside.describe());
    let resumed = cp().run().sane().exits(0);
    assert!(resumed.summary().0["resumed"] == true, "{}", resumed.describe());
    assert_no_debris(&sink);
}

/// Goal: a file that is named like a temporary, and is of no journal there, is told and stays.
#[test]
fn clean_tells_of_files_that_look_like_temporaries() {
    let room = Room::new();
    room.dir("sink/s");
    let file = room.file("sink/s/.big.haul~abcdefghijklmn", "mine");
    set_mode(&file, 0o600);
    let cleaned = Haul::new(["clean"]).args([room.at("sink/s")]).run().exits(0);
    let told = String::from_utf8_lossy(&cleaned.stdout).into_owned();
    assert!(told.contains("1 file is named like") && told.contains("--state"), "{told}");
    assert_eq!(read(&file), b"mine");
}

/// Goal: a destination that is removed while a copy runs is said to be gone, and not that another run took
/// over.
#[test]
fn a_removed_destination_is_said() {
    let room = Room::new();
    let (data, sink) = (source(&room), room.dir("sink"));
    let mut run = Haul::cp(["-r", SLOW]).args([&data, &sink]).start();
    assert!(run.until(|_| !temporaries(&sink).is_empty()), "it was over too early");
    fs::remove_dir_all(&sink).expect("rm");
    let ended = run.wait().sane().exits(1).says("the destination was removed");
    assert!(!ended.stderr.contains("this one publishes nothing more"), "{}", ended.describe());
}

/// Goal: a run that ends complete or partial leaves no temporary of the runs before, wherever in the
/// destination it lies.
/// Method: a copy killed at a large file far down; then its directory vanishes from the source, at the top
/// and below, is a file there, is moved at the destination, within the copy and out of it; and the same of a
/// directory's contents.
#[test]
fn temporaries_go_wherever_they_lie() {
    type Change = fn(&Path, &Path);
    let changes: [(&str, i32, Change); 5] = [
        ("vanished", 0, |data, _| fs::remove_dir_all(data.join("sub")).expect("rm")),
        ("vanished below", 0, |data, _| fs::remove_dir_all(data.join("sub/deep")).expect("rm")),
        ("replaced", 3, |data, _| {
            fs::remove_dir_all(data.join("sub/deep")).expect("rm");
            fs::write(data.join("sub/deep"), "a file").expect("write");
        }),
        ("moved within", 0, |_, copy| fs::rename(copy.join("sub/deep"), copy.join("moved")).expect("mv")),
        ("moved away", 0, |_, copy| {
            fs::create_dir_all(copy.join("../elsewhere/a")).expect("mkdir");
            fs::rename(copy.join("sub/deep"), copy.join("../elsewhere/a/b")).expect("mv");
        }),
    ];
    for (what, code, change) in changes {
        for whole in [true, false] {
            let room = Room::new();
            let (data, sink) = (source(&room), room.dir("sink/copies"));
            let from = if whole { data.clone().into_os_string() } else { contents(&data) };
            let cp = || Haul::cp(["-r"]).args([&from]).args([&sink]);
            kill(cp().args([SLOW]), &sink);
            change(&data, &if whole { sink.join("data") } else { sink.join("") });
            let ended = cp().run().sane().exits(code);
            assert_eq!(debris(&room.at("sink")).len(), usize::from(!whole && what == "moved away"), "{what}");
            assert!(!ended.describe().contains("haul clean"), "{what}: {}", ended.describe());
            assert_no_debris(&sink);
        }
    }
}

/// Goal: where what is left cannot be looked at, the journal stays, the run names it with the command that
/// removes it, and that command does, once it can.
/// Method: a user's copy, killed; the directory vanishes from the source and is closed at the destination;
/// then it is opened again.
#[test]
fn what_cannot_be_looked_at_keeps_its_journal() {
    need!("setpriv");
    let room = Room::new();
    let (data, sink) = (source(&room), room.dir("sink"));
    set_mode(&sink, 0o777);
    let cp = || Haul::cp(["-r"]).args([&data, &sink]).run_by_nobody(&room);
    let clean = || Haul::new(["clean"]).args([&sink]).run_by_nobody(&room).run().sane();
    kill(cp().args([SLOW]), &sink);
    fs::remove_dir_all(data.join("sub")).expect("rm");
    let closed = sink.join("data/sub");
    set_mode(&closed, 0);
    for _ in 0..2 {
        let told = cp().run().sane().exits(0).describe();
        let command = format!("haul clean -- '{}'", sink.display());
        assert!(told.contains(&command) && told.contains("data/sub: "), "{told}");
        assert_eq!(journals(&sink).len(), 1);
    }
    let told = clean().describe();
    assert!(told.contains("its journal stays"), "{told}");
    set_mode(&closed, 0o755);
    clean().exits(0);
    assert_no_debris(&sink);
}

/// A journal in `dir` that names a run's tag, as anybody can write one; `like` this one, or of another
/// directory.
fn forge(dir: &Path, like: &Path, tag: &str, elsewhere: bool) -> PathBuf {
    let journal = read(like);
    let magic = journal[..16].to_vec();
    // Behind magic, length, kind and job the first record ends with what the destination root is known by.
    let head_len = u32::from_le_bytes(journal[16..20].try_into().expect("4 bytes")) as usize;
    let mut root = journal[20 + 17..20 + head_len].to_vec();
    // Its length, and then the inode.
    root[1] ^= u8::from(elsewhere);
    let tag = tag
        .bytes()
        .fold(0u32, |tag, c| tag << 5 | u32::from(if c < b'a' { c - b'2' + 26 } else { c - b'a' }));
    let head = [&[1][..], &[0; 16], &root].concat();
    let session = [&[2][..], &1u32.to_le_bytes(), &tag.to_le_bytes(), &[0; 16], &[1], &[0; 6]].concat();
    let (mut chain, mut bytes) = (magic.clone(), magic);
    for body in [head, session] {
        chain = blake3::hash(&[&chain[..], &body].concat()).as_bytes()[..16].to_vec();
        bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&[&body[..], &chain].concat());
    }
    let path = dir.join(".haul~aaaaaaaaaaaaaaaa");
    fs::write(&path, bytes).expect("write");
    set_mode(&path, 0o600);
    path
}

/// Goal: `haul clean` takes nobody's word but of his own files: a journal that was planted removes nothing of
/// a running copy.
/// Method: a user's copy into a directory that all may write, running; journals that name its tag, of another
/// user, of the same user, and of root for another directory, each cleaned by root; then the first of these
/// when the copy was killed.
#[test]
fn planted_journals_remove_nothing_of_others() {
    need!("setpriv");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    tree::plain(&data, 93, 0, 64 << 20);
    set_mode(&sink, 0o1777);
    let start = || {
        let cp = Haul::cp(["-r", "--rate=8MB/s"]).args([contents(&data), sink.clone().into()]);
        let mut run = cp.run_by_nobody(&room).start();
        assert!(run.until(|_| !temporaries(&sink).is_empty()), "it was over too early");
        let name = temporaries(&sink)[0].file_name().and_then(OsStr::to_str).expect("ASCII").to_owned();
        let tag = name[name.len() - 14..name.len() - 8].to_owned();
        (run, tag, journals(&sink).remove(0))
    };
    let clean = || -> Outcome { Haul::new(["clean"]).args([&sink]).run().sane().exits(0) };
    let (run, tag, journal) = start();
    for (uid, elsewhere, stays) in [(12345, false, false), (65534, false, false), (0, true, true)] {
        let forged = forge(&sink, &journal, &tag, elsewhere);
        chown(&forged, Some(uid), None).expect("chown");
        let told = clean().describe();
        assert_eq!(temporaries(&sink).len(), 1, "{told}");
        assert_eq!(forged.exists(), stays, "{told}");
        assert_eq!(told.contains("of another directory"), stays, "{told}");
        let _ = fs::remove_file(&forged);
    }
    run.wait().sane().exits(0);
    assert_no_debris(&sink);
    fs::remove_file(sink.join("big")).expect("rm");
    let (run, tag, journal) = start();
    let mark = run.mark.clone();
    run.signal(Signal::KILL);
    drop(run);
    procs::wait_gone(&mark);
    chown(forge(&sink, &journal, &tag, false), Some(12345), None).expect("chown");
    let told = clean().describe();
    assert_eq!(temporaries(&sink).len(), 1, "{told}");
}

/// Goal: with a state directory, a job of another file system is not taken for one of this, though both roots
/// have one inode number and its journal speaks of no part; and neither is one of a clone of that disk, which
/// says the same of itself.
/// Method: a copy of small files to one disk, killed; the other is cleaned, then the first.
#[test]
fn clean_takes_no_job_of_another_disk() {
    need!("ext4", "strace");
    for kind in [Kind::Ext4, Kind::Ext4Clone] {
        clean_leaves_another(kind);
    }
}

fn clean_leaves_another(kind: Kind) {
    let room = Room::new();
    let (data, state) = (room.dir("data"), room.dir("state"));
    for i in 0..300 {
        fs::write(data.join(i.to_string()), vec![b'x'; 3000]).expect("write");
    }
    let disks = ["one", "two"].map(|name| Disk::new(&room, name, kind));
    let [one, two] = disks.each_ref().map(|disk| disk.at(""));
    assert_eq!(fs::metadata(&one).expect("stat").ino(), fs::metadata(&two).expect("stat").ino());
    // In a directory that stood there small files have temporaries with names.
    fs::create_dir(one.join("data")).expect("mkdir");
    let option = format!("--state={}", state.display());
    let injections = ["fchmod:signal=KILL:when=40".to_owned()];
    let killed = Haul::cp(["-r", &option]).args([&data, &one]).injected(&injections).run();
    assert_ne!(killed.status.code(), Some(0));
    assert!(!temporaries(&one).is_empty() && journals(&state).len() == 1, "this shows nothing");
    let clean = |disk: &Path| Haul::new(["clean", &option]).args([disk]).run().sane().exits(0);
    clean(&two);
    assert_eq!(journals(&state).len(), 1, "it is the other disk's");
    clean(&one);
    assert_no_debris(&one);
    assert_no_debris(&state);
}

/// Goal: what cannot be removed at the end of a run is said, with its name; the next run removes it.
/// Method: a copy is killed, and goes on where the owner file cannot be unlinked.
#[test]
fn an_owner_file_that_stays_is_named() {
    need!("strace");
    let room = Room::new();
    let (data, sink) = (source(&room), room.dir("sink"));
    let cp = || Haul::cp(["-r"]).args([&data, &sink]);
    kill(cp().args([SLOW]), &sink);
    let journal = journals(&sink)[0].file_name().and_then(OsStr::to_str).expect("a name").to_owned();
    let owner = format!("{journal}.own.2");
    let words = ["strace", "-f", "-qq", "-o", "/dev/null", "-P", &owner, "-e", "signal=none"];
    let fails = ["-e", "trace=unlink,unlinkat", "-e", "inject=unlink,unlinkat:error=EIO"];
    let told = cp().wrapped(words.into_iter().chain(fails)).run().sane().exits(0).describe();
    assert!(told.contains(&owner) && told.contains("haul clean"), "{told}");
    assert_eq!(debris(&sink), [sink.join(&owner)]);
    cp().run().sane().exits(0);
    assert_no_debris(&sink);
}

/// Goal: `haul clean` that could not remove what a dead job left says which and ends with 1; another user's
/// jobs are no failure of it.
/// Method: a copy is killed; its destination is full, or its temporary cannot be unlinked; then a job of
/// another user.
#[test]
fn clean_fails_where_debris_stays() {
    need!("tmpfs", "strace", "setpriv");
    let room = Room::new();
    let (data, sink) = (source(&room), room.dir("sink"));
    let tmpfs = Tmpfs::mount(&sink, "size=64m");
    kill(Haul::cp(["-r", SLOW]).args([&data, &sink]), &sink);
    let key = journals(&sink)[0].file_name().and_then(OsStr::to_str).expect("a name")[6..].to_owned();
    let clean = || Haul::new(["clean"]).args([&sink]);
    let fill = sink.join("fill");
    let _ = fs::write(&fill, vec![b'x'; 64 << 20]);
    let full = clean().run().exits(1);
    assert!(full.stderr.contains(&key) && full.stderr.contains("No space left"), "{}", full.describe());
    let full = clean().args(["--json"]).run().exits(1);
    let report: serde_json::Value = serde_json::from_slice(&full.stdout).expect("one object");
    assert_eq!((&report["jobs"][0]["removed"], &report["jobs"][0]["failed"]), (&false.into(), &true.into()));
    clean().args(["-n"]).run().exits(0);
    fs::remove_file(&fill).expect("make room");
    let stuck = clean().injected(&["unlink,unlinkat:error=EIO".to_owned()]).run().exits(1);
    assert!(stuck.stderr.contains(&key), "{}", stuck.describe());
    // What nobody else may remove is nobody else's to remove.
    set_mode(&sink, 0o1777);
    let theirs = clean().run_by_nobody(&room).run().exits(0);
    assert_eq!(temporaries(&sink).len(), 1, "{}", theirs.describe());
    clean().run().exits(0);
    assert_no_debris(&sink);
    drop(tmpfs);
}
