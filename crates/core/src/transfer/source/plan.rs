//! Which objects wait for which storage target, between a file's start and its reads.
//!
//! In: files whose state at the sink is known, where they lie, objects that go again. Out: files to ask
//! about; runs of objects for the schedule, which says what is read next. A file that lies on its device
//! needs no question. Others are asked about in batches, as many ahead as keep targets busy: a layout is
//! asked for when its file may be read soon, and no announcement waits for it.
//! Invariants: an object that the file still needs is in the schedule, or its file waits in `adding`; what
//! the schedule gives out of a file that ended or began afresh is put back. What waits is bounded by the
//! schedule's room, and what goes again by what was sent.
//! Left out: whether a grant and a buffer can be had (`read`).

use alloc::sync::Arc;
use std::collections::VecDeque;

use super::file::{File, SourcePhase};
use super::{Source, SourceAction};
use crate::ids::{FileId, Generation, SinkTarget, TargetId};
use crate::layout::Layout;
use crate::layout::runs::{Cut, RUNS_PART_MAX};
use crate::schedule::{Health, Issue, Limits, Policy, Run, Schedule, TargetState};
use crate::transfer::op::SourceOp;
use crate::wire::{FileLayout, Message};

/// Most files that one [`SourceOp::Locate`] asks about.
pub const LOCATE_FILES_MAX: usize = 16;
/// Files that are asked about and not read yet, at most: to have something for many targets.
const LOCATED_MAX: usize = 1024;
/// Objects are not made shorter than this for the sake of stripes, bytes.
const OBJECT_LEN_LEAST: u64 = 1 << 20;

/// Where a walked file lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lies {
    /// All of it on one target.
    At(TargetId),
    /// Its file system has to be asked.
    Ask,
}

/// What waits to be read by objects. See the module's head.
pub(super) struct Plan {
    pub(super) schedule: Schedule,
    /// Files with objects that are not in the schedule yet.
    adding: VecDeque<FileId>,
    /// What goes again, and found no room.
    again: VecDeque<(TargetId, Run)>,
    /// Files that are to be asked about.
    unplaced: VecDeque<FileId>,
    /// Files that were asked about and have something to be read, or are being asked about.
    located: usize,
    /// Files that have something to be read.
    pub(super) files: usize,
    /// The longest object of a file so far of which anything was to be read, bytes.
    pub(super) object_max: u64,
    /// The schedule has nothing that may be read now, for reasons of this end.
    pub(super) holds: bool,
    /// The same, because the sink has no room for any of it.
    pub(super) shut_out: bool,
}

impl Plan {
    pub(super) fn new(policy: Policy, limits: Limits) -> Plan {
        Plan {
            schedule: Schedule::new(policy, limits),
            adding: VecDeque::new(),
            again: VecDeque::new(),
            unplaced: VecDeque::new(),
            located: 0,
            files: 0,
            object_max: 0,
            holds: false,
            shut_out: false,
        }
    }
}

impl Source {
    /// How the storage targets of this end fare.
    pub fn targets(&self) -> impl Iterator<Item = TargetState> + '_ {
        self.plan.schedule.targets()
    }

    /// Those of them that are not healthy, and have something to do.
    pub fn unwell(&self) -> impl Iterator<Item = (TargetId, Health)> + '_ {
        self.plan.schedule.unwell()
    }

    /// A file has objects to be read.
    pub(super) fn queue_objects(&mut self, id: FileId) {
        self.see_longest(id);
        let Some(file) = self.files.get_mut(&id) else { return };
        (file.adding, file.queued) = (true, 0);
        match file.layout {
            Some(_) => self.plan.adding.push_back(id),
            None => self.plan.unplaced.push_back(id),
        }
        self.count_work(id);
    }

    /// Something of a file is to be read: no object that is read may be longer than what room is looked for.
    fn see_longest(&mut self, id: FileId) {
        let Some(file) = self.files.get(&id) else { return };
        let len = u64::from(file.object_size).min(file.size());
        if len > self.plan.object_max {
            self.plan.object_max = len;
            self.see_sink_targets();
        }
    }

    /// After a change of what a file has to be read.
    fn count_work(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        let works = file.adding || file.left > 0;
        if std::mem::replace(&mut file.works, works) == works {
            return;
        }
        let located = file.asks && file.layout.is_some();
        match works {
            true => self.plan.files += 1,
            false => self.plan.files -= 1,
        }
        match works {
            true => self.plan.located += usize::from(located),
            false => self.plan.located -= usize::from(located),
        }
    }

    /// Nothing of a file is read any more, unless it begins afresh.
    pub(super) fn drop_objects(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        if file.works {
            self.forget_runs(id);
        }
        let Some(file) = self.files.get_mut(&id) else { return };
        (file.adding, file.left) = (false, 0);
        file.again.clear();
        file.given.clear();
        self.count_work(id);
    }

    /// What waits of a file goes into the schedule anew, for where it goes is another place now.
    pub(super) fn queue_anew(&mut self, id: FileId) {
        self.forget_runs(id);
        let Some(file) = self.files.get_mut(&id) else { return };
        (file.left, file.adding, file.queued) = (0, true, 0);
        let object_size = u64::from(file.object_size);
        let again: Vec<u64> = file.again.iter().map(|offset| offset / object_size).collect();
        // One that is still to be asked about stands there already.
        if file.layout.is_some() {
            self.plan.adding.push_back(id);
        }
        for object in again {
            self.add_again(id, object);
        }
    }

    fn forget_runs(&mut self, id: FileId) {
        self.plan.schedule.forget(id);
        self.plan.again.retain(|(_, run)| run.file != id);
    }

    /// An object goes once more, before what waits at its target.
    pub(super) fn add_again(&mut self, id: FileId, object: u64) {
        if !haul_mutant::removed("what-goes-again-has-room") {
            // Of a file that was held whole nothing was queued before.
            self.see_longest(id);
        }
        let Some(file) = self.files.get_mut(&id) else { return };
        let offset = object.saturating_mul(file.object_size.into());
        let target = file.layout.as_ref().map_or(TargetId(0), |layout| *layout.at(offset).target);
        let sink_target =
            file.sink_targets.as_ref().map_or(SinkTarget::ANY, |layout| *layout.at(offset).target);
        file.left += 1;
        let run = Run::objects(id, sink_target, object, 1);
        if self.plan.schedule.add_again(target, run).is_err() {
            self.plan.again.push_back((target, run));
        }
        self.count_work(id);
    }

    /// Asks where files lie, and gives the schedule what it has room for.
    pub(super) fn fill_plan(&mut self) {
        self.locate();
        while self.plan.schedule.room() > 0
            && let Some((target, run)) = self.plan.again.pop_front()
        {
            if self.files.get(&run.file).is_some_and(|file| file.left > 0) {
                self.plan.schedule.add_again(target, run).expect("there is room");
            }
        }
        while self.plan.schedule.room() >= RUNS_PART_MAX
            && let Some(id) = self.plan.adding.pop_front()
        {
            self.add_part(id);
        }
    }

    /// Gives the schedule a part of a file.
    fn add_part(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id).filter(|file| file.adding) else { return };
        let Some(layout) = file.layout.clone() else { return };
        if let Some(objects) = file.next_objects() {
            let cut = Cut {
                file: id,
                size: file.size().min(objects.end.saturating_mul(file.object_size.into())),
                object_size: file.object_size.into(),
                source: &layout,
                sink: file.sink_targets.as_deref(),
            };
            let (runs, next) = cut.part(objects.start);
            file.queued = next;
            for (target, run) in runs {
                file.left += run.count;
                self.plan.schedule.add(target, run).expect("there is room");
            }
        }
        let file = self.files.get_mut(&id).expect("it is there");
        match file.next_objects() {
            Some(_) => self.plan.adding.push_back(id),
            None => file.adding = false,
        }
        self.count_work(id);
    }

    fn locate(&mut self) {
        while !self.plan.unplaced.is_empty() && self.plan.located < LOCATED_MAX {
            let mut files = Vec::new();
            while files.len() < LOCATE_FILES_MAX
                && self.plan.located < LOCATED_MAX
                && let Some(id) = self.plan.unplaced.pop_front()
            {
                if let Some(file) = self.files.get(&id).filter(|file| file.adding && file.layout.is_none()) {
                    files.push((id, file.generation));
                    self.plan.located += 1;
                }
            }
            if !files.is_empty() {
                self.actions.push_back(SourceAction::Submit(SourceOp::Locate { files }));
            }
        }
    }

    /// Storage said where files lie. Their objects are cut so that each lies on one target, and the sink
    /// hears of that before any of them can come.
    pub(super) fn handle_located(&mut self, files: Vec<(FileId, Generation, Arc<Layout<TargetId>>)>) {
        let mut told = Vec::new();
        for (id, generation, layout) in files {
            // What waits for objects is counted anew.
            self.plan.located -= 1;
            let fits = |file: &&mut Box<File>| file.generation == generation && file.layout.is_none();
            let Some(file) = self.files.get_mut(&id).filter(fits) else { continue };
            if file.striped {
                let max = u64::from(file.object_size_max);
                let len = layout.object_len(OBJECT_LEN_LEAST.min(max), max);
                file.object_size = u32::try_from(len).expect("not more than before");
                let (object_size, striping) = (file.object_size, layout.striping());
                told.push(FileLayout { id, generation, object_size, striping });
            }
            file.layout = Some(layout);
            if file.adding {
                self.plan.located += 1;
                self.plan.adding.push_back(id);
            }
        }
        if !told.is_empty() {
            self.flush_announcements();
            self.actions.push_back(SourceAction::Send(Message::FileLayout(told)));
        }
    }

    /// What the schedule gives out next, and the piece of it; `None`: nothing now. `ahead`: whether or not
    /// the sink has room for it.
    pub(super) fn next_piece(&mut self, ahead: bool) -> Option<(Issue, u64, u32)> {
        loop {
            self.fill_plan();
            self.hold_unplaced();
            let schedule = &mut self.plan.schedule;
            let next = if ahead { schedule.next_ahead(self.now) } else { schedule.next(self.now) };
            if !ahead {
                self.plan.shut_out = next.is_none() && self.config.agreed.targets && schedule.is_shut_out();
                self.plan.holds = next.is_none() && !self.plan.shut_out;
            }
            let issue = next?;
            let (id, object) = (issue.file, issue.object);
            let Some(file) = self.files.get_mut(&id).filter(|file| file.left > 0) else {
                self.plan.schedule.not_asked(issue.target, self.now);
                continue;
            };
            file.left -= 1;
            let (piece, more) = file.take_piece(object);
            if more {
                self.add_again(id, object);
            }
            self.count_work(id);
            match piece {
                Some((offset, len)) => return Some((issue, offset, len)),
                None => self.plan.schedule.not_asked(issue.target, self.now),
            }
            if self.files.get(&id).is_some_and(|file| file.phase == SourcePhase::Sending && file.is_read()) {
                self.look(id);
            }
        }
    }
}
