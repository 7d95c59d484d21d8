//! What two hellos agree on.

use super::frame::OBJECT_LEN_MIN;
use super::{Hello, Limits, OBJECT_LEN_MAX, STREAMS_MAX, VERSION, WireError};
use crate::digest::DigestKind;
use crate::ids::Holder;

/// Numbers of capabilities. Those that are not in `KNOWN` have their rules (`docs/wire.md`, 10) and are not
/// named by any end yet: whatever comes of them all the same is refused.
pub mod capability {
    /// Data frames are authenticated and not encrypted. Required, without a value, named by both ends or
    /// none.
    pub const AUTH_ONLY: u16 = 0x0001;
    /// The header's bytes 12 and 13 carry the sender's host; 14 and 15 are zero.
    pub const SENDER_HOST: u16 = 0x0002;
    /// The data preamble's bytes 12..16 carry the volume generation.
    pub const VOLUME_GENERATION: u16 = 0x0003;
    /// Holes are extents: entries marked as sparse, `HOLES` messages, and sparse roots. Without a value.
    pub const HOLES: u16 = 0x0004;
    /// Digests are XXH3 trees instead of BLAKE3. Required, without a value, named by both ends or none.
    pub const XXH3: u16 = 0x0005;
    /// The sink tells where files lie and how its storage targets fare, and grants by target: `FILE_TARGETS`,
    /// `TARGET_HEALTH`, sink targets in `GRANT` and data frames. Without a value.
    pub const TARGETS: u16 = 0x0006;
    /// The source tells how a striped file is cut and what its objects are: entries marked so, and
    /// `FILE_LAYOUT`; the sink how long objects fit its stripes. Without a value.
    pub const LAYOUTS: u16 = 0x0007;
    /// The source has more roots than one message holds: `SOURCE_ROOTS` before `SOURCES`. Without a value;
    /// named, as required, by a source that sends them, and by nobody else.
    pub const SOURCE_ROOTS: u16 = 0x0008;
    /// Rate, streams, readers, writers and pause are changed while the session runs: `LIVE_SETTINGS`. Without
    /// a value.
    pub const LIVE_SETTINGS: u16 = 0x0010;
    /// The far end tells how its storage targets stand, when it is asked: `ASK_TABLE`, `TARGET_TABLE`,
    /// `UNWELL_TARGETS`. Without a value.
    pub const TABLES: u16 = 0x0011;
    /// The far end tells what it chose, and why: `CHOICES`. Without a value.
    pub const CHOICES: u16 = 0x0012;
    /// Entries may be FIFOs, sockets and devices. Without a value.
    pub const SPECIALS: u16 = 0x0020;
    /// Hard links are kept: entries may be other names of files and of all else that is no directory.
    /// Required, without a value, named by both ends or none.
    pub const HARD_LINKS: u16 = 0x0021;
    /// Extended attributes or access control lists are kept: entries may be announced with metadata, and
    /// `METADATA` follows. Required, without a value, named by both ends or none.
    pub const METADATA: u16 = 0x0022;
    /// The sink may answer to a directory that all below it is finished.
    pub const DIR_STATES: u16 = 0x0023;
    /// Files may be announced with a range; so far each of them is, and it is a partial transfer. Required,
    /// without a value, named by both ends or none.
    pub const RANGES: u16 = 0x0024;
    /// Files and ranges may end persisted and not published.
    pub const PERSISTED: u16 = 0x0025;
    /// Data entries may name a codec; the value lists which.
    pub const CODECS: u16 = 0x0026;
    /// Ids may be of more shards than shard 0: the value (u16) says of how many.
    pub const SHARDS: u16 = 0x0027;
    /// There are several hosts on a side: the value (u16, u32) says which one the sender of the hello is,
    /// under which lease.
    pub const HOSTS: u16 = 0x0028;
    /// The sink writes into the files that stand at the destination. Required, without a value, named by both
    /// ends or none.
    pub const IN_PLACE: u16 = 0x002a;
    /// The destination root becomes what the directory is whose contents come into it: what that has of
    /// extended attributes and lists comes as of entry 0, and the sink says how entry 0 ended. Without a
    /// value.
    pub const ROOT: u16 = 0x002d;
    /// The tree is walked, or links at the destination are taken, in one of the ways that the user's options
    /// name (`copy_links`, `one_file_system`, `owners` and their like): an end that does not know them would
    /// do it in another. Required, without a value, named by both ends or none.
    pub const MANNERS: u16 = 0x002e;
    /// The sink gives entries other modes or owners than the source tells (`chmod`, `usermap`, `groupmap`),
    /// and the source tells what owners are called where that depends on it. Without a value; named, as
    /// required, by a source that was asked for it, and by nobody else.
    pub const REMADE: u16 = 0x002f;
    /// The end can be one of a pair that works for a coordinator: frames of kinds 0x30 to 0x3f. Spoken for:
    /// no end names it yet.
    pub const JOB: u16 = 0x0029;
    /// All that this version knows.
    pub const KNOWN: [u16; 17] = [
        HOLES,
        TARGETS,
        LAYOUTS,
        LIVE_SETTINGS,
        TABLES,
        CHOICES,
        AUTH_ONLY,
        XXH3,
        SOURCE_ROOTS,
        RANGES,
        IN_PLACE,
        METADATA,
        HARD_LINKS,
        MANNERS,
        ROOT,
        SPECIALS,
        REMADE,
    ];
    /// Those that every hello of this version names.
    pub const OFFERED: [u16; 8] = [HOLES, TARGETS, LAYOUTS, LIVE_SETTINGS, TABLES, CHOICES, ROOT, SPECIALS];
}

/// Numbers of the extra fields of an announced entry. `VOLUME_GENERATION` is spoken for.
pub mod extra {
    /// A part of a file: source offset, destination offset, length (u64 each), flags (u8; bit 0: a file of
    /// its own). Required.
    pub const RANGE: u16 = 0x0001;
    /// The file is striped at the source: a `FILE_LAYOUT` follows. Required, without a value; only where both
    /// ends know `LAYOUTS`.
    pub const LAYOUT: u16 = 0x0002;
    /// The generation of the volume that the entry lies on.
    pub const VOLUME_GENERATION: u16 = 0x0003;
    /// The file may have holes: a map follows. Required, without a value; only where both ends know `HOLES`.
    pub const SPARSE: u16 = 0x0004;
    /// `METADATA` follows. Required, without a value; of all entries but hard links, only where both ends
    /// know `METADATA`.
    pub const METADATA: u16 = 0x0005;
    /// Other names may follow: how many there are at the source (u32, at least 2); 1 where a file is
    /// announced again and is another by now, which has none of them. Required; of all but directories and
    /// hard links, only where both ends know `HARD_LINKS`.
    pub const NAMES: u16 = 0x0006;
}

/// What [`capability::MANNERS`] stands for.
const MANNERS_IN_WORDS: &str = "another way to walk the tree or to take its links (`one_file_system`, `copy_links`, `copy_dirlinks`, \
                                `copy_unsafe_links`, `safe_links`, `keep_dirlinks`, `only`)";

/// What both ends use from here on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    pub version: u16,
    pub limits: Limits,
    /// Shards whose ids may be used, from 0 on: at most [`SHARDS_MAX`](crate::ids::SHARDS_MAX).
    pub shards: u16,
    /// As whom the sink grants and says what is durable.
    pub lease: Holder,
    /// Both ends know [`capability::HOLES`].
    pub holes: bool,
    /// Both ends know [`capability::TARGETS`].
    pub targets: bool,
    /// Both ends know [`capability::LAYOUTS`].
    pub layouts: bool,
    /// Both ends know [`capability::LIVE_SETTINGS`].
    pub live_settings: bool,
    /// Both ends know [`capability::TABLES`].
    pub tables: bool,
    /// Both ends know [`capability::CHOICES`].
    pub choices: bool,
    /// Both ends want parts of files, each a file of its own.
    pub parts: bool,
    /// Both ends want the sink to write into the files that stand there.
    pub in_place: bool,
    /// Both ends want extended attributes or access control lists to be kept.
    pub metadata: bool,
    /// Both ends want hard links to be kept.
    pub hard_links: bool,
    /// Both ends know [`capability::ROOT`].
    pub root: bool,
    /// Both ends know [`capability::SPECIALS`].
    pub specials: bool,
    /// Both ends want data frames that are authenticated and not encrypted.
    pub auth_only: bool,
    /// What both ends make digests with.
    pub digest: DigestKind,
}

impl Agreed {
    /// Two ends of this version that offer nothing, with so many entries open at a time.
    pub fn plain(entries: u32) -> Agreed {
        let limits = Limits { object_len: OBJECT_LEN_MAX, entries, streams: STREAMS_MAX };
        Agreed {
            version: VERSION,
            limits,
            shards: 1,
            lease: Holder::ALONE,
            holes: false,
            targets: false,
            layouts: false,
            live_settings: false,
            tables: false,
            choices: false,
            parts: false,
            in_place: false,
            metadata: false,
            hard_links: false,
            root: false,
            specials: false,
            auth_only: false,
            digest: DigestKind::Blake3,
        }
    }
}

/// Finds what both hellos allow: the highest common version and the smaller of each limit
/// (of the object length the power of two that is not above it).
///
/// Errors: another session; a digest or a protection that only one end wants; no common version (both ranges
/// are named); a capability that the peer requires and that is not known here; limits under which nothing
/// could move.
pub fn negotiate(ours: &Hello, theirs: &Hello) -> Result<Agreed, WireError> {
    let version = ours.version_max.min(theirs.version_max);
    if version < ours.version_min.max(theirs.version_min) || version == 0 {
        return Err(WireError::Version {
            ours: (ours.version_min, ours.version_max),
            theirs: (theirs.version_min, theirs.version_max),
        });
    }
    if ours.session != theirs.session {
        return Err(WireError::WrongSession);
    }
    if let Some(unknown) =
        theirs.capabilities.iter().find(|c| c.required && !capability::KNOWN.contains(&c.kind))
    {
        return Err(WireError::UnknownRequired { what: "capability", kind: unknown.kind });
    }
    let limits = Limits {
        object_len: ours.limits.object_len.min(theirs.limits.object_len).min(OBJECT_LEN_MAX),
        entries: ours.limits.entries.min(theirs.limits.entries),
        streams: ours.limits.streams.min(theirs.limits.streams).min(STREAMS_MAX),
    };
    if limits.object_len < OBJECT_LEN_MIN {
        return Err(WireError::BadValue { what: "limit of object length", value: limits.object_len.into() });
    }
    if limits.entries == 0 {
        return Err(WireError::BadValue { what: "limit of entries", value: 0 });
    }
    if limits.streams == 0 {
        return Err(WireError::BadValue { what: "limit of streams", value: 0 });
    }
    // Object sizes are powers of two; so is the limit that is used.
    let limits = Limits { object_len: 1 << limits.object_len.ilog2(), ..limits };
    let knows = |hello: &Hello, kind| hello.capabilities.iter().any(|c| c.kind == kind);
    let both = |kind| knows(ours, kind) && knows(theirs, kind);
    let alike = |kind, what| match knows(ours, kind) == knows(theirs, kind) {
        true => Ok(both(kind)),
        false => Err(WireError::OneSided { what }),
    };
    let auth_only = alike(capability::AUTH_ONLY, "data that is authenticated and not encrypted")?;
    let parts = alike(capability::RANGES, "a part of a file (`range`)")?;
    let in_place = alike(capability::IN_PLACE, "files written in place (`in_place`)")?;
    let metadata = alike(capability::METADATA, "extended attributes or ACLs (`xattrs`, `acls`)")?;
    let hard_links = alike(capability::HARD_LINKS, "hard links (`hard_links`)")?;
    alike(capability::MANNERS, MANNERS_IN_WORDS)?;
    let digest = match alike(capability::XXH3, "xxh3 as digest")? {
        true => DigestKind::Xxh3,
        false => DigestKind::Blake3,
    };
    if auth_only && digest != DigestKind::Blake3 {
        return Err(WireError::WeakDigest);
    }
    let [holes, targets, layouts] = [capability::HOLES, capability::TARGETS, capability::LAYOUTS].map(both);
    let [root, specials] = [capability::ROOT, capability::SPECIALS].map(both);
    let [live_settings, tables, choices] =
        [capability::LIVE_SETTINGS, capability::TABLES, capability::CHOICES].map(both);
    // One pair with one shard: no end can ask for more yet.
    let (shards, lease) = (1, Holder::ALONE);
    Ok(Agreed {
        version,
        limits,
        shards,
        lease,
        holes,
        targets,
        layouts,
        live_settings,
        tables,
        choices,
        parts,
        in_place,
        metadata,
        hard_links,
        root,
        specials,
        auth_only,
        digest,
    })
}
