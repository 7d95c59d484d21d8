//! Copies between two FTP servers that move the data themselves.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::support::beside::beside;
use crate::support::compare::{BELOW, Opts, assert_no_debris, assert_same};
use crate::support::ftpd::{Ftpd, Kind, contents};
use crate::support::mount::Tmpfs;
use crate::support::node::{Node, Slow, Software, are_here};
use crate::support::run::{Haul, Outcome};
use crate::support::steered::{OTHERS, Odd, Steered};
use crate::support::{Room, read, set_mode, tree};

const A: [u8; 4] = [127, 0, 0, 2];
const B: [u8; 4] = [127, 0, 0, 3];
/// What each needs to hear of other hosts than its client's.
const OPEN_PROFTPD: &str = "AllowForeignAddress on\n";
const OPEN_VSFTPD: &str = "pasv_promiscuous=YES\nport_promiscuous=YES\n";
/// Files of a copy of which one server goes away.
const FILES_GONE: u64 = 3_000;

fn open(software: Software) -> &'static str {
    match software {
        Software::Proftpd => OPEN_PROFTPD,
        Software::Vsftpd => OPEN_VSFTPD,
        Software::Globus | Software::Striped | Software::Haul => "",
    }
}

fn file(path: &Path, rng: &mut fastrand::Rng, len: usize) {
    fs::write(path, tree::bytes(rng, len)).expect("write a file");
    set_mode(path, 0o640);
    let age = Duration::from_secs(rng.u64(1_000_000_000..1_600_000_000));
    tree::set_mtime(path, SystemTime::UNIX_EPOCH + age);
}

/// Some 120 files of up to 3 MiB with odd names, in directories.
fn furnish(root: &Path, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    for dir in ["", "empty", "many", "odd", "odd/a b", "odd/.h", "odd/.h/deep"] {
        fs::create_dir_all(root.join(dir)).expect("make a directory");
        set_mode(&root.join(dir), 0o755);
    }
    for index in 0..90 {
        let len = rng.usize(0..30_000);
        file(&root.join(format!("many/f{index:02}")), &mut rng, len);
    }
    for name in [" leading", "trailing ", "%41", "*", "quote'\"", "-dash", ".hidden", "a;b=c; d", "name -> x"]
    {
        file(&root.join("odd").join(name), &mut rng, name.len());
    }
    file(&root.join("odd/.h/deep/.x"), &mut rng, 100);
    file(&root.join("odd/a b").join("n".repeat(255)), &mut rng, 7);
    for (index, len) in [0, 1, 65_536, 1 << 20, (1 << 20) + 1, 3 << 20].into_iter().enumerate() {
        file(&root.join(format!("size {index}")), &mut rng, len);
    }
}

fn cp(state: &Path, options: &[&str], from: &str, to: &str) -> Haul {
    let state = format!("--state={}", state.display());
    let patient = options.iter().any(|option| option.starts_with("--patience"));
    // Real servers have other work, too.
    let patience = if patient { &[][..] } else { &["--patience=60s"] };
    Haul::cp(["-r", &state]).args(patience).args(options).args([from, to])
}

fn third(ended: &Outcome, name: &str) -> u64 {
    let told = ended.summary().0["third_party"][name].as_u64();
    told.unwrap_or_else(|| panic!("no {name}: {}", ended.describe()))
}

/// Files as they are at the other server, whatever it told of the times of directories.
fn assert_arrived(data: &Path, copy: &Path, times: bool) {
    assert_same(data, copy, Opts { metadata: false, ..BELOW });
    if times {
        files_have_times(data, copy);
    }
}

fn files_have_times(data: &Path, copy: &Path) {
    for entry in fs::read_dir(data).expect("list a directory").flatten() {
        let (path, twin) = (entry.path(), copy.join(entry.file_name()));
        if path.is_dir() {
            files_have_times(&path, &twin);
        } else {
            let [ours, theirs] =
                [&path, &twin].map(|path| fs::metadata(path).expect("look").modified().expect("a time"));
            assert_eq!(ours, theirs, "{twin:?}");
        }
    }
}

/// Goal: a tree goes from one real server to another one, each byte and each time of a file; a second run
/// moves nothing, and what was compared is said.
/// Method: pairs of servers at hosts of their own, in either mode.
#[test]
fn trees_go_between_real_servers() {
    use Software::{Globus, Proftpd, Striped, Vsftpd};
    beside(
        [
            (Globus, Globus),
            (Proftpd, Proftpd),
            (Proftpd, Globus),
            (Globus, Proftpd),
            (Vsftpd, Vsftpd),
            (Striped, Globus),
            (Globus, Striped),
            (Striped, Striped),
        ],
        |(from, to)| {
            if !are_here(&[from, to]) {
                return;
            }
            let room = Room::new();
            let (a, b) = (Node::start(from, A, open(from)), Node::start(to, B, open(to)));
            let (data, copy) = (a.place("data"), b.place("new/copy"));
            furnish(&data, 7);
            let (from_url, to_url) = (a.url(&data) + "/", b.url(&copy));
            let ended = cp(&room.at("state"), &[], &from_url, &to_url).run().sane().exits(0);
            assert_arrived(&data, &copy, true);
            let summary = ended.summary();
            assert_eq!(summary.text("protect"), "servers", "{from:?} {to:?}");
            assert_eq!(summary.text("durability"), "server");
            // A front end does not say that it knows one.
            let both_sum = (from, to) == (Globus, Globus);
            let all = summary.number("files");
            let (compared, not) = (third(&ended, "compared"), third(&ended, "not_compared"));
            assert_eq!((compared, not), if both_sum { (all, 0) } else { (0, all) }, "{}", ended.describe());
            ended.says(if both_sum { "by SHA256" } else { "NOT compared" });
            let again = cp(&room.at("state"), &[], &from_url, &to_url).run().sane().exits(0);
            assert_eq!(
                (again.summary().number("files"), again.summary().number("unchanged")),
                (0, all),
                "{from:?} {to:?}: {}",
                again.describe()
            );
        },
    );
}

/// Goal: a file goes over several nodes in blocks of a length, or in one part for each node, and is whole.
#[test]
fn stripes_are_laid_out_as_asked() {
    need!("gridftp");
    let (a, b) = (Node::start(Software::Striped, A, ""), Node::start(Software::Striped, B, ""));
    let (data, room) = (a.place("data"), Room::new());
    fs::create_dir(&data).expect("make a directory");
    for (index, len) in [0, 1, 65_537, 5_000_000].into_iter().enumerate() {
        file(&data.join(format!("f{index}")), &mut fastrand::Rng::with_seed(3), len);
    }
    beside([("partitioned", "parts"), ("blocked", "blocks"), ("blocked:64KiB", "small")], |(how, name)| {
        let copy = b.place(name);
        let stripes = format!("--stripes={how}");
        let ended = cp(&room.at("state"), &[&stripes, "-v"], &(a.url(&data) + "/"), &b.url(&copy))
            .run()
            .sane()
            .exits(0);
        assert_arrived(&data, &copy, true);
        ended.says("2 nodes of the destination");
    });
}

/// Goal: a single file takes the name that the destination ends in, or goes into a directory that is there; a
/// file that is there is replaced as a whole, or left where an option says so.
#[test]
fn single_files_are_named_as_in_a_file_system() {
    need!("gridftp");
    let (a, b, room) =
        (Node::start(Software::Globus, A, ""), Node::start(Software::Globus, B, ""), Room::new());
    let (one, dir) = (a.place("one"), b.place("dir"));
    file(&one, &mut fastrand::Rng::with_seed(4), 100_000);
    fs::create_dir(&dir).expect("make a directory");
    let go = |options: &[&str], to: &str| cp(&room.at("state"), options, &a.url(&one), to).run().sane();
    go(&[], &b.url(b.place("two"))).exits(0);
    go(&[], &b.url(&dir)).exits(0);
    go(&[], &(b.url(b.place("fresh")) + "/")).exits(0);
    for path in [b.place("two"), dir.join("one"), b.place("fresh/one")] {
        assert!(read(&path) == read(&one), "{path:?}");
    }
    fs::write(dir.join("one"), b"mine").expect("change it");
    let left = go(&["--no-clobber"], &b.url(&dir)).exits(0);
    assert_eq!(left.summary().number("skipped"), 1, "{}", left.describe());
    let look = go(&["-n"], &b.url(&dir)).exits(0);
    assert_eq!((look.summary().number("files"), read(dir.join("one"))), (1, b"mine".to_vec()));
    go(&[], &b.url(&dir)).exits(0);
    assert!(read(dir.join("one")) == read(&one));
    fs::create_dir_all(b.place("held/one/x")).expect("make directories");
    go(&[], &b.url(b.place("held"))).exits(3).says("a directory stands there");
    assert_no_debris(&b.place("held"));
}

/// Goal: what cannot be had where no data comes by is refused, and nothing is made.
#[test]
fn what_needs_the_data_here_is_refused() {
    let (a, b, room) = (Steered::start(A).file("/d/x", b"abc"), Steered::start(B), Room::new());
    let manifest = format!("--manifest={}", room.at("m").display());
    for option in ["--rate=1MiB/s", "--range=0:2", "--in-place", "--changed=prefix", &manifest] {
        let ended = cp(&room.at("state"), &[option], &a.url("/d/x"), &b.url("/d/y")).run().sane().exits(2);
        assert!(ended.stderr.contains("between two servers"), "{}", ended.describe());
        assert!(b.names().is_empty(), "{option}");
    }
}

/// Goal: whichever of the two may listen does; where neither may, it is said who refused what, and nothing is
/// left behind.
/// Method: servers that take no other host's address, or no connection from another host, in all pairs.
#[test]
fn whoever_may_listen_listens() {
    use Software::{Proftpd, Vsftpd};
    const LISTENS: &str = "pasv_promiscuous=YES\n";
    const DIALS: &str = "port_promiscuous=YES\n";
    beside(
        [
            (Vsftpd, DIALS, Vsftpd, LISTENS, true),
            (Vsftpd, LISTENS, Vsftpd, DIALS, true),
            (Proftpd, OPEN_PROFTPD, Vsftpd, DIALS, true),
            (Vsftpd, LISTENS, Proftpd, OPEN_PROFTPD, true),
            (Vsftpd, "", Vsftpd, OPEN_VSFTPD, false),
            (Vsftpd, OPEN_VSFTPD, Vsftpd, "", false),
            (Proftpd, "", Proftpd, "", false),
        ],
        |(from, from_open, to, to_open, goes)| {
            if !are_here(&[from, to]) {
                return;
            }
            let (a, b, room) = (Node::start(from, A, from_open), Node::start(to, B, to_open), Room::new());
            let (data, copy) = (a.place("data"), b.place("copy"));
            fs::create_dir(&data).expect("make a directory");
            for index in 0..9 {
                file(&data.join(format!("f{index}")), &mut fastrand::Rng::with_seed(index), 50_000);
            }
            let ended = cp(&room.at("state"), &["-v", "--patience=5s"], &(a.url(&data) + "/"), &b.url(&copy))
                .run()
                .sane();
            if goes {
                let ended = ended.exits(0);
                assert_arrived(&data, &copy, true);
                ended.says("listens");
            } else {
                let ended = ended.exits(0);
                for words in [
                    "cannot move files between them",
                    "PORT",
                    "127.0.0.2",
                    "127.0.0.3",
                    "the data goes by this host",
                ] {
                    assert!(ended.stderr.contains(words), "{from:?} {to:?} {words}: {}", ended.describe());
                }
                assert_arrived(&data, &copy, true);
                assert!(
                    String::from_utf8_lossy(&ended.stdout).contains("\"third_party\":null"),
                    "{}",
                    ended.describe()
                );
            }
        },
    );
}

/// Goal: a file is never copied onto itself, nor a directory into itself, under however many names the server
/// is reached; the source keeps every byte.
#[test]
fn nothing_is_copied_onto_itself() {
    need!("gridftp");
    let a = Node::start(Software::Globus, A, "");
    let (data, room) = (a.place("data"), Room::new());
    furnish(&data, 9);
    let before = crate::support::compare::snapshot(&data);
    let other = |path: &Path| a.url_at("127.0.0.2", path);
    let one = data.join("size 3");
    for (from, to) in [
        (a.url(&data) + "/", other(&data)),
        (a.url(&data), other(data.parent().expect("its room"))),
        (a.url(&data) + "/", other(&data.join("many/new"))),
        (a.url(&one), other(&one)),
        (a.url(&one), other(&data)),
    ] {
        let ended = cp(&room.at("state"), &["--force"], &from, &to).run().sane();
        assert_eq!(ended.status.code(), Some(2), "{from} {to}: {}", ended.describe());
        assert_eq!(crate::support::compare::snapshot(&data), before, "{from} {to}");
    }
    // Two sessions with one server are as good as two servers.
    let copy = a.place("copy");
    cp(&room.at("state"), &[], &(a.url(&data) + "/"), &a.url(&copy)).run().sane().exits(0);
    assert_arrived(&data, &copy, true);
    assert_eq!(crate::support::compare::snapshot(&data), before);
}

/// Goal: the same where two servers see one file system, and where a link hides it: the source keeps every
/// byte.
#[test]
fn two_servers_of_one_file_system_are_found_out() {
    need!("gridftp");
    let (a, b, room) =
        (Node::start(Software::Globus, A, ""), Node::start(Software::Globus, B, ""), Room::new());
    let data = a.place("data");
    furnish(&data, 10);
    let before = crate::support::compare::snapshot_of_files(&data);
    for to in [data.clone(), data.join("many")] {
        let ended = cp(&room.at("state"), &["--force"], &(a.url(&data) + "/"), &b.url(&to)).run().sane();
        assert_eq!(ended.status.code(), Some(2), "{}", ended.describe());
        assert_eq!(crate::support::compare::snapshot_of_files(&data), before, "{}", ended.describe());
    }
    // By another path nobody can tell; each file is replaced by a copy of itself, and none is cut off.
    let link = b.place("link");
    std::os::unix::fs::symlink(&data, &link).expect("make a link");
    cp(&room.at("state"), &["--force"], &(a.url(&data) + "/"), &b.url(&link)).run().sane();
    for index in 0..6 {
        let path = data.join(format!("size {index}"));
        assert_eq!(
            fs::metadata(&path).expect("it is there").len(),
            [0, 1, 65_536, 1 << 20, (1 << 20) + 1, 3 << 20][index],
            "{path:?}"
        );
    }
}

/// Goal: nothing is moved through a directory that is a link, also where the server tells that by listings
/// alone.
/// Method: one of two directories of the destination is a link to the other one.
#[test]
fn no_pair_writes_through_links() {
    use Software::Vsftpd;
    if !are_here(&[Vsftpd, Vsftpd]) {
        return;
    }
    let room = Room::new();
    let (a, b) = (Node::start(Vsftpd, A, OPEN_VSFTPD), Node::start(Vsftpd, B, OPEN_VSFTPD));
    let (data, copy) = (a.place("data"), b.place("copy"));
    let mut rng = fastrand::Rng::with_seed(11);
    for dir in ["d1", "d2"] {
        fs::create_dir_all(data.join(dir)).expect("make a directory");
        file(&data.join(dir).join("f"), &mut rng, 5000);
    }
    fs::create_dir_all(copy.join("d1")).expect("make a directory");
    for dir in [copy.clone(), copy.join("d1")] {
        set_mode(&dir, 0o777);
    }
    std::os::unix::fs::symlink("d1", copy.join("d2")).expect("make a link");
    for _ in 0..2 {
        let ended = cp(&room.at("state"), &[], &(a.url(&data) + "/"), &b.url(&copy)).run().sane().exits(3);
        let ended = ended.says("a symbolic link stands there");
        assert!(read(copy.join("d1/f")) == read(data.join("d1/f")), "{}", ended.describe());
    }
}

/// Goal: links, which neither server has a command to make, are left out, counted and named.
#[test]
fn links_between_two_are_left_out_and_said() {
    use Software::Vsftpd;
    if !are_here(&[Vsftpd, Vsftpd]) {
        return;
    }
    let room = Room::new();
    let (a, b) = (Node::start(Vsftpd, A, OPEN_VSFTPD), Node::start(Vsftpd, B, OPEN_VSFTPD));
    let (data, copy) = (a.place("data"), b.place("copy"));
    fs::create_dir_all(&data).expect("make a directory");
    file(&data.join("f"), &mut fastrand::Rng::with_seed(14), 5000);
    std::os::unix::fs::symlink("f", data.join("l")).expect("make a link");
    fs::create_dir_all(&copy).expect("make a directory");
    set_mode(&copy, 0o777);
    for option in ["--dry-run", "-v"] {
        let ended = cp(&room.at("state"), &[option], &(a.url(&data) + "/"), &b.url(&copy)).run().sane();
        let ended = ended.exits(0);
        let summary = ended.summary();
        assert_eq!((summary.number("skipped"), summary.number("failed")), (1, 0), "{}", ended.describe());
        let not_kept = summary.0["not_kept"].as_array().expect("a list");
        let left = not_kept.iter().find(|left| left["what"] == "symbolic links left out");
        assert!(left.is_some_and(|left| left["count"] == 1), "{}", ended.describe());
        if option == "-v" {
            assert!(read(copy.join("f")) == read(data.join("f")), "{}", ended.describe());
            ended.says("l (symbolic links");
        }
    }
    assert_eq!(fs::read_dir(&copy).expect("list it").count(), 1);
}

/// Goal: where several files follow each other over one kept connection and one of them fails, none gets the
/// bytes of another.
/// Method: a directory in the middle that cannot be written.
#[test]
fn files_behind_a_failed_one_are_their_own() {
    need!("gridftp", "tmpfs");
    let (a, b, room) =
        (Node::start(Software::Globus, A, ""), Node::start(Software::Globus, B, ""), Room::new());
    let (data, copy) = (a.place("data"), b.place("copy"));
    let mut rng = fastrand::Rng::with_seed(12);
    for dir in 0..12 {
        fs::create_dir_all(data.join(format!("d{dir:02}"))).expect("make a directory");
        for index in 0..6 {
            file(&data.join(format!("d{dir:02}/f{index}")), &mut rng, 5_000);
        }
    }
    let closed = copy.join("d05");
    fs::create_dir_all(&closed).expect("make directories");
    let tmpfs = Tmpfs::mount(&closed, "ro");
    let ended = cp(&room.at("state"), &[], &(a.url(&data) + "/"), &b.url(&copy)).run().sane().exits(3);
    assert_eq!(ended.summary().number("failed"), 6, "{}", ended.describe());
    drop(tmpfs);
    fs::remove_dir_all(&closed).expect("remove it");
    fs::remove_dir_all(data.join("d05")).expect("remove it");
    assert_arrived(&data, &copy, true);
}

/// Goal: a server of MODE E that is killed in the middle is gone on with: what it said that it has is not
/// moved again, and what comes out is the source; a source that changed meanwhile, or a part that did, is
/// moved from its beginning.
#[test]
fn what_the_destination_has_is_not_moved_again() {
    need!("gridftp");
    const LEN: usize = 12_000_000;
    beside(["nothing", "source", "part"], |meddle| {
        let (a, mut b, room) =
            (Node::start(Software::Globus, A, ""), Node::start(Software::Globus, B, ""), Room::new());
        let (data, copy) = (a.place("big"), b.place("copy"));
        file(&data, &mut fastrand::Rng::with_seed(13), LEN);
        fs::create_dir(&copy).expect("make a directory");
        let state = room.at("state");
        let slow = Slow::to(&b, 1_500_000);
        let mut running = cp(&state, &["--patience=20s"], &a.url(&data), &slow.url(&copy)).start();
        // A word of what is safe comes each second.
        let half = running.until(|_| slow.passed.load(std::sync::atomic::Ordering::Relaxed) > LEN as u64 / 2);
        assert!(half, "{}", running.wait().describe());
        b.kill();
        running.wait().sane().exits(1).says("the destination's server is gone");
        b.start_again();
        match meddle {
            "source" => file(&data, &mut fastrand::Rng::with_seed(14), LEN),
            "part" => {
                let all = fs::read_dir(&copy).expect("list it").flatten();
                let part =
                    all.map(|entry| entry.path()).find(|path| path.to_string_lossy().contains("haul~"));
                let part = part.expect("a part is there");
                let mut content = read(&part);
                content[100_000] ^= 1;
                fs::write(&part, content).expect("change the part");
            }
            _ => {}
        }
        slow.rate.store(1 << 40, std::sync::atomic::Ordering::Relaxed);
        let ended = cp(&state, &[], &a.url(&data), &slow.url(&copy)).run().sane().exits(0);
        assert!(read(copy.join("big")) == read(&data), "{meddle}");
        assert_no_debris(&copy);
        let (held, moved) = (third(&ended, "held"), ended.summary().number("bytes_sent"));
        match meddle {
            "nothing" => {
                assert!(held > 1_000_000, "{}", ended.describe());
                assert!(moved < LEN as u64 - 1_000_000, "{}", ended.describe());
            }
            _ => assert_eq!((held, moved >= LEN as u64), (0, true), "{meddle}: {}", ended.describe()),
        }
        assert_eq!(third(&ended, "compared"), 1);
        let kept = fs::read_dir(state.join("pairs")).expect("list it").count();
        assert_eq!(kept, 0, "nothing is kept of what is whole");
    });
}

/// Goal: where one of the two is gone for good the copy ends as a whole, and not one file after the other: it
/// is said which one, each file that was not moved is counted, and the same command goes on when it is back.
/// Method: all processes of a server are killed in the middle.
#[test]
fn a_pair_of_which_one_is_gone_ends_the_run() {
    need!("proftpd", "gridftp");
    beside(["source", "destination"], |whose| {
        let (mut a, mut b, room) = (
            Node::start(Software::Proftpd, A, OPEN_PROFTPD),
            Node::start(Software::Globus, B, ""),
            Room::new(),
        );
        let (data, copy, list) = (a.place("data"), b.place("copy"), room.at("list"));
        let mut rng = fastrand::Rng::with_seed(29);
        [&data, &copy].iter().for_each(|dir| fs::create_dir(dir).expect("make a directory"));
        (0..FILES_GONE).for_each(|n| file(&data.join(format!("f{n}")), &mut rng, 2_000));
        let named = || {
            let names = fs::read_dir(&copy).expect("list it").flatten().map(|entry| entry.file_name());
            names.filter(|name| name.as_encoded_bytes().starts_with(b"f")).count() as u64
        };
        let (failures, state) = (format!("--failures={}", list.display()), room.at("state"));
        let run = |options: &[&str]| cp(&state, options, &(a.url(&data) + "/"), &b.url(&copy));
        let (first, second) = (run(&["--patience=2s", &failures]), run(&[]));
        let mut running = first.start();
        assert!(running.until(|_| named() > 30), "{}", running.wait().describe());
        let gone = if whose == "source" { &mut a } else { &mut b };
        gone.kill();
        let ended = running.wait().sane().exits(1).says(&format!("the {whose}'s server is gone"));
        let told = read(&list).split(|byte| *byte == b'\n').count() as u64 - 1;
        let summary = ended.summary();
        assert!(told > 0 && summary.number("failed") == told, "{told}: {}", ended.describe());
        assert!(summary.number("files") <= named() && named() < FILES_GONE, "{}", ended.describe());
        gone.start_again();
        second.run().sane().exits(0);
        if whose == "destination" {
            // It was not there to have them removed.
            let all = fs::read_dir(&copy).expect("list it").flatten().map(|entry| entry.path());
            let parts = all.filter(|path| path.to_string_lossy().contains(".haul~"));
            parts.for_each(|part| fs::remove_file(part).expect("remove a part"));
        }
        assert_arrived(&data, &copy, true);
        assert_no_debris(&copy);
    });
}

/// Goal: between two servers, too, size and time prove nothing at a destination that sets no times.
/// Method: vsftpd with `mdtm_write` off; the source gets the time of the copy, and other bytes.
#[test]
fn a_time_by_chance_proves_nothing_to_a_pair() {
    need!("proftpd", "vsftpd");
    let mut sets_none = open(Software::Vsftpd).to_owned();
    sets_none.push_str("mdtm_write=NO\n");
    let (a, b, room) = (
        Node::start(Software::Proftpd, A, open(Software::Proftpd)),
        Node::start(Software::Vsftpd, B, &sets_none),
        Room::new(),
    );
    let (data, there) = (a.place("file"), b.place("file"));
    let run = || cp(&room.at("state"), &[], &a.url(&data), &b.url(&there)).run().sane().exits(0);
    fs::write(&data, "first version").expect("write");
    set_mode(&data, 0o644);
    run();
    fs::write(&data, "other version").expect("write");
    tree::set_mtime(&data, fs::metadata(&there).expect("look").modified().expect("a time"));
    let ended = run();
    assert!(read(&there) == read(&data), "{}", ended.describe());
}

/// Goal: what an upload began in place and did not end is unchanged to no copy between two servers either.
/// Method: a kill in the middle; then the file gets the size and the time of its source, and other bytes.
#[test]
fn what_was_begun_in_place_is_not_unchanged_to_a_pair() {
    need!("proftpd");
    let open = open(Software::Proftpd);
    let (a, mut b) = (Node::start(Software::Proftpd, A, open), Node::start(Software::Proftpd, B, open));
    let room = Room::new();
    let (ours, data, there) = (room.at("ours"), a.place("file"), b.place("file"));
    const LEN: usize = 24_000_000;
    file(&ours, &mut fastrand::Rng::with_seed(3), LEN);
    fs::write(&data, read(&ours)).expect("write");
    set_mode(&data, 0o644);
    let then = fs::metadata(&ours).expect("look").modified().expect("a time");
    tree::set_mtime(&data, then);
    let with_state = |haul: Haul| haul.env("XDG_STATE_HOME", room.at("records"));
    let upload = Haul::cp(["--in-place", "--rate=2MB/s"]).args([&ours]).args([b.url(&there)]);
    let mut run = with_state(upload).start();
    let begun = run.until(|_| fs::metadata(&there).is_ok_and(|has| has.len() > 1_000_000));
    assert!(begun, "{}", run.wait().describe());
    run.signal(rustix::process::Signal::KILL);
    assert!(run.wait().was_killed());
    // Its sessions write to it as long as they are there.
    b.kill();
    b.start_again();
    let other = fs::OpenOptions::new().write(true).open(&there).expect("open");
    other.set_len(LEN as u64).expect("make it as long");
    let byte = read(&ours)[500_000] ^ 1;
    std::os::unix::fs::FileExt::write_all_at(&other, &[byte], 500_000).expect("write");
    tree::set_mtime(&there, then);
    let pair = || with_state(cp(&room.at("state"), &[], &a.url(&data), &b.url(&there)));
    let ended = pair().run().sane().exits(0);
    assert!(read(&there) == read(&ours), "{}", ended.describe());
    assert!(!ended.summary().0["third_party"].is_null(), "{}", ended.describe());
    let again = pair().run().sane().exits(0);
    assert_eq!(again.summary().number("unchanged"), 1, "{}", again.describe());
}

/// Goal: a copy to haul's own server, which shows nobody what is not whole, is gone on with after a stop:
/// only the rest is moved. Where the server does not have any more what it said that it has, and refuses to
/// go on, the file is moved from its beginning in the same run.
/// Method: what it has is left alone; it is gone; a whole file stands in its place, as where the stop came
/// between that and its name.
#[test]
fn what_haul_has_is_gone_on_with_or_begun_anew() {
    need!("gridftp");
    const LEN: usize = 9_000_000;
    beside(["nothing", "gone", "whole"], |meddle| {
        let (a, b, room) =
            (Node::start(Software::Globus, A, ""), Node::start(Software::Haul, B, ""), Room::new());
        let (data, copy) = (a.place("big"), b.place("copy"));
        file(&data, &mut fastrand::Rng::with_seed(33), LEN);
        fs::create_dir(&copy).expect("make a directory");
        let state = room.at("state");
        // Of each of four connections; a word of what is safe comes each second.
        let slow = Slow::to(&b, 400_000);
        let mut running = cp(&state, &[], &a.url(&data), &slow.url(&copy)).start();
        let half = running.until(|_| slow.passed.load(std::sync::atomic::Ordering::Relaxed) > LEN as u64 / 2);
        assert!(half, "{}", running.wait().describe());
        running.signal(rustix::process::Signal::INT);
        running.wait().sane().exits(130);
        if meddle != "nothing" {
            for entry in fs::read_dir(&copy).expect("list it").flatten() {
                fs::remove_file(entry.path()).expect("remove what it has");
            }
        }
        if meddle == "whole" {
            let mut kept = fs::read_dir(state.join("pairs")).expect("list it").flatten();
            let kept = kept.find(|entry| entry.path().extension().is_none()).expect("a record");
            let kept = String::from_utf8(read(kept.path())).expect("a text");
            let hex = kept.lines().nth(2).expect("the name");
            let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("a byte");
            let name: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
            fs::copy(&data, String::from_utf8(name).expect("a name")).expect("put it there");
        }
        slow.rate.store(1 << 40, std::sync::atomic::Ordering::Relaxed);
        let ended = cp(&state, &[], &a.url(&data), &slow.url(&copy)).run().sane().exits(0);
        assert!(read(copy.join("big")) == read(&data), "{meddle}");
        assert_eq!(fs::read_dir(&copy).expect("list it").count(), 1, "{meddle}: {}", ended.describe());
        let (held, moved) = (third(&ended, "held"), ended.summary().number("bytes_sent"));
        if meddle == "nothing" {
            assert!(held > 1_000_000, "{}", ended.describe());
            assert!(moved < LEN as u64 - 1_000_000, "{}", ended.describe());
        } else {
            assert_eq!((held, moved), (0, LEN as u64), "{meddle}: {}", ended.describe());
            ended.says("it is moved from its beginning");
        }
        assert_eq!(fs::read_dir(state.join("pairs")).expect("list it").count(), 0, "{meddle}");
    });
}

/// Goal: two sessions with a server that knows users by certificates, and of one of those with one that knows
/// nobody, move data as well.
#[test]
fn certificates_are_no_hindrance() {
    need!("gridftp");
    let (gsi, plain, room) =
        (Ftpd::start(Kind::GridftpGsi), Node::start(Software::Globus, B, ""), Room::new());
    let data = room.dir("data");
    furnish(&data, 15);
    let as_alice = |haul: Haul| {
        haul.env("X509_CERT_DIR", gsi.of_grid("authorities")).env("X509_USER_PROXY", gsi.of_grid("alice"))
    };
    let from = gsi.url(contents(&data));
    let plainly = |name| (plain.url_at("127.0.0.3", plain.place(name)), plain.place(name));
    for (channel, (to, copy), by_here) in [
        ("private", (gsi.url(room.at("one")), room.at("one")), false),
        ("shown", (gsi.url(room.at("two")), room.at("two")), false),
        ("plain", (gsi.url(room.at("three")), room.at("three")), false),
        ("plain", plainly("four"), false),
        ("private", plainly("five"), true),
    ] {
        let option = format!("--data-channel={channel}");
        let ended = as_alice(cp(&room.at("state"), &[&option], &from, &to)).run().sane().exits(0);
        assert_arrived(&data, &copy, true);
        let told = ended.stderr.contains("the data goes by this host");
        assert_eq!(told, by_here, "{channel}: {}", ended.describe());
    }
}

const CONTENT: usize = 300_000;

fn liars(
    odd_from: &[(&'static str, &str, Odd)],
    odd_to: &[(&'static str, &str, Odd)],
    times: usize,
) -> (Steered, Steered) {
    let content = tree::bytes(&mut fastrand::Rng::with_seed(16), CONTENT);
    let (mut a, mut b) = (Steered::start(A).file("/d/x", &content), Steered::start(B));
    for (verb, part, odd) in odd_from {
        a = a.odd(verb, part, times, odd.clone());
    }
    for (verb, part, odd) in odd_to {
        b = b.odd(verb, part, times, odd.clone());
    }
    (a, b)
}

fn lied_to(options: &[&str], a: &Steered, b: &Steered) -> Outcome {
    let room = Room::new();
    let options: Vec<&str> = ["--patience=2s"].iter().chain(options).copied().collect();
    cp(&room.at("state"), &options, &a.url("/d/x"), &b.url("/d/y")).run().sane()
}

/// Goal: data goes from the one server to the other one and not by this host; what each says of content is
/// held against the other's word.
#[test]
fn no_byte_comes_by_here() {
    let (a, b) = liars(&[], &[], 0);
    let ended = lied_to(&[], &a, &b).exits(0);
    assert_eq!(b.content("/d/y"), a.content("/d/x"), "{}", ended.describe());
    assert_eq!(b.names(), ["/d/y"]);
    assert!(a.peers().iter().all(|peer| peer.ip() == b.host), "{:?}", a.peers());
    assert_eq!(third(&ended, "compared"), 1);
    ended.says("by MD5, which each of the two servers told of its own");
}

/// Goal: whatever one of the two says, a file that is not what the source has never gets its name, and what
/// stood there stands.
/// Method: lies that never end, of each side; the same once, which is made good.
#[test]
fn what_servers_say_is_not_enough() {
    let lies: [(&[(&'static str, &str, Odd)], &[(&'static str, &str, Odd)]); 10] = [
        (&[], &[("STOR", "", Odd::Loses(1, "226 all is there"))]),
        (&[], &[("STOR", "", Odd::Changes)]),
        (&[("RETR", "", Odd::Changes)], &[]),
        (&[("RETR", "", Odd::Loses(5, "426 it broke"))], &[]),
        (&[("RETR", "", Odd::Loses(0, "426 it broke"))], &[]),
        (&[], &[("STOR", "", Odd::Loses(0, "452 no room"))]),
        // Of a full disk, as vsftpd says it, whoever says something first.
        (
            &[("RETR", "", Odd::Loses(0, "426 it broke"))],
            &[("STOR", "", Odd::Loses(0, "451 Failure writing to local file."))],
        ),
        (&[("RETR", "", Odd::HangsUp)], &[]),
        (&[], &[("STOR", "", Odd::HangsUp)]),
        (&[], &[("RNTO", "", Odd::Says("553 no such name"))]),
    ];
    let rows = lies.into_iter().flat_map(|(from, to)| [usize::MAX, 1].map(|times| (from, to, times)));
    beside(rows, |(from, to, times)| {
        let (a, b) = liars(from, to, times);
        let b = b.file("/d/y", b"what stood there");
        let ended = lied_to(&[], &a, &b);
        match ended.status.code() {
            Some(0) => {
                assert_eq!(b.content("/d/y"), a.content("/d/x"), "{from:?} {to:?}: {}", ended.describe());
                assert_eq!(times, 1, "{from:?} {to:?}: {}", ended.describe());
            }
            code => {
                let full = to.iter().any(|(.., odd)| matches!(odd, Odd::Loses(0, _)));
                let want = if full { 1 } else { 3 };
                assert_eq!(code, Some(want), "{from:?} {to:?}: {}", ended.describe());
                assert_eq!(
                    b.content("/d/y").as_deref(),
                    Some(&b"what stood there"[..]),
                    "{}",
                    ended.describe()
                );
            }
        }
        assert_eq!(b.names(), ["/d/y"], "{from:?} {to:?}: {}", ended.describe());
    });
}

/// Goal: a sum that both servers make is wanted of each file: one that is refused for now is asked for again,
/// and a file of which it stays untold does not get its name, whatever is stored. Only where a server makes
/// none, by its word, is the file said not to be compared.
#[test]
fn a_sum_that_both_make_is_wanted() {
    for reply in ["450 busy", "451 later"] {
        for end in [A, B] {
            let odd = [("CKSM", "", Odd::Says(reply))];
            let (a, b) = if end == A { liars(&odd, &[], 1) } else { liars(&[], &odd, 1) };
            let ended = lied_to(&[], &a, &b).exits(0);
            assert_eq!(third(&ended, "compared"), 1, "{reply}: {}", ended.describe());
            assert_eq!(b.content("/d/y"), a.content("/d/x"), "{reply}");
            assert_eq!(
                b.heard().iter().filter(|line| line.starts_with("STOR")).count(),
                1,
                "it is moved once"
            );
        }
    }
    beside(["450 busy", "451 later", "550 no", "213 not calculated"], |reply| {
        let odd = [("STOR", "", Odd::Changes), ("CKSM", "", Odd::Says(reply))];
        let (a, b) = liars(&[], &odd, usize::MAX);
        let ended = lied_to(&[], &a, &b).exits(3);
        assert!(b.names().is_empty(), "{reply}: {:?} {}", b.names(), ended.describe());
        let (a, b) = liars(&[("CKSM", "", Odd::Says(reply))], &[("STOR", "", Odd::Changes)], usize::MAX);
        let ended = lied_to(&[], &a, &b).exits(3);
        assert!(b.names().is_empty(), "{reply}: {:?} {}", b.names(), ended.describe());
    });
    for reply in ["500 unknown", "502 not here", "504 not of that"] {
        let (a, b) = liars(&[], &[("CKSM", "", Odd::Says(reply))], usize::MAX);
        let ended = lied_to(&[], &a, &b).exits(0).says("NOT compared");
        assert_eq!(b.content("/d/y"), a.content("/d/x"), "{reply}: {}", ended.describe());
    }
}

/// Goal: between two servers, too, what one of them says "later" to once is asked for again.
#[test]
fn what_is_said_for_now_between_two_is_asked_for_again() {
    let from = [("RETR", "/x")].map(|row| (A, row));
    let to =
        [("RNFR", ""), ("RNTO", ""), ("STOR", ""), ("MLST", "/y"), ("MLST", "haul~")].map(|row| (B, row));
    let rows = from.into_iter().chain(to).flat_map(|row| ["450 busy", "451 later"].map(|reply| (row, reply)));
    beside(rows, |((end, (verb, part)), reply)| {
        let odd = |of: [u8; 4]| (end == of).then_some((verb, part, Odd::Says(reply)));
        let (from, to): (Vec<_>, Vec<_>) = (odd(A).into_iter().collect(), odd(B).into_iter().collect());
        let (a, b) = liars(&from, &to, 1);
        let ended = lied_to(&[], &a, &b).exits(0);
        assert_eq!(b.content("/d/y"), a.content("/d/x"), "{verb} {reply}: {}", ended.describe());
        assert_eq!(b.names(), ["/d/y"], "{verb} {reply}: {}", ended.describe());
    });
}

/// Goal: what counts as copied stands under its name, whatever the server answers; what came to stand there
/// meanwhile is left alone.
#[test]
fn what_stands_at_a_name_is_looked_at() {
    let (a, b) = liars(&[], &[("RNTO", "", Odd::Says("250 named"))], usize::MAX);
    let ended = lied_to(&[], &a, &b).exits(3);
    let ended = ended.says("it was renamed");
    assert_eq!(ended.summary().number("files"), 0, "{}", ended.describe());
    for options in [&[][..], &["--no-clobber"], &["--force"]] {
        let (a, b) = liars(&[], &[("MFMT", "", Odd::Meanwhile("/d/y"))], usize::MAX);
        let ended = lied_to(options, &a, &b).exits(3);
        let ended = ended.says("came to stand there");
        assert_eq!(b.content("/d/y").as_deref(), Some(OTHERS), "{options:?}: {}", ended.describe());
        assert_eq!(b.names(), ["/d/y"], "{options:?}: {}", ended.describe());
    }
}

/// Goal: of names that are one to the destination one file is copied and the others fail, in each run; where
/// they are two, both are copied.
#[test]
fn names_that_are_one_to_a_server_are_not_both_copied() {
    for folds in [true, false] {
        let a = Steered::start(A).file("/d/name", b"one").file("/d/NAME", b"two").file("/d/Name", b"another");
        let b = if folds { Steered::start(B).folding() } else { Steered::start(B) };
        let room = Room::new();
        for again in [false, true] {
            let sources = ["/d/name", "/d/NAME", "/d/Name"].map(|path| a.url(path));
            let state = format!("--state={}", room.at("state").display());
            let ended = Haul::cp(["--patience=5s", &state]).args(sources).args([b.url("/d/")]).run().sane();
            let summary = ended.summary();
            let counts = (summary.number("files") + summary.number("unchanged"), summary.number("failed"));
            assert_eq!(counts, if folds { (1, 2) } else { (3, 0) }, "{folds} {again}: {}", ended.describe());
            assert_eq!(b.names().len() as u64, counts.0, "{:?}", b.names());
        }
    }
}

/// Goal: where one transfer found no way and another one did, each file is copied, or it is told that it was
/// not.
#[test]
fn no_way_between_two_leaves_nothing_out() {
    beside([1, 2, usize::MAX], |times| {
        let mut a = Steered::start(A);
        let b = Steered::start(B).odd("PASV", "", times, Odd::Says("425 no port is left")).odd(
            "PORT",
            "",
            usize::MAX,
            Odd::Says("500 not to others"),
        );
        let paths: Vec<String> = (0..8).map(|index| format!("/d/f{index}")).collect();
        for path in &paths {
            a = a.file(path, &vec![b'x'; (1 << 20) + 1]);
        }
        let sources: Vec<String> = paths.iter().map(|path| a.url(path)).collect();
        let ended = Haul::cp(["--patience=2s"]).args(sources).args([b.url("/d/")]).run().sane();
        let there = paths.iter().filter(|path| b.content(path) == a.content(path)).count();
        if ended.status.code() == Some(0) {
            assert_eq!(there, paths.len(), "{times}: {}", ended.describe());
        }
        assert!(times == usize::MAX || ended.status.code() == Some(0), "{times}: {}", ended.describe());
    });
}

/// Goal: where neither makes a sum nothing is compared; what has not the form of one, or differs, fails the
/// file; and where each file must be compared, what cannot be is not given its name.
#[test]
fn sums_count_only_as_sums() {
    let none = ("CKSM", "", Odd::Says("213 "));
    let refused = ("CKSM", "", Odd::Says("500 what"));
    for (odd, code) in [(none, 3), (refused, 0)] {
        let (a, b) = liars(std::slice::from_ref(&odd), std::slice::from_ref(&odd), usize::MAX);
        let ended = lied_to(&[], &a, &b).exits(code);
        if code == 0 {
            let counts = (third(&ended, "compared"), third(&ended, "not_compared"));
            assert_eq!(counts, (0, 1), "{}", ended.describe());
            ended.says("NOT compared");
        } else {
            ended.says("what comes has not the form of one");
            assert!(b.names().is_empty(), "{:?}", b.names());
        }
        let (a, b) = liars(std::slice::from_ref(&odd), std::slice::from_ref(&odd), usize::MAX);
        let ended = lied_to(&["--verify=disk"], &a, &b).exits(3);
        if code == 0 {
            ended.says("wants each file compared");
        }
        assert!(b.names().is_empty(), "{:?}", b.names());
    }
    let other = ("CKSM", "", Odd::Says("213 00112233445566778899aabbccddeeff"));
    let (a, b) = liars(&[], &[other], usize::MAX);
    lied_to(&[], &a, &b).exits(3).says("is not that of the source");
    assert!(b.names().is_empty(), "{:?}", b.names());
}

/// Goal: an answer that belongs to nothing ends the sessions, and no file is taken for whole by it. Of a
/// rename it is found out over other sessions whether it was done: there the file has its name.
#[test]
fn answers_out_of_step_count_for_nothing() {
    let rows = [
        (&[][..], &[("STOR", "", Odd::Before("226 all is there"))][..], 3),
        (&[("RETR", "", Odd::Before("226 all is there"))][..], &[][..], 3),
        (&[][..], &[("STOR", "", Odd::Says("226 all is there"))][..], 3),
        (&[][..], &[("RNFR", "", Odd::Before("250 named"))][..], 0),
        (&[][..], &[("CKSM", "", Odd::Before("226 all is there"))][..], 3),
    ];
    beside(rows, |(from, to, code)| {
        let (a, b) = liars(from, to, usize::MAX);
        let ended = lied_to(&[], &a, &b).exits(code);
        let there = b.content("/d/y");
        assert!(
            there.clone().is_none_or(|y| Some(y) == a.content("/d/x")) && there.is_some() == (code == 0),
            "{from:?} {to:?}: {}",
            ended.describe()
        );
        let (a, b) = liars(from, to, 1);
        let ended = lied_to(&[], &a, &b);
        assert!(
            ended.status.code() == Some(3) || b.content("/d/y") == a.content("/d/x"),
            "{}",
            ended.describe()
        );
    });
}

/// Goal: where nothing moves any more it ends, and it is said which of the two stalls.
#[test]
fn a_pair_that_stalls_is_ended_and_named() {
    let rows = [
        (&[("RETR", "", Odd::Stalls)][..], &[][..], "127.0.0.2"),
        (&[][..], &[("STOR", "", Odd::Stalls)][..], "127.0.0.3"),
        (&[("RETR", "", Odd::Silent)][..], &[][..], "127.0.0.2"),
        (&[][..], &[("STOR", "", Odd::Silent)][..], "127.0.0.3"),
    ];
    beside(rows, |(from, to, stalls)| {
        let (a, b) = liars(from, to, usize::MAX);
        let ended = lied_to(&[], &a, &b);
        // What stalls between the two may go by this host.
        let relayed = ended.status.code() == Some(0) && ended.stderr.contains("the data goes by this host");
        assert!(relayed || matches!(ended.status.code(), Some(1 | 3)), "{}", ended.describe());
        assert!(
            ended.stderr.contains("stall") || ended.stderr.contains("nothing moved"),
            "{}",
            ended.describe()
        );
        assert!(ended.stderr.contains(stalls), "{}", ended.describe());
        let there = b.content("/d/y");
        assert!(if relayed { there == a.content("/d/x") } else { there.is_none() }, "{}", ended.describe());
        let both: Vec<String> = a.heard().into_iter().chain(b.heard()).collect();
        assert!(both.iter().any(|line| line == "ABOR"), "{both:?}");
    });
}

/// Goal: a server that drops bytes of names is never made to write to another name: such a file fails by
/// itself, and what has the rest of its name keeps its content.
#[test]
fn names_that_the_destination_cannot_have_fail_alone() {
    need!("proftpd", "gridftp");
    let (a, b) = (Node::start(Software::Proftpd, A, OPEN_PROFTPD), Node::start(Software::Globus, B, ""));
    let (data, copy, room) = (a.place("data"), b.place("copy"), Room::new());
    let mut rng = fastrand::Rng::with_seed(17);
    for dir in [data.clone(), data.join("S\u{fc}d"), copy.clone()] {
        fs::create_dir_all(dir).expect("make a directory");
    }
    for name in ["Zrich", "Z\u{fc}rich", "S\u{fc}d/x", "plain"] {
        file(&data.join(name), &mut rng, 1000);
    }
    let ended = cp(&room.at("state"), &[], &(a.url(&data) + "/"), &b.url(&copy)).run().sane().exits(3);
    assert!(read(copy.join("Zrich")) == read(data.join("Zrich")), "{}", ended.describe());
    assert!(read(copy.join("plain")) == read(data.join("plain")));
    assert_eq!(fs::read_dir(&copy).expect("list it").count(), 2, "{}", ended.describe());
    ended.says("drops bytes that are not ASCII");
}

/// Goal: a stop ends what is under way at both servers, and leaves nothing half there but what a later run
/// goes on with.
#[test]
fn a_stop_ends_both() {
    need!("gridftp");
    let (a, b, room) =
        (Node::start(Software::Globus, A, ""), Node::start(Software::Globus, B, ""), Room::new());
    let (data, copy) = (a.place("data"), b.place("copy"));
    for dir in [&data, &copy] {
        fs::create_dir(dir).expect("make a directory");
    }
    for index in 0..3 {
        file(&data.join(format!("f{index}")), &mut fastrand::Rng::with_seed(18 + index), 3_000_000);
    }
    let slow = Slow::to(&b, 200_000);
    let from = a.url(&data) + "/";
    let mut running = cp(&room.at("state"), &[], &from, &slow.url(&copy)).start();
    let begun = running.until(|_| slow.passed.load(std::sync::atomic::Ordering::Relaxed) > 100_000);
    assert!(begun, "{}", running.wait().describe());
    running.signal(rustix::process::Signal::INT);
    running.wait().sane().exits(130);
    let whole = |name: &std::ffi::OsStr| read(copy.join(name)) == read(data.join(name));
    for entry in fs::read_dir(&copy).expect("list it").flatten() {
        assert!(!entry.file_name().to_string_lossy().contains("haul~"), "{:?} is left", entry.path());
        assert!(whole(&entry.file_name()), "{:?}", entry.path());
    }
    slow.rate.store(1 << 40, std::sync::atomic::Ordering::Relaxed);
    cp(&room.at("state"), &[], &from, &slow.url(&copy)).run().sane().exits(0);
    assert_arrived(&data, &copy, true);
}
