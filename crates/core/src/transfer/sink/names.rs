//! Further names of files: hard links of what was announced before.
//!
//! In: entries of which other names may follow, and these; how the first of them ended; what became of a name
//! at the destination. Out: names for the engine to give, and names that are to come as files of their own.
//! Invariants: a name is given only when the file that it is a name of ended here with all its bytes under
//! its own (and on media, if durable), or was found to be right there; of one that failed or was left alone
//! no other name is made, and the next of them comes as a file of its own, which the rest are names of then.
//! What is remembered stays within [`NAMES_OPEN_MAX`], and goes when all names came that the source has.
//! Left out: which names belong together, which is the source's to know; how one is given, which is the
//! engine's.

use std::collections::VecDeque;

use super::{Link, Sink, SinkAction};
use crate::change::Change;
use crate::entry::{Meta, NAMES_COST, NAMES_OPEN_MAX, Name};
use crate::id_map::IdMap;
use crate::ids::{DirId, FileId, Generation};
use crate::transfer::op::{JoinItem, Joined, SinkFile, SinkOp};
use crate::wire::{Failure, FileState, ITEMS_MAX};

/// Why a set of names, and the source is told that it is no set.
const UNKNOWN: &str = "a hard link of what was not announced with other names, or of more names than it has";

/// A link that is a further name.
pub(super) struct Joins {
    /// By the entry that the names of it were announced with.
    set: FileId,
    /// The entry that it is given the file of, once that is asked for.
    pub(super) to: Option<FileId>,
    meta: Meta,
    /// Of a symbolic link, or of what is made as one.
    pub(super) is_link: bool,
    /// The source was told that it is to come as an entry of its own.
    pub(super) apart: bool,
}

impl Link {
    pub(super) fn is_apart(&self) -> bool {
        self.joins.as_ref().is_some_and(|joins| joins.apart)
    }
}

/// How it stands with the file that others are names of.
enum First {
    /// It was announced and did not end.
    Open(FileId),
    /// It has its name.
    Stands(FileId),
    /// There is none: the next name becomes it.
    None,
    /// Where it lies are no hard links.
    Never(Failure),
}

/// The names of one file.
struct Set {
    first: First,
    /// Names that may still be announced.
    left: u32,
    waiting: VecDeque<FileId>,
    /// Being given.
    under_way: u32,
    is_link: bool,
    cost: usize,
}

/// All of them.
#[derive(Default)]
pub(super) struct Names {
    sets: IdMap<FileId, Set>,
    /// Whose names each open first is.
    firsts: IdMap<FileId, FileId>,
    cost: usize,
    /// For the engine, next.
    items: Vec<JoinItem>,
}

impl Sink {
    /// Of this entry, which is being announced, so many names may come in all.
    pub(super) fn expect_names(
        &mut self,
        id: FileId,
        (parent, name): (DirId, &Name),
        (names, is_link): (u32, bool),
    ) -> Result<(), &'static str> {
        let cost = NAMES_COST + self.dirs.path_len(parent, name);
        if self.names.cost + cost > NAMES_OPEN_MAX && !haul_mutant::removed("open-names-are-bounded") {
            return Err("more files of which other names follow than the limit");
        }
        self.names.cost += cost;
        let set = Set {
            first: First::Open(id),
            left: names.saturating_sub(1),
            waiting: VecDeque::new(),
            under_way: 0,
            is_link,
            cost,
        };
        self.names.sets.insert(id, set);
        self.names.firsts.insert(id, id);
        self.actions.push_back(SinkAction::Lead { id, parent, name: name.clone() });
        Ok(())
    }

    /// A further name of what was announced as `to`.
    pub(super) fn announce_name(
        &mut self,
        (id, generation): (FileId, Generation),
        (parent, name): (DirId, Name),
        meta: Meta,
        to: FileId,
    ) -> Result<(), &'static str> {
        let set = self.names.sets.get_mut(&to).filter(|set| set.left > 0).ok_or(UNKNOWN)?;
        set.left -= 1;
        let joins = Joins { set: to, to: None, meta, is_link: set.is_link, apart: false };
        self.dirs.hold(parent);
        let link = Link { parent, name, generation, change: Change::NONE, joins: Some(joins) };
        self.links.insert(id, link);
        self.join(id);
        Ok(())
    }

    /// Has a name given, if it is time for that, or has it come by itself.
    fn join(&mut self, id: FileId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let Some(joins) = &mut link.joins else { return };
        let of = joins.set;
        let Some(set) = self.names.sets.get_mut(&of) else { return };
        match &set.first {
            First::Open(first) if haul_mutant::removed("names-wait-for-their-file") => {
                let first = *first;
                self.ask_to_join(id, of, first);
            }
            First::Open(_) => set.waiting.push_back(id),
            First::Stands(first) => {
                let first = *first;
                self.ask_to_join(id, of, first);
            }
            First::None => self.become_first(id, of),
            First::Never(failure) => {
                let failure = failure.clone();
                self.come_apart(id, Some(failure));
            }
        }
    }

    fn ask_to_join(&mut self, id: FileId, of: FileId, first: FileId) {
        let number = self.earlier.take_temp().number;
        let policy = self.config.policy;
        let Some(link) = self.links.get_mut(&id) else { return };
        let Some(joins) = &mut link.joins else { return };
        joins.to = Some(first);
        let (parent, name) = (link.parent, link.name.clone());
        let file = SinkFile { id, parent, name, number, size: 0, map: None };
        let (no_replace, update, force) = (policy.no_clobber, policy.update, policy.force);
        let item = JoinItem { file, to: first, meta: joins.meta, no_replace, update, force };
        self.names.items.push(item);
        if let Some(set) = self.names.sets.get_mut(&of) {
            set.under_way += 1;
        }
    }

    /// The others are to be names of this one, which comes as an entry of its own.
    fn become_first(&mut self, id: FileId, of: FileId) {
        let Some(Link { parent, name, .. }) = self.links.get(&id) else { return };
        let lead = SinkAction::Lead { id, parent: *parent, name: name.clone() };
        let Some(set) = self.names.sets.get_mut(&of) else { return };
        set.first = First::Open(id);
        self.names.firsts.insert(id, of);
        self.actions.push_back(lead);
        self.come_apart(id, None);
    }

    /// The source is to announce it as an entry of its own. `told`: what the user asked for and does not get.
    fn come_apart(&mut self, id: FileId, told: Option<Failure>) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let Some(joins) = &mut link.joins else { return };
        joins.apart = true;
        self.states.push((id, link.generation, FileState::Fresh));
        if let Some(failure) = told {
            self.counts.apart += 1;
            self.handle_unkept(id, failure);
        }
    }

    /// What others may be names of ended; `stands`: it is under its name what it is to be.
    pub(super) fn first_ended(&mut self, id: FileId, stands: bool) {
        let Some(&of) = self.names.firsts.get(&id) else { return };
        let Some(set) = self.names.sets.get_mut(&of) else { return };
        if !matches!(set.first, First::Open(first) if first == id) || self.stop.is_some() {
            return;
        }
        let stands = stands || haul_mutant::removed("failed-files-have-no-other-names");
        if stands {
            set.first = First::Stands(id);
            let waiting = std::mem::take(&mut set.waiting);
            waiting.into_iter().for_each(|id| self.join(id));
        } else {
            set.first = First::None;
            let next = set.waiting.pop_front();
            self.forget_first(id);
            if let Some(next) = next {
                self.join(next);
            }
        }
        self.settle_names(of);
    }

    fn forget_first(&mut self, id: FileId) {
        if self.names.firsts.remove(&id).is_some() {
            self.actions.push_back(SinkAction::ForgetLead { id });
        }
    }

    /// Forgets names of which nothing more can come.
    fn settle_names(&mut self, of: FileId) {
        let over = |set: &Set| set.left == 0 && set.waiting.is_empty() && set.under_way == 0;
        let Some(set) = self.names.sets.get(&of).filter(|set| over(set)) else { return };
        let first = match set.first {
            First::Open(_) => return,
            First::Stands(first) => Some(first),
            First::None | First::Never(_) => None,
        };
        self.names.cost -= set.cost;
        self.names.sets.remove(&of);
        if let Some(first) = first {
            self.forget_first(first);
        }
    }

    /// What became of a name that was to be given.
    pub(super) fn handle_joined(&mut self, id: FileId, result: Result<Joined, Failure>) {
        let joins = self.links.get(&id).and_then(|link| link.joins.as_ref());
        let Some((of, tried)) = joins.and_then(|joins| Some((joins.set, joins.to?))) else { return };
        let Some(set) = self.names.sets.get_mut(&of) else { return };
        set.under_way -= 1;
        let is_first = matches!(set.first, First::Stands(first) if first == tried);
        match result {
            Ok(Joined::Is(change)) => {
                if let Some(link) = self.links.get_mut(&id) {
                    link.change = change;
                }
                self.epochs.add_link(id, self.now);
            }
            Ok(Joined::Skipped) => self.skip_link(id),
            // Another took its place meanwhile.
            Ok(Joined::Apart(_) | Joined::Never(_)) if !is_first => self.join(id),
            Ok(Joined::Apart(failure)) => {
                self.forget_first(tried);
                self.become_first(id, of);
                self.counts.apart += 1;
                self.handle_unkept(id, failure);
            }
            Ok(Joined::Never(failure)) => {
                set.first = First::Never(failure.clone());
                self.forget_first(tried);
                self.come_apart(id, Some(failure));
            }
            Err(failure) if self.is_of_the_stop(&failure) => {}
            Err(failure) => {
                if !self.is_fatal(&failure) {
                    self.end_link(id, Err(failure));
                }
            }
        }
        self.settle_names(of);
    }

    pub(super) fn submit_joins(&mut self) {
        while !self.names.items.is_empty() && self.stop.is_none() {
            let rest = self.names.items.split_off(self.names.items.len().min(ITEMS_MAX));
            let items = std::mem::replace(&mut self.names.items, rest);
            self.submit(SinkOp::Join { items });
        }
    }
}
