//! Writes one large file out of order from many threads, with or without space in advance, for
//! `scripts/bench-frag.sh` to count its extents.
//!
//! Usage: frag FILE BYTES WRITERS (yes|no) [SEED]
//!
//! In: where, how much, by how many threads. Out: the file, synced, and its rate. The space is had by the
//! very function that the sink uses; the writes are plain `pwrite`s of 4 MiB through the page cache, with a
//! sync every 256 MiB, as the epochs of a copy are. Offsets come in the order of the threads' turns, shuffled
//! within windows of 64 objects: so far apart does a window of streams bring them.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use haul_storage::sink::space::preallocate;

const OBJECT: u64 = 4 << 20;
const WINDOW: usize = 64;
const EPOCH: u64 = 256 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [path, size, writers, space, rest @ ..] = &args[..] else {
        return Err("usage: frag FILE BYTES WRITERS (yes|no) [SEED]".into());
    };
    let (size, writers): (u64, usize) = (size.parse()?, writers.parse()?);
    let seed: u64 = rest.first().map_or(Ok(1), |seed| seed.parse())?;
    let file = OpenOptions::new().write(true).create_new(true).open(path)?;
    let start = Instant::now();
    if space == "yes" {
        println!("{:?}", preallocate(&file, size, None)?);
    }
    let mut offsets: Vec<u64> = (0..size.div_ceil(OBJECT)).map(|i| i * OBJECT).collect();
    let mut rng = fastrand::Rng::with_seed(seed);
    offsets.chunks_mut(WINDOW).for_each(|window| rng.shuffle(window));
    let mut data = vec![0; OBJECT as usize];
    rng.fill(&mut data);
    let queue = Mutex::new(offsets.into_iter());
    let written = AtomicU64::new(0);
    let failed = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..writers {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("no writer panics").next();
                    let Some(offset) = next else { return };
                    let len = OBJECT.min(size - offset);
                    let before = written.fetch_add(len, Ordering::Relaxed);
                    let result = file.write_all_at(&data[..len as usize], offset).and_then(|()| {
                        let epoch_ends = before / EPOCH != (before + len) / EPOCH;
                        if epoch_ends { file.sync_data() } else { Ok(()) }
                    });
                    if let Err(error) = result {
                        *failed.lock().expect("no writer panics") = Some(error);
                        return;
                    }
                }
            });
        }
    });
    if let Some(error) = failed.into_inner()? {
        return Err(error.into());
    }
    file.sync_all()?;
    let seconds = start.elapsed().as_secs_f64();
    println!("{size} bytes in {seconds:.1} s, {:.1} MB/s", size as f64 / seconds / 1e6);
    Ok(())
}
