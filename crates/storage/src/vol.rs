//! Striped volumes as sources and destinations: `vol://NAME/PATH`.
//!
//! In: places of one volume, and how it is reached. Out: a [`SourceStore`] whose files are read from all
//! servers at once, a [`SinkStore`] whose files are written to all of them at once.
//! Invariants: what has no final name is not taken for a file: each file is written under a name of its own
//! beside the final one, and renamed when all servers said that it lasts. What stands under a final name is
//! replaced only if it is what was found there. Each wait ends with the patience of the run.
//! A file is the same as long as its entry, its length, its mtime and the version of its bytes are, which its
//! gatherer tells ([`look`]). Of what somebody wrote and told nobody of, whoever looks first tells the
//! catalog, which sets the file's time.
//! A job has a journal in its destination, so that an interrupted file goes on ([`journal`], [`adopt`]).
//! Left out: writing in place; holes, which come as the zeros that they are; going on with a sparse file.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use haul_base::escape;
use haul_base::stop::Stop;
use haul_core::entry::Name;
use haul_core::volume::catalog::{Entry, Facts, Failure as Refusal, Kind, Place as At};
use haul_core::volume::layout::{Placement, Placing};
use haul_core::volume::{ClientNo, FileNo, ServerNo};
use haul_core::wire::{Failure, FailureKind};
use haul_volume::access::{Access, AccessError};
use haul_volume::catalog::client::Client as Catalog;
use haul_volume::client::{self, Client, LOST_HELP, Read, VolumeError, Waiting};
use haul_volume::dial::Keys;
use rustix::io::Errno;

use crate::place::{Destination, Form, Place, Scheme, read_path};
use crate::source::failure::own_failure;
use crate::store::Capabilities;
use gone::Gone;
pub use here::are_ours;
pub use homes::lasts;
use sink::VolumeSink;
use waits::{SettingUp, Waits};

mod adopt;
mod claim;
mod files;
mod gone;
mod here;
mod homes;
mod journal;
mod look;
mod names;
mod noted;
mod path;
mod publish;
mod reader;
mod sink;
mod source;
#[cfg(test)]
pub(crate) mod test_volume;
#[cfg(test)]
mod tests;
mod tree;
mod waits;
mod walk;
mod writer;

/// What stores in a volume are.
const CAPABILITIES: Capabilities = Capabilities { in_place: false, append: false, ..Capabilities::POSIX };

/// Files of striped volumes.
pub static VOL: Scheme = Scheme {
    name: "vol",
    source: Some(Form { written: "vol://NAME/PATH", example: "vol://scratch/data", sized: false }),
    sink: Some(Form { written: "vol://NAME/PATH", example: "vol://scratch/data", sized: false }),
    server: true,
    foreign: false,
    alone: false,
    keeps: true,
    resumes: true,
    read: read_path,
    open_source: Some(|sources| {
        let first = sources.places.first().ok_or_else(|| usage("no source given".into()))?;
        source::find(&reach(first, sources.volumes, (sources.patience, &sources.stop))?, sources)
    }),
    open_sink: Some(|to: &Destination<'_>| {
        let reach = reach(to.place, to.volumes, (to.patience, &to.stop))?;
        let (typed, state) = (to.place.path().to_vec(), to.state.is_some());
        Ok(Box::new(VolumeSink { reach, typed, state, followed: to.links.followed }))
    }),
};

/// How long a volume may be silent, if nobody says; and at least.
const PATIENCE: Duration = Duration::from_secs(60);
const PATIENCE_MIN: Duration = Duration::from_secs(1);

fn usage(text: String) -> Failure {
    Failure { kind: FailureKind::Usage, errno: 0, text: text.into() }
}

/// How the volume of a place is reached, as its access in that directory says.
fn reach(
    place: &Place,
    dir: Option<&Path>,
    (patience, stop): (Option<Duration>, &Stop),
) -> Result<Reach, Failure> {
    let name = place.server().unwrap_or_default();
    let shown = escape::name(&place.shown());
    let unknown = |why: String| usage(format!("{shown}: {why}"));
    let Some(dir) = dir else {
        let why = "nobody says where accesses to volumes are kept: set HOME or XDG_STATE_HOME";
        return Err(unknown(why.into()));
    };
    let access = Access::read(dir, name).map_err(|why| unknown(why.to_string()))?;
    let keys = access.keys().map_err(|why| unknown(haul_base::errno::with_causes(&why)))?;
    let found = |why: AccessError| Failure { kind: FailureKind::Network, ..unknown(why.to_string()) };
    let catalog = access.catalog.address().map_err(found)?;
    let servers = access.addresses().map_err(found)?;
    let patience = patience.map_or(PATIENCE, |asked| asked.max(PATIENCE_MIN));
    let places = access.servers.iter().map(ToString::to_string).collect();
    let catalog_place = format!("{} at {}", access.catalog, access.catalog.at);
    let (name, servers, stop) = (name.to_owned(), Some(servers), stop.clone());
    Ok(Reach { name, keys, catalog, catalog_place, servers, places, patience, stop })
}

/// What a source in a volume becomes at the destination, by its text alone: something of this name, or its
/// contents (`None`). Nothing of a place that is in none.
pub fn becomes(place: &Place) -> Option<Option<Name>> {
    let last = path::last_part(place.path());
    match () {
        () if *place.scheme() != VOL => None,
        () if path::is_dots(last) => Some(None),
        () => Name::new(last).ok().map(Some),
    }
}

/// How a volume is reached.
#[derive(Clone)]
pub(crate) struct Reach {
    /// What the user calls it.
    pub(crate) name: String,
    pub(crate) keys: Keys,
    pub(crate) catalog: SocketAddr,
    /// The same for people.
    pub(crate) catalog_place: String,
    /// Where its servers are; `None`: as the catalog has it.
    pub(crate) servers: Option<Vec<SocketAddr>>,
    /// Their hosts and directories, for people, as far as they are known.
    pub(crate) places: Vec<String>,
    /// So long anything that is asked there may take.
    pub(crate) patience: Duration,
    /// Whoever has enough before the copy begins, and hears what is waited for.
    pub(crate) stop: Stop,
}

/// A volume that is connected.
pub(crate) struct Volume {
    name: String,
    catalog: Catalog,
    /// Where that is, for people.
    catalog_place: String,
    client: Client,
    facts: Facts,
    places: Vec<String>,
    /// Of new files.
    placement: Placement,
    /// So long anything may take.
    patience: Duration,
    gone: Gone,
    waits: Waits,
}

impl Volume {
    /// Connects to the catalog, and begins to connect to the servers. Until the copy [begins](Volume::begins)
    /// whoever the reach names hears what is waited for, and ends it.
    ///
    /// # Errors
    /// Of this kind, unless it is the network's: the catalog is not there, or tells of a volume that cannot
    /// be used.
    fn connect(reach: &Reach, kind: FailureKind) -> Result<Volume, Failure> {
        let Reach { name, keys, catalog: at, catalog_place, servers, places, patience, stop } = reach.clone();
        let said = |kind, errno, why: String| {
            let name = haul_base::escape::name(name.as_bytes());
            Failure { kind, errno, text: format!("volume {name}: {why}").into() }
        };
        let setting_up = SettingUp::new(&stop);
        let attends = setting_up.of_catalog(waits::catalog_in_words(&name, &catalog_place));
        let catalog = Catalog::connect_with(keys.clone(), at, patience, Some(attends)).map_err(|why| {
            let name = haul_base::escape::name(name.as_bytes());
            let text = match is_late(&why) {
                true => format!(
                    "its catalog, {catalog_place}, was not reached within {} s (--patience takes more): {}; start it \
                     (`haul volume start {name}`; `haul volume health {name}` says who answers)",
                    patience.as_secs(),
                    why.words.strip_prefix("the catalog did not answer in time: ").unwrap_or(&why.words)
                ),
                false => format!("its catalog, {catalog_place}: {why}"),
            };
            said(of_network(&why, kind), why.errno, text)
        })?;
        let facts = catalog.facts();
        let Some(placement) = Placement::from_word(&facts.placement) else {
            let why = format!(
                "its files lie in a way that this haul does not know ({}); use the haul that made it",
                haul_base::escape::name(facts.placement.as_bytes())
            );
            return Err(said(kind, 0, why));
        };
        let known = servers.filter(|known| known.len() == facts.servers.len());
        let is_known = known.is_some();
        let mut servers = known.unwrap_or_default();
        for server in facts.servers.iter().filter(|_| !is_known) {
            let found = server.to_socket_addrs().map(|mut all| all.next());
            let at = match found {
                Ok(Some(at)) => at,
                Ok(None) => return Err(said(kind, 0, format!("its server {server} has no address"))),
                Err(error) => {
                    let (errno, why) = (error.raw_os_error().unwrap_or(0), haul_base::errno::text(&error));
                    return Err(said(FailureKind::Network, errno, format!("its server {server}: {why}")));
                }
            };
            servers.push(at);
        }
        let ClientNo(number) = catalog.number();
        let config = client::Config {
            keys,
            number: ClientNo(number),
            servers,
            stripe_size: facts.stripe.into(),
            write_threshold: None,
            patience,
        };
        let client = Client::start_for(config, &catalog)
            .map_err(|error| said(FailureKind::Local, 0, haul_base::errno::text(&error)))?;
        let (gone, waits) = (Gone::default(), Waits::default());
        waits.set_up(Some(setting_up));
        Ok(Volume { name, catalog, catalog_place, client, facts, places, placement, patience, gone, waits })
    }

    /// A path in it, for people and for failures.
    fn url(&self, path: &[u8]) -> Vec<u8> {
        let slash: &[u8] = if path.is_empty() || path.starts_with(b"/") { b"" } else { b"/" };
        [b"vol://", self.name.as_bytes(), slash, path].concat()
    }

    /// Something that we found ourselves.
    fn failed(&self, kind: FailureKind, doing: &str, path: &[u8], errno: i32, why: &str) -> Failure {
        Failure { errno, ..own_failure(kind, doing, &self.url(path), why) }
    }

    /// The catalog says no, or nothing.
    fn refused(&self, kind: FailureKind, doing: &str, path: &[u8], why: &Refusal) -> Failure {
        // A run that is to end had not the patience to say so.
        if is_late(why) && self.ends_for().is_none() {
            self.lose_catalog(&why.words);
        }
        let told = match self.gone() {
            Some(gone) if is_late(why) => gone.text.into(),
            _ => format!("the volume's catalog: {}", why.words),
        };
        self.failed(of_network(why, kind), doing, path, why.errno, &told)
    }

    /// The servers did not do it.
    fn broke(&self, kind: FailureKind, doing: &str, path: &[u8], why: &VolumeError) -> Failure {
        let (kind, errno, then) = match why {
            VolumeError::Late(..) => (FailureKind::Network, Errno::TIMEDOUT.raw_os_error(), ""),
            VolumeError::Failed(_, errno) => (kind, *errno, ""),
            VolumeError::Lost(_) => (kind, Errno::IO.raw_os_error(), "; the same command again brings it"),
            VolumeError::Gone => (kind, Errno::NOENT.raw_os_error(), ""),
            VolumeError::Busy => (kind, Errno::BUSY.raw_os_error(), ""),
            VolumeError::Range => (kind, Errno::INVAL.raw_os_error(), ""),
            VolumeError::Closed => (kind, 0, ""),
            VolumeError::Unplaced => (kind, Errno::STALE.raw_os_error(), ""),
            VolumeError::Missing { .. } | VolumeError::OtherLength { .. } => {
                (kind, Errno::IO.raw_os_error(), "")
            }
        };
        let is_it = |gone: &Failure| match why {
            VolumeError::Late(..) => true,
            VolumeError::Failed(_, errno) => gone.errno == *errno,
            _ => false,
        };
        match (self.gone().filter(is_it), why) {
            (Some(gone), _) => self.failed(kind, doing, path, errno, &gone.text),
            (None, VolumeError::Failed(server, errno)) => {
                let cause = haul_base::errno::text(std::io::Error::from_raw_os_error(*errno));
                let server = self.server_in_words(*server);
                self.failed(kind, doing, path, *errno, &format!("the volume's {server}: {cause}"))
            }
            (None, VolumeError::Missing { server, offset, whole }) => {
                let server = self.server_in_words(*server);
                let text = format!(
                    "the volume's {server}, has lost its bytes at {offset}, and all {whole} were there when it was copied \
                     in; {LOST_HELP}"
                );
                self.failed(kind, doing, path, errno, &text)
            }
            (None, VolumeError::OtherLength { server, end, whole }) => {
                let server = self.server_in_words(*server);
                let text = format!(
                    "the volume's {server}, which gathers it, knows of {end} bytes, and {whole} were there when it was \
                     copied in: that directory is older than the file, or its log lost something; {LOST_HELP}"
                );
                self.failed(kind, doing, path, errno, &text)
            }
            (None, VolumeError::Late(_, text)) if self.is_said(text) => {
                self.failed(kind, doing, path, errno, text)
            }
            (None, why) => self.failed(kind, doing, path, errno, &format!("{why}{then}")),
        }
    }

    /// A server of it, and where it is.
    fn server_in_words(&self, server: ServerNo) -> String {
        format!("server {}, {}", server.0, self.place_of(server))
    }

    fn place_of(&self, server: ServerNo) -> &str {
        let number = usize::from(server.0);
        let place = self.places.get(number).map(String::as_str);
        place.or_else(|| self.facts.servers.get(number).map(|at| &**at)).unwrap_or_default()
    }

    /// What is at a place; `None`: nothing, or its directory is not there either.
    fn at(&self, at: &At) -> Result<Option<Entry>, Refusal> {
        match self.catalog.lookup(at.clone()) {
            Ok(entry) => Ok(Some(entry)),
            Err(why) if is_missing(&why) => Ok(None),
            Err(why) => Err(why),
        }
    }

    /// Begins to ask how long a file is: its gatherer knows what was gathered, cut, appended or synced, by
    /// whomever.
    fn ask_len(&self, file: FileNo) -> Waiting<Read> {
        self.client.read(file, 0, 0)
    }

    /// How long a file is.
    fn len(&self, file: FileNo) -> Result<u64, VolumeError> {
        self.wait_at(&self.needed_to_look(file), || self.ask_len(file)).map(|read| read.end)
    }

    /// How a new file of so many bytes is placed.
    fn placing(&self, len: u64) -> Placing {
        self.placement.of_file(Some(len), self.client.striping())
    }

    /// For reports.
    fn in_words(&self) -> String {
        let servers = match self.facts.servers.len() {
            1 => "1 server".to_owned(),
            many => format!("{many} servers"),
        };
        let stripe = haul_core::tune::show_size(self.facts.stripe.into());
        format!("volume {}: {servers}, stripes of {stripe}", haul_base::escape::name(self.name.as_bytes()))
    }
}

/// Why nothing came: the network, or what it would be otherwise.
fn of_network(why: &Refusal, kind: FailureKind) -> FailureKind {
    if is_late(why) { FailureKind::Network } else { kind }
}

/// The catalog did not answer in time.
fn is_late(why: &Refusal) -> bool {
    why.errno == Errno::TIMEDOUT.raw_os_error()
}

fn is_missing(why: &Refusal) -> bool {
    why.errno == Errno::NOENT.raw_os_error()
}

fn is_dir(entry: &Entry) -> bool {
    entry.kind == Kind::Directory
}
