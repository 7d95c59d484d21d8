//! `haul serve gridftp --tls-cert`: who is not known comes under TLS, with clients that are not haul's and
//! with haul's own.

use std::fs;
use std::io::{BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;

use crate::support::compare::{BELOW, Opts, assert_same};
use crate::support::ftpd::{certificate, grid};
use crate::support::run::{Haul, Running};
use crate::support::serve::{self, CLIENT_SECONDS, SOON, ask, line};
use crate::support::{Room, procs, read, set_mode, tree};

/// A server whose certificate is of the tests' authority.
struct Server {
    room: Room,
    port: u16,
    running: Running,
}

impl Server {
    /// Behind the login another process serves, if root tests; else all is one.
    fn new(more: &[&str]) -> Server {
        let words = ["--anonymous", "write", "--user", "root"];
        let words = if rustix::process::geteuid().is_root() { &words[..] } else { &words[..2] };
        Server::of(Room::new(), &[words, more].concat())
    }

    fn of(room: Room, more: &[&str]) -> Server {
        room.dir("root");
        put(&room, "server");
        let (port, running) = serve::started("127.0.0.1", " listen ", |port| {
            let haul = Haul::new(["serve", "gridftp", "--listen", &format!("127.0.0.1:{port}")]).args(more);
            let haul = haul.args(["--root".into(), room.at("root")]);
            let haul = haul.args(["--tls-cert".into(), room.at("cert.pem")]);
            haul.args(["--tls-key".into(), room.at("key.pem")])
        });
        Server { room, port, running }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.room.at("root").join(name)
    }

    fn url(&self, scheme: &str, path: &str) -> String {
        format!("{scheme}://127.0.0.1:{}/{path}", self.port)
    }

    fn curl(&self, words: &[&str]) -> Output {
        let ca = certificate("ca.pem").display().to_string();
        client("curl", &[&["-sS", "--ssl-reqd", "--cacert", &ca], words].concat())
    }

    #[track_caller]
    fn curls(&self, words: &[&str]) {
        assert_good(&self.curl(words), words, &self.running);
    }

    /// What a client in Python says, which trusts the tests' authority and has logged in: `ftp` is the
    /// session, `up` brings a file.
    #[track_caller]
    fn python(&self, text: &str) {
        let text = format!("{PYTHON}{text}");
        let ca = certificate("ca.pem").display().to_string();
        let words = ["-c", &text, &self.port.to_string(), &ca];
        assert_good(&client("python3", &words), &words, &self.running);
    }

    fn talk(&self) -> BufReader<TcpStream> {
        serve::greeted(self.port)
    }

    fn says(&self, text: &str) -> bool {
        procs::wait_until(SOON, || self.running.stderr().contains(text))
    }
}

const PYTHON: &str = r#"
import ftplib, ssl, sys
class Client(ftplib.FTP_TLS):
    # The library's own goes on with no session, and is sent away by servers that look.
    def ntransfercmd(self, command, rest=None):
        plain, size = ftplib.FTP.ntransfercmd(self, command, rest)
        if self._prot_p:
            plain = self.context.wrap_socket(plain, server_hostname=self.host, session=self.sock.session)
        return plain, size
def session(version=None):
    trust = ssl.create_default_context(cafile=sys.argv[2])
    if version:
        trust.minimum_version = trust.maximum_version = version
    ftp = Client(context=trust, timeout=60)
    ftp.connect('127.0.0.1', int(sys.argv[1]))
    ftp.login()
    ftp.prot_p()
    return ftp
def up(ftp, name, content, ends, allo=None):
    if allo is not None:
        ftp.voidcmd('ALLO %d' % allo)
    data = ftp.transfercmd('STOR ' + name)
    data.sendall(content)
    if ends:
        data.unwrap()
    data.close()
    try:
        return ftp.voidresp()[:3]
    except ftplib.Error as error:
        return str(error)[:3]
def refused(ftp, line):
    try:
        return 'not refused: ' + ftp.sendcmd(line)
    except ftplib.Error as error:
        return str(error)[:3]
def equal(one, other):
    if one != other:
        sys.exit('%r is not %r' % (one, other))
"#;

/// Has the server find this certificate and its key.
pub fn put(room: &Room, name: &str) {
    fs::copy(certificate(&format!("{name}.pem")), room.at("cert.pem")).expect("put the certificate there");
    let key = room.at("key.pem");
    fs::write(&key, read(certificate(&format!("{name}.key")))).expect("put the key there");
    set_mode(&key, 0o600);
}

fn client(program: &str, words: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args([CLIENT_SECONDS, program]).args(words).stdin(Stdio::null());
    command.output().expect("run a client")
}

#[track_caller]
fn assert_good(output: &Output, words: &[&str], server: &Running) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {}\n{said}\n{}", output.status, server.stderr());
}

fn shown(path: impl AsRef<Path>) -> String {
    path.as_ref().display().to_string()
}

/// Goal: under TLS, too, what comes and goes is byte for byte what is there, and what had begun goes on.
/// Method: curl puts and gets files of sizes at the edges of buffers and records, under both versions of TLS.
#[test]
fn curl_gets_and_puts_the_same_bytes_under_tls() {
    need!("curl");
    let server = Server::new(&["--tls-required"]);
    let mut rng = fastrand::Rng::with_seed(11);
    let url = server.url("ftp", "f");
    let back = shown(server.room.at("back"));
    for options in [&[][..], &["--tls-max", "1.2"]] {
        for size in [0, 1, (1 << 18) + 1, 3_000_000] {
            let content = tree::bytes(&mut rng, size);
            let near = shown(server.room.file("near", &content));
            server.curls(&[options, &["-T", &near, &url]].concat());
            assert!(read(server.at("f")) == content, "{options:?} put {size}");
            server.curls(&[options, &["-o", &back, &url]].concat());
            assert!(size == 0 || read(&back) == content, "{options:?} got {size}");
            let _ = fs::remove_file(&back);
        }
        // The end of a file that is here in part, and of one that is there in part.
        let content = read(server.at("f"));
        fs::write(&back, &content[..1_234_567]).expect("write a part");
        server.curls(&[options, &["-C", "-", "-o", &back, &url]].concat());
        assert!(read(&back) == content, "{options:?} went on");
        fs::write(server.at("f"), &content[..1_234_567]).expect("write a part");
        let near = shown(server.room.at("near"));
        server.curls(&[options, &["-C", "-", "-T", &near, &url]].concat());
        assert!(read(server.at("f")) == content, "{options:?} went on there");
        fs::remove_file(&back).expect("remove what came");
    }
    let listed = server.curl(&["-l", &server.url("ftp", "")]);
    assert_eq!(String::from_utf8_lossy(&listed.stdout), "f\n");
    let log = server.running.stderr();
    assert!(log.contains("under TLS") && !log.contains("panicked"), "{log}");
}

/// Goal: trees come and go whole by lftp, which may do nothing without TLS, and by haul's own `ftps://`.
#[test]
fn trees_come_and_go_under_tls() {
    need!("lftp");
    let server = Server::new(&["--tls-required"]);
    let near = server.room.at("near");
    tree::plain(&near, 12, 40, 100_000);
    fs::write(near.join("empty"), "").expect("write an empty file");
    let bytes_alone = Opts { metadata: false, ..BELOW };
    let back = server.room.at("back");
    let script = format!(
        "set ssl:ca-file {}; set ftp:ssl-force true; set ftp:ssl-allow-anonymous true; \
         set ftp:ssl-protect-data true; set cmd:fail-exit true; set net:max-retries 1; open ftp://127.0.0.1:{}; mirror -R --parallel=3 {} lftp; set ftp:passive-mode false; \
         mirror --parallel=3 lftp {}",
        shown(certificate("ca.pem")),
        server.port,
        shown(&near),
        shown(&back)
    );
    let words = ["-c", &script];
    assert_good(&client("lftp", &words), &words, &server.running);
    assert_same(&near, &server.at("lftp"), bytes_alone);
    assert_same(&near, &back, bytes_alone);

    let haul = || Haul::cp(["-r", "-v"]).env("SSL_CERT_FILE", certificate("ca.pem"));
    let (from, to) = (format!("{}/", near.display()), server.url("ftps", "haul/"));
    haul().args([&from, &to]).run().sane().exits(0);
    assert_same(&near, &server.at("haul"), bytes_alone);
    let back = shown(server.room.dir("back-haul"));
    haul().args([&to, &back]).run().sane().exits(0);
    assert_same(&near, Path::new(&back), bytes_alone);
    haul().args([&server.url("ftp", "haul/"), &shown(server.room.dir("clear"))]).run().sane().exits(1);
}

/// Goal: each data connection of a tree of small files goes on with a session of TLS, however many there are,
/// and no login is lost for want of one.
#[test]
fn small_files_do_not_use_up_sessions() {
    let server = Server::new(&["--tls-required"]);
    let near = server.room.dir("near");
    (0..40u8)
        .for_each(|n| fs::write(near.join(format!("f{n}")), vec![n; usize::from(n)]).expect("write a file"));
    let haul = Haul::cp(["-r", "-v", "--writers=1"]).env("SSL_CERT_FILE", certificate("ca.pem"));
    let (from, to) = (format!("{}/", near.display()), server.url("ftps", ""));
    let ended = haul.args([&from, &to]).run().sane().exits(0);
    assert_same(&near, &server.at(""), Opts { metadata: false, ..BELOW });
    let log = server.running.stderr();
    assert_eq!(log.matches(" login ").count(), 1, "{log}\n{}", ended.describe());
    assert!(!log.contains(" 425 ") && !log.contains(" 426 "), "{log}");
}

/// Goal: whoever serves behind the login and whoever dials, sessions are gone on with where the client offers
/// one, and without `PROT P` data are in the clear.
/// Method: Python's client, under both versions of TLS, also of a server whose processes are all of one user.
#[test]
fn sessions_of_tls_are_gone_on_with() {
    need!("python3");
    let room = Room::new();
    for server in [Server::new(&[]), Server::of(room, &["--tls-any-data"])] {
        fs::write(server.at("f"), "what is there").expect("write a file");
        server.python(
            "
for version in [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]:
    ftp = session(version)
    known = ftp.sock.session
    ftp.prot_c()
    data, _ = ftp.ntransfercmd('RETR f')
    equal(type(data).__name__, 'socket')
    equal(data.recv(100), b'what is there')
    data.close(); ftp.voidresp()
    ftp.prot_p()
    for passive in [True, False]:
        ftp.set_pasv(passive)
        # By hand, for this client goes on with no session by itself.
        plain, _ = ftplib.FTP.ntransfercmd(ftp, 'RETR f')
        data = ftp.context.wrap_socket(plain, server_hostname='127.0.0.1', session=known)
        equal(data.session_reused, True)
        equal(data.recv(100), b'what is there')
        equal(data.recv(100), b'')
        known = data.session
        data.close(); ftp.voidresp()
",
        );
    }
}

/// Goal: who goes on with no session gets data where that was said, and nowhere else.
/// Method: Python's client as it is, at a server with the option; at the other one see the test below.
#[test]
fn any_data_connection_is_taken_where_that_was_said() {
    need!("python3");
    let server = Server::of(Room::new(), &["--tls-any-data"]);
    fs::write(server.at("f"), "what is there").expect("write a file");
    server.python(
        "
ftp = session()
ftp.ntransfercmd = lambda *words: ftplib.FTP_TLS.ntransfercmd(ftp, *words)
came = []
ftp.retrbinary('RETR f', came.append)
equal(b''.join(came), b'what is there')
",
    );
}

/// Goal: where that was not said, whoever runs the server reads in its log why such a client gets nothing,
/// and the option, also where the client goes at once. Method: Python's client as it is, which begins a
/// session of TLS of its own.
#[test]
fn a_client_that_goes_on_with_no_session_is_told_of() {
    need!("python3");
    let server = Server::new(&[]);
    fs::write(server.at("f"), "what is there").expect("write a file");
    server.python(
        "
ftp = session()
ftp.ntransfercmd = lambda *words: ftplib.FTP_TLS.ntransfercmd(ftp, *words)
came = []
try:
    ftp.retrbinary('RETR f', came.append)
except (OSError, EOFError, ftplib.Error):
    pass
equal(came, [])
",
    );
    assert!(server.says("--tls-any-data has this server take such clients"), "{}", server.running.stderr());
}

/// Goal: who dials the port of a data connection and does not speak TLS, or goes on with no session of the
/// client's, keeps the client from nothing, and gets nothing; nobody else of its user can look into a session
/// that has the key.
#[test]
fn strangers_get_nothing_of_a_session_under_tls() {
    need!("python3");
    let server = Server::of(Room::new(), &[]);
    fs::write(server.at("f"), "what is there").expect("write a file");
    server.python(
        "
import socket
ftp = session()
host, port = ftp.makepasv()
silent, rude = socket.create_connection((host, port)), socket.create_connection((host, port))
rude.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')
other, plain = socket.create_connection((host, port)), socket.create_connection((host, port))
equal(ftp.sendcmd('RETR f')[:3], '150')
# Of TLS, but of no session, as somebody on the way has it who leads one connection to another.
other = ftp.context.wrap_socket(other, server_hostname=host)
other.settimeout(60)
try:
    equal(other.recv(100), b'')
except OSError:
    pass
data = ftp.context.wrap_socket(plain, server_hostname=host, session=ftp.sock.session)
equal(data.recv(100), b'what is there')
data.close(); ftp.voidresp()
rude.settimeout(60)
equal(b'what' in rude.recv(100), False)
",
    );
    let _talk = server.talk();
    let session = server.running.near()[1].as_raw_nonzero();
    let owner = fs::metadata(format!("/proc/{session}/environ")).expect("look at a session").uid();
    // What a process has that its user may look at is his; if root tests, a session is nobody's.
    assert_eq!(owner, 0);
}

/// Goal: commands that are sent ahead under TLS, more than are held of them, are all answered; a handshake
/// that does not go on keeps the server from no end.
#[test]
fn commands_sent_ahead_under_tls_are_answered() {
    need!("python3");
    let mut server = Server::new(&["--grace", "10m"]);
    server.python(
        "
ftp = session()
import socket
# One record of TLS that is full and a short one, which come at once.
for _ in range(3):
    ftp.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    ftp.sock.sendall(b'NOOP\\r\\n' * 2731)
    ftp.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
    for _ in range(2731):
        equal(ftp.getresp()[:3], '200')
",
    );
    let mut talk = server.talk();
    assert!(ask(&mut talk, "AUTH TLS").starts_with("234"));
    server.running.signal(Signal::TERM);
    assert!(procs::wait_until(SOON, || server.running.ended()), "{}", server.running.stderr());
}

/// Goal: an upload that somebody cuts off is not a file, unless the client has said how many bytes it has,
/// and all are there.
/// Method: connections that end with and without the last word of TLS.
#[test]
fn a_cut_upload_gets_no_name() {
    need!("python3");
    let server = Server::new(&[]);
    server.python(
        "
ftp = session()
equal(up(ftp, 'whole', b'x' * 100000, True), '226')
equal(up(ftp, 'empty', b'', True), '226')
equal(up(ftp, 'cut', b'x' * 100000, False), '426')
equal(up(ftp, 'none', b'', False), '426')
equal(up(ftp, 'announced', b'x' * 100000, False, allo=100000), '226')
equal(up(ftp, 'short', b'x' * 100000, False, allo=100001), '426')
equal(up(ftp, 'over', b'x' * 100000, False, allo=99999), '426')
equal(up(ftp, 'less', b'x' * 100000, True, allo=100001), '451')
# Who closes with something unread has the system throw away what he sent: nothing is told him.
import select
data = ftp.transfercmd('STOR whole')
equal(select.select([data], [], [], 2)[0], [])
data.unwrap(); data.close(); ftp.voidresp()
",
    );
    let mut names: Vec<_> =
        fs::read_dir(server.at("")).expect("list it").map(|e| e.expect("an entry")).collect();
    names.sort_by_key(std::fs::DirEntry::file_name);
    let names: Vec<_> = names.iter().map(|entry| entry.file_name().into_string().expect("UTF-8")).collect();
    assert_eq!(names, ["announced", "empty", "whole"]);
}

/// Goal: what somebody on the way says in the clear, before, behind and instead of the client's TLS, has no
/// effect (the injection of STARTTLS).
/// Method: commands in one piece with `AUTH TLS`, half a line of one, and commands behind its answer.
#[test]
fn what_is_said_behind_auth_has_no_effect() {
    let server = Server::new(&[]);
    let rest = |talk: &mut BufReader<TcpStream>| {
        let mut rest = Vec::new();
        // One that was reset has said all, too.
        let _ = talk.read_to_end(&mut rest);
        rest
    };
    for behind in ["USER anonymous\r\nPASS x\r\nMKD made\r\n", "USER anon", "\r\n"] {
        let mut talk = server.talk();
        talk.get_mut().write_all(format!("AUTH TLS\r\n{behind}").as_bytes()).expect("say it");
        let said = line(&mut talk);
        assert!(said.starts_with("421"), "{behind:?}: {said}");
        assert_eq!(String::from_utf8_lossy(&rest(&mut talk)), "", "{behind:?}");
    }
    let mut talk = server.talk();
    assert!(ask(&mut talk, "AUTH TLS").starts_with("234"));
    let _ = talk.get_mut().write_all(b"USER anonymous\r\nPASS x\r\nMKD made\r\n");
    let said = String::from_utf8_lossy(&rest(&mut talk)).into_owned();
    assert!(!said.contains("331") && !said.contains("230"), "{said}");
    assert!(!server.at("made").exists());
    assert!(server.says("commands behind AUTH TLS"), "{}", server.running.stderr());
    assert!(!server.running.stderr().contains(" login "), "{}", server.running.stderr());

    // What was said before counts as little.
    let mut talk = server.talk();
    assert!(ask(&mut talk, "USER anonymous").starts_with("331"));
    drop(talk);
    need!("python3");
    server.python(
        "
ftp = ftplib.FTP_TLS(context=ssl.create_default_context(cafile=sys.argv[2]), timeout=60)
ftp.connect('127.0.0.1', int(sys.argv[1]))
ftp.sendcmd('USER anonymous'); ftp.sendcmd('PBSZ 0')
ftp.auth()
equal(refused(ftp, 'PASS x'), '503')
equal(refused(ftp, 'PROT P'), '503')
",
    );
}

/// Goal: what is not served is refused in words: SSL, TLS twice, an end of TLS, weaker protection of data,
/// blocks, anybody but anonymous; with `--tls-required` logins and data without TLS.
#[test]
fn what_tls_does_not_serve_is_refused() {
    need!("python3");
    let server = Server::new(&["--tls-required"]);
    let mut talk = server.talk();
    assert!(ask(&mut talk, "AUTH SSL").starts_with("504"));
    assert!(ask(&mut talk, "AUTH GSSAPI").starts_with("504"));
    assert!(ask(&mut talk, "ADAT AAAA").starts_with("503"));
    assert!(ask(&mut talk, "PROT P").starts_with("536"));
    assert!(ask(&mut talk, "USER anonymous").starts_with("534"));
    assert!(ask(&mut talk, "PASS x").starts_with("503"));
    fs::write(server.at("f"), "what is there").expect("write a file");
    let features = "
ftp = session()
for known in ['AUTH TLS', 'PBSZ', 'PROT']:
    equal(known in ftp.sendcmd('FEAT'), True)
equal(refused(ftp, 'AUTH TLS'), '503')
equal(refused(ftp, 'CCC'), '534')
for letter in 'SE':
    equal(refused(ftp, 'PROT ' + letter), '536')
equal(refused(ftp, 'MODE E'), '504')
equal(refused(ftp, 'DCAU A'), '504')
other = ftplib.FTP_TLS(context=ssl.create_default_context(cafile=sys.argv[2]), timeout=60)
other.connect('127.0.0.1', int(sys.argv[1]))
other.auth()
other.sendcmd('USER alice')
equal(refused(other, 'PASS x'), '530')
";
    server.python(features);
    server.python(
        "
ftp = session()
equal(refused(ftp, 'PROT C'), '534')
ftp = ftplib.FTP_TLS(context=ssl.create_default_context(cafile=sys.argv[2]), timeout=60)
ftp.connect('127.0.0.1', int(sys.argv[1]))
ftp.login()
for line in ['RETR f', 'STOR g', 'NLST']:
    ftp.makepasv()
    equal(refused(ftp, line), '522')
",
    );
    assert!(!server.at("g").exists());
    // Where nothing is required, all of it may be in the clear.
    let server = Server::new(&[]);
    server.python(features);
    let mut talk = server.talk();
    assert!(ask(&mut talk, "USER anonymous").starts_with("331"));
    assert!(ask(&mut talk, "PASS x").starts_with("230"));
    assert!(ask(&mut talk, "AUTH TLS").starts_with("503"));
    assert!(ask(&mut talk, "PROT P").starts_with("536"));
}

/// Makes a certificate that was valid for a day, and its key.
const EXPIRED: &str = "\
    printf '[ca]\ndefault_ca=d\n[d]\ndatabase=once.txt\nserial=once.serial\nnew_certs_dir=.\ndefault_md=sha256\n\
    policy=p\n[p]\ncommonName=supplied\n' >once.cnf; : >once.txt; echo 01 >once.serial
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout once.key -subj /CN=once -out once.csr
    openssl ca -batch -config once.cnf -selfsign -keyfile once.key -in once.csr -startdate 20200101000000Z \
    -enddate 20200102000000Z -out once.pem -notext
    cat once.pem >cert.pem; cat once.key >key.pem";

/// Goal: certificates that are renewed count for who comes then, without a restart; files that cannot be used
/// change nothing and are told, and a server does not start with them.
#[test]
fn certificates_are_renewed() {
    need!("curl", "python3");
    let server = Server::new(&[]);
    fs::write(server.at("f"), "what is there").expect("write a file");
    let url = server.url("ftp", "f");
    let gets = |ca: &str| {
        let ca = shown(certificate(ca));
        let out = client("curl", &["-sS", "--ssl-reqd", "--cacert", &ca, &url]);
        out.status.success() && out.stdout == b"what is there"
    };
    assert!(gets("ca.pem") && !gets("stranger.pem"));
    put(&server.room, "stranger");
    assert!(gets("ca.pem"), "before SIGHUP nothing has changed");
    server.running.signal(Signal::HUP);
    assert!(server.says(" reload "), "{}", server.running.stderr());
    assert!(gets("stranger.pem") && !gets("ca.pem"));

    let key = server.room.at("key.pem");
    let (cert_bytes, key_bytes) = (read(server.room.at("cert.pem")), read(&key));
    let refused = |why: &str| {
        server.running.signal(Signal::HUP);
        assert!(server.says(&format!("{why}; what was read before counts")), "{}", server.running.stderr());
        assert!(gets("stranger.pem"), "{why}");
        let out = server.room.at("root");
        let haul = Haul::new(["serve", "gridftp", "--listen", "127.0.0.1:0"]).args(["--root".into(), out]);
        let haul =
            haul.args(["--tls-cert".into(), server.room.at("cert.pem"), "--tls-key".into(), key.clone()]);
        haul.run().sane().exits(1).says(why);
    };
    fs::write(&key, read(certificate("server.key"))).expect("write another key");
    refused("the key is not that of the certificate");
    fs::write(&key, "none").expect("write no key");
    refused("it must have no passphrase");
    fs::write(&key, &key_bytes).expect("write the key");
    set_mode(&key, 0o640);
    refused("chmod 600 it, and make a new one if somebody may have read it");
    set_mode(&key, 0o600);
    fs::write(server.room.at("cert.pem"), "").expect("write no certificate");
    refused("holds no certificate");
    // What others may change, and what was valid once.
    fs::write(server.room.at("cert.pem"), &cert_bytes).expect("write the certificate");
    set_mode(&server.room.at("cert.pem"), 0o664);
    refused("chown it, and chmod 644 it");
    set_mode(&server.room.at("cert.pem"), 0o644);
    let made =
        Command::new("sh").args(["-ec", EXPIRED]).current_dir(server.room.at("")).output().expect("run sh");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    refused("the certificate of CN=once expired at 2020-01-02T00:00:00Z");
    fs::write(&key, &key_bytes).expect("write the key");
    fs::write(server.room.at("cert.pem"), cert_bytes).expect("write the certificate");
    server.running.signal(Signal::HUP);
    assert!(procs::wait_until(SOON, || server.running.stderr().matches(" reload ").count() == 2));
}

/// Goal: a session whose data another process moves than the one that it spoke to first shows one certificate
/// on both, also where the files were read again between AUTH and the login.
#[test]
fn a_session_has_one_certificate() {
    need!("python3");
    let server = Server::new(&["--tls-any-data"]);
    fs::write(server.at("f"), "what is there").expect("write a file");
    let monitor = server.running.near()[0].as_raw_nonzero();
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| shown(server.room.at(name)));
    let [new_cert, new_key] = ["stranger.pem", "stranger.key"].map(|name| shown(certificate(name)));
    let text = format!(
        "
import os, shutil, signal, time
def begun(context):
    ftp = ftplib.FTP_TLS(context=context, timeout=60)
    ftp.connect('127.0.0.1', int(sys.argv[1]))
    ftp.auth()
    return ftp
ftp = begun(ssl.create_default_context(cafile=sys.argv[2]))
first = ftp.sock.getpeercert(True)
shutil.copyfile('{new_cert}', '{cert}')
shutil.copyfile('{new_key}', '{key}')
os.kill({monitor}, signal.SIGHUP)
for _ in range(3000):
    other = begun(ssl._create_unverified_context())
    now = other.sock.getpeercert(True)
    other.close()
    if now != first:
        break
    time.sleep(0.01)
else:
    sys.exit('it was not read again')
ftp.login()
ftp.prot_p()
came = []
# Under a new session of TLS, which only the first certificate lets begin.
ftp.retrbinary('RETR f', came.append)
equal(b''.join(came), b'what is there')
"
    );
    server.python(&text);
}

/// Goal: a certificate as `openssl req -x509` makes it by itself, an authority's, is taken where it is named
/// itself; where another one of its name is, it is refused in words that say what to do, and what the command
/// in them shows is what to name.
#[test]
fn what_openssl_makes_by_itself_is_taken_where_it_is_named() {
    let server = Server::new(&[]);
    let fetch = || {
        let to = server.url("ftps", "f");
        let haul = Haul::cp([&server.room.file("f", "what is there")]).args([to]);
        haul.env("SSL_CERT_FILE", server.room.at("named.pem")).run().sane()
    };
    let own = |more: &str| {
        let make = format!(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out cert.pem -days 9 \
             -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 {more}; chmod 600 key.pem"
        );
        let made = Command::new("sh").args(["-ec", &make]).current_dir(server.room.at("")).output();
        assert!(made.expect("run openssl").status.success());
        let known = server.running.stderr().matches(" reload ").count();
        server.running.signal(Signal::HUP);
        let reloaded = || server.running.stderr().matches(" reload ").count() > known;
        assert!(procs::wait_until(SOON, reloaded), "{}", server.running.stderr());
    };
    let name = || fs::copy(server.room.at("cert.pem"), server.room.at("named.pem")).expect("copy it");
    own("-addext basicConstraints=critical,CA:FALSE");
    name();
    let _ = fetch().exits(0);
    own("");
    name();
    let _ = fetch().exits(0);
    assert_eq!(read(server.at("f")), b"what is there");
    fs::remove_file(server.at("f")).expect("remove it");
    own("");
    let ended = fetch().exits(1).says("CA:TRUE").says("-addext basicConstraints=critical,CA:FALSE");
    assert!(!server.at("f").exists(), "{}", ended.describe());
    let shows = ended.stderr.split('`').find(|text| text.starts_with("openssl s_client")).expect("a command");
    let shown = Command::new("sh").args(["-c", shows]).output().expect("run openssl");
    fs::write(server.room.at("named.pem"), &shown.stdout).expect("write it");
    let _ = fetch().exits(0);
    assert_eq!(read(server.at("f")), b"what is there");
}

/// Goal: where people come by certificates, too, who is not known comes under TLS and as nobody else.
#[test]
fn tls_and_gsi_are_apart() {
    need!("gridftp", "globus-url-copy", "curl", "python3");
    let room = Room::new();
    grid(&room);
    let files = [
        ("--host-cert", "host.pem"),
        ("--host-key", "host.key"),
        ("--gridmap", "gridmap"),
        ("--authorities", "authorities"),
    ];
    let files: Vec<String> =
        files.iter().flat_map(|(option, name)| [(*option).to_owned(), shown(room.at(name))]).collect();
    let mut words = vec!["--gsi", "--allow-root", "--tls-required"];
    words.extend(files.iter().map(String::as_str));
    let none = Haul::new(["serve", "gridftp", "--tls-cert", "a", "--tls-key", "b", "--root"]);
    none.args([room.dir("root")]).args(&words).run().sane().exits(2).says("give --anonymous");
    words.extend(["--anonymous", "read"]);
    let server = Server::of(room, &words);
    fs::write(server.at("f"), "what is there").expect("write a file");
    let by_tls = server.curl(&[&server.url("ftp", "f")]);
    assert_eq!(by_tls.stdout, b"what is there", "{}", String::from_utf8_lossy(&by_tls.stderr));
    let back = server.room.at("back");
    let mut copy = Command::new("timeout");
    copy.args([CLIENT_SECONDS, "globus-url-copy", &server.url("gsiftp", "f")]);
    copy.arg(format!("file://{}", back.display())).env("X509_CERT_DIR", server.room.at("authorities"));
    let copied = copy.env("X509_USER_PROXY", server.room.at("alice")).output().expect("run a client");
    assert_good(&copied, &["globus-url-copy"], &server.running);
    assert_eq!(read(&back), b"what is there");
    server.python(
        "
ftp = session()
equal('AUTH TLS' in ftp.sendcmd('FEAT') and 'AUTH GSSAPI' in ftp.sendcmd('FEAT'), True)
equal(refused(ftp, 'AUTH GSSAPI'), '503')
equal(refused(ftp, 'MKD d'), '550')
other = ftplib.FTP_TLS(context=ssl.create_default_context(cafile=sys.argv[2]), timeout=60)
other.connect('127.0.0.1', int(sys.argv[1]))
other.auth()
equal(refused(other, 'AUTH GSSAPI'), '503')
other.sendcmd('USER root')
equal(refused(other, 'PASS x'), '530')
",
    );
}
