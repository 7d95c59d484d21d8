//! `haul agent`: the far end of a copy. It speaks to the near end over stdin and stdout, so nothing else is printed.

use std::path::PathBuf;

/// `protocol`: only say which versions this program speaks; `channel`: only bring a channel to an agent.
pub fn run(protocol: bool, channel: bool) -> i32 {
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
    haul::api::agent(home, std::env::var("SSH_CONNECTION").ok(), &haul_probe::Here)
}
