//! Control messages (first byte: kind): no panic; what decodes survives its own round trip.
#![no_main]
use haul_core::wire::{Decoded, decode_message, encode_message};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((kind, body)) = data.split_first() else { return };
    if let Ok(Decoded::Message(message)) = decode_message(*kind, body) {
        let mut again = Vec::new();
        let kind = encode_message(&message, &mut again);
        assert_eq!(decode_message(kind, &again), Ok(Decoded::Message(message)));
    }
});
