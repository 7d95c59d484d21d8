//! Programs: waited for within a limit, and ended with all that they started.
//!
//! In: a command. Out: what it said, or an error with its last words.
//! Invariants: what is started here leads a process group, and carries a mark in its environment (`HAUL_LAB`)
//! that its children inherit; by group, by parent or by mark all of them are found. A signal goes only to a
//! process that has been looked at after its descriptor was opened. Nothing waits without a limit, and all
//! waits end early when the lab itself is asked to end, so that whoever made something removes it.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};

/// Environment variable that marks what belongs to a bench.
pub const MARK: &str = "HAUL_LAB";
/// What is kept of a program's output, from its end.
const OUTPUT_MAX: usize = 4 << 20;
/// How long the rest of it may take to arrive when the program has ended.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(1);
/// Lines of its errors that an error repeats.
const LAST_LINES: usize = 8;
/// How long a server may take until it listens.
const START_PATIENCE: Duration = Duration::from_secs(20);
/// How long processes may take to go after SIGKILL; one that hangs in the kernel does not.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait between two looks at whether the lab is to end.
const LOOK: Duration = Duration::from_millis(100);
/// Between two looks at something that tells nobody when it changes.
const STEP: Duration = Duration::from_millis(5);

/// A program took longer than it was given, and was ended.
#[derive(Debug)]
pub struct OverLimit(pub Duration);

impl fmt::Display for OverLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "over the limit of {:.0} s", self.0.as_secs_f64())
    }
}
impl std::error::Error for OverLimit {}

/// The lab was asked to end.
#[derive(Debug)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted")
    }
}
impl std::error::Error for Interrupted {}

/// From now on SIGINT, SIGTERM and SIGHUP end waits instead of this process, so that all is undone.
///
/// # Errors
/// The handler cannot be set.
pub fn hear_signals() -> anyhow::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(flag())).context("hear signals")?;
    }
    Ok(())
}

fn flag() -> &'static Arc<AtomicBool> {
    static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    FLAG.get_or_init(Arc::default)
}

/// Whether the lab was asked to end.
pub fn interrupted() -> bool {
    flag().load(Ordering::Relaxed)
}

/// What a program that succeeded has said.
#[derive(Clone, Debug)]
pub struct Output {
    pub stdout: String,
    pub stderr: String,
}

/// Runs a program to its end. Its children end with it.
///
/// # Errors
/// It cannot be started; it failed, then with its last lines; [`OverLimit`]; [`Interrupted`].
pub fn run(command: &mut Command, limit: Duration) -> anyhow::Result<Output> {
    let (status, output) = finish(command, limit)?;
    if !status.success() {
        bail!("{}: {status}: {}", name(command), last_lines(&output));
    }
    Ok(output)
}

/// As [`run`], and a failure of the program is no error.
pub fn finish(command: &mut Command, limit: Duration) -> anyhow::Result<(ExitStatus, Output)> {
    let deadline = Instant::now() + limit;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().with_context(|| format!("run {}", name(command)))?;
    let [stdout, stderr] = [
        keep(child.stdout.take().expect("stdout is piped")),
        keep(child.stderr.take().expect("stderr is piped")),
    ];
    let waited = wait(&child, deadline);
    // Also what it left running: the pipes would stay open. It still is a zombie, so that the group's id is
    // its own.
    kill_group(&child);
    let status = child.wait().with_context(|| format!("wait for {}", name(command)))?;
    let [stdout, stderr] = [stdout, stderr].map(Kept::take);
    let output = Output { stdout, stderr };
    match waited {
        Ok(true) => Ok((status, output)),
        Ok(false) => Err(anyhow::Error::new(OverLimit(limit)).context(format!(
            "{}: {}",
            name(command),
            last_lines(&output)
        ))),
        Err(error) => Err(error.context(name(command))),
    }
}

/// Waits for the end of a child, without collecting it; false at the deadline.
fn wait(child: &Child, deadline: Instant) -> anyhow::Result<bool> {
    let pid = Pid::from_child(child);
    let fd = pidfd_open(pid, PidfdFlags::empty()).context("hold on to a child")?;
    loop {
        if interrupted() {
            return Err(Interrupted.into());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let step = left.min(LOOK);
        let timeout = Timespec { tv_sec: 0, tv_nsec: step.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) if left.is_zero() => return Ok(false),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error).context("wait for a child"),
        }
    }
}

/// For a child that leads a group and is not collected yet.
fn kill_group(child: &Child) {
    // There may be nobody left in it.
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
}

/// What a program says, as it comes.
struct Kept {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: thread::JoinHandle<()>,
}

/// Reads to the end, and keeps the last [`OUTPUT_MAX`] bytes.
fn keep(mut from: impl Read + Send + 'static) -> Kept {
    let bytes = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&bytes);
    let reader = thread::spawn(move || {
        let mut piece = vec![0; 64 << 10];
        while let Ok(n @ 1..) = from.read(&mut piece) {
            let mut kept = kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            kept.extend_from_slice(&piece[..n]);
            if kept.len() > 2 * OUTPUT_MAX {
                let old = kept.len() - OUTPUT_MAX;
                kept.drain(..old);
            }
        }
    });
    Kept { bytes, reader }
}

impl Kept {
    /// All of it, when its program has ended. A child that has left the program's group may hold on to the
    /// pipe: what it says later is not waited for.
    fn take(self) -> String {
        let deadline = Instant::now() + OUTPUT_PATIENCE;
        while !self.reader.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_micros(200));
        }
        let bytes = self.bytes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// A program's plain name; nsenter and setpriv only bring it to its place.
fn name(command: &Command) -> String {
    let mut words = std::iter::once(command.get_program()).chain(command.get_args());
    let mut word = command.get_program();
    while let Some(next) = words.next() {
        word = next;
        if word != "nsenter" && word != "setpriv" {
            break;
        }
        words.by_ref().find(|word| *word == crate::host::HERE);
    }
    Path::new(word).file_name().unwrap_or(word).to_string_lossy().into_owned()
}

/// The last lines of what a program said, errors first, as one line.
fn last_lines(output: &Output) -> String {
    let text = if output.stderr.trim().is_empty() { &output.stdout } else { &output.stderr };
    let lines: Vec<_> = text.split(['\n', '\r']).map(str::trim).filter(|line| !line.is_empty()).collect();
    match lines.len().saturating_sub(LAST_LINES) {
        0 if lines.is_empty() => "it said nothing".to_owned(),
        skip => lines[skip..].join("; "),
    }
}

/// A server; dropping it ends it, with its children.
#[derive(Debug)]
pub struct Server {
    child: Child,
    mark: String,
    log: PathBuf,
    what: String,
}

impl Server {
    /// Starts a server on a host and waits until it listens on `port`.
    ///
    /// The thread that calls must outlive it: the kernel ends the server with it, also after a crash of the
    /// lab.
    ///
    /// # Errors
    /// It cannot be started, ends, or does not listen in time; with the last lines of its log.
    pub fn start(mut command: Command, mark: String, log: &Path, port: u16) -> anyhow::Result<Server> {
        let what = name(&command);
        let file = File::create(log).with_context(|| format!("make {}", log.display()))?;
        let second = file.try_clone().with_context(|| format!("open {}", log.display()))?;
        command.env(MARK, &mark).stdin(Stdio::null()).stdout(file).stderr(second).process_group(0);
        let child = command.spawn().with_context(|| format!("run {what}"))?;
        let mut server = Server { child, mark, log: log.to_owned(), what };
        let deadline = Instant::now() + START_PATIENCE;
        while !listens(server.child.id(), port) {
            if let Some(status) = server.child.try_wait().context("look at a server")? {
                bail!("{} did not start: {status}: {}", server.what, server.log());
            }
            if interrupted() {
                return Err(Interrupted.into());
            }
            if Instant::now() > deadline {
                bail!("{} does not listen on port {port}: {}", server.what, server.log());
            }
            thread::sleep(STEP);
        }
        Ok(server)
    }

    /// The last lines that it has logged.
    pub fn log(&self) -> String {
        let stdout = fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        last_lines(&Output { stdout: stdout.unwrap_or_default(), stderr: String::new() })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Children first: when their parent has gone nobody knows that they were its own.
        let children = descendants(self.child.id());
        kill_group(&self.child);
        for child in children {
            child.kill();
        }
        let _ = self.child.wait();
        if let Err(error) = end_marked(&[&self.mark]) {
            eprintln!("lab: {}: {error:#}", self.what);
        }
    }
}

/// Whether somebody in the network of process `pid` listens on `port`. No connection is made: some servers
/// would take it for their client.
fn listens(pid: u32, port: u16) -> bool {
    ["tcp", "tcp6"].iter().any(|table| {
        let table = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        has_listener(&table, port)
    })
}

/// In a table as `/proc/net/tcp`: number, local address, remote address, state (0A listens).
fn has_listener(table: &str, port: u16) -> bool {
    let port = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&port)) && fields.nth(1) == Some("0A")
    })
}

/// A process that is held on to, so that no other one gets its signals.
struct Held(rustix::fd::OwnedFd);

impl Held {
    /// The process, if it is there and `ours` holds while it is held.
    fn hold(pid: u32, ours: impl Fn() -> bool) -> Option<Held> {
        let raw = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let fd = pidfd_open(raw, PidfdFlags::empty()).ok()?;
        ours().then_some(Held(fd))
    }

    fn kill(&self) {
        let _ = pidfd_send_signal(self.0.as_fd(), Signal::KILL);
    }
}

fn pids() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Children of a process, and theirs.
fn descendants(root: u32) -> Vec<Held> {
    let parents: Vec<_> = pids().into_iter().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut family = BTreeSet::from([root]);
    let mut held = Vec::new();
    // As deep as there are processes, at most.
    for _ in 0..parents.len() {
        let young: Vec<_> =
            parents.iter().filter(|(pid, up)| family.contains(up) && !family.contains(pid)).collect();
        if young.is_empty() {
            break;
        }
        for (pid, up) in young {
            family.insert(*pid);
            held.extend(Held::hold(*pid, || parent(*pid) == Some(*up)));
        }
    }
    held
}

/// Whether a process carries one of these marks. One that has ended carries none.
fn is_marked(pid: u32, marks: &[&str]) -> bool {
    let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else { return false };
    environment.split(|byte| *byte == 0).any(|entry| {
        let value = entry.strip_prefix(MARK.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
        value.is_some_and(|value| marks.iter().any(|mark| mark.as_bytes() == value))
    })
}

/// Processes that carry one of these marks.
pub fn marked(marks: &[&str]) -> Vec<u32> {
    pids().into_iter().filter(|pid| is_marked(*pid, marks)).collect()
}

/// Ends all that carry one of these marks, and returns when they are gone.
///
/// # Errors
/// Naming those that do not go.
pub fn end_marked(marks: &[&str]) -> anyhow::Result<()> {
    let deadline = Instant::now() + KILL_PATIENCE;
    loop {
        // Again and again: what is found may have started another one meanwhile.
        let found = marked(marks);
        if found.is_empty() {
            return Ok(());
        }
        for pid in &found {
            if let Some(held) = Held::hold(*pid, || is_marked(*pid, marks)) {
                held.kill();
            }
        }
        if Instant::now() > deadline {
            bail!("these processes do not end: {found:?}");
        }
        thread::sleep(STEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a failure is told in the program's own last words; success gives both outputs.
    /// Method: a shell that says things.
    #[test]
    fn process_failures_have_words() {
        let shell = |script: &str| run(Command::new("sh").args(["-c", script]), Duration::from_secs(60));
        let good = shell("echo out; echo err >&2").unwrap();
        assert_eq!((good.stdout.as_str(), good.stderr.as_str()), ("out\n", "err\n"));
        let bad = shell("seq 20 >&2; exit 3").unwrap_err().to_string();
        assert!(bad.starts_with("sh: exit status: 3: 13; 14;") && bad.ends_with("19; 20"), "{bad}");
        assert!(shell("echo only this; exit 1").unwrap_err().to_string().ends_with("only this"));
        assert!(run(&mut Command::new("/no/such"), LOOK).unwrap_err().to_string().contains("run such"));
    }

    /// Goal: at the limit all of a program's children end, and the error can be told from others.
    /// Method: a shell with a child in the background, and one that has left its group, which its mark
    /// betrays.
    #[test]
    fn process_limit_ends_children() {
        let mark = format!("test-{}-limit", std::process::id());
        let mut command = Command::new("sh");
        command.env(MARK, &mark).args(["-c", "sleep 600 & setsid sleep 600 & sleep 600"]);
        // Enough for the shell to have started them: the end comes by the limit in any case.
        let error = run(&mut command, Duration::from_secs(1)).unwrap_err();
        assert_eq!(error.downcast_ref::<OverLimit>().map(|over| over.0), Some(Duration::from_secs(1)));
        let left = marked(&[&mark]);
        assert_eq!(left.len(), 1, "only the one that left the group");
        assert!(marked(&["test"]).is_empty(), "a part of a mark is none");
        end_marked(&[&mark]).unwrap();
        assert!(marked(&[&mark]).is_empty());
    }

    /// Goal: a listening socket is found by its port, and nothing else is taken for one.
    /// Method: a table of the kernel with a listener, and a connection that has the port at its other end.
    #[test]
    fn process_listeners_are_found() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n\
             0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000\n\
             1: 0100007F:9C40 0100007F:1F91 01 00000000:00000000 00:00000000\n\
             2: 0100007F:1F92 0100007F:9C41 01 00000000:00000000 00:00000000\n";
        assert!(has_listener(table, 8080));
        assert!(!has_listener(table, 8081) && !has_listener(table, 8082) && !has_listener("", 1));
    }
}
