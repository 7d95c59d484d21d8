//! Who waits for whom: hung requests, targets that rest, policies, wakes.

use super::*;

/// Goal: requests go to as many I/O threads as are asked for, fewer and more than at the start, and none is
/// lost.
/// Method: an engine that holds on to what it has, so that every I/O thread in use gets its share of the
/// depth.
#[test]
fn threads_come_and_go() {
    let (on_done, done) = listener();
    let (io_threads, world) =
        World::new(|_| Fate::Hang).start(config(2, 4, 4096, OrderPolicy::None), on_done);
    let (pool, target) = (Pool::new(16 << 20), nothing("a", 1, false));
    let submit = |range: std::ops::Range<u64>| {
        for i in range {
            let buffer = pool.take(4096).unwrap();
            io_threads.submit(transfer(i, &target, IoKind::Read, i * 8192, buffer));
        }
    };
    let by_thread = || {
        let issued = world.issued();
        [0, 1, 2, 3].map(|io_thread| issued.iter().filter(|event| event.io_thread == io_thread).count())
    };
    assert_eq!(io_threads.use_threads(1), 1);
    submit(0..4);
    world.wait_for_issues(4);
    assert_eq!(by_thread(), [4, 0, 0, 0]);
    assert_eq!((io_threads.use_threads(4), io_threads.count()), (4, 4));
    io_threads.set_depth(16);
    submit(4..16);
    world.wait_for_issues(16);
    assert_eq!(by_thread(), [4; 4]);
    assert_eq!((io_threads.use_threads(1), io_threads.use_threads(0), io_threads.count()), (1, 1, 4));
    world.release();
    submit(16..20);
    let mut told: Vec<u64> = (0..20).map(|_| done.recv_timeout(PATIENCE).unwrap().tag).collect();
    told.sort_unstable();
    assert_eq!(told, (0..20).collect::<Vec<_>>());
    assert_eq!(by_thread(), [8, 4, 4, 4]);
}

/// Goal: a request that hangs is named, the rest of its target and other targets go on, and when it comes
/// back its transfer is delivered.
/// Method: depth 1, so that the target's only slot is the one that hangs; every I/O thread count and policy
/// but serial for its own file.
#[test]
fn a_hung_request_stops_nobody_else() {
    for (io_threads, order) in [(1, OrderPolicy::None), (1, OrderPolicy::Strict), (2, OrderPolicy::Loose)] {
        let world = World::new(|op| match &*op.file.name == "hung" {
            true => Fate::Hang,
            false => Fate::Whole,
        });
        let (on_done, done) = listener();
        let config =
            IoThreadsConfig { deadline: Duration::from_millis(20), ..config(io_threads, 1, 65536, order) };
        let (io_threads, world) = world.start(config, on_done);
        let pool = Pool::new(1 << 20);
        let submit = |name: &str, target, offset| {
            let file = nothing(name, target, false);
            io_threads.submit(transfer(
                name.to_owned(),
                &file,
                IoKind::Read,
                offset,
                pool.take(K64).unwrap(),
            ));
        };
        submit("hung", 1, 3 * K64 as u64);
        world.wait_for_issues(1);
        for _ in 0..3 {
            submit("same", 1, 0);
            submit("other", 2, 0);
            submit("third", 3, 0);
        }
        for _ in 0..9 {
            assert_ne!(done.recv_timeout(PATIENCE).unwrap().tag, "hung");
        }
        let stuck = io_threads.stuck();
        assert_eq!(stuck.len(), 1);
        assert_eq!((stuck[0].what, &*stuck[0].name, stuck[0].offset), ("read", "hung", 3 * K64 as u64));
        assert!(stuck[0].since >= Duration::from_millis(20));
        world.release();
        let last = done.recv_timeout(PATIENCE).unwrap();
        assert_eq!((&*last.tag, last.moved, last.error), ("hung", K64, None));
        assert!(last.service >= Duration::from_millis(20));
        assert_eq!(io_threads.stuck(), []);
        let service: HashMap<IoTarget, ServiceStats> = io_threads.service().into_iter().collect();
        assert_eq!((service[&IoTarget::Device(1)].count, service[&IoTarget::Device(2)].count), (4, 3));
        assert!(service[&IoTarget::Device(1)].max >= Duration::from_millis(20));
    }
}

/// Goal: requests that hang are bounded; then their target rests, and others still go on.
/// Method: a target where everything hangs gets more than the bound.
#[test]
fn a_dead_target_rests() {
    let world = World::new(|op| match op.file.target {
        IoTarget::Device(1) => Fate::Hang,
        _ => Fate::Whole,
    });
    let (on_done, done) = listener();
    let config =
        IoThreadsConfig { deadline: Duration::from_millis(5), ..config(2, 2, 65536, OrderPolicy::None) };
    let bound = 2 * engine_depth(&config);
    let (io_threads, world) = world.start(config, on_done);
    let pool = Pool::new(64 << 20);
    let count = 100;
    for i in 0..count {
        let dead = nothing(&format!("dead-{i}"), 1, false);
        io_threads.submit(transfer(1, &dead, IoKind::Read, 0, pool.take(K64).unwrap()));
    }
    wait_until(|| io_threads.stuck().len() >= 2 * STUCK_PER_THREAD);
    for _ in 0..20 {
        io_threads.submit(transfer(2, &nothing("good", 2, false), IoKind::Read, 0, pool.take(K64).unwrap()));
        assert_eq!(done.recv_timeout(PATIENCE).unwrap().tag, 2);
    }
    let hanging = world.issued().iter().filter(|event| event.target == 1).count();
    assert!(hanging <= bound, "{hanging} hang, of at most {bound}");
    world.release();
    for _ in 0..count {
        assert_eq!(done.recv_timeout(PATIENCE).unwrap().tag, 1);
    }
}

/// Goal: what lies on targets that freeze holds up itself, and nothing else of the same file, long before any
/// deadline.
/// Method: a file in stripes over eight targets of which three hang, more objects for each than all depths
/// together.
#[test]
fn frozen_parts_of_a_file_hold_up_themselves() {
    const TARGETS: u64 = 8;
    let target_of = |offset: u64| offset / K64 as u64 % TARGETS;
    let world = World::new(move |op| if target_of(op.offset) < 3 { Fate::Hang } else { Fate::Whole });
    let (on_done, done) = listener();
    let deadline = Duration::from_secs(3600);
    let config = IoThreadsConfig { deadline, ..config(2, 2, K64 as u32, OrderPolicy::None) };
    let (io_threads, world) = world.start(config, on_done);
    let (pool, file) = (Pool::new(64 << 20), nothing("striped", 1, false));
    let count = TARGETS * 40;
    for i in 0..count {
        let (offset, buffer) = (i * K64 as u64, pool.take(K64).unwrap());
        let target = IoTarget::Device(target_of(offset));
        io_threads.submit(Transfer { target, ..transfer(target, &file, IoKind::Read, offset, buffer) });
    }
    for _ in 0..count / TARGETS * (TARGETS - 3) {
        assert!(done.recv_timeout(PATIENCE).unwrap().tag >= IoTarget::Device(3));
    }
    assert!(io_threads.stuck().is_empty());
    world.release();
    for _ in 0..count / TARGETS * 3 {
        assert!(done.recv_timeout(PATIENCE).unwrap().tag < IoTarget::Device(3));
    }
}

/// Goal: each ordering policy is what the papers define, at the engine: strict deals a file's offsets
/// round-robin and each I/O thread ascends; under serial nothing of a file is in flight when its next starts;
/// loose issues in order. And no target has more than the depth in flight, nor all more than twice that.
/// Method: seeded I/O threads and depths, transfers in order to three files on two targets; engines record
/// issue and completion, and complete in any order.
#[test]
fn policies_hold_at_the_engines() {
    let mut rng = fastrand::Rng::with_seed(5);
    for round in 0..40 {
        let order = OrderPolicy::ALL[round % 4];
        let (thread_count, depth) = (rng.usize(1..6), rng.usize(1..9));
        let mut world = World::new(|_| Fate::Whole);
        world.dawdle = true;
        let (on_done, done) = listener();
        let (io_threads, world) = world.start(config(thread_count, depth, 65536, order), on_done);
        let files = [nothing("a", 1, false), nothing("b", 1, true), nothing("c", 2, false)];
        let pool = Pool::new(64 << 20);
        let count = 20;
        for i in 0..count {
            for file in &files {
                let buffer = pool.take(2 * K64).unwrap();
                io_threads.submit(transfer((), file, IoKind::Write, (i * 2 * K64) as u64, buffer));
            }
        }
        for _ in 0..3 * count {
            assert_eq!(done.recv_timeout(PATIENCE).unwrap().moved, 2 * K64);
        }
        let trace = world.trace.lock().unwrap().clone();
        let mut flying: HashMap<(usize, u64), Event> = HashMap::new();
        for event in &trace {
            if !event.issued {
                assert!(flying.remove(&(event.io_thread, event.key)).is_some());
                continue;
            }
            let of_file = flying.values().filter(|other| other.file == event.file).count();
            assert!(order != OrderPolicy::Serial || of_file == 0, "serial");
            assert!(event.file != "b" || of_file == 0, "one writer");
            flying.insert((event.io_thread, event.key), event.clone());
            let at_target = flying.values().filter(|other| other.target == event.target).count();
            assert!(at_target <= depth && flying.len() <= 2 * depth, "{at_target} at a depth of {depth}");
        }
        for (i, file) in files.iter().enumerate() {
            let issued: Vec<Event> =
                trace.iter().filter(|e| e.issued && *e.file == *file.name).cloned().collect();
            assert_eq!(issued.len(), 2 * count);
            let ascends = |events: &[Event]| events.is_sorted_by_key(|event| event.offset);
            match order {
                OrderPolicy::Strict => {
                    for io_thread in 0..thread_count {
                        let own: Vec<Event> =
                            issued.iter().filter(|e| e.io_thread == io_thread).cloned().collect();
                        assert!(ascends(&own));
                        for event in own {
                            assert_eq!((event.offset as usize / K64 + i) % thread_count, io_thread);
                        }
                    }
                }
                OrderPolicy::Serial | OrderPolicy::Loose => assert!(ascends(&issued), "{order}"),
                OrderPolicy::None => {}
            }
        }
    }
}

/// Goal: a file with one writer has one write in flight, and does not hold up other files.
/// Method: its first write hangs; reads of it and writes to another file complete meanwhile.
#[test]
fn one_writer_holds_up_its_file_alone() {
    let world = World::new(|op| match &*op.file.name == "one" && op.kind == IoKind::Write {
        true => Fate::Hang,
        false => Fate::Whole,
    });
    let (on_done, done) = listener();
    let (io_threads, world) = world.start(config(3, 8, 65536, OrderPolicy::None), on_done);
    let (one, many) = (nothing("one", 1, true), nothing("many", 1, false));
    let pool = Pool::new(64 << 20);
    for i in 0..5 {
        for (tag, file, kind) in
            [("held", &one, IoKind::Write), ("read", &one, IoKind::Read), ("many", &many, IoKind::Write)]
        {
            io_threads.submit(transfer(tag, file, kind, i * K64 as u64, pool.take(K64).unwrap()));
        }
    }
    for _ in 0..10 {
        assert_ne!(done.recv_timeout(PATIENCE).unwrap().tag, "held");
    }
    let writes = |event: &&Event| event.file == "one" && event.kind == IoKind::Write;
    assert_eq!(world.issued().iter().filter(writes).count(), 1);
    world.release();
    for _ in 0..5 {
        assert_eq!(done.recv_timeout(PATIENCE).unwrap().tag, "held");
    }
}

/// Goal: sleeping I/O threads are woken once for each request that can start, none for what cannot.
/// Method: engines that hang and count; the number of wakes is held against the number of requests.
#[test]
fn a_wake_for_each_request_that_starts() {
    let (on_done, done) = listener();
    let (io_threads, world) =
        World::new(|_| Fate::Hang).start(config(8, 6, 65536, OrderPolicy::None), on_done);
    let asleep = || io_threads.shared.lock().asleep() == 8;
    let pool = Pool::new(64 << 20);
    let file = nothing("f", 1, false);
    wait_until(asleep);
    assert_eq!(world.wakes.load(Ordering::Relaxed), 0);
    io_threads.submit(transfer((), &file, IoKind::Read, 0, pool.take(K64).unwrap()));
    world.wait_for_issues(1);
    wait_until(asleep);
    assert_eq!(world.wakes.load(Ordering::Relaxed), 1);
    io_threads.submit(transfer((), &file, IoKind::Read, 1 << 30, pool.take(4 * K64).unwrap()));
    world.wait_for_issues(5);
    wait_until(asleep);
    assert_eq!(world.wakes.load(Ordering::Relaxed), 5);
    // One slot is left.
    io_threads.submit(transfer((), &file, IoKind::Read, 2 << 30, pool.take(9 * K64).unwrap()));
    world.wait_for_issues(6);
    wait_until(asleep);
    assert_eq!((world.issued().len(), world.wakes.load(Ordering::Relaxed)), (6, 6));
    let threads_used: std::collections::HashSet<usize> =
        world.issued().iter().map(|event| event.io_thread).collect();
    assert_eq!(threads_used.len(), 6, "a share of one each");
    world.release();
    for _ in 0..3 {
        done.recv_timeout(PATIENCE).unwrap();
    }
}

/// Goal: no wake is lost.
/// Method: engines that sleep until they are woken, whatever their time; transfers one at a time and in
/// bursts.
#[test]
fn no_wake_is_lost() {
    for order in OrderPolicy::ALL {
        let mut world = World::new(|_| Fate::Whole);
        world.deaf = true;
        let (on_done, done) = listener();
        let (io_threads, _world) = world.start(config(4, 3, 65536, order), on_done);
        let pool = Pool::new(64 << 20);
        let mut rng = fastrand::Rng::with_seed(9);
        for _ in 0..2000 {
            let burst = if rng.bool() { 1 } else { rng.u64(1..10) };
            for i in 0..burst {
                let file = nothing("f", rng.u64(0..3), rng.bool());
                io_threads.submit(transfer(
                    (),
                    &file,
                    IoKind::Write,
                    i * K64 as u64,
                    pool.take(K64).unwrap(),
                ));
            }
            for _ in 0..burst {
                done.recv_timeout(PATIENCE).unwrap();
            }
        }
    }
}

/// Goal: an I/O thread's time is idle while it has nothing, and busy while it has.
/// Method: a request that hangs for as long as it takes until the meter moved.
#[test]
fn time_is_counted() {
    let world = Arc::new(World::new(|_| Fate::Hang));
    let (made, meter) = (world.clone(), Arc::new(Meter::default()));
    let (on_done, done) = listener();
    let make = move || -> std::io::Result<Box<dyn Engine>> { Ok(Box::new(Scripted::new(made.clone()))) };
    let config = config(1, 1, 65536, OrderPolicy::None);
    let io_threads = IoThreads::start_with(config, meter.clone(), on_done, make).unwrap();
    let read = || meter.read()[Stage::SourceStorage as usize];
    wait_until(|| read().starved > 0);
    assert_eq!(read().busy, 0);
    let buffer = Pool::new(1 << 20).take(100).unwrap();
    io_threads.submit(transfer((), &nothing("f", 1, false), IoKind::Read, 0, buffer));
    world.wait_for_issues(1);
    wait_until(|| read().busy > 0);
    world.release();
    done.recv_timeout(PATIENCE).unwrap();
}
