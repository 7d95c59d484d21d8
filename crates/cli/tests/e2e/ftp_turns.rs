//! Servers that take one session and no more: between two servers, and one run behind the other.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::support::beside::beside;
use crate::support::compare::{BELOW, Opts, assert_no_debris, assert_same};
use crate::support::ftpd::{Ftpd, Kind, contents};
use crate::support::node::{Node, Software, are_here};
use crate::support::run::{Haul, Outcome};
use crate::support::steered::{Odd, Steered};
use crate::support::{Room, tree};

const A: [u8; 4] = [127, 0, 0, 4];
const B: [u8; 4] = [127, 0, 0, 5];
/// It hears of other hosts than its client's.
const PROFTPD: &str = "AllowForeignAddress on\n";
const VSFTPD: &str = "pasv_promiscuous=YES\nport_promiscuous=YES\n";
/// More runs than one in three of which would be refused.
const RUNS: usize = 12;

/// Small files in directories, and one that goes alone.
fn furnish(root: &Path, dirs: usize) {
    let mut rng = fastrand::Rng::with_seed(31);
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000);
    for n in 0..dirs {
        let dir = root.join(format!("d{n}/below"));
        fs::create_dir_all(&dir).expect("make directories");
        for (name, len) in [("small", rng.usize(0..9000)), ("other", 7 + n)] {
            fs::write(dir.join(name), tree::bytes(&mut rng, len)).expect("write a file");
            tree::set_mtime(&dir.join(name), then);
        }
    }
    fs::write(root.join("large"), tree::bytes(&mut rng, 6 << 20)).expect("write a file");
    tree::set_mtime(&root.join("large"), then);
}

fn arrived(data: &Path, copy: &Path, ended: &Outcome) {
    assert_eq!(ended.status.code(), Some(0), "{}", ended.describe());
    assert_same(data, copy, Opts { metadata: false, ..BELOW });
    assert_no_debris(copy);
}

/// Goal: between two servers a destination that takes one session gets everything, as one does that takes
/// many, its directories with their times as well; and so does one whose source takes one. The same command
/// again moves nothing.
#[test]
fn one_session_suffices_between_two() {
    use Software::{Proftpd, Vsftpd};
    let one = format!("{PROFTPD}MaxClientsPerUser 1\n");
    let rows = [(true, Proftpd, PROFTPD), (true, Vsftpd, VSFTPD), (false, Proftpd, PROFTPD)];
    beside(rows, |(is_sink, other, lines)| {
        if !are_here(&[Proftpd, other]) {
            return;
        }
        let room = Room::new();
        let (a, b) = match is_sink {
            true => (Node::start(other, A, lines), Node::start(Proftpd, B, &one)),
            false => (Node::start(Proftpd, A, &one), Node::start(other, B, lines)),
        };
        let (data, copy) = (a.place("data"), b.place("new/copy"));
        furnish(&data, 24);
        let state = format!("--state={}", room.at("state").display());
        let run = || {
            let options = ["-r", "-v", &state, "--patience=60s"];
            Haul::cp(options).args([a.url(&data) + "/", b.url(&copy)]).run().sane()
        };
        let ended = run();
        arrived(&data, &copy, &ended);
        let again = run();
        arrived(&data, &copy, &again);
        assert_eq!(again.summary().number("files"), 0, "{is_sink} {other:?}: {}", again.describe());
    });
}

/// Goal: a run leaves its sessions so that the next one at a server that takes one session has room at once.
#[test]
fn one_run_has_room_behind_another() {
    need!("proftpd");
    let (room, server) = (Room::new(), Ftpd::start(Kind::ProftpdOne));
    let (data, kept) = (room.dir("data"), room.dir("kept"));
    furnish(&data, 2);
    for run in 0..RUNS {
        let (there, here) = (kept.join(format!("{run}")), room.at(&format!("here{run}")));
        let up = Haul::cp(["-r"]).args([contents(&data)]).args([server.url(&there) + "/"]).run().sane();
        arrived(&data, &there, &up);
        let down = Haul::cp(["-r"]).args([server.url(&there) + "/"]).args([&here]).run().sane();
        arrived(&data, &here, &down);
    }
}

/// Goal: a server that answers a question twice costs a session, and no file: whichever question it is.
/// Method: old files stand there, so that all questions before and behind the renames have an answer with
/// facts.
#[test]
fn an_answer_that_came_twice_costs_a_session() {
    let names: Vec<String> = (0..12).map(|n| format!("/d/x{n:02}")).collect();
    beside(0..14, |after| {
        let mut a = Steered::start(A);
        let mut rng = fastrand::Rng::with_seed(after as u64);
        for name in &names {
            a = a.file(name, &tree::bytes(&mut rng, 5000));
        }
        for part in ["/d/x", "haul~"] {
            let mut b = Steered::start(B).odd_after(after, ("MLST", part), 1, Odd::Twice);
            for name in &names {
                b = b.file(name, b"old");
            }
            let room = Room::new();
            let state = format!("--state={}", room.at("state").display());
            let sources = names.iter().map(|name| a.url(name));
            let ended = Haul::cp(["-v", &state, "--patience=20s"]).args(sources).args([b.url("/d/")]);
            let ended = ended.run().sane().exits(0);
            assert_eq!(b.names(), names, "{after} {part}: {}", ended.describe());
            for name in &names {
                assert_eq!(b.content(name), a.content(name), "{after} {part}: {}", ended.describe());
            }
        }
    });
}
