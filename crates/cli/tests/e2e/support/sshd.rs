//! A real sshd with its own configuration, keys and home, ended with the test.
//!
//! It forwards nothing, accepts no environment, and knows one key: a site's strict setting, so that every
//! test shows that haul needs no more than a command run by ssh.

use std::ffi::OsString;
use std::fs;
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::Duration;

use super::{Room, netns, procs, run, set_mode};

/// Below those that Linux gives to connections (`ip_local_port_range`).
const PORTS: std::ops::Range<u16> = 12_000..20_000;

/// Where Debian has it; sshd insists on being called by its full path.
pub const SSHD: &str = "/usr/sbin/sshd";

/// Other ports are tried when somebody took the chosen one first.
const ATTEMPTS: u32 = 5;
/// Lines of a strict configuration.
const FORWARDS_NOTHING: &str = "AllowTcpForwarding no\nPermitOpen none\n";

/// What `haul` is in the PATH of the far end.
pub enum FarHaul {
    /// The program under test.
    Built,
    /// None.
    Absent,
    /// A shell script; `$HAUL` in it is the program under test.
    Script(String),
}

/// A running sshd.
pub struct Sshd {
    pub room: Room,
    pub mark: String,
    host: String,
    port: u16,
    daemon: Child,
}

impl Sshd {
    /// One on the loopback address, with haul in its PATH.
    pub fn start() -> Sshd {
        Sshd::start_as(FarHaul::Built, None)
    }

    /// One with this `haul`, in the far namespace of `pair` if there is one.
    pub fn start_as(haul: FarHaul, pair: Option<&netns::NetnsPair>) -> Sshd {
        Sshd::start_with(haul, pair, FORWARDS_NOTHING)
    }

    /// One in the far namespace of `pair`, with haul, that opens so many sessions in a connection.
    pub fn start_narrow(pair: &netns::NetnsPair, sessions: u32) -> Sshd {
        let lines = format!("{FORWARDS_NOTHING}MaxSessions {sessions}\n");
        Sshd::start_with(FarHaul::Built, Some(pair), &lines)
    }

    /// One that others are reached through: it forwards, and has no haul.
    pub fn start_jump(pair: &netns::NetnsPair) -> Sshd {
        Sshd::start_with(FarHaul::Absent, Some(pair), "AllowTcpForwarding yes\n")
    }

    fn start_with(haul: FarHaul, pair: Option<&netns::NetnsPair>, lines: &str) -> Sshd {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mark = format!("far-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let host = pair.map_or("127.0.0.1", |_| netns::FAR).to_owned();
        let room = Room::new();
        install(&room, haul);
        keygen(&room.at("host_key"));
        keygen(&room.at("user_key"));
        fs::copy(room.at("user_key.pub"), room.at("authorized_keys")).expect("write the authorised key");
        if rustix::process::geteuid().is_root() {
            fs::create_dir_all("/run/sshd").expect("make sshd's empty directory");
        }
        for _ in 0..ATTEMPTS {
            let port = free_port();
            write_config(&room, &host, port, &mark, lines);
            if let Some(daemon) = spawn(&room, pair) {
                return Sshd { room, mark, host, port, daemon };
            }
        }
        panic!("sshd does not start: {}", fs::read_to_string(room.at("sshd.log")).unwrap_or_default());
    }

    /// What the user gives to `haul -e`.
    pub fn command(&self) -> String {
        format!(
            "ssh -F none -p {} -i {} -o IdentitiesOnly=yes -o UserKnownHostsFile={} -o GlobalKnownHostsFile=/dev/null \
             -o StrictHostKeyChecking=yes",
            self.port,
            self.room.at("user_key").display(),
            self.room.at("known_hosts").display()
        )
    }

    /// The same as lines of an ssh_config, for the host `name`.
    pub fn config(&self, name: &str) -> String {
        format!(
            "Host {name}\nHostName {}\nPort {}\nIdentityFile {}\nIdentitiesOnly yes\nUserKnownHostsFile {}\n\
             GlobalKnownHostsFile /dev/null\nStrictHostKeyChecking yes\n",
            self.host,
            self.port,
            self.room.at("user_key").display(),
            self.room.at("known_hosts").display()
        )
    }

    /// `HOST:path`, as the user types it.
    pub fn path(&self, path: &Path) -> OsString {
        let mut typed = OsString::from(format!("{}:", self.host));
        typed.push(path);
        typed
    }

    /// The id of the daemon's process.
    pub fn pid(&self) -> u32 {
        self.daemon.id()
    }

    /// How often somebody logged in.
    pub fn logins(&self) -> usize {
        let log = fs::read_to_string(self.room.at("sshd.log")).expect("read sshd's log");
        log.lines().filter(|line| line.contains("Accepted publickey")).count()
    }

    /// The home of the far user.
    pub fn home(&self) -> PathBuf {
        self.room.at("home")
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        procs::signal_all(&procs::marked(&self.mark), rustix::process::Signal::KILL);
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

fn install(room: &Room, haul: FarHaul) {
    let program = room.dir("bin").join("haul");
    room.dir("home");
    match haul {
        FarHaul::Built => {
            std::os::unix::fs::symlink(run::program(), program).expect("put haul into the far PATH")
        }
        FarHaul::Absent => {}
        FarHaul::Script(body) => {
            let built = run::program();
            fs::write(&program, format!("#!/bin/sh\nHAUL={}\n{body}\n", built.display()))
                .expect("write a wrapper");
            set_mode(&program, 0o755);
        }
    }
}

fn write_config(room: &Room, host: &str, port: u16, mark: &str, lines: &str) {
    let at = |name| room.at(name).display().to_string();
    let config = format!(
        "ListenAddress {host}\nPort {port}\nHostKey {host_key}\nAuthorizedKeysFile {keys}\nPidFile none\n\
         StrictModes no\nUsePAM no\nUseDNS no\nPermitRootLogin yes\nPasswordAuthentication no\n\
         KbdInteractiveAuthentication no\nAllowStreamLocalForwarding no\nPrintMotd no\n\
         LogLevel VERBOSE\nMaxStartups 100\n{lines}SetEnv HOME={home} PATH={bin}:/usr/bin:/bin:/usr/sbin:/sbin {var}={mark}\n",
        host_key = at("host_key"),
        keys = at("authorized_keys"),
        home = at("home"),
        bin = at("bin"),
        var = procs::MARK,
    );
    fs::write(room.at("sshd_config"), config).expect("write sshd's configuration");
    let key = fs::read_to_string(room.at("host_key.pub")).expect("read the host key");
    fs::write(room.at("known_hosts"), format!("[{host}]:{port} {key}")).expect("write the known host");
}

/// Starts sshd and waits until it listens; `None` if it ended instead.
fn spawn(room: &Room, pair: Option<&netns::NetnsPair>) -> Option<Child> {
    let mut command = match pair {
        Some(pair) => netns::command_in(&pair.far, SSHD.as_ref()),
        None => Command::new(SSHD),
    };
    let log = fs::File::create(room.at("sshd.log")).expect("make sshd's log");
    command.arg("-D").arg("-e").arg("-f").arg(room.at("sshd_config"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
    let mut daemon = command.spawn().expect("start sshd");
    let mut ended = false;
    let answered = procs::wait_until(Duration::from_secs(20), || {
        ended = daemon.try_wait().is_ok_and(|status| status.is_some());
        ended || fs::read_to_string(room.at("sshd.log")).is_ok_and(|log| log.contains("Server listening"))
    });
    if answered && !ended {
        return Some(daemon);
    }
    let _ = daemon.kill();
    let _ = daemon.wait();
    None
}

fn keygen(path: &Path) {
    let output = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(path)
        .output()
        .expect("run ssh-keygen");
    assert!(output.status.success(), "ssh-keygen: {}", String::from_utf8_lossy(&output.stderr));
}

/// A port that was free a moment ago. None of those that connections get for themselves: before the server
/// has it, some client would; one that dials it meanwhile can even be given that very port, and then is
/// connected to itself.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = (std::process::id() % u32::from(PORTS.end - PORTS.start)) as u16;
    let mut ports = PORTS.map(|_| {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        PORTS.start + first.wrapping_add(step) % (PORTS.end - PORTS.start)
    });
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a free port")
}
