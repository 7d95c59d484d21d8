//! Real FTP servers on the loopback address, each with its own configuration and folder, ended with the test.
//!
//! Four kinds, for servers differ in what they tell: ProFTPD, whose MLSD tells all; the same where MLSD is
//! refused, so that LIST must be read; vsftpd, which never had MLSD; and the GridFTP server of Globus. Paths
//! at each are paths of this machine. And [`Talk`], which speaks to any of them by plain sockets.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};

use super::sshd::free_port;
use super::{Room, procs, set_mode};

/// The user of servers that know one.
pub const USER: &str = "tester";
/// With all that a URL must escape.
pub const PASSWORD: &str = "geh@im:%/42";
/// `openssl passwd -5 -salt haulhaulhaul` of it.
const HASH: &str = "$5$haulhaulhaul$27Dct8k3EtSvIoSKRMRnC7EbFsrGgdJ8kYdZR5Ljn8/";

const PROFTPD: &str = "/usr/sbin/proftpd";
const MOD_TLS: &str = "/usr/lib/proftpd/mod_tls.so";
pub const GRIDFTP: &str = "/usr/sbin/globus-gridftp-server";

/// As whom front end and movers of a grid know each other.
const MOVES: &str = "subject:/O=Grid/CN=127.0.0.1";

/// Further lines of a configuration.
const MORE: &str = "more";

/// Other ports are tried when somebody took the chosen one first.
const ATTEMPTS: u32 = 5;
/// A server that takes longer to say its first word does not start.
const STARTED_WITHIN: Duration = Duration::from_secs(20);
/// What [`Talk`] waits for.
const ANSWERED_WITHIN: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Proftpd,
    /// It takes one session of a user.
    ProftpdOne,
    /// Without MLSD and MLST.
    ProftpdList,
    /// Under TLS only, commands and data, and data only by who resumes the session of the commands.
    ProftpdTls,
    /// Anonymous only.
    Vsftpd,
    /// It takes one session of a host.
    VsftpdOne,
    /// As [`Kind::ProftpdTls`].
    VsftpdTls,
    /// It takes files, and lets nobody rename, remove or replace any.
    VsftpdDropBox,
    /// Anonymous only.
    Gridftp,
    /// The same with two data movers, whose front end has no data itself.
    GridftpStriped,
    /// The same with four.
    GridftpFourfold,
    /// Users by certificates only; see [`grid`].
    GridftpGsi,
    /// The same with two data movers.
    GridftpGsiStriped,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Proftpd, Kind::ProftpdList, Kind::Vsftpd, Kind::Gridftp];
    /// Those of `ftps://`.
    pub const UNDER_TLS: [Kind; 2] = [Kind::ProftpdTls, Kind::VsftpdTls];

    /// Those that this machine has; what is missing is skipped aloud.
    pub fn here() -> Vec<Kind> {
        Kind::these(&Kind::ALL)
    }

    /// The same of some.
    pub fn these(kinds: &[Kind]) -> Vec<Kind> {
        kinds.iter().copied().filter(|kind| super::needs::all_here(&[kind.need()])).collect()
    }

    fn scheme(self) -> &'static str {
        match self {
            Kind::ProftpdTls | Kind::VsftpdTls => "ftps",
            Kind::GridftpGsi | Kind::GridftpGsiStriped => "gsiftp",
            _ => "ftp",
        }
    }

    fn need(self) -> &'static str {
        match self {
            Kind::Proftpd | Kind::ProftpdOne | Kind::ProftpdList => "proftpd",
            Kind::ProftpdTls => "proftpd-tls",
            Kind::Vsftpd | Kind::VsftpdOne | Kind::VsftpdTls | Kind::VsftpdDropBox => "vsftpd",
            Kind::Gridftp
            | Kind::GridftpStriped
            | Kind::GridftpFourfold
            | Kind::GridftpGsi
            | Kind::GridftpGsiStriped => "gridftp",
        }
    }

    /// Whether it tells everything of an entry, the times of directories too.
    pub fn has_mlsd(self) -> bool {
        !matches!(self, Kind::ProftpdList) && self.need() != "vsftpd"
    }

    /// Whether it can be asked for any name. The GridFTP server drops what is not ASCII from what it is told,
    /// and two dots at the start of a name with what stands before them.
    pub fn takes_every_name(self) -> bool {
        self.need() != "gridftp"
    }

    fn has_a_user(self) -> bool {
        matches!(self.need(), "proftpd" | "proftpd-tls")
    }
}

/// Whether the machine has the server of this need; see [`need!`].
pub fn is_here(need: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    match need {
        "proftpd" => root && Path::new(PROFTPD).exists(),
        "proftpd-tls" => root && Path::new(MOD_TLS).exists(),
        "gridftp" => root && Path::new(GRIDFTP).exists(),
        "vsftpd" => vsftpd().exists(),
        _ => panic!("no server is called {need}"),
    }
}

/// Where `scripts/peers.sh` puts what it fetches.
fn peers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/peers")
}

fn vsftpd() -> PathBuf {
    let installed = PathBuf::from("/usr/sbin/vsftpd");
    if installed.exists() { installed } else { peers().join("usr/sbin/vsftpd") }
}

/// A running server.
pub struct Ftpd {
    pub kind: Kind,
    pub port: u16,
    room: Room,
    daemon: Child,
    movers: Vec<Child>,
}

impl Ftpd {
    pub fn start(kind: Kind) -> Ftpd {
        Ftpd::of(kind, None)
    }

    /// The same with further lines of its configuration; of ProFTPD alone.
    pub fn with(kind: Kind, lines: &str) -> Ftpd {
        assert!(kind.has_a_user(), "{kind:?} reads no such lines");
        Ftpd::started(kind, None, lines)
    }

    /// Of the grid in this directory, where it is of one; else of its own.
    pub fn of(kind: Kind, of_grid: Option<&Path>) -> Ftpd {
        Ftpd::started(kind, of_grid, "")
    }

    fn started(kind: Kind, of_grid: Option<&Path>, lines: &str) -> Ftpd {
        let room = Room::new();
        room.file(MORE, lines);
        if let Some(of_grid) = of_grid {
            let copied = Command::new("cp")
                .arg("-a")
                .arg(of_grid.join("."))
                .arg(room.at(""))
                .status()
                .expect("run cp");
            assert!(copied.success(), "put a grid there");
        }
        room.dir("home");
        room.dir("empty");
        for _ in 0..ATTEMPTS {
            let port = free_port();
            let movers = match kind {
                Kind::GridftpStriped | Kind::GridftpGsiStriped => movers(kind, &room, 2),
                Kind::GridftpFourfold => movers(kind, &room, 4),
                _ => Vec::new(),
            };
            if let Some(daemon) = spawn(kind, &room, port) {
                return Ftpd { kind, port, room, daemon, movers };
            }
            movers.into_iter().for_each(end);
        }
        let said = ["said", "log"].map(|name| fs::read_to_string(room.at(name)).unwrap_or_default());
        panic!("{kind:?} does not start: {}", said.concat());
    }

    /// `ftp://...` of `path`, each byte that is not plain as `%XX`. A slash at its end stays.
    pub fn url(&self, path: impl AsRef<std::ffi::OsStr>) -> String {
        let who = if self.kind.has_a_user() {
            format!("{USER}:{}@", escaped_word(PASSWORD))
        } else {
            String::new()
        };
        self.url_as(&who, path)
    }

    /// The same for another login: nothing, or `USER@`, or `USER:PASSWORD@`, already escaped.
    pub fn url_as(&self, who: &str, path: impl AsRef<std::ffi::OsStr>) -> String {
        self.url_at(&format!("{who}127.0.0.1"), path)
    }

    /// The same by another name of this host.
    pub fn url_at(&self, host: &str, path: impl AsRef<std::ffi::OsStr>) -> String {
        format!("{}://{host}:{}{}", self.kind.scheme(), self.port, escaped(path))
    }

    /// Where a login begins, if that is ours to say.
    pub fn home(&self) -> Option<PathBuf> {
        self.kind.takes_every_name().then(|| self.room.at("home"))
    }

    /// A file of the grid that a [`Kind::GridftpGsi`] is of: `authorities`, `alice` (a proxy), `user.pem` and
    /// `user.key`; proxies that nothing can be delegated from: `last`, whose path ends, and `elliptic`, whose
    /// key Globus does not take; lists of what was revoked: `none.list`, `old.list`, `host.list`.
    pub fn of_grid(&self, name: &str) -> PathBuf {
        self.room.at(name)
    }

    /// Logged in and in binary.
    pub fn talk(&self) -> Talk {
        let mut talk = Talk::to(self.port);
        let (user, password) = if self.kind.has_a_user() { (USER, PASSWORD) } else { ("anonymous", "a@b") };
        assert!(talk.ask(&format!("USER {user}")).starts_with("331"));
        assert!(talk.ask(&format!("PASS {password}")).starts_with("230"));
        assert!(talk.ask("TYPE I").starts_with("200"));
        talk
    }

    /// The processes that serve a connection now.
    pub fn sessions(&self) -> Vec<Pid> {
        let all = procs::descendants(self.daemon.id());
        all.into_iter().filter(|pid| pid.as_raw_nonzero().get().unsigned_abs() != self.daemon.id()).collect()
    }

    /// It and all who serve stand still.
    pub fn freeze(&self) {
        let daemon = Pid::from_raw(self.daemon.id() as i32).expect("it has an id");
        // The one that would start others first.
        procs::signal_all(&[daemon], Signal::STOP);
        procs::signal_all(&procs::descendants(self.daemon.id()), Signal::STOP);
    }

    /// Ends it and all who serve, at once.
    pub fn kill(&mut self) {
        let all = procs::descendants(self.daemon.id());
        // The one that would start others first.
        let _ = self.daemon.kill();
        procs::signal_all(&all, Signal::KILL);
        let _ = self.daemon.wait();
        self.movers.drain(..).for_each(end);
    }

    /// Starts it again at its port after [`Ftpd::kill`].
    pub fn start_again(&mut self) {
        assert!(self.movers.is_empty(), "movers are not started again");
        let mut daemon = None;
        // Who else was given the port meanwhile gives it back.
        procs::wait_until(STARTED_WITHIN, || {
            daemon = spawn(self.kind, &self.room, self.port);
            daemon.is_some()
        });
        self.daemon = daemon.expect("it starts again");
    }
}

impl Drop for Ftpd {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Data movers of a GridFTP server, on ports that the file `movers` names.
fn movers(kind: Kind, room: &Room, count: usize) -> Vec<Child> {
    let ports: Vec<u16> = (0..count).map(|_| free_port()).collect();
    let places: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    room.file("movers", places.join(","));
    let start = |port| {
        let mut command = match kind {
            Kind::GridftpGsiStriped => gridftp_of_grid(room, port, &["-dn", "-ipc-auth-mode", MOVES]),
            _ => gridftp(room, port, &["-dn", "-si", "-aa", "-anonymous-user", "root"]),
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mover = command.process_group(0).spawn().expect("start a data mover");
        procs::wait_until(STARTED_WITHIN, || TcpStream::connect(("127.0.0.1", port)).is_ok());
        mover
    };
    ports.into_iter().map(start).collect()
}

fn end(mut daemon: Child) {
    let all = procs::descendants(daemon.id());
    let _ = daemon.kill();
    procs::signal_all(&all, Signal::KILL);
    let _ = daemon.wait();
}

/// Starts it and waits until it greets; `None` if it ended instead.
fn spawn(kind: Kind, room: &Room, port: u16) -> Option<Child> {
    let mut command = match kind {
        Kind::Proftpd => proftpd(room, port, ""),
        Kind::ProftpdOne => proftpd(room, port, "MaxClientsPerUser 1\n"),
        Kind::ProftpdList => proftpd(
            room,
            port,
            "FactsAdvertise off\n<Global>\n<Limit MLSD MLST>\nDenyAll\n</Limit>\n</Global>\n",
        ),
        Kind::ProftpdTls => proftpd(
            room,
            port,
            &format!(
                "ModulePath /usr/lib/proftpd\nLoadModule mod_tls.c\nTLSEngine on\nTLSRequired on\n\
                 TLSECCertificateFile {cert}\n\
                 TLSECCertificateKeyFile {key}\nTLSProtocol TLSv1.2 TLSv1.3\nTLSLog {log}\n",
                cert = certificate("server.pem").display(),
                key = private_key(room).display(),
                log = room.at("log").display(),
            ),
        ),
        Kind::Vsftpd => vsftpd_at(room, port, ""),
        Kind::VsftpdOne => vsftpd_at(room, port, "max_per_ip=1\n"),
        Kind::VsftpdDropBox => vsftpd_at(room, port, "anon_other_write_enable=NO\n"),
        Kind::VsftpdTls => vsftpd_at(
            room,
            port,
            &format!(
                "ssl_enable=YES\nallow_anon_ssl=YES\nforce_anon_logins_ssl=YES\nforce_anon_data_ssl=YES\n\
                 require_ssl_reuse=YES\nrsa_cert_file={}\nrsa_private_key_file={}\ndebug_ssl=YES\n",
                certificate("server.pem").display(),
                private_key(room).display(),
            ),
        ),
        Kind::Gridftp => gridftp(room, port, &["-aa", "-anonymous-user", "root"]),
        Kind::GridftpStriped | Kind::GridftpFourfold => {
            let movers = fs::read_to_string(room.at("movers")).expect("there are some");
            gridftp(room, port, &["-aa", "-anonymous-user", "root", "-r", &movers])
        }
        Kind::GridftpGsi => gridftp_of_grid(room, port, &[]),
        Kind::GridftpGsiStriped => {
            let movers = fs::read_to_string(room.at("movers")).expect("there are some");
            gridftp_of_grid(room, port, &["-ipc-auth-mode", MOVES, "-r", &movers])
        }
    };
    let said = fs::File::create(room.at("said")).expect("make a file for what it says");
    command.stdin(Stdio::null()).stdout(said.try_clone().expect("one more descriptor")).stderr(said);
    let mut daemon = command.process_group(0).spawn().expect("start a server");
    let mut ended = false;
    let greeted = procs::wait_until(STARTED_WITHIN, || {
        ended = daemon.try_wait().is_ok_and(|status| status.is_some());
        ended || greets(port)
    });
    if greeted && !ended && daemon.try_wait().is_ok_and(|status| status.is_none()) {
        return Some(daemon);
    }
    let _ = daemon.kill();
    let _ = daemon.wait();
    None
}

fn greets(port: u16) -> bool {
    let Ok(mut socket) = TcpStream::connect(("127.0.0.1", port)) else {
        return false;
    };
    let mut code = [0; 3];
    let _ = socket.set_read_timeout(Some(ANSWERED_WITHIN));
    socket.read_exact(&mut code).is_ok() && &code == b"220"
}

pub fn proftpd(room: &Room, port: u16, more: &str) -> Command {
    let at = |name: &str| room.at(name).display().to_string();
    let lines = fs::read_to_string(room.at(MORE)).unwrap_or_default();
    // Each login is root, so that every file of the test can be read.
    room.file("passwd", format!("{USER}:{HASH}:0:0::{}:/bin/sh\n", at("home")));
    set_mode(&room.at("passwd"), 0o600);
    let config = format!(
        "ServerType standalone\nServerName test\nDefaultAddress 127.0.0.1\nSocketBindTight on\nPort {port}\n\
         UseIPv6 off\nUser root\nGroup root\nAuthOrder mod_auth_file.c\nAuthUserFile {passwd}\nRootLogin on\n\
         RequireValidShell off\nWtmpLog off\nUseReverseDNS off\nPidFile {pid}\nScoreboardFile {score}\n\
         DelayEngine off\nTransferLog none\nSystemLog {log}\nAllowOverwrite on\nAllowStoreRestart on\n\
         AllowRetrieveRestart on\nMaxInstances 100\nUmask 022\nUseEncoding off\n{more}{lines}",
        passwd = at("passwd"),
        pid = at("pid"),
        score = at("score"),
        log = at("log"),
    );
    let mut command = Command::new(PROFTPD);
    command.args(["-n", "-q", "-c"]).arg(room.file("proftpd.conf", config));
    command
}

/// What shows that a server is this one, and who says so; those that the tests of the client use.
pub fn certificate(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../ftp/tests/certificates").join(name)
}

/// Its key. Servers want one that nobody else can read.
fn private_key(room: &Room) -> PathBuf {
    let key = fs::read(certificate("server.key")).expect("read the key");
    let path = room.file("server.key", key);
    set_mode(&path, 0o600);
    path
}

pub fn vsftpd_at(room: &Room, port: u16, more: &str) -> Command {
    let at = |name: &str| room.at(name).display().to_string();
    // In one process as whoever tests, it neither confines itself to its root nor asks PAM.
    let config = format!(
        "listen=YES\nlisten_address=127.0.0.1\nlisten_port={port}\nbackground=NO\none_process_model=YES\n\
         run_as_launching_user=YES\nanonymous_enable=YES\nlocal_enable=NO\nanon_root={home}\n\
         anon_world_readable_only=NO\nsecure_chroot_dir={empty}\nseccomp_sandbox=NO\nisolate=NO\n\
         isolate_network=NO\nwrite_enable=YES\nanon_upload_enable=YES\nanon_mkdir_write_enable=YES\n\
         anon_other_write_enable=YES\nanon_umask=022\nmdtm_write=YES\nvsftpd_log_file={log}\n\
         setproctitle_enable=NO\n{more}",
        home = at("home"),
        empty = at("empty"),
        log = at("log"),
    );
    let libraries = format!("{}-linux-gnu", std::env::consts::ARCH);
    let libraries = ["usr/lib", "lib"].map(|dir| peers().join(dir).join(&libraries).display().to_string());
    let mut command = Command::new(vsftpd());
    command.arg(room.file("vsftpd.conf", config)).env("LD_LIBRARY_PATH", libraries.join(":"));
    command
}

/// A grid of one authority, one host and one user, alice, whom the host takes for root: its files, in the
/// room. Their names are those of [`Ftpd::of_grid`].
///
/// They are made anew for each server: that of Globus takes nothing that is valid for as long as a test in a
/// repository must be.
pub fn grid(room: &Room) {
    if room.at("gridmap").exists() {
        return;
    }
    let dir = room.dir("authorities");
    let run = |command: &str| {
        let output =
            Command::new("sh").args(["-ec", command]).current_dir(room.at("")).output().expect("run sh");
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    let usage = "basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature,keyEncipherment\n";
    room.file("host.cnf", format!("{usage}subjectAltName=IP:127.0.0.1\n"));
    room.file("user.cnf", usage);
    // RFC 3820: all that the user may.
    room.file("proxy.cnf", format!("{usage}proxyCertInfo=critical,language:id-ppl-inheritAll\n"));
    room.file("elliptic.cnf", format!("{usage}proxyCertInfo=critical,language:id-ppl-inheritAll\n"));
    room.file("last.cnf", format!("{usage}proxyCertInfo=critical,language:id-ppl-inheritAll,pathlen:0\n"));
    // Globus delegates by RSA alone; `elliptic` is who has no such key.
    let (key, elliptic) = ("openssl genrsa -out", "openssl ecparam -name prime256v1 -genkey -noout -out");
    run(&format!(
        "{elliptic} ca.key; openssl req -x509 -new -key ca.key -days 30 -subj '/CN=Authority' -out ca.pem \
         -addext keyUsage=critical,keyCertSign,cRLSign"
    ));
    let signed = |name: &str, key: &str, subject: &str, by: &str| {
        run(&format!(
            "{key} {name}.key; chmod 600 {name}.key; openssl req -new -key {name}.key -subj '{subject}' | openssl x509 -req \
             -CA {by}.pem -CAkey {by}.key -set_serial 12345 -days 20 -extfile {name}.cnf -out {name}.pem"
        ));
    };
    signed("host", key, "/O=Grid/CN=127.0.0.1", "ca");
    signed("user", key, "/O=Grid/CN=alice", "ca");
    signed("proxy", key, "/O=Grid/CN=alice/CN=12345", "user");
    signed("last", key, "/O=Grid/CN=alice/CN=12346", "user");
    signed("elliptic", elliptic, "/O=Grid/CN=alice/CN=12347", "user");
    for name in ["proxy", "last", "elliptic"] {
        run(&format!("cat {name}.pem {name}.key user.pem >{name}; chmod 600 {name}"));
    }
    run("mv proxy alice");
    // What revokes the host, what has expired, and what revokes nobody.
    room.file(
        "lists.cnf",
        "[ca]\ndefault_ca=d\n[d]\ndatabase=lists.txt\ndefault_md=sha256\ncrlnumber=lists.number\n",
    );
    room.file("lists.txt", "");
    room.file("lists.number", "01\n");
    let listed = "openssl ca -config lists.cnf -keyfile ca.key -cert ca.pem";
    run(&format!(
        "{listed} -gencrl -crldays 9 -out none.list; {listed} -gencrl -crl_lastupdate 20200101000000Z \
         -crl_nextupdate 20200102000000Z -out old.list; {listed} -revoke host.pem; \
         {listed} -gencrl -crldays 9 -out host.list"
    ));
    let hash = run("openssl x509 -in ca.pem -noout -hash");
    fs::copy(room.at("ca.pem"), dir.join(format!("{hash}.0"))).expect("put the authority there");
    let policy = "access_id_CA X509 '/CN=Authority'\npos_rights globus CA:sign\ncond_subjects globus '\"/O=Grid/*\"'\n";
    fs::write(dir.join(format!("{hash}.signing_policy")), policy).expect("write its policy");
    room.file("gridmap", "\"/O=Grid/CN=alice\" root\n");
}

pub fn gridftp(room: &Room, port: u16, more: &[&str]) -> Command {
    let mut command = Command::new(GRIDFTP);
    // No configuration of the machine's.
    command.args(["-c", "", "-allow-root", "-allow-disabled-login"]).args(more);
    command.args(["-control-interface", "127.0.0.1", "-data-interface", "127.0.0.1"]);
    command.args(["-p", &port.to_string(), "-l"]).arg(room.at("log"));
    command
}

/// The same for who comes by a certificate.
fn gridftp_of_grid(room: &Room, port: u16, more: &[&str]) -> Command {
    grid(room);
    let mut command = gridftp(room, port, more);
    for (name, file) in [
        ("X509_CERT_DIR", "authorities"),
        ("X509_USER_CERT", "host.pem"),
        ("X509_USER_KEY", "host.key"),
        ("GRIDMAP", "gridmap"),
    ] {
        command.env(name, room.at(file));
    }
    command
}

/// For the part of a URL before the path, where a slash would end it.
pub fn escaped_word(text: &str) -> String {
    escaped(text).replace('/', "%2F")
}

/// For the path of a URL.
pub fn escaped(text: impl AsRef<std::ffi::OsStr>) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    let bytes = text.as_ref().as_bytes().iter();
    bytes.map(|byte| if plain(*byte) { char::from(*byte).into() } else { format!("%{byte:02X}") }).collect()
}

/// A control connection by plain sockets.
pub struct Talk {
    control: BufReader<TcpStream>,
}

impl Talk {
    pub fn to(port: u16) -> Talk {
        let socket = TcpStream::connect(("127.0.0.1", port)).expect("connect to a server");
        socket.set_read_timeout(Some(ANSWERED_WITHIN)).expect("set a patience");
        let mut talk = Talk { control: BufReader::new(socket) };
        assert!(talk.reply().starts_with("220"));
        talk
    }

    /// Says a line; the whole reply.
    pub fn ask(&mut self, line: &str) -> String {
        self.say(line.as_bytes());
        self.reply()
    }

    pub fn say(&mut self, line: &[u8]) {
        self.control.get_mut().write_all(&[line, b"\r\n"].concat()).expect("say a line");
    }

    /// The next reply, all its lines.
    pub fn reply(&mut self) -> String {
        let mut all = String::new();
        loop {
            let mut line = Vec::new();
            self.control.read_until(b'\n', &mut line).expect("an answer in time");
            assert!(line.ends_with(b"\n"), "it hangs up after {all}");
            all.push_str(&String::from_utf8_lossy(&line));
            let last =
                line.get(..4).is_some_and(|start| start[3] == b' ' && start[..3] == all.as_bytes()[..3]);
            if last {
                return all;
            }
        }
    }

    /// What `line` sends through a data connection.
    pub fn fetch(&mut self, line: &[u8]) -> Vec<u8> {
        let mut socket = self.data();
        self.say(line);
        let begun = self.reply();
        assert!(begun.starts_with('1'), "{begun}");
        let mut content = Vec::new();
        socket.read_to_end(&mut content).expect("read data");
        // ProFTPD says nothing before this end is closed too, or ten seconds are over.
        drop(socket);
        let done = self.reply();
        assert!(done.starts_with("226"), "{done}");
        content
    }

    /// A data connection, dialled.
    pub fn data(&mut self) -> TcpStream {
        let said = self.ask("PASV");
        let numbers = said.split(['(', ')']).nth(1).unwrap_or_else(|| panic!("no address in {said}"));
        let numbers: Vec<u8> = numbers.split(',').map(|n| n.parse().expect("a number")).collect();
        let [a, b, c, d, high, low] = numbers[..] else { panic!("no address in {said}") };
        let address = SocketAddr::from(([a, b, c, d], u16::from_be_bytes([high, low])));
        let socket = TcpStream::connect(address).expect("dial for data");
        socket.set_read_timeout(Some(ANSWERED_WITHIN)).expect("set a patience");
        socket
    }
}

/// A path with a slash at its end: its contents.
pub fn contents(path: &Path) -> OsString {
    super::way::contents(path)
}
