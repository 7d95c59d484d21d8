//! What becomes of what fails: how often it is tried again, whom that is asked, and copies that are begun
//! again as a whole.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal};

use crate::support::compare::{BELOW, Opts, assert_no_debris, assert_same, debris};
use crate::support::ftpd::{Ftpd, Kind, contents};
use crate::support::liar::{Liar, Lies, Manner};
use crate::support::node::{Node, Slow, Software};
use crate::support::run::Haul;
use crate::support::sshd::Sshd;
use crate::support::{Room, procs, read};

const LATER: Manner = Manner::Refuse("451 later");

/// A server whose file is refused so many times, and then given.
fn refuses(times: usize) -> Liar {
    Lies::default().odd("/f", b"content", 7, LATER, times).start()
}

fn cp(liar: &Liar, options: &[&str], sink: &Path) -> Haul {
    Haul::cp(options).args([liar.url("/f")]).args([sink])
}

/// A program of sh that writes what it is asked to `asked` beside it.
fn command(room: &Room, script: &str) -> PathBuf {
    let asked = room.at("asked");
    let text =
        format!("#!/bin/sh\nread -r line\nprintf '%s\\n' \"$line\" >>'{}'\n{script}\n", asked.display());
    let path = room.at("retry command");
    crate::support::program(&path, &text);
    path
}

fn asked(room: &Room) -> Vec<serde_json::Value> {
    let lines = fs::read_to_string(room.at("asked")).unwrap_or_default();
    lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Goal: what a server refuses for now is tried five times, and for longer where that was asked.
#[test]
fn what_may_pass_is_tried_for_as_long_as_was_asked() {
    let room = Room::new();
    let ended = cp(&refuses(5), &[], &room.at("a")).run().sane().exits(3);
    ended.says("451 later");
    assert!(!room.at("a").exists());
    cp(&refuses(5), &["--retry-for=1h"], &room.at("b")).run().sane().exits(0);
    assert_eq!(read(room.at("b")), b"content");
    // What does not pass is not waited for.
    let lasting = Lies::default().odd("/f", b"content", 7, Manner::Refuse("550 no"), usize::MAX).start();
    cp(&lasting, &["--retry-for=1h"], &room.at("c")).run().sane().exits(3);
}

/// Goal: a server that is not there yet is waited for, where that was asked.
#[test]
fn a_server_that_comes_later_is_waited_for() {
    let room = Room::new();
    let ended =
        Haul::cp(["--retry-for=2s", "ftp://127.0.0.1:1/f"]).args([room.at("a")]).run().sane().exits(1);
    assert_eq!(ended.summary().text("error_kind"), "network", "{}", ended.describe());
    // A stop ends the waiting, whichever end it is of, or both.
    let nowhere = "ftp://127.0.0.1:1/f";
    for (from, to) in [(Some(nowhere), None), (None, Some(nowhere)), (Some(nowhere), Some(nowhere))] {
        let room = Room::new();
        let path = room.file("a", "content").display().to_string();
        let sink = room.at("b").display().to_string();
        let program = command(&room, "echo default");
        let words = format!("--retry-command='{}'", program.display());
        let copy = Haul::cp(["--retry-for=1h", &words, from.unwrap_or(&path), to.unwrap_or(&sink)]);
        let mut run = copy.start();
        assert!(run.until(|_| !asked(&room).is_empty()), "{}", run.stderr());
        assert_eq!(asked(&room)[0]["step"], "start");
        run.signal(Signal::INT);
        run.wait().sane().exits(130);
    }
}

/// Goal: a command says how often and when, is told what happened, and is no part of a shell's words.
#[test]
fn a_command_says_what_becomes_of_it() {
    let room = Room::new();
    let program =
        command(&room, r#"[ "$1" = '$(touch x); y' ] || exit 1; echo '{"do":"retry","after":0.1}'"#);
    let words = format!("--retry-command='{}' '$(touch x); y'", program.display());
    cp(&refuses(12), &[&words], &room.at("a")).run().sane().exits(0);
    assert_eq!(read(room.at("a")), b"content");
    let questions = asked(&room);
    assert_eq!(questions.len(), 12);
    for (at, question) in questions.iter().enumerate() {
        assert_eq!(question["attempts"], at as u64 + 1, "{question}");
        assert_eq!((&question["step"], &question["passing"]), (&"file".into(), &true.into()), "{question}");
        assert!(question["text"].as_str().is_some_and(|text| text.contains("451 later")), "{question}");
    }
}

/// Goal: a command that gives up is heard at once, and one that sends to another replica too.
#[test]
fn a_command_gives_up_or_goes_elsewhere() {
    let room = Room::new();
    let program = command(&room, "echo give_up");
    let words = format!("--retry-command='{}'", program.display());
    cp(&refuses(1), &[&words], &room.at("a")).run().sane().exits(3);
    assert_eq!(asked(&room).len(), 1);
    let room = Room::new();
    let program = command(&room, "echo replica");
    let words = format!("--retry-command='{}'", program.display());
    let (here, there) = (refuses(usize::MAX), refuses(0));
    let replica = format!("--replica={}", there.url("/f"));
    cp(&here, &[&words, &replica], &room.at("a")).run().sane().exits(0);
    assert_eq!((read(room.at("a")).as_slice(), asked(&room).len()), (&b"content"[..], 1));
}

/// Goal: a command that is missing, fails, or prints what is no answer, is told of once, and haul decides.
#[test]
fn a_command_without_an_answer_is_told_of_once() {
    for script in ["exit 7", "echo nonsense", "yes", "echo replica", "kill -9 $$"] {
        let room = Room::new();
        let program = command(&room, script);
        let words = format!("--retry-command='{}'", program.display());
        let ended = cp(&refuses(2), &[&words], &room.at("a")).run().sane().exits(0);
        assert_eq!(ended.stderr.matches("the retry command").count(), 1, "{script}: {}", ended.describe());
        assert_eq!(asked(&room).len(), 2);
    }
    let room = Room::new();
    let ended = cp(&refuses(2), &["--retry-command=/nonexistent/x"], &room.at("a")).run().sane().exits(0);
    assert_eq!(ended.stderr.matches("cannot be started").count(), 1, "{}", ended.describe());
}

/// An ssh that fails to connect so many times before it is one.
fn failing_ssh(room: &Room, sshd: &Sshd, times: usize) -> PathBuf {
    let (count, ssh) = (room.at("count"), sshd.command());
    let text = format!(
        "#!/bin/sh\ncase \"$*\" in *' -T '*) echo x >>'{count}' ;; *) exec {ssh} \"$@\" ;; esac\n[ $(wc -l <'{count}') -gt {times} ] || {{ echo 'ssh: connect to host h port 22: \
         Connection refused' >&2; exit 255; }}\nexec {ssh} \"$@\"\n",
        count = count.display(),
    );
    let path = room.at("ssh");
    crate::support::program(&path, &text);
    path
}

/// Goal: a far end that cannot be reached is tried again only where that was asked, and the summary says how
/// often.
#[test]
fn a_far_end_that_is_not_there_is_tried_again_where_asked() {
    need!("sshd");
    for (options, code) in [(&[][..], 1), (&["--retry-for=1h"], 0)] {
        let (room, sshd) = (Room::new(), Sshd::start());
        room.file("a", "content");
        let ssh = failing_ssh(&room, &sshd, 2);
        let to = sshd.path(&room.at("b"));
        let copy = Haul::cp(options).args(["-e".as_ref(), ssh.as_os_str()]).args([room.at("a")]).args([to]);
        let ended = copy.run().sane().exits(code);
        if code == 0 {
            assert_eq!(read(room.at("b")), b"content");
            assert!(ended.summary().chosen("attempts").starts_with("3 (2 x "), "{}", ended.describe());
        }
    }
}

/// Goal: a copy is begun again as often as was asked and no more, and a signal ends a pause at once.
/// Method: an ssh that fails twice; with one attempt too few, with enough, and with a time besides; one that
/// fails for ever, stopped in its third pause or a later one.
#[test]
fn a_copy_is_begun_again_so_often() {
    need!("sshd");
    let run = |options: &[&str], times: usize| {
        let (room, sshd) = (Room::new(), Sshd::start());
        room.file("a", "content");
        let ssh = failing_ssh(&room, &sshd, times);
        let to = sshd.path(&room.at("b"));
        let copy = Haul::cp(options).args(["-e".as_ref(), ssh.as_os_str()]).args([room.at("a")]).args([to]);
        (room, sshd, copy)
    };
    for (options, code) in [
        (&["--retries=1"][..], 1),
        (&["--retries=2"], 0),
        (&["--retries=0", "--retry-for=1h"], 1),
        (&["--retries=2", "--retry-for=1h"], 0),
    ] {
        let (room, _sshd, copy) = run(options, 2);
        let ended = copy.run().sane().exits(code);
        assert_eq!(room.at("b").exists(), code == 0, "{}", ended.describe());
        if code == 0 {
            ended.says("the copy is begun again in").says("(2 of 2)");
        }
    }
    let (room, _sshd, copy) = run(&["--retries=1000"], 1_000_000);
    let mut run = copy.start();
    let tried = || fs::read_to_string(room.at("count")).unwrap_or_default().lines().count();
    assert!(run.until(|_| tried() >= 3), "{}", run.stderr());
    run.signal(Signal::INT);
    run.wait().sane().exits(130);
}

/// Goal: a far end that is killed in the middle is launched anew where that was asked; what was finished is
/// not moved again, and the tree is whole; each file is counted once.
#[test]
fn a_far_end_that_dies_is_launched_anew() {
    need!("sshd");
    let (room, sshd) = (Room::new(), Sshd::start());
    let tree = room.dir("tree");
    for n in 0..40_u64 {
        let content = crate::support::tree::bytes(&mut fastrand::Rng::with_seed(n), 1 << 20);
        room.file(&format!("tree/f{n:02}"), content);
    }
    let sink = room.dir("sink");
    let words = ["-r", "--retry-for=10m", "--rate=8MB/s", "--patience=5s"];
    let copy = Haul::cp(words).by(&sshd).args([&tree]).args([sshd.path(&sink)]);
    let mut run = copy.start();
    let some = || {
        fs::read_dir(sink.join("tree")).map_or(0, |dir| {
            dir.flatten().filter(|e| !e.file_name().to_string_lossy().starts_with('.')).count()
        })
    };
    assert!(run.until(|_| some() >= 5), "{}", run.stderr());
    let is_daemon = |pid: &Pid| pid.as_raw_nonzero().get().unsigned_abs() == sshd.pid();
    let served: Vec<Pid> = procs::descendants(sshd.pid()).into_iter().filter(|pid| !is_daemon(pid)).collect();
    procs::signal_all(&served, Signal::KILL);
    let ended = run.wait().sane().exits(0);
    assert_same(&tree, &sink.join("tree"), BELOW);
    assert_no_debris(&sink);
    let summary = ended.summary();
    // Of some the end was not heard of before.
    let (files, known) = (summary.number("files"), summary.number("unchanged"));
    assert!(files + known == 40 && files >= 30, "{}", ended.describe());
    assert_eq!(summary.number("bytes"), files << 20, "{}", ended.describe());
    assert!(summary.number("bytes_sent") < 60 << 20, "finished files moved again: {}", ended.describe());
}

/// Goal: with a manifest, of which each file is told once, a copy is not begun again.
#[test]
fn a_manifest_is_of_one_attempt() {
    need!("sshd");
    let (room, sshd) = (Room::new(), Sshd::start());
    room.file("a", "content");
    let ssh = failing_ssh(&room, &sshd, 1);
    let manifest = format!("--manifest={}", room.at("m").display());
    let to = sshd.path(&room.at("b"));
    let copy = Haul::cp(["--retry-for=1h", &manifest]).args(["-e".as_ref(), ssh.as_os_str()]);
    copy.args([room.at("a")]).args([to]).run().sane().exits(1);
}

/// The words that have everything tried again at once, and written down.
fn at_once(room: &Room) -> String {
    let program = command(room, r#"echo '{"do":"retry","after":0.1}'"#);
    format!("--retry-command='{}'", program.display())
}

/// More attempts than are made where nobody asked for any.
const MANY: usize = 7;

fn is_under_way(sink: &Path) -> bool {
    let large = |path: &PathBuf| fs::metadata(path).is_ok_and(|stat| stat.len() > 1 << 20);
    debris(sink).iter().any(large)
}

/// Goal: where it was asked for, a destination whose server is killed in the middle of an upload is waited
/// for, longer than by itself, and has all of it in the end and nothing else; where not, what was not taken
/// fails, in words.
#[test]
fn a_destination_that_is_away_is_waited_for() {
    need!("proftpd");
    let (room, mut ftpd) = (Room::new(), Ftpd::start(Kind::Proftpd));
    let data = room.dir("data");
    let mut rng = fastrand::Rng::with_seed(21);
    room.file("data/big", crate::support::tree::bytes(&mut rng, 16 << 20));
    (0..10).for_each(|n| drop(room.file(&format!("data/f{n}"), "small")));
    for asks in [Some("--retry-for=10m".to_owned()), Some(at_once(&room)), None] {
        let sink = room.dir("sink");
        // What is read before the server has let it in goes at once then: little of it.
        let copy = Haul::cp(["-r", "--rate=8MB/s", "--object-size=256KiB", "--patience=10s"]).args(&asks);
        let mut run = copy.args([contents(&data)]).args([ftpd.url(&sink)]).start();
        assert!(run.until(|_| is_under_way(&sink)), "{}", run.stderr());
        ftpd.kill();
        if asks.is_none() {
            let ended = run.wait().sane().exits(1).says("the destination's server is gone").says("big");
            assert!(!sink.join("big").exists(), "{}", ended.describe());
            return;
        }
        let by_command = asks.is_some_and(|words| words.contains("command"));
        assert!(!by_command || run.until(|_| asked(&room).len() > MANY), "{}", run.stderr());
        ftpd.start_again();
        let ended = run.wait().sane().exits(0);
        // Servers keep whole seconds.
        assert_same(&data, &sink, Opts { metadata: false, ..BELOW });
        assert_no_debris(&sink);
        assert_eq!(ended.summary().number("failed"), 0, "{}", ended.describe());
        fs::remove_dir_all(&sink).expect("remove it");
    }
}

/// Goal: the same of a server that another one sends to; what it said that it has is not moved again.
#[test]
fn a_pair_waits_for_a_server_that_is_away() {
    need!("gridftp");
    const LEN: usize = 12_000_000;
    let (a, mut b) = (
        Node::start(Software::Globus, [127, 0, 0, 2], ""),
        Node::start(Software::Globus, [127, 0, 0, 3], ""),
    );
    let data = a.place("big");
    fs::write(&data, crate::support::tree::bytes(&mut fastrand::Rng::with_seed(22), LEN)).expect("write it");
    for asks in [true, false] {
        let room = Room::new();
        let copy = b.place("copy");
        fs::create_dir(&copy).expect("make a directory");
        let slow = Slow::to(&b, 1_500_000);
        let state = format!("--state={}", room.at("state").display());
        let words = if asks { vec![at_once(&room)] } else { Vec::new() };
        let copying = Haul::cp(["--patience=5s", &state]).args(words);
        let mut run = copying.args([a.url(&data), slow.url(&copy)]).start();
        let half = run.until(|_| slow.passed.load(std::sync::atomic::Ordering::Relaxed) > LEN as u64 / 2);
        assert!(half, "{}", run.stderr());
        b.kill();
        if !asks {
            let ended = run.wait().sane().exits(1).says("the destination's server is gone");
            assert!(!copy.join("big").exists(), "{}", ended.describe());
            return;
        }
        assert!(run.until(|_| asked(&room).len() > MANY), "{}", run.stderr());
        slow.rate.store(1 << 40, std::sync::atomic::Ordering::Relaxed);
        b.start_again();
        let ended = run.wait().sane().exits(0);
        assert!(read(copy.join("big")) == read(&data), "{}", ended.describe());
        assert_no_debris(&copy);
        assert!(
            asked(&room).iter().any(|one| one["marker"].as_u64() > Some(1_000_000)),
            "{:?}",
            asked(&room)
        );
        fs::remove_dir_all(&copy).expect("remove it");
    }
}
