//! What is said of a part of a file that is copied (`--range`, `--to`), and what a dry run says of copies in
//! place.

use std::fs;
use std::path::Path;

use rustix::process::Signal;

use crate::ranges::{LEN, Pair};
use crate::support::run::Haul;
use crate::support::way::Way;
use crate::support::{procs, read, set_mode};

/// Goal: a list tells of the part that goes into a file, and not how the whole of that file differs from it.
/// Method: a part into a file of another length, mode and time, and into none; lists of dry runs and copies,
/// short, itemized and of names alone, and the events.
#[test]
fn lists_tell_of_the_part() {
    let pair = Pair::new();
    set_mode(&pair.source, 0o640);
    for (stood, letters) in [(true, "f........."), (false, "f+++++++++")] {
        let sink = pair.stands(stood);
        let part = |options: &[&str]| {
            let options = [&["--range=7:3000001", "--to=5"], options].concat();
            let done = Way::Here.plain(&options, &[&pair.source], &sink).run().sane().exits(0);
            String::from_utf8_lossy(&done.stdout).into_owned()
        };
        assert!(part(&["-n"]).contains("(3.00 MB from byte 7 on, to byte 5)"), "{}", part(&["-n"]));
        let line = format!(">{letters} file (3000001 bytes from byte 7 on, to byte 5)\n");
        assert_eq!(part(&["-n", "-i"]), line);
        assert_eq!(part(&["-n", "-i", "-0"]), format!(">{letters} file\0"));
        let events = Way::Here.cp(&["-n", "-v", "--range=7:3000001", "--to=5"], &[&pair.source], &sink);
        let events = events.run().sane().exits(0);
        let events = String::from_utf8_lossy(&events.stdout).into_owned();
        assert!(events.contains(&format!("\"change\":\">{letters}\"")), "{events}");
        assert_eq!(part(&["-i"]), line);
    }
    // All of a file is compared with the part that it is to be.
    let sink = pair.stands(true);
    let run = |options: &[&str]| {
        let run = Way::Here.plain(options, &[&pair.source], &sink).run().sane().exits(0);
        String::from_utf8_lossy(&run.stdout).into_owned()
    };
    assert_eq!(run(&["-i", "--range=24000000:"]), ">f.stp..... file (3 bytes from byte 24000000 on)\n");
}

/// Goal: the manifest of a part whose end is not typed says its length, and is counted; where there is no
/// line that b3sum could check, stdout is refused for it before anything is done.
#[test]
fn the_manifest_of_a_part_is_counted() {
    let pair = Pair::new();
    let list = pair.room.at("sums");
    let text = list.to_str().expect("utf-8");
    let len = LEN as u64 - 7;
    for (to, plain, json) in [(&["--to=5"][..], 0, 1), (&[], 1, 0)] {
        let sink = pair.stands(true);
        let options = [&["--range=7:", "--manifest", text], to].concat();
        for force in [&[][..], &["--force"]] {
            let options = [&options[..], force].concat();
            let done = Way::Here.cp(&options, &[&pair.source], &sink).run().sane().exits(0);
            let counts = &done.summary().0["manifest"];
            assert_eq!((counts["plain"].as_u64(), counts["json"].as_u64()), (Some(plain), Some(json)));
            let line = fs::read_to_string(pair.room.at("sums.json")).expect("a list");
            let line: serde_json::Value = serde_json::from_str(&line).expect("one line");
            assert_eq!(line["part"]["length"], len);
        }
        let told = Way::Here.plain(&options, &[&pair.source], &sink).run().sane().exits(0);
        assert!(told.stderr.contains("  manifest: 1 "), "{}", told.describe());
    }
    let sink = pair.stands(true);
    let options = ["--range=7:", "--to=5", "--manifest", "-"];
    let refused = Way::Here.plain(&options, &[&pair.source], &sink).run().sane().exits(2);
    assert!(refused.says("give it a file").stdout.is_empty());
    assert!(read(&sink) == pair.old);
}

/// Goal: what is said of a copy of a part says which part: the summary, the events, the list of copies that
/// run and of those that died.
/// Method: a part whose end is not typed, into a file and as one, with each of them.
#[test]
fn a_part_is_told_as_one() {
    let pair = Pair::new();
    let len = LEN as u64 - 7;
    for to in [Some(5), None] {
        let options: Vec<String> =
            ["--range=7:".to_owned()].into_iter().chain(to.map(|to| format!("--to={to}"))).collect();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let sink = pair.stands(true);
        let slow = [&options[..], &["--rate=4MiB/s"]].concat();
        set_mode(&pair.room.dir("run"), 0o700);
        let mut run =
            Way::Here.cp(&slow, &[&pair.source], &sink).env("XDG_RUNTIME_DIR", pair.room.at("run")).start();
        assert!(run.until(|run| procs::written(&run.near()) >= 3 << 20), "it was over too early");
        let ctl = |words: &[&str]| {
            let list =
                Haul::new(["ctl", "list"]).args(words).env("XDG_RUNTIME_DIR", pair.room.at("run")).run();
            String::from_utf8_lossy(&list.exits(0).stdout).into_owned()
        };
        let into = if to.is_some() { ", to byte 5" } else { "" };
        let what = format!("(all from byte 7 on{into})");
        assert!(ctl(&[]).contains(&what), "{}", ctl(&[]));
        assert!(ctl(&["--json"]).contains(&what), "{}", ctl(&["--json"]));
        let mark = run.mark.clone();
        run.signal(Signal::KILL);
        run.wait();
        procs::wait_gone(&mark);
        let dead = Haul::new(["clean", "-n"]).args([&pair.sink]).run().exits(0);
        assert!(String::from_utf8_lossy(&dead.stdout).contains(&what), "{}", dead.describe());
        let done = Way::Here.plain(&options, &[&pair.source], &sink).run().sane().exits(0);
        let line = format!(
            "  part: {len} bytes from byte 7 on of the source{}\n",
            match to {
                Some(_) => ", to byte 5 of the destination",
                None => ", which are all of the destination",
            }
        );
        assert!(done.stderr.contains(&line), "{}", done.describe());
        let done =
            Way::Here.cp(&[&options[..], &["--force"]].concat(), &[&pair.source], &sink).run().exits(0);
        let part = &done.summary().0["part"];
        assert_eq!(*part, serde_json::json!({"offset": 7, "length": len, "to": to}));
    }
    let all = Way::Here.cp(&[], &[&pair.source], pair.stands(false)).run().exits(0);
    assert!(all.summary().0["part"].is_null());
}

/// Goal: a dry run refuses what the copy refuses: files that may not be written in place, that have a second
/// name of another entry or of a source; and a destination in which nothing can be made.
/// Method: each of them as a user who is not root, dry and for real, with the same words.
#[test]
fn a_dry_run_refuses_what_the_copy_does() {
    need!("setpriv");
    let pair = Pair::new();
    let (tree, sink) = (pair.room.dir("tree"), pair.room.dir("copy"));
    for name in ["a", "b", "c"] {
        fs::write(tree.join(name), name.repeat(7)).expect("write");
    }
    // One file under two names, one that may not be written, one that is a source's.
    fs::write(sink.join("a"), "old").expect("write");
    fs::hard_link(sink.join("a"), sink.join("b")).expect("link");
    fs::write(sink.join("c"), "closed").expect("write");
    set_mode(&sink.join("c"), 0o444);
    for path in [&sink, &sink.join("a"), &sink.join("c")] {
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).expect("chown");
    }
    let contents = crate::support::way::contents(&tree);
    let words = |options: &[&str], source: &std::ffi::OsStr, to: &Path, code: i32, words: &str| {
        for dry in [&["-n"][..], &[]] {
            let options = [options, dry].concat();
            let run = Way::Here.cp(&options, &[source], to).run_by_nobody(&pair.room).run().sane();
            let told = run.exits(code).says(words);
            assert_eq!(told.summary().number("failed") > 0, code == 3, "{}", told.describe());
        }
    };
    words(&["-r", "--in-place"], &contents, &sink, 3, "another name of a file");
    for name in ["a", "b", "c"] {
        fs::remove_file(sink.join(name)).expect("remove");
    }
    fs::write(sink.join("c"), "closed").expect("write");
    set_mode(&sink.join("c"), 0o444);
    words(&["--in-place"], tree.join("c").as_os_str(), &sink.join("c"), 3, "permission denied");
    words(&["--range=0:1", "--to=5"], tree.join("c").as_os_str(), &sink.join("c"), 3, "permission denied");
    fs::hard_link(tree.join("b"), sink.join("a")).expect("link");
    set_mode(&tree.join("b"), 0o666);
    words(&["-r", "--in-place"], &contents, &sink, 3, "another name of a source");
    // Nothing can be made below, or in, a directory of another user's.
    let closed = pair.room.dir("closed");
    words(&["-r"], &contents, &closed.join("new"), 1, "no permission");
    words(&["-r"], &contents, &closed.join("new/er"), 1, "no permission");
    let below = pair.room.dir("copy/below");
    let (data, state) = (pair.room.dir("data/below"), pair.room.dir("state"));
    fs::write(data.join("f"), "f").expect("write");
    set_mode(&state, 0o777);
    words(&["-r"], &crate::support::way::contents(&pair.room.at("data")), &sink, 3, "permission denied");
    let option = format!("--state={}", state.display());
    words(&["-r", &option], &crate::support::way::contents(&data), &below, 1, "permission");
    let option = format!("--state={}", pair.room.at("none").display());
    words(&["-r", &option], &contents, &sink, 2, "there is no such directory");
    let option = format!("--state={}", closed.display());
    words(&["-r", &option], &contents, &sink, 1, "no permission to write there");
}
