//! Where the programs of a measurement run: two hosts, which are namespaces or this machine itself.
//!
//! In: a network as `lab wan up` makes it, or none for loopback; a directory. Out: commands that run on
//! either host, a directory of its own for each, an sshd at the far one. Dropping the [`Bench`] undoes all of
//! it.
//! Invariants: nothing is read from the user's own home; what runs on a host carries the bench's mark, by
//! which it is found and ended. Left out: what a SIGKILL of the lab leaves: the network
//! (`lab wan down --all`) and the directory.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use crate::process::{self, MARK, Server};
use crate::wan::{self, netns};

/// Ends the options of what brings a program to its host.
pub const HERE: &str = "--";
/// Ports of servers lie here: the kernel gives none of them to clients.
const PORTS: std::ops::Range<u16> = 20_000..30_000;
/// How long ssh may take to answer for the first time.
const SSH_PATIENCE: Duration = Duration::from_secs(30);
/// What programs of the far host find in their path, behind `haul`.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";

/// A host: the near one (0, where the user types) or the far one (1, with an sshd).
#[derive(Clone, Debug)]
pub struct Host {
    /// Name below `/run/netns`; none: this machine itself.
    pub namespace: Option<String>,
    /// The address that the other host dials.
    pub address: String,
    /// A directory of this host's own; nothing else writes there.
    pub root: PathBuf,
    /// Home of its programs; apart from `root`, so that what they keep there is no part of a copy.
    pub home: PathBuf,
    /// Value of [`MARK`] in the environment of what runs here.
    pub mark: String,
}

impl Host {
    /// A command that will run on this host.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = match &self.namespace {
            None => Command::new(program),
            Some(namespace) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net=/run/netns/{namespace}")).arg(HERE).arg(program);
                command
            }
        };
        command.env(MARK, &self.mark).env("HOME", &self.home).env("LC_ALL", "C.UTF-8");
        command.env_remove("XDG_CONFIG_HOME").env_remove("XDG_CACHE_HOME").env_remove("XDG_STATE_HOME");
        command
    }

    /// A server on this host, which runs until it is dropped.
    ///
    /// `command` gets the [`Command`] of `program`, to add its arguments. See [`Server::start`].
    ///
    /// # Errors
    /// It does not listen on `port`; with the last lines of its log, which is in the home of the host.
    pub fn server(
        &self,
        program: &str,
        port: u16,
        args: impl FnOnce(&mut Command),
    ) -> anyhow::Result<Server> {
        // The kernel ends it when the lab has been killed.
        let mut command = self.command("setpriv");
        command.args(["--pdeathsig", "KILL", HERE, program]).current_dir(&self.root);
        args(&mut command);
        let plain = Path::new(program).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mark = format!("{}-{plain}-{port}", self.mark);
        Server::start(command, mark, &self.home.join(format!("{plain}-{port}.log")), port)
    }

    /// A port that nobody listens on.
    ///
    /// # Errors
    /// All are taken.
    pub fn free_port(&self) -> anyhow::Result<u16> {
        // Each is tried once per round, so that two servers that start at the same time do not get the same
        // one.
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let free = |port: u16| TcpListener::bind((self.address.as_str(), port)).is_ok();
        let first = (std::process::id() % u32::from(PORTS.end - PORTS.start)) as u16;
        let find = || {
            (0..1000).find_map(|_| {
                let step = NEXT.fetch_add(1, Ordering::Relaxed);
                let port = PORTS.start + first.wrapping_add(step) % (PORTS.end - PORTS.start);
                free(port).then_some(port)
            })
        };
        let found = match &self.namespace {
            None => find(),
            Some(namespace) => netns::inside(namespace, find)?,
        };
        found.with_context(|| format!("no free port at {}", self.address))
    }
}

/// The network between the hosts, as far as settings depend on it.
#[derive(Clone, Debug)]
pub struct Line {
    /// Round trip without queues; zero if it is not known.
    pub rtt: Duration,
    /// Bit/s of frames in each direction, all NICs together; none: no limit is set.
    pub rate: Option<u64>,
    /// What `lab wan up` prints; null for loopback.
    pub described: Value,
}

impl Line {
    /// Bandwidth-delay product: bytes that are on their way when the path is full. None where nothing limits
    /// the rate.
    pub fn bdp(&self) -> Option<u64> {
        let bytes = u128::from(self.rate?).saturating_mul(self.rtt.as_nanos()) / 8_000_000_000;
        Some(u64::try_from(bytes).unwrap_or(u64::MAX))
    }
}

/// What to make a [`Bench`] of.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The network; its name is not looked at, each bench has one of its own. None: loopback, without
    /// namespaces.
    pub wan: Option<wan::Up>,
    /// The scratch directory is made in this one. No blanks or quotes in it: it becomes part of ssh's
    /// options.
    pub dir: PathBuf,
    /// The `haul` to measure, at both hosts.
    pub haul: PathBuf,
}

/// Both hosts, and how the near one logs in to the far one.
#[derive(Debug)]
pub struct Bench {
    pub hosts: [Host; 2],
    /// The ssh program and its options, without the host: what goes to `haul -e` and `rsync -e`.
    pub ssh: Vec<String>,
    /// The `haul` that is measured.
    pub haul: PathBuf,
    pub line: Line,
    /// Directory for configurations of programs; its own, and removed with the bench.
    pub scratch: PathBuf,
    /// Port of the sshd.
    pub ssh_port: u16,
    /// Ports of other servers at the far host.
    ports: Mutex<BTreeMap<String, u16>>,
    undo: Undo,
}

/// What stands, in the order in which it was made.
#[derive(Debug, Default)]
struct Undo {
    scratch: Option<PathBuf>,
    network: Option<String>,
    marks: Vec<String>,
    sshd: Option<Server>,
}

impl Drop for Undo {
    fn drop(&mut self) {
        let tell = |result: anyhow::Result<()>| {
            if let Err(error) = result {
                eprintln!("lab: {error:#}");
            }
        };
        drop(self.sshd.take());
        let marks: Vec<_> = self.marks.iter().map(String::as_str).collect();
        tell(process::end_marked(&marks));
        if let Some(name) = &self.network {
            tell(wan::down(name).map(drop));
        }
        if let Some(scratch) = &self.scratch {
            let removed = fs::remove_dir_all(scratch);
            tell(removed.with_context(|| format!("remove {}", scratch.display())));
        }
    }
}

impl Bench {
    /// Makes hosts, network and sshd.
    ///
    /// The thread that calls must outlive the bench: the kernel ends its sshd with it.
    ///
    /// # Errors
    /// Any of it cannot be made; what had been made is removed again.
    pub fn up(setup: &Setup) -> anyhow::Result<Bench> {
        ensure!(setup.haul.is_file(), "{} is no program; build it or name another one", setup.haul.display());
        let haul = setup.haul.canonicalize().with_context(|| format!("find {}", setup.haul.display()))?;
        let mut undo = Undo::default();
        let (id, scratch) = make_scratch(&setup.dir)?;
        undo.scratch = Some(scratch.clone());
        let (line, namespaces, addresses) = match &setup.wan {
            None => {
                let line = Line { rtt: Duration::ZERO, rate: None, described: Value::Null };
                (line, [None, None], ["127.0.0.1"; 2].map(str::to_owned))
            }
            Some(up) => {
                let up = wan::Up { name: id.clone(), ..up.clone() };
                let path = up.path()?;
                undo.network = Some(id.clone());
                let described = up.make()?;
                let line = Line {
                    rtt: Duration::from_nanos(path.delay_ns.saturating_mul(2)),
                    rate: Some(path.rate.saturating_mul(up.nics.into())),
                    described,
                };
                let namespaces = wan::namespaces(&id).map(Some);
                (line, namespaces, [0, 1].map(|host| netns::addresses(0, host)[0].clone()))
            }
        };
        let [near, far] =
            ["near", "far"].map(|side| (scratch.join(side), scratch.join(format!("{side}-home"))));
        let [near_space, far_space] = namespaces;
        let [near_address, far_address] = addresses;
        let host = |(root, home): (PathBuf, PathBuf), namespace, address, mark| {
            for dir in [&root, &home] {
                fs::create_dir(dir).with_context(|| format!("make {}", dir.display()))?;
            }
            anyhow::Ok(Host { namespace, address, root, home, mark: format!("{id}-{mark}") })
        };
        let hosts =
            [host(near, near_space, near_address, "near")?, host(far, far_space, far_address, "far")?];
        undo.marks = hosts.iter().map(|host| host.mark.clone()).collect();
        undo.marks.push(session_mark(&hosts[1]));
        let ssh_port = hosts[1].free_port()?;
        let ssh = configure_ssh(&scratch, &hosts[1], &haul, ssh_port)?;
        let config = scratch.join("sshd_config");
        undo.sshd = Some(hosts[1].server("/usr/sbin/sshd", ssh_port, |command| {
            command.args(["-D", "-e", "-f"]).arg(&config);
        })?);
        let bench = Bench { hosts, ssh, haul, line, scratch, ssh_port, ports: Mutex::default(), undo };
        let mut command = bench.near().command(&bench.ssh[0]);
        command.args(&bench.ssh[1..]).arg(&bench.far().address).arg("true");
        let said = bench.run(&mut command, SSH_PATIENCE);
        let log = || bench.undo.sshd.as_ref().map(Server::log).unwrap_or_default();
        said.with_context(|| format!("the far host's sshd does not let us in: {}", log()))?;
        Ok(bench)
    }

    pub fn near(&self) -> &Host {
        &self.hosts[0]
    }
    pub fn far(&self) -> &Host {
        &self.hosts[1]
    }

    /// A port of the far host for the server of this name: free at the first time, the same from then on.
    ///
    /// # Errors
    /// All are taken.
    pub fn port(&self, name: &str) -> anyhow::Result<u16> {
        let mut ports = self.ports.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(port) = ports.get(name) {
            return Ok(*port);
        }
        let port = self.far().free_port()?;
        ports.insert(name.to_owned(), port);
        Ok(port)
    }

    /// Runs a program to its end, as [`process::run`]. After a failure nothing of it runs on either host any
    /// more; servers stay.
    ///
    /// # Errors
    /// As [`process::run`].
    pub fn run(&self, command: &mut Command, limit: Duration) -> anyhow::Result<process::Output> {
        let result = process::run(command, limit);
        if result.is_err() {
            self.end_strays()?;
        }
        result
    }

    /// Ends what a program has left on both hosts. Servers stay.
    ///
    /// # Errors
    /// Something does not end.
    pub fn end_strays(&self) -> anyhow::Result<()> {
        process::end_marked(&[&self.near().mark, &self.far().mark, &session_mark(self.far())])
    }

    /// What people have started at the far host by ssh, and runs.
    pub fn sessions(&self) -> Vec<u32> {
        process::marked(&[&session_mark(self.far())])
    }

    /// The ssh program and its options as one word.
    pub fn ssh_words(&self) -> String {
        self.ssh.join(" ")
    }

    /// `HOST:PATH` of a path of the far host.
    pub fn remote(&self, path: &Path) -> String {
        format!("{}:{}", self.far().address, path.display())
    }
}

#[cfg(test)]
impl Bench {
    /// Hosts that are not there, with a path of 10 Gbit/s and 128 ms between them: for command lines.
    pub fn of_nothing() -> Bench {
        let host = |address: &str| Host {
            namespace: None,
            address: address.to_owned(),
            root: PathBuf::from("/root-of-host"),
            home: PathBuf::from("/home-of-host"),
            mark: "nothing".to_owned(),
        };
        Bench {
            hosts: [host("10.77.0.1"), host("10.77.0.2")],
            ssh: ["ssh", "-F", "none"].map(str::to_owned).to_vec(),
            haul: PathBuf::from("/haul"),
            line: Line {
                rtt: Duration::from_millis(128),
                rate: Some(10_000_000_000),
                described: Value::Null,
            },
            scratch: PathBuf::from("/scratch"),
            ssh_port: 22,
            ports: Mutex::new(
                [
                    ("iperf3", 5201),
                    ("gridftp", 2811),
                    ("gridftp-near", 2812),
                    ("xrootd", 1094),
                    ("front-far", 2820),
                    ("front-near", 2821),
                ]
                .map(|(name, port)| (name.to_owned(), port))
                .into(),
            ),
            undo: Undo::default(),
        }
    }
}

/// The `haul` that is measured if nobody names one: `LAB_HAUL`, or the optimised one of this repository.
pub fn haul() -> PathBuf {
    let root = || std::env::var_os("LAB_ROOT").map_or_else(|| PathBuf::from("."), PathBuf::from);
    std::env::var_os("LAB_HAUL").map_or_else(|| root().join("target/release/haul"), PathBuf::from)
}

/// What people start by ssh carries this.
fn session_mark(far: &Host) -> String {
    format!("{}-session", far.mark)
}

/// A directory that is there for nobody else, and the name of the bench.
fn make_scratch(dir: &Path) -> anyhow::Result<(String, PathBuf)> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    let dir = dir.canonicalize().with_context(|| format!("find {}", dir.display()))?;
    let text = dir.to_str().with_context(|| format!("{} is not UTF-8; take another one", dir.display()))?;
    let plain = |c: char| c.is_alphanumeric() || "/._-+@,:=".contains(c);
    ensure!(text.chars().all(plain), "{text} has blanks or quotes; take a directory without them");
    loop {
        let id = format!("b{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let scratch = dir.join(format!("haul-lab-{id}"));
        match fs::create_dir(&scratch) {
            Ok(()) => {
                fs::set_permissions(&scratch, fs::Permissions::from_mode(0o700))
                    .with_context(|| format!("change {}", scratch.display()))?;
                return Ok((id, scratch));
            }
            // Of a dead lab that had our process id.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => bail!("make {}: {error}", scratch.display()),
        }
    }
}

/// Keys and configuration of the far sshd; returns the ssh program and its options.
fn configure_ssh(scratch: &Path, far: &Host, haul: &Path, port: u16) -> anyhow::Result<Vec<String>> {
    let write = |name: &str, text: String| {
        let path = scratch.join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    };
    for key in ["host_key", "user_key"] {
        let mut command = Command::new("ssh-keygen");
        command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(scratch.join(key));
        process::run(&mut command, SSH_PATIENCE)?;
    }
    let read = |name: &str| fs::read_to_string(scratch.join(name)).with_context(|| format!("read {name}"));
    let bin = scratch.join("bin");
    fs::create_dir(&bin).with_context(|| format!("make {}", bin.display()))?;
    std::os::unix::fs::symlink(haul, bin.join("haul")).context("link haul")?;
    if rustix::process::geteuid().is_root() {
        // sshd keeps its helper processes in there; Debian's service makes it at boot.
        fs::create_dir_all("/run/sshd").context("make /run/sshd")?;
    }
    let (dir, address, home) = (scratch.display(), &far.address, far.home.display());
    // MaxStartups: some peers open dozens of connections at once, and the default drops them at random.
    write(
        "sshd_config",
        format!(
            "ListenAddress {address}\nPort {port}\nHostKey {dir}/host_key\nAuthorizedKeysFile {dir}/user_key.pub\n\
             PidFile none\nStrictModes no\nUsePAM no\nUseDNS no\nPermitRootLogin yes\nPasswordAuthentication no\n\
             KbdInteractiveAuthentication no\nAllowTcpForwarding no\nMaxStartups 1000\nMaxSessions 1000\n\
             Subsystem sftp /usr/lib/openssh/sftp-server\n\
             SetEnv HOME={home} PATH={dir}/bin:{PATH} LC_ALL=C.UTF-8 {MARK}={mark}\n",
            mark = session_mark(far),
        ),
    )?;
    write("known_hosts", format!("[{address}]:{port} {}", read("host_key.pub")?))?;
    let options = [
        // As an option, for scp means something else by -p.
        format!("-o Port={port} -i {dir}/user_key -F none"),
        // Where processors have AES it is the fast one; OpenSSH's default is ChaCha20.
        "-c aes128-gcm@openssh.com,chacha20-poly1305@openssh.com".to_owned(),
        format!("-o UserKnownHostsFile={dir}/known_hosts -o GlobalKnownHostsFile=/dev/null"),
        "-o StrictHostKeyChecking=yes -o IdentitiesOnly=yes -o IdentityAgent=none".to_owned(),
        "-o BatchMode=yes -o Compression=no -o LogLevel=ERROR".to_owned(),
    ];
    let words = options.iter().flat_map(|option| option.split(' ')).map(str::to_owned);
    Ok(std::iter::once("ssh".to_owned()).chain(words).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the bandwidth-delay product is that of the papers' path, and unknown where nothing limits.
    /// Method: 10 Gbit/s at 128 ms is 160 MB; loopback; the largest figures do not overflow.
    #[test]
    fn host_bdp() {
        let line = |rtt, rate| Line { rtt, rate, described: Value::Null };
        assert_eq!(line(Duration::from_millis(128), Some(10_000_000_000)).bdp(), Some(160_000_000));
        assert_eq!(line(Duration::from_micros(280), Some(10_000_000_000)).bdp(), Some(350_000));
        assert_eq!(line(Duration::ZERO, None).bdp(), None);
        assert_eq!(line(Duration::MAX, Some(u64::MAX)).bdp(), Some(u64::MAX));
    }

    /// Goal: scratch directories are ours alone, and one that ssh could not be told of is refused.
    /// Method: two in one place; a place with a blank.
    #[test]
    fn host_scratch_is_our_own() {
        let dir = tempfile::tempdir().unwrap();
        let (first, one) = make_scratch(dir.path()).unwrap();
        let (second, two) = make_scratch(dir.path()).unwrap();
        assert!(first != second && one != two);
        assert_eq!(fs::metadata(&one).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(make_scratch(&dir.path().join("a b")).unwrap_err().to_string().contains("blanks"));
    }
}
