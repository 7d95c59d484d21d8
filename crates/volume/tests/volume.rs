//! Volumes on loopback: servers and clients over TLS, real files below each server.

use std::env;
use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::Ed25519KeyPair;
use data_encoding::HEXLOWER;
use haul_core::volume::client::Striping;
use haul_core::volume::wire::{Message, VolumeId, Who};
use haul_core::volume::{
    ClientNo, ContentVersion, Epoch, FileNo, RequestNo, ServerNo, Session, gather, storage,
};
use haul_transport::tls::{self, Identity, Pin};
use haul_volume::client::{self, Client, VolumeError};
use haul_volume::dial::Keys;
use haul_volume::line::{self, Bytes};
use haul_volume::server::{self, Server};
use rustix::process::{Pid, Signal};

const STRIPE: u64 = 64 * 1024;
const PATIENCE: Duration = Duration::from_secs(60);

/// A volume on this host.
struct Volume {
    dir: tempfile::TempDir,
    keys: Keys,
    at: Vec<SocketAddr>,
    servers: Vec<Option<Server>>,
    clients: u64,
}

impl Volume {
    fn new(servers: usize) -> Volume {
        let identity = Identity::generate().expect("randomness");
        let pin = Pin(identity.public());
        let mut volume = Volume {
            dir: tempfile::tempdir().expect("a directory"),
            keys: Keys { volume: VolumeId([7; 16]), identity, pin },
            at: Vec::new(),
            servers: Vec::new(),
            clients: 0,
        };
        let bind = |_| TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let listeners: Vec<TcpListener> = (0..servers).map(bind).collect();
        volume.at = listeners.iter().map(|one| one.local_addr().expect("bound")).collect();
        for (number, listener) in listeners.into_iter().enumerate() {
            let server = volume.server(number, listener);
            volume.servers.push(Some(server));
        }
        volume
    }

    fn config(&self, number: usize) -> server::Config {
        server::Config {
            root: self.dir.path().join(format!("s{number}")),
            keys: self.keys.clone(),
            me: ServerNo(number as u16),
            servers: self.at.clone(),
            stripe_size: STRIPE,
            threads: 3,
            notice: Arc::new(|text| eprintln!("{text}")),
        }
    }

    fn server(&self, number: usize, listener: TcpListener) -> Server {
        Server::start(&self.config(number), listener).expect("it starts")
    }

    /// Ends a server without a word, and starts it anew where it was.
    fn restart(&mut self, number: usize) {
        self.servers[number] = None;
        let begun = Instant::now();
        let listener = loop {
            match TcpListener::bind(self.at[number]) {
                Ok(listener) => break listener,
                Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        self.servers[number] = Some(self.server(number, listener));
    }

    fn client(&mut self, write_threshold: impl Into<Option<u64>>) -> Client {
        self.clients += 1;
        Client::start(client::Config {
            keys: self.keys.clone(),
            number: ClientNo(self.clients),
            servers: self.at.clone(),
            stripe_size: STRIPE,
            write_threshold: write_threshold.into(),
            patience: PATIENCE,
        })
        .expect("threads")
    }

    fn dir(&self) -> &Path {
        self.dir.path()
    }
}

/// Random numbers of a test: `HAUL_TEST_SEED` makes others.
fn random(of: u64) -> fastrand::Rng {
    let seed = env::var("HAUL_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0_u64);
    fastrand::Rng::with_seed(seed * 1000 + of)
}

fn bytes(random: &mut fastrand::Rng, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.u8(..)).collect()
}

/// Goal: what is written in pieces of any size is read as it was written, by its writer and by others, before
/// and after a sync and after all servers were started anew.
#[test]
fn what_is_written_is_read() {
    let mut volume = Volume::new(3);
    let mut random = random(23);
    let client = volume.client(4096);
    let other = volume.client(None);
    let mut files = vec![Vec::new(); 4];
    for round in 0..200 {
        let at = random.usize(0..files.len());
        let (file, model) = (FileNo(at as u64), &mut files[at]);
        let offset = random.usize(0..400_000);
        let len = match random.u8(0..4) {
            0 => random.usize(1..64),
            1 => random.usize(1..5000),
            2 => random.usize(1..100_000),
            _ => random.usize(1..300_000),
        };
        let data = bytes(&mut random, len);
        client.write(file, offset as u64, data.clone()).wait().expect("written");
        if model.len() < offset + len {
            model.resize(offset + len, 0);
        }
        model[offset..offset + len].copy_from_slice(&data);
        let from = random.usize(0..model.len());
        let len = random.usize(1..=model.len() - from);
        let reader = if round % 3 == 0 { &other } else { &client };
        let read = reader.read(file, from as u64, len as u64).wait().expect("read");
        assert!(read.bytes == model[from..from + len], "round {round}");
    }
    for (at, model) in files.iter().enumerate() {
        client.sync(FileNo(at as u64)).wait().expect("synced");
        let read = other.read(FileNo(at as u64), 0, model.len() as u64).wait().expect("read");
        assert!(read.bytes == *model);
        assert_eq!(read.end, model.len() as u64);
    }
    drop((client, other));
    for number in 0..3 {
        volume.restart(number);
    }
    let client = volume.client(4096);
    for (at, model) in files.iter().enumerate() {
        let read = client.read(FileNo(at as u64), 0, model.len() as u64).wait().expect("read");
        assert!(read.bytes == *model, "file {at} after a start");
        assert_eq!(read.end, model.len() as u64);
    }
}

/// Goal: appends of many clients stand one behind the other, whole and each once, small ones and those of
/// several stripes; a file that is cut has what was before, and zeros where it grows again.
#[test]
fn appends_and_cuts() {
    let mut volume = Volume::new(3);
    let clients: Vec<Client> = (0..3).map(|_| volume.client(4096)).collect();
    let file = FileNo(5);
    let mut all: Vec<(u64, Vec<u8>)> = std::thread::scope(|scope| {
        let threads: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(number, client)| {
                scope.spawn(move || {
                    let mut random = random(100 + number as u64);
                    let mut mine = Vec::new();
                    for _ in 0..15 {
                        let len = if random.u8(0..5) == 0 { 150_000 } else { random.usize(1..3000) };
                        let data = bytes(&mut random, len);
                        let at = client.append(file, data.clone()).wait().expect("appended");
                        mine.push((at, data));
                    }
                    client.sync(file).wait().expect("synced");
                    mine
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("it ends")).collect()
    });
    all.sort();
    let mut model = Vec::new();
    for (at, data) in all {
        assert_eq!(at, model.len() as u64, "no append overlaps another, and no gap is left");
        model.extend(data);
    }
    let read = clients[0].read(file, 0, model.len() as u64).wait().expect("read");
    assert!(read.bytes == model);
    assert_eq!(read.end, model.len() as u64);
    for len in [model.len() as u64 - 1000, 70_000, 200_000, 10, 0, 5] {
        clients[1].truncate(file, len).wait().expect("cut");
        model.resize(len as usize, 0);
        clients[2].write(file, len, b"and more".to_vec()).wait().expect("written");
        model.extend(b"and more");
        let read = clients[0].read(file, 0, model.len() as u64 + 50_000).wait().expect("read");
        assert_eq!(read.end, model.len() as u64);
        assert!(read.bytes[..model.len()] == model, "cut to {len}");
        assert!(read.bytes[model.len()..].iter().all(|byte| *byte == 0), "cut to {len}");
    }
    clients[2].sync(file).wait().expect("synced");
    drop(clients);
    (0..3).for_each(|number| volume.restart(number));
    let client = volume.client(None);
    let read = client.read(file, 0, model.len() as u64 + 50_000).wait().expect("read");
    assert_eq!(read.end, model.len() as u64);
    assert!(read.bytes[..model.len()] == model);
    assert!(read.bytes[model.len()..].iter().all(|byte| *byte == 0));
}

/// Goal: a file that was removed is gone for everybody, on all disks, and stays so after a start.
#[test]
fn what_is_removed_is_gone() {
    let mut volume = Volume::new(2);
    let (client, other) = (volume.client(4096), volume.client(4096));
    let (file, kept) = (FileNo(0x5a), FileNo(0x5b));
    for file in [file, kept] {
        other.write(file, 10, vec![1; 200_000]).wait().expect("written");
        client.write(file, 3, vec![2; 100]).wait().expect("written");
        client.sync(file).wait().expect("synced");
    }
    client.remove(file).wait().expect("removed");
    assert_eq!(other.read(file, 0, 10).wait(), Err(VolumeError::Gone));
    assert_eq!(other.write(file, 0, vec![3; 9]).wait(), Err(VolumeError::Gone));
    let lies = |volume: &Volume| {
        let on = |number: usize| volume.dir().join(format!("s{number}/files/5a/{:016x}", file.0));
        (0..2).filter(|number| on(*number).exists()).count()
    };
    assert_eq!(lies(&volume), 0);
    drop((client, other));
    (0..2).for_each(|number| volume.restart(number));
    let client = volume.client(4096);
    let read = client.read(kept, 0, 103).wait().expect("it is there");
    assert!(read.bytes[3..103] == [2; 100]);
    assert_eq!(lies(&volume), 0);
}

/// Goal: each change of a file is another version of its bytes, whoever made it over whichever path; looks
/// alone make none, and who held leases writes on after them. That it was written is known over a restart,
/// until the catalog was told, and so is that it was told.
#[test]
fn versions_tell_of_changes() {
    let mut volume = Volume::new(3);
    let (small, large) = (volume.client(u64::MAX), volume.client(0));
    let other = volume.client(None);
    let file = FileNo(7);
    let mut seen = Vec::new();
    let look = |client: &Client| client.look(file).wait().expect("looked at");
    let is_new = |seen: &mut Vec<ContentVersion>, look: client::Look| {
        assert!(look.untold && !seen.contains(&look.version), "{look:?} {seen:?}");
        seen.push(look.version);
    };
    let nothing = look(&other);
    assert_eq!((nothing.end, nothing.untold), (0, false));
    for round in 0..3 {
        large.write(file, 0, vec![round; 3 * STRIPE as usize]).wait().expect("written");
        is_new(&mut seen, look(&other));
        small.write(file, 5, vec![round]).wait().expect("written");
        is_new(&mut seen, look(&small));
        small.append(file, vec![round; 10]).wait().expect("appended");
        is_new(&mut seen, look(&large));
        large.append(file, vec![round; STRIPE as usize]).wait().expect("appended");
        is_new(&mut seen, look(&other));
        large.truncate(file, 2 * STRIPE).wait().expect("cut");
        is_new(&mut seen, look(&other));
    }
    let last = look(&other);
    assert_eq!((look(&small), last.end), (last, 2 * STRIPE), "looks change nothing");
    assert_eq!(other.read(file, 0, 2 * STRIPE).wait().expect("read").bytes[STRIPE as usize], 2);
    // The version of before tells nobody of the last change.
    assert!(!other.told(file, seen[0]).wait().expect("heard"));
    assert!(look(&other).untold);
    volume.restart(7 % 3);
    let restarted = look(&other);
    assert!(restarted.untold && restarted.version.gatherer > last.version.gatherer, "{restarted:?}");
    assert!(!other.told(file, last.version).wait().expect("heard"), "that was another life's");
    assert!(other.told(file, restarted.version).wait().expect("heard"));
    let told = look(&other);
    assert_eq!((told.version, told.untold), (restarted.version, false));
    volume.restart(7 % 3);
    assert!(!look(&other).untold, "the log remembers");
    small.write(file, 9, vec![9]).wait().expect("written");
    is_new(&mut seen, look(&other));
}

/// Goal: disjoint writes of many clients inside one page never clobber each other, on either path.
#[test]
fn neighbours_keep_their_bytes() {
    let mut volume = Volume::new(2);
    let clients: Vec<Client> = (0..5).map(|one| volume.client([0, 1 << 20][one % 2])).collect();
    let file = FileNo(11);
    let (each, turns) = (16, 40);
    std::thread::scope(|scope| {
        for (number, client) in clients.iter().enumerate() {
            scope.spawn(move || {
                let waiting: Vec<_> = (0..turns)
                    .map(|turn| {
                        let at = (turn * clients_len() + number) * each;
                        client.write(file, at as u64, vec![1 + number as u8; each])
                    })
                    .collect();
                waiting.into_iter().for_each(|one| one.wait().expect("written"));
                client.sync(file).wait().expect("synced");
            });
        }
    });
    let len = turns * clients_len() * each;
    let read = clients[0].read(file, 0, len as u64).wait().expect("read");
    let want: Vec<u8> = (0..len).map(|at| 1 + (at / each % clients_len()) as u8).collect();
    assert!(read.bytes == want);
}

fn clients_len() -> usize {
    5
}

/// Goal: servers that end and start anew lose nothing that a sync said is there; what comes in between waits.
#[test]
fn servers_come_and_go() {
    let mut volume = Volume::new(3);
    let client = volume.client(8192);
    let mut random = random(5);
    let file = FileNo(1);
    let mut model = vec![0; 600_000];
    for round in 0..12 {
        for _ in 0..20 {
            let offset = random.usize(0..500_000);
            let len = if random.bool() { random.usize(1..200) } else { random.usize(1..100_000) };
            let data = bytes(&mut random, len);
            let waiting = client.write(file, offset as u64, data.clone());
            if random.u8(0..10) == 0 {
                volume.restart(round % 3);
            }
            waiting.wait().expect("written");
            model[offset..offset + len].copy_from_slice(&data);
        }
        match client.sync(file).wait() {
            Ok(()) => {}
            // Its process ended, and no disk: all is there, and nobody can say so.
            Err(VolumeError::Lost(_)) => {}
            Err(error) => panic!("{error}"),
        }
        let read = client.read(file, 0, model.len() as u64).wait().expect("read");
        assert!(read.bytes == model, "round {round}");
    }
}

/// What a child process is told in: the key, its directory, its number, and where all servers listen.
const TOLD: &str = "HAUL_VOLUME_SERVER";

/// No test of its own: a server in a process that can be killed.
#[test]
fn serves_where_it_is_told() {
    let Ok(told) = env::var(TOLD) else { return };
    let words: Vec<&str> = told.split(' ').collect();
    let key = HEXLOWER.decode(words[0].as_bytes()).expect("hexadecimal");
    let identity = Identity::of_pkcs8(&key).expect("a key");
    let me: u16 = words[2].parse().expect("a number");
    let servers: Vec<SocketAddr> = words[3..].iter().map(|at| at.parse().expect("an address")).collect();
    let pin = Pin(identity.public());
    let config = server::Config {
        root: words[1].into(),
        keys: Keys { volume: VolumeId([7; 16]), identity, pin },
        me: ServerNo(me),
        servers: servers.clone(),
        stripe_size: STRIPE,
        threads: 3,
        notice: Arc::new(|text| eprintln!("{text}")),
    };
    let begun = Instant::now();
    let listener = loop {
        match TcpListener::bind(servers[usize::from(me)]) {
            Ok(listener) => break listener,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let _server = Server::start(&config, listener).expect("it starts");
    loop {
        std::thread::park();
    }
}

/// A server in a process of its own; killed when dropped.
struct Process(Child);

impl Process {
    fn start(told: &str) -> Process {
        let own = env::current_exe().expect("this program");
        let child = Command::new(own)
            .args(["--exact", "serves_where_it_is_told", "--nocapture"])
            .env(TOLD, told)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        Process(child.expect("it starts"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().expect("kill it");
        self.0.wait().expect("it ends");
    }
}

/// A volume whose servers are processes.
struct Processes {
    dir: tempfile::TempDir,
    key: Vec<u8>,
    at: Vec<SocketAddr>,
    servers: Vec<Option<Process>>,
    clients: u64,
}

impl Processes {
    fn new(servers: usize) -> Processes {
        let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("randomness");
        let bind = |_| TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let bound: Vec<TcpListener> = (0..servers).map(bind).collect();
        let mut volume = Processes {
            dir: tempfile::tempdir().expect("a directory"),
            key: key.as_ref().to_vec(),
            at: bound.iter().map(|one| one.local_addr().expect("bound")).collect(),
            servers: (0..servers).map(|_| None).collect(),
            clients: 0,
        };
        drop(bound);
        (0..servers).for_each(|number| volume.restart(number));
        volume
    }

    /// Kills a server, if there is one, and starts another in its place.
    fn restart(&mut self, number: usize) {
        self.servers[number] = None;
        let root = self.dir.path().join(format!("s{number}"));
        let all: Vec<String> = self.at.iter().map(SocketAddr::to_string).collect();
        let key = HEXLOWER.encode(&self.key);
        let told = format!("{key} {} {number} {}", root.display(), all.join(" "));
        self.servers[number] = Some(Process::start(&told));
    }

    fn signal(&self, number: usize, signal: Signal) {
        let child = &self.servers[number].as_ref().expect("it runs").0;
        let pid = Pid::from_child(child);
        rustix::process::kill_process(pid, signal).expect("a signal");
    }

    fn client(&mut self, patience: Duration) -> Client {
        self.clients += 1;
        let identity = Identity::of_pkcs8(&self.key).expect("a key");
        Client::start(client::Config {
            keys: Keys { volume: VolumeId([7; 16]), pin: Pin(identity.public()), identity },
            number: ClientNo(self.clients),
            servers: self.at.clone(),
            stripe_size: STRIPE,
            write_threshold: Some(8192),
            patience,
        })
        .expect("threads")
    }
}

/// Goal: a server that hangs holds up what it has to do with, and nothing else; who waits for it hears so in
/// time; when it goes on, all is as it was acknowledged.
#[test]
fn a_frozen_server_holds_up_its_own() {
    let mut volume = Processes::new(3);
    let (client, slow) = (volume.client(PATIENCE), volume.client(PATIENCE));
    // Its patience ends while a server hangs; nothing else is asked of it, for this machine may be slow.
    let hasty = volume.client(Duration::from_secs(3));
    // Gathered by server 0; stripes 0 and 3 lie there, 1 and 4 on the one that will hang.
    let file = FileNo(3);
    let model: Vec<u8> = bytes(&mut random(9), 3 * STRIPE as usize);
    slow.write(file, 0, model.clone()).wait().expect("written");
    slow.sync(file).wait().expect("synced");
    volume.signal(1, Signal::STOP);
    let read = client.read(file, 0, STRIPE).wait().expect("what lies elsewhere is read");
    assert!(read.bytes == model[..STRIPE as usize]);
    client.write(file, 5, b"elsewhere".to_vec()).wait().expect("what lies elsewhere is written");
    let error = hasty.read(file, STRIPE, 10).wait().expect_err("it hangs");
    assert!(matches!(error, VolumeError::Late(..)), "{error}");
    let waits = slow.write(file, STRIPE + 7, vec![9; 20_000]);
    // Its gatherer takes it, for a stripe that lies on the server that hangs.
    client.write(file, 4 * STRIPE + 1, b"small".to_vec()).wait().expect("gathered");
    volume.signal(1, Signal::CONT);
    waits.wait().expect("it goes on");
    let mut want = model.clone();
    want[5..14].copy_from_slice(b"elsewhere");
    want[STRIPE as usize + 7..STRIPE as usize + 20_007].fill(9);
    want.resize(4 * STRIPE as usize + 1, 0);
    want.extend_from_slice(b"small");
    let read = slow.read(file, 0, want.len() as u64).wait().expect("read");
    assert!(read.bytes == want);
}

/// Goal: a server that is killed at any moment loses nothing that was acknowledged, for no disk lost
/// anything; clients wait for it and go on. Method: processes of three servers, killed one after the other
/// while writes of both paths are under way; every byte is compared after each kill, and by a new client
/// after all were killed.
#[test]
fn killed_servers_lose_nothing() {
    let mut volume = Processes::new(3);
    let one = volume.client(PATIENCE);
    let mut random = random(77);
    let mut models = vec![vec![0; 400_000]; 2];
    for round in 0..12 {
        let mut waiting = Vec::new();
        for _ in 0..30 {
            let file = random.usize(0..2);
            let len = if random.bool() { random.usize(1..300) } else { random.usize(1..100_000) };
            let offset = random.usize(0..300_000);
            let data = bytes(&mut random, len);
            models[file][offset..offset + len].copy_from_slice(&data);
            waiting.push(one.write(FileNo(file as u64), offset as u64, data));
        }
        std::thread::sleep(Duration::from_millis(random.u64(0..30)));
        let number = round % 3;
        volume.restart(number);
        waiting.into_iter().for_each(|one| one.wait().expect("written"));
        for (file, model) in models.iter().enumerate() {
            match one.sync(FileNo(file as u64)).wait() {
                Ok(()) | Err(VolumeError::Lost(_)) => {}
                Err(error) => panic!("{error}"),
            }
            let read = one.read(FileNo(file as u64), 0, model.len() as u64).wait().expect("read");
            assert!(read.bytes == *model, "round {round}, file {file}");
        }
    }
    (0..3).for_each(|number| volume.restart(number));
    let other = volume.client(PATIENCE);
    for (file, model) in models.iter().enumerate() {
        let read = other.read(FileNo(file as u64), 0, model.len() as u64).wait().expect("read");
        assert!(read.bytes == *model, "file {file} in the end");
    }
}

/// Goal: a server whose log or whose files were taken away, or are another server's, does not start, then and
/// later: what it had would be missing unseen.
#[test]
fn a_server_that_lost_something_does_not_start() {
    let mut volume = Volume::new(2);
    let client = volume.client(1 << 20);
    for file in 0..4 {
        client.write(FileNo(file), 0, vec![1; 100]).wait().expect("written");
        client.sync(FileNo(file)).wait().expect("synced");
    }
    drop(client);
    volume.servers.iter_mut().for_each(|server| *server = None);
    let at = |name: &str| volume.dir().join(name);
    let starts = |number: usize| {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        Server::start(&volume.config(number), listener).map(drop)
    };
    let is_refused = |number: usize, word: &str| {
        for _ in 0..2 {
            let error = starts(number).expect_err("it lacks something").to_string();
            assert!(error.contains(word), "{error}");
        }
    };
    fs::rename(at("s0/log"), at("kept")).expect("take it away");
    is_refused(0, "log");
    fs::remove_dir_all(at("s0/log")).expect("a new one");
    fs::rename(at("s1/log"), at("s0/log")).expect("another's");
    is_refused(0, "log");
    fs::rename(at("s0/log"), at("s1/log")).expect("back");
    fs::rename(at("kept"), at("s0/log")).expect("back");
    fs::rename(at("s0/files"), at("files")).expect("take them away");
    is_refused(0, "files");
    fs::rename(at("files"), at("s0/files")).expect("back");
    starts(0).expect("nothing is missing");
    starts(1).expect("nothing is missing");
}

/// Goal: tens of thousands of small writes may be begun at once; all of them come to an end, in their order.
#[test]
fn many_writes_at_once_come_to_an_end() {
    let mut volume = Volume::new(2);
    let (gathers, direct) = (volume.client(u64::MAX), volume.client(0));
    for (client, file, count) in [(&gathers, FileNo(2), 40_000), (&direct, FileNo(3), 20_000)] {
        let begun: Vec<_> = (0..count)
            .map(|at: u64| client.write(file, at % 10_000 * 7, (at as u32).to_le_bytes().to_vec()))
            .collect();
        begun.into_iter().for_each(|one| one.wait().expect("written"));
        client.sync(file).wait().expect("synced");
        let read = client.read(file, 0, 70_000).wait().expect("read");
        for at in 0..10_000 {
            let last = (count - 10_000 + at) as u32;
            assert_eq!(read.bytes[at as usize * 7..][..4], last.to_le_bytes());
        }
    }
}

/// Goal: what no client of this volume says ends its connection with a word, and nobody else's.
/// Method: bytes of two stripes on each path, and more stripes than one request may have; by hand, with the
/// key.
#[test]
fn senseless_requests_are_refused() {
    let mut volume = Volume::new(1);
    let client = volume.client(4096);
    let file = FileNo(1);
    let epoch = Epoch::default();
    let number = RequestNo(0);
    for (session, said) in [
        Message::Gather(number, gather::Request::Write { file, offset: STRIPE - 1, len: 2, bytes: 2 }),
        Message::Gather(number, gather::Request::Lease { file, stripes: 0..1 << 40 }),
        Message::Gather(number, gather::Request::Release { file, stripes: 0..1 << 40 }),
        Message::Store(number, storage::Request::Write { file, epoch, offset: STRIPE - 1, bytes: 2 }),
        Message::Store(number, storage::Request::Read { file, offset: 1, len: STRIPE }),
        Message::Pong(1),
    ]
    .into_iter()
    .enumerate()
    {
        let stream = TcpStream::connect(volume.at[0]).expect("connected");
        let link = tls::client(stream, &volume.keys.identity, &volume.keys.pin, PATIENCE).expect("a link");
        let (mut incoming, mouth) = line::speak(link, "test", None).expect("a thread");
        let who = Who::Client(ClientNo(1 << 40));
        let session = Session(session as u64);
        let striping = Striping::new(STRIPE, 1);
        let join = Message::Join { volume: volume.keys.volume, who, session, to: ServerNo(0), striping };
        mouth.say(join, Bytes::default());
        let bytes = vec![1; said.following() as usize];
        mouth.say(said.clone(), Arc::new(bytes));
        let refused = loop {
            match incoming.receive(|_| Ok(())) {
                Ok(Some((Message::Refused(why), _))) => break why,
                Ok(Some(_)) => {}
                end => panic!("{said:?}: {end:?}"),
            }
        };
        assert!(!refused.is_empty());
        client.write(file, 0, b"well".to_vec()).wait().expect("others go on");
    }
}

/// Goal: nobody without the volume's key, or of another volume, is heard; two servers never have one
/// directory.
#[test]
fn strangers_are_not_heard() {
    let mut volume = Volume::new(1);
    let file = FileNo(1);
    let with = |volume: &mut Volume, keys: Keys| {
        volume.clients += 1;
        Client::start(client::Config {
            keys,
            number: ClientNo(volume.clients),
            servers: volume.at.clone(),
            stripe_size: STRIPE,
            write_threshold: Some(0),
            patience: Duration::from_secs(2),
        })
        .expect("threads")
    };
    let identity = Identity::generate().expect("randomness");
    let stranger = Keys { pin: volume.keys.pin.clone(), volume: volume.keys.volume, identity };
    let of_another = Keys { volume: VolumeId([8; 16]), ..volume.keys.clone() };
    for keys in [stranger, of_another] {
        let client = with(&mut volume, keys);
        let error = client.write(file, 0, vec![1]).wait().expect_err("it is refused");
        assert!(matches!(&error, VolumeError::Late(_, why) if why.contains("server 0")), "{error}");
    }
    // One that takes the volume for another shape would put bytes elsewhere.
    let odd = Client::start(client::Config {
        keys: volume.keys.clone(),
        number: ClientNo(99),
        servers: volume.at.clone(),
        stripe_size: 2 * STRIPE,
        write_threshold: Some(0),
        patience: Duration::from_secs(2),
    });
    let error = odd.expect("threads").write(file, 0, vec![1]).wait().expect_err("it is refused");
    assert!(matches!(&error, VolumeError::Late(_, why) if why.contains("stripes of")), "{error}");
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    assert!(Server::start(&volume.config(0), listener).is_err());
}
