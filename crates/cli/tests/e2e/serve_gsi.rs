//! `haul serve gridftp --gsi`: people of a grid come by their certificates, each as his user, with the clients
//! of Globus and with haul's own.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::support::compare::{BELOW, Opts, assert_same};
use crate::support::ftpd::{Ftpd, Kind, grid};
use crate::support::run::{Haul, Running};
use crate::support::{Room, procs, read, set_mode, tree};

/// Far above what a client needs here; one that takes longer hangs.
const CLIENT_SECONDS: &str = "110";
const SOON: Duration = Duration::from_secs(30);
/// A user of every Linux who is not root.
const DAEMON: u32 = 1;

/// A server, and the grid that it is of.
struct Server {
    room: Room,
    port: u16,
    running: Running,
}

impl Server {
    /// Of a new grid; `map` is what its gridmap says of alice.
    fn new(map: &str, more: &[&str]) -> Server {
        let room = Room::new();
        grid(&room);
        room.file("gridmap", format!("\"/O=Grid/CN=alice\" {map}\n"));
        Server::of(room, more, |haul| haul)
    }

    fn of(room: Room, more: &[&str], by: impl Fn(Haul) -> Haul) -> Server {
        fs::create_dir_all(room.at("root")).expect("make the root");
        for _ in 0..20 {
            let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
            let port = port.expect("a free port").port();
            let mut words = vec!["serve".into(), "gridftp".into(), "--gsi".into()];
            words.extend(["--listen".into(), format!("127.0.0.1:{port}")]);
            for (option, name) in [
                ("--root", "root"),
                ("--host-cert", "host.pem"),
                ("--host-key", "host.key"),
                ("--gridmap", "gridmap"),
                ("--authorities", "authorities"),
            ] {
                words.extend([option.into(), room.at(name).display().to_string()]);
            }
            words.extend(more.iter().map(|word| (*word).to_owned()));
            let mut running = by(Haul::new(&words)).start();
            if running.until(|running| running.stderr().contains(" listen gsiftp://")) {
                return Server { room, port, running };
            }
        }
        panic!("the server does not start");
    }

    fn at(&self, name: &str) -> PathBuf {
        self.room.at("root").join(name)
    }

    fn url(&self, path: &str) -> String {
        format!("gsiftp://127.0.0.1:{}/{path}", self.port)
    }

    /// globus-url-copy, who comes by this proxy.
    fn copy(&self, proxy: &str, words: &[&str]) -> Output {
        let mut command = Command::new("timeout");
        command.args([CLIENT_SECONDS, "globus-url-copy"]).args(words).stdin(Stdio::null());
        command.env("X509_CERT_DIR", self.room.at("authorities"));
        command.env("X509_USER_PROXY", self.room.at(proxy)).output().expect("run a client")
    }

    #[track_caller]
    fn copies(&self, words: &[&str]) {
        let output = self.copy("alice", words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {}\n{said}\n{}", output.status, self.running.stderr());
    }

    #[track_caller]
    fn refuses(&self, proxy: &str, words: &[&str], says: &str) {
        let output = self.copy(proxy, words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{words:?} is served");
        assert!(said.contains(says), "{words:?} says {said}\n{}", self.running.stderr());
    }

    /// haul's own client, who comes as alice.
    fn haul(&self) -> Haul {
        let haul = Haul::cp(["-r", "-v"]).env("X509_CERT_DIR", self.room.at("authorities"));
        haul.env("X509_USER_PROXY", self.room.at("alice"))
    }

    fn talk(&self) -> BufReader<TcpStream> {
        let socket = TcpStream::connect(("127.0.0.1", self.port)).expect("connect");
        socket.set_read_timeout(Some(SOON)).expect("set a patience");
        let mut talk = BufReader::new(socket);
        assert!(line(&mut talk).starts_with("220"));
        talk
    }
}

fn line(talk: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    talk.read_line(&mut line).expect("a line in time");
    line
}

fn ask(talk: &mut BufReader<TcpStream>, said: &str) -> String {
    talk.get_mut().write_all(format!("{said}\r\n").as_bytes()).expect("say a line");
    line(talk)
}

fn file_url(path: impl AsRef<std::path::Path>) -> String {
    format!("file://{}", path.as_ref().display())
}

/// Goal: however data connections are protected, and however many there are, what comes and goes is byte for
/// byte what is there.
/// Method: globus-url-copy puts and gets files of sizes at the edges of buffers and records.
#[test]
fn clients_of_globus_get_and_put_the_same_bytes() {
    need!("gridftp", "globus-url-copy");
    let server = Server::new("root", &["--allow-root"]);
    let mut rng = fastrand::Rng::with_seed(6);
    for size in [0, 1, (1 << 18) + 1, 5_000_000] {
        let content = tree::bytes(&mut rng, size);
        let near = server.room.file("near", &content);
        let back = server.room.at("back");
        for options in [
            &[][..],
            &["-p", "4"],
            &["-fast"],
            &["-nodcau"],
            &["-nodcau", "-p", "4"],
            &["-dcpriv"],
            &["-dcpriv", "-p", "4"],
            &["-dcsafe", "-fast"],
        ] {
            let (from, to) = (file_url(&near), server.url("f"));
            let put = [options, &[&from, &to]].concat();
            if size == 0 && options == ["-dcpriv"] {
                // It announces no empty file and ends the connection as somebody on the way could.
                server.refuses("alice", &put, "without the last word of TLS");
                continue;
            }
            server.copies(&put);
            assert!(read(server.at("f")) == content, "{options:?} put {size}");
            server.copies(&[options, &[&server.url("f"), &file_url(&back)]].concat());
            assert!(read(&back) == content, "{options:?} got {size}");
            fs::remove_file(&back).expect("remove what came");
        }
    }
    let log = server.running.stderr();
    assert!(log.contains("login") && log.contains("/O=Grid/CN=alice") && !log.contains("panicked"), "{log}");
}

/// Goal: trees come and go over connections that are kept, pipelined and over several sessions; by haul's own
/// client under each protection.
#[test]
fn trees_come_and_go_by_certificates() {
    need!("gridftp", "globus-url-copy");
    let server = Server::new("root", &["--allow-root"]);
    let near = server.room.at("near");
    tree::plain(&near, 9, 40, 100_000);
    let bytes_alone = Opts { metadata: false, ..BELOW };
    let from = format!("{}/", file_url(&near));
    for (name, options) in [("shown", &["-fast", "-p", "2"][..]), ("private", &["-fast", "-dcpriv"])] {
        let url = server.url(&format!("{name}/"));
        server.copies(&[&["-cd", "-r", "-pp"], options, &[&from, &url]].concat());
        assert_same(&near, &server.at(name), bytes_alone);
        let back = server.room.at(&format!("back-{name}"));
        server.copies(
            &[&["-cd", "-r", "-cc", "4"], options, &[&url, &format!("{}/", file_url(&back))]].concat(),
        );
        assert_same(&near, &back, bytes_alone);
    }
    let from = format!("{}/", near.display());
    for data_channel in ["private", "shown", "plain"] {
        let to = server.url(&format!("haul-{data_channel}/"));
        server.haul().args(["--data-channel", data_channel, &from, &to]).run().sane().exits(0);
        assert_same(&near, &server.at(&format!("haul-{data_channel}")), bytes_alone);
        let back = server.room.dir(&format!("back-{data_channel}"));
        let back_url = back.to_str().expect("UTF-8");
        server.haul().args(["--data-channel", data_channel, &to, back_url]).run().sane().exits(0);
        assert_same(&near, &back, bytes_alone);
    }
}

/// Goal: files go between this server and that of Globus, either way, where both ends show whose they are.
#[test]
fn two_servers_of_a_grid_exchange_files() {
    need!("gridftp", "globus-url-copy");
    let other = Ftpd::start(Kind::GridftpGsi);
    let room = Room::new();
    for name in ["authorities", "host.pem", "host.key", "gridmap", "alice"] {
        let copied = Command::new("cp").arg("-a").arg(other.of_grid(name)).arg(room.at(name)).status();
        assert!(copied.expect("run cp").success(), "copy {name}");
    }
    let server = Server::of(room, &["--allow-root"], |haul| haul);
    let content = tree::bytes(&mut fastrand::Rng::with_seed(7), 5_000_000);
    let here = server.room.file("root/f", &content);
    let there = server.room.at("there");
    for options in [&[][..], &["-p", "4"], &["-fast", "-dcpriv"], &["-nodcau"]] {
        server.copies(&[options, &[&server.url("f"), &other.url(&there)]].concat());
        assert!(read(&there) == content, "{options:?} sent");
        fs::remove_file(&here).expect("remove the file");
        server.copies(&[options, &[&other.url(&there), &server.url("f")]].concat());
        assert!(read(&here) == content, "{options:?} came");
        fs::remove_file(&there).expect("remove the file");
    }
}

/// Goal: a session is the user of the map, with his groups, for good; the process that talks to the client is
/// nobody before and behind the login; what is made is that user's, and what others may not read is not read.
#[test]
fn a_session_is_the_user_of_the_map() {
    need!("gridftp", "globus-url-copy");
    let server = Server::new("daemon,games,root", &[]);
    chown(server.at(""), Some(DAEMON), None).expect("give the root away");
    fs::write(server.at("secret"), "root's").expect("write");
    set_mode(&server.at("secret"), 0o600);
    let near = server.room.file("near", "mine");
    server.copies(&[&file_url(&near), &server.url("f")]);
    assert_eq!(fs::metadata(server.at("f")).expect("stat").uid(), DAEMON);
    let back = file_url(server.room.at("back"));
    server.refuses("alice", &[&server.url("secret"), &back], "550");
    // One of the names that the map has, as which another user he may come; not as any other.
    let by = |user: &str| server.url("g").replace("127.0.0.1", &format!("{user}@127.0.0.1"));
    server.refuses("alice", &[&file_url(&near), &by("games")], "Permission denied");
    server.refuses("alice", &[&file_url(&near), &by("bin")], "does not let this name come as bin");
    server.refuses("alice", &[&file_url(&near), &by("root")], "nobody is served as root here");
    // While a session lives: who talks, and who serves.
    let ids = || -> Vec<String> {
        let text = |pid: &rustix::process::Pid| {
            fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap_or_default()
        };
        let of = |pid| {
            let status = text(pid);
            let heads = ["Uid:", "Gid:", "CapPrm:", "NoNewPrivs:"];
            let lines = status.lines().filter(|line| heads.iter().any(|head| line.starts_with(head)));
            lines.collect::<Vec<_>>().join(" ").split_whitespace().collect::<Vec<_>>().join(" ")
        };
        server.running.near()[1..].iter().map(of).collect()
    };
    let of = |id: u32| {
        format!("Uid: {id} {id} {id} {id} Gid: {id} {id} {id} {id} CapPrm: 0000000000000000 NoNewPrivs: 1")
    };
    let big = server.room.at("big");
    fs::File::create(&big).and_then(|file| file.set_len(20 << 30)).expect("make a large file");
    let mut copy = Command::new("globus-url-copy")
        .args([file_url(&big), server.url("big")])
        .env("X509_CERT_DIR", server.room.at("authorities"))
        .env("X509_USER_PROXY", server.room.at("alice"))
        .spawn()
        .expect("start a client");
    let seen = procs::wait_until(SOON, || ids() == [of(65_534), of(DAEMON)]);
    let last = ids();
    copy.kill().and_then(|()| copy.wait()).expect("end the client");
    assert!(seen, "{last:?}");
    assert!(procs::wait_until(SOON, || ids().is_empty()), "they live on: {:?}", ids());
}

/// Goal: a server that root did not start serves its own user, and nobody as another.
#[test]
fn without_root_there_is_one_user() {
    need!("gridftp", "globus-url-copy", "setpriv");
    for (map, is_served) in [("nobody", true), ("daemon", false)] {
        let room = Room::new();
        grid(&room);
        room.file("gridmap", format!("\"/O=Grid/CN=alice\" {map}\n"));
        let root = room.dir("root");
        for path in [&root, &room.at("gridmap"), &room.at("host.key")] {
            chown(path, Some(65_534), None).expect("give it away");
        }
        let by_nobody = |haul: Haul| {
            let copies = Room::new();
            let haul = haul.run_by_nobody(&copies);
            std::mem::forget(copies);
            haul
        };
        let server = Server::of(room, &[], by_nobody);
        let content = tree::bytes(&mut fastrand::Rng::with_seed(8), 3_000_000);
        let near = server.room.file("near", &content);
        if is_served {
            for options in [&["-p", "4"][..], &["-dcpriv"]] {
                server.copies(&[options, &[&file_url(&near), &server.url("f")]].concat());
                assert!(read(server.at("f")) == content, "{options:?}");
            }
        } else {
            let words = [&*file_url(&near), &server.url("f")];
            server.refuses("alice", &words, "can serve one user, and daemon is another");
        }
    }
}

/// Goal: who has expired, is of another grid, or of no line of the map is nobody; nobody is anonymous unless
/// that is said. A map that is read again counts for sessions from then on, and one that cannot be read
/// leaves what was.
#[test]
fn who_is_not_known_is_nobody() {
    need!("gridftp", "globus-url-copy");
    let server = Server::new("root", &["--allow-root"]);
    let near = server.room.file("near", "bytes");
    let words = [&*file_url(&near), &server.url("f")];
    let other = Room::new();
    grid(&other);
    fs::copy(other.at("alice"), server.room.at("stranger")).expect("copy a proxy");
    set_mode(&server.room.at("stranger"), 0o600);
    server.refuses("stranger", &words, "");
    assert!(!server.at("f").exists());
    let refused = || server.running.stderr().matches(" refused ").count();
    assert!(procs::wait_until(SOON, || refused() >= 1), "{}", server.running.stderr());

    let mut talk = server.talk();
    assert!(ask(&mut talk, "USER anonymous").starts_with("331"));
    assert!(ask(&mut talk, "PASS x").starts_with("530"));

    let map = server.room.at("gridmap");
    fs::write(&map, "\"/O=Grid/CN=bob\" root\n").expect("write the map");
    server.copies(&words);
    server.running.signal(Signal::HUP);
    assert!(procs::wait_until(SOON, || server.running.stderr().contains(" reload ")), "it does not reload");
    server.refuses("alice", &words, "the gridmap has no user for this name");
    fs::write(&map, "\"/O=Grid/CN=alice\n").expect("write the map");
    server.running.signal(Signal::HUP);
    let says = "line 1 has a quote that is not closed; what was read before counts";
    assert!(
        procs::wait_until(SOON, || server.running.stderr().contains(says)),
        "{}",
        server.running.stderr()
    );
    server.refuses("alice", &words, "the gridmap has no user for this name");
    fs::write(&map, "\"/O=Grid/CN=alice\" root\n").expect("write the map");
    server.running.signal(Signal::HUP);
    assert!(procs::wait_until(SOON, || server.running.stderr().matches(" reload ").count() == 2));
    server.copies(&words);

    let server = Server::new("root", &["--anonymous", "read"]);
    let mut talk = server.talk();
    assert!(ask(&mut talk, "USER anonymous").starts_with("331"));
    assert!(ask(&mut talk, "PASS x").starts_with("230"));
    assert!(ask(&mut talk, "PROT P").starts_with("536"), "nobody is known, so nothing can be protected");
    assert!(ask(&mut talk, "MKD d").starts_with('5'));
}

/// Goal: what strangers say before they are known costs them their session and nobody anything: tokens that
/// are none, too long, out of order, too many.
#[test]
fn tokens_of_strangers_end_their_session() {
    need!("gridftp", "globus-url-copy");
    let server = Server::new("root", &["--allow-root"]);
    let mut talk = server.talk();
    assert!(ask(&mut talk, "ADAT AAAA").starts_with("503"));
    assert!(ask(&mut talk, "ENC AAAA").starts_with("503"));
    assert!(ask(&mut talk, "AUTH KERBEROS_V4").starts_with("504"));
    for (n, token) in ["!!!!", "", "AAAA", "FgMBAAEA", "FgMBAAEAAQAA"].into_iter().enumerate() {
        let said = ask(&mut talk, "AUTH GSSAPI");
        if n == 4 {
            assert!(said.starts_with("334") || said.starts_with("421"), "{said}");
            break;
        }
        assert!(said.starts_with("334"), "{said}");
        let said = ask(&mut talk, &format!("ADAT {token}"));
        assert!(
            said.starts_with("501") || said.starts_with("535") || said.starts_with("335"),
            "{token}: {said}"
        );
    }
    let mut rest = Vec::new();
    talk.read_to_end(&mut rest).expect("it hangs up");
    assert!(String::from_utf8_lossy(&rest).contains("421"), "{rest:?}");

    let mut talk = server.talk();
    assert!(ask(&mut talk, "AUTH GSSAPI").starts_with("334"));
    let long = format!("ADAT {}\r\n", "A".repeat(1 << 20));
    // It may hang up before it has all.
    let _ = talk.get_mut().write_all(long.as_bytes());
    let mut rest = Vec::new();
    let _ = talk.read_to_end(&mut rest);
    assert!(String::from_utf8_lossy(&rest).is_empty() || String::from_utf8_lossy(&rest).starts_with("500"));

    // Many who begin and say no more, and the next is served.
    let silent: Vec<_> = (0..40)
        .map(|_| {
            let mut talk = server.talk();
            assert!(ask(&mut talk, "AUTH GSSAPI").starts_with("334"));
            talk
        })
        .collect();
    let near = server.room.file("near", "bytes");
    server.copies(&[&file_url(&near), &server.url("f")]);
    drop(silent);
    assert!(!server.running.stderr().contains("panicked"), "{}", server.running.stderr());
}
