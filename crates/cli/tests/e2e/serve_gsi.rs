//! `haul serve gridftp --gsi`: people of a grid come by their certificates, each as his user, with the
//! clients of Globus and with haul's own.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::support::compare::{BELOW, Opts, assert_same};
use crate::support::ftpd::{Ftpd, Kind, grid};
use crate::support::run::{Haul, Running};
use crate::support::serve::{self, CLIENT_SECONDS, SOON, ask};
use crate::support::{Room, procs, read, set_mode, tree};

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
        Server::at_host(room, "127.0.0.1", more, by)
    }

    fn at_host(room: Room, host: &str, more: &[&str], by: impl Fn(Haul) -> Haul) -> Server {
        fs::create_dir_all(room.at("root")).expect("make the root");
        let (port, running) = serve::started(host, " listen gsiftp://", |port| {
            let mut words = vec!["serve".into(), "gridftp".into(), "--gsi".into()];
            words.extend(["--listen".into(), format!("{host}:{port}")]);
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
            by(Haul::new(&words))
        });
        Server { room, port, running }
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
        serve::greeted(self.port)
    }
}

fn file_url(path: impl AsRef<std::path::Path>) -> String {
    format!("file://{}", path.as_ref().display())
}

/// Goal: authorities that the process for strangers cannot read are told at the start, and not by a refusal
/// to each who comes.
/// Method: a directory above them that is closed, themselves, and one certificate in them.
#[test]
fn authorities_that_cannot_be_read_are_told_at_the_start() {
    need!("gridftp");
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let room = Room::new();
    grid(&room);
    room.file("gridmap", "\"/O=Grid/CN=alice\" daemon\n");
    let (root, above) = (room.dir("root"), room.dir("above"));
    let authorities = above.join("authorities");
    fs::rename(room.at("authorities"), &authorities).expect("move them");
    let is_certificate = |path: &PathBuf| path.extension().is_some_and(|n| n == "0");
    let mut all = fs::read_dir(&authorities).expect("list").flatten().map(|entry| entry.path());
    let certificate = all.find(is_certificate).expect("a certificate");
    let options = [("--host-cert", "host.pem"), ("--host-key", "host.key"), ("--gridmap", "gridmap")];
    for (path, closed, open) in
        [(&above, 0o700, 0o755), (&authorities, 0o700, 0o755), (&certificate, 0o600, 0o644)]
    {
        set_mode(path, closed);
        let haul =
            Haul::new(["serve", "gridftp", "--gsi", "--listen", "127.0.0.1:0", "--root"]).args([&root]);
        let haul =
            options.into_iter().fold(haul, |haul, (option, name)| haul.args([option]).args([room.at(name)]));
        let ended = haul.args(["--authorities"]).args([&authorities]).run().sane().exits(1);
        let _ = ended.says("which talks with whoever has not logged in, cannot read them");
        set_mode(path, open);
    }
}

/// Goal: who has no authorities where they are looked for is told the option that names them.
#[test]
fn authorities_that_are_nowhere_are_told_by_their_option() {
    let room = Room::new();
    let haul = || Haul::new(["serve", "gridftp", "--gsi", "--listen", "127.0.0.1:0", "--root"]);
    let haul = || haul().args([room.dir("root")]);
    let nowhere = haul().env("X509_CERT_DIR", room.at("none"));
    let _ = nowhere.run().sane().exits(1).says("there is no ").says("name the directory by --authorities");
    let empty = haul().env("X509_CERT_DIR", room.dir("empty"));
    let _ = empty.run().sane().exits(1).says("name the directory that has them by --authorities");
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
    fs::File::create(&big).and_then(|file| file.set_len(4 << 30)).expect("make a large file");
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

/// Goal: what somebody on the way puts between a client's commands, in the clear or as a token of his own,
/// has no effect, behind the context and behind the login; and what is answered to the client stays
/// protected.
/// Method: a relay between globus-url-copy and the server that adds a line behind one of the client's.
#[test]
fn what_is_not_protected_has_no_effect() {
    need!("gridftp", "globus-url-copy");
    let server = Server::new("root", &["--allow-root"]);
    let near = server.room.file("near", "bytes");
    // Behind the fifth line of the client, its last token, the context stands; the tenth is behind the login.
    for (n, line, answer) in
        [(5, "MKD added", "533"), (10, "MKD added", "533"), (10, "ENC FwMDAAUAAAAAAA==", "421")]
    {
        let between = TcpListener::bind("127.0.0.1:0").expect("listen");
        let url = format!("gsiftp://127.0.0.1:{}/f", between.local_addr().expect("an address").port());
        let port = server.port;
        let relay = std::thread::spawn(move || {
            let (client, _) = between.accept().expect("the client");
            let to = TcpStream::connect(("127.0.0.1", port)).expect("dial");
            let (mut to_server, mut to_client) =
                (to.try_clone().expect("clone"), client.try_clone().expect("clone"));
            let commands = std::thread::spawn(move || {
                for (i, said) in (1..).zip(BufReader::new(client).split(b'\n').map_while(Result::ok)) {
                    let mut said = [said, b"\n".to_vec()].concat();
                    if i == n {
                        said.extend_from_slice(format!("{line}\r\n").as_bytes());
                    }
                    if to_server.write_all(&said).is_err() {
                        break;
                    }
                }
                let _ = to_server.shutdown(Shutdown::Both);
            });
            let mut answers = Vec::new();
            for said in BufReader::new(to).split(b'\n').map_while(Result::ok) {
                let said = [said, b"\n".to_vec()].concat();
                answers.push(String::from_utf8_lossy(&said).into_owned());
                if to_client.write_all(&said).is_err() {
                    break;
                }
            }
            let _ = to_client.shutdown(Shutdown::Both);
            commands.join().expect("a thread");
            answers
        });
        let _ = server.copy("alice", &[&file_url(&near), &url]);
        let answers = relay.join().expect("the relay");
        assert!(!server.at("added").exists(), "line {n} {line} was obeyed");
        let known = answers.iter().position(|said| said.starts_with("235")).expect("the context stands");
        let behind = &answers[known + 1..];
        let bare: Vec<_> = behind.iter().filter(|said| !said.starts_with("632")).collect();
        match answer {
            "533" => assert!(bare.len() == 1 && bare[0].starts_with("533"), "{n}: {bare:?}"),
            _ => assert!(bare.is_empty(), "{n}: {bare:?}"),
        }
        // A client that hears what is not protected may leave before it is answered anything.
        assert!(n == 5 || behind.iter().any(|said| said.starts_with("632")), "{behind:?}");
    }
}

/// Goal: who dials a data port and does not show whose he is keeps nobody waiting and brings nothing.
/// Method: one port for data, which others dial all the time, some of whom say nothing and some what is
/// no TLS, while files come.
#[test]
fn strangers_at_a_data_port_bring_nothing() {
    need!("gridftp", "globus-url-copy");
    let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let port = port.expect("a free port").port();
    let ports = format!("{port}-{port}");
    let server = Server::new("root", &["--allow-root", "--data-ports", &ports]);
    let content = tree::bytes(&mut fastrand::Rng::with_seed(9), 300_000);
    let near = server.room.file("near", &content);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let dialled = std::thread::scope(|scope| {
        let strangers = scope.spawn(|| {
            let mut there = Vec::new();
            let mut count = 0;
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                if let Ok(mut socket) = TcpStream::connect(("127.0.0.1", port)) {
                    count += 1;
                    if count % 2 == 0 {
                        let _ = socket.write_all(b"what a stranger would like to see in the file");
                    }
                    there.push(socket);
                }
                // Fewer at a time than the server looks at.
                if there.len() > 20 {
                    there.remove(0);
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            count
        });
        for options in [&[][..], &["-p", "3"], &["-dcpriv"], &["-fast", "-dcpriv"]] {
            for _ in 0..3 {
                server.copies(&[options, &[&file_url(&near), &server.url("f")]].concat());
                assert!(read(server.at("f")) == content, "{options:?}");
            }
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        strangers.join().expect("a thread")
    });
    assert!(dialled > 0, "no stranger ever came through");
}

/// Goal: data connections lead to another host than the client's only where both ends show whose they are.
/// Method: one server sends to another at another address of this host, with `DCAU A` and without.
#[test]
fn other_hosts_must_show_whose_they_are() {
    need!("gridftp", "globus-url-copy");
    let server = Server::new("root", &["--allow-root"]);
    let room = Room::new();
    for name in ["authorities", "host.pem", "host.key", "gridmap"] {
        let copied = Command::new("cp").arg("-a").arg(server.room.at(name)).arg(room.at(name)).status();
        assert!(copied.expect("run cp").success(), "copy {name}");
    }
    let other = Server::at_host(room, "127.0.0.2", &["--allow-root"], |haul| haul);
    fs::write(server.at("f"), "bytes").expect("write");
    let there = other.url("f").replace("127.0.0.1", "127.0.0.2");
    let words = ["-ds", "/O=Grid/CN=127.0.0.1", &server.url("f"), &there];
    server.refuses("alice", &[&["-nodcau"], &words[..]].concat(), "no other");
    assert!(!other.at("f").exists());
    server.copies(&words);
    assert_eq!(read(other.at("f")), b"bytes");
}

/// Goal: a proxy that has expired is told so.
#[test]
fn an_expired_proxy_is_nobodys() {
    need!("gridftp", "python3");
    let server = Server::new("root", &["--allow-root"]);
    server.room.file(
        "old.cnf",
        "[ca]\ndefault_ca=d\n[d]\ndatabase=old.txt\nnew_certs_dir=.\nserial=old.serial\ndefault_md=sha256\npolicy=p\n\
         [p]\norganizationName=optional\ncommonName=optional\n",
    );
    let make = "touch old.txt; echo 77 >old.serial; openssl req -new -key proxy.key -subj /O=Grid/CN=alice/CN=777 >old.csr; \
                openssl ca -batch -config old.cnf -cert user.pem -keyfile user.key -preserveDN -startdate 20200101000000Z \
                -enddate 20200102000000Z -extfile proxy.cnf -in old.csr -notext -out old.pem; \
                cat old.pem proxy.key user.pem >old; chmod 600 old";
    let made =
        Command::new("sh").args(["-ec", make]).current_dir(server.room.at("")).output().expect("run sh");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    // By a client that shows what it has without a look at it.
    let script = "import base64,socket,ssl,sys\n\
                  s=socket.create_connection(('127.0.0.1',int(sys.argv[1])));f=s.makefile('rwb')\n\
                  def ask(l):\n f.write(l+b'\\r\\n');f.flush();return f.readline()\n\
                  f.readline();print(ask(b'AUTH GSSAPI'))\n\
                  c=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT);c.check_hostname=False;c.verify_mode=ssl.CERT_NONE\n\
                  c.load_cert_chain(sys.argv[2],sys.argv[3])\n\
                  i,o=ssl.MemoryBIO(),ssl.MemoryBIO();t=c.wrap_bio(i,o)\n\
                  for _ in range(8):\n\
                  \x20try: t.do_handshake();done=True\n\
                  \x20except ssl.SSLWantReadError: done=False\n\
                  \x20r=ask(b'ADAT '+base64.b64encode(o.read()));print(r)\n\
                  \x20if not r.startswith(b'335'): break\n\
                  \x20i.write(base64.b64decode(r[9:]))\n";
    let says = |certs: &str| {
        let (port, certs) = (server.port.to_string(), server.room.at(certs).display().to_string());
        let key = server.room.at("proxy.key").display().to_string();
        let output =
            Command::new("python3").args(["-c", script, &port, &certs, &key]).output().expect("run python3");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let old = says("old");
    assert!(old.contains("535") && old.contains("expired"), "{old}");
    // The same client is let in with what is valid, as far as it goes.
    let good = says("alice");
    assert!(good.matches("335 ADAT").count() >= 2 && !good.contains("expired"), "{good}");
}
