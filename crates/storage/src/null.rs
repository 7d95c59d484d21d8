//! Ends without storage, for measuring the software itself: `null://SIZE` and `zero://SIZE` as sources,
//! `null://` as a sink.
//!
//! In: the operations of the session machines. Out: their completions, at once. Payload of `null://` is never
//! touched by storage: it is whatever the pool's memory holds, which is zeroes, for nothing else ever fills
//! it at this end. `zero://` fills each buffer, as a read from the page cache would. Both are hashed, sealed
//! and sent like any file; the sink checks each object, and forgets it.
//!
//! Left out: many files, directories, a journal (there is nothing to resume).

use std::sync::Arc;
use std::time::Duration;

use haul_core::change::Change;
use haul_core::digest::DigestKind;
use haul_core::entry::{EntryKind, Extras, Fingerprint, Meta, NOBODY, Name, Timestamp, Version};
use haul_core::extents::ExtentMap;
use haul_core::ids::{BufferId, DirId, FileId, Generation, TargetId};
use haul_core::io::IoMode;
use haul_core::journal::{Replayed, RootId};
use haul_core::layout::Layout;
use haul_core::transfer::op::{
    BundleOk, Existing, Found, HashOk, Joined, Look, ReadOk, SinkDone, SinkOp, SourceDone, SourceOp, Took,
};
use haul_core::transfer::source::Lies;
use haul_core::wire::{Announced, Failure, FailureKind, SourceRoot, Totals};

use super::io::null::Null;
use super::io::threads::{IoThreads, IoThreadsConfig, Transfer, TransferDone};
use super::io::{IoFile, IoKind, IoTarget};
use super::io_settings::{depth_of, io_threads_of};
use super::owed::Owed;
use super::place::{Form, Place, Rest, Scheme, Sources, read_path};
use super::sink::looker::Looker;
use super::source::{READERS_MAX, ReadConfig};
use super::store::job::{begin_journal, names_of};
use super::store::{
    Capabilities, Claimed, Coming, Directories, Durable, HeldJob, Looks, Reading, SinkStore, SourceNames,
    SourceParts, SourceStore, Stamp, Waiting, Writing,
};
use super::targets::Targets;
use super::walk::{Walk, WalkItem};
use super::{Post, SinkCompletion, SinkEngine, SinkJob, SourceCompletion, SourceEngine, SourceJob, Stuck};
use haul_base::digest;
use haul_base::meter::Meter;
use haul_base::size::parse_size;

/// Largest made-up file, bytes.
pub const SIZE_MAX: u64 = 1 << 60;

/// Zeroes that nobody writes, and what keeps nothing.
pub static NULL: Scheme = Scheme {
    name: "null",
    source: Some(Form { written: "null://SIZE", example: "null://200GiB", sized: true }),
    sink: Some(Form { written: "null://", example: "null://", sized: false }),
    server: false,
    foreign: false,
    alone: true,
    keeps: false,
    resumes: true,
    read: |rest| if rest.is_empty() { read_path(rest) } else { read_size(rest) },
    open_source: Some(made),
    open_sink: Some(|_| Ok(Box::new(Nowhere))),
};

/// Zeroes that are filled in.
pub static ZERO: Scheme = Scheme {
    name: "zero",
    source: Some(Form { written: "zero://SIZE", example: "zero://10GiB", sized: true }),
    sink: None,
    server: false,
    foreign: false,
    alone: true,
    keeps: false,
    resumes: true,
    read: read_size,
    open_source: Some(made),
    open_sink: None,
};

/// The made-up file that a place is.
fn made(sources: &Sources<'_>) -> Result<Box<dyn SourceStore>, Failure> {
    let made = sources.places.first().and_then(Synthetic::of);
    let made =
        made.ok_or_else(|| Failure { kind: FailureKind::Usage, errno: 0, text: "it has no size".into() })?;
    Ok(Box::new(made))
}

/// A size as people write it, or in bytes; its path is the latter.
fn read_size(rest: &[u8]) -> Result<Rest, String> {
    match parse_size(&String::from_utf8_lossy(rest))? {
        size @ ..=SIZE_MAX => Ok(Rest { path: size.to_string().into_bytes(), size: Some(size) }),
        _ => Err("a made-up file has at most 1 EiB".into()),
    }
}

/// A source of zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synthetic {
    /// Bytes.
    pub size: u64,
    /// Buffers are filled, not only counted.
    pub fill: bool,
}

impl Synthetic {
    /// The file of a place that makes it up; `None`: another place, or one without a size.
    pub fn of(place: &Place) -> Option<Synthetic> {
        let fill = *place.scheme() == ZERO;
        let size = place.size().filter(|_| fill || *place.scheme() == NULL)?;
        Some(Synthetic { size, fill })
    }

    /// The name that the file takes at the sink.
    pub fn name(&self) -> Name {
        let name: &[u8] = if self.fill { b"zero" } else { b"null" };
        Name::new(name).expect("a constant that is a legal name")
    }

    /// What is told to the sink before the walk.
    pub fn root(&self) -> SourceRoot {
        SourceRoot::Named { name: self.name(), is_dir: false }
    }

    /// The whole walk: one file of one version, whenever it is asked for.
    pub fn walk(&self, object_size: u32) -> Vec<WalkItem> {
        // Long ago, so that no change could hide in the grain of a clock.
        let then = Timestamp { secs: 1_000_000_000, nanos: 0 };
        let fingerprint = Fingerprint { size: self.size, mtime: then, version: Version::NONE };
        let entry = Announced {
            id: FileId(1),
            generation: Generation(0),
            parent: DirId::ROOT,
            name: self.name(),
            meta: Meta { mode: 0o600, uid: NOBODY, gid: NOBODY, mtime: then },
            kind: EntryKind::File { fingerprint, object_size, sparse: false, striped: false },
            extras: Extras::default(),
        };
        let totals = Totals { files: 1, dirs: 0, symlinks: 0, bytes: self.size };
        vec![WalkItem::Entry(entry), WalkItem::End(totals)]
    }
}

/// What a read has to be answered with.
struct ReadTag {
    owed: Owed<SourceCompletion>,
    id: FileId,
    generation: Generation,
    offset: u64,
    len: u32,
    tail: bool,
    whole: bool,
    target: TargetId,
}

/// Serves a made-up file. Objects go through the I/O threads, as those of real files do.
pub struct SyntheticEngine {
    made: Synthetic,
    digest: DigestKind,
    file: Arc<IoFile>,
    io_threads: IoThreads<ReadTag>,
    post: Post<SourceCompletion>,
    /// IoThreads and depth at the start.
    started: (usize, usize),
    /// How it is read, as it began and as it is now.
    reading: [ReadConfig; 2],
}

impl SyntheticEngine {
    /// Starts the I/O threads.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        made: Synthetic,
        reading: ReadConfig,
        object_size: u32,
        meter: Arc<Meter>,
        post: Post<SourceCompletion>,
    ) -> std::io::Result<SyntheticEngine> {
        let (kind, readers) = (reading.digest, reading.readers);
        let config = io_threads_config(2 * readers, readers, object_size);
        let depth = config.engine.depth;
        let started = (config.io_threads, config.depth);
        let hashing = meter.clone();
        let on_done = Arc::new(move |end: TransferDone<ReadTag>| {
            let (owed, completion) =
                hashing.busy(haul_core::stage::Stage::SourceHost, || completion(kind, end));
            owed.settle(Ok(completion));
        });
        let engine = move || Ok(Box::new(Null::new(made.fill, depth)) as Box<dyn super::io::Engine>);
        let io_threads = IoThreads::start_with(config, meter, on_done, engine)?;
        let scheme = if made.fill { &ZERO } else { &NULL };
        let file = Arc::new(IoFile {
            fd: None,
            mode: IoMode::Buffered,
            target: IoTarget::default(),
            one_writer: false,
            name: format!("{}://", scheme.name).into(),
        });
        Ok(SyntheticEngine {
            made,
            digest: kind,
            file,
            io_threads,
            post,
            started,
            reading: [reading.clone(), reading],
        })
    }

    /// The hash of `len` zeroes.
    fn root(&self, len: u64) -> [u8; 32] {
        self.hashed(0, len).root()
    }

    fn hashed(&self, offset: u64, len: u64) -> digest::Hasher {
        const STEP: usize = 1 << 20;
        let zeroes = vec![0; STEP];
        let mut hasher = digest::Hasher::new(self.digest, offset);
        let mut left = len;
        while left > 0 {
            let step = left.min(STEP as u64);
            hasher.update(&zeroes[..step as usize]);
            left -= step;
        }
        hasher
    }
}

fn completion(kind: DigestKind, end: TransferDone<ReadTag>) -> (Owed<SourceCompletion>, SourceCompletion) {
    let TransferDone { tag, buffer, error, service, .. } = end;
    let ReadTag { owed, id, generation, offset, len, tail, whole, target } = tag;
    let result = match error {
        Some((errno, at)) => Err(Failure {
            kind: FailureKind::Read,
            errno: errno.raw_os_error(),
            text: format!("read of nothing at byte {at}: {}", haul_base::errno::text(errno)).into(),
        }),
        None => {
            let payload = buffer.as_slice();
            let cvs = if whole {
                vec![digest::root(kind, payload)]
            } else {
                digest::chaining_values(kind, offset, payload, tail)
            };
            Ok(ReadOk { buffer: buffer.id(), cvs })
        }
    };
    let service = Some(service);
    let done = SourceDone::Read { id, generation, offset, len, target, service, result };
    (owed, SourceCompletion { done, buffer: Some(buffer) })
}

/// The answer to a read, until it is settled or given up.
fn owed(
    post: &Post<SourceCompletion>,
    failed: impl FnOnce(Failure) -> SourceDone + Send + 'static,
) -> Owed<SourceCompletion> {
    let post = post.clone();
    Owed::new(FailureKind::Read, move |answer: Result<SourceCompletion, Failure>| {
        post(answer.unwrap_or_else(|failure| SourceCompletion { done: failed(failure), buffer: None }));
    })
}

impl SourceEngine for SyntheticEngine {
    fn submit(&mut self, job: SourceJob) {
        let SourceJob { op, mut buffer } = job;
        let done = match op {
            SourceOp::Read { id, generation, offset, len, tail, whole, target } => {
                let buffer = buffer.take().expect("a read brings its buffer");
                let owed = owed(&self.post, move |failure| {
                    let (service, result) = (None, Err(failure));
                    SourceDone::Read { id, generation, offset, len, target, service, result }
                });
                self.io_threads.submit(Transfer {
                    tag: ReadTag { owed, id, generation, offset, len, tail, whole, target },
                    file: self.file.clone(),
                    target: self.file.target,
                    kind: IoKind::Read,
                    offset,
                    buffer,
                    start: 0,
                    len: len as usize,
                    pad: 0,
                    uncached: false,
                });
                return;
            }
            SourceOp::ReadBundle { files } => {
                let read =
                    |file: &_| (*file, Ok(BundleOk { root: self.root(self.made.size), look: Look::Same }));
                let id = buffer.as_mut().map_or(BufferId(u32::MAX), |buffer| {
                    buffer.as_mut_slice().fill(0);
                    buffer.id()
                });
                SourceDone::ReadBundle { buffer: id, items: files.iter().map(read).collect() }
            }
            SourceOp::Map { id, generation } => {
                SourceDone::Map { id, generation, result: Ok(ExtentMap::full(self.made.size)) }
            }
            SourceOp::Look { id, generation } => SourceDone::Look { id, generation, result: Ok(Look::Same) },
            // Nothing but zeroes was ever here, but what the sink holds is not looked at: it starts afresh.
            SourceOp::Verify { id, generation, .. } => {
                SourceDone::Verify { id, generation, result: Ok(false) }
            }
            SourceOp::HashFile { id, generation, parts, .. } => {
                let cvs = parts.iter().map(|(offset, len)| self.hashed(*offset, *len).value()).collect();
                let result = Ok(HashOk { root: self.root(self.made.size), cvs });
                SourceDone::HashFile { id, generation, result }
            }
            SourceOp::Refresh { id, generation } => {
                let text = "a made-up file does not change".into();
                let result = Err(Failure { kind: FailureKind::Changed, errno: 0, text });
                SourceDone::Refresh { id, generation, result }
            }
            SourceOp::Locate { files } => {
                let layout = Arc::new(Layout::flat(TargetId(0)));
                let lies = |(id, generation)| (id, generation, layout.clone());
                SourceDone::Locate { files: files.into_iter().map(lies).collect() }
            }
            SourceOp::Forget { .. } | SourceOp::ForgetDir { .. } => return,
        };
        (self.post)(SourceCompletion { done, buffer });
    }

    fn set_width(&mut self, width: Option<u16>) -> u16 {
        let (io_threads, depth) = self.started;
        let asked = width;
        let width = width.map_or(io_threads, usize::from).clamp(1, READERS_MAX);
        let [began, now] = &mut self.reading;
        *now = asked.map_or_else(|| began.clone(), |_| began.with_width(width as u16));
        self.io_threads.use_threads(io_threads_of(io_threads, width, io_threads));
        self.io_threads.set_depth(depth_of(depth, width, io_threads));
        width as u16
    }

    fn reads_max(&self, object_size: u32) -> (u32, u32) {
        let [_, now] = &self.reading;
        (now.reads_max(object_size), now.reads_total(object_size))
    }

    fn compares(&self) -> bool {
        false
    }

    fn stuck(&self) -> Vec<Stuck> {
        self.io_threads.stuck()
    }

    fn report(&self) -> Vec<(String, String)> {
        let what = if self.made.fill { "zeroes, filled in" } else { "zeroes that nobody writes" };
        vec![("source storage".into(), format!("none ({what})"))]
    }
}

/// Takes everything and keeps nothing.
pub struct NullSink {
    post: Post<SinkCompletion>,
}

impl NullSink {
    pub fn new(post: Post<SinkCompletion>) -> NullSink {
        NullSink { post }
    }
}

impl SinkEngine for NullSink {
    fn submit(&mut self, job: SinkJob) {
        let SinkJob { op, buffer } = job;
        // Back in its pool before the completion is posted.
        drop(buffer);
        let done = match op {
            SinkOp::MakeDirs { dirs } => {
                SinkDone::MakeDirs { results: dirs.into_iter().map(|dir| (dir, Ok(()))).collect() }
            }
            SinkOp::Lookup { items } => {
                let (existing, seen) = (Existing::Nothing, None);
                let found = Found { existing, seen, adopted: false, len: 0, begun: false };
                SinkDone::Lookup {
                    results: items.into_iter().map(|item| (item.file.id, Ok(found))).collect(),
                }
            }
            SinkOp::Create { file, .. } => SinkDone::Create { id: file.id, result: Ok(None) },
            SinkOp::Write { file, offset, len, buffer, .. } => {
                let took = Some(Took { time: Duration::ZERO, cached: true });
                SinkDone::Write { id: file.id, offset, len, buffer, took, result: Ok(()), again: false }
            }
            SinkOp::WriteBundle { buffer, items, more } => SinkDone::WriteBundle {
                buffer,
                more,
                results: items.into_iter().map(|item| (item.file.id, Ok(()))).collect(),
            },
            SinkOp::Check { file, ranges, .. } => {
                // Nothing is ever held here.
                let result = Ok(ranges.iter().map(|_| None).collect());
                SinkDone::Check { id: file.id, ranges, result }
            }
            SinkOp::Commit { items, .. } => {
                let results = items.into_iter().map(|item| (item.id, Ok(()))).collect();
                SinkDone::Commit { results, lost: Vec::new() }
            }
            SinkOp::Clone { .. } => unreachable!("nobody is asked to clone who does not say that he does"),
            SinkOp::Amend { items, .. } => {
                let results = items.into_iter().map(|item| (item.file.id, Ok(Change::NONE))).collect();
                SinkDone::Amend { results }
            }
            SinkOp::MakeLinks { items } => SinkDone::MakeLinks {
                results: items.into_iter().map(|item| (item.file.id, Ok(Change::NEW))).collect(),
            },
            SinkOp::Join { items } => SinkDone::Join {
                results: items.into_iter().map(|item| (item.file.id, Ok(Joined::Is(Change::NEW)))).collect(),
            },
            SinkOp::SyncDirs { dirs } => {
                SinkDone::SyncDirs { results: dirs.into_iter().map(|dir| (dir, Ok(()))).collect() }
            }
            SinkOp::FinishDirs { dirs, .. } => SinkDone::FinishDirs {
                results: dirs.into_iter().map(|(dir, _)| (dir, Ok(Change::NEW))).collect(),
            },
            SinkOp::Discard { id } => SinkDone::Discard { id },
            SinkOp::Journal { .. } => SinkDone::Journal { result: Ok(()) },
            SinkOp::Note { .. } => SinkDone::Note { result: Ok(()) },
            // Nothing asks for it here.
            SinkOp::RefuseNote { .. } => return,
            SinkOp::RemoveJournal => SinkDone::RemoveJournal { result: Ok(()) },
        };
        (self.post)(SinkCompletion { done });
    }

    fn set_width(&mut self, _width: Option<u16>) -> Option<u16> {
        None
    }

    fn stuck(&self) -> Vec<Stuck> {
        Vec::new()
    }

    fn fixed(&self) -> Option<&'static str> {
        Some("null:// has no writers")
    }

    fn report(&self) -> Vec<(String, String)> {
        vec![("sink storage".into(), "none (what arrives is checked and forgotten)".into())]
    }
}

/// What null:// and zero:// are: no names, no directories, nothing that lasts.
const CAPABILITIES: Capabilities = Capabilities {
    links: false,
    durable: Durable::Nothing,
    append: false,
    in_place: false,
    journal: false,
    directories: Directories::None,
    ..Capabilities::POSIX
};

impl SourceStore for Synthetic {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn roots(&self) -> Result<Vec<SourceRoot>, Failure> {
        Ok(vec![self.root()])
    }

    fn start(self: Box<Self>, reading: Reading) -> Result<SourceParts, Failure> {
        let Reading { agreed, readers, storage, memory, object_size, meter, post, .. } = reading;
        let config = ReadConfig { readers, storage, memory, digest: agreed.digest };
        let engine = SyntheticEngine::start(*self, config, object_size, meter, post).map_err(|e| {
            let text = format!("starting the reading threads: {}", haul_base::errno::text(e));
            Failure { kind: FailureKind::Local, errno: 0, text: text.into() }
        })?;
        let names = SyntheticNames { name: self.name(), targets: Targets::new() };
        let walk = Walk::of(self.walk(object_size));
        Ok(SourceParts { names: Arc::new(names), engine: Box::new(engine), walk })
    }
}

/// What is known of the one file.
struct SyntheticNames {
    name: Name,
    targets: Targets,
}

impl SourceNames for SyntheticNames {
    fn path_of(&self, _: FileId) -> Vec<u8> {
        self.name.as_bytes().to_vec()
    }
    fn origin_of(&self, _: FileId) -> Option<(Vec<u8>, Stamp)> {
        None
    }
    fn lies(&self, _: FileId) -> Lies {
        Lies::At(TargetId(0))
    }
    fn targets(&self) -> &Targets {
        &self.targets
    }
}

/// `null://` as a destination: whatever comes is checked and forgotten.
pub struct Nowhere;

impl SinkStore for Nowhere {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn claim(self: Box<Self>, coming: &Coming<'_>, _: &dyn Waiting) -> Result<Claimed, Failure> {
        let (epoch, tag) = (0, 0);
        let root = RootId::new(b"null").expect("short");
        let (_, resume) = begin_journal(Replayed::default(), ([0; 16], root), (epoch, tag), coming);
        Ok(Claimed {
            job: Box::new(Nobodys),
            resume,
            epoch,
            tag,
            wait: false,
            rename: None,
            resumed: false,
            names: names_of(coming.roots, None),
            root: None,
            found: Vec::new(),
        })
    }

    fn look(self: Box<Self>, _: &Coming<'_>) -> Result<(Box<dyn Looks>, Option<Name>), Failure> {
        Ok((Box::new(Looker::at_nothing()), None))
    }
}

/// A job that nobody can take away, for it keeps nothing.
struct Nobodys;

impl HeldJob for Nobodys {
    fn start(&mut self, writing: Writing) -> Result<Box<dyn SinkEngine>, Failure> {
        Ok(Box::new(NullSink::new(writing.post)))
    }
    fn set_ends(&self, _: bool) {}
    fn set_yields(&self, _: bool) {}
    fn finish(&self) {}
    fn leave(&self) {}
}

/// How the I/O threads of a made-up source work.
fn io_threads_config(depth: usize, io_threads: usize, request_size: u32) -> IoThreadsConfig {
    use super::io::EngineConfig;
    use crate::options::EngineName;
    IoThreadsConfig {
        engine: EngineConfig { name: EngineName::Auto, depth: depth.max(1) * 2, registered_max: 0 },
        io_threads,
        depth,
        request_size,
        order: haul_core::io::OrderPolicy::None,
        deadline: Duration::from_secs(10),
        stage: haul_core::stage::Stage::SourceStorage,
        thread_name: "haul-read",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: only places of the two schemes that have a size are made-up files, whatever a file is called.
    #[test]
    fn made_up_files_are_places_with_a_size() {
        for (place, made) in [
            (Place::sized(&NULL, 5), Some(Synthetic { size: 5, fill: false })),
            (Place::sized(&ZERO, SIZE_MAX), Some(Synthetic { size: SIZE_MAX, fill: true })),
            (Place::root(&NULL), None),
            (Place::file("null://5"), None),
            (Place::file("zero"), None),
        ] {
            assert_eq!(Synthetic::of(&place), made, "{place:?}");
        }
    }
}
