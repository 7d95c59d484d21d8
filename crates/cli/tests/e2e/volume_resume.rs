//! Copies into a volume, and out of one, that are killed and run again.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use haul_core::entry::Name;
use haul_core::journal::{Replay, Replayed};
use haul_core::volume::FileNo;
use haul_core::volume::catalog::{Entry, Place, ROOT, Setting};
use rustix::process::Signal;

use crate::support::run::{Haul, Outcome, Summary};
use crate::support::sshd::free_port;
use crate::support::{read, tree};
use crate::volume_copy::{Pen, User, said, signal};

const SIZE: usize = 24 << 20;
/// Objects that are short, so that many of them are acknowledged when it is killed.
const SLOW: [&str; 2] = ["--object-size=256KiB", "--rate=6MB/s"];
const SAME: &str = "--object-size=256KiB";

/// A user with one large file.
fn user_with(seed: u64) -> (User, PathBuf) {
    let user = User::new();
    let bytes = tree::bytes(&mut fastrand::Rng::with_seed(seed), SIZE);
    let from = user.room.file("f", bytes);
    (user, from)
}

/// Entries of the volume's own directory whose names this accepts.
fn entries(pen: &Pen, wanted: impl Fn(&[u8]) -> bool) -> Vec<(Name, Entry)> {
    let (page, _) = pen.catalog.read_dir(ROOT, None).expect("read");
    page.into_iter().filter(|(name, _)| wanted(name.as_bytes())).collect()
}

fn is_journal(name: &[u8]) -> bool {
    name.starts_with(b".haul~") && !name.iter().skip(1).any(|byte| *byte == b'.')
}

fn is_temporary(name: &[u8]) -> bool {
    name.starts_with(b".f.haul~")
}

/// The only temporary of the file.
fn temporary(pen: &Pen) -> (Name, Entry) {
    let mut found = entries(pen, is_temporary);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

/// Bytes that a journal says to be on media, as the next run reads it.
fn promised(bytes: &[u8]) -> u64 {
    let mut replay = Replay::new();
    replay.feed(bytes).expect("a journal");
    let Replayed { partials, .. } = replay.finish([0; 16], true).expect("a journal");
    partials.values().map(|partial| partial.subtrees.covered()).sum()
}

/// The same of the volume's.
fn promised_in(pen: &Pen) -> u64 {
    let Some((_, entry)) = entries(pen, is_journal).pop() else { return 0 };
    let file = FileNo(entry.id.0);
    let bytes = pen.client.read(file, 0, 0).wait().and_then(|some| pen.client.read(file, 0, some.end).wait());
    match bytes {
        Ok(read) => promised(&read.bytes),
        // A copy writes its journal anew and removes the one before: between the two looks.
        Err(error) => {
            let is_there = entries(pen, is_journal).iter().any(|(_, entry)| FileNo(entry.id.0) == file);
            assert!(!is_there, "it cannot be read: {error:?}");
            0
        }
    }
}

fn held(summary: &Summary, what: &str) -> u64 {
    summary.0["held"][what].as_u64().expect("a number")
}

/// Starts a copy into the volume and kills it when the journal there promises so much. What it promises then.
fn kill_at(user: &User, pen: &Pen, from: &Path, args: &[&str], at: u64) -> u64 {
    let mut running = user.cp(args, from, "vol://v/").start();
    assert!(running.until(|_| promised_in(pen) >= at), "it goes on");
    running.signal_one(Signal::KILL);
    running.wait();
    settled(|| promised_in(pen))
}

/// What is there when nothing comes any more that was on its way.
fn settled(promised: impl Fn() -> u64) -> u64 {
    loop {
        let before = promised();
        std::thread::sleep(Duration::from_millis(300));
        if promised() == before {
            return before;
        }
    }
}

/// The bytes of the file as they come out of the volume, and nothing beside it there.
fn comes_out(user: &User, from: &Path, to: &str) {
    assert_eq!(user.names("v"), ["f"]);
    let out = user.room.at(to);
    user.cp(&[], "vol://v/f", &out).run().sane().exits(0);
    assert!(read(&out) == read(from), "other bytes than were copied");
}

fn complete(user: &User, args: &[&str], from: &Path) -> Summary {
    let ended = user.cp(args, from, "vol://v/").run().sane().exits(0);
    let summary = ended.summary();
    assert_eq!((summary.text("status"), summary.number("files")), ("complete", 1), "{}", ended.describe());
    summary
}

/// Goal: a copy into a volume that is killed goes on: what its journal said to last is read where it lies and
/// not sent again, over several kills, and what comes of it is the file, byte for byte.
/// Method: killed as soon as it promises more than the run before, four times; then what is sent is counted.
#[test]
fn a_killed_copy_goes_on() {
    let (user, from) = user_with(1);
    let pen = Pen::new(&user);
    let mut before = 0;
    for part in [1, 4, 8, 13] {
        let now = kill_at(&user, &pen, &from, &SLOW, SIZE as u64 * part / 16);
        assert!(now > before, "{now} of {before}");
        before = now;
        let (_, entry) = temporary(&pen);
        assert_eq!(entry.meta.mode, 0o600, "{entry:?}");
    }
    let (_, one) = temporary(&pen);
    let last = complete(&user, &[SAME], &from);
    assert_eq!(last.number("bytes_sent"), SIZE as u64 - before, "{last:?}");
    assert_eq!((held(&last, "checked"), held(&last, "wrong")), (before, 0), "{last:?}");
    assert_eq!(last.0["resumed"].as_bool(), Some(true), "{last:?}");
    let place = Place { parent: ROOT, name: Name::new(b"f").expect("a name") };
    assert_eq!(pen.catalog.lookup(place).expect("there").id, one.id, "it is the file that was begun");
    let known = pen.catalog.known(vec![one.id]).expect("what is known").remove(0).expect("it is there");
    assert_eq!((known.whole, known.home.is_some()), (Some(SIZE as u64), true), "as of one copied at once");
    comes_out(&user, &from, "out");
    let again = user.cp(&[], &from, "vol://v/").run().sane().exits(0).summary();
    assert_eq!((again.number("bytes_sent"), again.number("unchanged")), (0, 1), "{again:?}");
}

/// Goal: a copy that ends because a server, or the catalog, is gone keeps what lasted; when that is there
/// again the same command goes on.
#[test]
fn what_is_gone_and_comes_back_costs_no_more_than_was_lost() {
    let (user, from) = user_with(2);
    for (gone, to) in [(Some(1), "out1"), (Some(0), "out0"), (None, "out")] {
        let pen = Pen::new(&user);
        let args = [&SLOW[..], &["--patience=3s"]].concat();
        let mut running = user.cp(&args, &from, "vol://v/").start();
        assert!(running.until(|_| promised_in(&pen) >= SIZE as u64 / 4), "it goes on");
        signal(user.process(gone), Signal::KILL);
        let ended = running.wait().sane().exits(1);
        said(&ended, "is gone");
        assert!(ended.summary().number("kept") > 0, "{}", ended.describe());
        drop(pen);
        user.start();
        let pen = Pen::new(&user);
        let before = settled(|| promised_in(&pen));
        assert!(before >= SIZE as u64 / 4, "{before} of {SIZE} are promised");
        let last = complete(&user, &[SAME], &from);
        assert_eq!(last.number("bytes_sent"), SIZE as u64 - before, "{gone:?}: {last:?}");
        assert_eq!((held(&last, "checked"), held(&last, "wrong")), (before, 0), "{gone:?}: {last:?}");
        comes_out(&user, &from, to);
        user.env(Haul::new(["volume", "rm", "v/f"])).run().sane().exits(0);
    }
}

/// Goal: what somebody wrote into a temporary between two runs, a temporary that was replaced, and one of
/// which a server lost what it had on its disk, is not believed, whatever length and time it has: what is
/// wrong is sent again, and the file is right.
#[test]
fn what_was_altered_between_runs_is_not_believed() {
    let deeds: [fn(&User, &Pen, &(Name, Entry)); 4] = [
        |_, pen, (_, entry)| {
            let file = FileNo(entry.id.0);
            for at in [0, 1_000_003, 2 << 20] {
                let byte = pen.client.read(file, at, 1).wait().expect("read").bytes[0];
                pen.client.write(file, at, vec![!byte]).wait().expect("written");
            }
            haul_volume::contents::sync(&pen.catalog, &pen.client, file).expect("synced");
            let set = Setting { mtime: Some(entry.meta.mtime), ..Setting::default() };
            pen.catalog.set_attr(entry.id, set).expect("set");
        },
        |_, pen, (name, entry)| {
            let end = pen.client.read(FileNo(entry.id.0), 0, 0).wait().expect("a length").end;
            let place = || Place { parent: ROOT, name: name.clone() };
            pen.catalog.unlink(place()).expect("removed");
            let (other, _) = pen.catalog.create(place(), entry.meta, true, false).expect("made");
            for at in (0..end).step_by(1 << 20) {
                let len = (end - at).min(1 << 20) as usize;
                pen.client.write(FileNo(other.id.0), at, vec![7; len]).wait().expect("written");
            }
            pen.client.sync(FileNo(other.id.0)).wait().expect("synced");
        },
        |_, pen, (_, entry)| pen.client.truncate(FileNo(entry.id.0), 1 << 20).wait().expect("cut"),
        |user, _, (_, entry)| {
            user.kill(1);
            let number = entry.id.0;
            let file = user.room.at("b").join(format!("data/files/{:02x}/{number:016x}", number % 256));
            fs::remove_file(file).expect("it has a part of it");
            user.start();
        },
    ];
    for (n, deed) in deeds.into_iter().enumerate() {
        let (user, from) = user_with(3 + n as u64);
        let pen = Pen::new(&user);
        let args = [&SLOW[..], &["--write-threshold=0"]].concat();
        let before = kill_at(&user, &pen, &from, &args, SIZE as u64 / 3);
        deed(&user, &pen, &temporary(&pen));
        let last = complete(&user, &[SAME], &from);
        let wrong = held(&last, "wrong");
        assert!(wrong > 0 && held(&last, "checked") == before, "{n}: {last:?}");
        assert_eq!(last.number("bytes_sent"), SIZE as u64 - before + wrong, "{n}: {last:?}");
        comes_out(&user, &from, "out");
    }
}

/// Goal: parts of a file that is another by now are not taken for it; and with `--resume=trust` what is there
/// is believed unread, and said so.
#[test]
fn parts_are_of_the_file_that_they_are_of() {
    let (user, from) = user_with(8);
    let pen = Pen::new(&user);
    let before = kill_at(&user, &pen, &from, &SLOW, SIZE as u64 / 4);
    let trusting = complete(&user, &[SAME, "--resume=trust"], &from);
    assert_eq!((held(&trusting, "checked"), held(&trusting, "trusted")), (0, before), "{trusting:?}");
    assert_eq!(trusting.number("bytes_sent"), SIZE as u64 - before, "{trusting:?}");
    comes_out(&user, &from, "out");
    user.env(Haul::new(["volume", "rm", "v/f"])).run().sane().exits(0);

    kill_at(&user, &pen, &from, &SLOW, SIZE as u64 / 4);
    fs::write(&from, tree::bytes(&mut fastrand::Rng::with_seed(9), SIZE)).expect("written");
    let anew = complete(&user, &[SAME], &from);
    assert_eq!((anew.number("bytes_sent"), held(&anew, "checked")), (SIZE as u64, 0), "{anew:?}");
    comes_out(&user, &from, "again");
}

/// The journal in a directory of this host; `None`: there is none yet.
fn promised_at(dir: &Path) -> u64 {
    let journal = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_it = |path: &PathBuf| path.file_name().is_some_and(|name| is_journal(name.as_encoded_bytes()));
    let mut replay = Replay::new();
    let Some(bytes) = { journal }.find(is_it).and_then(|path| fs::read(path).ok()) else { return 0 };
    if replay.feed(&bytes).is_err() {
        return 0;
    }
    let replayed = replay.finish([0; 16], true).unwrap_or_default();
    replayed.partials.values().map(|partial| partial.subtrees.covered()).sum()
}

/// Goal: a copy out of a volume goes on as well; a file that somebody wrote into meanwhile, and gave its
/// length and time back, does not come as a mixture.
#[test]
fn a_killed_copy_out_goes_on() {
    let (user, from) = user_with(10);
    user.cp(&[], &from, "vol://v/").run().sane().exits(0);
    let pen = Pen::new(&user);
    for alters in [false, true] {
        let out = user.room.dir(if alters { "altered" } else { "out" });
        let mut running = user.cp(&SLOW, "vol://v/f", out.join("")).start();
        assert!(running.until(|_| promised_at(&out) >= SIZE as u64 / 3), "it goes on");
        running.signal_one(Signal::KILL);
        running.wait();
        let before = promised_at(&out);
        let mut expected = read(&from);
        if alters {
            let place = Place { parent: ROOT, name: Name::new(b"f").expect("a name") };
            let entry = pen.catalog.lookup(place).expect("there");
            expected[5] = !expected[5];
            pen.write("f", 5, &expected[5..6]);
            haul_volume::contents::sync(&pen.catalog, &pen.client, FileNo(entry.id.0)).expect("synced");
            let set = Setting { mtime: Some(entry.meta.mtime), ..Setting::default() };
            pen.catalog.set_attr(entry.id, set).expect("set");
        }
        let ended: Outcome = user.cp(&[SAME], "vol://v/f", out.join("")).run().sane().exits(0);
        let last = ended.summary();
        assert_eq!(last.0["resumed"].as_bool(), Some(true), "{}", ended.describe());
        if !alters {
            assert_eq!(last.number("bytes_sent"), SIZE as u64 - before, "{}", ended.describe());
        }
        assert!(read(out.join("f")) == expected, "{}", ended.describe());
    }
}

/// Goal: a drain that is killed in the middle of a large file goes on with it, on this host and at a server
/// of FTP that keeps what it has of one; then it is at home there.
#[test]
fn a_killed_drain_goes_on() {
    let (user, from) = user_with(11);
    user.cp(&[], &from, "vol://v/g").run().sane().exits(0);
    user.cp(&[], "vol://v/g", "vol://v/f").run().sane().exits(0);
    user.env(Haul::new(["volume", "rm", "v/g"])).run().sane().exits(0);
    let drain = |to: &str, args: &[&str]| {
        user.env(Haul::new(["volume", "drain", "v", "--json", "--to", to]).args(args))
    };
    let kill = |to: &str, is_so: &dyn Fn() -> bool| {
        let mut running = drain(to, &["--rate=6MB/s", "--memory=16MiB"]).start();
        assert!(running.until(|_| is_so()), "{}", running.stderr());
        running.signal_one(Signal::KILL);
        running.wait();
    };
    let out = user.room.at("out");
    let to = out.to_str().expect("UTF-8");
    kill(to, &|| promised_at(&out) >= SIZE as u64 / 3);
    let before = promised_at(&out);
    let ended = drain(to, &[]).run().sane().exits(0);
    assert_eq!(ended.summary().number("bytes_sent"), SIZE as u64 - before, "{}", ended.describe());
    assert!(read(out.join("f")) == read(&from), "{}", ended.describe());
    said(&ended, "1 file has its home in ");

    if !rustix::process::geteuid().is_root() {
        return;
    }
    pen_writes(&user);
    let mut expected = read(&from);
    expected[..4].copy_from_slice(b"#new");
    let listen = format!("127.0.0.1:{}", free_port());
    let words = ["serve", "gridftp", "--listen", &listen, "--anonymous", "write", "--user", "root"];
    let mut server =
        Haul::new(words).args(["--markers", "100ms", "--root"]).args([user.room.dir("ftp")]).start();
    assert!(server.until(|server| server.stderr().contains(" listen ftp://")), "{}", server.stderr());
    let to = format!("ftp://{listen}/out/");
    let is_marked = || {
        let records = fs::read_dir(user.room.at("state/haul/uploads")).into_iter().flatten().flatten();
        let stands = records.map(|record| record.path()).filter(|path| path.extension().is_none());
        let mut texts = stands.filter_map(|path| fs::read_to_string(path).ok());
        texts.any(|text| text.lines().nth(3).is_some_and(|all| all.starts_with("0-") && all != "0-0"))
    };
    kill(&to, &is_marked);
    let ended = drain(&to, &[]).run().sane().exits(0);
    assert!(ended.summary().number("bytes_sent") < SIZE as u64, "all went again\n{}", ended.describe());
    assert!(read(user.room.at("ftp/out/f")) == expected, "{}", ended.describe());
    said(&ended, "1 file has its home in ");
    server.signal(Signal::TERM);
    server.wait();
}

/// Somebody writes into the file, which has no home from then on.
fn pen_writes(user: &User) {
    let pen = Pen::new(user);
    pen.write("f", 0, b"#new");
}
