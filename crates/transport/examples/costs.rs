//! What must be paid for each byte of a transfer at one end, at the least: digests and the cipher, one
//! thread, over bytes that lie in the processor's cache and over bytes that come from memory.
//!
//! `cargo run --release -p haul-transport --example costs -- [GIGABYTES]`
//!
//! Each line: what, CPU seconds per GB in the cache, and from memory. `scripts/bench-protect.sh` adds them to
//! TCP's.

use std::hint::black_box;

use aws_lc_rs::aead::{AES_128_GCM, NONCE_LEN};
use haul_base::digest;
use haul_core::digest::DigestKind;
use haul_transport::tls::open::Opener;
use haul_transport::tls::record::{Key, Kind, PLAIN_LEN_MAX, RECORD_LEN_MAX};
use haul_transport::tls::seal::Sealer;

/// What fits into a core's own cache.
const NEAR: usize = 256 << 10;
/// What fits into no cache that one core has for itself.
const FAR: usize = 256 << 20;
/// What is hashed at a time.
const PIECE: usize = 256 << 10;

fn main() {
    let gigabytes: f64 = std::env::args().nth(1).map_or(1.0, |arg| arg.parse().expect("a number"));
    let bytes = (gigabytes * 1e9) as usize;
    let data: Vec<u8> = (0..FAR).map(|i| (i ^ (i >> 8)) as u8).collect();
    for (name, kind) in [("blake3", DigestKind::Blake3), ("xxh3", DigestKind::Xxh3)] {
        let hash = |piece: &[u8]| drop(black_box(digest::chaining_values(kind, PIECE as u64, piece, false)));
        report(name, bytes, |within| over(&data[..within], PIECE, bytes, hash));
    }
    report("seal", bytes, |within| {
        let (mut sealer, mut out) = (Sealer::new(key()), vec![0; RECORD_LEN_MAX]);
        over(&data[..within], PLAIN_LEN_MAX, bytes, |plain| {
            black_box(sealer.seal(Kind::Data, plain, &mut out).expect("a record"));
        })
    });
    report("open", bytes, |within| {
        // The records that a key seals first, opened by keys that begin there.
        let mut sealer = Sealer::new(key());
        let records: Vec<Vec<u8>> = data[..within]
            .chunks_exact(PLAIN_LEN_MAX)
            .map(|plain| {
                let mut record = vec![0; RECORD_LEN_MAX];
                let len = sealer.seal(Kind::Data, plain, &mut record).expect("a record");
                record.truncate(len);
                record
            })
            .collect();
        let mut out = vec![0; Opener::room(RECORD_LEN_MAX)];
        let (mut left, start) = (bytes / PLAIN_LEN_MAX, cpu_seconds());
        while left > 0 {
            let mut opener = Opener::new(key());
            for record in records.iter().take(left) {
                black_box(opener.open_into(record, &mut out).expect("the next record"));
            }
            left -= left.min(records.len());
        }
        cpu_seconds() - start
    });
}

/// A line for `what`; `seconds` tells those for `bytes` bytes that come from as many bytes of data as it is
/// given.
fn report(what: &str, bytes: usize, seconds: impl Fn(usize) -> f64) {
    let per_gb = |within| seconds(within) / (bytes as f64 / 1e9);
    println!("{what} {:.4} {:.4}", per_gb(NEAR), per_gb(FAR));
}

/// The same key each time: nothing secret is sealed here.
fn key() -> Key {
    Key::new(&AES_128_GCM, &[7; 16], [9; NONCE_LEN], 0).expect("a key of 16 bytes")
}

/// CPU seconds of `work` over about `bytes` bytes, in pieces of `piece` bytes of `data`, round and round.
fn over(data: &[u8], piece: usize, bytes: usize, mut work: impl FnMut(&[u8])) -> f64 {
    let start = cpu_seconds();
    for piece in data.chunks_exact(piece).cycle().take(bytes / piece) {
        work(piece);
    }
    cpu_seconds() - start
}

fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
