//! Words of a command that name endpoints: no panic; what is shown of one means the same, and no error steers
//! a terminal.
#![no_main]
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use haul::endpoint::Endpoint;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let parse = |word: &[u8]| Endpoint::parse(OsStr::from_bytes(word), |_| false);
    match parse(data) {
        Ok(endpoint) => assert_eq!(parse(&endpoint.shown()), Ok(endpoint)),
        Err(error) => assert!(!error.to_string().contains(char::is_control)),
    }
});
