//! The names of a volume: what is done to them, and what becomes of files that have none any more.
//!
//! In: requests whose names are legal. Out: answers, as POSIX has them, or an errno with its words.
//! Invariants: every directory but the root has one parent, and leads to the root; all that can fail is
//! looked at before anything is changed; each name is there once. A file that lost its name keeps its entry
//! until each server has said that its bytes are gone.
//! Each of these belongs into a transaction: see [`Store::begin`] and [`Store::alone`].

use haul_core::entry::{Meta, Name, Timestamp};
use haul_core::volume::catalog::wire::PAGE_TARGETS_LEN_MAX;
use haul_core::volume::catalog::{Answer, Entry, EntryNo, Kind, Place, ROOT, Setting};
use haul_core::volume::layout::{Placing, SERIALS};
use haul_core::volume::{FileNo, ServerNo};
use rusqlite::types::Value;
use rusqlite::{OptionalExtension, Row, params};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::states::Became;
use super::store::{Store, Trouble, failed};

/// A directory that lies deeper is not moved: the way up from it is walked for each move.
const DEPTH_MAX: usize = 4096;
/// Files that one answer names.
const FILES_MAX: i64 = haul_core::volume::catalog::PAGE_MAX as i64;
/// What a row of [`entry_of`] has.
macro_rules! columns {
    () => {
        "id, parent, kind, mode, uid, gid, secs, nanos, target"
    };
}

/// The epoch of a file for tickets: as long as it has its name, and after that.
pub const NAMED: u32 = 0;
pub const NAMELESS: u32 = 1;

/// What the catalog gives a ticket for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfTicket {
    /// A file that the client can use.
    File { epoch: u32 },
    /// One that nobody can use any more, or that there is none of: its bytes may be removed.
    Gone,
    /// What is no file, or one without a name that others have open.
    Nothing,
}

/// What became of a name's file: it has none any more.
pub type Nameless = Option<EntryNo>;

fn entry_of(row: &Row<'_>) -> rusqlite::Result<Entry> {
    let kind = match row.get::<_, i64>(2)? {
        0 => Kind::Directory,
        1 => Kind::File,
        _ => Kind::Link(row.get::<_, Vec<u8>>(8)?.into()),
    };
    let meta = Meta {
        mode: row.get(3)?,
        uid: row.get(4)?,
        gid: row.get(5)?,
        mtime: Timestamp { secs: row.get(6)?, nanos: row.get(7)? },
    };
    let parent = row.get::<_, Option<i64>>(1)?.map(|parent| EntryNo(parent as u64));
    Ok(Entry { id: EntryNo(row.get::<_, i64>(0)? as u64), parent, kind, meta })
}

/// The next time that there is.
fn just_after(time: Timestamp) -> Timestamp {
    match time.nanos {
        999_999_999.. => Timestamp { secs: time.secs.saturating_add(1), nanos: 0 },
        nanos => Timestamp { nanos: nanos + 1, ..time },
    }
}

fn number(id: EntryNo) -> i64 {
    id.0 as i64
}

impl Store {
    fn entry(&self, id: EntryNo) -> Result<Option<Entry>, Trouble> {
        let sql = concat!("SELECT ", columns!(), " FROM entries WHERE id = ?1");
        Ok(self.db.prepare_cached(sql)?.query_row([number(id)], entry_of).optional()?)
    }

    fn directory(&self, id: EntryNo) -> Result<(), Trouble> {
        let sql = "SELECT kind FROM entries WHERE id = ?1";
        match self.db.prepare_cached(sql)?.query_row([number(id)], |row| row.get::<_, i64>(0)).optional()? {
            Some(0) => Ok(()),
            Some(_) => Err(failed(Errno::NOTDIR, "what should be a directory is none")),
            None => Err(failed(Errno::NOENT, "the directory is not there")),
        }
    }

    /// What is at a place of a directory that is there.
    fn at(&self, place: &Place) -> Result<Option<Entry>, Trouble> {
        self.directory(place.parent)?;
        let sql = concat!("SELECT ", columns!(), " FROM entries WHERE parent = ?1 AND name = ?2");
        let place = params![number(place.parent), place.name.as_bytes()];
        Ok(self.db.prepare_cached(sql)?.query_row(place, entry_of).optional()?)
    }

    fn is_empty(&self, dir: EntryNo) -> Result<bool, Trouble> {
        let sql = "SELECT EXISTS (SELECT 1 FROM entries WHERE parent = ?1)";
        Ok(!self.db.prepare_cached(sql)?.query_row([number(dir)], |row| row.get::<_, bool>(0))?)
    }

    /// A number that no other entry ever had or will have, once this is committed.
    fn next_number(&self, placing: Placing) -> Result<EntryNo, Trouble> {
        let sql = "UPDATE volume SET next_entry = next_entry + 1 RETURNING next_entry - 1";
        let serial: i64 = self.db.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
        let serial = u64::try_from(serial).ok().filter(|serial| *serial < SERIALS);
        let none = || failed(Errno::NOSPC, "all numbers of entries were given");
        Ok(EntryNo(placing.number(serial.ok_or_else(none)?).0))
    }

    fn insert(&self, at: &Place, kind: Kind, meta: &Meta, placing: Placing) -> Result<Answer, Trouble> {
        let id = self.next_number(placing)?;
        let (tag, target) = match &kind {
            Kind::Directory => (0, None),
            Kind::File => (1, None),
            Kind::Link(target) => (2, Some(&target[..])),
        };
        let sql = "INSERT INTO entries (id, parent, name, kind, mode, uid, gid, secs, nanos, target) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
        let Meta { mode, uid, gid, mtime } = *meta;
        self.db.prepare_cached(sql)?.execute(params![
            number(id),
            number(at.parent),
            at.name.as_bytes(),
            tag,
            mode,
            uid,
            gid,
            mtime.secs,
            mtime.nanos,
            target
        ])?;
        Ok(Answer::Made { entry: Entry { id, parent: Some(at.parent), kind, meta: *meta }, new: true })
    }

    /// What a ticket for a file says of it, to a client that has it open or not.
    ///
    /// # Errors
    /// The disk's.
    pub fn of_ticket(&self, id: EntryNo, is_open: bool) -> Result<OfTicket, Trouble> {
        Ok(match self.entry(id)? {
            Some(entry) if entry.kind != Kind::File => OfTicket::Nothing,
            Some(entry) if entry.parent.is_some() => OfTicket::File { epoch: NAMED },
            Some(entry) if self.can_be_open(&entry)? => match is_open {
                true => OfTicket::File { epoch: NAMELESS },
                false => OfTicket::Nothing,
            },
            // Its bytes go, or would if anybody knew of them.
            Some(_) | None => OfTicket::Gone,
        })
    }

    /// A new directory or symbolic link, where nothing is.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, EEXIST.
    pub fn make(&self, at: &Place, kind: Kind, meta: &Meta) -> Result<Answer, Trouble> {
        match self.at(at)? {
            Some(_) => Err(failed(Errno::EXIST, "the name is taken")),
            None => self.insert(at, kind, meta, Placing::ROUND_ROBIN),
        }
    }

    /// A file, which may be there already if it need not be new.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, EEXIST; EISDIR and ELOOP where a directory or link is; EINVAL where nobody said how
    /// it lies.
    pub fn create_file(
        &self,
        at: &Place,
        meta: &Meta,
        exclusive: bool,
        placing: Placing,
    ) -> Result<Answer, Trouble> {
        match self.at(at)? {
            None => {
                self.can_place(placing)?;
                self.insert(at, Kind::File, meta, placing)
            }
            Some(_) if exclusive => Err(failed(Errno::EXIST, "the name is taken")),
            Some(entry) => match entry.kind {
                Kind::File => Ok(Answer::Made { entry, new: false }),
                Kind::Directory => Err(failed(Errno::ISDIR, "the name is a directory's")),
                Kind::Link(_) => Err(failed(Errno::LOOP, "the name is a symbolic link's")),
            },
        }
    }

    /// # Errors
    /// ENOENT, ENOTDIR.
    pub fn lookup(&self, place: &Place) -> Result<Answer, Trouble> {
        match self.at(place)? {
            Some(entry) => Ok(Answer::Entry(entry)),
            None => Err(failed(Errno::NOENT, "there is no such name")),
        }
    }

    /// An entry that has a name, or a file that somebody may have open.
    ///
    /// # Errors
    /// ENOENT.
    pub fn stat(&self, id: EntryNo) -> Result<Answer, Trouble> {
        match self.entry(id)? {
            Some(entry) if self.can_be_open(&entry)? => Ok(Answer::Entry(entry)),
            _ => Err(failed(Errno::NOENT, "there is no such entry")),
        }
    }

    /// # Errors
    /// ENOENT, ENOTDIR.
    pub fn read_dir(&self, dir: EntryNo, after: Option<&Name>, max: u16) -> Result<Answer, Trouble> {
        self.directory(dir)?;
        let sql = concat!(
            "SELECT ",
            columns!(),
            ", name FROM entries WHERE parent = ?1 AND name > ?2 ORDER BY name LIMIT ?3"
        );
        let mut statement = self.db.prepare_cached(sql)?;
        // No name is empty: all are behind that. One more is asked for than is told.
        let after = after.map_or(&b""[..], Name::as_bytes);
        let mut rows = statement.query(params![number(dir), after, i64::from(max) + 1])?;
        let (mut entries, mut targets) = (Vec::new(), 0);
        while let Some(row) = rows.next()? {
            if entries.len() == usize::from(max) || targets >= PAGE_TARGETS_LEN_MAX {
                return Ok(Answer::Page { entries, more: true });
            }
            let entry = entry_of(row)?;
            if let Kind::Link(target) = &entry.kind {
                targets += target.len();
            }
            let name = Name::new(&row.get::<_, Vec<u8>>(9)?)
                .map_err(|_| failed(Errno::IO, "the catalog has a name that is not legal"))?;
            entries.push((name, entry));
        }
        Ok(Answer::Page { entries, more: false })
    }

    /// # Errors
    /// ENOENT.
    pub fn set(&self, id: EntryNo, set: &Setting) -> Result<Answer, Trouble> {
        let now = clock_gettime(ClockId::Realtime);
        self.set_at(id, set, Timestamp { secs: now.tv_sec, nanos: u32::try_from(now.tv_nsec).unwrap_or(0) })
    }

    /// The same, at that time.
    pub(super) fn set_at(&self, id: EntryNo, set: &Setting, now: Timestamp) -> Result<Answer, Trouble> {
        let Answer::Entry(mut entry) = self.stat(id)? else { unreachable!("it is an entry") };
        let meta = &mut entry.meta;
        meta.mode = set.mode.unwrap_or(meta.mode);
        meta.uid = set.uid.unwrap_or(meta.uid);
        meta.gid = set.gid.unwrap_or(meta.gid);
        meta.mtime = match set.mtime {
            Some(mtime) => mtime,
            None if set.written && haul_mutant::removed("catalog-times-go-on") => now,
            None if set.written => now.max(just_after(meta.mtime)),
            None => meta.mtime,
        };
        let sql = "UPDATE entries SET mode = ?2, uid = ?3, gid = ?4, secs = ?5, nanos = ?6 WHERE id = ?1";
        let Meta { mode, uid, gid, mtime } = *meta;
        let row = params![number(id), mode, uid, gid, mtime.secs, mtime.nanos];
        self.db.prepare_cached(sql)?.execute(row)?;
        if entry.kind == Kind::File && (set.written || set.mtime.is_some()) {
            self.became(id, if set.written { Became::Written } else { Became::Another })?;
        }
        if let Some(whole) = set.whole.filter(|_| entry.kind == Kind::File) {
            self.is_whole(id, whole)?;
        }
        Ok(Answer::Entry(entry))
    }

    /// Gives an entry another place. What was there is replaced, if POSIX says that it may be.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, EISDIR, ENOTEMPTY, EEXIST with `noreplace`; EINVAL if a directory would come into
    /// itself; ELOOP too deep to tell.
    pub fn rename(&self, from: &Place, to: &Place, noreplace: bool) -> Result<Nameless, Trouble> {
        let entry =
            self.at(from)?.ok_or_else(|| failed(Errno::NOENT, "what is to be renamed is not there"))?;
        let old = self.at(to)?;
        if noreplace && old.is_some() {
            return Err(failed(Errno::EXIST, "the name is taken"));
        }
        let is_dir = entry.kind == Kind::Directory;
        if is_dir {
            self.is_not_within(to.parent, entry.id)?;
        }
        let mut nameless = None;
        match old {
            Some(old) if old.id == entry.id => return Ok(None),
            Some(old) => match (is_dir, old.kind == Kind::Directory) {
                (true, false) => {
                    return Err(failed(Errno::NOTDIR, "a directory cannot take the place of what is none"));
                }
                (false, true) => {
                    return Err(failed(Errno::ISDIR, "only a directory can take the place of one"));
                }
                (true, true) if !self.is_empty(old.id)? && !haul_mutant::removed("catalog-full-dirs") => {
                    return Err(failed(Errno::NOTEMPTY, "the directory that is there is not empty"));
                }
                _ => nameless = self.take_away(&old)?,
            },
            None => {}
        }
        let sql = "UPDATE entries SET parent = ?2, name = ?3 WHERE id = ?1";
        let row = params![number(entry.id), number(to.parent), to.name.as_bytes()];
        self.db.prepare_cached(sql)?.execute(row)?;
        if !haul_mutant::removed("catalog-names-end-homes") {
            self.became(entry.id, Became::Another)?;
        }
        Ok(nameless)
    }

    /// `dir` is not `top`, nor anywhere below it.
    fn is_not_within(&self, dir: EntryNo, top: EntryNo) -> Result<(), Trouble> {
        let mut dir = dir;
        for _ in 0..DEPTH_MAX {
            if dir == top && !haul_mutant::removed("catalog-no-cycles") {
                return Err(failed(Errno::INVAL, "a directory cannot come into itself"));
            }
            if dir == ROOT {
                return Ok(());
            }
            let sql = "SELECT parent FROM entries WHERE id = ?1";
            let parent: Option<i64> =
                self.db.prepare_cached(sql)?.query_row([number(dir)], |row| row.get(0))?;
            dir = match parent {
                Some(parent) => EntryNo(parent as u64),
                None => return Err(failed(Errno::IO, "the catalog has a directory without a parent")),
            };
        }
        Err(failed(Errno::LOOP, "the directory lies too deep to take another"))
    }

    /// # Errors
    /// ENOENT, ENOTDIR; EISDIR of a directory.
    pub fn unlink(&self, place: &Place) -> Result<Nameless, Trouble> {
        match self.at(place)? {
            None => Err(failed(Errno::NOENT, "there is no such name")),
            Some(entry) if entry.kind == Kind::Directory => {
                Err(failed(Errno::ISDIR, "the name is a directory's"))
            }
            Some(entry) => self.take_away(&entry),
        }
    }

    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY.
    pub fn rmdir(&self, place: &Place) -> Result<(), Trouble> {
        match self.at(place)? {
            None => Err(failed(Errno::NOENT, "there is no such name")),
            Some(entry) if entry.kind != Kind::Directory => {
                Err(failed(Errno::NOTDIR, "what should be a directory is none"))
            }
            Some(entry) if !self.is_empty(entry.id)? && !haul_mutant::removed("catalog-full-dirs") => {
                Err(failed(Errno::NOTEMPTY, "the directory is not empty"))
            }
            Some(entry) => self.take_away(&entry).map(drop),
        }
    }

    /// Takes an entry out of its directory. A file stays as one without a name.
    fn take_away(&self, entry: &Entry) -> Result<Nameless, Trouble> {
        let id = [number(entry.id)];
        if entry.kind != Kind::File {
            self.db.prepare_cached("DELETE FROM entries WHERE id = ?1")?.execute(id)?;
            self.forget_state(entry.id)?;
            return Ok(None);
        }
        let sql = "UPDATE entries SET parent = NULL, name = NULL WHERE id = ?1";
        self.db.prepare_cached(sql)?.execute(id)?;
        self.db.prepare_cached("INSERT INTO unlinked (file, released) VALUES (?1, 0)")?.execute(id)?;
        Ok(Some(entry.id))
    }

    fn can_be_open(&self, entry: &Entry) -> Result<bool, Trouble> {
        if entry.parent.is_some() || entry.id == ROOT {
            return Ok(true);
        }
        let sql = "SELECT released FROM unlinked WHERE file = ?1";
        let released: Option<bool> =
            self.db.prepare_cached(sql)?.query_row([number(entry.id)], |row| row.get(0)).optional()?;
        Ok(released == Some(false))
    }

    /// Whether a client may have this file open from here on: it has a name, or was not released.
    ///
    /// # Errors
    /// The disk's.
    pub fn can_open(&self, id: EntryNo) -> Result<bool, Trouble> {
        match self.entry(id)? {
            Some(entry) if entry.kind == Kind::File => self.can_be_open(&entry),
            _ => Ok(false),
        }
    }

    /// Whether the file has no name and was not released.
    ///
    /// # Errors
    /// The disk's.
    pub fn is_nameless(&self, id: EntryNo) -> Result<bool, Trouble> {
        let sql = "SELECT EXISTS (SELECT 1 FROM unlinked WHERE file = ?1 AND released = 0)";
        Ok(self.db.prepare_cached(sql)?.query_row([number(id)], |row| row.get(0))?)
    }

    /// Nobody can have this file open any more, now and for ever: servers may remove its bytes.
    ///
    /// # Errors
    /// The disk's.
    pub fn release(&self, file: EntryNo) -> Result<(), Trouble> {
        let sql = "UPDATE unlinked SET released = 1 WHERE file = ?1";
        self.db.prepare_cached(sql)?.execute([number(file)])?;
        Ok(())
    }

    /// Files without a name above `after` that were not released; at most a page of them.
    ///
    /// # Errors
    /// The disk's.
    pub fn unreleased(&self, after: EntryNo) -> Result<Vec<EntryNo>, Trouble> {
        let sql = "SELECT file FROM unlinked WHERE released = 0 AND file > ?1 ORDER BY file LIMIT ?2";
        let found = self.files(sql, &[number(after).into(), FILES_MAX.into()])?;
        Ok(found.into_iter().map(|file| EntryNo(file.0)).collect())
    }

    fn files(&self, sql: &str, values: &[Value]) -> Result<Vec<FileNo>, Trouble> {
        let mut statement = self.db.prepare_cached(sql)?;
        let rows = statement
            .query_map(rusqlite::params_from_iter(values), |row| Ok(FileNo(row.get::<_, i64>(0)? as u64)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    fn server(&self, server: ServerNo) -> Result<(), Trouble> {
        match usize::from(server.0) < self.facts().servers.len() {
            true => Ok(()),
            false => Err(failed(Errno::INVAL, "the volume has no such server")),
        }
    }

    /// Released files above `after` of which this server has not said that their bytes are gone; a page.
    ///
    /// # Errors
    /// EINVAL for a server that the volume does not have.
    pub fn to_remove(&self, server: ServerNo, after: FileNo) -> Result<Answer, Trouble> {
        self.server(server)?;
        let sql = "SELECT file FROM unlinked WHERE released = 1 AND file > ?1 AND NOT EXISTS \
                   (SELECT 1 FROM removed WHERE removed.file = unlinked.file AND server = ?2) \
                   ORDER BY file LIMIT ?3";
        let values = [(after.0 as i64).into(), i64::from(server.0).into(), FILES_MAX.into()];
        Ok(Answer::Files(self.files(sql, &values)?))
    }

    /// This server has no bytes of these files any more. An entry goes when all servers have said so. Of what
    /// is not to be removed nothing is noted.
    ///
    /// # Errors
    /// EINVAL for a server that the volume does not have.
    pub fn removed(&self, server: ServerNo, files: &[FileNo]) -> Result<Answer, Trouble> {
        self.server(server)?;
        for file in files {
            let file = file.0 as i64;
            let sql = "INSERT OR IGNORE INTO removed (file, server) SELECT file, ?2 FROM unlinked \
                       WHERE file = ?1 AND released = 1";
            self.db.prepare_cached(sql)?.execute(params![file, server.0])?;
            let sql = "SELECT count(*) FROM removed WHERE file = ?1";
            let count: i64 = self.db.prepare_cached(sql)?.query_row([file], |row| row.get(0))?;
            if count as usize == self.facts().servers.len() {
                for sql in [
                    "DELETE FROM removed WHERE file = ?1",
                    "DELETE FROM unlinked WHERE file = ?1",
                    "DELETE FROM entries WHERE id = ?1",
                    "DELETE FROM states WHERE entry = ?1",
                ] {
                    self.db.prepare_cached(sql)?.execute([file])?;
                }
            }
        }
        Ok(Answer::Done)
    }

    /// An entry, whatever may be done with it.
    #[cfg(test)]
    pub(super) fn row(&self, id: EntryNo) -> Entry {
        self.entry(id).expect("read").expect("there")
    }

    /// What does not fit together in the tree, in words: for whoever checks a volume.
    ///
    /// # Errors
    /// The disk's.
    pub fn check(&self) -> Result<Vec<String>, Trouble> {
        let rules = [
            (
                "below what is no directory",
                "SELECT count(*) FROM entries e WHERE parent IS NOT NULL AND NOT EXISTS \
              (SELECT 1 FROM entries p WHERE p.id = e.parent AND p.kind = 0)",
            ),
            (
                "without a name and not unlinked",
                "SELECT count(*) FROM entries WHERE parent IS NULL AND id <> 1 \
              AND id NOT IN (SELECT file FROM unlinked)",
            ),
            (
                "unlinked and yet there, or no file",
                "SELECT count(*) FROM unlinked WHERE file NOT IN \
              (SELECT id FROM entries WHERE parent IS NULL AND kind = 1)",
            ),
            (
                "not to be reached from the root",
                "WITH RECURSIVE reached (id) AS (SELECT 1 UNION \
              SELECT e.id FROM entries e JOIN reached r ON e.parent = r.id) SELECT count(*) FROM entries \
              WHERE parent IS NOT NULL AND id NOT IN (SELECT id FROM reached)",
            ),
            (
                "known of and not there",
                "SELECT count(*) FROM states WHERE entry NOT IN (SELECT id FROM entries)",
            ),
            (
                "removed without being released",
                "SELECT count(*) FROM removed WHERE file NOT IN \
              (SELECT file FROM unlinked WHERE released = 1)",
            ),
            (
                "of a placement that the volume has not",
                // The code of the first list, in the upper bits of a number.
                "SELECT count(*) FROM entries WHERE id >> 48 >= 16384 \
              AND (id >> 48) - 16384 NOT IN (SELECT list FROM lists)",
            ),
        ];
        let mut found = Vec::new();
        for (what, sql) in rules {
            let count: i64 = self.db.query_row(sql, [], |row| row.get(0))?;
            if count > 0 {
                found.push(format!("{count} entries are {what}"));
            }
        }
        Ok(found)
    }
}
