//! Lines of a client as a server reads them: no panic, and what is refused is refused in one line with a code
//! of a refusal.
#![no_main]
use haul_gridftp::line::LineReader;
use haul_gridftp::reply::Reply;
use haul_gridftp::request::Request;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut reader = LineReader::new("command", 1 << 16);
    let mut rest = data;
    while !rest.is_empty() {
        let Ok((taken, line)) = reader.feed(rest) else { return };
        assert!(taken > 0);
        rest = &rest[taken..];
        let Some(line) = line else { return };
        match Request::parse(&line) {
            Ok(Request::Retr { path, .. } | Request::Stor { path, .. } | Request::Cksm { path, .. }) => {
                assert!(!path.is_empty() && !path.iter().any(|b| matches!(b, b'\r' | b'\n' | 0)));
            }
            Ok(_) => {}
            Err(refused) => {
                assert!((500..600).contains(&refused.code));
                Reply::new(refused.code, [refused.words.into_bytes()]).expect("one line of plain text");
            }
        }
    }
});
