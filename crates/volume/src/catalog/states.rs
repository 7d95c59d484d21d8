//! What is known of contents: where they have a home outside of the volume, and which files are whole.
//!
//! In: what was written, renamed, brought elsewhere. Out: what of that counts still.
//! Invariants: an entry's *state* rises with each write that the catalog is told of, each time that is set of
//! a file, and each new name; with a write all that was known goes, and with a time or a name the home. What
//! is to be known is noted only where the state is the one that whoever wants it noted saw before: nothing
//! is noted of what was written or renamed meanwhile. A home is of an entry below the directories that it was
//! below then, by their numbers, states and names: where one of those was renamed, also there and back, it
//! does not count, for something else may have been brought to that path meanwhile.
//! Left out: what was written and told to nobody, which the file's gatherer knows: so it is asked before
//! this.

use std::collections::HashMap;

use haul_core::volume::catalog::{Answer, Brought, Checked, EntryNo, FAULTS_MAX, Home, Known, Noting, ROOT};
use haul_core::volume::{ContentVersion, FileNo};
use rusqlite::{OptionalExtension, Row, params};

use super::store::{Store, Trouble};

/// What lies deeper has no home.
const DEPTH_MAX: usize = 4096;

/// What becomes of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Became {
    /// It was written.
    Written,
    /// It got another time, or another name.
    Another,
}

/// A home, and the [way](Store::way) to its entry.
fn home_of(row: &Row<'_>) -> rusqlite::Result<Option<(Home, Vec<u8>)>> {
    let Some(place) = row.get::<_, Option<String>>(2)? else { return Ok(None) };
    let (way, life, changes): (Vec<u8>, i64, Vec<u8>) = (row.get(3)?, row.get(4)?, row.get(5)?);
    // What is of another length is none of ours, and no home.
    let (Ok(changes), Ok(gatherer)) = (<[u8; 8]>::try_from(changes), u32::try_from(life)) else {
        return Ok(None);
    };
    let version = ContentVersion { gatherer, changes: u64::from_le_bytes(changes) };
    Ok(Some((Home { place: place.into(), version }, way)))
}

/// The way to an entry, as a digest, and its path.
#[derive(Clone)]
struct Way {
    way: [u8; 32],
    path: Vec<u8>,
}

/// Directories that one request asked for.
type Ways = HashMap<i64, Option<Way>>;

impl Way {
    fn below(&self, number: i64, state: i64, name: &[u8]) -> Way {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.way).update(&number.to_le_bytes()).update(&state.to_le_bytes()).update(name);
        let slash: &[u8] = if self.path.is_empty() { b"" } else { b"/" };
        Way { way: *hasher.finalize().as_bytes(), path: [&self.path, slash, name].concat() }
    }
}

impl Store {
    /// Notes that an entry is another from here on.
    pub(super) fn became(&self, id: EntryNo, became: Became) -> Result<(), Trouble> {
        let is_whole = became == Became::Another;
        let sql = "INSERT INTO states (entry, state) VALUES (?1, 1) ON CONFLICT (entry) DO UPDATE SET \
                   state = state + 1, whole = iif(?2, whole, NULL), place = NULL, way = NULL, life = NULL, \
                   changes = NULL";
        if became == Became::Written && haul_mutant::removed("catalog-writes-end-homes") {
            return Ok(());
        }
        self.db.prepare_cached(sql)?.execute(params![id.0 as i64, is_whole])?;
        Ok(())
    }

    /// Each of so many bytes of a file was written.
    pub(super) fn is_whole(&self, id: EntryNo, whole: u64) -> Result<(), Trouble> {
        // An entry of which nothing was ever noted has no state.
        let sql = "INSERT INTO states (entry, state, whole) VALUES (?1, 0, ?2) \
                   ON CONFLICT (entry) DO UPDATE SET whole = ?2";
        self.db.prepare_cached(sql)?.execute(params![id.0 as i64, whole as i64])?;
        Ok(())
    }

    /// The number is no entry's any more.
    pub(super) fn forget_state(&self, id: EntryNo) -> Result<(), Trouble> {
        self.db.prepare_cached("DELETE FROM states WHERE entry = ?1")?.execute([id.0 as i64])?;
        Ok(())
    }

    /// The way to a directory: digest of the numbers, states and names of those that lead to it; and its
    /// path.
    /// `None`: there is none.
    fn way(&self, ways: &mut Ways, dir: i64) -> Result<Option<Way>, rusqlite::Error> {
        let root = Way { way: [0; 32], path: Vec::new() };
        let sql = "SELECT parent, name, coalesce((SELECT state FROM states WHERE entry = id), 0) \
                   FROM entries WHERE id = ?1 AND kind = 0";
        let mut statement = self.db.prepare_cached(sql)?;
        let (mut below, mut at) = (Vec::new(), dir);
        let mut way = loop {
            if let Some(known) = ways.get(&at) {
                break known.clone();
            }
            if at == ROOT.0 as i64 {
                break Some(root);
            }
            let row = statement.query_row([at], |row| {
                Ok((row.get::<_, Option<i64>>(0)?, row.get::<_, Option<Vec<u8>>>(1)?, row.get::<_, i64>(2)?))
            });
            match row.optional()? {
                Some((Some(parent), Some(name), state)) if below.len() < DEPTH_MAX => {
                    below.push((at, name, state));
                    at = parent;
                }
                _ => break None,
            }
        };
        while let Some((at, name, state)) = below.pop() {
            way = way.map(|above| above.below(at, state, &name));
            ways.insert(at, way.clone());
        }
        Ok(way)
    }

    /// The same of an entry that has a name and is no directory.
    fn way_of(&self, ways: &mut Ways, id: EntryNo) -> Result<Option<Way>, rusqlite::Error> {
        let sql = "SELECT parent, name FROM entries WHERE id = ?1 AND parent IS NOT NULL AND kind <> 0";
        let row = self
            .db
            .prepare_cached(sql)?
            .query_row([id.0 as i64], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?)));
        let Some((parent, name)) = row.optional()? else { return Ok(None) };
        Ok(self.way(ways, parent)?.map(|above| above.below(id.0 as i64, 0, &name)))
    }

    /// # Errors
    /// The disk's.
    pub fn known(&self, ids: &[EntryNo]) -> Result<Answer, Trouble> {
        let mut there = self.db.prepare_cached("SELECT EXISTS (SELECT 1 FROM entries WHERE id = ?1)")?;
        let sql = "SELECT state, whole, place, way, life, changes FROM states WHERE entry = ?1";
        let mut states = self.db.prepare_cached(sql)?;
        let (mut ways, mut all) = (Ways::new(), Vec::with_capacity(ids.len()));
        for id in ids {
            let number = [id.0 as i64];
            if !there.query_row(number, |row| row.get::<_, bool>(0))? {
                all.push(None);
                continue;
            }
            let row = states.query_row(number, |row| {
                let (state, whole): (i64, Option<i64>) = (row.get(0)?, row.get(1)?);
                Ok((state as u64, whole.map(|whole| whole as u64), home_of(row)?))
            });
            let Some((state, whole, home)) = row.optional()? else {
                all.push(Some(Known::default()));
                continue;
            };
            let home = match home {
                None => None,
                Some((home, way)) => {
                    let now = self.way_of(&mut ways, *id)?;
                    let is_there = now.is_some_and(|now| now.way[..] == way[..]);
                    Some(home).filter(|_| is_there || haul_mutant::removed("catalog-ways-end-homes"))
                }
            };
            all.push(Some(Known { state, whole, home }));
        }
        Ok(Answer::Known(all))
    }

    /// Notes what is to be known of entries that have a name, of each if its state is the one that is told,
    /// and of one that was brought out if its path is that one.
    ///
    /// # Errors
    /// The disk's.
    pub fn note(&self, place: &str, files: &[Noting]) -> Result<Answer, Trouble> {
        // An entry of which nothing was ever noted has no state.
        let sql = "INSERT INTO states (entry, state, whole, place, way, life, changes) \
                   SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7 FROM entries WHERE id = ?1 AND parent IS NOT NULL \
                   AND kind <> 0 AND (?8 OR coalesce((SELECT state FROM states WHERE entry = ?1), 0) = ?2) \
                   ON CONFLICT (entry) DO UPDATE SET whole = coalesce(?3, whole), \
                   place = coalesce(?4, place), way = coalesce(?5, way), life = coalesce(?6, life), \
                   changes = coalesce(?7, changes)";
        let mut statement = self.db.prepare_cached(sql)?;
        let blind = haul_mutant::removed("catalog-notes-of-one-state");
        let (mut ways, mut noted) = (Ways::new(), Vec::new());
        for Noting { id, state, version, whole, home } in files {
            let way = match home {
                None => None,
                Some(brought) => {
                    let Some(Way { way, path }) = self.way_of(&mut ways, *id)? else { continue };
                    match brought {
                        Brought::Out(as_path) if *as_path != *blake3::hash(&path).as_bytes() => continue,
                        Brought::In | Brought::Out(_) => Some(way),
                    }
                }
            };
            let changes = version.changes.to_le_bytes();
            let row = params![
                id.0 as i64,
                *state as i64,
                whole.map(|whole| whole as i64),
                way.map(|_| place),
                way.as_ref().map(|way| &way[..]),
                way.map(|_| version.gatherer),
                way.map(|_| &changes[..]),
                blind,
            ];
            if statement.execute(row)? > 0 {
                noted.push(FileNo(id.0));
            }
        }
        Ok(Answer::Files(noted))
    }

    /// What a look at all of it shows; who has what open is another's to say.
    ///
    /// # Errors
    /// The disk's, if it cannot be looked at at all.
    pub fn look_at_all(&self) -> Result<Checked, Trouble> {
        let mut faults: Vec<Box<str>> = Vec::new();
        let mut statement = self.db.prepare(&format!("PRAGMA integrity_check({})", FAULTS_MAX / 2))?;
        let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
        for found in rows {
            match found {
                Ok(found) if found == "ok" => {}
                Ok(found) => faults.push(format!("the database is damaged: {found}").into()),
                Err(error) => {
                    faults.push(format!("the database is damaged: {error}").into());
                    break;
                }
            }
        }
        // What is damaged has no sense to look for.
        if faults.is_empty() {
            faults.extend(self.check()?.into_iter().map(Box::from));
        }
        faults.truncate(FAULTS_MAX);
        let count = |sql: &str| self.db.query_row(sql, [], |row| row.get::<_, i64>(0)).map(|all| all as u64);
        let (last, skipped) = self.given()?;
        Ok(Checked {
            faults,
            last,
            skipped,
            named: count("SELECT count(*) FROM entries WHERE parent IS NOT NULL")?,
            nameless: count("SELECT count(*) FROM unlinked")?,
            open: 0,
            open_of_gone: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use haul_core::entry::{Meta, Name, Timestamp};
    use haul_core::volume::catalog::{Entry, Facts, Kind, Place, Setting};
    use haul_core::volume::wire::VolumeId;

    use super::*;

    const VOLUME: VolumeId = VolumeId([7; 16]);
    const META: Meta = Meta { mode: 0o644, uid: 1, gid: 2, mtime: Timestamp { secs: 5, nanos: 6 } };
    const VERSION: ContentVersion = ContentVersion { gatherer: 3, changes: u64::MAX };

    struct Test {
        dir: tempfile::TempDir,
        store: Store,
    }

    fn at(parent: EntryNo, name: &str) -> Place {
        Place { parent, name: Name::new(name.as_bytes()).expect("legal") }
    }

    fn entry(answer: Answer) -> Entry {
        match answer {
            Answer::Made { entry, .. } | Answer::Entry(entry) => entry,
            other => panic!("{other:?}"),
        }
    }

    impl Test {
        fn new() -> Test {
            let dir = tempfile::tempdir().expect("a directory");
            let servers = vec!["a:1".into(), "b:2".into()];
            let facts = Facts { stripe: 1 << 20, placement: "round-robin".into(), servers };
            Test { store: Store::create(&dir.path().join("c"), VOLUME, &facts).expect("made"), dir }
        }

        fn alone<T>(&self, work: impl FnOnce(&Store) -> Result<T, Trouble>) -> T {
            self.store.alone(work).unwrap_or_else(|trouble| panic!("{trouble:?}"))
        }

        fn make(&self, parent: EntryNo, name: &str, kind: Kind) -> EntryNo {
            entry(self.alone(|store| store.make(&at(parent, name), kind, &META))).id
        }

        fn known(&self, id: EntryNo) -> Option<Known> {
            let Answer::Known(mut all) = self.alone(|store| store.known(&[id])) else { panic!("no answer") };
            all.pop().expect("one")
        }

        fn home(&self, id: EntryNo) -> Option<String> {
            self.known(id).expect("there").home.map(|home| home.place.into())
        }

        /// Notes a home outside by this path, in the state that it has; whether that was done.
        fn bring(&self, id: EntryNo, path: &str) -> bool {
            let state = self.known(id).expect("there").state;
            self.note(id, state, Some(Brought::Out(*blake3::hash(path.as_bytes()).as_bytes())))
        }

        fn note(&self, id: EntryNo, state: u64, home: Option<Brought>) -> bool {
            let noting = Noting { id, state, version: VERSION, whole: Some(9), home };
            self.alone(|store| store.note("n1:/h", &[noting])) == Answer::Files(vec![FileNo(id.0)])
        }

        fn rename(&self, from: (EntryNo, &str), to: (EntryNo, &str)) {
            self.alone(|store| store.rename(&at(from.0, from.1), &at(to.0, to.1), false));
        }

        fn set(&self, id: EntryNo, written: bool, mtime: Option<Timestamp>) {
            let set = Setting { written, mtime, ..Setting::default() };
            self.alone(|store| store.set(id, &set));
        }
    }

    /// Goal: a home is one until the file is written, gets another time or name, or one of the directories
    /// above it another name, also for a while; and nothing of a file that was another meanwhile is noted.
    /// Method: each of these, by itself, at a file with a home; the same with the note of before.
    #[test]
    fn homes_end_with_what_they_were_of() {
        let test = Test::new();
        let (d, e) = (test.make(ROOT, "d", Kind::Directory), test.make(ROOT, "e", Kind::Directory));
        let below = test.make(d, "below", Kind::Directory);
        let f = test.make(below, "f", Kind::File);
        assert_eq!(test.known(f), Some(Known::default()));
        assert!(!test.bring(f, "d/f") && !test.bring(f, "below/f"), "it is not called so");
        let changes: [&dyn Fn(); 6] = [
            &|| test.set(f, true, None),
            &|| test.set(f, false, Some(META.mtime)),
            &|| {
                test.rename((below, "f"), (d, "g"));
                test.rename((d, "g"), (below, "f"));
            },
            &|| {
                test.rename((d, "below"), (e, "below"));
                test.rename((e, "below"), (d, "below"));
            },
            &|| {
                test.rename((ROOT, "d"), (ROOT, "x"));
                test.rename((ROOT, "x"), (ROOT, "d"));
            },
            &|| test.set(f, true, Some(META.mtime)),
        ];
        for (nth, change) in changes.into_iter().enumerate() {
            assert!(test.bring(f, "d/below/f"), "{nth}");
            let known = test.known(f).expect("there");
            assert_eq!(known.home, Some(Home { place: "n1:/h".into(), version: VERSION }), "{nth}");
            assert_eq!(known.whole, Some(9));
            // What is not written keeps it.
            test.alone(|store| store.set(f, &Setting { mode: Some(0o600), ..Setting::default() }));
            test.set(d, false, Some(META.mtime));
            assert!(test.home(f).is_some());
            change();
            assert_eq!(test.home(f), None, "{nth}");
            let is_of_dirs = nth == 3 || nth == 4;
            let late = test.note(f, known.state, Some(Brought::In));
            assert_eq!(late, is_of_dirs, "a state of before counts where the file is the same: {nth}");
            let is_written = nth == 0 || nth == 5;
            assert_eq!(test.known(f).expect("there").whole.is_none(), is_written, "{nth}");
        }
    }

    /// Goal: links have homes as files do, directories have none; of what has no name nothing is noted, and
    /// what is gone leaves nothing.
    #[test]
    fn what_has_no_name_has_no_home() {
        let test = Test::new();
        let link = test.make(ROOT, "l", Kind::Link((*b"x").into()));
        assert!(test.note(link, 0, Some(Brought::In)) && test.home(link).is_some());
        assert!(!test.note(ROOT, 0, Some(Brought::In)));
        let f = test.make(ROOT, "f", Kind::File);
        assert!(test.note(f, 0, None) && test.home(f).is_none(), "whole alone");
        assert!(test.note(f, 0, Some(Brought::In)) && !test.note(f, 1, Some(Brought::In)));
        test.alone(|store| store.unlink(&at(ROOT, "f")));
        assert_eq!(test.home(f), None);
        assert!(!test.note(f, 0, Some(Brought::In)));
        test.alone(|store| store.unlink(&at(ROOT, "l")));
        assert_eq!(test.known(link), None);
        test.alone(|store| store.release(f));
        for server in 0..2 {
            test.alone(|store| store.removed(haul_core::volume::ServerNo(server), &[FileNo(f.0)]));
        }
        assert_eq!(test.known(f), None);
        assert_eq!(test.alone(Store::check), Vec::<String>::new());
    }

    /// Goal: a catalog of version 1 is opened, has what it had, and knows nothing more; a damaged one of that
    /// version is left as it is.
    #[test]
    fn a_catalog_of_before_is_opened() {
        let Test { dir, store } = Test::new();
        let f = entry(store.alone(|store| store.make(&at(ROOT, "f"), Kind::File, &META)).expect("made")).id;
        store
            .db
            .execute_batch("DROP TABLE states; DROP TABLE lists; DROP TABLE skips; PRAGMA user_version = 1")
            .expect("sql");
        drop(store);
        let path = dir.path().join("c");
        let damage = rusqlite::Connection::open(path.join("catalog.db")).expect("opened");
        damage.execute_batch("ALTER TABLE removed RENAME TO other").expect("sql");
        drop(damage);
        assert!(Store::open(&path, VOLUME).is_err());
        let damage = rusqlite::Connection::open(path.join("catalog.db")).expect("opened");
        let version: i64 = damage.pragma_query_value(None, "user_version", |row| row.get(0)).expect("sql");
        assert_eq!(version, 1);
        damage.execute_batch("ALTER TABLE other RENAME TO removed").expect("sql");
        // SQLite quotes a name that was another.
        let sql = "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = replace(sql, '\"removed\"', 'removed')";
        damage.execute_batch(sql).expect("sql");
        drop(damage);
        let test = Test { store: Store::open(&path, VOLUME).expect("opened"), dir };
        assert_eq!(test.known(f), Some(Known::default()));
        assert!(test.bring(f, "f") && test.home(f).is_some());
        let Test { store, dir } = test;
        drop(store);
        let test = Test { store: Store::open(&path, VOLUME).expect("opened again"), dir };
        assert!(test.home(f).is_some());
    }
}
