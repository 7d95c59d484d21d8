//! How fast a volume on this host takes writes of each size, on either path: `cargo run --release --example
//! paths`.
//!
//! Servers are threads of this process, their directories below the one that is named, and clients come over
//! loopback and TLS. Written as in the paper on the write threshold: consecutive writes, then one sync.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_core::volume::wire::VolumeId;
use haul_core::volume::{ClientNo, FileNo, ServerNo};
use haul_transport::tls::{Identity, Pin};
use haul_volume::client::{self, Client};
use haul_volume::dial::Keys;
use haul_volume::server::{self, Server};

const STRIPE: u64 = 1 << 20;

fn main() {
    let mut words = std::env::args().skip(1);
    let dir = words.next().expect("paths DIR [SERVERS [WRITES]]");
    let servers: usize = words.next().map_or(4, |word| word.parse().expect("a number"));
    let writes: u64 = words.next().map_or(1000, |word| word.parse().expect("a number"));
    let identity = Identity::generate().expect("randomness");
    let keys = Keys { volume: VolumeId([1; 16]), pin: Pin(identity.public()), identity };
    let bind = |_| TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let listeners: Vec<TcpListener> = (0..servers).map(bind).collect();
    let at: Vec<_> = listeners.iter().map(|one| one.local_addr().expect("bound")).collect();
    let _servers: Vec<Server> = listeners
        .into_iter()
        .enumerate()
        .map(|(number, listener)| {
            let config = server::Config {
                root: format!("{dir}/s{number}").into(),
                keys: keys.clone(),
                me: ServerNo(number as u16),
                servers: at.clone(),
                stripe_size: STRIPE,
                threads: 4,
                notice: Arc::new(|text| eprintln!("{text}")),
            };
            Server::start(&config, listener).expect("it starts")
        })
        .collect();
    let client = |number, write_threshold| {
        let config = client::Config {
            keys: keys.clone(),
            number: ClientNo(number),
            servers: at.clone(),
            stripe_size: STRIPE,
            write_threshold,
            patience: Duration::from_secs(60),
        };
        Client::start(config).expect("threads")
    };
    let (direct, gather, adaptive) = (client(1, Some(0)), client(2, Some(u64::MAX)), client(3, None));
    println!(
        "{:>8} {:>6} {:>12} {:>12} {:>12}",
        "bytes", "writes", "direct MB/s", "gather MB/s", "itself MB/s"
    );
    let mut file = 0;
    for shift in (4..=22).step_by(2) {
        let len = 1_u64 << shift;
        let count = writes.min((256 << 20) / len);
        let rate = |client: &Client, file: u64| {
            let begun = Instant::now();
            let mut waiting = std::collections::VecDeque::new();
            for at in 0..count {
                if waiting.len() == 16 {
                    let first: client::Waiting<()> = waiting.pop_front().expect("sixteen");
                    first.wait().expect("written");
                }
                waiting.push_back(client.write(FileNo(file), at * len, vec![7; len as usize]));
            }
            waiting.into_iter().for_each(|one| one.wait().expect("written"));
            client.sync(FileNo(file)).wait().expect("synced");
            (count * len) as f64 / begun.elapsed().as_secs_f64() / 1e6
        };
        file += 3;
        let (direct, gather) = (rate(&direct, file), rate(&gather, file + 1));
        let itself = rate(&adaptive, file + 2);
        println!("{len:>8} {count:>6} {direct:>12.2} {gather:>12.2} {itself:>12.2}");
    }
    let (threshold, counts) = adaptive.threshold().expect("it is there");
    println!("the threshold that set itself is {threshold} B; {counts:?}");
}
