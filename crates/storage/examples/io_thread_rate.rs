//! How fast I/O threads drive storage: one scratch file, read or written once from its beginning to its end,
//! in objects of 4 MiB. To be compared with `fio` with the same pattern, size and depth.
//!
//! `cargo run --release -p haul-storage --example io_thread_rate -- read|write FILE BYTES IO_THREADS DEPTH
//! REQUEST_SIZE strict|serial|loose|none direct|buffered [auto|uring|pread]`
//!
//! Prints one JSON object: rate (bytes per second; what was written is synced within the time), seconds and
//! processor seconds of this process. A file that is to be read has
//! to be there and as long; one that is to be written is made, and stays. Sizes are bytes.

use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use haul_base::Post;
use haul_base::buffer::{Buffer, Pool};
use haul_base::meter::Meter;
use haul_core::io::{IoMode, OrderPolicy};
use haul_core::stage::Stage;
use haul_storage::io::threads::{IoThreads, IoThreadsConfig, Transfer, TransferDone};
use haul_storage::io::{EngineConfig, IoFile, IoKind, IoTarget};
use haul_storage::options::EngineName;

/// Bytes of an object.
const OBJECT: usize = 4 << 20;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |i: usize| args.get(i).map_or_else(|| panic!("argument {} is missing", i + 1), String::as_str);
    let number = |i: usize| -> u64 { arg(i).parse().expect("a number") };
    let kind = match arg(0) {
        "read" => IoKind::Read,
        "write" => IoKind::Write,
        other => panic!("read or write, not {other}"),
    };
    let (path, size, io_threads, depth) = (arg(1), number(2), number(3) as usize, number(4) as usize);
    let order =
        OrderPolicy::ALL.into_iter().find(|order| order.name() == arg(6)).expect("an ordering policy");
    let mode = IoMode::ALL.into_iter().find(|mode| mode.name() == arg(7)).expect("direct or buffered");
    assert!(size.is_multiple_of(OBJECT as u64), "whole objects of {OBJECT} bytes");
    let engine = match args.get(8).map(String::as_str) {
        None | Some("auto") => EngineName::Auto,
        Some("uring") => EngineName::Uring,
        Some("pread") => EngineName::Pread,
        Some(other) => panic!("no engine {other}"),
    };

    let mut options = std::fs::OpenOptions::new();
    options.read(true).custom_flags(if mode == IoMode::Direct { libc::O_DIRECT } else { 0 });
    if kind == IoKind::Write {
        options.write(true).create(true);
    }
    let opened = options.open(path).unwrap_or_else(|error| panic!("open {path}: {error}"));
    let to_sync = opened.try_clone().expect("a second descriptor");
    let file = Arc::new(IoFile {
        fd: Some(opened.into()),
        mode,
        target: IoTarget::Device(1),
        one_writer: false,
        name: path.into(),
    });

    // Enough that what waits never runs out, and is in order; few enough to stay in memory.
    let request_size = number(5) as u32;
    let objects = size / OBJECT as u64;
    let window = (2 * depth * request_size as usize).div_ceil(OBJECT).max(4) as u64;
    let pool = Pool::new(window * OBJECT as u64);
    let config = IoThreadsConfig {
        engine: EngineConfig { name: engine, depth: 1, registered_max: 0 },
        io_threads,
        depth,
        request_size,
        order,
        deadline: Duration::from_secs(30),
        stage: if kind == IoKind::Read { Stage::SourceStorage } else { Stage::SinkStorage },
        thread_name: "haul-io",
    };
    let (send, done) = channel();
    let on_done: Post<TransferDone<()>> = Arc::new(move |done| drop(send.send(done)));
    let io_threads = IoThreads::start(config, Arc::new(Meter::default()), on_done).expect("io threads");
    let take = || -> Buffer { pool.take(OBJECT).expect("room in the pool") };
    // Memory is made before the clock runs.
    let warm: Vec<Buffer> = (0..window.min(objects))
        .map(|i| {
            let mut buffer = take();
            buffer.as_mut_slice().fill(i as u8 | 1);
            buffer
        })
        .collect();
    drop(warm);

    let (cpu, start) = (cpu_seconds(), Instant::now());
    let wait = || {
        let done: TransferDone<()> = done.recv().expect("the I/O threads live");
        assert!(done.error.is_none() && done.moved == OBJECT, "{} bytes, {:?}", done.moved, done.error);
    };
    for i in 0..objects {
        if i >= window {
            wait();
        }
        io_threads.submit(Transfer {
            tag: (),
            file: file.clone(),
            target: file.target,
            kind,
            offset: i * OBJECT as u64,
            buffer: take(),
            start: 0,
            len: OBJECT,
            pad: 0,
            uncached: false,
        });
    }
    for _ in 0..window.min(objects) {
        wait();
    }
    if kind == IoKind::Write {
        to_sync.sync_data().expect("a sync");
    }
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    println!(
        "{{\"rate\":{:.0},\"seconds\":{seconds:.6},\"cpu_seconds\":{cpu:.6},\"engine\":\"{}\"}}",
        size as f64 / seconds,
        io_threads.facts().name
    );
}

/// User and system time of this process so far.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
