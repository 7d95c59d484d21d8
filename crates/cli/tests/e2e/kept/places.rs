//! The file systems of the table, and how each comes to be mounted.
//!
//! In: what the machine has. Out: a directory on the file system, and one on another that takes all that
//! there is, as the other end. What this machine's kernel has not is mounted in a guest's, where this very
//! test runs again.
//! To add one: a line in `FILE_SYSTEMS`.

use std::any::Any;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

use crate::support::disk::{Disk, Kind};
use crate::support::model::lab;
use crate::support::mount::{Btrfs, Ramfs, Tmpfs};
use crate::support::run::program;
use crate::support::{Room, needs};

/// A file system of the table.
pub struct FileSystem {
    pub title: &'static str,
    needs: &'static [&'static str],
    how: How,
    /// A user who may not do everything copies to it.
    pub by_a_user: bool,
}

enum How {
    Here(fn(&Room) -> (PathBuf, Box<dyn Any>)),
    /// `lab pfs up` and these words.
    Lab(&'static [&'static str]),
    /// Lines of shell that mount it at `/mnt/place` in a guest.
    Guest(&'static str),
}

const fn here(
    title: &'static str,
    needs: &'static [&'static str],
    up: fn(&Room) -> (PathBuf, Box<dyn Any>),
) -> FileSystem {
    FileSystem { title, needs, how: How::Here(up), by_a_user: false }
}

/// In the order of the table.
pub const FILE_SYSTEMS: &[FileSystem] = &[
    here("ext4", &["ext4"], |room| disk(room, Kind::Ext4)),
    here("ext4, inodes of 128 bytes", &["ext4"], |room| disk(room, Kind::Ext4Old)),
    here("XFS", &["xfs"], |room| disk(room, Kind::Xfs)),
    here("btrfs", &["btrfs"], |room| {
        let at = room.dir("place");
        let guard = Btrfs::mount_with(room, &at, "rw");
        (at, Box::new(guard))
    }),
    here("tmpfs", &["tmpfs"], |room| {
        let at = room.dir("place");
        let guard = Tmpfs::mount(&at, "size=64m");
        (at, Box::new(guard))
    }),
    here("ramfs", &["tmpfs"], |room| {
        let at = room.dir("place");
        let guard = Ramfs::mount(&at);
        (at, Box::new(guard))
    }),
    FileSystem {
        title: "GlusterFS",
        needs: &["gluster"],
        how: How::Lab(&["gluster", "--bricks", "1"]),
        by_a_user: false,
    },
    FileSystem {
        title: "MooseFS",
        needs: &["moosefs"],
        how: How::Lab(&["moosefs", "--servers", "1"]),
        by_a_user: false,
    },
    FileSystem {
        title: "CephFS",
        needs: &["ceph"],
        how: How::Lab(&["ceph", "--osds", "1"]),
        by_a_user: false,
    },
    FileSystem { title: "NFS 4.2 of ext4", needs: &["guest"], how: How::Guest(NFS), by_a_user: false },
    FileSystem { title: "vfat", needs: &["guest", "vfat"], how: How::Guest(VFAT), by_a_user: false },
    FileSystem {
        by_a_user: true,
        ..here("ext4, by a user", &["ext4", "setpriv"], |room| disk(room, Kind::Ext4))
    },
];

/// The other end in a guest takes all but the longest attributes: there a tmpfs has none of users.
const OTHER_END: &str = "
    truncate -s 128M /tmp/other
    mkfs.btrfs -q /tmp/other
    mknod /tmp/loop0 b 7 0
    losetup /tmp/loop0 /tmp/other
    mkdir /mnt/other /mnt/place
    mount -t btrfs /tmp/loop0 /mnt/other
";
const VFAT: &str = "
    truncate -s 64M /tmp/fat
    mkfs.vfat /tmp/fat >/tmp/said
    mknod /tmp/loop1 b 7 1
    losetup /tmp/loop1 /tmp/fat
    mount -t vfat -o umask=022 /tmp/loop1 /mnt/place
";
/// A server and a client of one kernel, without the daemons that tell a server who may mount what: what these
/// would answer is written down before anybody asks. Nobody is there who could have state to reclaim.
const NFS: &str = r"
    truncate -s 64M /tmp/behind
    mkfs.ext4 -q -F -b 4096 /tmp/behind
    mknod /tmp/loop1 b 7 1
    losetup /tmp/loop1 /tmp/behind
    mkdir /mnt/behind
    mount -t ext4 /tmp/loop1 /mnt/behind
    modprobe -d /run/modules nfsd
    modprobe -d /run/modules nfsv4
    mount -t nfsd nfsd /proc/fs/nfsd
    mkdir /tmp/recovery
    echo /tmp/recovery >/proc/fs/nfsd/nfsv4recoverydir
    for version in 2 3; do echo -$version >/proc/fs/nfsd/versions || true; done
    echo 'tcp 2049' >/proc/fs/nfsd/portlist
    echo 'nfsd 127.0.0.1 2147483647 all' >/proc/net/rpc/auth.unix.ip/channel
    echo 'all /mnt/behind 2147483647 9234 65534 65534 0' >/proc/net/rpc/nfsd.export/channel
    printf '%s\n' 'all 1 \x00000000 2147483647 /mnt/behind' >/proc/net/rpc/nfsd.fh/channel
    echo 2 >/proc/fs/nfsd/threads
    echo Y >/proc/fs/nfsd/v4_end_grace
    mount -i -t nfs4 -o addr=127.0.0.1,clientaddr=127.0.0.1,vers=4.2,sec=sys 127.0.0.1:/ /mnt/place
";

/// A directory on a file system, one on another that takes all that there is, and what takes both away.
pub struct Place {
    pub at: PathBuf,
    pub other: PathBuf,
    _guards: Vec<Box<dyn Any>>,
}

/// What tells this program in a guest which file system it looks at.
const WITHIN: &str = "HAUL_TEST_KEPT";

impl FileSystem {
    /// Whether this machine has what it takes.
    pub fn is_here(&self) -> bool {
        needs::all_here(self.needs)
    }

    /// It, mounted; or what was said by the same test in a guest.
    pub fn up(&self, room: &Room) -> Result<Place, String> {
        let (at, guard) = match self.how {
            How::Here(up) => up(room),
            How::Lab(words) => {
                let pfs = Pfs::up(words);
                (pfs.mount.clone(), Box::new(pfs) as Box<dyn Any>)
            }
            How::Guest(lines) => return Err(self.in_a_guest(lines)),
        };
        let other = room.dir("other");
        let tmpfs = Tmpfs::mount(&other, "size=64m");
        Ok(Place { at, other, _guards: vec![guard, Box::new(tmpfs)] })
    }

    fn in_a_guest(&self, lines: &str) -> String {
        let test = std::env::current_exe().expect("this program");
        let dirs = [test.as_path(), &program()].map(|path| path.parent().expect("a directory").to_owned());
        let [test, haul] = [test.as_path(), &program()].map(|path| name_of(path).to_owned());
        let [of_test, of_haul] = dirs.each_ref().map(|dir| dir.display());
        // Places of this machine that a guest has covered are mounted where it can see them.
        let line = format!(
            "set -e\nmkdir /mnt/test /mnt/haul\nmount -t hostfs -o '{of_test}' none /mnt/test\n\
             mount -t hostfs -o '{of_haul}' none /mnt/haul\n{OTHER_END}{lines}\n\
             export {WITHIN}='{}' HAUL_TEST_BIN=/mnt/haul/{haul}\n\
             exec /mnt/test/{test} --exact kept::within_a_guest --nocapture --test-threads=1\n",
            self.title
        );
        let words = ["kernel", "run", "--memory", "512MiB", "--timeout", "100s", "--module", "loop", "--"];
        let output = Command::new(lab()).args(words).arg(&line).output().expect("run lab");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}\n{errors}", self.title);
        said
    }
}

fn name_of(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).expect("our names are text")
}

/// Where this program is in a guest: the file system that it looks at.
pub fn within() -> Option<(String, Place)> {
    let title = std::env::var(WITHIN).ok()?;
    Some((title, Place { at: "/mnt/place".into(), other: "/mnt/other".into(), _guards: Vec::new() }))
}

fn disk(room: &Room, kind: Kind) -> (PathBuf, Box<dyn Any>) {
    let disk = Disk::new(room, "place", kind);
    (disk.at(""), Box::new(disk))
}

/// A parallel file system of `lab pfs`; taken down on drop.
struct Pfs {
    name: String,
    mount: PathBuf,
}

impl Pfs {
    fn up(words: &[&str]) -> Pfs {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test-kept-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let output = Command::new(lab())
            .args(["pfs", "up"])
            .args(words)
            .args(["--name", &name])
            .output()
            .expect("run lab");
        assert!(output.status.success(), "lab: {}", String::from_utf8_lossy(&output.stderr));
        let said: Value = serde_json::from_slice(&output.stdout).expect("one JSON line");
        Pfs { name, mount: PathBuf::from(said["mount"].as_str().expect("a mount")) }
    }
}

impl Drop for Pfs {
    fn drop(&mut self) {
        let _ = Command::new(lab()).args(["pfs", "down", &self.name]).output();
    }
}
