//! A small file system that can be full.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A tmpfs; unmounted on drop.
pub struct Tmpfs {
    at: PathBuf,
}

impl Tmpfs {
    /// Mounts one with these options, `size=8m` say, at an existing directory.
    pub fn mount(at: &Path, options: &str) -> Tmpfs {
        let tmpfs = Tmpfs { at: at.to_owned() };
        tmpfs.call("mount", &["-t", "tmpfs", "-o", options, "haul-test"]);
        tmpfs
    }

    /// Changes its options while it is in use.
    pub fn remount(&self, options: &str) {
        self.call("mount", &["-o", &format!("remount,{options}")]);
    }

    fn call(&self, program: &str, args: &[&str]) {
        let output = Command::new(program).args(args).arg(&self.at).output().expect("run mount");
        assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // Lazily: a haul that was killed a moment ago may still hold it.
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}
