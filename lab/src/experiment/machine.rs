//! The machine that measures: what it is, how busy it is, and by whom.
//!
//! In: texts of `/proc`. Out: processor seconds, shares, names. What decides is a function of such texts.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

/// More of the machine than this may not be busy before a measurement.
pub const BUSY_MOST: f64 = 0.12;
/// A run during which the machine's host took more of it than this is marked.
pub const STOLEN_MOST: f64 = 0.03;
/// Bytes of a page of memory, at least.
const PAGE: usize = 4096;
/// How long the machine is watched before a measurement.
const WATCH: Duration = Duration::from_secs(3);
/// How long it is watched between runs.
const GLANCE: Duration = Duration::from_millis(500);
/// Longest wait for quiet between runs.
pub const QUIET_WAIT: Duration = Duration::from_secs(20);
/// How many processes are named.
const NAMED: usize = 3;

/// Clock ticks of all processors since boot: the first line of `/proc/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticks {
    /// In programs and the kernel.
    busy: u64,
    /// Taken by the host of a virtual machine.
    stolen: u64,
    all: u64,
}

impl Ticks {
    /// # Errors
    /// The text is no `/proc/stat`.
    pub fn parse(text: &str) -> anyhow::Result<Ticks> {
        let line =
            text.lines().find_map(|line| line.strip_prefix("cpu ")).context("no line of all processors")?;
        let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        // user nice system idle iowait irq softirq steal; guests are within user and nice.
        let [user, nice, system, idle, iowait, irq, softirq, stolen, ..] = ticks[..] else {
            bail!("the line of all processors has {} figures instead of 8 or more", ticks.len());
        };
        let busy = user + nice + system + irq + softirq;
        Ok(Ticks { busy, stolen, all: busy + stolen + idle + iowait })
    }

    pub fn now() -> anyhow::Result<Ticks> {
        Ticks::parse(&fs::read_to_string("/proc/stat").context("read /proc/stat")?)
    }

    /// Processor seconds since `before`.
    pub fn seconds_since(&self, before: &Ticks) -> f64 {
        self.busy.saturating_sub(before.busy) as f64 / ticks_per_second()
    }

    /// Part of the machine that its host took for others since `before`, 0 to 1.
    pub fn stolen_since(&self, before: &Ticks) -> f64 {
        self.stolen.saturating_sub(before.stolen) as f64 / self.all.saturating_sub(before.all).max(1) as f64
    }

    /// Part of the machine that was not free since `before`, 0 to 1; what a host took is not free either.
    pub fn share_since(&self, before: &Ticks) -> f64 {
        let taken = (self.busy + self.stolen).saturating_sub(before.busy + before.stolen);
        taken as f64 / self.all.saturating_sub(before.all).max(1) as f64
    }
}

fn ticks_per_second() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

/// Name and ticks of a process with its threads, from its `/proc/PID/stat`.
fn process(text: &str) -> Option<(String, u64)> {
    let (head, fields) = text.rsplit_once(')')?;
    let name = head.split_once('(')?.1;
    // The first is field 3; user and kernel ticks are fields 14 and 15.
    let mut fields = fields.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let kernel: u64 = fields.next()?.parse().ok()?;
    Some((name.to_owned(), user + kernel))
}

/// Processor seconds of processes since they began; those that are gone count nothing.
pub fn seconds_of(pids: &[i32]) -> f64 {
    let of =
        |pid: &i32| process(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?).map(|(_, ticks)| ticks);
    pids.iter().filter_map(of).sum::<u64>() as f64 / ticks_per_second()
}

/// Every process by id.
fn processes() -> HashMap<i32, (String, u64)> {
    let Ok(entries) = fs::read_dir("/proc") else { return HashMap::new() };
    let one = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        Some((pid, process(&fs::read_to_string(entry.path().join("stat")).ok()?)?))
    };
    entries.flatten().filter_map(one).collect()
}

/// The processes that ran most, in words, each with its share of one processor.
fn busiest(
    before: &HashMap<i32, (String, u64)>,
    after: &HashMap<i32, (String, u64)>,
    seconds: f64,
) -> Vec<String> {
    let mut ran: Vec<(u64, i32, &str)> = after
        .iter()
        .map(|(pid, (name, ticks))| {
            let earlier = before.get(pid).filter(|(known, _)| known == name).map_or(0, |(_, ticks)| *ticks);
            (ticks.saturating_sub(earlier), *pid, name.as_str())
        })
        .filter(|(ticks, ..)| *ticks > 0)
        .collect();
    ran.sort_by_key(|(ticks, pid, _)| (std::cmp::Reverse(*ticks), *pid));
    let share = |ticks: u64| 100.0 * ticks as f64 / ticks_per_second() / seconds;
    ran.iter()
        .take(NAMED)
        .map(|(ticks, pid, name)| format!("{name} (pid {pid}, {:.0} % of a processor)", share(*ticks)))
        .collect()
}

/// Whether a measurement may begin: none, or why not.
///
/// In: two texts of `/proc/stat`, one from before the other.
pub fn refusal(before: &str, after: &str) -> anyhow::Result<Option<f64>> {
    let share = Ticks::parse(after)?.share_since(&Ticks::parse(before)?);
    Ok((share > BUSY_MOST).then_some(share))
}

/// Looks for three seconds whether the machine is quiet, and again for as long as `patience` allows.
///
/// # Errors
/// It is busy; by whom is in the text.
pub fn wait_for_quiet(patience: Duration, stop: &dyn Fn() -> bool) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        let stat = || fs::read_to_string("/proc/stat").context("read /proc/stat");
        let (names, before, at) = (processes(), stat()?, Instant::now());
        std::thread::sleep(WATCH);
        let Some(share) = refusal(&before, &stat()?)? else { return Ok(()) };
        if began.elapsed() >= patience || stop() {
            let by = busiest(&names, &processes(), at.elapsed().as_secs_f64());
            bail!(
                "the machine is {:.0} % busy, more than the {:.0} % that a measurement allows; most by {}. Try later, or \
                 wait for quiet by --wait 5m",
                share * 100.0,
                BUSY_MOST * 100.0,
                if by.is_empty() { "processes that have ended".to_owned() } else { by.join(", ") }
            );
        }
    }
}

/// Waits for quiet between two runs, for at most `patience`; whether it came.
pub fn quiet_between(patience: Duration, stop: &dyn Fn() -> bool) -> anyhow::Result<bool> {
    let began = Instant::now();
    loop {
        let before = Ticks::now()?;
        std::thread::sleep(GLANCE);
        if Ticks::now()?.share_since(&before) <= BUSY_MOST {
            return Ok(true);
        }
        if began.elapsed() >= patience || stop() {
            return Ok(false);
        }
    }
}

/// What the results say of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub processor: String,
    pub processors: usize,
    /// GiB.
    pub memory: u64,
    pub kernel: String,
    pub congestion_control: String,
}

impl Machine {
    pub fn look() -> Machine {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.map(|line| line.trim_start_matches([':', ' ', '\t']).to_owned()).unwrap_or_default()
        };
        let kib: u64 =
            field(&read("/proc/meminfo"), "MemTotal:").trim_end_matches(" kB").parse().unwrap_or(0);
        Machine {
            processor: field(&read("/proc/cpuinfo"), "model name"),
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            memory: (kib + (1 << 19)) >> 20,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            congestion_control: read("/proc/sys/net/ipv4/tcp_congestion_control").trim().to_owned(),
        }
    }
}

/// Day and time of now, in UTC, as `2026-11-21 23:30`.
pub fn date() -> String {
    let seconds =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |at| at.as_secs());
    let (days, minutes) = ((seconds / 86400) as i64, seconds % 86400 / 60);
    // Days since 1970 to a civil date, in years that begin in March.
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (year, month) =
        (year + era * 400 + i64::from(month >= 10), if month < 10 { month + 3 } else { month - 9 });
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", minutes / 60, minutes % 60)
}

/// Empties the page cache, so that a disk is read and not memory. Hands everything to the disk first.
pub fn drop_caches() -> anyhow::Result<()> {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").context("empty the page cache: write /proc/sys/vm/drop_caches")
}

/// Has that much memory at hand, at most half of what is free: a virtual machine may have given to its host
/// what it did not use for seconds, and gets it back page by page, at a fifth of the rate that it has it at
/// otherwise. Whoever came first would pay for that.
pub fn warm(bytes: u64) -> anyhow::Result<()> {
    let about = fs::read_to_string("/proc/meminfo").context("read /proc/meminfo")?;
    let free = about.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.split_whitespace().next());
    let free: u64 = free.and_then(|kib| kib.parse().ok()).context("no MemAvailable in /proc/meminfo")?;
    let mut memory = vec![0_u8; bytes.min(free * 1024 / 2) as usize];
    memory.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
    std::hint::black_box(&memory);
    Ok(())
}

/// The first line of what a program says, or nothing.
pub fn said_by(program: &str, args: &[&str], dir: &Path) -> Option<String> {
    let output = Command::new(program)
        .args(args)
        .current_dir(dir)
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "cpu  1000 10 500 8000 100 5 20 50 7 0\ncpu0 1 2 3 4\n";

    /// Goal: a machine that was more than 12 % busy is refused, with the share; one that was less is not.
    /// Method: two texts of /proc/stat 600 ticks apart: 72 busy ticks are 12 %, 73 are more. Waiting for
    /// disks is not being busy, what the host took is.
    #[test]
    fn a_busy_machine_is_refused() {
        let quiet = "cpu  1030 10 530 8500 128 6 21 60 7 0\n";
        assert_eq!(refusal(BEFORE, quiet).unwrap(), None);
        let busy = "cpu  1030 10 530 8499 128 6 21 61 7 0\n";
        let share = refusal(BEFORE, busy).unwrap().expect("refused");
        assert!((share - 73.0 / 600.0).abs() < 1e-9, "{share}");
        let seconds = Ticks::parse(busy).unwrap().seconds_since(&Ticks::parse(BEFORE).unwrap());
        assert!((seconds - 62.0 / ticks_per_second()).abs() < 1e-9, "{seconds}");
        assert!(refusal(BEFORE, "cpu  1 2 3\n").is_err());
        assert!(refusal("", busy).is_err());
    }

    /// Goal: those who ran most are named in order, also if their names are odd; one that took a dead one's
    /// id is new.
    /// Method: lines as of /proc/PID/stat.
    #[test]
    fn the_busiest_are_named() {
        let line = |name: &str, user: u64| format!("7 ({name}) S 1 7 7 0 -1 4 0 0 0 0 {user} 5 0 0 20 0 1");
        let one = |name: &str, user: u64| process(&line(name, user)).unwrap();
        assert_eq!(one("a) (b", 10), ("a) (b".to_owned(), 15));
        let before = HashMap::from([(1, one("old", 100)), (2, one("idle", 7)), (3, one("gone", 1))]);
        let after = HashMap::from([
            (1, one("old", 150)),
            (2, one("idle", 7)),
            (3, one("new", 295)),
            (4, one("x", 20)),
            (5, one("y", 1)),
        ]);
        let seconds = 100.0 / ticks_per_second();
        let named = busiest(&before, &after, seconds);
        assert_eq!(
            named,
            [
                "new (pid 3, 300 % of a processor)",
                "old (pid 1, 50 % of a processor)",
                "x (pid 4, 25 % of a processor)"
            ]
        );
    }
}
