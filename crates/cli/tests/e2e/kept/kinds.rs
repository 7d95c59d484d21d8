//! The kinds of metadata, and a tree that has all of them: one directory for each kind.
//!
//! In: a directory. Out: the tree in it. Where a file system does not take something that is left out, unless
//! it is one that has to take all.
//! What must hold: the contents of a directory are of its kind alone, so that what is lost there is of it; no
//! name is a word that haul says of a loss.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, lchown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, Timespec, Timestamps, UTIME_OMIT, XattrFlags, makedev, mknodat, utimensat,
};

/// What can be lost of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Aspect {
    /// That it is there, and what it is: kind, target, device.
    Entry,
    Mode,
    SetId,
    Owner,
    /// The mtime, by more than any file system rounds it.
    Mtime,
    /// The mtime is rounded.
    Fraction,
    Xattr,
    Acl,
    DefaultAcl,
    /// That several names are one file's.
    Names,
    Holes,
}

use Aspect::*;

/// A kind of metadata: its directory, its words in the table, and what of the entries there is of this kind.
pub struct Kind {
    pub dir: &'static str,
    pub title: &'static str,
    pub aspects: &'static [Aspect],
}

const fn kind(dir: &'static str, title: &'static str, aspects: &'static [Aspect]) -> Kind {
    Kind { dir, title, aspects }
}

/// The directory of the largest attribute that the file system takes.
pub const LARGE: &str = "large";
/// That of those which users do not see.
pub const TRUSTED: &str = "trusted";

/// In the order of the table.
pub const KINDS: &[Kind] = &[
    kind("bits", "Modes", &[Mode]),
    kind("sticky", "Sticky bits", &[Mode]),
    kind("setid", "Setuid and setgid of files", &[SetId]),
    kind("setgid", "Setgid of directories", &[SetId]),
    kind("whose", "Owners and groups", &[Owner]),
    kind("when", "Mtimes, to the nanosecond", &[Mtime, Fraction]),
    kind("t1890", "Mtimes before 1901", &[Mtime]),
    kind("t1960", "Mtimes before 1970", &[Mtime]),
    kind("t2050", "Mtimes after 2038", &[Mtime]),
    kind("t2150", "Mtimes after 2106", &[Mtime]),
    kind("t2470", "Mtimes after 2446", &[Mtime]),
    kind("lists", "POSIX ACLs", &[Acl]),
    kind("default-lists", "Default ACLs of directories", &[DefaultAcl]),
    kind("user", "`user.*`", &[Xattr]),
    kind(LARGE, "One `user.*`, as long as it may be", &[Xattr]),
    kind(TRUSTED, "`trusted.*`, also of links", &[Xattr]),
    kind("capabilities", "`security.capability`", &[Xattr]),
    kind("names-of-files", "Hard links of files", &[Names]),
    kind("names-of-links", "Hard links of links and FIFOs", &[Names, Entry]),
    kind("symlinks", "Symbolic links", &[Entry]),
    kind("fifos", "FIFOs and sockets", &[Entry]),
    kind("devices", "Devices", &[Entry]),
    kind("holes", "Holes", &[Holes]),
    kind("long-names", "Names of 255 bytes", &[Entry]),
    kind("raw-names", "Names that are no UTF-8", &[Entry]),
    kind("odd-names", "Names with `:`, `*`, `\\`, a blank at the end", &[Entry]),
    kind("cases", "`Name` beside `name`", &[Entry]),
];

/// What everything has whose kind is not mtimes: even, for FAT, and what rsync tells.
const MTIME: (i64, i64) = (1_000_000_000, 0);
/// Somebody else, with a group of his.
const OTHER: (u32, u32) = (1234, 77);
/// `cap_net_raw` permitted and effective.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// How a tree is made.
pub struct Order {
    /// To whom it belongs, user and group.
    pub me: u32,
    /// The file system takes all of it, or the test fails.
    pub strict: bool,
    /// Length of the largest attribute, bytes; zero: none.
    pub large: usize,
    /// The same with one more byte, which the other end does not take, is there too.
    pub larger: bool,
}

struct Maker<'a> {
    root: &'a Path,
    order: &'a Order,
    mtimes: RefCell<BTreeMap<PathBuf, (i64, i64)>>,
}

/// Makes the tree at `root`, which is not there yet.
pub fn make(root: &Path, order: &Order) {
    let maker = Maker { root, order, mtimes: RefCell::default() };
    fs::create_dir(root).expect("make the root of a tree");
    maker.own(root, order.me, order.me, 0o755);
    for kind in KINDS {
        maker.dir(kind.dir);
        maker.fill(kind.dir);
    }
    maker.age(root);
}

impl Maker<'_> {
    fn fill(&self, kind: &str) {
        let at = |name: &str| format!("{kind}/{name}");
        let me = self.order.me;
        match kind {
            "bits" => {
                for mode in [0o400, 0o640, 0o707, 0o755] {
                    self.mode(&self.file(&at(&format!("f{mode:o}"))), mode);
                }
                for mode in [0o750, 0o555] {
                    self.mode(&self.dir(&at(&format!("d{mode:o}"))), mode);
                }
            }
            "sticky" => {
                self.mode(&self.dir(&at("d")), 0o1777);
                self.mode(&self.file(&at("f")), 0o1644);
            }
            "setid" => {
                self.own(&self.file(&at("setuid")), OTHER.0, OTHER.1, 0o4755);
                self.own(&self.file(&at("setgid")), OTHER.0, OTHER.1, 0o2755);
            }
            "setgid" => {
                let dir = self.dir(&at("d"));
                self.own(&self.file(&at("d/f")), me, me, 0o644);
                self.own(&dir, OTHER.0, OTHER.1, 0o2775);
            }
            "whose" => {
                self.own(&self.file(&at("f")), OTHER.0, OTHER.1, 0o644);
                self.own(&self.dir(&at("d")), OTHER.0, OTHER.1, 0o755);
                let link = self.link(&at("l"), b"f");
                self.done(&link, lchown(&link, Some(OTHER.0), Some(OTHER.1)));
            }
            "when" => self.timed(kind, (1_000_000_001, 123_456_789)),
            "t1890" => self.timed(kind, (-2_500_000_000, 0)),
            "t1960" => self.timed(kind, (-300_000_000, 0)),
            "t2050" => self.timed(kind, (2_540_000_000, 0)),
            "t2150" => self.timed(kind, (5_700_000_000, 0)),
            "t2470" => self.timed(kind, (15_800_000_000, 0)),
            "lists" => {
                self.xattr(&self.file(&at("f")), "system.posix_acl_access", &acl(6));
                self.xattr(&self.dir(&at("d")), "system.posix_acl_access", &acl(7));
                let fifo = self.node(&at("p"), FileType::Fifo, 0);
                self.xattr(&fifo, "system.posix_acl_access", &acl(6));
            }
            "default-lists" => self.xattr(&self.dir(&at("d")), "system.posix_acl_default", &acl(7)),
            "user" => {
                let file = self.file(&at("f"));
                self.xattr(&file, "user.a", b"1");
                self.xattr(&file, "user.empty", b"");
                self.xattr(&file, "user.bytes", &[0, 255, 10, 0]);
                self.xattr(&self.dir(&at("d")), "user.of-a-directory", b"2");
            }
            LARGE if self.order.large > 0 => {
                self.xattr(&self.file(&at("f")), "user.x", &vec![7; self.order.large]);
                if self.order.larger {
                    self.xattr(&self.file(&at("larger")), "user.x", &vec![7; self.order.large + 1]);
                }
            }
            LARGE => {}
            TRUSTED => {
                self.xattr(&self.file(&at("f")), "trusted.t", b"1");
                self.xattr(&self.dir(&at("d")), "trusted.t", b"2");
                self.xattr(&self.link(&at("l"), b"f"), "trusted.t", b"3");
            }
            "capabilities" => {
                let program = self.file(&at("f"));
                self.mode(&program, 0o755);
                self.xattr(&program, "security.capability", &CAPABILITY);
            }
            "names-of-files" => {
                let file = self.file(&at("a"));
                self.dir(&at("d"));
                self.name(&file, &at("b"));
                self.name(&file, &at("d/c"));
            }
            "names-of-links" => {
                self.name(&self.link(&at("l"), b"f"), &at("l2"));
                self.name(&self.node(&at("p"), FileType::Fifo, 0), &at("p2"));
            }
            "symlinks" => {
                for (index, target) in [b"a".as_slice(), b"/etc/passwd", b"../no/where", &[0xff, 0x80]]
                    .into_iter()
                    .chain([[b'x'; 1000].as_slice()])
                    .enumerate()
                {
                    self.link(&at(&index.to_string()), target);
                }
            }
            "fifos" => {
                self.node(&at("pipe"), FileType::Fifo, 0);
                self.node(&at("socket"), FileType::Socket, 0);
            }
            "devices" => {
                self.node(&at("null"), FileType::CharacterDevice, makedev(1, 3));
                self.node(&at("disk"), FileType::BlockDevice, makedev(7, 200));
            }
            "holes" => {
                self.sparse(&at("between"), 8 << 20, &[0, 4 << 20]);
                self.sparse(&at("all"), 2 << 20, &[]);
            }
            "long-names" => {
                self.raw(kind, &[b'n'; 255]);
                self.raw(kind, &[b"m".as_slice(), &[b'x'; 254]].concat());
            }
            "raw-names" => {
                self.raw(kind, &[0xff, 0xfe, b'x']);
                self.raw(kind, &[b'a', 0xc3, b'b']);
            }
            "odd-names" => {
                ["a:b", "*?", "back\\slash", "at the end ", "new\nline"]
                    .iter()
                    .for_each(|name| self.raw(kind, name.as_bytes()));
            }
            "cases" => ["Name", "name"].iter().for_each(|name| self.raw(kind, name.as_bytes())),
            other => panic!("nothing is made of {other}"),
        }
    }

    /// A file, a directory, a link and a FIFO of this time.
    fn timed(&self, kind: &str, mtime: (i64, i64)) {
        let entries = [
            self.file(&format!("{kind}/f")),
            self.dir(&format!("{kind}/d")),
            self.link(&format!("{kind}/l"), b"f"),
            self.node(&format!("{kind}/p"), FileType::Fifo, 0),
        ];
        self.mtimes.borrow_mut().extend(entries.map(|path| (path, mtime)));
    }

    fn file(&self, name: &str) -> PathBuf {
        let path = self.root.join(name);
        // No two are the same, so that none is taken for another.
        self.done(&path, fs::write(&path, name));
        self.own(&path, self.order.me, self.order.me, 0o644);
        path
    }

    fn raw(&self, kind: &str, name: &[u8]) {
        let path = self.root.join(kind).join(OsStr::from_bytes(name));
        self.done(&path, fs::write(&path, name));
        self.own(&path, self.order.me, self.order.me, 0o644);
    }

    fn dir(&self, name: &str) -> PathBuf {
        let path = self.root.join(name);
        self.done(&path, fs::create_dir(&path));
        self.own(&path, self.order.me, self.order.me, 0o755);
        path
    }

    fn link(&self, name: &str, target: &[u8]) -> PathBuf {
        let path = self.root.join(name);
        self.done(&path, symlink(OsStr::from_bytes(target), &path));
        self.done(&path, lchown(&path, Some(self.order.me), Some(self.order.me)));
        path
    }

    fn node(&self, name: &str, kind: FileType, device: u64) -> PathBuf {
        let path = self.root.join(name);
        self.done(&path, mknodat(CWD, &path, kind, Mode::from(0o640), device));
        self.own(&path, self.order.me, self.order.me, 0o640);
        path
    }

    fn name(&self, of: &Path, name: &str) {
        let path = self.root.join(name);
        self.done(&path, fs::hard_link(of, &path));
    }

    /// `len` bytes, of which 64 KiB at each of these offsets are data.
    fn sparse(&self, name: &str, len: u64, data: &[u64]) {
        let path = self.file(name);
        self.done(&path, fs::write(&path, ""));
        let Some(file) = self.done(&path, File::options().write(true).open(&path)) else { return };
        self.done(&path, file.set_len(len));
        for offset in data {
            self.done(&path, file.write_all_at(&[5; 64 << 10], *offset));
        }
    }

    fn xattr(&self, path: &Path, name: &str, value: &[u8]) {
        self.done(path, rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()));
    }

    fn mode(&self, path: &Path, mode: u32) {
        self.done(path, fs::set_permissions(path, fs::Permissions::from_mode(mode)));
    }

    /// The owner first, for that takes setuid and setgid.
    fn own(&self, path: &Path, uid: u32, gid: u32, mode: u32) {
        self.done(path, lchown(path, Some(uid), Some(gid)));
        self.mode(path, mode);
    }

    /// Sets the mtimes of all that is there, the deepest first.
    fn age(&self, path: &Path) {
        if fs::symlink_metadata(path).is_ok_and(|stat| stat.is_dir()) {
            fs::read_dir(path)
                .expect("list what was made")
                .flatten()
                .for_each(|entry| self.age(&entry.path()));
        }
        let (tv_sec, tv_nsec) = self.mtimes.borrow().get(path).copied().unwrap_or(MTIME);
        let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = Timestamps { last_access, last_modification: Timespec { tv_sec, tv_nsec } };
        self.done(path, utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW));
    }

    fn done<T, E: Display>(&self, path: &Path, result: Result<T, E>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) if self.order.strict => panic!("{}: {error}", path.display()),
            Err(_) => None,
        }
    }
}

/// A list as the kernel has it, in which its owner and a user besides have these rights.
fn acl(rights: u16) -> Vec<u8> {
    const NOBODYS: u32 = u32::MAX;
    let entries = [(1, rights, NOBODYS), (2, rights, OTHER.0), (4, 4, NOBODYS), (8, 4, OTHER.1)];
    let entries = entries.into_iter().chain([(0x10, rights, NOBODYS), (0x20, 4, NOBODYS)]);
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        let (tag, rights): (u16, u16) = (tag, rights);
        list.extend(tag.to_le_bytes().into_iter().chain(rights.to_le_bytes()).chain(id.to_le_bytes()));
    }
    list
}
