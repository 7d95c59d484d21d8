//! `haul serve gridftp` with data nodes: what goes by several of them is whole, or has no name.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::support::node::{Node, Software};
use crate::support::run::{Haul, Running};
use crate::support::{Room, procs, read, set_mode, tree};

/// Far above what a client needs here; one that takes longer hangs.
const CLIENT_SECONDS: &str = "110";
const SOON: Duration = Duration::from_secs(60);
pub const BIG: usize = 20_000_000;
/// More than sockets hold.
const LONG: u64 = 64 << 20;
pub const EOF: u8 = 0x40;
pub const EOD: u8 = 0x08;

/// A front end and its data nodes.
struct Striped {
    room: Room,
    port: u16,
    front: Running,
    nodes: Vec<(u16, Option<Running>)>,
}

impl Striped {
    /// Each node serves this directory of the room.
    fn start(roots: &[&str]) -> Striped {
        let room = Room::new();
        room.dir("root");
        make_key(&room, "key");
        let mut nodes = Vec::new();
        for root in roots {
            room.dir(root);
            let port = free_port();
            let node = daemon(&room, port, root, &["--node", "--node-key", &at(&room, "key")]);
            nodes.push((port, Some(node)));
        }
        let port = free_port();
        let mut words = vec!["--anonymous".into(), "write".into(), "--third-party".into()];
        words.extend(["--node-key".to_owned(), at(&room, "key")]);
        for (port, _) in &nodes {
            words.extend(["--data-node".to_owned(), format!("127.0.0.1:{port}")]);
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let front = daemon(&room, port, "root", &words);
        Striped { room, port, front, nodes }
    }

    /// For people of a grid, of whom one is this user here, with two nodes that know its authorities, or do
    /// not.
    fn of_grid(knowing: bool, user: &str) -> Striped {
        let room = Room::new();
        room.dir("root");
        make_key(&room, "key");
        crate::support::ftpd::grid(&room);
        room.file("gridmap", format!("\"/O=Grid/CN=alice\" {user}\n"));
        let key = ["--node-key".to_owned(), at(&room, "key")];
        let authorities = ["--authorities".to_owned(), at(&room, "authorities")];
        let start = |port, words: &[String]| {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            daemon(&room, port, "root", &words)
        };
        let mut nodes = Vec::new();
        for _ in 0..2 {
            let (port, known) = (free_port(), if knowing { &authorities[..] } else { &[] });
            nodes.push((port, Some(start(port, &[&["--node".to_owned()], &key[..], known].concat()))));
        }
        let mut words =
            [&["--gsi".to_owned(), "--allow-root".to_owned()], &key[..], &authorities[..]].concat();
        for (option, name) in
            [("--host-cert", "host.pem"), ("--host-key", "host.key"), ("--gridmap", "gridmap")]
        {
            words.extend([option.to_owned(), at(&room, name)]);
        }
        for (port, _) in &nodes {
            words.extend(["--data-node".to_owned(), format!("127.0.0.1:{port}")]);
        }
        let port = free_port();
        let front = start(port, &words);
        Striped { room, port, front, nodes }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.room.at("root").join(name)
    }

    fn url(&self, name: &str) -> String {
        format!("ftp://127.0.0.1:{}/{name}", self.port)
    }

    /// Bytes that each node has moved of a name, as its log says.
    fn moved(&self, verb: &str, name: &str) -> Vec<u64> {
        let of = |(_, node): &(u16, Option<Running>)| {
            let log = node.as_ref().expect("it runs").stderr();
            let is =
                |line: &&str| line.contains(&format!(" {verb} ")) && line.contains(&format!("\"/{name}"));
            let bytes = |line: &str| line.split(" bytes").next()?.rsplit(' ').next()?.parse::<u64>().ok();
            log.lines().filter(is).filter_map(bytes).sum()
        };
        self.nodes.iter().map(of).collect()
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(self.room.at("root")).expect("list");
        names.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
    }

    fn talk(&self) -> Talk {
        Talk::to(self.port)
    }
}

pub fn at(room: &Room, name: &str) -> String {
    room.at(name).display().to_string()
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port").port()
}

pub fn make_key(room: &Room, name: &str) {
    let made = Command::new("openssl")
        .args(["genpkey", "-algorithm", "ed25519", "-out"])
        .arg(room.at(name))
        .stderr(Stdio::null())
        .status();
    assert!(made.is_ok_and(|status| status.success()), "make a key");
    set_mode(&room.at(name), 0o600);
}

fn daemon(room: &Room, port: u16, root: &str, more: &[&str]) -> Running {
    let listen = format!("127.0.0.1:{port}");
    let mut haul = Haul::new(["serve", "gridftp", "--listen", &listen]);
    if !more.iter().any(|word| word.starts_with("--markers")) {
        haul = haul.args(["--markers=100ms"]);
    }
    haul = haul.args(["--root".as_ref(), room.at(root).as_os_str()]).args(more);
    if rustix::process::geteuid().is_root() {
        haul = haul.args(["--user", "root"]);
    }
    let mut running = haul.start();
    assert!(running.until(|running| running.stderr().contains(" listen ")), "{}", running.stderr());
    running
}

/// A control connection by plain sockets.
pub struct Talk(BufReader<TcpStream>);

impl Talk {
    /// Logged in, in MODE E.
    pub fn to(port: u16) -> Talk {
        let socket = TcpStream::connect(("127.0.0.1", port)).expect("connect");
        socket.set_read_timeout(Some(SOON)).expect("set a patience");
        let mut talk = Talk(BufReader::new(socket));
        talk.reply();
        for line in ["USER anonymous", "PASS x", "TYPE I", "MODE E"] {
            talk.ask(line);
        }
        talk
    }

    /// It waits longer than servers of a volume are waited for, and what is undone behind that.
    pub fn patient(self) -> Talk {
        self.0.get_ref().set_read_timeout(Some(6 * SOON)).expect("set a patience");
        self
    }

    pub fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.reply()
    }

    pub fn say(&mut self, line: &str) {
        self.0.get_mut().write_all(format!("{line}\r\n").as_bytes()).expect("say a line");
    }

    /// The next reply, all its lines.
    pub fn reply(&mut self) -> String {
        let mut all = String::new();
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).expect("an answer in time");
            assert!(!line.is_empty(), "it hangs up after {all}");
            all += &line;
            if line.as_bytes().get(3) == Some(&b' ') && line.get(..3) == all.get(..3) {
                return all;
            }
        }
    }

    /// Where the nodes listen.
    pub fn spas(&mut self) -> Vec<SocketAddr> {
        let said = self.ask("SPAS");
        assert!(said.starts_with("229"), "{said}");
        let address = |line: &str| {
            let n: Vec<u8> = line.trim().split(',').map(|n| n.parse().expect("a number")).collect();
            SocketAddr::from(([n[0], n[1], n[2], n[3]], u16::from_be_bytes([n[4], n[5]])))
        };
        said.lines().filter(|line| line.starts_with(' ')).map(address).collect()
    }

    /// The last reply to what is under way, and the ranges that were told before it.
    pub fn end(&mut self) -> (String, Vec<String>) {
        let mut ranges = Vec::new();
        loop {
            let reply = self.reply();
            if let Some(told) = reply.strip_prefix("111 Range Marker ") {
                ranges.push(told.trim().to_owned());
            } else if !reply.starts_with('1') {
                return (reply, ranges);
            }
        }
    }
}

pub fn header(to: &mut TcpStream, descriptor: u8, count: u64, offset: u64) {
    let mut bytes = vec![descriptor];
    bytes.extend(count.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    to.write_all(&bytes).expect("send a header");
}

pub fn block(to: &mut TcpStream, content: &[u8], from: usize, end: usize) {
    header(to, 0, (end - from) as u64, from as u64);
    to.write_all(&content[from..end]).expect("send a block");
}

pub fn dial(to: SocketAddr) -> TcpStream {
    TcpStream::connect(to).expect("dial a node")
}

/// Where two nodes are to connect.
fn listeners() -> [TcpListener; 2] {
    [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("listen"))
}

fn spor(listeners: &[TcpListener; 2]) -> String {
    let port = |listener: &TcpListener| listener.local_addr().expect("an address").port();
    let places = listeners.each_ref().map(|l| format!("127,0,0,1,{},{}", port(l) >> 8, port(l) & 255));
    format!("SPOR {}", places.join(" "))
}

pub fn some_bytes(len: usize) -> Vec<u8> {
    tree::bytes(&mut fastrand::Rng::with_seed(73), len)
}

pub fn globus(words: &[&str]) {
    let output = Command::new("timeout").args([CLIENT_SECONDS, "globus-url-copy"]).args(words).output();
    let output = output.expect("run a client");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {}\n{said}", output.status);
}

pub fn file_url(path: &Path) -> String {
    format!("file://{}", path.display())
}

/// Goal: with people of a grid nodes show on data connections whose these are, encrypted or not, and each
/// moves its part; a node that cannot know who comes moves nothing. Whom the gridmap takes for another user
/// than that of the nodes is served by the front end alone.
/// Method: Globus' client and haul's, with each protection of data.
#[test]
fn people_of_a_grid_have_their_data_by_nodes() {
    need!("gridftp", "globus-url-copy");
    let content = some_bytes(BIG);
    let striped = Striped::of_grid(true, "root");
    let room = Room::new();
    let from = room.file("from", &content);
    let grid = |command: &mut Command| {
        command.env("X509_CERT_DIR", striped.room.at("authorities"));
        command.env("X509_USER_PROXY", striped.room.at("alice"));
    };
    let url = |name: &str| format!("gsiftp://127.0.0.1:{}/{name}", striped.port);
    let globus = |words: &[&str]| {
        let mut command = Command::new("timeout");
        grid(command.args([CLIENT_SECONDS, "globus-url-copy", "-stripe", "-fast", "-p", "2"]).args(words));
        let output = command.output().expect("run a client");
        let (said, log) = (String::from_utf8_lossy(&output.stderr), striped.front.stderr());
        assert!(output.status.success(), "{words:?}: {}\n{said}\n{log}", output.status);
    };
    for (name, options) in [("globus", &[][..]), ("private", &["-dcpriv"]), ("nobodys", &["-nodcau"])] {
        let got = room.at(name);
        globus(&[options, &[&file_url(&from), &url(name)]].concat());
        assert!(read(striped.at(name)) == content, "{name}: put by Globus");
        globus(&[options, &[&url(name), &file_url(&got)]].concat());
        assert!(read(&got) == content, "{name}: got by Globus");
    }
    for data in ["private", "shown", "plain"] {
        let haul = || {
            Haul::cp(["--data-channel", data])
                .env("X509_CERT_DIR", striped.room.at("authorities"))
                .env("X509_USER_PROXY", striped.room.at("alice"))
        };
        let (name, back) = (format!("haul-{data}"), room.at(&format!("back-{data}")));
        haul().args([&from]).args([url(&name)]).run().sane().exits(0);
        assert!(read(striped.at(&name)) == content, "{data}: put by haul");
        haul().args([url(&name)]).args([&back]).run().sane().exits(0);
        assert!(read(&back) == content, "{data}: got by haul");
        let moved = striped.moved("RETR", &name);
        assert!(moved.iter().all(|bytes| *bytes > BIG as u64 / 8), "{data}: {moved:?}");
    }
    // What it gets goes to one place, where it listens: from the front end.
    assert_eq!(striped.moved("RETR", "globus"), [0, 0], "as docs/gridftp-server.md has it");
    for name in ["private", "globus"] {
        let moved = striped.moved("STOR", name);
        assert!(moved.iter().sum::<u64>() >= BIG as u64, "{name}: {moved:?}");
    }

    // Somebody else than the nodes' user: what he may read, and by no node.
    let other = Striped::of_grid(true, "daemon");
    fs::write(other.at("f"), &content).expect("write");
    let got = room.at("of another user");
    let haul = Haul::cp([format!("gsiftp://127.0.0.1:{}/f", other.port)]).args([&got]);
    let haul = haul.env("X509_CERT_DIR", other.room.at("authorities"));
    haul.env("X509_USER_PROXY", other.room.at("alice")).run().sane().exits(0);
    assert!(read(&got) == content);
    let nodes = other.nodes.iter().filter_map(|(_, node)| node.as_ref().map(Running::stderr));
    assert!(nodes.clone().all(|log| !log.contains(" login ")), "{:?}", nodes.collect::<Vec<_>>());

    // Nodes without authorities.
    let blind = Striped::of_grid(false, "root");
    let mut command = Command::new("timeout");
    command.args([CLIENT_SECONDS, "globus-url-copy", "-stripe", "-fast", "-p", "2"]);
    command.args([&file_url(&from), &format!("gsiftp://127.0.0.1:{}/none", blind.port)]);
    command.env("X509_CERT_DIR", blind.room.at("authorities"));
    let output = command.env("X509_USER_PROXY", blind.room.at("alice")).output().expect("run a client");
    assert!(!output.status.success() && !blind.at("none").exists());
    let logged = |running: &Running| running.stderr().contains("--authorities");
    assert!(
        blind.nodes.iter().any(|(_, node)| node.as_ref().is_some_and(logged)),
        "{}",
        blind.front.stderr()
    );
}

/// Goal: clients of Globus and haul's own put and get the same bytes by two and four nodes, and each node
/// has its part of what haul moves.
#[test]
fn clients_put_and_get_by_several_nodes() {
    need!("globus-url-copy");
    let content = some_bytes(BIG);
    for count in [2, 4] {
        let striped = Striped::start(&vec!["root"; count]);
        let room = Room::new();
        let (from, got) = (room.file("from", &content), room.at("got"));
        globus(&["-stripe", "-p", "2", &file_url(&from), &striped.url("globus")]);
        assert!(read(striped.at("globus")) == content, "{count} nodes: put by Globus");
        globus(&["-stripe", "-p", "2", &striped.url("globus"), &file_url(&got)]);
        assert!(read(&got) == content, "{count} nodes: got by Globus");
        // As docs/gridftp-server.md has it: its client puts by the first node alone, and gets by none.
        let mut all_by_the_first = vec![0; count];
        all_by_the_first[0] = BIG as u64;
        assert_eq!(striped.moved("STOR", "globus"), all_by_the_first, "{count} nodes");
        assert_eq!(striped.moved("RETR", "globus"), vec![0; count], "{count} nodes");
        Haul::cp([&from]).args([striped.url("haul")]).run().sane().exits(0);
        assert!(read(striped.at("haul")) == content, "{count} nodes: put by haul");
        Haul::cp([striped.url("haul")]).args([room.at("back")]).run().sane().exits(0);
        assert!(read(room.at("back")) == content, "{count} nodes: got by haul");
        for verb in ["STOR", "RETR"] {
            // It is sent under a name of its own.
            let name = if verb == "STOR" { ".haul" } else { "haul" };
            let moved = striped.moved(verb, name);
            let log = striped.nodes[0].1.as_ref().map(Running::stderr);
            assert!(moved.iter().all(|bytes| *bytes > (BIG / count / 4) as u64), "{verb}: {moved:?} {log:?}");
        }
        assert!(striped.names().iter().all(|name| !name.contains("haul~")), "{:?}", striped.names());
    }
}

/// Goal: a striped server of Globus and haul's send each other a tree by their nodes, in either layout.
#[test]
fn striped_servers_send_each_other() {
    need!("gridftp");
    let globus = Node::start(Software::Striped, [127, 0, 0, 1], "");
    let (striped, room) = (Striped::start(&["root", "root"]), Room::new());
    let content = some_bytes(BIG / 4);
    let data = globus.place("data");
    fs::create_dir(&data).expect("make a directory");
    fs::write(data.join("big"), &content).expect("write a file");
    fs::write(data.join("empty"), b"").expect("write a file");
    let state = format!("--state={}", room.at("state").display());
    for (how, name) in [("blocked:64KiB", "blocks"), ("partitioned", "parts")] {
        let stripes = format!("--stripes={how}");
        let options = ["-r", "-v", &state, &stripes];
        let there = striped.url(name);
        let ended = Haul::cp(options).args([globus.url(&data) + "/", there.clone()]).run().sane().exits(0);
        ended.says("2 nodes of the destination");
        assert!(
            read(striped.at(name).join("big")) == content && read(striped.at(name).join("empty")).is_empty()
        );
        let back = globus.place(name);
        let ended = Haul::cp(options).args([there + "/", globus.url(&back)]).run().sane().exits(0);
        ended.says("2 nodes of the destination");
        assert!(read(back.join("big")) == content && read(back.join("empty")).is_empty());
    }
    assert!(striped.moved("RETR", "").iter().all(|bytes| *bytes > 0), "{:?}", striped.moved("RETR", ""));
}

/// Goal: a node that is killed in the middle of an upload leaves no file, and the ranges that were told
/// before need not come again; what came is whole then.
/// Method: half of the bytes to each node by hand; one is killed when some ranges were told.
#[test]
fn a_node_that_dies_leaves_no_file() {
    let mut striped = Striped::start(&["root", "root"]);
    let content = some_bytes(3_000_000);
    let mut talk = striped.talk();
    let to = talk.spas();
    talk.say("STOR f");
    let (mut a, mut b) = (dial(to[0]), dial(to[1]));
    block(&mut a, &content, 0, 1_000_000);
    block(&mut b, &content, 1_500_000, 2_000_000);
    let mut told = Vec::new();
    while told.len() < 2 {
        let reply = talk.reply();
        assert!(reply.starts_with('1'), "{reply}");
        if let Some(ranges) = reply.strip_prefix("111 Range Marker ") {
            told.push(ranges.trim().to_owned());
        }
    }
    let (port, node) = striped.nodes.pop().expect("two nodes");
    let node = node.expect("it runs");
    node.signal(Signal::KILL);
    let (ended, more) = talk.end();
    assert!(ended.starts_with("426") && ended.contains("is gone"), "{ended}");
    told.extend(more);
    assert!(!striped.at("f").exists());
    let left = striped.names().into_iter().map(|name| fs::metadata(striped.at(&name)).expect("look"));
    let part = left.max_by_key(fs::Metadata::len).expect("the part").ino();
    drop((node, a, b));
    let words = ["--node", "--node-key", &at(&striped.room, "key")];
    striped.nodes.push((port, Some(daemon(&striped.room, port, "root", &words))));
    // What was told is left out, and all else comes.
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for range in told.iter().flat_map(|told| told.split(',')) {
        let (start, end) = range.split_once('-').expect("a range");
        ranges.push((start.parse().expect("a number"), end.parse().expect("a number")));
    }
    ranges.sort_unstable();
    let mut talk = striped.talk();
    let to = talk.spas();
    let rest: Vec<String> = ranges.iter().map(|(start, end)| format!("{start}-{end}")).collect();
    let said = talk.ask(&format!("REST {}", rest.join(",")));
    assert!(said.starts_with("350"), "{said}");
    talk.say("STOR f");
    let mut lanes = [dial(to[0]), dial(to[1])];
    let mut at = 0;
    for (n, (start, end)) in ranges.iter().copied().chain([(content.len(), content.len())]).enumerate() {
        if at < start {
            block(&mut lanes[n % 2], &content, at, start);
        }
        at = end;
    }
    for lane in &mut lanes {
        header(lane, EOF | EOD, 0, 1);
    }
    let (ended, _) = talk.end();
    assert!(ended.starts_with("226"), "{ended}");
    assert!(read(striped.at("f")) == content);
    assert_eq!(striped.names(), ["f"]);
    // Whatever the node's host may still write goes elsewhere.
    assert_ne!(fs::metadata(striped.at("f")).expect("look").ino(), part);
}

/// Goal: a node that runs and does nothing, as one whose file system hangs, ends the transfer, an upload and
/// a download; its link alone says that it is there. One whose client takes nothing for as long goes on.
/// Method: the session at one node is stopped; a file of a download is larger than what sockets hold.
#[test]
fn a_node_that_hangs_is_given_up() {
    let striped = Striped::start(&["root", "root"]);
    for name in ["slow", "hung"] {
        let file = fs::File::create(striped.at(name)).expect("make a file");
        file.set_len(LONG).expect("make it long");
    }
    let download = |name: &str| {
        let (mut talk, listeners) = (striped.talk(), listeners());
        assert!(talk.ask(&spor(&listeners)).starts_with("200"));
        talk.say(&format!("RETR {name}"));
        let lanes = listeners.map(|listener| listener.accept().expect("a node dials").0);
        assert!(talk.reply().starts_with("150"));
        (talk, lanes)
    };
    let (mut slow, slow_lanes) = download("slow");
    let (mut hung, _hung_lanes) = download("hung");
    let content = some_bytes(3_000_000);
    let mut talk = striped.talk();
    let to = talk.spas();
    talk.say("STOR f");
    let (mut a, mut b) = (dial(to[0]), dial(to[1]));
    block(&mut a, &content, 0, 1_000_000);
    block(&mut b, &content, 1_500_000, 2_000_000);
    while !talk.reply().starts_with("111") {}
    let node = striped.nodes[1].1.as_ref().expect("it runs");
    let all = procs::descendants(node.id());
    let sessions = [".haul~", "hung"].map(|name| procs::holding(&all, name));
    assert!(sessions.iter().all(|found| !found.is_empty()));
    let sessions = sessions.concat();
    procs::signal_all(&sessions, Signal::STOP);
    for talk in [&mut talk, &mut hung] {
        let (ended, _) = talk.end();
        assert!(ended.starts_with("426") && ended.contains("does not answer"), "{ended}");
    }
    assert!(!striped.at("f").exists());
    procs::signal_all(&sessions, Signal::CONT);
    let taken = slow_lanes.map(|mut lane| std::thread::spawn(move || io::copy(&mut lane, &mut io::sink())));
    let (ended, _) = slow.end();
    assert!(ended.starts_with("226"), "{ended}");
    slow.say("QUIT");
    drop(slow);
    let taken: u64 = taken.map(|lane| lane.join().expect("no panic").expect("all of it")).iter().sum();
    assert!(taken > LONG, "{taken}");
}

/// Goal: who asks for markers more often than the server makes them gets them from the nodes.
#[test]
fn nodes_tell_as_often_as_the_client_asks() {
    let striped = Striped::start(&["root"]);
    let port = free_port();
    let node = format!("127.0.0.1:{}", striped.nodes[0].0);
    let words =
        ["--anonymous=write", "--markers=1h", "--data-node", &node, "--node-key", &at(&striped.room, "key")];
    let front = daemon(&striped.room, port, "root", &words);
    let seldom = Striped { port, front, nodes: Vec::new(), room: Room::new() };
    let mut talk = seldom.talk();
    assert!(talk.ask("OPTS RETR Markers=1;").starts_with("200"));
    let to = talk.spas();
    talk.say("STOR f");
    let mut lane = dial(to[0]);
    block(&mut lane, &some_bytes(1000), 0, 1000);
    while !talk.reply().starts_with("111") {}
    header(&mut lane, EOF | EOD, 0, 1);
    let (ended, _) = talk.end();
    assert!(ended.starts_with("226"), "{ended}");
    drop(striped);
}

/// Goal: what a node gets counts once; where nobody comes to one, only `ALLO` tells that the others have all,
/// and who comes to it later changes nothing.
#[test]
fn ends_are_counted_at_each_node() {
    let striped = Striped::start(&["root", "root"]);
    let content = some_bytes(1_000_000);
    let mut talk = striped.talk();
    // The same bytes to both.
    let to = talk.spas();
    talk.say("STOR twice");
    let mut lanes = [dial(to[0]), dial(to[1])];
    for lane in &mut lanes {
        block(lane, &content, 0, 500_000);
        header(lane, EOF | EOD, 0, 1);
    }
    let (ended, _) = talk.end();
    assert!(ended.starts_with("451") && ended.contains("came twice"), "{ended}");
    // A hole between what the nodes have.
    let to = talk.spas();
    talk.say("STOR hole");
    let mut lanes = [dial(to[0]), dial(to[1])];
    block(&mut lanes[0], &content, 0, 400_000);
    block(&mut lanes[1], &content, 600_000, 1_000_000);
    lanes.iter_mut().for_each(|lane| header(lane, EOF | EOD, 0, 1));
    let (ended, _) = talk.end();
    assert!(ended.starts_with("451") && ended.contains("never came"), "{ended}");
    // All that came went to the first, and nobody said that this is all.
    let to = talk.spas();
    talk.say("STOR some");
    let mut first = dial(to[0]);
    block(&mut first, &content, 0, 500_000);
    header(&mut first, EOF | EOD, 0, 1);
    let mut markers = 0;
    while markers < 5 {
        let reply = talk.reply();
        assert!(reply.starts_with('1'), "{reply}");
        markers += u32::from(reply.starts_with("112"));
    }
    talk.say("ABOR");
    let (ended, _) = talk.end();
    assert!(
        ended.starts_with("426") && talk.reply().starts_with("226") && !striped.at("some").exists(),
        "{ended}"
    );
    // All to the first.
    let to = talk.spas();
    assert!(talk.ask("ALLO 1000000").starts_with("200"));
    talk.say("STOR all");
    let mut first = dial(to[0]);
    block(&mut first, &content, 0, content.len());
    header(&mut first, EOF | EOD, 0, 1);
    let (ended, _) = talk.end();
    assert!(ended.starts_with("226"), "{ended}");
    if let Ok(mut late) = TcpStream::connect(to[1]) {
        let _ = late.write_all(&[&[0; 8][..], &[5], &[0; 8], b"late!"].concat());
        let _ = late.read(&mut [0]);
    }
    assert!(read(striped.at("all")) == content);
    // The connection is kept, and brings the next one.
    assert!(talk.ask("ALLO 500000").starts_with("200"));
    talk.say("STOR next");
    block(&mut first, &content, 0, 500_000);
    header(&mut first, EOF | EOD, 0, 1);
    let (ended, _) = talk.end();
    assert!(ended.starts_with("226"), "{ended}");
    assert!(read(striped.at("next")) == content[..500_000]);
    let mut names = striped.names();
    names.sort_unstable();
    assert!(
        names.iter().all(|name| ["all", "next"].contains(&name.as_str())
            || name.starts_with(".hole")
            || name.starts_with(".some")),
        "{names:?}"
    );
}

/// Goal: who comes to a node a moment after the others had all is not refused: he has nothing for it, and
/// says so.
/// Method: an empty file; the first connection comes late, so that the other one may, too.
#[test]
fn who_comes_a_moment_late_is_heard() {
    let striped = Striped::start(&["root", "root"]);
    let mut talk = striped.talk();
    let to = talk.spas();
    assert!(talk.ask("ALLO 0").starts_with("200"));
    talk.say("STOR empty");
    for (node, late) in [(0, 1000), (1, 200)] {
        std::thread::sleep(Duration::from_millis(late));
        header(&mut dial(to[node]), EOF | EOD, 0, 1);
    }
    let (ended, _) = talk.end();
    assert!(ended.starts_with("226") && read(striped.at("empty")).is_empty(), "{ended}");
}

/// Goal: a stranger at a node's port hears no word and changes nothing, nor does a front end with another
/// key; nodes that do not see the front end's files are found out before a byte is written or sent.
#[test]
fn nodes_serve_their_front_end_alone() {
    let striped = Striped::start(&["root", "other"]);
    fs::write(striped.at("f"), b"the front end's").expect("write");
    fs::write(striped.room.at("other/f"), b"the other node's").expect("write");
    let mut stranger = dial(SocketAddr::from(([127, 0, 0, 1], striped.nodes[0].0)));
    stranger.set_read_timeout(Some(SOON)).expect("set a patience");
    stranger.write_all(b"USER anonymous\r\nPASS x\r\nDELE f\r\nNODE {}\r\n").expect("say something");
    let mut heard = Vec::new();
    let _ = stranger.read_to_end(&mut heard);
    // An alert of TLS has 7 bytes.
    assert!(heard.is_empty() || heard.len() == 7 && heard[0] == 0x15, "{heard:?}");
    let mut talk = striped.talk();
    let to = talk.spas();
    let _lanes = [dial(to[0]), dial(to[1])];
    talk.say("STOR new");
    let (ended, _) = talk.end();
    assert!(ended.contains("does not see the part"), "{ended}");
    assert!(talk.ask("OPTS RETR StripeLayout=Blocked;BlockSize=4;").starts_with("200"));
    let places = listeners();
    assert!(talk.ask(&spor(&places)).starts_with("200"));
    talk.say("RETR f");
    let (ended, _) = talk.end();
    assert!(ended.contains("Another file stands there"), "{ended}");
    assert_eq!((read(striped.at("f")).len(), striped.names().len()), (15, 1), "{:?}", striped.names());
    assert_eq!(fs::read_dir(striped.room.at("other")).expect("list").count(), 1);
    // Another key.
    make_key(&striped.room, "another");
    let (port, node) = (free_port(), format!("127.0.0.1:{}", striped.nodes[0].0));
    let key = at(&striped.room, "another");
    let front = daemon(&striped.room, port, "root", &["--data-node", &node, "--node-key", &key]);
    let other = Striped { port, front, nodes: Vec::new(), room: Room::new() };
    let said = other.talk().ask("SPAS");
    assert!(said.starts_with("425") && said.contains("the data node"), "{said}");
    drop(striped.front);
}
