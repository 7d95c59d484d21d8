use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, channel};

use haul_core::io::IoMode;

use super::*;
use crate::buffer::Pool;
use crate::job::EngineName;
use crate::storage::io::pread::Pread;

/// Longest wait for something that must come: no test passes or fails by time.
const PATIENCE: Duration = Duration::from_secs(60);

fn config(lanes: usize, depth: usize, request_size: u32, order: OrderPolicy) -> LaneConfig {
    LaneConfig {
        engine: EngineConfig { name: EngineName::Pread, depth: 1, registered_max: 0 },
        lanes,
        depth,
        request_size,
        order,
        deadline: PATIENCE,
        stage: Stage::SourceStorage,
        thread_name: "test",
    }
}

/// A channel that hears of completions.
fn listener<T: Send + 'static>() -> (OnDone<T>, Receiver<TransferDone<T>>) {
    let (send, receive) = channel();
    (Arc::new(move |done| drop(send.send(done))), receive)
}

fn file(file: std::fs::File, mode: IoMode, target: u64, one_writer: bool) -> Arc<IoFile> {
    let fd = Some(OwnedFd::from(file));
    Arc::new(IoFile { fd, mode, target: Target(target), one_writer, name: format!("file-{target}").into() })
}

fn scratch() -> std::fs::File {
    tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR").to_owned() + "/../../target").unwrap()
}

/// Goal: whatever the knobs, what is written is what was given, and what is read is what lies there.
/// Method: seeded lanes, depths, request sizes and orders; a file of odd length in objects of seeded length, in
/// shuffled order, written, then read back by transfers of which the last asks for more than there is.
#[test]
fn bytes_are_exact_for_any_knobs() {
    let mut rng = fastrand::Rng::with_seed(1);
    for round in 0..60 {
        let request_size = 4096 << rng.u32(0..10);
        let order = OrderPolicy::ALL[round % 4];
        let (lanes, depth) = (rng.usize(1..6), rng.usize(1..12));
        let object = 65536 << rng.usize(0..3);
        let len = rng.usize(1..1_000_000);
        let content: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(len).collect();
        let pool = Pool::new(64 << 20);
        let (on_done, done) = listener();
        let config = config(lanes, depth, request_size, order);
        let lanes = Lanes::start(config, Arc::default(), on_done).unwrap();
        let scratch = scratch();
        let target = file(scratch.try_clone().unwrap(), IoMode::Buffered, 1, rng.bool());
        let mut objects: Vec<usize> = (0..len.div_ceil(object)).collect();
        if rng.bool() {
            rng.shuffle(&mut objects);
        }
        for &i in &objects {
            let range = i * object..len.min((i + 1) * object);
            let start = rng.usize(0..100);
            let mut buffer = pool.take(start + range.len()).unwrap();
            buffer.as_mut_slice()[start..].copy_from_slice(&content[range.clone()]);
            lanes.submit(Transfer {
                tag: i,
                file: target.clone(),
                kind: IoKind::Write,
                offset: range.start as u64,
                buffer,
                start,
                len: range.len(),
                pad: 0,
                uncached: rng.bool(),
            });
        }
        for _ in &objects {
            let done = done.recv_timeout(PATIENCE).unwrap();
            assert_eq!((done.moved, done.error), (done.len, None));
        }
        let mut there = vec![0; len];
        std::os::unix::fs::FileExt::read_exact_at(&scratch, &mut there, 0).unwrap();
        assert!(there == content, "round {round}: what was written is there");
        for &i in &objects {
            lanes.submit(Transfer {
                tag: i,
                file: target.clone(),
                kind: IoKind::Read,
                offset: (i * object) as u64,
                buffer: pool.take(object).unwrap(),
                start: 0,
                len: object,
                pad: 0,
                uncached: false,
            });
        }
        for _ in &objects {
            let done = done.recv_timeout(PATIENCE).unwrap();
            let range = done.tag * object..len.min((done.tag + 1) * object);
            assert_eq!((done.moved, done.error), (range.len(), None));
            assert!(done.buffer.as_slice()[..done.moved] == content[range], "round {round}");
        }
        drop(lanes);
        assert!(done.recv_timeout(PATIENCE).is_err(), "answered once, and the threads end");
        assert_eq!(pool.in_use().0, 0);
    }
}
