//! Files that changed so recently that a read proves nothing yet.
//!
//! In: files and until when each is young; time. Out: the step that a file waited with, when it is old
//! enough. A fingerprint tells of a change only by a later ctime, and file systems keep ctime no finer than
//! their grain. What was read within one grain after the look that gave the fingerprint can be of the version
//! before a change that leaves the fingerprint as it is; what is read later cannot. So nothing of a file is
//! read, mapped, compared or hashed before its `not_before`: no byte that was read has to be doubted
//! afterwards, in this run or in one that resumes it, and nothing of this is on the wire or in a journal. The
//! files go behind whatever is old enough, so that a copy waits for one grain at most, at its end.
//! Invariants: a file that waits is in `young` under its `not_before`, and in no other queue.
//! Left out: how long a grain is, which storage knows.

use super::Source;
use super::file::{File, SourcePhase};
use crate::ids::FileId;

impl Source {
    /// Whether a file is still young. Then it goes on with the step of its phase when it is not any more.
    pub(super) fn is_young(&mut self, id: FileId) -> bool {
        let Some(file) = self.files.get(&id) else { return false };
        if file.not_before <= self.now || haul_mutant::removed("young-files-wait") {
            return false;
        }
        self.young.insert((file.not_before, id), file.generation);
        true
    }

    /// Files that are old enough by now go on.
    pub(super) fn wake_young(&mut self) {
        while let Some((&(time, id), &generation)) = self.young.first_key_value() {
            if time > self.now {
                break;
            }
            self.young.pop_first();
            // It may have ended, begun afresh or been looked at again meanwhile.
            let due = |file: &File| file.generation == generation && file.not_before <= self.now;
            let Some(file) = self.files.get(&id).filter(|file| due(file)) else { continue };
            match file.phase {
                SourcePhase::Mapping => self.want_map(id),
                SourcePhase::Verifying => self.verify_held(id),
                SourcePhase::Young => self.start_sending(id),
                SourcePhase::Hashing if !file.checking => self.hash(id),
                _ => {}
            }
        }
    }
}
