//! TLS of sessions, against a server of the test's own that can do what real ones do not: say too much before
//! TLS, cut a connection off, stay silent. Real servers are in the end-to-end tests.
//!
//! `certificates` has an authority and a server's certificate for 127.0.0.1 by it, both until 2126.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use haul_base::stop::Stop;
use haul_ftp::{Error, Protocol, Security, Server, Session, Settings, Trust};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{HandshakeKind, ServerConfig, ServerConnection, StreamOwned};

const AUTHORITY: &[u8] = include_bytes!("certificates/ca.pem");
const CERTIFICATE: &[u8] = include_bytes!("certificates/server.pem");
const KEY: &[u8] = include_bytes!("certificates/server.key");

/// What the server has at every path.
const CONTENT: &[u8] = b"forty-two";
const PATIENCE: Duration = Duration::from_secs(2);

/// What it does otherwise than it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Odd {
    Nothing,
    /// It does not know AUTH.
    NoTls,
    /// In the piece in which it agrees to TLS there is an answer to what comes next.
    SaysMore,
    /// It agrees to TLS and says nothing more.
    Silent,
    /// It agrees, and goes on without.
    GoesOnPlain,
    /// It protects no data.
    NoProt,
    /// Its data come as they are.
    PlainData,
    /// It ends a data connection as somebody on the way would.
    CutsData,
}

type Tls = StreamOwned<ServerConnection, TcpStream>;

/// What a server heard, and how its handshakes were: a new session, or one that was resumed.
#[derive(Default)]
struct Heard {
    lines: Vec<String>,
    handshakes: Vec<HandshakeKind>,
}

struct Fake {
    port: u16,
    heard: Arc<Mutex<Heard>>,
    thread: Option<JoinHandle<()>>,
}

impl Fake {
    /// Serves one connection.
    fn start(odd: Odd) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let port = listener.local_addr().expect("where it listens").port();
        let heard = Arc::<Mutex<Heard>>::default();
        let hears = heard.clone();
        let thread = thread::spawn(move || {
            let (socket, _) = listener.accept().expect("somebody comes");
            // The client that goes away is the end of it.
            let _ = serve(socket, odd, &hears);
        });
        Fake { port, heard, thread: Some(thread) }
    }

    fn open(&self, trust: Trust) -> Result<Session, Error> {
        self.open_as("127.0.0.1", trust)
    }

    fn open_as(&self, host: &str, trust: Trust) -> Result<Session, Error> {
        let server =
            Server::parse(Protocol::Ftps, &format!("u:geheim@{host}:{}", self.port)).expect("a server");
        let at = Some(([127, 0, 0, 1], self.port).into());
        Session::open(
            &server,
            &Settings { patience: PATIENCE, at, security: Security::Tls(trust), stop: Stop::never() },
        )
    }

    /// Waits for its end; what it heard.
    fn heard(mut self) -> Heard {
        self.thread.take().expect("it runs").join().expect("it ends well");
        std::mem::take(&mut self.heard.lock().expect("whole"))
    }
}

fn config() -> Arc<ServerConfig> {
    let chain = vec![CertificateDer::from_pem_slice(CERTIFICATE).expect("a certificate")];
    let key = PrivateKeyDer::from_pem_slice(KEY).expect("a key");
    let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().expect("versions");
    Arc::new(builder.with_no_client_auth().with_single_cert(chain, key).expect("a configuration"))
}

fn trusted() -> Trust {
    Trust::in_these([CertificateDer::from_pem_slice(AUTHORITY).expect("a certificate")]).expect("trust")
}

fn protect(config: &Arc<ServerConfig>, socket: TcpStream, heard: &Mutex<Heard>) -> std::io::Result<Tls> {
    let connection = ServerConnection::new(config.clone()).expect("a connection");
    let mut tls = StreamOwned::new(connection, socket);
    while tls.conn.is_handshaking() {
        tls.conn.complete_io(&mut tls.sock)?;
    }
    let kind = tls.conn.handshake_kind().expect("it is over");
    heard.lock().expect("whole").handshakes.push(kind);
    Ok(tls)
}

fn serve(socket: TcpStream, odd: Odd, heard: &Mutex<Heard>) -> std::io::Result<()> {
    let config = config();
    let mut plain = socket.try_clone()?;
    plain.write_all(b"220 ready\r\n")?;
    let mut lines = BufReader::new(socket.try_clone()?).lines();
    let line = lines.next().transpose()?.unwrap_or_default();
    heard.lock().expect("whole").lines.push(line.clone());
    assert_eq!(line, "AUTH TLS");
    match odd {
        Odd::NoTls => {
            plain.write_all(b"500 what?\r\n")?;
            return lines.next().transpose().map(|line| {
                heard.lock().expect("whole").lines.extend(line);
            });
        }
        Odd::SaysMore => plain.write_all(b"234 go on\r\n230 you are in\r\n")?,
        Odd::GoesOnPlain => plain.write_all(b"234 go on\r\n")?,
        _ => plain.write_all(b"234 go on\r\n")?,
    }
    if odd == Odd::Silent {
        let _ = plain.read(&mut [0; 4096]);
        let _ = plain.read(&mut [0; 4096]);
        return Ok(());
    }
    if odd == Odd::GoesOnPlain {
        plain.write_all(b"331 password\r\n230 you are in\r\n")?;
        let _ = plain.read(&mut [0; 4096]);
        return Ok(());
    }
    let mut control = BufReader::new(protect(&config, socket, heard)?);
    let mut data: Option<TcpListener> = None;
    loop {
        let mut line = String::new();
        if control.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let line = line.trim_end().to_owned();
        heard.lock().expect("whole").lines.push(line.clone());
        let mut say = |text: &str| {
            let tls = control.get_mut();
            tls.write_all(format!("{text}\r\n").as_bytes()).and_then(|()| tls.flush())
        };
        match line.split(' ').next().unwrap_or_default() {
            "USER" => say("331 password")?,
            "PASS" => say("230 you are in")?,
            "PROT" if odd == Odd::NoProt => say("536 no")?,
            "FEAT" => say("211-\r\n SIZE\r\n MDTM\r\n211 end")?,
            "EPSV" => {
                let listener = TcpListener::bind("127.0.0.1:0")?;
                let port = listener.local_addr()?.port();
                data = Some(listener);
                say(&format!("229 here (|||{port}|)"))?;
            }
            "RETR" => {
                let (mut socket, _) = data.take().expect("it was asked where").accept()?;
                say("150 it comes")?;
                match odd {
                    Odd::PlainData => {
                        let _ = socket.write_all(CONTENT);
                        let _ = socket.read(&mut [0; 4096]);
                    }
                    _ => {
                        let mut tls = protect(&config, socket, heard)?;
                        tls.write_all(CONTENT)?;
                        if odd != Odd::CutsData {
                            tls.conn.send_close_notify();
                        }
                        tls.flush()?;
                    }
                }
                say("226 done")?;
            }
            "QUIT" => return say("221 bye"),
            _ => say("200 yes")?,
        }
    }
}

fn read(session: &mut Session) -> Result<Vec<u8>, Error> {
    let mut incoming = session.begin(b"/f", 0)?;
    let (mut content, mut buffer) = (Vec::new(), [0; 64]);
    loop {
        match incoming.read(&mut buffer)? {
            0 => break,
            len => content.extend_from_slice(&buffer[..len]),
        }
    }
    session.finish(incoming, b"/f")?;
    Ok(content)
}

/// Goal: login and data go under TLS, and each data connection resumes the control connection's session.
/// Method: a server that speaks nothing else; three files, more than an OpenSSL server gives tickets for.
#[test]
fn login_and_data_are_protected() {
    let fake = Fake::start(Odd::Nothing);
    let mut session = fake.open(trusted()).expect("a session");
    for _ in 0..3 {
        assert_eq!(read(&mut session).expect("a file"), CONTENT);
    }
    drop(session);
    let heard = fake.heard();
    assert_eq!(heard.lines[..5], ["AUTH TLS", "USER u", "PASS geheim", "PBSZ 0", "PROT P"]);
    assert_eq!(heard.handshakes.len(), 4, "{:?}", heard.handshakes);
    assert!(
        heard.handshakes[1..].iter().all(|kind| *kind == HandshakeKind::Resumed),
        "{:?}",
        heard.handshakes
    );
}

/// Goal: whatever keeps TLS from coming up is an error, and the password was not sent.
#[test]
fn without_tls_there_is_no_login() {
    for (odd, says) in [
        (Odd::NoTls, "500"),
        (Odd::SaysMore, "more before it"),
        (Odd::Silent, "silent"),
        (Odd::GoesOnPlain, ""),
    ] {
        let fake = Fake::start(odd);
        let error = fake.open(trusted()).err().unwrap_or_else(|| panic!("{odd:?}: a session"));
        assert!(error.to_string().contains(says), "{odd:?}: {error}");
        let heard = fake.heard();
        assert!(!heard.lines.iter().any(|line| line.contains("geheim")), "{odd:?}: {:?}", heard.lines);
    }
}

/// Goal: a server that is not the one that was meant gets no login: one that nobody vouches for, or one of
/// another name.
#[test]
fn strangers_are_not_trusted() {
    let fake = Fake::start(Odd::Nothing);
    let other = CertificateDer::from_pem_slice(CERTIFICATE).expect("a certificate");
    let error = fake.open(Trust::in_these([other]).expect("trust")).err().expect("no session");
    assert!(matches!(error, Error::Untrusted { .. }) && !error.is_passing(), "{error}");
    assert!(error.to_string().contains("SSL_CERT_FILE"), "{error}");
    assert_eq!(fake.heard().lines, ["AUTH TLS"]);

    let fake = Fake::start(Odd::Nothing);
    let error = fake.open_as("other.invalid", trusted()).err().expect("no session");
    assert!(error.to_string().contains("not valid for name"), "{error}");
    assert_eq!(fake.heard().lines, ["AUTH TLS"]);
}

/// Goal: data that are not protected, or that somebody may have cut off, are no file.
#[test]
fn data_are_protected_or_none() {
    let fake = Fake::start(Odd::NoProt);
    let error = fake.open(trusted()).err().expect("no session");
    assert!(error.to_string().contains("PROT P: the server answers 536"), "{error}");
    fake.heard();

    for odd in [Odd::PlainData, Odd::CutsData] {
        let fake = Fake::start(odd);
        let mut session = fake.open(trusted()).expect("a session");
        let error = read(&mut session).expect_err("no file");
        assert!(error.ends_session(), "{odd:?}: {error}");
        assert!(odd != Odd::CutsData || error.to_string().contains("cut off"), "{error}");
        drop(session);
        fake.heard();
    }
}

/// Goal: a stop ends the opening of a session in the middle of a handshake that the server does not go on
/// with, however long that may be silent.
/// Method: a patience of an hour; the stop is wanted as soon as the server was asked for TLS.
#[test]
fn a_stop_ends_a_handshake() {
    let server = Fake::start(Odd::Silent);
    let heard = server.heard.clone();
    let stop = Stop::when(move || !heard.lock().expect("whole").lines.is_empty());
    let named = Server::parse(Protocol::Ftps, &format!("u:geheim@127.0.0.1:{}", server.port));
    let (at, security) = (Some(([127, 0, 0, 1], server.port).into()), Security::Tls(trusted()));
    let settings = Settings { patience: Duration::from_secs(3600), at, security, stop };
    let error = Session::open(&named.expect("a server"), &settings).map(drop).expect_err("it was stopped");
    assert!(error.to_string().contains("a stop was asked for"), "{error}");
    assert_eq!(server.heard().lines, ["AUTH TLS"]);
}
