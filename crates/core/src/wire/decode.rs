//! Byte layout of control messages, reading; [`encode`](super::encode_message) is its mirror.
//!
//! In: the body of one frame. Out: a message in which every list, name, text, enum, range and time is legal.
//! Invariant: never panics, and allocates no more than a small multiple of the body's length.

use super::codec::Reader;
use super::encode::{
    CAPABILITY_LEN_MIN, CHOICE_LEN_MIN, DATA_EXTENT_LEN, DONE_LEN_MIN, EXTENT_LEN, FILE_LAYOUT_LEN,
    OWNER_LEN_MIN, POLICY_BITS, SEALED_LEN, SOURCE_ROOT_LEN_MIN, STATE_LEN_MIN, STREAM_FRAMES_LEN,
    SUBTREE_LEN, TARGET_COMPONENT_LEN_MIN, TARGET_HEALTH_LEN,
};
use super::entries::{ANNOUNCED_LEN_MIN, METADATA_LEN_MIN, read_announced, read_metadata};
use super::frame::{CONTROL_LEN_MAX, FILE_LEN_MAX, kind};
use super::parts::{read_health, read_meta, read_object_size, read_version};
use super::tables::{read_table, read_unwell};
use super::{
    ANNOUNCE_ENTRIES_MAX, CAPABILITIES_MAX, CAPABILITY_LEN_MAX, CHOICES_MAX, Capability, Change, Chosen,
    DoneItem, EndReport, Extent, FILE_SINK_TARGETS_MAX, Failure, FailureKind, FileLayout, FileState,
    HeldReport, Hello, ITEMS_MAX, LIVE_THREADS_MAX, Limits, LiveSettings, Message, NotKept,
    OWNER_NAME_LEN_MAX, Outcome, OwnerName, PATH_LEN_MAX, Placed, SINK_TARGETS_MAX, STREAMS_MAX,
    SUBTREES_MAX, SinkOptions, SourceRoot, TARGET_COMPONENTS_MAX, TRIAL_LEN_MAX, TargetHealth, Totals,
    WireError,
};
use crate::digest::Subtree;
use crate::entry::{Name, NameError};
use crate::extents::DataExtent;
use crate::ids::{DirId, FileId, Generation, HOSTS_MAX, Holder, SinkTarget, StreamId};
use crate::layout::{Component, Layout, STRIPES_MAX, Striping};
use crate::stage::{Processors, StageTime};

/// What a control frame says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    Message(Message),
    /// A kind that this version does not know and that may be ignored.
    Ignored,
}

/// Reads the body of a control frame of `kind`. The whole body must be used.
///
/// Errors: join, joined, resume and data frames are no messages: `BadValue`.
pub fn decode_message(kind: u8, body: &[u8]) -> Result<Decoded, WireError> {
    if body.len() > CONTROL_LEN_MAX {
        let (len, max) = (body.len() as u64, CONTROL_LEN_MAX as u64);
        return Err(WireError::TooLong { what: "control frame length", len, max });
    }
    let mut r = Reader::new(body);
    let Some(message) = read_message(kind, &mut r)? else { return Ok(Decoded::Ignored) };
    r.finish("message")?;
    Ok(Decoded::Message(message))
}

/// `None`: an unknown kind that may be ignored.
fn read_message(kind: u8, r: &mut Reader<'_>) -> Result<Option<Message>, WireError> {
    let items = ITEMS_MAX;
    Ok(Some(match kind {
        kind::HELLO => Message::Hello(read_hello(r)?),
        kind::SOURCE_ROOTS => {
            Message::SourceRoots(r.list("source roots", items, SOURCE_ROOT_LEN_MIN, read_root)?)
        }
        kind::SOURCES => Message::Sources {
            policy: read_policy(r)?,
            roots: r.list("source roots", items, SOURCE_ROOT_LEN_MIN, read_root)?,
        },
        kind::DESTINATION => Message::Destination {
            wait: r.bool("destination: wait")?,
            resumed: r.bool("destination: resumed")?,
            epoch: r.u32("destination: epoch")?,
            rename: read_name_or_none(r, "destination: name")?,
        },
        kind::ANNOUNCE => Message::Announce(r.list(
            "announced entries",
            ANNOUNCE_ENTRIES_MAX,
            ANNOUNCED_LEN_MIN,
            read_announced,
        )?),
        kind::HOLES => {
            let (id, generation) = read_version(r)?;
            let last = r.bool("holes: last")?;
            let extents = r.list("data extents", items, DATA_EXTENT_LEN, |r| {
                let (offset, len) = read_range(r, "data extent")?;
                Ok(DataExtent { offset, len })
            })?;
            Message::Holes { id, generation, extents, last }
        }
        kind::METADATA => {
            Message::Metadata(r.list("pieces of metadata", items, METADATA_LEN_MIN, read_metadata)?)
        }
        kind::FILE_LAYOUT => {
            Message::FileLayout(r.list("layouts of files", items, FILE_LAYOUT_LEN, read_file_layout)?)
        }
        kind::DIR_END => {
            Message::DirEnd(r.list("ended directories", items, 8, |r| r.u64("directory id").map(DirId))?)
        }
        kind::STATE => Message::FileStates(r.list("file states", items, STATE_LEN_MIN, read_state)?),
        kind::SEALED => Message::Sealed(r.list("sealed files", items, SEALED_LEN, |r| {
            let (id, generation) = read_version(r)?;
            Ok((id, generation, r.u16("pass of a sealed file")?))
        })?),
        kind::WITHDRAW => {
            let (id, generation) = read_version(r)?;
            let retry = r.bool("withdraw: retry")?;
            let failed = r.bool("withdraw: failed")?;
            let failure = if failed { Some(read_failure(r)?) } else { None };
            Message::Withdraw { id, generation, retry, failure }
        }
        kind::TROUBLE => {
            let path = r.bytes("path", PATH_LEN_MAX)?.into();
            Message::Trouble { path, failure: read_failure(r)? }
        }
        kind::END => Message::End(Totals {
            files: r.u64("total of files")?,
            dirs: r.u64("total of directories")?,
            symlinks: r.u64("total of symlinks")?,
            bytes: r.u64("total of bytes")?,
        }),
        kind::GRANT => {
            let by = read_lease(r)?;
            Message::Grant {
                by,
                sink_target: read_sink_target(r, "grant: sink target")?.0,
                total: r.u64("grant: total")?,
            }
        }
        kind::WRITTEN => Message::Written {
            bytes: r.u64("written: bytes")?,
            frames: r.list("streams", items, STREAM_FRAMES_LEN, |r| {
                Ok((StreamId(r.u16("written: stream")?), r.u64("written: frames")?))
            })?,
        },
        kind::DURABLE => Message::Durable {
            by: read_lease(r)?,
            extents: r.list("durable extents", items, EXTENT_LEN, read_extent)?,
        },
        kind::DONE => Message::Done(r.list("done entries", items, DONE_LEN_MIN, read_done)?),
        kind::NOT_HELD => {
            Message::NotHeld(r.list("extents that are not held", items, EXTENT_LEN, read_extent)?)
        }
        kind::RESEND => Message::Resend(r.list("extents to send again", items, EXTENT_LEN, read_extent)?),
        kind::STREAM_CLOSED => Message::StreamClosed {
            stream: StreamId(r.u16("closed stream")?),
            frames: r.u64("closed stream: frames")?,
        },
        kind::RECEIVED => Message::Received(r.u64("received: number")?),
        kind::STREAMS => match r.u16("streams: count")? {
            count @ 1..=STREAMS_MAX => Message::Streams(count),
            count => return Err(WireError::BadValue { what: "streams: count", value: count.into() }),
        },
        kind::TARGET_HEALTH => Message::TargetHealth(r.list("targets", items, TARGET_HEALTH_LEN, |r| {
            Ok(TargetHealth {
                sink_target: match read_sink_target(r, "sink target")? {
                    SinkTarget::ANY => return Err(WireError::BadValue { what: "sink target", value: 0 }),
                    sink_target => sink_target,
                },
                health: read_health(r)?,
                waiting: r.u32("objects that wait")?,
                in_flight: r.u32("objects in flight")?,
                service: r.u64("service time")?,
                best: r.u64("best service time")?,
                done: r.u64("objects done")?,
            })
        })?),
        kind::FILE_TARGETS => {
            let (id, generation) = read_version(r)?;
            let mut room = FILE_SINK_TARGETS_MAX;
            let components = r.list("components", TARGET_COMPONENTS_MAX, TARGET_COMPONENT_LEN_MIN, |r| {
                let (start, stripe_size) = (r.u64("start of a component")?, r.u64("stripe of a component")?);
                let sink_target = |r: &mut Reader<'_>| read_sink_target(r, "sink target of a target");
                let targets = r.list("sink targets of a file", room, 2, sink_target)?;
                room -= targets.len();
                Ok(Component { start, stripe_size, targets })
            })?;
            let bad = |error| WireError::BadLayout { what: "where a file lies", source: error };
            Message::FileTargets { id, generation, layout: Layout::new(components).map_err(bad)? }
        }
        kind::OWNER_NAMES => Message::OwnerNames(r.list("names of owners", items, OWNER_LEN_MIN, |r| {
            let (group, id) = (r.bool("owner: a group")?, r.u32("number of an owner")?);
            let what = "name of an owner";
            let name: Box<[u8]> = r.bytes(what, OWNER_NAME_LEN_MAX)?.into();
            match name.is_empty() {
                true => Err(WireError::BadValue { what, value: 0 }),
                false => Ok(OwnerName { group, id, name }),
            }
        })?),
        kind::OBJECT_LEN => Message::ObjectLen(read_object_size(r)?),
        kind::TIME_GRAIN => match r.u32("grain of times")? {
            0 => return Err(WireError::BadValue { what: "grain of times", value: 0 }),
            grain => Message::TimeGrain(grain),
        },
        kind::PLACED => Message::Placed(Placed {
            targets: r.u16("targets that were written to")?,
            files: r.u64("files that got their stripes")?,
            others: r.u64("files that did not")?,
            why: r.text("reason of that")?,
        }),
        kind::NOTICE => Message::Notice { text: r.text("notice")? },
        kind::LIVE_SETTINGS => Message::LiveSettings(LiveSettings {
            paused: r.bool("live settings: paused")?,
            rate: r.u64("live settings: rate")?,
            streams: read_live_setting(r, "live settings: streams", STREAMS_MAX)?,
            readers: read_live_setting(r, "live settings: readers", LIVE_THREADS_MAX)?,
            writers: read_live_setting(r, "live settings: writers", LIVE_THREADS_MAX)?,
        }),
        kind::TARGET_TABLE => Message::TargetTable(read_table(r)?),
        kind::ASK_TABLE => Message::AskTable,
        kind::UNWELL_TARGETS => Message::UnwellTargets(read_unwell(r)?),
        kind::CHOICES => Message::Choices(r.list("choices", CHOICES_MAX, CHOICE_LEN_MIN, |r| {
            Ok(Chosen { name: r.text("name of a choice")?, value: r.text("choice")? })
        })?),
        kind::PROCESSORS => Message::Processors(read_processors(r)?),
        kind::TRIAL => Message::Trial(r.bytes("trial", TRIAL_LEN_MAX)?.into()),
        kind::STOP => Message::Stop { reason: r.text("reason to stop")? },
        kind::STOPPED => Message::Stopped,
        kind::COMPLETE => Message::Complete,
        kind::REPORT => Message::Report(Box::new(read_report(r)?)),
        kind::ABORT => Message::Abort(read_failure(r)?),
        kind::PING => Message::Ping(r.u64("ping")?),
        kind::PONG => Message::Pong(r.u64("pong")?),
        kind::JOIN | kind::JOINED | kind::RESUME | kind::DATA | kind::DATA_END => {
            return Err(WireError::BadValue { what: "kind of a message", value: kind.into() });
        }
        ignorable if ignorable >= kind::IGNORABLE => return Ok(None),
        other => return Err(WireError::UnknownKind(other)),
    }))
}

fn read_hello(r: &mut Reader<'_>) -> Result<Hello, WireError> {
    let version_min = r.u16("oldest version")?;
    let version_max = r.u16("newest version")?;
    if version_min == 0 || version_min > version_max {
        return Err(WireError::BadValue { what: "oldest version", value: version_min.into() });
    }
    let session = r.array("hello: session")?;
    let limits = Limits {
        object_len: r.u32("limit of object length")?,
        entries: r.u32("limit of entries")?,
        streams: r.u16("limit of streams")?,
    };
    let capabilities = r.list("capabilities", CAPABILITIES_MAX, CAPABILITY_LEN_MIN, |r| {
        Ok(Capability {
            kind: r.u16("capability kind")?,
            required: r.bool("capability: required")?,
            value: r.bytes("capability value", CAPABILITY_LEN_MAX)?.into(),
        })
    })?;
    Ok(Hello { version_min, version_max, session, capabilities, limits })
}

/// The number of a sink target.
fn read_sink_target(r: &mut Reader<'_>, what: &'static str) -> Result<SinkTarget, WireError> {
    match r.u16(what)? {
        sink_target if sink_target < SINK_TARGETS_MAX => Ok(SinkTarget(sink_target)),
        sink_target => {
            Err(WireError::TooLong { what, len: sink_target.into(), max: u64::from(SINK_TARGETS_MAX) - 1 })
        }
    }
}

/// A count that somebody can ask for while the session runs.
fn read_live_setting(r: &mut Reader<'_>, what: &'static str, max: u16) -> Result<u16, WireError> {
    match r.u16(what)? {
        count if count <= max => Ok(count),
        count => Err(WireError::TooLong { what, len: count.into(), max: max.into() }),
    }
}

fn read_policy(r: &mut Reader<'_>) -> Result<SinkOptions, WireError> {
    let bits = r.u16("policy")?;
    if bits & !POLICY_BITS != 0 {
        return Err(WireError::BadValue { what: "policy", value: bits.into() });
    }
    let on = |bit: u16| bits & 1 << bit != 0;
    Ok(SinkOptions {
        durable: on(0),
        force: on(1),
        no_clobber: on(2),
        update: on(3),
        owner: on(4),
        times: on(5),
        verify: on(6),
        trust: on(7),
        xattrs: on(8),
        acls: on(9),
    })
}

fn read_root(r: &mut Reader<'_>) -> Result<SourceRoot, WireError> {
    match r.u8("kind of a source root")? {
        tag @ (1 | 2) => Ok(SourceRoot::Named { name: r.name("name of a source root")?, is_dir: tag == 2 }),
        3 => Ok(SourceRoot::Contents {
            of: read_name_or_none(r, "name of a source root")?,
            meta: read_meta(r)?,
        }),
        other => Err(WireError::BadValue { what: "kind of a source root", value: other.into() }),
    }
}

/// A name whose length 0 means none.
fn read_name_or_none(r: &mut Reader<'_>, what: &'static str) -> Result<Option<Name>, WireError> {
    match r.name(what) {
        Ok(name) => Ok(Some(name)),
        Err(WireError::BadName { source: NameError::Empty, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn read_file_layout(r: &mut Reader<'_>) -> Result<FileLayout, WireError> {
    let (id, generation) = read_version(r)?;
    let object_size = read_object_size(r)?;
    let (stripe_size, stripe_count) = (r.u64("stripe size")?, r.u16("stripe count")?);
    let striping = match (stripe_size, usize::from(stripe_count)) {
        (0, 0) => None,
        (1.., 1..=STRIPES_MAX) => Some(Striping { stripe_size, stripe_count }),
        _ => return Err(WireError::BadValue { what: "stripe count", value: stripe_count.into() }),
    };
    Ok(FileLayout { id, generation, object_size, striping })
}

/// A host that there can be, and its lease.
fn read_lease(r: &mut Reader<'_>) -> Result<Holder, WireError> {
    let (host, epoch) = (r.u16("host")?, r.u32("lease")?);
    match host < HOSTS_MAX {
        true => Ok(Holder { host, epoch }),
        false => Err(WireError::TooLong { what: "host", len: host.into(), max: u64::from(HOSTS_MAX) - 1 }),
    }
}

fn read_state(r: &mut Reader<'_>) -> Result<(FileId, Generation, FileState), WireError> {
    let (id, generation) = read_version(r)?;
    let state = match r.u8("file state")? {
        0 => FileState::Fresh,
        1 => FileState::Unchanged,
        2 => FileState::Skipped,
        3 => FileState::Held {
            verify: r.bool("held: verify")?,
            subtrees: r.list("held subtrees", SUBTREES_MAX, SUBTREE_LEN, |r| {
                let (offset, len) = read_range(r, "held subtree")?;
                Ok(Subtree { offset, len, cv: r.array("held chaining value")? })
            })?,
        },
        4 => FileState::Planned(read_change(r)?),
        5 => FileState::Amended(read_change(r)?),
        6 => FileState::Finished,
        7 => FileState::Cloned,
        other => return Err(WireError::BadValue { what: "file state", value: other.into() }),
    };
    Ok((id, generation, state))
}

fn read_change(r: &mut Reader<'_>) -> Result<Change, WireError> {
    let first = u16::from(r.u8("change")?);
    let bits = match first & 0x80 {
        0 => first,
        _ => match r.u8("change")? {
            0 => return Err(WireError::BadValue { what: "change", value: first.into() }),
            more => first & 0x7f | u16::from(more) << 7,
        },
    };
    Change::from_bits(bits).ok_or(WireError::BadValue { what: "change", value: bits.into() })
}

/// Offset and length of a range that ends within the longest file.
fn read_range(r: &mut Reader<'_>, what: &'static str) -> Result<(u64, u64), WireError> {
    let (offset, len) = (r.u64(what)?, r.u64(what)?);
    match offset.checked_add(len) {
        Some(end) if end <= FILE_LEN_MAX => Ok((offset, len)),
        _ => Err(WireError::BadValue { what, value: offset }),
    }
}

fn read_extent(r: &mut Reader<'_>) -> Result<Extent, WireError> {
    let (id, generation) = read_version(r)?;
    let (offset, len) = read_range(r, "extent")?;
    Ok(Extent { id, generation, offset, len })
}

fn read_done(r: &mut Reader<'_>) -> Result<DoneItem, WireError> {
    let (id, generation) = read_version(r)?;
    let outcome = match r.u8("outcome")? {
        0 => Outcome::Done { change: read_change(r)?, root: None },
        1 => Outcome::Done { change: read_change(r)?, root: Some(r.array("root of a done file")?) },
        2 => Outcome::Failed(read_failure(r)?),
        3 => Outcome::Persisted,
        other => return Err(WireError::BadValue { what: "outcome", value: other.into() }),
    };
    Ok(DoneItem { id, generation, outcome })
}

pub(super) fn read_failure(r: &mut Reader<'_>) -> Result<Failure, WireError> {
    let stage = match r.u8("stage of a failure")? {
        1 => FailureKind::Walk,
        2 => FailureKind::Open,
        3 => FailureKind::Read,
        4 => FailureKind::Changed,
        5 => FailureKind::Create,
        6 => FailureKind::Write,
        7 => FailureKind::Sync,
        8 => FailureKind::Publish,
        9 => FailureKind::Metadata,
        10 => FailureKind::Digest,
        11 => FailureKind::Protocol,
        12 => FailureKind::Usage,
        13 => FailureKind::Vanished,
        14 => FailureKind::Local,
        15 => FailureKind::Network,
        other => return Err(WireError::BadValue { what: "stage of a failure", value: other.into() }),
    };
    Ok(Failure { kind: stage, errno: r.i32("errno")?, text: r.text("text of a failure")? })
}

fn read_processors(r: &mut Reader<'_>) -> Result<Processors, WireError> {
    let (count, busy) = (r.u16("processors: count")?, r.u16("processors: busy")?);
    if busy > Processors::ALL {
        return Err(WireError::BadValue { what: "processors: busy", value: busy.into() });
    }
    Ok(Processors { count, busy })
}

fn read_report(r: &mut Reader<'_>) -> Result<EndReport, WireError> {
    let cpu = r.u64("report: cpu")?;
    let rss_max = r.u64("report: rss")?;
    let mut stages = [StageTime::default(); 5];
    for stage in &mut stages {
        *stage = StageTime {
            busy: r.u64("report: busy")?,
            starved: r.u64("report: starved")?,
            blocked: r.u64("report: blocked")?,
        };
    }
    let strays = r.u64("report: strays")?;
    let payload = r.u64("report: payload")?;
    let objects_resent = r.u64("report: objects sent again")?;
    let amended = r.u64("report: metadata only")?;
    let prefixes = r.u64("report: prefixes")?;
    let prefix_bytes = r.u64("report: bytes of prefixes")?;
    let mut not_kept = [0; NotKept::COUNT];
    for count in &mut not_kept {
        *count = r.u64("report: not kept")?;
    }
    let held = HeldReport {
        checked: r.u64("report: checked")?,
        wrong: r.u64("report: found wrong")?,
        trusted: r.u64("report: trusted")?,
        time: r.u64("report: time of checking")?,
    };
    Ok(EndReport {
        cpu,
        rss_max,
        stages,
        strays,
        payload,
        objects_resent,
        amended,
        prefixes,
        prefix_bytes,
        not_kept,
        held,
    })
}
