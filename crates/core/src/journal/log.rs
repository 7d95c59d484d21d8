//! Writing: records become bytes, and an old journal becomes the beginning of a new one.

use std::collections::HashMap;

use super::codec::{encode, encode_all_tags, encode_durable, encode_unproven};
use super::{LEN_LEN, MAGIC, PathKey, Record, Replayed, SUBTREES_PER_RECORD, SUM_LEN, TAGS_MAX, sum};

/// The writing end of a journal. It holds the chain only; the bytes are appended to the file by the caller,
/// all of them and in this order.
#[derive(Debug)]
pub struct Log {
    chain: [u8; SUM_LEN],
}

impl Log {
    /// Begins a new journal: its first bytes go to `out`.
    pub fn start(out: &mut Vec<u8>) -> Log {
        out.extend_from_slice(&MAGIC);
        Log { chain: MAGIC }
    }

    /// Encodes one record behind what `out` holds. The first must be a `Head`; a
    /// `Session` must stand before what it vouches for.
    ///
    /// Edge: a list longer than one record may hold becomes several records, an empty list none.
    pub fn append(&mut self, record: &Record, out: &mut Vec<u8>) {
        match record {
            Record::Durable { slot, by, subtrees } => {
                for part in subtrees.chunks(SUBTREES_PER_RECORD) {
                    self.put(out, |out| encode_durable(*slot, *by, part, out));
                }
            }
            Record::Tags { tags } => {
                for part in tags.chunks(TAGS_MAX) {
                    self.put(out, |out| encode_all_tags(part, out));
                }
            }
            Record::Unproven { tags } => {
                for part in tags.chunks(TAGS_MAX) {
                    self.put(out, |out| encode_unproven(part, out));
                }
            }
            _ => self.put(out, |out| encode(record, out)),
        }
    }

    /// Puts length and checksum around a body.
    fn put(&mut self, out: &mut Vec<u8>, encode: impl FnOnce(&mut Vec<u8>)) {
        let len_at = out.len();
        out.extend_from_slice(&[0; LEN_LEN]);
        let body_at = out.len();
        encode(out);
        let len = u32::try_from(out.len() - body_at).expect("a body is at most RECORD_LEN_MAX");
        out[len_at..body_at].copy_from_slice(&len.to_le_bytes());
        self.chain = sum(&self.chain, &out[body_at..]);
        out.extend_from_slice(&self.chain);
    }
}

/// The first bytes of the journal of the next session: what `replayed` knows, without its history.
///
/// `head` and `session` are those of the next session. Returns the bytes, the log to go on with, the slots
/// of the partial files and the first free slot. The bytes depend on nothing but the arguments.
/// Units: 105 bytes per finished file, and 66 and a version per directory that is finished; for a partial
/// file 111 (a sparse one 143), a version, and 48 per subtree; 37 and its path per directory that is open to
/// us.
/// Edge: under a session without durability everything is written as not durable, so it is forgotten on
/// another boot even if it once was durable. That costs a re-send and keeps one rule for all records.
///
/// # Panics
/// If `head` or `session` is another record, or if the session promises durability and `replayed` was not
/// finished for such a one: it would turn what was never synced into what was.
pub fn compact(
    replayed: &Replayed,
    head: Record,
    session: Record,
) -> (Vec<u8>, Log, HashMap<PathKey, u32>, u32) {
    assert!(matches!(head, Record::Head { .. }));
    let Record::Session { durable, lease: by, .. } = session else { panic!("{session:?} is no session") };
    assert!(!(durable && replayed.volatile), "facts without durability in a session with it");

    let mut out = Vec::new();
    let mut log = Log::start(&mut out);
    log.append(&head, &mut out);
    log.append(&Record::Tags { tags: replayed.tags.clone() }, &mut out);
    log.append(&Record::Unproven { tags: replayed.unproven.clone() }, &mut out);
    log.append(&session, &mut out);

    // No mark is of what is in a finished directory, so their order says nothing.
    let mut finished: Vec<_> = replayed.finished.iter().collect();
    finished.sort_unstable_by_key(|(path, _)| **path);
    for (path, mark) in finished {
        log.append(&Record::Finished { path: *path, mark: *mark }, &mut out);
    }
    // Sorted, for the order of a hash map differs from run to run, and a simulation must not.
    let mut done: Vec<_> = replayed.done.iter().collect();
    done.sort_unstable_by_key(|(path, _)| **path);
    for (path, mark) in done {
        log.append(&Record::Done { path: *path, mark: *mark }, &mut out);
    }

    let mut partials: Vec<_> = replayed.partials.iter().collect();
    partials.sort_unstable_by_key(|(path, _)| **path);
    let mut slots = HashMap::with_capacity(partials.len());
    let mut slot = 0;
    for (path, partial) in partials {
        let (path, fingerprint) = (*path, partial.fingerprint);
        let (object_size, tag, number, map) = (partial.object_size, partial.tag, partial.number, partial.map);
        let digest = partial.subtrees.kind();
        let record = Record::Partial { slot, path, fingerprint, object_size, tag, number, map, digest };
        log.append(&record, &mut out);
        log.append(&Record::Durable { slot, by, subtrees: partial.subtrees.iter().collect() }, &mut out);
        slots.insert(path, slot);
        slot += 1;
    }
    for dir in &replayed.widened {
        log.append(&Record::Widened { slot, dir: dir.clone() }, &mut out);
        slot += 1;
    }
    (out, log, slots, slot)
}
