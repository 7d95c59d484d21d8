//! What makes the bytes of a part safe, and what becomes of it when that fails.
//!
//! In: a part, its record, ranges that were written. Out: they are on media, and the record says so.
//! What must hold: of a part of which one sync failed nothing more is called safe. A system tells a failure
//! once, and takes for written then what it could not write; a client of a volume tells once what a server
//! lost that was started anew: so a sync behind one that failed may succeed, and says nothing of those bytes.
//! What was called safe before is safe still.

use std::sync::{Arc, OnceLock};

use haul_gridftp::ranges::Ranges;

use super::record::Record;
use crate::store::{Dir, Fault, File};

/// What the first sync of a part that failed met.
#[derive(Default)]
pub(super) struct Fate(OnceLock<Fault>);

impl Fate {
    /// Syncs, if none has failed before.
    ///
    /// # Errors
    /// It fails, or one has.
    pub(super) fn after(&self, sync: impl FnOnce() -> Result<(), Fault>) -> Result<(), Fault> {
        if let Some(fault) = self.0.get()
            && !haul_mutant::removed("ftpd-a-failed-sync-is-the-last")
        {
            return Err(fault.clone());
        }
        sync().inspect_err(|fault| _ = self.0.set(fault.clone()))
    }
}

/// What a sync is made of: it may run beside the writes that follow it.
#[derive(Clone)]
pub struct Syncer {
    pub(super) file: Arc<dyn File>,
    pub(super) record: Option<Arc<Record>>,
    /// The directory, where part and record may not be on media by their names yet.
    pub(super) dir: Option<Arc<dyn Dir>>,
    pub(super) fate: Arc<Fate>,
}

impl Syncer {
    /// Makes what was written so far last, and notes that `ranges` of it are safe.
    ///
    /// # Errors
    /// Then nothing may be called safe, and the part is not to be published.
    pub fn sync(&self, ranges: &Ranges) -> Result<(), Fault> {
        self.fate.after(|| {
            self.file.sync_data()?;
            if let Some(record) = &self.record {
                let mut line = Vec::new();
                ranges.encode(&mut line);
                line.push(b'\n');
                record.append(&line)?;
            }
            // Bytes that nobody finds again are not safe.
            self.dir.as_ref().map_or(Ok(()), |dir| dir.sync())
        })
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    /// Goal: behind a sync that failed none succeeds, whatever the system says of it, and all say why.
    #[test]
    fn a_failed_sync_is_the_last() {
        let fate = Fate::default();
        assert_eq!(fate.after(|| Ok(())), Ok(()));
        assert_eq!(fate.after(|| Err(Errno::IO.into())), Err(Errno::IO.into()));
        assert_eq!(fate.after(|| Ok(())), Err(Errno::IO.into()));
        assert_eq!(fate.after(|| Err(Errno::NOSPC.into())), Err(Errno::IO.into()));
    }
}
