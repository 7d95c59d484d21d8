//! Tests of the payload buffers. `make miri` runs them too.

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
                for _ in 0..if cfg!(miri) { 40 } else { 2000 } {
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

/// Goal: what goes to another pool stays where it is, counts there and no more at home, has a new id, and is
/// kept by its new pool; the old one gets what the new one does not use.
#[test]
fn memory_changes_pools() {
    let (home, away) = (Pool::new(8 * SLOT as u64), Pool::new(4 * SLOT as u64));
    let books = |pool: &Pool| {
        let state = pool.shared.lock();
        (state.in_use, state.cached, state.allocations)
    };
    let slots = |n: usize| (n * SLOT) as u64;
    let mut buffer = home.take(3 * SLOT - 1).unwrap();
    buffer.as_mut_slice().fill(9);
    let (id, address) = (buffer.id(), buffer.as_slice().as_ptr().addr());
    let buffer = away.adopt(buffer).unwrap();
    assert!(buffer.as_slice().len() == 3 * SLOT - 1 && buffer.as_slice().iter().all(|byte| *byte == 9));
    assert_eq!(buffer.as_slice().as_ptr().addr(), address);
    assert_ne!(buffer.id(), id);
    assert_eq!((books(&home), books(&away)), ((0, 0, 1), (slots(3), 0, 0)));
    // No room for another: it is where it was, and goes home.
    let second = home.take(3 * SLOT).unwrap();
    assert!(away.adopt(second).is_err());
    assert_eq!((books(&home), books(&away)), ((0, slots(3), 2), (slots(3), 0, 0)));
    drop(buffer);
    assert_eq!(books(&away), (0, slots(3), 0));
    // From here on no memory is made, however often it goes over.
    for _ in 0..5 {
        let buffer = away.adopt(home.take(3 * SLOT).unwrap()).unwrap();
        assert_eq!((books(&home), books(&away)), ((0, slots(3), 2), (slots(3), 0, 0)));
        drop(buffer);
    }
    // What was kept makes way.
    let buffer = away.adopt(home.take(2 * SLOT).unwrap()).unwrap();
    assert_eq!(books(&away), (slots(2), 0, 0));
    // Shortened, it costs less here than its memory: that stays at home.
    let mut long = home.take(2 * SLOT).unwrap();
    long.as_mut_slice().fill(5);
    long.truncate(SLOT);
    let short = away.adopt(long).unwrap();
    assert!(short.as_slice() == vec![5; SLOT]);
    assert_eq!((books(&away), home.in_use().0), ((slots(3), 0, 1), 0));
    drop((buffer, short));
    assert_eq!((away.in_use().0, home.in_use().0), (0, 0));
}

/// Goal: both bounds hold while threads give payload to each other.
#[test]
fn bounds_hold_while_memory_changes_pools() {
    let limits = [24 * SLOT as u64, 16 * SLOT as u64];
    let pools = limits.map(Pool::new);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let pools = &pools;
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                let mut held: Vec<Buffer> = Vec::new();
                for _ in 0..if cfg!(miri) { 40 } else { 2000 } {
                    let pool = &pools[rng.usize(0..2)];
                    match rng.u8(0..3) {
                        0 => held.extend(pool.take(rng.usize(0..6 * SLOT))),
                        1 if !held.is_empty() => {
                            let buffer = held.swap_remove(rng.usize(0..held.len()));
                            held.extend(pool.adopt(buffer));
                        }
                        _ if !held.is_empty() => drop(held.swap_remove(rng.usize(0..held.len()))),
                        _ => {}
                    }
                    for (pool, limit) in pools.iter().zip(limits) {
                        let state = pool.shared.lock();
                        assert!(state.in_use + state.cached <= limit);
                    }
                }
            });
        }
    });
    assert_eq!(pools.each_ref().map(|pool| pool.in_use().0), [0, 0]);
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

/// Goal: parts tile the range that was cut, do not see each other's bytes, and make the same buffer
/// again.
/// Method: seeded ranges and part lengths; each part filled with its number, then the whole is looked at.
#[test]
fn parts_tile_the_buffer() {
    let pool = Pool::new(SLOT as u64 * 8);
    let mut rng = fastrand::Rng::with_seed(3);
    for _ in 0..if cfg!(miri) { 3 } else { 300 } {
        let len = rng.usize(0..4 * SLOT);
        let start = rng.usize(0..=len);
        let cut = rng.usize(0..=len - start);
        let part_len = rng.usize(1..2 * SLOT);
        let mut buffer = pool.take(len).unwrap();
        buffer.as_mut_slice().fill(255);
        let id = buffer.id();
        let mut parts = buffer.split(start, cut, part_len);
        let mut at = start;
        let count = parts.len();
        for (i, part) in parts.iter_mut().enumerate() {
            assert_eq!(part.start(), at);
            assert!(part.room() >= part.len());
            assert!(i + 1 == count || part.room() == part.len());
            part.as_mut_slice().fill(i as u8);
            at += part.len();
        }
        assert_eq!(at, start + cut);
        rng.shuffle(&mut parts);
        let last = parts.pop().unwrap();
        let (len_before, room_before, at) = (last.len(), last.room(), rng.usize(0..=last.len()));
        let (first, second) = last.split_at(at);
        assert_eq!((first.len(), first.room(), second.start()), (at, at, first.start() + at));
        assert_eq!((second.len(), second.room()), (len_before - at, room_before - at));
        parts.extend([second, first]);
        let buffer = Buffer::join(parts, len);
        assert_eq!(buffer.id(), id);
        for (i, byte) in buffer.as_slice().iter().enumerate() {
            let wanted = if i < start || i >= start + cut { 255 } else { ((i - start) / part_len) as u8 };
            assert_eq!(*byte, wanted);
        }
    }
    assert_eq!(pool.in_use().0, 0);
}

/// Goal: parts of any length are what was asked for, and never reach beyond the payload.
/// Method: part lengths up to the largest number, from every place; sums that wrapped made the part
/// before.
#[test]
fn no_part_length_wraps() {
    let pool = Pool::new(SLOT as u64);
    for part_len in [1 << 20, usize::MAX - 5, usize::MAX] {
        for start in [0, 3, 10] {
            let parts = pool.take(10).unwrap().split(start, 10 - start, part_len);
            let found: Vec<_> = parts.iter().map(|part| (part.start(), part.len(), part.room())).collect();
            assert_eq!(found, [(start, 10 - start, SLOT - start)]);
        }
    }
}

/// Goal: bytes beyond the memory are never given away, in any build.
/// Method: ranges that end behind it, or nowhere, asked of the memory itself.
#[test]
fn ranges_beyond_the_memory_are_refused() {
    let block = Block::new(SLOT);
    for (start, len) in [(0, SLOT + 1), (SLOT, 1), (SLOT + 1, 0), (usize::MAX, 2), (1, usize::MAX)] {
        let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| block.at(start, len)));
        assert!(asked.is_err(), "{len} bytes at {start}");
    }
    assert_eq!(block.at(SLOT, 0).addr().get(), block.slab.address + SLOT);
}

/// Goal: lengths that no memory has are refused, not made.
#[test]
fn absurd_lengths_are_exhausted() {
    let pool = Pool::new(u64::MAX);
    for len in [usize::MAX, usize::MAX - SLOT, isize::MAX as usize] {
        assert!(pool.take(len).is_err(), "{len}");
    }
}

/// Goal: what the threads that filled the parts wrote is there when the buffer is whole again, and their
/// memory is nobody else's before.
/// Method: parts filled and dropped by threads, but for one that comes back; whoever joins waits for it
/// alone. (Under Miri a join that does not synchronise is a data race.)
#[test]
fn a_join_waits_for_who_dropped_the_others() {
    let pool = Pool::new(4 * SLOT as u64);
    for round in 0..if cfg!(miri) { 8 } else { 200 } {
        let mut parts = pool.take(4096).unwrap().split(0, 4096, 1024);
        let mut mine = parts.pop().unwrap();
        let others: Vec<_> = parts
            .into_iter()
            .map(|mut part| std::thread::spawn(move || part.as_mut_slice().fill(round as u8)))
            .collect();
        mine.as_mut_slice().fill(round as u8);
        // No join of the threads: what they did is ordered by the parts that they dropped, or by nothing.
        while Arc::strong_count(&mine.memory) > 1 {
            std::hint::spin_loop();
        }
        let mut buffer = Buffer::join(vec![mine], 4096);
        assert!(buffer.as_slice().iter().all(|byte| *byte == round as u8));
        buffer.as_mut_slice().fill(0);
        drop(buffer);
        others.into_iter().for_each(|other| other.join().unwrap());
    }
}

/// Goal: a buffer is not made again while a part of it is out.
#[test]
#[should_panic(expected = "all parts came back")]
fn a_missing_part_is_noticed() {
    let mut parts = Pool::new(SLOT as u64).take(10).unwrap().split(0, 10, 4);
    let _out = parts.pop();
    Buffer::join(parts, 10);
}
