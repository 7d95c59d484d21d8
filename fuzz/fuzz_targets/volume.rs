//! Messages of a volume (first byte: kind): no panic; what decodes survives its own round trip.
#![no_main]
use haul_core::volume::wire::{decode, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((kind, body)) = data.split_first() else { return };
    if let Ok(message) = decode(*kind, body) {
        let mut again = Vec::new();
        encode(&message, &mut again);
        assert_eq!(decode(message.kind(), &again), Ok(message));
    }
});
