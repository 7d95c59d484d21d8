//! What the two ends say over ssh before there is a session, behind whatever a shell says: no panic; what is
//! shown can be shown.
#![no_main]
use haul_launch::{read_any, split_command};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    read_any(data);
    assert!(haul::escape::line(data).chars().all(|c| !c.is_control()));
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = split_command(text);
    }
});
