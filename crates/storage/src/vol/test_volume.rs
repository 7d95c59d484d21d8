//! Tests: a volume of real servers and a real catalog, in this process and below a directory.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use haul_base::stop::Stop;
use haul_core::entry::{Meta, Name, Timestamp};
use haul_core::volume::ServerNo;
use haul_core::volume::catalog::{Entry, EntryNo, Facts, Kind, Place as At, ROOT, Setting};
use haul_core::volume::wire::VolumeId;
use haul_core::wire::{Failure, FailureKind};
use haul_volume::catalog::server::{Options, Server as CatalogServer};
use haul_volume::catalog::store::Store;
use haul_volume::contents;
use haul_volume::dial::Keys;
use haul_volume::key::Key;
use haul_volume::server::{Config, Server};

use super::path::lead;
use super::sink::VolumeSink;
use super::{Reach, Volume, source};
use crate::place::Sources;
use crate::store::{SinkStore, SourceStore};

const STRIPE: u32 = 64 * 1024;
/// Everything is answered long before this.
const PATIENCE: Duration = Duration::from_secs(60);

/// Of what tests put there.
pub(crate) const META: Meta =
    Meta { mode: 0o644, uid: 7, gid: 8, mtime: Timestamp { secs: 1_500_000_000, nanos: 123_456_789 } };

/// See the module.
pub(crate) struct TestVolume {
    dir: tempfile::TempDir,
    keys: Keys,
    at: Vec<SocketAddr>,
    servers: Mutex<Vec<Option<Server>>>,
    catalog_at: SocketAddr,
    catalog: Mutex<Option<CatalogServer>>,
    patience: Duration,
    /// For looking and putting.
    volume: Mutex<Option<Arc<Volume>>>,
}

fn listener(at: SocketAddr) -> TcpListener {
    let begun = Instant::now();
    loop {
        match TcpListener::bind(at) {
            Ok(listener) => return listener,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl TestVolume {
    pub(crate) fn start(servers: usize) -> TestVolume {
        TestVolume::start_with(servers, PATIENCE)
    }

    /// `patience`: of those who use it.
    pub(crate) fn start_with(servers: usize, patience: Duration) -> TestVolume {
        let keys = Key::generate().expect("randomness").keys(VolumeId([9; 16])).expect("a key");
        let dir = tempfile::tempdir().expect("a directory");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listeners: Vec<TcpListener> = (0..servers).map(|_| listener(any)).collect();
        let at: Vec<SocketAddr> = listeners.iter().map(|one| one.local_addr().expect("bound")).collect();
        let facts = Facts {
            stripe: STRIPE,
            placement: "round-robin".into(),
            servers: at.iter().map(|at| at.to_string().into()).collect(),
        };
        let store = Store::create(&dir.path().join("catalog"), keys.volume, &facts).expect("made");
        let catalog =
            CatalogServer::start(store, keys.clone(), listener(any), Options::default()).expect("started");
        let volume = TestVolume {
            dir,
            keys,
            at,
            servers: Mutex::new(Vec::new()),
            catalog_at: catalog.address(),
            catalog: Mutex::new(Some(catalog)),
            patience,
            volume: Mutex::new(None),
        };
        for (number, listener) in listeners.into_iter().enumerate() {
            let server = volume.server(number, listener);
            volume.servers.lock().expect("no panic").push(Some(server));
        }
        volume
    }

    fn root(&self, number: usize) -> PathBuf {
        self.dir.path().join(format!("s{number}"))
    }

    fn server(&self, number: usize, listener: TcpListener) -> Server {
        let config = Config {
            root: self.root(number),
            keys: self.keys.clone(),
            me: ServerNo(number as u16),
            servers: self.at.clone(),
            stripe_size: STRIPE.into(),
            threads: 3,
            notice: Arc::new(|text| eprintln!("{text}")),
        };
        Server::start(&config, listener).expect("it starts")
    }

    /// Where a server listens.
    pub(crate) fn at(&self, number: usize) -> SocketAddr {
        self.at[number]
    }

    /// Ends a server without a word.
    pub(crate) fn kill(&self, number: usize) {
        let server = self.servers.lock().unwrap_or_else(PoisonError::into_inner)[number].take();
        drop(server);
    }

    /// Starts it anew where it was.
    pub(crate) fn revive(&self, number: usize) {
        let server = self.server(number, listener(self.at[number]));
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)[number] = Some(server);
    }

    /// Ends the catalog without a word.
    pub(crate) fn kill_catalog(&self) {
        drop(self.catalog.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    pub(crate) fn reach(&self) -> Reach {
        Reach {
            name: "v".into(),
            keys: self.keys.clone(),
            catalog: self.catalog_at,
            catalog_place: self.catalog_at.to_string(),
            servers: None,
            places: (0..self.at.len()).map(|number| self.root(number).display().to_string()).collect(),
            patience: self.patience,
            stop: Stop::never(),
        }
    }

    pub(crate) fn sink(&self, typed: &[u8]) -> Box<dyn SinkStore> {
        Box::new(VolumeSink { reach: self.reach(), typed: typed.to_vec(), state: false, followed: false })
    }

    pub(crate) fn source(&self, sources: &Sources<'_>) -> Result<Box<dyn SourceStore>, Failure> {
        source::find(&self.reach(), sources)
    }

    /// A client of our own.
    pub(crate) fn volume(&self) -> Arc<Volume> {
        let mut volume = self.volume.lock().expect("no panic");
        let connect = || {
            let connected = Volume::connect(&self.reach(), FailureKind::Open);
            Arc::new(connected.unwrap_or_else(|failure| panic!("{}", failure.text)))
        };
        volume.get_or_insert_with(connect).clone()
    }

    /// What stands at a path.
    pub(crate) fn entry(&self, path: &[u8]) -> Option<Entry> {
        lead(&self.volume(), path, false, FailureKind::Open).ok()?.entry
    }

    /// The content of a file.
    pub(crate) fn read(&self, path: &[u8]) -> Option<Vec<u8>> {
        let (volume, file) = (self.volume(), self.entry(path)?.file()?);
        let end = volume.ask_len(file).wait().expect("a length").end;
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < end {
            let step = (end - bytes.len() as u64).min(1 << 20);
            bytes.extend(volume.client.read(file, bytes.len() as u64, step).wait().expect("read").bytes);
        }
        Some(bytes)
    }

    /// The directory of a path, made if it is not there, and the last name.
    fn above(&self, path: &[u8]) -> At {
        let volume = self.volume();
        let mut names: Vec<&[u8]> =
            path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
        let name = |part: &[u8]| Name::new(part).expect("a legal name");
        let last = name(names.pop().expect("a name"));
        let mut parent = ROOT;
        for part in names {
            let at = At { parent, name: name(part) };
            let meta = Meta { mode: 0o755, ..META };
            parent = match volume.at(&at).expect("looked up") {
                Some(entry) => entry.id,
                None => volume.catalog.mkdir(at, meta).expect("made").id,
            };
        }
        At { parent, name: last }
    }

    pub(crate) fn dir(&self, path: &[u8]) -> EntryNo {
        self.volume().catalog.mkdir(self.above(path), Meta { mode: 0o755, ..META }).expect("made").id
    }

    /// Writes a file, or into one that is there.
    pub(crate) fn put(&self, path: &[u8], data: &[u8]) {
        let (volume, at) = (self.volume(), self.above(path));
        let (entry, _) = volume.catalog.create(at, META, false, false).expect("made");
        let file = entry.file().expect("a file");
        for (n, part) in data.chunks(1 << 20).enumerate() {
            volume.client.write(file, (n as u64) << 20, part.to_vec()).wait().expect("written");
        }
        volume.client.sync(file).wait().expect("synced");
        let look = volume.client.look(file).wait().expect("looked at");
        let set = Setting { mtime: Some(META.mtime), ..Setting::default() };
        contents::tell(&volume.catalog, &volume.client, file, &look, set).expect("told");
    }

    pub(crate) fn link(&self, path: &[u8], target: &[u8]) {
        self.volume().catalog.symlink(self.above(path), META, target).expect("made");
    }

    pub(crate) fn remove(&self, path: &[u8]) {
        self.volume().catalog.unlink(self.above(path)).expect("removed");
    }

    /// All names in a directory, with what they are.
    pub(crate) fn list(&self, path: &[u8]) -> Vec<(Vec<u8>, Kind)> {
        let Some(dir) = self.entry(path) else { return Vec::new() };
        let (page, more) = self.volume().catalog.read_dir(dir.id, None).expect("read");
        assert!(!more, "more than a page");
        page.into_iter().map(|(name, entry)| (name.as_bytes().to_vec(), entry.kind)).collect()
    }
}
