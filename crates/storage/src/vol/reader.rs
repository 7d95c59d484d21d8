//! Reads files of a volume: objects from all servers at once, many of them at a time.
//!
//! In: operations of the session machine. Out: their completions. A thread waits for each object, and hashes
//! it; the volume's client has the windows of the servers.
//! Invariants: each operation is answered once, also of a thread that panics; what is read counts only if the
//! file has its length, its mtime and the version of its bytes after the last read, as it was announced, and
//! still has a name. Where the version alone is another, as after a restart of the server that tells it, a
//! digest of all bytes decides, made of one version.

use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_core::digest::{DigestKind, Subtree};
use haul_core::entry::{Fingerprint, Meta};
use haul_core::extents::ExtentMap;
use haul_core::ids::{BufferId, FileId, Generation, TargetId};
use haul_core::layout::Layout;
use haul_core::stage::Stage;
use haul_core::transfer::op::{BundleFile, BundleOk, HashOk, Look, ReadOk, SourceDone, SourceOp};
use haul_core::transfer::source::{Lies, OnChange};
use haul_core::volume::FileNo;
use haul_core::wire::{Failure, FailureKind};
use haul_volume::client::{Look as Looked, VolumeError};
use haul_volume::contents::{self, ContentsError};
use rustix::io::Errno;

use super::look::Unknown;
use super::names::{Names, State, View};
use super::{Volume, is_missing};
use crate::blocking_pool::{BlockingPool, BlockingPoolConfig, Doing, with_spare};
use crate::io::IoTarget;
use crate::owed::Owed;
use crate::source::read::is_subtree;
use crate::store::{Reading, SourceNames};
use crate::{Post, SourceCompletion, SourceEngine, SourceJob, Stuck};
use haul_base::buffer::Buffer;
use haul_base::digest::{self, Hasher};
use haul_base::escape;
use haul_base::meter::Meter;

/// Threads that read: more than there are windows to fill, for each of them hashes between two waits.
const THREADS: usize = 16;
/// Objects that wait for a thread, for each that has one.
const AHEAD: u32 = 2;
/// After so long something that was asked counts as stuck, and gives its place to another.
const DEADLINE: Duration = Duration::from_secs(10);
/// Bytes of a file that are hashed at a time where no object is read.
const STEP: u64 = 4 << 20;

struct Job {
    op: SourceOp,
    buffer: Option<Buffer>,
    owed: Owed<SourceCompletion>,
}

/// The engine of a source in a volume.
pub(super) struct Reader {
    common: Arc<Common>,
    pool: BlockingPool<Job>,
    memory: u64,
    in_flight: Option<u16>,
}

struct Common {
    volume: Arc<Volume>,
    names: Arc<Names>,
    kind: DigestKind,
    changed: OnChange,
    meter: Arc<Meter>,
    post: Post<SourceCompletion>,
}

impl Reader {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system gives none.
    pub(super) fn start(volume: Arc<Volume>, names: Arc<Names>, reading: Reading) -> std::io::Result<Reader> {
        let Reading { agreed, storage, memory, changed, meter, post, .. } = reading;
        let common = Arc::new(Common { volume, names, kind: agreed.digest, changed, meter, post });
        common.volume.begins();
        let idle = common.meter.clone();
        let config = BlockingPoolConfig {
            name: "haul-volume",
            threads: THREADS,
            threads_max: with_spare(THREADS),
            deadline: DEADLINE,
            // Told where it is spent, for a thread serves two stages.
            on_busy: Arc::new(|_| {}),
            on_idle: Arc::new(move |waited| {
                idle.add_idle(Stage::SourceStorage, waited);
                idle.add_idle(Stage::SourceHost, waited);
            }),
        };
        let told = common.post.clone();
        common.volume.tell_when_gone(move |failure| {
            told(SourceCompletion { done: SourceDone::Gone { failure }, buffer: None });
        });
        let worker = common.clone();
        let work = move |(): &mut (), _: &_, Job { op, buffer, owed }: Job| {
            owed.settle(Ok(worker.work(op, buffer)));
        };
        let pool = BlockingPool::start(config, || (), work)?;
        Ok(Reader { common, pool, memory, in_flight: storage.in_flight })
    }
}

impl SourceEngine for Reader {
    fn submit(&mut self, SourceJob { op, buffer }: SourceJob) {
        let names = &self.common.names;
        let done = match op {
            SourceOp::Forget { id } => return names.forget(id),
            SourceOp::ForgetDir { id } => return names.forget(id.as_file()),
            SourceOp::Locate { files } => {
                let lies = |(id, generation)| {
                    let Lies::At(target) = names.lies(id) else { return (id, generation, flat(TargetId(0))) };
                    (id, generation, flat(target))
                };
                SourceDone::Locate { files: files.into_iter().map(lies).collect() }
            }
            // No server tells of holes.
            SourceOp::Map { id, generation } => {
                let size = names.view(id, generation).map_or(0, |view| view.size);
                SourceDone::Map { id, generation, result: Ok(ExtentMap::full(size)) }
            }
            op => {
                let (post, refused) = (self.common.post.clone(), op.clone());
                let owed = Owed::new(FailureKind::Read, move |answer: Result<SourceCompletion, Failure>| {
                    let done = |failure| SourceCompletion { done: refuse(refused, &failure), buffer: None };
                    post(answer.unwrap_or_else(done));
                });
                let (what, id, offset) = doing(&op);
                let told = self.common.clone();
                let label = move || {
                    let name = escape::within(&told.volume.url(&told.names.path(id)));
                    Doing { what, name, offset }
                };
                return self.pool.submit(IoTarget::default(), label, Job { op, buffer, owed });
            }
        };
        (self.common.post)(SourceCompletion { done, buffer });
    }

    fn set_width(&mut self, _: Option<u16>) -> u16 {
        // What is under way at each server is the client's to say.
        THREADS as u16
    }

    fn reads_max(&self, object_size: u32) -> (u32, u32) {
        let fitting = self.memory / 2 / u64::from(object_size.max(1));
        let asked = self.in_flight.map_or(u32::MAX, u32::from);
        let most = u32::try_from(fitting).unwrap_or(u32::MAX).min(asked).min(THREADS as u32 * AHEAD).max(1);
        (most, most)
    }

    fn stuck(&self) -> Vec<Stuck> {
        self.pool.stuck()
    }

    fn in_wait(&self) -> Option<String> {
        self.common.volume.in_wait()
    }

    fn report(&self) -> Vec<(String, String)> {
        vec![("source storage".into(), self.common.volume.in_words())]
    }
}

fn flat(target: TargetId) -> Arc<Layout<TargetId>> {
    Arc::new(Layout::flat(target))
}

/// What an operation does first, and to which file.
fn doing(op: &SourceOp) -> (&'static str, FileId, u64) {
    match *op {
        SourceOp::Read { id, offset, .. } => ("read", id, offset),
        SourceOp::ReadBundle { ref files } => ("read", files.first().map_or(FileId(0), |file| file.id), 0),
        SourceOp::Verify { id, .. } | SourceOp::HashFile { id, .. } | SourceOp::Map { id, .. } => {
            ("read", id, 0)
        }
        SourceOp::Look { id, .. } | SourceOp::Refresh { id, .. } => ("look at", id, 0),
        SourceOp::Locate { ref files } => ("look at", files.first().map_or(FileId(0), |(id, _)| *id), 0),
        SourceOp::Forget { id } => ("forget", id, 0),
        SourceOp::ForgetDir { id } => ("forget", id.as_file(), 0),
    }
}

/// The answer to an operation that came to nothing.
fn refuse(op: SourceOp, failure: &Failure) -> SourceDone {
    let failure = failure.clone();
    match op {
        SourceOp::Read { id, generation, offset, len, target, .. } => {
            SourceDone::Read { id, generation, offset, len, target, service: None, result: Err(failure) }
        }
        SourceOp::ReadBundle { files } => SourceDone::ReadBundle {
            buffer: BufferId(u32::MAX),
            items: files.into_iter().map(|file| (file, Err(failure.clone()))).collect(),
        },
        SourceOp::Locate { files } => {
            let lies = |(id, generation)| (id, generation, flat(TargetId(0)));
            SourceDone::Locate { files: files.into_iter().map(lies).collect() }
        }
        SourceOp::Map { id, generation } => SourceDone::Map { id, generation, result: Err(failure) },
        SourceOp::Look { id, generation } => SourceDone::Look { id, generation, result: Err(failure) },
        SourceOp::Verify { id, generation, .. } => {
            SourceDone::Verify { id, generation, result: Err(failure) }
        }
        SourceOp::HashFile { id, generation, .. } => {
            SourceDone::HashFile { id, generation, result: Err(failure) }
        }
        SourceOp::Refresh { id, generation } => SourceDone::Refresh { id, generation, result: Err(failure) },
        // These have no answer, and come to no thread.
        SourceOp::Forget { .. } | SourceOp::ForgetDir { .. } => SourceDone::Gone { failure },
    }
}

impl Common {
    fn work(&self, op: SourceOp, mut buffer: Option<Buffer>) -> SourceCompletion {
        let done = match op {
            SourceOp::Read { id, generation, offset, len, tail, whole, target } => {
                let begun = Instant::now();
                let room = buffer.as_mut().expect("a read brings its buffer");
                let read = self.read(id, generation, (offset, len), room.as_mut_slice());
                let service = Some(begun.elapsed());
                let result = read.map(|()| {
                    let payload = &room.as_slice()[..len as usize];
                    let cvs = self.meter.busy(Stage::SourceHost, || match whole {
                        true => vec![digest::root(self.kind, payload)],
                        false => digest::chaining_values(self.kind, offset, payload, tail),
                    });
                    ReadOk { buffer: room.id(), cvs }
                });
                SourceDone::Read { id, generation, offset, len, target, service, result }
            }
            SourceOp::ReadBundle { files } => {
                let (id, items) = match buffer.as_mut() {
                    Some(room) => (room.id(), self.read_bundle(files, room)),
                    None => return SourceCompletion { done: self.no_buffer(files), buffer },
                };
                SourceDone::ReadBundle { buffer: id, items }
            }
            SourceOp::Look { id, generation } => {
                SourceDone::Look { id, generation, result: self.look(id, generation) }
            }
            SourceOp::Verify { id, generation, size, subtrees } => {
                let result = self.verify(id, generation, size, &subtrees);
                SourceDone::Verify { id, generation, result }
            }
            SourceOp::HashFile { id, generation, seen, parts, .. } => {
                let result = self.hash_file(id, generation, seen.as_deref(), &parts);
                SourceDone::HashFile { id, generation, result }
            }
            SourceOp::Refresh { id, generation } => {
                SourceDone::Refresh { id, generation, result: self.refresh(id, generation) }
            }
            op => refuse(op, &Failure { kind: FailureKind::Read, errno: 0, text: "nothing to do".into() }),
        };
        SourceCompletion { done, buffer }
    }

    fn no_buffer(&self, files: Vec<BundleFile>) -> SourceDone {
        let text = "a bundle came without its buffer".into();
        refuse(SourceOp::ReadBundle { files }, &Failure { kind: FailureKind::Read, errno: 0, text })
    }

    fn failed(&self, kind: FailureKind, doing: &str, id: FileId, why: &str) -> Failure {
        self.volume.failed(kind, doing, &self.names.path(id), 0, why)
    }

    fn broke(&self, doing: &str, id: FileId, why: &VolumeError) -> Failure {
        match why {
            VolumeError::Gone => self.vanished(doing, id),
            why => self.volume.broke(FailureKind::Read, doing, &self.names.path(id), why),
        }
    }

    fn vanished(&self, doing: &str, id: FileId) -> Failure {
        let errno = Errno::NOENT.raw_os_error();
        let why = "vanished (it was there when its directory was read)";
        self.volume.failed(FailureKind::Vanished, doing, &self.names.path(id), errno, why)
    }

    /// The file, if it is still of this generation.
    fn view(&self, id: FileId, generation: Generation) -> Result<View, Failure> {
        let changed =
            || self.failed(FailureKind::Changed, "open", id, "another version of it is copied by now");
        self.names.view(id, generation).ok_or_else(changed)
    }

    /// Bytes of the part of a file that comes, if they are all there.
    fn bytes(&self, id: FileId, view: &View, offset: u64, len: u64) -> Result<Vec<u8>, Failure> {
        let from = view.base + offset;
        let begun = Instant::now();
        let file = FileNo(view.is.id.0);
        let needs = self.volume.needed_for(file, from, len);
        let read = self.volume.wait_at(&needs, || self.volume.client.read(file, from, len));
        self.meter.add_busy(Stage::SourceStorage, begun.elapsed());
        let read = read.map_err(|why| self.broke("read", id, &why))?;
        self.is_there(id, view, read.nowhere)?;
        match read.end >= from + len || haul_mutant::removed("volume-reads-end-at-the-end") {
            true => Ok(read.bytes),
            // What a volume gives behind the end is zeros.
            false => Err(self.failed(FailureKind::Changed, "read", id, "it is shorter than it was")),
        }
    }

    /// What no server has from there on was never written, and is zeros.
    ///
    /// # Errors
    /// It is lost, or nobody says.
    fn is_there(&self, id: FileId, view: &View, nowhere: Option<u64>) -> Result<(), Failure> {
        let Some(at) = nowhere else { return Ok(()) };
        match contents::is_lost(&self.volume.catalog, &self.volume.client, FileNo(view.is.id.0), at) {
            Ok(None) => Ok(()),
            Ok(Some(why)) | Err(ContentsError::Servers(why)) => Err(self.broke("read", id, &why)),
            Err(ContentsError::Catalog(why)) => {
                Err(self.volume.refused(FailureKind::Read, "look at", &self.names.path(id), &why))
            }
        }
    }

    fn read(
        &self,
        id: FileId,
        generation: Generation,
        (offset, len): (u64, u32),
        room: &mut [u8],
    ) -> Result<(), Failure> {
        let view = self.view(id, generation)?;
        let bytes = self.bytes(id, &view, offset, len.into())?;
        let Some(room) = room.get_mut(..bytes.len()) else {
            return Err(self.failed(FailureKind::Local, "read", id, "no room in its buffer"));
        };
        room.copy_from_slice(&bytes);
        Ok(())
    }

    /// Reads small files whole, all of them at once; their payload lies in the buffer one behind the other.
    fn read_bundle(
        &self,
        files: Vec<BundleFile>,
        buffer: &mut Buffer,
    ) -> Vec<(BundleFile, Result<BundleOk, Failure>)> {
        const CHANGED: BundleOk = BundleOk { root: [0; 32], look: Look::Changed };
        let begun = Instant::now();
        let began: Vec<_> = files
            .iter()
            .map(|file| {
                let view = self.view(file.id, file.generation)?;
                let (at, len) = (FileNo(view.is.id.0), file.size.into());
                // Of nothing nobody is asked.
                let read = (len > 0).then(|| self.volume.client.read(at, view.base, len));
                Ok((view, read))
            })
            .collect();
        let mut filled = 0;
        let mut read: Vec<Result<Option<(View, [u8; 32])>, Failure>> = Vec::new();
        for (file, began) in files.iter().zip(began) {
            let size = file.size as usize;
            let result = began.and_then(|(view, waiting)| {
                if view.size != u64::from(file.size) {
                    return Ok(None);
                }
                let (number, len) = (FileNo(view.is.id.0), u64::from(file.size));
                let needs = self.volume.needed_for(number, view.base, len);
                let again = || self.volume.client.read(number, view.base, len);
                let got = waiting.map(|waiting| self.volume.wait_for_at(&needs, waiting, again)).transpose();
                let got = got.map_err(|why| self.broke("read", file.id, &why))?;
                let end = view.base + u64::from(file.size);
                let bytes = match got {
                    Some(got) if got.end < end => return Ok(None),
                    Some(got) => {
                        self.is_there(file.id, &view, got.nowhere)?;
                        got.bytes
                    }
                    None => Vec::new(),
                };
                let Some(room) = buffer.as_mut_slice().get_mut(filled..filled + size) else {
                    return Err(self.failed(FailureKind::Local, "read", file.id, "no room in its buffer"));
                };
                room.copy_from_slice(&bytes);
                let root = self.meter.busy(Stage::SourceHost, || digest::root(self.kind, &bytes));
                Ok(Some((view, root)))
            });
            if matches!(&result, Ok(Some(_))) {
                filled += size;
            }
            read.push(result);
        }
        // After all of them were read; of the payload of those that changed since nobody takes anything.
        let looks: Vec<_> = read
            .iter()
            .map(|read| match read {
                Ok(Some((view, _))) => {
                    let at = FileNo(view.is.id.0);
                    Some((at, self.volume.client.look(at)))
                }
                _ => None,
            })
            .collect();
        let mut items = Vec::with_capacity(files.len());
        let (mut kept, mut at) = (0, 0);
        for ((file, read), look) in files.into_iter().zip(read).zip(looks) {
            let size = file.size as usize;
            let result = match (read, look) {
                (Ok(Some((view, root))), Some((at_volume, look))) => {
                    let needs = self.volume.needed_to_look(at_volume);
                    let again = || self.volume.client.look(at_volume);
                    let look = self.volume.wait_for_at(&needs, look, again);
                    let look = self.judge(file.id, &view, look);
                    // It lies behind those that are kept, and moves up to them.
                    let from = at;
                    at += size;
                    match look {
                        Ok(look) if look.has_payload() => {
                            buffer.as_mut_slice().copy_within(from..from + size, kept);
                            kept += size;
                            Ok(BundleOk { root, look })
                        }
                        Ok(look) => Ok(BundleOk { look, ..CHANGED }),
                        Err(failure) => Err(failure),
                    }
                }
                (Err(failure), _) => Err(failure),
                _ => Ok(CHANGED),
            };
            items.push((file, result));
        }
        buffer.truncate(kept);
        self.meter.add_busy(Stage::SourceStorage, begun.elapsed());
        items
    }

    fn look(&self, id: FileId, generation: Generation) -> Result<Look, Failure> {
        let view = self.view(id, generation)?;
        let file = FileNo(view.is.id.0);
        let looked = self.volume.wait_at(&self.volume.needed_to_look(file), || self.volume.client.look(file));
        self.judge(id, &view, looked)
    }

    /// Holds what gatherer and catalog say of a file against what it was.
    fn judge(&self, id: FileId, view: &View, looked: Result<Looked, VolumeError>) -> Result<Look, Failure> {
        if haul_mutant::removed("volume-changes-are-seen") {
            return Ok(Look::Same);
        }
        let mut entry = match self.volume.catalog.stat(view.is.id) {
            // Without a name it may lose its bytes at any time.
            Ok(entry) if entry.parent.is_some() => entry,
            Ok(_) => return self.is_gone(id),
            Err(why) if is_missing(&why) => return self.is_gone(id),
            Err(why) => {
                return Err(self.volume.refused(FailureKind::Read, "look at", &self.names.path(id), &why));
            }
        };
        let now = match self.volume.state(&mut entry, looked) {
            Ok(now) => now,
            Err(why) if why.is_gone() => return self.is_gone(id),
            Err(why) => return Err(self.unknown(id, &why)),
        };
        let is = view.is;
        Ok(match (now.len, now.mtime) == (is.len, is.mtime) {
            true if now.version.is_some() && now.version == is.version => Look::Same,
            true if haul_mutant::removed("volume-versions-are-seen") => Look::Same,
            true if now.version.is_some() => {
                Look::MetaOnly { seen: self.names.fingerprint(&now), settle: Duration::ZERO }
            }
            _ if self.changed == OnChange::Prefix && now.len >= is.len => Look::Grown { size: now.len },
            _ => Look::Changed,
        })
    }

    fn unknown(&self, id: FileId, why: &Unknown) -> Failure {
        match why {
            Unknown::Servers(why) => self.broke("look at", id, why),
            Unknown::Catalog(why) => {
                self.volume.refused(FailureKind::Read, "look at", &self.names.path(id), why)
            }
        }
    }

    /// It has no name any more. Where what changed is tried again, that shows whether it came back.
    fn is_gone(&self, id: FileId) -> Result<Look, Failure> {
        match self.changed {
            OnChange::Retry => Ok(Look::Changed),
            OnChange::Fail | OnChange::Prefix => Err(self.vanished("look at", id)),
        }
    }

    fn verify(
        &self,
        id: FileId,
        generation: Generation,
        size: u64,
        subtrees: &[Subtree],
    ) -> Result<bool, Failure> {
        let view = self.view(id, generation)?;
        for Subtree { offset, len, cv } in subtrees.iter().copied() {
            let whole = offset == 0 && len == size;
            // The list came over the wire: what is no subtree of this file cannot be held by the sink.
            if size != view.size || (!whole && !is_subtree(self.kind, offset, len, size)) {
                return Ok(false);
            }
            let mut hasher = Hasher::new(self.kind, offset);
            self.each_step(id, &view, (offset, len), |_, bytes| hasher.update(bytes))?;
            if cv != if whole { hasher.root() } else { hasher.value() } {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads a range in steps.
    fn each_step(
        &self,
        id: FileId,
        view: &View,
        (offset, len): (u64, u64),
        mut take: impl FnMut(u64, &[u8]),
    ) -> Result<(), Failure> {
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let step = (end - at).min(STEP);
            let bytes = self.bytes(id, view, at, step)?;
            self.meter.busy(Stage::SourceHost, || take(at, &bytes));
            at += step;
        }
        Ok(())
    }

    /// The root of the file as it was announced, whatever lies behind that, and the values of parts of it.
    fn hash_file(
        &self,
        id: FileId,
        generation: Generation,
        seen: Option<&Fingerprint>,
        parts: &[(u64, u64)],
    ) -> Result<HashOk, Failure> {
        let view = self.view(id, generation)?;
        self.must_be(id, &view, seen)?;
        let mut whole = Hasher::new(self.kind, 0);
        let mut each: Vec<(u64, u64, Hasher)> = Vec::with_capacity(parts.len());
        for (offset, len) in parts.iter().copied() {
            let is_whole = offset == 0 && len == view.size;
            if !is_whole && !is_subtree(self.kind, offset, len, view.size) {
                return Err(self.failed(FailureKind::Read, "hash", id, "a part that is none was asked for"));
            }
            each.push((offset, offset + len, Hasher::new(self.kind, offset)));
        }
        self.each_step(id, &view, (0, view.size), |at, bytes| {
            whole.update(bytes);
            let end = at + bytes.len() as u64;
            for (from, to, hasher) in &mut each {
                let (first, last) = ((*from).max(at), (*to).min(end));
                if first < last {
                    hasher.update(&bytes[(first - at) as usize..(last - at) as usize]);
                }
            }
        })?;
        self.must_be(id, &view, seen)?;
        let value = |(from, to, hasher): &(u64, u64, Hasher)| match (*from, *to) == (0, view.size) {
            true => hasher.root(),
            false => hasher.value(),
        };
        Ok(HashOk { root: whole.root(), cvs: each.iter().map(value).collect() })
    }

    /// Errors: the file is not what was `seen` of it.
    fn must_be(&self, id: FileId, view: &View, seen: Option<&Fingerprint>) -> Result<(), Failure> {
        let Some(seen) = seen else { return Ok(()) };
        let changed = || Err(self.failed(FailureKind::Changed, "hash", id, "it changed while it was hashed"));
        let file = FileNo(view.is.id.0);
        match self.volume.wait_at(&self.volume.needed_to_look(file), || self.volume.client.look(file)) {
            Ok(look) => {
                // While its version stays nobody wrote it; its time is another's business.
                let version = Some(look.version);
                let now = State { len: look.end, mtime: seen.mtime, version, ..view.is };
                match !look.untold && self.names.fingerprint(&now) == *seen {
                    true => Ok(()),
                    false => changed(),
                }
            }
            Err(VolumeError::Busy) => changed(),
            Err(why) => Err(self.broke("look at", id, &why)),
        }
    }

    fn refresh(&self, id: FileId, generation: Generation) -> Result<(Fingerprint, Meta, Duration), Failure> {
        // By its name: another file may have taken it.
        let Some(at) = self.names.at(id) else { return Err(self.vanished("look at", id)) };
        let refused = |why| self.volume.refused(FailureKind::Open, "look at", &self.names.path(id), &why);
        let Some(mut entry) = self.volume.at(&at).map_err(refused)? else {
            return Err(self.vanished("look at", id));
        };
        let Some(file) = entry.file() else {
            return Err(self.failed(FailureKind::Changed, "look at", id, "is no regular file any more"));
        };
        let looked = self.volume.wait_at(&self.volume.needed_to_look(file), || self.volume.client.look(file));
        let is = match self.volume.state(&mut entry, looked) {
            Ok(is) => is,
            Err(why) if why.is_gone() => return Err(self.vanished("look at", id)),
            Err(why) => return Err(self.unknown(id, &why)),
        };
        self.volume.has_its_length(&is, Some(u64::MAX)).map_err(|why| self.unknown(id, &why))?;
        self.names.renew(id, generation, is);
        Ok((self.names.fingerprint(&is), entry.meta, Duration::ZERO))
    }
}
