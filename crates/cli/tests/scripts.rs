//! What the scripts promise to whoever runs a make target.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

fn program(dir: &Path, name: &str, script: &str) {
    let path = dir.join(name);
    fs::write(&path, format!("#!/bin/bash\n{script}\n")).expect("write a program");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("make it executable");
}

/// Goal: while something else installs packages, needs.sh waits and says so, for dpkg's lock and for that of
/// the lists; what is no lock is an error at once.
/// Method: programs of these names that note how they are called; apt-get's `update` finds a lock twice. No
/// package is installed and nobody sleeps.
#[test]
fn another_installation_is_waited_for() {
    let run = |error: &str, refusals: u32| {
        let dir = tempfile::tempdir().expect("a directory");
        let (bin, log) = (dir.path().join("bin"), dir.path().join("log"));
        fs::create_dir(&bin).expect("make a directory");
        program(&bin, "id", "echo 1000");
        program(&bin, "dpkg-query", "exit 1");
        program(&bin, "cargo", "exit 0");
        program(&bin, "sleep", &format!("echo sleep >>{}", log.display()));
        // Of what runs as root only apt-get does something.
        program(&bin, "sudo", "if [ \"$1\" = apt-get ]; then shift; exec apt-get \"$@\"; fi; exit 0");
        let apt = format!(
            "echo \"$@\" >>{log}\nif [[ \" $* \" == *\" update \"* ]] && [ \"$(grep -c update {log})\" -le {refusals} ]; then\n\
             echo '{error}' >&2; exit 100\nfi",
            log = log.display()
        );
        program(&bin, "apt-get", &apt);
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/needs.sh");
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("a path"));
        let output =
            Command::new("bash").args([script, "packages", "no-such-package"]).env("PATH", path).output();
        let output = output.expect("run the script");
        let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.code(), told, fs::read_to_string(log).unwrap_or_default())
    };
    let lock = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt-get)";
    let (code, told, log) = run(lock, 2);
    assert_eq!(code, Some(0), "{told}{log}");
    assert!(told.contains("waiting for another installation"), "{told}");
    assert_eq!((log.matches("sleep").count(), log.matches("update").count()), (2, 3), "{log}");
    assert!(log.contains("DPkg::Lock::Timeout=300 install"), "{log}");
    let (code, told, log) = run("E: no network", 2);
    assert_eq!((code, log.matches("update").count()), (Some(1), 1), "{told}{log}");
    assert!(told.contains("no network"), "{told}");
}
