//! The rows of `docs/interop.md` in which clients of others use haul's server; see [`crate::interop`].

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal};

use crate::support::ftpd::escaped;
use crate::support::matrix::{
    Data, EMPTY, MIB, Matrix, Peer, QUOTE, SOON, Server, TELNET, assert_arrived, authority, file_url,
    furnish, is_here, place, remove, rows,
};
use crate::support::wire::Seen;
use crate::support::{Room, procs, read, tree};

/// A client of others with haul's server.
struct Client {
    peer: Peer,
    need: &'static str,
    by: By,
    options: &'static [&'static str],
    data: Data,
    /// In blocks, and over so many connections a large file; 0: as it is.
    blocks: u64,
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

const fn by(
    by: By,
    need: &'static str,
    peer: Peer,
    options: &'static [&'static str],
    data: Data,
    blocks: u64,
) -> Client {
    Client { peer, need, by, options, data, blocks }
}

pub const GLOBUS: &str = "globus-url-copy";
/// Channels that are kept, commands that are sent ahead, several sessions.
pub const ALL_AT_ONCE: &[&str] = &["-fast", "-p", "8", "-pp", "-cc", "4"];
const SUMS: &str = "-verify-checksum";

const OF_HAULS_SERVER: [Client; 11] = [
    by(By::GlobusTree, GLOBUS, Peer::Haul, &[], Data::Clear, 0),
    by(By::GlobusTree, GLOBUS, Peer::Haul, ALL_AT_ONCE, Data::Clear, 8),
    by(By::GlobusTree, GLOBUS, Peer::Haul, &[SUMS, "-p", "8"], Data::Clear, 8),
    by(By::GlobusTree, GLOBUS, Peer::HaulGsi, &["-nodcau"], Data::Clear, 0),
    by(By::GlobusTree, GLOBUS, Peer::HaulGsi, &["-fast", "-p", "3", "-cc", "4"], Data::Shown, 3),
    by(By::GlobusTree, GLOBUS, Peer::HaulGsi, &["-fast", "-p", "3", "-dcpriv", "-cc", "4"], Data::Sealed, 3),
    by(By::GlobusNames, GLOBUS, Peer::Haul, &["-fast"], Data::Clear, 1),
    by(By::Lftp, "lftp", Peer::Haul, &[], Data::Clear, 0),
    by(By::Curl, "curl", Peer::Haul, &[], Data::Clear, 0),
    by(By::Lftp, "lftp", Peer::HaulTls, &[], Data::Sealed, 0),
    by(By::Curl, "curl", Peer::HaulTls, &[], Data::Sealed, 0),
];

impl Client {
    /// What it cannot put, and under which other name that comes to lie.
    fn lost(&self) -> (&'static [&'static [u8]], &'static [&'static [u8]]) {
        match self.by {
            By::GlobusTree => (&[QUOTE], &[]),
            // They are told of files alone.
            By::GlobusNames | By::Curl => (&[EMPTY], &[]),
            // It speaks no Telnet under TLS.
            By::Lftp if self.peer == Peer::HaulTls => (&[], &[]),
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
        let to = server.bare_url("put/");
        match self.by {
            By::GlobusTree => self.globus(server, &["-cd", "-r", &(file_url(data) + "/"), &to]),
            By::GlobusNames => {
                let pairs = files(data)
                    .into_iter()
                    .map(|name| format!("{}/{} {to}{}\n", file_url(data), escaped(&name), escaped(&name)));
                let list = room.file("pairs", pairs.collect::<String>());
                self.globus(server, &["-cd", "-f", &list.display().to_string()]);
            }
            By::Lftp => self.lftp(server, &format!("mirror -R --parallel=3 {} put", data.display())),
            By::Curl => self.curl(room, server, data, |near, name| {
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
        let from = server.bare_url("got/");
        match self.by {
            By::GlobusTree => self.globus(server, &["-cd", "-r", &from, &(file_url(sink) + "/")]),
            By::GlobusNames => {
                let pairs = files(data)
                    .into_iter()
                    .map(|name| format!("{from}{} {}/{}\n", escaped(&name), file_url(sink), escaped(&name)));
                let list = room.file("pairs", pairs.collect::<String>());
                self.globus(server, &["-cd", "-f", &list.display().to_string()]);
            }
            By::Lftp => self.lftp(server, &format!("mirror --parallel=3 got {}", sink.display())),
            By::Curl => {
                let near = sink.to_owned();
                self.curl(room, server, data, move |_, name| {
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

    fn lftp(&self, server: &Server, does: &str) {
        let under_tls = format!(
            "set ssl:ca-file {}; set ftp:ssl-force true; set ftp:ssl-allow-anonymous true; \
             set ftp:ssl-protect-data true; ",
            authority().display()
        );
        let under_tls = if self.peer == Peer::HaulTls { &under_tls } else { "" };
        let opened = format!("set net:max-retries 2; open {}; {does}", server.bare_url(""));
        server.does(&["lftp", "-c", &(under_tls.to_owned() + &opened)]);
    }

    /// A run of curl for all files of a directory, with four sessions; `lines` is told the file, quoted, and
    /// its name.
    ///
    /// Under TLS four runs of one each: sessions of one run share what they know of TLS, so that a data
    /// connection goes on with another's, and is sent away; and of TLS 1.3 it keeps one ticket of several.
    fn curl(&self, room: &Room, server: &Server, data: &Path, lines: impl Fn(&[u8], &OsStr) -> Vec<u8>) {
        let under_tls = format!("ssl-reqd\ntls-max=1.2\ncacert=\"{}\"\n", authority().display());
        let (under_tls, runs) = if self.peer == Peer::HaulTls { (&under_tls[..], 4) } else { ("", 1) };
        let each = files(data).into_iter().map(|name| {
            let near = quoted(data.join(&name).as_os_str().as_bytes());
            let options = format!("silent\nshow-error\ngloboff\n{under_tls}");
            [options.into_bytes(), lines(&near, &name)].concat()
        });
        let each: Vec<Vec<u8>> = each.collect();
        let several: &[&str] = if runs == 1 { &["--parallel", "--parallel-max", "4"] } else { &[] };
        std::thread::scope(|scope| {
            for (n, part) in each.chunks(each.len().div_ceil(runs)).enumerate() {
                let config = room.file(&format!("curl{n}"), part.join(&b"\nnext\n"[..]));
                let config = config.display().to_string();
                scope.spawn(move || {
                    server.does(&[&["curl", "--fail-early"], several, &["-K", &config]].concat());
                });
            }
        });
    }

    /// It went the way of this row and no plainer one: over how many connections as the server says, and what
    /// was said and moved as the packets have it.
    fn was_used(&self, server: &Server, verb: &str, seen: Option<Seen>) {
        let counts = server.connections(verb);
        let most = counts.iter().max().copied().unwrap_or_default();
        assert_eq!(most, self.blocks.max(1), "connections of {verb}: {counts:?}");
        if self.options.contains(&"-cc") {
            assert!(server.logins() >= 4, "several sessions: {}", server.log());
        }
        let Some(seen) = seen else { return };
        let (is_gsi, is_tls) = (self.peer == Peer::HaulGsi, self.peer == Peer::HaulTls);
        assert_eq!(seen.says("AUTH GSSAPI"), is_gsi, "{seen:?}");
        assert_eq!(seen.says("AUTH TLS"), is_tls, "{seen:?}");
        if is_gsi || is_tls {
            assert!(!seen.says(verb) && !seen.says("PASS"), "commands in the clear: {seen:?}");
        } else {
            assert_eq!(seen.says("MODE E"), self.blocks > 0, "{seen:?}");
            let sums = seen.said.iter().any(|said| said.starts_with("CKSM"));
            assert_eq!(sums, self.options.contains(&SUMS), "{seen:?}");
        }
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

/// As curl's configuration has it.
fn quoted(text: &[u8]) -> Vec<u8> {
    let inner = text.iter().flat_map(|byte| match byte {
        b'\\' | b'"' => vec![b'\\', *byte],
        _ => vec![*byte],
    });
    [b'"'].into_iter().chain(inner).chain([b'"']).collect()
}

/// Goal: what clients of others put to haul's server and get from it is the tree, whole, and goes the way
/// that was asked for; what a client cannot name is all that is missing.
#[test]
fn interop_of_hauls_server() {
    let room = Room::new();
    let all = furnish(&room);
    // A quote in a name ends the whole walk of globus-url-copy; see the cell of it below.
    let walked = room.at("walked");
    place(&all, &walked);
    fs::remove_file(walked.join("odd").join(OsStr::from_bytes(QUOTE))).expect("leave it out");
    let few = room.at("few");
    place(&all, &few);
    remove(&few.join("many"));
    let matrix = Matrix::default();
    rows(OF_HAULS_SERVER, |client, net| {
        if !(is_here(client.peer) && crate::support::needs::all_here(&[client.need])) {
            return;
        }
        let (server, room) = (Server::start(client.peer), Room::new());
        let (lost, instead) = client.lost();
        let name = format!("{:?} {:?} {:?}", client.peer, client.options, client.by);
        let walks = client.by == By::GlobusTree;
        let data = match (client.by, client.peer) {
            (By::GlobusTree, _) => &walked,
            // It waits for a second at many a file; see the table.
            (By::Curl, Peer::HaulTls) => &few,
            _ => &all,
        };
        let lost = if walks { &[] } else { lost };
        net.forget();
        matrix.cell(format!("put to {name}"), || {
            client.put(&room, data, &server);
            for name in instead {
                fs::remove_file(server.at("put/odd").join(OsStr::from_bytes(name))).expect("it is called so");
            }
            assert_arrived(data, &server.at("put"), lost);
            client.was_used(&server, "STOR", net.showed(client.data));
        });
        remove(&server.at("put"));
        place(data, &server.at("got"));
        // That asks for the sums of directories when it gets them; see below.
        if client.options.contains(&SUMS) {
            return;
        }
        net.forget();
        matrix.cell(format!("get from {name}"), || {
            let sink = room.dir("sink");
            client.get(&room, data, &server, &sink);
            assert_arrived(data, &sink, if walks { &[] } else { client.lost_when_read() });
            client.was_used(&server, "RETR", net.showed(client.data));
            assert!(!server.log().contains("panicked"), "{}", server.log());
        });
    });
    matrix.ends();
}

/// Goal: what cannot pass is what the table says, and why, and nothing is changed by it.
/// Method: a name with a quote, which globus-url-copy refuses itself; sums of directories; TLS that was not
/// set up.
#[test]
fn interop_of_what_cannot_pass() {
    need!("globus-url-copy", "curl", "lftp");
    let (room, server) = (Room::new(), Server::start(Peer::Haul));
    let matrix = Matrix::default();
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
    let matrix = Matrix::default();
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

/// Goal: `globus-url-copy -rst` between two servers goes on when a session of haul's is killed in the middle,
/// whichever end it serves, and the file is whole. Where it is itself an end it says why it ends, nothing
/// that is not whole has a name at the server, and the same command does it all.
/// Method: the client is stopped in the middle, so that there is one, and goes on when the session is gone.
#[test]
fn interop_of_killed_sessions() {
    need!("globus-url-copy");
    let (from, to) = (Server::start(Peer::Haul), Server::start(Peer::Haul));
    let content = tree::bytes(&mut fastrand::Rng::with_seed(24), 160 * MIB);
    let near = from.room.file("near", &content);
    fs::write(from.at("f"), &content).expect("write");
    let matrix = Matrix::default();
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
                    let is_put = lands != back;
                    // It does not come back, and says why, by the words of the connection whose end it hears
                    // of first; what sends ends now and then without a word.
                    let reasons: &[&str] = match is_put {
                        true => &["an end-of-file was reached", "Connection reset by peer", "Broken pipe"],
                        false => &[
                            "error: globus_ftp_client: EOF has been reached",
                            "error: an end-of-file was reached",
                        ],
                    };
                    let is_said = reasons.iter().any(|reason| said.contains(reason));
                    let code = status.and_then(|status| status.code());
                    assert!(code == Some(1) && (is_said || is_put && said.is_empty()), "{status:?} {said}");
                    if is_put {
                        // Nothing that is not whole has a name at haul's server.
                        let names = fs::read_dir(dir).expect("list").flatten().map(|entry| entry.file_name());
                        let shown: Vec<_> = names.filter(|name| !name.as_bytes().starts_with(b".")).collect();
                        assert!(!shown.contains(&"put".into()), "half of a file has a name: {shown:?}");
                    } else {
                        // What it left here is of the file, but not all of it.
                        let left = read(&back);
                        let is_of_it = |(at, byte): (usize, &u8)| *byte == content[at] || *byte == 0;
                        assert!(left.len() <= content.len() && left != content, "all of it came");
                        assert!(left.iter().enumerate().all(is_of_it), "what is left is of no file");
                    }
                    // And what is left keeps nobody from doing the same again.
                    from.does(&[&[GLOBUS], options, &[&from_url, &to_url]].concat());
                    assert!(read(&lands) == content, "the copy differs");
                    return;
                }
                assert!(ended, "{status:?} {said}\n{}\n{}", from.log(), to.log());
                assert!(read(&lands) == content, "the copy differs");
            });
        }
    }
    matrix.ends();
}
