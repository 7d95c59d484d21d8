//! Kills and power cuts.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use super::*;

/// What is on media: names as the directory was synced last, and of each file its bytes then.
#[derive(Default)]
struct Media {
    names: BTreeMap<String, u64>,
    bytes: BTreeMap<u64, Vec<u8>>,
}

fn names_in(dir: &Path) -> BTreeMap<String, u64> {
    let entries = fs::read_dir(dir).expect("read").map(|entry| entry.expect("read"));
    let is_segment = |name: &String| name.ends_with(".log");
    let with_number = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().expect("text");
        is_segment(&name).then(|| Some((name, entry.metadata().ok()?.ino()))).flatten()
    });
    with_number.collect()
}

fn on(media: &Arc<Mutex<Media>>) -> SyncCall {
    let media = media.clone();
    Box::new(move |fd: BorrowedFd<'_>, _| {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let stat = fs::metadata(&path).expect("it is open");
        let mut media = lock(&media);
        match stat.is_dir() {
            true => media.names = names_in(Path::new(&path)),
            false => _ = media.bytes.insert(stat.ino(), fs::read(&path).expect("read")),
        }
        Ok(())
    })
}

/// What a power cut leaves of the log in `from`: what is on media, and of the rest whatever it wants.
fn cut_power(random: &mut fastrand::Rng, media: &Media, from: &Path, to: &Path) {
    fs::create_dir(to).expect("made");
    fs::copy(from.join("head"), to.join("head")).expect("copied");
    let mut names = media.names.clone();
    for (name, number) in names_in(from) {
        if random.bool() {
            names.insert(name, number);
        }
    }
    let now: BTreeMap<u64, String> =
        names_in(from).into_iter().map(|(name, number)| (number, name)).collect();
    for (name, number) in names {
        let mut bytes = media.bytes.get(&number).cloned().unwrap_or_default();
        let written = now.get(&number).map(|name| fs::read(from.join(name)).expect("read"));
        let written = written.unwrap_or_default();
        let tears = random.u8(0..3);
        let len = match tears {
            0 => written.len(),
            _ if written.len() > bytes.len() => random.usize(bytes.len()..=written.len()),
            _ => bytes.len(),
        };
        // Sectors go to media in any order; a mark that is overwritten is nobody's.
        let mut whole = written.clone();
        whole.resize(whole.len().max(len), 0);
        bytes.resize(len, 0);
        for start in (0..len).step_by(16) {
            let end = (start + 16).min(len);
            if tears == 0 || random.u8(0..4) > 0 {
                bytes[start..end].copy_from_slice(&whole[start..end]);
            }
        }
        fs::write(to.join(name), bytes).expect("written");
    }
}

/// Goal: whatever a power cut leaves of what was not synced, the log opens with all that was, in its order,
/// and goes on; nothing comes back that was cut or forgotten.
/// Method: seeds; a media that has only what was synced, and a random part of the rest; cuts over cuts.
#[test]
fn power_cuts_lose_nothing_that_was_synced() {
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let world = tempdir();
        let media = Arc::new(Mutex::new(Media::default()));
        let (mut first, mut acked) = (0, 0);
        // From the first record of all on.
        let mut appended: Vec<Owned> = Vec::new();
        let mut dir = world.path().join("0");
        fs::create_dir(&dir).expect("made");
        for cut in 1..8 {
            let opened = Log::open_with(&dir.join("log"), SMALL, on(&media));
            let (mut log, now_first, records) =
                opened.unwrap_or_else(|error| panic!("seed {seed}, cut {cut}: {error}"));
            assert_eq!(now_first, Seq(first), "seed {seed}, cut {cut}");
            let there = first as usize + records.len();
            assert!(there >= acked, "seed {seed}, cut {cut}: {there} of {acked}");
            assert_are(&log, &records, first, &appended[first as usize..]);
            appended.truncate(there);
            acked = there;
            for _ in 0..random.u8(0..40) {
                match random.u8(0..10) {
                    0..7 => {
                        let bytes: Vec<u8> = (0..random.usize(0..200)).map(|_| random.u8(..)).collect();
                        let record = match random.u8(0..4) {
                            0 => Record::Client(ClientNo(random.u64(..))),
                            _ => bytes_record(random.u64(0..4), random.u64(0..1000), &bytes),
                        };
                        append(&mut log, appended.len() as u64, &record);
                        appended.push(record);
                    }
                    7..9 => {
                        log.sync().expect("synced");
                        acked = appended.len();
                    }
                    _ => {
                        let next = random.u64(first..=appended.len() as u64);
                        log.forget(Seq(next)).expect("forgotten");
                        first = first.max(next);
                        acked = acked.max(next as usize);
                    }
                }
            }
            drop(log);
            let next = world.path().join(cut.to_string());
            fs::create_dir(&next).expect("made");
            cut_power(&mut random, &lock(&media), &dir.join("log"), &next.join("log"));
            *lock(&media) = Media::default();
            dir = next;
        }
    }
}

const CHILD: &str = "HAUL_TEST_LOG";

/// The child of [`kills_lose_nothing_that_was_synced`]: appends and syncs until it is killed, and says how
/// far it is. Not a test without its variable.
#[test]
fn child_that_is_killed() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let settings = Settings { segment_len: 5_000, ..Settings::default() };
    let (mut log, first, records) = Log::open(&Path::new(&dir).join("log"), settings).expect("it opens");
    let mut next = first.0 + records.len() as u64;
    println!("synced {next}");
    loop {
        for _ in 0..next % 7 + 1 {
            append(&mut log, next, &bytes_record(next, next, &vec![next as u8; (next % 300) as usize]));
            next += 1;
        }
        log.sync().expect("synced");
        println!("synced {next}");
        if next.is_multiple_of(5) {
            log.forget(Seq(next.saturating_sub(40))).expect("forgotten");
        }
    }
}

/// Goal: what a process had synced is there after it was killed at any moment.
/// Method: a process of this very program on a real log, killed again and again.
#[test]
fn kills_lose_nothing_that_was_synced() {
    let dir = tempdir();
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..20 {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "log::tests::power::child_that_is_killed", "--nocapture", "--test-threads=1"])
            .env(CHILD, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        let said = |line: String| line.rsplit_once("synced ").and_then(|(_, next)| next.parse::<u64>().ok());
        let mut synced = 0;
        for _ in 0..random.u8(1..60) {
            match lines.next() {
                Some(line) => synced = said(line).unwrap_or(synced),
                None => panic!("the child ended"),
            }
        }
        child.kill().expect("killed");
        child.wait().expect("ended");
        // It went on while we read.
        synced = lines.filter_map(said).last().unwrap_or(synced);
        let (log, first, records) = Log::open(&dir.path().join("log"), SMALL).expect("it opens");
        assert!(first.0 + records.len() as u64 >= synced, "{first:?} {} {synced}", records.len());
        for (index, (seq, record)) in records.iter().enumerate() {
            let number = first.0 + index as u64;
            assert_eq!(*seq, Seq(number));
            let Record::Bytes { offset, len, .. } = record else { panic!("{record:?}") };
            assert_eq!((*offset, *len), (number, number % 300));
            let bytes = log.bytes(&whole(number, *offset, *len)).expect("they are there");
            assert!(bytes.iter().all(|byte| *byte == number as u8));
        }
    }
}
