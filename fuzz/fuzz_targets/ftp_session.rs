//! A server of which nothing is true, spoken with by a whole session: whatever it says, in whatever order,
//! whatever it lists and sends, nothing panics, waits without an end or tells the password, and what counts
//! as a name or as read is that.
//! First byte: what the client wants. Then what the server says, at once; behind 0xff 0xfe what comes over
//! each data connection. `PORT` in what it says is where it listens for these.
#![no_main]
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use haul_base::stop::Stop;
use haul_ftp::{Error, Listed, Protocol, Security, Server, Session, Settings};
use libfuzzer_sys::fuzz_target;

const PASSWORD: &str = "geheimnis";
const PATIENCE: Duration = Duration::from_millis(500);
/// What is tried costs at most some silences; anything longer has no end.
const ENDS_WITHIN: Duration = Duration::from_secs(8);

/// What the server says, and what it sends.
#[derive(Default)]
struct Script {
    says: Vec<u8>,
    sends: Vec<u8>,
}

struct Liar {
    port: u16,
    script: &'static Mutex<Script>,
}

fn liar() -> &'static Liar {
    static LIAR: OnceLock<Liar> = OnceLock::new();
    static SCRIPT: Mutex<Script> = Mutex::new(Script { says: Vec::new(), sends: Vec::new() });
    LIAR.get_or_init(|| {
        let bind = || TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let (control, data) = (bind(), bind());
        let port = |listener: &TcpListener| listener.local_addr().expect("its port").port();
        let (ours, for_data) = (port(&control), port(&data));
        thread::spawn(move || {
            for socket in control.incoming().flatten() {
                let says = SCRIPT.lock().expect("no panic").says.clone();
                serve(socket, &with_port(&says, for_data));
            }
        });
        thread::spawn(move || {
            for socket in data.incoming().flatten() {
                let sends = SCRIPT.lock().expect("no panic").sends.clone();
                // As many may be open as the client likes.
                thread::spawn(move || serve(socket, &sends));
            }
        });
        Liar { port: ours, script: &SCRIPT }
    })
}

/// Says all of it, and hears until the other end has enough.
fn serve(mut socket: TcpStream, bytes: &[u8]) {
    let _ = socket.write_all(bytes);
    let _ = socket.shutdown(Shutdown::Write);
    let _ = socket.set_read_timeout(Some(ENDS_WITHIN));
    let mut buffer = [0; 4096];
    while socket.read(&mut buffer).is_ok_and(|len| len > 0) {}
}

fn with_port(says: &[u8], port: u16) -> Vec<u8> {
    let (mut out, mut at) = (Vec::with_capacity(says.len()), 0);
    while at < says.len() {
        match says[at..].strip_prefix(b"PORT") {
            Some(_) => {
                // As EPSV has it; PASV has it in two numbers.
                let [high, low] = port.to_be_bytes();
                let in_two = out.ends_with(b",");
                let text = if in_two { format!("{high},{low}") } else { port.to_string() };
                out.extend(text.into_bytes());
                at += 4;
            }
            None => {
                out.push(says[at]);
                at += 1;
            }
        }
    }
    out
}

fn told<T>(result: Result<T, Error>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            let text = error.to_string();
            assert!(!text.contains(PASSWORD), "it tells the password: {text}");
            assert!(!text.chars().any(char::is_control), "a terminal would mind: {text:?}");
            assert!(text.len() < 4000, "{} bytes", text.len());
            None
        }
    }
}

fn wants(what: u8, session: &mut Session, sent: usize) -> Option<()> {
    match what % 6 {
        0 => {
            for line in told(session.list(b"/d"))? {
                if let Listed::Entry { name, .. } = line {
                    let is_bad = |byte: &u8| *byte == b'/' || *byte < 0x20 || *byte == 0x7f;
                    assert!(!name.is_empty() && name != b"." && name != b"..", "{name:?}");
                    assert!(!name.iter().any(is_bad), "{name:?}");
                }
            }
        }
        1 => {
            let paths: [&[u8]; 3] = [b"/a", b"/b \xff", b"/c\xc3\xa4"];
            assert_eq!(told(session.facts_of(&paths))?.len(), 3);
        }
        2 | 3 => {
            let offset = if what % 6 == 2 { 0 } else { 7 };
            let mut incoming = told(session.begin(b"/f", offset))?;
            let mut buffer = [0; 1000];
            let mut all = 0;
            loop {
                match told(incoming.fill(&mut buffer))? {
                    0 => break,
                    len => all += len,
                }
            }
            assert!(all <= sent, "{all} of {sent} bytes");
            told(session.finish(incoming, b"/f"))?;
        }
        4 => drop(told(session.link_at(b"/d/link", what > 100))?),
        _ => assert!(told(session.home())?.starts_with(b"/")),
    }
    Some(())
}

fuzz_target!(|data: &[u8]| {
    let Some((what, rest)) = data.split_first() else { return };
    let cut = rest.windows(2).position(|two| two == [0xff, 0xfe]);
    let (says, sends) = cut.map_or((rest, &b""[..]), |at| (&rest[..at], &rest[at + 2..]));
    let liar = liar();
    *liar.script.lock().expect("no panic") = Script { says: says.to_vec(), sends: sends.to_vec() };
    let begun = Instant::now();
    let text = format!("alice:{PASSWORD}@127.0.0.1:{}", liar.port);
    let server = Server::parse(Protocol::Ftp, &text).expect("a server");
    let settings = Settings { patience: PATIENCE, at: None, security: Security::None, stop: Stop::never() };
    if let Some(mut session) = told(Session::open(&server, &settings)) {
        let banner = session.banner();
        assert!(!banner.windows(PASSWORD.len()).any(|part| part == PASSWORD.as_bytes()));
        // Twice: what was left over of the first is not taken for an answer to the second.
        if wants(*what, &mut session, sends.len()).is_some() && !session.is_broken() {
            wants(what.wrapping_add(1), &mut session, sends.len());
        }
    }
    assert!(begun.elapsed() < ENDS_WITHIN, "it takes {:?}", begun.elapsed());
});
