//! `lab wan`: two hosts, which are network namespaces, joined by a network that is as long, thin and lossy as
//! one likes.
//!
//! In: a preset or figures. Out: one line of JSON with namespaces and addresses; packets between them,
//! carried by a process in the background. Whatever is made is written down first ([`state`]), so that `down`
//! removes it also after a crash.
//! Left out: reordering, duplication and corruption of packets; paths of more than one hop.

mod daemon;
mod lateness;
pub mod line;
pub mod netns;
pub mod options;
mod packet;
pub mod proof;
pub mod state;
pub mod tun;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, anyhow, bail};
use clap::{Args, FromArgMatches as _, Subcommand};
use serde_json::{Value, json};

use crate::pid::Process;
use daemon::{Config, Request, Way};
pub use options::{Change, parse_time};
pub use proof::parse_ping;
use state::WanState;

/// Most NICs of a host; each takes a thread and memory for what is on its way.
const NICS_MAX: u8 = 16;

/// A long network between two namespaces
#[derive(Subcommand)]
pub enum Wan {
    /// Make two hosts and the network between them; prints one line of JSON and stays up in the background
    Up(Up),
    /// Remove networks with all that belongs to them, also what a crash left
    Down {
        #[arg(default_value = "wan", value_parser = state::check_name)]
        name: String,
        /// Every network on this machine
        #[arg(long, conflicts_with = "name")]
        all: bool,
    },
    /// Change a network while it carries packets; prints its paths as JSON
    Set {
        #[arg(value_parser = state::check_name)]
        name: String,
        #[command(flatten)]
        change: Change,
        /// Only packets from host a to host b
        #[arg(long, conflicts_with = "b_to_a")]
        a_to_b: bool,
        /// Only packets from host b to host a
        #[arg(long)]
        b_to_a: bool,
        /// Only this NIC, counted from 0
        #[arg(long, value_name = "N")]
        nic: Option<usize>,
    },
    /// List the networks of this machine as JSON
    List,
    /// What a network carried and lost, how late it was, and what it cost; JSON
    Stats {
        #[arg(value_parser = state::check_name)]
        name: String,
        /// Begin counting anew afterwards
        #[arg(long)]
        reset: bool,
    },
    /// The process in the background
    #[command(hide = true)]
    Serve,
}

/// Who carries the packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carrier {
    /// Our own process.
    #[default]
    Emulator,
    /// A guest kernel with netem.
    Kernel,
}

/// How far TCP's windows grow at both hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Windows {
    /// Twice what the path holds.
    #[default]
    Path,
    /// As Linux has it where nobody tuned anything.
    Stock,
}

/// What a network is made of; see [`Up::make`].
#[derive(Args, Clone, Debug)]
pub struct Up {
    #[arg(skip)]
    pub carrier: Carrier,
    /// rtt-0.28ms, rtt-26.8ms, rtt-128ms, rtt-163ms, lan, cross-country, lossy-0.01% or thin-100M
    #[arg(value_parser = options::PRESETS.map(|preset| preset.name))]
    pub preset: Option<String>,
    #[command(flatten)]
    pub change: Change,
    /// Links between the hosts, each with this path for itself
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=i64::from(NICS_MAX)))]
    pub nics: u8,
    /// The namespaces are called haul-lab-NAME-a and haul-lab-NAME-b
    #[arg(long, default_value = "wan", value_parser = state::check_name)]
    pub name: String,
    /// Largest IP packet on the network
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1280..=9216))]
    pub mtu: u32,
    /// How far TCP's windows grow: as far as the path needs, or as a stock kernel lets them (4 and 6 MiB)
    #[arg(long, value_enum, default_value_t = Windows::Path)]
    pub windows: Windows,
    /// Congestion control of both hosts (default: the machine's)
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,
    /// Seed of loss and jitter
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Be content with what iperf3 sees, as long as it is not too much: for a machine that may not carry the
    /// rate
    #[arg(long)]
    pub any_rate: bool,
    /// Do not show by ping and iperf3 that the network is what it says
    #[arg(long)]
    pub no_proof: bool,
}

/// Does what was asked for.
///
/// # Errors
/// With what failed and why; `up` has then removed what it had made.
pub fn run(wan: Wan) -> anyhow::Result<()> {
    let said = match wan {
        Wan::Up(up) => up.make()?,
        Wan::Down { all: true, .. } => {
            let states = WanState::all()?;
            // One that resists must not keep the others.
            let results: Vec<_> = states.iter().map(remove).collect();
            json!({ "removed": results.into_iter().collect::<anyhow::Result<Vec<_>>>()? })
        }
        Wan::Down { name, .. } => json!({ "removed": down(&name)?.into_iter().collect::<Vec<_>>() }),
        Wan::Set { name, change, a_to_b, b_to_a, nic } => {
            let way = match (a_to_b, b_to_a) {
                (true, _) => Way::AToB,
                (_, true) => Way::BToA,
                _ => Way::Both,
            };
            ask(&name, &Request::Set { nic, way, change })?
        }
        Wan::List => Value::Array(WanState::all()?.iter().map(describe).collect()),
        Wan::Stats { name, reset } => ask(&name, &Request::Stats { reset })?,
        Wan::Serve => return serve(),
    };
    writeln!(std::io::stdout(), "{said}").context("write to standard output")
}

/// Removes a network with all that belongs to it; says what it was, if there was one.
///
/// # Errors
/// Something of it cannot be removed.
pub fn down(name: &str) -> anyhow::Result<Option<Value>> {
    WanState::read(name)?.as_ref().map(remove).transpose()
}

/// Namespaces of a network's two hosts.
pub fn namespaces(name: &str) -> [String; 2] {
    ["a", "b"].map(|host| format!("haul-lab-{name}-{host}"))
}

/// What `stats` prints.
///
/// # Errors
/// There is no such network, or its process is gone.
pub fn stats(name: &str, reset: bool) -> anyhow::Result<Value> {
    ask(name, &Request::Stats { reset })
}

/// Takes all of a network's lines down, or up again.
///
/// # Errors
/// As [`stats`].
pub fn set_down(name: &str, down: bool) -> anyhow::Result<()> {
    let change = Change { down, up: !down, ..Change::default() };
    ask(name, &Request::Set { nic: None, way: Way::Both, change }).map(drop)
}

fn ask(name: &str, request: &Request) -> anyhow::Result<Value> {
    match WanState::read(name)? {
        None => bail!("no network is called {name}; `lab wan list` shows them"),
        Some(state) if !state.process.runs() => {
            bail!("the process of {name} has ended unasked; remove the rest by `lab wan down {name}`")
        }
        Some(state) if state.kernel => {
            bail!(
                "{name} is carried by a guest kernel, which counts nothing and cannot be changed while it runs"
            )
        }
        Some(_) => daemon::ask(&state::file(name, "sock")?, request),
    }
}

/// A network as `list` shows it: `up` without a process is what a crash left.
fn describe(state: &WanState) -> Value {
    let addresses = [0, 1].map(|host| netns::addresses(0, host)[0].clone());
    let nics: Vec<_> = (0..state.nics)
        .map(|nic| {
            let [a, b] = [0, 1].map(|host| netns::addresses(nic, host));
            json!({ "device": netns::device(nic), "addresses": [a[0], b[0]], "addresses6": [a[1], b[1]] })
        })
        .collect();
    json!({
        "name": state.name,
        "carrier": if state.kernel { "kernel" } else { "emulator" },
        "pid": state.process.pid,
        "stale": !state.process.runs(),
        "namespaces": state.namespaces,
        "addresses": addresses,
        "nics": nics,
    })
}

/// Ends the process, then removes the namespaces and the files. What others run in a namespace is left and
/// named.
fn remove(state: &WanState) -> anyhow::Result<Value> {
    // `up` may be the process that is written down, and be the one that removes.
    if state.process.pid != std::process::id() as i32 {
        if state.kernel { state.process.kill()? } else { state.process.end()? }
    }
    let mut left = Vec::new();
    for namespace in &state.namespaces {
        if netns::exists(namespace) {
            left.extend(netns::processes(namespace));
        }
        netns::remove(namespace)?;
    }
    state::remove_files(&state.name)?;
    if !left.is_empty() {
        eprintln!("lab: these processes still hold the namespaces of {}: {left:?}", state.name);
    }
    Ok(json!({ "name": state.name, "left_processes": left }))
}

impl Up {
    /// A network of one NIC per host that does not prove itself, by preset or by figures.
    pub fn new(preset: Option<&str>, change: Change) -> Up {
        Up {
            carrier: Carrier::Emulator,
            preset: preset.map(str::to_owned),
            change,
            nics: 1,
            name: "wan".to_owned(),
            mtu: 1500,
            windows: Windows::Path,
            congestion: None,
            seed: 1,
            any_rate: false,
            no_proof: true,
        }
    }

    /// As `lab wan up` would understand these words.
    ///
    /// # Errors
    /// It would not; or the path cannot be emulated.
    pub fn parse(words: &[String]) -> anyhow::Result<Up> {
        let command = Up::augment_args(clap::Command::new("lab wan up").no_binary_name(true));
        let matches = command.try_get_matches_from(words).and_then(|matches| Up::from_arg_matches(&matches));
        // Its first line; the others are on the usage of another command.
        let up =
            matches.map_err(|error| anyhow!("{}", error.to_string().lines().next().unwrap_or_default()))?;
        up.path()?;
        Ok(up)
    }

    /// The path of each NIC.
    ///
    /// # Errors
    /// There is no such preset, or it cannot be emulated.
    pub fn path(&self) -> anyhow::Result<line::Path> {
        options::resolve(self.preset.as_deref(), &self.change).map_err(anyhow::Error::msg)
    }

    /// Makes it, and says what `lab wan up` prints. It stays up when this process has ended.
    ///
    /// # Errors
    /// With what failed and why; what had been made is removed.
    pub fn make(&self) -> anyhow::Result<Value> {
        let path = self.path()?;
        if let Some(found) = WanState::read(&self.name)? {
            if found.process.runs() {
                bail!("a network called {} is up; take another --name, or `lab wan down` it", self.name);
            }
            eprintln!("lab: removing what is left of an earlier network called {}", self.name);
            remove(&found)?;
        }
        let mut state = WanState {
            name: self.name.clone(),
            process: Process::of(std::process::id())?,
            namespaces: namespaces(&self.name),
            nics: usize::from(self.nics),
            kernel: self.carrier == Carrier::Kernel,
        };
        if let Some(taken) = state.namespaces.iter().find(|namespace| netns::exists(namespace)) {
            bail!(
                "there is a namespace {taken} that no network is known for; remove it by `ip netns del {taken}`"
            );
        }
        state.claim()?;
        let built = self.build(&mut state, &path);
        if built.is_err() {
            // The first error is the one to tell; what cannot be removed now stays written down.
            if let Err(error) = remove(&state) {
                eprintln!("lab: {error:#}");
            }
        }
        built
    }

    fn build(&self, state: &mut WanState, path: &line::Path) -> anyhow::Result<Value> {
        state.namespaces.iter().try_for_each(|namespace| netns::make(namespace))?;
        match self.carrier {
            Carrier::Emulator => self.emulate(state, path)?,
            Carrier::Kernel => crate::kernel::network::start(state, path, self.mtu)?,
        }
        let window = path.on_the_way().saturating_mul(4) + path.buffer;
        for (host, namespace) in state.namespaces.iter().enumerate() {
            let windows = match self.windows {
                Windows::Path => netns::windows_of(window),
                Windows::Stock => netns::STOCK.map(str::to_owned),
            };
            netns::configure(namespace, host, state.nics, self.mtu, &windows, self.congestion.as_deref())?;
        }
        let mut described = describe(state);
        described["path"] = json!(path);
        described["mtu"] = json!(self.mtu);
        if !self.no_proof {
            let any_rate = self.any_rate || state.kernel;
            let seen: anyhow::Result<Vec<_>> = (0..state.nics)
                .map(|nic| proof::prove(&state.namespaces, nic, path, self.mtu, any_rate))
                .collect();
            described["proof"] = json!(seen.context("the network is not what it should be")?);
        }
        if !state.kernel {
            // Whoever uses the network finds the counters at zero.
            ask(&self.name, &Request::Stats { reset: true })?;
        }
        Ok(described)
    }

    /// Has a process of our own carry the packets.
    fn emulate(&self, state: &mut WanState, path: &line::Path) -> anyhow::Result<()> {
        let config = Config {
            namespaces: state.namespaces.clone(),
            devices: (0..state.nics).map(netns::device).collect(),
            path: *path,
            seed: self.seed,
            socket: state::file(&self.name, "sock")?,
        };
        // It is written down before it gets anything to do; if we die in between, it hears nothing and ends.
        let mut child = self.start()?;
        state.process = Process::of(child.id())?;
        state.update()?;
        let mut input = child.stdin.take().expect("stdin is piped");
        serde_json::to_writer(&mut input, &config).context("tell the daemon what to do")?;
        drop(input);
        let mut said = String::new();
        let output = child.stdout.take().expect("stdout is piped");
        BufReader::new(output).read_line(&mut said).context("hear the daemon")?;
        if said.trim() != "ready" {
            let log = fs::read_to_string(state::file(&self.name, "log")?).unwrap_or_default();
            bail!("the daemon did not start: {}", log.trim());
        }
        Ok(())
    }

    fn start(&self) -> anyhow::Result<Child> {
        let log = state::file(&self.name, "log")?;
        let log = fs::File::create(&log).with_context(|| format!("make {}", log.display()))?;
        let program = std::env::current_exe().context("find the own program")?;
        Command::new(program)
            .args(["wan", "serve"])
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .context("start the daemon")
    }
}

fn serve() -> anyhow::Result<()> {
    let config: Config = serde_json::from_reader(std::io::stdin()).context("hear what to do")?;
    // Signals of the terminal are for those who are still connected to it.
    rustix::process::setsid().context("leave the session")?;
    daemon::serve(&config, || {
        let mut stdout = std::io::stdout();
        writeln!(stdout, "ready").and_then(|()| stdout.flush()).context("tell that packets flow")?;
        let null = fs::File::options().write(true).open("/dev/null").context("open /dev/null")?;
        rustix::stdio::dup2_stdout(&null).context("let go of standard output")
    })
}
