//! What a probe of a network found.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use haul_transport::tcp::HostLimits;

/// The version of the JSON form.
pub const FORMAT: u32 = 1;
/// What the JSON form says it is, so that no other probe is taken for it.
pub const KIND: &str = "network";
/// Which way data goes between this host and the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// From here to the other, as in a push.
    #[default]
    To,
    /// From the other to here, as in a pull.
    From,
}

/// One way to use a network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Setting {
    /// Data connections, 1 to 64.
    pub streams: u16,
    /// Bytes under way that each connection's buffer holds; `None`: the kernel's own growth.
    pub window: Option<u64>,
    /// Congestion control; empty where the data has no connections of its own (through ssh).
    pub congestion: String,
}

/// What held the streams back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// Windows, or the buffers behind them.
    Window,
    /// The path: its rate, or losses.
    Path,
    /// The hosts: streams waited for data, or for the other end.
    Hosts,
}

impl Limit {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Limit::Window => "window",
            Limit::Path => "path",
            Limit::Hosts => "hosts",
        }
    }
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Streams, window and congestion control.
    #[serde(flatten)]
    pub setting: Setting,
    /// Payload that the other end received, checked and took, bytes per second.
    pub rate: f64,
    /// The same in bytes, and the time in which.
    pub bytes: u64,
    /// How long it took.
    pub seconds: f64,
    /// Bytes of the connections in that time: sent, and sent again.
    pub sent: u64,
    /// Of these, bytes that were sent again.
    pub resent: u64,
    /// Round trips as the kernel smooths them, all streams, seconds. 0: nobody could be asked.
    pub rtt_min: f64,
    /// The median of the same.
    pub rtt_median: f64,
    /// The 99th percentile of the same.
    pub rtt_p99: f64,
    /// User and system time of this process.
    pub cpu_seconds: f64,
    /// What held it back.
    pub limit: Limit,
    /// The rate still rose when there was no more time for it.
    pub rising: bool,
}

impl Point {
    /// Share of the bytes that were sent again, 0 to 1.
    pub fn loss(&self) -> f64 {
        self.resent as f64 / (self.sent.max(1)) as f64
    }
}

/// A setting that was not measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Streams, window and congestion control.
    #[serde(flatten)]
    pub setting: Setting,
    /// Why it was left out.
    pub why: String,
}

/// One end's limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Buffers, bytes.
    #[serde(flatten)]
    pub limits: HostLimits,
    /// Processors that haul may use there.
    pub cpus: u16,
}

/// A setting, and what it brought.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Streams, window and congestion control.
    #[serde(flatten)]
    pub setting: Setting,
    /// Bytes per second.
    pub rate: f64,
    /// Share of the bytes that were sent again, 0 to 1.
    pub loss: f64,
}

/// The one setting of a system that would help.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// What holds the streams, what to set where, and what it would bring.
    pub text: String,
}

/// All that a probe found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Network {
    /// [`FORMAT`](super::FORMAT) of the program that wrote it.
    pub format: u32,
    /// [`KIND`].
    pub kind: String,
    /// The program's version.
    pub haul: String,
    /// This host.
    pub host: String,
    /// Where the data went: to the other host, or from it.
    #[serde(default)]
    pub way: Way,
    /// The other as typed, and the address that was dialled; `None`: through ssh.
    pub to: String,
    /// The address that was dialled.
    pub address: Option<IpAddr>,
    /// Where the data went, in words, and what protected it: `tls` or `ssh`.
    pub path: String,
    /// What protected it.
    pub protect: String,
    /// Seconds since 1970.
    pub taken: u64,
    /// How long it took.
    pub seconds: f64,
    /// How long it took to join the two ends, seconds; `None`: an older haul measured.
    #[serde(default)]
    pub joined_in: Option<f64>,
    /// Payload that the other end took in all.
    pub bytes: u64,
    /// Round trips, seconds: the shortest, and median and 99th percentile under load. 0: nobody could be
    /// asked.
    pub rtt_min: f64,
    /// The median of the same.
    pub rtt_median: f64,
    /// The 99th percentile of the same.
    pub rtt_p99: f64,
    /// Share of all bytes that were sent again.
    pub loss: f64,
    /// Largest packet of the path, and payload of a segment, bytes; 0: not known.
    pub mtu: u32,
    /// Payload of a segment, bytes.
    pub mss: u32,
    /// By how many segments others were overtaken at most, and how often; 3 and 0: none.
    pub reordering: u32,
    /// How often that happened.
    pub reorderings: u64,
    /// The end that asked.
    pub near: End,
    /// `None`: it did not say.
    pub far: Option<End>,
    /// Every measurement.
    pub points: Vec<Point>,
    /// What was not measured.
    pub left_out: Vec<LeftOut>,
    /// The fastest setting, and the cheapest within a few percent of it.
    pub best: Option<Best>,
    /// The cheapest setting within a few percent of the best.
    pub recommended: Option<Best>,
    /// What limits the recommended setting, in words.
    pub limited_by: String,
    /// What would help, if anything.
    pub advice: Option<Advice>,
    /// Processor seconds per 1e9 bytes of payload, of the whole session; `None`: not known.
    pub cpu_near: Option<f64>,
    /// The same of the far end.
    pub cpu_far: Option<f64>,
    /// What was left out or did not work, in words.
    pub remarks: Vec<String>,
}
