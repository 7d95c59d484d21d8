//! What is moved: directory entries, their names, fingerprints and metadata.
//!
//! Invariant: a [`Name`] is always one legal path component, whoever made it.

use std::fmt;

use crate::ids::FileId;
use crate::wire::FILE_LEN_MAX;

/// Longest name of one component, bytes.
pub const NAME_LEN_MAX: usize = 255;
/// Deepest directory below the destination root.
pub const DEPTH_MAX: usize = 1024;
/// Longest target of a symbolic link, bytes.
pub const LINK_LEN_MAX: usize = 4095;

/// One path component: 1 to 255 bytes, no `/`, no NUL, not `.` and not `..`. Any other bytes are legal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Box<[u8]>);

/// Why bytes are not a [`Name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("empty name")]
    Empty,
    #[error("name of {0} bytes, at most {NAME_LEN_MAX} are possible")]
    TooLong(usize),
    #[error("'.' or '..' as a name")]
    Dots,
    #[error("'/' or NUL in a name")]
    Separator,
}

impl Name {
    /// Checks `bytes` and makes them a name.
    pub fn new(bytes: &[u8]) -> Result<Name, NameError> {
        match bytes {
            [] => Err(NameError::Empty),
            b"." | b".." if !haul_mutant::removed("legal-names") => Err(NameError::Dots),
            _ if bytes.len() > NAME_LEN_MAX => Err(NameError::TooLong(bytes.len())),
            _ if bytes.iter().any(|b| *b == b'/' || *b == 0) => Err(NameError::Separator),
            _ => Ok(Name(bytes.into())),
        }
    }
    /// The bytes as the file system has them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

/// A moment as file systems keep it: seconds since 1970 (may be negative) and nanoseconds (below 10^9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    pub secs: i64,
    pub nanos: u32,
}

/// Longest [`Version`], bytes.
pub const VERSION_LEN_MAX: usize = 32;

/// What a storage says of the version of an entry beside its size and mtime, for itself alone to understand:
/// ctime and inode, an entity tag, whatever it has. Everybody else only compares it. It says nothing where it
/// is empty.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Version {
    len: u8,
    /// Zero behind `len`.
    bytes: [u8; VERSION_LEN_MAX],
}

impl Version {
    /// Nothing is said.
    pub const NONE: Version = Version { len: 0, bytes: [0; VERSION_LEN_MAX] };

    /// These bytes; `None` if they are more than [`VERSION_LEN_MAX`].
    pub fn new(bytes: &[u8]) -> Option<Version> {
        let mut version = Version::NONE;
        version.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        version.len = bytes.len() as u8;
        Some(version)
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("v")?;
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Tells one version of a source file from another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    pub size: u64,
    pub mtime: Timestamp,
    pub version: Version,
}

impl Fingerprint {
    /// Size and mtime agree: the content is taken to be the same unless digests say otherwise.
    pub fn same_content(&self, other: &Fingerprint) -> bool {
        self.size == other.size && self.mtime == other.mtime
    }
}

/// Metadata that a copy carries over. `mode` holds permission bits only (07777).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Timestamp,
}

/// The number of no user and no group: whoever says it leaves an owner as it is.
pub const NOBODY: u32 = u32::MAX;

impl Meta {
    /// User and group, if it says both.
    pub fn owners(&self) -> Option<(u32, u32)> {
        (self.uid != NOBODY && self.gid != NOBODY).then_some((self.uid, self.gid))
    }
}

/// Longest name of a piece of metadata, bytes.
pub const METADATA_NAME_LEN_MAX: usize = 255;
/// Longest value of one (an extended attribute of Linux), and of all of an entry, bytes.
pub const METADATA_VALUE_LEN_MAX: u32 = 64 * 1024;
pub const METADATA_LEN_MAX: u32 = 1024 * 1024;
/// What each value costs beside its bytes and its name, as bounds count it.
pub const METADATA_VALUE_COST: usize = 96;
/// Most of all open entries together, costs included: what a sink keeps of a source that sends more is
/// nothing. A source begins no other entry beyond half of that, and its open directories have half of it at
/// most.
pub const METADATA_OPEN_MAX: usize = 64 * 1024 * 1024;

/// What an end remembers of a file of which other names may follow, beside its path, bytes.
pub const NAMES_COST: usize = 160;
/// Most of all of them together, paths included: a source has no other names follow of what comes beyond
/// that, and a sink takes none.
pub const NAMES_OPEN_MAX: usize = 512 * 1024 * 1024;

/// What a piece of metadata is called in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Namespace {
    /// Extended attributes: the only ones that have names.
    Xattr,
    /// A POSIX ACL, as the kernel's extended attribute holds it.
    AccessAcl,
    /// That of a directory for what is made in it.
    DefaultAcl,
    /// As the extended attribute of an NFS client holds it.
    Nfs4Acl,
}

/// A part of a file that is sent as such.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRange {
    /// Where it begins at the source, and at the sink; how long it is.
    pub source: u64,
    pub sink: u64,
    pub len: u64,
    /// It is a file of its own, with its own tree of digests, and may go to any offset: the size that it is
    /// announced with is its length. Else it lies in the tree of the whole file, at the same offset of both
    /// ends.
    pub partial: bool,
}

/// A part of one file that the user asked for: a file of its own at the destination, or a part of one there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where it begins at the source; `None`: it goes on to the file's end.
    pub source: u64,
    pub len: Option<u64>,
    /// Where it goes in a file that holds more; `None`: it is all of the file.
    pub sink: Option<u64>,
}

impl Part {
    /// The range of so many bytes that this is.
    pub fn of_len(&self, len: u64) -> FileRange {
        FileRange { source: self.source, sink: self.sink.unwrap_or(0), len, partial: true }
    }

    /// In words: `5 bytes from byte 7 on, to byte 9`.
    pub fn in_words(&self) -> String {
        let bytes = match self.len {
            Some(1) => "1 byte".to_owned(),
            Some(len) => format!("{len} bytes"),
            None => "all".to_owned(),
        };
        let to = self.sink.map_or(String::new(), |to| format!(", to byte {to}"));
        format!("{bytes} from byte {} on{to}", self.source)
    }

    /// The same part, as long as it turned out to be.
    #[must_use]
    pub fn known(self, len: Option<u64>) -> Part {
        Part { len: self.len.or(len), ..self }
    }

    /// Whether a range that is told is this one.
    pub fn is(&self, told: &FileRange) -> bool {
        *told == self.of_len(self.len.unwrap_or(told.len))
    }
}

/// A shard range begins at a multiple of this too: writers that share a page overwrite each other's.
pub const SHARD_RANGE_GRAIN: u64 = 1024 * 1024;

impl FileRange {
    /// Whether an entry that is announced with this size, cut into objects of this size, has such a range.
    pub fn fits(&self, size: u64, object_size: u32) -> bool {
        let end_of = |offset: u64| offset.checked_add(self.len).filter(|end| *end <= FILE_LEN_MAX);
        let (Some(end), Some(_)) = (end_of(self.source), end_of(self.sink)) else { return false };
        let within = self.len > 0 && if self.partial { self.len == size } else { end <= size };
        let grain = SHARD_RANGE_GRAIN.max(object_size.into());
        let on_grain = |offset: u64| offset.is_multiple_of(grain);
        let of_whole = self.source == self.sink && on_grain(self.source) && (on_grain(end) || end == size);
        within && (self.partial || of_whole)
    }
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// Its mtime and this are its fingerprint; entries that were made in it, removed or renamed are all that
    /// it tells of.
    Dir {
        version: Version,
    },
    /// A regular file; `object_size` is a power of two from 64 KiB to 64 MiB. `sparse`: it may have holes;
    /// its map follows the announcement. `striped`: how it is cut at the source follows, and with that the
    /// size of its objects, which is not more than this one.
    File {
        fingerprint: Fingerprint,
        object_size: u32,
        sparse: bool,
        striped: bool,
    },
    Symlink {
        target: Box<[u8]>,
    },
    Fifo,
    Socket,
    Device {
        block: bool,
        major: u32,
        minor: u32,
    },
    /// Another name of a file that was announced.
    HardLink {
        to: FileId,
    },
}

/// An entry that is neither file, directory nor link: nothing of it is ever opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    Fifo,
    Socket,
    Device { block: bool, major: u32, minor: u32 },
}

impl EntryKind {
    /// What of these it is, if it is one.
    pub fn node(&self) -> Option<Node> {
        match *self {
            EntryKind::Fifo => Some(Node::Fifo),
            EntryKind::Socket => Some(Node::Socket),
            EntryKind::Device { block, major, minor } => Some(Node::Device { block, major, minor }),
            EntryKind::Dir { .. }
            | EntryKind::File { .. }
            | EntryKind::Symlink { .. }
            | EntryKind::HardLink { .. } => None,
        }
    }
}

/// Which of them are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nodes {
    /// FIFOs and sockets.
    pub specials: bool,
    pub devices: bool,
}

impl Nodes {
    pub fn keep(self, node: Node) -> bool {
        match node {
            Node::Fifo | Node::Socket => self.specials,
            Node::Device { .. } => self.devices,
        }
    }
}

/// Which of them a command keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptNodes {
    pub kept: Nodes,
    /// Those that the user asked for by name: where one is not kept, its entry fails.
    pub asked: Nodes,
}

/// What an announcement says of an entry beside its kind. Nothing, of most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// Only a part of the file comes.
    pub range: Option<FileRange>,
    /// More metadata follow, of a file, directory or symbolic link, and it is not finished before they are
    /// whole.
    pub metadata: bool,
    /// A file or symbolic link with so many names at the source, this one included: others of them may follow
    /// as hard links. 0: none do. [`NAMES_LEFT`]: it is announced again.
    pub names: u32,
}

/// As the number of names of what is announced again: it is another file by now, and no name of the one that
/// the others are names of.
pub const NAMES_LEFT: u32 = 1;
