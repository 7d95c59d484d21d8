//! A server that is far away, as far as its control connections go: what it says arrives when the client has
//! nothing more to say for a while. So who waits for an answer before he goes on waits a round trip, and each
//! of them is counted. Data connections go to the server itself, at the same address.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const LOOK_EVERY: Duration = Duration::from_millis(2);
/// A client that says nothing for so long, and was told nothing, waits.
const QUIET: Duration = Duration::from_millis(30);

/// The way to a server; it is closed on drop.
pub struct Far {
    pub port: u16,
    turns: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
}

impl Far {
    pub fn to(server: u16) -> Far {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bind any port");
        let port = listener.local_addr().expect("know the port").port();
        let far = Far { port, turns: Arc::default(), over: Arc::default() };
        let (turns, over) = (far.turns.clone(), far.over.clone());
        thread::spawn(move || {
            for client in listener.incoming() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(("127.0.0.1", server))) else {
                    continue;
                };
                let (turns, over) = (turns.clone(), over.clone());
                thread::spawn(move || carry(client, server, &turns, &over));
            }
        });
        far
    }

    /// Round trips that were waited for so far, by all sessions together.
    pub fn turns(&self) -> usize {
        self.turns.load(Ordering::SeqCst)
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // Whoever waits for the next one sees it.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// What comes now; `None`: it is over.
fn come(from: &mut TcpStream, buffer: &mut [u8]) -> Option<usize> {
    match from.read(buffer) {
        Ok(0) => None,
        Ok(len) => Some(len),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Some(0),
        Err(_) => None,
    }
}

fn carry(mut client: TcpStream, mut server: TcpStream, turns: &AtomicUsize, over: &AtomicBool) {
    for end in [&client, &server] {
        end.set_nonblocking(true).expect("a socket that does not wait");
        let _ = end.set_nodelay(true);
    }
    let (mut held, mut buffer, mut heard) = (Vec::new(), vec![0; 64 << 10], Instant::now());
    while !over.load(Ordering::Relaxed) {
        let Some(said) = come(&mut client, &mut buffer) else { return };
        if said > 0 {
            heard = Instant::now();
            if server.write_all(&buffer[..said]).is_err() {
                return;
            }
        }
        let Some(told) = come(&mut server, &mut buffer) else {
            let _ = client.write_all(&held);
            return;
        };
        held.extend_from_slice(&buffer[..told]);
        if !held.is_empty() && heard.elapsed() >= QUIET {
            turns.fetch_add(1, Ordering::SeqCst);
            if client.write_all(&std::mem::take(&mut held)).is_err() {
                return;
            }
            heard = Instant::now();
        }
        if said == 0 && told == 0 {
            thread::sleep(LOOK_EVERY);
        }
    }
}
