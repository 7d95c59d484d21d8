//! One suite for every transport: what `haul_transport` promises of a link, and what the stream threads make
//! of any link, good or bad.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use haul_base::buffer::{Buffer, Pool};
use haul_base::digest;
use haul_base::meter::Meter;
use haul_core::digest::DigestKind;
use haul_core::ids::{FileId, Generation, SessionEpoch, SinkTarget, StreamId};
use haul_core::resend::KEPT_MAX;
use haul_core::wire::{
    DataEntry, DataHeader, FrameHeader, HEADER_LEN, Message, RESUME_LEN, ResumeFrom, SubHeader,
    encode_data_header, encode_frame, kind,
};
use haul_transport::pace::Pacer;
use haul_transport::stream::{
    ControlEvent, ControlHandle, ControlStream, DataReceiver, DataSender, Loss, RecvEvent, SendEvent,
    WAITING_LEN_MAX, WAITING_MAX,
};
use haul_transport::tls::{self, Identity, Pin};
use haul_transport::{Guard, Link, Post, memory, mux, pipe};

#[path = "transport_conformance/control.rs"]
mod control;
#[path = "transport_conformance/data.rs"]
mod data;
#[path = "transport_conformance/many.rs"]
mod many;

const EPOCH: SessionEpoch = SessionEpoch(7);
const STREAM: StreamId = StreamId(3);
/// No test waits so long; it turns a hang into a failure.
const HANG: Duration = Duration::from_secs(60);

/// Two connected links, and what must live as long as they do.
struct Ends {
    name: &'static str,
    near: Link,
    far: Link,
    _keep: Vec<Link>,
}

fn over_memory() -> Ends {
    let (near, far) = memory::pair(100_000);
    Ends { name: "memory", near, far, _keep: Vec::new() }
}

/// Payload goes from hand to hand.
fn over_hands() -> Ends {
    let (near, far) = memory::handing_pair(100_000);
    Ends { name: "hands", near, far, _keep: Vec::new() }
}

fn over_tls() -> Ends {
    let (dialled, accepted) = tcp_pair();
    let (ours, theirs) = (Identity::generate().unwrap(), Identity::generate().unwrap());
    let (our_pin, their_pin) = (Pin(ours.public()), Pin(theirs.public()));
    let far = std::thread::spawn(move || tls::server(accepted, &theirs, &our_pin, HANG).unwrap());
    let near = tls::client(dialled, &ours, &their_pin, HANG).unwrap();
    Ends { name: "tls", near, far: far.join().unwrap(), _keep: Vec::new() }
}

fn over_mux_in_memory() -> Ends {
    let (near, far) = memory::pair(50_000);
    mux_ends("mux over memory", (near.reader, near.writer), (far.reader, far.writer))
}

fn over_mux_in_sockets() -> Ends {
    let (near, far) = UnixStream::pair().unwrap();
    let halves = |stream: UnixStream| -> Halves {
        (Box::new(stream.try_clone().unwrap()), Box::new(ShutOnDrop(stream)))
    };
    mux_ends("mux over sockets", halves(near), halves(far))
}

/// A pipe's writing end closes when it is dropped; a socket's must be told to.
struct ShutOnDrop(UnixStream);

impl Write for ShutOnDrop {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.write(data)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for ShutOnDrop {
    fn drop(&mut self) {
        let _ = self.0.shutdown(std::net::Shutdown::Write);
    }
}

type Halves = (Box<dyn Read + Send>, Box<dyn Write + Send>);

fn mux_ends(name: &'static str, near: Halves, far: Halves) -> Ends {
    let split = |halves: Halves| mux::mux(halves.0, halves.1, 3, 200_000, Box::new(|_| {})).unwrap();
    let (mut near, mut far) = (split(near), split(far));
    let ends = (near.remove(1), far.remove(1));
    near.extend(far);
    Ends { name, near: ends.0, far: ends.1, _keep: near }
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (dialled, listener.accept().unwrap().0)
}

fn over_pipes() -> Ends {
    let (there, back) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
    let near = pipe::link(back.0.into(), there.1.into(), None).unwrap();
    let far = pipe::link(there.0.into(), back.1.into(), None).unwrap();
    Ends { name: "pipes", near, far, _keep: Vec::new() }
}

/// One socket is both ends of a pipe, as some sshds have it.
fn over_pipes_in_sockets() -> Ends {
    let (near, far) = UnixStream::pair().unwrap();
    let link =
        |socket: UnixStream| pipe::link(socket.try_clone().unwrap().into(), socket.into(), None).unwrap();
    Ends { name: "pipes in sockets", near: link(near), far: link(far), _keep: Vec::new() }
}

const TRANSPORTS: [fn() -> Ends; 7] = [
    over_memory,
    over_hands,
    over_tls,
    over_mux_in_memory,
    over_mux_in_sockets,
    over_pipes,
    over_pipes_in_sockets,
];

fn post<T: Send + 'static>() -> (Post<T>, Receiver<T>) {
    let (events, received) = unbounded();
    (Arc::new(move |event| drop(events.send(event))), received)
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

/// Goal: bytes arrive whole and in order, in both directions at once, and then comes EOF.
/// Method: seeded content in writes and reads of seeded sizes, some tiny, some larger than any buffer.
#[test]
fn bytes_arrive_whole_and_in_order() {
    for make in TRANSPORTS {
        let ends = make();
        let write = |mut writer: Box<dyn Write + Send>, seed: u64| {
            move || {
                let data = bytes(seed, 3_000_000);
                let mut rng = fastrand::Rng::with_seed(seed + 100);
                let mut rest = &data[..];
                while !rest.is_empty() {
                    let max = if rng.bool() { 50 } else { 700_000 };
                    let (now, later) = rest.split_at(rng.usize(1..=max).min(rest.len()));
                    writer.write_all(now).unwrap();
                    rest = later;
                }
                writer.flush().unwrap();
            }
        };
        let read = |mut reader: Box<dyn Read + Send>, seed: u64| {
            move || {
                let mut rng = fastrand::Rng::with_seed(seed + 200);
                let mut got = Vec::new();
                loop {
                    let max = if rng.bool() { 50 } else { 700_000 };
                    let mut buffer = vec![0; rng.usize(1..=max)];
                    match reader.read(&mut buffer).unwrap() {
                        0 => break,
                        n => got.extend_from_slice(&buffer[..n]),
                    }
                }
                assert!(got == bytes(seed, 3_000_000));
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(write(ends.near.writer, 1));
            scope.spawn(write(ends.far.writer, 2));
            scope.spawn(read(ends.near.reader, 2));
            scope.spawn(read(ends.far.reader, 1));
        });
        println!("{}: ok", ends.name);
    }
}

/// Goal: an end in the middle is an error at the peer, never EOF.
/// Method: write and flush a part, close in anger, read to the end.
#[test]
fn truncation_is_an_error() {
    for make in TRANSPORTS {
        let mut ends = make();
        ends.near.writer.write_all(&[1; 1000]).unwrap();
        ends.near.writer.flush().unwrap();
        (ends.near.closer)();
        drop(ends.near);
        let result = ends.far.reader.read_to_end(&mut Vec::new());
        assert!(result.is_err(), "{}: a cut looks like EOF", ends.name);
    }
}

/// Goal: the closer wakes a reader and a writer that wait, at this end and at the other.
/// Method: nobody reads what near writes and nobody writes what near reads; both threads must end.
#[test]
fn closer_wakes_reader_and_writer() {
    for closes_far in [false, true] {
        for make in TRANSPORTS {
            let ends = make();
            let closer = if closes_far { ends.far.closer.clone() } else { ends.near.closer.clone() };
            let (mut reader, mut writer) = (ends.near.reader, ends.near.writer);
            let (progress, seen) = unbounded();
            let reading = std::thread::spawn(move || reader.read(&mut [0; 100]));
            let writing = std::thread::spawn(move || {
                loop {
                    if writer.write_all(&[0; 100_000]).and_then(|()| writer.flush()).is_err() {
                        return;
                    }
                    let _ = progress.send(());
                }
            });
            seen.recv_timeout(HANG).unwrap();
            closer();
            writing.join().unwrap();
            assert!(reading.join().unwrap().is_err(), "{}", ends.name);
        }
    }
}

fn control(link: Link) -> (ControlHandle, Receiver<ControlEvent>) {
    let (post, events) = post();
    (ControlStream::spawn(link, EPOCH, post).unwrap(), events)
}

fn lost(events: &Receiver<ControlEvent>) -> String {
    loop {
        match events.recv_timeout(HANG).expect("the stream is lost sooner or later") {
            ControlEvent::Message(_) => {}
            ControlEvent::Lost { why, .. } => return why,
        }
    }
}
