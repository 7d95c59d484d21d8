//! Requests that fail, engines that break, callbacks that panic.

use std::collections::HashSet;

use super::*;

/// Goal: short transfers, interruptions, waits and refusals do not change a byte, in either mode, while the
/// settings move; direct requests stay aligned.
/// Method: seeded faults in a scripted engine that asserts alignment; write, then read back, with pad.
#[test]
fn faults_change_no_byte() {
    let mut rng = fastrand::Rng::with_seed(2);
    for round in 0..80 {
        let mode = IoMode::ALL[round % 2];
        let object = K64 << rng.usize(0..3);
        let len = rng.usize(1..600_000);
        let content: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(len).collect();
        let dice = Mutex::new((fastrand::Rng::with_seed(round as u64), HashSet::new()));
        let mut world = World::new(move |op| {
            let (dice, ends) = &mut *dice.lock().unwrap();
            if op.uncached {
                return Fate::Fail(Errno::OPNOTSUPP);
            }
            match dice.u32(0..20) {
                0..6 => {
                    let most = dice.usize(1..op.wanted().max(2));
                    // A read that ends at the same byte a second time says that the file does.
                    let is_new = op.kind == IoKind::Write || ends.insert(op.offset + most as u64);
                    if is_new { Fate::Short(most) } else { Fate::Whole }
                }
                6 => Fate::Fail(Errno::INTR),
                7 => Fate::Fail(Errno::AGAIN),
                _ => Fate::Whole,
            }
        });
        world.dawdle = rng.bool();
        let pool = Pool::new(64 << 20);
        let (on_done, done) = listener();
        let order = OrderPolicy::ALL[rng.usize(0..4)];
        let config = config(rng.usize(1..5), rng.usize(1..10), 4096 << rng.u32(0..10), order);
        let (io_threads, _world) = world.start(config, on_done);
        let scratch = scratch();
        let target = file(scratch.try_clone().unwrap(), mode, 1, rng.bool());
        let objects = len.div_ceil(object);
        for kind in [IoKind::Write, IoKind::Read] {
            for i in 0..objects {
                let range = i * object..len.min((i + 1) * object);
                let pad =
                    if mode == IoMode::Direct { range.len().next_multiple_of(4096) - range.len() } else { 0 };
                let mut buffer = pool.take(range.len()).unwrap();
                if kind == IoKind::Write {
                    buffer.as_mut_slice().copy_from_slice(&content[range.clone()]);
                } else {
                    buffer.as_mut_slice().fill(0);
                }
                let uncached = rng.bool();
                io_threads.submit(Transfer {
                    pad,
                    uncached,
                    ..transfer((i, uncached), &target, kind, range.start as u64, buffer)
                });
                match rng.u32(0..6) {
                    0 => io_threads.set_order(OrderPolicy::ALL[rng.usize(0..4)]),
                    1 => io_threads.set_request_size(4096 << rng.u32(0..10)),
                    2 => io_threads.set_depth(rng.usize(1..10)),
                    3 => drop(io_threads.use_threads(rng.usize(1..6))),
                    _ => {}
                }
            }
            for _ in 0..objects {
                let done = done.recv_timeout(PATIENCE).unwrap();
                let (i, uncached) = done.tag;
                assert_eq!(
                    (done.moved, done.error),
                    (done.len, None),
                    "round {round}: {kind:?} of {i}, {order:?}, {mode}, len {len}"
                );
                assert_eq!(done.refused_uncached, uncached);
                let range = i * object..len.min((i + 1) * object);
                assert!(done.buffer.as_slice() == &content[range], "round {round}: {kind:?} of {i}");
            }
            if kind == IoKind::Write {
                // Direct writes ended in padding; a sink truncates as well.
                scratch.set_len(len as u64).unwrap();
                let mut there = vec![0; len];
                scratch.read_exact_at(&mut there, 0).unwrap();
                assert!(there == content, "round {round}: what was written is there");
            }
        }
    }
}

/// Goal: a file that ends early ends the transfer there, without an error, in either mode.
/// Method: files of seeded odd length, read beyond their end, by whole and by joined requests.
#[test]
fn the_end_of_file_is_no_error() {
    let mut rng = fastrand::Rng::with_seed(3);
    for round in 0..60 {
        let len = rng.usize(0..3 * K64);
        let scratch = scratch();
        let content: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(len).collect();
        scratch.write_all_at(&content, 0).unwrap();
        let target = file(scratch, IoMode::ALL[round % 2], 1, false);
        let (on_done, done) = listener();
        let request_size = 4096 << rng.u32(0..7);
        let pool = Pool::new(1 << 20);
        let (io_threads, _) =
            World::new(|_| Fate::Whole).start(config(2, 3, request_size, OrderPolicy::None), on_done);
        for i in 0..4 {
            let buffer = pool.take(K64).unwrap();
            io_threads.submit(transfer(i, &target, IoKind::Read, (i * K64) as u64, buffer));
        }
        for _ in 0..4 {
            let done = done.recv_timeout(PATIENCE).unwrap();
            let there = content.get(done.tag * K64..).unwrap_or_default();
            let there = &there[..there.len().min(K64)];
            assert_eq!((done.moved, done.error), (there.len(), None), "{len} bytes");
            assert!(&done.buffer.as_slice()[..done.moved] == there);
        }
    }
}

/// Goal: an errno is told with the first byte that it stands at, of the transfers that have it and of no
/// others.
/// Method: everything from some byte on fails (a vanished device, a full disk), or one block does; an engine
/// fails all of a request that touches it, or moves what lies before. Joined and cut requests.
#[test]
fn errors_name_their_byte() {
    const BAD: u64 = 5 * K64 as u64 + 8192;
    for (errno, to_the_end) in [(Errno::IO, false), (Errno::NOSPC, true), (Errno::NODEV, true)] {
        for partial in [false, true] {
            for request_size in [4096_u64, 16384, K64 as u64, 1 << 20] {
                let world = World::new(move |op| {
                    let end = op.offset + op.wanted() as u64;
                    let bad_end = if to_the_end { u64::MAX } else { BAD + 4096 };
                    if end <= BAD || op.offset >= bad_end {
                        // The first one waits until all are there, so that those after it are joined.
                        return if op.offset == 0 { Fate::Hang } else { Fate::Whole };
                    }
                    match partial && op.offset < BAD {
                        true => Fate::Short((BAD - op.offset) as usize),
                        false => Fate::Fail(errno),
                    }
                });
                let (on_done, done) = listener();
                let (io_threads, world) =
                    world.start(config(1, 1, request_size as u32, OrderPolicy::Loose), on_done);
                let target = nothing("bad", 1, false);
                let pool = Pool::new(1 << 20);
                for i in 0..8 {
                    let buffer = pool.take(K64).unwrap();
                    io_threads.submit(transfer(i, &target, IoKind::Write, i * K64 as u64, buffer));
                    world.wait_for_issues(1);
                }
                world.release();
                for _ in 0..8 {
                    let done = done.recv_timeout(PATIENCE).unwrap();
                    let start = done.tag * K64 as u64;
                    let first = if partial {
                        BAD
                    } else {
                        start + (BAD - start.min(BAD)) / request_size * request_size
                    };
                    let wanted = match done.tag {
                        5 => (first - start, Some((errno, first))),
                        6.. if to_the_end => (0, Some((errno, start))),
                        _ => (K64 as u64, None),
                    };
                    assert_eq!((done.moved as u64, done.error), wanted, "{errno} {partial} {request_size}");
                }
                let joined = world.issued().iter().any(|event| event.parts == 7);
                assert_eq!(joined, request_size == 1 << 20);
            }
        }
    }
}

/// Goal: tries are bounded, and what never succeeds is an error in the end.
/// Method: engines that always answer the same; issues are counted.
#[test]
fn tries_are_bounded() {
    for (fate, kind, errno, tries) in [
        (Fate::Fail(Errno::INTR), IoKind::Read, Errno::INTR, request::INTERRUPTED_MAX),
        (Fate::Fail(Errno::AGAIN), IoKind::Read, Errno::AGAIN, request::AGAIN_MAX),
        (Fate::Short(0), IoKind::Write, Errno::IO, request::INTERRUPTED_MAX),
    ] {
        let (on_done, done) = listener();
        let (io_threads, world) =
            World::new(move |_| fate).start(config(1, 1, 65536, OrderPolicy::None), on_done);
        io_threads.submit(transfer(
            (),
            &nothing("never", 1, false),
            kind,
            0,
            Pool::new(1 << 20).take(100).unwrap(),
        ));
        let done = done.recv_timeout(PATIENCE).unwrap();
        assert_eq!((done.moved, done.error), (0, Some((errno, 0))));
        assert_eq!(world.issued().len(), tries as usize + 1);
    }
}

/// Goal: a target that refuses uncached requests is asked once, and every transfer that wanted it hears so.
/// Method: transfers one after another, to files of one target and one of another.
#[test]
fn a_refusal_is_remembered() {
    let world = World::new(|op| match op.uncached && op.file.target == IoTarget::Device(1) {
        true => Fate::Fail(Errno::OPNOTSUPP),
        false => Fate::Whole,
    });
    let (on_done, done) = listener();
    let (io_threads, world) = world.start(config(1, 1, 4096, OrderPolicy::None), on_done);
    let pool = Pool::new(1 << 20);
    for (target, refused) in [(1, true), (1, true), (2, false)] {
        let file = nothing("some", target, false);
        let buffer = pool.take(16384).unwrap();
        io_threads.submit(Transfer { uncached: true, ..transfer((), &file, IoKind::Read, 0, buffer) });
        let done = done.recv_timeout(PATIENCE).unwrap();
        assert_eq!((done.moved, done.refused_uncached), (16384, refused));
    }
    let asked = world.issued().iter().filter(|event| event.uncached && event.target == 1).count();
    assert_eq!(asked, 1);
}

/// Goal: a callback that panics costs its own transfer only.
/// Method: one I/O thread, and every second callback panics.
#[test]
fn a_panic_in_the_callback_is_survived() {
    let (send, done) = channel();
    let on_done: Post<TransferDone<u64>> = Arc::new(move |done| {
        assert!(done.tag % 2 == 0, "as planned");
        send.send(done.tag).unwrap();
    });
    let (io_threads, _) = World::new(|_| Fate::Whole).start(config(1, 2, 65536, OrderPolicy::None), on_done);
    let pool = Pool::new(1 << 20);
    for i in 0..6 {
        let buffer = pool.take(100).unwrap();
        io_threads.submit(transfer(i, &nothing("f", 1, false), IoKind::Read, 0, buffer));
    }
    for i in [0, 2, 4] {
        assert_eq!(done.recv_timeout(PATIENCE).unwrap(), i);
    }
}

/// Goal: dropped I/O threads begin nothing more, leak no buffer, and wait for nobody.
/// Method: a request that hangs and others behind it; then the I/O threads are dropped, and later it comes
/// back.
#[test]
fn dropped_threads_leave_nothing_behind() {
    let (on_done, done) = listener();
    let (io_threads, world) =
        World::new(|_| Fate::Hang).start(config(2, 1, 65536, OrderPolicy::None), on_done);
    let pool = Pool::new(1 << 20);
    for i in 0..5 {
        io_threads.submit(transfer(i, &nothing("f", 1, false), IoKind::Write, 0, pool.take(100).unwrap()));
    }
    world.wait_for_issues(1);
    drop(io_threads);
    assert_eq!(pool.in_use().0, K64 as u64, "what was not begun is back");
    world.release();
    let first = done.recv_timeout(PATIENCE).unwrap();
    assert_eq!((first.tag, first.moved), (0, 100));
    drop(first);
    assert!(done.recv_timeout(PATIENCE).is_err(), "the threads end");
    assert_eq!((pool.in_use().0, world.issued().len()), (0, 1));
}

/// Goal: a broken engine does not take work from the others; when all are broken, every transfer fails.
/// Method: one broken of two, then two of two.
#[test]
fn broken_engines_are_given_up() {
    for broken in [vec![0], vec![0, 1]] {
        for order in [OrderPolicy::None, OrderPolicy::Strict] {
            let mut world = World::new(|_| Fate::Whole);
            world.broken = broken.clone();
            let (on_done, done) = listener();
            let (io_threads, _world) = world.start(config(2, 2, 65536, order), on_done);
            wait_until(|| io_threads.facts().remarks.len() == broken.len());
            wait_until(|| io_threads.shared.lock().broken() == broken.len());
            let pool = Pool::new(1 << 20);
            for i in 0..10 {
                let buffer = pool.take(100).unwrap();
                io_threads.submit(transfer(
                    (),
                    &nothing("f", 1, false),
                    IoKind::Read,
                    i * K64 as u64,
                    buffer,
                ));
            }
            let wanted = |offset| match broken.len() {
                1 => (100, None),
                _ => (0, Some((Errno::IO, offset))),
            };
            for _ in 0..10 {
                let done = done.recv_timeout(PATIENCE).unwrap();
                assert_eq!((done.moved, done.error), wanted(done.offset));
            }
        }
    }
}

/// Goal: an engine that blocks where a request is handed over (as FUSE can have it) holds up its own I/O
/// thread: neither who submits nor the other I/O threads wait for it, in any order.
/// Method: one such request; then others, and questions, from a thread that would wait with them.
#[test]
fn a_blocked_engine_holds_up_nobody_else() {
    for order in [OrderPolicy::None, OrderPolicy::Loose] {
        let (on_done, done) = listener();
        let script = |op: &IoOp| if &*op.file.name == "bad" { Fate::Block } else { Fate::Whole };
        let (io_threads, world) = World::new(script).start(config(2, 2, 65536, order), on_done);
        let pool = Pool::new(4 << 20);
        io_threads.submit(transfer(99, &nothing("bad", 1, false), IoKind::Write, 0, pool.take(100).unwrap()));
        world.wait_for_issues(1);
        let (told, hears) = channel();
        let (given, asked) = (pool.clone(), io_threads);
        let asker = std::thread::spawn(move || {
            for i in 0..20 {
                let buffer = given.take(100).unwrap();
                asked.submit(transfer(i, &nothing("good", 2, false), IoKind::Write, i * K64 as u64, buffer));
                assert!(asked.stuck().is_empty());
            }
            told.send(asked).unwrap();
        });
        let free = hears.recv_timeout(PATIENCE);
        let went: Vec<u64> = match free.is_ok() {
            true => (0..20).map_while(|_| done.recv_timeout(PATIENCE).ok()).map(|done| done.tag).collect(),
            false => Vec::new(),
        };
        world.release();
        asker.join().unwrap();
        assert!(free.is_ok(), "{order:?}: who submits waited");
        assert_eq!(went.len(), 20, "{order:?}: the other I/O thread waited");
        assert_eq!(done.recv_timeout(PATIENCE).unwrap().tag, 99);
    }
}

/// Goal: an I/O thread that panics leaves nothing unanswered: what is told of nobody is dropped, in all I/O
/// threads, then and later.
/// Method: tags that tell when they are dropped; a panic in one of two I/O threads, by the name of a file.
#[test]
fn a_thread_that_panics_drops_what_it_owes() {
    struct Told(u64, std::sync::mpsc::Sender<u64>);
    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.1.send(self.0);
        }
    }
    let (on_done, done) = listener::<Told>();
    let (told, hears) = channel();
    let (io_threads, world) =
        World::new(|_| Fate::Hang).start(config(2, 1, 65536, OrderPolicy::None), on_done);
    let pool = Pool::new(1 << 20);
    let submit = |i: u64, name: &str| {
        let file = nothing(name, 1 + i, false);
        let tag = Told(i, told.clone());
        io_threads.submit(transfer(tag, &file, IoKind::Write, 0, pool.take(100).unwrap()));
    };
    submit(0, "hangs");
    world.wait_for_issues(1);
    submit(1, "panic~io_thread");
    let dropped = |count: usize| -> Vec<u64> {
        let mut all: Vec<u64> = (0..count).map(|_| hears.recv_timeout(PATIENCE).unwrap()).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(dropped(2), [0, 1]);
    submit(2, "late");
    assert_eq!(dropped(1), [2]);
    assert!(io_threads.facts().remarks.iter().any(|remark| remark.contains("panicked")));
    world.release();
    drop(io_threads);
    wait_until(|| pool.in_use().0 == 0);
    assert!(done.try_recv().is_err());
}
