//! Byte layout of what several messages have in common, reading and writing.

use super::WireError;
use super::codec::{Reader, Writer};
use super::frame::{CONTROL_LEN_MAX, object_size_is_legal};
use crate::entry::{Meta, Timestamp};
use crate::ids::{FileId, Generation};
use crate::schedule::Health;

/// What a list body of large items may take: a control frame less count and fixed fields.
pub const LIST_LEN_MAX: usize = CONTROL_LEN_MAX - 64;
/// Mode, owner, group and mtime.
pub(super) const META_LEN: usize = 4 + 4 + 4 + 12;

pub(super) fn read_version(r: &mut Reader<'_>) -> Result<(FileId, Generation), WireError> {
    Ok((FileId(r.u64("entry id")?), Generation(r.u32("generation")?)))
}

pub(super) fn read_time(r: &mut Reader<'_>, what: &'static str) -> Result<Timestamp, WireError> {
    let secs = r.i64(what)?;
    let nanos = r.u32(what)?;
    match nanos < 1_000_000_000 {
        true => Ok(Timestamp { secs, nanos }),
        false => Err(WireError::BadValue { what, value: nanos.into() }),
    }
}

pub(super) fn read_meta(r: &mut Reader<'_>) -> Result<Meta, WireError> {
    let mode = r.u32("mode")?;
    if mode & !0o7777 != 0 {
        return Err(WireError::BadValue { what: "mode", value: mode.into() });
    }
    let (uid, gid) = (r.u32("uid")?, r.u32("gid")?);
    Ok(Meta { mode, uid, gid, mtime: read_time(r, "mtime")? })
}

pub(super) fn read_object_size(r: &mut Reader<'_>) -> Result<u32, WireError> {
    match r.u32("object size")? {
        size if object_size_is_legal(size) => Ok(size),
        size => Err(WireError::BadValue { what: "object size", value: size.into() }),
    }
}

pub(super) fn write_time(w: &mut Writer<'_>, time: Timestamp) {
    w.i64(time.secs);
    // A file system that is out of its mind must not end the session.
    w.u32(time.nanos.min(999_999_999));
}

pub(super) fn write_meta(w: &mut Writer<'_>, meta: &Meta) {
    w.u32(meta.mode & 0o7777);
    w.u32(meta.uid);
    w.u32(meta.gid);
    write_time(w, meta.mtime);
}

/// The number of a state in `TARGET_HEALTH`.
pub(super) fn health_number(health: Health) -> u8 {
    match health {
        Health::Healthy => 0,
        Health::Congested => 1,
        Health::Resting => 2,
        Health::Hung => 3,
    }
}

pub(super) fn read_health(r: &mut Reader<'_>) -> Result<Health, WireError> {
    Ok(match r.u8("state of a target")? {
        0 => Health::Healthy,
        1 => Health::Congested,
        2 => Health::Resting,
        3 => Health::Hung,
        other => return Err(WireError::BadValue { what: "state of a target", value: other.into() }),
    })
}
