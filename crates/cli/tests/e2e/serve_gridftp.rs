//! `haul serve gridftp` with clients that are not haul's: what they get and put is byte for byte what is
//! there.

use std::fs;
use std::io::{BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};

use crate::support::compare::{BELOW, Opts, assert_same};
use crate::support::run::{Haul, Running};
use crate::support::serve::{self, CLIENT_SECONDS, SOON, ask, deaf, dial_from, line};
use crate::support::{Room, procs, read, tree};

/// What it says then.
const LISTENS: &str = " listen ftp://";

/// A server of a directory of its own.
struct Server {
    room: Room,
    port: u16,
    /// `None` between an end and a new start.
    running: Option<Running>,
    args: Vec<String>,
}

impl Server {
    /// As whoever tests, with write access.
    fn new(more: &[&str]) -> Server {
        Server::started(Room::new(), more, true)
    }

    fn started(room: Room, more: &[&str], write: bool) -> Server {
        room.dir("root");
        let mut args: Vec<String> = more.iter().map(|word| (*word).to_owned()).collect();
        if write {
            args.extend(["--anonymous".into(), "write".into()]);
            if rustix::process::geteuid().is_root() {
                args.extend(["--user".into(), "root".into()]);
            }
        }
        let mut server = Server { room, port: 0, running: None, args };
        let (port, running) = serve::started("127.0.0.1", LISTENS, |port| server.command(port));
        (server.port, server.running) = (port, Some(running));
        server
    }

    fn command(&self, port: u16) -> Haul {
        let listen = format!("127.0.0.1:{port}");
        let words = ["serve", "gridftp", "--listen", &listen, "--root"];
        Haul::new(words).args([self.room.at("root")]).args(&self.args)
    }

    /// Starts it at its port; false if that is taken.
    fn start(&mut self) -> bool {
        self.running = serve::listening(self.command(self.port), LISTENS);
        self.running.is_some()
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("it runs")
    }

    fn at(&self, name: &str) -> PathBuf {
        self.room.at("root").join(name)
    }

    fn url(&self, path: &str) -> String {
        format!("ftp://127.0.0.1:{}/{path}", self.port)
    }

    fn log(&self) -> String {
        self.running().stderr()
    }

    /// Its processes: the monitor first.
    fn processes(&self) -> Vec<Pid> {
        self.running().near()
    }

    fn connect(&self) -> std::io::Result<BufReader<TcpStream>> {
        serve::connect(self.port)
    }

    /// A control connection, logged in.
    fn talk(&self) -> BufReader<TcpStream> {
        let mut talk = serve::greeted(self.port);
        assert!(ask(&mut talk, "USER anonymous").starts_with("331"));
        assert!(ask(&mut talk, "PASS x").starts_with("230"));
        talk
    }
}

fn data(talk: &mut BufReader<TcpStream>) -> TcpStream {
    let said = ask(talk, "EPSV");
    let port = said.split('|').nth(3).and_then(|port| port.parse::<u16>().ok());
    let at = SocketAddr::from(([127, 0, 0, 1], port.unwrap_or_else(|| panic!("no port in {said}"))));
    TcpStream::connect(at).expect("dial")
}

/// Runs a client that must succeed.
#[track_caller]
fn client(words: &[&str]) -> Output {
    let output = Command::new("timeout").arg(CLIENT_SECONDS).args(words).stdin(Stdio::null()).output();
    let output = output.expect("run a client");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {}\n{said}", output.status);
    output
}

fn file_url(path: &Path) -> String {
    format!("file://{}", path.display())
}

/// Sizes at the edges of buffers and blocks.
const SIZES: [usize; 7] = [0, 1, 6, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, 20_000_000];

/// Goal: what curl, ftplib and globus-url-copy get and put is what is there, in stream mode and in MODE E
/// with one connection and several.
/// Method: files of each size by each client both ways, compared by this code.
#[test]
fn clients_get_and_put_the_same_bytes() {
    need!("curl", "python3", "globus-url-copy");
    let server = Server::new(&[]);
    let mut rng = fastrand::Rng::with_seed(5);
    let script = "import ftplib,sys\nf=ftplib.FTP();f.connect('127.0.0.1',int(sys.argv[1]));f.login()\n\
                  f.storbinary('STOR '+sys.argv[2],open(sys.argv[3],'rb'))\n\
                  f.retrbinary('RETR '+sys.argv[2],open(sys.argv[4],'wb').write)\n\
                  assert f.size(sys.argv[2])==int(sys.argv[5])\nf.quit()\n";
    for size in SIZES {
        let content = tree::bytes(&mut rng, size);
        let near = server.room.file("near", &content);
        let back = server.room.at("back");
        let shown = near.display().to_string();
        let check = |what: &str, name: &str| {
            assert!(read(server.at(name)) == content, "{what} put {size}");
            assert!(read(&back) == content, "{what} got {size}");
            fs::remove_file(&back).expect("remove what came");
        };
        client(&["curl", "-sS", "-T", &shown, &server.url("curl")]);
        client(&["curl", "-sS", "-o", &back.display().to_string(), &server.url("curl")]);
        check("curl", "curl");
        let port = server.port.to_string();
        client(&[
            "python3",
            "-c",
            script,
            &port,
            "py",
            &shown,
            &back.display().to_string(),
            &size.to_string(),
        ]);
        check("ftplib", "py");
        for options in [
            &[][..],
            &["-p", "8"],
            &["-fast"],
            &["-fast", "-p", "3"],
            &["-stripe", "-p", "2"],
            &["-dp", "-p", "2"],
        ] {
            let words = [&["globus-url-copy"], options].concat();
            client(&[&words[..], &[&file_url(&near), &server.url("g")]].concat());
            client(&[&words[..], &[&server.url("g"), &file_url(&back)]].concat());
            check(&words.join(" "), "g");
        }
    }
    assert!(!server.log().contains("panicked"), "{}", server.log());
}

/// Goal: trees come and go whole, by lftp, by globus-url-copy with channels that are kept, pipelined and over
/// several sessions, between two servers, and by haul itself.
/// Method: one tree of some hundred files, compared after each way.
#[test]
fn trees_are_the_same_at_both_ends() {
    need!("lftp", "globus-url-copy");
    let server = Server::new(&[]);
    let other = Server::new(&[]);
    let near = server.room.at("near");
    tree::plain(&near, 6, 400, 3_000_000);
    fs::create_dir(near.join("empty directory")).expect("make a directory");
    fs::write(near.join("quote \" and %41"), "x").expect("write");
    let source = format!("{}/", file_url(&near));
    let bytes_alone = Opts { metadata: false, root: false, setid_dropped: false };

    let script = format!(
        "open ftp://127.0.0.1:{}; mirror -R --parallel=3 {near} lftp; mirror --parallel=3 lftp {back}",
        server.port,
        near = near.display(),
        back = server.room.at("back").display()
    );
    client(&["lftp", "-c", &script]);
    assert_same(&near, &server.at("lftp"), bytes_alone);
    assert_same(&near, &server.room.at("back"), bytes_alone);

    for (name, options) in [("plain", &["-cd", "-r"][..]), ("fast", &["-cd", "-r", "-fast", "-p", "2"])] {
        let words = [&["globus-url-copy"], options].concat();
        // It takes `%41` in a name for a letter, and a blank for the end of one.
        fs::remove_file(near.join("quote \" and %41")).ok();
        fs::remove_dir(near.join("empty directory")).ok();
        client(&[&words[..], &[&source, &server.url(&format!("{name}/"))]].concat());
        assert_same(&near, &server.at(name), bytes_alone);
        let back = server.room.at(&format!("back-{name}"));
        let to = format!("{}/", file_url(&back));
        client(&[&words[..], &["-cc", "4", &server.url(&format!("{name}/")), &to]].concat());
        assert_same(&near, &back, bytes_alone);
        let words = [&["globus-url-copy", "-pp", "-cc", "4"], options].concat();
        client(&[&words[..], &[&server.url(&format!("{name}/")), &other.url(&format!("{name}/"))]].concat());
        assert_same(&near, &other.at(name), bytes_alone);
    }
    let copy = server.room.dir("haul");
    Haul::cp(["-r"]).args([server.url("plain/").as_ref(), copy.as_os_str()]).run().exits(0);
    assert_same(&server.at("plain"), &copy, Opts { metadata: false, ..BELOW });
}

/// Goal: sums that clients ask for are those of the bytes: a tree that is the same is not sent again, one
/// byte that differs is, and a copy that is checked is whole.
/// Method: `-sync -sync-level 3` twice, with a byte changed under the same size and time; `-verify-checksum`.
#[test]
fn sums_decide_what_is_the_same() {
    need!("globus-url-copy");
    let server = Server::new(&[]);
    let near = server.room.at("near");
    tree::plain(&near, 7, 40, 100_000);
    let (from, to) = (format!("{}/", file_url(&near)), server.url("t/"));
    client(&["globus-url-copy", "-cd", "-r", &from, &to]);
    let stored = |server: &Server| server.log().matches(" STOR ").count();
    let before = stored(&server);
    client(&["globus-url-copy", "-sync", "-sync-level", "3", "-r", &from, &to]);
    assert_eq!(stored(&server), before, "nothing has changed");
    let mut content = read(server.at("t/big"));
    content[50_000] ^= 1;
    fs::write(server.at("t/big"), content).expect("write");
    client(&["globus-url-copy", "-sync", "-sync-level", "3", "-r", &from, &to]);
    assert_eq!(stored(&server), before + 1);
    assert_same(&near, &server.at("t"), Opts { metadata: false, root: false, setid_dropped: false });
    client(&["globus-url-copy", "-verify-checksum", "-p", "2", &server.url("t/big"), &server.url("u")]);
    assert!(read(server.at("u")) == read(near.join("big")));
}

/// Goal: a directory of ten thousand names is listed whole, in each form, and copied whole.
/// Method: by ftplib's `mlsd` and `nlst`, and a copy by haul.
#[test]
fn ten_thousand_names() {
    need!("python3");
    let server = Server::new(&[]);
    fs::create_dir(server.at("many")).expect("make a directory");
    for index in 0..10_000 {
        fs::write(server.at(&format!("many/n{index}")), index.to_string()).expect("write");
    }
    let script = "import ftplib,sys\nf=ftplib.FTP();f.connect('127.0.0.1',int(sys.argv[1]));f.login()\n\
                  want={'n%d'%i for i in range(10000)}\n\
                  got=[n for n,x in f.mlsd('many') if x['type']=='file']\n\
                  assert set(got)==want and len(got)==10000\n\
                  f.cwd('many')\ngot=f.nlst()\nassert set(got)==want and len(got)==10000\n\
                  lines=[]\nf.retrlines('LIST',lines.append)\nassert len(lines)==10000\nf.quit()\n";
    client(&["python3", "-c", script, &server.port.to_string()]);
    let copy = server.room.dir("copy");
    // What the disk takes to have each name is tried elsewhere.
    let words = ["-r", "--durability=none"];
    Haul::cp(words).args([server.url("many/").as_ref(), copy.as_os_str()]).run().exits(0);
    assert_same(&server.at("many"), &copy, Opts { metadata: false, ..BELOW });
}

/// Goal: a sparse file of 5 GiB goes both ways, and has its holes at the server.
/// Method: put by globus-url-copy over four connections, got by curl into cmp.
#[test]
fn five_gibibytes_of_holes() {
    need!("curl", "globus-url-copy");
    let server = Server::new(&[]);
    let near = server.room.at("near");
    let file = fs::File::create(&near).expect("make a file");
    let len = 5 << 30;
    file.set_len(len).expect("make it long");
    for (offset, text) in [(0, "begin"), ((4 << 30) + 7, "behind 32 bits"), (len - 3, "end")] {
        std::os::unix::fs::FileExt::write_all_at(&file, text.as_bytes(), offset).expect("write");
    }
    client(&["globus-url-copy", "-p", "4", &file_url(&near), &server.url("s")]);
    let stat = fs::metadata(server.at("s")).expect("stat");
    assert_eq!(stat.len(), len);
    assert!(stat.blocks() * 512 < 64 << 20, "{} bytes of blocks", stat.blocks() * 512);
    let script = format!("curl -sS {} | cmp - {}", server.url("s"), near.display());
    client(&["sh", "-ec", &script]);
}

/// Goal: a transfer between two servers survives that the receiving one is killed, with all its sessions: the
/// client comes back with the ranges that were confirmed, these are not sent again, and the file is whole.
/// Method: `globus-url-copy -rst`; the kill comes when the first ranges are on media.
#[test]
fn a_killed_receiver_goes_on() {
    need!("globus-url-copy");
    let source = Server::new(&[]);
    let mut sink = Server::new(&["--markers", "100ms"]);
    let mut rng = fastrand::Rng::with_seed(9);
    let content = tree::bytes(&mut rng, 400 << 20);
    fs::write(source.at("big"), &content).expect("write");
    let words = ["-rst", "-rst-retries", "60", "-rst-interval", "1", "-p", "2"];
    let begin = |sink: &Server| {
        Command::new("timeout")
            .args([CLIENT_SECONDS, "globus-url-copy"])
            .args(words)
            .args([source.url("big"), sink.url("copy")])
            .stderr(Stdio::null())
            .spawn()
            .expect("start a client")
    };
    let root = sink.room.at("root");
    // With a second sync noted, the marker of the first was sent.
    let confirmed = || {
        let entries = fs::read_dir(&root).into_iter().flatten().filter_map(|entry| entry.ok());
        let small = entries.filter(|entry| entry.metadata().is_ok_and(|about| about.len() < 1 << 20));
        small.filter_map(|entry| fs::read_to_string(entry.path()).ok()).any(|text| text.lines().count() > 2)
    };
    let mut copy = begin(&sink);
    let mut again = 0;
    while !confirmed() {
        // Where syncs take longer than all the rest, it may be over before.
        if copy.try_wait().expect("look at the client").is_some() {
            again += 1;
            assert!(again < 20, "nothing is confirmed: {}", sink.log());
            fs::remove_file(sink.at("copy")).expect("remove a whole copy");
            copy = begin(&sink);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    procs::signal_all(&sink.processes(), Signal::KILL);
    let _ = sink.running.take().map(Running::wait);
    assert!(!sink.at("copy").exists(), "what is not whole has no name");
    assert!(procs::wait_until(SOON, || sink.start()), "it starts again");
    let status = copy.wait().expect("the client ends");
    assert!(status.success(), "{status}\n{}", sink.log());
    assert!(read(sink.at("copy")) == content, "the copy differs");
    let log = sink.log();
    let came = log.lines().rfind(|line| line.contains(" STOR ")).expect("a line of the transfer");
    let came = came.split(" bytes").next().and_then(|head| head.rsplit(' ').next());
    let came: usize = came.and_then(|bytes| bytes.parse().ok()).expect("a number of bytes");
    assert!(came < content.len(), "all of it was sent again");
    assert_eq!(fs::read_dir(&root).expect("list").count(), 1, "something is left");
}

/// Goal: two servers that move data with their clients' hosts alone are not asked to move it between them: it
/// goes by this host at once, and that is said.
#[test]
fn who_shuns_other_hosts_is_not_asked_to_meet_them() {
    let room = Room::new();
    let content = tree::bytes(&mut fastrand::Rng::with_seed(7), 5_000_000);
    let mut urls = Vec::new();
    let mut servers = Vec::new();
    for (host, root) in [("127.0.0.2", "from"), ("127.0.0.3", "to")] {
        room.dir(root);
        let (port, running) = serve::started(host, LISTENS, |port| {
            let listen = format!("{host}:{port}");
            let haul = Haul::new(["serve", "gridftp", "--listen", &listen, "--anonymous", "write", "--root"]);
            let own = rustix::process::geteuid().is_root().then_some(["--user", "root"]);
            haul.args([room.at(root)]).args(own.into_iter().flatten())
        });
        urls.push(format!("ftp://{host}:{port}/x"));
        servers.push(running);
    }
    fs::write(room.at("from").join("x"), &content).expect("write a file");
    let ended = Haul::cp(&urls).run().sane().exits(0);
    assert!(read(room.at("to").join("x")) == content);
    // One transfer, from here.
    let log = servers[1].stderr();
    assert_eq!((log.matches(" STOR ").count(), log.matches(" 226 ").count()), (1, 1), "{log}");
    ended.says("--third-party").says("the data goes by this host");
}

/// Goal: ten thousand connections cost the server no more than its limit of sessions, all others are told so,
/// and who is served goes on.
/// Method: as many, one after another, with the limit reached; then one that leaves makes room.
#[test]
fn a_flood_of_connections_is_turned_away() {
    let server = Server::new(&["--sessions", "3", "--sessions-per-host", "2"]);
    let mut first = server.talk();
    let second = server.talk();
    let processes = server.processes().len();
    for _ in 0..10_000 {
        let mut turned = server.connect().expect("connect");
        let said = line(&mut turned);
        assert!(said.starts_with("421 ") && said.contains("your host"), "{said}");
    }
    assert_eq!(server.processes().len(), processes);
    assert!(ask(&mut first, "NOOP").starts_with("200"));
    drop(second);
    let room =
        procs::wait_until(SOON, || server.connect().is_ok_and(|mut talk| line(&mut talk).starts_with("220")));
    assert!(room, "one has left, and there is no room");
    assert!(server.log().lines().count() < 200, "a flood is not a flood of lines");
}

/// Goal: however many connect and say nothing, from several addresses, who logs in is served at once; also
/// from one of those addresses; the number of their processes is bounded, and who was at it stays.
/// Method: 260 of them stay open while others come.
#[test]
fn silent_strangers_keep_nobody_out() {
    let server = Server::new(&["--sessions", "4", "--sessions-per-host", "3"]);
    let mut before = server.talk();
    let mut slow = dial_from([127, 0, 0, 9], server.port);
    assert!(line(&mut slow).starts_with("220"));
    assert!(ask(&mut slow, "USER anonymous").starts_with("331"));
    let silent: Vec<_> =
        (0..260_u16).map(|n| dial_from([127, 0, 0, 1 + (n % 4) as u8], server.port)).collect();
    let mut talk = dial_from([127, 0, 0, 5], server.port);
    let greeting = line(&mut talk);
    assert!(greeting.starts_with("220"), "{greeting}{}", server.log());
    assert!(ask(&mut talk, "USER anonymous").starts_with("331"));
    assert!(ask(&mut talk, "PASS x").starts_with("230"), "{}", server.log());
    assert!(ask(&mut slow, "PASS x").starts_with("230"), "{}", server.log());
    let from_there = || line(&mut dial_from([127, 0, 0, 2], server.port)).starts_with("220");
    assert!(procs::wait_until(SOON, from_there), "{}", server.log());
    // Those that were sent away may take a moment to be gone.
    let few = procs::wait_until(SOON, || server.processes().len() <= 1 + 3 + 96);
    assert!(few, "{} processes", server.processes().len());
    assert!(ask(&mut before, "NOOP").starts_with("200"));
    drop(silent);
    // With the fourth the places for who is logged in are taken.
    let mut fourth = dial_from([127, 0, 0, 6], server.port);
    assert!(line(&mut fourth).starts_with("220"));
    let mut fifth = dial_from([127, 0, 0, 7], server.port);
    assert!(line(&mut fifth).starts_with("220"));
    for (talk, code) in [(&mut fourth, "230"), (&mut fifth, "421")] {
        assert!(ask(talk, "USER anonymous").starts_with("331"));
        let said = ask(talk, "PASS x");
        assert!(said.starts_with(code), "{said}");
    }
}

/// Goal: while the server dials who does not answer it hears who wants an end: ABOR, QUIT, and that the
/// control connection was closed.
/// Method: a port whose queue is full; by itself the server says 425 after half a minute.
#[test]
fn who_waits_for_a_dial_is_heard() {
    let server = Server::new(&[]);
    fs::write(server.at("f"), "content").expect("write a file");
    let (port, _held) = deaf();
    let to = format!("PORT 127,0,0,1,{},{}", port >> 8, port & 255);
    for (mode, verb, word, answers) in [
        ("S", "RETR f", "ABOR", ["426", "226"]),
        ("E", "RETR f", "ABOR", ["426", "226"]),
        ("S", "LIST", "QUIT", ["426", "221"]),
    ] {
        let mut talk = server.talk();
        assert!(ask(&mut talk, &format!("MODE {mode}")).starts_with("200"));
        assert!(ask(&mut talk, &to).starts_with("200"));
        talk.get_mut().write_all(format!("{verb}\r\n{word}\r\n").as_bytes()).expect("say two lines");
        for answer in answers {
            let said = line(&mut talk);
            assert!(said.starts_with(answer), "{mode} {verb} {word}: {said}");
        }
    }
    let mut talk = server.talk();
    assert!(ask(&mut talk, &to).starts_with("200"));
    talk.get_mut().write_all(b"RETR f\r\n").expect("say a line");
    drop(talk);
    let is_over = procs::wait_until(SOON / 3, || server.processes().len() == 1);
    assert!(is_over, "nobody heard that the client is gone");
}

/// Goal: on SIGTERM who waits is told, what runs comes to its end, nobody new is served, and the server ends
/// with 0; the second SIGTERM waits for nobody.
/// Method: an upload is under way; then another server with one that never ends.
#[test]
fn an_end_in_good_order() {
    let mut server = Server::new(&[]);
    let mut idle = server.talk();
    let mut busy = server.talk();
    let mut upload = data(&mut busy);
    assert!(ask(&mut busy, "STOR f").starts_with("150"));
    upload.write_all(b"begun").expect("write");
    server.running().signal(Signal::TERM);
    assert!(line(&mut idle).starts_with("421"));
    assert!(procs::wait_until(SOON, || server.connect().is_err()), "it still listens");
    upload.write_all(b" and ended").expect("write");
    drop(upload);
    assert!(line(&mut busy).starts_with("226"));
    assert!(line(&mut busy).starts_with("421"));
    server.running.take().expect("it runs").wait().exits(0);
    assert_eq!(read(server.at("f")), b"begun and ended");

    let mut server = Server::new(&["--grace", "1h"]);
    let mut busy = server.talk();
    let mut upload = data(&mut busy);
    assert!(ask(&mut busy, "STOR f").starts_with("150"));
    upload.write_all(b"never ended").expect("write");
    server.running().signal(Signal::TERM);
    assert!(procs::wait_until(SOON, || server.connect().is_err()), "it still listens");
    server.running().signal(Signal::TERM);
    server.running.take().expect("it runs").wait().exits(0);
    assert!(!server.at("f").exists());
}

/// Goal: no session outlives the monitor, however that ends.
/// Method: the monitor alone is killed while an upload runs.
#[test]
fn sessions_end_with_the_monitor() {
    let mut server = Server::new(&[]);
    let mut busy = server.talk();
    let mut upload = data(&mut busy);
    assert!(ask(&mut busy, "STOR f").starts_with("150"));
    upload.write_all(b"begun").expect("write");
    let all = server.processes();
    assert!(all.len() > 1, "a session is a process");
    procs::signal_all(&all[..1], Signal::KILL);
    assert!(procs::wait_until(SOON, || server.processes().is_empty()), "they live on");
    let _ = server.running.take().map(Running::wait);
    assert!(!server.at("f").exists());
}

/// Goal: started by root, a session is nobody before its login and the user of the login behind it, for good;
/// what it makes is that user's, and what only root may read is not read.
/// Method: the processes' own numbers, by the kernel; a file of root's.
#[test]
fn a_session_is_who_logged_in() {
    need!("root");
    let ids = |server: &Server| -> Vec<String> {
        let text = |pid: &Pid| fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()));
        let of = |pid: &Pid| {
            let status = text(pid).unwrap_or_default();
            let lines = status.lines().filter(|line| {
                ["Uid:", "Gid:", "Groups:", "CapPrm:", "NoNewPrivs:"]
                    .iter()
                    .any(|head| line.starts_with(head))
            });
            lines.collect::<Vec<_>>().join(" ").split_whitespace().collect::<Vec<_>>().join(" ")
        };
        server.processes()[1..].iter().map(of).collect()
    };
    let nobody = "Uid: 65534 65534 65534 65534 Gid: 65534 65534 65534 65534 Groups: CapPrm: 0000000000000000 NoNewPrivs: 1";
    let room = Room::new();
    let root = room.dir("root");
    rustix::fs::chown(&root, Some(rustix::fs::Uid::from_raw(65_534)), None).expect("chown");
    fs::write(root.join("secret"), "root's").expect("write");
    crate::support::set_mode(&root.join("secret"), 0o600);
    let server = Server::started(room, &["--anonymous", "write"], false);
    let mut talk = server.talk();
    assert_eq!(ids(&server), [nobody]);
    let mut upload = data(&mut talk);
    assert!(ask(&mut talk, "STOR f").starts_with("150"));
    upload.write_all(b"mine").expect("write");
    drop(upload);
    assert!(line(&mut talk).starts_with("226"));
    assert_eq!(fs::metadata(server.at("f")).expect("stat").uid(), 65_534);
    assert!(ask(&mut talk, "RETR secret").starts_with("550"));

    // With another user than nobody, a process of that user goes on behind the login, also with what was said
    // too early.
    let server = Server::new(&[]);
    let mut talk = server.connect().expect("connect");
    assert!(line(&mut talk).starts_with("220"));
    assert_eq!(ids(&server), [nobody]);
    talk.get_mut().write_all(b"USER ftp\r\nPASS x\r\nMKD made\r\nNOOP\r\n").expect("say it");
    for code in ["331", "230", "257", "200"] {
        let said = line(&mut talk);
        assert!(said.starts_with(code), "{said}");
    }
    let of_root = || ids(&server).iter().all(|of| of.starts_with("Uid: 0 0 0 0 Gid: 0 0 0 0 Groups: CapPrm"));
    assert!(procs::wait_until(SOON, || server.processes().len() == 2 && of_root()), "{:?}", ids(&server));
    assert_eq!(fs::metadata(server.at("made")).expect("stat").uid(), 0);
}

/// Goal: a service manager is told when the server is ready and when it ends, and its sockets are taken.
/// Method: a socket for notices, and one that listens as descriptor 3.
#[test]
fn a_service_manager_is_understood() {
    let room = Room::new();
    let root = room.dir("root");
    fs::write(root.join("f"), "served").expect("write");
    let notices = UnixDatagram::bind(room.at("notices")).expect("bind");
    notices.set_read_timeout(Some(SOON)).expect("a patience");
    let notice = || {
        let mut text = [0; 64];
        let len = notices.recv(&mut text).expect("a notice");
        String::from_utf8_lossy(&text[..len]).into_owned()
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let at = listener.local_addr().expect("an address");
    let said = fs::File::create(room.at("said")).expect("make a file");
    let script =
        "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" serve gridftp --log json --root \"$1\"";
    let mut server = Command::new("sh")
        .args(["-ec", script])
        .arg(crate::support::run::program())
        .arg(&root)
        .env("NOTIFY_SOCKET", room.at("notices"))
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .stderr(said)
        .spawn()
        .expect("start it");
    assert_eq!(notice(), "READY=1");
    let mut talk = BufReader::new(TcpStream::connect(at).expect("connect"));
    assert!(line(&mut talk).starts_with("220"));
    assert!(ask(&mut talk, "USER anonymous").starts_with("331"));
    assert!(ask(&mut talk, "PASS x").starts_with("230"));
    let mut content = String::new();
    let mut download = data(&mut talk);
    assert!(ask(&mut talk, "RETR f").starts_with("150"));
    download.read_to_string(&mut content).expect("read");
    assert_eq!(content, "served");
    assert!(line(&mut talk).starts_with("226"));
    let pid = Pid::from_raw(server.id().cast_signed()).expect("a pid");
    rustix::process::kill_process(pid, Signal::TERM).expect("signal");
    assert_eq!(notice(), "STOPPING=1");
    assert!(server.wait().expect("it ends").success());
    let said = fs::read_to_string(room.at("said")).expect("read");
    let lines: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect();
    let transfer = lines.iter().find(|line| line["event"] == "RETR").expect("a line of the transfer");
    assert_eq!(
        (&transfer["bytes"], &transfer["path"], &transfer["user"]),
        (&6.into(), &"/f".into(), &"anonymous".into())
    );
}

/// Goal: what lies outside is not reached, by whatever client, and links that stay inside are followed.
/// Method: links and `..` by curl.
#[test]
fn nothing_outside_is_served() {
    need!("curl");
    let server = Server::started(Room::new(), &[], false);
    server.room.file("outside", "precious");
    fs::write(server.at("f"), "served").expect("write");
    symlink("../outside", server.at("out")).expect("symlink");
    symlink("/etc/passwd", server.at("passwd")).expect("symlink");
    symlink("f", server.at("in")).expect("symlink");
    let get = |path: &str| {
        let output = Command::new("curl").args(["-sS", "--path-as-is", &server.url(path)]).output();
        output.expect("run curl")
    };
    assert_eq!(get("in").stdout, b"served");
    for path in ["out", "passwd", "../outside", "%2e%2e/outside", "%2Fetc/passwd", "in/../../outside"] {
        let output = get(path);
        assert!(!output.status.success() && output.stdout.is_empty(), "{path}");
    }
    let put = server.room.file("put", "x");
    let output = Command::new("curl").args(["-sS", "-T"]).arg(put).arg(server.url("new")).output();
    assert!(!output.expect("run curl").status.success(), "read-only unless told");
    assert!(!server.at("new").exists());
}

/// Goal: a root that whoever serves cannot open is told when the server starts, and not to each client.
#[test]
fn a_root_that_is_closed_is_told_at_the_start() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let room = Room::new();
    let (closed, below) = (room.dir("closed"), room.dir("closed/below"));
    crate::support::set_mode(&closed, 0o700);
    for (root, user) in [(&closed, None), (&below, None), (&below, Some("daemon"))] {
        let haul = Haul::new(["serve", "gridftp", "--listen", "127.0.0.1:0", "--root"]).args([root]);
        let haul = haul.args(user.into_iter().flat_map(|user| ["--user", user]));
        let said = format!("{}, as whom clients are served, cannot open it", user.unwrap_or("nobody"));
        let _ = haul.run().sane().exits(1).says(&said);
    }
    crate::support::set_mode(&closed, 0o711);
    let _server = Server::started(room, &["--user", "daemon"], false);
}

/// Goal: a server that may only be read says so in words that a client takes for what they are: it is not to
/// be tried again.
#[test]
fn who_may_not_write_is_told_so() {
    let server = Server::started(Room::new(), &[], false);
    let data = server.room.dir("data");
    server.room.file("data/f", "f");
    let ended = Haul::cp(["-r"]).args([&data]).args([server.url("")]).run().sane();
    let ended = ended.says("Permission denied: this login may not change anything here");
    let said = ended.stderr.contains("run the same command again");
    assert!(!said && ended.summary().number("files") == 0, "{}", ended.describe());
}
