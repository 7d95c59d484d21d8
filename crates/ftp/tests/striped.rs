//! Over which connections files go to a striped server, by a server of the test's own: each of its nodes
//! waits for somebody, as those of Globus do. The real server is in the end-to-end tests.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use haul_base::stop::Stop;
use haul_ftp::{Error, Protocol, Security, Server, Session, Settings};
use haul_gridftp::address::spas_reply;

/// Far above what anything takes here.
const PATIENCE: Duration = Duration::from_secs(30);

/// How many came to each place that the server had named when it was told of a file.
type Came = Vec<usize>;

/// Serves one client, and begins a file only where somebody came to each place that it named for it.
fn start(nodes: usize) -> (u16, JoinHandle<Vec<Came>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = listener.local_addr().expect("where it listens").port();
    let served = thread::spawn(move || {
        let (socket, _) = listener.accept().expect("somebody comes");
        let mut all = Vec::new();
        // The client that goes away is the end of it.
        let _ = serve(socket, nodes, &mut all);
        all
    });
    (port, served)
}

fn listen(places: usize) -> io::Result<(Vec<TcpListener>, Vec<SocketAddr>)> {
    let all: Vec<TcpListener> =
        (0..places).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<io::Result<_>>()?;
    let at = all.iter().map(TcpListener::local_addr).collect::<io::Result<_>>()?;
    all.iter().try_for_each(|place| place.set_nonblocking(true))?;
    Ok((all, at))
}

fn serve(mut socket: TcpStream, nodes: usize, all: &mut Vec<Came>) -> io::Result<()> {
    let (mut places, mut lanes) = (Vec::new(), Vec::new());
    let lines = BufReader::new(socket.try_clone()?).lines();
    socket.write_all(b"220 a test\r\n")?;
    for line in lines {
        let line = line?;
        let reply = match line.split(' ').next().unwrap_or_default() {
            "USER" => "331 who says so?".into(),
            "PASS" => "230 welcome".into(),
            "FEAT" => "211-Features\r\n EPSV\r\n PARALLEL\r\n SPAS\r\n211 End".into(),
            "SPAS" => {
                let (listen_there, at) = listen(nodes)?;
                places = listen_there;
                let reply = spas_reply(&at).expect("a reply");
                let text = |line: &[u8]| String::from_utf8_lossy(line).into_owned();
                let lines: Vec<String> = reply.lines().iter().map(|line| text(line)).collect();
                let inner = lines[1..lines.len() - 1].join("\r\n");
                format!("229-{}\r\n{inner}\r\n229 End", lines[0])
            }
            "EPSV" => {
                let (listen_there, at) = listen(1)?;
                places = listen_there;
                format!("229 here (|||{}|)", at[0].port())
            }
            "STOR" => {
                let mut came = vec![0; places.len()];
                // Whoever is on his way has arrived: the client says this when all its connections stand.
                for (place, count) in places.iter().zip(&mut came) {
                    while let Ok((lane, _)) = place.accept() {
                        lanes.push(lane);
                        *count += 1;
                    }
                }
                let is_lonely = came.contains(&0);
                all.push(came);
                if is_lonely { "425 a node waited for somebody".into() } else { "150 go on".to_owned() }
            }
            "TYPE" | "MODE" => "200 done".into(),
            _ => "500 unknown".into(),
        };
        socket.write_all(format!("{reply}\r\n").as_bytes())?;
    }
    Ok(())
}

/// What came to each place for a file that is to go over so many connections.
fn came(nodes: usize, connections: u32) -> (Result<(), Error>, Vec<Came>) {
    let (port, served) = start(nodes);
    let server = Server::parse(Protocol::Ftp, &format!("127.0.0.1:{port}")).expect("a server");
    let settings = Settings { patience: PATIENCE, at: None, security: Security::None, stop: Stop::never() };
    let mut session = Session::open(&server, &settings).expect("a session");
    assert!(session.sends_blocks());
    let begun = session.line_up_stores(&[b"/f"], connections).and_then(|()| session.next_store(b"/f", 1));
    drop(session);
    (begun.map(drop), served.join().expect("no panic"))
}

/// Goal: somebody comes to each node of a striped server, also where a file is to go over fewer connections
/// than it has nodes; or it is asked for one place alone.
#[test]
fn nodes_are_all_dialled_or_one() {
    for (nodes, connections, wanted) in [
        (4, 1, vec![1]),
        (4, 2, vec![1; 4]),
        (4, 3, vec![1; 4]),
        (4, 4, vec![1; 4]),
        (4, 6, vec![2, 2, 1, 1]),
        (2, 4, vec![2, 2]),
        // More nodes than anybody may name.
        (33, 2, vec![2]),
    ] {
        let (begun, came) = came(nodes, connections);
        assert_eq!(came, [wanted], "{nodes} nodes, {connections} connections: {begun:?}");
        assert!(begun.is_ok(), "{nodes} nodes, {connections} connections: {begun:?}");
    }
}
