//! The progress line: how far, how fast, how long still.
//!
//! In: [`Progress`] as the engine sends it. Out: one line of text that fits a width. No clock and no
//! terminal in here: time is `Progress::elapsed`.
//! Invariants: what is shown never moves back; an ETA is shown only when the total is known (the walk has
//! ended), there is data of at least [`ETA_AFTER`], and the copy neither waits nor is paused; a rate is of
//! data that was moved. The time that is left is that of bytes and files together: a file takes as long as so
//! many bytes, and how many that are is learnt from samples that had more of the one or of the other.

use std::collections::VecDeque;
use std::fmt::Write;
use std::time::Duration;

use haul::api::Progress;

/// Rates are those of the last seconds: what came before, fast or slow, says nothing of now.
const WINDOW: f64 = 12.0;
/// Samples in that time, at most; older ones go earlier if they come closer than that.
const SAMPLES_MAX: usize = 128;
/// Data of less time than this says nothing about the end.
const ETA_AFTER: Duration = Duration::from_secs(2);
/// Shortest time between two samples; closer ones would only add noise.
const SAMPLE_MIN: f64 = 0.05;
/// An ETA beyond this is a guess that helps nobody.
const ETA_MAX: f64 = 99.0 * 86400.0;

/// What a file takes, in bytes that could be moved meanwhile, as long as nothing is known of it; and at most.
const FILE_COSTS: f64 = 262_144.0;
const FILE_COSTS_MAX: f64 = 16_777_216.0;
/// What was learnt of it is forgotten in about this time, seconds.
const FORGETS: f64 = 60.0;
/// Where bytes and files came so nearly in step, nobody can tell which of them took the time.
const IN_STEP: f64 = 0.9;

/// Follows a run and renders its line.
#[derive(Default)]
pub struct Tracker {
    shown: Progress,
    /// Data that was moved.
    moved: Rate,
    /// Bytes that were done without holes, and files.
    bytes: Rate,
    files: Rate,
    costs: Costs,
    /// When data was seen to move for the first time.
    moving_since: Option<Duration>,
}

/// A rate per second over the last [`WINDOW`] seconds of samples.
#[derive(Default)]
struct Rate {
    /// Amounts and seconds, the newest last.
    samples: VecDeque<(u64, f64)>,
}

impl Rate {
    fn add(&mut self, amount: u64, seconds: f64) {
        self.samples.push_back((amount, seconds));
        let mut held: f64 = self.samples.iter().map(|(_, seconds)| seconds).sum();
        // The oldest goes when the others fill the window.
        while self.samples.len() > 1
            && (held - self.samples[0].1 >= WINDOW || self.samples.len() > SAMPLES_MAX)
        {
            held -= self.samples.pop_front().map_or(0.0, |(_, seconds)| seconds);
        }
    }
    /// Zero before the first sample.
    fn per_second(&self) -> f64 {
        let (amount, seconds) = self
            .samples
            .iter()
            .fold((0.0, 0.0), |(a, s), (amount, seconds)| (a + *amount as f64, s + seconds));
        if seconds > 0.0 { amount / seconds } else { 0.0 }
    }
}

/// How long a byte and a file take: the sums of a regression of time on bytes and files, without a constant.
#[derive(Default)]
struct Costs {
    bytes_bytes: f64,
    files_files: f64,
    bytes_files: f64,
    bytes_time: f64,
    files_time: f64,
}

impl Costs {
    fn add(&mut self, bytes: u64, files: u64, seconds: f64) {
        let (bytes, files, keeps) = (bytes as f64, files as f64, (-seconds / FORGETS).exp());
        for (sum, more) in [
            (&mut self.bytes_bytes, bytes * bytes),
            (&mut self.files_files, files * files),
            (&mut self.bytes_files, bytes * files),
            (&mut self.bytes_time, bytes * seconds),
            (&mut self.files_time, files * seconds),
        ] {
            *sum = *sum * keeps + more;
        }
    }

    /// So many bytes take as long as a file does beside its bytes.
    fn of_file(&self) -> f64 {
        let (both, mixed) = (self.bytes_bytes * self.files_files, self.bytes_files * self.bytes_files);
        if both <= 0.0 || mixed >= IN_STEP * both {
            return FILE_COSTS;
        }
        let byte = self.bytes_time * self.files_files - self.files_time * self.bytes_files;
        let file = self.files_time * self.bytes_bytes - self.bytes_time * self.bytes_files;
        match byte > 0.0 {
            true => (file / byte).clamp(0.0, FILE_COSTS_MAX),
            false => FILE_COSTS_MAX,
        }
    }
}

impl Tracker {
    /// Takes the next state. Values that went back (a resend, a late report) are held at their maximum.
    pub fn update(&mut self, new: &Progress) {
        let old = self.shown.clone();
        let counting = new.counting && (old.counting || old.elapsed.is_zero());
        let now = &mut self.shown;
        now.bytes_done = old.bytes_done.max(new.bytes_done);
        now.files_done = old.files_done.max(new.files_done);
        now.unchanged = old.unchanged.max(new.unchanged);
        now.failed = old.failed.max(new.failed);
        now.bytes_sent = old.bytes_sent.max(new.bytes_sent);
        now.holes = old.holes.max(new.holes);
        // A total may shrink when a file vanishes after the walk, but never below what is done.
        now.bytes_total = new.bytes_total.max(now.bytes_done);
        now.files_total = new.files_total.max(now.files_done);
        now.counting = counting;
        now.waiting = new.waiting.clone();
        now.checking = new.checking;
        now.paused = new.paused;
        now.unencrypted = new.unencrypted;
        let seconds = new.elapsed.saturating_sub(old.elapsed).as_secs_f64();
        if seconds < SAMPLE_MIN {
            // Its bytes count in the next sample.
            now.bytes_done = old.bytes_done;
            now.files_done = old.files_done;
            now.bytes_sent = old.bytes_sent;
            now.holes = old.holes;
            return;
        }
        now.elapsed = new.elapsed;
        let (bytes, files) = (now.bytes_done - old.bytes_done, now.files_done - old.files_done);
        let bytes = bytes.saturating_sub(now.holes - old.holes);
        let moved = now.bytes_sent - old.bytes_sent;
        if self.moving_since.is_none() && (bytes > 0 || files > 0 || moved > 0) {
            // The end of the sample, for nobody knows when in it the data came.
            self.moving_since = Some(new.elapsed);
        }
        // A pause tells nothing of the rate.
        if self.moving_since.is_some() && !(old.paused && new.paused && bytes == 0 && files == 0) {
            self.moved.add(moved, seconds);
            self.bytes.add(bytes, seconds);
            self.files.add(files, seconds);
            self.costs.add(bytes, files, seconds);
        }
    }

    /// It waits for this, and has not begun.
    pub fn wait(&mut self, what: &str) {
        self.shown.waiting = Some(what.to_owned());
        self.shown.counting = true;
    }

    /// The state as shown: nothing in it ever moved back.
    pub fn shown(&self) -> &Progress {
        &self.shown
    }

    /// Data that was moved per second, over the last [`WINDOW`] seconds.
    pub fn bytes_per_second(&self) -> f64 {
        self.moved.per_second()
    }

    /// Seconds until the end, at the rate of the last seconds, for bytes and files together (see
    /// [`Costs::of_file`]). `None` when that cannot be known honestly.
    pub fn eta(&self) -> Option<f64> {
        let p = &self.shown;
        if p.counting
            || p.paused
            || p.waiting.is_some()
            || p.elapsed.saturating_sub(self.moving_since?) < ETA_AFTER
        {
            return None;
        }
        let file = self.costs.of_file();
        let work = |bytes: f64, files: f64| bytes + file * files;
        let left = work((p.bytes_total - p.bytes_done) as f64, (p.files_total - p.files_done) as f64);
        let eta = match left > 0.0 {
            true => left / work(self.bytes.per_second(), self.files.per_second()),
            false => 0.0,
        };
        (eta.is_finite() && eta <= ETA_MAX).then_some(eta)
    }

    /// The line, at most `width` columns: what does not fit is left out, the least important first.
    pub fn line(&self, width: usize) -> String {
        let p = &self.shown;
        let mut parts: Vec<String> = Vec::new();
        if p.counting {
            parts.push(format!(
                "counting… {} in {} files so far",
                bytes(p.bytes_total),
                count(p.files_total)
            ));
            parts.push(format!("{} copied", bytes(p.bytes_done)));
        } else {
            let percent = match p.bytes_total {
                0 => String::new(),
                // Down, so that 100 % means all.
                total => format!(" {:>3}%", u128::from(p.bytes_done) * 100 / u128::from(total)),
            };
            parts.push(format!("{} of {}{percent}", bytes(p.bytes_done), bytes(p.bytes_total)));
        }
        // What hangs comes before everything that it holds up.
        parts.extend(p.waiting.as_deref().map(crate::escape::text));
        parts.extend(p.checking.map(|checking| {
            let left = checking.seconds_left.map(|left| format!(", {} at this rate", time(left)));
            format!("checking {} held{}", bytes(checking.left), left.unwrap_or_default())
        }));
        match p.paused {
            true => parts.push("paused".into()),
            false => parts.push(format!("{}/s", bytes(self.bytes_per_second() as u64))),
        }
        if p.unencrypted {
            parts.push("data unencrypted".into());
        }
        if let Some(eta) = self.eta() {
            parts.push(format!("{} left", time(eta)));
        }
        if p.failed > 0 {
            parts.push(format!("{} failed", count(p.failed)));
        }
        let of = if p.counting { String::new() } else { format!(" of {}", count(p.files_total)) };
        parts.push(format!("{}{of} files", count(p.files_done)));
        if p.unchanged > 0 {
            parts.push(format!("{} unchanged", count(p.unchanged)));
        }
        let mut line = String::new();
        for part in parts {
            let part = if line.is_empty() { part } else { format!(", {part}") };
            if line.chars().count() + part.chars().count() > width {
                break;
            }
            line += &part;
        }
        line
    }
}

/// An amount for people, decimal units so that amounts and rates can be divided in the head.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if n < 1000 {
        return format!("{n} B");
    }
    let mut value = n as f64;
    let mut unit = "";
    for name in UNITS {
        value /= 1000.0;
        unit = name;
        if value < 999.5 {
            break;
        }
    }
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$} {unit}")
}

/// A number with its thousands set apart.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// So many of something.
pub fn plural(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { many })
}

/// A time for people: `0.4 s`, `42 s`, `3:07`, `2:05:09`, `3d 04:00`.
pub fn time(seconds: f64) -> String {
    if seconds < 9.95 {
        return format!("{:.1} s", seconds.max(0.0));
    }
    let all = seconds.round() as u64;
    let (days, hours, minutes, rest) = (all / 86400, all / 3600 % 24, all / 60 % 60, all % 60);
    let mut out = String::new();
    let _ = match (days, hours, minutes) {
        (0, 0, 0) => write!(out, "{rest} s"),
        (0, 0, _) => write!(out, "{minutes}:{rest:02}"),
        (0, _, _) => write!(out, "{hours}:{minutes:02}:{rest:02}"),
        _ => write!(out, "{days}d {hours:02}:{minutes:02}"),
    };
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64, bytes_done: u64, counting: bool) -> Progress {
        Progress {
            bytes_done,
            bytes_sent: bytes_done,
            bytes_total: 1_000_000_000,
            files_done: bytes_done / 1_000_000,
            files_total: 1000,
            counting,
            elapsed: Duration::from_millis(ms),
            ..Progress::default()
        }
    }

    /// Goal: a pause is shown, promises no end, and leaves the rate as it was.
    #[test]
    fn a_pause_is_shown() {
        let mut tracker = Tracker::default();
        for ms in (200..=5000).step_by(200) {
            tracker.update(&at(ms, ms * 100_000, false));
        }
        let (rate, eta) = (tracker.bytes_per_second(), tracker.eta());
        assert!(eta.is_some());
        for ms in (5200..=60_000).step_by(200) {
            tracker.update(&Progress { paused: true, ..at(ms, 500_000_000, false) });
        }
        assert!(tracker.line(200).contains(", paused,"), "{}", tracker.line(200));
        assert_eq!(tracker.eta(), None);
        // The first sample of a pause is half of one.
        assert!(tracker.bytes_per_second() > rate * 0.9);
        tracker.update(&at(60_200, 520_000_000, false));
        assert!(tracker.eta().is_some() && !tracker.line(200).contains("paused"));
    }

    /// Goal: whatever the engine reports, nothing shown moves back and nothing panics.
    /// Method: seeded random reports, among them ones from the past.
    #[test]
    fn shown_values_never_move_back() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..200 {
            let mut tracker = Tracker::default();
            let mut before = Progress::default();
            for _ in 0..100 {
                tracker.update(&Progress {
                    bytes_done: random.u64(..) >> random.u32(..64),
                    bytes_total: random.u64(..) >> random.u32(..64),
                    files_done: random.u64(..1000),
                    files_total: random.u64(..1000),
                    unchanged: random.u64(..1000),
                    failed: random.u64(..10),
                    counting: random.bool(),
                    elapsed: Duration::from_millis(random.u64(..100_000)),
                    bytes_sent: random.u64(..),
                    holes: random.u64(..) >> random.u32(..64),
                    checking: None,
                    waiting: None,
                    paused: false,
                    unencrypted: false,
                });
                let now = tracker.shown();
                assert!(now.bytes_done >= before.bytes_done && now.bytes_done <= now.bytes_total);
                assert!(now.files_done >= before.files_done && now.files_done <= now.files_total);
                assert!(now.elapsed >= before.elapsed && now.failed >= before.failed);
                assert!(tracker.eta().is_none_or(|eta| (0.0..=ETA_MAX).contains(&eta)));
                let width = random.usize(..200);
                assert!(tracker.line(width).chars().count() <= width);
                before = now.clone();
            }
        }
    }

    /// Goal: an ETA only when the walk has ended and two seconds of data are there; then the right one.
    #[test]
    fn eta_is_honest() {
        let mut tracker = Tracker::default();
        for ms in (200..=4000).step_by(200) {
            tracker.update(&at(ms, ms * 100_000, true));
            assert_eq!(tracker.eta(), None);
            assert!(tracker.line(200).starts_with("counting… 1.00 GB in 1,000 files so far"));
        }
        tracker.update(&at(4200, 420_000_000, false));
        let eta = tracker.eta().unwrap();
        assert!((5.7..5.9).contains(&eta), "{eta}");
        assert_eq!(tracker.line(200), "420 MB of 1.00 GB  42%, 100 MB/s, 5.8 s left, 420 of 1,000 files");
        assert_eq!(tracker.line(40), "420 MB of 1.00 GB  42%, 100 MB/s");

        let mut young = Tracker::default();
        young.update(&at(200, 0, false));
        for ms in (5000..6800).step_by(200) {
            young.update(&at(ms, ms * 1000, false));
            assert_eq!(young.eta(), None, "data of less than two seconds");
        }
    }

    /// Goal: the rate and the ETA are those of the last seconds, whatever came before.
    /// Method: 100 GB that stood there already are done in the first second, then 100 MB/s for 14 seconds;
    /// and a slow start before the same.
    #[test]
    fn rate_and_eta_are_of_the_last_seconds() {
        for before in [100_000_000_000, 0] {
            let mut tracker = Tracker::default();
            let total = before + 2_400_000_000;
            let at = |ms: u64, done: u64| Progress {
                bytes_done: done,
                bytes_sent: done.saturating_sub(before),
                bytes_total: total,
                files_done: 1,
                files_total: 2,
                elapsed: Duration::from_millis(ms),
                ..Progress::default()
            };
            for ms in (200..=1000).step_by(200) {
                tracker.update(&at(ms, before / 1000 * ms));
            }
            for ms in (200..=14_000).step_by(200) {
                tracker.update(&at(1000 + ms, before + ms * 100_000));
            }
            let (rate, eta) = (tracker.bytes_per_second(), tracker.eta().unwrap());
            assert!((rate - 100e6).abs() < 1e6, "{rate}");
            assert!((eta - 10.0).abs() < 0.2, "{eta}");
        }
    }

    /// Goal: the time left falls with the bytes that are left, also when the last file is under way; a hole
    /// counts for no rate.
    /// Method: 308 small files and a file of 315 MB of which nearly all is a hole, at once; then two of 300
    /// and 200 MB, at 30 MB/s, one after the other.
    #[test]
    fn the_time_left_ends_with_the_last_file() {
        let mut tracker = Tracker::default();
        let (small, hole, total) = (2_000_000_u64, 315_000_000_u64, 817_000_000_u64);
        let mut last = f64::MAX;
        for ms in (200..=16_800_u64).step_by(200) {
            let moved = (ms * 30_000).min(502_000_000);
            let large = moved.saturating_sub(small);
            let files = 309 + u64::from(large >= 300_000_000) + u64::from(large >= 500_000_000);
            tracker.update(&Progress {
                bytes_done: moved + hole,
                bytes_sent: moved,
                holes: hole,
                bytes_total: total,
                files_done: files,
                files_total: 311,
                elapsed: Duration::from_millis(ms),
                ..Progress::default()
            });
            assert!(tracker.bytes_per_second() < 31e6, "{}", tracker.bytes_per_second());
            let Some(eta) = tracker.eta() else { continue };
            let truly = (502_000_000 - moved) as f64 / 30e6;
            assert!((eta - truly).abs() < 0.1 * truly + 0.3, "{eta} at {ms} ms, truly {truly}");
            assert!(eta <= last, "{eta} after {last} at {ms} ms");
            last = eta;
        }
        assert!(last < 0.2, "{last}");
    }

    /// Goal: what small files took tells nothing of large ones, and the other way round.
    /// Method: 1,000 files/s of 1 kB for four seconds, then 100 MB/s of large ones; the time left for each
    /// kind.
    #[test]
    fn small_and_large_files_have_their_own_costs() {
        for (files_left, bytes_left, truly) in [(0, 5_000_000_000, 50.0), (50_000, 50_000_000, 50.0)] {
            let mut tracker = Tracker::default();
            for ms in (200..=9000_u64).step_by(200) {
                let small = ms.min(4000);
                let large = ms.saturating_sub(4000) * 100_000;
                let (files, done) = (small + large / 250_000_000, small * 1000 + large);
                tracker.update(&Progress {
                    bytes_done: done,
                    bytes_sent: done,
                    bytes_total: 504_000_000 + bytes_left,
                    files_done: files,
                    files_total: 4002 + files_left,
                    elapsed: Duration::from_millis(ms),
                    ..Progress::default()
                });
            }
            let eta = tracker.eta().unwrap();
            assert!((eta - truly).abs() < 0.1 * truly, "{eta}, truly {truly}");
        }
    }

    /// Goal: of bytes and files the slower decides, also where files end more seldom than the window is long.
    /// Method: small files whose bytes are nearly done; and large files of 20 s each, seen in the middle of
    /// one.
    #[test]
    fn the_slower_of_bytes_and_files_decides() {
        let run = |bytes: fn(u64) -> u64, files: fn(u64) -> u64, totals: (u64, u64), until: u64| {
            let mut tracker = Tracker::default();
            for ms in (200..=until).step_by(200) {
                tracker.update(&Progress {
                    bytes_done: bytes(ms),
                    bytes_sent: bytes(ms),
                    bytes_total: totals.0,
                    files_done: files(ms),
                    files_total: totals.1,
                    elapsed: Duration::from_millis(ms),
                    ..Progress::default()
                });
            }
            tracker.eta().unwrap()
        };
        // 1,000 files/s, and 50,000 left; the bytes would be there in a second.
        let small = run(|ms| ms * 1000, |ms| ms, (21_000_000, 70_000), 20_000);
        assert!((small - 50.0).abs() < 1.0, "{small}");
        // A file each 20 s, 97 of 100 left, the bytes as slow.
        let large = run(|ms| ms * 100_000, |ms| ms / 20_000, (200_000_000_000, 100), 70_000);
        assert!((1900.0..2300.0).contains(&large), "{large}");
    }

    /// Goal: what waits promises no end, and says what it waits for.
    #[test]
    fn waiting_has_no_eta() {
        let mut tracker = Tracker::default();
        for ms in (200..=5000).step_by(200) {
            tracker.update(&at(ms, ms * 100_000, false));
        }
        assert!(tracker.eta().is_some());
        let waiting = Some("waiting 12 s for the network".to_owned());
        tracker.update(&Progress { waiting, ..at(5200, 500_000_000, false) });
        assert_eq!(tracker.eta(), None);
        let line = tracker.line(200);
        assert!(line.contains("for the network") && !line.contains("left"), "{line}");
        tracker.update(&at(5400, 520_000_000, false));
        assert!(tracker.eta().is_some());
    }

    /// Goal: a stall makes the ETA grow and, when nothing moves at all, never divides by zero.
    #[test]
    fn stall_makes_the_eta_grow() {
        let mut tracker = Tracker::default();
        for ms in (200..=5000).step_by(200) {
            tracker.update(&at(ms, ms * 100_000, false));
        }
        let before = tracker.eta().unwrap();
        for ms in (5200..=15_000).step_by(200) {
            tracker.update(&at(ms, 500_000_000, false));
        }
        assert!(tracker.eta().unwrap() > 2.0 * before);
        for ms in (16_000..10_000_000).step_by(1000) {
            tracker.update(&at(ms, 500_000_000, false));
        }
        assert_eq!(tracker.eta(), None);
    }

    /// Goal: figures as people write them, also at the edges of units.
    #[test]
    fn figures_read_well() {
        for (n, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.00 kB"),
            (9_994, "9.99 kB"),
            (9_999, "10.0 kB"),
            (99_960, "100 kB"),
            (999_499, "999 kB"),
            (999_500, "1.00 MB"),
            (u64::MAX, "18.4 EB"),
        ] {
            assert_eq!(bytes(n), text);
        }
        for (n, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(n), text);
        }
        for (s, text) in [
            (0.0, "0.0 s"),
            (9.94, "9.9 s"),
            (9.96, "10 s"),
            (59.6, "1:00"),
            (3600.0, "1:00:00"),
            (273_600.0, "3d 04:00"),
        ] {
            assert_eq!(time(s), text);
        }
    }
}
