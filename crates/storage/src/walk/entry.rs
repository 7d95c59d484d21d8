//! An entry that was looked at becomes what the session is told of it.
//!
//! In: what a look showed. Out: the entry registered in the tree and announced, told as not kept, or as
//! failed; a directory is handed back, for it is announced when it is entered.
//! Invariant: an id is given once, and the tree knows an entry before the consumer does.

use std::os::fd::{AsFd, OwnedFd};

use haul_core::entry::{EntryKind, Extras, LINK_LEN_MAX, Name, Node};
use haul_core::ids::{DirId, FileId, Generation};
use haul_core::metadata::Values;
use haul_core::transfer::SMALL_LEN_MAX;
use haul_core::wire::{Announced, FailureKind};
use rustix::fs::FileType;
use rustix::io::Errno;

use super::names::Of;
use super::probe::{Probed, What, read_again};
use super::way::About;
use super::{CountsAs, NotKept, NotKeptWhat, SHARD, WalkItem, Walker};
use crate::attributes::{self, Failed, Subject};
use crate::meta_rate::cost;
use crate::source::failure::own_failure;
use crate::source::view::Place;

impl<F: FnMut(u64) -> u32> Walker<F> {
    /// Announces an entry; what is to be told of a directory is returned instead, for [`Walker::enter`].
    pub(super) fn emit(
        &mut self,
        place: Place,
        parent: DirId,
        name: Name,
        probed: Result<Probed, Errno>,
    ) -> Option<About> {
        let Probed { seen, link, what, values, unread, .. } = match probed {
            Ok(probed) => probed,
            Err(errno) => {
                let path = self.path(place, &name);
                self.fail("stat", &path, errno, CountsAs::Entry);
                return None;
            }
        };
        if let What::LeadsNowhere(errno) = what {
            self.fail_link(place, &name, &link.unwrap_or_default(), errno);
            return None;
        }
        let followed = what == What::Followed;
        let skipped = match seen.kind {
            FileType::Directory => {
                let version = self.tree.announced(&seen).version;
                let identity = (seen.dev, seen.stamp.ino);
                return Some(About { meta: seen.meta, version, identity, followed });
            }
            FileType::Symlink if self.tree.leaves_links() => Some(NotKeptWhat::Link),
            FileType::Symlink if what == What::LeadsOut => Some(NotKeptWhat::LinkOut),
            FileType::RegularFile | FileType::Symlink => None,
            _ if seen.node().is_some_and(|node| self.tree.nodes().kept.keep(node)) => None,
            FileType::Fifo => Some(NotKeptWhat::Fifo),
            FileType::Socket => Some(NotKeptWhat::Socket),
            _ => Some(NotKeptWhat::Device),
        };
        if let Some(what) = skipped {
            let path = self.path(place, &name);
            if seen.node().is_some_and(|node| self.tree.nodes().asked.keep(node)) {
                let cause = "the destination has no place for FIFOs, sockets and devices";
                let failure = own_failure(FailureKind::Walk, "copy", &path, cause);
                self.out.push(WalkItem::Failed { path, failure, counts_as: CountsAs::Entry });
                return None;
            }
            self.out.push(WalkItem::NotKept(NotKept { path, what }));
            return None;
        }
        let kind = if seen.is_file() {
            let fingerprint = self.tree.announced(&seen);
            let size = fingerprint.size;
            EntryKind::File {
                fingerprint,
                object_size: (self.object_size)(size),
                // Or it is compressed, or not written yet: its map will tell. A small one travels whole.
                sparse: size > SMALL_LEN_MAX && seen.allocated < seen.stamp.size,
                // The source's machine knows.
                striped: false,
            }
        } else if let Some(node) = seen.node() {
            match node {
                Node::Fifo => EntryKind::Fifo,
                Node::Socket => EntryKind::Socket,
                Node::Device { block, major, minor } => EntryKind::Device { block, major, minor },
            }
        } else {
            let target = link.unwrap_or_default();
            if target.is_empty() || target.len() > LINK_LEN_MAX {
                let path = self.path(place, &name);
                let cause = format!("a target of {} bytes, 1 to {LINK_LEN_MAX} are possible", target.len());
                let failure = own_failure(FailureKind::Walk, "read symlink", &path, &cause);
                self.out.push(WalkItem::Failed { path, failure, counts_as: CountsAs::Entry });
                return None;
            }
            EntryKind::Symlink { target }
        };
        let id = self.take_id();
        let of = match seen.links > 1 && self.tree.part().is_none() {
            true if self.tree.keeps_hard_links() => {
                let path = self.path(place, &name);
                let of = self.names.find(&seen, id, &path);
                if let (Of::TooMany, true) = (&of, seen.is_file()) {
                    self.out.push(WalkItem::NotKept(NotKept { path, what: NotKeptWhat::HardLink }));
                }
                of
            }
            true if seen.is_file() => {
                let path = self.path(place, &name);
                self.out.push(WalkItem::NotKept(NotKept { path, what: NotKeptWhat::HardLink }));
                Of::Nothing
            }
            _ => Of::Nothing,
        };
        match &kind {
            // It is no file of its own.
            _ if matches!(of, Of::Another { .. }) => {}
            EntryKind::File { fingerprint, .. } => {
                self.totals.files += 1;
                self.totals.bytes = self.totals.bytes.saturating_add(fingerprint.size);
            }
            _ => self.totals.symlinks += 1,
        }
        let names = if let Of::First(names) = of { names } else { 0 };
        self.tree.add_entry(id, place, name.clone(), seen.is_file().then_some(&seen), &values);
        if followed {
            self.tree.follow(id);
        }
        self.tell_values(place, &name, values, unread);
        if let Of::Another { to, path } = of {
            self.out.push(WalkItem::NameOf { to, path });
        }
        let generation = Generation(0);
        self.out.push(WalkItem::Entry(Announced {
            id,
            generation,
            parent,
            name,
            meta: seen.meta,
            kind,
            extras: Extras { range: self.tree.part().filter(|_| seen.is_file()), names, ..Extras::default() },
        }));
        None
    }

    /// Reads the attributes of an entry of which more are to be read than were kept.
    pub(super) fn with_values(&self, dir: &OwnedFd, name: &Name, mut probed: Probed) -> Probed {
        if std::mem::take(&mut probed.has_more) {
            self.tree.rate().take(cost::ATTRIBUTES);
            (probed.values, probed.unread) = read_again(dir.as_fd(), name, &probed, self.tree.keeps());
        }
        probed
    }

    /// Reads the attributes of a directory that is entered, or is a source.
    pub(super) fn read_dir_values(&self, subject: Subject<'_>) -> (Values, Vec<Failed>) {
        let keeps = self.tree.keeps();
        if keeps.any() {
            self.tree.rate().take(cost::ATTRIBUTES);
        }
        attributes::read(subject, FileType::Directory, keeps)
    }

    pub(super) fn take_id(&mut self) -> FileId {
        let id = FileId::new(SHARD, self.next_id);
        self.next_id += 1;
        id
    }
}
