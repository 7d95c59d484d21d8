//! One file of a model: its bytes, its layout, and the writes that are not done.
//!
//! In: writes begun and ended, calls that wait for them. Out: these calls, once all writes begun before are
//! done.
//! Invariant: a sync never waits for a write that began after it.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, RwLock};

use super::lane::Done;
use super::lov::Wish;
use super::store::Store;
use super::stripe::Layout;

pub struct FileBody {
    pub store: Store,
    /// Bytes.
    pub size: AtomicU64,
    /// None until the file is opened to write for the first time, if it was made without opening it (mknod).
    pub layout: RwLock<Option<Arc<Layout>>>,
    /// What the directory wished when the file was made.
    pub wish: Option<Wish>,
    writes: Mutex<Writes>,
}

#[derive(Default)]
struct Writes {
    next: u64,
    unfinished: BTreeSet<u64>,
    /// Each waits for all writes with a lower number.
    syncs: Vec<(u64, Done)>,
}

impl FileBody {
    pub fn new(store: Store, layout: Option<Arc<Layout>>, wish: Option<Wish>) -> FileBody {
        let (size, writes) = (AtomicU64::new(0), Mutex::default());
        FileBody { store, size, layout: RwLock::new(layout), wish, writes }
    }

    pub fn layout(&self) -> Option<Arc<Layout>> {
        self.layout.read().expect("no panic under this lock").clone()
    }

    /// Begins a write; the number is for `end_write`.
    pub fn begin_write(&self) -> u64 {
        let mut writes = self.writes.lock().expect("no panic under this lock");
        writes.next += 1;
        let number = writes.next;
        writes.unfinished.insert(number);
        number
    }

    pub fn end_write(&self, number: u64) {
        let mut writes = self.writes.lock().expect("no panic under this lock");
        writes.unfinished.remove(&number);
        let least = writes.unfinished.first().copied().unwrap_or(u64::MAX);
        let (ready, waiting) =
            std::mem::take(&mut writes.syncs).into_iter().partition(|(bound, _)| *bound <= least);
        writes.syncs = waiting;
        drop(writes);
        let ready: Vec<(u64, Done)> = ready;
        ready.into_iter().for_each(|(_, done)| done());
    }

    /// Calls `done` when all writes begun before are done.
    pub fn sync(&self, done: Done) {
        let mut writes = self.writes.lock().expect("no panic under this lock");
        if writes.unfinished.is_empty() {
            drop(writes);
            done();
            return;
        }
        let bound = writes.next + 1;
        writes.syncs.push((bound, done));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    /// Goal: a sync is answered when the writes before it are done, and does not wait for later ones.
    /// Method: writes that end in another order than they began.
    #[test]
    fn a_sync_waits_for_the_writes_before_it_and_no_others() {
        let body = FileBody::new(Store::Null, None, None);
        let synced = Arc::new(AtomicU64::new(0));
        let sync = |body: &FileBody| {
            let synced = synced.clone();
            body.sync(Box::new(move || _ = synced.fetch_add(1, Ordering::Relaxed)));
        };
        let count = || synced.load(Ordering::Relaxed);
        sync(&body);
        assert_eq!(count(), 1);
        let (a, b) = (body.begin_write(), body.begin_write());
        sync(&body);
        let c = body.begin_write();
        body.end_write(b);
        assert_eq!(count(), 1);
        sync(&body);
        body.end_write(a);
        assert_eq!(count(), 2);
        body.end_write(c);
        assert_eq!(count(), 3);
    }
}
