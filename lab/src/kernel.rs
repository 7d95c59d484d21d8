//! `lab kernel`: User-Mode Linux, Debian's package, as a second, stock kernel: a command in a guest, a
//! network through its netem, and the emulator checked against that.
//!
//! In: words of the command line. Out: what a guest said, with its exit code; a network as `lab wan` makes
//! it; a table.
//! Invariants: a guest ends in bounded time, or with the network that it is for; it writes nothing to this
//! machine.
//! Left out: input for commands, guests with more than one processor (the package has none), other
//! architectures.

mod compare;
mod features;
mod guest;
pub mod network;
mod script;

use std::io::Write;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};

use crate::wan::{self, Carrier, options, state};
use guest::{Guest, Order, console};

/// Exit codes of `run` that are not the command's, as those of timeout(1) are.
const EXIT_TIMEOUT: i32 = 124;
const EXIT_FAILED: i32 = 125;

/// A second, stock kernel in user mode
#[derive(Subcommand)]
pub enum Kernel {
    /// Boot a guest, run a command in it, and end with its exit code (124: took too long, 125: could not be
    /// run)
    Run(Task),
    /// A network as `lab wan` makes it, through a guest's bridge and netem
    #[command(subcommand)]
    Wan(Wan),
    /// Measure paths through the emulator and through netem, and say where they disagree (exit code 1)
    Check(compare::Check),
    /// What the guest's kernel has; JSON
    Features {
        #[arg(long, value_name = "TIME", default_value = "120s", value_parser = options::parse_time)]
        timeout: u64,
    },
    /// Install Debian's packages that this needs
    Install,
    /// The first process around a guest
    #[command(hide = true)]
    Serve,
}

#[derive(Subcommand)]
pub enum Wan {
    /// Make two hosts and the network between them; prints one line of JSON and stays up in the background
    Up {
        #[arg(value_parser = options::PRESETS.map(|preset| preset.name))]
        preset: Option<String>,
        #[command(flatten)]
        change: options::Change,
        /// The namespaces are called haul-lab-NAME-a and haul-lab-NAME-b
        #[arg(long, default_value = "kernel", value_parser = state::check_name)]
        name: String,
        /// Largest IP packet on the network
        #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1280..=9000))]
        mtu: u32,
        /// Do not show by ping and iperf3 that the network is what it says
        #[arg(long)]
        no_proof: bool,
    },
    /// Remove a network with all that belongs to it, also what a crash left
    Down {
        #[arg(default_value = "kernel", value_parser = state::check_name)]
        name: String,
    },
    /// List the networks of this machine as JSON
    List,
}

/// A command for a guest.
#[derive(Args)]
pub struct Task {
    /// The guest's memory
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_memory)]
    memory: u64,
    /// Load a module before; may be repeated
    #[arg(long = "module", value_name = "NAME")]
    modules: Vec<String>,
    /// End it after this, boot included
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = options::parse_time)]
    timeout: u64,
    /// A command and its arguments; or one word: a file with a script, or a line for sh
    #[arg(last = true, required = true, value_name = "SCRIPT|COMMAND")]
    words: Vec<String>,
    /// A script in place of words.
    #[arg(skip)]
    script: Option<String>,
}

/// How a task ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Exited(i32),
    /// It was ended; what its console said.
    TookTooLong(String),
}

fn parse_memory(text: &str) -> Result<u64, String> {
    let size = options::parse_size(text)?;
    let (min, max) = (guest::MEMORY_MIN, guest::MEMORY_MAX);
    if (min..=max).contains(&size) {
        Ok(size)
    } else {
        Err(format!("a guest has {} to {} MiB", min >> 20, max >> 20))
    }
}

/// Does what was asked for.
///
/// # Errors
/// With what failed and why. `run` ends the process itself, by the command's exit code.
pub fn run(kernel: Kernel) -> anyhow::Result<()> {
    match kernel {
        Kernel::Run(task) => {
            let code = match task.run(&mut std::io::stdout(), &mut std::io::stderr()) {
                Ok(Outcome::Exited(code)) => code,
                Ok(Outcome::TookTooLong(console)) => {
                    let seconds = Duration::from_nanos(task.timeout).as_secs_f64();
                    eprintln!("lab: the guest was ended after {seconds} s (--timeout); {console}");
                    EXIT_TIMEOUT
                }
                Err(error) => {
                    eprintln!("lab: {error:#}");
                    EXIT_FAILED
                }
            };
            std::process::exit(code)
        }
        Kernel::Wan(wan) => wan.run(),
        Kernel::Check(check) => check.run(),
        Kernel::Features { timeout } => {
            let task =
                Task { memory: 256 << 20, modules: Vec::new(), timeout, words: Vec::new(), script: None };
            writeln!(std::io::stdout(), "{}", features::ask(task)?).context("write to standard output")
        }
        Kernel::Install => install(),
        Kernel::Serve => guest::serve(),
    }
}

impl Wan {
    fn run(self) -> anyhow::Result<()> {
        wan::run(match self {
            Wan::Up { preset, change, name, mtu, no_proof } => wan::Wan::Up(wan::Up {
                carrier: Carrier::Kernel,
                name,
                mtu,
                seed: 0,
                no_proof,
                ..wan::Up::new(preset.as_deref(), change)
            }),
            Wan::Down { name } => wan::Wan::Down { name, all: false },
            Wan::List => wan::Wan::List,
        })
    }
}

impl Task {
    /// Runs it; what it says goes to `stdout` and `stderr` as it comes.
    ///
    /// # Errors
    /// If the guest does not come up, or ends before the command does.
    pub fn run(
        &self,
        stdout: &mut (dyn Write + Send),
        stderr: &mut (dyn Write + Send),
    ) -> anyhow::Result<Outcome> {
        let deadline = Instant::now() + Duration::from_nanos(self.timeout);
        let scratch = state::dir()?;
        let dir = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        let place = scratch.join("script").display().to_string();
        let (words, file) = match (&self.script, self.words.as_slice()) {
            (Some(text), _) => (vec!["sh".to_owned(), place], Some(text.clone())),
            (None, [word]) if std::path::Path::new(word).is_file() => {
                // It may lie where the guest has places of its own, and need not be executable by itself.
                let text =
                    std::fs::read_to_string(word).with_context(|| format!("read the script {word}"))?;
                (if text.starts_with("#!") { vec![place] } else { vec!["sh".to_owned(), place] }, Some(text))
            }
            (None, [line]) => (["sh", "-c", line].map(str::to_owned).to_vec(), None),
            (None, words) => (words.to_vec(), None),
        };
        let modules: String = self.modules.iter().map(|name| script::module(name)).collect();
        let (prelude, command) = (script::prelude(&scratch), script::command(&words, &dir));
        let init = format!("{prelude}{}{modules}{command}", script::AUTOLOAD);

        let (out, out_end) = std::io::pipe().context("make a pipe")?;
        let (err, err_end) = std::io::pipe().context("make a pipe")?;
        let (log, log_end) = std::io::pipe().context("make a pipe")?;
        for end in [&out_end, &err_end] {
            rustix::io::fcntl_setfd(end, rustix::io::FdFlags::empty()).context("hand on a descriptor")?;
        }
        let outputs = Some([out_end.as_raw_fd(), err_end.as_raw_fd()]);
        let mut guest = Guest::start(false, Stdio::from(log_end))?;
        drop((out_end, err_end));
        let name = format!("haul-lab-run-{}", std::process::id());
        let order = Order { name, memory: self.memory, init, script: file, outputs, ..Order::default() };
        let (said, log) = std::thread::scope(|scope| {
            let copy = |mut from: std::io::PipeReader, to: &mut (dyn Write + Send)| {
                // Who listened may have gone; the guest's lines are still to be read, or it would wait for
                // that.
                if std::io::copy(&mut from, to).and_then(|_| to.flush()).is_err() {
                    let _ = std::io::copy(&mut from, &mut std::io::sink());
                }
            };
            scope.spawn(move || copy(out, stdout));
            scope.spawn(move || copy(err, stderr));
            let log = scope.spawn(move || tail(log));
            let said = guest.boot(&order).and_then(|()| guest.hear(deadline));
            // Ends the guest, and so all that is copied.
            drop(guest);
            (said, log.join().unwrap_or_default())
        });
        match said {
            Err(error) => bail!("{error:#}; {}", guest::ended(&log)),
            Ok(None) => Ok(Outcome::TookTooLong(console(&log))),
            Ok(Some(line)) => match line.strip_prefix("exit ").and_then(|code| code.parse().ok()) {
                Some(code) => Ok(Outcome::Exited(code)),
                None => bail!("the guest could not run the command: {line}"),
            },
        }
    }
}

/// The last that comes; of a guest that talks without end, no more than this.
fn tail(mut from: impl std::io::Read) -> String {
    const KEPT: usize = 64 << 10;
    let (mut text, mut piece) = (Vec::new(), [0; 4096]);
    while let Ok(len @ 1..) = from.read(&mut piece) {
        text.extend_from_slice(&piece[..len]);
        text.drain(..text.len().saturating_sub(KEPT));
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn install() -> anyhow::Result<()> {
    let root = std::env::var_os("LAB_ROOT").map(PathBuf::from);
    let root = root.unwrap_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/..")));
    let program = root.join("scripts/needs.sh");
    let status = Command::new(&program).arg("kernel").status();
    let status = status.with_context(|| format!("run {}", program.display()))?;
    if !status.success() {
        bail!("{} kernel: {status}", program.display());
    }
    Ok(())
}
