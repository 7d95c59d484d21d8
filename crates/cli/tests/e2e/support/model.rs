//! Storage targets that can be frozen: the model of `lab targets`, mounted.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

/// The `lab` that was built beside `haul`.
pub fn lab() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_haul")).with_file_name("lab")
}

/// A striped file system over some targets; taken down on drop.
pub struct Model {
    name: String,
    pub mount: PathBuf,
}

impl Model {
    /// So many targets, one for each file.
    pub fn up(targets: u32) -> Model {
        Model::up_as(targets, "ssd")
    }

    /// One target, and upper and lower case of a name are one.
    pub fn folding() -> Model {
        Model::up_with(1, "null", &["--fold"])
    }

    /// .. which are as this says: a preset's name, or a JSON file.
    pub fn up_as(targets: u32, spec: &str) -> Model {
        Model::up_with(targets, spec, &[])
    }

    fn up_with(targets: u32, spec: &str, more: &[&str]) -> Model {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test-top-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let targets = targets.to_string();
        let shape = ["--model", &targets, "--spec", spec, "--stripe-count", "1", "--memory"];
        let output = call(&[&["up", "--name", &name], &shape[..], more].concat());
        assert!(output.status.success(), "lab: {}", String::from_utf8_lossy(&output.stderr));
        let said: Value = serde_json::from_slice(&output.stdout).expect("one JSON line");
        Model { name, mount: PathBuf::from(said["mount"].as_str().expect("a mount")) }
    }

    /// Nothing comes back from this target.
    pub fn freeze(&self, target: u32) {
        self.set(target, "--freeze");
    }

    /// It goes on.
    pub fn thaw(&self, target: u32) {
        self.set(target, "--thaw");
    }

    fn set(&self, target: u32, what: &str) {
        let output = call(&["set", &self.name, &target.to_string(), what]);
        assert!(output.status.success(), "lab: {}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = Command::new(lab()).args(["targets", "down", &self.name]).output();
    }
}

fn call(args: &[&str]) -> Output {
    Command::new(lab()).arg("targets").args(args).output().expect("run lab")
}
