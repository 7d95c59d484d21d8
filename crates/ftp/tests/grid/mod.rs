//! Who is who in the tests of the grid: an authority, a host that is its own user, somebody else.

use std::collections::HashMap;
use std::time::Duration;

use haul_base::stop::Stop;
use haul_ftp::{Credential, DataSecurity, Error, Protocol, Security, Server, Session, Settings};
use haul_gsi::Authorities;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

pub const AUTHORITY: &[u8] = include_bytes!("../certificates/ca.pem");
pub const CERTIFICATE: &[u8] = include_bytes!("../certificates/server.pem");
const KEY: &[u8] = include_bytes!("../certificates/server.key");
const AUTHORITY_OF_ALICE: &[u8] = include_bytes!("../../../gsi/tests/certificates/ca.pem");
const ALICE: &[u8] = include_bytes!("../../../gsi/tests/certificates/alice.pem");
const KEY_OF_ALICE: &[u8] = include_bytes!("../../../gsi/tests/certificates/alice.key");

/// How long a server may be silent.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a host trusts that has only this authority: all that it signs.
pub fn authorities(pem: &[u8]) -> Authorities {
    let hash = if pem == AUTHORITY { "e4212064" } else { "4b80c212" };
    let policy = "access_id_ANYBODY\npos_rights globus CA:sign\ncond_subjects globus '\"*\"'\n";
    let of = |hash: &str, pem: &[u8]| {
        [(format!("{hash}.0"), pem.to_vec()), (format!("{hash}.signing_policy"), policy.as_bytes().to_vec())]
    };
    let files = [of(hash, pem), of("f02a6ffa", AUTHORITY_OF_ALICE)].concat();
    Authorities::new(files.into_iter().collect::<HashMap<_, _>>())
}

/// Somebody whom the client knows, too.
pub fn somebody_else() -> haul_gsi::Credential {
    let chain = vec![CertificateDer::from_pem_slice(ALICE).expect("a certificate")];
    let key = PrivateKeyDer::from_pem_slice(KEY_OF_ALICE).expect("a key");
    haul_gsi::Credential::of(chain, key, "here".into()).expect("a credential")
}

fn key() -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_slice(KEY).expect("a key")
}

/// Of the host and of the user, who are one here.
pub fn credential() -> haul_gsi::Credential {
    let chain = vec![CertificateDer::from_pem_slice(CERTIFICATE).expect("a certificate")];
    haul_gsi::Credential::of(chain, key(), "here".into()).expect("a credential")
}

/// Logs in at a server of the test's, whose authority is this one.
pub fn open(port: u16, authority: &[u8], who: &str, data: DataSecurity) -> Result<Session, Error> {
    let credential = Credential::of(authorities(authority), credential()).with_data(data);
    let server = Server::parse(Protocol::Gsiftp, &format!("{who}127.0.0.1:{port}")).expect("a server");
    let security = Security::Gsi(credential);
    Session::open(&server, &Settings { patience: PATIENCE, at: None, security, stop: Stop::never() })
}
