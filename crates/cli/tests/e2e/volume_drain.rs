//! `haul volume drain`: what it brings, and that what it calls at home is there.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use haul_core::entry::Name;
use haul_core::volume::FileNo;
use haul_core::volume::catalog::{Entry, Place, ROOT, Setting};
use haul_volume::catalog::client::Client as Catalog;
use haul_volume::drain::{Homeless, homeless};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::compare::{ALL, assert_same};
use crate::support::run::Haul;
use crate::support::sshd::Sshd;
use crate::support::{read, tree};
use crate::volume_copy::{Pen, User, said};

fn drain(user: &User, args: &[&str]) -> Haul {
    user.env(Haul::new(["volume", "drain", "v", "--json"].iter().chain(args)))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Files without a home, all of them.
fn homes(pen: &Pen) -> (BTreeSet<Vec<u8>>, u64) {
    let ours = |catalog: &Catalog, dir, page: &[(Name, Entry)]| {
        haul::volume::are_ours(catalog, dir, page.iter().map(|(name, _)| name))
    };
    let found = homeless(&pen.catalog, &pen.client, &ours, (usize::MAX, u64::MAX));
    let Homeless { some, at_home, is_all, .. } = found.expect("the catalog says");
    assert!(is_all);
    (some.into_iter().collect(), at_home)
}

/// Files and links below a directory, by their paths in it.
fn files_in(dir: &Path) -> BTreeSet<Vec<u8>> {
    let (mut found, mut todo) = (BTreeSet::new(), vec![dir.to_owned()]);
    while let Some(at) = todo.pop() {
        for entry in fs::read_dir(at).into_iter().flatten().map(|entry| entry.expect("an entry")) {
            match entry.file_type().expect("a type").is_dir() {
                true => todo.push(entry.path()),
                false => {
                    let path = entry.path().strip_prefix(dir).expect("below").as_os_str().as_bytes().to_vec();
                    found.insert(path);
                }
            }
        }
    }
    found
}

fn os(path: &[u8]) -> PathBuf {
    PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()))
}

/// Goal: what came from this host is at home; a copy of it within the volume is not, is brought with all of
/// its names, modes, links and bytes, and then is; a second drain brings nothing, and one after a write just
/// that file. A volume in which all is at home goes without `--yes`, and says where that is.
#[test]
fn what_changed_is_brought() {
    let user = User::new();
    let (data, out) = (user.room.dir("data"), user.room.at("out"));
    tree::everything(&data, 8);
    tree::settle(&data);
    user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0);
    let pen = Pen::new(&user);
    let all = files_in(&data).len();
    assert_eq!((homes(&pen).0.len(), homes(&pen).1), (0, all as u64), "it came from here");
    user.cp(&["-r"], "vol://v/data/", "vol://v/again").run().sane().exits(0);
    let under = |path: &Vec<u8>| [b"again/", &path[..]].concat();
    assert_eq!(homes(&pen).0, files_in(&data).iter().map(under).collect(), "a volume is no home");
    let refused = user.env(Haul::new(["volume", "destroy", "v"])).run().sane().exits(1);
    said(
        &refused,
        &format!("there are {all} files in the volume v that have no home outside of it: v/again/"),
    );

    let dry = drain(&user, &["--to", text(&out), "--dry-run"]).run().sane().exits(0).summary();
    let (files, _) = tree::totals(&data);
    assert_eq!((dry.number("files"), out.exists()), (files, false), "{dry:?}");
    assert_eq!(homes(&pen).0.len(), all, "a dry run brings nothing");
    let first = drain(&user, &["--to", text(&out)]).run().sane().exits(0);
    assert_eq!(first.summary().number("files"), files, "{}", first.describe());
    said(&first, &format!("{all} files have their home in "));
    assert_same(&data, &out.join("again"), ALL);
    assert_eq!(homes(&pen).0.len(), 0);
    let stat = user.env(Haul::new(["volume", "stat", "v", "--json"])).run().sane().exits(0);
    assert!(
        stat.describe().contains(&format!(r#""homeless":0,"at_home":{}"#, 2 * all)),
        "{}",
        stat.describe()
    );
    let again = drain(&user, &["--to", text(&out)]).run().sane().exits(0).summary();
    assert_eq!((again.number("files"), again.number("unchanged")), (0, 0), "{again:?}");

    let one = files_in(&data).into_iter().find(|path| {
        let meta = fs::symlink_metadata(data.join(os(path))).expect("there");
        meta.is_file() && meta.len() > 10 && path.is_ascii()
    });
    let one = under(&one.expect("a file with bytes"));
    let name = String::from_utf8(one.clone()).expect("ASCII");
    pen.write(&name, 3, b"#");
    assert_eq!(homes(&pen).0, BTreeSet::from([one.clone()]), "it was written, and nobody was told");
    let stat = user.env(Haul::new(["volume", "stat", &format!("v/{name}")])).run().sane().exits(0);
    assert!(stat.describe().contains("no home outside"), "{}", stat.describe());
    let once = drain(&user, &["--to", text(&out)]).run().sane().exits(0).summary();
    assert_eq!((once.number("files"), once.number("unchanged")), (1, 0), "{once:?}");
    assert_eq!(read(out.join(os(&one)))[3], b'#');
    let stat = user.env(Haul::new(["volume", "stat", &format!("v/{name}")])).run().sane().exits(0);
    assert!(stat.describe().contains("at home: "), "{}", stat.describe());
    // Servers that start anew remember what was told of.
    user.kill(0);
    user.kill(1);
    user.start();
    let pen = Pen::new(&user);
    assert_eq!(homes(&pen).0.len(), 0);
    drop(pen);
    let gone = user.env(Haul::new(["volume", "destroy", "v"])).run().sane().exits(0);
    assert!(gone.describe().contains("are at home in "), "{}", gone.describe());
}

/// Goal: a file that was written and got its length and time of before again is brought all the same, and
/// what stands outside with that length and time is not taken for it.
#[test]
fn equal_times_are_no_home() {
    let user = User::new();
    let out = user.room.at("out");
    user.room.file("f", vec![1; 400_000]);
    user.cp(&[], user.room.at("f"), "vol://v/g").run().sane().exits(0);
    user.cp(&[], "vol://v/g", "vol://v/f").run().sane().exits(0);
    drain(&user, &["--to", text(&out)]).run().sane().exits(0);
    let pen = Pen::new(&user);
    let place = Place { parent: ROOT, name: Name::new(b"f").expect("a name") };
    let before = pen.catalog.lookup(place).expect("there");
    pen.write("f", 1000, b"another");
    haul_volume::contents::sync(&pen.catalog, &pen.client, FileNo(before.id.0)).expect("synced");
    let set = Setting { mtime: Some(before.meta.mtime), ..Setting::default() };
    pen.catalog.set_attr(before.id, set).expect("set");
    assert_eq!(homes(&pen).0, BTreeSet::from([b"f".to_vec()]));
    drain(&user, &["--to", text(&out)]).run().sane().exits(0);
    assert_eq!(homes(&pen).0.len(), 0);
    assert_eq!(&read(out.join("f"))[1000..1007], b"another");
}

/// Goal: what a run of haul has in the volume, which no drain brings, needs no home: neither `drain` nor
/// `destroy` speaks of it. A drain that brings nothing because all is at home says so, and how it comes all
/// the same.
/// Method: a copy that is killed when its temporary is there.
#[test]
fn what_runs_have_needs_no_home() {
    let user = User::new();
    let out = user.room.at("out");
    user.room.file("f", vec![1; 400_000]);
    user.cp(&[], user.room.at("f"), "vol://v/").run().sane().exits(0);
    user.room.file("large", vec![2; 40_000_000]);
    let mut running = user.cp(&["--rate=8MB/s"], user.room.at("large"), "vol://v/").start();
    let begun = || user.names("v").iter().any(|name| name.starts_with(".large.haul~"));
    assert!(running.until(|_| begun()), "its temporary comes");
    running.signal_one(Signal::KILL);
    running.wait();
    assert!(begun() && user.names("v").len() >= 3, "its temporary and its entry stay");
    let pen = Pen::new(&user);
    assert_eq!(homes(&pen), (BTreeSet::new(), 1));
    let nothing = drain(&user, &["--to", text(&out)]).run().exits(0);
    said(&nothing, "1 file has a home already, in ");
    said(&nothing, "; `--all` brings it all the same");
    let all = drain(&user, &["--all", "--to", text(&out)]).run().exits(0);
    said(&all, "1 file has its home in ");
    assert_eq!(read(out.join("f")), vec![1; 400_000]);
    drop(pen);
    user.env(Haul::new(["volume", "destroy", "v"])).run().sane().exits(0);
}

/// Goal: what was brought from here, or here, and is removed or another by now is no home: `stat`,
/// `destroy` and `drain` say so by name, and a drain brings it. Of a file the home is its own path. A drain
/// to another place says what did not come because it is at home elsewhere, and where.
#[test]
fn homes_that_are_lost_are_none() {
    let user = User::new();
    let (data, out, other) = (user.room.dir("data"), user.room.at("out"), user.room.at("other"));
    user.room.dir("data/d");
    for name in ["data/a", "data/d/b", "data/d/c"] {
        user.room.file(name, vec![1; 100_000]);
    }
    symlink("a", data.join("l")).expect("a link");
    tree::settle(&data);
    user.cp(&["-r"], &data, "vol://v/deep/er/").run().sane().exits(0);
    let stat = |path: &str| {
        let words = ["volume", "stat", &*format!("v/{path}"), "--json"];
        let ended = user.env(Haul::new(words)).run().sane().exits(0);
        serde_json::from_slice::<Value>(&ended.stdout).expect("JSON")
    };
    let home = |path: &str| stat(path)["home"].as_str().map(str::to_owned);
    let is = |home: Option<String>, at: PathBuf| {
        home.is_some_and(|home| home.ends_with(&format!(":{}", text(&at))))
    };
    assert!(is(home("deep/er/data/d/b"), data.join("d/b")), "{:?}", home("deep/er/data/d/b"));
    let nothing = drain(&user, &["--to", text(&other)]).run().sane().exits(0);
    said(&nothing, "4 files have a home already, in ");
    said(&nothing, &format!(":{}; `--all`", text(&data)));

    fs::write(data.join("a"), b"another").expect("written");
    fs::remove_file(data.join("d/b")).expect("removed");
    fs::remove_file(data.join("l")).expect("removed");
    symlink("d", data.join("l")).expect("another link");
    let of_a = stat("deep/er/data/a");
    assert!(of_a["home"].is_null(), "{of_a}");
    assert!(of_a["home_lost"].as_str().is_some_and(|why| why.contains("is another by now")), "{of_a}");
    let pen = Pen::new(&user);
    let lost = ["a", "d/b", "l"].map(|name| format!("deep/er/data/{name}").into_bytes());
    assert_eq!(homes(&pen), (BTreeSet::from(lost), 1));
    let gone = format!(
        "deep/er/data/d/b: its home, {}:{}",
        home("deep/er/data/d/c").expect("a home").split_once(':').expect("a host").0,
        text(&data.join("d/b"))
    );
    let refused = user.env(Haul::new(["volume", "destroy", "v"])).run().sane().exits(1);
    said(&refused, "there are 3 files in the volume v that have no home");
    said(&refused, &format!("{gone}, is not there any more"));
    let list =
        user.env(Haul::new(["volume", "drain", "v", "-n", "-i", "--to", text(&out)])).run().sane().exits(0);
    said(&list, "deep/er/data/d/b");
    assert!(!out.exists() && !String::from_utf8_lossy(&list.stdout).contains("d/c"), "{}", list.describe());
    let brought = drain(&user, &["--to", text(&out)]).run().sane().exits(0);
    said(&brought, &format!("{gone}, is not there any more"));
    said(&brought, "3 files have their home in ");
    said(&brought, "1 file more has its home elsewhere and did not come: ");
    assert_eq!(read(out.join("deep/er/data/a")), vec![1; 100_000]);
    assert!(is(home("deep/er/data/a"), out.join("deep/er/data/a")));
    assert_eq!(homes(&pen).0.len(), 0);
    fs::write(out.join("deep/er/data/a"), b"another").expect("written");
    assert_eq!(homes(&pen).0.len(), 1, "what was brought out is looked at too");
}

/// Goal: what was written at home since it was brought from there, or there, is not replaced by the older
/// file of the volume, by whatever way `--to` leads there: it is left and named, and a dry run says the
/// same; what is gone is brought, and so is the older one elsewhere, or with `--force`.
#[test]
fn newer_homes_are_left() {
    let user = User::new();
    let home = user.room.dir("p");
    user.room.dir("p/in");
    for name in ["log", "gone", "same"] {
        user.room.file(&format!("p/in/{name}"), "line 1\n");
    }
    symlink("log", home.join("in/l")).expect("a link");
    symlink("p", user.room.at("way")).expect("a link");
    tree::settle(&home);
    user.cp(&["-r"], home.join("in"), "vol://v/").run().sane().exits(0);
    fs::write(home.join("in/log"), "line 1\nline 2\n").expect("written");
    fs::remove_file(home.join("in/gone")).expect("removed");
    fs::remove_file(home.join("in/l")).expect("removed");
    symlink("same", home.join("in/l")).expect("another link");
    let newer = || {
        assert_eq!(read(home.join("in/log")), b"line 1\nline 2\n");
        assert_eq!(fs::read_link(home.join("in/l")).expect("a link"), Path::new("same"));
    };

    let left = format!(
        ":{}, is another by now, and was left; --force brings the volume's",
        text(&home.join("in/log"))
    );
    let dry = drain(&user, &["-n", "--to", text(&home)]).run().sane().exits(3);
    said(&dry, &left);
    assert_eq!(dry.summary().number("files"), 1, "{}", dry.describe());
    let first = drain(&user, &["--to", text(&user.room.at("way"))]).run().sane().exits(3);
    said(&first, &left);
    assert_eq!(first.summary().number("failed"), 2, "{}", first.describe());
    assert_eq!(read(home.join("in/gone")), b"line 1\n");
    newer();
    for more in [&["--all"][..], &[]] {
        let again = drain(&user, &[more, &["--to", text(&home)]].concat()).run().sane().exits(3);
        said(&again, &left);
        newer();
    }
    let refused = user.env(Haul::new(["volume", "destroy", "v"])).run().sane().exits(1);
    said(&refused, "there are 2 files in the volume v that have no home");

    let out = user.room.at("out");
    drain(&user, &["--to", text(&out)]).run().sane().exits(0);
    assert_eq!(read(out.join("in/log")), b"line 1\n", "elsewhere nothing is lost by it");
    newer();
    fs::write(out.join("in/log"), "line 1\nand more\n").expect("written");
    drain(&user, &["--to", text(&out)]).run().sane().exits(3);
    assert_eq!(read(out.join("in/log")), b"line 1\nand more\n", "of what was brought out too");
    drain(&user, &["--force", "--to", text(&out)]).run().sane().exits(0);
    assert_eq!(read(out.join("in/log")), b"line 1\n");
    user.env(Haul::new(["volume", "destroy", "v"])).run().sane().exits(0);
}

/// Goal: a copy that follows links notes no homes: what came lies where the links lead, and at home stands a
/// link. One that does not follow any does.
#[test]
fn followed_links_have_no_home() {
    let user = User::new();
    let (data, room) = (user.room.dir("data"), user.room.dir("elsewhere"));
    user.room.file("elsewhere/f", "bytes\n");
    user.room.file("data/own", "bytes\n");
    symlink(room.join("f"), data.join("l")).expect("a link");
    symlink(&room, data.join("d")).expect("a link");
    tree::settle(&data);
    let pen = Pen::new(&user);
    for (args, with, without) in [
        (&["-r"][..], 3, 0),
        (&["-r", "-L"], 0, 3),
        (&["-r", "-k"], 0, 3),
        (&["-r", "--copy-unsafe-links"], 0, 3),
    ] {
        user.cp(args, &data, "vol://v/").run().sane().exits(0);
        let (homeless, at_home) = homes(&pen);
        assert_eq!((at_home, homeless.len()), (with, without), "{args:?}: {homeless:?}");
        user.env(Haul::new(["volume", "rm", "-r", "v/data"])).run().sane().exits(0);
    }
}

/// Goal: what an upload by GridFTP has until it is done is no file of anybody's: no drain and no copy brings
/// it, it needs no home, and `ls` says what it is.
#[test]
fn unfinished_uploads_are_left_out() {
    let user = User::new();
    let (data, out) = (user.room.dir("data"), user.room.at("out"));
    let part = ".part.haul~aaaaaa77777776";
    for name in ["f", part, ".users.haul~notes"] {
        user.room.file(&format!("data/{name}"), "bytes\n");
    }
    user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0);
    let ls = user.env(Haul::new(["volume", "ls", "v/data"])).run().sane().exits(0).describe();
    assert_eq!(ls.matches("(of an unfinished copy)").count(), 1, "{ls}");
    assert!(ls.contains(&format!("{part}  (of an unfinished copy)")), "{ls}");
    drain(&user, &["--all", "--to", text(&out)]).run().sane().exits(0);
    let users = BTreeSet::from([b"f".to_vec(), b".users.haul~notes".to_vec()]);
    assert_eq!(files_in(&out.join("data")), users);
    user.cp(&["-r"], "vol://v/data", user.room.dir("copy")).run().sane().exits(0);
    assert_eq!(files_in(&user.room.at("copy/data")), users);
    user.env(Haul::new(["volume", "destroy", "v"])).run().sane().exits(0);
}

/// Goal: where nothing can have a home is refused, and with it what is no option of it.
#[test]
fn what_is_no_place_is_refused() {
    let user = User::new();
    for to in ["vol://v/out", "null://", "vol://w/x", "somewhere:vol://v/x"] {
        let ended = drain(&user, &["--to", to]).run().sane().exits(2);
        said(&ended, "no file system");
    }
    user.env(Haul::new(["volume", "drain", "v"])).run().exits(2);
    user.env(Haul::new(["volume", "drain", "w", "--to", "x"]))
        .run()
        .exits(1)
        .says("no volume w is known here");
}

/// Goal: a drain goes to another host as a copy does, and names that host as the home.
/// Method: a real sshd of this host.
#[test]
fn a_drain_goes_over_ssh() {
    need!("sshd");
    let (user, sshd) = (User::new(), Sshd::start());
    let (data, out) = (user.room.dir("data"), user.room.dir("out"));
    tree::plain(&data, 12, 8, 2_000_000);
    tree::settle(&data);
    user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0);
    let to = sshd.path(&out);
    let to = to.to_str().expect("UTF-8");
    drain(&user, &["--all", "--to", to]).by(&sshd).run().sane().exits(0);
    assert_same(&data, &out.join("data"), ALL);
    let stat = user.env(Haul::new(["volume", "stat", "v/data/big", "--json"])).run().sane().exits(0);
    let stat: Value = serde_json::from_slice(&stat.stdout).expect("JSON");
    assert_eq!(stat["home"].as_str(), Some(&*format!("{to}/data/big")), "{stat}");
}

/// Goal: a drain that is killed at any stage calls nothing at home that is not there, byte for byte; the same
/// command goes on, and at the end all is.
#[test]
fn a_killed_drain_tells_no_lies() {
    let user = User::new();
    let (data, out) = (user.room.dir("data"), user.room.at("out"));
    tree::plain(&data, 9, 60, 9_000_000);
    (0..40).for_each(|n| drop(user.room.file(&format!("data/m{n}"), vec![n; 300_000])));
    tree::settle(&data);
    user.cp(&["-r"], &data, "vol://v/in").run().sane().exits(0);
    user.cp(&["-r"], "vol://v/in/", "vol://v/work").run().sane().exits(0);
    user.env(Haul::new(["volume", "rm", "-r", "v/in"])).run().sane().exits(0);
    let pen = Pen::new(&user);
    let all = files_in(&data).len() as u64;
    let mut some = 0;
    for part in [1, 3, 10, 30] {
        let mut running = drain(&user, &["--to", text(&out), "--rate=6MB/s"]).start();
        let there = || files_in(&out).len() as u64;
        running.until(|_| there() >= all * part / 40);
        running.signal_one(Signal::KILL);
        running.wait();
        let (without, at_home) = homes(&pen);
        some += at_home;
        for path in files_in(&data) {
            let of = [b"work/data/", &path[..]].concat();
            if !without.contains(&of) {
                let there = fs::read(out.join(os(&of))).expect("at home");
                assert!(there == read(data.join(os(&path))), "{:?} is not what is at home", os(&of));
            }
        }
    }
    assert!(some > 0, "nothing was noted before a kill");
    drain(&user, &["--to", text(&out)]).run().sane().exits(0);
    assert_eq!(homes(&pen), (BTreeSet::new(), all));
    assert_same(&data, &out.join("work/data"), ALL);
}

/// Goal: whatever is written, cut, renamed and told while drains run and servers are killed, what is at home
/// is outside with the bytes that the volume has.
/// Method: one thread writes and renames without rest, in files that drains bring again and again; then it
/// stops, and each file that is at home is held against the volume.
#[test]
fn what_is_written_meanwhile_is_not_at_home() {
    let user = User::new();
    let (data, out) = (user.room.dir("data"), user.room.dir("out"));
    (0..30).for_each(|n| {
        drop(user.room.file(&format!("data/f{n}"), vec![n; 150_000 * (1 + usize::from(n) % 3)]))
    });
    tree::settle(&data);
    user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0);
    user.cp(&["-r"], "vol://v/data/", "vol://v/w").run().sane().exits(0);
    let over = AtomicBool::new(false);
    let place = |parent, name: &str| Place { parent, name: Name::new(name.as_bytes()).expect("a name") };
    thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let pen = Pen::new(&user);
            let dir = pen.catalog.lookup(place(ROOT, "w")).expect("there").id;
            let mut rng = fastrand::Rng::with_seed(11);
            while !over.load(Ordering::Acquire) {
                let (one, other) = (format!("f{}", rng.u8(..30)), format!("f{}", rng.u8(..30)));
                let Ok(entry) = pen.catalog.lookup(place(dir, &one)) else { continue };
                let file = FileNo(entry.id.0);
                match rng.u8(..8) {
                    0 => drop(pen.client.truncate(file, rng.u64(..200_000)).wait()),
                    1 => drop(pen.catalog.rename(place(dir, &one), place(dir, &other), false)),
                    2 => {
                        let _ = pen.catalog.rename(place(dir, &one), place(dir, "x"), false);
                        let _ = pen.catalog.rename(place(dir, "x"), place(dir, &one), true);
                    }
                    3 => drop(haul_volume::contents::sync(&pen.catalog, &pen.client, file)),
                    4 => drop(haul_volume::contents::look(&pen.catalog, &pen.client, file)),
                    _ => {
                        let (at, len) = (rng.u64(..150_000), rng.usize(1..80_000));
                        drop(pen.client.write(file, at, vec![rng.u8(..); len]).wait());
                    }
                }
                thread::sleep(std::time::Duration::from_millis(rng.u64(..8)));
            }
        });
        for round in 0..5 {
            let running = drain(&user, &["--to", text(&out), "--patience=30s"]).start();
            if round == 2 {
                user.kill(1);
                user.start();
            }
            running.wait().sane();
        }
        over.store(true, Ordering::Release);
        writing.join().expect("it writes");
    });
    let pen = Pen::new(&user);
    let (without, _) = homes(&pen);
    let now = user.room.dir("now");
    user.cp(&["-r"], "vol://v/w", &now).run().sane().exits(0);
    let mut held = 0;
    for path in files_in(&now).into_iter().filter(|path| !without.contains(path)) {
        held += 1;
        let (there, here) = (fs::read(out.join(os(&path))).expect("at home"), read(now.join(os(&path))));
        assert!(there == here, "{:?} is not what is at home", os(&path));
    }
    drain(&user, &["--to", text(&out)]).run().sane().exits(0);
    assert_eq!(homes(&pen).0.len(), 0, "{held} were at home before");
    // Names of before are there too: nothing is removed at home.
    for path in files_in(&now) {
        assert!(read(out.join(os(&path))) == read(now.join(os(&path))), "{:?}", os(&path));
    }
}
