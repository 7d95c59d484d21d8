//! Descriptors that are kept open for their next use.
//!
//! Invariant: no more are kept than the limit. What has to go is handed to the caller, for closing may wait
//! for a server.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::Arc;

use haul_core::id_map::IdMap;

/// Descriptors by last use: the one that was not used for longest goes first.
pub(super) struct FdCache<K, V> {
    limit: usize,
    clock: u64,
    pub(super) fds: IdMap<K, (Arc<V>, u64)>,
    by_use: BTreeMap<u64, K>,
}

impl<K: Copy + Eq + Hash, V> FdCache<K, V> {
    pub(super) fn new(limit: usize) -> FdCache<K, V> {
        FdCache { limit: limit.max(1), clock: 0, fds: IdMap::default(), by_use: BTreeMap::new() }
    }

    pub(super) fn has(&self, key: &K) -> bool {
        self.fds.contains_key(key)
    }

    pub(super) fn get(&mut self, key: &K) -> Option<Arc<V>> {
        let (fd, used) = self.fds.get_mut(key)?;
        self.by_use.remove(used);
        self.clock += 1;
        *used = self.clock;
        self.by_use.insert(self.clock, *key);
        Some(fd.clone())
    }

    /// Returns what had to go, for the caller to close outside of its lock.
    pub(super) fn insert(&mut self, key: K, fd: Arc<V>) -> Option<Arc<V>> {
        let replaced = self.remove(&key);
        self.clock += 1;
        self.fds.insert(key, (fd, self.clock));
        self.by_use.insert(self.clock, key);
        if self.fds.len() <= self.limit {
            return replaced;
        }
        let (_, oldest) = self.by_use.pop_first()?;
        self.fds.remove(&oldest).map(|(fd, _)| fd)
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<Arc<V>> {
        let (fd, used) = self.fds.remove(key)?;
        self.by_use.remove(&used);
        Some(fd)
    }
}
