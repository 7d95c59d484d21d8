//! How often a session waits for its server until it is open, and until a file comes or goes, by a server of
//! the test's own. Far away each of these times costs a round trip.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use haul_base::stop::Stop;
use haul_ftp::{Protocol, Ranges, Security, Server, Session, Settings};

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

/// A session with what `serve` does with its connection, and what that returns.
fn with<T: Send + 'static>(
    serve: impl FnOnce(TcpStream) -> io::Result<T> + Send + 'static,
    work: impl FnOnce(Session),
) -> T {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = listener.local_addr().expect("where it listens").port();
    let served = thread::spawn(move || serve(listener.accept()?.0));
    let server = Server::parse(Protocol::Ftp, &format!("127.0.0.1:{port}")).expect("a server");
    let settings = Settings { patience: PATIENCE, at: None, security: Security::None, stop: Stop::never() };
    work(Session::open(&server, &settings).expect("a session"));
    served.join().expect("no panic").expect("served")
}

/// Goal: what does not depend on an answer is asked before it comes; what the server refuses of it is missed
/// by nobody.
#[test]
fn a_session_waits_for_its_server_no_more_than_it_must() {
    for refuses in ["", "OPTS", "SPAS"] {
        let came = with(move |socket| serve(socket, refuses), drop);
        assert_eq!(came[..3], ["USER", "PASS FEAT", "TYPE OPTS SPAS"], "without {refuses}");
    }
}

/// Goal: a file in blocks is asked for together with the blocks; files behind it that come over the same
/// connections are asked for alone.
#[test]
fn blocks_are_asked_for_in_one_round_trip() {
    let came = with(
        |socket| serve(socket, ""),
        |mut session| {
            drop(session.begin_blocks(b"/f", (1 << 30, &Ranges::new()), 4).expect("it is asked for"));
        },
    );
    assert_eq!(came[3], "MODE OPTS PORT RETR", "{came:?}");
}

/// A server that takes files, and no further connection for the second one before it heard what for.
fn take_two(mut socket: TcpStream) -> io::Result<Vec<String>> {
    let (mut heard, mut line) = (Vec::new(), String::new());
    let mut lines = BufReader::new(socket.try_clone()?);
    let (mut place, mut others) = (None::<TcpListener>, Vec::new());
    socket.write_all(b"220 a test\r\n")?;
    // A client that goes away is the end of it, whatever is on its way to it.
    while lines.read_line(&mut line).unwrap_or(0) > 0 {
        let verb = line.trim_end().split(' ').next().unwrap_or_default().to_owned();
        line.clear();
        let stored = heard.iter().filter(|verb| *verb == "STOR").count();
        let reply = match verb.as_str() {
            "USER" => "331 who says so?".to_owned(),
            "PASS" => "230 welcome".to_owned(),
            "FEAT" => "211-Features\r\n EPSV\r\n MLST Type*;Size*;Modify*;\r\n211 End".to_owned(),
            "EPSV" => {
                let listener = TcpListener::bind("127.0.0.1:0")?;
                let at = listener.local_addr()?;
                if stored == 1 {
                    // The system lets nobody in whom it has no place for; who was not is tried again by it a
                    // second later.
                    rustix::net::listen(&listener, 0)?;
                    others.push(TcpStream::connect(at)?);
                }
                place = Some(listener);
                format!("229 here (|||{}|)", at.port())
            }
            "STOR" => {
                let listener = place.take().expect("it was asked where");
                for _ in others.drain(..) {
                    listener.accept()?;
                }
                socket.write_all(b"150 go on\r\n")?;
                io::copy(&mut listener.accept()?.0, &mut io::sink())?;
                "226 it is here".to_owned()
            }
            _ => "200 done".to_owned(),
        };
        heard.push(verb);
        let _ = socket.write_all(format!("{reply}\r\n").as_bytes());
    }
    Ok(heard)
}

/// Goal: from the second data connection on a server hears what it is for while it is made.
/// Method: the second one is not made before the server has heard that.
#[test]
fn a_later_connection_is_dialled_with_its_command() {
    let heard = with(take_two, |mut session| {
        for _ in 0..2 {
            let outgoing = session.store(b"/f").expect("it is taken");
            session.stored(outgoing, b"/f", false).expect("it is there");
        }
    });
    assert_eq!(heard.iter().filter(|verb| *verb == "STOR").count(), 2);
}
