//! Control messages and the descriptor of a data frame: what is said, not how it is laid out.

pub use crate::change::Change;
pub use crate::digest::DigestKind;
use crate::digest::{Cv, Root, Subtree};
use crate::entry::{EntryKind, Extras, Meta, Name, Namespace};
use crate::extents::DataExtent;
use crate::ids::{DirId, FileId, Generation, Holder, SinkTarget, StreamId};
use crate::layout::{Layout, Striping};
use crate::schedule::Health;
use crate::schedule::table::{Table, UnwellTargets};
use crate::stage::Processors;

use super::failure::Failure;
use super::report::EndReport;

/// The protocol version that this program speaks, and the oldest that it understands.
pub const VERSION: u16 = 3;
pub const VERSION_MIN: u16 = 3;

/// Most entries in one [`Message::Announce`].
pub const ANNOUNCE_ENTRIES_MAX: usize = 1024;
/// Most items in any other list of a control message.
pub const ITEMS_MAX: usize = 4096;
/// Most source roots of a job, and most in one message of them: that many fit it whatever their names are.
pub const ROOTS_MAX: usize = 64 * 1024;
pub const ROOTS_PART_MAX: usize = 3600;
/// Most entries of one data frame (a bundle).
pub const BUNDLE_ENTRIES_MAX: usize = 512;
/// Most chaining values of one data entry.
pub const CVS_MAX: usize = 64;
/// Longest text (an error, a reason) from a peer, bytes.
pub const TEXT_LEN_MAX: usize = 1024;
/// Most subtrees in one [`FileState::Held`].
pub const SUBTREES_MAX: usize = 4096;
/// Most data streams that a session has at a time. Over its life it may have as many as there are ids.
pub const STREAMS_MAX: u16 = 64;
/// Longest path in a [`Message::Trouble`], bytes; a longer one is cut.
pub const PATH_LEN_MAX: usize = 16 * 1024;
/// Most threads or requests that a live setting can ask for at one end.
pub const LIVE_THREADS_MAX: u16 = 256;
/// The numbers of a sink's targets are below this; 0 is any target.
pub const SINK_TARGETS_MAX: u16 = 4096;
/// Most components of one [`Message::FileTargets`], and most sink targets in all of them. Where a file has
/// more, the sink tells of its beginning, and of the rest that it may be anywhere.
pub const TARGET_COMPONENTS_MAX: usize = 1024;
pub const FILE_SINK_TARGETS_MAX: usize = 4096;
/// Longest JSON of one [`Message::Trial`], bytes.
pub const TRIAL_LEN_MAX: usize = 32 * 1024;
/// Longest part of a value in one [`MetadataPiece`], bytes.
pub const METADATA_PIECE_LEN_MAX: usize = 32 * 1024;
/// Most capability TLVs in a hello, and the longest value of one.
pub const CAPABILITIES_MAX: usize = 64;
pub const CAPABILITY_LEN_MAX: usize = 256;

/// First message in both directions on the control stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub version_min: u16,
    pub version_max: u16,
    /// Random per session; both ends say the same one, the near end chose it.
    pub session: [u8; 16],
    /// What the sender knows besides what its version says, by number.
    pub capabilities: Vec<Capability>,
    pub limits: Limits,
}

/// A capability: the receiver must know it if `required`, else it may ignore it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    pub kind: u16,
    pub required: bool,
    pub value: Box<[u8]>,
}

/// What the sender of the hello is ready to take. Each end uses the smaller of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest object payload, bytes.
    pub object_len: u32,
    /// Entries announced and not yet done.
    pub entries: u32,
    /// Data streams.
    pub streams: u16,
}

/// One entry of an announcement. Its parent was announced before, on the same stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    pub id: FileId,
    pub generation: Generation,
    pub parent: DirId,
    pub name: Name,
    pub meta: Meta,
    pub kind: EntryKind,
    pub extras: Extras,
}

/// A piece of what an entry has beside mode, owner and mtime. The pieces of one value follow each other, from
/// its beginning to its end; then come those of the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataPiece {
    pub id: FileId,
    pub generation: Generation,
    pub namespace: Namespace,
    /// Of an extended attribute, with its own namespace (`user.x`); without NUL. Of all others it is empty.
    pub name: Box<[u8]>,
    /// Of the whole value, at most [`METADATA_VALUE_LEN_MAX`](crate::entry::METADATA_VALUE_LEN_MAX).
    pub total: u32,
    pub offset: u32,
    /// At most [`METADATA_PIECE_LEN_MAX`]; empty only where the whole value is.
    pub piece: Box<[u8]>,
    /// Nothing follows: the entry's metadata are whole.
    pub last: bool,
}

/// Longest name of a user or group, bytes.
pub const OWNER_NAME_LEN_MAX: usize = 255;

/// What a user or group of this number is called at the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerName {
    pub group: bool,
    pub id: u32,
    /// At least one byte, at most [`OWNER_NAME_LEN_MAX`].
    pub name: Box<[u8]>,
}

/// What the sink knows of an announced file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileState {
    /// Send all of it.
    Fresh,
    /// The destination has it already (same size and mtime): nothing to send.
    Unchanged,
    /// `--no-clobber` or `--update` forbids it: nothing to send.
    Skipped,
    /// These subtrees are on media. `verify`: the version in the source's fingerprint is not the
    /// journal's, so the source must compare its own digests before it believes them.
    Held { subtrees: Vec<Subtree>, verify: bool },
    /// Only in a dry run: it would be copied, and change this.
    Planned(Change),
    /// The content is there already, and this of its metadata was changed (in a dry run: would be): nothing
    /// to send.
    Amended(Change),
    /// The sink cloned all of it from the source's file, and nothing of it is sent; only where both ends are
    /// in one process, and neither verifies it.
    Cloned,
    /// Of a directory, only where both ends know [`capability::DIR_STATES`](super::capability::DIR_STATES):
    /// all below it is finished as it is.
    Finished,
}

/// How an entry ended at the sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Published: whole, its root checked, under its final name and (but with durability none) on media. For
    /// a file its root. `change`: what differs from before this run; none, of what is no file: it was there
    /// already.
    Done {
        root: Option<Root>,
        change: Change,
    },
    Failed(Failure),
    /// Only where both ends know [`capability::PERSISTED`](super::capability::PERSISTED): all bytes of the
    /// file, or of the range of it that was announced, are on media, and who publishes it is another.
    Persisted,
}

/// `Done` names an entry that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoneItem {
    pub id: FileId,
    pub generation: Generation,
    pub outcome: Outcome,
}

/// A contiguous range of a file of one generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    pub id: FileId,
    pub generation: Generation,
    pub offset: u64,
    pub len: u64,
}

/// Totals of the source when its walk is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub files: u64,
    pub dirs: u64,
    pub symlinks: u64,
    pub bytes: u64,
}

/// Session-wide choices of the user that the sink must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SinkOptions {
    /// false: `--durability=none`.
    pub durable: bool,
    /// Replace even when size and mtime agree.
    pub force: bool,
    /// Never touch an existing file.
    pub no_clobber: bool,
    /// Replace only what is older than the source.
    pub update: bool,
    /// Set owner and group.
    pub owner: bool,
    /// Preserve permissions and mtime (always true for now).
    pub times: bool,
    /// Read each file back from storage before it gets its name, and hold it against its digest.
    pub verify: bool,
    /// Take what an earlier run left as its journal says, without reading it.
    pub trust: bool,
    /// Extended attributes, and access control lists, are as announced: others that stand there go.
    pub xattrs: bool,
    pub acls: bool,
}

impl SinkOptions {
    /// Of a copy without options.
    pub const PLAIN: SinkOptions = SinkOptions {
        durable: true,
        force: false,
        no_clobber: false,
        update: false,
        owner: false,
        times: true,
        verify: false,
        trust: false,
        xattrs: false,
        acls: false,
    };
}

/// Choices that an end tells of at most.
pub const CHOICES_MAX: usize = 64;

/// What an end chose, for people. Either text is cut to [`TEXT_LEN_MAX`] when it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// `source io`, say.
    pub name: Box<str>,
    /// The value, and in brackets the reason.
    pub value: Box<str>,
}

/// A rate of [`LiveSettings`]: no limit.
pub const RATE_UNLIMITED: u64 = u64::MAX;

/// What can be turned while a session runs. From the end that is in charge (the near one): how things shall
/// be, all of them; 0: nobody asked, it is as the session began. From the other end: how they stand there; 0:
/// it does not decide that, or cannot say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveSettings {
    /// The source reads and sends no new object.
    pub paused: bool,
    /// Payload bytes a second over all streams, at most; [`RATE_UNLIMITED`]: no limit.
    pub rate: u64,
    /// Data streams that carry new frames, at most [`STREAMS_MAX`]. Once asked for, the number is the user's:
    /// the source looks for no better one.
    pub streams: u16,
    /// Operations and requests in flight at each storage target of the source, at most [`LIVE_THREADS_MAX`].
    pub readers: u16,
    /// The same at the sink.
    pub writers: u16,
}

/// A storage target of the sink, as it tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetHealth {
    /// Not 0; below [`SINK_TARGETS_MAX`].
    pub sink_target: SinkTarget,
    pub health: Health,
    /// Objects that wait there, and that are being written.
    pub waiting: u32,
    pub in_flight: u32,
    /// How long the write of 1 MiB takes now and at best, nanoseconds; 0: not known.
    pub service: u64,
    pub best: u64,
    /// Objects written since the session began.
    pub done: u64,
}

/// What a striped file's objects are, and how it is cut at the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLayout {
    pub id: FileId,
    pub generation: Generation,
    /// As in the announcement, and not more than was announced.
    pub object_size: u32,
    /// `None`: it has no stripes after all, or nobody could say.
    pub striping: Option<Striping>,
}

/// Where a sink's files came to lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// Storage targets that were written to; 0: the destination does not tell them apart.
    pub targets: u16,
    /// Files that got the stripes that were asked for.
    pub files: u64,
    /// Those that lie as the file system chose instead.
    pub others: u64,
    /// Why, of one of the others; empty if there is none.
    pub why: Box<str>,
}

/// A top-level name of the job at the destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceRoot {
    /// The entry takes this name below the destination root.
    Named { name: Name, is_dir: bool },
    /// The contents of a directory of this name go into the destination root (`/` has none), which becomes
    /// what the directory is if it has to be made.
    Contents { of: Option<Name>, meta: Meta },
}

impl SourceRoot {
    /// What the destination root becomes, whether it stood there or not: what the first directory is whose
    /// contents come into it, as rsync does. `None`: it stays as it is, for nobody asked for owners,
    /// attributes or lists, or nothing of the kind comes.
    pub fn of_destination(roots: &[SourceRoot], policy: &SinkOptions) -> Option<Meta> {
        let asked = policy.owner || policy.xattrs || policy.acls;
        let first = roots.iter().find_map(|root| match root {
            SourceRoot::Contents { meta, .. } => Some(*meta),
            SourceRoot::Named { .. } => None,
        });
        first.filter(|_| asked)
    }
}

/// Everything that can be said on the control stream after the hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Hello(Hello),
    /// Source to sink, ahead of `Sources` and only with
    /// [`capability::SOURCE_ROOTS`](super::capability::SOURCE_ROOTS): the first of more roots than one
    /// message holds. At most [`ROOTS_MAX`] in all.
    SourceRoots(Vec<SourceRoot>),
    /// Source to sink: what will come. The sink answers with `Destination`.
    Sources {
        roots: Vec<SourceRoot>,
        policy: SinkOptions,
    },
    /// Sink to source: the destination is open and locked.
    Destination {
        /// The source must wait for a file's `FileState` before it sends any of it.
        wait: bool,
        /// The single file is written under this name (`haul cp a.txt dir/b.txt`).
        rename: Option<Name>,
        epoch: u32,
        /// A journal of an earlier run was found.
        resumed: bool,
    },
    Announce(Vec<Announced>),
    /// Source to sink, of files announced as sparse, before any data of them: the next data extents, by
    /// offset; with `last` the map is complete. One extent that is the whole file: it has no holes after all.
    Holes {
        id: FileId,
        generation: Generation,
        extents: Vec<DataExtent>,
        last: bool,
    },
    /// Source to sink, of entries announced with metadata, only where both ends know
    /// [`capability::METADATA`](super::capability::METADATA).
    Metadata(Vec<MetadataPiece>),
    /// Source to sink, before the first entry that they own: what users and groups are called there. Who does
    /// not know it goes by numbers.
    OwnerNames(Vec<OwnerName>),
    /// Source to sink, of files announced as striped, before any data of them.
    FileLayout(Vec<FileLayout>),
    /// No more entries will come in these directories.
    DirEnd(Vec<DirId>),
    FileStates(Vec<(FileId, Generation, FileState)>),
    /// The fingerprint was checked after the last read of pass `pass`.
    Sealed(Vec<(FileId, Generation, u16)>),
    /// Source to sink: forget what you have of this generation; the file comes again (`retry`) or failed.
    /// With `failure` it failed there, and the far end may report it.
    Withdraw {
        id: FileId,
        generation: Generation,
        retry: bool,
        failure: Option<Failure>,
    },
    /// Source to sink: something that was never announced failed (a directory that cannot be read).
    Trouble {
        path: Box<[u8]>,
        failure: Failure,
    },
    /// Source to sink: the walk is over and all that will be sent was announced.
    End(Totals),
    /// Sink to source: payload bytes (rounded up to slots) that may have been sent since the session began:
    /// with sink target 0 in all, with another one (only where both ends know
    /// [`capability::TARGETS`](super::capability::TARGETS)) in frames that name it.
    Grant {
        by: Holder,
        sink_target: u16,
        total: u64,
    },
    /// Sink to source: data frames taken from each stream and payload bytes whose buffers are free again.
    /// Promises nothing.
    Written {
        bytes: u64,
        frames: Vec<(StreamId, u64)>,
    },
    /// Sink to source: restart markers. These extents are on media.
    Durable {
        by: Holder,
        extents: Vec<Extent>,
    },
    /// Sink to source: these entries ended.
    Done(Vec<DoneItem>),
    /// Sink to source: these objects arrived damaged; send them again.
    Resend(Vec<Extent>),
    /// Sink to source: it said that it holds these ranges, and what it found there is not what it expected.
    /// Ends need not be an object's.
    NotHeld(Vec<Extent>),
    /// Either way: this data stream is closed here; `frames` data frames were taken from it in all.
    StreamClosed {
        stream: StreamId,
        frames: u64,
    },
    /// Either way: control frames up to this number came, so that they need not be kept any longer.
    Received(u64),
    /// Source to sink: so many data streams shall be live, 1 to [`STREAMS_MAX`]. For the sink where it is the
    /// end that dials.
    Streams(u16),
    /// Sink to source, only where both ends know [`capability::TARGETS`](super::capability::TARGETS): how
    /// these targets fare now.
    TargetHealth(Vec<TargetHealth>),
    /// Sink to source, only where both ends know [`capability::TARGETS`](super::capability::TARGETS): the
    /// file was made, and lies so. At most [`TARGET_COMPONENTS_MAX`] components and [`FILE_SINK_TARGETS_MAX`]
    /// sink targets; [`SinkTarget::ANY`]: not known.
    FileTargets {
        id: FileId,
        generation: Generation,
        layout: Layout<SinkTarget>,
    },
    /// Sink to source, before its `Destination`, only where both ends know
    /// [`capability::LAYOUTS`](super::capability::LAYOUTS): the longest object, a legal object size in bytes,
    /// that lies on one target where a file gets the destination's own stripes.
    ObjectLen(u32),
    /// Sink to source, before its `Destination`: how coarsely the destination keeps mtimes, nanoseconds, not
    /// 0. Two versions of a file whose mtimes lie within one such step look alike there. Not said: as finely
    /// as the source has them.
    TimeGrain(u32),
    /// Sink to source, with its last words, only where both ends know
    /// [`capability::LAYOUTS`](super::capability::LAYOUTS).
    Placed(Placed),
    /// Either way, at most one a second: what this end waits for, for people ("waiting 12 s for write of x").
    Notice {
        text: Box<str>,
    },
    /// Either way, only where both ends know [`capability::LIVE_SETTINGS`](super::capability::LIVE_SETTINGS):
    /// see [`LiveSettings`].
    LiveSettings(LiveSettings),
    /// From the near end, only where both ends know [`capability::TABLES`](super::capability::TABLES):
    /// somebody looks at the other end's storage targets. It answers with one `TargetTable`; the next
    /// question comes after that.
    AskTable,
    /// From the far end, one for each `AskTable`: how its storage targets stand.
    TargetTable(Table),
    /// From the far end, once, before its `Report`, where both ends know
    /// [`capability::TABLES`](super::capability::TABLES): which of its storage targets were unwell.
    UnwellTargets(UnwellTargets),
    /// From the far end, once, before its `Report`, where both ends know
    /// [`capability::CHOICES`](super::capability::CHOICES): what it chose and why, for people. At most
    /// [`CHOICES_MAX`].
    Choices(Vec<Chosen>),
    /// From the far end, once, before its `Report`: how busy its processors were while payload moved.
    Processors(Processors),
    /// Source to sink, only in a session that was asked for as a measurement of the network: what was seen,
    /// as JSON, at most [`TRIAL_LEN_MAX`].
    Trial(Box<[u8]>),
    /// Either way: end in good order, keep what is durable.
    Stop {
        reason: Box<str>,
    },
    /// Sink to source: nothing more will be written; the last epoch is closed.
    Stopped,
    /// Sink to source: all entries ended and the journal is gone.
    Complete,
    /// Either way, last message: what this end measured.
    Report(Box<EndReport>),
    /// Either way: the session cannot go on.
    Abort(Failure),
    Ping(u64),
    Pong(u64),
}

/// One range in a data frame. Payload ranges of the entries follow each other in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataEntry {
    pub id: FileId,
    pub generation: Generation,
    pub offset: u64,
    pub len: u32,
    /// `cvs` holds one value, the root of the whole file.
    pub root: bool,
    /// The range is a hole: no payload. Reserved and never sent: holes are what [`Message::Holes`] leaves
    /// out.
    pub hole: bool,
    /// The range ends at the end of the file.
    pub tail: bool,
    /// The fingerprint was checked after this read: the file is sealed at this pass.
    pub sealed: bool,
    /// How often the file had been sealed before this read.
    pub pass: u16,
    pub digest: DigestKind,
    // The codec of its payload is 0, none: no other is agreed on yet, and none is told.
    /// The canonical list of subtree chaining values of the range (`digest::subtrees`).
    pub cvs: Vec<Cv>,
}

/// Everything of a data frame but its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataHeader {
    /// Whose grant it took besides the general one. [`SinkTarget::ANY`]: none other.
    pub sink_target: SinkTarget,
    pub entries: Vec<DataEntry>,
}

impl DataHeader {
    /// Payload length, bytes.
    pub fn payload_len(&self) -> u64 {
        self.entries.iter().filter(|e| !e.hole).map(|e| u64::from(e.len)).sum()
    }
}

/// Credit that a payload of `len` bytes costs: whole slots, at least one.
pub fn credit_cost(len: u64) -> u64 {
    len.max(1).div_ceil(SLOT_LEN).saturating_mul(SLOT_LEN)
}

/// Buffers are handed out in slots of this many bytes.
pub const SLOT_LEN: u64 = 64 * 1024;

impl Message {
    /// The name of the message in logs and errors.
    pub fn name(&self) -> &'static str {
        match self {
            Message::Hello(_) => "HELLO",
            Message::SourceRoots(_) => "SOURCE_ROOTS",
            Message::Sources { .. } => "SOURCES",
            Message::Destination { .. } => "DESTINATION",
            Message::Announce(_) => "ANNOUNCE",
            Message::Holes { .. } => "HOLES",
            Message::Metadata(_) => "METADATA",
            Message::OwnerNames(_) => "OWNER_NAMES",
            Message::FileLayout(_) => "FILE_LAYOUT",
            Message::DirEnd(_) => "DIR_END",
            Message::FileStates(_) => "FILE_STATE",
            Message::Sealed(_) => "FILE_SEALED",
            Message::Withdraw { .. } => "WITHDRAW",
            Message::Trouble { .. } => "TROUBLE",
            Message::End(_) => "END",
            Message::Grant { .. } => "GRANT",
            Message::Written { .. } => "WRITTEN",
            Message::Durable { .. } => "DURABLE",
            Message::Done(_) => "FILE_DONE",
            Message::Resend(_) => "RESEND",
            Message::NotHeld(_) => "NOT_HELD",
            Message::StreamClosed { .. } => "STREAM_CLOSED",
            Message::Received(_) => "RECEIVED",
            Message::Streams(_) => "STREAMS",
            Message::TargetHealth(_) => "TARGET_HEALTH",
            Message::FileTargets { .. } => "FILE_TARGETS",
            Message::ObjectLen(_) => "OBJECT_LEN",
            Message::TimeGrain(_) => "TIME_GRAIN",
            Message::Placed(_) => "PLACED",
            Message::Notice { .. } => "NOTICE",
            Message::LiveSettings(_) => "LIVE_SETTINGS",
            Message::AskTable => "ASK_TABLE",
            Message::TargetTable(_) => "TARGET_TABLE",
            Message::UnwellTargets(_) => "UNWELL_TARGETS",
            Message::Choices(_) => "CHOICES",
            Message::Processors(_) => "PROCESSORS",
            Message::Trial(_) => "TRIAL",
            Message::Stop { .. } => "STOP",
            Message::Stopped => "STOPPED",
            Message::Complete => "COMPLETE",
            Message::Report(_) => "REPORT",
            Message::Abort(_) => "ABORT",
            Message::Ping(_) => "PING",
            Message::Pong(_) => "PONG",
        }
    }
}
