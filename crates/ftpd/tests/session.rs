//! Sessions over real sockets: what a login may, what is whole, what hostile clients get.
//!
//! Each session runs on a thread here as it does in its process; the client is plain sockets.

mod rig;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::symlink;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::thread;
use std::time::{Duration, Instant};

use haul_ftpd::config::Access;
use rig::{Served, Talk, block, end};

/// How long a test waits for what comes at once where nothing else runs.
const SOON: Duration = Duration::from_secs(20);

/// Goal: who may only read changes nothing, and is told so; nobody does anything before a login.
/// Method: each command that changes something, against a tree that is looked at before and after.
#[test]
fn reading_is_all_that_a_reader_may() {
    let served = Served::new(Access::Read);
    fs::write(served.at("f"), "old").expect("write");
    fs::create_dir(served.at("d")).expect("mkdir");
    let mut talk = Talk::to(&served);
    for line in ["RETR f", "MLST f", "PASV", "PORT 127,0,0,1,100,100", "CWD d", "STAT f", "SIZE f", "REST 5"]
    {
        assert!(talk.ask(line).starts_with("530"), "{line}");
    }
    assert!(talk.ask("USER root").starts_with("331"));
    assert!(talk.ask("PASS x").starts_with("530"));
    let mut talk = served.talk();
    let before = fs::metadata(served.at("f")).expect("stat");
    for line in [
        "STOR f",
        "APPE f",
        "ESTO A 0 f",
        "DELE f",
        "MKD n",
        "RMD d",
        "RNFR f",
        "MFMT 20200101000000 f",
        "SITE CHMOD 777 f",
    ] {
        assert!(talk.ask(line).starts_with("550"), "{line}");
    }
    assert!(talk.ask("RNTO g").starts_with("550"));
    let after = fs::metadata(served.at("f")).expect("stat");
    assert_eq!((before.ctime_nsec(), before.ino()), (after.ctime_nsec(), after.ino()));
    assert_eq!(served.names(), ["d", "f"]);
    assert_eq!(talk.fetch("RETR f"), b"old");
}

/// Goal: the log has what becomes of names, done or refused, and of uploads that were refused before they
/// began; a transfer that began has one line.
/// Method: an upload as haul's client makes it, and each change once; the same by who may only read.
#[test]
fn changes_are_logged() {
    let verbs = ["STOR", "MKD", "RMD", "DELE", "RNFR", "RNTO"];
    let served = Served::new(Access::Write);
    let mut talk = served.talk();
    assert!(talk.ask("MKD d").starts_with("257"));
    assert!(talk.ask("CWD d").starts_with("250"));
    talk.put("STOR .f.tmp", b"content");
    assert!(talk.ask("RNFR .f.tmp").starts_with("350"));
    assert!(talk.ask("RNTO /d/f").starts_with("250"));
    let _ = talk.passive();
    assert!(talk.ask("STOR /none/f").starts_with("550"));
    assert!(talk.ask("DELE f").starts_with("250"));
    assert!(talk.ask("RMD /d").starts_with("250"));
    assert!(talk.ask("RNFR g").starts_with("550"));
    // A line is written behind its answer, and before the next one.
    let _ = talk.ask("NOOP");
    let lines = served.logged(&verbs);
    let begins = [
        "MKD \"/d\" 257 ",
        "STOR \"/d/.f.tmp\" 7 bytes ",
        "RNTO \"/d/f\" from \"/d/.f.tmp\" 250 ",
        "STOR \"/none/f\" 0 bytes ",
        "DELE \"/d/f\" 250 ",
        "RMD \"/d\" 250 ",
        "RNFR \"/d/g\" 550 ",
    ];
    assert_eq!(lines.len(), begins.len(), "{lines:?}");
    assert!(lines.iter().zip(begins).all(|(line, begin)| line.starts_with(begin)), "{lines:?}");
    let served = Served::new(Access::Read);
    let mut talk = served.talk();
    for line in ["STOR f", "MKD d"] {
        assert!(talk.ask(line).starts_with("550"), "{line}");
    }
    let _ = talk.ask("NOOP");
    let lines = served.logged(&verbs);
    let is_refused =
        |line: &String| line.ends_with(" 550 Permission denied: this login may not change anything here.");
    assert!(lines.len() == 2 && lines.iter().all(is_refused), "{lines:?}");
}

/// Goal: no data connection goes to, or comes from, another host than the client's, nor to a service's port.
/// Method: `PORT` and `EPRT` to other addresses of this machine; a stranger who dials first.
#[test]
fn strangers_have_no_data_connection() {
    let served = Served::new(Access::Read);
    fs::write(served.at("f"), "content").expect("write");
    let mut talk = served.talk();
    for line in [
        "PORT 127,0,0,2,200,200",
        "PORT 10,0,0,1,200,200",
        "EPRT |1|127.0.0.2|51400|",
        "SPOR 127,0,0,2,200,200",
    ] {
        let said = talk.ask(line);
        assert!(said.starts_with("504") && said.contains("--third-party"), "{line}: {said}");
    }
    assert!(talk.ask("PORT 127,0,0,1,0,25").starts_with("504"), "a service's port");
    assert!(talk.ask("RETR f").starts_with("425"), "nothing was agreed");
    let at = talk.passive();
    let mut stranger = rig::dial_from([127, 0, 0, 2], at);
    talk.say("RETR f");
    let mut friend = TcpStream::connect(at).expect("dial");
    assert!(talk.reply().starts_with("150"));
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    friend.read_to_end(&mut ours).expect("read");
    assert!(talk.reply().starts_with("226"));
    let _ = stranger.read_to_end(&mut theirs);
    assert_eq!((ours.as_slice(), theirs.as_slice()), (&b"content"[..], &b""[..]));
}

/// Goal: a flood of `PASV` holds one port.
/// Method: a thousand of them; all but the last are dead, or become so. The ports are below those that Linux
/// gives to whoever asks for any, for a server of another test could have one that was given back.
#[test]
fn one_listener_at_a_time() {
    let served = Served::with_data_ports(Access::Read, (22_000, 26_000));
    let mut talk = served.talk();
    let ports: Vec<_> = (0..1_000).map(|_| talk.passive()).collect();
    let (last, earlier) = ports.split_last().expect("ports");
    assert!(TcpStream::connect(last).is_ok(), "the last one is dead");
    let until = Instant::now() + SOON;
    for at in earlier.iter().filter(|at| *at != last) {
        while TcpStream::connect(at).is_ok() {
            assert!(Instant::now() < until, "{at} is alive");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Goal: a line that is too long ends the session in words, and floods are answered in order.
/// Method: a mebibyte without an end before the login; thousands of commands at once behind it.
#[test]
fn lines_are_bounded_and_floods_answered() {
    let served = Served::new(Access::Read);
    let mut talk = Talk::to(&served);
    let _ = talk.send_raw(&vec![b'x'; 1 << 20]);
    assert!(talk.reply().starts_with("500"));
    assert!(talk.reply().starts_with("421"));
    let mut talk = served.talk();
    let mut flood = Vec::new();
    for i in 0..5_000 {
        flood.extend_from_slice(if i % 2 == 0 { b"NOOP\r\n" } else { b"SYST\r\n" });
    }
    let mut writer = talk.clone_socket();
    let thread = thread::spawn(move || writer.write_all(&flood).expect("say it all"));
    for i in 0..5_000 {
        assert!(talk.reply().starts_with(if i % 2 == 0 { "200" } else { "215" }), "{i}");
    }
    thread.join().expect("the writer");
    let mut talk = served.talk();
    for _ in 0..101 {
        assert!(talk.ask("NONSENSE").starts_with("500"));
    }
    assert!(talk.reply().starts_with("421"), "who says nothing else is sent away");
    // That a name is not there is an answer: who sends many files asks for each of them first.
    let mut talk = served.talk();
    for i in 0..1_000 {
        assert!(talk.ask(&format!("MLST none{i}")).starts_with("550"), "{i}");
    }
    assert!(talk.ask("NOOP").starts_with("200"));
}

/// Goal: odd names stay one line: a quote is doubled, a line's end is refused and never listed unsaid.
/// Method: directories with quotes; a file whose name has a line's end, made beside the server.
#[test]
fn odd_names_are_told_or_refused() {
    let served = Served::new(Access::Write);
    let mut talk = served.talk();
    assert!(talk.ask("MKD a\"b\"").starts_with("257 \"/a\"\"b\"\"\" "));
    assert!(talk.ask("CWD a\"b\"").starts_with("250 \"/a\"\"b\"\"\" "));
    assert!(talk.ask("PWD").starts_with("257 \"/a\"\"b\"\"\" "));
    assert!(talk.ask("CDUP").starts_with("250 \"/\" "));
    assert!(talk.ask("MKD x\0y").starts_with("501"));
    assert!(talk.ask("MKD x\ry").starts_with("501"));
    assert!(talk.ask(&format!("MKD {}", "n".repeat(300))).starts_with("553"));
    assert!(talk.ask(&format!("CWD {}", "d/".repeat(2_100))).starts_with("553"));
    fs::write(served.at("evil\r\ntype=dir; x"), "x").expect("write");
    fs::write(served.at("good"), "x").expect("write");
    for line in ["MLSD", "NLST", "LIST"] {
        let (text, said) = talk.fetch_with_reply(line);
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(said.starts_with("550") && said.contains("1 names"), "{said}");
        assert!(text.contains("good\r\n") && !text.contains("evil"), "{text}");
    }
}

/// Goal: what does not fit is refused before anything is sent.
/// Method: `REST` and `ERET` behind the end, uploads to a directory, to a link that leads out, to the root.
#[test]
fn what_cannot_be_is_refused() {
    let served = Served::new(Access::Write);
    fs::write(served.at("f"), "12345").expect("write");
    fs::create_dir(served.at("d")).expect("mkdir");
    symlink("/etc/passwd", served.at("out")).expect("symlink");
    symlink("f", served.at("in")).expect("symlink");
    let mut talk = served.talk();
    talk.passive();
    assert!(talk.ask("REST 6").starts_with("350"));
    assert!(talk.ask("RETR f").starts_with("554"));
    assert!(talk.ask("ERET P 6 1 f").starts_with("554"));
    assert!(talk.ask("RETR d").starts_with("550"));
    assert!(talk.ask("RETR out").starts_with("553"));
    assert!(talk.ask("SIZE out").starts_with("553"));
    assert!(talk.ask("CKSM MD5 0 6 f").starts_with("554"));
    assert!(talk.ask("CKSM MD5 18446744073709551615 1 f").starts_with("501"));
    for path in ["d", "d/", "/", "out", "none/f", "f/x"] {
        talk.passive();
        let said = talk.ask(&format!("STOR {path}"));
        assert!(said.starts_with("55"), "{path}: {said}");
    }
    assert!(talk.ask("REST 5").starts_with("350"));
    assert_eq!(talk.fetch("RETR f"), b"");
    assert!(talk.ask("REST 2").starts_with("350"));
    assert_eq!(talk.fetch("RETR f"), b"345");
    assert_eq!(talk.fetch("RETR f"), b"12345", "REST is for one transfer");
    assert_eq!(talk.fetch("ERET P 1 2 f"), b"23");
    talk.put("STOR in", b"new");
    assert_eq!(fs::read(served.at("f")).expect("read"), b"new", "a link that stays inside is followed");
    assert!(fs::symlink_metadata(served.at("in")).expect("stat").is_symlink());
    assert_eq!(talk.ask("SIZE f").trim(), "213 3");
}

/// Goal: a reader of the name sees the old file or the whole new one; an upload that breaks leaves the old
/// one and nothing else.
/// Method: looks in the middle of an upload; `ABOR`, a lost control connection, a half-closed one, and fewer
/// bytes than `ALLO` said.
#[test]
fn names_are_old_or_whole() {
    let served = Served::new(Access::Write);
    fs::write(served.at("f"), "old").expect("write");
    fs::set_permissions(served.at("f"), fs::Permissions::from_mode(0o640)).expect("chmod");
    let old = || fs::read(served.at("f")).expect("read");
    let mut talk = served.talk();
    let mut data = talk.begin("STOR f");
    data.write_all(b"new con").expect("write");
    assert_eq!(old(), b"old");
    assert!(served.talk().ask("SIZE f").starts_with("213 3"));
    let (listed, _) = served.talk().fetch_with_reply("NLST");
    assert_eq!(listed, b"f\r\n", "what is not whole is not listed");
    data.write_all(b"tent").expect("write");
    drop(data);
    assert!(talk.reply().starts_with("226"));
    assert_eq!(old(), b"new content");
    let mode = fs::metadata(served.at("f")).expect("stat").permissions().mode();
    assert_eq!(mode & 0o777, 0o640, "the new one has the old one's mode");

    let mut data = talk.begin("STOR f");
    data.write_all(b"bad").expect("write");
    talk.say("ABOR");
    assert!(talk.reply().starts_with("426"));
    assert!(talk.reply().starts_with("226"));
    assert_eq!((old().as_slice(), served.names()), (&b"new content"[..], vec!["f".to_owned()]));

    assert!(talk.ask("ALLO 4").starts_with("200"));
    let mut data = talk.begin("STOR f");
    data.write_all(b"bad").expect("write");
    drop(data);
    assert!(talk.reply().starts_with("451"));
    assert_eq!((old().as_slice(), served.names()), (&b"new content"[..], vec!["f".to_owned()]));

    // A client that dies closes the control connection, and the data connection looks like its end.
    for how in [Shutdown::Write, Shutdown::Both] {
        let mut talk = served.talk();
        let mut data = talk.begin("STOR f");
        data.write_all(b"bad").expect("write");
        talk.clone_socket().shutdown(how).expect("close");
        drop(data);
        served.wait_idle();
        assert_eq!((old().as_slice(), served.names()), (&b"new content"[..], vec!["f".to_owned()]));
    }
}

/// Goal: two uploads of one file do not mix, and one that was begun from an older version of it is not put
/// over a newer one.
/// Method: a second `STOR` while one runs; `APPE` while the file is replaced beside the server.
#[test]
fn uploads_of_one_file_do_not_mix() {
    let served = Served::new(Access::Write);
    fs::write(served.at("f"), "old").expect("write");
    let (mut one, mut two) = (served.talk(), served.talk());
    let mut data = one.begin("STOR f");
    data.write_all(b"first").expect("write");
    two.passive();
    assert!(two.ask("STOR f").starts_with("450"));
    drop(data);
    assert!(one.reply().starts_with("226"));
    two.put("APPE f", b"+more");
    assert_eq!(fs::read(served.at("f")).expect("read"), b"first+more");
    two.put("ESTO A 2 f", b"XY");
    assert_eq!(fs::read(served.at("f")).expect("read"), b"fiXYt+more");

    let mut data = one.begin("APPE f");
    data.write_all(b"late").expect("write");
    fs::write(served.at("g"), "newer").expect("write");
    fs::rename(served.at("g"), served.at("f")).expect("rename");
    drop(data);
    assert!(one.reply().starts_with("451"));
    assert_eq!(fs::read(served.at("f")).expect("read"), b"newer");
    assert_eq!(served.names(), ["f"]);
}

/// Goal: a file that changes while it is read is not told to be whole.
/// Method: one that is larger than what sockets hold is changed in its middle, made longer and made shorter
/// while its first bytes wait.
#[test]
fn a_changed_file_is_no_whole_one() {
    let served = Served::new(Access::Read);
    let len = 64 << 20;
    for change in ["written", "put back", "longer", "shorter"] {
        let file = fs::File::create(served.at("f")).expect("make");
        file.set_len(len).expect("a long file");
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("an old one");
        let mut talk = served.talk();
        let mut data = talk.begin("RETR f");
        let file = fs::File::options().write(true).open(served.at("f")).expect("open");
        match change {
            "put back" => {
                (&file).write_all(b"x").expect("write");
                file.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("its old time");
            }
            "written" => (&file).write_all(b"x").expect("write"),
            "longer" => file.set_len(len + 1).expect("longer"),
            _ => file.set_len(1).expect("shorter"),
        }
        let mut content = Vec::new();
        let read = data.read_to_end(&mut content);
        drop(data);
        assert!(talk.reply().starts_with("451"), "{change}");
        assert!(change != "shorter" || read.is_err(), "what is cut off does not look like an end");
    }
}

/// Goal: in MODE E only what is on media is confirmed, a restart goes on with that and with no other byte,
/// and the file is whole at the end.
/// Method: an upload of which a part comes, until a `111` is heard; the connection is lost; ranges that were
/// not confirmed are refused, those that were are gone on with.
#[test]
fn a_restart_goes_on_with_what_was_confirmed() {
    let served = Served::new(Access::Write);
    fs::write(served.at("f"), "old").expect("write");
    let content: Vec<u8> = (0..300_000_u32).map(|i| (i % 251) as u8).collect();
    let mut talk = served.talk();
    assert!(talk.ask("MODE E").starts_with("200"));
    assert!(talk.ask("OPTS RETR Markers=1;").starts_with("200"));
    let mut data = talk.begin("STOR f");
    block(&mut data, 0, &content[..100_000]);
    block(&mut data, 200_000, &content[200_000..250_000]);
    let confirmed = loop {
        let said = talk.reply();
        if let Some(ranges) = said.strip_prefix("111 Range Marker ") {
            break ranges.trim().to_owned();
        }
        assert!(said.starts_with("112") || said.starts_with("150"), "{said}");
    };
    assert_eq!(confirmed, "0-100000,200000-250000");
    // These come and are not confirmed.
    block(&mut data, 100_000, &content[100_000..150_000]);
    drop((data, talk));
    served.wait_idle();
    assert_eq!(fs::read(served.at("f")).expect("read"), b"old");

    let mut talk = served.talk();
    assert!(talk.ask("MODE E").starts_with("200"));
    talk.passive();
    assert!(talk.ask("REST 0-300000").starts_with("350"));
    assert!(talk.ask("STOR f").starts_with("554"), "never confirmed");

    // That refusal begins nothing, so the part is still there.
    assert!(talk.ask(&format!("REST {confirmed}")).starts_with("350"));
    let mut data = talk.begin("STOR f");
    assert!(talk.reply().starts_with("150"));
    block(&mut data, 100_000, &content[100_000..200_000]);
    block(&mut data, 250_000, &content[250_000..]);
    end(&mut data, Some(1));
    assert_eq!(talk.last_reply(), 226);
    assert!(fs::read(served.at("f")).expect("read") == content);
    assert_eq!(served.names(), ["f"], "no part and no record is left");
}

/// Goal: what a record does not say is not gone on with, whatever the part holds.
/// Method: the record of a part is cut within a line, emptied, or of another inode; then the same restart.
#[test]
fn a_torn_record_confirms_nothing() {
    for spoil in ["torn", "empty", "other"] {
        let served = Served::new(Access::Write);
        let mut talk = served.talk();
        talk.ask("MODE E");
        talk.ask("OPTS RETR Markers=1;");
        let mut data = talk.begin("STOR f");
        block(&mut data, 0, &[7; 50_000]);
        while !talk.reply().starts_with("111") {}
        drop((data, talk));
        served.wait_idle();
        let record = served
            .names()
            .into_iter()
            .find(|name| fs::read(served.at(name)).expect("read").starts_with(b"haul part of inode"));
        let record = served.at(&record.expect("a record"));
        let text = fs::read(&record).expect("read");
        match spoil {
            "torn" => fs::write(&record, &text[..text.len() - 1]).expect("write"),
            "empty" => fs::write(&record, "").expect("write"),
            _ => fs::write(&record, String::from_utf8_lossy(&text).replace("inode ", "inode 1"))
                .expect("write"),
        }
        let mut talk = served.talk();
        talk.ask("MODE E");
        talk.passive();
        talk.ask("REST 0-50000");
        assert!(talk.ask("STOR f").starts_with("554"), "{spoil}");
    }
}

/// Goal: a transfer in MODE E ends when what was promised came; a promise that cannot be kept fails at once,
/// and so do gaps, blocks that no file has, and connections that are lost in a block.
/// Method: each by hand; nothing is published.
#[test]
fn blocks_that_lie_are_refused() {
    let served = Served::new(Access::Write);
    let lies: [(&str, fn(&mut TcpStream)); 5] = [
        ("426", |data| end(data, Some(u64::MAX))),
        ("426", |data| end(data, Some(4_000))),
        ("426", |data| drop(data.write_all(&[0x20; 17]))),
        ("451", |data| {
            block(data, 10, b"x");
            end(data, Some(1));
        }),
        ("426", |data| {
            block(data, 0, b"x");
            let _ = data.write_all(&[0; 9]);
            let _ = data.shutdown(Shutdown::Both);
        }),
    ];
    for (i, (code, lie)) in lies.into_iter().enumerate() {
        let mut talk = served.talk();
        talk.ask("MODE E");
        let mut data = talk.begin("STOR f");
        lie(&mut data);
        assert_eq!(talk.last_reply().to_string(), code, "lie {i}");
        assert!(!served.at("f").exists(), "lie {i}");
    }
}

/// Goal: a connection that is kept serves the next upload, also where its bytes come before the command; what
/// was meant for a file that cannot be stored is no other's.
/// Method: two files through one connection in one write; then a refused one between two good ones.
#[test]
fn kept_connections_keep_files_apart() {
    let served = Served::new(Access::Write);
    fs::create_dir(served.at("dir")).expect("mkdir");
    let mut talk = served.talk();
    talk.ask("MODE E");
    let mut data = talk.begin("STOR one");
    let mut both = Vec::new();
    block(&mut both, 0, b"first");
    end(&mut both, Some(1));
    block(&mut both, 0, b"second");
    end(&mut both, Some(1));
    data.write_all(&both).expect("write");
    assert_eq!(talk.last_reply(), 226);
    talk.say("STOR two");
    assert!(talk.reply().starts_with("125"));
    assert_eq!(talk.last_reply(), 226);
    assert_eq!(fs::read(served.at("one")).expect("read"), b"first");
    assert_eq!(fs::read(served.at("two")).expect("read"), b"second");

    talk.say("STOR dir");
    talk.say("STOR three");
    let mut stray = Vec::new();
    block(&mut stray, 0, b"for dir");
    end(&mut stray, Some(1));
    // The server may have hung up already.
    let _ = data.write_all(&stray);
    assert!(talk.reply().starts_with("55"));
    assert!(talk.reply().starts_with("425"), "the connection went with the file that it was for");
    assert_eq!(served.names(), ["dir", "one", "two"]);
}

/// Goal: zeros that come become holes, and are read as zeros, also at the end and over what was there.
/// Method: 8 MiB of zeros with some bytes among them, by both modes; the same again over other bytes.
#[test]
fn zeros_become_holes() {
    let served = Served::new(Access::Write);
    let mut content = vec![0; 8 << 20];
    content[3_000_000..3_000_100].fill(9);
    let mut talk = served.talk();
    talk.put("STOR s", &content);
    let stat = fs::metadata(served.at("s")).expect("stat");
    assert_eq!(stat.len(), content.len() as u64);
    assert!(stat.blocks() * 512 < 1 << 20, "{} blocks", stat.blocks());
    assert!(fs::read(served.at("s")).expect("read") == content);
    talk.ask("MODE E");
    fs::write(served.at("e"), vec![1; 1 << 20]).expect("write");
    let mut data = talk.begin("ESTO A 0 e");
    block(&mut data, 0, &content[..1 << 20]);
    block(&mut data, 1 << 20, &content[1 << 20..]);
    end(&mut data, Some(1));
    assert_eq!(talk.last_reply(), 226);
    assert!(fs::read(served.at("e")).expect("read") == content);
}

/// Goal: names are made, moved, dated and removed as they are told to be.
/// Method: each command once, seen by the standard library.
#[test]
fn names_change_as_told() {
    let served = Served::new(Access::Write);
    let mut talk = served.talk();
    for (line, code) in [
        ("MKD d", "257"),
        ("MKD d", "550"),
        ("MKD d/e", "257"),
        ("RMD d", "550"),
        ("RNFR none", "550"),
        ("RNTO x", "503"),
        ("RNFR d/e", "350"),
        ("RNTO f", "250"),
        ("RMD f", "250"),
        ("RNFR /", "553"),
        ("RMD /", "553"),
        ("DELE d", "550"),
        ("SITE CHMOD 750 d", "200"),
        ("SITE CHMOD 4755 d", "504"),
        ("MFMT 20200102030405 d", "213"),
        ("MDTM d", "213 20200102030405"),
        ("CWD ../../d/./", "250"),
        ("CWD none", "550"),
        ("STAT /", "212"),
        ("MLST /d", "250"),
    ] {
        let said = talk.ask(line);
        assert!(said.starts_with(code), "{line}: {said}");
    }
    let stat = fs::metadata(served.at("d")).expect("stat");
    assert_eq!((stat.mode() & 0o7777, stat.mtime()), (0o750, 1_577_934_245));
    assert!(talk.ask("PWD").starts_with("257 \"/d\""));
}

/// Goal: bytes of `ESTO` and `APPE` in MODE E go where they belong, and no range is told that a restart would
/// put elsewhere.
/// Method: both with markers every second, over several of them; each reply is looked at.
#[test]
fn parts_in_blocks_have_no_restart() {
    let served = Served::new(Access::Write);
    fs::write(served.at("f"), "0123456789").expect("write");
    let mut talk = served.talk();
    talk.ask("MODE E");
    talk.ask("OPTS RETR Markers=1;");
    for (line, expected) in [("ESTO A 3 f", "012xyz6789"), ("APPE f", "012xyz6789xyz")] {
        let mut data = talk.begin(line);
        block(&mut data, 1, b"yz");
        while !talk.reply().contains("Transferred: 2") {}
        block(&mut data, 0, b"x");
        end(&mut data, Some(1));
        let said = loop {
            let said = talk.reply();
            assert!(!said.starts_with("111"), "{line}: {said}");
            if !said.starts_with('1') {
                break said;
            }
        };
        assert!(said.starts_with("226"), "{line}: {said}");
        assert_eq!(fs::read(served.at("f")).expect("read"), expected.as_bytes());
    }
    assert!(talk.ask("REST 5").starts_with("350"));
    assert!(talk.ask("ESTO A 3 f").starts_with("504"));
}

/// Goal: who does not log in in time is sent away, whether he says nothing or always has something to say;
/// who has logged in stays.
#[test]
fn who_does_not_log_in_in_time_is_sent_away() {
    let served = Served::within(Access::Read, std::time::Duration::from_millis(400));
    let mut known = served.talk();
    for talks in [false, true] {
        let said = Talk::to(&served).until_the_end(talks);
        assert!(said.contains("421 No login in time"), "{talks}: {said}");
    }
    assert!(known.ask("NOOP").starts_with("200"));
}
