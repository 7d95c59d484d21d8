//! Which haul is measured, so that figures of two builds are never taken for those of one.
//!
//! In: the program and the work tree that it was built from. Out: hash, version, commit; later whether all
//! still holds.

use std::fs;
use std::path::Path;
use std::time::UNIX_EPOCH;

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use super::machine::said_by;

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    pub version: String,
    /// BLAKE3 of the program.
    pub hash: String,
    /// Of the work tree; none outside of one.
    pub commit: Option<String>,
    /// The work tree had changes that no commit has.
    pub dirty: bool,
    /// The program is older than the commit, so that it may not be made of it.
    pub older: bool,
    /// What is changed, to tell one dirty tree from another.
    changes: String,
}

impl Build {
    /// Looks at the program and at the work tree around `root`.
    ///
    /// # Errors
    /// There is no such program, or it does not run.
    pub fn look(haul: &Path, root: &Path) -> anyhow::Result<Build> {
        let bytes =
            fs::read(haul).with_context(|| format!("read {}; `make build` makes it", haul.display()))?;
        let program = haul.to_str().context("the path of haul is no text")?;
        let version =
            said_by(program, &["--version"], root).with_context(|| format!("run {program} --version"))?;
        let modified =
            fs::metadata(haul)?.modified()?.duration_since(UNIX_EPOCH).map_or(0, |at| at.as_secs());
        // What does not go into the program does not change the build: results and papers are written
        // meanwhile.
        let sources = ["--", "crates", "Cargo.toml", "Cargo.lock"];
        let git = |args: &[&str]| said_by("git", &[args, &sources[..]].concat(), root);
        let committed = said_by("git", &["log", "-1", "--format=%ct", "--", "crates"], root)
            .and_then(|at| at.parse::<u64>().ok());
        let status = git(&["status", "--porcelain"]).unwrap_or_default();
        let diff = git(&["diff", "HEAD"]).unwrap_or_default();
        Ok(Build {
            version,
            hash: blake3::hash(&bytes).to_hex().to_string(),
            commit: said_by("git", &["rev-parse", "--short=12", "HEAD"], root),
            dirty: !status.is_empty(),
            older: committed.is_some_and(|at| modified < at),
            changes: blake3::hash(format!("{status}\0{diff}").as_bytes()).to_hex().to_string(),
        })
    }

    /// # Errors
    /// Something is not as it was.
    pub fn same(&self, now: &Build) -> anyhow::Result<()> {
        ensure!(
            self.hash == now.hash,
            "the haul program was changed during the measurement: no results are written, for \
            they would be of two builds"
        );
        ensure!(
            self == now,
            "the work tree of haul was changed during the measurement (commit {} before, {} now): no \
            results are written, for nobody could say what they are of",
            self.commit.as_deref().unwrap_or("none"),
            now.commit.as_deref().unwrap_or("none")
        );
        Ok(())
    }

    /// In words, for the results.
    pub fn describe(&self) -> String {
        let mut text = match &self.commit {
            Some(commit) => format!("{}, commit {commit}", self.version),
            None => format!("{}, of no work tree", self.version),
        };
        if self.dirty {
            text += ", **with changes that no commit has**";
        }
        if self.older {
            text += ", **program older than the newest commit of its sources**";
        }
        text + &format!(", BLAKE3 {}", self.hash.get(..16).unwrap_or(&self.hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::Command;

    fn git(dir: &Path, args: &[&str]) {
        let name = ["-c", "user.name=a", "-c", "user.email=a@b.invalid", "-c", "commit.gpgsign=false"];
        assert!(
            Command::new("git").args(name).args(args).current_dir(dir).output().unwrap().status.success(),
            "{args:?}"
        );
    }

    /// Goal: a program or a work tree that changes while it is measured is seen; what haul is not made of
    /// does not matter.
    /// Method: a repository with a program that says its version; changes one after the other.
    #[test]
    fn a_changed_build_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (root, haul) = (dir.path().join("tree"), dir.path().join("haul"));
        fs::create_dir_all(root.join("crates")).unwrap();
        fs::write(root.join("crates/a.rs"), "a").unwrap();
        git(&root, &["init", "-q"]);
        git(&root, &["add", "."]);
        git(&root, &["commit", "-q", "-m", "a"]);
        let program = |text: &str| {
            fs::write(&haul, format!("#!/bin/sh\necho {text}\n")).unwrap();
            fs::set_permissions(&haul, fs::Permissions::from_mode(0o755)).unwrap();
        };
        let look = || Build::look(&haul, &root).unwrap();
        program("haul 1");
        let first = look();
        assert!(first.version == "haul 1" && !first.dirty && first.commit.is_some());
        first.same(&look()).unwrap();
        fs::write(root.join("result.md"), "figures").unwrap();
        first.same(&look()).unwrap();
        program("haul 2");
        assert!(first.same(&look()).unwrap_err().to_string().contains("haul program was changed"));
        program("haul 1");
        fs::write(root.join("crates/a.rs"), "b").unwrap();
        let dirty = look();
        assert!(dirty.dirty && dirty.describe().contains("no commit has"));
        assert!(first.same(&dirty).unwrap_err().to_string().contains("work tree"));
        fs::write(root.join("crates/a.rs"), "c").unwrap();
        assert!(dirty.same(&look()).is_err(), "one dirty tree is not the other");
        git(&root, &["commit", "-q", "-a", "-m", "c"]);
        assert!(first.same(&look()).is_err());
        fs::remove_file(&haul).unwrap();
        assert!(format!("{:#}", Build::look(&haul, &root).unwrap_err()).contains("make build"));
    }
}
