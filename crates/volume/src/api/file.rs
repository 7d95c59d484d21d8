//! A file that is open: reads, writes, and what makes them last.
//!
//! Invariants: a read of this program's own writes shows them, their length too; a file that is closed well
//! was synced if anything was written to it here.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use haul_core::volume::catalog::{EntryNo, Setting};
use haul_core::volume::wire::BYTES_MAX;
use haul_core::volume::{ContentVersion, FileNo};
use haul_core::wire::FILE_LEN_MAX;
use rustix::io::Errno;

use super::ahead::Ahead;
use super::blocks::{self, Blocks, BlocksRead};
use super::error::{Error, OneFailed, Why};
use super::many::{self, Source};
use super::options::OpenOptions;
use super::written::Written;
use super::{Shared, Stat, stat_of};
use crate::client::{VolumeError, Waiting};
use crate::contents::{self, ContentsError};

/// A long write goes in parts of so many bytes, of which so many are under way.
const PART: usize = 16 << 20;
const PARTS_UNDER_WAY: usize = 4;
const _: () = assert!(PART as u64 <= BYTES_MAX);

/// A file that is open. Many threads may use it.
///
/// Whoever is done with it calls [`File::close`], which makes last what was written and tells what went
/// wrong. A file that is dropped instead begins to sync what was written, which nobody waits for: what fails
/// of it [`Volume::settle`](super::Volume::settle) tells, and the file's time is moved by whoever looks at it
/// next.
pub struct File {
    shared: Arc<Shared>,
    no: FileNo,
    /// As it is shown.
    path: String,
    reads: bool,
    writes: bool,
    appends: bool,
    written: Arc<Written>,
    ahead: Ahead,
    /// It is as long as the catalog knows it.
    has_its_length: AtomicBool,
    is_closed: bool,
}

impl File {
    /// One that the catalog knows to be open.
    pub(super) fn new(shared: &Arc<Shared>, no: FileNo, path: String, options: &OpenOptions) -> File {
        File {
            shared: shared.clone(),
            no,
            path,
            reads: options.read,
            writes: options.write,
            appends: options.append,
            written: shared.written(no),
            ahead: Ahead::new(options.ahead),
            has_its_length: AtomicBool::new(false),
            is_closed: false,
        }
    }

    fn told<T>(&self, doing: &'static str, result: Result<T, impl Into<Why>>) -> Result<T, Error> {
        result.map_err(|why| Error::new(doing, &*self.path, why))
    }

    fn one_of<T>(
        &self,
        doing: &'static str,
        result: Result<T, (usize, impl Into<Why>)>,
    ) -> Result<T, OneFailed> {
        result.map_err(|(number, why)| OneFailed { number, error: Error::new(doing, &*self.path, why) })
    }

    fn may_read(&self) -> Result<(), Why> {
        match self.reads {
            true => Ok(()),
            false => Err(Why::refused(Errno::BADF, "it was not opened to read")),
        }
    }

    /// Something is written from here on.
    fn may_write(&self, at_end: bool) -> Result<(), Why> {
        let why = match () {
            () if self.writes || at_end && self.appends => {
                self.ahead.clear();
                return Ok(());
            }
            () if self.appends => "it was opened to append: other places of it are not written",
            () => "it was not opened to write",
        };
        Err(Why::refused(Errno::BADF, why))
    }

    fn source(&self) -> Source<'_> {
        let Shared { client, catalog, .. } = &*self.shared;
        Source { client, catalog: catalog.as_ref(), file: self.no, own_end: self.written.end() }
    }

    /// Reads bytes from `offset` on, and says how many there were: fewer than `buf` has only where the file
    /// ends. What was never written before its end is zeros. What `buf` has behind them is of no worth.
    ///
    /// # Errors
    /// A server that has some of them did not answer in time, or its disk says no; the file was removed; a
    /// server has lost bytes of a file that is known to have been whole, or that is longer than it says.
    pub fn pread(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        let read = self.pread_many(&mut [(offset, buf)]).map_err(|one| one.error)?;
        Ok(read.first().copied().unwrap_or(0))
    }

    /// Reads many ranges, each from its offset on, and says how many bytes there were of each. They are read
    /// from all servers at once; what lies close together is read together. They may overlap, be empty, be in
    /// any order, and lie behind the end. The ranges are not of one moment.
    ///
    /// Bounds: 256 requests and some 64 MiB are under way at a time, but at least one request to each server
    /// that has any of the bytes.
    ///
    /// # Errors
    /// As of [`File::pread`], and which range it was. Nothing is known of the others then.
    pub fn pread_many(&self, ranges: &mut [(u64, &mut [u8])]) -> Result<Vec<usize>, OneFailed> {
        self.one_of("read", self.may_read().map_err(|why| (0, why)))?;
        let held = |version| {
            let held = self.ahead.as_of(version);
            move |at: u64, room: &mut [u8]| held.as_ref().is_some_and(|held| held.copy(at, room))
        };
        let read = many::read(&self.source(), !self.ahead.is_empty(), held, ranges);
        let lens = self.one_of("read", read)?;
        // Some of them reach behind the end.
        let short = lens.iter().zip(&*ranges).position(|(len, (_, room))| *len < room.len());
        if let Some(number) = short {
            let offset = ranges[number].0;
            let end = (lens[number] > 0).then(|| offset + lens[number] as u64);
            self.one_of("read", self.ends_there(end).map_err(|why| (number, why)))?;
        }
        Ok(lens)
    }

    /// Begins to read ranges, so that later reads of them, or of parts of them, need not wait for their
    /// servers. Says how many bytes of them are held or on their way; ranges that there is no room for
    /// ([`OpenOptions::ahead`]) are left out, and all of them where somebody writes into the file all the
    /// time.
    ///
    /// Later reads ask the server that gathers the file whether anything was written since, and then read as
    /// if nothing had been read ahead. So they never show what is old.
    ///
    /// # Errors
    /// The server that gathers the file did not answer in time; it was removed. What fails of the ranges is
    /// read anew.
    pub fn prefetch(&self, ranges: &[Range<u64>]) -> Result<u64, Error> {
        self.told("read ahead", self.may_read())?;
        self.told("read ahead", self.ahead.begin(&self.source(), ranges))
    }

    /// Writes all of `bytes` from `offset` on. Others can read them when this returns; [`File::sync`] makes
    /// them last. Writes that overlap and are made at the same time lie one over the other, in any order.
    ///
    /// # Errors
    /// A server did not take some of it: then any part of it may be written.
    pub fn pwrite(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        self.told("write", self.write_at(bytes, offset))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Why> {
        self.may_write(false)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= FILE_LEN_MAX);
        let end = end.ok_or_else(|| Why::refused(Errno::FBIG, "a file ends at 2^63 - 1 at most"))?;
        self.written.begins();
        let (mut waiting, mut result) = (VecDeque::new(), Ok(()));
        for (nth, part) in bytes.chunks(PART).enumerate() {
            if waiting.len() == PARTS_UNDER_WAY {
                result = result.and(next(&mut waiting));
            }
            if result.is_err() {
                break;
            }
            let at = offset + (nth * PART) as u64;
            waiting.push_back(self.shared.client.write(self.no, at, part.to_vec()));
        }
        // When this returns nothing of it is under way.
        while !waiting.is_empty() {
            result = result.and(next(&mut waiting));
        }
        result?;
        self.written.wrote(end);
        Ok(())
    }

    /// Begins to write bytes from `offset` on, at most 16 MiB, and waits for no server. Nothing is known of
    /// them before [`Writing::wait`] came back; a read or a sync that is begun before that may leave them
    /// out.
    ///
    /// # Errors
    /// The file was not opened to write, or they are too many.
    pub fn begin_write(&self, bytes: Vec<u8>, offset: u64) -> Result<Writing, Error> {
        let begin = || -> Result<Writing, Why> {
            self.may_write(false)?;
            let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= FILE_LEN_MAX);
            let end = end.ok_or_else(|| Why::refused(Errno::FBIG, "a file ends at 2^63 - 1 at most"))?;
            if bytes.len() > PART {
                return Err(Why::refused(Errno::FBIG, "one write has at most 16 MiB"));
            }
            self.written.begins();
            let (len, path, written) = (bytes.len(), self.path.clone(), self.written.clone());
            let waiting = (len > 0).then(|| self.shared.client.write(self.no, offset, bytes));
            Ok(Writing { waiting, written, end, path, len })
        };
        self.told("write", begin())
    }

    /// Puts bytes behind the file's end, and says where they stand: behind whatever was appended, gathered or
    /// synced before, by whomever, and behind what this program wrote. No two appends overlap. At most 64
    /// MiB.
    ///
    /// One that was under way when the server that gathers the file was started again may stand twice: where
    /// this says, and once before that.
    ///
    /// # Errors
    /// It was not done, or, after [`VolumeError::Late`], nobody knows.
    pub fn append(&self, bytes: &[u8]) -> Result<u64, Error> {
        let append = || -> Result<u64, Why> {
            self.may_write(true)?;
            if bytes.is_empty() {
                return Ok(self.end()?);
            }
            if bytes.len() as u64 > BYTES_MAX {
                return Err(Why::refused(Errno::FBIG, "one append has at most 64 MiB"));
            }
            self.written.begins();
            let offset = self.shared.client.append(self.no, bytes.to_vec()).wait()?;
            self.written.wrote(offset + bytes.len() as u64);
            Ok(offset)
        };
        self.told("append to", append())
    }

    /// The file ends there: what was behind it is gone, what was not there is zeros. That lasts when this
    /// returns.
    ///
    /// # Errors
    /// It ends behind 2^63 - 1, or servers did not answer in time: it may still be done.
    pub fn set_len(&self, len: u64) -> Result<(), Error> {
        self.told("set the length of", self.may_write(false).and_then(|()| self.cut(len)))
    }

    /// As it is opened to be empty.
    pub(super) fn empty(&self) -> Result<(), Why> {
        self.cut(0)
    }

    fn cut(&self, len: u64) -> Result<(), Why> {
        let mark = self.written.mark();
        self.shared.client.truncate(self.no, len).wait()?;
        self.written.cut(mark);
        Ok(())
    }

    /// Where it ends is where the catalog knows that it does, if it does; `None`: that is asked.
    ///
    /// # Errors
    /// It is not: bytes are lost. Or nobody says.
    fn ends_there(&self, end: Option<u64>) -> Result<(), Why> {
        if self.has_its_length.load(Ordering::Relaxed) {
            return Ok(());
        }
        let Shared { client, catalog: Some(catalog), .. } = &*self.shared else { return Ok(()) };
        let end = end.map_or_else(|| self.end(), Ok)?;
        match contents::is_short(catalog, client, self.no, end) {
            Ok(None) => {
                self.has_its_length.store(true, Ordering::Relaxed);
                Ok(())
            }
            Ok(Some(why)) | Err(ContentsError::Servers(why)) => Err(why.into()),
            Err(ContentsError::Catalog(why)) => Err(why.into()),
        }
    }

    fn whole_end(&self) -> Result<u64, Why> {
        let end = self.end()?;
        self.ends_there(Some(end)).map(|()| end)
    }

    fn end(&self) -> Result<u64, VolumeError> {
        Ok(self.shared.client.read(self.no, 0, 0).wait()?.end.max(self.written.end()))
    }

    /// Where the file ends: what was gathered, appended, cut or synced by anybody, and what this program
    /// wrote.
    ///
    /// # Errors
    /// The server that gathers it did not answer in time; it was removed.
    pub fn len(&self) -> Result<u64, Error> {
        self.told("look at", self.whole_end())
    }

    /// Whether it has no bytes.
    ///
    /// # Errors
    /// As of [`File::len`].
    pub fn is_empty(&self) -> Result<bool, Error> {
        self.len().map(|len| len == 0)
    }

    /// What the file is, whatever its name is by now.
    ///
    /// # Errors
    /// As of [`File::len`], and the catalog's.
    pub fn stat(&self) -> Result<Stat, Error> {
        let stat = || -> Result<Stat, Why> {
            let entry = self.shared.catalog().stat(EntryNo(self.no.0))?;
            Ok(stat_of(entry, self.end()?))
        };
        self.told("look at", stat())
    }

    /// No other file of the volume ever has it.
    pub fn number(&self) -> u64 {
        self.no.0
    }

    /// What the file is, as the server knows it that gathers it, and the version of its bytes: while that
    /// stays nothing was written to it. Who may write it directly gives that up for the moment. `None`:
    /// somebody writes all the time.
    ///
    /// # Errors
    /// As of [`File::stat`]; with an access for reading also where it was written and the catalog was not
    /// told.
    pub fn look(&self) -> Result<(Stat, Option<ContentVersion>), Error> {
        let look = || self.shared.looked(self.shared.catalog().stat(EntryNo(self.no.0))?);
        self.told("look at", look())
    }

    /// Gives the file these bits of permission.
    ///
    /// # Errors
    /// The catalog's.
    pub fn set_mode(&self, mode: u32) -> Result<(), Error> {
        let set = Setting { mode: Some(mode), ..Setting::default() };
        self.told("set the mode of", self.shared.catalog().set_attr(EntryNo(self.no.0), set).map(drop))
    }

    /// Makes last what this program wrote to the file before, and no more: others hear of its length and time
    /// by a [`File::sync`] or [`File::close`] that is still to come, or when they look.
    ///
    /// # Errors
    /// As of [`File::sync`].
    pub fn sync_data(&self) -> Result<(), Error> {
        self.told("sync", self.shared.client.sync(self.no).wait())
    }

    /// Makes last what this program wrote to the file before, its length too, and moves the file's time, by
    /// the catalog's clock: whoever opens the file after this returned sees all of it.
    ///
    /// # Errors
    /// Some of what was not synced may be lost: [`VolumeError::Lost`] says that a server was started anew
    /// with it. It is to be written again; the next sync may tell of it once more.
    pub fn sync(&self) -> Result<(), Error> {
        self.told("sync", self.make_last())
    }

    fn make_last(&self) -> Result<(), Why> {
        let mark = self.written.mark();
        contents::sync(self.shared.catalog(), &self.shared.client, self.no).map_err(|why| match why {
            ContentsError::Servers(why) => Why::Servers(why),
            ContentsError::Catalog(why) => Why::Catalog(why),
        })?;
        self.written.synced(mark);
        Ok(())
    }

    /// Closes the file: syncs it if this program wrote to it, and tells the catalog.
    ///
    /// # Errors
    /// As of [`File::sync`]. The file is closed all the same.
    pub fn close(mut self) -> Result<(), Error> {
        let synced = match self.written.is_synced() || haul_mutant::removed("volume-close-syncs") {
            true => Ok(()),
            false => self.make_last(),
        };
        self.is_closed = true;
        let closed = self.shared.catalog().close(EntryNo(self.no.0)).map_err(Why::from);
        self.told("close", synced.and(closed))
    }

    /// Its blocks: a block is a stripe, and lies on one server.
    ///
    /// # Errors
    /// As of [`File::len`].
    pub fn blocks(&self) -> Result<Blocks, Error> {
        let end = self.told("look at", self.whole_end())?;
        Ok(Blocks::new(self.shared.client.striping().clone(), self.no, end))
    }

    /// Reads blocks straight from their servers, from all at once, and gives each to `each` when it came, in
    /// any order: its number, and its bytes, which end where the file does. A block that is named twice comes
    /// twice, one behind the end without bytes. Where small writes were gathered of a block, the server that
    /// gathers them is asked too.
    ///
    /// Bounds: 256 requests and some 64 MiB are under way or wait for `each`, but at least one block of each
    /// server.
    ///
    /// # Errors
    /// As of [`File::pread`], and which of `numbers` it was; others may have come.
    pub fn read_blocks(
        &self,
        numbers: &[u64],
        each: impl FnMut(u64, &[u8]),
    ) -> Result<BlocksRead, OneFailed> {
        self.one_of("read", self.may_read().map_err(|why| (0, why)))?;
        self.one_of("read", blocks::read(&self.source(), numbers, each))
    }

    /// Writes blocks, each by its number: bytes from its beginning on, at most as many as a block has.
    ///
    /// # Errors
    /// As of [`File::pwrite`], and which of `blocks` it was; any of them may be written.
    pub fn write_blocks(&self, blocks: &[(u64, &[u8])]) -> Result<(), OneFailed> {
        self.one_of("write", self.may_write(false).map_err(|why| (0, why)))?;
        self.written.begins();
        let end = self.one_of("write", blocks::write(&self.shared.client, self.no, blocks))?;
        self.written.wrote(end);
        Ok(())
    }
}

/// A write that is under way.
#[must_use]
pub struct Writing {
    waiting: Option<Waiting<()>>,
    written: Arc<Written>,
    end: u64,
    path: String,
    len: usize,
}

impl Writing {
    /// Bytes that are written.
    pub fn bytes(&self) -> usize {
        self.len
    }

    /// Waits until others can read them.
    ///
    /// # Errors
    /// As of [`File::pwrite`].
    pub fn wait(self) -> Result<(), Error> {
        let Writing { waiting, written, end, path, .. } = self;
        let Some(waiting) = waiting else { return Ok(()) };
        waiting.wait().map_err(|why| Error::new("write", path, why))?;
        written.wrote(end);
        Ok(())
    }
}

fn next(waiting: &mut VecDeque<Waiting<()>>) -> Result<(), VolumeError> {
    waiting.pop_front().map_or(Ok(()), Waiting::wait)
}

impl Drop for File {
    fn drop(&mut self) {
        if self.is_closed {
            return;
        }
        if !self.written.is_synced() {
            self.shared.leave(&self.path, self.shared.client.sync(self.no));
        }
        self.shared.catalog().close_soon(EntryNo(self.no.0));
    }
}
