//! What stores that keep jobs have in common: whose a job is, under which names it writes, and how its
//! journal begins.

use std::collections::HashSet;

use haul_core::entry::{Name, Part};
use haul_core::journal::{Record, Replayed, Resume, RootId, compact};
use haul_core::wire::SourceRoot;

use super::Coming;
use haul_base::kernel::boot_id;

/// The records with which a run's journal begins, and what it goes on from.
pub(crate) fn begin_journal(
    replayed: Replayed,
    (job, root): ([u8; 16], RootId),
    (epoch, tag): (u32, u32),
    coming: &Coming<'_>,
) -> (Vec<u8>, Resume) {
    let head = Record::Head { job, root };
    let (durable, lease) = (coming.policy.durable, coming.lease);
    let session = Record::Session { epoch, tag, boot: boot_id(), durable, lease };
    let (bytes, log, _, next_slot) = compact(&replayed, head, session);
    (bytes, Resume { replayed, log, next_slot })
}

/// The names that the sources may take in the destination root.
pub(crate) fn names_of(roots: &[SourceRoot], rename: Option<&Name>) -> Option<HashSet<Name>> {
    if let Some(name) = rename {
        return Some(HashSet::from([name.clone()]));
    }
    let name = |root: &SourceRoot| match root {
        SourceRoot::Named { name, .. } => Some(name.clone()),
        SourceRoot::Contents { .. } => None,
    };
    roots.iter().map(name).collect()
}

/// Job key: the destination root's identity, the final top-level names, and which part of a file goes where
/// in it; never host, source path or any other option.
pub(crate) fn job_of(
    root: &RootId,
    roots: &[SourceRoot],
    rename: Option<&Name>,
    part: Option<&Part>,
) -> [u8; 16] {
    let mut parts: Vec<Vec<u8>> = roots
        .iter()
        .map(|root| match (root, rename) {
            (SourceRoot::Named { .. }, Some(name)) => [b"n".as_slice(), name.as_bytes()].concat(),
            (SourceRoot::Named { name, .. }, None) => [b"n".as_slice(), name.as_bytes()].concat(),
            (SourceRoot::Contents { of, .. }, _) => {
                [b"c".as_slice(), of.as_ref().map_or(&[], Name::as_bytes)].concat()
            }
        })
        .collect();
    parts.sort();
    // As ever: what an older haul left here must be found, and refused, under the same key.
    let mut hasher = blake3::Hasher::new_derive_key("haul job v2");
    hasher.update(root.as_bytes());
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(&part);
    }
    if let Some(Part { source, len, sink }) = part.filter(|_| !haul_mutant::removed("ranges-are-jobs")) {
        // No name is so long.
        hasher.update(&u64::MAX.to_le_bytes());
        for number in [Some(*source), *len, *sink] {
            hasher.update(&[number.is_some().into()]);
            hasher.update(&number.unwrap_or(0).to_le_bytes());
        }
    }
    let mut job = [0; 16];
    job.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    job
}

/// A tag for this run's temporaries.
pub(crate) fn fresh_tag() -> u32 {
    let mut bytes = [0; 4];
    // The tag only has to differ from those of earlier runs; a kernel without random numbers still has time.
    if aws_lc_rs::rand::fill(&mut bytes).is_err() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        bytes = now.map_or(0, |now| now.subsec_nanos()).to_le_bytes();
    }
    u32::from_le_bytes(bytes) & 0x3fff_ffff
}

#[cfg(test)]
mod tests {
    use haul_core::entry::Meta;

    use super::*;

    /// Goal: two destinations are two jobs, and so are two sources; one whose contents changed is not.
    /// Method: keys of the same roots in two destinations, and of other roots.
    #[test]
    fn jobs_in_two_destinations_differ() {
        let named = |name: &str| Name::new(name.as_bytes()).expect("legal");
        let contents = |name: &str| [SourceRoot::Contents { of: Some(named(name)), meta: Meta::default() }];
        let key =
            |root: &[u8], roots: &[SourceRoot]| job_of(&RootId::new(root).expect("short"), roots, None, None);
        assert_eq!(key(b"one", &contents("data")), key(b"one", &contents("data")));
        assert_ne!(key(b"one", &contents("data")), key(b"two", &contents("data")));
        assert_ne!(key(b"one", &contents("data")), key(b"one", &contents("other")));
        let whole = [SourceRoot::Named { name: named("data"), is_dir: true }];
        assert_ne!(key(b"one", &contents("data")), key(b"one", &whole));
    }

    /// Goal: each part of a file that goes into one name is a job of its own, and so is the same part at
    /// another offset there.
    /// Method: parts that differ in one number, or in whether it is given, against each other.
    #[test]
    fn parts_of_a_file_are_jobs_of_their_own() {
        let file = [SourceRoot::Named { name: Name::new(b"f").expect("legal"), is_dir: false }];
        let root = RootId::new(b"one").expect("short");
        let part = |source, len, sink| Some(Part { source, len, sink });
        let parts = [
            None,
            part(0, None, None),
            part(0, Some(1), None),
            part(1, Some(1), None),
            part(1, None, Some(1)),
            part(1, None, Some(0)),
            part(1, None, None),
        ];
        let keys: HashSet<_> = parts.iter().map(|part| job_of(&root, &file, None, part.as_ref())).collect();
        assert_eq!(keys.len(), parts.len());
    }
}
