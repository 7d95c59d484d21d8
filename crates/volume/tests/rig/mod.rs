//! A volume on this host, of real servers and a real catalog on loopback, and what tests of its files share.
//!
//! Each test is a program of its own and uses some of it.
#![allow(dead_code)]

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_core::volume::ServerNo;
use haul_core::volume::catalog::Facts;
use haul_core::volume::wire::VolumeId;
use haul_volume::access::{Access, ServerAt};
use haul_volume::api::{File, Placement, Settings, Volume};
use haul_volume::catalog::server::{Options, Server as CatalogServer};
use haul_volume::catalog::store::Store;
use haul_volume::key::Key;
use haul_volume::server::{Config, Server, ServerError};

pub const STRIPE: usize = 64 * 1024;
/// Nothing here takes so long on a machine that works; it ends what hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The volume.
pub struct Rig {
    dir: tempfile::TempDir,
    pub access: Access,
    pub at: Vec<SocketAddr>,
    servers: Vec<Option<Server>>,
    _catalog: CatalogServer,
}

pub fn listener(at: SocketAddr) -> TcpListener {
    let begun = Instant::now();
    loop {
        match TcpListener::bind(at) {
            Ok(listener) => return listener,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Rig {
    pub fn new(servers: usize, placement: Placement, options: Options) -> Rig {
        let (id, key) = (VolumeId([5; 16]), Key::generate().expect("randomness"));
        let keys = key.keys(id).expect("a key");
        let dir = tempfile::tempdir().expect("a directory");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listeners: Vec<TcpListener> = (0..servers).map(|_| listener(any)).collect();
        let at: Vec<SocketAddr> = listeners.iter().map(|one| one.local_addr().expect("bound")).collect();
        let facts = Facts {
            stripe: STRIPE as u32,
            placement: placement.word().into(),
            servers: at.iter().map(|at| at.to_string().into()).collect(),
        };
        let store = Store::create(&dir.path().join("catalog"), id, &facts).expect("made");
        let catalog = CatalogServer::start(store, keys, listener(any), options).expect("started");
        let told = |at: SocketAddr| ServerAt { host: None, on: None, dir: "/x".into(), at: at.to_string() };
        let all = (at.iter().copied().map(told).collect(), told(catalog.address()));
        let access = Access { stripe: STRIPE as u32, ..Access::new("v", id, key, all) };
        let mut rig = Rig { dir, access, at, servers: Vec::new(), _catalog: catalog };
        for (number, listener) in listeners.into_iter().enumerate() {
            let server = rig.server(number, listener);
            rig.servers.push(Some(server));
        }
        rig
    }

    pub fn root(&self, number: usize) -> PathBuf {
        self.dir.path().join(format!("s{number}"))
    }

    fn server(&self, number: usize, listener: TcpListener) -> Server {
        self.try_server(number, listener).expect("it starts")
    }

    pub fn try_server(&self, number: usize, listener: TcpListener) -> Result<Server, ServerError> {
        let config = Config {
            root: self.root(number),
            keys: self.access.keys().expect("a key"),
            me: ServerNo(number as u16),
            servers: self.at.clone(),
            stripe_size: STRIPE as u64,
            threads: 3,
            notice: Arc::new(|text| eprintln!("{text}")),
        };
        Server::start(&config, listener)
    }

    /// Ends all servers without a word, and starts them anew where they were.
    pub fn restart(&mut self) {
        for number in 0..self.servers.len() {
            self.servers[number] = None;
        }
        for number in 0..self.servers.len() {
            self.servers[number] = Some(self.server(number, listener(self.at[number])));
        }
    }

    pub fn volume(&self, write_threshold: Option<u64>, patience: Duration) -> Volume {
        let mut settings = Settings::default();
        (settings.patience, settings.write_threshold) = (patience, write_threshold);
        Volume::open_with(&self.access, settings).expect("it is there")
    }

    /// Ends a server without a word.
    pub fn kill(&mut self, number: usize) {
        self.servers[number] = None;
    }

    /// Starts it anew where it was.
    pub fn revive(&mut self, number: usize) {
        self.servers[number] = Some(self.server(number, listener(self.at[number])));
    }
}

/// Random numbers of a test: `HAUL_TEST_SEED` makes others.
pub fn random(of: u64) -> fastrand::Rng {
    let seed = std::env::var("HAUL_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0_u64);
    fastrand::Rng::with_seed(seed * 1000 + of)
}

pub fn bytes(random: &mut fastrand::Rng, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.u8(..)).collect()
}

/// All of a file.
pub fn whole(file: &File) -> Vec<u8> {
    let mut all = vec![7; file.len().expect("a length") as usize + 3];
    let len = file.pread(&mut all, 0).expect("read");
    assert_eq!(len + 3, all.len(), "it ends there");
    all.truncate(len);
    all
}
