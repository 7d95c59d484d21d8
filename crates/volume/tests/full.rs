//! Disks that are full: of servers and of a catalog, in real small file systems.
//!
//! Each test has a tmpfs of its own, which it fills beside what the server has there. Mounting needs root;
//! where it is refused the tests say so and are skipped. A disk that fails otherwise is in `shelf/tests.rs`,
//! `log/tests.rs` and `server/care.rs`, where errors are put in its place.

use std::fs;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_core::entry::{Meta, Name, Timestamp};
use haul_core::volume::catalog::{Facts, Failure, Place, ROOT};
use haul_core::volume::wire::{Ill, Illness, VolumeId};
use haul_core::volume::{ClientNo, FileNo, ServerNo};
use haul_transport::tls::{Identity, Pin};
use haul_volume::catalog::client::Client as Catalog;
use haul_volume::catalog::server::{Options, Server as CatalogServer};
use haul_volume::catalog::store::Store;
use haul_volume::client::{self, Client, VolumeError};
use haul_volume::dial::Keys;
use haul_volume::server::{self, Server};
use haul_volume::visit::visit;

const STRIPE: u64 = 64 * 1024;
/// Nothing here takes so long on a machine that works.
const PATIENCE: Duration = Duration::from_secs(60);
/// `ENOSPC`.
const FULL: i32 = 28;

/// A small disk.
struct Disk(PathBuf);

impl Disk {
    /// `None`: this user mounts nothing.
    fn mount(at: PathBuf, size: &str) -> Option<Disk> {
        fs::create_dir(&at).expect("made");
        let options = format!("size={size}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&at).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Disk(at));
        }
        eprintln!("skipped: mounting needs root");
        None
    }

    /// Takes all room that there is.
    fn fill(&self) {
        let mut filler = fs::File::options().create(true).append(true).open(self.filler()).expect("made");
        for len in [1 << 16, 4096] {
            while filler.write_all(&vec![1; len]).is_ok() {}
        }
    }

    /// Gives it back.
    fn free(&self) {
        fs::remove_file(self.filler()).expect("removed");
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: what a test that fails left may still hold it.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn listener(at: SocketAddr) -> TcpListener {
    let mut bound = None;
    until("the port is free", || {
        bound = TcpListener::bind(at).ok();
        bound.is_some()
    });
    bound.expect("it was just bound")
}

/// A volume of three servers on this host. The second one's disk is small.
struct Volume {
    // Before what it lies in goes.
    servers: Vec<Option<Server>>,
    disk: Disk,
    dir: tempfile::TempDir,
    keys: Keys,
    at: Vec<SocketAddr>,
    clients: u64,
}

/// The server with the small disk.
const SMALL: usize = 1;

impl Volume {
    fn new(size: &str) -> Option<Volume> {
        let dir = tempfile::tempdir().expect("a directory");
        let disk = Disk::mount(dir.path().join("small"), size)?;
        let identity = Identity::generate().expect("randomness");
        let pin = Pin(identity.public());
        let keys = Keys { volume: VolumeId([7; 16]), identity, pin };
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listeners: Vec<TcpListener> = (0..3).map(|_| listener(any)).collect();
        let at = listeners.iter().map(|one| one.local_addr().expect("bound")).collect();
        let mut volume = Volume { servers: Vec::new(), disk, dir, keys, at, clients: 0 };
        for (number, listener) in listeners.into_iter().enumerate() {
            let server = volume.server(number, listener);
            volume.servers.push(Some(server));
        }
        Some(volume)
    }

    fn root(&self, number: usize) -> PathBuf {
        match number {
            SMALL => self.disk.0.join("server"),
            number => self.dir.path().join(format!("s{number}")),
        }
    }

    fn server(&self, number: usize, listener: TcpListener) -> Server {
        let config = server::Config {
            root: self.root(number),
            keys: self.keys.clone(),
            me: ServerNo(number as u16),
            servers: self.at.clone(),
            stripe_size: STRIPE,
            threads: 3,
            notice: Arc::new(|text| eprintln!("{text}")),
        };
        Server::start(&config, listener).expect("it starts")
    }

    fn stop(&mut self, number: usize) {
        self.servers[number] = None;
    }

    fn start(&mut self, number: usize) {
        self.servers[number] = Some(self.server(number, listener(self.at[number])));
    }

    fn client(&mut self, write_threshold: u64) -> Client {
        self.clients += 1;
        Client::start(client::Config {
            keys: self.keys.clone(),
            number: ClientNo(self.clients),
            servers: self.at.clone(),
            stripe_size: STRIPE,
            write_threshold: Some(write_threshold),
            patience: PATIENCE,
        })
        .expect("threads")
    }

    /// What a visitor of a server hears of disks.
    fn ills(&self, number: usize) -> Vec<Ill> {
        let to = Some(ServerNo(number as u16));
        visit(&self.keys, self.at[number], to, false, PATIENCE).expect("it answers").visited.ills
    }
}

/// Bytes of a file that differ from place to place.
fn bytes(seed: u64, len: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| random.u8(..)).collect()
}

const GATHERED: u64 = u64::MAX;
const DIRECT: u64 = 0;

/// Goal: a server whose disk has no room at all starts again, again and again; it has all that was synced,
/// and its files are written where there is room elsewhere; and when there is room nobody has to start it
/// anew. Method: the disk is filled after each of its ends, for an end gives room back.
#[test]
fn a_server_starts_on_a_full_disk() {
    let Some(mut volume) = Volume::new("8m") else { return };
    let (gathered, direct) = (volume.client(GATHERED), volume.client(DIRECT));
    // Gathered by the small one.
    let file = FileNo(1);
    let data = bytes(1, 6 * STRIPE);
    direct.write(file, 0, data.clone()).wait().expect("written");
    direct.sync(file).wait().expect("synced");
    let more = bytes(2, 1000);
    gathered.write(FileNo(4), 100, more.clone()).wait().expect("written");
    gathered.sync(FileNo(4)).wait().expect("synced");
    drop((gathered, direct));
    for round in 0..2 {
        volume.stop(SMALL);
        volume.disk.fill();
        volume.start(SMALL);
        let client = volume.client(DIRECT);
        let read = client.read(file, 0, data.len() as u64).wait().expect("read");
        assert!(read.bytes == data && read.end >= data.len() as u64, "round {round}");
        let read = client.read(FileNo(4), 100, 1000).wait().expect("read");
        assert!(read.bytes == more, "round {round}");
        // What needs a word in its log, and no more, goes on.
        let at = 7 * STRIPE + round;
        client
            .write(file, 7 * STRIPE, vec![round as u8; 1 + round as usize])
            .wait()
            .expect("it lies elsewhere");
        client.sync(file).wait().expect("synced");
        assert_eq!(client.read(file, at, 1).wait().expect("read").bytes, [round as u8]);
    }
    let gathered = volume.client(GATHERED);
    let mut taken = 0;
    let refused = loop {
        match gathered.write(FileNo(4), 2 * STRIPE + taken * 50_000, vec![taken as u8; 50_000]).wait() {
            Ok(()) => taken += 1,
            Err(refused) => break refused,
        }
        assert!(taken < 100, "the disk is full");
    };
    assert_eq!(refused, VolumeError::Failed(ServerNo(1), FULL));
    until("it is told", || {
        volume.ills(SMALL).iter().any(|ill| ill.what == Illness::Log && ill.errno == FULL)
    });
    volume.disk.free();
    gathered.write(FileNo(4), 0, vec![5; 100]).wait().expect("there is room");
    gathered.sync(FileNo(4)).wait().expect("synced");
    until("it is over", || volume.ills(SMALL).is_empty());
    let read = gathered.read(FileNo(4), 0, 1100).wait().expect("read");
    assert!(read.bytes == [&[5; 100][..], &more].concat());
    for number in 0..taken {
        let read = gathered.read(FileNo(4), 2 * STRIPE + number * 50_000, 50_000).wait().expect("read");
        assert!(read.bytes == [number as u8; 50_000], "{number} was written");
    }
}

/// Goal: what was gathered for a server whose disk is full lasts, is read, and is told with how much it is
/// and why; it holds up nothing that goes elsewhere; who writes there directly hears so at once; when there
/// is room it is brought, without a start of anybody.
#[test]
fn what_waits_for_room_is_told_and_brought() {
    let Some(mut volume) = Volume::new("6m") else { return };
    volume.disk.fill();
    let (gathered, direct) = (volume.client(GATHERED), volume.client(DIRECT));
    // Gathered by the first server: one stripe of three is of the small one.
    let (file, data) = (FileNo(3), bytes(3, 6 * STRIPE));
    for (at, part) in (0..).zip(data.chunks(10_000)) {
        gathered.write(file, at * 10_000, part.to_vec()).wait().expect("gathered");
    }
    gathered.sync(file).wait().expect("it lasts in the log");
    let waits = Illness::Waits { server: ServerNo(1), files: 1, bytes: 2 * STRIPE };
    until("it is told", || volume.ills(0).iter().any(|ill| ill.what == waits && ill.errno == FULL));
    let lies = |number: usize| {
        let name = format!("files/{:02x}/{:016x}", file.0, file.0);
        fs::metadata(volume.root(number).join(name)).map_or(0, |meta| meta.len())
    };
    until("what lies elsewhere is brought", || lies(0) == 2 * STRIPE && lies(2) == 2 * STRIPE);
    let read = direct.read(file, 0, data.len() as u64).wait().expect("read");
    assert!(read.bytes == data && read.end == data.len() as u64);
    let begun = Instant::now();
    let refused = direct.write(file, STRIPE, vec![7; 5000]).wait();
    assert_eq!(refused, Err(VolumeError::Failed(ServerNo(1), FULL)));
    assert!(begun.elapsed() < PATIENCE / 2, "it is told, and not waited for");
    // Nobody is held up in another stripe, nor in the log.
    direct.write(file, 0, vec![8; 10]).wait().expect("written");
    gathered.write(file, STRIPE, vec![9; 10]).wait().expect("gathered");
    direct.sync(file).wait().expect("synced");
    gathered.sync(file).wait().expect("synced");
    // And what waits is in no removal's way.
    let other = FileNo(6);
    gathered.write(other, STRIPE, vec![1; 100]).wait().expect("gathered");
    gathered.remove(other).wait().expect("removed");
    volume.disk.free();
    until("it is brought", || volume.ills(0).is_empty() && lies(1) == 2 * STRIPE);
    let mut now = data;
    now[..10].fill(8);
    now[STRIPE as usize..STRIPE as usize + 10].fill(9);
    assert!(direct.read(file, 0, now.len() as u64).wait().expect("read").bytes == now);
    drop((gathered, direct));
    for number in 0..3 {
        volume.stop(number);
        volume.start(number);
    }
    let client = volume.client(DIRECT);
    assert!(client.read(file, 0, now.len() as u64).wait().expect("read").bytes == now);
}

fn meta() -> Meta {
    Meta { mode: 0o644, uid: 1, gid: 2, mtime: Timestamp { secs: 3, nanos: 4 } }
}

fn place(number: u32) -> Place {
    // Long ones fill pages.
    Place { parent: ROOT, name: Name::new(format!("{number:0200}").as_bytes()).expect("a name") }
}

/// Goal: a catalog whose disk has no room at all is opened, again and again, joined and read, and has names
/// taken away; what would need room is refused in words that say where that lacks, and takes none of what is
/// kept for the former; when there is room nobody has to start it anew.
/// Method: the disk is filled after each of its ends, for an end gives room back.
#[test]
fn names_are_taken_away_on_a_full_disk() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(disk) = Disk::mount(dir.path().join("small"), "24m") else { return };
    let root = disk.0.join("catalog");
    let identity = Identity::generate().expect("randomness");
    let pin = Pin(identity.public());
    let keys = Keys { volume: VolumeId([7; 16]), identity, pin };
    let servers = vec!["a:1".into()];
    let facts = Facts { stripe: 1 << 20, placement: "round-robin".into(), servers };
    drop(Store::create(&root, keys.volume, &facts).expect("made"));
    let serve = || {
        let store = Store::open(&root, keys.volume).expect("it opens");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        CatalogServer::start(store, keys.clone(), listener(any), Options::default()).expect("threads")
    };
    let join = |server: &CatalogServer| Catalog::connect(keys.clone(), server.address(), PATIENCE);
    let first = serve();
    let client = join(&first).expect("joined");
    for number in 0..400 {
        client.create(place(number), meta(), true, false).expect("made");
    }
    drop((client, first));
    let full =
        |failure: &Failure| failure.errno == FULL && failure.words.contains(root.to_str().expect("UTF-8"));
    for round in 0..3 {
        disk.fill();
        let server = serve();
        let client = join(&server).expect("joined");
        for number in (1000..1300).map(|number| number + round * 1000) {
            if let Err(failure) = client.create(place(number), meta(), true, false) {
                assert!(full(&failure), "{failure:?}");
            }
        }
        for number in round * 50..round * 50 + 50 {
            client.unlink(place(number)).expect("taken away");
            assert!(client.lookup(place(number)).is_err());
        }
        client.lookup(place(399)).expect("there");
        let refused = client.create(place(8000 + round), meta(), true, false).expect_err("there is no room");
        assert!(full(&refused), "{refused:?}");
        let ills = || visit(&keys, server.address(), None, false, PATIENCE).expect("it answers").visited.ills;
        until("it is told", || ills().iter().any(|ill| ill.what == Illness::Catalog && ill.errno == FULL));
        if round == 2 {
            disk.free();
            until("there is room", || client.create(place(9000), meta(), true, false).is_ok());
            until("it is over", || ills().is_empty());
        }
    }
}
