//! How a far host is reached: what every command that has one takes.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::{Ports, SshCommand, parse_address, parse_ports, parse_ssh};

#[derive(ClapArgs, Debug)]
pub struct Far {
    /// Remote shell and its arguments, as one word: -e 'ssh -p 2222 -i key'
    ///
    /// Default: ssh, with your own configuration, keys and agent. Quotes work as in a shell, nothing is
    /// expanded.
    #[arg(short = 'e', long = "ssh", visible_alias = "rsh", value_name = "CMD", default_value = "ssh",
          hide_default_value = true, value_parser = parse_ssh)]
    pub ssh: SshCommand,

    /// Dial these addresses of the end that listens, each a path of its own
    ///
    /// Where nobody named the end that dials, the addresses of this host are those that it listens on itself, the others
    /// the far host's.
    /// Default: the one that ssh itself reached, for that one is known to be the right host; where other devices of both
    /// hosts reach each other too, these as well. The one that answers first carries control, IPv6 or IPv4.
    #[arg(long, value_name = "ADDR,...", value_delimiter = ',', value_parser = parse_address)]
    pub via: Vec<IpAddr>,

    /// Port or ports A-B that the end that listens may use
    ///
    /// Default: any free one.
    #[arg(long, value_name = "A-B", value_parser = parse_ports)]
    pub port: Option<Ports>,

    /// Never send the haul program itself to the far host
    ///
    /// Default: a far host without haul in its PATH gets this program into a private cache; one line says so.
    #[arg(long)]
    pub no_push: bool,

    /// Path of haul at the far host
    ///
    /// Default: the one in its PATH, else the pushed one.
    #[arg(long, value_name = "PATH")]
    pub remote_haul: Option<PathBuf>,
}
