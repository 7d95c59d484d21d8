//! How fast an I/O engine moves one file, with nothing else around it. To be compared with `fio`.
//!
//! `cargo run --release -p haul-storage --example engine_rate -- PATH read|write REQUEST_SIZE DEPTH
//! auto|uring|pread direct|buffered BYTES [SECONDS] [REGISTERED_MAX]`
//!
//! Requests follow each other from the beginning to byte BYTES of PATH (sizes may end in K, M or G), once, or
//! again and again for SECONDS. A file that is written is made if need be, not cut, and synced at the end,
//! which counts. One line of JSON: rates in bytes per second, times in seconds; `submit_max` is the longest
//! that the engine held up its caller.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_base::buffer::{Part, Pool};
use haul_core::io::IoMode;
use haul_storage::io::{self, Engine, EngineConfig, IoDone, IoFile, IoKind, IoOp, IoTarget};
use haul_storage::options::EngineName;
use rustix::fs::{Mode, OFlags};

const USAGE: &str = "engine_rate PATH read|write REQUEST_SIZE DEPTH auto|uring|pread direct|buffered BYTES [SECONDS] \
                     [REGISTERED_MAX]";

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |i: usize| args.get(i).map_or_else(|| panic!("{USAGE}"), String::as_str);
    let kind = match arg(1) {
        "read" => IoKind::Read,
        "write" => IoKind::Write,
        _ => panic!("{USAGE}"),
    };
    let (request, depth) = (bytes(arg(2)) as usize, bytes(arg(3)) as usize);
    let name = match arg(4) {
        "auto" => EngineName::Auto,
        "uring" => EngineName::Uring,
        "pread" => EngineName::Pread,
        _ => panic!("{USAGE}"),
    };
    let mode = match arg(5) {
        "direct" => IoMode::Direct,
        "buffered" => IoMode::Buffered,
        _ => panic!("{USAGE}"),
    };
    let size = bytes(arg(6));
    let seconds = args.get(7).map_or(0, |arg| bytes(arg));
    let registered_max = args.get(8).map_or(1 << 30, |arg| bytes(arg));
    assert!(request > 0 && size >= request as u64, "{USAGE}");

    let mut engine = io::open(&EngineConfig { name, depth, registered_max }).expect("an engine");
    let file = open(arg(0), kind, mode);
    let pool = Pool::new((request as u64 + (64 << 10)) * depth as u64);
    // Made before the clock starts, as fio does.
    let memory: Vec<Part> = (0..depth)
        .flat_map(|_| {
            let mut buffer = pool.take(request).expect("memory");
            buffer.as_mut_slice().fill(0xa5);
            buffer.split(0, request, request)
        })
        .collect();

    let (cpu, start) = (cpu_seconds(), Instant::now());
    let mut run = Run { start, moved: 0, submit: Vec::new(), service: Vec::new() };
    let mut idle = memory;
    let mut done = VecDeque::new();
    let (requests, mut next) = (size / request as u64, 0);
    loop {
        let more = next < requests || start.elapsed() < Duration::from_secs(seconds);
        match idle.pop() {
            Some(part) if more => {
                let offset = next % requests * request as u64;
                run.submit(&mut *engine, op(&file, kind, offset, vec![part]));
                next += 1;
            }
            part => {
                idle.extend(part);
                if engine.in_flight() == 0 {
                    break;
                }
                engine.reap(&mut done, Duration::MAX).expect("an engine that works");
                for one in done.drain(..) {
                    idle.extend(run.end(one, request));
                }
            }
        }
    }
    if kind == IoKind::Write {
        engine.submit(op(&file, IoKind::Sync, 0, Vec::new())).expect("room");
        while done.is_empty() {
            engine.reap(&mut done, Duration::MAX).expect("an engine that works");
        }
        done[0].result.expect("a sync");
    }
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    run.submit.sort();
    run.service.sort();
    let facts = engine.facts();
    println!(
        "{}",
        serde_json::json!({
            "engine": facts.name,
            "remarks": facts.remarks,
            "rate": run.moved as f64 / seconds,
            "bytes": run.moved,
            "seconds": seconds,
            "cpu_seconds": cpu,
            "submit_median": run.submit[run.submit.len() / 2].as_secs_f64(),
            "submit_max": run.submit[run.submit.len() - 1].as_secs_f64(),
            "submit_sum": run.submit.iter().sum::<Duration>().as_secs_f64(),
            "service_median": run.service[run.service.len() / 2].as_secs_f64(),
            "service_p99": run.service[run.service.len() * 99 / 100].as_secs_f64(),
        })
    );
}

struct Run {
    start: Instant,
    moved: u64,
    submit: Vec<Duration>,
    service: Vec<Duration>,
}

impl Run {
    fn submit(&mut self, engine: &mut dyn Engine, op: IoOp) {
        let before = Instant::now();
        engine.submit(op).expect("room");
        self.submit.push(before.elapsed());
    }

    fn end(&mut self, done: IoDone, request: usize) -> Vec<Part> {
        assert!(done.submitted >= self.start);
        let moved = done.result.unwrap_or_else(|errno| panic!("byte {}: {errno}", done.op.offset));
        assert_eq!(moved, request, "at byte {}: the file is shorter than BYTES", done.op.offset);
        self.moved += moved as u64;
        self.service.push(done.completed - done.submitted);
        done.op.parts
    }
}

fn op(file: &Arc<IoFile>, kind: IoKind, offset: u64, parts: Vec<Part>) -> IoOp {
    IoOp { key: 0, file: file.clone(), kind, offset, parts, pad: 0, uncached: false }
}

fn open(path: &str, kind: IoKind, mode: IoMode) -> Arc<IoFile> {
    let mut flags = match kind {
        IoKind::Read => OFlags::RDONLY,
        _ => OFlags::RDWR | OFlags::CREATE,
    } | OFlags::CLOEXEC;
    flags.set(OFlags::DIRECT, mode == IoMode::Direct);
    let fd = rustix::fs::open(Path::new(path), flags, Mode::from_raw_mode(0o600))
        .unwrap_or_else(|errno| panic!("{path}: {errno}"));
    Arc::new(IoFile { fd: Some(fd), mode, target: IoTarget::Device(0), one_writer: false, name: path.into() })
}

fn bytes(text: &str) -> u64 {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().unwrap_or_else(|_| panic!("{text} is no number; {USAGE}")) << shift
}

fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
