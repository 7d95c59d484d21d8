//! Packets as a TUN device hands them over: what they weigh on a wire, and how a super-packet is cut.
//!
//! In: a virtio-net header and an IP packet, up to 64 KiB of TCP or UDP payload that the kernel has left for
//! the device to segment. Out: the number of segments, their cost as Ethernet frames, and packets that hold a
//! run of these segments only, with lengths, sequence numbers, flags and checksums as if the kernel had cut
//! there.
//! Invariant: segments of all pieces are, byte for byte, those that the uncut packet would have become.
//! Left out: packets with a tunnel inside; they are offered to us uncut, and count as one segment if they are
//! not TCP or UDP.

use std::ops::Range;

/// Length of `struct virtio_net_hdr`, which comes before each packet on a device with `IFF_VNET_HDR`.
pub const VNET_LEN: usize = 10;
/// Upper bound of what one read yields: header, IPv6 header and the longest payload.
pub const PACKET_LEN_MAX: usize = VNET_LEN + 40 + 65_535;
/// Ethernet header, check sequence, preamble and gap: what a frame costs beyond the IP packet.
pub const FRAME_OVERHEAD: u64 = 14 + 4 + 8 + 12;
/// The shortest frame, with preamble and gap.
const FRAME_MIN: u64 = 64 + 8 + 12;

const NEEDS_CSUM: u8 = 1;
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;
const GSO_UDP: u8 = 5;
/// A flag on the type: the packet carries congestion marks that only its first segment may keep.
const GSO_ECN: u8 = 0x80;
const TCP: u8 = 6;
const UDP: u8 = 17;
const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// What a packet becomes on a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Length of the IP packet as read.
    ip_len: usize,
    /// IP and transport header, repeated in each segment; zero if there is only one.
    header_len: usize,
    /// Payload of each segment but the last.
    segment_len: usize,
    pub segments: usize,
    /// TCP, else UDP.
    tcp: bool,
    /// Where the transport header starts in the IP packet.
    transport: usize,
}

impl Shape {
    /// Looks at a packet with its virtio header.
    ///
    /// Edge: what is not understood counts as one segment, and is then passed on or dropped whole.
    pub fn of(packet: &[u8]) -> Shape {
        let ip_len = packet.len().saturating_sub(VNET_LEN);
        let whole =
            Shape { ip_len, header_len: 0, segment_len: ip_len, segments: 1, tcp: false, transport: 0 };
        if packet.len() < VNET_LEN || packet[0] & NEEDS_CSUM == 0 {
            return whole;
        }
        let tcp = match packet[1] & !GSO_ECN {
            GSO_TCP4 | GSO_TCP6 => true,
            GSO_UDP => false,
            _ => return whole,
        };
        let segment_len = usize::from(u16::from_ne_bytes([packet[4], packet[5]]));
        let transport = usize::from(u16::from_ne_bytes([packet[6], packet[7]]));
        let ip = &packet[VNET_LEN..];
        let network_len = match ip.first().map(|byte| byte >> 4) {
            Some(4) => 20,
            Some(6) => 40,
            _ => return whole,
        };
        if segment_len == 0 || transport < network_len || ip_len < transport + if tcp { 20 } else { 8 } {
            return whole;
        }
        let header_len = transport + if tcp { usize::from(ip[transport + 12] >> 4) * 4 } else { 8 };
        if header_len >= ip_len {
            return whole;
        }
        let segments = (ip_len - header_len).div_ceil(segment_len);
        Shape { ip_len, header_len, segment_len, segments, tcp, transport }
    }

    /// What the segments cost on the wire. Units: bytes, Ethernet framing included.
    pub fn cost(&self, segments: Range<usize>) -> u64 {
        let count = segments.len() as u64;
        if count == 0 {
            return 0;
        }
        if segments.end < self.segments {
            return count * frame_cost(self.header_len + self.segment_len);
        }
        let last = self.ip_len - (self.segments - 1) * self.segment_len;
        (count - 1) * frame_cost(self.header_len + self.segment_len) + frame_cost(last)
    }

    /// How many segments, from the first, cost no more than `room` together.
    pub fn fitting(&self, room: u64) -> usize {
        if self.cost(0..self.segments) <= room {
            return self.segments;
        }
        let each = frame_cost(self.header_len + self.segment_len);
        usize::try_from(room / each).map_or(self.segments - 1, |fit| fit.min(self.segments - 1))
    }

    /// Length of the packet, virtio header included, that [`Self::cut`] makes of these segments.
    pub fn cut_len(&self, segments: &Range<usize>) -> usize {
        let payload = self.payload(segments);
        VNET_LEN + self.header_len + payload.len()
    }

    /// Writes a packet with these segments of `packet` into `into`.
    ///
    /// # Panics
    /// If `packet` is not the one that this shape was taken of or shorter than its virtio header, or `into`
    /// not of [`Self::cut_len`].
    pub fn cut(&self, packet: &[u8], segments: Range<usize>, into: &mut [u8]) {
        assert!(!segments.is_empty() && segments.end <= self.segments, "segments of this packet");
        let payload = self.payload(&segments);
        let head = VNET_LEN + self.header_len;
        into[..head].copy_from_slice(&packet[..head]);
        into[head..].copy_from_slice(&packet[head..][payload.clone()]);
        if self.header_len == 0 {
            return;
        }
        if segments.len() == 1 {
            into[1] = 0;
            into[4..6].fill(0);
        }
        let ip = &mut into[VNET_LEN..];
        if ip[0] >> 4 == 4 {
            let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(segments.start as u16);
            let len = u16::try_from(ip.len()).expect("an IPv4 packet is under 64 KiB");
            ip[2..4].copy_from_slice(&len.to_be_bytes());
            ip[4..6].copy_from_slice(&id.to_be_bytes());
            ip[10..12].fill(0);
            let header_len = usize::from(ip[0] & 15) * 4;
            let check = !fold(sum(&ip[..header_len]));
            ip[10..12].copy_from_slice(&check.to_be_bytes());
        } else {
            let len = u16::try_from(ip.len() - 40).expect("a piece is no longer than the packet");
            ip[4..6].copy_from_slice(&len.to_be_bytes());
        }
        // The kernel leaves the sum of the pseudo-header in the checksum field; whoever segments adds the
        // rest.
        let addresses = if ip[0] >> 4 == 4 { sum(&ip[12..20]) } else { sum(&ip[8..40]) };
        let len = ip.len() - self.transport;
        let pseudo = |protocol: u8| fold(addresses + u64::from(protocol) + len as u64).to_be_bytes();
        let transport = &mut ip[self.transport..];
        if self.tcp {
            let sequence = u32::from_be_bytes([transport[4], transport[5], transport[6], transport[7]]);
            let sequence = sequence.wrapping_add(payload.start as u32);
            transport[4..8].copy_from_slice(&sequence.to_be_bytes());
            if segments.end != self.segments {
                transport[13] &= !FIN_PSH;
            }
            if segments.start != 0 {
                transport[13] &= !CWR;
            }
            transport[16..18].copy_from_slice(&pseudo(TCP));
        } else {
            transport[4..6].copy_from_slice(&(len as u16).to_be_bytes());
            transport[6..8].copy_from_slice(&pseudo(UDP));
        }
    }

    fn payload(&self, segments: &Range<usize>) -> Range<usize> {
        let end = (segments.end * self.segment_len).min(self.ip_len - self.header_len);
        segments.start * self.segment_len..end
    }
}

/// What an IP packet of this length costs as a frame.
pub fn frame_cost(ip_len: usize) -> u64 {
    (ip_len as u64 + FRAME_OVERHEAD).max(FRAME_MIN)
}

/// The Internet's checksum before folding and inverting.
fn sum(bytes: &[u8]) -> u64 {
    let pairs = bytes.chunks(2);
    pairs.map(|pair| u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0))).sum()
}

fn fold(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
#[path = "packet_tests.rs"]
pub mod tests;
