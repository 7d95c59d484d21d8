//! Uploads that were interrupted: the same command goes on with what stands at the server, as far as that is
//! what the source has.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use crate::support::beside::beside;
use crate::support::compare::{assert_no_debris, debris};
use crate::support::ftpd::{Ftpd, Kind};
use crate::support::run::{Haul, Outcome, Running};
use crate::support::sshd::free_port;
use crate::support::taker::{Forgets, GoesOn, InBlocks, Script, Taker, Takes};
use crate::support::{Room, procs, read, tree};

const MIB: usize = 1 << 20;
const LEN: usize = 40 * MIB + 7;

/// A source and a place for it at a server, and where this host keeps what it knows of it.
struct Upload {
    room: Room,
    source: PathBuf,
    url: String,
}

impl Upload {
    fn new(url: impl Fn(&Path) -> String) -> Upload {
        let room = Room::new();
        let source = room.file("big", tree::bytes(&mut fastrand::Rng::with_seed(61), LEN));
        let url = url(&room.dir("sink"));
        Upload { room, source, url }
    }

    fn sink(&self) -> PathBuf {
        self.room.at("sink")
    }

    fn haul(&self, options: &[&str]) -> Haul {
        let haul = Haul::cp(["--patience=5s"]).args(options).args([&self.source]).args([&self.url]);
        haul.env("XDG_STATE_HOME", self.room.at("state"))
    }

    /// A temporary at the server, and how long it is.
    fn part(&self) -> Option<(PathBuf, u64)> {
        let part = debris(&self.sink()).into_iter().next()?;
        let len = fs::metadata(&part).ok()?.len();
        Some((part, len))
    }

    /// A run that is ended by a signal when so much stands at the server, all of it from the first byte on:
    /// blocks may leave gaps.
    fn ended_at(&self, len: usize, signal: Signal) -> Outcome {
        let source = read(&self.source);
        let stands = || {
            let (part, _) = self.part().filter(|(_, now)| *now > len as u64)?;
            let mut bytes = vec![0; len];
            fs::File::open(part).ok()?.read_exact(&mut bytes).ok()?;
            Some(bytes == source[..len])
        };
        self.ended_when(|| stands() == Some(true), signal)
    }

    /// The same, when something is so.
    fn ended_when(&self, is_so: impl Fn() -> bool, signal: Signal) -> Outcome {
        let mut run = self.haul(&["--rate=16MiB/s", "--memory=16MiB"]).start();
        let reached = run.until(|_| is_so());
        assert!(reached, "it ended before it had begun\n{}", run.stderr());
        run.signal(signal);
        let ended = run.wait();
        assert!(!self.sink().join("big").exists(), "half a file has its name");
        ended
    }

    /// A run that is killed when enough stands at a fake server; that has noticed it.
    fn killed_at(&self, taker: &Taker) {
        let mut run = self.haul(&["--rate=24MiB/s", "--memory=16MiB"]).start();
        let begun = run.until(|_| taker.taken() > 9 * MIB);
        assert!(begun, "it ended before it had begun\n{}", run.stderr());
        run.signal(Signal::KILL);
        assert!(run.wait().was_killed());
        let stands = procs::wait_until(Duration::from_secs(20), || !taker.paths().is_empty());
        assert!(stands, "{:?}", taker.heard());
    }

    /// A run to the end: all is there, nothing else, and nothing is on record any more.
    #[track_caller]
    fn completed(&self, options: &[&str]) -> Outcome {
        let ended = self.haul(options).run().sane().exits(0);
        assert!(read(self.sink().join("big")) == read(&self.source), "{}", ended.describe());
        assert_no_debris(&self.sink());
        let left: Vec<_> = fs::read_dir(self.room.at("state/haul/uploads")).expect("list it").collect();
        assert!(left.is_empty(), "{left:?}\n{}", ended.describe());
        ended
    }

    /// The server said that it has a beginning of it: that stands in the record's fourth line.
    fn is_marked(&self) -> bool {
        let records = fs::read_dir(self.room.at("state/haul/uploads")).into_iter().flatten().flatten();
        // One that is being written has an extension.
        let stands = records.map(|record| record.path()).filter(|path| path.extension().is_none());
        let mut texts = stands.filter_map(|path| fs::read_to_string(path).ok());
        texts.any(|text| text.lines().nth(3).is_some_and(|all| all.starts_with("0-") && all != "0-0"))
    }

    fn begins_again(&self) {
        fs::remove_file(self.sink().join("big")).expect("remove the copy");
    }

    /// The source has another byte there, and another time.
    fn changes(&self, at: usize) {
        let mut bytes = read(&self.source);
        bytes[at] ^= 1;
        let time = fs::metadata(&self.source).expect("there").modified().expect("a time");
        fs::write(&self.source, bytes).expect("write it anew");
        tree::set_mtime(&self.source, time + Duration::from_secs(7));
    }
}

impl Upload {
    /// Another file is the source now, which has another first byte and the same time.
    fn is_replaced(&self) {
        let mut bytes = read(&self.source);
        bytes[0] ^= 1;
        let time = fs::metadata(&self.source).expect("there").modified().expect("a time");
        let other = self.room.file("other", bytes);
        tree::set_mtime(&other, time);
        fs::rename(other, &self.source).expect("replace it");
    }
}

fn sent(ended: &Outcome) -> u64 {
    ended.summary().number("bytes_sent")
}

fn held(ended: &Outcome, what: &str) -> u64 {
    ended.summary().0["held"][what].as_u64().expect("a number")
}

fn spoil(path: &Path, at: usize) {
    let mut bytes = read(path);
    bytes[at] ^= 1;
    fs::write(path, bytes).expect("write it anew");
}

/// Goal: where a server makes sums of parts, an upload that was killed, again and again, or stopped goes on
/// where it was, over however many connections; a byte that differs at the server costs what is behind it;
/// another version of the source begins anew. Nothing stays, at the server or here.
#[test]
fn an_interrupted_upload_goes_on() {
    for kind in Kind::these(&[Kind::Gridftp]) {
        let ftpd = Ftpd::start(kind);
        let upload = Upload::new(|sink| ftpd.url(sink));
        for len in [6 * MIB, 16 * MIB] {
            assert!(upload.ended_at(len, Signal::KILL).was_killed());
        }
        let (_, len) = upload.part().expect("it stands there");
        let ended = upload.completed(&["-v"]);
        assert!(sent(&ended) < (LEN - 10 * MIB) as u64, "{kind:?}: all went again\n{}", ended.describe());
        assert!(held(&ended, "checked") >= 10 * MIB as u64, "{len}: {}", ended.describe());
        ended.says("compared, part by part").says("complete (resumed)");

        upload.begins_again();
        let stopped = upload.ended_at(18 * MIB, Signal::INT).exits(130);
        assert!(stopped.summary().number("kept") > 10 * MIB as u64, "{}", stopped.describe());
        let (part, _) = upload.part().expect("it stands there");
        spoil(&part, 9 * MIB);
        let ended = upload.completed(&[]);
        assert!(held(&ended, "wrong") > 0, "{}", ended.describe());
        assert_eq!(sent(&ended), (LEN - 8 * MIB) as u64, "it goes on there\n{}", ended.describe());

        upload.begins_again();
        assert!(upload.ended_at(10 * MIB, Signal::KILL).was_killed());
        upload.changes(5);
        let ended = upload.completed(&[]);
        assert!(sent(&ended) >= LEN as u64 && held(&ended, "checked") == 0, "{}", ended.describe());
        assert!(!ended.stderr.contains("resumed"), "{}", ended.describe());
    }
}

/// Goal: the same with haul's own server, which shows nothing of a file before it is whole: there what it
/// said that it has is gone on with, and nothing of an earlier attempt stays.
#[test]
fn an_upload_to_a_server_of_haul_goes_on() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (upload, server) = to_haul("100ms");
    assert!(upload.ended_when(|| upload.is_marked(), Signal::KILL).was_killed());
    let ended = upload.completed(&["-v"]);
    assert!(sent(&ended) < LEN as u64, "all went again\n{}", ended.describe());
    ended.says("of the whole was compared").says("complete (resumed)");
    server.signal(Signal::TERM);
    server.wait();
}

/// Goal: of a server that is gone in the middle of a file what it has is said to be kept, and the same
/// command goes on with that.
#[test]
fn what_a_server_that_is_gone_has_is_kept() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (upload, server) = to_haul("100ms");
    let mut run = upload.haul(&["--rate=8MiB/s", "--memory=16MiB"]).start();
    assert!(run.until(|_| upload.is_marked()), "{}", run.stderr());
    server.signal(Signal::KILL);
    let ended = run.wait().sane().exits(1).says("kept for the resume").says("to resume, run");
    assert!(!ended.stderr.contains("nothing of unfinished"), "{}", ended.describe());
    let listen = upload.url.trim_start_matches("ftp://").trim_end_matches("/sink/").to_owned();
    let server = of_haul(&upload, &listen, "100ms");
    let ended = upload.completed(&[]);
    assert!(sent(&ended) < LEN as u64, "all went again\n{}", ended.describe());
    ended.says("complete (resumed)");
    server.signal(Signal::TERM);
    server.wait();
}

/// Goal: what a server that is gone in the middle of a file has of it, and that nothing goes on with, the
/// same command removes when the server is back, and says so before. Method: the server is killed with all
/// its sessions, comes back within the run, and is killed again.
#[test]
fn what_a_server_that_is_gone_has_is_removed() {
    beside(Kind::these(&[Kind::Proftpd, Kind::Vsftpd]), |kind| {
        let mut ftpd = Ftpd::start(kind);
        let upload = Upload::new(|sink| ftpd.url(sink));
        let mut run = upload.haul(&["--rate=8MiB/s", "--memory=16MiB"]).start();
        let mut first = None;
        for _ in 0..2 {
            let begun = run.until(|_| {
                upload.part().is_some_and(|(part, len)| first.as_ref() != Some(&part) && len > 4 << 20)
            });
            assert!(begun, "{kind:?}: it ended before it had begun\n{}", run.stderr());
            ftpd.kill();
            if first.is_none() {
                first = upload.part().map(|(part, _)| part);
                ftpd.start_again();
            }
        }
        let ended = run.wait().sane().exits(1).says("could not be removed").says("the same command removes");
        assert!(upload.part().is_some(), "{kind:?}: {}", ended.describe());
        ftpd.start_again();
        let ended = upload.completed(&[]);
        assert!(sent(&ended) >= LEN as u64, "{kind:?}: nobody said trust\n{}", ended.describe());
    });
}

/// An upload to a server of haul, which tells so often what it has.
fn to_haul(markers: &str) -> (Upload, Running) {
    let listen = format!("127.0.0.1:{}", free_port());
    let upload = Upload::new(|_| format!("ftp://{listen}/sink/"));
    let server = of_haul(&upload, &listen, markers);
    (upload, server)
}

fn of_haul(upload: &Upload, listen: &str, markers: &str) -> Running {
    let words = ["serve", "gridftp", "--listen", listen, "--anonymous", "write", "--user", "root"];
    let mut server =
        Haul::new(words).args(["--markers", markers, "--root"]).args([upload.room.at("")]).start();
    assert!(server.until(|server| server.stderr().contains(" listen ftp://")), "{}", server.stderr());
    server
}

/// Goal: what haul's own server keeps and shows to nobody is removed where nothing goes on with it; where it
/// cannot be, it is named.
/// Method: a stop before the server has told anything; a run that is killed while its session at the server
/// stands still, as behind a network that does.
#[test]
fn nothing_stays_unseen_at_a_server_of_haul() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (upload, server) = to_haul("1h");
    let ended = upload.ended_at(3 * MIB, Signal::TERM);
    assert!(
        procs::wait_until(Duration::from_secs(20), || debris(&upload.sink()).is_empty()),
        "{}",
        ended.describe()
    );
    assert!(!ended.describe().contains("could not be removed"), "{}", ended.describe());
    server.signal(Signal::TERM);
    server.wait();

    let (upload, server) = to_haul("100ms");
    let mut run = upload.haul(&["--rate=16MiB/s", "--memory=16MiB"]).start();
    assert!(run.until(|_| upload.is_marked()), "{}", run.stderr());
    let sessions = procs::holding(&procs::descendants(server.id()), ".haul~");
    assert!(!sessions.is_empty());
    procs::signal_all(&sessions, Signal::STOP);
    run.signal(Signal::KILL);
    run.wait();
    let ended = upload.haul(&[]).run().sane().exits(0);
    assert!(read(upload.sink().join("big")) == read(&upload.source), "{}", ended.describe());
    ended.says("could not be removed");
    procs::signal_all(&sessions, Signal::CONT);
    server.signal(Signal::TERM);
    server.wait();
}

/// Goal: a server that makes no sums is believed only where the user says so; then the end of what stands is
/// read, and what is not the source's there, or of another version of it, is not gone on with.
#[test]
fn without_sums_trust_decides() {
    beside(Kind::these(&[Kind::Proftpd, Kind::Vsftpd]), |kind| {
        let ftpd = Ftpd::start(kind);
        let upload = Upload::new(|sink| ftpd.url(sink));
        let interrupted = || assert!(upload.ended_at(16 * MIB, Signal::KILL).was_killed());
        // What is removed can be believed by nobody.
        let stopped = upload.ended_at(16 * MIB, Signal::INT).exits(130);
        let stopped = stopped.says("kept for the next run: nothing of unfinished files\n");
        assert!(upload.part().is_none(), "{kind:?}: {}", stopped.describe());
        interrupted();
        let ended = upload.completed(&[]);
        assert!(sent(&ended) >= LEN as u64, "{kind:?}: nobody said trust\n{}", ended.describe());

        upload.begins_again();
        interrupted();
        let ended = upload.completed(&["-v", "--resume=trust"]);
        assert!(sent(&ended) < (LEN - 10 * MIB) as u64, "{kind:?}: all went\n{}", ended.describe());
        assert!(held(&ended, "trusted") > 8 * MIB as u64, "{kind:?}: {}", ended.describe());
        ended.says("NOT compared");
        if kind == Kind::Vsftpd {
            // What stood there goes when its end was compared, and before the server goes on with it.
            upload.begins_again();
            interrupted();
            let mut run = upload.haul(&["--resume=trust", "--rate=8MiB/s", "--memory=16MiB"]).start();
            let is_sending =
                |line: &str| line.contains("\"progress\"") && !line.contains("\"bytes_sent\":0,");
            let reads = |run: &Running| String::from_utf8_lossy(&run.stdout()).lines().any(is_sending);
            assert!(run.until(reads), "{}", run.stderr());
            let (part, _) = upload.part().expect("it stands there");
            fs::remove_file(part).expect("remove it");
            let ended = run.wait().sane().exits(0);
            assert!(read(upload.sink().join("big")) == read(&upload.source), "{}", ended.describe());
            return;
        }

        // Another file of the same size and time.
        upload.begins_again();
        interrupted();
        upload.is_replaced();
        let ended = upload.completed(&["--resume=trust"]);
        assert_eq!(held(&ended, "trusted"), 0, "{}", ended.describe());

        upload.begins_again();
        interrupted();
        let (part, len) = upload.part().expect("it stands there");
        spoil(&part, len as usize - 512 * 1024);
        let ended = upload.completed(&["--resume=trust"]);
        assert_eq!(held(&ended, "trusted"), 0, "{}", ended.describe());

        upload.begins_again();
        interrupted();
        upload.changes(5);
        let ended = upload.completed(&["--resume=trust"]);
        assert_eq!(held(&ended, "trusted"), 0, "{}", ended.describe());
    });
}

/// Goal: what somebody put in the place of a part is not written through, where it is a link and the server
/// has no word for those.
#[test]
fn no_link_is_gone_on_with() {
    beside(Kind::these(&[Kind::Proftpd, Kind::Vsftpd]), |kind| {
        let ftpd = Ftpd::start(kind);
        let upload = Upload::new(|sink| ftpd.url(sink));
        assert!(upload.ended_at(16 * MIB, Signal::KILL).was_killed());
        // Who writes it may not have ended yet.
        let (part, len) = upload.part().expect("it stands there");
        let victim = upload.room.file("victim", &read(&upload.source)[..len as usize]);
        fs::remove_file(&part).expect("remove it");
        std::os::unix::fs::symlink(&victim, &part).expect("make a link");
        let ended = upload.haul(&["--resume=trust"]).run().sane();
        assert_eq!(fs::metadata(&victim).expect("there").len(), len, "{kind:?}: {}", ended.describe());
        let copy = upload.sink().join("big");
        assert!(
            fs::symlink_metadata(&copy).is_ok_and(|copy| copy.is_file()),
            "{kind:?}: {}",
            ended.describe()
        );
        assert!(read(&copy) == read(&upload.source), "{kind:?}: {}", ended.describe());
    });
}

/// Goal: what is lost within a run is gone on with in the same run. A server that has other bytes, cuts off
/// what stands or will not go on is sent the file anew, and what it keeps is right or has no name.
/// Method: a fake server, once in blocks.
#[test]
fn a_server_that_goes_on_wrongly_gets_all() {
    let cases = [GoesOn::Well, GoesOn::CutsOff, GoesOn::Refuses("553 not from there")];
    beside(cases.into_iter().flat_map(|how| [(how, false), (how, true)]), |(how, in_blocks)| {
        let script = Script::default().goes_on(how);
        let taker = match in_blocks {
            true => script.in_blocks("big", &[InBlocks::HangUp(25 * MIB)]),
            false => script.takes("big", &[Takes::HangUp(25 * MIB)]),
        }
        .start();
        let upload = Upload::new(|_| taker.url("/d/big"));
        let ended = upload.haul(&[]).run().sane();
        let heard = taker.heard();
        let at = |verb: &str| heard.iter().filter(|line| line.starts_with(verb)).count();
        assert!(at("REST") >= 1, "{how:?} {in_blocks}: {heard:?}\n{}", ended.describe());
        assert_eq!(ended.status.code(), Some(0), "{how:?} {in_blocks}: {}", ended.describe());
        assert_eq!(taker.paths(), ["/d/big"], "{how:?} {in_blocks}: {}", ended.describe());
        assert!(taker.file("/d/big") == Some(read(&upload.source)), "{how:?}: {}", ended.describe());
        if how == GoesOn::Well && !in_blocks {
            ended.says("connection lost: once, and waited for");
            assert_eq!(at("STOR"), 2, "{heard:?}");
            assert!(heard.contains(&format!("REST {}", 25 * MIB)), "{heard:?}");
        }
    });
}

/// Goal: bytes that differ at a server are found before anything goes there, and not by the sum of the whole
/// file alone.
/// Method: a fake server; what it has is changed while nobody is there.
#[test]
fn what_differs_is_found_by_its_part() {
    let taker = Script::default().goes_on(GoesOn::Well).start();
    let upload = Upload::new(|_| taker.url("/d/big"));
    upload.killed_at(&taker);
    taker.spoil("big", 5);
    let ended = upload.haul(&[]).run().sane().exits(0);
    assert!(taker.file("/d/big") == Some(read(&upload.source)), "{}", ended.describe());
    assert_eq!(taker.paths(), ["/d/big"], "{}", ended.describe());
    assert_eq!(sent(&ended), LEN as u64, "{}", ended.describe());
    assert!(held(&ended, "wrong") > 0, "{}", ended.describe());
}

/// Goal: what is believed was there before the server went on with it, and is there still when the file is
/// whole: where it has gone meanwhile the file is sent from its beginning, before anything goes there if that
/// can be seen.
/// Method: a fake server, which forgets what it has and makes zeros of it, as real ones do.
#[test]
fn what_is_believed_is_looked_at_again() {
    beside([Forgets::WhenRead, Forgets::WhenToldToGoOn], |when| {
        let taker = Script::default().forgets(when).start();
        let upload = Upload::new(|_| taker.url("/d/big"));
        upload.killed_at(&taker);
        let ended = upload.haul(&["--resume=trust"]).run().sane().exits(0);
        let heard = taker.heard();
        assert!(taker.file("/d/big") == Some(read(&upload.source)), "{when:?}: {}", ended.describe());
        assert_eq!(taker.paths(), ["/d/big"], "{when:?}: {}", ended.describe());
        assert!(held(&ended, "trusted") > 4 * MIB as u64, "{when:?}: {}", ended.describe());
        // One `REST` is that of the look at its end.
        let is_told = |lines: &[String]| lines[0].starts_with("REST") && lines[1].starts_with("STOR");
        let told = heard.windows(2).filter(|lines| is_told(lines)).count();
        assert_eq!(told, usize::from(when == Forgets::WhenToldToGoOn), "{heard:?}\n{}", ended.describe());
    });
}

/// Goal: what a server said that it has of a file that it shows to nobody is proved by the sum of the whole
/// alone: where it makes none after all, the file is sent from its beginning.
/// Method: a fake server, which drops what it said that it has, and refuses every sum.
#[test]
fn what_was_said_and_not_shown_needs_a_sum() {
    let how = [InBlocks::Marked];
    let taker = Script::default().goes_on(GoesOn::Well).in_blocks("big", &how).sums_say("504 none").start();
    let upload = Upload::new(|_| taker.url("/d/big"));
    assert!(upload.ended_when(|| upload.is_marked(), Signal::KILL).was_killed());
    let ended = upload.haul(&["-v"]).run().sane().exits(0);
    let heard = taker.heard();
    let of = |verb: &str| heard.iter().filter(|line| line.starts_with(verb)).count();
    assert_eq!((of("REST"), of("STOR")), (1, 3), "{heard:?}\n{}", ended.describe());
    assert!(taker.file("/d/big") == Some(read(&upload.source)), "{}", ended.describe());
    assert_eq!(taker.paths(), ["/d/big"], "{}", ended.describe());
    ended.says("of 0 files; not of 1 files");
}

/// Goal: a large file that no later run can go on with, for nothing of it is on record here, is told of;
/// others are not.
#[test]
fn what_is_not_on_record_is_told() {
    let (room, taker) = (Room::new(), Script::default().with_sums().goes_on(GoesOn::Well).start());
    let no_directory = room.file("file", "");
    for (len, state, is_told) in
        [(5 * MIB, &no_directory, true), (MIB, &no_directory, false), (5 * MIB, &room.at("state"), false)]
    {
        let source = room.file("source", tree::bytes(&mut fastrand::Rng::with_seed(71), len));
        let haul = Haul::cp([&source]).args([taker.url("/d/f")]).env("XDG_STATE_HOME", state);
        let ended = haul.run().sane().exits(0);
        let told = ended.stderr.contains("NOT on record: 1 file of 4 MiB or more: ");
        assert_eq!(told, is_told, "{len} {}: {}", state.display(), ended.describe());
    }
}
