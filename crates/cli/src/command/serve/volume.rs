//! `haul serve volume` and `haul serve catalog`: a storage server of a volume, and its catalog.
//!
//! In: a directory that was set up, or, from `haul volume create` and `start`, on stdin what it is to be.
//! Out: a server, until a signal or somebody who holds the volume's key ends it.
//! Invariants: no key is on a command line or in the environment; a server that was started by another haul
//! goes on without it, and holds nothing of it open; its log is bounded.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use haul::errno;
use haul_launch::ErrandLine;
use haul_volume::boot::{self, BootError, Booted, LINE_LEN_MAX, Told};
use haul_volume::home::{Home, LOG, OLD_LOG, Role, Running, Setup};

use super::manager::tell_manager;
use crate::args::plain;
use crate::command::{FAILED, USAGE, complain, on_one_line};
use crate::signals;

/// The name of the errand that starts one over ssh.
pub const ERRAND: &str = "volume";
/// The log is begun anew when it is longer, bytes; the one before is kept.
const LOG_LEN_MAX: u64 = 1 << 20;
/// How often a catalog is looked at, which ends by itself when its disk fails.
const TICK: Duration = Duration::from_millis(250);
/// The answer to whoever wanted an end has so long to be heard.
const LINGER: Duration = Duration::from_millis(200);
/// What was begun and is not kept has so long to undo itself.
const UNDONE_WITHIN: Duration = Duration::from_secs(10);

#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub struct Volume {
    /// Its directory, as `haul volume create` set it up
    #[arg(long, value_name = "DIR", value_parser = plain::path(), required_unless_present = "bootstrap")]
    root: Option<PathBuf>,

    #[command(flatten)]
    how: How,
}

#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub struct Catalog {
    /// Its directory, as `haul volume create` set it up
    #[arg(long, value_name = "DIR", value_parser = plain::path(), required_unless_present = "bootstrap")]
    dir: Option<PathBuf>,

    #[command(flatten)]
    how: How,
}

#[derive(Args, Debug)]
struct How {
    /// Listen there, at the port that the volume knows [default: as it was set up]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,

    /// Be told on stdin what to be, and go on without who said it
    #[arg(long, hide = true)]
    bootstrap: bool,

    /// As --bootstrap, but stay below the program that started this
    #[arg(long, hide = true, requires = "bootstrap")]
    stay: bool,
}

const AFTER: &str = "\
`haul volume create` and `haul volume start` start these by themselves. By hand it runs in the foreground until SIGTERM or \
Ctrl-C, for a service manager say. See docs/volumes.md.";

impl Volume {
    pub(super) fn run(&self) -> i32 {
        run(self.root.as_deref(), &self.how, |role| matches!(role, Role::Server(_)))
    }
}

impl Catalog {
    pub(super) fn run(&self) -> i32 {
        run(self.dir.as_deref(), &self.how, |role| role == Role::Catalog)
    }
}

fn run(dir: Option<&Path>, how: &How, of_role: fn(Role) -> bool) -> i32 {
    haul::process::keep_secrets();
    match dir {
        _ if how.bootstrap => bootstrap(how.stay, of_role),
        Some(dir) => foreground(dir, how.listen, of_role).unwrap_or_else(|(why, code)| complain(&why, code)),
        None => USAGE,
    }
}

/// Serves what is set up, in the foreground.
fn foreground(
    dir: &Path,
    listen: Option<SocketAddr>,
    of_role: fn(Role) -> bool,
) -> Result<i32, (String, i32)> {
    let (home, setup) = Home::open(dir, None).map_err(|error| (error.to_string(), FAILED))?;
    if !of_role(setup.role) {
        let (is, command) = match setup.role {
            Role::Catalog => ("a catalog", "haul serve catalog --dir"),
            Role::Server(_) => ("a storage server", "haul serve volume --root"),
        };
        return Err((format!("{} is the directory of {is}: {command} serves it", dir.display()), USAGE));
    }
    let at = listen.unwrap_or(setup.listen);
    if at.port() != setup.listen.port() {
        let port = setup.listen.port();
        return Err((format!("--listen {at}: the volume knows this server by its port {port}"), USAGE));
    }
    let listener = boot::listen(at).map_err(|error| (error.to_string(), FAILED))?;
    let notice = Arc::new(|text: &str| drop(writeln!(io::stderr(), "haul: {}", on_one_line(text))));
    let running =
        home.serve(&setup, false, listener, notice.clone()).map_err(|error| (error.to_string(), FAILED))?;
    notice(&format!("{} at {at} serves {}", name(&setup), dir.display()));
    tell_manager("READY=1");
    Ok(until_end(running, &*notice))
}

fn name(setup: &Setup) -> String {
    match setup.role {
        Role::Catalog => "a volume's catalog".into(),
        Role::Server(number) => format!("server {number} of {} of a volume", setup.servers.len()),
    }
}

/// Runs until somebody wants an end.
fn until_end(running: Running, notice: &dyn Fn(&str)) -> i32 {
    match signals::for_server() {
        Ok((mut stop, hangups)) => {
            let visits = running.visits().clone();
            let watch = move || {
                // Kept, so that a hangup is no end.
                let _hangups = hangups;
                let _ = stop.read(&mut [0]);
                visits.want_end();
            };
            if let Err(error) = thread::Builder::new().name("signals".into()).spawn(watch) {
                notice(&format!("watching for signals: {}", errno::text(error)));
            }
        }
        Err(error) => notice(&format!("watching for signals: {}", errno::text(error))),
    }
    while !running.visits().wait(TICK) {
        if running.is_over() {
            notice("it ended by itself: its disk failed");
            return FAILED;
        }
    }
    tell_manager("STOPPING=1");
    thread::sleep(LINGER);
    drop(running);
    notice("it ended as it was told to");
    0
}

/// Is told on stdin what to be, and goes on without who said it.
fn bootstrap(stay: bool, of_role: fn(Role) -> bool) -> i32 {
    // It was started by a name of the kernel's own.
    let _ = rustix::thread::set_name(c"haul");
    if !stay {
        // Ctrl-C is for who started this. Whoever leads a group already has one of his own.
        let _ = rustix::process::setsid();
    }
    let log = Arc::new(Log::default());
    let notice = {
        let log = log.clone();
        Arc::new(move |text: &str| log.say(text))
    };
    let booted = {
        let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
        boot::boot(&mut input, &mut output, of_role, notice.clone())
    };
    let (running, setup, home) = match booted {
        Ok(Booted::Runs { running, setup, home }) => (running, setup, home),
        Ok(Booted::Removed) => return 0,
        Err(BootError::Gone) => return FAILED,
        Err(error) => return complain(&error.to_string(), FAILED),
    };
    // From here on nothing is left of who started this: where ssh did, it waits for the end of its pipes.
    log.open(home.path(), true);
    notice(&format!("{} listens at {}", name(&setup), setup.listen));
    let _ = std::env::set_current_dir("/");
    let _ = boot::say_kept(&mut io::stdout().lock());
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
    }
    let code = until_end(*running, &*notice);
    drop(home);
    code
}

/// The log of a server that nobody else hears; before it is opened, words go to stderr.
#[derive(Default)]
struct Log(Mutex<Option<Open>>);

struct Open {
    dir: PathBuf,
    file: File,
    len: u64,
    /// What the runtime says goes there, too.
    stderr: bool,
}

impl Log {
    /// What is said from now on goes to the log of that directory.
    fn open(&self, dir: &Path, stderr: bool) {
        let opened = open_log(dir, stderr).map(|(file, len)| Open { dir: dir.to_owned(), file, len, stderr });
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = opened;
    }

    fn say(&self, text: &str) {
        let now = humantime::format_rfc3339_seconds(SystemTime::now());
        let line = format!("{now} {}\n", on_one_line(text));
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(open) = &mut *open else {
            let _ = io::stderr().write_all(line.as_bytes());
            return;
        };
        if open.len + line.len() as u64 > LOG_LEN_MAX {
            let _ = std::fs::rename(open.dir.join(LOG), open.dir.join(OLD_LOG));
            match open_log(&open.dir, open.stderr) {
                Some((file, len)) if len == 0 => (open.file, open.len) = (file, len),
                // It could not be put aside: what is said is lost, and no disk is filled.
                _ => return,
            }
        }
        // A disk that is full must not end a server; nobody else could be told.
        if open.file.write_all(line.as_bytes()).is_ok() {
            open.len += line.len() as u64;
        }
    }
}

fn open_log(dir: &Path, stderr: bool) -> Option<(File, u64)> {
    let nofollow = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    let mut options = File::options();
    let options = options.append(true).create(true).mode(0o600).custom_flags(nofollow);
    let file = options.open(dir.join(LOG)).ok()?;
    if stderr {
        let _ = rustix::stdio::dup2_stderr(&file);
    }
    let len = file.metadata().ok()?.len();
    Some((file, len))
}

/// The agent's part: starts one on this host, and brings to it what the near end says.
pub fn relay(line: &mut ErrandLine<'_>) {
    if let Err(why) = try_relay(line) {
        let _ = line.refuse(&why);
    }
}

fn try_relay(line: &mut ErrandLine<'_>) -> Result<(), String> {
    let Some(first) = line.hear() else { return Ok(()) };
    let role = ["begin", "remove"].iter().find_map(|word| first.get(word)?.get("role"));
    let what = match role {
        Some(role) if role == "catalog" => "catalog",
        Some(_) => "volume",
        None => return Err("this begins no server of a volume".into()),
    };
    // This program, also if its file has been replaced.
    let mut child = Command::new("/proc/self/exe")
        .arg0("haul")
        .args(["serve", what, "--bootstrap"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("starting haul there: {}", errno::text(error)))?;
    let mut to = child.stdin.take().ok_or("a pipe is missing")?;
    let mut from = BufReader::new(child.stdout.take().ok_or("a pipe is missing")?);
    let mut next = Some(first);
    let mut kept = false;
    while let Some(said) = next {
        // Whether it is heard shows in what is answered.
        let _ = to.write_all(format!("{said}\n").as_bytes()).and_then(|()| to.flush());
        let mut answer = Vec::new();
        let read = from.by_ref().take(LINE_LEN_MAX as u64).read_until(b'\n', &mut answer);
        let told = match read {
            Ok(1..) => serde_json::from_slice(&answer).map_err(|error| error.to_string()),
            _ => Err("it ended without a word".into()),
        };
        let told: serde_json::Value = told.map_err(|why| format!("a server there does not start: {why}"))?;
        kept = Told::of_line(&answer) == Some(Told::Kept);
        if line.say(told).is_err() {
            break;
        }
        next = line.hear();
    }
    drop((to, from));
    // One that is kept goes on; one that is not undoes what it did.
    let until = Instant::now() + UNDONE_WITHIN;
    while !kept && matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a log keeps what was said last, for its owner alone, and does not fill a disk.
    #[test]
    fn logs_are_bounded() {
        use std::os::unix::fs::MetadataExt as _;
        let dir = tempfile::tempdir().unwrap();
        let log = Log::default();
        log.open(dir.path(), false);
        let word = "x".repeat(1000);
        (0..3000).for_each(|number| log.say(&format!("{number} {word}\n")));
        for name in [LOG, OLD_LOG] {
            let meta = dir.path().join(name).metadata().unwrap();
            assert!(meta.len() > 0 && meta.len() <= LOG_LEN_MAX && meta.mode() & 0o777 == 0o600, "{meta:?}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
        let text = std::fs::read_to_string(dir.path().join(LOG)).unwrap();
        assert!(text.lines().last().unwrap().contains(" 2999 x"));
        // One that goes on begins where it was.
        let again = Log::default();
        again.open(dir.path(), false);
        again.say("more");
        assert!(std::fs::read_to_string(dir.path().join(LOG)).unwrap().starts_with(&text));
    }
}
