//! Messages between the coordinator of a job and the pairs of ends that work for it, and their bytes.
//!
//! In: bytes of an end, or what the coordinator wants. Out: the other of the two.
//! Invariants: as of the other messages: every list has a named maximum, nothing is allocated beyond what the
//! bytes at hand can fill, and what an encoder here makes, the decoder here takes. What a message means is
//! the coordinator's matter; here it is only sound: ranges do not overflow, and a list is never empty where
//! that would say nothing.
//! Left out: leases that ended, entries that nobody has: the receiver drops what it does not know.
//!
//! They are for ends that both name the capability [`JOB`](super::capability::JOB), which none does yet.

use self::job_kind as kind;
use super::codec::{Reader, Writer};
use super::decode::read_failure;
use super::encode::write_failure;
use super::frame::{CONTROL_LEN_MAX, FILE_LEN_MAX};
use super::{Failure, WireError};
use crate::digest::{Cv, Root, Subtree};
use crate::entry::{Meta, Timestamp};
use crate::ids::{DirId, FileId, Generation, HostId, Lease, PairId};
use crate::job::{FORMER_MAX, Publication, Return, Temp, Way, Work, WorkKind};

/// Kinds of their frames: 0x30 to 0x3f are theirs.
pub mod job_kind {
    pub const LEASE: u8 = 0x30;
    pub const LEASE_ENDED: u8 = 0x31;
    pub const ASSIGN: u8 = 0x32;
    pub const GIVE_BACK: u8 = 0x33;
    pub const GAVE_BACK: u8 = 0x34;
    pub const REVOKE: u8 = 0x35;
    pub const BEGUN: u8 = 0x36;
    pub const PERSISTED: u8 = 0x37;
    pub const READ: u8 = 0x38;
    pub const SEAL: u8 = 0x39;
    pub const PUBLISH: u8 = 0x3a;
    pub const PUBLISHED: u8 = 0x3b;
    pub const NOT_PUBLISHED: u8 = 0x3c;
    pub const DISCARD: u8 = 0x3d;
    pub const FINISH_DIR: u8 = 0x3e;
    pub const FINISHED_DIR: u8 = 0x3f;
}

/// Most works in one `ASSIGN` and most items in one `GIVE_BACK`.
pub const JOB_ITEMS_MAX: usize = crate::job::ITEMS_MAX;
/// Most subtrees in one `PERSISTED`.
pub const PERSISTED_MAX: usize = 4096;
/// Most temporaries that are named for one file.
pub const TEMPS_MAX: usize = FORMER_MAX + 4;

const TEMP_LEN: usize = 12;
const SUBTREE_LEN: usize = 48;
const WORK_LEN_MIN: usize = 12 + 1 + 16 + 2 * TEMP_LEN + 2;
const RETURN_LEN: usize = 28;
const EXTENT_HEAD: usize = 64;

const _: () = assert!(EXTENT_HEAD + PERSISTED_MAX * SUBTREE_LEN <= CONTROL_LEN_MAX);
const _: () = assert!(JOB_ITEMS_MAX * (WORK_LEN_MIN + TEMPS_MAX * TEMP_LEN) + EXTENT_HEAD <= CONTROL_LEN_MAX);

/// What is said between a coordinator and a pair of ends. Every message names the pair and the lease that it
/// comes under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobMessage {
    pub pair: PairId,
    pub lease: Lease,
    pub body: JobBody,
}

/// See [`JobMessage`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobBody {
    /// To a pair: it may work under this lease, and is heard within so long, milliseconds. From a pair: it
    /// lives.
    Lease {
        time: u32,
    },
    /// To a pair: this lease ended.
    LeaseEnded,
    Assign(Vec<Work>),
    GiveBack(Vec<Return>),
    /// The answer to one item of that; `from`: what lies behind it is given back.
    GaveBack {
        id: FileId,
        generation: Generation,
        offset: u64,
        from: Option<u64>,
    },
    Revoke {
        id: FileId,
        generation: Generation,
    },
    Begun {
        id: FileId,
        generation: Generation,
        found: bool,
    },
    Persisted {
        id: FileId,
        generation: Generation,
        offset: u64,
        subtrees: Vec<Subtree>,
        over: bool,
    },
    /// The value of a range that was to be read.
    Read {
        id: FileId,
        generation: Generation,
        offset: u64,
        value: Option<Cv>,
    },
    /// To a pair: its source is to be looked at. From a pair: it is what it was; the root that it made by
    /// itself, if it did.
    Seal {
        id: FileId,
        generation: Generation,
        root: Option<Root>,
    },
    Publish(Publication),
    /// It has its name, with this root if it is a file.
    Published {
        id: FileId,
        generation: Generation,
        root: Option<Root>,
    },
    /// The pair gives it no name.
    NotPublished {
        id: FileId,
        generation: Generation,
        why: Why,
    },
    /// To a pair: these are to be removed. From a pair, without any: they are.
    Discard {
        id: FileId,
        temps: Vec<Temp>,
    },
    FinishDir {
        dir: DirId,
        meta: Meta,
    },
    FinishedDir {
        dir: DirId,
        failure: Option<Failure>,
    },
}

/// Why a pair gives an entry no name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It is there already.
    Unchanged,
    /// The user forbade it.
    Skipped,
    /// The source is not what was announced: this generation is withdrawn, and another comes.
    Changed,
    /// The same, and none comes.
    GivenUp(Failure),
    /// The pair cannot. The stage is `Digest` where what was to be published is not what had been written.
    Failed(Failure),
}

impl JobBody {
    /// The number of its frames.
    pub fn kind(&self) -> u8 {
        match self {
            JobBody::Lease { .. } => kind::LEASE,
            JobBody::LeaseEnded => kind::LEASE_ENDED,
            JobBody::Assign(_) => kind::ASSIGN,
            JobBody::GiveBack(_) => kind::GIVE_BACK,
            JobBody::GaveBack { .. } => kind::GAVE_BACK,
            JobBody::Revoke { .. } => kind::REVOKE,
            JobBody::Begun { .. } => kind::BEGUN,
            JobBody::Persisted { .. } => kind::PERSISTED,
            JobBody::Read { .. } => kind::READ,
            JobBody::Seal { .. } => kind::SEAL,
            JobBody::Publish(_) => kind::PUBLISH,
            JobBody::Published { .. } => kind::PUBLISHED,
            JobBody::NotPublished { .. } => kind::NOT_PUBLISHED,
            JobBody::Discard { .. } => kind::DISCARD,
            JobBody::FinishDir { .. } => kind::FINISH_DIR,
            JobBody::FinishedDir { .. } => kind::FINISHED_DIR,
        }
    }
}

/// Appends the body of a message; its kind is [`JobBody::kind`].
///
/// # Panics
/// If a list is longer than its maximum: that is our own doing.
pub fn encode_job(message: &JobMessage, out: &mut Vec<u8>) {
    let w = &mut Writer::new(out);
    w.u16(message.pair.source.0);
    w.u16(message.pair.sink.0);
    w.u64(message.lease.0);
    match &message.body {
        JobBody::Lease { time } => w.u32(*time),
        JobBody::LeaseEnded => {}
        JobBody::Assign(works) => {
            w.count("works", works.len(), JOB_ITEMS_MAX);
            for work in works {
                write_file(w, work.id, work.generation);
                w.u8(work.kind as u8);
                w.u64(work.offset);
                w.u64(work.len);
                write_temp(w, work.temp);
                write_temp(w, work.from);
                write_temps(w, &work.former);
            }
        }
        JobBody::GiveBack(items) => {
            w.count("works wanted back", items.len(), JOB_ITEMS_MAX);
            for item in items {
                write_file(w, item.id, item.generation);
                w.u64(item.offset);
                w.u64(item.from);
            }
        }
        JobBody::GaveBack { id, generation, offset, from } => {
            write_file(w, *id, *generation);
            w.u64(*offset);
            w.bool(from.is_some());
            w.u64(from.unwrap_or(0));
        }
        JobBody::Revoke { id, generation } => write_file(w, *id, *generation),
        JobBody::Begun { id, generation, found } => {
            write_file(w, *id, *generation);
            w.bool(*found);
        }
        JobBody::Persisted { id, generation, offset, subtrees, over } => {
            write_file(w, *id, *generation);
            w.u64(*offset);
            w.bool(*over);
            w.count("subtrees", subtrees.len(), PERSISTED_MAX);
            for subtree in subtrees {
                w.u64(subtree.offset);
                w.u64(subtree.len);
                w.raw(&subtree.cv);
            }
        }
        JobBody::Read { id, generation, offset, value } => {
            write_file(w, *id, *generation);
            w.u64(*offset);
            write_value(w, value.as_ref());
        }
        JobBody::Seal { id, generation, root } | JobBody::Published { id, generation, root } => {
            write_file(w, *id, *generation);
            write_value(w, root.as_ref());
        }
        JobBody::Publish(publication) => {
            write_file(w, publication.id, publication.generation);
            write_temp(w, publication.temp);
            w.raw(&publication.root);
            match publication.way {
                Way::Rename => w.u8(0),
                Way::Copy { to } => {
                    w.u8(1);
                    write_temp(w, to);
                }
            }
            write_temps(w, &publication.former);
        }
        JobBody::NotPublished { id, generation, why } => {
            write_file(w, *id, *generation);
            match why {
                Why::Unchanged => w.u8(0),
                Why::Skipped => w.u8(1),
                Why::Changed => w.u8(2),
                Why::GivenUp(failure) => {
                    w.u8(3);
                    write_failure(w, failure);
                }
                Why::Failed(failure) => {
                    w.u8(4);
                    write_failure(w, failure);
                }
            }
        }
        JobBody::Discard { id, temps } => {
            w.u64(id.0);
            write_temps(w, temps);
        }
        JobBody::FinishDir { dir, meta } => {
            w.u64(dir.0);
            write_meta(w, meta);
        }
        JobBody::FinishedDir { dir, failure } => {
            w.u64(dir.0);
            w.bool(failure.is_some());
            if let Some(failure) = failure {
                write_failure(w, failure);
            }
        }
    }
}

/// Reads the body of a message of this kind.
///
/// # Errors
/// If it is none, or not sound.
pub fn decode_job(kind: u8, body: &[u8]) -> Result<JobMessage, WireError> {
    if body.len() > CONTROL_LEN_MAX {
        let (what, max) = ("message of a job", CONTROL_LEN_MAX as u64);
        return Err(WireError::TooLong { what, len: body.len() as u64, max });
    }
    let mut reader = Reader::new(body);
    let r = &mut reader;
    let pair = PairId { source: HostId(r.u16("source host")?), sink: HostId(r.u16("sink host")?) };
    let lease = Lease(r.u64("lease")?);
    let body = match kind {
        kind::LEASE => JobBody::Lease { time: r.u32("time of a lease")? },
        kind::LEASE_ENDED => JobBody::LeaseEnded,
        kind::ASSIGN => JobBody::Assign(r.list("works", JOB_ITEMS_MAX, WORK_LEN_MIN, read_work)?),
        kind::GIVE_BACK => {
            JobBody::GiveBack(r.list("works wanted back", JOB_ITEMS_MAX, RETURN_LEN, |r| {
                let (id, generation) = read_file(r)?;
                let (offset, from) = (read_offset(r)?, read_offset(r)?);
                if from < offset {
                    return Err(WireError::BadValue { what: "part wanted back", value: from });
                }
                Ok(Return { id, generation, offset, from })
            })?)
        }
        kind::GAVE_BACK => {
            let ((id, generation), offset) = (read_file(r)?, read_offset(r)?);
            let (gave, from) = (r.bool("part given back")?, read_offset(r)?);
            if from < if gave { offset } else { 0 } || (!gave && from > 0) {
                return Err(WireError::BadValue { what: "part given back", value: from });
            }
            JobBody::GaveBack { id, generation, offset, from: gave.then_some(from) }
        }
        kind::REVOKE => {
            let (id, generation) = read_file(r)?;
            JobBody::Revoke { id, generation }
        }
        kind::BEGUN => {
            let (id, generation) = read_file(r)?;
            JobBody::Begun { id, generation, found: r.bool("found")? }
        }
        kind::PERSISTED => {
            let ((id, generation), offset) = (read_file(r)?, read_offset(r)?);
            let over = r.bool("over")?;
            let subtrees = r.list("subtrees", PERSISTED_MAX, SUBTREE_LEN, |r| {
                let (offset, len) = read_range(r)?;
                if len == 0 {
                    return Err(WireError::BadValue { what: "length of a subtree", value: 0 });
                }
                Ok(Subtree { offset, len, cv: r.array("chaining value")? })
            })?;
            JobBody::Persisted { id, generation, offset, subtrees, over }
        }
        kind::READ => {
            let ((id, generation), offset) = (read_file(r)?, read_offset(r)?);
            JobBody::Read { id, generation, offset, value: read_value(r)? }
        }
        kind::SEAL => {
            let (id, generation) = read_file(r)?;
            JobBody::Seal { id, generation, root: read_value(r)? }
        }
        kind::PUBLISH => {
            let ((id, generation), temp) = (read_file(r)?, read_temp(r)?);
            let root = r.array("root")?;
            let way = match r.u8("way of a publication")? {
                0 => Way::Rename,
                1 => Way::Copy { to: read_temp(r)? },
                value => {
                    return Err(WireError::BadValue { what: "way of a publication", value: value.into() });
                }
            };
            let former = read_temps(r)?;
            JobBody::Publish(Publication { id, generation, temp, root, way, former })
        }
        kind::PUBLISHED => {
            let (id, generation) = read_file(r)?;
            JobBody::Published { id, generation, root: read_value(r)? }
        }
        kind::NOT_PUBLISHED => {
            let (id, generation) = read_file(r)?;
            let what = "why an entry has no name";
            let why = match r.u8(what)? {
                0 => Why::Unchanged,
                1 => Why::Skipped,
                2 => Why::Changed,
                3 => Why::GivenUp(read_failure(r)?),
                4 => Why::Failed(read_failure(r)?),
                value => return Err(WireError::BadValue { what, value: value.into() }),
            };
            JobBody::NotPublished { id, generation, why }
        }
        kind::DISCARD => JobBody::Discard { id: FileId(r.u64("entry")?), temps: read_temps(r)? },
        kind::FINISH_DIR => JobBody::FinishDir { dir: DirId(r.u64("directory")?), meta: read_meta(r)? },
        kind::FINISHED_DIR => {
            let dir = DirId(r.u64("directory")?);
            let failed = r.bool("failure of a directory")?;
            let failure = if failed { Some(read_failure(r)?) } else { None };
            JobBody::FinishedDir { dir, failure }
        }
        other => return Err(WireError::UnknownKind(other)),
    };
    reader.finish("message of a job")?;
    Ok(JobMessage { pair, lease, body })
}

fn write_file(w: &mut Writer<'_>, id: FileId, generation: Generation) {
    w.u64(id.0);
    w.u32(generation.0);
}

fn read_file(r: &mut Reader<'_>) -> Result<(FileId, Generation), WireError> {
    Ok((FileId(r.u64("entry")?), Generation(r.u32("generation")?)))
}

fn write_meta(w: &mut Writer<'_>, meta: &Meta) {
    w.u32(meta.mode);
    w.u32(meta.uid);
    w.u32(meta.gid);
    w.i64(meta.mtime.secs);
    w.u32(meta.mtime.nanos);
}

fn read_meta(r: &mut Reader<'_>) -> Result<Meta, WireError> {
    let [mode, uid, gid] = [r.u32("mode")?, r.u32("uid")?, r.u32("gid")?];
    let mtime = Timestamp { secs: r.i64("mtime")?, nanos: r.u32("nanoseconds of an mtime")? };
    match (mode, mtime.nanos) {
        (0..=0o7777, 0..1_000_000_000) => Ok(Meta { mode, uid, gid, mtime }),
        (_, nanos) => Err(WireError::BadValue { what: "mode or mtime", value: nanos.into() }),
    }
}

fn write_temp(w: &mut Writer<'_>, temp: Temp) {
    w.u32(temp.tag);
    w.u64(temp.number);
}

fn read_temp(r: &mut Reader<'_>) -> Result<Temp, WireError> {
    Ok(Temp { tag: r.u32("tag")?, number: r.u64("number of a temporary")? })
}

fn write_temps(w: &mut Writer<'_>, temps: &[Temp]) {
    w.count("temporaries", temps.len(), TEMPS_MAX);
    temps.iter().for_each(|temp| write_temp(w, *temp));
}

fn read_temps(r: &mut Reader<'_>) -> Result<Vec<Temp>, WireError> {
    r.list("temporaries", TEMPS_MAX, TEMP_LEN, read_temp)
}

fn write_value(w: &mut Writer<'_>, value: Option<&[u8; 32]>) {
    w.bool(value.is_some());
    if let Some(value) = value {
        w.raw(value);
    }
}

fn read_value(r: &mut Reader<'_>) -> Result<Option<[u8; 32]>, WireError> {
    let there = r.bool("value")?;
    Ok(if there { Some(r.array("value")?) } else { None })
}

fn read_offset(r: &mut Reader<'_>) -> Result<u64, WireError> {
    match r.u64("offset")? {
        offset if offset <= FILE_LEN_MAX => Ok(offset),
        value => Err(WireError::BadValue { what: "offset", value }),
    }
}

fn read_range(r: &mut Reader<'_>) -> Result<(u64, u64), WireError> {
    let (offset, len) = (read_offset(r)?, read_offset(r)?);
    match offset.checked_add(len).filter(|end| *end <= FILE_LEN_MAX) {
        Some(_) => Ok((offset, len)),
        None => Err(WireError::BadValue { what: "length of a range", value: len }),
    }
}

fn read_work(r: &mut Reader<'_>) -> Result<Work, WireError> {
    let (id, generation) = read_file(r)?;
    let kind = match r.u8("kind of a work")? {
        0 => WorkKind::Whole,
        1 => WorkKind::Begin,
        2 => WorkKind::Range,
        3 => WorkKind::Read,
        value => return Err(WireError::BadValue { what: "kind of a work", value: value.into() }),
    };
    let (offset, len) = read_range(r)?;
    let (temp, from, former) = (read_temp(r)?, read_temp(r)?, read_temps(r)?);
    Ok(Work { id, generation, kind, offset, len, temp, from, former })
}
