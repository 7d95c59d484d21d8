//! GSI on a control connection, against an acceptor of the test's own that can do what Globus does not. The
//! real server is in the end-to-end tests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use data_encoding::BASE64;
use haul_base::stop::Stop;
use haul_ftp::{Credential, Error, Protocol, Security, Server, Session, Settings};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{RootCertStore, ServerConfig, ServerConnection};

const AUTHORITY: &[u8] = include_bytes!("certificates/ca.pem");
const CERTIFICATE: &[u8] = include_bytes!("certificates/server.pem");
const KEY: &[u8] = include_bytes!("certificates/server.key");

const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Odd {
    Nothing,
    /// It does not know AUTH GSSAPI.
    NoGsi,
    /// It says that the context stands after the first token.
    DoneEarly,
    /// It wants tokens without an end.
    Endless,
    /// A token is no base64.
    NoToken,
    /// It, or somebody in its name, answers USER as it is.
    Plain,
    /// A protected answer was changed on its way.
    Changed,
    /// It does not do without credentials on data connections.
    NoDcau,
}

fn cert(pem: &[u8]) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem).expect("a certificate")
}

/// The lines that it understood.
type Heard = Arc<Mutex<Vec<String>>>;

fn start(odd: Odd) -> (u16, Heard, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = listener.local_addr().expect("where it listens").port();
    let heard = Heard::default();
    let hears = heard.clone();
    let thread = thread::spawn(move || {
        let (socket, _) = listener.accept().expect("somebody comes");
        // The client that goes away is the end of it.
        let _ = serve(socket, odd, &hears);
    });
    (port, heard, thread)
}

fn serve(mut socket: TcpStream, odd: Odd, heard: &Heard) -> std::io::Result<()> {
    let key = PrivateKeyDer::from_pem_slice(KEY).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![cert(CERTIFICATE)], key)
        .expect("a configuration");
    let mut tls = ServerConnection::new(Arc::new(config)).expect("a connection");
    let mut lines = BufReader::new(socket.try_clone()?).lines();
    socket.write_all(b"220 ready\r\n")?;
    let (mut stands, mut said) = (false, false);
    while let Some(line) = lines.next().transpose()? {
        let (verb, argument) = line.split_once(' ').unwrap_or((&line, ""));
        let mut say = |text: String| socket.write_all(format!("{text}\r\n").as_bytes());
        match verb {
            "AUTH" if odd == Odd::NoGsi => say("504 what?".into())?,
            "AUTH" => say("334 go on".into())?,
            "ADAT" if odd == Odd::DoneEarly => say("235 done".into())?,
            "ADAT" if odd == Odd::NoToken => say("335 ADAT=???".into())?,
            "ADAT" if odd == Odd::Endless => say("335 ADAT=".into())?,
            "ADAT" => {
                let plain = feed(&mut tls, argument);
                if plain == b"0" {
                    stands = true;
                    say("235 done".into())?;
                    continue;
                }
                if !tls.is_handshaking() && !said {
                    said = true;
                    tls.writer().write_all(&[0])?;
                }
                say(format!("335 ADAT={}", tokens(&mut tls)))?;
            }
            "ENC" if stands => {
                let command = String::from_utf8(feed(&mut tls, argument)).expect("UTF-8");
                let command = command.trim_end().to_owned();
                heard.lock().expect("whole").push(command.clone());
                let answer: &[&str] = match command.split(' ').next().unwrap_or_default() {
                    "USER" if odd == Odd::Plain => {
                        say("331 password".into())?;
                        continue;
                    }
                    "USER" => &["331 password"],
                    "PASS" => &["230 you are in"],
                    "DCAU" if odd == Odd::NoDcau => &["500 no"],
                    "FEAT" => &["211-", " SIZE", " MDTM", "211 end"],
                    _ => &["200 yes"],
                };
                for (i, line) in answer.iter().enumerate() {
                    tls.writer().write_all(format!("{line}\r\n").as_bytes())?;
                    let mut token = tokens(&mut tls);
                    if odd == Odd::Changed {
                        let mut bytes = BASE64.decode(token.as_bytes()).expect("ours");
                        *bytes.last_mut().expect("some") ^= 1;
                        token = BASE64.encode(&bytes);
                    }
                    say(format!("632{}{token}", if i + 1 < answer.len() { '-' } else { ' ' }))?;
                }
            }
            // Nothing goes as it is once the context stands, and no login before.
            _ => {
                heard.lock().expect("whole").push(format!("PLAIN {line}"));
                say("533 protect it".into())?;
            }
        }
    }
    Ok(())
}

fn feed(tls: &mut ServerConnection, token: &str) -> Vec<u8> {
    let bytes = BASE64.decode(token.as_bytes()).expect("base64");
    let (mut rest, mut plain) = (&bytes[..], Vec::new());
    while !rest.is_empty() {
        tls.read_tls(&mut rest).expect("a piece of TLS");
        let state = tls.process_new_packets().expect("what TLS has");
        let have = plain.len();
        plain.resize(have + state.plaintext_bytes_to_read(), 0);
        tls.reader().read_exact(&mut plain[have..]).expect("what there is");
    }
    plain
}

fn tokens(tls: &mut ServerConnection) -> String {
    let mut bytes = Vec::new();
    while tls.wants_write() {
        tls.write_tls(&mut bytes).expect("into memory");
    }
    BASE64.encode(&bytes)
}

fn open(port: u16, authority: &[u8], who: &str) -> Result<Session, Error> {
    let mut roots = RootCertStore::empty();
    roots.add(cert(authority)).expect("an authority");
    let key = PrivateKeyDer::from_pem_slice(KEY).expect("a key");
    let credential =
        Credential::of(roots, vec![cert(CERTIFICATE)], key, "here".into()).expect("a credential");
    let server = Server::parse(Protocol::Gsiftp, &format!("{who}127.0.0.1:{port}")).expect("a server");
    let security = Security::Gsi(credential);
    Session::open(&server, &Settings { patience: PATIENCE, at: None, security, stop: Stop::never() })
}

/// Goal: commands go wrapped, replies of one and of several lines are read, the user comes as the server's
/// map has him or by the name that was typed, and no password is said.
#[test]
fn commands_and_replies_are_wrapped() {
    for (who, user) in [("", "USER :globus-mapping:"), ("alice:geheim@", "USER alice")] {
        let (port, heard, thread) = start(Odd::Nothing);
        drop(open(port, AUTHORITY, who).expect("a session"));
        thread.join().expect("it ends well");
        let heard = heard.lock().expect("whole").clone();
        assert_eq!(heard, [user, "PASS", "DCAU N", "FEAT", "TYPE I", "QUIT"], "{who}");
    }
}

/// Goal: what is not this session's, not protected, or not to come to an end is an error, before any login
/// where the context does not stand.
#[test]
fn nothing_counts_that_is_not_protected() {
    for (odd, says, logs_in) in [
        (Odd::NoGsi, "AUTH GSSAPI: the server answers 504", false),
        (Odd::DoneEarly, "do not come to an end", false),
        (Odd::Endless, "do not come to an end", false),
        (Odd::NoToken, "no base64", false),
        (Odd::Plain, "not protected", true),
        (Odd::Changed, "", true),
        (Odd::NoDcau, "DCAU: the server answers 500", true),
    ] {
        let (port, heard, thread) = start(odd);
        let error = open(port, AUTHORITY, "").err().unwrap_or_else(|| panic!("{odd:?}: a session"));
        assert!(error.to_string().contains(says), "{odd:?}: {error}");
        thread.join().expect("it ends well");
        let heard = heard.lock().expect("whole").clone();
        assert_eq!(heard.first().map(String::as_str), logs_in.then_some("USER :globus-mapping:"), "{odd:?}");
    }
}

/// Goal: a server that nobody vouches for gets no login.
#[test]
fn a_stranger_gets_no_login() {
    let (port, heard, thread) = start(Odd::Nothing);
    let error = open(port, CERTIFICATE, "").err().expect("no session");
    assert!(matches!(error, Error::Untrusted { .. }), "{error}");
    assert!(error.to_string().contains("X509_CERT_DIR"), "{error}");
    thread.join().expect("it ends well");
    assert!(heard.lock().expect("whole").is_empty());
}
