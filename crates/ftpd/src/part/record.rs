//! The record beside a part: which of its bytes are on media.
//!
//! In: ranges that were synced. Out: a file of lines: the first names the part's inode, each other one has
//! ranges, or says that nodes may write into the part, or names another inode, of which what follows speaks.
//! Invariants: a record speaks of one part alone, or of a part and the copy that takes its place. It is
//! replaced as a whole, or grows by lines; one that is torn ends where it is torn, and is not written to any
//! more.

use std::sync::{Mutex, PoisonError};

use haul_core::entry::Name;
use haul_gridftp::ranges::Ranges;

use super::Failed;
use super::file::{is_ours, remove};
use crate::store::{Dir, Fault, File};

/// Longest record that is read.
const LEN_MAX: usize = 4 << 20;

/// The line from which on nodes may write into the part.
const NODES: &[u8] = b"nodes write";

/// A record that is open, and where it ends.
pub(super) struct Record {
    file: Box<dyn File>,
    end: Mutex<u64>,
}

impl Record {
    fn new(file: Box<dyn File>, end: u64) -> Record {
        Record { file, end: Mutex::new(end) }
    }

    /// Adds lines, without a sync.
    fn add(&self, text: &[u8]) -> Result<(), Fault> {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        self.file.write_at(text, *end)?;
        *end += text.len() as u64;
        Ok(())
    }

    /// Adds lines, and makes all of it last.
    ///
    /// # Errors
    /// Then they may be there or not.
    pub(super) fn append(&self, text: &[u8]) -> Result<(), Fault> {
        self.add(text)?;
        self.file.sync_data()
    }
}

/// Notes that nodes may write into the part from here on.
///
/// # Errors
/// Then none may.
pub(super) fn note_nodes(record: &Record) -> Result<(), Failed> {
    record.append(&[NODES, b"\n"].concat()).map_err(Failed::of("write the record"))
}

/// What a record says of a part.
fn lines_of(part: &dyn File, ranges: &Ranges) -> Result<Vec<u8>, Failed> {
    let (_, inode) = part.identity().map_err(Failed::of("look at the part"))?;
    let mut text = format!("haul part of inode {inode}\n").into_bytes();
    if !ranges.is_empty() {
        ranges.encode(&mut text);
        text.push(b'\n');
    }
    Ok(text)
}

/// Where records of one part lie.
pub(super) struct Place<'a> {
    pub dir: &'a dyn Dir,
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
    pub(super) fn begin(&self, part: &dyn File, ranges: &Ranges, of_nodes: bool) -> Result<Record, Failed> {
        // One that was begun by somebody who died. Who has the part's lock is alone here.
        remove(self.dir, self.next)?;
        let begun = self.begin_next(part, ranges, of_nodes);
        if begun.is_err() {
            // No other upload has its name, so that nobody would ever remove it.
            let _ = remove(self.dir, self.next);
        }
        begun
    }

    fn begin_next(&self, part: &dyn File, ranges: &Ranges, of_nodes: bool) -> Result<Record, Failed> {
        let made = self.dir.make(self.next).map_err(Failed::of("make the record"))?;
        let record = Record::new(made, 0);
        let mut text = lines_of(part, ranges)?;
        if of_nodes {
            text.extend_from_slice(&[NODES, b"\n"].concat());
        }
        record.add(&text).map_err(Failed::of("write the record"))?;
        // One that says nothing may be lost; it is synced with its first ranges.
        if !ranges.is_empty() {
            record.file.sync_data().map_err(Failed::of("sync the record"))?;
        }
        let renamed = self.dir.rename(self.next, self.dir, self.name);
        renamed.map_err(Failed::of("give the record its name"))?;
        if !ranges.is_empty() {
            self.dir.sync().map_err(Failed::of("sync the directory"))?;
        }
        Ok(record)
    }

    /// Adds what is on media of another file, which is to take the part's place.
    ///
    /// # Errors
    /// Then it must not.
    pub(super) fn add(&self, part: &dyn File, ranges: &Ranges) -> Result<(), Failed> {
        let open = self.dir.open(self.name, true).map_err(Failed::of("open the record"))?;
        let len = open.length().map_err(Failed::of("open the record"))?;
        // Its last line may be torn.
        let end = if self.text().ends_with(b"\n") { &b""[..] } else { b"\n" };
        let text = [end, &lines_of(part, ranges)?].concat();
        Record::new(open, len).append(&text).map_err(Failed::of("write the record"))
    }

    /// Nodes were told of the part, and may still write into it.
    pub(super) fn is_of_nodes(&self) -> bool {
        self.text().split(|b| *b == b'\n').any(|line| line == NODES)
    }

    /// All of `claimed` is on media by the record, and there.
    pub(super) fn is_claimed(&self, part: &dyn File, claimed: &Ranges) -> bool {
        let Ok(size) = part.length() else { return false };
        let safe = self.read(part);
        claimed.list().iter().all(|(start, end)| safe.covers(*start, *end) && *end <= size)
    }

    /// What the record says of this part; nothing where there is none, or one of another part.
    fn read(&self, part: &dyn File) -> Ranges {
        let Ok((_, inode)) = part.identity() else { return Ranges::new() };
        parse(&self.text(), inode)
    }

    fn text(&self) -> Vec<u8> {
        let Ok(file) = self.dir.open(self.name, false) else { return Vec::new() };
        if !is_ours(self.dir, self.next, &*file) {
            return Vec::new();
        }
        let len = file.length().unwrap_or(0).min(LEN_MAX as u64) as usize;
        let mut text = vec![0; len];
        let mut filled = 0;
        while filled < text.len() {
            match file.read_at(&mut text[filled..], filled as u64) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(_) => return Vec::new(),
            }
        }
        text.truncate(filled);
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
