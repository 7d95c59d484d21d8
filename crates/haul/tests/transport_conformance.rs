//! One suite for every transport: what `haul::transport` promises of a link, and what the stream threads make of
//! any link, good or bad.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use haul::buffer::{Buffer, Pool};
use haul::digest;
use haul::meter::Meter;
use haul::transport::pace::Pacer;
use haul::transport::stream::{
    ControlEvent, ControlHandle, ControlStream, DataReceiver, DataSender, Loss, RecvEvent, SendEvent,
    WAITING_LEN_MAX, WAITING_MAX,
};
use haul::transport::tls::{self, Identity, Pin};
use haul::transport::{Guard, Link, Post, memory, mux, pipe};
use haul_core::digest::DigestKind;
use haul_core::ids::{Class, FileId, Generation, SessionEpoch, StreamId};
use haul_core::resend::KEPT_MAX;
use haul_core::wire::{
    DataEntry, DataHeader, FrameHeader, HEADER_LEN, Message, RESUME_LEN, ResumeFrom, SubHeader,
    encode_data_header, encode_frame, kind,
};

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

const TRANSPORTS: [fn() -> Ends; 6] =
    [over_memory, over_tls, over_mux_in_memory, over_mux_in_sockets, over_pipes, over_pipes_in_sockets];

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

/// Goal: no more messages wait to be taken than may, by number and by bytes, and all come nevertheless, in order.
/// Method: a peer that writes as fast as it can against a taker that takes one only when as many wait as may, or all came.
#[test]
fn a_flood_of_control_is_held_back() {
    for len in [8, 30_000] {
        let wait_max = WAITING_MAX.min(WAITING_LEN_MAX.div_ceil(len + 2));
        let flood = 5 * wait_max as u64;
        let said = move |n: u64| match len {
            8 => Message::Ping(n),
            _ => Message::Trial([&n.to_le_bytes()[..], &vec![b' '; len - 8]].concat().into()),
        };
        let (near, mut far) = memory::pair(100_000);
        let (sender, received) = unbounded();
        let (waiting, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let post: Post<ControlEvent> = {
            let (waiting, most) = (waiting.clone(), most.clone());
            Arc::new(move |event| {
                most.fetch_max(waiting.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                drop(sender.send(event));
            })
        };
        let handle = ControlStream::spawn(near, EPOCH, post).unwrap();
        let peer = std::thread::spawn(move || {
            for n in 1..=flood {
                far.writer.write_all(&encode_frame(&said(n), StreamId(0), EPOCH, n)).unwrap();
            }
            far
        });
        let deadline = Instant::now() + HANG;
        for n in 1..=flood {
            let left = (flood - n + 1) as usize;
            while waiting.load(Ordering::SeqCst) < wait_max.min(left) {
                assert!(Instant::now() < deadline, "message {n} of {flood} does not come");
                std::thread::yield_now();
            }
            let event = received.recv_timeout(HANG).unwrap();
            assert_eq!(event, ControlEvent::Message(said(n)));
            waiting.fetch_sub(1, Ordering::SeqCst);
            event.taken(&handle);
        }
        assert_eq!(most.load(Ordering::SeqCst), wait_max, "messages of {len} bytes");
        drop(peer.join().unwrap());
    }
}

/// Goal: an end that closes ends, and keeps no more than before, although the peer goes on and on and nobody takes it.
#[test]
fn closing_does_not_wait_for_a_flood() {
    let (near, mut far) = memory::pair(10_000);
    let (mut handle, events) = control(near);
    let peer = std::thread::spawn(move || {
        (1..=3 * WAITING_MAX as u64).all(|n| {
            far.writer.write_all(&encode_frame(&Message::Ping(n), StreamId(0), EPOCH, n)).is_ok()
        })
    });
    handle.close();
    assert!(peer.join().unwrap(), "what comes is read to its end");
    drop(handle);
    assert!(events.try_iter().count() <= WAITING_MAX);
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

/// Goal: control messages arrive in order in both directions; closing flushes; the peer hears the end once.
/// Method: thousands of numbered messages each way, closed right after the last.
#[test]
fn control_messages_round_trip() {
    for make in TRANSPORTS {
        let ends = make();
        let (mut near, near_events) = control(ends.near);
        let (mut far, far_events) = control(ends.far);
        let mut near_got = Vec::new();
        for i in 0..3000 {
            near.send(Message::Ping(i));
            far.send(Message::Stop { reason: format!("{i}").into() });
            // Not more in flight than the queue takes.
            let event = far_events.recv_timeout(HANG).unwrap();
            assert_eq!(event, ControlEvent::Message(Message::Ping(i)));
            event.taken(&far);
            near_got.push(near_events.recv_timeout(HANG).unwrap());
            near_got[i as usize].taken(&near);
        }
        near.send(Message::Stopped);
        let closing = std::thread::spawn(move || near.close());
        assert_eq!(far_events.recv_timeout(HANG).unwrap(), ControlEvent::Message(Message::Stopped));
        assert_eq!(lost(&far_events), "the peer closed the control stream");
        far.close();
        closing.join().unwrap();
        assert_eq!(near_got.len(), 3000, "{}", ends.name);
        for (i, event) in near_got.into_iter().enumerate() {
            assert_eq!(event, ControlEvent::Message(Message::Stop { reason: format!("{i}").into() }));
        }
        // Whoever closes is not told that it lost something; nobody is told twice.
        assert!(near_events.try_recv().is_err() && far_events.try_recv().is_err(), "{}", ends.name);
    }
}

/// Goal: a peer that does not read is found out, and sending never waits for it.
/// Method: nobody reads the other end; send more than is kept and the pipe holds.
#[test]
fn control_queue_is_bounded() {
    let (near, _far) = memory::pair(1000);
    let (handle, events) = control(near);
    for i in 0..KEPT_MAX as u64 + 20_000 {
        handle.send(Message::Ping(i));
    }
    assert!(lost(&events).contains("does not take"));
}

/// Goal: frames of another epoch do nothing, and are counted.
#[test]
fn stale_control_frames_are_dropped() {
    let (near, mut far) = memory::pair(10_000);
    let (handle, events) = control(near);
    far.writer.write_all(&encode_frame(&Message::Ping(1), StreamId(0), SessionEpoch(6), 1)).unwrap();
    far.writer.write_all(&encode_frame(&Message::Ping(2), StreamId(0), EPOCH, 1)).unwrap();
    assert_eq!(events.recv_timeout(HANG).unwrap(), ControlEvent::Message(Message::Ping(2)));
    assert_eq!(handle.stale(), 1);
    // A repeated frame ends the stream.
    far.writer.write_all(&encode_frame(&Message::Ping(2), StreamId(0), EPOCH, 1)).unwrap();
    assert!(lost(&events).contains("number 1 instead of 2"));
}

struct Source {
    sender: DataSender,
    events: Receiver<SendEvent>,
    pool: Pool,
}

struct Sink {
    _receiver: DataReceiver,
    events: Receiver<RecvEvent>,
    pool: Pool,
}

fn source(link: Link) -> Source {
    let (post, events) = post();
    let sender =
        DataSender::spawn(link, STREAM, EPOCH, Arc::new(Meter::default()), post, Arc::new(Pacer::new(None)))
            .unwrap();
    Source { sender, events, pool: Pool::new(64 << 20) }
}

fn sink(link: Link, limit: u64) -> Sink {
    let (post, events) = post();
    let pool = Pool::new(limit);
    let meter = Arc::new(Meter::default());
    let receiver = DataReceiver::spawn(link, STREAM, EPOCH, pool.clone(), meter, post).unwrap();
    Sink { _receiver: receiver, events, pool }
}

impl Sink {
    /// The frames until the end, and how it ended.
    fn finish(&self) -> (Vec<(u64, DataHeader, Vec<u8>, Vec<bool>)>, u64, Option<String>) {
        let mut got = Vec::new();
        loop {
            match self.events.recv_timeout(HANG).expect("the stream ends sooner or later") {
                RecvEvent::Data { stream, seq, header, buffer, good } => {
                    assert_eq!(stream, STREAM);
                    let payload = buffer.map_or(Vec::new(), |buffer| buffer.as_slice().to_vec());
                    got.push((seq, header, payload, good));
                }
                RecvEvent::Lost { stream, frames, error } => {
                    assert_eq!(stream, STREAM);
                    return (got, frames, error);
                }
            }
        }
    }
}

impl Source {
    fn buffer(&self, data: &[u8]) -> Option<Buffer> {
        let mut buffer = self.pool.take(data.len()).unwrap();
        buffer.as_mut_slice().copy_from_slice(data);
        (!data.is_empty()).then_some(buffer)
    }
}

fn entry(number: u64, offset: u64, data: &[u8], root: bool, tail: bool) -> DataEntry {
    let cvs = match root {
        true => vec![digest::root(DigestKind::Blake3, data)],
        false => digest::chaining_values(DigestKind::Blake3, offset, data, tail),
    };
    DataEntry {
        id: FileId(number),
        generation: Generation(1),
        offset,
        len: data.len() as u32,
        root,
        hole: false,
        tail,
        sealed: false,
        pass: 0,
        digest: DigestKind::Blake3,
        cvs,
    }
}

/// Data frames with payloads of many lengths: whole files, parts and ends of files, and a bundle.
fn frames() -> Vec<(DataHeader, Vec<u8>)> {
    let mut frames = Vec::new();
    for len in [0, 1, 65_536, (4 << 20) + 1] {
        let data = bytes(len as u64, len);
        frames.push((DataHeader { class: Class::ANY, entries: vec![entry(1, 0, &data, true, true)] }, data));
    }
    let part = bytes(50, 65_536);
    frames
        .push((DataHeader { class: Class::ANY, entries: vec![entry(2, 65_536, &part, false, false)] }, part));
    let end = bytes(51, (4 << 20) + 1);
    frames.push((DataHeader { class: Class::ANY, entries: vec![entry(3, 4 << 20, &end, false, true)] }, end));
    let files = [bytes(60, 700), bytes(61, 0), bytes(62, 5000)];
    let entries = files.iter().zip(4..).map(|(data, id)| entry(id, 0, data, true, true)).collect();
    frames.push((DataHeader { class: Class::ANY, entries }, files.concat()));
    frames
}

/// Goal: data frames of every shape arrive as they were sent, numbered, judged good, and end cleanly; each is told as
/// sent with its buffer back in the pool.
#[test]
fn data_frames_round_trip() {
    for make in TRANSPORTS {
        let ends = make();
        let mut source = source(ends.near);
        let sink = sink(ends.far, 64 << 20);
        let mut ids = Vec::new();
        for (header, payload) in frames() {
            let buffer = source.buffer(&payload);
            ids.push(buffer.as_ref().map(Buffer::id));
            let seq = source.sender.submit(header, buffer);
            assert_eq!(seq, ids.len() as u64);
        }
        source.sender.close();
        let (got, count, error) = sink.finish();
        assert_eq!(error, None, "{}", ends.name);
        assert_eq!(count, frames().len() as u64);
        for (i, ((header, payload), got)) in frames().into_iter().zip(&got).enumerate() {
            let good = vec![true; header.entries.len()];
            assert_eq!((got.0, &got.1, &got.3), (i as u64 + 1, &header, &good));
            assert!(got.2 == payload);
        }
        for (i, id) in ids.into_iter().enumerate() {
            let event = source.events.recv_timeout(HANG).unwrap();
            assert_eq!(event, SendEvent::Sent { stream: STREAM, seq: i as u64 + 1, buffer_id: id });
        }
        assert_eq!((source.pool.in_use().0, sink.pool.in_use().0), (0, 0));
    }
}

/// Flips one bit of the byte at `at` of what is read.
struct Damage {
    reader: Box<dyn Read + Send>,
    at: usize,
    passed: usize,
}

impl Read for Damage {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.reader.read(out)?;
        if (self.passed..self.passed + n).contains(&self.at) {
            out[self.at - self.passed] ^= 1;
        }
        self.passed += n;
        Ok(n)
    }
}

/// Goal: damage is reported for the entry that has it, and for no other.
/// Method: one flipped bit in each entry of a bundle in turn, and in a part of a file.
#[test]
fn damage_is_reported_per_entry() {
    let files = [bytes(1, 700), bytes(2, 900), bytes(3, 5000)];
    let entries: Vec<DataEntry> =
        files.iter().zip(0..).map(|(data, id)| entry(id, 0, data, true, true)).collect();
    let part = bytes(4, 70_000);
    let part_entry = entry(1, 65_536, &part, false, true);
    let cases = [
        (entries.clone(), files.concat(), 0, vec![false, true, true]),
        (entries.clone(), files.concat(), 700, vec![true, false, true]),
        (entries, files.concat(), 6599, vec![true, true, false]),
        (vec![part_entry], part, 69_999, vec![false]),
    ];
    for make in TRANSPORTS {
        for (entries, payload, at, expected) in &cases {
            let mut ends = make();
            let header = DataHeader { class: Class::ANY, entries: entries.clone() };
            let at = encode_data_header(&header, STREAM, EPOCH, 1).len() + at;
            ends.far.reader = Box::new(Damage { reader: ends.far.reader, at, passed: 0 });
            let mut source = source(ends.near);
            let sink = sink(ends.far, 1 << 20);
            let buffer = source.buffer(payload);
            source.sender.submit(header, buffer);
            source.sender.close();
            let (got, _, error) = sink.finish();
            assert_eq!((error, &got[0].3), (None, expected), "{}", ends.name);
        }
    }
}

/// Goal: payload without a grant ends the stream; what was granted before counts.
/// Method: a pool of two slots whose buffers are held, three frames of a slot.
#[test]
fn over_grant_ends_the_stream() {
    for make in TRANSPORTS {
        let ends = make();
        let mut source = source(ends.near);
        let (post, events) = post();
        let pool = Pool::new(2 * 65_536);
        let _receiver =
            DataReceiver::spawn(ends.far, STREAM, EPOCH, pool.clone(), Arc::new(Meter::default()), post)
                .unwrap();
        let data = bytes(1, 10);
        for id in 0..3 {
            let buffer = source.buffer(&data);
            source.sender.submit(
                DataHeader { class: Class::ANY, entries: vec![entry(id, 0, &data, true, true)] },
                buffer,
            );
        }
        let mut held = Vec::new();
        let (frames, error) = loop {
            match events.recv_timeout(HANG).unwrap() {
                RecvEvent::Data { buffer, .. } => held.push(buffer),
                RecvEvent::Lost { frames, error, .. } => break (frames, error.unwrap()),
            }
        };
        assert_eq!((frames, held.len()), (2, 2));
        assert!(error.contains("more than it was granted"), "{}: {error}", ends.name);
    }
}

/// Goal: a stream that is cut inside a frame is an error with the number of whole frames; the sender hears too.
#[test]
fn cut_inside_a_frame_is_an_error() {
    for make in TRANSPORTS {
        let mut ends = make();
        let data = bytes(1, 100_000);
        let header = DataHeader { class: Class::ANY, entries: vec![entry(1, 0, &data, true, true)] };
        let head = encode_data_header(&header, STREAM, EPOCH, 1);
        ends.near.writer.write_all(&head).unwrap();
        ends.near.writer.write_all(&data[..50_000]).unwrap();
        ends.near.writer.flush().unwrap();
        // The end is clean for the link, not for the frame.
        drop(ends.near);
        let sink = sink(ends.far, 1 << 20);
        let (got, frames, error) = sink.finish();
        assert_eq!((got.len(), frames), (0, 0));
        assert!(error.unwrap().contains("cut off"), "{}", ends.name);
        assert_eq!(sink.pool.in_use().0, 0);
    }
}

/// Goal: a peer that vanishes ends the sender, once, and all buffers come back.
#[test]
fn sender_hears_of_a_vanished_peer() {
    for make in TRANSPORTS {
        let ends = make();
        let mut source = source(ends.near);
        (ends.far.closer)();
        drop(ends.far);
        let data = bytes(1, 65_536);
        for id in 0..300 {
            let buffer = source.buffer(&data);
            source.sender.submit(
                DataHeader { class: Class::ANY, entries: vec![entry(id, 0, &data, true, true)] },
                buffer,
            );
        }
        loop {
            match source.events.recv_timeout(HANG).unwrap() {
                SendEvent::Sent { .. } => {}
                SendEvent::Lost { stream, .. } => break assert_eq!(stream, STREAM),
            }
        }
        drop(source.sender);
        // The thread drops the channel's other end last.
        assert!(source.events.recv_timeout(HANG).is_err());
        assert_eq!(source.pool.in_use().0, 0, "{}", ends.name);
    }
}

/// Goal: junk ends either kind of stream with an error and without a panic.
/// Method: seeded random bytes, and whole good frames with one random byte changed.
#[test]
fn junk_ends_the_stream() {
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut junk = bytes(seed, rng.usize(24..2000));
        if seed % 2 == 1 {
            let data = bytes(seed, 300);
            let header = DataHeader { class: Class::ANY, entries: vec![entry(1, 0, &data, true, true)] };
            junk = match seed % 4 {
                1 => encode_frame(&Message::Stop { reason: "because".into() }, StreamId(0), EPOCH, 1),
                _ => [encode_data_header(&header, STREAM, EPOCH, 1), data].concat(),
            };
            let at = rng.usize(0..junk.len());
            junk[at] ^= 1 << rng.u8(0..8);
        }
        let (near, mut far) = memory::pair(100_000);
        far.writer.write_all(&junk).unwrap();
        drop(far);
        let (_handle, events) = control(near);
        let why = lost(&events);
        assert!(!why.contains("panicked"), "seed {seed}: {why}");

        let (near, mut far) = memory::pair(100_000);
        far.writer.write_all(&junk).unwrap();
        drop(far);
        let sink = sink(near, 1 << 20);
        let (got, _, error) = sink.finish();
        assert!(!error.clone().unwrap_or_default().contains("panicked"), "seed {seed}: {error:?}");
        // A changed byte is found: by the frame's rules, or by the digest, unless it is in what nobody can check.
        assert!(error.is_some() || got.iter().all(|frame| frame.0 == 1), "seed {seed}");
        assert!(got.iter().all(|frame| frame.2.len() <= 300), "seed {seed}");
    }
}

/// A raw header that the encoder would refuse to make.
fn raw_header(len: u32, kind: u8, stream: u16) -> [u8; HEADER_LEN] {
    let mut bytes =
        FrameHeader { len: 0, kind: kind::PING, flags: 0, stream: StreamId(stream), epoch: EPOCH, seq: 1 }
            .encode();
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    bytes[4] = kind;
    bytes
}

/// Goal: a length from the peer that is over its limit ends the stream before anything is allocated.
/// Method: headers and preambles with absurd lengths; the pool was never asked.
#[test]
fn hostile_lengths_end_the_stream() {
    for len in [1 << 20 | 1, u32::MAX, i32::MAX as u32] {
        for kind in [kind::PING, kind::ANNOUNCE, kind::TARGET_HEALTH, kind::DATA] {
            let (near, mut far) = memory::pair(1000);
            far.writer.write_all(&raw_header(len, kind, 0)).unwrap();
            let (_handle, events) = control(near);
            assert!(lost(&events).contains("bad frame"));
        }
    }
    for (frame_len, descriptor_len, payload_len) in
        [(u32::MAX, 64, 0), (1000, u32::MAX, 0), (1000, 64, u32::MAX), (0, 0, 0), (80 << 20, 64, 79 << 20)]
    {
        let (near, mut far) = memory::pair(1000);
        far.writer.write_all(&raw_header(frame_len, kind::DATA, STREAM.0)).unwrap();
        let mut preamble = [0; 16];
        preamble[0] = 1;
        preamble[4..8].copy_from_slice(&u32::to_le_bytes(descriptor_len));
        preamble[8..12].copy_from_slice(&u32::to_le_bytes(payload_len));
        far.writer.write_all(&preamble).unwrap();
        let sink = sink(near, 1 << 30);
        let (got, _, error) = sink.finish();
        assert!(got.is_empty() && error.unwrap().contains("bad frame"));
        assert_eq!(sink.pool.in_use(), (0, 0));
    }
}

/// Goal: a data frame of another stream or epoch, or out of order, ends the stream.
#[test]
fn misplaced_data_frames_end_the_stream() {
    let data = bytes(1, 10);
    let header = DataHeader { class: Class::ANY, entries: vec![entry(1, 0, &data, true, true)] };
    for (stream, epoch, seq) in [(StreamId(4), EPOCH, 1), (STREAM, SessionEpoch(6), 1), (STREAM, EPOCH, 2)] {
        let (near, mut far) = memory::pair(1000);
        far.writer.write_all(&encode_data_header(&header, stream, epoch, seq)).unwrap();
        far.writer.write_all(&data).unwrap();
        let (got, _, error) = sink(near, 1 << 20).finish();
        assert!(got.is_empty() && error.unwrap().contains("bad frame"));
    }
}

/// Goal: a panic in a thread is an ordinary end of the stream.
#[test]
fn panic_ends_the_stream() {
    struct Bomb;
    impl Read for Bomb {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            panic!("boom")
        }
    }
    let bomb = || Link {
        reader: Box::new(Bomb),
        writer: Box::new(io::sink()),
        closer: Arc::new(|| {}),
        socket: None,
        guard: Guard::default(),
    };
    let (_handle, events) = control(bomb());
    assert!(lost(&events).contains("boom"));
    assert!(sink(bomb(), 1 << 20).finish().2.unwrap().contains("boom"));
}

/// Goal: a control frame overtakes data that waits in the mux.
/// Method: the pipe is narrow and nobody reads it while 1 MiB of data and then one control byte are queued.
#[test]
fn control_overtakes_data_in_the_mux() {
    let (near, mut pipe) = memory::pair(1);
    let mut links = mux::mux(near.reader, near.writer, 2, 1000, Box::new(|_| {})).unwrap();
    links[1].writer.write_all(&vec![0; mux::SEND_QUEUE_LEN]).unwrap();
    links[0].writer.write_all(&[7]).unwrap();
    let mut data_before = 0;
    loop {
        let mut head = [0; 8];
        pipe.reader.read_exact(&mut head).unwrap();
        let head = SubHeader::decode(&head).unwrap();
        let mut body = vec![0; head.len as usize];
        pipe.reader.read_exact(&mut body).unwrap();
        if head.channel == 0 {
            break assert_eq!(body, [7]);
        }
        data_before += 1;
    }
    assert!(data_before <= 1, "control waited for {data_before} data subframes");
}

/// Goal: hostile subframes and a broken pipe end every channel with an error, and say so once.
#[test]
fn bad_subframes_end_the_mux() {
    let head = |channel: u16, len: u32| {
        let mut bytes = SubHeader { channel, len: 0 }.encode();
        bytes[4..].copy_from_slice(&len.to_le_bytes());
        bytes.to_vec()
    };
    let cases = [
        head(0, u32::MAX),
        head(0, 65_537),
        head(9, 4),
        head(9, 0),
        [head(1, 0), head(1, 4)].concat(),
        head(mux::CUT, 4),
        head(0, 5),
        Vec::new(),
    ];
    for case in cases {
        let (near, mut far) = memory::pair(100_000);
        let (ended, end) = unbounded();
        let on_end = Box::new(move |why| ended.send(why).unwrap());
        let mut links = mux::mux(near.reader, near.writer, 2, 1000, on_end).unwrap();
        far.writer.write_all(&case).unwrap();
        drop(far.writer);
        assert!(end.recv_timeout(HANG).unwrap().is_some());
        assert!(links[0].reader.read_to_end(&mut Vec::new()).is_err());
        assert!(end.recv_timeout(HANG).is_err());
    }
}

/// Goal: when all channels ended well the pipe ends well, and its writer is dropped.
#[test]
fn mux_ends_when_its_channels_do() {
    let (near, far) = memory::pair(100);
    let (ended, end) = unbounded();
    let ended = Arc::new(ended);
    let on_end = || {
        let ended = ended.clone();
        Box::new(move |why: Option<String>| ended.send(why).unwrap())
    };
    let a = mux::mux(near.reader, near.writer, 3, 1000, on_end()).unwrap();
    let b = mux::mux(far.reader, far.writer, 3, 1000, on_end()).unwrap();
    for (i, mut link) in a.into_iter().enumerate() {
        link.writer.write_all(&[i as u8; 5]).unwrap();
    }
    for (i, mut link) in b.into_iter().enumerate() {
        let mut got = Vec::new();
        link.reader.read_to_end(&mut got).unwrap();
        assert_eq!(got, [i as u8; 5]);
    }
    assert_eq!(end.recv_timeout(HANG).unwrap(), None);
    assert_eq!(end.recv_timeout(HANG).unwrap(), None);
}

/// Goal: control goes on over another link: every message once and in order, whatever was on its way; what an older link
/// still brings has no effect; a link of an older epoch is refused.
/// Method: both real ends over pairs of links that are cut in the middle of traffic, with thousands of messages each way.
#[test]
fn control_goes_on_over_another_link() {
    let (near, far) = memory::pair(5_000);
    let mut cuts = vec![near.closer.clone()];
    let (near_handle, near_events) = control(near);
    let (far_handle, far_events) = control(far);
    let read = |events: Receiver<ControlEvent>, handle: Arc<ControlHandle>| {
        std::thread::spawn(move || {
            let mut got = Vec::new();
            while got.len() < 12_000 {
                let event = events.recv_timeout(HANG).expect("messages go on");
                event.taken(&handle);
                match event {
                    ControlEvent::Message(Message::Ping(n)) => got.push(n),
                    ControlEvent::Message(other) => panic!("{other:?}"),
                    ControlEvent::Lost { how, .. } => assert_ne!(how, Loss::Broken),
                }
            }
            got
        })
    };
    let (near_handle, far_handle) = (Arc::new(near_handle), Arc::new(far_handle));
    let readers = [read(near_events, near_handle.clone()), read(far_events, far_handle.clone())];
    for i in 0..12_000u64 {
        near_handle.send(Message::Ping(i));
        far_handle.send(Message::Ping(i));
        if i % 1_000 == 500 {
            cuts.pop().expect("a link")();
            let (near, far) = memory::pair(5_000);
            cuts.push(near.closer.clone());
            let epoch = SessionEpoch(EPOCH.0 + 1 + i as u32);
            near_handle.attach(near, epoch).unwrap();
            far_handle.attach(far, epoch).unwrap();
            // One of an epoch that is over.
            let (stale, mut peer) = memory::pair(100);
            near_handle.attach(stale, epoch).unwrap();
            assert!(peer.reader.read(&mut [0]).is_err(), "it is cut");
        }
        if i % 50 == 0 {
            // Not more at a time than is kept for a peer.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let all: Vec<u64> = (0..12_000).collect();
    for reader in readers {
        assert!(reader.join().unwrap() == all, "lost, repeated or out of order");
    }
    let own = |handle| Arc::into_inner(handle).expect("its reader is over");
    let (mut near_handle, mut far_handle): (ControlHandle, ControlHandle) = (own(near_handle), own(far_handle));
    std::thread::scope(|scope| {
        scope.spawn(|| near_handle.close());
        far_handle.close();
    });
}

/// Goal: a peer that resumes where it cannot is found out, and the link is lost for good.
/// Method: a hand-written far end that joins again and claims what was never sent, another epoch, or wants back what it had.
#[test]
fn false_resumes_are_found_out() {
    for (received, epoch, why) in
        [(5, 8, "came, of"), (0, 9, "resumes epoch"), (0, 8, "wants control messages")]
    {
        let (near, mut far) = memory::pair(10_000);
        let (handle, events) = control(near);
        handle.send(Message::Ping(1));
        far.reader.read_exact(&mut [0; HEADER_LEN + 8]).unwrap();
        far.writer.write_all(&encode_frame(&Message::Received(1), StreamId(0), EPOCH, 1)).unwrap();
        far.writer.write_all(&encode_frame(&Message::Ping(7), StreamId(0), EPOCH, 2)).unwrap();
        assert_eq!(events.recv_timeout(HANG).unwrap(), ControlEvent::Message(Message::Ping(7)));
        let (near, mut far) = memory::pair(10_000);
        handle.attach(near, SessionEpoch(8)).unwrap();
        let mut resume = [0; RESUME_LEN];
        far.reader.read_exact(&mut resume).unwrap();
        assert_eq!(ResumeFrom::decode(&resume).unwrap(), ResumeFrom { epoch: SessionEpoch(8), received: 2 });
        far.writer.write_all(&ResumeFrom { epoch: SessionEpoch(epoch), received }.encode()).unwrap();
        let lost = events.iter().find_map(|event| match event {
            ControlEvent::Lost { epoch: SessionEpoch(8), why, how } => Some((why, how)),
            _ => None,
        });
        let (said, how) = lost.unwrap();
        assert!(said.contains(why) && how == Loss::Broken, "{said}");
    }
}
