//! The rig: what starts, watches, kills and checks the program under test. Nothing here is haul's code.

use std::path::{Path, PathBuf};

#[macro_use]
pub mod needs;
pub mod compare;
pub mod disk;
pub mod hosts;
pub mod model;
pub mod mount;
pub mod netns;
pub mod procs;
pub mod run;
pub mod sshd;
pub mod tree;
pub mod way;

/// A folder of one test; removed with all that is in it.
pub struct Room {
    temp: tempfile::TempDir,
}

impl Room {
    /// Makes a new folder that other users may enter, for some tests run haul as another user.
    pub fn new() -> Room {
        let temp =
            tempfile::Builder::new().prefix("haul-e2e-").tempdir().expect("make a folder for the test");
        set_mode(temp.path(), 0o755);
        Room { temp }
    }

    /// The path of `name` in this room.
    pub fn at(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// Makes the directory `name` in this room.
    pub fn dir(&self, name: &str) -> PathBuf {
        let path = self.at(name);
        std::fs::create_dir_all(&path).expect("make a directory");
        path
    }

    /// Makes the file `name` with this content in this room.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.at(name);
        std::fs::write(&path, content).expect("write a file");
        path
    }
}

impl Drop for Room {
    /// Read-only directories would keep a user who is not root from removing the room.
    fn drop(&mut self) {
        tree::make_removable(self.temp.path());
    }
}

/// Sets the mode bits of `path`.
pub fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("set a mode");
}

/// Reads a file, or says which one could not be read.
pub fn read(path: impl AsRef<Path>) -> Vec<u8> {
    let path = path.as_ref();
    std::fs::read(path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()))
}

/// A number from the environment, or `default`.
pub fn number_from_env(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: no number")))
}
