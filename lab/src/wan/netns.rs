//! Two network namespaces, their devices, addresses and sysctls.
//!
//! In: names. Out: namespaces below `/run/netns`, as `ip netns` makes them, with `wan0`, `wan1`, ... in each.
//! Invariant: no device ever stands in the namespace of the caller; each is made where it belongs.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, anyhow, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Packets that a device holds for the daemon; with the default of 500 bursts are dropped unseen.
const TX_QUEUE_LEN: u32 = 20_000;
/// Lower bound of the windows, so that a short path is not limited by them.
const WINDOW_MIN: u64 = 4 << 20;
/// `tcp_rmem` and `tcp_wmem` of a stock kernel.
pub const STOCK: [&str; 2] = ["4096 131072 6291456", "4096 16384 4194304"];
/// `tcp_rmem` is a signed 32-bit number.
const WINDOW_MAX: u64 = i32::MAX as u64;

/// Name of NIC `nic`'s device, in both namespaces.
pub fn device(nic: usize) -> String {
    format!("wan{nic}")
}

/// Addresses of NIC `nic` at host `host` (0 is a, 1 is b): IPv4 and IPv6.
pub fn addresses(nic: usize, host: usize) -> [String; 2] {
    [format!("10.77.{nic}.{}", host + 1), format!("fd77:{nic}::{}", host + 1)]
}

/// Makes an empty namespace with its loopback up.
pub fn make(namespace: &str) -> anyhow::Result<()> {
    ip(&["netns", "add", namespace])?;
    ip(&["-n", namespace, "link", "set", "lo", "up"])
}

/// Whether there is such a namespace.
pub fn exists(namespace: &str) -> bool {
    path(namespace).exists()
}

/// Removes a namespace's name; the kernel removes the rest when the last process in it has ended.
///
/// Edge: one that is not there is no error.
pub fn remove(namespace: &str) -> anyhow::Result<()> {
    if exists(namespace) { ip(&["netns", "del", namespace]) } else { Ok(()) }
}

/// Processes that run in a namespace.
pub fn processes(namespace: &str) -> Vec<u32> {
    let listed = Command::new("ip").args(["netns", "pids", namespace]).output();
    let listed =
        listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    listed.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Gives the devices at one host their addresses, and the host its TCP `windows` (`tcp_rmem`, `tcp_wmem`) and
/// congestion control, if that is named.
pub fn configure(
    namespace: &str,
    host: usize,
    nics: usize,
    mtu: u32,
    windows: &[String; 2],
    congestion: Option<&str>,
) -> anyhow::Result<()> {
    let mut batch = String::new();
    for nic in 0..nics {
        let device = device(nic);
        let [v4, v6] = addresses(nic, host);
        batch += &format!(
            "link set {device} mtu {mtu} txqueuelen {TX_QUEUE_LEN} up\n\
             addr add {v4}/24 dev {device}\n\
             addr add {v6}/64 dev {device} nodad\n"
        );
    }
    let mut child = Command::new("ip")
        .args(["-n", namespace, "-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("run ip (package iproute2)")?;
    let mut input = child.stdin.take().expect("stdin is piped");
    input.write_all(batch.as_bytes()).context("write to ip")?;
    drop(input);
    succeeded("ip -batch", &child.wait_with_output().context("wait for ip")?)?;
    inside(namespace, || tune(windows, congestion))?
}

/// Windows of up to `window` bytes.
pub fn windows_of(window: u64) -> [String; 2] {
    let window = window.clamp(WINDOW_MIN, WINDOW_MAX);
    [format!("4096 1048576 {window}"), format!("4096 1048576 {window}")]
}

fn tune(windows: &[String; 2], congestion: Option<&str>) -> anyhow::Result<()> {
    let set = |key: &str, value: &str| {
        let path = Path::new("/proc/sys/net/ipv4").join(key);
        fs::write(&path, value).with_context(|| format!("write {value} to {}", path.display()))
    };
    set("tcp_rmem", &windows[0])?;
    set("tcp_wmem", &windows[1])?;
    if let Some(name) = congestion {
        set("tcp_congestion_control", name)?;
    }
    // What one run has learnt of the path must not help or hurt the next.
    set("tcp_no_metrics_save", "1")
}

/// Runs `work` on a thread of its own inside a namespace; processes that it starts are inside as well.
///
/// # Errors
/// If there is no such namespace, or it may not be entered.
pub fn inside<T: Send>(namespace: &str, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
    let path = path(namespace);
    let file = fs::File::open(&path).with_context(|| format!("open {}", path.display()))?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            use std::os::fd::AsFd as _;
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .with_context(|| format!("enter {}", path.display()))?;
            Ok(work())
        });
        thread.join().map_err(|_| anyhow!("a thread in {namespace} panicked"))?
    })
}

fn path(namespace: &str) -> PathBuf {
    Path::new("/run/netns").join(namespace)
}

/// Runs `ip`.
pub fn ip(args: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("ip").args(args).output().context("run ip (package iproute2)")?;
    succeeded(&format!("ip {}", args.join(" ")), &output)
}

fn succeeded(what: &str, output: &Output) -> anyhow::Result<()> {
    if !output.status.success() {
        bail!("{what}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
