//! A job as the user asked for it, and as the near end tells it to the far end.

use std::fmt::Display;
use std::path::PathBuf;

use haul_core::digest::DigestKind;
pub use haul_core::entry::Part;
use haul_core::entry::{KeptNodes, Nodes};
pub use haul_core::schedule::Policy;
use haul_core::transfer::source::OnChange;
use haul_core::tune::rate::RATE_MIN;
use haul_core::wire::{FILE_LEN_MAX, Failure, FailureKind, LIVE_THREADS_MAX, STREAMS_MAX};
use serde::{Deserialize, Serialize};

pub use haul_base::bytes::PathBytes;
use haul_base::escape;
pub use haul_base::role::Role;
pub use haul_storage::manners::Mounted;
use haul_storage::manners::{LinkRule, Manners, OnlyThese};
pub use haul_storage::meta_rate::RATES as META_RATES;
pub use haul_storage::options::{DataChannel, EngineName, IoPolicy, LayoutChoice, Order, StorageOptions};
use haul_storage::place::Place;
pub use haul_storage::store::delegated::Stripes;
pub use haul_transport::Protect;
pub use haul_transport::path::Start;
pub use haul_transport::tcp::CONTROL_LEN_MAX;

use crate::error::Error;
pub use crate::modes::Chmod;
pub use crate::owner_map::OwnerMap;
use crate::passport::Direction;

/// Length of objects where none is asked for, bytes.
pub const OBJECT_SIZE_DEFAULT: u64 = 4 << 20;

/// What a finished file is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Exit 0 only when everything is on media under its name.
    Disk,
    /// No sync is made: a power cut may lose what was reported.
    None,
}

/// What objects and files are hashed with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Digest {
    /// BLAKE3, a cryptographic hash.
    #[default]
    Blake3,
    /// Finds accidents and no attackers, for a fifth of the time.
    Xxh3,
}

impl Digest {
    /// The kind of core with the same name.
    pub fn kind(self) -> DigestKind {
        match self {
            Digest::Blake3 => DigestKind::Blake3,
            Digest::Xxh3 => DigestKind::Xxh3,
        }
    }
}

/// How far a file is followed before it counts as copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verify {
    /// Up to the buffer that is written.
    #[default]
    Transfer,
    /// Up to what the sink's storage gives back after its sync.
    Disk,
}

/// What becomes of the parts of files that an earlier run left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resume {
    /// They are read at the destination, and what is not as it was left is sent again.
    #[default]
    Check,
    /// The journal is believed.
    Trust,
}

/// What becomes of a source file that changes while it is copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Changed {
    /// It fails.
    Fail,
    /// It is tried once more, then it fails.
    #[default]
    Retry,
    /// One that only grows is copied up to the length that it had at its start; any other fails.
    Prefix,
}

impl Changed {
    /// The choice of core with the same name.
    pub fn choice(self) -> OnChange {
        match self {
            Changed::Fail => OnChange::Fail,
            Changed::Retry => OnChange::Retry,
            Changed::Prefix => OnChange::Prefix,
        }
    }
}

/// Whether files share the blocks of the source's, where both ends are on one host and one file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reflink {
    /// Those of more than [`CLONE_LEN_MIN`] bytes, where the file system can do that, and nothing that the
    /// user chose wants them read.
    #[default]
    Auto,
    /// All that have any bytes, or they fail.
    Always,
    /// None: all are read, and what is written has their hash.
    Never,
}

/// With [`Reflink::Auto`] shorter files are read: that takes as long as to clone them, and checks them.
pub const CLONE_LEN_MIN: u64 = haul_core::transfer::SMALL_LEN_MAX + 1;

/// A part of one source file, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// Of its first byte, from the beginning of the file.
    pub offset: u64,
    /// `None`: to the file's end.
    pub len: Option<u64>,
}

/// All that can be chosen. Every default is in [`Options::default`] with its reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    /// Directories with all that is in them.
    pub recursive: bool,
    /// `-a`: recursive, and keep owner and group where that is allowed; where an end is a server they are not
    /// kept, which the summary says.
    pub archive: bool,
    /// Keep owner and group, as `archive` does, and nothing else of what that does.
    pub owners: bool,
    /// Keep extended attributes: `user.*`, and, as root, `trusted.*` and the rights of programs
    /// (`security.capability`); never what file systems and security modules keep for themselves. Others that
    /// stand at the destination go. Where an end is a server or a volume none are kept, which the summary
    /// says.
    pub xattrs: bool,
    /// Keep access control lists, POSIX ones with users and groups by number. Others that stand at the
    /// destination go. Where an end is a server or a volume none are kept.
    pub acls: bool,
    /// Keep hard links: names of one file that are copied in this job, from any of its sources, are names of
    /// one file at the destination, and its data moves once. Where a name cannot be one there it becomes a
    /// file of its own, and fails as an entry. Where an end is a server or a volume none are kept, which the
    /// summary says.
    pub hard_links: bool,
    /// Keep owners and groups by number, whatever they are called: else by name, where the destination's host
    /// knows it.
    pub numeric_ids: bool,
    /// Give files and directories at the destination other modes than they have at the source: these, made of
    /// them. Not together with `acls`.
    pub chmod: Option<Chmod>,
    /// With `archive`: users at the destination in the place of those at the source. Not where an end is a
    /// server; where it depends on names, not together with `numeric_ids`.
    pub usermap: Option<OwnerMap>,
    /// The same of groups.
    pub groupmap: Option<OwnerMap>,
    /// Keep devices, and FIFOs and sockets (`specials`): as such, and nothing of what they give. `archive`
    /// keeps them, too, where that is possible; what was asked for here and cannot be made fails.
    pub devices: bool,
    /// FIFOs and sockets.
    pub specials: bool,
    /// Of what `archive` keeps, no devices, and no FIFOs and sockets.
    pub no_devices: bool,
    /// FIFOs and sockets.
    pub no_specials: bool,
    /// What a finished file is worth.
    pub durability: Durability,
    /// Replace even when size and modification time agree.
    pub force: bool,
    /// Leave what stands at the destination.
    pub no_clobber: bool,
    /// Replace only what is older than the source.
    pub update: bool,
    /// Leave symbolic links out, and count them.
    pub no_links: bool,
    /// What becomes of a directory of another file system than that of its source, as `stat` tells them
    /// apart: a subvolume of btrfs is another one, and a directory of the same file system that is mounted
    /// there is not. Where the source is at a server or in a volume it is refused, as are following links and
    /// `only`.
    pub one_file_system: Mounted,
    /// Follow all symbolic links of the source: what they lead to is copied in their place. One that leads
    /// nowhere fails; so does one that leads back to a directory that it lies in.
    pub copy_links: bool,
    /// Follow those symbolic links of the source that lead to directories.
    pub copy_dirlinks: bool,
    /// Follow those symbolic links of the source that lead out of what is copied.
    pub copy_unsafe_links: bool,
    /// Leave symbolic links out that are absolute or lead out of what is copied, and count them.
    pub safe_links: bool,
    /// Take a symbolic link for a directory where a directory comes and the link stood there before. One that
    /// came with the copy is never followed, nor one that leads through such a one.
    pub keep_dirlinks: bool,
    /// These entries alone, by their paths at the destination, with all that is below them; each that is not
    /// there any more fails as vanished. With `hard_links` a file of which other names are not among them is
    /// copied and fails, for it may be parted. `None`: all. At most [`ONLY_LEN_MAX`] bytes where the source
    /// is at another host.
    pub only: Option<Vec<PathBytes>>,
    /// Most payload bytes in memory at each end, two objects at least; `None`: chosen from RAM and the
    /// cgroup's limit.
    pub memory: Option<u64>,
    /// Data streams, 1 to 64; `None`: chosen. Between two servers: connections for one file, where they take
    /// several.
    pub streams: Option<u16>,
    /// Bytes per second of payload and frames, all streams together, 64 KiB at least; `None`: no limit.
    pub rate: Option<u64>,
    /// Bytes that each stream's buffers shall hold under way, at both ends, 64 KiB to 1 GiB; `None`: the
    /// kernel's own growth.
    pub window: Option<u64>,
    /// Congestion control of the data streams; `None`: chosen.
    pub congestion: Option<String>,
    /// Threads that read at the source, 1 to 256; `None`: chosen.
    pub readers: Option<u16>,
    /// Threads that write at the sink, 1 to 256; `None`: chosen.
    pub writers: Option<u16>,
    /// Object size, bytes, a power of two from 64 KiB to 64 MiB; `None`: 4 MiB.
    pub object_size: Option<u32>,
    /// Where the journal lies instead of the destination directory.
    pub state_dir: Option<PathBuf>,
    /// Every file needs its root at the near end.
    pub manifest: bool,
    /// The sink looks and tells what a copy would change; nothing is sent, made or changed.
    pub dry_run: bool,
    /// How long a network that is down is waited for, in seconds; `None`: five minutes, 0: not at all. Also
    /// how long a server of the source may be silent; `None`: 30 s, 0: one second. And, where nobody can be
    /// asked ([`RemoteOptions::interactive`](crate::api::RemoteOptions::interactive)), how long ssh may say
    /// nothing before the far end speaks; `None`: two minutes, and at least ten seconds.
    pub patience: Option<u32>,
    /// For how long what fails and may pass is tried again, in seconds, up to thirty days: reads from a
    /// server, and, where the connection to the far end is lost or not made, the copy as a whole; `None`: a
    /// few times over some seconds, and the copy not.
    pub retry_for: Option<u32>,
    /// How often at most a copy is begun again as a whole where the connection to the far end is lost or not
    /// made, after growing pauses of up to a minute; `None`: as often as `retry_for` allows. It goes on where
    /// it stopped.
    pub retries: Option<u32>,
    /// Whom to ask what becomes of what failed: a command of this host and its arguments, see
    /// `docs/library.md`; empty: nobody. What it has no answer for goes by `retry_for`.
    #[serde(skip)]
    pub retry_command: Vec<String>,
    /// What files are hashed with.
    pub digest: Digest,
    /// What protects the data on its way.
    pub protect: Protect,
    /// What is protected on data connections of GridFTP servers.
    pub data_channel: DataChannel,
    /// What a file is held against its hash after.
    pub verify: Verify,
    /// Whether what an earlier run left is read before it counts.
    pub resume: Resume,
    /// What becomes of a file that changes while it is read.
    pub changed: Changed,
    /// Whether files become clones of the source's. What is cloned is not read, and nothing of it is hashed.
    pub reflink: Reflink,
    /// What the passport of the network says, for what the user left open.
    pub start: Option<Start>,
    /// Source: a directory on flash for what is read while the sink stalls, and the bytes that may be used
    /// there; `None`: 16 GiB, or a quarter of what is free.
    pub spill_dir: Option<PathBuf>,
    /// Most bytes of it.
    pub spill_size: Option<u64>,
    /// Which object is next, and at which storage target; in JSON as it is typed.
    #[serde(with = "policy_text")]
    pub schedule: Policy,
    /// How new files come to lie on the destination's storage targets.
    pub layout: LayoutChoice,
    /// Between two servers: how a file is laid out over several nodes; `None`: as they like.
    pub stripes: Option<Stripes>,
    /// These bytes of one source file, instead of sources as a whole.
    pub range: Option<Range>,
    /// Where they go in the destination's file, which keeps what else it holds; `None`: they are all of it.
    pub to: Option<u64>,
    /// Files are written into those that stand there, without a temporary. So is what goes `to` an offset.
    pub in_place: bool,
    /// How the source's storage is driven, and the sink's.
    pub source_storage: StorageOptions,
    /// How the sink drives its storage.
    pub sink_storage: StorageOptions,
}

/// Longest that something is tried again, seconds.
pub const RETRY_FOR_MAX: u32 = 30 * 86_400;
/// Most often that a copy is begun again.
pub const RETRIES_MAX: u32 = 1000;
/// Bytes of paths that a far source can be told of: they go with what it is asked for.
pub const ONLY_LEN_MAX: usize = 512 << 10;

impl Default for Options {
    fn default() -> Self {
        Options {
            recursive: false,
            archive: false,
            owners: false,
            xattrs: false,
            acls: false,
            hard_links: false,
            numeric_ids: false,
            chmod: None,
            usermap: None,
            groupmap: None,
            devices: false,
            specials: false,
            no_devices: false,
            no_specials: false,
            durability: Durability::Disk,
            force: false,
            no_clobber: false,
            update: false,
            no_links: false,
            one_file_system: Mounted::Copied,
            copy_links: false,
            copy_dirlinks: false,
            copy_unsafe_links: false,
            safe_links: false,
            keep_dirlinks: false,
            only: None,
            memory: None,
            streams: None,
            rate: None,
            window: None,
            congestion: None,
            readers: None,
            writers: None,
            object_size: None,
            state_dir: None,
            manifest: false,
            dry_run: false,
            patience: None,
            retry_for: None,
            retries: None,
            retry_command: Vec::new(),
            digest: Digest::default(),
            protect: Protect::default(),
            data_channel: DataChannel::default(),
            verify: Verify::default(),
            resume: Resume::default(),
            changed: Changed::default(),
            // As cp has it: what takes no time and no room is what a user of such a file system expects.
            reflink: Reflink::default(),
            start: None,
            spill_dir: None,
            spill_size: None,
            // It has no number to set, and leaves a lone target alone.
            schedule: Policy::ADAPTIVE,
            // Who set the destination up knows more than who copies.
            layout: LayoutChoice::Auto,
            stripes: None,
            range: None,
            to: None,
            in_place: false,
            source_storage: StorageOptions::default(),
            sink_storage: StorageOptions::default(),
        }
    }
}

impl Options {
    /// The part of a file that comes.
    pub fn part(&self) -> Option<Part> {
        self.range.map(|Range { offset, len }| Part { source: offset, len, sink: self.to })
    }

    /// Which symbolic links of the source are followed, and which left out.
    pub(crate) fn link_rule(&self) -> LinkRule {
        let Options { copy_links: all, copy_dirlinks: dirs, copy_unsafe_links: outside, .. } = *self;
        LinkRule { all, dirs, outside, safe: self.safe_links }
    }

    /// How the source is walked.
    ///
    /// # Errors
    /// What is wanted alone is no list of paths.
    pub(crate) fn manners(&self) -> Result<Manners, Failure> {
        let only = match &self.only {
            None => None,
            Some(paths) => OnlyThese::new(paths.iter().map(|path| &path.0[..])).map_err(|(index, why)| {
                let path = escape::within(&paths[index].0);
                let text = format!("`only`: {path} is no path at the destination: {why}");
                Failure { kind: FailureKind::Usage, errno: 0, text: text.into() }
            })?,
        };
        Ok(Manners { links: self.link_rule(), mounted: self.one_file_system, only, sink_here: None })
    }

    /// The source is walked as an end that does not know these choices would not do it.
    pub(crate) fn walks_otherwise(&self) -> bool {
        let plain = self.link_rule() == LinkRule::default() && self.one_file_system == Mounted::Copied;
        !plain || self.only.is_some()
    }

    /// What entries get at the destination in the place of what they have at the source.
    pub(crate) fn given(&self) -> Given {
        let Options { numeric_ids, ref chmod, ref usermap, ref groupmap, .. } = *self;
        Given { numeric_ids, chmod: chmod.clone(), users: usermap.clone(), groups: groupmap.clone() }
    }

    /// FIFOs, sockets and devices that are kept, and those of them that were asked for by name.
    pub(crate) fn nodes(&self) -> KeptNodes {
        let asked = Nodes { specials: self.specials, devices: self.devices };
        let specials = (self.specials || self.archive) && !self.no_specials;
        let devices = (self.devices || self.archive) && !self.no_devices;
        KeptNodes { kept: Nodes { specials, devices }, asked }
    }

    /// Nothing that is written gets another name.
    pub fn is_in_place(&self) -> bool {
        self.in_place || self.to.is_some()
    }

    /// Whether these choices go together, and each number is in its range. A copy checks it, too, before it
    /// does anything.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`](crate::api::ErrorKind): the first that does not.
    pub fn check(&self) -> Result<(), Error> {
        self.check_choices().map_err(Error::usage)?;
        self.manners().map_err(|failure| Error::usage(failure.text))?;
        self.check_numbers().map_err(Error::usage)
    }

    /// Choices that do not go together.
    ///
    /// # Errors
    /// Says which.
    pub(crate) fn check_choices(&self) -> Result<(), &'static str> {
        if self.digest == Digest::Xxh3 && self.manifest {
            return Err(
                "a manifest holds BLAKE3 hashes, and `digest=xxh3` makes none; leave one of them out",
            );
        }
        self.check_range()?;
        self.check_reflink()?;
        self.check_in_place()?;
        self.check_links()?;
        self.check_given()?;
        if self.resume == Resume::Trust && self.manifest && !haul_mutant::removed("trust-makes-no-manifest") {
            return Err(
                "a manifest holds hashes of what was read, and `resume=trust` leaves parts of files unread; \
                        leave one of them out",
            );
        }
        if self.digest == Digest::Xxh3
            && self.protect == Protect::Integrity
            && !haul_mutant::removed("integrity-needs-blake3")
        {
            return Err("`protect=integrity` guards data by its digest alone, and xxh3 stops no attacker: \
                        use `digest=blake3` with it, or `protect=tls`");
        }
        Ok(())
    }

    /// Numbers that are not in their range.
    ///
    /// # Errors
    /// Says which, and the range.
    pub(crate) fn check_numbers(&self) -> Result<(), String> {
        fn within<T: Copy + PartialOrd + Display>(
            what: &str,
            asked: Option<T>,
            range: [T; 2],
        ) -> Result<(), String> {
            let [least, most] = range;
            match asked {
                Some(asked) if asked < least || asked > most => {
                    Err(format!("{what}: {asked} was asked for, and there can be {least} to {most}"))
                }
                _ => Ok(()),
            }
        }
        fn power_of_two(what: &str, asked: Option<u32>) -> Result<(), String> {
            match asked {
                Some(asked) if !asked.is_power_of_two() => Err(format!("{what}: {asked} is no power of two")),
                _ => Ok(()),
            }
        }
        within("streams", self.streams, [1, STREAMS_MAX])?;
        if let Some(rate) = self.rate.filter(|rate| *rate < RATE_MIN) {
            return Err(format!(
                "rate: {rate} bytes per second were asked for, and {RATE_MIN} are the least"
            ));
        }
        within("window, bytes", self.window, [64 << 10, 1 << 30])?;
        within("readers", self.readers, [1, LIVE_THREADS_MAX])?;
        within("writers", self.writers, [1, LIVE_THREADS_MAX])?;
        within("object size, bytes", self.object_size, [64 << 10, 64 << 20])?;
        power_of_two("object size, bytes", self.object_size)?;
        // One object at rest and one in flight is the least that moves at all. What lies above the most is no
        // memory.
        let two = 2 * self.object_size.map_or(OBJECT_SIZE_DEFAULT, u64::from);
        if self.memory.is_some_and(|memory| memory < two) {
            return Err(format!("memory must hold two objects at least, {} MiB here", two.div_ceil(1 << 20)));
        }
        within("memory, bytes", self.memory, [1, 1 << 60])?;
        within("patience, seconds", self.patience, [0, 86_400])?;
        within("retries", self.retries, [0, RETRIES_MAX])?;
        within("retry for, seconds", self.retry_for, [1, RETRY_FOR_MAX])?;
        if self.spill_size == Some(0) {
            return Err("spill size: no bytes hold nothing".into());
        }
        for (side, storage) in [("source", &self.source_storage), ("sink", &self.sink_storage)] {
            let named = |what: &str| format!("{what} of the {side}");
            within(&named("request size, bytes"), storage.request_size, [4 << 10, 64 << 20])?;
            power_of_two(&named("request size, bytes"), storage.request_size)?;
            within(&named("depth"), storage.depth, [1, 256])?;
            within(&named("objects in flight"), storage.in_flight, [1, 2048])?;
            within(&named("I/O threads"), storage.threads, [1, 64])?;
            within(&named("deadline, milliseconds"), storage.deadline_ms, [1, 3_600_000])?;
            within(&named("metadata rate"), storage.meta_rate, META_RATES)?;
        }
        Ok(())
    }

    /// What is to be known of files, or done with them, so that they are read and not cloned.
    pub(crate) fn reads_all(&self) -> Option<&'static str> {
        match self {
            _ if haul_mutant::removed("what-is-hashed-is-read") => None,
            Options { manifest: true, .. } => Some("a manifest holds hashes of what was read"),
            Options { verify: Verify::Disk, .. } => Some("what is verified is read"),
            Options { range: Some(_), .. } => Some("a part of a file is read"),
            _ if self.is_in_place() => Some("nothing is cloned into a file that stands there"),
            _ => None,
        }
    }

    fn check_reflink(&self) -> Result<(), &'static str> {
        match self.reflink == Reflink::Always && self.reads_all().is_some() {
            true => Err(
                "`reflink=always` clones files and reads none, and `manifest`, `verify=disk`, `range` and `in_place` want them \
                        read or written: leave one of them out, or use `reflink=auto`",
            ),
            false => Ok(()),
        }
    }

    fn check_range(&self) -> Result<(), &'static str> {
        let Some(Range { offset, len }) = self.range else {
            return match self.to {
                Some(_) => {
                    Err("`to` says where in the destination's file a part goes; say which part with `range`")
                }
                None => Ok(()),
            };
        };
        let ends = |from: u64| from.checked_add(len.unwrap_or(0)).is_some_and(|end| end <= FILE_LEN_MAX);
        if len == Some(0) {
            return Err("`range` has a length of 0 bytes: there is nothing to copy");
        }
        if !ends(offset) || !ends(self.to.unwrap_or(0)) {
            return Err("`range` or `to` goes beyond what the longest file can have");
        }
        Ok(())
    }

    fn check_links(&self) -> Result<(), &'static str> {
        if self.copy_links && self.no_links {
            return Err(
                "`copy_links` copies what links lead to, and `no_links` leaves links out: leave one of them out",
            );
        }
        if self.copy_links && self.safe_links {
            return Err(
                "`copy_links` follows every link, those too that `safe_links` leaves out: leave one of them out",
            );
        }
        if self.copy_unsafe_links && self.safe_links {
            return Err(
                "`copy_unsafe_links` follows the links that `safe_links` leaves out: leave one of them out",
            );
        }
        Ok(())
    }

    /// Owners and groups are kept, where that is allowed.
    pub fn keeps_owners(&self) -> bool {
        self.archive || self.owners
    }

    fn check_given(&self) -> Result<(), &'static str> {
        if self.chmod.is_some() && self.acls {
            return Err(
                "`chmod` changes modes, and an access control list, which `acls` keeps, says what its mode is: leave one of them out",
            );
        }
        let maps = self.usermap.is_some() || self.groupmap.is_some();
        if maps && !self.keeps_owners() {
            return Err(
                "`usermap` and `groupmap` say whom files belong to, and without `archive` they belong to whoever writes them: give that, \
                        too",
            );
        }
        if maps && self.numeric_ids && self.given().needs_names() {
            return Err(
                "with `numeric_ids` nobody has a name at the source, and `usermap` or `groupmap` has names or patterns of names before \
                        a colon: write numbers there, or leave one of them out",
            );
        }
        Ok(())
    }

    fn check_in_place(&self) -> Result<(), &'static str> {
        if self.is_in_place() && (self.no_clobber || self.update) {
            return Err(
                "`in_place` (and `to`) leaves a file that is partly new where it is interrupted, which `no_clobber` and \
                        `update` would take for one to leave alone; leave one of them out",
            );
        }
        if self.is_in_place() && self.resume == Resume::Trust {
            return Err(
                "`in_place` (and `to`) goes on with a file that anybody could change meanwhile, so that what is there is read \
                        before it counts; leave `resume=trust` out",
            );
        }
        Ok(())
    }
}

/// What entries get at the destination in the place of what they have at the source.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given {
    /// Owners are kept by number, whatever they are called.
    pub(crate) numeric_ids: bool,
    /// Other modes.
    pub(crate) chmod: Option<Chmod>,
    /// Others in the place of users, and of groups.
    pub(crate) users: Option<OwnerMap>,
    pub(crate) groups: Option<OwnerMap>,
}

impl Given {
    /// A sink must know of it.
    pub(crate) fn any(&self) -> bool {
        self.chmod.is_some() || self.users.is_some() || self.groups.is_some()
    }

    /// It depends on what owners are called at the source.
    pub(crate) fn needs_names(&self) -> bool {
        [&self.users, &self.groups].into_iter().flatten().any(OwnerMap::needs_names)
    }
}

/// A policy as it is typed.
mod policy_text {
    use haul_core::schedule::Policy;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(policy: &Policy, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(policy)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Policy, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// What the near end asks of the agent that it started, as JSON over its stdin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[doc(hidden)]
pub struct AgentRequest {
    /// The role of the agent.
    pub role: Role,
    /// What was typed after the colon (empty if the agent is the sink). `~` is expanded there.
    pub sources: Vec<Place>,
    /// The same of the destination (`None` if the agent is the source).
    pub destination: Option<Place>,
    /// Where else the only source lies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<Place>,
    /// What the user asked for.
    pub options: Options,
    /// How long ago the first attempt of this copy began, milliseconds, if this is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun_ms: Option<u64>,
    /// The agent is a source that measures the network, instead of one that copies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial: Option<NetworkTrial>,
    /// Answered before the session: what the storage there gives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<StorageQuestion>,
}

impl AgentRequest {
    /// A request for a copy.
    pub fn new(
        role: Role,
        sources: Vec<Place>,
        destination: Option<Place>,
        options: Options,
    ) -> AgentRequest {
        AgentRequest {
            role,
            sources,
            destination,
            replicas: Vec::new(),
            options,
            begun_ms: None,
            trial: None,
            question: None,
        }
    }
}

impl haul_launch::Request for AgentRequest {
    type Question = StorageQuestion;

    fn needs(&self) -> haul_launch::Needs {
        let Options { protect, window, memory, ref congestion, ref start, .. } = self.options;
        let (congestion, start) = (congestion.clone(), start.clone());
        haul_launch::Needs { role: self.role, protect, window, memory, congestion, start }
    }

    fn question(&self) -> Option<&StorageQuestion> {
        self.question.as_ref()
    }

    fn check(&self) -> Result<(), &'static str> {
        self.options.check_choices()
    }
}

/// What a source at the far end shall measure, and what that may cost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[doc(hidden)]
pub struct NetworkTrial {
    /// For how long, milliseconds.
    pub time_ms: u64,
    /// Most payload bytes; `None`: no limit but the time.
    pub bytes: Option<u64>,
    /// Every setting, not only those near the best.
    pub full: bool,
    /// What it is narrowed to.
    pub only: Only,
    /// The largest receive buffer that the sink can fix, bytes.
    pub rmem_fixed: Option<u64>,
}

/// Settings to which a probe of a network is narrowed. An empty list narrows nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Only {
    /// 1 to 64.
    pub streams: Vec<u16>,
    /// Bytes; 0 is the kernel's own growth.
    pub windows: Vec<u64>,
    /// Names.
    pub controls: Vec<String>,
}

/// A probe of the storage at the far end, and what that may cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[doc(hidden)]
pub struct StorageQuestion {
    /// What was typed after the colon.
    pub place: Place,
    /// Whether its reading or its writing is measured.
    pub direction: Direction,
    /// For how long, milliseconds.
    pub time_ms: u64,
    /// Most bytes read and written together.
    pub bytes: u64,
    /// A network file system may be loaded.
    pub network_ok: bool,
    /// The result becomes the storage's passport there.
    pub keep: bool,
}
