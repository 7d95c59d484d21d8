//! The lab: long networks, storage targets, parallel file systems and peers, all on one Linux machine.
//!
//! Tooling around haul: it uses the built program, and nothing of its insides; `drive` alone is an
//! application over the API of volumes. What it starts it ends, by
//! process id; what it makes (namespaces, mounts, loop devices) it removes, also what an earlier run left
//! after a crash.

use clap::{Parser, Subcommand};

mod drive;
mod experiment;
mod host;
mod kernel;
mod peers;
mod pfs;
mod pid;
mod process;
mod targets;
mod wan;
mod workload;

/// A test bench for haul on one machine
#[derive(Parser)]
#[command(name = "lab", version, subcommand_required = true, arg_required_else_help = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(hide = true)]
    Drive(drive::Drive),
    #[command(subcommand)]
    Kernel(kernel::Kernel),
    #[command(subcommand)]
    Peers(peers::Peers),
    /// List the experiments: name, duration, title
    List,
    /// A real parallel file system: GlusterFS, MooseFS or CephFS
    #[command(subcommand)]
    Pfs(pfs::Pfs),
    Run(experiment::RunArgs),
    Targets(targets::TargetsArgs),
    /// A long network between two namespaces
    #[command(subcommand)]
    Wan(wan::Wan),
}

fn main() -> std::process::ExitCode {
    match run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        // In one line: a stack says nothing to whoever runs it, and would come with RUST_BACKTRACE.
        Err(error) => {
            eprintln!("lab: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    match Args::parse().command {
        Command::Drive(drive) => drive::run(&drive),
        Command::Kernel(kernel) => kernel::run(kernel),
        Command::Peers(peers) => peers::run(peers),
        Command::List => experiment::list(),
        Command::Pfs(pfs) => pfs::run(pfs),
        Command::Run(args) => experiment::run(&args),
        Command::Targets(args) => targets::run(args),
        Command::Wan(wan) => wan::run(wan),
    }
}
