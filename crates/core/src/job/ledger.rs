//! The journal of a job as its one writer sees it: slots, records, and whether it still takes any.
//!
//! In: what became true. Out: bytes to append, in order.
//! Invariants: once the journal refused a record nothing is made for it any more, for the next ones would
//! hang in a chain that is not there; nobody takes back what the journal says of another entry of the same
//! name.

use std::collections::HashMap;

use crate::digest::{DigestKind, Subtree};
use crate::entry::Fingerprint;
use crate::ids::Holder;
use crate::journal::{DoneMark, Log, PathKey, Record, SUBTREES_PER_RECORD};
use crate::wire::Failure;

/// What a journal says of a file of which a part is durable, beside the parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    pub(crate) path: PathKey,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) object_size: u32,
    pub(crate) tag: u32,
    pub(crate) number: u64,
    pub(crate) map: Option<[u8; 32]>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Ledger {
    log: Log,
    next_slot: u32,
    /// The slots that count, of those that were begun in this run, by what they are of: with a name's next
    /// slot, or with the mark that it is done, the one before is void.
    named: HashMap<PathKey, u32>,
    broken: Option<Failure>,
}

impl Ledger {
    pub(crate) fn new(log: Log, next_slot: u32) -> Ledger {
        Ledger { log, next_slot, named: HashMap::new(), broken: None }
    }

    /// Why nothing is written any more.
    pub(crate) fn broken(&self) -> Option<&Failure> {
        self.broken.as_ref()
    }

    /// The journal refused a record.
    pub(crate) fn break_off(&mut self, failure: &Failure) {
        self.broken.get_or_insert_with(|| failure.clone());
    }

    pub(crate) fn take_slot(&mut self) -> u32 {
        self.next_slot += 1;
        self.next_slot - 1
    }

    /// The bytes of these records. All of them are to be appended, in this order.
    ///
    /// # Errors
    /// Why the journal takes none.
    pub(crate) fn encode(&mut self, records: &[Record]) -> Result<Vec<u8>, Failure> {
        if let Some(failure) = &self.broken {
            return Err(failure.clone());
        }
        let mut bytes = Vec::new();
        for record in records {
            self.log.append(record, &mut bytes);
        }
        Ok(bytes)
    }

    /// The file's slot; a new one begins with what names the file, and voids what was said of its path.
    pub(crate) fn slot(
        &mut self,
        slot: &mut Option<u32>,
        named: Named,
        digest: DigestKind,
        records: &mut Vec<Record>,
    ) -> u32 {
        *slot.get_or_insert_with(|| {
            let slot = self.take_slot();
            let Named { path, fingerprint, object_size, tag, number, map } = named;
            records.push(Record::Partial { slot, path, fingerprint, object_size, tag, number, map, digest });
            self.named.insert(path, slot);
            slot
        })
    }

    /// The journal says nothing of the parts of this path that counts: another entry of that name is done, or
    /// was taken back.
    pub(crate) fn is_void(&self, path: &PathKey) -> bool {
        !self.named.contains_key(path)
    }

    /// The mark that this path is done, which voids what was said of it.
    pub(crate) fn done(&mut self, path: PathKey, mark: DoneMark, records: &mut Vec<Record>) {
        self.named.remove(&path);
        records.push(Record::Done { path, mark });
    }

    /// These parts of the file in `slot` are on media.
    pub(crate) fn say_durable(slot: u32, by: Holder, subtrees: &[Subtree], records: &mut Vec<Record>) {
        for part in subtrees.chunks(SUBTREES_PER_RECORD) {
            records.push(Record::Durable { slot, by, subtrees: part.to_vec() });
        }
    }

    /// The journal shall promise nothing of this file any more. Without a `slot` the promise is of an earlier
    /// session: a new one takes it over, and is withdrawn; if another entry of that name began one meanwhile,
    /// the promise is void already.
    pub(crate) fn withdraw(
        &mut self,
        mut slot: Option<u32>,
        named: Named,
        digest: DigestKind,
        records: &mut Vec<Record>,
    ) {
        let path = named.path;
        if slot.is_none() && self.named.contains_key(&path) {
            return;
        }
        let slot = self.slot(&mut slot, named, digest, records);
        records.push(Record::Withdrawn { slot });
        if self.named.get(&path) == Some(&slot) {
            self.named.remove(&path);
        }
    }
}
