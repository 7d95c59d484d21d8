//! `haul serve gridftp` over a volume: what clients get and put is byte for byte what is there, by one
//! process and by a data node for each server of the volume.

use std::fs;
use std::io::Read as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::serve_striped::{
    BIG, EOD, EOF, Talk, at, block, dial, file_url, free_port, globus, header, make_key, some_bytes,
};
use crate::support::compare::{BELOW, assert_same};
use crate::support::run::{Haul, Running};
use crate::support::serve::CLIENT_SECONDS;
use crate::support::{read, tree};
use crate::volume_copy::User;

/// Bytes of a stripe, if nobody says otherwise.
pub const STRIPE: usize = 1 << 20;
/// Sizes at the edges of stripes and blocks.
pub const SIZES: [usize; 6] = [0, 1, STRIPE - 1, STRIPE, 3 * STRIPE + 1, BIG];

/// A user whose volume is served.
pub struct Served {
    pub user: User,
    pub port: u16,
    pub running: Running,
    pub nodes: Vec<(u16, Running)>,
}

fn command(user: &User, port: u16, root: &str, more: &[&str]) -> Haul {
    let listen = format!("127.0.0.1:{port}");
    let words = ["serve", "gridftp", "--listen", &listen, "--root", root];
    let own = rustix::process::geteuid().is_root().then_some(["--user", "root"]);
    let often = (!more.iter().any(|word| word.starts_with("--markers"))).then_some("--markers=100ms");
    user.env(Haul::new(words)).args(more).args(own.into_iter().flatten()).args(often)
}

pub fn daemon(user: &User, port: u16, root: &str, more: &[&str]) -> Running {
    let mut running = command(user, port, root, more).start();
    assert!(running.until(|running| running.stderr().contains(" listen ")), "{}", running.stderr());
    running
}

impl Served {
    pub fn new(user: User, root: &str, more: &[&str]) -> Served {
        let port = free_port();
        let running = daemon(&user, port, root, more);
        Served { user, port, running, nodes: Vec::new() }
    }

    pub fn writable() -> Served {
        Served::new(User::new(), "vol://v", &["--anonymous", "write"])
    }

    /// With a node for each server of the volume.
    pub fn striped() -> Served {
        Served::striped_of(User::new())
    }

    pub fn striped_of(user: User) -> Served {
        make_key(&user.room, "key");
        let key = at(&user.room, "key");
        let mut nodes = Vec::new();
        for _ in 0..3 {
            let port = free_port();
            nodes.push((port, daemon(&user, port, "vol://v", &["--node", "--node-key", &key])));
        }
        let places: Vec<String> = nodes.iter().map(|(port, _)| format!("127.0.0.1:{port}")).collect();
        let mut more = vec!["--anonymous", "write", "--third-party", "--node-key", &key];
        places.iter().for_each(|place| more.extend(["--data-node", place]));
        Served { nodes, ..Served::new(user, "vol://v", &more) }
    }

    pub fn url(&self, path: &str) -> String {
        format!("ftp://127.0.0.1:{}/{path}", self.port)
    }

    /// Has `content` in the volume, by a copy.
    pub fn has(&self, name: &str, content: &[u8]) {
        let from = self.user.room.file("to be there", content);
        self.user.cp(&[], from, format!("vol://v/{name}")).run().sane().exits(0);
    }

    /// What the volume has there, by a copy.
    pub fn content(&self, name: &str) -> Vec<u8> {
        let to = self.user.room.at("what is there");
        let _ = fs::remove_file(&to);
        self.user.cp(&[], format!("vol://v/{name}"), &to).run().sane().exits(0);
        read(to)
    }

    /// Nothing is in it that nobody has, and nothing is missing.
    pub fn is_sound(&self) {
        self.user.env(Haul::new(["volume", "fsck", "v"])).run().sane().exits(0);
    }

    /// A control connection in stream mode.
    pub fn talk(&self) -> Talk {
        let mut talk = Talk::to(self.port);
        assert!(talk.ask("MODE S").starts_with("200"));
        talk
    }
}

/// Runs a client that must succeed.
#[track_caller]
pub fn client(words: &[&str]) -> Output {
    let output = Command::new("timeout").arg(CLIENT_SECONDS).args(words).stdin(Stdio::null()).output();
    let output = output.expect("run a client");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {}\n{said}", output.status);
    output
}

pub fn data(talk: &mut Talk) -> TcpStream {
    let said = talk.ask("EPSV");
    let port = said.split('|').nth(3).and_then(|port| port.parse::<u16>().ok());
    dial(SocketAddr::from(([127, 0, 0, 1], port.unwrap_or_else(|| panic!("no port in {said}")))))
}

/// What comes by this command, and what is said at its end.
pub fn fetched(talk: &mut Talk, line: &str) -> (Vec<u8>, String) {
    let mut lane = data(talk);
    talk.say(line);
    let first = talk.reply();
    if !first.starts_with('1') {
        return (Vec::new(), first);
    }
    let mut bytes = Vec::new();
    // One that broke is reset, and that is said.
    let _ = lane.read_to_end(&mut bytes);
    (bytes, talk.reply())
}

pub fn put(talk: &mut Talk, line: &str, bytes: &[u8]) -> String {
    use std::io::Write as _;
    let mut lane = data(talk);
    talk.say(line);
    let first = talk.reply();
    if !first.starts_with('1') {
        return first;
    }
    lane.write_all(bytes).expect("send");
    drop(lane);
    talk.reply()
}

fn md5(path: &Path) -> String {
    let output = client(&["md5sum", path.to_str().expect("UTF-8")]);
    String::from_utf8_lossy(&output.stdout).split(' ').next().expect("a sum").to_owned()
}

/// Goal: what curl, globus-url-copy and haul get of a volume is what is in it, of all sizes, in stream mode
/// and in MODE E with one connection and several; listings, sums and parts are right; a path of the volume is
/// all that is seen of it.
/// Method: files that were copied into the volume and back out by a server that serves a directory of it.
#[test]
fn clients_get_what_is_in_a_volume() {
    need!("curl", "globus-url-copy");
    let user = User::new();
    let source = user.room.dir("in");
    let mut rng = fastrand::Rng::with_seed(11);
    for size in SIZES {
        fs::write(source.join(format!("f{size}")), tree::bytes(&mut rng, size)).expect("write");
    }
    fs::create_dir(source.join("d")).expect("mkdir");
    fs::write(source.join("d/x"), "in a directory").expect("write");
    std::os::unix::fs::symlink("d/x", source.join("link")).expect("symlink");
    std::os::unix::fs::symlink("../outside", source.join("out")).expect("symlink");
    let outside = user.room.file("outside", "secret");
    user.cp(&[], outside, "vol://v/outside").run().sane().exits(0);
    user.cp(&["-r"], &source, "vol://v/").run().sane().exits(0);
    let served = Served::new(user, "vol://v/in", &[]);
    for size in SIZES {
        let (name, near) = (format!("f{size}"), source.join(format!("f{size}")));
        let got = served.user.room.at("got");
        let is_same = |by: &str| assert!(read(&got) == read(&near), "{size} bytes by {by}");
        client(&["curl", "-sS", "-o", got.to_str().expect("UTF-8"), &served.url(&name)]);
        is_same("curl");
        for more in [&[][..], &["-fast", "-p", "4"]] {
            let _ = fs::remove_file(&got);
            client(&[&["globus-url-copy"], more, &[&served.url(&name), &file_url(&got)]].concat());
            is_same("globus-url-copy");
        }
        let _ = fs::remove_file(&got);
        Haul::cp([served.url(&name)]).args([&got]).run().sane().exits(0);
        is_same("haul");
        let mut talk = served.talk();
        assert_eq!(talk.ask(&format!("SIZE {name}")).trim(), format!("213 {size}"));
        assert_eq!(talk.ask(&format!("CKSM MD5 0 -1 {name}")).trim(), format!("213 {}", md5(&near)));
    }
    let mut talk = served.talk();
    let (text, said) = fetched(&mut talk, "MLSD");
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(said.starts_with("226"), "{said}");
    for line in ["f1", "f1048575", "d", "link"] {
        assert!(text.lines().any(|one| one.ends_with(&format!("; {line}"))), "{text}");
    }
    assert!(text.contains(&format!("Size={};", BIG)) && !text.contains("; outside"), "{text}");
    let (text, _) = fetched(&mut talk, "NLST d");
    assert_eq!(text, b"x\r\n");
    let (text, _) = fetched(&mut talk, "LIST");
    assert!(String::from_utf8_lossy(&text).contains("link -> d/x"));
    let all = read(source.join(format!("f{BIG}")));
    assert!(talk.ask("REST 5000001").starts_with("350"));
    assert!(fetched(&mut talk, &format!("RETR f{BIG}")).0 == all[5_000_001..]);
    let (part, said) = fetched(&mut talk, &format!("ERET P 1048570 12 f{BIG}"));
    assert!(said.starts_with("226") && part == all[1_048_570..1_048_582], "{said}");
    assert_eq!(fetched(&mut talk, "RETR link").0, b"in a directory");
    let (_, said) = fetched(&mut talk, "RETR out");
    assert!(said.starts_with("553"), "{said}");
    let (_, said) = fetched(&mut talk, "RETR ../outside");
    assert!(said.starts_with("550"), "{said}");
    for line in ["DELE f1", "MKD n", "RMD d", "RNFR f1", "MFMT 20200101000000 f1", "SITE CHMOD 600 f1"] {
        assert!(talk.ask(line).starts_with("550"), "{line}");
    }
    let said = put(&mut talk, "STOR f1", b"other");
    assert!(said.starts_with("550"), "{said}");
    assert_eq!(served.content("in/f1"), read(source.join("f1")));
    served.is_sound();
}

/// Goal: what curl, lftp, globus-url-copy and haul put is in the volume, whole and under its name; what is
/// renamed, removed, made, dated and put into a part of a file is so; no part of an upload is left.
/// Method: each client and each command, looked at by copies out of the volume.
#[test]
fn clients_put_into_a_volume() {
    need!("curl", "lftp", "globus-url-copy");
    let served = Served::writable();
    let mut rng = fastrand::Rng::with_seed(12);
    for size in SIZES {
        let content = tree::bytes(&mut rng, size);
        let near = served.user.room.file("near", &content);
        let shown = near.to_str().expect("UTF-8");
        let check = |by: &str| assert!(served.content("f") == content, "{size} bytes by {by}");
        client(&["curl", "-sS", "-T", shown, &served.url("f")]);
        check("curl");
        for more in [&[][..], &["-fast", "-p", "4"]] {
            client(&[&["globus-url-copy"], more, &[&file_url(&near), &served.url("f")]].concat());
            check("globus-url-copy");
        }
        let script = format!("put -O / {shown} -o l; bye");
        client(&["lftp", "-e", &script, &format!("ftp://127.0.0.1:{}", served.port)]);
        assert!(served.content("l") == content, "{size} bytes by lftp");
    }
    let source = served.user.room.at("tree");
    tree::plain(&source, 13, 40, 2);
    let up = || Haul::cp(["-r"]).args([&source]).args([served.url("")]).run().sane().exits(0);
    up();
    let out = served.user.room.at("out");
    served.user.cp(&["-r"], "vol://v/tree/", &out).run().sane().exits(0);
    for name in fs::read_dir(&source).expect("list").map(|entry| entry.expect("an entry").file_name()) {
        let (ours, theirs) = (source.join(&name), out.join(&name));
        if ours.is_file() {
            assert!(read(&ours) == read(&theirs), "{name:?}");
        }
    }
    // What has its time is not brought again.
    assert_eq!(up().summary().number("bytes_sent"), 0);

    let mut talk = served.talk();
    assert!(put(&mut talk, "STOR g", b"0123456789").starts_with("226"));
    assert!(put(&mut talk, "APPE g", b"abc").starts_with("226"));
    assert!(put(&mut talk, "ESTO A 2 g", b"xy").starts_with("226"));
    assert_eq!(served.content("g"), b"01xy456789abc");
    assert!(talk.ask("REST 4").starts_with("350"));
    assert!(put(&mut talk, "STOR g", b"new").starts_with("226"));
    assert_eq!(served.content("g"), b"01xynew");
    assert!(talk.ask("MFMT 20200102030405 g").starts_with("213"));
    assert_eq!(talk.ask("MDTM g").trim(), "213 20200102030405");
    assert!(talk.ask("SITE CHMOD 640 g").starts_with("200"));
    assert!(talk.ask("MLST g").contains("UNIX.mode=0640;"));
    assert!(talk.ask("MKD d").starts_with("257"));
    assert!(talk.ask("MKD d").starts_with("550"));
    assert!(talk.ask("RNFR g").starts_with("350"));
    assert!(talk.ask("RNTO d/h").starts_with("250"));
    assert!(talk.ask("RMD d").starts_with("550"), "it is not empty");
    assert_eq!(served.content("d/h"), b"01xynew");
    assert!(talk.ask("DELE d/h").starts_with("250"));
    assert!(talk.ask("DELE d/h").starts_with("550"));
    assert!(talk.ask("RMD d").starts_with("250"));
    assert_eq!(served.user.names("v"), ["f", "l", "tree"]);
    served.is_sound();
}

pub fn ranges(told: &[String]) -> Vec<(usize, usize)> {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for range in told.iter().flat_map(|told| told.split(',')) {
        let (start, end) = range.split_once('-').expect("a range");
        ranges.push((start.parse().expect("a number"), end.parse().expect("a number")));
    }
    ranges.sort_unstable();
    ranges
}

/// Sends all but these ranges, and the end.
pub fn send_rest(lanes: &mut [TcpStream], content: &[u8], left_out: &[(usize, usize)]) {
    let mut from = 0;
    let count = lanes.len();
    for (n, (start, end)) in left_out.iter().copied().chain([(content.len(), content.len())]).enumerate() {
        if from < start {
            block(&mut lanes[n % count], content, from, start);
        }
        from = end;
    }
    for lane in lanes.iter_mut() {
        header(lane, EOF | EOD, 0, count as u64);
    }
}

/// Goal: a `111` tells what lasts: an upload that broke is gone on with, by another session, with what was
/// told left out; meanwhile the name is not there; one upload of a name runs at a time; what nobody goes on
/// with is removed by its name.
/// Method: MODE E by plain sockets; the session is killed behind the first marker.
#[test]
fn uploads_to_a_volume_are_gone_on_with() {
    let served = Served::writable();
    let content = some_bytes(6 * STRIPE + 7);
    let half = content.len() / 2;
    let mut talk = Talk::to(served.port);
    let to = talk.spas();
    talk.say("STOR f");
    let mut lane = dial(to[0]);
    block(&mut lane, &content, 0, half);
    let mut told = Vec::new();
    while told.is_empty() {
        let reply = talk.reply();
        assert!(reply.starts_with('1'), "{reply}");
        told.extend(reply.strip_prefix("111 Range Marker ").map(|told| told.trim().to_owned()));
    }
    let mut other = Talk::to(served.port);
    let to = other.spas();
    other.say("STOR f");
    let other_lane = TcpStream::connect(to[0]);
    let said = other.reply();
    assert!(said.starts_with("450"), "{said}");
    drop((other, other_lane));
    let monitor = i32::try_from(served.running.id()).expect("a number");
    let mut sessions = crate::support::procs::descendants(served.running.id());
    sessions.retain(|process| process.as_raw_nonzero().get() != monitor);
    assert!(!sessions.is_empty());
    crate::support::procs::signal_all(&sessions, rustix::process::Signal::KILL);
    drop((talk, lane));
    assert!(Talk::to(served.port).ask("SIZE f").starts_with("550"));

    let mut talk = Talk::to(served.port);
    let to = talk.spas();
    let left_out = ranges(&told);
    assert!(left_out.iter().map(|(start, end)| end - start).sum::<usize>() > 0);
    let rest: Vec<String> = left_out.iter().map(|(start, end)| format!("{start}-{end}")).collect();
    assert!(talk.ask(&format!("REST {}", rest.join(","))).starts_with("350"));
    talk.say("STOR f");
    send_rest(&mut [dial(to[0])], &content, &left_out);
    let (ended, _) = talk.end();
    assert!(ended.starts_with("226"), "{ended}");
    assert!(served.content("f") == content);
    assert_eq!(served.user.names("v"), ["f"]);

    // What was never told is no part of anything.
    let mut talk = Talk::to(served.port);
    let _ = talk.spas();
    assert!(talk.ask("REST 0-5").starts_with("350"));
    let said = talk.ask("STOR f");
    assert!(said.starts_with("554"), "{said}");
    assert!(talk.ask("MKD d").starts_with("257"));
    let mut broken = Talk::to(served.port);
    let to = broken.spas();
    broken.say("STOR d/g");
    let mut lane = dial(to[0]);
    block(&mut lane, &content, 0, half);
    while !broken.reply().starts_with("111") {}
    drop((broken, lane));
    let gone = crate::support::procs::wait_until(crate::support::serve::SOON, || {
        talk.ask("RMD d").starts_with("250")
    });
    assert!(gone, "the directory holds a part, and nothing else");
    served.is_sound();
}

/// Goal: an access for reading is served for reading, and what is to be changed by it is refused at the
/// start; a volume that is not known here, or has no such directory, is not served.
#[test]
fn an_access_for_reading_is_served_for_reading() {
    let user = User::new();
    let file = user.room.at("state/haul/volumes/r");
    let file = file.to_str().expect("UTF-8");
    user.env(Haul::new(["volume", "access", "v", "--read-only", file])).run().sane().exits(0);
    let from = user.room.file("from", b"content");
    user.cp(&[], from, "vol://v/f").run().sane().exits(0);
    command(&user, free_port(), "vol://r", &["--anonymous", "write"])
        .run()
        .sane()
        .exits(1)
        .says("for reading");
    command(&user, free_port(), "vol://none", &[]).run().sane().exits(1).says("no volume none is known here");
    command(&user, free_port(), "vol://v/none", &[]).run().sane().exits(1).says("not there");
    command(&user, free_port(), "vol://v/f", &[]).run().sane().exits(1).says("no directory");
    let served = Served::new(user, "vol://r", &["--anonymous", "read"]);
    let mut talk = served.talk();
    assert_eq!(fetched(&mut talk, "RETR f").0, b"content");
    assert!(talk.ask("DELE f").starts_with("550"));
    let (text, _) = fetched(&mut talk, "MLSD");
    assert!(String::from_utf8_lossy(&text).contains("Size=7;"));
}

/// Goal: a server of the volume that is away ends what needs it with words, and nothing gets a name; when it
/// is there again all goes on.
#[test]
fn a_server_that_is_away_is_told() {
    let served = Served::writable();
    let content = some_bytes(4 * STRIPE);
    served.has("f", &content);
    let mut talk = served.talk();
    assert!(fetched(&mut talk, "RETR f").0 == content);
    for number in 0..3 {
        served.user.kill(number);
    }
    served.user.start();
    let is_back = crate::support::procs::wait_until(crate::support::serve::SOON, || {
        let mut talk = served.talk();
        let (bytes, said) = fetched(&mut talk, "RETR f");
        said.starts_with("226") && bytes == content
    });
    assert!(is_back);
    let said = put(&mut talk, "STOR g", &content);
    assert!(said.starts_with("226"), "{said}");
    assert!(served.content("g") == content);
    served.is_sound();
}

/// Goal: with a data node for each server of a volume what goes by several of them is whole, both ways, by
/// haul, by globus-url-copy and by plain sockets; who does not say which stripe is to have which bytes gets
/// from each node what lies at its server; an upload's markers tell what servers synced.
#[test]
fn nodes_move_the_stripes_of_a_volume() {
    need!("globus-url-copy");
    let served = Served::striped();
    let content = some_bytes(BIG);
    let near = served.user.room.file("near", &content);
    let got = served.user.room.at("got");
    Haul::cp([&near]).args([served.url("h")]).run().sane().exits(0);
    assert!(served.content("h") == content, "put by haul");
    Haul::cp([served.url("h")]).args([&got]).run().sane().exits(0);
    assert!(read(&got) == content, "got by haul");
    globus(&["-stripe", "-fast", "-p", "2", &file_url(&near), &served.url("g")]);
    assert!(served.content("g") == content, "put by Globus");
    let _ = fs::remove_file(&got);
    globus(&["-stripe", "-fast", "-p", "2", &served.url("g"), &file_url(&got)]);
    assert!(read(&got) == content, "got by Globus");
    let moved: Vec<bool> = served
        .nodes
        .iter()
        .map(|(_, node)| node.stderr().lines().any(|line| line.contains(" RETR ") && line.contains("\"/h\"")))
        .collect();
    assert_eq!(moved, [true; 3], "each node has moved a part");

    // Where its stripes lie. One that begins at the first server is sent the same by who does not look.
    let begins_at = || {
        let told = served.user.env(Haul::new(["volume", "stat", "v/h", "--json"])).run().sane().exits(0);
        let told: serde_json::Value = serde_json::from_slice(&told.stdout).expect("JSON");
        told["first_server"].as_u64().expect("a server")
    };
    let mut first = begins_at();
    for _ in 0..20 {
        if first == 0 {
            served.has("h", &content);
            first = begins_at();
        }
    }
    assert_ne!(first, 0, "each copy is another file, which begins elsewhere");
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").expect("listen"));
    let places = listeners.each_ref().map(|listener| {
        let port = listener.local_addr().expect("an address").port();
        format!("127,0,0,1,{},{}", port >> 8, port & 255)
    });
    let mut talk = Talk::to(served.port);
    assert!(talk.ask(&format!("SPOR {}", places.join(" "))).starts_with("200"));
    talk.say("RETR h");
    let lanes = listeners.map(|listener| {
        std::thread::spawn(move || {
            let (mut lane, _) = listener.accept().expect("a node dials");
            let mut blocks = Vec::new();
            loop {
                let mut head = [0; 17];
                lane.read_exact(&mut head).expect("a header");
                let of = |at: usize| u64::from_be_bytes(head[at..at + 8].try_into().expect("eight"));
                if head[0] & EOD != 0 {
                    return blocks;
                }
                let mut bytes = vec![0; usize::try_from(of(1)).expect("fits")];
                lane.read_exact(&mut bytes).expect("a block");
                blocks.push((of(9), bytes));
            }
        })
    });
    let (ended, _) = talk.end();
    assert!(ended.starts_with("226"), "{ended}");
    let mut whole = vec![0; content.len()];
    for (node, lane) in lanes.into_iter().enumerate() {
        for (offset, bytes) in lane.join().expect("no panic") {
            let stripe = offset / STRIPE as u64;
            assert_eq!((first + stripe) % 3, node as u64, "stripe {stripe} by node {node}");
            let offset = usize::try_from(offset).expect("fits");
            whole[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
    }
    assert!(whole == content);

    // An upload by all three, of which one is lost, is gone on with.
    let mut talk = Talk::to(served.port);
    let to = talk.spas();
    assert_eq!(to.len(), 3);
    talk.say("STOR p");
    let mut lanes: Vec<TcpStream> = to.iter().copied().map(dial).collect();
    for (n, lane) in lanes.iter_mut().enumerate() {
        block(lane, &content, n * 2 * STRIPE, n * 2 * STRIPE + STRIPE);
    }
    let mut told = Vec::new();
    while told.len() < 3 {
        let reply = talk.reply();
        assert!(reply.starts_with('1'), "{reply}");
        told.extend(reply.strip_prefix("111 Range Marker ").map(|told| told.trim().to_owned()));
    }
    drop(lanes.pop());
    let (ended, more) = talk.end();
    assert!(ended.starts_with("426"), "{ended}");
    told.extend(more);
    assert!(talk.ask("SIZE p").starts_with("550"));
    let left_out = ranges(&told);
    let mut talk = Talk::to(served.port);
    let to = talk.spas();
    let rest: Vec<String> = left_out.iter().map(|(start, end)| format!("{start}-{end}")).collect();
    assert!(talk.ask(&format!("REST {}", rest.join(","))).starts_with("350"));
    talk.say("STOR p");
    let mut lanes: Vec<TcpStream> = to.iter().copied().map(dial).collect();
    // Each node counts the ends of its own connections.
    let mut from = 0;
    for (n, (start, end)) in left_out.iter().copied().chain([(content.len(), content.len())]).enumerate() {
        if from < start {
            block(&mut lanes[n % 3], &content, from, start);
        }
        from = end;
    }
    for lane in &mut lanes {
        header(lane, EOF | EOD, 0, 1);
    }
    let (ended, _) = talk.end();
    assert!(ended.starts_with("226"), "{ended}");
    assert!(served.content("p") == content);
    assert_eq!(served.user.names("v"), ["g", "h", "p"]);
    served.is_sound();
}

/// Goal: a tree goes through a served volume and comes back as it was.
#[test]
fn a_tree_goes_there_and_back() {
    let served = Served::writable();
    let (source, back): (PathBuf, PathBuf) = (served.user.room.at("tree"), served.user.room.at("back"));
    tree::plain(&source, 21, 60, 3);
    Haul::cp(["-r"]).args([&source]).args([served.url("")]).run().sane().exits(0);
    Haul::cp(["-r"]).args([served.url("tree/")]).args([&back]).run().sane().exits(0);
    let opts = crate::support::compare::Opts { metadata: false, ..BELOW };
    assert_same(&source, &back, opts);
    served.is_sound();
}
