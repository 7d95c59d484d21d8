//! Whether a log that is open is still on its disk.
//!
//! In: an open log. Out: what is missing or another than it was. Nothing is changed.
//! Left out: bytes of records, which whoever wants them reads ([`Reader::bytes`]).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use haul_base::errno;

use crate::disk::has_name;

use super::{HEAD, HEAD_LEN, Head, Reader, Shared, lock, segment_name};

impl Reader {
    /// Whether what is appended to is where it was.
    pub(crate) fn is_there(&self) -> bool {
        self.0.dir.is_there() && has_name(&lock(&self.0.tail).current.fd).is_ok()
    }

    /// What is wrong, in words. Nothing is appended and nothing forgotten meanwhile.
    pub fn check(&self) -> Vec<String> {
        let (shared, mut faults) = (&self.0, Vec::new());
        let tail = lock(&shared.tail);
        if let Some(errno) = tail.failed {
            let why = errno::text(errno);
            faults.push(format!("the log {} takes nothing more: {why}", shared.dir.path().display()));
        }
        let path = shared.dir.path_of(HEAD);
        match shared.dir.read_small(HEAD, HEAD_LEN + 1) {
            Ok(Some(bytes)) if Head::decode(&bytes).is_some_and(|head| head.id == tail.head.id) => {}
            Ok(Some(_)) => {
                faults.push(format!("{} is damaged, or that of another log", path.display()));
            }
            Ok(None) => faults.push(format!("{} is missing", path.display())),
            Err(errno) => {
                faults.push(format!("cannot read {}: {}", path.display(), errno::text(errno)));
            }
        }
        for segment in shared.segments().iter() {
            let name = segment_name(segment.first);
            match shared.dir.len_of(&name) {
                Ok(Some(len)) if len >= segment.end.load(Ordering::Relaxed) => {}
                Ok(Some(len)) => {
                    let path = shared.dir.path_of(&name);
                    faults.push(format!("{} is cut to {len} bytes", path.display()));
                }
                Ok(None) => faults.push(format!("{} is missing", shared.dir.path_of(&name).display())),
                Err(errno) => {
                    let path = shared.dir.path_of(&name);
                    faults.push(format!("cannot look at {}: {}", path.display(), errno::text(errno)));
                }
            }
        }
        faults
    }
}

/// A [`Reader`] that does not hold the log open.
#[derive(Clone)]
pub struct WeakReader(Weak<Shared>);

impl Reader {
    pub fn downgrade(&self) -> WeakReader {
        WeakReader(Arc::downgrade(&self.0))
    }
}

impl WeakReader {
    /// `None`: the log is closed.
    pub fn upgrade(&self) -> Option<Reader> {
        self.0.upgrade().map(Reader)
    }
}
