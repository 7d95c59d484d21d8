//! How often copies log in at FTP servers: no more often than there is work for, and again where a server did
//! not take a session at first.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::process::Signal;

use crate::support::beside::beside;
use crate::support::block_liar::BlockLies;
use crate::support::ftpd::{Ftpd, Kind, contents};
use crate::support::liar::{Further, Lies, Manner};
use crate::support::run::{Haul, Outcome, Running};
use crate::support::sshd::free_port;
use crate::support::taker::{GoesOn, Script, Taker};
use crate::support::{Room, procs, read, tree};

const MIB: usize = 1 << 20;

fn furnish(room: &Room, files: usize, len: usize) -> PathBuf {
    let data = room.dir("data");
    let mut rng = fastrand::Rng::with_seed(91);
    for n in 0..files {
        std::fs::write(data.join(format!("f{n}")), tree::bytes(&mut rng, len)).expect("write a file");
    }
    data
}

fn cp(options: &[&str], data: &Path, taker: &Taker) -> Haul {
    Haul::cp(["-r", "-v", "--patience=20s"]).args(options).args([contents(data)]).args([taker.url("/d/")])
}

fn logins(heard: &[String]) -> usize {
    heard.iter().filter(|line| line.starts_with("USER")).count()
}

/// All that was sent is there, and nothing else.
#[track_caller]
fn assert_whole(taker: &Taker, data: &Path, files: usize, ended: &Outcome) {
    for n in 0..files {
        let name = format!("f{n}");
        assert!(taker.file(&format!("/d/{name}")) == Some(read(data.join(&name))), "{}", ended.describe());
    }
    assert_eq!(taker.paths().len(), files, "{}", ended.describe());
}

/// Goal: nobody logs in at a destination more often than there are files to send; many files have all
/// sessions.
#[test]
fn few_files_have_few_logins() {
    beside([(1, 1..=1), (2, 1..=2), (1000, 8..=8)], |(files, wanted)| {
        let room = Room::new();
        let data = furnish(&room, files, 3000);
        let taker = Script::default().with_sums().start();
        let ended = cp(&[], &data, &taker).run().sane().exits(0);
        assert_whole(&taker, &data, files, &ended);
        let logins = logins(&taker.heard());
        assert!(wanted.contains(&logins), "{logins} logins for {files} files\n{}", ended.describe());
    });
}

/// Goal: a small file comes over the session that it was looked at over.
#[test]
fn a_small_file_has_one_login_at_a_source() {
    let room = Room::new();
    let bytes = tree::bytes(&mut fastrand::Rng::with_seed(92), 3000);
    let liar = BlockLies::default().file("/d/small", &bytes).start();
    let to = room.at("copy");
    let ended = Haul::cp([liar.url("/d/small")]).args([&to]).run().sane().exits(0);
    assert!(read(&to) == bytes, "{}", ended.describe());
    assert_eq!(logins(&liar.heard()), 1, "{}", ended.describe());
}

/// Goal: one large file, the sum of which is asked for in parts, has sessions for that beside its own: as
/// many as it has parts.
#[test]
fn a_large_file_has_sessions_for_its_sums() {
    let room = Room::new();
    let data = room.dir("data");
    // Two parts; the file is all zeroes but for its end.
    let mut bytes = vec![0; (256 << 20) + 3000];
    let end = bytes.len() - 4000;
    bytes[end..].copy_from_slice(&tree::bytes(&mut fastrand::Rng::with_seed(93), 4000));
    std::fs::write(data.join("f0"), &bytes).expect("write a file");
    let script = Script::default().with_sums().goes_on(GoesOn::Well).in_blocks("none", &[]);
    let taker = script.start();
    let ended = cp(&[], &data, &taker).run().sane().exits(0).says("1 of them part by part");
    assert!(taker.file("/d/f0").as_deref() == Some(&bytes[..]), "{}", ended.describe());
    assert_eq!(logins(&taker.heard()), 2, "{}", ended.describe());
}

/// Goal: a server that takes two sessions, and refuses all further ones in whatever words, gets everything.
#[test]
fn two_sessions_suffice() {
    let rows = [None, Some("530 too many connections from this address"), Some("421 too many users")];
    beside(rows, |refusal| {
        let room = Room::new();
        let data = furnish(&room, 200, 3000);
        let script = Script::default().with_sums();
        let taker = match refusal {
            None => script.sessions_max(2),
            Some(reply) => script.refuses_logins(2..usize::MAX, reply),
        };
        let taker = taker.start();
        let ended = cp(&[], &data, &taker).run().sane().exits(0).says("2 of at most 8 sessions");
        assert_whole(&taker, &data, 200, &ended);
        assert!(logins(&taker.heard()) <= 8, "{refusal:?}: {}", ended.describe());
    });
}

/// Goal: a login that the server refused is tried again in the same run, as long as there is work for it.
/// Method: two files for some eight seconds; the second session is refused once.
#[test]
fn logins_that_were_refused_are_tried_again() {
    beside(["530 too many connections", "421 too many users"], |reply| {
        let room = Room::new();
        let data = furnish(&room, 2, 8 * MIB);
        let taker = Script::default().refuses_logins(1..2, reply).start();
        let options = ["--rate=2MiB/s", "--memory=8MiB", "--object-size=256KiB"];
        let ended = cp(&options, &data, &taker).run().sane().exits(0).says("2 of at most 8 sessions");
        assert_whole(&taker, &data, 2, &ended);
        assert_eq!(logins(&taker.heard()), 3, "{}", ended.describe());
    });
}

/// Goal: the sessions that a source took do the work where it closes further ones without a greeting, or
/// takes them and says nothing. Method: small files and large ones, of several objects each; two sessions are
/// served.
#[test]
fn sessions_that_are_not_greeted_are_over() {
    beside([Further::Closed, Further::Silent], |further| {
        let (room, mut rng) = (Room::new(), fastrand::Rng::with_seed(92));
        let (sink, mut lies) = (room.dir("sink"), Lies::default().sessions_max(2).further(further));
        let lens = (0..40).map(|n| if n % 8 == 3 { 2 * MIB + n } else { 3000 + n });
        let files: Vec<Vec<u8>> = lens.map(|len| tree::bytes(&mut rng, len)).collect();
        for (n, content) in files.iter().enumerate() {
            lies = lies.in_turn(&format!("/d/f{n}"), &[content], &[]);
        }
        let liar = lies.start();
        let options = ["-r", "-v", "--patience=2s", "--object-size=256KiB"];
        let ended = Haul::cp(options).args([liar.url("/d/")]).args([&sink]).run().sane().exits(0);
        for (n, content) in files.iter().enumerate() {
            let copy = read(sink.join(format!("f{n}")));
            assert!(copy == *content, "{further:?}, f{n}: {}", ended.describe());
        }
        assert_eq!(std::fs::read_dir(&sink).expect("list").count(), files.len(), "{further:?}");
    });
}

/// Goal: a server that takes one session gives everything, also where the walk takes longer than logins are
/// tried again for: who reads waits for the walk's session, and has that one.
/// Method: directories that are listed in more than ten seconds, with small files and files of several
/// objects; whoever comes beside the one session is told so, or closed, or hears nothing.
#[test]
fn one_session_suffices() {
    beside([Further::Told, Further::Closed, Further::Silent], |further| {
        let (room, mut rng) = (Room::new(), fastrand::Rng::with_seed(93));
        let sink = room.dir("sink");
        let mut lies = Lies::default().sessions_max(1).further(further).lists_in(Duration::from_millis(900));
        let lens = (0..42).map(|n| if n % 5 == 2 { MIB + n } else { 3000 + n });
        let files: Vec<(String, Vec<u8>)> = lens
            .enumerate()
            .map(|(n, len)| (format!("d{}/f{n}", n / 3), tree::bytes(&mut rng, len)))
            .collect();
        for (path, content) in &files {
            lies = lies.file(&format!("/d/{path}"), content);
        }
        let liar = lies.start();
        let options = ["-r", "-v", "--patience=2s", "--object-size=256KiB"];
        let ended = Haul::cp(options).args([liar.url("/d/")]).args([&sink]).run().sane().exits(0);
        for (path, content) in &files {
            assert!(read(sink.join(path)) == *content, "{further:?}, {path}: {}", ended.describe());
        }
    });
}

/// Goal: the same of real servers that take one session of a user, or of a host.
/// Method: the session stands still for more than ten seconds in the middle of the walk.
#[test]
fn one_session_suffices_at_real_servers() {
    let kinds = Kind::these(&[Kind::ProftpdOne, Kind::VsftpdOne]);
    beside(kinds, |kind| {
        let (room, server, mut rng) = (Room::new(), Ftpd::start(kind), fastrand::Rng::with_seed(94));
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        let dirs: Vec<PathBuf> = (0..300).map(|n| PathBuf::from(format!("d{n}"))).collect();
        let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000);
        for (n, dir) in dirs.iter().enumerate() {
            std::fs::create_dir_all(data.join(dir)).expect("make a directory");
            let len = if n % 50 == 7 { 2 * MIB } else { 1000 + n };
            let path = data.join(dir).join("f");
            std::fs::write(&path, tree::bytes(&mut rng, len)).expect("write a file");
            tree::set_mtime(&path, then);
        }
        let options = ["-r", "-v", "--object-size=256KiB"];
        let mut run = Haul::cp(options).args([server.url(contents(&data))]).args([&sink]).start();
        assert!(run.until(|_| !server.sessions().is_empty()), "{}", run.stderr());
        std::thread::sleep(Duration::from_millis(200));
        let sessions = server.sessions();
        procs::signal_all(&sessions, Signal::STOP);
        std::thread::sleep(Duration::from_secs(12));
        procs::signal_all(&sessions, Signal::CONT);
        let ended = run.wait().sane().exits(0);
        for dir in dirs {
            let path = dir.join("f");
            assert!(read(sink.join(&path)) == read(data.join(&path)), "{kind:?}: {}", ended.describe());
        }
    });
}

/// Goal: a session that is lost in the middle of a file, and not taken again, leaves that to others that have
/// nothing to do: these ask the server, which is not gone.
#[test]
fn a_lost_session_leaves_its_work_to_others() {
    beside([Further::Closed, Further::Silent], |further| {
        let (room, mut rng) = (Room::new(), fastrand::Rng::with_seed(95));
        let sink = room.dir("sink");
        // The walk's session goes to the first that reads.
        let mut lies = Lies::default().refuses_sessions(3..usize::MAX).further(further);
        let files: Vec<Vec<u8>> =
            (0..7).map(|n| tree::bytes(&mut rng, if n == 3 { 24 * MIB } else { 400_000 + n })).collect();
        for (n, content) in files.iter().enumerate() {
            let manners: &[Manner] = if n == 3 { &[Manner::HangUp(20 * MIB)] } else { &[] };
            lies = lies.in_turn(&format!("/d/f{n}"), &[content], manners);
        }
        let liar = lies.start();
        let options = ["-r", "-v", "--patience=2s", "--object-size=256KiB"];
        let ended = Haul::cp(options).args([liar.url("/d/")]).args([&sink]).run().sane().exits(0);
        for (n, content) in files.iter().enumerate() {
            assert!(read(sink.join(format!("f{n}"))) == *content, "f{n}: {}", ended.describe());
        }
        assert!(liar.heard().iter().any(|line| line == "NOOP"), "nobody asked: {}", ended.describe());
    });
}

/// Goal: sessions that a source did not take are tried again in the same run, as long as there is work.
/// Method: small files for some six seconds; all sessions but the first are refused once.
#[test]
fn a_source_is_asked_again_for_sessions() {
    beside([Further::Told, Further::Closed], |further| {
        let (room, mut rng) = (Room::new(), fastrand::Rng::with_seed(96));
        let sink = room.dir("sink");
        let mut lies = Lies::default().refuses_sessions(1..8).further(further);
        lies = lies.sends_in(Duration::from_millis(20));
        let files: Vec<Vec<u8>> = (0..300).map(|n| tree::bytes(&mut rng, 1000 + n)).collect();
        for (n, content) in files.iter().enumerate() {
            lies = lies.file(&format!("/d/f{n}"), content);
        }
        let liar = lies.start();
        let ended = Haul::cp(["-r", "-v"]).args([liar.url("/d/")]).args([&sink]).run().sane().exits(0);
        for (n, content) in files.iter().enumerate() {
            assert!(read(sink.join(format!("f{n}"))) == *content, "f{n}: {}", ended.describe());
        }
        assert!(logins(&liar.heard()) > 1, "{further:?}: {}", ended.describe());
    });
}

/// haul's own server of a directory; its log says who came.
fn server_of_haul(root: &Path) -> (String, Running) {
    let listen = format!("127.0.0.1:{}", free_port());
    let words = ["serve", "gridftp", "--listen", &listen, "--anonymous", "write", "--user", "root"];
    let mut server = Haul::new(words).args(["--root"]).args([root]).start();
    assert!(server.until(|server| server.stderr().contains(" listen ftp://")), "{}", server.stderr());
    (format!("ftp://{listen}/small"), server)
}

/// Goal: at a real server, whose log says who came, one small file is one login, at a destination and at a
/// source.
#[test]
fn a_servers_log_has_few_logins() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let room = Room::new();
    let (kept, to) = (room.dir("kept"), room.at("copy"));
    let source = room.file("small", "some bytes");
    for is_sink in [true, false] {
        let (url, mut server) = server_of_haul(&kept);
        let (from, to) = match is_sink {
            true => (source.clone().into_os_string(), url.into()),
            false => (url.into(), to.clone().into_os_string()),
        };
        Haul::cp([from]).args([to]).run().sane().exits(0);
        let came = |server: &Running| server.stderr().lines().filter(|line| line.contains(" end ")).count();
        assert!(server.until(|server| came(server) > 0), "{}", server.stderr());
        assert_eq!(came(&server), 1, "{}", server.stderr());
        server.signal(rustix::process::Signal::TERM);
        server.wait();
    }
    assert_eq!(read(&to), b"some bytes");
}
