//! Data streams over any link.

use super::*;

struct Source {
    sender: DataSender,
    events: Receiver<SendEvent>,
    pool: Pool,
}

impl Source {
    fn buffer(&self, data: &[u8]) -> Option<Buffer> {
        let mut buffer = self.pool.take(data.len()).unwrap();
        buffer.as_mut_slice().copy_from_slice(data);
        (!data.is_empty()).then_some(buffer)
    }
}

struct Sink {
    _receiver: DataReceiver,
    events: Receiver<RecvEvent>,
    pool: Pool,
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
        frames.push((
            DataHeader { sink_target: SinkTarget::ANY, entries: vec![entry(1, 0, &data, true, true)] },
            data,
        ));
    }
    let part = bytes(50, 65_536);
    frames.push((
        DataHeader { sink_target: SinkTarget::ANY, entries: vec![entry(2, 65_536, &part, false, false)] },
        part,
    ));
    let end = bytes(51, (4 << 20) + 1);
    frames.push((
        DataHeader { sink_target: SinkTarget::ANY, entries: vec![entry(3, 4 << 20, &end, false, true)] },
        end,
    ));
    let files = [bytes(60, 700), bytes(61, 0), bytes(62, 5000)];
    let entries = files.iter().zip(4..).map(|(data, id)| entry(id, 0, data, true, true)).collect();
    frames.push((DataHeader { sink_target: SinkTarget::ANY, entries }, files.concat()));
    frames
}

/// Goal: data frames of every shape arrive as they were sent, numbered, judged good, and end cleanly; each is
/// told as sent with its buffer back in the pool.
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
/// Method: one flipped bit in each entry of a bundle in turn, and in a part of a file; of what is read, and
/// where payload goes from hand to hand, of that.
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
            let header = DataHeader { sink_target: SinkTarget::ANY, entries: entries.clone() };
            let mut payload = payload.clone();
            match ends.near.hands {
                Some(_) => payload[*at] ^= 1,
                None => {
                    let at = encode_data_header(&header, STREAM, EPOCH, 1).len() + at;
                    ends.far.reader = Box::new(Damage { reader: ends.far.reader, at, passed: 0 });
                }
            }
            let mut source = source(ends.near);
            let sink = sink(ends.far, 1 << 20);
            let buffer = source.buffer(&payload);
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
                DataHeader { sink_target: SinkTarget::ANY, entries: vec![entry(id, 0, &data, true, true)] },
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

/// Goal: a frame whose buffer has no payload holds nothing up: the buffer goes home, and the next frame
/// comes.
#[test]
fn an_empty_buffer_is_no_payload() {
    for make in TRANSPORTS {
        let ends = make();
        let mut source = source(ends.near);
        let sink = sink(ends.far, 1 << 20);
        for data in [&b""[..], b"more", b""] {
            let mut buffer = source.pool.take(4).unwrap();
            buffer.truncate(data.len());
            buffer.as_mut_slice().copy_from_slice(data);
            let entries = vec![entry(1, 0, data, true, true)];
            source.sender.submit(DataHeader { sink_target: SinkTarget::ANY, entries }, Some(buffer));
            let sent = source.events.recv_timeout(HANG).unwrap();
            assert!(matches!(sent, SendEvent::Sent { .. }), "{}: {sent:?}", ends.name);
        }
        source.sender.close();
        let (got, _, error) = sink.finish();
        let good = got.iter().all(|(.., good)| *good == [true]);
        assert_eq!((got.len(), good, error), (3, true, None), "{}", ends.name);
        assert_eq!((source.pool.in_use().0, sink.pool.in_use().0), (0, 0), "{}", ends.name);
    }
}

/// Goal: from hand to hand payload stays where it is, and is in the books of one end at a time: of the source
/// until the frame is told as sent, of the sink from then on.
/// Method: the addresses of what is sent and of what came; the pools' books at each step.
#[test]
fn payload_changes_owners() {
    let ends = over_hands();
    let mut source = source(ends.near);
    let sink = sink(ends.far, 1 << 20);
    let mut addresses = Vec::new();
    for number in 0..4 {
        let data = bytes(number, 70_000);
        let buffer = source.buffer(&data).expect("there is payload");
        let (address, cost) = (buffer.as_slice().as_ptr().addr(), source.pool.in_use().0);
        addresses.push(address);
        let entries = vec![entry(number, 0, &data, true, true)];
        source.sender.submit(DataHeader { sink_target: SinkTarget::ANY, entries }, Some(buffer));
        let sent = source.events.recv_timeout(HANG).unwrap();
        assert!(matches!(sent, SendEvent::Sent { .. }), "{sent:?}");
        assert_eq!(source.pool.in_use().0, 0);
        let event = sink.events.recv_timeout(HANG).unwrap();
        let RecvEvent::Data { buffer: Some(buffer), good, .. } = event else { panic!("{event:?}") };
        assert_eq!((good, sink.pool.in_use().0), (vec![true], cost));
        assert_eq!(buffer.as_slice().as_ptr().addr(), address);
        assert!(buffer.as_slice() == data);
        drop(buffer);
        assert_eq!(sink.pool.in_use().0, 0);
    }
    // What the sink has no use for goes back for what comes next.
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len(), 2);
}

/// Goal: a head whose payload is another length ends the stream; so does the end of the peer while payload is
/// waited for, and while it waits to be taken, wherever that is cut.
#[test]
fn hands_hold_what_the_head_says() {
    let data = bytes(1, 1000);
    let header = DataHeader { sink_target: SinkTarget::ANY, entries: vec![entry(1, 0, &data, true, true)] };
    let head = encode_data_header(&header, STREAM, EPOCH, 1);
    let pool = Pool::new(1 << 20);
    for len in [0, 999, 1001] {
        let mut ends = over_hands();
        let hands = ends.near.hands.as_ref().expect("they have hands");
        hands.give(pool.take(len).unwrap()).unwrap();
        ends.near.writer.write_all(&head).unwrap();
        let sink = sink(ends.far, 1 << 20);
        let (got, _, error) = sink.finish();
        assert!(got.is_empty() && error.unwrap().contains("bad frame"), "{len}");
        assert_eq!((sink.pool.in_use().0, pool.in_use().0), (0, 0));
    }
    for cuts in [false, true] {
        let mut ends = over_hands();
        ends.near.writer.write_all(&head).unwrap();
        let sink = sink(ends.far, 1 << 20);
        match cuts {
            true => (ends.near.closer)(),
            false => drop(ends.near),
        }
        let (got, _, error) = sink.finish();
        assert!(got.is_empty() && error.is_some(), "{cuts}");
    }
    for cuts in [false, true] {
        let mut ends = over_hands();
        let mut source = source(ends.near);
        let buffer = source.buffer(&data);
        source.sender.submit(header.clone(), buffer);
        // From here on it waits until the payload is taken, which nobody does.
        ends.far.reader.read_exact(&mut vec![0; head.len()]).unwrap();
        match cuts {
            true => (ends.far.closer)(),
            false => drop(ends.far),
        }
        let event = source.events.recv_timeout(HANG).unwrap();
        assert!(matches!(event, SendEvent::Lost { .. }), "{event:?}");
        assert_eq!(source.pool.in_use().0, 0);
    }
}

/// Goal: a stream that is cut inside a frame is an error with the number of whole frames; the sender hears
/// too.
#[test]
fn cut_inside_a_frame_is_an_error() {
    for make in TRANSPORTS {
        let mut ends = make();
        let data = bytes(1, 100_000);
        let header =
            DataHeader { sink_target: SinkTarget::ANY, entries: vec![entry(1, 0, &data, true, true)] };
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
                DataHeader { sink_target: SinkTarget::ANY, entries: vec![entry(id, 0, &data, true, true)] },
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
            let header =
                DataHeader { sink_target: SinkTarget::ANY, entries: vec![entry(1, 0, &data, true, true)] };
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
        // A changed byte is found: by the frame's rules, or by the digest, unless it is in what nobody can
        // check.
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
    let header = DataHeader { sink_target: SinkTarget::ANY, entries: vec![entry(1, 0, &data, true, true)] };
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
        connection: None,
        guard: Guard::default(),
        hands: None,
    };
    let (_handle, events) = control(bomb());
    assert!(lost(&events).contains("boom"));
    assert!(sink(bomb(), 1 << 20).finish().2.unwrap().contains("boom"));
}
