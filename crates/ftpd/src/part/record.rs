//! The record beside a part: which of its bytes are on media.
//!
//! In: ranges that were synced. Out: a file of lines: the first names the part's inode, each other one has
//! ranges, or says that nodes may write into the part, or names another inode, of which what follows speaks.
//! Invariants: a record speaks of one part alone, or of a part and the copy that takes its place. It is
//! replaced as a whole, or grows by lines; one that is torn ends where it is torn, and is not written to any
//! more.

use std::io::Write as _;
use std::os::fd::OwnedFd;

use haul_core::entry::Name;
use haul_gridftp::ranges::Ranges;
use haul_storage::jail::Jail;
use rustix::io::Errno;

use super::Failed;
use super::file::{is_ours, remove};
use crate::tree::sync_dir;

/// Longest record that is read.
const LEN_MAX: usize = 4 << 20;

/// The line from which on nodes may write into the part.
const NODES: &[u8] = b"nodes write";

/// Notes that nodes may write into the part from here on.
///
/// # Errors
/// Then none may.
pub(super) fn note_nodes(record: &std::fs::File) -> Result<(), Failed> {
    append(record, &[NODES, b"\n"].concat())
}

fn append(mut record: &std::fs::File, text: &[u8]) -> Result<(), Failed> {
    let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    let written = record.write_all(text).map_err(errno).and_then(|()| rustix::fs::fdatasync(record));
    written.map_err(Failed::of("write the record"))
}

/// What a record says of a part.
fn lines_of(part: &OwnedFd, ranges: &Ranges) -> Result<Vec<u8>, Failed> {
    let stat = rustix::fs::fstat(part).map_err(Failed::of("look at the part"))?;
    let mut text = format!("haul part of inode {}\n", stat.st_ino).into_bytes();
    if !ranges.is_empty() {
        ranges.encode(&mut text);
        text.push(b'\n');
    }
    Ok(text)
}

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
    /// written to. `of_nodes`: nodes were told of the part, and may still write into it.
    ///
    /// # Errors
    /// The old one stands, or the new one does, and which is not known.
    pub(super) fn begin(
        &self,
        part: &OwnedFd,
        ranges: &Ranges,
        of_nodes: bool,
    ) -> Result<std::fs::File, Failed> {
        // One that was begun by somebody who died. Who has the part's lock is alone here.
        remove(self.jail, self.dir, self.next)?;
        let begun = self.begin_next(part, ranges, of_nodes);
        if begun.is_err() {
            // No other upload has its name, so that nobody would ever remove it.
            let _ = remove(self.jail, self.dir, self.next);
        }
        begun
    }

    fn begin_next(&self, part: &OwnedFd, ranges: &Ranges, of_nodes: bool) -> Result<std::fs::File, Failed> {
        let made = self.jail.create_temp(self.dir, self.next);
        let mut file = std::fs::File::from(made.map_err(Failed::of("make the record"))?);
        let mut text = lines_of(part, ranges)?;
        if of_nodes {
            text.extend_from_slice(&[NODES, b"\n"].concat());
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

    /// Adds what is on media of another file, which is to take the part's place.
    ///
    /// # Errors
    /// Then it must not.
    pub(super) fn add(&self, part: &OwnedFd, ranges: &Ranges) -> Result<(), Failed> {
        let open = self.jail.open_file(self.dir, self.name, true).map_err(Failed::of("open the record"))?;
        rustix::fs::seek(&open, rustix::fs::SeekFrom::End(0)).map_err(Failed::of("open the record"))?;
        // Its last line may be torn.
        let end = if self.text().ends_with(b"\n") { &b""[..] } else { b"\n" };
        append(&std::fs::File::from(open), &[end, &lines_of(part, ranges)?].concat())
    }

    /// Nodes were told of the part, and may still write into it.
    pub(super) fn is_of_nodes(&self) -> bool {
        self.text().split(|b| *b == b'\n').any(|line| line == NODES)
    }

    /// All of `claimed` is on media by the record, and there.
    pub(super) fn is_claimed(&self, part: &OwnedFd, claimed: &Ranges) -> bool {
        let Ok(stat) = rustix::fs::fstat(part) else { return false };
        let (safe, size) = (self.read(part), u64::try_from(stat.st_size).unwrap_or(0));
        claimed.list().iter().all(|(start, end)| safe.covers(*start, *end) && *end <= size)
    }

    /// What the record says of this part; nothing where there is none, or one of another part.
    fn read(&self, part: &OwnedFd) -> Ranges {
        let Ok(stat) = rustix::fs::fstat(part) else { return Ranges::new() };
        parse(&self.text(), stat.st_ino)
    }

    fn text(&self) -> Vec<u8> {
        let Ok(file) = self.jail.open_file(self.dir, self.name, false) else { return Vec::new() };
        if !is_ours(self.jail, self.dir, self.next, &file) {
            return Vec::new();
        }
        let mut text = vec![0; LEN_MAX];
        let mut len = 0;
        while len < text.len() {
            match rustix::io::pread(&file, &mut text[len..], len as u64) {
                Ok(0) => break,
                Ok(more) => len += more,
                Err(Errno::INTR) => {}
                Err(_) => return Vec::new(),
            }
        }
        text.truncate(len);
        text
    }
}

/// The ranges that a record has for this inode. A line that is torn, or none, ends what is said of it.
fn parse(text: &[u8], inode: u64) -> Ranges {
    let mut safe = Ranges::new();
    let ours = format!("haul part of inode {inode}").into_bytes();
    let mut is_ours = None;
    for line in text.split_inclusive(|b| *b == b'\n').map_while(|line| line.strip_suffix(b"\n")) {
        if line.starts_with(b"haul part of inode ") {
            is_ours = Some(line == ours);
            continue;
        }
        let Some(is_now) = is_ours else { break };
        if line == NODES {
            continue;
        }
        match Ranges::parse(line) {
            Ok(ranges) if !is_now => drop(ranges),
            Ok(ranges) if safe.merge(&ranges).is_ok() => {}
            _ => is_ours = Some(false),
        }
    }
    safe
}
