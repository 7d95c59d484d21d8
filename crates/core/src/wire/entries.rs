//! Byte layout of announced entries and of their metadata in pieces, both ways.
//!
//! Invariant: what [`announced_len`] says is what an entry takes; what is decoded is legal on its own,
//! whatever was agreed on.

use super::codec::{Reader, Writer};
use super::frame::{FILE_LEN_MAX, object_size_is_legal};
use super::negotiate::extra;
use super::parts::{
    LIST_LEN_MAX, read_meta, read_object_size, read_time, read_version, write_meta, write_time,
};
use super::{Announced, METADATA_PIECE_LEN_MAX, MetadataPiece, WireError};
use crate::entry::{
    EntryKind, Extras, FileRange, Fingerprint, LINK_LEN_MAX, METADATA_NAME_LEN_MAX, METADATA_VALUE_LEN_MAX,
    NAME_LEN_MAX, Namespace, VERSION_LEN_MAX,
};
use crate::ids::{DirId, FileId};

pub(super) const ANNOUNCED_LEN_MIN: usize = 49;
/// A piece of metadata without name and bytes.
pub(super) const METADATA_LEN_MIN: usize = 26;
/// What a file has beside what every entry has: size, mtime, the length of its version, object size.
const FILE_LEN_MIN: usize = 25;
/// The value of a range. An extra field without a value, which is a mark: kind, required, length.
const RANGE_LEN: usize = 25;
const MARK_LEN: usize = 5;
/// The value of a number of names.
const NAMES_LEN: usize = 4;
/// All extra fields of an entry.
const EXTRAS_LEN_MAX: usize = u16::MAX as usize;

// One entry fits a message, and its extra fields their length.
const _: () = assert!(ANNOUNCED_LEN_MIN + NAME_LEN_MAX + 2 + LINK_LEN_MAX <= LIST_LEN_MAX);
const _: () = assert!(
    ANNOUNCED_LEN_MIN + NAME_LEN_MAX + FILE_LEN_MIN + VERSION_LEN_MAX + EXTRAS_LEN_MAX <= LIST_LEN_MAX
);
const _: () = assert!(RANGE_LEN + NAMES_LEN + 5 * MARK_LEN <= EXTRAS_LEN_MAX);
const _: () = assert!(METADATA_LEN_MIN + METADATA_NAME_LEN_MAX + METADATA_PIECE_LEN_MAX <= LIST_LEN_MAX);

/// Bytes that an entry takes in an `Announce`. Entries of one message: at most [`ANNOUNCE_ENTRIES_MAX`] and
/// [`LIST_LEN_MAX`] bytes.
pub fn announced_len(entry: &Announced) -> usize {
    let kind = match &entry.kind {
        EntryKind::Dir { version } => 1 + version.as_bytes().len(),
        EntryKind::File { fingerprint, sparse, striped, .. } => {
            let marks = usize::from(*sparse) + usize::from(*striped);
            FILE_LEN_MIN + fingerprint.version.as_bytes().len() + MARK_LEN * marks
        }
        EntryKind::Symlink { target } => 2 + target.len(),
        EntryKind::Fifo | EntryKind::Socket => 0,
        EntryKind::Device { .. } => 9,
        EntryKind::HardLink { .. } => 8,
    };
    let range = if entry.extras.range.is_some() { MARK_LEN + RANGE_LEN } else { 0 };
    let names = if entry.extras.names > 0 { MARK_LEN + NAMES_LEN } else { 0 };
    let extras = range + names + MARK_LEN * usize::from(entry.extras.metadata);
    ANNOUNCED_LEN_MIN - 1 + entry.name.as_bytes().len() + kind + extras
}

pub(super) fn write_announced(w: &mut Writer<'_>, entry: &Announced) {
    assert!(entry.id.as_dir() != DirId::ROOT, "the destination root is never announced");
    w.u64(entry.id.0);
    w.u32(entry.generation.0);
    w.u64(entry.parent.0);
    write_meta(w, &entry.meta);
    w.u8(match &entry.kind {
        EntryKind::Dir { .. } => 1,
        EntryKind::File { .. } => 2,
        EntryKind::Symlink { .. } => 3,
        EntryKind::Fifo => 4,
        EntryKind::Socket => 5,
        EntryKind::Device { .. } => 6,
        EntryKind::HardLink { .. } => 7,
    });
    w.name(&entry.name);
    match &entry.kind {
        EntryKind::Dir { version } => w.version(version),
        EntryKind::File { fingerprint, object_size, .. } => {
            assert!(fingerprint.size <= FILE_LEN_MAX, "own file of {} bytes", fingerprint.size);
            assert!(object_size_is_legal(*object_size), "own object size {object_size}");
            w.u64(fingerprint.size);
            write_time(w, fingerprint.mtime);
            w.version(&fingerprint.version);
            w.u32(*object_size);
        }
        EntryKind::Symlink { target } => w.bytes("target of a symlink", target, LINK_LEN_MAX),
        EntryKind::Fifo | EntryKind::Socket => {}
        EntryKind::Device { block, major, minor } => {
            w.bool(*block);
            w.u32(*major);
            w.u32(*minor);
        }
        EntryKind::HardLink { to } => w.u64(to.0),
    }
    write_extras(w, entry);
}

/// The length of the extra fields, and the fields.
fn write_extras(w: &mut Writer<'_>, entry: &Announced) {
    let (sparse, striped) = match entry.kind {
        EntryKind::File { sparse, striped, .. } => (sparse, striped),
        _ => (false, false),
    };
    let Extras { range, metadata, names } = entry.extras;
    let marks = [(sparse, extra::SPARSE), (striped, extra::LAYOUT), (metadata, extra::METADATA)];
    let marks = marks.into_iter().filter(|(on, _)| *on);
    let range_len = range.map_or(0, |_| MARK_LEN + RANGE_LEN);
    let names_len = if names > 0 { MARK_LEN + NAMES_LEN } else { 0 };
    w.u16((range_len + names_len + MARK_LEN * marks.clone().count()) as u16);
    if let Some(FileRange { source, sink, len, partial }) = range {
        w.u16(extra::RANGE);
        w.bool(true);
        w.u16(RANGE_LEN as u16);
        [source, sink, len].into_iter().for_each(|n| w.u64(n));
        w.u8(partial.into());
    }
    for (_, kind) in marks {
        w.u16(kind);
        w.bool(true);
        w.u16(0);
    }
    if names > 0 {
        w.u16(extra::NAMES);
        w.bool(true);
        w.u16(NAMES_LEN as u16);
        w.u32(names);
    }
}

pub(super) fn read_announced(r: &mut Reader<'_>) -> Result<Announced, WireError> {
    let (id, generation) = read_version(r)?;
    if id.as_dir() == DirId::ROOT {
        return Err(WireError::BadValue { what: "id of an announced entry", value: 0 });
    }
    let parent = DirId(r.u64("parent of an entry")?);
    let meta = read_meta(r)?;
    let tag = r.u8("kind of an entry")?;
    let name = r.name("name of an entry")?;
    let mut kind = match tag {
        1 => EntryKind::Dir { version: r.version("version of a directory")? },
        2 => read_file(r)?,
        3 => {
            let what = "target of a symlink";
            let target = r.bytes(what, LINK_LEN_MAX)?;
            if target.is_empty() || target.contains(&0) {
                return Err(WireError::BadValue { what, value: 0 });
            }
            EntryKind::Symlink { target: target.into() }
        }
        4 => EntryKind::Fifo,
        5 => EntryKind::Socket,
        6 => EntryKind::Device {
            block: r.bool("kind of a device")?,
            major: r.u32("major number of a device")?,
            minor: r.u32("minor number of a device")?,
        },
        7 => {
            let to = FileId(r.u64("file of a hard link")?);
            // It was announced before: of one shard, under a lower number.
            if to.as_dir() == DirId::ROOT || (to.shard() == id.shard() && to >= id) {
                return Err(WireError::BadValue { what: "file of a hard link", value: to.0 });
            }
            EntryKind::HardLink { to }
        }
        other => return Err(WireError::BadValue { what: "kind of an entry", value: other.into() }),
    };
    let extras = read_extras(r, &mut kind)?;
    Ok(Announced { id, generation, parent, name, meta, kind, extras })
}

fn read_file(r: &mut Reader<'_>) -> Result<EntryKind, WireError> {
    let size = r.u64("size of a file")?;
    if size > FILE_LEN_MAX {
        return Err(WireError::TooLong { what: "size of a file", len: size, max: FILE_LEN_MAX });
    }
    let mtime = read_time(r, "mtime of a fingerprint")?;
    let version = r.version("version of a fingerprint")?;
    let object_size = read_object_size(r)?;
    let fingerprint = Fingerprint { size, mtime, version };
    Ok(EntryKind::File { fingerprint, object_size, sparse: false, striped: false })
}

/// Extra fields of an entry: those that are known, each at most once; the others are stepped over as far as
/// that is allowed.
fn read_extras(r: &mut Reader<'_>, entry: &mut EntryKind) -> Result<Extras, WireError> {
    let mut known = Extras::default();
    let len = usize::from(r.u16("extra fields")?);
    let mut extras = Reader::new(r.take("extra fields", len)?);
    while extras.remaining() > 0 {
        let kind = extras.u16("extra field kind")?;
        let required = extras.bool("extra field: required")?;
        if kind == extra::RANGE {
            let value = extras.bytes("extra field", len)?;
            if !required || known.range.is_some() {
                return Err(WireError::BadValue { what: "range of a file", value: kind.into() });
            }
            known.range = Some(read_file_range(value, entry)?);
            continue;
        }
        if matches!(kind, extra::SPARSE | extra::LAYOUT | extra::METADATA) {
            let empty = extras.bytes("extra field", len)?.is_empty();
            let mark = match entry {
                EntryKind::HardLink { .. } if kind == extra::METADATA => None,
                _ if kind == extra::METADATA => Some(&mut known.metadata),
                EntryKind::File { sparse, .. } if kind == extra::SPARSE => Some(sparse),
                EntryKind::File { striped, .. } if kind == extra::LAYOUT => Some(striped),
                _ => None,
            };
            match mark {
                Some(mark) if required && empty && !*mark => *mark = true,
                _ => return Err(WireError::BadValue { what: "mark of a file", value: kind.into() }),
            }
            continue;
        }
        if kind == extra::NAMES {
            let what = "names of a file";
            let mut value = Reader::new(extras.bytes("extra field", len)?);
            let names = value.u32(what)?;
            value.finish(what)?;
            let may = !matches!(entry, EntryKind::Dir { .. } | EntryKind::HardLink { .. });
            if !required || !may || names == 0 || known.names > 0 {
                return Err(WireError::BadValue { what, value: names.into() });
            }
            known.names = names;
            continue;
        }
        if required {
            return Err(WireError::UnknownRequired { what: "extra field", kind });
        }
        extras.bytes("extra field", len)?;
    }
    Ok(known)
}

/// The value of a range, which the file must have.
fn read_file_range(value: &[u8], entry: &EntryKind) -> Result<FileRange, WireError> {
    let what = "range of a file";
    let mut r = Reader::new(value);
    let (source, sink, len) = (r.u64(what)?, r.u64(what)?, r.u64(what)?);
    let range = FileRange { source, sink, len, partial: r.bool(what)? };
    r.finish(what)?;
    match entry {
        EntryKind::File { fingerprint, object_size, .. }
            if range.fits(fingerprint.size, *object_size)
                || haul_mutant::removed("ranges-lie-in-their-file") =>
        {
            Ok(range)
        }
        _ => Err(WireError::BadValue { what, value: source }),
    }
}

/// Bytes that a piece takes in a `Metadata`.
pub(super) fn metadata_len(piece: &MetadataPiece) -> usize {
    METADATA_LEN_MIN + piece.name.len() + piece.piece.len()
}

pub(super) fn write_metadata(w: &mut Writer<'_>, metadata: &MetadataPiece) {
    let MetadataPiece { id, generation, namespace, name, total, offset, piece, last } = metadata;
    w.u64(id.0);
    w.u32(generation.0);
    w.u8(match namespace {
        Namespace::Xattr => 1,
        Namespace::AccessAcl => 2,
        Namespace::DefaultAcl => 3,
        Namespace::Nfs4Acl => 4,
    });
    w.bool(*last);
    w.bytes("name of metadata", name, METADATA_NAME_LEN_MAX);
    w.u32(*total);
    w.u32(*offset);
    w.bytes("piece of metadata", piece, METADATA_PIECE_LEN_MAX);
}

pub(super) fn read_metadata(r: &mut Reader<'_>) -> Result<MetadataPiece, WireError> {
    let (id, generation) = read_version(r)?;
    let namespace = match r.u8("namespace of metadata")? {
        1 => Namespace::Xattr,
        2 => Namespace::AccessAcl,
        3 => Namespace::DefaultAcl,
        4 => Namespace::Nfs4Acl,
        other => return Err(WireError::BadValue { what: "namespace of metadata", value: other.into() }),
    };
    let last = r.bool("metadata: last")?;
    let what = "name of metadata";
    let name: Box<[u8]> = r.bytes(what, METADATA_NAME_LEN_MAX)?.into();
    if name.is_empty() == (namespace == Namespace::Xattr) || name.contains(&0) {
        return Err(WireError::BadValue { what, value: name.len() as u64 });
    }
    let what = "length of metadata";
    let (total, offset) = (r.u32(what)?, r.u32("offset of metadata")?);
    if total > METADATA_VALUE_LEN_MAX {
        let (len, max) = (total.into(), METADATA_VALUE_LEN_MAX.into());
        return Err(WireError::TooLong { what, len, max });
    }
    let piece: Box<[u8]> = r.bytes("piece of metadata", METADATA_PIECE_LEN_MAX)?.into();
    let end = u64::from(offset) + piece.len() as u64;
    // What is last ends its value; what is empty is all of it.
    let whole = end == u64::from(total);
    if end > total.into() || (last && !whole) || (piece.is_empty() && total > 0) {
        return Err(WireError::BadValue { what: "offset of metadata", value: offset.into() });
    }
    Ok(MetadataPiece { id, generation, namespace, name, total, offset, piece, last })
}
