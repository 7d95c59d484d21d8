//! GlusterFS: one glusterd, a process for each brick.
//!
//! In: bricks on devices of their own. Out: a started volume. glusterd uses /var/lib/glusterd,
//! /var/log/glusterfs and /run/gluster; the keeper's mount namespace has others in their place. A file lies
//! whole on one brick (distribute), on two (replica2), or in pieces on all (disperse); with shards only its
//! first piece's place can be asked for by a client.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use rustix::mount::mount_bind;
use serde::{Deserialize, Serialize};

use super::kind::{ADDRESS, make, said, write};
use super::state::PfsState;
use crate::targets::parse_size;

pub const PROGRAMS: &[&str] = &["glusterd", "gluster", "glusterfsd", "glusterfs"];
/// The name that the volume has in its own namespace.
const VOLUME: &str = "vol";
/// GlusterFS takes no smaller shards.
const SHARD_MIN: u64 = 4 << 20;
/// How long glusterd may take to answer.
const START_WAIT: Duration = Duration::from_secs(30);

/// How a volume is made of its bricks.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Options {
    /// How files lie on bricks
    #[arg(long, value_enum, default_value = "distribute")]
    kind: VolumeKind,
    /// Cut files into shards, each on a brick of its own
    #[arg(long)]
    shard: bool,
    /// Bytes of a shard, from 4 MiB on
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64MiB", requires = "shard")]
    shard_size: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum VolumeKind {
    /// Each whole, on one
    Distribute,
    /// Each whole, on two
    Replica2,
    /// Each in pieces on all, of which one may be missing
    Disperse,
}

impl Options {
    pub fn check(&self, bricks: u32) -> anyhow::Result<()> {
        match self.kind {
            VolumeKind::Distribute => {}
            VolumeKind::Replica2 => {
                ensure!(bricks.is_multiple_of(2), "replica2 takes an even number of bricks")
            }
            VolumeKind::Disperse => ensure!(bricks >= 3, "disperse takes at least 3 bricks"),
        }
        ensure!(self.shard_size >= SHARD_MIN, "shards have {SHARD_MIN} bytes at least");
        Ok(())
    }
}

pub fn server(at: u32, device: &Path) -> (String, PathBuf, [String; 2]) {
    let brick = device.join("brick");
    let mark = ["glusterfsd".into(), brick.display().to_string()];
    (format!("brick{at}"), brick, mark)
}

pub fn start(state: &PfsState, options: &Options) -> anyhow::Result<()> {
    let work = state.work();
    for (dir, place) in [("lib", "/var/lib/glusterd"), ("log", "/var/log/glusterfs")] {
        make(&work.join(dir))?;
        mount_bind(work.join(dir), place).with_context(|| format!("mount over {place}"))?;
    }
    make(Path::new("/run/gluster"))?;
    let settings = work.join("glusterd.vol");
    write(
        &settings,
        "volume management\n    type mgmt/glusterd\n    option working-directory /var/lib/glusterd\n    \
         option transport-type socket\n    option transport.socket.listen-port 24007\n    \
         option transport.address-family inet\n    option ping-timeout 0\n    option max-port 60999\nend-volume\n",
    )?;
    said("glusterd", &["--volfile", &settings.display().to_string(), "--pid-file=/run/glusterd.pid"])?;
    let until = Instant::now() + START_WAIT;
    while let Err(error) = gluster(&["peer", "status"]) {
        ensure!(Instant::now() < until, "glusterd does not answer: {error:#}");
        sleep(Duration::from_millis(50));
    }
    let mut bricks = Vec::new();
    for server in &state.servers {
        fs::create_dir(&server.path).with_context(|| format!("create {}", server.path.display()))?;
        bricks.push(format!("{}:{}", server.address, server.path.display()));
    }
    let count = bricks.len().to_string();
    let kind: &[&str] = match options.kind {
        VolumeKind::Distribute => &[],
        VolumeKind::Replica2 => &["replica", "2"],
        VolumeKind::Disperse => &["disperse", &count, "redundancy", "1"],
    };
    let bricks: Vec<&str> = bricks.iter().map(String::as_str).collect();
    gluster(&[&["volume", "create", VOLUME], kind, &bricks, &["force"]].concat())?;
    if options.shard {
        gluster(&["volume", "set", VOLUME, "features.shard", "on"])?;
        let size = options.shard_size.to_string();
        gluster(&["volume", "set", VOLUME, "features.shard-block-size", &size])?;
    }
    gluster(&["volume", "start", VOLUME]).map(drop)
}

fn gluster(args: &[&str]) -> anyhow::Result<String> {
    said("gluster", &[&["--mode=script"], args].concat())
}

pub fn client(state: &PfsState) -> Vec<String> {
    vec![
        "glusterfs".into(),
        "--no-daemon".into(),
        format!("--volfile-server={ADDRESS}"),
        format!("--volfile-id={VOLUME}"),
        format!("--log-file={}", state.work().join("client.log").display()),
        state.mount.display().to_string(),
    ]
}
