//! What a run published or found that followed one which may still publish, looked at before it is called
//! complete.
//!
//! In: each name that was given, with the inode that it was given to, and each file that stood at a name
//! already, for that may be all that the copy needs there. Out: whether all of them still stand.
//! What must hold: a run that was frozen between its look at the owner file and its rename can put an old
//! file over a new one when it goes on; a run that took its job over does not end with success over such a
//! file.
//! Assumed: nobody else replaces what was just copied or found. Where that happens the run fails too, and the
//! next one looks again.
//! Left out: what happens after the look. A run that stays frozen until then can still rename the few files
//! that it was about to, one for each of its threads.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use haul_base::escape;
use haul_core::entry::Name;
use haul_core::ids::DirId;
use haul_core::transfer::op::Seen;
use haul_core::wire::{Failure, FailureKind};

use super::stat::seen_of;
use super::tree::SinkTree;
use super::{fault, lock};

/// Most names that are remembered, about 150 bytes each: in a run that follows one which was not seen to die.
const NAMES_MAX: usize = 4 << 20;

/// The names that a run gave.
#[derive(Default)]
pub(super) struct Published {
    dirs: Mutex<HashMap<DirId, Dir>>,
    count: AtomicUsize,
}

struct Dir {
    path: Vec<Name>,
    given: Vec<(Name, Seen)>,
}

impl Published {
    /// At this name stands this, which was given it or found there, or changed by us.
    ///
    /// # Errors
    /// There are too many.
    pub(super) fn add(&self, tree: &SinkTree, dir: DirId, name: &Name, seen: Seen) -> Result<(), Failure> {
        if self.count.fetch_add(1, Ordering::Relaxed) >= NAMES_MAX {
            let text = "this run follows one that may still write, and has more files than it can look at again at its end; see \
                        that the former run is gone, remove what it left with `haul clean`, and run the same command again";
            return Err(fault::failure(FailureKind::Publish, 0, text));
        }
        let mut dirs = lock(&self.dirs);
        let known = dirs.entry(dir).or_insert_with(|| Dir { path: tree.names_of(dir), given: Vec::new() });
        known.given.push((name.clone(), seen));
        Ok(())
    }

    /// Whether each name still leads to what it was given to.
    ///
    /// # Errors
    /// One does not, or cannot be looked at.
    pub(super) fn confirm(&self, tree: &SinkTree) -> Result<(), Failure> {
        let (mut lost, mut first) = (0u64, None);
        for dir in lock(&self.dirs).values() {
            let fd = open(tree, &dir.path);
            // The last word on a name is its last file.
            let given: HashMap<&Name, Seen> = dir.given.iter().map(|(name, seen)| (name, *seen)).collect();
            for (name, meant) in given {
                let stands = fd.as_ref().and_then(|fd| tree.jail().stat(&**fd, name).ok());
                if stands.is_none_or(|stat| !meant.is_still(&seen_of(&stat))) {
                    lost += 1;
                    first.get_or_insert_with(|| {
                        let names: Vec<String> = dir
                            .path
                            .iter()
                            .chain([name])
                            .map(|name| escape::within(name.as_bytes()))
                            .collect();
                        names.join("/")
                    });
                }
            }
        }
        let Some(first) = first else { return Ok(()) };
        let text = format!(
            "{lost} of the files that this run published or found were replaced or changed meanwhile, {first} among them: perhaps by the run that it \
             took over, which may still be there; run the same command again"
        );
        Err(fault::failure(FailureKind::Publish, 0, text))
    }
}

fn open(tree: &SinkTree, path: &[Name]) -> Option<Arc<OwnedFd>> {
    let mut at = tree.root().clone();
    for name in path {
        at = Arc::new(tree.jail().open_dir(&*at, name).ok()?);
    }
    Some(at)
}
