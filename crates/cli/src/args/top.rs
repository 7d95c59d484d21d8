//! The command line of `haul top`.

use clap::Args as ClapArgs;

#[derive(ClapArgs, Debug)]
#[command(after_help = AFTER)]
pub struct Top {
    /// The copy that is meant: its PID or name, as `haul ctl list` shows them
    ///
    /// Default: the only one of this user that runs on this host; where there are several they are listed.
    #[arg(value_name = "JOB")]
    pub job: Option<String>,

    /// Print the table once
    ///
    /// Default: on a terminal it is drawn anew until the copy ends; elsewhere it is printed once.
    #[arg(long)]
    pub once: bool,

    /// Print JSON, one object a line: with --once one, else one a second until the copy ends
    #[arg(long)]
    pub json: bool,
}

const AFTER: &str = "\
queue: objects that wait; MiB now, at best: how long a request of 1 MiB takes; congested: it takes much longer than at best, \
and than at other targets; resting: congested, and not asked for a while; hung: nothing comes back. The unhealthy ones are \
shown first, then those with most to do.";
