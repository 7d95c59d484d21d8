//! An upload whose bytes several nodes write: what the front end has of it, and what each node has.
//!
//! In: the part that the front end began; ranges that nodes say are on media. Out: the same upload, which the
//! front end alone gives its name, records and removes.
//! What must hold: a node writes only into the file that the front end made, known by more than its name; the
//! front end writes nothing into it and cuts nothing off while nodes may write; what nodes wrote is gone on
//! with only as a copy, for a node that could not be told to stop, or whose host has not written yet what it
//! holds, may still write into the old one.

use std::sync::Arc;

use haul_core::entry::Name;
use haul_gridftp::ranges::Ranges;
use rustix::io::Errno;

use super::copy::copy;
use super::file::{create, remove};
use super::record;
use super::{Failed, Names, Upload};
use crate::seen::Seen;
use crate::store::File;
use crate::tree::{Spot, Tree, regular};

/// What a node is told of an upload.
pub struct Joined<'a> {
    pub part: Name,
    pub seen: Seen,
    /// Where the first byte of the wire belongs.
    pub at: u64,
    /// What must not come again.
    pub held: &'a [(u64, u64)],
}

impl Upload {
    /// At a node: the part that the front end made, to write into.
    ///
    /// # Errors
    /// It is not there, or is another one: this node does not see what the front end sees.
    pub fn join(tree: &Tree, spot: Spot, with: Joined<'_>) -> Result<Upload, Failed> {
        let name = spot.name()?.clone();
        let file = match spot.dir.open(&with.part, true) {
            Ok(file) => file,
            Err(fault) if fault.is(Errno::NOENT) => return Err(Failed::Elsewhere),
            Err(fault) => return Err(Failed::of("open the part")(fault)),
        };
        let stat = file.stat().map_err(Failed::of("look at the part"))?;
        regular(&stat)?;
        if Seen::of(&stat) != with.seen {
            return Err(Failed::Elsewhere);
        }
        let names = Names { part: with.part, ..Names::of(tree, &name) };
        let mut upload = Upload::over(spot.dir.into(), name, names, file);
        for (start, end) in with.held {
            upload.came.insert(*start, *end).map_err(|_| Failed::Fragments)?;
        }
        upload.at = with.at;
        upload.keep = true;
        upload.is_joined = true;
        Ok(upload)
    }

    /// At the front end: nodes write from here on. What they are to know it by.
    ///
    /// # Errors
    /// It cannot be recorded that they do.
    pub fn give_to_nodes(&mut self) -> Result<(Name, Seen, Ranges), Failed> {
        self.take_place()?;
        self.hollow = false;
        self.is_of_nodes = true;
        if self.keep {
            if self.record.is_none() {
                self.record = Some(Arc::new(self.place().begin(&*self.file, &Ranges::new(), false)?));
            }
            if let Some(record) = &self.record {
                record::note_nodes(record)?;
            }
        }
        let stat = self.file.stat().map_err(Failed::of("look at the part"))?;
        Ok((self.names.part.clone(), Seen::of(&stat), self.came.clone()))
    }

    /// A node says that these bytes of it are on media: they are recorded, and safe from then on.
    ///
    /// # Errors
    /// Some of them came before, or they cannot be recorded.
    pub fn arrived(&mut self, ranges: &Ranges) -> Result<(), Failed> {
        for (start, end) in ranges.list() {
            if self.came.overlaps(*start, *end) && !haul_mutant::removed("ftpd-bytes-of-nodes-come-once") {
                self.doubt();
                return Err(Failed::Twice(*start, *end));
            }
            self.received += end - start;
            self.came.insert(*start, *end).map_err(|_| Failed::Fragments)?;
            self.written.insert(*start, *end).map_err(|_| Failed::Fragments)?;
        }
        self.syncer()?.sync(ranges).map_err(Failed::of("sync"))?;
        self.confirm(ranges)
    }

    /// All of a file of this length came, from its first byte on.
    pub fn has_all(&self, len: u64) -> bool {
        len == 0 && self.came.is_empty() || self.came.list() == [(0, len)]
    }
}

/// What nodes wrote of a part, up to the end of `claimed`, in a file of its own in its place. At each instant
/// the record speaks of the one that has the name.
pub(super) fn apart(
    upload: &Upload,
    claimed: &Ranges,
    is_wanted: &mut dyn FnMut() -> bool,
) -> Result<Box<dyn File>, Failed> {
    let (dir, names) = (&*upload.dir, &upload.names);
    let end = claimed.list().last().map_or(0, |range| range.1);
    remove(dir, &names.next_part)?;
    let new = create(dir, &names.next_part)?;
    copy(&*upload.file, &*new, end, is_wanted)?;
    new.sync().map_err(Failed::of("sync"))?;
    upload.place().add(&*new, claimed)?;
    let renamed = dir.rename(&names.next_part, dir, &names.part);
    renamed.map_err(Failed::of("take the earlier part's place"))?;
    dir.sync().map_err(Failed::of("sync the directory"))?;
    Ok(new)
}

#[cfg(test)]
mod tests {
    use super::super::Begin;
    use super::*;

    fn ranges(of: &[(u64, u64)]) -> Ranges {
        let mut ranges = Ranges::new();
        for (start, end) in of {
            ranges.insert(*start, *end).expect("few");
        }
        ranges
    }

    fn begin(tree: &Tree, begin: &Begin) -> Upload {
        let spot = tree.find(&[], b"/f", true).expect("a place");
        Upload::begin(tree, spot, begin, true, &mut || true).expect("an upload")
    }

    /// Goal: what nodes may still write into is gone on with in a copy, also where an upload between them met
    /// bytes that came twice, and where the record has a torn line.
    /// Method: four bytes are confirmed; nodes go on, and say of others that they came twice; a line is torn;
    /// then somebody goes on with the four.
    #[test]
    fn parts_of_nodes_are_copied() {
        let dir = tempfile::tempdir().expect("a directory");
        let tree = Tree::open(dir.path(), 7).expect("the root");
        let four = ranges(&[(0, 4)]);
        let mut first = begin(&tree, &Begin::Fresh);
        first.write(0, b"good").expect("write");
        first.syncer().expect("a sync").sync(&four).expect("sync");
        first.confirm(&four).expect("few");
        drop(first);

        let restart = Begin::Restart(four.clone());
        let mut second = begin(&tree, &restart);
        let (_, told, _) = second.give_to_nodes().expect("nodes begin");
        second.arrived(&ranges(&[(4, 8)])).expect("once");
        assert!(matches!(second.arrived(&ranges(&[(4, 8)])), Err(Failed::Twice(4, 8))));
        drop(second);
        let record = std::fs::read_dir(dir.path()).expect("list").map(|entry| entry.expect("one").path());
        let record = record.filter(|path| std::fs::read(path).is_ok_and(|text| text.starts_with(b"haul")));
        let record: Vec<_> = record.collect();
        let text = [std::fs::read(&record[0]).expect("read"), b"4-".to_vec()].concat();
        std::fs::write(&record[0], text).expect("tear");

        let third = begin(&tree, &restart);
        let stat = third.file.stat().expect("look");
        assert_ne!(Seen::of(&stat).ino, told.ino, "nodes may write into it");
        assert_eq!(third.written, four);
        assert!(!third.place().is_of_nodes(), "no node knows the copy");
    }
}
