//! `haul agent`: the far end of a copy, or of what starts a server of a volume. It speaks to the near end
//! over stdin and stdout, so nothing else is printed.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use haul_launch::{ErrandLine, Errands};

use super::serve::volume;

#[derive(Args, Debug)]
pub struct Agent {
    /// Say which protocol versions this program speaks, and end
    #[arg(long)]
    protocol: bool,
    /// Bring a further channel of an ssh connection to the agent that stdin names, and wait for its end
    #[arg(long, conflicts_with = "protocol")]
    channel: bool,
}

impl super::Run for Agent {
    fn run(&self) -> i32 {
        run(self.protocol, self.channel)
    }

    fn works(&self) -> bool {
        !self.protocol
    }
}

fn run(protocol: bool, channel: bool) -> i32 {
    if protocol {
        println!("{}", haul::api::protocol_line());
        return 0;
    }
    if channel {
        return haul::api::agent_channel();
    }
    haul::process::keep_secrets();
    // Without it the loss of ssh might cost more than it must, which is no reason not to start.
    let _ = crate::signals::outlive_hangup();
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let errands = Errands(Arc::new(|name: &str, line: &mut ErrandLine<'_>| match name {
        volume::ERRAND => volume::relay(line),
        _ => drop(line.refuse("this haul does not know what it is asked for")),
    }));
    haul::api::agent(home, std::env::var("SSH_CONNECTION").ok(), &haul_probe::Here, errands)
}
