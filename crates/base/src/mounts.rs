//! What is mounted where, as this process sees it.
//!
//! In: an open descriptor. Out: its mount, from `/proc/self/fdinfo` and `/proc/self/mountinfo`: a path may
//! lie below several mounts, and a device number is not the mount's on btrfs. And whether a directory lies
//! below another, whatever mounts show one part of a file system in several places.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Kinds that keep no files of anybody.
const NO_FILES: [&str; 19] = [
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "securityfs",
    "sysfs",
    "tracefs",
];

/// A mount of this process's view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub id: u64,
    pub device: (u32, u32),
    pub mount_point: String,
    pub kind: String,
    pub source: String,
    /// Of the file system, by commas.
    pub options: String,
}

impl Mount {
    /// The mount that an open file or directory (`O_PATH` will do) was reached through; `None` for one that
    /// is not in this process's view: of another namespace, or a file below `/proc`.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn of(fd: impl AsFd) -> io::Result<Option<Mount>> {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd()))?;
        let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse::<u64>().ok());
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        Ok(mounts.lines().filter_map(parse_mount).find(|mount| Some(mount.id) == id))
    }
}

impl Mount {
    /// What is mounted below an open directory and keeps files, in no order; nothing where `/proc` cannot
    /// say.
    pub fn below(dir: impl AsFd) -> Vec<Mount> {
        let name = format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd());
        let (Ok(path), Ok(mounts)) =
            (std::fs::read_link(name), std::fs::read_to_string("/proc/self/mountinfo"))
        else {
            return Vec::new();
        };
        let path = String::from_utf8_lossy(path.as_os_str().as_bytes()).into_owned();
        let lies = |mount: &Mount| {
            let rest = mount.mount_point.strip_prefix(path.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.len() > 1 && rest.starts_with('/'))
                && !NO_FILES.contains(&mount.kind.as_str())
        };
        mounts.lines().filter_map(parse_mount).filter(lies).collect()
    }
}

/// A mount, and what of its file system it shows.
struct Shown {
    id: u64,
    device: Vec<u8>,
    /// The directory of the file system that stands at the mount point.
    root: PathBuf,
    point: PathBuf,
}

/// The names by which `inner` is reached below `outer`, two open directories: none if it does not lie there.
/// Bind mounts may give it several, and one that climbs from it meets none of them. Where `/proc` cannot say
/// there are none.
pub fn ways_below(outer: impl AsFd, inner: impl AsFd) -> Vec<PathBuf> {
    if haul_mutant::removed("mounts-are-seen-through") {
        return Vec::new();
    }
    let Ok(mounts) = std::fs::read("/proc/self/mountinfo") else { return Vec::new() };
    let mounts: Vec<Shown> = mounts.split(|byte| *byte == b'\n').filter_map(parse_shown).collect();
    let (Some((outer, outer_path)), Some((inner, inner_path))) =
        (place(&mounts, outer), place(&mounts, inner))
    else {
        return Vec::new();
    };
    let within = |mount: &Shown, path: &Path| Some(mount.root.join(path.strip_prefix(&mount.point).ok()?));
    let (Some(inner_within), Some(outer_within)) = (within(inner, &inner_path), within(outer, &outer_path))
    else {
        return Vec::new();
    };
    // What the directory shows: its own part of its file system, and what is mounted below it.
    let own = (&outer.device, &*outer_within, Path::new(""));
    let mounted = mounts.iter().filter_map(|mount| {
        let below =
            mount.point.strip_prefix(&outer_path).ok().filter(|below| !below.as_os_str().is_empty())?;
        Some((&mount.device, &*mount.root, below))
    });
    let shown = std::iter::once(own).chain(mounted);
    let mut ways: Vec<PathBuf> = shown
        .filter(|(device, ..)| **device == inner.device)
        .filter_map(|(_, root, at)| Some(at.join(inner_within.strip_prefix(root).ok()?)))
        .collect();
    ways.sort();
    ways.dedup();
    ways
}

/// The mount that an open directory was reached through, and its path.
fn place(mounts: &[Shown], dir: impl AsFd) -> Option<(&Shown, PathBuf)> {
    let fd = dir.as_fd().as_raw_fd();
    let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
    let id: u64 = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())?;
    Some((mounts.iter().find(|mount| mount.id == id)?, path))
}

/// The beginning of a line of `/proc/self/mountinfo`, whose names need not be text.
fn parse_shown(line: &[u8]) -> Option<Shown> {
    let mut words = line.split(|byte| *byte == b' ');
    let id = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
    let device = words.nth(1)?.to_vec();
    let path = |word| PathBuf::from(OsStr::from_bytes(&unescape_bytes(word)));
    Some(Shown { id, device, root: path(words.next()?), point: path(words.next()?) })
}

/// A line of `/proc/self/mountinfo`:
/// `id parent major:minor root mount-point options [tags] - kind source super-options`.
pub fn parse_mount(line: &str) -> Option<Mount> {
    let (place, system) = line.split_once(" - ")?;
    let mut place = place.split(' ');
    let id = place.next()?.parse().ok()?;
    let (major, minor) = place.nth(1)?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    let mount_point = unescape(place.nth(1)?);
    let mut system = system.split(' ');
    let kind = unescape(system.next()?);
    let source = unescape(system.next().unwrap_or("none"));
    let options = unescape(system.next().unwrap_or_default());
    Some(Mount { id, device, mount_point, kind, source, options })
}

fn unescape(text: &str) -> String {
    String::from_utf8_lossy(&unescape_bytes(text.as_bytes())).into_owned()
}

/// The kernel writes space, tab, line feed and backslash as `\040` and so on.
fn unescape_bytes(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let octal = bytes.get(at + 1..at + 4).filter(|_| bytes[at] == b'\\');
        let value = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        out.push(value.unwrap_or(bytes[at]));
        at += if value.is_some() { 4 } else { 1 };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const NFS: &str =
        r"41 27 0:52 / /mnt/big\040data rw,relatime shared:7 master:1 - nfs4 dtn1:/export/a\040b rw,vers=4.2";
    const EXT4: &str = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard";

    /// Goal: lines of the kernel are read with any number of tags and with escaped names; others are refused.
    #[test]
    fn mounts_are_parsed() {
        let nfs = parse_mount(NFS).unwrap();
        assert_eq!((nfs.id, nfs.device), (41, (0, 52)));
        assert_eq!((&*nfs.mount_point, &*nfs.source), ("/mnt/big data", "dtn1:/export/a b"));
        assert_eq!(parse_mount(EXT4).unwrap().kind, "ext4");
        assert_eq!(parse_mount(EXT4).unwrap().options, "rw,discard");
        for bad in ["", "41", "x 27 0:52 / / rw - nfs a b", "41 27 052 / / rw - nfs a b", "1 2 3:4 / / rw"] {
            assert_eq!(parse_mount(bad), None, "{bad}");
        }
        assert_eq!(unescape(r"a\04\1345\"), r"a\04\5\");
    }

    /// Goal: a directory is found below another by its names; a sibling with the same beginning is not below.
    /// Method: real directories without mounts; where a bind mount leads is another test's, for it needs
    /// root.
    #[test]
    fn directories_are_found_below_others() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(temp.path().join("a/b c\\")).unwrap();
        std::fs::create_dir_all(temp.path().join("ab")).unwrap();
        let open = |path: &str| std::fs::File::open(temp.path().join(path)).unwrap();
        assert_eq!(ways_below(open("a"), open("a/b c\\")), [PathBuf::from("b c\\")]);
        assert_eq!(ways_below(open("a"), open("a")), [PathBuf::new()]);
        assert_eq!(ways_below(open("a"), open("ab")), [] as [PathBuf; 0]);
        assert_eq!(ways_below(open("a/b c\\"), open("a")), [] as [PathBuf; 0]);
        let shown = parse_shown(br"41 27 0:52 /x\040y /mnt/big\040data rw - ext4 a b").unwrap();
        assert_eq!((shown.root, shown.point), ("/x y".into(), "/mnt/big data".into()));
    }
}
