//! Asking a file system where a file lies.
//!
//! In: an open file. Out: [`Found`]: its layout, who gave the answer, and why it is only the flat one where it is.
//! The questions are extended attributes and ioctls and need no right that reading does not; the answers are decoded by
//! `haul_core::layout`, which believes nothing of them. Whoever does not answer is taken for one target: the device of the
//! file system.
//! Nothing here makes a file system fetch or move data: a layout is read, never made.
//! Left out: OrangeFS, GPFS, and what says nothing to clients (NFS).

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};

use haul_core::layout::{Layout, LayoutError, TargetName};
use rustix::fs::{FsWord, fstat, fstatfs};
use rustix::io::Errno;

use haul_base::mounts::Mount;

mod beegfs;
mod ceph;
mod moosefs;

/// Room for an answer; Lustre's own maximum for an attribute.
const ANSWER_MAX: usize = 64 * 1024;

/// Which file system said where a file lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Provider {
    Lustre,
    CephFs,
    GlusterFs,
    BeeGfs,
    MooseFs,
    /// None: the whole file counts as lying on its device.
    Flat,
}

impl Provider {
    /// As reports and JSON name it.
    pub fn name(self) -> &'static str {
        match self {
            Provider::Lustre => "lustre",
            Provider::CephFs => "cephfs",
            Provider::GlusterFs => "glusterfs",
            Provider::BeeGfs => "beegfs",
            Provider::MooseFs => "moosefs",
            Provider::Flat => "flat",
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a file lies, and who says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub provider: Provider,
    pub layout: Layout,
    /// A parallel file system was asked and gave no layout: its reason.
    pub why_flat: Option<String>,
}

/// Why a file system gave no layout.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error("{0}")]
    System(#[from] Errno),
    #[error("{0}")]
    Answer(#[from] LayoutError),
}

/// Lustre's magic number.
const LUSTRE: u32 = 0x0BD0_0BD0;

/// Which question a file system understands, from what `statfs` says and, for FUSE, from its mount.
fn provider_of(magic: FsWord, mount_kind: impl FnOnce() -> Option<String>) -> Provider {
    const BEEGFS: u32 = 0x1983_0326;
    const CEPH: u32 = 0x00C3_6400;
    const FUSE: u32 = 0x6573_5546;
    // The type is signed on some architectures and wider on others; all magic numbers have 32 bits.
    match magic as u32 {
        LUSTRE => Provider::Lustre,
        BEEGFS => Provider::BeeGfs,
        CEPH => Provider::CephFs,
        FUSE => match mount_kind().as_deref() {
            Some("fuse.glusterfs") => Provider::GlusterFs,
            Some("fuse.ceph" | "fuse.ceph-fuse") => Provider::CephFs,
            Some("fuse.mfs") => Provider::MooseFs,
            // What answers as Lustre does is served as Lustre; the others say that there is no such attribute.
            _ => Provider::Lustre,
        },
        _ => Provider::Flat,
    }
}

/// Where an open file of `size` bytes lies. Never fails: who cannot say is one target.
pub fn layout_of(file: impl AsFd, size: u64) -> Found {
    let file = file.as_fd();
    layout_by(provider_at(file), file, size)
}

/// Who says where files of this file system lie. May ask its server.
pub(super) fn provider_at(file: BorrowedFd<'_>) -> Provider {
    fstatfs(file).map_or(Provider::Flat, |stat| {
        provider_of(stat.f_type, || Mount::of(file).ok().flatten().map(kind_of))
    })
}

/// What a mount says it is. MooseFS' client says it in the name of the source where it can give no kind.
fn kind_of(mount: Mount) -> String {
    let moosefs = mount.kind == "fuse" && mount.source.starts_with("mfs#");
    if moosefs { "fuse.mfs".into() } else { mount.kind }
}

/// As [`layout_of`], where it is known who has to be asked.
pub(super) fn layout_by(provider: Provider, file: BorrowedFd<'_>, size: u64) -> Found {
    let asked = match provider {
        Provider::Lustre => lustre(file),
        Provider::CephFs => ceph::ask(file, size),
        Provider::GlusterFs => gluster(file),
        Provider::BeeGfs => beegfs::ask(file),
        Provider::MooseFs => moosefs::ask(file, size),
        Provider::Flat => return flat(file, None),
    };
    match asked {
        Ok(layout) => Found { provider, layout, why_flat: None },
        // A FUSE file system that is none of these: nothing went wrong.
        Err(AskError::System(Errno::OPNOTSUPP | Errno::NOSYS)) if provider == Provider::Lustre => {
            flat(file, None)
        }
        Err(error) => flat(file, Some(format!("{provider}: {error}"))),
    }
}

fn flat(file: BorrowedFd<'_>, why_flat: Option<String>) -> Found {
    Found { provider: Provider::Flat, layout: Layout::flat(device_name(device_of(file))), why_flat }
}

/// The device of the file system that a file lies on. Mostly what `stat` says; where that is a number that no mount has, as
/// of each subvolume of btrfs and of what lies below an overlay, the mount's.
pub(super) fn device_of(file: BorrowedFd<'_>) -> u64 {
    let device = fstat(file).map_or(0, |stat| stat.st_dev);
    if rustix::fs::major(device) != 0 {
        return device;
    }
    let mount = Mount::of(file).ok().flatten();
    mount.map_or(device, |mount| rustix::fs::makedev(mount.device.0, mount.device.1))
}

/// A device as a target, by its number.
pub(super) fn device_name(device: u64) -> TargetName {
    TargetName::new(&format!("device {}:{}", rustix::fs::major(device), rustix::fs::minor(device)))
}

/// The value of an extended attribute.
fn attribute(file: BorrowedFd<'_>, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; ANSWER_MAX];
    let len = rustix::fs::fgetxattr(file, name, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

fn lustre(file: BorrowedFd<'_>) -> Result<Layout, AskError> {
    match attribute(file, "lustre.lov") {
        Ok(value) => Ok(haul_core::layout::lustre(&value)?),
        // Lustre's word for a file that has none of its own.
        Err(Errno::NODATA) if is_lustre(file) => Err(LayoutError::NoObjects.into()),
        Err(Errno::NODATA) => Err(Errno::OPNOTSUPP.into()),
        Err(error) => Err(error.into()),
    }
}

fn is_lustre(file: BorrowedFd<'_>) -> bool {
    fstatfs(file).is_ok_and(|stat| stat.f_type as u32 == LUSTRE)
}

/// Root may ask by the trusted name, which says the same in every version; others by the plain one.
fn gluster(file: BorrowedFd<'_>) -> Result<Layout, AskError> {
    let value =
        attribute(file, "trusted.glusterfs.pathinfo").or_else(|_| attribute(file, "glusterfs.pathinfo"))?;
    Ok(haul_core::layout::gluster(&value)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each file system gets its own question, by number, or by mount where the number says only FUSE.
    #[test]
    fn questions_fit_the_file_system() {
        let kind = |magic: FsWord, mount: &str| provider_of(magic, || Some(mount.to_owned()));
        assert_eq!(kind(0x0BD0_0BD0, ""), Provider::Lustre);
        assert_eq!(kind(0x1983_0326, ""), Provider::BeeGfs);
        assert_eq!(kind(0x00C3_6400, ""), Provider::CephFs);
        assert_eq!(kind(0x6573_5546, "fuse.glusterfs"), Provider::GlusterFs);
        assert_eq!(kind(0x6573_5546, "fuse.ceph-fuse"), Provider::CephFs);
        assert_eq!(kind(0x6573_5546, "fuse.mfs"), Provider::MooseFs);
        assert_eq!(kind(0x6573_5546, "fuse.sshfs"), Provider::Lustre);
        assert_eq!(kind(0xEF53, "ext4"), Provider::Flat);
    }

    /// Goal: a plain file is one target, named by its device, and that is no failure; two files of one device are on the
    /// same one.
    #[test]
    fn plain_files_lie_on_their_device() {
        let dir = tempfile::tempdir().unwrap();
        let files = ["a", "b"].map(|name| std::fs::File::create(dir.path().join(name)).unwrap());
        let found = files.each_ref().map(|file| layout_of(file, 0));
        assert_eq!((found[0].provider, &found[0].why_flat), (Provider::Flat, &None));
        assert_eq!(found[0], found[1]);
        assert!(found[0].layout.at(9).target.as_str().starts_with("device "));
        let other = layout_of(std::fs::File::open("/proc/self/status").unwrap(), 0);
        assert_ne!(other.layout, found[0].layout);
    }
}
