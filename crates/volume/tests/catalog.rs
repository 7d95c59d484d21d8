//! The catalog as it is used: real files, real TLS on loopback, its process killed while clients work.
//!
//! The process that is killed is this program again: it serves the directory that its environment names, on
//! the listener that it has as its standard input, so that clients find it where it was.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use haul_core::entry::{Meta, Name, Timestamp};
use haul_core::volume::catalog::{
    Answer, EntryNo, Facts, Kind, Message as Catalog, PAGE_MAX, Place, ROOT, Request, Setting,
};
use haul_core::volume::wire::{Message, VolumeId};
use haul_core::volume::{ClientNo, FileNo, RequestNo, ServerNo, Session};
use haul_transport::tls::{self, Identity, Pin};
use haul_volume::catalog::client::Client;
use haul_volume::catalog::server::{Options, Server};
use haul_volume::catalog::store::Store;
use haul_volume::dial::Keys;
use haul_volume::line::{Bytes, Incoming, Outgoing};

const VOLUME: VolumeId = VolumeId([3; 16]);
/// Nothing here takes so long on a machine that works; it ends what hangs.
const PATIENCE: Duration = Duration::from_secs(120);
const DIR: &str = "HAUL_TEST_CATALOG_DIR";

/// The key of all, from a seed, so that another process has it too.
fn keys_of(seed: u8, volume: VolumeId) -> Keys {
    // The head of an Ed25519 key in PKCS #8.
    let mut der = vec![0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
    der.extend([seed; 32]);
    let identity = Identity::of_pkcs8(&der).expect("a key");
    let pin = Pin(identity.public());
    Keys { volume, identity, pin }
}

fn keys() -> Keys {
    keys_of(1, VOLUME)
}

fn facts() -> Facts {
    Facts { stripe: 1 << 20, placement: "round-robin".into(), servers: vec!["a:1".into()] }
}

fn place(parent: EntryNo, name: &str) -> Place {
    Place { parent, name: Name::new(name.as_bytes()).expect("legal") }
}

fn meta() -> Meta {
    Meta { mode: 0o644, uid: 1, gid: 2, mtime: Timestamp { secs: 3, nanos: 4 } }
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

fn served() -> (tempfile::TempDir, Server) {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::create(&dir.path().join("c"), VOLUME, &facts()).expect("made");
    let server = Server::start(store, keys(), listener().0, Options::default()).expect("started");
    (dir, server)
}

fn client(to: SocketAddr) -> Client {
    Client::connect(keys(), to, PATIENCE).expect("connected")
}

fn names(client: &Client, dir: EntryNo) -> Vec<(Name, EntryNo)> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let (entries, more) = client.read_dir(dir, after).expect("read");
        after = entries.last().map(|(name, _)| name.clone());
        all.extend(entries.into_iter().map(|(name, entry)| (name, entry.id)));
        if !more {
            return all;
        }
    }
}

/// Goal: where nobody has patience any more a catalog that is there is waited for all the same, however long
/// nothing was asked of it; one that is gone is waited for once, and not by each call anew; and one that is
/// back answers again.
/// Method: calls in a row whose patience is longer than any test.
#[test]
fn in_a_hurry_only_who_is_away_is_left() {
    let hurry = Duration::from_millis(200);
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("c");
    let (listener, at) = listener();
    let again = listener.try_clone().expect("cloned");
    let store = Store::create(&path, VOLUME, &facts()).expect("made");
    let server = Server::start(store, keys(), listener, Options::default()).expect("started");
    let client = Client::connect(keys(), at, Duration::from_secs(3600)).expect("connected");
    client.stat(ROOT).expect("answered");
    client.hurry(Some(hurry));
    std::thread::sleep(hurry * 10);
    client.stat(ROOT).expect("it is there, and nothing was asked of it meanwhile");
    drop(server);
    for _ in 0..1000 {
        let failure = client.stat(ROOT).expect_err("it is gone");
        assert_eq!(failure.errno, rustix::io::Errno::TIMEDOUT.raw_os_error(), "{failure}");
    }
    assert!(client.away().is_some());
    client.hurry(None);
    let store = Store::open(&path, VOLUME).expect("it is there");
    let _server = Server::start(store, keys(), again, Options::default()).expect("started");
    client.stat(ROOT).expect("it is back, and has all the time");
}

/// Goal: every call does over a connection what it says, and fails with the errno that it should.
#[test]
fn calls_do_what_they_say() {
    let (_dir, server) = served();
    let client = client(server.address());
    assert_eq!((client.number(), client.facts()), (ClientNo(1), facts()));
    let dir = client.mkdir(place(ROOT, "d"), meta()).expect("made");
    assert_eq!((dir.parent, dir.kind, dir.meta), (Some(ROOT), Kind::Directory, meta()));
    let (file, new) = client.create(place(dir.id, "f"), meta(), false, true).expect("made");
    assert!(new);
    assert_eq!(client.create(place(dir.id, "f"), meta(), false, false), Ok((file.clone(), false)));
    let taken = client.create(place(dir.id, "f"), meta(), true, false).expect_err("it is there");
    assert_eq!((taken.errno, &*taken.words), (17, "the name is taken"));
    let link = client.symlink(place(dir.id, "l"), meta(), b"../x").expect("made");
    assert_eq!(client.lookup(place(dir.id, "l")), Ok(link.clone()));
    let set = Setting { mode: Some(0o600), ..Setting::default() };
    assert_eq!(client.set_attr(file.id, set).expect("set").meta.mode, 0o600);
    assert_eq!(client.stat(file.id).expect("there").meta, Meta { mode: 0o600, ..meta() });
    let (page, more) = client.read_dir(dir.id, None).expect("read");
    assert_eq!((page.len(), more), (2, false));
    assert_eq!(client.rmdir(place(ROOT, "d")).expect_err("full").errno, 39);
    client.rename(place(dir.id, "f"), place(ROOT, "g"), true).expect("renamed");
    client.unlink(place(ROOT, "g")).expect("unlinked");
    client.unlink(place(dir.id, "l")).expect("unlinked");
    client.rmdir(place(ROOT, "d")).expect("removed");
    assert_eq!(client.lookup(place(ROOT, "d")).expect_err("gone").errno, 2);
    // It is open still.
    assert_eq!(client.stat(file.id).expect("open").parent, None);
    client.close(file.id).expect("closed");
    assert_eq!(client.to_remove(ServerNo(1), FileNo(0)).expect_err("no such server").errno, 22);
    client.leave().expect("left");
}

/// Goal: pages of a directory are bounded, and together have every name once, in the order of bytes.
#[test]
fn pages_have_every_name_once() {
    let (_dir, server) = served();
    let clients: Vec<_> = (0..4).map(|_| client(server.address())).collect();
    let len = PAGE_MAX + 300;
    std::thread::scope(|scope| {
        for (n, client) in clients.iter().enumerate() {
            scope.spawn(move || {
                for name in (n..len).step_by(4) {
                    client.create(place(ROOT, &format!("{name}")), meta(), true, false).expect("made");
                }
            });
        }
    });
    let found: Vec<_> = names(&clients[0], ROOT).into_iter().map(|(name, _)| name).collect();
    let expected: BTreeSet<_> = (0..len).map(|n| place(ROOT, &format!("{n}")).name).collect();
    assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
}

/// Goal: what is under way when a connection breaks is done once, and answered.
/// Method: threads that share a client make, move and remove, while its connection is broken again and again.
/// Had one been done twice, its second answer would be that the name is taken, or not there.
#[test]
fn broken_connections_do_nothing_twice() {
    let (_dir, server) = served();
    let client = client(server.address());
    let over = AtomicBool::new(false);
    let (client, over) = (&client, &over);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                scope.spawn(move || {
                    for n in 0..15 {
                        let (at, to) = (format!("{worker}.{n}"), format!("{worker}.{n}.moved"));
                        let (file, new) = client.create(place(ROOT, &at), meta(), true, true).expect("made");
                        assert!(new);
                        client.rename(place(ROOT, &at), place(ROOT, &to), true).expect("renamed");
                        assert_eq!(client.lookup(place(ROOT, &to)).expect("there").id, file.id);
                        client.unlink(place(ROOT, &to)).expect("unlinked");
                        client.stat(file.id).expect("it is open");
                        client.close(file.id).expect("closed");
                    }
                })
            })
            .collect();
        scope.spawn(move || {
            while !over.load(Ordering::Acquire) {
                client.break_connection();
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        // The breaker ends also when a worker fails.
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        over.store(true, Ordering::Release);
        assert!(ended.iter().all(Result::is_ok));
    });
    assert_eq!(names(client, ROOT), []);
}

/// Not a test: the process that is killed.
#[test]
#[ignore = "it serves the catalog for the test that kills it"]
fn child_that_serves() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let input = std::io::stdin().as_fd().try_clone_to_owned().expect("a listener");
    let store = Store::open(Path::new(&dir), VOLUME).expect("opened");
    let server = Server::start(store, keys(), TcpListener::from(input), Options::default()).expect("started");
    while !server.is_over() {
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn child(dir: &Path, listener: &TcpListener) -> Child {
    let input: OwnedFd = listener.try_clone().expect("a descriptor").into();
    Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", "child_that_serves", "--ignored", "--nocapture"])
        .env(DIR, dir)
        .stdin(Stdio::from(input))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("started")
}

/// Goal: when the catalog's process is killed, nothing that was answered is lost, nothing is done twice, and
/// clients go on with the next.
/// Method: each client makes, moves and removes files while the process is killed and started again, and
/// notes what was answered; in the end the names are exactly those.
#[test]
fn a_killed_catalog_loses_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("c");
    drop(Store::create(&path, VOLUME, &facts()).expect("made"));
    let (listener, address) = listener();
    let mut process = child(&path, &listener);
    let clients: Vec<_> = (0..3).map(|_| client(address)).collect();
    let (done, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let work = |n: usize, client: &Client| {
        let mut kept = Vec::new();
        for file in 0.. {
            if over.load(Ordering::Acquire) {
                return kept;
            }
            let name = format!("{n}.{file}");
            let (made, new) = client.create(place(ROOT, &name), meta(), true, false).expect("made");
            assert!(new, "{name} was made by nobody else");
            let moved = format!("{name}.moved");
            client.rename(place(ROOT, &name), place(ROOT, &moved), true).expect("renamed");
            match file % 3 {
                0 => client.unlink(place(ROOT, &moved)).expect("unlinked"),
                _ => kept.push((place(ROOT, &moved).name, made.id)),
            }
            done.fetch_add(1, Ordering::AcqRel);
        }
        unreachable!("there are numbers enough")
    };
    let mut kept: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(n, client)| {
                let work = &work;
                scope.spawn(move || work(n, client))
            })
            .collect();
        let mut rng = fastrand::Rng::with_seed(5);
        for _ in 0..8 {
            // Work goes on for a while after each start, however slow this machine is.
            let (before, begun) = (done.load(Ordering::Acquire), Instant::now());
            let enough = before + rng.u64(3..30);
            while done.load(Ordering::Acquire) < enough && begun.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(1));
            }
            process.kill().expect("killed");
            process.wait().expect("it ended");
            process = child(&path, &listener);
        }
        over.store(true, Ordering::Release);
        workers.into_iter().flat_map(|worker| worker.join().expect("no call failed")).collect()
    });
    kept.sort();
    assert!(done.load(Ordering::Acquire) >= 24, "the clients went on");
    assert_eq!(names(&clients[0], ROOT), kept);
    let files: BTreeSet<_> = kept.iter().map(|(_, id)| id).collect();
    assert_eq!(files.len(), kept.len(), "no number was given twice");
    process.kill().expect("killed");
    process.wait().expect("it ended");
    let store = Store::open(&path, VOLUME).expect("whole");
    assert_eq!(store.check().expect("read"), [""; 0]);
}

/// Goal: what a client has open stays open over a restart of the catalog.
#[test]
fn what_is_open_is_told_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("c");
    let store = Store::create(&path, VOLUME, &facts()).expect("made");
    let (listener, address) = listener();
    let start = |store| {
        let listener = listener.try_clone().expect("a descriptor");
        Server::start(store, keys(), listener, Options::default()).expect("started")
    };
    let server = start(store);
    let client = client(address);
    let (file, _) = client.create(place(ROOT, "f"), meta(), true, true).expect("made");
    client.unlink(place(ROOT, "f")).expect("unlinked");
    drop(server);
    let _server = start(Store::open(&path, VOLUME).expect("opened"));
    assert_eq!(client.stat(file.id).expect("it is open").id, file.id);
    assert!(!client.is_lost(file.id));
}

/// A client that is none of ours: it says what it is told to. A fake.
struct Liar {
    incoming: Incoming,
    outgoing: Outgoing,
}

impl Liar {
    fn connect(to: SocketAddr) -> Liar {
        let stream = std::net::TcpStream::connect(to).expect("connected");
        let keys = keys();
        let link = tls::client(stream, &keys.identity, &keys.pin, PATIENCE).expect("a link");
        Liar { incoming: Incoming::new(link.reader), outgoing: Outgoing::new(link.writer) }
    }

    fn say(&mut self, message: Message) -> &mut Liar {
        self.outgoing.send(&message, &[]).and_then(|()| self.outgoing.flush()).expect("said");
        self
    }

    fn ask(&mut self, request: Request) -> &mut Liar {
        self.say(Message::Catalog(Catalog::Ask(RequestNo(1), request)))
    }

    fn join(&mut self, client: Option<ClientNo>, session: u64) -> &mut Liar {
        let session = Session(session);
        self.say(Message::Catalog(Catalog::Join { volume: VOLUME, client, session }))
    }

    fn hear(&mut self) -> Option<Message> {
        let said: Option<(Message, Bytes)> = self.incoming.receive(|_| Ok(())).expect("no bad frame");
        said.map(|(message, _)| message)
    }

    fn is_refused(&mut self, words: &str) {
        match self.hear() {
            Some(Message::Refused(why)) => assert!(why.contains(words), "{why}"),
            other => panic!("not refused: {other:?}"),
        }
    }

    fn errno(&mut self) -> i32 {
        match self.hear() {
            Some(Message::Catalog(Catalog::Answer(_, Answer::Failed(failure)))) => failure.errno,
            other => panic!("no failure: {other:?}"),
        }
    }
}

/// Goal: who lies gets errors, and others are served on.
#[test]
fn liars_get_errors() {
    let (_dir, server) = served();
    let to = server.address();
    let honest = client(to);
    let other = VolumeId([9; 16]);
    let join = Catalog::Join { volume: other, client: None, session: Session(1) };
    Liar::connect(to).say(Message::Catalog(join)).is_refused("another volume");
    Liar::connect(to).ask(Request::Leave).is_refused("does not join");
    Liar::connect(to).join(Some(ClientNo(77)), 1).is_refused("no client has this number");
    Liar::connect(to).say(Message::Pong(1)).is_refused("nothing that a catalog is told");
    let mut liar = Liar::connect(to);
    liar.join(None, 1);
    let Some(Message::Catalog(Catalog::Joined { client, .. })) = liar.hear() else { panic!("not joined") };
    for id in [EntryNo(999), EntryNo(i64::MAX as u64)] {
        assert_eq!(liar.ask(Request::Stat(id)).errno(), 2);
        assert_eq!(liar.ask(Request::Mkdir { at: place(id, "x"), meta: meta() }).errno(), 2);
        assert_eq!(liar.ask(Request::ReadDir { dir: id, after: None, max: 1 }).errno(), 2);
        assert_eq!(liar.ask(Request::SetAttr { id, set: Setting::default() }).errno(), 2);
    }
    assert_eq!(liar.ask(Request::Removed { server: ServerNo(7), files: vec![] }).errno(), 22);
    // An older session of a client that has a newer one is not heard; the newer goes on.
    Liar::connect(to).join(Some(client), 1).is_refused("newer connection");
    assert_eq!(liar.ask(Request::Stat(EntryNo(999))).errno(), 2);
    // A newer one ends the older.
    let mut newer = Liar::connect(to);
    newer.join(Some(client), 2);
    assert!(matches!(newer.hear(), Some(Message::Catalog(Catalog::Joined { .. }))));
    assert!(!matches!(liar.incoming.receive(|_| Ok(())), Ok(Some(_))), "the older one is over");
    // What cannot be said at all: bad names have a test of the wire; a page that is too long ends it too.
    newer.ask(Request::ReadDir { dir: ROOT, after: None, max: u16::MAX }).is_refused("length of a page");
    // Who left is not heard.
    let mut left = Liar::connect(to);
    left.join(None, 1).hear();
    left.ask(Request::Leave).hear();
    left.ask(Request::Stat(ROOT)).is_refused("who has not joined");
    assert_eq!(honest.stat(ROOT).expect("served on").id, ROOT);
}

/// Goal: who has another key is not served, nor does it serve.
#[test]
fn another_key_is_refused() {
    let (_dir, server) = served();
    let patience = Duration::from_secs(1);
    let failure =
        Client::connect(keys_of(2, VOLUME), server.address(), patience).map(drop).expect_err("refused");
    assert_eq!(failure.errno, 110, "{failure}");
}

/// Measures creates, stats, renames and unlinks a second.
/// `cargo test -p haul-volume --test catalog -- --ignored --nocapture figures`
#[test]
#[ignore = "it measures"]
fn figures() {
    let root = std::env::var_os("HAUL_FIGURES_DIR").map_or_else(std::env::temp_dir, Into::into);
    for (clients, group_max) in [(1, 256), (8, 256), (8, 1), (32, 256)] {
        let dir = tempfile::tempdir_in(&root).expect("a directory");
        let store = Store::create(&dir.path().join("c"), VOLUME, &facts()).expect("made");
        let server = Server::start(store, keys(), listener().0, Options { group_max, ..Options::default() })
            .expect("started");
        let all: Vec<_> = (0..clients).map(|_| client(server.address())).collect();
        let len = 1600 / clients;
        let rate = |what: &str, call: &(dyn Fn(&Client, usize, usize) + Sync)| {
            let begun = Instant::now();
            std::thread::scope(|scope| {
                for (n, client) in all.iter().enumerate() {
                    scope.spawn(move || (0..len).for_each(|file| call(client, n, file)));
                }
            });
            let rate = (len * clients) as f64 / begun.elapsed().as_secs_f64();
            println!("clients {clients} group {group_max}: {rate:.0} {what} a second");
        };
        let name = |n: usize, file: usize| place(ROOT, &format!("{n}.{file}"));
        let moved = |n: usize, file: usize| place(ROOT, &format!("{n}.{file}.moved"));
        rate("creates", &|client, n, file| {
            client.create(name(n, file), meta(), true, false).expect("made");
        });
        rate("lookups", &|client, n, file| drop(client.lookup(name(n, file)).expect("there")));
        rate("stats", &|client, _, _| drop(client.stat(ROOT).expect("there")));
        rate("renames", &|client, n, file| {
            client.rename(name(n, file), moved(n, file), true).expect("renamed");
        });
        rate("unlinks", &|client, n, file| client.unlink(moved(n, file)).expect("unlinked"));
    }
}
