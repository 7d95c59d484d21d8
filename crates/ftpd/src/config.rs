//! What a server is told, and the limits that it has whatever it is told.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use data_encoding::BASE64;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::{Zeroize as _, Zeroizing};

/// Most lines of a client that wait while a transfer runs. What it says beyond waits in its own socket.
pub const QUEUE_MAX: usize = 1_024;
/// Longest line before a login: `ADAT` with a chain of certificates.
pub const LINE_LEN_BEFORE_LOGIN: usize = 64 << 10;
/// Longest path that a client may name, bytes.
pub const PATH_LEN_MAX: usize = 4_096;
/// Most data connections of one transfer.
pub const CHANNELS_MAX: usize = 64;
/// Contexts of GSI that a client may begin before it is sent away.
pub const CONTEXTS_MAX: u32 = 4;
/// Most sessions in which nobody has logged in yet. They have no part in the number of sessions.
pub const STRANGERS_MAX: usize = 96;
/// One that came with the most of them is left alone for so long where another one of its host wants its
/// place: a flood starts no more processes than that.
pub const STRANGER_STAYS: Duration = Duration::from_secs(1);
/// Logins that a session may ask the monitor for.
pub const CLAIMS_MAX: u32 = 8;
/// So long the monitor may take to say who somebody is here: it looks users up.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// So long a data connection may take to show whose it is.
pub const SHOWN_WITHIN: Duration = Duration::from_secs(15);
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
/// Refused commands in a row before a client is sent away; that a file is not there is no refusal.
pub const REFUSED_MAX: u32 = 100;

/// Who a client without a login may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    Read,
    Write,
}

/// Bytes that are in no `Debug`, and are wiped when they are dropped; base64 in what monitor and sessions say
/// to each other.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Secret {
    /// They are the caller's to wipe.
    pub fn into_bytes(mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&Zeroizing::new(BASE64.encode(&self.0)))
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Secret, D::Error> {
        let text = Zeroizing::new(String::deserialize(deserializer)?);
        BASE64.decode(text.as_bytes()).map(Secret).map_err(D::Error::custom)
    }
}

/// A key, and the certificates behind it.
pub type Parts = Vec<Secret>;
/// Sessions of TLS that a client can go on with: what it calls each, and its secrets.
pub type Known = Vec<(Secret, Secret)>;

/// A volume, as whoever serves it knows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Volume {
    pub name: String,
    /// The directory of the user's that has the access to it.
    pub state: PathBuf,
}

/// What a server is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Config {
    /// The directory that is served, as bytes; of a volume the path in it.
    pub root: Vec<u8>,
    /// The volume that is served; `None`: a directory of this host is.
    pub volume: Option<Volume>,
    /// What anonymous clients may; `None`: nobody is anonymous.
    pub anonymous: Option<Access>,
    /// Where the authorities of a grid are, whose people come by GSI; `None`: none do.
    pub authorities: Option<PathBuf>,
    /// Who is not known may come under TLS.
    pub tls: bool,
    /// And must, with all that is moved.
    pub tls_required: bool,
    /// Data connections under TLS need not go on with the session of the control connection.
    pub tls_any_data: bool,
    /// Ports that data connections come to, both ends included; `None`: whatever the system gives.
    pub data_ports: Option<(u16, u16)>,
    /// Data connections may go to, and come from, other hosts than the client's.
    pub third_party: bool,
    /// So long somebody may take to log in: [`LOGIN_WITHIN`].
    pub login_within: Duration,
    /// Between two markers of an upload.
    pub marker_interval: Duration,
    /// Log lines are JSON.
    pub json_log: bool,
    /// Data nodes that see the same files.
    pub nodes: Vec<SocketAddr>,
    /// This is such a node: it serves front ends that hold the key, and nobody else.
    pub is_node: bool,
}

/// Who logged in, and as whom he is served.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Login {
    pub user: String,
    pub access: Access,
    /// The name of his certificate.
    pub identity: Option<String>,
}

impl Login {
    pub fn anonymous(access: Access) -> Login {
        Login { user: "anonymous".into(), access, identity: None }
    }
}

/// What the monitor tells a session first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Start {
    pub config: Config,
    pub peer: SocketAddr,
    /// The address that the client reached.
    pub local: SocketAddr,
    /// Whom this process must be.
    pub uid: u32,
    /// This process may read and change no file: after a login it asks the monitor for one that may.
    pub before_login: bool,
    /// As whom this host comes; told to who talks before a login, and to nobody else.
    pub host: Option<Parts>,
    /// As whom it comes under TLS; told to who may be asked for it, and to who moves data of a login under
    /// it.
    pub tls: Option<Parts>,
    /// What front end and nodes know each other by; told to who uses it, and to nobody before a login.
    pub node_key: Option<Secret>,
    /// This process goes on where one before a login has ended.
    pub after: Option<Handed>,
}

/// What the monitor tells sessions when the server ends: none is to begin anything.
pub const STOP: &[u8] = b"stop\n";
/// The same when its patience is over: nothing is to go on. The first byte is in no other word.
pub const END_NOW: &[u8] = b"end\n";

/// What a session tells the monitor when a client has said its first word.
pub const SPOKE: &[u8] = b"spoke\n";

/// What is agreed of data connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreed {
    /// `PBSZ` was said.
    pub sized: bool,
    /// `PROT` S or P.
    pub private: bool,
}

/// What goes from a process before a login, by way of the monitor, to the one behind it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Passed {
    /// What the client has said since.
    pub unread: Secret,
    /// What the client delegated.
    pub delegated: Option<Parts>,
    pub agreed: Agreed,
    /// It comes under TLS, and can go on with these sessions.
    pub tls: Option<Known>,
    /// The process before the login stays, and protects what is said.
    pub relayed: bool,
}

/// What the process behind a login goes on from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Handed {
    pub login: Login,
    pub with: Passed,
}

/// Who wants to log in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Who {
    Anonymous,
    /// Who showed a certificate of this name (as it is encoded), and as which user he wants to come.
    Shown {
        name: Secret,
        user: Option<String>,
    },
}

/// What a process before a login asks the monitor. One that stays is answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Claim {
    pub who: Who,
    pub with: Passed,
}

/// What it is answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// In words.
    Refused(String),
    /// There are too many sessions, in words.
    Full(String),
    /// It is served by the same process.
    Go(Login),
    /// Another process serves; with this comes the connection to it.
    Follows,
}

/// The same address however it came: IPv4 within IPv6 is IPv4.
pub fn plain_ip(address: SocketAddr) -> IpAddr {
    address.ip().to_canonical()
}
