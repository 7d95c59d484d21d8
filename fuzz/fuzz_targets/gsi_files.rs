//! What a host keeps about a grid: policies, maps, names. No panic; nobody is let or mapped by bytes that
//! name nobody.
#![no_main]
use haul_gsi::{Dn, Gridmap, Policy};
use libfuzzer_sys::fuzz_target;

/// `/CN=x`.
const SOMEBODY: &[u8] = b"\x30\x0c\x31\x0a\x30\x08\x06\x03\x55\x04\x03\x0c\x01x";

fuzz_target!(|data: &[u8]| {
    let somebody = Dn::of_der(SOMEBODY).expect("a name");
    if let Ok(policy) = Policy::parse(data) {
        let lets = policy.lets(&somebody, &somebody);
        assert!(!lets || data.windows(13).any(|word| word == b"cond_subjects"));
    }
    if let Ok(map) = Gridmap::parse(data) {
        assert!(map.user(&somebody, None).is_none() || data.windows(2).any(|word| word == b"=x" || word == b"=\\"));
    }
    if let Ok(name) = Dn::of_der(data) {
        assert_eq!(name.hash().len(), 8);
        assert!(name.plain().is_none_or(|text| name.is_called(text)));
        assert!(name != somebody || data == SOMEBODY);
    }
});
