//! Messages of a job of many hosts (first byte: kind): no panic; what decodes survives its own round trip.
#![no_main]
use haul_core::wire::{decode_job, encode_job};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((kind, body)) = data.split_first() else { return };
    if let Ok(message) = decode_job(*kind, body) {
        let mut again = Vec::new();
        encode_job(&message, &mut again);
        assert_eq!(decode_job(message.body.kind(), &again), Ok(message));
    }
});
