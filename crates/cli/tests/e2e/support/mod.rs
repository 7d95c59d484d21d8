//! The rig: what starts, watches, kills and checks the program under test. Nothing here is haul's code.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

#[macro_use]
pub mod needs;
pub mod beside;
pub mod block_liar;
pub mod compare;
pub mod disk;
pub mod far;
pub mod flood;
pub mod ftpd;
pub mod hosts;
pub mod liar;
pub mod matrix;
pub mod model;
pub mod mount;
pub mod netns;
pub mod node;
pub mod procs;
pub mod run;
pub mod serve;
pub mod slurm;
pub mod sshd;
pub mod steered;
pub mod striped;
pub mod taker;
pub mod tree;
pub mod way;
pub mod wire;

/// What still writes into a room that goes, as a far end that has just lost its near end, ends within this.
const EMPTIED_WITHIN: Duration = Duration::from_secs(20);

/// A folder of one test; removed with all that is in it, however the test ends. With `HAUL_TEST_KEEP` set
/// that of a test that failed is kept, and named.
pub struct Room {
    path: PathBuf,
}

impl Room {
    /// Makes a new folder that other users may enter, for some tests run haul as another user.
    pub fn new() -> Room {
        let temp =
            tempfile::Builder::new().prefix("haul-e2e-").tempdir().expect("make a folder for the test");
        // Removed by drop below, which has more to do than its own.
        let path = temp.keep();
        set_mode(&path, 0o755);
        Room { path }
    }

    /// The path of `name` in this room.
    pub fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Makes the directory `name` in this room.
    pub fn dir(&self, name: &str) -> PathBuf {
        let path = self.at(name);
        std::fs::create_dir_all(&path).expect("make a directory");
        path
    }

    /// Makes the file `name` with this content in this room, and the directories above it.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.at(name);
        std::fs::create_dir_all(path.parent().expect("it lies in the room")).expect("make directories");
        std::fs::write(&path, content).expect("write a file");
        path
    }
}

/// Makes a tree look old, links and all: rsync sets no time that differs within its second alone.
pub fn age(tree: &Path) {
    let done = std::process::Command::new("find")
        .arg(tree)
        .args(["-exec", "touch", "-h", "-d", "2020-02-02 02:02:02", "{}", "+"])
        .status();
    assert!(done.expect("run find").success());
}

impl Drop for Room {
    /// A test that fails drops its guards in whatever order it holds them: what is mounted here goes first,
    /// and who still writes here is outlasted. Read-only directories would keep a user who is not root from
    /// removing the room.
    fn drop(&mut self) {
        if std::thread::panicking() && std::env::var_os("HAUL_TEST_KEEP").is_some() {
            eprintln!("kept: {}", self.path.display());
            return;
        }
        let gone = procs::wait_until(EMPTIED_WITHIN, || {
            mount::unmount_below(&self.path);
            tree::make_removable(&self.path);
            let removed = std::fs::remove_dir_all(&self.path);
            removed.is_ok() || !self.path.exists()
        });
        if !gone {
            eprintln!("cannot be removed: {}", self.path.display());
        }
    }
}

/// Sets the mode bits of `path`.
pub fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("set a mode");
}

/// Makes a program. Another process writes it: a file that this one has open for writing is also open in
/// whatever another thread starts at that moment, and the system runs no file that is (`ETXTBSY`).
pub fn program(path: &Path, text: &str) {
    let mut install = Command::new("install")
        .args(["-m", "755", "/dev/stdin"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("run install");
    install.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("write to it");
    assert!(install.wait().expect("it ends").success(), "install {}", path.display());
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
