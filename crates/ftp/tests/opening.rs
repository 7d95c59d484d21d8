//! How often a session waits for its server until it is open, by a server of the test's own. Far away each of
//! these times costs a round trip before the first byte.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use haul_base::stop::Stop;
use haul_ftp::{Protocol, Security, Server, Session, Settings};

/// Far above what anything takes here.
const PATIENCE: Duration = Duration::from_secs(30);

/// Answers all lines that have come, and only then waits for more; what came together, by verbs.
fn serve(mut socket: TcpStream, refuses: &str) -> io::Result<Vec<String>> {
    let (mut came, mut bytes) = (Vec::new(), [0; 4096]);
    socket.write_all(b"220 a test\r\n")?;
    loop {
        // A client that goes away is the end of it.
        let len = socket.read(&mut bytes).unwrap_or(0);
        if len == 0 {
            return Ok(came);
        }
        let lines = String::from_utf8_lossy(&bytes[..len]).into_owned();
        let verbs: Vec<&str> = lines.lines().filter_map(|line| line.split(' ').next()).collect();
        came.push(verbs.join(" "));
        for verb in verbs {
            let reply = match verb {
                _ if verb == refuses => "500 no",
                "USER" => "331 who says so?",
                "PASS" => "230 welcome",
                "FEAT" => "211-Features\r\n EPSV\r\n SPAS\r\n MLST Type*;Size*;Modify;\r\n211 End",
                "SPAS" => "229-Entering Striped Passive Mode.\r\n 127,0,0,1,200,1\r\n229 End",
                _ => "200 done",
            };
            let _ = socket.write_all(format!("{reply}\r\n").as_bytes());
        }
    }
}

/// Goal: what does not depend on an answer is asked before it comes; what the server refuses of it is missed
/// by nobody.
#[test]
fn a_session_waits_for_its_server_no_more_than_it_must() {
    for refuses in ["", "OPTS", "SPAS"] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let port = listener.local_addr().expect("where it listens").port();
        let served = thread::spawn(move || serve(listener.accept()?.0, refuses));
        let server = Server::parse(Protocol::Ftp, &format!("127.0.0.1:{port}")).expect("a server");
        let settings =
            Settings { patience: PATIENCE, at: None, security: Security::None, stop: Stop::never() };
        drop(Session::open(&server, &settings).expect("a session"));
        let came = served.join().expect("no panic").expect("served");
        assert_eq!(came[..3], ["USER", "PASS FEAT", "TYPE OPTS SPAS"], "without {refuses}");
    }
}
