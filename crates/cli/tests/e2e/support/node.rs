//! Real FTP servers at loopback addresses of their own, so that each is another host to the others; and a
//! control connection through which data goes slowly, or not at all.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use super::ftpd::{self, escaped};
use super::sshd::free_port;
use super::{Room, procs};

const STARTED_WITHIN: Duration = Duration::from_secs(20);
const ATTEMPTS: u32 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Software {
    Proftpd,
    Vsftpd,
    Globus,
    /// A front end and two data nodes.
    Striped,
    /// `haul serve gridftp`.
    Haul,
}

impl Software {
    fn need(self) -> Option<&'static str> {
        Some(match self {
            Software::Proftpd => "proftpd",
            Software::Vsftpd => "vsftpd",
            Software::Globus | Software::Striped => "gridftp",
            Software::Haul => return None,
        })
    }
}

/// Whether this machine has them.
pub fn are_here(all: &[Software]) -> bool {
    let needs: Vec<_> = all.iter().filter_map(|software| software.need()).collect();
    super::needs::all_here(&needs)
}

/// A server.
pub struct Node {
    pub software: Software,
    pub host: Ipv4Addr,
    pub port: u16,
    room: Room,
    daemons: Vec<Child>,
    more: String,
}

impl Node {
    /// `more`: lines of its configuration, where it has one.
    pub fn start(software: Software, host: [u8; 4], more: &str) -> Node {
        let room = Room::new();
        room.dir("home");
        room.dir("empty");
        let (host, more) = (Ipv4Addr::from(host), more.to_owned());
        let mut node = Node { software, host, port: 0, room, daemons: Vec::new(), more };
        for _ in 0..ATTEMPTS {
            node.port = free_port();
            if node.spawn() {
                return node;
            }
            node.kill();
        }
        panic!("{software:?} does not start");
    }

    /// Its URL of a path, as the user that it knows.
    pub fn url(&self, path: impl AsRef<Path>) -> String {
        self.url_at(&self.host.to_string(), path)
    }

    /// The same by another name of the host.
    pub fn url_at(&self, host: &str, path: impl AsRef<Path>) -> String {
        let who = match self.software {
            Software::Proftpd => format!("{}:{}@", ftpd::USER, ftpd::escaped_word(ftpd::PASSWORD)),
            _ => String::new(),
        };
        format!("ftp://{who}{host}:{}{}", self.port, escaped(path.as_ref()))
    }

    /// Where what it serves may lie; a path here and there.
    pub fn place(&self, name: &str) -> PathBuf {
        self.room.at("home").join(name)
    }

    /// Ends it and all who serve, at once.
    pub fn kill(&mut self) {
        for mut daemon in self.daemons.drain(..) {
            let all = procs::descendants(daemon.id());
            let _ = daemon.kill();
            procs::signal_all(&all, Signal::KILL);
            let _ = daemon.wait();
        }
    }

    /// Starts it again at its port.
    pub fn start_again(&mut self) {
        assert!(procs::wait_until(STARTED_WITHIN, || self.spawn()), "it starts again");
    }

    fn spawn(&mut self) -> bool {
        let host = self.host.to_string();
        let commands = match self.software {
            Software::Proftpd => {
                vec![self.at_host(ftpd::proftpd(&self.room, self.port, &self.more), "proftpd.conf")]
            }
            Software::Vsftpd => {
                vec![self.at_host(ftpd::vsftpd_at(&self.room, self.port, &self.more), "vsftpd.conf")]
            }
            Software::Globus => vec![self.globus(self.port, &[])],
            Software::Haul => vec![self.haul()],
            Software::Striped => {
                let nodes = [free_port(), free_port()];
                let all = nodes.map(|port| format!("{host}:{port}")).join(",");
                let node = |port: &u16| self.globus(*port, &["-dn", "-si"]);
                let front = self.globus(self.port, &["-r", &all]);
                nodes.iter().map(node).chain([front]).collect()
            }
        };
        for mut command in commands {
            let said = fs::File::create(self.room.at("said")).expect("make a file for what it says");
            command.stdin(Stdio::null()).stdout(said.try_clone().expect("one more descriptor")).stderr(said);
            self.daemons.push(command.process_group(0).spawn().expect("start a server"));
        }
        let mut ended = false;
        let daemons = &mut self.daemons;
        let (host, port) = (self.host, self.port);
        procs::wait_until(STARTED_WITHIN, || {
            ended = daemons.iter_mut().any(|daemon| daemon.try_wait().is_ok_and(|status| status.is_some()));
            ended || greets(host, port)
        }) && !ended
    }

    fn globus(&self, port: u16, more: &[&str]) -> Command {
        let host = self.host.to_string();
        let mut command = Command::new(ftpd::GRIDFTP);
        command.args(["-c", "", "-allow-root", "-allow-disabled-login", "-aa", "-anonymous-user", "root"]);
        command.args(["-control-interface", &host, "-data-interface", &host, "-p", &port.to_string()]);
        command.args(more).arg("-l").arg(self.room.at("log"));
        command
    }

    fn haul(&self) -> Command {
        let mut command = Command::new(super::run::program());
        command.args(["serve", "gridftp", "--root", "/", "--anonymous", "write", "--markers=1s"]);
        // Its clients come by way of others.
        command.arg("--third-party");
        command.arg("--listen");
        command.arg(format!("{}:{}", self.host, self.port));
        if rustix::process::geteuid().is_root() {
            command.args(["--user", "root"]);
        }
        command
    }

    /// The same with its configuration for this host.
    fn at_host(&self, command: Command, config: &str) -> Command {
        let path = self.room.at(config);
        let text = fs::read_to_string(&path).expect("read its configuration");
        fs::write(&path, text.replace("127.0.0.1", &self.host.to_string())).expect("write its configuration");
        command
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

fn greets(host: Ipv4Addr, port: u16) -> bool {
    let Ok(mut socket) = TcpStream::connect((host, port)) else { return false };
    let mut code = [0; 3];
    let _ = socket.set_read_timeout(Some(STARTED_WITHIN));
    socket.read_exact(&mut code).is_ok() && &code == b"220"
}

/// A way to a server on which data connections that it listens for are its own: they pass by here, at a rate.
pub struct Slow {
    pub port: u16,
    host: Ipv4Addr,
    /// Bytes a second; 0: nothing passes.
    pub rate: Arc<AtomicU64>,
    pub passed: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
}

impl Slow {
    pub fn to(node: &Node, rate: u64) -> Slow {
        let listener = TcpListener::bind((node.host, 0)).expect("listen");
        let port = listener.local_addr().expect("an address").port();
        let slow = Slow {
            port,
            host: node.host,
            rate: Arc::new(AtomicU64::new(rate)),
            passed: Arc::default(),
            ends: Arc::default(),
        };
        let (to, rate, passed, ends) = (
            SocketAddr::from((node.host, node.port)),
            slow.rate.clone(),
            slow.passed.clone(),
            slow.ends.clone(),
        );
        thread::spawn(move || {
            for control in listener.incoming().flatten() {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                let (rate, passed) = (rate.clone(), passed.clone());
                thread::spawn(move || between(control, to, &rate, &passed));
            }
        });
        slow
    }

    pub fn url(&self, path: impl AsRef<Path>) -> String {
        format!("ftp://{}:{}{}", self.host, self.port, escaped(path.as_ref()))
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect((self.host, self.port));
    }
}

/// One control connection: each address in an answer becomes one of here.
fn between(client: TcpStream, to: SocketAddr, rate: &Arc<AtomicU64>, passed: &Arc<AtomicU64>) {
    let Ok(server) = TcpStream::connect(to) else { return };
    for socket in [&client, &server] {
        let _ = socket.set_nodelay(true);
    }
    let (mut up, mut down) = (client.try_clone().expect("a socket"), server.try_clone().expect("a socket"));
    thread::spawn(move || {
        let _ = std::io::copy(&mut up, &mut down);
        let _ = down.shutdown(std::net::Shutdown::Both);
    });
    let mut client = client;
    for line in BufReader::new(server).split(b'\n') {
        let Ok(mut line) = line else { break };
        line.push(b'\n');
        let text = String::from_utf8_lossy(&line).into_owned();
        let line = match address_in(&text) {
            Some((numbers, address)) => {
                let own = relay(address, rate.clone(), passed.clone());
                let SocketAddr::V4(own) = own else { break };
                let [a, b, c, d] = own.ip().octets();
                let (high, low) = (own.port() / 256, own.port() % 256);
                text.replace(&numbers, &format!("{a},{b},{c},{d},{high},{low}")).into_bytes()
            }
            None => line,
        };
        if client.write_all(&line).is_err() {
            break;
        }
    }
    let _ = client.shutdown(std::net::Shutdown::Both);
}

fn address_in(text: &str) -> Option<(String, SocketAddr)> {
    let run =
        text.split(|c: char| !(c.is_ascii_digit() || c == ',')).find(|run| run.matches(',').count() == 5)?;
    let numbers: Vec<u8> = run.split(',').map(|n| n.parse().ok()).collect::<Option<_>>()?;
    let [a, b, c, d, high, low] = numbers[..] else { return None };
    Some((run.to_owned(), SocketAddr::from(([a, b, c, d], u16::from_be_bytes([high, low])))))
}

/// Listens in the place of an address.
fn relay(to: SocketAddr, rate: Arc<AtomicU64>, passed: Arc<AtomicU64>) -> SocketAddr {
    let listener = TcpListener::bind((to.ip(), 0)).expect("listen");
    let own = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for from in listener.incoming().flatten() {
            let Ok(to) = TcpStream::connect(to) else { return };
            let (rate, passed) = (rate.clone(), passed.clone());
            thread::spawn(move || pass(from, to, &rate, &passed));
        }
    });
    own
}

fn pass(mut from: TcpStream, mut to: TcpStream, rate: &AtomicU64, passed: &AtomicU64) {
    let (mut back, mut forth) = (to.try_clone().expect("a socket"), from.try_clone().expect("a socket"));
    thread::spawn(move || std::io::copy(&mut back, &mut forth));
    let mut piece = vec![0; 16 * 1024];
    while let Ok(len @ 1..) = from.read(&mut piece) {
        while rate.load(Ordering::Relaxed) == 0 {
            thread::sleep(Duration::from_millis(20));
        }
        let _ = to.write_all(&piece[..len]);
        passed.fetch_add(len as u64, Ordering::Relaxed);
        thread::sleep(Duration::from_secs_f64(len as f64 / rate.load(Ordering::Relaxed).max(1) as f64));
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}
