//! What the walk tells beside the entries: their owners and attributes, and what cannot be copied.
//!
//! In: what looks and reads gave. Out: items on their way to the consumer, each before the entry that it is
//! of. A failure names the path relative to the destination, or as the command named it where it is a source.

use haul_core::entry::{DEPTH_MAX, METADATA_LEN_MAX, Meta, Name};
use haul_core::metadata::Values;
use haul_core::wire::FailureKind;
use rustix::io::Errno;

use super::{CountsAs, WalkItem, Walker};
use crate::attributes::Failed;
use crate::source::failure::{named_failure, of_source, os_failure, own_failure};
use crate::source::view::Place;

impl<F: FnMut(u64) -> u32> Walker<F> {
    /// Tells what owners are called that were not told yet.
    pub(super) fn tell_owners<'a>(&mut self, metas: impl Iterator<Item = &'a Meta>) {
        match self.owners.names(metas) {
            Ok(names) if names.is_empty() => {}
            Ok(names) => self.out.push(WalkItem::Owners(names)),
            Err(why) => {
                let cause = format!("what users and groups are called, which others are to stand for: {why}");
                self.out.push(WalkItem::Gone(own_failure(FailureKind::Walk, "look up", b"sources", &cause)));
            }
        }
    }

    pub(super) fn tell_root(&mut self, values: Values) {
        if !values.is_empty() {
            self.out.push(WalkItem::Root(values));
        }
    }

    /// Tells the attributes of the entry that is about to be announced, and what of them could not be read.
    pub(super) fn tell_values(&mut self, place: Place, name: &Name, values: Values, unread: Vec<Failed>) {
        if !unread.is_empty() {
            let path = self.path(place, name);
            self.tell_unread(&path, &unread);
        }
        if !values.is_empty() {
            self.out.push(WalkItem::Metadata(values));
        }
    }

    /// Tells what of the attributes of an entry could not be read, if there is anything.
    pub(super) fn tell_unread(&mut self, path: &[u8], unread: &[Failed]) {
        if let Some((attribute, errno)) = unread.first() {
            let mut attribute = haul_base::escape::within(attribute).to_string();
            const NAMED: usize = 3;
            for (more, _) in unread.iter().take(NAMED).skip(1) {
                attribute = format!("{attribute}, {}", haul_base::escape::within(more));
            }
            if unread.len() > NAMED {
                attribute = format!("{attribute} and {} more", unread.len() - NAMED);
            }
            let failure = match *errno {
                Errno::TOOBIG => {
                    let most = METADATA_LEN_MAX / (1024 * 1024);
                    let cause = format!(
                        "more extended attributes than the {most} MiB that are kept of an entry: left out: {attribute}"
                    );
                    own_failure(FailureKind::Walk, "read", path, &cause)
                }
                errno => os_failure(FailureKind::Walk, &format!("read {attribute} of"), path, errno),
            };
            let path = path.to_vec();
            self.out.push(WalkItem::Failed { path, failure, counts_as: CountsAs::Entry });
        }
    }

    pub(super) fn fail(&mut self, op: &str, path: &[u8], errno: Errno, counts_as: CountsAs) {
        let counts_as = if errno == Errno::NOENT { CountsAs::Vanished } else { counts_as };
        let failure = os_failure(FailureKind::Walk, op, path, errno);
        self.out.push(WalkItem::Failed { path: path.to_vec(), failure, counts_as });
    }

    /// A source that the command names could not be begun.
    pub(super) fn fail_named(&mut self, op: &str, path: &[u8], errno: Errno, counts_as: CountsAs) {
        let counts_as = if errno == Errno::NOENT { CountsAs::Vanished } else { counts_as };
        let failure = match haul_mutant::removed("named-source-does-not-vanish") {
            true => os_failure(FailureKind::Walk, op, path, errno),
            false => of_source(named_failure(FailureKind::Walk, op, path, errno), op, path),
        };
        self.out.push(WalkItem::Failed { path: path.to_vec(), failure, counts_as });
    }

    /// A directory that lies too deep is not copied, nor what is in it.
    pub(super) fn leave_out(&mut self, path: Vec<u8>, entries: u64) {
        let cause = format!(
            "deeper than {DEPTH_MAX} directories: {entries} entries are left out; copy it as a source of its own"
        );
        let failure = own_failure(FailureKind::Walk, "enter", &path, &cause);
        self.out.push(WalkItem::Failed { path, failure, counts_as: CountsAs::Subtree });
    }

    pub(super) fn path(&self, place: Place, name: &Name) -> Vec<u8> {
        let mut path = match place {
            Place::Base(_) => Vec::new(),
            Place::Dir(id) => self.tree.path_of(id.as_file()),
        };
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.as_bytes());
        path
    }
}
