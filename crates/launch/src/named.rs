//! Where the end that listens does so, and which addresses it names.

use std::net::IpAddr;

use haul_transport::routes::Address;

use super::listener::At;
use super::message::{ADDRESSES_MAX, Listening, Named};

/// Where to listen: at the user's addresses; else wherever this host may be reached, unless it was reached
/// from itself.
pub(super) fn place(vias: &[IpAddr], server: Option<IpAddr>) -> Option<At> {
    match server {
        _ if !vias.is_empty() => Some(At::Only(vias.to_vec())),
        Some(server) if server.is_loopback() => Some(At::Only(vec![server])),
        server => server.map(|_| At::Everywhere),
    }
}

/// The addresses to try: the user's, each for a path of its own; else that which ssh reached, and the others
/// of this host, `own`, one of each device first.
pub(super) fn named(
    vias: &[IpAddr],
    server: IpAddr,
    own: &[Address],
    port: u16,
    failed: Vec<String>,
) -> Listening {
    let own: &[Address] = if server.is_loopback() { &[] } else { own };
    let device = own.iter().find(|own| own.ip == server).map_or(0, |own| own.device);
    let mut all: Vec<Named> = match vias {
        [] => vec![Named { address: server, device }],
        vias => (1..).zip(vias).map(|(device, &address)| Named { address, device }).collect(),
    };
    if vias.is_empty() {
        let mut later = Vec::new();
        for own in own.iter().filter(|own| own.ip != server) {
            let one = Named { address: own.ip, device: own.device };
            match all.iter().any(|named| named.device == own.device) {
                true => later.push(one),
                false => all.push(one),
            }
        }
        all.extend(later);
    }
    all.truncate(ADDRESSES_MAX);
    let first = all.remove(0);
    Listening { address: first.address, port, device: first.device, also: all, failed }
}
