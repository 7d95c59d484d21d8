//! Who may do what in a volume, by the key that he holds: real servers and a real catalog on loopback.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use haul_core::entry::{Meta, Name};
use haul_core::volume::catalog::{
    Answer, EntryNo, Facts, Message as Catalog, Place, ROOT, Request as Ask, Setting,
};
use haul_core::volume::check::{Ask as CheckAsk, Check};
use haul_core::volume::layout::{Placing, Striping};
use haul_core::volume::rights::{READ_ONLY, READERS, SERVERS_ONLY};
use haul_core::volume::wire::{Message, Visit, VolumeId, Who};
use haul_core::volume::{
    ClientNo, ContentVersion, Epoch, FileNo, RequestNo, ServerNo, Session, gather, storage,
};
use haul_transport::tls;
use haul_volume::catalog::client::Client as Names;
use haul_volume::catalog::server::{Options, Server as CatalogServer};
use haul_volume::catalog::store::Store;
use haul_volume::client::{self, Client, VolumeError};
use haul_volume::dial::Keys;
use haul_volume::door::Guests;
use haul_volume::key::Key;
use haul_volume::line::{self, Incoming, Mouth};
use haul_volume::server::{Config, Server};
use haul_volume::visit::{VisitError, visit};

const STRIPE: u64 = 64 * 1024;
const VOLUME: VolumeId = VolumeId([6; 16]);
/// Nothing here takes so long on a machine that works; it ends what hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A volume of one server on this host, and the keys of each who uses it.
struct Rig {
    _dir: tempfile::TempDir,
    servers: Keys,
    owner: Keys,
    reader: Keys,
    at: SocketAddr,
    catalog_at: SocketAddr,
    server: Server,
    catalog: CatalogServer,
}

impl Rig {
    fn new() -> Rig {
        let [key, owner, reader] = [(); 3].map(|()| Key::generate().expect("randomness"));
        let public = |key: &Key| key.public().expect("a key");
        let guests = Guests { owner: Some(public(&owner).pin()), reader: Some(public(&reader).pin()) };
        let servers = key.keys(VOLUME).expect("a key");
        let guest = |one: &Key| one.keys_to(VOLUME, &public(&key)).expect("a key");
        let dir = tempfile::tempdir().expect("a directory");
        let bind = || TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let listener = bind();
        let at = listener.local_addr().expect("bound");
        let facts = Facts {
            stripe: STRIPE as u32,
            placement: "round-robin".into(),
            servers: vec![at.to_string().into()],
        };
        let store = Store::create(&dir.path().join("c"), VOLUME, &facts).expect("made");
        let doors = (servers.clone(), guests.clone());
        let catalog = CatalogServer::start_for(store, doors, bind(), Options::default()).expect("started");
        let config = Config {
            root: dir.path().join("s"),
            keys: servers.clone(),
            me: ServerNo(0),
            servers: vec![at],
            stripe_size: STRIPE,
            threads: 2,
            notice: Arc::new(|text| eprintln!("{text}")),
        };
        let server = Server::start_for(&config, guests, listener).expect("started");
        let (owner, reader, catalog_at) = (guest(&owner), guest(&reader), catalog.address());
        Rig { _dir: dir, servers, owner, reader, at, catalog_at, server, catalog }
    }

    fn names(&self, keys: &Keys) -> Names {
        Names::connect(keys.clone(), self.catalog_at, PATIENCE).expect("connected")
    }

    fn client(&self, keys: &Keys, number: ClientNo) -> Client {
        let keys = keys.clone();
        let servers = vec![self.at];
        let write_threshold = Some(4096);
        let config = client::Config {
            keys,
            number,
            servers,
            stripe_size: STRIPE,
            write_threshold,
            patience: PATIENCE,
        };
        Client::start(config).expect("threads")
    }

    /// A connection that says what the test says.
    fn line(&self, keys: &Keys, to: SocketAddr) -> Line {
        let stream = TcpStream::connect(to).expect("connected");
        let link = tls::client(stream, &keys.identity, &keys.pin, PATIENCE).expect("a link");
        let (incoming, mouth) = line::speak(link, "test", None).expect("a thread");
        Line { incoming, mouth, next: 1 }
    }

    /// One that joined the server.
    fn joined(&self, keys: &Keys, who: Who) -> Line {
        let line = self.line(keys, self.at);
        let striping = Striping { servers: 1, stripe_size: STRIPE };
        let session = Session(1);
        line.say(Message::Join { volume: VOLUME, who, session, to: ServerNo(0), striping });
        line
    }
}

struct Line {
    incoming: Incoming,
    mouth: Mouth,
    next: u64,
}

impl Line {
    fn say(&self, message: Message) {
        let bytes = vec![9; message.following() as usize];
        self.mouth.say(message, Arc::new(bytes));
    }

    /// What comes next; `None`: the connection is over.
    fn hear(&mut self) -> Option<Message> {
        self.incoming.receive(|_| Ok(())).ok().flatten().map(|(message, _)| message)
    }

    fn number(&mut self) -> RequestNo {
        self.next += 1;
        RequestNo(self.next)
    }

    fn gather(&mut self, request: gather::Request<u32>) -> gather::Answer {
        let number = self.number();
        self.say(Message::Gather(number, request));
        loop {
            match self.hear().expect("it is answered") {
                Message::Gathered(of, answer, _) if of == number => return answer,
                Message::StorageJoined(_) | Message::GathererJoined(_) | Message::Costs(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn store(&mut self, request: storage::Request<u32>) -> storage::Answer<u32> {
        let number = self.number();
        self.say(Message::Store(number, request));
        loop {
            match self.hear().expect("it is answered") {
                Message::Stored(of, answer, _) if of == number => return answer,
                Message::StorageJoined(_) | Message::GathererJoined(_) | Message::Costs(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// The errno of what the catalog refuses.
    fn refused(&mut self, request: Ask) -> i32 {
        let number = self.number();
        self.say(Message::Catalog(Catalog::Ask(number, request)));
        loop {
            match self.hear().expect("it is answered") {
                Message::Catalog(Catalog::Answer(of, Answer::Failed(failure))) if of == number => {
                    return failure.errno;
                }
                Message::Catalog(Catalog::Joined { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// It was ended, and why.
    fn ends(mut self) -> String {
        loop {
            match self.hear() {
                Some(Message::Refused(why)) => return why.into(),
                Some(_) => {}
                None => panic!("it ended without a word"),
            }
        }
    }
}

fn place(name: &str) -> Place {
    Place { parent: ROOT, name: Name::new(name.as_bytes()).expect("legal") }
}

/// A file of the owner's, whose bytes are these.
fn owners_file(rig: &Rig, bytes: &[u8]) -> (Names, Client, EntryNo) {
    let names = rig.names(&rig.owner);
    let client = rig.client(&rig.owner, names.number());
    let (entry, _) = names.create(place("f"), Meta::default(), true, false).expect("made");
    let file = FileNo(entry.id.0);
    client.write(file, 0, bytes.to_vec()).wait().expect("written");
    client.sync(file).wait().expect("synced");
    (names, client, entry.id)
}

/// Goal: whoever holds a key for reading reads names and bytes, and is refused every change by whom he asks,
/// whatever his program says; the file is as it was.
/// Method: each request that changes something, said by hand.
#[test]
fn readers_read_and_change_nothing() {
    let rig = Rig::new();
    let bytes: Vec<u8> = (0..3 * STRIPE).map(|at| (at % 251) as u8).collect();
    let (owners, owner, entry) = owners_file(&rig, &bytes);
    let file = FileNo(entry.0);
    let before = owners.stat(entry).expect("there");

    let names = rig.names(&rig.reader);
    assert!(names.number().0 & READERS != 0);
    assert_eq!(names.lookup(place("f")).expect("there").id, entry);
    assert_eq!(names.read_dir(ROOT, None).expect("read").0.len(), 1);
    names.open(entry).expect("opened");
    let reader = rig.client(&rig.reader, names.number());
    assert!(reader.read(file, 0, bytes.len() as u64).wait().expect("read").bytes == bytes);
    assert_eq!(reader.look(file).wait().expect("looked at").end, bytes.len() as u64);
    for error in [
        reader.write(file, 0, vec![1; 10]).wait().expect_err("gathered"),
        reader.write(file, 0, vec![1; 10_000]).wait().expect_err("direct"),
        reader.truncate(file, 0).wait().expect_err("cut"),
        reader.append(file, vec![1]).wait().expect_err("appended"),
        reader.remove(file).wait().expect_err("removed"),
    ] {
        assert_eq!(error, VolumeError::Failed(ServerNo(0), READ_ONLY));
    }

    let mut line = rig.line(&rig.reader, rig.catalog_at);
    line.say(Message::Catalog(Catalog::Join { volume: VOLUME, client: None, session: Session(1) }));
    let (meta, set) = (Meta::default(), Setting { mode: Some(0o600), ..Setting::default() });
    let create = |exclusive| Ask::Create {
        at: place("f"),
        meta,
        exclusive,
        open: true,
        placing: Placing::ROUND_ROBIN,
    };
    for request in [
        Ask::Mkdir { at: place("d"), meta },
        create(true),
        create(false),
        Ask::Symlink { at: place("l"), meta, target: b"f"[..].into() },
        Ask::SetAttr { id: entry, set },
        Ask::SetAttr { id: entry, set: Setting { written: true, ..Setting::default() } },
        Ask::Rename { from: place("f"), to: place("g"), noreplace: false },
        Ask::Unlink(place("f")),
        Ask::Rmdir(place("d")),
        Ask::Note { place: "h:/a".into(), files: Vec::new() },
        Ask::Check,
        Ask::ToRemove { server: ServerNo(0), after: FileNo(0) },
        Ask::Removed { server: ServerNo(0), files: vec![file] },
    ] {
        assert_eq!(line.refused(request.clone()), READ_ONLY, "{request:?}");
    }

    let me = Who::Client(ClientNo(77 | READERS));
    let mut line = rig.joined(&rig.reader, me);
    let (epoch, version) = (Epoch { gatherer: u32::MAX, fence: 0 }, ContentVersion::default());
    for request in [
        gather::Request::Write { file, offset: 0, len: 8, bytes: 8 },
        gather::Request::Lease { file, stripes: 0..1 },
        gather::Request::Sync { file },
        gather::Request::Append { file, number: gather::AppendNo(1), len: 8, bytes: 8 },
        gather::Request::Truncate { file, len: 0 },
        gather::Request::Told { file, version },
        gather::Request::Remove { file },
    ] {
        assert_eq!(line.gather(request.clone()), gather::Answer::Failed(READ_ONLY), "{request:?}");
    }
    // It has no answer, and would make the file longer.
    let number = line.number();
    line.say(Message::Gather(number, gather::Request::Grow { file, epoch, end: 1 << 30 }));
    for request in [
        storage::Request::Write { file, epoch, offset: 0, bytes: 8 },
        storage::Request::Sync { file },
        storage::Request::Cut { file, epoch, from: 0 },
        storage::Request::Remove { file, epoch },
    ] {
        assert_eq!(line.store(request.clone()), storage::Answer::Failed(READ_ONLY), "{request:?}");
    }

    // He is no other client, no server, looks into no server's directory, and ends nobody.
    for who in [Who::Client(ClientNo(owners.number().0)), Who::Gatherer(ServerNo(0))] {
        assert!(rig.joined(&rig.reader, who).ends().contains("nobody is such"), "{who:?}");
    }
    let line = rig.line(&rig.reader, rig.catalog_at);
    let client = Some(owners.number());
    line.say(Message::Catalog(Catalog::Join { volume: VOLUME, client, session: Session(99) }));
    assert!(line.ends().contains("nobody is such"));
    let line = rig.line(&rig.reader, rig.at);
    line.say(Message::Check(Check { volume: VOLUME, to: ServerNo(0), ask: CheckAsk::Itself }));
    assert!(line.ends().contains("for reading"));
    for (at, to) in [(rig.at, Some(ServerNo(0))), (rig.catalog_at, None)] {
        let line = rig.line(&rig.reader, at);
        line.say(Message::Visit(Visit { volume: VOLUME, to, end: true }));
        assert!(line.ends().contains("for reading"));
        visit(&rig.reader, at, to, false, PATIENCE).expect("looking is allowed");
    }
    for visits in [rig.server.visits(), rig.catalog.visits()] {
        assert!(!visits.wait(Duration::ZERO), "a reader ended it");
    }

    assert_eq!(owners.stat(entry).expect("there"), before);
    let read = owner.read(file, 0, bytes.len() as u64).wait().expect("read");
    assert!(read.bytes == bytes && read.end == bytes.len() as u64);
}

/// Goal: whoever holds the volume's access is no server: he cuts nothing behind the back of a gatherer, and
/// does not tell the catalog that bytes are gone; who holds no key of it is told that he is a stranger.
#[test]
fn owners_are_no_servers() {
    let rig = Rig::new();
    let (owners, _owner, entry) = owners_file(&rig, &[7; 100]);
    let file = FileNo(entry.0);
    let mut line = rig.joined(&rig.owner, Who::Client(ClientNo(77)));
    let epoch = Epoch { gatherer: u32::MAX, fence: 0 };
    for request in [storage::Request::Cut { file, epoch, from: 0 }, storage::Request::Remove { file, epoch }]
    {
        assert_eq!(line.store(request.clone()), storage::Answer::Failed(SERVERS_ONLY), "{request:?}");
    }
    for who in [Who::Client(ClientNo(77 | READERS)), Who::Gatherer(ServerNo(0))] {
        assert!(rig.joined(&rig.owner, who).ends().contains("nobody is such"), "{who:?}");
    }
    let failure = owners.to_remove(ServerNo(0), FileNo(0)).expect_err("refused");
    assert_eq!(failure.errno, SERVERS_ONLY, "{failure}");
    assert_eq!(owners.removed(ServerNo(0), vec![file]).expect_err("refused").errno, SERVERS_ONLY);
    rig.names(&rig.servers).to_remove(ServerNo(0), FileNo(0)).expect("servers may");

    let stranger = Key::generate().expect("randomness").keys(VOLUME).expect("a key");
    let stranger = Keys { pin: rig.owner.pin.clone(), ..stranger };
    for (at, to) in [(rig.at, Some(ServerNo(0))), (rig.catalog_at, None)] {
        let refused = visit(&stranger, at, to, false, PATIENCE).map(drop).expect_err("a stranger");
        assert!(matches!(refused, VisitError::Stranger { .. }), "{refused}");
    }
    assert!(visit(&rig.owner, rig.at, Some(ServerNo(0)), true, PATIENCE).is_ok());
    assert!(rig.server.visits().wait(Duration::ZERO), "the owner ends it");
}
