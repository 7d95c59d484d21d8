//! Hard links, with -H: names of one file are names of one file at the destination, whatever stood there,
//! whatever fails, and whenever a run ends.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::support::compare::{ALL, assert_no_debris, assert_none_torn, assert_same};
use crate::support::mount::Tmpfs;
use crate::support::run::Outcome;
use crate::support::way::{Way, contents};
use crate::support::{Room, age, procs, set_mode};

fn link(from: &Path, to: &Path) {
    fs::hard_link(from, to).unwrap_or_else(|error| panic!("{} to {}: {error}", from.display(), to.display()));
}

/// A large and a small file, an empty one, a symbolic link and one with a hole, each with names in several
/// directories; and files that have one name.
fn linked(data: &Path) {
    fs::create_dir_all(data.join("d/e")).expect("make directories");
    fs::create_dir_all(data.join("z")).expect("make directories");
    fs::write(data.join("large"), vec![5; 3 << 20]).expect("write");
    fs::write(data.join("d/small"), "small").expect("write");
    fs::write(data.join("empty"), "").expect("write");
    fs::File::create(data.join("d/holes")).and_then(|file| file.set_len(2 << 20)).expect("make a hole");
    symlink("nowhere", data.join("d/link")).expect("link");
    fs::write(data.join("alone"), "alone").expect("write");
    for (from, to) in [
        ("large", "d/large"),
        ("large", "z/large"),
        ("d/small", "a-small"),
        ("d/small", "d/e/small"),
        ("d/small", "d/small too"),
        ("empty", "z/empty"),
        ("d/holes", "holes"),
        ("d/link", "z/link"),
    ] {
        link(&data.join(from), &data.join(to));
    }
}

/// Names of each inode with several, by the first of them.
fn sets(root: &Path) -> Vec<Vec<PathBuf>> {
    let (mut all, mut dirs) = (BTreeMap::<u64, Vec<PathBuf>>::new(), vec![root.to_path_buf()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).expect("read a directory") {
            let path = entry.expect("an entry").path();
            let stat = fs::symlink_metadata(&path).expect("stat");
            match stat.is_dir() {
                true => dirs.push(path),
                false => all
                    .entry(stat.ino())
                    .or_default()
                    .push(path.strip_prefix(root).expect("it is below").into()),
            }
        }
    }
    let mut sets: Vec<_> = all.into_values().filter(|names| names.len() > 1).collect();
    sets.iter_mut().for_each(|names| names.sort());
    sets.sort();
    sets
}

fn rsync_would(source: &Path, copy: &Path) -> String {
    let mut words = [source, copy].map(|path| path.as_os_str().to_owned());
    words.iter_mut().for_each(|word| word.push("/"));
    let output =
        Command::new("rsync").args(["-aHAXn", "--delete", "-i"]).args(words).output().expect("run rsync");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Goal: where another file takes the place of one with other names while that is read, it has its own
/// content and none of the names, which are names of what they were.
/// Method: the first of three is renamed over while it comes, as editors do; it comes slowly, and is far more
/// than what is read ahead.
#[test]
fn what_takes_the_place_of_a_name_is_no_name() {
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        let names = ["a", "b", "c"].map(|name| data.join(name));
        fs::write(&names[0], vec![1; 48 << 20]).expect("write");
        names[1..].iter().for_each(|name| link(&names[0], name));
        fs::write(data.join("new"), vec![2; 1 << 20]).expect("write");
        let sources = [&names[0], &names[1], &names[2]];
        let mut run = way.cp(&["-aH", "--rate", "16MiB/s", "--memory", "16MiB"], &sources, &sink).start();
        let begun = run.until(|_| {
            let mut entries = fs::read_dir(&sink).expect("read a directory").flatten();
            entries.any(|entry| entry.metadata().is_ok_and(|stat| stat.is_file() && stat.size() > 1 << 20))
        });
        assert!(begun, "{}: it comes", way.name());
        fs::rename(data.join("new"), &names[0]).expect("rename");
        run.wait().sane().exits(0);
        for name in names {
            let copy = sink.join(name.file_name().expect("a name"));
            assert!(fs::read(&copy).expect("read") == fs::read(&name).expect("read"), "{}", copy.display());
        }
        assert_eq!(sets(&sink), [[PathBuf::from("b"), PathBuf::from("c")]], "{}", way.name());
        assert_no_debris(&sink);
    }
}

/// Goal: names of one file are names of one file at the destination, in whichever directories they lie, and
/// its data moves once; rsync would change nothing, and neither does a second run. Without -H each name is a
/// file, and they are counted.
/// Method: each way, with and without.
#[test]
fn sets_are_kept_and_sent_once() {
    need!("rsync");
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        linked(&data);
        let copy = sink.join("data");
        let run = way.cp(&["-aHAX", "-v"], &[&data], &sink).run().sane().exits(0);
        let summary = run.summary();
        let counts = ["files", "symlinks", "hard_links", "unchanged"].map(|name| summary.number(name));
        assert_eq!(counts, [5, 1, 8, 0], "{}: {}", way.name(), run.describe());
        assert_eq!(summary.number("bytes_sent"), (3 << 20) + 10, "{}: {}", way.name(), run.describe());
        assert_eq!(sets(&copy), sets(&data), "{}", way.name());
        assert_same(&data, &copy, ALL);
        assert_eq!(rsync_would(&data, &copy), "", "{}", way.name());
        let named: Vec<_> = run.events().into_iter().filter(|event| event["link_of"].is_object()).collect();
        assert_eq!(named.len(), 8, "{}", run.describe());
        for event in named {
            let [name, first] = [&event["path"], &event["link_of"]["path"]]
                .map(|path| sink.join(path.as_str().expect("a path")));
            assert_eq!(fs::symlink_metadata(name).unwrap().ino(), fs::symlink_metadata(first).unwrap().ino());
            assert!(event["change"].as_str().is_some_and(|change| change.starts_with('h')), "{event}");
        }
        let again = way.cp(&["-aHAX"], &[&data], &sink).run().sane().exits(0).summary();
        let counts = ["files", "hard_links", "unchanged", "bytes_sent"].map(|name| again.number(name));
        assert_eq!(counts, [0, 0, 12, 0], "{}", way.name());
        assert_no_debris(&sink);
        let bare = room.dir("bare");
        let run = way.cp(&["-a"], &[&data], &bare).run().sane().exits(0);
        assert_eq!(sets(&bare.join("data")), Vec::<Vec<PathBuf>>::new());
        let counted = run.summary().0["not_kept"].to_string();
        assert!(counted.contains("hard links copied as separate files"), "{counted}");
        assert_eq!(rsync_would(&data, &copy), "");
    }
}

/// Goal: FIFOs, sockets and devices have names as files do: rsync would change nothing, neither does a second
/// run, and a name that is another such thing becomes one again. Without -H each is made by itself.
/// Method: each way, with -i as a dry and a real run; then an attribute of a set differs, and a name.
#[test]
fn special_files_have_names() {
    need!("root", "rsync");
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        if !special_sets(&data) {
            return eprintln!("skipped: no devices here");
        }
        let names_in = |run: &Outcome| {
            let lines = String::from_utf8(run.stdout.clone()).expect("text");
            let mut kinds: Vec<_> = lines
                .lines()
                .filter(|line| line.starts_with('h'))
                .map(|line| line[..11].to_owned())
                .collect();
            kinds.sort();
            kinds
        };
        for options in [&["-aHAXni"][..], &["-aHAXi"]] {
            let run = way.plain(options, &[&data], &sink).run().sane().exits(0);
            let expected = ["hD+++++++++", "hS+++++++++", "hS+++++++++", "hS+++++++++"];
            assert_eq!(names_in(&run), expected, "{} {options:?}: {}", way.name(), run.describe());
        }
        let copy = sink.join("data");
        assert_eq!(sets(&copy), sets(&data), "{}", way.name());
        assert_eq!(rsync_would(&data, &copy), "", "{}", way.name());
        let again = way.plain(&["-aHAXi"], &[&data], &sink).run().sane().exits(0);
        assert_eq!(again.stdout, b"", "{}", way.name());

        // As for files: others may be names of it, so that rights alone have it made anew.
        set_mode(&data.join("null"), 0o600);
        fs::remove_file(copy.join("d/pipe")).expect("rm");
        assert!(make(&copy.join("d/pipe"), FileType::Fifo, 0));
        let dry = way.cp(&["-aHAX", "-n"], &[&data], &sink).run().sane().exits(0).summary();
        let real = way.cp(&["-aHAX"], &[&data], &sink).run().sane().exits(0).summary();
        for summary in [&dry, &real] {
            assert_eq!(summary.number("failed"), 0, "{}", way.name());
            assert!(summary.number("hard_links") >= 1, "{}", way.name());
        }
        assert_eq!(sets(&copy), sets(&data), "{}", way.name());
        assert_eq!(rsync_would(&data, &copy), "", "{}", way.name());

        let bare = room.dir("bare");
        let summary = way.cp(&["-a"], &[&data], &bare).run().sane().exits(0).summary();
        assert_eq!(["specials", "hard_links"].map(|name| summary.number(name)), [7, 0], "{}", way.name());
        assert_eq!(sets(&bare.join("data")), Vec::<Vec<PathBuf>>::new());
        assert_no_debris(&sink);
    }
}

fn make(path: &Path, kind: FileType, rdev: u64) -> bool {
    mknodat(CWD, path, kind, Mode::from(0o640), rdev).is_ok()
}

/// A FIFO with three names, a socket and a device with two. False: none may be made here.
fn special_sets(data: &Path) -> bool {
    fs::create_dir(data.join("d")).expect("make a directory");
    assert!(make(&data.join("pipe"), FileType::Fifo, 0) && make(&data.join("d/socket"), FileType::Socket, 0));
    if !make(&data.join("null"), FileType::CharacterDevice, makedev(1, 3)) {
        return false;
    }
    for (from, to) in [("pipe", "d/pipe"), ("pipe", "pipe too"), ("d/socket", "socket"), ("null", "d/null")] {
        link(&data.join(from), &data.join(to));
    }
    true
}

/// Goal: names are told apart over all sources of a command.
/// Method: two directories and a file, each with a name of one file.
#[test]
fn sets_cross_sources() {
    for way in Way::all() {
        let room = Room::new();
        let (one, two, sink) = (room.dir("one"), room.dir("two"), room.dir("sink"));
        fs::write(one.join("a"), "x").expect("write");
        link(&one.join("a"), &two.join("b"));
        link(&one.join("a"), &room.at("c"));
        let run = way.cp(&["-aH"], &[&one, &two, &room.at("c")], &sink).run().sane().exits(0);
        assert_eq!(run.summary().number("hard_links"), 2, "{}", run.describe());
        let names = ["c", "one/a", "two/b"].map(PathBuf::from).to_vec();
        assert_eq!(sets(&sink), [names], "{}", way.name());
    }
}

/// Goal: a name that is missing, that is another file, or a symbolic link, becomes a name of the file again,
/// and no byte is sent; a file whose content changed takes its names along. Each is told as rsync tells it.
/// Method: each mended in a run of its own, seen before by a dry run that changes nothing.
#[test]
fn what_differs_is_mended() {
    need!("rsync");
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        linked(&data);
        let copy = sink.join("data");
        way.cp(&["-aHAX"], &[&data], &sink).run().sane().exits(0);
        fs::remove_file(copy.join("d/large")).expect("remove");
        fs::remove_file(copy.join("d/e/small")).expect("remove");
        fs::write(copy.join("d/e/small"), "another").expect("write");
        fs::remove_file(copy.join("z/large"))
            .and_then(|()| symlink("large", copy.join("z/large")))
            .expect("link");
        // As large and as old as it is to be, and no name of it.
        fs::copy(copy.join("empty"), copy.join("other")).expect("copy");
        let time = fs::metadata(copy.join("empty")).and_then(|stat| stat.modified()).expect("stat");
        fs::File::options()
            .write(true)
            .open(copy.join("other"))
            .and_then(|f| f.set_modified(time))
            .expect("touch");
        fs::rename(copy.join("other"), copy.join("z/empty")).expect("rename");
        let mut foreseen = None;
        for dry in [true, false] {
            let options = if dry { &["-aHAXni"][..] } else { &["-aHAXi"] };
            let run = way.plain(options, &[&data], &sink).run().exits(0);
            let stdout = String::from_utf8(run.stdout.clone()).expect("text");
            let mut names: Vec<_> =
                stdout.lines().filter(|line| line.starts_with("hf")).map(str::to_owned).collect();
            names.sort();
            assert_eq!(names.len(), 4, "{}", run.describe());
            assert_eq!(*foreseen.get_or_insert_with(|| names.clone()), names, "{}", run.describe());
            assert!(names.iter().any(|line| line.contains("hf+++++++++ ") && line.contains(" => data/")));
            assert!(names.iter().any(|line| line.starts_with("hf          ")), "{}", run.describe());
            assert_eq!(sets(&copy) == sets(&data), !dry, "{}", run.describe());
        }
        assert_same(&data, &copy, ALL);
        assert_eq!(rsync_would(&data, &copy), "");
        fs::write(data.join("d/small"), "it is another now").expect("write");
        let run = way.cp(&["-aHAX"], &[&data], &sink).run().sane().exits(0);
        assert_eq!(run.summary().number("files"), 1, "{}", run.describe());
        assert_eq!(sets(&copy), sets(&data));
        assert_same(&data, &copy, ALL);
        assert_no_debris(&sink);
    }
}

/// Goal: what stands is left where that is asked for: with --no-clobber each name that is taken; of a first
/// name that was left, no other is made: the next is a file of its own, and the rest are names of that. A
/// name that is newer stays with --update. In place the first is the same inode, and the names are names of
/// it.
/// Method: destinations where some of them stand.
#[test]
fn what_stands_is_left_as_asked() {
    for way in Way::all() {
        let room = Room::new();
        let data = room.dir("data");
        fs::write(data.join("a"), "right").expect("write");
        for name in ["b", "c"] {
            link(&data.join("a"), &data.join(name));
        }
        let fresh = |name: &str, stands: &[&str]| {
            let copy = room.dir(&format!("{name}/data"));
            for name in stands {
                fs::write(copy.join(name), "stood there").expect("write");
            }
            copy
        };
        let run = |copy: &Path, options: &[&str]| {
            way.cp(options, &[&data], copy.parent().expect("it has one")).run().sane().exits(0)
        };
        let read = |copy: &Path, name: &str| fs::read_to_string(copy.join(name)).expect("read");
        let names = |copy: &Path| sets(copy).concat();
        let of = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();

        // Which of them is the first is the directory's to say.
        let all = ["a", "b", "c"];
        for left in all {
            let copy = fresh(&format!("left-{left}"), &[left]);
            run(&copy, &["-aH", "--no-clobber"]);
            let others: Vec<&str> = all.into_iter().filter(|name| *name != left).collect();
            assert_eq!(names(&copy), of(&others), "{} {left}", way.name());
            assert_eq!((read(&copy, left), read(&copy, others[0])), ("stood there".into(), "right".into()));
            // It is newer than the source.
            let copy = fresh(&format!("newer-{left}"), &[left]);
            run(&copy, &["-aH", "--update"]);
            assert_eq!(names(&copy), of(&others), "{} {left}", way.name());
            assert_eq!((read(&copy, left), read(&copy, others[0])), ("stood there".into(), "right".into()));
        }
        let copy = fresh("in-place", &all);
        let inodes = all.map(|name| fs::metadata(copy.join(name)).expect("stat").ino());
        run(&copy, &["-aH", "--in-place"]);
        assert_eq!(names(&copy), of(&all));
        let now = fs::metadata(copy.join("a")).expect("stat").ino();
        assert!(inodes.contains(&now) && read(&copy, "c") == "right", "{}", way.name());
    }
}

/// Goal: what the first cannot be, the others are: if it cannot take its name the next one comes as a file,
/// and the rest are names of it; the run is partial, and says which failed.
/// Method: directories stand where a file is to be, one after the other.
#[test]
fn a_first_that_fails_takes_none_along() {
    for way in Way::all() {
        let room = Room::new();
        let data = room.dir("data");
        let all = ["a", "b", "c", "d"];
        fs::write(data.join("a"), vec![7; 600_000]).expect("write");
        all[1..].iter().for_each(|name| link(&data.join("a"), &data.join(name)));
        for blocked in all {
            let copy = room.dir(&format!("{blocked}/data"));
            fs::create_dir(copy.join(blocked)).expect("mkdir");
            let run = way.cp(&["-aH"], &[&data], copy.parent().unwrap()).run().sane().exits(3);
            assert!(run.stderr.contains("a directory stands there"), "{}", run.describe());
            let others: Vec<_> = all.into_iter().filter(|name| *name != blocked).map(PathBuf::from).collect();
            assert_eq!(sets(&copy), std::slice::from_ref(&others), "{}", run.describe());
            assert_eq!(fs::read(copy.join(&others[0])).expect("read"), vec![7; 600_000]);
        }
    }
}

/// Goal: where there can be no hard links, or no more of a file, each name becomes a file that is whole, the
/// run is partial and says so of each, this time and the next.
/// Method: the kernel refuses each link, as a file system without them does, or one with too many names.
#[test]
fn without_links_each_name_is_a_file() {
    need!("strace");
    for errno in ["EPERM", "EMLINK"] {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        fs::write(data.join("a"), vec![3; 600_000]).expect("write");
        ["b", "c"].iter().for_each(|name| link(&data.join("a"), &data.join(name)));
        let injection = format!("linkat:error={errno}");
        for round in 0..2 {
            let run =
                Way::Here.cp(&["-aH"], &[&data], &sink).injected(std::slice::from_ref(&injection)).run();
            let run = run.sane().exits(3);
            let summary = run.summary();
            assert_eq!(
                (summary.number("failed"), summary.number("hard_links")),
                (2, 0),
                "{}",
                run.describe()
            );
            assert!(run.stderr.contains("a file of its own"), "{errno} {round}: {}", run.describe());
            for event in run.events().iter().filter(|event| event["event"] == "failed") {
                let [path, text] = ["path", "text"].map(|field| event[field].as_str().expect("text"));
                let mut others = ["data/a", "data/b", "data/c"].into_iter().filter(|name| *name != path);
                assert!(!others.any(|name| text.contains(name)), "{path} has the words of another: {text}");
            }
            assert!(summary.0["not_kept"].to_string().contains("hard links"), "{}", run.describe());
            for name in ["a", "b", "c"] {
                let path = sink.join("data").join(name);
                assert_eq!(fs::metadata(&path).expect("stat").nlink(), 1);
                assert_eq!(fs::read(&path).expect("read"), vec![3; 600_000]);
            }
            assert_no_debris(&sink);
        }
        // As soon as it can be, it is.
        Way::Here.cp(&["-aH"], &[&data], &sink).run().sane().exits(0);
        assert_eq!(sets(&sink.join("data")), sets(&data));
    }
}

/// Goal: a name on another file system than its file is a file of its own, and is told.
/// Method: a mount below the destination.
#[test]
fn names_on_another_file_system_are_files() {
    need!("tmpfs");
    let room = Room::new();
    let data = room.dir("data");
    room.dir("data/other");
    let other = room.dir("sink/data/other");
    let _tmpfs = Tmpfs::mount(&other, "size=16m");
    fs::write(data.join("a"), "x").expect("write");
    for name in ["b", "other/c", "other/d"] {
        link(&data.join("a"), &data.join(name));
    }
    let copy = room.at("sink/data");
    let run = Way::Here.cp(&["-aH"], &[&data], room.at("sink")).run().sane().exits(3);
    let names = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
    assert_eq!(sets(&copy), [names(&["a", "b"]), names(&["other/c", "other/d"])], "{}", run.describe());
    assert!(run.stderr.contains("another file system"), "{}", run.describe());
}

/// Goal: names that the destination takes for one are one entry's; the other fails.
/// Method: a directory of an ext4 that folds case.
#[test]
fn folded_names_are_no_links() {
    need!("ext4");
    let room = Room::new();
    let image = room.at("image");
    fs::File::create(&image).and_then(|file| file.set_len(64 << 20)).expect("make an image");
    let made = Command::new("mkfs.ext4").args(["-q", "-O", "casefold"]).arg(&image).status();
    let at = room.dir("folds");
    let mounted = made.is_ok_and(|made| made.success())
        && Command::new("mount")
            .args(["-o", "loop"])
            .args([&image, &at])
            .status()
            .is_ok_and(|done| done.success());
    if !mounted {
        return eprintln!("skipped: no ext4 that folds case");
    }
    struct Mount(PathBuf);
    impl Drop for Mount {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg(&self.0).status();
        }
    }
    let _mount = Mount(at.clone());
    let (data, copy) = (room.dir("data"), at.join("data"));
    fs::create_dir(&copy).expect("mkdir");
    if !Command::new("chattr").arg("+F").arg(&copy).status().is_ok_and(|done| done.success()) {
        return eprintln!("skipped: no directory that folds case");
    }
    fs::write(data.join("name"), "x").expect("write");
    ["NAME", "other"].iter().for_each(|name| link(&data.join("name"), &data.join(name)));
    for _ in 0..2 {
        let run = Way::Here.cp(&["-aH"], &[&data], &at).run().sane().exits(3);
        assert!(run.stderr.contains("takes both names for one"), "{}", run.describe());
        assert_eq!(sets(&copy).len(), 1);
        assert_eq!(sets(&copy)[0].len(), 2);
    }
}

/// Goal: a kill at any moment leaves no name of other content, and the same command completes the sets.
/// Method: strace kills at the nth link, rename or sync of a thread; inodes and bytes after each, and after
/// the next run.
#[test]
fn kills_leave_no_wrong_name() {
    need!("strace");
    let room = Room::new();
    let data = room.dir("data");
    for i in 0..40 {
        let dir = room.dir(&format!("data/d{i}"));
        let len = if i % 4 == 0 { 400_000 } else { 100 };
        fs::write(dir.join("first"), vec![i; len]).expect("write");
        for to in 0..3 {
            let other = room.dir(&format!("data/e{to}"));
            link(&dir.join("first"), &other.join(format!("{i}")));
        }
    }
    let mut hits = 0;
    for (calls, nths) in [
        ("linkat", &[1, 2, 5, 20, 60][..]),
        ("/^rename", &[1, 3, 9, 30]),
        ("fsync,fdatasync,syncfs", &[1, 2, 4]),
    ] {
        for (nth, stands) in nths.iter().flat_map(|nth| [(nth, false), (nth, true)]) {
            let sink = room.dir(&format!("sink-{}-{nth}-{stands}", calls.trim_matches(['/', '^'])));
            if stands {
                // Other files stand where names are to be.
                for to in 0..3 {
                    let dir = sink.join(format!("data/e{to}"));
                    fs::create_dir_all(&dir).expect("mkdir");
                    (0..40).for_each(|i| fs::write(dir.join(format!("{i}")), "stood there").expect("write"));
                }
            }
            let injection = format!("{calls}:signal=SIGKILL:when={nth}");
            let run = Way::Here.cp(&["-aH"], &[&data], &sink).injected(&[injection]).start();
            let mark = run.mark.clone();
            let ended = run.wait().sane();
            hits += u32::from(ended.was_killed());
            procs::wait_gone(&mark);
            if !stands {
                assert_none_torn(&data, &sink.join("data"));
            }
            let copy = sink.join("data");
            for names in if copy.exists() { sets(&copy) } else { Vec::new() } {
                // A temporary may be a name, too.
                let names: Vec<_> =
                    names.into_iter().filter(|name| !name.to_string_lossy().contains("haul~")).collect();
                assert!(
                    names.is_empty()
                        || sets(&data).iter().any(|set| names.iter().all(|name| set.contains(name))),
                    "{names:?}"
                );
            }
            Way::Here.cp(&["-aH"], &[&data], &sink).run().sane().exits(0);
            assert_eq!(sets(&sink.join("data")), sets(&data), "{calls} {nth}");
            assert_same(&data, &sink.join("data"), ALL);
            assert_no_debris(&sink);
        }
    }
    assert!(hits > 0, "no kill hit a run");
}

/// Goal: a user keeps hard links as root does.
/// Method: a tree of nobody's, copied by nobody, with directories that nobody may write.
#[test]
fn users_keep_hard_links() {
    need!("setpriv", "rsync");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    linked(&data);
    crate::support::set_mode(&data.join("d/e"), 0o555);
    for path in [&data, &sink] {
        let given = Command::new("chown").args(["-hR", "65534:65534"]).arg(path).status().expect("run chown");
        assert!(given.success());
    }
    for _ in 0..2 {
        Way::Here.cp(&["-aHAX"], &[&data], &sink).run_by_nobody(&room).run().sane().exits(0);
        assert_eq!(sets(&sink.join("data")), sets(&data));
    }
    assert_eq!(rsync_would(&data, &sink.join("data")), "");
}

/// Goal: names of a file that lies behind a link that is followed (-K) are names of it, in the same directory
/// and in others, and a second run changes nothing.
#[test]
fn names_behind_links_that_are_followed() {
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        room.file("data/l/deep/f", "f");
        for name in ["l/deep/g", "l/g", "z"] {
            link(&data.join("l/deep/f"), &data.join(name));
        }
        room.dir("out");
        symlink("../out", sink.join("l")).expect("symlink");
        age(&data);
        for run in 0..2 {
            let options = &["-aHK"];
            let ended = way.cp(options, &[contents(&data)], &sink).run().sane().exits(0).summary();
            assert_eq!(ended.number("hard_links"), if run == 0 { 3 } else { 0 }, "{}", way.name());
            let inode = |name: &str| fs::symlink_metadata(sink.join(name)).expect("stat").ino();
            for name in ["l/deep/g", "l/g", "z"] {
                assert_eq!(inode(name), inode("l/deep/f"), "{} {name}", way.name());
            }
            assert!(sink.join("l").is_symlink());
        }
        assert_no_debris(&sink);
    }
}
