//! Extended attributes and access control lists of files: read, held against others, set.
//!
//! In: what a call goes to ([`Subject`]), what is kept ([`Keeps`]), values. Out: values; what differs; names
//! that could not be read or set, with the reason.
//! What must hold: what [`may_be_kept`] does not allow is neither read nor set nor removed, and no link is
//! followed. A program's rights come last, for a write and a change of owner clear them.
//! Left out: NFSv4 lists that say no more than a mode (those every file of such a server has); the ids in
//! lists, which are numbers, as owners are.

use std::ffi::{CStr, CString, OsStr};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use haul_core::entry::{METADATA_LEN_MAX, METADATA_NAME_LEN_MAX, METADATA_VALUE_LEN_MAX, Name, Namespace};
use haul_core::metadata::{CAPABILITY, Unread, Values, is_mark, len_of, may_be_kept};
use haul_core::wire::SinkOptions;
use rustix::fs::{FileType, XattrFlags};
use rustix::io::{Errno, retry_on_intr};

pub(crate) const ACCESS: &CStr = c"system.posix_acl_access";
const DEFAULT: &CStr = c"system.posix_acl_default";
const NFS4: &CStr = c"system.nfs4_acl";
/// The kernel gives no longer list of names.
const NAMES_LEN_MAX: usize = 64 * 1024;
/// What most lists of names, and most values, fit.
const SHORT: usize = 1024;
/// The name and the value of the mark that not everything came.
const MARK_LEN_MAX: usize = 64;

/// What is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keeps {
    pub xattrs: bool,
    pub acls: bool,
}

impl Keeps {
    pub(crate) fn of(policy: &SinkOptions) -> Keeps {
        Keeps { xattrs: policy.xattrs, acls: policy.acls }
    }

    pub(crate) fn any(self) -> bool {
        self.xattrs || self.acls
    }
}

/// What a call goes to.
#[derive(Clone, Copy)]
pub(crate) enum Subject<'a> {
    Open(BorrowedFd<'a>),
    /// Held without being open, a link perhaps: it itself.
    Held(BorrowedFd<'a>),
    /// A name in a directory: what stands there, a link perhaps.
    Name(BorrowedFd<'a>, &'a Name),
    /// What a name in a directory leads to.
    Through(BorrowedFd<'a>, &'a Name),
}

/// A name whose value could not be read or set, and why.
pub(crate) type Failed = (Box<[u8]>, Errno);

enum Way<'a> {
    Fd(BorrowedFd<'a>),
    /// Leads to what is held, and ends there; or through a link.
    Followed(PathBuf),
    NotFollowed(PathBuf),
}

impl<'a> Subject<'a> {
    fn way(self) -> Way<'a> {
        let own = |fd: BorrowedFd<'_>| PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        match self {
            Subject::Open(fd) => Way::Fd(fd),
            Subject::Held(fd) => Way::Followed(own(fd)),
            Subject::Name(dir, name) => Way::NotFollowed(own(dir).join(OsStr::from_bytes(name.as_bytes()))),
            Subject::Through(dir, name) => Way::Followed(own(dir).join(OsStr::from_bytes(name.as_bytes()))),
        }
    }
}

impl Way<'_> {
    fn list(&self, room: &mut [u8]) -> Result<usize, Errno> {
        retry_on_intr(|| match self {
            Way::Fd(fd) => rustix::fs::flistxattr(fd, &mut room[..]),
            Way::Followed(path) => rustix::fs::listxattr(path, &mut room[..]),
            Way::NotFollowed(path) => rustix::fs::llistxattr(path, &mut room[..]),
        })
    }

    fn get_into(&self, name: &CStr, room: &mut [u8]) -> Result<usize, Errno> {
        retry_on_intr(|| match self {
            Way::Fd(fd) => rustix::fs::fgetxattr(fd, name, &mut room[..]),
            Way::Followed(path) => rustix::fs::getxattr(path, name, &mut room[..]),
            Way::NotFollowed(path) => rustix::fs::lgetxattr(path, name, &mut room[..]),
        })
    }

    fn set(&self, name: &CStr, value: &[u8]) -> Result<(), Errno> {
        #[cfg(test)]
        steps::note(self, "set", name);
        let flags = XattrFlags::empty();
        retry_on_intr(|| match self {
            Way::Fd(fd) => rustix::fs::fsetxattr(fd, name, value, flags),
            Way::Followed(path) => rustix::fs::setxattr(path, name, value, flags),
            Way::NotFollowed(path) => rustix::fs::lsetxattr(path, name, value, flags),
        })
    }

    fn remove(&self, name: &CStr) -> Result<(), Errno> {
        #[cfg(test)]
        steps::note(self, "remove", name);
        retry_on_intr(|| match self {
            Way::Fd(fd) => rustix::fs::fremovexattr(fd, name),
            Way::Followed(path) => rustix::fs::removexattr(path, name),
            Way::NotFollowed(path) => rustix::fs::lremovexattr(path, name),
        })
    }

    /// Names that are there; none where there can be none.
    fn names(&self) -> Result<Vec<u8>, Errno> {
        let read = |room: &mut [u8]| match self.list(room) {
            Err(errno) if has_none(errno) => Ok(0),
            other => other,
        };
        within(read, NAMES_LEN_MAX)
    }

    /// `None`: there is no such attribute.
    fn get(&self, name: &CStr) -> Result<Option<Vec<u8>>, Errno> {
        match within(|room| self.get_into(name, room), METADATA_VALUE_LEN_MAX as usize) {
            Ok(value) => Ok(Some(value)),
            Err(Errno::NODATA) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

/// What `read` gives, in as little room as it takes.
fn within(read: impl Fn(&mut [u8]) -> Result<usize, Errno>, most: usize) -> Result<Vec<u8>, Errno> {
    let mut short = [0; SHORT];
    match read(&mut short) {
        Ok(len) => Ok(short.get(..len).unwrap_or_default().to_vec()),
        Err(Errno::RANGE) => {
            let mut long = vec![0; most];
            let len = read(&mut long)?;
            long.truncate(len);
            long.shrink_to_fit();
            Ok(long)
        }
        Err(errno) => Err(errno),
    }
}

/// The file system has no attributes, or this kind of file has none.
fn has_none(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::NOSYS)
}

/// Names in a list that are kept.
fn kept_names(list: &[u8]) -> impl Iterator<Item = CString> {
    let names = list.split(|byte| *byte == 0).filter(|name| name.len() <= METADATA_NAME_LEN_MAX);
    names.filter(|name| may_be_kept(name)).filter_map(|name| CString::new(name).ok())
}

/// What of extended attributes could not be listed.
const ALL_XATTRS: &[u8] = b"extended attributes";

fn is_list(name: &[u8]) -> bool {
    [ACCESS, DEFAULT, NFS4].iter().any(|list| list.to_bytes() == name)
}

/// What could not be read, by class.
fn unread_of(failed: &[Failed]) -> Unread {
    let acls = failed.iter().any(|(name, _)| is_list(name));
    Unread { xattrs: failed.iter().any(|(name, _)| !is_list(name)), acls }
}

/// Reads what is kept of it, as far as it fits what an entry may have. What could not be read or does not fit
/// is not in it, and named; then the values say so too.
pub(crate) fn read(subject: Subject<'_>, kind: FileType, keeps: Keeps) -> (Values, Vec<Failed>) {
    let (mut values, mut failed) = read_all(subject, kind, keeps);
    // No file system of Linux but XFS holds as many. Lists say who may do what, so that attributes go first.
    let most = METADATA_LEN_MAX as usize - MARK_LEN_MAX;
    while len_of(&values) > most {
        let last = values.keys().rfind(|(namespace, _)| *namespace == Namespace::Xattr);
        let Some(key) = last.or_else(|| values.keys().next_back()).cloned() else { break };
        values.remove(&key);
        let name = match key.0 {
            Namespace::Xattr => key.1,
            Namespace::AccessAcl => ACCESS.to_bytes().into(),
            Namespace::DefaultAcl => DEFAULT.to_bytes().into(),
            Namespace::Nfs4Acl => NFS4.to_bytes().into(),
        };
        failed.push((name, Errno::TOOBIG));
    }
    if !haul_mutant::removed("what-was-not-read-is-not-missing") {
        unread_of(&failed).mark(&mut values);
    }
    (values, failed)
}

fn read_all(subject: Subject<'_>, kind: FileType, keeps: Keeps) -> (Values, Vec<Failed>) {
    let (mut values, mut failed) = (Values::new(), Vec::new());
    if !keeps.any() {
        return (values, failed);
    }
    let way = subject.way();
    if keeps.xattrs {
        let list = way.names().unwrap_or_else(|errno| {
            failed.push((ALL_XATTRS.into(), errno));
            Vec::new()
        });
        for name in kept_names(&list) {
            let bytes = name.as_bytes();
            match way.get(&name) {
                Ok(Some(value)) => drop(values.insert((Namespace::Xattr, bytes.into()), value)),
                // Removed since.
                Ok(None) => {}
                Err(errno) => failed.push((bytes.into(), errno)),
            }
        }
    }
    if keeps.acls && kind != FileType::Symlink {
        let mut lists = vec![(Namespace::AccessAcl, ACCESS)];
        lists.extend((kind == FileType::Directory).then_some((Namespace::DefaultAcl, DEFAULT)));
        for (namespace, name) in lists {
            match way.get(name) {
                Ok(Some(value)) => drop(values.insert((namespace, [].into()), value)),
                Ok(None) => {}
                Err(errno) if has_none(errno) => {
                    match way.get(NFS4) {
                        Ok(Some(value)) if says_more_than_a_mode(&value) => {
                            values.insert((Namespace::Nfs4Acl, [].into()), value);
                        }
                        Err(errno) if !has_none(errno) => failed.push((NFS4.to_bytes().into(), errno)),
                        Ok(_) | Err(_) => {}
                    }
                    break;
                }
                Err(errno) => failed.push((name.to_bytes().into(), errno)),
            }
        }
    }
    (values, failed)
}

/// Tells these values from others, as far as whether they changed.
pub(crate) fn print(values: &Values) -> u64 {
    let mut hasher = DefaultHasher::new();
    values.hash(&mut hasher);
    hasher.finish()
}

/// Whether it has other extended attributes, and other lists, than it is to have; and the list that it has.
#[derive(Debug, Default)]
pub(crate) struct Differs {
    pub(crate) xattrs: bool,
    pub(crate) acl: bool,
    /// It has not the rights of a program that it is to have.
    pub(crate) gains_rights: bool,
    pub(crate) access: Option<Vec<u8>>,
}

/// Holds what is there against what is to be there.
pub(crate) fn compare(
    subject: Subject<'_>,
    kind: FileType,
    keeps: Keeps,
    wanted: Option<&Values>,
) -> Differs {
    if !keeps.any() {
        return Differs::default();
    }
    let (mut stands, failed) = read_all(subject, kind, keeps);
    let none = Values::new();
    let wanted = wanted.unwrap_or(&none);
    let of = |values: &Values, xattr: bool| -> Vec<((Namespace, Box<[u8]>), Vec<u8>)> {
        let of = |namespace: Namespace| match namespace {
            Namespace::Xattr => xattr,
            Namespace::AccessAcl | Namespace::DefaultAcl => !xattr,
            Namespace::Nfs4Acl => false,
        };
        values
            .iter()
            .filter(|((namespace, name), _)| of(*namespace) && !is_mark(*namespace, name))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    };
    let unread = Unread::of(wanted);
    let differs = |xattr: bool, more_may_stand: bool| {
        let (stand, wanted) = (of(&stands, xattr), of(wanted, xattr));
        match more_may_stand {
            true => wanted.iter().any(|value| !stand.contains(value)),
            false => stand != wanted,
        }
    };
    // What cannot be read there cannot be told to be right: it is tried, and then said what is in the way.
    let unseen = match haul_mutant::removed("unseen-is-not-the-same") {
        true => Unread::default(),
        false => unread_of(&failed),
    };
    let xattrs = keeps.xattrs && (unseen.xattrs || differs(true, unread.xattrs));
    let nfs4 = (Namespace::Nfs4Acl, Box::from([]));
    let others = keeps.acls
        && match (stands.get(&nfs4), wanted.get(&nfs4)) {
            (Some(stands), Some(wanted)) => stands != wanted,
            // Where there are lists of POSIX it cannot be had, which is counted when it is tried.
            (None, Some(_)) => {
                let way = subject.way();
                way.get(ACCESS).is_err_and(has_none) && way.get(NFS4).is_ok_and(|list| list.is_some())
            }
            (_, None) => false,
        };
    let acl = others || keeps.acls && (unseen.acls || differs(false, unread.acls));
    let rights = (Namespace::Xattr, Box::from(CAPABILITY));
    let gains_rights =
        keeps.xattrs && wanted.get(&rights).is_some_and(|to_be| stands.get(&rights) != Some(to_be));
    Differs { xattrs, acl, gains_rights, access: stands.remove(&(Namespace::AccessAcl, [].into())) }
}

/// What came to nothing of what was to be set.
#[derive(Debug, Default)]
pub(crate) struct Unset {
    pub(crate) failed: Vec<Failed>,
    /// An NFSv4 list for which the destination has no place.
    pub(crate) nfs4: bool,
}

/// Sets and removes what needs the right to write, and what must not outlive a change of mode: all but lists
/// and a program's rights. `open`: gives this user the right to write, if it can.
pub(crate) fn set_first(
    subject: Subject<'_>,
    kind: FileType,
    keeps: Keeps,
    wanted: Option<&Values>,
    mut open: impl FnMut(),
) -> Unset {
    let mut unset = Unset::default();
    let way = subject.way();
    let unread = wanted.map(Unread::of).unwrap_or_default();
    let wants = |namespace: Namespace, name: &[u8]| {
        wanted.and_then(|wanted| wanted.get(&(namespace, Box::from(name)))).map(Vec::as_slice)
    };
    if keeps.acls && kind != FileType::Symlink && !haul_mutant::removed("other-lists-go") {
        for (namespace, name) in [(Namespace::AccessAcl, ACCESS), (Namespace::DefaultAcl, DEFAULT)] {
            let may_be = namespace == Namespace::AccessAcl || kind == FileType::Directory;
            if !may_be {
                continue;
            }
            let wanted = wants(namespace, b"");
            match way.get(name) {
                // Of a list that comes the one that stands would widen the mode until then.
                Ok(Some(stands)) if wanted != Some(&stands) && (wanted.is_some() || !unread.acls) => {
                    note(&mut unset, name, way.remove(name));
                }
                Ok(_) => {}
                Err(errno) if has_none(errno) => {}
                Err(errno) => note(&mut unset, name, Err(errno)),
            }
        }
    }
    if !keeps.xattrs {
        return unset;
    }
    let list = way.names().unwrap_or_else(|errno| {
        // What stands there and should not is not known.
        unset.failed.push((ALL_XATTRS.into(), errno));
        Vec::new()
    });
    let mut opened = false;
    let mut insist = |act: &dyn Fn() -> Result<(), Errno>| match act() {
        Err(Errno::ACCESS) if !std::mem::replace(&mut opened, true) => {
            open();
            act()
        }
        other => other,
    };
    let mut same: Vec<CString> = Vec::new();
    for name in kept_names(&list) {
        let stands = way.get(&name);
        match (stands, wants(Namespace::Xattr, name.as_bytes())) {
            (Ok(Some(stands)), Some(wanted)) if stands == wanted => same.push(name),
            (_, Some(_)) => {}
            (_, None) if unread.xattrs || haul_mutant::removed("other-attributes-go") => {}
            (_, None) => {
                let removed = insist(&|| way.remove(&name));
                note(&mut unset, &name, removed);
            }
        }
    }
    for (name, value) in xattrs_of(wanted) {
        let last = name.as_bytes() == CAPABILITY && !haul_mutant::removed("a-programs-rights-come-last");
        if last || same.contains(&name) {
            continue;
        }
        let set = insist(&|| way.set(&name, value));
        note(&mut unset, &name, set);
    }
    unset
}

/// Sets lists. Whether the mode is now what one of them says.
pub(crate) fn set_lists(
    subject: Subject<'_>,
    kind: FileType,
    keeps: Keeps,
    wanted: Option<&Values>,
    unset: &mut Unset,
) -> bool {
    let Some(wanted) = wanted else { return false };
    let way = subject.way();
    let mut says_mode = false;
    if keeps.acls && kind != FileType::Symlink {
        for (namespace, name) in [(Namespace::AccessAcl, ACCESS), (Namespace::DefaultAcl, DEFAULT)] {
            let may_be = namespace == Namespace::AccessAcl || kind == FileType::Directory;
            if let Some(value) = wanted.get(&(namespace, Box::from([]))).filter(|_| may_be) {
                let set = way.set(name, value);
                says_mode |= namespace == Namespace::AccessAcl && set.is_ok();
                note(unset, name, set);
            }
        }
        if let Some(value) = wanted.get(&(Namespace::Nfs4Acl, Box::from([])))
            && way.set(NFS4, value).is_err()
        {
            unset.nfs4 = true;
        }
    }
    says_mode
}

/// Sets a program's rights.
pub(crate) fn set_rights(subject: Subject<'_>, keeps: Keeps, wanted: Option<&Values>, unset: &mut Unset) {
    let Some(wanted) = wanted else { return };
    let way = subject.way();
    if keeps.xattrs
        && !haul_mutant::removed("a-programs-rights-come-last")
        && let Ok(name) = CString::new(CAPABILITY)
        && let Some(value) = wanted.get(&(Namespace::Xattr, Box::from(CAPABILITY)))
    {
        note(unset, &name, way.set(&name, value));
    }
}

fn xattrs_of(wanted: Option<&Values>) -> impl Iterator<Item = (CString, &[u8])> {
    let is_xattr =
        |namespace: Namespace, name: &[u8]| namespace == Namespace::Xattr && !is_mark(namespace, name);
    let all = wanted.into_iter().flatten().filter(move |((namespace, name), _)| is_xattr(*namespace, name));
    all.filter_map(|((_, name), value)| Some((CString::new(&name[..]).ok()?, value.as_slice())))
}

fn note(unset: &mut Unset, name: &CStr, result: Result<(), Errno>) {
    match result {
        // It went by itself.
        Ok(()) | Err(Errno::NODATA) => {}
        Err(errno) => unset.failed.push((name.to_bytes().into(), errno)),
    }
}

/// Whether an NFSv4 list has entries for others than owner, group and everyone, or some that are inherited.
/// One that cannot be read does.
fn says_more_than_a_mode(list: &[u8]) -> bool {
    const PLAIN: [&[u8]; 3] = [b"OWNER@", b"GROUP@", b"EVERYONE@"];
    /// The entry is a group's.
    const GROUP: u32 = 0x40;
    fn word(list: &mut &[u8]) -> Option<u32> {
        let (first, rest) = list.split_first_chunk::<4>()?;
        *list = rest;
        Some(u32::from_be_bytes(*first))
    }
    fn plain(mut list: &[u8]) -> Option<bool> {
        let list = &mut list;
        for _ in 0..word(list)? {
            let (_, flags, _, len) = (word(list)?, word(list)?, word(list)?, word(list)?);
            let len = usize::try_from(len).ok()?;
            let who = list.get(..len)?;
            *list = list.get(len.next_multiple_of(4)..)?;
            if flags & !GROUP != 0 || !PLAIN.contains(&who) {
                return Some(false);
            }
        }
        Some(true)
    }
    plain(list) != Some(true)
}

/// What was about to be set or removed of open files, and the modes that they had then: for tests of orders
/// that no end state shows.
#[cfg(test)]
pub(crate) mod steps {
    use std::ffi::CStr;
    use std::sync::Mutex;

    use super::Way;

    static NOTED: Mutex<Vec<(u64, String, u32)>> = Mutex::new(Vec::new());

    pub(super) fn note(way: &Way<'_>, what: &str, name: &CStr) {
        let Way::Fd(fd) = way else { return };
        let Ok(stat) = rustix::fs::fstat(fd) else { return };
        let step = format!("{what} {}", name.to_string_lossy());
        NOTED.lock().expect("no test panics with it").push((stat.st_ino, step, stat.st_mode & 0o7777));
    }

    /// Those of one inode, so far.
    pub(crate) fn of(ino: u64) -> Vec<(String, u32)> {
        let noted = NOTED.lock().expect("no test panics with it");
        noted.iter().filter(|(of, ..)| *of == ino).map(|(_, what, mode)| (what.clone(), *mode)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    const ALL: Keeps = Keeps { xattrs: true, acls: true };

    fn values(of: &[(&str, &[u8])]) -> Values {
        of.iter().map(|(name, value)| ((Namespace::Xattr, name.as_bytes().into()), value.to_vec())).collect()
    }

    /// Goal: what is set is read again, others that stand there go, and it is the same by a descriptor, by
    /// one that only holds it, and by its name.
    /// Method: a file with attributes, an empty value and a long one among them; compared before and after.
    #[test]
    fn what_is_set_is_read_again() {
        let temp = tempfile::tempdir().expect("tempdir");
        std::fs::write(temp.path().join("f"), b"x").expect("write");
        let dir = std::fs::File::open(temp.path()).expect("open");
        let (file, name) =
            (std::fs::File::open(temp.path().join("f")).expect("open"), Name::new(b"f").expect("legal"));
        let open = Subject::Open(file.as_fd());
        let wanted = values(&[("user.a", b"1"), ("user.empty", b""), ("user.long", &[7; 2000])]);
        let first = values(&[("user.a", b"0"), ("user.other", b"goes")]);
        assert!(set_first(open, FileType::RegularFile, ALL, Some(&first), || ()).failed.is_empty());
        assert!(compare(open, FileType::RegularFile, ALL, Some(&wanted)).xattrs);
        let unset = set_first(open, FileType::RegularFile, ALL, Some(&wanted), || ());
        assert!(unset.failed.is_empty(), "{unset:?}");
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::NOFOLLOW;
        let held = rustix::fs::openat(&dir, "f", flags, rustix::fs::Mode::empty()).expect("hold");
        for subject in [open, Subject::Held(held.as_fd()), Subject::Name(dir.as_fd(), &name)] {
            let (stands, failed) = read(subject, FileType::RegularFile, ALL);
            assert!(failed.is_empty(), "{failed:?}");
            assert_eq!(stands, wanted);
            assert!(!compare(subject, FileType::RegularFile, ALL, Some(&wanted)).xattrs);
            assert!(compare(subject, FileType::RegularFile, ALL, None).xattrs);
        }
        assert!(read(open, FileType::RegularFile, Keeps::default()).0.is_empty());
    }

    /// Goal: of an entry that could not be read whole nothing that stands at the destination is removed or
    /// differs, and what came is set; the mark itself is no attribute of any file.
    #[test]
    fn what_was_not_read_is_not_missing() {
        let temp = tempfile::tempfile().expect("file");
        let (open, kind) = (Subject::Open(temp.as_fd()), FileType::RegularFile);
        let stands = values(&[("user.a", b"1"), ("user.unread", b"stays")]);
        assert!(set_first(open, kind, ALL, Some(&stands), || ()).failed.is_empty());
        let mut came = values(&[("user.a", b"2")]);
        unread_of(&[(b"user.unread"[..].into(), Errno::IO)]).mark(&mut came);
        assert_eq!(Unread::of(&came), Unread { xattrs: true, acls: false });
        assert!(compare(open, kind, ALL, Some(&came)).xattrs);
        assert!(set_first(open, kind, ALL, Some(&came), || ()).failed.is_empty());
        assert!(!compare(open, kind, ALL, Some(&came)).xattrs);
        assert_eq!(read(open, kind, ALL).0, values(&[("user.a", b"2"), ("user.unread", b"stays")]));
        assert_eq!(unread_of(&[(ACCESS.to_bytes().into(), Errno::IO)]), Unread { xattrs: false, acls: true });
        // Nothing can be read of what is only held, and asked as if it were open; the source says so.
        let held = rustix::fs::open("/", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).expect("hold");
        let (came, failed) = read(Subject::Open(held.as_fd()), FileType::Directory, ALL);
        assert_eq!(Unread::of(&came), Unread { xattrs: true, acls: true }, "{failed:?}");
    }

    /// Goal: a file of which nothing can be read is not taken for one that has nothing.
    /// Method: what is only held, and is asked as if it were open.
    #[test]
    fn unseen_is_not_the_same() {
        let temp = tempfile::tempdir().expect("tempdir");
        let flags = rustix::fs::OFlags::PATH;
        let held = rustix::fs::open(temp.path(), flags, rustix::fs::Mode::empty()).expect("hold");
        let (subject, kind) = (Subject::Open(held.as_fd()), FileType::Directory);
        let differs = compare(subject, kind, ALL, None);
        assert!(differs.xattrs && differs.acl);
        let unset = set_first(subject, kind, ALL, None, || ());
        let told: Vec<_> = unset.failed.iter().map(|(name, errno)| (&name[..], *errno)).collect();
        assert!(told.contains(&(ALL_XATTRS, Errno::BADF)), "{told:?}");
        assert!(told.contains(&(ACCESS.to_bytes(), Errno::BADF)), "{told:?}");
    }

    /// Goal: an NFSv4 list that a server makes of a mode is no list that anybody gave.
    #[test]
    fn lists_of_modes_say_no_more() {
        let entry = |flags: u32, who: &str| {
            let mut bytes: Vec<u8> =
                [0, flags, 7, who.len() as u32].into_iter().flat_map(u32::to_be_bytes).collect();
            bytes.extend(who.as_bytes());
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        let list =
            |entries: &[Vec<u8>]| [&(entries.len() as u32).to_be_bytes()[..], &entries.concat()].concat();
        let plain = [entry(0, "OWNER@"), entry(0x40, "GROUP@"), entry(0, "EVERYONE@")];
        assert!(!says_more_than_a_mode(&list(&plain)));
        for more in [entry(0, "u@host"), entry(1, "OWNER@")] {
            assert!(says_more_than_a_mode(&list(&[plain[0].clone(), more])));
        }
        for bad in [&[][..], &[0, 0, 0, 1], &list(&plain)[..20]] {
            assert!(says_more_than_a_mode(bad));
        }
    }
}
