//! A striped server of Globus whose front end and two data movers are three hosts, and a fourth one near by.
//!
//! On the loopback address its movers listen at all addresses and dial from whichever the system takes, so
//! that none is elsewhere. Here each is in a network namespace of its own, behind one bridge.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::ftpd::{GRIDFTP, escaped};
use super::netns::command_in;
use super::run::Haul;
use super::{Room, procs};

/// The near host, the front end, the movers.
const HOSTS: [&str; 4] = ["near", "front", "m1", "m2"];
const PORT: u16 = 5021;
const STARTED_WITHIN: Duration = Duration::from_secs(30);

/// See the module; all is ended on drop.
pub struct Striped {
    base: String,
    room: Room,
    daemons: Vec<Child>,
}

impl Striped {
    pub fn start() -> Striped {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // The name is one that `netns` sweeps.
        let base = format!("haul-{}-s{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut striped = Striped { base, room: Room::new(), daemons: Vec::new() };
        for host in HOSTS {
            ip(&["netns", "add", &striped.name(host)]);
            ip(&["-n", &striped.name(host), "link", "set", "lo", "up"]);
        }
        let near = striped.name("near");
        ip(&["-n", &near, "link", "add", "bridge", "type", "bridge"]);
        ip(&["-n", &near, "addr", "add", &address(0), "dev", "bridge"]);
        ip(&["-n", &near, "link", "set", "bridge", "up"]);
        for (n, host) in HOSTS.iter().enumerate().skip(1) {
            let name = striped.name(host);
            let pair = ["type", "veth", "peer", "name", "veth0", "netns", &name];
            ip(&[&["-n", &near, "link", "add", host], &pair[..]].concat());
            ip(&["-n", &near, "link", "set", host, "master", "bridge", "up"]);
            ip(&["-n", &name, "addr", "add", &address(n), "dev", "veth0"]);
            ip(&["-n", &name, "link", "set", "veth0", "up"]);
        }
        for (n, host) in HOSTS.iter().enumerate().skip(2) {
            striped.daemon(host, n, &["-dn", "-si"]);
        }
        let movers = format!("{}:{PORT},{}:{PORT}", bare(2), bare(3));
        striped.daemon("front", 1, &["-r", &movers]);
        striped
    }

    fn name(&self, host: &str) -> String {
        format!("{}-{host}", self.base)
    }

    fn daemon(&mut self, host: &str, n: usize, more: &[&str]) {
        // It must know every host by a name, and its own.
        let mut hosts = "127.0.0.1 localhost\n".to_owned();
        for (n, host) in HOSTS.iter().enumerate() {
            hosts += &format!("{} {host}\n", bare(n));
        }
        let own = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("the host's name");
        hosts += &format!("{} {own}", bare(n));
        let hosts = self.room.file(&format!("hosts-{host}"), hosts);
        let script = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
        let mut command = command_in(&self.name(host), "unshare".as_ref());
        command.args(["-m", "sh", "-c", script]).arg(hosts).args([GRIDFTP, "-c", "", "-aa"]);
        command.args(["-anonymous-user", "root", "-allow-root", "-allow-disabled-login"]);
        command.args(["-control-interface", &bare(n), "-data-interface", &bare(n), "-p", &PORT.to_string()]);
        command.args(["-l"]).arg(self.room.at(&format!("log-{host}"))).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.daemons.push(command.spawn().expect("start a server"));
        let listens = |name: &str| {
            let mut look = command_in(name, "ss".as_ref());
            let output = look.args(["-Hltn", &format!("sport = :{PORT}")]).output();
            output.is_ok_and(|output| !output.stdout.is_empty())
        };
        let name = self.name(host);
        assert!(procs::wait_until(STARTED_WITHIN, || listens(&name)), "{host} does not start");
    }

    /// `haul cp` at the near host.
    pub fn cp(&self) -> Haul {
        let net = format!("--net=/run/netns/{}", self.name("near"));
        Haul::cp(["-r", "-v"]).wrapped(["nsenter", net.as_str()])
    }

    pub fn url(&self, path: impl AsRef<std::ffi::OsStr>) -> String {
        format!("ftp://{}:{PORT}{}", bare(1), escaped(path))
    }

    /// Bytes that the front end and each mover have sent and received.
    pub fn carried(&self) -> [(u64, u64); 3] {
        ["front", "m1", "m2"].map(|host| {
            let read = |what: &str| {
                let file = format!("/sys/class/net/veth0/statistics/{what}_bytes");
                let output = command_in(&self.name(host), "unshare".as_ref())
                    .args(["-m", "sh", "-c", "mount -t sysfs none /sys && cat \"$0\"", &file])
                    .output();
                let text = String::from_utf8(output.expect("look at a device").stdout).expect("a number");
                text.trim().parse::<u64>().expect("a number")
            };
            (read("tx"), read("rx"))
        })
    }
}

impl Drop for Striped {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let all = procs::descendants(daemon.id());
            let _ = daemon.kill();
            procs::signal_all(&all, rustix::process::Signal::KILL);
            let _ = daemon.wait();
        }
        for host in HOSTS {
            let _ = Command::new("ip").args(["netns", "del", &self.name(host)]).status();
        }
    }
}

fn bare(n: usize) -> String {
    format!("10.79.2.{}", n + 1)
}

fn address(n: usize) -> String {
    bare(n) + "/24"
}

fn ip(args: &[&str]) {
    let output = Command::new("ip").args(args).output().expect("run ip");
    assert!(output.status.success(), "ip {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}
