//! What is said before a context of GSI stands, which anybody on the way may have said, counts no more behind
//! it. The client is plain sockets and this project's own initiator; the monitor is a fake.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use data_encoding::BASE64;
use haul_ftpd::config::{Access, Answer, Config, Login, Secret, Start};
use haul_ftpd::log::Log;
use haul_gsi::{Authorities, Credential, Delegates, Directory, Initiator, Step};

/// Far above what anything takes here.
const PATIENCE: Duration = Duration::from_secs(60);

/// A grid of one authority, with a host and a user.
const GRID: &str = r#"
u='basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature,keyEncipherment\n'
printf "${u}subjectAltName=IP:127.0.0.1\n" >host.cnf; printf "$u" >user.cnf
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -days 30 -subj /CN=Authority -out ca.pem \
    -addext keyUsage=critical,keyCertSign,cRLSign
for who in host user; do
    openssl genrsa -out $who.key 2048
    openssl req -new -key $who.key -subj "/O=Grid/CN=$who" |
        openssl x509 -req -CA ca.pem -CAkey ca.key -set_serial 77 -days 20 -extfile $who.cnf -out $who.pem
done
chmod 600 *.key; mkdir root authorities; hash=$(openssl x509 -in ca.pem -noout -hash)
cp ca.pem authorities/$hash.0
printf "access_id_CA X509 '/CN=Authority'\npos_rights globus CA:sign\ncond_subjects globus '\"/O=Grid/*\"'\n" \
    >authorities/$hash.signing_policy
"#;

fn credential(dir: &Path, who: &str) -> Credential {
    let [cert, key] = ["pem", "key"].map(|kind| dir.join(format!("{who}.{kind}")));
    Credential::read(&cert, &key).expect("a credential")
}

/// A session, and the client's end of its connection.
fn session(dir: &Path) -> BufReader<TcpStream> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("connect");
    client.set_read_timeout(Some(PATIENCE)).expect("a patience");
    let (control, peer) = listener.accept().expect("the client");
    let config = Config {
        root: dir.join("root").as_os_str().as_bytes().to_vec(),
        volume: None,
        anonymous: None,
        authorities: Some(dir.join("authorities")),
        tls: false,
        tls_required: false,
        tls_any_data: false,
        nodes: Vec::new(),
        is_node: false,
        data_ports: None,
        third_party: false,
        login_within: PATIENCE,
        marker_interval: Duration::from_secs(5),
        json_log: false,
    };
    let host = credential(dir, "host").to_der().into_iter().map(Secret).collect();
    let local = control.local_addr().expect("an address");
    let (host, tls, after) = (Some(host), None, None);
    let start = Start { config, peer, local, uid: 0, before_login: false, host, tls, node_key: None, after };
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    std::thread::spawn(move || {
        // The monitor: whoever asks is somebody.
        for line in BufReader::new(&ours).lines().map_while(Result::ok) {
            if line.starts_with('{') {
                let login = Login { user: "user".into(), access: Access::Write, identity: None };
                let mut answer = serde_json::to_vec(&Answer::Go(login)).expect("plain fields");
                answer.push(b'\n');
                let _ = (&ours).write_all(&answer);
            }
        }
    });
    std::thread::spawn(move || {
        let log = Log::new(Box::new(std::io::sink()), false);
        haul_ftpd::session::run(control.into(), theirs, start, log)
    });
    BufReader::new(client)
}

fn line(talk: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    talk.read_line(&mut line).expect("a line in time");
    line
}

fn ask(talk: &mut BufReader<TcpStream>, said: &str) -> String {
    talk.get_mut().write_all(format!("{said}\r\n").as_bytes()).expect("say a line");
    line(talk)
}

/// The same, protected.
fn ask_protected(talk: &mut BufReader<TcpStream>, context: &mut Initiator, said: &str) -> String {
    let token = context.wrap(format!("{said}\r\n").as_bytes()).expect("a token");
    let said = ask(talk, &format!("ENC {}", BASE64.encode(&token)));
    let token = said.trim_end().split_once(' ').map(|(_, token)| token).expect("a token");
    let plain = context.unwrap(&BASE64.decode(token.as_bytes()).expect("base64")).expect("an answer");
    String::from_utf8_lossy(&plain).into_owned()
}

/// Goal: a name that was said in the clear before the context is nobody's behind it.
#[test]
fn names_before_a_context_are_nobodys() {
    let grid = tempfile::tempdir().expect("a directory");
    let dir = grid.path();
    let made = Command::new("sh").args(["-ec", GRID]).current_dir(dir).output().expect("run sh");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mut talk = session(dir);
    assert!(line(&mut talk).starts_with("220"));
    assert!(ask(&mut talk, "USER somebody").starts_with("331"));
    assert!(ask(&mut talk, "AUTH GSSAPI").starts_with("334"));
    let authorities = Authorities::new(Directory(dir.join("authorities")));
    let mine = credential(dir, "user");
    let mut context =
        Initiator::new(&mine, &authorities, "127.0.0.1", Delegates::Nothing).expect("an initiator");
    let mut heard = Vec::new();
    loop {
        let (Step::Goes(token) | Step::Stands(token)) = context.step(&heard).expect("a token");
        let said = ask(&mut talk, &format!("ADAT {}", BASE64.encode(&token)));
        let token = said.trim_end().split_once("ADAT=").map_or("", |(_, token)| token);
        heard = BASE64.decode(token.as_bytes()).expect("base64");
        match &said[..3] {
            "335" => {}
            "235" => break,
            _ => panic!("{said}"),
        }
    }
    let said = ask_protected(&mut talk, &mut context, "PASS x");
    assert!(said.starts_with("503"), "{said}");
    // The same behind it is somebody.
    for (word, code) in [("USER user", "331"), ("PASS x", "230")] {
        let said = ask_protected(&mut talk, &mut context, word);
        assert!(said.starts_with(code), "{said}");
    }
}
