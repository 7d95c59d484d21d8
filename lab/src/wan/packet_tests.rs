//! Cutting super-packets, against a plain segmenter that knows nothing of runs.

use super::*;

/// A super-packet as the kernel hands it over, and what it is made of.
pub struct Made {
    pub bytes: Vec<u8>,
    pub payload: Vec<u8>,
}

/// TCP or UDP over IPv4 or IPv6, with seeded headers and payload. A single segment carries no segmentation
/// type.
pub fn super_packet(rng: &mut fastrand::Rng, v6: bool, tcp: bool, mss: usize, payload_len: usize) -> Made {
    let payload: Vec<u8> = (0..payload_len).map(|_| rng.u8(..)).collect();
    let mut transport = vec![0; if tcp { 20 + 4 * rng.usize(0..=10) } else { 8 }];
    rng.fill(&mut transport);
    let transport_len = transport.len();
    let protocol = if tcp { TCP } else { UDP };
    let len = transport_len + payload_len;
    if tcp {
        transport[12] = (transport_len as u8 / 4) << 4;
        // FIN, PSH, ACK and CWR: what only the last and the first segment may keep.
        transport[13] = 0x99;
    } else {
        transport[4..6].copy_from_slice(&(len as u16).to_be_bytes());
    }
    let mut ip = vec![0; if v6 { 40 } else { 20 }];
    rng.fill(&mut ip);
    if v6 {
        ip[0] = 0x60;
        ip[4..6].copy_from_slice(&(len as u16).to_be_bytes());
        ip[6] = protocol;
    } else {
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&((20 + len) as u16).to_be_bytes());
        ip[9] = protocol;
        ip[10..12].fill(0);
        let check = !fold(sum(&ip));
        ip[10..12].copy_from_slice(&check.to_be_bytes());
    }
    let field = if tcp { 16 } else { 6 };
    let addresses = if v6 { sum(&ip[8..40]) } else { sum(&ip[12..20]) };
    let pseudo = fold(addresses + u64::from(protocol) + len as u64);
    transport[field..field + 2].copy_from_slice(&pseudo.to_be_bytes());
    let mut bytes = vec![0; VNET_LEN];
    bytes[0] = NEEDS_CSUM;
    if payload_len > mss {
        bytes[1] = match (tcp, v6) {
            (true, false) => GSO_TCP4,
            (true, true) => GSO_TCP6,
            _ => GSO_UDP,
        };
        bytes[4..6].copy_from_slice(&(mss as u16).to_ne_bytes());
    }
    bytes[6..8].copy_from_slice(&(ip.len() as u16).to_ne_bytes());
    bytes[8..10].copy_from_slice(&(field as u16).to_ne_bytes());
    bytes.extend([&ip[..], &transport, &payload].concat());
    Made { bytes, payload }
}

/// What a receiver sees of a packet: segments one by one, checksums finished as the kernel does.
fn segments(packet: &[u8]) -> Vec<Vec<u8>> {
    let (vnet, ip) = packet.split_at(VNET_LEN);
    let start = usize::from(u16::from_ne_bytes([vnet[6], vnet[7]]));
    let field = usize::from(u16::from_ne_bytes([vnet[8], vnet[9]]));
    let v6 = ip[0] >> 4 == 6;
    let tcp = ip[if v6 { 6 } else { 9 }] == TCP;
    let head = start + if tcp { usize::from(ip[start + 12] >> 4) * 4 } else { 8 };
    // Lengths that lie would make the kernel drop the packet.
    let (at, network) = if v6 { (4, 40) } else { (2, 0) };
    assert_eq!(usize::from(u16::from_be_bytes([ip[at], ip[at + 1]])) + network, ip.len(), "length field");
    let mss = match vnet[1] {
        0 => ip.len(),
        _ => usize::from(u16::from_ne_bytes([vnet[4], vnet[5]])),
    };
    let count = (ip.len() - head).div_ceil(mss);
    let one = |(index, payload): (usize, &[u8])| {
        let mut out = [&ip[..head], payload].concat();
        let len = out.len();
        let protocol = if tcp { TCP } else { UDP };
        if v6 {
            out[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
        } else {
            let id = u16::from_be_bytes([out[4], out[5]]).wrapping_add(index as u16);
            assert_eq!(fold(sum(&out[..20])), 0xffff, "header checksum as it came");
            out[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            out[4..6].copy_from_slice(&id.to_be_bytes());
            out[10..12].fill(0);
            let check = !fold(sum(&out[..20]));
            out[10..12].copy_from_slice(&check.to_be_bytes());
        }
        let addresses = if v6 { sum(&out[8..40]) } else { sum(&out[12..20]) };
        let whole = fold(addresses + u64::from(protocol) + (ip.len() - start) as u64);
        let seed = u16::from_be_bytes([ip[start + field], ip[start + field + 1]]);
        assert_eq!(seed, whole, "sum of the pseudo-header as it came");
        if tcp {
            let sequence = u32::from_be_bytes(out[start + 4..start + 8].try_into().expect("4 bytes"));
            let sequence = sequence.wrapping_add((index * mss) as u32);
            out[start + 4..start + 8].copy_from_slice(&sequence.to_be_bytes());
            if index + 1 < count {
                out[start + 13] &= !0x09;
            }
            if index > 0 {
                out[start + 13] &= !0x80;
            }
        } else {
            out[start + 4..start + 6].copy_from_slice(&((len - start) as u16).to_be_bytes());
        }
        let pseudo = fold(addresses + u64::from(protocol) + (len - start) as u64);
        out[start + field..start + field + 2].copy_from_slice(&pseudo.to_be_bytes());
        let check = !fold(sum(&out[start..]));
        out[start + field..start + field + 2].copy_from_slice(&check.to_be_bytes());
        out
    };
    ip[head..].chunks(mss).enumerate().map(one).collect()
}

/// Goal: the segments of the pieces are those of the uncut packet, byte for byte, checksums included.
/// Method: seeded packets of all four kinds, cut into random runs with gaps; a segmenter written from the
/// kernel's rules takes both apart.
#[test]
fn wan_pieces_are_the_segments_of_the_whole() {
    let mut rng = fastrand::Rng::with_seed(7);
    for round in 0..2_000 {
        let (v6, tcp) = (round % 2 == 0, round % 4 < 2);
        let mss = rng.usize(1..3_000);
        let len = rng.usize(1..(60 * mss).min(65_000));
        let made = super_packet(&mut rng, v6, tcp, mss, len);
        let shape = Shape::of(&made.bytes);
        let whole = segments(&made.bytes);
        assert_eq!(shape.segments, whole.len());
        let mut start = 0;
        while start < shape.segments {
            let end = rng.usize(start + 1..=shape.segments);
            let mut piece = vec![0xee; shape.cut_len(&(start..end))];
            shape.cut(&made.bytes, start..end, &mut piece);
            assert_eq!(
                segments(&piece),
                whole[start..end],
                "round {round}: {start}..{end} of {}",
                shape.segments
            );
            start = end + rng.usize(0..3);
        }
    }
}

/// Goal: the cost of a run is that of its frames one by one, and what fits is the longest run from the first
/// that does.
/// Method: seeded packets; frames counted from the segmenter's output.
#[test]
fn wan_segments_cost_their_frames() {
    let mut rng = fastrand::Rng::with_seed(8);
    for round in 0..500 {
        let mss = rng.usize(1..3_000);
        let len = rng.usize(1..(40 * mss).min(65_000));
        let made = super_packet(&mut rng, round % 2 == 0, true, mss, len);
        let shape = Shape::of(&made.bytes);
        let frames: Vec<u64> =
            segments(&made.bytes).iter().map(|segment| frame_cost(segment.len())).collect();
        let (start, end) = (rng.usize(0..frames.len()), frames.len());
        for end in [end, rng.usize(start..=end)] {
            assert_eq!(shape.cost(start..end), frames[start..end].iter().sum::<u64>());
        }
        let room = rng.u64(0..=shape.cost(0..end) + 100);
        let fits = (0..=end).rev().find(|end| shape.cost(0..*end) <= room);
        assert_eq!(Some(shape.fitting(room)), fits, "room {room} of {}", shape.cost(0..end));
    }
    assert_eq!(frame_cost(1500), 1538);
    assert_eq!(frame_cost(40), 84, "the shortest frame");
}

/// Goal: bytes that are no packet we know are one segment, and nothing panics.
/// Method: seeded noise, and real packets with one byte changed or cut short.
#[test]
fn wan_noise_is_one_segment() {
    let mut rng = fastrand::Rng::with_seed(9);
    for len in 0..200 {
        let noise: Vec<u8> = (0..len).map(|_| rng.u8(..)).collect();
        let shape = Shape::of(&noise);
        shape.cost(0..shape.segments);
    }
    for _ in 0..5_000 {
        let (v6, tcp) = (rng.bool(), rng.bool());
        let mut bytes = super_packet(&mut rng, v6, tcp, 100, 1_000).bytes;
        let at = rng.usize(0..100);
        bytes[at] = rng.u8(..);
        bytes.truncate(rng.usize(VNET_LEN..=bytes.len()));
        let shape = Shape::of(&bytes);
        let cut = rng.usize(0..shape.segments);
        let mut piece = vec![0; shape.cut_len(&(cut..shape.segments))];
        shape.cut(&bytes, cut..shape.segments, &mut piece);
    }
}
