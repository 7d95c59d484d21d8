//! A line of a listing of an FTP server: no panic, no name that is a path or that a terminal obeys, and facts
//! that survive their own round trip.
#![no_main]
use haul_gridftp::list::{parse_list, parse_nlst};
use haul_gridftp::listing::{parse_mlsd, parse_mlst};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|line: &[u8]| {
    let listed = parse_list(line).ok().flatten().map(|entry| entry.name);
    let child = parse_mlsd(line).ok().flatten();
    let name = child.as_ref().map(|(_, name)| *name);
    for name in [listed, name, parse_nlst(line, b"/d").ok()].into_iter().flatten() {
        assert!(!name.iter().any(|b| *b == b'/' || b.is_ascii_control()));
        assert!(!matches!(name, b"" | b"." | b".."));
    }
    let _ = parse_mlst(line);
    if let Some((facts, name)) = child {
        let mut again = Vec::new();
        // A value may hold what is not to be written, a CR in an owner's name say.
        if facts.encode(name, &mut again).is_ok() {
            assert_eq!(parse_mlsd(&again), Ok(Some((facts, name))));
        }
    }
});
