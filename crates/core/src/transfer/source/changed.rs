//! What becomes of a file that changed while it was copied, as the user chose ([`OnChange`]).
//!
//! In: looks that show another file than the one that was announced. Out: a second try, a failure, or a
//! second reading.
//! - `Retry`: the file is withdrawn and comes once more, in its new version, when everything else was read;
//!   then it fails.
//! - `Fail`: it fails at once.
//! - `Prefix`, for files that only grow: what is copied is the file up to the length of its fingerprint. A
//!   look that shows the same inode, not shorter, with another size or mtime
//!   ([`Look::Grown`](crate::transfer::op::Look::Grown)) proves nothing of those bytes; so all of them are
//!   hashed once more, and that has to give the root of what was read before. Every byte then had one value
//!   before the look and behind it: unless something was changed and changed back, what is copied is the
//!   beginning of the file as it was when it was looked at. No ctime is asked, so that none is waited for.
//!   Anything else (it is shorter, another file, its beginning differs) fails at once, for a second try could
//!   prove no more.
//!
//! What is published has the size and mtime of the fingerprint, which are of one look, and nothing was read
//! within a grain of that look (`young`): another content that has both comes only from who sets an mtime
//! back. So the next run sees that the source is not what was copied, whatever it became.
//! Invariants: what the user chose never mends another trouble: a file that came back wrong from the sink's
//! storage, or that has no size of its own, is tried once more however that is.
//! Left out: looks that show the same content under another ctime (`seal`); parts of an earlier run whose
//! file has grown since, which are not taken over, as those of any other version.

use super::Source;
use super::file::{File, Queue, SourcePhase};
use super::{OnChange, SourceAction};
use crate::entry::Fingerprint;
use crate::ids::FileId;
use crate::wire::{Failure, FailureKind, Message};

/// A file that changed is tried once more.
const TRIES_MAX: u8 = 2;

impl Source {
    /// What was read of a file is not what it is now.
    pub(super) fn changed(&mut self, id: FileId, failure: Option<Failure>) {
        let Some(file) = self.files.get(&id) else { return };
        if is_between_tries(file) {
            return;
        }
        let text = match self.config.changed {
            OnChange::Retry => return self.try_again(id, failure),
            OnChange::Fail if haul_mutant::removed("changed-fails-at-once") => {
                return self.try_again(id, failure);
            }
            OnChange::Fail => {
                "the source changed while it was read; the destination is as it was. For files of a host that only grow, not of a server, there \
                 is `changed=prefix`"
            }
            OnChange::Prefix => {
                "the source changed otherwise than by growing while it was read: it is shorter, another file, or its \
                 beginning differs; the destination is as it was"
            }
        };
        self.fail_file(id, failure.unwrap_or_else(|| changed_failure(text)));
    }

    /// Once more when everything else was read; the second time it fails.
    pub(super) fn try_again(&mut self, id: FileId, failure: Option<Failure>) {
        let Some(file) = self.files.get_mut(&id) else { return };
        if is_between_tries(file) {
            return;
        }
        if file.tries >= TRIES_MAX {
            let text = "the source changed while it was read, twice; the destination is as it was. For files of a host that only grow, \
                        not of a server, there is `changed=prefix`";
            return self.fail_file(id, failure.unwrap_or_else(|| changed_failure(text)));
        }
        file.tries += 1;
        if file.queue == Queue::Small {
            self.small_bytes -= file.size();
        }
        file.queue = Queue::None;
        file.phase = SourcePhase::Retry;
        self.unsealed -= 1;
        self.retries.push(id);
        let message = Message::Withdraw { id, generation: file.generation, retry: true, failure: None };
        self.drop_map(id);
        self.drop_objects(id);
        self.drop_held(id);
        self.flush_announcements();
        self.actions.push_back(SourceAction::Send(message));
    }

    /// It gives bytes beyond its size, which therefore is none: it is measured, and tried once more.
    pub(super) fn is_longer(&mut self, id: FileId) {
        if let Some(file) = self.files.get_mut(&id) {
            file.measured = true;
        }
        self.try_again(id, Some(longer()));
    }

    /// It may have grown: its first bytes are read a second time, however it goes on growing.
    pub(super) fn has_grown(&mut self, id: FileId, size: u64) {
        let Some(file) = self.files.get_mut(&id) else { return };
        file.grown_to = file.grown_to.max(size);
        file.seen = None;
        file.phase = SourcePhase::Hashing;
        match haul_mutant::removed("prefix-is-read-twice") {
            true => self.seal(id),
            false => self.hash(id),
        }
    }

    /// A file that begins anew has this fingerprint now.
    ///
    /// # Errors
    /// By what the user chose it does not begin anew, but fails.
    pub(super) fn may_begin_anew(&self, file: &File, now: &Fingerprint) -> Result<(), Failure> {
        let known = &file.fingerprint;
        let text = match self.config.changed {
            // What it gives is none of its times' business.
            _ if file.measured => return Ok(()),
            OnChange::Fail if !now.same_content(known) => {
                "the source changed before it could be sent again; the destination is as it was"
            }
            OnChange::Prefix if now.size < known.size => {
                "the source became shorter before it could be sent again; the destination is as it was"
            }
            OnChange::Retry | OnChange::Fail | OnChange::Prefix => return Ok(()),
        };
        Err(changed_failure(text))
    }
}

/// It was withdrawn, and waits to be announced again.
fn is_between_tries(file: &File) -> bool {
    matches!(file.phase, SourcePhase::Retry | SourcePhase::Refreshing)
}

/// Why the beginning of a file that grows is not copied.
pub(super) fn differs(len: u64) -> Failure {
    changed_failure(&format!(
        "its first {len} bytes were others when they were read a second time: it does not only grow; the destination is as it was"
    ))
}

fn changed_failure(text: &str) -> Failure {
    Failure { kind: FailureKind::Changed, errno: 0, text: text.into() }
}

/// Why a file fails whose size is not what it gives.
fn longer() -> Failure {
    let text = "it gives more bytes than its size says, and another number of them each time; \
                write them to a file first (cat FILE > COPY), and copy that";
    changed_failure(text)
}
