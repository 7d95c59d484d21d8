//! Reaching the far end: the direct path, the way through ssh, the pushed program, shells that talk,
//! strangers.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::net::{IpAddr, Ipv6Addr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Signal;

use crate::support::compare::{ALL, assert_same};
use crate::support::hosts::Hosts;
use crate::support::netns::{FAR, FAR_BLOCKED, FAR_SECOND, FAR6, FAR6_BLOCKED};
use crate::support::run::{Haul, Running, program};
use crate::support::sshd::{FarHaul, Sshd};
use crate::support::{Room, procs, read, set_mode, tree};

/// Goal: between two hosts the data take TLS connections of their own, both ways, and nothing outlives the
/// run.
/// Method: two namespaces; what the summary says; what listens in the far one afterwards.
#[test]
fn data_take_the_direct_path() {
    need!("netns", "sshd");
    let hosts = Hosts::new(30, 100, 9_000_000);
    for (haul, sink) in
        [(hosts.copy_to("pushed", false, &[]), "pushed"), (hosts.copy_to("pulled", true, &[]), "pulled")]
    {
        let ended = haul.run().sane().exits(0);
        assert_eq!(ended.summary().text("protect"), "tls", "{}", ended.describe());
        assert!((1..=16).contains(&ended.summary().number("streams")), "{}", ended.describe());
        hosts.assert_copied_to(sink);
        procs::wait_gone(&hosts.sshd.mark);
        let listening = sockets(&hosts.sshd, true);
        assert_eq!(listening.len(), 1, "besides sshd something listens: {listening:?}");
    }
}

/// Goal: the far end listens on one port of the range that was asked for, and with `--via` on those addresses
/// only.
/// Method: the kernel's list of sockets in the far namespace while a copy runs.
#[test]
fn only_the_ports_asked_for_are_used() {
    need!("netns", "sshd");
    let far: IpAddr = FAR.parse().expect("an address");
    for options in [&[][..], &["--via", FAR]] {
        let hosts = Hosts::new(30, 10, 96 << 20);
        let mut seen = BTreeSet::new();
        let mut run = hosts.copy_to("pushed", false, &[&["--port", "40100-40104"], options].concat()).start();
        run.until(|_| {
            seen.extend(sockets(&hosts.sshd, false));
            false
        });
        run.wait().sane().exits(0);
        hosts.assert_copied_to("pushed");
        let everywhere = (options.is_empty()).then_some(IpAddr::from(Ipv6Addr::UNSPECIFIED));
        let strange: Vec<_> =
            seen.iter().filter(|socket| socket.0 != far && Some(socket.0) != everywhere).collect();
        assert!(strange.is_empty(), "an address that was not asked for: {strange:?}");
        let ports: BTreeSet<u16> =
            seen.iter().map(|socket| socket.1).filter(|port| (40100..=40104).contains(port)).collect();
        assert_eq!(ports.len(), 1, "one port of the range, not {seen:?}");
        // The other one is sshd's.
        let all: BTreeSet<u16> = seen.iter().map(|socket| socket.1).collect();
        assert_eq!(all.len(), 2, "{seen:?}");
    }
}

/// Goal: an IPv6 address that swallows what is sent to it costs no way: IPv4 is taken; where IPv6 works it is
/// used.
/// Method: addresses of the far host, in an order in which the one that swallows comes first.
#[test]
fn a_black_holed_ipv6_falls_back() {
    need!("netns", "sshd");
    let hosts = Hosts::new(30, 100, 9_000_000);
    hosts.pair.ipv6();
    for (via, to) in [
        (format!("{FAR6_BLOCKED},{FAR}"), format!("tcp to {FAR}:")),
        (format!("{FAR6_BLOCKED},{FAR_BLOCKED},{FAR6}"), format!("tcp to [{FAR6}]:")),
        (format!("{FAR6},{FAR}"), format!("tcp to [{FAR6}]:")),
    ] {
        for (haul, sink) in [
            (hosts.copy_to("pushed", false, &["--via", &via]), "pushed"),
            (hosts.copy_to("pulled", true, &["--via", &via]), "pulled"),
        ] {
            let ended = haul.run().sane().exits(0);
            let summary = ended.summary();
            assert!(summary.text("path").starts_with(&to), "{via}\n{}", ended.describe());
            assert_eq!(
                summary.number("strays"),
                0,
                "what lost the race is no stranger\n{}",
                ended.describe()
            );
            hosts.assert_copied_to(sink);
            hosts.make_room(sink);
        }
    }
}

/// Goal: a stop ends a copy whose ssh has not come anywhere: as interrupted, without an error, without an ssh
/// that stays, and with nothing made.
/// Method: an address that swallows what is sent to it, and an ssh of ours that says nothing; both ways.
#[test]
fn a_stop_ends_an_ssh_that_gets_nowhere() {
    need!("netns", "sshd");
    let hosts = Hosts::new(30, 1, 1000);
    let (sink, said) = (hosts.room.dir("in").join("sink"), hosts.room.at("said"));
    let mute = hosts.room.file("mute", "#!/bin/sh\necho $$ >said.new; mv said.new said; exec sleep 600\n");
    set_mode(&mute, 0o755);
    let far = |path: &Path| format!("{FAR_BLOCKED}:{}", path.display());
    let real = format!("{} -o ConnectTimeout=600", hosts.sshd.command());
    for ssh in [real.as_str(), mute.to_str().expect("UTF-8")] {
        for (from, to) in
            [(hosts.data.display().to_string(), far(&sink)), (far(&hosts.data), sink.display().to_string())]
        {
            let haul = Haul::cp(["-r", "-e", ssh, &from, &to]).within(&hosts.room.at(".")).near(&hosts.pair);
            let mut run = haul.start();
            let mark = run.mark.clone();
            let waits = |_: &Running| match ssh == real {
                true => !hosts.near(&["ss", "-Htn", "state", "syn-sent"]).trim().is_empty(),
                false => said.exists(),
            };
            assert!(run.until(waits), "it waits for ssh");
            run.signal(Signal::INT);
            let ended = run.wait().sane().exits(130);
            let summary = ended.summary();
            assert_eq!(summary.text("status"), "interrupted");
            assert!(summary.0["error"].is_null(), "{}", ended.describe());
            assert_eq!(fs::read_dir(hosts.room.at("in")).expect("list a directory").count(), 0);
            assert!(procs::marked_ssh(&mark).is_empty(), "ssh stays: {}", ended.describe());
            if let Ok(process) = fs::read_to_string(&said) {
                assert!(!Path::new(&format!("/proc/{}", process.trim())).exists(), "{}", ended.describe());
                fs::remove_file(&said).expect("make room");
            }
        }
    }
}

/// Goal: two NICs of both hosts are found, or named, and both carry data, both ways.
/// Method: what the NICs counted; each byte compared.
#[test]
fn two_nics_carry_data() {
    need!("netns", "sshd");
    let hosts = Hosts::new(30, 20, 128 << 20);
    hosts.pair.second_nic();
    // Whose thread has a processor decides how much a stream carries, where nothing else does.
    hosts.pair.slow_nics("400mbit");
    let named = format!("{FAR},{FAR_SECOND}");
    for options in [&[][..], &["--via", &named]] {
        for push in [true, false] {
            let before = ["veth0", "veth1"].map(|nic| hosts.pair.carried(nic));
            let options = [&["-v", "--streams=4"], options].concat();
            let haul = if push {
                hosts.copy_to("pushed", false, &options)
            } else {
                hosts.copy_to("pulled", true, &options)
            };
            let ended = haul.run().sane().exits(0);
            let carried = ["veth0", "veth1"].map(|nic| hosts.pair.carried(nic));
            let carried = [carried[0] - before[0], carried[1] - before[1]];
            let least = carried.iter().sum::<u64>() / 4;
            assert!(carried.iter().all(|n| *n >= least), "{carried:?}\n{}", ended.describe());
            let said = ended.summary().0.to_string();
            assert!(said.contains("2 paths: ") && said.contains("(2 streams)"), "{said}");
            assert_eq!(ended.summary().number("strays"), 0, "{}", ended.describe());
            let sink = if push { "pushed" } else { "pulled" };
            hosts.assert_copied_to(sink);
            hosts.make_room(sink);
        }
    }
}

/// Goal: a NIC that fails costs the streams on it only: the copy goes on over the other, also where it
/// carried control.
/// Method: the second NIC goes down in the middle, with control on it and without; it comes back, or does
/// not.
#[test]
fn a_nic_that_fails_loses_only_its_streams() {
    need!("netns", "sshd");
    for (via, back) in [([FAR, FAR_SECOND], true), ([FAR_SECOND, FAR], false)] {
        let hosts = Hosts::new(30, 10, 512 << 20);
        hosts.pair.second_nic();
        let via = via.join(",");
        let mut run = hosts.copy_to("pushed", false, &["--via", &via, "--streams=4"]).start();
        assert!(run.until(|_| procs::written(&procs::marked(&hosts.sshd.mark)) > 8 << 20), "it has begun");
        let before = hosts.pair.carried("veth1");
        assert!(before > 1 << 20, "both carry data: {before}");
        hosts.pair.second(false);
        if back {
            procs::wait_until(Duration::from_secs(14), || false);
            hosts.pair.second(true);
        }
        let ended = run.wait().sane().exits(0);
        assert_eq!(ended.summary().text("protect"), "tls", "{}", ended.describe());
        hosts.assert_copied_to("pushed");
    }
}

/// Goal: where a firewall drops what is sent to the port, all goes through ssh, with a line for the firewall
/// office.
/// Method: an address of the far host at which nothing arrives, and a near host that lets nobody in; both
/// ways.
#[test]
fn a_blocked_port_leads_through_ssh() {
    need!("netns", "sshd");
    let hosts = Hosts::new(30, 100, 20_000_000);
    hosts.pair.close(&hosts.pair.near, 40110);
    let options = ["--port=40110", "--via", FAR_BLOCKED];
    for (haul, sink) in [
        (hosts.copy_to("pushed", false, &options), "pushed"),
        (hosts.copy_to("pulled", true, &options), "pulled"),
    ] {
        let ended = haul.run().sane().exits(0).says("allow tcp").says(FAR_BLOCKED);
        assert_ne!(ended.summary().text("protect"), "tls", "{}", ended.describe());
        hosts.assert_copied_to(sink);
    }
}

/// Goal: a cable that is out for a moment costs time only.
/// Method: the link goes down at a part of the copy and comes back.
#[test]
fn a_short_outage_loses_nothing() {
    need!("netns", "sshd");
    let hosts = Hosts::new(30, 10, 96 << 20);
    let mut run = hosts.copy_to("pushed", false, &[]).start();
    run.until(|_| procs::written(&procs::marked(&hosts.sshd.mark)) > 8 << 20);
    hosts.pair.cable(false);
    procs::wait_until(Duration::from_millis(500), || false);
    hosts.pair.cable(true);
    run.wait().sane().exits(0);
    hosts.assert_copied_to("pushed");
}

/// Goal: a host without haul gets it pushed, announced, into a private cache; a second run uses that;
/// `--no-push` and `--remote-haul` push nothing.
/// Method: an sshd without haul in its PATH; what lies in the far home.
#[test]
fn a_bare_host_gets_the_program_pushed() {
    need!("sshd");
    let sshd = Sshd::start_as(FarHaul::Absent, None);
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    tree::plain(&data, 31, 10, 1_000_000);
    let run = |options: &[&str]| {
        let haul = Haul::cp(["-r", "--force"]).args(options).by(&sshd);
        let ended = haul.args([data.as_os_str(), &sshd.path(&sink)]).run().sane();
        // A program that still runs cannot be written, nor would a new one show.
        procs::wait_gone(&sshd.mark);
        ended
    };

    run(&["--no-push"]).exits(1).says("haul");
    assert!(programs(&sshd.home()).is_empty());
    run(&["--remote-haul", &program().display().to_string()]).exits(0);
    assert!(programs(&sshd.home()).is_empty());
    assert_same(&data, &sink.join("data"), ALL);

    let pushed = run(&[]).exits(0).says("push");
    let cached = programs(&sshd.home());
    assert_eq!(cached.len(), 1, "{cached:?}\n{}", pushed.describe());
    assert_eq!(
        fs::metadata(&cached[0]).expect("look at it").mode() & 0o077,
        0,
        "others can use the pushed program"
    );
    let cache = cached[0].parent().expect("it lies in a directory");
    assert_eq!(fs::metadata(cache).expect("look at it").mode() & 0o777, 0o700);
    let inode = || fs::metadata(&cached[0]).expect("look at it").ino();
    let first = inode();
    run(&[]).exits(0);
    assert_eq!(inode(), first, "pushed again");

    // A program in the cache that is not what was pushed is never run.
    // A new file in its place: the last threads of a program that ends keep the old one from being written.
    fs::remove_file(&cached[0]).expect("remove the program");
    fs::write(&cached[0], format!("#!/bin/sh\ntouch {}\n", room.at("ran").display()))
        .expect("spoil the cache");
    set_mode(&cached[0], 0o700);
    run(&[]).exits(0);
    assert!(!room.at("ran").exists(), "a spoilt cache was run");
    assert_same(&data, &sink.join("data"), ALL);
}

/// Goal: a program that uses the library copies to another host and back, and brings haul there.
/// Method: `examples/remote.rs` of the library, with an sshd that has no haul; every byte compared; a host
/// that cannot be reached is an error with its cause.
#[test]
fn a_program_of_the_library_reaches_another_host() {
    need!("sshd");
    let example = PathBuf::from(env!("CARGO_BIN_EXE_haul")).with_file_name("examples").join("remote");
    assert!(example.exists(), "{} is missing: cargo build -p haul --examples", example.display());
    let sshd = Sshd::start_as(FarHaul::Absent, None);
    let room = Room::new();
    let (data, sink, back) = (room.dir("data"), room.dir("sink"), room.dir("back"));
    tree::plain(&data, 33, 10, 1_000_000);
    let ssh = sshd.command();
    let run = |from: &OsStr, to: &OsStr, ssh: &str| {
        let mut command = Command::new(&example);
        command.args([from, to, program().as_os_str()]).args(ssh.split_whitespace());
        let output = command.output().expect("run the example");
        procs::wait_gone(&sshd.mark);
        let [out, err] =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        (output.status.code(), out, err)
    };
    let (code, out, err) = run(data.as_os_str(), &sshd.path(&sink), &ssh);
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(out.starts_with("Complete: 11 files") && err.contains("push"), "{out}{err}");
    assert_same(&data, &sink.join("data"), ALL);
    let (code, out, err) = run(&sshd.path(&sink.join("data")), back.as_os_str(), &ssh);
    assert_eq!(code, Some(0), "{out}{err}");
    assert_same(&data, &back.join("data"), ALL);
    let (code, out, _) = run(&sshd.path(&sink.join("data")), back.as_os_str(), &ssh);
    assert!(code == Some(0) && out.contains(" 0 files") && out.contains(" 11 unchanged"), "{out}");
    let (code, out, err) = run(data.as_os_str(), &sshd.path(&sink), "/nonexistent/ssh");
    assert!(
        code == Some(1) && err.contains("/nonexistent/ssh") && err.contains("install haul"),
        "{out}{err}"
    );
}

/// Goal: a destination that a push makes has the mode that the user's umask gives, whether haul was found
/// there or brought.
#[test]
fn a_new_destination_follows_the_users_umask() {
    need!("sshd");
    for haul in [FarHaul::Built, FarHaul::Absent] {
        let sshd = Sshd::start_as(haul, None);
        let room = Room::new();
        let file = room.file("f", "f");
        let made = room.at("made/within");
        let mut to = sshd.path(&made);
        to.push("/");
        Haul::cp([file.as_os_str(), &to]).by(&sshd).run().sane().exits(0);
        // What whoever makes a directory there by hand gets.
        let by_hand = Command::new("ssh")
            .args(sshd.command().split_whitespace().skip(1))
            .args(["127.0.0.1", "mkdir"])
            .arg(room.at("by-hand"))
            .status();
        assert!(by_hand.expect("run ssh").success());
        let mode = |path: &Path| fs::metadata(path).expect("look").mode() & 0o7777;
        assert_ne!(mode(&room.at("by-hand")), 0o700, "this shows nothing");
        for dir in ["made", "made/within"] {
            assert_eq!(mode(&room.at(dir)), mode(&room.at("by-hand")), "{dir}");
        }
    }
}

/// Goal: another user's home is found at the far end, in a source and in a destination; a user who is not
/// there is named.
#[test]
fn a_tilde_with_a_name_is_expanded_at_the_far_end() {
    need!("sshd", "root");
    let sshd = Sshd::start();
    let room = Room::new();
    let file = room.file("f", "content");
    let root = tempfile::Builder::new().prefix("haul-e2e-").tempdir_in("/root").expect("root has a home");
    let typed = |rest: &str| {
        let name = root.path().file_name().expect("it has a name").to_string_lossy().into_owned();
        sshd.path(Path::new(&format!("~root/{name}/{rest}")))
    };
    Haul::cp([file.as_os_str(), &typed("to")]).by(&sshd).run().sane().exits(0);
    assert_eq!(read(root.path().join("to")), b"content");
    Haul::cp([typed("to").as_os_str(), room.at("back").as_os_str()]).by(&sshd).run().sane().exits(0);
    assert_eq!(read(room.at("back")), b"content");
    for words in [
        [file.clone().into_os_string(), sshd.path(Path::new("~no-such-user/to"))],
        [sshd.path(Path::new("~no-such-user/from")), room.at("to").into_os_string()],
    ] {
        Haul::cp(words).by(&sshd).run().sane().exits(1).says("no such user");
    }
    assert!(!sshd.home().join("~no-such-user").exists() && !room.at("to").exists());
}

/// Goal: what a login shell or wrapper says first is skipped; too much of it is a clear error.
/// Method: a `.bashrc` and a wrapper that talk, with bytes that are no text; then one that does not stop.
#[test]
fn talkative_shells_are_skipped() {
    need!("sshd");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    tree::plain(&data, 32, 10, 1_000_000);
    let talk = |bytes: u32| {
        format!("echo 'Welcome to the cluster'; printf '\\0\\377'; head -c {bytes} /dev/zero | tr '\\0' x\n")
    };
    for (bytes, code) in [(0, 0), (50_000, 0), (300_000, 1)] {
        let sshd = Sshd::start_as(FarHaul::Script(format!("{}exec \"$HAUL\" \"$@\"", talk(bytes))), None);
        fs::write(sshd.home().join(".bashrc"), talk(100)).expect("write .bashrc");
        let haul = Haul::cp(["-r", "--force", "--no-push"]).by(&sshd);
        haul.args([data.as_os_str(), &sshd.path(&sink)]).run().sane().exits(code);
        procs::wait_gone(&sshd.mark);
    }
    assert_same(&data, &sink.join("data"), ALL);
}

/// Goal: a far program that is no haul, or dies at once, is a clear error and no hang.
/// Method: wrappers that say nothing, nonsense, or end.
#[test]
fn a_far_end_that_is_no_haul_is_an_error() {
    need!("sshd");
    let room = Room::new();
    let data = room.dir("data");
    room.file("data/f", "f");
    for body in ["exit 0", "exit 7", "echo hello; cat >/dev/null", "kill -9 $$", "echo oops >&2; exit 1"] {
        let sshd = Sshd::start_as(FarHaul::Script(body.to_owned()), None);
        let haul = Haul::cp(["-r", "--no-push"]).by(&sshd);
        haul.args([data.as_os_str(), &sshd.path(&room.dir("sink"))]).run().sane().exits(1);
        assert!(!room.at("sink/data").exists());
    }
}

/// Goal: strangers on the port change a counter and nothing else.
/// Method: as long as a copy runs, connections to its port that send noise, half a greeting, or nothing.
#[test]
fn strangers_on_the_port_change_a_counter_only() {
    need!("sshd");
    let sshd = Sshd::start();
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    tree::plain(&data, 33, 100, 64 << 20);
    let port = TcpListener::bind(("127.0.0.1", 0))
        .and_then(|socket| socket.local_addr())
        .expect("a free port")
        .port();
    let option = format!("--port={port}-{port}");
    let (over, met) = (AtomicBool::new(false), AtomicU64::new(0));
    let ended = std::thread::scope(|scope| {
        scope.spawn(|| annoy(port, &over, &met));
        let haul = Haul::cp(["-r", option.as_str()]).by(&sshd);
        let ended = haul.args([data.as_os_str(), &sshd.path(&sink)]).run();
        over.store(true, Ordering::Relaxed);
        ended
    });
    let summary = ended.sane().exits(0).summary();
    assert_same(&data, &sink.join("data"), ALL);
    assert!(met.load(Ordering::Relaxed) > 0, "no stranger got through, so this shows nothing");
    assert!(summary.number("strays") > 0, "{summary:?}");
    assert_eq!(summary.text("protect"), "tls");
}

/// Connects and talks nonsense until `over`; counts the connections that were accepted.
fn annoy(port: u16, over: &AtomicBool, met: &AtomicU64) {
    let mut rng = fastrand::Rng::with_seed(34);
    // Some stay open and silent.
    let mut open = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        met.fetch_add(1, Ordering::Relaxed);
        let noise = tree::bytes(&mut rng, 4000);
        // It may hang up first.
        let _ = match rng.u32(0..4) {
            0 => stream.write_all(&noise),
            1 => stream.write_all(&[&[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3], &noise[..40]].concat()),
            2 => stream.write_all(b"GET / HTTP/1.1\r\n\r\n"),
            _ => Ok(()),
        };
        if open.len() < 8 {
            open.push(stream);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Local address and port of each TCP socket in the namespace of sshd, or only of those that listen.
fn sockets(sshd: &Sshd, listening: bool) -> BTreeSet<(IpAddr, u16)> {
    let tables = ["tcp", "tcp6"].map(|name| read(format!("/proc/{}/net/{name}", sshd.pid())));
    let parse = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, _, state) = (fields.next()?, fields.next()?, fields.next()?);
        let (address, port) = local.split_once(':')?;
        // Words of 32 bits in the machine's order.
        let words =
            (0..address.len()).step_by(8).map(|at| u32::from_str_radix(address.get(at..at + 8)?, 16).ok());
        let bytes: Vec<u8> =
            words.collect::<Option<Vec<u32>>>()?.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let address = match <[u8; 4]>::try_from(&bytes[..]) {
            Ok(v4) => IpAddr::from(v4),
            Err(_) => IpAddr::from(<[u8; 16]>::try_from(&bytes[..]).ok()?).to_canonical(),
        };
        (!listening || state == "0A").then_some((address, u16::from_str_radix(port, 16).ok()?))
    };
    let lines = |table: &Vec<u8>| -> Vec<_> {
        String::from_utf8_lossy(table).lines().skip(1).filter_map(parse).collect()
    };
    tables.iter().flat_map(lines).collect()
}

/// Files below `dir` that are as long as the program under test.
fn programs(dir: &Path) -> Vec<PathBuf> {
    let len = fs::metadata(program()).expect("look at the program").len();
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("list a directory").map(|entry| entry.expect("list a directory")) {
        let data = entry.metadata().expect("look at a file");
        if data.is_dir() {
            found.extend(programs(&entry.path()));
        } else if data.len() == len {
            found.push(entry.path());
        }
    }
    found
}
