//! Two network namespaces joined by a veth: two hosts on one machine.

use std::process::Command;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// The address of the near host.
pub const NEAR: &str = "10.79.0.1";
/// The address of the far host.
pub const FAR: &str = "10.79.0.2";
/// An IPv6 address of the far host to which likewise nothing arrives, and one that works.
pub const FAR6_BLOCKED: &str = "fd79::3";
pub const FAR6: &str = "fd79::2";
/// The second NIC's addresses, see [`NetnsPair::second_nic`].
pub const NEAR_SECOND: &str = "10.79.1.1";
pub const FAR_SECOND: &str = "10.79.1.2";
/// An address that the far host has too, to which nothing sent by the near host arrives: a firewall that
/// drops.
pub const FAR_BLOCKED: &str = "10.79.0.3";

/// Two namespaces, `near` and `far`; removed on drop. Addresses are the same in every pair: they cannot meet.
pub struct NetnsPair {
    pub near: String,
    pub far: String,
}

impl NetnsPair {
    pub fn new() -> NetnsPair {
        static SWEEP: Once = Once::new();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        SWEEP.call_once(remove_stale);
        let base = format!("haul-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let pair = NetnsPair { near: format!("{base}-near"), far: format!("{base}-far") };
        let (near, far) = (&pair.near, &pair.far);
        ip(&["netns", "add", near]);
        ip(&["netns", "add", far]);
        ip(&["-n", near, "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", far]);
        ip(&["-n", near, "addr", "add", &format!("{NEAR}/24"), "dev", "veth0"]);
        ip(&["-n", far, "addr", "add", &format!("{FAR}/24"), "dev", "veth0"]);
        ip(&["-n", far, "addr", "add", &format!("{FAR_BLOCKED}/24"), "dev", "veth0"]);
        for namespace in [near, far] {
            ip(&["-n", namespace, "link", "set", "lo", "up"]);
            ip(&["-n", namespace, "link", "set", "veth0", "up"]);
        }
        // Frames to an Ethernet address that nobody has are dropped by the far host without an answer.
        ip(&[
            "-n",
            near,
            "neigh",
            "add",
            FAR_BLOCKED,
            "lladdr",
            "02:00:00:00:00:99",
            "dev",
            "veth0",
            "nud",
            "permanent",
        ]);
        pair
    }

    /// Gives both hosts IPv6, with an address that works and one that swallows what is sent to it.
    pub fn ipv6(&self) {
        let add = |namespace: &str, address: &str| {
            ip(&["-n", namespace, "addr", "add", &format!("{address}/64"), "dev", "veth0", "nodad"]);
        };
        add(&self.near, "fd79::1");
        add(&self.far, FAR6);
        add(&self.far, FAR6_BLOCKED);
        let nobody = ["lladdr", "02:00:00:00:00:99", "dev", "veth0", "nud", "permanent"];
        ip(&[&["-n", &self.near, "-6", "neigh", "add", FAR6_BLOCKED], &nobody[..]].concat());
    }

    /// Gives each host a second NIC, joined to the other's by a cable of its own.
    pub fn second_nic(&self) {
        let (near, far) = (&self.near, &self.far);
        ip(&["-n", near, "link", "add", "veth1", "type", "veth", "peer", "name", "veth1", "netns", far]);
        for (namespace, address) in [(near, NEAR_SECOND), (far, FAR_SECOND)] {
            ip(&["-n", namespace, "addr", "add", &format!("{address}/24"), "dev", "veth1"]);
            ip(&["-n", namespace, "link", "set", "veth1", "up"]);
        }
    }

    /// Sets the near host's second NIC up or down.
    pub fn second(&self, up: bool) {
        ip(&["-n", &self.near, "link", "set", "veth1", if up { "up" } else { "down" }]);
    }

    /// Makes both NICs of both hosts so slow, as `tc` writes it: they limit a copy then, and not the
    /// processors.
    pub fn slow_nics(&self, rate: &str) {
        for (namespace, nic) in
            [&self.near, &self.far].into_iter().flat_map(|one| [(one, "veth0"), (one, "veth1")])
        {
            let words = ["netns", "exec", namespace, "tc", "qdisc", "add", "dev", nic, "root", "tbf"];
            ip(&[&words[..], &["rate", rate, "burst", "256kb", "latency", "50ms"]].concat());
        }
    }

    /// Bytes that a NIC of the near host has sent and received.
    pub fn carried(&self, nic: &str) -> u64 {
        let read = |what: &str| {
            let file = format!("/sys/class/net/{nic}/statistics/{what}_bytes");
            let output = Command::new("ip").args(["netns", "exec", &self.near, "cat", &file]).output();
            let text = String::from_utf8(output.expect("run ip").stdout).expect("a number");
            text.trim().parse::<u64>().expect("a number")
        };
        read("tx") + read("rx")
    }

    /// A firewall of one host that drops what comes for this port.
    pub fn close(&self, namespace: &str, port: u16) {
        let port = port.to_string();
        // Before the table of the host's own addresses, which else comes first of all.
        ip(&["-n", namespace, "rule", "add", "pref", "10", "lookup", "local"]);
        let drop =
            ["rule", "add", "pref", "5", "iif", "veth0", "ipproto", "tcp", "dport", &port, "blackhole"];
        ip(&[&["-n", namespace][..], &drop].concat());
        ip(&["-n", namespace, "rule", "del", "pref", "0"]);
    }

    /// Takes the cable out (or puts it back) at the far host.
    pub fn cable(&self, plugged: bool) {
        ip(&["-n", &self.far, "link", "set", "veth0", if plugged { "up" } else { "down" }]);
    }
}

impl Drop for NetnsPair {
    fn drop(&mut self) {
        for namespace in [&self.near, &self.far] {
            let _ = Command::new("ip").args(["netns", "del", namespace]).status();
        }
    }
}

/// The command `program`, to be run in `namespace`. The process keeps its id: nsenter becomes the program.
pub fn command_in(namespace: &str, program: &std::ffi::OsStr) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{namespace}")).arg(program);
    command
}

/// Removes namespaces of test processes that died without doing so.
fn remove_stale() {
    let Ok(dir) = std::fs::read_dir("/run/netns") else {
        return;
    };
    for name in dir.filter_map(|entry| entry.ok()?.file_name().into_string().ok()) {
        let owner = name.strip_prefix("haul-").and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = Command::new("ip").args(["netns", "del", &name]).status();
        }
    }
}

fn ip(args: &[&str]) {
    let output = Command::new("ip").args(args).output().expect("run ip");
    assert!(output.status.success(), "ip {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}
