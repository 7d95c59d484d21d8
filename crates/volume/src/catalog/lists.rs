//! The lists of a volume: how files lie whose placement an application gives.
//!
//! In: lists. Out: the placing that one has, and the list of a placing.
//! Invariants: what a list's number means never changes, and no list goes as long as the volume lives: a
//! file's number names one for ever; there are so few that all of them can be known everywhere.
//! Each of these belongs into a transaction: see [`Store::begin`] and [`Store::alone`].

use haul_core::volume::catalog::Answer;
use haul_core::volume::layout::{Given, LISTS_MAX, Placement, Placing};
use rusqlite::{OptionalExtension, params};
use rustix::io::Errno;

use super::store::{Store, Trouble, failed};

/// Bytes of all lists of a volume: some hundred thousand runs.
const BYTES_MAX: i64 = 4 << 20;

impl Store {
    /// Which placing this list has; it has it from then on.
    ///
    /// # Errors
    /// ENOTSUP: the volume was not made for such. EINVAL: it has not all those servers. E2BIG: it has as many
    /// lists as it may.
    pub fn place(&self, list: &Given) -> Result<Answer, Trouble> {
        if *self.facts().placement != *Placement::Given.word() {
            let words = "the volume was not made for placements that programs give: haul volume create --placement \
                         given makes one";
            return Err(failed(Errno::NOTSUP, words));
        }
        let servers = u16::try_from(self.facts().servers.len()).unwrap_or(u16::MAX);
        if !list.fits(servers) && !haul_mutant::removed("catalog-checks-placements") {
            let words = format!(
                "the placement names servers beyond the volume's {servers}, which are counted from 0"
            );
            return Err(failed(Errno::INVAL, &words));
        }
        let bytes = list.encode();
        let sql = "SELECT list FROM lists WHERE runs = ?1";
        let known: Option<u16> =
            self.db.prepare_cached(sql)?.query_row([&bytes], |row| row.get(0)).optional()?;
        let number = match known {
            Some(number) => number,
            None => {
                let sql = "SELECT count(*), coalesce(sum(length(runs)), 0) FROM lists";
                let (count, held): (u16, i64) =
                    self.db.prepare_cached(sql)?.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
                if count >= LISTS_MAX || held + bytes.len() as i64 > BYTES_MAX {
                    let words = format!(
                        "the volume has {count} different placements of {held} bytes that programs gave; more than \
                         {LISTS_MAX}, or than {BYTES_MAX} bytes, are not kept: give files the same ones"
                    );
                    return Err(failed(Errno::TOOBIG, &words));
                }
                let sql = "INSERT INTO lists (list, runs) VALUES (?1, ?2)";
                self.db.prepare_cached(sql)?.execute(params![count, bytes])?;
                count
            }
        };
        let damaged = || failed(Errno::IO, "the number of a placement is none");
        Ok(Answer::Placed(Placing::given(number).ok_or_else(damaged)?))
    }

    /// The list that a placing has.
    ///
    /// # Errors
    /// ENOENT: none was given it.
    pub fn list(&self, placing: Placing) -> Result<Answer, Trouble> {
        let sql = "SELECT runs FROM lists WHERE list = ?1";
        let bytes: Option<Vec<u8>> =
            self.db.prepare_cached(sql)?.query_row([placing.list()], |row| row.get(0)).optional()?;
        let bytes = bytes.ok_or_else(|| failed(Errno::NOENT, "the volume has no such placement"))?;
        let list = Given::decode(&bytes);
        list.map(Answer::List).map_err(|_| failed(Errno::IO, "the list of a placement cannot be read"))
    }

    /// Whether files can lie so.
    ///
    /// # Errors
    /// EINVAL: no list says how.
    pub(super) fn can_place(&self, placing: Placing) -> Result<(), Trouble> {
        let Some(list) = placing.list() else { return Ok(()) };
        let sql = "SELECT EXISTS (SELECT 1 FROM lists WHERE list = ?1)";
        match self.db.prepare_cached(sql)?.query_row([list], |row| row.get::<_, bool>(0))? {
            true => Ok(()),
            false => Err(failed(Errno::INVAL, "the volume has no such placement")),
        }
    }
}

#[cfg(test)]
mod tests {
    use haul_core::entry::{Meta, Name};
    use haul_core::volume::catalog::{Facts, Place, ROOT};
    use haul_core::volume::layout::RUNS_MAX;
    use haul_core::volume::wire::VolumeId;

    use super::*;

    const VOLUME: VolumeId = VolumeId([7; 16]);

    fn store(dir: &tempfile::TempDir, placement: Placement) -> Store {
        let servers = vec!["a:1".into(), "b:2".into(), "c:3".into()];
        let facts = Facts { stripe: 1 << 20, placement: placement.word().into(), servers };
        Store::create(&dir.path().join("c"), VOLUME, &facts).expect("made")
    }

    fn placed(store: &Store, list: &Given) -> Result<Placing, i32> {
        match store.alone(|store| store.place(list)) {
            Ok(Answer::Placed(placing)) => Ok(placing),
            Err(Trouble::Failed(failure)) => Err(failure.errno),
            other => panic!("{other:?}"),
        }
    }

    /// Goal: equal lists have one placing and others have others, for good; what names a server that the
    /// volume has not, or comes to one that was not made for it, is refused; files are made of known ones
    /// alone.
    #[test]
    fn lists_are_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let given = store(&dir, Placement::Given);
        let lists: Vec<Given> = [vec![(0, 1), (2, 1)], vec![(2, 9)], vec![(1, 1), (2, 3), (0, 7)]]
            .map(|runs| Given::new(runs).expect("a list"))
            .into();
        let placings: Vec<Placing> = lists.iter().map(|list| placed(&given, list).expect("placed")).collect();
        assert_eq!(placings, [0, 1, 2].map(|list| Placing::given(list).expect("one")));
        assert_eq!(placings[0].code(), 16_384, "as the catalog looks for it");
        let foreign = Given::each(&[0, 3]).expect("a list");
        assert_eq!(placed(&given, &foreign), Err(Errno::INVAL.raw_os_error()));
        drop(given);
        let given = Store::open(&dir.path().join("c"), VOLUME).expect("opened");
        for (list, placing) in lists.iter().zip(&placings) {
            assert_eq!(placed(&given, list), Ok(*placing));
            assert!(matches!(given.alone(|store| store.list(*placing)), Ok(Answer::List(is)) if is == *list));
        }
        let none = Placing::given(3).expect("one");
        assert!(given.alone(|store| store.list(none)).is_err());
        let at = |name: &[u8]| Place { parent: ROOT, name: Name::new(name).expect("legal") };
        let make = |name: &[u8], placing| {
            given.alone(|store| store.create_file(&at(name), &Meta::default(), true, placing))
        };
        assert!(make(b"a", none).is_err() && make(b"a", placings[1]).is_ok());
        assert!(given.alone(Store::look_at_all).expect("looked").faults.is_empty());
        given.alone(|store| Ok(store.db.execute("DELETE FROM lists WHERE list = 1", [])?)).expect("gone");
        let faults = given.alone(Store::look_at_all).expect("looked").faults;
        assert!(faults.iter().any(|fault| fault.contains("placement")), "{faults:?}");
        let other = tempfile::tempdir().expect("a directory");
        let round = store(&other, Placement::RoundRobin);
        assert_eq!(placed(&round, &lists[0]), Err(Errno::NOTSUP.raw_os_error()));
    }

    /// Goal: a catalog of version 2, which had no lists, is opened with all that it had, and takes some.
    #[test]
    fn a_catalog_without_lists_gets_some() {
        let dir = tempfile::tempdir().expect("a directory");
        let given = store(&dir, Placement::Given);
        let at = Place { parent: ROOT, name: Name::new(b"a").expect("legal") };
        let make = |store: &Store| store.create_file(&at, &Meta::default(), true, Placing::ROUND_ROBIN);
        assert!(given.alone(make).is_ok());
        given.db.execute_batch("DROP TABLE lists; DROP TABLE skips; PRAGMA user_version = 2").expect("sql");
        drop(given);
        let given = Store::open(&dir.path().join("c"), VOLUME).expect("opened");
        assert!(given.alone(|store| store.lookup(&at)).is_ok());
        let list = Given::each(&[2, 1]).expect("a list");
        assert_eq!(placed(&given, &list), Ok(Placing::given(0).expect("one")));
        drop(given);
        let given = Store::open(&dir.path().join("c"), VOLUME).expect("opened again");
        assert_eq!(placed(&given, &list), Ok(Placing::given(0).expect("one")));
    }

    /// Goal: there are so many lists and no more, and so many bytes of them; what was there before stays.
    #[test]
    fn lists_are_few() {
        let dir = tempfile::tempdir().expect("a directory");
        let given = store(&dir, Placement::Given);
        given.begin().expect("begun");
        for number in 0..LISTS_MAX {
            let list = Given::new([(0, u64::from(number) + 1), (1, 1)]).expect("a list");
            assert!(matches!(given.place(&list), Ok(Answer::Placed(_))));
        }
        let more = Given::each(&[2]).expect("a list");
        assert!(matches!(given.place(&more), Err(Trouble::Failed(failure)) if failure.errno == 7));
        given.rollback();
        given.begin().expect("begun");
        let long = |first: u64| {
            let runs = (0..RUNS_MAX as u64).map(|at| ((at % 2) as u16, first + at));
            Given::new(runs).expect("a list")
        };
        let kept = (1..300).take_while(|first| given.place(&long(*first)).is_ok()).count();
        assert!((90..110).contains(&kept), "{kept}");
        assert!(given.place(&long(1)).is_ok() && given.place(&long(5000)).is_err());
        given.commit().expect("done");
    }
}
