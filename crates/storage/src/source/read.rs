//! The operations of a reading thread, one at a time: bundles, looks and hashes, and the opening of files
//! whose objects go through the I/O threads.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use blake3::hazmat::max_subtree_len;
use haul_core::digest::{DigestKind, Subtree};
use haul_core::entry::{Fingerprint, Meta};
use haul_core::extents::ExtentMap;
use haul_core::ids::{BufferId, FileId, Generation, TargetId};
use haul_core::layout::Layout;
use haul_core::stage::Stage;
use haul_core::transfer::SMALL_LEN_MAX;
use haul_core::transfer::op::{BundleFile, BundleOk, HashOk, Look, SourceDone, SourceOp};
use haul_core::wire::{self, Failure};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::cache::ReadEnd;
use super::failure::own_failure;
use super::objects::{Objects, Shared, read_failure, short_failure};
use super::open::{OpenError, OpenFile, check, open_unseen};
use super::stat::{Seen, look_into};
use super::tree::SourceTree;
use super::view::FileView;
use crate::attributes;
use crate::blocking_pool::{Doing, Track, Turn};
use crate::layout::layout_by;
use crate::meta_rate::cost;
use crate::{SourceCompletion, SourceJob};
use haul_base::buffer::Buffer;
use haul_base::digest::{self, Hasher};
use haul_base::escape;
use haul_base::meter::Meter;

/// Bytes that are read and hashed at a time where no payload is kept. Nothing is read ahead for these reads
/// (it would stay in the page cache), so that they have to be large.
const SCRATCH_LEN: usize = 4 << 20;
/// Why a hash came to nothing.
const CHANGED_READING: &str = "changed while it was read";
/// Stands for the buffer of an operation that came without one, by a mistake of ours.
const NO_BUFFER: BufferId = BufferId(u32::MAX);

/// What a thread needs to carry out operations.
pub(super) struct Reader {
    pub(super) tree: Arc<SourceTree>,
    meter: Arc<Meter>,
    pub(super) shared: Arc<Shared>,
    objects: Arc<Objects>,
    /// Tells how far the operation is.
    track: Option<Track<SourceJob>>,
    /// In which it is carried out.
    turn: Option<Turn<SourceJob>>,
    scratch: Vec<u8>,
}

impl Reader {
    pub(super) fn new(shared: Arc<Shared>, objects: Arc<Objects>) -> Reader {
        let (tree, meter) = (shared.tree.clone(), shared.meter.clone());
        Reader { tree, meter, shared, objects, track: None, turn: None, scratch: Vec::new() }
    }

    pub(super) fn stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::Relaxed)
    }

    /// Carries out one operation. `None` for those that are not answered, or that the I/O threads have now.
    pub(super) fn run(
        &mut self,
        turn: &Turn<SourceJob>,
        op: &SourceOp,
        buffer: &mut Option<Buffer>,
    ) -> Option<SourceDone> {
        self.track = track(turn, &self.tree, op);
        self.turn = Some(turn.again());
        Some(match *op {
            SourceOp::Read { id, generation, offset, len, target, .. } => match self.hand_over(op, buffer) {
                Ok(()) => return None,
                Err(failure) => {
                    let (service, result) = (None, Err(failure));
                    SourceDone::Read { id, generation, offset, len, target, service, result }
                }
            },
            SourceOp::Locate { ref files } => self.locate(files),
            SourceOp::ReadBundle { ref files } => self.read_bundle(files, buffer.as_mut()),
            SourceOp::Look { id, generation } => {
                SourceDone::Look { id, generation, result: self.look(id, generation) }
            }
            SourceOp::Verify { id, generation, size, ref subtrees } => {
                SourceDone::Verify { id, generation, result: self.verify(id, generation, size, subtrees) }
            }
            SourceOp::HashFile { id, generation, ref map, ref seen, ref parts } => {
                let result = self.hash_file(id, generation, map.as_ref(), seen.as_deref(), parts);
                SourceDone::HashFile { id, generation, result }
            }
            SourceOp::Map { id, generation } => {
                SourceDone::Map { id, generation, result: self.map(id, generation) }
            }
            SourceOp::Refresh { id, generation } => {
                SourceDone::Refresh { id, generation, result: self.refresh(id, generation) }
            }
            SourceOp::Forget { id } => {
                self.tree.forget(id);
                return None;
            }
            SourceOp::ForgetDir { id } => {
                self.tree.forget_dir(id);
                return None;
            }
        })
    }

    /// Opens the file of a read, and gives the read to the I/O threads.
    fn hand_over(&self, op: &SourceOp, buffer: &mut Option<Buffer>) -> Result<(), Failure> {
        let SourceOp::Read { id, generation, len, .. } = *op else {
            unreachable!("only reads are handed over")
        };
        let view = self.view(id, generation)?;
        if buffer.as_ref().is_none_or(|buffer| buffer.as_slice().len() != len as usize) {
            return Err(self.own(wire::FailureKind::Read, "read", id, "no buffer of the object's length"));
        }
        let open = self.open(id, &view)?;
        let buffer = buffer.take().expect("looked at just now");
        self.objects.submit_opening(open, op, buffer);
        Ok(())
    }

    /// Where files lie. They stay open for their reads.
    fn locate(&mut self, files: &[(FileId, Generation)]) -> SourceDone {
        let mut located = Vec::with_capacity(files.len());
        for &(id, generation) in files {
            self.step(id.0);
            let found = self.view(id, generation).and_then(|view| {
                let open = self.open(id, &view)?;
                let provider = self.tree.provider(open.dev());
                Ok(self.storage(|| layout_by(provider, open.fd(), view.size())))
            });
            // What cannot be opened is told by its reads.
            let layout = match found {
                Ok(found) => self.tree.targets().layout(&found.layout),
                Err(_) => Layout::flat(self.tree.device_target(self.tree.target_of(id).device())),
            };
            located.push((id, generation, Arc::new(layout)));
        }
        SourceDone::Locate { files: located }
    }

    fn read_bundle(&mut self, files: &[BundleFile], buffer: Option<&mut Buffer>) -> SourceDone {
        let Some(buffer) = buffer else {
            let failure = own_failure(wire::FailureKind::Read, "read", b"bundle", "no buffer");
            let items = files.iter().map(|file| (*file, Err(failure.clone()))).collect();
            return SourceDone::ReadBundle { buffer: NO_BUFFER, items };
        };
        let mut filled = 0;
        let mut items = Vec::with_capacity(files.len());
        for file in files {
            self.step(file.id.0);
            let result = self.read_small(file, &mut buffer.as_mut_slice()[filled..]);
            if matches!(&result, Ok(ok) if ok.look.has_payload()) {
                filled += file.size as usize;
            }
            items.push((*file, result));
        }
        buffer.truncate(filled);
        SourceDone::ReadBundle { buffer: buffer.id(), items }
    }

    /// Reads a whole file to the beginning of `room`.
    fn read_small(&mut self, file: &BundleFile, room: &mut [u8]) -> Result<BundleOk, Failure> {
        const CHANGED: BundleOk = BundleOk { root: [0; 32], look: Look::Changed };
        let view = self.view(file.id, file.generation)?;
        if u64::from(file.size) != view.size() {
            return Ok(CHANGED);
        }
        let Some(room) = room.get_mut(..file.size as usize) else {
            return Err(self.own(wire::FailureKind::Read, "read", file.id, "no room in the bundle's buffer"));
        };
        self.wait_for_rate(cost::OPEN + self.cost_of_attributes());
        let read = self.storage(|| {
            // Not kept open: it is read once. What it is the look behind the read shows, which the bytes wait
            // for.
            let (opened, _) = match open_unseen(|| self.tree.dir_fd(view.place), &view, OFlags::empty()) {
                Ok(opened) => opened,
                Err(OpenError::Changed(_)) => return Ok(None),
                Err(OpenError::Os(errno)) => {
                    return Err(self.tree.failed(wire::FailureKind::Open, "open", file.id, errno));
                }
            };
            let (fd, dev) = (opened.as_fd(), view.dev);
            let is_another = |seen: &Seen| matches!(check(seen, &view), Err(OpenError::Changed(_)));
            let (end, beyond) = match view.is_part() {
                true => (self.shared.pages.read_at(fd, dev, room, view.base()), false),
                false => self.shared.pages.read_whole(fd, dev, room, view.is_measured()),
            };
            match end {
                ReadEnd::Full => {}
                ReadEnd::Short(_) => return Ok(None),
                ReadEnd::Failed(..) if look_into(fd).is_ok_and(|seen| is_another(&seen)) => return Ok(None),
                ReadEnd::Failed(at, errno) => {
                    return Err(read_failure(&self.tree, file.id, at as u64, errno));
                }
            }
            // Also sees a file that grew.
            match look_into(fd) {
                Ok(seen) if is_another(&seen) && !haul_mutant::removed("small-files-are-the-announced") => {
                    Ok(None)
                }
                Ok(_) if !view.has_its_attributes(fd) => Ok(None),
                Ok(seen) => Ok(Some((seen, beyond))),
                Err(errno) => Err(self.tree.failed(wire::FailureKind::Read, "stat", file.id, errno)),
            }
        })?;
        let Some((after, beyond)) = read else { return Ok(CHANGED) };
        let look = self.judge_end(file.id, self.judge(&after, &view), beyond);
        if !look.has_payload() {
            return Ok(BundleOk { look, ..CHANGED });
        }
        Ok(BundleOk { root: self.host(|| digest::root(self.shared.digest, room)), look })
    }

    fn look(&mut self, id: FileId, generation: Generation) -> Result<Look, Failure> {
        let view = self.view(id, generation)?;
        // One that has to be opened again may be another file by now, which the looks say.
        let open = match self.open(id, &view) {
            Ok(open) => open,
            Err(failure) if failure.kind == wire::FailureKind::Changed => return Ok(Look::Changed),
            Err(failure) if failure.errno == Errno::NOENT.raw_os_error() && view.is_tried_again() => {
                return Ok(Look::Changed);
            }
            Err(failure) => return Err(failure),
        };
        self.wait_for_rate(cost::LOOK_AGAIN);
        let (beyond, of_fd, of_name) = self.storage(|| {
            // Before the looks, for one that grows meanwhile is no such file.
            let beyond = match view.is_part() {
                true => ReadEnd::Short(0),
                false => self.shared.pages.read_at(open.fd(), open.dev(), &mut [0], view.size()),
            };
            let of_fd = look_into(open.fd());
            let of_name = self.tree.dir_fd(view.place).and_then(|dir| view.look_surely(dir.as_fd()));
            (beyond, of_fd, of_name)
        });
        let fail = |errno| self.tree.failed(wire::FailureKind::Read, "stat", id, errno);
        let of_fd = of_fd.map_err(fail)?;
        let of_name = match of_name {
            Ok(seen) => seen,
            // Nobody will see whether it comes back.
            Err(Errno::NOENT) if !view.is_tried_again() => return Err(fail(Errno::NOENT)),
            // Gone, or a directory above it is: whether it comes back is seen by the refresh.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(Look::Changed),
            Err(errno) => return Err(fail(errno)),
        };
        let look = self.judge(&of_name, &view);
        if of_fd.stamp.ino != of_name.stamp.ino && !haul_mutant::removed("names-lead-to-what-was-read") {
            // What was read is not what stands under the name now.
            return Ok(Look::Changed);
        }
        // The two can differ where attributes are cached; the worse one counts.
        let of_fd = self.judge(&of_fd, &view);
        let look = if severity(of_fd) > severity(look) { of_fd } else { look };
        match beyond {
            ReadEnd::Failed(_, errno) => Err(read_failure(&self.tree, id, view.size(), errno)),
            end => Ok(self.judge_end(id, look, matches!(end, ReadEnd::Full))),
        }
    }

    /// A look at a file of which all was read, and that gives bytes `beyond` that.
    fn judge_end(&self, id: FileId, look: Look, beyond: bool) -> Look {
        // What grew gives more than it had.
        let is_told = matches!(look, Look::Changed | Look::Grown { .. });
        if !beyond || is_told || haul_mutant::removed("read-to-the-end") {
            return look;
        }
        self.tree.is_longer(id);
        Look::Longer
    }

    fn verify(
        &mut self,
        id: FileId,
        generation: Generation,
        size: u64,
        subtrees: &[Subtree],
    ) -> Result<bool, Failure> {
        let view = self.view(id, generation)?;
        let open = self.open(id, &view)?;
        for subtree in subtrees {
            let Subtree { offset, len, cv } = *subtree;
            let whole = offset == 0 && len == size;
            // The list came over the wire: what is no subtree of this file cannot be held by the sink.
            if !whole && !is_subtree(self.shared.digest, offset, len, size) {
                return Ok(false);
            }
            let mut hasher = Hasher::new(self.shared.digest, offset);
            self.hash_range(id, &open, &mut hasher, offset, len)?;
            let same = if whole { hasher.root() } else { hasher.value() } == cv;
            if !same {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The root of a file that is what was `seen`, before and after it is hashed; ctime may differ from the
    /// fingerprint's. `None`: the root of what its fingerprint calls the file, whatever lies behind that.
    /// With it, from the same bytes, the values of `parts`.
    fn hash_file(
        &mut self,
        id: FileId,
        generation: Generation,
        map: Option<&ExtentMap>,
        seen: Option<&Fingerprint>,
        parts: &[(u64, u64)],
    ) -> Result<HashOk, Failure> {
        let view = self.view(id, generation)?;
        let open = self.open(id, &view)?;
        if let Some(seen) = seen {
            self.must_be(id, &open, seen)?;
        }
        let all = match map {
            Some(map) => self.hash_sparse(id, &open, map, parts)?,
            None if parts.is_empty() => {
                let mut hasher = Hasher::new(self.shared.digest, 0);
                self.hash_range(id, &open, &mut hasher, 0, view.size())?;
                HashOk { root: hasher.root(), cvs: Vec::new() }
            }
            None => self.hash_parts(id, &open, &ExtentMap::full(view.size()), parts)?,
        };
        // What was read is there, which is all that is asked of a file that grows.
        let Some(seen) = seen else { return Ok(all) };
        self.must_be(id, &open, seen)?;
        let known = if view.is_part() { view.size() } else { view.stamp.size };
        match (seen.size, seen.mtime) == (known, view.stamp.mtime) {
            true => Ok(all),
            false => Err(self.own(wire::FailureKind::Changed, "hash", id, CHANGED_READING)),
        }
    }

    /// Errors: an open file is not what was `seen`.
    fn must_be(&self, id: FileId, open: &OpenFile, seen: &Fingerprint) -> Result<(), Failure> {
        let fail = |errno| self.tree.failed(wire::FailureKind::Read, "stat", id, errno);
        self.wait_for_rate(cost::LOOK);
        let now = self.storage(|| look_into(open.fd())).map_err(fail)?;
        match self.tree.announced(&now) == *seen || haul_mutant::removed("hashed-is-what-was-seen") {
            true => Ok(()),
            false => Err(self.own(wire::FailureKind::Changed, "hash", id, CHANGED_READING)),
        }
    }

    pub(super) fn hash_range(
        &mut self,
        id: FileId,
        open: &OpenFile,
        hasher: &mut Hasher,
        offset: u64,
        len: u64,
    ) -> Result<(), Failure> {
        let base = self.tree.base();
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(SCRATCH_LEN, 0);
        let mut done = 0;
        let mut result = Ok(());
        while done < len && result.is_ok() {
            let part_len = (len - done).min(SCRATCH_LEN as u64) as usize;
            let part = &mut scratch[..part_len];
            self.step(offset + done);
            let end =
                self.storage(|| self.shared.pages.read_at(open.fd(), open.dev(), part, base + offset + done));
            result = self.full(id, offset + done, end);
            if result.is_ok() && self.stopped() {
                result = Err(self.own(wire::FailureKind::Read, "read", id, "stopped"));
            }
            if result.is_ok() {
                self.host(|| hasher.update(part));
            }
            done += part_len as u64;
        }
        self.scratch = scratch;
        result
    }

    fn refresh(
        &mut self,
        id: FileId,
        generation: Generation,
    ) -> Result<(Fingerprint, Meta, Duration), Failure> {
        let Some(view) = self.tree.file(id) else { return Err(self.unknown(id)) };
        self.wait_for_rate(cost::LOOK + self.cost_of_attributes());
        let seen = self.storage(|| {
            let dir = self.tree.dir_fd(view.place)?;
            Ok(view.told(dir.as_fd(), view.look_surely(dir.as_fd())?))
        });
        let seen = seen.map_err(|errno| self.tree.failed(wire::FailureKind::Open, "stat", id, errno))?;
        if !seen.is_file() {
            return Err(self.own(wire::FailureKind::Changed, "stat", id, "is no regular file any more"));
        }
        // A number may be given to another file when the last name of the one that had it is gone.
        let is_another = seen.stamp.ino != view.stamp.ino || seen.links < 2;
        if self.tree.keeps_hard_links() && is_another {
            let done = SourceDone::Another { id, generation };
            (self.shared.post)(SourceCompletion { done, buffer: None });
        }
        let settle = self.tree.settle(view.place, &seen);
        let values = self.storage(|| {
            let dir = self.tree.dir_fd(view.place)?;
            Ok(attributes::read(view.subject(dir.as_fd()), seen.kind, self.tree.keeps()))
        });
        let read =
            |errno| self.tree.failed(wire::FailureKind::Open, "read extended attributes of", id, errno);
        let (values, unread) = values.map_err(read)?;
        if let Some((_, errno)) = unread.first() {
            return Err(read(*errno));
        }
        let attributes = attributes::print(&values);
        if !values.is_empty() {
            let done = SourceDone::Metadata { id, generation, values };
            (self.shared.post)(SourceCompletion { done, buffer: None });
        }
        let refresh = |measured| self.tree.refresh(id, generation, seen.stamp, (measured, attributes));
        refresh(None);
        let mut fingerprint = self.tree.announced(&seen);
        if self.tree.was_longer(id) {
            let size = self.measure(id, generation)?;
            if size > fingerprint.size {
                refresh(Some(size));
                fingerprint.size = size;
            }
        }
        Ok((fingerprint, seen.meta, settle))
    }

    /// How much a file gives, whatever its size is; what gives more than a small file has is refused.
    fn measure(&self, id: FileId, generation: Generation) -> Result<u64, Failure> {
        let view = self.view(id, generation)?;
        let open = self.open(id, &view)?;
        let mut all = vec![0; SMALL_LEN_MAX as usize];
        let (end, beyond) =
            self.storage(|| self.shared.pages.read_whole(open.fd(), open.dev(), &mut all, true));
        match end {
            ReadEnd::Full if beyond => {
                let cause = format!(
                    "it gives more bytes than its size says, and more than {SMALL_LEN_MAX}; write them to a file \
                     first (cat FILE > COPY), and copy that"
                );
                Err(self.own(wire::FailureKind::Read, "read", id, &cause))
            }
            ReadEnd::Full => Ok(SMALL_LEN_MAX),
            ReadEnd::Short(len) => Ok(len as u64),
            ReadEnd::Failed(at, errno) => Err(read_failure(&self.tree, id, at as u64, errno)),
        }
    }

    /// The file, if it is still of this generation.
    pub(super) fn view(&self, id: FileId, generation: Generation) -> Result<FileView, Failure> {
        let view = self.tree.file(id).ok_or_else(|| self.unknown(id))?;
        if view.generation != generation {
            return Err(self.own(
                wire::FailureKind::Changed,
                "open",
                id,
                "another version of it is copied by now",
            ));
        }
        Ok(view)
    }

    /// A file, kept open for later reads.
    pub(super) fn open(&self, id: FileId, view: &FileView) -> Result<Arc<OpenFile>, Failure> {
        if let Some(open) = self.tree.open_file(id) {
            return Ok(open);
        }
        self.wait_for_rate(cost::OPEN);
        let opened = self.storage(|| {
            let name = escape::within(&self.tree.path_of(id)).into();
            let open = OpenFile::open(|| self.tree.dir_fd(view.place), view, name)?;
            // Known from here on, so that no object has to ask.
            self.shared.pages.takes_dontcache(open.fd(), open.dev(), view.size());
            Ok(Arc::new(open))
        });
        match opened {
            Ok(open) => {
                self.tree.keep_file(id, view.generation, open.clone());
                Ok(open)
            }
            Err(OpenError::Changed(what)) => Err(self.own(wire::FailureKind::Changed, "open", id, what)),
            Err(OpenError::Os(errno)) => Err(self.tree.failed(wire::FailureKind::Open, "open", id, errno)),
        }
    }

    /// Holds what was seen against the fingerprint.
    fn judge(&self, seen: &Seen, view: &FileView) -> Look {
        let (now, known) = (&seen.stamp, &view.stamp);
        // No links: it was removed or replaced, and we hold the last of it.
        if haul_mutant::removed("changes-are-seen") {
            return Look::Same;
        }
        if !seen.is_file() || seen.links == 0 {
            return Look::Changed;
        }
        if !now.same_content(known) {
            let grown = Look::Grown { size: now.size };
            return if view.may_have_grown(now) { grown } else { Look::Changed };
        }
        if now.ino != known.ino || now.ctime != known.ctime {
            return Look::MetaOnly {
                seen: self.tree.announced(seen),
                settle: self.tree.settle(view.place, seen),
            };
        }
        Look::Same
    }

    pub(super) fn full(&self, id: FileId, offset: u64, end: ReadEnd) -> Result<(), Failure> {
        match end {
            ReadEnd::Full => Ok(()),
            ReadEnd::Short(read) => Err(short_failure(&self.tree, id, offset + read as u64)),
            ReadEnd::Failed(read, errno) => Err(read_failure(&self.tree, id, offset + read as u64, errno)),
        }
    }

    pub(super) fn own(&self, stage: wire::FailureKind, op: &str, id: FileId, cause: &str) -> Failure {
        own_failure(stage, op, &self.tree.path_of(id), cause)
    }

    fn unknown(&self, id: FileId) -> Failure {
        own_failure(
            wire::FailureKind::Open,
            "open",
            format!("file {id}").as_bytes(),
            "not known to the source",
        )
    }

    /// Attributes and lists, where they are kept.
    fn cost_of_attributes(&self) -> u32 {
        if self.tree.keeps().any() { cost::ATTRIBUTES } else { 0 }
    }

    /// Waits until so many operations of metadata may begin.
    fn wait_for_rate(&self, operations: u32) {
        if let Some(turn) = &self.turn {
            self.tree.rate().take_telling(operations, || turn.watch());
        }
    }

    /// A step of the operation begins, see [`track`].
    pub(super) fn step(&mut self, step: u64) {
        if let Some(track) = &mut self.track {
            track.at(step);
        }
    }

    /// Runs system calls on the source. The thread is then not free for the other of its two stages.
    pub(super) fn storage<T>(&self, work: impl FnOnce() -> T) -> T {
        self.timed(Stage::SourceStorage, Stage::SourceHost, work)
    }

    /// Runs work of the processor on payload.
    fn host<T>(&self, work: impl FnOnce() -> T) -> T {
        self.timed(Stage::SourceHost, Stage::SourceStorage, work)
    }

    fn timed<T>(&self, busy: Stage, idle: Stage, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        let time = start.elapsed();
        self.meter.add_busy(busy, time);
        self.meter.add_idle(idle, time);
        result
    }
}

/// What an operation does first, or all the time, by the entry that it goes to.
pub(super) fn label(tree: &Arc<SourceTree>, op: &SourceOp) -> (FileId, impl Fn() -> Doing + use<>) {
    let (what, id) = match *op {
        SourceOp::Read { id, .. } => ("open", id),
        SourceOp::Locate { ref files } => ("open", files.first().map_or(FileId(0), |(id, _)| *id)),
        SourceOp::ReadBundle { ref files } => ("read", files.first().map_or(FileId(0), |file| file.id)),
        SourceOp::Verify { id, .. } | SourceOp::HashFile { id, .. } | SourceOp::Map { id, .. } => {
            ("read", id)
        }
        SourceOp::Look { id, .. } | SourceOp::Refresh { id, .. } => ("stat", id),
        SourceOp::Forget { id } => ("close", id),
        SourceOp::ForgetDir { id } => ("close", id.as_file()),
    };
    let tree = tree.clone();
    (id, move || doing(&tree, what, id, 0))
}

/// Follows an operation of many steps: the number of a step is the file of a bundle, or an offset.
fn track(turn: &Turn<SourceJob>, tree: &Arc<SourceTree>, op: &SourceOp) -> Option<Track<SourceJob>> {
    let tree = tree.clone();
    match *op {
        SourceOp::Locate { .. } => Some(turn.track(move |step| doing(&tree, "open", FileId(step), 0))),
        SourceOp::ReadBundle { .. } => Some(turn.track(move |step| doing(&tree, "read", FileId(step), 0))),
        SourceOp::Verify { id, .. } | SourceOp::HashFile { id, .. } => {
            Some(turn.track(move |step| doing(&tree, "read", id, step)))
        }
        _ => None,
    }
}

fn doing(tree: &SourceTree, what: &'static str, id: FileId, offset: u64) -> Doing {
    Doing { what, name: escape::within(&tree.path_of(id)), offset }
}

/// The answer to an operation in which the thread panicked.
pub(super) fn broken(op: &SourceOp, buffer: Option<BufferId>) -> Option<SourceDone> {
    let failure =
        own_failure(wire::FailureKind::Read, "read", b"source", "internal error in a reading thread");
    Some(match *op {
        SourceOp::Read { id, generation, offset, len, target, .. } => {
            let (service, result) = (None, Err(failure));
            SourceDone::Read { id, generation, offset, len, target, service, result }
        }
        SourceOp::Locate { ref files } => {
            let layout = Arc::new(Layout::flat(TargetId(0)));
            let lies = |(id, generation): &_| (*id, *generation, layout.clone());
            SourceDone::Locate { files: files.iter().map(lies).collect() }
        }
        SourceOp::ReadBundle { ref files } => SourceDone::ReadBundle {
            buffer: buffer.unwrap_or(NO_BUFFER),
            items: files.iter().map(|file| (*file, Err(failure.clone()))).collect(),
        },
        SourceOp::Look { id, generation } => SourceDone::Look { id, generation, result: Err(failure) },
        SourceOp::Verify { id, generation, .. } => {
            SourceDone::Verify { id, generation, result: Err(failure) }
        }
        SourceOp::Map { id, generation } => SourceDone::Map { id, generation, result: Err(failure) },
        SourceOp::HashFile { id, generation, .. } => {
            SourceDone::HashFile { id, generation, result: Err(failure) }
        }
        SourceOp::Refresh { id, generation } => SourceDone::Refresh { id, generation, result: Err(failure) },
        SourceOp::Forget { .. } | SourceOp::ForgetDir { .. } => return None,
    })
}

fn severity(look: Look) -> u8 {
    match look {
        Look::Same => 0,
        Look::MetaOnly { .. } => 1,
        Look::Grown { .. } => 2,
        Look::Longer => 3,
        Look::Changed => 4,
    }
}

/// Whether a range is a subtree of a file's tree other than the whole.
pub(crate) fn is_subtree(kind: DigestKind, offset: u64, len: u64, size: u64) -> bool {
    let Some(end) = offset.checked_add(len) else { return false };
    let chunk = kind.leaf_len();
    if len == 0 || end > size || !offset.is_multiple_of(chunk) {
        return false;
    }
    max_subtree_len(offset).is_none_or(|len_max| len <= len_max)
        && (end == size || (len >= chunk && len.is_power_of_two()))
}
