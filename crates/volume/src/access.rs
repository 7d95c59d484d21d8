//! What whoever uses a volume holds: where its servers are, and its key.
//!
//! In: a directory of the user's, a volume's name. Out: an [`Access`], in `DIR/volumes/NAME`.
//! Invariants: whoever can read the file can do everything with the volume, or with one for reading read all
//! of it: so one that others can read is not used. It is written whole, and never over another one. No key of
//! the servers is in it.
//! Left out: where that directory is, which the environment says and the program knows.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};

use haul_core::volume::ServerNo;
use haul_core::volume::wire::VolumeId;
use haul_transport::TransportError;
use rustix::fs::Mode;
use rustix::io::{Errno, retry_on_intr};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::dial::Keys;
use crate::disk::Dir;
use crate::key::{Key, Public, volume_id};
use crate::private::{self, PrivateError};

/// Where the files are, below the user's directory.
const VOLUMES: &str = "volumes";
/// Longest name of a volume, bytes.
pub const NAME_LEN_MAX: usize = 64;
/// What is asked of another version is not understood. In the first one the key was that of the servers too,
/// and there was none for reading.
const FORMAT: u32 = 2;
const OLD_FORMAT: u32 = 1;

/// How the servers' hosts are reached to start them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// The remote shell and its options; empty: `ssh`.
    #[serde(default)]
    pub ssh: Vec<String>,
    /// In place of a remote shell: what starts a program on a host, `{host}` in it is the host.
    #[serde(default)]
    pub launch: Vec<String>,
    /// The program there.
    #[serde(default)]
    pub remote_haul: Option<String>,
    /// None is brought there.
    #[serde(default)]
    pub no_push: bool,
}

/// A storage server, or the catalog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerAt {
    /// As a remote shell takes it; `None`: this host.
    pub host: Option<String>,
    /// The host that a host-less one is on, for others to know that it is not theirs.
    #[serde(default)]
    pub on: Option<String>,
    pub dir: String,
    /// Where it listens: `host:port`.
    pub at: String,
}

impl fmt::Display for ServerAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Some(host) => write!(f, "{host}:{}", self.dir),
            None => f.write_str(&self.dir),
        }
    }
}

impl ServerAt {
    /// Where it listens now, as this host resolves it.
    ///
    /// # Errors
    /// The name has no address.
    pub fn address(&self) -> Result<SocketAddr, AccessError> {
        resolve(&self.at).map_err(|source| AccessError::Address { at: self.at.clone(), source })
    }
}

/// The first address of `host:port`.
pub(crate) fn resolve(at: &str) -> io::Result<SocketAddr> {
    at.to_socket_addrs()?.next().ok_or_else(|| io::Error::other("this name has no address"))
}

/// See the head of this module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    pub format: u32,
    pub name: String,
    #[serde(with = "volume_id")]
    pub volume: VolumeId,
    pub key: Key,
    /// What its servers are known by; `None` in one of the first version, where they hold the same key.
    #[serde(default)]
    pub known_by: Option<Public>,
    /// What whoever shall only read is given.
    #[serde(default)]
    pub reader: Option<Key>,
    /// It is for reading itself.
    #[serde(default)]
    pub read_only: bool,
    /// Bytes of one stripe.
    pub stripe: u32,
    /// How files lie on the servers.
    pub placement: String,
    /// In the order of their numbers.
    pub servers: Vec<ServerAt>,
    pub catalog: ServerAt,
    #[serde(default)]
    pub reach: Reach,
    /// Directories of it that need not be there, as [`ServerAt`] is written: of one that is being made, and
    /// of one that is partly removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub may_be_gone: Vec<String>,
}

/// Why a volume cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    #[error(
        "'{}' is no name of a volume: it has 1 to 64 letters of ASCII, digits, '-', '_' and '.', and does not \
         begin with '.'",
        haul_base::escape::line(.0.as_bytes())
    )]
    Name(String),
    #[error("no volume {name} is known here: there is no {}", path.display())]
    Unknown { name: String, path: PathBuf },
    #[error("a volume {0} is known here already")]
    Exists(String),
    #[error(transparent)]
    Private(#[from] PrivateError),
    #[error("cannot {op} {}: {}", path.display(), haul_base::errno::text(source))]
    Io { op: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is no access to a volume that this haul understands: {why}", path.display())]
    Bad { path: PathBuf, why: String },
    #[error("cannot find {at}: {}", haul_base::errno::text(source))]
    Address { at: String, source: io::Error },
    #[error(
        "the access to the volume {0} is for reading: that needs the one that `haul volume create` wrote"
    )]
    ReadOnly(String),
    #[error(
        "the volume {0} was made by a haul that knew one key alone, which its servers hold too: there is no \
         access for reading; a volume that this haul makes has one"
    )]
    OneKey(String),
    #[error("{} is there already", .0.display())]
    Taken(PathBuf),
}

/// Holds a word against what a volume's name may be.
///
/// # Errors
/// It is none.
pub fn check_name(name: &str) -> Result<(), AccessError> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let good =
        (1..=NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(is_good) && !name.starts_with('.');
    if good { Ok(()) } else { Err(AccessError::Name(name.into())) }
}

/// A volume, or a place in one, as people write it: also as `haul cp` has it, with `vol://` before it.
pub fn without_scheme(text: &str) -> &str {
    text.strip_prefix("vol://").unwrap_or(text)
}

fn failed(op: &'static str, path: &Path) -> impl FnOnce(Errno) -> AccessError {
    let path = path.to_owned();
    move |errno| AccessError::Io { op, path, source: errno.into() }
}

impl Access {
    /// A new one, whose servers hold the same key.
    pub fn new(
        name: &str,
        volume: VolumeId,
        key: Key,
        (servers, catalog): (Vec<ServerAt>, ServerAt),
    ) -> Access {
        let (name, placement) = (name.to_owned(), "round-robin".to_owned());
        Access {
            format: OLD_FORMAT,
            name,
            volume,
            key,
            known_by: None,
            reader: None,
            read_only: false,
            stripe: 1 << 20,
            placement,
            servers,
            catalog,
            reach: Reach::default(),
            may_be_gone: Vec::new(),
        }
    }

    /// Its servers hold another key, which they are known by, and take who holds `reader` for reading.
    pub fn guarded(self, known_by: Public, reader: Key) -> Access {
        Access { format: FORMAT, known_by: Some(known_by), reader: Some(reader), ..self }
    }

    /// One for reading, to be given to others, under this name.
    ///
    /// # Errors
    /// This one is for reading itself, or of a volume that has none; no volume can have this name.
    pub fn for_reading(&self, name: &str) -> Result<Access, AccessError> {
        check_name(name)?;
        self.may_change()?;
        let key = self.reader.clone().ok_or_else(|| AccessError::OneKey(self.name.clone()))?;
        let (name, reach) = (name.to_owned(), Reach::default());
        let may_be_gone = Vec::new();
        Ok(Access { name, key, reader: None, read_only: true, reach, may_be_gone, ..self.clone() })
    }

    /// Whether whoever holds it may change something, as far as it says so itself.
    ///
    /// # Errors
    /// It is for reading.
    pub fn may_change(&self) -> Result<(), AccessError> {
        if self.read_only { Err(AccessError::ReadOnly(self.name.clone())) } else { Ok(()) }
    }

    /// Where the file of that volume is; `dir` is the user's directory.
    ///
    /// # Errors
    /// No volume can have this name.
    pub fn path(dir: &Path, name: &str) -> Result<PathBuf, AccessError> {
        check_name(name)?;
        Ok(dir.join(VOLUMES).join(name))
    }

    /// Reads the file of that volume.
    ///
    /// # Errors
    /// There is none, others could read it, or it is none.
    pub fn read(dir: &Path, name: &str) -> Result<Access, AccessError> {
        let path = Access::path(dir, name)?;
        let bytes = private::read(&path).map_err(|error| match error {
            PrivateError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                AccessError::Unknown { name: name.into(), path: path.clone() }
            }
            error => AccessError::Private(error),
        })?;
        let bad = |why: String| AccessError::Bad { path: path.clone(), why };
        let access: Access = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
        match access.check() {
            _ if access.name != name => Err(bad(format!("it is that of the volume {}", access.name))),
            Ok(()) => Ok(access),
            Err(why) => Err(bad(why.into())),
        }
    }

    fn check(&self) -> Result<(), &'static str> {
        if ![OLD_FORMAT, FORMAT].contains(&self.format) {
            return Err("it is of another version");
        }
        if (self.format == FORMAT) != self.known_by.is_some() {
            return Err("it does not say what its servers are known by");
        }
        if self.servers.is_empty() || self.servers.len() > haul_core::volume::catalog::SERVERS_MAX {
            return Err("it has no server, or more than there can be");
        }
        if !haul_core::wire::object_size_is_legal(self.stripe) {
            return Err("its stripes are no power of two from 64 KiB to 64 MiB");
        }
        Ok(())
    }

    /// Writes it for the user alone, whole and so that it lasts.
    ///
    /// # Errors
    /// There is one already, or the disk says no.
    pub fn write_new(&self, dir: &Path) -> Result<(), AccessError> {
        check_name(&self.name)?;
        match self.write_in(&make(dir)?) {
            Err(AccessError::Taken(_)) => Err(AccessError::Exists(self.name.clone())),
            done => done,
        }
    }

    /// The same into any directory, for somebody who keeps it elsewhere.
    ///
    /// # Errors
    /// As of [`Access::write_new`].
    pub fn write_beside(&self, dir: &Path) -> Result<(), AccessError> {
        check_name(&self.name)?;
        self.write_in(&Dir::open(dir).map_err(failed("open", dir))?)
    }

    /// Writes it in the place of the one that there is.
    ///
    /// # Errors
    /// The disk says no; the one before is there then.
    pub fn replace(&self, dir: &Path) -> Result<(), AccessError> {
        check_name(&self.name)?;
        let dir = make(dir)?;
        let written = private::replace(&dir, &self.name, &self.bytes(&dir)?);
        written.map_err(failed("write", &dir.path_of(&self.name)))
    }

    fn bytes(&self, dir: &Dir) -> Result<Zeroizing<Vec<u8>>, AccessError> {
        // Nothing of it is left in memory that was given back: it does not grow.
        let mut bytes = Zeroizing::new(Vec::with_capacity(64 << 10));
        serde_json::to_writer_pretty(&mut *bytes, self)
            .map_err(|error| AccessError::Bad { path: dir.path_of(&self.name), why: error.to_string() })?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    fn write_in(&self, dir: &Dir) -> Result<(), AccessError> {
        let path = dir.path_of(&self.name);
        private::write_new(dir, &self.name, &self.bytes(dir)?).map_err(|errno| match errno {
            Errno::EXIST => AccessError::Taken(path),
            errno => failed("write", &path)(errno),
        })
    }

    /// Forgets the volume, which is not known here any more.
    ///
    /// # Errors
    /// The disk says no. That there is no such file is no error.
    pub fn remove(dir: &Path, name: &str) -> Result<(), AccessError> {
        let path = Access::path(dir, name)?;
        let volumes = dir.join(VOLUMES);
        let removed = Dir::open(&volumes).and_then(|volumes| {
            volumes.remove(name)?;
            volumes.sync()
        });
        match removed {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(failed("remove", &path)(errno)),
        }
    }

    /// The names of the volumes that are known, in their order.
    ///
    /// # Errors
    /// The directory cannot be read; that there is none is no error.
    pub fn names(dir: &Path) -> Result<Vec<String>, AccessError> {
        let volumes = dir.join(VOLUMES);
        let names = match Dir::open(&volumes) {
            Err(Errno::NOENT) => return Ok(Vec::new()),
            other => other.and_then(|volumes| volumes.names()).map_err(failed("read", &volumes))?,
        };
        let names = names.into_iter().filter_map(|name| name.into_string().ok());
        // What a writer that was killed left there begins with a dot.
        Ok(names.filter(|name| check_name(name).is_ok()).collect())
    }

    /// What connections of this volume are made with.
    ///
    /// # Errors
    /// Its key is none, which is looked at when it is read.
    pub fn keys(&self) -> Result<Keys, TransportError> {
        match &self.known_by {
            Some(servers) => self.key.keys_to(self.volume, servers),
            None => self.key.keys(self.volume),
        }
    }

    /// Where all servers listen, in the order of their numbers.
    ///
    /// # Errors
    /// A name has no address.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>, AccessError> {
        self.servers.iter().map(ServerAt::address).collect()
    }

    /// The servers and, as `None`, the catalog, which is the last.
    pub fn all(&self) -> impl Iterator<Item = (Option<ServerNo>, &ServerAt)> {
        let numbered = (0..).map(ServerNo).map(Some).zip(&self.servers);
        numbered.chain([(None, &self.catalog)])
    }
}

/// Makes the directory of the files, and those above it.
fn make(dir: &Path) -> Result<Dir, AccessError> {
    let volumes = dir.join(VOLUMES);
    let mut missing: Vec<&Path> = volumes.ancestors().take_while(|path| !path.is_dir()).collect();
    while let Some(path) = missing.pop() {
        match retry_on_intr(|| rustix::fs::mkdir(path, Mode::RWXU)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed("make", path)(errno)),
        }
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            Dir::open(parent).and_then(|parent| parent.sync()).map_err(failed("sync", parent))?;
        }
    }
    Dir::open(&volumes).map_err(failed("open", &volumes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn access(name: &str) -> Access {
        let at = |dir: &str| ServerAt { host: None, on: None, dir: dir.into(), at: "127.0.0.1:7".into() };
        let key = Key::generate().expect("randomness");
        Access::new(name, VolumeId([7; 16]), key, (vec![at("/a"), at("/b")], at("/a/catalog")))
    }

    /// Goal: only such words are names of volumes as are files of their own in one directory.
    #[test]
    fn names_are_plain() {
        for name in ["a", "Run-7_b.2", &"x".repeat(64)] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", ".", "..", ".a", "a/b", "a b", "ä", "a\n", &"x".repeat(65)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    /// Goal: what was written is read; another is not written over it; what others can read, of another name
    /// or torn is refused.
    #[test]
    fn accesses_are_whole_and_private() {
        let room = tempfile::tempdir().expect("a directory");
        let dir = room.path().join("x/y");
        assert!(matches!(Access::read(&dir, "v"), Err(AccessError::Unknown { .. })));
        assert!(Access::names(&dir).expect("none").is_empty());
        let one = access("v");
        one.write_new(&dir).expect("written");
        assert_eq!(Access::read(&dir, "v").expect("read"), one);
        assert!(matches!(access("v").write_new(&dir), Err(AccessError::Exists(_))));
        assert_eq!(Access::names(&dir).expect("names"), ["v"]);
        let path = Access::path(&dir, "v").expect("a name");
        let mode = |path: &Path| path.metadata().expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().expect("above"))), (0o600, 0o700));
        std::fs::copy(&path, path.with_file_name("w")).expect("copied");
        assert!(matches!(Access::read(&dir, "w"), Err(AccessError::Bad { .. })));
        for open in [0o640, 0o604, 0o620] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(open)).expect("set");
            assert!(matches!(Access::read(&dir, "v"), Err(AccessError::Private(PrivateError::Mode { .. }))));
        }
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("set");
        let whole = std::fs::read(&path).expect("read");
        std::fs::write(&path, &whole[..whole.len() / 2]).expect("torn");
        assert!(matches!(Access::read(&dir, "v"), Err(AccessError::Bad { .. })));
        Access::remove(&dir, "v").expect("removed");
        Access::remove(&dir, "v").expect("not there");
        assert!(!path.exists());
    }

    /// Goal: one for reading has no other key than that for reading, and cannot be made of what has none; an
    /// old one is read as it was.
    #[test]
    fn one_for_reading_has_its_key_alone() {
        let old = access("v");
        assert!(matches!(old.for_reading("r"), Err(AccessError::OneKey(_))));
        assert!(old.check().is_ok() && old.may_change().is_ok());
        let [servers, reader] = [(); 2].map(|()| Key::generate().expect("randomness"));
        let access = old.guarded(servers.public().expect("a key"), reader.clone());
        let reads = access.for_reading("r").expect("one");
        assert_eq!((&reads.key, &reads.reader, &*reads.name), (&reader, &None, "r"));
        assert!(reads.read_only && reads.check().is_ok() && reads.may_change().is_err());
        assert!(matches!(reads.for_reading("s"), Err(AccessError::ReadOnly(_))));
        let text = serde_json::to_string(&reads).expect("text");
        for secret in [&access.key, &servers] {
            assert!(!text.contains(serde_json::to_string(secret).expect("text").trim_matches('"')));
        }
        let pin = |access: &Access| access.keys().expect("keys").pin;
        assert_eq!((pin(&access), pin(&reads)), (pin(&reads), servers.public().expect("a key").pin()));
        let room = tempfile::tempdir().expect("a directory");
        reads.write_beside(room.path()).expect("written");
        assert!(matches!(reads.write_beside(room.path()), Err(AccessError::Taken(_))));
    }
}
