//! A guest: User-Mode Linux as processes of ours, in namespaces of their own, with this machine's files
//! read-only.
//!
//! In: a script that is the guest's init, memory, network devices. Out: the lines that the script says on its
//! control line, and a guest that is gone when its first process is. Three processes stand in a row: `lab`,
//! which asks; `unshare`, which makes the namespaces; `lab kernel serve`, the first process of the new
//! process namespace, which starts the kernel. The kernel of this machine ends everything in that namespace
//! with it, so that killing one process is enough. It also ends when the one who asked is gone, unless it was
//! told to stay.
//! Invariants: before the guest starts, every mount that it can reach is read-only for it, whatever it does
//! with its own; all that it writes (memory, scratch files) is in a tmpfs that vanishes with the namespace.

use std::fs;
use std::io::{BufRead as _, BufReader, PipeReader, PipeWriter, Read as _, Write as _, pipe};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

use anyhow::{Context as _, bail};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use serde::{Deserialize, Serialize};

use crate::pid::Process;
use crate::wan::state;
use crate::wan::tun;

const PROGRAM: &str = "linux.uml";
/// Least memory that the kernel boots with, and most that is sensible here.
pub const MEMORY_MIN: u64 = 64 << 20;
pub const MEMORY_MAX: u64 = 16 << 30;
/// Beside the guest's memory in the tmpfs: the scripts.
const SCRATCH_SIZE: u64 = 16 << 20;
/// Longest line that a guest may say to us.
const LINE_MAX: u64 = 64 << 10;
/// What of the guest's console goes into an error.
const CONSOLE_MAX: usize = 2_000;
/// Where the files of a guest that stays are: programs, modules, devices, the names of namespaces.
const NEEDED: [&str; 10] =
    ["/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/dev", "/proc", "/sys", "/run/netns"];
/// What a guest's kernel cannot do where the processor has AMX.
pub const TOO_MANY_REGISTERS: &str =
    "cannot keep all registers of this processor (AMX): use a machine without";
/// The kernel says this of every boot; the rest is worth telling.
const CONSOLE_USUAL: [&str; 3] = ["SELinux:", "mmapper_init", "Failed to initialize ubd device"];

/// What a guest is to be.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Order {
    /// As its processes are called, for those who look for them.
    pub name: String,
    pub memory: u64,
    /// A shell script, the guest's first process. `/dev/ttyS2` is its control line.
    pub init: String,
    /// A file `script` beside `init`.
    pub script: Option<String>,
    /// Descriptors behind `/dev/ttyS0` and `/dev/ttyS1`.
    pub outputs: Option<[i32; 2]>,
    /// A network device of the guest each: the namespace that its other end goes to, and its name there.
    pub taps: Vec<[String; 2]>,
    /// It goes on when the one who started it is gone.
    pub stays: bool,
}

/// A guest that was started.
pub struct Guest {
    child: Child,
    /// Its first process: ends as the last of all, and ends all.
    pub process: Process,
    order: Option<ChildStdin>,
    lines: Receiver<String>,
}

/// What is missing on this machine; empty if a guest can be started.
pub fn missing() -> Vec<&'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = |program: &str| {
        std::env::split_paths(&path)
            .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
            .any(|dir| dir.join(program).exists())
    };
    let packages =
        [(PROGRAM, "user-mode-linux"), ("modprobe", "kmod"), ("ethtool", "ethtool"), ("ip", "iproute2")];
    packages.into_iter().filter(|(program, _)| !found(program)).map(|(_, package)| package).collect()
}

impl Guest {
    /// Starts the processes; the guest itself starts by [`Guest::boot`]. In between it can be written down.
    ///
    /// # Errors
    /// If this machine lacks what it needs, or its namespaces cannot be made.
    pub fn start(stays: bool, log: Stdio) -> anyhow::Result<Guest> {
        let missing = missing();
        if !missing.is_empty() {
            bail!(
                "Debian's packages {} are missing; install them by `lab kernel install`",
                missing.join(", ")
            );
        }
        if !rustix::process::geteuid().is_root() {
            bail!("a guest gets namespaces of its own: this must be run as root");
        }
        // The directory that the scratch is mounted on, for the guest only.
        state::dir()?;
        let program = std::env::current_exe().context("find the own program")?;
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "--propagation",
            "slave",
            "--net",
            "--pid",
            "--fork",
            "--kill-child=KILL",
            "--",
        ]);
        command.arg(program).args(["kernel", "serve"]).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        if stays {
            // Signals of the terminal are for those who are still connected to it.
            command.process_group(0);
        }
        let mut child = command.spawn().context("run unshare (package util-linux)")?;
        let order = child.stdin.take();
        let mut said = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut line = String::new();
        let pid = said.read_line(&mut line).ok().and_then(|_| line.trim().strip_prefix("pid ")?.parse().ok());
        let Some(pid) = pid else {
            let _ = child.wait();
            bail!("the guest's namespaces could not be made");
        };
        let process = Process::of(pid)?;
        let (sender, lines) = channel();
        std::thread::spawn(move || forward(said, |line| sender.send(line).is_ok()));
        Ok(Guest { child, process, order, lines })
    }

    /// Has the kernel start.
    pub fn boot(&mut self, order: &Order) -> anyhow::Result<()> {
        let input = self.order.as_mut().expect("only a guest that is left has none");
        let line = serde_json::to_string(order)?;
        writeln!(input, "{line}").context("tell the guest what to do")
    }

    /// The next line that the guest says; none if it says nothing until `deadline`.
    ///
    /// # Errors
    /// If it has ended.
    pub fn hear(&self, deadline: Instant) -> anyhow::Result<Option<String>> {
        match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("the guest has ended before its time"),
        }
    }

    /// Leaves a guest that stays to itself.
    pub fn leave(mut self) {
        self.order = None;
        // `Drop` would end it.
        std::mem::forget(self);
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Err(error) = self.process.kill() {
            eprintln!("lab: {error:#}");
        }
        let _ = self.child.wait();
    }
}

/// The last that a guest's console said, without what it always says.
pub fn console(log: &str) -> String {
    let lines: Vec<_> = log
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !CONSOLE_USUAL.iter().any(|usual| line.starts_with(usual)))
        .collect();
    let text = lines.join("; ");
    let start = text.char_indices().rev().nth(CONSOLE_MAX).map_or(0, |(index, _)| index);
    text[start..].to_owned()
}

/// Why a guest ended before its time, if its console says something that is known; else what that said last.
pub fn ended(log: &str) -> String {
    // Before 6.14 a kernel in user mode keeps a fixed room for a process's registers; AMX needs more, and the
    // host refuses a part of them.
    match log.contains("put_fp_registers") {
        true => format!("this kernel in user mode {TOO_MANY_REGISTERS}; {}", console(log)),
        false => console(log),
    }
}

/// Hands on lines until there are none, or `take` has enough.
fn forward(mut from: impl std::io::BufRead, mut take: impl FnMut(String) -> bool) {
    let mut line = String::new();
    while from.by_ref().take(LINE_MAX).read_line(&mut line).is_ok_and(|len| len > 0) {
        let text = line.trim();
        if !text.is_empty() && !take(text.to_owned()) {
            return;
        }
        line.clear();
    }
}

/// The first process of the guest's namespaces: hides this machine's files from writing, starts the kernel,
/// hands on what its script says.
///
/// # Errors
/// If the kernel cannot be started, or has ended.
pub fn serve() -> anyhow::Result<()> {
    // `/proc` is still that of the namespace outside, and so are the numbers in it.
    let outside = fs::read_link("/proc/self").context("read /proc/self")?;
    say(&format!("pid {}", outside.display()));
    let mut input = BufReader::new(std::io::stdin());
    let mut line = String::new();
    if input.read_line(&mut line).context("hear what to do")? == 0 {
        return Ok(());
    }
    let order: Order = serde_json::from_str(&line).context("hear what to do")?;
    if order.stays {
        rustix::process::setsid().context("leave the session")?;
    } else {
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut input, &mut std::io::sink());
            std::process::exit(1);
        });
    }
    let scratch = state::dir()?;
    if order.stays {
        release()?;
    }
    shield(&scratch, order.memory)?;
    let write = |name: &str, text: &str| {
        let path = scratch.join(name);
        fs::write(&path, text).with_context(|| format!("write {name}"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).context("make a script executable")
    };
    write("init", &order.init)?;
    write("script", order.script.as_deref().unwrap_or_default())?;

    let (from_guest, their_output) = pipe().context("make a pipe")?;
    let (their_input, mut to_guest) = pipe().context("make a pipe")?;
    let mut kernel = spawn(&order, &scratch, their_input, their_output)?;
    forward(BufReader::new(from_guest), |line| {
        if line == "taps" {
            match connect(&order.taps) {
                Ok(()) => drop(writeln!(to_guest, "go")),
                Err(error) => say(&format!("failed {error:#}").replace('\n', " ")),
            }
        } else {
            say(&line);
            if order.stays && line == "ready" {
                silence();
            }
        }
        true
    });
    let status = kernel.wait().context("wait for the kernel")?;
    bail!("the guest's kernel has ended: {status}")
}

/// Whoever listened may have gone.
fn say(line: &str) {
    let mut stdout = std::io::stdout();
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

fn silence() {
    if let Ok(null) = fs::File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

fn spawn(order: &Order, scratch: &Path, input: PipeReader, output: PipeWriter) -> anyhow::Result<Child> {
    let [input, output] = [OwnedFd::from(input), OwnedFd::from(output)];
    for fd in [&input, &output] {
        rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty()).context("hand on a descriptor")?;
    }
    if order.stays {
        // Packets are less late; without the right to it it goes on.
        let _ = tun::prefer_this_thread();
    }
    let place = scratch.display();
    let mut command = Command::new(PROGRAM);
    command.args([format!("mem={}K", order.memory >> 10), format!("umid={}", order.name)]);
    command.args([format!("uml_dir={place}/"), format!("init={place}/init")]);
    // `panic`: a guest whose script has failed ends instead of waiting for somebody to look.
    command.args(["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "panic=1", "quiet"]);
    command.args(["con=null", "con0=null,fd:2"]);
    if let Some([stdout, stderr]) = order.outputs {
        command.args([format!("ssl0=null,fd:{stdout}"), format!("ssl1=null,fd:{stderr}")]);
    }
    command.arg(format!("ssl2=fd:{},fd:{}", input.as_raw_fd(), output.as_raw_fd()));
    for nic in 0..order.taps.len() {
        command.arg(format!("vec{nic}:transport=tap,ifname=tap{nic},depth=128,gro=1"));
    }
    command.env("TMPDIR", scratch).stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().with_context(|| format!("run {PROGRAM} (package user-mode-linux)"))
}

/// Moves the devices that the guest has opened to where its neighbours are. The guest keeps them by their
/// descriptors.
fn connect(taps: &[[String; 2]]) -> anyhow::Result<()> {
    for (nic, [namespace, device]) in taps.iter().enumerate() {
        crate::wan::netns::ip(&["link", "set", &format!("tap{nic}"), "netns", namespace, "name", device])?;
        crate::wan::netns::ip(&["-n", namespace, "link", "set", device, "up"])?;
    }
    Ok(())
}

/// Lets go of the mounts that a guest does not need: one that stays would keep a file system busy that others
/// unmount.
fn release() -> anyhow::Result<()> {
    let table = fs::read_to_string("/proc/self/mountinfo").context("read /proc/self/mountinfo")?;
    // What is mounted on something comes after it.
    for line in table.lines().rev() {
        let Some((point, _)) = parse_mount(line) else { continue };
        let whole = ["/", "/run"].iter().any(|place| point == Path::new(place));
        if whole || NEEDED.iter().any(|place| point.starts_with(place)) {
            continue;
        }
        // One that is gone, or below something else, is no concern.
        let _ = unmount(&point, UnmountFlags::DETACH);
    }
    Ok(())
}

/// Makes every mount of this namespace read-only, and `scratch` an empty place in memory.
fn shield(scratch: &Path, memory: u64) -> anyhow::Result<()> {
    let table = fs::read_to_string("/proc/self/mountinfo").context("read /proc/self/mountinfo")?;
    for line in table.lines() {
        let Some((point, flags)) = parse_mount(line) else { continue };
        match mount_remount(&point, flags | MountFlags::BIND | MountFlags::RDONLY, "") {
            Ok(()) => {}
            // Not there any more, or below something else: the guest does not reach it either.
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::INVAL | rustix::io::Errno::NOTDIR) => {}
            Err(error) => {
                return Err(error).with_context(|| format!("make {} read-only", point.display()));
            }
        }
    }
    let options = std::ffi::CString::new(format!("mode=0700,size={}", memory + SCRATCH_SIZE))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("haul-lab", scratch, "tmpfs", flags, options.as_c_str())
        .with_context(|| format!("mount a tmpfs on {}", scratch.display()))
}

/// Mount point, and those flags that a remount would lose; none for the names of namespaces.
///
/// `36 35 98:0 /root /mount\040point rw,noatime shared:1 - ext3 /dev/root rw,errors=continue`
fn parse_mount(line: &str) -> Option<(PathBuf, MountFlags)> {
    let mut fields = line.split(' ').skip(4);
    let (point, options) = (fields.next()?, fields.next()?);
    let kind = fields.skip_while(|field| *field != "-").nth(1)?;
    if kind == "nsfs" {
        return None;
    }
    let flags = options.split(',').map(|option| match option {
        "nosuid" => MountFlags::NOSUID,
        "nodev" => MountFlags::NODEV,
        "noexec" => MountFlags::NOEXEC,
        "noatime" => MountFlags::NOATIME,
        "nodiratime" => MountFlags::NODIRATIME,
        "relatime" => MountFlags::RELATIME,
        _ => MountFlags::empty(),
    });
    Some((unescape(point), flags.fold(MountFlags::empty(), |all, flag| all | flag)))
}

/// `\040` and its like are bytes in octal.
fn unescape(text: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt as _;
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = after.get(..3).and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(byte) if first == b'\\' => {
                bytes.push(byte);
                rest = &after[3..];
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no mount is overlooked for its name, and none loses its protection.
    /// Method: lines as the kernel writes them.
    #[test]
    fn kernel_mounts_are_understood() {
        let line = r"36 35 98:0 /r /a\040b\134 rw,nosuid,noexec,relatime master:1 - ext4 /dev/root rw";
        let flags = MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::RELATIME;
        assert_eq!(parse_mount(line), Some((PathBuf::from(r"/a b\"), flags)));
        let line = "37 35 98:0 / / rw - overlay overlay rw";
        assert_eq!(parse_mount(line), Some((PathBuf::from("/"), MountFlags::empty())));
        assert_eq!(parse_mount("40 35 0:4 net:[4026532] /run/netns/x rw shared:2 - nsfs nsfs rw"), None);
    }

    /// Goal: what a guest's console always says hides nothing, and what it says is bounded.
    /// Method: a boot with a panic; a console that talks for long.
    #[test]
    fn kernel_console_is_told_in_short() {
        let log = "SELinux:  x\nmmapper_init - find_iomem failed\n\nKernel panic - not syncing\n";
        assert_eq!(console(log), "Kernel panic - not syncing");
        assert_eq!(ended(log), console(log));
        assert!(ended("[<6004b1ca>] ? put_fp_registers+0x10/0x12").contains(TOO_MANY_REGISTERS));
        assert!(console(&"ä".repeat(10_000)).chars().count() <= CONSOLE_MAX + 1);
    }
}
