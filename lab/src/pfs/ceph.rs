//! CephFS: a monitor, a manager, an OSD on each device, a metadata server.
//!
//! In: bare devices, which BlueStore takes whole. Out: an active file system of two pools, without copies
//! (size 1). Every path is set in one `ceph.conf`; who is asked who he is is switched off, for nobody else is
//! in the namespace. A file is striped over objects as its layout says: the extended attribute
//! `ceph.file.layout`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use rustix::fs::{XattrFlags, setxattr};
use serde::{Deserialize, Serialize};

use super::kind::{ADDRESS, make, said, write};
use super::state::PfsState;
use crate::targets::spec::parse_size;

pub const PROGRAMS: &[&str] =
    &["ceph-mon", "ceph-mgr", "ceph-osd", "ceph-mds", "ceph-fuse", "ceph", "ceph-authtool", "monmaptool"];
/// The pools of metadata and data.
const POOLS: [(&str, u32); 2] = [("meta", 8), ("data", 32)];
/// How long the metadata server may take to be active, and placement groups to be found.
const ACTIVE_WAIT: Duration = Duration::from_secs(120);
/// Stripe units and objects are multiples of it.
const UNIT: u64 = 64 << 10;

/// How files lie on OSDs.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Options {
    /// Bytes of a stripe
    #[arg(long, value_name = "S", value_parser = parse_size, default_value = "4MiB")]
    stripe_unit: u64,
    /// Objects that a stripe goes over
    #[arg(long, value_name = "C", default_value_t = 1)]
    stripe_count: u32,
    /// Bytes of an object
    #[arg(long, value_name = "O", value_parser = parse_size, default_value = "4MiB")]
    object_size: u64,
}

impl Options {
    pub fn check(&self) -> anyhow::Result<()> {
        let Options { stripe_unit, stripe_count, object_size } = *self;
        ensure!(
            stripe_unit > 0 && stripe_unit.is_multiple_of(UNIT) && object_size.is_multiple_of(stripe_unit),
            "a stripe unit is a multiple of {UNIT} bytes, and an object one of the stripe unit"
        );
        ensure!((1..=1024).contains(&stripe_count), "a stripe goes over 1 to 1024 objects");
        ensure!((UNIT..=64 << 20).contains(&object_size), "an object has {UNIT} bytes to 64 MiB");
        Ok(())
    }

    fn layout(&self) -> String {
        let Options { stripe_unit, stripe_count, object_size } = self;
        format!("stripe_unit={stripe_unit} stripe_count={stripe_count} object_size={object_size}")
    }
}

pub fn server(at: u32, work: &Path) -> (String, PathBuf, [String; 2]) {
    let name = format!("osd.{at}");
    (name.clone(), work.join(format!("osd{at}")), ["ceph-osd".into(), name])
}

fn settings(state: &PfsState) -> PathBuf {
    state.work().join("ceph.conf")
}

pub fn start(state: &PfsState) -> anyhow::Result<()> {
    let work = state.work();
    let w = work.display();
    for dir in ["mon", "mgr", "mds", "run", "log"] {
        make(&work.join(dir))?;
    }
    let uuid = || fs::read_to_string("/proc/sys/kernel/random/uuid").context("draw an id");
    let fsid = uuid()?.trim().to_owned();
    // Without copies, a monitor that does not care how full the machine's disk is, and memory bounded as far
    // as it goes.
    write(
        &settings(state),
        &format!(
            "[global]\nfsid = {fsid}\nmon_host = [v2:{ADDRESS}:3300,v1:{ADDRESS}:6789]\nmon_initial_members = a\n\
             auth_cluster_required = none\nauth_service_required = none\nauth_client_required = none\n\
             osd_pool_default_size = 1\nosd_pool_default_min_size = 1\nmon_allow_pool_size_one = true\n\
             osd_crush_chooseleaf_type = 0\nosd_crush_update_on_start = false\n\
             osd_pool_default_pg_autoscale_mode = off\nmon_data_avail_crit = 1\nmon_data_avail_warn = 2\n\
             mon_warn_on_pool_no_redundancy = false\nmon_osd_full_ratio = .97\nmgr_initial_modules =\n\
             run_dir = {w}/run\nlog_file = {w}/log/$name.log\nadmin_socket = {w}/run/$name.asok\n\
             pid_file = {w}/run/$name.pid\ncrash_dir = {w}/log\nmon_cluster_log_file = {w}/log/cluster.log\n\
             mon_data = {w}/mon\nmgr_data = {w}/mgr\nmds_data = {w}/mds\nosd_data = {w}/osd$id\n\
             keyring = {w}/keyring\nosd_memory_target = 939524096\nosd_memory_base = 268435456\n\
             osd_memory_cache_min = 134217728\nosd_op_num_shards = 2\npublic_addr = {ADDRESS}\n\
             cluster_addr = {ADDRESS}\n[client]\nadmin_socket =\n"
        ),
    )?;
    let conf = settings(state).display().to_string();
    let (keyring, monmap) = (format!("{w}/keyring"), format!("{w}/monmap"));
    said(
        "ceph-authtool",
        &["--create-keyring", &keyring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *"],
    )?;
    let all: Vec<&str> =
        ["mon", "osd", "mds", "mgr"].into_iter().flat_map(|of| ["--cap", of, "allow *"]).collect();
    said("ceph-authtool", &[&[&keyring[..], "--gen-key", "-n", "client.admin"][..], &all].concat())?;
    let addresses = format!("[v2:{ADDRESS}:3300,v1:{ADDRESS}:6789]");
    said("monmaptool", &["--create", "--addv", "a", &addresses, "--fsid", &fsid, &monmap])?;
    said("ceph-mon", &["--mkfs", "-i", "a", "--monmap", &monmap, "--keyring", &keyring, "-c", &conf])?;
    said("ceph-mon", &["-i", "a", "-c", &conf])?;
    said("ceph-mgr", &["-i", "x", "-c", &conf])?;
    let ceph = |args: &[&str]| said("ceph", &[&["-c", &conf], args].concat());
    for (at, server) in state.servers.iter().enumerate() {
        make(&server.path)?;
        symlink(&server.device, server.path.join("block"))
            .with_context(|| format!("link to {}", server.device.display()))?;
        let (id, uuid) = (at.to_string(), uuid()?);
        ceph(&["osd", "new", uuid.trim(), &id])?;
        said("ceph-osd", &["-n", &server.name, "--mkfs", "--osd-uuid", uuid.trim(), "-c", &conf])?;
        let own = format!("--public-addr={}", server.address);
        let cluster = format!("--cluster-addr={}", server.address);
        said("ceph-osd", &["-n", &server.name, "-c", &conf, &own, &cluster])?;
        ceph(&["osd", "crush", "add", &server.name, "1.0", "root=default", &format!("host=host{at}")])?;
    }
    let [meta, data] = POOLS;
    for (pool, groups) in POOLS {
        ceph(&["osd", "pool", "create", pool, &groups.to_string()])?;
    }
    ceph(&["fs", "new", "fs", meta.0, data.0])?;
    said("ceph-mds", &["-i", "a", "-c", &conf])?;
    let until = Instant::now() + ACTIVE_WAIT;
    loop {
        let (mds, groups) = (ceph(&["mds", "stat"])?, ceph(&["pg", "stat"])?);
        if mds.contains("up:active") && all_clean(&groups) {
            return Ok(());
        }
        ensure!(Instant::now() < until, "not active after {ACTIVE_WAIT:?}: {} {}", mds.trim(), groups.trim());
        sleep(Duration::from_millis(200));
    }
}

/// Whether `ceph pg stat` says that the placement groups of our pools, and of those that Ceph has made for
/// itself, are all found: `41 pgs: 41 active+clean; ...`.
fn all_clean(said: &str) -> bool {
    let Some((count, rest)) = said.trim().split_once(" pgs: ") else { return false };
    let least: u32 = POOLS.iter().map(|(_, groups)| groups).sum();
    count.parse::<u32>().is_ok_and(|count| count >= least)
        && rest.starts_with(&format!("{count} active+clean;"))
}

pub fn client(state: &PfsState) -> Vec<String> {
    let (conf, mount) = (settings(state).display().to_string(), state.mount.display().to_string());
    // It would try to remount, which lists all mounts of the machine, to be able to drop its caches.
    ["ceph-fuse", "-f", "-c", &conf, "--client_die_on_failed_remount=false", &mount]
        .map(str::to_owned)
        .to_vec()
}

/// New files get the layout that was asked for.
pub fn mounted(state: &PfsState, options: &Options) -> anyhow::Result<()> {
    let layout = options.layout();
    setxattr(&state.mount, "ceph.dir.layout", layout.as_bytes(), XattrFlags::empty())
        .with_context(|| format!("set the layout {layout:?} of {}", state.mount.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a file system is not called active while groups are missing or on their way.
    /// Method: a table of what `ceph pg stat` says.
    #[test]
    fn all_groups_must_be_clean() {
        assert!(all_clean("41 pgs: 41 active+clean; 2.3 KiB data, 1.1 GiB used, 23 GiB / 24 GiB avail\n"));
        for not_yet in [
            "",
            "32 pgs: 32 active+clean; 0 B data",
            "41 pgs: 3 creating+peering, 38 active+clean; 0 B data",
            "41 pgs: 41 unknown; 0 B data",
        ] {
            assert!(!all_clean(not_yet), "{not_yet}");
        }
    }

    /// Goal: layouts that Ceph would refuse are refused before anything is started.
    /// Method: a table.
    #[test]
    fn layouts_are_checked() {
        let check = |stripe_unit, stripe_count, object_size| {
            Options { stripe_unit, stripe_count, object_size }.check().is_ok()
        };
        assert!(check(4 << 20, 1, 4 << 20) && check(1 << 20, 4, 4 << 20));
        assert!(!check(0, 1, 4 << 20) && !check(1 << 20, 0, 4 << 20) && !check(3 << 20, 1, 4 << 20));
        assert!(!check(1000, 1, 4000) && !check(128 << 20, 1, 128 << 20));
    }
}
