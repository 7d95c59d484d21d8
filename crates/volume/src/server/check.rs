//! What a server says of what it has, to who holds that against the catalog.
//!
//! In: questions, each answered by the thread of its connection. Out: what lies on the disk, and what the
//! gatherer knows at this moment. Invariants: nothing is changed, and nobody who writes is held up but for
//! what reading costs; answers are bounded.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::sync::{Arc, Weak};

use crossbeam_channel::{Sender, bounded};
use haul_base::errno;
use haul_core::volume::check::{ALL_RANGES_MAX, Ask, FILES_MAX, Found, Gathered, Has, RANGES_MAX, WORDS_MAX};
use haul_core::volume::client::Striping;
use haul_core::volume::gather::{Facts, Part};
use haul_core::volume::layout::Placing;
use haul_core::volume::{FileNo, ServerNo};
use rustix::io::Errno;

use super::event::Event;
use crate::log;
use crate::shelf::Shelf;

/// Files of the log that one answer is about: all that it has of them is read.
const LOG_FILES_MAX: usize = 64;

/// What is looked at.
#[derive(Clone)]
pub(super) struct Checks {
    pub(super) me: ServerNo,
    pub(super) striping: Striping,
    pub(super) shelf: Weak<Shelf>,
    pub(super) log: log::WeakReader,
    pub(super) log_id: [u8; 16],
    pub(super) events: Sender<Event>,
}

/// The server ends.
struct Over;

impl Checks {
    /// The answer to a question.
    pub(super) fn answer(&self, ask: Ask) -> Found {
        let found = match ask {
            Ask::Itself => self.itself(),
            Ask::Shelf { after } => self.page(after),
            Ask::Log { after } => self.in_log(after),
            Ask::Files(files) => self.files(&files),
            Ask::Numbers { last, skipped } => self.numbers(last, &skipped),
        };
        found.unwrap_or(Found::Failed(Errno::SHUTDOWN.raw_os_error()))
    }

    fn shelf(&self) -> Result<Arc<Shelf>, Over> {
        self.shelf.upgrade().ok_or(Over)
    }

    fn log(&self) -> Result<log::Reader, Over> {
        self.log.upgrade().ok_or(Over)
    }

    fn itself(&self) -> Result<Found, Over> {
        let mut faults = self.shelf()?.check(&self.log_id);
        faults.extend(self.log()?.check());
        Ok(Found::Itself { faults: in_words(faults) })
    }

    fn page(&self, after: Option<FileNo>) -> Result<Found, Over> {
        Ok(match self.shelf()?.page(after, FILES_MAX) {
            Ok(page) => {
                let odd = page.odd.iter().map(|path| path.display().to_string()).collect();
                Found::Shelf { files: page.files, odd: in_words(odd), more: page.more }
            }
            Err(errno) => Found::Failed(errno.raw_os_error()),
        })
    }

    /// What there is under numbers that the catalog never gave.
    fn numbers(&self, last: u64, skipped: &[Range<u64>]) -> Result<Found, Over> {
        let (reply, answer) = bounded(1);
        self.events.send(Event::GatheredBehind(FileNo(0), usize::MAX, reply)).map_err(|_| Over)?;
        // First what is in the log: what is brought meanwhile is on the disk then.
        let mut all: BTreeSet<FileNo> = answer.recv().map_err(|_| Over)?.into_iter().collect();
        match self.shelf()?.numbers() {
            Ok(numbers) => all.extend(numbers),
            Err(errno) => return Ok(Found::Failed(errno.raw_os_error())),
        }
        let is_unknown = |serial: &u64| *serial > last || skipped.iter().any(|range| range.contains(serial));
        let serials = || all.iter().map(|file| Placing::serial(*file));
        let files = serials().filter(is_unknown).count() as u64;
        Ok(Found::Numbers { highest: serials().max().unwrap_or(0), files })
    }

    fn facts(&self, files: Vec<FileNo>) -> Result<Vec<Facts>, Over> {
        let (reply, answer) = bounded(1);
        self.events.send(Event::Facts(files, reply)).map_err(|_| Over)?;
        answer.recv().map_err(|_| Over)
    }

    fn in_log(&self, after: FileNo) -> Result<Found, Over> {
        let (reply, answer) = bounded(1);
        self.events.send(Event::GatheredBehind(after, LOG_FILES_MAX + 1, reply)).map_err(|_| Over)?;
        let mut files = answer.recv().map_err(|_| Over)?;
        let more = files.len() > LOG_FILES_MAX;
        files.truncate(LOG_FILES_MAX);
        let mut faults = Vec::new();
        for (file, facts) in files.iter().zip(self.facts(files.clone())?) {
            for part in facts.parts {
                let Err(why) = self.log()?.bytes(&part) else { continue };
                if self.has(*file, &part)? {
                    let (from, end) = (part.offset, part.offset + part.len);
                    let why = errno::text(&why);
                    faults.push(format!(
                        "bytes {from} to {end} of file {} cannot be read from the log: {why}",
                        file.0
                    ));
                }
            }
        }
        Ok(Found::Log { files, faults: in_words(faults), more })
    }

    /// Whether the log is to have these bytes still: it may have brought them meanwhile, and forgotten them.
    fn has(&self, file: FileNo, part: &Part) -> Result<bool, Over> {
        let now = self.facts(vec![file])?;
        let has = now.iter().flat_map(|facts| &facts.parts).any(|now| now.seq == part.seq);
        Ok(has && self.log()?.bytes(part).is_err())
    }

    fn files(&self, files: &[FileNo]) -> Result<Found, Over> {
        let mine: Vec<FileNo> =
            files.iter().copied().filter(|file| self.striping.gatherer(*file) == self.me).collect();
        let of_mine: HashSet<FileNo> = mine.iter().copied().collect();
        // Before what lies on the disk is looked at: what is brought meanwhile is told twice, and not at all
        // otherwise.
        let facts = if mine.is_empty() { Vec::new() } else { self.facts(mine)? };
        let mut facts = facts.into_iter();
        let (shelf, mut all, mut told) = (self.shelf()?, Vec::with_capacity(files.len()), 0);
        for file in files {
            let gathered = match of_mine.contains(file) {
                true => facts.next().map(|facts| gathered(&facts, &mut told)),
                false => None,
            };
            match shelf.len(*file) {
                Ok(len) => all.push(Has { len, gathered }),
                Err(errno) => return Ok(Found::Failed(errno.raw_os_error())),
            }
        }
        Ok(Found::Files(all))
    }
}

/// What a gatherer has of a file, in ranges that do not touch.
fn gathered(facts: &Facts, told: &mut usize) -> Gathered {
    let mut ranges: Vec<std::ops::Range<u64>> = Vec::new();
    let mut more = false;
    for part in &facts.parts {
        if let Some(last) = ranges.last_mut().filter(|last| last.end == part.offset) {
            last.end += part.len;
            continue;
        }
        if ranges.len() == RANGES_MAX || *told == ALL_RANGES_MAX {
            more = true;
            break;
        }
        ranges.push(part.offset..part.offset + part.len);
        *told += 1;
    }
    let Facts { version, end, quiet, removed, .. } = *facts;
    Gathered { version, end, quiet, removed, ranges, more }
}

fn in_words(all: Vec<String>) -> Vec<Box<str>> {
    let count = all.len();
    let mut words: Vec<Box<str>> = all.into_iter().take(WORDS_MAX).map(Into::into).collect();
    if count > WORDS_MAX {
        words[WORDS_MAX - 1] = format!("and {} more", count - WORDS_MAX + 1).into();
    }
    words
}
