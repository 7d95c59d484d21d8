//! Volumes in experiments, and what they are held against: patterns of `lab drive` on a volume of haul's, on
//! parallel file systems, and on the devices themselves.
//!
//! They stand beside the peers and are called like them, but nothing is copied: each run makes devices, what
//! stands on them and a client, and removes all of it. The clock is the driver's: it begins when everything
//! is connected, and stops when all is on media; afterwards every byte is compared.
//! Invariants: everybody has devices that are alike: files on the machine's disk behind loop devices, each
//! with a rate of its own in the kernel's block layer; the kernel holds back as few written bytes of each.
//! What is asked of them is the same, also that it lasts.

use std::any::Any;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use super::machine::Ticks;
use super::watch;
use super::words::parse_size;
use crate::host::Bench;
use crate::peers::{Job, Peer, Said};
use crate::pfs::{self, Which};
use crate::process;
use crate::targets::devices;
use crate::targets::state::VolumeState;

/// The block layer counts in such times, s, and what fits one is taken as soon as it begins: all of it may be
/// over by so much earlier than the rate says.
const SLICE: f64 = 0.1;
/// And it begins one at the kernel's last tick before, s; this is the longest that kernels have.
const TICK: f64 = 0.01;
/// How long it may take to make or to end one.
const LIFE_MAX: Duration = Duration::from_secs(60);
/// Settings of all of them.
const SETTINGS: &[&str] = &[
    "pattern",
    "servers",
    "rate",
    "device",
    "writes",
    "size",
    "clients",
    "warm",
    "events",
    "strided",
    "transactions",
    "operation",
    "threads",
    "holding",
    "of",
];
/// Those of a volume besides.
const OF_HAUL: &[&str] = &["threshold", "depth", "stripe"];

/// What stands on the devices.
#[derive(Clone, Copy)]
enum Kind {
    Haul,
    /// Nothing but a local file system each.
    Devices,
    Pfs(Which),
}

pub struct Volume {
    name: &'static str,
    about: &'static str,
    kind: Kind,
}

pub static ALL: [Volume; 5] = [
    Volume {
        name: "volume",
        about: "a volume of haul's, a server for each device, through its Rust API with 16 requests under way; TLS 1.3; \
                small writes gathered below the threshold; a sync at the end",
        kind: Kind::Haul,
    },
    Volume {
        name: "volume-devices",
        about: "LIMIT of the devices: XFS on each, stripes of 1 MiB in turns (names, and patterns of many files: the first \
                device alone), by one process of this host; no network; fsync at the end",
        kind: Kind::Devices,
    },
    Volume {
        name: "volume-gluster",
        about: "GlusterFS, a brick for each device, shards of 4 MiB; FUSE; no protection on the way; fsync at the end",
        kind: Kind::Pfs(Which::Gluster),
    },
    Volume {
        name: "volume-moosefs",
        about: "MooseFS, goal 1, a chunk server for each device; FUSE; no protection on the way; fsync at the end, which does \
                not reach its disks",
        kind: Kind::Pfs(Which::Moosefs),
    },
    Volume {
        name: "volume-ceph",
        about: "CephFS without copies, an OSD for each device, stripes of 1 MiB over all; FUSE; no protection on the way; \
                fsync at the end",
        kind: Kind::Pfs(Which::Ceph),
    },
];

/// What settings mean that all of them have.
struct Wanted {
    pattern: String,
    servers: u64,
    /// Bytes a second of each device; 0 is without limit.
    rate: u64,
    /// Bytes of a device.
    device: String,
}

impl Wanted {
    fn of(job: &Job<'_>) -> anyhow::Result<Wanted> {
        let wanted = Wanted {
            pattern: job.setting("pattern", "write"),
            servers: number(job, "servers", 4)?,
            rate: parse_size(&job.setting("rate", "50MiB")).context("rate")?,
            device: job.setting("device", "2GiB"),
        };
        ensure!((1..=32).contains(&wanted.servers), "servers = {}: 1 to 32", wanted.servers);
        parse_size(&wanted.device).context("device")?;
        Ok(wanted)
    }

    /// The least time for so many bytes, s.
    fn bound(&self, bytes: u64, bench: &Bench) -> Option<f64> {
        let moves = !matches!(&*self.pattern, "names" | "postmark" | "start" | "memory");
        let devices = (self.servers * self.rate) as f64;
        let line = bench.line.rate.map_or(0.0, |rate| rate as f64 / 8.0 * watch::PAYLOAD / watch::FRAME);
        let of_devices = (bytes as f64 / devices - SLICE - TICK).max(0.0);
        let of_line = if line > 0.0 { bytes as f64 / line } else { 0.0 };
        (moves && self.rate > 0).then(|| of_devices.max(of_line))
    }
}

fn number(job: &Job<'_>, name: &str, best: u64) -> anyhow::Result<u64> {
    let text = job.setting(name, best.to_string());
    text.parse().with_context(|| format!("the setting {name} is a number, not {text}"))
}

/// The words for `lab drive`, behind its options.
fn pattern(job: &Job<'_>, wanted: &Wanted) -> anyhow::Result<Vec<String>> {
    let bytes = job.workload.bytes();
    let size = || parse_size(&job.setting("size", "1MiB")).context("size");
    let words: Vec<(&str, String)> = match &*wanted.pattern {
        "write" => {
            // As many as are wanted, if the workload has so many bytes.
            let (size, clients) = (size()?, number(job, "clients", 1)?);
            ensure!(size > 0 && clients > 0, "no write has no bytes or is by nobody");
            let count = number(job, "writes", 1000)?.min(bytes / size / clients).max(1);
            let warm = number(job, "warm", 0)?;
            vec![
                ("write", String::new()),
                ("--size", size.to_string()),
                ("--count", count.to_string()),
                ("--clients", clients.to_string()),
                ("--warm", warm.to_string()),
            ]
        }
        "random" => {
            let size = size()?;
            ensure!(size > 0 && bytes.is_multiple_of(size), "{bytes} bytes in writes of {size}");
            vec![
                ("write", "--random".into()),
                ("--size", size.to_string()),
                ("--count", (bytes / size).to_string()),
            ]
        }
        "atlas" => {
            vec![("atlas", String::new()), ("--events", number(job, "events", 50)?.to_string())]
        }
        "read" => {
            let strided = if job.flag("strided")? { "--strided" } else { "" };
            vec![
                ("read", strided.into()),
                ("--bytes", bytes.to_string()),
                ("--servers", wanted.servers.to_string()),
            ]
        }
        "postmark" => {
            let transactions = number(job, "transactions", 2000)?;
            vec![
                ("postmark", String::new()),
                ("--transactions", transactions.to_string()),
                ("--files", job.workload.files.to_string()),
            ]
        }
        "names" => vec![
            ("names", String::new()),
            ("--operation", job.setting("operation", "create")),
            ("--count", job.workload.files.to_string()),
            ("--threads", number(job, "threads", 1)?.to_string()),
        ],
        "start" => vec![("first", String::new())],
        "memory" => vec![
            ("memory", String::new()),
            ("--holding", job.setting("holding", "clients")),
            ("--count", job.workload.files.to_string()),
        ],
        other => bail!(
            "pattern = {other:?}: there are write, random, atlas, read, postmark, names, start and memory"
        ),
    };
    let words = words.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
    Ok(words.filter(|word| !word.is_empty()).collect())
}

/// What `lab drive` says, for the results.
fn figures(said: &str, wanted: &Wanted, bench: &Bench) -> anyhow::Result<Said> {
    let mut more: Value = serde_json::from_str(said.trim()).context("read what lab drive says")?;
    ensure!(more["checked"] == true, "lab drive has not compared its bytes: {more}");
    let bytes = more["bytes"].as_u64().context("lab drive says no bytes")?;
    let seconds = more["seconds"].as_f64().context("lab drive says no time")?;
    more["pattern"] = wanted.pattern.clone().into();
    Ok(Said {
        seconds: Some(seconds),
        bytes: Some(bytes),
        cpu_seconds: more["cpu_seconds"].as_f64(),
        operations: more["operations"].as_u64(),
        bound: wanted.bound(bytes, bench),
        memory_only: true,
        checked: true,
        more,
    })
}

/// A command of this program, for what outlives it.
fn lab(args: &[&str], what: &str) -> anyhow::Result<Value> {
    let mut command = Command::new(std::env::current_exe().context("find this program")?);
    let output = command.args(args).output().with_context(|| format!("run lab {what}"))?;
    ensure!(output.status.success(), "lab {what}: {}", String::from_utf8_lossy(&output.stderr).trim());
    serde_json::from_slice(&output.stdout).with_context(|| format!("read what lab {what} says"))
}

/// A name that nothing else of this machine has.
fn new_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("v{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Something that `lab GROUP down NAME` removes.
struct Down {
    group: &'static str,
    name: String,
}

impl Drop for Down {
    fn drop(&mut self) {
        let down = if self.group == "pfs" { "pfs down" } else { "targets down" };
        let result = || -> anyhow::Result<()> {
            if self.group == "targets"
                && let Ok(state) = VolumeState::load(&self.name)
            {
                for device in &state.devices {
                    devices::limit_dirty(device, None)?;
                }
            }
            let mut command = Command::new(std::env::current_exe().context("find this program")?);
            let output = command.args([self.group, "down", &self.name]).output().context("run lab")?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
            Ok(())
        };
        if let Err(error) = result() {
            eprintln!("lab: {down} {}: {error:#}", self.name);
        }
    }
}

/// Devices, each with a file system that is mounted.
struct Devices {
    mounts: Vec<PathBuf>,
    _down: Down,
}

impl Devices {
    fn up(wanted: &Wanted, dir: &Path) -> anyhow::Result<Devices> {
        let name = new_name();
        let (count, rate, dir) =
            (wanted.servers.to_string(), wanted.rate.to_string(), dir.display().to_string());
        let mut args = vec!["targets", "up", "--name", &name, "--devices", &count];
        args.extend(["--size", &wanted.device, "--dir", &dir]);
        if wanted.rate > 0 {
            args.extend(["--rate", &rate]);
        }
        let said = lab(&args, "targets up")?;
        let down = Down { group: "targets", name };
        if wanted.rate > 0 {
            let means = said["throttle"].as_str().unwrap_or("none");
            ensure!(!means.starts_with("none"), "devices cannot be slowed here: {means}");
            for device in &VolumeState::load(&down.name)?.devices {
                devices::limit_dirty(device, Some(pfs::DIRTY_MAX))?;
            }
        }
        let mounts: Option<Vec<PathBuf>> = said["mounts"]
            .as_array()
            .map(|all| all.iter().filter_map(Value::as_str).map(PathBuf::from).collect());
        Ok(Devices { mounts: mounts.context("lab targets says no mounts")?, _down: down })
    }
}

/// A volume whose servers run.
struct Running<'a> {
    bench: &'a Bench,
    name: String,
    state: PathBuf,
}

impl Running<'_> {
    fn create<'a>(job: &Job<'a>, devices: &Devices) -> anyhow::Result<Running<'a>> {
        let bench = job.bench;
        let servers: Vec<String> = devices
            .mounts
            .iter()
            .map(|mount| format!("{}:{}", bench.far().address, mount.join("volume").display()))
            .collect();
        let state = bench.near().home.join(".local/state/haul");
        let volume = Running { bench, name: new_name(), state };
        let mut command = bench.near().command(&bench.haul);
        command.args(["volume", "create", &volume.name, "--server", &servers.join(","), "--no-push"]);
        command.args(["-e", &bench.ssh_words(), "--stripe", &job.setting("stripe", "1MiB")]);
        bench.run(&mut command, LIFE_MAX)?;
        Ok(volume)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.state.join("volumes").join(&self.name).exists() {
            // It was never made.
            return;
        }
        let mut command = self.bench.near().command(&self.bench.haul);
        command.args(["volume", "destroy", "--yes", &self.name]);
        // Where it fails, what it could not end is ended by its mark; what it left goes with the devices.
        if let Err(error) = self.bench.run(&mut command, LIFE_MAX)
            && error.downcast_ref::<process::Interrupted>().is_none()
        {
            eprintln!("lab: haul volume destroy: {error:#}");
        }
    }
}

impl Volume {
    fn drive(&self, job: &Job<'_>, at: &str, words: &[String]) -> anyhow::Result<String> {
        let program = std::env::current_exe().context("find this program")?;
        let mut command = job.bench.near().command(program);
        command.args(["drive", "--at", at]);
        if matches!(self.kind, Kind::Haul) {
            command.args(["--threshold", &job.setting("threshold", "adaptive")]);
            command.args(["--depth", &job.setting("depth", "16")]);
        }
        command.args(words);
        Ok(job.bench.run(&mut command, job.limit)?.stdout)
    }
}

impl Peer for Volume {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn packages(&self) -> &'static [&'static str] {
        &[]
    }

    fn version(&self) -> anyhow::Result<String> {
        match self.kind {
            // Its client is in this program.
            Kind::Haul => {
                let own = std::env::current_exe().context("find this program")?;
                let own = std::fs::read(&own).with_context(|| format!("read {}", own.display()))?;
                let hash = blake3::hash(&own).to_hex();
                Ok(format!("servers: the haul of this result; client: lab, BLAKE3 {}", &hash[..16]))
            }
            Kind::Devices => Ok("the kernel's".into()),
            Kind::Pfs(which) => which.version(),
        }
    }

    fn start(&self, _: &Bench) -> anyhow::Result<Box<dyn Any>> {
        Ok(Box::new(()))
    }

    fn copy(&self, job: &Job<'_>) -> anyhow::Result<Said> {
        let own = if matches!(self.kind, Kind::Haul) { OF_HAUL } else { &[] };
        job.check_settings(&[SETTINGS, own].concat())?;
        let wanted = Wanted::of(job)?;
        let mut words = pattern(job, &wanted)?;
        ensure!(
            !matches!(&*wanted.pattern, "start" | "memory") || matches!(self.kind, Kind::Haul),
            "only of a volume of haul's it is known when its start begins, and who serves it"
        );
        let bench = job.bench;
        ensure!(
            bench.near().namespace.is_none() || matches!(self.kind, Kind::Haul),
            "{} has no long network here",
            self.name
        );
        let text = |path: &Path| path.to_str().map(str::to_owned).context("a path is no text");
        match self.kind {
            Kind::Haul => {
                let devices = Devices::up(&wanted, job.to)?;
                let (ticks, began) = (Ticks::now()?, Instant::now());
                let volume = Running::create(job, &devices)?;
                let at = format!("volume:{}:{}", text(&volume.state)?, volume.name);
                if wanted.pattern == "memory" {
                    let pids: Vec<String> = bench.sessions().iter().map(u32::to_string).collect();
                    words.push(format!("--pids={}", pids.join(",")));
                }
                let said = self.drive(job, &at, &words)?;
                let (seconds, busy) = (began.elapsed().as_secs_f64(), Ticks::now()?.seconds_since(&ticks));
                let said = figures(&said, &wanted, bench)?;
                if wanted.pattern == "start" {
                    // From nothing to the first byte, and no byte of it counts.
                    let (seconds, cpu_seconds) = (Some(seconds), Some(busy));
                    return Ok(Said { seconds, cpu_seconds, bytes: Some(0), ..said });
                }
                if wanted.pattern == "memory" {
                    let whose = match &*job.setting("of", "client") {
                        "client" => "client_bytes",
                        "servers" => "server_bytes",
                        other => bail!("the setting of is client or servers, not {other}"),
                    };
                    return Ok(Said { bytes: said.more[whose].as_u64(), ..said });
                }
                Ok(said)
            }
            Kind::Devices => {
                let devices = Devices::up(&wanted, job.to)?;
                let one = matches!(&*wanted.pattern, "names" | "postmark");
                let mounts = if one { &devices.mounts[..1] } else { &devices.mounts[..] };
                let dirs = mounts.iter().map(|mount| text(mount)).collect::<anyhow::Result<Vec<_>>>()?;
                figures(&self.drive(job, &format!("dirs:{}", dirs.join(",")), &words)?, &wanted, bench)
            }
            Kind::Pfs(which) => {
                let (name, count, rate) = (new_name(), wanted.servers.to_string(), wanted.rate.to_string());
                let dir = text(job.to)?;
                let servers = match which {
                    Which::Gluster => "--bricks",
                    Which::Moosefs => "--servers",
                    Which::Ceph => "--osds",
                };
                let mut args = vec!["pfs", "up", which.name(), servers, &count, "--name", &name];
                args.extend(["--dir", &dir, "--rate", &rate]);
                match which {
                    Which::Gluster => {
                        args.extend(["--size", &wanted.device, "--shard", "--shard-size", "4MiB"])
                    }
                    Which::Moosefs => args.extend(["--size", &wanted.device]),
                    Which::Ceph => args.extend(["--stripe-unit", "1MiB", "--stripe-count", &count]),
                }
                let said = lab(&args, "pfs up")?;
                let _down = Down { group: "pfs", name };
                let mount = said["mount"].as_str().context("lab pfs says no mount")?;
                figures(&self.drive(job, &format!("dirs:{mount}"), &words)?, &wanted, bench)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::workload::Workload;

    fn with<T>(
        settings: &[(&str, &str)],
        of: impl FnOnce(&Job<'_>) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let settings: BTreeMap<String, String> =
            settings.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        of(&Job {
            bench: &Bench::of_nothing(),
            workload: &Workload { files: 4, size: 1 << 20, seed: 1 },
            from: Path::new("/from"),
            to: Path::new("/to"),
            settings: &settings,
            limit: Duration::from_secs(60),
        })
    }

    /// Goal: settings become the words of the driver; writes are as many as are wanted, and no more than the
    /// workload has bytes for; what cannot be is refused.
    /// Method: a table of jobs over a workload of 4 MiB.
    #[test]
    fn volume_patterns_in_words() {
        let words = |settings: &[(&str, &str)]| {
            with(settings, |job| pattern(job, &Wanted::of(job)?)).map(|words| words.join(" "))
        };
        let write = "write --size 16 --count 1000 --clients 1 --warm 0";
        assert_eq!(words(&[("size", "16")]).unwrap(), write);
        let few = words(&[("size", "65536"), ("clients", "4"), ("warm", "7")]).unwrap();
        assert_eq!(few, "write --size 65536 --count 16 --clients 4 --warm 7");
        let random = words(&[("pattern", "random"), ("size", "4KiB")]).unwrap();
        assert_eq!(random, "write --random --size 4096 --count 1024");
        let read = words(&[("pattern", "read"), ("servers", "8"), ("strided", "yes")]).unwrap();
        assert_eq!(read, "read --strided --bytes 4194304 --servers 8");
        assert_eq!(words(&[("pattern", "atlas"), ("events", "3")]).unwrap(), "atlas --events 3");
        assert_eq!(words(&[("pattern", "start")]).unwrap(), "first");
        assert_eq!(words(&[("pattern", "postmark")]).unwrap(), "postmark --transactions 2000 --files 4");
        let names = words(&[("pattern", "names"), ("operation", "stat"), ("threads", "2")]).unwrap();
        assert_eq!(names, "names --operation stat --count 4 --threads 2");
        for wrong in [
            &[("pattern", "read"), ("strided", "perhaps")][..],
            &[("size", "0")],
            &[("servers", "0")],
            &[("servers", "99")],
            &[("pattern", "random"), ("size", "1000")],
            &[("pattern", "dance")],
            &[("rate", "fast")],
        ] {
            assert!(words(wrong).is_err(), "{wrong:?}");
        }
    }

    /// Goal: what was not compared is no result; the bound is that of the slower one of devices and line, and
    /// of names there is none.
    #[test]
    fn volume_figures() {
        let of = |settings: &[(&str, &str)], said: &str| {
            with(settings, |job| figures(said, &Wanted::of(job)?, job.bench))
        };
        let good = r#"{"seconds":2.0,"cpu_seconds":0.5,"bytes":1000000000,"checked":true,"operations":9}"#;
        let said = of(&[("rate", "100MB")], good).unwrap();
        assert_eq!((said.seconds, said.cpu_seconds, said.operations), (Some(2.0), Some(0.5), Some(9)));
        assert!(said.checked && said.memory_only && said.bytes == Some(1_000_000_000));
        assert_eq!(said.bound, Some(2.39));
        // 10 Gbit/s of frames.
        let line = of(&[("rate", "1GB"), ("servers", "8")], good).unwrap().bound.unwrap();
        assert!((line - 0.8 * watch::FRAME / watch::PAYLOAD).abs() < 1e-9, "{line}");
        assert_eq!(of(&[("rate", "0")], good).unwrap().bound, None);
        assert_eq!(of(&[("pattern", "names")], good).unwrap().bound, None);
        for bad in ["", "{}", &good.replace("true", "false"), &good.replace("bytes", "bits")] {
            assert!(of(&[], bad).is_err(), "{bad}");
        }
    }
}
