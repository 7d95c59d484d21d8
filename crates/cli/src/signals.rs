//! Signals and the clock of `--stop-after`: the first asks the run to stop, the second ends it at once.
//!
//! In: SIGINT, SIGTERM, SIGHUP, or a time. Out: one call of `stop`, and later perhaps the end of the process
//! with 130 (SIGINT) or 143 (SIGTERM), from the handler itself, so that it works even when every thread
//! hangs.
//! - What was ignored when haul started stays ignored: `nohup`, and background jobs of a script.
//! - Signals right after the first are the same wish: `timeout` and terminals send theirs twice.
//! - SIGHUP never counts as a second wish: a lost terminal sends it as often as it likes.
//!
//! SIGPIPE is ignored by Rust's runtime; [`outlive_size_limits`] does as much for SIGXFSZ, and in the
//! agent [`outlive_hangup`] for SIGHUP.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::{flag, low_level};

/// Exit codes of an interrupted run.
const CODE_INT: i32 = 130;
const CODE_TERM: i32 = 143;
/// For how long after the first signal others are taken for echoes of it.
const ECHO: Duration = Duration::from_millis(250);

/// Why a run was asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    Signal(i32),
    Time,
}

impl Wish {
    /// What the user is told.
    pub fn text(self) -> &'static str {
        match self {
            Wish::Signal(_) => "stopping: closing the open epoch (again to stop at once)",
            Wish::Time => {
                "stopping, the time of --stop-after is up: closing the open epoch (Ctrl-C to stop at once)"
            }
        }
    }
}

/// Which signal asked for the end.
#[derive(Clone, Default)]
pub struct Asked(Arc<AtomicUsize>);

impl Asked {
    /// Whether one has.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }

    /// The exit code of an interrupted run. A time limit counts as SIGTERM, which is what a batch system
    /// sends.
    pub fn exit_code(&self) -> i32 {
        match i32::try_from(self.0.load(Ordering::Acquire)) {
            Ok(SIGINT) => CODE_INT,
            _ => CODE_TERM,
        }
    }
}

/// A file over the limit of `ulimit -f` fails with EFBIG, alone and by name, instead of ending the process. A
/// handler, for programs that haul starts would inherit that the signal is ignored.
///
/// # Errors
/// The handler cannot be installed.
pub fn outlive_size_limits() -> io::Result<()> {
    flag::register(SIGXFSZ, Arc::default()).map(drop)
}

/// The far end outlives the ssh that started it, and a server that says so by SIGHUP.
///
/// # Errors
/// The handler cannot be installed.
pub fn outlive_hangup() -> io::Result<()> {
    flag::register(SIGHUP, Arc::default()).map(drop)
}

/// Installs the handlers. `stop` is called at most once, on a thread of its own; it may block for a while,
/// the second signal works all the same.
///
/// # Errors
/// A pipe or a thread cannot be made.
pub fn watch(stop_after: Option<Duration>, stop: impl FnOnce(Wish) + Send + 'static) -> io::Result<Asked> {
    install(stop_after, ECHO, stop)
}

/// For a server: each SIGINT or SIGTERM is a byte in the first pipe that comes back, and each SIGHUP one in
/// the second.
///
/// # Errors
/// A pipe cannot be made, or a handler not be installed.
pub fn for_server() -> io::Result<(UnixStream, UnixStream)> {
    let (reader, writer) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM] {
        low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    let (hangups, writer) = UnixStream::pair()?;
    low_level::pipe::register(SIGHUP, writer)?;
    Ok((reader, hangups))
}

/// For a session of a server, which ends when the server says so: a signal that all its processes get must
/// not cut a transfer off that may still end.
///
/// # Errors
/// A handler cannot be installed.
pub fn outlive_ends() -> io::Result<()> {
    [SIGINT, SIGTERM, SIGHUP]
        .into_iter()
        .try_for_each(|signal| flag::register(signal, Arc::default()).map(drop))
}

fn install(
    stop_after: Option<Duration>,
    echo: Duration,
    stop: impl FnOnce(Wish) + Send + 'static,
) -> io::Result<Asked> {
    let asked = Asked::default();
    let armed = Arc::new(AtomicBool::new(false));
    let (reader, writer) = UnixStream::pair()?;
    let ignored = ignored_signals();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if ignored & (1 << (signal - 1)) != 0 {
            continue;
        }
        // Handlers run in this order.
        match signal {
            SIGINT => drop(flag::register_conditional_shutdown(signal, CODE_INT, Arc::clone(&armed))?),
            SIGTERM => drop(flag::register_conditional_shutdown(signal, CODE_TERM, Arc::clone(&armed))?),
            _ => {}
        }
        let number = usize::try_from(signal).expect("signal numbers are positive");
        flag::register_usize(signal, Arc::clone(&asked.0), number)?;
        low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    let deadline = stop_after.and_then(|time| Instant::now().checked_add(time));
    let number = Arc::clone(&asked.0);
    thread::Builder::new().name("signals".into()).spawn(move || {
        // Keeps the pipe open when all three signals are ignored.
        let _writer = writer;
        let wish = match wait(reader, deadline) {
            true => Wish::Signal(i32::try_from(number.load(Ordering::Acquire)).unwrap_or(SIGTERM)),
            false => Wish::Time,
        };
        // Armed on a thread of its own, for `stop` may wait for a terminal that somebody has halted.
        let arming = Arc::clone(&armed);
        let spawned = thread::Builder::new().name("arm".into()).spawn(move || {
            thread::sleep(echo);
            arming.store(true, Ordering::Release);
        });
        if spawned.is_err() {
            armed.store(true, Ordering::Release);
        }
        stop(wish);
    })?;
    Ok(asked)
}

/// Waits for a signal; false: the deadline came first.
fn wait(mut pipe: UnixStream, deadline: Option<Instant>) -> bool {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return false;
        }
        // Zero was dealt with; anything else is a legal timeout.
        let _ = pipe.set_read_timeout(left);
        match pipe.read(&mut [0]) {
            Ok(_) => return true,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => return true,
        }
    }
}

/// The mask of signals that are ignored, bit 0 for signal 1; none if the kernel does not say.
fn ignored_signals() -> u64 {
    std::fs::read_to_string("/proc/self/status").map_or(0, |status| parse_ignored(&status))
}

fn parse_ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, Signal, kill_process};
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, ChildStdout, Command, Stdio};

    /// Tells the child its `stop_after` and its echo time, for instance `1h 250ms`.
    const CHILD: &str = "HAUL_TEST_SIGNAL_CHILD";

    /// Not a property: the process that the tests below send signals to. It answers with what it is told.
    #[test]
    fn child_of_the_signal_tests() {
        let Ok(times) = std::env::var(CHILD) else { return };
        let (stop_after, echo) = times.split_once(' ').unwrap();
        let stop_after = humantime::parse_duration(stop_after).ok();
        let echo = humantime::parse_duration(echo).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let asked = install(stop_after, echo, move |wish| sender.send(wish).unwrap()).unwrap();
        println!("\nready");
        println!("\n{:?} {}", receiver.recv().unwrap(), asked.exit_code());
        for line in io::stdin().lines() {
            println!("\n{}", line.unwrap());
        }
    }

    /// Starts the child by way of `sh`, after `prelude`, and waits until it is ready.
    fn child(prelude: &str, times: &str) -> (Child, BufReader<ChildStdout>) {
        let name = "signals::tests::child_of_the_signal_tests";
        let script = format!("{prelude}; exec \"$0\" --exact {name} --nocapture");
        // Whoever runs the tests in the background may have left SIGINT ignored.
        let mut child = Command::new("env")
            .args(["--default-signal=INT,TERM,HUP", "sh", "-c", &script])
            .arg(std::env::current_exe().unwrap())
            .env(CHILD, times)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        await_line(&mut out, "ready");
        (child, out)
    }

    fn await_line(out: &mut BufReader<ChildStdout>, start: &str) -> String {
        let mut line = String::new();
        while !line.starts_with(start) {
            line.clear();
            assert_ne!(out.read_line(&mut line).unwrap(), 0, "the child ended");
        }
        line.trim().into()
    }

    fn send(child: &Child, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Sends `signal` until the child ends, for nobody tells when it is armed; returns its exit code.
    fn insist(child: &mut Child, signal: Signal) -> Option<i32> {
        for _ in 0..30_000 {
            if let Some(status) = child.try_wait().unwrap() {
                return status.code();
            }
            send(child, signal);
            thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        panic!("the second signal does not end the process");
    }

    /// Goal: the first signal asks, the second ends the process with the code of its own.
    /// Method: a real process; SIGHUP alone never ends it.
    #[test]
    fn first_signal_asks_and_second_ends() {
        for (first, name, second, code) in [
            (Signal::INT, "Signal(2) 130", Signal::INT, 130),
            (Signal::TERM, "Signal(15) 143", Signal::INT, 130),
            (Signal::INT, "Signal(2) 130", Signal::TERM, 143),
            (Signal::HUP, "Signal(1) 143", Signal::TERM, 143),
        ] {
            let (mut child, mut out) = child("true", "1h 1ms");
            send(&child, first);
            assert_eq!(await_line(&mut out, "Signal"), name);
            assert_eq!(insist(&mut child, second), Some(code));
        }
    }

    /// Goal: the end of the time asks as a signal does, and counts as SIGTERM.
    #[test]
    fn end_of_time_asks() {
        let (mut child, mut out) = child("true", "1ms 1ms");
        assert_eq!(await_line(&mut out, "Time"), "Time 143");
        assert_eq!(insist(&mut child, Signal::INT), Some(130));
    }

    /// Goal: what was ignored at the start (`nohup`, background jobs) stays ignored.
    #[test]
    fn ignored_signals_stay_ignored() {
        let (child, mut out) = child("trap '' INT HUP", "1h 1h");
        send(&child, Signal::INT);
        send(&child, Signal::HUP);
        send(&child, Signal::TERM);
        assert_eq!(await_line(&mut out, "Signal"), "Signal(15) 143");
        end(child);
    }

    /// Goal: the same signal sent twice in a row, as `timeout` and terminals do, is one wish.
    /// Method: an echo time of an hour; no number of signals ends the process then.
    #[test]
    fn echoes_are_one_wish() {
        let (child, mut out) = child("true", "1h 1h");
        send(&child, Signal::INT);
        send(&child, Signal::INT);
        assert_eq!(await_line(&mut out, "Signal"), "Signal(2) 130");
        for _ in 0..200 {
            send(&child, Signal::INT);
            send(&child, Signal::TERM);
            writeln!(child.stdin.as_ref().unwrap(), "alive").unwrap();
            await_line(&mut out, "alive");
        }
        end(child);
    }

    /// Kills the child, which must not have ended by itself.
    fn end(mut child: Child) {
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }

    /// Goal: what the kernel says about ignored signals is understood.
    #[test]
    fn ignored_signals_are_found() {
        assert_eq!(parse_ignored("Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\tff\n"), 1 | 1 << 12);
        assert_eq!(parse_ignored("SigIgn:\tjunk\n"), 0);
        assert_eq!(parse_ignored(""), 0);
        assert_ne!(ignored_signals() & 1 << 12, 0, "Rust ignores SIGPIPE");
    }

    /// Goal: a deadline in the past is over at once, and a byte in the pipe comes before one in the future.
    #[test]
    fn deadline_and_signal_are_told_apart() {
        let (reader, _writer) = UnixStream::pair().unwrap();
        assert!(!wait(reader, Some(Instant::now())));
        let (reader, mut writer) = UnixStream::pair().unwrap();
        writer.write_all(b"x").unwrap();
        assert!(wait(reader, Instant::now().checked_add(Duration::from_secs(3600))));
    }
}
