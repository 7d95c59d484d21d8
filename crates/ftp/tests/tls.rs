//! TLS of sessions, against a server of the test's own that can do what real ones do not: say too much before
//! TLS, cut a connection off, stay silent. Real servers are in the end-to-end tests.
//!
//! `certificates` has an authority, a server's certificate for 127.0.0.1 by it, and one by nobody; as
//! `openssl req -x509` makes them by itself (CA:TRUE) a server's own for that address, another one of its
//! name, and one of its key that has expired; the others are valid until 2126.

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

/// Another server's for the same address, which vouches for itself.
const STRANGER: &[u8] = include_bytes!("certificates/stranger.pem");
const STRANGERS_KEY: &[u8] = include_bytes!("certificates/stranger.key");

/// What `openssl req -x509` made for a server, a certificate of an authority (CA:TRUE); another one of the
/// same names; and an earlier one of the same key, which has expired.
const OWN: &[u8] = include_bytes!("certificates/own.pem");
const OWN_KEY: &[u8] = include_bytes!("certificates/own.key");
const TWIN: &[u8] = include_bytes!("certificates/twin.pem");
const EXPIRED: &[u8] = include_bytes!("certificates/expired.pem");

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
    /// It talks of the protection of data only with users.
    LoginFirst,
    /// It goes on with no session on data connections.
    ForgetsSessions,
    /// Its data come as they are.
    PlainData,
    /// It ends a data connection as somebody on the way would.
    CutsData,
    /// Whoever is at the end of its data connection shows a certificate of his own; the server says "later".
    StrangersData,
    /// It wants no TLS of this data connection, and says why.
    RefusesData,
    /// The same, and stays silent on the control connection.
    SilentData,
    /// Somebody before TLS says that it is another server.
    ForgedGreeting,
    /// It reads the byte 0xff as Telnet has it, and does not say so before TLS.
    Telnet,
    /// It gives no help.
    NoHelp,
    /// One record of a reply comes byte by byte.
    DripsReply,
    /// One record of data does.
    DripsData,
}

type Tls = StreamOwned<ServerConnection, TcpStream>;

/// What a server heard, and how its handshakes were: a new session, or one that was resumed.
#[derive(Default)]
struct Heard {
    lines: Vec<String>,
    handshakes: Vec<HandshakeKind>,
    /// Bytes of a record that it could send, and how many there were.
    dripped: Option<(usize, usize)>,
}

struct Fake {
    port: u16,
    heard: Arc<Mutex<Heard>>,
    thread: Option<JoinHandle<()>>,
}

impl Fake {
    /// Serves one connection.
    fn start(odd: Odd) -> Fake {
        Fake::with(config(), odd)
    }

    /// The same by another certificate, say.
    fn with(config: Arc<ServerConfig>, odd: Odd) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let port = listener.local_addr().expect("where it listens").port();
        let heard = Arc::<Mutex<Heard>>::default();
        let hears = heard.clone();
        let thread = thread::spawn(move || {
            let (socket, _) = listener.accept().expect("somebody comes");
            // The client that goes away is the end of it.
            let _ = serve(socket, &config, odd, &hears);
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
    config_of(CERTIFICATE, KEY)
}

fn config_of(certificate: &[u8], key: &[u8]) -> Arc<ServerConfig> {
    let chain = vec![CertificateDer::from_pem_slice(certificate).expect("a certificate")];
    let key = PrivateKeyDer::from_pem_slice(key).expect("a key");
    let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().expect("versions");
    Arc::new(builder.with_no_client_auth().with_single_cert(chain, key).expect("a configuration"))
}

fn trusted() -> Trust {
    trust_in(&[AUTHORITY])
}

fn trust_in(named: &[&[u8]]) -> Trust {
    let named = named.iter().map(|pem| CertificateDer::from_pem_slice(pem).expect("a certificate"));
    Trust::in_these(named).expect("trust")
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

/// Sends some text as one record, byte by byte, each before anybody's patience is at its end.
fn drip(tls: &mut Tls, text: &str, heard: &Mutex<Heard>) -> std::io::Result<()> {
    tls.conn.writer().write_all(text.as_bytes())?;
    let mut record = Vec::new();
    while tls.conn.wants_write() {
        tls.conn.write_tls(&mut record)?;
    }
    for (sent, byte) in record.iter().enumerate() {
        heard.lock().expect("whole").dripped = Some((sent, record.len()));
        tls.sock.write_all(std::slice::from_ref(byte))?;
        thread::sleep(PATIENCE / 20);
    }
    heard.lock().expect("whole").dripped = Some((record.len(), record.len()));
    Ok(())
}

fn serve(
    socket: TcpStream,
    config: &Arc<ServerConfig>,
    odd: Odd,
    heard: &Mutex<Heard>,
) -> std::io::Result<()> {
    let mut plain = socket.try_clone()?;
    plain.write_all(if odd == Odd::ForgedGreeting { b"220 ProFTPD\r\n" } else { b"220 ready\r\n" })?;
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
    let mut control = BufReader::new(protect(config, socket, heard)?);
    let mut data: Option<TcpListener> = None;
    let mut logged_in = false;
    loop {
        let mut line = Vec::new();
        if control.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        // Each byte is a character here.
        let line: String = line.trim_ascii_end().iter().copied().map(char::from).collect();
        heard.lock().expect("whole").lines.push(line.clone());
        let mut say = |text: &str| {
            let tls = control.get_mut();
            tls.write_all(format!("{text}\r\n").as_bytes()).and_then(|()| tls.flush())
        };
        match line.split(' ').next().unwrap_or_default() {
            "USER" => say("331 password")?,
            "PASS" => {
                logged_in = true;
                say("230 you are in")?;
            }
            "PBSZ" if odd == Odd::LoginFirst && !logged_in => say("530 log in first")?,
            "SIZE" if odd == Odd::DripsReply => {
                drip(control.get_mut(), &format!("213 {:0200}\r\n", 9), heard)?
            }
            "PROT" if odd == Odd::NoProt => say("536 no")?,
            "FEAT" => say("211-\r\n SIZE\r\n MDTM\r\n211 end")?,
            "SIZE" => say("213 9")?,
            "MKD" => say("257 made")?,
            "RNFR" => say("350 to what?")?,
            "RNTO" => say("250 done")?,
            "MDTM" => say("213 20200102030405")?,
            "HELP" if odd == Odd::NoHelp => say("502 no")?,
            "HELP" if odd == Odd::Telnet => {
                say("214-These are known (* =>'s unimplemented)\r\n USER\r\n214 end")?;
            }
            "HELP" => say("214-These are known.\r\n USER\r\n214 end")?,
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
                    Odd::StrangersData => {
                        let stranger = config_of(STRANGER, STRANGERS_KEY);
                        protect(&stranger, socket, heard).expect_err("it is refused");
                        say("425 later")?;
                        continue;
                    }
                    Odd::RefusesData | Odd::SilentData => {
                        drop(socket);
                        match odd {
                            Odd::RefusesData => say("522 your session is not resumed")?,
                            _ => drop(control.read_line(&mut String::new())),
                        }
                        continue;
                    }
                    _ => {
                        let forgetful = self::config();
                        let config = if odd == Odd::ForgetsSessions { &forgetful } else { config };
                        let mut tls = protect(config, socket, heard)?;
                        match odd {
                            Odd::DripsData => drip(&mut tls, &"x".repeat(200), heard)?,
                            _ => tls.write_all(CONTENT)?,
                        }
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
    assert_eq!(heard.lines[..5], ["AUTH TLS", "PBSZ 0", "PROT P", "USER u", "PASS geheim"]);
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
    let error = fake.open(trust_in(&[STRANGER])).err().expect("no session");
    assert!(matches!(error, Error::Untrusted { .. }) && !error.is_passing(), "{error}");
    assert!(error.to_string().contains("SSL_CERT_FILE"), "{error}");
    assert_eq!(fake.heard().lines, ["AUTH TLS"]);

    let fake = Fake::start(Odd::Nothing);
    let error = fake.open_as("other.invalid", trusted()).err().expect("no session");
    assert!(error.to_string().contains("not valid for name"), "{error}");
    assert_eq!(fake.heard().lines, ["AUTH TLS"]);
}

/// Goal: a server's own certificate that is trusted itself lets it in, whatever it says of itself: one of an
/// authority, as `openssl req -x509` makes it, and one by somebody whom nobody knows. No other certificate
/// does, of whatever name; nor does that one for another name, behind its time, or without its key. What is
/// said names the way.
#[test]
fn a_certificate_that_is_trusted_itself_is_the_servers() {
    type Shown<'a> = (&'a [u8], &'a [u8]);
    let (own, by_other): (Shown<'_>, Shown<'_>) = ((OWN, OWN_KEY), (CERTIFICATE, KEY));
    for (shown, named) in [
        (own, &[OWN][..]),
        (own, &[TWIN, EXPIRED, AUTHORITY, OWN]),
        (by_other, &[CERTIFICATE]),
        (by_other, &[OWN, CERTIFICATE]),
    ] {
        let fake = Fake::with(config_of(shown.0, shown.1), Odd::Nothing);
        let mut session = fake.open(trust_in(named)).expect("a session");
        assert_eq!(read(&mut session).expect("a file"), CONTENT);
        drop(session);
        assert_eq!(fake.heard().lines[4], "PASS geheim");
    }
    for (shown, named, host, says) in [
        (own, &[TWIN, EXPIRED][..], "127.0.0.1", "CA:TRUE"),
        (own, &[AUTHORITY], "127.0.0.1", "CA:TRUE"),
        (own, &[OWN], "other.invalid", "not valid for name"),
        (by_other, &[CERTIFICATE], "other.invalid", "not valid for name"),
        (by_other, &[OWN], "127.0.0.1", "no authority that this host trusts"),
        ((EXPIRED, OWN_KEY), &[EXPIRED], "127.0.0.1", "expired"),
    ] {
        let fake = Fake::with(config_of(shown.0, shown.1), Odd::Nothing);
        let error = fake.open_as(host, trust_in(named)).err().expect("no session");
        assert!(matches!(error, Error::Untrusted { .. }) && !error.is_passing(), "{error}");
        let text = error.to_string();
        assert!(text.contains(says), "{error}");
        if says == "CA:TRUE" || says.starts_with("no authority") {
            let how = format!("openssl s_client -connect {host}:{} -starttls ftp", fake.port);
            assert!(text.contains("SSL_CERT_FILE") && text.contains(&how), "{error}");
        }
        assert_eq!(fake.heard().lines, ["AUTH TLS"]);
    }
}

/// Goal: data that are not protected, or that somebody may have cut off, are no file.
#[test]
fn data_are_protected_or_none() {
    let fake = Fake::start(Odd::NoProt);
    let error = fake.open(trusted()).err().expect("no session");
    assert!(error.to_string().contains("PROT P: the server answers 536"), "{error}");
    assert_eq!(fake.heard().lines, ["AUTH TLS", "PBSZ 0", "PROT P"], "it got a password");
    let fake = Fake::start(Odd::LoginFirst);
    let mut session = fake.open(trusted()).expect("a session");
    assert_eq!(read(&mut session).expect("a file"), CONTENT);
    drop(session);
    let heard = fake.heard();
    assert_eq!(heard.lines[..6], ["AUTH TLS", "PBSZ 0", "USER u", "PASS geheim", "PBSZ 0", "PROT P"]);

    let fake = Fake::start(Odd::ForgetsSessions);
    let mut session = fake.open(trusted()).expect("a session");
    let error = read(&mut session).expect_err("no file");
    assert!(error.to_string().contains("did not go on with the TLS session"), "{error}");
    assert!(error.is_passing() && error.ends_session(), "another session may have tickets left");
    drop(session);
    fake.heard();
    let fake = Fake::start(Odd::ForgetsSessions);
    let mut session = fake.open(trusted().untied()).expect("a session");
    assert_eq!(read(&mut session).expect("a file"), CONTENT);
    drop(session);
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

/// Goal: a server that sends a record of TLS byte by byte is given no more time than a silent one.
/// Method: one that says how far it came with a record for which nobody has the patience: it must not come to
/// its end.
#[test]
fn a_record_in_drops_is_silence() {
    for odd in [Odd::DripsReply, Odd::DripsData] {
        let fake = Fake::start(odd);
        let mut session = fake.open(trusted()).expect("a session");
        let error = match odd {
            Odd::DripsReply => session.facts(b"/f").expect_err("no facts"),
            _ => read(&mut session).expect_err("no file"),
        };
        assert!(error.is_silence(), "{odd:?}: {error}");
        drop(session);
        let (sent, of) = fake.heard().dripped.expect("it dripped");
        assert!(sent < of, "{odd:?}: all {of} bytes were waited for");
    }
}

/// Goal: a data connection that does not come up under TLS is told of with its cause and the server's word; a
/// stranger at its end stays one, whatever the server says of it; and it is not waited for longer than the
/// patience.
#[test]
fn a_data_connection_that_fails_says_why() {
    let failing = |odd| {
        let fake = Fake::start(odd);
        let mut session = fake.open(trusted()).expect("a session");
        let error = read(&mut session).expect_err("no file");
        drop(session);
        (error, fake.heard())
    };
    let (error, _) = failing(Odd::StrangersData);
    assert!(matches!(error, Error::Untrusted { .. }) && !error.is_passing(), "{error}");
    let text = error.to_string();
    assert!(text.contains("no authority that this host trusts") && text.contains("425 later"), "{error}");
    let (error, _) = failing(Odd::RefusesData);
    let text = error.to_string();
    assert!(text.contains("522 your session is not resumed (beginning TLS: "), "{error}");
    let (error, heard) = failing(Odd::SilentData);
    assert!(error.to_string().starts_with("beginning TLS: "), "{error}");
    assert_eq!(heard.lines.last().map(String::as_str), Some("RETR /f"), "nothing is said behind it");
}

/// Goal: how a byte of Telnet is sent does not follow from what anybody said before TLS, nor is that shown.
/// Method: a greeting of another server; a server that says it under TLS alone; one that says nothing, where
/// the name is refused and every other one is not.
#[test]
fn nothing_follows_from_an_unprotected_greeting() {
    for (odd, asked) in [
        (Odd::ForgedGreeting, "SIZE /a\u{ff}b"),
        (Odd::Nothing, "SIZE /a\u{ff}b"),
        (Odd::Telnet, "SIZE /a\u{ff}\u{ff}b"),
        (Odd::NoHelp, ""),
    ] {
        let fake = Fake::start(odd);
        let mut session = fake.open(trusted()).expect("a session");
        assert_eq!(session.banner(), b"its greeting was not protected");
        match session.facts(b"/a\xffb") {
            Err(error) if asked.is_empty() => {
                assert!(error.to_string().contains("byte 0xff") && !error.ends_session(), "{error}");
            }
            answer => drop(answer.expect("facts")),
        }
        if asked.is_empty() {
            // Nothing else is kept from it.
            let told = session.facts_of_each(&[b"/a\xffb", b"/plain"]).expect("the session goes on");
            assert!(matches!(&told[..], [Err(Error::Unsayable(_)), Ok(_)]), "{told:?}");
            let made = session.make_dirs(&[b"/\xff", b"/made"]).expect("the session goes on");
            assert!(matches!(&made[..], [Err(Error::Unsayable(_)), Ok(())]), "{made:?}");
            let named = session.rename(&[(b"/t", b"/\xff"), (b"/made", b"/plain")]);
            let named = named.expect("the session goes on");
            assert!(matches!(&named[..], [Err(Error::Unsayable(_)), Ok(())]), "{named:?}");
        } else {
            session.facts(b"/plain").expect("facts");
        }
        drop(session);
        let lines = fake.heard().lines;
        let helps = lines.iter().filter(|line| *line == "HELP").count();
        assert_eq!(helps, 1, "{odd:?}: {lines:?}");
        let sizes: Vec<_> = lines.iter().filter(|line| line.starts_with("SIZE")).collect();
        let wanted: Vec<_> = [asked, "SIZE /plain"].into_iter().filter(|line| !line.is_empty()).collect();
        assert_eq!(sizes, wanted, "{odd:?}");
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
