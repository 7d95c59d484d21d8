//! How each operation begins: divided by storage target, or given to one thread; and how it is answered.
//!
//! Left out: objects, which go to the I/O threads (`data`), and the journal (`journal_writer`).

use std::sync::Arc;

use haul_core::ids::{BufferId, DirId, FileId};
use haul_core::transfer::op::{AmendItem, BundleWrite, CommitItem, LookupItem, SinkDone, SinkFile, SinkOp};
use haul_core::wire::{Failure, FailureKind};

use super::data::NewWrite;
use super::fan_out::{Place, no_target, pair};
use super::{Sink, Task, guard, slice};
use crate::blocking_pool::{Doing, Turn};
use crate::io::IoTarget;
use crate::meta_rate::cost;
use crate::owed::{Owed, panic_point};
use crate::{Payload, SinkCompletion};
use haul_base::buffer::Buffer;
use haul_base::escape;

impl Sink {
    /// Begins one operation; never waits for storage.
    pub(super) fn begin(self: &Arc<Self>, op: SinkOp, buffer: Option<Payload>) {
        let of_dir = |_: &Sink, id: &DirId| Place(*id, None);
        match op {
            SinkOp::MakeDirs { dirs } => self.split(
                ("create", FailureKind::Create, |_, _| cost::MAKE_DIR),
                dirs,
                of_dir,
                no_target,
                |sink, id| sink.tree.dirfd(*id).map(drop),
                |_, dirs, results| SinkDone::MakeDirs { results: pair(dirs, |id| *id, results) },
            ),
            SinkOp::Lookup { items } => self.split(
                ("stat", FailureKind::Open, |_, item: &LookupItem| match item.adopt {
                    Some(_) => cost::LOOK + cost::NAME + cost::OPEN,
                    None => cost::LOOK,
                }),
                items,
                |_, item| Place(item.file.parent, Some(item.file.name.clone())),
                no_target,
                |sink, item| sink.look(item),
                |_, items, results| SinkDone::Lookup { results: pair(items, |item| item.file.id, results) },
            ),
            SinkOp::Clone { items } => self.split(
                ("clone", FailureKind::Write, |_, _| cost::OPEN + cost::CREATE),
                items,
                |_, item| Place(item.file.parent, Some(item.file.name.clone())),
                no_target,
                |sink, item| sink.clone_file(item),
                |_, items, results| SinkDone::Clone { results: pair(items, |item| item.file.id, results) },
            ),
            SinkOp::WriteBundle { buffer: id, items, more } => self.write_bundle((id, more), items, buffer),
            SinkOp::Commit { durable, items } if self.may_go_together(&items, durable) => {
                self.begin_together(items, durable);
            }
            SinkOp::Commit { durable, items } => self.split(
                ("publish", FailureKind::Publish, |sink, item: &CommitItem| match &item.publish {
                    Some(publish) => sink.cost_of_setting(publish.owner) + cost::NAME,
                    None => 0,
                }),
                items,
                |sink, item| sink.place_of(item.id, item.publish.as_ref().map(|publish| &publish.file)),
                |sink, item| sink.files.target_of(item.id),
                move |sink, item| sink.commit(item, durable),
                Sink::committed_all,
            ),
            SinkOp::Amend { durable, items } => self.split(
                ("metadata", FailureKind::Metadata, |sink, item: &AmendItem| {
                    cost::OPEN + sink.cost_of_setting(item.owner)
                }),
                items,
                |_, item| Place(item.file.parent, Some(item.file.name.clone())),
                no_target,
                move |sink, item| sink.amend(item, durable),
                |_, items, results| SinkDone::Amend { results: pair(items, |item| item.file.id, results) },
            ),
            SinkOp::MakeLinks { items } => self.split(
                ("create", FailureKind::Publish, |_, _| cost::LOOK),
                items,
                |_, item| Place(item.file.parent, Some(item.file.name.clone())),
                no_target,
                |sink, item| sink.make_link(item),
                |_, items, results| SinkDone::MakeLinks {
                    results: pair(items, |item| item.file.id, results),
                },
            ),
            SinkOp::Join { items } => self.split(
                ("link", FailureKind::Publish, |_, _| cost::LOOK + cost::OPEN),
                items,
                |_, item| Place(item.file.parent, Some(item.file.name.clone())),
                no_target,
                |sink, item| sink.join(item),
                |_, items, results| SinkDone::Join { results: pair(items, |item| item.file.id, results) },
            ),
            SinkOp::SyncDirs { dirs } => self.split(
                ("sync", FailureKind::Sync, |_, _| 0),
                dirs,
                of_dir,
                no_target,
                |sink, id| sink.sync_dir(*id),
                |_, dirs, results| SinkDone::SyncDirs { results: pair(dirs, |id| *id, results) },
            ),
            SinkOp::FinishDirs { durable, dirs } => {
                let target = dirs.first().map_or(IoTarget::default(), |(id, _)| self.tree.target_of(*id));
                let first = dirs.first().map_or(DirId::ROOT, |(id, _)| *id);
                let ids: Vec<DirId> = dirs.iter().map(|(id, _)| *id).collect();
                let failed = move |failure: Failure| SinkDone::FinishDirs {
                    results: ids.iter().map(|id| (*id, Err(failure.clone()))).collect(),
                };
                let owed = self.owed(FailureKind::Metadata, failed);
                self.task(target, "metadata", Place(first, None), owed, move |sink, turn| {
                    SinkDone::FinishDirs { results: sink.finish_dirs(turn, durable, &dirs) }
                });
            }
            SinkOp::Discard { id } => {
                let place = self.place_of(id, None);
                // It has no failure: what could not be removed is debris, which the journal knows.
                let owed = self.owed(FailureKind::Write, move |_| SinkDone::Discard { id });
                self.task(self.tree.target_of(place.0), "remove", place, owed, move |sink, turn| {
                    sink.rate.take_telling(cost::REMOVE, || turn.watch());
                    sink.files.discard(id, || (sink.still_owner)().is_ok());
                    SinkDone::Discard { id }
                });
            }
            SinkOp::Create { file, striping } => {
                let place = Place(file.parent, Some(file.name.clone()));
                let id = file.id;
                let owed = self
                    .owed(FailureKind::Create, move |failure| SinkDone::Create { id, result: Err(failure) });
                self.task(self.tree.target_of(place.0), "create", place, owed, move |sink, turn| {
                    sink.rate.take_telling(cost::CREATE, || turn.watch());
                    panic_point("panic~create", &escape::within(file.name.as_bytes()));
                    let result = guard(FailureKind::Create, || {
                        sink.may_make()?;
                        sink.files.want(&file, striping);
                        let open = sink.files.ready(&file, |open, file| sink.begin_path(open, file))?;
                        if sink.files.has_several_targets() {
                            sink.data.choice.on_targets();
                        }
                        Ok(open.layout())
                    });
                    SinkDone::Create { id: file.id, result }
                });
            }
            SinkOp::Check { file, kind, ranges } => {
                let place = Place(file.parent, Some(file.name.clone()));
                let target = self.files.target_of(file.id).unwrap_or_else(|| self.tree.target_of(place.0));
                let (id, asked) = (file.id, ranges.clone());
                let owed = self.owed(FailureKind::Read, move |failure| SinkDone::Check {
                    id,
                    ranges: asked,
                    result: Err(failure),
                });
                self.task(target, "check", place, owed, move |sink, _| {
                    let result = guard(FailureKind::Read, || sink.check(&file, kind, &ranges));
                    SinkDone::Check { id: file.id, ranges, result }
                });
            }
            SinkOp::Write { .. }
            | SinkOp::Journal { .. }
            | SinkOp::Note { .. }
            | SinkOp::RefuseNote { .. }
            | SinkOp::RemoveJournal => {
                unreachable!("these have ways of their own")
            }
        }
    }

    /// Commits small files, those of one target together.
    fn begin_together(self: &Arc<Self>, items: Vec<CommitItem>, durable: bool) {
        let lies = |sink: &Sink, item: &CommitItem| {
            sink.place_of(item.id, item.publish.as_ref().map(|publish| &publish.file))
        };
        let own = |sink: &Sink, item: &CommitItem| sink.files.target_of(item.id);
        self.fan_out("publish", items, lies, own, Sink::committed_all, |fan_out, group| {
            move |sink: &Arc<Sink>, turn: &Turn<Task>| {
                let results = sink.commit_together(turn, &fan_out.items, &group, durable);
                fan_out.put(&group, results);
            }
        });
    }

    fn committed_all(&self, items: &[CommitItem], results: Vec<Result<(), Failure>>) -> SinkDone {
        self.data.choice.on_commit();
        SinkDone::Commit { results: pair(items, |item| item.id, results), lost: Vec::new() }
    }

    /// Has a thread make the file of a write, and then write.
    pub(super) fn begin_first(self: &Arc<Self>, write: NewWrite) {
        let place = write.place();
        let (target, sink) = (self.tree.target_of(place.0), self.clone());
        let label = move || sink.doing("create", Place(place.0, place.1.clone()));
        let work = |sink: &Arc<Sink>, turn: &Turn<Task>| {
            sink.rate.take_telling(cost::CREATE, || turn.watch());
            sink.write_first(write);
        };
        self.submit(target, label, Task(Box::new(work)));
    }

    /// The answer to an operation of one thread; `failed` makes it of a failure.
    fn owed(
        self: &Arc<Self>,
        kind: FailureKind,
        failed: impl FnOnce(Failure) -> SinkDone + Send + 'static,
    ) -> Owed<SinkDone> {
        let sink = self.clone();
        Owed::new(kind, move |result: Result<SinkDone, Failure>| {
            (sink.post)(SinkCompletion { done: result.unwrap_or_else(failed) });
        })
    }

    /// Writes small files whole, one after the other; those on different targets side by side.
    fn write_bundle(
        self: &Arc<Self>,
        (id, more): (BufferId, bool),
        items: Vec<BundleWrite>,
        buffer: Option<Payload>,
    ) {
        let lies = |_: &Sink, item: &BundleWrite| Place(item.file.parent, Some(item.file.name.clone()));
        let done = move |_: &Sink, items: &[BundleWrite], results| {
            let results = pair(items, |item| item.file.id, results);
            SinkDone::WriteBundle { buffer: id, results, more }
        };
        let buffer = buffer.map(Payload::shared);
        self.fan_out("write", items, lies, no_target, done, |fan_out, group| {
            let buffer = buffer.clone();
            move |sink: &Arc<Sink>, turn: &Turn<Task>| {
                let (tree, items) = (sink.tree.clone(), fan_out.items.clone());
                let mut track = turn.track(move |i| {
                    let file = &items[i as usize].file;
                    Doing { what: "write", name: tree.path_of(file.parent, &file.name), offset: 0 }
                });
                let payload = buffer.as_deref().map(Buffer::as_slice).unwrap_or_default();
                let mut write = |i: usize| {
                    sink.rate.take_telling(cost::CREATE, || turn.watch());
                    track.at(i as u64);
                    let item = &fan_out.items[i];
                    guard(FailureKind::Write, || {
                        sink.may_make()?;
                        let data = slice(payload, item.start, item.file.size)?;
                        // Of an empty one this makes the temporary to publish.
                        sink.files.write_whole(&item.file, item.mode, data)
                    })
                };
                let results = group.iter().map(|i| write(*i)).collect();
                drop(buffer);
                fan_out.put(&group, results);
            }
        });
    }

    /// Where an open file lies; its name if it was not made yet.
    fn place_of(&self, id: FileId, file: Option<&SinkFile>) -> Place {
        match (file, self.files.place_of(id)) {
            (Some(file), _) => Place(file.parent, Some(file.name.clone())),
            (None, Some((parent, name))) => Place(parent, Some(name)),
            (None, None) => Place(DirId::ROOT, None),
        }
    }

    fn task(
        self: &Arc<Self>,
        target: IoTarget,
        what: &'static str,
        place: Place,
        owed: Owed<SinkDone>,
        work: impl FnOnce(&Arc<Sink>, &Turn<Task>) -> SinkDone + Send + 'static,
    ) {
        let sink = self.clone();
        let label = move || sink.doing(what, Place(place.0, place.1.clone()));
        self.submit(target, label, Task(Box::new(move |sink, turn| owed.settle(Ok(work(sink, turn))))));
    }
}
