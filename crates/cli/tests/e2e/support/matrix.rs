//! Servers and trees of the matrix of `docs/interop.md`, and its cells.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::Pid;

use super::beside::so_many_beside;
use super::compare::{BELOW, Opts, assert_no_debris, differences};
use super::ftpd::{Ftpd, Kind, certificate, escaped, grid};
use super::run::{Haul, Outcome, Running};
use super::wire::{MARK, Seen, Wire};
use super::{Room, procs, tree};

pub const MIB: usize = 1 << 20;
pub const SOON: Duration = Duration::from_secs(30);
/// A copy that takes longer hangs; of large trees, on a machine that has other work.
pub const LARGE_WITHIN: Duration = Duration::from_secs(3600);

pub const NAMES_ALONE: Opts = Opts { metadata: false, ..BELOW };

/// Names that shells, listings, URLs and globs stumble over.
pub const NAMES: [&[u8]; 29] = [
    b" leading",
    b"trailing ",
    b"two  blanks",
    b"-dash",
    b"--help",
    b"%41",
    b"%2F..",
    b"quote'`$HOME",
    b"back\\slash",
    b"*",
    b"?",
    b"[a]",
    b"~",
    b"~root",
    b"a:b",
    b"host:path",
    b".hidden",
    b"#",
    b"{a,b}",
    b";",
    b"a;b=c; d",
    b"name -> x",
    b"&",
    b"|",
    b"total 12",
    b"M\xfcll",
    b"Z\xc3\xbcrich",
    b"...",
    b"..a",
];
/// globus-url-copy takes it for the end of a URL when it walks a tree.
pub const QUOTE: &[u8] = b"\"quote\"";
/// A directory that has nothing in it.
pub const EMPTY: &[u8] = b"empty";
/// Telnet's own byte, which RFC 959 doubles.
pub const TELNET: &[u8] = b"\xff\xfex";

/// The server of Globus drops what is not ASCII from what it is told without GSI.
pub const LOST_AT_GLOBUS: [&[u8]; 3] = [b"M\xfcll", b"Z\xc3\xbcrich", TELNET];

/// Whose server it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Theirs(Kind),
    Haul,
    HaulGsi,
    /// Nobody logs in and no data is moved without TLS.
    HaulTls,
}

/// A server that runs, and a directory of this machine that it serves.
pub struct Server {
    runs: Runs,
    pub grid: Option<PathBuf>,
    pub room: Room,
}

enum Runs {
    Theirs(Ftpd),
    Haul { scheme: &'static str, port: u16, running: Running },
}

impl Server {
    pub fn start(peer: Peer) -> Server {
        Server::of(peer, None)
    }

    /// Of this grid, where it is of one; else of its own.
    pub fn of(peer: Peer, of_grid: Option<&Path>) -> Server {
        let room = Room::new();
        room.dir("root");
        match peer {
            Peer::Theirs(kind) => {
                let ftpd = Ftpd::of(kind, of_grid);
                let grid = (kind == Kind::GridftpGsi).then(|| ftpd.of_grid(""));
                Server { runs: Runs::Theirs(ftpd), grid, room }
            }
            Peer::Haul => Server::haul(room, None, false),
            Peer::HaulTls => Server::haul(room, None, true),
            Peer::HaulGsi => {
                let own = || {
                    grid(&room);
                    room.at("")
                };
                let of_grid = of_grid.map_or_else(own, Path::to_owned);
                Server::haul(room, Some(of_grid), false)
            }
        }
    }

    fn haul(room: Room, grid: Option<PathBuf>, tls: bool) -> Server {
        let mut words: Vec<OsString> =
            ["serve", "gridftp", "--markers", "100ms", "--root"].map(Into::into).into();
        words.push(room.at("root").into());
        let root = rustix::process::geteuid().is_root();
        match &grid {
            Some(grid) => {
                words.extend(["--gsi", "--allow-root"].map(Into::into));
                for (option, name) in [
                    ("--host-cert", "host.pem"),
                    ("--host-key", "host.key"),
                    ("--gridmap", "gridmap"),
                    ("--authorities", "authorities"),
                ] {
                    words.extend([option.into(), grid.join(name).into()]);
                }
            }
            None if root => words.extend(["--anonymous", "write", "--user", "root"].map(Into::into)),
            None => words.extend(["--anonymous", "write"].map(Into::into)),
        }
        if tls {
            for (option, name) in [("--tls-cert", "server.pem"), ("--tls-key", "server.key")] {
                // Nobody else may read a key.
                let own = room.file(name, super::read(certificate(name)));
                super::set_mode(&own, 0o600);
                words.extend([option.into(), own.into()]);
            }
            words.push("--tls-required".into());
        }
        let scheme = match (&grid, tls) {
            (Some(_), _) => "gsiftp",
            (None, true) => "ftps",
            (None, false) => "ftp",
        };
        for _ in 0..20 {
            let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
            let port = port.expect("a free port").port();
            let listen = format!("127.0.0.1:{port}");
            let mut running = Haul::new(&words).args(["--listen", &listen]).start();
            if running.until(|running| running.stderr().contains(" listen ")) {
                return Server { runs: Runs::Haul { scheme, port, running }, grid, room };
            }
        }
        panic!("the server does not start");
    }

    /// Where a name of its root lies on this machine.
    pub fn at(&self, name: &str) -> PathBuf {
        self.room.at("root").join(name)
    }

    /// What a client calls it.
    pub fn url(&self, name: impl AsRef<OsStr>) -> String {
        match &self.runs {
            Runs::Theirs(ftpd) => ftpd.url(self.room.at("root").join(name.as_ref())),
            Runs::Haul { scheme, port, .. } => format!("{scheme}://127.0.0.1:{port}/{}", escaped(name)),
        }
    }

    /// The same of a client that is told of TLS by other words.
    pub fn bare_url(&self, name: impl AsRef<OsStr>) -> String {
        self.url(name).replacen("ftps://", "ftp://", 1)
    }

    /// How many connections each transfer of this kind had, as a server of haul's says, in the order in which
    /// they ended; of those that ended well.
    pub fn connections(&self, verb: &str) -> Vec<u64> {
        let log = self.log();
        let lines = log.lines().filter(|line| line.contains(&format!(" {verb} ")) && line.contains(" 226 "));
        let count = |line: &str| line.split(" connections").next()?.rsplit(' ').next()?.parse().ok();
        lines.filter_map(count).collect()
    }

    /// How many have logged in at a server of haul's.
    pub fn logins(&self) -> usize {
        self.log().matches(" login ").count()
    }

    /// What a server of haul's has said.
    pub fn log(&self) -> String {
        match &self.runs {
            Runs::Theirs(_) => String::new(),
            Runs::Haul { running, .. } => running.stderr(),
        }
    }

    /// The processes of its sessions; the monitor is none of them.
    pub fn sessions(&self) -> Vec<Pid> {
        match &self.runs {
            Runs::Theirs(ftpd) => ftpd.sessions(),
            Runs::Haul { running, .. } => running.near().into_iter().skip(1).collect(),
        }
    }

    /// What somebody has in his environment who trusts it, and whom it trusts.
    pub fn trust(&self) -> Vec<(&'static str, PathBuf)> {
        let mut all = vec![("SSL_CERT_FILE", authority())];
        if let Some(grid) = &self.grid {
            all.push(("X509_CERT_DIR", grid.join("authorities")));
            all.push(("X509_USER_PROXY", grid.join("alice")));
        }
        all
    }

    /// `haul cp --json -r` by such a one.
    pub fn cp(&self, words: &[&str]) -> Outcome {
        let haul = Haul::cp(["-r", "-v"]).args(words);
        let haul = self.trust().into_iter().fold(haul, |haul, (name, value)| haul.env(name, value));
        let mut running = haul.start();
        // What is large takes longer than what is waited for elsewhere.
        procs::wait_until(LARGE_WITHIN, || running.ended());
        running.wait().sane()
    }

    /// A client of others by such a one.
    pub fn client(&self, words: &[&str]) -> Output {
        let mut command = Command::new("timeout");
        command.arg(LARGE_WITHIN.as_secs().to_string()).args(words).stdin(Stdio::null());
        command.envs(self.trust()).env("LC_ALL", "C.UTF-8").output().expect("run a client")
    }

    #[track_caller]
    pub fn does(&self, words: &[&str]) {
        let output = self.client(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {}\n{said}\n{}", output.status, self.log());
    }
}

/// Who signed the certificates of servers under TLS.
pub fn authority() -> PathBuf {
    certificate("ca.pem")
}

/// Runs rows side by side, each in a network of its own; large trees one after the other, for they need room.
pub fn rows<R: Send, I: IntoIterator<Item = R>>(rows: I, run: impl Fn(R, &mut Net) + Sync)
where
    I::IntoIter: Send,
{
    let max = if is_large() { 1 } else { 4 };
    // Else what goes over the wire is nobody's word, and is not looked at.
    let alone = super::needs::all_here(&["netns"]);
    so_many_beside(max, rows, |row| run(row, &mut Net(alone.then(Wire::alone))));
}

/// The network of a row.
pub struct Net(Option<Wire>);

/// What content and those who move it show of themselves on data connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Content as it is, and no certificate.
    Clear,
    /// Content as it is, over connections that showed one first.
    Shown,
    /// No content.
    Sealed,
}

impl Net {
    /// What went by since the last time, which had data protected so and not otherwise.
    #[track_caller]
    pub fn showed(&mut self, data: Data) -> Option<Seen> {
        let seen = self.0.as_mut()?.seen();
        let (is_clear, hellos) = (!seen.clear.is_empty(), seen.hellos.len());
        let is_so = match data {
            Data::Clear => is_clear && hellos == 0,
            Data::Shown => is_clear && hellos > 0,
            Data::Sealed => !is_clear && hellos > 0,
        };
        assert!(is_so, "not {data:?}: {seen:?}");
        Some(seen)
    }

    /// What came before is of nothing that is looked at.
    pub fn forget(&mut self) {
        if let Some(wire) = &mut self.0 {
            wire.seen();
        }
    }
}

/// Cells, each of which runs whatever became of those before.
#[derive(Default)]
pub struct Matrix {
    failed: Mutex<Vec<String>>,
}

impl Matrix {
    pub fn cell(&self, name: impl Into<String>, runs: impl FnOnce()) {
        let name = name.into();
        let begun = std::time::Instant::now();
        if catch_unwind(AssertUnwindSafe(runs)).is_err() {
            eprintln!("the cell that failed: {name}");
            self.failed.lock().expect("nobody panics with it").push(name);
        } else {
            eprintln!("passes after {:.1} s: {name}", begun.elapsed().as_secs_f64());
        }
    }

    pub fn ends(self) {
        let failed = self.failed.into_inner().expect("nobody panics with it");
        assert!(failed.is_empty(), "{} cells fail:\n{}", failed.len(), failed.join("\n"));
    }
}

fn is_large() -> bool {
    std::env::var_os("HAUL_TEST_INTEROP").is_some()
}

/// A file that begins with [`MARK`] where it is long enough.
fn marked(path: &Path, rng: &mut fastrand::Rng, len: usize) {
    let mut content = tree::bytes(rng, len);
    if let Some(start) = content.get_mut(..MARK.len()) {
        start.copy_from_slice(MARK);
    }
    fs::write(path, content).unwrap_or_else(|error| panic!("write {path:?}: {error}"));
    // Of what has just changed the content is asked for a second later.
    tree::age(path, rng);
}

/// Odd names, sizes at the bounds of blocks and objects, small files, and a file with holes.
pub fn furnish(room: &Room) -> PathBuf {
    let data = room.dir("data");
    let mut rng = fastrand::Rng::with_seed(22);
    let (small, sparse) = if is_large() { (10_000, 5 << 30) } else { (200, 6 << 20) };
    for dir in ["odd", "many", "sizes", "deep/a b/.h", "odd/empty"] {
        fs::create_dir_all(data.join(dir)).expect("make a directory");
    }
    for (index, name) in NAMES.into_iter().chain([QUOTE, TELNET]).enumerate() {
        marked(&data.join("odd").join(OsStr::from_bytes(name)), &mut rng, index * 7);
    }
    marked(&data.join("odd").join("n".repeat(255)), &mut rng, 255);
    marked(&data.join("deep/a b/.h/f"), &mut rng, 99);
    for index in 0..small {
        let len = rng.usize(0..4000);
        marked(&data.join(format!("many/f{index:05}")), &mut rng, len);
    }
    let around = [1 << 16, 1 << 18, MIB, 4 * MIB].into_iter().flat_map(|bound| [bound - 1, bound, bound + 1]);
    // From 16 MiB on a file goes over several connections.
    for len in [0, 1, 16 * MIB + 5].into_iter().chain(around) {
        marked(&data.join(format!("sizes/{len}")), &mut rng, len);
    }
    let file = fs::File::create(data.join("sparse")).expect("make a file");
    file.set_len(sparse).expect("make it long");
    for (offset, text) in [(0, "begin"), (sparse / 5 * 4 + 7, "behind"), (sparse - 3, "end")] {
        file.write_all_at(text.as_bytes(), offset).expect("write");
    }
    // Of what has just changed the content is asked for a second later.
    tree::age(&data.join("sparse"), &mut rng);
    data
}

/// The copy is the source, byte for byte, but for these names in `odd`, which are not there, nor is anything
/// else.
#[track_caller]
pub fn assert_arrived(data: &Path, copy: &Path, lost: &[&[u8]]) {
    let found = differences(data, copy, NAMES_ALONE);
    let missing = |name: &&[u8]| format!("{:?}: missing", copy.join("odd").join(OsStr::from_bytes(name)));
    let mut expected: Vec<String> = lost.iter().map(missing).collect();
    let mut shown = found.clone();
    expected.sort();
    shown.sort();
    assert!(shown == expected, "it differs by\n{}\nand not by\n{}", shown.join("\n"), expected.join("\n"));
    assert_no_debris(copy);
}

pub fn slash(path: &Path) -> String {
    format!("{}/", path.display())
}

pub fn file_url(path: &Path) -> String {
    format!("file://{}", escaped(path))
}

/// Whether this machine has it.
pub fn is_here(peer: Peer) -> bool {
    match peer {
        Peer::Theirs(kind) => !Kind::these(&[kind]).is_empty(),
        Peer::Haul | Peer::HaulTls => true,
        Peer::HaulGsi => super::needs::all_here(&["gridftp"]),
    }
}

/// A copy that is none of haul's, holes and all.
pub fn place(data: &Path, at: &Path) {
    let copied = Command::new("cp").args(["-a", "--sparse=always"]).args([data, at]).status();
    assert!(copied.expect("run cp").success(), "place a tree");
}

pub fn remove(path: &Path) {
    if path.exists() {
        fs::remove_dir_all(path).expect("remove a tree");
    }
}
