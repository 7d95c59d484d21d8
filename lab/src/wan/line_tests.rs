//! The line in virtual time.

use super::super::packet::tests::super_packet;
use super::super::packet::{VNET_LEN, frame_cost};
use super::*;

const MS: Nanos = 1_000_000;

fn path() -> Path {
    Path { delay_ns: 5 * MS, jitter_ns: 0, rate: 10_000_000_000, loss: 0.0, buffer: 64 << 20, up: true }
}

fn offer(line: &mut Line, packet: &[u8], now: Nanos) {
    line.space().expect("room")[..packet.len()].copy_from_slice(packet);
    line.offer(packet.len(), now);
}

/// A plain packet of 1500 bytes with a number in it.
fn plain(number: u64) -> Vec<u8> {
    let mut packet = vec![0; VNET_LEN + 1500];
    packet[VNET_LEN] = 0x45;
    packet[100..108].copy_from_slice(&number.to_le_bytes());
    packet
}

/// Takes all that is left: when due, and the packet.
fn drain(line: &mut Line) -> Vec<(Nanos, Vec<u8>)> {
    let mut out = Vec::new();
    while let Some(due) = line.next_due() {
        out.push((due, line.first().expect("it is due").to_vec()));
        line.pop();
    }
    out
}

/// Goal: packets leave at the rate, exactly and without drift, each the delay after its last bit was sent.
/// Method: a burst at one instant at rates that do not divide a nanosecond; the last due time against
/// arithmetic.
#[test]
fn wan_rate_and_delay_are_exact() {
    for rate in [999_999_937, 10_000_000_000, 100_000_000, 37_000_000_003] {
        let mut line = Line::new(Path { rate, ..path() }, 1);
        let now = 77 * MS;
        for number in 0..1000 {
            offer(&mut line, &plain(number), now);
        }
        let out = drain(&mut line);
        for (index, (due, packet)) in out.iter().enumerate() {
            assert_eq!(packet, &plain(index as u64));
            let bits = (index as u128 + 1) * u128::from(frame_cost(1500)) * 8;
            assert_eq!(u128::from(*due), u128::from(now + 5 * MS) + bits * 1_000_000_000 / u128::from(rate));
        }
        assert_eq!(out.len(), 1000);
    }
}

/// Goal: jitter never lets a packet overtake another, and none is due before the delay is over; it does
/// spread them.
/// Method: seeded arrivals with jitter of twice the delay.
#[test]
fn wan_jitter_keeps_order_and_delay() {
    let mut line = Line::new(Path { jitter_ns: 10 * MS, ..path() }, 2);
    let mut rng = Rng::with_seed(2);
    let mut now = 0;
    let mut came = Vec::new();
    for number in 0..2_000 {
        now += rng.u64(0..20 * MS);
        came.push(now);
        offer(&mut line, &plain(number), now);
    }
    let out = drain(&mut line);
    let extra: Vec<Nanos> = out.iter().zip(&came).map(|((due, _), came)| due - came).collect();
    assert!(out.is_sorted_by_key(|(due, _)| *due));
    assert!(out.iter().enumerate().all(|(index, (_, packet))| *packet == plain(index as u64)));
    assert!(extra.iter().all(|extra| *extra >= 5 * MS), "none is early");
    let mean = extra.iter().sum::<Nanos>() / extra.len() as u64;
    assert!((10 * MS..12 * MS).contains(&mean), "half the jitter on top, and what order costs: {mean}");
}

/// Goal: what the buffer has no room for is dropped, and nothing else; when it has drained there is room
/// again.
/// Method: a burst of plain packets over a buffer for 100; then, after half of it was sent, another.
#[test]
fn wan_buffer_drops_the_tail() {
    let frame = frame_cost(1500);
    let mut line = Line::new(Path { buffer: 100 * frame, rate: 8_000_000_000, ..path() }, 3);
    for number in 0..150 {
        offer(&mut line, &plain(number), 0);
    }
    assert_eq!(line.counts.drops_buffer, 50);
    assert_eq!(line.counts.backlog_max, 100 * frame);
    // 8 Gbit/s is a byte per nanosecond.
    for number in 200..260 {
        offer(&mut line, &plain(number), 50 * frame);
    }
    assert_eq!(line.counts.drops_buffer, 60);
    let numbers: Vec<Vec<u8>> = drain(&mut line).into_iter().map(|(_, packet)| packet).collect();
    let expected: Vec<Vec<u8>> = (0..100).chain(200..250).map(plain).collect();
    assert_eq!(numbers, expected);
}

/// Goal: of a super-packet that does not fit, the first segments pass, as many as there is room for.
/// Method: one of 40 segments into a buffer for ten frames.
#[test]
fn wan_buffer_cuts_super_packets() {
    let mut rng = Rng::with_seed(4);
    let made = super_packet(&mut rng, false, true, 1400, 40 * 1400);
    let shape = Shape::of(&made.bytes);
    let buffer = shape.cost(0..10) + 5;
    let mut line = Line::new(Path { buffer, ..path() }, 4);
    offer(&mut line, &made.bytes, 0);
    assert_eq!((line.counts.packets, line.counts.drops_buffer), (40, 30));
    let out = drain(&mut line);
    assert_eq!(out.len(), 1);
    assert!(out[0].1.ends_with(&made.payload[9 * 1400..10 * 1400]), "up to the tenth segment");
    assert_eq!(Shape::of(&out[0].1).segments, 10);
}

/// Goal: the share of lost segments is the one that was set, in super-packets and in plain ones, the same for
/// the same seed; what is not lost arrives once.
/// Method: seeded runs at several rates of loss, within five standard deviations.
#[test]
fn wan_loss_hits_segments_at_its_rate() {
    for loss in [0.0, 0.0001, 0.01, 0.3, 1.0] {
        let run = |seed| {
            let mut rng = Rng::with_seed(seed);
            let mut line = Line::new(Path { loss, ..path() }, seed);
            let mut arrived = 0;
            for _ in 0..2_000 {
                let segments = rng.usize(1..=44);
                let made = super_packet(&mut rng, false, true, 100, segments * 100);
                offer(&mut line, &made.bytes, 0);
                arrived +=
                    drain(&mut line).iter().map(|(_, packet)| Shape::of(packet).segments).sum::<usize>();
            }
            assert_eq!(
                arrived as u64 + line.counts.drops_loss + line.counts.drops_buffer,
                line.counts.packets
            );
            (line.counts.drops_loss, line.counts.packets - line.counts.drops_buffer)
        };
        let (lost, of) = run(5);
        let expected = of as f64 * loss;
        let deviation = (expected * (1.0 - loss)).sqrt();
        assert!((lost as f64 - expected).abs() <= 5.0 * deviation, "{loss}: {lost} of {of}");
        assert_eq!(run(5), (lost, of));
    }
}

/// Goal: a change holds for what comes after it, and the order stays.
/// Method: a long path that becomes short while a packet is on it; down, and up again.
#[test]
fn wan_changes_keep_order() {
    let mut line = Line::new(Path { delay_ns: 100 * MS, ..path() }, 6);
    offer(&mut line, &plain(0), 0);
    line.change(Path { delay_ns: MS, ..path() }, 10 * MS);
    offer(&mut line, &plain(1), 10 * MS);
    offer(&mut line, &plain(2), 200 * MS);
    line.change(Path { up: false, ..path() }, 201 * MS);
    offer(&mut line, &plain(3), 201 * MS);
    line.change(path(), 202 * MS);
    offer(&mut line, &plain(4), 202 * MS);
    let out = drain(&mut line);
    let packets: Vec<_> = out.iter().map(|(_, packet)| packet.clone()).collect();
    assert_eq!(packets, [0, 1, 2, 4].map(plain));
    assert_eq!(line.counts.drops_down, 1);
    assert!(out[1].0 >= out[0].0 && out[1].0 < 102 * MS, "it waits for the one before, no longer");
    assert!((201 * MS..202 * MS).contains(&out[2].0));
}

/// Goal: bytes that wait are counted the same after the rate has changed.
/// Method: a full buffer at 8 Gbit/s, then an eighth of that: the next packet is dropped, and one fits after
/// a frame's time at the new rate.
#[test]
fn wan_rate_change_keeps_the_backlog() {
    let frame = frame_cost(1500);
    let full = Path { buffer: 10 * frame, rate: 8_000_000_000, ..path() };
    let mut line = Line::new(full, 7);
    for number in 0..10 {
        offer(&mut line, &plain(number), 0);
    }
    line.change(Path { rate: 1_000_000_000, ..full }, 0);
    offer(&mut line, &plain(10), 7 * frame);
    assert_eq!(line.counts.drops_buffer, 1);
    offer(&mut line, &plain(11), 8 * frame);
    assert_eq!(line.counts.drops_buffer, 1);
    assert_eq!(line.backlog(8 * frame), 10 * frame);
}

/// Goal: memory follows what is on the way, and is used again.
/// Method: a hundred times as many bytes as may be on the way at once; chunks are counted.
#[test]
fn wan_memory_is_used_again() {
    let mut line = Line::new(Path { delay_ns: MS, rate: 8_000_000_000, ..path() }, 8);
    let mut now = 0;
    for number in 0..200_000 {
        now += frame_cost(1500);
        while line.next_due().is_some_and(|due| due <= now) {
            line.pop();
        }
        offer(&mut line, &plain(number), now);
    }
    let chunks = line.arena.chunks.len() + line.arena.spare.len();
    assert!(chunks <= 4, "{chunks} chunks for a path that holds 1 MB");
}

/// Goal: what cannot be emulated is refused, with the value that is wrong.
/// Method: one bad value at a time.
#[test]
fn wan_impossible_paths_are_refused() {
    assert_eq!(path().check(), Ok(()));
    let wrong = [
        (Path { delay_ns: DELAY_MAX + 1, ..path() }, "delay"),
        (Path { rate: 0, ..path() }, "rate"),
        (Path { loss: 1.1, ..path() }, "loss"),
        (Path { loss: f64::NAN, ..path() }, "loss"),
        (Path { buffer: 100, ..path() }, "buffer"),
        (Path { rate: RATE_MAX, delay_ns: DELAY_MAX, ..path() }, "MiB"),
    ];
    for (path, word) in wrong {
        assert!(path.check().is_err_and(|error| error.contains(word)), "{path:?}");
    }
}
