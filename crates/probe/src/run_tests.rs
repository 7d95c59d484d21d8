use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use super::*;
use crate::{Only, Request, plan};
use haul_storage::io::fault::{Faulty, Hung, What, When};
use haul_storage::io::{EngineFacts, Full, IoDone, IoKind, IoOp, Waker};
use haul_storage::options::EngineName;

fn names(dir: &Path) -> Vec<String> {
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn small(dir: &Path) -> Request {
    Request {
        size: Some(16 << 20),
        time_limit: Duration::from_secs(10),
        bytes_limit: 96 << 20,
        ..Request::new(dir)
    }
}

/// Goal: a real probe keeps its limits of bytes, tells what it does, finds a best setting for both directions
/// that is among its points, and leaves nothing behind, with every engine.
#[test]
fn a_probe_keeps_its_word() {
    for engine in [EngineName::Uring, EngineName::Pread] {
        let dir = tempfile::tempdir().unwrap();
        let plan = plan(&Request { engine, ..small(dir.path()) }).unwrap();
        assert_eq!((plan.size, plan.bytes_max), (16 << 20, 96 << 20));
        let (points, most, names_seen) = (Cell::new(0), Cell::new(0), RefCell::new(Vec::new()));
        let observer = |event| match event {
            ProbeEvent::Started { size, .. } => {
                assert_eq!(size, plan.size);
                names_seen.borrow_mut().extend(names(dir.path()));
            }
            ProbeEvent::Point(_) => points.set(points.get() + 1),
            ProbeEvent::Progress(progress) => most.set(most.get().max(progress.bytes)),
        };
        let probe = run(&plan, &observer, &Handle::new()).unwrap();
        assert!(names(dir.path()).is_empty() && names_seen.into_inner().is_empty(), "the file has no name");
        let bytes = probe.bytes_read + probe.bytes_written;
        assert!(bytes <= plan.bytes_max && most.get() <= bytes, "{bytes}");
        assert!(probe.bytes_written >= probe.size && probe.size <= plan.size);
        assert!(points.get() >= probe.points.len() && !probe.points.is_empty());
        for (direction, best) in [(Direction::Read, probe.read_best), (Direction::Write, probe.write_best)] {
            let best = best.expect("both directions were measured");
            assert!(best.rate > 0.0);
            let is_best =
                |point: &&crate::Point| point.direction == direction && point.setting == best.setting;
            assert_eq!(probe.points.iter().find(is_best).unwrap().rate, best.rate);
        }
        for point in &probe.points {
            assert!(point.service_median <= point.service_p99 && point.bytes > 0 && point.rate > 0.0);
        }
    }
}

/// Goal: settings that were asked for, and only these, are measured.
#[test]
fn a_probe_can_be_narrowed() {
    let dir = tempfile::tempdir().unwrap();
    let only = Only {
        request_sizes: vec![1 << 20],
        depths: vec![2],
        orders: vec![Order::Strict, Order::Loose],
        io: vec![Io::Buffered],
        patterns: vec![Pattern::Sequential, Pattern::Random],
    };
    let request =
        Request { only, bytes_limit: 1 << 30, directions: vec![Direction::Read], ..small(dir.path()) };
    let probe = run(&plan(&request).unwrap(), &|_| (), &Handle::new()).unwrap();
    let mut seen: Vec<(Pattern, Setting)> = probe.points.iter().map(|p| (p.pattern, p.setting)).collect();
    seen.sort();
    let setting = |order| Setting { request_size: 1 << 20, depth: 2, order, io: Io::Buffered };
    let mut expected: Vec<(Pattern, Setting)> = [Order::Strict, Order::Loose]
        .iter()
        .flat_map(|order| [(Pattern::Sequential, setting(*order)), (Pattern::Random, setting(*order))])
        .collect();
    expected.sort();
    assert!(seen.iter().all(|key| expected.contains(key)) && seen.contains(&expected[0]), "{seen:?}");
    assert_eq!(probe.write_best, None);
}

/// Goal: a stop ends the probe at once, wherever it is, and nothing stays.
/// Method: stops at the start, while it fills, and at the n-th point.
#[test]
fn a_stop_cleans_up() {
    for at in 0..6 {
        let dir = tempfile::tempdir().unwrap();
        let (stop, seen) = (Handle::new(), Cell::new(0));
        let observer = |event| {
            let counts = matches!(event, ProbeEvent::Point(_)) || (at < 2 && seen.get() < 2);
            seen.set(seen.get() + usize::from(counts));
            if seen.get() > at {
                stop.stop();
            }
        };
        let result = run(&plan(&small(dir.path())).unwrap(), &observer, &stop);
        assert!(matches!(result, Err(ProbeError::Stopped)), "{result:?}");
        assert!(names(dir.path()).is_empty());
    }
}

/// Goal: an observer that panics leaves no file either.
#[test]
fn a_panic_cleans_up() {
    let dir = tempfile::tempdir().unwrap();
    let plan = plan(&small(dir.path())).unwrap();
    let run = std::panic::AssertUnwindSafe(|| {
        run(&plan, &|event| assert!(!matches!(event, ProbeEvent::Point(_)), "planted panic"), &Handle::new())
    });
    assert!(std::panic::catch_unwind(run).is_err());
    assert!(names(dir.path()).is_empty());
}

/// Goal: a file system that is too small, or got full since the plan, is refused in words, and stays as it
/// was.
/// Method: a tmpfs of 8 MiB. Needs root; says so where it has to be skipped.
#[test]
fn a_full_file_system_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=8m", "haul-test"]).arg(&path).output();
    if !mount.is_ok_and(|output| output.status.success()) {
        // Not eprintln!, which the harness hides when the test passes.
        std::io::Write::write_all(
            &mut std::io::stderr(),
            b"SKIP a_full_file_system_is_refused: cannot mount a tmpfs\n",
        )
        .unwrap();
        return;
    }
    let refused = plan(&small(&path));
    let fits = plan(&Request { size: Some(4 << 20), ..small(&path) });
    std::fs::write(path.join("other"), vec![1; 6 << 20]).unwrap();
    let late = fits.as_ref().map(|plan| run(plan, &|_| (), &Handle::new()));
    let late = late.map(|result| result.map(|_| ()));
    let left = names(&path);
    Command::new("umount").arg("-l").arg(&path).status().unwrap();
    assert!(matches!(refused, Err(ProbeError::Space { size, .. }) if size == 16 << 20), "{refused:?}");
    assert!(matches!(&late, Ok(Err(ProbeError::Io { .. }))), "{late:?}");
    assert_eq!(left, ["other"]);
    assert!(fits.unwrap().warnings.iter().any(|warning| warning.contains("memory")));
}

fn faulty(plan: Vec<(When, What)>) -> (Box<dyn Engine>, Hung) {
    let config = EngineConfig { name: EngineName::Pread, depth: ENGINE_DEPTH, registered_max: 0 };
    let (faulty, hung) = Faulty::new(io::open(&config).unwrap(), plan);
    (Box::new(faulty), hung)
}

/// Goal: storage that stops answering costs the time limit and no more; what was measured until then counts.
/// Method: the n-th read, write or sync and all after it hang.
#[test]
fn hung_storage_ends_the_probe() {
    for (kind, nth) in [(IoKind::Read, 10), (IoKind::Write, 30), (IoKind::Sync, 4)] {
        let dir = tempfile::tempdir().unwrap();
        let plan = plan(&Request { time_limit: Duration::from_secs(2), ..small(dir.path()) }).unwrap();
        let (engine, hung) = faulty(vec![(When::From(kind, nth), What::Hang)]);
        let probe = run_on(&plan, engine, &|_| (), &Handle::new());
        assert!(hung.count() > 0, "{kind:?}");
        match probe {
            Ok(probe) => {
                assert!(probe.remarks.iter().any(|text| text.contains("not answered")), "{:?}", probe.remarks)
            }
            // It was still filling.
            Err(e) => assert!(e.to_string().contains("more time"), "{e}"),
        }
        assert!(names(dir.path()).is_empty());
        hung.release();
    }
}

/// Goal: direct I/O that is refused when it is used, not when it is opened, leaves a buffered probe, wherever
/// it happens; an error that is none of our doing ends the probe with the operation in its words; an
/// interrupted request is made again.
#[test]
fn refusals_are_told() {
    let run_with = |faults| {
        let dir = tempfile::tempdir().unwrap();
        let plan = plan(&small(dir.path())).unwrap();
        let result = run_on(&plan, faulty(faults).0, &|_| (), &Handle::new());
        assert!(names(dir.path()).is_empty());
        result
    };
    for nth in [0, 3, 20] {
        let probe = run_with(vec![(When::Nth(IoKind::Write, nth), What::Fail(Errno::INVAL))]).unwrap();
        assert!(probe.remarks.iter().any(|text| text.contains("direct")), "{:?}", probe.remarks);
        assert!(
            probe.points.iter().all(|point| point.setting.io == Io::Buffered) && probe.read_best.is_some()
        );
    }
    for (kind, op) in [(IoKind::Read, "read"), (IoKind::Write, "write"), (IoKind::Sync, "sync")] {
        let error = run_with(vec![(When::Nth(kind, 2), What::Fail(Errno::IO))]).unwrap_err();
        assert!(error.to_string().starts_with(op), "{error}");
        let probe = run_with(vec![(When::Nth(kind, 2), What::Fail(Errno::INTR))]).unwrap();
        assert!(probe.read_best.is_some());
    }
}

/// An engine that holds everything written against what was written before.
struct Witness {
    inner: Box<dyn Engine>,
    pages: Arc<Mutex<HashSet<Vec<u8>>>>,
}

impl Engine for Witness {
    fn submit(&mut self, op: IoOp) -> Result<(), Full> {
        let mut pages = self.pages.lock().unwrap();
        for page in
            op.parts.iter().filter(|_| op.kind == IoKind::Write).flat_map(|p| p.as_slice().chunks(4096))
        {
            assert!(pages.insert(page.to_vec()), "a page that was written before");
            let used: HashSet<u8> = page.iter().copied().collect();
            assert!(used.len() > 200, "noise has nearly every byte in each page");
        }
        drop(pages);
        self.inner.submit(op)
    }
    fn reap(&mut self, done: &mut VecDeque<IoDone>, wait: Duration) -> std::io::Result<()> {
        self.inner.reap(done, wait)
    }
    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }
    fn waker(&self) -> Waker {
        self.inner.waker()
    }
    fn facts(&self) -> EngineFacts {
        self.inner.facts()
    }
}

/// Goal: neither compression nor deduplication of storage can answer: all that is written is noise, and no
/// page is written twice.
#[test]
fn what_is_written_is_new_noise() {
    let dir = tempfile::tempdir().unwrap();
    let plan = plan(&Request { directions: vec![Direction::Write], ..small(dir.path()) }).unwrap();
    let pages = Arc::default();
    let engine = Witness { inner: faulty(Vec::new()).0, pages: Arc::clone(&pages) };
    let probe = run_on(&plan, Box::new(engine), &|_| (), &Handle::new()).unwrap();
    assert_eq!(pages.lock().unwrap().len() as u64, probe.bytes_written / 4096);
}
