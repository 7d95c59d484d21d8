//! The catalog on disk: one SQLite database in one directory.
//!
//! In: a directory, the volume's number, what is to be changed. Out: that it is on media.
//! Invariants: one process at a time has the directory open; what is committed lasts (a write-ahead log with
//! `synchronous=FULL`: SQLite syncs it at each commit); numbers of entries and clients are never given twice;
//! a database is made under another name and gets its own when it is whole, so that none is ever half made;
//! one that is damaged, of another volume or of another version is refused and not touched.
//! After an error of the disk other than that it is full nothing more is done: what the disk has then, nobody
//! knows before it is opened anew. The write-ahead log has room in advance, and more is kept in a file beside
//! it: so that a catalog is opened, and has files unlinked, though its disk is full.
//! Left out: flipped bits in what is stored, which SQLite does not notice. Names are in
//! [`tree`](super::tree).

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use haul_base::errno;
use haul_core::volume::catalog::wire::{decode_answer, encode_answer};
use haul_core::volume::catalog::{Answer, Facts, Failure, WINDOW};
use haul_core::volume::rights::READERS;
use haul_core::volume::wire::VolumeId;
use haul_core::volume::{ClientNo, RequestNo};
use haul_core::wire::object_size_is_legal;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, params};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::Errno;

use crate::reserve::{Reserve, is_full as is_full_errno};

const DATABASE: &str = "catalog.db";
/// A database that is being made.
const UNFINISHED: &str = "catalog.new";
const LOCK: &str = "catalog.lock";
const WAL: &str = "catalog.db-wal";
/// What the write-ahead log has in advance, bytes: for some thirty changes of a page here and there.
const WAL_ROOM: u64 = 1 << 20;
/// What is kept beside it: for that after a start, and for the database where it grows.
const RESERVE: u64 = 2 << 20;
const _: () = assert!(RESERVE > WAL_ROOM);
/// Marks a database as a catalog of haul: "hcat".
const APPLICATION: i64 = 0x6863_6174;
/// The version of the tables.
const VERSION: i64 = 4;
/// Statements that stay prepared.
const STATEMENTS: usize = 64;

/// What is in the database. The texts are compared when it is opened.
///
/// `next_entry`: see [`Placing`](haul_core::volume::layout::Placing), which a file's number has besides.
/// `entries`: kind 0 directory, 1 file, 2 link. Without parent and name: the root, or a file that was
/// unlinked. `unlinked`: files without a name; once `released`, nobody can open them any more and servers
/// remove them. `removed`: which server has done so. `answers`: see [`Store::recall`]. `states`: of what was
/// written or renamed, see [`states`](super::states); version 1 had none of it. `lists`: how files lie, by
/// the number that theirs name, see [`lists`](super::lists); version 2 had none of it. `skips`: numbers that
/// were never given, see [`skips`](super::skips); version 3 had none of it.
const TABLES: [(&str, &str); 9] = [
    (
        "volume",
        "CREATE TABLE volume (one INTEGER PRIMARY KEY CHECK (one = 1), id BLOB NOT NULL, \
         stripe INTEGER NOT NULL, placement TEXT NOT NULL, next_client INTEGER NOT NULL, \
         next_entry INTEGER NOT NULL) STRICT",
    ),
    ("servers", "CREATE TABLE servers (number INTEGER PRIMARY KEY, address TEXT NOT NULL) STRICT"),
    (
        "entries",
        "CREATE TABLE entries (id INTEGER PRIMARY KEY, parent INTEGER, name BLOB, \
         kind INTEGER NOT NULL CHECK (kind BETWEEN 0 AND 2), mode INTEGER NOT NULL, uid INTEGER NOT NULL, \
         gid INTEGER NOT NULL, secs INTEGER NOT NULL, nanos INTEGER NOT NULL, target BLOB, \
         UNIQUE (parent, name), CHECK ((parent IS NULL) = (name IS NULL)), \
         CHECK ((target IS NOT NULL) = (kind = 2))) STRICT",
    ),
    (
        "unlinked",
        "CREATE TABLE unlinked (file INTEGER PRIMARY KEY, released INTEGER NOT NULL \
         CHECK (released BETWEEN 0 AND 1)) STRICT",
    ),
    (
        "removed",
        "CREATE TABLE removed (file INTEGER NOT NULL, server INTEGER NOT NULL, \
         PRIMARY KEY (file, server)) STRICT, WITHOUT ROWID",
    ),
    (
        "answers",
        "CREATE TABLE answers (client INTEGER NOT NULL, slot INTEGER NOT NULL, request INTEGER NOT NULL, \
         answer BLOB NOT NULL, PRIMARY KEY (client, slot)) STRICT, WITHOUT ROWID",
    ),
    STATES,
    LISTS,
    SKIPS,
];

/// Of [`TABLES`], what came with version 4, 3, and 2.
const SKIPS: (&str, &str) =
    ("skips", "CREATE TABLE skips (first INTEGER PRIMARY KEY, last INTEGER NOT NULL) STRICT");
const LISTS: (&str, &str) =
    ("lists", "CREATE TABLE lists (list INTEGER PRIMARY KEY, runs BLOB NOT NULL UNIQUE) STRICT");
const STATES: (&str, &str) = (
    "states",
    "CREATE TABLE states (entry INTEGER PRIMARY KEY, state INTEGER NOT NULL, whole INTEGER, place TEXT, \
     way BLOB, life INTEGER, changes BLOB, CHECK ((place IS NULL) = (way IS NULL)), \
     CHECK ((place IS NULL) = (life IS NULL)), CHECK ((place IS NULL) = (changes IS NULL))) STRICT",
);

/// Why a catalog cannot be made or opened.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot {what} {}: {}", path.display(), errno::text(source))]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error("{} has the catalog of a volume already", .0.display())]
    Exists(PathBuf),
    #[error("{} has no catalog of a volume", .0.display())]
    Missing(PathBuf),
    #[error("the catalog in {} is served by another process", .0.display())]
    Busy(PathBuf),
    #[error("{} can be entered by others: its mode is {mode:03o}, and must be 700", path.display())]
    Open { path: PathBuf, mode: u32 },
    #[error("{} has the catalog of another volume", .0.display())]
    AnotherVolume(PathBuf),
    #[error("{} is no catalog that this haul knows: {why}", path.display())]
    Unknown { path: PathBuf, why: String },
    #[error("the catalog {} is damaged, and was left as it is: {why}", path.display())]
    Damaged { path: PathBuf, why: String },
    #[error("what is to be settled for a volume is not possible: {0}")]
    BadFacts(&'static str),
}

/// Why something was not done.
#[derive(Debug)]
pub enum Trouble {
    /// As things are, it cannot be; nothing was changed.
    Failed(Failure),
    /// The database did not do it. What the transaction has done so far must not be committed.
    Disk(rusqlite::Error),
}

impl From<rusqlite::Error> for Trouble {
    fn from(error: rusqlite::Error) -> Trouble {
        Trouble::Disk(error)
    }
}

/// It cannot be, for this reason.
pub fn failed(errno: Errno, words: &str) -> Trouble {
    Trouble::Failed(Failure { errno: errno.raw_os_error(), words: words.into() })
}

/// What a client hears of an error of the disk.
pub fn disk_failure(error: &rusqlite::Error) -> Failure {
    let errno = if is_full(error) { Errno::NOSPC } else { Errno::IO };
    Failure { errno: errno.raw_os_error(), words: format!("the catalog cannot write: {error}").into() }
}

/// What a client hears where there is no room in that directory.
pub fn full_failure(dir: &Path) -> Failure {
    let words = format!(
        "its disk is full: nothing is made or changed before there is room where {} lies; files can be removed",
        haul_base::escape::within(dir.as_os_str().as_encoded_bytes())
    );
    Failure { errno: Errno::NOSPC.raw_os_error(), words: words.into() }
}

/// There was no room: what was under way is undone, and all is as before.
pub fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}

/// What the catalog knows of a request that it is asked.
#[derive(Debug, PartialEq, Eq)]
pub enum Recalled {
    /// It was not done; or it failed, and nothing was changed by it.
    New,
    /// It was done, and this was the answer.
    Done(Answer),
    /// It is older than what is remembered.
    Stale,
}

/// A catalog that is open.
pub struct Store {
    pub(super) db: Connection,
    volume: VolumeId,
    facts: Facts,
    dir: PathBuf,
    reserve: Reserve,
    /// The database and its write-ahead log, as they were opened.
    files: Vec<(PathBuf, (u64, u64))>,
    /// Held as long as this lives.
    _lock: File,
}

impl Store {
    /// Makes the catalog of a new volume in a directory, which is made if it is not there.
    ///
    /// # Errors
    /// There is one already, the facts are not possible, or the system refuses.
    pub fn create(dir: &Path, volume: VolumeId, facts: &Facts) -> Result<Store, StoreError> {
        check(facts).map_err(StoreError::BadFacts)?;
        match DirBuilder::new().mode(0o700).create(dir) {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                return Err(StoreError::Io { what: "make", path: dir.into(), source });
            }
            _ => {}
        }
        fs::set_permissions(dir, Permissions::from_mode(0o700)).map_err(io("protect", dir))?;
        let lock = lock(dir)?;
        let (path, unfinished) = (dir.join(DATABASE), dir.join(UNFINISHED));
        if path.try_exists().map_err(io("look for", &path))? {
            return Err(StoreError::Exists(dir.into()));
        }
        // Of a process that ended before it was whole.
        for old in [unfinished.clone(), dir.join(format!("{UNFINISHED}-journal"))] {
            match fs::remove_file(&old) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(StoreError::Io { what: "remove", path: old, source });
                }
                _ => {}
            }
        }
        let wrong = |error: rusqlite::Error| StoreError::Io {
            what: "make",
            path: unfinished.clone(),
            source: io::Error::other(error),
        };
        write_new(&unfinished, volume, facts).map_err(wrong)?;
        fs::rename(&unfinished, &path).map_err(io("name", &path))?;
        for dir in
            [Some(dir), dir.parent().filter(|parent| !parent.as_os_str().is_empty())].into_iter().flatten()
        {
            File::open(dir).and_then(|dir| dir.sync_all()).map_err(io("sync", dir))?;
        }
        open_locked(dir, lock, volume)
    }

    /// Opens the catalog of this volume.
    ///
    /// # Errors
    /// See [`StoreError`]; what is there stays as it is.
    pub fn open(dir: &Path, volume: VolumeId) -> Result<Store, StoreError> {
        let path = dir.join(DATABASE);
        if !path.try_exists().map_err(io("look for", &path))? {
            return Err(StoreError::Missing(dir.into()));
        }
        let mode = fs::metadata(dir).map_err(io("look at", dir))?.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(StoreError::Open { path: dir.into(), mode });
        }
        open_locked(dir, lock(dir)?, volume)
    }

    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Where it lies.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// There is no room for something that makes some: what is kept for that is given up, and what the
    /// write-ahead log has makes room in it.
    pub fn ease(&self) {
        give_up(&self.reserve);
        let _ = self.db.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(()));
    }

    /// Takes the room that is kept, as far as there is any. Whether there is all of it.
    pub fn keep_room(&self) -> bool {
        let wal = File::options().write(true).open(self.dir.join(WAL));
        // Until the first transaction there may be none.
        let has_log = wal.map_or(true, |wal| {
            let take = |len| fallocate(&wal, FallocateFlags::KEEP_SIZE, 0, len);
            let is_taken = |len| !take(len).is_err_and(is_full_errno);
            // As much as there is.
            (0..4).find(|half| is_taken(WAL_ROOM >> half)) == Some(0)
        });
        // The log first.
        self.reserve.fill().unwrap_or(true) && has_log
    }

    /// Begins a transaction. All that is done from here on is done at once, by [`Store::commit`].
    ///
    /// # Errors
    /// The disk's.
    pub fn begin(&self) -> Result<(), rusqlite::Error> {
        if haul_mutant::removed("catalog-lasts-before-answer") && !self.db.is_autocommit() {
            return Ok(());
        }
        self.db.prepare_cached("BEGIN IMMEDIATE")?.execute([]).map(drop)
    }

    /// What was done since [`Store::begin`] lasts from here on. After an error nothing of it was done.
    ///
    /// # Errors
    /// The disk's.
    pub fn commit(&self) -> Result<(), rusqlite::Error> {
        if haul_mutant::removed("catalog-lasts-before-answer") && self.db.last_insert_rowid() % 16 != 0 {
            return Ok(());
        }
        let committed = self.db.prepare_cached("COMMIT")?.execute([]).map(drop);
        if committed.is_err() {
            self.rollback();
        }
        committed.and_then(|()| if self.is_there() { Ok(()) } else { Err(moved()) })
    }

    /// Whether the database and its log are still what lies in the directory by their names.
    pub fn is_there(&self) -> bool {
        haul_mutant::removed("catalog-sees-that-it-is-gone")
            || self.files.iter().all(|(path, file)| file_of(path).is_ok_and(|now| now == *file))
    }

    /// What was done since [`Store::begin`] was not.
    pub fn rollback(&self) {
        // SQLite has undone it by itself where it failed; there is nothing to undo then.
        if !self.db.is_autocommit() {
            let _ = self.db.execute_batch("ROLLBACK");
        }
    }

    /// Does one thing in a transaction of its own.
    ///
    /// # Errors
    /// Its own, and the disk's. Nothing was changed then.
    pub fn alone<T>(&self, work: impl FnOnce(&Store) -> Result<T, Trouble>) -> Result<T, Trouble> {
        self.begin()?;
        match work(self) {
            Ok(done) => self.commit().map(|()| done).map_err(Trouble::Disk),
            Err(trouble) => {
                self.rollback();
                Err(trouble)
            }
        }
    }

    /// A number for a client, that no other gets once this is committed.
    ///
    /// # Errors
    /// The disk's.
    pub fn new_client(&self) -> Result<ClientNo, Trouble> {
        let sql = "UPDATE volume SET next_client = next_client + 1 RETURNING next_client - 1";
        let number: i64 = self.db.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
        Ok(ClientNo(number as u64))
    }

    /// Whether the number was ever given.
    ///
    /// # Errors
    /// The disk's.
    pub fn knows_client(&self, client: ClientNo) -> Result<bool, Trouble> {
        let next: i64 =
            self.db.prepare_cached("SELECT next_client FROM volume")?.query_row([], |row| row.get(0))?;
        Ok((1..next as u64).contains(&(client.0 & !READERS)))
    }

    /// What became of a request that is not to be done twice.
    ///
    /// A request's answer is kept in the slot that its number has modulo [`WINDOW`], until a later one of the
    /// same slot takes its place: its client has heard the older answer before it asks that.
    ///
    /// # Errors
    /// The disk's.
    pub fn recall(&self, client: ClientNo, request: RequestNo) -> Result<Recalled, Trouble> {
        if haul_mutant::removed("catalog-answers-once") {
            return Ok(Recalled::New);
        }
        let sql = "SELECT request, answer FROM answers WHERE client = ?1 AND slot = ?2";
        let slot = params![client.0 as i64, (request.0 % WINDOW) as i64];
        let row: Option<(i64, Vec<u8>)> =
            self.db.prepare_cached(sql)?.query_row(slot, |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        Ok(match row {
            Some((number, bytes)) if number as u64 == request.0 => match decode_answer(&bytes) {
                Ok(answer) => Recalled::Done(answer),
                Err(_) => return Err(failed(Errno::IO, "the answer that is remembered cannot be read")),
            },
            Some((number, _)) if number as u64 > request.0 => Recalled::Stale,
            _ => Recalled::New,
        })
    }

    /// Remembers the answer to a request that was done.
    ///
    /// # Errors
    /// The disk's.
    pub fn remember(&self, client: ClientNo, request: RequestNo, answer: &Answer) -> Result<(), Trouble> {
        let sql = "INSERT OR REPLACE INTO answers (client, slot, request, answer) VALUES (?1, ?2, ?3, ?4)";
        let slot = (request.0 % WINDOW) as i64;
        let row = params![client.0 as i64, slot, request.0 as i64, encode_answer(answer)];
        self.db.prepare_cached(sql)?.execute(row)?;
        Ok(())
    }

    /// A client is done: none of its requests comes again.
    ///
    /// # Errors
    /// The disk's.
    pub fn forget(&self, client: ClientNo) -> Result<(), Trouble> {
        self.db.prepare_cached("DELETE FROM answers WHERE client = ?1")?.execute([client.0 as i64])?;
        Ok(())
    }
}

/// Which file has that name: its device and number. It is not opened: closing it would end the database's
/// locks.
fn file_of(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|meta| (meta.dev(), meta.ino()))
}

/// What is committed has no name.
pub(super) fn moved() -> rusqlite::Error {
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_READONLY_DBMOVED);
    let why = "its database was removed, moved or replaced while it was served; bring it back, and start the catalog";
    rusqlite::Error::SqliteFailure(code, Some(why.into()))
}

fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { what, path, source }
}

/// Makes sure that nobody else has the directory open.
fn lock(dir: &Path) -> Result<File, StoreError> {
    let path = dir.join(LOCK);
    let mut options = OpenOptions::new();
    let file = options.create(true).truncate(false).write(true).mode(0o600).open(&path);
    let file = file.map_err(io("open", &path))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        _ if haul_mutant::removed("catalog-lock") => Ok(file),
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(StoreError::Busy(dir.into())),
        Err(errno) => Err(StoreError::Io { what: "lock", path, source: errno.into() }),
    }
}

/// What the wire would refuse to carry must not be settled.
fn check(facts: &Facts) -> Result<(), &'static str> {
    use haul_core::volume::catalog::{ADDRESS_LEN_MAX, PLACEMENT_LEN_MAX, SERVERS_MAX};
    if !object_size_is_legal(facts.stripe) {
        return Err("a stripe is a power of two from 64 KiB to 64 MiB");
    }
    if facts.servers.is_empty() || facts.servers.len() > SERVERS_MAX {
        return Err("a volume has 1 to 1,024 servers");
    }
    if facts.servers.iter().any(|server| server.is_empty() || server.len() > ADDRESS_LEN_MAX) {
        return Err("the address of a server has 1 to 300 bytes");
    }
    match facts.placement.is_empty() || facts.placement.len() > PLACEMENT_LEN_MAX {
        true => Err("the word for the placement has 1 to 64 bytes"),
        false => Ok(()),
    }
}

fn write_new(path: &Path, volume: VolumeId, facts: &Facts) -> Result<(), rusqlite::Error> {
    // SQLite gives its other files the mode of this one.
    let mut options = OpenOptions::new();
    options.create_new(true).write(true).mode(0o600).open(path).map_err(|error| {
        let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CANTOPEN);
        rusqlite::Error::SqliteFailure(code, Some(errno::text(error)))
    })?;
    let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    db.pragma_update(None, "synchronous", "FULL")?;
    db.execute_batch("BEGIN IMMEDIATE")?;
    db.pragma_update(None, "application_id", APPLICATION)?;
    db.pragma_update(None, "user_version", VERSION)?;
    for (_, sql) in TABLES {
        db.execute_batch(sql)?;
    }
    let row = params![&volume.0[..], facts.stripe, &*facts.placement];
    db.execute("INSERT INTO volume VALUES (1, ?1, ?2, ?3, 1, 2)", row)?;
    for (number, address) in facts.servers.iter().enumerate() {
        db.execute("INSERT INTO servers VALUES (?1, ?2)", params![number as i64, &**address])?;
    }
    let root = "INSERT INTO entries (id, kind, mode, uid, gid, secs, nanos) VALUES (1, 0, ?1, ?2, ?3, 0, 0)";
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    db.execute(root, params![0o755, uid, gid])?;
    db.execute_batch("COMMIT")?;
    db.close().map_err(|(_, error)| error)
}

/// Gives the room that is kept to what is written next. Whether there was any.
fn give_up(reserve: &Reserve) -> bool {
    !haul_mutant::removed("catalog-opens-on-a-full-disk") && reserve.give_up()
}

fn open_locked(dir: &Path, lock: File, volume: VolumeId) -> Result<Store, StoreError> {
    let reserve = Reserve::of(dir, RESERVE).map_err(|errno| io("open", dir)(errno.into()))?;
    let (db, facts) = match open_database(dir, volume) {
        // It may be room that lacks.
        Err(StoreError::Io { .. }) if give_up(&reserve) => open_database(dir, volume)?,
        opened => opened?,
    };
    // The log is there from the first look into the database on.
    let _: Result<i64, _> = db.query_row("SELECT count(*) FROM volume", [], |row| row.get(0));
    let files = [DATABASE, WAL].map(|name| dir.join(name));
    let files = files.into_iter().filter_map(|path| Some((path.clone(), file_of(&path).ok()?))).collect();
    let store = Store { db, volume, facts, dir: dir.to_owned(), reserve, files, _lock: lock };
    if !store.keep_room() && give_up(&store.reserve) {
        store.keep_room();
    }
    Ok(store)
}

fn open_database(dir: &Path, volume: VolumeId) -> Result<(Connection, Facts), StoreError> {
    let path = dir.join(DATABASE);
    let damaged = |error: rusqlite::Error| match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt) => {
            StoreError::Damaged { path: path.clone(), why: error.to_string() }
        }
        Some(ErrorCode::NotADatabase) => StoreError::Damaged { path: path.clone(), why: error.to_string() },
        // Another program has it open, without the lock.
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Busy(dir.into()),
        _ => StoreError::Io { what: "open", path: path.clone(), source: io::Error::other(error) },
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(&path, flags).map_err(damaged)?;
    db.set_prepared_statement_cache_capacity(STATEMENTS);
    // An exclusive database needs no shared memory beside it, and no other program writes it meanwhile.
    let settle = "PRAGMA locking_mode = EXCLUSIVE; PRAGMA synchronous = FULL; PRAGMA trusted_schema = OFF; \
                  PRAGMA cell_size_check = ON;";
    db.execute_batch(settle).map_err(damaged)?;
    let pragma = |name: &str| db.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (application, version) =
        pragma("application_id").and_then(|a| Ok((a, pragma("user_version")?))).map_err(damaged)?;
    let unknown = |why: String| StoreError::Unknown { path: path.clone(), why };
    if application != APPLICATION {
        return Err(unknown("it is not marked as one".into()));
    }
    if !(1..=VERSION).contains(&version) {
        return Err(unknown(format!("its version is {version}, this one's {VERSION}")));
    }
    whole(&db, version).map_err(damaged)?.map_err(|why| StoreError::Damaged { path: path.clone(), why })?;
    let (id, facts) = settled(&db).map_err(damaged)?;
    if id != volume.0 && !haul_mutant::removed("catalog-of-this-volume") {
        return Err(StoreError::AnotherVolume(dir.into()));
    }
    check(&facts).map_err(|why| StoreError::Damaged { path: path.clone(), why: why.into() })?;
    if version < VERSION {
        renew(&db, version).map_err(damaged)?;
    }
    let mode: String =
        db.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0)).map_err(damaged)?;
    if mode != "wal" {
        return Err(unknown(format!("its journal cannot be a write-ahead log, only {mode}")));
    }
    Ok((db, facts))
}

/// Since which version a table is there.
fn since(table: (&str, &str)) -> i64 {
    match table {
        SKIPS => 4,
        LISTS => 3,
        STATES => 2,
        _ => 1,
    }
}

/// Brings a catalog of an older version to this one: nothing is known of what was written before there were
/// states, nobody gave a placement before there were lists, and nothing was skipped.
fn renew(db: &Connection, version: i64) -> Result<(), rusqlite::Error> {
    db.execute_batch("BEGIN IMMEDIATE")?;
    for (_, sql) in TABLES.into_iter().filter(|table| since(*table) > version) {
        db.execute_batch(sql)?;
    }
    db.pragma_update(None, "user_version", VERSION)?;
    db.execute_batch("COMMIT")
}

/// Whether tables and indexes are what they should be and fit each other; else the first thing that does not.
fn whole(db: &Connection, version: i64) -> Result<Result<(), String>, rusqlite::Error> {
    if haul_mutant::removed("catalog-whole") {
        return Ok(Ok(()));
    }
    for (name, sql) in TABLES.into_iter().filter(|table| since(*table) <= version) {
        let there: Option<String> = db
            .query_row("SELECT sql FROM sqlite_schema WHERE name = ?1", [name], |row| row.get(0))
            .optional()?;
        if there.as_deref() != Some(sql) {
            return Ok(Err(format!("its table {name} is another, or not there")));
        }
    }
    let found: String = db.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    if found != "ok" {
        return Ok(Err(found));
    }
    let root: i64 = db.query_row(
        "SELECT count(*) FROM entries WHERE id = 1 AND kind = 0 AND parent IS NULL",
        [],
        |row| row.get(0),
    )?;
    Ok(if root == 1 { Ok(()) } else { Err("it has no root".into()) })
}

fn settled(db: &Connection) -> Result<(Vec<u8>, Facts), rusqlite::Error> {
    let (id, stripe, placement): (Vec<u8>, u32, String) =
        db.query_row("SELECT id, stripe, placement FROM volume", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
    let mut statement = db.prepare("SELECT address FROM servers ORDER BY number")?;
    let servers = statement.query_map([], |row| row.get::<_, String>(0))?;
    let servers = servers.map(|server| server.map(String::into_boxed_str)).collect::<Result<_, _>>()?;
    Ok((id, Facts { stripe, placement: placement.into(), servers }))
}
