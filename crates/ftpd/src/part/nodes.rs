//! An upload whose bytes several nodes write: what the front end has of it, and what each node has.
//!
//! In: the part that the front end began; ranges that nodes say are on media. Out: the same upload, which the
//! front end alone gives its name, records and removes.
//! What must hold: a node writes only into the file that the front end made, known by more than its name; the
//! front end writes nothing into it and cuts nothing off while nodes may write; what nodes wrote is gone on
//! with only as a copy, for a node that could not be told to stop, or whose host has not written yet what it
//! holds, may still write into the old one.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use haul_core::entry::Name;
use haul_gridftp::ranges::Ranges;
use haul_storage::jail::Jail;
use rustix::io::Errno;

use super::{Failed, MARK, Seen, Upload, copy, create, read_record, remove};
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
        let jail = tree.jail();
        let name = spot.name()?.clone();
        let file = match jail.open_file(&spot.dir, &with.part, true) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Err(Failed::Elsewhere),
            Err(errno) => return Err(Failed::System { what: "open the part", errno }),
        };
        let stat = rustix::fs::fstat(&file).map_err(Failed::of("look at the part"))?;
        regular(&stat)?;
        if Seen::of(&stat) != with.seen {
            return Err(Failed::Elsewhere);
        }
        let record = tree.record_of(&name);
        let mut upload = Upload::over(jail, spot.dir, name, with.part, record, file);
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
        self.hollow = false;
        self.is_of_nodes = true;
        if self.keep {
            if self.record.is_none() {
                self.record = Some(Arc::new(self.begin_record()?));
            }
            if let Some(record) = &self.record {
                let mut file = &**record;
                let failed = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
                file.write_all(&[MARK, b"\n"].concat())
                    .map_err(failed)
                    .and_then(|()| rustix::fs::fdatasync(file))
                    .map_err(Failed::of("write the record"))?;
            }
        }
        let stat = rustix::fs::fstat(&*self.file).map_err(Failed::of("look at the part"))?;
        Ok((self.part.clone(), Seen::of(&stat), self.came.clone()))
    }

    /// A node says that these bytes of it are on media: they are recorded, and safe from then on.
    ///
    /// # Errors
    /// Some of them came before, or they cannot be recorded.
    pub fn arrived(&mut self, ranges: &Ranges) -> Result<(), Failed> {
        for (start, end) in ranges.list() {
            if self.came.overlaps(*start, *end) {
                self.is_doubtful = true;
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

/// By its record nodes were told of this part.
pub(super) fn may_write(upload: &Upload) -> Result<bool, Failed> {
    let text = read_record(upload.jail, &upload.dir, &upload.record_name);
    let text = text.ok_or(Failed::NotConfirmed)?;
    Ok(text.split(|b| *b == b'\n').any(|line| line == MARK))
}

/// What nodes wrote of a part, up to the end of `claimed`, in a file of its own in its place.
pub(super) fn apart(
    jail: Jail,
    dir: &OwnedFd,
    part: &Name,
    old: &OwnedFd,
    claimed: &Ranges,
    is_wanted: &mut dyn FnMut() -> bool,
) -> Result<OwnedFd, Failed> {
    let end = claimed.list().last().map_or(0, |range| range.1);
    remove(jail, dir, part)?;
    let new = create(jail, dir, part)?;
    copy(old, &new, end, is_wanted)?;
    rustix::fs::fsync(&new).map_err(Failed::of("sync"))?;
    Ok(new)
}
