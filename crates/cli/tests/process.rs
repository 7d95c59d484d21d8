//! What the program does to its own process.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a process may take, on a machine however busy, to do what it does at once.
const PATIENCE: Duration = Duration::from_secs(60);

/// Goal: a copy has all descriptors that it may have, and one within this host can be debugged; where there
/// will be keys, at the near end and as an agent, no core file can hold them.
/// Method: limits of processes that wait: a slow copy, a copy whose ssh says nothing, an agent that hears
/// nothing.
#[test]
fn the_program_prepares_its_process() {
    let limits = "ulimit -S -n 256; ulimit -S -c unlimited; exec \"$0\" \"$@\"";
    let start = |words: &[&str]| {
        let mut command = Command::new("sh");
        command.args(["-c", limits, env!("CARGO_BIN_EXE_haul")]).args(words);
        // Its input stays open, and nothing is said.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start the program")
    };
    let here = start(&["cp", "-q", "--rate=1MiB/s", "null://1GiB", "null://"]);
    assert_eq!(settles(here, 3, |limit| many_files(limit) && limit("Max core file size").0 != "0"), Ok(()));
    let dir = tempfile::tempdir().expect("a directory");
    let mute = dir.path().join("mute");
    fs::write(&mute, "#!/bin/sh\nexec cat >/dev/null\n").expect("write a program");
    fs::set_permissions(&mute, fs::Permissions::from_mode(0o755)).expect("let it run");
    let near = start(&["cp", "-q", "-e", mute.to_str().expect("UTF-8"), "null://1GiB", "h:null://"]);
    assert_eq!(settles(near, 1, |limit| many_files(limit) && limit("Max core file size").0 == "0"), Ok(()));
    let agent = start(&["agent"]);
    assert_eq!(settles(agent, 1, |limit| many_files(limit) && limit("Max core file size").0 == "0"), Ok(()));
}

type Limit<'a> = &'a dyn Fn(&str) -> (String, String);

fn many_files(limit: Limit) -> bool {
    let (files, most) = limit("Max open files");
    files.parse::<u64>().is_ok_and(|files| files > 256) || (!files.is_empty() && files == most)
}

/// Looks at the limits of a process that has come to `threads` threads until `good` says so, and ends it;
/// `Err` if it ended by itself, or nothing was good. A copy that runs has several threads, and has done to
/// its process what it will do.
fn settles(mut process: Child, threads: usize, good: impl Fn(Limit) -> bool) -> Result<(), String> {
    let proc = format!("/proc/{}", process.id());
    let limit = |name: &str| {
        // The shell before it has the limits of this test, which are good by chance.
        let is_haul = fs::read_link(format!("{proc}/exe"))
            .is_ok_and(|exe| exe == Path::new(env!("CARGO_BIN_EXE_haul")));
        let limits =
            fs::read_to_string(format!("{proc}/limits")).ok().filter(|_| is_haul).unwrap_or_default();
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned();
        let mut words = line.split_whitespace().map(str::to_owned);
        (words.next().unwrap_or_default(), words.next().unwrap_or_default())
    };
    let is_over = |process: &mut Child| process.try_wait().expect("ask for the process").is_some();
    let is_up = || fs::read_dir(format!("{proc}/task")).is_ok_and(|tasks| tasks.count() >= threads);
    let begun = Instant::now();
    while !(is_over(&mut process) || is_up() && good(&limit)) && begun.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    let (ended, in_vain) = (is_over(&mut process), begun.elapsed() >= PATIENCE);
    let _ = process.kill();
    let _ = process.wait();
    match (ended, in_vain) {
        (true, _) => Err("it ended by itself".into()),
        (false, true) => Err("its limits stay what they are".into()),
        (false, false) => Ok(()),
    }
}
