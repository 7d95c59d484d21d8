//! `lab wan` as a program: real namespaces, real packets, and nothing left of them.
//!
//! In: the built program. Each test has a network of its own name, and removes it however it ends.
//! Times are compared one-sidedly where the machine can only be slower: a round trip is never shorter than
//! what was set, and its shortest of many is at most [`SLACK`] longer. What a test needs and the machine
//! lacks skips it, aloud; `HAUL_TEST_REQUIRE` and `HAUL_TEST_SKIPS` as in the other end-to-end tests.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

mod support;

use support::needs;

const SLACK: Duration = Duration::from_millis(5);

struct Network {
    name: String,
}

impl Network {
    /// A name of this test and this process; nothing is made yet.
    fn named(test: &str) -> Option<Network> {
        let here = rustix::process::geteuid().is_root()
            && Path::new("/dev/net/tun").exists()
            && Command::new("ip").arg("-V").output().is_ok();
        needs("netns", here).then(|| Network { name: format!("t{}-{test}", std::process::id()) })
    }

    fn up(&self, args: &[&str]) -> Value {
        let up = ["wan", "up", "--name", &self.name];
        let said = json(&lab(&[&up, args].concat()));
        assert_eq!(said["namespaces"][0], self.namespace("a"));
        said
    }

    fn set(&self, args: &[&str]) -> Value {
        json(&lab(&[&["wan", "set", &self.name], args].concat()))
    }

    fn stats(&self) -> Value {
        json(&lab(&["wan", "stats", &self.name]))
    }

    fn down(&self) -> Output {
        lab(&["wan", "down", &self.name])
    }

    fn namespace(&self, host: &str) -> String {
        format!("haul-lab-{}-{host}", self.name)
    }

    /// A socket on NIC `nic` of a host.
    fn socket(&self, host: &str, nic: usize) -> UdpSocket {
        let address = format!("10.77.{nic}.{}:0", if host == "a" { 1 } else { 2 });
        let namespace = PathBuf::from("/run/netns").join(self.namespace(host));
        let file = std::fs::File::open(namespace).expect("open the namespace");
        let made = std::thread::spawn(move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("enter it");
            UdpSocket::bind(address).expect("bind a socket")
        });
        let socket = made.join().expect("no panic");
        socket.set_read_timeout(Some(Duration::from_secs(2))).expect("set a timeout");
        socket
    }

    /// The shortest of some round trips over NIC `nic`, after one that wakes everything up.
    fn round_trip(&self, nic: usize) -> Duration {
        let (near, far) = (self.socket("a", nic), self.socket("b", nic));
        let target = far.local_addr().expect("it is bound");
        let once = || {
            let began = Instant::now();
            near.send_to(b"there", target).expect("send");
            let from: SocketAddr = receive(&far, &mut [0; 16]).expect("it arrives").1;
            far.send_to(b"back", from).expect("send back");
            receive(&near, &mut [0; 16]).expect("it comes back");
            began.elapsed()
        };
        once();
        (0..20).map(|_| once()).min().expect("20 of them")
    }

    fn assert_round_trip(&self, nic: usize, set: Duration) {
        let seen = self.round_trip(nic);
        assert!(seen >= set && seen <= set + SLACK, "{seen:?} seen, {set:?} set");
    }

    fn assert_nothing_left(&self) {
        let list = String::from_utf8(output("ip", &["netns", "list"]).stdout).expect("text");
        assert!(!list.contains(&self.name), "{list}");
        let links = String::from_utf8(output("ip", &["link"]).stdout).expect("text");
        assert!(!links.contains(" wan0"), "no device stands in our own namespace: {links}");
        let files: Vec<_> = std::fs::read_dir("/run/haul-lab")
            .expect("list the state")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("our names are text"))
            .filter(|file| file.contains(&self.name))
            .collect();
        assert_eq!(files, [""; 0]);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.down();
    }
}

/// Receives; a process that was stopped for a moment goes on waiting.
fn receive(socket: &UdpSocket, bytes: &mut [u8]) -> std::io::Result<(usize, SocketAddr)> {
    loop {
        match socket.recv_from(bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

fn lab(args: &[&str]) -> Output {
    output(env!("CARGO_BIN_EXE_lab"), args)
}

fn output(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// The one line of JSON that a successful command prints.
fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::str::from_utf8(&output.stdout).expect("text");
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(text).expect("JSON")
}

fn runs(pid: &Value) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A process that has ended may wait for its parent to look.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Goal: the round trip is the one that was set, never shorter, on every NIC; a change takes effect at once,
/// in the direction and on the NIC that was named.
/// Method: two NICs; UDP there and back, at first and after each change.
#[test]
fn wan_round_trip_is_what_was_set() {
    let Some(network) = Network::named("rtt") else { return };
    let said = network.up(&["--rtt", "30ms", "--rate", "1Gbit", "--nics", "2", "--no-proof"]);
    assert_eq!(said["addresses"], serde_json::json!(["10.77.0.1", "10.77.0.2"]));
    assert_eq!(said["nics"].as_array().map(Vec::len), Some(2));
    for nic in [0, 1] {
        network.assert_round_trip(nic, Duration::from_millis(30));
    }
    network.set(&["--rtt", "60ms"]);
    network.assert_round_trip(0, Duration::from_millis(60));
    network.set(&["--delay", "5ms", "--b-to-a", "--nic", "1"]);
    network.assert_round_trip(0, Duration::from_millis(60));
    network.assert_round_trip(1, Duration::from_millis(35));
}

/// Goal: of the packets that are sent, the share that was set is lost, and the counters say how many.
/// Method: 1 % from a to b; 5,000 datagrams, received into a buffer that holds them all.
#[test]
fn wan_loses_what_was_set() {
    let Some(network) = Network::named("loss") else { return };
    network.up(&["--rtt", "2ms", "--rate", "1Gbit", "--no-proof"]);
    network.set(&["--loss", "1%", "--a-to-b"]);
    let (near, far) = (network.socket("a", 0), network.socket("b", 0));
    rustix::net::sockopt::set_socket_recv_buffer_size(&far, 4 << 20).expect("a large buffer");
    let target = far.local_addr().expect("it is bound");
    for number in 0..5_000u32 {
        near.send_to(&number.to_le_bytes(), target).expect("send");
    }
    let mut last = None;
    let mut arrived = 0;
    let mut bytes = [0; 4];
    // Ends by the socket's timeout: what has not come by then does not come.
    while receive(&far, &mut bytes).is_ok() {
        arrived += 1;
        let number = u32::from_le_bytes(bytes);
        assert!(last < Some(number), "in order");
        last = Some(number);
    }
    let lost = 5_000 - arrived;
    assert!((25..=100).contains(&lost), "{lost} of 5000");
    assert_eq!(network.stats()["nics"][0]["a_to_b"]["counts"]["drops_loss"], lost);
}

/// Goal: a direction that is down carries nothing, and carries again when it is up.
/// Method: a datagram each before, while and after; the one in between is counted as lost.
#[test]
fn wan_direction_goes_down_and_up() {
    let Some(network) = Network::named("down") else { return };
    network.up(&["lan", "--no-proof"]);
    let (near, far) = (network.socket("a", 0), network.socket("b", 0));
    let target = far.local_addr().expect("it is bound");
    let send = |word: &[u8]| near.send_to(word, target).map(drop).expect("send");
    let mut bytes = [0; 16];
    let mut hear = || receive(&far, &mut bytes).map(|(len, _)| bytes[..len].to_vec());
    send(b"before");
    assert_eq!(hear().expect("it arrives"), b"before");
    network.set(&["--down", "--a-to-b"]);
    send(b"while");
    // The counters are asked for until the daemon has read the packet.
    while network.stats()["nics"][0]["a_to_b"]["counts"]["drops_down"] == 0 {}
    network.set(&["--up"]);
    send(b"after");
    assert_eq!(hear().expect("it arrives"), b"after");
}

/// Goal: `down` leaves nothing behind, whether the daemon runs or was killed; until then the name is taken,
/// and a stale network is listed as such and made anew.
/// Method: up, up again (refused), down; up, SIGKILL, up over it, SIGKILL, down; what is left is looked for.
#[test]
fn wan_down_leaves_nothing() {
    let Some(network) = Network::named("gone") else { return };
    let pid = network.up(&["lan", "--no-proof"])["pid"].clone();
    let again = lab(&["wan", "up", "lan", "--no-proof", "--name", &network.name]);
    assert!(!again.status.success() && String::from_utf8_lossy(&again.stderr).contains("is up"));
    assert!(runs(&pid));
    assert!(network.down().status.success());
    assert!(!runs(&pid));
    network.assert_nothing_left();

    for last in [false, true] {
        let pid = network.up(&["lan", "--no-proof"])["pid"].clone();
        network.assert_round_trip(0, Duration::from_micros(200));
        assert!(output("kill", &["-KILL", &pid.to_string()]).status.success());
        while runs(&pid) {}
        let list = json(&lab(&["wan", "list"]));
        let listed =
            list.as_array().expect("a list").iter().find(|entry| entry["name"] == network.name.as_str());
        assert_eq!(listed.expect("still written down")["stale"], true);
        let stats = lab(&["wan", "stats", &network.name]);
        assert!(String::from_utf8_lossy(&stats.stderr).contains("wan down"), "says what to do");
        if last {
            assert!(network.down().status.success());
            network.assert_nothing_left();
        }
    }
    assert!(network.down().status.success(), "nothing to do is no error");
}

/// Goal: a network that cannot be what it should be is refused with the figure, and leaves nothing behind.
/// Method: a path that loses everything, so that the proof fails, whatever the machine; an impossible one.
#[test]
fn wan_refuses_what_it_cannot_prove() {
    let Some(network) = Network::named("proof") else { return };
    if Command::new("ping").arg("-V").output().is_err() {
        return;
    }
    let up = lab(&["wan", "up", "lan", "--loss", "100%", "--name", &network.name]);
    assert_eq!(up.status.code(), Some(1));
    assert!(up.stdout.is_empty());
    assert!(String::from_utf8_lossy(&up.stderr).contains("no answer to ping"), "{up:?}");
    network.assert_nothing_left();
    let up = lab(&["wan", "up", "rtt-163ms", "--rate", "1Tbit", "--name", &network.name]);
    assert!(!up.status.success() && String::from_utf8_lossy(&up.stderr).contains("MiB"), "{up:?}");
}

/// Goal: the proof holds on a path that every machine can carry, and is part of what `up` says.
/// Method: 100 Mbit/s at 40 ms, with ping and iperf3.
#[test]
fn wan_proves_itself() {
    let Some(network) = Network::named("thin") else { return };
    if Command::new("ping").arg("-V").output().is_err() || Command::new("iperf3").arg("-v").output().is_err()
    {
        return;
    }
    let said = network.up(&["thin-100M"]);
    let rtt = said["proof"][0]["rtt_min_ms"].as_f64().expect("a figure");
    assert!((40.0 - 0.001..45.0).contains(&rtt), "{rtt}");
}
