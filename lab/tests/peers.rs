//! `lab peers` as a program: every peer that is installed moves a workload over a real network, byte for
//! byte, and nothing is left of it, however it ends.
//!
//! In: the built programs. What belongs to a run carries the process id of its `lab`: namespaces, marks in
//! the environment of processes, state files; its directory is the test's own. So runs beside each other do
//! not see each other. What a test needs and the machine lacks skips it, aloud; `HAUL_TEST_REQUIRE` and
//! `HAUL_TEST_SKIPS` as in the other end-to-end tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

mod support;

use support::needs;

/// A safety net for what comes in a second or two.
const PATIENCE: Duration = Duration::from_secs(120);

/// A `lab` that runs, and the directory that it works in.
struct Lab {
    child: Option<Child>,
    pid: u32,
    dir: tempfile::TempDir,
}

/// The `haul` that was built beside `lab`.
fn haul() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_lab")).with_file_name("haul")
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Whether a test can run here; tells aloud if not.
fn can_run() -> bool {
    let all = [
        (
            "netns",
            rustix::process::geteuid().is_root() && Path::new("/dev/net/tun").exists() && is_there("ip"),
        ),
        ("sshd", is_there("ssh") && Path::new("/usr/sbin/sshd").exists()),
        ("rsync", is_there("rsync")),
        ("haul", haul().exists()),
    ];
    all.into_iter().all(|(need, there)| needs(need, there))
}

impl Lab {
    fn check(args: &[&str]) -> Lab {
        let dir = tempfile::tempdir().expect("make a directory");
        let child = Command::new(env!("CARGO_BIN_EXE_lab"))
            .args(["peers", "check", "--dir"])
            .arg(dir.path())
            .args(args)
            .env("LAB_HAUL", haul())
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start lab");
        Lab { pid: child.id(), child: Some(child), dir }
    }

    /// Waits for its end; then nothing of it may be left.
    fn finish(&mut self) -> (Output, String) {
        let output = self.child.take().expect("waited for once").wait_with_output().expect("wait for lab");
        let text = [&output.stdout, &output.stderr]
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
            .concat();
        assert_eq!(self.left(), [""; 0], "{text}");
        (output, text)
    }

    /// Everything that is its own, except itself.
    fn left(&self) -> Vec<String> {
        let mut left = self.processes();
        for (dir, prefix) in [
            (Path::new("/run/netns"), format!("haul-lab-b{}-", self.pid)),
            (Path::new("/run/haul-lab"), format!("wan-b{}-", self.pid)),
            (self.dir.path(), String::new()),
        ] {
            let Ok(entries) = fs::read_dir(dir) else { continue };
            let paths = entries.map(|entry| entry.expect("an entry").path());
            let ours = |path: &PathBuf| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
            };
            left.extend(paths.filter(ours).map(|path| path.display().to_string()));
        }
        left
    }

    /// Processes that carry its mark, by their command lines.
    fn processes(&self) -> Vec<String> {
        let mark = format!("HAUL_LAB=b{}-", self.pid);
        let all = fs::read_dir("/proc").expect("list processes");
        let marked = all.filter_map(|entry| {
            let path = entry.ok()?.path();
            let environment = fs::read(path.join("environ")).ok()?;
            let found = environment.split(|byte| *byte == 0).any(|entry| entry.starts_with(mark.as_bytes()));
            let line = fs::read(path.join("cmdline")).unwrap_or_default();
            found.then(|| String::from_utf8_lossy(&line).replace('\0', " "))
        });
        marked.collect()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It ends what it has started; SIGKILL would leave that.
            let _ = Command::new("kill").arg(self.pid.to_string()).status();
            let _ = child.wait();
        }
    }
}

/// Goal: every peer that is installed moves a tree and a file to another host over a network, every byte the
/// same; of rsync, ssh and haul itself there is no doubt. Nothing is left.
/// Method: `lab peers check` over an emulated path; its lines; what is left is looked for.
#[test]
fn peers_move_every_byte() {
    if !can_run() {
        return;
    }
    let (output, text) = Lab::check(&[]).finish();
    assert!(output.status.success(), "{text}");
    for peer in ["haul", "rsync", "ssh_tar"] {
        let line = text.lines().find(|line| line.split(' ').next() == Some(peer));
        assert!(line.is_some_and(|line| line.contains("ok: every byte is the same")), "{peer}: {text}");
    }
}

/// Goal: a copy that takes too long is ended and told from other failures; a wrong setting is one of those;
/// an unknown peer is told which there are. Nothing is left.
/// Method: a limit that no copy can keep; a setting that rsync does not have; a name.
#[test]
fn peers_fail_in_words() {
    if !can_run() {
        return;
    }
    let (output, text) = Lab::check(&["ssh_tar", "tar", "haul", "--limit", "1ms"]).finish();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("ssh_tar    FAILED: ") && text.contains("haul       FAILED: "), "{text}");
    assert!(text.contains("over the limit of 0 s"), "{text}");
    let (output, text) = Lab::check(&["rsync", "--loopback", "--set", "fsyncs=yes"]).finish();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("no setting is called fsyncs; there are fsync"), "{text}");
    let (output, text) = Lab::check(&["pigeon"]).finish();
    assert!(!output.status.success() && text.contains("there are haul, rsync"), "{text}");
}

/// Goal: a lab that is asked to end in the middle of a copy undoes everything.
/// Method: a path so thin that the copy takes minutes; SIGTERM when the far end's tar runs.
#[test]
fn peers_interrupted_leave_nothing() {
    if !can_run() {
        return;
    }
    let mut lab = Lab::check(&["ssh_tar", "--rate", "100kbit", "--limit", "600s"]);
    let deadline = Instant::now() + PATIENCE;
    while !lab.processes().iter().any(|line| line.starts_with("tar ") && line.ends_with("-x ")) {
        let ended = lab.child.as_mut().expect("it runs").try_wait().expect("look at lab");
        assert!(ended.is_none() && Instant::now() < deadline, "no far tar: {:?}", lab.processes());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(lab.left().len() > 3, "there is something to undo");
    assert!(Command::new("kill").arg(lab.pid.to_string()).status().expect("run kill").success());
    let (output, text) = lab.finish();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("interrupted"), "{text}");
}
