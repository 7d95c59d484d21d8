//! Files of a volume as a program uses them.
//!
//! In: an [`Access`], paths, bytes. Out: files that are read and written from all servers at once, and what
//! the catalog knows of their names. All of it may be used from many threads at a time, and each call waits
//! until it is done.
//!
//! Invariants: a read shows what was written before it began, by whoever heard that it was; where a file ends
//! a client sees of its own writes at once, and of others' after their [`File::sync`] or [`File::close`]. No
//! names, attributes or lengths are held here, so nothing of them is ever old; bytes that were read ahead are
//! given only if their file's version says that they are what a read would bring.
//! Left out: permissions, which nobody who has the key of a volume is bound by; locks.
//!
//! ```no_run
//! use haul_volume::access::Access;
//! use haul_volume::api::{OpenOptions, Volume};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let access = Access::read("/home/me/.local/state/haul".as_ref(), "run7")?;
//! let volume = Volume::open(&access)?;
//! let file = volume.open_file("/events", OpenOptions::new().read(true).write(true).create(true))?;
//! file.pwrite(b"first", 0)?;
//! let (mut head, mut far) = ([0; 5], [0; 1000]);
//! // Many places in one call, from all servers at once; how much of each there was.
//! let lens = file.pread_many(&mut [(0, &mut head), (1 << 30, &mut far)])?;
//! assert_eq!((lens, &head), (vec![5, 0], b"first"));
//! // Straight from the servers that have them, in the order in which they come.
//! let numbers: Vec<u64> = (0..file.blocks()?.count()).collect();
//! file.read_blocks(&numbers, |number, bytes| println!("block {number}: {} bytes", bytes.len()))?;
//! // What was written lasts, and everybody sees it.
//! file.close()?;
//! # Ok(())
//! # }
//! ```

mod ahead;
mod blocks;
mod dir;
mod error;
mod file;
mod many;
mod options;
mod path;
mod written;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use haul_core::entry::{Meta, Name, Timestamp};
pub use haul_core::volume::catalog::Kind;
use haul_core::volume::catalog::{Entry, EntryNo, Facts, Place};
use haul_core::volume::layout::Placing;
pub use haul_core::volume::layout::{BadList, Given, Placement};
use haul_core::volume::{ContentVersion, FileNo};
use rustix::io::Errno;

pub use self::blocks::{Block, Blocks, BlocksRead};
pub use self::dir::{Dir, Entries};
pub use self::error::{Error, OneFailed, Why};
pub use self::file::{File, Writing};
pub use self::options::{AHEAD, OpenOptions};
use self::path::{Led, lead};
use self::written::Written;
use crate::access::Access;
use crate::catalog::client::Client as Catalog;
use crate::client::{Client, Config, VolumeError, Waiting};
use crate::contents::{self, ContentsError};
use crate::dial::Keys;
use crate::lists;

/// How long something may take if nobody says.
const PATIENCE: Duration = Duration::from_secs(60);
/// Who is done waits no longer for a catalog to hear it.
const FAREWELL: Duration = Duration::from_secs(1);

/// How a volume is used.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// So long anything that is asked may take; then it fails, and may still be done.
    pub patience: Duration,
    /// Writes that are smaller, bytes, go through the server that gathers their file: 0 none, `u64::MAX` all.
    /// `None`: it sets itself.
    pub write_threshold: Option<u64>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { patience: PATIENCE, write_threshold: None }
    }
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stat {
    /// No other entry of the volume ever has it.
    pub number: u64,
    pub kind: Kind,
    /// Bytes of a file; 0 of what is none.
    pub len: u64,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Of a file when it was told last that it was written; see [`File::sync`].
    pub mtime: SystemTime,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirEntry {
    pub name: OsString,
    pub number: u64,
    pub kind: Kind,
    pub mode: u32,
}

/// A volume that is used. Clones are the same one.
#[derive(Clone)]
pub struct Volume {
    shared: Arc<Shared>,
}

/// What all files of a volume have in common.
struct Shared {
    name: String,
    /// `None`: it was told that this client is done.
    catalog: Option<Catalog>,
    client: Client,
    facts: Facts,
    /// Of files of which nothing else is said.
    placement: Placement,
    keys: Keys,
    /// Where its servers are, and how long one may take.
    at: Vec<SocketAddr>,
    patience: Duration,
    /// What all servers know of placements that were given here.
    taught: Mutex<BTreeSet<Placing>>,
    /// What was written here and not synced, of each file that somebody has open.
    written: Mutex<HashMap<FileNo, Weak<Written>>>,
    /// Syncs of files that were dropped, and what failed of such.
    left: Mutex<Left>,
}

#[derive(Default)]
struct Left {
    syncs: VecDeque<(String, Waiting<()>)>,
    failed: Option<Error>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Volume {
    /// Connects to a volume.
    ///
    /// # Errors
    /// Its catalog is not reached, or tells of a volume that this version does not know.
    pub fn open(access: &Access) -> Result<Volume, Error> {
        Volume::open_with(access, Settings::default())
    }

    /// The same, with other settings than by default.
    ///
    /// # Errors
    /// As of [`Volume::open`].
    pub fn open_with(access: &Access, settings: Settings) -> Result<Volume, Error> {
        Volume::connect(access, settings)
            .map_err(|why| Error::new("use", format!("the volume {}", access.name), why))
    }

    fn connect(access: &Access, settings: Settings) -> Result<Volume, Why> {
        let Settings { patience, write_threshold } = settings;
        let keys = access.keys();
        let keys = keys.map_err(|why| Why::refused(Errno::INVAL, haul_base::errno::with_causes(&why)))?;
        let found = |why: crate::access::AccessError| Why::refused(Errno::HOSTUNREACH, why.to_string());
        let (at, servers): (SocketAddr, Vec<SocketAddr>) =
            (access.catalog.address().map_err(found)?, access.addresses().map_err(found)?);
        let catalog = Catalog::connect(keys.clone(), at, patience)?;
        let facts = catalog.facts();
        let Some(placement) = Placement::from_word(&facts.placement) else {
            let word = haul_base::escape::name(facts.placement.as_bytes());
            let why = format!("its files lie in a way that this version does not know ({word})");
            return Err(Why::refused(Errno::NOTSUP, why));
        };
        if facts.servers.len() != servers.len() {
            let why = "its access names another number of servers than its catalog";
            return Err(Why::refused(Errno::INVAL, why));
        }
        let (number, stripe_size) = (catalog.number(), facts.stripe.into());
        let (own, at) = (keys.clone(), servers.clone());
        let config = Config { keys, number, servers, stripe_size, write_threshold, patience };
        let client = Client::start_for(config, &catalog).map_err(|error| {
            Why::Refused(error.raw_os_error().unwrap_or(0), haul_base::errno::text(&error))
        })?;
        let shared = Shared {
            name: access.name.clone(),
            catalog: Some(catalog),
            client,
            facts,
            placement,
            keys: own,
            at,
            patience,
            taught: Mutex::default(),
            written: Mutex::default(),
            left: Mutex::default(),
        };
        Ok(Volume { shared: Arc::new(shared) })
    }

    /// Where its servers are, `host:port`, in the order of their numbers.
    pub fn servers(&self) -> impl ExactSizeIterator<Item = &str> {
        self.shared.facts.servers.iter().map(|at| &**at)
    }

    /// Bytes of a stripe: that is a block of the block API.
    pub fn block_size(&self) -> u64 {
        self.shared.facts.stripe.into()
    }

    /// Opens a file. It sees what a [`File::close`] or [`File::sync`] wrote that was over before, by
    /// whomever.
    ///
    /// # Errors
    /// As of [`std::fs::OpenOptions::open`]; the options do not fit together.
    pub fn open_file(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Result<File, Error> {
        let path = path.as_ref().as_os_str().as_bytes();
        self.shared.told("open", path, |shared| {
            options.check()?;
            let led = lead(shared.catalog(), path, !options.create_new)?;
            shared.open_led(led, options, shared.url(path))
        })
    }

    /// What a path leads to; links are followed.
    ///
    /// # Errors
    /// Nothing is there, or it cannot be looked at.
    pub fn stat(&self, path: impl AsRef<Path>) -> Result<Stat, Error> {
        self.stat_of(path.as_ref(), true)
    }

    /// What a path names: a link itself, if it names one.
    ///
    /// # Errors
    /// As of [`Volume::stat`].
    pub fn lstat(&self, path: impl AsRef<Path>) -> Result<Stat, Error> {
        self.stat_of(path.as_ref(), false)
    }

    fn stat_of(&self, path: &Path, follow: bool) -> Result<Stat, Error> {
        let path = path.as_os_str().as_bytes();
        self.shared.told("look at", path, |shared| {
            let entry = lead(shared.catalog(), path, follow)?.found()?;
            let len = match entry.file() {
                Some(file) => shared.client.read(file, 0, 0).wait()?.end.max(shared.own_end(file)),
                None => 0,
            };
            Ok(stat_of(entry, len))
        })
    }

    /// The names in a directory, in the order of their bytes. Those that come and go meanwhile may be
    /// missing.
    ///
    /// # Errors
    /// It is none, or not there. Each page of names may fail as well.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir, Error> {
        let path = path.as_ref().as_os_str().as_bytes();
        self.shared.told("read the directory", path, |shared| {
            let entry = lead(shared.catalog(), path, true)?.found()?;
            let (page, more) = shared.catalog().read_dir(entry.id, None)?;
            let (shared, path) = (shared.clone(), path.to_vec());
            Ok(ReadDir { shared, path, dir: entry.id, page: page.into(), after: None, more })
        })
    }

    /// Makes a directory, of these bits of permission.
    ///
    /// # Errors
    /// The name is taken, or the directory above is not there.
    pub fn mkdir(&self, path: impl AsRef<Path>, mode: u32) -> Result<(), Error> {
        let path = path.as_ref().as_os_str().as_bytes();
        self.shared.told("make the directory", path, |shared| {
            if mode > haul_core::volume::catalog::MODE_MAX {
                return Err(Why::refused(Errno::INVAL, "a mode has bits of permission alone"));
            }
            Ok(shared.catalog().mkdir(shared.place(path)?, made(mode)).map(drop)?)
        })
    }

    /// Makes a symbolic link at a path, that leads to `target`.
    ///
    /// # Errors
    /// The name is taken, or the directory above is not there; no link can lead there.
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref().as_os_str().as_bytes();
        let target = target.as_ref().as_os_str().as_bytes();
        self.shared.told("make the link", path, |shared| {
            let max = haul_core::entry::LINK_LEN_MAX;
            if target.is_empty() || target.len() > max || target.contains(&0) {
                return Err(Why::refused(Errno::INVAL, "a link leads to a path of 1 to 4095 bytes"));
            }
            Ok(shared.catalog().symlink(shared.place(path)?, made(0o777), target).map(drop)?)
        })
    }

    /// Gives what is at a path another name. What was there is replaced, as POSIX has it.
    ///
    /// # Errors
    /// As of `rename(2)`.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), Error> {
        let (from, to) = (from.as_ref().as_os_str().as_bytes(), to.as_ref().as_os_str().as_bytes());
        self.shared.told("rename", from, |shared| {
            Ok(shared.catalog().rename(shared.place(from)?, shared.place(to)?, false)?)
        })
    }

    /// Takes the name of a file or link away. Its bytes go when nobody has it open any more.
    ///
    /// # Errors
    /// It is not there, or is a directory.
    pub fn unlink(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref().as_os_str().as_bytes();
        self.shared.told("remove", path, |shared| Ok(shared.catalog().unlink(shared.place(path)?)?))
    }

    /// Removes a directory.
    ///
    /// # Errors
    /// It is not there, not empty, or none.
    pub fn rmdir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref().as_os_str().as_bytes();
        let doing = "remove the directory";
        self.shared.told(doing, path, |shared| Ok(shared.catalog().rmdir(shared.place(path)?)?))
    }

    /// Opens the directory that a path leads to, for what is done by one name at a time.
    ///
    /// # Errors
    /// It is none, or not there.
    pub fn open_dir(&self, path: impl AsRef<Path>) -> Result<Dir, Error> {
        let path = path.as_ref().as_os_str().as_bytes();
        self.shared.told("open the directory", path, |shared| {
            let entry = lead(shared.catalog(), path, true)?.found()?;
            Dir::of(shared, &entry, path.to_vec())
        })
    }

    /// Waits for the syncs of files that were dropped and not closed, and tells what failed of them.
    ///
    /// # Errors
    /// The first of such.
    pub fn settle(&self) -> Result<(), Error> {
        self.shared.settle()
    }
}

impl Shared {
    fn catalog(&self) -> &Catalog {
        self.catalog.as_ref().expect("it is told at the very end that this client is done")
    }

    /// Opens the file that was found, or makes it where nothing was.
    fn open_led(self: &Arc<Shared>, led: Led, options: &OpenOptions, shown: String) -> Result<File, Why> {
        let makes = options.create || options.create_new;
        let (entry, new) = match led {
            Led { entry: Some(_), .. } if options.create_new => {
                return Err(Why::refused(Errno::EXIST, "its name is taken"));
            }
            Led { entry: Some(entry), .. } if entry.kind == Kind::File => {
                self.catalog().open(entry.id)?;
                (entry, false)
            }
            Led { entry: Some(Entry { kind: Kind::Link(_), .. }), .. } => {
                return Err(Why::refused(Errno::LOOP, "it is a symbolic link"));
            }
            Led { entry: Some(_), .. } => return Err(Why::refused(Errno::ISDIR, "it is a directory")),
            Led { at: Some(at), entry: None } if makes => {
                let placement = options.placement.unwrap_or(self.placement);
                let placing = match &options.given {
                    Some(list) => self.placing(list)?,
                    None => placement.of_file(options.expected_len, self.client.striping()),
                };
                let (new, mode) = (options.create_new, made(options.mode));
                self.catalog().create_placed(at, mode, new, true, placing)?
            }
            Led { entry: None, .. } => return Err(Why::refused(Errno::NOENT, "it is not there")),
        };
        let file = File::new(self, FileNo(entry.id.0), shown, options);
        if options.truncate && !new {
            file.empty()?;
        }
        Ok(file)
    }

    /// What an entry is, its length and time as its gatherer knows them; and the version of its bytes, if it
    /// is a file. Where somebody writes it all the time there is none, and its time may be older than what
    /// was written.
    fn looked(&self, entry: Entry) -> Result<(Stat, Option<ContentVersion>), Why> {
        let Some(file) = entry.file() else { return Ok((stat_of(entry, 0), None)) };
        match contents::look(self.catalog(), &self.client, file) {
            Ok((look, told)) => {
                let len = look.end.max(self.own_end(file));
                Ok((stat_of(told.unwrap_or(entry), len), Some(look.version)))
            }
            Err(ContentsError::Servers(VolumeError::Busy)) => {
                let len = self.client.read(file, 0, 0).wait()?.end.max(self.own_end(file));
                Ok((stat_of(entry, len), None))
            }
            Err(ContentsError::Servers(why)) => Err(why.into()),
            Err(ContentsError::Catalog(why)) => Err(why.into()),
        }
    }

    /// Which placing files have that lie so; all servers know it then.
    fn placing(&self, list: &Given) -> Result<Placing, Why> {
        let placing = self.catalog().place(list)?;
        if !lock(&self.taught).contains(&placing) && !haul_mutant::removed("volume-placements-are-taught") {
            lists::teach(&self.keys, &self.at, placing, list, self.patience).map_err(|why| {
                let why = haul_base::errno::with_causes(&why);
                Why::refused(Errno::HOSTUNREACH, format!("each server must know how it will lie: {why}"))
            })?;
            lock(&self.taught).insert(placing);
        }
        Ok(placing)
    }

    /// A path in it, to be shown.
    fn url(&self, path: &[u8]) -> String {
        let slash = if path.starts_with(b"/") { "" } else { "/" };
        format!("vol://{}{slash}{}", self.name, haul_base::escape::within(path))
    }

    fn told<T>(
        self: &Arc<Shared>,
        doing: &'static str,
        path: &[u8],
        work: impl FnOnce(&Arc<Shared>) -> Result<T, Why>,
    ) -> Result<T, Error> {
        work(self).map_err(|why| Error::new(doing, self.url(path), why))
    }

    /// The place of a name, which may be a directory's and end in a slash. A link at it is not followed.
    fn place(&self, path: &[u8]) -> Result<Place, Why> {
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        lead(self.catalog(), &path[..end], false)?.name()
    }

    /// What this program wrote to a file.
    fn written(&self, file: FileNo) -> Arc<Written> {
        let mut all = lock(&self.written);
        if let Some(written) = all.get(&file).and_then(Weak::upgrade) {
            return written;
        }
        all.retain(|_, written| written.strong_count() > 0);
        let written = Arc::new(Written::default());
        all.insert(file, Arc::downgrade(&written));
        written
    }

    /// Where a file ends by what this program wrote and did not sync.
    fn own_end(&self, file: FileNo) -> u64 {
        lock(&self.written).get(&file).and_then(Weak::upgrade).map_or(0, |written| written.end())
    }

    /// A file is dropped with what was not synced.
    fn leave(&self, shown: &str, sync: Waiting<()>) {
        let mut left = lock(&self.left);
        left.syncs.push_back((shown.to_owned(), sync));
        // What is over need not be held.
        while let Some((shown, result)) =
            left.syncs.front().and_then(|(shown, sync)| Some((shown.clone(), sync.wait_for(Duration::ZERO)?)))
        {
            left.syncs.pop_front();
            left.hear(&shown, result);
        }
    }

    fn settle(&self) -> Result<(), Error> {
        loop {
            // Not under the lock, for it may take a while.
            let next = lock(&self.left).syncs.pop_front();
            let Some((shown, sync)) = next else { break };
            let result = sync.wait();
            lock(&self.left).hear(&shown, result);
        }
        lock(&self.left).failed.take().map_or(Ok(()), Err)
    }
}

impl Left {
    fn hear(&mut self, shown: &str, result: Result<(), VolumeError>) {
        if let Err(why) = result {
            self.failed.get_or_insert_with(|| Error::new("sync what was dropped of", shown, why));
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // What was dropped unsynced is on its way; who wants to hear of it asks before.
        let _ = self.settle();
        if let Some(catalog) = self.catalog.take() {
            catalog.hurry(Some(FAREWELL));
            let _ = catalog.leave();
        }
    }
}

/// The names in a directory, page by page.
pub struct ReadDir {
    shared: Arc<Shared>,
    path: Vec<u8>,
    dir: EntryNo,
    page: VecDeque<(Name, Entry)>,
    after: Option<Name>,
    more: bool,
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry, Error>;

    fn next(&mut self) -> Option<Result<DirEntry, Error>> {
        if self.page.is_empty() && self.more {
            match self.shared.catalog().read_dir(self.dir, self.after.clone()) {
                Ok((page, more)) => (self.page, self.more) = (page.into(), more),
                Err(why) => {
                    self.more = false;
                    return Some(Err(Error::new("read the directory", self.shared.url(&self.path), why)));
                }
            }
        }
        let (name, entry) = self.page.pop_front()?;
        self.after = Some(name.clone());
        let (name, mode) = (OsString::from_vec(name.as_bytes().to_vec()), entry.meta.mode);
        Some(Ok(DirEntry { name, number: entry.id.0, kind: entry.kind, mode }))
    }
}

/// What is made here now.
fn made(mode: u32) -> Meta {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mtime = Timestamp { secs: i64::try_from(now.as_secs()).unwrap_or(0), nanos: now.subsec_nanos() };
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    Meta { mode, uid, gid, mtime }
}

fn stat_of(entry: Entry, len: u64) -> Stat {
    let Meta { mode, uid, gid, mtime } = entry.meta;
    Stat { number: entry.id.0, kind: entry.kind, len, mode, uid, gid, mtime: time_of(mtime) }
}

/// A time as the system has it. One that it cannot say is the beginning of 1970.
fn time_of(time: Timestamp) -> SystemTime {
    let secs = Duration::from_secs(time.secs.unsigned_abs());
    let whole = match time.secs {
        0.. => UNIX_EPOCH.checked_add(secs),
        _ => UNIX_EPOCH.checked_sub(secs),
    };
    whole.and_then(|whole| whole.checked_add(Duration::from_nanos(time.nanos.into()))).unwrap_or(UNIX_EPOCH)
}
