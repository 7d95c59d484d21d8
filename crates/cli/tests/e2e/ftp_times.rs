//! What the times of a server's files are worth, and how haul finds out: what looks unchanged there, and by
//! which file of its own it asks whether the server sets times.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::process::Signal;

use crate::support::beside::beside;
use crate::support::compare::assert_no_debris;
use crate::support::ftpd::contents;
use crate::support::node::{Node, Software, are_here};
use crate::support::run::{Haul, Outcome};
use crate::support::steered::{Odd, Steered};
use crate::support::taker::{Script, Taker, Takes};
use crate::support::{Room, read, set_mode, tree};

const A: [u8; 4] = [127, 0, 0, 2];
const B: [u8; 4] = [127, 0, 0, 3];
const ALWAYS: usize = usize::MAX;
/// What each needs to hear of other hosts than its client's.
const PROFTPD: &str = "AllowForeignAddress on\n";
const VSFTPD: &str = "pasv_promiscuous=YES\nport_promiscuous=YES\n";
/// Its times go into nothing that it tells.
const SETS_NONE: &str = "pasv_promiscuous=YES\nport_promiscuous=YES\nmdtm_write=NO\n";
/// Of a server that tells what is in its directories, and lets nobody write into them.
const CLOSED: &str = "AllowForeignAddress on\n<Limit WRITE SITE_CHMOD>\nDenyAll\n</Limit>\n";

/// The time that fake servers tell of what they had from the beginning.
fn then() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_577_934_245)
}

fn write(path: &Path, content: &str, time: SystemTime) {
    fs::write(path, content).expect("write");
    set_mode(path, 0o644);
    tree::set_mtime(path, time);
}

/// A source that looks like what the server has, whose bytes are these.
fn source(room: &Room, content: &str) -> std::path::PathBuf {
    let data = room.at("data");
    write(&data, content, then());
    data
}

fn to_taker(options: &[&str], data: &Path, taker: &Taker) -> Outcome {
    Haul::cp(options).args([data]).args([taker.url("/d/data")]).run().sane()
}

/// `haul cp` between two servers.
fn pair(room: &Room, options: &[&str], from: &str, to: &str) -> Outcome {
    let state = format!("--state={}", room.at("state").display());
    Haul::cp(["-r", &state, "--patience=60s"]).args(options).args([from, to]).run().sane()
}

/// Goal: the question whether a server sets times touches no file of the user's, not even the part of a
/// second of its time, and leaves nothing, to a destination and between two servers.
/// Method: real servers that set times; each is asked, for nothing else shows it.
#[test]
fn no_file_of_the_users_is_asked() {
    let all = [(Software::Proftpd, PROFTPD), (Software::Vsftpd, VSFTPD), (Software::Haul, "")];
    let here = all.into_iter().filter(|(software, _)| are_here(&[*software, Software::Proftpd]));
    beside(here.flat_map(|one| [(one, false), (one, true)]), |((software, open), is_pair)| {
        let room = Room::new();
        let (a, b) = (Node::start(Software::Proftpd, A, PROFTPD), Node::start(software, B, open));
        let (data, dir) = (a.place("data"), b.place("copy"));
        fs::create_dir(&dir).expect("make a directory");
        let there = dir.join("data");
        write(&data, "some version", then());
        let time = then() + Duration::from_nanos(123_456_789);
        write(&there, "some version", time);
        let ended = match is_pair {
            true => pair(&room, &[], &a.url(&data), &b.url(&there)),
            false => Haul::cp([&data]).args([b.url(&there)]).run().sane(),
        };
        let ended = ended.exits(0);
        assert_eq!(ended.summary().number("unchanged"), 1, "{software:?}: {}", ended.describe());
        assert!(!ended.stderr.contains("sets no times"), "{software:?}: {}", ended.describe());
        assert_eq!(fs::metadata(&there).expect("look").modified().expect("a time"), time, "{software:?}");
        assert_eq!(read(&there), b"some version", "{software:?}");
        assert_no_debris(&dir);
        assert_eq!(fs::read_dir(&dir).expect("list it").count(), 1, "{software:?}");
    });
}

/// Goal: a server that says that it set a time and did not is found out, and a change of the source with the
/// size and the time of what is there is copied; what was asked is removed.
#[test]
fn a_server_that_only_says_that_it_sets_times_is_found_out() {
    let room = Room::new();
    let data = source(&room, "other version");
    let taker =
        Script::default().has("/d/data", b"first version").says("MFMT", "", "213 set", ALWAYS).start();
    let ended = to_taker(&[], &data, &taker).exits(0).says("sets no times");
    assert!(taker.file("/d/data") == Some(read(&data)), "{}", ended.describe());
    assert_eq!(taker.paths(), ["/d/data"], "{}", ended.describe());

    let a = Steered::start(A).file("/d/x", b"other version");
    let b = Steered::start(B).file("/d/x", b"first version").odd("MFMT", "", ALWAYS, Odd::Says("213 set"));
    let ended = pair(&room, &[], &a.url("/d/x"), &b.url("/d/x")).exits(0).says("sets no times");
    assert_eq!(b.content("/d/x").as_deref(), Some(&b"other version"[..]), "{}", ended.describe());
    assert_eq!(b.names(), ["/d/x"], "{}", ended.describe());
}

/// Goal: what was made for the question is removed, also where it came to nothing at first; where the server
/// removes nothing that is said, and is no failure.
#[test]
fn nothing_of_the_question_stays() {
    let room = Room::new();
    let data = source(&room, "first version");
    let has = || Script::default().has("/d/data", b"first version");
    for script in [
        has(),
        has().says("MFMT", ".times.haul~", "421 farewell", 1),
        has().says("MLST", ".times.haul~", "450 not now", 1),
        has().takes(".times.haul~", &[Takes::HangUp(0)]),
        has().says("DELE", ".times.haul~", "450 it is in use", 1),
    ] {
        let taker = script.start();
        let ended = to_taker(&[], &data, &taker).exits(0);
        assert_eq!(ended.summary().number("unchanged"), 1, "{}", ended.describe());
        assert_eq!(taker.paths(), ["/d/data"], "{}", ended.describe());
        assert!(!ended.stderr.contains("removed"), "{}", ended.describe());
    }
    let taker = has().removes_not("550 no", true).start();
    let ended = to_taker(&[], &data, &taker).exits(0).says("could not be removed").says(".times.haul~");
    assert_eq!(ended.summary().number("unchanged"), 1, "{}", ended.describe());
}

/// Goal: where nothing may be made, what looks unchanged is left as it is, so that a copy with nothing to do
/// does not fail; that nothing proves it is said.
/// Method: fake servers that refuse what is made for the question; ProFTPD, of which this user may write
/// nothing at all.
#[test]
fn a_closed_directory_is_no_failure() {
    let room = Room::new();
    let data = source(&room, "first version");
    for reply in ["550 Permission denied.", "553 Could not create file.", "452 no space left"] {
        let refuses = [Takes::Refuse(reply); 20];
        let taker =
            Script::default().has("/d/data", b"first version").takes(".times.haul~", &refuses).start();
        let ended = to_taker(&[], &data, &taker).exits(0).says("left as they are");
        assert_eq!(ended.summary().number("unchanged"), 1, "{reply}: {}", ended.describe());
        assert_eq!(taker.paths(), ["/d/data"], "{reply}: {}", ended.describe());
    }
    if !are_here(&[Software::Proftpd]) {
        return;
    }
    let (a, b) = (Node::start(Software::Proftpd, A, PROFTPD), Node::start(Software::Proftpd, B, CLOSED));
    let (data, there) = (a.place("data"), b.place("data"));
    [&data, &there].iter().for_each(|path| write(path, "some version", then()));
    let count = || fs::read_dir(there.parent().expect("a directory")).expect("list it").count();
    let stood = count();
    for ended in [
        Haul::cp([&data]).args([b.url(&there)]).run().sane(),
        pair(&room, &[], &a.url(&data), &b.url(&there)),
    ] {
        let ended = ended.exits(0).says("left as they are");
        assert_eq!(ended.summary().number("unchanged"), 1, "{}", ended.describe());
        assert_eq!(count(), stood, "{}", ended.describe());
    }
}

/// Goal: behind a stop the question is not asked any more, and one that is under way comes to its end, so
/// that nothing of it stays; where the server says no more to it the run ends all the same, and removes what
/// stays over another session. Method: the server waits at the look before the question, and at the question;
/// the stop comes then.
#[test]
fn a_stop_leaves_nothing_of_the_question() {
    // It is looked at first before anything is opened.
    for (after, verb, part, goes_on) in
        [(1, "MLST", "/d/data", true), (0, "MFMT", ".times.haul~", true), (0, "MFMT", ".times.haul~", false)]
    {
        let room = Room::new();
        let data = source(&room, "first version");
        let taker = Script::default().has("/d/data", b"first version").waits_at(after, verb, part).start();
        let mut run = Haul::cp(["--patience=10m"]).args([&data]).args([taker.url("/d/data")]).start();
        assert!(run.until(|_| taker.waits()), "{verb}: {}", run.stderr());
        run.signal(Signal::INT);
        assert!(run.until(|run| run.stderr().contains("stopping")), "{verb}: {}", run.stderr());
        if goes_on {
            // Who writes hears of it in his next turn, a tenth of a second later; nothing shows that he has.
            std::thread::sleep(Duration::from_secs(3));
            taker.let_go_on();
        }
        let ended = run.wait().sane().exits(130);
        assert_eq!(taker.file("/d/data").as_deref(), Some(&b"first version"[..]), "{}", ended.describe());
        let asked = taker.heard().iter().any(|line| line.starts_with("STOR"));
        assert_eq!(asked, verb == "MFMT", "{verb}: {:?}", taker.heard());
        assert_eq!(taker.paths(), ["/d/data"], "{verb}: {}", ended.describe());
        assert!(!ended.describe().contains("sent again"), "{verb}: {}", ended.describe());
    }
}

/// Goal: where nothing is replaced nothing is asked.
#[test]
fn no_clobber_asks_nothing_of_times() {
    let room = Room::new();
    let data = source(&room, "other version");
    let writes = ["STOR", "MFMT", "MDTM 2", "SITE UTIME", "DELE"];
    let changes = |heard: Vec<String>| -> Vec<String> {
        heard.into_iter().filter(|line| writes.iter().any(|verb| line.starts_with(verb))).collect()
    };
    let taker = Script::default().has("/d/data", b"first version").start();
    let ended = to_taker(&["--no-clobber"], &data, &taker).exits(0);
    assert_eq!(changes(taker.heard()), [""; 0], "{}", ended.describe());
    assert!(taker.file("/d/data").as_deref() == Some(&b"first version"[..]), "{}", ended.describe());

    let a = Steered::start(A).file("/d/x", b"other version");
    let b = Steered::start(B).file("/d/x", b"first version");
    let ended = pair(&room, &["--no-clobber"], &a.url("/d/x"), &b.url("/d/x")).exits(0);
    assert_eq!(changes(b.heard()), [""; 0], "{}", ended.describe());
    assert_eq!(b.content("/d/x").as_deref(), Some(&b"first version"[..]), "{}", ended.describe());
}

/// Goal: `--update` leaves what is newer, and nothing else: what has the age of its source and another length
/// is replaced, and what looks unchanged where times prove nothing; the same to a destination and between two
/// servers.
#[test]
fn what_has_the_same_age_is_not_newer() {
    if !are_here(&[Software::Proftpd, Software::Vsftpd]) {
        return;
    }
    let (a, b) = (Node::start(Software::Proftpd, A, PROFTPD), Node::start(Software::Proftpd, B, PROFTPD));
    let none = Node::start(Software::Vsftpd, [127, 0, 0, 4], SETS_NONE);
    let (data, few) = (a.place("data"), Duration::from_secs(9));
    fs::create_dir(&data).expect("make a directory");
    let all = [("newer", then() + few), ("same", then()), ("older", then() - few)];
    all.iter().for_each(|(name, _)| write(&data.join(name), "of the source", then()));
    for is_pair in [false, true] {
        let room = Room::new();
        let run = |from: &Path, to: &str| match is_pair {
            true => pair(&room, &["--update"], &(a.url(from) + if from.is_dir() { "/" } else { "" }), to),
            false => {
                let from = if from.is_dir() { contents(from) } else { from.as_os_str().to_owned() };
                Haul::cp(["-r", "--update"]).args([from]).args([to]).run().sane()
            }
        };
        let copy = b.place(if is_pair { "pair" } else { "sink" });
        fs::create_dir(&copy).expect("make a directory");
        all.iter().for_each(|(name, time)| write(&copy.join(name), "of the destination", *time));
        let ended = run(&data, &b.url(&copy)).exits(0);
        for (name, _) in all {
            let want = if name == "newer" { "of the destination" } else { "of the source" };
            let has = read(copy.join(name));
            assert_eq!(String::from_utf8_lossy(&has), want, "{name} {is_pair}: {}", ended.describe());
        }
        let there = none.place(if is_pair { "pair" } else { "sink" });
        write(&there, "to the source", then());
        let ended = run(&data.join("same"), &none.url(&there)).exits(0);
        assert_eq!(read(&there), b"of the source", "{is_pair}: {}", ended.describe());
    }
}
