//! Names as they lie in a directory: what is taken for haul's own was given by haul.
#![no_main]
use haul_storage::sink::names::{JobKey, tag_bits, tag_of};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some(tag) = tag_of(data) {
        assert_eq!(tag_bits(tag), tag);
    }
    if let Some(key) = JobKey::parse(data) {
        assert_eq!(key.as_str().as_bytes(), data);
    }
});
