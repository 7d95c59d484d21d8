//! One owner of a file's syncs.
//!
//! In: whoever wants what was written of an open file to be on media, or on its way there. Out: whether it
//! is.
//!
//! The kernel tells an error of write-back once for each open descriptor: of two syncs of one descriptor, one
//! would hear of it and the other would call the same data safe. So a file's syncs go through here, one at a
//! time, and what one of them heard all later ones hear: after a failed sync nothing that was written since
//! the last good one is believed, and no further sync can make it so.
//!
//! Left out: the second descriptor, for direct I/O. It is never synced: errors belong to the inode, and the
//! first descriptor, which is open for as long, hears of all of them. Nor does anything else that is done to
//! the first one take an error away: `sync_file_range` without a wait, `fadvise` and `fstat` do not look at
//! it.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use haul_core::wire::{Failure, FailureKind};

use super::{fault, lock};

/// How much of a file a sync covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// Its bytes.
    Data,
    /// Its mode, owner and times too.
    All,
}

/// The syncs of one open file.
#[derive(Default)]
pub(super) struct Syncs {
    /// Why nothing of the file is believed any more. Held while a sync is under way.
    failed: Mutex<Option<Failure>>,
}

impl Syncs {
    /// Has `sync` done when no other sync of the file is under way, unless one failed before.
    ///
    /// # Errors
    /// Those of `sync`, and of every sync of the file before it.
    pub(super) fn run(&self, sync: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        if haul_mutant::removed("one-owner-of-syncs") {
            return sync();
        }
        let mut failed = lock(&self.failed);
        if let Some(failure) = &*failed {
            return Err(failure.clone());
        }
        // Stands if the sync panics: nobody knows what it heard.
        *failed =
            Some(fault::failure(FailureKind::Sync, 0, "internal error: a sync of the file did not end"));
        let result = sync();
        *failed = result.as_ref().err().cloned();
        result
    }
}

/// Makes a file durable; tests give other answers.
pub(super) type SyncCall = Arc<dyn Fn(BorrowedFd<'_>, Extent) -> rustix::io::Result<()> + Send + Sync>;

/// The kernel's.
pub(super) fn kernel() -> SyncCall {
    Arc::new(|fd, extent| match extent {
        Extent::Data => rustix::fs::fdatasync(fd),
        Extent::All => rustix::fs::fsync(fd),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, Ordering};

    fn io_error() -> Failure {
        fault::failure(FailureKind::Sync, 5, "said once")
    }

    /// Goal: of two syncs that run at once both hear of an error that the kernel tells once, and so does
    /// every later one.
    /// Method: a kernel that tells it to who asks first, who has the second begin before it has its answer.
    #[test]
    fn an_error_told_once_is_heard_by_all() {
        let (syncs, told) = (Arc::new(Syncs::default()), Arc::new(AtomicBool::new(false)));
        let kernel = move || if told.swap(true, Ordering::SeqCst) { Ok(()) } else { Err(io_error()) };
        let mut second = None;
        let first = syncs.run(|| {
            let answer = kernel();
            let (syncs, kernel) = (syncs.clone(), kernel.clone());
            second = Some(std::thread::spawn(move || syncs.run(kernel)));
            answer
        });
        assert_eq!(first, Err(io_error()));
        assert_eq!(second.expect("begun").join().expect("no panic"), Err(io_error()));
        assert_eq!(syncs.run(kernel), Err(io_error()));
    }

    /// Goal: good syncs are each made; one that panics counts as failed.
    #[test]
    fn good_syncs_go_on_and_a_panic_ends_them() {
        let syncs = Syncs::default();
        let mut made = 0;
        for _ in 0..3 {
            let count = || {
                made += 1;
                Ok(())
            };
            syncs.run(count).expect("a good sync");
        }
        assert_eq!(made, 3);
        assert!(catch_unwind(AssertUnwindSafe(|| syncs.run(|| panic!("on purpose")))).is_err());
        assert!(syncs.run(|| Ok(())).is_err());
    }
}
