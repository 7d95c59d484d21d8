//! Runs the program under test, watches it, and reads what it says.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;

use super::sshd::Sshd;
use super::{Room, netns, procs};

/// A run that takes longer hangs. Far above what any test needs, also on a busy machine.
const HANGS_AFTER: Duration = Duration::from_secs(120);
/// What is killed ends within this, or hangs in storage.
const KILLED_AFTER: Duration = Duration::from_secs(10);

/// The program under test.
pub fn program() -> PathBuf {
    std::env::var_os("HAUL_TEST_BIN").map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_haul")), PathBuf::from)
}

/// A command line of haul that is about to be run.
pub struct Haul {
    args: Vec<OsString>,
    wrapper: Vec<OsString>,
    cwd: Option<PathBuf>,
    variables: Vec<(OsString, OsString)>,
    program: PathBuf,
}

impl Haul {
    /// `haul ARGS...`
    pub fn new(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Haul {
        let args = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
        Haul { args, wrapper: Vec::new(), cwd: None, variables: Vec::new(), program: program() }
    }

    /// `haul cp --json ARGS...`
    pub fn cp(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Haul {
        Haul::new(["cp", "--json"]).args(args)
    }

    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Haul {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Reaches hosts through this sshd.
    pub fn by(self, sshd: &Sshd) -> Haul {
        self.args(["-e", sshd.command().as_str()])
    }

    /// Runs in this directory.
    pub fn within(mut self, dir: &Path) -> Haul {
        self.cwd = Some(dir.to_owned());
        self
    }

    /// Runs with this variable in its environment.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Haul {
        self.variables.push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// Runs in the near namespace.
    pub fn near(self, pair: &netns::NetnsPair) -> Haul {
        let net = format!("--net=/run/netns/{}", pair.near);
        self.wrapped(["nsenter", net.as_str()])
    }

    /// Runs under strace with these injections, each like `openat2:error=ENOSYS`.
    pub fn injected(self, injections: &[String]) -> Haul {
        self.wrapped(strace_args(injections))
    }

    /// Runs under strace, which writes these calls, with the paths of descriptors, to a file.
    pub fn traced(self, calls: &str, to: &Path) -> Haul {
        let calls = format!("trace={calls}");
        let words = ["strace", "-f", "-qq", "-y", "-s", "4096", "-e", "signal=none", "-e", &calls, "-o"];
        self.wrapped(words).wrapped([to])
    }

    /// Runs with a terminal as its stdout and stderr; what appears there is its stdout. No argument has a
    /// space.
    pub fn on_a_terminal(self) -> Haul {
        let words = [self.program.as_os_str()].into_iter().chain(self.args.iter().map(OsString::as_os_str));
        let line = words.collect::<Vec<_>>().join(OsStr::new(" "));
        let (args, program) = (["-qec".into(), line, "/dev/null".into()].into(), "script".into());
        Haul { args, program, ..self }.env("TERM", "xterm")
    }

    /// Runs under this limit of `prlimit`.
    pub fn limited(self, limit: &str) -> Haul {
        self.wrapped(["prlimit", limit])
    }

    /// Runs without a terminal, whatever the tests have.
    pub fn without_a_terminal(self) -> Haul {
        self.wrapped(["setsid", "--wait"])
    }

    /// Runs where the kernel says that it is an old one.
    pub fn on_an_old_kernel(self) -> Haul {
        self.wrapped(["setarch", "--uname-2.6"])
    }

    /// Runs on one processor only.
    pub fn on_one_processor(self) -> Haul {
        self.wrapped(["taskset", "--cpu-list", "0"])
    }

    /// Runs as a user who may not do everything. The program is copied into `room`, where that user can reach
    /// it.
    pub fn run_by_nobody(self, room: &Room) -> Haul {
        self.run_by_nobody_with(room, &[])
    }

    /// The same with these further words for `setpriv`.
    pub fn run_by_nobody_with(mut self, room: &Room, further: &[&str]) -> Haul {
        let copy = room.at("haul-of-nobody");
        // Not by this process: what another test starts meanwhile would hold it open for writing, and nobody
        // could run it.
        let copied = Command::new("cp").args([&self.program, &copy]).status().expect("run cp");
        assert!(copied.success(), "copy the program");
        self.program = copy;
        let run = room.dir("run-of-nobody");
        std::os::unix::fs::chown(&run, Some(65534), Some(65534)).expect("give a directory away");
        self = self.env("XDG_RUNTIME_DIR", run);
        self.wrapped(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]).wrapped(further)
    }

    /// Runs where no process of ours can be seen, as on another host.
    pub fn in_its_own_pids(self) -> Haul {
        self.wrapped(["unshare", "-p", "-f", "--kill-child=KILL", "--mount-proc"])
    }

    /// The same with the `/proc` of the namespace above, as sandboxes have it.
    pub fn in_its_own_pids_unseen(self) -> Haul {
        self.wrapped(["unshare", "-p", "-f", "--kill-child=KILL"])
    }

    /// In the process namespace of that process, with our `/proc`.
    pub fn in_the_pids_of(self, pid: i32) -> Haul {
        self.wrapped(["nsenter", "-p", "-t", &pid.to_string()])
    }

    pub fn wrapped(mut self, wrapper: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Haul {
        self.wrapper.extend(wrapper.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Starts it.
    pub fn start(self) -> Running {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mark = format!("near-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let room = Room::new();
        // Whoever runs the tests in the background may have left SIGINT ignored.
        let env = ["env", "--default-signal=INT,TERM,HUP"].map(OsStr::new);
        let wrapper = self.wrapper.iter().map(OsString::as_os_str);
        let line: Vec<&OsStr> = env.into_iter().chain(wrapper).chain([self.program.as_os_str()]).collect();
        let mut command = Command::new(line[0]);
        command.args(&line[1..]).args(&self.args);
        // A home of its own, and no agent, configuration or locale of whoever runs the tests.
        command.env("HOME", room.dir("home")).env(procs::MARK, &mark).env("LC_ALL", "C");
        let of_this_user = ["SSH_AUTH_SOCK", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"];
        let asks = ["SSH_ASKPASS", "SSH_ASKPASS_REQUIRE", "DISPLAY", "WAYLAND_DISPLAY"];
        for variable in of_this_user.into_iter().chain(asks) {
            command.env_remove(variable);
        }
        // What a killed haul leaves there goes with the room. Other copies of whoever runs the tests are none
        // of theirs.
        command.env("XDG_RUNTIME_DIR", room.dir("run"));
        let runtime = self.variables.iter().rfind(|(name, _)| name == "XDG_RUNTIME_DIR");
        let runtime = runtime.map_or_else(|| room.at("run"), |(_, value)| PathBuf::from(value));
        command.env("HAUL_CTL_DIR", runtime.join("haul"));
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        if let Some(dir) = &self.cwd {
            command.current_dir(dir);
        }
        // Files, not pipes: what outlives a killed haul and holds its stderr cannot make the test wait.
        let stdout = fs::File::create(room.at("stdout")).expect("make a file for stdout");
        let stderr = fs::File::create(room.at("stderr")).expect("make a file for stderr");
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).process_group(0);
        let shown = format!("{command:?}");
        let child = command.spawn().unwrap_or_else(|error| panic!("start {shown}: {error}"));
        Running { child, room, mark, shown, started: Instant::now() }
    }

    /// Runs it to its end.
    pub fn run(self) -> Outcome {
        self.start().wait()
    }
}

/// The words before a program that run it under strace with these injections.
pub fn strace_args(injections: &[String]) -> Vec<String> {
    let calls: Vec<&str> = injections.iter().filter_map(|injection| injection.split(':').next()).collect();
    let mut args: Vec<String> =
        ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "signal=none"].map(String::from).into();
    args.extend(["-e".to_owned(), format!("trace={}", calls.join(","))]);
    for injection in injections {
        args.extend(["-e".to_owned(), format!("inject={injection}")]);
    }
    args
}

/// A haul that runs.
pub struct Running {
    child: Child,
    room: Room,
    pub mark: String,
    shown: String,
    started: Instant,
}

impl Running {
    /// The number of the process that was started.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its processes at the near end.
    pub fn near(&self) -> Vec<Pid> {
        procs::marked(&self.mark)
    }

    /// Whether it has ended by itself.
    pub fn ended(&mut self) -> bool {
        self.child.try_wait().expect("look at the child").is_some()
    }

    /// Waits until `reached` comes true or the run ends; whether it came true while the run was there.
    pub fn until(&mut self, mut reached: impl FnMut(&Running) -> bool) -> bool {
        let mut came_true = false;
        let looked = procs::wait_until(HANGS_AFTER, || {
            if self.ended() {
                return true;
            }
            came_true = reached(self);
            came_true
        });
        if !looked {
            self.give_up("the awaited moment does not come");
        }
        came_true
    }

    /// Sends a signal to the process that was started, and to none of those that it started.
    pub fn signal_one(&self, signal: Signal) {
        procs::signal_all(&Pid::from_raw(self.id() as i32).into_iter().collect::<Vec<_>>(), signal);
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: Signal) {
        procs::signal_all(&self.near(), signal);
    }

    /// What it has said on stderr so far.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&super::read(self.room.at("stderr"))).into_owned()
    }

    /// What it has said on stdout so far; the last line may be half of one.
    pub fn stdout(&self) -> Vec<u8> {
        super::read(self.room.at("stdout"))
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it hangs; it is killed then.
    pub fn wait(mut self) -> Outcome {
        let mut status: Option<ExitStatus> = None;
        procs::wait_until(HANGS_AFTER, || {
            status = self.child.try_wait().expect("look at the child");
            status.is_some()
        });
        let Some(status) = status else {
            self.give_up("it hangs");
        };
        let stdout = super::read(self.room.at("stdout"));
        let stderr = self.stderr();
        Outcome { status, stdout, stderr, shown: self.shown.clone(), took: self.started.elapsed() }
    }

    /// What hangs in a frozen file system ends only when that goes on: whoever froze it thaws it later.
    fn kill(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.kill();
        procs::wait_until(KILLED_AFTER, || self.ended());
    }

    fn give_up(&mut self, what: &str) -> ! {
        self.kill();
        panic!("{what}: {}\nstderr:\n{}", self.shown, self.stderr());
    }
}

impl Drop for Running {
    /// A test that fails half-way leaves nothing running.
    fn drop(&mut self) {
        if !self.child.try_wait().is_ok_and(|status| status.is_some()) {
            self.kill();
        }
    }
}

/// A run that has ended.
pub struct Outcome {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: String,
    shown: String,
    pub took: Duration,
}

impl Outcome {
    /// Checks how it ended; a failure shows all that it said.
    #[track_caller]
    pub fn exits(self, code: i32) -> Outcome {
        assert!(self.status.code() == Some(code), "expected exit {code}\n{}", self.describe());
        self
    }

    /// Whether it was ended by SIGKILL.
    pub fn was_killed(&self) -> bool {
        self.status.signal() == Some(9)
    }

    /// Checks that stderr has this text somewhere, in any case.
    #[track_caller]
    pub fn says(self, text: &str) -> Outcome {
        let found = self.stderr.to_lowercase().contains(&text.to_lowercase());
        assert!(found, "expected {text:?} on stderr\n{}", self.describe());
        self
    }

    /// Checks that no thread of either end panicked.
    #[track_caller]
    pub fn sane(self) -> Outcome {
        assert!(!self.stderr.contains("panicked at"), "a panic\n{}", self.describe());
        self
    }

    /// All that stdout said, each line one JSON object with a string `event`.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        let text = std::str::from_utf8(&self.stdout)
            .unwrap_or_else(|_| panic!("stdout is not UTF-8\n{}", self.describe()));
        text.lines()
            .map(|line| {
                let event: Value = serde_json::from_str(line)
                    .unwrap_or_else(|error| panic!("{error}: {line}\n{}", self.describe()));
                assert!(event["event"].is_string(), "no event in {line}\n{}", self.describe());
                event
            })
            .collect()
    }

    /// The last line of stdout.
    #[track_caller]
    pub fn summary(&self) -> Summary {
        let last = self.events().pop().unwrap_or_else(|| panic!("nothing on stdout\n{}", self.describe()));
        assert!(last["event"] == "summary", "the last event is no summary\n{}", self.describe());
        Summary(last)
    }

    /// Everything about the run, for a failure.
    pub fn describe(&self) -> String {
        let stdout = String::from_utf8_lossy(&self.stdout);
        format!(
            "{}\n{} after {:?}\nstdout:\n{stdout}\nstderr:\n{}",
            self.shown, self.status, self.took, self.stderr
        )
    }
}

/// The summary event.
#[derive(Debug)]
pub struct Summary(pub Value);

impl Summary {
    #[track_caller]
    pub fn number(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or_else(|| panic!("no count {name} in {}", self.0))
    }

    /// The value of a line in `chosen`; nothing where there is none.
    pub fn chosen(&self, name: &str) -> &str {
        let mut lines = self.0["chosen"].as_array().into_iter().flatten();
        let line = lines.find(|line| line["name"] == name);
        line.and_then(|line| line["value"].as_str()).unwrap_or_default()
    }

    #[track_caller]
    pub fn text(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or_else(|| panic!("no text {name} in {}", self.0))
    }
}
