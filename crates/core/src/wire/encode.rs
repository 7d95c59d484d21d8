//! Byte layout of control messages, writing; [`decode`](super::decode_message) is its mirror.
//!
//! Invariant: a body fits [`CONTROL_LEN_MAX`]. Lists of small items do at their named maximum (checked at
//! build time); lists of large items are bounded by bytes too. [`Message::split`] cuts any list so.

use super::codec::Writer;
use super::entries::{announced_len, metadata_len, write_announced, write_metadata};
use super::frame::{CONTROL_LEN_MAX, FILE_LEN_MAX, frame, kind, object_size_is_legal};
use super::parts::{LIST_LEN_MAX, META_LEN, health_number, write_meta};
use super::tables::{write_table, write_unwell};
use super::{
    ANNOUNCE_ENTRIES_MAX, CAPABILITIES_MAX, CAPABILITY_LEN_MAX, CHOICES_MAX, Change, Chosen, DoneItem,
    EndReport, Extent, FILE_SINK_TARGETS_MAX, Failure, FailureKind, FileState, HeldReport, Hello, ITEMS_MAX,
    LIVE_THREADS_MAX, LiveSettings, Message, OWNER_NAME_LEN_MAX, Outcome, OwnerName, PATH_LEN_MAX, Placed,
    ROOTS_PART_MAX, STREAMS_MAX, SUBTREES_MAX, SinkOptions, SourceRoot, TARGET_COMPONENTS_MAX, TEXT_LEN_MAX,
    TRIAL_LEN_MAX, Totals,
};
use crate::entry::{NAME_LEN_MAX, Name};
use crate::ids::{FileId, Generation, HOSTS_MAX, Holder, SessionEpoch, StreamId};
use crate::stage::Processors;

/// Bytes of the count of a list.
const COUNT_LEN: usize = 2;
pub(super) const STATE_LEN_MIN: usize = 13;
pub(super) const DONE_LEN_MIN: usize = 13;
pub(super) const SOURCE_ROOT_LEN_MIN: usize = 2;
const SOURCE_ROOT_LEN_MAX: usize = 2 + NAME_LEN_MAX + META_LEN;
pub(super) const CAPABILITY_LEN_MIN: usize = 5;
pub(super) const SUBTREE_LEN: usize = 48;
pub(super) const EXTENT_LEN: usize = 28;
pub(super) const DATA_EXTENT_LEN: usize = 16;
pub(super) const SEALED_LEN: usize = 14;
pub(super) const FILE_LAYOUT_LEN: usize = 26;
/// Without its name.
pub(super) const OWNER_LEN_MIN: usize = 7;
pub(super) const STREAM_FRAMES_LEN: usize = 10;
pub(super) const TARGET_HEALTH_LEN: usize = 35;
pub(super) const TARGET_COMPONENT_LEN_MIN: usize = 20;
/// Two texts.
pub(super) const CHOICE_LEN_MIN: usize = 4;

// Lists of small items fit at their maximum...
const _: () = assert!(COUNT_LEN + ITEMS_MAX * EXTENT_LEN <= LIST_LEN_MAX);
const _: () = assert!(COUNT_LEN + ITEMS_MAX * TARGET_HEALTH_LEN <= LIST_LEN_MAX);
const _: () = assert!(COUNT_LEN + ITEMS_MAX * FILE_LAYOUT_LEN <= LIST_LEN_MAX);
const _: () =
    assert!(TARGET_COMPONENTS_MAX * TARGET_COMPONENT_LEN_MIN + 2 * FILE_SINK_TARGETS_MAX <= LIST_LEN_MAX);
const _: () = assert!(CAPABILITIES_MAX * (CAPABILITY_LEN_MIN + CAPABILITY_LEN_MAX) <= LIST_LEN_MAX);
const _: () = assert!(CHOICES_MAX * (CHOICE_LEN_MIN + 2 * TEXT_LEN_MAX) <= LIST_LEN_MAX);
// ...and so does one item of the large ones.
const _: () = assert!(STATE_LEN_MIN + 3 + SUBTREES_MAX * SUBTREE_LEN <= LIST_LEN_MAX);
const _: () = assert!(DONE_LEN_MIN + 7 + TEXT_LEN_MAX <= LIST_LEN_MAX);
const _: () = assert!(ROOTS_PART_MAX <= ITEMS_MAX && ROOTS_PART_MAX * SOURCE_ROOT_LEN_MAX <= LIST_LEN_MAX);
// Counts are u16.
const _: () = assert!(ITEMS_MAX <= u16::MAX as usize && SUBTREES_MAX <= u16::MAX as usize);

/// Bytes that an item takes in a `State`. Items of one message: at most [`ITEMS_MAX`] and [`LIST_LEN_MAX`]
/// bytes.
pub fn state_len(item: &(FileId, Generation, FileState)) -> usize {
    match &item.2 {
        FileState::Fresh
        | FileState::Unchanged
        | FileState::Skipped
        | FileState::Finished
        | FileState::Cloned => STATE_LEN_MIN,
        FileState::Planned(change) | FileState::Amended(change) => STATE_LEN_MIN + change_len(*change),
        FileState::Held { subtrees, .. } => STATE_LEN_MIN + 3 + subtrees.len() * SUBTREE_LEN,
    }
}

/// Bytes that an item takes in a `Done`. Items of one message: at most [`ITEMS_MAX`] and [`LIST_LEN_MAX`]
/// bytes.
pub fn done_len(item: &DoneItem) -> usize {
    match &item.outcome {
        Outcome::Persisted => DONE_LEN_MIN,
        Outcome::Done { root: None, change } => DONE_LEN_MIN + change_len(*change),
        Outcome::Done { root: Some(root), change } => DONE_LEN_MIN + change_len(*change) + root.len(),
        Outcome::Failed(failure) => DONE_LEN_MIN + 7 + failure.text.len().min(TEXT_LEN_MAX),
    }
}

impl Message {
    /// Cuts the list of a message so that each part can be sent; what fits already comes back as it is.
    ///
    /// Edge: `Hello` and `Written` mean their list as a whole and are never cut; nor is the list of
    /// subtrees in one `FileState::Held`. Their senders hold to the maxima. `Sources` comes last, behind
    /// `SourceRoots`.
    pub fn split(self) -> Vec<Message> {
        let items = ITEMS_MAX;
        match self {
            Message::Announce(list) => cut(list, ANNOUNCE_ENTRIES_MAX, announced_len, Message::Announce),
            Message::FileStates(list) => cut(list, items, state_len, Message::FileStates),
            Message::Done(list) => cut(list, items, done_len, Message::Done),
            Message::DirEnd(list) => cut(list, items, |_| 8, Message::DirEnd),
            Message::Sealed(list) => cut(list, items, |_| SEALED_LEN, Message::Sealed),
            Message::Durable { by, extents } => {
                cut(extents, items, |_| EXTENT_LEN, |extents| Message::Durable { by, extents })
            }
            Message::Resend(list) => cut(list, items, |_| EXTENT_LEN, Message::Resend),
            Message::NotHeld(list) => cut(list, items, |_| EXTENT_LEN, Message::NotHeld),
            Message::FileLayout(list) => cut(list, items, |_| FILE_LAYOUT_LEN, Message::FileLayout),
            Message::Metadata(list) => cut(list, items, metadata_len, Message::Metadata),
            Message::OwnerNames(list) => {
                cut(list, items, |o| OWNER_LEN_MIN + o.name.len(), Message::OwnerNames)
            }
            Message::TargetHealth(list) => cut(list, items, |_| TARGET_HEALTH_LEN, Message::TargetHealth),
            Message::Sources { mut roots, policy } if roots.len() > ROOTS_PART_MAX => {
                let last = roots.split_off((roots.len() - 1) / ROOTS_PART_MAX * ROOTS_PART_MAX);
                let ahead = roots.chunks(ROOTS_PART_MAX).map(|part| Message::SourceRoots(part.into()));
                ahead.chain([Message::Sources { roots: last, policy }]).collect()
            }
            other => vec![other],
        }
    }
}

fn cut<T>(
    list: Vec<T>,
    items_max: usize,
    len_of: impl Fn(&T) -> usize,
    message: impl Fn(Vec<T>) -> Message,
) -> Vec<Message> {
    if list.len() <= items_max && list.iter().map(&len_of).sum::<usize>() <= LIST_LEN_MAX {
        return vec![message(list)];
    }
    let mut messages = Vec::new();
    let mut part = Vec::new();
    let mut part_len = 0;
    for item in list {
        let len = len_of(&item);
        if part.len() == items_max || part_len + len > LIST_LEN_MAX {
            messages.push(message(std::mem::take(&mut part)));
            part_len = 0;
        }
        part_len += len;
        part.push(item);
    }
    messages.push(message(part));
    messages
}

/// The frame of a message: header and body.
///
/// # Panics
/// As [`encode_message`].
pub fn encode_frame(message: &Message, stream: StreamId, epoch: SessionEpoch, seq: u64) -> Vec<u8> {
    let mut body = Vec::new();
    let kind = encode_message(message, &mut body);
    frame(kind, stream, epoch, seq, &body)
}

/// Appends the body of a message to `out`; returns its kind. Texts over [`TEXT_LEN_MAX`] are cut at a
/// character's edge, nanoseconds of a confused file system are cut to a second's last.
///
/// # Panics
/// If the peer would refuse it, which is our own broken invariant: a list over its maximum, a body over
/// [`CONTROL_LEN_MAX`], an extent or file past [`FILE_LEN_MAX`], an illegal object size, an announced root.
/// Also a symlink target that is longer than `LINK_LEN_MAX`: whoever reads links holds to it.
pub fn encode_message(message: &Message, out: &mut Vec<u8>) -> u8 {
    let start = out.len();
    let mut w = Writer::new(out);
    let kind = write_message(&mut w, message);
    let len = out.len() - start;
    assert!(len <= CONTROL_LEN_MAX, "own message of kind {kind:#04x} takes {len} bytes; split it");
    kind
}

fn write_message(w: &mut Writer<'_>, message: &Message) -> u8 {
    match message {
        Message::Hello(hello) => {
            write_hello(w, hello);
            kind::HELLO
        }
        Message::SourceRoots(roots) => {
            list(w, "source roots", ITEMS_MAX, roots, write_root);
            kind::SOURCE_ROOTS
        }
        Message::Sources { roots, policy } => {
            w.u16(policy_bits(policy));
            list(w, "source roots", ITEMS_MAX, roots, write_root);
            kind::SOURCES
        }
        Message::Destination { wait, rename, epoch, resumed } => {
            w.bool(*wait);
            w.bool(*resumed);
            w.u32(*epoch);
            write_name_or_none(w, rename.as_ref());
            kind::DESTINATION
        }
        Message::Announce(entries) => {
            list(w, "announced entries", ANNOUNCE_ENTRIES_MAX, entries, write_announced);
            kind::ANNOUNCE
        }
        Message::Holes { id, generation, extents, last } => {
            w.u64(id.0);
            w.u32(generation.0);
            w.bool(*last);
            list(w, "data extents", ITEMS_MAX, extents, |w, e| write_range(w, e.offset, e.len));
            kind::HOLES
        }
        Message::Metadata(pieces) => {
            list(w, "pieces of metadata", ITEMS_MAX, pieces, write_metadata);
            kind::METADATA
        }
        Message::OwnerNames(owners) => {
            list(w, "names of owners", ITEMS_MAX, owners, |w, OwnerName { group, id, name }| {
                w.bool(*group);
                w.u32(*id);
                w.bytes("name of an owner", name, OWNER_NAME_LEN_MAX);
            });
            kind::OWNER_NAMES
        }
        Message::FileLayout(files) => {
            list(w, "layouts of files", ITEMS_MAX, files, |w, file| {
                assert!(object_size_is_legal(file.object_size), "own object size {}", file.object_size);
                w.u64(file.id.0);
                w.u32(file.generation.0);
                w.u32(file.object_size);
                w.u64(file.striping.map_or(0, |striping| striping.stripe_size));
                w.u16(file.striping.map_or(0, |striping| striping.stripe_count));
            });
            kind::FILE_LAYOUT
        }
        Message::DirEnd(dirs) => {
            list(w, "ended directories", ITEMS_MAX, dirs, |w, dir| w.u64(dir.0));
            kind::DIR_END
        }
        Message::FileStates(items) => {
            list(w, "file states", ITEMS_MAX, items, write_state);
            kind::STATE
        }
        Message::Sealed(items) => {
            list(w, "sealed files", ITEMS_MAX, items, |w, (id, generation, pass)| {
                w.u64(id.0);
                w.u32(generation.0);
                w.u16(*pass);
            });
            kind::SEALED
        }
        Message::Withdraw { id, generation, retry, failure } => {
            w.u64(id.0);
            w.u32(generation.0);
            w.bool(*retry);
            w.bool(failure.is_some());
            if let Some(failure) = failure {
                write_failure(w, failure);
            }
            kind::WITHDRAW
        }
        Message::Trouble { path, failure } => {
            // A path is for people; a longer one than fits is cut.
            w.bytes("path", &path[..path.len().min(PATH_LEN_MAX)], PATH_LEN_MAX);
            write_failure(w, failure);
            kind::TROUBLE
        }
        Message::End(Totals { files, dirs, symlinks, bytes }) => {
            for total in [files, dirs, symlinks, bytes] {
                w.u64(*total);
            }
            kind::END
        }
        Message::Grant { by, sink_target, total } => {
            write_lease(w, *by);
            w.u16(*sink_target);
            w.u64(*total);
            kind::GRANT
        }
        Message::Written { bytes, frames } => {
            w.u64(*bytes);
            list(w, "streams", ITEMS_MAX, frames, |w, (stream, frames)| {
                w.u16(stream.0);
                w.u64(*frames);
            });
            kind::WRITTEN
        }
        Message::Durable { by, extents } => {
            write_lease(w, *by);
            list(w, "durable extents", ITEMS_MAX, extents, write_extent);
            kind::DURABLE
        }
        Message::Done(items) => {
            list(w, "done entries", ITEMS_MAX, items, write_done);
            kind::DONE
        }
        Message::Resend(extents) => {
            list(w, "extents to send again", ITEMS_MAX, extents, write_extent);
            kind::RESEND
        }
        Message::NotHeld(extents) => {
            list(w, "extents that are not held", ITEMS_MAX, extents, write_extent);
            kind::NOT_HELD
        }
        Message::StreamClosed { stream, frames } => {
            w.u16(stream.0);
            w.u64(*frames);
            kind::STREAM_CLOSED
        }
        Message::Received(number) => {
            w.u64(*number);
            kind::RECEIVED
        }
        Message::Streams(count) => {
            w.u16(*count);
            kind::STREAMS
        }
        Message::TargetHealth(targets) => {
            list(w, "targets", ITEMS_MAX, targets, |w, t| {
                w.u16(t.sink_target.0);
                w.u8(health_number(t.health));
                w.u32(t.waiting);
                w.u32(t.in_flight);
                w.u64(t.service);
                w.u64(t.best);
                w.u64(t.done);
            });
            kind::TARGET_HEALTH
        }
        Message::FileTargets { id, generation, layout } => {
            let components = layout.components();
            let sink_targets = components.iter().map(|c| c.targets.len()).sum::<usize>();
            assert!(sink_targets <= FILE_SINK_TARGETS_MAX, "own layout of {sink_targets} sink targets");
            w.u64(id.0);
            w.u32(generation.0);
            list(w, "components", TARGET_COMPONENTS_MAX, components, |w, c| {
                w.u64(c.start);
                w.u64(c.stripe_size);
                list(w, "sink targets of a file", FILE_SINK_TARGETS_MAX, &c.targets, |w, sink_target| {
                    w.u16(sink_target.0)
                });
            });
            kind::FILE_TARGETS
        }
        Message::ObjectLen(len) => {
            assert!(object_size_is_legal(*len), "own object length {len}");
            w.u32(*len);
            kind::OBJECT_LEN
        }
        Message::TimeGrain(grain) => {
            assert!(*grain > 0, "own times have a grain");
            w.u32(*grain);
            kind::TIME_GRAIN
        }
        Message::Placed(Placed { targets, files, others, why }) => {
            w.u16(*targets);
            w.u64(*files);
            w.u64(*others);
            w.text(why);
            kind::PLACED
        }
        Message::Notice { text } => {
            w.text(text);
            kind::NOTICE
        }
        Message::LiveSettings(LiveSettings { paused, rate, streams, readers, writers }) => {
            assert!(
                *streams <= STREAMS_MAX && (*readers).max(*writers) <= LIVE_THREADS_MAX,
                "own settings are legal"
            );
            w.bool(*paused);
            w.u64(*rate);
            for count in [streams, readers, writers] {
                w.u16(*count);
            }
            kind::LIVE_SETTINGS
        }
        Message::TargetTable(table) => {
            write_table(w, table);
            kind::TARGET_TABLE
        }
        Message::AskTable => kind::ASK_TABLE,
        Message::UnwellTargets(unwell) => {
            write_unwell(w, unwell);
            kind::UNWELL_TARGETS
        }
        Message::Choices(choices) => {
            list(w, "choices", CHOICES_MAX, choices, |w, Chosen { name, value }| {
                w.text(name);
                w.text(value);
            });
            kind::CHOICES
        }
        Message::Processors(Processors { count, busy }) => {
            assert!(*busy <= Processors::ALL, "own processors are no busier than all the time");
            w.u16(*count);
            w.u16(*busy);
            kind::PROCESSORS
        }
        Message::Trial(json) => {
            w.bytes("trial", json, TRIAL_LEN_MAX);
            kind::TRIAL
        }
        Message::Stop { reason } => {
            w.text(reason);
            kind::STOP
        }
        Message::Stopped => kind::STOPPED,
        Message::Complete => kind::COMPLETE,
        Message::Report(report) => {
            write_report(w, report);
            kind::REPORT
        }
        Message::Abort(failure) => {
            write_failure(w, failure);
            kind::ABORT
        }
        Message::Ping(value) => {
            w.u64(*value);
            kind::PING
        }
        Message::Pong(value) => {
            w.u64(*value);
            kind::PONG
        }
    }
}

fn list<T>(
    w: &mut Writer<'_>,
    what: &'static str,
    max: usize,
    items: &[T],
    item: impl Fn(&mut Writer<'_>, &T),
) {
    w.count(what, items.len(), max);
    for it in items {
        item(w, it);
    }
}

fn write_hello(w: &mut Writer<'_>, hello: &Hello) {
    w.u16(hello.version_min);
    w.u16(hello.version_max);
    w.raw(&hello.session);
    w.u32(hello.limits.object_len);
    w.u32(hello.limits.entries);
    w.u16(hello.limits.streams);
    list(w, "capabilities", CAPABILITIES_MAX, &hello.capabilities, |w, c| {
        w.u16(c.kind);
        w.bool(c.required);
        w.bytes("capability", &c.value, CAPABILITY_LEN_MAX);
    });
}

/// Bits of [`SinkOptions`], lowest first.
pub(super) const POLICY_BITS: u16 = 0b11_1111_1111;

fn policy_bits(p: &SinkOptions) -> u16 {
    [p.durable, p.force, p.no_clobber, p.update, p.owner, p.times, p.verify, p.trust, p.xattrs, p.acls]
        .iter()
        .enumerate()
        .map(|(bit, on)| u16::from(*on) << bit)
        .sum()
}

/// A name, or the length 0.
fn write_name_or_none(w: &mut Writer<'_>, name: Option<&Name>) {
    match name {
        None => w.u8(0),
        Some(name) => w.name(name),
    }
}

fn write_root(w: &mut Writer<'_>, root: &SourceRoot) {
    match root {
        SourceRoot::Named { name, is_dir } => {
            w.u8(if *is_dir { 2 } else { 1 });
            w.name(name);
        }
        SourceRoot::Contents { of, meta } => {
            w.u8(3);
            write_name_or_none(w, of.as_ref());
            write_meta(w, meta);
        }
    }
}

fn write_lease(w: &mut Writer<'_>, by: Holder) {
    assert!(by.host < HOSTS_MAX, "own host {}", by.host);
    w.u16(by.host);
    w.u32(by.epoch);
}

fn write_state(w: &mut Writer<'_>, (id, generation, state): &(FileId, Generation, FileState)) {
    w.u64(id.0);
    w.u32(generation.0);
    match state {
        FileState::Fresh => w.u8(0),
        FileState::Unchanged => w.u8(1),
        FileState::Skipped => w.u8(2),
        FileState::Finished => w.u8(6),
        FileState::Cloned => w.u8(7),
        FileState::Held { subtrees, verify } => {
            w.u8(3);
            w.bool(*verify);
            list(w, "held subtrees", SUBTREES_MAX, subtrees, |w, s| {
                write_range(w, s.offset, s.len);
                w.raw(&s.cv);
            });
        }
        FileState::Planned(change) => {
            w.u8(4);
            write_change(w, *change);
        }
        FileState::Amended(change) => {
            w.u8(5);
            write_change(w, *change);
        }
    }
}

fn change_len(change: Change) -> usize {
    1 + usize::from(change.bits() >> 7 > 0)
}

/// Seven bits, and where there are more, a byte with the others behind them.
fn write_change(w: &mut Writer<'_>, change: Change) {
    let (first, more) = ((change.bits() & 0x7f) as u8, (change.bits() >> 7) as u8);
    w.u8(first | if more > 0 { 0x80 } else { 0 });
    if more > 0 {
        w.u8(more);
    }
}

fn write_range(w: &mut Writer<'_>, offset: u64, len: u64) {
    let end = offset.checked_add(len);
    assert!(end.is_some_and(|end| end <= FILE_LEN_MAX), "own extent {offset}+{len} passes a file's end");
    w.u64(offset);
    w.u64(len);
}

fn write_extent(w: &mut Writer<'_>, extent: &Extent) {
    w.u64(extent.id.0);
    w.u32(extent.generation.0);
    write_range(w, extent.offset, extent.len);
}

fn write_done(w: &mut Writer<'_>, item: &DoneItem) {
    w.u64(item.id.0);
    w.u32(item.generation.0);
    match &item.outcome {
        Outcome::Done { root: None, change } => {
            w.u8(0);
            write_change(w, *change);
        }
        Outcome::Done { root: Some(root), change } => {
            w.u8(1);
            write_change(w, *change);
            w.raw(root);
        }
        Outcome::Failed(failure) => {
            w.u8(2);
            write_failure(w, failure);
        }
        Outcome::Persisted => w.u8(3),
    }
}

pub(super) fn write_failure(w: &mut Writer<'_>, failure: &Failure) {
    w.u8(match failure.kind {
        FailureKind::Walk => 1,
        FailureKind::Open => 2,
        FailureKind::Read => 3,
        FailureKind::Changed => 4,
        FailureKind::Create => 5,
        FailureKind::Write => 6,
        FailureKind::Sync => 7,
        FailureKind::Publish => 8,
        FailureKind::Metadata => 9,
        FailureKind::Digest => 10,
        FailureKind::Protocol => 11,
        FailureKind::Usage => 12,
        FailureKind::Vanished => 13,
        FailureKind::Local => 14,
        FailureKind::Network => 15,
    });
    w.i32(failure.errno);
    w.text(&failure.text);
}

fn write_report(w: &mut Writer<'_>, report: &EndReport) {
    w.u64(report.cpu);
    w.u64(report.rss_max);
    for stage in &report.stages {
        w.u64(stage.busy);
        w.u64(stage.starved);
        w.u64(stage.blocked);
    }
    w.u64(report.strays);
    w.u64(report.payload);
    w.u64(report.objects_resent);
    w.u64(report.amended);
    w.u64(report.prefixes);
    w.u64(report.prefix_bytes);
    for count in report.not_kept {
        w.u64(count);
    }
    let HeldReport { checked, wrong, trusted, time } = report.held;
    [checked, wrong, trusted, time].into_iter().for_each(|n| w.u64(n));
}
