//! Files of a volume as programs use them, each a process of its own, over servers that are processes and are
//! killed in the middle: every byte compared with a plain model. `docs/semantics.md`, "Volumes".

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use haul_volume::access::Access;
use haul_volume::api::{Error, File, OpenOptions, Settings, Volume, Why};
use haul_volume::client::VolumeError;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::procs::wait_until;
use crate::support::run::Haul;
use crate::support::{read, tree};
use crate::volume_copy::{User, signal};

/// What a program is told by: its state directory, and how it writes (`auto`, or bytes from which on it does
/// so directly).
const TOLD: &str = "HAUL_TEST_VOLUME_PROGRAM";
const STRIPE: usize = 65_536;
const PATIENCE: Duration = Duration::from_secs(60);
/// Programs of a crowd, and bytes of each of their places.
const CROWD: usize = 10;
const SLOT: usize = 13;
/// Where their places begin: inside one page, and in one that two stripes share.
const PAGES: [usize; 2] = [3 * 4096, 2 * STRIPE - 2048];
const SLOTS: usize = 4096 / SLOT;

fn some(seed: u64, len: usize) -> Vec<u8> {
    tree::bytes(&mut fastrand::Rng::with_seed(seed), len)
}

/// What a program of the crowd puts into one of its places in a round.
fn slot(round: u64, place: usize) -> Vec<u8> {
    some(round * 1_000_000 + place as u64, SLOT)
}

/// Ranges that are read in one call.
fn ranges(seed: u64, count: usize, len: usize) -> Vec<(u64, usize)> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| (random.u64(0..len as u64 + 5000), random.usize(0..3000))).collect()
}

/// What such a call comes to.
fn sum<'a>(read: impl Iterator<Item = &'a [u8]>) -> String {
    let mut hasher = blake3::Hasher::new();
    read.for_each(|bytes| _ = hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes));
    hasher.finalize().to_string()
}

/// A program, as one of the tests below starts it: it does what it is told line by line, and answers each.
#[test]
fn is_a_program() {
    let Ok(told) = std::env::var(TOLD) else { return };
    let (state, threshold) = told.split_once(' ').expect("two words");
    let settings = || {
        let mut settings = Settings::default();
        (settings.patience, settings.write_threshold) = (PATIENCE, threshold.parse().ok());
        settings
    };
    let access = Access::read(state.as_ref(), "v").expect("it is known");
    let volume = Volume::open_with(&access, settings()).expect("it is there");
    let mut open: BTreeMap<String, File> = BTreeMap::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line");
        let words: Vec<&str> = line.split(' ').collect();
        let said = match obey(&volume, &mut open, &words) {
            Ok(said) => format!("ok {said}"),
            Err(error) => format!("failed {} {error}", error.errno()),
        };
        println!("\n@ {said}");
    }
}

fn obey(volume: &Volume, open: &mut BTreeMap<String, File>, words: &[&str]) -> Result<String, Error> {
    let number = |at: usize| words[at].parse::<u64>().expect("a number");
    let none = |()| String::new();
    match *words {
        ["open", name, path, how] => {
            let mut options = OpenOptions::new();
            options.read(how != "a").write(how == "w").append(how == "a").create(how != "r");
            open.insert(name.into(), volume.open_file(path, &options)?);
            return Ok(String::new());
        }
        ["rename", from, to] => return volume.rename(from, to).map(none),
        ["unlink", path] => return volume.unlink(path).map(none),
        ["time", path] => {
            let time = volume.stat(path)?.mtime;
            return Ok(time.duration_since(UNIX_EPOCH).expect("of now").as_nanos().to_string());
        }
        ["close", name] => return open.remove(name).expect("it is open").close().map(none),
        _ => {}
    }
    let file = &open[words[1]];
    match *words {
        ["write", _, ..] => file.pwrite(&some(number(4), number(3) as usize), number(2)).map(none),
        ["append", ..] => file.append(&some(number(3), number(2) as usize)).map(|at| at.to_string()),
        ["cut", ..] => file.set_len(number(2)).map(none),
        ["sync", _] => file.sync().map(none),
        ["prefetch", ..] => {
            file.prefetch(std::slice::from_ref(&(number(2)..number(3)))).map(|bytes| bytes.to_string())
        }
        ["all", _] => {
            let mut all = vec![7; file.len()? as usize + 3];
            let len = file.pread(&mut all, 0)?;
            Ok(format!("{len} {}", sum([&all[..len]].into_iter())))
        }
        ["ranges", ..] => {
            let asked = ranges(number(2), number(3) as usize, number(4) as usize);
            let mut rooms: Vec<(u64, Vec<u8>)> = asked.iter().map(|(at, len)| (*at, vec![9; *len])).collect();
            let mut told: Vec<(u64, &mut [u8])> =
                rooms.iter_mut().map(|(at, room)| (*at, &mut room[..])).collect();
            let lens = file.pread_many(&mut told).map_err(|one| one.error)?;
            Ok(sum(rooms.iter().zip(lens).map(|((_, room), len)| &room[..len])))
        }
        ["crowd", ..] => crowd(file, number(2) as usize, number(3)),
        ["records", ..] => (0..number(3)).try_fold(String::new(), |told, nth| {
            let record = record(number(2), nth);
            let at = file.append(record.as_bytes())?;
            Ok(format!("{told}{at} "))
        }),
        _ => panic!("{words:?}"),
    }
}

/// Puts what it has into all of its places, round after round. What a server lost is written again.
fn crowd(file: &File, me: usize, rounds: u64) -> Result<String, Error> {
    let mut told_lost = 0;
    let write = |round: u64| -> Result<(), Error> {
        for page in PAGES {
            for place in (0..SLOTS).filter(|place| place % CROWD == me) {
                file.pwrite(&slot(round, place), (page + place * SLOT) as u64)?;
            }
        }
        Ok(())
    };
    for round in 0..rounds {
        write(round)?;
        // Some are never synced but at the end.
        if round + 1 != rounds && round as usize % 3 != me % 3 {
            continue;
        }
        loop {
            match file.sync() {
                Ok(()) => break,
                Err(error) if matches!(error.why(), Why::Servers(VolumeError::Lost(_))) => told_lost += 1,
                Err(error) => return Err(error),
            }
            write(round)?;
        }
    }
    Ok(told_lost.to_string())
}

/// One line of a file that several append to.
fn record(of: u64, nth: u64) -> String {
    format!("{of} {nth} {}\n", "x".repeat((of * 31 + nth * 97) as usize % 1500))
}

/// Such a program.
struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start(user: &User, threshold: &str) -> Program {
        let told = format!("{} {threshold}", user.room.at("state/haul").to_str().expect("UTF-8"));
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "volume_files::is_a_program", "--nocapture"])
            .env(TOLD, told)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let (input, output) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        Program { child, input, output: BufReader::new(output) }
    }

    fn tell(&mut self, line: &str) {
        self.input.write_all(format!("{line}\n").as_bytes()).expect("it listens");
    }

    /// What it answers next.
    fn said(&mut self) -> String {
        let mut line = String::new();
        while !line.starts_with("@ ") {
            line.clear();
            assert!(self.output.read_line(&mut line).expect("a line") > 0, "the program ended");
        }
        line.trim()[2..].to_owned()
    }

    /// Does it, and it goes well.
    #[track_caller]
    fn does(&mut self, line: &str) -> String {
        self.tell(line);
        let said = self.said();
        said.strip_prefix("ok ")
            .or(said.strip_prefix("ok"))
            .unwrap_or_else(|| panic!("{line}: {said}"))
            .to_owned()
    }

    /// A file that it has open is this, to the last byte.
    #[track_caller]
    fn sees(&mut self, name: &str, model: &[u8], when: &str) {
        let said = self.does(&format!("all {name}"));
        assert!(said == format!("{} {}", model.len(), sum([model].into_iter())), "{name}, {when}: {said}");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn user() -> User {
    User::of(&["--stripe", "64KiB"])
}

/// Kills these servers and the catalog at one time, and starts them again.
fn restart(user: &User, servers: &[u64], catalog: bool) {
    let mut processes: Vec<_> = servers.iter().map(|server| user.process(Some(*server))).collect();
    processes.extend(catalog.then(|| user.process(None)));
    processes.iter().for_each(|process| signal(*process, Signal::KILL));
    let gone = |process: &rustix::process::Pid| {
        fs::read_link(format!("/proc/{}/exe", process.as_raw_nonzero())).is_err()
    };
    assert!(wait_until(PATIENCE, || processes.iter().all(gone)));
    user.start();
}

fn gatherer(user: &User, path: &str) -> u64 {
    let told = user.env(Haul::new(["volume", "stat", &format!("v/{path}"), "--json"])).run().sane().exits(0);
    let told: Value = serde_json::from_slice(&told.stdout).expect("JSON");
    told["first_server"].as_u64().expect("a server")
}

/// What a copy out of the volume brings.
fn content(user: &User, path: &str) -> Vec<u8> {
    let to = user.room.at("copied out");
    let _ = fs::remove_file(&to);
    user.cp(&[], format!("vol://v/{path}"), &to).run().sane().exits(0);
    read(to)
}

fn is_sound(user: &User) {
    user.env(Haul::new(["volume", "fsck", "v"])).run().sane().exits(0);
}

/// Puts bytes into a model that is as long as they need.
fn put(model: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    model.resize(model.len().max(at + bytes.len()), 0);
    model[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Goal: ten programs that write places of their own inside one page, and in one that two stripes share,
/// directly, gathered and as it comes, and sync when they like, disturb no byte of each other, also where the
/// server that gathers the file, and then the others, are killed in the middle.
#[test]
fn a_crowd_inside_one_page_disturbs_nobody() {
    let user = user();
    let mut programs: Vec<Program> =
        (0..CROWD).map(|me| Program::start(&user, ["0", "18446744073709551615", "auto"][me % 3])).collect();
    programs[0].does("open f /f w");
    programs[1..].iter_mut().for_each(|program| _ = program.does("open f /f w"));
    let gathers = gatherer(&user, "f");
    let rounds = 12;
    for (me, program) in programs.iter_mut().enumerate() {
        program.tell(&format!("crowd f {me} {rounds}"));
    }
    std::thread::sleep(Duration::from_millis(400));
    restart(&user, &[gathers], false);
    restart(&user, &[(gathers + 1) % 3, (gathers + 2) % 3], false);
    let lost: Vec<String> = programs.iter_mut().map(Program::said).collect();
    assert!(lost.iter().all(|said| said.starts_with("ok ")), "{lost:?}");
    let mut model = Vec::new();
    for page in PAGES {
        (0..SLOTS).for_each(|place| put(&mut model, page + place * SLOT, &slot(rounds - 1, place)));
    }
    for (me, program) in programs.iter_mut().enumerate() {
        program.sees("f", &model, &format!("by program {me}, {lost:?}"));
        program.does("close f");
    }
    assert!(content(&user, "f") == model);
    is_sound(&user);
}

/// Goal: what several programs append stands whole, one behind the other and in each one's order, where each
/// was told; a crash of the server that gathers the file may have something stand twice, and nothing missing
/// or torn.
#[test]
fn appends_of_programs_never_overlap() {
    let user = user();
    let mut programs: Vec<Program> = (0..5).map(|me| Program::start(&user, ["0", "auto"][me % 2])).collect();
    programs.iter_mut().for_each(|program| _ = program.does("open f /f a"));
    let count = 150;
    for (me, program) in programs.iter_mut().enumerate() {
        program.tell(&format!("records f {me} {count}"));
    }
    std::thread::sleep(Duration::from_millis(150));
    restart(&user, &[gatherer(&user, "f")], false);
    let told: Vec<String> = programs.iter_mut().map(Program::said).collect();
    for program in &mut programs {
        program.tell("close f");
        // What was not synced when the server was killed is told, and stands.
        let said = program.said();
        assert!(said == "ok" || said.contains("was lost with what was not synced"), "{said}");
    }
    let all = content(&user, "f");
    let text = std::str::from_utf8(&all).expect("whole records");
    let mut stand: BTreeMap<(u64, u64), Vec<usize>> = BTreeMap::new();
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let mut words = line.split(' ').map(str::parse::<u64>);
        let (Some(Ok(of)), Some(Ok(nth))) = (words.next(), words.next()) else { panic!("at {at}: {line:?}") };
        assert_eq!(line, record(of, nth), "at {at}");
        stand.entry((of, nth)).or_default().push(at);
        at += line.len();
    }
    assert_eq!(stand.len(), 5 * count);
    for (of, told) in (0..).zip(&told) {
        let told = told.strip_prefix("ok ").unwrap_or_else(|| panic!("program {of}: {told}"));
        let places: Vec<usize> = told.split_whitespace().map(|at| at.parse().expect("an offset")).collect();
        assert_eq!(places.len(), count);
        assert!(places.windows(2).all(|two| two[0] < two[1]), "in its order");
        for (nth, place) in (0..).zip(places) {
            let stands = &stand[&(of, nth)];
            assert!(stands.last() == Some(&place) && stands.len() <= 2, "{of} {nth}: {place}, {stands:?}");
        }
    }
    is_sound(&user);
}

/// Goal: a file that was cut is as short as it was made when that returned, for everybody, and lasts so over
/// a crash of all at one time; no byte of before comes back when it grows again, and what nobody wrote is
/// zeros. Method: each way of writing, cuts inside stripes and at their edges.
#[test]
fn what_was_cut_does_not_come_back() {
    let user = user();
    for (nth, threshold) in ["0", "18446744073709551615", "auto"].into_iter().enumerate() {
        let path = format!("/t{nth}");
        let (mut one, mut other) = (Program::start(&user, threshold), Program::start(&user, "auto"));
        one.does(&format!("open f {path} w"));
        let mut model = Vec::new();
        for (round, cut) in [2 * STRIPE + 777, 3 * STRIPE, 1, 0].into_iter().enumerate() {
            let seed = round as u64 + 10;
            let len = 5 * STRIPE + 4000;
            one.does(&format!("write f 0 {len} {seed}"));
            put(&mut model, 0, &some(seed, len));
            // One that may write directly, too.
            other.does(&format!("open f {path} w"));
            other.does(&format!("write f {} 9000 {}", 4 * STRIPE - 100, seed + 50));
            put(&mut model, 4 * STRIPE - 100, &some(seed + 50, 9000));
            one.does("sync f");
            other.does("sync f");
            one.does(&format!("cut f {cut}"));
            model.truncate(cut);
            if round % 2 == 0 {
                restart(&user, &[0, 1, 2], true);
            }
            other.sees("f", &model, &format!("cut to {cut}, {threshold}"));
            other.does(&format!("cut f {}", 7 * STRIPE + 5));
            model.resize(7 * STRIPE + 5, 0);
            one.sees("f", &model, "grown");
            // A hole behind it, up to something small.
            other.does(&format!("write f {} 9 {seed}", 9 * STRIPE + 1));
            put(&mut model, 9 * STRIPE + 1, &some(seed, 9));
            other.does("close f");
            restart(&user, &[round as u64 % 3], false);
            one.sees("f", &model, "with a hole");
            assert!(content(&user, &path[1..]) == model);
        }
        one.does("close f");
    }
    is_sound(&user);
}

/// Goal: who has a file open reads and writes its bytes when something else took its name and when nothing
/// has it any more, over restarts of the catalog and of all servers; others see the new one alone; and the
/// bytes go from the servers' disks when the last one closed it, and not before.
#[test]
fn what_lost_its_name_stays_with_who_has_it() {
    let user = user();
    let on_disk = || -> u64 {
        let dirs = ["a", "b", "c"].map(|dir| user.room.at(dir).join("data/files"));
        let below = dirs.iter().flat_map(|dir| fs::read_dir(dir).into_iter().flatten().flatten());
        let files = below.flat_map(|dir| fs::read_dir(dir.path()).into_iter().flatten().flatten());
        files.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
    };
    let (mut holder, mut other) = (Program::start(&user, "auto"), Program::start(&user, "0"));
    let len = 4 * STRIPE + 50;
    let (mut old, new) = (some(1, len), some(2, len));
    for (name, path, seed) in [("x", "/x", 1), ("n", "/n", 2)] {
        other.does(&format!("open {name} {path} w"));
        other.does(&format!("write {name} 0 {len} {seed}"));
        other.does(&format!("close {name}"));
    }
    holder.does("open x /x w");
    other.does("rename /n /x");
    other.does("open x /x w");
    for when in ["renamed over", "the catalog was started anew", "all were"] {
        match when {
            "the catalog was started anew" => restart(&user, &[], true),
            "all were" => restart(&user, &[0, 1, 2], true),
            _ => {}
        }
        holder.sees("x", &old, when);
        other.sees("x", &new, when);
        let at = STRIPE - 10 + old[0] as usize;
        holder.does(&format!("write x {at} 20 3"));
        holder.does("sync x");
        put(&mut old, at, &some(3, 20));
        assert!(content(&user, "x") == new, "{when}");
    }
    other.does("unlink /x");
    other.sees("x", &new, "unlinked");
    restart(&user, &[], true);
    other.sees("x", &new, "unlinked, and the catalog was started anew");
    holder.sees("x", &old, "in the end");
    assert!(on_disk() >= 2 * len as u64, "bytes went that somebody has open: {}", on_disk());
    holder.does("close x");
    other.sees("x", &new, "the other one is closed");
    other.does("close x");
    assert!(wait_until(PATIENCE, || on_disk() == 0), "{} bytes are left", on_disk());
    is_sound(&user);
}

/// Goal: a program that opens a file after another one closed it sees all that it wrote, and a later time,
/// round after round without a pause, whichever way it went, and where servers and catalog were killed
/// between the two; one that had it open, and had read it ahead, sees it as well.
#[test]
fn an_open_sees_what_a_close_wrote() {
    let user = user();
    let (mut writer, mut reader) = (Program::start(&user, "auto"), Program::start(&user, "auto"));
    let (mut model, mut last, mut random) = (Vec::new(), 0_u128, fastrand::Rng::with_seed(5));
    writer.does("open f /f w");
    writer.does("close f");
    reader.does("open held /f r");
    for round in 0..40_u64 {
        let (at, len) = (random.usize(0..4 * STRIPE), [1, 60, 5000, 2 * STRIPE][random.usize(0..4)]);
        reader.does(&format!("prefetch held 0 {}", 8 * STRIPE));
        writer.does("open f /f w");
        if round % 5 == 4 {
            let said = writer.does(&format!("append f {len} {round}"));
            assert_eq!(said.trim(), model.len().to_string());
            put(&mut model, said.trim().parse().expect("an offset"), &some(round, len));
        } else {
            writer.does(&format!("write f {at} {len} {round}"));
            put(&mut model, at, &some(round, len));
        }
        writer.does("close f");
        match round {
            9 => restart(&user, &[], true),
            19 => restart(&user, &[gatherer(&user, "f")], false),
            29 => restart(&user, &[0, 1, 2], true),
            _ => {}
        }
        reader.does("open new /f r");
        reader.sees("new", &model, &format!("round {round}"));
        reader.sees("held", &model, &format!("round {round}"));
        let time: u128 = reader.does("time /f").trim().parse().expect("a time");
        assert!(time > last, "round {round}: {time} is not after {last}");
        last = time;
        reader.does("close new");
    }
    assert!(content(&user, "f") == model);
    is_sound(&user);
}

/// Goal: thousands of ranges in one call are each what the file has, behind its end too, with what is
/// gathered for it, while servers are killed and started; what was read ahead before that is not given for
/// what somebody wrote since.
#[test]
fn many_ranges_are_right_while_servers_come_and_go() {
    let user = user();
    let (mut writer, mut reader) = (Program::start(&user, "0"), Program::start(&user, "auto"));
    let mut small = Program::start(&user, "18446744073709551615");
    let len = 40 * STRIPE + 99;
    let mut model = some(1, len);
    writer.does("open f /f w");
    writer.does(&format!("write f 0 {len} 1"));
    writer.does("sync f");
    small.does("open f /f w");
    reader.does("open f /f r");
    let mut random = fastrand::Rng::with_seed(8);
    for round in 0..6_u64 {
        for n in 0..60 {
            let (at, seed) = (random.usize(0..len - 200), round * 100 + n);
            small.does(&format!("write f {at} 150 {seed}"));
            put(&mut model, at, &some(seed, 150));
        }
        small.does("sync f");
        let count = 4000;
        let asked = ranges(round, count, len);
        let of = |(at, len): &(u64, usize)| {
            let from = (*at as usize).min(model.len());
            &model[from..model.len().min(from + len)]
        };
        let right = sum(asked.iter().map(of));
        reader.tell(&format!("ranges f {round} {count} {len}"));
        restart(&user, &[round % 3], round == 4);
        assert_eq!(reader.said(), format!("ok {right}"), "round {round}");
        reader.does(&format!("prefetch f 0 {len}"));
        restart(&user, &[(round + 1) % 3], false);
        let at = random.usize(0..len - 1);
        small.does(&format!("write f {at} 1 {}", round + 7000));
        put(&mut model, at, &some(round + 7000, 1));
        reader.sees("f", &model, &format!("round {round}, after one byte"));
    }
    small.does("close f");
    writer.does("close f");
    assert!(content(&user, "f") == model);
    is_sound(&user);
}
