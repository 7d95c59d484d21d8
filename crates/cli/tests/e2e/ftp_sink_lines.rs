//! Small files that follow each other to a server without waiting for its word: how often that waits, what
//! becomes of them where one is refused in their middle, and that real servers take them in their order.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::support::beside::beside;
use crate::support::compare::{BELOW, Opts, assert_same};
use crate::support::far::Far;
use crate::support::ftpd::{Ftpd, Kind, Talk, certificate, contents};
use crate::support::run::{Haul, Outcome, Running};
use crate::support::sshd::free_port;
use crate::support::taker::{InBlocks, Interrupted, Script, Taker, Takes};
use crate::support::{Room, read, set_mode, tree};

/// Files of one length each has other bytes of: which one's something is can be told, and its length says
/// nothing.
const LEN: usize = 3000;

fn furnish(room: &Room, names: impl Iterator<Item = String>) -> PathBuf {
    let data = room.dir("data");
    let mut rng = fastrand::Rng::with_seed(71);
    for name in names {
        let path = data.join(name);
        std::fs::write(&path, tree::bytes(&mut rng, LEN)).expect("write a file");
        set_mode(&path, 0o644);
        let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_400_000_000);
        tree::set_mtime(&path, time);
    }
    data
}

/// `haul cp --json -r -v --patience=20s --writers=1 DATA/ TAKER`.
fn cp(data: &Path, taker: &Taker) -> Outcome {
    let options = ["-r", "-v", "--patience=20s", "--writers=1"];
    Haul::cp(options).args([contents(data)]).args([taker.url("/d/")]).run().sane()
}

/// So many files are there, each as it was sent, and nothing else.
#[track_caller]
fn assert_whole(taker: &Taker, data: &Path, count: usize, ended: &Outcome) {
    for path in taker.paths() {
        let name = path.rsplit('/').next().expect("a name");
        assert!(!name.contains("haul~"), "{path} stays\n{}", ended.describe());
        assert!(taker.file(&path) == Some(read(data.join(name))), "{path} differs\n{}", ended.describe());
    }
    assert_eq!(taker.paths().len(), count, "{}", ended.describe());
}

/// Goal: small files cost no round trip each, nor several a bundle, but a few for many.
/// Method: a server whose answers arrive when it has nothing more to do, so that what is waited for is
/// counted; one session. What was one after the other came to 290 here.
#[test]
fn small_files_cost_no_round_trips() {
    const FILES: usize = 200;
    let room = Room::new();
    let data = furnish(&room, (0..FILES).map(|n| format!("f{n}")));
    let taker = Script::default().in_blocks("none", &[]).with_sums().far().start();
    let ended = cp(&data, &taker).exits(0);
    assert_whole(&taker, &data, FILES, &ended);
    assert!(taker.turns() < FILES * 3 / 4, "{} round trips: {}", taker.turns(), ended.describe());
}

/// Goal: in stream mode a small file costs two round trips: the connection and the word that it begins, and
/// the word that it is there with where the next one goes. A server that is busy with a file costs one more,
/// and one that loses what comes meanwhile a session; each file is there as it was sent.
/// Method: as above. Making a connection costs nothing here, and names and the login come on top.
#[test]
fn small_files_cost_two_round_trips_in_stream_mode() {
    const FILES: usize = 60;
    let busy = Interrupted::Busy("450 EPSV: data transfer in progress");
    let odd = Interrupted::Busy("503 not now");
    beside(
        [(None, 2), (Some(busy), 3), (Some(odd), 3), (Some(Interrupted::Lost), 3)],
        |(interrupted, trips)| {
            let room = Room::new();
            let data = furnish(&room, (0..FILES).map(|n| format!("f{n}")));
            let script = Script::default().far();
            let script = match interrupted {
                Some(how) => script.interrupted(how),
                None => script,
            };
            let taker = script.start();
            let ended = cp(&data, &taker).exits(0);
            assert_whole(&taker, &data, FILES, &ended);
            let stored = taker.heard().iter().filter(|line| line.starts_with("STOR")).count();
            // One more is the trial of renames.
            assert!(stored <= FILES + 1, "{interrupted:?}: {stored} files were sent: {}", ended.describe());
            let turns = taker.turns();
            assert!(
                turns < FILES * trips + FILES / 2,
                "{interrupted:?}: {turns} round trips: {}",
                ended.describe()
            );
        },
    );
}

/// Goal: of a server that obeys what it is asked while it takes a file, or breaks that off for it, no file
/// counts as taken that is not, whatever it says in whichever order; and it is asked so no further.
/// Method: what it keeps of such a file has the right length and other bytes, and it makes no sums.
#[test]
fn no_answer_but_its_own_is_a_files_word() {
    const FILES: usize = 8;
    const PLACE: &str = "229 here (|||9|)";
    let cases: [(&'static [&'static str], i32); 10] = [
        (&[PLACE], 0),
        (&[PLACE, "226 that is all"], 0),
        (&[PLACE, "550 not that"], 0),
        (&[PLACE, "552 quota exceeded"], 1),
        (&["426 aborted", "226 abort successful"], 0),
        (&["450 aborted", "226 abort successful"], 0),
        (&["226 abort successful", "450 aborted"], 0),
        (&["200 well", "226 that is all"], 0),
        (&["500 unknown", "552 quota exceeded"], 1),
        (&["226 that is all", "226 that is all"], 0),
    ];
    beside(cases, |(words, code)| {
        let room = Room::new();
        let data = furnish(&room, (0..FILES).map(|n| format!("f{n}")));
        let taker = Script::default().far().interrupted(Interrupted::Breaks(words)).start();
        let ended = cp(&data, &taker).exits(code);
        if code == 0 {
            assert_whole(&taker, &data, FILES, &ended);
        }
        for path in taker.paths().iter().filter(|path| !path.contains("haul~")) {
            let name = path.rsplit('/').next().expect("a name");
            assert!(taker.file(path) == Some(read(data.join(name))), "{words:?}: {}", ended.describe());
        }
        let heard = taker.heard();
        let stored = heard.iter().filter(|line| line.starts_with("STOR")).count();
        // One more is the trial of renames, and one went again.
        assert!(stored <= FILES + 2, "{words:?}: {stored} files were sent: {}", ended.describe());
    });
}

/// Goal: the same of real servers, without TLS and with it: two round trips a file of vsftpd, which answers
/// behind the file what it is asked meanwhile, and no more than three of ProFTPD, which may be busy then.
/// Method: what they say arrives when nothing more is said to them. Connections for data cost nothing here.
#[test]
fn real_servers_take_small_files_in_few_round_trips() {
    const FILES: usize = 60;
    let kinds = Kind::these(&[Kind::Vsftpd, Kind::VsftpdTls, Kind::Proftpd, Kind::ProftpdTls]);
    beside(kinds, |kind| {
        let (room, ftpd) = (Room::new(), Ftpd::start(kind));
        let data = furnish(&room, (0..FILES).map(|n| format!("f{n}")));
        let trips = if matches!(kind, Kind::Vsftpd | Kind::VsftpdTls) { 2 } else { 3 };
        // A busy machine tears what comes together into two turns, which is no round trip: the least of
        // three counts.
        let few = (0..3).any(|time| {
            let far = Far::to(ftpd.port);
            let sink = room.dir(&format!("sink{time}"));
            let url = ftpd.url(&sink).replace(&format!(":{}/", ftpd.port), &format!(":{}/", far.port));
            let options = ["-r", "-v", "--patience=20s", "--writers=1"];
            let trusting = Haul::cp(options).env("SSL_CERT_FILE", certificate("ca.pem"));
            trusting.args([contents(&data)]).args([url]).run().sane().exits(0);
            assert_same(&data, &sink, Opts { metadata: false, ..BELOW });
            let turns = far.turns();
            eprintln!("{kind:?}: {turns} round trips for {FILES} files");
            turns < FILES * trips + FILES / 2
        });
        assert!(few, "{kind:?}");
    });
}

/// Goal: where a server refuses a file whose bytes went already, it takes them for the next one's; nothing
/// that it says from then on is believed, and each file is there as it was sent.
/// Method: two files in the middle of lines that are refused once, over a way on which the answer comes when
/// all behind them went; all have one length. Nobody may ask for the sum of what went behind them.
#[test]
fn behind_a_refused_file_nothing_is_believed() {
    const FILES: usize = 80;
    let room = Room::new();
    let data = furnish(&room, (0..FILES).map(|n| format!("f{n}")));
    let refused = [".f20.haul~", ".f50.haul~"];
    let script = Script::default().with_sums().far();
    let script = refused
        .iter()
        .fold(script, |script, part| script.in_blocks(part, &[InBlocks::Refuse("450 the disk is odd")]));
    let taker = script.start();
    let ended = cp(&data, &taker).exits(0);
    assert_whole(&taker, &data, FILES, &ended);
    let heard = taker.heard();
    let mut some = 0;
    for part in refused {
        let is_it = |line: &String| line.starts_with("STOR") && line.contains(part);
        let at = heard.iter().position(is_it).expect("it was said");
        let behind = heard[at + 1..].iter().take_while(|line| !line.starts_with("USER"));
        for path in behind.filter_map(|line| line.strip_prefix("STOR ")) {
            some += 1;
            let asks = |line: &String| line.starts_with("CKSM") && line.ends_with(path);
            assert!(!heard.iter().any(asks), "{path} is believed: {}", ended.describe());
        }
    }
    assert!(some > 0, "nothing went behind a refused file: {heard:?}");
}

/// Goal: a server that refuses many files ends few sessions: where lines are lost again and again, bytes
/// wait for its word.
#[test]
fn refused_files_end_few_sessions() {
    let room = Room::new();
    let name = |n| if n % 3 == 0 { format!("bad{n}") } else { format!("f{n}") };
    let data = furnish(&room, (0..120).map(name));
    let (in_blocks, plain) =
        ([InBlocks::Refuse("553 not this name"); 400], [Takes::Refuse("553 not this name"); 400]);
    let taker = Script::default().in_blocks("bad", &in_blocks).takes("bad", &plain).with_sums().start();
    let ended = cp(&data, &taker).exits(3);
    assert_whole(&taker, &data, 80, &ended);
    let sessions = taker.heard().iter().filter(|line| line.starts_with("USER")).count();
    assert!(sessions <= 8, "{sessions} sessions: {}", ended.describe());
}

/// Goal: with whatever goes wrong with a file in the middle of a line, each file is there as it was sent, and
/// nothing of ours stays.
#[test]
fn what_goes_wrong_in_a_line_is_sent_again() {
    beside(
        [
            InBlocks::Marked,
            InBlocks::Refuse("450 not now"),
            InBlocks::Refuse("425 no connections"),
            InBlocks::Early(1),
            InBlocks::FirstEnd,
            InBlocks::Claims,
            InBlocks::Short(5),
            InBlocks::Wrong,
            InBlocks::LosesOne(1, Some("426 broken")),
            InBlocks::Confuses("451 my disk is odd"),
            InBlocks::HangUp(1),
            InBlocks::Begins,
            InBlocks::Closes,
        ],
        |how| {
            const FILES: usize = 80;
            let room = Room::new();
            let data = furnish(&room, (0..FILES).map(|n| format!("f{n}")));
            let taker = Script::default().in_blocks(".f20.", &[how]).with_sums().far().start();
            let ended = cp(&data, &taker);
            assert!(ended.status.code() == Some(0), "{how:?}: {}", ended.describe());
            assert_whole(&taker, &data, FILES, &ended);
        },
    );
}

/// haul's own server of a directory.
fn server_of_haul(root: &Path) -> (u16, Running) {
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let words = ["serve", "gridftp", "--listen", &listen, "--anonymous", "write", "--user", "root"];
    let mut server = Haul::new(words).args(["--root"]).args([root]).start();
    assert!(server.until(|server| server.stderr().contains(" listen ftp://")), "{}", server.stderr());
    (port, server)
}

/// Says and gives four files without hearing anything; what the server says of each behind that.
fn four_at_once(port: u16, dir: &str, data: &[Vec<u8>], missing: Option<usize>) -> Vec<String> {
    let mut talk = Talk::to(port);
    for line in ["USER anonymous", "PASS a@b", "TYPE I", "MODE E"] {
        let reply = talk.ask(line);
        assert!(reply.starts_with(['2', '3']), "{line}: {reply}");
    }
    let mut socket = talk.data();
    for (n, content) in data.iter().enumerate() {
        let below = if missing == Some(n) { "missing/" } else { "" };
        talk.say(format!("STOR {dir}{below}f{n}").as_bytes());
        let number = |n: usize| (n as u64).to_be_bytes();
        let block = [&[0][..], &number(content.len()), &number(0), content].concat();
        let end = [&[0x48][..], &number(0), &number(1)].concat();
        socket.write_all(&[block, end].concat()).expect("give a file");
    }
    let told = data.iter().map(|_| {
        loop {
            let reply = talk.reply();
            if !reply.starts_with('1') {
                return reply;
            }
        }
    });
    told.collect()
}

/// Goal: real servers take what is given before their word in the order in which files were said. Where one
/// is refused, that of Globus gives its bytes to the next one, which is why nothing is believed then; haul's
/// own closes the connection. Method: by plain sockets, without haul; each byte that is there compared.
#[test]
fn servers_take_early_bytes_in_their_order() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut rng = fastrand::Rng::with_seed(72);
    let data: Vec<Vec<u8>> = (0..4).map(|n| tree::bytes(&mut rng, 50_000 + n * 1000)).collect();
    let check = |what: &str, port: u16, dir: &Path, said: &str, mixes: bool| {
        let told = four_at_once(port, said, &data, None);
        assert!(told.iter().all(|reply| reply.starts_with("226")), "{what}: {told:?}");
        for (n, content) in data.iter().enumerate() {
            assert!(read(dir.join(format!("f{n}"))) == *content, "{what}: file {n}");
        }
        let told = four_at_once(port, said, &data, Some(1));
        assert!(told[0].starts_with("226") && told[1].starts_with('5'), "{what}: {told:?}");
        assert!(read(dir.join("f0")) == data[0], "{what}");
        // Where it mixes, it says 226 of another file's bytes; else what was there before is there.
        let (reply, of) = if mixes { ("226", 1) } else { ("425", 2) };
        assert!(told[2].starts_with(reply) && read(dir.join("f2")) == data[of], "{what}: {told:?}");
    };
    let room = Room::new();
    let dir = room.dir("sink");
    let (port, server) = server_of_haul(&room.at(""));
    check("haul", port, &dir, "/sink/", false);
    server.signal(rustix::process::Signal::TERM);
    server.wait();
    if crate::support::needs::all_here(&["gridftp"]) {
        let (room, ftpd) = (Room::new(), Ftpd::start(Kind::Gridftp));
        let dir = room.dir("sink");
        check("Globus", ftpd.port, &dir, &format!("{}/", dir.display()), true);
    }
}
