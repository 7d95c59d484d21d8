//! A disk of its own for one test: a file system on a loop device over a sparse file, whose power can be cut.
//!
//! A cut is the file system's own shutdown without a flush (`FS_IOC_SHUTDOWN`): from that moment it writes
//! nothing more, and mounted again it replays its log. What was in memory only is lost, as when a machine
//! loses its power. Left out: a disk that loses or reorders what it was told to flush.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::mount::Tmpfs;
use super::{Room, procs};

/// The smallest file system that all kinds allow, and twice what any test writes, bytes.
const DISK_LEN: u64 = 512 << 20;

/// What clones are known by.
const CLONED: &str = "0c1c2c3c-4c5c-4c6c-8c7c-8c9cacbcccdc";

/// Whoever was killed still holds the file system for a moment.
const UNUSED_WITHIN: Duration = Duration::from_secs(60);

/// The kinds of file system that can be shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Xfs,
    Ext4,
    /// With inodes of 128 bytes, which keep times in whole seconds.
    Ext4Old,
    /// All of this kind have one identity, as clones of a disk have.
    Ext4Clone,
}

/// A mounted disk; gone on drop.
pub struct Disk {
    at: PathBuf,
    image: PathBuf,
    kind: Kind,
    /// Holds the image, for a flush of a real disk would make every test wait.
    _backing: Tmpfs,
}

impl Disk {
    /// Makes the file system and mounts it at `name` in the room.
    pub fn new(room: &Room, name: &str, kind: Kind) -> Disk {
        let backing = room.dir(&format!("{name}-backing"));
        let _backing = Tmpfs::mount(&backing, &format!("size={DISK_LEN}"));
        let (image, at) = (backing.join("image"), room.dir(name));
        let file = std::fs::File::create(&image).expect("make an image");
        file.set_len(DISK_LEN).expect("make a sparse image");
        match kind {
            Kind::Xfs => run("mkfs.xfs", &["-q"], &image),
            Kind::Ext4 => run("mkfs.ext4", &["-q", "-F"], &image),
            Kind::Ext4Old => run("mkfs.ext4", &["-q", "-F", "-I", "128"], &image),
            Kind::Ext4Clone => run("mkfs.ext4", &["-q", "-F", "-U", CLONED], &image),
        }
        let disk = Disk { at, image, kind, _backing };
        disk.mount();
        disk
    }

    /// Where it is mounted.
    pub fn at(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }

    /// Cuts the power.
    pub fn cut(&self) {
        // Without -f: the log is not flushed either.
        run("xfs_io", &["-x", "-c", "shutdown"], &self.at);
    }

    /// Powers it on again, when nobody uses it any more.
    pub fn power_on(&self) {
        let mut is_unmounted = false;
        let unused = procs::wait_until(UNUSED_WITHIN, || {
            is_unmounted = is_unmounted || unmounted(&self.at);
            // Whoever copied our mounts into a namespace of his own has it mounted as long as that is
            // there, and mounted again it would be the same one, without power.
            is_unmounted && self.is_detached()
        });
        assert!(unused, "{} cannot be unmounted", self.at.display());
        self.mount();
    }

    /// No loop device has the image.
    fn is_detached(&self) -> bool {
        let output = Command::new("losetup").arg("-j").arg(&self.image).output().expect("run losetup");
        output.status.success() && output.stdout.is_empty()
    }

    /// Holds every write and every change from now on, until the guard is dropped.
    pub fn freeze(&self) -> Frozen<'_> {
        // What is not a mount of its own would freeze the machine.
        let above = self.at.parent().expect("in a room");
        let device = |path: &Path| std::fs::metadata(path).expect("stat").dev();
        assert_ne!(device(&self.at), device(above), "{} is not mounted", self.at.display());
        run("xfs_io", &["-x", "-c", "freeze"], &self.at);
        Frozen { disk: self }
    }

    fn mount(&self) {
        let options = match self.kind {
            Kind::Xfs => "loop",
            // The usual 5 s would save on a slow machine what nobody synced.
            Kind::Ext4 | Kind::Ext4Old | Kind::Ext4Clone => "loop,commit=300",
        };
        let at = self.at.as_os_str().to_str().expect("made here, UTF-8");
        run("mount", &["-o", options, self.image.to_str().expect("made here, UTF-8")], Path::new(at));
    }
}

/// A disk that answers no write; thawed on drop.
pub struct Frozen<'a> {
    disk: &'a Disk,
}

impl Drop for Frozen<'_> {
    /// A panic here while a test fails would end all tests, with nothing cleaned up.
    fn drop(&mut self) {
        let thawed = Command::new("xfs_io").args(["-x", "-c", "thaw"]).arg(&self.disk.at).output();
        let thawed = thawed.is_ok_and(|output| output.status.success());
        assert!(thawed || std::thread::panicking(), "{} stays frozen", self.disk.at.display());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if !unmounted(&self.at) {
            let _ = Command::new("umount").arg("-l").arg(&self.at).status();
        }
    }
}

fn unmounted(at: &Path) -> bool {
    Command::new("umount").arg("-q").arg(at).status().is_ok_and(|status| status.success())
}

fn run(program: &str, args: &[&str], last: &Path) {
    let output = Command::new(program).args(args).arg(last).output();
    let output = output.unwrap_or_else(|error| panic!("run {program}: {error}"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Whether this machine can mount a file system of `kind` on a loop device and shut it down.
pub fn can_be_cut(kind: Kind) -> bool {
    let made = std::panic::catch_unwind(|| {
        let room = Room::new();
        Disk::new(&room, "probe", kind).cut();
    });
    made.is_ok()
}
