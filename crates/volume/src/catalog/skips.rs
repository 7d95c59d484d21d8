//! Numbers that the catalog never gave, and that servers have files under all the same: a newer catalog gave
//! them, and this one is an older copy of it.
//!
//! In: the highest number that a server has. Out: that none up to it is given.
//! Invariants: what was skipped is remembered for ever, so that files under it are never taken for what
//! nobody has: the newer catalog may be brought back.
//! Each of these belongs into a transaction: see [`Store::begin`] and [`Store::alone`].

use std::ops::Range;

use haul_core::volume::catalog::SKIPS_MAX;
use haul_core::volume::layout::SERIALS;
use rusqlite::params;

use super::store::{Store, Trouble};

/// So many numbers more are skipped: for those that the newer catalog gave to entries of which servers have
/// no bytes, and for files that somebody writes just then.
const MARGIN: u64 = 1 << 24;

impl Store {
    /// The last number that was given or skipped, and which were never given, in ascending order.
    ///
    /// # Errors
    /// The disk's.
    pub fn given(&self) -> Result<(u64, Vec<Range<u64>>), Trouble> {
        let last: i64 = self.db.query_row("SELECT next_entry - 1 FROM volume", [], |row| row.get(0))?;
        let mut statement =
            self.db.prepare_cached("SELECT first, last FROM skips ORDER BY first LIMIT ?1")?;
        let rows = statement.query_map([SKIPS_MAX as i64], |row| {
            Ok(row.get::<_, i64>(0)? as u64..row.get::<_, i64>(1)? as u64 + 1)
        })?;
        Ok((last as u64, rows.collect::<Result<_, _>>()?))
    }

    /// No number up to this one is given from here on. If one of them might have been, it is remembered that
    /// they were not, with some more.
    ///
    /// # Errors
    /// The disk's.
    pub fn skip_to(&self, highest: u64) -> Result<(), Trouble> {
        let (last, skipped) = self.given()?;
        if highest <= last || haul_mutant::removed("catalog-skips-numbers-of-servers") {
            return Ok(());
        }
        let end = highest.saturating_add(MARGIN).min(SERIALS - 1);
        // Where there are as many as can be told, those between the last and this count as skipped too: of
        // what has an entry that says nothing.
        let first = match skipped.last() {
            Some(range) if skipped.len() == SKIPS_MAX => range.start,
            _ => last + 1,
        };
        let sql =
            "INSERT INTO skips (first, last) VALUES (?1, ?2) ON CONFLICT (first) DO UPDATE SET last = ?2";
        self.db.prepare_cached(sql)?.execute(params![first as i64, end as i64])?;
        self.db.prepare_cached("UPDATE volume SET next_entry = ?1")?.execute([end as i64 + 1])?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use haul_core::entry::{Meta, Name, Timestamp};
    use haul_core::volume::catalog::{Answer, Facts, Kind, Place, ROOT};
    use haul_core::volume::wire::VolumeId;

    use super::*;

    /// Goal: no number up to what servers have is given, what was skipped is remembered, and what the catalog
    /// gave itself is skipped never; so often as it happens.
    #[test]
    fn numbers_of_servers_are_skipped() {
        let dir = tempfile::tempdir().expect("a directory");
        let facts = Facts { stripe: 1 << 20, placement: "round-robin".into(), servers: vec!["a:1".into()] };
        let store = Store::create(&dir.path().join("c"), VolumeId([7; 16]), &facts).expect("made");
        let given = || store.given().expect("read");
        let make = |name: &str| {
            let at = Place { parent: ROOT, name: Name::new(name.as_bytes()).expect("legal") };
            let mtime = Timestamp { secs: 0, nanos: 0 };
            let meta = Meta { mode: 0o755, uid: 0, gid: 0, mtime };
            match store.alone(|store| store.make(&at, Kind::Directory, &meta)) {
                Ok(Answer::Made { entry, .. }) => entry.id.0,
                other => panic!("{other:?}"),
            }
        };
        let first = make("a");
        store.alone(|store| store.skip_to(first)).expect("done");
        assert_eq!(given(), (first, Vec::new()));
        let (mut ranges, mut last) = (Vec::new(), first);
        for round in 0..SKIPS_MAX as u64 + 3 {
            let highest = last + 10 + round;
            store.alone(|store| store.skip_to(highest)).expect("done");
            match round < SKIPS_MAX as u64 {
                true => ranges.push(last + 1..highest + MARGIN + 1),
                false => ranges.last_mut().expect("one").end = highest + MARGIN + 1,
            }
            assert_eq!(given(), (highest + MARGIN, ranges.clone()));
            last = make(&round.to_string());
            assert_eq!(last, highest + MARGIN + 1);
        }
    }
}
