//! What a server is told, and the limits that it has whatever it is told.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Most lines of a client that wait while a transfer runs. What it says beyond waits in its own socket.
pub const QUEUE_MAX: usize = 1_024;
/// Longest line before a login: `ADAT` with a chain of certificates.
pub const LINE_LEN_BEFORE_LOGIN: usize = 64 << 10;
/// Longest path that a client may name, bytes.
pub const PATH_LEN_MAX: usize = 4_096;
/// Most data connections of one transfer.
pub const CHANNELS_MAX: usize = 64;
/// Within this time from its first byte a client has logged in, or it is sent away.
pub const LOGIN_WITHIN: Duration = Duration::from_secs(60);
/// So long a client that has logged in may say nothing.
pub const IDLE_MAX: Duration = Duration::from_secs(600);
/// So long a client may take no byte of a reply.
pub const REPLY_WITHIN: Duration = Duration::from_secs(60);
/// So long a data connection may take to come.
pub const CONNECT_WITHIN: Duration = Duration::from_secs(30);
/// So long all data connections of a transfer may be silent together.
pub const STALL_MAX: Duration = Duration::from_secs(120);
/// Refused commands in a row before a client is sent away.
pub const REFUSED_MAX: u32 = 100;

/// Who a client without a login may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    Read,
    Write,
}

/// What a server is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Config {
    /// The directory that is served, as bytes.
    pub root: Vec<u8>,
    /// What anonymous clients may.
    pub anonymous: Access,
    /// Ports that data connections come to, both ends included; `None`: whatever the system gives.
    pub data_ports: Option<(u16, u16)>,
    /// Data connections may go to, and come from, other hosts than the client's.
    pub third_party: bool,
    /// Between two markers of an upload.
    pub marker_interval: Duration,
    /// Log lines are JSON.
    pub json_log: bool,
}

/// Who logged in, and as whom he is served.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Login {
    pub user: String,
    pub access: Access,
}

/// What the monitor tells a session first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Start {
    pub config: Config,
    pub peer: SocketAddr,
    /// This process may read and change no file: after a login it asks the monitor for one that may.
    pub before_login: bool,
    /// This process goes on where one before a login has ended.
    pub after: Option<Handed>,
}

/// What the monitor tells sessions when the server ends: none is to begin anything.
pub const STOP: &[u8] = b"stop\n";
/// The same when its patience is over: nothing is to go on. The first byte is in no other word.
pub const END_NOW: &[u8] = b"end\n";

/// What a process before a login hands to the one behind it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Handed {
    pub login: Login,
    /// What the client has said since.
    pub unread: Vec<u8>,
}

/// The same address however it came: IPv4 within IPv6 is IPv4.
pub fn plain_ip(address: SocketAddr) -> IpAddr {
    address.ip().to_canonical()
}
