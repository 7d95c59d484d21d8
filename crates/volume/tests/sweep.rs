//! Files without a name: their bytes go from all servers, and not before nobody has them open.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_core::entry::{Meta, Name};
use haul_core::volume::catalog::{Facts, Place, ROOT};
use haul_core::volume::wire::VolumeId;
use haul_core::volume::{FileNo, ServerNo};
use haul_transport::tls::{Identity, Pin};
use haul_volume::catalog::client::Client as Catalog;
use haul_volume::catalog::server::{Options, Server as CatalogServer};
use haul_volume::catalog::store::Store;
use haul_volume::client::{self, Client};
use haul_volume::dial::Keys;
use haul_volume::server::{self, Server};
use haul_volume::sweep::{self, Sweeper};

const SERVERS: u16 = 3;
const STRIPE: u64 = 64 * 1024;
/// Nothing here takes so long on a machine that works; it ends what hangs.
const PATIENCE: Duration = Duration::from_secs(120);

fn listeners(count: u16) -> (Vec<TcpListener>, Vec<SocketAddr>) {
    let bound: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
    let at = bound.iter().map(|one| one.local_addr().expect("bound")).collect();
    (bound, at)
}

/// Bytes of all files below a directory whose names begin with this file's number.
fn held(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    let lens = entries.map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => held(&entry.path()),
        _ => entry.metadata().map_or(0, |meta| meta.len()),
    });
    lens.sum()
}

/// Goal: the bytes of a file stay while somebody has it open, also when its name is gone; then they go from
/// every server's directory, and the catalog knows it.
#[test]
fn bytes_go_with_the_last_who_has_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let identity = Identity::generate().expect("randomness");
    let pin = Pin(identity.public());
    let keys = Keys { volume: VolumeId([9; 16]), identity, pin };
    let (bound, at) = listeners(SERVERS);
    let notice: Arc<dyn Fn(&str) + Send + Sync> = Arc::new(|text| eprintln!("{text}"));
    let root = |number: usize| dir.path().join(format!("s{number}"));
    let servers: Vec<Server> = bound
        .into_iter()
        .enumerate()
        .map(|(number, listener)| {
            let config = server::Config {
                root: root(number),
                keys: keys.clone(),
                me: ServerNo(number as u16),
                servers: at.clone(),
                stripe_size: STRIPE,
                threads: 2,
                notice: notice.clone(),
            };
            Server::start(&config, listener).expect("it starts")
        })
        .collect();
    let facts = Facts {
        stripe: STRIPE as u32,
        placement: "round-robin".into(),
        servers: at.iter().map(|at| at.to_string().into()).collect(),
    };
    let store = Store::create(&dir.path().join("c"), keys.volume, &facts).expect("made");
    let (mut bound, catalog_at) = listeners(1);
    let options = Options { grace: Duration::ZERO, ..Options::default() };
    let listener = bound.pop().expect("one");
    let catalog_server = CatalogServer::start(store, keys.clone(), listener, options).expect("started");

    let names = Catalog::connect(keys.clone(), catalog_at[0], PATIENCE).expect("connected");
    let config = client::Config {
        keys: keys.clone(),
        number: names.number(),
        servers: at.clone(),
        stripe_size: STRIPE,
        write_threshold: Some(8 * 1024),
        patience: PATIENCE,
    };
    let client = Client::start(config).expect("threads");
    let place = |name: &str| Place { parent: ROOT, name: Name::new(name.as_bytes()).expect("legal") };
    // Files of each gatherer, written on both paths.
    let files: Vec<_> = (0..6)
        .map(|number| {
            let at = place(&format!("f{number}"));
            let (entry, _) = names.create(at, Meta::default(), true, number == 0).expect("made");
            let file = FileNo(entry.id.0);
            client.write(file, 0, vec![number; 5 * STRIPE as usize]).wait().expect("written");
            client.write(file, 100, vec![number; 1000]).wait().expect("written");
            client.sync(file).wait().expect("synced");
            entry.id
        })
        .collect();
    let stripes = |number: usize| held(&root(number).join("files"));
    let full: u64 = (0..3).map(stripes).sum();
    assert!(full >= 6 * 5 * STRIPE, "{full} bytes lie below {}", root(0).display());
    (0..6).for_each(|number| names.unlink(place(&format!("f{number}"))).expect("unlinked"));

    let sweepers: Vec<Sweeper> = (0..SERVERS)
        .map(|me| {
            Sweeper::start(sweep::Config {
                keys: keys.clone(),
                me: ServerNo(me),
                catalog: catalog_at[0],
                servers: at.clone(),
                stripe_size: STRIPE,
                notice: notice.clone(),
            })
            .expect("a thread")
        })
        .collect();
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < PATIENCE, "{what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let left = || -> u64 { (0..3).map(stripes).sum() };
    until("five of six files go", &|| left() <= full / 6 + 1);
    // The one that is open is whole.
    let file = FileNo(files[0].0);
    let read = client.read(file, 0, 5 * STRIPE).wait().expect("read");
    assert_eq!(read.bytes, vec![0; 5 * STRIPE as usize]);
    assert_eq!(read.end, 5 * STRIPE);
    names.close(files[0]).expect("closed");
    until("the last one goes, too", &|| left() == 0);
    let known = || (0..SERVERS).all(|me| names.to_remove(ServerNo(me), FileNo(0)).expect("told").is_empty());
    until("the catalog knows it", &known);
    assert_eq!(names.stat(files[0]).expect_err("it is gone").errno, 2);
    drop((sweepers, client, names, catalog_server, servers));
}
