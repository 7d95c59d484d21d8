//! Payload buffers: page-aligned, pooled, bounded.
//!
//! In: a length. Out: a [`Buffer`] that is as long, begins on a page, and goes back to its pool when dropped.
//!
//! Invariants: the bytes handed out (rounded up to slots, `wire::credit_cost`) never exceed the limit, and
//! neither do the bytes handed out and kept for reuse together. Memory is zeroed when it is made and never
//! again, so a buffer may hold older payload of this process, but never memory of somebody else.
//!
//! Left out: registration with a ring or a network card, and huge pages; both belong here when an engine
//! needs them. The page that alignment costs per buffer is not counted (at most a sixteenth).

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use haul_core::ids::BufferId;
use haul_core::wire::credit_cost;

/// Alignment of payload, bytes: the page of every machine we know, and the most that direct I/O asks for.
const ALIGN: usize = 4096;

/// A bounded pool of buffers; cloning shares it.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    limit: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Bytes handed out, in slots.
    in_use: u64,
    in_use_max: u64,
    /// Bytes kept for reuse, in slots.
    cached: u64,
    /// Memory kept for reuse by its cost.
    free: BTreeMap<u64, Vec<Vec<u8>>>,
    /// How often memory was made.
    allocations: u64,
}

/// The pool's limit is reached. From a stream this means that the peer sent more than it was granted.
#[derive(Debug, thiserror::Error)]
#[error("buffer pool of {limit} bytes is exhausted")]
pub struct Exhausted {
    pub limit: u64,
}

/// A page-aligned buffer of `len` payload bytes; goes back to its pool when dropped.
pub struct Buffer {
    shared: Arc<Shared>,
    id: BufferId,
    memory: Vec<u8>,
    start: usize,
    len: usize,
    cost: u64,
}

impl Pool {
    /// A pool that hands out at most `limit` bytes at a time.
    pub fn new(limit: u64) -> Pool {
        Pool { shared: Arc::new(Shared { limit, state: Mutex::default() }) }
    }

    /// A buffer of `len` bytes (content unspecified, never uninitialised memory). Never blocks.
    ///
    /// # Errors
    /// [`Exhausted`] if the buffers that are out leave no room for `credit_cost(len)` bytes. Memory that is
    /// only kept for reuse is given up first.
    pub fn take(&self, len: usize) -> Result<Buffer, Exhausted> {
        let limit = self.shared.limit;
        // Refused before `credit_cost` rounds up, for `len` may be a peer's number.
        if len as u64 > limit {
            return Err(Exhausted { limit });
        }
        let cost = credit_cost(len as u64);
        let mut evicted = Vec::new();
        let recycled = {
            let mut state = self.shared.lock();
            if cost > limit - state.in_use {
                return Err(Exhausted { limit });
            }
            let recycled = state.pop(cost);
            state.in_use += cost;
            state.in_use_max = state.in_use_max.max(state.in_use);
            if recycled.is_none() {
                state.allocations += 1;
            }
            while state.cached > limit - state.in_use {
                evicted.push(state.evict());
            }
            recycled
        };
        // Giving memory back and making it takes time: not under the lock.
        drop(evicted);
        let memory = recycled.unwrap_or_else(|| vec![0; cost as usize + ALIGN]);
        let start = memory.as_ptr().addr().wrapping_neg() % ALIGN;
        Ok(Buffer { shared: self.shared.clone(), id: live_ids().take(), memory, start, len, cost })
    }

    /// Bytes handed out now, and the most that ever were.
    pub fn in_use(&self) -> (u64, u64) {
        let state = self.shared.lock();
        (state.in_use, state.in_use_max)
    }
}

impl Shared {
    /// The state stays whole at every panic that could happen under the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn pop(&mut self, cost: u64) -> Option<Vec<u8>> {
        let list = self.free.get_mut(&cost)?;
        let memory = list.pop();
        if list.is_empty() {
            self.free.remove(&cost);
        }
        if memory.is_some() {
            self.cached -= cost;
        }
        memory
    }

    /// Gives up the largest kept memory: fewest calls for the room that is needed.
    fn evict(&mut self) -> Vec<u8> {
        let (&cost, _) = self.free.last_key_value().expect("kept bytes are in the list");
        self.pop(cost).expect("no empty list is kept")
    }
}

impl Buffer {
    /// Unique among the live buffers of the process.
    pub fn id(&self) -> BufferId {
        self.id
    }
    pub fn as_slice(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
    /// Shortens the payload (a bundle whose files shrank). Never grows.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer {} of {} bytes", self.id, self.len)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        live_ids().live.remove(&self.id.0);
        let mut state = self.shared.lock();
        state.in_use -= self.cost;
        state.cached += self.cost;
        let memory = std::mem::take(&mut self.memory);
        state.free.entry(self.cost).or_default().push(memory);
    }
}

/// Ids of live buffers. They count up and wrap, so that an id comes back as late as possible.
#[derive(Default)]
struct LiveIds {
    live: HashSet<u32>,
    last: u32,
}

static LIVE_IDS: LazyLock<Mutex<LiveIds>> = LazyLock::new(Mutex::default);

fn live_ids() -> MutexGuard<'static, LiveIds> {
    LIVE_IDS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LiveIds {
    fn take(&mut self) -> BufferId {
        loop {
            self.last = self.last.wrapping_add(1);
            if self.live.insert(self.last) {
                return BufferId(self.last);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: usize = haul_core::wire::SLOT_LEN as usize;

    /// Goal: payload begins on a page and is as long as asked, first time and recycled.
    /// Method: lengths around slot edges, each taken twice.
    #[test]
    fn buffers_are_page_aligned_and_exact() {
        let pool = Pool::new(64 << 20);
        for len in [0, 1, 4095, 4096, SLOT - 1, SLOT, SLOT + 1, (4 << 20) + 1] {
            for _ in 0..2 {
                let mut buffer = pool.take(len).unwrap();
                assert_eq!(buffer.as_slice().len(), len);
                assert_eq!(buffer.as_mut_slice().as_ptr().addr() % ALIGN, 0);
                buffer.as_mut_slice().fill(7);
            }
        }
    }

    /// Goal: neither what is out nor what is out and kept together exceeds the limit, and ids are unique.
    /// Method: threads take and drop seeded lengths; all look at the pool's own books and a shared set.
    #[test]
    fn bound_holds_under_threads() {
        let limit = 40 * SLOT as u64;
        let pool = Pool::new(limit);
        let ids = Mutex::new(HashSet::new());
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let (pool, ids) = (&pool, &ids);
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(seed);
                    let mut held: Vec<Buffer> = Vec::new();
                    for _ in 0..2000 {
                        if rng.bool() || held.is_empty() {
                            if let Ok(buffer) = pool.take(rng.usize(0..8 * SLOT)) {
                                assert!(ids.lock().unwrap().insert(buffer.id()));
                                held.push(buffer);
                            }
                        } else {
                            let buffer = held.swap_remove(rng.usize(0..held.len()));
                            ids.lock().unwrap().remove(&buffer.id());
                        }
                        let state = pool.shared.lock();
                        assert!(state.in_use + state.cached <= limit);
                    }
                    for buffer in held {
                        ids.lock().unwrap().remove(&buffer.id());
                    }
                });
            }
        });
        let (now, most) = pool.in_use();
        assert_eq!(now, 0);
        assert!(most <= limit && most > 0);
    }

    /// Goal: a pool that is full says so, and one byte costs a slot.
    #[test]
    fn exhausted_when_slots_are_out() {
        let pool = Pool::new(2 * SLOT as u64);
        let one = pool.take(1).unwrap();
        let two = pool.take(0).unwrap();
        assert!(pool.take(1).is_err());
        drop((one, two));
        assert!(pool.take(2 * SLOT).is_ok());
        assert!(pool.take(2 * SLOT + 1).is_err());
        assert!(pool.take(usize::MAX).is_err());
    }

    /// Goal: a steady state makes no new memory, and memory of another size makes way.
    #[test]
    fn recycling_allocates_once() {
        let pool = Pool::new(8 * SLOT as u64);
        for _ in 0..100 {
            let _a = pool.take(4 * SLOT).unwrap();
            let _b = pool.take(4 * SLOT - 5).unwrap();
        }
        assert_eq!(pool.shared.lock().allocations, 2);
        drop(pool.take(SLOT).unwrap());
        let state = pool.shared.lock();
        assert_eq!((state.allocations, state.cached), (3, 5 * SLOT as u64));
    }

    /// Goal: truncate shortens, never grows, and costs nothing of the next user's length.
    #[test]
    fn truncate_only_shortens() {
        let pool = Pool::new(SLOT as u64);
        let mut buffer = pool.take(100).unwrap();
        buffer.truncate(200);
        assert_eq!(buffer.as_slice().len(), 100);
        buffer.truncate(3);
        assert_eq!(buffer.as_slice().len(), 3);
        drop(buffer);
        assert_eq!(pool.take(100).unwrap().as_slice().len(), 100);
    }
}
