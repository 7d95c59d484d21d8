//! `haul serve gridftp` over a volume of which something is away: what lies elsewhere goes on, what is needed
//! is told by its place and gets no name, no byte is another one, and all goes on when it is there again.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::serve_striped::{BIG, EOD, EOF, Talk, at, block, dial, header, some_bytes};
use crate::serve_volume::{STRIPE, Served, daemon, data, fetched, put, ranges, send_rest};
use crate::support::procs::{self, wait_until};
use crate::support::read;
use crate::support::run::Haul;
use crate::support::serve::{CLIENT_SECONDS, SOON};
use crate::volume_copy::signal;

/// More than sockets and what is read ahead hold.
const LONG: usize = 48 << 20;
/// Nothing is silent for so long: a server that is away is waited for a minute.
const SILENT_MAX: Duration = Duration::from_secs(300);
/// What `some_bytes` never begins with for so long.
const OLD: &[u8] = b"what stood there before";

fn first_server(served: &Served, name: &str) -> u64 {
    let told = served.user.env(Haul::new(["volume", "stat", &format!("v/{name}"), "--json"])).run().sane();
    let told: Value = serde_json::from_slice(&told.exits(0).stdout).expect("JSON");
    told["first_server"].as_u64().expect("a server")
}

/// A download in stream mode that has begun.
struct Download {
    talk: Talk,
    lane: TcpStream,
    bytes: Vec<u8>,
}

impl Download {
    fn begin(served: &Served, name: &str) -> Download {
        let mut talk = served.talk().patient();
        let mut lane = data(&mut talk);
        lane.set_read_timeout(Some(SILENT_MAX)).expect("set a patience");
        talk.say(&format!("RETR {name}"));
        let said = talk.reply();
        assert!(said.starts_with('1'), "{said}");
        let mut bytes = vec![0; STRIPE];
        lane.read_exact(&mut bytes).expect("its beginning");
        Download { talk, lane, bytes }
    }

    /// What came, and what is said at its end.
    fn end(mut self) -> (Vec<u8>, String) {
        // One that was reset ends, too.
        let _ = self.lane.read_to_end(&mut self.bytes);
        (self.bytes, self.talk.reply())
    }
}

/// An upload in stream mode of which this much was sent.
struct Upload {
    talk: Talk,
    lane: TcpStream,
}

impl Upload {
    fn begin(served: &Served, name: &str, bytes: &[u8]) -> Upload {
        let mut talk = served.talk().patient();
        let mut lane = data(&mut talk);
        talk.say(&format!("STOR {name}"));
        let said = talk.reply();
        assert!(said.starts_with('1'), "{said}");
        lane.write_all(bytes).expect("send");
        Upload { talk, lane }
    }

    fn end(mut self, bytes: &[u8]) -> String {
        // One that failed takes no more.
        let _ = self.lane.write_all(bytes);
        drop(self.lane);
        self.talk.reply()
    }
}

/// Goal: while a server of the volume is away, files of the others come and go, and what needs it fails with
/// its number, over each way: `450` of a look, `451` of a transfer, and never `226`. What came until then is
/// the file's beginning, no upload has a name, and what stood there stands. When it is there again the same
/// sessions go on, and `REST` brings the rest.
/// Method: a small file on each server and one on all; each way in a session of its own, at the same time.
#[test]
fn what_is_elsewhere_goes_on() {
    need!("curl");
    let served = Served::writable();
    let long = some_bytes(LONG);
    served.has("long", &long);
    served.has("g", OLD);
    let mut small = [None, None, None];
    for n in 0..12 {
        let (name, content) = (format!("s{n}"), some_bytes(1000 + n));
        served.has(&name, &content);
        let server = first_server(&served, &name);
        small[server as usize] = Some((name, content));
    }
    let small = small.map(|one| one.expect("files begin at different servers"));
    let gatherer = first_server(&served, "long");
    let gone = (gatherer + 1) % 3;
    let broken = Download::begin(&served, "long");
    let mut before = served.talk().patient();
    served.user.kill(gone);
    let mut elsewhere = || {
        for (server, (name, content)) in small.iter().enumerate() {
            if server as u64 != gone {
                let (bytes, said) = fetched(&mut before, &format!("RETR {name}"));
                assert!(said.starts_with("226") && bytes == *content, "{name}: {said}");
                let size = format!("213 {}", content.len());
                assert_eq!(before.ask(&format!("SIZE {name}")).trim(), size);
            }
        }
    };
    elsewhere();
    let (name, content) = &small[gone as usize];
    let by_curl = served.user.room.at("by curl");
    let (told, came) = std::thread::scope(|scope| {
        let asks = |line: String| {
            let mut talk = served.talk().patient();
            scope.spawn(move || talk.ask(&line))
        };
        let gets = |line: String| {
            let mut talk = served.talk().patient();
            scope.spawn(move || fetched(&mut talk, &line))
        };
        let puts = |line: &'static str, bytes: &[u8]| {
            let (mut talk, bytes) = (served.talk().patient(), bytes.to_vec());
            scope.spawn(move || put(&mut talk, line, &bytes))
        };
        let looks = [format!("SIZE {name}"), format!("MDTM {name}"), format!("MLST {name}")].map(asks);
        let sum = asks("CKSM MD5 0 -1 long".into());
        let first = gets(format!("RETR {name}"));
        let (listed, all) = (gets("MLSD".into()), gets("RETR long".into()));
        let stored = [puts("STOR g", &long[..6 * STRIPE]), puts("STOR new", &long[..6 * STRIPE])];
        let curl = scope.spawn(|| {
            let mut command = Command::new("timeout");
            command.args([CLIENT_SECONDS, "curl", "-sS", "-o"]).arg(&by_curl).arg(served.url("long"));
            command.stdin(Stdio::null()).output().expect("run a client")
        });
        // Read at once: who takes nothing for two minutes is given up.
        let broken = scope.spawn(move || broken.end());
        // Meanwhile, too.
        elsewhere();
        let mut told: Vec<(&str, String)> = Vec::new();
        told.extend(looks.map(|one| ("450", one.join().expect("no panic"))));
        told.push(("45", sum.join().expect("no panic")));
        let (bytes, said) = first.join().expect("no panic");
        assert!(bytes.is_empty());
        told.push(("45", said));
        told.push(("45", listed.join().expect("no panic").1));
        let (bytes, said) = all.join().expect("no panic");
        told.push(("451", said));
        told.extend(stored.map(|one| ("451", one.join().expect("no panic"))));
        let (more, said) = broken.join().expect("no panic");
        told.push(("451", said));
        assert!(!curl.join().expect("no panic").status.success(), "curl takes it for whole");
        (told, vec![bytes, more, fs::read(&by_curl).unwrap_or_default()])
    });
    for (code, said) in &told {
        assert!(said.starts_with(code) && said.contains(&format!("server {gone}")), "{code}: {told:?}");
    }
    for bytes in &came {
        assert!(bytes.len() < LONG && long.starts_with(bytes), "{} bytes came", bytes.len());
    }

    served.user.start();
    let (bytes, said) = fetched(&mut before, &format!("RETR {name}"));
    assert!(said.starts_with("226") && bytes == *content, "{said}");
    assert!(served.content("g") == OLD);
    let begun = &came[1];
    assert!(before.ask(&format!("REST {}", begun.len())).starts_with("350"));
    let (rest, said) = fetched(&mut before, "RETR long");
    assert!(said.starts_with("226") && [&begun[..], &rest].concat() == long, "{said}");
    let said = put(&mut before, "STOR new", &long[..6 * STRIPE]);
    assert!(said.starts_with("226") && served.content("new") == long[..6 * STRIPE], "{said}");
    assert!(
        !served.user.names("v").iter().any(|name| name.contains("haul~")),
        "{:?}",
        served.user.names("v")
    );
    served.is_sound();
}

/// Goal: a server that is killed in the middle and is there again within a minute costs no byte: a download
/// goes on, or says that it must be got again; an upload is whole, or says that it is not and has no name.
/// Method: each server in turn, so also the one that tells the file's version.
#[test]
fn who_comes_back_costs_no_bytes() {
    let served = Served::writable();
    let long = some_bytes(LONG);
    served.has("long", &long);
    let gatherer = first_server(&served, "long");
    for gone in 0..3 {
        let download = Download::begin(&served, "long");
        served.user.kill(gone);
        std::thread::sleep(Duration::from_millis(300));
        served.user.start();
        let (bytes, said) = download.end();
        assert!(long.starts_with(&bytes), "server {gone}: {said}");
        // The version is another where it was started anew that tells it.
        assert!(gone == gatherer || said.starts_with("226"), "server {gone}: {said}");
        assert!(said.starts_with("45") || said.starts_with("226") && bytes == long, "{gone}: {said}");
        let mut talk = served.talk();
        let (bytes, said) = fetched(&mut talk, "RETR long");
        assert!(said.starts_with("226") && bytes == long, "server {gone}: {said}");

        let name = format!("g{gone}");
        served.has(&name, OLD);
        let upload = Upload::begin(&served, &name, &long[..9 * STRIPE]);
        served.user.kill(gone);
        std::thread::sleep(Duration::from_millis(300));
        served.user.start();
        let said = upload.end(&long[9 * STRIPE..12 * STRIPE]);
        match said.starts_with("226") {
            true => assert!(served.content(&name) == long[..12 * STRIPE], "server {gone}"),
            false => {
                assert!(said.starts_with("45") && said.contains("was lost"), "server {gone}: {said}");
                assert!(served.content(&name) == OLD, "server {gone}: {said}");
            }
        }
        let said = put(&mut talk, &format!("STOR {name}"), &long[..12 * STRIPE]);
        assert!(said.starts_with("226") && served.content(&name) == long[..12 * STRIPE], "{gone}: {said}");
    }
    served.is_sound();
}

/// Goal: of an upload of which a server lost something nothing is told to be safe that is not: who goes on
/// with what was told, or begins anew, has his bytes there.
/// Method: MODE E without markers, so that nothing was synced; a server is killed, and what it has of the
/// part is cut off, as a power cut does it.
#[test]
fn what_a_server_lost_is_not_told_to_be_safe() {
    let served =
        Served::new(crate::volume_copy::User::new(), "vol://v", &["--anonymous", "write", "--markers=10m"]);
    let content = some_bytes(12 * STRIPE + 9);
    let half = 6 * STRIPE;
    for gone in 0..3_u64 {
        let name = format!("f{gone}");
        let mut talk = Talk::to(served.port).patient();
        let to = talk.spas();
        talk.say(&format!("STOR {name}"));
        let mut lane = dial(to[0]);
        block(&mut lane, &content, 0, half);
        // What each server has of the part: the earlier files have more.
        let parts = || -> Vec<(usize, PathBuf)> {
            let dirs = ["a", "b", "c"].map(|dir| served.user.room.at(dir).join("data/files"));
            let below = (0..).zip(dirs).flat_map(|(server, dir)| {
                let dirs = fs::read_dir(dir).into_iter().flatten().flatten();
                dirs.map(move |dir| (server, dir.path())).collect::<Vec<_>>()
            });
            let files = below.flat_map(|(server, dir)| {
                let files = fs::read_dir(dir).into_iter().flatten().flatten();
                files.map(move |file| (server, file.path())).collect::<Vec<_>>()
            });
            let has_two = |path: &PathBuf| path.metadata().is_ok_and(|meta| meta.len() == 2 * STRIPE as u64);
            files.filter(|(_, path)| has_two(path)).collect()
        };
        assert!(wait_until(SOON, || parts().len() == 3), "it is not written: {:?}", parts());
        served.user.kill(gone);
        let lost = parts().into_iter().find(|(server, _)| *server == gone as usize).expect("the part");
        fs::OpenOptions::new().write(true).open(lost.1).and_then(|file| file.set_len(0)).expect("cut");
        served.user.start();
        block(&mut lane, &content, half, content.len());
        header(&mut lane, EOF | EOD, 0, 1);
        let (ended, told) = talk.end();
        assert!(ended.starts_with("451") && ended.contains("was lost"), "{gone}: {ended} {told:?}");
        assert!(talk.ask(&format!("SIZE {name}")).starts_with("550"));

        let left_out = ranges(&told);
        let mut talk = Talk::to(served.port).patient();
        let to = talk.spas();
        if !left_out.is_empty() {
            let rest: Vec<String> = left_out.iter().map(|(from, to)| format!("{from}-{to}")).collect();
            assert!(talk.ask(&format!("REST {}", rest.join(","))).starts_with("350"));
        }
        talk.say(&format!("STOR {name}"));
        send_rest(&mut [dial(to[0])], &content, &left_out);
        let (ended, _) = talk.end();
        assert!(ended.starts_with("226"), "{ended}");
        assert!(served.content(&name) == content, "server {gone}: what was told to be safe is not there");
    }
    served.is_sound();
}

/// Goal: while the catalog is away what is read is read on, and nothing is called whole that nobody can look
/// at; names are not looked at, made or changed, and it is said why; nobody is let in and told that all is
/// well. When it is there again all goes on, in the same sessions.
#[test]
fn a_catalog_that_is_away_is_told() {
    let served = Served::writable();
    let long = some_bytes(LONG);
    served.has("long", &long);
    served.has("g", OLD);
    let kill = || signal(served.user.process(None), Signal::KILL);
    // It is there again before anybody has waited for too long.
    let (download, upload) =
        (Download::begin(&served, "long"), Upload::begin(&served, "new", &long[..STRIPE]));
    kill();
    std::thread::scope(|scope| {
        let download = scope.spawn(move || download.end());
        let upload = scope.spawn(|| upload.end(&long[STRIPE..5 * STRIPE]));
        std::thread::sleep(Duration::from_secs(2));
        served.user.start();
        let (bytes, said) = download.join().expect("no panic");
        assert!(said.starts_with("226") && bytes == long, "{} bytes: {said}", bytes.len());
        let said = upload.join().expect("no panic");
        assert!(said.starts_with("226") && served.content("new") == long[..5 * STRIPE], "{said}");
    });

    let (download, upload) = (Download::begin(&served, "long"), Upload::begin(&served, "g", &long[..STRIPE]));
    let mut before = served.talk().patient();
    let asks = ["SIZE g", "MKD d", "DELE g", "RNFR g"].map(|line| (line, served.talk().patient()));
    kill();
    std::thread::scope(|scope| {
        let download = scope.spawn(move || download.end());
        let upload = scope.spawn(|| upload.end(&long[STRIPE..5 * STRIPE]));
        let asks = asks.map(|(line, mut talk)| scope.spawn(move || (line, talk.ask(line))));
        let late = scope.spawn(|| {
            let mut talk = crate::support::serve::greeted(served.port);
            talk.get_ref().set_read_timeout(Some(SILENT_MAX)).expect("set a patience");
            crate::support::serve::ask(&mut talk, "USER anonymous");
            crate::support::serve::ask(&mut talk, "PASS x")
        });
        let (bytes, said) = download.join().expect("no panic");
        assert!(long.starts_with(&bytes) && said.starts_with("45"), "{} bytes: {said}", bytes.len());
        let said = upload.join().expect("no panic");
        assert!(said.starts_with("45") && said.contains("catalog"), "{said}");
        for (line, said) in asks.into_iter().map(|one| one.join().expect("no panic")) {
            assert!(said.starts_with("450") && said.contains("catalog"), "{line}: {said}");
        }
        let said = late.join().expect("no panic");
        assert!(said.starts_with("530") || said.starts_with("421"), "{said}");
    });
    served.user.start();
    assert_eq!(before.ask("SIZE g").trim(), format!("213 {}", OLD.len()));
    assert!(served.content("g") == OLD);
    let (bytes, said) = fetched(&mut before, "RETR long");
    assert!(said.starts_with("226") && bytes == long, "{said}");
    let said = put(&mut before, "STOR g", &long[..STRIPE]);
    assert!(said.starts_with("226") && served.content("g") == long[..STRIPE], "{said}");
    served.is_sound();
}

/// Goal: a data node that is away, or dies in the middle, fails what needs it with its address, nothing gets
/// a name, and no byte is another one; when it is there again the same commands go well.
/// Method: haul as the client, before and after; and plain sockets, where the node is killed behind the first
/// blocks.
#[test]
fn a_data_node_that_is_away_is_told() {
    let mut served = Served::striped();
    let content = some_bytes(BIG);
    served.has("f", &content);
    served.has("g", OLD);
    let near = served.user.room.file("near", &content);
    let got = served.user.room.at("got");
    let kill = |served: &Served, node: usize| {
        procs::signal_all(&procs::descendants(served.nodes[node].1.id()), Signal::KILL);
    };
    let key = at(&served.user.room, "key");
    let back = |served: &mut Served, node: usize| {
        let port = served.nodes[node].0;
        served.nodes[node].1 = daemon(&served.user, port, "vol://v", &["--node", "--node-key", &key]);
    };
    kill(&served, 1);
    let ended = Haul::cp([served.url("f")]).args([&got]).run().sane();
    let there = fs::read(&got).ok();
    assert!(there.is_none_or(|bytes| ended.status.success() && bytes == content), "{}", ended.describe());
    let ended = Haul::cp([&near]).args([served.url("g")]).run().sane();
    let is = served.content("g");
    assert!(if ended.status.success() { is == content } else { is == OLD }, "{}", ended.describe());
    // Who asks for all nodes is told which one is not there.
    let mut talk = Talk::to(served.port).patient();
    let said = talk.ask("SPAS");
    let address = format!("127.0.0.1:{}", served.nodes[1].0);
    assert!(said.starts_with("229") || said.starts_with('4') && said.contains(&address), "{said}");
    back(&mut served, 1);
    let _ = fs::remove_file(&got);
    Haul::cp([served.url("f")]).args([&got]).run().sane().exits(0);
    assert!(read(&got) == content);
    Haul::cp([&near]).args([served.url("g")]).run().sane().exits(0);
    assert!(served.content("g") == content);

    // One that dies while it has something.
    let mut talk = Talk::to(served.port).patient();
    let to = talk.spas();
    talk.say("STOR f");
    let mut lanes: Vec<TcpStream> = to.iter().copied().map(dial).collect();
    for (n, lane) in lanes.iter_mut().enumerate() {
        block(lane, &content[1..], n * 2 * STRIPE, n * 2 * STRIPE + STRIPE);
    }
    while !talk.reply().starts_with("111") {}
    kill(&served, 2);
    let (ended, _) = talk.end();
    assert!(ended.starts_with("426"), "{ended}");
    drop(lanes);
    assert!(served.content("f") == content, "what stood there stands");
    back(&mut served, 2);

    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").expect("listen"));
    let places = listeners.each_ref().map(|listener| {
        let port = listener.local_addr().expect("an address").port();
        format!("127,0,0,1,{},{}", port >> 8, port & 255)
    });
    served.has("long", &some_bytes(LONG));
    let mut talk = Talk::to(served.port).patient();
    assert!(talk.ask(&format!("SPOR {}", places.join(" "))).starts_with("200"));
    talk.say("RETR long");
    // Each has begun, and nobody takes more.
    let lanes = listeners.each_ref().map(|listener| {
        let (mut lane, _) = listener.accept().expect("a node dials");
        lane.read_exact(&mut [0; 17]).expect("a header");
        lane
    });
    kill(&served, 0);
    let (ended, _) = talk.end();
    assert!(ended.starts_with("426"), "{ended}");
    drop(lanes);
    back(&mut served, 0);
    let _ = fs::remove_file(&got);
    Haul::cp([served.url("long")]).args([&got]).run().sane().exits(0);
    assert!(read(&got) == some_bytes(LONG));
    served.is_sound();
}
