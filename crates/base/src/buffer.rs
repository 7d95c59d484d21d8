//! Payload buffers: page-aligned, pooled, bounded.
//!
//! In: a length. Out: a [`Buffer`] that is as long, begins on a page, and goes back to its pool when dropped.
//!
//! Invariants: the bytes handed out (rounded up to slots, `wire::credit_cost`) never exceed the limit, and
//! neither do the bytes handed out and kept for reuse together. Memory is zeroed when it is made and never
//! again, so a buffer may hold older payload of this process, but never memory of somebody else.
//!
//! A buffer can be cut into [`Part`]s, so that several requests fill it at once; it is whole again when all
//! of them came back ([`Buffer::join`]). Memory keeps its identity ([`Slab`]) while it is reused, so that an
//! engine can register it with the kernel once; also where it changes pools with its payload
//! ([`Pool::adopt`]).
//!
//! The page that alignment costs per buffer is not counted (at most a sixteenth; of large ones it is never
//! touched).

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use haul_core::ids::BufferId;
use haul_core::wire::credit_cost;

/// Alignment of payload, bytes: the page of every machine we know, and the most that direct I/O asks for.
const ALIGN: usize = 4096;

/// Large buffers lie in pages of this size where the kernel has them: a request of direct I/O is cut where
/// memory is in too many pieces (16 MiB requests, 16 in flight, read 1.6 to 2 times as fast so).
const HUGE: usize = 2 << 20;

/// A bounded pool of buffers; cloning shares it.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    limit: u64,
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    /// Bytes handed out, in slots.
    in_use: u64,
    in_use_max: u64,
    /// Bytes kept for reuse, in slots.
    cached: u64,
    /// Memory kept for reuse by its cost.
    free: BTreeMap<u64, Vec<Block>>,
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
    memory: Arc<Memory>,
    len: usize,
}

/// A piece of a buffer's payload, held by one owner alone, so that several requests can fill one buffer.
pub struct Part {
    memory: Arc<Memory>,
    start: usize,
    len: usize,
    /// Bytes from `start` that belong to this part alone, at least `len`.
    room: usize,
}

/// The memory behind a buffer, as an engine registers it: it stays at its address while it has this id, and
/// no other memory ever gets the id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slab {
    pub id: u64,
    pub address: usize,
    pub len: usize,
}

/// Memory handed out. Who holds a [`Buffer`] or [`Part`] of it holds its bytes alone.
struct Memory {
    shared: Arc<Shared>,
    id: BufferId,
    /// `None` only while it is being dropped, and where it went to another pool before.
    block: Option<Block>,
    cost: u64,
}

/// Memory from the system: `slab.len` bytes from `address` on, a page's multiple, zeroed when made.
///
/// It is a raw allocation, not a `Box` or `Vec`: those assert, each time that they are moved or touched, that
/// nobody else has a pointer to what they own, and everything here goes by such a pointer.
struct Block {
    /// What the allocator gave, and how it was asked. All pointers to the bytes are made of this one.
    owner: NonNull<u8>,
    layout: Layout,
    /// The first byte that is used: `owner`, moved on to the alignment, with its provenance.
    address: NonNull<u8>,
    slab: Slab,
}

// SAFETY: a `Block` owns its allocation alone, and the allocator takes it back from any thread.
#[allow(unsafe_code)]
unsafe impl Send for Block {}
// SAFETY: a shared `Block` gives away its pointer and numbers only. The bytes behind the pointer are touched
// by `Memory::bytes` and `Memory::bytes_mut`, whose callers promise that they hold those bytes alone.
#[allow(unsafe_code)]
unsafe impl Sync for Block {}

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
        // A limit that is no limit would let lengths pass that no memory has.
        let Some(size) = usize::try_from(cost).ok().filter(|size| layout_of(*size).is_some()) else {
            return Err(Exhausted { limit });
        };
        let recycled = self.hand_out(cost)?;
        let block = match recycled {
            Some(block) => block,
            None => {
                self.shared.lock().allocations += 1;
                Block::new(size)
            }
        };
        let memory = Memory { shared: self.shared.clone(), id: live_ids().take(), block: Some(block), cost };
        Ok(Buffer { memory: Arc::new(memory), len })
    }

    /// Counts so many bytes as handed out, and gives memory of that size that is kept and not in use.
    fn hand_out(&self, cost: u64) -> Result<Option<Block>, Exhausted> {
        let limit = self.shared.limit;
        let mut evicted = Vec::new();
        let mut state = self.shared.lock();
        if cost > limit - state.in_use && !haul_mutant::removed("memory-is-bounded") {
            return Err(Exhausted { limit });
        }
        let kept = state.pop(cost);
        state.in_use += cost;
        state.in_use_max = state.in_use_max.max(state.in_use);
        while state.cached > limit - state.in_use {
            evicted.push(state.evict());
        }
        // Giving memory back takes time: not under the lock.
        drop(state);
        drop(evicted);
        Ok(kept)
    }

    /// Payload that another pool handed out, in this one: its memory changes owners, and the bytes stay where
    /// they are. The other pool gets memory of that size in its place, where this one keeps some that is not
    /// in use. Its books are as if the buffer had been dropped, ours as if one had been taken, under an id of
    /// its own. Never blocks.
    ///
    /// Edge: memory that would be counted otherwise here, for its payload was shortened, is not taken over;
    /// the payload is copied.
    ///
    /// # Errors
    /// As [`Pool::take`]; the payload goes back to its pool.
    pub fn adopt(&self, mut buffer: Buffer) -> Result<Buffer, Exhausted> {
        let len = buffer.len;
        let cost = credit_cost(len as u64);
        if buffer.memory.cost != cost {
            let mut copy = self.take(len)?;
            copy.as_mut_slice().copy_from_slice(buffer.as_slice());
            return Ok(copy);
        }
        let spare = self.hand_out(cost)?;
        let theirs = Arc::get_mut(&mut buffer.memory).expect("a buffer has its memory alone");
        let block = std::mem::replace(&mut theirs.block, spare);
        drop(buffer);
        let memory = Memory { shared: self.shared.clone(), id: live_ids().take(), block, cost };
        Ok(Buffer { memory: Arc::new(memory), len })
    }

    /// Bytes handed out now, and the most that ever were.
    pub fn in_use(&self) -> (u64, u64) {
        let state = self.shared.lock();
        (state.in_use, state.in_use_max)
    }
}

/// How memory for `len` bytes, from an aligned one on, is asked for; `None` if there is no such memory.
///
/// The room for alignment is asked for, not the alignment itself: the system's allocator writes to all of
/// aligned zeroed memory, which would touch pages that nobody needs, and before they could be huge.
fn layout_of(len: usize) -> Option<(Layout, usize)> {
    let align = if len >= HUGE { HUGE } else { ALIGN };
    let layout = Layout::array::<u8>(len.checked_add(align)?).ok()?;
    Some((layout, align))
}

impl Block {
    #[allow(unsafe_code)]
    fn new(len: usize) -> Block {
        let (layout, align) = layout_of(len).expect("the pool takes no length without a layout");
        // SAFETY: the layout is not empty, for the alignment is part of it.
        let owner = unsafe { alloc_zeroed(layout) };
        let Some(owner) = NonNull::new(owner) else { handle_alloc_error(layout) };
        let skip = owner.addr().get().wrapping_neg() % align;
        // SAFETY: `skip` is less than `align`, and the allocation is `len + align` bytes long: `skip + len`
        // is in it.
        let address = unsafe { owner.add(skip) };
        if len >= HUGE {
            // SAFETY: `len` bytes from there on are in the allocation (above), which was zeroed, and nobody
            // else has a pointer to it yet. The slice is gone before any other is made, so that it
            // invalidates none.
            crate::sys::want_huge_pages(unsafe { std::slice::from_raw_parts_mut(address.as_ptr(), len) });
        }
        let id = SLABS.fetch_add(1, Ordering::Relaxed);
        // Exposed, for the ring makes a pointer of the number, which the kernel alone follows.
        let slab = Slab { id, address: address.as_ptr().expose_provenance(), len };
        Block { owner, layout, address, slab }
    }

    /// Where `len` bytes from `start` on begin.
    ///
    /// # Panics
    /// If they are not in the block: what is unsafe below relies on it, so it is looked at in every build.
    #[allow(unsafe_code)]
    fn at(&self, start: usize, len: usize) -> NonNull<u8> {
        let fits = start.checked_add(len).is_some_and(|end| end <= self.slab.len);
        assert!(fits, "{len} bytes at {start} of {}", self.slab.len);
        // SAFETY: `start` is at most `slab.len`, as was just seen, and that many bytes from `address` on are
        // in the allocation.
        unsafe { self.address.add(start) }
    }
}

impl Drop for Block {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: `owner` came from this allocator with this layout and is given back once. Who holds bytes
        // of a block holds its `Memory` too, so nobody has any now.
        unsafe { dealloc(self.owner.as_ptr(), self.layout) };
    }
}

impl Memory {
    fn block(&self) -> &Block {
        self.block.as_ref().expect("memory has its block until it is dropped")
    }

    /// # Safety
    /// The caller alone holds `start..start + len`.
    #[allow(unsafe_code)]
    unsafe fn bytes(&self, start: usize, len: usize) -> &[u8] {
        let first = self.block().at(start, len);
        // SAFETY: the range is in the block (`at` panics else), was initialised when the block was made, and
        // by the caller's promise nobody writes to it while the slice lives: slices of other ranges do not
        // overlap it, and are made of the allocation's own pointer as this one is, so that neither
        // invalidates the other.
        unsafe { std::slice::from_raw_parts(first.as_ptr(), len) }
    }

    /// # Safety
    /// As [`Memory::bytes`]; nobody else reads these bytes meanwhile.
    #[allow(unsafe_code)]
    #[allow(clippy::mut_from_ref)]
    unsafe fn bytes_mut(&self, start: usize, len: usize) -> &mut [u8] {
        let first = self.block().at(start, len);
        // SAFETY: as in `bytes`, and the caller alone reads them. The pointer does not come from `&self`: the
        // bytes are behind a raw pointer, of which a shared reference to the `Memory` says nothing.
        unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), len) }
    }
}

impl Shared {
    /// The state stays whole at every panic that could happen under the lock.
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolState {
    fn pop(&mut self, cost: u64) -> Option<Block> {
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
    fn evict(&mut self) -> Block {
        let (&cost, _) = self.free.last_key_value().expect("kept bytes are in the list");
        self.pop(cost).expect("no empty list is kept")
    }
}

impl Buffer {
    /// Unique among the live buffers of the process.
    pub fn id(&self) -> BufferId {
        self.memory.id
    }
    #[allow(unsafe_code)]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: a buffer holds all of its memory, for it has no parts while it is one (`split` takes it,
        // `join` looks that none is left).
        unsafe { self.memory.bytes(0, self.len) }
    }
    #[allow(unsafe_code)]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed for as long.
        unsafe { self.memory.bytes_mut(0, self.len) }
    }
    /// Shortens the payload (a bundle whose files shrank). Never grows.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Cuts the payload from `start`, `len` bytes long, into parts of `part_len` bytes, the last as long as
    /// what remains; what lies outside is kept by the first and last part as room. An empty range is one
    /// empty part.
    ///
    /// # Panics
    /// If `part_len` is zero or the range is not in the payload.
    pub fn split(self, start: usize, len: usize, part_len: usize) -> Vec<Part> {
        assert!(part_len > 0 && start <= self.len && len <= self.len - start);
        let end = start + len;
        let capacity = self.memory.block().slab.len;
        let count = len.div_ceil(part_len).max(1);
        (0..count)
            .map(|i| {
                // `i * part_len` is less than `len`.
                let from = start + i * part_len;
                let to = from.saturating_add(part_len).min(end);
                let room = if i + 1 == count { capacity - from } else { to - from };
                Part { memory: self.memory.clone(), start: from, len: to - from, room }
            })
            .collect()
    }

    /// The buffer that was cut into `parts`, with `len` payload bytes. All parts have to be there.
    ///
    /// # Panics
    /// If a part is missing or of another buffer, or `len` is more than the memory: a mistake of ours that
    /// would let two owners write the same bytes.
    pub fn join(mut parts: Vec<Part>, len: usize) -> Buffer {
        let mut memory = parts.pop().expect("a buffer has at least one part").memory;
        assert!(parts.iter().all(|part| Arc::ptr_eq(&part.memory, &memory)), "parts of one buffer");
        drop(parts);
        // Not the count alone: only this waits for what the thread that dropped the last other part did with
        // its bytes.
        assert!(Arc::get_mut(&mut memory).is_some(), "all parts came back");
        assert!(len <= memory.block().slab.len, "a buffer is as long as its memory at most");
        Buffer { memory, len }
    }
}

impl Part {
    /// Payload bytes.
    pub fn len(&self) -> usize {
        self.len
    }
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Where the part begins in its buffer's payload, bytes.
    pub fn start(&self) -> usize {
        self.start
    }
    /// Bytes from the part's beginning that nobody else holds: what direct I/O may fill or write beyond
    /// `len`.
    pub fn room(&self) -> usize {
        self.room
    }
    /// Cuts the part in two, the first `at` bytes long; what was room beyond the payload goes with the
    /// second.
    ///
    /// # Panics
    /// If `at` is beyond the payload.
    pub fn split_at(self, at: usize) -> (Part, Part) {
        assert!(at <= self.len);
        let Part { memory, start, len, room } = self;
        let first = Part { memory: memory.clone(), start, len: at, room: at };
        (first, Part { memory, start: start + at, len: len - at, room: room - at })
    }
    /// The memory that the part lies in.
    pub fn slab(&self) -> Slab {
        self.memory.block().slab
    }
    #[allow(unsafe_code)]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: parts of a buffer do not overlap, and the buffer is gone while it has parts.
        unsafe { self.memory.bytes(self.start, self.len) }
    }
    #[allow(unsafe_code)]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed for as long.
        unsafe { self.memory.bytes_mut(self.start, self.len) }
    }
    /// The part and its room.
    #[allow(unsafe_code)]
    pub fn room_mut(&mut self) -> &mut [u8] {
        // SAFETY: room belongs to this part alone.
        unsafe { self.memory.bytes_mut(self.start, self.room) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer {} of {} bytes", self.memory.id, self.len)
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {} of buffer {}", self.len, self.start, self.memory.id)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        live_ids().live.remove(&self.id.0);
        let mut state = self.shared.lock();
        state.in_use -= self.cost;
        if let Some(block) = self.block.take() {
            state.cached += self.cost;
            state.free.entry(self.cost).or_default().push(block);
        }
    }
}

/// The next slab's id.
static SLABS: AtomicU64 = AtomicU64::new(0);

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
#[path = "buffer_tests.rs"]
mod tests;
