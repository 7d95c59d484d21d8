//! Names at FTP servers, byte for byte: what a server reads in one, hides behind one, or says of one of many.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::support::compare::{BELOW, Opts, assert_same};
use crate::support::ftpd::{Ftpd, Kind, contents};
use crate::support::liar::{Liar, Lies};
use crate::support::run::{Haul, Outcome};
use crate::support::taker::Script;
use crate::support::{Room, read, tree};

const ALWAYS: usize = usize::MAX;
const ITSELF: &str = "drwxr-xr-x   2 0        0            4096 Nov 25  2019 .\r\n";
/// Telnet's commands of two and three bytes are in them, and what stands behind those; of the first two
/// either is the other one's double.
const OF_TELNET: [&[u8]; 9] = [
    b"a\xffb",
    b"a\xff\xffb",
    b"\xff",
    b"\xff\xfcab",
    b"\xff\xf4ab",
    b"x\xff",
    b"x\xff\xfb",
    b"\xff\xff\xff",
    b"a\xff b",
];

fn below(dir: &Path, name: &[u8]) -> PathBuf {
    dir.join(OsStr::from_bytes(name))
}

/// A file of long ago.
fn file(path: &Path, content: &[u8]) {
    fs::write(path, content).expect("write a file");
    tree::set_mtime(path, SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000));
}

/// Files and directories of these names, each with bytes of its own, and plain ones beside them.
fn furnish(dir: &Path, names: &[&[u8]]) {
    for (n, name) in names.iter().enumerate() {
        let content = [format!("{n}: ").as_bytes(), name].concat();
        file(&below(dir, name), &content);
        let twin = below(dir, &[b"d".as_slice(), name].concat());
        fs::create_dir(&twin).expect("make a directory");
        file(&below(&twin, name), &[&content[..], b", below"].concat());
    }
    for n in 0..20 {
        file(&dir.join(format!("plain{n}")), format!("plain {n}").as_bytes());
    }
}

/// `haul cp --json -r -v --patience=5s FROM TO`.
fn cp(from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> Outcome {
    Haul::cp(["-r", "-v", "--patience=5s"]).args([from]).args([to]).run().sane()
}

const BYTES: Opts = Opts { metadata: false, ..BELOW };

/// Goal: names with the byte that is Telnet's come from and go to a server that reads it so and does not tell
/// which one it is, byte for byte, and so does all beside them.
/// Method: ProFTPD that hides its name; as source, as destination, and as both.
#[test]
fn names_with_a_byte_of_telnet_reach_a_server_that_hides() {
    for kind in Kind::these(&[Kind::Proftpd, Kind::ProftpdList]) {
        let (room, ftpd) = (Room::new(), Ftpd::with(kind, "ServerIdent off\n"));
        let data = room.dir("data");
        furnish(&data, &OF_TELNET);
        let [got, put, moved] = ["got", "put", "moved"].map(|name| room.dir(name));
        cp(ftpd.url(contents(&data)), &got).exits(0);
        assert_same(&data, &got, BYTES);
        cp(contents(&data), ftpd.url(&put)).exits(0);
        assert_same(&data, &put, BYTES);
        if kind.has_mlsd() {
            cp(ftpd.url(contents(&data)), ftpd.url(&moved)).exits(0);
            assert_same(&data, &moved, BYTES);
        }
    }
}

/// Goal: where a server does not say how it reads the byte, names with it fail, and no others.
/// Method: ProFTPD under TLS, whose greeting counts for nothing, and which gives no help.
#[test]
fn names_that_cannot_be_said_fail_alone() {
    for kind in Kind::these(&[Kind::ProftpdTls]) {
        let (room, ftpd) = (Room::new(), Ftpd::with(kind, "<Limit HELP>\nDenyAll\n</Limit>\n"));
        let data = room.dir("data");
        let plain = room.dir("plain");
        furnish(&data, &[]);
        furnish(&plain, &[]);
        file(&below(&data, b"a\xffb"), b"of telnet");
        let [got, put] = ["got", "put"].map(|name| room.dir(name));
        let trusting = |from: &OsStr, to: &OsStr| {
            let ca = crate::support::ftpd::certificate("ca.pem");
            Haul::cp(["-r"]).env("SSL_CERT_FILE", ca).args([from]).args([to]).run().sane()
        };
        let (from, to) = (ftpd.url(contents(&data)), ftpd.url(&put));
        for (ended, there) in [
            (trusting(from.as_ref(), got.as_ref()), &got),
            (trusting(contents(&data).as_ref(), to.as_ref()), &put),
        ] {
            let ended = ended.exits(3);
            assert_eq!(ended.summary().number("failed"), 1, "{}", ended.describe());
            ended.says("byte 0xff");
            assert_same(&plain, there, BYTES);
        }
    }
}

/// Goal: a server that answers one question twice costs that session, and no file.
#[test]
fn an_answer_that_comes_twice_costs_a_session() {
    let (room, mut lies) = (Room::new(), Lies::default());
    for n in 0..100 {
        lies = lies.file(&format!("/d/f{n}"), format!("{n}").as_bytes());
    }
    let once = "250-it is\r\n type=file;size=2;modify=20200102030405; /d/f50\r\n250 end\r\n";
    let liar = lies.says("MLST", "/d/f50", once.repeat(2).as_bytes(), ALWAYS).start();
    let sink = room.dir("sink");
    cp(liar.url("/d/"), &sink).exits(0);
    for n in 0..100 {
        assert_eq!(read(sink.join(format!("f{n}"))), format!("{n}").as_bytes());
    }
}

/// Goal: a directory of the name of the option is listed as what it is, and hides nothing of what lies beside
/// it, nor does it stand for that.
/// Method: real servers without MLSD: one that takes the option for that name, the same where it shows to
/// everybody what is hidden, and one that does not; with directories of further options, and within them.
#[test]
fn directories_called_as_options_are_listed() {
    let rows = Kind::these(&[Kind::ProftpdList, Kind::Vsftpd]).into_iter().flat_map(|kind| match kind {
        Kind::Vsftpd => vec![(kind, "")],
        _ => vec![(kind, ""), (kind, "ListOptions \"-a\"\n"), (kind, "ListOptions \"-al\"\n")],
    });
    for (kind, lines) in rows {
        let room = Room::new();
        let ftpd = if lines.is_empty() { Ftpd::start(kind) } else { Ftpd::with(kind, lines) };
        for dirs in [&["-a"][..], &["-al"], &["-a", "-al", "-aal"], &["-a/-a/-a", "-a/-al"]] {
            let data = room.dir("data");
            for path in dirs {
                fs::create_dir_all(data.join(path)).expect("make directories");
            }
            // The one has all that lies beside it, and more; the first is the only thing in another.
            file(&data.join(".hidden"), b"hidden");
            file(&data.join("same"), b"above");
            file(&data.join(dirs[0]).join("same"), b"below");
            file(&data.join(dirs[0]).join("more"), b"more");
            fs::create_dir_all(data.join("lone/-a")).expect("make directories");
            let sink = room.dir("sink");
            cp(ftpd.url(contents(&data)), &sink).exits(0);
            assert_same(&data, &sink, BYTES);
            for made in [data, sink] {
                fs::remove_dir_all(made).expect("remove a tree");
            }
        }
    }
}

/// Goal: a server that shows the directory of the option's name with itself, in place of the one that it was
/// asked about, does not make that one look empty.
#[test]
fn a_directory_that_is_shown_for_another_is_not_taken() {
    let line =
        |mode: &str, name: &str| format!("{mode}   1 0        0               4 Nov 25  2019 {name}\r\n");
    let has = Lies::default().file("/d/good", b"good").file("/d/-a/in", b"deep").list(b"");
    let has = has.lists("LIST -a", "/d", [ITSELF, &line("-rw-r--r--", "in")].concat().as_bytes());
    let plain = [line("-rw-r--r--", "good"), line("drwxr-xr-x", "-a")].concat();
    let inner = [ITSELF, &line("-rw-r--r--", "in")].concat();
    let has = has.lists("LIST", "/d", plain.as_bytes()).lists("LIST -a", "/d/-a", inner.as_bytes());
    let (liar, room) = (has.start(), Room::new());
    let sink = room.dir("sink");
    cp(liar.url("/d/"), &sink).exits(0);
    assert_eq!((read(sink.join("good")), read(sink.join("-a/in"))), (b"good".into(), b"deep".into()));
    assert!(!sink.join("in").exists());
}

/// Goal: a name with a control byte is refused and told, alone, and no other name comes of it; one with a
/// blank of another alphabet is none.
/// Method: by MLSD and by LIST; what stands before and behind the byte is a file, too.
#[test]
fn control_bytes_in_names_of_a_server_are_refused() {
    let bad = ["x\u{1c}y", "x\u{1f}", "\u{1d}y", "x\ty", "x\u{b}", "x\u{7f}y", "x\ry", "x\u{1b}[2Jy", "x\r"];
    let good = ["x", "y", "x\u{85}", "\u{85}y", "x\u{2028}y", "\u{3000}y", "x\u{a0}", "x\u{200b}"];
    let has =
        || good.iter().fold(Lies::default(), |has, name| has.file(&format!("/d/{name}"), name.as_bytes()));
    let mlsd = bad.map(|name| format!("type=file;size=1;modify=20200102030405; {name}\r\n")).concat();
    let line = |len: usize, name: &str| {
        format!("-rw-r--r--   1 0        0            {len:4} Jan  2  2020 {name}\r\n")
    };
    let list = good.iter().map(|name| line(name.len(), name)).chain(bad.iter().map(|name| line(1, name)));
    let list = [ITSELF.to_owned()].into_iter().chain(list).collect::<String>();
    let servers: [Liar; 2] =
        [has().lines("/d", mlsd.as_bytes()).start(), has().list(list.as_bytes()).start()];
    for liar in servers {
        let room = Room::new();
        let sink = room.dir("sink");
        let ended = cp(liar.url("/d/"), &sink).exits(3);
        assert_eq!(ended.summary().number("failed"), bad.len() as u64, "{}", ended.describe());
        let mut arrived: Vec<_> = fs::read_dir(&sink).expect("list it").flatten().collect();
        arrived.sort_by_key(|entry| entry.file_name());
        assert_eq!(arrived.len(), good.len(), "{arrived:?}");
        for name in good {
            assert_eq!(read(sink.join(name)), name.as_bytes(), "{name:?}");
        }
        let asked = liar.heard().iter().filter(|line| line.contains(|c: char| c.is_ascii_control())).count();
        assert_eq!(asked, 0, "{:?}", liar.heard());
    }
}

/// Goal: a name that could not come back from a server is not sent to one: it fails alone, in words, also
/// that of a directory; in a dry run, too.
#[test]
fn names_that_cannot_come_back_are_not_sent() {
    let (room, taker) = (Room::new(), Script::default().start());
    let data = room.dir("data");
    let bad = ["x\ty", "\u{1b}[2Jx", "x\u{7f}", "x\ry", "x\ny", "dir\u{1}"];
    for name in &bad[..5] {
        file(&data.join(name), b"bad");
    }
    fs::create_dir(data.join(bad[5])).expect("make a directory");
    let good = ["plain", "x y", "xy"];
    for name in good {
        file(&data.join(name), name.as_bytes());
    }
    for options in [&["-n"][..], &[]] {
        let ended = Haul::cp(["-r"]).args(options).args([contents(&data)]).args([taker.url("/d/")]);
        let ended = ended.run().sane().exits(3).says("the control byte 0x1b").says("a line's end");
        // A dry run makes no directories.
        let failed = bad.len() - usize::from(!options.is_empty());
        assert_eq!(ended.summary().number("failed"), failed as u64, "{}", ended.describe());
        assert!(ended.describe().contains("will fail again"), "{}", ended.describe());
    }
    assert_eq!(taker.paths(), good.map(|name| format!("/d/{name}")));
    for name in good {
        assert_eq!(taker.file(&format!("/d/{name}")).as_deref(), Some(name.as_bytes()));
    }
}

/// Goal: what a server says of one name, when it is asked whether it leaves out the ends of names, is of that
/// one: it fails, and all others arrive.
#[test]
fn an_odd_answer_about_an_end_is_of_one_name() {
    let (room, mut lies) = (Room::new(), Lies::default());
    for n in 0..40 {
        lies = lies.file(&format!("/d/f{n} "), format!("{n}").as_bytes());
    }
    let odd = b"250-it is\r\n type=file;size=much;modify=20200102030405; /d/f7  \r\n250 end\r\n";
    let liar = lies.says("MLST", "/d/f7  ", odd, ALWAYS).start();
    let sink = room.dir("sink");
    let ended = cp(liar.url("/d/"), &sink).exits(3).says("f7");
    assert_eq!(ended.summary().number("failed"), 1, "{}", ended.describe());
    for n in 0..40 {
        let path = sink.join(format!("f{n} "));
        assert!(if n == 7 { !path.exists() } else { read(&path) == format!("{n}").as_bytes() }, "{path:?}");
    }
}
