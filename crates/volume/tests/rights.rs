//! Who may do what in a volume, by the key that he holds: real servers and a real catalog on loopback.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use haul_core::entry::{Meta, Name};
use haul_core::volume::catalog::{
    Answer, EntryNo, Facts, Message as Catalog, Place, ROOT, Request as Ask, Setting,
};
use haul_core::volume::check::{Ask as CheckAsk, Check};
use haul_core::volume::layout::{Given, Placing, Striping};
use haul_core::volume::rights::{READ_ONLY, READERS, SERVERS_ONLY};
use haul_core::volume::ticket::{self, PARTED_TERMS, Rights, Sealed, Term, Ticket};
use haul_core::volume::wire::{Learn, Message, Visit, VolumeId, Wanted, Who};
use haul_core::volume::{
    ClientNo, ContentVersion, Epoch, FileNo, RequestNo, ServerNo, Session, gather, storage,
};
use haul_core::wire::FILE_LEN_MAX;
use haul_transport::tls;
use haul_volume::catalog::client::{Client as Names, Terms};
use haul_volume::catalog::server::{Options, Server as CatalogServer};
use haul_volume::catalog::store::Store;
use haul_volume::client::{self, Client, VolumeError};
use haul_volume::dial::Keys;
use haul_volume::door::Guests;
use haul_volume::key::Key;
use haul_volume::line::{self, Incoming, Mouth};
use haul_volume::server::{Config, Server};
use haul_volume::sweep::{self, Sweeper};
use haul_volume::visit::{VisitError, visit};

const STRIPE: u64 = 64 * 1024;
const VOLUME: VolumeId = VolumeId([6; 16]);
/// Nothing here takes so long on a machine that works; it ends what hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client that went from the catalog has so long to come back, and everybody after a start.
const GRACE: Duration = Duration::from_millis(500);

/// A volume of one server on this host, and the keys of each who uses it.
struct Rig {
    _dir: tempfile::TempDir,
    config: Config,
    guests: Guests,
    servers: Keys,
    owner: Keys,
    reader: Keys,
    tickets: ticket::Key,
    at: SocketAddr,
    catalog_at: SocketAddr,
    /// The catalog told the server of its term.
    heard: Arc<AtomicBool>,
    _sweeper: Sweeper,
    server: Option<Server>,
    catalog: Option<CatalogServer>,
}

impl Rig {
    fn new() -> Rig {
        Rig::with_terms(None)
    }

    fn with_terms(term: Option<Duration>) -> Rig {
        let [key, owner, reader] = [(); 3].map(|()| Key::generate().expect("randomness"));
        let public = |key: &Key| key.public().expect("a key");
        let tickets = key.tickets(VOLUME);
        let guests = Guests {
            owner: Some(public(&owner).pin()),
            reader: Some(public(&reader).pin()),
            tickets: Some(tickets.clone()),
            term,
        };
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
        let catalog =
            CatalogServer::start_for(store, doors, bind(), Options { grace: GRACE, ..Options::default() });
        let catalog = catalog.expect("started");
        let config = Config {
            root: dir.path().join("s"),
            keys: servers.clone(),
            me: ServerNo(0),
            servers: vec![at],
            stripe_size: STRIPE,
            threads: 2,
            notice: Arc::new(|text| eprintln!("{text}")),
        };
        let server = Server::start_for(&config, guests.clone(), listener).expect("started");
        let (owner, reader, catalog_at) = (guest(&owner), guest(&reader), catalog.address());
        let sweeper = sweep::Config {
            keys: servers.clone(),
            me: ServerNo(0),
            catalog: catalog_at,
            servers: vec![at],
            stripe_size: STRIPE,
            notice: Arc::new(|text| eprintln!("{text}")),
        };
        let (heard, tells) = (Arc::new(AtomicBool::new(false)), server.terms());
        let is_heard = heard.clone();
        let terms: Terms = Arc::new(move |term, raised| {
            tells(term, raised);
            is_heard.store(true, Ordering::Release);
        });
        let sweeper = Sweeper::start_for(sweeper, terms).expect("a thread");
        let (server, catalog) = (Some(server), Some(catalog));
        Rig {
            _dir: dir,
            config,
            guests,
            servers,
            owner,
            reader,
            tickets,
            at,
            catalog_at,
            heard,
            _sweeper: sweeper,
            server,
            catalog,
        }
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("it runs")
    }

    fn names(&self, keys: &Keys) -> Names {
        Names::connect(keys.clone(), self.catalog_at, PATIENCE).expect("connected")
    }

    fn client(&self, keys: &Keys, names: &Names) -> Client {
        let (keys, number) = (keys.clone(), names.number());
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
        Client::start_for(config, names).expect("threads")
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
        let striping = Striping::new(STRIPE, 1);
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
                Message::Catalog(Catalog::Joined { .. }) | Message::Tickets(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// What becomes of a request: its answer, or that another ticket is wanted, and which there was.
    fn tries(&mut self, request: gather::Request<u32>) -> Result<gather::Answer, Option<u64>> {
        let number = self.number();
        self.say(Message::Gather(number, request));
        loop {
            match self.hear().expect("it is answered") {
                Message::Gathered(of, answer, _) if of == number => return Ok(answer),
                Message::TicketWanted(Wanted { number: of, had, .. }) if of == number => return Err(had),
                Message::StorageJoined(_) | Message::GathererJoined(_) | Message::Costs(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// The same of a storage server.
    fn tries_store(&mut self, request: storage::Request<u32>) -> Result<storage::Answer<u32>, Option<u64>> {
        let number = self.number();
        self.say(Message::Store(number, request));
        loop {
            match self.hear().expect("it is answered") {
                Message::Stored(of, answer, _) if of == number => return Ok(answer),
                Message::TicketWanted(Wanted { number: of, had, .. }) if of == number => return Err(had),
                Message::StorageJoined(_) | Message::GathererJoined(_) | Message::Costs(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn shows(&self, sealed: &Sealed) {
        self.say(Message::Ticket(sealed.clone()));
    }

    /// Joins the catalog by hand: the client's number, and the term that it is.
    fn joins_catalog(&mut self) -> (ClientNo, Term) {
        self.say(Message::Catalog(Catalog::Join { volume: VOLUME, client: None, session: Session(1) }));
        let mut term = None;
        loop {
            match self.hear().expect("it is answered") {
                Message::Tickets(given) => term = Some(given.term),
                Message::Catalog(Catalog::Joined { client, .. }) => {
                    return (client, term.expect("it was told"));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// What comes with an answer of the catalog, before it.
    fn asks(&mut self, request: Ask) -> (Vec<Sealed>, Answer) {
        let number = self.number();
        self.say(Message::Catalog(Catalog::Ask(number, request)));
        let mut tickets = Vec::new();
        loop {
            match self.hear().expect("it is answered") {
                Message::Tickets(given) => tickets.extend(given.tickets),
                Message::Catalog(Catalog::Answer(of, answer)) if of == number => return (tickets, answer),
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
    let client = rig.client(&rig.owner, &names);
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
    let reader = rig.client(&rig.reader, &names);
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
        Ask::Place(Given::each(&[0]).expect("a list")),
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
    let line = rig.line(&rig.reader, rig.at);
    let (placing, list) = (Placing::given(0).expect("one"), Given::each(&[0]).expect("a list"));
    line.say(Message::Learn(Learn { volume: VOLUME, to: ServerNo(0), placing, list }));
    assert!(line.ends().contains("for reading"));
    for (at, to) in [(rig.at, Some(ServerNo(0))), (rig.catalog_at, None)] {
        let line = rig.line(&rig.reader, at);
        line.say(Message::Visit(Visit { volume: VOLUME, to, end: true }));
        assert!(line.ends().contains("for reading"));
        visit(&rig.reader, at, to, false, PATIENCE).expect("looking is allowed");
    }
    for visits in [rig.server().visits(), rig.catalog.as_ref().expect("it runs").visits()] {
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
    assert!(rig.server().visits().wait(Duration::ZERO), "the owner ends it");
}

fn read(file: FileNo) -> gather::Request<u32> {
    gather::Request::Read { file, offset: 0, len: 8 }
}

/// Goal: a server does for a client what a ticket of the catalog is good for, and nothing without one, with
/// one that was made up, is another client's or another volume's, is for less, or is of an epoch or a term
/// that is over. Method: tickets as the catalog gives them, and such as the test seals, shown by hand.
#[test]
fn servers_check_tickets() {
    let rig = Rig::new();
    let (owners, _owner, entry) = owners_file(&rig, &[7; 100]);
    let file = FileNo(entry.0);
    let mut names = rig.line(&rig.owner, rig.catalog_at);
    let (client, term) = names.joins_catalog();
    let (given, _) = names.asks(Ask::Lookup(place("f")));
    let [good] = &given[..] else { panic!("{given:?}") };
    assert_eq!((good.ticket.file, good.ticket.client, good.ticket.term), (file, client, term));
    assert_eq!((good.ticket.rights, good.ticket.epoch), (Rights::ALL, 0));

    let mut line = rig.joined(&rig.owner, Who::Client(client));
    assert_eq!(line.tries(read(file)), Err(None));
    assert_eq!(line.tries_store(storage::Request::Read { file, offset: 0, len: 8 }), Err(None));
    let made_up = Sealed { code: [1; 32], ..good.clone() };
    let of_another = rig.tickets.seal(VolumeId([5; 16]), good.ticket.clone());
    let of_other = rig.tickets.seal(VOLUME, Ticket { client: owners.number(), ..good.ticket.clone() });
    for bad in [made_up, of_another, of_other] {
        line.shows(&bad);
        assert_eq!(line.tries(read(file)), Err(Some(bad.name())), "{bad:?}");
    }
    line.shows(good);
    assert!(matches!(line.tries(read(file)), Ok(gather::Answer::Read { end: 100, .. })));
    let all = storage::Request::Read { file, offset: 0, len: 100 };
    // Its bytes may be in the gatherer's log as yet: then none lies there.
    assert!(matches!(line.tries_store(all), Ok(storage::Answer::Read(0 | 100))));
    let other = FileNo(file.0 + 1);
    assert_eq!(line.tries(read(other)), Err(None));

    // For less.
    let seals = |change: &dyn Fn(&mut Ticket)| {
        let mut ticket = good.ticket.clone();
        change(&mut ticket);
        rig.tickets.seal(VOLUME, ticket)
    };
    let denied = Ok(gather::Answer::Failed(13));
    line.shows(&seals(&|ticket| ticket.range = 0..4));
    assert_eq!(line.tries(read(file)), denied);
    line.shows(&seals(&|ticket| ticket.rights = Rights::READ));
    assert!(matches!(line.tries(read(file)), Ok(gather::Answer::Read { .. })));
    assert_eq!(line.tries(gather::Request::Write { file, offset: 0, len: 8, bytes: 8 }), denied);
    assert_eq!(line.tries(gather::Request::Lease { file, stripes: 0..1 }), denied);
    line.shows(&seals(&|ticket| ticket.rights = Rights::WRITE));
    assert_eq!(line.tries(gather::Request::Truncate { file, len: 0 }), denied);

    // What has no answer is not lost without a word.
    let number = line.number();
    line.say(Message::Gather(number, gather::Request::Grow { file: other, epoch: Epoch::default(), end: 9 }));
    assert!(line.ends().contains("without a ticket"));

    // Terms and epochs.
    let mut line = rig.joined(&rig.owner, Who::Client(ClientNo(client.0 + 1000)));
    let mine = |ticket: &mut Ticket| ticket.client.0 += 1000;
    let now = seals(&|ticket| mine(ticket));
    line.shows(&now);
    assert!(line.tries(read(file)).is_ok());
    (rig.server().terms())(term.next(), Vec::new());
    assert!(line.tries(read(file)).is_ok(), "it is the term before");
    (rig.server().terms())(term.next().next(), Vec::new());
    assert_eq!(line.tries(read(file)), Err(Some(now.name())));
    // What was done under it is told all the same, also over a connection of after.
    let mut line = rig.joined(&rig.owner, Who::Client(ClientNo(client.0 + 2000)));
    let over = seals(&|ticket| ticket.client.0 += 2000);
    line.shows(&over);
    let number = line.number();
    line.say(Message::Gather(number, gather::Request::Grow { file, epoch: Epoch::default(), end: 9 }));
    assert_eq!(line.tries(read(file)), Err(Some(over.name())));
    let mine = |ticket: &mut Ticket| ticket.client.0 += 2000;
    let later = seals(&|ticket| {
        mine(ticket);
        ticket.term = term.next();
    });
    line.shows(&later);
    assert!(line.tries(read(file)).is_ok());
    line.shows(&seals(&|ticket| {
        mine(ticket);
        (ticket.term, ticket.epoch) = (term.next(), 1);
    }));
    assert!(line.tries(read(file)).is_ok());
    line.shows(&later);
    assert_eq!(line.tries(read(file)), Err(Some(later.name())));
    // A reader gets tickets for reading.
    let mut names = rig.line(&rig.reader, rig.catalog_at);
    names.joins_catalog();
    let (given, _) = names.asks(Ask::Lookup(place("f")));
    assert_eq!(given[0].ticket.rights, Rights::READ);
}

/// Goal: terms that end cost whoever uses a file nothing but a question: everything that is asked comes to
/// its end, and all bytes are right. Method: terms of 50 ms; two clients write, append, cut, sync, read and
/// look until a dozen of terms are over.
#[test]
fn terms_that_end_are_not_noticed() {
    let rig = Rig::with_terms(Some(Duration::from_millis(50)));
    let (names, client, entry) = owners_file(&rig, &[0; 64]);
    let readers = rig.names(&rig.reader);
    let reader = rig.client(&rig.reader, &readers);
    let file = FileNo(entry.0);
    let until = Term(names.term().0 + 12);
    let begun = Instant::now();
    let mut round = 0_u64;
    while names.term() < until || round < 20 {
        assert!(begun.elapsed() < PATIENCE, "terms do not go on");
        // More requests at a time than a few.
        let bytes: Vec<u8> = (0..24 * STRIPE + 999).map(|at| (at * 7 + round) as u8).collect();
        let small = client.write(file, 10, vec![round as u8; 100]);
        let large = client.write(file, 200, bytes.clone());
        small.wait().expect("gathered");
        large.wait().expect("written");
        client.sync(file).wait().expect("synced");
        let read = reader.read(file, 200, bytes.len() as u64).wait().expect("read");
        assert!(read.bytes == bytes, "round {round}");
        let end = 200 + bytes.len() as u64;
        assert_eq!(client.append(file, vec![1; 10]).wait().expect("appended"), end);
        assert_eq!(reader.look(file).wait().expect("looked at").end, end + 10);
        client.truncate(file, 200).wait().expect("cut");
        // What is not asked for a while meets the end of terms for certain.
        std::thread::sleep(Duration::from_millis(20));
        round += 1;
    }
    eprintln!("{round} rounds in {} terms", names.term().0 - until.0 + 12);
}

/// Goal: a ticket is good for no more than its term and the next one, as terms begin by themselves, and for
/// no less.
#[test]
fn old_tickets_end_with_their_terms() {
    let rig = Rig::with_terms(Some(Duration::from_millis(200)));
    let (owners, _owner, entry) = owners_file(&rig, &[7; 100]);
    let mut names = rig.line(&rig.owner, rig.catalog_at);
    let (client, _) = names.joins_catalog();
    let (given, _) = names.asks(Ask::Lookup(place("f")));
    let mut line = rig.joined(&rig.owner, Who::Client(client));
    line.shows(&given[0]);
    let begun = Instant::now();
    while line.tries(read(FileNo(entry.0))).is_ok() {
        assert!(begun.elapsed() < PATIENCE, "an old ticket is good for ever");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(owners.term().0 >= given[0].ticket.term.0 + 2, "it was good for less than two terms");
}

/// Goal: what loses its name is used by who has it open, and goes on to be; whoever has not gets no ticket
/// for it, and what he was given before is good for nothing at servers, long before it is over by its term;
/// of what nobody has open any more there are none but for removing what is left of it. Method: terms of a
/// minute, which do not end here.
#[test]
fn what_has_no_name_is_whose_it_is() {
    let rig = Rig::new();
    let (owners, owner, entry) = owners_file(&rig, &[7; 100]);
    let file = FileNo(entry.0);
    owners.open(entry).expect("opened");
    let mut names = rig.line(&rig.owner, rig.catalog_at);
    let (client, _) = names.joins_catalog();
    let (given, _) = names.asks(Ask::Lookup(place("f")));
    let old = given[0].clone();
    let mut line = rig.joined(&rig.owner, Who::Client(client));
    line.shows(&old);
    assert!(line.tries(read(file)).is_ok());
    // Servers hear of it over their connections to the catalog, which may not stand yet.
    let begun = Instant::now();
    while !rig.heard.load(Ordering::Acquire) {
        assert!(begun.elapsed() < PATIENCE, "the server did not hear its catalog");
        std::thread::sleep(Duration::from_millis(10));
    }
    owners.unlink(place("f")).expect("unlinked");
    let write = || gather::Request::Write { file, offset: 0, len: 8, bytes: 8 };
    while line.tries(write()) != Err(Some(old.name())) {
        assert!(begun.elapsed() < PATIENCE, "what was given before is good still");
        std::thread::sleep(Duration::from_millis(10));
    }
    let nothing = (Vec::new(), Answer::Files(Vec::new()));
    assert_eq!(names.asks(Ask::Tickets(vec![entry])), nothing, "it has it not open");

    assert!(owner.read(file, 50, 50).wait().expect("it has it open").bytes == [7; 50]);
    owner.write(file, 50, vec![8; 50]).wait().expect("it has it open");
    names.asks(Ask::Open(vec![entry]));
    let (given, _) = names.asks(Ask::Tickets(vec![entry]));
    assert_eq!((given[0].ticket.epoch, given[0].ticket.rights), (1, Rights::ALL));
    line.shows(&given[0]);
    assert!(line.tries(read(file)).is_ok());
    names.asks(Ask::Close(vec![entry]));
    owners.close(entry).expect("closed");
    let begun = Instant::now();
    loop {
        let (given, _) = names.asks(Ask::Tickets(vec![entry]));
        if given.first().is_some_and(|sealed| sealed.ticket.rights == Rights::CUT) {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "it is kept for ever");
        std::thread::sleep(Duration::from_millis(20));
    }
    let others = rig.names(&rig.owner);
    let other = rig.client(&rig.owner, &others);
    assert_eq!(other.read(file, 0, 8).wait(), Err(VolumeError::Gone));
    assert_eq!(other.write(file, 0, vec![1; 8]).wait(), Err(VolumeError::Gone));
}

/// Goal: a server that was started anew, and does not hear its catalog, takes no ticket that was over before.
#[test]
fn a_server_knows_terms_of_before() {
    let mut rig = Rig::new();
    let (names, _owner, entry) = owners_file(&rig, &[7; 100]);
    let (file, client) = (FileNo(entry.0), ClientNo(names.number().0 + 1000));
    let last = Term(names.term().0 + 5);
    (rig.server().terms())(last, Vec::new());
    drop(rig.server.take());
    let listener = TcpListener::bind(rig.at).expect("the port is free");
    rig.server = Some(Server::start_for(&rig.config, rig.guests.clone(), listener).expect("started"));
    let mut line = rig.joined(&rig.owner, Who::Client(client));
    let of = |term: u64| {
        let (rights, range, term) = (Rights::ALL, 0..FILE_LEN_MAX, Term(term));
        rig.tickets.seal(VOLUME, Ticket { client, file, epoch: 0, range, rights, term })
    };
    let over = of(last.0 - 2);
    line.shows(&over);
    assert_eq!(line.tries(read(file)), Err(Some(over.name())));
    line.shows(&of(last.0 - 1));
    assert!(matches!(line.tries(read(file)), Ok(gather::Answer::Read { end: 100, .. })));
}

/// Goal: a server that does not hear of its catalog lets nobody change anything after a while, and goes on
/// with reads.
#[test]
fn who_is_parted_reads_on() {
    let mut rig = Rig::with_terms(Some(Duration::from_millis(200)));
    let (names, _owner, entry) = owners_file(&rig, &[7; 100]);
    let file = FileNo(entry.0);
    drop(rig.catalog.take());
    let client = ClientNo(names.number().0 + 1000);
    let mut line = rig.joined(&rig.owner, Who::Client(client));
    let (rights, range, term) = (Rights::ALL, 0..FILE_LEN_MAX, Term(names.term().0 + 2));
    let sealed = rig.tickets.seal(VOLUME, Ticket { client, file, epoch: 0, range, rights, term });
    line.shows(&sealed);
    let write = || gather::Request::Write { file, offset: 0, len: 8, bytes: 8 };
    assert_eq!(line.tries(write()), Ok(gather::Answer::Written));
    let begun = Instant::now();
    while line.tries(write()).is_ok() {
        assert!(begun.elapsed() < PATIENCE, "who is parted lets others write for ever");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(line.tries(read(file)).is_ok());
    // What it hears then, by a ticket too, it goes on with.
    let sealed = rig.tickets.seal(VOLUME, Ticket { term: term.next(), ..sealed.ticket });
    line.shows(&sealed);
    assert_eq!(line.tries(write()), Ok(gather::Answer::Written));
    const { assert!(PARTED_TERMS > 2) };
}

/// Measures what tickets cost a server: of showing one, and of each request.
/// `cargo test --release -p haul-volume --test rights -- --ignored --nocapture ticket_figures`
#[test]
#[ignore = "it measures"]
fn ticket_figures() {
    let key = Key::generate().expect("randomness").tickets(VOLUME);
    let client = ClientNo(7);
    let of = |file: u64| {
        let (range, term) = (0..FILE_LEN_MAX, Term(9));
        Ticket { client, file: FileNo(file), epoch: 0, range, rights: Rights::ALL, term }
    };
    let all: Vec<Sealed> = (0..1000).map(|file| key.seal(VOLUME, of(file))).collect();
    for _ in 0..5 {
        let mut server = ticket::Tickets::new(key.clone(), VOLUME, PATIENCE, None);
        let now = haul_core::ids::Time::default();
        let begun = Instant::now();
        (0..1000).for_each(|_| all.iter().for_each(|one| server.show(now, client, one).expect("good")));
        let shown = begun.elapsed();
        let held: std::collections::BTreeMap<FileNo, Ticket> =
            all.iter().map(|one| (one.ticket.file, one.ticket.clone())).collect();
        let begun = Instant::now();
        for at in 0..1_000_000_u64 {
            let file = FileNo(at * 7919 % 1000);
            let request = gather::Request::Write { file, offset: at, len: 9, bytes: 9_u32 };
            let need = ticket::Need::of_gather(&request, STRIPE).expect("it needs one");
            server.check(now, held.get(&file), &need).expect("it is good");
        }
        let checked = begun.elapsed();
        println!(
            "{} ns to show one, {} ns a request",
            shown.as_nanos() / 1_000_000,
            checked.as_nanos() / 1_000_000
        );
    }
}
