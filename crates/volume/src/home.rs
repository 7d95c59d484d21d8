//! The directory of a server of a volume, or of its catalog: what it was set up as, and what it keeps there.
//!
//! In: a directory, and once what it is to be. Out: a server that runs as it was set up.
//! Invariants: what is set up is empty before, or is not touched; one process at a time has it; what is
//! removed is what lies there by names that haul gives, and nothing else.
//!
//! ```text
//! DIR/volume.json    what it is set up as, with the key of the volume's servers: for its owner alone
//!    /lock           held by the process that serves it
//!    /log.txt        what it has to say, where nobody else hears it; before that: log.old.txt
//!    /data           the shelf of a server, or the database of a catalog
//! ```

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, thread};

use haul_core::volume::ServerNo;
use haul_core::volume::catalog::Facts;
use haul_core::volume::wire::VolumeId;
use rustix::fs::{AtFlags, Mode};
use rustix::io::{Errno, retry_on_intr};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::access::resolve;
use crate::catalog::server::{Options, Server as CatalogServer};
use crate::catalog::store::{Store, StoreError};
use crate::disk::{Dir, Lock};
use crate::door::Guests;
use crate::key::{Key, Public, volume_id};
use crate::private::{self, PrivateError};
use crate::reserve;
use crate::server::{Config, Server, ServerError};
use crate::sweep::{self, Sweeper};
use crate::visit::Visits;

const SETUP: &str = "volume.json";
const LOCK: &str = "lock";
pub const LOG: &str = "log.txt";
pub const OLD_LOG: &str = "log.old.txt";
const DATA: &str = "data";
/// In the directory of a volume's first server: that of its catalog, unless it was put elsewhere.
pub const CATALOG: &str = "catalog";
/// What the root of a file system has.
const OF_THE_SYSTEM: &str = "lost+found";
/// What is set up by another version is not served. In the first one all who belonged to the volume had the
/// servers' key.
pub const FORMAT: u32 = 2;
const OLD_FORMAT: u32 = 1;
/// Threads for a server's disk.
const THREADS: usize = 4;
/// Whoever had the directory before and was told to end has so long to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// What a directory is set up as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Catalog,
    Server(u16),
}

impl Role {
    /// Its number, if it is a server.
    pub fn server(self) -> Option<ServerNo> {
        match self {
            Role::Catalog => None,
            Role::Server(number) => Some(ServerNo(number)),
        }
    }
}

/// What a directory was set up as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    pub format: u32,
    #[serde(with = "volume_id")]
    pub volume: VolumeId,
    pub key: Key,
    /// Who may connect besides servers: for everything, and for reading.
    #[serde(default)]
    pub owner: Option<Public>,
    #[serde(default)]
    pub reader: Option<Public>,
    pub role: Role,
    /// Where it listens itself, address and port.
    pub listen: SocketAddr,
    /// Where each server listens, `host:port`, in the order of their numbers, as the other hosts find it.
    pub servers: Vec<String>,
    pub catalog: String,
    /// Bytes of one stripe.
    pub stripe: u32,
    pub placement: String,
    /// The directory was made for this, and goes with it.
    #[serde(default)]
    pub made: bool,
}

/// Why a directory is not served.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    #[error("cannot {op} {}: {}", path.display(), haul_base::errno::text(source))]
    Io { op: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "{} is not empty ({name} lies in it): name an empty directory, or one that is not there",
        path.display()
    )]
    NotEmpty { path: PathBuf, name: String },
    #[error(
        "cannot make {}: there is no directory {} to make it in; make that first (`mkdir -p`), or mount there what should be",
        .0.display(), .0.parent().unwrap_or(.0).display()
    )]
    NoParent(PathBuf),
    #[error("{} is of the user {uid}: name a directory of your own", path.display())]
    Owner { path: PathBuf, uid: u32 },
    #[error(
        "{} is a directory of a volume already: destroy that volume, or name another directory",
        .0.display()
    )]
    Taken(PathBuf),
    #[error("{} is no directory of a volume: it has no {SETUP}", .0.display())]
    NoHome(PathBuf),
    #[error("{} is of another volume", .0.display())]
    Other(PathBuf),
    #[error("{} is the directory of {is}, and not of {wanted}", path.display())]
    Role { path: PathBuf, is: &'static str, wanted: &'static str },
    #[error("{} is served already, or being set up", .0.display())]
    InUse(PathBuf),
    #[error(transparent)]
    Private(#[from] PrivateError),
    #[error("{} says nothing that this haul understands: {why}", path.display())]
    Bad { path: PathBuf, why: String },
    #[error("cannot listen at {at}: {}; {}", haul_base::errno::text(source), remedy(source))]
    Listen { at: SocketAddr, source: io::Error },
    #[error("cannot find {at}, where another server of the volume is: {}", haul_base::errno::text(source))]
    Address { at: String, source: io::Error },
    #[error("{}", haul_base::errno::with_causes(.0))]
    Server(#[from] ServerError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "end what has that port, for the volume knows this server by it",
        _ => "the volume knows this server by that port",
    }
}

fn failed(op: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(Errno) -> HomeError {
    let path = path.into();
    move |errno| HomeError::Io { op, path, source: errno.into() }
}

/// A directory that no other process has.
#[derive(Debug)]
pub struct Home {
    dir: Dir,
    made: bool,
    _lock: Lock,
}

/// What runs in a directory.
pub enum Running {
    Server { server: Server, sweeper: Sweeper },
    Catalog(CatalogServer),
}

impl Running {
    /// Whether somebody who holds the volume's key wants an end.
    pub fn visits(&self) -> &Visits {
        match self {
            Running::Server { server, .. } => server.visits(),
            Running::Catalog(catalog) => catalog.visits(),
        }
    }

    /// Whether it has ended by itself, as a catalog does when its disk fails, and both where their directory
    /// was removed.
    pub fn is_over(&self) -> bool {
        match self {
            Running::Server { server, .. } => server.is_over(),
            Running::Catalog(catalog) => catalog.is_over(),
        }
    }
}

impl Home {
    /// Makes a directory, unless it is there; whether it was made.
    ///
    /// # Errors
    /// The system says no.
    pub fn make(path: &Path) -> Result<bool, HomeError> {
        match retry_on_intr(|| rustix::fs::mkdir(path, Mode::RWXU)) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            // It may be where something should be mounted: nobody makes it unasked.
            Err(Errno::NOENT) => Err(HomeError::NoParent(path.into())),
            Err(errno) => Err(failed("make", path)(errno)),
        }
    }

    /// Removes a directory that was made and could not be taken, as soon as whoever took it meanwhile, and
    /// did not make it, has left it.
    pub fn unmake(path: &Path) {
        let until = Instant::now() + GONE_WITHIN;
        while matches!(retry_on_intr(|| rustix::fs::rmdir(path)), Err(Errno::NOTEMPTY | Errno::EXIST))
            && Instant::now() < until
        {
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Takes an empty directory, which is to become one of a volume. `made`: it was made for that.
    ///
    /// # Errors
    /// What is in it stays as it is.
    pub fn claim(path: &Path, made: bool) -> Result<Home, HomeError> {
        let dir = Dir::open(path).map_err(failed("open", path))?;
        let stat = rustix::fs::fstat(&dir).map_err(failed("look at", path))?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(HomeError::Owner { path: path.into(), uid: stat.st_uid });
        }
        match is_free(&dir) {
            // What lies there is of whoever has it just now.
            Err(HomeError::NotEmpty { path, .. }) if dir.is_locked(LOCK) => {
                return Err(HomeError::InUse(path));
            }
            other => other?,
        }
        let lock = lock(&dir, Duration::ZERO)?;
        // Whoever had it until now may have left more in it than its lock.
        is_free(&dir)?;
        if stat.st_mode & 0o077 != 0 {
            retry_on_intr(|| rustix::fs::fchmod(&dir, Mode::RWXU))
                .map_err(failed("close to others", path))?;
        }
        Ok(Home { dir, made, _lock: lock })
    }

    /// Takes a directory that was set up. `volume`: the one that it must be of.
    ///
    /// # Errors
    /// It is none, of another volume, or another process has it.
    pub fn open(path: &Path, volume: Option<VolumeId>) -> Result<(Home, Setup), HomeError> {
        let dir = Dir::open(path).map_err(failed("open", path))?;
        // Before anything is made in what may be somebody else's.
        let file = dir.path_of(SETUP);
        let is_home = || {
            let is_there = rustix::fs::statat(&dir, SETUP, AtFlags::SYMLINK_NOFOLLOW);
            match is_there {
                Err(Errno::NOENT) => Err(HomeError::NoHome(path.into())),
                _ => Ok(()),
            }
        };
        is_home()?;
        let bytes = private::read(&file)?;
        let bad = |why: String| HomeError::Bad { path: file.clone(), why };
        let setup: Setup = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
        if ![OLD_FORMAT, FORMAT].contains(&setup.format) {
            return Err(bad("it is of another version".into()));
        }
        if volume.is_some_and(|volume| volume != setup.volume) {
            return Err(HomeError::Other(path.into()));
        }
        let lock = lock(&dir, GONE_WITHIN)?;
        // Whoever had it may have removed all meanwhile.
        is_home()?;
        let made = setup.made;
        Ok((Home { dir, made, _lock: lock }, setup))
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Whether the directory was made for this.
    pub fn is_made(&self) -> bool {
        self.made
    }

    /// Has it last what the directory is set up as.
    ///
    /// # Errors
    /// The disk's.
    pub fn settle(&self, setup: &Setup) -> Result<(), HomeError> {
        let path = self.dir.path_of(SETUP);
        // Nothing of it is left in memory that was given back: it does not grow.
        let mut bytes = Zeroizing::new(Vec::with_capacity(1 << 20));
        serde_json::to_writer_pretty(&mut *bytes, setup)
            .map_err(|error| HomeError::Bad { path: path.clone(), why: error.to_string() })?;
        bytes.push(b'\n');
        private::write_new(&self.dir, SETUP, &bytes).map_err(failed("write", path))?;
        let above = self.path().parent().filter(|above| !above.as_os_str().is_empty());
        match above.map(|above| Dir::open(above).and_then(|above| above.sync())) {
            // One that cannot be opened was there before.
            None | Some(Ok(()) | Err(Errno::ACCESS)) => Ok(()),
            Some(Err(errno)) => Err(failed("sync what is above", self.path())(errno)),
        }
    }

    /// Starts what it was set up as. `new`: it was set up just now.
    ///
    /// # Errors
    /// What lies there is damaged or another one's, a server's name has no address, or the system says no.
    pub fn serve(
        &self,
        setup: &Setup,
        new: bool,
        listener: TcpListener,
        notice: Arc<dyn Fn(&str) + Send + Sync>,
    ) -> Result<Running, HomeError> {
        let keys = setup.key.keys(setup.volume);
        let keys =
            keys.map_err(|error| HomeError::Bad { path: self.dir.path_of(SETUP), why: error.to_string() })?;
        let pin = |key: &Option<Public>| key.as_ref().map(Public::pin);
        let tickets = Some(setup.key.tickets(setup.volume));
        let guests = Guests { owner: pin(&setup.owner), reader: pin(&setup.reader), tickets, term: None };
        let root = self.dir.path_of(DATA);
        let Some(me) = setup.role.server() else {
            let facts = Facts {
                stripe: setup.stripe,
                placement: setup.placement.clone().into(),
                servers: setup.servers.iter().map(|at| at.clone().into()).collect(),
            };
            let store = match new {
                true => Store::create(&root, setup.volume, &facts)?,
                false => Store::open(&root, setup.volume)?,
            };
            let failed =
                |source| HomeError::Io { op: "start the catalog in", path: self.path().into(), source };
            // Of a new volume no server has anything.
            let servers = if new { &[][..] } else { &setup.servers };
            return CatalogServer::start_beside(store, (keys, guests), listener, Options::default(), servers)
                .map(Running::Catalog)
                .map_err(failed);
        };
        let find = |at: &String| resolve(at).map_err(|source| HomeError::Address { at: at.clone(), source });
        let servers = setup.servers.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        let (catalog, stripe_size) = (find(&setup.catalog)?, setup.stripe.into());
        let config = Config {
            root,
            keys: keys.clone(),
            me,
            servers: servers.clone(),
            stripe_size,
            threads: THREADS,
            notice: notice.clone(),
        };
        let server = Server::start_for(&config, guests, listener)?;
        let config = sweep::Config { keys, me, catalog, servers, stripe_size, notice };
        let sweeper = Sweeper::start_for(config, server.terms()).map_err(|source| HomeError::Io {
            op: "start to sweep in",
            path: self.path().into(),
            source,
        })?;
        Ok(Running::Server { server, sweeper })
    }

    /// Removes what haul keeps there, and the directory if it was made for it. What lies there and is not
    /// haul's stays, and is named.
    ///
    /// # Errors
    /// The disk's; a part may be gone.
    pub fn clear(self) -> Result<Vec<PathBuf>, HomeError> {
        let mut left = Vec::new();
        // While it is there the directory is the volume's, and this can be done again.
        clear_dir(&self.dir, Place::Home, &mut left)?;
        for name in [SETUP, LOCK] {
            match self.dir.remove(name) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(failed("remove", self.dir.path_of(name))(errno)),
            }
        }
        let (path, until) = (self.path(), Instant::now() + GONE_WITHIN);
        while self.made && left.is_empty() {
            match retry_on_intr(|| rustix::fs::rmdir(path)) {
                Ok(()) | Err(Errno::NOENT) => break,
                // The catalog's process may be removing that just now.
                Err(Errno::NOTEMPTY | Errno::EXIST) if Instant::now() < until => {
                    thread::sleep(Duration::from_millis(20));
                }
                Err(Errno::NOTEMPTY | Errno::EXIST) => left.push(path.into()),
                Err(errno) => return Err(failed("remove", path)(errno)),
            }
        }
        Ok(left)
    }
}

fn lock(dir: &Dir, wait: Duration) -> Result<Lock, HomeError> {
    let until = Instant::now() + wait;
    loop {
        match dir.lock(LOCK) {
            Ok(lock) => return Ok(lock),
            Err(Errno::WOULDBLOCK | Errno::STALE) if Instant::now() < until => {
                thread::sleep(Duration::from_millis(20));
            }
            Err(Errno::WOULDBLOCK | Errno::STALE) => return Err(HomeError::InUse(dir.path().into())),
            Err(errno) => return Err(failed("lock", dir.path_of(LOCK))(errno)),
        }
    }
}

/// Nothing is in it that this would come beside.
fn is_free(dir: &Dir) -> Result<(), HomeError> {
    let names = dir.names().map_err(failed("read", dir.path()))?;
    if names.iter().any(|name| name == SETUP) {
        return Err(HomeError::Taken(dir.path().into()));
    }
    for name in names {
        if name != LOCK && name != OF_THE_SYSTEM && !is_unfinished(&name.to_string_lossy()) {
            let name = haul_base::escape::line(name.as_encoded_bytes());
            return Err(HomeError::NotEmpty { path: dir.path().into(), name });
        }
    }
    Ok(())
}

/// What a process that was killed left in place of a set-up.
fn is_unfinished(name: &str) -> bool {
    name.starts_with(".volume.json.") && name.ends_with(".new")
}

/// Directories of a home, by what haul keeps in them.
#[derive(Clone, Copy)]
enum Place {
    Home,
    Data,
    Log,
    Files,
    Stripes,
    Lists,
    Lost,
}

impl Place {
    /// A directory in it.
    fn sub(self, name: &str) -> Option<Place> {
        let is_hex = |len| name.len() == len && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        match (self, name) {
            (Place::Home, DATA) => Some(Place::Data),
            (Place::Data, "log") => Some(Place::Log),
            (Place::Data, "files") => Some(Place::Files),
            (Place::Data, "lists") => Some(Place::Lists),
            (Place::Data, "lost") => Some(Place::Lost),
            (Place::Files, _) if is_hex(2) => Some(Place::Stripes),
            _ => None,
        }
    }

    /// A file in it.
    fn has(self, name: &str) -> bool {
        let is_hex = |name: &str, len| name.len() == len && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        let hex = |name: &str| is_hex(name, 16);
        let plain = name.strip_suffix(".new").unwrap_or(name);
        match self {
            Place::Home => [LOG, OLD_LOG].contains(&name) || is_unfinished(name),
            Place::Data => {
                let of_catalog = ["catalog.lock", "catalog.new-journal", "catalog.db-wal", "catalog.db-shm"];
                ["volume", "lives", "lock", "log-id", "term", "catalog.db", "catalog", reserve::NAME]
                    .contains(&plain)
                    || of_catalog.contains(&name)
            }
            Place::Log => ["head", "lock"].contains(&plain) || name.strip_suffix(".log").is_some_and(hex),
            Place::Files => false,
            Place::Stripes => hex(name),
            Place::Lists => is_hex(plain, 4),
            Place::Lost => hex(plain),
        }
    }
}

fn clear_dir(dir: &Dir, place: Place, left: &mut Vec<PathBuf>) -> Result<(), HomeError> {
    for name in dir.names().map_err(failed("read", dir.path()))? {
        let path = dir.path_of(&name);
        let text = name.to_string_lossy();
        if let Some(sub) = place.sub(&text) {
            let had = left.len();
            clear_dir(&dir.sub(&name).map_err(failed("open", &path))?, sub, left)?;
            if left.len() == had {
                dir.remove_dir(&name).map_err(failed("remove", &path))?;
            }
        } else if place.has(&text) {
            dir.remove(&name).map_err(failed("remove", &path))?;
        } else if !matches!(place, Place::Home) || ![SETUP, LOCK, CATALOG, OF_THE_SYSTEM].contains(&&*text) {
            left.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(role: Role) -> Setup {
        Setup {
            format: FORMAT,
            volume: VolumeId([3; 16]),
            key: Key::generate().expect("randomness"),
            owner: None,
            reader: None,
            role,
            listen: "127.0.0.1:0".parse().expect("an address"),
            servers: vec!["127.0.0.1:1".into()],
            catalog: "127.0.0.1:2".into(),
            stripe: 1 << 20,
            placement: "round-robin".into(),
            made: false,
        }
    }

    /// Goal: a directory that has anything in it is not taken, and stays as it is; one that is made for
    /// nothing goes again.
    #[test]
    fn only_empty_directories_are_taken() {
        let room = tempfile::tempdir().expect("a directory");
        let dir = room.path().join("d");
        std::fs::create_dir(&dir).expect("made");
        std::fs::write(dir.join("x"), b"precious").expect("written");
        assert!(matches!(Home::claim(&dir, false), Err(HomeError::NotEmpty { name, .. }) if name == "x"));
        assert_eq!(std::fs::read_dir(&dir).expect("read").count(), 1);
        std::fs::remove_file(dir.join("x")).expect("removed");
        let home = Home::claim(&dir, false).expect("empty");
        assert!(matches!(Home::claim(&dir, false), Err(HomeError::InUse(_))));
        assert!(matches!(Home::open(&dir, None), Err(HomeError::NoHome(_))));
        home.settle(&setup(Role::Server(0))).expect("settled");
        drop(home);
        assert!(matches!(Home::claim(&dir, false), Err(HomeError::Taken(_))));
        assert!(matches!(Home::open(&dir, Some(VolumeId([4; 16]))), Err(HomeError::Other(_))));
        let (home, read) = Home::open(&dir, Some(VolumeId([3; 16]))).expect("its own");
        assert_eq!((read.role, home.is_made()), (Role::Server(0), false));
        assert!(matches!(Home::make(&room.path().join("no/d")), Err(HomeError::NoParent(_))));
    }

    /// Goal: clearing removes what haul keeps there and nothing else, and names what else is there.
    #[test]
    fn only_what_is_hauls_is_removed() {
        let room = tempfile::tempdir().expect("a directory");
        for role in [Role::Server(0), Role::Catalog] {
            let dir = room.path().join("d");
            let home = Home::claim(&dir, Home::make(&dir).expect("made")).expect("taken");
            let setup = Setup { made: home.is_made(), role, ..setup(role) };
            home.settle(&setup).expect("settled");
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let running = home.serve(&setup, true, listener, Arc::new(|_| ())).expect("it runs");
            drop((running, home));
            std::fs::write(dir.join("data/mine"), b"precious").expect("written");
            let (home, _) = Home::open(&dir, None).expect("set up");
            assert_eq!(home.clear().expect("cleared"), [dir.join("data/mine")]);
            let all = |dir: &Path| -> Vec<String> {
                let names = std::fs::read_dir(dir).expect("read");
                names.map(|entry| entry.expect("one").file_name().to_string_lossy().into()).collect()
            };
            assert_eq!((all(&dir), all(&dir.join("data"))), (vec!["data".into()], vec!["mine".into()]));
            std::fs::remove_dir_all(&dir).expect("removed");
            // And all of it, with the directory that was made.
            let home = Home::claim(&dir, Home::make(&dir).expect("made")).expect("taken");
            home.settle(&setup).expect("settled");
            assert!(home.clear().expect("cleared").is_empty());
            assert!(!dir.exists());
        }
    }
}
