//! Tokens of contexts, from either end, and requests for proxies: no panic, no context by bytes that nobody
//! with a key said, no proxy for a request that was changed.
#![no_main]
use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

use haul_gsi::{Acceptor, Authorities, Credential, Delegates, Initiator, Rights, Step};
use libfuzzer_sys::fuzz_target;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};

const AUTHORITY: &[u8] = include_bytes!("../../crates/gsi/tests/certificates/ca.pem");
const ALICE: &[u8] = include_bytes!("../../crates/gsi/tests/certificates/alice.pem");
const KEY: &[u8] = include_bytes!("../../crates/gsi/tests/certificates/alice.key");
const REQUEST: &[u8] = include_bytes!("../../crates/gsi/tests/certificates/request.der");

fn ends() -> &'static (Credential, Authorities) {
    static ENDS: OnceLock<(Credential, Authorities)> = OnceLock::new();
    ENDS.get_or_init(|| {
        let chain = vec![CertificateDer::from_pem_slice(ALICE).expect("a certificate")];
        let key = PrivateKeyDer::from_pem_slice(KEY).expect("a key");
        let files = HashMap::from([("f02a6ffa.0".to_owned(), AUTHORITY.to_vec())]);
        (Credential::of(chain, key, "here".into()).expect("a credential"), Authorities::new(files))
    })
}

fuzz_target!(|data: &[u8]| {
    let Some((how, bytes)) = data.split_first() else { return };
    let (mine, authorities) = ends();
    // A request, as it is or changed.
    let mut request = REQUEST.to_vec();
    for change in bytes.chunks_exact(2) {
        let len = request.len();
        request[usize::from(change[0]) % len] = change[1];
    }
    let lasts = (Duration::from_secs(60), UnixTime::now());
    for request in [&request[..], bytes] {
        let answer = haul_gsi::proxy::answer(request, mine, Rights::Limited, lasts);
        assert!(answer.is_err() || request == REQUEST);
    }
    // Tokens, cut where the first byte says.
    let (first, second) = bytes.split_at(usize::from(*how).min(bytes.len()));
    let mut acceptor = Acceptor::new(mine, authorities).expect("an acceptor");
    for token in [first, second] {
        match acceptor.step(token) {
            Ok(Step::Stands(_)) => panic!("it stands"),
            Ok(Step::Goes(_)) => {}
            Err(_) => break,
        }
    }
    let _ = acceptor.last_words();
    let delegates = Delegates::Proxy(Rights::Limited, Duration::from_secs(60));
    let mut initiator = Initiator::new(mine, authorities, "127.0.0.1", delegates).expect("an initiator");
    for token in [&b""[..], first, second] {
        match initiator.step(token) {
            Ok(Step::Stands(_)) => panic!("it stands"),
            Ok(Step::Goes(_)) => {}
            Err(_) => break,
        }
    }
});
