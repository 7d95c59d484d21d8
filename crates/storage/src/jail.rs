//! The jail: every effect below the destination root is by directory descriptor and one component.
//!
//! In: a directory's descriptor and one [`Name`], which cannot be `..` nor hold a `/`. Out: descriptors,
//! file status, errno. What must hold: no symbolic link is followed, whoever planted it and whenever, so
//! that nothing outside the root is ever opened, made, renamed or removed.
//!
//! Two ways to open a component keep that rule: `openat2` with `RESOLVE_BENEATH|NO_SYMLINKS|NO_MAGICLINKS`,
//! and `openat` with `O_NOFOLLOW` where the kernel or a filter (containers) refuses the former.
//! Left out: protection against someone who moves a directory that is already open out of the root; what
//! is written then lands in the directory that was opened, never elsewhere.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use haul_core::entry::{Name, Node};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Timestamps};
use rustix::io::{Errno, Result, retry_on_intr};

/// How one component is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolve {
    /// `openat2`: the kernel itself refuses links and anything outside.
    Openat2,
    /// `openat` of one component with `O_NOFOLLOW`.
    Components,
}

/// All effects on a destination tree.
#[derive(Clone, Copy, Debug)]
pub struct Jail {
    resolve: Resolve,
}

/// New directories and temporaries are private until they are finished.
const DIR_MODE: Mode = Mode::RWXU;
const TEMP_MODE: Mode = Mode::RUSR.union(Mode::WUSR);
const RESOLVE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

impl Jail {
    /// Asks the kernel once whether `openat2` works at `root`.
    pub fn probe(root: impl AsFd) -> Jail {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match retry_on_intr(|| rustix::fs::openat2(&root, c".", flags, Mode::empty(), RESOLVE)) {
            // ENOSYS: before Linux 5.6. EPERM: a seccomp filter. EINVAL: resolve flags unknown.
            Err(Errno::NOSYS | Errno::PERM | Errno::INVAL) => Jail::with(Resolve::Components),
            _ => Jail::with(Resolve::Openat2),
        }
    }

    /// A jail that resolves in this way, whatever the kernel can do.
    pub fn with(resolve: Resolve) -> Jail {
        Jail { resolve }
    }

    /// How components are opened.
    pub fn resolve(&self) -> Resolve {
        self.resolve
    }

    /// Opens the destination root, the only thing that is opened by path and may be a symbolic link.
    pub fn open_root(path: &Path) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        retry_on_intr(|| rustix::fs::openat(CWD, path, flags, Mode::empty()))
    }

    /// Holds the destination root, without the right to read it.
    pub fn hold_root(path: &Path) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        retry_on_intr(|| rustix::fs::openat(CWD, path, flags, Mode::empty()))
    }

    /// Opens a destination root of which we are the owner though its mode forbids it to us, if it `may` be,
    /// by giving the owner read, write and search; and how it stood.
    pub fn open_root_by_force(path: &Path, may: impl FnOnce(&Stat) -> bool) -> Result<(OwnedFd, Stat)> {
        let held = Jail::hold_root(path)?;
        let stat = rustix::fs::fstat(&held)?;
        if !may(&stat) {
            return Err(Errno::ACCESS);
        }
        let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
        rustix::fs::chmod(own_name(&held), mode | DIR_MODE)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match retry_on_intr(|| rustix::fs::openat(&held, c".", flags, Mode::empty())) {
            Ok(fd) => Ok((fd, stat)),
            Err(errno) => {
                let _ = rustix::fs::chmod(own_name(&held), mode);
                Err(errno)
            }
        }
    }

    fn open(&self, parent: impl AsFd, name: &Name, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        let followed = haul_mutant::removed("no-follow");
        let flags = if followed { flags } else { flags | OFlags::NOFOLLOW } | OFlags::CLOEXEC;
        let parent = parent.as_fd();
        retry_on_intr(|| match self.resolve {
            Resolve::Openat2 if !followed => {
                rustix::fs::openat2(parent, name.as_bytes(), flags, mode, RESOLVE)
            }
            _ => rustix::fs::openat(parent, name.as_bytes(), flags, mode),
        })
    }

    /// Opens the directory `name`. A symbolic link is `ENOTDIR` or `ELOOP`, also if it leads to a directory.
    pub fn open_dir(&self, parent: impl AsFd, name: &Name) -> Result<OwnedFd> {
        self.open(parent, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
    }

    /// Opens the directory `name` of which we are the owner though its mode forbids it to us, by giving the
    /// owner read, write and search; `before` sees it as it was, and may keep it so.
    pub fn open_dir_by_force(
        &self,
        parent: impl AsFd,
        name: &Name,
        before: impl FnOnce(&Stat) -> Result<()>,
    ) -> Result<OwnedFd> {
        let parent = parent.as_fd();
        let path = self.open(parent, name, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
        let stat = rustix::fs::fstat(&path)?;
        before(&stat)?;
        self.set_mode(&path, Mode::from_raw_mode(stat.st_mode & 0o7777) | DIR_MODE)?;
        self.open_dir(parent, name)
    }

    /// Makes the directory `name`, for the owner only.
    pub fn make_dir(&self, parent: impl AsFd, name: &Name) -> Result<()> {
        retry_on_intr(|| rustix::fs::mkdirat(&parent, name.as_bytes(), DIR_MODE))
    }

    /// Makes the file `name`, which must not exist, for the owner only.
    pub fn create_temp(&self, parent: impl AsFd, name: &Name) -> Result<OwnedFd> {
        let mode = if haul_mutant::removed("private-temporaries") { Mode::from(0o666) } else { TEMP_MODE };
        self.open(parent, name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, mode)
    }

    /// Makes a file in this directory, which has no name until [`Jail::link_open`] gives it one, and
    /// is gone without one when it is closed.
    pub fn create_nameless(&self, dir: impl AsFd, mode: Mode) -> Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        retry_on_intr(|| rustix::fs::openat(&dir, c".", flags, mode))
    }

    /// Makes the file `name`, which must not exist, for the owner only, without opening it.
    pub fn make_unopened(&self, parent: impl AsFd, name: &Name) -> Result<()> {
        let kind = FileType::RegularFile;
        retry_on_intr(|| rustix::fs::mknodat(&parent, name.as_bytes(), kind, TEMP_MODE, 0))
    }

    /// Opens the existing file `name`. Does not wait for the other end of a fifo.
    pub fn open_file(&self, parent: impl AsFd, name: &Name, write: bool) -> Result<OwnedFd> {
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        self.open(parent, name, access | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty())
    }

    /// Opens the file `name` once more, for direct I/O. It has to be the file that `same` is open on,
    /// whatever was renamed meanwhile (`ESTALE` otherwise). `EINVAL` where the file system knows no direct
    /// I/O.
    pub fn open_direct(&self, parent: impl AsFd, name: &Name, same: impl AsFd) -> Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = self.open(parent, name, flags, Mode::empty())?;
        let (found, meant) = (rustix::fs::fstat(&fd)?, rustix::fs::fstat(same)?);
        match (found.st_dev, found.st_ino) == (meant.st_dev, meant.st_ino) {
            true => Ok(fd),
            false => Err(Errno::STALE),
        }
    }

    /// Whatever stands at `name`, to be looked at and not to be read: nothing is waited for, and a link is
    /// itself.
    pub fn open_path(&self, parent: impl AsFd, name: &Name) -> Result<OwnedFd> {
        // This resolution refuses a link as such; `openat` without following opens the link itself.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        retry_on_intr(|| rustix::fs::openat(&parent, name.as_bytes(), flags, Mode::empty()))
    }

    /// Opens for reading what was opened by [`Jail::open_path`]: that inode, whatever has its name now. Waits
    /// for whoever has a lease on it, if `wait` (`EAGAIN` otherwise), so then it has to be a regular file.
    pub fn reopen(&self, path: impl AsFd, wait: bool) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
        let flags = if wait { flags } else { flags | OFlags::NONBLOCK };
        retry_on_intr(|| rustix::fs::openat(CWD, own_name(&path), flags, Mode::empty()))
    }

    /// Sets the mode of what was opened by [`Jail::open_path`].
    pub fn set_mode(&self, path: impl AsFd, mode: Mode) -> Result<()> {
        // fchmod refuses O_PATH descriptors, and fchmodat would follow a link that took the name; the
        // kernel's own name of this descriptor does neither.
        rustix::fs::chmod(own_name(&path), mode)
    }

    /// Sets the times of what was opened by [`Jail::open_path`], a link itself too.
    pub fn set_times(&self, path: impl AsFd, times: &Timestamps) -> Result<()> {
        match rustix::fs::utimensat(&path, "", times, AtFlags::EMPTY_PATH) {
            // Before Linux 5.8.
            Err(Errno::INVAL) => rustix::fs::utimensat(CWD, own_name(&path), times, AtFlags::empty()),
            other => other,
        }
    }

    /// What stands at `name`; a link itself, not its target.
    pub fn stat(&self, parent: impl AsFd, name: &Name) -> Result<Stat> {
        retry_on_intr(|| rustix::fs::statat(&parent, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW))
    }

    /// Renames within one directory, replacing what stands at `to` unless `no_replace` (`EEXIST` then).
    pub fn rename(&self, parent: impl AsFd, from: &Name, to: &Name, no_replace: bool) -> Result<()> {
        let parent = parent.as_fd();
        let (from, to) = (from.as_bytes(), to.as_bytes());
        if !no_replace {
            return retry_on_intr(|| rustix::fs::renameat(parent, from, parent, to));
        }
        let flags = RenameFlags::NOREPLACE;
        match retry_on_intr(|| rustix::fs::renameat_with(parent, from, parent, to, flags)) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::PERM) => link_in_place(parent, from, to),
            other => other,
        }
    }

    /// Renames within one directory to a name at which nothing stands (`EEXIST` else). Where a rename cannot
    /// be told that, it looks first: what appears between the look and the rename is replaced.
    pub fn rename_new(&self, parent: impl AsFd, from: &Name, to: &Name) -> Result<()> {
        let parent = parent.as_fd();
        let flags = RenameFlags::NOREPLACE;
        let rename = || rustix::fs::renameat_with(parent, from.as_bytes(), parent, to.as_bytes(), flags);
        match retry_on_intr(rename) {
            // EINVAL: the file system knows no flags; ENOSYS: before Linux 3.15; EPERM: a filter, or what the
            // rename below meets, too.
            Err(Errno::INVAL | Errno::NOSYS | Errno::PERM) => match self.stat(parent, to) {
                Ok(_) => Err(Errno::EXIST),
                Err(Errno::NOENT) => self.rename(parent, from, to, false),
                Err(errno) => Err(errno),
            },
            other => other,
        }
    }

    /// Gives what is open the further name `name`, at which nothing may stand (`EEXIST` else).
    pub fn link_open(&self, fd: impl AsFd, parent: impl AsFd, name: &Name) -> Result<()> {
        /// Before Linux 6.10 only root may name a descriptor itself, which costs less than its name in /proc.
        static ITSELF: AtomicBool = AtomicBool::new(true);
        if ITSELF.load(Ordering::Relaxed) {
            let linked =
                retry_on_intr(|| rustix::fs::linkat(&fd, c"", &parent, name.as_bytes(), AtFlags::EMPTY_PATH));
            match linked {
                // Or the directory is gone, which the other way says, too.
                Err(Errno::NOENT | Errno::INVAL | Errno::PERM) => {}
                linked => return linked,
            }
        }
        let linked = retry_on_intr(|| {
            rustix::fs::linkat(CWD, own_name(&fd), &parent, name.as_bytes(), AtFlags::SYMLINK_FOLLOW)
        });
        if linked.is_ok() {
            ITSELF.store(false, Ordering::Relaxed);
        }
        linked
    }

    /// Removes the name of a file, link or other non-directory.
    pub fn unlink(&self, parent: impl AsFd, name: &Name) -> Result<()> {
        retry_on_intr(|| rustix::fs::unlinkat(&parent, name.as_bytes(), AtFlags::empty()))
    }

    /// Makes the FIFO, socket or device `name`, which must not exist, closed to everybody. It is not opened.
    pub fn make_node(&self, parent: impl AsFd, name: &Name, node: Node) -> Result<()> {
        let (kind, dev) = match node {
            Node::Fifo => (FileType::Fifo, 0),
            Node::Socket => (FileType::Socket, 0),
            Node::Device { block: true, major, minor } => {
                (FileType::BlockDevice, rustix::fs::makedev(major, minor))
            }
            Node::Device { block: false, major, minor } => {
                (FileType::CharacterDevice, rustix::fs::makedev(major, minor))
            }
        };
        let open = haul_mutant::removed("nodes-are-made-closed");
        let mode = if open { Mode::from(0o666) } else { Mode::empty() };
        retry_on_intr(|| rustix::fs::mknodat(&parent, name.as_bytes(), kind, mode, dev))
    }

    /// Makes the symbolic link `name`; `target` is stored, never followed.
    pub fn symlink(&self, target: &[u8], parent: impl AsFd, name: &Name) -> Result<()> {
        retry_on_intr(|| rustix::fs::symlinkat(target, &parent, name.as_bytes()))
    }
}

/// The kernel's own name of a descriptor, which leads to what is open and nowhere else.
fn own_name(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd.as_fd()))
}

/// A rename that cannot replace, for file systems whose rename knows no flags (NFS): a hard link fails where
/// the name is taken. A crash between the two calls leaves the temporary as a second name.
fn link_in_place(parent: impl AsFd, from: &[u8], to: &[u8]) -> Result<()> {
    let parent = parent.as_fd();
    retry_on_intr(|| rustix::fs::linkat(parent, from, parent, to, AtFlags::empty()))?;
    retry_on_intr(|| rustix::fs::unlinkat(parent, from, AtFlags::empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).expect("a legal name")
    }

    /// Runs `check` with both ways to resolve, each in its own directory with a sibling `outside`.
    fn both(check: impl Fn(Jail, &Path, OwnedFd)) {
        for resolve in [Resolve::Openat2, Resolve::Components] {
            let dir = tempfile::tempdir().expect("a temporary directory");
            fs::create_dir(dir.path().join("root")).expect("mkdir");
            fs::create_dir(dir.path().join("outside")).expect("mkdir");
            fs::write(dir.path().join("outside/victim"), "precious").expect("write");
            let root = Jail::open_root(&dir.path().join("root")).expect("root");
            if resolve == Resolve::Openat2 && Jail::probe(&root).resolve() != Resolve::Openat2 {
                eprintln!("skipped: openat2 is not there");
                continue;
            }
            check(Jail::with(resolve), dir.path(), root);
        }
    }

    /// Goal: what is made is found, with private modes, and renames and removals do what they say.
    /// Method: each operation once, seen by the standard library.
    #[test]
    fn effects_are_those_of_the_file_system() {
        both(|jail, base, root| {
            jail.make_dir(&root, &name("d")).expect("mkdir");
            let d = jail.open_dir(&root, &name("d")).expect("open");
            let fd = jail.create_temp(&d, &name("t")).expect("create");
            rustix::io::write(&fd, b"x").expect("write");
            assert_eq!(jail.create_temp(&d, &name("t")).unwrap_err(), Errno::EXIST);
            let mode = fs::metadata(base.join("root/d/t")).expect("stat").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            jail.rename(&d, &name("t"), &name("f"), false).expect("rename");
            assert_eq!(fs::read(base.join("root/d/f")).expect("read"), b"x");
            assert_eq!(jail.stat(&d, &name("f")).expect("stat").st_size, 1);
            jail.symlink(b"../../outside", &d, &name("l")).expect("symlink");
            assert_eq!(fs::read_link(base.join("root/d/l")).expect("link").as_os_str(), "../../outside");
            jail.unlink(&d, &name("f")).expect("unlink");
            assert!(!base.join("root/d/f").exists());
        });
    }

    /// Goal: what is made is closed to everybody, and is what it was to be.
    /// Method: a FIFO and a socket, under a umask that takes nothing; a device where this user may.
    #[test]
    fn nodes_are_made_closed() {
        both(|jail, base, root| {
            let nodes = [
                ("p", Node::Fifo),
                ("s", Node::Socket),
                ("n", Node::Device { block: false, major: 1, minor: 3 }),
            ];
            for (text, node) in nodes {
                match jail.make_node(&root, &name(text), node) {
                    Err(Errno::PERM) if matches!(node, Node::Device { .. }) => {
                        eprintln!("skipped: no devices here");
                        continue;
                    }
                    made => made.expect("made"),
                }
                let mode =
                    fs::symlink_metadata(base.join("root").join(text)).expect("stat").permissions().mode();
                assert_eq!(mode & 0o7777, 0, "{text}");
                let stat = jail.stat(&root, &name(text)).expect("stat");
                let kind = FileType::from_raw_mode(stat.st_mode);
                assert_eq!(crate::source::stat::node_of(kind, stat.st_rdev), Some(node));
                assert_eq!(jail.make_node(&root, &name(text), node), Err(Errno::EXIST));
            }
        });
    }

    /// Goal: a link planted where a directory or file is expected leads nowhere, in either way.
    /// Method: absolute and relative links, to a directory and to a file, live and dangling.
    #[test]
    fn planted_links_are_not_followed() {
        both(|jail, base, root| {
            let targets = [
                base.join("outside"),
                "../outside".into(),
                base.join("outside/new"),
                "../outside/victim".into(),
            ];
            for (i, target) in targets.iter().enumerate() {
                let planted = name(&format!("planted{i}"));
                symlink(target, base.join("root").join(format!("planted{i}"))).expect("symlink");
                assert!(jail.open_dir(&root, &planted).is_err());
                assert!(jail.open_dir_by_force(&root, &planted, |_| Ok(())).is_err());
                assert!(jail.create_temp(&root, &planted).is_err());
                assert!(jail.open_file(&root, &planted, true).is_err());
                assert_eq!(jail.make_dir(&root, &planted).unwrap_err(), Errno::EXIST);
                let kind =
                    rustix::fs::FileType::from_raw_mode(jail.stat(&root, &planted).expect("stat").st_mode);
                assert_eq!(kind, rustix::fs::FileType::Symlink);
            }
            assert_eq!(fs::read(base.join("outside/victim")).expect("read"), b"precious");
            assert_eq!(fs::read_dir(base.join("outside")).expect("ls").count(), 1);
        });
    }

    /// Goal: a second descriptor is of the same file as the first, or there is none.
    /// Method: the name as it was, then with another file under it, then with a link to the first.
    #[test]
    fn second_descriptor_is_of_the_same_file() {
        both(|jail, base, root| {
            let first = jail.create_temp(&root, &name("f")).expect("create");
            match jail.open_direct(&root, &name("f"), &first) {
                Err(Errno::INVAL) => return eprintln!("skipped: no direct I/O here"),
                other => drop(other.expect("the same file")),
            }
            fs::rename(base.join("root/f"), base.join("root/g")).expect("rename");
            drop(jail.create_temp(&root, &name("f")).expect("create"));
            assert_eq!(jail.open_direct(&root, &name("f"), &first).unwrap_err(), Errno::STALE);
            fs::remove_file(base.join("root/f")).expect("rm");
            symlink("g", base.join("root/f")).expect("symlink");
            assert_eq!(jail.open_direct(&root, &name("f"), &first).unwrap_err(), Errno::LOOP);
        });
    }

    /// Goal: a rename over a link replaces the link, not its target; and with `no_replace` nothing.
    /// Method: link to a file outside; also the hard-link fall-back by itself.
    #[test]
    fn rename_replaces_names_only() {
        both(|jail, base, root| {
            symlink("../outside/victim", base.join("root/f")).expect("symlink");
            drop(jail.create_temp(&root, &name("t")).expect("create"));
            assert_eq!(jail.rename(&root, &name("t"), &name("f"), true).unwrap_err(), Errno::EXIST);
            assert_eq!(link_in_place(&root, b"t", b"f").unwrap_err(), Errno::EXIST);
            assert!(base.join("root/t").exists());
            jail.rename(&root, &name("t"), &name("f"), false).expect("rename");
            assert!(fs::symlink_metadata(base.join("root/f")).expect("stat").is_file());
            assert_eq!(fs::read(base.join("outside/victim")).expect("read"), b"precious");
            drop(jail.create_temp(&root, &name("t")).expect("create"));
            link_in_place(&root, b"t", b"g").expect("link");
            assert!(base.join("root/g").exists() && !base.join("root/t").exists());
        });
    }

    /// Goal: a directory that its owner may not enter can be opened, and keeps its other permission bits.
    /// Method: mode 0040; the change itself is seen, for root is never refused.
    #[test]
    fn closed_directories_open_by_force() {
        both(|jail, base, root| {
            fs::create_dir(base.join("root/d")).expect("mkdir");
            fs::set_permissions(base.join("root/d"), fs::Permissions::from_mode(0o040)).expect("chmod");
            let refused = jail.open_dir_by_force(&root, &name("d"), |_| Err(Errno::ACCESS));
            assert_eq!(refused.expect_err("refused"), Errno::ACCESS);
            let mode = || fs::metadata(base.join("root/d")).expect("stat").permissions().mode() & 0o7777;
            assert_eq!(mode(), 0o040, "it stays as it was");
            let mut before = 0;
            let see = |stat: &Stat| {
                before = stat.st_mode & 0o7777;
                Ok(())
            };
            jail.open_dir_by_force(&root, &name("d"), see).expect("open");
            assert_eq!((before, mode()), (0o040, 0o740));
        });
    }
}
