//! `lab pfs`: a real parallel file system from Debian's packages, on devices whose speed can be set.
//!
//! In: which one, how many servers, what devices. Out: a mount; one line of JSON that says where each server
//! and its device is. Servers live in namespaces of their own behind one process ([`keeper`]); the client's
//! mount is the caller's, so that any program can use it. Whatever is made is written down first ([`state`]),
//! so that `down` removes it also after a crash.
//! Left out: several clients, networks between servers, and file systems that Debian does not have (Lustre,
//! BeeGFS).

mod ceph;
mod gluster;
mod keeper;
mod kind;
mod moosefs;
mod state;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::pid::Process;
use crate::targets::devices;
use crate::targets::spec::parse_size;
use crate::targets::state::mounts_below;
use crate::wan::netns;
use kind::Kind;
pub use kind::Which;
use state::{PfsState, Server};

/// Most servers of a file system; each takes a process or more, and memory for it.
const SERVERS_MAX: i64 = 32;
/// How long a client may take to mount, and a first file to be written.
const MOUNT_WAIT: Duration = Duration::from_secs(60);
/// The smallest device: room for chunks of MooseFS, and for what BlueStore keeps for itself.
const SIZE_MIN: u64 = 1 << 30;
/// Written bytes that the kernel may hold back for a device with a write rate.
pub const DIRTY_MAX: u64 = 16 << 20;

/// A real parallel file system
#[derive(Subcommand)]
pub enum Pfs {
    /// Start one and mount it; prints one line of JSON and stays up in the background
    #[command(subcommand)]
    Up(Up),
    /// Change one server, or `all`, while it is used
    Set(Set),
    /// Print figures of each server and its device as JSON
    Stats { name: String },
    /// Print what is up, as JSON
    List,
    /// Unmount and remove file systems, also what a crash left
    Down {
        #[arg(required_unless_present = "all")]
        name: Option<String>,
        /// All of them
        #[arg(long, conflicts_with = "name")]
        all: bool,
    },
    /// Install the packages of one; starts no daemon
    Install {
        #[arg(value_enum)]
        kind: Which,
    },
    /// The first process of the servers
    #[command(hide = true)]
    Keep,
}

#[derive(Subcommand)]
pub enum Up {
    /// GlusterFS: a brick on each device
    Gluster {
        /// So many bricks
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=SERVERS_MAX))]
        bricks: u32,
        #[command(flatten)]
        options: gluster::Options,
        #[command(flatten)]
        common: Common,
    },
    /// MooseFS: a chunk server on each device
    Moosefs {
        /// So many chunk servers
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=SERVERS_MAX))]
        servers: u32,
        #[command(flatten)]
        options: moosefs::Options,
        #[command(flatten)]
        common: Common,
    },
    /// CephFS: an OSD on each device
    Ceph {
        /// So many OSDs
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=SERVERS_MAX))]
        osds: u32,
        #[command(flatten)]
        options: ceph::Options,
        #[command(flatten)]
        common: Common,
    },
}

#[derive(Args)]
pub struct Common {
    /// What it is called [default: gluster, moosefs or ceph]
    #[arg(long)]
    name: Option<String>,
    /// Bytes of each device; they are sparse files [default: 4GiB, ceph 6GiB]
    #[arg(long, value_parser = parse_size)]
    size: Option<u64>,
    /// Bytes a second of each device, each way; 0 is without limit
    #[arg(long, value_parser = parse_size, default_value = "0")]
    rate: u64,
    /// Directory for device images and what daemons write; not below /run
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
}

#[derive(Args)]
pub struct Set {
    name: String,
    /// Number of a server, or `all`
    server: String,
    /// Bytes a second of its device, each way; 0 is without limit
    #[arg(long, value_parser = parse_size, conflicts_with_all = ["read_rate", "write_rate"])]
    rate: Option<u64>,
    /// Bytes a second; 0 is without limit
    #[arg(long, value_parser = parse_size)]
    read_rate: Option<u64>,
    /// Bytes a second; 0 is without limit
    #[arg(long, value_parser = parse_size)]
    write_rate: Option<u64>,
    /// Stop its process: it answers nothing, and does not say so
    #[arg(long, conflicts_with = "thaw")]
    freeze: bool,
    /// Let its process go on
    #[arg(long)]
    thaw: bool,
}

/// Does what was asked for.
///
/// # Errors
/// With what failed and why; `up` has then removed what it had made.
pub fn run(pfs: Pfs) -> anyhow::Result<()> {
    let said = match pfs {
        Pfs::Up(Up::Gluster { bricks, options, common }) => up(Kind::Gluster(options), bricks, &common)?,
        Pfs::Up(Up::Moosefs { servers, options, common }) => up(Kind::Moosefs(options), servers, &common)?,
        Pfs::Up(Up::Ceph { osds, options, common }) => up(Kind::Ceph(options), osds, &common)?,
        Pfs::Set(set) => set.run()?,
        Pfs::Stats { name } => stats(&PfsState::load(&name)?)?,
        Pfs::List => Value::Array(state::names()?.iter().map(|name| listed(name)).collect()),
        Pfs::Down { name, .. } => {
            let names = name.map_or_else(state::names, |name| Ok(vec![name]))?;
            // One that resists must not keep the others.
            let results: Vec<_> = names
                .into_iter()
                .map(|name| {
                    ensure!(state::dir(&name).is_dir(), "no file system {name:?}: `lab pfs list` shows them");
                    state::remove(&name).with_context(|| format!("remove file system {name:?}"))?;
                    Ok(name)
                })
                .collect();
            json!({ "removed": results.into_iter().collect::<anyhow::Result<Vec<_>>>()? })
        }
        Pfs::Install { kind } => return install(kind),
        Pfs::Keep => return keeper::keep(),
    };
    writeln!(std::io::stdout(), "{said}").context("write to standard output")
}

fn up(kind: Kind, servers: u32, common: &Common) -> anyhow::Result<Value> {
    kind.check(servers)?;
    let size = common.size.unwrap_or(kind.size());
    ensure!(size >= SIZE_MIN, "a device of {size} bytes is too small: {SIZE_MIN} at least");
    ensure!(Path::new("/dev/fuse").exists(), "there is no /dev/fuse, so nothing can be mounted");
    let version = kind.which().version()?;
    let name = common.name.clone().unwrap_or_else(|| kind.which().name().to_owned());
    fs::create_dir_all(&common.dir).with_context(|| format!("create {}", common.dir.display()))?;
    let dir = common.dir.canonicalize().with_context(|| format!("find {}", common.dir.display()))?;
    ensure!(!dir.starts_with("/run"), "the servers have a /run of their own: take another --dir");
    state::create(&name)?;
    let mut state = PfsState {
        mount: state::mount(&name),
        data: dir.join(format!("haul-lab-pfs-{name}")),
        keeper: None,
        client: None,
        images: Vec::new(),
        servers: Vec::new(),
        name,
        kind,
    };
    let built = build(&mut state, servers, size, common.rate);
    match built {
        Ok(mut described) => {
            described["version"] = json!(version);
            Ok(described)
        }
        Err(error) => {
            // The first error is the one to tell; what cannot be removed now stays written down.
            if let Err(error) = state::remove(&state.name) {
                eprintln!("lab: {error:#}");
            }
            Err(error)
        }
    }
}

fn build(state: &mut PfsState, servers: u32, size: u64, rate: u64) -> anyhow::Result<Value> {
    let namespace = state.namespace();
    ensure!(
        !netns::exists(&namespace),
        "there is a namespace {namespace} that nobody knows: `ip netns del` it"
    );
    ensure!(!state.data.exists(), "{} is there: is it left by a crash? Remove it", state.data.display());
    state.images = (0..servers).map(|at| state.data.join(format!("{at}.img"))).collect();
    state.save()?;
    kind::make(&state.data)?;
    kind::make(&state.work())?;
    let mut direct = true;
    for (at, image) in (0..).zip(&state.images) {
        let place = state.data.join(at.to_string());
        let device = devices::attach(image, size, &mut direct)?;
        if let Some(file_system) = state.kind.file_system() {
            devices::format(&device.path, file_system)?;
            kind::make(&place)?;
        }
        let (name, path, mark) = state.kind.server(at, &place, &state.data.join("work"));
        state.servers.push(Server {
            name,
            address: state.kind.address(at),
            device: device.path,
            number: device.number,
            path,
            mark,
            rates: [0, 0],
        });
    }
    state.save()?;
    netns::make(&namespace)?;
    keeper::start(state)?;
    mount(state)?;
    state.kind.mounted(state)?;
    let mut throttle = Value::Null;
    if rate > 0 {
        throttle = limit(state, None, [Some(rate); 2])?;
    }
    let mut described = describe(state);
    described["pids"] = json!(netns::processes(&namespace));
    described["direct_io"] = json!(direct);
    described["throttle"] = throttle;
    Ok(described)
}

/// Starts the client: in the servers' network, and in the mount and process namespaces of the caller.
fn mount(state: &mut PfsState) -> anyhow::Result<()> {
    let log = fs::File::options().append(true).open(state::log(&state.name)).context("open the log")?;
    let mut child = Command::new("setsid")
        .args(["nsenter", &format!("--net=/run/netns/{}", state.namespace()), "--"])
        .args(state.kind.client(state))
        .env("PATH", kind::path())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("share the log")?)
        .stderr(log)
        .spawn()
        .context("run setsid and nsenter (package util-linux)")?;
    state.client = Some(Process::of(child.id())?);
    state.save()?;
    let until = Instant::now() + MOUNT_WAIT;
    let probe = state.mount.join(".haul-lab-probe");
    loop {
        if let Some(ended) = child.try_wait().context("look at the client")? {
            bail!("the client ended: {ended}: {}", tail(state));
        }
        let mounted = mounts_below(&state.mount)?.contains(&state.mount);
        // Servers come one by one; the first file that can be written shows that there are enough. It is
        // written by another process, for one that hangs in here could not be ended.
        if mounted && written(&probe) {
            return Ok(());
        }
        ensure!(
            Instant::now() < until,
            "{} after {MOUNT_WAIT:?}: {}",
            if mounted { "mounted, but nothing can be written" } else { "not mounted" },
            tail(state)
        );
        sleep(Duration::from_millis(50));
    }
}

fn written(probe: &Path) -> bool {
    let to = format!("of={}", probe.display());
    let run = |args: &[&str]| {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=1", "10"]).args(args).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    run(&["dd", "if=/dev/zero", &to, "bs=4096", "count=1", "conv=fsync"])
        && run(&["rm", "--", &probe.display().to_string()])
}

/// The last that the processes said.
fn tail(state: &PfsState) -> String {
    let text = fs::read_to_string(state::log(&state.name)).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(10)..].join("\n")
}

fn describe(state: &PfsState) -> Value {
    let servers: Vec<_> = state
        .servers
        .iter()
        .map(|server| {
            json!({
                "name": server.name,
                "address": server.address,
                "device": server.device,
                "path": server.path,
            })
        })
        .collect();
    json!({
        "name": state.name,
        "kind": state.kind.which().name(),
        "mount": state.mount,
        "servers": servers,
        "namespace": state.namespace(),
        "keeper": state.keeper.as_ref().map(|process| process.pid),
        "client": state.client.as_ref().map(|process| process.pid),
        "work": state.work(),
    })
}

fn listed(name: &str) -> Value {
    match PfsState::load(name) {
        Ok(state) => {
            let mut described = describe(&state);
            described["alive"] = json!(state.runs());
            described
        }
        Err(_) => json!({ "name": name, "alive": false }),
    }
}

/// Changes the rates of a server's device or of all; says by what means, or that there is none, and whether
/// memory is kept from hiding it.
fn limit(
    state: &mut PfsState,
    which: Option<usize>,
    [read, write]: [Option<u64>; 2],
) -> anyhow::Result<Value> {
    let keeper = state.keeper.as_ref().filter(|keeper| keeper.runs()).map(|keeper| keeper.pid);
    let (mut means, mut dirty) = ("none: no blkio throttle in this machine's cgroups", false);
    for (at, server) in state.servers.iter_mut().enumerate() {
        if which.is_none_or(|which| which == at) {
            server.rates = [read.unwrap_or(server.rates[0]), write.unwrap_or(server.rates[1])];
            if let Some(by) = devices::throttle(&server.number, server.rates, keeper)? {
                means = by;
            }
            dirty = devices::limit_dirty(&server.number, (server.rates[1] > 0).then_some(DIRTY_MAX))?;
        }
    }
    state.save()?;
    Ok(json!({ "by": means, "dirty_limited": dirty }))
}

impl Set {
    fn run(&self) -> anyhow::Result<Value> {
        let mut state = PfsState::load(&self.name)?;
        let which = match &self.server[..] {
            "all" => None,
            text => Some(text.parse().with_context(|| format!("{text:?} is neither a number nor all"))?),
        };
        ensure!(
            which.is_none_or(|at: usize| at < state.servers.len()),
            "no server {}: there are 0 to {}",
            self.server,
            state.servers.len() - 1
        );
        let rates = [self.rate.or(self.read_rate), self.rate.or(self.write_rate)];
        ensure!(rates != [None; 2] || self.freeze || self.thaw, "nothing to change: see --help");
        let mut said = json!({ "name": state.name, "server": self.server });
        if rates != [None; 2] {
            said["throttle"] = limit(&mut state, which, rates)?;
        }
        if self.freeze || self.thaw {
            for (at, server) in state.servers.iter().enumerate() {
                if which.is_none_or(|which| which == at) {
                    let signal = if self.freeze { Signal::STOP } else { Signal::CONT };
                    state.process_of(server)?.signal(signal)?;
                }
            }
            said["frozen"] = json!(self.freeze);
        }
        Ok(said)
    }
}

fn stats(state: &PfsState) -> anyhow::Result<Value> {
    let mut servers = Vec::new();
    for (at, server) in (0..).zip(&state.servers) {
        let mut stats = devices::stats_of(at, &server.number, server.rates)?;
        stats["name"] = json!(server.name);
        let process = state.process_of(server).ok();
        stats["pid"] = json!(process.as_ref().map(|process| process.pid));
        stats["frozen"] =
            json!(process.as_ref().is_some_and(|process| field(process.pid, "State").starts_with('T')));
        servers.push(stats);
    }
    let mut rss = 0;
    for pid in netns::processes(&state.namespace()) {
        let kib = field(pid as i32, "VmRSS");
        rss += kib.split(' ').next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10;
    }
    Ok(json!({ "name": state.name, "servers": servers, "rss_bytes": rss }))
}

/// A line of a process's status; empty if it has ended.
fn field(pid: i32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

/// Runs `scripts/needs.sh`, which starts no daemon.
fn install(kind: Which) -> anyhow::Result<()> {
    let script = Path::new("scripts/needs.sh");
    let own = std::env::current_exe().context("find the own program")?;
    let root = std::env::var_os("LAB_ROOT").map(PathBuf::from);
    let found = root.iter().map(PathBuf::as_path).chain(own.ancestors()).map(|dir| dir.join(script));
    let script = found
        .into_iter()
        .find(|path| path.is_file())
        .context("scripts/needs.sh is not found: run lab/lab from the repository")?;
    let status = Command::new(&script).arg(format!("pfs-{}", kind.name())).status();
    let status = status.with_context(|| format!("run {}", script.display()))?;
    ensure!(status.success(), "{} pfs-{}: {status}", script.display(), kind.name());
    Ok(())
}
