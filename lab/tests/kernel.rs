//! `lab kernel` as a program: a real guest kernel, its netem, and nothing left of either.
//!
//! In: the built program. Guests are told apart by name or memory, which are in their command line.
//! Times are compared one-sidedly where the machine can only be slower: a round trip is never shorter than
//! what was set, and its shortest of many is at most [`SLACK_MS`] longer. Deadlines are safety nets. What a
//! test needs and the machine lacks skips it, aloud; `HAUL_TEST_REQUIRE` and `HAUL_TEST_SKIPS` as in the
//! other end-to-end tests.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

mod support;

use support::needs;

const SLACK_MS: f64 = 5.0;
const PATIENCE: Duration = Duration::from_secs(30);

/// Whether guests can be started here.
fn here() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = |program: &str| {
        std::env::split_paths(&path)
            .chain(["/usr/sbin".into(), "/sbin".into()])
            .any(|dir: PathBuf| dir.join(program).exists())
    };
    let root = rustix::process::geteuid().is_root() && Path::new("/dev/net/tun").exists();
    let found = root && ["linux.uml", "modprobe", "ethtool", "ip", "ping", "unshare"].into_iter().all(found);
    needs("uml", found) && needs("uml that knows all of this processor", fits())
}

/// Whether the guests' kernel can keep this processor's registers: one is started, once. Any other fault is
/// the tests'.
fn fits() -> bool {
    static FITS: OnceLock<bool> = OnceLock::new();
    *FITS.get_or_init(|| {
        !text(&lab(&["kernel", "run", "--", "true"]).stderr).contains("registers of this processor")
    })
}

fn lab(args: &[&str]) -> Output {
    output(env!("CARGO_BIN_EXE_lab"), args)
}

fn output(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

/// The processes whose command line has `word` as one of its words.
fn processes(word: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("list /proc").flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if line.split(|byte| *byte == 0).any(|part| part == word.as_bytes()) {
            found.push(entry.file_name().into_string().expect("a number"));
        }
    }
    found
}

/// A directory of this test that a guest can see: of some places it has its own, and a clone may lie in one
/// of them.
fn visible() -> tempfile::TempDir {
    const OWN: [&str; 6] = ["/run", "/tmp", "/var/tmp", "/mnt", "/media", "/dev/shm"];
    let real = |place: &str| std::fs::canonicalize(place).ok();
    let hidden = |place: &Path| OWN.iter().filter_map(|own| real(own)).any(|own| place.starts_with(own));
    let places = [env!("CARGO_TARGET_TMPDIR"), "/var/lib", "/root"].into_iter().filter_map(real);
    let place = places.into_iter().find(|place| !hidden(place)).expect("a place that guests see");
    tempfile::Builder::new().prefix("haul-lab-test-").tempdir_in(place).expect("make a directory")
}

/// Goal: a command runs in a kernel that is not this machine's; output, errors and exit code come back byte
/// for byte; its arguments reach it as they are, and modules are loaded.
/// Method: a command that says much on both; another with odd words; a script that lies where the guest has
/// other files.
#[test]
fn kernel_run_passes_output_and_exit_code() {
    if !here() {
        return;
    }
    let line = "uname -r; seq 1 20000; seq 1 3000 >&2; grep -o '^sch_netem' /proc/modules; exit 7";
    let run = lab(&["kernel", "run", "--module", "sch_netem", "--", line]);
    assert_eq!(run.status.code(), Some(7), "{}", text(&run.stderr));
    let numbers = |last: u32| (1..=last).map(|number| format!("{number}\n")).collect::<String>();
    let (release, rest) = text(&run.stdout).split_once('\n').expect("a line");
    let ours = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("our release");
    assert!(release.starts_with(|c: char| c.is_ascii_digit()) && release != ours.trim(), "{release}");
    assert!(rest == numbers(20_000) + "sch_netem\n", "{} bytes", rest.len());
    assert!(text(&run.stderr) == numbers(3_000), "{}", text(&run.stderr));

    let dir = tempfile::tempdir().expect("make a directory");
    let script = dir.path().join("script");
    std::fs::write(&script, "printf '%s|' \"$0\" \"it's\" '$HOME'\ntrue").expect("write a script");
    let run = lab(&["kernel", "run", "--", script.to_str().expect("text")]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    assert!(text(&run.stdout).ends_with("script|it's|$HOME|"), "{}", text(&run.stdout));
}

/// Goal: a guest can do to this machine's files nothing, whatever it does to its own mounts.
/// Method: it makes its root writable and writes beside a file of ours, over it, and removes it.
#[test]
fn kernel_guest_writes_nothing() {
    if !here() {
        return;
    }
    let dir = visible();
    let ours = dir.path().join("ours");
    std::fs::write(&ours, "ours").expect("write a file");
    let line = format!(
        "cat {0}/ours; mount -o remount,rw / || exit 3; touch {0}/theirs; echo x >>{0}/ours; rm -f {0}/ours; exit 0",
        dir.path().display()
    );
    let run = lab(&["kernel", "run", "--", &line]);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    assert_eq!(text(&run.stdout), "ours", "it sees our files");
    assert_eq!(text(&run.stderr).matches("Read-only file system").count(), 3, "{}", text(&run.stderr));
    assert_eq!(std::fs::read_to_string(&ours).expect("it is there"), "ours");
    assert!(!dir.path().join("theirs").exists());
}

/// Goal: a guest that hangs is ended when its time is over; one that crashes is told as such; one whose `lab`
/// is killed ends as well. No process is left of any.
/// Method: an endless loop, a panic, and SIGKILL while a command sleeps; each with a memory size of its own.
#[test]
fn kernel_guest_never_stays() {
    if !here() {
        return;
    }
    let run = lab(&["kernel", "run", "--memory", "97MiB", "--timeout", "5s", "--", "while :; do :; done"]);
    assert_eq!(run.status.code(), Some(124), "{}", text(&run.stderr));
    assert_eq!(processes("mem=99328K"), [""; 0]);

    let run = lab(&["kernel", "run", "--memory", "98MiB", "--", "echo c >/proc/sysrq-trigger; sleep 60"]);
    assert_eq!(run.status.code(), Some(125));
    assert!(text(&run.stderr).contains("panic"), "{}", text(&run.stderr));
    assert_eq!(processes("mem=100352K"), [""; 0]);

    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    command.args(["kernel", "run", "--memory", "99MiB", "--", "echo begun; sleep 60"]).stdout(Stdio::piped());
    let mut child = command.spawn().expect("start lab");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("hear it");
    assert_eq!(line, "begun\n");
    assert!(!processes("mem=101376K").is_empty(), "this is how a guest is found");
    child.kill().expect("kill lab");
    child.wait().expect("collect it");
    let deadline = Instant::now() + PATIENCE;
    while !processes("mem=101376K").is_empty() {
        assert!(Instant::now() < deadline, "{:?} are left", processes("mem=101376K"));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Goal: what a guest cannot do is refused with a reason.
/// Method: a module that does not exist, a command that does not exist, too little memory, jitter on a
/// network.
#[test]
fn kernel_says_what_is_wrong() {
    if !here() {
        return;
    }
    let run = lab(&["kernel", "run", "--module", "haul_none", "--", "true"]);
    assert_eq!(run.status.code(), Some(125));
    assert!(text(&run.stderr).contains("haul_none"), "{}", text(&run.stderr));
    let run = lab(&["kernel", "run", "--", "/nowhere/none", "x"]);
    assert_eq!(run.status.code(), Some(127));
    assert!(text(&run.stderr).contains("/nowhere/none"), "{}", text(&run.stderr));
    let run = lab(&["kernel", "run", "--memory", "1MiB", "--", "true"]);
    assert!(text(&run.stderr).contains("MiB"), "{}", text(&run.stderr));
    let up = lab(&["kernel", "wan", "up", "lan", "--jitter", "1ms", "--name", "kernel-errors"]);
    assert!(!up.status.success() && text(&up.stderr).contains("jitter"), "{}", text(&up.stderr));
    assert!(!Path::new("/run/netns/haul-lab-kernel-errors-a").exists());
}

struct Network(String);

impl Network {
    fn named(test: &str) -> Network {
        Network(format!("k{}-{test}", std::process::id()))
    }

    fn up(&self, args: &[&str]) -> Value {
        let up = ["kernel", "wan", "up", "--no-proof", "--name", &self.0];
        let up = lab(&[&up, args].concat());
        assert!(up.status.success(), "{}", text(&up.stderr));
        serde_json::from_slice(&up.stdout).expect("JSON")
    }

    fn down(&self) -> Output {
        lab(&["kernel", "wan", "down", &self.0])
    }

    /// Shortest round trip of some pings, ms.
    fn ping(&self) -> f64 {
        let namespace = format!("--net=/run/netns/haul-lab-{}-a", self.0);
        let ping = ["ping", "-n", "-q", "-c", "10", "-i", "0.05", "10.77.0.2"];
        let said = output("nsenter", &[&[namespace.as_str(), "--"], &ping[..]].concat());
        let figures = text(&said.stdout).lines().find_map(|line| line.strip_prefix("rtt ")?.split_once("= "));
        let (_, figures) = figures.unwrap_or_else(|| panic!("no answer: {}", text(&said.stdout)));
        figures.split('/').next().and_then(|min| min.parse().ok()).expect("a number")
    }

    /// As `list` shows it.
    fn stale(&self) -> bool {
        let list: Value = serde_json::from_slice(&lab(&["wan", "list"]).stdout).expect("JSON");
        let mut listed = list.as_array().expect("a list").iter();
        let listed = listed.find(|entry| entry["name"] == self.0.as_str()).expect("still written down");
        listed["stale"].as_bool().expect("a switch")
    }

    fn assert_nothing_left(&self, pid: &Value) {
        let list = output("ip", &["netns", "list"]);
        assert!(!text(&list.stdout).contains(&self.0), "{}", text(&list.stdout));
        let links = output("ip", &["link"]);
        assert!(!text(&links.stdout).contains(" tap") && !text(&links.stdout).contains(" wan0"));
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
        let files = std::fs::read_dir("/run/haul-lab").expect("list the state").flatten();
        let files: Vec<_> = files.map(|entry| entry.file_name().into_string().expect("text")).collect();
        assert!(!files.iter().any(|file| file.contains(&self.0)), "{files:?}");
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.down();
    }
}

/// Goal: packets go through the guest's netem, and a network is removed wholly, also when its guest was
/// killed; until then its name is taken, and it is listed as stale.
/// Method: 30 ms, pings; down. Up again, its process killed, `list`, up over it with 60 ms, pings, down. What
/// is left is looked for.
#[test]
fn kernel_netem_is_in_the_path() {
    if !here() {
        return;
    }
    let network = Network::named("wan");
    let assert_ping = |set: f64| {
        let seen = network.ping();
        assert!(seen >= set - 0.001 && seen <= set + SLACK_MS, "{seen} ms seen, {set} set");
    };
    let path = ["--rtt", "30ms", "--rate", "1Gbit"];
    let guest = format!("umid=haul-lab-{}", network.0);
    let said = network.up(&path);
    assert_eq!(said["addresses"], json!(["10.77.0.1", "10.77.0.2"]));
    assert_eq!((&said["carrier"], &said["path"]["delay_ns"]), (&json!("kernel"), &json!(15_000_000)));
    assert!(!processes(&guest).is_empty(), "this is how the guest is found");
    assert_ping(30.0);
    let again = lab(&["kernel", "wan", "up", "lan", "--name", &network.0]);
    assert!(!again.status.success() && text(&again.stderr).contains("is up"), "{}", text(&again.stderr));
    assert!(network.down().status.success());
    network.assert_nothing_left(&said["pid"]);
    assert_eq!(processes(&guest), [""; 0]);

    let killed = network.up(&path)["pid"].clone();
    assert!(output("kill", &["-KILL", &killed.to_string()]).status.success());
    let deadline = Instant::now() + PATIENCE;
    while !processes(&guest).is_empty() {
        assert!(Instant::now() < deadline, "one process ends them all");
        std::thread::sleep(Duration::from_millis(10));
    }
    // The process that was killed goes as the last of them.
    while !network.stale() {
        assert!(Instant::now() < deadline, "it is listed as stale");
        std::thread::sleep(Duration::from_millis(10));
    }
    let said = network.up(&["--rtt", "60ms", "--rate", "1Gbit"]);
    assert_ping(60.0);
    assert!(network.down().status.success());
    network.assert_nothing_left(&said["pid"]);
}

/// Goal: the check measures both, judges by its own bounds, and ends by what it says.
/// Method: a thin path without rates. Whether a busy machine keeps the bounds is not for a test to say.
#[test]
fn kernel_check_measures_both() {
    if !here() {
        return;
    }
    let check = lab(&["kernel", "check", "thin-100M", "--seconds", "0", "--json"]);
    let said: Value = serde_json::from_slice(&check.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", text(&check.stderr)));
    assert_eq!(said["agree"], check.status.success());
    assert_eq!(said["agree"], said["pairs"][0]["disagreements"].as_array().expect("a list").is_empty());
    for side in ["emulator", "netem"] {
        let side = &said["pairs"][0][side];
        let [min, mean] = ["rtt_min_ms", "rtt_mean_ms"].map(|key| side[key].as_f64().expect("a number"));
        assert!((39.999..=mean).contains(&min), "{side}");
        assert_eq!(side["probes"], 20_000);
        assert!(side["lost"].as_u64() < Some(20_000), "{side}");
    }
}
