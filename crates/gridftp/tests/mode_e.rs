//! MODE E: what Globus sent, in any pieces and orders, and what a liar sends.

use haul_gridftp::FtpError;
use haul_gridftp::mode_e::{CHANNELS_MAX, Channel, Event, HEADER_LEN, Header, Mark, Transfer};

/// Bytes of connections of one transfer, each with its bytes of the file.
fn block(offset: u64, payload: &[u8]) -> Vec<u8> {
    [&Header::data(offset, payload.len() as u64).expect("a small block").encode()[..], payload].concat()
}

fn header(descriptor: u8, count: u64, offset: u64) -> Vec<u8> {
    Header { descriptor, count, offset }.encode().to_vec()
}

/// What one connection told: bytes of the file by offset, and marks.
type Told = (Vec<(u64, u8)>, Vec<Mark>, bool);

fn read(channel: &mut Channel, pieces: &[&[u8]]) -> Result<Told, FtpError> {
    let (mut bytes, mut marks) = (Vec::new(), Vec::new());
    for mut piece in pieces.iter().copied() {
        loop {
            let (taken, event) = channel.feed(piece)?;
            match event {
                Some(Event::Payload { offset, len }) => {
                    assert!(len > 0 && len <= taken);
                    let payload = &piece[taken - len..taken];
                    bytes.extend(payload.iter().enumerate().map(|(i, b)| (offset + i as u64, *b)));
                }
                Some(Event::Mark(mark)) => marks.push(mark),
                Some(Event::Block { len, .. }) => assert!(len > 0),
                None => {
                    assert!(taken == piece.len() || channel.is_at_end());
                    break;
                }
            }
            piece = &piece[taken..];
        }
    }
    Ok((bytes, marks, channel.is_at_end()))
}

fn tell(transfer: &mut Transfer, marks: &[Mark]) -> Result<(), FtpError> {
    marks.iter().try_for_each(|mark| transfer.handle_mark(*mark))
}

/// Goal: headers are as Globus has them.
/// Method: the ends of a transfer of two connections and of an empty file, byte by byte.
#[test]
fn headers_are_those_of_globus() {
    let bytes = |n, close| -> Vec<u8> {
        Header::ends(n, close).expect("connections").flat_map(|h| h.encode()).collect()
    };
    let eof = |descriptor, count| [&[descriptor][..], &[0; 15], &[count]].concat();
    assert_eq!(bytes(1, false), eof(0x48, 1));
    assert_eq!(bytes(2, false), [eof(0x48, 2), eof(0x08, 0)].concat());
    assert_eq!(bytes(2, true), [eof(0x4c, 2), eof(0x0c, 0)].concat());
    assert_eq!(
        block(0x0102, b"x"),
        [&[0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 2][..], b"x"].concat()
    );
    assert!(Header::ends(0, false).is_err() && Header::ends(CHANNELS_MAX + 1, false).is_err());
    assert!(Header::data(u64::MAX, 1).is_err() && Header::data(i64::MAX as u64, 1).is_err());
    assert!(Header::data(i64::MAX as u64 - 1, 1).is_ok());
    let mut rng = fastrand::Rng::with_seed(20);
    for _ in 0..1_000 {
        let header = Header { descriptor: rng.u8(..), count: rng.u64(..), offset: rng.u64(..) };
        assert_eq!(Header::decode(&header.encode()), header);
    }
}

/// Goal: blocks and marks do not depend on the pieces, and a mark is told without a byte behind it.
/// Method: every split into three of a connection with blocks of each kind: plain, with EOR, with EOD on the
/// last payload; EOF in a block of its own, its count field full of what is to be ignored.
#[test]
fn pieces_make_no_difference() {
    let end = [header(0x08, 2, 100), b"yz".to_vec()].concat();
    let parts = [block(7, b"abc"), header(0x80, 0, 9), header(0x40, u64::MAX, 1), block(0, b"x"), end];
    let bytes = parts.concat();
    let expected: Told = (
        vec![(7, b'a'), (8, b'b'), (9, b'c'), (0, b'x'), (100, b'y'), (101, b'z')],
        vec![Mark { eof: Some(1), ..Mark::default() }, Mark { eod: true, ..Mark::default() }],
        true,
    );
    for i in 0..=bytes.len() {
        for j in i..=bytes.len() {
            let told = read(&mut Channel::new(), &[&bytes[..i], &bytes[i..j], &bytes[j..]]);
            assert_eq!(told, Ok(expected.clone()), "{i} {j}");
        }
    }
}

/// Goal: payload that is read past the reader counts as if it was fed.
/// Method: each length that can be skipped of one block, then the rest.
#[test]
fn payload_may_pass_by() {
    let bytes = [block(5, b"abcd"), header(0x08, 0, 0)].concat();
    for skipped in 0..=4 {
        let mut channel = Channel::new();
        assert_eq!(channel.feed(&bytes), Ok((HEADER_LEN, Some(Event::Block { offset: 5, len: 4 }))));
        assert_eq!(channel.expected(), (5, 4));
        channel.skip(skipped);
        assert_eq!(channel.expected(), (5 + skipped as u64, 4 - skipped as u64));
        let (rest, marks, at_end) = read(&mut channel, &[&bytes[HEADER_LEN + skipped..]]).expect("a block");
        assert_eq!((rest.len(), marks.len(), at_end), (4 - skipped, 1, true));
    }
}

/// Goal: whatever the order in which connections and their ends come, the transfer is complete with the last
/// of them and not before, and the file is whole.
/// Method: seeded files cut into blocks over 1 to 5 connections, of which some may have none; EOF alone, with
/// or before EOD on any of them; the connections' events in a random order.
#[test]
fn a_transfer_is_complete_with_its_last_end() {
    let mut rng = fastrand::Rng::with_seed(1969);
    for _ in 0..3_000 {
        let n = rng.usize(1..6);
        let file: Vec<u8> = (0..rng.usize(0..40)).map(|_| rng.u8(..)).collect();
        let mut streams = vec![Vec::new(); n];
        let mut at = 0;
        while at < file.len() {
            let len = rng.usize(1..=file.len() - at);
            rng.choice(&mut streams).expect("a stream").extend(block(at as u64, &file[at..at + len]));
            at += len;
        }
        let with_eof = rng.usize(0..n);
        for (i, stream) in streams.iter_mut().enumerate() {
            let close = if rng.bool() { 0x04 } else { 0 };
            match (i == with_eof, rng.bool()) {
                (true, true) => stream.extend(header(0x48 | close, rng.u64(..), n as u64)),
                (true, false) => {
                    stream.extend(header(0x40, 0, n as u64));
                    stream.extend(header(0x08 | close, 0, 0));
                }
                (false, _) => stream.extend(header(0x08 | close, 0, 0)),
            }
        }
        let mut transfer = Transfer::new(1).expect("one sender");
        let mut channels: Vec<Option<Channel>> = (0..n).map(|_| None).collect();
        let (mut got, mut open, mut eofs) = (vec![None; file.len()], n, 0);
        while open > 0 {
            assert!(!transfer.is_complete(), "{open} of {n} have not ended");
            let i = rng.usize(0..n);
            if streams[i].is_empty() {
                continue;
            }
            let channel = channels[i].get_or_insert_with(|| {
                transfer.handle_channel().expect("as promised");
                Channel::new()
            });
            let len = rng.usize(1..=streams[i].len());
            let piece: Vec<u8> = streams[i].drain(..len).collect();
            let (bytes, marks, _) = read(channel, &[&piece]).expect("good blocks");
            for (offset, byte) in bytes {
                assert_eq!(got[offset as usize].replace(byte), None);
            }
            tell(&mut transfer, &marks).expect("as promised");
            eofs += marks.iter().filter(|mark| mark.eof.is_some()).count();
            open -= marks.iter().filter(|mark| mark.eod).count();
            let come = channels.iter().flatten().count();
            assert_eq!(transfer.channels_to_come(), (eofs == 1).then(|| (n - come) as u64));
        }
        assert!(transfer.is_complete());
        assert_eq!(got.into_iter().flatten().collect::<Vec<_>>(), file);
    }
}

/// Goal: a connection that is kept carries the next transfer, and its bytes are not the first one's.
/// Method: two files on one connection in one piece, as `-fast -r` has them.
#[test]
fn a_kept_connection_carries_the_next_transfer() {
    let one = [block(0, b"one"), header(0x48, 0, 1)].concat();
    let bytes = [&one[..], &block(0, b"two")[..], &header(0x48, 0, 1)].concat();
    let mut channel = Channel::new();
    let mut rest = &bytes[..];
    for expected in [b"one", b"two"] {
        let (told, marks, at_end) = read(&mut channel, &[rest]).expect("good blocks");
        assert_eq!(told.iter().map(|(_, b)| *b).collect::<Vec<_>>(), expected);
        assert!(at_end);
        assert_eq!(channel.feed(b"more"), Ok((0, None)), "nothing is taken before the next transfer");
        let mut transfer = Transfer::new(1).expect("one sender");
        transfer.handle_channel().expect("one connection");
        tell(&mut transfer, &marks).expect("as promised");
        assert!(transfer.is_complete());
        channel.next_transfer();
        rest = &rest[one.len()..];
    }
}

/// Goal: a header that no honest sender writes ends the connection, and stays an error.
/// Method: every descriptor; offsets and lengths beyond the longest file.
#[test]
fn bad_headers_end_the_connection() {
    for descriptor in 0..=255_u8 {
        let told = read(&mut Channel::new(), &[&header(descriptor, 0, 1)]);
        assert_eq!(told.is_err(), descriptor & 0x33 != 0, "{descriptor:#04x}");
    }
    for (count, offset) in [(u64::MAX, 0), (1, u64::MAX), (1, i64::MAX as u64), (u64::MAX, u64::MAX)] {
        let mut channel = Channel::new();
        assert!(channel.feed(&header(0, count, offset)).is_err());
        assert!(channel.feed(&header(0x08, 0, 0)).is_err());
    }
}

/// Goal: promises that are lies are told, and do not make anybody wait or allocate.
/// Method: counts of 0, giant, too small and too large, a second EOF, a connection lost, each by itself.
#[test]
fn wrong_counts_are_told() {
    let eof = |count| Mark { eof: Some(count), ..Mark::default() };
    let eod = Mark { eod: true, ..Mark::default() };
    let transfer = |channels: u64| {
        let mut transfer = Transfer::new(1).expect("one sender");
        (0..channels).for_each(|_| transfer.handle_channel().expect("few connections"));
        transfer
    };
    for giant in [0, CHANNELS_MAX + 1, u64::MAX] {
        let mut t = transfer(1);
        assert!(t.handle_mark(eof(giant)).is_err());
        assert!(t.handle_mark(eod).is_err() && !t.is_complete(), "an error stays");
    }
    let mut t = Transfer::new(2).expect("two senders");
    assert!(t.handle_mark(eof(0)).is_err(), "told at once, though the other sender has not promised yet");
    // Fewer than there are, whichever is known first.
    assert!(tell(&mut transfer(2), &[eof(1)]).is_err());
    let mut t = transfer(1);
    tell(&mut t, &[eof(1)]).expect("as promised");
    assert!(t.handle_channel().is_err());
    // More ends than connections.
    assert!(tell(&mut transfer(1), &[eod, eod]).is_err());
    // Two ends of file from one sender.
    assert!(tell(&mut transfer(4), &[eof(4), eof(4)]).is_err());
    // More than come: never complete, and who waits knows for how many.
    let mut t = transfer(1);
    tell(&mut t, &[eof(3), eod]).expect("more may come");
    assert!(!t.is_complete());
    assert_eq!(t.channels_to_come(), Some(2));
    // A connection that is lost before its end.
    let mut t = transfer(2);
    t.handle_closed(true).expect("at its end");
    assert!(t.handle_closed(false).is_err());
    assert!(tell(&mut t, &[eof(2), eod, eod]).is_err() && !t.is_complete());
    // As many connections as may be, and one more.
    let mut t = transfer(CHANNELS_MAX);
    assert!(t.handle_channel().is_err());
    assert!(Transfer::new(0).is_err());
}

/// Goal: several senders to one receiver each have their own count.
/// Method: two stripes of one and two connections, the ends in every order.
#[test]
fn stripes_each_promise_their_own() {
    let marks = [
        Mark { eod: true, eof: Some(1), close: false },
        Mark { eod: true, eof: Some(2), close: false },
        Mark { eod: true, eof: None, close: true },
    ];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut transfer = Transfer::new(2).expect("two senders");
        (0..3).for_each(|_| transfer.handle_channel().expect("few connections"));
        for (told, i) in order.into_iter().enumerate() {
            assert!(!transfer.is_complete(), "{order:?} after {told}");
            transfer.handle_mark(marks[i]).expect("as promised");
        }
        assert!(transfer.is_complete());
    }
}

/// Goal: no bytes make a reader panic or stand still.
/// Method: every byte of a good connection with every value, and seeded junk; in pieces of two sizes.
#[test]
fn damage_at_every_byte_does_no_harm() {
    let good = [block(7, b"abc"), header(0x40, 0, 2), block(0, b"x"), header(0x0c, 0, 0)].concat();
    let mut rng = fastrand::Rng::with_seed(5);
    let mut samples = Vec::new();
    for at in 0..good.len() {
        for value in 0..=255 {
            let mut bytes = good.clone();
            bytes[at] = value;
            samples.push(bytes);
        }
    }
    samples.extend((0..2_000).map(|_| (0..60).map(|_| if rng.bool() { 0 } else { rng.u8(..) }).collect()));
    for bytes in samples {
        let told = |size: usize| read(&mut Channel::new(), &bytes.chunks(size).collect::<Vec<_>>());
        let whole = told(bytes.len());
        assert_eq!(whole, told(1));
        if let Ok((_, marks, _)) = whole {
            let mut transfer = Transfer::new(1).expect("one sender");
            transfer.handle_channel().expect("one connection");
            let _ = tell(&mut transfer, &marks);
        }
    }
}
