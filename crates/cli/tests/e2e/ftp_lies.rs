//! FTP servers that lie: what they say wrong fails by name or in words, and nothing wrong is written, or
//! anywhere else.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::support::beside::beside;
use crate::support::compare::assert_no_debris;
use crate::support::liar::{Liar, Lies, Manner, Rest};
use crate::support::netns::{FAR_BLOCKED, NetnsPair};
use crate::support::run::{Haul, Outcome, Running};
use crate::support::{Room, read};

/// More than anybody needs to tell of a lie.
const SAID_MAX: usize = 64 << 10;

/// A line of a listing that is as it should be, but for its name.
fn line(name: &[u8]) -> Vec<u8> {
    [b"type=file;size=3;modify=20200102030405; ", name, b"\r\n"].concat()
}

/// `haul cp --json -r --patience=2s OPTIONS URL SINK`.
fn cp(options: &[&str], liar: &Liar, path: &str, sink: &Path) -> Haul {
    let patient = options.iter().any(|option| option.starts_with("--patience"));
    let patience = if patient { &[][..] } else { &["--patience=2s"] };
    Haul::cp(["-r"]).args(patience).args(options).args([liar.url(path)]).args([sink])
}

/// It ended by itself, not well, and said so in few words that no terminal minds.
#[track_caller]
fn assert_refused(ended: &Outcome) {
    assert!(matches!(ended.status.code(), Some(1 | 3)), "not refused: {}", ended.describe());
    assert_modest(ended);
}

#[track_caller]
fn assert_modest(ended: &Outcome) {
    let bytes = ended.stderr.len();
    assert!(bytes < SAID_MAX, "{bytes} bytes on stderr: {}", &ended.stderr[..2000]);
    let stdout = String::from_utf8_lossy(&ended.stdout);
    for text in [&ended.stderr[..], &stdout[..]] {
        assert!(!text.contains(['\u{1b}', '\r', '\0']), "a terminal would mind: {text:?}");
    }
}

fn some_bytes(len: usize) -> Vec<u8> {
    crate::support::tree::bytes(&mut fastrand::Rng::with_seed(110), len)
}

/// Goal: a name that is no name of an entry fails by itself; what stands beside it arrives, and nothing
/// outside the destination is touched.
/// Method: names with a slash, dots, NUL, CR and ESC, and none at all, as files and as directories.
#[test]
fn wrong_names_fail_alone() {
    let room = Room::new();
    let sink = room.dir("in/sink");
    let names: [&[u8]; 9] =
        [b"..", b"a/b", b"../escaped", b"/escaped", b"x\0y", b"x\ry", b"x\x1b[31my", b"x\x07y", b""];
    let mut listed: Vec<u8> = names.iter().flat_map(|name| line(name)).collect();
    for name in &names[1..4] {
        listed.extend([b"type=dir;modify=20200102030405; ", &name[..], b"\r\n"].concat());
    }
    let lies = Lies::default().file("/d/good", b"good").file("/d/sub/too", b"too").lines("/d", &listed);
    // Asked for any of them, it would send something.
    let asked = ["/d/a/b", "/d/x", "/escaped", "/d/../escaped", "/d//escaped"];
    let liar = asked.into_iter().fold(lies, |lies, path| lies.unlisted(path, b"esc")).start();
    let ended = cp(&[], &liar, "/d/", &sink).run().sane().exits(3);
    assert_modest(&ended);
    assert_eq!(read(sink.join("good")), b"good");
    assert_eq!(read(sink.join("sub/too")), b"too");
    assert!(ended.summary().number("failed") >= 7, "{}", ended.describe());
    let names = |dir: &Path| -> Vec<_> {
        let all = fs::read_dir(dir).expect("list a directory").flatten();
        let mut all: Vec<_> = all.map(|entry| entry.file_name().into_string().expect("UTF-8")).collect();
        all.sort();
        all
    };
    assert_eq!(names(&sink), ["good", "sub"], "{}", ended.describe());
    assert_eq!(names(&room.at("in")), ["sink"], "{}", ended.describe());
    assert!(!Path::new("/escaped").exists());
    assert_no_debris(&sink);
}

/// Goal: the same where only LIST is known.
/// Method: names as above in lines as `ls -l` writes them; lines that nobody writes; a size that is none.
#[test]
fn wrong_names_of_a_list_fail_alone() {
    let room = Room::new();
    let sink = room.dir("in/sink");
    let mut lines = b"total 9\r\n".to_vec();
    for name in [&b"good"[..], b"../escaped", b"/escaped", b"a/b", b"x\0y", b"x\x1b[31my", b"x\ry"] {
        lines.extend([b"-rw-r--r--   1 0        0               4 Nov 25  2019 ", name, b"\r\n"].concat());
    }
    lines.extend(b"-rw-r--r--   1 0        0        99999999999999999999999 Nov 25  2019 huge\r\n");
    lines.extend(b"a line that nobody writes\r\n");
    let lies =
        Lies::default().file("/d/good", b"good").unlisted("/d/a/b", b"esc").unlisted("/escaped", b"esc");
    let liar = lies.list(&lines).start();
    let ended = cp(&[], &liar, "/d/", &sink).run().sane().exits(3);
    assert_modest(&ended);
    assert_eq!(read(sink.join("good")), b"good");
    assert!(ended.summary().number("failed") >= 8, "{}", ended.describe());
    let count = |dir: &Path| fs::read_dir(dir).expect("list a directory").count();
    assert_eq!((count(&sink), count(&room.at("in"))), (1, 1), "{}", ended.describe());
    assert!(!Path::new("/escaped").exists());
}

/// Goal: one name twice in a listing is one file, or fails: never two in one.
#[test]
fn a_name_that_comes_twice_is_one_file() {
    let room = Room::new();
    let sink = room.dir("sink");
    let liar = Lies::default().file("/d/twin", b"123").lines("/d", &line(b"twin")).start();
    let ended = cp(&[], &liar, "/d/", &sink).run().sane();
    assert_modest(&ended);
    match fs::read(sink.join("twin")) {
        Ok(content) => assert_eq!(content, b"123"),
        Err(_) => assert_refused(&ended),
    }
    assert_no_debris(&sink);
}

/// Goal: a file whose told length is not what comes is never cut or filled up to it.
/// Method: told longer and shorter, by bytes and by objects, and as nothing.
#[test]
fn a_wrong_length_is_never_believed() {
    let whole = some_bytes(6 << 20);
    beside(
        [(100, 101), (100, 99), (100, 0), (6 << 20, 10 << 20), (6 << 20, 5 << 20), (0, 5)],
        |(len, told)| {
            let room = Room::new();
            let sink = room.dir("sink");
            let content = &whole[..len];
            let lies =
                Lies::default().file("/d/good", b"good").odd("/d/odd", content, told, Manner::Whole, 1000);
            let liar = lies.start();
            let ended = cp(&[], &liar, "/d/", &sink).run().sane();
            assert_modest(&ended);
            assert_eq!(read(sink.join("good")), b"good", "{len} {told}");
            match fs::read(sink.join("odd")) {
                Ok(copy) => {
                    assert!(copy == content, "{len} {told}: {} bytes\n{}", copy.len(), ended.describe())
                }
                Err(_) => assert_refused(&ended),
            }
            assert!(told <= len || !sink.join("odd").exists(), "{len} {told}: too little is not all");
        },
    );
}

/// Goal: a transfer that ends early is never taken for whole, whatever the server says of it, and what stands
/// beside it arrives.
/// Method: each way to end early, always: the run fails. Then once: it fails, or has made it good.
#[test]
fn a_transfer_that_ends_early_is_never_whole() {
    let whole = some_bytes(300_000);
    beside([0, 1, 150_000, 299_999], |at| {
        for manner in [
            Manner::Short(at),
            Manner::Cut(at, Some("426 connection closed")),
            Manner::Cut(at, Some("451 disk trouble")),
            Manner::Cut(at, Some("226 that is all")),
        ] {
            ends_early(&whole, manner, true);
        }
    });
}

/// Goal: the same where the server says nothing at all, or hangs up.
#[test]
fn a_transfer_that_nobody_ends_is_never_whole() {
    let whole = some_bytes(300_000);
    let hangs_up = [0, 150_000, 300_000].map(Manner::HangUp);
    let rows = [Manner::Cut(150_000, None), Manner::Stall(150_000)].into_iter().chain(hangs_up);
    beside(rows, |manner| ends_early(&whole, manner, false));
}

fn ends_early(whole: &[u8], manner: Manner, others_arrive: bool) {
    for times in [usize::MAX, 1] {
        let room = Room::new();
        let sink = room.dir("sink");
        let lies = Lies::default().file("/d/good", b"good").odd("/d/odd", whole, whole.len(), manner, times);
        let liar = lies.start();
        let ended = cp(&[], &liar, "/d/", &sink).run().sane();
        assert_modest(&ended);
        match fs::read(sink.join("odd")) {
            Ok(copy) => {
                assert!(copy == whole, "{} bytes\n{}", copy.len(), ended.describe());
                // All bytes may have come before the connection was lost.
                let came = matches!(manner, Manner::HangUp(at) if at == whole.len());
                assert!(times == 1 || came, "it was never sent: {}", ended.describe());
            }
            Err(_) => assert_refused(&ended),
        }
        if others_arrive {
            assert_eq!(read(sink.join("good")), b"good", "{}", ended.describe());
        }
    }
}

/// Goal: a listing that was not ended is not taken for whole.
/// Method: all of it comes, and then the server hangs up.
#[test]
fn a_listing_that_nobody_ends_is_an_error() {
    let room = Room::new();
    let sink = room.dir("sink");
    let liar = Lies::default().file("/d/good", b"good").hangs_up_while_listing().start();
    assert_refused(&cp(&[], &liar, "/d/", &sink).run().sane());
}

/// Goal: a reply without an end, or with no end of lines, ends the copy in few words or does not matter.
/// Method: two MiB in a line, and a multi-line reply of 300,000 lines that is never over, for each command.
#[test]
fn a_reply_without_an_end_is_refused() {
    let lines = b"-more\r\n250".repeat(300_000);
    beside(
        [("", "220"), ("PASS", "230"), ("FEAT", "211"), ("TYPE", "200"), ("MLST", "250"), ("EPSV", "229")],
        |(command, code)| {
            let long = [code.as_bytes(), b" ", &vec![b'x'; 2 << 20], b"\r\n"].concat();
            let many = [code.as_bytes(), &lines].concat();
            for bytes in [long, many] {
                let room = Room::new();
                let sink = room.dir("sink");
                let liar = Lies::default().file("/d/good", b"good").reply(command, &bytes).start();
                let ended = cp(&[], &liar, "/d/", &sink).run().sane();
                assert_modest(&ended);
                match fs::read(sink.join("good")) {
                    Ok(copy) => assert_eq!(copy, b"good", "{command}"),
                    Err(_) => assert_refused(&ended),
                }
            }
        },
    );
}

/// Goal: a server that accepts and says nothing is waited for no longer than the patience says.
#[test]
fn a_silent_server_is_given_up() {
    let room = Room::new();
    let liar = Lies::default().silent().start();
    let ended = cp(&[], &liar, "/d/", &room.dir("sink")).run().sane();
    assert_refused(&ended);
    assert!(ended.stderr.contains("127.0.0.1"), "which one: {}", ended.describe());
}

/// Goal: a stop ends a copy that waits for a server, however long that may be silent: as interrupted, without
/// an error, and with nothing made.
/// Method: a server that says nothing, from its greeting on or from one of the commands before the first
/// entry; where the source tells of the copy, and where the sink does.
#[test]
fn a_stop_ends_the_waiting_for_a_silent_server() {
    let lies = || Lies::default().file("/d/good", b"good");
    for at in ["", "USER", "FEAT", "MLST", "LIST"] {
        let liar = match at {
            "" => lies().silent(),
            at => lies().reply(at, b""),
        }
        .start();
        for options in [&["--patience=1h"][..], &["--patience=1h", "--dry-run"]] {
            let room = Room::new();
            let sink = room.dir("in").join("sink");
            let heard = liar.heard().len();
            // Whether it is a link is asked of the directory that it lies in.
            let mut run = cp(options, &liar, "/d/good", &sink).start();
            let mute = |_: &Running| liar.heard()[heard..].iter().any(|line| line.starts_with(at));
            assert!(run.until(mute), "it waits for {at}");
            run.signal(Signal::INT);
            let ended = run.wait().sane().exits(130);
            assert_modest(&ended);
            let summary = ended.summary();
            assert_eq!(summary.text("status"), "interrupted", "{at}");
            assert!(summary.0["error"].is_null(), "{at}: {}", ended.describe());
            assert_eq!(fs::read_dir(room.at("in")).expect("list a directory").count(), 0, "{at}");
        }
    }
}

/// Goal: the same where the server's address swallows what is sent to it.
#[test]
fn a_stop_ends_the_dialling_of_a_server() {
    need!("netns");
    let (pair, room) = (NetnsPair::new(), Room::new());
    let sink = room.dir("in").join("sink");
    let url = format!("ftp://{FAR_BLOCKED}:2121/d/");
    let mut run = Haul::cp(["-r", "--patience=1h", &url]).args([&sink]).near(&pair).start();
    let dials = |_: &Running| !sockets(&pair, &["-Htn", "state", "syn-sent"]).is_empty();
    assert!(run.until(dials), "it dials");
    run.signal(Signal::INT);
    let ended = run.wait().sane().exits(130);
    assert!(ended.summary().0["error"].is_null(), "{}", ended.describe());
    assert_eq!(fs::read_dir(room.at("in")).expect("list a directory").count(), 0);
}

/// What `ss` says in the near namespace.
fn sockets(pair: &NetnsPair, words: &[&str]) -> String {
    let run = Command::new("ip").args(["netns", "exec", &pair.near, "ss"]).args(words).output();
    String::from_utf8_lossy(&run.expect("run ss").stdout).trim().to_owned()
}

/// Goal: a server that sends its data connections to another host is asked at its own, and nobody goes there.
/// Method: PASV names 127.0.0.2, where somebody listens at the same port.
#[test]
fn data_come_from_the_host_that_was_named() {
    let room = Room::new();
    let sink = room.dir("sink");
    let lies = Lies::default().file("/d/good", b"good").elsewhere(Ipv4Addr::new(127, 0, 0, 2));
    let liar = lies.start();
    cp(&[], &liar, "/d/", &sink).run().sane().exits(0);
    assert_eq!(read(sink.join("good")), b"good");
    let (places, strayed) = liar.strayed();
    assert!(places > 0 && !strayed, "{places} places, and somebody came: {strayed}");
}

/// Goal: a listing of very many entries is listed to its end, in bounded words.
/// Method: 200,000 files in one directory, in a dry run; then as many that have no legal name.
#[test]
fn a_listing_of_very_many_entries_has_an_end() {
    let room = Room::new();
    let sink = room.dir("sink");
    let many: Vec<u8> = (0..200_000).flat_map(|index| line(format!("f{index}").as_bytes())).collect();
    let liar = Lies::default().lines("/d", &many).start();
    let summary = cp(&["-n", "--patience=1m"], &liar, "/d/", &sink).run().sane().exits(0).summary();
    assert_eq!(summary.number("files"), 200_000, "{summary:?}");
    let wrong: Vec<u8> = (0..200_000).flat_map(|index| line(format!("a/{index}").as_bytes())).collect();
    let liar = Lies::default().file("/d/good", b"good").lines("/d", &wrong).start();
    let ended = cp(&["-q", "--patience=1m"], &liar, "/d/", &sink).run().sane().exits(3);
    assert_eq!(read(sink.join("good")), b"good");
    assert_eq!(ended.summary().number("failed"), 200_000);
}

/// Goal: a directory that holds itself has an end.
/// Method: whatever is asked for is a directory with one of a long name in it, and a file.
#[test]
fn a_directory_that_holds_itself_has_an_end() {
    let room = Room::new();
    let sink = room.dir("sink");
    let name = "d".repeat(200);
    let inside = format!("type=dir;modify=20200102030405; {name}\r\n");
    let liar = Lies::default().everywhere(inside.as_bytes()).start();
    let ended = cp(&[], &liar, "/d/", &sink).run().sane();
    // The path in its message may be as long as the server made it.
    assert!(matches!(ended.status.code(), Some(1 | 3)), "{}", ended.describe());
    assert_no_debris(&sink);
}

/// Goal: nothing that a user or a server names is said to the server as a command of its own.
/// Method: line ends in the path of a URL; then in the name of the user.
#[test]
fn a_url_says_no_commands() {
    let room = Room::new();
    let sink = room.dir("sink");
    let liar = Lies::default().file("/d/good", b"good").start();
    for url in [
        format!("ftp://127.0.0.1:{}/d/%0D%0ADELE%20good", liar.port),
        format!("ftp://127.0.0.1:{}/d/%0ADELE%20good", liar.port),
        format!("ftp://a%0D%0ADELE%20good:b@127.0.0.1:{}/d/", liar.port),
        format!("ftp://a:b%0D%0ADELE%20good@127.0.0.1:{}/d/", liar.port),
    ] {
        let ended = Haul::cp(["-r", &url]).args([&sink]).run().sane();
        assert!(matches!(ended.status.code(), Some(1 | 2)), "{}", ended.describe());
        assert_modest(&ended);
    }
    let heard = liar.heard();
    assert!(heard.iter().all(|line| !line.starts_with("DELE")), "{heard:?}");
}

/// Goal: what a server says in an error is told in words that no terminal minds.
#[test]
fn what_a_server_says_does_not_reach_the_terminal_raw() {
    let room = Room::new();
    let sink = room.dir("sink");
    let lies = Lies::default().file("/d/good", b"good");
    let liar = lies.reply("RETR", b"550 \x1b[31mred\x07\x9b31m \xff\r\n").start();
    let ended = cp(&["-v"], &liar, "/d/", &sink).run().sane();
    assert_refused(&ended);
    assert!(!ended.stderr.contains(['\u{7}', '\u{9b}']), "{:?}", ended.stderr);
}

/// Goal: where several servers that differ answer at one address, a file is as one of them has it, or fails.
/// Method: sessions reach them in turns, both tell the same facts, and the first one is lost in the middle of
/// the file, once or always.
#[test]
fn a_file_is_not_put_together_of_two() {
    let both = some_bytes(24 << 20);
    let (one, other) = both.split_at(12 << 20);
    beside([1, 3, 100], |times| {
        let room = Room::new();
        let sink = room.dir("sink");
        let manners = vec![Manner::HangUp(6 << 20); times];
        let lies = Lies::default().file("/d/good", b"good").in_turn("/d/big", &[one, other], &manners);
        let ended = cp(&[], &lies.start(), "/d/", &sink).run().sane();
        assert_modest(&ended);
        match fs::read(sink.join("big")) {
            Ok(copy) => assert!(copy == one || copy == other, "of neither: {}", ended.describe()),
            Err(_) => assert_refused(&ended),
        }
        assert_eq!(read(sink.join("good")), b"good", "{}", ended.describe());
    });
}

/// Goal: a server that takes few sessions has every file read as a whole by one of these, also where the next
/// session would get another version of it; nothing is read again and again.
/// Method: more files than sessions, of several objects each, two versions in turns; what the server sent in
/// all. Once the files are small ones, too, which go in bundles.
#[test]
fn files_are_whole_where_few_sessions_are_taken() {
    let both = some_bytes(24 << 20);
    let (one, other) = both.split_at(12 << 20);
    beside([2, 3], |max| {
        let room = Room::new();
        let sink = room.dir("sink");
        let (mut lies, mut all) = (Lies::default().sessions_max(max), 0);
        for n in 0..6 {
            let len = (12 << 20) - n * 1000;
            lies = lies.in_turn(&format!("/d/big{n}"), &[&one[..len], &other[..len]], &[]);
            all += len;
        }
        for n in 0..50 {
            lies = lies.in_turn(&format!("/d/small{n}"), &[&one[n..2000], &other[n..2000]], &[]);
        }
        let liar = lies.start();
        let ended = cp(&[], &liar, "/d/", &sink).run().sane().exits(0);
        for n in 0..6 {
            let (copy, len) = (read(sink.join(format!("big{n}"))), (12 << 20) - n * 1000);
            assert!(copy == one[..len] || copy == other[..len], "{n}: of neither\n{}", ended.describe());
        }
        for n in 0..50 {
            let copy = read(sink.join(format!("small{n}")));
            assert!(copy == one[n..2000] || copy == other[n..2000], "{n}: of neither");
        }
        // A session that had to leave a file for another has lost what was on its way.
        assert!(liar.sent() < 2 * all, "{} bytes sent of {all}", liar.sent());
    });
}

/// Goal: a session that is lost in its work, and not taken again, leaves that to the others.
/// Method: connections end in the middle of files of both sorts, and the server takes fewer sessions than
/// there were.
#[test]
fn work_of_a_session_that_is_not_taken_again_is_done() {
    let (big, small) = (some_bytes(6 << 20), some_bytes(3000));
    let room = Room::new();
    let sink = room.dir("sink");
    let mut lies = Lies::default().sessions_max(4);
    for n in 0..4 {
        lies = lies.in_turn(&format!("/d/big{n}"), &[&big], &[Manner::HangUp(2 << 20)]);
    }
    for n in 0..40 {
        lies = lies.in_turn(
            &format!("/d/small{n:02}"),
            &[&small[n..]],
            if n % 8 == 3 { &[Manner::HangUp(100)] } else { &[] },
        );
    }
    let liar = lies.start();
    cp(&[], &liar, "/d/", &sink).run().sane().exits(0);
    for n in 0..4 {
        assert!(read(sink.join(format!("big{n}"))) == big, "big{n}");
    }
    for n in 0..40 {
        assert!(read(sink.join(format!("small{n:02}"))) == small[n..], "small{n}");
    }
}

/// Goal: an offset that a server takes and does not go to puts no byte into a wrong place.
/// Method: a session is lost in the middle of a file, once and more often; files go on at an offset then. Of
/// a short one the server has sent all that it should not before anybody could stop it.
#[test]
fn an_offset_that_is_not_obeyed_is_seen() {
    let lens = [(12 << 20, 6 << 20, "4MiB"), (800_000, 200_000, "64KiB")].into_iter();
    let rows = lens.flat_map(|of_len| [1, 3, 100].map(|times| (of_len, times)));
    beside(rows, |((len, lost, object), times)| {
        let whole = some_bytes(len);
        let room = Room::new();
        let sink = room.dir("sink");
        let manners = vec![Manner::HangUp(lost); times];
        let lies = Lies::default().rest(Rest::Ignored).in_turn("/d/big", &[&whole], &manners);
        let liar = lies.file("/d/good", b"good").start();
        let ended = cp(&["--object-size", object], &liar, "/d/", &sink).run().sane();
        assert_modest(&ended);
        assert!(liar.heard().iter().any(|line| line.starts_with("REST ")), "nobody asked for an offset");
        match fs::read(sink.join("big")) {
            Ok(copy) => assert!(copy == whole, "{} bytes\n{}", copy.len(), ended.describe()),
            Err(_) => assert_refused(&ended),
        }
        assert_eq!(read(sink.join("good")), b"good", "{}", ended.describe());
    });
}

/// Goal: an offset that was meant for one file is not taken for the next.
/// Method: a file that goes on at an offset arrives or is refused there, and the server keeps the offset; the
/// few sessions that there are have others to read afterwards.
#[test]
fn an_offset_is_not_taken_for_the_next_file() {
    let (big, next) = (some_bytes(12 << 20), some_bytes(5 << 20));
    let lost = Manner::HangUp(6 << 20);
    beside([(&[lost][..], 0), (&[lost, Manner::Refuse("550 gone")], 3)], |(manners, code)| {
        let room = Room::new();
        let sink = room.dir("sink");
        let mut lies = Lies::default().rest(Rest::Kept).in_turn("/d/big", &[&big], manners);
        for name in 0..8 {
            lies = lies.file(&format!("/d/next{name}"), &next);
        }
        let liar = lies.start();
        let ended = cp(&["--memory=8MiB"], &liar, "/d/", &sink).run().sane().exits(code);
        let heard = liar.heard();
        let at = heard.iter().position(|line| line.starts_with("REST ")).expect("it went on at an offset");
        let after = heard[at..].iter().filter(|line| line.starts_with("RETR /d/next")).count();
        assert!(after >= 4, "the others came before: {heard:?}");
        for name in 0..8 {
            assert!(read(sink.join(format!("next{name}"))) == next, "{}", ended.describe());
        }
        assert!(if code == 0 { read(sink.join("big")) == big } else { !sink.join("big").exists() });
    });
}

/// Goal: a listing of which the server says in words that it is not all is not taken for all.
/// Method: as pure-ftpd says it of a listing that it cut, and vsftpd of a directory that it could not open;
/// by MLSD and by LIST; with an entry and with none.
#[test]
fn a_listing_that_is_said_to_be_cut_is_an_error() {
    for end in [
        &b"226-Options: -a -l \r\n226 Output truncated to 2000 matches\r\n"[..],
        b"226 Output truncated to 1 matches\r\n",
        b"226 Transfer done (but failed to open directory).\r\n",
        b"250 Unable to read all of it\r\n",
    ] {
        for lines in [&b"-rw-r--r--   1 0        0               4 Nov 25  2019 good\r\n"[..], b""] {
            let room = Room::new();
            let sink = room.dir("sink");
            let lies = || Lies::default().file("/d/good", b"good").listing_ends(end);
            for liar in [lies().start(), lies().list(lines).start()] {
                let ended = cp(&[], &liar, "/d/", &sink).run().sane();
                assert_refused(&ended);
                assert_ne!(ended.summary().text("status"), "complete", "{}", ended.describe());
            }
        }
    }
}

/// Goal: replies that say "soon" without an end are given up.
/// Method: in place of the greeting, of an answer, of a listing, and behind a file.
#[test]
fn a_flood_of_preliminary_replies_has_an_end() {
    let good = |manners: &[Manner]| Lies::default().in_turn("/d/good", &[b"good"], manners);
    beside(
        [
            good(&[]).floods("").start(),
            good(&[]).floods("MLST").start(),
            good(&[]).floods("MLSD").start(),
            good(&[Manner::Flood; 100]).start(),
        ],
        |liar| {
            let room = Room::new();
            let sink = room.dir("sink");
            let ended = cp(&["--patience=1s"], &liar, "/d/", &sink).run().sane();
            assert_refused(&ended);
            assert!(ended.stderr.contains("silent for 1 s"), "{}", ended.describe());
            assert!(!sink.join("good").exists());
        },
    );
}

/// Goal: a server is waited for as long as the user's patience says, and the error has that time.
/// Method: one that says nothing from the beginning, and one that stops in the middle of a file.
#[test]
fn patience_with_a_server_is_the_users() {
    let stalls = Lies::default().odd("/d/odd", &some_bytes(300_000), 300_000, Manner::Stall(150_000), 100);
    beside(
        [
            (Lies::default().silent().start(), "waiting for an answer"),
            (stalls.start(), "reading from the server"),
        ],
        |(liar, doing)| {
            let room = Room::new();
            for (option, seconds) in [("--patience=2s", 2), ("--patience=0s", 1)] {
                let ended = cp(&[option], &liar, "/d/", &room.dir("sink")).run().sane();
                assert_refused(&ended);
                let said = format!("{doing}: the server is silent for {seconds} s");
                assert!(ended.stderr.contains(&said), "{option}: {}", ended.describe());
            }
        },
    );
}

/// Goal: a password that the server repeats is told nowhere.
/// Method: in its greeting, and in the refusal of each command that is told; everything that haul says, at
/// its loudest, and the list of failures.
#[test]
fn a_password_that_the_server_repeats_is_not_told() {
    beside(
        [
            ("", "220 geh@im is what alice says\r\n"),
            ("USER", "530 not alice, who says geh@im\r\n"),
            ("PASS", "530-no\r\n geh@im\r\n530 geh@im is wrong\r\n"),
            ("TYPE", "500 geh@im\r\n"),
            ("PWD", "550 geh@im\r\n"),
            ("MLST", "550 geh@im is not there\r\n"),
            ("MLSD", "550 geh@im is no directory\r\n"),
            ("EPSV", "425 geh@im\r\n"),
            ("RETR", "550 geh@im is no file\r\n"),
            // What is cut off stands before the end of what is shown.
            ("RETR", &format!("550 {}geh@im\r\n", "x".repeat(297))),
        ],
        |(command, said)| {
            let room = Room::new();
            let (sink, failures) = (room.dir("sink"), room.at("failures"));
            let liar = Lies::default().file("/d/good", b"good").reply(command, said.as_bytes()).start();
            let path = if command == "PWD" { "/~/d/" } else { "/d/" };
            let url = liar.url(path).replace("ftp://", "ftp://alice:geh%40im@");
            let list = format!("--failures={}", failures.display());
            let ended = Haul::cp(["-r", "-vv", "--patience=2s", &list, &url]).args([&sink]).run().sane();
            assert!(liar.heard().contains(&"PASS geh@im".to_owned()) || matches!(command, "USER"));
            if !command.is_empty() {
                assert_refused(&ended);
            }
            let listed = String::from_utf8_lossy(&fs::read(&failures).unwrap_or_default()).into_owned();
            let stdout = String::from_utf8_lossy(&ended.stdout).into_owned();
            for text in [&ended.stderr, &stdout, &listed] {
                assert!(!text.contains("geh@im") && !text.contains("geh"), "{command}: {text}");
            }
        },
    );
}

/// Goal: sizes that no sum holds are no panic, and no wrong total.
#[test]
fn sizes_without_a_sum_are_refused() {
    let room = Room::new();
    let sink = room.dir("sink");
    let line = |name: usize| format!("type=file;size={};modify=20200102030405; f{name}\r\n", i64::MAX);
    let lines: String = (0..20).map(line).collect();
    let liar = Lies::default().file("/d/good", b"good").lines("/d", lines.as_bytes()).start();
    let summary = cp(&["-n"], &liar, "/d/", &sink).run().sane().summary();
    assert!(summary.number("bytes") >= i64::MAX as u64, "{summary:?}");
    let ended = cp(&[], &liar, "/d/", &sink).run().sane();
    assert_refused(&ended);
    assert_no_debris(&sink);
}

/// Goal: a listing of more lines than anybody keeps is refused in words, before it takes the memory.
/// Method: a million lines and one, as short as lines are.
#[test]
fn a_listing_of_too_many_lines_is_refused() {
    let room = Room::new();
    let sink = room.dir("sink");
    let liar = Lies::default().lines("/d", &b"type=dir; x\r\n".repeat(1_000_000)).start();
    let ended = cp(&["--patience=1m"], &liar, "/d/", &sink).run().sane();
    assert_refused(&ended);
    assert!(ended.stderr.contains("more than a million entries"), "{}", ended.describe());
    let rss = ended.summary().0["rss"]["near"].as_u64();
    assert!(rss.is_some_and(|bytes| bytes < 1 << 30), "{}", ended.describe());
}

/// Goal: what is named in a directory that may not be listed arrives, though nobody can tell whether it is a
/// link.
/// Method: names that are asked for alone and that are not; as vsftpd says it, and as others do.
#[test]
fn what_is_not_listed_can_be_named() {
    let lies = || Lies::default().file("/d/good", b"good").file("/d/a good", b"good");
    let closed = lies().list(b"").listing_ends(b"226 Transfer done (but failed to open directory).\r\n");
    for liar in [closed.start(), lies().reply("LIST", b"550 not for you\r\n").start(), lies().start()] {
        let room = Room::new();
        let sink = room.dir("sink");
        for name in ["good", "a good"] {
            cp(&[], &liar, &format!("/d/{name}"), &sink).run().sane().exits(0);
            assert_eq!(read(sink.join(name)), b"good");
        }
    }
}
