//! What a test needs of the machine, found out once each.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};

use super::disk::{self, Kind};
use super::ftpd;

/// Leaves the test, aloud, unless the machine has all of these.
///
/// The needs: `root`, `netns`, `sshd`, `ss`, `strace`, `tmpfs`, `setpriv`, `unshare` (namespaces of
/// processes), `rsync`, `attr` (`getfattr` and `getfacl`), `b3sum`, `xfs` and `ext4` (a loop device with it
/// that can be shut down), `overlay`, `btrfs`, `prlimit`, `targets` (the model of `lab`, for which it must
/// be built), `script`, `setsid`, `setarch`, `filefrag`, `proftpd`, `proftpd-tls`, `vsftpd` (fetched by
/// `scripts/peers.sh`), `gridftp` (the server of Globus), `slurm` (its daemons, and munge); `gluster`,
/// `moosefs` and `ceph` (by `lab pfs`), `guest` (a second kernel, by `lab kernel`), `vfat` (its `mkfs`),
/// `attributes-of-tmpfs` (those of users); `curl`, `lftp`, `python3`, `globus-url-copy`, which are clients of
/// ours.
macro_rules! need {
    ($($need:literal),+) => {
        if !$crate::support::needs::all_here(&[$($need),+]) {
            return;
        }
    };
}

/// Whether all needs are met; says and counts the skip if not.
///
/// # Panics
/// If a missing need is listed in `HAUL_TEST_REQUIRE`.
pub fn all_here(needs: &[&'static str]) -> bool {
    let Some(missing) = needs.iter().find(|need| !here(need)) else {
        return true;
    };
    let test = std::thread::current().name().unwrap_or("main").to_owned();
    let required = std::env::var("HAUL_TEST_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|entry| entry == *missing || entry == "all"),
        "{test} needs {missing}, which HAUL_TEST_REQUIRE lists, and it is not here"
    );
    let line = format!("SKIP {test}: needs {missing}\n");
    // Not eprint!, which the test harness hides when the test passes.
    std::io::stderr().write_all(line.as_bytes()).expect("write to stderr");
    if let Some(path) = std::env::var_os("HAUL_TEST_SKIPS") {
        let mut file =
            std::fs::File::options().create(true).append(true).open(path).expect("open the list of skips");
        file.write_all(line.as_bytes()).expect("write the list of skips");
    }
    false
}

fn here(need: &'static str) -> bool {
    static KNOWN: OnceLock<Mutex<HashMap<&'static str, bool>>> = OnceLock::new();
    let mut known = KNOWN.get_or_init(Mutex::default).lock().expect("no probe panics");
    *known.entry(need).or_insert_with(|| probe(need))
}

fn probe(need: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    match need {
        "root" => root,
        "sshd" => Path::new(super::sshd::SSHD).exists() && works("ssh", &["-V"]) && exists("ssh-keygen"),
        "ss" => works("ss", &["-V"]),
        "netns" => root && exists("ip") && exists("nsenter") && probe_netns(),
        "strace" => works("strace", &["-qq", "-f", "-o", "/dev/null", "true"]),
        "tmpfs" => root && works("unshare", &["-m", "mount", "-t", "tmpfs", "-o", "size=1m", "none", "/mnt"]),
        "unshare" => root && works("unshare", &["-p", "-f", "--mount-proc", "true"]),
        "setpriv" => root && works("setpriv", &["--reuid=65534", "--clear-groups", "true"]),
        "xfs" => root && exists("mkfs.xfs") && exists("xfs_io") && disk::can_be_cut(Kind::Xfs),
        "ext4" => root && exists("mkfs.ext4") && exists("xfs_io") && disk::can_be_cut(Kind::Ext4),
        "overlay" => root && kernel_knows("overlay"),
        "btrfs" => root && exists("mkfs.btrfs") && kernel_knows("btrfs"),
        "gluster" => root && pfs(&["glusterd", "gluster", "glusterfs"]),
        "moosefs" => root && pfs(&["mfsmaster", "mfschunkserver", "mfsmount"]),
        "ceph" => root && pfs(&["ceph-mon", "ceph-osd", "ceph-mds", "ceph-fuse"]),
        "guest" => root && super::model::lab().exists() && guest(),
        "vfat" => exists("mkfs.vfat"),
        "attributes-of-tmpfs" => root && attributes_of_tmpfs(),
        "prlimit" => works("prlimit", &["--fsize=1000000", "true"]),
        "targets" => root && Path::new("/dev/fuse").exists() && super::model::lab().exists(),
        "script" => works("script", &["-qec", "true", "/dev/null"]),
        "setsid" => works("setsid", &["--wait", "true"]),
        "setarch" => works("setarch", &["--uname-2.6", "true"]),
        "rsync" => works("rsync", &["--version"]),
        "attr" => root && exists("getfattr") && exists("getfacl") && exists("setfacl"),
        "curl" | "lftp" | "python3" => works(need, &["--version"]),
        "globus-url-copy" | "filefrag" => exists(need),
        "b3sum" => works("b3sum", &["--version"]),
        "proftpd" | "proftpd-tls" | "vsftpd" | "gridftp" => ftpd::is_here(need),
        "slurm" => super::slurm::is_here(),
        _ => panic!("no need is called {need}"),
    }
}

/// Whether the kernel has this file system, or can load it.
fn kernel_knows(name: &str) -> bool {
    let known = || std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !known().split_whitespace().any(|word| word == name) {
        works("modprobe", &[name]);
    }
    known().split_whitespace().any(|word| word == name)
}

/// A parallel file system by `lab pfs`.
fn pfs(programs: &[&str]) -> bool {
    let all = ["ip", "nsenter", "unshare", "losetup", "mkfs.xfs"].iter().chain(programs);
    Path::new("/dev/fuse").exists() && super::model::lab().exists() && all.copied().all(exists)
}

/// A second kernel, which knows all registers of this processor.
fn guest() -> bool {
    let all = ["linux.uml", "modprobe", "ethtool", "ip", "unshare"].into_iter().all(exists);
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    all && !processor.contains("amx_tile")
}

/// Older kernels have none on a tmpfs.
fn attributes_of_tmpfs() -> bool {
    let room = super::Room::new();
    let at = room.dir("tmpfs");
    let _tmpfs = super::mount::Tmpfs::mount(&at, "size=1m");
    let made = std::fs::write(at.join("probe"), "");
    let flags = rustix::fs::XattrFlags::empty();
    made.is_ok() && rustix::fs::setxattr(at.join("probe"), "user.x", b"", flags).is_ok()
}

fn probe_netns() -> bool {
    let name = format!("haul-{}-probe", std::process::id());
    let made = works("ip", &["netns", "add", &name]);
    made && works("ip", &["netns", "del", &name])
}

fn exists(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).exists())
}

fn works(program: &str, args: &[&str]) -> bool {
    Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
