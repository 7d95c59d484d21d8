//! A network of one row's own, and what goes over it: whether content is there in the clear, who shows a
//! certificate on a data connection, and what is said on a control connection that is not protected.
//!
//! In: whatever the thread that made it starts from then on, servers and clients. Out: what its packets held,
//! which nobody's word is needed for. Left out: the middle of large packets, of which the start tells enough,
//! for each file begins with [`MARK`].

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, eth, recv, socket_with, sockopt};
use rustix::thread::UnshareFlags;

use super::procs;

/// What files begin with, and what is nowhere else.
pub const MARK: &[u8] = b"in the clear: 9f1c2b7a";
/// So much of a packet is looked at.
const LOOKED_AT: usize = 2048;
/// For packets that nobody has looked at yet.
const BUFFER: usize = 64 << 20;
/// What is looked for is seen within this, or was not there.
const SEEN_WITHIN: Duration = Duration::from_secs(30);

/// What the packets held; see the module.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Connections, each by its two ports, that had content in the clear.
    pub clear: BTreeSet<(u16, u16)>,
    /// The same of those that began with TLS. A context of GSI on a control connection is none.
    pub hellos: BTreeSet<(u16, u16)>,
    /// Commands in the clear, without what names a file or a port.
    pub said: BTreeSet<String>,
    /// The last fence that came by.
    fence: u64,
}

impl Seen {
    pub fn says(&self, command: &str) -> bool {
        self.said.contains(command)
    }
}

/// See the module.
pub struct Wire {
    seen: Arc<Mutex<Seen>>,
    fences: u64,
    over: Arc<AtomicBool>,
    looks: Option<JoinHandle<()>>,
}

impl Wire {
    /// Leads this thread, and all that it starts, into a network of its own.
    pub fn alone() -> Wire {
        // Of a thread's name spaces that of its network is nobody's descriptor.
        #[expect(deprecated, reason = "its other form is unsafe, for other flags than this one")]
        rustix::thread::unshare(UnshareFlags::NEWNET).expect("a network of its own");
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
        assert!(up.expect("run ip").success(), "set the loopback device up");
        let flags = SocketFlags::CLOEXEC;
        let tap = socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, Some(eth::ALL));
        let tap = tap.expect("look at packets");
        sockopt::set_socket_recv_buffer_size_force(&tap, BUFFER).expect("room for packets");
        let patience = Some(Duration::from_millis(50));
        sockopt::set_socket_timeout(&tap, sockopt::Timeout::Recv, patience).expect("set a patience");
        let (seen, over) = (Arc::<Mutex<Seen>>::default(), Arc::<AtomicBool>::default());
        let (notes, ends) = (seen.clone(), over.clone());
        let looks = std::thread::spawn(move || look(&tap, &notes, &ends));
        Wire { seen, fences: 0, over, looks: Some(looks) }
    }

    /// What was seen since the last time that this was asked.
    pub fn seen(&mut self) -> Seen {
        self.fences += 1;
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let fence = [FENCE, &self.fences.to_be_bytes()].concat();
        let came = procs::wait_until(SEEN_WITHIN, || {
            // One may be lost in a crowd.
            let _ = socket.send_to(&fence, "127.0.0.1:9");
            self.seen.lock().expect("nobody panics with it").fence == self.fences
        });
        assert!(came, "nobody looks at packets any more");
        let mut seen = self.seen.lock().expect("nobody panics with it");
        let now = seen.clone();
        *seen = Seen { fence: now.fence, ..Seen::default() };
        now
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(looks) = self.looks.take() {
            let _ = looks.join();
        }
    }
}

const FENCE: &[u8] = b"all that came before was looked at";

fn look(tap: &OwnedFd, seen: &Mutex<Seen>, over: &AtomicBool) {
    let mut packet = vec![0; LOOKED_AT];
    while !over.load(Ordering::Relaxed) {
        // Nothing within the patience, or a packet of which the rest is cut off.
        let Ok((len, _)) = recv(tap, &mut packet[..], RecvFlags::empty()) else { continue };
        note(&packet[..len.min(LOOKED_AT)], &mut seen.lock().expect("nobody panics with it"));
    }
}

/// An IP packet.
fn note(packet: &[u8], seen: &mut Seen) {
    const TCP: u8 = 6;
    const UDP: u8 = 17;
    let header = usize::from(packet.first().map_or(0, |first| first & 0xf)) * 4;
    let (Some(protocol), Some(inner)) = (packet.get(9), packet.get(header..)) else { return };
    let number = |at: usize| Some(u16::from_be_bytes([*inner.get(at)?, *inner.get(at + 1)?]));
    let (Some(from), Some(to)) = (number(0), number(2)) else { return };
    let data = match *protocol {
        TCP => usize::from(inner.get(12).map_or(0, |offset| offset >> 4)) * 4,
        UDP => 8,
        _ => return,
    };
    let Some(data) = inner.get(data..) else { return };
    if *protocol == UDP {
        if let Some(number) = data.strip_prefix(FENCE).and_then(|number| number.try_into().ok()) {
            seen.fence = u64::from_be_bytes(number);
        }
        return;
    }
    if data.windows(MARK.len()).any(|part| part == MARK) {
        seen.clear.insert((from, to));
    }
    // A record of a handshake that holds a ClientHello.
    if let [22, 3, 1..=3, _, _, 1, ..] = data {
        seen.hellos.insert((from, to));
    }
    if data.first().is_some_and(u8::is_ascii_uppercase) && data.ends_with(b"\r\n") {
        let lines = std::str::from_utf8(data).into_iter().flat_map(str::lines);
        seen.said.extend(lines.filter_map(command));
    }
}

/// The verb, and what stands behind it where that is of a few.
fn command(line: &str) -> Option<String> {
    let mut words = line.split(' ');
    let verb = words.next()?;
    let is_verb = (3..=4).contains(&verb.len()) && verb.bytes().all(|byte| byte.is_ascii_uppercase());
    let named = matches!(verb, "AUTH" | "CKSM" | "DCAU" | "MODE" | "PROT").then(|| words.next()).flatten();
    is_verb.then(|| named.map_or_else(|| verb.to_owned(), |word| format!("{verb} {word}")))
}
