//! Asking a file system where a file lies.
//!
//! In: an open file. Out: [`Found`]: its layout, who gave the answer, and why it is only the flat one where
//! it is. The questions are extended attributes and ioctls and need no right that reading does not; the
//! answers are decoded by `haul_core::layout`, which believes nothing of them. Whoever does not answer is
//! taken for one target: the device of the file system. Each file system has its file, and a line in
//! [`PROVIDERS`]; nobody else knows their names. Nothing here makes a file system fetch or move data: a
//! layout is read, never made.
//! Left out: OrangeFS, GPFS, and what says nothing to clients (NFS).

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use haul_core::entry::Name;
use haul_core::layout::{Layout, LayoutError, Striping, TargetName};
use rustix::fs::{FsWord, fstat, fstatfs};
use rustix::io::Errno;

use crate::jail::Jail;
use haul_base::errno;
use haul_base::mounts::Mount;

mod beegfs;
mod ceph;
mod fuse;
mod gluster;
mod lustre;
mod moosefs;

/// The parallel file systems that say where files lie. A new one is a file with its `PROVIDER` and a line
/// here.
static PROVIDERS: [Parallel; 5] =
    [lustre::PROVIDER, ceph::PROVIDER, gluster::PROVIDER, beegfs::PROVIDER, moosefs::PROVIDER];

/// Room for an answer; Lustre's own maximum for an attribute.
const ANSWER_MAX: usize = 64 * 1024;

/// A parallel file system: how it is known, and what it can be asked.
pub struct Parallel {
    /// As reports and JSON name it.
    name: &'static str,
    /// What `statfs` calls it; `None`: it is always a FUSE file system. One that has it may be mounted by
    /// FUSE as well.
    magic: Option<u32>,
    /// What its mounts say that they are; of FUSE as `fuse.NAME`.
    kinds: &'static [&'static str],
    /// How the source of its mounts begins where they say only `fuse`.
    source: Option<&'static str>,
    /// With that magic it keeps a directory's positions from one opening to the next, whatever is removed
    /// meanwhile.
    keeps_positions: bool,
    /// With that magic it moves ctime with each change of a file, and never gives its inode's number to
    /// another of the same ctime.
    keeps_versions: bool,
    /// When it is known where a new file will lie.
    new_file: NewFile,
    /// Where an open file of so many bytes lies.
    ask: fn(BorrowedFd<'_>, u64) -> Result<Layout, AskError>,
    /// Makes a file with these stripes, if it can; after an error it may be there.
    make: Option<fn(&Jail, &OwnedFd, &Name, Striping) -> Result<OwnedFd, Errno>>,
}

/// When a file system knows where a new file will lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NewFile {
    /// When it is made, and as any other in its directory.
    Striped,
    /// When it is made, as a whole on one target.
    Whole,
    /// When it was written.
    Unplaced,
}

/// Who says where files of a file system lie.
#[derive(Clone)]
pub enum Provider {
    /// One of the list.
    Known(&'static Parallel),
    /// A FUSE file system that none of them is, by the name that it goes by. It may know Lustre's question.
    Fuse(Arc<str>),
    /// Nobody: the whole file counts as lying on its device.
    Flat,
}

impl Provider {
    /// As reports and JSON name it.
    pub fn name(&self) -> &str {
        match self {
            Provider::Known(known) => known.name,
            Provider::Fuse(name) => name,
            Provider::Flat => "flat",
        }
    }

    fn parallel(&self) -> Option<&'static Parallel> {
        match self {
            Provider::Known(known) => Some(known),
            Provider::Fuse(_) => Some(&fuse::OTHER),
            Provider::Flat => None,
        }
    }

    /// When it is known where a new file will lie; `None`: nobody says.
    pub(super) fn new_file(&self) -> Option<NewFile> {
        self.parallel().map(|parallel| parallel.new_file)
    }

    /// Makes a file with stripes. `None`: none can be set.
    pub(super) fn make(&self) -> Option<fn(&Jail, &OwnedFd, &Name, Striping) -> Result<OwnedFd, Errno>> {
        self.parallel().and_then(|parallel| parallel.make)
    }

    #[cfg(test)]
    pub(super) fn named(name: &str) -> Provider {
        Provider::Known(PROVIDERS.iter().find(|known| known.name == name).expect("a provider"))
    }
}

/// No two have the same name, and none is called `flat`.
impl PartialEq for Provider {
    fn eq(&self, other: &Provider) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other) && self.name() == other.name()
    }
}

impl Eq for Provider {}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
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
    #[error("{}", errno::text(.0))]
    System(#[from] Errno),
    #[error("{0}")]
    Answer(#[from] LayoutError),
    /// It is nobody who says where files lie, which is no failure.
    #[error("it says nothing of layouts")]
    Nobody,
}

/// The one of the list with this magic number.
fn by_magic(magic: u64) -> Option<&'static Parallel> {
    // The type is signed on some architectures and wider on others; all magic numbers have 32 bits.
    PROVIDERS.iter().find(|known| known.magic == Some(magic as u32))
}

/// Whether a parallel file system with this magic number keeps a directory's positions from one opening to
/// the next.
pub(super) fn keeps_positions(magic: u64) -> bool {
    by_magic(magic).is_some_and(|known| known.keeps_positions)
}

/// Whether one keeps what tells the versions of a file apart.
pub(super) fn keeps_versions(magic: u64) -> bool {
    by_magic(magic).is_some_and(|known| known.keeps_versions)
}

/// Whether a mount that says this of itself is one of a parallel file system.
pub fn is_parallel(kind: &str, source: &str) -> bool {
    by_mount(kind, source).is_some()
}

/// The one of the list that mounts itself so.
fn by_mount(kind: &str, source: &str) -> Option<&'static Parallel> {
    let by_source =
        |known: &Parallel| kind == "fuse" && known.source.is_some_and(|is| source.starts_with(is));
    PROVIDERS.iter().find(|known| known.kinds.contains(&kind) || by_source(known))
}

/// Who is to be asked, from what `statfs` says and, for FUSE, from the mount.
fn provider_of(magic: FsWord, mount: impl FnOnce() -> Option<Mount>) -> Provider {
    if let Some(known) = by_magic(magic as u64) {
        return Provider::Known(known);
    }
    if magic as u32 != fuse::MAGIC {
        return Provider::Flat;
    }
    let Some(Mount { kind, source, .. }) = mount() else { return Provider::Fuse("fuse".into()) };
    by_mount(&kind, &source).map_or_else(|| Provider::Fuse(fuse::name_of(&kind)), Provider::Known)
}

/// Where an open file of `size` bytes lies. Never fails: who cannot say is one target.
pub fn layout_of(file: impl AsFd, size: u64) -> Found {
    let file = file.as_fd();
    layout_by(provider_at(file), file, size)
}

/// Who says where files of this file system lie. May ask its server.
pub(super) fn provider_at(file: BorrowedFd<'_>) -> Provider {
    fstatfs(file).map_or(Provider::Flat, |stat| provider_of(stat.f_type, || Mount::of(file).ok().flatten()))
}

/// As [`layout_of`], where it is known who has to be asked.
pub(super) fn layout_by(provider: Provider, file: BorrowedFd<'_>, size: u64) -> Found {
    let Some(parallel) = provider.parallel() else { return flat(file, None) };
    match (parallel.ask)(file, size) {
        Ok(layout) => Found { provider, layout, why_flat: None },
        Err(AskError::Nobody) => flat(file, None),
        Err(error) => flat(file, Some(format!("{provider}: {error}"))),
    }
}

fn flat(file: BorrowedFd<'_>, why_flat: Option<String>) -> Found {
    Found { provider: Provider::Flat, layout: Layout::flat(device_name(device_of(file))), why_flat }
}

/// The device of the file system that a file lies on. Mostly what `stat` says; where that is a number that no
/// mount has, as of each subvolume of btrfs and of what lies below an overlay, the mount's.
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

#[cfg(test)]
mod tests {
    use super::*;

    const FUSE: FsWord = 0x6573_5546;

    fn of(magic: FsWord, kind: &str, source: &str) -> Provider {
        let line = format!("41 27 0:52 / /mnt rw - {kind} {source} rw");
        provider_of(magic, || Some(haul_base::mounts::parse_mount(&line).expect("a mount")))
    }

    /// Goal: each file system gets its own question, by number, or by mount where the number says only FUSE.
    #[test]
    fn questions_fit_the_file_system() {
        let kind = |magic: FsWord, mount: &str| of(magic, mount, "x").name().to_owned();
        assert_eq!(kind(0x0BD0_0BD0, "?"), "lustre");
        assert_eq!(kind(0x1983_0326, "?"), "beegfs");
        assert_eq!(kind(0x00C3_6400, "?"), "cephfs");
        assert_eq!(kind(FUSE, "fuse.glusterfs"), "glusterfs");
        assert_eq!(kind(FUSE, "fuse.ceph-fuse"), "cephfs");
        assert_eq!(kind(FUSE, "fuse.mfs"), "moosefs");
        assert_eq!(of(FUSE, "fuse", "mfs#master:9421").name(), "moosefs");
        assert_eq!(kind(0xEF53, "ext4"), "flat");
    }

    /// Goal: a FUSE file system that nobody knows goes by its own name, and by that of FUSE where it has
    /// none; whatever it calls itself is fit to be shown.
    #[test]
    fn an_unknown_fuse_file_system_is_what_it_says() {
        for (kind, name) in [
            ("fuse.sshfs", "sshfs"),
            ("fuse.s3fs", "s3fs"),
            ("fuse", "fuse"),
            ("fuse.", "fuse"),
            ("fuseblk", "fuse"),
            ("fuseblk.ntfs", "ntfs"),
            ("fuse.a\u{1b}b", "a\u{fffd}b"),
            // Names of others are no names of theirs.
            ("fuse.lustre", "fuse.lustre"),
            ("fuse.flat", "fuse.flat"),
        ] {
            let provider = of(FUSE, kind, "x");
            assert_eq!(provider, Provider::Fuse(name.into()), "{kind}");
            assert!(PROVIDERS.iter().all(|known| known.name != provider.name()));
        }
        assert_eq!(provider_of(FUSE, || None), Provider::Fuse("fuse".into()), "its mount is not to be seen");
        // On what has no such question nothing goes wrong.
        let file = tempfile::tempfile().expect("a file");
        let found = layout_by(of(FUSE, "fuse.sshfs", "x"), file.as_fd(), 5);
        assert_eq!((found.provider, found.why_flat), (Provider::Flat, None));
    }

    /// Goal: the list is sound: no name, number or kind is there twice, and each one can be found by
    /// something.
    #[test]
    fn the_list_is_sound() {
        for (at, one) in PROVIDERS.iter().enumerate() {
            assert!(!["flat", "fuse"].contains(&one.name) && !one.kinds.is_empty(), "{}", one.name);
            assert!(one.magic != Some(fuse::MAGIC), "{}", one.name);
            for other in &PROVIDERS[..at] {
                assert_ne!(one.name, other.name);
                assert!(one.magic.is_none() || one.magic != other.magic, "{}", one.name);
                assert!(one.kinds.iter().all(|kind| !other.kinds.contains(kind)), "{}", one.name);
            }
        }
    }

    /// Goal: a plain file is one target, named by its device, and that is no failure; two files of one device
    /// are on the same one.
    #[test]
    fn plain_files_lie_on_their_device() {
        let dir = tempfile::tempdir().unwrap();
        let files = ["a", "b"].map(|name| std::fs::File::create(dir.path().join(name)).unwrap());
        let found = files.each_ref().map(|file| layout_of(file, 0));
        assert_eq!((&found[0].provider, &found[0].why_flat), (&Provider::Flat, &None));
        assert_eq!(found[0], found[1]);
        assert!(found[0].layout.at(9).target.as_str().starts_with("device "));
        let other = layout_of(std::fs::File::open("/proc/self/status").unwrap(), 0);
        assert_ne!(other.layout, found[0].layout);
    }
}
