//! Walks of FTP servers that say one thing here and another there: whatever they say, each entry arrives or
//! is told.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::support::liar::{Liar, Lies};
use crate::support::node::{Node, Software};
use crate::support::run::{Haul, Outcome};
use crate::support::{Room, read};

const ALWAYS: usize = usize::MAX;
const ITSELF: &str = "drwxr-xr-x   2 0        0            4096 Nov 25  2019 .\r\n";
const GOOD: &str = "-rw-r--r--   1 0        0               4 Nov 25  2019 good\r\n";
const HIDDEN: &str = "-rw-r--r--   1 0        0               3 Nov 25  2019 .hid\r\n";
const LINK: &str = "lrwxrwxrwx   1 0        0               4 Nov 25  2019 link -> good\r\n";

/// `haul cp --json -r --patience=2s URL SINK`.
fn cp(liar: &Liar, sink: &Path) -> Haul {
    Haul::cp(["-r", "--patience=2s"]).args([liar.url("/d/")]).args([sink])
}

fn good() -> Lies {
    Lies::default().file("/d/good", b"good")
}

fn leads_to(path: &Path) -> Option<String> {
    fs::read_link(path).ok().map(|target| target.to_string_lossy().into_owned())
}

/// Goal: what is listed as a file and then told to be a directory is walked, with all that is in it.
/// Method: by MLSD without a size, by LIST with a size that SIZE does not tell.
#[test]
fn what_is_told_to_be_a_directory_is_walked() {
    let has = || good().file("/d/sub/inside", b"inside").file("/d/sub/more/deep", b"deep");
    let by_mlsd = "type=cdir; .\r\ntype=file;size=4;modify=20200102030405; good\r\ntype=file; sub\r\n";
    let one = "-rw-r--r--   1 0        0               4 Nov 25  2019 ";
    let by_list = |names: &[&str]| -> Vec<u8> {
        let lines = names.iter().map(|name| format!("{one}{name}\r\n"));
        [ITSELF.to_owned()].into_iter().chain(lines).collect::<String>().into_bytes()
    };
    let listed = has().list(b"").lists("LIST -a", "/d", &by_list(&["good", "sub"]));
    let listed = listed.lists("LIST -a", "/d/sub", &by_list(&["inside", "more"]));
    let listed = listed.lists("LIST -a", "/d/sub/more", &by_list(&["deep"]));
    for liar in [has().lists("MLSD", "/d", by_mlsd.as_bytes()).start(), listed.start()] {
        let room = Room::new();
        let sink = room.dir("sink");
        cp(&liar, &sink).run().sane().exits(0);
        for (path, content) in [("good", "good"), ("sub/inside", "inside"), ("sub/more/deep", "deep")] {
            assert_eq!(read(sink.join(path)), content.as_bytes(), "{path}");
        }
    }
}

/// Goal: links of which only LIST tells are not lost where it does not come the first time.
#[test]
fn a_listing_of_links_is_asked_for_again() {
    for refusal in ["425 no connection\r\n", "426 cut off\r\n", "451 trouble\r\n"] {
        let room = Room::new();
        let sink = room.dir("sink");
        let lists = good().lists("LIST -a", "/d", [ITSELF, GOOD, LINK].concat().as_bytes());
        let liar = lists.says("LIST -a", "/d", refusal.as_bytes(), 1).start();
        cp(&liar, &sink).run().sane().exits(0);
        assert_eq!(leads_to(&sink.join("link")).as_deref(), Some("good"), "{refusal}");
        assert_eq!(read(sink.join("good")), b"good");
    }
}

/// Goal: where LIST cannot tell of links, the run is not complete, and says of which directory; what lies in
/// others arrives.
/// Method: it is refused always, in words that pass and words that do not, and so is the way to it.
#[test]
fn a_listing_of_links_that_fails_is_told() {
    for (command, refusal) in [
        ("LIST", "425 no connection\r\n"),
        ("LIST", "450 busy\r\n"),
        ("LIST", "550 not for you\r\n"),
        ("CWD", "550 no exec\r\n"),
        ("CWD", "501 what a name\r\n"),
    ] {
        let room = Room::new();
        let sink = room.dir("sink");
        let has = good().file("/d/sub/inside", b"inside");
        let lists = has.lists("LIST -a", "/d", [ITSELF, GOOD].concat().as_bytes());
        let lists = match command {
            "LIST" => lists.says("LIST -a", "/d/sub", refusal.as_bytes(), ALWAYS),
            _ => lists,
        };
        let liar = lists.says(command, "/d/sub", refusal.as_bytes(), ALWAYS).start();
        let ended = cp(&liar, &sink).run().sane().exits(3);
        let words = refusal.trim();
        assert!(ended.stderr.contains("sub") && ended.stderr.contains(words), "{}", ended.describe());
        assert_eq!(read(sink.join("good")), b"good", "{command} {refusal}");
    }
}

/// Goal: a server that knows no LIST is read without it, and it is said once that links were not told apart.
#[test]
fn a_server_without_list_may_go_without() {
    let room = Room::new();
    let sink = room.dir("sink");
    let liar = good().file("/d/sub/inside", b"inside").reply("LIST", b"502 unknown\r\n").start();
    let ended = cp(&liar, &sink).run().sane().exits(0);
    assert_eq!(read(sink.join("sub/inside")), b"inside");
    let times = ended.stderr.matches("symbolic links could not be told apart from").count();
    assert_eq!(times, 1, "{}", ended.describe());
}

/// Goal: nothing that either form of LIST shows is left out, and nothing is made up.
/// Method: with the option a server shows what is hidden and not the directory itself; or less than without
/// it; or takes the option for a name, that of a directory or of nothing.
#[test]
fn both_forms_of_list_are_heard() {
    let has = || good().file("/d/.hid", b"hid").list(b"");
    let option = "drwxr-xr-x   2 0        0            4096 Nov 25  2019 -a\r\n";
    let wrong = "-rw-r--r--   1 0        0               3 Nov 25  2019 .hid\x07\r\n";
    for (with, without, names, code) in [
        ([GOOD, HIDDEN].concat(), GOOD.to_owned(), vec![".hid", "good"], 0),
        (HIDDEN.to_owned(), GOOD.to_owned(), vec![".hid", "good"], 0),
        ([HIDDEN, wrong].concat(), GOOD.to_owned(), vec![".hid", "good"], 3),
        (HIDDEN.to_owned(), [GOOD, option].concat(), vec!["-a", "good"], 0),
        ("ls: -a: No such file or directory\r\n".to_owned(), GOOD.to_owned(), vec!["good"], 0),
        ("-a: No such file or directory\r\n".to_owned(), String::new(), vec![], 0),
    ] {
        let room = Room::new();
        let sink = room.dir("sink");
        let has = if names.contains(&"-a") { has().lines("/d/-a", b"") } else { has() };
        let lists = has.lists("LIST -a", "/d", with.as_bytes());
        let liar = lists.lists("LIST", "/d", without.as_bytes()).start();
        let ended = cp(&liar, &sink).run().sane().exits(code);
        let mut arrived: Vec<_> = fs::read_dir(&sink)
            .map(|all| all.flatten().map(|entry| entry.file_name().into_string().expect("UTF-8")).collect())
            .unwrap_or_default();
        arrived.sort();
        assert_eq!(arrived, names, "{with:?} and {without:?}: {}", ended.describe());
    }
}

#[track_caller]
fn assert_failed_alone(ended: &Outcome, sink: &Path, words: &str) {
    let summary = ended.summary();
    assert_eq!((summary.number("failed"), summary.number("vanished")), (1, 0), "{}", ended.describe());
    assert!(ended.stderr.contains(words), "{}", ended.describe());
    assert!(!ended.stderr.contains("vanished"), "{}", ended.describe());
    assert_eq!(read(sink.join("good")), b"good");
    assert!(!sink.join("odd").exists());
}

/// Goal: a file that is there, and of which the server tells nothing, has failed in the server's words: it
/// has not vanished; others arrive.
/// Method: SIZE of a server that knows LIST alone, and MLST after the last byte, are refused in many words.
#[test]
fn what_may_not_be_asked_about_has_not_vanished() {
    let has = || good().file("/d/odd", b"odd");
    let odd = "-rw-r--r--   1 0        0               3 Nov 25  2019 odd\r\n";
    let lines = [ITSELF, GOOD, odd].concat();
    for words in ["550 Permission denied", "504 SIZE not for this", "550 Could not", "553 bad name", "450 no"]
    {
        let reply = [words.as_bytes(), b"\r\n"].concat();
        let by_list = has().list(b"").lists("LIST -a", "/d", lines.as_bytes());
        let by_list = by_list.says("SIZE", "/d/odd", &reply, ALWAYS);
        let by_mlst = has().says("MLST", "/d/odd", &reply, ALWAYS);
        // A server that does not know MLST is asked by SIZE.
        let servers = if words.starts_with("504") { vec![by_list] } else { vec![by_list, by_mlst] };
        for liar in servers.into_iter().map(Lies::start) {
            let room = Room::new();
            let sink = room.dir("sink");
            let ended = cp(&liar, &sink).run().sane().exits(3);
            assert_failed_alone(&ended, &sink, &words[4..]);
        }
    }
}

/// Goal: a file that is not there any more when it is asked about has vanished.
/// Method: the listing has it once; or the server says in words that it is gone after it was read.
#[test]
fn what_is_gone_has_vanished() {
    let ghost = "-rw-r--r--   1 0        0               3 Nov 25  2019 ghost\r\n";
    let first = [ITSELF, GOOD, ghost].concat();
    let then = [ITSELF, GOOD].concat();
    let by_list = good().list(b"").lists("LIST -a", "/d", then.as_bytes());
    let by_list = by_list.lists_first("LIST -a", "/d", first.as_bytes(), 1);
    let read_once = good().file("/d/ghost", b"boo");
    let read_once = read_once.says("MLST", "/d/ghost", b"550 ghost: No such file or directory\r\n", ALWAYS);
    // It went between the listing and the command that would give it, or is not told of from then on.
    let listed = "type=cdir; .\r\ntype=file;size=4;modify=20200102030405; good\r\ntype=file;size=3;modify=20200102030405; ghost\r\n";
    let refused = good().lists_first("MLSD", "/d", listed.as_bytes(), 1);
    for liar in [by_list.start(), read_once.start(), refused.start()] {
        let room = Room::new();
        let sink = room.dir("sink");
        let ended = cp(&liar, &sink).run().sane().exits(4);
        assert_eq!(ended.summary().number("vanished"), 1, "{}", ended.describe());
        assert!(ended.stderr.contains("ghost"), "{}", ended.describe());
        assert_eq!(read(sink.join("good")), b"good");
    }
}

/// Goal: a file that the server refuses to give and that is there has failed, and has not vanished.
#[test]
fn what_is_refused_and_there_has_not_vanished() {
    for words in ["550 Permission denied", "550 No such file or directory"] {
        let reply = format!("{words}\r\n");
        for told in [false, true] {
            let has = good().file("/d/odd", b"odd").says("RETR", "/d/odd", reply.as_bytes(), ALWAYS);
            let liar = if told { has } else { has.says("MLST", "/d/odd", reply.as_bytes(), ALWAYS) }.start();
            let room = Room::new();
            let sink = room.dir("sink");
            let ended = cp(&liar, &sink).run().sane().exits(3);
            let summary = ended.summary();
            assert_eq!(
                (summary.number("failed"), summary.number("vanished")),
                (1, 0),
                "{}",
                ended.describe()
            );
        }
    }
}

/// Goal: files that only grow are not read from a server so, for nothing there is read twice; that is said
/// before anything is copied.
#[test]
fn prefixes_are_refused() {
    let (liar, room) = (good().start(), Room::new());
    let ended = cp(&liar, &room.at("sink")).args(["--changed=prefix"]).run().sane().exits(2);
    assert!(ended.stderr.contains("changed=prefix"), "{}", ended.describe());
    assert!(!room.at("sink").exists());
}

/// Goal: a listing that is cut off is told as what it is, of the directory that it is of, and that another
/// run may help.
/// Method: the server hangs up in the middle; it stops within a line; both in the directory that the command
/// names, the second in one below it too.
#[test]
fn a_listing_that_is_cut_off_may_come_whole_later() {
    let whole = "type=cdir; .\r\ntype=file;size=4;modify=20200102030405; good\r\n";
    let cut = [whole, "type=file;size=4;mod"].concat();
    let cut_in = |dir: &str| {
        let has = good().file("/d/sub/good", b"good");
        has.lists("MLSD", dir, cut.as_bytes()).start()
    };
    for (liar, head) in [
        (cut_in("/d/sub"), "haul: sub: ftp://"),
        (cut_in("/d"), "haul: /d/: ftp://"),
        (good().hangs_up_while_listing().start(), "haul: /d/: ftp://"),
    ] {
        let room = Room::new();
        let sink = room.dir("sink");
        let ended = cp(&liar, &sink).run().sane().exits(3);
        assert!(!ended.stderr.contains("will fail again"), "{}", ended.describe());
        assert!(ended.stderr.contains(head), "{head}: {}", ended.describe());
        assert!(ended.stderr.contains("run the same command again"), "{}", ended.describe());
    }
}

/// Goal: a listing without a line is no empty directory at a server that names the directory itself in each,
/// and is one at a server that does not.
#[test]
fn a_listing_without_a_line_is_no_empty_directory() {
    let counts =
        "211-Features\r\n MLST type*;size*;modify*;X.count*;\r\n SIZE\r\n MDTM\r\n EPSV\r\n211 End\r\n";
    let has = || {
        let has = good().file("/d/sub/inside", b"inside").reply("LIST", b"502 unknown\r\n");
        has.lists("MLSD", "/d/sub", b"")
    };
    let nobody_counts = counts.replace("X.count*;", "");
    for (features, code) in [(counts, 3), (&nobody_counts, 0)] {
        let room = Room::new();
        let sink = room.dir("sink");
        let liar = has().reply("FEAT", features.as_bytes()).start();
        let ended = cp(&liar, &sink).run().sane().exits(code);
        let is_told = ended.stderr.contains("haul: sub") && ended.stderr.contains("without a line");
        assert_eq!(is_told, code == 3, "{}", ended.describe());
        assert_eq!(read(sink.join("good")), b"good");
    }
}

/// Goal: a list of logins that is no file, or that cannot be read as one, is an error and no other login.
/// Method: a FIFO into which nobody writes, bytes that are no UTF-8, a quote that is not closed, a password
/// without a user.
#[test]
fn a_netrc_that_is_none_is_an_error() {
    let room = Room::new();
    let (fifo, file) = (room.at("fifo"), room.at("netrc"));
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .expect("make a FIFO");
    for (content, said) in [
        (None, "no regular file"),
        (Some(&b"machine 127.0.0.1 login al\xffce password geheim\n"[..]), "UTF-8"),
        (Some(b"machine 127.0.0.1 login alice password \"geheim\n"), "quote"),
        (Some(b"machine 127.0.0.1 password geheim\n"), "no login"),
    ] {
        let netrc = if content.is_some() { &file } else { &fifo };
        if let Some(content) = content {
            fs::write(&file, content).expect("write logins");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("close the file to others");
        }
        let liar = good().start();
        let ended = cp(&liar, &room.dir("sink")).env("NETRC", netrc).run().sane();
        assert!(matches!(ended.status.code(), Some(1 | 2)), "{}", ended.describe());
        assert!(
            ended.stderr.contains(said) && ended.stderr.contains("netrc") | ended.stderr.contains("fifo")
        );
        assert!(!ended.stderr.contains("geheim"), "{}", ended.describe());
        assert!(liar.heard().is_empty(), "nobody was to log in: {:?}", liar.heard());
    }
}

/// Goal: a file of which a server says "later" fails alone, and nothing that was asked together with it.
#[test]
fn what_is_refused_for_now_of_one_file_is_of_that_one() {
    let room = Room::new();
    let sink = room.dir("sink");
    let (mut lines, mut lies) = (Vec::new(), Lies::default());
    for n in 0..100 {
        lines.extend(format!("-rw-r--r--   1 0        0               4 Nov 25  2019 f{n}\r\n").into_bytes());
        lies = lies.file(&format!("/d/f{n}"), b"four");
    }
    let liar = lies.list(&lines).says("SIZE", "/d/f50", b"451 later\r\n", usize::MAX).start();
    let ended = Haul::cp(["-r"]).args([liar.url("/d/")]).args([&sink]).run().sane().exits(3);
    assert_eq!(ended.summary().number("failed"), 1, "{}", ended.describe());
    assert_eq!(ended.summary().number("files"), 99, "{}", ended.describe());
    assert!(!sink.join("f50").exists());
    // What was answered is not asked again.
    let asked = liar.heard().iter().filter(|line| *line == "SIZE /d/f1").count();
    assert!(asked <= 3, "{asked} times");
}

/// Goal: answers that are each no longer than an answer may be are not held without a bound together.
/// Method: 64 answers of 2 MiB, and what the run takes in all.
#[test]
fn answers_are_bounded_together() {
    let room = Room::new();
    let sink = room.dir("sink");
    let (mut lines, mut lies) = (Vec::new(), Lies::default());
    for n in 0..64 {
        lines.extend(format!("-rw-r--r--   1 0        0               4 Nov 25  2019 f{n}\r\n").into_bytes());
        lies = lies.file(&format!("/d/f{n}"), b"four");
    }
    let long = [b"213-4\r\n", &b" x".repeat(1 << 20)[..], b"\r\n213 4\r\n"].concat();
    let liar = lies.list(&lines).reply("SIZE", &long).start();
    let ended = Haul::cp(["-r"]).args([liar.url("/d/")]).args([&sink]).run().sane();
    assert!(matches!(ended.status.code(), Some(1 | 3)), "{}", ended.describe());
    let memory = ended.summary().0["rss"]["near"].as_u64().expect("it is told");
    assert!(memory < 150 << 20, "{memory} bytes: {}", ended.describe());
}

/// Goal: what a server that knows MLST says of one name is of that one: it is not asked by SIZE from then on,
/// which some servers tell of directories as well.
#[test]
fn a_command_unknown_of_one_name_is_known_of_others() {
    let room = Room::new();
    let sink = room.dir("sink");
    let lines = "type=cdir; .\r\ntype=file; good\r\ntype=file; odd\r\ntype=file; sub\r\n";
    let has = good().file("/d/sub/inside", b"inside").lists("MLSD", "/d", lines.as_bytes());
    let has = has.says("MLST", "/d/odd", b"500 Command not supported\r\n", ALWAYS);
    let liar = has.says("SIZE", "/d/sub", b"213 4096\r\n", ALWAYS).start();
    let ended = cp(&liar, &sink).run().sane().exits(3).says("odd");
    assert_eq!(ended.summary().number("failed"), 1, "{}", ended.describe());
    assert_eq!(read(sink.join("good")), b"good");
    assert_eq!(read(sink.join("sub/inside")), b"inside");
}

/// Goal: of a directory of which the server says behind its listing that it is not all, what was listed is
/// copied, and the run is not complete, in the server's words. Where it says so for now it is asked again.
#[test]
fn a_listing_that_leaves_out_a_name_is_used() {
    let room = Room::new();
    let liar = good().listing_ends(b"550 All is listed but 1 names\r\n").start();
    let ended = cp(&liar, &room.dir("sink")).run().sane().exits(3).says("All is listed but 1 names");
    assert_eq!(read(room.at("sink/good")), b"good");
    assert!(!ended.stderr.contains("run the same command again"), "{}", ended.describe());
    let liar = good().listing_ends(b"426 cut off\r\n").start();
    cp(&liar, &room.dir("none")).run().sane();
    assert!(!room.at("none/good").exists(), "nobody knows what is missing");
}

/// Goal: what haul serves haul reads: names that no line of a listing can hold are told, all others arrive,
/// and links lead where they lead, with a blank or a semicolon in their target, too.
#[test]
fn what_haul_serves_is_read() {
    let (server, room) = (Node::start(Software::Haul, [127, 0, 0, 1], ""), Room::new());
    let (data, sink) = (server.place("data"), room.dir("sink"));
    fs::create_dir_all(data.join("sub")).expect("make directories");
    for name in ["good", "two\nlines", "sub/inside"] {
        fs::write(data.join(name), name).expect("write a file");
    }
    for (name, target) in [("plain", "good"), ("blank", "a b c"), ("both; two", "../x; y")] {
        std::os::unix::fs::symlink(target, data.join(name)).expect("make a link");
    }
    let ended = Haul::cp(["-r", &(server.url(&data) + "/")]).args([&sink]).run().sane().exits(3);
    ended.says("All is listed but 1");
    assert_eq!(
        (read(sink.join("good")), read(sink.join("sub/inside"))),
        (b"good".into(), b"sub/inside".into())
    );
    for (name, target) in [("plain", "good"), ("blank", "a b c"), ("both; two", "../x; y")] {
        assert_eq!(leads_to(&sink.join(name)).as_deref(), Some(target), "{name}");
    }
}

/// Goal: a server that follows links and tells only where they lead in the end, as that of Globus, gives no
/// wrong link, and none that it leaves out is lost in silence.
#[test]
fn links_that_a_server_follows_are_told() {
    need!("gridftp");
    let (server, room) = (Node::start(Software::Globus, [127, 0, 0, 1], ""), Room::new());
    let (data, sink) = (server.place("data"), room.dir("sink"));
    for dir in ["sub", "dangles", "none"] {
        fs::create_dir_all(data.join(dir)).expect("make directories");
    }
    for name in ["good", "sub/inside", "dangles/good", "none/good"] {
        fs::write(data.join(name), name).expect("write a file");
    }
    for (name, target) in [("rel", "good"), ("dl", "sub"), ("dangles/dang", "nowhere")] {
        std::os::unix::fs::symlink(target, data.join(name)).expect("make a link");
    }
    let ended = Haul::cp(["-r", &(server.url(&data) + "/")]).args([&sink]).run().sane().exits(3);
    assert_eq!(ended.summary().number("failed"), 3, "{}", ended.describe());
    for name in ["good", "sub/inside", "dangles/good", "none/good"] {
        assert_eq!(read(sink.join(name)), name.as_bytes());
    }
    for name in ["rel", "dl", "dangles/dang"] {
        assert!(fs::symlink_metadata(sink.join(name)).is_err(), "{name}");
    }
    // The path of each stands there once.
    assert!(!ended.stderr.contains("copy rel:"), "{}", ended.describe());
    ended.says("rel: ").says("dl: ").says("1 are missing");
    let named = Haul::cp([server.url(data.join("none/good"))]).args([&sink]).run().sane().exits(0);
    assert_eq!(named.summary().number("files"), 1);
}

/// Goal: who names `/dev/null` as his list of logins has none.
#[test]
fn no_list_of_logins_is_no_error() {
    let room = Room::new();
    let liar = good().start();
    cp(&liar, &room.dir("sink")).env("NETRC", "/dev/null").run().sane().exits(0);
}

/// Goal: at a server that leaves blanks at the end of a name out, none with such an end gets what lies beside
/// it, be that of the same size and time: it fails, and all others arrive. Where the server keeps them, all
/// arrive. Method: files and directories, by MLSD and by LIST, and named as sources.
#[test]
fn ends_that_a_server_leaves_out_are_told() {
    let has = || {
        let has = good().file("/d/a", b"plain").file("/d/a ", b"blank").file("/d/end.", b"dot");
        has.file("/d/sub/f", b"of sub").file("/d/sub /f", b"blank!")
    };
    let line = |mode: &str, len: usize, name: &str| {
        format!("{mode}   1 0        0            {len:4} Jan  2  2020 {name}\r\n")
    };
    let (file, dir) = ("-rw-r--r--", "drwxr-xr-x");
    let top = [
        ITSELF.to_owned(),
        line(file, 4, "good"),
        line(file, 5, "a"),
        line(file, 5, "a "),
        line(file, 3, "end."),
        line(dir, 0, "sub"),
        line(dir, 0, "sub "),
    ]
    .concat();
    let below = [ITSELF.to_owned(), line(file, 6, "f")].concat();
    let by_list = || {
        let has = has().list(b"").lists("LIST -a", "/d", top.as_bytes());
        has.lists("LIST -a", "/d/sub", below.as_bytes()).lists("LIST -a", "/d/sub ", below.as_bytes())
    };
    for (liar, trims) in [
        (has().start(), false),
        (by_list().start(), false),
        (has().trims().start(), true),
        (by_list().trims().start(), true),
    ] {
        let room = Room::new();
        let sink = room.dir("sink");
        let ended = cp(&liar, &sink).run().sane().exits(if trims { 3 } else { 0 });
        for (path, content) in [("a", "plain"), ("good", "good"), ("end.", "dot"), ("sub/f", "of sub")] {
            assert_eq!(read(sink.join(path)), content.as_bytes(), "{path}");
        }
        let named = room.dir("named");
        let alone = Haul::cp(["--patience=2s"]).args([liar.url("/d/a ")]).args([&named]).run().sane();
        if trims {
            ended.says("blanks or dots");
            assert!(!sink.join("a ").exists() && !sink.join("sub ").exists());
            assert!(!alone.status.success() && !named.join("a ").exists(), "{}", alone.describe());
        } else {
            assert_eq!(read(sink.join("a ")), b"blank");
            assert_eq!(read(sink.join("sub /f")), b"blank!");
            assert_eq!(read(named.join("a ")), b"blank");
        }
    }
}

/// Goal: a file of the name of the option hides nothing.
/// Method: a server that takes `-a` for the name of that file, and hides names with a dot without an option.
#[test]
fn a_file_called_as_the_option_hides_nothing() {
    let room = Room::new();
    let sink = room.dir("sink");
    let own = "-rw-r--r--   1 0        0               4 Nov 25  2019 -a\r\n";
    let has = good().file("/d/.hid", b"hid").file("/d/-a", b"name").list(b"");
    let has = has.lists("LIST -a", "/d", own.as_bytes()).lists("LIST", "/d", [own, GOOD].concat().as_bytes());
    let all = [ITSELF, own, GOOD, HIDDEN].concat();
    let liar = has.lists("LIST", "/d/-al", all.as_bytes()).start();
    cp(&liar, &sink).run().sane().exits(0);
    for (name, content) in [("-a", "name"), ("good", "good"), (".hid", "hid")] {
        assert_eq!(read(sink.join(name)), content.as_bytes(), "{name}");
    }
}
