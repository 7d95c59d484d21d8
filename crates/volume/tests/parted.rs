//! Servers that do not reach each other say so.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use haul_core::volume::ServerNo;
use haul_core::volume::wire::{Illness, VolumeId};
use haul_transport::tls::{Identity, Pin};
use haul_volume::dial::Keys;
use haul_volume::server::{Config, Server};
use haul_volume::visit::visit;

/// Nothing here takes so long on a machine that works; it ends what hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Goal: a server that has no connection to another one tells its visitors which, and tells it no more when
/// it has one.
/// Method: the other one listens where it should only later.
#[test]
fn who_is_not_reached_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let identity = Identity::generate().expect("randomness");
    let pin = Pin(identity.public());
    let keys = Keys { volume: VolumeId([9; 16]), identity, pin };
    let bound = || TcpListener::bind("127.0.0.1:0").expect("a port");
    let (first, later) = (bound(), bound());
    let at: Vec<_> = [&first, &later].map(|one| one.local_addr().expect("bound")).into();
    // Its port is nobody's until then.
    drop(later);
    let start = |number: u16, listener| {
        let config = Config {
            root: dir.path().join(format!("s{number}")),
            keys: keys.clone(),
            me: ServerNo(number),
            servers: at.clone(),
            stripe_size: 64 * 1024,
            threads: 2,
            notice: Arc::new(|text| eprintln!("{text}")),
        };
        Server::start(&config, listener).expect("it starts")
    };
    let _first = start(0, first);
    let is_parted = || {
        let met = visit(&keys, at[0], Some(ServerNo(0)), false, PATIENCE).expect("it answers");
        let parted = |what: &Illness| *what == Illness::Parted { server: ServerNo(1) };
        met.visited.ills.iter().any(|ill| parted(&ill.what))
    };
    let until = |wanted: bool| {
        let begun = Instant::now();
        while is_parted() != wanted {
            assert!(begun.elapsed() < PATIENCE, "it does not say so: {wanted}");
            thread::sleep(Duration::from_millis(50));
        }
    };
    until(true);
    let _later = start(1, TcpListener::bind(at[1]).expect("its port is free"));
    until(false);
}
