use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::atomic::AtomicUsize;
use std::thread::yield_now;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::*;

/// Longer than any test may take: nothing is stuck.
const NEVER: Duration = Duration::from_secs(600);
/// Something that hangs is stuck soon.
const SOON: Duration = Duration::from_millis(20);
/// For what must come; a test that waits so long has failed.
const LONG: Duration = Duration::from_secs(60);

type Job = Box<dyn FnOnce(&Turn<Job2>) + Send>;
/// A job of its own kind, for a closure cannot name the type of its turn.
struct Job2(Job);

fn config(threads: usize, threads_max: usize, deadline: Duration) -> BlockingPoolConfig {
    let nothing: Post<Duration> = Arc::new(|_| {});
    let (on_busy, on_idle) = (nothing.clone(), nothing);
    BlockingPoolConfig { name: "test-pool", threads, threads_max, deadline, on_busy, on_idle }
}

fn pool(threads: usize, threads_max: usize, deadline: Duration) -> BlockingPool<Job2> {
    BlockingPool::start(config(threads, threads_max, deadline), || (), |(), turn, job: Job2| (job.0)(turn))
        .unwrap()
}

fn doing(name: &str) -> impl Fn() -> Doing + Send + Sync + 'static {
    let name = name.to_string();
    move || Doing { what: "sync", name: name.clone(), offset: 0 }
}

fn submit(pool: &BlockingPool<Job2>, target: u64, job: impl FnOnce(&Turn<Job2>) + Send + 'static) {
    pool.submit(IoTarget::Device(target), doing(&format!("file on {target}")), Job2(Box::new(job)));
}

/// A job that says that it began, then hangs until `gate` is closed.
fn hang(began: &Sender<()>, gate: &Receiver<()>) -> impl FnOnce(&Turn<Job2>) + Send + 'static {
    let (began, gate) = (began.clone(), gate.clone());
    move |_| {
        let _ = began.send(());
        let _ = gate.recv();
    }
}

fn until(mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < LONG, "it never came");
        yield_now();
    }
}

/// Goal: a target of which nothing returns stops no other, and is named.
/// Method: 20 jobs that hang at one target of a blocking pool of two, then 50 at another.
#[test]
fn a_stuck_target_does_not_stop_another() {
    let pool = pool(2, 8, SOON);
    let (gate, closed) = unbounded::<()>();
    let ((began, begins), (done, dones)) = (unbounded(), unbounded());
    for _ in 0..20 {
        submit(&pool, 1, hang(&began, &closed));
    }
    begins.recv_timeout(LONG).unwrap();
    until(|| pool.stuck().len() >= 4);
    let stuck = pool.stuck();
    assert_eq!((stuck[0].what, stuck[0].name.as_str()), ("sync", "file on 1"));
    assert!(stuck[0].since >= stuck[3].since && stuck[3].since >= SOON);
    for i in 0..50 {
        let done = done.clone();
        submit(&pool, 2, move |_| done.send(i).unwrap());
    }
    let ended: HashSet<i32> = (0..50).map(|_| dones.recv_timeout(LONG).unwrap()).collect();
    assert_eq!(ended.len(), 50);
    // It rests when the pool's spare threads are gone.
    assert!(pool.stuck().len() <= 6 && pool.threads() <= 8);
    drop(gate);
    assert!(pool.finish(LONG));
    assert_eq!(begins.len(), 19, "the others had their turn when it came back");
}

/// Goal: a blocking pool that is made larger begins more at a target at once, and one that is made smaller no
/// more than that; nothing that was begun is given up, and the bound of stuck threads holds.
/// Method: jobs that hang, as many as may begin with one thread, with five, then with two.
#[test]
fn a_pool_changes_its_size() {
    let pool = pool(1, 4, NEVER);
    let (gate, closed) = unbounded::<()>();
    let (began, begins) = unbounded();
    (0..20).for_each(|_| submit(&pool, 1, hang(&began, &closed)));
    begins.recv_timeout(LONG).unwrap();
    assert!(!pool.shared.lock().may_begin());
    pool.set_threads(5);
    (0..4).for_each(|_| begins.recv_timeout(LONG).unwrap());
    assert!(!pool.shared.lock().may_begin());
    assert_eq!(begins.len(), 0);
    pool.set_threads(2);
    (0..3).for_each(|_| gate.send(()).unwrap());
    until(|| pool.shared.lock().slots.in_flight() == 2);
    assert_eq!((begins.len(), pool.shared.lock().may_begin()), (0, false));
    gate.send(()).unwrap();
    begins.recv_timeout(LONG).unwrap();
    assert_eq!(pool.shared.lock().slots.in_flight(), 2);
    assert!(pool.threads() <= with_spare(5));
    pool.set_threads(usize::MAX);
    assert!(pool.shared.lock().threads_max <= THREADS_MAX);
    drop(gate);
    assert!(pool.finish(LONG));
}

/// Goal: a target never has more than its threads, and all together never more than twice as many.
/// Method: jobs that hang at three targets until nothing more may begin, then 3,000 short ones, each of which
/// counts who is at work beside it.
#[test]
fn caps_hold() {
    const THREADS: usize = 3;
    let pool = pool(THREADS, 20, NEVER);
    let (gate, closed) = unbounded::<()>();
    let (began, begins) = unbounded();
    for i in 0..30 {
        submit(&pool, i % 3, hang(&began, &closed));
    }
    for _ in 0..2 * THREADS {
        begins.recv_timeout(LONG).unwrap();
    }
    assert!(!pool.shared.lock().may_begin());
    assert_eq!((pool.threads(), begins.len()), (2 * THREADS, 0));
    let at_work: Arc<[AtomicUsize; 3]> = Arc::default();
    let over = Arc::new(AtomicUsize::new(0));
    for i in 0..3000 {
        let (at_work, over) = (at_work.clone(), over.clone());
        submit(&pool, i % 3, move |_| {
            let here = at_work[i as usize % 3].fetch_add(1, Ordering::SeqCst) + 1;
            let all: usize = at_work.iter().map(|count| count.load(Ordering::SeqCst)).sum();
            if here > THREADS || all > 2 * THREADS {
                over.fetch_add(1, Ordering::SeqCst);
            }
            yield_now();
            at_work[i as usize % 3].fetch_sub(1, Ordering::SeqCst);
        });
    }
    drop(gate);
    assert!(pool.finish(LONG));
    assert_eq!(over.load(Ordering::SeqCst), 0);
}

/// Goal: threads come when they are needed, one for each job that can begin, and no more than a target may
/// have.
/// Method: jobs that hang, one after another.
#[test]
fn threads_start_lazily() {
    let pool = pool(4, 100, NEVER);
    let (gate, closed) = unbounded::<()>();
    let (began, begins) = unbounded();
    assert_eq!(pool.threads(), 1);
    for count in 1..=4 {
        submit(&pool, 1, hang(&began, &closed));
        begins.recv_timeout(LONG).unwrap();
        assert_eq!(pool.threads(), count);
    }
    for _ in 0..10 {
        submit(&pool, 1, hang(&began, &closed));
    }
    assert_eq!(pool.threads(), 4);
    submit(&pool, 2, hang(&began, &closed));
    begins.recv_timeout(LONG).unwrap();
    assert_eq!(pool.threads(), 5);
    drop(gate);
    assert!(pool.finish(LONG));
}

/// Goal: a job that hangs loses its place to a further thread though nobody asks, and ends with its thread.
/// Method: a blocking pool of one, a job that hangs, and one behind it.
#[test]
fn a_further_thread_comes_and_goes() {
    let pool = pool(1, 4, SOON);
    let (gate, closed) = unbounded::<()>();
    let ((began, _begins), (done, dones)) = (unbounded(), unbounded());
    submit(&pool, 1, hang(&began, &closed));
    submit(&pool, 1, move |_| done.send(()).unwrap());
    dones.recv_timeout(LONG).unwrap();
    assert_eq!((pool.threads(), pool.stuck().len()), (2, 1));
    drop(gate);
    until(|| pool.threads() == 1 && pool.stuck().is_empty());
    assert!(pool.finish(LONG));
}

/// Goal: threads in all stay below their bound, whatever hangs.
/// Method: jobs that hang at ten targets of a blocking pool of two with room for seven.
#[test]
fn threads_are_bounded() {
    let pool = pool(2, 7, SOON);
    let (gate, closed) = unbounded::<()>();
    let (began, begins) = unbounded();
    for i in 0..100 {
        submit(&pool, i % 10, hang(&began, &closed));
    }
    for _ in 0..7 {
        begins.recv_timeout(LONG).unwrap();
    }
    until(|| pool.stuck().len() == 7);
    assert_eq!(pool.threads(), 7);
    assert!(begins.is_empty());
    assert!(pool.hangs() && !pool.finish(Duration::ZERO));
    drop(gate);
    assert!(pool.finish(LONG));
    assert!(!pool.hangs());
}

/// Goal: a panic in a job costs that job alone, and the next one gets a state that is whole.
/// Method: every second job panics; each writes down how often its thread's state was made.
#[test]
fn a_panic_does_not_end_the_pool() {
    let (made, (done, dones)) = (Arc::new(AtomicUsize::new(0)), unbounded());
    let make = {
        let made = made.clone();
        move || made.fetch_add(1, Ordering::SeqCst)
    };
    let pool = BlockingPool::start(config(1, 2, NEVER), make, move |own, _, job: u32| {
        if job % 2 == 1 {
            std::panic::panic_any("meant");
        }
        done.send((job, *own)).unwrap();
    });
    let pool = pool.unwrap();
    for job in 0..6 {
        pool.submit(IoTarget::Device(1), doing("x"), job);
    }
    assert!(pool.finish(LONG));
    drop(pool);
    assert_eq!(dones.iter().collect::<Vec<_>>(), [(0, 0), (2, 1), (4, 2)]);
}

/// Goal: dropping the pool waits for nothing: not for what hangs, nor for what waits, which is dropped.
/// Method: a job that hangs, one behind it that holds something; the hung one then sees that it may end.
#[test]
fn drop_waits_for_nothing() {
    let pool = pool(1, 2, NEVER);
    let (gate, closed) = unbounded::<()>();
    let ((began, begins), (ended, ends)) = (unbounded(), unbounded());
    submit(&pool, 1, move |turn| {
        assert!(!turn.stopped());
        began.send(()).unwrap();
        let _ = closed.recv();
        ended.send(turn.stopped()).unwrap();
    });
    begins.recv_timeout(LONG).unwrap();
    let held = Arc::new(());
    let waiting = held.clone();
    submit(&pool, 1, move |_| panic!("it must not run: {waiting:?}"));
    drop(pool);
    assert_eq!(Arc::strong_count(&held), 1);
    drop(gate);
    assert!(ends.recv_timeout(LONG).unwrap());
}

/// Goal: finishing does all that waits, and gives up in time where something hangs.
#[test]
fn finish_is_patient_but_not_for_ever() {
    let done = Arc::new(AtomicUsize::new(0));
    let count = |done: &Arc<AtomicUsize>| {
        let done = done.clone();
        move |_: &Turn<Job2>| {
            done.fetch_add(1, Ordering::SeqCst);
        }
    };
    let all = pool(2, 4, NEVER);
    for i in 0..100 {
        submit(&all, i % 2, count(&done));
    }
    assert!(all.finish(LONG));
    assert_eq!(done.load(Ordering::SeqCst), 100);

    let hung = pool(1, 2, NEVER);
    let (_gate, closed) = unbounded::<()>();
    let (began, begins) = unbounded();
    submit(&hung, 1, hang(&began, &closed));
    begins.recv_timeout(LONG).unwrap();
    assert!(!hung.finish(Duration::from_millis(1)));
    assert!(!hung.hangs(), "its deadline is far");
}

/// Goal: idle threads help with a shared job, and its results come in order.
/// Method: three items that meet at a barrier, which one thread alone would wait at for ever; then many.
#[test]
fn idle_threads_help() {
    let pool = pool(3, 6, NEVER);
    let (done, dones) = unbounded();
    let tell = done.clone();
    submit(&pool, 1, move |turn| {
        let barrier = Barrier::new(3);
        let label = |item: &i32| Doing { what: "sync", name: item.to_string(), offset: 0 };
        let results = turn.share(Arc::new(vec![0, 1, 2]), label, move |item| {
            barrier.wait();
            *item
        });
        tell.send(results).unwrap();
    });
    assert_eq!(dones.recv_timeout(LONG).unwrap(), [Some(0), Some(1), Some(2)]);
    let tell = done.clone();
    submit(&pool, 1, move |turn| {
        let label = |item: &i32| Doing { what: "sync", name: item.to_string(), offset: 0 };
        let items: Vec<i32> = (0..5000).collect();
        let square = |item: &i32| if item % 1000 == 7 { panic!("meant") } else { item * 2 };
        tell.send(turn.share(Arc::new(items), label, square)).unwrap();
    });
    let results = dones.recv_timeout(LONG).unwrap();
    for (i, result) in results.iter().enumerate() {
        assert_eq!(*result, (i % 1000 != 7).then_some(2 * i as i32));
    }
    let tell = done;
    submit(&pool, 1, move |turn| {
        let label = |_: &i32| Doing { what: "sync", name: String::new(), offset: 0 };
        tell.send(turn.share(Arc::new(Vec::new()), label, |item| *item)).unwrap();
    });
    assert!(dones.recv_timeout(LONG).unwrap().is_empty());
    assert!(pool.finish(LONG));
}

/// Goal: items that follow each other are done in their order, each behind the one before it, while others
/// are done by threads that help.
/// Method: two runs, of which the first item of each meets that of the other at a barrier; what is at work in
/// a run at a time is counted.
#[test]
fn runs_stay_in_order() {
    let pool = pool(3, 6, NEVER);
    let (done, dones) = unbounded();
    submit(&pool, 1, move |turn| {
        let (barrier, busy) = (Barrier::new(2), [AtomicUsize::new(0), AtomicUsize::new(0)]);
        let order = Arc::new(Mutex::new(Vec::new()));
        let told = order.clone();
        let label =
            |item: &(usize, usize)| Doing { what: "publish", name: String::new(), offset: item.1 as u64 };
        let items: Vec<(usize, usize)> = (0..2).flat_map(|run| (0..500).map(move |i| (run, i))).collect();
        let results = turn.share_runs(
            Arc::new(items),
            |one, next| one.0 == next.0,
            label,
            move |&(run, i), _| {
                if i == 0 {
                    barrier.wait();
                }
                let beside = busy[run].fetch_add(1, Ordering::SeqCst);
                lock(&told).push((run, i));
                if i == 100 {
                    panic!("meant");
                }
                busy[run].fetch_sub(1, Ordering::SeqCst);
                beside
            },
        );
        let order = std::mem::take(&mut *lock(&order));
        done.send((results, order)).unwrap();
    });
    let (results, order) = dones.recv_timeout(LONG).unwrap();
    for run in 0..2 {
        let of_run: Vec<usize> = order.iter().filter(|(of, _)| *of == run).map(|(_, i)| *i).collect();
        assert!(of_run.iter().copied().eq(0..500), "{run}: {of_run:?}");
    }
    for (i, result) in results.iter().enumerate() {
        // The one that panicked has not counted itself out.
        let beside = usize::from(i % 500 > 100);
        assert_eq!(*result, (i % 500 != 100).then_some(beside), "{i}");
    }
    assert!(pool.finish(LONG));
}

/// Goal: behind an item that hangs the others of its run are done all the same, by whom the pool calls then,
/// also where that one meets the next item that hangs; what hung is not begun again.
#[test]
fn a_run_goes_on_behind_what_hangs() {
    let pool = pool(4, 16, Duration::from_millis(20));
    let (done, dones) = unbounded();
    let (gate, closed) = unbounded::<()>();
    let (told, tells) = unbounded();
    submit(&pool, 1, move |turn| {
        let label = |item: &usize| Doing { what: "publish", name: String::new(), offset: *item as u64 };
        let work = move |item: &usize, _: &Turn<Job2>| {
            if [3, 7].contains(item) {
                let _ = closed.recv();
            }
            told.send(*item).unwrap();
        };
        done.send(turn.share_runs(Arc::new((0..20).collect()), |_, _| true, label, work)).unwrap();
    });
    let mut others: Vec<usize> = (0..18).map(|_| tells.recv_timeout(LONG).unwrap()).collect();
    others.sort_unstable();
    assert!(others.iter().copied().eq((0..20).filter(|item| ![3, 7].contains(item))), "{others:?}");
    assert!(dones.is_empty());
    drop(gate);
    let results = dones.recv_timeout(LONG).unwrap();
    assert!(results.len() == 20 && results.iter().all(Option::is_some));
    assert_eq!(tells.iter().count(), 2);
    assert!(pool.finish(LONG));
}

/// Goal: a shared job ends though nobody is free to help, and nobody can be had for a job that is over.
/// Method: a blocking pool of one; a blocking pool of two whose other thread hangs.
#[test]
fn a_shared_job_needs_no_help() {
    for hung in [0, 1] {
        let pool = pool(1 + hung, 4, NEVER);
        let (gate, closed) = unbounded::<()>();
        let ((began, begins), (done, dones)) = (unbounded(), unbounded());
        for _ in 0..hung {
            submit(&pool, 1, hang(&began, &closed));
            begins.recv_timeout(LONG).unwrap();
        }
        for _ in 0..10 {
            let done = done.clone();
            submit(&pool, 1, move |turn| {
                let label = |_: &usize| Doing { what: "sync", name: String::new(), offset: 0 };
                let results = turn.share(Arc::new((0..100).collect()), label, |item| *item);
                done.send(results.into_iter().flatten().sum::<usize>()).unwrap();
            });
        }
        for _ in 0..10 {
            assert_eq!(dones.recv_timeout(LONG).unwrap(), 4950);
        }
        assert!(pool.shared.lock().shares.is_empty());
        drop(gate);
        assert!(pool.finish(LONG));
    }
}

/// Goal: the item that hangs is the one that is named, not the job that it belongs to.
/// Method: one of four items hangs, the others end.
#[test]
fn a_stuck_item_has_its_name() {
    let pool = pool(2, 8, SOON);
    let (gate, closed) = unbounded::<()>();
    let (done, dones) = unbounded();
    submit(&pool, 1, move |turn| {
        let label = |item: &u64| Doing { what: "sync", name: format!("item {item}"), offset: *item };
        let results = turn.share(Arc::new(vec![1, 2, 3, 4]), label, move |item| {
            if *item == 3 {
                let _ = closed.recv();
            }
        });
        done.send(results.len()).unwrap();
    });
    until(|| pool.stuck().iter().any(|stuck| (stuck.name.as_str(), stuck.offset) == ("item 3", 3)));
    drop(gate);
    assert_eq!(dones.recv_timeout(LONG).unwrap(), 4);
    assert!(pool.finish(LONG));
}

/// Goal: a job that makes progress again is not stuck, and is named by its step.
/// Method: it waits until it is, steps, and looks.
#[test]
fn a_step_counts_the_deadline_anew() {
    let pool = pool(1, 8, SOON);
    let (done, dones) = unbounded();
    submit(&pool, 1, move |turn| {
        let stuck = || turn.shared.lock().slots.stuck().count();
        let mut track = turn.track(|step| Doing { what: "sync", name: format!("step {step}"), offset: 0 });
        until(|| stuck() == 1);
        // Once more if the processor was taken away from between the two.
        let revived = (0..1000).any(|_| {
            track.at(2);
            stuck() == 0
        });
        until(|| stuck() == 1);
        done.send(revived).unwrap();
        until(|| turn.stopped());
    });
    assert!(dones.recv_timeout(LONG).unwrap());
    assert_eq!(pool.stuck()[0].name, "step 2");
}

/// Goal: the hooks hear of work and of waiting.
/// Method: a blocking pool that has nothing to do, then one job.
#[test]
fn time_is_told() {
    let ((busy, busies), (idle, idles)) = (unbounded(), unbounded());
    let on_busy: Post<Duration> = Arc::new(move |time| busy.send(time).unwrap());
    let on_idle: Post<Duration> = Arc::new(move |time| {
        let _ = idle.send(time);
    });
    let config = BlockingPoolConfig { on_busy, on_idle, ..config(1, 2, NEVER) };
    let pool = BlockingPool::start(config, || (), |(), _, (): ()| {}).unwrap();
    assert!(idles.recv_timeout(LONG).unwrap() > Duration::ZERO, "while it waits, not after it");
    assert!(busies.is_empty());
    pool.submit(IoTarget::Device(1), doing("x"), ());
    busies.recv_timeout(LONG).unwrap();
    assert!(pool.finish(LONG));
    assert_eq!(busies.len(), 0);
}

/// Goal: items that hang hold no other of their job, though they are as many as the threads.
/// Method: a job of 200 items, the first four of which hang, in a blocking pool of two with room for more.
#[test]
fn items_that_hang_hold_no_other() {
    let pool = pool(2, 10, SOON);
    let (gate, closed) = unbounded::<()>();
    let ((ended, ends), (done, dones)) = (unbounded(), unbounded());
    submit(&pool, 1, move |turn| {
        let label = |item: &u64| Doing { what: "sync", name: format!("item {item}"), offset: 0 };
        let results = turn.share(Arc::new((0..200).collect()), label, move |item: &u64| {
            if *item < 4 {
                let _ = closed.recv();
            }
            let _ = ended.send(*item);
        });
        done.send(results.len()).unwrap();
    });
    let others: HashSet<u64> = (4..200).map(|_| ends.recv_timeout(LONG).unwrap()).collect();
    assert!(others.len() == 196 && others.iter().all(|item| *item >= 4));
    assert!(dones.is_empty());
    drop(gate);
    assert_eq!(dones.recv_timeout(LONG).unwrap(), 200);
    assert!(pool.finish(LONG));
}
