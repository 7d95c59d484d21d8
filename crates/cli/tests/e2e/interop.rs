//! The matrix of `docs/interop.md`: haul's client with the servers of others, and the clients of others with
//! haul's server. Each cell puts a tree and gets it back, and other code than haul's compares every byte.
//!
//! A cell that fails is named, and the others run all the same. What cannot pass stands in its row (`lost`),
//! and is shown: exactly these names are missing, and the client says so. With `HAUL_TEST_INTEROP` set the
//! trees are large: 10,000 files, and one of 5 GiB that is nearly all hole. What other tests show of the same
//! pairs is named on that page, and not done again here.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal};

use crate::support::ftpd::{Kind, escaped};
use crate::support::matrix::{
    EMPTY, LOST_AT_GLOBUS, MIB, Matrix, Peer, QUOTE, SOON, Server, TELNET, assert_arrived, file_url, furnish,
    is_here, place, remove, slash,
};
use crate::support::run::Outcome;
use crate::support::{Room, procs, read, tree};

/// A server as haul's client sees it.
struct Row {
    peer: Peer,
    options: &'static [&'static str],
    lost: &'static [&'static [u8]],
}

const fn row(peer: Peer, options: &'static [&'static str], lost: &'static [&'static [u8]]) -> Row {
    Row { peer, options, lost }
}

const PLAIN: &[&str] = &["--data-channel=plain"];
const SHOWN: &[&str] = &["--data-channel=shown"];
const PRIVATE: &[&str] = &["--data-channel=private"];

const OF_HAULS_CLIENT: [Row; 14] = [
    row(Peer::Theirs(Kind::Gridftp), &[], &LOST_AT_GLOBUS),
    row(Peer::Theirs(Kind::GridftpStriped), &[], &LOST_AT_GLOBUS),
    row(Peer::Theirs(Kind::GridftpGsi), PLAIN, &[]),
    row(Peer::Theirs(Kind::GridftpGsi), SHOWN, &[]),
    row(Peer::Theirs(Kind::GridftpGsi), PRIVATE, &[]),
    row(Peer::Theirs(Kind::Vsftpd), &[], &[]),
    row(Peer::Theirs(Kind::VsftpdTls), &[], &[]),
    row(Peer::Theirs(Kind::Proftpd), &[], &[]),
    row(Peer::Theirs(Kind::ProftpdList), &[], &[]),
    row(Peer::Theirs(Kind::ProftpdTls), &[], &[]),
    row(Peer::Haul, &[], &[]),
    row(Peer::HaulGsi, PLAIN, &[]),
    row(Peer::HaulGsi, SHOWN, &[]),
    row(Peer::HaulGsi, PRIVATE, &[]),
];

/// Goal: haul's client puts a tree to each server and gets it back, whole; what a server cannot be asked for
/// fails by name, and all else arrives.
#[test]
fn interop_of_hauls_client() {
    let room = Room::new();
    let data = furnish(&room);
    let mut matrix = Matrix::default();
    for Row { peer, options, lost } in OF_HAULS_CLIENT {
        if !is_here(peer) {
            continue;
        }
        let server = Server::start(peer);
        let ends = |ended: Outcome| match lost {
            [] => drop(ended.exits(0)),
            _ => drop(ended.exits(3)),
        };
        matrix.cell(format!("haul puts to {peer:?} {options:?}"), || {
            ends(server.cp(&[options, &[&slash(&data), &server.url("put/")]].concat()));
            assert_arrived(&data, &server.at("put"), lost);
        });
        remove(&server.at("put"));
        let held = server.at("got");
        place(&data, &held);
        matrix.cell(format!("haul gets from {peer:?} {options:?}"), || {
            let sink = room.dir("sink");
            ends(server.cp(&[options, &[&server.url("got/"), &slash(&sink)]].concat()));
            assert_arrived(&data, &sink, lost);
        });
        remove(&room.at("sink"));
    }
    matrix.ends();
}

/// A client of others with haul's server.
struct Client {
    peer: Peer,
    need: &'static str,
    by: By,
    options: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// globus-url-copy, which walks the tree.
    GlobusTree,
    /// The same, told each name.
    GlobusNames,
    Lftp,
    /// Each file by its name, in one run.
    Curl,
}

const fn by(by: By, need: &'static str, peer: Peer, options: &'static [&'static str]) -> Client {
    Client { peer, need, by, options }
}

const GLOBUS: &str = "globus-url-copy";
/// Channels that are kept, commands that are sent ahead, several sessions.
const ALL_AT_ONCE: &[&str] = &["-fast", "-p", "8", "-pp", "-cc", "4"];

const OF_HAULS_SERVER: [Client; 9] = [
    by(By::GlobusTree, GLOBUS, Peer::Haul, &[]),
    by(By::GlobusTree, GLOBUS, Peer::Haul, ALL_AT_ONCE),
    by(By::GlobusTree, GLOBUS, Peer::Haul, &["-verify-checksum", "-p", "8"]),
    by(By::GlobusTree, GLOBUS, Peer::HaulGsi, &["-nodcau"]),
    by(By::GlobusTree, GLOBUS, Peer::HaulGsi, &["-fast", "-cc", "4"]),
    by(By::GlobusTree, GLOBUS, Peer::HaulGsi, &["-fast", "-dcpriv", "-cc", "4"]),
    by(By::GlobusNames, GLOBUS, Peer::Haul, &["-fast"]),
    by(By::Lftp, "lftp", Peer::Haul, &[]),
    by(By::Curl, "curl", Peer::Haul, &[]),
];

impl Client {
    /// What it cannot put, and under which other name that comes to lie.
    fn lost(&self) -> (&'static [&'static [u8]], &'static [&'static [u8]]) {
        match self.by {
            By::GlobusTree => (&[QUOTE], &[]),
            // They are told of files alone.
            By::GlobusNames | By::Curl => (&[EMPTY], &[]),
            By::Lftp => (&[TELNET], &[b"\xff\xff\xfex"]),
        }
    }

    /// The same of what it gets: who doubles Telnet's byte is understood when he reads.
    fn lost_when_read(&self) -> &'static [&'static [u8]] {
        match self.by {
            By::Lftp => &[],
            _ => self.lost().0,
        }
    }

    fn put(&self, room: &Room, data: &Path, server: &Server) {
        let to = server.url("put/");
        match self.by {
            By::GlobusTree => self.globus(server, &["-cd", "-r", &(file_url(data) + "/"), &to]),
            By::GlobusNames => {
                let pairs = files(data)
                    .into_iter()
                    .map(|name| format!("{}/{} {to}{}\n", file_url(data), escaped(&name), escaped(&name)));
                let list = room.file("pairs", pairs.collect::<String>());
                self.globus(server, &["-cd", "-f", &list.display().to_string()]);
            }
            By::Lftp => server.does(&[
                "lftp",
                "-c",
                &format!(
                    "set net:max-retries 2; open {}; mirror -R --parallel=3 {} put",
                    server.url(""),
                    data.display()
                ),
            ]),
            By::Curl => curl(room, server, data, |near, name| {
                [
                    b"ftp-create-dirs\nurl=",
                    &quoted((to.clone() + &escaped(name)).as_bytes())[..],
                    b"\nupload-file=",
                    near,
                ]
                .concat()
            }),
        }
    }

    fn get(&self, room: &Room, data: &Path, server: &Server, sink: &Path) {
        let from = server.url("got/");
        match self.by {
            By::GlobusTree => self.globus(server, &["-cd", "-r", &from, &(file_url(sink) + "/")]),
            By::GlobusNames => {
                let pairs = files(data)
                    .into_iter()
                    .map(|name| format!("{from}{} {}/{}\n", escaped(&name), file_url(sink), escaped(&name)));
                let list = room.file("pairs", pairs.collect::<String>());
                self.globus(server, &["-cd", "-f", &list.display().to_string()]);
            }
            By::Lftp => server.does(&[
                "lftp",
                "-c",
                &format!(
                    "set net:max-retries 2; open {}; mirror --parallel=3 got {}",
                    server.url(""),
                    sink.display()
                ),
            ]),
            By::Curl => {
                let near = sink.to_owned();
                curl(room, server, data, move |_, name| {
                    let to = quoted(near.join(name).as_os_str().as_bytes());
                    [
                        b"create-dirs\nurl=",
                        &quoted((from.clone() + &escaped(name)).as_bytes())[..],
                        b"\noutput=",
                        &to,
                    ]
                    .concat()
                });
            }
        }
    }

    #[track_caller]
    fn globus(&self, server: &Server, words: &[&str]) {
        server.does(&[&[GLOBUS], self.options, words].concat());
    }
}

/// The files below a directory, by their names from there.
fn files(dir: &Path) -> Vec<OsString> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).expect("list a directory").flatten() {
        if entry.path().is_dir() {
            let below = files(&entry.path()).into_iter();
            all.extend(below.map(|name| Path::new(&entry.file_name()).join(name).into_os_string()));
        } else {
            all.push(entry.file_name());
        }
    }
    all
}

/// One run of curl for all files of a directory; `lines` is told the file, quoted, and its name.
fn curl(room: &Room, server: &Server, data: &Path, lines: impl Fn(&[u8], &OsStr) -> Vec<u8>) {
    let each = files(data).into_iter().map(|name| {
        let near = quoted(data.join(&name).as_os_str().as_bytes());
        [b"silent\nshow-error\ngloboff\n".to_vec(), lines(&near, &name)].concat()
    });
    let config = room.file("curl", each.collect::<Vec<_>>().join(&b"\nnext\n"[..]));
    server.does(&[
        "curl",
        "--fail-early",
        "--parallel",
        "--parallel-max",
        "4",
        "-K",
        &config.display().to_string(),
    ]);
}

/// As curl's configuration has it.
fn quoted(text: &[u8]) -> Vec<u8> {
    let inner = text.iter().flat_map(|byte| match byte {
        b'\\' | b'"' => vec![b'\\', *byte],
        _ => vec![*byte],
    });
    [b'"'].into_iter().chain(inner).chain([b'"']).collect()
}

/// Goal: what clients of others put to haul's server and get from it is the tree, whole; what a client cannot
/// name is all that is missing.
#[test]
fn interop_of_hauls_server() {
    let room = Room::new();
    let data = furnish(&room);
    let mut matrix = Matrix::default();
    for client in OF_HAULS_SERVER {
        if !(is_here(client.peer) && crate::support::needs::all_here(&[client.need])) {
            continue;
        }
        let server = Server::start(client.peer);
        let (lost, instead) = client.lost();
        let (name, by) = (format!("{:?} {:?} {:?}", client.peer, client.options, client.by), client.by);
        // A quote in a name ends the whole walk of globus-url-copy; see the cell of it below.
        let walks = by == By::GlobusTree;
        let odd = data.join("odd");
        let aside = room.at("aside");
        if walks {
            fs::rename(odd.join(OsStr::from_bytes(QUOTE)), &aside).expect("set it aside");
        }
        let lost = if walks { &[] } else { lost };
        matrix.cell(format!("put to {name}"), || {
            client.put(&room, &data, &server);
            for name in instead {
                fs::remove_file(server.at("put/odd").join(OsStr::from_bytes(name))).expect("it is called so");
            }
            assert_arrived(&data, &server.at("put"), lost);
        });
        remove(&server.at("put"));
        place(&data, &server.at("got"));
        // That asks for the sums of directories when it gets them; see below.
        let gets = !client.options.contains(&"-verify-checksum");
        let get = || {
            let sink = room.dir("sink");
            client.get(&room, &data, &server, &sink);
            assert_arrived(&data, &sink, if walks { &[] } else { client.lost_when_read() });
            assert!(!server.log().contains("panicked"), "{}", server.log());
        };
        if gets {
            matrix.cell(format!("get from {name}"), get);
        }
        remove(&room.at("sink"));
        if walks {
            fs::rename(&aside, odd.join(OsStr::from_bytes(QUOTE))).expect("put it back");
        }
    }
    matrix.ends();
}

/// Goal: what cannot pass is what the table says, and why, and nothing is changed by it.
/// Method: a name with a quote, which globus-url-copy refuses itself; sums of directories; TLS that was not
/// set up.
#[test]
fn interop_of_what_cannot_pass() {
    need!("globus-url-copy", "curl", "lftp");
    let (room, server) = (Room::new(), Server::start(Peer::Haul));
    let mut matrix = Matrix::default();
    matrix.cell("a quote in a name by globus-url-copy -r", || {
        fs::write(room.dir("quote").join(OsStr::from_bytes(QUOTE)), "x").expect("write");
        let (from, to) = (file_url(&room.at("quote")) + "/", server.url("quote/"));
        let output = server.client(&[GLOBUS, "-cd", "-r", &from, &to]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("error parsing url"), "{said}");
        assert!(!server.at("quote").join(OsStr::from_bytes(QUOTE)).exists());
    });
    matrix.cell("a tree is got by globus-url-copy -verify-checksum", || {
        let (from, to) = (server.url("quote/"), file_url(&room.dir("sums")) + "/");
        fs::create_dir_all(server.at("quote/dir")).expect("make a directory");
        fs::write(server.at("quote/dir/f"), "x").expect("write");
        let output = server.client(&[GLOBUS, "-cd", "-r", "-verify-checksum", &from, &to]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("this is a directory"), "{said}");
    });
    let near = room.file("near", "x").display().to_string();
    matrix.cell("curl under TLS", || {
        let output = server.client(&["curl", "-sS", "--ssl-reqd", "-T", &near, &server.url("tls")]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("SSL"), "{said}");
    });
    matrix.cell("lftp under TLS", || {
        let script =
            format!("set ftp:ssl-force yes; set ftp:ssl-allow-anonymous yes; set net:max-retries 1; open {}; put {near}", server.url(""));
        let output = server.client(&["lftp", "-c", &script]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("SSL"), "{said}");
    });
    assert!(fs::read_dir(server.at("")).expect("list").flatten().all(|entry| entry.file_name() == "quote"));
    matrix.ends();
}

/// Goal: a part of a file comes from haul's server and goes to it, to its own place: into a file that is
/// there, and into a new one; in stream mode, in MODE E and between two servers.
/// Method: `globus-url-copy -off -len`, which is `ERET` and `ESTO`.
#[test]
fn interop_of_parts() {
    need!("globus-url-copy");
    let (from, to) = (Server::start(Peer::Haul), Server::start(Peer::Haul));
    let mut rng = fastrand::Rng::with_seed(23);
    let (content, old) = (tree::bytes(&mut rng, 3 * MIB), tree::bytes(&mut rng, 3 * MIB));
    let near = from.room.file("near", &content);
    fs::write(from.at("f"), &content).expect("write");
    let (offset, len) = (MIB + 7, MIB / 2 + 1);
    let part = ["-off", &offset.to_string(), "-len", &len.to_string()].map(String::from);
    let part: Vec<&str> = part.iter().map(String::as_str).collect();
    let end = offset + len;
    let mut matrix = Matrix::default();
    for options in [&[][..], &["-p", "8"], &["-fast"]] {
        let copies = |from_url: &str, to_url: &str| {
            from.does(&[&[GLOBUS][..], options, &part, &[from_url, to_url]].concat());
        };
        let is_part = |came: &[u8], around: &[u8]| {
            assert!(came[offset..end] == content[offset..end], "the part is not what was asked for");
            assert!(came[..offset] == around[..offset], "what lies before is not what was there");
            assert!(came.len() < end || came[end..] == around[end..], "what lies behind");
        };
        let zeros = vec![0; end];
        matrix.cell(format!("a part is got {options:?}"), || {
            let back = from.room.at("back");
            let _ = fs::remove_file(&back);
            copies(&from.url("f"), &file_url(&back));
            is_part(&read(&back), &zeros);
        });
        for (how, from_url) in [("put", file_url(&near)), ("sent by a server", from.url("f"))] {
            matrix.cell(format!("a part is {how} into a file {options:?}"), || {
                fs::write(to.at("old"), &old).expect("write");
                copies(&from_url, &to.url("old"));
                is_part(&read(to.at("old")), &old);
            });
            matrix.cell(format!("a part is {how} into a new file {options:?}"), || {
                let _ = fs::remove_file(to.at("new"));
                copies(&from_url, &to.url("new"));
                is_part(&read(to.at("new")), &zeros);
            });
        }
    }
    matrix.ends();
}

/// Goal: `globus-url-copy -rst` goes on when haul's session is killed in the middle, whichever end it serves,
/// and the file is whole.
/// Method: the client is stopped in the middle, so that there is one, and goes on when the session is gone.
#[test]
fn interop_of_killed_sessions() {
    need!("globus-url-copy");
    let (from, to) = (Server::start(Peer::Haul), Server::start(Peer::Haul));
    let content = tree::bytes(&mut fastrand::Rng::with_seed(24), 160 * MIB);
    let near = from.room.file("near", &content);
    fs::write(from.at("f"), &content).expect("write");
    let mut matrix = Matrix::default();
    let back = from.room.at("back");
    for (name, from_url, to_url, lands, killed) in [
        ("get", from.url("f"), file_url(&back), back.clone(), &from),
        ("put", file_url(&near), to.url("put"), to.at("put"), &to),
        ("source of two", from.url("f"), to.url("two"), to.at("two"), &from),
        ("sink of two", from.url("f"), to.url("three"), to.at("three"), &to),
    ] {
        for options in [&[][..], &["-p", "8"]] {
            matrix.cell(format!("-rst {options:?}: {name}"), || {
                // A part that a killed session left is none of this one's.
                let dir = lands.parent().expect("it lies in a directory");
                for entry in fs::read_dir(dir).expect("list").flatten() {
                    if entry.path() == lands || entry.file_name().as_bytes().starts_with(b".") {
                        fs::remove_file(entry.path()).expect("remove a file");
                    }
                }
                let words = ["-rst", "-rst-retries", "20", "-rst-interval", "1"];
                let said = from.room.at("said");
                let mut client = Command::new(GLOBUS);
                client.args(words).args(options).args([&from_url, &to_url]).stdin(Stdio::null());
                client.stderr(fs::File::create(&said).expect("make a file"));
                let mut client = client.spawn().expect("start a client");
                let pid = Pid::from_raw(client.id().cast_signed()).expect("a pid");
                // The part of an upload has another name, and is gone when it is whole.
                let begun = || {
                    let entries = fs::read_dir(dir).expect("list").flatten().filter(|entry| {
                        lands == back && entry.path() == back
                            || entry.file_name().as_bytes().starts_with(b".")
                    });
                    let lens = entries.filter_map(|entry| entry.metadata().ok().map(|about| about.len()));
                    lens.into_iter().any(|len| len > 4 << 20)
                };
                let between_two = !from_url.starts_with("file") && !to_url.starts_with("file");
                let reason = "error: ";
                let is_amid = procs::wait_until(SOON, begun);
                procs::signal_all(&[pid], Signal::STOP);
                let sessions = killed.sessions();
                procs::signal_all(&sessions, Signal::KILL);
                procs::signal_all(&[pid], Signal::CONT);
                let mut status = None;
                procs::wait_until(SOON * 3, || {
                    status = client.try_wait().expect("look at the client");
                    status.is_some()
                });
                let _ = client.kill();
                let said = String::from_utf8_lossy(&read(&said)).into_owned();
                assert!(is_amid && !sessions.is_empty(), "nothing was amid: {said}\n{}", killed.log());
                let ended = status.is_some_and(|status| status.success());
                if !between_two {
                    // It does not come back, and nothing that is not whole has a name at haul's server.
                    assert!(!ended && said.contains(reason), "{status:?} {said}");
                    assert!(lands == back || !lands.exists(), "half of a file has a name");
                    return;
                }
                assert!(ended, "{status:?} {said}\n{}\n{}", from.log(), to.log());
                assert!(read(&lands) == content, "the copy differs");
            });
        }
    }
    matrix.ends();
}

/// Goal: trees go between two servers, each of haul's or of Globus, steered by haul or by globus-url-copy;
/// under GSI with and without what was delegated.
#[test]
fn interop_between_two_servers() {
    need!("gridftp", "globus-url-copy");
    const GLOBUS_PLAIN: Peer = Peer::Theirs(Kind::Gridftp);
    const GLOBUS_GSI: Peer = Peer::Theirs(Kind::GridftpGsi);
    let room = Room::new();
    let data = furnish(&room);
    let mut matrix = Matrix::default();
    for (from, to) in [
        (GLOBUS_PLAIN, GLOBUS_PLAIN),
        (GLOBUS_PLAIN, Peer::Haul),
        (Peer::Haul, GLOBUS_PLAIN),
        (Peer::Haul, Peer::Haul),
        (GLOBUS_GSI, Peer::HaulGsi),
        (Peer::HaulGsi, GLOBUS_GSI),
        (Peer::HaulGsi, Peer::HaulGsi),
    ] {
        let a = Server::of(from, None);
        let b = if to == GLOBUS_GSI { None } else { Some(Server::of(to, a.grid.as_deref())) };
        // The grid of Globus' server is its own.
        let (a, b) = match b {
            Some(b) => (a, b),
            None => {
                let b = Server::of(to, None);
                (Server::of(from, b.grid.as_deref()), b)
            }
        };
        let theirs = [from, to].contains(&GLOBUS_PLAIN);
        let lost: &[&[u8]] = if theirs { &LOST_AT_GLOBUS } else { &[] };
        place(&data, &a.at("data"));
        let (from_url, to_url) = (a.url("data/"), b.url("copy/"));
        let under_gsi = a.grid.is_some();
        let protections: &[&[&str]] = if under_gsi { &[PLAIN, SHOWN, PRIVATE] } else { &[&[]] };
        for options in protections {
            matrix.cell(format!("haul steers {from:?} to {to:?} {options:?}"), || {
                let state = format!("--state={}", room.at("state").display());
                let ended = a.cp(&[*options, &[&state, &from_url, &to_url]].concat());
                let ended = ended.exits(if lost.is_empty() { 0 } else { 3 });
                assert_eq!(ended.summary().text("protect"), "servers", "{}", ended.describe());
                assert_arrived(&data, &b.at("copy"), lost);
            });
            remove(&b.at("copy"));
        }
        // It ends at the first name that a server cannot be asked for.
        for name in lost.iter().chain([&QUOTE]) {
            fs::remove_file(a.at("data/odd").join(OsStr::from_bytes(name))).expect("remove a file");
        }
        let lost: Vec<&[u8]> = lost.iter().copied().chain([QUOTE]).collect();
        let protections: &[&[&str]] =
            if under_gsi { &[&["-nodcau"], &["-fast"], &["-fast", "-dcpriv"]] } else { &[ALL_AT_ONCE] };
        for options in protections {
            matrix.cell(format!("globus-url-copy steers {from:?} to {to:?} {options:?}"), || {
                a.does(&[&[GLOBUS, "-cd", "-r"], *options, &[&from_url, &to_url]].concat());
                assert_arrived(&data, &b.at("copy"), &lost);
            });
            remove(&b.at("copy"));
        }
    }
    matrix.ends();
}
