//! What a copy did.

use haul_core::stage::{Processors, Stage, StageTime, others_use_up};

use haul_storage::sink::OTHERS_DIRS;

use crate::error::Error;
use crate::options::{Changed, Digest, Durability, Part, Resume, Verify};
use crate::target_tables::SlowTarget;

pub(crate) const DEBRIS: &str = "debris";
pub(crate) const IN_MEMORY: &str = "destination in memory";
pub(crate) const LEFT_OUT: &str = "left out";
pub(crate) const SKIPPED: &str = "skipped";
pub(crate) const UNSEEN: &str = "not looked at";
pub(crate) const REPLICAS: &str = "replicas";
pub(crate) const ATTEMPTS: &str = "attempts";
pub(crate) const SENT_AGAIN: &str = "sent again";
pub(crate) const CONNECTION_LOST: &str = "connection lost";
pub(crate) const KEPT_UNSEEN: &str = "kept at the server";
pub(crate) const SOURCE_LOST: &str = "connection to the source lost";
pub(crate) const NOT_PROTECTED: &str = "NOT protected";
pub(crate) const NOT_COMPARED: &str = "NOT compared";
pub(crate) const NOT_RECORDED: &str = "NOT on record";
pub(crate) const NOT_KNOWN: &str = "NOT known";
pub(crate) const CAME_ALONG: &str = "came along";

/// What a line of [`Summary::chosen`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChosenKind {
    /// A value that haul chose, and why. There are more of them in each version.
    Value,
    /// What other copies left at the destination.
    Debris,
    /// The destination is of this file system, which keeps files in memory alone.
    InMemory,
    /// Files of copies into the source, which were left out of it, with their number.
    LeftOut,
    /// Special files, which are not copied, with their number.
    Skipped,
    /// What a dry run could not look at.
    Unseen,
    /// Directories of other users, whose mode and times could not be set.
    OthersDirs,
    /// What each of several servers that have the source gave, and why one was left.
    Replicas,
    /// How often the copy was begun, where that was more than once, and why.
    Attempts,
    /// What went to a server more than once, and why.
    SentAgain,
    /// How often a connection to a server, of the source or at the destination, was lost, and waited for.
    ConnectionLost,
    /// What a server that could not be asked any more may have of unfinished files, which a resume goes on
    /// with.
    KeptUnseen,
    /// What somebody on the way to a server can read and change.
    NotProtected,
    /// What a server keeps of files, of whose content nothing but its word is known.
    NotCompared,
    /// What was begun at a server, in place or so that it could be gone on with, and stands on no record of
    /// this host.
    NotRecorded,
    /// What the source's server does not tell of entries.
    NotKnown,
    /// Files that are called as unfinished ones of other copies, and came along as any other.
    CameAlong,
}

/// A line on what haul chose, or found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Chosen {
    /// What it is about.
    pub kind: ChosenKind,
    /// Its name, as reports show it. What the other end says may have any name.
    pub name: String,
    /// The value, and in brackets the reason; for people.
    pub value: String,
}

impl Chosen {
    /// A line of this name; the kind is that of the name.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Chosen {
        let name = name.into();
        let kind = match &*name {
            DEBRIS => ChosenKind::Debris,
            IN_MEMORY => ChosenKind::InMemory,
            LEFT_OUT => ChosenKind::LeftOut,
            SKIPPED => ChosenKind::Skipped,
            UNSEEN => ChosenKind::Unseen,
            OTHERS_DIRS => ChosenKind::OthersDirs,
            REPLICAS => ChosenKind::Replicas,
            ATTEMPTS => ChosenKind::Attempts,
            SENT_AGAIN => ChosenKind::SentAgain,
            CONNECTION_LOST | SOURCE_LOST => ChosenKind::ConnectionLost,
            KEPT_UNSEEN => ChosenKind::KeptUnseen,
            NOT_PROTECTED => ChosenKind::NotProtected,
            NOT_COMPARED => ChosenKind::NotCompared,
            NOT_RECORDED => ChosenKind::NotRecorded,
            NOT_KNOWN => ChosenKind::NotKnown,
            CAME_ALONG => ChosenKind::CameAlong,
            _ => ChosenKind::Value,
        };
        Chosen { kind, name, value: value.into() }
    }
}

/// What became of the parts of files that an earlier run left, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Held {
    /// They were read, and what of them was not as it was left was sent again.
    pub checked: u64,
    /// Of these, what was not as it was left.
    pub wrong: u64,
    /// They were believed unread: `resume` is trust.
    pub trusted: u64,
    /// How long the check took; other data moved meanwhile.
    pub seconds: f64,
}

/// What is known of files that two servers moved between them. None of their content came by here, so that
/// nothing of it was hashed here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThirdParty {
    /// Files whose sum both servers told alike.
    pub compared: u64,
    /// Which sum that is.
    pub sum: Option<String>,
    /// Files of which nothing but their size was compared.
    pub not_compared: u64,
    /// Bytes that an earlier run had moved, and that counted.
    pub held: u64,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Everything is where it should be.
    Complete,
    /// Some entries failed, the others are complete.
    Partial,
    /// Ended by an error; can be run again.
    Failed,
    /// Stopped by [`Handle::stop`]; can be resumed.
    Interrupted,
}

/// What a run did.
#[derive(Clone, Debug)]
pub struct Summary {
    /// How it ended.
    pub status: Status,
    /// Files that were copied.
    pub files: u64,
    /// Directories that were made, or set as they are at the source.
    pub dirs: u64,
    /// Of these, directories that stood there, and had mode, time or owner brought up to date.
    pub amended_dirs: u64,
    /// Symbolic links that were made.
    pub symlinks: u64,
    /// Further names that files and symbolic links were given.
    pub hard_links: u64,
    /// FIFOs, sockets and devices that were made.
    pub specials: u64,
    /// Files that were there already.
    pub unchanged: u64,
    /// Those of the unchanged files whose mode or owner was brought up to date.
    pub amended: u64,
    /// What becomes of files that change while they are read: as asked.
    pub changed: Changed,
    /// With `changed` prefix: of the files that were copied, those that grew meanwhile, and what of them was
    /// copied, bytes.
    pub prefixes: u64,
    /// What of them was copied, bytes.
    pub prefix_bytes: u64,
    /// Of the files that were copied, clones of the source's files, and their length, bytes: they share its
    /// blocks, and nothing of them was read, moved, hashed or verified.
    pub cloned: u64,
    /// Their length, bytes.
    pub cloned_bytes: u64,
    /// Entries that an option said to leave.
    pub skipped: u64,
    /// Entries that were not copied.
    pub failed: u64,
    /// Of these, entries that were gone from the source when they were to be read.
    pub vanished: u64,
    /// Of these, entries that fail again until somebody moves or renames something: their name is taken, or
    /// cannot be.
    pub lasting: u64,
    /// The command makes no sense as it stands, and nothing was done.
    pub usage: bool,
    /// Sizes of the files that were copied, bytes: holes and what an earlier run left included.
    pub bytes: u64,
    /// Data that was moved, also within one host: no holes; what was sent again is included.
    pub bytes_sent: u64,
    /// Objects that went more than once.
    pub objects_resent: u64,
    /// How long the run took.
    pub seconds: f64,
    /// User and system time of this whole process up to now, whatever else it did.
    pub cpu_seconds_near: f64,
    /// `None`: there is no far end, or it did not say.
    pub cpu_seconds_far: Option<f64>,
    /// Most resident memory that this whole process had up to now, bytes.
    pub rss_near: u64,
    /// The same of the far end, if it said.
    pub rss_far: Option<u64>,
    /// Data streams that were used at the end.
    pub streams: u16,
    /// `tls`, `integrity` (data unencrypted), `ssh` or `local`.
    pub protect: String,
    /// What files were hashed with.
    pub digest: Digest,
    /// What was verified: as asked.
    pub verify: Verify,
    /// With `verify` disk: how often a file came back wrong from the destination's storage. The first time it
    /// is written again, the second time it fails.
    pub came_back: u64,
    /// Whether what an earlier run left was read before it counted.
    pub resume: Resume,
    /// What became of what an earlier run left.
    pub held: Held,
    /// Where the data went, in words for people.
    pub path: String,
    /// What was asked for; `None`: the destination keeps nothing (`null://`).
    pub durability: Option<Durability>,
    /// It is a server that keeps what was copied, and its word is all that is known of that: nothing was
    /// synced.
    pub servers_word: bool,
    /// The source lies at a server that is no haul.
    pub from_server: bool,
    /// Two servers moved the data between them. What is durable is then no more than their word.
    pub third_party: Option<ThirdParty>,
    /// Files were written into those that stood at the destination.
    pub in_place: bool,
    /// The part of one file that was copied, if not files as a whole.
    pub part: Option<Part>,
    /// In the order of [`Stage::ALL`].
    pub stages: [StageTime; 5],
    /// Of the source's host and of the sink's, by whomever they were kept busy while payload moved; `None`:
    /// not known.
    pub processors: [Option<Processors>; 2],
    /// What haul itself used of these processors over the whole run, 0 to 1.
    pub own_shares: [Option<f64>; 2],
    /// The stage that limits the rate; `None`: none can be named.
    pub limited_by: Option<Stage>,
    /// What the copy does not carry over, with the number of entries concerned.
    pub not_kept: Vec<(String, u64)>,
    /// Connections from strangers that were turned away.
    pub strays: u64,
    /// What is unfinished at an interrupt or an error is gone on with by the same command; `false`: only what
    /// is finished counts, for the source does not prove that a file is still the one that was begun.
    pub resumes: bool,
    /// It is not, and would be for who believes the server (`Resume::Trust`).
    pub would_resume_by_trust: bool,
    /// An earlier run of this job had left a journal, and the source is one that can be gone on with; or a
    /// server had some of a file, which was gone on with.
    pub resumed: bool,
    /// Of a run that did not come to its end: bytes of unfinished files that a resume finds at the
    /// destination.
    pub kept: u64,
    /// Why the run as a whole ended, if not well.
    pub error: Option<Error>,
    /// The user's own limit held the rate down.
    pub rate_limited: bool,
    /// The memory limit held the rate down.
    pub memory_limited: bool,
    /// What haul chose, with the reason, and what it found.
    pub chosen: Vec<Chosen>,
    /// Storage targets that were congested or hung for a noticeable time, the worst of each end; and how many
    /// more.
    pub slow_targets: Vec<SlowTarget>,
    /// How many more there were.
    pub slow_others: u64,
}

impl Summary {
    /// The file system of the destination, if it keeps files in memory alone.
    pub fn in_memory(&self) -> Option<&str> {
        self.chosen.iter().find(|line| line.kind == ChosenKind::InMemory).map(|line| line.value.as_str())
    }

    /// The host that limited the rate had no processor left, and it was other programs that had them: what
    /// haul itself used.
    pub fn others_busy(&self) -> Option<f64> {
        let end = match self.limited_by? {
            Stage::SourceHost => 0,
            Stage::SinkHost => 1,
            Stage::SourceStorage | Stage::Network | Stage::SinkStorage => return None,
        };
        self.own_shares[end].filter(|own| others_use_up(self.processors[end], Some(*own)))
    }
}

impl Default for Summary {
    fn default() -> Self {
        Summary {
            status: Status::Failed,
            files: 0,
            dirs: 0,
            amended_dirs: 0,
            symlinks: 0,
            hard_links: 0,
            specials: 0,
            unchanged: 0,
            amended: 0,
            changed: Changed::default(),
            prefixes: 0,
            prefix_bytes: 0,
            cloned: 0,
            cloned_bytes: 0,
            skipped: 0,
            failed: 0,
            vanished: 0,
            lasting: 0,
            usage: false,
            bytes: 0,
            bytes_sent: 0,
            objects_resent: 0,
            seconds: 0.0,
            cpu_seconds_near: 0.0,
            cpu_seconds_far: None,
            rss_near: 0,
            rss_far: None,
            streams: 0,
            protect: "local".into(),
            digest: Digest::default(),
            verify: Verify::default(),
            came_back: 0,
            resume: Resume::default(),
            held: Held::default(),
            path: String::new(),
            durability: Some(Durability::Disk),
            servers_word: false,
            from_server: false,
            third_party: None,
            in_place: false,
            part: None,
            stages: [StageTime::default(); 5],
            processors: [None; 2],
            own_shares: [None; 2],
            limited_by: None,
            not_kept: Vec::new(),
            strays: 0,
            resumes: true,
            would_resume_by_trust: false,
            resumed: false,
            kept: 0,
            error: None,
            rate_limited: false,
            memory_limited: false,
            chosen: Vec::new(),
            slow_targets: Vec::new(),
            slow_others: 0,
        }
    }
}
