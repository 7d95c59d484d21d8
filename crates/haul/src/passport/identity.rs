//! Which file system a path lies on.
//!
//! In: a path. Out: a [`StorageIdentity`] whose `id` stays the same over mounts, and reboots where the system
//! tells something that does. The id is the name of the passport's file, so it holds only `a-z`, `0-9`, `-`.
//!
//! What identifies a file system, the first that there is: what a network file system was mounted from; the
//! UUID that udev found on its device; the `fsid` of `statfs` (ext4 and btrfs make it from their UUID); the
//! device. The mount is found by the number that the kernel gives for an open descriptor, for a path may lie
//! below several mounts and a device number is not the mount's on btrfs.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, StatVfs};

use super::StorageIdentity;
use haul_base::errno;
use haul_base::mounts::Mount;
use haul_storage::layout::is_parallel;

/// The system does not tell which file system it is.
#[derive(Debug, thiserror::Error)]
#[error("{op} {}: {}", path.display(), errno::text(source))]
pub struct Unidentified {
    /// What was tried.
    pub op: &'static str,
    /// On what.
    pub path: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

/// File systems that others share with us: over a network, or on a disk with several hosts at it. Beside
/// these all parallel ones do that say where files lie.
const NETWORK: [&str; 22] = [
    "9p", "afs", "cifs", "coda", "curvefs", "gfs2", "gpfs", "juicefs", "lizardfs", "ncpfs", "nfs", "nfs4",
    "ocfs2", "orangefs", "panfs", "pvfs2", "rclone", "s3fs", "smb3", "smbfs", "sshfs", "wekafs",
];

/// The file system that `path` lies on. A path that does not exist yet counts as its nearest parent that
/// does.
///
/// # Errors
/// The system does not tell.
pub fn identify(path: &Path) -> Result<StorageIdentity, Unidentified> {
    let (at, fd) = open_nearest(path)?;
    let stat = statvfs(&fd, &at)?;
    let failed = |source| Unidentified { op: "read", path: PathBuf::from("/proc/self/mountinfo"), source };
    let mount = Mount::of(&fd).map_err(failed)?;
    // A mount of another namespace, reached through a descriptor or a file below /proc.
    let mount = mount.unwrap_or_else(|| Mount {
        id: 0,
        device: (0, 0),
        mount_point: at.display().to_string(),
        kind: "unknown".into(),
        source: "unknown".into(),
        options: String::new(),
    });
    let network = is_network(&mount.kind, &mount.source);
    Ok(StorageIdentity {
        id: id_of(&mount, network, device_uuid(&mount), stat.f_fsid),
        size: stat.f_blocks.saturating_mul(stat.f_frsize),
        network,
        kind: mount.kind,
        source: mount.source,
        mount_point: mount.mount_point,
    })
}

/// Numbers of the file system that an open file lies on.
pub fn statvfs(fd: impl AsFd, path: &Path) -> Result<StatVfs, Unidentified> {
    let failed = |e: rustix::io::Errno| Unidentified {
        op: "look at the file system of",
        path: path.to_owned(),
        source: e.into(),
    };
    rustix::fs::fstatvfs(fd).map_err(failed)
}

fn open_nearest(path: &Path) -> Result<(PathBuf, OwnedFd), Unidentified> {
    let mut at = path;
    loop {
        let looked = if at.as_os_str().is_empty() { Path::new(".") } else { at };
        match rustix::fs::open(looked, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => return Ok((looked.to_owned(), fd)),
            Err(rustix::io::Errno::NOENT) if at.parent().is_some() => at = at.parent().expect("checked"),
            Err(e) => return Err(Unidentified { op: "open", path: path.to_owned(), source: e.into() }),
        }
    }
}

/// `fuse.glusterfs` is as much a network file system as `glusterfs`.
fn is_network(kind: &str, source: &str) -> bool {
    let plain = kind.strip_prefix("fuse.").unwrap_or(kind);
    let plain = plain.strip_suffix("-fuse").unwrap_or(plain);
    NETWORK.contains(&plain) || is_parallel(kind, source) || is_parallel(plain, source)
}

/// The UUID that udev found on the mount's device.
fn device_uuid(mount: &Mount) -> Option<String> {
    let mut devices = vec![mount.device];
    // btrfs and others show an anonymous device number; what was mounted tells the real one.
    if let Some(device) = rustix::fs::stat(&*mount.source).ok().filter(is_block) {
        devices.push((rustix::fs::major(device.st_rdev), rustix::fs::minor(device.st_rdev)));
    }
    let mut names: Vec<PathBuf> =
        std::fs::read_dir("/dev/disk/by-uuid").ok()?.flatten().map(|entry| entry.path()).collect();
    names.sort();
    let ours = names.into_iter().find(|name| {
        let device = rustix::fs::stat(name).ok().filter(is_block);
        device.is_some_and(|device| {
            devices.contains(&(rustix::fs::major(device.st_rdev), rustix::fs::minor(device.st_rdev)))
        })
    })?;
    ours.file_name()?.to_str().map(str::to_owned)
}

fn is_block(stat: &rustix::fs::Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice
}

fn id_of(mount: &Mount, network: bool, uuid: Option<String>, fsid: u64) -> String {
    // Version 3 and 4 of NFS show the same files.
    let kind = mount.kind.strip_prefix("fuse.").unwrap_or(&mount.kind).trim_end_matches('4');
    let hashed = |parts: [&str; 3]| {
        let mut hasher = blake3::Hasher::new_derive_key("haul storage identity v1");
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        hasher.finalize().to_hex()[..24].to_owned()
    };
    let is_plain =
        |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    match uuid.map(|uuid| uuid.to_ascii_lowercase()).filter(|uuid| is_plain(uuid) && uuid.len() <= 64) {
        _ if network => format!("net-{}", hashed([kind, &mount.source, ""])),
        Some(uuid) => format!("uuid-{uuid}"),
        None if fsid != 0 => format!("fsid-{fsid:016x}"),
        None => {
            let (major, minor) = mount.device;
            format!("dev-{}", hashed([kind, &mount.source, &format!("{major}:{minor}")]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use haul_base::mounts::parse_mount;

    const NFS: &str =
        r"41 27 0:52 / /mnt/big\040data rw,relatime shared:7 master:1 - nfs4 dtn1:/export/a\040b rw,vers=4.2";
    const EXT4: &str = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard";

    /// Goal: what is mounted over a network is known as such, whoever serves it, and a local one is not.
    #[test]
    fn network_file_systems_are_known() {
        for kind in
            ["nfs", "nfs4", "cifs", "lustre", "ceph", "fuse.ceph-fuse", "fuse.glusterfs", "beegfs", "9p"]
        {
            assert!(is_network(kind, "x"), "{kind}");
        }
        assert!(is_network("fuse.mfs", "mfs#master:9421"), "as FUSE tells it");
        assert!(is_network("fuse", "mfs#master:9421"), "and where it does not");
        for kind in ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "fuse", "fuseblk"] {
            assert!(!is_network(kind, "/dev/sdb1"), "{kind}");
        }
    }

    /// Goal: the best of what identifies a file system is taken, and every id can be a file's name.
    #[test]
    fn ids_are_stable_and_plain() {
        let (nfs, ext4) = (parse_mount(NFS).unwrap(), parse_mount(EXT4).unwrap());
        let net = id_of(&nfs, true, None, 7);
        assert_eq!(
            net,
            id_of(&Mount { id: 3, device: (0, 9), kind: "nfs".into(), ..nfs.clone() }, true, None, 0)
        );
        assert_ne!(net, id_of(&Mount { source: "dtn2:/export".into(), ..nfs }, true, None, 7));
        assert_eq!(id_of(&ext4, false, Some("AB-12".into()), 7), "uuid-ab-12");
        assert_eq!(id_of(&ext4, false, Some("../../etc".into()), 7), "fsid-0000000000000007");
        let device = id_of(&ext4, false, None, 0);
        assert!(device.starts_with("dev-"));
        for id in [net, device] {
            assert!(id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'));
        }
    }

    /// Goal: a path that does not exist yet lies where its nearest parent lies.
    #[test]
    fn what_is_not_there_yet_has_an_identity() {
        let dir = tempfile::tempdir().unwrap();
        let here = identify(dir.path()).unwrap();
        assert_eq!(identify(&dir.path().join("not/there/yet")).unwrap(), here);
        assert!(here.size > 0 && here.kind != "unknown");
    }
}
