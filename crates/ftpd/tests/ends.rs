//! How sessions end that do not end themselves: the log and the client are told.

use std::io::{Read as _, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use haul_ftpd::config::{Access, Config};
use haul_ftpd::control::Control;
use haul_ftpd::log::Log;
use haul_ftpd::monitor::{Bells, Monitor, Options};

/// Far above what anything takes here.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("a log")).into_owned()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("a log").write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Goal: a session's process that a signal ended leaves a line about it.
/// Method: a fake of that process, which ends itself so.
#[test]
fn a_process_that_dies_is_told_of() {
    let options = Options {
        tls: None,
        config: Config {
            tls: false,
            tls_required: false,
            tls_any_data: false,
            root: b"/".to_vec(),
            volume: None,
            anonymous: Some(Access::Read),
            authorities: None,
            data_ports: None,
            third_party: false,
            login_within: PATIENCE,
            marker_interval: Duration::from_secs(5),
            json_log: false,
            nodes: Vec::new(),
            is_node: false,
        },
        sessions_max: 4,
        sessions_per_host_max: 4,
        grace: Duration::ZERO,
        before_login: None,
        anonymous: None,
        people: None,
        node_key: None,
    };
    let program = || {
        let mut command = Command::new("sh");
        command.args(["-c", "kill -KILL $$"]);
        command
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let address = listener.local_addr().expect("an address");
    let ((mut stop, stops), (_reload, reloads)) =
        (UnixStream::pair().expect("a pair"), UnixStream::pair().expect("a pair"));
    let lines = Lines::default();
    let log = Log::new(Box::new(lines.clone()), false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut monitor = Monitor::new(options, log, Box::new(program));
            monitor.run(vec![listener], Bells { stop: stops, reload: reloads }, || ()).expect("serve")
        });
        let client = TcpStream::connect(address).expect("connect");
        let until = Instant::now() + PATIENCE;
        while !lines.text().contains("signal 9") && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        stop.write_all(b"x").expect("ring");
        drop(client);
    });
    assert!(lines.text().contains("its process ended by signal 9"), "{}", lines.text());
}

/// What a client hears through a relay whose server says this and is gone.
fn heard(said: &[u8]) -> String {
    let (mut client, control) = UnixStream::pair().expect("a pair");
    let (mut server, relayed) = UnixStream::pair().expect("a pair");
    let (_monitor, told) = UnixStream::pair().expect("a pair");
    control.set_nonblocking(true).expect("no blocking");
    told.set_nonblocking(true).expect("no blocking");
    client.set_read_timeout(Some(PATIENCE)).expect("a patience");
    server.write_all(said).expect("say");
    drop(server);
    let mut text = String::new();
    std::thread::scope(|scope| {
        scope.spawn(|| haul_ftpd::relay::run(Control::new(Box::new(control), told, true), relayed));
        client.read_to_string(&mut text).expect("an end");
    });
    text
}

/// Goal: where the process that serves is gone, its client is told so, once and in its turn.
#[test]
fn a_client_whose_server_is_gone_hears_421() {
    assert!(heard(b"").starts_with("421 "));
    let text = heard(b"150 It begins.\r\n");
    assert!(text.starts_with("150 It begins.\r\n421 ") && text.lines().count() == 2, "{text}");
    assert_eq!(heard(b"221 Goodbye.\r\n"), "221 Goodbye.\r\n");
    assert_eq!(heard(b"421 The server ends.\r\n"), "421 The server ends.\r\n");
}
