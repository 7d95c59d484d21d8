//! Headers of frames and subframes: no panic; what decodes encodes to the same bytes.
#![no_main]
use haul_core::wire::{FrameHeader, SubHeader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some(bytes) = data.first_chunk()
        && let Ok(header) = FrameHeader::decode(bytes)
    {
        assert_eq!(&header.encode(), bytes);
    }
    if let Some(bytes) = data.first_chunk()
        && let Ok(header) = SubHeader::decode(bytes)
    {
        assert_eq!(&header.encode(), bytes);
    }
});
