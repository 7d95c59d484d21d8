//! Who may ask what of a volume, by the key that he showed.
//!
//! In: which key it was, and what is asked. Out: whether he may ask that. Invariant: a reader asks nothing
//! that changes a name, an attribute, a byte, or what is known of them, and ends nobody; what servers alone
//! say to each other is heard from servers alone. Left out: which file and which part of it somebody may use.

use super::catalog;
use super::gather;
use super::storage;

/// Whose key somebody showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Party {
    /// A server of the volume, or its catalog.
    Server,
    /// Whoever holds the volume's access.
    Owner,
    /// Whoever holds an access that is for reading.
    Reader,
}

/// What is refused to a reader is refused with this number of Linux: EROFS.
pub const READ_ONLY: i32 = 30;
/// What is heard from servers alone is refused with this one: EPERM.
pub const SERVERS_ONLY: i32 = 1;

/// Readers have numbers with this bit, and nobody else: so that none of them can pass for another client.
pub const READERS: u64 = 1 << 62;

impl Party {
    /// Whether a client of this number can be one of these.
    pub fn has_number(self, client: u64) -> bool {
        let is_readers = client & READERS != 0;
        is_readers == (self == Party::Reader) || haul_mutant::removed("volume-readers-have-numbers")
    }

    /// Whether he may change something.
    pub fn may_change(self) -> bool {
        self != Party::Reader || haul_mutant::removed("volume-readers-change-nothing")
    }

    /// Whether he may speak as a server does to others.
    pub fn is_server(self) -> bool {
        self == Party::Server || haul_mutant::removed("volume-servers-are-servers")
    }

    /// Whether the catalog hears this of him; else the number of Linux for why not.
    ///
    /// # Errors
    /// [`READ_ONLY`], [`SERVERS_ONLY`].
    pub fn may_ask(self, request: &catalog::Request) -> Result<(), i32> {
        use catalog::Request;
        match request {
            Request::Lookup(_)
            | Request::Stat(_)
            | Request::ReadDir { .. }
            | Request::Open(_)
            | Request::Close(_)
            | Request::Leave
            | Request::Known(_)
            | Request::Tickets(_)
            | Request::List(_) => Ok(()),
            Request::Mkdir { .. }
            | Request::Create { .. }
            | Request::Symlink { .. }
            | Request::SetAttr { .. }
            | Request::Rename { .. }
            | Request::Unlink(_)
            | Request::Rmdir(_)
            | Request::Note { .. }
            | Request::Place(_)
            // It holds up everybody.
            | Request::Check => self.if_may_change(),
            // A removal that nobody made would leave bytes for ever.
            Request::ToRemove { .. } | Request::Removed { .. } => self.if_server(),
        }
    }

    /// Whether a gatherer hears this of him.
    ///
    /// # Errors
    /// As of [`Party::may_ask`].
    pub fn may_gather<B>(self, request: &gather::Request<B>) -> Result<(), i32> {
        use gather::Request;
        match request {
            Request::Read { .. } | Request::Map { .. } | Request::Look { .. } => Ok(()),
            Request::Write { .. }
            | Request::Lease { .. }
            | Request::Release { .. }
            | Request::Grow { .. }
            | Request::Sync { .. }
            | Request::Append { .. }
            | Request::Truncate { .. }
            | Request::Told { .. }
            // Who repairs a volume removes what has no entry.
            | Request::Remove { .. } => self.if_may_change(),
        }
    }

    /// Whether a storage server hears this of him.
    ///
    /// # Errors
    /// As of [`Party::may_ask`].
    pub fn may_store<B>(self, request: &storage::Request<B>) -> Result<(), i32> {
        use storage::Request;
        match request {
            Request::Read { .. } => Ok(()),
            Request::Write { .. } | Request::Sync { .. } => self.if_may_change(),
            // Gatherers cut and remove, for all servers of a file.
            Request::Cut { .. } | Request::Remove { .. } => self.if_server(),
        }
    }

    fn if_may_change(self) -> Result<(), i32> {
        if self.may_change() { Ok(()) } else { Err(READ_ONLY) }
    }

    fn if_server(self) -> Result<(), i32> {
        match self.is_server() {
            true => Ok(()),
            false if self.may_change() => Err(SERVERS_ONLY),
            false => Err(READ_ONLY),
        }
    }
}

/// Why it is refused, in words.
pub fn in_words(errno: i32) -> &'static str {
    match errno {
        READ_ONLY => "this access to the volume is for reading",
        _ => "that is asked by servers of the volume alone",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Meta, Name};
    use crate::volume::catalog::{EntryNo, Place, ROOT, Request as Ask, Setting};
    use crate::volume::layout::{Given, Placing};
    use crate::volume::{ContentVersion, Epoch, FileNo, ServerNo};

    /// Goal: who holds an access for reading can ask for nothing that changes anything, and what servers say
    /// to each other nobody else can say.
    /// Method: everything that can be asked, by each of the three.
    #[test]
    fn readers_change_nothing() {
        let at = || Place { parent: ROOT, name: Name::new(b"a").expect("a name") };
        let (meta, set, file) = (Meta::default(), Setting::default(), FileNo(1));
        let by = |heard: &dyn Fn(Party) -> Result<(), i32>| {
            [Party::Server, Party::Owner, Party::Reader].map(heard)
        };
        let (all, owners, servers) = (
            [Ok(()), Ok(()), Ok(())],
            [Ok(()), Ok(()), Err(READ_ONLY)],
            [Ok(()), Err(SERVERS_ONLY), Err(READ_ONLY)],
        );
        for (request, who) in [
            (Ask::Lookup(at()), all),
            (Ask::Stat(ROOT), all),
            (Ask::ReadDir { dir: ROOT, after: None, max: 1 }, all),
            (Ask::Open(vec![EntryNo(2)]), all),
            (Ask::Close(vec![EntryNo(2)]), all),
            (Ask::List(Placing::given(0).expect("one")), all),
            (Ask::Place(Given::each(&[0]).expect("a list")), owners),
            (Ask::Leave, all),
            (Ask::Known(vec![ROOT]), all),
            (Ask::Tickets(vec![ROOT]), all),
            (Ask::Mkdir { at: at(), meta }, owners),
            (
                Ask::Create { at: at(), meta, exclusive: false, open: true, placing: Placing::ROUND_ROBIN },
                owners,
            ),
            (Ask::Symlink { at: at(), meta, target: b"b"[..].into() }, owners),
            (Ask::SetAttr { id: ROOT, set }, owners),
            (Ask::Rename { from: at(), to: at(), noreplace: false }, owners),
            (Ask::Unlink(at()), owners),
            (Ask::Rmdir(at()), owners),
            (Ask::Note { place: "h:/a".into(), files: Vec::new() }, owners),
            (Ask::Check, owners),
            (Ask::ToRemove { server: ServerNo(0), after: FileNo(0) }, servers),
            (Ask::Removed { server: ServerNo(0), files: vec![file] }, servers),
        ] {
            assert_eq!(by(&|who| who.may_ask(&request)), who, "{request:?}");
        }
        let (epoch, version) = (Epoch::default(), ContentVersion::default());
        for (request, who) in [
            (gather::Request::Read { file, offset: 0, len: 1 }, all),
            (gather::Request::Map { file, stripes: 0..1 }, all),
            (gather::Request::Look { file }, all),
            (gather::Request::Write { file, offset: 0, len: 1, bytes: () }, owners),
            (gather::Request::Lease { file, stripes: 0..1 }, owners),
            (gather::Request::Release { file, stripes: 0..1 }, owners),
            (gather::Request::Grow { file, epoch, end: 1 }, owners),
            (gather::Request::Sync { file }, owners),
            (gather::Request::Append { file, number: gather::AppendNo(1), len: 1, bytes: () }, owners),
            (gather::Request::Truncate { file, len: 0 }, owners),
            (gather::Request::Told { file, version }, owners),
            (gather::Request::Remove { file }, owners),
        ] {
            assert_eq!(by(&|who| who.may_gather(&request)), who, "{request:?}");
        }
        for (request, who) in [
            (storage::Request::Read { file, offset: 0, len: 1 }, all),
            (storage::Request::Write { file, epoch, offset: 0, bytes: () }, owners),
            (storage::Request::Sync { file }, owners),
            (storage::Request::Cut { file, epoch, from: 0 }, servers),
            (storage::Request::Remove { file, epoch }, servers),
        ] {
            assert_eq!(by(&|who| who.may_store(&request)), who, "{request:?}");
        }
    }

    /// Goal: no number of a reader is one of another client.
    #[test]
    fn readers_have_numbers_of_their_own() {
        for (party, readers) in [(Party::Server, false), (Party::Owner, false), (Party::Reader, true)] {
            assert_eq!((party.has_number(7), party.has_number(7 | READERS)), (!readers, readers));
        }
    }
}
