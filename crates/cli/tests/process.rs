//! What the program does to its own process.

use std::fs;
use std::process::{Command, Stdio};

/// Goal: keys of a session get into no core file, and the process has all descriptors that it may have.
/// Method: the limits of a copy that runs, started with a soft limit of 256 descriptors and cores allowed.
#[test]
fn the_program_prepares_its_process() {
    let script = "ulimit -S -n 256; ulimit -S -c unlimited 2>/dev/null; exec \"$0\" cp -q --rate=1MiB null://1GiB null://";
    let mut copy = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_haul")])
        .stdin(Stdio::null())
        .spawn()
        .expect("start a copy");
    let path = format!("/proc/{}/limits", copy.id());
    let limit = |name: &str| {
        let limits = fs::read_to_string(&path).expect("read the limits of the process");
        let line =
            limits.lines().find(|line| line.starts_with(name)).expect("the kernel tells of it").to_owned();
        let words: Vec<String> = line[name.len()..].split_whitespace().map(str::to_owned).collect();
        (words[0].clone(), words[1].clone())
    };
    let is_prepared = || {
        let (files, files_max) = limit("Max open files");
        let enough = files.parse::<u64>().ok() > Some(256) || files == files_max;
        enough && limit("Max core file size").0 == "0"
    };
    // It prepares itself before it copies, and it copies until it is ended here.
    let prepared = std::iter::repeat_with(is_prepared).take(1_000_000).any(|prepared| prepared);
    let running = copy.try_wait().expect("ask for the copy").is_none();
    let _ = copy.kill();
    let _ = copy.wait();
    assert!(running && prepared, "running: {running}, prepared: {prepared}");
}
