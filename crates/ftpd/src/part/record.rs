//! The record beside a part: which of its bytes are on media.
//!
//! In: ranges that were synced. Out: a file of lines: the first names the part's inode, each other one has
//! ranges.
//! Invariants: a record speaks of one part alone. It is replaced as a whole, or grows by lines; one that is
//! torn ends where it is torn, and is not written to any more.

use std::io::Write as _;
use std::os::fd::OwnedFd;

use haul_core::entry::Name;
use haul_gridftp::ranges::Ranges;
use haul_storage::jail::Jail;
use rustix::io::Errno;

use super::{Failed, remove};
use crate::tree::sync_dir;

/// Longest record that is read.
const LEN_MAX: usize = 4 << 20;

/// Where records of one part lie.
pub(super) struct Place<'a> {
    pub jail: Jail,
    pub dir: &'a OwnedFd,
    pub name: &'a Name,
    /// What a new one is called until it takes the place of the old one.
    pub next: &'a Name,
}

impl Place<'_> {
    /// Begins a record of `part` of which `ranges` are on media, in place of the one that is there. It can be
    /// written to.
    ///
    /// # Errors
    /// The old one stands, or the new one does, and which is not known.
    pub(super) fn begin(&self, part: &OwnedFd, ranges: &Ranges) -> Result<std::fs::File, Failed> {
        // One that was begun by somebody who died. Who has the part's lock is alone here.
        remove(self.jail, self.dir, self.next)?;
        let made = self.jail.create_temp(self.dir, self.next);
        let mut file = std::fs::File::from(made.map_err(Failed::of("make the record"))?);
        let stat = rustix::fs::fstat(part).map_err(Failed::of("look at the part"))?;
        let mut text = format!("haul part of inode {}\n", stat.st_ino).into_bytes();
        if !ranges.is_empty() {
            ranges.encode(&mut text);
            text.push(b'\n');
        }
        let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        file.write_all(&text).map_err(|error| Failed::of("write the record")(errno(error)))?;
        // One that says nothing may be lost; it is synced with its first ranges.
        if !ranges.is_empty() {
            rustix::fs::fdatasync(&file).map_err(Failed::of("sync the record"))?;
        }
        let renamed = self.jail.rename(self.dir, self.next, self.name, false);
        renamed.map_err(Failed::of("give the record its name"))?;
        if !ranges.is_empty() {
            sync_dir(self.dir).map_err(Failed::of("sync the directory"))?;
        }
        Ok(file)
    }

    /// All of `claimed` is on media by the record, and there.
    pub(super) fn is_claimed(&self, part: &OwnedFd, claimed: &Ranges) -> bool {
        let Ok(stat) = rustix::fs::fstat(part) else { return false };
        let (safe, size) = (self.read(part), u64::try_from(stat.st_size).unwrap_or(0));
        claimed.list().iter().all(|(start, end)| safe.covers(*start, *end) && *end <= size)
    }

    /// What the record says of this part; nothing where there is none, or one of another part.
    fn read(&self, part: &OwnedFd) -> Ranges {
        let (Ok(file), Ok(stat)) = (self.jail.open_file(self.dir, self.name, false), rustix::fs::fstat(part))
        else {
            return Ranges::new();
        };
        let mut text = vec![0; LEN_MAX];
        let mut len = 0;
        while len < text.len() {
            match rustix::io::pread(&file, &mut text[len..], len as u64) {
                Ok(0) => break,
                Ok(more) => len += more,
                Err(Errno::INTR) => {}
                Err(_) => return Ranges::new(),
            }
        }
        parse(&text[..len], stat.st_ino)
    }
}

/// The ranges that a record has for this inode. A line that is torn, or none, ends it.
fn parse(text: &[u8], inode: u64) -> Ranges {
    let mut safe = Ranges::new();
    let mut lines = text.split_inclusive(|b| *b == b'\n').map_while(|line| line.strip_suffix(b"\n"));
    if lines.next() != Some(format!("haul part of inode {inode}").as_bytes()) {
        return safe;
    }
    for line in lines {
        let Ok(ranges) = Ranges::parse(line) else { break };
        if safe.merge(&ranges).is_err() {
            break;
        }
    }
    safe
}
