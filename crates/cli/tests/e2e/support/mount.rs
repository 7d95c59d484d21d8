//! Small file systems that can be full.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Room;

/// Unmounts whatever is mounted below `dir`, the innermost first.
pub fn unmount_below(dir: &Path) {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(1)).map(Path::new);
    let below: Vec<&Path> = points.filter(|point| point.starts_with(dir)).collect();
    for point in below.into_iter().rev() {
        let _ = Command::new("umount").arg("-l").arg(point).status();
    }
}

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

/// A file system in memory that has no extended attributes; unmounted on drop.
pub struct Ramfs(Tmpfs);

impl Ramfs {
    /// Mounts one at an existing directory.
    pub fn mount(at: &Path) -> Ramfs {
        let tmpfs = Tmpfs { at: at.to_owned() };
        tmpfs.call("mount", &["-t", "ramfs", "haul-test"]);
        Ramfs(tmpfs)
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.0.at.join(name)
    }
}

/// An overlay of an empty directory and one of another file system; unmounted on drop.
pub struct Overlay {
    at: PathBuf,
}

impl Overlay {
    /// Mounts one at `name` in the room, whose files lie below `upper`.
    pub fn mount(room: &Room, name: &str, upper: &Path) -> Overlay {
        let (at, lower) = (room.dir(name), room.dir(&format!("{name}-lower")));
        let parts = ["files", "work"].map(|part| upper.join(part));
        parts.iter().for_each(|part| std::fs::create_dir(part).expect("make a directory"));
        let [lower, files, work] = [&lower, &parts[0], &parts[1]].map(|path| path.display());
        let options = format!("lowerdir={lower},upperdir={files},workdir={work}");
        run(&["mount", "-t", "overlay", "-o", &options, "haul-test", &at.to_string_lossy()]);
        Overlay { at }
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

/// A btrfs on a loop device, with quotas.
pub struct Btrfs {
    at: PathBuf,
    _backing: Tmpfs,
}

impl Btrfs {
    /// Makes one in the room and mounts it at an existing directory.
    pub fn mount(room: &Room, at: &Path) -> Btrfs {
        let btrfs = Btrfs::mount_with(room, at, "rw");
        run(&["btrfs", "quota", "enable", &at.to_string_lossy()]);
        btrfs
    }

    /// The same with these options, without quotas.
    pub fn mount_with(room: &Room, at: &Path, options: &str) -> Btrfs {
        let backing = room.dir("btrfs-backing");
        let _backing = Tmpfs::mount(&backing, "size=512m");
        let image = backing.join("image");
        std::fs::File::create(&image).and_then(|file| file.set_len(512 << 20)).expect("make an image");
        let (image, mount) = (image.to_string_lossy().into_owned(), at.to_string_lossy().into_owned());
        run(&["mkfs.btrfs", "-q", &image]);
        run(&["mount", "-o", &format!("loop,{options}"), &image, &mount]);
        Btrfs { at: at.to_owned(), _backing }
    }

    /// Limits what may be written: `16M` say, or `none`.
    pub fn limit(&self, most: &str) {
        run(&["btrfs", "qgroup", "limit", most, "0/5", &self.at.to_string_lossy()]);
    }
}

impl Drop for Btrfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

fn run(line: &[&str]) {
    let output = Command::new(line[0]).args(&line[1..]).output().expect("run a program");
    assert!(output.status.success(), "{line:?}: {}", String::from_utf8_lossy(&output.stderr));
}
