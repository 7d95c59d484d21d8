//! The bytes of what a server is asked of what it has, and of its answers.
//!
//! Invariants: as in [`volume::wire`](super); ranges rise and do not touch, so that whoever adds them up is
//! right; what says that there is more says at least one, so that nobody asks for ever.

use std::ops::Range;

use super::{
    FILE_LEN_MAX, FileNo, Reader, ServerNo, VolumeId, WireError, Writer, bad, read_version, write_version,
};
use crate::volume::catalog::SKIPS_MAX;
use crate::volume::check::{
    ALL_RANGES_MAX, Ask, Check, FILES_MAX, Found, Gathered, Has, RANGES_MAX, WORDS_LEN_MAX, WORDS_MAX,
};
use crate::wire::CONTROL_LEN_MAX;

const _: () = assert!(64 + FILES_MAX * 64 + ALL_RANGES_MAX * 16 <= CONTROL_LEN_MAX);
const _: () = assert!(64 + FILES_MAX * 16 + WORDS_MAX * (WORDS_LEN_MAX + 2) <= CONTROL_LEN_MAX);

/// The longest start of `words` that fits.
fn cut(words: &str) -> &str {
    let mut end = words.len().min(WORDS_LEN_MAX);
    while !words.is_char_boundary(end) {
        end -= 1;
    }
    &words[..end]
}

fn write_words(w: &mut Writer<'_>, words: &[Box<str>]) {
    w.count("words", words.len(), WORDS_MAX);
    words.iter().for_each(|words| w.bytes("words", cut(words).as_bytes(), WORDS_LEN_MAX));
}

fn read_words(r: &mut Reader<'_>) -> Result<Vec<Box<str>>, WireError> {
    r.list("words", WORDS_MAX, 2, |r| {
        let words = std::str::from_utf8(r.bytes("words", WORDS_LEN_MAX)?);
        words.map(Box::from).map_err(|_| WireError::BadText { what: "words" })
    })
}

fn write_files(w: &mut Writer<'_>, files: &[FileNo]) {
    w.count("files", files.len(), FILES_MAX);
    files.iter().for_each(|file| w.u64(file.0));
}

fn read_files(r: &mut Reader<'_>) -> Result<Vec<FileNo>, WireError> {
    r.list("files", FILES_MAX, 8, |r| Ok(FileNo(r.u64("file")?)))
}

fn more(more: bool, of: usize) -> Result<bool, WireError> {
    match more && of == 0 {
        true => Err(bad("more", 1)),
        false => Ok(more),
    }
}

pub(super) fn write_check(w: &mut Writer<'_>, Check { volume, to, ask }: &Check) {
    w.raw(&volume.0);
    w.u16(to.0);
    match ask {
        Ask::Itself => w.u8(0),
        Ask::Shelf { after } => {
            w.u8(1);
            w.bool(after.is_some());
            if let Some(after) = after {
                w.u64(after.0);
            }
        }
        Ask::Log { after } => {
            w.u8(2);
            w.u64(after.0);
        }
        Ask::Files(files) => {
            w.u8(3);
            write_files(w, files);
        }
        Ask::Numbers { last, skipped } => {
            w.u8(4);
            w.u64(*last);
            write_skips(w, skipped);
        }
    }
}

/// Numbers that a catalog never gave, in ascending order.
pub(in crate::volume) fn write_skips(w: &mut Writer<'_>, skipped: &[Range<u64>]) {
    w.count("ranges", skipped.len(), SKIPS_MAX);
    for range in skipped {
        w.u64(range.start);
        w.u64(range.end);
    }
}

pub(in crate::volume) fn read_skips(r: &mut Reader<'_>) -> Result<Vec<Range<u64>>, WireError> {
    r.list("ranges", SKIPS_MAX, 16, |r| {
        let (start, end) = (r.u64("start of a range")?, r.u64("end of a range")?);
        if start >= end { Err(bad("start of a range", start)) } else { Ok(start..end) }
    })
}

pub(super) fn read_check(r: &mut Reader<'_>) -> Result<Check, WireError> {
    let (volume, to) = (VolumeId(r.array("volume")?), ServerNo(r.u16("server")?));
    let ask = match r.u8("what is asked of a server")? {
        0 => Ask::Itself,
        1 => match r.bool("file")? {
            true => Ask::Shelf { after: Some(FileNo(r.u64("file")?)) },
            false => Ask::Shelf { after: None },
        },
        2 => Ask::Log { after: FileNo(r.u64("file")?) },
        3 => Ask::Files(read_files(r)?),
        4 => Ask::Numbers { last: r.u64("last number")?, skipped: read_skips(r)? },
        other => return Err(bad("what is asked of a server", other.into())),
    };
    Ok(Check { volume, to, ask })
}

pub(super) fn write_found(w: &mut Writer<'_>, found: &Found) {
    match found {
        Found::Itself { faults } => {
            w.u8(0);
            write_words(w, faults);
        }
        Found::Shelf { files, odd, more } => {
            w.u8(1);
            w.bool(*more);
            w.count("files", files.len(), FILES_MAX);
            for (file, len) in files {
                w.u64(file.0);
                w.u64(*len);
            }
            write_words(w, odd);
        }
        Found::Log { files, faults, more } => {
            w.u8(2);
            w.bool(*more);
            write_files(w, files);
            write_words(w, faults);
        }
        Found::Files(all) => {
            w.u8(3);
            w.count("files", all.len(), FILES_MAX);
            for Has { len, gathered } in all {
                w.bool(len.is_some());
                w.u64(len.unwrap_or(0));
                w.bool(gathered.is_some());
                let Some(Gathered { version, end, quiet, removed, ranges, more }) = gathered else {
                    continue;
                };
                write_version(w, *version);
                w.u64(*end);
                w.u8(u8::from(*quiet) | if *removed { REMOVED } else { 0 });
                w.bool(*more);
                w.count("ranges", ranges.len(), RANGES_MAX);
                for range in ranges {
                    w.u64(range.start);
                    w.u64(range.end);
                }
            }
        }
        Found::Failed(errno) => {
            w.u8(4);
            w.i32(*errno);
        }
        Found::Numbers { highest, files } => {
            w.u8(5);
            w.u64(*highest);
            w.u64(*files);
        }
    }
}

pub(super) fn read_found(r: &mut Reader<'_>) -> Result<Found, WireError> {
    Ok(match r.u8("what a server has")? {
        0 => Found::Itself { faults: read_words(r)? },
        1 => {
            let is_more = r.bool("more")?;
            let files = r.list("files", FILES_MAX, 16, |r| Ok((FileNo(r.u64("file")?), r.u64("length")?)))?;
            Found::Shelf { odd: read_words(r)?, more: more(is_more, files.len())?, files }
        }
        2 => {
            let is_more = r.bool("more")?;
            let files = read_files(r)?;
            Found::Log { faults: read_words(r)?, more: more(is_more, files.len())?, files }
        }
        3 => {
            let mut all = 0;
            Found::Files(r.list("files", FILES_MAX, 10, |r| {
                let len = match (r.bool("length")?, r.u64("length")?) {
                    (true, len) => Some(len),
                    (false, 0) => None,
                    (false, len) => return Err(bad("length of nothing", len)),
                };
                let gathered = match r.bool("whether it is gathered there")? {
                    true => Some(read_gathered(r, &mut all)?),
                    false => None,
                };
                Ok(Has { len, gathered })
            })?)
        }
        4 => Found::Failed(r.i32("errno")?),
        5 => Found::Numbers { highest: r.u64("highest number")?, files: r.u64("files")? },
        other => return Err(bad("what a server has", other.into())),
    })
}

/// Of what a gatherer knows of a file.
const QUIET: u8 = 1;
const REMOVED: u8 = 2;

fn read_gathered(r: &mut Reader<'_>, all: &mut usize) -> Result<Gathered, WireError> {
    let (version, end) = (read_version(r)?, r.u64("end of a file")?);
    let (flags, more) = (r.u8("whether it is quiet")?, r.bool("more")?);
    if flags > QUIET | REMOVED {
        return Err(bad("whether it is quiet", flags.into()));
    }
    let (quiet, removed) = (flags & QUIET != 0, flags & REMOVED != 0);
    let mut before = None;
    let ranges = r.list("ranges", RANGES_MAX, 16, |r| {
        let (start, end) = (r.u64("start of a range")?, r.u64("end of a range")?);
        if before.is_some_and(|before| start <= before) || start >= end || end > FILE_LEN_MAX {
            return Err(bad("start of a range", start));
        }
        before = Some(end);
        Ok(start..end)
    })?;
    *all += ranges.len();
    match *all <= ALL_RANGES_MAX {
        true => Ok(Gathered { version, end, quiet, removed, ranges, more }),
        false => Err(WireError::TooLong {
            what: "ranges of an answer",
            len: *all as u64,
            max: ALL_RANGES_MAX as u64,
        }),
    }
}
