//! Data frames without encryption, and somebody between the two ends.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use haul_core::digest::DigestKind;
use haul_core::ids::{FileId, Generation, SessionEpoch, SinkTarget, StreamId};
use haul_core::wire::{DataEntry, DataHeader, HEADER_LEN, PREAMBLE_LEN};

use super::frames::{CODE_LEN, FrameKeys};
use super::pace::Pacer;
use super::stream::{DataReceiver, DataSender, RecvEvent};
use super::tls::{Identity, Pin, client, server};
use super::{Guard, Link, memory};
use haul_base::buffer::Pool;
use haul_base::digest;
use haul_base::meter::Meter;

const SECRET: [u8; 32] = [5; 32];
const SESSION: [u8; 16] = [6; 16];
const EPOCH: SessionEpoch = SessionEpoch(1);
const WAIT: Duration = Duration::from_secs(20);
const LEN: usize = 4096;
/// Header, preamble, one entry with one value, code.
const HEAD_LEN: usize = HEADER_LEN + PREAMBLE_LEN + 32 + 32 + CODE_LEN;

fn keys(stream: u16, near: bool) -> FrameKeys {
    FrameKeys::new(&SECRET, &SESSION, (StreamId(stream), EPOCH), near)
}

fn payload(frame: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(frame);
    (0..LEN).map(|_| rng.u8(..)).collect()
}

fn header(frame: u64, data: &[u8]) -> DataHeader {
    let offset = frame * LEN as u64;
    let kind = DigestKind::Blake3;
    let entry = DataEntry {
        id: FileId(1),
        generation: Generation(0),
        offset,
        len: data.len() as u32,
        root: false,
        hole: false,
        tail: false,
        sealed: false,
        pass: 0,
        digest: kind,
        cvs: digest::chaining_values(kind, offset, data, false),
    };
    DataHeader { sink_target: SinkTarget::ANY, entries: vec![entry] }
}

/// What a sender with `keys` puts on the wire for frames 1 to `count`, and its last frame.
fn spoken(stream: u16, count: u64) -> Vec<Vec<u8>> {
    let (near, mut middle) = memory::pair(1 << 24);
    let near = Link { guard: Guard { keys: Some(keys(stream, true)), ..Guard::default() }, ..near };
    send(near, stream, count);
    let mut all = Vec::new();
    middle.reader.read_to_end(&mut all).expect("the sender ends in good order");
    let mut frames = Vec::new();
    while !all.is_empty() {
        let body = u32::from_le_bytes(all[..4].try_into().expect("four")) as usize;
        let rest = all.split_off(HEADER_LEN + body + CODE_LEN);
        frames.push(std::mem::replace(&mut all, rest));
    }
    assert_eq!(frames.len() as u64, count + 1);
    frames
}

fn send(link: Link, stream: u16, count: u64) {
    let post = Arc::new(|_| {});
    let (meter, pacer) = (Arc::new(Meter::default()), Arc::new(Pacer::new(None)));
    let mut sender = DataSender::spawn(link, StreamId(stream), EPOCH, meter, post, pacer).expect("a thread");
    let pool = Pool::new(1 << 26);
    for frame in 1..=count {
        let data = payload(frame);
        let mut buffer = pool.take(data.len()).expect("room");
        buffer.as_mut_slice().copy_from_slice(&data);
        sender.submit(header(frame, &data), Some(buffer));
    }
    sender.close();
}

fn receive(link: Link, stream: u16) -> Receiver<RecvEvent> {
    let (post, events) = unbounded();
    let post = Arc::new(move |event| drop(post.send(event)));
    let meter = Arc::new(Meter::default());
    let receiver = DataReceiver::spawn(link, StreamId(stream), EPOCH, Pool::new(1 << 26), meter, post);
    // Dropped, it would cut the stream.
    std::mem::forget(receiver.expect("a thread"));
    events
}

/// What a receiver of stream 1 makes of these bytes: which frames came good or bad, and how it ended.
fn heard(bytes: &[u8]) -> (Vec<(u64, bool)>, Option<String>) {
    let (far, mut middle) = memory::pair(1 << 24);
    let far = Link { guard: Guard { keys: Some(keys(1, false)), ..Guard::default() }, ..far };
    let events = receive(far, 1);
    middle.writer.write_all(bytes).and_then(|()| middle.writer.flush()).expect("it has room");
    drop(middle.writer);
    outcome(&events)
}

fn outcome(events: &Receiver<RecvEvent>) -> (Vec<(u64, bool)>, Option<String>) {
    let mut frames = Vec::new();
    loop {
        match events.recv_timeout(WAIT).expect("the stream ends") {
            RecvEvent::Data { header, buffer, good, .. } => {
                let frame = header.entries[0].offset / LEN as u64;
                let same = buffer.expect("payload").as_slice() == payload(frame);
                assert_eq!(good, [same], "what is called good is, and nothing else");
                frames.push((frame, same));
            }
            RecvEvent::Lost { error, frames: count, .. } => {
                assert_eq!(count, frames.len() as u64);
                return (frames, error);
            }
        }
    }
}

/// Goal: frames that nobody touched arrive, and so does their end.
#[test]
fn untouched_frames_arrive() {
    let (frames, error) = heard(&spoken(1, 3).concat());
    assert_eq!((frames, error), (vec![(1, true), (2, true), (3, true)], None));
}

/// Goal: a changed bit of payload is found, costs that object alone, and the stream goes on.
#[test]
fn flipped_payload_costs_one_object() {
    let frames = spoken(1, 3);
    for at in [HEAD_LEN, HEAD_LEN + LEN / 2, HEAD_LEN + LEN - 1] {
        let mut frames = frames.clone();
        frames[1][at] ^= 0x40;
        assert_eq!(heard(&frames.concat()), (vec![(1, true), (2, false), (3, true)], None), "byte {at}");
    }
}

/// Goal: a changed bit anywhere in a head ends the stream with an error, and nothing of that frame counts.
/// Method: every bit of header, preamble, descriptor and code of the second of three frames, and of the last.
#[test]
fn flipped_heads_end_the_stream() {
    let frames = spoken(1, 3);
    for bit in 0..8 * HEAD_LEN {
        let mut frames = frames.clone();
        frames[1][bit / 8] ^= 1 << (bit % 8);
        let (came, error) = heard(&frames.concat());
        assert_eq!(came, [(1, true)], "bit {bit}");
        assert!(error.is_some(), "bit {bit}");
    }
    for bit in 0..8 * (HEADER_LEN + CODE_LEN) {
        let mut frames = frames.clone();
        frames[3][bit / 8] ^= 1 << (bit % 8);
        let (came, error) = heard(&frames.concat());
        assert!(came.len() == 3 && error.is_some(), "bit {bit} of the last");
    }
}

/// Goal: no frame can be left out, repeated, put elsewhere, or cut off at the end, without the stream ending
/// in an error.
#[test]
fn misplaced_frames_end_the_stream() {
    let (own, other) = (spoken(1, 3), spoken(2, 3));
    let [a, b, c, end] = [0, 1, 2, 3].map(|i| &own[i][..]);
    // As a forger would, who knows the layout: renamed to this stream, but not coded anew.
    let mut renamed = other[1].clone();
    renamed[6..8].copy_from_slice(&1u16.to_le_bytes());
    let cases: [(&str, Vec<&[u8]>, usize); 9] = [
        ("left out", vec![a, c, end], 1),
        ("repeated", vec![a, b, b, c, end], 2),
        ("swapped", vec![a, c, b, end], 1),
        ("of another stream", vec![a, &other[1], c, end], 1),
        ("of another stream, renamed", vec![a, &renamed, c, end], 1),
        ("another stream's end", vec![a, b, &other[2], end], 2),
        ("cut off between frames", vec![a, b], 2),
        ("cut off within a head", vec![a, &b[..50]], 1),
        ("cut off within payload", vec![a, &b[..HEAD_LEN + 99]], 1),
    ];
    for (what, frames, good) in cases {
        let (came, error) = heard(&frames.concat());
        let want: Vec<_> = (1..=good as u64).map(|frame| (frame, true)).collect();
        assert_eq!(came, want, "{what}");
        assert!(error.is_some(), "{what}");
    }
}

/// Goal: frames made with no key or another's, and those that this end sent itself, are refused.
#[test]
fn forged_frames_are_refused() {
    let own = spoken(1, 1);
    let mut plain = own[0].clone();
    plain.drain(HEAD_LEN - CODE_LEN..HEAD_LEN);
    let mirrored = {
        let mut frame = own[0].clone();
        let head = HEAD_LEN - CODE_LEN;
        let code = keys(1, false).seal(&frame[..head]);
        frame[head..HEAD_LEN].copy_from_slice(&code);
        frame
    };
    for frame in [plain, mirrored] {
        let (came, error) = heard(&frame);
        assert!(came.is_empty() && error.is_some());
    }
}

/// Two ends of a TLS connection over loopback; the client first.
fn tls_pair() -> (Link, Link) {
    let (near, far, _) = tls_pair_and_wire();
    (near, far)
}

/// And what the far end's link reads from.
fn tls_pair_and_wire() -> (Link, Link, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let (a, b) = (Identity::generate().expect("a key"), Identity::generate().expect("a key"));
    let (pin_a, pin_b) = (Pin(a.public()), Pin(b.public()));
    let far = thread::spawn(move || {
        let (socket, _) = listener.accept().expect("it comes");
        let wire = socket.try_clone().expect("a descriptor");
        (server(socket, &b, &pin_a, WAIT).expect("a link"), wire)
    });
    let near = client(TcpStream::connect(address).expect("it listens"), &a, &pin_b, WAIT).expect("a link");
    let (far, wire) = far.join().expect("no panic");
    (near, far, wire)
}

/// Goal: a TLS link that goes bare carries what was said before under TLS, then frames as they are: whole, in
/// order, with their payload readable on the wire, and their end; in either direction.
/// Method: what one end says sealed and bare goes out before the other reads at all.
#[test]
fn links_go_bare_at_one_byte() {
    for from_near in [true, false] {
        let (near, far) = tls_pair();
        let (mut from, mut to) = if from_near { (near, far) } else { (far, near) };
        from.writer.write_all(b"joined").and_then(|()| from.writer.flush()).expect("sent");
        from.bare(keys(1, from_near)).expect("it can");
        let wire = from.connection.clone().expect("a connection");
        send(from, 1, 20);
        let mut said = [0; 6];
        to.reader.read_exact(&mut said).expect("it came");
        assert_eq!(&said, b"joined");
        to.bare(keys(1, !from_near)).expect("it can");
        let (frames, error) = outcome(&receive(to, 1));
        assert_eq!(error, None);
        assert_eq!(frames, (1..=20).map(|frame| (frame, true)).collect::<Vec<_>>());
        drop(wire);
    }
    let (mut near, _far, mut wire) = tls_pair_and_wire();
    near.bare(keys(1, true)).expect("it can");
    near.writer.write_all(b"as it is").expect("sent");
    let mut seen = [0; 8];
    wire.read_exact(&mut seen).expect("it came");
    assert_eq!(&seen, b"as it is");
    let (mut in_process, _other) = memory::pair(100);
    assert!(in_process.bare(keys(1, true)).is_err());
}
