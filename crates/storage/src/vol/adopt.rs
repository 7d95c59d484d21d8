//! Taking over the temporary of an earlier run of the job, in a volume.
//!
//! In: a file, and the tag under which a run left a part of it. Out: its temporary under this run's name.
//! What must hold: a file goes on only if nobody writes it any more. It is looked at first, so that who could
//! write it directly may not, and nothing comes late that was on its way; one that somebody writes all the
//! time is not gone on with. A run that was not seen to die may write on by the file's number, whatever its
//! name is: of what it had open a copy is made, under a number that only this run has, and synced before the
//! old one goes.
//! Nothing here makes a byte believed: what is held is read where it lies, and held against the journal
//! ([`Common::check`]). So what somebody wrote into it meanwhile, or a server lost with its disk, comes
//! again. Left out: sparse files, which begin anew: nobody reads whether their holes still are some.

use haul_core::transfer::op::SinkFile;
use haul_core::volume::FileNo;
use haul_core::volume::catalog::{EntryNo, Failure as Refusal, Place as At};
use haul_core::wire::{Failure, FailureKind};
use haul_volume::client::VolumeError;
use rustix::io::Errno;

use super::files::{Common, lock};
use super::is_missing;
use crate::sink::names::tag_bits;
use crate::sink::temp_name;

/// Bytes that are copied at a time.
const STEP: u64 = 4 << 20;

impl Common {
    /// The temporary that the run with this tag left of a file, as ours from now on, and how long it is.
    /// `None`: it is not there, is none of ours, or is not gone on with.
    ///
    /// # Errors
    /// Neither the catalog nor the servers say.
    pub(super) fn take_over(
        &self,
        file: &SinkFile,
        parent: EntryNo,
        tag: u32,
    ) -> Result<Option<u64>, Failure> {
        if file.map.is_some() {
            return Ok(None);
        }
        let path = || self.path(file);
        let doing = "take over the temporary of";
        let refused = |why: Refusal| self.volume.refused(FailureKind::Open, doing, &path(), &why);
        let (old, new) = (temp_name(&file.name, tag, file.number), self.temp_name(file));
        let (old, new) = (At { parent, name: old }, At { parent, name: new });
        let Some(entry) = self.volume.at(&old).map_err(refused)? else { return Ok(None) };
        // As runs make them: nobody gave it another mode.
        let is_ours = entry.meta.mode & 0o7777 == self.made.mode;
        let Some(number) = entry.file().filter(|_| is_ours) else { return Ok(None) };
        let end = match self.volume.wait(|| self.volume.client.look(number)) {
            Ok(look) => look.end,
            Err(VolumeError::Busy | VolumeError::Gone) => return Ok(None),
            Err(why) => return Err(self.volume.broke(FailureKind::Open, doing, &path(), &why)),
        };
        self.claim.check()?;
        if !self.former.is_dead(tag_bits(tag)) {
            return self.copy_over(file, (number, end), &old);
        }
        let is = |why: &Refusal, errno: Errno| why.errno == errno.raw_os_error();
        match self.volume.catalog.rename(old, new.clone(), true) {
            Ok(()) => {}
            Err(why) if is_missing(&why) || is(&why, Errno::EXIST) => return Ok(None),
            Err(why) => return Err(refused(why)),
        }
        // The name may have been given to another file in between.
        if self.volume.at(&new).map_err(refused)?.is_none_or(|now| now.id != entry.id) {
            let _ = self.volume.catalog.unlink(new);
            return Ok(None);
        }
        self.open(file).adopt(entry.id);
        Ok(Some(end))
    }

    /// A copy of what an earlier run may still write into, in place of it. Where it cannot be made there is
    /// none.
    fn copy_over(
        &self,
        file: &SinkFile,
        (from, end): (FileNo, u64),
        old: &At,
    ) -> Result<Option<u64>, Failure> {
        let open = self.open(file);
        let made = self.temp(&open)?;
        let to = FileNo(made.0);
        let copy = || -> Result<(), VolumeError> {
            let mut at = 0;
            while at < end {
                let step = (end - at).min(STEP);
                let bytes = self.volume.wait(|| self.volume.client.read(from, at, step))?.bytes;
                self.volume.wait(|| self.volume.client.write(to, at, bytes.clone()))?;
                at += step;
            }
            self.volume.wait_once(&self.volume.client.sync(to))
        };
        if copy().is_err() {
            self.remove(&open, self.given_up(&open));
            lock(&self.files).remove(&file.id);
            return Ok(None);
        }
        // The next run finds it by its tag, where this fails.
        let _ = self.volume.catalog.unlink(old.clone());
        open.adopt(made);
        Ok(Some(end))
    }
}
