//! What `fsck` says of files that are written while it looks: real servers and a real catalog on loopback,
//! and a look that is held between two of its questions.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use haul_core::entry::{Meta, Name};
use haul_core::volume::catalog::{EntryNo, Facts, Noting, Place, ROOT};
use haul_core::volume::wire::VolumeId;
use haul_core::volume::{FileNo, ServerNo};
use haul_transport::tls::{Identity, Pin};
use haul_volume::catalog::client::Client as Catalog;
use haul_volume::catalog::server::{Options, Server as CatalogServer};
use haul_volume::catalog::store::Store;
use haul_volume::client::{self, Client};
use haul_volume::contents;
use haul_volume::dial::Keys;
use haul_volume::fsck::{Fault, Fsck, Kind, Step, Sum};
use haul_volume::server::{Config, Server};

const SERVERS: u16 = 3;
const STRIPE: u64 = 64 * 1024;
/// Nothing here takes so long on a machine that works; it ends what hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// A volume on this host, and who writes into it.
struct Rig {
    keys: Keys,
    at: Vec<SocketAddr>,
    catalog: Catalog,
    client: Client,
    _servers: Vec<Server>,
    _catalog: CatalogServer,
    dir: tempfile::TempDir,
}

impl Rig {
    fn new() -> Rig {
        let dir = tempfile::tempdir().expect("a directory");
        let identity = Identity::generate().expect("randomness");
        let pin = Pin(identity.public());
        let keys = Keys { volume: VolumeId([9; 16]), identity, pin };
        let bound = |_| TcpListener::bind("127.0.0.1:0").expect("a port");
        let listeners: Vec<TcpListener> = (0..SERVERS).map(bound).collect();
        let at: Vec<SocketAddr> = listeners.iter().map(|one| one.local_addr().expect("bound")).collect();
        let started = listeners.into_iter().zip(0..).map(|(listener, number)| {
            let config = Config {
                root: dir.path().join(format!("s{number}")),
                keys: keys.clone(),
                me: ServerNo(number),
                servers: at.clone(),
                stripe_size: STRIPE,
                threads: 2,
                notice: Arc::new(|text| eprintln!("{text}")),
            };
            Server::start(&config, listener).expect("it starts")
        });
        let servers: Vec<Server> = started.collect();
        let facts = Facts {
            stripe: STRIPE as u32,
            placement: "round-robin".into(),
            servers: at.iter().map(|at| at.to_string().into()).collect(),
        };
        let store = Store::create(&dir.path().join("c"), keys.volume, &facts).expect("made");
        let served = CatalogServer::start(store, keys.clone(), bound(0), Options::default());
        let served = served.expect("started");
        let catalog = Catalog::connect(keys.clone(), served.address(), PATIENCE).expect("connected");
        let config = client::Config {
            keys: keys.clone(),
            number: catalog.number(),
            servers: at.clone(),
            stripe_size: STRIPE,
            write_threshold: Some(0),
            patience: PATIENCE,
        };
        let client = Client::start(config).expect("threads");
        Rig { keys, at, catalog, client, _servers: servers, _catalog: served, dir }
    }

    /// Makes a file of so many stripes that are whole, as a copy does.
    fn whole(&self, name: &str, stripes: u64) -> FileNo {
        let at = Place { parent: ROOT, name: Name::new(name.as_bytes()).expect("legal") };
        let (entry, _) = self.catalog.create(at, Meta::default(), true, false).expect("made");
        let file = FileNo(entry.id.0);
        self.fill(file, stripes);
        file
    }

    /// Writes so many stripes, has them last, and tells the catalog that they are all there.
    fn fill(&self, file: FileNo, stripes: u64) {
        let len = stripes * STRIPE;
        self.client.write(file, 0, vec![stripes as u8; len as usize]).wait().expect("written");
        contents::sync(&self.catalog, &self.client, file).expect("synced");
        self.is_whole(file, len);
    }

    fn is_whole(&self, file: FileNo, len: u64) {
        let (id, look) = (EntryNo(file.0), self.client.look(file).wait().expect("looked at"));
        assert_eq!((look.end, look.untold), (len, false));
        let state = self.catalog.known(vec![id]).expect("asked")[0].as_ref().expect("it is there").state;
        let noting = Noting { id, state, version: look.version, whole: Some(len), home: None };
        assert_eq!(self.catalog.note("", vec![noting]).expect("noted"), [file]);
    }

    /// Cuts a file and tells nobody.
    fn cut(&self, file: FileNo, stripes: u64) {
        self.client.truncate(file, stripes * STRIPE).wait().expect("cut");
    }

    /// Looks, and does something at each step of it. Steps that were heard, faults, the sum.
    fn look(&self, mut meanwhile: impl FnMut(Step)) -> (Vec<Step>, Vec<Fault>, Sum) {
        let (mut steps, mut faults) = (Vec::new(), Vec::new());
        let fsck = Fsck {
            catalog: &self.catalog,
            keys: &self.keys,
            servers: &self.at,
            stripe_size: STRIPE,
            met: PATIENCE,
            patience: PATIENCE,
            repair: None,
        };
        let mut tell = |fault: &Fault| {
            faults.push(fault.clone());
            true
        };
        let sum = fsck.run_while(&mut tell, &mut |step| {
            steps.push(step);
            meanwhile(step);
        });
        (steps, faults, sum.expect("looked to the end"))
    }
}

/// Goal: what is cut, grows and is filled again between two looks is no fault: neither where the catalog does
/// not know it yet, nor where it knows it already and the servers were asked before.
/// Method: the look is held at its steps, and the file is written there.
#[test]
fn what_is_written_between_two_looks_is_no_fault() {
    let rig = Rig::new();
    let file = rig.whole("f", 6);
    let (steps, faults, sum) = rig.look(|_| ());
    assert_eq!((&*steps, &*faults, sum.whole), (&[Step::Known][..], &[][..], 1));

    // Cut, of which the catalog hears nothing to the end.
    let (steps, faults, sum) = rig.look(|step| {
        if step == Step::Known {
            rig.cut(file, 1);
        }
    });
    assert_eq!((&*faults, sum.written), (&[][..], 1), "{steps:?}");
    // So it is before the look began.
    let (_, faults, sum) = rig.look(|_| ());
    assert_eq!((&*faults, sum.written), (&[][..], 1));

    // Cut, of which the catalog hears, and longer than ever when the servers have said what they have.
    rig.fill(file, 6);
    let mut again = 0;
    let (steps, faults, sum) = rig.look(|step| match step {
        Step::Known => {
            rig.cut(file, 1);
            contents::look(&rig.catalog, &rig.client, file).expect("told");
            rig.is_whole(file, STRIPE);
        }
        Step::Again(of) => {
            assert_eq!(of, file);
            again += 1;
            if again == 1 {
                rig.fill(file, 9);
            }
        }
    });
    assert_eq!((&*faults, sum.written), (&[][..], 0), "{steps:?}");
    assert_eq!(steps, [Step::Known, Step::Again(file), Step::Again(file)], "it is looked at once more");
    assert!(rig.look(|_| ()).1.is_empty());
}

/// Goal: what is gone is told though the same file was written a moment before: a look that is made again
/// comes to an end.
#[test]
fn what_is_gone_is_told_all_the_same() {
    let rig = Rig::new();
    let file = rig.whole("f", 6);
    let lost = rig.dir.path().join(format!("s1/files/{:02x}/{:016x}", file.0 % 256, file.0));
    let (mut again, lens) = (0, std::fs::metadata(&lost).expect("it is there").len());
    assert_eq!(lens, 2 * STRIPE);
    let (steps, faults, _) = rig.look(|step| match step {
        Step::Known => {
            std::fs::File::options().write(true).open(&lost).expect("open").set_len(7).expect("cut")
        }
        Step::Again(_) => {
            again += 1;
            if again == 1 {
                // Somebody writes what lies elsewhere.
                let first = (0..6).find(|at| rig.client.striping().server(file, *at) == ServerNo(0));
                let at = first.expect("one lies there") * STRIPE;
                rig.client.write(file, at, vec![1; 10]).wait().expect("written");
                contents::sync(&rig.catalog, &rig.client, file).expect("synced");
                rig.is_whole(file, 6 * STRIPE);
            }
        }
    });
    assert_eq!(steps, [Step::Known, Step::Again(file), Step::Again(file)]);
    let told: Vec<_> = faults.iter().map(|fault| (fault.kind, fault.server, fault.file)).collect();
    assert_eq!(told, [(Kind::Missing, Some(ServerNo(1)), Some(file))], "{faults:?}");
}

/// Goal: what servers have removed while the catalog has its name, as one that was brought back from an older
/// copy does, is missing, and not being written.
#[test]
fn what_was_removed_is_missing() {
    let rig = Rig::new();
    let (file, other) = (rig.whole("f", 6), rig.whole("g", 6));
    rig.client.remove(file).wait().expect("removed");
    let (_, faults, sum) = rig.look(|_| ());
    let told: Vec<_> = faults.iter().map(|fault| (fault.kind, fault.file, fault.path.as_deref())).collect();
    assert_eq!(told, [(Kind::Missing, Some(file), Some(&b"/f"[..]))], "{other:?}");
    assert!(faults[0].text.contains("have removed it"), "{}", faults[0].text);
    assert_eq!((sum.whole, sum.written, sum.faults), (2, 0, 1));
}
