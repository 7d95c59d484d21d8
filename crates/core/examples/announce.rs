//! What an announcement costs: bytes, and the time of encoding and decoding one of 1,000 files.
//!
//! `cargo run --release -p haul-core --example announce`

use std::time::Instant;

use haul_core::entry::{EntryKind, Extras, Fingerprint, Meta, Name, Timestamp, Version};
use haul_core::ids::{DirId, FileId, Generation};
use haul_core::wire::{Announced, Message, decode_message, encode_message};

const FILES: u64 = 1000;
const ROUNDS: u32 = 2000;

#[expect(clippy::disallowed_methods, reason = "it measures, and decides nothing")]
fn main() {
    let entries = (1..=FILES).map(|number| {
        let mtime = Timestamp { secs: 1_700_000_000 + number as i64, nanos: 123_456_789 };
        // As long as that of a POSIX file system.
        let version = Version::new(&[number.to_le_bytes().as_slice(), &[7; 12]].concat()).expect("short");
        Announced {
            id: FileId::new(0, number),
            generation: Generation(0),
            parent: DirId(1),
            name: Name::new(format!("sample-{number:06}.dat").as_bytes()).expect("legal"),
            meta: Meta { mode: 0o644, uid: 1000, gid: 1000, mtime },
            kind: EntryKind::File {
                fingerprint: Fingerprint { size: 123_456, mtime, version },
                object_size: 4 << 20,
                sparse: false,
                striped: false,
            },
            extras: Extras::default(),
        }
    });
    let message = Message::Announce(entries.collect());
    let mut best = [f64::INFINITY; 2];
    let mut len = 0;
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let mut body = Vec::new();
        let kind = encode_message(&message, &mut body);
        let encoded = Instant::now();
        let decoded = decode_message(kind, &body);
        let times = [encoded - began, encoded.elapsed()];
        assert!(decoded.is_ok());
        len = body.len();
        best = std::array::from_fn(|i| best[i].min(times[i].as_secs_f64()));
    }
    let [encode, decode] = best.map(|best| best * 1e9 / FILES as f64);
    println!(
        "{len} bytes for {FILES} files; best of {ROUNDS}: {encode:.0} ns to encode, {decode:.0} ns to decode an entry"
    );
}
