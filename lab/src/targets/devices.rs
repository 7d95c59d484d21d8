//! Targets that are real: a file system each, on a loop device over a sparse file, throttled by the block
//! layer.
//!
//! In: number, size, file system, rates. Out: mounts, and throttles that can be changed while they are used.
//! Invariant: loop devices are found again by the file behind them, never by number.
//! Left out: congestion scripts and frost, which only the model has.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::state::{self, VolumeState};

/// Most devices of a set.
pub const DEVICES_MAX: u32 = 64;
/// The smallest file system that mkfs.xfs makes.
pub const XFS_LEN_MIN: u64 = 300 << 20;
const V1: &str = "/sys/fs/cgroup/blkio";
const V2: &str = "/sys/fs/cgroup";

/// What is to be made.
pub struct DevicesSpec {
    pub name: String,
    pub count: u32,
    /// Bytes of each.
    pub size: u64,
    /// `xfs` or `ext4`.
    pub file_system: &'static str,
    /// Bytes a second, each way; 0 is without limit.
    pub rate: u64,
    /// Directory for the image files; a directory of the set's own is made in it.
    pub dir: PathBuf,
}

/// Makes and mounts the devices. What was made before an error stays, for `state::remove`.
pub fn up(spec: &DevicesSpec) -> anyhow::Result<Value> {
    ensure!((1..=DEVICES_MAX).contains(&spec.count), "{} devices: 1 to {DEVICES_MAX} can be had", spec.count);
    ensure!(spec.file_system != "xfs" || spec.size >= XFS_LEN_MIN, "XFS needs at least {XFS_LEN_MIN} bytes");
    let data = spec.dir.join(format!("haul-lab-{}", spec.name));
    let images: Vec<PathBuf> = (0..spec.count).map(|at| data.join(format!("{at}.img"))).collect();
    let mut state = VolumeState {
        name: spec.name.clone(),
        kind: "devices".into(),
        mount: state::mount(&spec.name),
        targets: spec.count,
        data: Some(data.clone()),
        images: images.clone(),
        rates: vec![[0, 0]; spec.count as usize],
        ..VolumeState::default()
    };
    fs::create_dir_all(&spec.dir).with_context(|| format!("create {}", spec.dir.display()))?;
    fs::create_dir(&data).with_context(|| format!("create {}", data.display()))?;
    state.save()?;
    let (mut direct, mut mounts) = (true, Vec::new());
    for (at, image) in images.iter().enumerate() {
        let device = attach(image, spec.size, &mut direct)?;
        format(&device.path, spec.file_system)?;
        let mount = state.mount.join(at.to_string());
        fs::create_dir(&mount).with_context(|| format!("create {}", mount.display()))?;
        run("mount", &["-t", spec.file_system], &[&device.path, &mount])?;
        state.devices.push(device.number);
        mounts.push(mount);
    }
    state.save()?;
    let mut throttled = Value::Null;
    if spec.rate > 0 {
        throttled = json!(set(&mut state, None, Some(spec.rate), Some(spec.rate))?);
    }
    Ok(json!({
        "name": spec.name,
        "kind": "devices",
        "mount": state.mount,
        "targets": spec.count,
        "pid": null,
        "mounts": mounts,
        "file_system": spec.file_system,
        "direct_io": direct,
        "throttle": throttled,
    }))
}

/// A loop device.
pub struct Device {
    pub path: PathBuf,
    /// major:minor
    pub number: String,
}

/// Makes a sparse file of `size` bytes and a device on it, without the page cache if `direct`.
///
/// Some file systems below refuse direct I/O; `direct` says afterwards whether it is used.
pub fn attach(image: &Path, size: u64, direct: &mut bool) -> anyhow::Result<Device> {
    let file = fs::File::create_new(image).with_context(|| format!("create {}", image.display()))?;
    file.set_len(size).with_context(|| format!("make {} {size} bytes long", image.display()))?;
    let attach = |direct| {
        run(
            "losetup",
            &["--find", "--show", if direct { "--direct-io=on" } else { "--direct-io=off" }],
            &[image],
        )
    };
    let path = attach(*direct).or_else(|e| {
        let refused = std::mem::replace(direct, false);
        if refused { attach(false) } else { Err(e) }
    })?;
    let path = PathBuf::from(path.trim());
    let number = path.file_name().context("losetup named no device")?;
    let number = Path::new("/sys/block").join(number).join("dev");
    let number = fs::read_to_string(&number).with_context(|| format!("read {}", number.display()))?;
    Ok(Device { path, number: number.trim().to_owned() })
}

/// Makes a file system, `xfs` or `ext4`.
pub fn format(device: &Path, file_system: &str) -> anyhow::Result<()> {
    let quiet: &[&str] = if file_system == "xfs" { &["-q", "-f"] } else { &["-q", "-F"] };
    run(&format!("mkfs.{file_system}"), quiet, &[device]).map(drop)
}

/// Changes the rates of one device or of all; says by what means, or that there is none on this machine.
pub fn set(
    state: &mut VolumeState,
    target: Option<u32>,
    read_rate: Option<u64>,
    write_rate: Option<u64>,
) -> anyhow::Result<&'static str> {
    ensure!(
        target.is_none_or(|at| at < state.targets),
        "no target {}: there are 0 to {}",
        target.unwrap_or(0),
        state.targets - 1
    );
    let mut means = "none: no blkio throttle in this machine's cgroups";
    for (at, (device, rates)) in (0..).zip(state.devices.iter().zip(&mut state.rates)) {
        if target.is_some_and(|target| target != at) {
            continue;
        }
        *rates = [read_rate.unwrap_or(rates[0]), write_rate.unwrap_or(rates[1])];
        if let Some(by) = throttle(device, *rates, None)? {
            means = by;
        }
    }
    state.save()?;
    Ok(means)
}

/// Throttles a device for the root cgroup and that of the user, a process id or the caller; bytes a second, 0
/// removes the limit.
///
/// The root cgroup too, for version 1 charges write-back to it, whoever wrote. None if the machine cannot.
pub fn throttle(
    device: &str,
    [read, write]: [u64; 2],
    user: Option<i32>,
) -> anyhow::Result<Option<&'static str>> {
    let own = user.map_or("/proc/self/cgroup".to_owned(), |pid| format!("/proc/{pid}/cgroup"));
    let own = fs::read_to_string(&own).with_context(|| format!("read {own}"))?;
    let group_of = |controller: &str| {
        let mut groups = own.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
        groups
            .find(|(controllers, _)| controllers.split(',').any(|one| one == controller))
            .map(|(_, group)| group)
    };
    if let Some(group) = group_of("blkio") {
        let mut done = false;
        for dir in [PathBuf::from(V1), PathBuf::from(format!("{V1}{group}"))] {
            for (file, rate) in
                [("blkio.throttle.read_bps_device", read), ("blkio.throttle.write_bps_device", write)]
            {
                let file = dir.join(file);
                if file.exists() {
                    fs::write(&file, format!("{device} {rate}"))
                        .with_context(|| format!("write \"{device} {rate}\" to {}", file.display()))?;
                    done = true;
                }
            }
        }
        if done {
            return Ok(Some("blkio.throttle (cgroup v1)"));
        }
    }
    let file = PathBuf::from(format!("{V2}{}/io.max", group_of("").unwrap_or_default()));
    if !file.exists() {
        return Ok(None);
    }
    let limit = |rate: u64| if rate == 0 { "max".to_owned() } else { rate.to_string() };
    let line = format!("{device} rbps={} wbps={}", limit(read), limit(write));
    fs::write(&file, &line).with_context(|| format!("write {line:?} to {}", file.display()))?;
    Ok(Some("io.max (cgroup v2)"))
}

/// Limits the written bytes that the kernel holds back for a device, or lifts the limit; says whether it can.
///
/// Without it, a device that is throttled to less than others is not slow for a server that never waits for
/// its writes: memory takes them all.
pub fn limit_dirty(device: &str, bytes: Option<u64>) -> anyhow::Result<bool> {
    let dir = PathBuf::from(format!("/sys/class/bdi/{device}"));
    let write = |file: &str, text: &str| {
        let file = dir.join(file);
        fs::write(&file, text).with_context(|| format!("write {text} to {}", file.display()))
    };
    // Linux 6.2 and later.
    if !dir.join("strict_limit").exists() || !dir.join("max_bytes").exists() {
        return Ok(false);
    }
    match bytes {
        Some(bytes) => write("strict_limit", "1").and_then(|()| write("max_bytes", &bytes.to_string()))?,
        None => write("strict_limit", "0").and_then(|()| write("max_ratio", "100"))?,
    }
    Ok(true)
}

/// Whether a loop device stands on a file.
pub fn attached(image: &Path) -> anyhow::Result<bool> {
    if !image.exists() {
        return Ok(false);
    }
    let devices = run("losetup", &["--noheadings", "--output", "NAME", "--associated"], &[image])?;
    Ok(!devices.trim().is_empty())
}

/// Detaches whatever loop device stands on a file.
pub fn detach(image: &Path) -> anyhow::Result<()> {
    if !image.exists() {
        return Ok(());
    }
    let devices = run("losetup", &["--noheadings", "--output", "NAME", "--associated"], &[image])?;
    for device in devices.lines() {
        run("losetup", &["--detach"], &[Path::new(device.trim())])?;
    }
    Ok(())
}

/// Figures of each device since it was attached, from the block layer.
pub fn stats(state: &VolumeState) -> anyhow::Result<Value> {
    let stats = (0..)
        .zip(state.devices.iter().zip(&state.rates))
        .map(|(at, (device, rates))| stats_of(at, device, *rates));
    Ok(Value::Array(stats.collect::<anyhow::Result<_>>()?))
}

/// Figures of device `device` (major:minor), which is target `at` and has these rates.
pub fn stats_of(at: u64, device: &str, rates: [u64; 2]) -> anyhow::Result<Value> {
    let path = format!("/sys/dev/block/{device}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let fields: Vec<u64> = text.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let [reads, _, read_sectors, read_ms, writes, _, write_sectors, write_ms, queue, busy_ms, ..] =
        fields[..]
    else {
        anyhow::bail!("{path} has {} numbers", fields.len());
    };
    Ok(json!({
        "target": at,
        "requests": reads + writes,
        "reads": reads,
        "writes": writes,
        "read_bytes": read_sectors * 512,
        "written_bytes": write_sectors * 512,
        "busy_us": busy_ms * 1000,
        "queue": queue,
        "response_mean_us": (read_ms + write_ms) * 1000 / (reads + writes).max(1),
        "read_rate": rates[0],
        "write_rate": rates[1],
    }))
}

/// Runs a program and gives back what it said.
pub fn run(program: &str, options: &[&str], paths: &[&Path]) -> anyhow::Result<String> {
    let output = Command::new(program)
        .args(options)
        .args(paths)
        .output()
        .with_context(|| format!("run {program}, which must be installed"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {} {}", options.join(" "), output.status, said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
