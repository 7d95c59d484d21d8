//! The rig: sessions on threads, and a client of plain sockets. None of it is the server's code.

use std::io::{BufRead as _, BufReader, Read as _, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use haul_ftpd::config::{Access, Answer, Config, Login, Start};
use haul_ftpd::log::Log;

/// Far above what anything takes here.
const PATIENCE: Duration = Duration::from_secs(60);

/// A directory that is served.
pub struct Served {
    dir: tempfile::TempDir,
    address: SocketAddr,
    running: Arc<AtomicUsize>,
    lines: Lines,
}

/// What the log got.
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("a log").write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Served {
    pub fn new(anonymous: Access) -> Served {
        Served::within(anonymous, PATIENCE)
    }

    /// The same where logins take no longer than that.
    pub fn within(anonymous: Access, login_within: Duration) -> Served {
        Served::start(anonymous, login_within, None)
    }

    /// The same whose data ports are of this range: no other server of this program has one of those.
    pub fn with_data_ports(anonymous: Access, ports: (u16, u16)) -> Served {
        Served::start(anonymous, PATIENCE, Some(ports))
    }

    fn start(anonymous: Access, login_within: Duration, data_ports: Option<(u16, u16)>) -> Served {
        let dir = tempfile::tempdir().expect("a directory");
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let address = listener.local_addr().expect("an address");
        let config = Config {
            root: dir.path().as_os_str().as_bytes().to_vec(),
            volume: None,
            anonymous: Some(anonymous),
            authorities: None,
            tls: false,
            tls_required: false,
            tls_any_data: false,
            data_ports,
            third_party: false,
            login_within,
            marker_interval: Duration::from_secs(5),
            json_log: false,
            nodes: Vec::new(),
            is_node: false,
        };
        let running = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&running);
        let lines = Lines::default();
        let logs = lines.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let socket = socket.expect("a connection");
                let peer = socket.peer_addr().expect("a peer");
                let local = socket.local_addr().expect("an address");
                let (config, uid) = (config.clone(), 0);
                let (host, tls, node_key, after) = (None, None, None, None);
                let start =
                    Start { config, peer, local, uid, before_login: false, host, tls, node_key, after };
                let (ours, theirs) = UnixStream::pair().expect("a pair");
                let (count, lines) = (Arc::clone(&count), logs.clone());
                count.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || lets_in(&ours, anonymous));
                std::thread::spawn(move || {
                    let log = Log::new(Box::new(lines), false);
                    haul_ftpd::session::run(socket.into(), theirs, start, log).expect("a session");
                    count.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Served { dir, address, running, lines }
    }

    /// What the log says of these verbs, without time and client.
    pub fn logged(&self, verbs: &[&str]) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.lines.0.lock().expect("a log")).into_owned();
        let line = |line: &str| {
            let mut words = line.splitn(5, ' ').skip(1);
            let verb = words.next().filter(|verb| verbs.contains(verb))?;
            Some(format!("{verb} {}", words.nth(2).unwrap_or_default()))
        };
        text.lines().filter_map(line).collect()
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// All that is there, also what no listing shows.
    pub fn names(&self) -> Vec<String> {
        let entries =
            std::fs::read_dir(self.dir.path()).expect("list").map(|e| e.expect("an entry").file_name());
        let mut names: Vec<String> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Logged in, in binary.
    pub fn talk(&self) -> Talk {
        let mut talk = Talk::to(self);
        assert!(talk.ask("USER anonymous").starts_with("331"));
        assert!(talk.ask("PASS x").starts_with("230"));
        assert!(talk.ask("TYPE I").starts_with("200"));
        talk
    }

    /// Waits until sessions whose clients are gone have ended.
    pub fn wait_idle(&self) {
        let deadline = Instant::now() + PATIENCE;
        // Those whose clients are still there go on.
        let mut last = self.running.load(Ordering::SeqCst);
        let mut since = Instant::now();
        while since.elapsed() < Duration::from_millis(300) {
            assert!(Instant::now() < deadline, "sessions do not end");
            std::thread::sleep(Duration::from_millis(5));
            let now = self.running.load(Ordering::SeqCst);
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
    }
}

/// Does what the monitor does: whoever asks for it is anonymous.
fn lets_in(session: &UnixStream, access: Access) {
    for line in BufReader::new(session).lines().map_while(Result::ok) {
        if line.starts_with('{') {
            let mut answer = serde_json::to_vec(&Answer::Go(Login::anonymous(access))).expect("plain fields");
            answer.push(b'\n');
            let _ = (&*session).write_all(&answer);
        }
    }
}

/// A control connection.
pub struct Talk {
    control: BufReader<TcpStream>,
    /// In MODE E the first reply comes with the first connection, and is left to who waits for the last.
    in_blocks: bool,
}

impl Talk {
    pub fn to(served: &Served) -> Talk {
        let socket = TcpStream::connect(served.address).expect("connect");
        socket.set_read_timeout(Some(PATIENCE)).expect("a patience");
        let mut talk = Talk { control: BufReader::new(socket), in_blocks: false };
        assert!(talk.reply().starts_with("220"));
        talk
    }

    pub fn clone_socket(&self) -> TcpStream {
        self.control.get_ref().try_clone().expect("once more")
    }

    pub fn send_raw(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.control.get_mut().write_all(bytes)
    }

    pub fn say(&mut self, line: &str) {
        self.send_raw(format!("{line}\r\n").as_bytes()).expect("say a line");
    }

    pub fn ask(&mut self, line: &str) -> String {
        self.in_blocks |= line == "MODE E";
        self.say(line);
        self.reply()
    }

    /// The next reply, all its lines.
    pub fn reply(&mut self) -> String {
        let mut all = String::new();
        loop {
            let mut line = Vec::new();
            self.control.read_until(b'\n', &mut line).expect("an answer");
            assert!(line.ends_with(b"\r\n"), "it hangs up after {all:?}");
            all.push_str(&String::from_utf8_lossy(&line));
            if line.get(3) == Some(&b' ') && line[..3] == all.as_bytes()[..3] {
                return all;
            }
        }
    }

    /// All that is said from now on, up to its end; who is there says something again and again, if he
    /// `talks`, as long as the patience lasts.
    pub fn until_the_end(mut self, talks: bool) -> String {
        let until = Instant::now() + PATIENCE;
        let mut socket = self.clone_socket();
        let over = Arc::new(std::sync::atomic::AtomicBool::new(!talks));
        let ends = Arc::clone(&over);
        let talker = std::thread::spawn(move || {
            while !ends.load(Ordering::SeqCst) && Instant::now() < until {
                let _ = socket.write_all(b"SYST\r\n");
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let mut all = Vec::new();
        // Where it was still told something, the end is a reset.
        let _ = self.control.read_to_end(&mut all);
        over.store(true, Ordering::SeqCst);
        talker.join().expect("it ends");
        String::from_utf8_lossy(&all).into_owned()
    }

    /// The code of the first reply that is no preliminary one.
    pub fn last_reply(&mut self) -> u16 {
        loop {
            let said = self.reply();
            if !said.starts_with('1') {
                return said[..3].parse().expect("a code");
            }
        }
    }

    /// Where the server listens.
    pub fn passive(&mut self) -> SocketAddr {
        let said = self.ask("EPSV");
        let port = said.split('|').nth(3).and_then(|port| port.parse().ok());
        SocketAddr::from(([127, 0, 0, 1], port.unwrap_or_else(|| panic!("no port in {said}"))))
    }

    /// Begins a transfer in stream mode, or one in which the client sends.
    pub fn begin(&mut self, line: &str) -> TcpStream {
        let at = self.passive();
        let data = TcpStream::connect(at).expect("dial");
        data.set_read_timeout(Some(PATIENCE)).expect("a patience");
        self.say(line);
        if !self.in_blocks {
            let said = self.reply();
            assert!(said.starts_with("150"), "{line}: {said}");
        }
        data
    }

    pub fn fetch(&mut self, line: &str) -> Vec<u8> {
        let (content, said) = self.fetch_with_reply(line);
        assert!(said.starts_with("226"), "{line}: {said}");
        content
    }

    pub fn fetch_with_reply(&mut self, line: &str) -> (Vec<u8>, String) {
        let at = self.passive();
        let mut data = TcpStream::connect(at).expect("dial");
        data.set_read_timeout(Some(PATIENCE)).expect("a patience");
        self.say(line);
        let said = self.reply();
        assert!(said.starts_with("150"), "{line}: {said}");
        let mut content = Vec::new();
        data.read_to_end(&mut content).expect("read");
        (content, self.reply())
    }

    pub fn put(&mut self, line: &str, content: &[u8]) {
        let mut data = self.begin(line);
        data.write_all(content).expect("write");
        drop(data);
        assert_eq!(self.last_reply(), 226, "{line}");
    }
}

/// Dials from another address of this machine.
pub fn dial_from(from: [u8; 4], to: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&fd, &SocketAddr::from((from, 0))).expect("bind");
    connect(&fd, &to).expect("connect");
    let socket = TcpStream::from(fd);
    socket.set_read_timeout(Some(PATIENCE)).expect("a patience");
    socket
}

/// A block of MODE E.
pub fn block(to: &mut impl Write, offset: u64, bytes: &[u8]) {
    let mut out = vec![0];
    out.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
    out.extend_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(bytes);
    to.write_all(&out).expect("send a block");
}

/// The end of a connection's part; with the count of all of them on one.
pub fn end(to: &mut impl Write, count: Option<u64>) {
    let mut out = vec![if count.is_some() { 0x48 } else { 0x08 }];
    out.extend_from_slice(&0_u64.to_be_bytes());
    out.extend_from_slice(&count.unwrap_or(0).to_be_bytes());
    to.write_all(&out).expect("send an end");
}
