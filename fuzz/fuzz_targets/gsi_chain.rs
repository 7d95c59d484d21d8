//! Chains of certificates and revocation lists: no panic, and who is known is known by the very bytes that
//! his authority and he signed.
//!
//! The bytes change those of a real chain: threes of an offset and what is there instead; first, how many
//! certificates are shown and whether the list is changed rather than the chain.
#![no_main]
use std::collections::HashMap;
use std::time::Duration;

use haul_gsi::{Authorities, Purpose};
use libfuzzer_sys::fuzz_target;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};

const AUTHORITY: &[u8] = include_bytes!("../../crates/gsi/tests/certificates/ca.pem");
const LIST: &[u8] = include_bytes!("../../crates/gsi/tests/certificates/crl.pem");
const ALICE: &[u8] = include_bytes!("../../crates/gsi/tests/certificates/alice.pem");
const PROXY: &[u8] = include_bytes!("../../crates/gsi/tests/certificates/proxy.pem");
const POLICY: &[u8] =
    b"access_id_CA X509 '/CN=Test authority of haul-gsi'\npos_rights globus CA:sign\ncond_subjects globus '\"/O=Grid/*\"'\n";

fuzz_target!(|data: &[u8]| {
    let Some((how, changes)) = data.split_first() else { return };
    let chain: Vec<CertificateDer<'static>> = [PROXY, ALICE, AUTHORITY]
        .into_iter()
        .map(|pem| CertificateDer::from_pem_slice(pem).expect("a certificate"))
        .collect();
    let (of_list, of_raw) = (how & 1 != 0, how & 2 != 0);
    let mut list = LIST.to_vec();
    let mut shown = chain.clone();
    if of_raw {
        shown[0] = changes.to_vec().into();
    } else {
        for change in changes.chunks_exact(3) {
            let at = usize::from(u16::from_be_bytes([change[0] & 0x0f, change[1]]));
            if of_list {
                let len = list.len();
                list[at % len] = change[2];
            } else {
                let which = usize::from(change[0] >> 4) % 3;
                let mut der = shown[which].to_vec();
                let len = der.len();
                der[at % len] = change[2];
                shown[which] = der.into();
            }
        }
    }
    shown.truncate(1 + usize::from(how >> 2) % 3);
    let files = [("f02a6ffa.0", AUTHORITY), ("f02a6ffa.signing_policy", POLICY), ("f02a6ffa.r0", &list[..])];
    let files: HashMap<String, Vec<u8>> = files.map(|(name, bytes)| (name.into(), bytes.to_vec())).into();
    let now = UnixTime::since_unix_epoch(Duration::from_secs(2_000_000_000));
    let known = Authorities::new(files).verify(&shown, &Purpose::Somebody, now);
    if let Ok(known) = known {
        assert_eq!(known.identity.text(), "/O=Grid/CN=alice");
        assert!(shown.len() > 1 && shown[..2] == chain[..2], "something else was taken");
    }
});
