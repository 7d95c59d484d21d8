//! What the walk of the sources found, on its way to the machine.
//!
//! In: batches of the walk. Out: entries to the machine, as long as it has room for another one; what is not
//! copied, counted.

use std::collections::VecDeque;
use std::sync::Arc;

use crossbeam_channel::Receiver;
use haul_core::entry::{EntryKind, Name};
use haul_core::id_map::IdMap;
use haul_core::ids::{FileId, TargetId, Time};
use haul_core::metadata::Values;
use haul_core::transfer::SMALL_LEN_MAX;
use haul_core::transfer::source::{Lies, Source};
use haul_core::wire::{Message, NotKept};

use super::Session;
use super::parts::Storage;
use crate::driver::sink::kind_of;
use crate::driver::{Kind, LeftOut, local};
use crate::events::Event;
use crate::summary::{LEFT_OUT, SKIPPED};
use haul_storage::walk::{NotKeptWhat, Walk, WalkItem};

/// See the module.
pub(super) struct Walked {
    walk: Walk,
    over: bool,
    /// What was walked and waits for room among the open entries: at most one batch.
    ahead: VecDeque<WalkItem>,
    /// `haul cp a.txt dir/b.txt`: the name that the single file gets.
    pub(super) rename: Option<Name>,
    /// What the next entry has of extended attributes and lists.
    values: Option<Values>,
    /// What the next entry is another name of, and the path of that.
    name_of: Option<(FileId, Arc<[u8]>)>,
    /// The same of those that are open.
    pub(super) names: IdMap<FileId, Arc<[u8]>>,
    /// Of the entries that are no files.
    pub(super) kinds: IdMap<FileId, Kind>,
    pub(super) not_kept: [u64; NotKept::COUNT],
    /// Files of copies into the source, which are not copied, and special files.
    left_out: LeftOut,
    special: LeftOut,
    /// Symbolic links, where none are wanted, or none that lead out of what is copied.
    links: LeftOut,
    outside: LeftOut,
    /// Directories of other file systems, where these are not entered.
    mounted: LeftOut,
}

impl Walked {
    pub(super) fn new(walk: Walk, rename: Option<Name>) -> Walked {
        Walked {
            walk,
            over: false,
            ahead: VecDeque::new(),
            rename,
            values: None,
            name_of: None,
            names: IdMap::default(),
            kinds: IdMap::default(),
            not_kept: [0; NotKept::COUNT],
            left_out: LeftOut::default(),
            special: LeftOut::default(),
            links: LeftOut::default(),
            outside: LeftOut::default(),
            mounted: LeftOut::default(),
        }
    }

    /// Nothing more comes.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    pub(super) fn cancel(&self) {
        self.walk.cancel();
    }

    /// Where the next batch comes, when there is room for it.
    pub(super) fn feed(&self) -> Option<&Receiver<Vec<WalkItem>>> {
        (self.ahead.is_empty() && !self.over).then(|| self.walk.items())
    }

    /// A batch came; `None`: the walk is gone. False: before its end.
    pub(super) fn take(&mut self, items: Option<Vec<WalkItem>>) -> bool {
        match items {
            Some(items) => {
                self.ahead.extend(items);
                true
            }
            None => {
                self.over = true;
                // One that was told to end has no end to tell of.
                self.walk.is_cancelled()
            }
        }
    }

    /// Hands walked items to the machine, as long as it has room for another entry.
    pub(super) fn hand_over(&mut self, machine: &mut Source, storage: &Storage, session: &mut Session<'_>) {
        let needs_no_room = |item: Option<&WalkItem>| {
            matches!(
                item,
                Some(
                    WalkItem::DirEnd(_)
                        | WalkItem::Metadata(_)
                        | WalkItem::NameOf { .. }
                        | WalkItem::Root(_)
                        | WalkItem::Owners(_)
                )
            )
        };
        while machine.wants_entries() || needs_no_room(self.ahead.front()) {
            let Some(item) = self.ahead.pop_front() else { break };
            match item {
                WalkItem::Entry(mut entry) => {
                    if let Some(name) = &self.rename {
                        entry.name = name.clone();
                    }
                    let mut lies = Lies::At(TargetId(0));
                    let mut not_before = Time(0);
                    match entry.kind {
                        EntryKind::File { sparse, fingerprint, .. } => {
                            self.not_kept[NotKept::Sparse as usize] +=
                                u64::from(sparse && !session.agreed.holes);
                            let ripe = storage.names.not_before(entry.id);
                            not_before = ripe.map_or(not_before, |ripe| session.clock.at(ripe));
                            // Small ones travel in bundles, wherever they lie.
                            if fingerprint.size > SMALL_LEN_MAX {
                                lies = storage.names.lies(entry.id);
                            }
                        }
                        EntryKind::Dir { .. } => drop(self.kinds.insert(entry.id, Kind::Dir)),
                        EntryKind::Symlink { .. } => drop(self.kinds.insert(entry.id, Kind::Symlink)),
                        EntryKind::Fifo | EntryKind::Socket | EntryKind::Device { .. } => {
                            let kind = entry.kind.node().map(kind_of);
                            self.kinds.extend(kind.map(|kind| (entry.id, kind)));
                        }
                        // No walk announces these yet.
                        EntryKind::HardLink { .. } => {}
                    }
                    let (id, values) = (entry.id, self.values.take());
                    if let Some((to, path)) = self.name_of.take() {
                        self.names.insert(id, path);
                        machine.handle_name(entry, to, values, lies, not_before);
                    } else if !machine.handle_entry_with(entry, values, lies, not_before) {
                        let path = storage.names.path_of(id);
                        let text = "more extended attributes and lists than directories may have that are open together: \
                                    they are left out";
                        let failure = local(text);
                        session.user.tally.fail(session.user.watch, path.clone(), &failure);
                        machine.handle_trouble(&path, failure);
                    }
                }
                WalkItem::Metadata(values) => self.values = Some(values),
                WalkItem::NameOf { to, path } => self.name_of = Some((to, path)),
                WalkItem::Root(values) => machine.handle_root(values),
                // Ahead of what they own, which is handed over behind.
                WalkItem::Owners(names) => {
                    Message::OwnerNames(names)
                        .split()
                        .into_iter()
                        .for_each(|message| session.other.send(message));
                }
                WalkItem::DirEnd(dir) => machine.handle_dir_end(dir),
                WalkItem::Failed { path, failure, .. } => {
                    session.user.tally.fail(session.user.watch, path.clone(), &failure);
                    machine.handle_trouble(&path, failure);
                }
                WalkItem::Gone(failure) => machine.handle_gone(failure),
                WalkItem::NotKept(not_kept) => {
                    let which = match not_kept.what {
                        // The report of an end has no number for these: where they are named they are
                        // counted.
                        NotKeptWhat::LinkOut => {
                            self.outside.add(&not_kept.path);
                            continue;
                        }
                        NotKeptWhat::Mounted => {
                            self.mounted.add(&not_kept.path);
                            continue;
                        }
                        NotKeptWhat::HardLink => NotKept::HardLink,
                        NotKeptWhat::Debris => {
                            self.left_out.add(&not_kept.path);
                            NotKept::OwnName
                        }
                        // It counts as one: the report of an end has no number of its own for it.
                        NotKeptWhat::Link => {
                            self.links.add(&not_kept.path);
                            NotKept::Special
                        }
                        NotKeptWhat::Fifo | NotKeptWhat::Socket | NotKeptWhat::Device => {
                            self.special.add(&not_kept.path);
                            NotKept::Special
                        }
                    };
                    self.not_kept[which as usize] += 1;
                }
                WalkItem::Note(text) => session.user.watch.tell(Event::Note(text.to_owned())),
                WalkItem::End(totals) => {
                    self.over = true;
                    machine.handle_walk_end(totals);
                }
            }
        }
    }

    /// Names what is not copied, for the summary.
    pub(super) fn left_out(&self) -> impl Iterator<Item = (String, String)> {
        // Apart from each other, for each is cut to what a text may be on its way.
        let ours = self.left_out.in_words("files of copies into the source");
        let special = self.special.in_words("fifos, sockets, devices");
        let links = self.links.in_words("symbolic links");
        let counted = |left: &LeftOut, what: &str| left.in_words(&format!("{what}: {}", left.count()));
        let outside = counted(&self.outside, "symbolic links that lead out of what is copied");
        let mounted = counted(&self.mounted, "other file systems, of which nothing was copied");
        let named =
            [(LEFT_OUT, ours), (SKIPPED, special), (SKIPPED, links), (SKIPPED, outside), (SKIPPED, mounted)]
                .into_iter();
        named.filter_map(|(name, text)| Some((name.to_owned(), text?)))
    }
}
