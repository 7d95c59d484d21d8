//! What the group of a file may do that has an access control list.
//!
//! In: a file as `stat` showed it. Out: its mode with the group's own bits, for in `stat`'s place stands the
//! list's mask: the most that any user or group of the list may do. Taken for the group's it would give the
//! group more than it has. Only where the group's bits exceed those of others this can matter, and only there
//! the file system is asked.
//! Left out: the lists themselves ([`attributes`](crate::attributes)). Those of NFSv4, which servers put into
//! the mode by themselves.
//!
//! The form of `system.posix_acl_access`: `linux/posix_acl_xattr.h`, version 2, little-endian.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use haul_core::entry::Name;
use rustix::io::retry_on_intr;

use super::stat::Seen;

const GROUP: u32 = 0o070;
const VERSION: u32 = 2;
const GROUP_OBJ: u16 = 4;
const MASK: u16 = 0x10;
/// Longest list that is read: 500 entries, as many as file systems keep.
const LIST_LEN_MAX: usize = 4 + 500 * 8;

/// What was seen of `name` in `dir`, or where it is `followed` of what that leads to, with the mode that is
/// to be told of it.
pub(crate) fn told(dir: BorrowedFd<'_>, name: &Name, seen: Seen, followed: bool) -> Seen {
    let path: PathBuf = format!("/proc/self/fd/{}", dir.as_raw_fd()).into();
    told_of(&path.join(OsStr::from_bytes(name.as_bytes())), seen, followed)
}

/// The same, of what stands at `path`.
pub(crate) fn told_at(path: &Path, seen: Seen) -> Seen {
    told_of(path, seen, false)
}

/// Whether the file system is asked for a list to tell the mode of this.
pub(crate) fn is_asked(seen: &Seen) -> bool {
    seen.kind != rustix::fs::FileType::Symlink && group_has_more(seen.meta.mode)
}

fn told_of(path: &Path, mut seen: Seen, followed: bool) -> Seen {
    let mode = seen.meta.mode;
    if !is_asked(&seen) || haul_mutant::removed("masks-are-no-groups") {
        return seen;
    }
    let mut list = [0; LIST_LEN_MAX];
    // There is none, or there are none on this file system.
    let name = c"system.posix_acl_access";
    let read = retry_on_intr(|| match followed {
        true => rustix::fs::getxattr(path, name, &mut list[..]),
        false => rustix::fs::lgetxattr(path, name, &mut list[..]),
    });
    let Ok(len) = read else { return seen };
    seen.meta.mode = mode_by(mode, list.get(..len).unwrap_or_default());
    seen
}

fn group_has_more(mode: u32) -> bool {
    (mode >> 3) & !mode & 0o7 != 0
}

/// The mode that is to be told of what has this list, at both ends.
pub(crate) fn mode_by(mode: u32, list: &[u8]) -> u32 {
    let group = if group_has_more(mode) { group_of(list) } else { None };
    group.map_or(mode, |group| mode & (!GROUP | group << 3))
}

/// What the owning group may do by this list, below its mask.
fn group_of(list: &[u8]) -> Option<u32> {
    let (version, entries) = list.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != VERSION {
        return None;
    }
    let perm = |wanted| {
        let mut entries = entries.chunks_exact(8);
        let found = entries.find(|entry| u16::from_le_bytes([entry[0], entry[1]]) == wanted)?;
        Some(u32::from(u16::from_le_bytes([found[2], found[3]])) & 0o7)
    };
    Some(perm(GROUP_OBJ)? & perm(MASK).unwrap_or(0o7))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16)]) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for (tag, perm) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(perm.to_le_bytes());
            bytes.extend(u32::MAX.to_le_bytes());
        }
        bytes
    }

    /// Goal: both ends tell the same mode of the same file and list: the mask stays where others have as
    /// much.
    #[test]
    fn modes_are_told_alike() {
        let of = list(&[(1, 6), (2, 6), (4, 0), (0x10, 6), (0x20, 6)]);
        assert_eq!((mode_by(0o666, &of), mode_by(0o660, &of)), (0o666, 0o600));
        let file = tempfile::NamedTempFile::new().expect("file");
        let Ok(()) = rustix::fs::fsetxattr(
            file.as_file(),
            c"system.posix_acl_access",
            &of,
            rustix::fs::XattrFlags::empty(),
        ) else {
            return eprintln!("skipped: no lists here");
        };
        let seen = Seen::from(rustix::fs::lstat(file.path()).expect("stat"));
        assert_eq!(seen.meta.mode, 0o666);
        assert_eq!(told_at(file.path(), seen).meta.mode, mode_by(seen.meta.mode, &of));
    }

    /// Goal: the group has what its own entry and the mask allow; what is no list says nothing.
    #[test]
    fn masks_are_no_groups() {
        let (user, other) = ((1, 6), (0x20, 0));
        assert_eq!(group_of(&list(&[user, (2, 6), (4, 0), (0x10, 6), other])), Some(0));
        assert_eq!(group_of(&list(&[user, (2, 6), (4, 7), (0x10, 5), other])), Some(5));
        assert_eq!(group_of(&list(&[user, (4, 4), other])), Some(4));
        assert_eq!(group_of(&list(&[user, other])), None);
        assert_eq!((group_of(b""), group_of(b"\x01\0\0\0"), group_of(&[2, 0, 0, 0, 4])), (None, None, None));
    }
}
